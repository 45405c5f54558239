//! Where mounts are measured: who takes part, with which images, and one run on a fresh mount. `mount` and `random` say what
//! is read.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use super::caches::Caches;
use super::column::{Figure, Sample};
use super::findings::Findings;
use super::images::Pictured;
use super::interleave::{Contest, Contestant, Pace, interleave};
use super::mounted::{Mounter, System};
use super::program::{Program, ProgramArguments};
use super::reader::{Reader, Seen, Way};
use super::work::Work;

/// Everything that stays the same from run to run.
#[derive(Debug)]
pub(super) struct Bed {
    mounters: Vec<Mounter>,
    /// What the squashfs systems mount.
    squashfs: Option<PathBuf>,
    caches: Caches,
    work: Work,
}

/// Who is wanted, and what they need.
#[derive(Debug, Clone, Copy)]
pub(super) struct Wish<'a> {
    pub(super) systems: &'a [System],
    pub(super) programs: &'a ProgramArguments,
}

/// Who can take part, and who cannot, and why.
#[derive(Debug, Default)]
pub(super) struct Found {
    pub(super) mounters: Vec<Mounter>,
    missing: Vec<(System, String)>,
}

/// Finds out who can take part.
///
/// # Errors
/// When ours is wanted and cannot.
pub(super) fn find(wish: Wish<'_>) -> Result<Found> {
    let mut found = Found::default();
    for system in wish.systems {
        match system.find(wish.programs) {
            Ok(mounter) => found.mounters.push(mounter),
            Err(why) if *system == System::Ferrofs => bail!("ferrofs: {why}"),
            Err(why) => found.missing.push((*system, why)),
        }
    }
    Ok(found)
}

impl Found {
    /// Their programs, for the report.
    pub(super) fn programs(&self) -> Vec<Program> {
        self.mounters.iter().filter_map(|mounter| mounter.program.clone()).collect()
    }
}

impl Bed {
    /// Mounts an image once with everybody, so that whoever cannot is known before anything is measured.
    ///
    /// # Errors
    /// When ours cannot.
    pub(super) fn new(
        findings: &mut Findings,
        found: Found,
        squashfs: Option<PathBuf>,
        (work, image): (Work, &Pictured),
    ) -> Result<Self> {
        for folder in ["mount", "warm"] {
            fs::create_dir(work.path(folder)).context("making a directory to mount on")?;
        }
        let caches = Caches::look();
        let mut bed = Self { mounters: Vec::new(), squashfs, caches, work };
        for (system, why) in found.missing {
            findings.leave_out(system.name(), why);
        }
        for mounter in found.mounters {
            let name = mounter.system.name();
            let Some(path) = bed.image_of(&mounter, &image.path) else { continue };
            let directory = bed.work.path("mount");
            let tried = mounter.mount(&path, &directory, &bed.work.path("said"));
            match tried.and_then(super::mounted::Mounted::end) {
                Ok(()) => {
                    let words = mounter.words(Path::new("IMAGE"), Path::new("DIR"));
                    findings.report.add_peer_command(name, words);
                    bed.mounters.push(mounter);
                }
                Err(error) if mounter.system == System::Ferrofs => {
                    return Err(error).context("ferrofs");
                }
                Err(error) => findings.leave_out(name, format!("{error:#}")),
            }
        }
        findings.report.add_remark(caches.sentence());
        findings.report.add_remark(
            "CPU is that of the readers and of the daemon; what the kernel's threads do for its drivers is in neither",
        );
        Ok(bed)
    }

    fn image_of(&self, mounter: &Mounter, image: &Path) -> Option<PathBuf> {
        if mounter.system.takes_squashfs() {
            self.squashfs.clone()
        } else {
            Some(image.to_path_buf())
        }
    }

    /// Has everybody's mount of the image read, in turn. Whoever read something else than ours is out.
    ///
    /// # Errors
    /// When ours fails.
    pub(super) fn contest(&self, image: &Pictured, reader: &Reader, pace: Pace) -> Result<Contest> {
        let contestants: Vec<_> = self
            .mounters
            .iter()
            .filter_map(|mounter| {
                let path = self.image_of(mounter, &image.path)?;
                let name = mounter.system.name().to_owned();
                let is_ours = mounter.system == System::Ferrofs;
                Some(Contestant { name, is_ours, what: (mounter, path) })
            })
            .collect();
        let seen = RefCell::new(BTreeMap::new());
        let mut contest = interleave(&contestants, pace, |(mounter, path)| {
            let (sample, saw) = self.once(mounter, path, reader)?;
            seen.borrow_mut().insert(mounter.system.name().to_owned(), saw);
            Ok(sample)
        })?;
        agree(&mut contest, &seen.into_inner());
        Ok(contest)
    }

    /// One run on a fresh mount.
    fn once(&self, mounter: &Mounter, image: &Path, reader: &Reader) -> Result<(Sample, Seen)> {
        let (directory, said) = (self.work.path("mount"), self.work.path("said"));
        self.caches.prepare(image)?;
        let mounted = mounter.mount(image, &directory, &self.work.path("daemon"))?;
        // The reader's own program is in memory again before it is measured.
        Reader::new(Way::Find).run(&self.work.path("warm"), &said)?;
        let before = mounted.daemon_cpu()?;
        let (spent, seen) = reader.run(&directory, &said)?;
        let daemon = mounted.daemon_cpu()?.saturating_sub(before);
        let mut sample = Sample::from([
            (Figure::Wall, spent.wall.as_secs_f64()),
            (Figure::Cpu, spent.cpu.as_secs_f64()),
            (Figure::DaemonCpu, daemon.as_secs_f64()),
        ]);
        sample.extend(mounted.daemon_peak_mib().map(|peak| (Figure::Peak, peak)));
        if let Some(latencies) = seen.latencies {
            sample.extend([
                (Figure::Mean, latencies.mean),
                (Figure::P50, latencies.p50),
                (Figure::P99, latencies.p99),
                (Figure::P999, latencies.p999),
            ]);
        }
        mounted.end()?;
        Ok((sample, seen))
    }
}

/// Leaves those out who did other work than ours.
fn agree(contest: &mut Contest, seen: &BTreeMap<String, Seen>) {
    let work = |saw: &Seen| (saw.files, saw.bytes);
    let Some(ours) = seen.get(System::Ferrofs.name()).map(work) else { return };
    let (same, others): (Vec<_>, Vec<_>) = std::mem::take(&mut contest.columns)
        .into_iter()
        .partition(|column| seen.get(&column.name).is_some_and(|saw| work(saw) == ours));
    contest.columns = same;
    for column in others {
        let (files, bytes) = seen.get(&column.name).map(work).unwrap_or_default();
        let said = format!(
            "it read {bytes} bytes of {files} files where ours read {} of {}",
            ours.1, ours.0
        );
        contest.failed.push((column.name, said));
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::agree;
    use crate::peers::column::Column;
    use crate::peers::interleave::Contest;
    use crate::peers::reader::Seen;

    #[test]
    fn whoever_read_something_else_is_out() {
        let seen = |bytes| Seen { files: 1, bytes, ..Seen::default() };
        let names = ["kernel", "erofsfuse", "ferrofs"];
        let all: BTreeMap<_, _> = names
            .iter()
            .zip([7, 8, 7])
            .map(|(name, bytes)| (String::from(*name), seen(bytes)))
            .collect();
        let mut contest = Contest {
            columns: names.iter().map(|name| Column::new(*name)).collect(),
            failed: Vec::new(),
        };
        agree(&mut contest, &all);
        assert_eq!(contest.columns.len(), 2);
        let (name, said) = &contest.failed[0];
        assert_eq!(
            (name.as_str(), said.as_str()),
            ("erofsfuse", "it read 8 bytes of 1 files where ours read 7 of 1")
        );
    }
}

//! Experiments that read through mounts: `mount` (trees, a large file, listings) and `random` (blocks of a large file) beside
//! the kernel and other daemons, and `mount-memory` (peak memory under many readers, and the cost of an idle mount). Every run
//! has a mount made anew.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fs::{self, OpenOptions};
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use clap::{Args, ValueEnum};
use serde::Serialize;

use crate::comparison::{
    CPU, Candidate, Cell, Comparison, DAEMON_CPU, Figures, Measured, PEAK, RoundArguments,
    Schedule, Sheet, WALL, ratio,
};
use crate::experiment::{Context, Experiment};
use crate::image_info::ImageInfo;
use crate::images::size;
use crate::machine::Requirement;
use crate::mounted::{Mounter, System};
use crate::programs::squashfs_of;
use crate::reader::{Pattern, RANDOM_BLOCK, Reader, Seen};
use crate::report::Table;
use crate::trees::read_file;

/// A quick run reads this many files of a tree, and this much of a large file; with large LZMA clusters, a daemon that keeps
/// none needs milliseconds for a random block.
const QUICK_FILES: u64 = 1000;
const QUICK_BYTES: u64 = 32 << 20;
const QUICK_RANDOM_BYTES: u64 = 4 << 20;
const DROP_CACHES: &str = "/proc/sys/vm/drop_caches";
const OURS: &str = System::Ferrofs.name();
const KERNEL: &str = System::Kernel.name();
const EROFSFUSE: &str = System::Erofsfuse.name();

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "kebab-case")]
enum What {
    /// The largest file, front to back
    Large,
    /// All names
    Find,
    /// All names with attributes
    List,
    /// All files in the order of the listing; the longest comes last: it has what the others leave of their shares
    Tree,
}

#[derive(Debug, Clone, Args, Serialize)]
pub(crate) struct MountArguments {
    /// EROFS images
    #[arg(required = true, value_name = "IMAGE")]
    images: Vec<PathBuf>,
    /// The systems that mount
    #[arg(long, value_enum, value_name = "LIST", value_delimiter = ',')]
    #[arg(default_values_t = System::ALL)]
    systems: Vec<System>,
    /// What is read
    #[arg(long, value_enum, value_name = "LIST", value_delimiter = ',')]
    #[arg(default_values_t = What::value_variants().to_vec())]
    what: Vec<What>,
    /// Processes that read a tree, one run for each number
    #[arg(long, value_name = "N", value_delimiter = ',', default_value = "1,4")]
    #[arg(value_parser = clap::value_parser!(u16).range(1..=256))]
    readers: Vec<u16>,
    /// A squashfs image of the same tree; made of the first image if none is named
    #[arg(long, value_name = "FILE")]
    squashfs: Option<PathBuf>,
    #[command(flatten)]
    rounds: RoundArguments,
}

#[derive(Debug, Clone, Args, Serialize)]
pub(crate) struct RandomArguments {
    /// EROFS images, with a large file in each
    #[arg(required = true, value_name = "IMAGE")]
    images: Vec<PathBuf>,
    /// The systems that mount
    #[arg(long, value_enum, value_name = "LIST", value_delimiter = ',')]
    #[arg(default_values_t = System::EROFS)]
    systems: Vec<System>,
    /// The file, from the root of the tree; the largest one if none is named
    #[arg(long, value_name = "PATH")]
    file: Option<PathBuf>,
    /// Bytes at its front that are read; 4 MiB at most with --quick
    #[arg(long, value_name = "BYTES", default_value_t = 64 << 20)]
    #[arg(value_parser = clap::value_parser!(u64).range(4096..=1 << 40))]
    bytes: u64,
    /// Threads that read, each its own part, one run for each number
    #[arg(short, long, value_name = "N", value_delimiter = ',', default_value = "1,4")]
    #[arg(value_parser = clap::value_parser!(u16).range(1..=256))]
    jobs: Vec<u16>,
    #[command(flatten)]
    rounds: RoundArguments,
}

/// The systems that take part, with what they mount and where.
struct MountRunner {
    mounters: Vec<Mounter>,
    squashfs: Option<PathBuf>,
    folder: tempfile::TempDir,
    /// Whether this user may drop the system's caches.
    drops_caches: bool,
}

impl MountRunner {
    /// Mounts an image once with every system, so that whoever cannot is known before anything is measured. Ours must.
    fn new(
        context: &mut Context<'_>,
        systems: &[System],
        image: &ImageInfo,
        squashfs: Option<&Path>,
        rounds: &RoundArguments,
    ) -> Result<Self> {
        let mut found = Vec::new();
        for system in systems {
            match system.find(&rounds.programs) {
                Ok(mounter) => found.push(mounter),
                Err(why) if *system == System::Ferrofs => bail!("ferrofs: {why}"),
                Err(why) => context.report.leave_out(system.name(), why),
            }
        }
        let folder = rounds.folder()?;
        let mut packed = None;
        if found.iter().any(|mounter| mounter.system.takes_squashfs()) {
            match squashfs_of(image, squashfs, &rounds.programs, context.is_quick, folder.path())? {
                Ok(path) => packed = Some(path),
                Err(why) => context.report.leave_out("squashfuse_ll, kernel-squashfs", why),
            }
        }
        for name in ["mount", "warm"] {
            fs::create_dir(folder.path().join(name)).context("making a directory to mount on")?;
        }
        let drops_caches = OpenOptions::new().write(true).open(DROP_CACHES).is_ok();
        let mut runner = Self { mounters: Vec::new(), squashfs: packed, folder, drops_caches };
        for mounter in found {
            let Some(path) = runner.image_of(&mounter, &image.path) else { continue };
            let name = mounter.system.name();
            match runner.mount(&mounter, &path).and_then(crate::mounted::Mounted::end) {
                Ok(()) => {
                    let words = mounter.words(Path::new("IMAGE"), Path::new("DIR"));
                    context.report.peer_command(name, words);
                    runner.mounters.push(mounter);
                }
                Err(error) if mounter.system == System::Ferrofs => {
                    return Err(error).context("ferrofs");
                }
                Err(error) => context.report.leave_out(name, format!("{error:#}")),
            }
        }
        let caches = match drops_caches {
            true => "all caches of the system are dropped, the image is read into the page cache",
            false => {
                "the image is read into the page cache; other caches are kept, since only root may drop them"
            }
        };
        context.report.remark(format!("before each run {caches}, and it is mounted anew"));
        context
            .report
            .remark("CPU is that of the readers and of the daemon, without the kernel's threads");
        Ok(runner)
    }

    fn image_of(&self, mounter: &Mounter, image: &Path) -> Option<PathBuf> {
        let is_squashfs = mounter.system.takes_squashfs();
        if is_squashfs { self.squashfs.clone() } else { Some(image.to_path_buf()) }
    }

    fn mount(&self, mounter: &Mounter, image: &Path) -> Result<crate::mounted::Mounted> {
        let folder = self.folder.path();
        mounter.mount(image, &folder.join("mount"), &folder.join("daemon"))
    }

    fn prepare(&self, image: &Path) -> Result<()> {
        if self.drops_caches {
            rustix::fs::sync();
            // Pages, and what is known of files.
            fs::write(DROP_CACHES, "3").context("dropping caches")?;
        }
        read_file(image)
    }

    /// One run on a fresh mount.
    fn run(&self, mounter: &Mounter, image: &Path, reader: &Reader) -> Result<(Figures, Seen)> {
        self.prepare(image)?;
        let mounted = self.mount(mounter, image)?;
        // The reader's own program is in memory again before it is measured.
        Reader::new(Pattern::Find).run(&self.folder.path().join("warm"))?;
        let before = mounted.daemon_cpu()?;
        let (cost, seen) = reader.run(&self.folder.path().join("mount"))?;
        let daemon = mounted.daemon_cpu()?.saturating_sub(before);
        let mut figures = Figures::from([
            (WALL, cost.wall.as_secs_f64()),
            (CPU, cost.cpu.as_secs_f64()),
            (DAEMON_CPU, daemon.as_secs_f64()),
        ]);
        figures.extend(mounted.daemon_mib("VmHWM").map(|peak| (PEAK, peak)));
        if let Some(of) = seen.latencies {
            figures.extend([
                ("mean", of.mean),
                ("p50", of.p50),
                ("p99", of.p99),
                ("p999", of.p999),
            ]);
        }
        mounted.end()?;
        Ok((figures, seen))
    }

    /// Has every system's mount of the image read, in turn. Whoever read something else than ours is out.
    fn compare(
        &self,
        comparison: &mut Comparison<'_, '_>,
        case: &str,
        image: &ImageInfo,
        reader: &Reader,
        sheet: &mut Sheet,
    ) -> Result<Vec<Measured>> {
        let seen = RefCell::new(BTreeMap::new());
        let candidates = self.mounters.iter().filter_map(|mounter| {
            let path = self.image_of(mounter, &image.path)?;
            let (name, seen) = (mounter.system.name(), &seen);
            let run = Box::new(move || {
                let (figures, saw) = self.run(mounter, &path, reader)?;
                seen.borrow_mut().insert(name.to_owned(), saw);
                Ok(figures)
            });
            Some(Candidate { name: name.to_owned(), is_ours: name == OURS, run })
        });
        let candidates = candidates.collect();
        comparison.run(case, candidates, sheet, |all, failed| agree(all, failed, &seen.borrow()))
    }
}

/// Leaves out who did other work than ours.
fn agree(
    all: &mut Vec<Measured>,
    failed: &mut Vec<(String, String)>,
    seen: &BTreeMap<String, Seen>,
) {
    let work = |name: &str| seen.get(name).map(|saw| (saw.files, saw.bytes));
    let Some((files, bytes)) = work(OURS) else { return };
    all.retain(|one| {
        let theirs = work(&one.name).unwrap_or_default();
        let is_same = theirs == (files, bytes);
        if !is_same {
            let said = format!(
                "it read {} bytes of {} files where ours read {bytes} of {files}",
                theirs.1, theirs.0
            );
            failed.push((one.name.clone(), said));
        }
        is_same
    });
}

/// What is read, and by how many processes.
#[derive(Debug, Clone, Copy)]
struct MountCase {
    what: What,
    readers: u16,
}

impl MountCase {
    fn title(self) -> String {
        match (self.what, self.readers) {
            (What::Tree, 1) => "tree, 1 reader".to_owned(),
            (What::Tree, readers) => format!("tree, {readers} readers"),
            (What::Large, _) => "largest file".to_owned(),
            (What::Find, _) => "find".to_owned(),
            (What::List, _) => "ls -lR".to_owned(),
        }
    }

    fn reader(self, image: &ImageInfo, is_quick: bool) -> Option<Reader> {
        let pattern = match self.what {
            What::Tree => Pattern::Tree,
            What::Large => Pattern::Large,
            What::Find => Pattern::Find,
            What::List => Pattern::List,
        };
        let mut reader = Reader { jobs: self.readers, ..Reader::new(pattern) };
        if self.what == What::Large {
            reader.file = Some(image.largest.clone()?);
        }
        if is_quick {
            (reader.files, reader.bytes) = (QUICK_FILES, QUICK_BYTES);
        }
        Some(reader)
    }

    fn judge(
        self,
        comparison: &mut Comparison<'_, '_>,
        image: &ImageInfo,
        case: &str,
        all: &[Measured],
    ) {
        let [kernel, erofsfuse] = [KERNEL, EROFSFUSE].map(|peer| ratio(all, WALL, OURS, peer));
        match self.what {
            What::Tree => {
                comparison.judge("tree-erofsfuse", case, erofsfuse);
                comparison.judge(&format!("tree-kernel-{}", image.codec()), case, kernel);
            }
            What::Large if image.is_lz4_4k() => {
                comparison.judge("large-kernel-lz4-4k", case, kernel);
            }
            What::Large => comparison.judge("large-kernel", case, kernel),
            What::Find | What::List => {
                comparison.judge("names-kernel", case, kernel);
                comparison.judge("names-erofsfuse", case, erofsfuse);
            }
        }
    }
}

impl Experiment for MountArguments {
    fn requirements(&self) -> Vec<Requirement> {
        vec![Requirement::Fuse]
    }

    fn run(&self, context: &mut Context<'_>) -> Result<()> {
        let images = ImageInfo::read_all(&self.images)?;
        let first = images.first().context("no image")?;
        let squashfs = self.squashfs.as_deref();
        let runner = MountRunner::new(context, &self.systems, first, squashfs, &self.rounds)?;
        let is_quick = context.is_quick;
        if is_quick {
            context.report.remark(format!(
                "quick: the first {QUICK_FILES} files of a tree, the first {QUICK_BYTES} bytes of a file"
            ));
        }
        let readers =
            |what: &What| if *what == What::Tree { self.readers.clone() } else { vec![1] };
        let of = |what: &What| {
            readers(what)
                .into_iter()
                .map(|readers| MountCase { what: *what, readers })
                .collect::<Vec<_>>()
        };
        let cases: Vec<MountCase> = self.what.iter().flat_map(of).collect();
        // Six systems: a second round would not fit into a quick run.
        let most = if is_quick { 1 } else { u16::MAX };
        let schedule = Schedule::new(&self.rounds, 0, is_quick).at_most(most);
        let mut comparison =
            Comparison::new(context, "mount", schedule, cases.len() * images.len());
        comparison.programs(runner.mounters.iter().filter_map(|mounter| mounter.program.as_ref()));
        let header = "wall, s | reader CPU, s | daemon CPU, s | daemon peak, MiB | ferrofs / it";
        let mut cells = vec![Cell::Spread(WALL)];
        cells.extend([CPU, DAEMON_CPU, PEAK].map(Cell::Median));
        cells.push(Cell::Of(WALL, OURS));
        for mount_case in cases {
            let title = mount_case.title();
            let mut sheet = Sheet::new(&title, header, cells.clone(), WALL);
            for image in &images {
                let Some(reader) = mount_case.reader(image, is_quick) else { continue };
                let case = format!("{title}, {}", image.name);
                let all = runner.compare(&mut comparison, &case, image, &reader, &mut sheet)?;
                mount_case.judge(&mut comparison, image, &case, &all);
            }
            comparison.add(sheet);
        }
        comparison.finish()
    }
}

impl Experiment for RandomArguments {
    fn requirements(&self) -> Vec<Requirement> {
        vec![Requirement::Fuse]
    }

    fn run(&self, context: &mut Context<'_>) -> Result<()> {
        let images = ImageInfo::read_all(&self.images)?;
        let first = images.first().context("no image")?;
        let runner = MountRunner::new(context, &self.systems, first, None, &self.rounds)?;
        let is_quick = context.is_quick;
        let schedule = Schedule::new(&self.rounds, 0, is_quick);
        let cases = self.jobs.len() * images.len();
        let mut comparison = Comparison::new(context, "random", schedule, cases);
        comparison.programs(runner.mounters.iter().filter_map(|mounter| mounter.program.as_ref()));
        comparison.context.report.remark(format!(
            "reads: pread of {RANDOM_BLOCK} bytes, every block once, in the same random order, with POSIX_FADV_RANDOM"
        ));
        let header = "mean, us | p50 | p99 | p999 | reader CPU, s | daemon CPU, s | daemon peak, MiB | mean: ferrofs / it | p99: ferrofs / it";
        let mut cells = vec![
            Cell::Spread("mean"),
            Cell::Median("p50"),
            Cell::Spread("p99"),
            Cell::Median("p999"),
        ];
        cells.extend([CPU, DAEMON_CPU, PEAK].map(Cell::Median));
        cells.extend(["mean", "p99"].map(|figure| Cell::Of(figure, OURS)));
        for jobs in &self.jobs {
            let title = format!("random, {jobs} {}", if *jobs == 1 { "job" } else { "jobs" });
            let mut sheet = Sheet::new(&title, header, cells.clone(), "mean");
            for image in &images {
                let case = format!("{title}, {}", image.name);
                let reader = self.reader(image, *jobs, is_quick)?;
                let all = runner.compare(&mut comparison, &case, image, &reader, &mut sheet)?;
                for (threshold, figure) in [("mean-kernel", "mean"), ("p99-kernel", "p99")] {
                    comparison.judge(threshold, &case, ratio(&all, figure, OURS, KERNEL));
                }
            }
            comparison.add(sheet);
        }
        comparison.finish()
    }
}

impl RandomArguments {
    fn reader(&self, image: &ImageInfo, jobs: u16, is_quick: bool) -> Result<Reader> {
        let file = self.file.as_ref().map(|path| path.strip_prefix("/").unwrap_or(path).into());
        let file = file.or_else(|| image.largest.clone());
        let what = || format!("{} has no file with contents", image.path.display());
        let most = if is_quick { QUICK_RANDOM_BYTES } else { u64::MAX };
        let (file, bytes) = (Some(file.with_context(what)?), self.bytes.min(most));
        Ok(Reader { jobs, bytes, file, ..Reader::new(Pattern::Random) })
    }
}

#[derive(Debug, Clone, Args, Serialize)]
pub(crate) struct MountMemoryArguments {
    /// EROFS images
    #[arg(required = true, value_name = "IMAGE")]
    images: Vec<PathBuf>,
    /// The limit of the mount under readers
    #[arg(long, value_name = "SIZE", default_value = "64M", value_parser = size)]
    memory: u64,
    /// Processes that read the whole tree together
    #[arg(long, value_name = "N", default_value_t = 64)]
    #[arg(value_parser = clap::value_parser!(u16).range(1..=256))]
    readers: u16,
    /// Seconds that an idle mount is watched; 2 with --quick
    #[arg(long, value_name = "N", default_value_t = 30)]
    #[arg(value_parser = clap::value_parser!(u16).range(1..=3600))]
    idle: u16,
    #[command(flatten)]
    rounds: RoundArguments,
}

/// A mount counts as idle this long after the last read.
const QUIET: Duration = Duration::from_secs(10);

impl Experiment for MountMemoryArguments {
    fn requirements(&self) -> Vec<Requirement> {
        vec![Requirement::Fuse]
    }

    fn run(&self, context: &mut Context<'_>) -> Result<()> {
        let images = ImageInfo::read_all(&self.images)?;
        let first = images.first().context("no image")?;
        let runner = MountRunner::new(context, &[System::Ferrofs], first, None, &self.rounds)?;
        let mounter = runner.mounters.first().context("ferrofs does not mount")?;
        let mib = self.memory as f64 / 1_048_576.0;
        let title = format!("{} readers, --memory {mib:.0}M", self.readers);
        let mut busy =
            Table::new(title, "image | VmHWM, MiB | of the limit | seconds | daemon CPU, s");
        let quiet = if context.is_quick { Duration::from_secs(1) } else { QUIET };
        let idle = Duration::from_secs(u64::from(if context.is_quick { 2 } else { self.idle }));
        let title = format!("Idle for {} s", idle.as_secs());
        let mut rest = Table::new(title, "image | when | VmRSS, MiB | share of a CPU, %");
        let (mut peaks, mut sizes, mut shares) = (Vec::new(), Vec::new(), Vec::new());
        for image in &images {
            context.say(&image.name)?;
            let reader = |jobs| Reader { jobs, sums: true, ..Reader::new(Pattern::Tree) };
            let limited = mounter.clone().with_options(&["--memory", &self.memory.to_string()]);
            let (figures, seen) = runner.run(&limited, &image.path, &reader(self.readers))?;
            let peak = figures.get(PEAK).copied().unwrap_or(f64::NAN);
            let cells = [peak, peak / mib, figures[WALL], figures[DAEMON_CPU]];
            busy.add(
                [image.name.clone()].into_iter().chain(cells.map(|cell| format!("{cell:.2}"))),
            );
            peaks.push(peak / mib);
            runner.prepare(&image.path)?;
            let mounted = runner.mount(mounter, &image.path)?;
            for when in ["right after the mount", "after the whole tree"] {
                if when == "after the whole tree" {
                    let (_, other) = reader(4).run(&runner.folder.path().join("mount"))?;
                    ensure!(other == seen, "{} readers read other bytes than 4", self.readers);
                    sleep(quiet);
                }
                let size = mounted.daemon_mib("VmRSS").unwrap_or(f64::NAN);
                let (before, begin) = (mounted.daemon_cpu()?, Instant::now());
                sleep(idle);
                let busy = mounted.daemon_cpu()?.saturating_sub(before).as_secs_f64();
                let share = busy / begin.elapsed().as_secs_f64() * 100.0;
                let names = [image.name.clone(), when.to_owned()];
                rest.add(names.into_iter().chain([format!("{size:.1}"), format!("{share:.4}")]));
                sizes.push(size);
                shares.push(share);
            }
            mounted.end()?;
        }
        context.report.table(busy);
        context.report.table(rest);
        for (threshold, figures) in [("peak", peaks), ("idle-size", sizes), ("idle-share", shares)]
        {
            let samples = figures.iter().copied().collect();
            context.report.series("ferrofs", threshold, "", &samples);
            let most = figures.into_iter().fold(f64::NAN, f64::max);
            context.report.claim("mount-memory", threshold, &[most], "")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::agree;
    use crate::comparison::Measured;
    use crate::reader::Seen;

    #[test]
    fn whoever_read_something_else_is_out() {
        let names = ["kernel", "erofsfuse", "ferrofs"];
        let seen = |(name, bytes): (&&str, u64)| {
            ((*name).to_owned(), Seen { files: 1, bytes, ..Seen::default() })
        };
        let seen: BTreeMap<_, _> = names.iter().zip([7, 8, 7]).map(seen).collect();
        let measured = |name: &str| Measured { name: name.to_owned(), ..Measured::default() };
        let (mut all, mut failed) = (names.map(measured).to_vec(), Vec::new());
        agree(&mut all, &mut failed, &seen);
        let said = "it read 8 bytes of 1 files where ours read 7 of 1";
        assert_eq!((all.len(), failed), (2, vec![("erofsfuse".to_owned(), said.to_owned())]));
    }
}

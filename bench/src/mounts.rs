//! Experiments that read through mounts: `mount` (trees, a large file, listings) and `random` (blocks of a large file) beside
//! the kernel and other daemons, and `mount-memory` (peak memory under many readers, and the cost of an idle mount). Every run
//! has a mount made anew.

use std::cell::Cell;
use std::fs::{self, OpenOptions};
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use clap::{Args, ValueEnum};
use serde::Serialize;

use crate::experiment::{Context, Experiment};
use crate::image_info::ImageInfo;
use crate::images::size;
use crate::machine::Requirement;
use crate::mounted::{Mounted, Mounter, System};
use crate::programs::{PeerArguments, squashfs_of};
use crate::reader::{Pattern, RANDOM_BLOCK, Reader, Seen};
use crate::report::Report;
use crate::rounds::{Candidate, Measured, find, ratio};
use crate::statistics::{CPU, Figure, Figures, PEAK, WALL};
use crate::table::Sheet;
use crate::trees::read_file;

/// A quick run reads this many files of a tree, and this much of a large file; with large LZMA clusters, a daemon that keeps
/// none needs milliseconds for a random block.
const QUICK_FILES: u64 = 1000;
const QUICK_BYTES: u64 = 32 << 20;
const QUICK_RANDOM_BYTES: u64 = 4 << 20;
const DROP_CACHES: &str = "/proc/sys/vm/drop_caches";
const DAEMON_CPU: Figure = Figure::new("daemon CPU", "s", 3);
const MEAN: Figure = Figure::new("mean", "us", 1);
const P50: Figure = Figure::new("p50", "us", 1);
const P99: Figure = Figure::new("p99", "us", 0);
const P999: Figure = Figure::new("p999", "us", 0);
const FILES: Figure = Figure::new("files", "", 0);
const BYTES: Figure = Figure::new("bytes", "B", 0);
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
    /// Threads that read a tree, one run for each number
    #[arg(long, value_name = "N", value_delimiter = ',', default_value = "1,4")]
    #[arg(value_parser = clap::value_parser!(u16).range(1..=256))]
    readers: Vec<u16>,
    /// A squashfs image of the same tree; made of the first image if none is named
    #[arg(long, value_name = "FILE")]
    squashfs: Option<PathBuf>,
    #[command(flatten)]
    peers: PeerArguments,
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
    peers: PeerArguments,
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
        peers: &PeerArguments,
    ) -> Result<Self> {
        let mut found = Vec::new();
        for system in systems {
            match system.find(&peers.programs) {
                Ok(mounter) => found.push(mounter),
                Err(why) if *system == System::Ferrofs => bail!("ferrofs: {why}"),
                Err(why) => context.report.leave_out(system.name(), why),
            }
        }
        let folder = peers.folder()?;
        let mut packed = None;
        if found.iter().any(|mounter| mounter.system.takes_squashfs()) {
            let is_quick = context.is_quick;
            match squashfs_of(image, squashfs, &peers.programs, is_quick, folder.path())? {
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
            match runner.mount(&mounter, &path).and_then(Mounted::end) {
                Ok(()) => {
                    let words = mounter.words(Path::new("IMAGE"), Path::new("DIR"));
                    context.report.peer_command(name, words);
                    context.report.remark_each(mounter.program.as_ref());
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

    fn directory(&self) -> PathBuf {
        self.folder.path().join("mount")
    }

    fn mount(&self, mounter: &Mounter, image: &Path) -> Result<Mounted> {
        mounter.mount(image, &self.directory(), &self.folder.path().join("daemon"))
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
        let (cost, seen) = reader.run(&self.directory())?;
        let daemon = mounted.daemon_cpu()?.saturating_sub(before);
        let mut figures = vec![
            (WALL, cost.wall.as_secs_f64()),
            (CPU, cost.cpu.as_secs_f64()),
            (DAEMON_CPU, daemon.as_secs_f64()),
            (FILES, seen.files as f64),
            (BYTES, seen.bytes as f64),
        ];
        figures.extend(mounted.daemon_mib("VmHWM").map(|peak| (PEAK, peak)));
        if let Some(of) = seen.latencies {
            figures.extend([(MEAN, of.mean), (P50, of.p50), (P99, of.p99), (P999, of.p999)]);
        }
        mounted.end()?;
        Ok((figures, seen))
    }

    /// Has every system's mount of the image read, in turn. Whoever read something else than ours is out.
    fn compare(
        &self,
        context: &mut Context<'_>,
        case: &str,
        image: &ImageInfo,
        reader: &Reader,
        sheet: &mut Sheet,
    ) -> Result<Vec<Measured>> {
        let candidates = self.mounters.iter().filter_map(|mounter| {
            let path = self.image_of(mounter, &image.path)?;
            let run = move || Ok(self.run(mounter, &path, reader)?.0);
            let name = mounter.system.name();
            Some(if name == OURS { Candidate::ours(name, run) } else { Candidate::peer(name, run) })
        });
        let mut all = context.measure(case, candidates.collect())?;
        for (name, why) in agree(&mut all) {
            context.report.leave_out(format!("{name} in {case}"), why);
        }
        sheet.add(case, &all);
        context.report.judge_all(case, &all);
        Ok(all)
    }
}

/// Takes out who did other work than ours; answers their names, and what they did.
fn agree(all: &mut Vec<Measured>) -> Vec<(String, String)> {
    let work = |one: &Measured| [FILES, BYTES].map(|figure| one.median(figure));
    let Some(wanted) = find(all, OURS).map(work) else { return Vec::new() };
    let (same, other) = std::mem::take(all).into_iter().partition(|one| work(one) == wanted);
    *all = same;
    let said = |one: Measured| {
        let ([files, bytes], [ours, of_ours]) = (work(&one), wanted);
        let said =
            format!("it read {bytes} bytes of {files} files where ours read {of_ours} of {ours}");
        (one.name, said)
    };
    other.into_iter().map(said).collect()
}

/// What is read, and by how many readers.
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

    fn judge(self, report: &mut Report, image: &ImageInfo, case: &str, all: &[Measured]) {
        let [kernel, erofsfuse] = [KERNEL, EROFSFUSE].map(|peer| ratio(all, WALL, OURS, peer));
        match self.what {
            What::Tree => {
                report.judge("tree-erofsfuse", case, erofsfuse);
                if image.codec() != "plain" {
                    report.judge(&format!("tree-kernel-{}", image.codec()), case, kernel);
                }
            }
            What::Large if image.is_lz4_4k() => report.judge("large-kernel-lz4-4k", case, kernel),
            What::Large => report.judge("large-kernel", case, kernel),
            What::Find | What::List => {
                report.judge("names-kernel", case, kernel);
                report.judge("names-erofsfuse", case, erofsfuse);
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
        let runner = MountRunner::new(context, &self.systems, first, squashfs, &self.peers)?;
        if context.is_quick {
            context.report.remark(format!(
                "quick: the first {QUICK_FILES} files of a tree, the first {QUICK_BYTES} bytes of a file"
            ));
        }
        let readers = |what: What| if what == What::Tree { self.readers.as_slice() } else { &[1] };
        let cases = self.what.iter().flat_map(|&what| {
            readers(what).iter().map(move |&readers| MountCase { what, readers })
        });
        let cases: Vec<MountCase> = cases.collect();
        context.plan(&self.peers.rounds, cases.len() * images.len());
        for mount_case in cases {
            let title = mount_case.title();
            let mut sheet = Sheet::of(&context.report.case, &title).bars(WALL).steady(WALL);
            for image in &images {
                let Some(reader) = mount_case.reader(image, context.is_quick) else { continue };
                let case = format!("{title}, {}", image.name);
                let all = runner.compare(context, &case, image, &reader, &mut sheet)?;
                mount_case.judge(&mut context.report, image, &case, &all);
            }
            context.report.sheet(sheet);
        }
        Ok(())
    }
}

impl Experiment for RandomArguments {
    fn requirements(&self) -> Vec<Requirement> {
        vec![Requirement::Fuse]
    }

    fn run(&self, context: &mut Context<'_>) -> Result<()> {
        let images = ImageInfo::read_all(&self.images)?;
        let first = images.first().context("no image")?;
        let runner = MountRunner::new(context, &self.systems, first, None, &self.peers)?;
        context.plan(&self.peers.rounds, self.jobs.len() * images.len());
        context.report.remark(format!(
            "reads: pread of {RANDOM_BLOCK} bytes, every block once, in the same random order, with POSIX_FADV_RANDOM"
        ));
        for jobs in &self.jobs {
            let title = format!("random, {jobs} {}", if *jobs == 1 { "job" } else { "jobs" });
            let mut sheet = Sheet::of(&context.report.case, &title).bars(MEAN).steady(WALL);
            for image in &images {
                let case = format!("{title}, {}", image.name);
                let reader = self.reader(image, *jobs, context.is_quick)?;
                runner.compare(context, &case, image, &reader, &mut sheet)?;
            }
            context.report.sheet(sheet);
        }
        Ok(())
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
    /// Threads that read the whole tree together
    #[arg(long, value_name = "N", default_value_t = 64)]
    #[arg(value_parser = clap::value_parser!(u16).range(1..=256))]
    readers: u16,
    /// Seconds that an idle mount is watched; 2 with --quick
    #[arg(long, value_name = "N", default_value_t = 30)]
    #[arg(value_parser = clap::value_parser!(u16).range(1..=3600))]
    idle: u16,
    #[command(flatten)]
    peers: PeerArguments,
}

/// A mount counts as idle this long after the last read.
const QUIET: Duration = Duration::from_secs(10);
const OF_LIMIT: Figure = Figure::new("of limit", "", 2);
const RESIDENT: Figure = Figure::new("resident while idle", "MiB", 1);
const SHARE: Figure = Figure::new("share of a CPU while idle", "%", 4);

impl Experiment for MountMemoryArguments {
    fn requirements(&self) -> Vec<Requirement> {
        vec![Requirement::Fuse]
    }

    fn run(&self, context: &mut Context<'_>) -> Result<()> {
        let images = ImageInfo::read_all(&self.images)?;
        let first = images.first().context("no image")?;
        let runner = MountRunner::new(context, &[System::Ferrofs], first, None, &self.peers)?;
        let mounter = runner.mounters.first().context("ferrofs does not mount")?;
        let limited = mounter.clone().with_options(&["--memory", &self.memory.to_string()]);
        let mib = self.memory as f64 / 1_048_576.0;
        let quiet = if context.is_quick { Duration::from_secs(1) } else { QUIET };
        let idle = Duration::from_secs(u64::from(if context.is_quick { 2 } else { self.idle }));
        context.plan(&self.peers.rounds, images.len());
        let title = format!("Under readers, and idle for {} s", idle.as_secs());
        let mut sheet = Sheet::of(&context.report.case, &title);
        let reader = |jobs| Reader { jobs, sums: true, ..Reader::new(Pattern::Tree) };
        for image in &images {
            let read_by_many = Cell::new(None);
            let under_readers = || {
                let (mut figures, seen) =
                    runner.run(&limited, &image.path, &reader(self.readers))?;
                read_by_many.set(Some(seen));
                let peak = figures.iter().find(|(figure, _)| *figure == PEAK);
                let peak = peak.map(|(_, peak)| (OF_LIMIT, peak / mib));
                figures.extend(peak);
                Ok(figures)
            };
            let after_mount = || runner.rest(mounter, image, idle, || Ok(()));
            let after_tree = || {
                runner.rest(mounter, image, idle, || {
                    let (_, seen) = reader(4).run(&runner.directory())?;
                    let is_same = read_by_many.get().is_none_or(|other| other == seen);
                    ensure!(is_same, "{} readers read other bytes than 4", self.readers);
                    sleep(quiet);
                    Ok(())
                })
            };
            let busy = format!("{} readers, --memory {mib:.0}M", self.readers);
            let candidates = vec![
                Candidate::ours(busy, under_readers),
                Candidate::ours("right after the mount", after_mount),
                Candidate::ours("after the whole tree", after_tree),
            ];
            context.compare(&image.name, candidates, &mut sheet)?;
        }
        context.report.sheet(sheet);
        Ok(())
    }
}

impl MountRunner {
    /// Memory and CPU time of a daemon on a fresh mount that nobody uses, after the work before.
    fn rest(
        &self,
        mounter: &Mounter,
        image: &ImageInfo,
        idle: Duration,
        before: impl Fn() -> Result<()>,
    ) -> Result<Figures> {
        self.prepare(&image.path)?;
        let mounted = self.mount(mounter, &image.path)?;
        before()?;
        let resident = mounted.daemon_mib("VmRSS").unwrap_or(f64::NAN);
        let (used, begin) = (mounted.daemon_cpu()?, Instant::now());
        sleep(idle);
        let used = mounted.daemon_cpu()?.saturating_sub(used).as_secs_f64();
        let share = used / begin.elapsed().as_secs_f64() * 100.0;
        mounted.end()?;
        Ok(vec![(RESIDENT, resident), (SHARE, share)])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whoever_read_something_else_is_out() {
        let measured =
            |(name, bytes): (&str, f64)| Measured::new(name, vec![(FILES, 1.0), (BYTES, bytes)]);
        let mut all = [("kernel", 7.0), ("erofsfuse", 8.0), ("ferrofs", 7.0)].map(measured).into();
        let said = "it read 8 bytes of 1 files where ours read 7 of 1";
        assert_eq!(agree(&mut all), [("erofsfuse".to_owned(), said.to_owned())]);
        assert_eq!(all.len(), 2);
    }
}

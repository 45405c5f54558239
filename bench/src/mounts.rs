//! Experiments that read through mounts: `mount` (trees, a large file, small files, listings), `random` (blocks of a large
//! file), `slow` (the same on slow storage) and `start` (until a mount can be used) beside the kernel and other daemons, and
//! `mount-memory` (peak memory under many readers, and the cost of an idle mount). Every run has a mount made anew.

use std::cell::Cell;
use std::fs::{self, OpenOptions};
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use clap::Args;
use ferrofs_fuse::attach::Attachment;
use tempfile::TempDir;

use crate::child::name_of;
use crate::experiment::{Candidate, Context, Experiment, OURS, up_to};
use crate::image_info::ImageInfo;
use crate::machine::is_root;
use crate::mounted::{Mounted, Mounter, System};
use crate::programs::{ImageArguments, ProgramArguments, image_by, squashfs_of};
use crate::reader::{Observation, PYTHON, Pattern, RANDOM_BLOCK, Reader};
use crate::report::Report;
use crate::slow_storage::mount_slow;
use crate::statistics::{Figures, MIB, Measured, find};
use crate::trees::read_in;

/// A quick run reads this many files of a tree, and this much of a large file; with large LZMA clusters, a daemon that keeps
/// none needs milliseconds for a random block.
const QUICK_FILES: u64 = 1000;
const QUICK_BYTES: u64 = 32 << 20;
const QUICK_RANDOM_BYTES: u64 = 4 << 20;
const QUICK_SPARSE_BLOCKS: u64 = 512;
/// Bytes of a read on slow storage, how many such reads each thread makes, and fewer in a quick run.
const SLOW_BLOCK: usize = 64 << 10;
const SLOW_BLOCKS: u64 = (12 << 20) / SLOW_BLOCK as u64;
const QUICK_SLOW_BLOCKS: u64 = (1 << 20) / SLOW_BLOCK as u64;
/// Of a smaller file, most would be read.
const SLOW_FILE_BYTES: u64 = 64 << 20;
/// Images that are made where they are needed: name, compression, and the script that makes the tree. A git repository of texts
/// of 5 to 6 KB in 100 directories, and a file of 256 MiB that becomes half as large.
const REPOSITORY: [&str; 3] = ["repository", "-zlz4hc",
    "for d in $(seq 100); do mkdir $d; for f in $(seq 16); do seq $d$f $(($d$f + 999)) > $d/$f; done; done
    git init -q; git add -A; git -c user.name=x -c user.email=x -c commit.gpgsign=false commit -qm x"];
const LARGE_FILE: [&str; 3] = [
    "large-file",
    "-zlz4",
    "seq 1000000000000000 9973 1000010000000000 | head -c 16777216 > part
    for n in $(seq 16); do cat part; done > large; rm part",
];
const DROP_CACHES: &str = "/proc/sys/vm/drop_caches";
/// `--memory` of a mount under many readers, in MiB.
const BUSY_MIB: u32 = 64;
/// A mount counts as idle this long after the last read.
const QUIET: Duration = Duration::from_secs(10);

#[derive(Debug, Clone, Args)]
pub(crate) struct MountArguments {
    /// The kernel drivers and programs that mount the images, separated by commas, as in
    /// kernel,ferrofs
    #[arg(long, value_enum, value_name = "LIST", value_delimiter = ',')]
    #[arg(default_value = "kernel,kernel-file,erofsfuse,squashfuse_ll,kernel-squashfs,ferrofs")]
    systems: Vec<System>,
    /// What to read, separated by commas, as in find,tree. With --seconds, the last item of the
    /// list also gets the time that the other items do not need
    #[arg(long, value_enum, value_name = "LIST", value_delimiter = ',')]
    #[arg(default_value = "large,find,list,sizes,small,imports,status,tree")]
    what: Vec<Pattern>,
    /// Numbers of threads that read a tree; one run for each number
    #[arg(long, value_name = "N", value_delimiter = ',', default_value = "1,4")]
    #[arg(value_parser = up_to(256))]
    readers: Vec<u16>,
    /// A squashfs image of the same tree [default: one that is made from the first IMAGE]
    #[arg(long, value_name = "FILE")]
    squashfs: Option<PathBuf>,
    #[command(flatten)]
    of: ImageArguments,
}

#[derive(Debug, Clone, Args)]
pub(crate) struct RandomArguments {
    #[command(flatten)]
    mounts: StartArguments,
    /// Read the first BYTES of the largest file, block by block in random order; at most 4 MiB with
    /// --quick
    #[arg(long, value_name = "BYTES", default_value_t = 64 << 20)]
    #[arg(value_parser = clap::value_parser!(u64).range(4096..=1 << 40))]
    bytes: u64,
    /// Number of blocks that each thread reads in a second run, which covers the whole file instead
    /// of its first --bytes; at most 512 with --quick. With 0, there is no second run
    #[arg(long, value_name = "BLOCKS", default_value_t = 8192)]
    sparse: u64,
    /// Numbers of threads; one run for each number. Each thread reads its own part of the file
    #[arg(short, long, value_name = "N", value_delimiter = ',', default_value = "1,4")]
    #[arg(value_parser = up_to(256))]
    jobs: Vec<u16>,
}

#[derive(Debug, Clone, Args)]
pub(crate) struct SlowArguments {
    #[command(flatten)]
    mounts: StartArguments,
    /// How long each read of the storage takes, in milliseconds
    #[arg(long, value_name = "MS", default_value_t = 20, value_parser = up_to(10_000))]
    delay: u16,
    /// Number of threads. Each thread reads its own part of the largest file of the image. Images
    /// whose largest file is smaller than 64 MiB are left out; if none remains, one is made
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = up_to(256))]
    readers: u16,
}

#[derive(Debug, Clone, Args)]
pub(crate) struct StartArguments {
    /// The kernel drivers and programs that mount the images, separated by commas, as in
    /// kernel,ferrofs
    #[arg(long, value_enum, value_name = "LIST", value_delimiter = ',')]
    #[arg(default_value = "kernel,kernel-file,erofsfuse,ferrofs")]
    systems: Vec<System>,
    #[command(flatten)]
    of: ImageArguments,
}

#[derive(Debug, Clone, Args)]
pub(crate) struct MountMemoryArguments {
    /// Number of threads that read the whole tree together
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = up_to(256))]
    readers: u16,
    /// Watch the idle mount for this number of seconds; 2 with --quick
    #[arg(long, value_name = "N", default_value_t = 30, value_parser = up_to(3600))]
    idle: u16,
    #[command(flatten)]
    of: ImageArguments,
}

/// The images, and the systems that mount them, with where they do so.
struct MountRunner {
    images: Vec<ImageInfo>,
    squashfs: Option<PathBuf>,
    mounters: Vec<Mounter>,
    folder: TempDir,
    directory: PathBuf,
    /// Whether this user may drop the system's caches.
    drops_caches: bool,
    /// Of each read of the storage that images lie on, if that is slow.
    delay: Option<Duration>,
}

impl MountRunner {
    /// Mounts an image once with every system, so that whoever cannot is known before anything is measured. Ours must.
    fn new(
        context: &mut Context<'_>,
        systems: &[System],
        ImageArguments { images, peers }: &ImageArguments,
        squashfs: Option<&Path>,
    ) -> Result<Self> {
        let (images, folder) = (ImageInfo::read_all(images)?, peers.folder()?);
        let directory = folder.path().join("mount");
        for name in ["mount", "warm", "slow"] {
            fs::create_dir(folder.path().join(name)).context("making a directory to mount on")?;
        }
        let drops_caches = OpenOptions::new().write(true).open(DROP_CACHES).is_ok();
        let mounters = Vec::new();
        let mut runner =
            Self { images, squashfs: None, mounters, folder, directory, drops_caches, delay: None };
        for system in systems {
            let found = system.find(&peers.programs).and_then(|mounter| {
                let (first, folder) = (&runner.images[0], runner.folder.path());
                if system.takes_squashfs() && runner.squashfs.is_none() {
                    let is_quick = context.is_quick;
                    let made = squashfs_of(first, squashfs, &peers.programs, is_quick, folder);
                    runner.squashfs = Some(made?);
                }
                runner.mount(&mounter, runner.image_of(&mounter, first))?.end()?;
                Ok(mounter)
            });
            match found {
                Ok(mounter) => {
                    let words = mounter.words(Path::new("IMAGE"), Path::new("DIR"));
                    context.report.peer_command(name_of(system), words);
                    mounter.program.iter().for_each(|of| context.report.remark(of.to_string()));
                    runner.mounters.push(mounter);
                }
                Err(why) if *system == System::Ferrofs => return Err(why).context(OURS),
                Err(why) => context.report.leave_out(name_of(system), why),
            }
        }
        Ok(runner)
    }

    /// How runs on a fresh mount are prepared and counted, for the report.
    fn describe_runs(&self, report: &mut Report) {
        report.remark(match self.drops_caches {
            true => "before each run all caches of the system are dropped, the image is read into the page cache, and it is mounted anew",
            false => "before each run the image is read into the page cache; other caches are kept, since only root may drop them, and it is mounted anew",
        });
        report.remark("CPU is that of the readers and of the daemon, without the kernel's threads");
    }

    /// The images of which such a reader can read something.
    fn images_for(&self, what: Pattern, programs: &ProgramArguments) -> Result<Vec<ImageInfo>> {
        let mut images = self.images.clone();
        match what {
            Pattern::Large => images.retain(|image| image.largest.is_some()),
            Pattern::Imports => {
                images.retain(|image| image.has_python && is_root());
                ensure!(!images.is_empty(), "needs root, and {PYTHON} in an image");
            }
            Pattern::Status => images = vec![image_by(programs, self.folder.path(), REPOSITORY)?],
            _ => {}
        }
        Ok(images)
    }

    fn image_of<'a>(&'a self, mounter: &Mounter, image: &'a ImageInfo) -> &'a Path {
        let squashfs = self.squashfs.as_ref().filter(|_| mounter.system.takes_squashfs());
        squashfs.unwrap_or(&image.path)
    }

    fn mount(&self, mounter: &Mounter, image: &Path) -> Result<Mounted> {
        mounter.mount(image, &self.directory, &self.folder.path().join("daemon"))
    }

    /// A fresh mount, with the image in the page cache and nothing else; and slow storage with nothing in the page cache,
    /// which must outlive the mount.
    fn mount_cold(
        &self,
        mounter: &Mounter,
        image: &ImageInfo,
    ) -> Result<(Option<Attachment>, Mounted)> {
        if self.drops_caches {
            rustix::fs::sync();
            // Pages, and what is known of files.
            fs::write(DROP_CACHES, "3").context("dropping caches")?;
        }
        let image = self.image_of(mounter, image);
        read_in(image)?;
        let Some(delay) = self.delay else { return Ok((None, self.mount(mounter, image)?)) };
        let slow = self.folder.path().join("slow");
        let storage = mount_slow(image, &slow, delay)?;
        Ok((Some(storage), self.mount(mounter, &slow.join("image"))?))
    }

    /// One run on a fresh mount.
    fn run(
        &self,
        mounter: &Mounter,
        image: &ImageInfo,
        reader: &Reader,
    ) -> Result<(Figures, Observation)> {
        let (_storage, mounted) = self.mount_cold(mounter, image)?;
        // The reader's own program is in memory again before it is measured.
        Reader::new(Pattern::Find).run(&self.folder.path().join("warm"))?;
        let before = mounted.daemon_cpu()?;
        let (cost, observation) = reader.run(&self.directory)?;
        let daemon = mounted.daemon_cpu()?.saturating_sub(before);
        let mut figures = vec![
            ("wall", cost.wall.as_secs_f64()),
            ("CPU", cost.cpu.as_secs_f64()),
            ("daemon CPU", daemon.as_secs_f64()),
            ("files", observation.files as f64),
            ("bytes", observation.bytes as f64),
        ];
        if let Some(daemon) = mounted.daemon()? {
            let peak = daemon.status()?.vmhwm;
            figures.extend(peak.map(|kib| ("peak", kib as f64 / 1024.0)));
        }
        let rate = observation.bytes as f64 / MIB / cost.wall.as_secs_f64();
        figures.extend(self.delay.map(|_| ("MiB/s", rate)));
        let latencies = observation.latencies.into_iter().flatten();
        figures.extend(["mean", "p50", "p99", "p999"].into_iter().zip(latencies));
        mounted.end()?;
        Ok((figures, observation))
    }

    /// Has every system's mount of the image read, in turn. Whoever read something else than ours is out. `names` are those
    /// by which thresholds know the case.
    fn compare(
        &self,
        context: &mut Context<'_>,
        [table, title]: [&str; 2],
        names: &[&str],
        image: &ImageInfo,
        reader: &Reader,
    ) -> Result<()> {
        let case = &format!("{title}, {}", image.name);
        // There is no squashfs image of the repository.
        let has_image = reader.pattern != Pattern::Status;
        let is_asked = |mounter: &&Mounter| has_image || !mounter.system.takes_squashfs();
        let candidates = self.mounters.iter().filter(is_asked).map(|mounter| {
            let name = name_of(&mounter.system);
            Candidate::of(&name, &name, move || Ok(self.run(mounter, image, reader)?.0))
        });
        let mut all = context.measure(case, candidates.collect())?;
        for (name, why) in agree(&mut all) {
            context.report.leave_out(format!("{name} in {case}"), why);
        }
        context.report.add(table, title, case, &all)?;
        context.report.evaluate_all(case, names, &all);
        Ok(())
    }

    /// Memory and CPU time of a daemon on a fresh mount that nobody uses, after the work before.
    fn rest(
        &self,
        mounter: &Mounter,
        image: &ImageInfo,
        idle: Duration,
        before: impl Fn() -> Result<()>,
    ) -> Result<Figures> {
        let (_storage, mounted) = self.mount_cold(mounter, image)?;
        before()?;
        let daemon = mounted.daemon()?.context("no daemon")?;
        let resident = daemon.status()?.vmrss.context("the daemon's memory")? as f64 / 1024.0;
        let (used, begin) = (mounted.daemon_cpu()?, Instant::now());
        sleep(idle);
        let used = mounted.daemon_cpu()?.saturating_sub(used).as_secs_f64();
        let share = used / begin.elapsed().as_secs_f64() * 100.0;
        mounted.end()?;
        Ok(vec![("resident while idle", resident), ("share of a CPU while idle", share)])
    }
}

/// Takes out who did other work than ours; answers their names, and what they did.
fn agree(all: &mut Vec<Measured>) -> Vec<(String, String)> {
    let work = |one: &Measured| ["files", "bytes"].map(|figure| one.median(figure));
    let Some(wanted) = find(all, OURS).map(work) else { return Vec::new() };
    let other = all.extract_if(.., |one| work(one) != wanted);
    let message = |one: Measured| {
        let ([files, bytes], [ours, of_ours]) = (work(&one), wanted);
        let message = format!("it read {bytes} bytes of {files} files, ours {of_ours} of {ours}");
        (one.name, message)
    };
    other.map(message).collect()
}

fn title_of(what: Pattern, readers: u16) -> String {
    match what {
        Pattern::Large => "largest file".to_owned(),
        Pattern::Find => "find".to_owned(),
        Pattern::List => "ls -lR".to_owned(),
        Pattern::Sizes => "du".to_owned(),
        Pattern::Small => "small files".to_owned(),
        Pattern::Imports => "20 imports of python3".to_owned(),
        Pattern::Status => "git status".to_owned(),
        _ => format!("tree, {readers} reader{}", if readers == 1 { "" } else { "s" }),
    }
}

/// The names of a case in the thresholds: what is read, and out of which kind of image.
fn names_of(what: Pattern, image: &ImageInfo) -> Vec<String> {
    let (what, codec) = (name_of(&what), image.codec());
    let kind = format!("{what}-{codec}");
    let is_small = codec == "lz4" && image.cluster_bytes <= 4096;
    let small_clusters = is_small.then(|| format!("{kind}-4k"));
    [what, kind].into_iter().chain(small_clusters).collect()
}

impl Experiment for MountArguments {
    fn run(&self, context: &mut Context<'_>) -> Result<()> {
        let runner = MountRunner::new(context, &self.systems, &self.of, self.squashfs.as_deref())?;
        runner.describe_runs(&mut context.report);
        if context.is_quick {
            context.report.remark(format!(
                "quick: the first {QUICK_FILES} files of a tree, the first {QUICK_BYTES} bytes of a file"
            ));
        }
        let readers = |what| if what == Pattern::Tree { self.readers.as_slice() } else { &[1] };
        let cases =
            self.what.iter().flat_map(|&what| readers(what).iter().map(move |&n| (what, n)));
        let cases: Vec<(Pattern, u16)> = cases.collect();
        context.plan(self.of.peers.rounds, cases.len() * runner.images.len());
        for (what, jobs) in cases {
            let title = title_of(what, jobs);
            let images = match runner.images_for(what, &self.of.peers.programs) {
                Ok(images) => images,
                Err(why) => {
                    context.report.leave_out(title, why);
                    continue;
                }
            };
            for image in &images {
                let file = image.largest.clone().unwrap_or_default();
                let mut reader = Reader { jobs, file, ..Reader::new(what) };
                if context.is_quick {
                    (reader.files, reader.bytes) = (QUICK_FILES, QUICK_BYTES);
                }
                let names = names_of(what, image);
                let names: Vec<&str> = names.iter().map(String::as_str).collect();
                runner.compare(context, ["mount", &title], &names, image, &reader)?;
            }
        }
        Ok(())
    }
}

impl Experiment for RandomArguments {
    fn run(&self, context: &mut Context<'_>) -> Result<()> {
        let StartArguments { systems, of } = &self.mounts;
        let runner = MountRunner::new(context, systems, of, None)?;
        runner.describe_runs(&mut context.report);
        let quick = |most| if context.is_quick { most } else { u64::MAX };
        let bytes = self.bytes.min(quick(QUICK_RANDOM_BYTES));
        let sparse = self.sparse.min(quick(QUICK_SPARSE_BLOCKS));
        let mut kinds = vec![("dense", bytes, u64::MAX)];
        kinds.extend((sparse > 0).then_some(("sparse", u64::MAX, sparse)));
        context.plan(of.peers.rounds, kinds.len() * self.jobs.len() * runner.images.len());
        context.report.remark(format!(
            "reads: pread of {RANDOM_BLOCK} bytes, no block twice, in the same random order, with POSIX_FADV_RANDOM; dense: \
             every block of {bytes} bytes at the front of the largest file; sparse: {sparse} blocks a job of the whole file"
        ));
        for (kind, bytes, blocks) in kinds {
            for &jobs in &self.jobs {
                let title = format!("{kind}, {jobs} {}", if jobs == 1 { "job" } else { "jobs" });
                for image in &runner.images {
                    let what = || format!("{} has no file with contents", image.path.display());
                    let file = image.largest.clone().with_context(what)?;
                    let reader =
                        Reader { jobs, bytes, blocks, file, ..Reader::new(Pattern::Random) };
                    runner.compare(context, ["random", &title], &[kind], image, &reader)?;
                }
            }
        }
        Ok(())
    }
}

impl Experiment for SlowArguments {
    fn run(&self, context: &mut Context<'_>) -> Result<()> {
        let StartArguments { systems, of } = &self.mounts;
        let delay = Some(Duration::from_millis(self.delay.into()));
        let mut runner = MountRunner { delay, ..MountRunner::new(context, systems, of, None)? };
        runner.describe_runs(&mut context.report);
        let title = format!("{} readers, {} ms", self.readers, self.delay);
        let kind = if context.is_quick { "quick" } else { &title };
        let blocks = if context.is_quick { QUICK_SLOW_BLOCKS } else { SLOW_BLOCKS };
        context.report.remark(format!(
            "the image lies on a FUSE file system with a page cache of its own; reads: {blocks} preads of {SLOW_BLOCK} bytes \
             a reader, no block twice, with POSIX_FADV_RANDOM"
        ));
        runner.images.retain(|image| image.largest_bytes >= SLOW_FILE_BYTES);
        if runner.images.is_empty() {
            runner.images.push(image_by(&of.peers.programs, runner.folder.path(), LARGE_FILE)?);
        }
        context.plan(of.peers.rounds, runner.images.len());
        for image in &runner.images {
            let (jobs, file) = (self.readers, image.largest.clone().unwrap_or_default());
            let random = Reader::new(Pattern::Random);
            let reader = Reader { jobs, block: SLOW_BLOCK, blocks, file, ..random };
            runner.compare(context, ["slow", &title], &[kind], image, &reader)?;
        }
        Ok(())
    }
}

impl Experiment for StartArguments {
    fn run(&self, context: &mut Context<'_>) -> Result<()> {
        let runner = MountRunner::new(context, &self.systems, &self.of, None)?;
        context.plan(self.of.peers.rounds, runner.images.len());
        for image in &runner.images {
            let candidates = runner.mounters.iter().map(|mounter| {
                let name = name_of(&mounter.system);
                Candidate::of(&name, &name, || {
                    let path = runner.image_of(mounter, image);
                    read_in(path)?;
                    let elapsed = mounter.time_start(path, &runner.directory)?;
                    Ok(vec![("wall", elapsed.as_secs_f64() * 1e3)])
                })
            });
            context.compare(["start", "", &image.name], &[], candidates.collect())?;
        }
        Ok(())
    }
}

impl Experiment for MountMemoryArguments {
    fn run(&self, context: &mut Context<'_>) -> Result<()> {
        let runner = MountRunner::new(context, &[System::Ferrofs], &self.of, None)?;
        runner.describe_runs(&mut context.report);
        let mounter = runner.mounters.first().context("ferrofs does not mount")?;
        let options = vec!["--memory".to_owned(), format!("{BUSY_MIB}M")];
        let limited = Mounter { options, ..mounter.clone() };
        let quiet = if context.is_quick { Duration::from_secs(1) } else { QUIET };
        let idle = Duration::from_secs(u64::from(if context.is_quick { 2 } else { self.idle }));
        context.plan(self.of.peers.rounds, runner.images.len());
        let reader = |jobs| Reader { jobs, sums: true, ..Reader::new(Pattern::Tree) };
        for image in &runner.images {
            let read_by_many = Cell::new(None);
            let under_readers = || {
                let (mut figures, observation) =
                    runner.run(&limited, image, &reader(self.readers))?;
                read_by_many.set(Some(observation));
                let peak = figures.iter().find(|(figure, _)| *figure == "peak");
                let peak = peak.map(|(_, peak)| ("of limit", peak / f64::from(BUSY_MIB)));
                figures.extend(peak);
                Ok(figures)
            };
            let after_mount = || runner.rest(mounter, image, idle, || Ok(()));
            let after_tree = || {
                runner.rest(mounter, image, idle, || {
                    let (_, observation) = reader(4).run(&runner.directory)?;
                    let is_same = read_by_many.get().is_none_or(|other| other == observation);
                    ensure!(is_same, "{} readers read other bytes than 4", self.readers);
                    sleep(quiet);
                    Ok(())
                })
            };
            let busy = format!("{} readers, --memory {BUSY_MIB}M", self.readers);
            let candidates = vec![
                Candidate::ours(busy, under_readers),
                Candidate::ours("right after the mount", after_mount),
                Candidate::ours("after the whole tree", after_tree),
            ];
            let title = idle.as_secs().to_string();
            context.compare(["mount-memory", &title, &image.name], &[], candidates)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use clap::{Command, ValueEnum};

    use super::*;

    #[test]
    fn without_a_list_all_systems_and_patterns_are_measured() {
        let command = MountArguments::augment_args(Command::new("mount"));
        let found = command.get_matches_from(["mount", "image.erofs"]);
        let systems: Vec<System> = found.get_many("systems").unwrap().copied().collect();
        assert_eq!(systems, System::value_variants());
        let patterns: Vec<Pattern> = found.get_many("what").unwrap().copied().collect();
        assert_eq!(patterns, Pattern::value_variants());
    }

    #[test]
    fn whoever_read_something_else_is_out() {
        let measured = |(name, bytes): (&str, f64)| {
            Measured::new(name, vec![("files", 1.0), ("bytes", bytes)])
        };
        let mut all = [("kernel", 7.0), ("erofsfuse", 8.0), ("ferrofs", 7.0)].map(measured).into();
        let message = "it read 8 bytes of 1 files, ours 7 of 1";
        assert_eq!(agree(&mut all), [("erofsfuse".to_owned(), message.to_owned())]);
        assert_eq!(all.len(), 2);
    }
}

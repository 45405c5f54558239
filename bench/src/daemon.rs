//! A mount that this process serves, as `ferrofs mount` makes it, and the child process that starts programs from it. The
//! launches, page-pool and jobs experiments use them.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write, stderr, stdin, stdout};
use std::path::{Path, PathBuf};
use std::process::{ChildStdout, Command};
use std::time::{Duration, Instant};

use anyhow::{Context, Error, Result, ensure};
use ferrofs_fuse::SessionEvent;
use ferrofs_fuse::attach::{AttachOptions, Attachment, attach};
use ferrofs_image::{DecodeWorkers, MemoryPool, OpenOptions, SyncDecompress};
use ferrofs_mount::{MountLogEvent, MountSettings, NegotiatedMount, ServedMount};
use ferrofs_workers::cpus::AvailableCpus;
use ferrofs_workers::percpu;
use ferrofs_workers::priority::PriorityRequest;
use ferrofs_workers::unbound::WorkerStats;
use rustix::fs::{AtFlags, CWD, StatxFlags, statx};
use rustix::process::{chdir, chroot};
use tempfile::TempDir;

use crate::case::Case;
use crate::child::{OwnedChild, Role};

/// The threads on which a mount decodes and answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ThreadPolicy {
    /// Workers that are bound to no CPU, and listeners, all at normal priority.
    Unbound,
    /// A worker bound to each CPU, at normal priority.
    PerCpu,
    /// The same, workers and listeners raised: the default of a mount.
    Raised,
}

#[derive(Debug)]
pub(crate) struct Daemon {
    attachment: Attachment,
    served: ServedMount,
    workers: DecodeWorkers,
}

impl Daemon {
    /// The thread that waits for readers must not enter the mount itself.
    pub(crate) fn start(
        image: &Path,
        directory: &Path,
        threads: ThreadPolicy,
        mode: SyncDecompress,
        memory: &MemoryPool,
    ) -> Result<Self> {
        let is_raised = threads == ThreadPolicy::Raised;
        let priority = if is_raised { PriorityRequest::Raised } else { PriorityRequest::Normal };
        let settings = percpu::PerCpuSettings::new("erofs_worker").priority(priority);
        let workers = DecodeWorkers::new(settings);
        if threads == ThreadPolicy::Unbound {
            // Without a worker of its CPU an item goes to the unbound pool.
            AvailableCpus::read().cpus().iter().for_each(|cpu| workers.pool().take_offline(cpu));
        }
        let opened = OpenOptions::new().workers(&workers).memory(memory).sync_decompress(mode);
        // As `ferrofs mount` opens it: the kernel keeps what it reads.
        let opened = opened.caller_caches(true).open(image);
        let opened = opened.with_context(|| format!("{}", image.display()))?;
        let mut options = AttachOptions::new("launches", "ferrofs");
        // Git needs a /dev/null that works.
        options.dev = true;
        let attachment = attach(directory, &options)?;
        let device = attachment.device().try_clone().context("/dev/fuse")?;
        let settings = MountSettings::default().listeners(listeners()).priority(priority);
        let settings = settings.reserve_share(memory.reserve_share());
        let ready = NegotiatedMount::new(device, &settings)?;
        // The kernel's readahead of the mount, as the command sets it. A request to the mount would wait for this very thread.
        let flags = AtFlags::STATX_DONT_SYNC | AtFlags::NO_AUTOMOUNT;
        let found = statx(CWD, directory, flags, StatxFlags::empty());
        let found = found.context("statx of the mount")?;
        let (major, minor) = (found.stx_dev_major, found.stx_dev_minor);
        let path = format!("/sys/class/bdi/{major}:{minor}/read_ahead_kb");
        let kib = ready.init_parameters().requested_readahead / 1024;
        fs::write(&path, kib.to_string()).context(path)?;
        let served = ready.serve(opened, log)?;
        Ok(Self { attachment, served, workers })
    }

    /// From submission to start of all decode work so far, in us.
    pub(crate) fn queued_micros(&self) -> f64 {
        self.threads().map(|thread| thread.waits.sum().as_secs_f64() * 1e6).sum()
    }

    /// Items that its workers ran, and how many of them on no CPU of their own.
    pub(crate) fn items(&self) -> [u64; 2] {
        let snapshot = self.workers.stats();
        [snapshot.items(), snapshot.unbound.items()]
    }

    pub(crate) fn priority_levels(&self) -> Vec<String> {
        self.threads().filter_map(|thread| Some(thread.priority_level?.to_string())).collect()
    }

    fn threads(&self) -> impl Iterator<Item = WorkerStats> {
        let snapshot = self.workers.stats();
        snapshot.workers.into_iter().chain(snapshot.unbound.threads)
    }

    /// Unmounts, and waits until the last thread has ended.
    pub(crate) fn end(mut self) -> Result<()> {
        self.attachment.detach()?;
        self.served.join();
        Ok(())
    }
}

pub(crate) fn mount_folder() -> Result<TempDir> {
    Ok(tempfile::Builder::new().prefix("ferrofs-launches-").tempdir()?)
}

/// Threads that listen to the kernel, as `ferrofs mount` has them.
pub(crate) fn listeners() -> usize {
    AvailableCpus::read().parallelism().max(2)
}

fn log(event: &MountLogEvent<'_>) {
    // This process unmounts, and need not be told.
    if !matches!(event, MountLogEvent::Session(SessionEvent::Unmounted)) {
        writeln!(stderr(), "ferrofs-bench: mount: {event}").unwrap_or_default();
    }
}

/// A child at normal priority with the mount as its root, which starts the next program for each line that it reads.
#[derive(Debug)]
pub(crate) struct Launcher {
    child: OwnedChild,
    answers: BufReader<ChildStdout>,
}

impl Launcher {
    /// Other threads must answer what it reads there.
    pub(crate) fn start(root: &Path) -> Result<Self> {
        let mut child = OwnedChild::start(Role::Launcher, &root)?;
        let answers = BufReader::new(child.0.stdout.take().context("no pipe from the launcher")?);
        Ok(Self { child, answers })
    }

    /// Starts all programs but the last, after `before` each; their times from fork to exit together.
    pub(crate) fn launch_most(
        &mut self,
        mut before: impl FnMut() -> Result<()>,
    ) -> Result<Duration> {
        let mut all = Duration::ZERO;
        for _ in 1..programs()?.len() {
            before()?;
            all += self.launch()?;
        }
        Ok(all)
    }

    /// Starts the next program; the time from fork to exit.
    pub(crate) fn launch(&mut self) -> Result<Duration> {
        let requests = self.child.0.stdin.as_mut().context("no pipe to the launcher")?;
        requests.write_all(b"\n").context("writing to the launcher")?;
        let mut line = String::new();
        self.answers.read_line(&mut line).context("reading from the launcher")?;
        let answer: Result<Duration, String> =
            serde_json::from_str(&line).context("the launcher ended")?;
        answer.map_err(Error::msg)
    }
}

impl Drop for Launcher {
    fn drop(&mut self) {
        // It ends with its input, which this closes; a program that hangs keeps it, and ends with it.
        drop(self.child.0.wait());
    }
}

/// The programs that are launched, with their arguments. Each ends as soon as it has started; the last one is measured.
pub(crate) fn programs() -> Result<Vec<Vec<String>>> {
    Ok(Case::of("launches")?.programs)
}

/// The role of the launcher. A failed program is an answer, not an error.
pub(crate) fn launch_all(root: &PathBuf) -> Result<()> {
    // The image need not have one.
    let null = File::options().read(true).write(true).open("/dev/null").context("/dev/null")?;
    chroot(root).context("chroot to the mount")?;
    chdir("/").context("chdir")?;
    for (words, line) in programs()?.iter().zip(stdin().lines()) {
        line?;
        let time = launch(words, &null);
        let answer = time.map_err(|error| format!("{}: {error:#}", words[0]));
        writeln!(stdout(), "{}", serde_json::to_string(&answer)?)?;
    }
    Ok(())
}

fn launch(words: &[String], null: &File) -> Result<Duration> {
    let mut command = Command::new(&words[0]);
    command.args(&words[1..]).env_clear();
    command.envs([("PATH", "/usr/bin:/bin"), ("LC_ALL", "C"), ("HOME", "/")]);
    command.stdin(null.try_clone()?).stdout(null.try_clone()?).stderr(null.try_clone()?);
    let begin = Instant::now();
    let status = command.spawn().context("starting it")?.wait().context("waiting for it")?;
    let time = begin.elapsed();
    ensure!(status.success(), "{status}");
    Ok(time)
}

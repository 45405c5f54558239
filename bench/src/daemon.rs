//! A mount that this process serves, as `ferrofs mount` makes it, and the child process that starts programs from it. The
//! launches, page-pool and jobs experiments use them.

use std::fs::File;
use std::io::{BufRead, BufReader, Write, stderr, stdin, stdout};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail, ensure};
use ferrofs_fuse::SessionEvent;
use ferrofs_fuse::attach::{AttachOptions, Attachment, attach};
use ferrofs_image::{DecodeWorkers, MemoryPool, OpenOptions, SyncDecompress};
use ferrofs_mount::{MountLogEvent, MountSettings, NegotiatedMount, ServedMount};
use ferrofs_workers::cpus::AvailableCpus;
use ferrofs_workers::percpu;
use ferrofs_workers::priority::PriorityRequest;
use rustix::fs::{AtFlags, CWD, StatxFlags, statx};
use rustix::process::{chdir, chroot};

use crate::child::{self, Role};

/// The programs that are launched, with their arguments: those of a Debian system with python3. Each ends as soon as it has
/// started; the last one is measured.
pub(crate) const PROGRAMS: [(&str, &[&str]); 16] = [
    ("/usr/bin/bash", &["--version"]),
    ("/usr/bin/ls", &["--version"]),
    ("/usr/bin/sed", &["--version"]),
    ("/usr/bin/awk", &["BEGIN { exit 0 }"]),
    ("/usr/bin/grep", &["--version"]),
    ("/usr/bin/find", &["--version"]),
    ("/usr/bin/tar", &["--version"]),
    ("/usr/bin/sort", &["--version"]),
    ("/usr/bin/diff", &["--version"]),
    ("/usr/bin/dpkg", &["--version"]),
    ("/usr/bin/apt-get", &["--version"]),
    ("/usr/bin/git", &["--version"]),
    ("/usr/bin/gcc", &["--version"]),
    ("/usr/bin/ld", &["--version"]),
    ("/usr/bin/perl", &["-MPOSIX", "-e", "1"]),
    ("/usr/bin/python3", &["-c", "import json, decimal"]),
];

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

impl ThreadPolicy {
    pub(crate) const ALL: [Self; 3] = [Self::Unbound, Self::PerCpu, Self::Raised];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Unbound => "unbound",
            Self::PerCpu => "per-CPU",
            Self::Raised => "per-CPU raised",
        }
    }

    fn priority(self) -> PriorityRequest {
        if self == Self::Raised { PriorityRequest::Raised } else { PriorityRequest::Normal }
    }
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct DaemonOptions {
    pub(crate) threads: ThreadPolicy,
    pub(crate) mode: SyncDecompress,
    /// The kernel's readahead, if not the default of a mount.
    pub(crate) readahead_kib: Option<u32>,
}

impl Default for DaemonOptions {
    fn default() -> Self {
        Self { threads: ThreadPolicy::Raised, mode: SyncDecompress::Auto, readahead_kib: None }
    }
}

/// A mount that this process serves.
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
        options: DaemonOptions,
        memory: &MemoryPool,
    ) -> Result<Self> {
        let DaemonOptions { threads, mode, readahead_kib } = options;
        let settings = percpu::PerCpuSettings::new("erofs_worker").priority(threads.priority());
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
        let attachment = attach(directory, &options).map_err(|error| anyhow!("{error}"))?;
        let device = attachment.device().try_clone().context("/dev/fuse")?;
        let settings = MountSettings::default()
            .listeners(listeners())
            .priority(threads.priority())
            .reserve_share(memory.reserve_share());
        let ready = NegotiatedMount::new(device, &settings).map_err(|error| anyhow!("{error}"))?;
        set_readahead(
            directory,
            readahead_kib.unwrap_or(ready.init_parameters().requested_readahead / 1024),
        )?;
        let served = ready.serve(opened, log).map_err(|error| anyhow!("{error}"))?;
        Ok(Self { attachment, served, workers })
    }

    /// From submission to start of all decode work so far, in us.
    pub(crate) fn queued_micros(&self) -> f64 {
        let snapshot = self.workers.stats();
        let all = snapshot.workers.iter().chain(&snapshot.unbound.threads);
        all.map(|worker| worker.waits.sum().as_secs_f64() * 1e6).sum()
    }

    /// Items that its workers ran, and how many of them on no CPU of their own.
    pub(crate) fn items(&self) -> [u64; 2] {
        let snapshot = self.workers.stats();
        [snapshot.items(), snapshot.unbound.items()]
    }

    /// The priority levels that its workers reached.
    pub(crate) fn priority_levels(&self) -> Vec<String> {
        let snapshot = self.workers.stats();
        let all = snapshot.workers.iter().chain(&snapshot.unbound.threads);
        all.filter_map(|worker| Some(worker.priority_level?.to_string())).collect()
    }

    /// Unmounts, and waits until the last thread has ended.
    pub(crate) fn end(mut self) -> Result<()> {
        self.attachment.detach().map_err(|error| anyhow!("{error}"))?;
        self.served.join();
        Ok(())
    }
}

/// Threads that listen to the kernel, as `ferrofs mount` has them.
pub(crate) fn listeners() -> usize {
    AvailableCpus::read().parallelism().max(2)
}

fn log(notice: &MountLogEvent<'_>) {
    // This process unmounts, and need not be told.
    if !matches!(notice, MountLogEvent::Session(SessionEvent::Unmounted)) {
        writeln!(stderr(), "ferrofs-bench: mount: {notice}").unwrap_or_default();
    }
}

/// Sets the kernel's readahead of the mount, as the command does.
fn set_readahead(directory: &Path, kib: u32) -> Result<()> {
    // A request to the mount would wait for this very thread.
    let flags = AtFlags::STATX_DONT_SYNC | AtFlags::NO_AUTOMOUNT;
    let found = statx(CWD, directory, flags, StatxFlags::empty()).context("statx of the mount")?;
    let (major, minor) = (found.stx_dev_major, found.stx_dev_minor);
    let path = format!("/sys/class/bdi/{major}:{minor}/read_ahead_kb");
    std::fs::write(&path, kib.to_string()).context(path)
}

/// A child at normal priority with the mount as its root, which starts the next program for each line that it reads.
#[derive(Debug)]
pub(crate) struct Launcher {
    child: Child,
    requests: Option<ChildStdin>,
    answers: BufReader<ChildStdout>,
}

impl Launcher {
    /// Other threads must answer what it reads there.
    pub(crate) fn start(root: &Path) -> Result<Self> {
        let mut command = child::command(Role::Launcher, &root)?;
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().context("starting the launcher")?;
        let requests = child.stdin.take();
        let answers = BufReader::new(child.stdout.take().context("no pipe from the launcher")?);
        Ok(Self { child, requests, answers })
    }

    /// Starts the next program; the time from fork to exit.
    pub(crate) fn launch(&mut self) -> Result<Duration> {
        let requests = self.requests.as_mut().context("no pipe to the launcher")?;
        requests.write_all(b"\n").context("writing to the launcher")?;
        let mut line = String::new();
        self.answers.read_line(&mut line).context("reading from the launcher")?;
        match (line.trim_end(), line.trim_end().parse()) {
            (_, Ok(nanoseconds)) => Ok(Duration::from_nanos(nanoseconds)),
            ("", _) => bail!("the launcher ended"),
            (line, _) => bail!("{line}"),
        }
    }
}

impl Drop for Launcher {
    fn drop(&mut self) {
        // It ends with its input; a program that hangs keeps it, and ends with it.
        drop(self.requests.take());
        drop(self.child.wait());
    }
}

/// The role of the launcher. A failed program is an answer, not an error.
pub(crate) fn launch_all(root: &PathBuf) -> Result<()> {
    // The image need not have one.
    let null = File::options().read(true).write(true).open("/dev/null").context("/dev/null")?;
    chroot(root).context("chroot to the mount")?;
    chdir("/").context("chdir")?;
    for ((program, arguments), line) in PROGRAMS.iter().zip(stdin().lines()) {
        line?;
        match launch(program, arguments, &null) {
            Ok(time) => writeln!(stdout(), "{}", time.as_nanos())?,
            Err(error) => writeln!(stdout(), "{program}: {error:#}")?,
        }
    }
    Ok(())
}

fn launch(program: &str, arguments: &[&str], null: &File) -> Result<Duration> {
    let mut command = Command::new(program);
    command.args(arguments).env_clear();
    command.envs([("PATH", "/usr/bin:/bin"), ("LC_ALL", "C"), ("HOME", "/")]);
    command.stdin(null.try_clone()?).stdout(null.try_clone()?).stderr(null.try_clone()?);
    let begin = Instant::now();
    let status = command.spawn().context("starting it")?.wait().context("waiting for it")?;
    let time = begin.elapsed();
    ensure!(status.success(), "{status}");
    Ok(time)
}

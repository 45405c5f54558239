//! The mount of this process: as `ferrofs mount` makes it, with the kind of threads that a column of the table has.

use std::path::Path;

use anyhow::{Context, Result, anyhow};
use ferrofs_fuse::SessionEvent;
use ferrofs_fuse::attach::{AttachOptions, Attachment, attach};
use ferrofs_image::{DecodeWorkers, MemoryPool, OpenOptions, SyncDecompress};
use ferrofs_mount::{MountLogEvent, MountSettings, NegotiatedMount, ServedMount};
use ferrofs_workers::cpus::AvailableCpus;
use ferrofs_workers::percpu;
use ferrofs_workers::priority::PriorityRequest;
use rustix::fs::{AtFlags, CWD, StatxFlags, statx};

/// On what threads a mount decodes and answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Threads {
    /// Workers that no CPU is bound to, and listeners, all as every thread begins.
    Unbound,
    /// A worker bound to each CPU, at normal priority.
    PerCpu,
    /// The same, workers and listeners raised: what a mount has by default.
    Raised,
}

impl Threads {
    pub(crate) const ALL: [Self; 3] = [Self::Unbound, Self::PerCpu, Self::Raised];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Unbound => "unbound",
            Self::PerCpu => "per-CPU",
            Self::Raised => "per-CPU raised",
        }
    }

    fn wanted(self) -> PriorityRequest {
        if self == Self::Raised { PriorityRequest::Raised } else { PriorityRequest::Normal }
    }
}

/// What one mount is to be.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Wish {
    pub(crate) threads: Threads,
    pub(crate) mode: SyncDecompress,
    /// What the kernel may read ahead, if not what a mount has it set to.
    pub(crate) readahead_kib: Option<u32>,
}

/// A mount that this process serves.
#[derive(Debug)]
pub(crate) struct Daemon {
    attachment: Attachment,
    served: ServedMount,
    workers: DecodeWorkers,
}

impl Daemon {
    /// Mounts the image on the directory. It must not be entered by the thread that waits for others to read.
    pub(crate) fn start(
        image: &Path,
        directory: &Path,
        wish: Wish,
        memory: &MemoryPool,
    ) -> Result<Self> {
        let Wish { threads, mode, readahead_kib } = wish;
        let granted = AvailableCpus::read();
        let settings = percpu::PerCpuSettings::new("erofs_worker").priority(threads.wanted());
        let workers = DecodeWorkers::new(settings);
        if threads == Threads::Unbound {
            // Without a worker of its CPU an item goes to the pool that is bound to none.
            granted.cpus().iter().for_each(|cpu| workers.pool().take_offline(cpu));
        }
        let opened = OpenOptions::new().workers(&workers).memory(memory).sync_decompress(mode);
        // As `ferrofs mount` opens it: the kernel keeps what it reads.
        let opened = opened.caller_caches(true);
        let opened = opened.open(image).with_context(|| format!("{}", image.display()))?;
        let mut options = AttachOptions::new("launches", "ferrofs");
        // Git wants a /dev/null that works.
        options.dev = true;
        let attachment = attach(directory, &options).map_err(|error| anyhow!("{error}"))?;
        let device = attachment.device().try_clone().context("/dev/fuse")?;
        let settings = MountSettings::default()
            .listeners(listeners())
            .priority(threads.wanted())
            .reserve_share(memory.reserve_share());
        let ready = NegotiatedMount::new(device, &settings).map_err(|error| anyhow!("{error}"))?;
        set_readahead(
            directory,
            readahead_kib.unwrap_or(ready.init_parameters().requested_readahead / 1024),
        )?;
        let served = ready.serve(opened, complain).map_err(|error| anyhow!("{error}"))?;
        Ok(Self { attachment, served, workers })
    }

    /// From submission to start of all decode work so far, added up, in us.
    pub(crate) fn queued_micros(&self) -> f64 {
        let snapshot = self.workers.stats();
        let all = snapshot.workers.iter().chain(&snapshot.unbound.threads);
        all.map(|worker| worker.waits.sum().as_secs_f64() * 1e6).sum()
    }

    /// How many items its workers ran, and how many of them on no CPU of their own.
    pub(crate) fn items(&self) -> (u64, u64) {
        let snapshot = self.workers.stats();
        (snapshot.items(), snapshot.unbound.items())
    }

    /// The rungs of priority that its workers reached.
    pub(crate) fn rungs(&self) -> Vec<String> {
        let snapshot = self.workers.stats();
        let all = snapshot.workers.iter().chain(&snapshot.unbound.threads);
        let mut rungs: Vec<_> =
            all.filter_map(|worker| Some(worker.priority_level?.to_string())).collect();
        rungs.sort();
        rungs.dedup();
        rungs
    }

    /// Unmounts, and waits until the last thread is gone.
    pub(crate) fn end(mut self) -> Result<()> {
        self.attachment.detach().map_err(|error| anyhow!("{error}"))?;
        self.served.join();
        Ok(())
    }
}

/// Threads of a daemon that listen to the kernel: as `ferrofs mount` has them.
pub(crate) fn listeners() -> usize {
    AvailableCpus::read().parallelism().max(2)
}

fn complain(notice: &MountLogEvent<'_>) {
    use std::io::Write;
    // This process unmounts, and need not be told.
    if matches!(notice, MountLogEvent::Session(SessionEvent::Unmounted)) {
        return;
    }
    // If even stderr is closed there is nobody left to tell.
    writeln!(std::io::stderr(), "ferrofs-bench: the mount says: {notice}").unwrap_or_default();
}

/// Has the kernel read ahead so far in the mount, as the command does.
fn set_readahead(directory: &Path, kib: u32) -> Result<()> {
    // What the kernel has in mind is enough: asking the mount would wait for this very thread.
    let flags = AtFlags::STATX_DONT_SYNC | AtFlags::NO_AUTOMOUNT;
    let found =
        statx(CWD, directory, flags, StatxFlags::empty()).context("asking for the mount")?;
    let (major, minor) = (found.stx_dev_major, found.stx_dev_minor);
    let place = format!("/sys/class/bdi/{major}:{minor}/read_ahead_kb");
    std::fs::write(&place, kib.to_string()).with_context(|| place.clone())
}

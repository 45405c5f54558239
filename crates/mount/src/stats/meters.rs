//! What a mount counts while it serves. Each group of listeners has numbers of its own (see
//! [`Spread`](ferrofs_image::workers::counters::Spread)), so that counting makes nobody wait. Written by `image_fs`,
//! read by `gather`.
//!
//! It takes 2.6 KiB for each kind of operation that was ever asked for and a group, of which there is one a listener
//! and 16 at most: 550 KiB in all on a large machine, 70 KiB on two CPUs.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use ferrofs_fuse::{Errno, Outcome};
use ferrofs_image::workers::counters::{Histogram, Spread, Times};
use ferrofs_image::workers::cpus::Throttling;

use super::kind::Kind;
use super::notices::Notices;
use super::record;
use super::top_files::{Counted, TopFiles};
use crate::notice::Notice;

/// The meters of a mount.
#[derive(Debug)]
pub(crate) struct Meters {
    began: Instant,
    /// What the system had counted by then.
    throttled_before: Throttling,
    shards: Spread<Shard>,
    notices: Notices,
}

/// What a group of listeners counts. All of it is relaxed: the numbers order nothing.
#[derive(Debug, Default)]
struct Shard {
    operations: [OperationMeter; Kind::ALL.len()],
    stores: AtomicU64,
    stored_bytes: AtomicU64,
    top_files: Mutex<TopFiles>,
}

#[derive(Debug, Default)]
struct OperationMeter {
    times: OnceLock<Histogram>,
    errors: AtomicU64,
    bytes: AtomicU64,
}

/// What the meters of one kind of operation say.
#[derive(Debug, Default)]
pub(super) struct OperationTimes {
    pub(super) times: Times,
    pub(super) errors: u64,
    pub(super) bytes: u64,
}

impl Meters {
    /// For so many listeners.
    pub(crate) fn new(listeners: usize) -> Self {
        let shards = Spread::new(listeners, Shard::default);
        let throttled_before = Throttling::read();
        Self { began: Instant::now(), throttled_before, shards, notices: Notices::default() }
    }

    /// A request has been answered. One that nobody has answered by now panicked, and is counted as that.
    pub(crate) fn end(&self, kind: Kind, node: u64, outcome: &Outcome) {
        let Some(given) = outcome.given() else { return };
        let shard = self.shards.own();
        let Some(meter) = shard.operations.get(kind.place()) else { return };
        meter.times.get_or_init(Histogram::new).record(given.took);
        if given.errno.is_some_and(is_failure) {
            meter.errors.fetch_add(1, Ordering::Relaxed);
        }
        let bytes = u64::try_from(given.bytes).unwrap_or(0);
        meter.bytes.fetch_add(bytes, Ordering::Relaxed);
        // Whoever asks for the numbers at this moment is not waited for.
        if kind == Kind::Read
            && let Ok(mut files) = shard.top_files.try_lock()
        {
            files.read(node, bytes);
        }
    }

    /// So many bytes were put into the kernel's page cache unasked.
    pub(crate) fn stored(&self, bytes: usize) {
        let shard = self.shards.own();
        shard.stores.fetch_add(1, Ordering::Relaxed);
        shard.stored_bytes.fetch_add(u64::try_from(bytes).unwrap_or(0), Ordering::Relaxed);
    }

    /// Something was told to the log.
    pub(crate) fn noticed(&self, notice: &Notice<'_>) {
        self.notices.add(notice);
    }

    pub(super) fn uptime(&self) -> Duration {
        self.began.elapsed()
    }

    pub(super) fn throttling(&self) -> Throttling {
        Throttling::read().since(&self.throttled_before)
    }

    pub(super) fn notices(&self) -> record::Notices {
        self.notices.read()
    }

    pub(super) fn operation(&self, kind: Kind) -> OperationTimes {
        let mut all = OperationTimes::default();
        for meter in self.shards.each().filter_map(|shard| shard.operations.get(kind.place())) {
            if let Some(times) = meter.times.get() {
                all.times.merge(&times.snapshot());
            }
            all.errors = all.errors.wrapping_add(meter.errors.load(Ordering::Relaxed));
            all.bytes = all.bytes.wrapping_add(meter.bytes.load(Ordering::Relaxed));
        }
        all
    }

    /// How often bytes were put into the page cache, and how many.
    pub(super) fn stores(&self) -> (u64, u64) {
        self.shards.each().fold((0, 0), |(stores, bytes): (u64, u64), shard| {
            let more = (&shard.stores, &shard.stored_bytes);
            (
                stores.wrapping_add(more.0.load(Ordering::Relaxed)),
                bytes.wrapping_add(more.1.load(Ordering::Relaxed)),
            )
        })
    }

    /// The most read files, by node.
    pub(super) fn top_files(&self) -> Vec<Counted> {
        let copy =
            |shard: &Shard| shard.top_files.lock().unwrap_or_else(PoisonError::into_inner).clone();
        TopFiles::merged(&self.shards.each().map(copy).collect::<Vec<_>>())
    }
}

/// Whether an error says that something is broken. The others are answers: what was asked for is not there, or is not
/// done here.
fn is_failure(errno: Errno) -> bool {
    !matches!(
        errno,
        Errno::NOSYS
            | Errno::NODATA
            | Errno::RANGE
            | Errno::OPNOTSUPP
            | Errno::NXIO
            | Errno::NOTTY
            | Errno::INVAL
            | Errno::NOTDIR
    )
}

#[cfg(test)]
mod tests;

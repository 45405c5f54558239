//! The record: structures of plain numbers, in the byte order of the machine on which daemon and client run.
//!
//! A response is a [`StatsHeader`] and, on page 0, a [`StatsSummary`]; on the pages from 1 on, [`WorkerRecord`]s. Within a
//! version a structure may only grow at its end: a client takes missing bytes for zeros and ignores further ones. Any other
//! change needs a new version.

use ferrofs_fuse::Operation;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// The version of the structures.
pub(crate) const VERSION: u32 = 2;
/// The first bytes of a request.
pub(crate) const REQUEST_MAGIC: [u8; 8] = *b"ferrofs?";
/// The first bytes of a response. They differ, so that a request that comes back is not a response.
pub(crate) const RESPONSE_MAGIC: [u8; 8] = *b"ferrofs!";
/// The size of the buffer of request and response, in bytes.
pub(crate) const IOCTL_BYTES: usize = 4096;
/// Records of operations: more than there are kinds, so that kinds can be added.
const OPERATIONS: usize = 16;
/// Records of files.
pub(crate) const TOP_FILES: usize = 16;
/// The longest text of an event, in bytes.
pub(crate) const EVENT_TEXT_BYTES: usize = 200;
/// The value of a number that is unknown.
pub(crate) const UNKNOWN: u64 = u64::MAX;

/// The value of a number; `None` if it is unknown.
#[must_use]
pub const fn known(number: u64) -> Option<u64> {
    if number == UNKNOWN { None } else { Some(number) }
}

/// A request for a page.
#[repr(C)]
#[derive(Clone, Copy, Debug, FromBytes, Immutable, IntoBytes, KnownLayout)]
pub(crate) struct StatsRequest {
    /// [`REQUEST_MAGIC`].
    pub(crate) magic: [u8; 8],
    pub(crate) version: u32,
    pub(crate) page: u32,
}

/// The start of each page.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, FromBytes, Immutable, IntoBytes, KnownLayout, PartialEq)]
pub(crate) struct StatsHeader {
    /// [`RESPONSE_MAGIC`].
    pub(crate) magic: [u8; 8],
    pub(crate) version: u32,
    /// Bytes of the page, this header included.
    pub(crate) bytes: u32,
    /// The number of workers on all pages.
    pub(crate) workers: u32,
    /// Bytes of a worker's record.
    pub(crate) worker_bytes: u32,
    /// The version of the program, followed by NUL bytes.
    pub(crate) release: [u8; 16],
}

/// Latencies in nanoseconds: their number, sum and quantiles.
#[repr(C)]
#[derive(
    Clone, Copy, Debug, Default, FromBytes, Immutable, IntoBytes, KnownLayout, PartialEq, Eq,
)]
pub struct LatencyQuantiles {
    /// Their number.
    pub count: u64,
    /// Their sum.
    pub sum_ns: u64,
    /// The median; up to 12.5 % too large, as are the next two.
    pub p50_ns: u64,
    /// The 99th percentile.
    pub p99_ns: u64,
    /// The 99.9th percentile.
    pub p999_ns: u64,
    /// The maximum, exact.
    pub max_ns: u64,
}

/// One kind of operation. Its time is from reading the request to sending the reply.
#[repr(C)]
#[derive(
    Clone, Copy, Debug, Default, FromBytes, Immutable, IntoBytes, KnownLayout, PartialEq, Eq,
)]
pub struct OperationRecord {
    /// Replies that something is broken; not those that a name, an attribute or data does not exist.
    pub errors: u64,
    /// Bytes of the replies.
    pub bytes: u64,
    /// Their number and latencies.
    pub time: LatencyQuantiles,
}

/// Decoding of clusters.
#[repr(C)]
#[derive(
    Clone, Copy, Debug, Default, FromBytes, Immutable, IntoBytes, KnownLayout, PartialEq, Eq,
)]
pub struct DecodeRecord {
    /// Clusters that were decoded.
    pub decoded: u64,
    /// Those that were decoded through a window, because there was no memory for the whole cluster.
    pub windowed: u64,
    /// Those that were decoded by workers.
    pub on_workers: u64,
    /// Parts of clusters that readers got.
    pub served: u64,
    /// Bytes that were decoded.
    pub bytes_decoded: u64,
    /// Bytes that readers got, without holes.
    pub bytes_served: u64,
    /// The time to decode a cluster.
    pub time: LatencyQuantiles,
}

/// The cache of decoded clusters.
#[repr(C)]
#[derive(
    Clone, Copy, Debug, Default, FromBytes, Immutable, IntoBytes, KnownLayout, PartialEq, Eq,
)]
pub struct CacheRecord {
    /// Lookups that found the cluster.
    pub hits: u64,
    /// Lookups that waited for another thread that was decoding it.
    pub waits: u64,
    /// Clusters that were decoded: misses and prefetches.
    pub computed: u64,
    /// Lookups that ended without the cluster: prefetches that were dropped, clusters taken back from a queue, failures.
    pub abandoned: u64,
    /// Clusters that were queued for a worker when a reader decoded them itself.
    pub taken_over: u64,
    /// Bytes in the cache.
    pub bytes: u64,
}

/// Readahead of decoded clusters.
#[repr(C)]
#[derive(
    Clone, Copy, Debug, Default, FromBytes, Immutable, IntoBytes, KnownLayout, PartialEq, Eq,
)]
pub struct PrefetchRecord {
    /// Clusters that were decoded before a read.
    pub done: u64,
    /// Those that were read later.
    pub used: u64,
    /// Those that left the cache unread.
    pub wasted: u64,
    /// Prefetches that were dropped.
    pub dropped: u64,
    /// Prefetches in flight that a reader joined.
    pub joined: u64,
}

/// Memory, in bytes unless stated otherwise.
#[repr(C)]
#[derive(
    Clone, Copy, Debug, Default, FromBytes, Immutable, IntoBytes, KnownLayout, PartialEq, Eq,
)]
pub struct MemoryRecord {
    /// Used bytes of the budget.
    pub used: u64,
    /// The largest value so far.
    pub peak: u64,
    /// The limit of the budget.
    pub limit: u64,
    /// Resident memory of the process (`VmRSS`); see [`known`].
    pub resident: u64,
    /// Its largest value so far (`VmHWM`); see [`known`].
    pub resident_peak: u64,
    /// The number of best-effort requests that were refused.
    pub refused: u64,
    /// The number of requests that waited.
    pub waited: u64,
    /// The number of requests that failed after waiting.
    pub gave_up: u64,
}

/// The FUSE session.
#[repr(C)]
#[derive(
    Clone, Copy, Debug, Default, FromBytes, Immutable, IntoBytes, KnownLayout, PartialEq, Eq,
)]
pub struct SessionRecord {
    /// The major version of the kernel's protocol.
    pub protocol_major: u64,
    /// Its minor version.
    pub protocol_minor: u64,
    /// Capabilities, as the bits of `INIT`: what was requested.
    pub requested: u64,
    /// ... and what was granted.
    pub granted: u64,
    /// The largest read, in bytes.
    pub max_read: u64,
    /// The largest readahead of the kernel, in bytes.
    pub max_readahead: u64,
    /// The largest number of background requests in flight.
    pub max_background: u64,
    /// Permanent listener threads.
    pub listeners: u64,
    /// Spare listener threads.
    pub spares: u64,
    /// Listeners of both kinds that wait for a request.
    pub idle: u64,
    /// FUSE_INTERRUPT messages.
    pub interrupts: u64,
    /// The time limit of a request; see [`known`], unknown means none.
    pub time_limit_ms: u64,
    /// Bytes stored in the kernel's page cache.
    pub stored_bytes: u64,
    /// The number of these stores.
    pub stores: u64,
    /// Threads of the process; see [`known`].
    pub threads: u64,
}

/// CPU time that the daemon did not get since the mount started.
#[repr(C)]
#[derive(
    Clone, Copy, Debug, Default, FromBytes, Immutable, IntoBytes, KnownLayout, PartialEq, Eq,
)]
pub struct CpuRecord {
    /// How often the quota of a control group was exhausted; see [`known`].
    pub throttled: u64,
    /// How long; see [`known`].
    pub throttled_us: u64,
    /// How long some task was runnable without a CPU (pressure stall information); see [`known`].
    pub stalled_us: u64,
    /// 1 if that is of the whole system, 0 if it is of the daemon's control group.
    pub is_stalled_of_system: u64,
}

/// The sums over all workers.
#[repr(C)]
#[derive(
    Clone, Copy, Debug, Default, FromBytes, Immutable, IntoBytes, KnownLayout, PartialEq, Eq,
)]
pub struct WorkersRecord {
    /// Items that were taken from a queue.
    pub items: u64,
    /// Items that ran on the submitting thread.
    pub inline: u64,
    /// Items without a worker, which went to the fallback.
    pub fallback: u64,
    /// Items that ran on the submitting thread because the queue was full.
    pub full: u64,
    /// Items that panicked.
    pub panics: u64,
    /// Workers whose thread could not be started.
    pub refused_threads: u64,
    /// The time from submission to start.
    pub wait: LatencyQuantiles,
}

/// Events for the log, by kind.
#[repr(C)]
#[derive(Clone, Copy, Debug, FromBytes, Immutable, IntoBytes, KnownLayout, PartialEq, Eq)]
pub struct LogEventRecord {
    /// Requests that failed because of the image or its storage.
    pub failed: u64,
    /// Requests that exceeded the time limit.
    pub timed_out: u64,
    /// Requests that hung when their caller was killed, and were interrupted.
    pub interrupted: u64,
    /// Spare listeners that were started.
    pub spares: u64,
    /// Requests that panicked.
    pub panicked: u64,
    /// Malformed requests.
    pub malformed: u64,
    /// Listeners that ended because the device failed.
    pub device_failed: u64,
    /// All others.
    pub other: u64,
    /// The age of the last one; see [`known`].
    pub last_age_ns: u64,
    /// Its text, truncated, followed by NUL bytes.
    pub last_text: [u8; EVENT_TEXT_BYTES],
}

impl Default for LogEventRecord {
    fn default() -> Self {
        Self {
            failed: 0,
            timed_out: 0,
            interrupted: 0,
            spares: 0,
            panicked: 0,
            malformed: 0,
            device_failed: 0,
            other: 0,
            last_age_ns: UNKNOWN,
            last_text: [0; EVENT_TEXT_BYTES],
        }
    }
}

/// What fetching a remote image has cost. Those from `requests` on are of the process that fetches, for all its images.
#[repr(C)]
#[derive(
    Clone, Copy, Debug, Default, FromBytes, Immutable, IntoBytes, KnownLayout, PartialEq, Eq,
)]
pub struct RemoteRecord {
    /// 1 if the image or one of its devices is remote, else 0.
    pub is_remote: u64,
    /// 1 if the process that fetches could be reached, else 0.
    pub is_connected: u64,
    /// How often it had to be reached again.
    pub reconnects: u64,
    /// Requests of readers that waited for them.
    pub fetches: u64,
    /// Those that were repeated.
    pub repeated: u64,
    /// Bytes that these requests asked for.
    pub fetched_bytes: u64,
    /// Reads of a part of a chunk without a request of their own: reads minus fetched chunks.
    pub hits: u64,
    /// How long readers waited, all together.
    pub waited_ns: u64,
    /// How long one waited at most.
    pub longest_ns: u64,
    /// Requests sent to servers, repeated ones included.
    pub requests: u64,
    /// Requests that were repeated.
    pub retries: u64,
    /// Requests in flight.
    pub in_flight: u64,
    /// Tokens that were requested of registries.
    pub token_requests: u64,
    /// Requests that mirrors of registries have answered.
    pub mirror_requests: u64,
    /// Bytes that servers sent.
    pub received_bytes: u64,
    /// Bytes that were missing and requested.
    pub requested_bytes: u64,
    /// Bytes that were received and not stored.
    pub wasted_bytes: u64,
    /// Bytes that were compared with a digest.
    pub verified_bytes: u64,
    /// Chunks that were requested and were there already.
    pub cache_hits: u64,
    /// The sum of the times to the first byte of an answer.
    pub latency_us: u64,
}

/// One of the most read files. They are found by a sketch of fixed size, so the numbers are nearly exact only for files
/// with a large share.
#[repr(C)]
#[derive(
    Clone, Copy, Debug, Default, FromBytes, Immutable, IntoBytes, KnownLayout, PartialEq, Eq,
)]
pub struct TopFileRecord {
    /// Its inode number in the image.
    pub nid: u64,
    /// Its inode number for `stat` and `find -inum`.
    pub ino: u64,
    /// Bytes that were read of it, approximately; 0 in an unused record.
    pub bytes: u64,
    /// The error bound of that.
    pub uncertain_bytes: u64,
}

/// Everything except the single workers.
#[repr(C)]
#[derive(
    Clone, Copy, Debug, Default, FromBytes, Immutable, IntoBytes, KnownLayout, PartialEq, Eq,
)]
pub struct StatsSummary {
    /// The process ID of the daemon, in its own PID namespace.
    pub pid: u64,
    /// The age of the mount.
    pub uptime_ns: u64,
    /// By [`OperationKind::index`].
    pub operations: [OperationRecord; OPERATIONS],
    /// Decoding of clusters.
    pub clusters: DecodeRecord,
    /// The cache of decoded clusters.
    pub cache: CacheRecord,
    /// Readahead.
    pub prefetch: PrefetchRecord,
    /// Memory.
    pub memory: MemoryRecord,
    /// The FUSE session.
    pub session: SessionRecord,
    /// CPU time that the daemon did not get.
    pub cpu: CpuRecord,
    /// The sums over all workers.
    pub workers: WorkersRecord,
    /// Events for the log.
    pub log_events: LogEventRecord,
    /// The most read files, in descending order.
    pub top_files: [TopFileRecord; TOP_FILES],
    /// A remote image.
    pub remote: RemoteRecord,
    /// The process that serves.
    pub process: ProcessRecord,
}

/// The process that serves, and the one that starts it again. A daemon from before this record reports zeros.
#[repr(C)]
#[derive(
    Clone, Copy, Debug, Default, FromBytes, Immutable, IntoBytes, KnownLayout, PartialEq, Eq,
)]
pub struct ProcessRecord {
    /// How often a server was started again.
    pub restarts: u64,
    /// The process ID of the holder; 0 if there is none.
    pub holder: u64,
    /// System calls that the filter allows; 0 without a filter.
    pub filter_calls: u64,
    /// The version of Landlock that confines paths; 0 if they are not confined.
    pub landlock: u64,
    /// The age of the mount, which several processes may have served; 0 from a daemon before this field.
    pub mount_age_ns: u64,
}

impl StatsSummary {
    /// The record of one kind of operation.
    #[must_use]
    pub fn operation(&self, kind: OperationKind) -> OperationRecord {
        self.operations.get(kind.index()).copied().unwrap_or_default()
    }
}

/// One worker.
#[repr(C)]
#[derive(
    Clone, Copy, Debug, Default, FromBytes, Immutable, IntoBytes, KnownLayout, PartialEq, Eq,
)]
pub struct WorkerRecord {
    /// Its CPU; see [`known`], unknown for an unbound thread.
    pub cpu: u64,
    /// Its thread ID; see [`known`], unknown without a thread.
    pub thread_id: u64,
    /// The priority that it reached: 1 real time, 2 nice -19, 3 normal, 4 batch, 0 unknown.
    pub priority_level: u64,
    /// 1 if it accepts work, else 0.
    pub is_serving: u64,
    /// Items that it took from its queue.
    pub items: u64,
    /// Items that its own items submitted.
    pub inline: u64,
    /// Items that panicked.
    pub panics: u64,
    /// How often it slept.
    pub sleeps: u64,
    /// How often it was woken by a system call.
    pub wake_ups: u64,
    /// Items that it handed over when its CPU went offline.
    pub handed_over: u64,
    /// How often it was found on another CPU and bound again.
    pub rebound: u64,
    /// The time from submission to start.
    pub wait: LatencyQuantiles,
}

impl WorkerRecord {
    /// The name of the priority; `None` if it is unknown.
    #[must_use]
    pub const fn priority_name(&self) -> Option<&'static str> {
        match self.priority_level {
            1 => Some("real-time"),
            2 => Some("nice -19"),
            3 => Some("normal"),
            4 => Some("batch"),
            _ => None,
        }
    }
}

/// Records of workers on a page.
pub(crate) const WORKERS_A_PAGE: usize =
    (IOCTL_BYTES - size_of::<StatsHeader>()) / size_of::<WorkerRecord>();

const _: () = assert!(size_of::<StatsHeader>() + size_of::<StatsSummary>() <= IOCTL_BYTES);
/// A change of these sizes needs a new [`VERSION`], unless a field was added at the end of the summary.
const _: () = assert!(size_of::<StatsHeader>() == 40 && size_of::<StatsSummary>() == 2520);
const _: () = assert!(OperationKind::ALL.len() <= OPERATIONS);

/// The kind of an operation. The order is that of the record and must not change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OperationKind {
    /// A name in a directory.
    Lookup,
    /// Attributes of an inode.
    GetAttr,
    /// The target of a symlink.
    ReadLink,
    /// Opening a file; the kernel requests it once if it knows that files need no OPEN.
    Open,
    /// Bytes of a file.
    Read,
    /// The size of the file system.
    Statfs,
    /// An extended attribute.
    GetXattr,
    /// The names of the extended attributes.
    ListXattr,
    /// Opening a directory; as for files.
    OpenDir,
    /// Entries of a directory.
    ReadDir,
    /// Entries of a directory with attributes.
    ReadDirPlus,
    /// The next data or hole.
    Lseek,
    /// An ioctl, such as that for these statistics.
    Ioctl,
}

impl OperationKind {
    /// All of them, in the order of the record.
    pub const ALL: [Self; 13] = [
        Self::Lookup,
        Self::GetAttr,
        Self::ReadLink,
        Self::Open,
        Self::Read,
        Self::Statfs,
        Self::GetXattr,
        Self::ListXattr,
        Self::OpenDir,
        Self::ReadDir,
        Self::ReadDirPlus,
        Self::Lseek,
        Self::Ioctl,
    ];

    /// The name, in lower case.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Lookup => "lookup",
            Self::GetAttr => "getattr",
            Self::ReadLink => "readlink",
            Self::Open => "open",
            Self::Read => "read",
            Self::Statfs => "statfs",
            Self::GetXattr => "getxattr",
            Self::ListXattr => "listxattr",
            Self::OpenDir => "opendir",
            Self::ReadDir => "readdir",
            Self::ReadDirPlus => "readdirplus",
            Self::Lseek => "lseek",
            Self::Ioctl => "ioctl",
        }
    }

    /// The index of its record.
    #[must_use]
    pub const fn index(self) -> usize {
        self as usize
    }

    pub(crate) const fn of(operation: &Operation<'_>) -> Self {
        match operation {
            Operation::Lookup { .. } => Self::Lookup,
            Operation::GetAttr => Self::GetAttr,
            Operation::ReadLink => Self::ReadLink,
            Operation::Open => Self::Open,
            Operation::Read { .. } => Self::Read,
            Operation::Statfs => Self::Statfs,
            Operation::GetXattr { .. } => Self::GetXattr,
            Operation::ListXattr { .. } => Self::ListXattr,
            Operation::OpenDir => Self::OpenDir,
            Operation::ReadDir { .. } => Self::ReadDir,
            Operation::ReadDirPlus { .. } => Self::ReadDirPlus,
            Operation::Lseek { .. } => Self::Lseek,
            Operation::Ioctl { .. } => Self::Ioctl,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::OperationKind;

    #[test]
    fn every_kind_is_at_its_index() {
        for (index, kind) in OperationKind::ALL.into_iter().enumerate() {
            assert_eq!(kind.index(), index, "{}", kind.name());
        }
    }
}

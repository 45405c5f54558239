//! What travels from the daemon to whoever asks: structures of plain numbers in the byte order of the machine, which
//! both run on. Nothing here does anything.
//!
//! An answer is a [`StatsHeader`] and, on page 0, a [`StatsSummary`]; on the pages from 1 on, [`WorkerRecord`]s. A structure of the
//! same version may only grow, at its end: who asks takes what is missing for zeros and passes over what it does not
//! know. Whatever else changes needs another version.

use ferrofs_fuse::Operation;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Of the structures.
pub(crate) const VERSION: u32 = 1;
/// The first bytes of a question.
pub(crate) const REQUEST_MAGIC: [u8; 8] = *b"ferrofs?";
/// The first bytes of an answer. They are others, so that a question which nobody answered is no answer.
pub(crate) const RESPONSE_MAGIC: [u8; 8] = *b"ferrofs!";
/// Bytes that a question and an answer have room for.
pub(crate) const IOCTL_BYTES: usize = 4096;
/// Rows for operations; more than there are, so that there can be more.
const OPERATIONS: usize = 16;
/// Files that are named.
pub(crate) const TOP_FILES: usize = 16;
/// Bytes of the last notice.
pub(crate) const EVENT_TEXT_BYTES: usize = 200;
/// Stands for a number that is not known.
pub(crate) const UNKNOWN: u64 = u64::MAX;

/// A number that may be unknown.
#[must_use]
pub const fn known(number: u64) -> Option<u64> {
    if number == UNKNOWN { None } else { Some(number) }
}

/// What is asked for.
#[repr(C)]
#[derive(Clone, Copy, Debug, FromBytes, Immutable, IntoBytes, KnownLayout)]
pub(crate) struct StatsRequest {
    /// [`REQUEST_MAGIC`].
    pub(crate) magic: [u8; 8],
    pub(crate) version: u32,
    pub(crate) page: u32,
}

/// Before each page.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, FromBytes, Immutable, IntoBytes, KnownLayout, PartialEq)]
pub(crate) struct StatsHeader {
    /// [`RESPONSE_MAGIC`].
    pub(crate) magic: [u8; 8],
    pub(crate) version: u32,
    /// Bytes of the page, this header included.
    pub(crate) bytes: u32,
    /// Workers on all pages together.
    pub(crate) workers: u32,
    /// Bytes of a row of a worker.
    pub(crate) worker_bytes: u32,
    /// The version of the program, with NULs behind it.
    pub(crate) release: [u8; 16],
}

/// Times in nanoseconds: their number, their sum, and what the given share of them does not exceed.
#[repr(C)]
#[derive(
    Clone, Copy, Debug, Default, FromBytes, Immutable, IntoBytes, KnownLayout, PartialEq, Eq,
)]
pub struct LatencyQuantiles {
    /// How many.
    pub count: u64,
    /// All of them together.
    pub sum_ns: u64,
    /// Half of them; up to 12.5 % too long, as are the next two.
    pub p50_ns: u64,
    /// 99 of 100.
    pub p99_ns: u64,
    /// 999 of 1,000.
    pub p999_ns: u64,
    /// All of them, exactly.
    pub max_ns: u64,
}

/// One kind of operation, from when a listener has the request until the kernel has the reply.
#[repr(C)]
#[derive(
    Clone, Copy, Debug, Default, FromBytes, Immutable, IntoBytes, KnownLayout, PartialEq, Eq,
)]
pub struct OperationRecord {
    /// Replies that said that something is broken: not those that a name, an attribute or data is not there.
    pub errors: u64,
    /// Bytes that the replies carried.
    pub bytes: u64,
    /// How many there were, and how long they took.
    pub time: LatencyQuantiles,
}

/// What was decoded.
#[repr(C)]
#[derive(
    Clone, Copy, Debug, Default, FromBytes, Immutable, IntoBytes, KnownLayout, PartialEq, Eq,
)]
pub struct DecodeRecord {
    /// Runs of a decoder that ended well.
    pub decoded: u64,
    /// Those of them that went through a window, since the whole had no room.
    pub windowed: u64,
    /// Those of them that ran on the workers.
    pub on_workers: u64,
    /// Pieces of clusters that readers got.
    pub served: u64,
    /// Bytes that decoders yielded.
    pub bytes_decoded: u64,
    /// Bytes that readers got, holes left out.
    pub bytes_served: u64,
    /// How long each run of a decoder took.
    pub time: LatencyQuantiles,
}

/// How the cache of decoded clusters was used.
#[repr(C)]
#[derive(
    Clone, Copy, Debug, Default, FromBytes, Immutable, IntoBytes, KnownLayout, PartialEq, Eq,
)]
pub struct CacheRecord {
    /// Demands that found the cluster kept.
    pub hits: u64,
    /// Demands that met another thread which decodes it, and waited.
    pub waits: u64,
    /// Clusters that were decoded: the misses, and prefetches.
    pub computed: u64,
    /// Claims on a cluster that ended without its bytes: prefetches that gave way, clusters taken back from a queue,
    /// failures.
    pub gone: u64,
    /// Clusters that were queued for a worker when a reader came and did it itself.
    pub taken_over: u64,
    /// Bytes that it holds.
    pub bytes: u64,
}

/// What readahead of our own came to.
#[repr(C)]
#[derive(
    Clone, Copy, Debug, Default, FromBytes, Immutable, IntoBytes, KnownLayout, PartialEq, Eq,
)]
pub struct PrefetchRecord {
    /// Clusters that were decoded before anybody asked.
    pub done: u64,
    /// Those of them that somebody asked for.
    pub used: u64,
    /// Those of them that nobody asked for before they went.
    pub wasted: u64,
    /// Prefetches that gave way.
    pub dropped: u64,
    /// Prefetches on their way that a reader joined.
    pub joined: u64,
}

/// Memory, in bytes unless it says else.
#[repr(C)]
#[derive(
    Clone, Copy, Debug, Default, FromBytes, Immutable, IntoBytes, KnownLayout, PartialEq, Eq,
)]
pub struct MemoryRecord {
    /// What the budget counts now.
    pub used: u64,
    /// The most that it ever counted.
    pub peak: u64,
    /// The most that it may.
    pub limit: u64,
    /// What the system counts for the process (`VmRSS`); [`known`].
    pub resident: u64,
    /// The most that it ever counted (`VmHWM`); [`known`].
    pub resident_peak: u64,
    /// Requests of best effort that were refused, a number.
    pub refused: u64,
    /// Requests that had to wait, a number.
    pub waited: u64,
    /// Requests that failed after waiting, a number.
    pub gave_up: u64,
}

/// Kernel and daemon.
#[repr(C)]
#[derive(
    Clone, Copy, Debug, Default, FromBytes, Immutable, IntoBytes, KnownLayout, PartialEq, Eq,
)]
pub struct SessionRecord {
    /// The kernel's protocol.
    pub protocol_major: u64,
    /// Its minor version.
    pub protocol_minor: u64,
    /// Capabilities, as the bits of `INIT`: what was requested.
    pub requested: u64,
    /// ... and what was granted.
    pub granted: u64,
    /// Bytes of the largest read.
    pub max_read: u64,
    /// Bytes that the kernel may read ahead.
    pub max_readahead: u64,
    /// Requests that nobody waits for, at a time.
    pub max_background: u64,
    /// Threads that always listen.
    pub listeners: u64,
    /// Threads that listen beside them because requests hang.
    pub spares: u64,
    /// How many of both wait for a request.
    pub idle: u64,
    /// Requests that the kernel did not want any more.
    pub interrupts: u64,
    /// After what time a request fails; [`known`], for never.
    pub time_limit_ms: u64,
    /// Bytes that were put into the kernel's page cache unasked.
    pub stored_bytes: u64,
    /// How often that was done.
    pub stores: u64,
    /// Threads of the process; [`known`].
    pub threads: u64,
}

/// CPU time that was denied since the mount began.
#[repr(C)]
#[derive(
    Clone, Copy, Debug, Default, FromBytes, Immutable, IntoBytes, KnownLayout, PartialEq, Eq,
)]
pub struct CpuRecord {
    /// How often control groups had used up their quota; [`known`].
    pub throttled: u64,
    /// How long CPUs stood still for that; [`known`].
    pub throttled_us: u64,
    /// How long some task was ready and had no CPU (pressure stall information); [`known`].
    pub stalled_us: u64,
    /// Whether that was some task of the whole system and not only of the daemon's group: 0 or 1.
    pub is_stalled_of_system: u64,
}

/// All workers together.
#[repr(C)]
#[derive(
    Clone, Copy, Debug, Default, FromBytes, Immutable, IntoBytes, KnownLayout, PartialEq, Eq,
)]
pub struct WorkersRecord {
    /// Items that ran out of a queue.
    pub items: u64,
    /// Items that ran on their submitter.
    pub inline: u64,
    /// Items that had no worker and went to the fallback.
    pub fallback: u64,
    /// Items that ran on their submitter because too many waited.
    pub full: u64,
    /// Items that panicked.
    pub panics: u64,
    /// Workers that the system refused a thread.
    pub refused_threads: u64,
    /// From handing over to start.
    pub wait: LatencyQuantiles,
}

/// What was told to the log, by kind.
#[repr(C)]
#[derive(Clone, Copy, Debug, FromBytes, Immutable, IntoBytes, KnownLayout, PartialEq, Eq)]
pub struct LogEventRecord {
    /// Requests that failed because of the image or its file.
    pub failed: u64,
    /// Requests that took longer than the limit.
    pub timed_out: u64,
    /// Readers that were killed and let go while their request hung.
    pub let_go: u64,
    /// Spare listeners that were started.
    pub spares: u64,
    /// Requests that panicked.
    pub panicked: u64,
    /// Requests that were not what they say.
    pub malformed: u64,
    /// Listeners that the device failed.
    pub device_failed: u64,
    /// All others.
    pub other: u64,
    /// How long ago the last one was; [`known`].
    pub last_age_ns: u64,
    /// Its text, with NULs behind it; cut where it is longer.
    pub last_text: [u8; EVENT_TEXT_BYTES],
}

impl Default for LogEventRecord {
    fn default() -> Self {
        Self {
            failed: 0,
            timed_out: 0,
            let_go: 0,
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

/// A file of which much was read. The sketch that finds them is of fixed size, so numbers of files are nearly exact
/// only for those that stand out.
#[repr(C)]
#[derive(
    Clone, Copy, Debug, Default, FromBytes, Immutable, IntoBytes, KnownLayout, PartialEq, Eq,
)]
pub struct TopFileRecord {
    /// Its inode in the image.
    pub nid: u64,
    /// The inode number that `stat` and `find -inum` know it by.
    pub ino: u64,
    /// About how many bytes were read of it; 0 for a row without a file.
    pub bytes: u64,
    /// How far off that may be.
    pub uncertain_bytes: u64,
}

/// Everything but the single workers.
#[repr(C)]
#[derive(
    Clone, Copy, Debug, Default, FromBytes, Immutable, IntoBytes, KnownLayout, PartialEq, Eq,
)]
pub struct StatsSummary {
    /// The daemon, as it sees itself.
    pub pid: u64,
    /// How long the mount has been there.
    pub uptime_ns: u64,
    /// By [`OperationKind::index`].
    pub operations: [OperationRecord; OPERATIONS],
    /// What was decoded.
    pub clusters: DecodeRecord,
    /// Decoded clusters that are kept.
    pub cache: CacheRecord,
    /// Readahead.
    pub prefetch: PrefetchRecord,
    /// Memory.
    pub memory: MemoryRecord,
    /// Kernel and daemon.
    pub session: SessionRecord,
    /// CPU time that was denied.
    pub cpu: CpuRecord,
    /// All workers together.
    pub workers: WorkersRecord,
    /// What went to the log.
    pub log_events: LogEventRecord,
    /// The most read files, the most read first.
    pub top_files: [TopFileRecord; TOP_FILES],
}

impl StatsSummary {
    /// The numbers of one kind of operation.
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
    /// Its CPU; [`known`], for a thread that is bound to none.
    pub cpu: u64,
    /// Its thread; [`known`], for one that has none now.
    pub thread_id: u64,
    /// The priority_level of priority that it reached: 1 real time, 2 nice -19, 3 normal, 4 batch, 0 unknown.
    pub priority_level: u64,
    /// Whether it takes work now: 0 or 1.
    pub is_serving: u64,
    /// Items that it ran out of its queue.
    pub items: u64,
    /// Items that its own items submitted.
    pub inline: u64,
    /// Items that panicked.
    pub panics: u64,
    /// How often it went to sleep.
    pub sleeps: u64,
    /// How often it was woken by a system call.
    pub wake_ups: u64,
    /// Items that it handed over when its CPU went away.
    pub handed_over: u64,
    /// How often it found itself off its CPU.
    pub rebound: u64,
    /// From handing over to start.
    pub wait: LatencyQuantiles,
}

impl WorkerRecord {
    /// The priority_level in words; none where it is unknown.
    #[must_use]
    pub const fn rung_name(&self) -> Option<&'static str> {
        match self.priority_level {
            1 => Some("fifo 1"),
            2 => Some("nice -19"),
            3 => Some("normal"),
            4 => Some("batch"),
            _ => None,
        }
    }
}

/// Rows of workers on a page.
pub(crate) const WORKERS_A_PAGE: usize =
    (IOCTL_BYTES - size_of::<StatsHeader>()) / size_of::<WorkerRecord>();

const _: () = assert!(size_of::<StatsHeader>() + size_of::<StatsSummary>() <= IOCTL_BYTES);
/// Who changes these has thought of [`VERSION`]: a structure within a structure cannot grow without a new one, nor can
/// what stands before the end.
const _: () = assert!(size_of::<StatsHeader>() == 40 && size_of::<StatsSummary>() == 2320);
const _: () = assert!(OperationKind::ALL.len() <= OPERATIONS);

/// What was asked of the mount.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OperationKind {
    /// A name in a directory.
    Lookup,
    /// Attributes of an inode.
    GetAttr,
    /// The target of a symlink.
    ReadLink,
    /// Opening a file; asked once in the life of a mount where the kernel knows that no file needs it.
    Open,
    /// Bytes of a file.
    Read,
    /// Numbers of the file system.
    Statfs,
    /// An extended attribute.
    GetXattr,
    /// The names of the extended attributes.
    ListXattr,
    /// Opening a directory; as for files.
    OpenDir,
    /// Names of a directory.
    ReadDir,
    /// Names of a directory with attributes.
    ReadDirPlus,
    /// Where data or a hole begins.
    Lseek,
    /// A question such as that for these numbers.
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

    /// Where its row stands in the record.
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
    fn every_kind_stands_at_its_place() {
        for (index, kind) in OperationKind::ALL.into_iter().enumerate() {
            assert_eq!(kind.index(), index, "{}", kind.name());
        }
    }
}

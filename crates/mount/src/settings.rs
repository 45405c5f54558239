//! What a caller chooses for a mount, and the events that it gets for its log. Used by `serve` and `image_fs`.

use std::fmt;
use std::time::Duration;

use ferrofs_fuse::{ListenerGrowth, SessionEvent};
use ferrofs_image::{Error, Nid};
use ferrofs_workers::priority::PriorityRequest;

/// How a mount behaves.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct MountSettings {
    /// The number of threads that read requests from the kernel.
    pub listeners: usize,
    /// When more are started, as requests wait for the storage of the image.
    pub growth: ListenerGrowth,
    /// The priority of listeners, which do most of the decoding that a caller waits for, and of prefetch threads.
    pub priority: PriorityRequest,
    /// How long a request may take before its caller gets `EIO`; `None` is forever.
    pub time_limit: Option<Duration>,
    /// How long a listener that has served several requests of one caller looks for the next one at most, before it
    /// sleeps; zero is never.
    pub busy_poll: Duration,
    /// How many bytes of the memory reserve one read should take; `None` without a reserve. Larger reads are split,
    /// but not below 64 KiB.
    pub reserve_share: Option<u64>,
    /// The largest read in bytes, if the mount option `max_read` limits it: the kernel keeps to it, so it is what statistics
    /// report. At least 4 KiB hold.
    pub max_read: Option<u32>,
    /// Whether extended attributes are shown.
    pub has_xattrs: bool,
    /// Whether those of `user.` are shown, too.
    pub has_user_xattrs: bool,
    /// Whether POSIX access control lists are shown, and enforced by the kernel.
    pub has_acls: bool,
    /// Whether the data near a small read goes to the kernel's page cache, too.
    pub readaround: bool,
}

impl Default for MountSettings {
    /// Two listeners at raised priority, a time limit of two minutes, 100 us of busy polling, everything shown.
    fn default() -> Self {
        Self {
            listeners: 2,
            growth: ListenerGrowth::Never,
            priority: PriorityRequest::Raised,
            time_limit: Some(Duration::from_secs(120)),
            busy_poll: Duration::from_micros(100),
            reserve_share: None,
            max_read: None,
            has_xattrs: true,
            has_user_xattrs: true,
            has_acls: true,
            readaround: true,
        }
    }
}

impl MountSettings {
    /// Sets the number of threads that read requests from the kernel.
    #[must_use]
    pub fn listeners(mut self, threads: usize) -> Self {
        self.listeners = threads;
        self
    }

    /// Sets when more listeners are started.
    #[must_use]
    pub fn growth(mut self, growth: ListenerGrowth) -> Self {
        self.growth = growth;
        self
    }

    /// Sets the priority of listeners and prefetch threads.
    #[must_use]
    pub fn priority(mut self, priority: PriorityRequest) -> Self {
        self.priority = priority;
        self
    }

    /// Sets how long a request may take before its caller gets `EIO`; `None` is forever.
    #[must_use]
    pub fn time_limit(mut self, limit: Option<Duration>) -> Self {
        self.time_limit = limit;
        self
    }

    /// Sets how long a listener looks for the next request of one caller at most, before it sleeps; zero is never.
    #[must_use]
    pub fn busy_poll(mut self, longest: Duration) -> Self {
        self.busy_poll = longest;
        self
    }

    /// Sets how many bytes of the memory reserve one read should take; `None` without a reserve.
    #[must_use]
    pub fn reserve_share(mut self, bytes: Option<u64>) -> Self {
        self.reserve_share = bytes;
        self
    }

    /// Sets the limit of the mount option `max_read`, in bytes.
    #[must_use]
    pub fn max_read(mut self, bytes: Option<u32>) -> Self {
        self.max_read = bytes;
        self
    }

    /// Sets whether extended attributes are shown.
    #[must_use]
    pub fn xattrs(mut self, yes: bool) -> Self {
        self.has_xattrs = yes;
        self
    }

    /// Sets whether extended attributes of `user.` are shown.
    #[must_use]
    pub fn user_xattrs(mut self, yes: bool) -> Self {
        self.has_user_xattrs = yes;
        self
    }

    /// Sets whether POSIX access control lists are shown, and enforced by the kernel.
    #[must_use]
    pub fn acls(mut self, yes: bool) -> Self {
        self.has_acls = yes;
        self
    }

    /// Sets whether the data near a small read goes to the kernel's page cache, too.
    #[must_use]
    pub fn readaround(mut self, yes: bool) -> Self {
        self.readaround = yes;
        self
    }
}

/// What a mount tells about the process that serves it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ServingProcess {
    /// How often a server was started again; 0 without a holder.
    pub restarts: u64,
    /// The process that starts servers again, if there is one.
    pub holder: Option<u32>,
    /// System calls that the filter allows; `None` without a filter.
    pub filter_calls: Option<u64>,
    /// The version of Landlock that confines paths; `None` if they are not confined.
    pub landlock: Option<u32>,
    /// When the image was mounted, by `CLOCK_BOOTTIME`, which all processes share.
    pub mounted_at: Option<Duration>,
}

/// An event of a mount that belongs in a log.
#[derive(Debug)]
#[non_exhaustive]
pub enum MountLogEvent<'a> {
    /// A request failed because of the image or its storage.
    Failed {
        /// The inode of the request.
        nid: Nid,
        /// What was to be read.
        what: &'static str,
        /// Why it failed.
        error: &'a Error,
    },
    /// Requests for an inode get `EIO` from here on, because servers have died in one (docs/survival.md).
    Banned {
        /// The inode.
        nid: Nid,
        /// Its path, if it was found.
        path: Option<&'a [u8]>,
    },
    /// An event of the session.
    Session(&'a SessionEvent),
}

impl fmt::Display for MountLogEvent<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Failed { nid, what, error } => {
                write!(f, "cannot read {what} of nid {}: {error}", nid.raw())
            }
            Self::Banned { nid, path } => {
                write!(f, "nid {}", nid.raw())?;
                if let Some(path) = path {
                    write!(f, " ({})", String::from_utf8_lossy(path))?;
                }
                f.write_str(
                    ": requests for it get EIO from now on, because processes have died in such a request",
                )
            }
            Self::Session(event) => write!(f, "{event}"),
        }
    }
}

pub(crate) type LogCallback = dyn Fn(&MountLogEvent<'_>) + Send + Sync;

//! How a mount behaves; what can be chosen, with what is best where nothing is.

use std::time::Duration;

use ferrofs_workers::priority::PriorityRequest;

/// How a mount behaves.
#[derive(Clone, Copy, Debug)]
pub struct MountSettings {
    /// Threads that listen to the kernel.
    pub listeners: usize,
    /// The priority of listeners, who decode most of what is waited for, and of those who store what lies around it.
    pub priority: PriorityRequest,
    /// After what time a request fails with `EIO`; `None` waits for ever.
    pub time_limit: Option<Duration>,
    /// Bytes of a reserve that one read should take; none without a reserve. Longer reads come in pieces, though never
    /// in shorter ones than 64 KiB.
    pub reserve_share: Option<u64>,
    /// Whether extended attributes are shown at all.
    pub has_xattrs: bool,
    /// Whether those of `user.` are, too.
    pub has_user_xattrs: bool,
    /// Whether access control lists are shown, and obeyed by the kernel.
    pub has_acls: bool,
    /// Whether the rest of a cluster that a small read had decoded goes to the kernel's page cache.
    pub readaround: bool,
}

impl Default for MountSettings {
    fn default() -> Self {
        Self {
            listeners: 2,
            priority: PriorityRequest::Raised,
            time_limit: Some(Duration::from_secs(120)),
            reserve_share: None,
            has_xattrs: true,
            has_user_xattrs: true,
            has_acls: true,
            readaround: true,
        }
    }
}

//! The user that the process becomes, and the limits that replace a capability. Used by [`super::Sandbox::enter`].

use rustix::io::Errno;
use rustix::process::{Gid, Resource, Rlimit, Uid, getrlimit, setrlimit};
use rustix::thread::{set_thread_groups, set_thread_res_gid, set_thread_res_uid};

/// A user and its group, by number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct UserIds {
    /// The user ID.
    pub user: u32,
    /// The group ID.
    pub group: u32,
}

/// Makes the calling thread, and those that it starts later, this user with this one group.
///
/// # Errors
/// The process is not permitted to, or an ID is not mapped in its user namespace.
pub fn become_user(ids: UserIds) -> Result<(), Errno> {
    // -1 means "unchanged" to the kernel, so it is no user.
    if ids.user == u32::MAX || ids.group == u32::MAX {
        return Err(Errno::INVAL);
    }
    let (user, group) = (Uid::from_raw(ids.user), Gid::from_raw(ids.group));
    set_thread_groups(&[group])?;
    set_thread_res_gid(group, group, group)?;
    set_thread_res_uid(user, user, user)
}

/// The highest real-time priority that a thread of ours asks for (`ferrofs_workers::priority`).
const REAL_TIME_PRIORITY: u64 = 1;
/// The lowest nice value that one asks for is -19; the limit is 20 minus it.
const NICE_LIMIT: u64 = 39;

/// Lets threads of the process raise their priority without `CAP_SYS_NICE`, which the process has now: by its limits, which
/// it cannot raise afterwards.
///
/// A refusal leaves the limit as it is, and threads reach the next lower level.
pub(super) fn raise_priority_limits() {
    for (resource, needed) in [(Resource::Rtprio, REAL_TIME_PRIORITY), (Resource::Nice, NICE_LIMIT)]
    {
        let has = getrlimit(resource);
        let reaches = |limit: Option<u64>| limit.is_none_or(|limit| limit >= needed);
        if !reaches(has.current) {
            let maximum = if reaches(has.maximum) { has.maximum } else { Some(needed) };
            setrlimit(resource, Rlimit { current: Some(needed), maximum }).ok();
        }
    }
}

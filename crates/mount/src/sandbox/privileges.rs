//! What the process gives up before it enters the sandbox: its user, for a user with fewer rights, and the credentials in its
//! environment that it has passed on, which would stay in the memory that decodes hostile images, and in `/proc/PID/environ`.
//! What it keeps of a capability that it loses are limits. Used by [`super::Sandbox::enter`] and the command.
#![allow(unsafe_code, reason = "std can remove a variable, but leaves its value in memory")]

use std::ffi::CString;
use std::io;
use std::time::{Duration, Instant};

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

/// How long the kernel may take for the end of a thread, and how often it is looked at.
const ENDING_LIMIT: Duration = Duration::from_secs(1);
const ENDING_PAUSE: Duration = Duration::from_millis(1);

/// Overwrites the values of these variables where the system has put them; they are empty afterwards.
///
/// # Errors
/// One of them is set, and this process has several threads, or `/proc/self/task` cannot be read.
pub fn clear_environment(names: &[&str]) -> io::Result<()> {
    let is_set = |name: &&&str| std::env::var_os(name).is_some();
    let names: Vec<CString> = names
        .iter()
        .filter(is_set)
        .map(|name| CString::new(*name).map_err(io::Error::other))
        .collect::<io::Result<_>>()?;
    if !names.is_empty() && !is_single_threaded()? {
        return Err(io::Error::other("other threads may read the environment"));
    }
    for name in names {
        // SAFETY: `name` is a string with a NUL. The result is null or points to the value in the environment of this
        // process, which has a NUL and which nobody else reads or changes meanwhile, as there is one thread, this one,
        // which starts none here. Writing as many zeros as it has bytes stays inside of it. It is writable memory: the
        // initial stack, or that of `setenv`.
        unsafe {
            let value = libc::getenv(name.as_ptr());
            if !value.is_null() {
                value.write_bytes(0, libc::strlen(value));
            }
        }
    }
    Ok(())
}

/// Whether this process has one thread. Threads that were joined are listed until the kernel is done with them; the function
/// waits up to a second for that.
///
/// # Errors
/// `/proc/self/task` cannot be read.
pub fn is_single_threaded() -> io::Result<bool> {
    let until = Instant::now() + ENDING_LIMIT;
    loop {
        let has_one = std::fs::read_dir("/proc/self/task")?.count() == 1;
        if has_one || Instant::now() >= until {
            return Ok(has_one);
        }
        std::thread::sleep(ENDING_PAUSE);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_with_threads_is_left_as_it_is() {
        let before = std::env::var_os("PATH").unwrap();
        let (end, ended) = std::sync::mpsc::channel::<()>();
        std::thread::scope(|scope| {
            scope.spawn(move || ended.recv().ok());
            let error = clear_environment(&["PATH"]).unwrap_err();
            assert_eq!(error.to_string(), "other threads may read the environment");
            drop(end);
        });
        assert_eq!(std::env::var_os("PATH"), Some(before));
        clear_environment(&["FERROFS_NO_SUCH_VARIABLE"]).unwrap();
    }
}

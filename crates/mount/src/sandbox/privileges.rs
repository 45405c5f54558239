//! What the process gives up before it enters the sandbox: its user, for a user with fewer rights; the credentials in its
//! environment that it has passed on, which would stay in the memory that decodes hostile images, and in `/proc/PID/environ`;
//! and the descriptors that it does not need, which it replaces without closing a number that may have an owner. What it keeps of a capability
//! that it loses are limits. Used by [`super::Sandbox::enter`] and the command.
#![allow(
    unsafe_code,
    reason = "std leaves removed variables in memory, and knows no descriptor by its number only"
)]

use std::ffi::{CString, OsStr};
use std::mem::ManuallyDrop;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use std::{fmt, io};

use ferrofs_fuse::attach::thread_count;
use rustix::fs::{FileType, Mode, OFlags};
use rustix::io::{DupFlags, Errno, dup3};
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
        let is_sufficient = |limit: Option<u64>| limit.is_none_or(|limit| limit >= needed);
        if !is_sufficient(has.current) {
            let maximum = if is_sufficient(has.maximum) { has.maximum } else { Some(needed) };
            setrlimit(resource, Rlimit { current: Some(needed), maximum }).ok();
        }
    }
}

/// How long the kernel may take for the end of a thread, and how often it is looked at.
const THREAD_EXIT_TIMEOUT: Duration = Duration::from_secs(1);
const THREAD_EXIT_POLL_INTERVAL: Duration = Duration::from_millis(1);

/// Overwrites the values of these variables where the system has put them; they are empty afterwards.
///
/// # Errors
/// One of them is set, and this process has several threads, or `/proc/self/status` cannot be read.
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

/// Whether this process has one thread. Threads that were joined count until the kernel is done with them; the function
/// waits up to a second for that.
///
/// # Errors
/// `/proc/self/status` cannot be read.
pub fn is_single_threaded() -> io::Result<bool> {
    let until = Instant::now() + THREAD_EXIT_TIMEOUT;
    loop {
        let has_one = thread_count()? == 1;
        if has_one || Instant::now() >= until {
            return Ok(has_one);
        }
        std::thread::sleep(THREAD_EXIT_POLL_INTERVAL);
    }
}

const FD_DIRECTORY: &str = "/proc/self/fd";
/// Standard input, output and error; see [`StandardStreams`].
const STREAMS: u32 = 3;

/// What happens to the standard streams.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum StandardStreams {
    /// All three become `/dev/null`, opened for reading.
    #[default]
    None,
    /// Standard error stays open, as the log of a foreground daemon.
    Errors,
}

/// The access mode of a descriptor.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum DescriptorAccess {
    /// Read.
    Read,
    /// Write.
    Write,
    /// Read and write.
    ReadWrite,
    /// Neither (`O_PATH`).
    Place,
}

impl DescriptorAccess {
    fn of(flags: OFlags) -> Self {
        let mode = flags & OFlags::RWMODE;
        if flags.contains(OFlags::PATH) {
            Self::Place
        } else if mode == OFlags::RDONLY {
            Self::Read
        } else if mode == OFlags::WRONLY {
            Self::Write
        } else {
            Self::ReadWrite
        }
    }

    /// Whether it can be written to.
    #[must_use]
    pub fn is_writable(self) -> bool {
        matches!(self, Self::Write | Self::ReadWrite)
    }
}

impl fmt::Display for DescriptorAccess {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Read => "read",
            Self::Write => "write",
            Self::ReadWrite => "read, write",
            Self::Place => "place",
        })
    }
}

/// One open descriptor.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OpenDescriptor {
    /// Its number.
    pub number: u32,
    /// Its access mode.
    pub access: DescriptorAccess,
    /// Its target in `/proc/self/fd`: a path, or a text such as `socket:[4711]`.
    pub target: PathBuf,
}

/// The open descriptors, by number.
pub(super) fn list_descriptors() -> io::Result<Vec<OpenDescriptor>> {
    let mut found = Vec::new();
    for number in descriptor_numbers()? {
        // The descriptor of the listing itself is closed by now.
        let Ok(target) = std::fs::read_link(link_path(number)) else { continue };
        found.push(OpenDescriptor { number, access: access_of(number)?, target });
    }
    Ok(found)
}

/// Replaces all descriptors except those in `kept`, streams that stay, and files opened for reading. Returns how many
/// were replaced, without the streams. No number is closed that may have an owner.
pub(super) fn replace_descriptors_except(
    kept: &[BorrowedFd<'_>],
    streams: StandardStreams,
) -> io::Result<usize> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC;
    let null = rustix::fs::open("/dev/null", flags, Mode::empty())?;
    rustix::stdio::dup2_stdin(&null)?;
    rustix::stdio::dup2_stdout(&null)?;
    if streams == StandardStreams::None {
        rustix::stdio::dup2_stderr(&null)?;
    }
    let mut replaced = 0;
    for number in descriptor_numbers()? {
        let raw = RawFd::try_from(number).map_err(|_| Errno::BADF)?;
        let is_kept = raw == null.as_raw_fd() || kept.iter().any(|fd| fd.as_raw_fd() == raw);
        if number < STREAMS || is_kept || is_gone(number) || is_file_to_read(number)? {
            continue;
        }
        replace(raw, null.as_fd())?;
        replaced += 1;
    }
    Ok(replaced)
}

/// The open numbers, including that of the listing itself.
fn descriptor_numbers() -> io::Result<Vec<u32>> {
    let mut numbers = Vec::new();
    for entry in std::fs::read_dir(FD_DIRECTORY)? {
        let name = entry?.file_name();
        numbers.push(name.to_str().and_then(|name| name.parse().ok()).ok_or_else(unreadable)?);
    }
    numbers.sort_unstable();
    Ok(numbers)
}

fn is_gone(number: u32) -> bool {
    std::fs::symlink_metadata(link_path(number)).is_err()
}

fn is_file_to_read(number: u32) -> io::Result<bool> {
    if access_of(number)? != DescriptorAccess::Read {
        return Ok(false);
    }
    let kind = FileType::from_raw_mode(rustix::fs::stat(link_path(number))?.st_mode);
    Ok(matches!(kind, FileType::RegularFile | FileType::BlockDevice))
}

fn access_of(number: u32) -> io::Result<DescriptorAccess> {
    let raw = RawFd::try_from(number).map_err(|_| Errno::BADF)?;
    // SAFETY: fcntl below is the only use and changes nothing. The number is not -1, as `descriptor_numbers` parses it as
    // unsigned. It is open: it was just listed, and no other thread exists before the sandbox. If it were not, fcntl would
    // fail.
    let borrowed = unsafe { BorrowedFd::borrow_raw(raw) };
    Ok(DescriptorAccess::of(rustix::fs::fcntl_getfl(borrowed)?))
}

fn link_path(number: u32) -> PathBuf {
    Path::new(FD_DIRECTORY).join(OsStr::new(&number.to_string()))
}

fn unreadable() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "unexpected text in /proc/self")
}

/// Makes `number` a descriptor of the file of `replacement`, and closes what was open there. Above the limit of descriptors,
/// where nothing can be opened, it only closes: the process that started this one has lowered the limit.
///
/// # Errors
///
/// As `dup3`.
fn replace(number: RawFd, replacement: BorrowedFd<'_>) -> io::Result<()> {
    // SAFETY: dup3 below is the only use, and leaves the number open. ManuallyDrop keeps it open afterwards, so it still
    // belongs to its owner, who now sees another file. Memory safety does not depend on that file: no descriptor of this
    // project is mapped, since images are read (docs/trust.md). The number is not -1, as `descriptor_numbers` parses it as
    // unsigned. A number that is closed instead has no owner here: this process cannot have opened it.
    let mut borrowed = ManuallyDrop::new(unsafe { OwnedFd::from_raw_fd(number) });
    match dup3(replacement, &mut borrowed, DupFlags::CLOEXEC) {
        Err(Errno::BADF) if is_above_limit(number) => {
            // An inherited descriptor of nobody: what this process opens is below the limit.
            drop(ManuallyDrop::into_inner(borrowed));
            Ok(())
        }
        replaced => Ok(replaced?),
    }
}

fn is_above_limit(number: RawFd) -> bool {
    let limit = getrlimit(Resource::Nofile).current;
    limit.zip(u64::try_from(number).ok()).is_some_and(|(limit, number)| number >= limit)
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

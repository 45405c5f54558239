//! The descriptors of the process: which are open, with which access mode, and replacing those that are not needed. It
//! reads `/proc/self` and never closes a number. Used by [`super::Sandbox::enter`].
#![allow(unsafe_code, reason = "a descriptor of an unknown owner is known by its number only")]

use std::ffi::OsStr;
use std::mem::ManuallyDrop;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::path::{Path, PathBuf};
use std::{fmt, io};

use rustix::fs::{FileType, Mode, OFlags};
use rustix::io::{DupFlags, Errno, dup3};

const DIRECTORY: &str = "/proc/self/fd";
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
pub(super) fn list() -> io::Result<Vec<OpenDescriptor>> {
    let mut found = Vec::new();
    for number in numbers()? {
        // The descriptor of the listing itself is closed by now.
        let Ok(target) = std::fs::read_link(link(number)) else { continue };
        found.push(OpenDescriptor { number, access: access(number)?, target });
    }
    Ok(found)
}

/// Replaces all descriptors except those in `kept`, streams that stay, and files opened for reading. Returns how many
/// were replaced, without the streams.
pub(super) fn replace_all_but(
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
    for number in numbers()? {
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
fn numbers() -> io::Result<Vec<u32>> {
    let mut numbers = Vec::new();
    for entry in std::fs::read_dir(DIRECTORY)? {
        let name = entry?.file_name();
        numbers.push(name.to_str().and_then(|name| name.parse().ok()).ok_or_else(unreadable)?);
    }
    numbers.sort_unstable();
    Ok(numbers)
}

fn is_gone(number: u32) -> bool {
    std::fs::symlink_metadata(link(number)).is_err()
}

fn is_file_to_read(number: u32) -> io::Result<bool> {
    if access(number)? != DescriptorAccess::Read {
        return Ok(false);
    }
    let kind = FileType::from_raw_mode(rustix::fs::stat(link(number))?.st_mode);
    Ok(matches!(kind, FileType::RegularFile | FileType::BlockDevice))
}

fn access(number: u32) -> io::Result<DescriptorAccess> {
    let raw = RawFd::try_from(number).map_err(|_| Errno::BADF)?;
    // SAFETY: fcntl below is the only use and changes nothing. The number is not -1, as `numbers` parses it as unsigned. It
    // is open: it was just listed, and no other thread exists before the sandbox. If it were not, fcntl would fail.
    let borrowed = unsafe { BorrowedFd::borrow_raw(raw) };
    Ok(DescriptorAccess::of(rustix::fs::fcntl_getfl(borrowed)?))
}

fn link(number: u32) -> PathBuf {
    Path::new(DIRECTORY).join(OsStr::new(&number.to_string()))
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
    // project is mapped, since images are read (docs/trust.md). The number is not -1, as `numbers` parses it as unsigned.
    // A number that is closed instead has no owner here: this process cannot have opened it.
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
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
    limit.zip(u64::try_from(number).ok()).is_some_and(|(limit, number)| number >= limit)
}

//! The descriptors of the process: which there are, what may be done with them, and replacing those
//! that are not wanted. It reads `/proc/self`, and never closes a number. Called by
//! [`super::Sandbox::enter`].

use std::ffi::OsStr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::path::{Path, PathBuf};
use std::{fmt, io};

use rustix::fs::{FileType, Mode, OFlags};

use super::replace::replace;

const DIRECTORY: &str = "/proc/self/fd";
/// Standard input, output, error: [`StandardStreams`] decides about these.
const STREAMS: u32 = 3;

/// What becomes of the standard streams.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum StandardStreams {
    /// All three become `/dev/null` opened for reading: what is written to them is lost without harm.
    #[default]
    None,
    /// Standard error stays, as the log of a daemon in the foreground.
    Errors,
}

/// What an open descriptor allows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum DescriptorAccess {
    /// Reading.
    Read,
    /// Writing.
    Write,
    /// Both.
    ReadWrite,
    /// Neither; it names a place (`O_PATH`).
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

    /// Whether anything can be written.
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
    /// What it allows.
    pub access: DescriptorAccess,
    /// What the system calls it: a path, or words such as `socket:[4711]`.
    pub target: PathBuf,
}

/// All open descriptors, by number.
pub(super) fn list() -> io::Result<Vec<OpenDescriptor>> {
    let mut found = Vec::new();
    for number in numbers()? {
        // One that is gone again was the directory's own.
        let Ok(target) = std::fs::read_link(link(number)) else { continue };
        found.push(OpenDescriptor { number, access: access(number)?, target });
    }
    Ok(found)
}

/// Replaces all that are neither kept, nor a stream that stays, nor a file opened for reading, and
/// says how many those were beside the streams.
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
        let raw = RawFd::try_from(number).map_err(|_| rustix::io::Errno::BADF)?;
        let is_kept = raw == null.as_raw_fd() || kept.iter().any(|fd| fd.as_raw_fd() == raw);
        if number < STREAMS || is_kept || is_gone(number) || is_file_to_read(number)? {
            continue;
        }
        replace(raw, null.as_fd())?;
        replaced += 1;
    }
    Ok(replaced)
}

/// The numbers that are open, and that of the descriptor through which they were listed.
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
    let text = std::fs::read_to_string(format!("/proc/self/fdinfo/{number}"))?;
    let digits = text.lines().find_map(|line| line.strip_prefix("flags:"));
    let flags = digits.and_then(|digits| u32::from_str_radix(digits.trim(), 8).ok());
    Ok(DescriptorAccess::of(OFlags::from_bits_retain(flags.ok_or_else(unreadable)?)))
}

fn link(number: u32) -> PathBuf {
    Path::new(DIRECTORY).join(OsStr::new(&number.to_string()))
}

fn unreadable() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "unexpected text in /proc/self")
}

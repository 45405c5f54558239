//! The error type of this crate: the kind, the path and the inode as data.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::{fmt, io};

use ferrofs_image::{Inode, Nid};
use rustix::io::Errno;

/// A result with this crate's [`Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// An error: its kind, the path and the inode.
#[derive(Debug)]
pub struct Error {
    kind: ErrorKind,
    path: Vec<u8>,
    /// The inode that was being extracted, and its offset in the image.
    inode: Option<(Nid, u64)>,
    is_about_destination: bool,
}

/// What kind of error it is.
#[derive(Debug)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The image could not be read.
    Image(ferrofs_image::Error),
    /// An operation of the host failed.
    Output {
        /// The operation, as in "cannot create file".
        operation: &'static str,
        /// The error of the host.
        source: io::Error,
    },
    /// The operation needs a path to an open file, which only `/proc` has.
    NoProc {
        /// The operation, as in "cannot set the mode".
        operation: &'static str,
    },
    /// The destination is not empty, and its entries must not be replaced.
    NotEmpty,
    /// The destination holds nothing but what an extraction that was killed has left.
    Leftover {
        /// The name of such an entry.
        name: Vec<u8>,
    },
    /// What was extracted could not get its name, and has another one.
    NotPublished {
        /// Why it could not.
        source: Box<ErrorKind>,
        /// The name that it has, in the same directory.
        temporary: Vec<u8>,
    },
    /// An entry with this name exists already and must not be replaced.
    Exists,
    /// A directory exists under this name; directories are never removed.
    DirectoryInTheWay,
    /// A name that could lead out of its directory.
    UnsafeName,
    /// Another process has replaced an entry that the extraction created.
    Replaced,
    /// The contents of a file end before its size.
    Short {
        /// Bytes that the image delivered.
        delivered: u64,
        /// The size of the file.
        size: u64,
    },
    /// The segments of a file do not meet: the index of the file contradicts itself.
    Torn {
        /// The offset at which a segment ends.
        end: u64,
        /// The offset at which the next one starts.
        start: u64,
    },
    /// The code that worked on it panicked: a defect of this library, or of the caller's own image
    /// source. Everything else is still extracted.
    Panicked,
    /// The threads could not be created.
    Threads(ferrofs_workers::Error),
    /// A path to extract names nothing in the image.
    NothingMatches,
    /// A file of a tar could not be read in full after its header was written.
    ZeroFilled {
        /// Why the first missing bytes could not be read.
        source: Box<ErrorKind>,
        /// How many of its bytes are zeros instead.
        zeros: u64,
        /// The size of the file.
        size: u64,
    },
    /// The first name of this hard link was left out of the tar.
    FirstNameLeftOut,
    /// The output would be larger than allowed.
    OutputLimit {
        /// The limit in bytes.
        limit: u64,
    },
    /// The memory budget has no room.
    Memory(ferrofs_workers::Error),
    /// The caller's [`CancelToken`](ferrofs_workers::CancelToken) was cancelled.
    Cancelled,
}

/// Runs `read` and turns a panic into an error: for threads where nothing else catches panics.
pub(crate) fn catch_panic<T>(read: impl FnOnce() -> Result<T, ErrorKind>) -> Result<T, ErrorKind> {
    // The state of what was being read is not used again.
    catch_unwind(AssertUnwindSafe(read)).unwrap_or(Err(ErrorKind::Panicked))
}

impl Error {
    pub(crate) fn new(kind: ErrorKind, path: &[u8]) -> Self {
        Self { kind, path: path.to_vec(), inode: None, is_about_destination: false }
    }

    /// An error of the destination itself, with its path.
    pub(crate) fn of_destination(kind: ErrorKind, path: &[u8]) -> Self {
        Self { is_about_destination: true, ..Self::new(kind, path) }
    }

    /// The same error with an inode.
    pub(crate) fn about(mut self, inode: &Inode) -> Self {
        self.inode = Some((inode.nid(), inode.offset()));
        self
    }

    /// The kind of the error.
    #[must_use]
    pub fn kind(&self) -> &ErrorKind {
        &self.kind
    }

    /// The path of the error: a path in the image, with a leading `/`, that counts from
    /// [`ExtractOptions::source_directory`](crate::ExtractOptions::source_directory); the
    /// destination; or a pattern as it was given. It is empty for the image as a whole.
    #[must_use]
    pub fn path(&self) -> &[u8] {
        &self.path
    }

    /// Whether the path is that of the destination, and not one in the image.
    #[must_use]
    pub fn is_about_destination(&self) -> bool {
        self.is_about_destination
    }

    /// The inode of the error, if there is one.
    #[must_use]
    pub fn nid(&self) -> Option<Nid> {
        match self.kind.in_image() {
            Some(error) => error.nid(),
            None => self.inode.map(|(nid, _)| nid),
        }
    }

    /// The offset in the image: of the damaged bytes, or of the inode.
    #[must_use]
    pub fn offset(&self) -> Option<u64> {
        match self.kind.in_image() {
            Some(error) => error.offset(),
            None => self.inode.map(|(_, offset)| offset),
        }
    }

    /// The message with the inode and without the path.
    #[must_use]
    pub fn reason(&self) -> Reason<'_> {
        Reason(self)
    }
}

/// Shows an [`Error`] without its path.
#[derive(Clone, Copy, Debug)]
pub struct Reason<'a>(&'a Error);

impl fmt::Display for Reason<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Error { kind, inode, .. } = self.0;
        match (kind.in_image(), inode) {
            (None, Some((nid, offset))) => write!(f, "{kind} (nid {nid}, byte {offset})"),
            // Errors of the image contain their own place.
            _ => kind.fmt(f),
        }
    }
}

impl ErrorKind {
    pub(crate) fn output(operation: &'static str) -> impl Fn(Errno) -> Self {
        move |errno| Self::Output { operation, source: errno.into() }
    }

    /// The underlying error of the image.
    fn in_image(&self) -> Option<&ferrofs_image::Error> {
        match self {
            Self::Image(error) => Some(error),
            Self::ZeroFilled { source, .. } => source.in_image(),
            _ => None,
        }
    }

    /// Whether a file that is not whole stays where it is.
    pub(crate) fn leaves_incomplete_file(&self) -> bool {
        matches!(self, Self::Output { operation, .. } if *operation == REMOVE_INCOMPLETE)
    }

    /// Whether every further entry would fail as well.
    pub(crate) fn stops_everything(&self) -> bool {
        if let Self::OutputLimit { .. } = self {
            return true;
        }
        if let Self::Image(error) = self {
            return matches!(error.kind(), ferrofs_image::ErrorKind::WorkLimit { .. });
        }
        let Self::Output { operation, source } = self else { return false };
        let code = source.raw_os_error().map(Errno::from_raw_os_error);
        // A single attribute may be too large for a file system that has room for files.
        *operation != SET_XATTR && matches!(code, Some(Errno::NOSPC | Errno::DQUOT | Errno::ROFS))
    }
}

/// The operation whose failure leaves a file that is not whole.
pub(crate) const REMOVE_INCOMPLETE: &str = "cannot remove the partial file";

/// The operation whose errors never stop an extraction.
pub(crate) const SET_XATTR: &str = "cannot set an extended attribute";

impl From<ferrofs_image::Error> for ErrorKind {
    fn from(error: ferrofs_image::Error) -> Self {
        Self::Image(error)
    }
}

impl fmt::Display for ErrorKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Image(error) => error.fmt(f),
            Self::Output { operation, source } => write!(f, "{operation}: {source}"),
            Self::NoProc { operation } => {
                write!(f, "{operation}: /proc is not mounted (mount it, or run this as root)")
            }
            Self::NotEmpty => f.write_str("the destination is not empty"),
            Self::Leftover { name } => {
                let name = String::from_utf8_lossy(name);
                write!(f, "the destination has {name}, which a killed extraction has left")
            }
            Self::NotPublished { source, temporary } => {
                let name = String::from_utf8_lossy(temporary);
                write!(f, "{source}; what was extracted is in {name}, beside it")
            }
            Self::Exists => f.write_str("it exists already"),
            Self::DirectoryInTheWay => f.write_str("a directory is in the way"),
            Self::UnsafeName => f.write_str("the name would lead out of its directory"),
            Self::Replaced => f.write_str("another process replaced it during the extraction"),
            Self::Short { delivered, size } => {
                write!(f, "its contents end after {delivered} of {size} bytes")
            }
            Self::Torn { end, start } => {
                write!(f, "its index contradicts itself: byte {start} follows byte {end}")
            }
            Self::Panicked => f.write_str("the code that extracted it panicked"),
            Self::Threads(error) => write!(f, "cannot create threads: {error}"),
            Self::NothingMatches => f.write_str("nothing in the image matches"),
            Self::ZeroFilled { source, zeros, size } => {
                write!(f, "{source}; {zeros} of its {size} bytes are zeros in the archive")
            }
            Self::FirstNameLeftOut => {
                f.write_str("the first name of this hard link is not in the archive")
            }
            Self::OutputLimit { limit } => {
                write!(f, "the output is larger than the limit of {limit} bytes")
            }
            Self::Memory(error) => error.fmt(f),
            Self::Cancelled => f.write_str("cancelled"),
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.path.is_empty() {
            write!(f, "{}: ", String::from_utf8_lossy(&self.path))?;
        }
        self.reason().fmt(f)
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match &self.kind {
            ErrorKind::Image(error) => Some(error),
            ErrorKind::Output { source, .. } => Some(source),
            ErrorKind::Threads(error) => Some(error),
            ErrorKind::Memory(error) => Some(error),
            ErrorKind::NotPublished { source, .. } => match &**source {
                ErrorKind::Output { source, .. } => Some(source),
                _ => None,
            },
            ErrorKind::ZeroFilled { .. } => {
                self.kind.in_image().map(|error| error as &(dyn std::error::Error + 'static))
            }
            _ => None,
        }
    }
}

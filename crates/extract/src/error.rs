//! The one error of this crate: what went wrong, and at which path.

use std::{fmt, io};

use ferrofs_image::{Inode, Nid};
use rustix::io::Errno;

/// The result of an extraction or of a part of it.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What went wrong, with its path.
#[derive(Debug)]
pub struct Error {
    kind: ErrorKind,
    path: Vec<u8>,
    /// The inode that was being written, and the byte where it lies.
    inode: Option<(Nid, u64)>,
}

/// What went wrong.
#[derive(Debug)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The image could not be read.
    Image(ferrofs_image::Error),
    /// The host refused an operation.
    Output {
        /// What was tried, as in "cannot create file".
        operation: &'static str,
        /// What the host answered.
        source: io::Error,
    },
    /// The destination has entries already, and they must not be replaced.
    NotEmpty,
    /// Something with this name exists already, and it must not be replaced.
    Exists,
    /// A directory stands where something else belongs; directories are never removed.
    DirectoryInTheWay,
    /// A name that could lead out of its directory.
    UnsafeName,
    /// What was created a moment ago is not there any more, or is something else.
    Replaced,
    /// The contents of a file ended before its size.
    Short {
        /// Bytes that the image delivered.
        delivered: u64,
        /// The size of the file.
        size: u64,
    },
    /// The parts of a file do not meet: its index contradicts itself.
    Torn {
        /// Where a part ends.
        end: u64,
        /// Where the next one starts.
        start: u64,
    },
    /// The thread that worked on it panicked. That is a mistake in this library, or in a source of
    /// the caller's own; everything else is still extracted.
    WorkerPanicked,
    /// Threads could not be arranged for.
    Threads(ferrofs_workers::Error),
    /// A path to extract is not a well-formed pattern.
    Pattern(globset::Error),
    /// A path to extract names nothing in the image.
    NothingMatches,
    /// Reading the image panicked: its source, or a defect of this program.
    Panicked,
    /// A file of a tar could not be read in full after its header was written.
    ZeroFilled {
        /// Why its first bytes that are missing could not be read.
        source: Box<ErrorKind>,
        /// How many of its bytes are zeros instead.
        zeros: u64,
        /// The size of the file.
        size: u64,
    },
    /// The file that this is another name of was left out of the tar.
    FirstNameLeftOut,
    /// The memory budget has no room.
    Memory(ferrofs_workers::Error),
    /// The caller's [`CancelToken`](ferrofs_workers::CancelToken) was cancelled.
    Cancelled,
}

impl Error {
    pub(crate) fn new(kind: ErrorKind, path: &[u8]) -> Self {
        Self { kind, path: path.to_vec(), inode: None }
    }

    /// The same, about an inode of the image.
    pub(crate) fn about(mut self, inode: &Inode) -> Self {
        self.inode = Some((inode.nid(), inode.offset()));
        self
    }

    /// What went wrong.
    #[must_use]
    pub fn kind(&self) -> &ErrorKind {
        &self.kind
    }

    /// The path it concerns: inside the image, with a leading `/`; or the destination's; or a
    /// pattern as it was given. It is empty for the image as a whole.
    #[must_use]
    pub fn path(&self) -> &[u8] {
        &self.path
    }

    /// The inode in question.
    #[must_use]
    pub fn nid(&self) -> Option<Nid> {
        match self.kind.in_image() {
            Some(error) => error.nid(),
            None => self.inode.map(|(nid, _)| nid),
        }
    }

    /// The byte in question: of the image's data, or where the inode lies.
    #[must_use]
    pub fn offset(&self) -> Option<u64> {
        match self.kind.in_image() {
            Some(error) => error.offset(),
            None => self.inode.map(|(_, offset)| offset),
        }
    }

    /// What went wrong and with which inode: the message without the path.
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
            // Errors of the image say their place themselves.
            _ => kind.fmt(f),
        }
    }
}

impl ErrorKind {
    pub(crate) fn output(operation: &'static str) -> impl Fn(Errno) -> Self {
        move |errno| Self::Output { operation, source: errno.into() }
    }

    /// The error of the image that it comes from.
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
            Self::NotEmpty => f.write_str("the destination is not empty"),
            Self::Exists => f.write_str("exists already"),
            Self::DirectoryInTheWay => f.write_str("a directory is in the way"),
            Self::UnsafeName => f.write_str("the name could lead out of its directory"),
            Self::Replaced => f.write_str("was replaced by somebody else while it was extracted"),
            Self::Short { delivered, size } => {
                write!(f, "its contents end after {delivered} of {size} bytes")
            }
            Self::Torn { end, start } => {
                write!(f, "its index contradicts itself: byte {start} follows byte {end}")
            }
            Self::WorkerPanicked => f.write_str("the thread that worked on it panicked"),
            Self::Threads(error) => write!(f, "cannot arrange for threads: {error}"),
            Self::Pattern(error) => write!(f, "not a pattern: {error}"),
            Self::NothingMatches => f.write_str("nothing in the image matches"),
            Self::Panicked => f.write_str("reading it panicked"),
            Self::ZeroFilled { source, zeros, size } => {
                write!(f, "{source}; {zeros} of its {size} bytes are zeros in the tar")
            }
            Self::FirstNameLeftOut => {
                f.write_str("another name of a file that was left out of the tar")
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
            ErrorKind::Pattern(error) => Some(error),
            ErrorKind::Threads(error) => Some(error),
            ErrorKind::Memory(error) => Some(error),
            ErrorKind::ZeroFilled { .. } => {
                self.kind.in_image().map(|error| error as &(dyn std::error::Error + 'static))
            }
            _ => None,
        }
    }
}

//! The error of this crate: its kind, the path, and the byte of it.

use std::path::{Path, PathBuf};
use std::{fmt, io};

/// The result of a build or of a part of it.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What went wrong, and where.
#[derive(Debug)]
pub struct Error {
    kind: ErrorKind,
    /// The file of the source, the archive or the image; empty if there is none.
    path: PathBuf,
    /// The byte in it, if there is one.
    offset: Option<u64>,
}

/// What went wrong.
#[derive(Debug)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The host refused to read the source.
    Input {
        /// What was tried, as in "cannot open".
        operation: &'static str,
        /// What the host answered.
        source: io::Error,
    },
    /// The host refused to write the image.
    Output {
        /// What was tried.
        operation: &'static str,
        /// What the host answered.
        source: io::Error,
    },
    /// Something has the name of the output already.
    Exists,
    /// A source file became shorter, longer or another one while it was read.
    SourceChanged {
        /// The difference, as in "its size was 10 bytes and is now 5".
        how: String,
    },
    /// The source holds something that an image cannot.
    Unsupported(String),
    /// Options that exclude each other, or a value out of its range.
    InvalidOptions(String),
    /// A value that the format cannot store.
    Format(ferrofs_ondisk::Error),
    /// An encoder failed.
    Encoder(ferrofs_codec::Error),
    /// Threads or memory are not available.
    Workers(ferrofs_workers::Error),
    /// An archive is damaged, or contains what no archive may contain.
    Archive(String),
    /// The decoder of an archive needs more memory for its window than it may take.
    WindowTooLong {
        /// The compression.
        format: &'static str,
        /// The bytes that the window takes. `None`: it is not the first of an xz file, whose decoder does not say.
        window_bytes: Option<u64>,
        /// The bytes that it may take.
        limit_bytes: u64,
    },
    /// [`BuildObserver::inspect`](crate::BuildObserver::inspect) rejected the image.
    Rejected(String),
    /// The build was cancelled.
    Cancelled,
    /// A bug of this program.
    Internal(&'static str),
}

impl Error {
    /// An error of no particular place.
    #[must_use]
    pub fn new(kind: ErrorKind) -> Self {
        Self { kind, path: PathBuf::new(), offset: None }
    }

    /// The same error at `path`, unless it has a path already.
    #[must_use]
    pub fn at(mut self, path: impl AsRef<Path>) -> Self {
        if self.path.as_os_str().is_empty() {
            self.path = path.as_ref().to_path_buf();
        }
        self
    }

    /// The same error at byte `offset` of its path, unless it has one already.
    #[must_use]
    pub fn at_byte(mut self, offset: u64) -> Self {
        self.offset.get_or_insert(offset);
        self
    }

    /// What went wrong.
    #[must_use]
    pub fn kind(&self) -> &ErrorKind {
        &self.kind
    }

    /// The path it went wrong at; empty if there is none.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The byte of the path.
    #[must_use]
    pub fn offset(&self) -> Option<u64> {
        self.offset
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.path.as_os_str().is_empty() {
            write!(f, "{}: ", self.path.display())?;
        }
        if let Some(offset) = self.offset {
            write!(f, "byte {offset}: ")?;
        }
        write!(f, "{}", self.kind)
    }
}

impl fmt::Display for ErrorKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Input { operation, source } | Self::Output { operation, source } => {
                write!(f, "{operation}: {source}")
            }
            Self::Exists => f.write_str("exists already"),
            Self::SourceChanged { how } => write!(f, "changed while it was read: {how}"),
            Self::Unsupported(what)
            | Self::InvalidOptions(what)
            | Self::Archive(what)
            | Self::Rejected(what) => f.write_str(what),
            Self::WindowTooLong { format, window_bytes, limit_bytes } => {
                write!(f, "the {format} data has a window of ")?;
                if let Some(bytes) = window_bytes {
                    write!(f, "{bytes} bytes, and {limit_bytes} are allowed for it")?;
                } else {
                    write!(f, "more than the {limit_bytes} bytes that are allowed for it")?;
                }
                f.write_str("; a larger --memory allows more")
            }
            Self::Format(error) => write!(f, "{error}"),
            Self::Encoder(error) => write!(f, "{error}"),
            Self::Workers(error) => write!(f, "{error}"),
            Self::Cancelled => f.write_str("cancelled"),
            Self::Internal(what) => write!(f, "internal error: {what}"),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match &self.kind {
            ErrorKind::Input { source, .. } | ErrorKind::Output { source, .. } => Some(source),
            ErrorKind::Format(error) => Some(error),
            ErrorKind::Encoder(error) => Some(error),
            ErrorKind::Workers(error) => Some(error),
            _ => None,
        }
    }
}

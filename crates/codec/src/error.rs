//! Why a pcluster was not decoded or encoded, or a decoder or encoder was not made.

use std::fmt;

use crate::stream::Algorithm;

/// What a [`Decoder`](crate::Decoder) or an [`Encoder`](crate::Encoder) failed with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Error {
    kind: ErrorKind,
    algorithm: Algorithm,
}

/// What went wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The input holds no stream: it is empty or all zeros.
    EmptyInput,
    /// The stream breaks its format, or it ended early and the library does not say where.
    ///
    /// LZ4 and MicroLZMA streams that yield too much also end here, as their decoders cannot
    /// detect it.
    Corrupt,
    /// The stream ended before the output was full.
    TooShort {
        /// The bytes that it yielded.
        got: usize,
        /// The bytes that were wanted.
        wanted: usize,
    },
    /// The whole stream was wanted and it yields more than the output holds.
    TooLong,
    /// An input or output longer than the library can count, or than the encoder was made for.
    TooLarge,
    /// The settings of this decoder do not name the algorithm.
    NotConfigured,
    /// The memory for a decoder or encoder is not available.
    OutOfMemory,
    /// A window or dictionary size that EROFS does not allow, or a frame whose window is larger
    /// than the one that was configured.
    UnsupportedWindow,
    /// An LZ4 match reaches back farther than the image declares.
    DistanceTooFar {
        /// How far, in bytes.
        distance: usize,
        /// How far it may, in bytes.
        limit: usize,
    },
    /// The caller gave fewer pages than the window needs, or pages shorter than
    /// [`LZ4_WINDOW_PAGE_BYTES`](crate::LZ4_WINDOW_PAGE_BYTES).
    WindowTooSmall {
        /// The usable pages, counted to the first that is too short.
        pages: usize,
        /// The pages that are needed.
        needed: usize,
    },
    /// The requested part is not inside of the extent: a mistake of the caller.
    OutsideExtent,
    /// A level that the algorithm does not have.
    UnsupportedLevel,
    /// Pclusters or extents are empty or longer than EROFS allows.
    UnsupportedLength,
    /// The library refused to encode. No input is known that causes it.
    EncodingFailed,
}

impl Error {
    #[cold]
    pub(crate) fn new(algorithm: Algorithm, kind: ErrorKind) -> Self {
        Self { kind, algorithm }
    }

    /// What went wrong.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }

    /// The algorithm that was asked for.
    #[must_use]
    pub fn algorithm(&self) -> Algorithm {
        self.algorithm
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.algorithm, self.kind)
    }
}

impl fmt::Display for ErrorKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::EmptyInput => f.write_str("the input is empty"),
            Self::Corrupt => f.write_str("the stream is corrupt"),
            Self::TooShort { got, wanted } => {
                write!(f, "the stream ended after {got} of {wanted} bytes")
            }
            Self::TooLong => {
                f.write_str("the stream decodes to more bytes than the output can hold")
            }
            Self::TooLarge => f.write_str("the buffer is longer than this codec supports"),
            Self::NotConfigured => f.write_str("this decoder is not configured"),
            Self::OutOfMemory => f.write_str("out of memory"),
            Self::UnsupportedWindow => f.write_str("the window size is not supported"),
            Self::DistanceTooFar { distance, limit } => {
                write!(f, "match distance {distance} exceeds the declared maximum {limit}")
            }
            Self::WindowTooSmall { pages, needed } => {
                write!(f, "the window needs {needed} pages, but has {pages}")
            }
            Self::OutsideExtent => f.write_str("the requested range lies outside the extent"),
            Self::UnsupportedLevel => f.write_str("the level does not exist"),
            Self::UnsupportedLength => {
                f.write_str("the pcluster or extent length is not supported")
            }
            Self::EncodingFailed => f.write_str("the library failed to encode"),
        }
    }
}

impl std::error::Error for Error {}

/// The result of a decoder that stopped without an error after `got` bytes.
#[inline]
pub(crate) fn filled(got: usize, wanted: usize) -> Result<(), ErrorKind> {
    if got == wanted { Ok(()) } else { Err(ErrorKind::TooShort { got, wanted }) }
}

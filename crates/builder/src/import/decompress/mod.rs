//! Compressed archives as streams of what is in them: gzip, xz and zstd, recognised by their first bytes.
//!
//! Several members, streams or frames in a row are one stream. Checksums are verified. Memory is bounded by a
//! constant for each kind, whatever a header asks for. Damage is reported as a [`CorruptStream`] inside the
//! [`io::Error`], with the byte of the compressed stream.

mod counting_reader;
mod crc32;
mod gzip;
mod xz;
mod zstd;

use std::fmt;
use std::io::{self, Read};

pub(super) use counting_reader::CountingReader;

/// How an archive is compressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Compression {
    /// Not at all.
    Plain,
    /// gzip (RFC 1952), one member or several.
    Gzip,
    /// xz, one stream or several.
    Xz,
    /// Zstandard (RFC 8878), one frame or several.
    Zstd,
}

/// What the first bytes of a stream are compared with.
const MAGIC_BYTES_MAX: usize = 6;

impl Compression {
    /// What the first bytes of a stream say.
    pub(super) fn of(start: &[u8]) -> Self {
        match start {
            [0x1F, 0x8B, ..] => Self::Gzip,
            [0xFD, b'7', b'z', b'X', b'Z', 0, ..] => Self::Xz,
            // A frame, or one of the frames that are to be skipped.
            [0x28, 0xB5, 0x2F, 0xFD, ..] | [0x50..=0x5F, 0x2A, 0x4D, 0x18, ..] => Self::Zstd,
            _ => Self::Plain,
        }
    }

    /// What `input` says at its start, of which nothing is used up.
    pub(super) fn detect(input: &mut CountingReader) -> io::Result<Self> {
        Ok(Self::of(input.peek(MAGIC_BYTES_MAX)?))
    }

    /// A kind of compression that is known, and not read here, by the first bytes of a stream.
    pub(super) fn foreign(start: &[u8]) -> Option<&'static str> {
        match start {
            [b'B', b'Z', b'h', b'1'..=b'9', ..] => Some("bzip2"),
            [0x5D, 0, 0, ..] => Some("lzma"),
            [b'L', b'Z', b'I', b'P', ..] => Some("lzip"),
            [0x04, 0x22, 0x4D, 0x18, ..] => Some("lz4"),
            [0x1F, 0x9D, ..] => Some("compress"),
            [0x89, b'L', b'Z', b'O', 0, ..] => Some("lzop"),
            _ => None,
        }
    }

    /// The stream inside `input`.
    pub(super) fn reader(self, input: CountingReader) -> Box<dyn Read + Send> {
        match self {
            Self::Plain => Box::new(input),
            Self::Gzip => Box::new(gzip::GzipReader::new(input)),
            Self::Xz => Box::new(xz::XzStream::new(input)),
            Self::Zstd => Box::new(zstd::ZstdReader::new(input)),
        }
    }
}

/// A compressed stream is not what it should be.
#[derive(Debug)]
pub(super) struct CorruptStream {
    /// What is wrong.
    pub(super) what: String,
    /// The byte of the compressed stream at which it was noticed.
    pub(super) offset: u64,
}

impl CorruptStream {
    /// The same as an error of reading.
    fn error(what: impl Into<String>, offset: u64) -> io::Error {
        io::Error::new(io::ErrorKind::InvalidData, Self { what: what.into(), offset })
    }
}

impl fmt::Display for CorruptStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} at byte {} of the compressed stream", self.what, self.offset)
    }
}

impl std::error::Error for CorruptStream {}

#[cfg(test)]
mod tests;

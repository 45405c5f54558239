//! What callers and codecs say about a compressed stream: its format, its place in the pcluster,
//! how much of it to decode, and how much was encoded. It knows no number of the disk format.

use std::fmt;

/// A compressed format that EROFS knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Algorithm {
    /// An LZ4 block, without a frame.
    Lz4,
    /// MicroLZMA: an LZMA1 stream whose first byte is its inverted properties byte.
    Lzma,
    /// Raw DEFLATE, without a zlib or gzip wrapper.
    Deflate,
    /// One Zstandard frame.
    Zstd,
}

impl fmt::Display for Algorithm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Lz4 => "lz4",
            Self::Lzma => "lzma",
            Self::Deflate => "deflate",
            Self::Zstd => "zstd",
        })
    }
}

/// How the compressed stream lies in its pcluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Padding {
    /// Zeros on the left; the stream ends with the pcluster.
    ///
    /// LZ4 in images with the feature `LZ4_0PADDING`, and always the other three algorithms. No
    /// stream can start with a zero byte then.
    Left,
    /// The stream starts at byte 0, and padding of any content may follow it.
    ///
    /// Only LZ4, in images from before `LZ4_0PADDING`. The other algorithms read it as [`Left`],
    /// as Linux does.
    ///
    /// [`Left`]: Padding::Left
    Right,
}

/// The stream behind its padding; empty when there is none.
#[inline]
pub(crate) fn without_leading_zeros(input: &[u8]) -> &[u8] {
    match input.first() {
        Some(0) => skip_zeros(input),
        _ => input,
    }
}

/// Sixteen at a time: the last pcluster of a file can be nearly all padding.
fn skip_zeros(input: &[u8]) -> &[u8] {
    let (groups, _) = input.as_chunks::<16>();
    let zero_groups = groups.iter().take_while(|group| **group == [0; 16]).count();
    let rest = &input[zero_groups * 16..];
    let zeros = rest.iter().take_while(|byte| **byte == 0).count();
    &rest[zeros..]
}

/// How much of the stream is to be decoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DecodeMode {
    /// The stream must yield exactly `output.len()` bytes and end there.
    Whole,
    /// The first `output.len()` bytes of a stream that may yield more.
    ///
    /// What lies behind them in the stream is not judged, so a prefix may decode although the whole
    /// does not. Input that ends before the output is full is an error. But a MicroLZMA stream does
    /// not say where it ends: asked for more than went into it, it may make a few bytes up from the
    /// last bits of its range coder, and may be at its end behind them, so request no more.
    Prefix,
}

/// A part of an LZ4 extent, for [`Decoder::decode_lz4_part`](crate::Decoder::decode_lz4_part); it
/// is as long as the output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lz4Part {
    /// How the stream lies in its pcluster.
    pub padding: Padding,
    /// The decoded length of the extent, in bytes.
    pub extent_bytes: usize,
    /// The bytes of the extent before the part.
    pub skip_bytes: usize,
    /// [`DecodeMode::Whole`]: the stream is decoded to its end and judged as that of an extent of
    /// `extent_bytes`. [`DecodeMode::Prefix`]: decoding stops where the part ends, and what is
    /// behind it is not looked at.
    pub mode: DecodeMode,
}

/// How much input one encoded stream holds, and how long the stream is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct EncodedSizes {
    /// The bytes of input, from its start, that the stream yields: more than `output_bytes`.
    pub input_bytes: usize,
    /// The bytes of the stream, at the start of the output.
    pub output_bytes: usize,
}

#[cfg(test)]
mod tests {
    use super::without_leading_zeros;

    #[test]
    fn every_count_of_zeros_is_skipped_and_no_other_byte() {
        for zeros in 0..70 {
            for tail in [&[][..], &[1], &[7, 0, 0, 9, 0]] {
                let input = [vec![0; zeros], tail.to_vec()].concat();
                assert_eq!(without_leading_zeros(&input), tail);
            }
        }
    }
}

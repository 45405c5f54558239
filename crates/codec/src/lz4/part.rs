//! Which bytes of an extent a caller asks for, when it does not take the extent from its start.

use crate::padding::Padding;
use crate::want::DecodeMode;

/// A part of an LZ4 extent, for [`Decoder::decode_lz4_part`](crate::Decoder::decode_lz4_part); it is
/// as long as the output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lz4Part {
    /// How the stream lies in its pcluster.
    pub padding: Padding,
    /// The decoded length of the extent, in bytes.
    pub extent_bytes: usize,
    /// The bytes of the extent before the part.
    pub skip_bytes: usize,
    /// [`DecodeMode::Whole`]: the stream is decoded to its end and judged as that of an extent of
    /// `extent_bytes`. [`DecodeMode::Prefix`]: decoding stops where the part ends, and what is behind it
    /// is not looked at.
    pub want: DecodeMode,
}

//! LZ4 blocks: whole outputs by the reference C code, parts of an extent through a window of pages.
//!
//! This file calls liblz4's decoder. `sequences` reads the structure of a block by the library's
//! own rules, so that it accepts what the library accepts; it checks distances before the library
//! runs, and drives `window`, which decodes into a ring of pages. LZ4 needs no context and no
//! memory of its own.
#![allow(unsafe_code, reason = "liblz4 is a C library")]

mod block_writer;
pub(crate) mod encode;
mod limited_distance;
mod sequences;
mod window;

use std::ffi::{c_char, c_int};

use crate::error::{ErrorKind, filled};
use crate::stream::{DecodeMode, Lz4Part, Padding, without_leading_zeros};
use sequences::{BlockEnd, Sequences};

pub use window::{LZ4_WINDOW_PAGE_BYTES, lz4_window_pages};

/// What LZ4 is configured with.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Lz4Decoder {
    /// The farthest that a match may reach back, in bytes; not 0.
    max_distance: u16,
}

impl Lz4Decoder {
    /// As declared by an image, where 0 stands for 65,535 (docs/format.md F5).
    pub(crate) fn new(max_distance: u16) -> Self {
        Self { max_distance: if max_distance == 0 { u16::MAX } else { max_distance } }
    }

    /// Decodes the block in `input`.
    ///
    /// A right-padded block does not say where it ends, so all that can be asked of it is to fill
    /// the output.
    pub(crate) fn decode(
        self,
        padding: Padding,
        input: &[u8],
        output: &mut [u8],
        mode: DecodeMode,
    ) -> Result<(), ErrorKind> {
        let stream = stream(padding, input)?;
        let end = end(padding, mode);
        if self.must_check(stream, end) {
            self.check(stream, end, output.len())?;
        }
        decode_block(stream, output, end)
    }

    /// Decodes a part of the extent in `input` through `pages`.
    pub(crate) fn decode_part<P: AsMut<[u8]>>(
        self,
        input: &[u8],
        part: Lz4Part,
        output: &mut [u8],
        pages: &mut [P],
    ) -> Result<(), ErrorKind> {
        let stream = stream(part.padding, input)?;
        c_length(stream)?;
        window::decode(self.max_distance, stream, part, output, pages)
    }

    /// Whether there may be a distance that the library does not refuse and we do.
    ///
    /// Nothing beyond the largest distance can be written, so images that declare it, which nearly
    /// all do, pay nothing for a whole extent. Looking for a pair of zeros is cheaper than
    /// following the sequences, and most streams of text have none.
    fn must_check(self, stream: &[u8], end: BlockEnd) -> bool {
        self.max_distance < u16::MAX
            || end == BlockEnd::Open && stream.array_windows().any(|pair| *pair == [0, 0])
    }

    /// Follows the sequences as far as the library would, for the sake of their distances.
    ///
    /// No encoder writes the distance 0. The library takes it for a run of zeros, but near the end
    /// of a partial output it leaves what stood there before, which may be a piece of another file.
    fn check(self, stream: &[u8], end: BlockEnd, wanted: usize) -> Result<(), ErrorKind> {
        if wanted > 0 {
            let mut sequences = Sequences::new(stream, wanted, end, self.max_distance);
            while !sequences.next()?.is_last {}
        }
        Ok(())
    }
}

/// The block without its padding.
fn stream(padding: Padding, input: &[u8]) -> Result<&[u8], ErrorKind> {
    let stream = match padding {
        Padding::Left => without_leading_zeros(input),
        Padding::Right => input,
    };
    if stream.is_empty() { Err(ErrorKind::EmptyInput) } else { Ok(stream) }
}

/// Where a block has to end.
fn end(padding: Padding, mode: DecodeMode) -> BlockEnd {
    match (padding, mode) {
        (Padding::Left, DecodeMode::Whole) => BlockEnd::Exact,
        (Padding::Left, DecodeMode::Prefix) | (Padding::Right, _) => BlockEnd::Open,
    }
}

// Not declared by lz4-sys, but compiled into the archive that it links.
unsafe extern "C" {
    fn LZ4_decompress_safe_partial(
        source: *const c_char,
        target: *mut c_char,
        source_bytes: c_int,
        wanted_bytes: c_int,
        capacity_bytes: c_int,
    ) -> c_int;
}

/// Fills `output` with what `stream` yields.
fn decode_block(stream: &[u8], output: &mut [u8], end: BlockEnd) -> Result<(), ErrorKind> {
    let source_bytes = c_length(stream)?;
    let capacity_bytes = c_length(output)?;
    let source = stream.as_ptr().cast();
    let target = output.as_mut_ptr().cast();
    let got = match end {
        BlockEnd::Exact => {
            // SAFETY: `source` is readable for `source_bytes` and `target` writable for
            // `capacity_bytes`, as both are the lengths of live slices, which cannot overlap since
            // one is borrowed mutably. The function touches nothing else, whatever the input.
            unsafe { lz4_sys::LZ4_decompress_safe(source, target, source_bytes, capacity_bytes) }
        }
        BlockEnd::Open => {
            // SAFETY: as above; the wanted length is not more than the capacity.
            unsafe {
                LZ4_decompress_safe_partial(
                    source,
                    target,
                    source_bytes,
                    capacity_bytes,
                    capacity_bytes,
                )
            }
        }
    };
    let got = usize::try_from(got).map_err(|_| ErrorKind::Corrupt)?;
    filled(got, output.len())
}

/// A length that the library can count.
fn c_length(slice: &[u8]) -> Result<c_int, ErrorKind> {
    c_int::try_from(slice.len()).map_err(|_| ErrorKind::TooLarge)
}

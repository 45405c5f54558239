//! xz: any number of streams with their checks. The library decodes them; the length of the first window is read from
//! its header here, for the message of one that is too long.

use std::io::{self, Read};

use lzma_rust2::XzReader;

use super::window::WindowMemory;
use super::{CorruptStream, CountingReader};

/// Memory of a decoder beside its window, in KiB, as the library counts it.
const DECODER_KIB: u64 = 104;
/// Bytes of the header of a stream.
const STREAM_HEADER_BYTES: usize = 12;
/// Bytes of the header of a block at most.
const BLOCK_HEADER_BYTES_MAX: usize = 1024;
/// The number of the filter that has a window.
const LZMA2: u64 = 0x21;

/// The decompressed stream of an xz file.
pub(super) struct XzStream {
    inner: XzReader<CountingReader>,
    window: WindowMemory,
}

impl XzStream {
    /// # Errors
    /// The first window is too long, or the host cannot read.
    pub(super) fn new(mut input: CountingReader, mut window: WindowMemory) -> io::Result<Self> {
        let header = input.peek(STREAM_HEADER_BYTES + BLOCK_HEADER_BYTES_MAX)?;
        if let Some(bytes) = first_window(header) {
            let offset = input.position();
            window.reserve("xz", bytes, offset)?;
            // A later block may have a longer one, of which only the library knows.
            window.reserve("xz", window.bytes_max(), offset)?;
        }
        let kib = (window.bytes_max() / 1024).saturating_add(DECODER_KIB);
        let kib = u32::try_from(kib).unwrap_or(u32::MAX);
        Ok(Self { inner: XzReader::new_mem_limit(input, true, kib), window })
    }
}

impl Read for XzStream {
    fn read(&mut self, output: &mut [u8]) -> io::Result<usize> {
        self.inner.read(output).map_err(|error| match error.kind() {
            io::ErrorKind::OutOfMemory => {
                self.window.too_long("xz", None, self.inner.inner().position())
            }
            io::ErrorKind::InvalidData
            | io::ErrorKind::InvalidInput
            | io::ErrorKind::UnexpectedEof
            | io::ErrorKind::Unsupported
            | io::ErrorKind::Other => {
                let at = self.inner.inner().position();
                CorruptStream::error(format!("the xz data cannot be decoded ({error})"), at)
            }
            _ => error,
        })
    }
}

/// The bytes of the window of the first block, if there is a block and its header is whole. Whatever else is wrong with it,
/// the library reports.
fn first_window(start: &[u8]) -> Option<u64> {
    let header = start.get(STREAM_HEADER_BYTES..)?;
    let (&size, header) = header.split_first()?;
    // 0 is the index behind the last block.
    let mut fields = header.get(..usize::from(size).checked_mul(4)?)?;
    let flags = take(&mut fields, 1)?.first().copied()?;
    for has_size in [flags & 0x40 != 0, flags & 0x80 != 0] {
        if has_size {
            number(&mut fields)?;
        }
    }
    for _ in 0..=flags & 3 {
        let filter = number(&mut fields)?;
        let property_bytes = usize::try_from(number(&mut fields)?).ok()?;
        let properties = take(&mut fields, property_bytes)?;
        if let (LZMA2, [bits]) = (filter, properties) {
            return match bits {
                0..=39 => Some((2 | u64::from(bits & 1)) << (bits / 2 + 11)),
                40 => Some(u64::from(u32::MAX)),
                _ => None,
            };
        }
    }
    None
}

fn take<'a>(fields: &mut &'a [u8], count: usize) -> Option<&'a [u8]> {
    let (taken, rest) = fields.split_at_checked(count)?;
    *fields = rest;
    Some(taken)
}

/// A number of seven bits a byte, the lowest first.
fn number(fields: &mut &[u8]) -> Option<u64> {
    let mut value = 0;
    for shift in (0..63).step_by(7) {
        let byte = take(fields, 1)?.first().copied()?;
        value |= u64::from(byte & 0x7F) << shift;
        if byte & 0x80 == 0 {
            return Some(value);
        }
    }
    None
}

//! xz: any number of streams, with the checks that they carry.

use std::io::{self, Read};

use lzma_rust2::XzReader;

use super::{CorruptStream, CountingReader};

/// What a stream may ask for, in KiB: `xz -9` needs 65 MiB, and a dictionary of 256 MiB is taken, too. Above
/// that a header of a few bytes would decide about the memory of the host.
const MEMORY_KIB_MAX: u32 = (256 << 10) + (4 << 10);

/// The stream inside an xz file.
pub(super) struct XzStream {
    inner: XzReader<CountingReader>,
}

impl XzStream {
    pub(super) fn new(input: CountingReader) -> Self {
        Self { inner: XzReader::new_mem_limit(input, true, MEMORY_KIB_MAX) }
    }
}

impl Read for XzStream {
    fn read(&mut self, output: &mut [u8]) -> io::Result<usize> {
        self.inner.read(output).map_err(|error| match error.kind() {
            io::ErrorKind::InvalidData
            | io::ErrorKind::InvalidInput
            | io::ErrorKind::UnexpectedEof
            | io::ErrorKind::OutOfMemory
            | io::ErrorKind::Unsupported
            | io::ErrorKind::Other => {
                let at = self.inner.inner().position();
                CorruptStream::error(format!("the xz data cannot be decoded ({error})"), at)
            }
            _ => error,
        })
    }
}

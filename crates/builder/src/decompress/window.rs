//! The memory for the window of a decoder: the header of an archive says how long it is, so it is reserved before a
//! decoder allocates it. The decoders of xz and zstd call this; that of gzip has a window of 32 KiB.
//!
//! While a window is reserved, the store of the tree has so much less memory. All of it comes back when the
//! decoder is dropped.

use std::io;

use ferrofs_workers::memory::trim_heap;

use crate::spill::{MemoryLoan, SpillStore};
use crate::{Error, ErrorKind};

/// The longest window without other options: that of `xz --lzma2=dict=256MiB`, and twice that of `zstd --long=27`.
pub(crate) const WINDOW_BYTES_MAX: u64 = 256 << 20;

/// What the window of one decoder may take.
#[derive(Debug)]
pub(crate) struct WindowMemory {
    bytes_max: u64,
    store: SpillStore,
    loan: Option<MemoryLoan>,
}

impl WindowMemory {
    /// At most `bytes_max` bytes, which `store` lends.
    pub(crate) fn new(bytes_max: u64, store: SpillStore) -> Self {
        Self { bytes_max, store, loan: None }
    }

    pub(super) fn bytes_max(&self) -> u64 {
        self.bytes_max
    }

    /// Reserves memory for a window that takes `bytes` bytes, in place of what was reserved before. The header that asks for
    /// it is at byte `offset` of the compressed stream, or before.
    ///
    /// # Errors
    /// [`ErrorKind::WindowTooLong`], inside of the read error.
    pub(super) fn reserve(
        &mut self,
        format: &'static str,
        bytes: u64,
        offset: u64,
    ) -> io::Result<()> {
        if bytes > self.bytes_max {
            return Err(self.too_long(format, Some(bytes), offset));
        }
        if self.loan.as_ref().is_none_or(|loan| loan.bytes() < bytes) {
            // The loan before ends first, as the store knows one at a time.
            self.loan = None;
            self.loan = Some(self.store.lend(bytes));
            trim_heap();
        }
        Ok(())
    }

    /// The error of a window of `bytes` bytes, `None`: of more than there may be. It is inside of a read error.
    pub(super) fn too_long(
        &self,
        format: &'static str,
        bytes: Option<u64>,
        offset: u64,
    ) -> io::Error {
        let (window_bytes, limit_bytes) = (bytes, self.bytes_max);
        let kind = ErrorKind::WindowTooLong { format, window_bytes, limit_bytes };
        io::Error::other(Error::new(kind).at_byte(offset))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spill::SpillOptions;

    #[test]
    fn a_window_takes_memory_from_the_store_until_it_is_dropped() {
        let options = SpillOptions::default().memory_bytes_max(64 << 20);
        let store = SpillStore::new(options);
        store.set_memory_max(48 << 20);
        let mut window = WindowMemory::new(40 << 20, store.clone());
        for (bytes, left) in [(8, 40), (2, 40), (16, 32), (40, 8)] {
            window.reserve("zstd", bytes << 20, 7).unwrap();
            assert_eq!(store.memory_max(), left << 20);
        }
        let error = window.reserve("zstd", (40 << 20) + 1, 7).unwrap_err().to_string();
        assert_eq!(
            error,
            "byte 7: the zstd data has a window of 41943041 bytes, and 41943040 are allowed for it; a larger \
             --memory allows more"
        );
        drop(window);
        assert_eq!(store.memory_max(), 48 << 20);
    }
}

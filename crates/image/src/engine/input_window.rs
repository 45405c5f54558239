//! The window on the encoded input of a decoder: one read of the storage brings neighbouring
//! clusters, also those of the next file.

use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};

use ferrofs_workers::memory::{AllocPolicy, Buffer};

use crate::error::Result;
use crate::memory::MemoryPool;
use crate::source::{Devices, outside, read_up_to};

/// Bytes to read for a reader that goes through the image in order.
const AHEAD_BYTES: usize = 256 << 10;

/// Bytes to read for a reader that has just jumped.
const JUMP_BYTES: usize = 16 << 10;

/// Bytes of a device that a reader needs, and the bytes that it will need next.
#[derive(Clone, Copy, Debug)]
pub(crate) struct InputRequest {
    pub(crate) device: u16,
    pub(crate) offset: u64,
    pub(crate) bytes: usize,
    /// How far the bytes reach that are needed next, from `offset` on, if that is known: then
    /// exactly those are read together. 0 if it is not.
    pub(crate) run_bytes: usize,
}

/// Threads that hold a decode slot and read the storage now. They use no CPU, so other threads may
/// decode meanwhile.
#[derive(Debug, Default)]
pub(crate) struct StorageReads(AtomicUsize);

impl StorageReads {
    /// How many there are.
    pub(crate) fn count(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }

    /// Counts the calling thread until the guard is dropped. The count is a hint about the use of
    /// CPUs and guards no memory, hence `Relaxed`.
    pub(crate) fn begin(&self) -> StorageRead<'_> {
        self.0.fetch_add(1, Ordering::Relaxed);
        StorageRead(self)
    }
}

/// A thread that reads the storage.
#[derive(Debug)]
pub(crate) struct StorageRead<'a>(&'a StorageReads);

impl Drop for StorageRead<'_> {
    fn drop(&mut self) {
        self.0.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// What fills a window: the storage, the memory for it, and the count of those that read.
#[derive(Clone, Copy, Debug)]
pub(crate) struct InputStorage<'a> {
    pub(crate) devices: &'a Devices,
    pub(crate) memory: &'a MemoryPool,
    pub(crate) reads: &'a StorageReads,
}

/// A window on a device: one read brings neighbouring clusters, also those of the next file.
#[derive(Debug, Default)]
pub(crate) struct InputWindow {
    buffer: Option<Buffer>,
    device: u16,
    start: u64,
    filled: usize,
}

impl InputWindow {
    /// The longest request that [`InputWindow::get`] is meant for.
    pub(crate) const MAX_BYTES: u64 = 1 << 20;

    /// The requested bytes. `policy` says whether to wait for memory.
    pub(crate) fn get(
        &mut self,
        storage: InputStorage<'_>,
        wanted: InputRequest,
        policy: AllocPolicy,
    ) -> Result<&[u8]> {
        let InputRequest { device, offset, bytes, .. } = wanted;
        if self.range(device, offset, bytes).is_none() {
            self.fill(storage, wanted, policy)?;
        }
        let range = self.range(device, offset, bytes);
        Ok(range.and_then(|range| self.buffer.as_ref()?.get(range)).unwrap_or_default())
    }

    /// Bytes that it can hold without more memory.
    pub(crate) fn capacity(&self) -> usize {
        self.buffer.as_ref().map_or(0, |buffer| buffer.len())
    }

    fn range(&self, device: u16, offset: u64, bytes: usize) -> Option<Range<usize>> {
        let start = usize::try_from(offset.checked_sub(self.start)?).ok()?;
        let end = start.checked_add(bytes)?;
        (device == self.device && end <= self.filled).then_some(start..end)
    }

    fn fill(
        &mut self,
        storage: InputStorage<'_>,
        wanted: InputRequest,
        policy: AllocPolicy,
    ) -> Result<()> {
        let InputStorage { devices, memory, reads } = storage;
        let InputRequest { device, offset, bytes, run_bytes } = wanted;
        let length = self.length_for(devices, wanted);
        self.filled = 0;
        let buffer = match self.buffer.take() {
            Some(buffer) if buffer.len() >= length => buffer,
            smaller => {
                // Freed first: no thread waits for memory while it holds some.
                drop(smaller);
                memory.buffer(length.max(run_bytes), policy)?
            }
        };
        let target = self.buffer.insert(buffer).get_mut(..length).unwrap_or_default();
        let place = devices.locate(device, offset)?;
        let reading = reads.begin();
        let got = read_up_to(place.source, place.offset, target)?;
        drop(reading);
        if got < bytes {
            let wanted = u64::try_from(bytes).unwrap_or(u64::MAX);
            return Err(outside(offset, wanted, place.source.current_length()));
        }
        (self.device, self.start, self.filled) = (device, offset, got);
        Ok(())
    }

    /// How many bytes to read for a request.
    fn length_for(&self, devices: &Devices, wanted: InputRequest) -> usize {
        let InputRequest { device, offset, bytes, run_bytes } = wanted;
        if !devices.is_one_source() {
            // A read must not cross from one device into the next.
            return bytes;
        }
        if run_bytes > 0 {
            return bytes.max(run_bytes);
        }
        let filled = u64::try_from(self.filled).unwrap_or(u64::MAX);
        let ahead = u64::try_from(AHEAD_BYTES).unwrap_or(u64::MAX);
        let near = self.start..=self.start.saturating_add(filled).saturating_add(ahead);
        let is_sequential = device == self.device && near.contains(&offset);
        bytes.max(if is_sequential { AHEAD_BYTES } else { JUMP_BYTES })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use ferrofs_ondisk::BlockSize;

    use super::*;

    #[test]
    fn a_window_serves_what_it_has_and_fails_past_the_end() {
        let bytes: Vec<u8> = (0..=255).cycle().take(40_000).collect();
        let size = BlockSize::from_bits(9).unwrap();
        let devices = Devices::new(Arc::new(bytes.clone()), &[], Vec::new(), size).unwrap();
        let memory = MemoryPool::new(MemoryPool::MIN_BYTES).unwrap();
        let reads = StorageReads::default();
        let storage = InputStorage { devices: &devices, memory: &memory, reads: &reads };
        let mut window = InputWindow::default();
        let mut get = |offset: u64, bytes, run_bytes| {
            let wanted = InputRequest { device: 0, offset, bytes, run_bytes };
            window.get(storage, wanted, AllocPolicy::MustSucceed).map(<[u8]>::to_vec)
        };
        for (offset, count) in [(5, 10), (10, 100), (30_000, 9_000), (0, 1), (39_999, 1)] {
            for run_bytes in [0, 20_000] {
                let got = get(offset as u64, count, run_bytes).unwrap();
                assert_eq!(got, &bytes[offset..offset + count]);
            }
        }
        assert!(get(39_999, 2, 0).is_err());
        assert!(get(u64::MAX, 2, 0).is_err());
        assert_eq!(get(7, 1, 0).unwrap(), [7]);
        assert_eq!(reads.count(), 0, "also after reads that failed");
    }
}

//! Bytes of a device around the place that is being read.

use std::ops::Range;

use ferrofs_workers::memory::{AllocPolicy, Buffer};

use crate::devices::Devices;
use crate::error::Result;
use crate::memory::MemoryPool;
use crate::source::{outside, read_up_to};

/// Bytes read ahead of a reader that goes through the image in order.
const AHEAD_BYTES: usize = 256 << 10;
/// Bytes read for one that has just jumped.
const JUMP_BYTES: usize = 16 << 10;

/// What a reader wants of a device, and what it will want next.
#[derive(Clone, Copy, Debug)]
pub(crate) struct InputRequest {
    pub(crate) device: u16,
    pub(crate) offset: u64,
    pub(crate) bytes: usize,
    /// How far behind `offset` the bytes are that will be asked for next, if that is known: then
    /// exactly those come along. 0 if it is not.
    pub(crate) run_bytes: usize,
}

/// A window on a device: neighbouring clusters come with one read, also those of the next file.
#[derive(Debug, Default)]
pub(crate) struct InputWindow {
    buffer: Option<Buffer>,
    device: u16,
    start: u64,
    filled: usize,
}

impl InputWindow {
    /// The most that [`InputWindow::get`] is meant for.
    pub(crate) const MAX_BYTES: u64 = 1 << 20;

    /// The bytes that are wanted. `policy` says whether memory for them may be waited for.
    pub(crate) fn get(
        &mut self,
        devices: &Devices,
        memory: &MemoryPool,
        wanted: InputRequest,
        policy: AllocPolicy,
    ) -> Result<&[u8]> {
        let InputRequest { device, offset, bytes, .. } = wanted;
        if self.range(device, offset, bytes).is_none() {
            self.fill(devices, memory, wanted, policy)?;
        }
        let range = self.range(device, offset, bytes);
        Ok(range.and_then(|range| self.buffer.as_ref()?.get(range)).unwrap_or_default())
    }

    fn range(&self, device: u16, offset: u64, bytes: usize) -> Option<Range<usize>> {
        let start = usize::try_from(offset.checked_sub(self.start)?).ok()?;
        let end = start.checked_add(bytes)?;
        (device == self.device && end <= self.filled).then_some(start..end)
    }

    fn fill(
        &mut self,
        devices: &Devices,
        memory: &MemoryPool,
        wanted: InputRequest,
        policy: AllocPolicy,
    ) -> Result<()> {
        let InputRequest { device, offset, bytes, run_bytes } = wanted;
        let length = self.length_for(devices, wanted);
        self.filled = 0;
        let buffer = match self.buffer.take() {
            Some(buffer) if buffer.len() >= length => buffer,
            smaller => {
                // Given back first: nobody waits for memory with memory in its hands.
                drop(smaller);
                memory.buffer(length.max(run_bytes), policy)?
            }
        };
        let target = self.buffer.insert(buffer).get_mut(..length).unwrap_or_default();
        let place = devices.locate(device, offset)?;
        let got = read_up_to(place.source, place.offset, target)?;
        if got < bytes {
            let wanted = u64::try_from(bytes).unwrap_or(u64::MAX);
            return Err(outside(offset, wanted, place.source.length()));
        }
        (self.device, self.start, self.filled) = (device, offset, got);
        Ok(())
    }

    /// How much is read for what is wanted.
    fn length_for(&self, devices: &Devices, wanted: InputRequest) -> usize {
        let InputRequest { device, offset, bytes, run_bytes } = wanted;
        if !devices.is_one_source() {
            // Addresses of several devices must not run into each other.
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
        let mut window = InputWindow::default();
        let mut get = |offset: u64, bytes, run_bytes| {
            let wanted = InputRequest { device: 0, offset, bytes, run_bytes };
            window.get(&devices, &memory, wanted, AllocPolicy::MustSucceed).map(<[u8]>::to_vec)
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
    }
}

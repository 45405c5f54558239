//! What a thread needs while it decodes: contexts and buffers, leased from the image and given
//! back, so that a read allocates nothing once the image is warm.

use std::ops::{Deref, DerefMut};
use std::sync::{Mutex, PoisonError};

use ferrofs_codec::{Decoder, Settings};

use crate::devices::Devices;
use crate::error::{Error, ErrorKind, Result};
use crate::source::{self, outside, read_up_to};

/// How many idle scratches an image keeps; more than the threads of a large machine.
const KEPT: usize = 64;
/// Bytes read ahead of a reader that goes through the image in order.
const AHEAD_BYTES: usize = 256 << 10;
/// Bytes read for one that has just jumped.
const JUMP_BYTES: usize = 16 << 10;

/// Contexts and buffers of one thread.
#[derive(Debug, Default)]
pub(crate) struct Scratch {
    pub(crate) context: Context,
    pub(crate) window: InputWindow,
    pub(crate) output: Vec<u8>,
}

/// The decoder, made when the first compressed extent is read.
#[derive(Debug, Default)]
pub(crate) struct Context(Option<Decoder>);

impl Context {
    pub(crate) fn decoder(&mut self, settings: &Settings) -> Result<&mut Decoder> {
        let slot = &mut self.0;
        if slot.is_none() {
            *slot = Some(Decoder::new(settings).map_err(ErrorKind::Decode)?);
        }
        slot.as_mut().ok_or_else(|| Error::new(ErrorKind::OutOfMemory { bytes: 0 }))
    }
}

/// The scratches that nobody uses at the moment.
#[derive(Debug, Default)]
pub(crate) struct Scratches(Mutex<Vec<Scratch>>);

impl Scratches {
    /// Takes a scratch, or makes one.
    pub(crate) fn lease(&self) -> Lease<'_> {
        let mut idle = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        Lease { owner: self, scratch: idle.pop().unwrap_or_default() }
    }
}

/// A scratch in use; it returns on drop.
#[derive(Debug)]
pub(crate) struct Lease<'a> {
    owner: &'a Scratches,
    scratch: Scratch,
}

impl Deref for Lease<'_> {
    type Target = Scratch;

    fn deref(&self) -> &Scratch {
        &self.scratch
    }
}

impl DerefMut for Lease<'_> {
    fn deref_mut(&mut self) -> &mut Scratch {
        &mut self.scratch
    }
}

impl Drop for Lease<'_> {
    fn drop(&mut self) {
        let mut idle = self.owner.0.lock().unwrap_or_else(PoisonError::into_inner);
        if idle.len() < KEPT {
            idle.push(std::mem::take(&mut self.scratch));
        }
    }
}

/// Bytes of a device around the place that is being read: neighbouring clusters come with one
/// read, also those of the next file.
#[derive(Debug, Default)]
pub(crate) struct InputWindow {
    buffer: Vec<u8>,
    device: u16,
    start: u64,
    filled: usize,
}

impl InputWindow {
    /// The most that [`InputWindow::get`] is meant for.
    pub(crate) const MAX_BYTES: u64 = 1 << 20;

    /// The `bytes` bytes at `offset` of `device`.
    pub(crate) fn get(
        &mut self,
        devices: &Devices,
        device: u16,
        offset: u64,
        bytes: usize,
    ) -> Result<&[u8]> {
        if self.range(device, offset, bytes).is_none() {
            self.fill(devices, device, offset, bytes)?;
        }
        let range = self.range(device, offset, bytes);
        Ok(range.and_then(|range| self.buffer.get(range)).unwrap_or_default())
    }

    fn range(&self, device: u16, offset: u64, bytes: usize) -> Option<std::ops::Range<usize>> {
        let start = usize::try_from(offset.checked_sub(self.start)?).ok()?;
        let end = start.checked_add(bytes)?;
        (device == self.device && end <= self.filled).then_some(start..end)
    }

    fn fill(&mut self, devices: &Devices, device: u16, offset: u64, bytes: usize) -> Result<()> {
        let filled = u64::try_from(self.filled).unwrap_or(u64::MAX);
        let reach = u64::try_from(AHEAD_BYTES).unwrap_or(u64::MAX);
        let near = self.start..=self.start.saturating_add(filled).saturating_add(reach);
        let is_sequential = device == self.device && near.contains(&offset);
        let wanted = match (devices.is_one_source(), is_sequential) {
            // Addresses of several devices must not run into each other.
            (false, _) => bytes,
            (true, true) => bytes.max(AHEAD_BYTES),
            (true, false) => bytes.max(JUMP_BYTES),
        };
        self.filled = 0;
        source::grow(&mut self.buffer, wanted)?;
        let place = devices.locate(device, offset)?;
        let target = self.buffer.get_mut(..wanted).unwrap_or_default();
        let got = read_up_to(place.source, place.offset, target)?;
        if got < bytes {
            let wanted = u64::try_from(bytes).unwrap_or(u64::MAX);
            return Err(outside(offset, wanted, place.source.length()));
        }
        (self.device, self.start, self.filled) = (device, offset, got);
        Ok(())
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
        let mut window = InputWindow::default();
        for (offset, count) in [(5, 10), (10, 100), (30_000, 9_000), (0, 1), (39_999, 1)] {
            let got = window.get(&devices, 0, offset as u64, count).unwrap();
            assert_eq!(got, &bytes[offset..offset + count]);
        }
        assert!(window.get(&devices, 0, 39_999, 2).is_err());
        assert!(window.get(&devices, 0, u64::MAX, 2).is_err());
        assert_eq!(window.get(&devices, 0, 7, 1).unwrap(), [7]);
    }

    #[test]
    fn a_lease_comes_back() {
        let scratches = Scratches::default();
        scratches.lease().output.push(9);
        assert_eq!(scratches.lease().output, [9]);
    }
}

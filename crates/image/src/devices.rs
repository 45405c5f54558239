//! The image file and the blobs beside it, as one address space (docs/format.md F8).

use std::sync::Arc;

use ferrofs_ondisk::{BlockSize, DeviceSlot, SUPERBLOCK_OFFSET};

use crate::error::{Error, ErrorKind, Result, address};
use crate::source::{ImageSource, read_exact};

/// Where the superblock says how many extra devices there are.
const COUNT_FIELD: u64 = SUPERBLOCK_OFFSET | 86;

/// The image and its devices.
#[derive(Debug)]
pub(crate) struct Devices {
    primary: Arc<dyn ImageSource>,
    extra: Vec<ExtraDevice>,
}

#[derive(Debug)]
struct ExtraDevice {
    source: Option<Arc<dyn ImageSource>>,
    /// Where the device lies in the unified address space, in bytes.
    unified: Option<std::ops::Range<u64>>,
}

/// Where some bytes really are.
#[derive(Debug)]
pub(crate) struct ResolvedAddress<'a> {
    pub(crate) source: &'a dyn ImageSource,
    pub(crate) offset: u64,
}

impl Devices {
    /// Joins the image with the sources of its devices; none at all is allowed too, and then data
    /// on devices is looked for in the image itself, behind its own blocks (a flat device).
    pub(crate) fn new(
        primary: Arc<dyn ImageSource>,
        slots: &[DeviceSlot],
        mut sources: Vec<Arc<dyn ImageSource>>,
        block_size: BlockSize,
    ) -> Result<Self> {
        let count = u16::try_from(slots.len()).unwrap_or(u16::MAX);
        if !sources.is_empty() && sources.len() != slots.len() {
            let kind = ErrorKind::DeviceCount { table: count, given: sources.len() };
            return Err(Error::new(kind).at(COUNT_FIELD));
        }
        let mut given = sources.drain(..);
        let mut extra = Vec::with_capacity(slots.len());
        for slot in slots {
            let start = address(block_size.offset_of(slot.unified_block))?;
            let length = address(block_size.offset_of(slot.blocks))?;
            let end = address(start.checked_add(length))?;
            let unified = (start != 0).then_some(start..end);
            extra.push(ExtraDevice { source: given.next(), unified });
        }
        drop(given);
        Ok(Self { primary, extra })
    }

    /// Finds byte `offset` of `device`; 0 is the image's own address space, in which devices may
    /// have a place too. An id past the table is an error, also where a reader that masks it off
    /// would find some other bytes.
    pub(crate) fn locate(&self, device: u16, offset: u64) -> Result<ResolvedAddress<'_>> {
        if device == 0 {
            return Ok(self.locate_unified(offset));
        }
        let slot = self.extra.get(usize::from(device).wrapping_sub(1));
        let extra = slot.ok_or_else(|| Error::new(ErrorKind::UnknownDevice(device)).at(offset))?;
        if let Some(source) = &extra.source {
            return Ok(ResolvedAddress { source: &**source, offset });
        }
        let unified = extra.unified.as_ref();
        let start = unified.ok_or_else(|| {
            Error::new(ErrorKind::DeviceCount {
                table: u16::try_from(self.extra.len()).unwrap_or(u16::MAX),
                given: 0,
            })
        })?;
        Ok(ResolvedAddress {
            source: &*self.primary,
            offset: address(start.start.checked_add(offset))?,
        })
    }

    fn locate_unified(&self, offset: u64) -> ResolvedAddress<'_> {
        let owner = self.extra.iter().find_map(|extra| {
            let unified = extra.unified.as_ref().filter(|unified| unified.contains(&offset))?;
            let source = extra.source.as_ref()?;
            Some(ResolvedAddress { source: &**source, offset: offset.wrapping_sub(unified.start) })
        });
        owner.unwrap_or(ResolvedAddress { source: &*self.primary, offset })
    }

    /// Fills `buffer` from byte `offset` of `device`.
    pub(crate) fn read(&self, device: u16, offset: u64, buffer: &mut [u8]) -> Result<()> {
        let place = self.locate(device, offset)?;
        read_exact(place.source, place.offset, buffer)
    }

    /// These bytes of `device` will be read soon.
    pub(crate) fn will_need(&self, device: u16, offset: u64, bytes: usize) {
        if let Ok(place) = self.locate(device, offset) {
            place.source.will_need(place.offset, u64::try_from(bytes).unwrap_or(u64::MAX));
        }
    }

    /// Whether all addresses lead into the image itself.
    pub(crate) fn is_one_source(&self) -> bool {
        self.extra.is_empty()
    }

    /// The image itself.
    pub(crate) fn primary(&self) -> &dyn ImageSource {
        &*self.primary
    }

    /// The lengths of the devices that were given.
    pub(crate) fn given_lengths(&self) -> impl Iterator<Item = Option<u64>> {
        self.extra.iter().map(|extra| extra.source.as_ref().map(|source| source.length()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slot(blocks: u64, unified_block: u64) -> DeviceSlot {
        DeviceSlot { tag: [0; 64], blocks, unified_block }
    }

    fn devices(slots: &[DeviceSlot], sources: Vec<Arc<dyn ImageSource>>) -> Result<Devices> {
        let primary: Arc<dyn ImageSource> = Arc::new(vec![0u8; 2048]);
        Devices::new(primary, slots, sources, BlockSize::from_bits(9).unwrap())
    }

    #[test]
    fn a_device_answers_by_id_and_by_unified_address() {
        let blob: Arc<dyn ImageSource> = Arc::new(vec![9u8; 1024]);
        let all = devices(&[slot(2, 100)], vec![blob]).unwrap();
        let mut byte = [0u8; 1];
        all.read(1, 1023, &mut byte).unwrap();
        assert_eq!(byte, [9]);
        all.read(0, 100 * 512 + 5, &mut byte).unwrap();
        assert_eq!(byte, [9]);
        all.read(0, 5, &mut byte).unwrap();
        assert_eq!(byte, [0]);
    }

    #[test]
    fn without_blobs_a_device_lies_behind_the_image() {
        let all = devices(&[slot(2, 2)], Vec::new()).unwrap();
        assert_eq!(all.locate(1, 7).unwrap().offset, 1031);
        assert!(all.read(1, 0, &mut [0; 1024]).is_ok());
        assert!(all.read(1, 0, &mut [0; 1025]).is_err());
    }

    #[test]
    fn too_few_and_dangling_devices_are_named() {
        let blob: Arc<dyn ImageSource> = Arc::new(vec![9u8; 1024]);
        let error = devices(&[slot(1, 0), slot(1, 0)], vec![blob]).unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::DeviceCount { table: 2, given: 1 }));
        let all = devices(&[slot(1, 0), slot(1, 0)], Vec::new()).unwrap();
        let error = all.locate(3, 0).unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::UnknownDevice(3)));
        assert!(all.locate(1, 0).is_err());
    }
}

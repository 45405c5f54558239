//! Files whose bytes lie on devices of the tree: a table of chunks refers to them there. Only parts that lie
//! on no device are copied.

use ferrofs_ondisk::BlockSize;
use ferrofs_ondisk::chunk::ChunkPlace;

use crate::chunks::{SHIFT_MAX, TableRoom, TableRules, chunked};
use crate::data::FileData;
use crate::tree::{Content, Device, DevicePlace, Part};
use crate::{BlockSink, Error, ErrorKind, Result};

/// Read and appended at once, of parts that are copied: whole blocks of any size.
const COPY_BYTES: u64 = 1 << 20;

/// What references are made with.
pub(crate) struct References<'a> {
    /// The devices of the tree.
    pub(crate) devices: &'a [Device],
    pub(crate) rules: TableRules,
    /// Where parts go that lie on no device.
    pub(crate) sink: &'a mut dyn BlockSink,
}

impl References<'_> {
    /// The data of a file with these parts; `None` if some part does not lie where a block could start, so
    /// that the file has to be copied.
    ///
    /// # Errors
    /// Parts that no such file or device can have; a source that cannot be read; a sink that refuses.
    pub(crate) fn refer(
        &mut self,
        content: &Content,
        parts: &[Part],
        room: &mut TableRoom,
    ) -> Result<Option<FileData>> {
        self.check(content, parts)?;
        let block = self.rules.block;
        if content.bytes() == 0 || !parts.iter().all(|part| is_aligned(part, content, block)) {
            return Ok(None);
        }
        let parts = joined(parts);
        let shift = shift(content, &parts, block);
        let chunk = u64::from(block.bytes()) << shift;
        let count = room.take(content.bytes().div_ceil(chunk))?;
        let mut places = vec![None; count];
        for part in &parts {
            let mut place = match part.place {
                Some(DevicePlace { device, offset }) => {
                    ChunkPlace { device, block: offset >> block.bits() }
                }
                None => ChunkPlace { device: 0, block: self.copy(content, part)? },
            };
            let first = usize::try_from(part.start / chunk).unwrap_or(usize::MAX);
            let last = usize::try_from(part.end().div_ceil(chunk)).unwrap_or(usize::MAX);
            for entry in places.get_mut(first..last).unwrap_or_default() {
                *entry = Some(place);
                place.block = place.block.saturating_add(1 << shift);
            }
        }
        chunked(places, shift, &self.rules).map(Some)
    }

    /// Importers read hostile archives and images, so this is asked once more.
    fn check(&self, content: &Content, parts: &[Part]) -> Result<()> {
        let mut at = 0;
        for part in parts {
            let end = part.start.checked_add(part.bytes).filter(|end| *end <= content.bytes());
            if part.bytes == 0 || part.start < at || end.is_none() {
                return Err(Error::new(ErrorKind::Defect("parts that are none of their file")));
            }
            at = part.end();
            let Some(DevicePlace { device, offset }) = part.place else { continue };
            let slot = self.devices.get(usize::from(device).wrapping_sub(1));
            let slot = slot.ok_or_else(|| {
                Error::new(ErrorKind::Defect("a part on a device that the tree does not have"))
            })?;
            if offset.checked_add(part.bytes).is_none_or(|end| end > slot.bytes) {
                let what = format!(
                    "it lies on device {device} from byte {offset} on, {} bytes long, and the device \
                     has {}",
                    part.bytes, slot.bytes
                );
                return Err(Error::new(ErrorKind::Unsupported(what)));
            }
        }
        Ok(())
    }

    /// Copies a part to the sink; the block at which it starts there.
    fn copy(&mut self, content: &Content, part: &Part) -> Result<u64> {
        let mut reader = content.store().open()?;
        let (mut at, mut first) = (part.start, None);
        let mut buffer = Vec::new();
        while at < part.end() {
            let count = (part.end() - at).min(COPY_BYTES);
            buffer.resize(usize::try_from(count).unwrap_or(usize::MAX), 0);
            reader.read_exact_at(at, &mut buffer)?;
            let address = self.sink.append(&buffer)?;
            first.get_or_insert(address);
            at += count;
        }
        reader.check_unchanged()?;
        Ok(first.unwrap_or(0) >> self.rules.block.bits())
    }
}

/// Whether blocks can hold the part where it lies.
fn is_aligned(part: &Part, content: &Content, block: BlockSize) -> bool {
    let is_whole = |offset| block.within(offset) == 0;
    is_whole(part.start)
        && (is_whole(part.end()) || part.end() == content.bytes())
        && part.place.is_none_or(|place| is_whole(place.offset))
}

/// The longest chunks, as a power of two of blocks, of which none has a seam in it.
fn shift(content: &Content, parts: &[Part], block: BlockSize) -> u32 {
    let whole = block.count(content.bytes()).max(1).next_power_of_two().ilog2().min(SHIFT_MAX);
    let seams = parts.iter().flat_map(|part| [part.start, part.end()]);
    let seams = seams.filter(|seam| *seam > 0 && *seam < content.bytes());
    let shifts = seams.map(|seam| (seam >> block.bits()).trailing_zeros());
    shifts.min().unwrap_or(whole).min(whole)
}

/// The same parts, with those in one that follow each other in the file and on their device.
fn joined(parts: &[Part]) -> Vec<Part> {
    let mut joined: Vec<Part> = Vec::new();
    for part in parts {
        match joined.last_mut() {
            Some(before) if continues(before, part) => before.bytes += part.bytes,
            _ => joined.push(*part),
        }
    }
    joined
}

/// Whether `part` follows `before` in the file and on the same device.
fn continues(before: &Part, part: &Part) -> bool {
    let (Some(one), Some(other)) = (before.place, part.place) else { return false };
    before.end() == part.start
        && one.device == other.device
        && one.offset.checked_add(before.bytes) == Some(other.offset)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compress::memory_store::content;

    const BLOCK: u64 = 512;

    #[derive(Default)]
    struct Copied(Vec<u8>);

    impl BlockSink for Copied {
        fn append(&mut self, bytes: &[u8]) -> Result<u64> {
            let address = self.0.len() as u64;
            self.0.extend_from_slice(bytes);
            self.0.resize(self.0.len().next_multiple_of(512), 0);
            Ok(address)
        }
    }

    fn on(device: u16, offset: u64) -> Option<DevicePlace> {
        Some(DevicePlace { device, offset })
    }

    fn part(start: u64, bytes: u64, place: Option<DevicePlace>) -> Part {
        Part { start, bytes, place }
    }

    fn refer(bytes: usize, parts: &[Part]) -> Result<Option<FileData>> {
        let devices = [1 << 20, 4096].map(|bytes| Device { tag: [0; 64], bytes });
        let block = BlockSize::from_bits(9).unwrap();
        let rules = TableRules { block, chunk_bytes: BLOCK, force_indexes: false, device: 0 };
        let mut sink = Copied(vec![0; 5 * 512]);
        let mut references = References { devices: &devices, rules, sink: &mut sink };
        references.refer(&content("f", &vec![7; bytes]), parts, &mut TableRoom::new(1 << 20))
    }

    /// Blocks of a chunk, and device and block of each.
    fn shape(bytes: usize, parts: &[Part]) -> (u64, Vec<Option<(u16, u64)>>) {
        let Some(FileData::Chunks { format, places }) = refer(bytes, parts).unwrap() else {
            panic!("not referred to");
        };
        let places = places.iter().map(|place| place.map(|place| (place.device, place.block)));
        (format.chunk_bytes(BlockSize::from_bits(9).unwrap()) / BLOCK, places.collect())
    }

    #[test]
    fn a_file_in_one_piece_is_one_chunk() {
        assert_eq!(shape(5000, &[part(0, 5000, on(1, 512))]), (16, vec![Some((1, 1))]));
        let halves = [part(0, 1024, on(1, 512)), part(1024, 3976, on(1, 1536))];
        assert_eq!(shape(5000, &halves), (16, vec![Some((1, 1))]));
    }

    #[test]
    fn seams_and_holes_cut_chunks() {
        let parts = [part(1024, 1024, on(1, 512)), part(4096, 100, on(2, 1024))];
        let holes = vec![None, Some((1, 1)), None, None, Some((2, 2))];
        assert_eq!(shape(4196, &parts), (2, holes));
        assert_eq!(shape(5000, &[]), (16, vec![None]));
    }

    #[test]
    fn what_lies_on_no_device_is_copied() {
        let parts = [part(0, 1024, on(1, 0)), part(1024, 10, None)];
        assert_eq!(shape(1034, &parts), (2, vec![Some((1, 0)), Some((0, 5))]));
    }

    #[test]
    fn what_no_block_can_hold_is_left_to_be_copied() {
        for parts in [
            [part(0, 1024, on(1, 100)), part(1024, 10, on(1, 2048))],
            [part(0, 1000, on(1, 512)), part(1024, 10, on(1, 2048))],
            [part(0, 1000, on(1, 512)), part(1000, 34, on(1, 2048))],
        ] {
            assert_eq!(refer(1034, &parts).unwrap(), None);
        }
        assert_eq!(refer(0, &[]).unwrap(), None);
    }

    #[test]
    fn parts_that_cannot_be_are_refused() {
        for parts in [
            [part(0, 512, on(3, 0)), part(512, 512, on(1, 0))],
            [part(0, 512, on(0, 0)), part(512, 512, on(1, 0))],
            [part(0, 512, on(1, u64::MAX)), part(512, 512, on(1, 0))],
            [part(512, 512, on(1, 0)), part(0, 512, on(1, 0))],
            [part(0, 0, on(1, 0)), part(512, 512, on(1, 0))],
            [part(0, 512, on(1, 0)), part(512, 513, on(1, 0))],
        ] {
            refer(1024, &parts).unwrap_err();
        }
        let error = refer(1024, &[part(0, 1024, on(2, 3584))]).unwrap_err();
        assert!(error.to_string().contains("the device has 4096"), "{error}");
    }
}

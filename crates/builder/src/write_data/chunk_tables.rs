//! Chunk tables: of files whose bytes are appended chunk by chunk, equal ones once, and of files whose bytes lie on
//! external devices already, which the table refers to.

use ferrofs_ondisk::BlockSize;
use ferrofs_ondisk::chunk::{ChunkAddress, ChunkFormat, ChunkTable};

use ferrofs_workers::memory::Charge;

use crate::data_map::FileData;
use crate::digest::Sha256Digest;
use crate::packed_file::DigestIndex;
use crate::spill::SpillStore;
use crate::tree::{Content, Device, DeviceAddress, SourceExtent};
use crate::{BlockSink, BuildOptions, Error, ErrorKind, Result};

/// Read and appended at once, of extents that are copied: whole blocks of any size.
const COPY_BYTES: u64 = 1 << 20;

/// Makes chunk tables that refer to external devices.
pub(crate) struct DeviceReferences<'a> {
    /// The devices of the tree.
    pub(crate) devices: &'a [Device],
    pub(crate) params: ChunkTableParams,
    /// Where extents go that lie on no device.
    pub(crate) sink: &'a mut dyn BlockSink,
}

impl DeviceReferences<'_> {
    /// The data of a file with these extents; `None` if some extent does not lie where a block could start, so
    /// that the file has to be copied.
    ///
    /// # Errors
    /// Extents that no such file or device can have; a source that cannot be read; a sink that refuses.
    pub(crate) fn refer(
        &mut self,
        content: &Content,
        extents: &[SourceExtent],
        budget: &mut ChunkTableBudget,
    ) -> Result<Option<FileData>> {
        self.check(content, extents)?;
        let block = self.params.block;
        if !is_referable(content, extents, block) {
            return Ok(None);
        }
        let extents = joined(extents);
        let shift = shift(content, &extents, block);
        let chunk = u64::from(block.bytes()) << shift;
        let entries = content.bytes().div_ceil(chunk);
        let count = budget.reserve(entries, content, entries)?;
        budget.record_table(content, count);
        let mut places = vec![None; count];
        for extent in &extents {
            let mut place = match extent.place {
                Some(DeviceAddress { device, offset }) => {
                    ChunkAddress { device, block: offset >> block.bits() }
                }
                None => ChunkAddress { device: 0, block: self.copy(content, extent)? },
            };
            let first = usize::try_from(extent.start / chunk).unwrap_or(usize::MAX);
            let last = usize::try_from(extent.end().div_ceil(chunk)).unwrap_or(usize::MAX);
            for entry in places.get_mut(first..last).unwrap_or_default() {
                *entry = Some(place);
                place.block = place.block.saturating_add(1 << shift);
            }
        }
        chunked(places, shift, &self.params).map(Some)
    }

    /// Importers read hostile archives and images, so this is checked once more.
    fn check(&self, content: &Content, extents: &[SourceExtent]) -> Result<()> {
        let mut at = 0;
        for extent in extents {
            let end = extent.start.checked_add(extent.bytes).filter(|end| *end <= content.bytes());
            if extent.bytes == 0 || extent.start < at || end.is_none() {
                return Err(Error::new(ErrorKind::Internal("extents that are none of their file")));
            }
            at = extent.end();
            let Some(DeviceAddress { device, offset }) = extent.place else { continue };
            let slot = self.devices.get(usize::from(device).wrapping_sub(1));
            let slot = slot.ok_or_else(|| {
                Error::new(ErrorKind::Internal("an extent on a device that the tree does not have"))
            })?;
            if offset.checked_add(extent.bytes).is_none_or(|end| end > slot.bytes) {
                let what = format!(
                    "it lies on device {device} from byte {offset} on, {} bytes long, and the device \
                     has {}",
                    extent.bytes, slot.bytes
                );
                return Err(Error::new(ErrorKind::Unsupported(what)));
            }
        }
        Ok(())
    }

    /// Copies an extent to the sink; the block at which it starts there.
    fn copy(&mut self, content: &Content, extent: &SourceExtent) -> Result<u64> {
        let mut reader = content.source().open()?;
        let (mut at, mut first) = (extent.start, None);
        let mut buffer = Vec::new();
        while at < extent.end() {
            let count = (extent.end() - at).min(COPY_BYTES);
            buffer.resize(usize::try_from(count).unwrap_or(usize::MAX), 0);
            reader.read_exact_at(at, &mut buffer)?;
            let address = self.sink.append(&buffer)?;
            first.get_or_insert(address);
            at += count;
        }
        reader.check_unchanged()?;
        Ok(first.unwrap_or(0) >> self.params.block.bits())
    }
}

/// Whether a file with these extents has a chunk table that refers to them. Such files are written before all others.
pub(crate) fn is_referable(content: &Content, extents: &[SourceExtent], block: BlockSize) -> bool {
    content.bytes() > 0 && extents.iter().all(|extent| is_aligned(extent, content, block))
}

/// Whether blocks can hold the extent where it lies.
fn is_aligned(extent: &SourceExtent, content: &Content, block: BlockSize) -> bool {
    let is_whole = |offset| block.within(offset) == 0;
    is_whole(extent.start)
        && (is_whole(extent.end()) || extent.end() == content.bytes())
        && extent.place.is_none_or(|place| is_whole(place.offset))
}

/// The longest chunks, as a power of two of blocks, of which none has a boundary in it.
fn shift(content: &Content, extents: &[SourceExtent], block: BlockSize) -> u32 {
    let whole = block.count(content.bytes()).max(1).next_power_of_two().ilog2().min(SHIFT_MAX);
    let boundaries = extents.iter().flat_map(|extent| [extent.start, extent.end()]);
    let boundaries = boundaries.filter(|boundary| *boundary > 0 && *boundary < content.bytes());
    let shifts = boundaries.map(|boundary| (boundary >> block.bits()).trailing_zeros());
    shifts.min().unwrap_or(whole).min(whole)
}

/// The same extents, with those in one that follow each other in the file and on their device.
fn joined(extents: &[SourceExtent]) -> Vec<SourceExtent> {
    let mut joined: Vec<SourceExtent> = Vec::new();
    for extent in extents {
        match joined.last_mut() {
            Some(before) if continues(before, extent) => before.bytes += extent.bytes,
            _ => joined.push(*extent),
        }
    }
    joined
}

/// Whether `extent` follows `before` in the file and on the same device.
fn continues(before: &SourceExtent, extent: &SourceExtent) -> bool {
    let (Some(one), Some(other)) = (before.place, extent.place) else { return false };
    before.end() == extent.start
        && one.device == other.device
        && one.offset.checked_add(before.bytes) == Some(other.offset)
}

/// The longest chunk is so many times as long as a block, as a power of two (docs/format.md F53).
pub(crate) const SHIFT_MAX: u32 = 31;
/// What an entry of a table takes until the table is written.
pub(crate) const CHUNK_ENTRY_BYTES: u64 = size_of::<Option<ChunkAddress>>() as u64;

/// Which table of chunks an image is to have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ChunkTableParams {
    /// The block size.
    pub(crate) block: BlockSize,
    /// Bytes of a chunk.
    pub(crate) chunk_bytes: u64,
    /// 8-byte indexes, also where 4 bytes would do.
    pub(crate) force_indexes: bool,
    /// The device that the chunks lie on; 0 is the image.
    pub(crate) device: u16,
}

impl ChunkTableParams {
    /// Of tables with chunks of `chunk_bytes`.
    pub(crate) fn new(options: &BuildOptions, chunk_bytes: u64) -> Self {
        Self {
            block: options.block_size,
            chunk_bytes,
            force_indexes: options.force_chunk_indexes,
            device: u16::from(options.blob.is_some()),
        }
    }
}

/// How many entries all tables may still get: they are in memory until the metadata is written, and a source
/// that claims to be huge and has nothing but holes would fill it.
#[derive(Debug)]
pub(crate) struct ChunkTableBudget {
    charge: Charge,
    used: u64,
    /// The memory of the build, for messages.
    memory_bytes: u64,
    /// What makes tables fit that do not, for messages.
    remedy: &'static str,
    /// The file with the longest of the tables that are kept, and its entries: most likely the one to blame.
    longest: Option<(String, u64)>,
}

impl ChunkTableBudget {
    /// Tables of `charge` bytes at most, in a build that may take `memory_bytes`.
    pub(crate) fn new(charge: Charge, memory_bytes: u64) -> Self {
        let remedy = "a larger --chunk-size or a larger --memory makes it fit";
        Self { charge, used: 0, memory_bytes, remedy, longest: None }
    }

    /// The same for tables whose chunks are as long as the files allow.
    pub(crate) fn of_longest_chunks(charge: Charge, memory_bytes: u64) -> Self {
        Self { remedy: "a larger --memory makes it fit", ..Self::new(charge, memory_bytes) }
    }

    /// Takes `entries` more of the table of a file, which has `file_entries` in all.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`] if the memory is too small for them, at the file with the longest table.
    pub(crate) fn reserve(
        &mut self,
        entries: u64,
        content: &Content,
        file_entries: u64,
    ) -> Result<usize> {
        let used = self.used.saturating_add(entries);
        let fits = used.saturating_mul(CHUNK_ENTRY_BYTES) <= self.charge.bytes();
        let (true, Ok(count)) = (fits, usize::try_from(entries)) else {
            return Err(self.too_long(content, file_entries));
        };
        self.used = used;
        Ok(count)
    }

    #[cold]
    fn too_long(&self, content: &Content, file_entries: u64) -> Error {
        let before = self.longest.clone().filter(|(_, longest)| *longest > file_entries);
        let (name, longest) = before.unwrap_or_else(|| (content.source().name(), file_entries));
        let (bytes, memory) = (longest.saturating_mul(CHUNK_ENTRY_BYTES), self.memory_bytes);
        let what = format!(
            "its table of {longest} chunks takes {bytes} bytes, and the memory of {memory} bytes has no room \
             for all tables; {}",
            self.remedy
        );
        Error::new(ErrorKind::Unsupported(what)).at(name)
    }

    /// Notes that the table of a file is complete, with so many entries.
    pub(crate) fn record_table(&mut self, content: &Content, entries: usize) {
        let entries = entries as u64;
        if self.longest.as_ref().is_none_or(|(_, longest)| entries > *longest) {
            self.longest = Some((content.source().name(), entries));
        }
    }

    /// Gives back entries that are not needed any more.
    pub(crate) fn release(&mut self, entries: usize) {
        self.used = self.used.saturating_sub(entries as u64);
    }

    /// The charge for the entries that were taken and not given back.
    pub(crate) fn into_used(mut self) -> Charge {
        let used_bytes = self.used.saturating_mul(CHUNK_ENTRY_BYTES);
        self.charge.shrink(self.charge.bytes().saturating_sub(used_bytes));
        self.charge
    }
}

/// The chunks that are in the image, or in its blob: as many as memory allows, so that later ones are stored again.
#[derive(Debug)]
pub(crate) struct ChunkStore {
    places: DigestIndex,
}

impl ChunkStore {
    /// Without a chunk, for `count_max` of them.
    pub(crate) fn new(store: &SpillStore, count_max: usize) -> Self {
        let mut places = DigestIndex::new(store);
        places.set_count_max(count_max);
        Self { places }
    }

    /// The first block of the chunk with this digest and length, appended unless it is known to be there already.
    /// `whole` is the chunk with the zeros that fill up its last block.
    pub(crate) fn place(
        &mut self,
        key: (Sha256Digest, u64),
        whole: &[u8],
        block: BlockSize,
        sink: &mut dyn BlockSink,
    ) -> Result<u64> {
        let (digest, length) = key;
        if let Some(place) = self.places.find(&digest, |known, _| known == length) {
            return Ok(place);
        }
        let place = sink.append(whole)? / u64::from(block.bytes());
        self.places.push(&digest, length, place);
        Ok(place)
    }
}

/// The data of a file whose chunks lie at these blocks.
pub(crate) fn table(mut blocks: Vec<Option<u64>>, params: &ChunkTableParams) -> Result<FileData> {
    let block_bytes = u64::from(params.block.bytes());
    let mut shift = (params.chunk_bytes / block_bytes).max(1).ilog2();
    while blocks.len() > 1 && shift < SHIFT_MAX {
        let Some(merged) = merged(&blocks, 1 << shift) else { break };
        blocks = merged;
        shift += 1;
    }
    let place =
        |block: Option<u64>| block.map(|block| ChunkAddress { device: params.device, block });
    chunked(blocks.into_iter().map(place).collect(), shift, params)
}

/// The data of a file with chunks of `1 << shift` blocks at these places.
pub(crate) fn chunked(
    places: Vec<Option<ChunkAddress>>,
    shift: u32,
    params: &ChunkTableParams,
) -> Result<FileData> {
    let present = || places.iter().flatten();
    // A block of all ones is a hole in either width.
    let has_far = present().any(|place| place.block >= u64::from(u32::MAX));
    let has_devices = params.device != 0 || present().any(|place| place.device != 0);
    let table = match (has_far, params.force_indexes || has_devices) {
        (true, _) => ChunkTable::WideIndexes,
        (false, true) => ChunkTable::Indexes,
        (false, false) => ChunkTable::BlockMap,
    };
    let format = ChunkFormat::new(u8::try_from(shift).unwrap_or(u8::MAX), table);
    let format = format.map_err(|error| Error::new(ErrorKind::Format(error)))?;
    Ok(FileData::Chunks { format, places })
}

/// The table with chunks of twice the length, if each two neighbours are holes or lie side by side.
fn merged(blocks: &[Option<u64>], chunk_blocks: u64) -> Option<Vec<Option<u64>>> {
    let merge = |pair: &[Option<u64>]| match *pair {
        [one] | [one @ None, None] => Some(one),
        [Some(one), Some(other)] if one.checked_add(chunk_blocks) == Some(other) => Some(Some(one)),
        _ => None,
    };
    blocks.chunks(2).map(merge).collect()
}

#[cfg(test)]
fn budget(bytes: u64) -> ChunkTableBudget {
    use ferrofs_workers::memory::{AllocPolicy, Budget};

    let charge = Budget::new(bytes).charge(bytes, AllocPolicy::MayFail).unwrap();
    ChunkTableBudget::new(charge, bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_source::content;

    const BLOCK: u64 = 512;

    #[derive(Default)]
    struct CopySink(Vec<u8>);

    impl BlockSink for CopySink {
        fn append(&mut self, bytes: &[u8]) -> Result<u64> {
            let address = self.0.len() as u64;
            self.0.extend_from_slice(bytes);
            self.0.resize(self.0.len().next_multiple_of(512), 0);
            Ok(address)
        }
    }

    fn on(device: u16, offset: u64) -> Option<DeviceAddress> {
        Some(DeviceAddress { device, offset })
    }

    fn extent(start: u64, bytes: u64, place: Option<DeviceAddress>) -> SourceExtent {
        SourceExtent { start, bytes, place }
    }

    fn refer(bytes: usize, extents: &[SourceExtent]) -> Result<Option<FileData>> {
        let devices = [1 << 20, 4096].map(|bytes| Device { tag: [0; 64], bytes });
        let block = BlockSize::from_bits(9).unwrap();
        let params =
            ChunkTableParams { block, chunk_bytes: BLOCK, force_indexes: false, device: 0 };
        let mut sink = CopySink(vec![0; 5 * 512]);
        let mut references = DeviceReferences { devices: &devices, params, sink: &mut sink };
        references.refer(&content("f", &vec![7; bytes]), extents, &mut budget(1 << 20))
    }

    /// Blocks of a chunk, and device and block of each.
    fn shape(bytes: usize, extents: &[SourceExtent]) -> (u64, Vec<Option<(u16, u64)>>) {
        let Some(FileData::Chunks { format, places }) = refer(bytes, extents).unwrap() else {
            panic!("not referred to");
        };
        let places = places.iter().map(|place| place.map(|place| (place.device, place.block)));
        (format.chunk_bytes(BlockSize::from_bits(9).unwrap()) / BLOCK, places.collect())
    }

    #[test]
    fn chunks_beyond_those_that_memory_allows_are_stored_again() {
        let block = BlockSize::from_bits(9).unwrap();
        let (store, _directory) = crate::spill::tests::small_store();
        let mut chunks = ChunkStore::new(&store, 20);
        let mut sink = CopySink::default();
        for round in 0..2 {
            for number in 0..30_u8 {
                let whole = [number; 512];
                let key = (Sha256Digest::of(&whole), 512);
                let place = chunks.place(key, &whole, block, &mut sink).unwrap();
                let again = if number < 20 { 0 } else { round * 10 };
                assert_eq!(place, u64::from(number) + again, "{round}");
            }
        }
        // Another length is another chunk.
        let key = (Sha256Digest::of(&[0; 512]), 500);
        assert_eq!(chunks.place(key, &[0; 512], block, &mut sink).unwrap(), 40);
    }

    #[test]
    fn a_file_in_one_piece_is_one_chunk() {
        assert_eq!(shape(5000, &[extent(0, 5000, on(1, 512))]), (16, vec![Some((1, 1))]));
        let halves = [extent(0, 1024, on(1, 512)), extent(1024, 3976, on(1, 1536))];
        assert_eq!(shape(5000, &halves), (16, vec![Some((1, 1))]));
    }

    #[test]
    fn boundaries_and_holes_cut_chunks() {
        let extents = [extent(1024, 1024, on(1, 512)), extent(4096, 100, on(2, 1024))];
        let holes = vec![None, Some((1, 1)), None, None, Some((2, 2))];
        assert_eq!(shape(4196, &extents), (2, holes));
        assert_eq!(shape(5000, &[]), (16, vec![None]));
    }

    #[test]
    fn what_lies_on_no_device_is_copied() {
        let extents = [extent(0, 1024, on(1, 0)), extent(1024, 10, None)];
        assert_eq!(shape(1034, &extents), (2, vec![Some((1, 0)), Some((0, 5))]));
    }

    #[test]
    fn what_no_block_can_hold_is_left_to_be_copied() {
        for extents in [
            [extent(0, 1024, on(1, 100)), extent(1024, 10, on(1, 2048))],
            [extent(0, 1000, on(1, 512)), extent(1024, 10, on(1, 2048))],
            [extent(0, 1000, on(1, 512)), extent(1000, 34, on(1, 2048))],
        ] {
            assert_eq!(refer(1034, &extents).unwrap(), None);
        }
        assert_eq!(refer(0, &[]).unwrap(), None);
    }

    #[test]
    fn parts_that_cannot_be_are_refused() {
        for extents in [
            [extent(0, 512, on(3, 0)), extent(512, 512, on(1, 0))],
            [extent(0, 512, on(0, 0)), extent(512, 512, on(1, 0))],
            [extent(0, 512, on(1, u64::MAX)), extent(512, 512, on(1, 0))],
            [extent(512, 512, on(1, 0)), extent(0, 512, on(1, 0))],
            [extent(0, 0, on(1, 0)), extent(512, 512, on(1, 0))],
            [extent(0, 512, on(1, 0)), extent(512, 513, on(1, 0))],
        ] {
            refer(1024, &extents).unwrap_err();
        }
        let error = refer(1024, &[extent(0, 1024, on(2, 3584))]).unwrap_err();
        assert!(error.to_string().contains("the device has 4096"), "{error}");
    }
}

#[cfg(test)]
mod chunks_tests {
    use super::*;
    use crate::test_source::content;

    fn params() -> ChunkTableParams {
        let block = BlockSize::from_bits(12).unwrap();
        ChunkTableParams { block, chunk_bytes: 8192, force_indexes: false, device: 0 }
    }

    fn shape(blocks: Vec<Option<u64>>) -> (u64, Vec<Option<u64>>) {
        let FileData::Chunks { format, places } = table(blocks, &params()).unwrap() else {
            panic!("not in chunks");
        };
        let blocks = places.iter().map(|place| place.map(|place| place.block)).collect();
        (format.chunk_bytes(params().block), blocks)
    }

    #[test]
    fn chunks_side_by_side_become_one_entry() {
        assert_eq!(shape(vec![Some(5), Some(7), Some(9)]), (32768, vec![Some(5)]));
    }

    #[test]
    fn holes_keep_their_place() {
        let table = vec![Some(5), Some(7), None, None, Some(9)];
        assert_eq!(shape(table), (16384, vec![Some(5), None, Some(9)]));
        assert_eq!(shape(vec![None, Some(5)]), (8192, vec![None, Some(5)]));
        assert_eq!(shape(vec![None, None, None]), (32768, vec![None]));
    }

    #[test]
    fn chunks_of_a_blob_are_indexed() {
        let params = ChunkTableParams { device: 1, ..params() };
        let FileData::Chunks { format, places } = table(vec![Some(5), None], &params).unwrap()
        else {
            panic!("not in chunks");
        };
        assert_eq!(format.entry_bytes(), 8);
        assert_eq!(places, [Some(ChunkAddress { device: 1, block: 5 }), None]);
    }

    #[test]
    fn tables_take_no_more_than_they_are_charged_with() {
        let mut budget = budget(10 * CHUNK_ENTRY_BYTES);
        let file = content("f", b"");
        assert_eq!(budget.reserve(6, &file, 6).unwrap(), 6);
        budget.reserve(5, &file, 5).unwrap_err();
        budget.release(1);
        assert_eq!(budget.reserve(5, &file, 5).unwrap(), 5);
        budget.reserve(u64::MAX, &file, u64::MAX).unwrap_err();
        budget.release(3);
        assert_eq!(budget.into_used().bytes(), 7 * CHUNK_ENTRY_BYTES);
    }

    #[test]
    fn the_file_with_the_longest_table_is_named() {
        let mut budget = budget(10 * CHUNK_ENTRY_BYTES);
        let [long, short] = ["long", "short"].map(|name| content(name, b""));
        budget.reserve(8, &long, 8).unwrap();
        budget.record_table(&long, 8);
        budget.reserve(1, &short, 1).unwrap();
        budget.record_table(&short, 1);
        let error = budget.reserve(2, &short, 3).unwrap_err();
        let text = error.to_string();
        assert!(text.starts_with("long: its table of 8 chunks takes "), "{text}");
        assert!(
            text.ends_with("a larger --chunk-size or a larger --memory makes it fit"),
            "{text}"
        );
        let error = budget.reserve(2, &short, 9).unwrap_err();
        assert!(error.to_string().starts_with("short: its table of 9 chunks "), "{error}");
    }

    #[test]
    fn a_far_chunk_needs_wide_addresses() {
        let format = |block| match table(vec![Some(block)], &params()).unwrap() {
            FileData::Chunks { format, .. } => format,
            other => panic!("{other:?}"),
        };
        assert!(format(1 << 33).is_wide() && format(u64::from(u32::MAX)).is_wide());
        assert_eq!(format(u64::from(u32::MAX) - 1).entry_bytes(), 4);
    }
}

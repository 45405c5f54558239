//! Where the bytes of a file lie in the image: the result of the data path, which the metadata describes; and the
//! sink that the data goes to.

use ferrofs_ondisk::BlockSize;
use ferrofs_ondisk::chunk::{ChunkAddress, ChunkFormat};
use ferrofs_ondisk::compression::AlgorithmId;

use crate::Result;
use crate::spill::SpillStore;
use crate::spill::paged::{PagedArray, PagedBytes};
use crate::spill::paged::{RecordDecoder, RecordEncoder};

/// Where the contents of all regular files lie, and of directories that are compressed.
#[derive(Debug)]
pub(crate) struct DataMap {
    /// By the index of the inode in its tree: where its data is described, and 1; 0 for what is no regular file and no
    /// compressed directory.
    places: PagedArray<u64>,
    descriptions: PagedBytes,
    /// Data lies so many bytes behind where it was written.
    shift: DataShift,
    /// The packed inode, which holds the fragments of other inodes, if there are any.
    pub(crate) packed: Option<InternalFile>,
}

impl DataMap {
    /// A map of `count` inodes that have no data.
    pub(crate) fn new(store: &SpillStore, count: usize) -> Self {
        let places = PagedArray::zeros(store, count);
        let shift = DataShift::default();
        Self { places, descriptions: PagedBytes::new(store), shift, packed: None }
    }

    /// The data of the inode with this index.
    pub(crate) fn get(&self, index: usize) -> Option<FileData> {
        let place = self.places.get(index)?.checked_sub(1)?;
        let mut data = FileData::decode(&self.descriptions.read_blob(place));
        data.shift(self.shift);
        Some(data)
    }

    /// All data of the image lies `bytes` bytes, whole blocks, behind where it was written; once.
    pub(crate) fn shift(&mut self, bytes: u64, block_size: BlockSize) {
        self.shift = DataShift { bytes, blocks: block_size.count(bytes) };
        if let Some(packed) = &mut self.packed {
            packed.data.shift(self.shift);
        }
    }

    /// How many inodes there are.
    pub(crate) fn len(&self) -> usize {
        self.places.len()
    }

    /// Whether the inode with this index has data.
    pub(crate) fn contains(&self, index: usize) -> bool {
        self.places.get(index).is_some_and(|place| place > 0)
    }

    /// Adds the data of another inode.
    pub(crate) fn push(&mut self, data: &FileData) {
        let place = self.descriptions.append_blob(&data.encode());
        self.places.push(place + 1);
    }

    /// Takes over the data of `files`, which `nodes` are in their order.
    pub(crate) fn merge(&mut self, files: Self, nodes: impl Iterator<Item = u32>) {
        if self.descriptions.len() == 0 {
            for (place, node) in files.places.iter().zip(nodes) {
                self.places.set(node as usize, place);
            }
            self.descriptions = files.descriptions;
            return;
        }
        for (file, node) in nodes.enumerate() {
            if let Some(data) = files.get(file) {
                self.set(node as usize, &data);
            }
        }
    }

    /// Sets the data of the inode with this index.
    pub(crate) fn set(&mut self, index: usize, data: &FileData) {
        let place = self.descriptions.append_blob(&data.encode());
        self.places.set(index, place + 1);
    }

    /// The data of all inodes, by their indexes; for tests.
    #[cfg(test)]
    pub(crate) fn files(&self) -> Vec<Option<FileData>> {
        (0..self.places.len()).map(|index| self.get(index)).collect()
    }

    /// A map of these.
    #[cfg(test)]
    pub(crate) fn of_files(files: &[Option<FileData>], packed: Option<InternalFile>) -> Self {
        let store = SpillStore::new(crate::SpillOptions::default());
        let mut map = Self { packed, ..Self::new(&store, files.len()) };
        for (index, data) in files.iter().enumerate() {
            if let Some(data) = data {
                map.set(index, data);
            }
        }
        map
    }
}

/// How far data was moved.
#[derive(Clone, Copy, Debug, Default)]
struct DataShift {
    bytes: u64,
    blocks: u64,
}

/// A file without a name: the packed inode or the metabox.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct InternalFile {
    /// Its size in bytes.
    pub(crate) bytes: u64,
    /// Where its data lies: in the image, never in an internal file.
    pub(crate) data: FileData,
}

/// Where the bytes of one regular file (or symlink, or directory) lie.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum FileData {
    /// As they are: whole blocks from `start_block` on, and what is left inline behind the inode.
    ///
    /// Without inline data the last block is filled up with zeros.
    Flat {
        /// The first block; none for a file without whole blocks.
        start_block: Option<u64>,
        /// The last bytes, fewer than a block.
        tail: Box<[u8]>,
    },
    /// Nothing but a hole (48BIT only), at least a byte long.
    Hole,
    /// In chunks; `None` is a hole.
    Chunks {
        /// Chunk size and form of the table.
        format: ChunkFormat,
        /// One for each chunk.
        places: Vec<Option<ChunkAddress>>,
    },
    /// Compressed.
    Compressed(CompressedData),
}

/// Kinds of data in their encoded form.
const FLAT: u64 = 0;
const HOLE: u64 = 1;
const CHUNKS: u64 = 2;
const COMPRESSED: u64 = 3;

impl FileData {
    /// Its encoded form, which has about 10 bytes an extent.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut encoder = RecordEncoder::default();
        match self {
            Self::Flat { start_block, tail } => {
                encoder.number(FLAT).number(start_block.map_or(0, |block| block + 1)).string(tail);
            }
            Self::Hole => drop(encoder.number(HOLE)),
            Self::Chunks { format, places } => {
                encoder.number(CHUNKS).number(format.to_bits().into());
                for place in places {
                    match place {
                        Some(ChunkAddress { device, block }) => {
                            encoder.number(u64::from(*device) + 1).number(*block);
                        }
                        None => drop(encoder.number(0)),
                    }
                }
            }
            Self::Compressed(data) => {
                encoder.number(COMPRESSED);
                data.encode(&mut encoder);
            }
        }
        encoder.bytes
    }

    /// What [`encode`](Self::encode) made.
    pub(crate) fn decode(bytes: &[u8]) -> Self {
        let mut decoder = RecordDecoder::new(bytes);
        match decoder.number() {
            COMPRESSED => Self::Compressed(CompressedData::decode(&mut decoder)),
            CHUNKS => {
                let format = ChunkFormat::parse(u16::try_from(decoder.number()).unwrap_or(0));
                let mut places = Vec::new();
                while !decoder.is_empty() {
                    places.push(decoder.number().checked_sub(1).map(|device| ChunkAddress {
                        device: u16::try_from(device).unwrap_or(u16::MAX),
                        block: decoder.number(),
                    }));
                }
                format.map_or(Self::Hole, |format| Self::Chunks { format, places })
            }
            HOLE => Self::Hole,
            _ => {
                let start_block = decoder.number().checked_sub(1);
                Self::Flat { start_block, tail: decoder.string().into() }
            }
        }
    }

    /// Moves what lies in the image. Data on other devices and in the packed inode stays where it is.
    fn shift(&mut self, shift: DataShift) {
        match self {
            Self::Flat { start_block: Some(block), .. } => *block += shift.blocks,
            Self::Flat { start_block: None, .. } | Self::Hole => {}
            Self::Chunks { places, .. } => {
                let own = places.iter_mut().flatten().filter(|place| place.device == 0);
                own.for_each(|place| place.block += shift.blocks);
            }
            Self::Compressed(data) => {
                data.extents.iter_mut().for_each(|extent| extent.address += shift.bytes);
            }
        }
    }

    /// Bytes of the file that lie in the packed inode.
    pub(crate) fn fragment_bytes(&self) -> u64 {
        match self {
            Self::Compressed(CompressedData { fragment: Some(fragment), .. }) => fragment.bytes,
            _ => 0,
        }
    }
}

/// A compressed file: extents in file order without gaps, then what lies elsewhere.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct CompressedData {
    /// The extents that have pclusters of their own, or shared ones.
    pub(crate) extents: Vec<DataExtent>,
    /// The end of the file, behind all extents, where it lies inline or in the packed inode.
    pub(crate) inline: Option<InlineExtent>,
    /// The end of the file, where it lies in the packed inode; not together with `inline`.
    pub(crate) fragment: Option<PackedFragment>,
}

/// Marks of an extent in its encoded form, below its length.
const PARTIAL: u64 = 1;
const INLINE: u64 = 1;
const FRAGMENT: u64 = 2;

/// An algorithm as a number; 0 for none.
fn algorithm_number(algorithm: Option<AlgorithmId>) -> u64 {
    let number = |algorithm| AlgorithmId::ALL.iter().position(|one| *one == algorithm);
    algorithm.and_then(number).map_or(0, |number| number as u64 + 1)
}

fn algorithm_of(number: u64) -> Option<AlgorithmId> {
    let raw = u8::try_from(number.checked_sub(1)?).ok()?;
    AlgorithmId::from_number(raw).ok()
}

impl CompressedData {
    fn encode(&self, encoder: &mut RecordEncoder) {
        let marks = (u64::from(self.inline.is_some()) * INLINE)
            | (u64::from(self.fragment.is_some()) * FRAGMENT);
        encoder.number(marks).number(self.extents.len() as u64);
        // Most extents lie behind the one before.
        let mut next = 0;
        for extent in &self.extents {
            let marks = algorithm_number(extent.algorithm) << 1 | u64::from(extent.partial);
            encoder.number(marks).number(extent.bytes).number(extent.pcluster_bytes.into());
            encoder.signed(extent.address.wrapping_sub(next).cast_signed());
            next = extent.address.wrapping_add(extent.pcluster_bytes.into());
        }
        if let Some(inline) = &self.inline {
            encoder.number(algorithm_number(inline.algorithm)).number(inline.bytes);
            encoder.string(&inline.pcluster);
        }
        if let Some(fragment) = &self.fragment {
            encoder.number(fragment.bytes).number(fragment.offset);
        }
    }

    fn decode(decoder: &mut RecordDecoder<'_>) -> Self {
        let (marks, count) = (decoder.number(), decoder.number());
        let mut data = Self::default();
        let mut next = 0_u64;
        for _ in 0..count {
            if decoder.is_empty() {
                break;
            }
            let marks = decoder.number();
            let (bytes, pcluster_bytes) = (decoder.number(), decoder.short());
            let address = next.wrapping_add(decoder.signed().cast_unsigned());
            next = address.wrapping_add(pcluster_bytes.into());
            let (algorithm, partial) = (algorithm_of(marks >> 1), marks & PARTIAL != 0);
            data.extents.push(DataExtent { bytes, algorithm, address, pcluster_bytes, partial });
        }
        if marks & INLINE != 0 {
            let (algorithm, bytes) = (algorithm_of(decoder.number()), decoder.number());
            data.inline =
                Some(InlineExtent { bytes, algorithm, pcluster: decoder.string().into() });
        }
        if marks & FRAGMENT != 0 {
            let bytes = decoder.number();
            data.fragment = Some(PackedFragment { bytes, offset: decoder.number() });
        }
        data
    }

    /// The length of the file, which its parts add up to; `None` past 2^64.
    pub(crate) fn bytes(&self) -> Option<u64> {
        let ends = [
            self.inline.as_ref().map(|inline| inline.bytes),
            self.fragment.map(|fragment| fragment.bytes),
        ];
        let extents = self.extents.iter().map(|extent| extent.bytes);
        extents.chain(ends.into_iter().flatten()).try_fold(0_u64, u64::checked_add)
    }
}

/// An extent: a run of the file that one pcluster holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DataExtent {
    /// Its length in the file, in bytes; not 0.
    pub(crate) bytes: u64,
    /// How it is encoded; `None` is plain.
    pub(crate) algorithm: Option<AlgorithmId>,
    /// The first byte of its pcluster in the image: a block's start but for 48BIT's unaligned data.
    pub(crate) address: u64,
    /// The length of its pcluster in bytes: whole blocks but for 48BIT's unaligned data.
    pub(crate) pcluster_bytes: u32,
    /// The pcluster holds more than this extent takes (dedupe).
    pub(crate) partial: bool,
}

/// The last extent, whose pcluster lies behind the inode's index (ztailpacking).
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct InlineExtent {
    /// Its length in the file, in bytes.
    pub(crate) bytes: u64,
    /// How it is encoded; `None` is plain.
    pub(crate) algorithm: Option<AlgorithmId>,
    /// Its encoded bytes, without padding; fewer than a block.
    pub(crate) pcluster: Box<[u8]>,
}

/// The end of a file, or all of it, in the packed inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PackedFragment {
    /// Its length in bytes.
    pub(crate) bytes: u64,
    /// Where it starts in the packed inode, in bytes.
    pub(crate) offset: u64,
}

/// Where the data of a pass goes.
pub(crate) struct DataSinks<'s> {
    /// The image. Indexes of compressed files and flat files name no device, so their data can lie nowhere else.
    pub(crate) image: &'s mut dyn BlockSink,
    /// The blob, which takes chunks; without one they go to the image.
    pub(crate) blob: Option<&'s mut dyn BlockSink>,
}

impl<'s> DataSinks<'s> {
    /// All data goes to the image.
    pub(crate) fn of_image(image: &'s mut dyn BlockSink) -> Self {
        Self { image, blob: None }
    }
}

/// Appends data to the image, in order.
pub(crate) trait BlockSink {
    /// Appends `bytes`, from a block's start on; zeros fill up the last block. Returns the address of the
    /// first byte in the image.
    ///
    /// # Errors
    /// The host refuses to write, as with a full file system.
    fn append(&mut self, bytes: &[u8]) -> Result<u64>;
}

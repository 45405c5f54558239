//! Where the bytes of a file lie in the image: the result of the data path, which the metadata describes; and the
//! sink that the data goes to.

use ferrofs_ondisk::chunk::{ChunkAddress, ChunkFormat};
use ferrofs_ondisk::compression::AlgorithmId;

use crate::Result;

/// Where the contents of all regular files lie, and of directories that are compressed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct DataMap {
    /// By the index of the inode in its tree; `None` for what is no regular file and no compressed directory.
    pub(crate) files: Vec<Option<FileData>>,
    /// The packed inode, which holds the fragments of other inodes, if there are any.
    pub(crate) packed: Option<InternalFile>,
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

impl FileData {
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

impl CompressedData {
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

/// Appends data to the image, in order.
pub(crate) trait BlockSink {
    /// Appends `bytes`, from a block's start on; zeros fill up the last block. Returns the address of the
    /// first byte in the image.
    ///
    /// # Errors
    /// The host refuses to write, as with a full file system.
    fn append(&mut self, bytes: &[u8]) -> Result<u64>;
}

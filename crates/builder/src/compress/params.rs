//! What the options come to for the data of files, in the units of the data path. Checked here once.

use ferrofs_ondisk::compression::{EXTENT_MAX_BYTES, PCLUSTER_MAX_BYTES};

use crate::segment::{SEGMENT_BYTES, StorageMode};
use crate::{BuildOptions, Deduplication, Error, ErrorKind, Fragments, Result};

/// The params for one kind of file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DataParams {
    /// Bytes of a block.
    pub(crate) block: usize,
    /// Bytes of the largest pcluster.
    pub(crate) pcluster: usize,
    /// Bytes of the longest extent.
    pub(crate) extent_max: usize,
    /// The last pcluster may lie behind the inode.
    pub(crate) inline_pclusters: bool,
    /// A file in which nothing can be compressed is kept in chunks of so many bytes; if none, it is flat.
    pub(crate) chunk: Option<usize>,
    /// The last bytes of a flat file may lie behind the inode.
    pub(crate) inline_data: bool,
    /// The end of a file that does not fill a pcluster goes to the packed inode.
    pub(crate) packs_tails: bool,
    /// Equal pclusters are stored once.
    pub(crate) shares_pclusters: bool,
}

impl DataParams {
    /// The params for regular files.
    pub(crate) fn new(options: &BuildOptions) -> Result<Self> {
        let block = options.block_size.bytes();
        let refuse = |what: String| Err(Error::new(ErrorKind::InvalidOptions(what)));
        let (pcluster, extent) = (options.pcluster_bytes, options.extent_bytes_max);
        if options.algorithms.is_some() {
            if !pcluster.is_multiple_of(block) || !(block..=PCLUSTER_MAX_BYTES).contains(&pcluster)
            {
                return refuse(format!(
                    "a pcluster of {pcluster} bytes: it must have whole blocks, and 1 MiB at most"
                ));
            }
            if u64::from(extent) > EXTENT_MAX_BYTES
                || extent < block
                || !extent.is_multiple_of(block)
            {
                return refuse(format!(
                    "extents of {extent} bytes: they must have whole blocks, and 12 MiB at most"
                ));
            }
        } else if options.fragments != Fragments::None {
            return refuse("fragments need a compression algorithm".to_owned());
        }
        Ok(Self {
            block: block as usize,
            pcluster: pcluster as usize,
            extent_max: extent as usize,
            inline_pclusters: options.inline_pclusters,
            chunk: options.chunk_bytes.map(chunk_in_segment),
            inline_data: options.inline_data,
            packs_tails: options.fragments == Fragments::Tails,
            shares_pclusters: options.fragments != Fragments::None
                || options.deduplication == Deduplication::On,
        })
    }

    /// The same for the packed inode, which holds what was shared already and packs nothing.
    pub(crate) fn of_packed(self, options: &BuildOptions) -> Self {
        let pcluster = options.packed_pcluster_bytes.map_or(self.pcluster, |bytes| bytes as usize);
        Self { pcluster, chunk: None, packs_tails: false, shares_pclusters: false, ..self }
    }

    /// The same for the metabox, which has a size of pclusters of its own.
    pub(crate) fn of_metabox(self, options: &BuildOptions) -> Self {
        let pcluster = options.metabox_pcluster_bytes.map_or(self.pcluster, |bytes| bytes as usize);
        Self { pcluster, ..self.of_packed(options) }
    }
}

impl StorageMode {
    /// How regular files are stored that no hint names.
    pub(crate) fn of(options: &BuildOptions) -> Self {
        match (&options.algorithms, options.fragments) {
            (None, _) => Self::uncompressed(options),
            (Some(_), Fragments::All) => Self::Packed,
            (Some(_), _) => Self::Compressed,
        }
    }

    /// How files are stored that are not to be compressed.
    pub(crate) fn uncompressed(options: &BuildOptions) -> Self {
        let dedupes = options.deduplication == Deduplication::On && options.algorithms.is_none();
        match options.chunk_bytes {
            Some(chunk) => Self::Chunks(chunk_in_segment(chunk)),
            // Blocks that repeat can only be shared by files that say for each where it is.
            None if dedupes => Self::Chunks(options.block_size.bytes() as usize),
            None => Self::Flat { holes: options.wide },
        }
    }
}

/// Longer chunks are put together from shorter ones where they are, in the end.
fn chunk_in_segment(chunk: u64) -> usize {
    usize::try_from(chunk.min(SEGMENT_BYTES)).unwrap_or(usize::MAX)
}

//! What the options come to for the data of files, in the units of the data path. Checked here once.

use ferrofs_ondisk::compression::{EXTENT_MAX_BYTES, PCLUSTER_MAX_BYTES};

use crate::segment::{SEGMENT_BYTES, Style};
use crate::{Deduplication, Error, ErrorKind, Fragments, Options, Result};

/// The rules for one kind of file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Rules {
    /// Bytes of a block.
    pub(crate) block: usize,
    /// Bytes of the largest pcluster.
    pub(crate) pcluster: usize,
    /// Bytes of the longest extent.
    pub(crate) extent_max: usize,
    /// The last pcluster may lie behind the inode.
    pub(crate) inline_pclusters: bool,
    /// The last bytes of a flat file may lie behind the inode.
    pub(crate) inline_data: bool,
    /// The end of a file that does not fill a pcluster goes to the packed inode.
    pub(crate) packs_tails: bool,
    /// Equal pclusters are stored once.
    pub(crate) shares_pclusters: bool,
}

impl Rules {
    /// The rules for regular files.
    pub(crate) fn new(options: &Options) -> Result<Self> {
        let block = options.block_size.bytes();
        let refuse = |what: String| Err(Error::new(ErrorKind::Options(what)));
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
            inline_data: options.inline_data,
            packs_tails: options.fragments == Fragments::Tails,
            shares_pclusters: options.fragments != Fragments::None
                || options.deduplication == Deduplication::On,
        })
    }

    /// The same for the packed inode, which holds what was shared already and packs nothing.
    pub(crate) fn of_packed(self) -> Self {
        Self { packs_tails: false, shares_pclusters: false, ..self }
    }

    /// The same for the metabox, which has a size of pclusters of its own.
    pub(crate) fn of_metabox(self, pcluster_bytes: u32) -> Self {
        Self { pcluster: pcluster_bytes as usize, ..self.of_packed() }
    }
}

impl Style {
    /// How regular files are stored.
    pub(crate) fn of(options: &Options) -> Result<Self> {
        let refuse = |what: String| Err(Error::new(ErrorKind::Options(what)));
        let Some(chunk) = options.chunk_bytes else {
            return Ok(match (&options.algorithms, options.fragments) {
                // Blocks that repeat can only be shared by files that say for each where it is.
                (None, _) if options.deduplication == Deduplication::On => {
                    Self::Chunks(options.block_size.bytes().into())
                }
                (None, _) => Self::Flat { holes: options.wide },
                (Some(_), Fragments::All) => Self::Packed,
                (Some(_), _) => Self::Compressed,
            });
        };
        if options.algorithms.is_some() {
            return refuse("files are either compressed or kept in chunks".to_owned());
        }
        if !chunk.is_power_of_two() || chunk < u64::from(options.block_size.bytes()) {
            return refuse(format!(
                "chunks of {chunk} bytes: it must be a power of two, and a block at least"
            ));
        }
        // Longer chunks are put together from shorter ones where they are, in the end.
        Ok(Self::Chunks(chunk.min(SEGMENT_BYTES)))
    }
}

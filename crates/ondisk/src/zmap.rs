//! The index of a compressed file: which pcluster has which bytes of it.
//!
//! There are three forms: full indexes with 8 bytes for each lcluster, compact indexes with 2 or 4, and encoded extents.
//! Each follows a map header, which follows the inode and its xattrs (docs/format.md F24 to F36, F64 to F66). This module
//! parses single entries. Following them from entry to entry is the reader's task, since it has to fetch them. A builder
//! writes a whole index at once from the extents of the file ([`ExtentSpec`]): the `write_` functions return all bytes
//! after the map header, including a gap before the entries.

mod compact;
mod extent;
mod extent_spec;
mod full;
mod header;

use crate::error::{Error, ErrorKind};

pub use compact::{CompactIndex, Pack, PackSpan, compact_bytes, compact_fits, write_compact};
pub use extent::{ExtentLength, ExtentRecord, ExtentTable, RecordFormat, write_extents};
pub use extent_spec::ExtentSpec;
pub use full::{FullIndex, full_bytes, write_full};
pub use header::{IndexHeader, MapHeader, TailPcluster, header_offset};

/// What kind of extent starts in an lcluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HeadKind {
    /// Stored as it is.
    Plain,
    /// Compressed with the inode's first algorithm.
    First,
    /// Compressed with the inode's second algorithm.
    Second,
}

/// The entry of an lcluster in which an extent starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Head {
    /// How the extent is stored.
    pub kind: HeadKind,
    /// Where in the lcluster the extent starts; what is before belongs to the previous one.
    pub offset: u32,
    /// The first block of its pcluster.
    pub block: u64,
    /// The pcluster decodes to more than this extent uses.
    pub is_partial: bool,
    /// The extent is a hole.
    pub is_hole: bool,
}

/// The entry of an lcluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lcluster {
    /// An extent starts here.
    Head(Head),
    /// The whole lcluster belongs to an extent that started before it.
    NonHead {
        /// How many lclusters back to look. Long distances are capped: look again from there.
        back: u16,
        /// The blocks of the extent's pcluster, if this entry carries them (CBLKCNT).
        blocks: Option<u16>,
    },
}

impl HeadKind {
    /// The type number in both indexes; 2 is NONHEAD.
    const fn number(self) -> u16 {
        match self {
            Self::Plain => 0,
            Self::First => 1,
            Self::Second => 3,
        }
    }
}

/// Bytes of the map header.
pub const MAP_HEADER_BYTES: u64 = 8;

/// In a distance back: the entry holds a block count instead (CBLKCNT).
const BLOCK_COUNT_FLAG: u16 = 1 << 11;

/// The error for an extent that an index cannot describe; `start` is its first byte in the file.
#[cold]
fn unwritable_extent(what: &'static str, start: u64) -> Error {
    Error::new(ErrorKind::PlanExtent(what), start)
}

/// Rounds up to a multiple of `unit`, a power of two; `None` past 2^64.
fn round_up(value: u64, unit: u64) -> Option<u64> {
    let mask = unit.wrapping_sub(1);
    Some(value.checked_add(mask)? & !mask)
}

#[cfg(test)]
mod tests;

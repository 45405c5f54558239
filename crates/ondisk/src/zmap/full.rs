//! Full indexes: 8 bytes for each lcluster (docs/format.md F25 to F28, F64, F65).

use zerocopy::byteorder::little_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::extent_spec::{DISTANCE_MAX, LclusterEntries, LclusterEntry};
use super::{
    BLOCK_COUNT_FLAG, ExtentSpec, Head, HeadKind, IndexHeader, Lcluster, MAP_HEADER_BYTES,
    unwritable_extent,
};
use crate::bytes::{fit, view};
use crate::error::{Error, ErrorKind, Result};

/// Unused bytes between the map header and the first entry.
const GAP_BYTES: u64 = 8;
const PARTIAL_REF: u16 = 1 << 15;
const HOLE: u16 = 1 << 14;
const NON_HEAD: u16 = 2;

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RawFullEntry {
    advise: U16,
    clusterofs: U16,
    /// The block of a head; or the distances back and forward.
    union: U32,
}

/// Where the entries of a full index are.
#[derive(Clone, Copy, Debug)]
pub struct FullIndex {
    start: u64,
}

impl FullIndex {
    /// Bytes of an entry.
    pub const ENTRY_BYTES: u64 = 8;

    /// The index whose map header starts at `header`.
    #[must_use]
    pub fn new(header: u64) -> Option<Self> {
        let start = header.checked_add(MAP_HEADER_BYTES)?.checked_add(GAP_BYTES)?;
        Some(Self { start })
    }

    /// Where the entry of lcluster `lcn` is.
    #[must_use]
    pub fn entry_offset(self, lcn: u64) -> Option<u64> {
        self.start.checked_add(lcn.checked_mul(Self::ENTRY_BYTES)?)
    }

    /// Reads an entry.
    ///
    /// # Errors
    /// [`ErrorKind::ClusterOffset`] if a head starts past its lcluster, and
    /// [`ErrorKind::UnexpectedBlockCount`].
    pub fn entry(bytes: &[u8], header: &IndexHeader) -> Result<Lcluster> {
        let raw: &RawFullEntry = view(bytes)?;
        let advise = raw.advise.get();
        let kind = match advise & 3 {
            0 => HeadKind::Plain,
            1 => HeadKind::First,
            3 => HeadKind::Second,
            _ => return non_head(raw, header),
        };
        let offset = u32::from(raw.clusterofs.get());
        if u64::from(offset) >= header.lcluster_bytes() {
            let size = u32::try_from(header.lcluster_bytes()).unwrap_or(u32::MAX);
            return Err(Error::new(ErrorKind::ClusterOffset { offset, size }, 2));
        }
        Ok(Lcluster::Head(Head {
            kind,
            offset,
            block: u64::from(raw.union.get()),
            is_partial: advise & PARTIAL_REF != 0,
            is_hole: advise & HOLE != 0,
        }))
    }

    /// How many lclusters on the next head is, as the entry of a NONHEAD says; 0 where an old
    /// builder did not say.
    ///
    /// # Errors
    /// [`ErrorKind::Truncated`] if the entry is not whole.
    pub fn forward(bytes: &[u8]) -> Result<u64> {
        let raw: &RawFullEntry = view(bytes)?;
        Ok(u64::from(raw.union.get() >> 16))
    }
}

fn non_head(raw: &RawFullEntry, header: &IndexHeader) -> Result<Lcluster> {
    let back = u16::try_from(raw.union.get() & 0xffff).unwrap_or(0);
    if back & BLOCK_COUNT_FLAG == 0 {
        return Ok(Lcluster::NonHead { back, blocks: None });
    }
    if !header.has_big_pcluster_1 && !header.has_big_pcluster_2 {
        return Err(Error::new(ErrorKind::UnexpectedBlockCount, 4));
    }
    Ok(Lcluster::NonHead { back: 1, blocks: Some(back & !BLOCK_COUNT_FLAG) })
}

/// Bytes of the full index of a file of `file_bytes` bytes after its map header, with the gap.
#[must_use]
pub fn full_bytes(file_bytes: u64, header: &IndexHeader) -> Option<u64> {
    let lclusters = file_bytes.div_ceil(header.lcluster_bytes());
    GAP_BYTES.checked_add(lclusters.checked_mul(FullIndex::ENTRY_BYTES)?)
}

/// The full index of a file: everything after the map header, from the gap of 8 bytes on.
///
/// An inline pcluster follows directly.
///
/// # Errors
/// [`ErrorKind::ExtentSumMismatch`], and [`ErrorKind::PlanExtent`] for an extent that a full index cannot
/// describe.
pub fn write_full(
    header: &IndexHeader,
    file_bytes: u64,
    extents: &[ExtentSpec],
) -> Result<Vec<u8>> {
    let mut bytes = vec![0u8; usize::try_from(GAP_BYTES).unwrap_or(0)];
    for entry in LclusterEntries::new(header, file_bytes, extents)? {
        bytes.extend_from_slice(raw_entry(&entry?)?.as_bytes());
    }
    Ok(bytes)
}

fn raw_entry(entry: &LclusterEntry) -> Result<RawFullEntry> {
    match *entry {
        LclusterEntry::Head { kind, offset, block, is_partial, is_hole, start, .. } => {
            let partial = if is_partial { PARTIAL_REF } else { 0 };
            let hole = if is_hole { HOLE } else { 0 };
            let union = u32::try_from(block)
                .map_err(|_| unwritable_extent("a block of more than 32 bits", start))?;
            Ok(RawFullEntry {
                advise: (kind.number() | partial | hole).into(),
                clusterofs: fit::<u16>(u64::from(offset), "the offset in an lcluster", 2)?.into(),
                union: union.into(),
            })
        }
        LclusterEntry::NonHead { back, ahead, blocks, offset } => {
            let back = match blocks {
                Some(blocks) => BLOCK_COUNT_FLAG | blocks,
                None => u16::try_from(back.min(DISTANCE_MAX)).unwrap_or(u16::MAX),
            };
            let ahead = u16::try_from(ahead).unwrap_or(u16::MAX);
            Ok(RawFullEntry {
                advise: NON_HEAD.into(),
                clusterofs: fit::<u16>(u64::from(offset), "the offset in an lcluster", 2)?.into(),
                union: (u32::from(back) | u32::from(ahead) << 16).into(),
            })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::MapHeader;
    use super::*;
    use crate::{BlockSize, DataLayout};

    fn header(advise: u8) -> IndexHeader {
        let bytes = [0, 0, 0, 0, advise, 0, 0, 0];
        let size = BlockSize::from_bits(12).unwrap();
        match MapHeader::parse(&bytes, DataLayout::CompressedFull, size).unwrap() {
            MapHeader::Index(header) => header,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn entries_follow_the_header_and_a_gap() {
        let index = FullIndex::new(40).unwrap();
        assert_eq!(index.entry_offset(0), Some(56));
        assert_eq!(index.entry_offset(3), Some(80));
        assert_eq!(index.entry_offset(u64::MAX), None);
    }

    #[test]
    fn a_head_says_where_its_extent_starts() {
        let entry = FullIndex::entry(&[1, 0x80, 0xff, 0x0f, 9, 0, 0, 0], &header(0)).unwrap();
        let head = Head {
            kind: HeadKind::First,
            offset: 4095,
            block: 9,
            is_partial: true,
            is_hole: false,
        };
        assert_eq!(entry, Lcluster::Head(head));
        let error = FullIndex::entry(&[3, 0, 0, 0x10, 9, 0, 0, 0], &header(0)).unwrap_err();
        assert_eq!(*error.kind(), ErrorKind::ClusterOffset { offset: 4096, size: 4096 });
    }

    #[test]
    fn a_block_count_implies_a_distance_of_one() {
        let bytes = [2, 0, 0, 0, 5, 8, 7, 0];
        let entry = FullIndex::entry(&bytes, &header(2)).unwrap();
        assert_eq!(entry, Lcluster::NonHead { back: 1, blocks: Some(5) });
        assert_eq!(FullIndex::forward(&bytes).unwrap(), 7);
        assert!(FullIndex::entry(&bytes, &header(0)).is_err());
    }
}

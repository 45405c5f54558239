//! The map header: 8 bytes in front of every index (docs/format.md F24, F66).

use zerocopy::byteorder::little_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::extent::{ExtentTable, RecordFormat};
use super::round_up;
use crate::address::BlockSize;
use crate::bytes::{fit, low_half, u64_at, view};
use crate::compression::AlgorithmId;
use crate::error::{Error, ErrorKind, Result};
use crate::inode::DataLayout;

const WHOLE_FRAGMENT: u64 = 1 << 63;
/// Counts of extents have 47 bits.
const COUNT_END: u64 = 1 << 47;
const COMPACTED_2B: u16 = 0x0001;
/// The same bit as [`COMPACTED_2B`], in inodes with a full index.
const EXTENTS: u16 = 0x0001;
const BIG_PCLUSTER_1: u16 = 0x0002;
const BIG_PCLUSTER_2: u16 = 0x0004;
const INLINE_PCLUSTER: u16 = 0x0008;
const INTERLACED: u16 = 0x0010;
const FRAGMENT: u16 = 0x0020;

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RawMapHeader {
    /// Low half of the fragment offset; or 2 reserved bytes and the size of the inline tail; or
    /// the low half of the extent count.
    union: U32,
    advise: U16,
    /// Two algorithm numbers; or, with `cluster_bits`, the high half of the extent count.
    algorithms: u8,
    cluster_bits: u8,
}

const _: () = assert!(size_of::<RawMapHeader>() == 8);

/// Where the map header of an inode is, whose inode and xattrs end at `end`.
#[must_use]
pub fn header_offset(end: u64) -> Option<u64> {
    round_up(end, 8)
}

/// What the map header of an inode says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MapHeader {
    /// The whole file is in the packed inode, from this byte on.
    WholeFragment(u64),
    /// An entry for each lcluster follows.
    Index(IndexHeader),
    /// Encoded extents follow.
    Extents(ExtentTable),
}

/// What happens to the last extent of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TailPcluster {
    /// Nothing: it has a pcluster like any other.
    Ordinary,
    /// Its pcluster of this many bytes is after the index.
    Inline(u16),
    /// It is in the packed inode; these are the low 32 bits of its offset there.
    Fragment(u32),
}

/// The header of a full or compact index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IndexHeader {
    /// The lcluster size as a shift, 9..=31.
    pub lcluster_bits: u8,
    /// The last extent.
    pub tail: TailPcluster,
    /// PLAIN extents are rotated by their position in the block.
    pub is_interlaced: bool,
    /// A compact index has 2-byte entries in its middle.
    pub has_2b_packs: bool,
    /// Extents of the first algorithm may have pclusters of several blocks.
    pub has_big_pcluster_1: bool,
    /// The same for PLAIN extents and the second algorithm.
    pub has_big_pcluster_2: bool,
    /// The two algorithm numbers, unchecked: only one that is used has to exist.
    algorithms: [u8; 2],
}

impl MapHeader {
    /// Reads the map header of an inode with this `layout`.
    ///
    /// # Errors
    /// [`ErrorKind::Truncated`], [`ErrorKind::ClusterBits`] for reserved bits, or
    /// [`ErrorKind::BigPclusterBits`].
    pub fn parse(bytes: &[u8], layout: DataLayout, block_size: BlockSize) -> Result<Self> {
        let raw: &RawMapHeader = view(bytes)?;
        let whole = u64_at(bytes, 0).unwrap_or(0);
        if whole & WHOLE_FRAGMENT != 0 {
            return Ok(Self::WholeFragment(whole & !WHOLE_FRAGMENT));
        }
        let advise = raw.advise.get();
        let is_full = layout == DataLayout::CompressedFull;
        if is_full && advise & EXTENTS != 0 {
            return Ok(Self::Extents(ExtentTable {
                records: record_format(raw, block_size),
                is_interlaced: advise & INTERLACED != 0,
                has_fragment: advise & FRAGMENT != 0,
            }));
        }
        if raw.cluster_bits & 0x70 != 0 {
            return Err(Error::new(ErrorKind::ClusterBits(raw.cluster_bits), 7));
        }
        let (big_1, big_2) = (advise & BIG_PCLUSTER_1 != 0, advise & BIG_PCLUSTER_2 != 0);
        if !is_full && big_1 != big_2 {
            return Err(Error::new(ErrorKind::BigPclusterBits(advise), 4));
        }
        Ok(Self::Index(IndexHeader {
            lcluster_bits: block_size.bits().saturating_add(raw.cluster_bits & 15),
            tail: tail(raw),
            is_interlaced: advise & INTERLACED != 0,
            has_2b_packs: !is_full && advise & COMPACTED_2B != 0,
            has_big_pcluster_1: big_1,
            has_big_pcluster_2: big_2,
            algorithms: [raw.algorithms & 15, raw.algorithms >> 4],
        }))
    }
}

/// Writing.
impl MapHeader {
    /// The map header as it is in front of an index of this `layout`.
    ///
    /// # Errors
    /// [`ErrorKind::Unwritable`] for a header that `layout` or its own parts rule out,
    /// [`ErrorKind::ClusterBits`], [`ErrorKind::BigPclusterBits`], and [`ErrorKind::TooLarge`] for
    /// an offset or a count past its field.
    pub fn to_bytes(&self, layout: DataLayout, block_size: BlockSize) -> Result<Vec<u8>> {
        if !layout.is_compressed() {
            return Err(Error::new(ErrorKind::Unwritable("an index in this data layout"), 0));
        }
        let raw = match self {
            Self::WholeFragment(offset) if offset & WHOLE_FRAGMENT == 0 => {
                return Ok((offset | WHOLE_FRAGMENT).to_le_bytes().to_vec());
            }
            Self::WholeFragment(offset) => {
                let field = "the offset of a fragment";
                return Err(Error::new(ErrorKind::TooLarge { field, value: *offset }, 0));
            }
            Self::Index(index) => index.to_raw(layout, block_size)?,
            Self::Extents(table) => raw_extents(table, layout, block_size)?,
        };
        Ok(raw.as_bytes().to_vec())
    }
}

/// The lcluster size above the block size.
fn cluster_bits(lcluster_bits: u8, block_size: BlockSize) -> Result<u8> {
    match lcluster_bits.checked_sub(block_size.bits()) {
        Some(bits) if bits <= 15 => Ok(bits),
        _ => Err(Error::new(ErrorKind::ClusterBits(lcluster_bits), 7)),
    }
}

/// The records of a table. Bits 0x70 of the last byte belong to the count, so that they may be set (F66).
fn record_format(raw: &RawMapHeader, block_size: BlockSize) -> RecordFormat {
    let lcluster_bits = block_size.bits().saturating_add(raw.cluster_bits & 15);
    let high = u64::from(raw.algorithms) | u64::from(raw.cluster_bits) << 8;
    let count = u64::from(raw.union.get()) | high << 32;
    match raw.advise.get() >> 1 & 3 {
        0 => RecordFormat::Bytes4 { lcluster_bits },
        1 => RecordFormat::Bytes8 { lcluster_bits },
        2 => RecordFormat::Bytes16 { count },
        _ => RecordFormat::Bytes32 { count },
    }
}

/// A table with one record for each lcluster has the lcluster size in place of the count's highest byte, and no count.
fn raw_extents(
    table: &ExtentTable,
    layout: DataLayout,
    block_size: BlockSize,
) -> Result<RawMapHeader> {
    if layout != DataLayout::CompressedFull {
        return Err(Error::new(ErrorKind::Unwritable("encoded extents in a compact layout"), 4));
    }
    let (size, count, clusters): (u16, u64, u8) = match table.records {
        RecordFormat::Bytes4 { lcluster_bits } => (0, 0, cluster_bits(lcluster_bits, block_size)?),
        RecordFormat::Bytes8 { lcluster_bits } => (1, 0, cluster_bits(lcluster_bits, block_size)?),
        RecordFormat::Bytes16 { count } => (2, count, 0),
        RecordFormat::Bytes32 { count } => (3, count, 0),
    };
    // The highest bit of the header would make it the offset of a fragment.
    if count >= COUNT_END {
        let field = "the number of extents";
        return Err(Error::new(ErrorKind::TooLarge { field, value: count }, 6));
    }
    let high: u16 = fit(count >> 32, "the number of extents", 6)?;
    let [algorithms, high_byte] = high.to_le_bytes();
    let interlaced = if table.is_interlaced { INTERLACED } else { 0 };
    let fragment = if table.has_fragment { FRAGMENT } else { 0 };
    let advise = EXTENTS | size << 1 | interlaced | fragment;
    Ok(RawMapHeader {
        union: low_half(count).into(),
        advise: advise.into(),
        algorithms,
        cluster_bits: high_byte | clusters,
    })
}

fn tail(raw: &RawMapHeader) -> TailPcluster {
    let advise = raw.advise.get();
    if advise & FRAGMENT != 0 {
        return TailPcluster::Fragment(raw.union.get());
    }
    let inline = u16::try_from(raw.union.get() >> 16).unwrap_or(0);
    if advise & INLINE_PCLUSTER != 0 && inline != 0 {
        TailPcluster::Inline(inline)
    } else {
        TailPcluster::Ordinary
    }
}

impl IndexHeader {
    /// The header of an index with lclusters of `1 << lcluster_bits` bytes whose HEAD1 extents are
    /// of the first algorithm, and HEAD2 ones of the second: nothing else is set.
    #[must_use]
    pub const fn new(lcluster_bits: u8, first: AlgorithmId, second: Option<AlgorithmId>) -> Self {
        let second = match second {
            Some(second) => second.number(),
            None => 0,
        };
        Self {
            lcluster_bits,
            tail: TailPcluster::Ordinary,
            is_interlaced: false,
            has_2b_packs: false,
            has_big_pcluster_1: false,
            has_big_pcluster_2: false,
            algorithms: [first.number(), second],
        }
    }

    fn to_raw(self, layout: DataLayout, block_size: BlockSize) -> Result<RawMapHeader> {
        let is_full = layout == DataLayout::CompressedFull;
        let (big_1, big_2) = (self.has_big_pcluster_1, self.has_big_pcluster_2);
        if is_full && self.has_2b_packs {
            return Err(Error::new(ErrorKind::Unwritable("packs in a full index"), 4));
        }
        let bits = [
            (self.has_2b_packs, COMPACTED_2B),
            (big_1, BIG_PCLUSTER_1),
            (big_2, BIG_PCLUSTER_2),
            (matches!(self.tail, TailPcluster::Inline(_)), INLINE_PCLUSTER),
            (self.is_interlaced, INTERLACED),
            (matches!(self.tail, TailPcluster::Fragment(_)), FRAGMENT),
        ];
        let advise = bits.iter().filter(|(is_set, _)| *is_set).fold(0, |all, (_, bit)| all | bit);
        if !is_full && big_1 != big_2 {
            return Err(Error::new(ErrorKind::BigPclusterBits(advise), 4));
        }
        let union = match self.tail {
            TailPcluster::Ordinary => 0,
            TailPcluster::Inline(0) => {
                return Err(Error::new(ErrorKind::Unwritable("an inline pcluster of 0 bytes"), 2));
            }
            TailPcluster::Inline(bytes) => u32::from(bytes) << 16,
            TailPcluster::Fragment(offset) => offset,
        };
        let [first, second] = self.algorithms;
        Ok(RawMapHeader {
            union: union.into(),
            advise: advise.into(),
            algorithms: first & 15 | second << 4,
            cluster_bits: cluster_bits(self.lcluster_bits, block_size)?,
        })
    }

    /// The size of an lcluster in bytes.
    #[must_use]
    pub fn lcluster_bytes(&self) -> u64 {
        1u64.wrapping_shl(u32::from(self.lcluster_bits))
    }

    /// The algorithm of compressed extents of this kind; PLAIN ones have none.
    ///
    /// # Errors
    /// [`ErrorKind::UnknownAlgorithm`] for a number without a meaning.
    pub fn algorithm(&self, kind: super::HeadKind) -> Result<Option<AlgorithmId>> {
        let [first, second] = self.algorithms;
        match kind {
            super::HeadKind::Plain => Ok(None),
            super::HeadKind::First => AlgorithmId::from_number(first).map(Some),
            super::HeadKind::Second => AlgorithmId::from_number(second).map(Some),
        }
    }

    /// Whether an extent of this kind may have more than one block.
    #[must_use]
    pub const fn may_be_big(&self, kind: super::HeadKind) -> bool {
        match kind {
            super::HeadKind::First => self.has_big_pcluster_1,
            super::HeadKind::Plain | super::HeadKind::Second => self.has_big_pcluster_2,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::HeadKind;
    use super::*;

    fn parse(bytes: [u8; 8], layout: DataLayout) -> Result<MapHeader> {
        MapHeader::parse(&bytes, layout, BlockSize::from_bits(12).unwrap())
    }

    #[test]
    fn the_top_bit_makes_the_rest_an_offset() {
        let header = parse([1, 2, 0, 0, 0xff, 0xff, 0xff, 0xff], DataLayout::CompressedCompact);
        assert_eq!(header.unwrap(), MapHeader::WholeFragment(0x7fff_ffff_0000_0201));
    }

    #[test]
    fn the_same_bit_means_packs_or_extents() {
        let bytes = [3, 0, 0, 0, 0x05, 0, 1, 2];
        let MapHeader::Index(index) =
            parse([0, 0, 0, 0, 1, 0, 0x30, 1], DataLayout::CompressedCompact).unwrap()
        else {
            panic!("a compact inode has an index");
        };
        assert!(index.has_2b_packs);
        assert_eq!(index.lcluster_bytes(), 8192);
        assert_eq!(index.algorithm(HeadKind::Second).unwrap(), Some(AlgorithmId::Zstd));
        let MapHeader::Extents(table) = parse(bytes, DataLayout::CompressedFull).unwrap() else {
            panic!("a full inode with bit 0 has extents");
        };
        assert_eq!(table.records, RecordFormat::Bytes16 { count: 3 | 0x201 << 32 });
        assert_eq!(table.record_bytes(), 16);
    }

    #[test]
    fn the_lcluster_size_of_short_records_is_no_part_of_a_count() {
        for (advise, records) in [
            (1, RecordFormat::Bytes4 { lcluster_bits: 16 }),
            (3, RecordFormat::Bytes8 { lcluster_bits: 16 }),
        ] {
            let bytes = [0, 0, 0, 0, advise, 0, 0, 4];
            let MapHeader::Extents(table) = parse(bytes, DataLayout::CompressedFull).unwrap()
            else {
                panic!("a full inode with bit 0 has extents");
            };
            assert_eq!(table.records, records);
            assert_eq!(table.count(55 << 10), 1);
        }
    }

    #[test]
    fn a_tail_is_inline_or_a_fragment() {
        let tail = |bytes| match parse(bytes, DataLayout::CompressedCompact).unwrap() {
            MapHeader::Index(index) => index.tail,
            other => panic!("{other:?}"),
        };
        assert_eq!(tail([0, 0, 9, 0, 0x08, 0, 0, 0]), TailPcluster::Inline(9));
        assert_eq!(tail([1, 0, 9, 0, 0x28, 0, 0, 0]), TailPcluster::Fragment(0x9_0001));
        assert_eq!(tail([0, 0, 9, 0, 0, 0, 0, 0]), TailPcluster::Ordinary);
    }

    #[test]
    fn contradictions_are_refused() {
        let kind = |bytes, layout| parse(bytes, layout).unwrap_err().into_kind();
        let compact = DataLayout::CompressedCompact;
        assert_eq!(kind([0, 0, 0, 0, 2, 0, 0, 0], compact), ErrorKind::BigPclusterBits(2));
        assert!(parse([0, 0, 0, 0, 2, 0, 0, 0], DataLayout::CompressedFull).is_ok());
        assert_eq!(kind([0, 0, 0, 0, 0, 0, 0, 0x10], compact), ErrorKind::ClusterBits(0x10));
        let MapHeader::Index(index) = parse([0, 0, 0, 0, 0, 0, 0x0f, 0], compact).unwrap() else {
            panic!("an index");
        };
        assert!(index.algorithm(HeadKind::First).is_err());
        assert!(index.algorithm(HeadKind::Plain).is_ok());
    }
}

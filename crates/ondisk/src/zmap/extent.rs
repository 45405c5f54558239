//! Encoded extents: a record for each extent instead of an entry for each lcluster
//! (docs/format.md F35, F36).

use super::{MAP_HEADER_BYTES, round_up, unwritable_extent};
use crate::address::BlockSize;
use crate::bytes::{fit, high_half, low_half, to_u64, truncated, u32_at};
use crate::compression::{AlgorithmId, PCLUSTER_MAX_BYTES};
use crate::error::{Error, ErrorKind, Result};

const LENGTH_MASK: u32 = (1 << 21) - 1;
const PARTIAL: u32 = 1 << 27;

/// The header of a table of encoded extents.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExtentTable {
    /// What the records hold, and with it how many there are.
    pub records: RecordFormat,
    /// Raw extents of whole blocks are rotated by their position in the block.
    pub is_interlaced: bool,
    /// The last extent is in the packed inode.
    pub has_fragment: bool,
}

/// The records of a table, by their length (docs/format.md F35).
///
/// Only the long ones are counted by the header. In place of a part of the count, the header of a table of short
/// ones has the size of an lcluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecordFormat {
    /// 4 bytes, for each lcluster of `1 << lcluster_bits` bytes; the data of each follows that of the one before.
    Bytes4 {
        /// The lcluster size as a shift.
        lcluster_bits: u8,
    },
    /// 8 bytes, for each lcluster; they say where their data starts in the image.
    Bytes8 {
        /// The lcluster size as a shift.
        lcluster_bits: u8,
    },
    /// 16 bytes, which also say where their extent starts in the file.
    Bytes16 {
        /// How many there are.
        count: u64,
    },
    /// The same in 32 bytes, for longer files.
    Bytes32 {
        /// How many there are.
        count: u64,
    },
}

impl RecordFormat {
    /// Bytes of a record as a shift: 2..=5.
    const fn bits(self) -> u8 {
        match self {
            Self::Bytes4 { .. } => 2,
            Self::Bytes8 { .. } => 3,
            Self::Bytes16 { .. } => 4,
            Self::Bytes32 { .. } => 5,
        }
    }
}

impl ExtentTable {
    /// Bytes of a record: 4, 8, 16 or 32.
    #[must_use]
    pub fn record_bytes(&self) -> u64 {
        1u64.wrapping_shl(u32::from(self.records.bits()))
    }

    /// How many records the table of a file of `file_bytes` bytes has. For long records an image says it, so that it
    /// can be any number.
    #[must_use]
    pub fn count(&self, file_bytes: u64) -> u64 {
        match self.records {
            RecordFormat::Bytes16 { count } | RecordFormat::Bytes32 { count } => count,
            RecordFormat::Bytes4 { lcluster_bits } | RecordFormat::Bytes8 { lcluster_bits } => {
                file_bytes.div_ceil(1u64.wrapping_shl(u32::from(lcluster_bits)).max(1))
            }
        }
    }

    /// Decoded bytes of an extent where records do not say where it starts.
    #[must_use]
    pub fn lcluster_bytes(&self) -> Option<u64> {
        match self.records {
            RecordFormat::Bytes16 { .. } | RecordFormat::Bytes32 { .. } => None,
            RecordFormat::Bytes4 { lcluster_bits } | RecordFormat::Bytes8 { lcluster_bits } => {
                Some(1u64.wrapping_shl(u32::from(lcluster_bits)))
            }
        }
    }

    /// The table with the smallest records that hold these of a file of `file_bytes` bytes (F66);
    /// with `has_fragment` the last is [`ExtentRecord::fragment`]. It is not interlaced.
    #[must_use]
    pub fn smallest(
        records: &[ExtentRecord],
        file_bytes: u64,
        block_size: BlockSize,
        has_fragment: bool,
    ) -> Self {
        let is_short = |record: &ExtentRecord| {
            record.length.is_hole() || u32::try_from(record.physical).is_ok()
        };
        let common = common_bits(records, file_bytes, block_size);
        let count = to_u64(records.len());
        let records = match common {
            Some(lcluster_bits) if first_apart(records, has_fragment).is_none() => {
                RecordFormat::Bytes4 { lcluster_bits }
            }
            Some(lcluster_bits) if records.iter().all(is_short) => {
                RecordFormat::Bytes8 { lcluster_bits }
            }
            _ if records.iter().all(|record| u32::try_from(record.logical).is_ok()) => {
                RecordFormat::Bytes16 { count }
            }
            _ => RecordFormat::Bytes32 { count },
        };
        Self { records, is_interlaced: false, has_fragment }
    }

    /// Whether records say where their extent starts in the file.
    #[must_use]
    pub const fn has_logical_starts(&self) -> bool {
        matches!(self.records, RecordFormat::Bytes16 { .. } | RecordFormat::Bytes32 { .. })
    }

    /// Whether records say where their data starts in the image; 4-byte ones follow each other
    /// from one start address in front of them.
    #[must_use]
    pub const fn has_physical_starts(&self) -> bool {
        !matches!(self.records, RecordFormat::Bytes4 { .. })
    }

    /// Where the table starts, whose map header starts at `header`.
    #[must_use]
    pub fn start(&self, header: u64) -> Option<u64> {
        round_up(header.checked_add(MAP_HEADER_BYTES)?, self.record_bytes())
    }

    /// Where record `index` is in a table that starts at `start`.
    #[must_use]
    pub fn record_offset(&self, start: u64, index: u64) -> Option<u64> {
        let address_bytes = if self.has_physical_starts() { 0 } else { 8 };
        start.checked_add(address_bytes)?.checked_add(index.checked_mul(self.record_bytes())?)
    }
}

/// The length word of a record. [`Self::new`] makes one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExtentLength(u32);

impl ExtentLength {
    /// A pcluster of `bytes` encoded bytes, at most 1 MiB; 0 is a hole, and raw data has no
    /// algorithm.
    ///
    /// # Errors
    /// [`ErrorKind::TooLarge`] above 1 MiB, [`ErrorKind::Unwritable`] for a partial reference to a
    /// hole.
    pub fn new(bytes: u32, algorithm: Option<AlgorithmId>, is_partial: bool) -> Result<Self> {
        if bytes > PCLUSTER_MAX_BYTES {
            let field = "the length of a pcluster";
            return Err(Error::new(ErrorKind::TooLarge { field, value: u64::from(bytes) }, 0));
        }
        if bytes == 0 && is_partial {
            return Err(Error::new(ErrorKind::Unwritable("a part of a hole"), 0));
        }
        let format = algorithm.map_or(0, |algorithm| u32::from(algorithm.number()).wrapping_add(1));
        let partial = if is_partial { PARTIAL } else { 0 };
        Ok(Self(bytes | partial | format << 28))
    }

    /// Encoded bytes; 0 is a hole.
    #[must_use]
    pub const fn bytes(self) -> u32 {
        self.0 & LENGTH_MASK
    }

    const fn is_hole(self) -> bool {
        self.bytes() == 0
    }

    /// Whether the data decodes to more than the extent uses.
    #[must_use]
    pub const fn is_partial(self) -> bool {
        self.0 & PARTIAL != 0
    }

    /// The word itself: in the last record of a file with a fragment it is the low half of the
    /// fragment's offset.
    #[must_use]
    pub const fn raw(self) -> u32 {
        self.0
    }

    /// The algorithm; `None` for raw data.
    ///
    /// # Errors
    /// [`ErrorKind::ExtentFormat`] for a number without a meaning.
    pub fn algorithm(self) -> Result<Option<AlgorithmId>> {
        let format = u8::try_from(self.0 >> 28).unwrap_or(u8::MAX);
        match format.checked_sub(1) {
            None => Ok(None),
            Some(number) => match AlgorithmId::from_number(number) {
                Ok(algorithm) => Ok(Some(algorithm)),
                Err(_) => Err(Error::new(ErrorKind::ExtentFormat(format), 0)),
            },
        }
    }
}

/// One record; fields that its size does not have are 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExtentRecord {
    /// Length and flags.
    pub length: ExtentLength,
    /// Where the data starts in the image, in bytes.
    pub physical: u64,
    /// Where the extent starts in the file, in bytes.
    pub logical: u64,
}

impl ExtentRecord {
    /// The last record of a file whose end is in the packed inode, `offset` bytes from its start
    /// (F36).
    #[must_use]
    pub fn fragment(offset: u64, logical: u64) -> Self {
        let length = ExtentLength(low_half(offset));
        Self { length, physical: u64::from(high_half(offset)), logical }
    }

    /// Reads a record of `table`.
    ///
    /// # Errors
    /// [`ErrorKind::Truncated`] if it is not whole.
    pub fn parse(bytes: &[u8], table: &ExtentTable) -> Result<Self> {
        let field = |present: bool, at: usize| {
            if !present {
                return Ok(0);
            }
            u32_at(bytes, at).map(u64::from).ok_or_else(|| truncated(at, bytes.len()))
        };
        let length = u32_at(bytes, 0).ok_or_else(|| truncated(4, bytes.len()))?;
        let has_logical = table.has_logical_starts();
        let physical = field(table.has_physical_starts(), 4)? | field(has_logical, 8)? << 32;
        let logical = field(has_logical, 12)?
            | field(matches!(table.records, RecordFormat::Bytes32 { .. }), 16)? << 32;
        Ok(Self { length: ExtentLength(length), physical, logical })
    }
}

/// The table of encoded extents of a file: everything after its map header, which starts at byte
/// `header_offset`; the gap that aligns the table is zero.
///
/// Every record says where it starts in the file, also where its size leaves no room for that; the
/// starts ascend from 0. In a table with a fragment the last record is [`ExtentRecord::fragment`].
///
/// # Errors
/// [`ErrorKind::ExtentSumMismatch`] if there are not as many records as the table counts,
/// [`ErrorKind::PlanExtent`] for a record that the table has no way to describe, and
/// [`ErrorKind::TooLarge`] for an address past its field.
pub fn write_extents(
    table: &ExtentTable,
    header_offset: u64,
    records: &[ExtentRecord],
) -> Result<Vec<u8>> {
    if let RecordFormat::Bytes16 { count } | RecordFormat::Bytes32 { count } = table.records
        && count != to_u64(records.len())
    {
        let kind = ErrorKind::ExtentSumMismatch { planned: to_u64(records.len()), wanted: count };
        return Err(Error::new(kind, 0));
    }
    let mut bytes = Vec::new();
    let start = table.start(header_offset);
    let gap =
        start.and_then(|start| start.checked_sub(header_offset)?.checked_sub(MAP_HEADER_BYTES));
    let past_end = Error::new(ErrorKind::Unwritable("an index past 2^64"), header_offset);
    bytes.resize(usize::try_from(gap.ok_or(past_end)?).unwrap_or(0), 0);
    if !table.has_physical_starts() {
        let first = records.iter().find(|record| !record.length.is_hole());
        bytes.extend_from_slice(&first.map_or(0, |record| record.physical).to_le_bytes());
        if let Some(at) = first_apart(records, table.has_fragment) {
            let place = records.get(at).map_or(0, |record| record.logical);
            return Err(unwritable_extent(
                "pclusters that are not adjacent in 4-byte records",
                place,
            ));
        }
    }
    let mut before = None;
    for (number, record) in records.iter().enumerate() {
        check_starts(table, number, record, before)?;
        push_record(table, record, &mut bytes)?;
        before = Some(record);
    }
    Ok(bytes)
}

/// Whether `record` starts in the file where its number, or the record before it, lets it.
fn check_starts(
    table: &ExtentTable,
    number: usize,
    record: &ExtentRecord,
    before: Option<&ExtentRecord>,
) -> Result<()> {
    let is_right = match before {
        None => record.logical == 0,
        Some(before) => match table.lcluster_bytes() {
            None => record.logical > before.logical,
            Some(bytes) => to_u64(number).checked_mul(bytes) == Some(record.logical),
        },
    };
    if is_right {
        Ok(())
    } else {
        Err(unwritable_extent("the start of this extent", record.logical))
    }
}

/// The first record whose data does not follow that of those before it, as 4-byte records imply.
/// A hole has no data, and of a fragment's offset they hold the low half only.
fn first_apart(records: &[ExtentRecord], has_fragment: bool) -> Option<usize> {
    let mut next = None;
    records.iter().enumerate().position(|(number, record)| {
        if has_fragment && number.saturating_add(1) == records.len() {
            return record.physical != 0;
        }
        if record.length.is_hole() {
            return false;
        }
        let follows = next.is_none_or(|next| next == record.physical);
        next = Some(record.physical.saturating_add(u64::from(record.length.bytes())));
        !follows
    })
}

/// The lcluster size, as a shift, at whose multiples all records start and after whose last the
/// file ends; none if there is no such size.
fn common_bits(records: &[ExtentRecord], file_bytes: u64, block_size: BlockSize) -> Option<u8> {
    let unit = match records.get(1) {
        Some(second) => second.logical,
        None => file_bytes.checked_next_power_of_two()?.max(u64::from(block_size.bytes())),
    };
    let bits = u8::try_from(unit.trailing_zeros()).ok()?;
    let is_possible = unit.is_power_of_two()
        && bits.checked_sub(block_size.bits()).is_some_and(|above| above <= 15);
    let starts = (0u64..).map(|number| number.checked_mul(unit));
    let is_regular = records.iter().zip(starts).all(|(record, at)| Some(record.logical) == at);
    let is_whole = file_bytes.div_ceil(unit.max(1)) == to_u64(records.len());
    (is_possible && is_regular && is_whole).then_some(bits)
}

fn push_record(table: &ExtentTable, record: &ExtentRecord, bytes: &mut Vec<u8>) -> Result<()> {
    let end = to_u64(bytes.len()).saturating_add(table.record_bytes());
    bytes.extend_from_slice(&record.length.raw().to_le_bytes());
    if table.has_logical_starts() {
        bytes.extend_from_slice(&record.physical.to_le_bytes());
        bytes.extend_from_slice(&low_half(record.logical).to_le_bytes());
        if matches!(table.records, RecordFormat::Bytes32 { .. }) {
            bytes.extend_from_slice(&high_half(record.logical).to_le_bytes());
        } else {
            fit::<u32>(record.logical, "the start of an extent in a 16-byte record", 12)?;
        }
    } else if table.has_physical_starts() {
        let low: u32 = fit(record.physical, "the address in an 8-byte record", 4)?;
        bytes.extend_from_slice(&low.to_le_bytes());
    }
    bytes.resize(usize::try_from(end).unwrap_or(bytes.len()), 0);
    Ok(())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::MapHeader;
    use super::*;
    use crate::DataLayout;

    /// A table of `count` records of `1 << record_bits` bytes, if they are counted.
    fn table(record_bits: u8, count: u64) -> ExtentTable {
        let records = match record_bits {
            2 => RecordFormat::Bytes4 { lcluster_bits: 14 },
            3 => RecordFormat::Bytes8 { lcluster_bits: 14 },
            4 => RecordFormat::Bytes16 { count },
            _ => RecordFormat::Bytes32 { count },
        };
        ExtentTable { records, is_interlaced: false, has_fragment: false }
    }

    #[test]
    fn each_size_has_the_fields_it_has_room_for() {
        let bytes: Vec<u8> = (1..=32).collect();
        let parse = |bits| ExtentRecord::parse(&bytes, &table(bits, 1)).unwrap();
        assert_eq!((parse(2).physical, parse(2).logical), (0, 0));
        assert_eq!((parse(3).physical, parse(3).logical), (0x0807_0605, 0));
        assert_eq!((parse(4).physical, parse(4).logical), (0x0c0b_0a09_0807_0605, 0x100f_0e0d));
        assert_eq!(parse(5).logical, 0x1413_1211_100f_0e0d);
        assert!(ExtentRecord::parse(&bytes[..15], &table(4, 1)).is_err());
    }

    #[test]
    fn the_table_is_aligned_to_its_records() {
        assert_eq!(table(5, 1).start(40), Some(64));
        assert_eq!(table(2, 1).start(40), Some(48));
        assert_eq!(table(2, 1).record_offset(48, 2), Some(64));
        assert_eq!(table(3, 1).record_offset(48, 2), Some(64));
        assert_eq!(table(3, 1).record_offset(48, u64::MAX), None);
    }

    /// Records whose extents have 16 KiB each and whose data follows each other.
    fn records(lengths: &[u32]) -> Vec<ExtentRecord> {
        let mut physical = 4096 + 17;
        (0u64..)
            .zip(lengths)
            .map(|(number, length)| {
                let length = ExtentLength::new(*length, Some(AlgorithmId::Lzma), false).unwrap();
                let record = ExtentRecord { length, physical, logical: number << 14 };
                physical += u64::from(length.bytes());
                record
            })
            .collect()
    }

    proptest! {
        #[test]
        fn records_are_read_as_they_were_written(
            bits in 2u8..=5, at in 0u64..99, lengths in prop::collection::vec(0u32..5000, 1..20),
            fragment: Option<u32>,
        ) {
            let mut all = records(&lengths);
            if let Some(offset) = fragment {
                let logical = (all.len() as u64) << 14;
                all.push(ExtentRecord::fragment(u64::from(offset), logical));
            }
            let has_fragment = fragment.is_some();
            let table = ExtentTable { has_fragment, ..table(bits, all.len() as u64) };
            let bytes = write_extents(&table, at, &all).unwrap();
            let start = table.start(at).unwrap();
            let front = at + MAP_HEADER_BYTES;
            let end = table.record_offset(start, all.len() as u64).unwrap() - front;
            prop_assert_eq!(bytes.len() as u64, end);
            for (number, record) in (0u64..).zip(&all) {
                let place = (table.record_offset(start, number).unwrap() - front) as usize;
                let mut read = ExtentRecord::parse(&bytes[place..], &table).unwrap();
                if !table.has_logical_starts() {
                    read.logical = record.logical;
                }
                if !table.has_physical_starts() {
                    read.physical = record.physical;
                }
                prop_assert_eq!(&read, record);
            }
            if bits == 2 {
                let place = (start - front) as usize;
                let first = u64::from_le_bytes(bytes[place..place + 8].try_into().unwrap());
                // Extents of no bytes are holes, and a table of nothing else has no start.
                let is_hole = lengths.iter().all(|length| *length == 0);
                prop_assert_eq!(first, if is_hole { 0 } else { all[0].physical });
            }
        }
    }

    // The test above expected the place of the first record, and found this case once in thousands of runs.
    #[test]
    fn a_table_of_nothing_but_holes_has_no_start() {
        let start = |lengths: &[u32]| {
            let all = records(lengths);
            let bytes = write_extents(&table(2, all.len() as u64), 0, &all).unwrap();
            u64::from_le_bytes(bytes[..8].try_into().unwrap())
        };
        assert_eq!([start(&[0]), start(&[0, 0]), start(&[0, 5])], [0, 0, 4096 + 17]);
    }

    #[test]
    fn the_smallest_records_that_hold_the_extents_are_chosen() {
        let size = BlockSize::from_bits(12).unwrap();
        let chosen = |records: &[ExtentRecord], bytes: u64| {
            let table = ExtentTable::smallest(records, bytes, size, false);
            assert!(write_extents(&table, 8, records).is_ok(), "{table:?}");
            let header = MapHeader::Extents(table);
            let written = header.to_bytes(DataLayout::CompressedFull, size).unwrap();
            let read = MapHeader::parse(&written, DataLayout::CompressedFull, size).unwrap();
            assert_eq!(read, header);
            assert_eq!(table.count(bytes), records.len() as u64);
            (table.records.bits(), table.lcluster_bytes().map(u64::trailing_zeros))
        };
        let good = records(&[10, 20, 30]);
        assert_eq!(chosen(&good, 3 << 14), (2, Some(14)));
        assert_eq!(chosen(&good, (2 << 14) + 1), (2, Some(14)));
        assert_eq!(chosen(&good, (3 << 14) + 1), (4, None));
        assert_eq!(chosen(&good[..1], 5000), (2, Some(13)));
        assert_eq!(chosen(&good[..1], 5), (2, Some(12)));
        let changed = |change: &dyn Fn(&mut Vec<ExtentRecord>)| {
            let mut records = good.clone();
            change(&mut records);
            records
        };
        assert_eq!(chosen(&changed(&|records| records[2].physical += 1), 3 << 14), (3, Some(14)));
        assert_eq!(chosen(&changed(&|records| records[2].physical = 1 << 32), 3 << 14), (4, None));
        assert_eq!(chosen(&changed(&|records| records[2].logical += 1), 3 << 14), (4, None));
        assert_eq!(chosen(&changed(&|records| records[2].logical = 1 << 32), 1 << 33), (5, None));
        let hole = changed(&|records| {
            records[1].length = ExtentLength::new(0, None, false).unwrap();
            records[1].physical = 0;
            records[2].physical = records[0].physical + 10;
        });
        assert_eq!(chosen(&hole, 3 << 14), (2, Some(14)));
        for (offset, bits) in [(9, 2), (1 << 33, 3)] {
            let mut tailed = good.clone();
            tailed.push(ExtentRecord::fragment(offset, 3 << 14));
            let table = ExtentTable::smallest(&tailed, 4 << 14, size, true);
            assert_eq!(table.records.bits(), bits);
            assert!(write_extents(&table, 8, &tailed).is_ok());
        }
    }

    #[test]
    fn a_record_without_room_for_its_address_is_refused() {
        let good = records(&[10, 20, 30]);
        let assert_refused = |bits: u8, change: &dyn Fn(&mut Vec<ExtentRecord>)| {
            let mut changed = good.clone();
            change(&mut changed);
            let table = table(bits, 3);
            write_extents(&table, 8, &good).unwrap();
            assert!(write_extents(&table, 8, &changed).is_err());
        };
        assert_refused(2, &|records| records[1].physical += 1);
        assert_refused(3, &|records| records[2].physical = 1 << 32);
        assert_refused(3, &|records| records[1].logical += 1);
        assert_refused(4, &|records| records[2].logical = 1 << 32);
        assert_refused(5, &|records| records[2].logical = records[1].logical);
        assert_refused(5, &|records| records[0].logical = 1);
        assert_refused(5, &|records| records.truncate(2));
        assert!(write_extents(&table(4, 2), 8, &good[..1]).is_err());
        assert!(ExtentLength::new((1 << 20) + 1, None, false).is_err());
        assert!(ExtentLength::new(0, None, true).is_err());
        let length = ExtentLength::new(77, Some(AlgorithmId::Zstd), true).unwrap();
        assert_eq!(length, ExtentLength(0x4 << 28 | PARTIAL | 77));
    }

    #[test]
    fn records_for_lclusters_are_counted_by_the_file() {
        for (file_bytes, count) in [(0, 0), (1, 1), (1 << 14, 1), ((1 << 14) + 1, 2)] {
            assert_eq!(table(2, 77).count(file_bytes), count);
            assert_eq!(table(3, 77).count(file_bytes), count);
            assert_eq!(table(4, 77).count(file_bytes), 77);
        }
        assert_eq!(table(2, 0).count(u64::MAX), 1 << 50);
    }

    #[test]
    fn a_length_word_carries_its_format() {
        let length = ExtentLength(0x4 << 28 | PARTIAL | 77);
        assert_eq!(length.bytes(), 77);
        assert!(length.is_partial());
        assert_eq!(length.algorithm().unwrap(), Some(AlgorithmId::Zstd));
        assert_eq!(ExtentLength(5).algorithm().unwrap(), None);
        assert!(ExtentLength(0x5 << 28).algorithm().is_err());
    }
}

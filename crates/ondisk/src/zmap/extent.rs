//! Encoded extents: a record for each extent instead of an entry for each lcluster
//! (docs/format.md F35, F36).

use super::{MAP_HEADER_BYTES, round_up, unwritable_extent};
use crate::address::BlockSize;
use crate::bytes::{fit, high_half, low_half, truncated, u32_at, wide};
use crate::compression::{AlgorithmId, PCLUSTER_MAX_BYTES};
use crate::error::{Error, ErrorKind, Result};

const LENGTH_MASK: u32 = (1 << 21) - 1;
const PARTIAL: u32 = 1 << 27;

/// The header of a table of encoded extents.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExtentTable {
    /// How many records there are; it counts only for records of 16 and 32 bytes.
    pub count: u64,
    /// Bytes of a record as a shift: 2..=5.
    pub record_bits: u8,
    /// Decoded bytes of an extent as a shift, for records of 4 and 8 bytes.
    pub lcluster_bits: u8,
    /// Raw extents of whole blocks are rotated by their position in the block.
    pub is_interlaced: bool,
    /// The last extent is in the packed inode.
    pub has_fragment: bool,
}

impl ExtentTable {
    /// Bytes of a record: 4, 8, 16 or 32.
    #[must_use]
    pub fn record_bytes(&self) -> u64 {
        1u64.wrapping_shl(u32::from(self.record_bits & 7))
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
        let record_bits = match common {
            Some(_) if first_apart(records, has_fragment).is_none() => 2,
            Some(_) if records.iter().all(is_short) => 3,
            _ if records.iter().all(|record| u32::try_from(record.logical).is_ok()) => 4,
            _ => 5,
        };
        let lcluster_bits = common.filter(|_| record_bits < 4).unwrap_or(block_size.bits());
        let above = lcluster_bits.saturating_sub(block_size.bits());
        // A table that counts nothing has the lcluster size in the count's highest byte (F66).
        let count = if record_bits < 4 { u64::from(above) << 40 } else { wide(records.len()) };
        Self { count, record_bits, lcluster_bits, is_interlaced: false, has_fragment }
    }

    /// Whether records say where their extent starts in the file.
    #[must_use]
    pub const fn has_logical_starts(&self) -> bool {
        self.record_bits >= 4
    }

    /// Whether records say where their data starts in the image; 4-byte ones follow each other
    /// from one start address in front of them.
    #[must_use]
    pub const fn has_physical_starts(&self) -> bool {
        self.record_bits >= 3
    }

    /// Bytes of an extent where records do not say.
    #[must_use]
    pub fn lcluster_bytes(&self) -> u64 {
        1u64.wrapping_shl(u32::from(self.lcluster_bits))
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
        let logical = field(has_logical, 12)? | field(table.record_bits >= 5, 16)? << 32;
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
    if table.has_logical_starts() && table.count != wide(records.len()) {
        let kind =
            ErrorKind::ExtentSumMismatch { planned: wide(records.len()), wanted: table.count };
        return Err(Error::new(kind, 0));
    }
    if !(2..=5).contains(&table.record_bits) {
        let field = "the size of an extent record";
        return Err(Error::new(
            ErrorKind::TooLarge { field, value: u64::from(table.record_bits) },
            4,
        ));
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
        Some(before) if table.has_logical_starts() => record.logical > before.logical,
        Some(_) => wide(number).checked_mul(table.lcluster_bytes()) == Some(record.logical),
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
    let is_whole = file_bytes.div_ceil(unit.max(1)) == wide(records.len());
    (is_possible && is_regular && is_whole).then_some(bits)
}

fn push_record(table: &ExtentTable, record: &ExtentRecord, bytes: &mut Vec<u8>) -> Result<()> {
    let end = wide(bytes.len()).saturating_add(table.record_bytes());
    bytes.extend_from_slice(&record.length.raw().to_le_bytes());
    if table.has_logical_starts() {
        bytes.extend_from_slice(&record.physical.to_le_bytes());
        bytes.extend_from_slice(&low_half(record.logical).to_le_bytes());
        if table.record_bits >= 5 {
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

    fn table(record_bits: u8) -> ExtentTable {
        ExtentTable {
            count: 1,
            record_bits,
            lcluster_bits: 14,
            is_interlaced: false,
            has_fragment: false,
        }
    }

    #[test]
    fn each_size_has_the_fields_it_has_room_for() {
        let bytes: Vec<u8> = (1..=32).collect();
        let parse = |bits| ExtentRecord::parse(&bytes, &table(bits)).unwrap();
        assert_eq!((parse(2).physical, parse(2).logical), (0, 0));
        assert_eq!((parse(3).physical, parse(3).logical), (0x0807_0605, 0));
        assert_eq!((parse(4).physical, parse(4).logical), (0x0c0b_0a09_0807_0605, 0x100f_0e0d));
        assert_eq!(parse(5).logical, 0x1413_1211_100f_0e0d);
        assert!(ExtentRecord::parse(&bytes[..15], &table(4)).is_err());
    }

    #[test]
    fn the_table_is_aligned_to_its_records() {
        assert_eq!(table(5).start(40), Some(64));
        assert_eq!(table(2).start(40), Some(48));
        assert_eq!(table(2).record_offset(48, 2), Some(64));
        assert_eq!(table(3).record_offset(48, 2), Some(64));
        assert_eq!(table(3).record_offset(48, u64::MAX), None);
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
            let mut table = table(bits);
            let mut all = records(&lengths);
            if let Some(offset) = fragment {
                table.has_fragment = true;
                let logical = (all.len() as u64) << 14;
                all.push(ExtentRecord::fragment(u64::from(offset), logical));
            }
            table.count = all.len() as u64;
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
                prop_assert_eq!(first, all[0].physical);
            }
        }
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
            (table.record_bits, table.lcluster_bits)
        };
        let good = records(&[10, 20, 30]);
        assert_eq!(chosen(&good, 3 << 14), (2, 14));
        assert_eq!(chosen(&good, (2 << 14) + 1), (2, 14));
        assert_eq!(chosen(&good, (3 << 14) + 1), (4, 12));
        assert_eq!(chosen(&good[..1], 5000), (2, 13));
        assert_eq!(chosen(&good[..1], 5), (2, 12));
        let changed = |change: &dyn Fn(&mut Vec<ExtentRecord>)| {
            let mut records = good.clone();
            change(&mut records);
            records
        };
        assert_eq!(chosen(&changed(&|records| records[2].physical += 1), 3 << 14), (3, 14));
        assert_eq!(chosen(&changed(&|records| records[2].physical = 1 << 32), 3 << 14), (4, 12));
        assert_eq!(chosen(&changed(&|records| records[2].logical += 1), 3 << 14), (4, 12));
        assert_eq!(chosen(&changed(&|records| records[2].logical = 1 << 32), 1 << 33), (5, 12));
        let hole = changed(&|records| {
            records[1].length = ExtentLength::new(0, None, false).unwrap();
            records[1].physical = 0;
            records[2].physical = records[0].physical + 10;
        });
        assert_eq!(chosen(&hole, 3 << 14), (2, 14));
        for (offset, bits) in [(9, 2), (1 << 33, 3)] {
            let mut tailed = good.clone();
            tailed.push(ExtentRecord::fragment(offset, 3 << 14));
            let table = ExtentTable::smallest(&tailed, 4 << 14, size, true);
            assert_eq!(table.record_bits, bits);
            assert!(write_extents(&table, 8, &tailed).is_ok());
        }
    }

    #[test]
    fn a_record_without_room_for_its_address_is_refused() {
        let good = records(&[10, 20, 30]);
        let assert_refused = |bits: u8, change: &dyn Fn(&mut Vec<ExtentRecord>)| {
            let mut changed = good.clone();
            change(&mut changed);
            let table = ExtentTable { count: 3, ..table(bits) };
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
        assert!(write_extents(&table(6), 8, &good[..1]).is_err());
        assert!(ExtentLength::new((1 << 20) + 1, None, false).is_err());
        assert!(ExtentLength::new(0, None, true).is_err());
        let length = ExtentLength::new(77, Some(AlgorithmId::Zstd), true).unwrap();
        assert_eq!(length, ExtentLength(0x4 << 28 | PARTIAL | 77));
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

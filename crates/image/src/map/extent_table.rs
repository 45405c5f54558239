//! Encoded extents: a table of records, found by number or by binary search (docs/format.md F35,
//! F36).

use ferrofs_ondisk::Nid;
use ferrofs_ondisk::zmap::{ExtentRecord, ExtentTable};

use super::{ExtentDensity, MetaCursor, checked, plain};
use crate::counted_starts::{CountedStart, CountedStarts};
use crate::error::{Error, ErrorKind, Result, address, parsed};
use crate::extent::{Address, Cluster, ClusterId, Coding, DataLocation, MappedExtent};
use crate::inner::ImageInner;
use crate::inode::Inode;

/// The extent table of one file.
#[derive(Debug)]
pub(super) struct ExtentTableMap {
    cursor: MetaCursor,
    table: ExtentTable,
    /// How many records there are: for long ones any number that the image says.
    count: u64,
    /// Where the table starts.
    start: u64,
    size: u64,
    nid: Nid,
    /// For records without physical starts: from where counting continues.
    counted: Option<CountedStart>,
    /// For records with logical starts: the number to try first.
    try_first: u64,
}

/// What a record says about an extent.
struct PlacedRecord {
    record: ExtentRecord,
    start: u64,
    end: u64,
    is_last: bool,
}

impl ExtentTableMap {
    pub(super) fn new(inode: &Inode, table: ExtentTable, header_at: u64) -> Result<Self> {
        let start = address(table.start(header_at))?;
        let size = inode.size();
        let count = table.count(size);
        Ok(Self {
            cursor: MetaCursor::new(inode),
            table,
            count,
            start,
            size,
            nid: inode.nid(),
            counted: None,
            try_first: 0,
        })
    }

    pub(super) fn extent_at(&mut self, inner: &ImageInner, offset: u64) -> Result<MappedExtent> {
        let placed = match self.table.lcluster_bytes() {
            None => self.by_search(inner, offset)?,
            Some(lcluster_bytes) => Some(self.by_number(inner, offset, lcluster_bytes)?),
        };
        match placed {
            Some(placed) => self.extent(inner, &placed),
            None => self.before_first(inner),
        }
    }

    /// How many records there are.
    pub(super) fn entries(&self) -> u64 {
        self.count
    }

    /// Bytes of the file for each record, where these do not say where they start.
    pub(super) fn lcluster_bytes(&self) -> Option<u64> {
        self.table.lcluster_bytes()
    }

    /// Checks that records are in the order that the search needs.
    pub(super) fn check(&mut self, inner: &ImageInner) -> Result<()> {
        if !self.table.has_logical_starts() {
            return Ok(());
        }
        let (mut last, mut density) = (None, ExtentDensity::default());
        for number in 0..self.count {
            let start = self.record(inner, number)?.logical;
            if last >= Some(start) || start >= self.size {
                return Err(ErrorKind::ExtentOrder.into());
            }
            density.add(start)?;
            last = Some(start);
        }
        Ok(())
    }

    fn extent(&self, inner: &ImageInner, placed: &PlacedRecord) -> Result<MappedExtent> {
        let length = placed.end.saturating_sub(placed.start);
        let location = self.location(inner, placed, length)?;
        Ok(MappedExtent { start: placed.start, length, location })
    }

    fn location(
        &self,
        inner: &ImageInner,
        placed: &PlacedRecord,
        decoded_bytes: u64,
    ) -> Result<DataLocation> {
        let record = &placed.record;
        if placed.is_last && self.table.has_fragment {
            let high = if self.table.has_physical_starts() { record.physical << 32 } else { 0 };
            return Ok(DataLocation::Fragment { offset: u64::from(record.length.raw()) | high });
        }
        let encoded_bytes = record.length.bytes();
        if encoded_bytes == 0 {
            return Ok(DataLocation::Hole);
        }
        let at = Address::unified(record.physical);
        let coding = match parsed(record.length.algorithm(), record.physical)? {
            Some(algorithm) => Coding::Compressed(algorithm),
            None => {
                let whole_blocks = inner.sb.block_size.within(record.physical) == 0
                    && inner.sb.block_size.within(u64::from(encoded_bytes)) == 0;
                plain(inner, self.table.is_interlaced && whole_blocks, placed.start)
            }
        };
        let id = ClusterId { address: at, encoded_bytes, coding };
        let is_partial = record.length.is_partial();
        Ok(DataLocation::Cluster(checked(inner, Cluster { id, decoded_bytes, is_partial })?))
    }

    /// Records of 4 and 8 bytes: one for each lcluster.
    fn by_number(
        &mut self,
        inner: &ImageInner,
        offset: u64,
        lcluster_bytes: u64,
    ) -> Result<PlacedRecord> {
        let number = address(offset.checked_div(lcluster_bytes))?;
        let mut record = self.record(inner, number)?;
        if !self.table.has_physical_starts() {
            record.physical = self.counted_start(inner, number)?;
        }
        let start = address(number.checked_mul(lcluster_bytes))?;
        let end = start.saturating_add(lcluster_bytes);
        Ok(PlacedRecord { record, start, end: end.min(self.size), is_last: end >= self.size })
    }

    /// Where the data of record `number` starts if records only say how long they are.
    fn counted_start(&mut self, inner: &ImageInner, number: u64) -> Result<u64> {
        let own = self.counted.filter(|counted| counted.number <= number);
        let mut at = match own.or_else(|| inner.counted_starts.before(self.nid, number)) {
            Some(known) => known,
            None => {
                let bytes = self.cursor.bytes(inner, self.start, 8)?;
                let field = <[u8; 8]>::try_from(bytes).unwrap_or_default();
                CountedStart { number: 0, physical: u64::from_le_bytes(field) }
            }
        };
        while at.number < number {
            let length = self.record(inner, at.number)?.length.bytes();
            at.physical = address(at.physical.checked_add(u64::from(length)))?;
            at.number = at.number.saturating_add(1);
            if at.number.is_multiple_of(CountedStarts::STEP) {
                inner.counted_starts.add(self.nid, at);
            }
        }
        self.counted = Some(at);
        Ok(at.physical)
    }

    /// Records of 16 and 32 bytes: the last one that starts at or before `offset`.
    fn by_search(&mut self, inner: &ImageInner, offset: u64) -> Result<Option<PlacedRecord>> {
        let (mut low, mut high) = (0, self.count);
        let mut try_first = Some(self.try_first).filter(|number| *number < high);
        while low < high {
            let middle = try_first.take().unwrap_or_else(|| low.midpoint(high));
            if self.record(inner, middle)?.logical > offset {
                high = middle;
            } else {
                low = middle.saturating_add(1);
                // A sequential reader needs exactly the record after the last one.
                let next = (low < high).then_some(low).filter(|_| middle == self.try_first);
                try_first = next;
            }
        }
        let Some(number) = low.checked_sub(1) else { return Ok(None) };
        let record = self.record(inner, number)?;
        let is_last = low >= self.count;
        let end = if is_last { self.size } else { self.record(inner, low)?.logical };
        if record.logical > offset || end <= offset || end > self.size {
            return Err(ErrorKind::ExtentOrder.into());
        }
        self.try_first = low;
        Ok(Some(PlacedRecord { record, start: record.logical, end, is_last }))
    }

    /// What lies before the first record is a hole.
    fn before_first(&mut self, inner: &ImageInner) -> Result<MappedExtent> {
        let end = if self.count == 0 { self.size } else { self.record(inner, 0)?.logical };
        if end == 0 || end > self.size {
            return Err(ErrorKind::ExtentOrder.into());
        }
        Ok(MappedExtent { start: 0, length: end, location: DataLocation::Hole })
    }

    fn record(&mut self, inner: &ImageInner, number: u64) -> Result<ExtentRecord> {
        let at = address(self.table.record_offset(self.start, number))?;
        let bytes = self.cursor.bytes(inner, at, self.table.record_bytes())?;
        parsed(ExtentRecord::parse(bytes, &self.table), at).map_err(|error: Error| error.at(at))
    }
}

//! Encoded extents: a table of records, found by number or by binary search (docs/format.md F35,
//! F36).

use ferrofs_ondisk::zmap::{ExtentRecord, ExtentTable};

use super::cursor::Cursor;
use super::{Data, Extent, checked, plain};
use crate::cluster::{Cluster, ClusterId, ClusterPlace, Coding};
use crate::error::{Error, ErrorKind, Result, address, parsed};
use crate::image::Core;
use crate::inode::Inode;

/// The extent table of one file.
#[derive(Debug)]
pub(super) struct Extents {
    cursor: Cursor,
    table: ExtentTable,
    /// Where the table starts.
    start: u64,
    size: u64,
    /// A record number and where its data starts, for records that do not say: counting goes on
    /// from here. For records with logical starts, the number to try first.
    known: (u64, u64),
}

/// What a record says about an extent.
struct Placed {
    record: ExtentRecord,
    start: u64,
    end: u64,
    is_last: bool,
}

impl Extents {
    pub(super) fn new(inode: &Inode, table: ExtentTable, header_at: u64) -> Result<Self> {
        let start = address(table.start(header_at))?;
        let size = inode.size();
        Ok(Self { cursor: Cursor::new(inode), table, start, size, known: (0, 0) })
    }

    pub(super) fn extent_at(&mut self, core: &Core, offset: u64) -> Result<Extent> {
        let placed = if self.table.has_logical_starts() {
            self.by_search(core, offset)?
        } else {
            Some(self.by_number(core, offset)?)
        };
        match placed {
            Some(placed) => self.extent(core, &placed),
            None => self.before_first(core),
        }
    }

    /// Checks that records are in the order that the search relies on.
    pub(super) fn check(&mut self, core: &Core) -> Result<()> {
        if !self.table.has_logical_starts() {
            return Ok(());
        }
        let mut last = None;
        for number in 0..self.table.count {
            let start = self.record(core, number)?.logical;
            if last >= Some(start) || start >= self.size {
                return Err(ErrorKind::ExtentOrder.into());
            }
            last = Some(start);
        }
        Ok(())
    }

    fn extent(&self, core: &Core, placed: &Placed) -> Result<Extent> {
        let length = placed.end.saturating_sub(placed.start);
        let data = self.data(core, placed, length)?;
        Ok(Extent { start: placed.start, length, data })
    }

    fn data(&self, core: &Core, placed: &Placed, decoded_bytes: u64) -> Result<Data> {
        let record = &placed.record;
        if placed.is_last && self.table.has_fragment {
            let high = if self.table.has_physical_starts() { record.physical << 32 } else { 0 };
            return Ok(Data::Fragment { offset: u64::from(record.length.raw()) | high });
        }
        let encoded_bytes = record.length.bytes();
        if encoded_bytes == 0 {
            return Ok(Data::Hole);
        }
        let place = ClusterPlace::Data(record.physical);
        let coding = match parsed(record.length.algorithm(), record.physical)? {
            Some(algorithm) => Coding::Compressed(algorithm),
            None => {
                let whole_blocks = core.sb.block_size.within(record.physical) == 0
                    && core.sb.block_size.within(u64::from(encoded_bytes)) == 0;
                plain(core, self.table.is_interlaced && whole_blocks, placed.start)
            }
        };
        let id = ClusterId { place, encoded_bytes, coding };
        let is_partial = record.length.is_partial();
        Ok(Data::Cluster(checked(core, Cluster { id, decoded_bytes, is_partial })?))
    }

    /// Records of 4 and 8 bytes: one for each lcluster.
    fn by_number(&mut self, core: &Core, offset: u64) -> Result<Placed> {
        let size = self.table.lcluster_bytes();
        let number = offset.wrapping_shr(u32::from(self.table.lcluster_bits));
        let mut record = self.record(core, number)?;
        if !self.table.has_physical_starts() {
            record.physical = self.counted_start(core, number)?;
        }
        let start = address(number.checked_mul(size))?;
        let end = start.saturating_add(size);
        Ok(Placed { record, start, end: end.min(self.size), is_last: end >= self.size })
    }

    /// Where the data of record `number` starts if records only say how long they are.
    fn counted_start(&mut self, core: &Core, number: u64) -> Result<u64> {
        let (mut at, mut physical) = self.known;
        if at == 0 || at > number {
            let bytes = self.cursor.bytes(core, self.start, 8)?;
            let field = <[u8; 8]>::try_from(bytes).unwrap_or_default();
            (at, physical) = (0, u64::from_le_bytes(field));
        }
        while at < number {
            let length = self.record(core, at)?.length.bytes();
            physical = address(physical.checked_add(u64::from(length)))?;
            at = at.saturating_add(1);
        }
        self.known = (at, physical);
        Ok(physical)
    }

    /// Records of 16 and 32 bytes: the last one that starts at or before `offset`.
    fn by_search(&mut self, core: &Core, offset: u64) -> Result<Option<Placed>> {
        let (mut low, mut high) = (0, self.table.count);
        let mut try_first = Some(self.known.0).filter(|number| *number < high);
        while low < high {
            let middle = try_first.take().unwrap_or_else(|| low.midpoint(high));
            if self.record(core, middle)?.logical > offset {
                high = middle;
            } else {
                low = middle.saturating_add(1);
                // Sequential readers want the record after the last one, and no other.
                let next = (low < high).then_some(low).filter(|_| middle == self.known.0);
                try_first = next;
            }
        }
        let Some(number) = low.checked_sub(1) else { return Ok(None) };
        let record = self.record(core, number)?;
        let is_last = low >= self.table.count;
        let end = if is_last { self.size } else { self.record(core, low)?.logical };
        if record.logical > offset || end <= offset || end > self.size {
            return Err(ErrorKind::ExtentOrder.into());
        }
        self.known.0 = low;
        Ok(Some(Placed { record, start: record.logical, end, is_last }))
    }

    /// What lies before the first record is a hole.
    fn before_first(&mut self, core: &Core) -> Result<Extent> {
        let end = if self.table.count == 0 { self.size } else { self.record(core, 0)?.logical };
        if end == 0 || end > self.size {
            return Err(ErrorKind::ExtentOrder.into());
        }
        Ok(Extent { start: 0, length: end, data: Data::Hole })
    }

    fn record(&mut self, core: &Core, number: u64) -> Result<ExtentRecord> {
        let at = address(self.table.record_offset(self.start, number))?;
        let bytes = self.cursor.bytes(core, at, self.table.record_bytes())?;
        parsed(ExtentRecord::parse(bytes, &self.table), at).map_err(|error: Error| error.at(at))
    }
}

//! Reading a whole file piece by piece, in order, for extraction and verification.
//!
//! Each cluster is decoded once, into a buffer that the next piece uses again. Clusters of the
//! packed inode, which many files share, come from the cache.

use std::ops::Range;

use ferrofs_workers::memory::AllocPolicy;

use crate::engine::{DecodeSlot, InputRequest, InputWindow};
use crate::error::{Error, ErrorContext, ErrorKind, address};
use crate::extent::{Address, Cluster, DataLocation, MappedExtent};
use crate::inner::ImageInner;
use crate::inode::Inode;
use crate::map::ExtentMap;
use crate::source::{self, outside};

/// A piece of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FilePiece<'a> {
    /// Bytes that are stored.
    Data {
        /// Where they lie in the file.
        offset: u64,
        /// The bytes; never none.
        bytes: &'a [u8],
    },
    /// Bytes that are not stored, and are zeros.
    Hole {
        /// Where the hole starts in the file.
        offset: u64,
        /// How long it is; never 0.
        length: u64,
    },
}

/// The most bytes of a piece that is not a cluster.
const RAW_PIECE_BYTES: u64 = 256 << 10;

const _: () = assert!(RAW_PIECE_BYTES <= InputWindow::MAX_BYTES);

impl ImageInner {
    /// Calls `sink` with the part of `inode` that belongs to `range`, in order. Returns which part
    /// that is. A cluster belongs as a whole to the range in which it starts, so that no cluster is
    /// decoded twice when a file is read in ranges. All else is cut at the ends of the range.
    pub(crate) fn for_each_piece_in<E: From<Error>>(
        &self,
        inode: &Inode,
        range: Range<u64>,
        sink: &mut impl FnMut(FilePiece<'_>) -> Result<(), E>,
    ) -> Result<Range<u64>, E> {
        self.for_wanted_pieces_in(inode, range, None, sink)
    }

    /// The same, without the extents that `filter` leaves out. Those of the packed file are asked
    /// for one by one.
    pub(crate) fn for_wanted_pieces_in<E: From<Error>>(
        &self,
        inode: &Inode,
        range: Range<u64>,
        filter: Option<&dyn ExtentFilter>,
        sink: &mut impl FnMut(FilePiece<'_>) -> Result<(), E>,
    ) -> Result<Range<u64>, E> {
        let end = range.end.min(inode.size());
        if range.start >= end {
            return Ok(end..end);
        }
        let mut slot = self.engine.decode_slots.acquire();
        let mut map = ExtentMap::new(self, inode)?;
        let mut extent = find(&mut map, range.start, filter)?;
        let is_split = extent.start < range.start;
        let start = if is_split && extent.is_cluster() { extent.end() } else { range.start };
        let mut at = start;
        let reader = PieceReader { inner: self, inode, filter };
        while at < end {
            if !extent.contains(at) {
                extent = find(&mut map, at, filter)?;
            }
            // A damaged index may lead back into an extent that was passed on already.
            if extent.start != at && !(is_split && at == start && !extent.is_cluster()) {
                let error = Error::new(ErrorKind::WrongExtent { offset: at });
                return Err(error.in_inode(inode.nid()).at(inode.end()).into());
            }
            let part = if extent.is_cluster() { extent } else { extent.cut(at, end)? };
            let is_fragment = matches!(part.location, DataLocation::Fragment { .. });
            if is_fragment || is_wanted(filter, &part).in_inode(inode.nid())? {
                reader.extent(&mut slot, &part, sink)?;
                has_read(filter);
            }
            at = part.end();
        }
        Ok(start..at)
    }
}

/// Says which extents are to be read.
pub(crate) trait ExtentFilter {
    /// Whether an extent is to be read.
    fn wants(&self, extent: &MappedExtent) -> Result<bool, Error>;

    /// An extent was found after so many steps of a search in an index.
    fn has_searched(&self, steps: u64) -> Result<(), Error>;

    /// The extent that was wanted last was read. Without this call, reading it has failed.
    fn has_read(&self);
}

fn is_wanted(filter: Option<&dyn ExtentFilter>, extent: &MappedExtent) -> Result<bool, Error> {
    filter.map_or(Ok(true), |filter| filter.wants(extent))
}

/// The extent that holds byte `offset` of a file.
fn find(
    map: &mut ExtentMap<'_>,
    offset: u64,
    filter: Option<&dyn ExtentFilter>,
) -> Result<MappedExtent, Error> {
    let extent = map.extent_at(offset)?;
    match filter {
        Some(filter) => filter.has_searched(map.take_search_steps()).map(|()| extent),
        None => Ok(extent),
    }
}

fn has_read(filter: Option<&dyn ExtentFilter>) {
    if let Some(filter) = filter {
        filter.has_read();
    }
}

/// Reads the extents of one file.
struct PieceReader<'a> {
    inner: &'a ImageInner,
    inode: &'a Inode,
    filter: Option<&'a dyn ExtentFilter>,
}

impl PieceReader<'_> {
    fn extent<E: From<Error>>(
        &self,
        slot: &mut DecodeSlot<'_>,
        extent: &MappedExtent,
        sink: &mut impl FnMut(FilePiece<'_>) -> Result<(), E>,
    ) -> Result<(), E> {
        let offset = extent.start;
        let engine = &self.inner.engine;
        match extent.location {
            DataLocation::Hole => sink(FilePiece::Hole { offset, length: extent.length }),
            DataLocation::Stored(Address::Data { device, offset: from }) => {
                for part in parts(extent.start..extent.end()) {
                    let from = address(from.checked_add(part.start.saturating_sub(offset)))?;
                    let bytes = length(&part);
                    slot.counters.served_raw(bytes);
                    let request = InputRequest { device, offset: from, bytes, run_bytes: 0 };
                    let policy = AllocPolicy::MustSucceed;
                    let bytes = slot.window.get(engine.storage(), request, policy);
                    let bytes = bytes.in_inode(self.inode.nid())?;
                    sink(FilePiece::Data { offset: part.start, bytes })?;
                }
                Ok(())
            }
            DataLocation::Stored(Address::Metadata { space, offset: from }) => {
                // At most a block, as the map has checked.
                let count = length(&(0..extent.length));
                slot.counters.served_raw(count);
                let bytes = self.inner.metadata(space, from, count);
                sink(FilePiece::Data { offset, bytes: &bytes.in_inode(self.inode.nid())? })
            }
            DataLocation::Cluster(cluster) if cluster.is_partial && cluster.is_data() => {
                // Other files use the rest of it.
                let shared = engine.shared_data(slot, &cluster).in_inode(self.inode.nid())?;
                let bytes = address(shared.get(..length(&(0..extent.length))))?;
                slot.counters.served(bytes.len());
                sink(FilePiece::Data { offset, bytes })
            }
            DataLocation::Cluster(cluster) => {
                self.cluster(slot, &cluster, |bytes| sink(FilePiece::Data { offset, bytes }))
            }
            DataLocation::Fragment { offset: from } => {
                let packed = self.inner.packed_for(self.inode).in_inode(self.inode.nid())?;
                let end = from.checked_add(extent.length).filter(|end| *end <= packed.size());
                let end = end.ok_or_else(|| {
                    outside(from, extent.length, packed.size()).in_inode(self.inode.nid())
                })?;
                FragmentReader { inner: self.inner, packed, range: from..end, filter: self.filter }
                    .read(slot, offset, sink)
            }
        }
    }

    /// Decodes a cluster into the buffer of the slot.
    fn cluster<E: From<Error>>(
        &self,
        slot: &mut DecodeSlot<'_>,
        cluster: &Cluster,
        sink: impl FnOnce(&[u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        let engine = &self.inner.engine;
        let count = cluster.decoded_length();
        let prepared = engine.prepare(slot, cluster, 0, AllocPolicy::MustSucceed);
        prepared.in_inode(self.inode.nid())?;
        let output = slot.take_output(&engine.memory, count, AllocPolicy::MustSucceed);
        let mut output = output.in_inode(self.inode.nid())?;
        let target = output.get_mut(..count).unwrap_or_default();
        let decoded = if cluster.is_data() {
            engine.decode_data(slot, cluster, 0, target, AllocPolicy::MustSucceed)
        } else {
            self.inner
                .encoded_metadata(cluster)
                .and_then(|input| engine.decode(slot, cluster, &input, target))
        };
        decoded.in_inode(self.inode.nid())?;
        slot.counters.served(count);
        let taken = sink(target);
        slot.keep_output(output);
        taken
    }
}

/// A range of the packed file.
struct FragmentReader<'a> {
    inner: &'a ImageInner,
    packed: &'a Inode,
    range: Range<u64>,
    filter: Option<&'a dyn ExtentFilter>,
}

impl FragmentReader<'_> {
    /// Calls `sink` with the range, as bytes of a file from `offset` on.
    fn read<E: From<Error>>(
        self,
        slot: &mut DecodeSlot<'_>,
        offset: u64,
        sink: &mut impl FnMut(FilePiece<'_>) -> Result<(), E>,
    ) -> Result<(), E> {
        let Self { inner, packed, range, filter } = self;
        let mut map = ExtentMap::new(inner, packed)?;
        let mut at = range.start;
        while at < range.end {
            let extent = find(&mut map, at, filter)?;
            let mut end = extent.end().min(range.end);
            let place = offset.saturating_add(at.saturating_sub(range.start));
            // Only clusters are read whole, whatever part of them is wanted. Of stored data a filter sees what is read.
            let extent = match extent.location {
                DataLocation::Hole | DataLocation::Cluster(_) => extent,
                _ => {
                    end = end.min(at.saturating_add(RAW_PIECE_BYTES));
                    extent.cut(at, end).in_inode(packed.nid())?
                }
            };
            if !is_wanted(filter, &extent).in_inode(packed.nid())? {
                at = end;
                continue;
            }
            match extent.location {
                // Never cut: a hole may be as long as a 64-bit number can say.
                DataLocation::Hole => {
                    sink(FilePiece::Hole { offset: place, length: end.saturating_sub(at) })?;
                    at = end;
                }
                DataLocation::Cluster(cluster) => {
                    let part = length(&(extent.start..at))..length(&(extent.start..end));
                    let mut pass = |decoded: &[u8]| {
                        let bytes = address(decoded.get(part.clone()))?;
                        sink(FilePiece::Data { offset: place, bytes })
                    };
                    // To copy an uncompressed cluster again is as quick as to cache it.
                    if cluster.is_compressed() {
                        let shared = inner.shared_cluster(slot, &cluster).in_inode(packed.nid())?;
                        slot.counters.served(part.len());
                        pass(&shared)?;
                    } else {
                        PieceReader { inner, inode: packed, filter }
                            .cluster(slot, &cluster, pass)?;
                    }
                    at = end;
                }
                _ => {
                    let mut bytes = source::zeroed(length(&(at..end)))?;
                    inner.read_at(packed, at, &mut bytes)?;
                    sink(FilePiece::Data { offset: place, bytes: &bytes })?;
                    at = end;
                }
            }
            has_read(filter);
        }
        Ok(())
    }
}

/// Cuts a range into parts of at most [`RAW_PIECE_BYTES`].
fn parts(range: Range<u64>) -> impl Iterator<Item = Range<u64>> {
    let mut at = range.start;
    std::iter::from_fn(move || {
        let start = at;
        at = range.end.min(start.saturating_add(RAW_PIECE_BYTES));
        (start < range.end).then_some(start..at)
    })
}

/// The length of a range in memory.
fn length(range: &Range<u64>) -> usize {
    usize::try_from(range.end.saturating_sub(range.start)).unwrap_or(usize::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_cover_a_range_in_order() {
        let all: Vec<_> = parts(10..10 + 2 * RAW_PIECE_BYTES + 1).collect();
        assert_eq!(all.len(), 3);
        assert_eq!(all[0], 10..10 + RAW_PIECE_BYTES);
        assert_eq!(length(&all[2]), 1);
        assert_eq!(parts(5..5).count(), 0);
    }
}

//! Full and compact indexes: from an lcluster to its extent by the distances that entries hold
//! (docs/format.md F25 to F34).

use ferrofs_ondisk::compression::EXTENT_MAX_BYTES;
use ferrofs_ondisk::zmap::{
    CompactIndex, FullIndex, Head, IndexHeader, Lcluster, Pack, TailPcluster,
};
use ferrofs_ondisk::{BlockSize, DataLayout};

use super::{MetaCursor, checked, plain};
use crate::error::{Error, ErrorKind, Result, address, parsed};
use crate::extent::{Address, Cluster, ClusterId, Coding, DataLocation, MappedExtent};
use crate::inner::ImageInner;
use crate::inode::Inode;

/// A step of a search of at least so many lclusters is long (docs/format.md F70).
const LONG_STEP_MIN: u64 = 1024;
/// A search may take so many short steps in addition to those within an extent of the greatest length.
const EXTRA_STEPS_MAX: u64 = 16;

/// The index of one file.
#[derive(Debug)]
pub(super) struct LclusterMap {
    entries: LclusterIndex,
    size: u64,
    /// The last extent, if it is stored inline or as a fragment.
    tail: Option<TailExtent>,
}

/// Fetches and decodes entries.
#[derive(Debug)]
struct LclusterIndex {
    cursor: MetaCursor,
    header: IndexHeader,
    form: IndexFormat,
    /// The head behind the last extent that was found, and where it starts: a sequential reader
    /// needs it next.
    next: Option<(u64, FoundHead)>,
    /// Steps of all searches that were not taken by [`LclusterMap::take_steps`].
    steps: u64,
}

/// The short steps of one search from an entry to a head. Their number is limited, as distances of 1 would make
/// each search as long as the index.
struct SearchSteps {
    from: u64,
    short: u64,
    limit: u64,
}

#[derive(Debug)]
enum IndexFormat {
    Full(FullIndex),
    Compact(CompactIndex),
}

/// The last extent of a file with an inline tail or a fragment.
#[derive(Clone, Copy, Debug)]
struct TailExtent {
    /// The lcluster that it starts in.
    lcn: u64,
    place: TailPlace,
}

#[derive(Clone, Copy, Debug)]
enum TailPlace {
    Inline { offset: u64, bytes: u16 },
    Fragment { offset: u64 },
}

/// The head of an extent, and its lcluster.
#[derive(Clone, Copy, Debug)]
struct FoundHead {
    lcn: u64,
    head: Head,
}

/// Where the bytes of an extent are, and how many.
#[derive(Clone, Copy)]
struct StoredCluster {
    at: Address,
    encoded_bytes: u32,
    decoded_bytes: u64,
}

impl LclusterMap {
    pub(super) fn new(
        inner: &ImageInner,
        inode: &Inode,
        header: IndexHeader,
        header_at: u64,
    ) -> Result<Self> {
        let form = match inode.layout() {
            DataLayout::CompressedFull => IndexFormat::Full(address(FullIndex::new(header_at))?),
            _ => {
                let blocks = inner.sb.block_size.count(inode.size());
                let index = parsed(CompactIndex::new(header_at, blocks, &header), header_at)?;
                IndexFormat::Compact(address(index)?)
            }
        };
        let mut entries =
            LclusterIndex { cursor: MetaCursor::new(inode), header, form, next: None, steps: 0 };
        let tail = match (header.tail, inode.size().checked_sub(1)) {
            (TailPcluster::Ordinary, _) | (_, None) => None,
            (tail, Some(last)) => Some(entries.tail(inner, tail, last)?),
        };
        Ok(Self { entries, size: inode.size(), tail })
    }

    pub(super) fn extent_at(&mut self, inner: &ImageInner, offset: u64) -> Result<MappedExtent> {
        if let Some(TailExtent { lcn: 0, place: TailPlace::Fragment { offset } }) = self.tail {
            return Ok(MappedExtent {
                start: 0,
                length: self.size,
                location: DataLocation::Fragment { offset },
            });
        }
        let found = self.entries.head_of(inner, offset)?;
        let start = self.entries.start(found)?;
        let end = self.entries.end(inner, found, self.size)?;
        let length = end.saturating_sub(start);
        let location = match self.tail.filter(|tail| tail.lcn == found.lcn) {
            Some(TailExtent { place: TailPlace::Fragment { offset }, .. }) => {
                DataLocation::Fragment { offset }
            }
            Some(TailExtent { place: TailPlace::Inline { offset, bytes }, .. }) => {
                let at = Address::Metadata { space: self.entries.cursor.space(), offset };
                let encoded_bytes = u32::from(bytes);
                let stored = StoredCluster { at, encoded_bytes, decoded_bytes: length };
                self.tail_cluster(inner, found, stored)?
            }
            None => match self.entries.blocks(inner, found, self.size)? {
                0 => DataLocation::Hole,
                blocks => {
                    let block_size = inner.sb.block_size;
                    let place = address(block_size.offset_of(found.head.block))?;
                    let at = Address::unified(place);
                    let encoded_bytes = address(blocks.checked_mul(block_size.bytes()))?;
                    let stored = StoredCluster { at, encoded_bytes, decoded_bytes: length };
                    self.cluster(inner, found, stored)?
                }
            },
        };
        Ok(MappedExtent { start, length, location })
    }

    /// How many entries there are.
    pub(super) fn entries(&self) -> u64 {
        self.entries.count(self.size)
    }

    pub(super) fn lcluster_bytes(&self) -> u64 {
        self.entries.header.lcluster_bytes()
    }

    /// How many steps searches have taken since the last call.
    pub(super) fn take_steps(&mut self) -> u64 {
        std::mem::take(&mut self.entries.steps)
    }

    /// Checks that the distances of all entries stay between the head before them and the head
    /// behind them, and that no search for the head before them takes too many steps.
    pub(super) fn check(&mut self, inner: &ImageInner) -> Result<()> {
        let mut head = None;
        let mut reached = 0;
        let lclusters = match self.tail {
            Some(TailExtent { lcn: 0, place: TailPlace::Fragment { .. } }) => 0,
            _ => self.entries.count(self.size),
        };
        for lcn in 0..lclusters {
            let (back, forward) = self.entries.distances(inner, lcn)?;
            match back {
                None if reached > lcn => {
                    return Err(ErrorKind::LookBack { lcluster: lcn }.into());
                }
                None => head = Some(lcn),
                Some(back) => {
                    let leads_to = lcn.checked_sub(u64::from(back)).filter(|_| back != 0);
                    // Long distances are capped and lead to an entry on the way (F26).
                    if head.is_none() || leads_to < head {
                        return Err(ErrorKind::LookBack { lcluster: lcn }.into());
                    }
                    let is_far =
                        lcn.saturating_sub(head.unwrap_or(0)) > self.entries.lclusters_max();
                    // A far entry that leads to another one is followed by few steps only if all are long.
                    if is_far && leads_to != head && u64::from(back) < LONG_STEP_MIN {
                        return Err(self.entries.steps_from(lcn).error());
                    }
                    reached = reached.max(lcn.saturating_add(forward));
                }
            }
        }
        Ok(())
    }

    /// The same as [`cluster`](Self::cluster) for a pcluster in the inode. It has no block in which interlaced bytes could
    /// have a place, so that they can only be shifted, and readers and builders disagree if that is another order (F40).
    fn tail_cluster(
        &self,
        inner: &ImageInner,
        found: FoundHead,
        stored: StoredCluster,
    ) -> Result<DataLocation> {
        let (at, start) = (stored.at.offset(), self.entries.start(found)?);
        let mut location = self.cluster(inner, found, stored)?;
        if let DataLocation::Cluster(Cluster {
            id: ClusterId { coding: Coding::Plain { wrapped_bytes }, .. },
            ..
        }) = &mut location
            && *wrapped_bytes > 0
        {
            if inner.sb.block_size.within(start) > 0 {
                return Err(Error::new(ErrorKind::InterlacedTail).at(at));
            }
            *wrapped_bytes = 0;
        }
        Ok(location)
    }

    /// The cluster of the extent that `found` starts, checked.
    fn cluster(
        &self,
        inner: &ImageInner,
        found: FoundHead,
        stored: StoredCluster,
    ) -> Result<DataLocation> {
        let header = &self.entries.header;
        let StoredCluster { at, encoded_bytes, decoded_bytes } = stored;
        let coding = match parsed(header.algorithm(found.head.kind), at.offset())? {
            None => plain(inner, header.is_interlaced, self.entries.start(found)?),
            Some(algorithm) => Coding::Compressed(algorithm),
        };
        let id = ClusterId { address: at, encoded_bytes, coding };
        let is_partial = found.head.is_partial;
        Ok(DataLocation::Cluster(checked(inner, Cluster { id, decoded_bytes, is_partial })?))
    }
}

impl LclusterIndex {
    /// Where the entry of `lcn` lies, and how many bytes have to be fetched for it.
    fn entry(&mut self, inner: &ImageInner, lcn: u64) -> Result<Lcluster> {
        match &self.form {
            IndexFormat::Full(index) => {
                let at = address(index.entry_offset(lcn))?;
                let bytes = self.cursor.bytes(inner, at, FullIndex::ENTRY_BYTES)?;
                parsed(FullIndex::entry(bytes, &self.header), at)
            }
            IndexFormat::Compact(index) => {
                let span = index.span(lcn).ok_or_else(|| past_index(lcn))?;
                let bytes = self.cursor.bytes(inner, span.offset, u64::from(span.bytes))?;
                let pack = Pack::new(bytes, &self.header);
                parsed(pack.and_then(|pack| pack.entry(span.slot)), span.offset)
            }
        }
    }

    /// The distance back of a NONHEAD, `None` for a head; and the distance forward that is stored
    /// with it, or 0 if it follows from the entries behind it.
    fn distances(&mut self, inner: &ImageInner, lcn: u64) -> Result<(Option<u16>, u64)> {
        match &self.form {
            IndexFormat::Full(index) => {
                let at = address(index.entry_offset(lcn))?;
                let bytes = self.cursor.bytes(inner, at, FullIndex::ENTRY_BYTES)?;
                match parsed(FullIndex::entry(bytes, &self.header), at)? {
                    Lcluster::Head(_) => Ok((None, 0)),
                    Lcluster::NonHead { back, .. } => {
                        Ok((Some(back), parsed(FullIndex::forward(bytes), at)?))
                    }
                }
            }
            IndexFormat::Compact(index) => {
                let span = index.span(lcn).ok_or_else(|| past_index(lcn))?;
                let bytes = self.cursor.bytes(inner, span.offset, u64::from(span.bytes))?;
                let pack = parsed(Pack::new(bytes, &self.header), span.offset)?;
                let back = parsed(pack.back(span.slot), span.offset)?;
                let is_stored = back.is_some() && pack.is_last(span.slot);
                let forward = if is_stored { pack.forward(span.slot) } else { Ok(0) };
                Ok((back, parsed(forward, span.offset)?))
            }
        }
    }

    /// How far the next head is from the NONHEAD `lcn`; at least 1, although some old builders
    /// wrote 0.
    fn forward(&mut self, inner: &ImageInner, lcn: u64) -> Result<u64> {
        let distance = match &self.form {
            IndexFormat::Full(index) => {
                let at = address(index.entry_offset(lcn))?;
                let bytes = self.cursor.bytes(inner, at, FullIndex::ENTRY_BYTES)?;
                parsed(FullIndex::forward(bytes), at)?
            }
            IndexFormat::Compact(index) => {
                let span = index.span(lcn).ok_or_else(|| past_index(lcn))?;
                let bytes = self.cursor.bytes(inner, span.offset, u64::from(span.bytes))?;
                let pack = Pack::new(bytes, &self.header);
                parsed(pack.and_then(|pack| pack.forward(span.slot)), span.offset)?
            }
        };
        Ok(distance.max(1))
    }

    /// The head of the extent that holds byte `offset` of the file.
    fn head_of(&mut self, inner: &ImageInner, offset: u64) -> Result<FoundHead> {
        if let Some((_, found)) = self.next.filter(|(start, _)| *start == offset) {
            return Ok(found);
        }
        let mut lcn = offset.wrapping_shr(u32::from(self.header.lcluster_bits));
        let mut steps = self.steps_from(lcn);
        let within = offset & self.header.lcluster_bytes().wrapping_sub(1);
        let mut back = match self.entry(inner, lcn)? {
            Lcluster::Head(head) if within >= u64::from(head.offset) => {
                return Ok(FoundHead { lcn, head });
            }
            Lcluster::Head(_) => 1,
            Lcluster::NonHead { back, .. } => back,
        };
        loop {
            // A distance of 0 would loop for ever (F26).
            let earlier = lcn.checked_sub(u64::from(back)).filter(|_| back != 0);
            lcn = earlier.ok_or_else(|| Error::new(ErrorKind::LookBack { lcluster: lcn }))?;
            self.add_step(&mut steps, u64::from(back))?;
            match self.entry(inner, lcn)? {
                Lcluster::Head(head) => return Ok(FoundHead { lcn, head }),
                Lcluster::NonHead { back: further, .. } => back = further,
            }
        }
    }

    /// A search that starts at an entry.
    fn steps_from(&self, lcn: u64) -> SearchSteps {
        let limit = self.lclusters_max().saturating_add(EXTRA_STEPS_MAX);
        SearchSteps { from: lcn, short: 0, limit }
    }

    /// Counts a step of a search.
    fn add_step(&mut self, search: &mut SearchSteps, distance: u64) -> Result<()> {
        self.steps = self.steps.saturating_add(1);
        search.short = search.short.saturating_add(u64::from(distance < LONG_STEP_MIN));
        if search.short > search.limit { Err(search.error()) } else { Ok(()) }
    }

    /// Lclusters of the longest extent that has data.
    fn lclusters_max(&self) -> u64 {
        EXTENT_MAX_BYTES.wrapping_shr(u32::from(self.header.lcluster_bits))
    }

    /// How many lclusters a file of `size` bytes has.
    fn count(&self, size: u64) -> u64 {
        let whole = size.wrapping_shr(u32::from(self.header.lcluster_bits));
        let has_rest = size & self.header.lcluster_bytes().wrapping_sub(1) != 0;
        whole.saturating_add(u64::from(has_rest))
    }

    fn start(&self, found: FoundHead) -> Result<u64> {
        let lcluster = address(found.lcn.checked_mul(self.header.lcluster_bytes()))?;
        address(lcluster.checked_add(u64::from(found.head.offset)))
    }

    /// Where the extent ends: at the next head, or with the file.
    fn end(&mut self, inner: &ImageInner, found: FoundHead, size: u64) -> Result<u64> {
        let mut lcn = address(found.lcn.checked_add(1))?;
        let mut steps = self.steps_from(found.lcn);
        loop {
            let position = address(lcn.checked_mul(self.header.lcluster_bytes()))?;
            if position >= size {
                return Ok(size);
            }
            if let Lcluster::Head(head) = self.entry(inner, lcn)? {
                let start = address(position.checked_add(u64::from(head.offset)))?;
                self.next = Some((start, FoundHead { lcn, head }));
                return Ok(start.min(size));
            }
            let distance = self.forward(inner, lcn)?;
            self.add_step(&mut steps, distance)?;
            lcn = address(lcn.checked_add(distance))?;
        }
    }

    /// How many blocks the extent's pcluster has; 0 is a hole (F27, F28).
    fn blocks(&mut self, inner: &ImageInner, found: FoundHead, size: u64) -> Result<u32> {
        if found.head.is_hole {
            return Ok(0);
        }
        let next = address(found.lcn.checked_add(1))?;
        let is_last = address(next.checked_mul(self.header.lcluster_bytes()))? >= size;
        if is_last || !self.header.may_be_big(found.head.kind) {
            return Ok(1);
        }
        match self.entry(inner, next)? {
            Lcluster::Head(_) => Ok(1),
            Lcluster::NonHead { blocks: Some(blocks), .. } => Ok(u32::from(blocks)),
            Lcluster::NonHead { .. } => Err(ErrorKind::BlockCount { lcluster: next }.into()),
        }
    }

    /// The last extent of a file whose last byte is `last`.
    fn tail(&mut self, inner: &ImageInner, tail: TailPcluster, last: u64) -> Result<TailExtent> {
        let found = self.head_of(inner, last)?;
        let place = match tail {
            TailPcluster::Inline(bytes) => {
                let lcn = last.wrapping_shr(u32::from(self.header.lcluster_bits));
                let offset = address(self.behind(lcn))?;
                fits_block(inner.sb.block_size, offset, bytes)?;
                TailPlace::Inline { offset, bytes }
            }
            // Only full indexes have room for the high half of the offset (F41).
            TailPcluster::Fragment(low) => {
                let high = match self.form {
                    IndexFormat::Full(_) => found.head.block,
                    IndexFormat::Compact(_) => 0,
                };
                TailPlace::Fragment { offset: u64::from(low) | high << 32 }
            }
            TailPcluster::Ordinary => return Err(ErrorKind::InlineData.into()),
        };
        Ok(TailExtent { lcn: found.lcn, place })
    }

    /// Where the index ends if its last lcluster is `lcn`: behind that entry, or behind its pack.
    fn behind(&self, lcn: u64) -> Option<u64> {
        match &self.form {
            IndexFormat::Full(index) => {
                index.entry_offset(lcn)?.checked_add(FullIndex::ENTRY_BYTES)
            }
            IndexFormat::Compact(index) => index.span(lcn)?.end(),
        }
    }
}

impl SearchSteps {
    #[cold]
    fn error(&self) -> Error {
        Error::new(ErrorKind::ShortDistances { lcluster: self.from, limit: self.limit })
    }
}

fn fits_block(block_size: BlockSize, offset: u64, bytes: u16) -> Result<()> {
    let end = u64::from(block_size.within(offset)).saturating_add(u64::from(bytes));
    if end <= u64::from(block_size.bytes()) {
        return Ok(());
    }
    Err(Error::new(ErrorKind::InlineData).at(offset))
}

#[cold]
fn past_index(lcn: u64) -> Error {
    Error::new(ErrorKind::LookBack { lcluster: lcn })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_inline_tail_must_end_in_its_block() {
        let size = BlockSize::from_bits(9).unwrap();
        assert!(fits_block(size, 512 + 500, 12).is_ok());
        assert!(fits_block(size, 512 + 500, 13).is_err());
    }
}

//! Compact indexes: packs of 2 or 16 entries that share one block address (docs/format.md F29 to
//! F33, F64, F65).

use super::extent_spec::{DISTANCE_MAX, LclusterEntries, LclusterEntry};
use super::{
    BLOCK_COUNT_FLAG, ExtentSpec, Head, HeadKind, IndexHeader, Lcluster, MAP_HEADER_BYTES,
    TailPcluster, unwritable_extent,
};
use crate::bytes::{fit, to_u64, truncated, u32_at};
use crate::error::{Error, ErrorKind, Result};

/// Entries of a 2-byte pack, and what the area is aligned to in bytes.
const WIDE_PACK_SLOTS: u64 = 16;
const WIDE_PACK_SLOTS_U8: u8 = 16;
const WIDE_PACK_BYTES: u64 = 32;
const NARROW_PACK_BYTES: u64 = 8;
/// The low part of an entry has at least this many bits.
const MIN_LOW_BITS: u8 = 12;
/// The largest lcluster that a 4-byte entry can describe, as a shift.
const MAX_BITS_4B: u8 = 14;
/// The same for a 2-byte entry.
const MAX_BITS_2B: u8 = 12;

/// Where the packs of a compact index are.
#[derive(Clone, Copy, Debug)]
pub struct CompactIndex {
    start: u64,
    initial_4b: u64,
    in_2b: u64,
    total: u64,
}

/// The pack that holds an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PackSpan {
    /// Where the pack starts.
    pub offset: u64,
    /// Its size in bytes: 8 with two entries, 32 with sixteen.
    pub bytes: u8,
    /// The entry's number in the pack.
    pub slot: u8,
}

impl PackSpan {
    /// Where the pack ends; an inline tail follows the pack of the last lcluster (F33).
    #[must_use]
    pub fn end(self) -> Option<u64> {
        self.offset.checked_add(u64::from(self.bytes))
    }
}

impl CompactIndex {
    /// The index whose map header starts at `header`, of a file of `blocks` blocks.
    ///
    /// # Errors
    /// [`ErrorKind::ClusterBits`] if the lclusters are too large for the entries.
    pub fn new(header: u64, blocks: u64, index: &IndexHeader) -> Result<Option<Self>> {
        let limit = if index.has_2b_packs { MAX_BITS_2B } else { MAX_BITS_4B };
        if index.lcluster_bits > limit {
            return Err(Error::new(ErrorKind::ClusterBits(index.lcluster_bits), 7));
        }
        let Some(start) = header.checked_add(MAP_HEADER_BYTES) else { return Ok(None) };
        // 4-byte entries fill up to the next 32-byte boundary, and 2-byte packs start there.
        let past = start & WIDE_PACK_BYTES.wrapping_sub(1);
        let initial_4b = (WIDE_PACK_BYTES.wrapping_sub(past) / 4) & 7;
        let in_2b = match blocks.checked_sub(initial_4b) {
            Some(rest) if index.has_2b_packs => rest & !WIDE_PACK_SLOTS.wrapping_sub(1),
            _ => 0,
        };
        Ok(Some(Self { start, initial_4b, in_2b, total: blocks }))
    }

    /// Where the entry of lcluster `lcn` is; `None` past the last one.
    #[must_use]
    pub fn span(&self, lcn: u64) -> Option<PackSpan> {
        if lcn >= self.total {
            return None;
        }
        let (position, pack_bytes, entry_bytes) = match lcn.checked_sub(self.initial_4b) {
            None => (lcn.checked_mul(4)?, NARROW_PACK_BYTES, 4),
            Some(rest) => {
                let initial = self.initial_4b.checked_mul(4)?;
                match rest.checked_sub(self.in_2b) {
                    None => (initial.checked_add(rest.checked_mul(2)?)?, WIDE_PACK_BYTES, 2),
                    Some(last) => {
                        let before = initial.checked_add(self.in_2b.checked_mul(2)?)?;
                        (before.checked_add(last.checked_mul(4)?)?, NARROW_PACK_BYTES, 4)
                    }
                }
            }
        };
        let position = self.start.checked_add(position)?;
        let within = position & pack_bytes.wrapping_sub(1);
        Some(PackSpan {
            offset: position & !pack_bytes.wrapping_sub(1),
            bytes: u8::try_from(pack_bytes).ok()?,
            slot: u8::try_from(within.checked_div(entry_bytes)?).ok()?,
        })
    }
}

/// A pack of entries.
#[derive(Clone, Copy, Debug)]
pub struct Pack<'a> {
    bytes: &'a [u8],
    slots: u8,
    entry_bits: u8,
    low_bits: u8,
    lcluster_bytes: u32,
    is_big: bool,
}

/// What an entry holds before it is interpreted.
#[derive(Clone, Copy)]
struct RawCompactEntry {
    kind: u32,
    low: u16,
}

impl RawCompactEntry {
    const NON_HEAD: u32 = 2;

    fn is_non_head(self) -> bool {
        self.kind == Self::NON_HEAD
    }

    fn block_count(self) -> Option<u16> {
        (self.low & BLOCK_COUNT_FLAG != 0).then_some(self.low & !BLOCK_COUNT_FLAG)
    }
}

impl<'a> Pack<'a> {
    /// Views a pack; `bytes` are the whole pack, 8 or 32 of them.
    ///
    /// # Errors
    /// [`ErrorKind::Truncated`] for any other length.
    pub fn new(bytes: &'a [u8], header: &IndexHeader) -> Result<Self> {
        let (slots, entry_bits) = match bytes.len() {
            8 => (2, 16),
            32 => (16, 14),
            other => return Err(truncated(8, other)),
        };
        Ok(Self {
            bytes,
            slots,
            entry_bits,
            low_bits: header.lcluster_bits.max(MIN_LOW_BITS),
            lcluster_bytes: u32::try_from(header.lcluster_bytes()).unwrap_or(u32::MAX),
            is_big: header.has_big_pcluster_1,
        })
    }

    /// Reads the entry in `slot`.
    ///
    /// # Errors
    /// [`ErrorKind::ClusterOffset`], [`ErrorKind::UnexpectedBlockCount`], or
    /// [`ErrorKind::PackDistance`] if the entries before it make no sense.
    pub fn entry(&self, slot: u8) -> Result<Lcluster> {
        let raw = self.raw(slot)?;
        if raw.is_non_head() { self.non_head(slot, raw) } else { self.head(slot, raw) }
    }

    /// How many lclusters back the entry in `slot` looks; `None` for a head. Cheaper than
    /// [`Pack::entry`], which has to find the block of a head.
    ///
    /// # Errors
    /// [`ErrorKind::Truncated`] for a slot past the pack, and [`ErrorKind::UnexpectedBlockCount`].
    pub fn back(&self, slot: u8) -> Result<Option<u16>> {
        let raw = self.raw(slot)?;
        if !raw.is_non_head() {
            return Ok(None);
        }
        match self.non_head(slot, raw)? {
            Lcluster::NonHead { back, .. } => Ok(Some(back)),
            Lcluster::Head(_) => Ok(None),
        }
    }

    /// Whether `slot` is the last of the pack, the one whose distance forward is stored.
    #[must_use]
    pub const fn is_last(&self, slot: u8) -> bool {
        slot.saturating_add(1) == self.slots
    }

    /// How many lclusters after the one in `slot` the next head is, or looks to: at least 1.
    ///
    /// # Errors
    /// [`ErrorKind::Truncated`] for a slot past the pack.
    pub fn forward(&self, slot: u8) -> Result<u64> {
        let mut distance = 0u64;
        let mut at = slot;
        let mut last = self.raw(at)?;
        while last.is_non_head() {
            distance = distance.saturating_add(1);
            at = at.saturating_add(1);
            if at >= self.slots {
                // The last slot of a pack holds the distance forward itself.
                let beyond = if last.block_count().is_some() { 1 } else { u64::from(last.low) };
                return Ok(distance.saturating_add(beyond).saturating_sub(1).max(1));
            }
            last = self.raw(at)?;
        }
        Ok(distance.max(1))
    }

    fn raw(&self, slot: u8) -> Result<RawCompactEntry> {
        let bit = u32::from(slot).wrapping_mul(u32::from(self.entry_bits));
        let at = usize::try_from(bit / 8).unwrap_or(usize::MAX);
        let past_end = || truncated(at, self.bytes.len());
        if slot >= self.slots {
            return Err(past_end());
        }
        let word = u32_at(self.bytes, at).ok_or_else(past_end)?.wrapping_shr(bit & 7);
        let low_mask = 1u32.wrapping_shl(u32::from(self.low_bits)).wrapping_sub(1);
        Ok(RawCompactEntry {
            kind: word.wrapping_shr(u32::from(self.low_bits)) & 3,
            low: u16::try_from(word & low_mask).unwrap_or(u16::MAX),
        })
    }

    fn non_head(&self, slot: u8, raw: RawCompactEntry) -> Result<Lcluster> {
        if let Some(blocks) = raw.block_count() {
            if !self.is_big {
                return Err(Error::new(ErrorKind::UnexpectedBlockCount, u64::from(slot)));
            }
            return Ok(Lcluster::NonHead { back: 1, blocks: Some(blocks) });
        }
        if slot.saturating_add(1) != self.slots {
            return Ok(Lcluster::NonHead { back: raw.low, blocks: None });
        }
        // The last slot holds the distance forward; its distance back follows from the slot
        // before it (F31).
        let before = self.raw(slot.saturating_sub(1))?;
        let back = match (before.is_non_head(), before.block_count()) {
            (false, _) => 1,
            (true, Some(_)) => 2,
            (true, None) => before.low.saturating_add(1),
        };
        Ok(Lcluster::NonHead { back, blocks: None })
    }

    fn head(&self, slot: u8, raw: RawCompactEntry) -> Result<Lcluster> {
        let offset = u32::from(raw.low);
        if offset >= self.lcluster_bytes {
            let kind = ErrorKind::ClusterOffset { offset, size: self.lcluster_bytes };
            return Err(Error::new(kind, u64::from(slot)));
        }
        let base_at = self.bytes.len().saturating_sub(4);
        let base = u32_at(self.bytes, base_at).ok_or_else(|| truncated(4, base_at))?;
        let before = if self.is_big { self.blocks_before(slot)? } else { self.heads_before(slot)? };
        let kind = match raw.kind {
            0 => HeadKind::Plain,
            1 => HeadKind::First,
            _ => HeadKind::Second,
        };
        let block = u64::from(base).saturating_add(before);
        Ok(Lcluster::Head(Head { kind, offset, block, is_partial: false, is_hole: false }))
    }

    /// Without big pclusters every extent has one block, and the shared address is one less than
    /// that of the first (F32).
    fn heads_before(&self, slot: u8) -> Result<u64> {
        let mut blocks = 1u64;
        let mut at = u32::from(slot);
        while at > 0 {
            at = at.saturating_sub(1);
            let entry = self.raw(u8::try_from(at).unwrap_or(u8::MAX))?;
            if entry.is_non_head() {
                match at.checked_sub(u32::from(entry.low)) {
                    Some(earlier) => at = earlier,
                    // The extent started in an earlier pack.
                    None => break,
                }
            }
            blocks = blocks.saturating_add(1);
        }
        Ok(blocks)
    }

    /// With big pclusters each extent that starts in the pack adds its block count, or 1.
    fn blocks_before(&self, slot: u8) -> Result<u64> {
        let mut blocks = 0u64;
        let mut at = u32::from(slot);
        while at > 0 {
            at = at.saturating_sub(1);
            let entry = self.raw(u8::try_from(at).unwrap_or(u8::MAX))?;
            if !entry.is_non_head() {
                blocks = blocks.saturating_add(1);
                continue;
            }
            if let Some(count) = entry.block_count() {
                at = at.saturating_sub(1);
                blocks = blocks.saturating_add(u64::from(count));
                continue;
            }
            if entry.low <= 1 {
                return Err(Error::new(ErrorKind::PackDistance, u64::from(at)));
            }
            at = at.saturating_sub(u32::from(entry.low).saturating_sub(2));
        }
        Ok(blocks)
    }
}

/// Bytes of the compact index of a file of `file_bytes` bytes after its map header, which starts
/// at byte `header_offset`. They depend on nothing else.
///
/// As for all writers of compact indexes, an lcluster is a block. `None` past 2^64, for an offset
/// that is no multiple of 8, and for lclusters that no compact index has.
#[must_use]
pub fn compact_bytes(header_offset: u64, file_bytes: u64, index: &IndexHeader) -> Option<u64> {
    let start = header_offset.checked_add(MAP_HEADER_BYTES)?;
    let layout = layout(header_offset, file_bytes, index).ok()?;
    match layout.total.checked_sub(1) {
        Some(last) => layout.span(last)?.end()?.checked_sub(start),
        None => Some(0),
    }
}

/// Whether a compact index can describe these extents: one after the other on disk, each of them
/// whole. What is inline or in the packed inode may have any address.
///
/// The rule is a little stricter than the format's, for which only those have to follow each other
/// that start in one pack, so that the answer does not depend on where the inode is.
#[must_use]
pub fn compact_fits(extents: &[ExtentSpec], tail: TailPcluster) -> bool {
    let mut next = None;
    let last = extents.len().saturating_sub(usize::from(tail != TailPcluster::Ordinary));
    for extent in extents.get(..last).unwrap_or_default() {
        let follows = next.is_none_or(|next| next == extent.block);
        let end = extent.block.checked_add(u64::from(extent.blocks));
        let fits = end.is_some_and(|end| end <= u64::from(u32::MAX)) && extent.block > 0;
        if extent.partial || extent.blocks == 0 || !follows || !fits {
            return false;
        }
        next = end;
    }
    extents.get(last..).unwrap_or_default().iter().all(|extent| !extent.partial)
}

/// The compact index of a file: everything after the map header, which starts at byte
/// `header_offset` of the image (or of the metabox file). An lcluster is a block.
///
/// An inline pcluster follows directly: the last pack is whole.
///
/// # Errors
/// [`ErrorKind::ExtentSumMismatch`]; [`ErrorKind::PlanExtent`] for an extent that a compact index cannot
/// describe, see [`compact_fits`]; [`ErrorKind::ClusterBits`]; [`ErrorKind::BigPclusterBits`]; and
/// [`ErrorKind::Unwritable`] for an offset that is no multiple of 8.
pub fn write_compact(
    header: &IndexHeader,
    header_offset: u64,
    file_bytes: u64,
    extents: &[ExtentSpec],
) -> Result<Vec<u8>> {
    if header.has_big_pcluster_1 != header.has_big_pcluster_2 {
        return Err(Error::new(ErrorKind::BigPclusterBits(0), 4));
    }
    let layout = layout(header_offset, file_bytes, header)?;
    let mut writer = PackWriter::new(header, extents.first().map_or(1, |first| first.block));
    let mut entries = LclusterEntries::new(header, file_bytes, extents)?;
    let mut bytes = Vec::new();
    let mut held = Vec::with_capacity(usize::from(WIDE_PACK_SLOTS_U8));
    let mut lcn = 0u64;
    while let Some(span) = layout.span(lcn) {
        let slots = if u64::from(span.bytes) == WIDE_PACK_BYTES { WIDE_PACK_SLOTS_U8 } else { 2 };
        held.clear();
        for entry in entries.by_ref().take(usize::from(slots)) {
            held.push(entry?);
        }
        writer.push(&held, slots, &mut bytes)?;
        lcn = lcn.saturating_add(u64::from(slots));
    }
    Ok(bytes)
}

fn layout(header_offset: u64, file_bytes: u64, index: &IndexHeader) -> Result<CompactIndex> {
    if !header_offset.is_multiple_of(NARROW_PACK_BYTES) {
        let what = "an index whose offset is not a multiple of 8";
        return Err(Error::new(ErrorKind::Unwritable(what), header_offset));
    }
    let lclusters = file_bytes.div_ceil(index.lcluster_bytes());
    let past_end = Error::new(ErrorKind::Unwritable("an index past 2^64"), header_offset);
    CompactIndex::new(header_offset, lclusters, index)?.ok_or(past_end)
}

/// Turns entries into packs and keeps count of the blocks that they share an address for.
struct PackWriter {
    is_big: bool,
    low_bits: u8,
    /// The block of the last head.
    head: u64,
    /// The block of the next, if it follows.
    next: u64,
    /// Whether the block count of the last head may still come.
    is_open: bool,
}

impl PackWriter {
    fn new(header: &IndexHeader, first_block: u64) -> Self {
        Self {
            is_big: header.has_big_pcluster_1,
            low_bits: header.lcluster_bits.max(MIN_LOW_BITS),
            head: first_block,
            next: first_block,
            is_open: false,
        }
    }

    /// Appends one pack. Fewer `entries` than `slots` leave the last ones zero (F30).
    fn push(&mut self, entries: &[LclusterEntry], slots: u8, bytes: &mut Vec<u8>) -> Result<()> {
        let base = self.base(entries)?;
        // 16 entries of 14 bits or 2 of 16: at most 224 bits, in four words.
        let entry_bits = if slots == WIDE_PACK_SLOTS_U8 { 14u32 } else { 16 };
        let size = if slots == WIDE_PACK_SLOTS_U8 { WIDE_PACK_BYTES } else { NARROW_PACK_BYTES };
        let pack_at = bytes.len();
        let mut word = 0u64;
        let mut filled = 0u32;
        for slot in 0..slots {
            let is_last = slot.saturating_add(1) == slots;
            let value = match entries.get(usize::from(slot)) {
                Some(entry) => self.entry(entry, is_last)?,
                None => 0,
            };
            word |= u64::from(value).wrapping_shl(filled);
            filled = filled.saturating_add(entry_bits);
            while filled >= 8 {
                bytes.push(u8::try_from(word & 0xff).unwrap_or(0));
                word >>= 8;
                filled = filled.saturating_sub(8);
            }
        }
        bytes.extend_from_slice(&base.to_le_bytes());
        debug_assert_eq!(to_u64(bytes.len().saturating_sub(pack_at)), size, "a pack is whole");
        Ok(())
    }

    /// An entry in its bits: the type above the low part.
    fn entry(&self, entry: &LclusterEntry, is_last: bool) -> Result<u16> {
        let (kind, low) = match *entry {
            LclusterEntry::Head { is_partial: true, start, .. } => {
                return Err(unwritable_extent("a partial reference", start));
            }
            LclusterEntry::Head { is_hole: true, start, .. } => {
                return Err(unwritable_extent("a hole", start));
            }
            LclusterEntry::Head { kind, offset, .. } => {
                (kind.number(), fit::<u16>(u64::from(offset), "the offset in an lcluster", 0)?)
            }
            LclusterEntry::NonHead { blocks: Some(blocks), .. } => (2, BLOCK_COUNT_FLAG | blocks),
            LclusterEntry::NonHead { back, ahead, .. } => {
                let distance = if is_last { ahead } else { back };
                (2, u16::try_from(distance.min(DISTANCE_MAX)).unwrap_or(u16::MAX))
            }
        };
        Ok(kind.wrapping_shl(u32::from(self.low_bits)) | low)
    }

    /// The address that the entries of a pack share (F32).
    fn base(&mut self, entries: &[LclusterEntry]) -> Result<u32> {
        let mut base = None;
        let mut by_custom = match entries.first() {
            Some(LclusterEntry::NonHead { blocks: Some(_), .. }) if self.is_big => self.head,
            _ if self.is_big => self.next,
            _ => self.next.saturating_sub(1),
        };
        let mut before = u64::from(!self.is_big);
        let mut has_head = false;
        for entry in entries {
            match *entry {
                LclusterEntry::Head { block, is_placed, start, .. } => {
                    if self.is_open && self.is_big {
                        self.next = self.head.saturating_add(1);
                        before = before.saturating_add(u64::from(has_head));
                    }
                    let address = if is_placed { block } else { self.next };
                    let shared = address.checked_sub(before);
                    if is_placed {
                        let shared = shared.ok_or_else(|| unwritable_extent("a block 0", start))?;
                        if *base.get_or_insert(shared) != shared {
                            let what = "pclusters that are not adjacent in one pack";
                            return Err(unwritable_extent(what, start));
                        }
                    } else if !has_head {
                        by_custom = shared.unwrap_or(0);
                    }
                    self.head = address;
                    self.next = address.saturating_add(1);
                    before = before.saturating_add(u64::from(!self.is_big));
                    (self.is_open, has_head) = (true, true);
                }
                LclusterEntry::NonHead { blocks: Some(blocks), .. } => {
                    before = before.saturating_add(u64::from(blocks));
                    self.next = self.head.saturating_add(u64::from(blocks));
                    self.is_open = false;
                }
                LclusterEntry::NonHead { .. } => {}
            }
        }
        fit(base.unwrap_or(by_custom), "the address of an index pack", 0)
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
        match MapHeader::parse(&bytes, DataLayout::CompressedCompact, size).unwrap() {
            MapHeader::Index(header) => header,
            other => panic!("{other:?}"),
        }
    }

    /// A pack of sixteen 14-bit entries (type, low) and a base.
    fn pack(entries: &[(u32, u32)], base: u32) -> Vec<u8> {
        let (bits, size) = if entries.len() == 2 { (16, 8) } else { (14, 32) };
        let mut bytes = vec![0u8; size];
        for (at, (kind, low)) in entries.iter().enumerate() {
            let value = kind << 12 | low;
            for bit in 0..bits {
                if value >> bit & 1 != 0 {
                    bytes[(at * bits + bit) / 8] |= 1 << ((at * bits + bit) % 8);
                }
            }
        }
        bytes[size - 4..].copy_from_slice(&base.to_le_bytes());
        bytes
    }

    #[test]
    fn leading_entries_fill_up_to_the_alignment() {
        for (header_at, initial) in [(24u64, 0u64), (32, 6), (40, 4), (48, 2)] {
            let index = CompactIndex::new(header_at, 100, &header(1)).unwrap().unwrap();
            assert_eq!(index.initial_4b, initial, "header at {header_at}");
            for lcn in 0..100 {
                let span = index.span(lcn).unwrap();
                assert_eq!(span.offset % u64::from(span.bytes), 0);
                let is_wide = lcn >= initial && lcn < initial + (100 - initial) / 16 * 16;
                assert_eq!(span.bytes == 32, is_wide, "lcn {lcn}");
            }
            assert_eq!(index.span(100), None);
        }
    }

    #[test]
    fn neighbours_are_neighbours_on_disk() {
        let index = CompactIndex::new(32, 60, &header(1)).unwrap().unwrap();
        let place = |lcn| {
            let span = index.span(lcn).unwrap();
            let entry = if span.bytes == 32 { 2 } else { 4 };
            span.offset + u64::from(span.slot) * entry
        };
        assert_eq!(place(0), 40);
        assert_eq!(place(5), 60);
        assert_eq!(place(6), 64);
        assert_eq!(place(6 + 48), 64 + 96);
    }

    #[test]
    fn heads_of_one_block_count_from_one_below() {
        let bytes = pack(&[(1, 10), (1, 20)], 99);
        let pack = Pack::new(&bytes, &header(0)).unwrap();
        let block = |slot| match pack.entry(slot).unwrap() {
            Lcluster::Head(head) => (head.offset, head.block),
            other => panic!("{other:?}"),
        };
        assert_eq!(block(0), (10, 100));
        assert_eq!(block(1), (20, 101));
    }

    #[test]
    fn big_extents_count_their_blocks() {
        let mut entries = [(2, 3); 16];
        entries[0] = (1, 0);
        entries[1] = (2, 2048 | 7);
        entries[2] = (2, 2);
        entries[3] = (0, 5);
        entries[4] = (1, 6);
        let bytes = pack(&entries, 1000);
        let pack = Pack::new(&bytes, &header(6)).unwrap();
        let block = |slot| match pack.entry(slot).unwrap() {
            Lcluster::Head(head) => head.block,
            other => panic!("{other:?}"),
        };
        assert_eq!(block(0), 1000);
        assert_eq!(block(3), 1007);
        assert_eq!(block(4), 1008);
        assert_eq!(pack.entry(1).unwrap(), Lcluster::NonHead { back: 1, blocks: Some(7) });
        assert_eq!(pack.entry(2).unwrap(), Lcluster::NonHead { back: 2, blocks: None });
        assert_eq!(pack.forward(1).unwrap(), 2);
    }

    #[test]
    fn the_last_slot_holds_the_distance_forward() {
        let mut entries = [(2, 5); 16];
        entries[0] = (1, 0);
        entries[14] = (2, 14);
        entries[15] = (2, 40);
        let bytes = pack(&entries, 0);
        let pack = Pack::new(&bytes, &header(0)).unwrap();
        assert_eq!(pack.entry(15).unwrap(), Lcluster::NonHead { back: 15, blocks: None });
        assert_eq!(pack.forward(15).unwrap(), 40);
        assert_eq!(pack.forward(14).unwrap(), 41);
    }

    #[test]
    fn a_distance_of_one_inside_a_big_pack_is_refused() {
        let bytes = pack(&[(2, 1), (1, 0)], 5);
        let error = Pack::new(&bytes, &header(6)).unwrap().entry(1).unwrap_err();
        assert_eq!(*error.kind(), ErrorKind::PackDistance);
    }

    #[test]
    fn large_lclusters_need_larger_entries() {
        let mut wide = header(1);
        wide.lcluster_bits = 13;
        assert!(CompactIndex::new(0, 4, &wide).is_err());
        wide.has_2b_packs = false;
        assert!(CompactIndex::new(0, 4, &wide).unwrap().is_some());
        wide.lcluster_bits = 15;
        assert!(CompactIndex::new(0, 4, &wide).is_err());
    }
}

//! The map targets: where the bytes of a compressed or chunk-based file are.
//!
//! Input: a [`MapCase`]. The index itself is walked as `ferrofs_ondisk` gives it, then the file is
//! read in pieces and in ranges.

use ferrofs_ondisk::zmap::{CompactIndex, MAP_HEADER_BYTES, MapHeader, Pack};
use ferrofs_ondisk::{BlockSize, DataLayout};

use crate::map_image::MapCase;
use crate::reading;

/// Full indexes.
pub fn zmap_full(bytes: &[u8]) {
    let mut case = MapCase::decode(bytes);
    // Bit 0 of the advise would make it a table of extents, which has its own target.
    if let Some(advise) = case.region.get_mut(4) {
        *advise &= !1;
    }
    read(&case, 1);
}

/// Compact indexes.
pub fn zmap_compact(bytes: &[u8]) {
    let case = MapCase::decode(bytes);
    check_packs(&case);
    read(&case, 3);
}

/// Encoded extents.
pub fn zmap_extents(bytes: &[u8]) {
    let mut case = MapCase::decode(bytes);
    if let Some(advise) = case.region.get_mut(4) {
        *advise |= 1;
    }
    read(&case, 1);
}

/// Chunk maps and chunk indexes, on the image or on a device.
pub fn chunk(bytes: &[u8]) {
    let mut case = MapCase::decode(bytes);
    // Unknown bits of the chunk format make an inode that is refused: see the target `inode`.
    case.union &= 0x7f;
    read(&case, 4);
}

fn read(case: &MapCase, layout: u16) {
    let (image, file) = case.open(layout);
    reading::compare(&image, &file);
}

/// Spans ascend without overlap, and no entry of a pack reaches out of it.
fn check_packs(case: &MapCase) {
    let size = BlockSize::from_bits(9 + (case.block_bits & 7)).expect("9 to 16");
    let header = MapHeader::parse(&case.region, DataLayout::CompressedCompact, size);
    let Ok(MapHeader::Index(header)) = header else { return };
    let start = u64::from(case.slot) * 8;
    let total = u64::from(case.data_block);
    let Ok(Some(index)) = CompactIndex::new(start, total, &header) else { return };
    assert_eq!(index.span(total), None);
    let mut last = None;
    for lcn in 0..total.min(300) {
        let span = index.span(lcn).expect("the index has so many entries");
        let (bytes, slots) = (u64::from(span.bytes), if span.bytes == 8 { 2 } else { 16 });
        assert!(span.offset >= start + MAP_HEADER_BYTES || lcn == 0 && slots == 2);
        assert!(span.offset.is_multiple_of(bytes) && span.slot < slots);
        assert!(span.bytes == 8 || header.has_2b_packs);
        let now = (span.offset, span.slot);
        let follows = last.is_none_or(|(offset, slot, end)| {
            (span.offset == offset && span.slot == slot + 1) || (now.1 == 0 && now.0 == end)
        });
        assert!(follows || lcn == 0, "{span:?} does not follow {last:?}");
        last = Some((span.offset, span.slot, span.offset + bytes));
    }
    for pack in case.region.chunks(32).chain(case.region.chunks(8)).take(64) {
        let Ok(pack) = Pack::new(pack, &header) else { continue };
        for slot in 0..=u8::MAX {
            let entry = pack.entry(slot);
            assert!(slot < 16 || entry.is_err());
            if let Ok(ahead) = pack.forward(slot) {
                assert!((1..=1 << 16).contains(&ahead));
            }
        }
    }
}

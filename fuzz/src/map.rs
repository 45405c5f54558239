//! The map targets: where the bytes of a compressed or chunk-based file are.
//!
//! Input: a [`MapCase`]. The index itself is walked as `ferrofs_ondisk` gives it, then the file is
//! read in pieces and in ranges.

use ferrofs_ondisk::zmap::{CompactIndex, MAP_HEADER_BYTES, MapHeader, Pack};
use ferrofs_ondisk::{BlockSize, DataLayout};

use ferrofs_image::{Image, Inode, VerifyOptions};

use crate::map_image::MapCase;
use crate::reading::{self, Trust};

/// Longer files are not verified, since that reads all of them.
const VERIFIED_MAX_BYTES: u64 = 8 << 20;

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
    reading::compare(&image, &file, trust(&image, &file));
}

/// Whether the index is sound, as far as there is time to find out.
fn trust(image: &Image, file: &Inode) -> Trust {
    let is_small = file.size() <= VERIFIED_MAX_BYTES;
    let is_sound = is_small
        && image.verify(&VerifyOptions::new().max_threads(1), &mut |_| {}).unwrap().problems == 0;
    if is_sound { Trust::Sound } else { Trust::Doubtful }
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

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use crate::map_image::MapCase;
    use crate::reading::{self, End, Trust};

    /// An initial input that fails at once leads a fuzzer nowhere.
    #[test]
    fn most_seeds_of_the_maps_are_read_to_their_end() {
        for (name, layout) in
            [("zmap_full", 1), ("zmap_compact", 3), ("zmap_extents", 1), ("chunk", 4)]
        {
            let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("seeds").join(name);
            let (mut whole, mut failed) = (0, Vec::new());
            for entry in fs::read_dir(folder).expect("seeds") {
                let path = entry.expect("a readable folder").path();
                let case = MapCase::decode(&fs::read(&path).expect("an input"));
                let (image, file) = case.open(layout);
                match reading::compare(&image, &file, super::trust(&image, &file)) {
                    End::Complete if super::trust(&image, &file) == Trust::Sound => whole += 1,
                    _ => failed.push(path),
                }
            }
            assert!(whole > 4 * failed.len(), "{name}: {whole} are read, not {failed:?}");
        }
    }
}

//! The superblock target: the superblock, its checksum, and the tables that follow it.
//!
//! Input: the bytes of an image from byte 1024 on.

use ferrofs_ondisk::{DeviceSlot, Incompat, SUPERBLOCK_OFFSET, Superblock};
use ferrofs_ondisk::{checksum_span, superblock_checksum};

/// Reads the superblock, and what hangs on it.
pub fn superblock(bytes: &[u8]) {
    let sb = match Superblock::parse(bytes) {
        Ok(sb) => sb,
        Err(error) => return assert!(!error.to_string().is_empty()),
    };
    check_fields(&sb);
    check_checksum(&sb, bytes);
    check_records(&sb, bytes);
    let wide = sb.incompat.has(Incompat::BIT48);
    for slot in bytes.chunks(128).take(64) {
        let parsed = DeviceSlot::parse(slot, wide);
        assert_eq!(parsed.is_ok(), slot.len() == 128);
        if let Ok(slot) = parsed {
            assert!(slot.tag_text().len() <= 64 && !slot.tag_text().contains(&0));
            assert!(wide || (slot.blocks | slot.unified_block) >> 32 == 0);
        }
    }
}

fn check_fields(sb: &Superblock) {
    assert_eq!(sb.incompat.unknown(), 0);
    assert!((9..=16).contains(&sb.block_size.bits()));
    assert!(sb.bytes >= 128 && sb.bytes.is_multiple_of(16));
    assert!(sb.fixed_nsec < 1_000_000_000);
    assert!(!sb.packed.is_some_and(|nid| nid.is_in_metabox() || nid.raw() == 0));
    assert!(!sb.metabox.is_some_and(|nid| nid.is_in_metabox()));
    assert_eq!(sb.metabox.is_some(), sb.incompat.has(Incompat::METABOX));
    assert!(sb.incompat.has(Incompat::DEVICE_TABLE) || sb.extra_devices == 0);
    assert!(sb.digest_prefix.is_none_or(|id| id < sb.xattr_prefix_count));
    assert!(!sb.label_text().contains(&0));
    assert!(sb.meta_offset().is_some(), "32 bits of blocks always fit");
    let named = sb.compat.names().len() + sb.incompat.names().len();
    assert!(named <= 64, "a bit has at most one line");
}

/// The checksum covers every byte but its own field.
fn check_checksum(sb: &Superblock, bytes: &[u8]) {
    let span = checksum_span(sb.block_size);
    let Ok(computed) = superblock_checksum(sb.block_size, bytes) else {
        return assert!(bytes.len() < span);
    };
    for (at, counts) in [(0, true), (4, false), (7, false), (8, true), (span - 1, true)] {
        let mut other = bytes.to_vec();
        other[at] ^= 0x10;
        let changed = superblock_checksum(sb.block_size, &other).ok() != Some(computed);
        assert_eq!(changed, counts, "byte {at}");
    }
    // Bytes behind the span do not count.
    assert_eq!(superblock_checksum(sb.block_size, &bytes[..span]).ok(), Some(computed));
}

/// The configuration records, found as `ferrofs_image` finds them.
fn check_records(sb: &Superblock, bytes: &[u8]) {
    let Ok(algorithms) = sb.recorded_algorithms() else { return };
    let mut compression = sb.implied_compression();
    let mut at = usize::from(sb.bytes);
    let mut last = None;
    for algorithm in algorithms {
        assert!(last < Some(algorithm), "records ascend");
        last = Some(algorithm);
        at = at.next_multiple_of(4);
        let Some(length) = bytes.get(at..at + 2) else { return };
        let length = usize::from(u16::from_le_bytes([length[0], length[1]]));
        let Some(record) = bytes.get(at + 2..at + 2 + length) else { return };
        if compression.add_record(algorithm, record).is_err() {
            return;
        }
        assert!(compression.has(algorithm));
        at += 2 + length;
    }
    assert!(compression.lzma_dictionary_bytes.is_none_or(|bytes| bytes <= 8 << 20));
    assert!(compression.deflate_window_bits.is_none_or(|bits| (8..=15).contains(&bits)));
    assert!(compression.zstd_window_log.is_none_or(|log| (10..=20).contains(&log)));
    assert!(at as u64 + SUPERBLOCK_OFFSET > SUPERBLOCK_OFFSET);
}

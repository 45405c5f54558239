//! Random extents of files, written as an index of each kind and read back entry by entry.

use proptest::prelude::*;

use super::*;
use crate::compression::AlgorithmId;
use crate::{BlockSize, DataLayout, ErrorKind};

/// A file: its header, where its map header is, its size and its extents.
#[derive(Clone, Debug)]
struct IndexCase {
    header: IndexHeader,
    at: u64,
    bytes: u64,
    extents: Vec<ExtentSpec>,
}

/// What makes an extent: lclusters up to the next, where that starts, blocks, kind.
type ExtentSeed = (u64, u64, u32, u8);

fn kind(number: u8) -> HeadKind {
    [HeadKind::Plain, HeadKind::First, HeadKind::Second][usize::from(number % 3)]
}

/// Extents whose pclusters follow each other from block 7 on.
fn build(mut header: IndexHeader, at: u64, seeds: &[ExtentSeed], tail: u8) -> IndexCase {
    let size = header.lcluster_bytes();
    header.tail = match tail {
        0 => TailPcluster::Ordinary,
        1 => TailPcluster::Inline(40),
        _ => TailPcluster::Fragment(0x9000_0001),
    };
    let (mut lcn, mut start, mut block) = (0u64, 0u64, 7u64);
    let mut extents = Vec::new();
    for (number, (step, offset, blocks, kind_number)) in seeds.iter().enumerate() {
        let is_last = number + 1 == seeds.len();
        let step = if is_last { *step } else { (*step).max(1) };
        let mut end = (lcn + step) * size + offset % size;
        if end <= start {
            end = start + 1;
        }
        let kind = kind(*kind_number);
        let covered = end / size - start / size;
        let blocks = match (is_last, header.tail) {
            (true, TailPcluster::Fragment(_)) => 0,
            (true, TailPcluster::Inline(_)) => 1,
            _ if covered >= 2 && header.may_be_big(kind) => *blocks,
            _ => 1,
        };
        extents.push(ExtentSpec { bytes: end - start, kind, block, blocks, partial: false });
        block += u64::from(blocks);
        (lcn, start) = (end / size, end);
    }
    IndexCase { header, at, bytes: start, extents }
}

prop_compose! {
    fn case(is_compact: bool)(
        bits in 9u8..=14,
        flags in any::<[bool; 2]>(),
        at in 0u64..40,
        tail in 0u8..3,
        seeds in prop::collection::vec((0u64..60, any::<u64>(), 1u32..2048, any::<u8>()), 1..40),
        far in 0u64..6000,
    ) -> IndexCase {
        let mut header = IndexHeader::new(bits, AlgorithmId::Lz4, Some(AlgorithmId::Zstd));
        header.has_big_pcluster_1 = flags[0];
        header.has_big_pcluster_2 = if is_compact { flags[0] } else { flags[1] };
        header.has_2b_packs = is_compact && flags[1] && bits <= 12;
        let mut seeds = seeds;
        // One long extent where that stays below 12 MiB: distances that do not fit their field.
        if far << bits < 11 << 20 {
            seeds[0].0 = far;
        }
        build(header, at * 8, &seeds, tail)
    }
}

fn read_full(bytes: &[u8], case: &IndexCase) -> Vec<(Lcluster, u64)> {
    let index = FullIndex::new(0).unwrap();
    let count = case.bytes.div_ceil(case.header.lcluster_bytes());
    (0..count)
        .map(|lcn| {
            let at = (index.entry_offset(lcn).unwrap() - MAP_HEADER_BYTES) as usize;
            let entry = FullIndex::entry(&bytes[at..], &case.header).unwrap();
            let is_head = matches!(entry, Lcluster::Head(_));
            (entry, if is_head { 0 } else { FullIndex::forward(&bytes[at..]).unwrap() })
        })
        .collect()
}

fn read_compact(bytes: &[u8], case: &IndexCase) -> Vec<(Lcluster, u64)> {
    let count = case.bytes.div_ceil(case.header.lcluster_bytes());
    let index = CompactIndex::new(case.at, count, &case.header).unwrap().unwrap();
    let front = case.at + MAP_HEADER_BYTES;
    (0..count)
        .map(|lcn| {
            let span = index.span(lcn).unwrap();
            let at = (span.offset - front) as usize;
            let pack = Pack::new(&bytes[at..at + usize::from(span.bytes)], &case.header).unwrap();
            let entry = pack.entry(span.slot).unwrap();
            let is_head = matches!(entry, Lcluster::Head(_));
            (entry, if is_head { 0 } else { pack.forward(span.slot).unwrap() })
        })
        .collect()
}

/// The extents that the entries describe, without the address of a tail.
fn planned(entries: &[(Lcluster, u64)], case: &IndexCase) -> Vec<ExtentSpec> {
    let size = case.header.lcluster_bytes();
    let mut extents: Vec<(u64, ExtentSpec)> = Vec::new();
    for (lcn, (entry, _)) in entries.iter().enumerate() {
        match entry {
            Lcluster::Head(head) => {
                let start = lcn as u64 * size + u64::from(head.offset);
                let Head { kind, block, is_partial: partial, is_hole, .. } = *head;
                let blocks = u32::from(!is_hole);
                extents.push((start, ExtentSpec { bytes: 0, kind, block, blocks, partial }));
            }
            Lcluster::NonHead { blocks: Some(blocks), .. } => {
                extents.last_mut().unwrap().1.blocks = u32::from(*blocks);
            }
            Lcluster::NonHead { .. } => {}
        }
    }
    extents.retain(|(start, _)| *start < case.bytes);
    let ends: Vec<u64> = extents.iter().skip(1).map(|(start, _)| *start).collect();
    for (number, (start, extent)) in extents.iter_mut().enumerate() {
        extent.bytes = ends.get(number).unwrap_or(&case.bytes) - *start;
    }
    extents.into_iter().map(|(_, extent)| extent).collect()
}

/// Every NONHEAD leads to the head before it by steps back, and to the one after it by steps ahead.
fn assert_walks(entries: &[(Lcluster, u64)]) {
    let is_head = |lcn: usize| matches!(entries[lcn].0, Lcluster::Head(_));
    for lcn in 0..entries.len() {
        let mut at = lcn;
        while let Lcluster::NonHead { back, .. } = entries[at].0 {
            assert!(back > 0, "lcn {lcn}: no way back at {at}");
            at -= usize::from(back);
        }
        assert!((at + 1..=lcn).all(|between| !is_head(between)), "lcn {lcn} leads back to {at}");
        let mut at = lcn;
        while at < entries.len() && !is_head(at) {
            let ahead = entries[at].1 as usize;
            assert!((at + 1..at + ahead).all(|between| !is_head(between)), "lcn {at} jumps over");
            at += ahead;
        }
    }
}

fn assert_reads_back(entries: &[(Lcluster, u64)], case: &IndexCase) {
    let mut read = planned(entries, case);
    let last = read.last_mut().unwrap();
    match case.header.tail {
        TailPcluster::Ordinary => {}
        TailPcluster::Inline(_) => last.block = case.extents.last().unwrap().block,
        TailPcluster::Fragment(_) => {
            last.blocks = 0;
            last.block = case.extents.last().unwrap().block;
        }
    }
    assert_eq!(read, case.extents);
    assert_walks(entries);
}

proptest! {
    #[test]
    fn a_full_index_says_what_was_planned(mut case in case(false), marks: [u8; 3], high: u32) {
        for (number, extent) in case.extents.iter_mut().enumerate() {
            extent.partial = marks[number % 3] & 1 != 0;
            // Addresses need no order here.
            extent.block = extent.block.wrapping_mul(u64::from(marks[number % 3])) & 0xffff_ffff;
        }
        case.extents.last_mut().unwrap().block = u64::from(high);
        let bytes = write_full(&case.header, case.bytes, &case.extents).unwrap();
        prop_assert_eq!(Some(bytes.len() as u64), full_bytes(case.bytes, &case.header));
        let entries = read_full(&bytes, &case);
        assert_reads_back(&entries, &case);
        let Lcluster::Head(head) = entries[planned_lcn(&case)].0 else { panic!("no head") };
        prop_assert_eq!(head.block, u64::from(high), "the high half of a fragment's offset");
    }

    #[test]
    fn a_compact_index_says_what_was_planned(case in case(true)) {
        prop_assert!(compact_fits(&case.extents, case.header.tail));
        let bytes = write_compact(&case.header, case.at, case.bytes, &case.extents).unwrap();
        let expected = compact_bytes(case.at, case.bytes, &case.header);
        prop_assert_eq!(Some(bytes.len() as u64), expected);
        assert_reads_back(&read_compact(&bytes, &case), &case);
    }

    #[test]
    fn any_plan_is_written_or_refused(
        at: u64, size in 0u64..1 << 24, bits in 0u8..=40, big: [bool; 2], tail in 0u8..3,
        seeds in prop::collection::vec(any::<(u32, u8, u64, u32, bool)>(), 0..6),
    ) {
        let mut header = IndexHeader::new(bits, AlgorithmId::Lz4, None);
        (header.has_big_pcluster_1, header.has_big_pcluster_2) = (big[0], big[1]);
        header.tail = [TailPcluster::Ordinary, TailPcluster::Inline(1), TailPcluster::Fragment(1)][usize::from(tail)];
        let extents: Vec<ExtentSpec> = seeds
            .iter()
            .map(|(bytes, number, block, blocks, partial)| ExtentSpec {
                bytes: u64::from(*bytes % 100_000),
                kind: kind(*number),
                block: *block,
                blocks: *blocks % 3000,
                partial: *partial,
            })
            .collect();
        let sum: u64 = extents.iter().map(|extent| extent.bytes).sum();
        let sizes = [
            (write_full(&header, sum, &extents), full_bytes(sum, &header)),
            (write_compact(&header, at, sum, &extents), compact_bytes(at, sum, &header)),
        ];
        for (written, expected) in sizes {
            if let Ok(written) = written {
                prop_assert!((9..=31).contains(&bits));
                prop_assert_eq!(Some(written.len() as u64), expected);
            }
        }
        prop_assert!(size == sum || write_full(&header, size, &extents).is_err());
    }

    #[test]
    fn a_header_is_read_as_it_was_written(
        bits in 9u8..=16, above in 0u8..=15, flags: [bool; 4], tail in 0u8..3, value: u32,
    ) {
        let size = BlockSize::from_bits(bits).unwrap();
        let mut index = IndexHeader::new(bits + above, AlgorithmId::Deflate, Some(AlgorithmId::Lzma));
        index.tail = match tail {
            0 => TailPcluster::Ordinary,
            1 => TailPcluster::Inline((value as u16).max(1)),
            _ => TailPcluster::Fragment(value),
        };
        index.is_interlaced = flags[0];
        (index.has_big_pcluster_1, index.has_big_pcluster_2) = (flags[1], flags[2]);
        for layout in [DataLayout::CompressedFull, DataLayout::CompressedCompact] {
            index.has_2b_packs = flags[3] && layout == DataLayout::CompressedCompact;
            let header = MapHeader::Index(index);
            let bytes = header.to_bytes(layout, size);
            if layout == DataLayout::CompressedCompact && flags[1] != flags[2] {
                let error = bytes.unwrap_err();
                prop_assert!(matches!(error.kind(), ErrorKind::BigPclusterBits(_)));
                continue;
            }
            prop_assert_eq!(MapHeader::parse(&bytes.unwrap(), layout, size).unwrap(), header);
        }
    }

    #[test]
    fn an_extent_header_is_read_as_it_was_written(
        count in 0u64..1 << 47, record_bits in 2u8..=5, above in 0u8..=15, flags: [bool; 2],
    ) {
        let size = BlockSize::from_bits(12).unwrap();
        let lcluster_bits = 12 + above;
        let records = match record_bits {
            2 => RecordFormat::Bytes4 { lcluster_bits },
            3 => RecordFormat::Bytes8 { lcluster_bits },
            4 => RecordFormat::Bytes16 { count },
            _ => RecordFormat::Bytes32 { count },
        };
        let table = ExtentTable { records, is_interlaced: flags[0], has_fragment: flags[1] };
        let header = MapHeader::Extents(table);
        let bytes = header.to_bytes(DataLayout::CompressedFull, size).unwrap();
        let read = MapHeader::parse(&bytes, DataLayout::CompressedFull, size).unwrap();
        prop_assert_eq!(read, header);
        prop_assert!(header.to_bytes(DataLayout::CompressedCompact, size).is_err());
        let records = RecordFormat::Bytes32 { count: count | 1 << 47 };
        let too_many = MapHeader::Extents(ExtentTable { records, ..table });
        prop_assert!(too_many.to_bytes(DataLayout::CompressedFull, size).is_err());
    }
}

/// The lcluster in which the last extent starts.
fn planned_lcn(case: &IndexCase) -> usize {
    let last = case.extents.last().unwrap();
    ((case.bytes - last.bytes) / case.header.lcluster_bytes()) as usize
}

fn spec(bytes: u64, block: u64, blocks: u32) -> ExtentSpec {
    ExtentSpec { bytes, kind: HeadKind::First, block, blocks, partial: false }
}

fn small(is_big: bool) -> IndexHeader {
    let mut header = IndexHeader::new(12, AlgorithmId::Lz4, None);
    (header.has_big_pcluster_1, header.has_big_pcluster_2) = (is_big, is_big);
    header
}

fn full_error(header: &IndexHeader, bytes: u64, extents: &[ExtentSpec]) -> ErrorKind {
    write_full(header, bytes, extents).unwrap_err().into_kind()
}

#[test]
fn what_no_index_can_say_is_refused() {
    let header = small(true);
    let sums = ErrorKind::ExtentSumMismatch { planned: 5000, wanted: 5001 };
    assert_eq!(full_error(&header, 5001, &[spec(5000, 1, 1)]), sums);
    let refused = |bytes, extents: &[ExtentSpec], word: &str| {
        let text = full_error(&header, bytes, extents).to_string();
        assert!(text.contains(word), "{text}");
    };
    refused(200, &[spec(100, 1, 1), spec(100, 2, 1)], "start in one lcluster");
    refused(4096, &[spec(4096, 1, 1), spec(0, 2, 1)], "no bytes");
    refused(8000, &[spec(8000, 1, 2)], "without a place for its count");
    refused(9000, &[spec(9000, 1, 2048)], "more than 2047 blocks");
    refused(9000, &[spec(9000, 1 << 32, 2)], "more than 32 bits");
    refused(13 << 20, &[spec(13 << 20, 1, 2)], "12 MiB");
    assert!(write_full(&small(false), 9000, &[spec(9000, 1, 2)]).is_err());
    let mut tail = header;
    tail.tail = TailPcluster::Fragment(0);
    assert!(write_full(&tail, 100, &[spec(100, 0, 1)]).is_err());
    tail.tail = TailPcluster::Inline(9);
    assert!(write_full(&tail, 100, &[spec(100, 0, 0)]).is_err());
}

#[test]
fn what_only_a_full_index_can_say_is_refused_in_a_compact_one() {
    let mut header = small(false);
    let far = [spec(4096, 5, 1), spec(4096, 9, 1)];
    assert!(!compact_fits(&far, TailPcluster::Ordinary));
    assert!(write_compact(&header, 0, 8192, &far).is_err(), "one pack has one address");
    let near = [spec(4096, 8, 1), spec(4096, 9, 1), spec(4096, 5, 1)];
    assert!(!compact_fits(&near, TailPcluster::Ordinary));
    assert!(write_compact(&header, 0, 12288, &near).is_ok(), "the third has a pack of its own");
    assert!(write_full(&header, 8192, &far).is_ok());
    let partial = [ExtentSpec { partial: true, ..spec(4096, 5, 1) }];
    assert!(!compact_fits(&partial, TailPcluster::Ordinary));
    assert!(write_compact(&header, 0, 4096, &partial).is_err());
    let hole = [spec(4096, 5, 0)];
    assert!(!compact_fits(&hole, TailPcluster::Ordinary));
    assert!(write_compact(&header, 0, 4096, &hole).is_err());
    assert!(write_compact(&header, 0, 4096, &[spec(4096, 0, 1)]).is_err(), "block 0");
    assert!(write_compact(&header, 4, 4096, &[spec(4096, 1, 1)]).is_err(), "unaligned");
    header.has_big_pcluster_1 = true;
    assert!(write_compact(&header, 0, 4096, &[spec(4096, 1, 1)]).is_err(), "one bit of two");
}

#[test]
fn a_hole_in_a_full_index_has_its_bit() {
    for is_big in [false, true] {
        let header = small(is_big);
        let extents = [spec(4096 * 4, 0, 0), spec(4096, 3, 1)];
        let case = IndexCase { header, at: 0, bytes: 4096 * 5, extents: extents.to_vec() };
        let bytes = write_full(&header, case.bytes, &extents).unwrap();
        let entries = read_full(&bytes, &case);
        let Lcluster::Head(head) = entries[0].0 else { panic!("a head") };
        assert!(head.is_hole);
        assert_reads_back(&entries, &case);
    }
}

#[test]
fn an_empty_file_has_an_empty_index() {
    assert_eq!(write_full(&small(false), 0, &[]).unwrap(), [0; 8]);
    assert_eq!(write_compact(&small(false), 0, 0, &[]).unwrap(), []);
    assert_eq!(compact_bytes(0, 0, &small(false)), Some(0));
}

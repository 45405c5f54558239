//! Parts of LZ4 extents through a window of pages, judged by what liblz4 says of the same block.

use ferrofs_codec::{
    Algorithm, DecodeMode, Decoder, DecoderSettings, Error, ErrorKind, LZ4_WINDOW_PAGE_BYTES,
    Lz4Part, Padding, lz4_window_pages,
};

use crate::counting_allocator::allocations;
use crate::lz4_blocks::{Block, bounded, made_up};
use crate::samples::{self, Xorshift, grid, noise, text};

const PADDINGS: [Padding; 2] = [Padding::Left, Padding::Right];
const MODES: [DecodeMode; 2] = [DecodeMode::Whole, DecodeMode::Prefix];
const GUARD: [u8; 64] = [0xC7; 64];
const FARTHEST: u16 = u16::MAX;

type Page = [u8; LZ4_WINDOW_PAGE_BYTES];

fn decoder(max_distance: u16) -> Decoder {
    Decoder::new(&DecoderSettings::default().lz4_max_distance(Some(max_distance))).unwrap()
}

/// An extent and its window.
struct Extent<'a> {
    block: &'a [u8],
    padding: Padding,
    bytes: usize,
    max_distance: u16,
}

impl Extent<'_> {
    fn of(block: &[u8], bytes: usize) -> Extent<'_> {
        Extent { block, padding: Padding::Left, bytes, max_distance: FARTHEST }
    }

    fn part(&self, skip_bytes: usize, mode: DecodeMode) -> Lz4Part {
        Lz4Part { padding: self.padding, extent_bytes: self.bytes, skip_bytes, mode }
    }

    fn pages(&self, decoded_bytes: usize) -> usize {
        lz4_window_pages(self.max_distance, decoded_bytes)
    }

    /// With liblz4: all that must be decoded for the part, and of it the part.
    fn by_library(&self, skip: usize, length: usize, mode: DecodeMode) -> Result<Vec<u8>, Error> {
        let decoded = if mode == DecodeMode::Whole { self.bytes } else { skip + length };
        let mut output = vec![0; decoded];
        decoder(self.max_distance).decode(
            Algorithm::Lz4,
            self.padding,
            self.block,
            &mut output,
            mode,
        )?;
        Ok(output[skip..skip + length].to_vec())
    }

    /// Through exactly as many pages as are needed, twice over different old contents.
    fn by_window(&self, skip: usize, length: usize, mode: DecodeMode) -> Result<Vec<u8>, Error> {
        let first = self.pass(skip, length, mode, 0x00);
        let second = self.pass(skip, length, mode, 0xFF);
        assert_eq!(first, second, "the outcome depends on what pages or output held before");
        first
    }

    fn pass(
        &self,
        skip: usize,
        length: usize,
        mode: DecodeMode,
        old: u8,
    ) -> Result<Vec<u8>, Error> {
        let decoded = if mode == DecodeMode::Whole { self.bytes } else { skip + length };
        let mut pages: Vec<Page> = vec![[old; LZ4_WINDOW_PAGE_BYTES]; self.pages(decoded)];
        let mut buffer = [&GUARD[..], &vec![old; length], &GUARD].concat();
        let output = &mut buffer[GUARD.len()..][..length];
        let part = self.part(skip, mode);
        let decoder = decoder(self.max_distance);
        let result = decoder.decode_lz4_part(self.block, part, output, &mut pages);
        let decoded = output.to_vec();
        assert!(buffer.starts_with(&GUARD), "a byte before the output was written");
        assert!(buffer.ends_with(&GUARD), "a byte behind the output was written");
        result.map(|()| decoded)
    }

    /// Both ways, which must end alike, in bytes or in the kind of error.
    fn check(&self, skip: usize, length: usize, mode: DecodeMode) -> bool {
        let window = self.by_window(skip, length, mode);
        if length == 0 && mode == DecodeMode::Prefix {
            // Nothing is there without looking, where the library would decode up to it.
            assert_eq!(window, Ok(vec![]));
            return true;
        }
        let library = self.by_library(skip, length, mode);
        let same = window == library;
        let errors = (window.err(), library.err());
        let Self { block, padding, bytes, max_distance } = self;
        assert!(
            same,
            "window and library: {errors:?}; {skip} + {length} of {bytes}, {mode:?}, {padding:?}, \
             {max_distance}, {} bytes {:?}",
            block.len(),
            &block[..block.len().min(400)]
        );
        errors.0.is_none()
    }
}

#[test]
fn a_window_has_the_pages_that_a_match_can_touch() {
    let pages = |distance| lz4_window_pages(distance, 1 << 20);
    assert_eq!([65535, 0, 61441, 61440].map(pages), [17, 17, 17, 16]);
    assert_eq!([16384, 16383, 12289, 12288].map(pages), [5, 5, 5, 4]);
    assert_eq!([4097, 4096, 1].map(pages), [3, 2, 2]);
    let short = |bytes| lz4_window_pages(FARTHEST, bytes);
    assert_eq!([0, 1, 4096, 4097, 16 * 4096, 16 * 4096 + 1].map(short), [0, 1, 1, 2, 16, 17]);
    assert_eq!(short(usize::MAX), 17);
}

#[test]
fn every_part_of_a_small_extent_is_what_liblz4_decodes() {
    for length in (1..40).chain([63, 64, 65, 90]) {
        for data in [text(length, 5), vec![7; length], noise(length, 9)] {
            for block in [bounded(&data, 65_535), bounded(&data, 3)] {
                let extent = Extent::of(&block, length);
                for skip in 0..=length {
                    for count in 0..=length - skip {
                        for mode in MODES {
                            let decoded = extent.by_window(skip, count, mode);
                            assert!(decoded.as_deref() == Ok(&data[skip..skip + count]));
                        }
                    }
                }
            }
        }
    }
}

#[test]
fn parts_that_start_or_end_around_a_page_are_what_liblz4_decodes() {
    let data = [text(9_000, 3), vec![1; 5_000], noise(3_000, 4), text(12_000, 3)].concat();
    let edges: Vec<_> =
        (0..6).flat_map(|page| [4095, 4096, 4097].map(|at| at + page * 4096)).collect();
    for max_distance in [1_u16, 7, 4096, 16_383, FARTHEST] {
        let block = bounded(&data, max_distance.into());
        let extent = Extent { max_distance, ..Extent::of(&block, data.len()) };
        for skip in [0, 1].into_iter().chain(edges.iter().copied()) {
            for end in edges.iter().copied().filter(|end| *end >= skip) {
                let decoded = extent.by_window(skip, end - skip, DecodeMode::Prefix);
                assert!(decoded.as_deref() == Ok(&data[skip..end]), "{skip}..{end}");
            }
            let rest = extent.by_window(skip, data.len() - skip, DecodeMode::Whole);
            assert!(rest.as_deref() == Ok(&data[skip..]), "{skip}..");
        }
    }
}

#[test]
fn every_sample_of_every_encoder_comes_back_in_parts() {
    for stream in crate::lz4::streams() {
        let extent = Extent::of(&stream.bytes, stream.data.len());
        for end in grid(stream.data.len()) {
            for skip in [0, end / 2, end.saturating_sub(1)] {
                for mode in MODES {
                    assert!(extent.check(skip, end - skip, mode), "{}", stream.name);
                }
            }
        }
    }
}

#[test]
fn padding_on_either_side_is_no_part_of_the_stream() {
    let data = text(20_000, 21);
    let block = bounded(&data, 65_535);
    let left = [&[0; 100], &block[..]].concat();
    let right = [&block[..], &[0x5A; 100]].concat();
    for (padding, block) in PADDINGS.into_iter().zip([left, right]) {
        let extent = Extent { padding, ..Extent::of(&block, data.len()) };
        for mode in MODES {
            let decoded = extent.by_window(12_000, 5_000, mode);
            assert!(decoded.as_deref() == Ok(&data[12_000..17_000]), "{padding:?}, {mode:?}");
        }
    }
    let zeros = Extent::of(&[0; 4096], 10).by_window(0, 10, DecodeMode::Whole).unwrap_err();
    assert_eq!(zeros.kind(), ErrorKind::EmptyInput);
}

#[test]
fn made_up_sequences_get_one_verdict() {
    let mut random = Xorshift(0x715E);
    let (mut good, mut bad) = (0, 0);
    for _ in 0..12_000 {
        let (block, yields) = made_up(&mut random);
        let extent_bytes = match random.below(4) {
            0 => random.below(yields + 20),
            1 => (yields + random.below(14)).saturating_sub(random.below(14)),
            _ => yields,
        };
        let max_distance = [FARTHEST, FARTHEST, 16_383, 20][random.below(4)];
        let padding = PADDINGS[usize::from(random.below(3) == 0)];
        let extent = Extent { block: &block, padding, bytes: extent_bytes, max_distance };
        let skip = random.below(extent_bytes + 1);
        let length = random.below(extent_bytes - skip + 1);
        for mode in MODES {
            let verdict = if extent.check(skip, length, mode) { &mut good } else { &mut bad };
            *verdict += 1;
        }
    }
    assert!(good > 2_000 && bad > 2_000, "{good} good, {bad} bad");
}

#[test]
fn damaged_blocks_get_one_verdict() {
    let mut random = Xorshift(0xDA_4A6E);
    for (_, data) in samples::all().iter().filter(|(_, data)| data.len() < 60_000) {
        let block = bounded(data, 16_383);
        for round in 0..120 {
            let mut broken = block.clone();
            for _ in 0..=random.below(3) {
                let place = random.below(broken.len());
                broken[place] ^= 1 << random.below(8);
            }
            broken.truncate(
                broken.len() - if round % 3 == 0 { random.below(broken.len()) } else { 0 },
            );
            let max_distance = if round % 2 == 0 { 16_383 } else { FARTHEST };
            let skip = random.below(data.len());
            let length = random.below(data.len() - skip + 1);
            for (padding, mode) in [
                (Padding::Left, DecodeMode::Whole),
                (Padding::Left, DecodeMode::Prefix),
                (Padding::Right, DecodeMode::Whole),
            ] {
                let extent = Extent { block: &broken, padding, bytes: data.len(), max_distance };
                extent.check(skip, length, mode);
            }
        }
    }
}

#[test]
fn a_match_of_distance_zero_is_what_it_is_to_liblz4() {
    let mut block = Block::default();
    block.sequence(&[7; 30], 0, 5_000);
    let block = block.last(&[9; 8]);
    let extent = Extent::of(&block, 5_038);
    let whole = extent.by_window(20, 20, DecodeMode::Whole);
    assert_eq!(whole.as_deref(), Ok(&[[7; 10], [0; 10]].concat()[..]));
    assert!(extent.check(20, 20, DecodeMode::Whole));
    assert!(extent.check(20, 10, DecodeMode::Prefix));
    let prefix = extent.by_window(20, 11, DecodeMode::Prefix).unwrap_err();
    assert_eq!(prefix.kind(), ErrorKind::Corrupt);
    assert!(!extent.check(20, 11, DecodeMode::Prefix));
}

/// A MiB and more, and a block of it whose matches all come from as far as they can.
fn mebibyte(distance: u16) -> (Vec<u8>, Vec<u8>) {
    let mut block = Block::default();
    let mut data = vec![];
    while data.len() < (1 << 20) + 5_000 {
        let literals =
            noise(if data.is_empty() { distance.into() } else { 40 }, 1 + data.len() as u64);
        block.sequence(&literals, distance, 600);
        data.extend_from_slice(&literals);
        let from = data.len() - usize::from(distance);
        data.extend_from_within(from..from + 600);
    }
    data.extend_from_slice(&[3; 20]);
    (data, block.last(&[3; 20]))
}

// A-P5: one page of an extent of more than 1 MiB takes 17 pages at most for a distance of 65,535,
// and 5 for 16,383.
#[test]
fn the_last_page_of_a_mebibyte_takes_seventeen_pages_or_five() {
    for (max_distance, needed) in [(65_535, 17), (16_384, 5), (16_383, 5)] {
        let (data, block) = mebibyte(max_distance);
        let mut output = [0; LZ4_WINDOW_PAGE_BYTES];
        let skip_bytes = data.len() - output.len();
        for mode in MODES {
            let extent = Extent { max_distance, ..Extent::of(&block, data.len()) };
            let part = extent.part(skip_bytes, mode);
            let decoder = decoder(max_distance);
            let mut pages: Vec<Page> = vec![[0xEE; LZ4_WINDOW_PAGE_BYTES]; needed];
            let before = allocations();
            let decoded = decoder.decode_lz4_part(&block, part, &mut output, &mut pages);
            assert_eq!(allocations(), before);
            assert_eq!(decoded, Ok(()));
            assert!(output == data[skip_bytes..], "{max_distance}");

            let fewer = &mut pages[1..];
            let refused = decoder.decode_lz4_part(&block, part, &mut output, fewer).unwrap_err();
            assert_eq!(refused.kind(), ErrorKind::WindowTooSmall { pages: needed - 1, needed });
        }
    }
}

// A-P6: a distance beyond the declared one is refused, and what it points at is not read.
#[test]
fn a_distance_beyond_the_declared_one_is_refused_by_every_path() {
    for limit in [1_u16, 100, 4095, 4096, 16_383, 16_384, 65_534] {
        let literals = noise(usize::from(limit) + 1, 31);
        for distance in [limit, limit + 1] {
            let mut block = Block::default();
            block.sequence(&literals, distance, 9);
            block.sequence(b"", 1, 6_000);
            let block = block.last(b"the end");
            let bytes = literals.len() + 9 + 6_000 + 7;
            for padding in PADDINGS {
                let extent = Extent { block: &block, padding, bytes, max_distance: limit };
                for mode in MODES {
                    let length = bytes - 5_000;
                    let library = extent.by_library(5_000, length, mode);
                    let window = extent.by_window(5_000, length, mode);
                    assert_eq!(library, window);
                    let expected = ErrorKind::DistanceTooFar {
                        distance: distance.into(),
                        limit: limit.into(),
                    };
                    let refused = window.err().map(|error| error.kind());
                    assert_eq!(refused, (distance > limit).then_some(expected), "{mode:?}");
                }
                // Where the literals end, the distance has not been read yet.
                assert!(extent.check(0, literals.len(), DecodeMode::Prefix));
                assert_eq!(
                    extent.check(0, literals.len() + 1, DecodeMode::Prefix),
                    distance == limit
                );
            }
        }
    }
}

#[test]
fn a_declared_distance_of_zero_is_the_largest() {
    let literals = noise(65_535, 3);
    let mut block = Block::default();
    block.sequence(&literals, 65_535, 100);
    let block = block.last(&[1; 12]);
    let extent = Extent { max_distance: 0, ..Extent::of(&block, 65_535 + 112) };
    for mode in MODES {
        assert!(extent.check(65_535, 100, mode));
    }
}

// The kernel compared lengths that it had subtracted before (catalogue 6 and 7): a stream longer
// than its extent, or than what is wanted of it, is nothing special here.
#[test]
fn a_stream_longer_than_its_extent_is_decoded_or_refused_alike() {
    let data = noise(9_000, 41);
    let block = bounded(&data, 65_535);
    assert!(block.len() > data.len());
    for bytes in [9_000, 8_999, 4_097, 4_096, 100, 1] {
        for padding in PADDINGS {
            let extent = Extent { padding, ..Extent::of(&block, bytes) };
            let is_sound = padding == Padding::Right || bytes == data.len();
            assert_eq!(extent.check(bytes / 2, bytes - bytes / 2, DecodeMode::Whole), is_sound);
            assert!(extent.check(bytes / 2, bytes - bytes / 2, DecodeMode::Prefix));
        }
    }
    let nothing = Extent::of(&block, 0);
    assert!(!nothing.check(0, 0, DecodeMode::Whole));
    assert!(nothing.check(0, 0, DecodeMode::Prefix));
}

#[test]
fn pages_that_are_longer_serve_and_pages_that_are_shorter_do_not() {
    let data = text(20_000, 51);
    let block = bounded(&data, 65_535);
    let part = Extent::of(&block, data.len()).part(10_000, DecodeMode::Prefix);
    let decoder = decoder(FARTHEST);
    let mut output = vec![0; 6_384];
    let mut longer = vec![vec![0; 16_384]; 4];
    assert_eq!(decoder.decode_lz4_part(&block, part, &mut output, &mut longer), Ok(()));
    assert!(output == data[10_000..16_384]);
    assert!(longer.iter().all(|page| page[4096..].iter().all(|byte| *byte == 0)));
    let mut frames: Vec<_> = longer.iter_mut().map(Vec::as_mut_slice).collect();
    assert_eq!(decoder.decode_lz4_part(&block, part, &mut output, &mut frames), Ok(()));
    let mut shorter = vec![vec![0; 4096], vec![0; 4096], vec![0; 4095], vec![0; 4096]];
    let refused = decoder.decode_lz4_part(&block, part, &mut output, &mut shorter).unwrap_err();
    assert_eq!(refused.to_string(), "lz4: the window needs 4 pages, but has 2");
}

#[test]
fn a_part_outside_of_its_extent_is_refused() {
    let decoder = decoder(FARTHEST);
    let mut pages = [[0; LZ4_WINDOW_PAGE_BYTES]];
    for (skip_bytes, length) in [(6, 5), (11, 0), (0, 11), (usize::MAX, 1)] {
        for mode in MODES {
            let part = Lz4Part { padding: Padding::Left, extent_bytes: 10, skip_bytes, mode };
            let mut output = vec![0; length];
            let decoded = decoder.decode_lz4_part(b"\x50erofs", part, &mut output, &mut pages);
            if length == 0 && mode == DecodeMode::Prefix {
                assert_eq!(decoded, Ok(()));
            } else {
                assert_eq!(decoded.unwrap_err().kind(), ErrorKind::OutsideExtent);
            }
        }
    }
    let huge = Lz4Part {
        padding: Padding::Left,
        extent_bytes: usize::MAX,
        skip_bytes: 0,
        mode: DecodeMode::Whole,
    };
    let refused = decoder.decode_lz4_part(b"\x50erofs", huge, &mut [0], &mut pages).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::TooLarge);
}

#[test]
fn a_window_needs_a_decoder_that_names_lz4() {
    let none = DecoderSettings::default().lz4_max_distance(None);
    let part = Extent::of(&[], 5).part(0, DecodeMode::Whole);
    let decoded = Decoder::new(&none).unwrap().decode_lz4_part(
        b"\x50erofs",
        part,
        &mut [0; 5],
        &mut [[0; LZ4_WINDOW_PAGE_BYTES]],
    );
    assert_eq!(decoded.unwrap_err().kind(), ErrorKind::NotConfigured);
}

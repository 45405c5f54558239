//! LZ4 beyond the suite: right padding and blocks that were made to fill a pcluster.

use ferrofs_codec::{DecodeMode, ErrorKind, Padding};

use crate::codecs::{LZ4, decoder, lz4_to_size};
use crate::guarded::Job;
use crate::samples::{self, grid, noise};

crate::suite::properties!(LZ4);

fn right(input: &[u8], mode: DecodeMode) -> Job<'_> {
    Job { algorithm: LZ4.algorithm, padding: Padding::Right, input, mode }
}

#[test]
fn what_follows_a_right_padded_stream_is_ignored() {
    let mut decoder = decoder();
    for stream in streams() {
        for padding in [vec![], vec![0; 1], vec![0; 100], noise(5, 3), noise(4096, 5)] {
            let padded = [&stream.bytes[..], &padding].concat();
            let whole = right(&padded, DecodeMode::Whole).run(&mut decoder, stream.data.len());
            assert!(whole.as_deref() == Ok(stream.data), "{}", stream.name);
            for length in grid(stream.data.len()).into_iter().step_by(3) {
                let prefix = right(&padded, DecodeMode::Prefix).run(&mut decoder, length);
                assert!(prefix.as_deref() == Ok(&stream.data[..length]), "{}", stream.name);
            }
        }
    }
}

#[test]
fn a_right_padded_stream_that_does_not_fill_the_output_is_refused() {
    let mut decoder = decoder();
    for stream in streams() {
        for mode in [DecodeMode::Whole, DecodeMode::Prefix] {
            let decoded = right(&stream.bytes, mode).run(&mut decoder, stream.data.len() + 1);
            assert!(decoded.is_err(), "{}", stream.name);
        }
    }
    let nothing = right(&[], DecodeMode::Whole).run(&mut decoder, 1).unwrap_err();
    assert_eq!(nothing.kind(), ErrorKind::EmptyInput);
}

#[test]
fn a_block_that_was_made_to_fill_its_pcluster_comes_back() {
    let mut decoder = decoder();
    for (name, data) in samples::all() {
        for capacity in [4096, 16384, 65536] {
            let (block, taken) = lz4_to_size(data, capacity);
            let padded = [vec![0; capacity - block.len()], block].concat();
            let job = Job {
                algorithm: LZ4.algorithm,
                padding: Padding::Left,
                input: &padded,
                mode: DecodeMode::Whole,
            };
            let decoded = job.run(&mut decoder, taken);
            assert!(decoded.as_deref() == Ok(&data[..taken]), "{name} in {capacity}");
        }
    }
}

#[test]
fn a_match_of_distance_zero_does_not_leave_what_was_in_the_output() {
    // Thirty literals, then a match of 19 bytes at distance 0; `run` compares two passes.
    let block = [&[0xFF, 15][..], &[7; 30], &[0; 20]].concat();
    let mut decoder = decoder();
    for padding in [Padding::Left, Padding::Right] {
        let job = |mode| Job { algorithm: LZ4.algorithm, padding, input: &block, mode };
        let before = job(DecodeMode::Prefix).run(&mut decoder, 30);
        assert!(before.as_deref() == Ok(&[7; 30]), "{padding:?}");
        for length in 31..=50 {
            let decoded = job(DecodeMode::Prefix).run(&mut decoder, length).unwrap_err();
            assert_eq!(decoded.kind(), ErrorKind::Corrupt);
        }
    }
}

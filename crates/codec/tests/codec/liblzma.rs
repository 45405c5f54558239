//! Our MicroLZMA decoder against liblzma's: the same verdicts and the same bytes.
#![allow(unsafe_code, reason = "liblzma is a C library")]

use ferrofs_codec::{DecodeMode, Decoder, Error, ErrorKind, Padding};
use liblzma_sys as c;

use crate::codecs::{DICTIONARY_BYTES, LZMA, decoder, microlzma};
use crate::guarded::Job;
use crate::lzma::streams;
use crate::samples::{Xorshift, grid, text};

/// What liblzma does with a stream.
struct Reference {
    verdict: Verdict,
    /// What it wrote, whatever the verdict.
    bytes: Vec<u8>,
}

#[derive(Debug, PartialEq, Eq)]
enum Verdict {
    Good,
    Bad,
    /// The input ended before the output was full.
    Short,
}

fn reference(input: &[u8], length: usize, mode: DecodeMode) -> Reference {
    let mut bytes = vec![0x33; length];
    // SAFETY: zero is how liblzma wants a new stream; the pointers are given with their lengths; the
    // stream is ended here.
    let (ready, result, unfilled) = unsafe {
        let mut stream: c::lzma_stream = std::mem::zeroed();
        let is_exact = c::lzma_bool::from(mode == DecodeMode::Whole);
        let (input_bytes, output_bytes) = (input.len() as u64, length as u64);
        let ready = c::lzma_microlzma_decoder(
            &raw mut stream,
            input_bytes,
            output_bytes,
            is_exact,
            DICTIONARY_BYTES,
        );
        (stream.next_in, stream.avail_in) = (input.as_ptr(), input.len());
        (stream.next_out, stream.avail_out) = (bytes.as_mut_ptr(), length);
        let result = c::lzma_code(&raw mut stream, c::lzma_action_LZMA_FINISH);
        let unfilled = stream.avail_out;
        c::lzma_end(&raw mut stream);
        (ready, result, unfilled)
    };
    assert_eq!(ready, c::lzma_ret_LZMA_OK);
    bytes.truncate(length - unfilled);
    let verdict = match result {
        c::lzma_ret_LZMA_STREAM_END if unfilled == 0 => Verdict::Good,
        c::lzma_ret_LZMA_OK | c::lzma_ret_LZMA_BUF_ERROR if unfilled > 0 => Verdict::Short,
        _ => Verdict::Bad,
    };
    Reference { verdict, bytes }
}

/// The property: what is said of `input`, and what is in the output then.
fn agree(decoder: &mut Decoder, input: &[u8], length: usize, mode: DecodeMode) {
    let job = Job { algorithm: LZMA.algorithm, padding: Padding::Left, input, mode };
    let ours = job.run(decoder, length);
    let Reference { verdict, bytes } = reference(input, length, mode);
    match (&ours, verdict, mode) {
        (Ok(found), Verdict::Good, _) => assert!(*found == bytes, "other bytes"),
        // An end marker behind the prefix, which liblzma looks for.
        (Ok(found), Verdict::Bad, DecodeMode::Prefix) => assert!(*found == bytes, "other bytes"),
        (Err(_), Verdict::Bad, _) => {}
        (Err(error), Verdict::Short, _) => {
            let kind = ErrorKind::TooShort { got: bytes.len(), wanted: length };
            assert_eq!(Error::kind(error), kind);
        }
        (ours, theirs, _) => panic!("{:?} but {theirs:?}, {length} bytes {mode:?}", ours.is_ok()),
    }
}

fn agree_both(decoder: &mut Decoder, input: &[u8], length: usize) {
    agree(decoder, input, length, DecodeMode::Whole);
    // No bytes are a prefix of anything, which liblzma does not see like that.
    if length > 0 {
        agree(decoder, input, length, DecodeMode::Prefix);
    }
}

#[test]
fn streams_and_their_prefixes_are_the_same() {
    let mut decoder = decoder();
    for stream in streams() {
        for length in grid(stream.data.len()) {
            agree_both(&mut decoder, &stream.bytes, length);
        }
        agree_both(&mut decoder, &stream.bytes, stream.data.len() + 1);
        agree_both(&mut decoder, &stream.bytes, stream.data.len() + 5000);
    }
}

#[test]
fn cut_streams_are_the_same() {
    let mut decoder = decoder();
    for stream in streams() {
        for cut in grid(stream.bytes.len()).into_iter().filter(|cut| *cut > 0) {
            agree_both(&mut decoder, &stream.bytes[..cut], stream.data.len());
            agree_both(&mut decoder, &stream.bytes[..cut], 1 + stream.data.len() / 2);
        }
    }
}

#[test]
fn streams_of_all_properties_are_the_same_whole_cut_and_damaged() {
    let mut decoder = decoder();
    let mut random = Xorshift(0x1C_19B);
    for lc in 0..=4 {
        for lp in 0..=4 - lc {
            for pb in 0..=4 {
                let data = text(1500, u64::from(lc * 100 + lp * 10 + pb));
                let stream = microlzma(&data, 6, [lc, lp, pb]);
                agree_both(&mut decoder, &stream, data.len());
                for _ in 0..12 {
                    let mut broken = stream.clone();
                    broken.truncate(stream.len() - random.below(2) * random.below(stream.len()));
                    for _ in 0..random.below(3) {
                        let place = random.below(broken.len());
                        broken[place] ^= random.next().to_le_bytes()[5];
                    }
                    if broken[0] != 0 {
                        agree_both(&mut decoder, &broken, random.below(data.len() + 400));
                    }
                }
            }
        }
    }
}

#[test]
fn damaged_streams_are_the_same() {
    let mut decoder = decoder();
    let mut random = Xorshift(0xC0_FFEE);
    for stream in streams() {
        for _ in 0..12 {
            let mut broken = stream.bytes.clone();
            for _ in 0..=random.below(3) {
                let place = 1 + random.below(broken.len() - 1);
                broken[place] ^= random.next().to_le_bytes()[5] | 1;
            }
            agree_both(&mut decoder, &broken, stream.data.len());
            agree_both(&mut decoder, &broken, 1 + random.below(stream.data.len()));
        }
    }
}

#[test]
fn short_outputs_are_the_same() {
    let mut decoder = decoder();
    for length in 1..300 {
        let data = text(length, 4);
        let stream = microlzma(&data, 6, [3, 0, 2]);
        for wanted in length.saturating_sub(3)..length + 3 {
            agree_both(&mut decoder, &stream, wanted);
        }
    }
}

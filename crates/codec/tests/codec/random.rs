//! The same properties on data, lengths and damage that proptest draws.

use ferrofs_codec::{DecodeMode, Padding};
use proptest::prelude::*;
use proptest::sample::Index;
use proptest::test_runner::{Config, TestRunner};

use crate::codecs::{Codec, decoder};
use crate::guarded::Job;
use crate::samples::{noise, text};

/// Text, noise and runs of one byte, in any order.
fn data() -> impl Strategy<Value = Vec<u8>> {
    let part = prop_oneof![
        (1..3000_usize, any::<u64>()).prop_map(|(length, state)| text(length, state)),
        (1..3000_usize, any::<u64>()).prop_map(|(length, state)| noise(length, state)),
        (1..3000_usize, any::<u8>()).prop_map(|(length, byte)| vec![byte; length]),
    ];
    prop::collection::vec(part, 1..6).prop_map(|parts| parts.concat())
}

/// One decode, and how to break it.
#[derive(Debug)]
struct Case {
    data: Vec<u8>,
    encoder: Index,
    prefix: Index,
    zeros: usize,
    cut: Index,
    hits: Vec<(Index, u8)>,
}

fn case() -> impl Strategy<Value = Case> {
    let hits = prop::collection::vec((any::<Index>(), 1..=255_u8), 1..4);
    (data(), any::<Index>(), any::<Index>(), 0..40_usize, any::<Index>(), hits).prop_map(
        |(data, encoder, prefix, zeros, cut, hits)| Case {
            data,
            encoder,
            prefix,
            zeros,
            cut,
            hits,
        },
    )
}

pub(crate) fn check(codec: &Codec) {
    let config = Config { cases: 96, failure_persistence: None, ..Config::default() };
    TestRunner::new(config)
        .run(&case(), |case| {
            check_one(codec, &case);
            Ok(())
        })
        .unwrap();
}

fn check_one(codec: &Codec, case: &Case) {
    let Case { data, encoder, prefix, zeros, cut, hits } = case;
    let (_, encode) = codec.encoders[encoder.index(codec.encoders.len())];
    let stream = encode(data);
    if stream[0] == 0 {
        return;
    }
    let mut decoder = decoder();
    let job = |input, mode| Job { algorithm: codec.algorithm, padding: Padding::Left, input, mode };
    let padded = [&vec![0; *zeros], &stream[..]].concat();
    let length = prefix.index(data.len() + 1);

    let whole = job(&padded, DecodeMode::Whole).run(&mut decoder, data.len());
    assert!(whole.as_deref() == Ok(data));
    let part = job(&padded, DecodeMode::Prefix).run(&mut decoder, length);
    assert!(part.as_deref() == Ok(&data[..length]));

    let cut = &stream[..cut.index(stream.len())];
    job(cut, DecodeMode::Whole).run(&mut decoder, data.len()).unwrap_err();
    if let Ok(part) = job(cut, DecodeMode::Prefix).run(&mut decoder, length) {
        assert!(part == data[..length]);
    }

    let mut broken = padded.clone();
    for (place, change) in hits {
        broken[place.index(padded.len())] ^= change;
    }
    drop(job(&broken, DecodeMode::Whole).run(&mut decoder, data.len()));
    drop(job(&broken, DecodeMode::Prefix).run(&mut decoder, length));
}

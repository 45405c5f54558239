//! The rule that splits a range, as arithmetic: its table of nine rows, and properties on random ranges.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on panics")]

use super::{CHUNKS_PER_THREAD, Chunks, SplitParameters};
use proptest::prelude::*;
use std::ops::Range;

/// Threads that may be had in a row of the specification's table.
const PLENTY: u64 = 1000;

fn pieces_of(shape: SplitParameters, granted: u64) -> (u64, Chunks) {
    let threads = shape.threads().min(granted).max(1);
    (threads, shape.chunks(threads, CHUNKS_PER_THREAD))
}

fn list(chunks: &Chunks) -> Vec<Range<u64>> {
    (0..chunks.count()).map_while(|number| chunks.chunk(number)).collect()
}

/// The loop of padata itself, in u128: the simple twin.
fn cut_one_by_one(start: u64, end: u64, chunk_size: u64) -> Vec<Range<u64>> {
    let (mut at, end, chunk_size) = (u128::from(start), u128::from(end), u128::from(chunk_size));
    let narrow = |value: u128| u64::try_from(value).unwrap();
    let mut chunks = Vec::new();
    while at < end {
        let stop = ((at / chunk_size + 1) * chunk_size).min(end);
        chunks.push(narrow(at)..narrow(stop));
        at = stop;
    }
    chunks
}

struct Row {
    asked: [u64; 5],
    threads: u64,
    chunk_size: u64,
    first: Range<u64>,
    last: Range<u64>,
    calls: u64,
}

// A-D1, the table of nine rows. `threads` 0 is the row of max_threads 0.
#[test]
fn all_nine_rows_of_the_table_come_out() {
    let row = |asked, threads, chunk_size, calls, first, last| Row {
        asked,
        threads,
        chunk_size,
        first,
        last,
        calls,
    };
    let rows = [
        row([0, 1000, 1, 1, 4], 4, 62, 17, 0..62, 992..1000),
        row([37, 1000, 1, 1, 4], 4, 62, 17, 37..62, 992..1037),
        row([100, 1000, 0, 16, 3], 3, 96, 11, 100..192, 1056..1100),
        row([5, 3, 1, 1, 8], 3, 1, 3, 5..6, 7..8),
        row([0, 1000, 1, 64, 100], 15, 64, 16, 0..64, 960..1000),
        row([7, 65, 8, 8, 2], 2, 8, 9, 7..8, 64..72),
        row([12345, 1_000_000, 32768, 32768, 52], 30, 32768, 31, 12345..32768, 983_040..1_012_345),
        row([0, 1000, 1, 1, 0], 0, 250, 4, 0..250, 750..1000),
    ];
    for Row { asked, threads, chunk_size, first, last, calls } in rows {
        let [start, size, min_chunk_size, align, max_threads] = asked;
        let shape =
            SplitParameters { start, end: start + size, align, min_chunk_size, max_threads };
        assert_eq!(shape.threads(), threads, "threads of {asked:?}");
        let (_, chunks) = pieces_of(shape, PLENTY);
        assert_eq!(chunks.chunk_size(), chunk_size, "chunk_size of {asked:?}");
        let chunks = list(&chunks);
        assert_eq!(chunks, cut_one_by_one(start, start + size, chunk_size), "chunks of {asked:?}");
        assert_eq!(chunks.len() as u64, calls, "calls of {asked:?}");
        assert_eq!(chunks.first(), Some(&first), "first of {asked:?}");
        assert_eq!(chunks.last(), Some(&last), "last of {asked:?}");
    }
    // The ninth: not worth a second thread, so it is not cut at all.
    let shape =
        SplitParameters { start: 0, end: 10, align: 1, min_chunk_size: 100, max_threads: 4 };
    assert_eq!((shape.threads(), shape.whole()), (1, 0..10));
}

// Regression 13: chunk size 0, align 0, a count cut to 32 bits.
#[test]
fn zero_align_and_zero_chunk_count_as_one() {
    for (align, min_chunk_size) in [(0, 0), (0, 1), (1, 0)] {
        let shape = SplitParameters { start: 3, end: 9, align, min_chunk_size, max_threads: 4 };
        assert_eq!(shape.threads(), 4);
        assert_eq!(list(&shape.chunks(4, CHUNKS_PER_THREAD)), cut_one_by_one(3, 9, 1));
    }
    // Rounded before the minimum came in, this was 1 once, and then missed the alignment.
    let shape = SplitParameters { start: 0, end: 16, align: 8, min_chunk_size: 0, max_threads: 2 };
    assert_eq!(shape.chunks(2, CHUNKS_PER_THREAD).chunk_size(), 8);
}

#[test]
fn two_to_the_31_units_and_more_still_get_their_threads() {
    for size in [1_u64 << 31, 1 << 32, (1 << 32) + 1, u64::MAX] {
        let shape =
            SplitParameters { start: 0, end: size, align: 1, min_chunk_size: 1, max_threads: 16 };
        assert_eq!(shape.threads(), 16, "{size} units");
    }
}

#[test]
fn a_range_up_to_the_last_number_is_cut_without_wrapping() {
    let shape =
        SplitParameters { start: 0, end: u64::MAX, align: 1, min_chunk_size: 1, max_threads: 4 };
    let chunks = shape.chunks(4, CHUNKS_PER_THREAD);
    assert_eq!(list(&chunks), cut_one_by_one(0, u64::MAX, chunks.chunk_size()));
    let start = u64::MAX - 100;
    let shape =
        SplitParameters { start, end: u64::MAX, align: 16, min_chunk_size: 1, max_threads: 4 };
    let chunks = shape.chunks(4, CHUNKS_PER_THREAD);
    assert_eq!(list(&chunks), cut_one_by_one(start, u64::MAX, chunks.chunk_size()));
    assert_eq!(list(&chunks).last().unwrap().end, u64::MAX);
    assert_eq!(chunks.chunk(u64::MAX), None);
}

#[test]
fn a_chunk_that_rounds_past_u64_makes_one_piece() {
    let align = (1 << 63) + 1;
    let shape =
        SplitParameters { start: 5, end: 100, align, min_chunk_size: u64::MAX, max_threads: 0 };
    let chunks = shape.chunks(1, CHUNKS_PER_THREAD);
    assert_eq!((chunks.count(), chunks.chunk(0)), (1, Some(5..100)));
}

/// A number of any magnitude.
fn any_magnitude() -> impl Strategy<Value = u64> {
    (0_u32..64, any::<u64>()).prop_map(|(shift, bits)| bits >> shift)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 4096, failure_persistence: None, ..ProptestConfig::default() })]

    // A-D1: disjoint, covering exactly, boundaries and chunk size as the rule says.
    #[test]
    fn pieces_cover_the_range_and_end_at_multiples_of_the_chunk(
        start in any_magnitude(),
        size in any_magnitude(),
        align in any_magnitude(),
        min_chunk_size in any_magnitude(),
        max_threads in 0_u64..300,
        granted in 1_u64..300,
    ) {
        let end = start.saturating_add(size);
        let shape = SplitParameters { start, end, align, min_chunk_size, max_threads };
        prop_assert!(shape.threads() <= max_threads);
        let (threads, chunks) = pieces_of(shape, granted);
        let chunk_size = chunks.chunk_size();
        let whole = u128::from(shape.size()) / u128::from(threads * 4);
        let least = whole.max(u128::from(min_chunk_size)).max(1);
        let exact = least.next_multiple_of(u128::from(align.max(1)));
        prop_assert_eq!(u128::from(chunk_size), exact.min(u128::from(u64::MAX)));
        prop_assert!(chunks.count() <= 8 * threads + 2, "{} chunks", chunks.count());
        let chunks = list(&chunks);
        prop_assert_eq!(&chunks, &cut_one_by_one(start, end, chunk_size));
        let mut at = start;
        for chunk in &chunks {
            prop_assert_eq!(chunk.start, at);
            prop_assert!(chunk.end > chunk.start);
            prop_assert!(chunk.end == end || chunk.end % chunk_size == 0);
            at = chunk.end;
        }
        prop_assert_eq!(at, end);
    }

    // Two threads or more never meet a chunk size that does not fit into u64, and it keeps to align.
    #[test]
    fn a_shared_chunk_is_a_multiple_of_align(
        size in any_magnitude(),
        align in any_magnitude(),
        min_chunk_size in any_magnitude(),
        max_threads in 2_u64..300,
        granted in 1_u64..300,
    ) {
        let shape = SplitParameters { start: 0, end: size, align, min_chunk_size, max_threads };
        if shape.threads() > 1 {
            let (_, chunks) = pieces_of(shape, granted);
            prop_assert_eq!(chunks.chunk_size() % align.max(1), 0);
            prop_assert!(chunks.chunk_size() >= min_chunk_size);
        }
    }
}

/// Ends a schedule in which a free thread takes the next chunk: the virtual clock.
fn finish_time(costs: &[u64], threads: usize) -> u64 {
    let mut free_at = vec![0_u64; threads];
    for cost in costs {
        *free_at.iter_mut().min().unwrap() += cost;
    }
    free_at.into_iter().max().unwrap()
}

// A-D7, counted on a virtual clock: one chunk 8 times slower.
#[test]
fn one_slow_piece_does_not_hold_the_others_up() {
    for threads in 2..=16_usize {
        let shape = SplitParameters {
            start: 0,
            end: 1 << 20,
            align: 1,
            min_chunk_size: 1,
            max_threads: 16,
        };
        let chunks = list(&shape.chunks(threads as u64, CHUNKS_PER_THREAD));
        for slow in 0..chunks.len() {
            let cost = |(number, chunk): (usize, &Range<u64>)| {
                (chunk.end - chunk.start) * if number == slow { 8 } else { 1 }
            };
            let costs: Vec<u64> = chunks.iter().enumerate().map(cost).collect();
            let ideal = costs.iter().sum::<u64>() / threads as u64;
            let took = finish_time(&costs, threads);
            if slow < threads {
                // Met at once, it costs its own time, or the others hide it.
                assert!(took <= costs[slow].max(ideal * 13 / 10), "{slow} of {threads}");
            }
            // Met at any time: never more than what every greedy schedule promises.
            assert!(took <= ideal + costs[slow], "{slow} of {threads}: {took}, ideal {ideal}");
        }
    }
}

// The mark of A-D7 for a slow chunk anywhere: what it takes is more chunks, not another rule.
#[test]
fn thirty_two_pieces_a_thread_keep_a_slow_piece_within_1_3_of_the_ideal_wherever_it_lies() {
    let shape =
        SplitParameters { start: 0, end: 1 << 20, align: 1, min_chunk_size: 1, max_threads: 64 };
    for threads in 2..=24_usize {
        let count = list(&shape.chunks(threads as u64, 32)).len();
        for slow in 0..count {
            let costs: Vec<u64> =
                (0..count).map(|number| if number == slow { 80 } else { 10 }).collect();
            // No schedule is faster than its slowest chunk.
            let ideal = costs.iter().sum::<u64>().div_ceil(threads as u64).max(80);
            let took = finish_time(&costs, threads);
            assert!(took * 10 <= ideal * 13, "{slow} of {threads}: {took}, {ideal}");
        }
    }
}

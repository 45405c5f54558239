//! Two seconds of jobs and ordered runs at random, many at once and one inside another, with a budget
//! too small for them: each is compared with its plain loop.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on panics")]

use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use super::{CallerRole, HelperBudget, OrderedPipeline, ParallelFor};

/// How long each of the two goes on.
const LENGTH: Duration = Duration::from_secs(2);

/// Numbers that look random: xorshift.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % limit
    }
}

/// Runs `once` on `threads` threads, again and again.
fn for_a_while(threads: u64, once: impl Fn(&mut Random) + Sync) -> usize {
    let rounds = AtomicUsize::new(0);
    let begun = Instant::now();
    std::thread::scope(|scope| {
        for seed in 1..=threads {
            let (once, rounds) = (&once, &rounds);
            scope.spawn(move || {
                let mut random = Random(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15));
                while begun.elapsed() < LENGTH {
                    once(&mut random);
                    rounds.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
    });
    rounds.into_inner()
}

fn place(number: u64) -> usize {
    usize::try_from(number).unwrap()
}

#[test]
fn random_jobs_cover_their_ranges_or_return_their_error() {
    let helpers = HelperBudget::new(3);
    let rounds = for_a_while(4, |random| {
        let (start, size) = (random.below(1000), random.below(2000));
        let bad = random.below(4000);
        let marks: Vec<AtomicU8> = (0..size).map(|_| AtomicU8::new(0)).collect();
        let job = ParallelFor::over(start..start + size);
        let job = job.align(random.below(70)).min_chunk_size(random.below(90)).helpers(&helpers);
        let outcome = job.max_threads(place(random.below(6))).run(|chunk| {
            if chunk.contains(&bad) {
                return Err(bad);
            }
            // A job of its own marks the units.
            ParallelFor::over(chunk).max_threads(2).helpers(&helpers).run(|chunk| {
                for unit in chunk {
                    marks[place(unit - start)].fetch_add(1, Ordering::Relaxed);
                }
                Ok::<_, u64>(())
            })?;
            Ok(())
        });
        let fails = (start..start + size).contains(&bad);
        assert_eq!(outcome.err(), fails.then_some(bad));
        let marks = marks.iter().map(|mark| mark.load(Ordering::Relaxed));
        // No unit twice, and without a failure all of them once.
        assert!(marks.into_iter().all(|mark| if fails { mark <= 1 } else { mark == 1 }));
    });
    assert_eq!(helpers.free(), 3);
    eprintln!("{rounds} jobs");
}

#[test]
fn random_ordered_runs_end_as_their_plain_loops_do() {
    let helpers = HelperBudget::new(3);
    let rounds = for_a_while(3, |random| {
        let count = random.below(300);
        let (bad_work, bad_commit) = (random.below(600), random.below(600));
        let bad = bad_work.min(bad_commit);
        let spin = random.below(4) * 50;
        let run = OrderedPipeline::new().max_threads(1 + place(random.below(4))).helpers(&helpers);
        let role = [CallerRole::Works, CallerRole::CommitsOnly][place(random.below(2))];
        let run = run.caller_role(role).max_in_flight_bytes(random.below(200));
        let mut committed = 0;
        let outcome = run.max_in_flight(place(random.below(20))).run_with_cost(
            0..count,
            |item| item % 17 * 3,
            || 0_u64,
            |state, item| {
                for step in 0..(item % 5) * spin {
                    *state = std::hint::black_box(state.wrapping_add(step));
                }
                if item >= bad_work { Err(item) } else { Ok(item) }
            },
            |item| {
                assert_eq!(item, committed);
                if item >= bad_commit {
                    return Err(item);
                }
                committed += 1;
                Ok(())
            },
        );
        assert_eq!(committed, bad.min(count));
        assert_eq!(outcome.err(), (bad < count).then_some(bad));
    });
    assert_eq!(helpers.free(), 3);
    eprintln!("{rounds} runs");
}

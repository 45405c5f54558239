//! A job of which one piece takes eight times as long as the others. Called by the jobs experiment.

use std::convert::Infallible;
use std::hint::black_box;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use ferrofs_workers::jobs::ParallelFor;

use crate::statistics::Samples;

/// How much more the slow piece has to do.
const SLOW_FACTOR: u64 = 8;
/// Pieces for each thread: padata's rule, and the setting for work that differs much.
pub(crate) const PIECES_A_THREAD: [u64; 2] = [4, 32];
/// Rounds of computing for each thread, less what the slow piece adds: some 80 ms.
const THREAD_ROUNDS: u64 = 80_000_000;

/// Where the slow piece lies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Slow {
    First,
    Middle,
    Last,
}

impl Slow {
    pub(crate) const ALL: [Self; 3] = [Self::First, Self::Middle, Self::Last];

    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::First => "first",
            Self::Middle => "in the middle",
            Self::Last => "last",
        }
    }

    const fn piece(self, pieces: u64) -> u64 {
        match self {
            Self::First => 0,
            Self::Middle => pieces / 2,
            Self::Last => pieces - 1,
        }
    }
}

/// Wall time as a multiple of the ideal: all work spread evenly, but no less than the slow piece.
#[derive(Debug, Default)]
pub(crate) struct Imbalance {
    pub(crate) multiples: Samples,
}

impl Imbalance {
    /// Runs the job once on so many threads. The cost of an ordinary piece is measured beside it, on
    /// this thread, since a shared machine is not equally fast all the time.
    ///
    /// # Errors
    /// When the job did not cut its range as expected.
    pub(crate) fn run(&mut self, slow: Slow, threads: usize, chunks_per_thread: u64) -> Result<()> {
        let pieces = u64::try_from(threads)? * chunks_per_thread;
        let slow = slow.piece(pieces);
        let rounds = THREAD_ROUNDS / chunks_per_thread;
        let before = time_piece(rounds);
        let start = Instant::now();
        let outcome: Result<_, Infallible> = ParallelFor::over(0..pieces)
            .max_threads(threads)
            .chunks_per_thread(chunks_per_thread)
            .run(|range| {
                for piece in range {
                    compute(if piece == slow { SLOW_FACTOR * rounds } else { rounds });
                }
                Ok(())
            });
        let wall = start.elapsed();
        let Ok(report) = outcome;
        let piece = (before + time_piece(rounds)) / 2;
        ensure!(report.chunks == pieces, "{} pieces of {pieces}", report.chunks);
        let even = (pieces - 1 + SLOW_FACTOR) as f64 / threads as f64;
        let ideal = piece.as_secs_f64() * even.max(SLOW_FACTOR as f64);
        self.multiples.push(wall.as_secs_f64() / ideal);
        Ok(())
    }
}

fn time_piece(rounds: u64) -> Duration {
    let start = Instant::now();
    compute(rounds);
    start.elapsed()
}

fn compute(rounds: u64) {
    black_box((0..rounds).fold(1_u64, |value, round| black_box(value ^ round).rotate_left(7)));
}

#[cfg(test)]
mod tests {
    use super::Slow;

    #[test]
    fn the_slow_piece_lies_where_it_is_said_to() {
        assert_eq!(Slow::ALL.map(|slow| slow.piece(8)), [0, 4, 7]);
    }
}

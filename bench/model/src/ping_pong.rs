//! Two threads that hand a word to each other: the smallest thing that moves a line, by which a model
//! is compared with a machine. Called by the experiment's comparison and by tests.

use anyhow::{Context, Result, ensure};

use crate::machine::{self, Costs, Counts, Shape, Wakes};
use crate::sync::thread::JoinHandle;
use crate::sync::{Arc, AtomicU64, Ordering};

/// Hands a word over so often, each time by a store that the other waits for in a loop of loads.
/// The number must be even: the first thread ends it. Answers nanoseconds, and the accesses meanwhile.
///
/// # Errors
/// When the machine is impossible or has one CPU only.
pub fn run(shape: Shape, costs: Costs, turns: u64) -> Result<(f64, Counts)> {
    ensure!(shape.cpus > 1, "a ping-pong takes two CPUs");
    ensure!(turns.is_multiple_of(2), "{turns} hand-overs end with the other thread");
    machine::run(shape, costs, move || play(turns))?
}

fn play(turns: u64) -> Result<(f64, Counts)> {
    /// A word on a line of its own.
    #[derive(Debug, Default)]
    #[repr(align(128))]
    struct Word(AtomicU64);

    let word = Arc::new(Word::default());
    let others = Arc::clone(&word);
    // Both have looked at the word before it counts.
    let ready = Arc::new(Word::default());
    let is_ready = Arc::clone(&ready);
    let body = move || {
        others.0.load(Ordering::Acquire);
        is_ready.0.store(1, Ordering::Release);
        (1..=turns).step_by(2).for_each(|turn| answer(&others.0, turn));
    };
    let thread = JoinHandle::start(body, Wakes::Preempting)?;
    wait_for(&ready.0, 1);
    word.0.load(Ordering::Acquire);
    let begin = machine::moment().context("no machine runs")?;
    for turn in (0..turns).step_by(2) {
        word.0.store(turn + 1, Ordering::Release);
        wait_for(&word.0, turn + 2);
    }
    let end = machine::moment().context("no machine runs")?;
    thread.join().map_err(|_| anyhow::anyhow!("the other thread panicked"))?;
    let (nanoseconds, counts, _) = end.since(&begin);
    Ok((nanoseconds, counts))
}

fn answer(word: &AtomicU64, turn: u64) {
    wait_for(word, turn);
    word.store(turn + 1, Ordering::Release);
}

fn wait_for(word: &AtomicU64, value: u64) {
    while word.load(Ordering::Acquire) != value {}
}

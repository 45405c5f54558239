//! One burst of decode-like work, as the launch of a program makes it: a reader submits an item, waits
//! for it, computes a little with what it got, and submits the next. Called by the scheduling
//! experiment for each row alike.

use std::hint::black_box;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

/// Work that a pool can run.
pub(crate) type Work = Box<dyn FnOnce() + Send>;

/// Bytes that an item hashes: some 30 us of computing.
const ITEM_BYTES: usize = 32 * 1024;
/// Bytes that the reader hashes between two items.
const GAP_BYTES: usize = 16 * 1024;

/// An item that did not run for so long never will, whatever else the machine does.
const LOST: Duration = Duration::from_secs(30);

/// Where an item says when it started.
#[derive(Debug, Default)]
struct Answer {
    started: Mutex<Option<Instant>>,
    changed: Condvar,
}

impl Answer {
    fn give(&self, started: Instant) {
        *self.started.lock().unwrap_or_else(PoisonError::into_inner) = Some(started);
        self.changed.notify_one();
    }

    fn take(&self) -> Result<Instant> {
        let started = self.started.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = self.changed.wait_timeout_while(started, LOST, |started| started.is_none());
        let (mut started, _) = waited.unwrap_or_else(PoisonError::into_inner);
        started.take().with_context(|| format!("an item is lost: it did not run for {LOST:?}"))
    }
}

/// Computes for about a nanosecond a byte.
fn compute(bytes: &[u8]) {
    let hash = bytes.iter().fold(0xcbf2_9ce4_8422_2325_u64, |hash, &byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    black_box(hash);
}

/// Submits `items` one after another; gives the time from submission to start of each.
///
/// # Errors
/// When one of them does not run.
pub(crate) fn run(items: usize, submit: &dyn Fn(Work)) -> Result<Vec<Duration>> {
    let input: Arc<[u8]> = vec![0x5a; ITEM_BYTES].into();
    let answer = Arc::new(Answer::default());
    let mut latencies = Vec::with_capacity(items);
    for _ in 0..items {
        let (own_input, own_answer) = (Arc::clone(&input), Arc::clone(&answer));
        let submitted = Instant::now();
        submit(Box::new(move || {
            let started = Instant::now();
            compute(&own_input);
            own_answer.give(started);
        }));
        latencies.push(answer.take()?.saturating_duration_since(submitted));
        compute(input.get(..GAP_BYTES).unwrap_or_default());
    }
    Ok(latencies)
}

#[cfg(test)]
mod tests {
    use super::{Work, run};

    #[test]
    fn every_item_of_a_burst_is_measured() {
        let latencies = run(16, &|work: Work| work());
        assert_eq!(latencies.unwrap().len(), 16);
    }
}

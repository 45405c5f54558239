//! Repeats an exchange that may succeed later.

use std::time::{Duration, Instant};

use ferrofs_remote::protocol::FetchError;

use crate::http::ExchangeError;
use crate::stats::Stats;

/// The first pause before a repetition, and the longest.
const PAUSE_MIN: Duration = Duration::from_millis(50);
const PAUSE_MAX: Duration = Duration::from_secs(5);

/// The pauses between repetitions: they double, with jitter.
#[derive(Debug)]
pub(crate) struct Pauses {
    next: Duration,
    timeout: Duration,
    deadline: Instant,
    seed: u64,
}

impl Pauses {
    /// For repetitions until `timeout` is over.
    pub(crate) fn new(timeout: Duration) -> Self {
        let clock = std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default();
        let seed = u64::from(clock.subsec_nanos()) | 1;
        Self { next: PAUSE_MIN, timeout, deadline: Instant::now() + timeout, seed }
    }

    /// The pause before the next attempt, at least `least`; `None` if there is no time for it.
    pub(crate) fn next(&mut self, least: Duration) -> Option<Duration> {
        // xorshift64: many clients that failed at the same time must not come back so.
        self.seed ^= self.seed << 13;
        self.seed ^= self.seed >> 7;
        self.seed ^= self.seed << 17;
        let half = u64::try_from(self.next.as_micros() / 2).unwrap_or(0).max(1);
        let pause = (self.next / 2 + Duration::from_micros(self.seed % half)).max(least);
        self.next = (self.next * 2).min(PAUSE_MAX);
        (Instant::now() + pause <= self.deadline).then_some(pause)
    }

    /// Something was received: the next pause is short again, and the time begins anew.
    pub(crate) fn reset(&mut self) {
        self.deadline = Instant::now() + self.timeout;
        self.next = PAUSE_MIN;
    }
}

/// Repeats `exchange` until it succeeds, fails for good, or `timeout` is over.
pub(crate) async fn repeat<T, F>(
    timeout: Duration,
    stats: &Stats,
    mut exchange: impl FnMut() -> F,
) -> Result<T, FetchError>
where
    F: Future<Output = Result<T, ExchangeError>>,
{
    let mut pauses = Pauses::new(timeout);
    loop {
        Stats::add(&stats.requests, 1);
        let ExchangeError { error, retry } = match exchange().await {
            Ok(value) => return Ok(value),
            Err(error) => error,
        };
        let Some(pause) = retry.and_then(|least| pauses.next(least)) else { return Err(error) };
        Stats::add(&stats.retries, 1);
        tokio::time::sleep(pause).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_and_end_with_the_time() {
        let mut pauses = Pauses::new(Duration::from_secs(3600));
        let some: Vec<_> = (0..12).map_while(|_| pauses.next(Duration::ZERO)).collect();
        assert_eq!(some.len(), 12);
        assert!(some[0] <= PAUSE_MIN && some[0] >= PAUSE_MIN / 2);
        assert!(some[11] <= PAUSE_MAX && some[11] >= PAUSE_MAX / 2);
        assert_eq!(pauses.next(Duration::from_secs(20)), Some(Duration::from_secs(20)));
        pauses.reset();
        assert!(pauses.next(Duration::ZERO) <= Some(PAUSE_MIN));
        assert_eq!(Pauses::new(Duration::ZERO).next(Duration::ZERO), None);
    }
}

//! Repeats an exchange that may succeed later.

use std::sync::Mutex;
use std::time::{Duration, Instant};

use ferrofs_remote::protocol::{FetchError, FetchErrorKind};

use crate::http::ExchangeError;
use crate::lock::lock;
use crate::stats::Stats;

/// The first pause before a repetition, and the longest.
const PAUSE_MIN: Duration = Duration::from_millis(50);
const PAUSE_MAX: Duration = Duration::from_secs(5);
/// A host to which there is no connection is given up after this part of the time: most likely its name is wrong, or it
/// has no such server.
const UNCONNECTED_PART: u32 = 6;

/// The pauses between repetitions: they double, with jitter.
#[derive(Debug)]
pub(crate) struct Pauses {
    next: Duration,
    timeout: Duration,
    deadline: Instant,
    /// There was no time for the last pause.
    is_ending: bool,
    rng_state: u64,
}

impl Pauses {
    /// For repetitions until `timeout` is over.
    pub(crate) fn new(timeout: Duration) -> Self {
        let clock = std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default();
        let rng_state = u64::from(clock.subsec_nanos()) | 1;
        let deadline = Instant::now() + timeout;
        Self { next: PAUSE_MIN, timeout, deadline, is_ending: false, rng_state }
    }

    /// The pause before the next attempt, at least `min_pause`; `None` if the time is over. If it ends before the pause
    /// does, there is an attempt shortly before its end, for those who wait until then, and the last one at its end.
    pub(crate) fn next(&mut self, min_pause: Duration) -> Option<Duration> {
        // xorshift64: many clients that failed at the same time must not come back so.
        self.rng_state ^= self.rng_state << 13;
        self.rng_state ^= self.rng_state >> 7;
        self.rng_state ^= self.rng_state << 17;
        let half = u64::try_from(self.next.as_micros() / 2).unwrap_or(0).max(1);
        let pause = (self.next / 2 + Duration::from_micros(self.rng_state % half)).max(min_pause);
        self.next = (self.next * 2).min(PAUSE_MAX);
        let rest = self.deadline.saturating_duration_since(Instant::now());
        if rest.is_zero() {
            return None;
        }
        let is_short = rest < pause;
        let until_end = if is_short && !self.is_ending { rest / 10 * 9 } else { rest };
        self.is_ending |= is_short;
        Some(pause.min(until_end))
    }

    /// Something was received: the next pause is short again, and the time begins anew.
    pub(crate) fn reset(&mut self) {
        self.deadline = Instant::now() + self.timeout;
        (self.next, self.is_ending) = (PAUSE_MIN, false);
    }
}

/// How much of the time a host may take to which there was no connection yet.
pub(crate) fn unknown_host_timeout(timeout: Duration) -> Duration {
    timeout / UNCONNECTED_PART
}

/// The repetitions of one task, which clients wait for: their time, and why the last one failed.
#[derive(Debug)]
pub(crate) struct Attempts {
    timeout: Duration,
    connect_timeout: Duration,
    failure: Mutex<Option<FetchError>>,
}

impl Attempts {
    /// For repetitions of each exchange until `timeout` is over.
    pub(crate) fn new(timeout: Duration) -> Self {
        Self { timeout, connect_timeout: timeout, failure: Mutex::default() }
    }

    /// The same for hosts that may not exist, which are given up sooner.
    pub(crate) fn of_unknown_host(timeout: Duration) -> Self {
        Self { connect_timeout: unknown_host_timeout(timeout), ..Self::new(timeout) }
    }

    /// Repeats `exchange` until it succeeds, fails for good, or the time is over.
    pub(crate) async fn repeat<T, F>(
        &self,
        stats: &Stats,
        mut exchange: impl FnMut() -> F,
    ) -> Result<T, FetchError>
    where
        F: Future<Output = Result<T, ExchangeError>>,
    {
        let (mut pauses, started_at) = (Pauses::new(self.timeout), Instant::now());
        loop {
            Stats::add(&stats.requests, 1);
            let ExchangeError { error, retry, is_unconnected } = match exchange().await {
                Ok(value) => return Ok(value),
                Err(error) => error,
            };
            let Some(min_pause) = retry else { return Err(error) };
            let limit = if is_unconnected { self.connect_timeout } else { self.timeout };
            let rest = limit.saturating_sub(started_at.elapsed());
            let Some(pause) = pauses.next(min_pause).filter(|_| !rest.is_zero()) else {
                let location = error.location.clone();
                return Err(time_is_over(Some(error), &location, limit));
            };
            *lock(&self.failure) = Some(error);
            Stats::add(&stats.retries, 1);
            tokio::time::sleep(pause.min(rest)).await;
        }
    }

    /// Waits for the task, at most so long.
    pub(crate) async fn wait<T>(
        &self,
        task: impl Future<Output = Result<T, FetchError>>,
        limit: Option<Duration>,
        display_name: &str,
    ) -> Result<T, FetchError> {
        let Some(limit) = limit else { return task.await };
        match tokio::time::timeout(limit, task).await {
            Ok(result) => result,
            Err(_) => Err(time_is_over(lock(&self.failure).clone(), display_name, limit)),
        }
    }
}

/// What a client hears that waits no longer. The last failure says more than that the time is over.
pub(crate) fn time_is_over(
    failure: Option<FetchError>,
    display_name: &str,
    limit: Duration,
) -> FetchError {
    let seconds = (limit.as_secs_f32() * 10.0).round() / 10.0;
    match failure {
        Some(FetchError { detail, location, kind, .. }) => {
            FetchError::new(kind, location, format!("{detail}; no success within {seconds} s"))
        }
        None => {
            let detail = format!("the server did not answer within {seconds} s");
            FetchError::new(FetchErrorKind::TimedOut, display_name, detail)
        }
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
        // A pause that is longer than the time ended it at once.
        let mut short = Pauses::new(Duration::from_secs(60));
        let pause = short.next(Duration::from_secs(60)).unwrap_or_default();
        assert!(pause > Duration::from_secs(50) && pause < Duration::from_secs(55), "{pause:?}");
        assert!(short.next(Duration::from_secs(60)) > Some(Duration::from_secs(55)));
    }
}

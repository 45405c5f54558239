//! How soon a server is started again. Used by `holder`.

use std::time::{Duration, Instant};

/// Restarts that follow at once, and the time that earns another one after that: a server that dies at once, or a program
/// that kills servers, takes a tenth of a CPU.
const RESTARTS_AT_ONCE: u32 = 64;
const RESTART_PERIOD: Duration = Duration::from_millis(100);
/// The pause after a server that ended with an error before it was ready: its cause, such as a file that cannot be read,
/// takes a while to go away. It doubles with each such server in a row, up to the second value.
const FAILED_START_PAUSE: Duration = Duration::from_secs(1);
const FAILED_START_PAUSE_MAX: Duration = Duration::from_secs(60);

/// How a server ended, as far as it matters for the next one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum EndedServer {
    /// It served, or a signal ended it.
    Served,
    /// It ended with an error before it was ready.
    NeverReady,
}

/// Whether restarts may follow at once.
#[derive(Debug)]
pub(super) struct RestartLimiter {
    left: u32,
    refilled: Instant,
    failed_starts: u32,
}

impl RestartLimiter {
    pub(super) fn new(now: Instant) -> Self {
        Self { left: RESTARTS_AT_ONCE, refilled: now, failed_starts: 0 }
    }

    /// How long to wait before a restart at `now`, which it counts.
    pub(super) fn pause_after(&mut self, ended: EndedServer, now: Instant) -> Duration {
        let pause = self.pause(now);
        if ended == EndedServer::Served {
            self.failed_starts = 0;
            return pause;
        }
        let longer = FAILED_START_PAUSE.saturating_mul(1 << self.failed_starts.min(16));
        self.failed_starts = self.failed_starts.saturating_add(1);
        longer.min(FAILED_START_PAUSE_MAX)
    }

    fn pause(&mut self, now: Instant) -> Duration {
        let periods =
            now.saturating_duration_since(self.refilled).as_millis() / RESTART_PERIOD.as_millis();
        let periods = u32::try_from(periods).unwrap_or(u32::MAX);
        self.refilled += RESTART_PERIOD.saturating_mul(periods.min(RESTARTS_AT_ONCE));
        self.left = self.left.saturating_add(periods).min(RESTARTS_AT_ONCE);
        if self.left == RESTARTS_AT_ONCE {
            self.refilled = now;
        }
        match self.left.checked_sub(1) {
            Some(left) => {
                self.left = left;
                Duration::ZERO
            }
            None => RESTART_PERIOD,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn restarts_follow_at_once_until_there_are_too_many() {
        let start = Instant::now();
        let mut limiter = RestartLimiter::new(start);
        for _ in 0..RESTARTS_AT_ONCE {
            assert_eq!(limiter.pause(start), Duration::ZERO);
        }
        assert_eq!(limiter.pause(start), RESTART_PERIOD);
        assert_eq!(limiter.pause(start + RESTART_PERIOD), Duration::ZERO);
        assert_eq!(limiter.pause(start + RESTART_PERIOD), RESTART_PERIOD);
        let later = start + Duration::from_secs(3600);
        for _ in 0..RESTARTS_AT_ONCE {
            assert_eq!(limiter.pause(later), Duration::ZERO);
        }
        assert_eq!(limiter.pause(later), RESTART_PERIOD);
    }

    #[test]
    fn the_pause_after_failed_starts_doubles_until_one_serves() {
        let now = Instant::now();
        let mut limiter = RestartLimiter::new(now);
        let mut pause = |ended| limiter.pause_after(ended, now).as_secs();
        let pauses: Vec<u64> = (0..8).map(|_| pause(EndedServer::NeverReady)).collect();
        assert_eq!(pauses, [1, 2, 4, 8, 16, 32, 60, 60]);
        assert_eq!((pause(EndedServer::Served), pause(EndedServer::NeverReady)), (0, 1));
    }
}

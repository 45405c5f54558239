//! How many messages are let through: few a second, and the number of the others with the next one. It knows no clock.
//! Called by the log.

/// Lines a second; what matters is in the first ones.
const LINES_PER_SECOND: u32 = 10;

/// How much has been said of late.
#[derive(Debug)]
pub(super) struct RateLimiter {
    second: u64,
    said: u32,
    suppressed: u64,
}

/// What becomes of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Admission {
    pub(super) is_admitted: bool,
    /// How many were left out since the last one that was admitted; told once.
    pub(super) suppressed: u64,
}

impl RateLimiter {
    pub(super) fn new() -> Self {
        Self { second: 0, said: 0, suppressed: 0 }
    }

    /// Whether a message of this second may be said. Seconds never go back.
    pub(super) fn admit(&mut self, second: u64) -> Admission {
        if second != self.second {
            self.second = second;
            self.said = 0;
        }
        if self.said == LINES_PER_SECOND {
            self.suppressed = self.suppressed.saturating_add(1);
            return Admission { is_admitted: false, suppressed: 0 };
        }
        self.said += 1;
        Admission { is_admitted: true, suppressed: self.suppressed() }
    }

    /// How many were left out and not told of yet.
    pub(super) fn suppressed(&mut self) -> u64 {
        std::mem::take(&mut self.suppressed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_second_has_its_lines_and_tells_of_those_before() {
        let mut rate_limiter = RateLimiter::new();
        for _ in 0..LINES_PER_SECOND {
            assert_eq!(rate_limiter.admit(7), Admission { is_admitted: true, suppressed: 0 });
        }
        for _ in 0..3 {
            assert_eq!(rate_limiter.admit(7), Admission { is_admitted: false, suppressed: 0 });
        }
        assert_eq!(rate_limiter.admit(8), Admission { is_admitted: true, suppressed: 3 });
        assert_eq!(rate_limiter.admit(8), Admission { is_admitted: true, suppressed: 0 });
        assert_eq!(rate_limiter.suppressed(), 0);
    }

    #[test]
    fn what_was_left_out_last_can_be_asked_for() {
        let mut rate_limiter = RateLimiter::new();
        let admitted = (0..15).filter(|_| rate_limiter.admit(0).is_admitted).count();
        assert_eq!(admitted, 10);
        assert_eq!((rate_limiter.suppressed(), rate_limiter.suppressed()), (5, 0));
    }
}

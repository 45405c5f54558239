//! How many messages are let through: few a second, and the number of the others with the next one. It knows no clock.
//! Called by the log.

/// Lines a second; what matters is in the first ones.
const LINES_PER_SECOND: u32 = 10;

/// How much has been said of late.
#[derive(Debug)]
pub(super) struct Pace {
    second: u64,
    said: u32,
    left_out: u64,
}

/// What becomes of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Verdict {
    pub(super) is_admitted: bool,
    /// How many were left out since the last one that was admitted; told once.
    pub(super) left_out: u64,
}

impl Pace {
    pub(super) fn new() -> Self {
        Self { second: 0, said: 0, left_out: 0 }
    }

    /// Whether a message of this second may be said. Seconds never go back.
    pub(super) fn admit(&mut self, second: u64) -> Verdict {
        if second != self.second {
            self.second = second;
            self.said = 0;
        }
        if self.said == LINES_PER_SECOND {
            self.left_out = self.left_out.saturating_add(1);
            return Verdict { is_admitted: false, left_out: 0 };
        }
        self.said += 1;
        Verdict { is_admitted: true, left_out: self.left_out() }
    }

    /// How many were left out and not told of yet.
    pub(super) fn left_out(&mut self) -> u64 {
        std::mem::take(&mut self.left_out)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_second_has_its_lines_and_tells_of_those_before() {
        let mut pace = Pace::new();
        for _ in 0..LINES_PER_SECOND {
            assert_eq!(pace.admit(7), Verdict { is_admitted: true, left_out: 0 });
        }
        for _ in 0..3 {
            assert_eq!(pace.admit(7), Verdict { is_admitted: false, left_out: 0 });
        }
        assert_eq!(pace.admit(8), Verdict { is_admitted: true, left_out: 3 });
        assert_eq!(pace.admit(8), Verdict { is_admitted: true, left_out: 0 });
        assert_eq!(pace.left_out(), 0);
    }

    #[test]
    fn what_was_left_out_last_can_be_asked_for() {
        let mut pace = Pace::new();
        let admitted = (0..15).filter(|_| pace.admit(0).is_admitted).count();
        assert_eq!(admitted, 10);
        assert_eq!((pace.left_out(), pace.left_out()), (5, 0));
    }
}

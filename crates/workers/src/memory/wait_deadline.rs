//! How long one visit to the waiting room lasts. It owns two clocks and decides nothing else; only
//! `room.rs` asks it.

use std::time::{Duration, Instant};

/// A visit lasts at most this many stall times, even while bytes come back to others all the time.
const STALLS_IN_ALL: u32 = 6;

/// The clocks of one visit.
#[derive(Debug)]
pub(super) struct WaitDeadline {
    stall: Duration,
    began: Instant,
    quiet_since: Instant,
    returns: u32,
}

impl WaitDeadline {
    /// Starts both clocks; `returns` is the room's count of returns now.
    pub(super) fn new(stall: Duration, returns: u32) -> Self {
        let began = Instant::now();
        Self { stall, began, quiet_since: began, returns }
    }

    /// Whether to give up: nothing at all came back for the stall time while this waiter had the
    /// turn, or the visit as a whole took too long.
    ///
    /// The quiet clock stands still without the turn. So of many waiters that are stuck together one
    /// gives up at a time, and what its failure gives back saves the others.
    pub(super) fn is_over(&mut self, returns: u32, has_turn: bool) -> bool {
        let now = Instant::now();
        if returns != self.returns || !has_turn {
            self.returns = returns;
            self.quiet_since = now;
        }
        now.duration_since(self.quiet_since) >= self.stall
            || now.duration_since(self.began) >= self.stall.saturating_mul(STALLS_IN_ALL)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_visitor_without_the_turn_does_not_count_the_quiet() {
        let mut deadline = WaitDeadline::new(Duration::ZERO, 0);
        assert!(deadline.is_over(0, true), "no time at all is soon over");
        let mut deadline = WaitDeadline::new(Duration::from_secs(3600), 0);
        assert!(!deadline.is_over(0, true), "an hour is not");
        deadline.stall = Duration::from_millis(1);
        deadline.began = Instant::now() + Duration::from_secs(3600);
        assert!(!deadline.is_over(1, false), "the clock starts again without the turn");
        assert!(!deadline.is_over(2, true), "and when something comes back");
    }
}

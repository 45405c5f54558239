//! Which lanes the submitter goes round, so that no more workers are kept awake than one submitter can feed. With a lane
//! more than that, each worker is asleep by the time its turn comes, and waking it costs the submitter more than the
//! request. Owned by `queue`, which looks at the lanes; docs/workers.md, step Q1.

/// The first lanes of a queue, one of them being filled.
#[derive(Debug)]
pub(super) struct Ring {
    current: usize,
    /// How many lanes are gone round, at least 1.
    used: usize,
}

impl Ring {
    pub(super) const fn new() -> Self {
        Self { current: 0, used: 1 }
    }

    /// The lane that is being filled, among the first `lanes`.
    pub(super) fn current(&self, lanes: usize) -> usize {
        if self.current < lanes { self.current } else { 0 }
    }

    /// The lane after that one.
    pub(super) fn next(&self, lanes: usize) -> usize {
        let next = self.current(lanes) + 1;
        if next < self.used.min(lanes) { next } else { 0 }
    }

    /// The lane to be filled from now on.
    pub(super) fn fill(&mut self, lane: usize) {
        self.current = lane;
    }

    /// A worker was asleep when its turn came: one lane fewer from now on.
    pub(super) fn shrink(&mut self) {
        self.used = self.used.saturating_sub(1).max(1);
    }

    /// Those that were looked at are full: the lane that comes in addition, if there are so many.
    pub(super) fn grow(&mut self, lanes: usize) -> Option<usize> {
        let lane = self.used;
        (lane < lanes).then(|| {
            self.used += 1;
            lane
        })
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::Ring;

    #[test]
    fn it_grows_while_lanes_are_full_and_goes_round_those_it_has() {
        let mut ring = Ring::new();
        assert_eq!((ring.current(4), ring.next(4)), (0, 0));
        assert_eq!(ring.grow(4), Some(1));
        assert_eq!(ring.grow(4), Some(2));
        let mut round = Vec::new();
        for _ in 0..4 {
            round.push(ring.next(4));
            ring.fill(ring.next(4));
        }
        assert_eq!(round, [1, 2, 0, 1]);
        assert_eq!(ring.grow(3), None);
    }

    #[test]
    fn it_never_shrinks_to_nothing_and_never_leaves_the_lanes_that_it_is_asked_for() {
        let mut ring = Ring::new();
        assert_eq!(ring.grow(2), Some(1));
        ring.fill(1);
        assert_eq!(ring.current(1), 0);
        assert_eq!(ring.next(1), 0);
        for _ in 0..3 {
            ring.shrink();
        }
        assert_eq!((ring.current(2), ring.next(2)), (1, 0));
        assert_eq!(ring.grow(2), Some(1));
    }
}

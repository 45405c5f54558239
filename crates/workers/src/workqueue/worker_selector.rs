//! Which queues the submitter goes round, so that no more workers are kept awake than one submitter can feed. With a queue
//! more than that, each worker is asleep by the time its turn comes, and waking it costs the submitter more than the
//! request. OwnedThread by `queue`, which looks at the queues; docs/workers.md, step Q1.

/// The first queues of a queue, one of them being filled.
#[derive(Debug)]
pub(super) struct WorkerSelector {
    current: usize,
    /// How many queues are gone round, at least 1.
    used: usize,
}

impl WorkerSelector {
    pub(super) const fn new() -> Self {
        Self { current: 0, used: 1 }
    }

    /// The queue that is being filled, among the first `queues`.
    pub(super) fn current(&self, queues: usize) -> usize {
        if self.current < queues { self.current } else { 0 }
    }

    /// The queue after that one.
    pub(super) fn next(&self, queues: usize) -> usize {
        let next = self.current(queues) + 1;
        if next < self.used.min(queues) { next } else { 0 }
    }

    /// The queue to be filled from now on.
    pub(super) fn fill(&mut self, queue: usize) {
        self.current = queue;
    }

    /// A worker was asleep when its turn came: one queue fewer from now on.
    pub(super) fn shrink(&mut self) {
        self.used = self.used.saturating_sub(1).max(1);
    }

    /// Those that were looked at are full: the queue that comes in addition, if there are so many.
    pub(super) fn grow(&mut self, queues: usize) -> Option<usize> {
        let queue = self.used;
        (queue < queues).then(|| {
            self.used += 1;
            queue
        })
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::WorkerSelector;

    #[test]
    fn it_grows_while_lanes_are_full_and_goes_round_those_it_has() {
        let mut ring = WorkerSelector::new();
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
        let mut ring = WorkerSelector::new();
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

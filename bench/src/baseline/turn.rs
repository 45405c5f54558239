//! Which worker gets the next request.

/// The policy of a submitter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Turn {
    /// One request a worker, in rotation: as posted, in versions 2 and 3.
    RoundRobin,
    /// The same worker until its slots are full: Cota's batching.
    UntilFull,
}

impl Turn {
    /// Where to look first after `worker` of `count` was given a request.
    pub(crate) fn after(self, worker: usize, count: usize) -> usize {
        match self {
            Self::RoundRobin if worker + 1 < count => worker + 1,
            Self::RoundRobin => 0,
            Self::UntilFull => worker,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Turn;

    #[test]
    fn round_robin_goes_round_and_batching_stays() {
        assert_eq!(Turn::RoundRobin.after(0, 2), 1);
        assert_eq!(Turn::RoundRobin.after(1, 2), 0);
        assert_eq!(Turn::UntilFull.after(1, 2), 1);
    }
}

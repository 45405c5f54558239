//! Where counting may continue in tables of encoded extents whose records only say how long their data is
//! (docs/format.md F35): the start of a pcluster is the sum of all lengths before it.
//!
//! A map of a file counts on from what it has counted itself. A verification reads a large file in parts, each with a map
//! of its own, which would count all records before it. So an image keeps the starts that were counted last. Maps of
//! extents look them up and add to them.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};

use ferrofs_ondisk::Nid;

/// Starts that are kept: more than the threads of a verification are apart.
const STARTS_MAX: usize = 64;

/// A record, and where its data starts in the image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CountedStart {
    pub(crate) number: u64,
    pub(crate) physical: u64,
}

/// Known starts of all files of an image, in the order in which they were counted.
#[derive(Debug, Default)]
pub(crate) struct CountedStarts {
    starts: Mutex<VecDeque<(Nid, CountedStart)>>,
}

impl CountedStarts {
    /// Of each table one record in so many is added. A map counts at most so many to find its place, and hardly ever waits
    /// for another one.
    pub(crate) const STEP: u64 = 4096;

    /// The last known start of a file that is not behind record `number`.
    pub(crate) fn before(&self, nid: Nid, number: u64) -> Option<CountedStart> {
        let starts = self.lock();
        let usable = starts.iter().filter(|(known, start)| *known == nid && start.number <= number);
        usable.map(|(_, start)| *start).max_by_key(|start| start.number)
    }

    pub(crate) fn add(&self, nid: Nid, start: CountedStart) {
        let mut starts = self.lock();
        if starts.contains(&(nid, start)) {
            return;
        }
        if starts.len() >= STARTS_MAX {
            starts.pop_front();
        }
        starts.push_back((nid, start));
    }

    fn lock(&self) -> MutexGuard<'_, VecDeque<(Nid, CountedStart)>> {
        self.starts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counting_goes_on_from_the_last_start_that_is_not_too_far() {
        let starts = CountedStarts::default();
        let start = |number| CountedStart { number, physical: 4096 + number };
        for number in [10, 30, 20, 30] {
            starts.add(Nid::new(1), start(number));
        }
        starts.add(Nid::new(2), start(25));
        let before = |number| starts.before(Nid::new(1), number).map(|start| start.number);
        assert_eq!([9, 10, 29, 30, 99].map(before), [None, Some(10), Some(20), Some(30), Some(30)]);
        // The oldest ones are forgotten.
        (0..62).for_each(|number| starts.add(Nid::new(3), start(number)));
        let before = |number| starts.before(Nid::new(1), number).map(|start| start.number);
        assert_eq!([19, 29, 30].map(before), [None, Some(20), Some(20)]);
        assert_eq!(starts.before(Nid::new(2), 99), Some(start(25)));
    }
}

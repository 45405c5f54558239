//! The list of those who can give memory back: caches, contexts, lists of idle frames. It owns their
//! closures and calls them outside of its lock; it decides nothing about when. `Budget` calls it for
//! requests that must succeed.

use crate::sync::{Arc, AtomicUsize, Mutex, Ordering, lock};
use crate::{Error, ErrorKind};

/// Reclaimers one budget takes: caches are few, and each is asked at every shortage.
const RECLAIMERS_MAX: usize = 4096;

/// Gives back about as many bytes as asked and says how many.
type ReclaimFn = Box<dyn Fn(u64) -> u64 + Send + Sync>;

struct Reclaimer {
    number: u64,
    reclaim: ReclaimFn,
}

impl std::fmt::Debug for Reclaimer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Reclaimer").field("number", &self.number).finish_non_exhaustive()
    }
}

#[derive(Debug, Default)]
struct ReclaimerList {
    entries: Vec<Arc<Reclaimer>>,
    next_number: u64,
}

/// Everybody who can give bytes back, in the order in which they came.
#[derive(Debug)]
pub(super) struct Reclaimers {
    list: Mutex<ReclaimerList>,
    /// The list's length, so that a budget without reclaimers takes no lock.
    length: AtomicUsize,
}

impl Reclaimers {
    pub(super) fn new() -> Self {
        Self { list: Mutex::new(ReclaimerList::default()), length: AtomicUsize::new(0) }
    }

    /// Adds one at the end and gives its number.
    pub(super) fn add(&self, reclaim: ReclaimFn) -> Result<u64, Error> {
        let mut list = lock(&self.list);
        if list.entries.len() >= RECLAIMERS_MAX {
            return Err(Error::new(ErrorKind::InvalidSetting, "reclaimers of a budget")
                .with_amount(list.entries.len() as u64 + 1, RECLAIMERS_MAX as u64));
        }
        if list.entries.try_reserve(1).is_err() {
            return Err(Error::new(ErrorKind::OutOfMemory, "the list of reclaimers"));
        }
        let number = list.next_number;
        list.next_number += 1;
        list.entries.push(Arc::new(Reclaimer { number, reclaim }));
        self.length.store(list.entries.len(), Ordering::Release);
        Ok(number)
    }

    /// Removes one. A call of it that has begun goes on to its end.
    pub(super) fn remove(&self, number: u64) {
        let mut list = lock(&self.list);
        let place = list.entries.iter().position(|entry| entry.number == number);
        let removed = place.map(|place| list.entries.remove(place));
        self.length.store(list.entries.len(), Ordering::Release);
        drop(list);
        // The closure may own a cache, whose end may take any lock: not under ours.
        drop(removed);
    }

    /// Asks one after the other until `bytes` came back; says how many did.
    ///
    /// A reclaimer that itself asks for memory that must come would ask all reclaimers again, and so
    /// on until the stack ends: inside of one nothing more is asked.
    pub(super) fn reclaim(&self, bytes: u64) -> u64 {
        // Acquire pairs with the stores of `add` and `remove`; a late look costs one round.
        if self.length.load(Ordering::Acquire) == 0 {
            return 0;
        }
        let Some(_inside) = inside::enter() else {
            return 0;
        };
        let mut came = 0_u64;
        let mut place = 0;
        while came < bytes {
            let entry = lock(&self.list).entries.get(place).map(Arc::clone);
            let Some(entry) = entry else { break };
            came = came.saturating_add((entry.reclaim)(bytes - came));
            place += 1;
        }
        came
    }
}

pub(super) use inside::is_inside;

/// Whether this thread is inside of a reclaimer.
#[cfg(not(loom))]
mod inside {
    use std::cell::Cell;

    std::thread_local! {
        static IS_INSIDE: Cell<bool> = const { Cell::new(false) };
    }

    /// Inside until dropped.
    pub(super) struct Inside;

    /// Whether this thread is.
    pub(in crate::memory) fn is_inside() -> bool {
        IS_INSIDE.get()
    }

    /// None when this thread is inside already.
    pub(super) fn enter() -> Option<Inside> {
        (!IS_INSIDE.replace(true)).then(|| Inside)
    }

    impl Drop for Inside {
        fn drop(&mut self) {
            IS_INSIDE.set(false);
        }
    }
}

/// Models register no reclaimer that asks for memory, and their threads share one of the system's.
#[cfg(loom)]
mod inside {
    pub(in crate::memory) fn is_inside() -> bool {
        false
    }

    pub(super) fn enter() -> Option<()> {
        Some(())
    }
}

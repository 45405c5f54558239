//! Things in the order of their last use, every step in constant time. It owns the things and the order;
//! it decides nothing about what goes. `CacheTable` keeps its values here.
//!
//! A slab whose places are linked by number, in place of pointers, so that there is no unsafe code.

/// No place.
const NONE: usize = usize::MAX;

#[derive(Debug)]
struct LruNode<T> {
    thing: Option<T>,
    newer: usize,
    /// The next older one; of a free place, the next free one.
    older: usize,
}

/// A list by last use.
#[derive(Debug)]
pub(super) struct LruList<T> {
    nodes: Vec<LruNode<T>>,
    newest: usize,
    oldest: usize,
    free: usize,
}

/// Where a thing is, until it is removed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct LruIndex(usize);

impl<T> LruList<T> {
    pub(super) fn new() -> Self {
        Self { nodes: Vec::new(), newest: NONE, oldest: NONE, free: NONE }
    }

    /// Puts one in as the newest.
    pub(super) fn insert(&mut self, thing: T) -> LruIndex {
        let node = LruNode { thing: Some(thing), newer: NONE, older: NONE };
        let place = self.free;
        let place = match self.nodes.get_mut(place) {
            Some(free) => {
                self.free = free.older;
                *free = node;
                place
            }
            None => {
                self.nodes.push(node);
                self.nodes.len() - 1
            }
        };
        self.link(place);
        LruIndex(place)
    }

    /// Makes it the newest and gives access to it.
    pub(super) fn touch(&mut self, LruIndex(place): LruIndex) -> Option<&mut T> {
        if self.newest != place {
            self.unlink(place);
            self.link(place);
        }
        self.nodes.get_mut(place)?.thing.as_mut()
    }

    /// Leaves the order as it is.
    pub(super) fn peek(&self, LruIndex(place): LruIndex) -> Option<&T> {
        self.nodes.get(place)?.thing.as_ref()
    }

    /// Takes it out.
    pub(super) fn remove(&mut self, LruIndex(place): LruIndex) -> Option<T> {
        let thing = self.nodes.get_mut(place)?.thing.take()?;
        self.unlink(place);
        self.nodes[place].older = self.free;
        self.free = place;
        Some(thing)
    }

    /// The one whose last use was longest ago.
    pub(super) fn oldest(&self) -> Option<LruIndex> {
        (self.oldest != NONE).then_some(LruIndex(self.oldest))
    }

    fn link(&mut self, place: usize) {
        let older = std::mem::replace(&mut self.newest, place);
        self.nodes[place].newer = NONE;
        self.nodes[place].older = older;
        match self.nodes.get_mut(older) {
            Some(older) => older.newer = place,
            None => self.oldest = place,
        }
    }

    fn unlink(&mut self, place: usize) {
        let LruNode { newer, older, .. } = self.nodes[place];
        match self.nodes.get_mut(newer) {
            Some(newer) => newer.older = older,
            None => self.newest = older,
        }
        match self.nodes.get_mut(older) {
            Some(older) => older.newer = newer,
            None => self.oldest = newer,
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test may fail where it stands")]

    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Its simple twin is a vector, oldest first.
        #[test]
        fn any_sequence_of_steps_ends_as_in_a_vector(steps in prop::collection::vec((0..4_u8, 0..9_usize), 0..200)) {
            let mut list = LruList::new();
            let mut twin: Vec<(LruIndex, usize)> = Vec::new();
            for (number, (step, which)) in steps.into_iter().enumerate() {
                match step {
                    0 => twin.push((list.insert(number), number)),
                    _ if twin.is_empty() => prop_assert!(list.oldest().is_none()),
                    1 => {
                        let used = twin.remove(which % twin.len());
                        prop_assert_eq!(*list.touch(used.0).unwrap(), used.1);
                        twin.push(used);
                    }
                    2 => {
                        let gone = twin.remove(which % twin.len());
                        prop_assert_eq!(list.remove(gone.0), Some(gone.1));
                        prop_assert_eq!(list.peek(gone.0), None);
                    }
                    _ => {
                        let (oldest, thing) = twin.remove(0);
                        prop_assert_eq!(list.oldest(), Some(oldest));
                        prop_assert_eq!(list.remove(oldest), Some(thing));
                    }
                }
            }
            for (place, thing) in twin {
                prop_assert_eq!(list.oldest(), Some(place));
                prop_assert_eq!(list.remove(place), Some(thing));
            }
            prop_assert!(list.oldest().is_none());
        }
    }
}

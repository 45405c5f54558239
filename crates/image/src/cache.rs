//! A cache bounded in bytes that drops what was used least recently.
//!
//! It holds decoded bytes under the place they come from: windows of metadata, and clusters that
//! several readers share. Values are handed out as shared slices, so dropping one from the cache
//! never takes it from a reader.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use foldhash::fast::RandomState;

/// Shared bytes.
pub(crate) type SharedBytes = Arc<Vec<u8>>;

/// The least that a value counts, in bytes: it bounds how many there are, and so how long it takes to find
/// the one that is dropped. Looking for it then is cheaper than keeping an order, which every hit would pay for.
const LEAST_BYTES: usize = 4 << 10;

/// A bounded cache of byte slices.
#[derive(Debug)]
pub(crate) struct LruCache<K> {
    state: Mutex<LruState<K>>,
    budget_bytes: usize,
}

#[derive(Debug)]
struct LruState<K> {
    /// Each with the time of its last use.
    entries: HashMap<K, (SharedBytes, u64), RandomState>,
    used_bytes: usize,
    clock: u64,
}

impl<K: Copy + Eq + Hash> LruCache<K> {
    /// A cache for `budget_bytes` bytes of values. One value may exceed it alone.
    pub(crate) fn new(budget_bytes: usize) -> Self {
        let state = LruState { entries: HashMap::default(), used_bytes: 0, clock: 0 };
        Self { state: Mutex::new(state), budget_bytes }
    }

    /// The value under `key`, if it has at least `bytes` bytes.
    pub(crate) fn get(&self, key: &K, bytes: usize) -> Option<SharedBytes> {
        let mut state = self.lock();
        let now = state.tick();
        let (value, used) = state.entries.get_mut(key)?;
        if value.len() < bytes {
            return None;
        }
        *used = now;
        Some(Arc::clone(value))
    }

    /// Keeps `value` under `key`, in place of a shorter one, and drops others to make room.
    pub(crate) fn put(&self, key: K, value: &SharedBytes) {
        let mut state = self.lock();
        if state.entries.get(&key).is_some_and(|(old, _)| old.len() >= value.len()) {
            return;
        }
        state.remove(&key);
        let room = self.budget_bytes.saturating_sub(weight(value));
        while state.used_bytes > room && state.remove_oldest() {}
        let now = state.tick();
        state.used_bytes = state.used_bytes.saturating_add(weight(value));
        state.entries.insert(key, (Arc::clone(value), now));
    }

    /// Drops what was used least recently, until no more than `most_bytes` are left.
    pub(crate) fn shed(&self, most_bytes: usize) {
        let mut state = self.lock();
        while state.used_bytes > most_bytes && state.remove_oldest() {}
        state.entries.shrink_to_fit();
    }

    /// What all values count.
    #[cfg(test)]
    pub(crate) fn used_bytes(&self) -> usize {
        self.lock().used_bytes
    }

    /// A panic while the lock was held cannot leave a half-made change behind: no step in between
    /// can panic.
    fn lock(&self) -> MutexGuard<'_, LruState<K>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<K: Copy + Eq + Hash> LruState<K> {
    fn tick(&mut self) -> u64 {
        self.clock = self.clock.wrapping_add(1);
        self.clock
    }

    fn remove(&mut self, key: &K) {
        if let Some((value, _)) = self.entries.remove(key) {
            self.used_bytes = self.used_bytes.saturating_sub(weight(&value));
        }
    }

    /// False if there is none.
    fn remove_oldest(&mut self) -> bool {
        let oldest = self.entries.iter().min_by_key(|(_, (_, used))| *used).map(|(key, _)| *key);
        oldest.inspect(|key| self.remove(key)).is_some()
    }
}

fn weight(value: &SharedBytes) -> usize {
    value.len().max(LEAST_BYTES)
}

#[cfg(test)]
mod tests {
    use super::*;

    const K: usize = 1 << 10;

    fn value(byte: u8, bytes: usize) -> SharedBytes {
        Arc::new(vec![byte; bytes])
    }

    #[test]
    fn the_least_recently_used_value_goes_first() {
        let cache = LruCache::new(20 * K);
        cache.put(1, &value(1, 10 * K));
        cache.put(2, &value(2, 10 * K));
        assert!(cache.get(&1, 10).is_some());
        cache.put(3, &value(3, 10 * K));
        assert!(cache.get(&2, 0).is_none());
        assert!(cache.get(&1, 0).is_some() && cache.get(&3, 0).is_some());
        assert_eq!(cache.used_bytes(), 20 * K);
        cache.shed(15 * K);
        assert!(cache.get(&1, 0).is_none() && cache.get(&3, 0).is_some());
        cache.shed(0);
        assert!(cache.get(&3, 0).is_none());
        assert_eq!(cache.used_bytes(), 0);
        assert_eq!(cache.lock().entries.len(), 0);
    }

    #[test]
    fn a_longer_value_replaces_a_shorter_one_and_never_the_other_way() {
        let cache = LruCache::new(100 * K);
        cache.put(1, &value(1, 10 * K));
        assert!(cache.get(&1, 10 * K + 1).is_none());
        cache.put(1, &value(2, 20 * K));
        cache.put(1, &value(3, 5 * K));
        assert_eq!(cache.get(&1, 11 * K).map(|value| value[0]), Some(2));
        assert_eq!(cache.used_bytes(), 20 * K);
    }

    #[test]
    fn a_value_over_the_budget_stands_alone() {
        let cache = LruCache::new(10 * K);
        cache.put(1, &value(1, 5 * K));
        cache.put(2, &value(2, 50 * K));
        assert!(cache.get(&1, 0).is_none());
        assert!(cache.get(&2, 50 * K).is_some());
        cache.put(3, &value(3, 1));
        assert!(cache.get(&2, 0).is_none());
    }

    #[test]
    fn empty_values_are_bounded_too() {
        let cache = LruCache::new(40 * K);
        (0..1000).for_each(|key| cache.put(key, &value(0, 0)));
        assert_eq!(cache.lock().entries.len(), 10);
    }
}

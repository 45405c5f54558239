//! A cache bounded in bytes that drops what was used least recently.
//!
//! It holds decoded bytes under the place they come from: windows of metadata, and clusters that
//! several readers share. Values are handed out as shared slices, so dropping one from the cache
//! never takes it from a reader.

use std::collections::{BTreeMap, HashMap};
use std::hash::Hash;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use foldhash::fast::RandomState;

/// Shared bytes.
pub(crate) type Shared = Arc<Vec<u8>>;

/// A bounded cache of byte slices.
#[derive(Debug)]
pub(crate) struct Cache<K> {
    state: Mutex<State<K>>,
    budget_bytes: usize,
}

#[derive(Debug)]
struct State<K> {
    entries: HashMap<K, (Shared, u64), RandomState>,
    /// Keys by the time of their last use.
    order: BTreeMap<u64, K>,
    used_bytes: usize,
    clock: u64,
}

impl<K: Copy + Eq + Hash> Cache<K> {
    /// A cache for `budget_bytes` bytes of values. One value may exceed it alone.
    pub(crate) fn new(budget_bytes: usize) -> Self {
        let state =
            State { entries: HashMap::default(), order: BTreeMap::new(), used_bytes: 0, clock: 0 };
        Self { state: Mutex::new(state), budget_bytes }
    }

    /// The value under `key`, if it has at least `bytes` bytes.
    pub(crate) fn get(&self, key: &K, bytes: usize) -> Option<Shared> {
        let mut state = self.lock();
        let now = state.tick();
        let (value, used) = state.entries.get_mut(key)?;
        if value.len() < bytes {
            return None;
        }
        let before = std::mem::replace(used, now);
        let value = Arc::clone(value);
        state.order.remove(&before);
        state.order.insert(now, *key);
        Some(value)
    }

    /// Keeps `value` under `key`, in place of a shorter one, and drops others to make room.
    pub(crate) fn put(&self, key: K, value: &Shared) {
        let mut state = self.lock();
        if state.entries.get(&key).is_some_and(|(old, _)| old.len() >= value.len()) {
            return;
        }
        state.remove(&key);
        while state.used_bytes.saturating_add(value.len()) > self.budget_bytes {
            let Some(oldest) = state.order.first_key_value().map(|(_, key)| *key) else { break };
            state.remove(&oldest);
        }
        let now = state.tick();
        state.used_bytes = state.used_bytes.saturating_add(value.len());
        state.entries.insert(key, (Arc::clone(value), now));
        state.order.insert(now, key);
    }

    /// A panic while the lock was held cannot leave a half-made change behind: no step in between
    /// can panic.
    fn lock(&self) -> MutexGuard<'_, State<K>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<K: Copy + Eq + Hash> State<K> {
    fn tick(&mut self) -> u64 {
        self.clock = self.clock.wrapping_add(1);
        self.clock
    }

    fn remove(&mut self, key: &K) {
        if let Some((value, used)) = self.entries.remove(key) {
            self.used_bytes = self.used_bytes.saturating_sub(value.len());
            self.order.remove(&used);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn value(byte: u8, bytes: usize) -> Shared {
        Arc::new(vec![byte; bytes])
    }

    #[test]
    fn the_least_recently_used_value_goes_first() {
        let cache = Cache::new(20);
        cache.put(1, &value(1, 10));
        cache.put(2, &value(2, 10));
        assert!(cache.get(&1, 10).is_some());
        cache.put(3, &value(3, 10));
        assert!(cache.get(&2, 0).is_none());
        assert!(cache.get(&1, 0).is_some() && cache.get(&3, 0).is_some());
        assert_eq!(cache.lock().used_bytes, 20);
        assert_eq!(cache.lock().order.len(), 2);
    }

    #[test]
    fn a_longer_value_replaces_a_shorter_one_and_never_the_other_way() {
        let cache = Cache::new(100);
        cache.put(1, &value(1, 10));
        assert!(cache.get(&1, 11).is_none());
        cache.put(1, &value(2, 20));
        cache.put(1, &value(3, 5));
        assert_eq!(cache.get(&1, 11).map(|value| value[0]), Some(2));
        assert_eq!(cache.lock().used_bytes, 20);
    }

    #[test]
    fn a_value_over_the_budget_stands_alone() {
        let cache = Cache::new(10);
        cache.put(1, &value(1, 5));
        cache.put(2, &value(2, 50));
        assert!(cache.get(&1, 0).is_none());
        assert!(cache.get(&2, 50).is_some());
        cache.put(3, &value(3, 1));
        assert!(cache.get(&2, 0).is_none());
    }
}

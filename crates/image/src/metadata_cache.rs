//! The cache of metadata windows: bounded in bytes, least recently used dropped first.
//!
//! All threads share the [`WindowTable`], which is the cache: its windows are what is charged, evicted
//! and shrunk. In front of it each group of threads has a [`ThreadWindows`] of windows that it used
//! recently, so that a hit writes no cache line that other groups write: not the lock, not the time of
//! the last use, and not the reference count of the window, for which a thread cache has handles of
//! its own. Two rules keep the memory bounded and the order of eviction right:
//!
//! * **A thread cache has only windows that the table has.** Whoever removes a window from the table
//!   removes it from the thread caches, too, before it releases the lock of the table. A thread
//!   takes that lock to add a window to its thread cache. The table's lock comes before those of the
//!   thread caches.
//! * **The last use is as exact as eviction needs it.** Time passes only when a window is added to
//!   the table. Until then a thread cache serves a window without the table. After that the first
//!   use of the window looks it up in the table.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ferrofs_workers::counters::Sharded;
use ferrofs_workers::memory::{AllocPolicy, Charge};
use foldhash::fast::RandomState;

use crate::error::Result;
use crate::extent::AddressSpace;
use crate::memory::MemoryPool;

/// Bytes of all windows that are kept, where memory is not scarce.
const KEPT_BYTES: u64 = 4 << 20;
/// Bytes of windows that stay when nobody has read for a while: directories that are read now and
/// then.
const IDLE_BYTES: usize = 256 << 10;

/// A window counts for at least so many bytes. That bounds how many windows there are, and so how
/// long it takes to find the least recently used one. To search then is cheaper than to keep an
/// order, which every hit would pay for.
const MIN_BYTES: usize = 4 << 10;

/// Windows in a thread cache, at most: those of a mebibyte of metadata.
const THREAD_CACHE_WINDOWS: usize = 64;
/// What a thread cache takes beside the windows, in bytes: a slot and a handle for each of them.
const THREAD_CACHE_BYTES: usize =
    THREAD_CACHE_WINDOWS * (size_of::<Option<CachedWindow>>() + HANDLE_BYTES);
/// All thread caches together take about this part of the cache, at most. With fewer than threads, some share one.
const THREAD_CACHES_SHARE: usize = 8;
/// A handle with its reference counts, which have a cache line of their own.
const HANDLE_BYTES: usize = 2 * size_of::<WindowHandle>();

/// Which window: its number in its space.
pub(crate) type WindowKey = (AddressSpace, u64);

/// The bytes of a window, which the table and the handles share.
type SharedBytes = Arc<Vec<u8>>;

/// Bytes of metadata that readers share: an eviction never takes them from a reader.
///
/// The handles of one window in several thread caches are different, so that readers of different
/// groups of threads write different reference counts.
#[derive(Debug)]
#[repr(align(64))]
pub(crate) struct WindowHandle(SharedBytes);

impl WindowHandle {
    pub(crate) fn new(bytes: Vec<u8>) -> Self {
        Self(Arc::new(bytes))
    }

    pub(crate) fn get(&self, range: Range<usize>) -> Option<&[u8]> {
        self.0.get(range)
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.0
    }
}

/// The windows of both spaces. Their bytes are charged as a whole.
#[derive(Debug)]
pub(crate) struct MetadataCache {
    windows: WindowCache,
    _charge: Charge,
}

impl MetadataCache {
    /// A cache of at most an eighth of the memory, for so many threads that read at the same time.
    pub(crate) fn new(memory: &MemoryPool, threads: usize) -> Result<Self> {
        let bytes = Self::bytes_max(memory);
        let charge = memory.budget().charge(bytes, AllocPolicy::MustSucceed)?;
        let windows = WindowCache::new(usize::try_from(bytes).unwrap_or(usize::MAX), threads);
        Ok(Self { windows, _charge: charge })
    }

    /// What it takes of so much memory, in bytes.
    pub(crate) fn bytes_max(memory: &MemoryPool) -> u64 {
        KEPT_BYTES.min(memory.budget().limit_bytes() / 8)
    }

    /// The window under `key`.
    pub(crate) fn get(&self, key: WindowKey) -> Option<Arc<WindowHandle>> {
        self.windows.get(key)
    }

    /// Keeps a window under `key`, in place of a shorter one, and drops others for it.
    pub(crate) fn put(&self, key: WindowKey, window: &WindowHandle) {
        self.windows.put(key, &window.0);
    }

    /// Drops windows, the least recently used first, until those are left that an idle image keeps.
    pub(crate) fn shrink(&self) {
        self.windows.shrink(IDLE_BYTES);
    }

    /// Drops all windows.
    #[cfg(test)]
    pub(crate) fn clear(&self) {
        self.windows.shrink(0);
    }
}

/// The cache without its charge.
#[derive(Debug)]
struct WindowCache {
    table: TableLock,
    /// How many windows were added so far. Changed under the lock of the table.
    insertions: AtomicU64,
    thread_caches: Sharded<ThreadWindows>,
    /// What windows may take, in bytes.
    budget_bytes: usize,
}

/// On cache lines of its own: what lies beside it is read for every hit.
#[derive(Debug, Default)]
#[repr(align(128))]
struct TableLock(Mutex<WindowTable>);

#[derive(Debug, Default)]
struct WindowTable {
    windows: HashMap<WindowKey, WindowEntry, RandomState>,
    used_bytes: usize,
}

#[derive(Debug)]
struct WindowEntry {
    bytes: SharedBytes,
    /// Twice the number of insertions at that time, and one more for a use that came after them.
    last_use: u64,
    /// Bits of the thread caches that may have it.
    thread_caches: u64,
}

impl WindowCache {
    /// A cache that takes `bytes` bytes, with what its thread caches take. A single window may be
    /// longer.
    fn new(bytes: usize, threads: usize) -> Self {
        let most = bytes.checked_div(THREAD_CACHES_SHARE * THREAD_CACHE_BYTES).unwrap_or(0);
        let threads = threads.min(most);
        let mut number = 0u32;
        let thread_caches = Sharded::new(threads, || {
            let thread_cache = ThreadWindows::new(number);
            number = number.saturating_add(1);
            thread_cache
        });
        let overhead = thread_caches.iter().count().saturating_mul(THREAD_CACHE_BYTES);
        Self {
            table: TableLock::default(),
            insertions: AtomicU64::new(0),
            thread_caches,
            budget_bytes: bytes.saturating_sub(overhead),
        }
    }

    fn get(&self, key: WindowKey) -> Option<Arc<WindowHandle>> {
        let thread_cache = self.thread_caches.local();
        // Relaxed: with an old number a use is not recorded, no more.
        let insertions = self.insertions.load(Ordering::Relaxed);
        if let Some(window) = thread_cache.get(key, insertions) {
            return Some(window);
        }
        let mut table = lock(&self.table.0);
        let insertions = self.insertions.load(Ordering::Relaxed);
        let entry = table.windows.get_mut(&key)?;
        entry.last_use = insertions.wrapping_mul(2).wrapping_add(1);
        entry.thread_caches |= thread_cache.bit;
        // With the lock of the table, so that nobody removes the window meanwhile.
        Some(thread_cache.put(key, &entry.bytes, insertions))
    }

    fn put(&self, key: WindowKey, bytes: &SharedBytes) {
        let mut table = lock(&self.table.0);
        if table.windows.get(&key).is_some_and(|old| old.bytes.len() >= bytes.len()) {
            return;
        }
        self.remove(&mut table, &key);
        let others_max = self.budget_bytes.saturating_sub(weight(bytes));
        while table.used_bytes > others_max && self.remove_oldest(&mut table) {}
        let insertions = self.insertions.load(Ordering::Relaxed).wrapping_add(1);
        self.insertions.store(insertions, Ordering::Relaxed);
        table.used_bytes = table.used_bytes.saturating_add(weight(bytes));
        let last_use = insertions.wrapping_mul(2);
        let entry = WindowEntry { bytes: Arc::clone(bytes), last_use, thread_caches: 0 };
        table.windows.insert(key, entry);
    }

    /// Drops what was used least recently, until no more than `most_bytes` are left.
    fn shrink(&self, most_bytes: usize) {
        let mut table = lock(&self.table.0);
        while table.used_bytes > most_bytes && self.remove_oldest(&mut table) {}
        table.windows.shrink_to_fit();
    }

    /// False if there is none.
    fn remove_oldest(&self, table: &mut WindowTable) -> bool {
        let oldest = table.windows.iter().min_by_key(|(_, entry)| entry.last_use);
        let oldest = oldest.map(|(key, _)| *key);
        oldest.inspect(|key| self.remove(table, key)).is_some()
    }

    /// Removes a window from the table and the thread caches.
    fn remove(&self, table: &mut WindowTable, key: &WindowKey) {
        let Some(entry) = table.windows.remove(key) else { return };
        table.used_bytes = table.used_bytes.saturating_sub(weight(&entry.bytes));
        let may_have = |thread_cache: &&ThreadWindows| entry.thread_caches & thread_cache.bit != 0;
        self.thread_caches.iter().filter(may_have).for_each(|one| one.remove(*key));
    }
}

/// Windows that a group of threads used recently, each in the one slot where it can be. The lock is
/// the group's own, and mostly that of one thread.
#[derive(Debug)]
struct ThreadWindows {
    slots: Mutex<[Option<CachedWindow>; THREAD_CACHE_WINDOWS]>,
    /// In [`WindowEntry::thread_caches`].
    bit: u64,
}

#[derive(Debug)]
struct CachedWindow {
    key: WindowKey,
    window: Arc<WindowHandle>,
    /// The number of insertions at the last lookup in the table.
    insertions: u64,
}

impl ThreadWindows {
    fn new(number: u32) -> Self {
        let slots = Mutex::new([const { None }; THREAD_CACHE_WINDOWS]);
        // Two of more than 64 would share a bit.
        Self { slots, bit: 1u64.rotate_left(number) }
    }

    /// The window under `key`, if it was looked up in the table after the last insertion.
    fn get(&self, key: WindowKey, insertions: u64) -> Option<Arc<WindowHandle>> {
        let slots = lock(&self.slots);
        let found = slots.get(slot_of(key))?.as_ref()?;
        let is_current = found.key == key && found.insertions == insertions;
        is_current.then(|| Arc::clone(&found.window))
    }

    /// Keeps a window of the table, whose lock the caller holds.
    fn put(&self, key: WindowKey, bytes: &SharedBytes, insertions: u64) -> Arc<WindowHandle> {
        let new_handle = || Arc::new(WindowHandle(Arc::clone(bytes)));
        let mut slots = lock(&self.slots);
        let Some(slot) = slots.get_mut(slot_of(key)) else { return new_handle() };
        let cached =
            slot.get_or_insert_with(|| CachedWindow { key, window: new_handle(), insertions });
        if cached.key != key {
            cached.key = key;
            // A handle that no reader has needs no allocation.
            match Arc::get_mut(&mut cached.window) {
                Some(handle) => handle.0 = Arc::clone(bytes),
                None => cached.window = new_handle(),
            }
        }
        cached.insertions = insertions;
        Arc::clone(&cached.window)
    }

    fn remove(&self, key: WindowKey) {
        let mut slots = lock(&self.slots);
        if let Some(slot) = slots.get_mut(slot_of(key)) {
            drop(slot.take_if(|cached| cached.key == key));
        }
    }
}

/// Windows that follow each other have different slots.
fn slot_of((space, index): WindowKey) -> usize {
    let slots = u64::try_from(THREAD_CACHE_WINDOWS).unwrap_or(1);
    let index = index.checked_rem(slots).and_then(|index| usize::try_from(index).ok()).unwrap_or(0);
    match space {
        AddressSpace::Image => index,
        AddressSpace::Metabox => THREAD_CACHE_WINDOWS.saturating_sub(1).saturating_sub(index),
    }
}

/// A poisoned lock is used all the same: no step that leaves the state inconsistent can panic.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn weight(bytes: &SharedBytes) -> usize {
    bytes.len().max(MIN_BYTES)
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;
    use crate::image::Image;

    const K: usize = 1 << 10;

    fn key(index: u64) -> WindowKey {
        (AddressSpace::Image, index)
    }

    /// A cache for `bytes` bytes of windows.
    fn cache(bytes: usize, threads: usize) -> WindowCache {
        let mut cache = WindowCache::new(0, threads);
        cache.budget_bytes = bytes;
        cache
    }

    fn put(cache: &WindowCache, index: u64, byte: u8, bytes: usize) {
        cache.put(key(index), &Arc::new(vec![byte; bytes]));
    }

    /// The first byte and the length of a window.
    fn get(cache: &WindowCache, index: u64) -> Option<(Option<u8>, usize)> {
        let window = cache.get(key(index))?;
        Some((window.bytes().first().copied(), window.bytes().len()))
    }

    /// That thread caches have only what the table has, and that the bytes are counted.
    fn check(cache: &WindowCache) {
        let table = lock(&cache.table.0);
        let bytes: usize = table.windows.values().map(|entry| weight(&entry.bytes)).sum();
        assert_eq!(bytes, table.used_bytes);
        for thread_cache in cache.thread_caches.iter() {
            for cached in lock(&thread_cache.slots).iter().flatten() {
                let entry = table.windows.get(&cached.key).expect("only a thread cache has it");
                assert!(Arc::ptr_eq(&entry.bytes, &cached.window.0));
                assert!(entry.thread_caches & thread_cache.bit != 0);
            }
        }
    }

    #[test]
    fn windows_go_back_when_nobody_reads_but_for_the_last_ones() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/data/plain.erofs");
        let image = Image::open(path).unwrap();
        let cache = &image.inner().metadata_cache.windows;
        let far = |index: u64| (AddressSpace::Image, (1 << 40) + index);
        for index in 0..100 {
            cache.put(far(index), &Arc::new(vec![0; 16 * K]));
        }
        assert!(cache.get(far(0)).is_some() && cache.get(far(99)).is_some());
        image.inner().wake_idle_reclaimer();
        let started_at = Instant::now();
        while lock(&cache.table.0).used_bytes > IDLE_BYTES {
            assert!(started_at.elapsed() < Duration::from_secs(60), "never freed");
            std::thread::yield_now();
        }
        assert!(cache.get(far(98)).is_some() && cache.get(far(1)).is_none());
        check(cache);
    }

    #[test]
    fn the_least_recently_used_window_goes_first() {
        let cache = cache(20 * K, 1);
        put(&cache, 1, 1, 10 * K);
        put(&cache, 2, 2, 10 * K);
        assert!(get(&cache, 1).is_some());
        put(&cache, 3, 3, 10 * K);
        assert!(get(&cache, 2).is_none());
        assert!(get(&cache, 1).is_some());
        assert_eq!(lock(&cache.table.0).used_bytes, 20 * K);
        cache.shrink(15 * K);
        assert!(get(&cache, 3).is_none() && get(&cache, 1).is_some());
        cache.shrink(0);
        assert!(get(&cache, 1).is_none());
        assert_eq!(lock(&cache.table.0).used_bytes, 0);
        check(&cache);
    }

    /// Each use of it is served by the thread cache, but for the first one after an insertion.
    #[test]
    fn a_scan_does_not_evict_a_window_in_use() {
        let cache = cache(100 * K, 1);
        put(&cache, 0, 7, 10 * K);
        for index in 1..1000 {
            put(&cache, index, 1, 10 * K);
            assert_eq!(get(&cache, 0), Some((Some(7), 10 * K)), "{index}");
            assert_eq!(get(&cache, 0), Some((Some(7), 10 * K)), "{index}");
        }
        check(&cache);
    }

    #[test]
    fn a_longer_window_replaces_a_shorter_one_and_never_the_other_way() {
        let cache = cache(100 * K, 1);
        put(&cache, 1, 1, 10 * K);
        assert_eq!(get(&cache, 1), Some((Some(1), 10 * K)));
        put(&cache, 1, 2, 20 * K);
        put(&cache, 1, 3, 5 * K);
        assert_eq!(get(&cache, 1), Some((Some(2), 20 * K)));
        assert_eq!(lock(&cache.table.0).used_bytes, 20 * K);
    }

    #[test]
    fn a_window_over_the_budget_stands_alone() {
        let cache = cache(10 * K, 1);
        put(&cache, 1, 1, 5 * K);
        put(&cache, 2, 2, 50 * K);
        assert!(get(&cache, 1).is_none());
        assert_eq!(get(&cache, 2), Some((Some(2), 50 * K)));
        put(&cache, 3, 3, 1);
        assert!(get(&cache, 2).is_none());
        check(&cache);
    }

    #[test]
    fn empty_windows_are_bounded_too() {
        let cache = cache(40 * K, 1);
        (0..1000).for_each(|index| put(&cache, index, 0, 0));
        assert_eq!(lock(&cache.table.0).windows.len(), 10);
    }

    #[test]
    fn windows_with_one_slot_displace_each_other_in_the_thread_cache_only() {
        let cache = cache(100 * K, 1);
        let other = THREAD_CACHE_WINDOWS as u64;
        put(&cache, 0, 1, K);
        put(&cache, other, 2, K);
        let held = cache.get(key(0)).unwrap();
        for _ in 0..3 {
            assert_eq!(get(&cache, other), Some((Some(2), K)));
            assert_eq!(get(&cache, 0), Some((Some(1), K)));
            check(&cache);
        }
        assert_eq!(held.bytes(), vec![1; K], "it was replaced under a reader");
    }

    #[test]
    fn the_budget_includes_the_thread_caches() {
        for threads in [1, 2, 64] {
            let cache = WindowCache::new(2 << 20, threads);
            let all = cache.thread_caches.iter().count() * THREAD_CACHE_BYTES;
            assert_eq!(cache.budget_bytes + all, 2 << 20);
            // The share, rounded up to a power of two of thread caches.
            assert!(all <= 512 << 10, "{all} bytes are much beside the windows");
        }
    }

    /// Readers of all thread caches, beside a scan that evicts what they read, and shrinks.
    #[test]
    fn threads_that_read_and_evict_keep_every_byte_right_and_bounded() {
        const KEYS: u64 = 100;
        let cache = cache(50 * MIN_BYTES, 4);
        std::thread::scope(|scope| {
            for thread in 0..4u64 {
                let cache = &cache;
                scope.spawn(move || {
                    let mut random = thread;
                    for step in 0..20_000u32 {
                        random =
                            random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(thread | 1);
                        // Half of the reads are of few windows.
                        let range = if random >> 63 == 0 { 8 } else { KEYS };
                        let index = (random >> 33) % range;
                        let byte = u8::try_from(index).unwrap();
                        match cache.get(key(index)) {
                            Some(window) => assert_eq!(window.bytes(), [byte; 100]),
                            None => cache.put(key(index), &Arc::new(vec![byte; 100])),
                        }
                        if step % 1000 == 0 {
                            assert!(lock(&cache.table.0).used_bytes <= 50 * MIN_BYTES);
                            check(cache);
                        }
                        if step % 5000 == 0 {
                            cache.shrink(10 * MIN_BYTES);
                        }
                    }
                });
            }
        });
        check(&cache);
    }
}

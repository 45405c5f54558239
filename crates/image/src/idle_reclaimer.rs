//! Frees memory after a burst: what is only kept for speed is freed when nobody has read for a
//! while.
//!
//! The reclaimer owns one thread, which lives only while there may be something to free; a read
//! starts it. It knows neither the engine nor the caches: two closures say whether there is
//! activity, and free the memory.

use std::fmt;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use ferrofs_workers::memory::trim_heap;

/// How often the thread checks. It frees memory after two checks without activity, so within eight
/// seconds of the last read.
const CHECK_INTERVAL: Duration =
    if cfg!(test) { Duration::from_millis(20) } else { Duration::from_secs(4) };

/// How much the owner of the memory has used it up to now.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Activity {
    /// A number that changes with every use.
    pub(crate) uses: u64,
    /// It is in use at this moment.
    pub(crate) is_busy: bool,
}

/// Frees memory when nobody has read for a while.
#[derive(Debug)]
pub(crate) struct IdleReclaimer {
    /// `None`: it never frees anything, as the program ends soon.
    hooks: Option<ReclaimHooks>,
    state: Arc<Mutex<ReclaimerState>>,
    stop: Arc<StopSignal>,
}

#[derive(Clone)]
struct ReclaimHooks {
    /// Returns `None` when the owner is gone; then the thread ends.
    activity: Arc<dyn Fn() -> Option<Activity> + Send + Sync>,
    reclaim: Arc<dyn Fn() + Send + Sync>,
}

impl fmt::Debug for ReclaimHooks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReclaimHooks").finish_non_exhaustive()
    }
}

#[derive(Debug, Default)]
struct ReclaimerState {
    thread: Option<JoinHandle<()>>,
    /// The thread will check once more at least.
    is_running: bool,
    /// A read began since the last check.
    was_woken: bool,
}

#[derive(Debug, Default)]
struct StopSignal {
    is_set: Mutex<bool>,
    changed: Condvar,
}

impl StopSignal {
    /// Sleeps until the signal is set, at most for `limit`. Returns whether it is set.
    fn wait(&self, limit: Duration) -> bool {
        let is_set = self.is_set.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = self.changed.wait_timeout_while(is_set, limit, |is_set| !*is_set);
        *waited.unwrap_or_else(PoisonError::into_inner).0
    }

    fn set(&self) {
        *self.is_set.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.changed.notify_all();
    }
}

impl IdleReclaimer {
    /// A reclaimer that calls `reclaim` after `activity` has reported the same use twice. The
    /// closures must not keep the owner of the reclaimer alive. Both are called on the thread of
    /// the reclaimer, with no lock held.
    pub(crate) fn new(
        activity: impl Fn() -> Option<Activity> + Send + Sync + 'static,
        reclaim: impl Fn() + Send + Sync + 'static,
    ) -> Self {
        let hooks = ReclaimHooks { activity: Arc::new(activity), reclaim: Arc::new(reclaim) };
        Self { hooks: Some(hooks), state: Arc::default(), stop: Arc::default() }
    }

    /// One that never frees anything.
    pub(crate) fn disabled() -> Self {
        Self { hooks: None, state: Arc::default(), stop: Arc::default() }
    }

    /// To be called when memory is used. Starts the thread, which then checks until it has freed
    /// memory. If no thread can be started, memory is kept until it is needed elsewhere.
    pub(crate) fn wake(&self) {
        let Some(hooks) = &self.hooks else { return };
        let mut state = lock(&self.state);
        state.was_woken = true;
        if state.is_running {
            return;
        }
        if let Some(ended) = state.thread.take() {
            ended.join().ok();
        }
        let (hooks, stop) = (hooks.clone(), Arc::clone(&self.stop));
        let shared = Arc::clone(&self.state);
        let named = std::thread::Builder::new().name("erofs_reclaimer".to_owned());
        state.thread = named.spawn(move || run(&hooks, &stop, &shared)).ok();
        state.is_running = state.thread.is_some();
    }
}

impl Drop for IdleReclaimer {
    fn drop(&mut self) {
        self.stop.set();
        // Not under the lock, which the thread takes once more.
        let thread = lock(&self.state).thread.take();
        if let Some(thread) = thread {
            thread.join().ok();
        }
    }
}

fn lock(state: &Mutex<ReclaimerState>) -> MutexGuard<'_, ReclaimerState> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The thread: it ends when it has freed the memory, or when the owner is gone.
fn run(hooks: &ReclaimHooks, stop: &StopSignal, state: &Mutex<ReclaimerState>) {
    let mut last = None;
    while !stop.wait(CHECK_INTERVAL) {
        let Some(now) = (hooks.activity)() else { return };
        let was_woken = std::mem::take(&mut lock(state).was_woken);
        let is_idle = !was_woken && last == Some(now.uses) && !now.is_busy;
        if is_idle {
            (hooks.reclaim)();
            trim_heap();
        }
        last = Some(now.uses);
        if lock(state).ends(is_idle) {
            return;
        }
    }
}

impl ReclaimerState {
    /// Whether the thread ends now. If a read has begun since the check, it relies on the thread to
    /// run on.
    fn ends(&mut self, is_idle: bool) -> bool {
        let ends = is_idle && !self.was_woken;
        self.is_running = !ends;
        ends
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use ferrofs_workers::memory::AllocPolicy;

    use super::*;
    use crate::image::Image;
    use crate::memory::MemoryPool;
    use crate::open::OpenOptions;

    const PATH: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/data/lzma-64k-all.erofs");

    fn until(what: &str, is_so: impl Fn() -> bool) {
        let started_at = Instant::now();
        while !is_so() {
            assert!(started_at.elapsed() < Duration::from_secs(60), "never: {what}");
            std::thread::yield_now();
        }
    }

    /// Reads something that the cache keeps.
    fn burst(image: &Image) {
        let packed = image.superblock().packed.unwrap();
        let packed = image.inode(packed).unwrap();
        image.read_at(&packed, 10, &mut [0; 100]).unwrap();
    }

    #[test]
    fn memory_comes_back_after_every_burst() {
        let memory = MemoryPool::new(MemoryPool::MIN_BYTES).unwrap();
        let image = OpenOptions::new().memory(&memory).open(PATH).unwrap();
        let fixed = memory.budget().used_bytes();
        for round in 0..20 {
            let decoded = image.stats().clusters_decoded;
            burst(&image);
            assert!(image.stats().clusters_decoded > decoded, "round {round}: it was not kept");
            until("memory comes back", || memory.budget().used_bytes() == fixed);
            assert_eq!(image.stats().cached_bytes, 0);
        }
    }

    #[test]
    fn buffers_come_back_where_nothing_is_decoded() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/data/plain.erofs");
        let memory = MemoryPool::new(MemoryPool::MIN_BYTES).unwrap();
        let image = OpenOptions::new().memory(&memory).open(path).unwrap();
        let fixed = memory.budget().used_bytes();
        let file = image.resolve(b"/x").unwrap().unwrap();
        for _ in 0..3 {
            let mut buffer = memory.buffer(4096, AllocPolicy::MustSucceed).unwrap();
            image.read_at(&file, 0, &mut buffer).unwrap();
            assert!(memory.budget().used_bytes() > fixed);
            drop(buffer);
            until("buffers come back", || memory.budget().used_bytes() == fixed);
        }
    }

    #[test]
    fn what_threads_keep_comes_back() {
        let memory = MemoryPool::new(MemoryPool::MIN_BYTES).unwrap();
        let image = OpenOptions::new().memory(&memory).open(PATH).unwrap();
        let fixed = memory.budget().used_bytes();
        for _ in 0..3 {
            drop(image.demand_buffer(4096).unwrap());
            assert!(memory.budget().used_bytes() > fixed);
            // Any read starts the reclaimer.
            burst(&image);
            until("what was kept comes back", || memory.budget().used_bytes() == fixed);
        }
    }

    #[test]
    fn a_read_during_reclaim_keeps_the_reclaimer_running() {
        let mut state = ReclaimerState { thread: None, is_running: true, was_woken: true };
        assert!(!state.ends(true) && state.is_running, "the read relies on it");
        state.was_woken = false;
        assert!(!state.ends(false) && state.is_running, "a read runs");
        assert!(state.ends(true) && !state.is_running);
    }

    #[test]
    fn without_threads_memory_is_kept_until_they_are_allowed() {
        let memory = MemoryPool::new(MemoryPool::MIN_BYTES).unwrap();
        let image = OpenOptions::new().memory(&memory).defer_threads(true).open(PATH).unwrap();
        let fixed = memory.budget().used_bytes();
        burst(&image);
        assert!(memory.budget().used_bytes() > fixed);
        assert!(lock(&image.inner().idle_reclaimer.state).thread.is_none());
        image.allow_threads();
        until("memory comes back", || memory.budget().used_bytes() == fixed);
    }

    #[test]
    fn dropping_an_image_joins_its_reclaimer() {
        let image = Image::open(PATH).unwrap();
        burst(&image);
        let shared = Arc::downgrade(&image.inner().idle_reclaimer.state);
        drop(image);
        assert!(shared.upgrade().is_none());
    }
}

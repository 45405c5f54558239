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

use ferrofs_workers::ActivityFlag;
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
    shared: Arc<SharedState>,
    /// Locked only to start and to join the thread.
    thread: Mutex<Option<JoinHandle<()>>>,
}

/// What the thread shares with its owner.
#[derive(Debug, Default)]
struct SharedState {
    /// Protocol I: whether a read began since the last check of the thread.
    activity: ActivityFlag,
    stop: StopSignal,
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
struct StopSignal {
    is_set: Mutex<bool>,
    changed: Condvar,
}

impl StopSignal {
    /// Sleeps until the signal is set, at most for `limit`. Returns whether it is set.
    fn wait(&self, limit: Duration) -> bool {
        let is_set = lock(&self.is_set);
        let waited = self.changed.wait_timeout_while(is_set, limit, |is_set| !*is_set);
        *waited.unwrap_or_else(PoisonError::into_inner).0
    }

    fn set(&self) {
        *lock(&self.is_set) = true;
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
        Self { hooks: Some(hooks), shared: Arc::default(), thread: Mutex::default() }
    }

    /// One that never frees anything.
    pub(crate) fn disabled() -> Self {
        Self { hooks: None, shared: Arc::default(), thread: Mutex::default() }
    }

    /// To be called before memory is used. Starts the thread, which then checks until it has freed
    /// memory. If no thread can be started, memory is kept until it is needed elsewhere.
    ///
    /// Only the first call after a check writes or locks anything.
    pub(crate) fn wake(&self) {
        let Some(hooks) = &self.hooks else { return };
        if self.shared.activity.record_use() {
            self.start(hooks);
        }
    }

    #[cold]
    fn start(&self, hooks: &ReclaimHooks) {
        let mut thread = lock(&self.thread);
        if let Some(ended) = thread.take() {
            ended.join().ok();
        }
        let (hooks, shared) = (hooks.clone(), Arc::clone(&self.shared));
        let named = std::thread::Builder::new().name("erofs_reclaimer".to_owned());
        *thread = named.spawn(move || run(&hooks, &shared)).ok();
        if thread.is_none() {
            self.shared.activity.cancel_start();
        }
    }
}

impl Drop for IdleReclaimer {
    fn drop(&mut self) {
        self.shared.stop.set();
        if let Some(thread) = lock(&self.thread).take() {
            thread.join().ok();
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The thread: it ends when it has freed the memory, or when the owner is gone.
fn run(hooks: &ReclaimHooks, shared: &SharedState) {
    let mut last = None;
    while !shared.stop.wait(CHECK_INTERVAL) {
        let Some(now) = (hooks.activity)() else { return };
        let was_used = shared.activity.take_use();
        let is_idle = !was_used && last == Some(now.uses) && !now.is_busy;
        last = Some(now.uses);
        if is_idle {
            (hooks.reclaim)();
            trim_heap();
            // A read that has begun since the check relies on the thread to run on.
            if shared.activity.try_end() {
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};
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

    /// Each wake comes while the thread reclaims or ends, as nothing else resets what it waits for.
    #[test]
    fn a_wake_that_races_with_the_end_of_the_thread_leads_to_a_reclaim() {
        let is_kept = Arc::new(AtomicBool::new(false));
        let freed = Arc::clone(&is_kept);
        let reclaimer = IdleReclaimer::new(
            || Some(Activity { uses: 0, is_busy: false }),
            move || freed.store(false, Ordering::SeqCst),
        );
        for round in 0..40u32 {
            std::thread::scope(|scope| {
                for user in 0..2 {
                    let (reclaimer, is_kept) = (&reclaimer, &is_kept);
                    scope.spawn(move || {
                        // At different moments after the last reclaim.
                        (0..(round * 200 * user)).for_each(|_| std::hint::spin_loop());
                        is_kept.store(true, Ordering::SeqCst);
                        reclaimer.wake();
                    });
                }
            });
            until("memory comes back", || !is_kept.load(Ordering::SeqCst));
        }
    }

    #[test]
    fn without_threads_memory_is_kept_until_they_are_allowed() {
        let memory = MemoryPool::new(MemoryPool::MIN_BYTES).unwrap();
        let image = OpenOptions::new().memory(&memory).defer_threads(true).open(PATH).unwrap();
        let fixed = memory.budget().used_bytes();
        burst(&image);
        assert!(memory.budget().used_bytes() > fixed);
        assert!(lock(&image.inner().idle_reclaimer.thread).is_none());
        image.allow_threads();
        until("memory comes back", || memory.budget().used_bytes() == fixed);
    }

    #[test]
    fn dropping_an_image_joins_its_reclaimer() {
        let image = Image::open(PATH).unwrap();
        burst(&image);
        let shared = Arc::downgrade(&image.inner().idle_reclaimer.shared);
        drop(image);
        assert!(shared.upgrade().is_none());
    }
}

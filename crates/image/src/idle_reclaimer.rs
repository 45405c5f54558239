//! Gives memory back after a burst: what decode slots, buffers and both caches keep to be faster goes when
//! nothing was read for a while. It owns one thread, which lives only while there is something to give
//! back; it starts when something is read for readers who may come back.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::thread::JoinHandle;
use std::time::Duration;

use ferrofs_workers::memory::trim_heap;

use crate::engine::Engine;
use crate::inner::MetadataCache;

/// How often it looks. Twice nothing new, and it gives back: so within eight seconds of the last read.
const LOOK: Duration = if cfg!(test) { Duration::from_millis(20) } else { Duration::from_secs(4) };

/// Gives an engine's memory back when nobody reads.
#[derive(Debug, Default)]
pub(crate) struct IdleReclaimer {
    /// Nobody is to look: the program ends soon.
    is_off: bool,
    state: Arc<Mutex<ReclaimerState>>,
    quit: Arc<StopSignal>,
}

#[derive(Debug, Default)]
struct ReclaimerState {
    thread: Option<JoinHandle<()>>,
    /// The thread will look once more at least.
    is_looking: bool,
    /// Somebody began to read since the last look.
    was_asked: bool,
}

#[derive(Debug, Default)]
struct StopSignal {
    is_set: Mutex<bool>,
    changed: Condvar,
}

impl StopSignal {
    /// Sleeps until it is set, or for so long; whether it is set.
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
    /// One that gives nothing back.
    pub(crate) fn off() -> Self {
        let mut idle_reclaimer = Self::default();
        idle_reclaimer.is_off = true;
        idle_reclaimer
    }

    /// Sees to it that somebody looks. Without a thread to be had memory is kept until it is wanted.
    pub(crate) fn wake(&self, engine: &Arc<Engine>, metadata_cache: &Arc<MetadataCache>) {
        if self.is_off {
            return;
        }
        let mut state = lock(&self.state);
        state.was_asked = true;
        if state.is_looking {
            return;
        }
        if let Some(ended) = state.thread.take() {
            ended.join().ok();
        }
        let (engine, metadata_cache) = (Arc::downgrade(engine), Arc::downgrade(metadata_cache));
        let quit = Arc::clone(&self.quit);
        let shared = Arc::clone(&self.state);
        let named = std::thread::Builder::new().name("erofs_reclaimer".to_owned());
        state.thread = named.spawn(move || keep((&engine, &metadata_cache), &quit, &shared)).ok();
        state.is_looking = state.thread.is_some();
    }
}

impl Drop for IdleReclaimer {
    fn drop(&mut self) {
        self.quit.set();
        // The thread takes the lock once more.
        let thread = lock(&self.state).thread.take();
        if let Some(thread) = thread {
            thread.join().ok();
        }
    }
}

fn lock(state: &Mutex<ReclaimerState>) -> MutexGuard<'_, ReclaimerState> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What the thread does: ends when it has given back everything, or when the engine is gone.
fn keep(
    (engine, metadata_cache): (&Weak<Engine>, &Weak<MetadataCache>),
    quit: &StopSignal,
    state: &Mutex<ReclaimerState>,
) {
    let mut last = None;
    while !quit.wait(LOOK) {
        let Some(engine) = engine.upgrade() else { return };
        let now = engine.activity();
        let was_asked = std::mem::take(&mut lock(state).was_asked);
        let is_idle = !was_asked && last == Some(now) && !engine.decode_slots.is_in_use();
        if is_idle {
            engine.shed(u64::MAX);
            if let Some(metadata_cache) = metadata_cache.upgrade() {
                metadata_cache.shed();
            }
            trim_heap();
        }
        last = Some(now);
        if lock(state).ends(is_idle) {
            return;
        }
    }
}

impl ReclaimerState {
    /// Whether the thread ends now. Who began to read meanwhile saw that somebody looks, and relies on
    /// it.
    fn ends(&mut self, is_idle: bool) -> bool {
        let ends = is_idle && !self.was_asked;
        self.is_looking = !ends;
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
        let began = Instant::now();
        while !is_so() {
            assert!(began.elapsed() < Duration::from_secs(60), "never: {what}");
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
    fn a_read_during_reclaim_keeps_the_reclaimer_running() {
        let mut state = ReclaimerState { thread: None, is_looking: true, was_asked: true };
        assert!(!state.ends(true) && state.is_looking, "somebody relies on it");
        state.was_asked = false;
        assert!(!state.ends(false) && state.is_looking, "somebody reads");
        assert!(state.ends(true) && !state.is_looking);
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

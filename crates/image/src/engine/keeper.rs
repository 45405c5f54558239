//! Gives memory back after a burst: what lanes, buffers and the cache keep to be faster goes when
//! nothing was read for a while. It owns one thread, which lives only while there is something to give
//! back; engines start it when they decode for readers who may come back.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::thread::JoinHandle;
use std::time::Duration;

use super::Engine;

/// How often it looks. Twice nothing new, and it gives back: so within eight seconds of the last read.
const LOOK: Duration = Duration::from_secs(4);

/// Gives an engine's memory back when nobody reads.
#[derive(Debug, Default)]
pub(crate) struct Keeper {
    state: Mutex<State>,
    quit: Arc<Signal>,
}

#[derive(Debug, Default)]
struct State {
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug, Default)]
struct Signal {
    is_set: Mutex<bool>,
    changed: Condvar,
}

impl Signal {
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

impl Keeper {
    /// Sees to it that somebody looks. Without a thread to be had memory is kept until it is wanted.
    pub(crate) fn wake(&self, engine: &Arc<Engine>) {
        // Somebody else is just doing this.
        let Ok(mut state) = self.state.try_lock() else { return };
        if state.thread.as_ref().is_some_and(|thread| !thread.is_finished()) {
            return;
        }
        if let Some(ended) = state.thread.take() {
            ended.join().ok();
        }
        let (engine, quit) = (Arc::downgrade(engine), Arc::clone(&self.quit));
        let named = std::thread::Builder::new().name("erofs_keeper".to_owned());
        state.thread = named.spawn(move || keep(&engine, &quit)).ok();
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        self.quit.set();
        if let Some(thread) = self.lock().thread.take() {
            thread.join().ok();
        }
    }
}

/// What the thread does: ends when it has given back everything, or when the engine is gone.
fn keep(engine: &Weak<Engine>, quit: &Signal) {
    let mut last = None;
    while !quit.wait(LOOK) {
        let Some(engine) = engine.upgrade() else { return };
        let now = engine.activity();
        if last == Some(now) {
            engine.shed(u64::MAX);
            return;
        }
        last = Some(now);
    }
}

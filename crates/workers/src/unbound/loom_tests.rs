//! Models of protocol U: an item that is queued while a thread falls asleep, while the pool closes,
//! and while another submitter starts the thread.

use loom::sync::Arc;
use loom::sync::atomic::{AtomicUsize, Ordering};

use super::{SubmitOutcome, UnboundPool, UnboundSettings};
use crate::wake_event::WakeEvent;

fn pool(threads: usize) -> UnboundPool {
    UnboundPool::new(UnboundSettings::new("model").max_threads(threads))
}

fn submit(pool: &UnboundPool, ran: &Arc<AtomicUsize>) {
    let ran = Arc::clone(ran);
    let placed = pool.submit(move || {
        ran.fetch_add(1, Ordering::Relaxed);
    });
    assert_eq!(placed, SubmitOutcome::Queued);
}

fn model(check: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = builder.preemption_bound.or(Some(2));
    builder.check(check);
}

#[test]
fn every_item_runs_before_the_pool_is_gone() {
    model(|| {
        let pool = pool(1);
        let ran = Arc::new(AtomicUsize::new(0));
        submit(&pool, &ran);
        submit(&pool, &ran);
        drop(pool);
        assert_eq!(ran.load(Ordering::Relaxed), 2);
    });
}

#[test]
fn a_sleeping_thread_is_woken_for_every_item() {
    model(|| {
        let pool = pool(1);
        for _ in 0..2 {
            let done = Arc::new(WakeEvent::new());
            let signal = Arc::clone(&done);
            let placed = pool.submit(move || {
                let _: bool = signal.set();
            });
            assert_eq!(placed, SubmitOutcome::Queued);
            let _: bool = done.wait();
        }
    });
}

#[test]
fn two_submitters_share_the_threads() {
    model(|| {
        let pool = Arc::new(pool(2));
        let ran = Arc::new(AtomicUsize::new(0));
        let other = {
            let (pool, ran) = (Arc::clone(&pool), Arc::clone(&ran));
            loom::thread::spawn(move || submit(&pool, &ran))
        };
        submit(&pool, &ran);
        other.join().unwrap();
        drop(pool);
        assert_eq!(ran.load(Ordering::Relaxed), 2);
    });
}

#[test]
fn an_item_may_drop_the_last_handle_of_its_pool() {
    model(|| {
        let pool = Arc::new(pool(1));
        let ran = Arc::new(AtomicUsize::new(0));
        let (inner, counted) = (Arc::clone(&pool), Arc::clone(&ran));
        pool.submit(move || {
            counted.fetch_add(1, Ordering::Relaxed);
            drop(inner);
        });
        submit(&pool, &ran);
        drop(pool);
        // The last drop may be the item's: then nothing here waits for the item. Loom ends the
        // model when every thread has, and reports what leaked.
        assert!(ran.load(Ordering::Relaxed) <= 2);
    });
}

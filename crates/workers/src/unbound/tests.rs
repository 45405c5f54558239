//! The unbound pool by itself.
#![allow(clippy::unwrap_used, reason = "a test ends at what it did not expect")]

use std::collections::HashSet;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Barrier, Mutex, mpsc};

use super::{SubmitOutcome, UnboundPool, UnboundSettings, thread_name};
use crate::cpus::CpuSet;

fn pool(threads: usize) -> UnboundPool {
    UnboundPool::new(UnboundSettings::new("spare").max_threads(threads))
}

/// Keeps a pool's only thread busy until the returned sender is dropped.
fn block(pool: &UnboundPool) -> mpsc::Sender<()> {
    let (release, released) = mpsc::channel::<()>();
    let (begin, begun) = mpsc::channel();
    let placed = pool.submit(move || {
        begin.send(()).unwrap();
        assert!(released.recv().is_err());
    });
    assert_eq!(placed, SubmitOutcome::Queued);
    begun.recv().unwrap();
    release
}

#[test]
fn an_unused_pool_has_no_thread_and_ends_at_once() {
    let pool = pool(4);
    assert!(pool.stats().threads.is_empty());
}

#[test]
fn one_item_starts_one_thread_and_the_next_one_uses_it() {
    let pool = pool(4);
    for round in 1..=20 {
        let (done, is_done) = mpsc::channel();
        assert_eq!(pool.submit(move || done.send(()).unwrap()), SubmitOutcome::Queued);
        is_done.recv().unwrap();
        // The thread is idle only when it sleeps; until then another one may be started.
        while pool.idle_threads() == 0 {
            std::thread::yield_now();
        }
        assert_eq!(pool.stats().threads.len(), 1, "round {round}");
    }
    assert_eq!(pool.stats().items(), 20);
}

#[test]
fn as_many_threads_run_at_once_as_are_allowed_and_no_more() {
    const THREADS: usize = 3;
    let pool = pool(THREADS);
    let together = Arc::new(Barrier::new(THREADS));
    let (running, peak) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    for _ in 0..THREADS * 10 {
        let (together, running, peak) = (together.clone(), running.clone(), peak.clone());
        pool.submit(move || {
            peak.fetch_max(running.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
            together.wait();
            running.fetch_sub(1, Ordering::SeqCst);
        });
    }
    drop(pool);
    assert_eq!(peak.load(Ordering::SeqCst), THREADS);
}

#[test]
fn dropping_the_pool_runs_all_that_was_submitted() {
    for _ in 0..50 {
        let ran = Arc::new(AtomicUsize::new(0));
        let pool = pool(2);
        for _ in 0..100 {
            let ran = Arc::clone(&ran);
            pool.submit(move || {
                ran.fetch_add(1, Ordering::Relaxed);
            });
        }
        drop(pool);
        assert_eq!(ran.load(Ordering::Relaxed), 100);
    }
}

#[test]
fn what_an_item_submits_runs_inside_of_it() {
    let pool = Arc::new(pool(1));
    let (send, receive) = mpsc::channel();
    let inner = Arc::clone(&pool);
    pool.submit(move || {
        let outer = std::thread::current().id();
        let (sender, receiver) = mpsc::channel();
        let placed = inner.submit(move || sender.send(std::thread::current().id()).unwrap());
        // It has run already: nothing is waited for, on the only thread.
        send.send((placed, receiver.try_recv() == Ok(outer))).unwrap();
    });
    assert_eq!(receive.recv().unwrap(), (SubmitOutcome::Inline, true));
    assert_eq!(pool.stats().threads[0].inline, 1);
}

#[test]
fn a_full_queue_makes_the_submitter_run_the_work() {
    let pool = pool(1);
    let release = block(&pool);
    let ran_on = Arc::new(Mutex::new(HashSet::new()));
    let mut queued = 0;
    loop {
        let ran_on = Arc::clone(&ran_on);
        let work = move || {
            ran_on.lock().unwrap().insert(std::thread::current().id());
        };
        if pool.submit(work) == SubmitOutcome::Inline {
            break;
        }
        queued += 1;
    }
    assert_eq!(queued, super::MAX_ITEMS_PER_THREAD);
    assert_eq!(*ran_on.lock().unwrap(), HashSet::from([std::thread::current().id()]));
    assert_eq!(pool.stats().inline, 1);
    drop(release);
}

#[test]
fn a_panic_ends_with_its_item_even_if_the_payload_panics_too() {
    struct Bomb;
    impl Drop for Bomb {
        fn drop(&mut self) {
            panic!("a payload that panics");
        }
    }
    let pool = pool(1);
    pool.submit(|| panic!("an item"));
    pool.submit(|| std::panic::panic_any(Bomb));
    let (done, is_done) = mpsc::channel();
    pool.submit(move || done.send(()).unwrap());
    is_done.recv().unwrap();
    let snapshot = pool.stats();
    assert_eq!((snapshot.threads.len(), snapshot.threads[0].panics), (1, 2));
}

#[test]
fn without_any_thread_the_submitter_runs_the_work() {
    let settings = UnboundSettings::new("spare").max_threads(2);
    settings.spawner.faults.set(CpuSet::new(), true);
    let faults = Arc::clone(&settings.spawner.faults);
    let pool = UnboundPool::new(settings);
    let ran = Arc::new(AtomicUsize::new(0));
    for _ in 0..10 {
        let ran = Arc::clone(&ran);
        assert_eq!(
            pool.submit(move || {
                ran.fetch_add(1, Ordering::Relaxed);
            }),
            SubmitOutcome::Inline
        );
    }
    assert_eq!(ran.load(Ordering::Relaxed), 10);
    let snapshot = pool.stats();
    assert_eq!((snapshot.inline, snapshot.refused_threads, faults.count()), (10, 10, 10));
    // When threads can be had again they are.
    faults.set(CpuSet::new(), false);
    assert_eq!(pool.submit(|| ()), SubmitOutcome::Queued);
}

#[test]
fn an_item_may_drop_the_last_handle_of_its_pool() {
    for _ in 0..50 {
        let pool = Arc::new(pool(2));
        let ran = Arc::new(AtomicUsize::new(0));
        let (inner, counted) = (Arc::clone(&pool), Arc::clone(&ran));
        let (go, may_go) = mpsc::channel::<()>();
        let (done, is_done) = mpsc::channel();
        pool.submit(move || {
            may_go.recv().unwrap();
            for _ in 0..5 {
                let (counted, done) = (Arc::clone(&counted), done.clone());
                inner.enqueue(super::WorkItem::new(
                    move || {
                        counted.fetch_add(1, Ordering::Relaxed);
                        done.send(()).unwrap();
                    },
                    std::time::Instant::now(),
                ));
            }
            drop(inner);
        });
        drop(pool);
        go.send(()).unwrap();
        // Ends when every item has run: the last sender is gone then.
        assert_eq!(is_done.iter().count(), 5);
        assert_eq!(ran.load(Ordering::Relaxed), 5);
    }
}

#[test]
fn a_long_name_is_cut_and_its_number_is_not() {
    assert_eq!(thread_name("worker", "/3"), "worker/3");
    assert_eq!(thread_name("erofs_worker", "/127"), "erofs_worke/127");
    assert_eq!(thread_name("ärger-mit-namen", "/12"), "ärger-mit-n/12");
    assert_eq!(thread_name("äääääääää", "/1"), "ääääää/1");
}

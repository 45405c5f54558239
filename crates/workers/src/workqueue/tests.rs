//! The queue from outside: what is handled by whom, slots, panics, its end, and use by several queues at once; then
//! the selection of workers and the spinning of a worker by themselves.
#![allow(clippy::arithmetic_side_effects, reason = "tests count small numbers")]

use std::cell::RefCell;
use std::collections::HashSet;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Barrier};
use std::thread::{self, ThreadId};
use std::time::{Duration, Instant};

use super::{
    ActiveWorkers, AdaptiveSpin, DispatchPolicy, Handler, NoHandler, RequestOutcome, WorkQueue,
    WorkQueueSettings, WorkerSelector,
};

/// Squares numbers, and panics at one of them.
struct Square;

#[derive(Default)]
struct Number {
    value: u64,
    square: u64,
    by: Option<ThreadId>,
}

const PANIC: u64 = u64::MAX;

impl Handler for Square {
    type Request = Number;

    fn handle(&mut self, request: &mut Number) {
        assert_ne!(request.value, PANIC, "asked to");
        request.square = request.value * request.value;
        request.by = Some(thread::current().id());
    }
}

fn settings(workers: usize, slots: usize) -> WorkQueueSettings {
    WorkQueueSettings::new("test").workers(workers).slots(slots)
}

/// Every request is handled and called back for once, on the submitter, whatever the
/// numbers of workers and slots, the dispatch policy and the active workers.
#[test]
fn every_request_comes_back_once_on_the_submitter() {
    const REQUESTS: u64 = 3000;
    let submitter = thread::current().id();
    for workers in [0, 1, 2, 3, 4] {
        for slots in [1, 2, 4, 63, 64] {
            for (dispatch_policy, active_workers) in [
                (DispatchPolicy::FillFirst, ActiveWorkers::OnePerCpu),
                (DispatchPolicy::FillFirst, ActiveWorkers::All),
                (DispatchPolicy::RoundRobin, ActiveWorkers::All),
            ] {
                let mut seen = HashSet::new();
                let on_done = |request: &mut Number, outcome| {
                    assert_eq!(
                        (thread::current().id(), outcome),
                        (submitter, RequestOutcome::Done)
                    );
                    assert_eq!(request.square, request.value * request.value);
                    assert!(seen.insert(request.value), "{} came twice", request.value);
                };
                let settings = settings(workers, slots)
                    .dispatch_policy(dispatch_policy)
                    .active_workers(active_workers);
                let mut queue =
                    WorkQueue::new(&settings, Number::default, || Ok(Square), on_done).unwrap();
                for value in 0..REQUESTS {
                    let mut slot = queue.reserve_or_inline();
                    slot.request().value = value;
                    slot.submit();
                }
                queue.wait();
                let counted = queue.stats();
                drop(queue);
                assert_eq!(seen.len() as u64, REQUESTS);
                let by_workers: u64 = counted.workers.iter().map(|worker| worker.handled).sum();
                let by_submitter = counted.handled_inline + counted.handled_helping;
                assert_eq!((counted.submitted, by_workers + by_submitter), (REQUESTS, REQUESTS));
            }
        }
    }
}

/// Handles a request when the test lets it.
struct Gated(Arc<Barrier>);

impl Handler for Gated {
    type Request = ();

    fn handle(&mut self, (): &mut ()) {
        self.0.wait();
    }
}

/// All slots are given out, and not one more; each that is finished comes free again.
#[test]
fn the_submitter_works_itself_exactly_when_every_slot_is_on_its_way() {
    for (workers, slots) in [(1, 1), (2, 3), (3, 2)] {
        let gate = Arc::new(Barrier::new(workers + 1));
        let inner = Arc::clone(&gate);
        let done = AtomicUsize::new(0);
        let on_done = |(): &mut (), _| {
            done.fetch_add(1, Ordering::Relaxed);
        };
        let settings = settings(workers, slots).active_workers(ActiveWorkers::All);
        let make = move || Ok(Gated(Arc::clone(&inner)));
        let mut queue = WorkQueue::new(&settings, || (), make, on_done).unwrap();
        for _ in 0..workers * slots {
            let slot = queue.reserve_or_inline();
            assert!(!slot.is_inline(), "a slot is free");
            slot.submit();
        }
        assert!(queue.reserve_or_inline().is_inline());
        for _ in 0..slots {
            gate.wait();
        }
        // `reserve` waits for a slot; nobody else makes one free than the workers.
        drop(queue.reserve());
        drop(queue);
        assert!(done.load(Ordering::Relaxed) >= 1);
    }
}

/// A slot that is dropped was not used.
#[test]
fn a_dropped_slot_stays_free_and_its_request_is_not_handled() {
    let on_done = |_: &mut Number, _| panic!("nothing was submitted");
    let mut queue =
        WorkQueue::new(&settings(1, 1), Number::default, || Ok(Square), on_done).unwrap();
    for _ in 0..5 {
        queue.reserve().request().value = PANIC;
    }
    queue.wait();
    assert_eq!(queue.stats().submitted, 0);
}

#[test]
fn a_panic_ends_its_request_and_nothing_else() {
    let mut outcomes = Vec::new();
    let on_done = |request: &mut Number, outcome| outcomes.push((request.value, outcome));
    let settings = settings(2, 2).active_workers(ActiveWorkers::All);
    let mut queue = WorkQueue::new(&settings, Number::default, || Ok(Square), on_done).unwrap();
    for round in 0..200 {
        let mut slot = queue.reserve_or_inline();
        slot.request().value = if round % 3 == 0 { PANIC } else { round };
        slot.submit();
    }
    queue.wait();
    let counted = queue.stats();
    drop(queue);
    assert_eq!(outcomes.len(), 200);
    for (value, outcome) in outcomes {
        assert_eq!(outcome == RequestOutcome::Panicked, value == PANIC);
    }
    let by_workers: u64 = counted.workers.iter().map(|worker| worker.panics).sum();
    assert_eq!(by_workers + counted.panics_on_submitter, 67);
}

/// Panics with something that panics when it is dropped, and does so itself.
struct Spiteful;

impl Drop for Spiteful {
    fn drop(&mut self) {
        panic!("once more");
    }
}

impl Handler for Spiteful {
    type Request = ();

    fn handle(&mut self, (): &mut ()) {
        std::panic::panic_any(Self);
    }
}

#[test]
fn a_panic_that_panics_again_when_it_is_dropped_does_not_end_its_worker() {
    let mut outcomes = Vec::new();
    let on_done = |(): &mut (), outcome| outcomes.push(outcome);
    let settings = settings(1, 2).active_workers(ActiveWorkers::All);
    let mut queue = WorkQueue::new(&settings, || (), || Ok(Spiteful), on_done).unwrap();
    for round in 0..20 {
        if round % 2 == 0 { queue.reserve().submit() } else { queue.reserve_or_inline().submit() }
    }
    queue.wait();
    drop(queue);
    assert_eq!(outcomes, [RequestOutcome::Panicked; 20]);
}

#[test]
fn a_handler_that_cannot_be_made_is_told_and_tried_again() {
    let tries = Arc::new(AtomicUsize::new(0));
    let inner = Arc::clone(&tries);
    let make = move || match inner.fetch_add(1, Ordering::Relaxed) {
        0 => Err(NoHandler),
        _ => Ok(Square),
    };
    let mut outcomes = Vec::new();
    let on_done = |_: &mut Number, outcome| outcomes.push(outcome);
    let mut queue = WorkQueue::new(&settings(0, 1), Number::default, make, on_done).unwrap();
    for _ in 0..3 {
        queue.reserve().submit();
    }
    drop(queue);
    assert_eq!(outcomes, [RequestOutcome::NoHandler, RequestOutcome::Done, RequestOutcome::Done]);
    assert_eq!(tries.load(Ordering::Relaxed), 2);
}

/// Counts how many of these values live.
struct Living(Arc<AtomicUsize>);

impl Living {
    fn new(count: &Arc<AtomicUsize>) -> Self {
        count.fetch_add(1, Ordering::Relaxed);
        Self(Arc::clone(count))
    }
}

impl Drop for Living {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

struct HoldsCount(#[expect(dead_code, reason = "counted while it lives")] Living);

impl Handler for HoldsCount {
    type Request = Living;

    fn handle(&mut self, _: &mut Living) {}
}

/// Dropped without waiting, the queue joins its workers and drops every slot and handler once.
#[test]
fn a_queue_dropped_in_the_middle_leaves_nothing_behind() {
    for round in 0..200 {
        let requests = Arc::new(AtomicUsize::new(0));
        let handlers = Arc::new(AtomicUsize::new(0));
        let (inner_requests, inner_handlers) = (Arc::clone(&requests), Arc::clone(&handlers));
        let settings = settings(3, 4).active_workers(ActiveWorkers::All);
        let make = move || Ok(HoldsCount(Living::new(&inner_handlers)));
        let request = move || Living::new(&inner_requests);
        let mut queue = WorkQueue::new(&settings, request, make, |_: &mut Living, _| ()).unwrap();
        assert_eq!(requests.load(Ordering::Relaxed), 13, "twelve slots and the submitter's own");
        for _ in 0..round % 40 {
            queue.reserve().submit();
        }
        drop(queue);
        assert_eq!(requests.load(Ordering::Relaxed), 0);
        assert_eq!(handlers.load(Ordering::Relaxed), 0);
    }
}

/// Notes which threads handled something while all of them were needed at once.
struct Meet(Arc<Barrier>);

impl Handler for Meet {
    type Request = Option<ThreadId>;

    fn handle(&mut self, request: &mut Self::Request) {
        self.0.wait();
        *request = Some(thread::current().id());
    }
}

#[test]
fn with_all_workers_active_each_has_its_own_thread() {
    let gate = Arc::new(Barrier::new(3));
    let settings = settings(3, 1).active_workers(ActiveWorkers::All);
    let threads = RefCell::new(HashSet::new());
    let on_done = |by: &mut Option<ThreadId>, _| {
        threads.borrow_mut().insert(*by);
    };
    let mut queue =
        WorkQueue::new(&settings, || None, move || Ok(Meet(Arc::clone(&gate))), on_done).unwrap();
    for _ in 0..3 {
        queue.reserve().submit();
    }
    // Not `wait`: the submitter would help, and be one too many at the barrier.
    while threads.borrow().len() < 3 {
        queue.collect();
        thread::yield_now();
    }
    assert!(!threads.borrow().contains(&Some(thread::current().id())));
}

/// On one CPU the submitter does everything itself, at once.
#[test]
fn with_one_cpu_every_request_is_handled_when_it_is_submitted() {
    let mut by = HashSet::new();
    let on_done = |request: &mut Number, _| {
        by.insert(request.by);
    };
    let settings = settings(8, 4).cpus(1);
    let mut queue = WorkQueue::new(&settings, Number::default, || Ok(Square), on_done).unwrap();
    for _ in 0..100 {
        let slot = queue.reserve_or_inline();
        assert!(slot.is_inline());
        slot.submit();
    }
    let counted = queue.stats();
    drop(queue);
    assert_eq!(by, HashSet::from([Some(thread::current().id())]));
    assert_eq!((counted.handled_inline, counted.wake_calls), (100, 0));
}

/// An idle worker uses no CPU; tests/steady looks at all of them.
#[test]
fn an_idle_worker_sleeps_and_a_request_wakes_it() {
    let done = std::cell::Cell::new(false);
    let finished = |_: &mut Number, _| done.set(true);
    let mut queue =
        WorkQueue::new(&settings(1, 4), Number::default, || Ok(Square), finished).unwrap();
    let deadline = Instant::now() + Duration::from_secs(20);
    for round in 1..=20 {
        // A sleep is counted when it ends: long enough for the worker to begin one.
        while queue.stats().workers[0].sleeps < round {
            assert!(Instant::now() < deadline, "the worker never sleeps, or nobody wakes it");
            thread::sleep(Duration::from_millis(1));
            done.set(false);
            queue.reserve().submit();
            // Without wait(), in which this thread would help: only the worker can finish it.
            while !done.get() {
                assert!(Instant::now() < deadline, "the worker was not woken");
                thread::yield_now();
                queue.collect();
            }
        }
    }
    let stats = queue.stats();
    assert_eq!(stats.handled_helping, 0);
    assert!(stats.workers[0].handled >= 20, "{stats:?}");
}

/// Many queues, many submitters, requests that are wrong if two threads ever hold one.
#[test]
fn stress_no_request_is_lost_doubled_or_shared() {
    struct Stamp(u64);
    impl Handler for Stamp {
        type Request = (u64, u64);
        fn handle(&mut self, request: &mut (u64, u64)) {
            self.0 += 1;
            let before = request.1;
            for _ in 0..request.0 % 50 {
                std::hint::spin_loop();
            }
            assert_eq!(request.1, before, "another thread wrote");
            request.1 = request.0.wrapping_mul(0x9E37_79B9_7F4A_7C15);
        }
    }
    let total = AtomicU64::new(0);
    thread::scope(|scope| {
        for submitter in 0..3_u64 {
            let total = &total;
            scope.spawn(move || {
                let begin = Instant::now();
                let mut round = 0;
                while begin.elapsed() < Duration::from_millis(700) {
                    round += 1;
                    let workers = usize::try_from(1 + (round + submitter) % 4).unwrap();
                    let slots = usize::try_from(1 + round % 7).unwrap();
                    let settings = settings(workers, slots).active_workers(ActiveWorkers::All);
                    let settings = if round % 2 == 0 { settings.spins(0) } else { settings };
                    let mut back = 0;
                    let on_done = |request: &mut (u64, u64), outcome| {
                        assert_eq!(outcome, RequestOutcome::Done);
                        assert_eq!(request.1, request.0.wrapping_mul(0x9E37_79B9_7F4A_7C15));
                        back += 1;
                    };
                    let mut queue =
                        WorkQueue::new(&settings, || (0, 0), || Ok(Stamp(0)), on_done).unwrap();
                    for number in 0..500 {
                        let mut slot = match number % 3 {
                            0 => queue.reserve(),
                            _ => queue.reserve_or_inline(),
                        };
                        *slot.request() = (number, 0);
                        slot.submit();
                        if number % 97 == 0 {
                            queue.wait();
                        }
                    }
                    queue.wait();
                    drop(queue);
                    assert_eq!(back, 500);
                    total.fetch_add(500, Ordering::Relaxed);
                }
            });
        }
    });
    println!("{} requests", total.load(Ordering::Relaxed));
}

#[test]
fn a_selector_grows_while_workers_are_full_and_cycles_through_those_in_use() {
    let mut selector = WorkerSelector::new();
    assert_eq!((selector.current(4), selector.next(4)), (0, 0));
    assert_eq!(selector.grow(4), Some(1));
    assert_eq!(selector.grow(4), Some(2));
    let mut cycle = Vec::new();
    for _ in 0..4 {
        cycle.push(selector.next(4));
        selector.select(selector.next(4));
    }
    assert_eq!(cycle, [1, 2, 0, 1]);
    assert_eq!(selector.grow(3), None);
}

#[test]
fn a_selector_never_shrinks_to_nothing_and_never_leaves_the_workers_that_it_is_asked_for() {
    let mut selector = WorkerSelector::new();
    assert_eq!(selector.grow(2), Some(1));
    selector.select(1);
    assert_eq!(selector.current(1), 0);
    assert_eq!(selector.next(1), 0);
    for _ in 0..3 {
        selector.shrink();
    }
    assert_eq!((selector.current(2), selector.next(2)), (1, 0));
    assert_eq!(selector.grow(2), Some(1));
}

fn spins_until_sleep(spin: &mut AdaptiveSpin) -> u32 {
    let mut spins = 0;
    while spin.keep_spinning() {
        spins += 1;
    }
    spins
}

#[test]
fn spinning_in_vain_halves_the_next_wait_down_to_a_floor() {
    let mut spin = AdaptiveSpin::new(640);
    let waits: Vec<u32> = (0..8).map(|_| spins_until_sleep(&mut spin)).collect();
    assert_eq!(waits, [640, 320, 160, 80, 40, 20, 10, 10]);
}

#[test]
fn work_found_by_spinning_doubles_it_up_to_the_most() {
    let mut spin = AdaptiveSpin::new(640);
    for _ in 0..8 {
        spins_until_sleep(&mut spin);
    }
    for expected in [20, 40, 80, 160, 320, 640, 640] {
        assert!(spin.keep_spinning());
        spin.work_found();
        assert_eq!(spin.budget, expected);
    }
}

#[test]
fn few_spins_come_back_as_many_do() {
    let mut spin = AdaptiveSpin::new(32);
    for _ in 0..8 {
        spins_until_sleep(&mut spin);
    }
    for expected in [2, 4, 8, 16, 32, 32] {
        assert!(spin.keep_spinning());
        spin.work_found();
        assert_eq!(spin.budget, expected);
    }
}

#[test]
fn work_that_was_there_at_once_changes_nothing() {
    let mut spin = AdaptiveSpin::new(640);
    spins_until_sleep(&mut spin);
    spin.work_found();
    assert_eq!(spins_until_sleep(&mut spin), 320);
}

#[test]
fn no_spins_mean_no_spins() {
    let mut spin = AdaptiveSpin::new(0);
    assert!(!spin.keep_spinning());
    spin.work_found();
    assert!(!spin.keep_spinning());
}

//! The whole pool, on the CPUs of the machine that runs the tests: one is enough.
#![allow(clippy::unwrap_used, reason = "a test ends at what it did not expect")]

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Barrier, mpsc};
use std::time::{Duration, Instant};

use super::{DispatchTarget, PerCpuPool, PerCpuSettings, inbox};
use crate::cpus::{self, AvailableCpus, CpuSet};
use crate::priority::PriorityRequest;

/// Far more than anything here takes: a test that waits so long has found a hang.
const DEADLINE: Duration = Duration::from_secs(60);

/// Ordinary priority, so that the tests of this process do not disturb each other.
fn settings() -> PerCpuSettings {
    PerCpuSettings::new("percpu").priority(PriorityRequest::Normal)
}

fn available_cpus() -> Vec<usize> {
    CpuSet::of_process().iter().collect()
}

/// Every available CPU has a worker, whatever the quota.
fn on_every_cpu() -> PerCpuPool {
    PerCpuPool::new(settings().cpus(CpuSet::of_process()))
}

fn wait_until(what: &str, mut holds: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !holds() {
        assert!(begun.elapsed() < DEADLINE, "{what}");
        std::thread::yield_now();
    }
}

/// Keeps the worker of `cpu` busy until the returned sender is dropped.
fn block(pool: &PerCpuPool, cpu: usize) -> mpsc::Sender<()> {
    let (release, released) = mpsc::channel::<()>();
    let (begin, begun) = mpsc::channel();
    let went = pool.submit_to(cpu, move || {
        begin.send(()).unwrap();
        assert!(released.recv().is_err());
    });
    assert_eq!(went, DispatchTarget::Cpu(cpu));
    begun.recv().unwrap();
    release
}

/// What an item computes: the same on whatever thread.
fn output_of(item: u64) -> u64 {
    (0..50).fold(item, |sum, round| (sum ^ round).wrapping_mul(0x0100_0000_01B3).rotate_left(7))
}

/// Submits `items` items from `submitters` threads, each to any CPU, and returns the outputs.
fn run_load(pool: &PerCpuPool, submitters: u64, items: u64, cpus: &[usize]) -> Vec<u64> {
    let outputs: Arc<Vec<AtomicU64>> =
        Arc::new((0..submitters * items).map(|_| AtomicU64::new(0)).collect());
    let (done, is_done) = mpsc::channel::<()>();
    std::thread::scope(|scope| {
        for submitter in 0..submitters {
            let (outputs, done) = (&outputs, done.clone());
            scope.spawn(move || {
                for item in submitter * items..(submitter + 1) * items {
                    let (outputs, done) = (Arc::clone(outputs), done.clone());
                    let index = usize::try_from(item).unwrap();
                    pool.submit_to(cpus[index % cpus.len()], move || {
                        outputs[index].fetch_add(output_of(item), Ordering::Relaxed);
                        drop(done);
                    });
                }
            });
        }
    });
    drop(done);
    // Every item holds a sender until it has run.
    assert_eq!(is_done.recv_timeout(DEADLINE), Err(mpsc::RecvTimeoutError::Disconnected));
    outputs.iter().map(|output| output.load(Ordering::Relaxed)).collect()
}

// Nothing is started that is not used.
#[test]
fn an_unused_pool_has_started_nothing() {
    let pool = on_every_cpu();
    pool.refresh();
    pool.take_offline(0);
    pool.bring_online(0);
    let snapshot = pool.stats();
    assert!(snapshot.workers.is_empty() && snapshot.serving.is_empty());
    assert!(snapshot.unbound.threads.is_empty());
    assert_eq!(snapshot.refreshes, 0);
}

// Each worker stays on its own CPU.
#[test]
fn work_runs_on_the_cpu_that_it_was_submitted_to() {
    let pool = on_every_cpu();
    for cpu in available_cpus() {
        let (sender, receiver) = mpsc::channel();
        let work = move || sender.send((cpus::current(), cpus::is_bound_to(cpu))).unwrap();
        assert_eq!(pool.submit_to(cpu, work), DispatchTarget::Cpu(cpu));
        assert_eq!(receiver.recv().unwrap(), (cpu, true));
    }
    let snapshot = pool.stats();
    assert_eq!(snapshot.serving, CpuSet::of_process());
    assert!(
        snapshot.workers.iter().all(|worker| worker.items == 1 && worker.priority_level.is_some())
    );
    assert_eq!(snapshot.waits().count(), snapshot.items());
    assert_eq!(snapshot.fallback + snapshot.inline(), 0);
}

#[test]
fn work_goes_to_the_cpu_on_which_the_submitter_is() {
    let pool = on_every_cpu();
    std::thread::scope(|scope| {
        for cpu in available_cpus() {
            let pool = &pool;
            scope.spawn(move || {
                CpuSet::from_iter([cpu]).bind_current_thread().unwrap();
                assert_eq!(pool.submit(|| ()), DispatchTarget::Cpu(cpu));
            });
        }
    });
}

#[test]
fn a_cpu_that_does_not_exist_is_one_without_a_worker() {
    let pool = on_every_cpu();
    let (sender, receiver) = mpsc::channel();
    assert_eq!(
        pool.submit_to(usize::MAX, move || sender.send(()).unwrap()),
        DispatchTarget::Fallback
    );
    receiver.recv().unwrap();
    assert_eq!(pool.stats().fallback, 1);
}

// Concurrent first uses start each worker once.
#[test]
fn first_uses_at_the_same_time_start_the_workers_once() {
    for _ in 0..20 {
        let pool = on_every_cpu();
        let together = Barrier::new(4);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    together.wait();
                    let went = pool.submit(|| ());
                    assert!(matches!(went, DispatchTarget::Cpu(_)), "{went:?}");
                });
            }
        });
        let snapshot = pool.stats();
        assert_eq!(snapshot.refreshes, 1);
        assert_eq!(snapshot.workers.len(), available_cpus().len());
    }
}

// Nested work does not deadlock, not even on the only worker.
#[test]
fn what_an_item_submits_runs_inside_of_it() {
    let pool = Arc::new(on_every_cpu());
    let cpu = available_cpus()[0];
    let (sender, receiver) = mpsc::channel();
    let inner = Arc::clone(&pool);
    pool.submit_to(cpu, move || {
        let (send, receive) = mpsc::channel();
        let middle = Arc::clone(&inner);
        let went = inner.submit(move || {
            let went = middle.submit(move || send.send(std::thread::current().id()).unwrap());
            assert_eq!(went, DispatchTarget::Inline);
        });
        // It has run already: nothing is waited for.
        sender.send((went, receive.try_recv() == Ok(std::thread::current().id()))).unwrap();
    });
    assert_eq!(receiver.recv_timeout(DEADLINE).unwrap(), (DispatchTarget::Inline, true));
    assert_eq!(pool.stats().inline(), 2);
}

#[test]
fn what_an_item_on_the_fallback_submits_runs_inside_of_it_too() {
    let pool = Arc::new(on_every_cpu());
    let (sender, receiver) = mpsc::channel();
    let inner = Arc::clone(&pool);
    let work = move || sender.send(inner.submit(|| ())).unwrap();
    assert_eq!(pool.submit_to(usize::MAX, work), DispatchTarget::Fallback);
    assert_eq!(receiver.recv_timeout(DEADLINE).unwrap(), DispatchTarget::Inline);
}

// A panic ends at the item's edge, and its worker lives on.
#[test]
fn a_panic_stops_at_the_edge_of_its_item() {
    let pool = on_every_cpu();
    let cpu = available_cpus()[0];
    let thread_of = |pool: &PerCpuPool| pool.stats().workers[0].thread_id;
    pool.start();
    let before = thread_of(&pool);
    for _ in 0..10 {
        assert_eq!(pool.submit_to(cpu, || panic!("an item")), DispatchTarget::Cpu(cpu));
    }
    let (sender, receiver) = mpsc::channel();
    pool.submit_to(cpu, move || sender.send(()).unwrap());
    receiver.recv().unwrap();
    assert_eq!(pool.stats().panics(), 10);
    assert_eq!(thread_of(&pool), before);
}

#[test]
fn a_full_inbox_makes_the_submitter_run_the_work() {
    let pool = on_every_cpu();
    let cpu = available_cpus()[0];
    let release = block(&pool, cpu);
    let ran = Arc::new(AtomicUsize::new(0));
    let submit = || {
        let ran = Arc::clone(&ran);
        pool.submit_to(cpu, move || {
            ran.fetch_add(1, Ordering::Relaxed);
        })
    };
    for _ in 0..inbox::MAX_ITEMS {
        assert_eq!(submit(), DispatchTarget::Cpu(cpu));
    }
    assert_eq!((submit(), ran.load(Ordering::Relaxed)), (DispatchTarget::Inline, 1));
    assert_eq!(pool.submit_to(cpu, || panic!("an item")), DispatchTarget::Inline);
    let snapshot = pool.stats();
    assert_eq!((snapshot.full, snapshot.full_panics), (2, 1));
    drop(release);
    drop(pool);
    assert_eq!(ran.load(Ordering::Relaxed), inbox::MAX_ITEMS + 1);
}

// Following the CPUs is part of every build and shows at runtime.
#[test]
fn a_withdrawn_cpu_loses_its_worker_until_it_is_restored() {
    let pool = on_every_cpu();
    let cpu = available_cpus()[0];
    pool.start();
    for round in 1..=5 {
        pool.take_offline(cpu);
        assert!(!pool.stats().serving.contains(cpu));
        assert_eq!(pool.stats().workers[0].thread_id, None);
        assert_eq!(pool.submit_to(cpu, || ()), DispatchTarget::Fallback);
        pool.bring_online(cpu);
        assert_eq!(pool.stats().serving, CpuSet::of_process());
        assert_eq!(pool.submit_to(cpu, || ()), DispatchTarget::Cpu(cpu));
        assert_eq!(pool.stats().fallback, round);
    }
}

#[test]
fn what_waits_for_a_withdrawn_cpu_goes_to_the_fallback() {
    let pool = Arc::new(on_every_cpu());
    let cpu = available_cpus()[0];
    let release = block(&pool, cpu);
    let (sender, receiver) = mpsc::channel();
    for item in 0..100 {
        let sender = sender.clone();
        pool.submit_to(cpu, move || sender.send(item).unwrap());
    }
    // Its worker still runs the item that blocks: so this one waits, and the others need not.
    let withdrawing = {
        let pool = Arc::clone(&pool);
        std::thread::Builder::new().spawn(move || pool.take_offline(cpu)).unwrap()
    };
    let mut ran: Vec<i32> = (0..100).map(|_| receiver.recv_timeout(DEADLINE).unwrap()).collect();
    ran.sort_unstable();
    assert_eq!(ran, (0..100).collect::<Vec<_>>());
    assert_eq!(pool.stats().requeued, 100);
    assert!(!withdrawing.is_finished());
    drop(release);
    withdrawing.join().unwrap();
}

#[test]
fn a_worker_that_withdraws_its_own_cpu_does_not_wait_for_itself() {
    let pool = Arc::new(on_every_cpu());
    let cpu = available_cpus()[0];
    let (sender, receiver) = mpsc::channel();
    let inner = Arc::clone(&pool);
    pool.submit_to(cpu, move || {
        inner.take_offline(cpu);
        inner.bring_online(cpu);
        inner.refresh();
        sender.send(()).unwrap();
    });
    receiver.recv_timeout(DEADLINE).unwrap();
    pool.refresh();
    assert_eq!(pool.stats().serving, CpuSet::of_process());
}

// Under load, with CPUs that go and come 200 times, as many items run as were submitted, with
// the same outputs; the fallback has had some of them; nothing hangs.
#[test]
fn nothing_is_lost_while_cpus_come_and_go_under_load() {
    const ROUNDS: u64 = 200;
    const SUBMITTERS: u64 = 3;
    let pool = on_every_cpu();
    let cpus = available_cpus();
    pool.start();
    let is_done = AtomicBool::new(false);
    let items = Arc::new(AtomicU64::new(0));
    let sum = Arc::new(AtomicU64::new(0));
    let submitted = std::thread::scope(|scope| {
        let load = (0..SUBMITTERS).map(|submitter| {
            let (pool, cpus, is_done) = (&pool, &cpus, &is_done);
            let (items, sum) = (&items, &sum);
            scope.spawn(move || {
                let (mut submitted, mut expected) = (0, 0_u64);
                while !is_done.load(Ordering::Relaxed) {
                    let item = submitted * SUBMITTERS + submitter;
                    let (items, sum) = (Arc::clone(items), Arc::clone(sum));
                    let cpu = cpus[usize::try_from(submitted).unwrap() % cpus.len()];
                    pool.submit_to(cpu, move || {
                        items.fetch_add(1, Ordering::Relaxed);
                        sum.fetch_add(output_of(item), Ordering::Relaxed);
                    });
                    submitted += 1;
                    expected = expected.wrapping_add(output_of(item));
                }
                (submitted, expected)
            })
        });
        let load: Vec<_> = load.collect();
        for round in 0..ROUNDS {
            let cpu = cpus[usize::try_from(round).unwrap() % cpus.len()];
            pool.take_offline(cpu);
            let before = items.load(Ordering::Relaxed);
            wait_until("items go on without the CPU", || items.load(Ordering::Relaxed) > before);
            pool.bring_online(cpu);
        }
        is_done.store(true, Ordering::Relaxed);
        load.into_iter().map(|load| load.join().unwrap()).collect::<Vec<_>>()
    });
    let snapshot = pool.stats();
    drop(pool);
    let count: u64 = submitted.iter().map(|load| load.0).sum();
    let expected = submitted.iter().fold(0_u64, |sum, load| sum.wrapping_add(load.1));
    assert_eq!(items.load(Ordering::Relaxed), count);
    assert_eq!(sum.load(Ordering::Relaxed), expected);
    assert!(snapshot.fallback > 0, "{snapshot:?}");
    assert!(snapshot.refreshes > 2 * ROUNDS);
}

// Whichever workers cannot be had, all of them and the fallback included, the outputs are the
// same.
#[test]
fn refused_threads_change_no_output() {
    let cpus = available_cpus();
    let expected = run_load(&on_every_cpu(), 2, 500, &cpus);
    assert!(expected.iter().zip(0..).all(|(output, item)| *output == output_of(item)));
    for refused in 1..=cpus.len() {
        for is_fallback_refused in [false, true] {
            let settings = settings().cpus(CpuSet::of_process());
            let faults = Arc::clone(&settings.spawner.faults);
            faults.set(cpus.iter().copied().take(refused).collect(), is_fallback_refused);
            let pool = PerCpuPool::new(settings);
            assert_eq!(run_load(&pool, 2, 500, &cpus), expected);
            let snapshot = pool.stats();
            assert_eq!(snapshot.serving.len(), cpus.len() - refused);
            assert!(snapshot.refused_threads >= refused as u64);
            if is_fallback_refused {
                assert!(snapshot.unbound.inline > 0 && snapshot.unbound.threads.is_empty());
            } else {
                assert!(snapshot.fallback > 0);
            }
        }
    }
}

// A start that failed is not taken for one that succeeded. The workers are
// requested again by submitters.
#[test]
fn workers_that_were_refused_come_when_they_can_be_had() {
    let settings = settings().cpus(CpuSet::of_process());
    let faults = Arc::clone(&settings.spawner.faults);
    faults.set(CpuSet::of_process(), true);
    let pool = PerCpuPool::new(settings);
    let cpu = available_cpus()[0];
    assert_eq!(pool.submit_to(cpu, || ()), DispatchTarget::Inline);
    assert!(pool.stats().serving.is_empty());
    faults.set(CpuSet::new(), false);
    wait_until("the workers come", || pool.submit_to(cpu, || ()) == DispatchTarget::Cpu(cpu));
    pool.refresh();
    assert_eq!(pool.stats().serving, CpuSet::of_process());
}

/// Lets the first worker run on every available CPU, as `taskset -a` does.
fn widen_first_worker(pool: &PerCpuPool) {
    let thread = pool.stats().workers[0].thread_id.and_then(rustix::process::Pid::from_raw);
    let mut mask = rustix::thread::CpuSet::new();
    available_cpus().iter().for_each(|&cpu| mask.set(cpu));
    rustix::thread::sched_setaffinity(thread, &mask).unwrap();
}

#[test]
fn a_refresh_brings_a_worker_back_to_its_cpu() {
    let pool = on_every_cpu();
    if available_cpus().len() < 2 {
        println!("passed over: one CPU is no place to be moved to");
        return;
    }
    pool.start();
    widen_first_worker(&pool);
    pool.refresh();
    assert_eq!(pool.stats().rebound, 1);
    let (sender, receiver) = mpsc::channel();
    let cpu = available_cpus()[0];
    pool.submit_to(cpu, move || sender.send(cpus::is_bound_to(cpu)).unwrap());
    assert!(receiver.recv().unwrap());
}

#[test]
fn a_worker_that_was_moved_off_its_cpu_goes_back() {
    let pool = on_every_cpu();
    let cpus = available_cpus();
    if cpus.len() < 2 {
        println!("passed over: one CPU is no place to be moved to");
        return;
    }
    pool.start();
    widen_first_worker(&pool);
    wait_until("it goes back", || {
        pool.submit_to(cpus[0], || ());
        pool.stats().workers[0].rebound == 1
    });
    let (sender, receiver) = mpsc::channel();
    let cpu = cpus[0];
    wait_until("there is room for one more", || {
        let sender = sender.clone();
        let went = pool.submit_to(cpu, move || sender.send(cpus::is_bound_to(cpu)).unwrap());
        // What was submitted before may fill the worker's queue yet: then it ran elsewhere.
        went == DispatchTarget::Cpu(cpu) || receiver.recv().is_err()
    });
    assert!(receiver.recv().unwrap());
}

// The pool goes while work is queued and running; all of it runs.
#[test]
fn dropping_the_pool_right_after_the_last_submit_loses_nothing() {
    let cpus = available_cpus();
    for round in 0..300 {
        let pool = on_every_cpu();
        let ran = Arc::new(AtomicUsize::new(0));
        let items = 1 + round % 40;
        for item in 0..items {
            let owned = vec![item; 100];
            let ran = Arc::clone(&ran);
            pool.submit_to(cpus[item % cpus.len()], move || {
                assert!(owned.iter().all(|&value| value == item));
                ran.fetch_add(1, Ordering::Relaxed);
            });
        }
        drop(pool);
        assert_eq!(ran.load(Ordering::Relaxed), items);
    }
}

// The last handle goes inside of an item.
#[test]
fn an_item_may_drop_the_last_handle_of_its_pool() {
    let cpus = available_cpus();
    for round in 0..100 {
        let pool = Arc::new(on_every_cpu());
        let ran = Arc::new(AtomicUsize::new(0));
        let (done, is_done) = mpsc::channel::<()>();
        let (go, may_go) = mpsc::channel::<()>();
        let (inner, token) = (Arc::clone(&pool), done.clone());
        // In every other round the one that drops is on the fallback.
        let home = if round % 2 == 0 { cpus[0] } else { usize::MAX };
        pool.submit_to(home, move || {
            assert!(may_go.recv().is_err());
            drop(inner);
            drop(token);
        });
        for item in 0..20 {
            let (ran, done) = (Arc::clone(&ran), done.clone());
            pool.submit_to(cpus[item % cpus.len()], move || {
                ran.fetch_add(1, Ordering::Relaxed);
                drop(done);
            });
        }
        drop((pool, done));
        drop(go);
        assert_eq!(is_done.recv_timeout(DEADLINE), Err(mpsc::RecvTimeoutError::Disconnected));
        assert_eq!(ran.load(Ordering::Relaxed), 20);
    }
}

#[test]
fn without_chosen_cpus_there_are_as_many_workers_as_run_at_once() {
    let pool = PerCpuPool::new(settings());
    pool.start();
    assert_eq!(pool.stats().serving.len(), AvailableCpus::read().parallelism());
}

#[test]
fn chosen_cpus_that_are_not_available_have_no_worker() {
    let pool = PerCpuPool::new(settings().cpus(CpuSet::from_iter([60_000])));
    pool.start();
    assert!(pool.stats().serving.is_empty());
    let went = pool.submit(|| ());
    assert_eq!(went, DispatchTarget::Fallback);
}

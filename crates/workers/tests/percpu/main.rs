//! Facts of the per-CPU workers that concern the whole process: which threads it has, what the system
//! says of them, and what follows when its mask changes. So this is a process of its own, and its
//! tests run one after the other.
#![allow(clippy::unwrap_used, reason = "a test ends at what it did not expect")]

mod process;

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc};
use std::time::{Duration, Instant};

use ferrofs_workers::cpus::{AvailableCpus, CpuSet};
use ferrofs_workers::percpu::{DispatchTarget, PerCpuPool, PerCpuSettings};
use ferrofs_workers::priority::PriorityLevel;

use process::{Thread, set_mask, set_mask_of_all, set_mask_of_this_thread, threads_named};

/// Far more than anything here takes: a test that waits so long has found a hang.
const DEADLINE: Duration = Duration::from_secs(60);

static ONE_BY_ONE: Mutex<()> = Mutex::new(());

fn alone() -> MutexGuard<'static, ()> {
    ONE_BY_ONE.lock().unwrap_or_else(PoisonError::into_inner)
}

fn wait_until(what: &str, mut holds: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !holds() {
        assert!(begun.elapsed() < DEADLINE, "{what}");
        std::thread::yield_now();
    }
}

fn run_one(pool: &PerCpuPool) -> DispatchTarget {
    let (done, is_done) = mpsc::channel();
    let went = pool.submit(move || done.send(()).unwrap());
    is_done.recv_timeout(DEADLINE).unwrap();
    went
}

// No thread before the first use, exactly one for each available CPU afterwards, no other at the
// second use or as time passes, none when the pool is gone.
#[test]
fn there_is_one_thread_for_each_available_cpu_from_first_use_to_the_end() {
    let _alone = alone();
    let pool = PerCpuPool::new(PerCpuSettings::new("aw1"));
    assert!(threads_named("aw1").is_empty());
    assert!(matches!(run_one(&pool), DispatchTarget::Cpu(_)));
    let available = AvailableCpus::read();
    let first = threads_named("aw1");
    assert_eq!(first.len(), available.parallelism());
    if available.parallelism() == available.cpus().len() {
        let names = first.iter().map(|thread| thread.name.clone()).collect::<BTreeSet<_>>();
        assert_eq!(names, available.cpus().iter().map(|cpu| format!("aw1/{cpu}")).collect());
    }
    let begun = Instant::now();
    while begun.elapsed() < Duration::from_millis(600) {
        assert!(matches!(run_one(&pool), DispatchTarget::Cpu(_)));
    }
    assert_eq!(threads_named("aw1"), first);
    drop(pool);
    assert!(threads_named("aw1").is_empty());
}

/// What the pool says of its workers is what the system says.
fn compare_with_system(pool: &PerCpuPool, prefix: &str) -> Vec<PriorityLevel> {
    let workers = pool.stats().workers;
    let mut cpus = CpuSet::new();
    for worker in &workers {
        let threads = threads_named(prefix);
        let id = worker.thread_id.unwrap();
        let thread = threads.iter().find(|thread| thread.id == id).expect("the thread exists");
        let allowed = CpuSet::parse(&thread.allowed()).unwrap();
        assert_eq!(allowed, CpuSet::from_iter(worker.cpu));
        assert!(cpus.insert(worker.cpu.unwrap()), "each has another CPU");
        let reached = match thread.scheduling() {
            (1, 1, _) => PriorityLevel::RealTime,
            (0, 0, -20 | -19) => PriorityLevel::Nice,
            (0, 0, _) => PriorityLevel::Normal,
            other => panic!("policy, priority and nice value {other:?}"),
        };
        assert_eq!(worker.priority_level, Some(reached));
    }
    workers.into_iter().filter_map(|worker| worker.priority_level).collect()
}

// One distinct CPU for each worker, and the priority level that the system says.
#[test]
fn each_worker_has_its_cpu_and_the_level_that_it_reports() {
    let _alone = alone();
    let pool = PerCpuPool::new(PerCpuSettings::new("aw2"));
    pool.start();
    let levels = compare_with_system(&pool, "aw2/");
    assert_eq!(levels.len(), AvailableCpus::read().parallelism());
    println!("levels reached: {levels:?}");
    // Whatever the workers start is not raised, not even the fallback, and not bound.
    let went = pool.submit_to(usize::MAX, || ());
    assert_eq!(went, DispatchTarget::Fallback);
    wait_until("the fallback has its thread", || threads_named("aw2/u0").len() == 1);
    let fallback = &threads_named("aw2/u0")[0];
    wait_until("it has come to where it may run", || {
        CpuSet::parse(&fallback.allowed()) == Ok(CpuSet::of_process())
    });
    assert!(
        matches!(fallback.scheduling(), (0, 0, nice) if nice >= 0),
        "{:?}",
        fallback.scheduling()
    );
}

// Without the right to raise priorities the workers start all the same and say so.
#[test]
fn without_the_right_to_be_raised_the_workers_start_and_report_a_lower_level() {
    use rustix::thread::{CapabilitySet, capabilities, set_capabilities};
    let _alone = alone();
    // The right is the thread's, and what it starts inherits that.
    let test = std::thread::Builder::new().spawn(|| {
        let mut held = capabilities(None).unwrap();
        held.effective.remove(CapabilitySet::SYS_NICE);
        held.permitted.remove(CapabilitySet::SYS_NICE);
        held.inheritable.remove(CapabilitySet::SYS_NICE);
        set_capabilities(None, held).unwrap();
        let pool = PerCpuPool::new(PerCpuSettings::new("aw2b"));
        assert!(matches!(run_one(&pool), DispatchTarget::Cpu(_)));
        compare_with_system(&pool, "aw2b/")
    });
    let levels = test.unwrap().join().unwrap();
    println!("levels reached: {levels:?}");
    let limit = |resource| rustix::process::getrlimit(resource).current.unwrap_or(u64::MAX);
    // By RLIMIT_RTPRIO the system may grant the highest priority level to anyone.
    if limit(rustix::process::Resource::Rtprio) == 0 {
        assert!(levels.iter().all(|priority_level| *priority_level != PriorityLevel::RealTime));
    }
}

/// Work that is submitted all the time from wherever the submitter runs, checked by its sum.
struct Load {
    stop: Arc<AtomicBool>,
    threads: Vec<std::thread::JoinHandle<(u64, u64)>>,
    ran: Arc<AtomicU64>,
    sum: Arc<AtomicU64>,
}

fn output_of(item: u64) -> u64 {
    (0..50).fold(item, |sum, round| (sum ^ round).wrapping_mul(0x0100_0000_01B3).rotate_left(7))
}

impl Load {
    /// One submitter for each of `cpus`, bound to it: otherwise a busy machine may keep all of them on one CPU.
    fn new(pool: &Arc<PerCpuPool>, cpus: &[usize]) -> Self {
        let submitters = cpus.len() as u64;
        let stop = Arc::new(AtomicBool::new(false));
        let (ran, sum) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
        let threads = (0..submitters).zip(cpus).map(|(submitter, &cpu)| {
            let pool = Arc::clone(pool);
            let (stop, ran, sum) = (Arc::clone(&stop), Arc::clone(&ran), Arc::clone(&sum));
            let submit = move || {
                set_mask_of_this_thread(&CpuSet::from_iter([cpu]));
                let (mut submitted, mut expected) = (0, 0_u64);
                while !stop.load(Ordering::Relaxed) {
                    let item = submitted * submitters + submitter;
                    let (ran, sum) = (Arc::clone(&ran), Arc::clone(&sum));
                    pool.submit(move || {
                        sum.fetch_add(output_of(item), Ordering::Relaxed);
                        ran.fetch_add(1, Ordering::Relaxed);
                    });
                    submitted += 1;
                    expected = expected.wrapping_add(output_of(item));
                }
                (submitted, expected)
            };
            std::thread::Builder::new().spawn(submit).unwrap()
        });
        let threads = threads.collect();
        Self { stop, threads, ran, sum }
    }

    /// Ends the load; returns how many were submitted and the sum of what they are to give.
    fn end(self) -> ((u64, u64), Arc<AtomicU64>, Arc<AtomicU64>) {
        self.stop.store(true, Ordering::Relaxed);
        let both = self.threads.into_iter().map(|thread| thread.join().unwrap());
        let expected = both.fold((0, 0_u64), |all, one| (all.0 + one.0, all.1.wrapping_add(one.1)));
        (expected, self.ran, self.sum)
    }
}

/// Gives the process its mask back, so that a failed test is the only one that fails.
struct RestoredMask(CpuSet);

impl Drop for RestoredMask {
    fn drop(&mut self) {
        set_mask(&self.0);
    }
}

// The process's mask shrinks and grows under load, by the system's own call. Every item runs
// once; items of the CPU that is gone go to the fallback.
// Following the CPUs works in what is built, and nobody calls refresh.
#[test]
fn workers_follow_the_mask_of_the_process_under_load() {
    let _alone = alone();
    let all = CpuSet::of_process();
    if all.len() < 2 {
        println!("passed over: a mask of one CPU cannot be narrowed");
        return;
    }
    let first = CpuSet::from_iter(all.iter().next());
    let pool = Arc::new(PerCpuPool::new(PerCpuSettings::new("aw3").cpus(all.clone())));
    pool.start();
    let _restored = RestoredMask(all.clone());
    // The second stays on the CPU that the process loses.
    let load = Load::new(&pool, &all.iter().take(2).collect::<Vec<_>>());
    for round in 0..4 {
        set_mask(&first);
        wait_until("the other workers go", || pool.stats().serving == first);
        let before = pool.stats().fallback;
        wait_until("work falls back", || pool.stats().fallback > before);
        set_mask(&all);
        wait_until("they come back", || pool.stats().serving == all);
        assert!(pool.stats().refreshes > round);
    }
    for _ in 0..50 {
        set_mask(&first);
        pool.refresh();
        assert_eq!(pool.stats().serving, first);
        set_mask(&all);
        pool.refresh();
        assert_eq!(pool.stats().serving, all);
    }
    let ((submitted, expected), ran, sum) = load.end();
    let snapshot = pool.stats();
    drop(pool);
    assert_eq!((ran.load(Ordering::Relaxed), sum.load(Ordering::Relaxed)), (submitted, expected));
    assert!(snapshot.fallback > 0);
    println!(
        "{submitted} items, {} fell back, {} handed over",
        snapshot.fallback, snapshot.requeued
    );
    assert!(threads_named("aw3/").is_empty());
}

// Pinning is made sure of: a mask set for all threads at once, as by `taskset -a`, takes every worker
// off its CPU, and a refresh brings those back whose CPU is still there.
#[test]
fn a_mask_for_all_threads_at_once_is_put_right_by_a_refresh() {
    let _alone = alone();
    let all = CpuSet::of_process();
    if all.len() < 2 {
        println!("passed over: a mask of one CPU cannot be narrowed");
        return;
    }
    let first = CpuSet::from_iter(all.iter().next());
    let pool = PerCpuPool::new(PerCpuSettings::new("pin").cpus(all.clone()));
    pool.start();
    for mask in [&first, &all, &first, &all] {
        set_mask_of_all(mask);
        pool.refresh();
        assert_eq!(pool.stats().serving, *mask);
        let allowed = |thread: &Thread| CpuSet::parse(&thread.allowed()).unwrap().len();
        let pinned = threads_named("pin/").into_iter().filter(|thread| !thread.name.contains('u'));
        assert!(pinned.into_iter().all(|thread| allowed(&thread) == 1));
        run_one(&pool);
    }
    assert!(pool.stats().rebound > 0);
}

//! What the workqueue costs once it runs: no allocation, no system call while its workers are busy, no
//! CPU time while there is nothing to do. A binary of its own, since it counts what the whole process allocates.
#![allow(unsafe_code, reason = "a global allocator that counts is an unsafe trait")]
#![allow(
    clippy::print_stdout,
    reason = "it is its own harness, so that it is alone in its process"
)]
#![allow(clippy::unwrap_used, reason = "a test ends where its world is not as it must be")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use ferrofs_workers::workqueue::{ActiveWorkers, Handler, WorkQueue, WorkQueueSettings};

struct Counting;

static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);

// SAFETY: every call goes to the system's allocator with the arguments it came with.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller's contract is System's.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, place: *mut u8, layout: Layout) {
        // SAFETY: the caller's contract is System's.
        unsafe { System.dealloc(place, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Holds its thread until it is let go, without a system call.
struct Hold(Arc<AtomicBool>);

impl Handler for Hold {
    type Request = u64;

    fn handle(&mut self, request: &mut u64) {
        while self.0.load(Ordering::Acquire) {
            std::hint::spin_loop();
        }
        *request += 1;
    }
}

fn settings(workers: usize, slots: usize) -> WorkQueueSettings {
    let settings = WorkQueueSettings::new("steady").workers(workers).slots(slots);
    settings.active_workers(ActiveWorkers::All)
}

fn main() {
    steady_state_allocates_nothing();
    a_busy_worker_is_given_requests_without_a_system_call();
    an_idle_worker_uses_no_cpu_time();
    println!("test result: ok. 3 passed; 0 failed; 0 ignored");
}

fn steady_state_allocates_nothing() {
    let is_held = Arc::new(AtomicBool::new(false));
    let mut sum = 0;
    let on_done = |request: &mut u64, _| sum += *request;
    let make = move || Ok(Hold(Arc::clone(&is_held)));
    let mut queue = WorkQueue::new(&settings(2, 4), || 0, make, on_done).unwrap();
    // The first requests start the threads and make the handlers.
    let submit = |queue: &mut WorkQueue<_, _>| {
        for round in 0..5000 {
            let mut slot = if round % 2 == 0 { queue.reserve() } else { queue.reserve_or_inline() };
            *slot.request() = 1;
            slot.submit();
        }
        queue.wait();
    };
    submit(&mut queue);
    let deadline = Instant::now() + Duration::from_secs(30);
    while queue.stats().workers.iter().any(|worker| worker.handled == 0) {
        assert!(Instant::now() < deadline, "a worker never gets a request");
        submit(&mut queue);
    }
    let before = ALLOCATIONS.load(Ordering::Relaxed);
    submit(&mut queue);
    let allocations = ALLOCATIONS.load(Ordering::Relaxed) - before;
    assert_eq!(allocations, 0, "allocations of 5000 requests");
}

fn a_busy_worker_is_given_requests_without_a_system_call() {
    let is_held = Arc::new(AtomicBool::new(true));
    let inner = Arc::clone(&is_held);
    let make = move || Ok(Hold(Arc::clone(&inner)));
    let mut queue = WorkQueue::new(&settings(1, 64), || 0, make, |_: &mut u64, _| ()).unwrap();
    queue.reserve().submit();
    let held = queue.stats().wake_calls;
    assert!(held <= 1, "one at most: the worker may have slept before its first request");
    for _ in 0..63 {
        queue.reserve().submit();
    }
    // The first request may still have found the worker on its way to sleep.
    assert!(queue.stats().wake_calls <= 1, "system calls of 63 requests to a busy worker");
    assert!(queue.reserve_or_inline().is_inline());
    is_held.store(false, Ordering::Release);
    queue.wait();
    assert_eq!(queue.stats().submitted, 64);
}

fn an_idle_worker_uses_no_cpu_time() {
    let is_held = Arc::new(AtomicBool::new(false));
    let make = move || Ok(Hold(Arc::clone(&is_held)));
    let mut queue = WorkQueue::new(&settings(1, 1), || 0, make, |_: &mut u64, _| ()).unwrap();
    queue.reserve().submit();
    queue.wait();
    if fs::read_dir("/proc/self/task").is_err() {
        println!("an_idle_worker_uses_no_cpu_time: skipped, /proc shows no tasks");
        return;
    }
    let deadline = Instant::now() + Duration::from_secs(20);
    // The submitter may have handled the request before the worker has its name.
    let task = loop {
        if let Some(task) = task_of("steady/0") {
            break task;
        }
        assert!(Instant::now() < deadline, "the worker never appears");
        thread::yield_now();
    };
    while !is_asleep(&task) {
        assert!(Instant::now() < deadline, "the worker never sleeps");
        thread::yield_now();
    }
    let before = cpu_time(&task);
    let idle_from = Instant::now();
    while idle_from.elapsed() < Duration::from_millis(50) {
        thread::yield_now();
    }
    assert_eq!(cpu_time(&task), before, "nanoseconds on a CPU while idle for 50 ms");
}

fn task_of(name: &str) -> Option<String> {
    let tasks = fs::read_dir("/proc/self/task").ok()?;
    tasks
        .filter_map(|task| task.ok()?.path().into_os_string().into_string().ok())
        .find(|task| fs::read_to_string(format!("{task}/comm")).is_ok_and(|is| is.trim() == name))
}

fn is_asleep(task: &str) -> bool {
    let stat = fs::read_to_string(format!("{task}/stat")).unwrap();
    stat.rsplit_once(") ").unwrap().1.starts_with('S')
}

/// Nanoseconds, where the kernel tells them; ticks of the clock elsewhere.
fn cpu_time(task: &str) -> String {
    let schedstat = fs::read_to_string(format!("{task}/schedstat"));
    match schedstat.map(|text| text.split(' ').next().map(str::to_owned)) {
        Ok(Some(time)) => time,
        _ => {
            let stat = fs::read_to_string(format!("{task}/stat")).unwrap();
            let fields = stat.rsplit_once(") ").unwrap().1;
            fields.split(' ').skip(11).take(2).collect::<Vec<_>>().join(" ")
        }
    }
}

//! Names, places, levels and ends of threads.
#![allow(clippy::unwrap_used, reason = "a test ends where its world is not as it must be")]

use std::sync::mpsc::channel;

use super::*;
use crate::cpus::{self, CpuSet};
use crate::priority;

fn plain(name: &str) -> ThreadOptions {
    ThreadOptions { name: name.to_owned(), cpu: None, priority: PriorityRequest::Normal }
}

/// Starts a thread, and gives what `look` sees on it.
fn seen_on<T: Send + 'static>(
    wanted: ThreadOptions,
    look: impl FnOnce(ThreadPlacement) -> T + Send + 'static,
) -> T {
    let (sender, receiver) = channel();
    let owned = start(wanted, move |placement| sender.send(look(placement)).unwrap()).unwrap();
    let seen = receiver.recv().unwrap();
    owned.join();
    seen
}

fn own_name() -> String {
    std::fs::read_to_string("/proc/thread-self/comm").unwrap().trim_end_matches('\n').to_owned()
}

#[test]
fn the_system_shows_the_name_up_to_its_fifteenth_byte() {
    for (name, shown) in [
        ("erofs_worker/3", "erofs_worker/3"),
        ("erofs_worker/1024", "erofs_worker/10"),
        ("fourteen-bytesé", "fourteen-bytes"),
        ("before\0after", "before"),
    ] {
        assert_eq!(seen_on(plain(name), |_| own_name()), shown);
    }
    // Without a name it keeps that of the thread that starts it.
    seen_on(plain(""), |_| ());
}

// A-W2: each worker's Cpus_allowed_list is a single distinct CPU; its priority level is what the system says.
#[test]
fn a_placed_thread_is_on_its_cpu_and_at_the_priority_level_that_it_reports() {
    for cpu in CpuSet::of_process().iter() {
        let wanted = ThreadOptions {
            name: "placed".to_owned(),
            cpu: Some(cpu),
            priority: PriorityRequest::Raised,
        };
        seen_on(wanted, move |placement| {
            assert!(placement.is_pinned && cpus::is_bound_to(cpu));
            assert_eq!(cpus::current(), cpu);
            assert_eq!(CpuSet::of_current_thread(), CpuSet::from_iter([cpu]));
            assert_eq!(placement.priority_level, priority::of_current_thread());
        });
    }
}

#[test]
fn a_cpu_that_is_not_there_leaves_the_thread_unbound_and_says_so() {
    let wanted = ThreadOptions { cpu: Some(60_000), ..plain("lost") };
    let placement = seen_on(wanted, |placement| placement);
    assert!(!placement.is_pinned);
}

#[test]
fn what_a_bound_thread_starts_is_not_bound() {
    let all = CpuSet::of_process();
    let cpu = all.iter().next();
    let inner = seen_on(ThreadOptions { cpu, ..plain("bound") }, |_| {
        seen_on(plain("free"), |placement| (placement.is_pinned, CpuSet::of_current_thread()))
    });
    assert_eq!(inner, (false, all));
}

#[test]
fn dropping_the_owner_waits_for_the_end() {
    let (sender, receiver) = channel();
    let (go, gate) = channel::<()>();
    let owned = start(plain("waited"), move |_| {
        assert!(gate.recv().is_err(), "the gate opens by being dropped");
        sender.send(()).unwrap();
    })
    .unwrap();
    drop(go);
    drop(owned);
    receiver.try_recv().unwrap();
}

#[test]
fn an_owner_dropped_on_its_own_thread_does_not_wait_for_itself() {
    let (hand_over, handed) = channel::<OwnedThread>();
    let (sender, receiver) = channel();
    let owned = start(plain("itself"), move |_| {
        let owned = handed.recv().unwrap();
        let was_current = owned.is_current();
        owned.join();
        sender.send(was_current).unwrap();
    })
    .unwrap();
    assert!(!owned.is_current());
    hand_over.send(owned).unwrap();
    assert_eq!(receiver.recv(), Ok(true));
}

#[test]
fn a_panic_ends_at_the_threads_edge() {
    let owned = start(plain("panics"), |_| panic!("on purpose")).unwrap();
    owned.join();
}

// A-W2, second part: without CAP_SYS_NICE a start succeeds and reports the priority level that holds.
#[test]
fn an_ordinary_users_thread_is_placed_and_reports_its_lower_level() {
    use rustix::process::{Resource, Uid, getrlimit, getuid};

    let limits = [Resource::Nice, Resource::Rtprio].map(|limit| getrlimit(limit).current);
    if !getuid().is_root() || limits != [Some(0), Some(0)] {
        println!("skipped: the user is no root to begin with, or the limits allow to be raised");
        return;
    }
    seen_on(plain("ordinary"), |_| {
        // Of this thread only, and of those that it starts.
        let nobody = Uid::from_raw(65_534);
        rustix::thread::set_thread_res_uid(nobody, nobody, nobody).unwrap();
        let cpu = CpuSet::of_process().iter().next();
        let wanted = ThreadOptions { cpu, priority: PriorityRequest::Raised, ..plain("lower") };
        let placement = seen_on(wanted, |placement| placement);
        assert_eq!(
            placement,
            ThreadPlacement { priority_level: PriorityLevel::Normal, is_pinned: true }
        );
    });
}

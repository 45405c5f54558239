//! Privileges of the threads in the sandbox, as the kernel reports them.

use std::sync::Barrier;
use std::thread;

use ferrofs_mount::sandbox::{CapabilitySet, Sandbox, StandardStreams};
use rustix::thread::{capabilities, capability_is_in_bounding_set};

use crate::in_a_process;

fn sandbox() -> Sandbox<'static> {
    Sandbox::new().streams(StandardStreams::Errors)
}

fn of_this_thread() -> (CapabilitySet, CapabilitySet, CapabilitySet) {
    let sets = capabilities(None).unwrap();
    (sets.effective, sets.permitted, sets.inheritable)
}

#[test]
fn no_capability_is_left() {
    in_a_process(|_| {
        let had = capabilities(None).unwrap();
        sandbox().filtered(false).enter().unwrap();
        let none = CapabilitySet::empty();
        assert_eq!(of_this_thread(), (none, none, none));
        if had.effective.contains(CapabilitySet::SETPCAP) {
            for capability in [CapabilitySet::SYS_ADMIN, CapabilitySet::CHOWN] {
                assert_eq!(capability_is_in_bounding_set(capability), Ok(false));
            }
        }
    });
}

#[test]
fn the_capabilities_that_were_asked_for_are_left_if_they_were_there() {
    in_a_process(|_| {
        let had = capabilities(None).unwrap();
        sandbox().filtered(false).may_unmount(true).may_raise_priority(true).enter().unwrap();
        let wanted =
            CapabilitySet::SYS_ADMIN | CapabilitySet::DAC_READ_SEARCH | CapabilitySet::SYS_NICE;
        let none = CapabilitySet::empty();
        assert_eq!(of_this_thread(), (had.effective & wanted, had.permitted & wanted, none));
    });
}

#[test]
fn what_an_earlier_thread_still_has_is_reported() {
    in_a_process(|_| {
        let had = capabilities(None).unwrap().permitted;
        let (begun, reported) = (Barrier::new(2), Barrier::new(2));
        thread::scope(|scope| {
            scope.spawn(|| {
                begun.wait();
                reported.wait();
            });
            begun.wait();
            let report = sandbox().enter();
            reported.wait();
            let report = report.unwrap();
            assert_eq!(report.capabilities, had);
            assert!(report.no_new_privileges);
        });
    });
}

fn status() -> String {
    std::fs::read_to_string("/proc/thread-self/status").unwrap()
}

#[test]
fn a_later_thread_has_no_more_than_the_one_that_started_it() {
    in_a_process(|_| {
        let had = capabilities(None).unwrap().permitted;
        sandbox().may_raise_priority(true).enter().unwrap();
        let later = thread::scope(|scope| scope.spawn(status).join().unwrap());
        let left = (had & CapabilitySet::SYS_NICE).bits();
        for field in ["CapPrm", "CapEff"] {
            for status in [&status(), &later] {
                assert!(status.contains(&format!("{field}:\t{left:016x}\n")), "{status}");
            }
        }
        for line in ["NoNewPrivs:\t1\n", "Seccomp:\t2\n", "CapInh:\t0000000000000000\n"] {
            assert!(later.contains(line), "{line} is not in {later}");
        }
    });
}

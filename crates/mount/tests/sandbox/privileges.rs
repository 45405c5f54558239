//! Privileges of the threads in the sandbox, as the kernel reports them.

use std::sync::Barrier;
use std::thread;

use ferrofs_mount::sandbox::{CapabilitySet, Sandbox, SandboxRole, StandardStreams, UserIds};
use rustix::thread::{capabilities, capability_is_in_bounding_set};

use crate::{in_a_process, skip};

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
fn the_process_that_unmounts_keeps_one_capability_if_it_had_it() {
    in_a_process(|_| {
        let had = capabilities(None).unwrap();
        sandbox().filtered(false).role(SandboxRole::Unmounter).enter().unwrap();
        let wanted = CapabilitySet::SYS_ADMIN;
        let none = CapabilitySet::empty();
        assert_eq!(of_this_thread(), (had.effective & wanted, had.permitted & wanted, none));
    });
}

/// The five sets of capabilities that `/proc` shows.
const SETS: [&str; 5] = ["CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"];

#[test]
fn a_server_of_root_has_no_capability_in_any_set() {
    in_a_process(|_| {
        let is_root = capabilities(None).unwrap().effective.contains(CapabilitySet::SETPCAP);
        sandbox().may_raise_priority(true).enter().unwrap();
        let status = status();
        // Only a process with CAP_SETPCAP can empty the bounding set.
        for set in SETS.into_iter().filter(|set| is_root || *set != "CapBnd") {
            assert!(status.contains(&format!("{set}:\t0000000000000000\n")), "{set} in {status}");
        }
    });
}

#[test]
fn root_serves_as_another_user_if_it_is_asked_to() {
    in_a_process(|_| {
        if !rustix::process::geteuid().is_root() {
            return skip("needs root");
        }
        let ids = UserIds { user: 65_534, group: 65_533 };
        sandbox().user(Some(ids)).may_raise_priority(true).enter().unwrap();
        let status = status();
        for line in [
            "Uid:\t65534\t65534\t65534\t65534\n",
            "Gid:\t65533\t65533\t65533\t65533\n",
            "Groups:\t65533 \n",
            "CapBnd:\t0000000000000000\n",
        ] {
            assert!(status.contains(line), "{line} is not in {status}");
        }
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
            // The harness has one, too.
            assert!(report.earlier_threads >= 1);
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
        sandbox().may_raise_priority(true).enter().unwrap();
        let later = thread::scope(|scope| scope.spawn(status).join().unwrap());
        for field in ["CapPrm", "CapEff"] {
            for status in [&status(), &later] {
                assert!(status.contains(&format!("{field}:\t0000000000000000\n")), "{status}");
            }
        }
        for line in ["NoNewPrivs:\t1\n", "Seccomp:\t2\n", "CapInh:\t0000000000000000\n"] {
            assert!(later.contains(line), "{line} is not in {later}");
        }
    });
}

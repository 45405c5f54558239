//! What needs a process of its own: limits, privileges, the mask of the first thread. Each test starts
//! this binary again in a role, and the role answers in one line.
#![allow(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "answers and reasons for skipping are printed"
)]

mod child;

use std::io::Write;

use child::{Role, run_role};

/// What the child says when the system does not allow it to play its role.
const SKIPPED: &str = "skipped";

/// Reports that the present test is skipped: on standard error, and in the file that `FERROFS_SKIPPED` names.
fn skip(reason: &str) {
    let thread = std::thread::current();
    let line = format!("skipped: {}: {reason}\n", thread.name().unwrap_or("unknown test"));
    eprint!("{line}");
    if let Some(path) = std::env::var_os("FERROFS_SKIPPED") {
        let file = std::fs::OpenOptions::new().create(true).append(true).open(path);
        let written = file.and_then(|mut file| file.write_all(line.as_bytes()));
        written.expect("the list of skipped tests cannot be written");
    }
}

fn expect(role: Role, expected: &str) {
    let answer = run_role(role);
    match answer.split_once(": ") {
        Some((SKIPPED, reason)) => skip(reason),
        _ => assert_eq!(answer, expected, "{role:?}"),
    }
}

// Without CAP_SYS_NICE it still succeeds and reports the lower priority level.
#[test]
fn an_ordinary_user_without_limits_to_spend_stays_on_the_normal_level() {
    expect(Role::Ordinary, "normal, policy 0, priority 0, nice 0");
}

#[test]
fn an_ordinary_user_who_may_be_nice_reaches_the_second_level() {
    expect(Role::OrdinaryMayBeNice, "nice -19, policy 0, priority 0, nice -19");
}

#[test]
fn an_ordinary_user_who_may_be_real_time_reaches_the_first_level() {
    expect(Role::OrdinaryMayBeRealTime, "real-time, policy 1, priority 1, nice 0");
}

#[test]
fn a_limit_of_real_time_seconds_keeps_everybody_off_the_first_level() {
    expect(Role::LimitedTime, "nice -19, policy 0, priority 0, nice -19");
}

#[test]
fn a_thread_that_computes_longer_than_the_limit_of_real_time_lives() {
    expect(Role::LimitedTimeComputes, "alive");
}

// The mask shrinks while the process runs, and that is seen.
#[test]
fn a_mask_that_shrinks_and_grows_is_seen_by_the_next_look() {
    expect(Role::ShrinkingMask, "shrunk and restored");
}

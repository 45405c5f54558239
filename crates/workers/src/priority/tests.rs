//! The ladder against what /proc shows of the thread.
#![allow(clippy::unwrap_used, reason = "a test ends where its world is not as it must be")]

use super::*;

/// AllocPolicy, real-time priority and nice value, as /proc shows them.
fn shown() -> (i32, i32, i32) {
    let stat = std::fs::read_to_string("/proc/thread-self/stat").unwrap();
    // The name, in parentheses, may hold anything; what follows it begins with field 3.
    let (_, fields) = stat.rsplit_once(") ").unwrap();
    let field = |number: usize| fields.split(' ').nth(number - 3).unwrap().parse().unwrap();
    (field(41), field(40), field(19))
}

fn assert_shown(priority_level: PriorityLevel) {
    let (policy, priority, nice) = shown();
    match priority_level {
        PriorityLevel::RealTime => assert_eq!((policy, priority), (sys::POLICY_FIFO, 1)),
        PriorityLevel::Nice => assert_eq!((policy, nice), (sys::POLICY_OTHER, -19)),
        PriorityLevel::Batch => assert_eq!((policy, priority), (sys::POLICY_BATCH, 0)),
        PriorityLevel::Normal => {
            assert!(policy == sys::POLICY_OTHER && nice > -19, "{policy} {nice}");
        }
    }
}

/// Runs on a thread of its own, since it changes that thread's priority.
fn aside<T: Send + 'static>(body: impl FnOnce() -> T + Send + 'static) -> T {
    std::thread::Builder::new().spawn(body).unwrap().join().unwrap()
}

// A-W2: policy and priority shown are what sched_getscheduler says.
#[test]
fn the_level_that_is_reported_is_the_one_that_the_system_shows() {
    aside(|| {
        let priority_level = apply(PriorityRequest::Raised);
        assert_shown(priority_level);
        assert_eq!(of_current_thread(), priority_level);
        println!("raised to {priority_level}");
    });
}

#[test]
fn the_switch_off_touches_nothing() {
    aside(|| {
        let before = shown();
        assert_eq!(apply(PriorityRequest::Normal), of_current_thread());
        assert_eq!(shown(), before);
        let priority_level = apply(PriorityRequest::Raised);
        assert_eq!(apply(PriorityRequest::Normal), priority_level, "it does not lower, either");
    });
}

#[test]
fn anybody_may_become_a_batch_thread() {
    aside(|| {
        assert_eq!(apply(PriorityRequest::Batch), PriorityLevel::Batch);
        assert_shown(PriorityLevel::Batch);
    });
}

#[test]
fn raising_twice_is_raising_once() {
    aside(|| {
        let priority_level = apply(PriorityRequest::Raised);
        assert_eq!(apply(PriorityRequest::Raised), priority_level);
        assert_shown(priority_level);
    });
}

#[test]
fn what_a_raised_thread_starts_begins_as_an_ordinary_thread() {
    aside(|| {
        apply(PriorityRequest::Raised);
        let (policy, priority, nice) = aside(shown);
        assert_eq!((policy, priority), (sys::POLICY_OTHER, 0));
        assert!(nice >= 0, "{nice}");
    });
}

#[test]
fn the_second_level_is_not_inherited_either() {
    aside(|| {
        raise_to_nice();
        let priority_level = of_current_thread();
        assert_ne!(priority_level, PriorityLevel::RealTime);
        assert_shown(priority_level);
        assert!(aside(shown).2 >= 0);
    });
}

#[test]
fn an_idle_thread_is_never_taken_for_a_raised_one() {
    const POLICY_IDLE: i32 = 5;
    aside(|| {
        setpriority_process(Some(gettid()), NICE).ok();
        match sys::set_scheduler(POLICY_IDLE, 0) {
            Ok(()) => assert_eq!(of_current_thread(), PriorityLevel::Normal),
            Err(errno) => println!("skipped: the idle policy is refused: {errno}"),
        }
    });
}

#[test]
fn only_the_calling_thread_is_raised() {
    let before = aside(shown);
    aside(|| {
        apply(PriorityRequest::Raised);
    });
    assert_eq!(aside(shown), before);
}

#[test]
fn the_levels_have_names() {
    let names = [PriorityLevel::RealTime, PriorityLevel::Nice, PriorityLevel::Normal]
        .map(|priority_level| priority_level.to_string());
    assert_eq!(names, ["fifo 1", "nice -19", "normal"]);
}

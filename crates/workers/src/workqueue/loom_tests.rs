//! Models of protocol Q: every interleaving of one submitter and one worker, with one or two slots.

use super::{ActiveWorkers, Handler, RequestOutcome, WorkQueue, WorkQueueSettings};

/// Adds a thousand.
struct Add;

impl Handler for Add {
    type Request = u32;

    fn handle(&mut self, request: &mut u32) {
        *request += 1000;
    }
}

fn model(run: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(2);
    builder.check(run);
}

fn settings(slots: usize) -> WorkQueueSettings {
    let settings = WorkQueueSettings::new("model").workers(1).slots(slots);
    settings.active_workers(ActiveWorkers::All).spins(0).cpus(1)
}

/// Submits `requests` and waits; returns the sum that came back.
fn sum_of(slots: usize, requests: u32, wait_between: bool) -> u32 {
    let settings = settings(slots);
    let mut sum = 0;
    let mut count = 0;
    let on_done = |request: &mut u32, outcome| {
        assert_eq!(outcome, RequestOutcome::Done);
        sum += *request;
        count += 1;
    };
    let mut queue = WorkQueue::new(&settings, || 0, || Ok(Add), on_done).unwrap();
    for number in 0..requests {
        let mut slot = queue.reserve();
        *slot.request() = number;
        slot.submit();
        if wait_between {
            queue.wait();
        }
    }
    queue.wait();
    drop(queue);
    assert_eq!(count, requests);
    sum
}

/// Q1 to Q13 with a slot for each request.
#[test]
fn two_slots_give_both_requests_back() {
    model(|| assert_eq!(sum_of(2, 2, false), 2001));
}

/// Q12 and Q2 again: a slot that was taken back and filled once more is not mistaken for the old one.
#[test]
fn a_slot_that_was_taken_back_can_be_filled_again() {
    model(|| assert_eq!(sum_of(1, 2, true), 2001));
}

/// Q13: the submitter sleeps until the only slot is free.
#[test]
fn reserve_waits_for_the_only_slot() {
    model(|| assert_eq!(sum_of(1, 2, false), 2001));
}

/// Q14: a shutdown is not slept through, and what runs ends before the queue is gone.
#[test]
fn a_queue_dropped_at_once_joins_its_worker() {
    model(|| {
        let settings = settings(1);
        let mut queue = WorkQueue::new(&settings, || 0, || Ok(Add), |_: &mut u32, _| ()).unwrap();
        queue.reserve().submit();
        drop(queue);
    });
}

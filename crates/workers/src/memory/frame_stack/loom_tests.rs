//! Every interleaving of few threads on few frames.
#![allow(
    clippy::unwrap_used,
    clippy::assertions_on_result_states,
    reason = "a test may fail where it stands"
)]

use super::*;
use crate::sync::{Arc, Cell, thread};

struct BudgetInner {
    links: FrameLinks,
    vacant: FrameStack,
    reserve: FrameStack,
    /// What a frame's owner may write to: loom sees two owners at a time.
    bytes: Vec<Cell<u32>>,
}

fn shared(frames: u32) -> Arc<BudgetInner> {
    let (links, vacant) = FrameLinks::with_stack(frames).unwrap();
    let bytes = (0..frames).map(|_| Cell::new(0)).collect();
    Arc::new(BudgetInner { links, vacant, reserve: FrameStack::new(), bytes })
}

/// Stands for a write: loom checks that nobody else has the frame meanwhile.
fn write(shared: &BudgetInner, key: &FrameKey) {
    shared.bytes[key.index() as usize].with_mut(|_| ());
}

#[test]
fn a_top_that_left_and_came_back_is_not_mistaken() {
    // One pops one; the other pops two and pushes the first of them back: the shape of ABA.
    loom::model(|| {
        let shared = shared(3);
        let one = Arc::clone(&shared);
        let thread = thread::spawn(move || {
            let key = one.vacant.pop(&one.links);
            key.map(|key| {
                write(&one, &key);
                key.index()
            })
        });
        let first = shared.vacant.pop(&shared.links).unwrap();
        write(&shared, &first);
        let second = shared.vacant.pop(&shared.links).unwrap();
        write(&shared, &second);
        shared.vacant.push(&shared.links, first, 3).unwrap();
        let mut all = vec![second.index()];
        all.extend(thread.join().unwrap());
        while let Some(key) = shared.vacant.pop(&shared.links) {
            write(&shared, &key);
            all.push(key.index());
        }
        all.sort_unstable();
        assert_eq!(all, [0, 1, 2], "every frame once");
    });
}

#[test]
fn what_was_written_to_a_frame_is_seen_by_its_next_owner() {
    loom::model(|| {
        let shared = shared(1);
        let one = Arc::clone(&shared);
        let thread = thread::spawn(move || take_and_put_back(&one, 1));
        take_and_put_back(&shared, 1);
        thread.join().unwrap();
        assert_eq!(shared.reserve.len(&shared.links) + shared.vacant.len(&shared.links), 1);
    });
}

/// As the pool does it: the reserve, then the vacant; back to the reserve while that has room.
fn take_and_put_back(shared: &BudgetInner, most: u32) {
    let key = shared.reserve.pop(&shared.links).or_else(|| shared.vacant.pop(&shared.links));
    if let Some(key) = key {
        write(shared, &key);
        shared.links.count(&key, FrameSource::Reserve);
        if let Err(key) = shared.reserve.push(&shared.links, key, most) {
            shared.vacant.push(&shared.links, key, u32::MAX).unwrap();
        }
    }
}

#[test]
fn two_that_push_at_once_never_pass_the_bound_and_a_look_never_sees_more() {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(|| {
        let shared = shared(2);
        let threads: Vec<_> = (0..2)
            .map(|_| {
                let shared = Arc::clone(&shared);
                thread::spawn(move || take_and_put_back(&shared, 1))
            })
            .collect();
        assert!(shared.reserve.len(&shared.links) <= 1);
        for thread in threads {
            thread.join().unwrap();
        }
        assert_eq!(shared.reserve.len(&shared.links), 1, "the first one back stays");
        assert_eq!(shared.vacant.len(&shared.links), 1);
    });
}

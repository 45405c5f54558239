//! The stack by itself: order, bound, count, and many threads at once.
#![allow(
    clippy::unwrap_used,
    clippy::assertions_on_result_states,
    reason = "a test may fail where it stands"
)]

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering as StdOrdering};

use super::*;

fn indexes(stack: &FrameStack, links: &FrameLinks) -> Vec<u32> {
    std::iter::from_fn(|| stack.pop(links)).map(|key| key.index()).collect()
}

#[test]
fn all_frames_lie_on_the_first_stack_in_order() {
    let (links, stack) = FrameLinks::with_stack(5).unwrap();
    assert_eq!(stack.len(&links), 5);
    assert_eq!(indexes(&stack, &links), [0, 1, 2, 3, 4]);
    assert_eq!(stack.len(&links), 0);
}

#[test]
fn the_last_frame_pushed_is_the_first_popped() {
    let (links, from) = FrameLinks::with_stack(4).unwrap();
    let to = FrameStack::new();
    while let Some(key) = from.pop(&links) {
        to.push(&links, key, 4).unwrap();
    }
    assert_eq!(indexes(&to, &links), [3, 2, 1, 0]);
}

#[test]
fn a_full_stack_gives_the_key_back() {
    let (links, from) = FrameLinks::with_stack(3).unwrap();
    let to = FrameStack::new();
    for expected in [Ok(()), Ok(()), Err(2)] {
        let key = from.pop(&links).unwrap();
        assert_eq!(to.push(&links, key, 2).map_err(|key| key.index()), expected);
    }
    assert_eq!(to.len(&links), 2);
    let (links, from) = FrameLinks::with_stack(1).unwrap();
    let key = from.pop(&links).unwrap();
    assert!(FrameStack::new().push(&links, key, 0).is_err(), "no room at all");
}

#[test]
fn a_chain_gives_its_frames_back_in_reverse() {
    let (links, stack) = FrameLinks::with_stack(3).unwrap();
    let mut chain = None;
    while let Some(key) = stack.pop(&links) {
        chain = Some(links.chain(key, chain));
    }
    let mut order = Vec::new();
    while let Some(first) = chain {
        let (key, rest) = links.unchain(first);
        order.push(key.index());
        chain = rest;
    }
    assert_eq!(order, [2, 1, 0]);
}

/// A-P2, the count: four threads push and pop on two stacks that share links, and a fifth looks.
#[test]
fn the_count_is_never_above_the_bound_and_no_frame_is_on_two_hands() {
    const FRAMES: u32 = 12;
    const MOST: u32 = 5;
    let (links, vacant) = FrameLinks::with_stack(FRAMES).unwrap();
    let reserve = FrameStack::new();
    let holders: Vec<AtomicU32> = (0..FRAMES).map(|_| AtomicU32::new(0)).collect();
    let is_over = AtomicBool::new(false);
    let samples = AtomicU32::new(0);
    std::thread::scope(|scope| {
        let workers: Vec<_> = (1..=4)
            .map(|me| {
                let (links, vacant, reserve, holders) = (&links, &vacant, &reserve, &holders);
                scope.spawn(move || {
                    for _ in 0..200_000 {
                        let Some(key) = reserve.pop(links).or_else(|| vacant.pop(links)) else {
                            continue;
                        };
                        let holder = &holders[key.index() as usize];
                        assert_eq!(holder.swap(me, StdOrdering::Relaxed), 0, "nobody has it");
                        assert_eq!(holder.swap(0, StdOrdering::Relaxed), me, "only I had it");
                        if let Err(key) = reserve.push(links, key, MOST) {
                            vacant.push(links, key, FRAMES).unwrap();
                        }
                    }
                })
            })
            .collect();
        scope.spawn(|| {
            while !is_over.load(StdOrdering::Relaxed) {
                assert!(reserve.len(&links) <= MOST);
                samples.fetch_add(1, StdOrdering::Relaxed);
            }
        });
        for worker in workers {
            worker.join().unwrap();
        }
        is_over.store(true, StdOrdering::Relaxed);
    });
    assert_eq!(reserve.len(&links) + vacant.len(&links), FRAMES);
    let mut all = indexes(&reserve, &links);
    all.extend(indexes(&vacant, &links));
    all.sort_unstable();
    assert_eq!(all, (0..FRAMES).collect::<Vec<_>>());
    assert!(samples.load(StdOrdering::Relaxed) > 0);
}

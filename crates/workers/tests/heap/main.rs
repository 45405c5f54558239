//! Gives the heap back, in a process of its own: what is resident is that of all threads.
#![allow(clippy::unwrap_used, reason = "a test ends at what it did not expect")]
#![cfg(all(target_os = "linux", target_env = "gnu"))]

use std::fs;
use std::sync::{Mutex, PoisonError};
use std::thread;

/// One test at a time: what is resident is that of both.
static ALONE: Mutex<()> = Mutex::new(());

/// Bytes of this process that lie in memory.
fn resident_bytes() -> usize {
    let numbers = fs::read_to_string("/proc/self/statm").unwrap();
    let pages = numbers.split(' ').nth(1).unwrap().parse::<usize>().unwrap();
    pages * rustix::param::page_size()
}

#[test]
fn what_was_freed_between_things_that_are_used_goes_back() {
    const BYTES: usize = 16 << 10;
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let mut all: Vec<Option<Vec<u8>>> = (0..4096).map(|_| Some(vec![1; BYTES])).collect();
    // One of 64 stays, so that no large piece is free at the end of the heap.
    for (number, one) in all.iter_mut().enumerate() {
        if number % 64 != 63 {
            *one = None;
        }
    }
    let before = resident_bytes();
    ferrofs_workers::memory::trim_heap();
    let given = before.saturating_sub(resident_bytes());
    assert!(given > 40 << 20, "{given} of {before} bytes");
    assert!(all.iter().flatten().all(|one| one.iter().all(|byte| *byte == 1)));
}

#[test]
fn large_blocks_leave_no_gaps_in_the_heap_of_a_thread() {
    const BYTES: usize = 2 << 20;
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    ferrofs_workers::memory::set_mmap_threshold();
    // What would have the library put later ones among the small ones.
    drop(std::hint::black_box(vec![1_u8; 16 << 20]));
    let kept = thread::Builder::new().spawn(|| {
        // After each large block one small one, which stays: the end of the heap never comes down.
        let all: Vec<_> = (0..16).map(|_| (vec![1_u8; BYTES], vec![1_u8; 1000])).collect();
        let before = resident_bytes();
        let (large, small): (Vec<_>, Vec<_>) = all.into_iter().unzip();
        drop(large);
        let given = before.saturating_sub(resident_bytes());
        assert!(given > 15 * BYTES, "{given} of {before} bytes");
        small
    });
    assert_eq!(kept.unwrap().join().unwrap().len(), 16);
}

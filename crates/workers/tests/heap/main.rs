//! Gives the heap back, in a process of its own: what is resident is that of all threads.
#![allow(clippy::unwrap_used, reason = "a test ends at what it did not expect")]
#![cfg(all(target_os = "linux", target_env = "gnu"))]

use std::fs;

/// Bytes of this process that lie in memory.
fn resident_bytes() -> usize {
    let numbers = fs::read_to_string("/proc/self/statm").unwrap();
    let pages = numbers.split(' ').nth(1).unwrap().parse::<usize>().unwrap();
    pages * rustix::param::page_size()
}

#[test]
fn what_was_freed_between_things_that_are_used_goes_back() {
    const BYTES: usize = 16 << 10;
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

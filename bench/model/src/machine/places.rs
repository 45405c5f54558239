//! Where values lie in simulated memory. Most lie where they really do; arrays that ask for it get a
//! place of their own. Called by the machine with every access.

use super::directory::LINE_BYTES;

/// The first line of arrays that got a place; no address of a process is so high.
const ARRAYS: u64 = 1 << 59;
/// The first line of those that only have a number.
const NUMBERED: u64 = 1 << 60;
/// What lies in the first line before an array.
const HEADER_BYTES: usize = 16;

#[derive(Debug)]
struct Array {
    address: usize,
    bytes: usize,
    line: u64,
}

/// The arrays that have a place.
#[derive(Debug, Default)]
pub(super) struct Places {
    arrays: Vec<Array>,
    /// Lines that are given away.
    used: u64,
}

/// A line that has a number but no address.
pub(super) const fn numbered(number: u64) -> u64 {
    NUMBERED + number
}

impl Places {
    pub(super) fn add(&mut self, address: usize, bytes: usize) {
        self.arrays.push(Array { address, bytes, line: ARRAYS + self.used });
        self.used += (HEADER_BYTES + bytes).div_ceil(LINE_BYTES) as u64;
    }

    /// The first line of a value and their number.
    pub(super) fn lines(&self, address: usize, bytes: usize) -> (u64, u64) {
        let inside =
            |array: &&Array| (array.address..array.address + array.bytes).contains(&address);
        let (base, start) = match self.arrays.iter().find(inside) {
            Some(array) => (array.line, HEADER_BYTES + address - array.address),
            None => ((address / LINE_BYTES) as u64, address % LINE_BYTES),
        };
        let first = start / LINE_BYTES;
        let last = (start + bytes.max(1) - 1) / LINE_BYTES;
        (base + first as u64, (last - first + 1) as u64)
    }
}

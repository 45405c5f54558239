//! What an input may cost: a global allocator that counts what a thread holds, and the CPU time of the thread. Every
//! target runs through [`Target::run`](crate::Target::run), which uses both; bodies do not know them.
//!
//! Time is counted in units of a fixed computation that runs once in each process, since a sanitizer makes the body and
//! the computation slower alike.
#![allow(unsafe_code, reason = "a global allocator is an unsafe trait")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::OnceLock;
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// What one input may take: so much for any input, and so much for each of its bytes.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Bytes on the heap at a time.
    pub heap_bytes: usize,
    /// The same for each byte of the input.
    pub heap_bytes_a_byte: usize,
    /// CPU time, in units.
    pub time_units: u32,
    /// The same for each KiB of the input.
    pub time_units_a_kib: u32,
}

/// Counts what each thread has allocated and not freed; a block that another thread frees is counted there.
struct CountingAllocator;

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

thread_local! {
    static HELD: Cell<isize> = const { Cell::new(0) };
    static PEAK: Cell<isize> = const { Cell::new(0) };
}

fn count(bytes: isize) {
    // A thread that is ending has no counters any more, and is not measured.
    let _ended = HELD.try_with(|held| {
        held.set(held.get().wrapping_add(bytes));
        PEAK.with(|peak| peak.set(peak.get().max(held.get())));
    });
}

fn signed(bytes: usize) -> isize {
    isize::try_from(bytes).unwrap_or(isize::MAX)
}

// SAFETY: every method passes its arguments to `System`, which keeps the contract, and returns what it returns.
// Counting allocates nothing: the counters are constants of their thread without a destructor.
unsafe impl GlobalAlloc for CountingAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(signed(layout.size()));
        // SAFETY: the caller's layout, unchanged.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count(signed(layout.size()));
        // SAFETY: the caller's layout, unchanged.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, bytes: usize) -> *mut u8 {
        count(signed(bytes).wrapping_sub(signed(layout.size())));
        // SAFETY: the caller's block, which `System` has allocated with this layout.
        unsafe { System.realloc(block, layout, bytes) }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        count(signed(layout.size()).wrapping_neg());
        // SAFETY: the caller's block, which `System` has allocated with this layout.
        unsafe { System.dealloc(block, layout) }
    }
}

/// The CPU time of the calling thread.
fn thread_time() -> Duration {
    Duration::try_from(clock_gettime(ClockId::ThreadCPUTime)).unwrap_or_default()
}

/// Bytes of the computation that is the unit of time.
const UNIT_BYTES: usize = 1 << 20;

/// The unit: a hash of a mebibyte, byte by byte. About a millisecond without a sanitizer.
fn unit() -> Duration {
    static UNIT: OnceLock<Duration> = OnceLock::new();
    *UNIT.get_or_init(|| {
        let bytes = vec![0x5A_u8; UNIT_BYTES];
        let began = thread_time();
        let mut hash = 0xCBF2_9CE4_8422_2325_u64;
        for byte in &bytes {
            hash = (hash ^ u64::from(std::hint::black_box(*byte))).wrapping_mul(0x100_0000_01B3);
        }
        std::hint::black_box(hash);
        (thread_time() - began).max(Duration::from_micros(500))
    })
}

/// Runs `body` and panics if it takes more than `limits` allow for an input of `input_bytes`.
pub(crate) fn run(limits: &Limits, input_bytes: usize, body: impl FnOnce()) {
    let unit = unit();
    let held = HELD.get();
    PEAK.set(held);
    let began = thread_time();
    body();
    let time = thread_time() - began;
    let heap_bytes = usize::try_from(PEAK.get().wrapping_sub(held)).unwrap_or(0);
    let most = limits.heap_bytes + limits.heap_bytes_a_byte * input_bytes;
    assert!(
        heap_bytes <= most,
        "{heap_bytes} bytes on the heap for {input_bytes} of input: {most} are allowed"
    );
    let kib = u32::try_from(input_bytes.div_ceil(1024)).unwrap_or(u32::MAX);
    let units = limits.time_units.saturating_add(limits.time_units_a_kib.saturating_mul(kib));
    assert!(
        time <= unit * units,
        "{time:?} of CPU time for {input_bytes} bytes of input: {units} times {unit:?} are allowed"
    );
}

#[cfg(test)]
mod tests {
    use super::{Limits, run};

    const LIMITS: Limits =
        Limits { heap_bytes: 1000, heap_bytes_a_byte: 10, time_units: 100, time_units_a_kib: 1 };

    #[test]
    fn what_fits_passes() {
        run(&LIMITS, 100, || drop(vec![1_u8; 1900]));
    }

    #[test]
    #[should_panic(expected = "bytes on the heap for 100 of input: 2000 are allowed")]
    fn a_byte_too_many_on_the_heap_is_noticed() {
        run(&LIMITS, 100, || drop((vec![1_u8; 1000], vec![1_u8; 1001])));
    }

    #[test]
    #[should_panic(expected = "of CPU time for 0 bytes of input")]
    fn an_endless_computation_is_noticed() {
        let limits = Limits { time_units: 0, ..LIMITS };
        run(&limits, 0, || {
            let mut number = 1_u64;
            for step in 0..100_000_u64 {
                number = std::hint::black_box(number.wrapping_mul(step | 1));
            }
        });
    }
}

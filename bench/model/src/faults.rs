//! A job that faults memory in, chunk by chunk, on simulated CPUs: the rule of the chunks, their cursor
//! and the helpers are those of ferrofs-workers; what the kernel does for a chunk is a stated cost.
//! Called by the `model jobs` experiment.

use std::convert::Infallible;

use anyhow::Result;

use crate::jobs::{HelperBudget, ParallelFor};
use crate::machine::{self, Access, Costs, Shape, picoseconds};

/// Bytes of a page.
pub const PAGE_BYTES: u64 = 4096;
/// What `Mapping::prefault` takes for the least chunk and for the unit of boundaries.
pub const CHUNK_BYTES: u64 = 128 << 20;

/// What the kernel does.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Kernel {
    /// A page for one thread alone, without what follows, in nanoseconds.
    pub page: f64,
    /// Pages that a CPU takes from its zone at a time: 63 is the usual batch of Linux's lists of a
    /// CPU.
    pub batch: u32,
    /// How long the zone's lock is held for a batch, in nanoseconds.
    pub hold: f64,
    /// What the memory of a socket takes, in GB a second; zeroing a page writes it once.
    pub bandwidth: f64,
}

/// What the kernel does for a fault, on one socket of the mail's machine.
pub const KERNEL: Kernel = Kernel { page: 250.0, batch: 63, hold: 1000.0, bandwidth: 150.0 };

/// How a job went.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Faulting {
    /// Simulated time, in nanoseconds.
    pub nanoseconds: f64,
    /// Threads that took part.
    pub threads: usize,
    /// Chunks.
    pub chunks: u64,
    /// Lines that went from one CPU to another.
    pub moves: u64,
}

/// Faults so many bytes in on up to `threads` threads. Memory comes from the socket of who touches it.
///
/// # Errors
/// When the machine is impossible.
pub fn run(
    shape: Shape,
    costs: Costs,
    kernel: Kernel,
    bytes: u64,
    threads: usize,
) -> Result<Faulting> {
    machine::run(shape, costs, move || {
        let helpers = HelperBudget::new(threads);
        let begin = machine::moment();
        let job = ParallelFor::over(0..bytes).align(CHUNK_BYTES).min_chunk_size(CHUNK_BYTES);
        let Ok(report) = job.max_threads(threads).helpers(&helpers).run(|chunk| {
            kernel.populate(shape, chunk.end - chunk.start);
            Ok::<(), Infallible>(())
        });
        let (nanoseconds, counts, _) = machine::moment().since(&begin);
        let (threads, chunks) = (report.threads, report.chunks);
        Faulting { nanoseconds, threads, chunks, moves: counts.moves }
    })
}

impl Kernel {
    /// Batch after batch: pages from the zone, under its lock, then the pages themselves.
    fn populate(&self, shape: Shape, bytes: u64) {
        let socket = shape.socket(machine::current_cpu());
        let (zone, memory) = (2 * socket, 2 * socket + 1);
        let mut left = bytes.div_ceil(PAGE_BYTES);
        while left > 0 {
            let pages = left.min(self.batch.max(1).into());
            left -= pages;
            machine::access_line(zone as u64, Access::Update);
            machine::serve(zone, picoseconds(self.hold), 0);
            let work = picoseconds(self.page * pages as f64);
            // 1 GB a second is a byte a nanosecond.
            let transfer = (pages * PAGE_BYTES) as f64 / self.bandwidth.max(f64::MIN_POSITIVE);
            machine::serve(memory, picoseconds(transfer), work);
        }
    }
}

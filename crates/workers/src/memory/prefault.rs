//! Faulting a mapping in before it is used, on several threads: the analogue of the kernel's deferred
//! initialisation of pages. It owns the rule of the chunks and nothing else. Called at start-up, by who
//! wants a large mapping without paying at its first use.

use super::mapping::{HUGE_PAGE_BYTES, Mapping, PopulateMethod, PopulateReport};
use crate::Error;
use crate::jobs::ParallelFor;

/// The least that is worth a thread, and the unit of the boundaries: one call, some 3 ms. A multiple of a huge page.
const PIECE_BYTES: u64 = 8 << 20;
const _: () = assert!(PIECE_BYTES.is_multiple_of(HUGE_PAGE_BYTES as u64));

/// Pieces that each thread gets of a long mapping: with padata's four the last one, of 80 ms, kept the others waiting.
const PIECES_A_THREAD: u64 = 32;

/// Faulting in `length` bytes, on as many threads as there are CPUs.
pub(super) fn job_over(length: u64) -> ParallelFor<'static> {
    ParallelFor::over(0..length)
        .align(PIECE_BYTES)
        .min_chunk_size(PIECE_BYTES)
        .chunks_per_thread(PIECES_A_THREAD)
}

/// How a mapping was faulted in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct PrefaultReport {
    /// Threads that took part, the caller among them.
    pub threads: u32,
    /// Calls to the system, or chunks that were written to.
    pub chunks: u64,
    /// How: [`PopulateMethod::Touch`] says that each page was written to.
    pub populated: PopulateMethod,
}

impl Mapping {
    /// Faults everything in on up to `threads` threads, the caller among them, in chunks of 8 MiB or
    /// more; contents stay. On kernels older than 5.14, and while threads are being started, each page is written to.
    ///
    /// # Errors
    ///
    /// [`OutOfMemory`](crate::ErrorKind::OutOfMemory) when the system has not so much: what came
    /// stays resident; [`System`](crate::ErrorKind::System) otherwise.
    pub fn prefault(&mut self, threads: usize) -> Result<PrefaultReport, Error> {
        self.prefault_by(job_over(self.length() as u64).max_threads(threads))
    }

    /// The same for the first `length` bytes, on as many threads as there are CPUs.
    pub(super) fn prefault_first(&mut self, length: u64) -> Result<PrefaultReport, Error> {
        let length = length.min(self.length() as u64);
        self.prefault_by(job_over(length))
    }

    fn prefault_by(&mut self, job: ParallelFor<'_>) -> Result<PrefaultReport, Error> {
        let PopulateReport { report, populated, .. } = self.populate_by(job)?;
        Ok(PrefaultReport {
            threads: u32::try_from(report.threads).unwrap_or(u32::MAX),
            chunks: report.chunks,
            populated,
        })
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test may fail where it stands")]

    use super::*;
    use crate::memory::PageSize;

    #[test]
    fn everything_is_resident_whatever_the_pieces() {
        let page = rustix::param::page_size();
        for (pages, piece, threads) in
            [(1, 1, 1), (300, 16, 2), (301, 16, 4), (64, 64, 4), (5, 1, 0)]
        {
            let mut mapping = Mapping::anonymous(pages * page, PageSize::Small).unwrap();
            let piece = (piece * page) as u64;
            let job =
                ParallelFor::over(0..mapping.length() as u64).align(piece).min_chunk_size(piece);
            let report = mapping.prefault_by(job.max_threads(threads)).unwrap();
            println!("{report:?}");
            assert!(report.threads as usize <= threads.max(1) && report.chunks >= 1);
            assert_eq!(mapping.resident_pages(), pages);
            assert!(mapping.bytes().iter().all(|byte| *byte == 0));
        }
    }

    #[test]
    fn a_small_mapping_is_one_call_on_the_caller() {
        let mut mapping = Mapping::anonymous(8 << 20, PageSize::Huge).unwrap();
        let report = mapping.prefault(8).unwrap();
        assert_eq!((report.threads, report.chunks), (1, 1));
    }
}

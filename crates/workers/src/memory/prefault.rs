//! Faulting a mapping in with several threads: a job over its bytes, each piece one call. It owns only
//! the size of the pieces; start-up calls it for memory that is to be there before work begins.

use super::mapping::{Mapping, Populated};
use crate::Error;
use crate::jobs::Job;

/// No piece is smaller, and every boundary is a multiple of it: the section of x86-64 by which the
/// kernel's own initialisation of memory is split, 128 MiB.
const PIECE_BYTES: u64 = 128 << 20;

impl Mapping {
    /// Faults everything in, on this thread and as many helpers as `threads` and the process's budget
    /// allow; less than 256 MiB is not worth a helper. A kernel older than 5.14 has no call for it:
    /// then this thread alone sets the first byte of each page to zero.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::OutOfMemory`](crate::ErrorKind::OutOfMemory) when the system has none;
    /// [`ErrorKind::System`](crate::ErrorKind::System) otherwise. What is resident by then stays so.
    pub fn prefault(&mut self, threads: usize) -> Result<Populated, Error> {
        let job = Job::over(0..self.length() as u64)
            .align(PIECE_BYTES)
            .min_chunk(PIECE_BYTES)
            .max_threads(threads.max(1));
        let done = job.run(|piece| {
            // Both fit: no mapping is longer than the address space.
            let offset = usize::try_from(piece.start).unwrap_or(usize::MAX);
            let length = usize::try_from(piece.end - piece.start).unwrap_or(usize::MAX);
            match self.populate_range(offset, length) {
                Ok(Populated::ByCall) => Ok(()),
                Ok(Populated::NotByCall) => Err(None),
                Err(error) => Err(Some(error)),
            }
        });
        match done {
            Ok(_) => Ok(Populated::ByCall),
            Err(Some(error)) => Err(error),
            Err(None) => self.populate(),
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use crate::memory::{Mapping, Pages, Populated};

    #[test]
    fn every_thread_count_makes_everything_resident() {
        for threads in [0, 1, 2, 64] {
            // Three pieces, the last of them short.
            let mut mapping = Mapping::anonymous((257 << 20) + 4096, Pages::Small).unwrap();
            let populated = mapping.prefault(threads).unwrap();
            if populated == Populated::ByCall {
                let resident = mapping.resident_pages() * rustix::param::page_size();
                assert_eq!(resident, mapping.length(), "{threads} threads");
            }
        }
    }
}

//! What the threads of one running job share: the number of the next chunk, the first failure, and,
//! where somebody may want to undo, which chunks are done. It starts no thread; [`ParallelFor`](super::ParallelFor)
//! gives it to every thread that takes part.
//!
//! docs/workers.md, protocol J.

use std::ops::Range;

use super::split::Chunks;
use super::task_failure::TaskFailure;
use crate::cache_padded::CachePadded;
use crate::sync::{AtomicBool, AtomicU64, Mutex, Ordering, lock};

/// Whether completed chunks are remembered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Record {
    /// One mark a chunk, for an undo.
    Completed,
    /// No memory is taken.
    Nothing,
}

/// The state of a running job.
#[derive(Debug)]
pub(super) struct ChunkCursor<E> {
    chunks: Chunks,
    /// The number of the next chunk. At or above the number of chunks nothing is left, be it that
    /// all were taken or that the job was stopped.
    next: CachePadded<AtomicU64>,
    failure: Mutex<Option<TaskFailure<E>>>,
    /// A mark a chunk, or none at all.
    completed: Vec<AtomicBool>,
}

impl<E> ChunkCursor<E> {
    pub(super) fn new(chunks: Chunks, record: Record) -> Self {
        // The number of chunks is bounded by the threads: see `Chunks::count`.
        let marks = match record {
            Record::Completed => chunks.count(),
            Record::Nothing => 0,
        };
        Self {
            chunks,
            next: CachePadded(AtomicU64::new(0)),
            failure: Mutex::new(None),
            completed: (0..marks).map(|_| AtomicBool::new(false)).collect(),
        }
    }

    /// J1. Takes the next chunk; none when all are taken or the job was stopped.
    ///
    /// A thread ends with its first "none", so `next` passes the number of chunks by at most the
    /// number of threads and cannot wrap.
    pub(super) fn take(&self) -> Option<(u64, Range<u64>)> {
        // Relaxed: the number guards no data. That each goes out once, and none after J3, is the total
        // order of the changes of this one word, with the swap in `fail`.
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        self.chunks.chunk(number).map(|range| (number, range))
    }

    /// J2. Remembers that a chunk is done, where that was asked for.
    pub(super) fn complete(&self, number: u64) {
        let mark = usize::try_from(number).ok().and_then(|number| self.completed.get(number));
        if let Some(mark) = mark {
            // Relaxed: read in `completed` only after the threads were joined, which orders it.
            mark.store(true, Ordering::Relaxed);
        }
    }

    /// J3. Stops the job: no chunk goes out after this. The first error stays; a panic replaces an
    /// error, since a defect must not hide behind it.
    pub(super) fn fail(&self, failure: TaskFailure<E>) {
        // Relaxed: see `take`. The failure itself is handed over by the lock.
        self.next.swap(self.chunks.count(), Ordering::Relaxed);
        let mut first = lock(&self.failure);
        match (&*first, &failure) {
            (None, _) | (Some(TaskFailure::Error(_)), TaskFailure::Panic(_)) => {
                *first = Some(failure)
            }
            (Some(_), _) => {}
        }
    }

    /// J4. Takes the failure out. Only once every thread of the job was joined.
    pub(super) fn take_failure(&self) -> Option<TaskFailure<E>> {
        lock(&self.failure).take()
    }

    /// J4. The completed chunks in ascending order. Only once every thread of the job was joined.
    pub(super) fn completed(&self) -> impl Iterator<Item = Range<u64>> + '_ {
        let marked = |mark: &AtomicBool| mark.load(Ordering::Relaxed);
        (0_u64..)
            .zip(&self.completed)
            .filter(move |(_, mark)| marked(mark))
            .filter_map(|(number, _)| self.chunks.chunk(number))
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::jobs::split::{CHUNKS_PER_THREAD, SplitParameters};

    fn chunk_cursor(size: u64) -> ChunkCursor<&'static str> {
        let shape =
            SplitParameters { start: 0, end: size, align: 1, min_chunk_size: 1, max_threads: 2 };
        ChunkCursor::new(shape.chunks(2, CHUNKS_PER_THREAD), Record::Completed)
    }

    #[test]
    fn nothing_goes_out_after_a_failure() {
        let chunk_cursor = chunk_cursor(8);
        assert_eq!(chunk_cursor.take(), Some((0, 0..1)));
        chunk_cursor.fail(TaskFailure::Error("first"));
        assert_eq!((chunk_cursor.take(), chunk_cursor.take()), (None, None));
    }

    #[test]
    fn the_first_error_stays_and_a_panic_replaces_it() {
        let chunk_cursor = chunk_cursor(8);
        chunk_cursor.fail(TaskFailure::Error("first"));
        chunk_cursor.fail(TaskFailure::Error("second"));
        chunk_cursor.fail(TaskFailure::Panic(Box::new(7_u32)));
        chunk_cursor.fail(TaskFailure::Error("third"));
        chunk_cursor.fail(TaskFailure::Panic(Box::new(8_u32)));
        match chunk_cursor.take_failure() {
            Some(TaskFailure::Panic(payload)) => {
                assert_eq!(payload.downcast_ref::<u32>(), Some(&7))
            }
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn only_completed_pieces_are_listed_and_in_order() {
        let chunk_cursor = chunk_cursor(8);
        for number in [6, 1, 3] {
            chunk_cursor.complete(number);
        }
        chunk_cursor.complete(u64::MAX);
        assert_eq!(chunk_cursor.completed().collect::<Vec<_>>(), [1..2, 3..4, 6..7]);
    }
}

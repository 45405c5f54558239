//! What the threads of one running job share: the number of the next piece, the first failure, and,
//! where somebody may want to undo, which pieces are done. It starts no thread; [`Job`](super::Job)
//! gives it to every thread that takes part.
//!
//! docs/workers.md, protocol J.

use std::ops::Range;

use super::chunk::Pieces;
use super::failure::Failure;
use crate::line::Line;
use crate::sync::{AtomicBool, AtomicU64, Mutex, Ordering, lock};

/// Whether completed pieces are remembered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Record {
    /// One mark a piece, for an undo.
    Completed,
    /// No memory is taken.
    Nothing,
}

/// The state of a running job.
#[derive(Debug)]
pub(super) struct Tickets<E> {
    pieces: Pieces,
    /// The number of the next piece. At or above the number of pieces nothing is left, be it that
    /// all were taken or that the job was stopped.
    next: Line<AtomicU64>,
    failure: Mutex<Option<Failure<E>>>,
    /// A mark a piece, or none at all.
    completed: Vec<AtomicBool>,
}

impl<E> Tickets<E> {
    pub(super) fn new(pieces: Pieces, record: Record) -> Self {
        // The number of pieces is bounded by the threads: see `Pieces::count`.
        let marks = match record {
            Record::Completed => pieces.count(),
            Record::Nothing => 0,
        };
        Self {
            pieces,
            next: Line(AtomicU64::new(0)),
            failure: Mutex::new(None),
            completed: (0..marks).map(|_| AtomicBool::new(false)).collect(),
        }
    }

    /// J1. Takes the next piece; none when all are taken or the job was stopped.
    ///
    /// A thread ends with its first "none", so `next` passes the number of pieces by at most the
    /// number of threads and cannot wrap.
    pub(super) fn take(&self) -> Option<(u64, Range<u64>)> {
        // Relaxed: a ticket guards no data. That each goes out once, and none after J3, is the total
        // order of the changes of this one word, with the swap in `fail`.
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        self.pieces.piece(number).map(|range| (number, range))
    }

    /// J2. Remembers that a piece is done, where that was asked for.
    pub(super) fn complete(&self, number: u64) {
        let mark = usize::try_from(number).ok().and_then(|number| self.completed.get(number));
        if let Some(mark) = mark {
            // Relaxed: read in `completed` only after the threads were joined, which orders it.
            mark.store(true, Ordering::Relaxed);
        }
    }

    /// J3. Stops the job: no piece goes out after this. The first error stays; a panic replaces an
    /// error, since a defect must not hide behind it.
    pub(super) fn fail(&self, failure: Failure<E>) {
        // Relaxed: see `take`. The failure itself is handed over by the lock.
        self.next.swap(self.pieces.count(), Ordering::Relaxed);
        let mut first = lock(&self.failure);
        match (&*first, &failure) {
            (None, _) | (Some(Failure::Error(_)), Failure::Panic(_)) => *first = Some(failure),
            (Some(_), _) => {}
        }
    }

    /// J4. Takes the failure out. Only once every thread of the job was joined.
    pub(super) fn take_failure(&self) -> Option<Failure<E>> {
        lock(&self.failure).take()
    }

    /// J4. The completed pieces in ascending order. Only once every thread of the job was joined.
    pub(super) fn completed(&self) -> impl Iterator<Item = Range<u64>> + '_ {
        let marked = |mark: &AtomicBool| mark.load(Ordering::Relaxed);
        (0_u64..)
            .zip(&self.completed)
            .filter(move |(_, mark)| marked(mark))
            .filter_map(|(number, _)| self.pieces.piece(number))
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::jobs::chunk::{PIECES_A_THREAD, Shape};

    fn tickets(size: u64) -> Tickets<&'static str> {
        let shape = Shape { start: 0, end: size, align: 1, min_chunk: 1, max_threads: 2 };
        Tickets::new(shape.pieces(2, PIECES_A_THREAD), Record::Completed)
    }

    #[test]
    fn nothing_goes_out_after_a_failure() {
        let tickets = tickets(8);
        assert_eq!(tickets.take(), Some((0, 0..1)));
        tickets.fail(Failure::Error("first"));
        assert_eq!((tickets.take(), tickets.take()), (None, None));
    }

    #[test]
    fn the_first_error_stays_and_a_panic_replaces_it() {
        let tickets = tickets(8);
        tickets.fail(Failure::Error("first"));
        tickets.fail(Failure::Error("second"));
        tickets.fail(Failure::Panic(Box::new(7_u32)));
        tickets.fail(Failure::Error("third"));
        tickets.fail(Failure::Panic(Box::new(8_u32)));
        match tickets.take_failure() {
            Some(Failure::Panic(payload)) => assert_eq!(payload.downcast_ref::<u32>(), Some(&7)),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn only_completed_pieces_are_listed_and_in_order() {
        let tickets = tickets(8);
        for number in [6, 1, 3] {
            tickets.complete(number);
        }
        tickets.complete(u64::MAX);
        assert_eq!(tickets.completed().collect::<Vec<_>>(), [1..2, 3..4, 6..7]);
    }
}

//! One contiguous piece of resident memory with its charge. It owns both and their order: charged before
//! it is mapped, unmapped before the charge ends. It knows nothing of leases; `Scratch` and `BufferPool` cut
//! theirs out of blocks.

use std::time::{Duration, Instant};

use super::alloc_policy::AllocPolicy;
use super::budget::{Budget, Charge};
use super::mapping::{Mapping, PageSize, PopulateMethod, touch};
use super::prefault::job_over;
use super::wait_queue::WaitPriority;
use crate::{Error, ErrorKind};

/// Resident memory of which one lease is cut.
///
/// In this order: what is given back to the budget is unmapped by then.
#[derive(Debug)]
pub(super) struct Block {
    pub(super) mapping: Mapping,
    charge: Charge,
}

/// Lengths double up to this, so that small blocks are few sizes and rarely grow; beyond it doubling would
/// charge far more than is asked.
const SIZE_CLASS_STEP_BYTES: usize = 1 << 20;

/// The length of a block for a lease.
pub(super) fn size_class(length: usize) -> Result<usize, Error> {
    let size_class = if length <= SIZE_CLASS_STEP_BYTES {
        length.max(rustix::param::page_size()).checked_next_power_of_two()
    } else {
        length.checked_next_multiple_of(SIZE_CLASS_STEP_BYTES)
    };
    size_class.filter(|length| isize::try_from(*length).is_ok()).ok_or(
        Error::new(ErrorKind::OutOfMemory, "bytes in one piece")
            .with_amount(length as u64, isize::MAX as u64),
    )
}

impl Block {
    /// A new block of `length` bytes, charged and resident.
    pub(super) fn new(budget: &Budget, length: usize) -> Result<Self, Error> {
        let charge = budget.charge(length as u64, AllocPolicy::MustSucceed)?;
        Self::of_charged(budget, charge, length)
    }

    /// A new block of `length` bytes, which `charge` stands for. It waits while the system refuses.
    pub(super) fn of_charged(
        budget: &Budget,
        charge: Charge,
        length: usize,
    ) -> Result<Self, Error> {
        let mapping = retry_until_available(budget, length, || map_resident(budget, length))?;
        Ok(Self { mapping, charge })
    }

    /// The same without waiting: a refusal by the system is the answer. It is faulted in on up to `threads`
    /// threads; with it comes the time that they took beyond the caller's.
    pub(super) fn of_charged_now(
        budget: &Budget,
        charge: Charge,
        length: usize,
        threads: usize,
    ) -> Result<(Self, Duration), Error> {
        // On an error it ends before `charge`, which came before it.
        let mut mapping = budget.system().map(length, PageSize::Small)?;
        let job = job_over(length as u64).max_threads(threads);
        let begin = Instant::now();
        let taken = budget.system().populate_by(&mut mapping, job)?;
        Ok((Self { mapping, charge }, taken.saturating_sub(begin.elapsed())))
    }

    /// Takes the first `length` bytes out of this block into one of their own, with their share of the
    /// charge; none unless something is left of both.
    pub(super) fn split(&mut self, length: usize) -> Option<Self> {
        debug_assert_eq!(self.mapping.length() as u64, self.charge.bytes(), "a block is charged");
        // In this order: were a share missing, its bytes would be unmapped and not uncharged.
        let mapping = self.mapping.split(length)?;
        let charge = self.charge.split(length as u64)?;
        Some(Self { mapping, charge })
    }

    /// Grows to `length` bytes; on an error it is as it was.
    pub(super) fn grow(&mut self, budget: &Budget, length: usize) -> Result<(), Error> {
        let before = self.mapping.length();
        let more = (length - before) as u64;
        self.charge.grow(more, AllocPolicy::MustSucceed)?;
        let mapping = &mut self.mapping;
        let grown = retry_until_available(budget, length, || {
            budget.system().resize(mapping, length)?;
            make_resident(budget, mapping, before).inspect_err(|_| {
                // Cutting the end off a mapping needs no memory.
                let cut = mapping.resize(before);
                debug_assert_eq!(cut, Ok(()), "a mapping can be cut");
            })
        });
        if grown.is_err() {
            self.charge.shrink(more);
        }
        grown
    }
}

/// Tries until the system gives what it may refuse for a moment, or gives up.
fn retry_until_available<T>(
    budget: &Budget,
    length: usize,
    mut attempt: impl FnMut() -> Result<T, Error>,
) -> Result<T, Error> {
    let mut refusal = match attempt() {
        Ok(made) => return Ok(made),
        Err(error) if error.kind() != ErrorKind::OutOfMemory => return Err(error),
        Err(error) => error,
    };
    // Its bytes are charged already, so others may be waiting for them.
    let made = budget.wait_for(length as u64, WaitPriority::Holder, || {
        attempt().map_err(|error| refusal = error).ok()
    });
    made.ok_or(refusal)
}

/// A new mapping, all of it resident.
fn map_resident(budget: &Budget, length: usize) -> Result<Mapping, Error> {
    let mut mapping = budget.system().map(length, PageSize::Small)?;
    make_resident(budget, &mut mapping, 0)?;
    Ok(mapping)
}

/// Faults everything from `offset` on in.
fn make_resident(budget: &Budget, mapping: &mut Mapping, offset: usize) -> Result<(), Error> {
    let length = mapping.length() - offset;
    if budget.system().populate(mapping, offset, length)? == PopulateMethod::Touch {
        touch(&mut mapping.bytes_mut()[offset..]);
    }
    Ok(())
}

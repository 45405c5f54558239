//! Charged memory in one piece, and the free lists of such blocks by size class. It owns a block's
//! mapping and charge, and their order: charged before it is mapped, unmapped before the charge
//! ends. It knows nothing of leases; `BufferPool` makes them of blocks.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use super::budget::{Budget, Charge};
use super::mapping::{Mapping, PageSize, PopulateMethod, prefault_job, touch};
use super::wait_queue::WaitPriority;
use crate::{Error, ErrorKind};

/// Size classes double up to this, so that small blocks have few lengths; above it they are
/// multiples of it, since doubling would charge far more than is needed.
const SIZE_CLASS_STEP_BYTES: usize = 1 << 20;

/// The length of a block for a lease of `length` bytes.
pub(super) fn size_class(length: usize) -> Result<usize, Error> {
    let rounded = if length <= SIZE_CLASS_STEP_BYTES {
        length.max(rustix::param::page_size()).checked_next_power_of_two()
    } else {
        length.checked_next_multiple_of(SIZE_CLASS_STEP_BYTES)
    };
    rounded.filter(|length| isize::try_from(*length).is_ok()).ok_or(
        Error::new(ErrorKind::OutOfMemory, "bytes in one piece")
            .with_amount(length as u64, isize::MAX as u64),
    )
}

/// Resident memory with its charge.
///
/// What the budget gets back is unmapped by then.
#[derive(Debug)]
pub(super) struct Block {
    pub(super) mapping: Mapping,
    charge: Charge,
}

impl Block {
    /// A new block of `length` bytes, which `charge` counts. It waits while the system refuses.
    pub(super) fn new(budget: &Budget, charge: Charge, length: usize) -> Result<Self, Error> {
        let mapping = retry_until_available(budget, length, || map_resident(budget, length))?;
        Ok(Self { mapping, charge })
    }

    /// A new block that does not wait: it fails when the system refuses. It is faulted in on up to
    /// `threads` threads; with it comes the time that they took beyond the caller's.
    pub(super) fn try_new(
        budget: &Budget,
        charge: Charge,
        length: usize,
        threads: usize,
    ) -> Result<(Self, Duration), Error> {
        // On an error the mapping ends before `charge`, which came before it.
        let mut mapping = budget.system().map(length, PageSize::Small)?;
        let job = prefault_job(length as u64).max_threads(threads);
        let begin = Instant::now();
        let taken = budget.system().populate_by(&mut mapping, job)?;
        Ok((Self { mapping, charge }, taken.saturating_sub(begin.elapsed())))
    }

    /// Moves the first `length` bytes out of this block into a new one, with their share of the
    /// charge. None unless something is left of both.
    pub(super) fn split(&mut self, length: usize) -> Option<Self> {
        debug_assert_eq!(self.mapping.length() as u64, self.charge.bytes(), "a block is charged");
        // In this order: if a share of the charge were missing, its bytes would be unmapped and
        // stay charged, and not the other way round.
        let mapping = self.mapping.split(length)?;
        let charge = self.charge.split(length as u64)?;
        Some(Self { mapping, charge })
    }

    pub(super) fn length(&self) -> usize {
        self.mapping.length()
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        // Memory that the system does not take back stays charged.
        if !self.mapping.unmap() {
            self.charge.forget();
        }
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
    // The bytes are charged already, so others may be waiting for them: a holder.
    let made = budget.wait_for(length as u64, WaitPriority::Holder, || {
        attempt().map_err(|error| refusal = error).ok()
    });
    made.ok_or(refusal)
}

/// A new mapping, all of it resident.
fn map_resident(budget: &Budget, length: usize) -> Result<Mapping, Error> {
    let mut mapping = budget.system().map(length, PageSize::Small)?;
    let length = mapping.length();
    if budget.system().populate(&mapping, 0, length)? == PopulateMethod::Touch {
        touch(mapping.bytes_mut());
    }
    Ok(mapping)
}

/// The idle blocks of a buffer pool by size class, and how many bytes all of its blocks have.
#[derive(Debug, Default)]
pub(super) struct FreeLists {
    /// The classes that were ever leased, ascending. Few: powers of two and whole MiB.
    classes: Vec<SizeClass>,
    idle_bytes: u64,
    /// Of all blocks, idle or leased.
    resident_bytes: u64,
}

/// The blocks of one length.
#[derive(Debug)]
struct SizeClass {
    length: usize,
    /// Blocks of this class, idle or leased. `idle` has capacity for all of them, so that the end
    /// of a lease allocates nothing.
    blocks: usize,
    /// With the time of release, ascending.
    idle: VecDeque<(Block, Instant)>,
}

impl FreeLists {
    /// Bytes of idle blocks.
    pub(super) fn idle_bytes(&self) -> u64 {
        self.idle_bytes
    }

    /// Bytes of all blocks, idle or leased.
    pub(super) fn resident_bytes(&self) -> u64 {
        self.resident_bytes
    }

    fn class(&self, length: usize) -> Result<usize, usize> {
        self.classes.binary_search_by_key(&length, |class| class.length)
    }

    /// How many blocks of this length are idle.
    pub(super) fn idle_blocks(&self, length: usize) -> usize {
        self.class(length).map_or(0, |index| self.classes[index].idle.len())
    }

    /// Takes a block of the smallest class that fits and wastes no more than allowed, the last one
    /// released. None if less than `watermark` bytes would stay idle.
    pub(super) fn take(
        &mut self,
        wanted: usize,
        waste_max: usize,
        watermark: u64,
    ) -> Option<Block> {
        let first = self.class(wanted).unwrap_or_else(|index| index);
        let longest = wanted.saturating_mul(waste_max);
        let spare = self.idle_bytes.checked_sub(watermark)?;
        let fitting = self.classes[first..].iter_mut();
        let fitting =
            fitting.take_while(|class| class.length <= longest && class.length as u64 <= spare);
        let (block, _) = fitting.filter_map(|class| class.idle.pop_back()).next()?;
        self.idle_bytes -= block.length() as u64;
        Some(block)
    }

    /// Removes the idle block that was released first of all.
    pub(super) fn pop_oldest(&mut self) -> Option<Block> {
        let classes = self.classes.iter_mut().filter(|class| !class.idle.is_empty());
        let class =
            classes.min_by_key(|class| class.idle.front().map(|(_, released)| *released))?;
        let (block, _) = class.idle.pop_front()?;
        class.blocks -= 1;
        let bytes = block.length() as u64;
        self.idle_bytes -= bytes;
        self.resident_bytes -= bytes;
        Some(block)
    }

    /// Counts blocks that are about to come, and reserves capacity for their release.
    pub(super) fn reserve_slots(&mut self, length: usize, count: usize) -> Result<(), Error> {
        let no_room = |_| Error::new(ErrorKind::OutOfMemory, "the list of buffers");
        let index = match self.class(length) {
            Ok(index) => index,
            Err(index) => {
                self.classes.try_reserve(1).map_err(no_room)?;
                self.classes.insert(index, SizeClass { length, blocks: 0, idle: VecDeque::new() });
                index
            }
        };
        let class = &mut self.classes[index];
        let more = class.blocks + count - class.idle.len();
        class.idle.try_reserve(more).map_err(no_room)?;
        class.blocks += count;
        self.resident_bytes += (length * count) as u64;
        Ok(())
    }

    /// Undoes [`Self::reserve_slots`]: the blocks did not come.
    pub(super) fn release_slots(&mut self, length: usize, count: usize) {
        if let Ok(index) = self.class(length) {
            self.classes[index].blocks -= count;
            self.resident_bytes -= (length * count) as u64;
        }
    }

    /// Makes a block idle, for which a slot was reserved.
    pub(super) fn put(&mut self, block: Block, now: Instant) {
        let length = block.length();
        let Ok(index) = self.class(length) else { return };
        self.idle_bytes += length as u64;
        // `now` was read before the lock was taken: another release may have been later and
        // quicker.
        let idle = &mut self.classes[index].idle;
        let released = idle.back().map_or(now, |(_, last)| now.max(*last));
        idle.push_back((block, released));
    }
}

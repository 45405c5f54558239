//! Contiguous buffers of one worker that grow and stay. It owns their mappings and charges; it never
//! takes memory away from a guard that is out, and belongs to one worker at a time, so that there is
//! no index by CPU and no lock. Decoders lease input copies and tables here.

use std::cell::{Cell, RefCell};
use std::ops::{Deref, DerefMut};

use super::alloc_policy::AllocPolicy;
use super::block::{Block, size_class};
use super::budget::Budget;
use crate::{Error, ErrorKind};

/// Leases of one scratch that can be out at a time. A decoder has a handful.
pub const BLOCKS_MAX: usize = 64;

/// The growing buffers of one worker. It moves between threads, but is not shared by them.
#[derive(Debug)]
pub struct Scratch {
    budget: Budget,
    /// Blocks that are not leased. There is room for all blocks, so that the end of a lease allocates
    /// nothing.
    idle: RefCell<Vec<Block>>,
    blocks: Cell<usize>,
    resident: Cell<usize>,
}

impl Scratch {
    /// Scratch that has nothing yet; what it gets is charged to the budget.
    #[must_use]
    pub fn new(budget: &Budget) -> Self {
        Self {
            budget: budget.clone(),
            idle: RefCell::new(Vec::new()),
            blocks: Cell::new(0),
            resident: Cell::new(0),
        }
    }

    /// Leases `length` bytes in one piece, until the guard is dropped. Guards that are out stay valid
    /// while others come and the scratch grows. The bytes are whatever was there: nothing is cleared.
    ///
    /// What is idle and large enough is used; otherwise, under [`AllocPolicy::MustSucceed`], the largest
    /// idle block grows, or a new one comes, both resident before this returns.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::NotNow`] under [`AllocPolicy::MayFail`] when nothing idle is large enough;
    /// [`ErrorKind::OutOfMemory`] when the budget or the system has not so much, and what there was is
    /// then there as before; [`ErrorKind::InvalidSetting`] for the 65th lease at a time.
    pub fn lease(&self, length: usize, policy: AllocPolicy) -> Result<ScratchGuard<'_>, Error> {
        let block = match (self.take_idle(length), policy) {
            (Some(block), _) => block,
            (None, AllocPolicy::MayFail) => return Err(self.budget.refuse("bytes of scratch")),
            (None, AllocPolicy::MustSucceed) => self.grow(length)?,
        };
        Ok(ScratchGuard { scratch: self, block: Some(block), length })
    }

    /// Bytes that are resident, leased or not.
    #[must_use]
    pub fn resident_bytes(&self) -> usize {
        self.resident.get()
    }

    /// Gives idle blocks back, the largest first, until at most `bytes` are resident or all that are
    /// left are leased.
    pub fn shrink_to(&self, bytes: usize) {
        let mut idle = self.idle.borrow_mut();
        idle.sort_unstable_by_key(|block| block.mapping.length());
        while self.resident.get() > bytes
            && let Some(block) = idle.pop()
        {
            self.resident.set(self.resident.get() - block.mapping.length());
            self.blocks.set(self.blocks.get() - 1);
            drop(block);
        }
    }

    /// The smallest idle block that is large enough.
    fn take_idle(&self, length: usize) -> Option<Block> {
        let mut idle = self.idle.borrow_mut();
        let place = (0..idle.len())
            .filter(|place| idle[*place].mapping.length() >= length)
            .min_by_key(|place| idle[*place].mapping.length())?;
        Some(idle.swap_remove(place))
    }

    /// The largest idle block.
    fn take_largest(&self) -> Option<Block> {
        let mut idle = self.idle.borrow_mut();
        let place = (0..idle.len()).max_by_key(|place| idle[*place].mapping.length())?;
        Some(idle.swap_remove(place))
    }

    /// A block of at least `length` bytes, by growing an idle one or from nothing.
    #[cold]
    fn grow(&self, length: usize) -> Result<Block, Error> {
        let wanted = size_class(length)?;
        match self.take_largest() {
            Some(mut block) => {
                let before = block.mapping.length();
                let grown = block.grow(&self.budget, wanted);
                self.resident.set(self.resident.get() - before + block.mapping.length());
                match grown {
                    Ok(()) => Ok(block),
                    Err(error) => {
                        self.put_back(block);
                        Err(error)
                    }
                }
            }
            None => {
                self.make_room()?;
                let block = Block::new(&self.budget, wanted)?;
                self.blocks.set(self.blocks.get() + 1);
                self.resident.set(self.resident.get() + block.mapping.length());
                Ok(block)
            }
        }
    }

    /// WaitQueue for one more block on the list of idle ones.
    fn make_room(&self) -> Result<(), Error> {
        let blocks = self.blocks.get();
        if blocks >= BLOCKS_MAX {
            return Err(Error::new(ErrorKind::InvalidSetting, "leases of scratch at a time")
                .with_amount(blocks as u64 + 1, BLOCKS_MAX as u64));
        }
        let mut idle = self.idle.borrow_mut();
        let more = blocks + 1 - idle.len();
        idle.try_reserve(more)
            .map_err(|_| Error::new(ErrorKind::OutOfMemory, "the list of scratch blocks"))
    }

    /// The end of a lease.
    fn put_back(&self, block: Block) {
        // `make_room` made room when the block came.
        self.idle.borrow_mut().push(block);
    }
}

/// Bytes of scratch on lease. Dropping it makes them idle; they stay resident.
#[derive(Debug)]
pub struct ScratchGuard<'scratch> {
    scratch: &'scratch Scratch,
    /// Taken out only when the lease ends.
    block: Option<Block>,
    length: usize,
}

impl Deref for ScratchGuard<'_> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.block.as_ref().map_or(&[], |block| &block.mapping.bytes()[..self.length])
    }
}

impl DerefMut for ScratchGuard<'_> {
    fn deref_mut(&mut self) -> &mut [u8] {
        match &mut self.block {
            Some(block) => &mut block.mapping.bytes_mut()[..self.length],
            None => &mut [],
        }
    }
}

impl Drop for ScratchGuard<'_> {
    fn drop(&mut self) {
        if let Some(block) = self.block.take() {
            self.scratch.put_back(block);
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests;

//! Frames on a stack, last in, first out, without a lock. It owns indexes, never the frames' bytes.
//! The page pool has two: the reserve and the vacant frames.
//!
//! docs/memory.md, protocol F.

use super::frame_stats::FrameSource;
use crate::cache_padded::CachePadded;
use crate::sync::{AtomicU64, Ordering, PlainAtomicU64};
use crate::{Error, ErrorKind};

/// No frame: the index behind the last.
const NONE: u32 = u32::MAX;

/// Two 32-bit numbers in a word. The high half is a tag or a depth, the low half an index.
fn word(high: u32, index: u32) -> u64 {
    u64::from(high) << 32 | u64::from(index)
}

fn high_of(word: u64) -> u32 {
    (word >> 32) as u32
}

#[expect(clippy::cast_possible_truncation, reason = "the low half is what is wanted")]
fn index_of(word: u64) -> u32 {
    word as u32
}

/// The right to one frame. It cannot be copied: there is one for each frame, made with the links, and
/// it lies on a stack, in a chain, or in one hand. Whoever has it is the frame's owner.
#[derive(Debug)]
pub(super) struct FrameKey(u32);

impl FrameKey {
    /// Which frame it is the key to.
    pub(super) fn index(&self) -> u32 {
        self.0
    }
}

/// What is known of one frame.
#[derive(Debug)]
struct FrameSlot {
    /// What lies under it, and how deep the stack is with it. A frame is on one stack at a time, so
    /// that stacks share the links.
    link: AtomicU64,
    /// How often it was leased from each origin. Only the owner of the frame's key counts, so that
    /// counting needs no atomic addition and shares no line that is not held anyway.
    leases: [PlainAtomicU64; FrameSource::COUNT],
}

/// A slot for each frame.
#[derive(Debug)]
pub(super) struct FrameLinks {
    slots: Box<[FrameSlot]>,
}

impl FrameLinks {
    /// What the links of so many frames take.
    pub(super) fn bytes_for(frames: u32) -> u64 {
        u64::from(frames) * size_of::<FrameSlot>() as u64
    }

    /// FrameLinks and keys for `frames` frames, and the stack on which all of them lie in order: 0 on top.
    pub(super) fn with_stack(frames: u32) -> Result<(Self, FrameStack), Error> {
        let mut slots = Vec::new();
        if slots.try_reserve_exact(frames as usize).is_err() {
            return Err(Error::new(ErrorKind::OutOfMemory, "the links of the frames")
                .with_amount(Self::bytes_for(frames), Self::bytes_for(frames)));
        }
        for index in 0..frames {
            let under = if index + 1 < frames { index + 1 } else { NONE };
            let link = AtomicU64::new(word(frames - index, under));
            slots.push(FrameSlot { link, leases: Default::default() });
        }
        let top = if frames > 0 { 0 } else { NONE };
        let stack = FrameStack { head: CachePadded(AtomicU64::new(word(0, top))) };
        Ok((Self { slots: slots.into_boxed_slice() }, stack))
    }

    /// Puts a frame before a chain, which its owner keeps: the new chain's first.
    pub(super) fn chain(&self, key: FrameKey, to: Option<FrameKey>) -> FrameKey {
        if let Some(link) = self.of(key.0) {
            // Release: see F2.
            link.store(word(0, to.map_or(NONE, |to| to.0)), Ordering::Release);
        }
        key
    }

    /// Takes the first of a chain; what is left of it.
    pub(super) fn unchain(&self, key: FrameKey) -> (FrameKey, Option<FrameKey>) {
        // Relaxed: the chain has one owner, who chained it or was given it whole.
        let under = self.of(key.0).map_or(NONE, |link| index_of(link.load(Ordering::Relaxed)));
        (key, (under != NONE).then_some(FrameKey(under)))
    }

    /// Counts a lease of the frame.
    pub(super) fn count(&self, key: &FrameKey, origin: FrameSource) {
        if let Some(slot) = self.slots.get(key.0 as usize) {
            let counter = &slot.leases[origin as usize];
            // Relaxed: the key's owner before wrote before F3, and F4 came after.
            counter.store(counter.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
        }
    }

    /// Leases of all frames from one origin: as many steps as there are frames.
    pub(super) fn leases(&self, origin: FrameSource) -> u64 {
        self.slots.iter().map(|slot| slot.leases[origin as usize].load(Ordering::Relaxed)).sum()
    }

    fn of(&self, index: u32) -> Option<&AtomicU64> {
        self.slots.get(index as usize).map(|slot| &slot.link)
    }
}

/// The stack: its top, and a tag that counts what was taken off.
#[derive(Debug)]
pub(super) struct FrameStack {
    head: CachePadded<AtomicU64>,
}

impl FrameStack {
    /// A stack with nothing on it.
    pub(super) fn new() -> Self {
        Self { head: CachePadded(AtomicU64::new(word(0, NONE))) }
    }

    /// Puts a frame on top, unless `most` lie here already: then its key comes back.
    pub(super) fn push(
        &self,
        links: &FrameLinks,
        key: FrameKey,
        most: u32,
    ) -> Result<(), FrameKey> {
        let Some(link) = links.of(key.0) else {
            return Err(key);
        };
        // F1. Acquire: the depth read next belongs to this top or a later one; pairs with F3.
        let mut head = self.head.load(Ordering::Acquire);
        loop {
            let depth =
                links.of(index_of(head)).map_or(0, |top| high_of(top.load(Ordering::Relaxed)));
            if depth >= most {
                return Err(key);
            }
            // F2. Ours alone until F3 succeeds. Release: whoever reads this link while the frame is
            // elsewhere sees the head that it was taken from changed (`len`).
            link.store(word(depth + 1, index_of(head)), Ordering::Release);
            // F3. Release: the link and the frame's bytes are seen by who pops it (F4). That the
            // compare succeeds proves that the top, and so the depth above, was still right: a top
            // that left and came back has another tag. SeqCst: pushed before the look for waiters
            // (B1).
            let new = word(high_of(head), key.0);
            match self.head.compare_exchange_weak(head, new, Ordering::SeqCst, Ordering::Acquire) {
                Ok(_) => return Ok(()),
                Err(now) => head = now,
            }
        }
    }

    /// Takes the frame that was pushed last.
    pub(super) fn pop(&self, links: &FrameLinks) -> Option<FrameKey> {
        // F4. Acquire: the top's link and bytes as its pusher left them; pairs with F3, also through
        // the pops between, which continue its release sequence. SeqCst: a waiter of the room sees
        // what was pushed before somebody missed it there (B4).
        let mut head = self.head.load(Ordering::SeqCst);
        loop {
            let index = index_of(head);
            // F5. It may be another's by now, and what is read old or new; then F6 fails.
            let under = index_of(links.of(index)?.load(Ordering::Relaxed));
            // F6. The tag goes up with every frame taken off, so that a top that left and came back
            // is not mistaken for one that stayed. Acquire as in F4.
            let new = word(high_of(head).wrapping_add(1), under);
            match self.head.compare_exchange_weak(head, new, Ordering::Acquire, Ordering::Acquire) {
                Ok(_) => return Some(FrameKey(index)),
                Err(now) => head = now,
            }
        }
    }

    /// How many frames lie here: exact at one moment of the call.
    pub(super) fn len(&self, links: &FrameLinks) -> u32 {
        let mut head = self.head.load(Ordering::Acquire);
        loop {
            // F7. Acquire: pairs with F2, so that a depth from another life of the frame is followed
            // by a head that has changed.
            let depth = match links.of(index_of(head)) {
                None => 0,
                Some(link) => high_of(link.load(Ordering::Acquire)),
            };
            let now = self.head.load(Ordering::Acquire);
            if now == head {
                return depth;
            }
            head = now;
        }
    }
}

#[cfg(all(test, loom))]
mod loom_tests;
#[cfg(all(test, not(loom)))]
mod tests;

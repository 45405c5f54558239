//! The frames of a pool: the mapping that they are cut from, their keys, and lock-free stacks of
//! them, last in, first out. The page pool has two stacks: the reserve and the vacant frames.
//!
//! A key is the right to use one frame, and there is one for each. Who has it reads and writes the
//! frame's bytes through the arena; stacks and chains pass it on and never touch the bytes. Only
//! this file makes keys, so its unsafe blocks can rely on that.
//!
//! docs/workers.md, protocol F.
#![allow(unsafe_code, reason = "frames of one mapping, each with one owner")]

use std::num::NonZeroU64;

#[cfg(not(loom))]
use zerocopy::FromZeros;

use super::FRAME_BYTES;
use super::budget::SystemMemory;
#[cfg(not(loom))]
use super::mapping::ZeroedSlice;
use super::mapping::{Mapping, PageSize, PopulateMethod, touch};
use crate::Error;
use crate::counters::CachePadded;
use crate::sync::{AtomicU64, Ordering, PlainAtomicU64};

/// The index of no frame.
const NONE: u32 = u32::MAX;

/// Arenas so far. Numbers are never used twice: 2^64 arenas are more than a machine can make.
static ARENAS: PlainAtomicU64 = PlainAtomicU64::new(0);

/// The frames of one pool. Each gets whole system pages, since it is returned to the system in
/// whole pages.
#[derive(Debug)]
pub(super) struct Arena {
    mapping: Mapping,
    /// Whose keys fit.
    id: ArenaId,
}

impl Arena {
    /// Bytes from one frame to the next.
    pub(super) fn stride() -> usize {
        FRAME_BYTES.max(rustix::param::page_size())
    }

    /// Maps the `frames` frames of `links`; none is resident.
    pub(super) fn new(
        system: &SystemMemory,
        links: &FrameLinks,
        frames: u32,
        pages: PageSize,
    ) -> Result<Self, Error> {
        let mapping = system.map((frames as usize).saturating_mul(Self::stride()), pages)?;
        Ok(Self { mapping, id: links.arena })
    }

    /// Makes the first `length` bytes resident, before any frame is leased.
    pub(super) fn populate_first(
        &mut self,
        system: &SystemMemory,
        length: u64,
    ) -> Result<(), Error> {
        system.prefault(&mut self.mapping, length).map(drop)
    }

    /// Makes a frame resident.
    pub(super) fn populate(&self, system: &SystemMemory, key: &mut FrameKey) -> Result<(), Error> {
        let offset = self.offset(key);
        if system.populate(&self.mapping, offset, Self::stride())? == PopulateMethod::Touch {
            touch(self.bytes_mut(key));
        }
        Ok(())
    }

    /// Gives the pages of frames back to the system. The frames must be neighbours, in order.
    pub(super) fn discard(&self, keys: &mut [Option<FrameKey>]) -> Result<(), Error> {
        let Some(Some(first)) = keys.first() else {
            return Ok(());
        };
        let are_neighbours = keys
            .iter()
            .zip(first.index..)
            .all(|(key, index)| key.as_ref().is_some_and(|key| self.fits(key, index)));
        assert!(are_neighbours, "only frames that are owned are discarded");
        let length = keys.len() * Self::stride();
        // SAFETY: the caller lends the keys of all frames in the range exclusively (the assertion
        // above: they are this arena's, one for each frame), so nobody has a reference into them.
        unsafe { self.mapping.discard_range(self.offset(first), length) }
    }

    /// The bytes of a frame, for as long as its key is borrowed.
    pub(super) fn bytes<'frame>(&'frame self, key: &'frame FrameKey) -> &'frame [u8] {
        match self.mapping.address(self.offset(key), FRAME_BYTES) {
            // SAFETY: inside of the mapping (`address`); the bytes are zero or were written. A
            // frame of this arena has one key (`offset` checks that it is this arena's), and while
            // that is borrowed shared, nobody writes: `bytes_mut` borrows it exclusively.
            Some(start) => unsafe { std::slice::from_raw_parts(start.as_ptr(), FRAME_BYTES) },
            None => &[],
        }
    }

    /// The bytes of a frame, for writing.
    pub(super) fn bytes_mut<'frame>(&'frame self, key: &'frame mut FrameKey) -> &'frame mut [u8] {
        match self.mapping.address(self.offset(key), FRAME_BYTES) {
            // SAFETY: as in `bytes`; the one key is borrowed exclusively for as long as the slice
            // lives.
            Some(start) => unsafe { std::slice::from_raw_parts_mut(start.as_ptr(), FRAME_BYTES) },
            None => &mut [],
        }
    }

    #[cfg(all(test, not(loom)))]
    pub(super) fn resident_pages(&self) -> usize {
        self.mapping.resident_pages()
    }

    fn fits(&self, key: &FrameKey, index: u32) -> bool {
        key.arena == self.id && key.index == index
    }

    /// Where the frame of a key of this arena begins.
    ///
    /// # Panics
    ///
    /// For a key of another arena, which says nothing of who uses the frame here.
    fn offset(&self, key: &FrameKey) -> usize {
        assert_eq!(key.arena, self.id, "a key fits its own arena only");
        key.index as usize * Self::stride()
    }
}

/// The right to use one frame. It cannot be copied: there is one for each frame of an arena, made
/// with the links. It is on a stack, in a chain, or held by the frame's owner.
#[derive(Debug)]
pub(super) struct FrameKey {
    arena: ArenaId,
    index: u32,
}

impl FrameKey {
    /// The number of the frame in its arena.
    pub(super) fn index(&self) -> u32 {
        self.index
    }
}

/// Which arena a key fits. The links of an arena, its keys and its stacks have the same one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct ArenaId(NonZeroU64);

impl ArenaId {
    fn next() -> Self {
        // Relaxed: each number is given out once, and orders nothing.
        Self(NonZeroU64::MIN.saturating_add(ARENAS.fetch_add(1, Ordering::Relaxed)))
    }
}

/// Where a leased frame came from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum FrameSource {
    /// The caller's own list.
    List,
    /// The reserve.
    Reserve,
    /// The system: it was faulted in.
    System,
}

impl FrameSource {
    /// The number of sources.
    const COUNT: usize = 3;
}

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

/// What is known of one frame. All zeroes is the state of a frame that was never used, so that memory which the system has
/// just cleared is a stack of them: an idle process does not pay for links.
#[derive(Debug)]
#[cfg_attr(not(loom), derive(FromZeros))]
struct FrameSlot {
    /// The index of the frame below, and the depth of the stack with this frame on it. A frame is
    /// on one stack at a time, so stacks share the links. See [`FrameLink`].
    link: AtomicU64,
    /// Leases from each source. Only the holder of the frame's key counts, so counting needs no
    /// atomic addition and shares no cache line that is not held anyway.
    leases: [PlainAtomicU64; FrameSource::COUNT],
}

/// The link of one frame. In memory it is combined, by exclusive or, with the link that the frame has at first.
#[derive(Clone, Copy)]
struct FrameLink<'a> {
    stored: &'a AtomicU64,
    first: u64,
}

impl FrameLink<'_> {
    fn load(self, order: Ordering) -> u64 {
        self.stored.load(order) ^ self.first
    }

    fn store(self, link: u64, order: Ordering) {
        self.stored.store(link ^ self.first, order);
    }
}

/// The links of an arena's frames: a slot for each frame.
#[derive(Debug)]
pub(super) struct FrameLinks {
    arena: ArenaId,
    /// The number of slots.
    frames: u32,
    slots: Slots,
}

#[cfg(not(loom))]
type Slots = ZeroedSlice<FrameSlot>;
/// The atomics of a model are no plain words.
#[cfg(loom)]
type Slots = Box<[FrameSlot]>;

/// Slots of frames that were never used.
#[cfg(not(loom))]
fn unused_slots(count: usize) -> Result<Slots, Error> {
    ZeroedSlice::new(count)
}

#[cfg(loom)]
fn unused_slots(count: usize) -> Result<Slots, Error> {
    let unused = || FrameSlot { link: AtomicU64::new(0), leases: Default::default() };
    Ok(std::iter::repeat_with(unused).take(count).collect())
}

impl FrameLinks {
    /// The bytes that the links of so many frames take.
    pub(super) fn bytes_for(frames: u32) -> u64 {
        u64::from(frames) * size_of::<FrameSlot>() as u64
    }

    /// Links and keys for `frames` frames, and the stack that holds all keys in order: frame 0 on
    /// top.
    pub(super) fn with_stack(frames: u32) -> Result<(Self, FrameStack), Error> {
        let slots = unused_slots(frames as usize)?;
        let links = Self { arena: ArenaId::next(), frames, slots };
        let top = if frames > 0 { 0 } else { NONE };
        let stack = FrameStack::with_head(&links, word(0, top));
        Ok((links, stack))
    }

    /// Puts a frame in front of a chain that the caller owns, and returns the new chain's first.
    pub(super) fn chain(&self, key: FrameKey, to: Option<FrameKey>) -> FrameKey {
        let next = to.map_or(NONE, |to| self.index_of(&to));
        if let Some(link) = self.link(self.index_of(&key)) {
            // Release: see F2.
            link.store(word(0, next), Ordering::Release);
        }
        key
    }

    /// Takes the first frame off a chain, and returns it with the rest.
    pub(super) fn unchain(&self, key: FrameKey) -> (FrameKey, Option<FrameKey>) {
        // Relaxed: a chain has one owner, which chained it or was given it whole.
        let link = self.link(self.index_of(&key));
        let next = link.map_or(NONE, |link| index_of(link.load(Ordering::Relaxed)));
        (key, (next != NONE).then_some(FrameKey { arena: self.arena, index: next }))
    }

    /// Counts a lease of the frame.
    pub(super) fn count(&self, key: &FrameKey, source: FrameSource) {
        if let Some(slot) = self.slots.get(self.index_of(key) as usize) {
            let counter = &slot.leases[source as usize];
            // Relaxed: the key's holder before wrote before F3, and F4 came after.
            counter.store(counter.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
        }
    }

    /// Leases of all frames from one source. It takes as many steps as there are frames.
    pub(super) fn leases(&self, source: FrameSource) -> u64 {
        self.slots.iter().map(|slot| slot.leases[source as usize].load(Ordering::Relaxed)).sum()
    }

    /// The index of a key of this arena.
    ///
    /// # Panics
    ///
    /// For a key of another arena: whoever used it here would get a second key of this arena's
    /// frame.
    fn index_of(&self, key: &FrameKey) -> u32 {
        assert_eq!(key.arena, self.arena, "a key fits its own arena only");
        key.index
    }

    fn link(&self, index: u32) -> Option<FrameLink<'_>> {
        let slot = self.slots.get(index as usize)?;
        // At first all frames are on one stack, in order.
        let below = if index + 1 < self.frames { index + 1 } else { NONE };
        Some(FrameLink { stored: &slot.link, first: word(self.frames - index, below) })
    }
}

/// A stack of an arena's frames: its top, with a tag that counts the frames that were popped.
#[derive(Debug)]
pub(super) struct FrameStack {
    arena: ArenaId,
    head: CachePadded<AtomicU64>,
}

impl FrameStack {
    /// An empty stack for frames of the arena of `links`.
    pub(super) fn new(links: &FrameLinks) -> Self {
        Self::with_head(links, word(0, NONE))
    }

    fn with_head(links: &FrameLinks, head: u64) -> Self {
        Self { arena: links.arena, head: CachePadded(AtomicU64::new(head)) }
    }

    /// Pushes a frame, unless `most` are on the stack already: then its key comes back.
    ///
    /// # Panics
    ///
    /// If `links` or `key` is of another arena.
    pub(super) fn push(
        &self,
        links: &FrameLinks,
        key: FrameKey,
        most: u32,
    ) -> Result<(), FrameKey> {
        assert_eq!(self.arena, links.arena, "a stack is of one arena");
        let index = links.index_of(&key);
        let Some(link) = links.link(index) else {
            return Err(key);
        };
        // F1. Acquire: the depth that is read next belongs to this top or a later one; pairs with
        // F3.
        let mut head = self.head.load(Ordering::Acquire);
        loop {
            let depth =
                links.link(index_of(head)).map_or(0, |top| high_of(top.load(Ordering::Relaxed)));
            if depth >= most {
                return Err(key);
            }
            // F2. The frame is not on the stack before F3 succeeds. Release: a thread that reads
            // this link while the frame is elsewhere sees that the head it was taken from has
            // changed (`len`).
            link.store(word(depth + 1, index_of(head)), Ordering::Release);
            // F3. Release: the thread that pops the frame sees its link and bytes (F4). The
            // exchange succeeds only if the top, and so the depth above, was still right: a top
            // that left and came back has another tag. SeqCst: pushed before the look for waiters
            // (B1).
            let new = word(high_of(head), index);
            match self.head.compare_exchange_weak(head, new, Ordering::SeqCst, Ordering::Acquire) {
                Ok(_) => return Ok(()),
                Err(now) => head = now,
            }
        }
    }

    /// Pops the frame that was pushed last.
    ///
    /// # Panics
    ///
    /// If `links` is of another arena.
    pub(super) fn pop(&self, links: &FrameLinks) -> Option<FrameKey> {
        assert_eq!(self.arena, links.arena, "a stack is of one arena");
        // F4. Acquire: the top's link and bytes as its pusher left them; pairs with F3, also
        // through the pops between, which continue its release sequence. SeqCst: a waiter of the
        // queue sees what was pushed before the pusher missed it there (B4).
        let mut head = self.head.load(Ordering::SeqCst);
        loop {
            let index = index_of(head);
            // F5. Another thread may have popped the frame by now, and the link may be old or new;
            // then F6 fails.
            let below = index_of(links.link(index)?.load(Ordering::Relaxed));
            // F6. Each pop increments the tag, so that a top that left and came back differs from
            // one that stayed. Acquire as in F4.
            let new = word(high_of(head).wrapping_add(1), below);
            match self.head.compare_exchange_weak(head, new, Ordering::Acquire, Ordering::Acquire) {
                Ok(_) => return Some(FrameKey { arena: self.arena, index }),
                Err(now) => head = now,
            }
        }
    }

    /// How many frames are on the stack: exact at one moment of the call.
    pub(super) fn len(&self, links: &FrameLinks) -> u32 {
        let mut head = self.head.load(Ordering::Acquire);
        loop {
            // F7. Acquire: pairs with F2, so that a depth from another life of the frame is
            // followed by a head that has changed.
            let depth = match links.link(index_of(head)) {
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

/// Every interleaving of few threads on few frames.
#[cfg(all(test, loom))]
mod loom_tests {
    #![allow(
        clippy::unwrap_used,
        clippy::assertions_on_result_states,
        reason = "a test may fail where it stands"
    )]

    use super::*;
    use crate::sync::{Arc, Cell, thread};

    struct Frames {
        links: FrameLinks,
        vacant: FrameStack,
        reserve: FrameStack,
        /// What a frame's owner may write to: loom sees two owners at a time.
        bytes: Vec<Cell<u32>>,
    }

    fn shared(frames: u32) -> Arc<Frames> {
        let (links, vacant) = FrameLinks::with_stack(frames).unwrap();
        let bytes = (0..frames).map(|_| Cell::new(0)).collect();
        let reserve = FrameStack::new(&links);
        Arc::new(Frames { links, vacant, reserve, bytes })
    }

    /// Stands for a write: loom checks that nobody else has the frame meanwhile.
    fn write(shared: &Frames, key: &FrameKey) {
        shared.bytes[key.index() as usize].with_mut(|_| ());
    }

    #[test]
    fn a_top_that_left_and_came_back_is_not_mistaken() {
        // One pops one; the other pops two and pushes the first of them back: the shape of ABA.
        loom::model(|| {
            let shared = shared(3);
            let one = Arc::clone(&shared);
            let thread = thread::spawn(move || {
                let key = one.vacant.pop(&one.links);
                key.map(|key| {
                    write(&one, &key);
                    key.index()
                })
            });
            let first = shared.vacant.pop(&shared.links).unwrap();
            write(&shared, &first);
            let second = shared.vacant.pop(&shared.links).unwrap();
            write(&shared, &second);
            shared.vacant.push(&shared.links, first, 3).unwrap();
            let mut all = vec![second.index()];
            all.extend(thread.join().unwrap());
            while let Some(key) = shared.vacant.pop(&shared.links) {
                write(&shared, &key);
                all.push(key.index());
            }
            all.sort_unstable();
            assert_eq!(all, [0, 1, 2], "every frame once");
        });
    }

    #[test]
    fn what_was_written_to_a_frame_is_seen_by_its_next_owner() {
        loom::model(|| {
            let shared = shared(1);
            let one = Arc::clone(&shared);
            let thread = thread::spawn(move || take_and_put_back(&one, 1));
            take_and_put_back(&shared, 1);
            thread.join().unwrap();
            assert_eq!(shared.reserve.len(&shared.links) + shared.vacant.len(&shared.links), 1);
        });
    }

    /// As the pool does it: the reserve, then the vacant; back to the reserve while that has room.
    fn take_and_put_back(shared: &Frames, most: u32) {
        let key = shared.reserve.pop(&shared.links).or_else(|| shared.vacant.pop(&shared.links));
        if let Some(key) = key {
            write(shared, &key);
            shared.links.count(&key, FrameSource::Reserve);
            if let Err(key) = shared.reserve.push(&shared.links, key, most) {
                shared.vacant.push(&shared.links, key, u32::MAX).unwrap();
            }
        }
    }

    #[test]
    fn two_that_push_at_once_never_pass_the_bound_and_a_look_never_sees_more() {
        let mut model = loom::model::Builder::new();
        model.preemption_bound = Some(3);
        model.check(|| {
            let shared = shared(2);
            let threads: Vec<_> = (0..2)
                .map(|_| {
                    let shared = Arc::clone(&shared);
                    thread::spawn(move || take_and_put_back(&shared, 1))
                })
                .collect();
            assert!(shared.reserve.len(&shared.links) <= 1);
            for thread in threads {
                thread.join().unwrap();
            }
            assert_eq!(shared.reserve.len(&shared.links), 1, "the first one back stays");
            assert_eq!(shared.vacant.len(&shared.links), 1);
        });
    }
}

/// The stack by itself (order, bound, count, many threads at once), and keys of another arena.
#[cfg(all(test, not(loom)))]
mod tests {
    #![allow(
        clippy::unwrap_used,
        clippy::assertions_on_result_states,
        reason = "a test may fail where it stands"
    )]

    use std::sync::atomic::{AtomicBool, AtomicU32, Ordering as StdOrdering};

    use super::*;

    fn indexes(stack: &FrameStack, links: &FrameLinks) -> Vec<u32> {
        std::iter::from_fn(|| stack.pop(links)).map(|key| key.index()).collect()
    }

    #[test]
    fn all_frames_lie_on_the_first_stack_in_order() {
        let (links, stack) = FrameLinks::with_stack(5).unwrap();
        assert_eq!(stack.len(&links), 5);
        assert_eq!(indexes(&stack, &links), [0, 1, 2, 3, 4]);
        assert_eq!(stack.len(&links), 0);
    }

    #[test]
    fn the_last_frame_pushed_is_the_first_popped() {
        let (links, from) = FrameLinks::with_stack(4).unwrap();
        let to = FrameStack::new(&links);
        while let Some(key) = from.pop(&links) {
            to.push(&links, key, 4).unwrap();
        }
        assert_eq!(indexes(&to, &links), [3, 2, 1, 0]);
    }

    #[test]
    fn a_full_stack_gives_the_key_back() {
        let (links, from) = FrameLinks::with_stack(3).unwrap();
        let to = FrameStack::new(&links);
        for expected in [Ok(()), Ok(()), Err(2)] {
            let key = from.pop(&links).unwrap();
            assert_eq!(to.push(&links, key, 2).map_err(|key| key.index()), expected);
        }
        assert_eq!(to.len(&links), 2);
        let (links, from) = FrameLinks::with_stack(1).unwrap();
        let key = from.pop(&links).unwrap();
        assert!(FrameStack::new(&links).push(&links, key, 0).is_err(), "no room at all");
    }

    #[test]
    fn a_chain_gives_its_frames_back_in_reverse() {
        let (links, stack) = FrameLinks::with_stack(3).unwrap();
        let mut chain = None;
        while let Some(key) = stack.pop(&links) {
            chain = Some(links.chain(key, chain));
        }
        let mut order = Vec::new();
        while let Some(first) = chain {
            let (key, rest) = links.unchain(first);
            order.push(key.index());
            chain = rest;
        }
        assert_eq!(order, [2, 1, 0]);
    }

    /// Four threads push and pop on two stacks that share links, and a fifth
    /// looks.
    #[test]
    fn the_count_is_never_above_the_bound_and_no_frame_is_on_two_hands() {
        const FRAMES: u32 = 12;
        const MOST: u32 = 5;
        let (links, vacant) = FrameLinks::with_stack(FRAMES).unwrap();
        let reserve = FrameStack::new(&links);
        let holders: Vec<AtomicU32> = (0..FRAMES).map(|_| AtomicU32::new(0)).collect();
        let is_over = AtomicBool::new(false);
        let samples = AtomicU32::new(0);
        std::thread::scope(|scope| {
            let workers: Vec<_> = (1..=4)
                .map(|me| {
                    let (links, vacant, reserve, holders) = (&links, &vacant, &reserve, &holders);
                    scope.spawn(move || {
                        for _ in 0..200_000 {
                            let Some(key) = reserve.pop(links).or_else(|| vacant.pop(links)) else {
                                continue;
                            };
                            let holder = &holders[key.index() as usize];
                            assert_eq!(holder.swap(me, StdOrdering::Relaxed), 0, "nobody has it");
                            assert_eq!(holder.swap(0, StdOrdering::Relaxed), me, "only I had it");
                            if let Err(key) = reserve.push(links, key, MOST) {
                                vacant.push(links, key, FRAMES).unwrap();
                            }
                        }
                    })
                })
                .collect();
            scope.spawn(|| {
                while !is_over.load(StdOrdering::Relaxed) {
                    assert!(reserve.len(&links) <= MOST);
                    samples.fetch_add(1, StdOrdering::Relaxed);
                }
            });
            for worker in workers {
                worker.join().unwrap();
            }
            is_over.store(true, StdOrdering::Relaxed);
        });
        assert_eq!(reserve.len(&links) + vacant.len(&links), FRAMES);
        let mut all = indexes(&reserve, &links);
        all.extend(indexes(&vacant, &links));
        all.sort_unstable();
        assert_eq!(all, (0..FRAMES).collect::<Vec<_>>());
        assert!(samples.load(StdOrdering::Relaxed) > 0);
    }

    /// An arena of four frames with its links and the stack of all of its keys.
    fn arena() -> (Arena, FrameLinks, FrameStack) {
        let (links, stack) = FrameLinks::with_stack(4).unwrap();
        let arena = Arena::new(&SystemMemory::new(), &links, 4, PageSize::Small).unwrap();
        (arena, links, stack)
    }

    #[test]
    fn a_key_fits_the_arena_that_it_was_made_for() {
        let (arena, links, stack) = arena();
        let mut key = stack.pop(&links).unwrap();
        arena.bytes_mut(&mut key).fill(7);
        assert!(arena.bytes(&key).iter().all(|byte| *byte == 7));
    }

    #[test]
    #[should_panic(expected = "a key fits its own arena only")]
    fn a_key_of_another_arena_gives_no_bytes() {
        let (_, links, stack) = arena();
        let (other, ..) = arena();
        let _bytes = other.bytes(&stack.pop(&links).unwrap());
    }

    #[test]
    #[should_panic(expected = "only frames that are owned are discarded")]
    fn a_key_of_another_arena_discards_nothing() {
        let (_, links, stack) = arena();
        let (other, ..) = arena();
        let _discarded = other.discard(&mut [stack.pop(&links)]);
    }

    #[test]
    #[should_panic(expected = "a key fits its own arena only")]
    fn a_key_of_another_arena_is_pushed_on_no_stack() {
        let (_, links, stack) = arena();
        let (_, other_links, other_stack) = arena();
        let _pushed = other_stack.push(&other_links, stack.pop(&links).unwrap(), 9);
    }

    #[test]
    #[should_panic(expected = "a stack is of one arena")]
    fn a_stack_is_not_read_through_the_links_of_another_arena() {
        let (_, _, stack) = arena();
        let (_, other_links, _) = arena();
        let _key = stack.pop(&other_links);
    }

    #[test]
    #[should_panic(expected = "a key fits its own arena only")]
    fn a_key_of_another_arena_is_put_in_no_chain() {
        let (_, links, stack) = arena();
        let (_, other_links, _) = arena();
        let _chain = other_links.chain(stack.pop(&links).unwrap(), None);
    }
}

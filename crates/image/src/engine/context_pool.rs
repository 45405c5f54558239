//! Decode slots: how many threads decode at the same time, and the context that each of them needs
//! for it: a decoder, a window on the input and an output buffer. They stay warm from one
//! acquisition to the next, so that a read allocates nothing once the image is warm.
//!
//! More threads that decode would gain nothing, as there are two slots for each CPU, and would cost
//! memory. So they wait here, where they hold nothing that another thread could wait for. A thread
//! that holds a slot and waits for the storage uses no CPU: it counts as held, but not as running,
//! and another thread may decode. Else slow storage would see as many reads at a time as there are
//! slots. Three rules prevent deadlock:
//!
//! * A thread that holds a [`FillPermit`](ferrofs_workers::single_flight::FillPermit) holds a slot,
//!   and waits for no other permit.
//! * A thread that waits for a cluster holds no permit.
//! * A thread that waits for a slot holds no slot and no permit.
//!
//! A reader of the storage wakes nobody when its read begins: nearly all reads are of cached files
//! and take microseconds. A thread that waits for a slot looks for itself after
//! [`MIN_POLL_INTERVAL`], then at growing intervals.

use std::cell::Cell;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::ThreadId;
use std::time::Duration;

use ferrofs_codec::{Decoder, DecoderSettings};
use ferrofs_workers::counters::Sharded;
use ferrofs_workers::memory::{AllocPolicy, Buffer, Charge};

use super::input_window::{InputWindow, StorageReads};
use crate::error::{ErrorKind, Result};
use crate::extent::Cluster;
use crate::memory::MemoryPool;

/// After so many acquisitions in a row a thread counts as the only one that reads.
const SOLE_READER_ACQUISITIONS: u64 = 64;

/// Longer buffers are freed after each use: they are too large a part of a small budget to lie
/// idle.
const KEPT_OUTPUT_BYTES: usize = 1 << 20;

/// A thread that waits for a slot looks this soon whether the holders of all slots wait for the
/// storage. Decoding a cluster takes less.
const MIN_POLL_INTERVAL: Duration = Duration::from_millis(1);
/// The longest interval between two such looks.
const MAX_POLL_INTERVAL: Duration = Duration::from_millis(32);

thread_local! {
    /// Slots that this thread holds, of all images.
    static HELD: Cell<usize> = const { Cell::new(0) };
}

/// What a thread needs to decode. It belongs to one slot at a time.
#[derive(Debug, Default)]
pub(crate) struct DecodeContext {
    pub(crate) decoder: LazyDecoder,
    pub(crate) window: InputWindow,
    /// What was done since the slot was acquired.
    pub(crate) counters: DecodeCounters,
    output: Option<Buffer>,
}

impl DecodeContext {
    /// A buffer of at least `bytes` bytes: the last one, if it is long enough. `policy` says whether to
    /// wait for memory.
    pub(crate) fn take_output(
        &mut self,
        memory: &MemoryPool,
        bytes: usize,
        policy: AllocPolicy,
    ) -> Result<Buffer> {
        match self.output.take() {
            Some(buffer) if buffer.len() >= bytes => Ok(buffer),
            smaller => {
                // Freed first: no thread waits for memory while it holds some.
                drop(smaller);
                if policy == AllocPolicy::MayFail {
                    memory.preallocate(bytes, 1);
                }
                memory.buffer(bytes, policy)
            }
        }
    }

    /// Counts a cluster that was decoded. An uncompressed one was only copied, and does not count.
    pub(crate) fn count(&mut self, cluster: &Cluster, bytes: usize) {
        if cluster.is_compressed() {
            self.counters.decoded(bytes);
            self.counters.surplus_input(cluster.encoded_length().saturating_sub(bytes));
        }
    }

    /// Keeps a buffer for the next use.
    pub(crate) fn keep_output(&mut self, buffer: Buffer) {
        if buffer.len() <= KEPT_OUTPUT_BYTES {
            self.output = Some(buffer);
        }
    }
}

/// A decoder that is created when the first compressed extent is read.
#[derive(Debug, Default)]
pub(crate) struct LazyDecoder(Option<(Decoder, Charge)>);

impl LazyDecoder {
    /// The decoder for `settings`. `policy` says whether to wait for its memory.
    pub(crate) fn get_or_create(
        &mut self,
        settings: &DecoderSettings,
        memory: &MemoryPool,
        policy: AllocPolicy,
    ) -> Result<&mut Decoder> {
        if self.0.is_none() {
            let bytes = u64::try_from(settings.memory_bytes_max()).unwrap_or(u64::MAX);
            let charge = memory.budget().charge(bytes, policy)?;
            self.0 = Some((Decoder::new(settings).map_err(ErrorKind::Decode)?, charge));
        }
        let made = self.0.as_mut().map(|(decoder, _)| decoder);
        made.ok_or_else(|| ErrorKind::OutOfMemory { bytes: 0 }.into())
    }
}

/// What was read and decoded. Each slot counts for itself, and adds its counters to
/// [`SharedCounters`] when it is released.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct DecodeCounters {
    /// Runs of a decoder that ended well.
    pub(crate) decoded: u64,
    /// Bytes that those runs produced.
    pub(crate) decoded_bytes: u64,
    /// Bytes of clusters that were read beyond as many as were produced.
    pub(crate) surplus_input_bytes: u64,
    /// Runs that decoded through a window of frames.
    pub(crate) windowed: u64,
    /// Runs on a worker.
    pub(crate) on_workers: u64,
    /// Parts of clusters that were copied to readers.
    pub(crate) served: u64,
    /// Bytes that were copied to readers, of clusters and of uncompressed data.
    pub(crate) served_bytes: u64,
}

impl DecodeCounters {
    /// Counts a run of a decoder that produced so many bytes.
    pub(crate) fn decoded(&mut self, bytes: usize) {
        self.decoded = self.decoded.wrapping_add(1);
        self.decoded_bytes = self.decoded_bytes.wrapping_add(to_u64(bytes));
    }

    /// Counts bytes of a cluster that were read beyond as many as were produced.
    pub(crate) fn surplus_input(&mut self, bytes: usize) {
        self.surplus_input_bytes = self.surplus_input_bytes.wrapping_add(to_u64(bytes));
    }

    /// Counts bytes of a cluster that were copied to a reader.
    pub(crate) fn served(&mut self, bytes: usize) {
        self.served = self.served.wrapping_add(1);
        self.served_raw(bytes);
    }

    /// Counts uncompressed bytes that were copied to a reader.
    pub(crate) fn served_raw(&mut self, bytes: usize) {
        self.served_bytes = self.served_bytes.wrapping_add(to_u64(bytes));
    }
}

/// The sum of what several threads counted, on cache lines of a group of threads. The numbers order
/// nothing, hence relaxed throughout.
#[derive(Debug, Default)]
struct SharedCounters {
    decoded: AtomicU64,
    decoded_bytes: AtomicU64,
    surplus_input_bytes: AtomicU64,
    windowed: AtomicU64,
    on_workers: AtomicU64,
    served: AtomicU64,
    served_bytes: AtomicU64,
}

impl SharedCounters {
    fn add(&self, counters: &DecodeCounters) {
        let pairs = [
            (&self.decoded, counters.decoded),
            (&self.decoded_bytes, counters.decoded_bytes),
            (&self.surplus_input_bytes, counters.surplus_input_bytes),
            (&self.windowed, counters.windowed),
            (&self.on_workers, counters.on_workers),
            (&self.served, counters.served),
            (&self.served_bytes, counters.served_bytes),
        ];
        // Most are zero, and an atomic addition takes longer than the check.
        for (sum, more) in pairs.into_iter().filter(|(_, more)| *more > 0) {
            sum.fetch_add(more, Ordering::Relaxed);
        }
    }

    /// Adds these numbers to a sum.
    fn add_to(&self, sum: &mut DecodeCounters) {
        let pairs = [
            (&mut sum.decoded, &self.decoded),
            (&mut sum.decoded_bytes, &self.decoded_bytes),
            (&mut sum.surplus_input_bytes, &self.surplus_input_bytes),
            (&mut sum.windowed, &self.windowed),
            (&mut sum.on_workers, &self.on_workers),
            (&mut sum.served, &self.served),
            (&mut sum.served_bytes, &self.served_bytes),
        ];
        for (sum, more) in pairs {
            *sum = sum.wrapping_add(more.load(Ordering::Relaxed));
        }
    }
}

fn to_u64(bytes: usize) -> u64 {
    u64::try_from(bytes).unwrap_or(u64::MAX)
}

/// How many decode slots there are.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SlotLimits {
    /// Whose holders decode at the same time.
    pub(crate) running: usize,
    /// In all, with those whose holders wait for the storage: at least `running`.
    pub(crate) held: usize,
}

/// The decode slots of an image, with the contexts that no slot uses now.
#[derive(Debug)]
pub(crate) struct ContextPool {
    state: Mutex<ContextPoolState>,
    released: Condvar,
    limits: SlotLimits,
    storage_reads: StorageReads,
    /// Reads that need no slot add to these, and take no lock.
    counters: Sharded<SharedCounters>,
}

#[derive(Debug, Default)]
struct ContextPoolState {
    idle: Vec<DecodeContext>,
    in_use: usize,
    /// How many of them were acquired by readers. The others belong to workers, which decode what
    /// a reader waits for, and to reads within a read.
    readers: usize,
    waiting: usize,
    acquisitions: u64,
    /// Acquisitions in a row by the reader that made the last one of a reader.
    consecutive: u64,
    last: Option<ThreadId>,
}

impl ContextPool {
    /// A pool with these limits, each at least one.
    pub(crate) fn new(limits: SlotLimits) -> Self {
        let running = limits.running.max(1);
        let held = limits.held.max(running);
        Self {
            state: Mutex::default(),
            released: Condvar::new(),
            limits: SlotLimits { running, held },
            storage_reads: StorageReads::default(),
            counters: Sharded::new(held, SharedCounters::default),
        }
    }

    /// How many threads decode at the same time.
    pub(crate) fn count(&self) -> usize {
        self.limits.running
    }

    /// How many threads hold a slot at the same time, those that wait for the storage included.
    pub(crate) fn held(&self) -> usize {
        self.limits.held
    }

    /// The count of slot holders that wait for the storage.
    pub(crate) fn storage_reads(&self) -> &StorageReads {
        &self.storage_reads
    }

    /// Acquires a slot, and waits if all are in use. The caller holds no permit.
    ///
    /// A thread that holds a slot gets another one at once, beyond the limit, as it reads something
    /// while it reads: the metadata that leads to a cluster, or another file in the `sink` of the
    /// first one.
    pub(crate) fn acquire(&self) -> DecodeSlot<'_> {
        let mut state = self.lock();
        let mut interval = MIN_POLL_INTERVAL;
        while !self.has_free_slot(&state) && HELD.get() == 0 {
            state.waiting = state.waiting.saturating_add(1);
            let woken = self.released.wait_timeout(state, interval);
            state = woken.unwrap_or_else(PoisonError::into_inner).0;
            state.waiting = state.waiting.saturating_sub(1);
            interval = interval.saturating_mul(2).min(MAX_POLL_INTERVAL);
        }
        self.grant(state, HELD.get() == 0)
    }

    /// Acquires a slot if one is free now: for best effort, and for workers that their reader can
    /// do without.
    pub(crate) fn try_acquire(&self) -> Option<DecodeSlot<'_>> {
        let state = self.lock();
        self.has_free_slot(&state).then(|| self.grant(state, false))
    }

    /// Whether one more thread may decode.
    fn has_free_slot(&self, state: &ContextPoolState) -> bool {
        let running = state.in_use.saturating_sub(self.storage_reads.count());
        running < self.limits.running && state.in_use < self.limits.held
    }

    /// Acquires a slot at once, beyond the limit: for workers whose readers only wait. There are no
    /// more of them than CPUs.
    pub(crate) fn acquire_over_limit(&self) -> DecodeSlot<'_> {
        self.grant(self.lock(), false)
    }

    fn grant(
        &self,
        mut state: MutexGuard<'_, ContextPoolState>,
        is_reader: bool,
    ) -> DecodeSlot<'_> {
        state.in_use = state.in_use.saturating_add(1);
        state.acquisitions = state.acquisitions.wrapping_add(1);
        if is_reader {
            state.readers = state.readers.saturating_add(1);
            let thread = Some(std::thread::current().id());
            let is_same = std::mem::replace(&mut state.last, thread) == thread;
            state.consecutive = if is_same { state.consecutive.saturating_add(1) } else { 0 };
        }
        HELD.set(HELD.get().saturating_add(1));
        DecodeSlot {
            decode_slots: self,
            context: state.idle.pop().unwrap_or_default(),
            is_reader,
            not_send: PhantomData,
        }
    }

    /// Whether other threads read beside the caller, who holds a slot, or did a moment ago. What
    /// the caller decodes may then be needed again soon. Workers that decode for the caller are no
    /// readers.
    pub(crate) fn is_contended(&self) -> bool {
        let state = self.lock();
        state.readers > 1 || state.waiting > 0 || state.consecutive < SOLE_READER_ACQUISITIONS
    }

    /// Whether any slot is in use.
    pub(crate) fn is_in_use(&self) -> bool {
        self.lock().in_use > 0
    }

    /// How often a slot was acquired.
    pub(crate) fn acquisitions(&self) -> u64 {
        self.lock().acquisitions
    }

    /// What was done in all slots, but for those that are in use.
    pub(crate) fn counters(&self) -> DecodeCounters {
        let mut sum = DecodeCounters::default();
        self.counters.iter().for_each(|shard| shard.add_to(&mut sum));
        sum
    }

    /// Adds what was done, in a slot or without one.
    pub(crate) fn add(&self, counters: &DecodeCounters) {
        self.counters.local().add(counters);
    }

    /// Frees the contexts that no slot uses.
    pub(crate) fn shrink(&self) {
        let idle = std::mem::take(&mut self.lock().idle);
        drop(idle);
    }

    /// A poisoned lock is used all the same: no step that leaves the state inconsistent can panic.
    fn lock(&self) -> MutexGuard<'_, ContextPoolState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A slot in use. It is released on drop.
#[derive(Debug)]
pub(crate) struct DecodeSlot<'a> {
    decode_slots: &'a ContextPool,
    context: DecodeContext,
    /// Whether it was acquired by a reader.
    is_reader: bool,
    /// It is counted for the thread that acquired it, so it must stay there.
    not_send: PhantomData<*const ()>,
}

impl Deref for DecodeSlot<'_> {
    type Target = DecodeContext;

    fn deref(&self) -> &DecodeContext {
        &self.context
    }
}

impl DerefMut for DecodeSlot<'_> {
    fn deref_mut(&mut self) -> &mut DecodeContext {
        &mut self.context
    }
}

impl Drop for DecodeSlot<'_> {
    fn drop(&mut self) {
        HELD.set(HELD.get().saturating_sub(1));
        let mut context = std::mem::take(&mut self.context);
        self.decode_slots.add(&std::mem::take(&mut context.counters));
        let mut state = self.decode_slots.lock();
        state.in_use = state.in_use.saturating_sub(1);
        state.readers = state.readers.saturating_sub(usize::from(self.is_reader));
        let is_awaited = state.waiting > 0;
        // The context of a slot beyond the limit is not kept.
        let surplus = if state.idle.len() < self.decode_slots.limits.running {
            state.idle.push(context);
            None
        } else {
            Some(context)
        };
        drop(state);
        drop(surplus);
        if is_awaited {
            self.decode_slots.released.notify_one();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;

    use super::*;

    #[test]
    fn a_context_comes_back_with_what_was_left_in_it() {
        let memory = MemoryPool::new(MemoryPool::MIN_BYTES).unwrap();
        let decode_slots = ContextPool::new(SlotLimits { running: 1, held: 1 });
        let mut buffer = memory.buffer(4096, AllocPolicy::MustSucceed).unwrap();
        buffer[0] = 9;
        decode_slots.acquire().keep_output(buffer);
        let policy = AllocPolicy::MustSucceed;
        assert!(decode_slots.acquire().take_output(&memory, 100, policy).unwrap()[0] == 9);
    }

    #[test]
    fn counters_of_all_threads_and_slots_are_summed() {
        let decode_slots = ContextPool::new(SlotLimits { running: 2, held: 4 });
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..100 {
                        let mut counters = DecodeCounters::default();
                        counters.served(10);
                        decode_slots.add(&counters);
                        decode_slots.acquire().counters.decoded(20);
                    }
                });
            }
        });
        let mut wanted = DecodeCounters::default();
        (wanted.decoded, wanted.decoded_bytes) = (400, 8000);
        (wanted.served, wanted.served_bytes) = (400, 4000);
        assert_eq!(decode_slots.counters(), wanted);
    }

    #[test]
    fn no_more_threads_decode_than_there_are_decode_slots() {
        let decode_slots = ContextPool::new(SlotLimits { running: 2, held: 2 });
        let (inside, peak) = (AtomicUsize::new(0), AtomicUsize::new(0));
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    for _ in 0..200 {
                        let slot = decode_slots.acquire();
                        let now = inside.fetch_add(1, Ordering::SeqCst) + 1;
                        peak.fetch_max(now, Ordering::SeqCst);
                        std::thread::yield_now();
                        inside.fetch_sub(1, Ordering::SeqCst);
                        drop(slot);
                    }
                });
            }
        });
        assert!((1..=2).contains(&peak.into_inner()));
        let held = (decode_slots.acquire(), decode_slots.acquire());
        assert!(decode_slots.try_acquire().is_none());
        let beyond = decode_slots.acquire();
        drop((held, beyond));
        assert!(decode_slots.try_acquire().is_some());
        assert!(decode_slots.lock().idle.len() <= 2);
    }

    #[test]
    fn holders_that_wait_for_the_storage_make_room_up_to_the_limit() {
        let decode_slots = ContextPool::new(SlotLimits { running: 1, held: 3 });
        let decoding = decode_slots.acquire();
        assert!(decode_slots.try_acquire().is_none());
        let first = decode_slots.storage_reads().begin();
        let second_slot = decode_slots.try_acquire().unwrap();
        assert!(decode_slots.try_acquire().is_none(), "the second one decodes");
        let second = decode_slots.storage_reads().begin();
        let third_slot = decode_slots.try_acquire().unwrap();
        let third = decode_slots.storage_reads().begin();
        assert!(decode_slots.try_acquire().is_none(), "three are held");
        drop((first, second, third, third_slot, second_slot));
        assert!(decode_slots.try_acquire().is_none(), "the first one decodes again");
        drop(decoding);
        assert!(decode_slots.try_acquire().is_some());
    }

    #[test]
    fn a_thread_that_waits_notices_that_the_holder_waits_for_the_storage() {
        let decode_slots = ContextPool::new(SlotLimits { running: 1, held: 2 });
        let held = decode_slots.acquire();
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| drop(decode_slots.acquire()));
            while decode_slots.lock().waiting == 0 {
                std::thread::yield_now();
            }
            // Nobody releases a slot, and nobody is woken.
            let reading = decode_slots.storage_reads().begin();
            waiting.join().unwrap();
            drop(reading);
        });
        drop(held);
    }

    #[test]
    fn workers_that_help_a_reader_are_no_other_readers() {
        let decode_slots = ContextPool::new(SlotLimits { running: 4, held: 4 });
        for _ in 0..SOLE_READER_ACQUISITIONS {
            drop(decode_slots.acquire());
        }
        let reader = decode_slots.acquire();
        assert!(!decode_slots.is_contended());
        std::thread::scope(|scope| {
            let helping = || {
                let helper = decode_slots.try_acquire();
                let other = decode_slots.acquire_over_limit();
                let is_contended = decode_slots.is_contended();
                drop((helper, other));
                is_contended
            };
            assert!(!scope.spawn(helping).join().unwrap());
            let reading = || {
                let slot = decode_slots.acquire();
                let is_contended = decode_slots.is_contended();
                drop(slot);
                is_contended
            };
            assert!(scope.spawn(reading).join().unwrap());
        });
        assert!(decode_slots.is_contended(), "another thread has read a moment ago");
        drop(reader);
        assert!(decode_slots.lock().readers == 0);
    }
}

//! Decode slots: how many threads decode at the same time, and the context that each of them needs
//! for it: a decoder, a window on the input and an output buffer. They stay warm from one
//! acquisition to the next, so that a read allocates nothing once the image is warm.
//!
//! More threads than decode slots would gain nothing, as there is a slot for each CPU, and would
//! cost memory. So they wait here, where they hold nothing that another thread could wait for.
//! Three rules prevent deadlock:
//!
//! * A thread that holds a [`FillPermit`](ferrofs_workers::single_flight::FillPermit) holds a slot,
//!   and waits for no other permit.
//! * A thread that waits for a cluster holds no permit.
//! * A thread that waits for a slot holds no slot and no permit.

use std::cell::Cell;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut, Range};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::ThreadId;

use ferrofs_codec::{Decoder, DecoderSettings};
use ferrofs_workers::memory::{AllocPolicy, Buffer, Charge};

use crate::error::{ErrorKind, Result};
use crate::extent::Cluster;
use crate::memory::MemoryPool;
use crate::source::{Devices, outside, read_up_to};

/// After so many acquisitions in a row a thread counts as the only one that reads.
const SOLE_READER_ACQUISITIONS: u64 = 64;

/// Longer buffers are freed after each use: they are too large a part of a small budget to lie
/// idle.
const KEPT_OUTPUT_BYTES: usize = 1 << 20;

/// Bytes to read for a reader that goes through the image in order.
const AHEAD_BYTES: usize = 256 << 10;

/// Bytes to read for a reader that has just jumped.
const JUMP_BYTES: usize = 16 << 10;

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
    /// A buffer of at least `bytes` bytes: the last one, if it is long enough.
    pub(crate) fn take_output(&mut self, memory: &MemoryPool, bytes: usize) -> Result<Buffer> {
        match self.output.take() {
            Some(buffer) if buffer.len() >= bytes => Ok(buffer),
            smaller => {
                // Freed first: no thread waits for memory while it holds some.
                drop(smaller);
                memory.buffer(bytes, AllocPolicy::MustSucceed)
            }
        }
    }

    /// Counts a cluster that was decoded. An uncompressed one was only copied, and does not count.
    pub(crate) fn count(&mut self, cluster: &Cluster, bytes: usize) {
        if cluster.is_compressed() {
            self.counters.decoded(bytes);
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

/// What was read and decoded. Each slot counts for itself and adds its counters to the sum when it
/// is released, under the lock that it takes anyway: shared counters would cost more than decoding
/// a small cluster does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct DecodeCounters {
    /// Runs of a decoder that ended well.
    pub(crate) decoded: u64,
    /// Bytes that those runs produced.
    pub(crate) decoded_bytes: u64,
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
    /// Adds other counters.
    pub(crate) fn merge(&mut self, other: &Self) {
        let pairs = [
            (&mut self.decoded, other.decoded),
            (&mut self.decoded_bytes, other.decoded_bytes),
            (&mut self.windowed, other.windowed),
            (&mut self.on_workers, other.on_workers),
            (&mut self.served, other.served),
            (&mut self.served_bytes, other.served_bytes),
        ];
        for (sum, more) in pairs {
            *sum = sum.wrapping_add(more);
        }
    }

    /// Counts a run of a decoder that produced so many bytes.
    pub(crate) fn decoded(&mut self, bytes: usize) {
        self.decoded = self.decoded.wrapping_add(1);
        self.decoded_bytes = self.decoded_bytes.wrapping_add(wide(bytes));
    }

    /// Counts bytes of a cluster that were copied to a reader.
    pub(crate) fn served(&mut self, bytes: usize) {
        self.served = self.served.wrapping_add(1);
        self.served_raw(bytes);
    }

    /// Counts uncompressed bytes that were copied to a reader.
    pub(crate) fn served_raw(&mut self, bytes: usize) {
        self.served_bytes = self.served_bytes.wrapping_add(wide(bytes));
    }
}

fn wide(bytes: usize) -> u64 {
    u64::try_from(bytes).unwrap_or(u64::MAX)
}

/// The decode slots of an image, with the contexts that no slot uses now.
#[derive(Debug)]
pub(crate) struct ContextPool {
    state: Mutex<ContextPoolState>,
    released: Condvar,
    most: usize,
}

#[derive(Debug, Default)]
struct ContextPoolState {
    idle: Vec<DecodeContext>,
    in_use: usize,
    waiting: usize,
    acquisitions: u64,
    /// Acquisitions in a row by the thread that made the last one.
    consecutive: u64,
    last: Option<ThreadId>,
    counters: DecodeCounters,
}

impl ContextPool {
    /// A pool of `most` slots, at least one.
    pub(crate) fn new(most: usize) -> Self {
        Self { state: Mutex::default(), released: Condvar::new(), most: most.max(1) }
    }

    /// How many there are.
    pub(crate) fn count(&self) -> usize {
        self.most
    }

    /// Acquires a slot, and waits if all are in use. The caller holds no permit.
    ///
    /// A thread that holds a slot gets another one at once, beyond the limit, as it reads something
    /// while it reads: the metadata that leads to a cluster, or another file in the `sink` of the
    /// first one.
    pub(crate) fn acquire(&self) -> DecodeSlot<'_> {
        let mut state = self.lock();
        while state.in_use >= self.most && HELD.get() == 0 {
            state.waiting = state.waiting.saturating_add(1);
            state = self.released.wait(state).unwrap_or_else(PoisonError::into_inner);
            state.waiting = state.waiting.saturating_sub(1);
        }
        self.grant(state)
    }

    /// Acquires a slot if one is free now: for best effort, and for workers that their reader can
    /// do without.
    pub(crate) fn try_acquire(&self) -> Option<DecodeSlot<'_>> {
        let state = self.lock();
        (state.in_use < self.most).then(|| self.grant(state))
    }

    /// Acquires a slot at once, beyond the limit: for workers whose readers only wait. There are no
    /// more of them than CPUs.
    pub(crate) fn acquire_over_limit(&self) -> DecodeSlot<'_> {
        self.grant(self.lock())
    }

    fn grant(&self, mut state: MutexGuard<'_, ContextPoolState>) -> DecodeSlot<'_> {
        state.in_use = state.in_use.saturating_add(1);
        state.acquisitions = state.acquisitions.wrapping_add(1);
        let thread = Some(std::thread::current().id());
        let before = std::mem::replace(&mut state.last, thread);
        state.consecutive = if before == thread { state.consecutive.saturating_add(1) } else { 0 };
        HELD.set(HELD.get().saturating_add(1));
        DecodeSlot {
            decode_slots: self,
            context: state.idle.pop().unwrap_or_default(),
            not_send: PhantomData,
        }
    }

    /// Whether other threads read beside the caller, who holds a slot, or did a moment ago. What
    /// the caller decodes may then be needed again soon.
    pub(crate) fn is_contended(&self) -> bool {
        let state = self.lock();
        state.in_use > 1 || state.waiting > 0 || state.consecutive < SOLE_READER_ACQUISITIONS
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
        self.lock().counters
    }

    /// Adds what was done without a slot.
    pub(crate) fn add(&self, counters: &DecodeCounters) {
        self.lock().counters.merge(counters);
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
        let mut state = self.decode_slots.lock();
        state.in_use = state.in_use.saturating_sub(1);
        state.counters.merge(&std::mem::take(&mut context.counters));
        let is_awaited = state.waiting > 0;
        // The context of a slot beyond the limit is not kept.
        let surplus = if state.idle.len() < self.decode_slots.most {
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

/// Bytes of a device that a reader needs, and the bytes that it will need next.
#[derive(Clone, Copy, Debug)]
pub(crate) struct InputRequest {
    pub(crate) device: u16,
    pub(crate) offset: u64,
    pub(crate) bytes: usize,
    /// How far the bytes reach that are needed next, from `offset` on, if that is known: then
    /// exactly those are read together. 0 if it is not.
    pub(crate) run_bytes: usize,
}

/// A window on a device: one read brings neighbouring clusters, also those of the next file.
#[derive(Debug, Default)]
pub(crate) struct InputWindow {
    buffer: Option<Buffer>,
    device: u16,
    start: u64,
    filled: usize,
}

impl InputWindow {
    /// The longest request that [`InputWindow::get`] is meant for.
    pub(crate) const MAX_BYTES: u64 = 1 << 20;

    /// The requested bytes. `policy` says whether to wait for memory.
    pub(crate) fn get(
        &mut self,
        devices: &Devices,
        memory: &MemoryPool,
        wanted: InputRequest,
        policy: AllocPolicy,
    ) -> Result<&[u8]> {
        let InputRequest { device, offset, bytes, .. } = wanted;
        if self.range(device, offset, bytes).is_none() {
            self.fill(devices, memory, wanted, policy)?;
        }
        let range = self.range(device, offset, bytes);
        Ok(range.and_then(|range| self.buffer.as_ref()?.get(range)).unwrap_or_default())
    }

    fn range(&self, device: u16, offset: u64, bytes: usize) -> Option<Range<usize>> {
        let start = usize::try_from(offset.checked_sub(self.start)?).ok()?;
        let end = start.checked_add(bytes)?;
        (device == self.device && end <= self.filled).then_some(start..end)
    }

    fn fill(
        &mut self,
        devices: &Devices,
        memory: &MemoryPool,
        wanted: InputRequest,
        policy: AllocPolicy,
    ) -> Result<()> {
        let InputRequest { device, offset, bytes, run_bytes } = wanted;
        let length = self.length_for(devices, wanted);
        self.filled = 0;
        let buffer = match self.buffer.take() {
            Some(buffer) if buffer.len() >= length => buffer,
            smaller => {
                // Freed first: no thread waits for memory while it holds some.
                drop(smaller);
                memory.buffer(length.max(run_bytes), policy)?
            }
        };
        let target = self.buffer.insert(buffer).get_mut(..length).unwrap_or_default();
        let place = devices.locate(device, offset)?;
        let got = read_up_to(place.source, place.offset, target)?;
        if got < bytes {
            let wanted = u64::try_from(bytes).unwrap_or(u64::MAX);
            return Err(outside(offset, wanted, place.source.current_length()));
        }
        (self.device, self.start, self.filled) = (device, offset, got);
        Ok(())
    }

    /// How many bytes to read for a request.
    fn length_for(&self, devices: &Devices, wanted: InputRequest) -> usize {
        let InputRequest { device, offset, bytes, run_bytes } = wanted;
        if !devices.is_one_source() {
            // A read must not cross from one device into the next.
            return bytes;
        }
        if run_bytes > 0 {
            return bytes.max(run_bytes);
        }
        let filled = u64::try_from(self.filled).unwrap_or(u64::MAX);
        let ahead = u64::try_from(AHEAD_BYTES).unwrap_or(u64::MAX);
        let near = self.start..=self.start.saturating_add(filled).saturating_add(ahead);
        let is_sequential = device == self.device && near.contains(&offset);
        bytes.max(if is_sequential { AHEAD_BYTES } else { JUMP_BYTES })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use ferrofs_ondisk::BlockSize;

    use super::*;

    #[test]
    fn a_context_comes_back_with_what_was_left_in_it() {
        let memory = MemoryPool::new(MemoryPool::MIN_BYTES).unwrap();
        let decode_slots = ContextPool::new(1);
        let mut buffer = memory.buffer(4096, AllocPolicy::MustSucceed).unwrap();
        buffer[0] = 9;
        decode_slots.acquire().keep_output(buffer);
        assert!(decode_slots.acquire().take_output(&memory, 100).unwrap()[0] == 9);
    }

    #[test]
    fn no_more_threads_decode_than_there_are_decode_slots() {
        let decode_slots = ContextPool::new(2);
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
    fn a_window_serves_what_it_has_and_fails_past_the_end() {
        let bytes: Vec<u8> = (0..=255).cycle().take(40_000).collect();
        let size = BlockSize::from_bits(9).unwrap();
        let devices = Devices::new(Arc::new(bytes.clone()), &[], Vec::new(), size).unwrap();
        let memory = MemoryPool::new(MemoryPool::MIN_BYTES).unwrap();
        let mut window = InputWindow::default();
        let mut get = |offset: u64, bytes, run_bytes| {
            let wanted = InputRequest { device: 0, offset, bytes, run_bytes };
            window.get(&devices, &memory, wanted, AllocPolicy::MustSucceed).map(<[u8]>::to_vec)
        };
        for (offset, count) in [(5, 10), (10, 100), (30_000, 9_000), (0, 1), (39_999, 1)] {
            for run_bytes in [0, 20_000] {
                let got = get(offset as u64, count, run_bytes).unwrap();
                assert_eq!(got, &bytes[offset..offset + count]);
            }
        }
        assert!(get(39_999, 2, 0).is_err());
        assert!(get(u64::MAX, 2, 0).is_err());
        assert_eq!(get(7, 1, 0).unwrap(), [7]);
    }
}

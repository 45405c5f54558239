//! The queues of the workqueue experiment: the queues to beat, and that of ferrofs-workers, each a row. The bench runs them on
//! this machine; the model includes this file and runs them over simulated CPUs.
//!
//! The queues to beat are made anew from the description of QEMU's threaded workqueue (Xiao Guangrong, 2018, with Emilio
//! Cota's changes), neither improved nor worsened:
//!
//! * [`SharedState`]: version 2. One array of slots, two bitmaps and one completion event for all workers.
//! * [`PerThreadState`]: slots, bitmaps and completion event of each worker on cache lines of their own (version 3, and
//!   Cota's branch).
//!
//! Either takes an [`Assignment`]: round robin as posted, or Cota's batching. Ours runs with a submitter that works when all
//! workers that have a CPU are busy, as the engine uses it, and with one that only submits and waits, over all workers, as
//! the other queues do.

use std::cell::Cell;
use std::rc::Rc;

use anyhow::{Context, Result, bail, ensure};

use crate::page_store::{Deflater, PageStore};
use crate::sync::queue::{
    ActiveWorkers, DispatchPolicy, Handler, NoHandler, RequestOutcome, WorkQueue, WorkQueueSettings,
};
use crate::sync::{
    Arc, AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Futex, Ordering, OwnedThread, fence, pause,
    placed, start,
};

const WORD_BITS: usize = 64;
/// Looks of an idle worker of a queue to beat before it sleeps.
const POLLS: usize = 1000;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct PoolShape {
    pub(crate) workers: usize,
    /// Requests that each worker may have before it.
    pub(crate) slots: usize,
}

/// What the done-callbacks saw.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct PassStats {
    pub(crate) pages: u64,
    pub(crate) bytes: u64,
}

impl PassStats {
    /// A page that became this many bytes; none when it failed.
    pub(crate) fn add(&mut self, bytes: u64) {
        self.pages += u64::from(bytes > 0);
        self.bytes += bytes;
    }
}

/// A way to have all pages touched, submitted and compressed: each page once, in the order of addresses. It returns when all
/// are done.
pub(crate) type Row = Box<dyn FnMut() -> Result<PassStats>>;

/// A queue with its threads started; ours on this many `cpus`, on the available ones if none is given.
pub(crate) fn queue(
    name: &str,
    pages: &Arc<PageStore>,
    shape: PoolShape,
    cpus: Option<usize>,
) -> Result<Row> {
    match name {
        "original" => baseline::<SharedState>(pages, shape, Assignment::RoundRobin),
        "batching" => baseline::<SharedState>(pages, shape, Assignment::UntilFull),
        "per-thread" => baseline::<PerThreadState>(pages, shape, Assignment::UntilFull),
        "round-robin" => baseline::<PerThreadState>(pages, shape, Assignment::RoundRobin),
        _ => ours(name, pages, shape, cpus),
    }
}

/// Which worker gets the next request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Assignment {
    /// One request a worker, in rotation: as posted, in versions 2 and 3.
    RoundRobin,
    /// The same worker until its slots are full: Cota's batching.
    UntilFull,
}

/// A bitmap of any length in words that all workers share.
#[derive(Debug)]
struct Bitmap(Box<[AtomicU64]>);

impl Bitmap {
    fn new(bits: usize) -> Self {
        let words: Box<[_]> = (0..bits.div_ceil(WORD_BITS)).map(|_| AtomicU64::new(0)).collect();
        placed(&words);
        Self(words)
    }

    /// Acquire pairs with both ways to flip a bit.
    fn word(&self, number: usize) -> u64 {
        self.0[number].load(Ordering::Acquire)
    }

    /// Flips a bit in a word that only one thread writes, without a locked instruction.
    fn flip_alone(&self, bit: usize) {
        let word = &self.0[bit / WORD_BITS];
        // Relaxed: this thread wrote it last. Release pairs with `word`.
        let flipped = word.load(Ordering::Relaxed) ^ (1 << (bit % WORD_BITS));
        word.store(flipped, Ordering::Release);
    }

    /// Flips a bit in a word that others write, too.
    fn flip_shared(&self, bit: usize) {
        // As strong as QEMU's change_bit_atomic; pairs with `word`.
        self.0[bit / WORD_BITS].fetch_xor(1 << (bit % WORD_BITS), Ordering::SeqCst);
    }
}

/// The first set bit of `from..to` in the words that `word` gives.
fn first_set(from: usize, to: usize, word: impl Fn(usize) -> u64) -> Option<usize> {
    let mut start = from;
    while start < to {
        let number = start / WORD_BITS;
        let above = word(number) & (u64::MAX << (start % WORD_BITS));
        if above != 0 {
            let bit = number * WORD_BITS + usize::try_from(above.trailing_zeros()).ok()?;
            return (bit < to).then_some(bit);
        }
        start = (number + 1) * WORD_BITS;
    }
    None
}

const SET: u32 = 0;
const FREE: u32 = 1;
const BUSY: u32 = u32::MAX;

/// QEMU's event: set, free, or busy with a sleeper, and a system call only in the last case.
#[derive(Debug)]
struct ResetEvent(Futex);

impl Default for ResetEvent {
    fn default() -> Self {
        Self(Futex::new(FREE))
    }
}

impl ResetEvent {
    /// Sets it and wakes whoever sleeps.
    fn set(&self) {
        // Publishes the work to whoever sees the event free: pairs with the fence in `reset`.
        fence(Ordering::SeqCst);
        // Relaxed: the fence above orders it.
        let state = &self.0.word;
        if state.load(Ordering::Relaxed) != SET && state.swap(SET, Ordering::SeqCst) == BUSY {
            self.0.wake_all();
        }
    }

    /// Clears the set state, before looking for work.
    fn reset(&self) {
        // Acquire pairs with the swap in `set`. `SET | FREE` is FREE; BUSY stays as it is.
        if self.0.word.load(Ordering::Acquire) == SET {
            self.0.word.fetch_or(FREE, Ordering::SeqCst);
        }
        // Pairs with the fence in `set`.
        fence(Ordering::SeqCst);
    }

    /// Sleeps unless set. It may return early: callers look again.
    fn wait(&self) {
        // Acquire pairs with the swap in `set`, here and below.
        let (word, state) = (&self.0.word, self.0.word.load(Ordering::Acquire));
        let is_set = || {
            let swapped = word.compare_exchange(FREE, BUSY, Ordering::SeqCst, Ordering::Acquire);
            swapped == Err(SET)
        };
        if state == SET || state == FREE && is_set() {
            return;
        }
        self.0.wait(BUSY);
    }
}

/// A request, as large and as dense as in QEMU's bench: a header of 8 bytes, then the payload, in which the stream of
/// zlib stands between header and page. Our stream lives with the worker; its space is kept so that neighbours share
/// cache lines just as they do there.
#[derive(Debug, Default)]
#[repr(C, align(8))]
struct RequestSlot {
    is_done: AtomicBool,
    _stream_space: [u64; 14],
    page: AtomicUsize,
    written_bytes: AtomicU32,
    _buffer_space: u64,
}

// All accesses are relaxed: the bitmaps pass a slot on, and pair with each other.
impl RequestSlot {
    /// By the worker that owns the slot. A failure counts no page, and the pass reports it.
    fn handle(&self, pages: &PageStore, deflater: &mut Deflater) {
        let page = pages.page(self.page.load(Ordering::Relaxed));
        let bytes = page.and_then(|page| deflater.compress(page).ok()).unwrap_or(0);
        self.written_bytes.store(u32::try_from(bytes).unwrap_or(0), Ordering::Relaxed);
        self.is_done.store(true, Ordering::Relaxed);
    }

    /// By the submitter that owns the slot again: the done-callback, once a request.
    fn collect(&self, stats: &mut PassStats) {
        if self.is_done.load(Ordering::Relaxed) {
            self.is_done.store(false, Ordering::Relaxed);
            stats.add(self.written_bytes.load(Ordering::Relaxed).into());
        }
    }
}

/// Slots and events, in one layout or the other.
trait QueueState: Send + Sync + Sized + 'static {
    fn new(shape: PoolShape) -> Result<Self>;
    /// The event of a worker, and whether it has to end.
    fn control(&self, worker: usize) -> (&ResetEvent, &AtomicBool);
    /// A slot, counted from the first of its worker.
    fn slot(&self, worker: usize, index: usize) -> &RequestSlot;
    /// A slot that the submitter filled and the worker has not handled.
    fn find_filled(&self, worker: usize) -> Option<usize>;
    /// A free slot with its worker, from this worker on.
    fn find_free(&self, from: usize) -> Option<(usize, usize)>;
    /// By the submitter.
    fn enqueue(&self, worker: usize, index: usize);
    /// By the worker.
    fn complete(&self, worker: usize, index: usize);
    /// By the submitter: sleeps until no slot is filled, and collects all.
    fn wait(&self, stats: &mut PassStats);
}

/// Version 2: every field that workers write is shared by all of them. A slot belongs to the submitter while its bits in
/// the two bitmaps are equal, else to its worker.
#[derive(Debug)]
struct SharedState {
    slots: Box<[RequestSlot]>,
    fill: Bitmap,
    done: Bitmap,
    completion: ResetEvent,
    workers: Box<[WorkerEvent]>,
    slots_per_worker: usize,
}

/// What a worker shares with the submitter alone, with the space of the other fields there.
#[derive(Debug, Default)]
struct WorkerEvent {
    event: ResetEvent,
    quit: AtomicBool,
    _space: [u64; 5],
}

impl SharedState {
    fn filled(&self, word: usize) -> u64 {
        self.fill.word(word) ^ self.done.word(word)
    }
}

impl QueueState for SharedState {
    fn new(shape: PoolShape) -> Result<Self> {
        let count = shape.workers * shape.slots;
        let slots: Box<[RequestSlot]> = (0..count).map(|_| RequestSlot::default()).collect();
        let workers: Box<[WorkerEvent]> =
            (0..shape.workers).map(|_| WorkerEvent::default()).collect();
        placed(&slots);
        placed(&workers);
        let [fill, done] = [count; 2].map(Bitmap::new);
        let completion = ResetEvent::default();
        Ok(Self { slots, fill, done, completion, workers, slots_per_worker: shape.slots })
    }

    fn control(&self, worker: usize) -> (&ResetEvent, &AtomicBool) {
        let WorkerEvent { event, quit, .. } = &self.workers[worker];
        (event, quit)
    }

    fn slot(&self, worker: usize, index: usize) -> &RequestSlot {
        &self.slots[worker * self.slots_per_worker + index]
    }

    fn find_filled(&self, worker: usize) -> Option<usize> {
        let first = worker * self.slots_per_worker;
        let found = first_set(first, first + self.slots_per_worker, |word| self.filled(word))?;
        Some(found - first)
    }

    fn find_free(&self, from: usize) -> Option<(usize, usize)> {
        let (from, free) = (from * self.slots_per_worker, |word| !self.filled(word));
        let found = first_set(from, self.slots.len(), free).or_else(|| first_set(0, from, free))?;
        Some((found / self.slots_per_worker, found % self.slots_per_worker))
    }

    fn enqueue(&self, worker: usize, index: usize) {
        self.fill.flip_alone(worker * self.slots_per_worker + index);
    }

    fn complete(&self, worker: usize, index: usize) {
        self.done.flip_shared(worker * self.slots_per_worker + index);
        self.completion.set();
    }

    fn wait(&self, stats: &mut PassStats) {
        loop {
            self.completion.reset();
            // From the first slot on, up to the first that a worker still has.
            let are_all_free = self.slots.iter().enumerate().all(|(index, slot)| {
                let is_free = first_set(index, index + 1, |word| self.filled(word)).is_none();
                if is_free {
                    slot.collect(stats);
                }
                is_free
            });
            if are_all_free {
                return;
            }
            self.completion.wait();
        }
    }
}

/// A value on a cache line of its own, of 64 bytes as in QEMU.
#[derive(Debug, Default)]
#[repr(align(64))]
struct OnLine<T>(T);

/// Everything that a worker writes on cache lines of its own.
#[derive(Debug)]
struct PerThreadState(Box<[WorkerState]>);

#[derive(Debug, Default)]
struct WorkerState {
    fill: OnLine<AtomicU64>,
    done: OnLine<AtomicU64>,
    event: OnLine<ResetEvent>,
    completion: OnLine<ResetEvent>,
    quit: OnLine<AtomicBool>,
    slots: Box<[OnLine<RequestSlot>]>,
}

impl WorkerState {
    /// Acquire pairs with the store in `enqueue` and with the flip of the done bit in `complete`.
    fn filled(&self) -> u64 {
        self.fill.0.load(Ordering::Acquire) ^ self.done.0.load(Ordering::Acquire)
    }
}

impl QueueState for PerThreadState {
    fn new(shape: PoolShape) -> Result<Self> {
        ensure!(shape.slots <= WORD_BITS, "{} slots, {WORD_BITS} fit in a word", shape.slots);
        let worker = |_| WorkerState {
            slots: (0..shape.slots).map(|_| OnLine::default()).collect(),
            ..WorkerState::default()
        };
        Ok(Self((0..shape.workers).map(worker).collect()))
    }

    fn control(&self, worker: usize) -> (&ResetEvent, &AtomicBool) {
        let WorkerState { event, quit, .. } = &self.0[worker];
        (&event.0, &quit.0)
    }

    fn slot(&self, worker: usize, index: usize) -> &RequestSlot {
        &self.0[worker].slots[index].0
    }

    fn find_filled(&self, worker: usize) -> Option<usize> {
        let filled = self.0[worker].filled();
        (filled != 0).then(|| usize::try_from(filled.trailing_zeros()).ok())?
    }

    fn find_free(&self, from: usize) -> Option<(usize, usize)> {
        (from..self.0.len()).chain(0..from).find_map(|worker| {
            let state = &self.0[worker];
            let index = usize::try_from((!state.filled()).trailing_zeros()).ok()?;
            (index < state.slots.len()).then_some((worker, index))
        })
    }

    fn enqueue(&self, worker: usize, index: usize) {
        // Relaxed: the submitter alone writes it. Release pairs with `filled`.
        let fill = &self.0[worker].fill.0;
        fill.store(fill.load(Ordering::Relaxed) ^ (1 << index), Ordering::Release);
    }

    fn complete(&self, worker: usize, index: usize) {
        self.0[worker].done.0.fetch_xor(1 << index, Ordering::SeqCst);
        self.0[worker].completion.0.set();
    }

    fn wait(&self, stats: &mut PassStats) {
        for state in &self.0 {
            loop {
                state.completion.0.reset();
                if state.filled() == 0 {
                    break;
                }
                state.completion.0.wait();
            }
            state.slots.iter().for_each(|slot| slot.0.collect(stats));
        }
    }
}

/// Ends and awaits its threads when it is dropped.
#[derive(Debug)]
struct BaselineQueue<S: QueueState> {
    state: Arc<S>,
    threads: Vec<OwnedThread>,
}

fn baseline<S: QueueState>(
    pages: &Arc<PageStore>,
    shape: PoolShape,
    assignment: Assignment,
) -> Result<Row> {
    let state = Arc::new(S::new(shape)?);
    placed(std::slice::from_ref(&*state));
    let (pages, mut current) = (Arc::clone(pages), 0);
    let mut queue = BaselineQueue { state, threads: Vec::new() };
    for worker in 0..shape.workers {
        let deflaters = (0..shape.slots).map(|_| Deflater::new());
        let mut deflaters = deflaters.collect::<Result<Vec<_>>>()?;
        let (state, pages) = (Arc::clone(&queue.state), Arc::clone(&pages));
        let body = move || work(&*state, worker, &pages, &mut deflaters);
        queue.threads.push(start(worker, body)?);
    }
    Ok(Box::new(move || {
        let (state, mut stats) = (&queue.state, PassStats::default());
        for page in 0..pages.count() {
            pages.touch(page);
            let (worker, index) = loop {
                if let Some(found) = state.find_free(current) {
                    break found;
                }
            };
            let slot = state.slot(worker, index);
            slot.collect(&mut stats);
            // Relaxed: the submitter owns the slot, and `enqueue` publishes it.
            slot.page.store(page, Ordering::Relaxed);
            state.enqueue(worker, index);
            state.control(worker).0.set();
            current = match assignment {
                Assignment::RoundRobin => (worker + 1) % shape.workers,
                Assignment::UntilFull => worker,
            };
        }
        state.wait(&mut stats);
        Ok(stats)
    }))
}

fn work<S: QueueState>(state: &S, worker: usize, pages: &PageStore, deflaters: &mut [Deflater]) {
    let poll = || {
        (0..POLLS).find_map(|_| {
            let found = state.find_filled(worker);
            if found.is_none() {
                pause();
            }
            found
        })
    };
    let (event, quit) = state.control(worker);
    loop {
        event.reset();
        // Relaxed: the fence of `reset` pairs with that of `set`, which comes after the store.
        if quit.load(Ordering::Relaxed) {
            return;
        }
        let Some(index) = poll() else {
            event.wait();
            continue;
        };
        state.slot(worker, index).handle(pages, &mut deflaters[index]);
        state.complete(worker, index);
    }
}

impl<S: QueueState> Drop for BaselineQueue<S> {
    fn drop(&mut self) {
        for worker in 0..self.threads.len() {
            let (event, quit) = self.state.control(worker);
            // Relaxed: the fence of `set` publishes it.
            quit.store(true, Ordering::Relaxed);
            event.set();
        }
    }
}

/// A page, and the bytes that it became.
type PageRequest = (usize, u64);

#[derive(Debug)]
struct Compressor(Arc<PageStore>, Deflater);

impl Handler for Compressor {
    type Request = PageRequest;

    fn handle(&mut self, (number, bytes): &mut PageRequest) {
        let Self(pages, deflater) = self;
        let page = pages.page(*number);
        *bytes = page.and_then(|page| deflater.compress(page).ok()).unwrap_or(0);
    }
}

/// Our queue on this many `cpus`; on the available ones if none is given. The submitter works if not all workers are active.
fn ours(name: &str, pages: &Arc<PageStore>, shape: PoolShape, cpus: Option<usize>) -> Result<Row> {
    let (dispatch_policy, active_workers) = match name {
        "ours-waiting" => (DispatchPolicy::FillFirst, ActiveWorkers::All),
        "ours-round-robin" => (DispatchPolicy::RoundRobin, ActiveWorkers::OnePerCpu),
        "ours" => (DispatchPolicy::FillFirst, ActiveWorkers::OnePerCpu),
        _ => bail!("no such queue"),
    };
    let mut settings = WorkQueueSettings::new("queue")
        .workers(shape.workers)
        .slots(shape.slots)
        .dispatch_policy(dispatch_policy)
        .active_workers(active_workers);
    if let Some(cpus) = cpus {
        settings = settings.cpus(cpus);
    }
    let stats = Rc::new(Cell::new(PassStats::default()));
    let (counted, of_workers, pages) = (Rc::clone(&stats), Arc::clone(pages), Arc::clone(pages));
    let make = move || {
        let deflater = Deflater::new().map_err(|_| NoHandler)?;
        Ok(Compressor(Arc::clone(&of_workers), deflater))
    };
    let on_done = move |&mut (_, bytes): &mut PageRequest, outcome| {
        let mut sum = counted.get();
        sum.add(if outcome == RequestOutcome::Done { bytes } else { 0 });
        counted.set(sum);
    };
    let queue = WorkQueue::new(&settings, PageRequest::default, make, on_done);
    let mut queue = queue.context("making a queue")?;
    Ok(Box::new(move || {
        for page in 0..pages.count() {
            pages.touch(page);
            let mut slot = match active_workers {
                ActiveWorkers::All => queue.reserve(),
                _ => queue.reserve_or_inline(),
            };
            slot.request().0 = page;
            slot.submit();
        }
        queue.wait();
        Ok(stats.take())
    }))
}

#[cfg(test)]
mod tests {
    use super::{Bitmap, ResetEvent, first_set};

    #[test]
    fn the_first_set_bit_is_found_across_words_and_within_bounds() {
        let bits = Bitmap::new(200);
        for bit in [3, 64, 130] {
            bits.flip_alone(bit);
        }
        bits.flip_shared(64);
        let find = |from, to| first_set(from, to, |number| bits.word(number));
        let found = [find(0, 200), find(4, 200), find(4, 130), find(130, 131), find(7, 7)];
        assert_eq!(found, [Some(3), Some(130), None, Some(130), None]);
    }

    #[test]
    fn a_set_event_does_not_block_its_waiter() {
        let event = ResetEvent::default();
        event.set();
        event.wait();
        event.reset();
        std::thread::scope(|scope| {
            scope.spawn(|| event.set());
            event.wait();
        });
    }
}

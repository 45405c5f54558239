//! The threaded workqueue with everything that a worker writes on lines of its own: version 3 with
//! round robin, and Cota's branch with batching.

use anyhow::{Result, ensure};

use super::event::Event;
use super::shared::POLLS;
use super::slot::Slot;
use super::turn::Turn;
use crate::deflater::Deflater;
use crate::page_store::PageStore;
use crate::rows::{Crew, Row, Tally, start};
use crate::sync::thread::JoinHandle;
use crate::sync::{Arc, AtomicBool, AtomicU64, Ordering, pause};

/// A bit a slot, in one word.
pub(crate) const MOST_SLOTS: usize = 64;

/// A value on a line of its own, of 64 bytes as in QEMU.
#[derive(Debug, Default)]
#[repr(align(64))]
struct CachePadded<T>(T);

/// One worker's part.
#[derive(Debug)]
struct Desk {
    fill: CachePadded<AtomicU64>,
    done: CachePadded<AtomicU64>,
    event: CachePadded<Event>,
    completion: CachePadded<Event>,
    quit: CachePadded<AtomicBool>,
    slots: Box<[CachePadded<Slot>]>,
}

impl Desk {
    fn new(slots: usize) -> Self {
        Self {
            fill: CachePadded::default(),
            done: CachePadded::default(),
            event: CachePadded(Event::new()),
            completion: CachePadded(Event::new()),
            quit: CachePadded::default(),
            slots: (0..slots).map(|_| CachePadded::default()).collect(),
        }
    }

    /// The slots that are the worker's. Acquire pairs with the store in `submit` and with the turn
    /// of the done bit in `work`.
    fn filled(&self) -> u64 {
        self.fill.0.load(Ordering::Acquire) ^ self.done.0.load(Ordering::Acquire)
    }

    fn find_free(&self) -> Option<usize> {
        let index = usize::try_from((!self.filled()).trailing_zeros()).ok()?;
        (index < self.slots.len()).then_some(index)
    }

    fn poll(&self) -> Option<usize> {
        for _ in 0..POLLS {
            let filled = self.filled();
            if filled != 0 {
                return usize::try_from(filled.trailing_zeros()).ok();
            }
            pause();
        }
        None
    }

    fn work(&self, pages: &PageStore, deflaters: &mut [Deflater]) {
        loop {
            self.event.0.reset();
            // Relaxed: the fence of `reset` pairs with that of `set`, which comes after the store.
            if self.quit.0.load(Ordering::Relaxed) {
                return;
            }
            let Some(index) = self.poll() else {
                self.event.0.wait();
                continue;
            };
            if let (Some(slot), Some(deflater)) = (self.slots.get(index), deflaters.get_mut(index))
            {
                slot.0.handle(pages, deflater);
            }
            self.done.0.fetch_xor(1 << index, Ordering::SeqCst);
            self.completion.0.set();
        }
    }

    /// By the submitter.
    fn submit(&self, index: usize) {
        // Relaxed: the submitter alone writes it. Release pairs with `filled`.
        let turned = self.fill.0.load(Ordering::Relaxed) ^ (1 << index);
        self.fill.0.store(turned, Ordering::Release);
        self.event.0.set();
    }

    /// By the submitter: sleeps until no slot is the worker's.
    fn wait(&self) {
        loop {
            self.completion.0.reset();
            if self.filled() == 0 {
                return;
            }
            self.completion.0.wait();
        }
    }
}

/// The submitter's side.
#[derive(Debug)]
pub(crate) struct PerThreadQueue {
    desks: Box<[Arc<Desk>]>,
    pages: Arc<PageStore>,
    turn: Turn,
    current: usize,
    tally: Tally,
    threads: Vec<JoinHandle<()>>,
}

impl PerThreadQueue {
    pub(crate) fn new(pages: &Arc<PageStore>, crew: Crew, turn: Turn) -> Result<Self> {
        ensure!(crew.slots <= MOST_SLOTS, "{} slots, {MOST_SLOTS} fit in a word", crew.slots);
        let mut queue = Self {
            desks: (0..crew.workers).map(|_| Arc::new(Desk::new(crew.slots))).collect(),
            pages: Arc::clone(pages),
            turn,
            current: 0,
            tally: Tally::default(),
            threads: Vec::with_capacity(crew.workers),
        };
        for (worker, desk) in queue.desks.iter().enumerate() {
            let mut deflaters =
                (0..crew.slots).map(|_| Deflater::new()).collect::<Result<Vec<_>>>()?;
            let (desk, pages) = (Arc::clone(desk), Arc::clone(pages));
            queue.threads.push(start(worker, move || desk.work(&pages, &mut deflaters))?);
        }
        Ok(queue)
    }

    /// From the current worker on, once round.
    fn get(&mut self) -> Option<(usize, usize)> {
        let count = self.desks.len();
        for worker in (self.current..count).chain(0..self.current) {
            let desk = self.desks.get(worker)?;
            if let Some(index) = desk.find_free() {
                desk.slots.get(index)?.0.collect(&mut self.tally);
                return Some((worker, index));
            }
        }
        None
    }

    fn wait(&mut self) {
        for desk in &self.desks {
            desk.wait();
            for slot in &desk.slots {
                slot.0.collect(&mut self.tally);
            }
        }
    }
}

impl Row for PerThreadQueue {
    fn pass(&mut self) -> Result<Tally> {
        for page in 0..self.pages.count() {
            self.pages.mark(page);
            let (worker, index) = loop {
                if let Some(found) = self.get() {
                    break found;
                }
            };
            if let Some(desk) = self.desks.get(worker) {
                if let Some(slot) = desk.slots.get(index) {
                    slot.0.fill(page);
                }
                desk.submit(index);
            }
            self.current = self.turn.after(worker, self.desks.len());
        }
        self.wait();
        Ok(std::mem::take(&mut self.tally))
    }
}

impl Drop for PerThreadQueue {
    fn drop(&mut self) {
        for desk in &self.desks {
            // Relaxed: the fence of `set` publishes it.
            desk.quit.0.store(true, Ordering::Relaxed);
            desk.event.0.set();
        }
        for thread in self.threads.drain(..) {
            // A worker that panicked has left its pages uncounted, which the pass reported.
            thread.join().unwrap_or_default();
        }
    }
}

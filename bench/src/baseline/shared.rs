//! Version 2 of QEMU's threaded workqueue: every field that workers write is shared by all of them.
//! A slot belongs to the submitter while its bits in the two bitmaps are equal, else to its worker.

use anyhow::Result;

use super::bits::{Bits, first_one};
use super::event::Event;
use super::slot::Slot;
use super::turn::Turn;
use crate::deflater::Deflater;
use crate::page_store::PageStore;
use crate::rows::{Crew, Row, Tally, start};
use crate::sync::thread::JoinHandle;
use crate::sync::{Arc, AtomicBool, Ordering, pause, placed};

/// Looks of an idle worker before it sleeps.
pub(crate) const POLLS: usize = 1000;

/// What a worker shares with the submitter alone. The room is that of the other fields there.
#[derive(Debug)]
struct Desk {
    event: Event,
    quit: AtomicBool,
    _room: [u64; 5],
}

#[derive(Debug)]
struct Board {
    slots: Box<[Slot]>,
    fill: Bits,
    done: Bits,
    completion: Event,
    desks: Box<[Desk]>,
    slots_per_worker: usize,
}

impl Board {
    fn new(crew: Crew) -> Self {
        let count = crew.workers * crew.slots;
        let desk = || Desk { event: Event::new(), quit: AtomicBool::new(false), _room: [0; 5] };
        let slots: Box<[Slot]> = (0..count).map(|_| Slot::default()).collect();
        let desks: Box<[Desk]> = (0..crew.workers).map(|_| desk()).collect();
        placed(&slots);
        placed(&desks);
        Self {
            slots,
            fill: Bits::new(count),
            done: Bits::new(count),
            completion: Event::new(),
            desks,
            slots_per_worker: crew.slots,
        }
    }

    fn find_free(&self, from: usize) -> Option<usize> {
        let free = |word| !(self.fill.word(word) ^ self.done.word(word));
        first_one(from, self.slots.len(), free).or_else(|| first_one(0, from, free))
    }

    fn find_filled(&self, worker: usize) -> Option<usize> {
        let first = worker * self.slots_per_worker;
        let filled = |word| self.fill.word(word) ^ self.done.word(word);
        first_one(first, first + self.slots_per_worker, filled)
    }

    fn poll(&self, worker: usize) -> Option<usize> {
        for _ in 0..POLLS {
            if let Some(found) = self.find_filled(worker) {
                return Some(found);
            }
            pause();
        }
        None
    }

    fn work(&self, worker: usize, pages: &PageStore, deflaters: &mut [Deflater]) {
        let Some(desk) = self.desks.get(worker) else { return };
        loop {
            desk.event.reset();
            // Relaxed: the fence of `reset` pairs with that of `set`, which comes after the store.
            if desk.quit.load(Ordering::Relaxed) {
                return;
            }
            let Some(index) = self.poll(worker) else {
                desk.event.wait();
                continue;
            };
            let own = deflaters.get_mut(index - worker * self.slots_per_worker);
            if let (Some(slot), Some(deflater)) = (self.slots.get(index), own) {
                slot.handle(pages, deflater);
            }
            self.done.turn_shared(index);
            self.completion.set();
        }
    }
}

/// The submitter's side.
#[derive(Debug)]
pub(crate) struct SharedQueue {
    board: Arc<Board>,
    pages: Arc<PageStore>,
    turn: Turn,
    current: usize,
    tally: Tally,
    threads: Vec<JoinHandle<()>>,
}

impl SharedQueue {
    pub(crate) fn new(pages: &Arc<PageStore>, crew: Crew, turn: Turn) -> Result<Self> {
        let board = Arc::new(Board::new(crew));
        placed(std::slice::from_ref(&*board));
        let mut queue = Self {
            board,
            pages: Arc::clone(pages),
            turn,
            current: 0,
            tally: Tally::default(),
            threads: Vec::with_capacity(crew.workers),
        };
        for worker in 0..crew.workers {
            let mut deflaters =
                (0..crew.slots).map(|_| Deflater::new()).collect::<Result<Vec<_>>>()?;
            let (board, pages) = (Arc::clone(&queue.board), Arc::clone(pages));
            queue.threads.push(start(worker, move || board.work(worker, &pages, &mut deflaters))?);
        }
        Ok(queue)
    }

    fn get(&mut self) -> Option<usize> {
        let index = self.board.find_free(self.current * self.board.slots_per_worker)?;
        self.board.slots.get(index)?.collect(&mut self.tally);
        Some(index)
    }

    fn submit(&mut self, index: usize) {
        self.board.fill.turn_alone(index);
        let worker = index / self.board.slots_per_worker;
        if let Some(desk) = self.board.desks.get(worker) {
            desk.event.set();
        }
        self.current = self.turn.after(worker, self.board.desks.len());
    }

    fn wait(&mut self) {
        loop {
            self.board.completion.reset();
            if self.collect_all() {
                return;
            }
            self.board.completion.wait();
        }
    }

    /// From the first slot on; false at the first that a worker still has.
    fn collect_all(&mut self) -> bool {
        for (index, slot) in self.board.slots.iter().enumerate() {
            let busy = |word| self.board.fill.word(word) ^ self.board.done.word(word);
            if first_one(index, index + 1, busy).is_some() {
                return false;
            }
            slot.collect(&mut self.tally);
        }
        true
    }
}

impl Row for SharedQueue {
    fn pass(&mut self) -> Result<Tally> {
        for page in 0..self.pages.count() {
            self.pages.mark(page);
            let index = loop {
                if let Some(index) = self.get() {
                    break index;
                }
            };
            if let Some(slot) = self.board.slots.get(index) {
                slot.fill(page);
            }
            self.submit(index);
        }
        self.wait();
        Ok(std::mem::take(&mut self.tally))
    }
}

impl Drop for SharedQueue {
    fn drop(&mut self) {
        for desk in &self.board.desks {
            // Relaxed: the fence of `set` publishes it.
            desk.quit.store(true, Ordering::Relaxed);
            desk.event.set();
        }
        for thread in self.threads.drain(..) {
            // A worker that panicked has left its pages uncounted, which the pass reported.
            thread.join().unwrap_or_default();
        }
    }
}

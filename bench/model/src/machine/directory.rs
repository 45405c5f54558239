//! Which CPU holds which cache line, by MESI: one record a line, as a directory keeps it. It decides
//! what an access is and when it ends; it runs no thread and knows no code. Called by the machine with
//! every access.

use std::collections::HashMap;

use foldhash::fast::FixedState;
use serde::Serialize;

use super::costs::{Costs, Picoseconds, Prices, Shape};

/// Bytes of a cache line.
pub const LINE_BYTES: usize = 64;
/// The most CPUs that a directory can tell apart.
pub const CPUS_MAX: usize = 512;

const WORD_BITS: usize = 64;

/// What an access wants of a line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// To read.
    Load,
    /// To write.
    Store,
    /// To read and write in one step, by a locked instruction.
    Update,
}

/// How far away the other holder is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Distance {
    /// In the same socket.
    Near,
    /// In another one.
    Far,
}

/// What an access turned out to be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CoherenceEvent {
    /// The CPU held the line and might do what it wanted.
    Hit,
    /// Nobody held the line. It costs a hit: memory that is used for the first time belongs to the
    /// warm-up, and pages in a row are fetched ahead.
    Cold,
    /// The line came from another CPU, to be read; both hold it now.
    Fetch(Distance),
    /// The CPU held the line with others and had to take it away from them.
    Invalidation(Distance),
    /// The line came from another CPU, to be written; nobody else holds it now.
    Transfer(Distance),
}

/// How often each kind was met.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Counts {
    /// Accesses that moved nothing.
    pub hits: u64,
    /// First accesses.
    pub cold: u64,
    /// Lines that came to be read, from the same socket and from another one.
    pub fetches: [u64; 2],
    /// Rights to write that were taken from others.
    pub invalidations: [u64; 2],
    /// Lines that came to be written.
    pub transfers: [u64; 2],
}

impl Counts {
    fn add(&mut self, event: CoherenceEvent) {
        match event {
            CoherenceEvent::Hit => self.hits += 1,
            CoherenceEvent::Cold => self.cold += 1,
            CoherenceEvent::Fetch(distance) => self.fetches[distance as usize] += 1,
            CoherenceEvent::Invalidation(distance) => self.invalidations[distance as usize] += 1,
            CoherenceEvent::Transfer(distance) => self.transfers[distance as usize] += 1,
        }
    }

    /// Lines that went from one CPU to another.
    #[must_use]
    pub fn moves(&self) -> u64 {
        self.fetches.iter().chain(&self.transfers).sum()
    }

    /// Times that the others had to give a line up which stayed where it was.
    #[must_use]
    pub fn upgrades(&self) -> u64 {
        self.invalidations.iter().sum()
    }

    /// What came after `earlier`.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        let pair = |now: [u64; 2], then: [u64; 2]| [now[0] - then[0], now[1] - then[1]];
        Self {
            hits: self.hits - earlier.hits,
            cold: self.cold - earlier.cold,
            fetches: pair(self.fetches, earlier.fetches),
            invalidations: pair(self.invalidations, earlier.invalidations),
            transfers: pair(self.transfers, earlier.transfers),
        }
    }
}

/// A set of CPUs.
#[derive(Debug, Clone, Copy, Default)]
struct Holders([u64; CPUS_MAX / WORD_BITS]);

impl Holders {
    fn only(cpu: usize) -> Self {
        let mut holders = Self::default();
        holders.add(cpu);
        holders
    }

    fn add(&mut self, cpu: usize) {
        self.0[cpu / WORD_BITS] |= 1 << (cpu % WORD_BITS);
    }

    fn has(&self, cpu: usize) -> bool {
        self.0[cpu / WORD_BITS] & (1 << (cpu % WORD_BITS)) != 0
    }

    fn iter(&self) -> impl Iterator<Item = usize> {
        self.0.iter().enumerate().flat_map(|(number, &word)| {
            let mut left = word;
            std::iter::from_fn(move || {
                let bit = (left != 0).then(|| left.trailing_zeros() as usize)?;
                left &= left - 1;
                Some(number * WORD_BITS + bit)
            })
        })
    }
}

/// The states of MESI that a line can have somewhere. Invalid everywhere is no record at all.
#[derive(Debug, Clone, Copy)]
enum State {
    /// One CPU holds it and nobody else: Modified, or Exclusive, which becomes Modified without a
    /// word to anybody and is told apart by nothing that is counted here.
    Owned(usize),
    /// These hold it, to read.
    Shared(Holders),
}

#[derive(Debug, Clone, Copy)]
struct LineState {
    state: State,
    /// Until then the line serves somebody else.
    free_at: Picoseconds,
}

/// All lines.
#[derive(Debug)]
pub struct Directory {
    shape: Shape,
    prices: Prices,
    lines: HashMap<u64, LineState, FixedState>,
    counts: Counts,
}

impl Directory {
    /// Nobody holds anything. CPUs above [`CPUS_MAX`] cannot be told apart.
    #[must_use]
    pub fn new(shape: Shape, costs: Costs) -> Self {
        Self { shape, prices: costs.into(), lines: HashMap::default(), counts: Counts::default() }
    }

    /// An access of `cpu` at `now`: what it is, and when it has ended.
    pub fn access(
        &mut self,
        cpu: usize,
        line: u64,
        access: Access,
        now: Picoseconds,
    ) -> (CoherenceEvent, Picoseconds) {
        let shape = self.shape;
        let Some(record) = self.lines.get_mut(&line) else {
            self.lines.insert(line, LineState { state: State::Owned(cpu), free_at: 0 });
            return self.end(CoherenceEvent::Cold, access, now);
        };
        let (event, state) = step(record.state, cpu, access, shape);
        record.state = state;
        let cost = match event {
            CoherenceEvent::Hit | CoherenceEvent::Cold => return self.end(event, access, now),
            CoherenceEvent::Fetch(Distance::Near)
            | CoherenceEvent::Invalidation(Distance::Near)
            | CoherenceEvent::Transfer(Distance::Near) => self.prices.near,
            CoherenceEvent::Fetch(Distance::Far)
            | CoherenceEvent::Invalidation(Distance::Far)
            | CoherenceEvent::Transfer(Distance::Far) => self.prices.far,
        };
        let begin = now.max(record.free_at);
        // A line that comes from its only holder serves nobody else until it is there.
        let is_shared = matches!((event, access), (CoherenceEvent::Fetch(_), Access::Load))
            && matches!(state, State::Shared(holders) if holders.iter().nth(2).is_some());
        record.free_at = begin + if is_shared { self.prices.occupancy } else { cost };
        self.end(event, access, begin + cost)
    }

    fn end(
        &mut self,
        event: CoherenceEvent,
        access: Access,
        at: Picoseconds,
    ) -> (CoherenceEvent, Picoseconds) {
        self.counts.add(event);
        let locked = if access == Access::Update { self.prices.locked } else { 0 };
        (event, at + self.prices.hit + locked)
    }

    /// What was counted until now.
    #[must_use]
    pub fn counts(&self) -> Counts {
        self.counts
    }
}

/// One transition of MESI.
fn step(state: State, cpu: usize, access: Access, shape: Shape) -> (CoherenceEvent, State) {
    let distance = |other: usize| match shape.socket(cpu) == shape.socket(other) {
        true => Distance::Near,
        false => Distance::Far,
    };
    let is_load = access == Access::Load;
    match state {
        State::Owned(owner) if owner == cpu => (CoherenceEvent::Hit, state),
        State::Owned(owner) if is_load => {
            let mut holders = Holders::only(owner);
            holders.add(cpu);
            (CoherenceEvent::Fetch(distance(owner)), State::Shared(holders))
        }
        State::Owned(owner) => (CoherenceEvent::Transfer(distance(owner)), State::Owned(cpu)),
        State::Shared(holders) if is_load && holders.has(cpu) => (CoherenceEvent::Hit, state),
        State::Shared(mut holders) if is_load => {
            // The nearest holder sends it.
            let is_near = holders.iter().any(|other| distance(other) == Distance::Near);
            holders.add(cpu);
            let from = if is_near { Distance::Near } else { Distance::Far };
            (CoherenceEvent::Fetch(from), State::Shared(holders))
        }
        State::Shared(holders) => {
            // The farthest holder has to answer before it may be written.
            let is_far = holders.iter().any(|other| distance(other) == Distance::Far);
            let to = if is_far { Distance::Far } else { Distance::Near };
            let event = if holders.has(cpu) {
                CoherenceEvent::Invalidation(to)
            } else {
                CoherenceEvent::Transfer(to)
            };
            (event, State::Owned(cpu))
        }
    }
}

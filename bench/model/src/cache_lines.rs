//! The memory of a simulated machine: what each step on it costs, which CPU holds which cache line, by MESI, as a directory
//! keeps it, and where values lie. It decides what an access is and when it ends; it runs no thread. Called by the machine.

use std::collections::HashMap;

use foldhash::fast::FixedState;

/// Simulated time: picoseconds since the start, so that sums are exact.
pub type Picoseconds = u64;

/// Nanoseconds as simulated time. What is no positive number is none.
#[allow(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a cast of a float saturates, and costs are far below 2^64 ps"
)]
pub fn picoseconds(nanoseconds: f64) -> Picoseconds {
    (nanoseconds.max(0.0) * 1e3).round() as Picoseconds
}

/// The costs of a machine with their defaults.
macro_rules! costs {
    ($($(#[$doc:meta])* $name:ident: $default:literal,)*) => {
        /// The costs of a machine, in nanoseconds.
        #[derive(Debug, Clone, Copy, PartialEq)]
        pub struct Costs { $($(#[$doc])* pub $name: f64,)* }

        impl Default for Costs {
            fn default() -> Self {
                Self { $($name: $default,)* }
            }
        }
    };
}

costs! {
    /// An access to a line that this CPU may use as it is, with the surrounding instructions.
    /// 5 cycles at 3.5 GHz: Intel's optimization manual, latency of the L1 of Ice Lake.
    hit: 1.4,
    /// A line, or the right to write it, that comes from another CPU of the socket. The median of an
    /// Ice Lake Xeon 8375C: github.com/nviennot/core-to-core-latency, which lists 23 and 107 for the
    /// two distances within an EPYC 7R13.
    near: 51.0,
    /// The same from another socket: 108 there, 197 for two EPYC 7R13.
    far: 108.0,
    /// How long a line that many only read keeps the next reader waiting. An assumption: shared
    /// lines are served by the last-level cache, one after the other.
    occupancy: 10.0,
    /// What a locked instruction or a full fence costs beyond the access: 18 to 20 cycles, uops.info.
    locked: 5.5,
    /// The hint in a loop that waits: 140 cycles since Skylake, Intel's optimization manual.
    pause: 40.0,
    /// A look at the clock. An assumption: 20 to 25 is what x86-64 takes with the vDSO.
    clock: 22.0,
    /// The sleeper's way into the kernel. An assumption about a system call and a switch, as are the
    /// next four.
    sleep: 1_000.0,
    /// What a wake-up costs who wakes.
    wake: 1_500.0,
    /// From the wake-up until the sleeper runs.
    latency: 4_000.0,
    /// From one thread to another one on the same CPU.
    switch: 1_500.0,
    /// The start of a thread.
    start: 15_000.0,
    /// How long a thread runs while another one waits for its CPU: Linux's base slice, 2.8 ms.
    slice: 2_800_000.0,
}

/// How many CPUs there are and which are neighbours.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Shape {
    /// Simulated CPUs, at least 1.
    pub cpus: usize,
    /// Of these, so many share a socket, in the order of their numbers.
    pub cpus_per_socket: usize,
}

impl Shape {
    /// The socket of a CPU.
    pub fn socket(&self, cpu: usize) -> usize {
        cpu / self.cpus_per_socket.max(1)
    }
}

/// Bytes of a cache line.
pub const LINE_BYTES: usize = 64;
/// The most CPUs that a machine can have.
pub const CPUS_MAX: usize = 512;

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
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
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

/// How often lines went from one CPU to another.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// Lines that came from another CPU.
    pub moves: u64,
    /// Times that the others had to give a line up which stayed where it was.
    pub upgrades: u64,
}

/// A line in one of the states of MESI. Invalid everywhere: nobody holds it yet.
#[derive(Debug, Default)]
struct LineState {
    /// One CPU: Modified, or Exclusive, which becomes Modified without a word to anybody and is told apart by nothing that
    /// is counted here. Several: Shared, to read.
    holders: Vec<usize>,
    /// Until then the line serves somebody else.
    free_at: Picoseconds,
}

/// All lines.
#[derive(Debug, Default)]
pub struct Directory {
    shape: Shape,
    costs: Costs,
    lines: HashMap<u64, LineState, FixedState>,
    /// What was counted until now.
    pub counts: Counts,
}

impl Directory {
    /// Nobody holds anything.
    pub fn new(shape: Shape, costs: Costs) -> Self {
        Self { shape, costs, ..Self::default() }
    }

    /// An access of `cpu` at `now`: what it is, and when it has ended.
    pub fn access(
        &mut self,
        cpu: usize,
        line: u64,
        access: Access,
        now: Picoseconds,
    ) -> (CoherenceEvent, Picoseconds) {
        let LineState { holders, free_at } = self.lines.entry(line).or_default();
        let event = step(holders, cpu, access, self.shape);
        let counted = match event {
            CoherenceEvent::Hit | CoherenceEvent::Cold => None,
            CoherenceEvent::Fetch(distance) | CoherenceEvent::Transfer(distance) => {
                Some((distance, &mut self.counts.moves))
            }
            CoherenceEvent::Invalidation(distance) => Some((distance, &mut self.counts.upgrades)),
        };
        let mut end = now;
        if let Some((distance, count)) = counted {
            *count += 1;
            let is_near = distance == Distance::Near;
            let cost = if is_near { self.costs.near } else { self.costs.far };
            let begin = now.max(*free_at);
            // A line that comes from its only holder serves nobody else until it is there.
            let busy = if holders.len() > 2 { self.costs.occupancy } else { cost };
            *free_at = begin + picoseconds(busy);
            end = begin + picoseconds(cost);
        }
        let locked = if access == Access::Update { self.costs.locked } else { 0.0 };
        (event, end + picoseconds(self.costs.hit) + picoseconds(locked))
    }
}

/// One transition of MESI.
fn step(holders: &mut Vec<usize>, cpu: usize, access: Access, shape: Shape) -> CoherenceEvent {
    let (is_load, has_it) = (access == Access::Load, holders.contains(&cpu));
    if has_it && (is_load || holders.len() == 1) {
        return CoherenceEvent::Hit;
    }
    let is_near = |other: usize| shape.socket(cpu) == shape.socket(other);
    let distance = |&other| if is_near(other) { Distance::Near } else { Distance::Far };
    let distances = holders.iter().map(distance);
    if is_load {
        // The nearest holder sends it.
        let from = distances.min();
        holders.push(cpu);
        return from.map_or(CoherenceEvent::Cold, CoherenceEvent::Fetch);
    }
    // The farthest holder has to answer before it may be written.
    let to = distances.max();
    holders.clear();
    holders.push(cpu);
    let event = if has_it { CoherenceEvent::Invalidation } else { CoherenceEvent::Transfer };
    to.map_or(CoherenceEvent::Cold, event)
}

/// The first line of arrays that got a place; no address of a process is so high.
const ARRAYS: u64 = 1 << 59;
/// The first line of those that only have a number.
const NUMBERED: u64 = 1 << 60;
/// What lies in the first line before an array.
const HEADER_BYTES: usize = 16;

/// The arrays that have a place: their addresses and first lines.
#[derive(Debug, Default)]
pub(crate) struct ArrayPlaces {
    arrays: Vec<(std::ops::Range<usize>, u64)>,
    /// Lines that are given away.
    used: u64,
}

/// A line that has a number but no address.
pub(crate) const fn numbered(number: u64) -> u64 {
    NUMBERED + number
}

impl ArrayPlaces {
    pub(crate) fn add(&mut self, address: usize, bytes: usize) {
        self.arrays.push((address..address + bytes, ARRAYS + self.used));
        self.used += (HEADER_BYTES + bytes).div_ceil(LINE_BYTES) as u64;
    }

    /// The lines of a value.
    pub(crate) fn lines(&self, address: usize, bytes: usize) -> std::ops::RangeInclusive<u64> {
        let array = self.arrays.iter().find(|(addresses, _)| addresses.contains(&address));
        let (base, start) = match array {
            Some((addresses, line)) => (*line, HEADER_BYTES + address - addresses.start),
            None => ((address / LINE_BYTES) as u64, address % LINE_BYTES),
        };
        let last = (start + bytes.max(1) - 1) / LINE_BYTES;
        base + (start / LINE_BYTES) as u64..=base + last as u64
    }
}

//! Stations: how many threads decode at the same time, and what each of them needs for it. A station holds
//! contexts and buffers, which stay warm from one lease to the next, so that a read allocates nothing
//! once the image is warm.
//!
//! More threads than stations gain nothing (there is a CPU for each station) and would cost memory, so they
//! wait here, where they hold nothing that somebody else could wait for. The rules that keep waiting
//! from going round in a circle:
//!
//! * who holds a [`Ticket`](ferrofs_workers::claims::Ticket) has a station, and waits for no other ticket;
//! * who waits for a ticket holds no ticket;
//! * what waits for a station holds neither.

use std::cell::Cell;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::ThreadId;

use ferrofs_codec::{Decoder, Settings};
use ferrofs_workers::memory::{Buffer, Charge, Policy};

use super::tally::Tally;
use super::window::InputWindow;
use crate::cluster::Cluster;
use crate::error::{ErrorKind, Result};
use crate::memory::Memory;

/// Leases in a row after which a thread is taken for the only one that reads.
const ALONE_LEASES: u64 = 64;

/// Longer buffers than this are given back after each use: they are too large a part of a small
/// budget to lie idle.
const KEPT_OUTPUT_BYTES: usize = 1 << 20;

thread_local! {
    /// Stations that this thread holds, of all images together.
    static HELD: Cell<usize> = const { Cell::new(0) };
}

/// Contexts and buffers of one station.
#[derive(Debug, Default)]
pub(crate) struct Scratch {
    pub(crate) context: Context,
    pub(crate) window: InputWindow,
    /// What was done in it since it was leased.
    pub(crate) tally: Tally,
    output: Option<Buffer>,
}

impl Scratch {
    /// A buffer of `bytes` bytes, the last one again if that is long enough.
    pub(crate) fn take_output(&mut self, memory: &Memory, bytes: usize) -> Result<Buffer> {
        match self.output.take() {
            Some(buffer) if buffer.len() >= bytes => Ok(buffer),
            smaller => {
                // Given back first: nobody waits for memory with memory in its hands.
                drop(smaller);
                memory.buffer(bytes, Policy::MustSucceed)
            }
        }
    }

    /// Counts a cluster that was decoded; one that is stored as it is was only copied.
    pub(crate) fn count(&mut self, cluster: &Cluster, bytes: usize) {
        if cluster.is_compressed() {
            self.tally.decoded(bytes);
        }
    }

    /// Keeps a buffer for the next time.
    pub(crate) fn keep_output(&mut self, buffer: Buffer) {
        if buffer.len() <= KEPT_OUTPUT_BYTES {
            self.output = Some(buffer);
        }
    }
}

/// The decoder, made when the first compressed extent is read.
#[derive(Debug, Default)]
pub(crate) struct Context(Option<(Decoder, Charge)>);

impl Context {
    /// The decoder for `settings`. `policy` says whether memory for it may be waited for.
    pub(crate) fn decoder(
        &mut self,
        settings: &Settings,
        memory: &Memory,
        policy: Policy,
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

/// All stations of an image.
#[derive(Debug)]
pub(crate) struct Stations {
    state: Mutex<State>,
    returned: Condvar,
    most: usize,
}

#[derive(Debug, Default)]
struct State {
    idle: Vec<Scratch>,
    leased: usize,
    waiting: usize,
    leases: u64,
    /// Leases in a row by the thread that took the last one.
    alone: u64,
    last: Option<ThreadId>,
    tally: Tally,
}

impl Stations {
    /// `most` stations, at least one.
    pub(crate) fn new(most: usize) -> Self {
        Self { state: Mutex::default(), returned: Condvar::new(), most: most.max(1) }
    }

    /// How many there are.
    pub(crate) fn count(&self) -> usize {
        self.most
    }

    /// Takes a station, and waits for one if all are taken. The caller holds no ticket.
    ///
    /// A thread that holds a station gets another one at once, beyond the count: it reads something while
    /// it reads, such as the metadata that leads to a cluster, or another file for whoever takes in
    /// the pieces of the first.
    pub(crate) fn enter(&self) -> Station<'_> {
        let mut state = self.lock();
        while state.leased >= self.most && HELD.get() == 0 {
            state.waiting = state.waiting.saturating_add(1);
            state = self.returned.wait(state).unwrap_or_else(PoisonError::into_inner);
            state.waiting = state.waiting.saturating_sub(1);
        }
        self.leased(state)
    }

    /// Takes a station if one is free now: what best effort does, and a worker, which its submitter can do
    /// without.
    pub(crate) fn try_enter(&self) -> Option<Station<'_>> {
        let state = self.lock();
        (state.leased < self.most).then(|| self.leased(state))
    }

    /// Takes a station at once, beyond the count: for workers whose readers only wait. There are no more
    /// of them than CPUs.
    pub(crate) fn enter_beyond(&self) -> Station<'_> {
        self.leased(self.lock())
    }

    fn leased(&self, mut state: MutexGuard<'_, State>) -> Station<'_> {
        state.leased = state.leased.saturating_add(1);
        state.leases = state.leases.wrapping_add(1);
        let thread = Some(std::thread::current().id());
        let before = std::mem::replace(&mut state.last, thread);
        state.alone = if before == thread { state.alone.saturating_add(1) } else { 0 };
        HELD.set(HELD.get().saturating_add(1));
        Station {
            stations: self,
            scratch: state.idle.pop().unwrap_or_default(),
            stays: PhantomData,
        }
    }

    /// Whether others read beside the caller, who has a station, or did a moment ago: what it decodes may
    /// be wanted again soon.
    pub(crate) fn are_shared(&self) -> bool {
        let state = self.lock();
        state.leased > 1 || state.waiting > 0 || state.alone < ALONE_LEASES
    }

    /// Whether anybody has a station now.
    pub(crate) fn are_used(&self) -> bool {
        self.lock().leased > 0
    }

    /// How often a station was taken.
    pub(crate) fn leases(&self) -> u64 {
        self.lock().leases
    }

    /// What was done in all stations, up to those that are in use.
    pub(crate) fn tally(&self) -> Tally {
        self.lock().tally
    }

    /// Adds what was done without a station.
    pub(crate) fn add(&self, tally: &Tally) {
        self.lock().tally.merge(tally);
    }

    /// Gives the memory of idle stations back.
    pub(crate) fn shed(&self) {
        let idle = std::mem::take(&mut self.lock().idle);
        drop(idle);
    }

    /// No step between two statements that belong together can panic.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A station in use; it is free again on drop.
#[derive(Debug)]
pub(crate) struct Station<'a> {
    stations: &'a Stations,
    scratch: Scratch,
    /// It counts for the thread that took it, so it stays there.
    stays: PhantomData<*const ()>,
}

impl Deref for Station<'_> {
    type Target = Scratch;

    fn deref(&self) -> &Scratch {
        &self.scratch
    }
}

impl DerefMut for Station<'_> {
    fn deref_mut(&mut self) -> &mut Scratch {
        &mut self.scratch
    }
}

impl Drop for Station<'_> {
    fn drop(&mut self) {
        HELD.set(HELD.get().saturating_sub(1));
        let mut scratch = std::mem::take(&mut self.scratch);
        let mut state = self.stations.lock();
        state.leased = state.leased.saturating_sub(1);
        state.tally.merge(&std::mem::take(&mut scratch.tally));
        let is_awaited = state.waiting > 0;
        // A station that was taken beyond the count is not kept.
        let surplus = if state.idle.len() < self.stations.most {
            state.idle.push(scratch);
            None
        } else {
            Some(scratch)
        };
        drop(state);
        drop(surplus);
        if is_awaited {
            self.stations.returned.notify_one();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    #[test]
    fn a_station_comes_back_with_what_was_left_in_it() {
        let memory = Memory::new(Memory::MIN_BYTES).unwrap();
        let stations = Stations::new(1);
        let mut buffer = memory.buffer(4096, Policy::MustSucceed).unwrap();
        buffer[0] = 9;
        stations.enter().keep_output(buffer);
        assert!(stations.enter().take_output(&memory, 100).unwrap()[0] == 9);
    }

    #[test]
    fn no_more_threads_decode_than_there_are_stations() {
        let stations = Stations::new(2);
        let (inside, peak) = (AtomicUsize::new(0), AtomicUsize::new(0));
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    for _ in 0..200 {
                        let station = stations.enter();
                        let now = inside.fetch_add(1, Ordering::SeqCst) + 1;
                        peak.fetch_max(now, Ordering::SeqCst);
                        std::thread::yield_now();
                        inside.fetch_sub(1, Ordering::SeqCst);
                        drop(station);
                    }
                });
            }
        });
        assert!((1..=2).contains(&peak.into_inner()));
        let held = (stations.enter(), stations.enter());
        assert!(stations.try_enter().is_none());
        let beyond = stations.enter();
        drop((held, beyond));
        assert!(stations.try_enter().is_some());
        assert!(stations.lock().idle.len() <= 2);
    }
}

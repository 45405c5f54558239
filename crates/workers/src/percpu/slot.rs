//! What submitters touch of a CPU: its inbox and the event on which its worker sleeps. There is one for
//! every CPU that may ever come, from the pool's start to its end, whether a worker serves it or not.

use super::inbox::{Batch, Inbox, Refused};
use crate::counters::Counter;
use crate::event::Event;
use crate::line::Line;
use crate::sync::{AtomicBool, Ordering};
use crate::unbound::Work;

/// The slot of one CPU.
#[derive(Debug)]
pub(crate) struct Slot {
    /// Written by every submitter.
    pub(crate) inbox: Line<Inbox<Work>>,
    /// Read by submitters, written when a worker goes to sleep or is woken.
    bell: Line<Bell>,
}

#[derive(Debug)]
struct Bell {
    event: Event,
    is_leaving: AtomicBool,
    wake_ups: Counter,
}

impl Slot {
    pub(crate) fn new() -> Self {
        let bell = Bell {
            event: Event::new(),
            is_leaving: AtomicBool::new(false),
            wake_ups: Counter::default(),
        };
        Self { inbox: Line(Inbox::new()), bell: Line(bell) }
    }

    /// P10. Queues work for the CPU's worker, or gives it back.
    ///
    /// After the push this touches the slot and nothing else: the work may have run by then, and all
    /// that it owned may be gone. The slot lives as long as the pool that the caller holds.
    pub(crate) fn submit(&self, work: Work) -> Result<(), Refused<Work>> {
        self.inbox.push(work)?;
        self.ring();
        Ok(())
    }

    /// The caller has opened the phase in which a worker may take.
    pub(crate) fn open(&self) {
        // Relaxed, here and below: only a hint for how soon the worker looks at its inbox again.
        self.bell.is_leaving.store(false, Ordering::Relaxed);
        let is_opened = self.inbox.open();
        debug_assert!(is_opened, "Slot::open: a slot has one worker at a time");
    }

    /// Closes the inbox and tells the worker. Returns what waited.
    pub(crate) fn close(&self) -> Batch<Work> {
        self.bell.is_leaving.store(true, Ordering::Relaxed);
        let rest = self.inbox.close();
        self.ring();
        rest
    }

    /// Whether the worker had better look at its inbox before the next item.
    pub(crate) fn is_leaving(&self) -> bool {
        self.bell.is_leaving.load(Ordering::Relaxed)
    }

    pub(crate) fn event(&self) -> &Event {
        &self.bell.event
    }

    pub(crate) fn wake_ups(&self) -> u64 {
        self.bell.wake_ups.value()
    }

    fn ring(&self) {
        if self.bell.event.set() {
            self.bell.wake_ups.add_shared(1);
        }
    }
}

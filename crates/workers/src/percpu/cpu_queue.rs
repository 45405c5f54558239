//! What submitters touch of a CPU: its inbox and the event on which its worker sleeps. There is one for
//! every CPU that may ever come, from the pool's start to its end, whether a worker serves it or not.

use super::inbox::{Inbox, ItemBatch, PushError};
use crate::cache_padded::CachePadded;
use crate::counters::Counter;
use crate::sync::{AtomicBool, Ordering};
use crate::unbound::WorkItem;
use crate::wake_event::WakeEvent;

/// The slot of one CPU.
#[derive(Debug)]
pub(crate) struct CpuQueue {
    /// Written by every submitter.
    pub(crate) inbox: CachePadded<Inbox<WorkItem>>,
    /// Read by submitters, written when a worker goes to sleep or is woken.
    doorbell: CachePadded<Doorbell>,
}

#[derive(Debug)]
struct Doorbell {
    event: WakeEvent,
    is_leaving: AtomicBool,
    wake_ups: Counter,
}

impl CpuQueue {
    pub(crate) fn new() -> Self {
        let doorbell = Doorbell {
            event: WakeEvent::new(),
            is_leaving: AtomicBool::new(false),
            wake_ups: Counter::default(),
        };
        Self { inbox: CachePadded(Inbox::new()), doorbell: CachePadded(doorbell) }
    }

    /// P10. Queues work for the CPU's worker, or gives it back.
    ///
    /// After the push this touches the slot and nothing else: the work may have run by then, and all
    /// that it owned may be gone. The slot lives as long as the pool that the caller holds.
    pub(crate) fn submit(&self, work: WorkItem) -> Result<(), PushError<WorkItem>> {
        self.inbox.push(work)?;
        self.ring();
        Ok(())
    }

    /// The caller has opened the phase in which a worker may take.
    pub(crate) fn open(&self) {
        // Relaxed, here and below: only a hint for how soon the worker looks at its inbox again.
        self.doorbell.is_leaving.store(false, Ordering::Relaxed);
        let is_opened = self.inbox.open();
        debug_assert!(is_opened, "CpuQueue::open: a slot has one worker at a time");
    }

    /// Closes the inbox and tells the worker. Returns what waited.
    pub(crate) fn close(&self) -> ItemBatch<WorkItem> {
        self.doorbell.is_leaving.store(true, Ordering::Relaxed);
        let rest = self.inbox.close();
        self.ring();
        rest
    }

    /// Whether the worker had better look at its inbox before the next item.
    pub(crate) fn is_leaving(&self) -> bool {
        self.doorbell.is_leaving.load(Ordering::Relaxed)
    }

    pub(crate) fn event(&self) -> &WakeEvent {
        &self.doorbell.event
    }

    pub(crate) fn wake_ups(&self) -> u64 {
        self.doorbell.wake_ups.value()
    }

    fn ring(&self) {
        if self.doorbell.event.set() {
            self.doorbell.wake_ups.add_shared(1);
        }
    }
}

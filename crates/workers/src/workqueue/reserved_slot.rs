//! A slot in the submitter's hands: write the request, then submit it. Dropped, it stays free.

use super::queue::{SlotLocation, WorkQueue};
use super::request::{Handler, RequestOutcome};

/// A free slot of a [`WorkQueue`]; the queue can do nothing else until it is submitted or dropped.
#[must_use = "a slot that is dropped stays free, and its request is not handled"]
pub struct ReservedSlot<'q, H: Handler, D> {
    queue: &'q mut WorkQueue<H, D>,
    location: SlotLocation,
}

impl<'q, H, D> ReservedSlot<'q, H, D>
where
    H: Handler + 'static,
    D: FnMut(&mut H::Request, RequestOutcome),
{
    pub(super) const fn new(queue: &'q mut WorkQueue<H, D>, location: SlotLocation) -> Self {
        Self { queue, location }
    }

    /// The request to fill in; it holds what the last use of the slot left.
    pub fn request(&mut self) -> &mut H::Request {
        self.queue.request(self.location)
    }

    /// Whether the submitter will handle the request itself, within [`submit`](Self::submit).
    #[must_use]
    pub fn is_inline(&self) -> bool {
        self.location == SlotLocation::Inline
    }

    /// Hands the request over. What it holds then belongs to whoever handles it, until the queue
    /// calls back.
    pub fn submit(self) {
        self.queue.submit(self.location);
    }
}

impl<H: Handler, D> std::fmt::Debug for ReservedSlot<'_, H, D> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ReservedSlot").field("location", &self.location).finish_non_exhaustive()
    }
}

//! A slot in the submitter's hands: write the request, then submit it. Dropped, it stays free.

use super::queue::{Place, WorkQueue};
use super::request::{Handler, Outcome};

/// A free slot of a [`WorkQueue`]; the queue can do nothing else until it is submitted or dropped.
#[must_use = "a slot that is dropped stays free, and its request is not handled"]
pub struct Slot<'q, H: Handler, D> {
    queue: &'q mut WorkQueue<H, D>,
    place: Place,
}

impl<'q, H, D> Slot<'q, H, D>
where
    H: Handler + 'static,
    D: FnMut(&mut H::Request, Outcome),
{
    pub(super) const fn new(queue: &'q mut WorkQueue<H, D>, place: Place) -> Self {
        Self { queue, place }
    }

    /// The request to fill in; it holds what the last use of the slot left.
    pub fn request(&mut self) -> &mut H::Request {
        self.queue.request(self.place)
    }

    /// Whether the submitter will handle the request itself, within [`submit`](Self::submit).
    #[must_use]
    pub fn is_inline(&self) -> bool {
        self.place == Place::Own
    }

    /// Hands the request over. What it holds then belongs to whoever handles it, until the queue
    /// calls back.
    pub fn submit(self) {
        self.queue.submit(self.place);
    }
}

impl<H: Handler, D> std::fmt::Debug for Slot<'_, H, D> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Slot").field("place", &self.place).finish_non_exhaustive()
    }
}

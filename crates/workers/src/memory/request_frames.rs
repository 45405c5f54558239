//! The private frames of one request or one worker, in front of the pool. It owns frames that its
//! holder used and may use again, until it ends; it never takes more from the pool than it is asked
//! for. Decoders keep a bounce frame here that is a full window behind.

use super::alloc_policy::AllocPolicy;
use super::frame::Frame;
use super::frame_stack::FrameKey;
use super::frame_stats::FrameSource;
use super::page_pool::PagePoolInner;
use super::wait_queue::WaitPriority;
use crate::Error;
use crate::sync::Arc;

/// Frames kept for the same request, last in, first out. What is on it at the end goes back to the
/// pool. While it is kept here, a frame is leased as far as the pool knows.
#[derive(Debug)]
pub struct RequestFrameList {
    pool: Arc<PagePoolInner>,
    /// The frames, chained through the pool's links, so that keeping one allocates nothing.
    first: Option<FrameKey>,
    length: u32,
    /// Whether frames were taken since the list began or was released: it is a holder then. Where they
    /// are now it does not know, so that one list should serve one request.
    priority: WaitPriority,
}

impl RequestFrameList {
    pub(super) fn new(pool: Arc<PagePoolInner>) -> Self {
        Self { pool, first: None, length: 0, priority: WaitPriority::Normal }
    }

    /// Leases one frame: from this list, then from the reserve, then from the system.
    ///
    /// # Errors
    ///
    /// As [`PagePool::allocate`](super::PagePool::allocate); never while a frame is on the list.
    pub fn allocate(&mut self, policy: AllocPolicy) -> Result<Frame, Error> {
        let key = match self.first.take() {
            Some(first) => {
                let (key, rest) = self.pool.links().unchain(first);
                self.first = rest;
                self.length -= 1;
                self.pool.links().count(&key, FrameSource::List);
                key
            }
            None => self.pool.allocate(policy, self.priority)?,
        };
        self.priority = WaitPriority::Holder;
        Ok(Frame::new(Arc::clone(&self.pool), key))
    }

    /// Puts a frame on the list. One of another pool goes back to that.
    pub fn put(&mut self, frame: Frame) {
        if frame.is_from(&self.pool)
            && let Some(key) = frame.into_key()
        {
            self.first = Some(self.pool.links().chain(key, self.first.take()));
            self.length += 1;
        }
    }

    /// Frames on the list.
    #[must_use]
    pub fn length(&self) -> u32 {
        self.length
    }

    /// Gives all frames on the list back to the pool. The reserve keeps what it has room for;
    /// neighbours among the rest go back to the system together.
    pub fn release(&mut self) {
        self.length = 0;
        self.priority = WaitPriority::Normal;
        self.pool.release_chain(self.first.take());
    }
}

impl Drop for RequestFrameList {
    fn drop(&mut self) {
        self.release();
    }
}

//! One frame on lease. It owns the right to read and write 4096 bytes of the arena and gives it back
//! when dropped, once, by construction: it cannot be copied. `PagePool` and `RequestFrameList` make it.

use std::ops::{Deref, DerefMut};

use super::frame_stack::FrameKey;
use super::page_pool::PagePoolInner;
use crate::sync::Arc;

/// 4096 bytes on lease from a [`PagePool`](super::PagePool), which get them back on drop.
///
/// The bytes are whatever the last holder left: nothing is cleared. A frame that several places of an
/// output need is shared by reference (or in an `Arc`), and so given back once, when the last of them
/// is done.
pub struct Frame {
    pool: Arc<PagePoolInner>,
    /// Taken out only when the lease ends.
    key: Option<FrameKey>,
}

impl Frame {
    pub(super) fn new(pool: Arc<PagePoolInner>, key: FrameKey) -> Self {
        Self { pool, key: Some(key) }
    }

    /// Ends the lease without giving the frame back: that is the caller's now.
    pub(super) fn into_key(mut self) -> Option<FrameKey> {
        self.key.take()
    }

    /// Whether it is from that pool.
    pub(super) fn is_from(&self, pool: &Arc<PagePoolInner>) -> bool {
        Arc::ptr_eq(&self.pool, pool)
    }

    /// Sets all bytes to zero.
    pub fn clear(&mut self) {
        self.fill(0);
    }

    /// Which frame of the arena this is: the same number means the same memory, at another time.
    #[must_use]
    pub fn number(&self) -> u32 {
        self.key.as_ref().map_or(u32::MAX, FrameKey::index)
    }
}

impl Deref for Frame {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.key.as_ref().map_or(&[], |key| self.pool.arena().bytes(key))
    }
}

impl DerefMut for Frame {
    fn deref_mut(&mut self) -> &mut [u8] {
        match &mut self.key {
            Some(key) => self.pool.arena().bytes_mut(key),
            None => &mut [],
        }
    }
}

impl AsMut<[u8]> for Frame {
    fn as_mut(&mut self) -> &mut [u8] {
        self
    }
}

impl Drop for Frame {
    fn drop(&mut self) {
        if let Some(key) = self.key.take() {
            self.pool.release(key);
        }
    }
}

impl std::fmt::Debug for Frame {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Frame").field("number", &self.number()).finish_non_exhaustive()
    }
}

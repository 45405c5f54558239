//! Output buffers of clusters that wait in a queue for a worker. They are there for speed only: a worker that finds none
//! allocates one, or drops its prefetch. So they are freed for requests that must succeed. Otherwise a worker that waits
//! for memory might wait for the buffers of the clusters behind its own.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ferrofs_workers::memory::Buffer;

/// The buffers of all queued clusters of an image. Clones are handles.
#[derive(Clone, Debug, Default)]
pub(crate) struct QueuedOutputs(Arc<Mutex<QueuedBuffers>>);

#[derive(Debug, Default)]
struct QueuedBuffers {
    next_number: u64,
    /// By number: the last ones are needed last.
    buffers: BTreeMap<u64, Buffer>,
}

impl QueuedOutputs {
    /// Keeps a buffer for a cluster that is about to be queued.
    pub(super) fn add(&self, buffer: Buffer) -> QueuedOutput {
        let mut queued = self.lock();
        let number = queued.next_number;
        queued.next_number = number.wrapping_add(1);
        queued.buffers.insert(number, buffer);
        drop(queued);
        QueuedOutput { outputs: self.clone(), number }
    }

    /// Frees buffers until `bytes` bytes are free or none is left, those first that are needed last.
    pub(super) fn release(&self, bytes: u64) {
        let mut released = 0u64;
        while released < bytes {
            // The guard ends with this statement.
            let last = self.lock().buffers.pop_last();
            let Some((_, buffer)) = last else { return };
            released = released.saturating_add(buffer.resident_bytes());
        }
    }

    /// A poisoned lock is used all the same: no step that leaves the state inconsistent can panic.
    fn lock(&self) -> MutexGuard<'_, QueuedBuffers> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The buffer of a queued cluster, unless it was freed meanwhile. Dropping it frees it.
#[derive(Debug)]
pub(super) struct QueuedOutput {
    outputs: QueuedOutputs,
    number: u64,
}

impl QueuedOutput {
    /// The buffer, for the worker that begins.
    pub(super) fn take(&self) -> Option<Buffer> {
        self.outputs.lock().buffers.remove(&self.number)
    }
}

impl Drop for QueuedOutput {
    fn drop(&mut self) {
        drop(self.take());
    }
}

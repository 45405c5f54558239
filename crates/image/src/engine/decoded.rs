//! The bytes of a cluster once they are decoded, as many readers share them.

use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use ferrofs_workers::memory::Buffer;
use ferrofs_workers::single_flight::CacheValue;

/// Decoded bytes from the front of a cluster. Clones share them; the last one gives the buffer back.
#[derive(Clone, Debug)]
pub(crate) struct DecodedCluster(Arc<DecodedInner>);

#[derive(Debug)]
struct DecodedInner {
    buffer: Buffer,
    /// Bytes of it that readers got, those twice counted that were read twice.
    served: AtomicUsize,
}

impl DecodedCluster {
    /// Notes that readers got so many bytes; true once that is as much as there is.
    pub(crate) fn record_served(&self, bytes: usize) -> bool {
        // A count that orders nothing: relaxed.
        let served = self.0.served.fetch_add(bytes, Ordering::Relaxed);
        served.saturating_add(bytes) >= self.len()
    }
}

impl From<Buffer> for DecodedCluster {
    fn from(buffer: Buffer) -> Self {
        Self(Arc::new(DecodedInner { buffer, served: AtomicUsize::new(0) }))
    }
}

impl Deref for DecodedCluster {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.0.buffer
    }
}

impl CacheValue for DecodedCluster {
    fn length(&self) -> usize {
        self.0.buffer.len()
    }

    fn weight_bytes(&self) -> u64 {
        self.0.buffer.resident_bytes()
    }
}

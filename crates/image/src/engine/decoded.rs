//! The bytes of a cluster once they are decoded, as many readers share them.

use std::ops::Deref;
use std::sync::Arc;

use ferrofs_workers::claims::Value;
use ferrofs_workers::memory::Buffer;

/// Decoded bytes from the front of a cluster. Clones share them; the last one gives the buffer back.
#[derive(Clone, Debug)]
pub(crate) struct Decoded(Arc<Buffer>);

impl From<Buffer> for Decoded {
    fn from(buffer: Buffer) -> Self {
        Self(Arc::new(buffer))
    }
}

impl Deref for Decoded {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.0
    }
}

impl Value for Decoded {
    fn length(&self) -> usize {
        self.0.len()
    }

    fn weight_bytes(&self) -> u64 {
        self.0.resident_bytes()
    }
}

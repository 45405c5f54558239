//! What tells equal runs of bytes: SHA-256, which nobody can make collide on purpose.

use sha2::{Digest as _, Sha256};

/// The SHA-256 of a run of bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Sha256Digest([u8; 32]);

impl Sha256Digest {
    /// The digest of `bytes`.
    pub(crate) fn of(bytes: &[u8]) -> Self {
        Self(Sha256::digest(bytes).into())
    }

    /// Its bytes.
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.0
    }
}

/// A digest of bytes that come in parts.
#[derive(Default)]
pub(crate) struct Sha256Hasher(Sha256);

impl Sha256Hasher {
    /// Adds the next part.
    pub(crate) fn add(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    /// The digest of all parts.
    pub(crate) fn finish(self) -> Sha256Digest {
        Sha256Digest(self.0.finalize().into())
    }
}

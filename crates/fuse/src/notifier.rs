//! What a daemon tells the kernel without being asked. Made by `session`.

use std::sync::Arc;

use rustix::io::Errno;
use zerocopy::IntoBytes;

use crate::session::{SessionCounts, Shared};
use crate::wire::{StoreOut, notification};

/// Tells the kernel things.
#[derive(Clone)]
pub struct Notifier {
    shared: Arc<Shared>,
}

impl std::fmt::Debug for Notifier {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Notifier").finish_non_exhaustive()
    }
}

impl Notifier {
    pub(crate) fn new(shared: Arc<Shared>) -> Self {
        Self { shared }
    }

    /// Whether so many listeners are free that the calling one may be busy, or wait, without anybody waiting for it.
    #[must_use]
    pub fn others_listen(&self) -> bool {
        self.shared.free.count() > 0
    }

    /// Who listens now.
    #[must_use]
    pub fn counts(&self) -> SessionCounts {
        self.shared.counts()
    }

    /// Puts bytes of a file where reads find them: into the kernel's page cache. Pages that are being read are waited
    /// for, so a listener may call this only for pages of no request that it has yet to answer, and while
    /// another one listens. `offset` is that of a page, and the bytes are whole pages or reach the end of the file.
    ///
    /// # Errors
    /// `NOENT`: the kernel does not know the node any more. `NOMEM`: it has no pages to spare.
    pub fn store(&self, node: u64, offset: u64, bytes: &[u8]) -> Result<(), Errno> {
        let size = u32::try_from(bytes.len()).map_err(|_| Errno::INVAL)?;
        let head = StoreOut { node, offset, size, padding: 0 };
        let channel = self.shared.first_channel().ok_or(Errno::NODEV)?;
        channel.notify(notification::STORE, &[head.as_bytes(), bytes])
    }
}

//! What a daemon tells the kernel without being asked. Made by `session`.

use std::sync::{Arc, Weak};

use rustix::io::Errno;
use zerocopy::IntoBytes;

use crate::session::{SessionState, SessionStats};
use crate::wire::{StoreOut, notification};

/// Tells the kernel things. It does not keep the session: the file system that the session keeps may have it.
#[derive(Clone)]
pub struct Notifier {
    shared: Weak<SessionState>,
}

impl std::fmt::Debug for Notifier {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Notifier").finish_non_exhaustive()
    }
}

impl Notifier {
    pub(crate) fn new(shared: &Arc<SessionState>) -> Self {
        Self { shared: Arc::downgrade(shared) }
    }

    /// Whether so many listeners are idle that the calling one may be busy, or wait, without anybody waiting for it.
    #[must_use]
    pub fn has_idle_listener(&self) -> bool {
        self.shared.upgrade().is_some_and(|shared| shared.idle.count() > 0)
    }

    /// Who listens now: nobody once the session is over.
    #[must_use]
    pub fn stats(&self) -> SessionStats {
        self.shared.upgrade().map(|shared| shared.stats()).unwrap_or_default()
    }

    /// Puts bytes of a file where reads find them: into the kernel's page cache. Pages that are being read are waited
    /// for, so a listener may call this only for pages of no request that it has yet to answer, and while
    /// another one listens. `offset` is that of a page, and the bytes are whole pages or reach the end of the file.
    ///
    /// # Errors
    /// `NOENT`: the kernel does not know the node any more. `NOMEM`: it has no pages to spare. `NODEV`: the session is
    /// over.
    pub fn store(&self, node: u64, offset: u64, bytes: &[u8]) -> Result<(), Errno> {
        let size = u32::try_from(bytes.len()).map_err(|_| Errno::INVAL)?;
        let head = StoreOut { node, offset, size, padding: 0 };
        let shared = self.shared.upgrade().ok_or(Errno::NODEV)?;
        let channel = shared.first_channel().ok_or(Errno::NODEV)?;
        channel.notify(notification::STORE, &[head.as_bytes(), bytes])
    }
}

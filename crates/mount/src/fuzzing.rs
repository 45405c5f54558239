//! A mount without threads and without a kernel, and the parser of statistics, for the fuzz targets. Only with the feature
//! `fuzzing`, which no release has.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use ferrofs_fuse::fuzzing::InlineSession;
use ferrofs_fuse::{Capabilities, InitParameters};
use ferrofs_image::Image;
use rustix::fs::{MemfdFlags, SeekFrom, memfd_create, seek};

use crate::image_fs::ImageFs;
use crate::settings::MountSettings;
use crate::stats::MountMetrics;

pub use crate::stats::parse_page;
pub use ferrofs_fuse::fuzzing::HandledMessage;

const CAPABILITIES: Capabilities = Capabilities::ASYNC_READ
    .union(Capabilities::NO_OPEN_SUPPORT)
    .union(Capabilities::NO_OPENDIR_SUPPORT);

/// What FUSE_INIT of a recent kernel leads to.
const INIT_PARAMETERS: InitParameters = InitParameters {
    protocol: (7, 45),
    offered: CAPABILITIES,
    requested: CAPABILITIES,
    granted: CAPABILITIES,
    max_read: 1 << 20,
    offered_readahead: 128 << 10,
    requested_readahead: 128 << 10,
    max_background: 16,
};

/// An image as a file system that answers messages.
pub struct InlineMount {
    session: InlineSession,
    file_system: Arc<ImageFs>,
    output: File,
}

impl std::fmt::Debug for InlineMount {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("InlineMount").field("session", &self.session).finish_non_exhaustive()
    }
}

impl InlineMount {
    /// A mount of `image`. With no listeners in `settings` it starts no thread at all.
    ///
    /// # Errors
    /// There is no memory for a file that takes the replies.
    pub fn new(image: Image, settings: &MountSettings) -> io::Result<Self> {
        let output = File::from(memfd_create("replies", MemfdFlags::CLOEXEC)?);
        let metrics = Arc::new(MountMetrics::new(settings.listeners));
        let on_event = Arc::new(|_: &crate::MountLogEvent<'_>| {});
        let file_system = ImageFs::new(image, *settings, INIT_PARAMETERS, metrics, on_event);
        let session = InlineSession::new(output.try_clone()?.into());
        Ok(Self { session, file_system, output })
    }

    /// Handles a message, and returns what it was with all replies to it.
    ///
    /// # Errors
    /// The file for replies fails.
    pub fn handle(&self, message: &[u8]) -> io::Result<(HandledMessage, Vec<u8>)> {
        seek(&self.output, SeekFrom::Start(0))?;
        let handled = self.session.handle(&*self.file_system, message)?;
        let length = seek(&self.output, SeekFrom::Current(0))?;
        let mut replies = vec![0; usize::try_from(length).unwrap_or(usize::MAX)];
        self.output.read_exact_at(&mut replies, 0)?;
        Ok((handled, replies))
    }
}

impl Drop for InlineMount {
    fn drop(&mut self) {
        self.file_system.shut_down();
    }
}

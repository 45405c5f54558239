//! What a build tells whoever started it, and what it asks: progress, warnings, whether to stop.

use std::path::Path;

use crate::Error;

/// Listens to a build. Every method may be called from any thread of it, and must not wait.
pub trait BuildObserver: Sync {
    /// So many bytes of the source have been taken into the image since the last call.
    fn bytes_done(&self, _bytes: u64) {}

    /// What the build does from now on.
    fn phase(&self, _phase: BuildPhase) {}

    /// Asked again and again: `true` ends the build with
    /// [`ErrorKind::Cancelled`](crate::ErrorKind::Cancelled), and nothing is left behind.
    fn should_stop(&self) -> bool {
        false
    }

    /// Looks at the whole image before it gets its name, and at its blob if there is one, by paths of the
    /// host that hold only for this call; says why it must not get it, which ends the build with
    /// [`ErrorKind::Rejected`](crate::ErrorKind::Rejected). Called once, by the thread that builds.
    ///
    /// # Errors
    /// The image is not what it should be.
    fn inspect(&self, _image: &Path, _blob: Option<&Path>) -> Result<(), String> {
        Ok(())
    }

    /// Something is not as it should be, and the build goes on.
    fn warn(&self, _warning: Error) {}
}

/// What a build does, in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BuildPhase {
    /// The source is listed.
    Import,
    /// Equal runs are looked for.
    Deduplicate,
    /// Contents are read, encoded and written.
    Data,
    /// Inodes and directories are written.
    Metadata,
    /// The image is on its way to stable storage, and gets its name.
    Publish,
}

/// Listens to nothing and lets the build run to its end.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoopObserver;

impl BuildObserver for NoopObserver {}

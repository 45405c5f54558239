//! Whether the cache of a client can be used, and what happens without one: nothing is stored then,
//! and what a read-only cache has is used. Decides, and opens no socket.

use std::fmt;
use std::io;
use std::path::Path;

use rustix::fs::{Access, AtFlags, OFlags};

use super::socket::LOCK_NAME;
use super::{CacheDirectory, open_in};

/// The cache of a client.
#[derive(Debug)]
pub enum CachePlace {
    /// A directory that the fetcher of all clients writes.
    Shared(CacheDirectory),
    /// Nothing is stored. Each client has a fetcher of its own, which keeps a part of what was
    /// fetched in memory.
    Uncached {
        /// A cache that can only be read.
        filled: Option<CacheDirectory>,
        /// Why nothing is stored.
        diagnostic: String,
    },
}

/// A directory that must not be used: others can change what is in it, or it is something else.
#[derive(Debug)]
pub(super) struct UnsafeDirectory(pub(super) String);

impl fmt::Display for UnsafeDirectory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for UnsafeDirectory {}

impl CachePlace {
    /// The cache at `path`, which is created if it is missing.
    ///
    /// # Errors
    /// As [`CacheDirectory::open`], if the directory belongs to another user, or other users have
    /// access to it, or if it is a symbolic link or no directory. Everything else, such as a
    /// read-only file system, means [`CachePlace::Uncached`].
    pub fn of(path: &Path) -> io::Result<Self> {
        let directory = match CacheDirectory::open(path) {
            Ok(directory) => directory,
            Err(error) if is_refusal(&error) => return Err(error),
            Err(error) => return Ok(Self::uncached(error.to_string())),
        };
        Ok(match directory.can_be_written() {
            Ok(()) => Self::Shared(directory),
            Err(error) => {
                let diagnostic = format!("{}: {error}", path.display());
                Self::Uncached { filled: Some(directory), diagnostic }
            }
        })
    }

    /// No cache, for this reason.
    #[must_use]
    pub fn uncached(diagnostic: String) -> Self {
        Self::Uncached { filled: None, diagnostic }
    }
}

impl From<CacheDirectory> for CachePlace {
    fn from(directory: CacheDirectory) -> Self {
        Self::Shared(directory)
    }
}

fn is_refusal(error: &io::Error) -> bool {
    let is_typed = error.get_ref().is_some_and(|inner| inner.is::<UnsafeDirectory>());
    is_typed || error.kind() == io::ErrorKind::NotADirectory
}

impl CacheDirectory {
    /// Whether a fetcher could listen here: it needs its lock, and a name for its socket.
    fn can_be_written(&self) -> io::Result<()> {
        open_in(&self.objects, LOCK_NAME, OFlags::RDWR | OFlags::CREATE)?;
        let access = Access::WRITE_OK | Access::EXEC_OK;
        Ok(rustix::fs::accessat(&self.objects, ".", access, AtFlags::empty())?)
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn a_directory_that_cannot_be_made_means_no_cache_and_one_of_others_is_refused() {
        let above = tempfile::tempdir().unwrap();
        let path = above.path().join("cache");
        assert!(matches!(CachePlace::of(&path), Ok(CachePlace::Shared(_))));
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o755)).unwrap();
        CachePlace::of(&path).unwrap_err();
        let file = above.path().join("file");
        std::fs::write(&file, "").unwrap();
        CachePlace::of(&file).unwrap_err();
        std::os::unix::fs::symlink(&path, above.path().join("link")).unwrap();
        CachePlace::of(&above.path().join("link")).unwrap_err();
        // Not even root can make a directory there.
        let place = CachePlace::of(Path::new("/proc/self/fdinfo/cache")).unwrap();
        let CachePlace::Uncached { filled: None, diagnostic } = place else { panic!("{place:?}") };
        assert!(diagnostic.contains("/proc/self/fdinfo"), "{diagnostic}");
    }
}

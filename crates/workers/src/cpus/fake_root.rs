//! A directory that stands for the root of some other system, for the tests of this module.
#![allow(clippy::unwrap_used, reason = "a test ends where its world is not as it must be")]

use std::path::Path;

use tempfile::TempDir;

/// Removed when dropped.
#[derive(Debug)]
pub(super) struct FakeRoot(TempDir);

impl FakeRoot {
    /// Files of the given paths and contents, and nothing else.
    pub(super) fn new(files: &[(&str, &str)]) -> Self {
        let fake_root = Self(TempDir::new().unwrap());
        for (path, text) in files {
            fake_root.write(path, text);
        }
        fake_root
    }

    /// Writes or changes a file.
    pub(super) fn write(&self, path: &str, text: &str) {
        self.write_bytes(path, text.as_bytes());
    }

    /// The same for what is not text.
    pub(super) fn write_bytes(&self, path: &str, bytes: &[u8]) {
        let path = self.0.path().join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, bytes).unwrap();
    }

    pub(super) fn root(&self) -> &Path {
        self.0.path()
    }
}

//! How to extract: what to do about existing entries and owners, and which part of the image.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use crate::Selection;

/// How to extract.
#[derive(Clone, Debug, Default)]
pub struct ExtractOptions {
    /// What to do about entries that exist in the destination.
    pub existing: ExistingFiles,
    /// Whose the extracted entries are.
    pub owners: OwnerPolicy,
    /// Which entries to extract.
    pub selection: Selection,
    /// The directory of the image that becomes the destination; empty for the root. Paths count from
    /// there then, in errors and in the selection.
    pub source_directory: Vec<u8>,
    /// Permission bits that entries do not get, as of a umask.
    pub umask: u32,
    /// Extended attributes are left out, ACLs and capabilities among them.
    pub skip_xattrs: bool,
    /// How many threads may work, the caller's included; never more than the CPUs that the system
    /// grants, and never less than one. `None`: as many as these CPUs.
    pub max_threads: Option<usize>,
    /// When this becomes true the extraction ends soon, with
    /// [`ErrorKind::Stopped`](crate::ErrorKind::Stopped). `None`: nothing stops it.
    pub stop: Option<Arc<AtomicBool>>,
}

/// What to do about entries that exist in the destination.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ExistingFiles {
    /// The destination must be new or empty.
    #[default]
    Refuse,
    /// Directories are used again; anything else that exists stays, and is a failure.
    Keep,
    /// Directories are used again; anything else is removed and made anew. A symlink is never
    /// followed, and a directory is never removed.
    Replace,
}

/// Whose the extracted entries are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OwnerPolicy {
    /// The image's if the caller is root; an owner that cannot be set is skipped.
    #[default]
    IfRoot,
    /// The image's; an owner that cannot be set is a failure.
    Image,
    /// The caller's.
    Caller,
}

//! What an import of a directory is asked for.

use crate::import::adjust::{Adjustments, ExcludePatterns};

/// How to import a directory. The default takes everything as it is, and fails at what it cannot read.
#[derive(Clone, Debug, Default)]
pub struct DirectoryOptions {
    /// What to leave out.
    pub exclusions: ExcludePatterns,
    /// What to change.
    pub adjustments: Adjustments,
    /// What becomes of hard links.
    pub hard_links: HardLinkPolicy,
    /// What becomes of entries that cannot be read.
    pub unreadable: UnreadablePolicy,
}

/// What becomes of an inode with several names.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum HardLinkPolicy {
    /// One inode with several names.
    #[default]
    Joined,
    /// An inode for every name (`--hard-dereference`).
    Separate,
}

/// What becomes of an entry that cannot be read, or is not what it was when its directory was listed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum UnreadablePolicy {
    /// The import fails.
    #[default]
    Fail,
    /// A warning, and the entry is left out, a directory with all that it holds.
    ///
    /// Every regular file is opened once to see that it can be; one that opens and whose bytes turn out
    /// to be unreadable later still fails the build.
    LeaveOut,
}

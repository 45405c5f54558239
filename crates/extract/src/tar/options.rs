//! How to write a tar.

use ferrofs_workers::memory::Budget;

use crate::selection::Selection;

/// How to write a tar.
#[derive(Clone, Debug, Default)]
pub struct WriteTarOptions {
    /// Which entries to write.
    pub selection: Selection,
    /// What becomes of holes.
    pub holes: HolePolicy,
    /// Threads at most, the caller's among them; none is one for each CPU that is granted. The
    /// stream is the same whatever their number is.
    pub max_threads: Option<usize>,
    /// What the segments of the stream that are on their way are charged to. They take 2 MiB each,
    /// four for each thread, but no more than a quarter of the budget as long as there is one.
    /// So is what is remembered of inodes with several names.
    pub budget: Option<Budget>,
}

/// What becomes of the holes of files.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum HolePolicy {
    /// A map of the data takes the place of holes of 4 KiB and more (GNU.sparse 1.0), which GNU tar,
    /// libarchive, Go and Python know.
    #[default]
    Sparse,
    /// They are written as zeros, for readers that know plain PAX only.
    Zeros,
}

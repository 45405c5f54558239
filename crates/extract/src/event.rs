//! What an extraction reports while it runs, and what it counted at its end.

use ferrofs_workers::workqueue::WorkQueueStats;

use crate::Error;

/// Something that happened.
#[derive(Debug)]
#[non_exhaustive]
pub enum ExtractEvent {
    /// An entry, or a part of its metadata, could not be extracted. The rest goes on.
    Failed(Error),
    /// More has been written. It comes for each entry and for each part of a large file, in the
    /// order in which the threads come back with what they were given: some entries at once.
    Progress(ExtractProgress),
    /// How the threads got their work; once, when everything is done.
    Queue(Box<WorkQueueStats>),
}

/// How far an extraction has come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ExtractProgress {
    /// Entries dealt with: extracted, failed or skipped.
    pub entries: u64,
    /// Bytes of file contents, holes included.
    pub bytes: u64,
}

/// What was extracted, and what was not.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ExtractSummary {
    /// Regular files, each hard-linked one once.
    pub files: u64,
    /// Directories.
    pub directories: u64,
    /// Symlinks.
    pub symlinks: u64,
    /// Device nodes, FIFOs and sockets.
    pub special: u64,
    /// Further names of files that were extracted already.
    pub hard_links: u64,
    /// Bytes of file contents, holes included.
    pub bytes: u64,
    /// How many of these bytes are holes.
    pub hole_bytes: u64,
    /// How many [`ExtractEvent::Failed`] there were.
    pub failures: u64,
    /// What the caller's rights or the host's file system did not allow.
    pub skipped: SkippedMetadata,
}

impl ExtractSummary {
    /// All names that were extracted.
    #[must_use]
    pub fn entries(&self) -> u64 {
        self.files + self.directories + self.symlinks + self.special + self.hard_links
    }

    /// Adds what another thread has counted.
    pub(crate) fn add(&mut self, other: &Self) {
        let Self { files, directories, symlinks, special, hard_links, .. } = other;
        self.files += files;
        self.directories += directories;
        self.symlinks += symlinks;
        self.special += special;
        self.hard_links += hard_links;
        self.bytes = self.bytes.saturating_add(other.bytes);
        self.hole_bytes = self.hole_bytes.saturating_add(other.hole_bytes);
        self.failures += other.failures;
        self.skipped.add(&other.skipped);
    }
}

/// What could not be kept, and is no failure: the caller lacks the right, or the host's file system
/// lacks the feature.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SkippedMetadata {
    /// Entries whose owner or group is not the image's.
    pub owners: u64,
    /// Files that lost set-user-id or set-group-id since they have another owner.
    pub set_id_bits: u64,
    /// Device nodes, FIFOs and sockets that were not created.
    pub special: u64,
    /// Extended attributes that need a right the caller has not.
    pub xattrs_denied: u64,
    /// Extended attributes that the host's file system does not take.
    pub xattrs_unsupported: u64,
    /// Entries whose time the host's file system cannot hold.
    pub times: u64,
    /// Hard links that became copies.
    pub copied_links: u64,
}

impl SkippedMetadata {
    /// Whether everything was kept.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    fn add(&mut self, other: &Self) {
        self.owners += other.owners;
        self.set_id_bits += other.set_id_bits;
        self.special += other.special;
        self.xattrs_denied += other.xattrs_denied;
        self.xattrs_unsupported += other.xattrs_unsupported;
        self.times += other.times;
        self.copied_links += other.copied_links;
    }
}

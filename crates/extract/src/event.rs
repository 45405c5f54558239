//! The events of an extraction, its summary, and the reporter that passes both to the caller.

use std::path::PathBuf;

use ferrofs_workers::workqueue::WorkQueueStats;

use crate::error::{Error, Result};

/// Bytes of the contents of a file.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct FileBytes {
    /// All of them, holes included.
    pub(crate) bytes: u64,
    /// Those in holes.
    pub(crate) holes: u64,
}

impl FileBytes {
    pub(crate) fn add(&mut self, other: Self) {
        self.bytes = self.bytes.saturating_add(other.bytes);
        self.holes = self.holes.saturating_add(other.holes);
    }
}

/// An event of an extraction.
#[derive(Debug)]
#[non_exhaustive]
pub enum ExtractEvent {
    /// An entry, or a part of its metadata, could not be extracted. The extraction continues.
    Failed(Error),
    /// The destination is being made, and beside it is a directory that another extraction into the
    /// same destination has made: that one is running, or was killed. Its path; at the beginning.
    Leftover(PathBuf),
    /// More has been written. There is one event for each entry and each segment of a large file,
    /// in the order in which the threads return their batches.
    Progress(ExtractProgress),
    /// Counters of the work queue; once, at the end.
    Queue(Box<WorkQueueStats>),
}

/// The progress of an extraction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ExtractProgress {
    /// Entries that were extracted, failed or skipped.
    pub entries: u64,
    /// Bytes of file contents, holes included, also of large files that failed later.
    pub bytes: u64,
}

/// Counts of what was extracted, failed and skipped.
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
    /// Hard links: further names of files.
    pub hard_links: u64,
    /// Bytes of the contents of these files, holes included.
    pub bytes: u64,
    /// How many of these bytes are holes.
    pub hole_bytes: u64,
    /// How many [`ExtractEvent::Failed`] there were.
    pub failures: u64,
    /// Metadata and entries that the caller's privileges or the host's file system did not allow.
    pub skipped: SkippedMetadata,
}

impl ExtractSummary {
    /// The number of names that were extracted.
    #[must_use]
    pub fn entries(&self) -> u64 {
        self.files + self.directories + self.symlinks + self.special + self.hard_links
    }

    /// Adds the bytes of a file.
    pub(crate) fn add_bytes(&mut self, FileBytes { bytes, holes }: FileBytes) {
        self.bytes = self.bytes.saturating_add(bytes);
        self.hole_bytes = self.hole_bytes.saturating_add(holes);
    }

    /// Adds the counts of another thread.
    pub(crate) fn add(&mut self, other: &Self) {
        let Self { files, directories, symlinks, special, hard_links, .. } = other;
        self.files += files;
        self.directories += directories;
        self.symlinks += symlinks;
        self.special += special;
        self.hard_links += hard_links;
        self.add_bytes(FileBytes { bytes: other.bytes, holes: other.hole_bytes });
        self.failures += other.failures;
        self.skipped.add(&other.skipped);
    }
}

/// Counts of what was skipped and is no failure: the caller lacks the privilege, or the host's file
/// system lacks the feature.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SkippedMetadata {
    /// Entries whose owner or group could not be set.
    pub owners: u64,
    /// Files without their set-user-id or set-group-id bit, because their owner could not be set.
    pub set_id_bits: u64,
    /// Files without their capabilities, because root got them instead of their owner.
    pub capabilities: u64,
    /// Device nodes, FIFOs and sockets that were not created.
    pub special: u64,
    /// Extended attributes for which the caller lacks the privilege.
    pub xattrs_denied: u64,
    /// Extended attributes that the host's file system does not support.
    pub xattrs_unsupported: u64,
    /// Entries whose time the host's file system cannot hold.
    pub times: u64,
    /// Hard links that were written as copies.
    pub copied_links: u64,
}

impl SkippedMetadata {
    /// Whether nothing was skipped.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    fn add(&mut self, other: &Self) {
        self.owners += other.owners;
        self.set_id_bits += other.set_id_bits;
        self.capabilities += other.capabilities;
        self.special += other.special;
        self.xattrs_denied += other.xattrs_denied;
        self.xattrs_unsupported += other.xattrs_unsupported;
        self.times += other.times;
        self.copied_links += other.copied_links;
    }
}

/// The result of a task: counts and failures.
#[derive(Debug, Default)]
pub(crate) struct TaskReport {
    /// Counts without failures, which are listed below.
    pub(crate) counted: ExtractSummary,
    pub(crate) failures: Vec<Error>,
    /// What segments have counted of a file that does not count: it was removed, or a panic ended
    /// its completion.
    pub(crate) removed: FileBytes,
}

/// Counts, and calls back for each event.
pub(crate) struct Reporter<'a> {
    pub(crate) summary: ExtractSummary,
    /// Part of the bytes in the summary: the progress never goes back.
    removed: FileBytes,
    entries: u64,
    on_event: &'a mut dyn FnMut(ExtractEvent),
}

impl<'a> Reporter<'a> {
    pub(crate) fn new(on_event: &'a mut dyn FnMut(ExtractEvent)) -> Self {
        let (summary, removed) = Default::default();
        Self { summary, removed, entries: 0, on_event }
    }

    /// Reports a failure.
    pub(crate) fn fail(&mut self, error: Error) {
        self.summary.failures += 1;
        (self.on_event)(ExtractEvent::Failed(error));
    }

    /// Reports what another extraction has left.
    pub(crate) fn leftover(&mut self, path: PathBuf) {
        (self.on_event)(ExtractEvent::Leftover(path));
    }

    /// Reports the counters of the work queue.
    pub(crate) fn queue(&mut self, snapshot: WorkQueueStats) {
        (self.on_event)(ExtractEvent::Queue(Box::new(snapshot)));
    }

    /// Reports a failure, or returns it if no further entry can succeed.
    pub(crate) fn fail_or_stop(&mut self, error: Error) -> Result<()> {
        if error.kind().stops_everything() {
            return Err(error);
        }
        self.fail(error);
        Ok(())
    }

    /// Adds the result of a batch. `progress_marks` has the bytes that were delivered when each
    /// entry was done.
    pub(crate) fn record_batch(&mut self, report: TaskReport, progress_marks: &[u64]) {
        let TaskReport { counted, failures, removed } = report;
        let before = self.summary.bytes;
        for delivered in progress_marks {
            self.summary.bytes = before.saturating_add(*delivered);
            self.entry();
        }
        self.summary.bytes = before;
        self.summary.add(&counted);
        if progress_marks.is_empty() {
            self.progress();
        }
        self.removed.add(removed);
        failures.into_iter().for_each(|error| self.fail(error));
    }

    /// The counts of what is there in the end.
    pub(crate) fn into_summary(self) -> ExtractSummary {
        let (mut summary, removed) = (self.summary, self.removed);
        summary.bytes = summary.bytes.saturating_sub(removed.bytes);
        summary.hole_bytes = summary.hole_bytes.saturating_sub(removed.holes);
        summary
    }

    /// Counts one more entry.
    pub(crate) fn entry(&mut self) {
        self.entries += 1;
        self.progress();
    }

    fn progress(&mut self) {
        let progress = ExtractProgress { entries: self.entries, bytes: self.summary.bytes };
        (self.on_event)(ExtractEvent::Progress(progress));
    }
}

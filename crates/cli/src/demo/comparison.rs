//! Compares a tree with what it must be: every entry, every field, every byte, by several readers at a time. What the
//! caller's rights did not allow is not held against the tree, but counted.

use std::collections::HashMap;
use std::io;
use std::path::Path;
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Context, anyhow};
use ferrofs_image::FileType;

use super::record::{FileContents, FileRecord};
use super::reference::{ReferenceEntry, ReferenceTree, walk_host};
use super::visibility::VisibilityRules;
use crate::metadata_text;
use crate::progress::{ProgressDisplay, WorkAmount};
use crate::signals::StopRequest;

/// Entries that wait for a reader.
const WAITING_MAX: usize = 64;

/// What is to be compared, and by how many.
pub(super) struct Comparison<'a> {
    pub(super) tree: &'a Path,
    pub(super) reference: &'a ReferenceTree,
    pub(super) visibility: VisibilityRules,
    /// At least one.
    pub(super) readers: usize,
    pub(super) stop: &'a StopRequest,
}

/// What a comparison found.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct ComparisonResult {
    pub(super) done: WorkAmount,
    pub(super) differences: u64,
    /// Files that the caller could not read to compare them.
    pub(super) unreadable: u64,
}

/// What a reader found at a path.
struct ComparedEntry {
    expected: Box<FileRecord>,
    found: CompareOutcome,
}

enum CompareOutcome {
    /// Nothing, and that may be so.
    Nothing,
    Missing,
    Denied,
    Failed(io::Error),
    Entry {
        differences: Vec<String>,
        is_unreadable: bool,
        link_key: Option<Vec<u8>>,
    },
}

/// Everything found so far.
struct CompareCounters<'a> {
    progress: &'a mut ProgressDisplay,
    result: ComparisonResult,
    missing: u64,
    /// Which file of the host each hard-linked file of the reference is.
    links: HashMap<Vec<u8>, Option<Vec<u8>>>,
}

impl Comparison<'_> {
    /// Compares everything and names each difference on standard error.
    ///
    /// # Errors
    /// The reference cannot be had, the tree cannot be listed, or somebody wants an end.
    pub(super) fn run(&self, progress: &mut ProgressDisplay) -> anyhow::Result<ComparisonResult> {
        let mut counters = CompareCounters {
            progress,
            result: ComparisonResult::default(),
            missing: 0,
            links: HashMap::new(),
        };
        let (work, waiting) = sync_channel(WAITING_MAX);
        let (report, compared) = channel();
        let waiting = Arc::new(Mutex::new(waiting));
        std::thread::scope(|scope| {
            for number in 0..self.readers {
                let (waiting, report) = (Arc::clone(&waiting), report.clone());
                let named = std::thread::Builder::new().name(format!("compare-{number}"));
                let started = named.spawn_scoped(scope, move || self.read(&waiting, &report));
                started.context("a thread cannot be started")?;
            }
            // Only the readers have these now, so that either side sees the end of the other.
            drop((waiting, report));
            self.dispatch(work, &compared, &mut counters)
        })?;
        self.stop.check()?;
        self.count_extra(&mut counters)?;
        Ok(counters.result)
    }

    /// Gives every path of the reference to the readers, and takes in what they find.
    fn dispatch(
        &self,
        work: SyncSender<Box<FileRecord>>,
        compared: &Receiver<ComparedEntry>,
        counters: &mut CompareCounters<'_>,
    ) -> anyhow::Result<()> {
        self.reference.for_each(self.stop, &mut |known| {
            self.stop.check()?;
            match known {
                ReferenceEntry::FileRecord(record) => {
                    work.send(record).map_err(|_| anyhow!("all readers ended"))?;
                }
                ReferenceEntry::Hidden => counters.hidden(),
            }
            compared.try_iter().for_each(|entry| counters.take(entry));
            Ok(())
        })?;
        // Without further work the readers end, and without readers the results.
        drop(work);
        compared.iter().for_each(|entry| counters.take(entry));
        Ok(())
    }

    /// The work of a reader, which lasts as long as there is some: whoever hands it out never waits in vain.
    fn read(&self, waiting: &Mutex<Receiver<Box<FileRecord>>>, report: &Sender<ComparedEntry>) {
        loop {
            let next = waiting.lock().unwrap_or_else(PoisonError::into_inner).recv();
            let Ok(expected) = next else { return };
            let found = self.look(&expected);
            // What was found while somebody wanted an end says nothing.
            if !self.stop.is_requested() && report.send(ComparedEntry { expected, found }).is_err()
            {
                return;
            }
        }
    }

    /// Compares one entry.
    fn look(&self, expected: &FileRecord) -> CompareOutcome {
        let found = match FileRecord::of_host(self.tree, &expected.path, self.stop) {
            Ok(found) => found,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return if self.visibility.may_lack(expected) {
                    CompareOutcome::Nothing
                } else {
                    CompareOutcome::Missing
                };
            }
            Err(error)
                if error.kind() == io::ErrorKind::PermissionDenied
                    && self.visibility.may_be_denied() =>
            {
                return CompareOutcome::Denied;
            }
            Err(error) => return CompareOutcome::Failed(error),
        };
        let mut differences = self.fields(expected, &found);
        let is_unreadable = compare_contents(expected, &found, &mut differences);
        CompareOutcome::Entry { differences, is_unreadable, link_key: found.link_key }
    }

    fn fields(&self, expected: &FileRecord, found: &FileRecord) -> Vec<String> {
        let mut differences = Vec::new();
        if expected.file_type != found.file_type {
            differences.push(format!("is a {}", found.file_type.name()));
        }
        if expected.mtime != found.mtime {
            let (at, instead) = (
                metadata_text::format_exact(found.mtime),
                metadata_text::format_exact(expected.mtime),
            );
            differences.push(format!("has the time {at}, not {instead}"));
        }
        let has_mode = expected.file_type != FileType::Symlink;
        if has_mode && (expected.mode ^ found.mode) & self.visibility.mode_mask() != 0 {
            differences.push(format!("has the mode {:04o}, not {:04o}", found.mode, expected.mode));
        }
        if let Some((uid, gid)) = self.visibility.owners(expected)
            && (uid, gid) != (found.uid, found.gid)
        {
            differences.push(format!("belongs to {}:{}, not {uid}:{gid}", found.uid, found.gid));
        }
        if let Some(count) = self.visibility.link_count(expected)
            && count != found.link_count
        {
            differences.push(format!("has {} links, not {count}", found.link_count));
        }
        let denied = [expected.denied_xattrs.as_slice(), found.denied_xattrs.as_slice()];
        let xattrs = |record| self.visibility.xattrs(record, &denied);
        if xattrs(&expected.xattrs) != xattrs(&found.xattrs) {
            differences.push("has other extended attributes".to_owned());
        }
        differences
    }

    /// Every path of the reference was looked at, so more paths than that are too many.
    fn count_extra(&self, counters: &mut CompareCounters<'_>) -> anyhow::Result<()> {
        let mut count = 0u64;
        walk_host(self.tree, &mut |_| {
            count += 1;
            Ok(self.stop.check()?)
        })?;
        let known = counters.result.done.entries.saturating_sub(counters.missing);
        if let Some(extra) = count.checked_sub(known).filter(|extra| *extra > 0) {
            counters.result.differences += extra;
            let text = format!("{extra} entries that do not belong there");
            counters.progress.print_path_message(b"/", text);
        }
        Ok(())
    }
}

/// Whether there were contents that the caller may not read.
fn compare_contents(
    expected: &FileRecord,
    found: &FileRecord,
    differences: &mut Vec<String>,
) -> bool {
    let differs = match (&expected.contents, &found.contents) {
        (FileContents::Unreadable { size }, other) | (other, FileContents::Unreadable { size }) => {
            if *size != other.bytes() {
                differences.push("has another size".to_owned());
            }
            return true;
        }
        (a, b) if a == b => return false,
        (FileContents::Target(_), _) => "leads elsewhere",
        (FileContents::Device { .. }, _) => "is another device",
        _ => "has other contents",
    };
    differences.push(differs.to_owned());
    false
}

impl CompareCounters<'_> {
    fn take(&mut self, ComparedEntry { expected, found }: ComparedEntry) {
        match found {
            CompareOutcome::Nothing => self.missing += 1,
            CompareOutcome::Missing => {
                self.missing += 1;
                self.differs(&expected, "is missing");
            }
            CompareOutcome::Denied => self.result.unreadable += 1,
            CompareOutcome::Failed(error) => {
                self.differs(&expected, &format!("cannot be read: {error}"))
            }
            CompareOutcome::Entry { differences, is_unreadable, link_key } => {
                self.result.unreadable += u64::from(is_unreadable);
                differences.iter().for_each(|how| self.differs(&expected, how));
                self.link(&expected, link_key.as_deref());
            }
        }
        self.result.done.entries += 1;
        self.result.done.bytes += expected.contents.bytes();
        self.progress.update(self.result.done);
    }

    /// An entry that the caller may not look at where it comes from.
    fn hidden(&mut self) {
        self.result.unreadable += 1;
        self.result.done.entries += 1;
    }

    fn link(&mut self, expected: &FileRecord, found: Option<&[u8]>) {
        let Some(key) = &expected.link_key else { return };
        let first = self.links.entry(key.clone()).or_insert_with(|| found.map(<[u8]>::to_vec));
        if first.as_deref() != found {
            self.differs(expected, "is not the same file as its other names");
        }
    }

    fn differs(&mut self, expected: &FileRecord, how: &str) {
        self.result.differences += 1;
        self.progress.print_path_message(&expected.path, how);
    }
}

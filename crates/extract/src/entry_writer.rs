//! Writes entries into open directories of the host, and completes directories. [`EntryBatch`] is
//! what a thread gets: small entries that it writes one after the other, so that waking a thread
//! never costs more than its work. A batch knows how far it has come; after a panic the rest
//! continues. Batches are made by `pool` and `large_file`, and taken apart by `extractor`.

use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ferrofs_image::{FileType, Image, Inode, WalkEntry, Xattr};
use ferrofs_workers::CancelToken;
use rustix::fs::Stat;

use crate::content::{ContentWriter, FileContent};
use crate::error::{Error, ErrorKind};
use crate::event::{FileBytes, TaskReport};
use crate::host_entry::{IncompleteFile, NewEntry, NewHostFile, PinnedEntry};
use crate::limits::ExtractLimits;
use crate::links::FirstNameResult;
use crate::metadata::{ForeignAcl, MetadataPolicy, MetadataTarget, NewMetadata, permissions};
use crate::open_directory::{FileId, OpenDirectory, StagedDirectory, release, release_staged};
use crate::options::{ExistingFiles, ExtractOptions};
use crate::selection::data_bytes;

/// The state that all threads of an extraction share.
#[derive(Debug)]
pub(crate) struct ExtractContext {
    pub(crate) image: Image,
    pub(crate) policy: MetadataPolicy,
    pub(crate) existing: ExistingFiles,
    skip_xattrs: bool,
    skip_devices: bool,
    skip_destination_metadata: bool,
    /// No further entry can succeed: tasks that have not begun are skipped.
    should_stop: AtomicBool,
    /// The first error after which no further entry can succeed, until the walk takes it.
    stop_error: Mutex<Option<Error>>,
    /// The token of [`ExtractOptions`].
    pub(crate) cancel: CancelToken,
    pub(crate) limits: ExtractLimits,
}

impl ExtractContext {
    pub(crate) fn new(image: Image, policy: MetadataPolicy, options: &ExtractOptions) -> Self {
        let (existing, cancel) = (options.existing, options.cancel.clone());
        let (skip_xattrs, skip_devices) = (options.skip_xattrs, options.skip_devices);
        let limits = ExtractLimits::new(&image, options.max_work, options.max_output);
        Self {
            image,
            policy,
            existing,
            skip_xattrs,
            skip_devices,
            skip_destination_metadata: options.skip_destination_metadata,
            should_stop: AtomicBool::new(false),
            stop_error: Mutex::default(),
            cancel,
            limits,
        }
    }

    /// Returns an error that is to be listed. An error after which no further entry can succeed stops
    /// everything: the first one is kept for the walk, and later ones would say the same, unless
    /// they name a file that is left.
    pub(crate) fn record_failure(&self, error: Error) -> Option<Error> {
        if !error.kind().stops_everything() {
            return Some(error);
        }
        let mut first = self.stop_error();
        let listed = if first.is_none() {
            *first = Some(error);
            None
        } else {
            error.kind().leaves_incomplete_file().then_some(error)
        };
        self.stop();
        listed
    }

    /// The error that stopped everything, once.
    pub(crate) fn take_stop_error(&self) -> Option<Error> {
        self.stop_error().take()
    }

    fn stop_error(&self) -> MutexGuard<'_, Option<Error>> {
        // No panic can happen while it is held.
        self.stop_error.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes all threads skip the tasks that have not begun.
    pub(crate) fn stop(&self) {
        // Relaxed, and pairs with nothing: a thread that reads it late does some useless work.
        self.should_stop.store(true, Ordering::Relaxed);
    }

    pub(crate) fn should_stop(&self) -> bool {
        self.should_stop.load(Ordering::Relaxed) || self.is_cancelled()
    }

    /// Whether the caller has cancelled the extraction.
    pub(crate) fn is_cancelled(&self) -> bool {
        self.cancel.is_cancelled()
    }

    /// Whether the directory `path` gets the metadata of the image.
    pub(crate) fn sets_metadata_of(&self, path: &[u8]) -> bool {
        path != b"/" || !self.skip_destination_metadata
    }

    /// The place of the entry `path` in its directory.
    pub(crate) fn new_entry<'a>(
        &self,
        directory: &'a OpenDirectory,
        path: &'a [u8],
    ) -> NewEntry<'a> {
        // The walk has checked that this is one safe name.
        let name = path.rsplit(|byte| *byte == b'/').next().unwrap_or_default();
        let is_staged = directory.staged().is_some();
        NewEntry {
            directory: directory.as_fd(),
            name,
            // What is there was extracted before: the host takes two names for one, as `A` and `a`.
            existing: if is_staged { ExistingFiles::Refuse } else { self.existing },
            foreign_acl: directory.origin.acl_of_entries(),
            is_staged,
        }
    }
}

/// The file that an entry was written as, if it was written.
pub(crate) type WrittenId = Option<FileId>;

/// An entry whose contents are written and whose metadata is not set yet.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WrittenEntry<'a> {
    target: MetadataTarget<'a>,
    /// Its status before.
    stat: &'a Stat,
    foreign_acl: ForeignAcl,
}

/// A file whose contents are written, with its status before.
#[derive(Clone, Copy, Debug)]
struct WrittenFile<'a> {
    new: &'a NewHostFile,
    stat: &'a Stat,
}

/// Writes entries and lists failures.
#[derive(Debug)]
pub(crate) struct EntryWriter<'a> {
    pub(crate) context: &'a ExtractContext,
    pub(crate) content: &'a mut ContentWriter,
    pub(crate) report: &'a mut TaskReport,
}

impl EntryWriter<'_> {
    /// Writes an entry that is not a directory.
    pub(crate) fn write(&mut self, directory: &OpenDirectory, node: &WalkEntry) -> WrittenId {
        let new_entry = self.context.new_entry(directory, &node.path);
        let made = match node.inode.file_type() {
            FileType::Regular => self.write_file(new_entry, node),
            FileType::Symlink => self.write_symlink(new_entry, node),
            _ => self.write_special(new_entry, node),
        };
        made.unwrap_or_else(|kind| {
            self.fail(kind, node);
            None
        })
    }

    /// Completes a file whose contents have been written, and gives it its name.
    fn finish_file(
        &mut self,
        new_entry: NewEntry<'_>,
        WrittenFile { new, stat }: WrittenFile<'_>,
        node: &WalkEntry,
    ) -> Result<WrittenId, ErrorKind> {
        let partial = IncompleteFile::whole(new_entry, new);
        let (target, foreign_acl) = (MetadataTarget::Open(new.file.as_fd()), new_entry.foreign_acl);
        let entry = WrittenEntry { target, stat, foreign_acl };
        self.set_metadata(entry, node, permissions(&node.inode));
        match new_entry.publish(new) {
            Ok(()) => partial.keep(),
            Err(kind) => {
                self.remove(partial, node);
                return Err(kind);
            }
        }
        self.report.counted.files += 1;
        Ok(Some(FileId::of(stat)))
    }

    /// As `finish_file`, for a file that was written in segments, which have counted its bytes.
    fn finish(
        &mut self,
        directory: &OpenDirectory,
        file: WrittenFile<'_>,
        node: &WalkEntry,
        written: FileBytes,
    ) -> WrittenId {
        let new_entry = self.context.new_entry(directory, &node.path);
        self.finish_file(new_entry, file, node).unwrap_or_else(|kind| {
            self.report.removed.add(written);
            self.fail(kind, node);
            None
        })
    }

    /// Removes a file that is not whole; a failure is listed beside that of the file.
    fn remove(&mut self, partial: IncompleteFile<'_>, node: &WalkEntry) {
        if let Err(kind) = partial.remove() {
            self.fail(kind, node);
        }
    }

    /// Sets the metadata of a directory in which all entries have been written.
    pub(crate) fn complete(&mut self, directory: &OpenDirectory) {
        let Some(left) = directory.left() else { return };
        self.report.counted.directories += 1;
        if !self.context.sets_metadata_of(&left.node.path) {
            return;
        }
        let target = MetadataTarget::Open(directory.as_fd());
        let foreign_acl = directory.origin.own_acl();
        let entry = WrittenEntry { target, stat: directory.stat(), foreign_acl };
        self.set_metadata(entry, &left.node, left.mode);
    }

    /// Lists a failure, or stops everything.
    pub(crate) fn fail(&mut self, kind: ErrorKind, node: &WalkEntry) {
        let error = Error::new(kind, &node.path).about(&node.inode);
        self.report.failures.extend(self.context.record_failure(error));
    }

    fn write_file(
        &mut self,
        new_entry: NewEntry<'_>,
        node: &WalkEntry,
    ) -> Result<WrittenId, ErrorKind> {
        let inode = &node.inode;
        let new = new_entry.create_file(first_mode(inode, new_entry.foreign_acl))?;
        let partial = IncompleteFile::new(new_entry, &new);
        let ExtractContext { image, cancel, limits, .. } = self.context;
        let contents = FileContent { image, inode, cancel, limits };
        let written = MetadataTarget::Open(new.file.as_fd()).stat().and_then(|stat| {
            self.content.write(contents, &new.file).map(|written| (stat, written))
        });
        match written {
            Ok((stat, written)) => {
                // The contents are right, so failures from here on do not remove the file.
                partial.keep();
                let file = WrittenFile { new: &new, stat: &stat };
                let file_id = self.finish_file(new_entry, file, node)?;
                self.report.counted.add_bytes(written);
                Ok(file_id)
            }
            Err(kind) => {
                self.remove(partial, node);
                Err(kind)
            }
        }
    }

    fn write_symlink(
        &mut self,
        new_entry: NewEntry<'_>,
        node: &WalkEntry,
    ) -> Result<WrittenId, ErrorKind> {
        let target = self.context.image.read_link(&node.inode)?;
        let entry = new_entry.create_symlink(&target)?;
        self.report.counted.symlinks += 1;
        Ok(self.finish_pinned(&entry, new_entry, node))
    }

    fn write_special(
        &mut self,
        new_entry: NewEntry<'_>,
        node: &WalkEntry,
    ) -> Result<WrittenId, ErrorKind> {
        let is_device =
            matches!(node.inode.file_type(), FileType::CharDevice | FileType::BlockDevice);
        if is_device && self.context.skip_devices {
            return Ok(None);
        }
        let Some(entry) = new_entry.create_special(&node.inode)? else {
            self.report.counted.skipped.special += 1;
            return Ok(None);
        };
        self.report.counted.special += 1;
        Ok(self.finish_pinned(&entry, new_entry, node))
    }

    fn finish_pinned(
        &mut self,
        entry: &PinnedEntry,
        new_entry: NewEntry<'_>,
        node: &WalkEntry,
    ) -> WrittenId {
        let target = MetadataTarget::Pinned(entry.fd.as_fd());
        let written =
            WrittenEntry { target, stat: &entry.stat, foreign_acl: new_entry.foreign_acl };
        self.set_metadata(written, node, permissions(&node.inode));
        Some(FileId::of(&entry.stat))
    }

    fn set_metadata(&mut self, entry: WrittenEntry<'_>, node: &WalkEntry, mode: u32) {
        let (xattrs, unreadable) = match self.xattrs(&node.inode) {
            Ok(xattrs) => (xattrs, None),
            Err(kind) => (Vec::new(), Some(kind)),
        };
        let WrittenEntry { target, stat, foreign_acl } = entry;
        let (inode, xattrs) = (&node.inode, xattrs.as_slice());
        let attributes = NewMetadata { inode, xattrs, mode, stat, foreign_acl };
        let skipped = &mut self.report.counted.skipped;
        let errors = self.context.policy.apply(target, attributes, skipped);
        for kind in unreadable.into_iter().chain(errors) {
            self.fail(kind, node);
        }
    }

    fn xattrs(&self, inode: &Inode) -> Result<Vec<Xattr>, ErrorKind> {
        if !inode.has_xattrs() || self.context.skip_xattrs {
            return Ok(Vec::new());
        }
        let xattrs = self.context.image.xattrs(inode)?;
        self.context.limits.add_xattrs(&xattrs)?;
        Ok(xattrs)
    }
}

/// The permissions that a file is created with, unless it gets a temporary name: its own, so that
/// they need not be set again, or less if the owner must be able to set attributes first, or to
/// remove an ACL.
pub(crate) fn first_mode(inode: &Inode, foreign_acl: ForeignAcl) -> u32 {
    let sets_more = inode.has_xattrs() || foreign_acl == ForeignAcl::Possible;
    if sets_more { 0o600 } else { permissions(inode) & 0o777 }
}

/// The cost of creating an entry, in bytes of contents that take as long. Measured: 10 to 20 µs, in
/// which LZ4 decodes and writes about this much.
const ENTRY_COST_BYTES: u64 = 16 << 10;

/// The cost of each byte of a path: paths can have 64 KiB, and a batch keeps them in memory.
const PATH_COST: u64 = 8;

/// A task. It holds its directory and releases it when it is done.
#[derive(Debug)]
pub(crate) enum EntryTask {
    /// Write an entry that is not a directory.
    Write {
        node: WalkEntry,
        directory: Arc<OpenDirectory>,
    },
    /// Complete a file whose contents have been written in segments.
    Finish {
        node: WalkEntry,
        directory: Arc<OpenDirectory>,
        file: NewHostFile,
        stat: Box<Stat>,
        written: FileBytes,
    },
    /// Only release the directory.
    Release(Arc<OpenDirectory>),
    /// Release the staged directory that a complete one was in.
    ReleaseStaged(Arc<StagedDirectory>),
    Done,
}

/// Tasks and their results.
#[derive(Debug, Default)]
pub(crate) struct EntryBatch {
    pub(crate) tasks: Vec<EntryTask>,
    /// The first task that is not done.
    next: usize,
    /// The directory that is being completed.
    completing: Option<Vec<u8>>,
    pub(crate) report: TaskReport,
    pub(crate) first_names: Vec<FirstNameResult>,
    /// For each entry that is done, directories included: the bytes that were delivered by then.
    pub(crate) progress_marks: Vec<u64>,
}

impl EntryTask {
    /// The cost of the task, in bytes that are decoded and written.
    pub(crate) fn cost(&self) -> u64 {
        match self {
            Self::Write { node, .. } => ENTRY_COST_BYTES
                .saturating_add(PATH_COST.saturating_mul(node.path.len() as u64))
                .saturating_add(data_bytes(&node.inode)),
            _ => ENTRY_COST_BYTES / 8,
        }
    }

    pub(crate) fn directory(&self) -> Option<&Arc<OpenDirectory>> {
        match self {
            Self::Write { directory, .. }
            | Self::Finish { directory, .. }
            | Self::Release(directory) => Some(directory),
            Self::ReleaseStaged(_) | Self::Done => None,
        }
    }
}

impl EntryBatch {
    /// A batch of one task. `report` is what was done before it.
    pub(crate) fn of(task: EntryTask, report: TaskReport) -> Self {
        Self { tasks: vec![task], report, ..Self::default() }
    }

    /// Does the remaining tasks, unless everything stops. A file whose contents are whole is
    /// completed even then.
    pub(crate) fn run(&mut self, context: &ExtractContext, content: &mut ContentWriter) {
        while let Some(task) = self.tasks.get_mut(self.next) {
            if context.should_stop() && !matches!(task, EntryTask::Finish { .. }) {
                return;
            }
            let mut writer = EntryWriter { context, content, report: &mut self.report };
            let made = match task {
                EntryTask::Write { node, directory } => {
                    Some((writer.write(directory, node), node, directory))
                }
                EntryTask::Finish { node, directory, file, stat, written } => {
                    let file = WrittenFile { new: file, stat };
                    Some((writer.finish(directory, file, node, *written), node, directory))
                }
                EntryTask::Release(_) | EntryTask::ReleaseStaged(_) | EntryTask::Done => None,
            };
            if let Some((file_id, node, directory)) = made {
                let first_name = FirstNameResult::new(node, directory, file_id);
                self.first_names.extend(first_name);
                self.progress_marks.push(self.report.counted.bytes);
            }
            while !self.release_directory(context, content) {}
            self.next += 1;
        }
    }

    /// Releases the directory of the current task, and completes it if this was the last holder.
    /// `false` if the task has become one that releases another directory.
    fn release_directory(&mut self, context: &ExtractContext, content: &mut ContentWriter) -> bool {
        let Some(task) = self.tasks.get_mut(self.next) else { return true };
        let directory = match std::mem::replace(task, EntryTask::Done) {
            EntryTask::Write { directory, .. }
            | EntryTask::Finish { directory, .. }
            | EntryTask::Release(directory) => directory,
            EntryTask::ReleaseStaged(staged) => match release_staged(staged) {
                Some(parent) => parent,
                None => return true,
            },
            EntryTask::Done => return true,
        };
        let Some(directory) = release(directory) else { return true };
        if let Some(staged) = directory.staged() {
            *task = EntryTask::ReleaseStaged(Arc::clone(staged));
        }
        self.completing = directory.left().map(|left| left.node.path.clone());
        EntryWriter { context, content, report: &mut self.report }.complete(&directory);
        self.completing = None;
        self.progress_marks.push(self.report.counted.bytes);
        directory.staged().is_none()
    }

    /// After a panic: marks the task that panicked as failed. Each panic brings the batch one step
    /// further, so running it again ends.
    pub(crate) fn mark_panicked(&mut self) {
        if let Some(path) = self.completing.take() {
            self.report.failures.push(Error::new(ErrorKind::Panicked, &path));
            self.progress_marks.push(self.report.counted.bytes);
            // The directory was released; the staged one that it was in may be left.
            return;
        }
        let Some(task) = self.tasks.get_mut(self.next) else { return };
        if let EntryTask::Finish { written, .. } = task {
            self.report.removed.add(*written);
        }
        match std::mem::replace(task, EntryTask::Done) {
            EntryTask::Write { node, directory } | EntryTask::Finish { node, directory, .. } => {
                let error = Error::new(ErrorKind::Panicked, &node.path).about(&node.inode);
                self.report.failures.push(error);
                self.first_names.extend(FirstNameResult::new(&node, &directory, None));
                self.progress_marks.push(self.report.counted.bytes);
                *task = EntryTask::Release(directory);
            }
            EntryTask::Release(_) | EntryTask::ReleaseStaged(_) | EntryTask::Done => self.next += 1,
        }
    }
}

//! Tasks that one thread does one after the other, and what came of them: small entries are handed
//! over in batches, so that waking a thread never costs more than its work. A batch knows how far it
//! has come, so that after a panic the rest can go on. WrittenId by `pool`, run by `worker`, taken apart by
//! `extractor`.

use std::fs::File;
use std::sync::Arc;

use ferrofs_image::{FileType, Inode, Nid, WalkEntry};
use rustix::fs::Stat;

use crate::content::ContentWriter;
use crate::directory::{FileId, OpenDirectory, release};
use crate::entry_writer::{EntryWriter, ExtractContext, TaskReport};
use crate::error::{Error, ErrorKind};

/// What making an entry costs beside its bytes, counted in bytes. Measured: 10 to 20 µs, in which
/// LZ4 decodes and writes about this much.
const ENTRY_COST_BYTES: u64 = 16 << 10;

/// What each byte of a path counts: paths can be 64 KiB long, and a batch keeps them in memory.
const PATH_COST: u64 = 8;

/// One thing to do. Whoever does it holds the directory, and lets go of it when it is done.
#[derive(Debug)]
pub(crate) enum EntryTask {
    /// Make an entry that is no directory.
    Write {
        node: WalkEntry,
        directory: Arc<OpenDirectory>,
    },
    /// Complete a file whose contents have been written in parts.
    Finish {
        node: WalkEntry,
        directory: Arc<OpenDirectory>,
        file: File,
        stat: Box<Stat>,
    },
    /// Nothing more than let go.
    Release(Arc<OpenDirectory>),
    Done,
}

/// An inode with several names was made under this one, or not.
#[derive(Debug)]
pub(crate) struct FirstNameResult {
    pub(crate) nid: Nid,
    pub(crate) path: Vec<u8>,
    pub(crate) file_id: Option<FileId>,
}

/// Tasks, and what came of them.
#[derive(Debug, Default)]
pub(crate) struct EntryBatch {
    pub(crate) tasks: Vec<EntryTask>,
    /// The first task that is not done.
    next: usize,
    /// The directory that is being completed.
    completing: Option<Vec<u8>>,
    pub(crate) report: TaskReport,
    pub(crate) first_names: Vec<FirstNameResult>,
    /// Bytes that had been delivered when each entry was done, directories included.
    pub(crate) progress_marks: Vec<u64>,
}

impl FirstNameResult {
    /// It was not made.
    pub(crate) fn failed(node: &WalkEntry) -> Self {
        Self { nid: node.inode.nid(), path: node.path.clone(), file_id: None }
    }
}

impl EntryTask {
    /// What it costs, in bytes that are decoded and written.
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
            Self::Done => None,
        }
    }
}

/// The bytes of a regular file.
pub(crate) fn data_bytes(inode: &Inode) -> u64 {
    if inode.file_type() == FileType::Regular { inode.size() } else { 0 }
}

impl EntryBatch {
    /// One task alone, added to what has been done before it.
    pub(crate) fn of(task: EntryTask, report: TaskReport) -> Self {
        Self { tasks: vec![task], report, ..Self::default() }
    }

    /// Does what is left to do; nothing once everything is to stop.
    pub(crate) fn run(&mut self, context: &ExtractContext, content: &mut ContentWriter) {
        while let Some(task) = self.tasks.get_mut(self.next) {
            if context.should_stop() {
                return;
            }
            let mut writer = EntryWriter { context, content, report: &mut self.report };
            let made = match task {
                EntryTask::Write { node, directory } => Some((writer.write(directory, node), node)),
                EntryTask::Finish { node, directory: _, file, stat } => {
                    Some((writer.finish_file(file, stat, node), node))
                }
                EntryTask::Release(_) | EntryTask::Done => None,
            };
            if let Some((file_id, node)) = made {
                settle(&mut self.first_names, node, file_id);
                self.progress_marks.push(self.report.counted.bytes);
            }
            self.release_directory(context, content);
            self.next += 1;
        }
    }

    /// Lets go of the directory of the current task.
    fn release_directory(&mut self, context: &ExtractContext, content: &mut ContentWriter) {
        let Some(task) = self.tasks.get_mut(self.next) else { return };
        let directory = match std::mem::replace(task, EntryTask::Done) {
            EntryTask::Write { directory, .. }
            | EntryTask::Finish { directory, .. }
            | EntryTask::Release(directory) => directory,
            EntryTask::Done => return,
        };
        let Some(directory) = release(directory) else { return };
        self.completing = directory.left().map(|left| left.node.path.clone());
        EntryWriter { context, content, report: &mut self.report }.complete(&directory);
        self.completing = None;
        self.progress_marks.push(self.report.counted.bytes);
    }

    /// After a panic: the task that it hit has failed. Each panic brings the batch further, so that
    /// running it again comes to an end.
    pub(crate) fn mark_panicked(&mut self) {
        if let Some(path) = self.completing.take() {
            self.report.failures.push(Error::new(ErrorKind::WorkerPanicked, &path));
            self.progress_marks.push(self.report.counted.bytes);
            self.next += 1;
            return;
        }
        let Some(task) = self.tasks.get_mut(self.next) else { return };
        match std::mem::replace(task, EntryTask::Done) {
            EntryTask::Write { node, directory } | EntryTask::Finish { node, directory, .. } => {
                let error = Error::new(ErrorKind::WorkerPanicked, &node.path).about(&node.inode);
                self.report.failures.push(error);
                settle(&mut self.first_names, &node, None);
                self.progress_marks.push(self.report.counted.bytes);
                *task = EntryTask::Release(directory);
            }
            EntryTask::Release(_) | EntryTask::Done => self.next += 1,
        }
    }
}

fn settle(first_names: &mut Vec<FirstNameResult>, node: &WalkEntry, file_id: Option<FileId>) {
    if node.inode.nlink() > 1 {
        first_names.push(FirstNameResult {
            nid: node.inode.nid(),
            path: node.path.clone(),
            file_id,
        });
    }
}

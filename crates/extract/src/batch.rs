//! Jobs that one thread does one after the other, and what came of them: small entries are handed
//! over in batches, so that waking a thread never costs more than its work. A batch knows how far it
//! has come, so that after a panic the rest can go on. Made by `crew`, run by `worker`, taken apart by
//! `extractor`.

use std::fs::File;
use std::sync::Arc;

use ferrofs_image::{FileType, Inode, Nid, Node};
use rustix::fs::Stat;

use crate::content::ContentWriter;
use crate::directory::{Directory, Identity, release};
use crate::entry_writer::{EntryWriter, Report, Task};
use crate::error::{Error, ErrorKind};

/// What making an entry costs beside its bytes, counted in bytes. Measured: 10 to 20 µs, in which
/// LZ4 decodes and writes about this much.
const ENTRY_COST_BYTES: u64 = 16 << 10;

/// What each byte of a path counts: paths can be 64 KiB long, and a batch keeps them in memory.
const PATH_COST: u64 = 8;

/// One thing to do. Whoever does it holds the directory, and lets go of it when it is done.
#[derive(Debug)]
pub(crate) enum Job {
    /// Make an entry that is no directory.
    Write {
        node: Node,
        directory: Arc<Directory>,
    },
    /// Complete a file whose contents have been written in parts.
    Finish {
        node: Node,
        directory: Arc<Directory>,
        file: File,
        stat: Box<Stat>,
    },
    /// Nothing more than let go.
    Release(Arc<Directory>),
    Done,
}

/// An inode with several names was made under this one, or not.
#[derive(Debug)]
pub(crate) struct Settled {
    pub(crate) nid: Nid,
    pub(crate) path: Vec<u8>,
    pub(crate) identity: Option<Identity>,
}

/// Jobs, and what came of them.
#[derive(Debug, Default)]
pub(crate) struct Batch {
    pub(crate) jobs: Vec<Job>,
    /// The first job that is not done.
    next: usize,
    /// The directory that is being completed.
    completing: Option<Vec<u8>>,
    pub(crate) report: Report,
    pub(crate) settled: Vec<Settled>,
    /// Bytes that had been delivered when each entry was done, directories included.
    pub(crate) marks: Vec<u64>,
}

impl Settled {
    /// It was not made.
    pub(crate) fn failed(node: &Node) -> Self {
        Self { nid: node.inode.nid(), path: node.path.clone(), identity: None }
    }
}

impl Job {
    /// What it costs, in bytes that are decoded and written.
    pub(crate) fn cost(&self) -> u64 {
        match self {
            Self::Write { node, .. } => ENTRY_COST_BYTES
                .saturating_add(PATH_COST.saturating_mul(node.path.len() as u64))
                .saturating_add(data_bytes(&node.inode)),
            _ => ENTRY_COST_BYTES / 8,
        }
    }

    pub(crate) fn directory(&self) -> Option<&Arc<Directory>> {
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

impl Batch {
    /// One job alone, added to what has been done before it.
    pub(crate) fn of(job: Job, report: Report) -> Self {
        Self { jobs: vec![job], report, ..Self::default() }
    }

    /// Does what is left to do; nothing once everything is to stop.
    pub(crate) fn run(&mut self, task: &Task, content: &mut ContentWriter) {
        while let Some(job) = self.jobs.get_mut(self.next) {
            if task.must_stop() {
                return;
            }
            let mut writer = EntryWriter { task, content, report: &mut self.report };
            let made = match job {
                Job::Write { node, directory } => Some((writer.write(directory, node), node)),
                Job::Finish { node, directory: _, file, stat } => {
                    Some((writer.finish_file(file, stat, node), node))
                }
                Job::Release(_) | Job::Done => None,
            };
            if let Some((identity, node)) = made {
                settle(&mut self.settled, node, identity);
                self.marks.push(self.report.counted.bytes);
            }
            self.let_go(task, content);
            self.next += 1;
        }
    }

    /// Lets go of the directory of the current job.
    fn let_go(&mut self, task: &Task, content: &mut ContentWriter) {
        let Some(job) = self.jobs.get_mut(self.next) else { return };
        let directory = match std::mem::replace(job, Job::Done) {
            Job::Write { directory, .. }
            | Job::Finish { directory, .. }
            | Job::Release(directory) => directory,
            Job::Done => return,
        };
        let Some(directory) = release(directory) else { return };
        self.completing = directory.left().map(|left| left.node.path.clone());
        EntryWriter { task, content, report: &mut self.report }.complete(&directory);
        self.completing = None;
        self.marks.push(self.report.counted.bytes);
    }

    /// After a panic: the job that it hit has failed. Each panic brings the batch further, so that
    /// running it again comes to an end.
    pub(crate) fn blame(&mut self) {
        if let Some(path) = self.completing.take() {
            self.report.failures.push(Error::new(ErrorKind::WorkerPanicked, &path));
            self.marks.push(self.report.counted.bytes);
            self.next += 1;
            return;
        }
        let Some(job) = self.jobs.get_mut(self.next) else { return };
        match std::mem::replace(job, Job::Done) {
            Job::Write { node, directory } | Job::Finish { node, directory, .. } => {
                let error = Error::new(ErrorKind::WorkerPanicked, &node.path).about(&node.inode);
                self.report.failures.push(error);
                settle(&mut self.settled, &node, None);
                self.marks.push(self.report.counted.bytes);
                *job = Job::Release(directory);
            }
            Job::Release(_) | Job::Done => self.next += 1,
        }
    }
}

fn settle(settled: &mut Vec<Settled>, node: &Node, identity: Option<Identity>) {
    if node.inode.nlink() > 1 {
        settled.push(Settled { nid: node.inode.nid(), path: node.path.clone(), identity });
    }
}

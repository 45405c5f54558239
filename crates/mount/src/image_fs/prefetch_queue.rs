//! Gets files ready that will be read next: decodes them and puts them into the kernel's page cache, where a reader
//! finds them without asking anybody. It is best effort: what has no memory, or no time, is left to be asked for.
//! Told by `read` what `predictor` predicts; its threads run the xattr scan, too.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, PoisonError, Weak};
use std::thread::JoinHandle;

use ferrofs_image::{FileType, Nid, OpenFile, ReadOutcome};
use ferrofs_workers::priority::{self, PriorityLevel, PriorityRequest};

use super::ImageFs;

/// Longer files are left to the kernel's readahead, and to ours.
const MAX_BYTES: u64 = 256 << 10;
/// Files that a thread takes at a time.
const BATCH_FILES: usize = 4;
/// Batches that may wait; not_empty than this are behind the reader already.
const MAX_WAITING: usize = 64;

/// Threads that get files ready.
#[derive(Debug)]
pub(super) struct PrefetchQueue {
    queue: Arc<TaskQueue>,
    max_threads: usize,
    /// That of the listeners: what is stored too late is asked for meanwhile, which costs a listener not_empty.
    priority: PriorityRequest,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

#[derive(Debug, Default)]
struct TaskQueue {
    state: Mutex<TaskQueueState>,
    not_empty: Condvar,
}

#[derive(Debug, Default)]
struct TaskQueueState {
    tasks: VecDeque<PrefetchTask>,
    is_shutdown: bool,
}

/// What a thread takes at a time.
#[derive(Debug)]
enum PrefetchTask {
    Files(Vec<Nid>),
    Readaround(Arc<OpenFile>, u64, ReadOutcome),
    XattrScan,
}

impl PrefetchQueue {
    /// None is started before there is something to do.
    pub(super) fn new(max_threads: usize, priority: PriorityRequest) -> Self {
        Self { queue: Arc::default(), max_threads, priority, threads: Mutex::default() }
    }

    /// Has these files got ready, the first ones first.
    pub(super) fn push(&self, files: &[Nid], image_fs: &Weak<ImageFs>) {
        for task in files.chunks(BATCH_FILES) {
            self.enqueue(PrefetchTask::Files(task.to_vec()), image_fs);
        }
    }

    /// Has stored what lies around a read.
    pub(super) fn store_readaround(
        &self,
        file: Arc<OpenFile>,
        offset: u64,
        read: ReadOutcome,
        image_fs: &Weak<ImageFs>,
    ) {
        self.enqueue(PrefetchTask::Readaround(file, offset, read), image_fs);
    }

    /// Has the xattr scan run.
    pub(super) fn scan_xattrs(&self, image_fs: &Weak<ImageFs>) {
        self.enqueue(PrefetchTask::XattrScan, image_fs);
    }

    /// What comes when too much waits is left out, but for the xattr scan, which is asked for once.
    fn enqueue(&self, task: PrefetchTask, image_fs: &Weak<ImageFs>) {
        self.start_threads(image_fs);
        let mut state = self.queue.state.lock().unwrap_or_else(PoisonError::into_inner);
        if state.tasks.len() < MAX_WAITING || matches!(task, PrefetchTask::XattrScan) {
            state.tasks.push_back(task);
            drop(state);
            self.queue.not_empty.notify_one();
        }
    }

    fn start_threads(&self, image_fs: &Weak<ImageFs>) {
        let mut threads = self.threads.lock().unwrap_or_else(PoisonError::into_inner);
        while threads.len() < self.max_threads {
            let (queue, priority) = (Arc::clone(&self.queue), self.priority);
            let image_fs = Weak::clone(image_fs);
            let name = format!("prefetch/{}", threads.len());
            let thread = std::thread::Builder::new().name(name);
            let run = move || {
                let _reached: PriorityLevel = priority::apply(priority);
                queue.run(&image_fs);
            };
            match thread.spawn(run) {
                Ok(thread) => threads.push(thread),
                Err(_) => return,
            }
        }
    }

    /// Ends the threads.
    pub(super) fn shut_down(&self) {
        self.queue.state.lock().unwrap_or_else(PoisonError::into_inner).is_shutdown = true;
        self.queue.not_empty.notify_all();
        let threads =
            std::mem::take(&mut *self.threads.lock().unwrap_or_else(PoisonError::into_inner));
        for thread in threads {
            thread.join().ok();
        }
    }
}

impl TaskQueue {
    fn run(&self, image_fs: &Weak<ImageFs>) {
        while let Some(task) = self.pop() {
            let Some(image_fs) = image_fs.upgrade() else { return };
            // A panic costs what it was about to get ready, and no thread.
            let done = catch_unwind(AssertUnwindSafe(|| image_fs.run_task(task)));
            drop(done);
        }
    }

    fn pop(&self) -> Option<PrefetchTask> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            if state.is_shutdown {
                return None;
            }
            if let Some(task) = state.tasks.pop_front() {
                return Some(task);
            }
            state = self.not_empty.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

impl ImageFs {
    fn run_task(&self, task: PrefetchTask) {
        match task {
            PrefetchTask::Files(files) => files.into_iter().for_each(|nid| self.prefetch_file(nid)),
            PrefetchTask::Readaround(file, offset, read) => {
                self.store_readaround_now(&file, offset, read)
            }
            PrefetchTask::XattrScan => self.xattr_scan.run(&self.image),
        }
    }

    /// Whatever fails here is said by the read that needs it.
    fn prefetch_file(&self, nid: Nid) {
        let Ok(inode) = self.image.inode(nid) else { return };
        if inode.file_type() != FileType::Regular || !(1..=MAX_BYTES).contains(&inode.size()) {
            return;
        }
        let Ok(bytes) = usize::try_from(inode.size()) else { return };
        let Some(mut buffer) = self.image.best_effort_buffer(bytes) else { return };
        let Some(target) = buffer.get_mut(..bytes) else { return };
        if self.image.read_at(&inode, 0, target).is_ok_and(|count| count == bytes) {
            self.store(self.nodes.node(nid), 0, target);
        }
    }

    /// Gives the kernel bytes of a file; it may not want them.
    pub(super) fn store(&self, node: u64, offset: u64, bytes: &[u8]) {
        let Some(notifier) = self.notifier.get() else { return };
        // What the kernel has no memory for, or has forgotten, is asked for when it is wanted.
        if notifier.store(node, offset, bytes).is_ok() {
            self.metrics.record_store(bytes.len());
        }
    }
}

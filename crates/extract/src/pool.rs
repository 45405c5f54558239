//! The threads of an extraction, the caller's among them: collects tasks into batches, hands these
//! over, and brings back what came of them. It decides how many threads there are and how much is
//! under way at once; it never looks into a task. Called by `extractor`.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;

use ferrofs_workers::cpus::AvailableCpus;
use ferrofs_workers::workqueue::{
    ActiveWorkers, RequestOutcome, WorkQueue, WorkQueueSettings, WorkQueueStats,
};
use rustix::process::{Resource, getrlimit};

use crate::batch::{EntryBatch, EntryTask};
use crate::entry_writer::ExtractContext;
use crate::error::ErrorKind;
use crate::worker::{ExtractRequest, ExtractWorker};

/// What a batch costs when it is full, in bytes that are decoded and written: half a millisecond with
/// the fastest codec, ten times what it takes to wake a thread.
const BATCH_COST_BYTES: u64 = 512 << 10;

/// Requests that lie ready for each worker, so that it need not sleep while the caller's thread is
/// busy with one of its own, be it a segment of a large file, or has to wait for a CPU.
const SLOTS: usize = 8;

/// Directories that the tasks of one batch may hold open.
const DIRECTORIES_MAX: u64 = 16;

/// More threads than this have nothing to do: one thread hands out the work.
const THREADS_MAX: usize = 64;

/// Descriptors that are kept free for all that is no directory of a batch: levels of the tree, files
/// that are being written, the image, and whatever the program has open.
const OTHER_DESCRIPTORS: u64 = 512;

/// Which threads there are beside the caller's.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ThreadLimit {
    workers: usize,
    active_workers: ActiveWorkers,
}

impl ThreadLimit {
    /// As many as are granted and allowed, in all.
    pub(crate) fn at_most(allowed: Option<usize>) -> Self {
        // One thread needs no look at what the system grants.
        let granted = match allowed {
            Some(0 | 1) => 1,
            _ => AvailableCpus::read().parallelism(),
        };
        let threads = allowed.unwrap_or(granted).min(granted).clamp(1, THREADS_MAX);
        Self { workers: threads - 1, active_workers: ActiveWorkers::OnePerCpu }
    }

    /// So many workers, whatever the system grants.
    #[cfg(test)]
    pub(crate) fn exactly(workers: usize) -> Self {
        Self { workers, active_workers: ActiveWorkers::All }
    }
}

/// What came back: a request, and whether it was handled to its end.
pub(crate) type Completion = (ExtractRequest, RequestOutcome);

type OnDone = Box<dyn FnMut(&mut ExtractRequest, RequestOutcome)>;

/// The threads, and the batch that is being filled.
pub(crate) struct ExtractPool {
    queue: WorkQueue<ExtractWorker, OnDone>,
    /// What the queue has called back for.
    completed: Rc<Cell<Vec<Completion>>>,
    workers: usize,
    batch: EntryBatch,
    cost: u64,
    directories: u64,
    directories_max: u64,
}

impl ExtractPool {
    /// Makes a pool; its threads start with their first request.
    pub(crate) fn new(
        context: &Arc<ExtractContext>,
        threads: ThreadLimit,
    ) -> Result<Self, ErrorKind> {
        let completed: Rc<Cell<Vec<Completion>>> = Rc::default();
        let inner = Rc::clone(&completed);
        let on_done = move |request: &mut ExtractRequest, outcome| {
            let mut finished = inner.take();
            finished.push((std::mem::take(request), outcome));
            inner.set(finished);
        };
        let settings = WorkQueueSettings {
            name: "extract".to_owned(),
            workers: Some(threads.workers),
            slots: Some(SLOTS),
            active_workers: threads.active_workers,
            // Counted already, with the caller's.
            cpus: Some(threads.workers + 1),
            ..WorkQueueSettings::default()
        };
        let context = Arc::clone(context);
        let make = move || Ok(ExtractWorker::new(Arc::clone(&context)));
        let on_done: OnDone = Box::new(on_done);
        let queue = WorkQueue::new(&settings, ExtractRequest::default, make, on_done);
        let queue = queue.map_err(ErrorKind::Threads)?;
        Ok(Self {
            queue,
            completed,
            workers: threads.workers,
            batch: EntryBatch::default(),
            cost: 0,
            directories: 0,
            directories_max: directories_max(threads.workers),
        })
    }

    /// Whether there is a thread beside the caller's.
    pub(crate) fn is_single_threaded(&self) -> bool {
        self.workers == 0
    }

    /// Adds a task to the batch, and hands that over when it is full.
    pub(crate) fn add(&mut self, task: EntryTask) {
        let last = self.batch.tasks.last().and_then(EntryTask::directory);
        let same = match (last, task.directory()) {
            (Some(last), Some(next)) => Arc::ptr_eq(last, next),
            _ => false,
        };
        self.directories += u64::from(!same);
        self.cost = self.cost.saturating_add(task.cost());
        self.batch.tasks.push(task);
        if self.cost >= BATCH_COST_BYTES || self.directories >= self.directories_max {
            self.flush();
        }
    }

    /// Hands over what there is.
    pub(crate) fn flush(&mut self) {
        (self.cost, self.directories) = (0, 0);
        let batch = std::mem::take(&mut self.batch);
        if !batch.tasks.is_empty() {
            self.submit(ExtractRequest::Batch(batch));
        }
    }

    /// Hands over a request: to a worker that has room for it, or else it is handled here and now.
    pub(crate) fn submit(&mut self, request: ExtractRequest) {
        let mut slot = self.queue.reserve_or_inline();
        *slot.request() = request;
        slot.submit();
        self.queue.collect();
    }

    /// What has come back since the last time.
    pub(crate) fn finished(&mut self) -> Vec<Completion> {
        self.completed.take()
    }

    /// What the queue has counted.
    pub(crate) fn snapshot(&self) -> WorkQueueStats {
        self.queue.snapshot()
    }

    /// Until everything that was handed over has come back.
    pub(crate) fn wait(&mut self) {
        self.queue.wait();
    }
}

/// How many directories a batch may hold, so that all batches together leave enough descriptors.
fn directories_max(workers: usize) -> u64 {
    let batches = (workers * SLOTS + 1) as u64;
    let descriptors = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    let free = descriptors.saturating_sub(OTHER_DESCRIPTORS);
    (free / batches).clamp(1, DIRECTORIES_MAX)
}

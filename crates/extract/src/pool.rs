//! The threads of an extraction, the caller's included. The pool collects tasks into batches,
//! submits them to the work queue and returns the results. It owns the number of threads and the
//! bounds of what is in flight, and never looks into a task. Called by `extractor`.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;

use ferrofs_workers::cpus::AvailableCpus;
use ferrofs_workers::workqueue::{
    ActiveWorkers, Handler, RequestOutcome, WorkQueue, WorkQueueSettings, WorkQueueStats,
};
use rustix::process::{Resource, getrlimit};

use crate::content::ContentWriter;
use crate::entry_writer::{EntryBatch, EntryTask, ExtractContext};
use crate::error::ErrorKind;
use crate::event::TaskReport;
use crate::large_file::{FileSegment, SegmentEnd};

/// The cost of a full batch, in bytes that are decoded and written: half a millisecond with the
/// fastest codec, ten times as long as waking a thread.
const BATCH_COST_BYTES: u64 = 512 << 10;

/// Requests in the queue for each worker, so that it has work while the caller's thread handles a
/// request itself or waits for a CPU.
const SLOTS: usize = 8;

/// The most directories that the tasks of one batch hold open.
const DIRECTORIES_MAX: u64 = 16;

/// The most threads: a single thread submits the work, and cannot keep more of them busy.
const THREADS_MAX: usize = 64;

/// Descriptors that batches leave free: for levels of the tree, files that are being written, the
/// image, and the rest of the program.
const OTHER_DESCRIPTORS: u64 = 512;

/// The number of threads beside the caller's.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ThreadLimit {
    workers: usize,
    active_workers: ActiveWorkers,
}

impl ThreadLimit {
    /// As many threads as there are available CPUs, but at most `allowed`, the caller's included.
    pub(crate) fn at_most(allowed: Option<usize>) -> Self {
        // One thread is possible everywhere.
        let granted = match allowed {
            Some(0 | 1) => 1,
            _ => AvailableCpus::read().parallelism(),
        };
        let threads = allowed.unwrap_or(granted).min(granted).clamp(1, THREADS_MAX);
        Self { workers: threads - 1, active_workers: ActiveWorkers::OnePerCpu }
    }

    /// Exactly this many workers, whatever CPUs are available.
    #[cfg(test)]
    pub(crate) fn exactly(workers: usize) -> Self {
        Self { workers, active_workers: ActiveWorkers::All }
    }
}

/// A request that came back, and whether it was handled without a panic.
pub(crate) struct Completion {
    pub(crate) request: PoolRequest,
    pub(crate) outcome: RequestOutcome,
}

type OnDone = Box<dyn FnMut(&mut PoolRequest, RequestOutcome)>;

/// The work queue, and the batch that is being filled.
pub(crate) struct ExtractPool {
    queue: WorkQueue<ExtractWorker, OnDone>,
    /// Requests that have come back.
    completed: Rc<Cell<Vec<Completion>>>,
    workers: usize,
    batch: EntryBatch,
    cost: u64,
    directories: u64,
    directories_max: u64,
}

impl ExtractPool {
    /// Creates a pool. Each thread starts with its first request.
    pub(crate) fn new(
        context: &Arc<ExtractContext>,
        threads: ThreadLimit,
    ) -> Result<Self, ErrorKind> {
        let completed: Rc<Cell<Vec<Completion>>> = Rc::default();
        let inner = Rc::clone(&completed);
        let on_done = move |request: &mut PoolRequest, outcome| {
            let mut finished = inner.take();
            finished.push(Completion { request: std::mem::take(request), outcome });
            inner.set(finished);
        };
        let settings = WorkQueueSettings::new("extract")
            .workers(threads.workers)
            .slots(SLOTS)
            .active_workers(threads.active_workers)
            // The workers and the caller's thread.
            .cpus(threads.workers + 1);
        let context = Arc::clone(context);
        let make = move || Ok(ExtractWorker::new(Arc::clone(&context)));
        let on_done: OnDone = Box::new(on_done);
        let queue = WorkQueue::new(&settings, PoolRequest::default, make, on_done);
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

    /// Whether the caller's thread is the only one.
    pub(crate) fn is_single_threaded(&self) -> bool {
        self.workers == 0
    }

    /// Adds a task to the batch, and submits the batch when it is full.
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

    /// Submits the batch, even if it is not full.
    pub(crate) fn flush(&mut self) {
        (self.cost, self.directories) = (0, 0);
        let batch = std::mem::take(&mut self.batch);
        if !batch.tasks.is_empty() {
            self.submit(PoolRequest::Batch(batch));
        }
    }

    /// Submits a request. If no worker has a free slot, the caller's thread handles it now.
    pub(crate) fn submit(&mut self, request: PoolRequest) {
        let mut slot = self.queue.reserve_or_inline();
        *slot.request() = request;
        slot.submit();
        self.queue.collect();
    }

    /// The requests that have come back since the last call.
    pub(crate) fn finished(&mut self) -> Vec<Completion> {
        self.completed.take()
    }

    /// The counters of the work queue.
    pub(crate) fn snapshot(&self) -> WorkQueueStats {
        self.queue.stats()
    }

    /// Waits until every submitted request has come back.
    pub(crate) fn wait(&mut self) {
        self.queue.wait();
    }
}

/// The most directories that a batch holds, so that all batches leave [`OTHER_DESCRIPTORS`].
fn directories_max(workers: usize) -> u64 {
    let batches = (workers * SLOTS + 1) as u64;
    let descriptors = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    let free = descriptors.saturating_sub(OTHER_DESCRIPTORS);
    (free / batches).clamp(1, DIRECTORIES_MAX)
}

/// A request, and afterwards its result.
#[derive(Debug, Default)]
pub(crate) enum PoolRequest {
    #[default]
    Nothing,
    Batch(EntryBatch),
    Segment(FileSegment),
    /// The result of a segment; others of its file are still being written.
    Ended(TaskReport),
}

/// A thread of an extraction; it keeps one buffer of 256 KiB between requests.
#[derive(Debug)]
pub(crate) struct ExtractWorker {
    context: Arc<ExtractContext>,
    content: ContentWriter,
}

impl ExtractWorker {
    pub(crate) fn new(context: Arc<ExtractContext>) -> Self {
        Self { context, content: ContentWriter::default() }
    }
}

impl Handler for ExtractWorker {
    type Request = PoolRequest;

    fn handle(&mut self, request: &mut PoolRequest) {
        if let PoolRequest::Segment(segment) = request {
            segment.write(&mut self.content);
        }
        // From here on a panic belongs to the batch.
        *request = match std::mem::take(request) {
            PoolRequest::Segment(segment) => end_segment(segment),
            other => other,
        };
        if let PoolRequest::Batch(batch) = request {
            batch.run(&self.context, &mut self.content);
        }
    }
}

/// Ends a segment; the result of the last one is the batch that completes the file.
pub(crate) fn end_segment(segment: FileSegment) -> PoolRequest {
    match segment.end() {
        SegmentEnd::OneOfMany(report) => PoolRequest::Ended(report),
        SegmentEnd::Last(batch) => PoolRequest::Batch(batch),
    }
}

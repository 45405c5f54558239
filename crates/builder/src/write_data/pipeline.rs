//! Batches of tasks through the ordered pipeline of `ferrofs-workers`: the caller's thread splits files and
//! commits results, in the order of the files; other threads read and encode. This module owns how many
//! threads there are and how many bytes may be in flight. It never looks into a file.

use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, catch_unwind};

use ferrofs_workers::cpus::AvailableCpus;
use ferrofs_workers::jobs::{CallerRole, HelperBudget, OrderedPipeline};
use ferrofs_workers::memory::Charge;

use super::commit::Committer;
use crate::compress::batch::{DataWorker, TaskBatch};
use crate::compress::profiles::CompressionProfiles;
use crate::context::BuildContext;
use crate::split::{SEGMENT_BYTES, TaskSource};
use crate::{Error, ErrorKind, Result};

/// Batches in flight at most: what a slow one can hold up.
const BATCHES_MAX: usize = 256;

/// Bytes that a task takes in flight beside its output: itself, its content with the path of its file, its result with
/// two digests, and what the allocator adds.
const TASK_BYTES: u64 = 768;

/// The threads of a data pass, and how much may be in flight between them.
#[derive(Debug)]
pub(crate) struct DataPipeline {
    profiles: CompressionProfiles,
    threads: usize,
    /// Helpers of its own where the options set a number of threads, however few CPUs there are.
    helpers: Option<HelperBudget>,
    in_flight_bytes: u64,
    /// For the threads and what is in flight.
    _charge: Charge,
}

impl DataPipeline {
    /// The least that a pass with these profiles needs, in bytes: one thread, one batch that is worked on and
    /// one that waits to be committed.
    ///
    /// # Errors
    /// An encoder that does not take its parameters.
    pub(crate) fn least_bytes(profiles: &CompressionProfiles) -> Result<u64> {
        Ok(thread_bytes(profiles)? + in_flight_least(profiles))
    }

    /// The threads of the options, or as many as the rest of the memory is enough for.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidOptions`] if it is not enough for one; an encoder that does not take its parameters.
    pub(crate) fn new(profiles: CompressionProfiles, context: &BuildContext<'_>) -> Result<Self> {
        let each = thread_bytes(&profiles)?;
        let available = context.memory.available_bytes();
        let spare =
            available.checked_sub(in_flight_least(&profiles)).filter(|spare| *spare >= each);
        let Some(spare) = spare else {
            return Err(context.memory.too_little(Self::least_bytes(&profiles)?));
        };
        let jobs = context.options.jobs;
        let wanted = jobs.unwrap_or_else(|| AvailableCpus::read().parallelism()).max(1);
        let affordable = usize::try_from(spare / each).unwrap_or(usize::MAX);
        let threads = wanted.min(affordable);
        // A segment for each thread, and half as many that wait to be worked on or to be committed: each is 8 MiB
        // where the data is incompressible.
        let useful = (threads + threads.div_ceil(2) + 1) as u64 * SEGMENT_BYTES;
        let in_flight_bytes = (available - threads as u64 * each).min(useful);
        let charge = context.memory.charge_up_to(threads as u64 * each + in_flight_bytes)?;
        let helpers = jobs.map(|_| HelperBudget::new(threads));
        Ok(Self { profiles, threads, helpers, in_flight_bytes, _charge: charge })
    }

    /// A worker for what has to be encoded once more.
    pub(crate) fn worker(&self, context: &BuildContext<'_>) -> DataWorker {
        DataWorker::new(self.profiles.clone(), context.cancel.clone())
    }

    /// Works on all batches of `source` and commits them, in their order.
    ///
    /// # Errors
    /// The first in the order of the files, whichever thread met it; [`ErrorKind::Cancelled`].
    pub(crate) fn run(
        &self,
        source: impl TaskSource,
        committer: &mut Committer<'_>,
        context: &BuildContext<'_>,
    ) -> Result<()> {
        let spare = SpareBatches::new(self.threads + 2);
        let batches = Batches { source, spare: &spare, has_failed: false };
        let mut pipeline = OrderedPipeline::new()
            .max_threads(self.threads)
            .max_in_flight(BATCHES_MAX)
            .max_in_flight_bytes(self.in_flight_bytes)
            .caller_role(CallerRole::CommitsOnly);
        if let Some(helpers) = &self.helpers {
            pipeline = pipeline.helpers(helpers);
        }
        let (profiles, cancel) = (&self.profiles, context.cancel);
        let init = || DataWorker::new(profiles.clone(), cancel.clone());
        let work = |worker: &mut DataWorker, mut batch: TaskBatch| {
            let worked = catch_unwind(AssertUnwindSafe(|| worker.work_on(&mut batch)));
            worked.map_err(|_| Error::new(ErrorKind::Internal("a worker panicked")))??;
            Ok(batch)
        };
        let commit = |mut batch: TaskBatch| {
            context.check_cancelled()?;
            committer.commit(&batch.tasks, &batch.output)?;
            if let Some(error) = batch.error.take() {
                return Err(error);
            }
            context.observer.bytes_done(batch.tasks.iter().map(|task| task.bytes).sum());
            spare.put(batch);
            Ok(())
        };
        pipeline.run_with_cost(batches, in_flight_cost, init, work, commit).map(drop)
    }
}

/// What a batch takes in memory while it is in flight: its output, and its tasks, which are most of it where files
/// are small.
fn in_flight_cost(batch: &TaskBatch) -> u64 {
    batch.bytes.saturating_add(TASK_BYTES.saturating_mul(batch.tasks.len() as u64))
}

/// What a thread takes: its read buffer and encoders for all profiles.
fn thread_bytes(profiles: &CompressionProfiles) -> Result<u64> {
    Ok(SEGMENT_BYTES + profiles.memory_bytes()?)
}

/// What is in flight at least.
fn in_flight_least(profiles: &CompressionProfiles) -> u64 {
    2 * (SEGMENT_BYTES + profiles.params.block as u64)
}

/// Draws batches. An error of the source is an item, too, so that it is met in the order of the files.
struct Batches<'b, S> {
    source: S,
    spare: &'b SpareBatches,
    has_failed: bool,
}

impl<S: TaskSource> Iterator for Batches<'_, S> {
    type Item = TaskBatch;

    fn next(&mut self) -> Option<TaskBatch> {
        if self.has_failed {
            return None;
        }
        let mut batch = self.spare.take();
        match self.source.next_batch(&mut batch.tasks) {
            Ok(bytes) => batch.bytes = bytes?,
            Err(error) => {
                self.has_failed = true;
                batch.error = Some(error);
            }
        }
        Some(batch)
    }
}

/// Committed batches, whose buffers are used again.
struct SpareBatches {
    batches: RefCell<Vec<TaskBatch>>,
    /// Batches beyond this are not kept.
    count_max: usize,
}

/// What is kept of the memory of a batch: enough for one that bundles small files. What a large one
/// filled would stay resident beside those that are worked on.
const KEPT_BYTES: usize = 1 << 20;

impl SpareBatches {
    fn new(count_max: usize) -> Self {
        Self { batches: RefCell::default(), count_max }
    }

    fn take(&self) -> TaskBatch {
        self.batches.borrow_mut().pop().unwrap_or_default()
    }

    fn put(&self, mut batch: TaskBatch) {
        let mut batches = self.batches.borrow_mut();
        if batches.len() < self.count_max {
            batch.tasks.clear();
            batch.output.clear();
            batch.output.bytes.shrink_to(KEPT_BYTES);
            batch.bytes = 0;
            batches.push(batch);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::split::{RangeTask, TaskKind};
    use crate::test_source::content;

    #[test]
    fn small_files_in_flight_count_with_what_is_kept_for_each() {
        let content = content("a file", &[7; 100]);
        let task =
            RangeTask { file: 0, content, start: 0, bytes: 100, profile: 0, kind: TaskKind::Pack };
        let batch = TaskBatch { bytes: 25_600, tasks: vec![task; 256], ..TaskBatch::default() };
        assert_eq!(in_flight_cost(&batch), 25_600 + 256 * TASK_BYTES);
    }
}

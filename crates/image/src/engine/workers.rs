//! Decoding on other threads: the per-CPU workers, and the batches of clusters that they decode for
//! a reader that needs several, or ahead of one.
//!
//! One set of workers serves the process. The first read that can use it starts it, and it lives
//! until the process ends. A forked child, which has none of the threads of its parent, gets a set
//! of its own. An image may have a set of its own instead.

use std::mem::ManuallyDrop;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, TryLockError};

use ferrofs_workers::cpus::{self, CpuSet};
use ferrofs_workers::memory::{AllocPolicy, Buffer};
use ferrofs_workers::percpu::{PerCpuPool, PerCpuSettings, PerCpuStats};

use super::queued_outputs::QueuedOutput;
use super::{ClusterPermit, ClusterWaiter, DecodeSlot, DecodedCluster, Engine};
use crate::error::Result;
use crate::extent::{Cluster, run_lengths};

/// Decoded bytes for which waking a worker pays: a wake-up costs some microseconds, and LZ4
/// decodes this in some tens of them.
pub(crate) const BATCH_MIN_BYTES: u64 = 96 << 10;

/// Which threads decode for a read. The names are those of Linux's `sync_decompress`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SyncDecompress {
    /// The reader decodes. If it needs several clusters, the workers of other CPUs help.
    #[default]
    Auto,
    /// The reader decodes for reads of at most 12,288 bytes. Workers decode for longer ones while
    /// the reader waits.
    ForceOn,
    /// Workers always decode, with two exceptions: the reader decodes clusters among the metadata,
    /// which are shorter than a block, and the part of a long LZ4 extent for which only a window
    /// has memory. Without workers ([`DecodeWorkers::none`]) this is `Auto`.
    ///
    /// [`DecodeWorkers::none`]: crate::DecodeWorkers::none
    ForceOff,
}

/// Per-CPU workers that decode. Clones are handles of the same set.
#[derive(Clone, Debug)]
pub struct DecodeWorkers(Arc<WorkersInner>);

#[derive(Debug)]
struct WorkersInner {
    pool: PerCpuPool,
    /// The CPUs that were available when the set was made: targets for batches.
    cpus: Box<[usize]>,
    parallelism: usize,
}

/// The workers of a process. They are never dropped: in a child that would wait for threads that only
/// the parent has.
#[derive(Debug)]
struct ProcessWorkers {
    process: u32,
    workers: ManuallyDrop<DecodeWorkers>,
}

/// How often a lock that is held for a few instructions is tried.
const LOCK_ATTEMPTS: usize = 1000;

/// Locks what is held for single statements. In a child that was forked at such a moment the lock
/// stays taken, as the thread that holds it is not there: `None`.
fn lock_briefly<T>(mutex: &Mutex<T>) -> Option<MutexGuard<'_, T>> {
    for _ in 0..LOCK_ATTEMPTS {
        match mutex.try_lock() {
            Ok(guard) => return Some(guard),
            Err(TryLockError::Poisoned(error)) => return Some(PoisonError::into_inner(error)),
            Err(TryLockError::WouldBlock) => std::thread::yield_now(),
        }
    }
    None
}

impl DecodeWorkers {
    /// The set of the process: a worker `erofs_worker/N` for each available CPU N, at raised
    /// priority if the system allows it. No thread exists before the first use; then they live
    /// until the process ends. A forked child gets another set: it has the memory of its parent, but
    /// not the threads.
    #[must_use]
    pub fn global() -> Self {
        static GLOBAL: Mutex<Option<ProcessWorkers>> = Mutex::new(None);
        Self::of_process(&GLOBAL, std::process::id())
    }

    /// The set that `kept` has for `process`, which is made if there is none.
    fn of_process(kept: &Mutex<Option<ProcessWorkers>>, process: u32) -> Self {
        let found = |kept: &Option<ProcessWorkers>| {
            let own = kept.as_ref().filter(|kept| kept.process == process)?;
            Some(DecodeWorkers::clone(&own.workers))
        };
        if let Some(workers) = lock_briefly(kept).and_then(|kept| found(&kept)) {
            return workers;
        }
        // Made without the lock, since it reads files.
        let made = Self::new(PerCpuSettings::new("erofs_worker"));
        // Without the lock it is the set of one image.
        let Some(mut kept) = lock_briefly(kept) else { return made };
        if let Some(workers) = found(&kept) {
            return workers;
        }
        let workers = ManuallyDrop::new(made.clone());
        *kept = Some(ProcessWorkers { process, workers });
        made
    }

    /// A new set, which ends with its last handle and image.
    #[must_use]
    pub fn new(settings: PerCpuSettings) -> Self {
        let available = settings.available_cpus();
        Self(Arc::new(WorkersInner {
            pool: PerCpuPool::new(settings.available(available.clone())),
            cpus: available.cpus().iter().collect(),
            parallelism: available.parallelism(),
        }))
    }

    /// A new set on the first `most` available CPUs, at least one.
    #[must_use]
    pub fn with_max_threads(most: usize, settings: PerCpuSettings) -> Self {
        let available = settings.available_cpus();
        let cpus: CpuSet = available.cpus().iter().take(most.max(1)).collect();
        Self(Arc::new(WorkersInner {
            cpus: cpus.iter().collect(),
            parallelism: available.parallelism().min(most).max(1),
            pool: PerCpuPool::new(settings.cpus(cpus).available(available)),
        }))
    }

    /// No workers: the threads that read decode everything. All handles share one set, since making a pool
    /// reads files of `/proc`, which takes longer than to open a small image.
    #[must_use]
    pub fn none() -> Self {
        static NONE: OnceLock<DecodeWorkers> = OnceLock::new();
        let make = || {
            let pool = PerCpuPool::new(PerCpuSettings::new("erofs_worker"));
            Self(Arc::new(WorkersInner { pool, cpus: Box::default(), parallelism: 1 }))
        };
        NONE.get_or_init(make).clone()
    }

    /// The pool of the workers.
    #[must_use]
    pub fn pool(&self) -> &PerCpuPool {
        &self.0.pool
    }

    /// What the workers did.
    #[must_use]
    pub fn stats(&self) -> PerCpuStats {
        self.0.pool.stats()
    }

    /// Whether there are no workers.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.cpus.is_empty()
    }

    /// How many threads can run at the same time.
    pub(crate) fn parallelism(&self) -> usize {
        self.0.parallelism
    }

    /// Submits `work` to a CPU other than the one of the caller, if there is one. `turn` spreads
    /// several submissions over the CPUs.
    pub(crate) fn submit_to_other_cpu(&self, turn: usize, work: impl FnOnce() + Send + 'static) {
        let own = cpus::current();
        let others = || self.0.cpus.iter().copied().filter(|cpu| *cpu != own);
        let place = turn.checked_rem(others().count()).unwrap_or(0);
        self.0.pool.submit_to(others().nth(place).unwrap_or(own), work);
    }
}

/// Cancels prefetches: stale once the generation of its readahead has changed.
#[derive(Clone, Debug)]
pub(crate) struct GenerationToken {
    current: Arc<AtomicU64>,
    created_in: u64,
}

impl GenerationToken {
    /// A token of the current generation.
    pub(crate) fn new(generation: &Arc<AtomicU64>) -> Self {
        Self { current: Arc::clone(generation), created_in: generation.load(Ordering::Relaxed) }
    }

    pub(crate) fn is_stale(&self) -> bool {
        // A hint, which orders nothing: a prefetch that runs all the same is only useless.
        self.current.load(Ordering::Relaxed) != self.created_in
    }
}

/// What a batch is decoded for.
#[derive(Clone, Debug)]
pub(crate) enum BatchPurpose {
    /// A reader that decodes, too, and takes back what no worker has begun.
    Assist,
    /// A reader that does not decode, and waits for this alone.
    Replace,
    /// Readahead, until the token is stale.
    Prefetch(GenerationToken),
}

/// A cluster of a batch.
#[derive(Debug)]
struct DecodeTask {
    cluster: Cluster,
    permit: ClusterPermit,
    /// A buffer that was at hand; without it the worker allocates one.
    output: Option<QueuedOutput>,
}

/// Clusters on their way to a worker, with the permits to fill them. It owns all that it touches.
/// What it does not decode, for whatever reason, is free again for the next lookup: nothing is
/// remembered.
#[derive(Debug)]
pub(crate) struct DecodeBatch {
    engine: Arc<Engine>,
    tasks: Vec<DecodeTask>,
    purpose: BatchPurpose,
}

impl DecodeBatch {
    pub(crate) fn new(engine: &Arc<Engine>, purpose: BatchPurpose) -> Self {
        Self { engine: Arc::clone(engine), tasks: Vec::new(), purpose }
    }

    /// Adds a cluster, behind the ones before it in the image where that can be; returns a waiter
    /// for it.
    pub(crate) fn add(
        &mut self,
        cluster: Cluster,
        mut permit: ClusterPermit,
        output: Option<Buffer>,
    ) -> ClusterWaiter {
        let waiter = permit.enqueue();
        // Begun, so that other readers wait as this one does, and do not decode.
        if !self.is_replacement() || permit.begin() {
            let output = output.map(|buffer| self.engine.queued_outputs.add(buffer));
            self.tasks.push(DecodeTask { cluster, permit, output });
        }
        waiter
    }

    fn is_replacement(&self) -> bool {
        matches!(self.purpose, BatchPurpose::Replace)
    }

    /// Decoded bytes of its clusters.
    pub(crate) fn decoded_bytes(&self) -> u64 {
        let sum = |sum: u64, task: &DecodeTask| sum.saturating_add(task.cluster.decoded_bytes);
        self.tasks.iter().fold(0, sum)
    }

    /// The most bytes that one of its reads of the source brings.
    pub(crate) fn encoded_bytes(&self) -> usize {
        run_lengths(&self.clusters()).into_iter().max().unwrap_or(0)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.tasks.is_empty()
    }

    fn clusters(&self) -> Vec<Cluster> {
        self.tasks.iter().map(|task| task.cluster).collect()
    }

    /// Submits it to a worker of another CPU; `turn` spreads several batches over the CPUs.
    pub(crate) fn dispatch(self, turn: usize) {
        let workers = self.engine.workers.clone();
        workers.submit_to_other_cpu(turn, move || self.run());
    }

    /// Decodes the clusters that are still wanted and that no reader has taken back.
    fn run(self) {
        let is_replacement = self.is_replacement();
        let run_lengths = run_lengths(&self.clusters());
        let Self { engine, tasks, purpose } = self;
        // A batch that its reader waits for must run, and readers that hold a slot may wait for it,
        // too.
        let slot = if is_replacement {
            Some(engine.decode_slots.acquire_over_limit())
        } else {
            engine.decode_slots.try_acquire()
        };
        let Some(mut slot) = slot else { return };
        let is_stale = || matches!(&purpose, BatchPurpose::Prefetch(token) if token.is_stale());
        for (mut task, run_bytes) in tasks.into_iter().zip(run_lengths) {
            if is_stale() && !task.permit.is_demanded() {
                continue;
            }
            // Its reader decodes the part that it needs through a window, and need not wait for
            // memory for the whole.
            if task.permit.is_demanded() && engine.prefers_window(&task.cluster) {
                continue;
            }
            if is_replacement || task.permit.begin() {
                task.run(&engine, &mut slot, run_bytes);
            }
        }
    }
}

impl DecodeTask {
    /// Decodes and publishes the cluster. After a failure nothing is published, and a reader that
    /// needs it decodes it itself.
    fn run(mut self, engine: &Engine, slot: &mut DecodeSlot<'_>, run_bytes: usize) {
        let Ok(decoded) = self.decode(engine, slot, run_bytes) else { return };
        let compressed = u64::from(self.cluster.is_compressed());
        slot.counters.on_workers = slot.counters.on_workers.wrapping_add(compressed);
        // Before its reader goes on, so that the reader finds it counted.
        engine.decode_slots.add(&std::mem::take(&mut slot.counters));
        self.permit.publish(decoded);
    }

    /// Decodes the cluster with the memory that its urgency allows: a reader may have begun to wait
    /// before the fill began, or since.
    fn decode(
        &mut self,
        engine: &Engine,
        slot: &mut DecodeSlot<'_>,
        run_bytes: usize,
    ) -> Result<DecodedCluster> {
        let Self { cluster, permit, output } = self;
        let mut output = output.take().and_then(|queued| queued.take());
        let is_demanded = permit.is_demanded();
        // No thread holds an output while it waits for a window (docs/memory.md).
        if is_demanded
            && output.is_some()
            && engine.prepare(slot, cluster, run_bytes, AllocPolicy::MayFail).is_err()
        {
            output = None;
        }
        let mut attempt = |policy| {
            let mut buffer = match output.take() {
                Some(buffer) => buffer,
                None => {
                    engine.prepare(slot, cluster, run_bytes, policy)?;
                    let bytes = cluster.decoded_length();
                    match policy {
                        AllocPolicy::MustSucceed => engine.demand_buffer(bytes)?,
                        AllocPolicy::MayFail => engine.memory.buffer(bytes, policy)?,
                    }
                }
            };
            engine.decode_data(slot, cluster, run_bytes, &mut buffer, policy)?;
            Ok(DecodedCluster::from(buffer))
        };
        if is_demanded {
            return attempt(AllocPolicy::MustSucceed);
        }
        match attempt(AllocPolicy::MayFail) {
            Err(error) if error.is_transient() && permit.is_demanded() => {
                attempt(AllocPolicy::MustSucceed)
            }
            other => other,
        }
    }
}

#[cfg(test)]
mod tests {
    use ferrofs_ondisk::FileType;
    use ferrofs_workers::priority::PriorityRequest;
    use ferrofs_workers::single_flight::{Lookup, Urgency};

    use super::*;
    use crate::image::Image;
    use crate::inner::ImageInner;
    use crate::inode::Inode;
    use crate::memory::MemoryPool;
    use crate::open::OpenOptions;
    use crate::read::ReadPlan;
    use crate::walk::WalkEvent;

    #[test]
    fn each_process_has_a_set_of_its_own_and_waits_for_none() {
        let kept = Mutex::new(None);
        let is_same = |one: &DecodeWorkers, other: &DecodeWorkers| Arc::ptr_eq(&one.0, &other.0);
        let parent = DecodeWorkers::of_process(&kept, 1);
        assert!(is_same(&parent, &DecodeWorkers::of_process(&kept, 1)));
        let child = DecodeWorkers::of_process(&kept, 2);
        assert!(!is_same(&parent, &child));
        assert!(is_same(&child, &DecodeWorkers::of_process(&kept, 2)));
        // A thread that is not there holds the lock.
        let _guard = kept.lock().unwrap();
        assert!(!is_same(&child, &DecodeWorkers::of_process(&kept, 2)));
    }

    /// An image with several clusters a file, and memory of which best effort gets nothing.
    fn image() -> Image {
        let memory = MemoryPool::new(MemoryPool::MIN_BYTES).unwrap();
        memory.budget().refuse_best_effort(true);
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/data/lz4.erofs");
        let workers =
            DecodeWorkers::new(PerCpuSettings::new("chain").priority(PriorityRequest::Normal));
        OpenOptions::new().memory(&memory).workers(&workers).open(path).unwrap()
    }

    /// A file with its clusters, each with the byte of the file where it starts.
    fn file(image: &Image) -> (Inode, Vec<(Cluster, u64)>) {
        let files = image.walk(b"/").unwrap().filter_map(|visit| match visit {
            WalkEvent::Leaf(node) if node.inode.file_type() == FileType::Regular => {
                Some(node.inode)
            }
            _ => None,
        });
        let planned = files.map(|inode| {
            let bytes = usize::try_from(inode.size()).unwrap();
            let plan = ReadPlan::build(image.inner(), &inode, 0, bytes).unwrap();
            let clusters = plan.segments.iter().filter(|segment| segment.skip == 0);
            let clusters = clusters
                .filter_map(|segment| Some((*segment.cluster()?, segment.target.start as u64)));
            (inode, clusters.collect::<Vec<_>>())
        });
        planned.max_by_key(|(_, clusters)| clusters.len()).unwrap()
    }

    fn permit(inner: &ImageInner, cluster: &Cluster, urgency: Urgency) -> ClusterPermit {
        let bytes = usize::try_from(cluster.decoded_bytes).unwrap();
        match inner.engine.clusters.lookup(cluster.id, bytes, urgency) {
            Lookup::Miss(permit) => permit,
            other => panic!("{other:?}"),
        }
    }

    /// The bytes of a cluster, by an image for which memory is not short.
    fn expected(inode: &Inode, cluster: &Cluster, start: u64) -> Vec<u8> {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/data/lz4.erofs");
        let mut bytes = vec![0u8; usize::try_from(cluster.decoded_bytes).unwrap()];
        let image = Image::open(path).unwrap();
        let count = image.read_at(inode, start, &mut bytes).unwrap();
        assert_eq!(count, bytes.len());
        bytes
    }

    // A-R2, and catalogue 2 and 16: the regression of Linux 6.12. The clusters that nobody waits
    // for get no memory; the one in the same batch that somebody waits for is decoded, before,
    // between or behind them.
    #[test]
    fn a_cluster_that_got_no_memory_fails_no_other_of_its_batch() {
        for demanded in 0..3 {
            let image = image();
            let inner = image.inner();
            let (inode, clusters) = file(&image);
            assert!(clusters.len() >= 3);
            let mut batch = DecodeBatch::new(&inner.engine, BatchPurpose::Assist);
            let mut waiter = None;
            for (number, (cluster, _)) in clusters[..3].iter().enumerate() {
                let is_demanded = number == demanded;
                let urgency = if is_demanded { Urgency::Demand } else { Urgency::Prefetch };
                let waiting = batch.add(*cluster, permit(inner, cluster, urgency), None);
                waiter = if is_demanded { Some(waiting) } else { waiter };
            }
            batch.dispatch(0);
            let decoded = waiter.unwrap().wait().expect("a demanded cluster is decoded");
            assert!(*decoded == *expected(&inode, &clusters[demanded].0, clusters[demanded].1));
            while inner.engine.clusters.stats().prefetch_dropped < 2 {
                std::thread::yield_now();
            }
            let counts = inner.engine.clusters.stats();
            assert_eq!((counts.abandoned, counts.computed), (2, 1), "{counts:?}");
            // Nothing is remembered: a later read finds them in the image.
            for (cluster, start) in &clusters[..3] {
                let expected = expected(&inode, cluster, *start);
                let mut bytes = vec![0u8; expected.len()];
                assert_eq!(image.read_at(&inode, *start, &mut bytes).unwrap(), bytes.len());
                assert!(bytes == expected);
            }
        }
    }

    #[test]
    fn a_demanded_cluster_gets_the_memory_of_the_clusters_behind_it() {
        let image = image();
        let inner = image.inner();
        let (inode, clusters) = file(&image);
        let (cluster, start) = clusters[0];
        let (memory, budget) = (&inner.engine.memory, inner.engine.memory.budget());
        let policy = AllocPolicy::MustSucceed;
        let mut output = memory.buffer(2 << 20, policy).unwrap();
        output.truncate(clusters[1].0.decoded_length());
        let rest = budget.charge(budget.limit_bytes() - budget.used_bytes(), policy).unwrap();
        let mut batch = DecodeBatch::new(&inner.engine, BatchPurpose::Assist);
        let waiter = batch.add(cluster, permit(inner, &cluster, Urgency::Demand), None);
        let behind = permit(inner, &clusters[1].0, Urgency::Prefetch);
        drop(batch.add(clusters[1].0, behind, Some(output)));
        batch.dispatch(0);
        let decoded = waiter.wait().expect("a demanded cluster is decoded");
        assert_eq!(budget.stats().gave_up, 0);
        drop(rest);
        assert!(*decoded == *expected(&inode, &cluster, start));
    }

    #[test]
    fn a_demanded_cluster_waits_for_a_window_without_its_output() {
        let image = image();
        let inner = image.inner();
        let (inode, clusters) = file(&image);
        let (cluster, start) = clusters[0];
        let (memory, budget) = (&inner.engine.memory, inner.engine.memory.budget());
        let policy = AllocPolicy::MustSucceed;
        let output = memory.buffer(cluster.decoded_length(), policy).unwrap();
        let stats = memory.buffer_stats();
        let rest = budget.charge(budget.limit_bytes() - budget.used_bytes(), policy).unwrap();
        let mut batch = DecodeBatch::new(&inner.engine, BatchPurpose::Assist);
        let permit = permit(inner, &cluster, Urgency::Demand);
        let waiter = batch.add(cluster, permit, Some(output));
        batch.dispatch(0);
        // The window takes the memory of the output, or other memory that was free.
        let started_at = std::time::Instant::now();
        while memory.buffer_stats() == stats {
            assert!(started_at.elapsed().as_secs() < 5, "the output is held");
            std::thread::yield_now();
        }
        drop(rest);
        let decoded = waiter.wait().expect("a demanded cluster is decoded");
        assert!(*decoded == *expected(&inode, &cluster, start));
    }
}

//! Reads of cached clusters by a thread on each CPU: the single-flight cache, the budget, the buffer pool and the sharded
//! statistics are those of ferrofs-workers, called as a mount does for a read. System calls and the copy of the bytes are a
//! stated cost. Called by the `model reads` experiment.
//!
//! A lock brings the value that it guards to its CPU, but not what that value points at, such as the nodes of a list. So no
//! fewer lines move than are counted here.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::{Context, Error, Result};
use fastrand::Rng;

use crate::counters::{Histogram, Sharded};
use crate::machine::{self, Access, Costs, Picoseconds, Shape, picoseconds};
use crate::memory::{AllocPolicy, Budget, BufferPool};
use crate::single_flight::{CacheValue, Lookup, SingleFlight, Urgency};
use crate::stream::Flow;
use crate::thread::{self, Builder};

/// What a read uses beside its stated cost: a part of the code alone, or all of it.
pub const PARTS: [&str; 4] = ["cache", "buffers", "statistics", "ours"];

/// Cached clusters, of which readers take one at random each time.
const CLUSTERS: u64 = 1024;
const READ_BYTES: usize = 4096;
/// More than all clusters and buffers weigh.
const BUDGET_BYTES: u64 = 1 << 30;
/// Before the part that is looked at, in nanoseconds.
const WARM_UP: f64 = 300_000.0;
/// The counts of handles are lines without addresses: that of the budget, that of the pool, and one for each cluster.
const OF_BUDGET: u64 = 0;
const OF_POOL: u64 = 1;
const OF_CLUSTERS: u64 = 2;

/// A handle of a decoded cluster.
#[derive(Debug)]
struct Cluster(u64);

fn count_handle(of: u64) {
    machine::access_line(of, Access::Update);
}

impl Clone for Cluster {
    fn clone(&self) -> Self {
        count_handle(OF_CLUSTERS + self.0);
        Self(self.0)
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        count_handle(OF_CLUSTERS + self.0);
    }
}

impl CacheValue for Cluster {
    fn length(&self) -> usize {
        READ_BYTES
    }

    fn weight_bytes(&self) -> u64 {
        READ_BYTES as u64
    }
}

/// Reads on all CPUs for so many nanoseconds, by one of the [`PARTS`]; a read costs `cost` nanoseconds beside that.
///
/// # Errors
/// When the machine is impossible, or there is no memory for buffers.
pub fn run(
    part: &'static str,
    shape: Shape,
    costs: Costs,
    cost: f64,
    measured: f64,
) -> Result<Flow> {
    machine::run(shape, costs, move || {
        let readers = Readers::new(part, shape.cpus, picoseconds(cost))?;
        let begin = machine::now() + picoseconds(costs.start * shape.cpus as f64 + WARM_UP);
        // Reads go on until the second of these; those that began after the first one count.
        let ends = [begin, begin + picoseconds(measured)];
        let count = AtomicUsize::new(0);
        // Of the reader that is there first: each of them may sleep for longer than all of this takes.
        let moments = [const { OnceLock::new() }; 2];
        let read_until_end = &|cpu: usize| {
            let mut random = Rng::with_seed(cpu as u64);
            for ((until, moment), counts) in ends.into_iter().zip(&moments).zip([0, 1]) {
                while machine::now() < until {
                    readers.read(random.u64(..CLUSTERS))?;
                    count.fetch_add(counts, Ordering::Relaxed);
                }
                moment.set(machine::moment()).ok();
            }
            Ok::<_, Error>(())
        };
        thread::scope(|scope| {
            for cpu in 1..shape.cpus {
                // A read that fails is not counted, and fails on the first CPU, too.
                Builder::new().spawn_scoped(scope, move || drop(read_until_end(cpu)))?;
            }
            read_until_end(0)
        })?;
        let [first, last] = moments.map(OnceLock::into_inner);
        let (first, last) = first.zip(last).context("no machine runs")?;
        let (nanoseconds, counts, wakes) = last.since(&first);
        Ok(Flow { requests: count.into_inner(), nanoseconds, counts, wakes })
    })?
}

/// What readers share.
#[derive(Debug)]
struct Readers {
    part: &'static str,
    cost: Picoseconds,
    cache: SingleFlight<u64, Cluster>,
    read_budget: Budget,
    pool: BufferPool,
    times: Sharded<Histogram>,
}

impl Readers {
    fn new(part: &'static str, cpus: usize, cost: Picoseconds) -> Result<Self> {
        let cache = SingleFlight::new(BUDGET_BYTES);
        for number in 0..CLUSTERS {
            if let Lookup::Miss(permit) = cache.lookup(number, READ_BYTES, Urgency::Demand) {
                permit.publish(Cluster(number));
            }
        }
        let read_budget = Budget::new(BUDGET_BYTES);
        let pool = BufferPool::new(&Budget::new(BUDGET_BYTES))?;
        let times = Sharded::new(cpus, Histogram::new);
        Ok(Self { part, cost, cache, read_budget, pool, times })
    }

    /// The order is that of crates/mount/src/image_fs/read.rs.
    fn read(&self, cluster: u64) -> Result<()> {
        let has = |part| self.part == part || self.part == "ours";
        let policy = AllocPolicy::MustSucceed;
        let lease = || {
            let charge = self.read_budget.charge(READ_BYTES as u64, policy)?;
            count_handle(OF_BUDGET);
            let buffer = self.pool.lease(READ_BYTES, policy)?;
            count_handle(OF_POOL);
            Ok::<_, crate::Error>((buffer, charge))
        };
        let lease = has("buffers").then(lease).transpose()?;
        let get = || self.cache.get(cluster, READ_BYTES).context("a cluster is not cached");
        let found = has("cache").then(get).transpose()?;
        machine::work(self.cost);
        drop(found);
        if let Some((buffer, charge)) = lease {
            drop(buffer);
            count_handle(OF_POOL);
            drop(charge);
            count_handle(OF_BUDGET);
        }
        if has("statistics") {
            // Always the same bucket: which of them share a line would depend on the allocator.
            self.times.local().record(Duration::from_nanos(self.cost / picoseconds(1.0)));
        }
        Ok(())
    }
}

//! Reads of cached clusters by a thread on each CPU: the single-flight cache, the buffers that threads keep, the pool behind
//! them and the sharded statistics are those of ferrofs-workers, called as a mount does for a read. System calls and the
//! copy of the bytes are a stated cost. Called by the `model reads` experiment.
//!
//! A lock brings the value that it guards to its CPU. Of what that value points at, this simulates the nodes of the list by
//! last use. The hash table is only read.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::{Context, Error, Result};
use fastrand::Rng;

use crate::counters::{Histogram, Sharded};
use crate::machine::{self, Access, Costs, Picoseconds, Shape, picoseconds};
use crate::memory::{AllocPolicy, Budget, BufferPool, ThreadCache};
use crate::single_flight::{CacheValue, Lookup, SingleFlight, Urgency};
use crate::stream::Flow;
use crate::thread::{self, Builder};

/// What a read uses beside its stated cost: a part of the code alone, or all of it.
pub const PARTS: [&str; 4] = ["cache", "buffers", "statistics", "ours"];

/// Cached clusters, of which readers take one at random each time.
const CLUSTERS: u64 = 1024;
/// Shards of the cache, at most.
const SHARDS_MAX: u64 = 64;
const READ_BYTES: usize = 4096;
/// More than all clusters and buffers weigh.
const BUDGET_BYTES: u64 = 1 << 30;
/// Before the part that is looked at, in nanoseconds.
const WARM_UP: f64 = 300_000.0;

/// A handle of a decoded cluster.
#[derive(Debug)]
struct Cluster(u64);

/// The count of handles of a cluster is a line without an address.
fn count_handle(cluster: u64) {
    machine::access_line(cluster, Access::Update);
}

/// A hit writes four nodes of the list of its shard: its own, the neighbours between which it was, and the last one used.
/// They are lines without addresses, too, and clusters with the same remainder stand for a shard.
fn change_list(cluster: u64) {
    for place in 0..4 {
        let node = (cluster + place * SHARDS_MAX) % CLUSTERS;
        machine::access_line(CLUSTERS + node, Access::Update);
    }
}

impl Clone for Cluster {
    fn clone(&self) -> Self {
        change_list(self.0);
        count_handle(self.0);
        Self(self.0)
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        count_handle(self.0);
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
    pool: BufferPool,
    read_buffers: ThreadCache,
    times: Sharded<Histogram>,
}

impl Readers {
    fn new(part: &'static str, cpus: usize, cost: Picoseconds) -> Result<Self> {
        let cache = SingleFlight::sharded(BUDGET_BYTES, cpus);
        for number in 0..CLUSTERS {
            if let Lookup::Miss(permit) = cache.lookup(number, READ_BYTES, Urgency::Demand) {
                permit.publish(Cluster(number));
            }
        }
        let pool = BufferPool::new(&Budget::new(BUDGET_BYTES))?;
        let read_buffers = ThreadCache::new(&Budget::new(BUDGET_BYTES), &pool, cpus, BUDGET_BYTES)?;
        let times = Sharded::new(cpus, Histogram::new);
        Ok(Self { part, cost, cache, pool, read_buffers, times })
    }

    /// The order is that of crates/mount/src/image_fs/read.rs.
    fn read(&self, cluster: u64) -> Result<()> {
        let has = |part| self.part == part || self.part == "ours";
        let pooled = || self.pool.lease(READ_BYTES, AllocPolicy::MustSucceed);
        let lease = || self.read_buffers.lease(READ_BYTES, pooled);
        let buffer = has("buffers").then(lease).transpose()?;
        let get = || self.cache.get(cluster, READ_BYTES).context("a cluster is not cached");
        let found = has("cache").then(get).transpose()?;
        machine::work(self.cost);
        drop(found);
        drop(buffer);
        if has("statistics") {
            // Always the same bucket: which of them share a line would depend on the allocator.
            self.times.local().record(Duration::from_nanos(self.cost / picoseconds(1.0)));
        }
        Ok(())
    }
}

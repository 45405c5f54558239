//! Clusters that a worker is to decode: for a reader that has several to wait for, or ahead of one.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use ferrofs_workers::memory::{AllocPolicy, Buffer};

use super::{ClusterPermit, ClusterWaiter, DecodeSlot, DecodedCluster, Engine};
use crate::error::Result;
use crate::extent::{Cluster, ClusterPlace};

/// The most that one read of the source brings for a batch, in bytes.
const RUN_MAX_BYTES: u64 = 1 << 20;

/// Decoded bytes for which waking a worker is worth its while: a wake-up costs some microseconds, and LZ4
/// decodes this in some tens of them.
pub(crate) const BATCH_MIN_BYTES: u64 = 96 << 10;

/// Whether a batch is still wanted.
#[derive(Clone, Debug)]
pub(crate) struct GenerationToken {
    now: Arc<AtomicU64>,
    then: u64,
}

impl GenerationToken {
    /// A token that ends when `generation` changes.
    pub(crate) fn of_generation(generation: &Arc<AtomicU64>) -> Self {
        Self { now: Arc::clone(generation), then: generation.load(Ordering::Relaxed) }
    }

    pub(crate) fn is_stale(&self) -> bool {
        // A hint: what is done in vain is only not needed.
        self.now.load(Ordering::Relaxed) != self.then
    }
}

/// A cluster to decode, and what for.
#[derive(Debug)]
struct DecodeTask {
    cluster: Cluster,
    permit: ClusterPermit,
    /// Memory for it that was at hand; without it the worker sees to that.
    output: Option<Buffer>,
}

/// Claimed clusters on their way to a worker. It owns all that it touches. What it does not decode,
/// for whatever reason, is free again for whoever needs it: nothing is remembered.
#[derive(Debug)]
pub(crate) struct DecodeBatch {
    engine: Arc<Engine>,
    clusters: Vec<DecodeTask>,
    /// For readahead: until when it is wanted.
    token: Option<GenerationToken>,
    /// Its reader does not decode, and waits for this alone.
    reader_waits: bool,
}

impl DecodeBatch {
    pub(crate) fn new(
        engine: &Arc<Engine>,
        token: Option<GenerationToken>,
        reader_waits: bool,
    ) -> Self {
        Self { engine: Arc::clone(engine), clusters: Vec::new(), token, reader_waits }
    }

    /// Adds a cluster, behind the ones before it in the image where that can be; answers one who waits
    /// for it.
    pub(crate) fn add(
        &mut self,
        cluster: Cluster,
        mut permit: ClusterPermit,
        output: Option<Buffer>,
    ) -> ClusterWaiter {
        let waiter = permit.enqueue();
        // Begun, so that others who want it wait as its reader does, and do not decode.
        if !self.reader_waits || permit.begin() {
            self.clusters.push(DecodeTask { cluster, permit, output });
        }
        waiter
    }

    /// Decoded bytes of its clusters.
    pub(crate) fn decoded_bytes(&self) -> u64 {
        let sum = |sum: u64, job: &DecodeTask| sum.saturating_add(job.cluster.decoded_bytes);
        self.clusters.iter().fold(0, sum)
    }

    /// The most bytes that one of its reads of the source brings.
    pub(crate) fn encoded_bytes(&self) -> usize {
        let places: Vec<Cluster> = self.clusters.iter().map(|job| job.cluster).collect();
        run_lengths(&places).into_iter().max().unwrap_or(0)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.clusters.is_empty()
    }

    /// Sends it to a worker of another CPU; `turn` spreads several over them.
    pub(crate) fn dispatch(self, turn: usize) {
        let workers = self.engine.workers.clone();
        workers.submit_to_other_cpu(turn, move || self.run());
    }

    /// Decodes what is still wanted and what nobody has taken back.
    fn run(self) {
        let Self { engine, clusters, token, reader_waits } = self;
        // What its reader waits for is not left undone, and whoever has a slot may wait for it, too.
        let beyond = reader_waits.then(|| engine.decode_slots.acquire_over_limit());
        let slot = beyond.or_else(|| engine.decode_slots.try_acquire());
        let Some(mut slot) = slot else { return };
        let places: Vec<Cluster> = clusters.iter().map(|job| job.cluster).collect();
        let run_lengths = run_lengths(&places);
        for (DecodeTask { cluster, mut permit, output }, run_bytes) in
            clusters.into_iter().zip(run_lengths)
        {
            if token.as_ref().is_some_and(GenerationToken::is_stale) && !permit.is_demanded() {
                continue;
            }
            // Its reader decodes the part that it wants through a window, and need not wait for memory
            // for the whole.
            if permit.is_demanded() && engine.prefers_window(&cluster) {
                continue;
            }
            if !(reader_waits || permit.begin()) {
                continue;
            }
            if let Ok(decoded) =
                decode(&engine, &mut slot, (&cluster, run_bytes), (&permit, output))
            {
                let compressed = u64::from(cluster.is_compressed());
                slot.counters.on_workers = slot.counters.on_workers.wrapping_add(compressed);
                // Before its reader goes on, so that he finds it counted.
                engine.decode_slots.add(&std::mem::take(&mut slot.counters));
                permit.publish(decoded);
            }
        }
    }
}

/// Decodes a cluster with the memory that its permit is worth: somebody who waits may have come before
/// it was begun, or since.
fn decode(
    engine: &Engine,
    slot: &mut DecodeSlot<'_>,
    (cluster, run_bytes): (&Cluster, usize),
    (permit, mut output): (&ClusterPermit, Option<Buffer>),
) -> Result<DecodedCluster> {
    let bytes = usize::try_from(cluster.decoded_bytes).unwrap_or(usize::MAX);
    let mut attempt = |policy| {
        let mut buffer = match output.take() {
            Some(buffer) => buffer,
            None => {
                engine.prepare(slot, (cluster, run_bytes), policy)?;
                match policy {
                    AllocPolicy::MustSucceed => engine.demand_buffer(bytes)?,
                    AllocPolicy::MayFail => engine.memory.buffer(bytes, policy)?,
                }
            }
        };
        engine.decode_data(slot, (cluster, run_bytes), &mut buffer, policy)?;
        Ok(DecodedCluster::from(buffer))
    };
    if permit.is_demanded() {
        return attempt(AllocPolicy::MustSucceed);
    }
    match attempt(AllocPolicy::MayFail) {
        Err(error) if error.is_about_now() && permit.is_demanded() => {
            attempt(AllocPolicy::MustSucceed)
        }
        other => other,
    }
}

/// For each cluster how far those reach that lie behind it without a gap, in bytes from its start; 0 where it
/// does not lie among the data, or is longer than what is read at a time.
pub(crate) fn run_lengths(clusters: &[Cluster]) -> Vec<usize> {
    let range = |cluster: &Cluster| match cluster.id.place {
        ClusterPlace::Data(start) => {
            Some((start, start.saturating_add(u64::from(cluster.id.encoded_bytes))))
        }
        ClusterPlace::MetaBytes(..) => None,
    };
    let mut run_lengths = Vec::with_capacity(clusters.len());
    // The run of the cluster before ends here: that of the next one ends no earlier.
    let (mut next, mut end) = (0, 0);
    for (number, cluster) in clusters.iter().enumerate() {
        let own = range(cluster).filter(|(start, end)| end.saturating_sub(*start) <= RUN_MAX_BYTES);
        let Some((start, own_end)) = own else {
            run_lengths.push(0);
            continue;
        };
        if next <= number {
            (next, end) = (number.saturating_add(1), own_end);
        }
        while let Some((from, to)) = clusters.get(next).and_then(range)
            && from == end
            && to.saturating_sub(start) <= RUN_MAX_BYTES
        {
            (next, end) = (next.saturating_add(1), to);
        }
        run_lengths.push(usize::try_from(end.saturating_sub(start)).unwrap_or(0));
    }
    run_lengths
}

#[cfg(test)]
mod tests {
    use ferrofs_ondisk::compression::AlgorithmId;

    use super::*;
    use crate::extent::{ClusterId, Coding};
    use crate::inner::AddressSpace;

    fn cluster(place: ClusterPlace, encoded_bytes: u32) -> Cluster {
        let coding = Coding::Compressed(AlgorithmId::Lz4);
        let id = ClusterId { place, encoded_bytes, coding };
        Cluster { id, decoded_bytes: 10, is_partial: false }
    }

    #[test]
    fn a_run_ends_at_a_gap_at_metadata_and_at_a_mebibyte() {
        let data = |offset, bytes| cluster(ClusterPlace::Data(offset), bytes);
        let apart = [data(0, 10), data(10, 5), data(16, 4), data(20, 6)];
        assert_eq!(run_lengths(&apart), [15, 5, 10, 6]);
        let backwards = [data(10, 5), data(5, 5), data(10, 5), data(10, 5)];
        assert_eq!(run_lengths(&backwards), [5, 10, 5, 5]);
        let meta = cluster(ClusterPlace::MetaBytes(AddressSpace::Image, 10), 5);
        assert_eq!(run_lengths(&[data(0, 10), meta, data(10, 5)]), [10, 0, 5]);
        let half = 1 << 19;
        let long = [data(0, half), data(half.into(), half), data(1 << 20, half)];
        assert_eq!(run_lengths(&long), [1 << 20, 1 << 20, 1 << 19]);
        assert_eq!(run_lengths(&[data(0, (1 << 20) + 1), data((1 << 20) + 1, 1)]), [0, 1]);
        assert_eq!(run_lengths(&[]), [0; 0]);
    }
}

//! Clusters that a worker is to decode: for a reader that has several to wait for, or ahead of one.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use ferrofs_workers::memory::{Buffer, Policy};

use super::{Decoded, Engine, Mine, Station, Waiting};
use crate::cluster::{Cluster, ClusterPlace};
use crate::error::Result;

/// The most that one read of the source brings for an errand, in bytes.
const REACH_MAX_BYTES: u64 = 1 << 20;

/// Decoded bytes for which waking a worker is worth its while: a wake-up costs some microseconds, and LZ4
/// decodes this in some tens of them.
pub(crate) const ERRAND_BYTES: u64 = 96 << 10;

/// Whether an errand is still wanted.
#[derive(Clone, Debug)]
pub(crate) struct Wish {
    now: Arc<AtomicU64>,
    then: u64,
}

impl Wish {
    /// A wish that ends when `round` changes.
    pub(crate) fn of_round(round: &Arc<AtomicU64>) -> Self {
        Self { now: Arc::clone(round), then: round.load(Ordering::Relaxed) }
    }

    pub(crate) fn is_over(&self) -> bool {
        // A hint: what is done in vain is only not needed.
        self.now.load(Ordering::Relaxed) != self.then
    }
}

/// A cluster to decode, and what for.
#[derive(Debug)]
struct Job {
    cluster: Cluster,
    mine: Mine,
    /// Memory for it that was at hand; without it the worker sees to that.
    output: Option<Buffer>,
}

/// Claimed clusters on their way to a worker. It owns all that it touches. What it does not decode,
/// for whatever reason, is free again for whoever needs it: nothing is remembered.
#[derive(Debug)]
pub(crate) struct Errand {
    engine: Arc<Engine>,
    clusters: Vec<Job>,
    /// For readahead: until when it is wanted.
    wish: Option<Wish>,
    /// Its reader does not decode, and waits for this alone.
    is_forced: bool,
}

impl Errand {
    pub(crate) fn new(engine: &Arc<Engine>, wish: Option<Wish>, is_forced: bool) -> Self {
        Self { engine: Arc::clone(engine), clusters: Vec::new(), wish, is_forced }
    }

    /// Adds a cluster, behind the ones before it in the image where that can be; answers one who waits
    /// for it.
    pub(crate) fn add(
        &mut self,
        cluster: Cluster,
        mut mine: Mine,
        output: Option<Buffer>,
    ) -> Waiting {
        let waiter = mine.hand_out();
        // Begun, so that others who want it wait as its reader does, and do not decode.
        if !self.is_forced || mine.begin() {
            self.clusters.push(Job { cluster, mine, output });
        }
        waiter
    }

    /// Decoded bytes of its clusters.
    pub(crate) fn decoded_bytes(&self) -> u64 {
        let sum = |sum: u64, job: &Job| sum.saturating_add(job.cluster.decoded_bytes);
        self.clusters.iter().fold(0, sum)
    }

    /// The most bytes that one of its reads of the source brings.
    pub(crate) fn encoded_bytes(&self) -> usize {
        let places: Vec<Cluster> = self.clusters.iter().map(|job| job.cluster).collect();
        reaches(&places).into_iter().max().unwrap_or(0)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.clusters.is_empty()
    }

    /// Sends it to a worker of another CPU; `turn` spreads several over them.
    pub(crate) fn send(self, turn: usize) {
        let workers = self.engine.workers.clone();
        workers.submit_elsewhere(turn, move || self.run());
    }

    /// Decodes what is still wanted and what nobody has taken back.
    fn run(self) {
        let Self { engine, clusters, wish, is_forced } = self;
        // What its reader waits for is not left undone, and whoever has a station may wait for it, too.
        let beyond = is_forced.then(|| engine.stations.enter_beyond());
        let station = beyond.or_else(|| engine.stations.try_enter());
        let Some(mut station) = station else { return };
        let places: Vec<Cluster> = clusters.iter().map(|job| job.cluster).collect();
        let reaches = reaches(&places);
        for (Job { cluster, mut mine, output }, reach) in clusters.into_iter().zip(reaches) {
            if wish.as_ref().is_some_and(Wish::is_over) && !mine.is_demanded() {
                continue;
            }
            // Its reader decodes the part that it wants through a window, and need not wait for memory
            // for the whole.
            if mine.is_demanded() && engine.prefers_window(&cluster) {
                continue;
            }
            if !(is_forced || mine.begin()) {
                continue;
            }
            if let Ok(decoded) = decode(&engine, &mut station, (&cluster, reach), (&mine, output)) {
                let compressed = u64::from(cluster.is_compressed());
                station.tally.on_workers = station.tally.on_workers.wrapping_add(compressed);
                // Before its reader goes on, so that he finds it counted.
                engine.stations.add(&std::mem::take(&mut station.tally));
                mine.publish(decoded);
            }
        }
    }
}

/// Decodes a cluster with the memory that its ticket is worth: somebody who waits may have come before
/// it was begun, or since.
fn decode(
    engine: &Engine,
    station: &mut Station<'_>,
    (cluster, reach): (&Cluster, usize),
    (mine, mut output): (&Mine, Option<Buffer>),
) -> Result<Decoded> {
    let bytes = usize::try_from(cluster.decoded_bytes).unwrap_or(usize::MAX);
    let mut attempt = |policy| {
        let mut buffer = match output.take() {
            Some(buffer) => buffer,
            None => {
                engine.prepare(station, (cluster, reach), policy)?;
                match policy {
                    Policy::MustSucceed => engine.demand_buffer(bytes)?,
                    Policy::MayFail => engine.memory.buffer(bytes, policy)?,
                }
            }
        };
        engine.decode_data(station, (cluster, reach), &mut buffer, policy)?;
        Ok(Decoded::from(buffer))
    };
    if mine.is_demanded() {
        return attempt(Policy::MustSucceed);
    }
    match attempt(Policy::MayFail) {
        Err(error) if error.is_about_now() && mine.is_demanded() => attempt(Policy::MustSucceed),
        other => other,
    }
}

/// For each cluster how far those reach that lie behind it without a gap, in bytes from its start; 0 where it
/// does not lie among the data, or is longer than what is read at a time.
pub(crate) fn reaches(clusters: &[Cluster]) -> Vec<usize> {
    let range = |cluster: &Cluster| match cluster.id.place {
        ClusterPlace::Data(start) => {
            Some((start, start.saturating_add(u64::from(cluster.id.encoded_bytes))))
        }
        ClusterPlace::Meta(..) => None,
    };
    let mut reaches = Vec::with_capacity(clusters.len());
    // The run of the cluster before ends here: that of the next one ends no earlier.
    let (mut next, mut end) = (0, 0);
    for (number, cluster) in clusters.iter().enumerate() {
        let own =
            range(cluster).filter(|(start, end)| end.saturating_sub(*start) <= REACH_MAX_BYTES);
        let Some((start, own_end)) = own else {
            reaches.push(0);
            continue;
        };
        if next <= number {
            (next, end) = (number.saturating_add(1), own_end);
        }
        while let Some((from, to)) = clusters.get(next).and_then(range)
            && from == end
            && to.saturating_sub(start) <= REACH_MAX_BYTES
        {
            (next, end) = (next.saturating_add(1), to);
        }
        reaches.push(usize::try_from(end.saturating_sub(start)).unwrap_or(0));
    }
    reaches
}

#[cfg(test)]
mod tests {
    use ferrofs_ondisk::compression::AlgorithmId;

    use super::*;
    use crate::cluster::{ClusterId, Coding};
    use crate::meta::Space;

    fn cluster(place: ClusterPlace, encoded_bytes: u32) -> Cluster {
        let coding = Coding::Compressed(AlgorithmId::Lz4);
        let id = ClusterId { place, encoded_bytes, coding };
        Cluster { id, decoded_bytes: 10, is_partial: false }
    }

    #[test]
    fn a_run_ends_at_a_gap_at_metadata_and_at_a_mebibyte() {
        let data = |offset, bytes| cluster(ClusterPlace::Data(offset), bytes);
        let apart = [data(0, 10), data(10, 5), data(16, 4), data(20, 6)];
        assert_eq!(reaches(&apart), [15, 5, 10, 6]);
        let backwards = [data(10, 5), data(5, 5), data(10, 5), data(10, 5)];
        assert_eq!(reaches(&backwards), [5, 10, 5, 5]);
        let meta = cluster(ClusterPlace::Meta(Space::Image, 10), 5);
        assert_eq!(reaches(&[data(0, 10), meta, data(10, 5)]), [10, 0, 5]);
        let half = 1 << 19;
        let long = [data(0, half), data(half.into(), half), data(1 << 20, half)];
        assert_eq!(reaches(&long), [1 << 20, 1 << 20, 1 << 19]);
        assert_eq!(reaches(&[data(0, (1 << 20) + 1), data((1 << 20) + 1, 1)]), [0, 1]);
        assert_eq!(reaches(&[]), [0; 0]);
    }
}

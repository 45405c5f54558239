//! Reading any range of a file: the plan is made, what is stored plainly is copied, clusters come from
//! the cache, from another thread that is at them, or are decoded.

use ferrofs_ondisk::compression::AlgorithmId;
use ferrofs_ondisk::{FileType, Nid};
use ferrofs_workers::memory::AllocPolicy;
use ferrofs_workers::single_flight::{Lookup, Urgency};

use crate::engine::{
    BATCH_MIN_BYTES, ClusterPermit, DecodeBatch, DecodeCounters, DecodeSlot, DecodedCluster,
    run_lengths,
};
use crate::error::{Error, ErrorContext, ErrorKind, Result, address};
use crate::extent::{Cluster, ClusterPlace, Coding};
use crate::image::ImageInner;
use crate::inner::MetaBytes;
use crate::inode::Inode;
use crate::plan::{Origin, ReadPlan, ReadSegment};

/// Who decodes what a read needs. The names are those of Linux's `sync_decompress`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SyncDecompress {
    /// The reader decodes. Where several clusters are needed, the workers of other CPUs help it.
    #[default]
    Auto,
    /// The reader decodes what is asked for in reads of at most 12,288 bytes; larger ones are decoded
    /// by workers while the reader waits.
    ForceOn,
    /// Workers decode, always. Two exceptions, which are decoded by the reader: clusters among the
    /// metadata, which are shorter than a block, and the part of a long LZ4 extent for which there is
    /// no memory but that of a window. Without workers ([`DecodeWorkers::none`]) this is `Auto`.
    ///
    /// [`DecodeWorkers::none`]: crate::DecodeWorkers::none
    ForceOff,
}

/// What a read came to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReadOutcome {
    /// Bytes read; fewer than asked for only at the end of the file.
    pub bytes: usize,
    /// Bytes of the compressed extents in which they lie, decoded and in whole.
    pub extent_bytes: u64,
    /// Bytes of those that were not at hand decoded: 0 if nothing had to be waited for.
    pub missing_bytes: u64,
}

impl ReadOutcome {
    fn note(&mut self, plan: &ReadPlan) {
        for cluster in plan.parts.iter().filter_map(cluster_of) {
            self.extent_bytes = self.extent_bytes.saturating_add(cluster.decoded_bytes);
        }
    }
}

/// The longest read that [`SyncDecompress::ForceOn`] decodes on the reader's thread, in bytes: the
/// threshold of Linux since 2026.
const SMALL_READ_BYTES: usize = 12_288;

impl ImageInner {
    /// Reads the bytes of `inode` from `offset` on; fewer than asked only at its end. For what the
    /// library reads itself.
    pub(crate) fn read_at(&self, inode: &Inode, offset: u64, buffer: &mut [u8]) -> Result<usize> {
        Ok(self.read_in_mode(inode, offset, buffer, SyncDecompress::Auto)?.bytes)
    }

    /// The same for a read that a user has asked for.
    pub(crate) fn read_in_mode(
        &self,
        inode: &Inode,
        offset: u64,
        buffer: &mut [u8],
        mode: SyncDecompress,
    ) -> Result<ReadOutcome> {
        let rest = inode.size().saturating_sub(offset);
        let count = buffer.len().min(usize::try_from(rest).unwrap_or(usize::MAX));
        let mode = match mode {
            SyncDecompress::ForceOn if count <= SMALL_READ_BYTES => SyncDecompress::Auto,
            _ if self.engine.workers.is_empty() => SyncDecompress::Auto,
            other => other,
        };
        let mut target = buffer.get_mut(..count).unwrap_or_default();
        let mut at = offset;
        let mut outcome = ReadOutcome { bytes: count, ..ReadOutcome::default() };
        while !target.is_empty() {
            let plan = ReadPlan::build(self, inode, at, target.len())?;
            let (now, rest) = target.split_at_mut(plan.length.min(target.len()));
            outcome.note(&plan);
            let missing = self.carry_out(&plan, now, mode)?;
            outcome.missing_bytes = outcome.missing_bytes.saturating_add(missing);
            at = at.saturating_add(u64::try_from(now.len()).unwrap_or(u64::MAX));
            target = rest;
        }
        Ok(outcome)
    }

    /// Does what a plan says; answers how long the extents are that had to be decoded.
    fn carry_out(&self, plan: &ReadPlan, target: &mut [u8], mode: SyncDecompress) -> Result<u64> {
        // Also for what needs no decoding: those who read have buffers.
        self.wake_idle_reclaimer();
        let mut counters = DecodeCounters::default();
        let mut missing: Vec<&ReadSegment> = Vec::new();
        for part in &plan.parts {
            let bytes = address(target.get_mut(part.target.clone()))?;
            if !self.serve_now(part, bytes, &mut counters).in_inode(part.nid)? {
                missing.push(part);
            }
        }
        if missing.is_empty() {
            self.engine.decode_slots.add(&counters);
            return Ok(0);
        }
        let missing_bytes = missing
            .iter()
            .filter_map(|part| cluster_of(part))
            .fold(0u64, |sum, cluster| sum.saturating_add(cluster.decoded_bytes));
        match mode {
            SyncDecompress::Auto => self.decode_missing(&missing, target, &mut counters)?,
            SyncDecompress::ForceOn | SyncDecompress::ForceOff => {
                let left = self.decode_elsewhere(&missing, target, &mut counters)?;
                self.decode_missing(&left, target, &mut counters)?;
            }
        }
        self.engine.decode_slots.add(&counters);
        Ok(missing_bytes)
    }

    /// Serves a part that needs no decoding; false if it does.
    fn serve_now(
        &self,
        part: &ReadSegment,
        target: &mut [u8],
        counters: &mut DecodeCounters,
    ) -> Result<bool> {
        match part.origin {
            Origin::Hole => target.fill(0),
            Origin::Raw { device, offset } => {
                self.engine.devices.read(device, offset, target)?;
                counters.served_raw(target.len());
            }
            Origin::MetaBytes { space, offset } => {
                target.copy_from_slice(&self.meta(space, offset, target.len())?);
                counters.served_raw(target.len());
            }
            Origin::Cluster { cluster, skip, .. } => {
                let Some(decoded) = self.engine.clusters.get(cluster.id, end(skip, target)) else {
                    return Ok(false);
                };
                self.serve(part, &decoded, skip, target)?;
                counters.served(target.len());
            }
        }
        Ok(true)
    }

    /// Decodes clusters on this thread, with the help of workers where there are several.
    fn decode_missing(
        &self,
        missing: &[&ReadSegment],
        target: &mut [u8],
        counters: &mut DecodeCounters,
    ) -> Result<()> {
        if missing.is_empty() {
            return Ok(());
        }
        let mut slot = self.engine.decode_slots.acquire();
        if missing.len() > 1 && self.engine.workers.parallelism() > 1 {
            self.dispatch_batches(missing);
        }
        let clusters: Vec<Cluster> = missing.iter().filter_map(|part| cluster_of(part)).collect();
        // First what nobody else is at; then what others have begun, which is done by then, mostly.
        let mut left = Vec::new();
        let run_lengths = run_lengths(&clusters);
        for (number, part) in missing.iter().enumerate() {
            let run_bytes = run_lengths.get(number).copied().unwrap_or(0);
            let bytes = address(target.get_mut(part.target.clone()))?;
            if self.decode_part(&mut slot, part, (bytes, run_bytes), false).in_inode(part.nid)? {
                counters.served(bytes.len());
            } else {
                left.push(*part);
            }
        }
        for part in left {
            let bytes = address(target.get_mut(part.target.clone()))?;
            self.decode_part(&mut slot, part, (bytes, 0), true).in_inode(part.nid)?;
            counters.served(bytes.len());
        }
        Ok(())
    }

    /// Gives workers of other CPUs something to do: all but the first share of the clusters. Whatever they
    /// have not begun when the reader gets there, it takes back.
    fn dispatch_batches(&self, missing: &[&ReadSegment]) {
        let engine = &self.engine;
        let clusters: Vec<Cluster> = missing
            .iter()
            .filter_map(|part| cluster_of(part))
            .filter(|cluster| matches!(cluster.id.place, ClusterPlace::Data(_)))
            .filter(|cluster| self.offloads(cluster))
            .collect();
        let all: u64 = clusters.iter().fold(0, |sum, one| sum.saturating_add(one.decoded_bytes));
        let shares = u64::try_from(engine.workers.parallelism()).unwrap_or(1).saturating_mul(2);
        let share = all.checked_div(shares).unwrap_or(all).max(BATCH_MIN_BYTES);
        let mut turn = 0usize;
        let mut own = share;
        let mut batch = DecodeBatch::new(engine, None, false);
        for cluster in clusters {
            if own > 0 {
                own = own.saturating_sub(cluster.decoded_bytes);
                continue;
            }
            let bytes = usize::try_from(cluster.decoded_bytes).unwrap_or(usize::MAX);
            if let Lookup::Miss(permit) = engine.clusters.lookup(cluster.id, bytes, Urgency::Demand)
            {
                // The reader comes back for it by claiming.
                drop(batch.add(cluster, permit, None));
            }
            if batch.decoded_bytes() >= share {
                std::mem::replace(&mut batch, DecodeBatch::new(engine, None, false)).dispatch(turn);
                turn = turn.saturating_add(1);
            }
        }
        // A rest that is not worth a wake-up is the reader's.
        if batch.decoded_bytes() >= BATCH_MIN_BYTES {
            batch.dispatch(turn);
        }
    }

    /// Whether a worker is to decode a cluster for its reader, or ahead of it. It then lies in memory of its
    /// own until it is copied, and a thread is woken: a third of what LZ4 takes, where a reader would have
    /// decoded straight to where it is wanted. The kernel asks for several pieces of a file at a time, so
    /// LZ4 keeps other CPUs busy without that (docs/benchmarks.md).
    pub(crate) fn offloads(&self, cluster: &Cluster) -> bool {
        let is_slow = match cluster.id.coding {
            Coding::Plain { .. } => false,
            Coding::Compressed(algorithm) => is_slow(algorithm),
        };
        is_slow || !self.leaves_quick_ones()
    }

    /// Whether anything of a file may be offloaded; if not, looking ahead in it is in vain.
    pub(crate) fn may_offload(&self, inode: &Inode) -> bool {
        let has_slow =
            || AlgorithmId::ALL.iter().any(|one| is_slow(*one) && self.compression.has(*one));
        !self.leaves_quick_ones() || !inode.layout().is_compressed() || has_slow()
    }

    /// Whether what is decoded quickly is left to the thread that reads.
    fn leaves_quick_ones(&self) -> bool {
        self.caller_caches && self.mode == SyncDecompress::Auto
    }

    /// Decodes what a part needs; false if another thread is at it and waiting is not allowed.
    fn decode_part(
        &self,
        slot: &mut DecodeSlot<'_>,
        part: &ReadSegment,
        (target, run_bytes): (&mut [u8], usize),
        may_wait: bool,
    ) -> Result<bool> {
        let Origin::Cluster { cluster, skip, is_common } = part.origin else { return Ok(true) };
        if let ClusterPlace::MetaBytes(..) = cluster.id.place {
            return self.decode_from_metadata(slot, &cluster, skip, target).map(|()| true);
        }
        let bytes = usize::try_from(cluster.decoded_bytes).unwrap_or(usize::MAX);
        let is_whole = skip == 0 && target.len() == bytes;
        loop {
            match self.engine.clusters.lookup(cluster.id, bytes, Urgency::Demand) {
                Lookup::Hit(decoded) => {
                    return self.serve(part, &decoded, skip, target).map(|()| true);
                }
                Lookup::Pending(_) if !may_wait => return Ok(false),
                Lookup::Pending(waiter) => {
                    if let Some(decoded) = self.engine.wait_for(waiter) {
                        return self.serve(part, &decoded, skip, target).map(|()| true);
                    }
                }
                Lookup::Miss(mut permit) => {
                    if permit.begin() {
                        let is_alone =
                            self.caller_caches || !self.engine.decode_slots.is_contended();
                        let is_direct = is_whole && !is_common && is_alone;
                        let how = (&cluster, skip, is_direct);
                        let decoded = self.decode_mine(slot, permit, how, (target, run_bytes))?;
                        if let Some(decoded) = decoded {
                            self.serve(part, &decoded, skip, target)?;
                        }
                        return Ok(true);
                    }
                }
            }
        }
    }

    /// Hands out bytes of a decoded extent. One that has been handed out in whole to a reader who keeps it
    /// will not be asked for again.
    fn serve(
        &self,
        part: &ReadSegment,
        decoded: &DecodedCluster,
        skip: usize,
        target: &mut [u8],
    ) -> Result<()> {
        copy(decoded, skip, target)?;
        if let Origin::Cluster { cluster, is_common: false, .. } = part.origin
            && self.caller_caches
            && decoded.record_served(target.len())
        {
            self.engine.clusters.invalidate(cluster.id);
        }
        Ok(())
    }

    /// Decodes a cluster that was claimed and begun: straight into the reader's buffer if it lies
    /// wholly in there and nobody else will want it a moment later; else what it answers is to be copied.
    fn decode_mine(
        &self,
        slot: &mut DecodeSlot<'_>,
        permit: ClusterPermit,
        (cluster, skip, is_direct): (&Cluster, usize, bool),
        (target, run_bytes): (&mut [u8], usize),
    ) -> Result<Option<DecodedCluster>> {
        let engine = &self.engine;
        let policy = AllocPolicy::MustSucceed;
        if is_direct {
            engine.decode_data(slot, (cluster, run_bytes), target, policy)?;
            // Somebody has come meanwhile, who gets a copy; or, without memory for it, claims again.
            let bytes = u64::try_from(target.len()).unwrap_or(u64::MAX);
            if let Some(permit) = permit.finish_unless_waited()
                && engine.memory.has_room_for(bytes)
                && let Ok(mut copied) = engine.memory.buffer(target.len(), policy)
            {
                copied.copy_from_slice(target);
                permit.publish(copied.into());
            }
            return Ok(None);
        }
        if engine.prefers_window(cluster) {
            drop(permit);
            return engine.decode_window(slot, (cluster, skip), target).map(|()| None);
        }
        let decoded = engine.fill_cluster(slot, permit, (cluster, run_bytes), |slot, output| {
            engine.decode_data(slot, (cluster, run_bytes), output, policy)
        });
        decoded.map(Some)
    }

    /// Decodes a cluster that lies among the metadata.
    fn decode_from_metadata(
        &self,
        slot: &mut DecodeSlot<'_>,
        cluster: &Cluster,
        skip: usize,
        target: &mut [u8],
    ) -> Result<()> {
        let bytes = usize::try_from(cluster.decoded_bytes).unwrap_or(usize::MAX);
        if skip == 0 && target.len() == bytes {
            let input = self.encoded_metadata(cluster)?;
            return self.engine.decode(slot, cluster, &input, target);
        }
        copy(&self.shared_cluster(slot, cluster)?, skip, target)
    }

    /// The bytes of a cluster that lies among the metadata, as they are stored.
    pub(crate) fn encoded_metadata(&self, cluster: &Cluster) -> Result<MetaBytes> {
        let ClusterPlace::MetaBytes(space, offset) = cluster.id.place else {
            return Err(Error::new(ErrorKind::AddressOverflow).at(cluster.id.place.offset()));
        };
        self.meta(space, offset, usize::try_from(cluster.id.encoded_bytes).unwrap_or(usize::MAX))
    }

    /// The decoded bytes of a cluster, wherever it lies, shared with everybody who asks for them.
    pub(crate) fn shared_cluster(
        &self,
        slot: &mut DecodeSlot<'_>,
        cluster: &Cluster,
    ) -> Result<DecodedCluster> {
        if let ClusterPlace::Data(_) = cluster.id.place {
            return self.engine.shared_data(slot, cluster);
        }
        // Before anything is claimed: metadata may lie in clusters themselves.
        let input = self.encoded_metadata(cluster)?;
        self.engine
            .shared(slot, cluster, |slot, output| self.engine.decode(slot, cluster, &input, output))
    }

    /// Has workers decode what they can, and waits for it; what is left are parts that could not be had
    /// that way, for whatever reason: the reader finds out by doing it itself.
    fn decode_elsewhere<'p>(
        &self,
        missing: &[&'p ReadSegment],
        target: &mut [u8],
        counters: &mut DecodeCounters,
    ) -> Result<Vec<&'p ReadSegment>> {
        let mut waiting = Vec::new();
        let mut left = Vec::new();
        for (turn, part) in missing.iter().enumerate() {
            let Origin::Cluster { cluster, .. } = part.origin else { continue };
            if matches!(cluster.id.place, ClusterPlace::MetaBytes(..)) {
                left.push(*part);
                continue;
            }
            let bytes = usize::try_from(cluster.decoded_bytes).unwrap_or(usize::MAX);
            let waiter = match self.engine.clusters.lookup(cluster.id, bytes, Urgency::Demand) {
                Lookup::Hit(decoded) => Err(decoded),
                Lookup::Pending(waiter) => Ok(waiter),
                Lookup::Miss(permit) => {
                    let mut batch = DecodeBatch::new(&self.engine, None, true);
                    let waiter = batch.add(cluster, permit, None);
                    batch.dispatch(turn);
                    Ok(waiter)
                }
            };
            waiting.push((*part, waiter));
        }
        for (part, waiter) in waiting {
            let Origin::Cluster { skip, .. } = part.origin else { continue };
            let bytes = address(target.get_mut(part.target.clone()))?;
            match waiter.map_or_else(Some, |waiter| waiter.wait()) {
                Some(decoded) => {
                    self.serve(part, &decoded, skip, bytes)?;
                    counters.served(bytes.len());
                }
                None => left.push(part),
            }
        }
        Ok(left)
    }

    /// The packed inode, for a fragment of `inode`. It has no fragments itself, and neither has the
    /// metabox, in which its own map may lie.
    pub(crate) fn packed_for(&self, inode: &Inode) -> Result<&Inode> {
        let is_special = |special: &Option<Inode>| {
            special.as_ref().is_some_and(|special| special.nid() == inode.nid())
        };
        let may_have = !is_special(&self.packed) && !is_special(&self.metabox);
        let packed = self.packed.as_ref().filter(|_| may_have);
        packed.ok_or_else(|| Error::new(ErrorKind::NoPackedInode).at(inode.end()))
    }

    /// Whether the clusters of `inode` are those of many files.
    pub(crate) fn is_common(&self, nid: Nid) -> bool {
        self.packed.as_ref().is_some_and(|packed| packed.nid() == nid)
    }

    /// The target of a symlink.
    pub(crate) fn read_link(&self, link: &Inode) -> Result<Vec<u8>> {
        link.require(FileType::Symlink)?;
        let bad = || {
            let kind = ErrorKind::SymlinkTarget(link.size());
            Error::new(kind).in_inode(link.nid()).at(link.place().1)
        };
        let size = usize::try_from(link.size()).ok().filter(|size| (1..=TARGET_MAX).contains(size));
        let mut target = crate::source::zeroed(size.ok_or_else(bad)?)?;
        self.read_at(link, 0, &mut target)?;
        if target.contains(&0) { Err(bad()) } else { Ok(target) }
    }
}

/// Whether decoding takes long beside handing a cluster to another thread.
fn is_slow(algorithm: AlgorithmId) -> bool {
    algorithm != AlgorithmId::Lz4
}

fn cluster_of(part: &ReadSegment) -> Option<Cluster> {
    match part.origin {
        Origin::Cluster { cluster, .. } => Some(cluster),
        _ => None,
    }
}

/// How much of an extent is needed for the bytes from `skip` on.
fn end(skip: usize, target: &[u8]) -> usize {
    skip.saturating_add(target.len())
}

/// Copies the bytes of an extent from `skip` on.
fn copy(decoded: &[u8], skip: usize, target: &mut [u8]) -> Result<()> {
    target.copy_from_slice(address(decoded.get(skip..end(skip, target)))?);
    Ok(())
}

/// The longest symlink target, in bytes: Linux's `PATH_MAX`.
const TARGET_MAX: usize = 4096;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::extent::ClusterId;
    use crate::image::Image;
    use crate::open::OpenOptions;
    use crate::walk::WalkEvent;

    fn open(name: &str, options: &OpenOptions) -> Image {
        let data = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/data");
        options.open(format!("{data}/{name}.erofs")).unwrap()
    }

    /// Whether each kind of cluster is offloaded: stored, and by every algorithm in the order of their numbers.
    fn offloaded(options: &OpenOptions) -> [bool; 5] {
        let image = open("lz4", options);
        let plain = Coding::Plain { wrapped_bytes: 0 };
        let algorithms = AlgorithmId::ALL.map(Coding::Compressed);
        let mut codings = std::iter::once(plain).chain(algorithms);
        std::array::from_fn(|_| {
            let coding = codings.next().unwrap();
            let id = ClusterId { place: ClusterPlace::Data(0), encoded_bytes: 4096, coding };
            let cluster = Cluster { id, decoded_bytes: 8192, is_partial: false };
            image.inner().offloads(&cluster)
        })
    }

    #[test]
    fn what_is_quick_is_left_to_a_reader_who_keeps_it() {
        let (any, kept) = (OpenOptions::new(), OpenOptions::new().caller_caches(true));
        assert_eq!(offloaded(&any), [true; 5]);
        assert_eq!(offloaded(&kept), [false, false, true, true, true]);
        assert_eq!(offloaded(&kept.clone().sync_decompress(SyncDecompress::ForceOn)), [true; 5]);
        assert_eq!(offloaded(&kept.sync_decompress(SyncDecompress::ForceOff)), [true; 5]);
    }

    #[test]
    fn nothing_is_planned_ahead_where_nothing_is_offloaded() {
        let kept = OpenOptions::new().caller_caches(true);
        let looks = |name, options: &OpenOptions| {
            let image = open(name, options);
            let files = image.walk(b"/").unwrap().filter_map(|visit| match visit {
                WalkEvent::Leaf(node) if node.inode.layout().is_compressed() => Some(node.inode),
                _ => None,
            });
            let looks: Vec<bool> = files.map(|file| image.inner().may_offload(&file)).collect();
            assert!(!looks.is_empty(), "{name}");
            looks
        };
        assert!(looks("lz4", &kept).iter().all(|looks| !looks));
        assert!(looks("lz4", &OpenOptions::new()).iter().all(|looks| *looks));
        assert!(looks("zstd-64k-fragments", &kept).iter().all(|looks| *looks));
        let image = open("lz4", &kept);
        let root = image.root().unwrap();
        assert!(!root.layout().is_compressed() && image.inner().may_offload(&root));
    }
}

//! Reading any range of a file. A plan says where its bytes are. Then uncompressed data is copied,
//! and clusters come from the cache, from another thread that decodes them now, or are decoded
//! here.
//!
//! Planning reads metadata only. No lock is held while anything is decoded.

use std::collections::{HashMap, VecDeque};
use std::ops::Range;
use std::time::Duration;

use ferrofs_ondisk::Nid;
use ferrofs_ondisk::compression::AlgorithmId;
use ferrofs_workers::memory::AllocPolicy;
use ferrofs_workers::single_flight::{Lookup, Urgency};

use crate::engine::{
    BATCH_MIN_BYTES, BatchPurpose, ClusterPermit, DecodeBatch, DecodeCounters, DecodeSlot,
    DecodedCluster, SyncDecompress,
};
use crate::error::{Error, ErrorContext, ErrorKind, Result, address};
use crate::extent::{Address, Cluster, ClusterId, Coding, DataLocation, MappedExtent, run_lengths};
use crate::inner::{ImageInner, MetaBytes};
use crate::inode::Inode;
use crate::map::ExtentMap;
use crate::repeated_input::check_repeated_input;
use crate::source::outside;

/// Bytes of one plan at most; longer reads take several.
const PLAN_MAX_BYTES: usize = 4 << 20;
/// Segments of one plan at most: extents of a damaged index can be a byte long.
const SEGMENTS_MAX: usize = 1024;
/// The longest read that [`SyncDecompress::ForceOn`] decodes on the reader's thread, in bytes: the
/// threshold of Linux since 2026.
const SMALL_READ_BYTES: usize = 12_288;
/// The longest read that may decode an extent of which it needs a part for itself alone, and the
/// longest such extent, in bytes. The two extents at the ends of a longer read matter less.
const SHORT_READ_BYTES: usize = 32 << 10;

/// After so long a reader that waits for workers takes what else they have decoded for it.
const TAKE_INTERVAL: Duration = Duration::from_millis(5);

/// What a read did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ReadOutcome {
    /// Bytes read; fewer than asked for only at the end of the file.
    pub bytes: usize,
    /// Decoded length of all compressed extents that hold those bytes.
    pub extent_bytes: u64,
    /// Decoded length of those extents that were not cached: 0 if the read waited for no decoder.
    pub missing_bytes: u64,
    /// Where the first of those extents starts, in bytes of the file. Both positions are 0 if there
    /// is no such extent, or if one lies in the packed file.
    pub extents_start: u64,
    /// Where the last of them ends.
    pub extents_end: u64,
}

impl ReadOutcome {
    /// The plans of a read follow each other in the file.
    fn add_extents(&mut self, extents: Range<u64>) {
        if self.extents_end == 0 {
            self.extents_start = extents.start;
        }
        self.extents_end = extents.end;
    }
}

/// Where the bytes of a range of a file are, segment by segment, without gaps.
#[derive(Debug)]
pub(crate) struct ReadPlan {
    pub(crate) segments: Vec<ReadSegment>,
    /// How many bytes it covers.
    pub(crate) length: usize,
    is_short: bool,
    /// The range of the file from the first to the last of its compressed extents.
    extents: Option<Range<u64>>,
    /// A part lies in the packed file.
    is_packed: bool,
}

/// A part of a read whose bytes are stored in one way.
#[derive(Clone, Debug)]
pub(crate) struct ReadSegment {
    /// Where the bytes go in the buffer of the reader.
    pub(crate) target: Range<usize>,
    /// Where the bytes are: the first of them, or their cluster. Fragments are resolved to the
    /// packed file.
    pub(crate) location: DataLocation,
    /// Bytes of the extent before the segment.
    pub(crate) skip: usize,
    /// Other files may share the cluster.
    is_shared: bool,
    /// It belongs to a read of at most [`SHORT_READ_BYTES`].
    is_short: bool,
    /// The inode in whose map they were found.
    nid: Nid,
}

impl ReadSegment {
    /// The cluster that it needs, if any.
    pub(crate) fn cluster(&self) -> Option<&Cluster> {
        match &self.location {
            DataLocation::Cluster(cluster) => Some(cluster),
            _ => None,
        }
    }
}

impl ReadPlan {
    /// Plans to read up to `bytes` bytes of `inode` from `offset` on. They must lie within the
    /// file. A plan may cover fewer.
    pub(crate) fn build(
        inner: &ImageInner,
        inode: &Inode,
        offset: u64,
        bytes: usize,
    ) -> Result<Self> {
        let is_short = bytes <= SHORT_READ_BYTES;
        let segments = Vec::new();
        let mut plan = Self { segments, length: 0, is_short, extents: None, is_packed: false };
        let end = offset.saturating_add(u64::try_from(bytes.min(PLAN_MAX_BYTES)).unwrap_or(0));
        plan.extend(inner, inode, offset..end)?;
        plan.decode_longest_fronts();
        Ok(plan)
    }

    /// Has the front of a cluster that several extents need decoded once: as much as the longest of
    /// them needs, not more and more for one after the other.
    fn decode_longest_fronts(&mut self) {
        let clusters = self.segments.iter().filter_map(ReadSegment::cluster);
        let partial = clusters.filter(|cluster| cluster.is_partial);
        if partial.clone().count() < 2 {
            return;
        }
        let mut longest: HashMap<ClusterId, u64> = HashMap::new();
        for Cluster { id, decoded_bytes, .. } in partial {
            let most = longest.entry(*id).or_default();
            *most = (*most).max(*decoded_bytes);
        }
        for segment in &mut self.segments {
            if let DataLocation::Cluster(cluster) = &mut segment.location
                && cluster.is_partial
                && let Some(most) = longest.get(&cluster.id)
            {
                cluster.decoded_bytes = *most;
            }
        }
    }

    fn extend(&mut self, inner: &ImageInner, inode: &Inode, range: Range<u64>) -> Result<()> {
        let mut map = ExtentMap::new(inner, inode)?;
        let mut at = range.start;
        // If the loop for a fragment ends here, so does the loop for its file.
        while at < range.end && self.segments.len() < SEGMENTS_MAX {
            let extent = map.extent_at(at)?;
            let end = extent.end().min(range.end);
            self.add(inner, inode, &extent, at..end).in_inode(inode.nid())?;
            at = end;
        }
        Ok(())
    }

    /// Adds `range` of the file, which lies within `extent`.
    fn add(
        &mut self,
        inner: &ImageInner,
        inode: &Inode,
        extent: &MappedExtent,
        range: Range<u64>,
    ) -> Result<()> {
        let skip = range.start.saturating_sub(extent.start);
        let length = range.end.saturating_sub(range.start);
        let location = match extent.location {
            DataLocation::Fragment { offset } => {
                self.is_packed = true;
                let packed = inner.packed_for(inode)?;
                let start = address(offset.checked_add(skip))?;
                let end = start.checked_add(length).filter(|end| *end <= packed.size());
                let missing = || outside(start, length, packed.size()).in_inode(packed.nid());
                return self.extend(inner, packed, start..end.ok_or_else(missing)?);
            }
            // Any part of a cluster in the shifted form can be read alone.
            DataLocation::Cluster(Cluster { id, .. })
                if id.coding == (Coding::Plain { wrapped_bytes: 0 })
                    && matches!(id.address, Address::Data { .. }) =>
            {
                DataLocation::Stored(id.address.advance(skip)?)
            }
            other => other.advance(skip)?,
        };
        if matches!(location, DataLocation::Cluster(_)) {
            let start = self.extents.as_ref().map_or(extent.start, |before| before.start);
            self.extents = Some(start..extent.end());
        }
        let is_partial =
            matches!(location, DataLocation::Cluster(Cluster { is_partial: true, .. }));
        let start = self.length;
        self.length = start.saturating_add(usize::try_from(length).unwrap_or(usize::MAX));
        self.segments.push(ReadSegment {
            target: start..self.length,
            location,
            skip: usize::try_from(skip).unwrap_or(usize::MAX),
            is_shared: is_partial || inner.is_packed(inode.nid()),
            is_short: self.is_short,
            nid: inode.nid(),
        });
        Ok(())
    }
}

/// What to do about a cluster that another thread decodes now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum InFlightPolicy {
    /// Wait for it now.
    Wait,
    /// Leave the segment for later, when the cluster is mostly decoded.
    Defer,
}

impl ImageInner {
    /// Reads bytes of `inode` from `offset` on, for the library itself. Returns how many: fewer
    /// than asked for only at the end of the file.
    pub(crate) fn read_at(&self, inode: &Inode, offset: u64, buffer: &mut [u8]) -> Result<usize> {
        Ok(self.read_in_mode(inode, offset, buffer, SyncDecompress::Auto)?.bytes)
    }

    /// The same for a read of a user.
    pub(crate) fn read_in_mode(
        &self,
        inode: &Inode,
        offset: u64,
        buffer: &mut [u8],
        mode: SyncDecompress,
    ) -> Result<ReadOutcome> {
        let outcome = self.read_with(inode, offset, buffer, mode, AllocPolicy::MustSucceed)?;
        // A demand is not given up.
        Ok(outcome.unwrap_or_default())
    }

    /// The same for a prefetch: `None` if it would take memory from others, or wait for them.
    pub(crate) fn read_best_effort(
        &self,
        inode: &Inode,
        offset: u64,
        buffer: &mut [u8],
    ) -> Result<Option<usize>> {
        let policy = AllocPolicy::MayFail;
        match self.read_with(inode, offset, buffer, SyncDecompress::Auto, policy) {
            Ok(outcome) => Ok(outcome.map(|outcome| outcome.bytes)),
            Err(error) if error.is_transient() => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Reads with memory by `policy`. `None` if a prefetch was given up.
    fn read_with(
        &self,
        inode: &Inode,
        offset: u64,
        buffer: &mut [u8],
        mode: SyncDecompress,
        policy: AllocPolicy,
    ) -> Result<Option<ReadOutcome>> {
        let rest = inode.size().saturating_sub(offset);
        let count = buffer.len().min(usize::try_from(rest).unwrap_or(usize::MAX));
        let mode = match mode {
            SyncDecompress::ForceOn if count <= SMALL_READ_BYTES => SyncDecompress::Auto,
            _ if !self.engine.has_workers() => SyncDecompress::Auto,
            other => other,
        };
        let mut target = buffer.get_mut(..count).unwrap_or_default();
        let mut at = offset;
        let mut outcome = ReadOutcome { bytes: count, ..ReadOutcome::default() };
        let mut is_packed = false;
        while !target.is_empty() {
            let plan = ReadPlan::build(self, inode, at, target.len())?;
            let (now, rest) = target.split_at_mut(plan.length.min(target.len()));
            let needed = decoded_bytes(plan.segments.iter());
            let missing = self.execute(&plan, now, mode, policy)?;
            let Some(missing) = missing else { return Ok(None) };
            outcome.extent_bytes = outcome.extent_bytes.saturating_add(needed);
            outcome.missing_bytes = outcome.missing_bytes.saturating_add(missing);
            is_packed |= plan.is_packed;
            if let Some(extents) = plan.extents {
                outcome.add_extents(extents);
            }
            at = at.saturating_add(u64::try_from(now.len()).unwrap_or(u64::MAX));
            target = rest;
        }
        if is_packed {
            (outcome.extents_start, outcome.extents_end) = (0, 0);
        }
        Ok(Some(outcome))
    }

    /// Carries a plan out. Returns the decoded length of the extents that had to be decoded, or
    /// `None` if a prefetch was given up.
    fn execute(
        &self,
        plan: &ReadPlan,
        target: &mut [u8],
        mode: SyncDecompress,
        policy: AllocPolicy,
    ) -> Result<Option<u64>> {
        // Also for reads that decode nothing: their callers keep buffers.
        self.wake_idle_reclaimer();
        if self.engine.devices.is_remote() {
            self.make_ready(plan)?;
        }
        let mut counters = DecodeCounters::default();
        let mut missing: Vec<&ReadSegment> = Vec::new();
        for segment in &plan.segments {
            let bytes = address(target.get_mut(segment.target.clone()))?;
            if !self.serve_now(segment, bytes, &mut counters).in_inode(segment.nid)? {
                missing.push(segment);
            }
        }
        let Some(first) = missing.first() else {
            self.engine.decode_slots.add(&counters);
            return Ok(Some(0));
        };
        let missing_bytes = decoded_bytes(missing.iter().copied());
        let clusters = missing.iter().filter_map(|segment| segment.cluster());
        check_repeated_input(clusters, plan.length).in_inode(first.nid)?;
        let is_done = match mode {
            SyncDecompress::Auto => self.decode_here(&missing, target, &mut counters, policy)?,
            SyncDecompress::ForceOn | SyncDecompress::ForceOff => {
                let left = self.decode_on_workers(&missing, target, &mut counters)?;
                self.decode_here(&left, target, &mut counters, policy)?
            }
        };
        self.engine.decode_slots.add(&counters);
        Ok(is_done.then_some(missing_bytes))
    }

    /// Has a server send all bytes of a plan that are not here, before a decoder is occupied.
    fn make_ready(&self, plan: &ReadPlan) -> Result<()> {
        let wanted = |segment: &ReadSegment| {
            let (address, bytes) = match segment.location {
                DataLocation::Stored(address) => (address, segment.target.len()),
                DataLocation::Cluster(cluster) => (cluster.id.address, cluster.encoded_length()),
                DataLocation::Hole | DataLocation::Fragment { .. } => return None,
            };
            let Address::Data { device, offset } = address else { return None };
            let bytes = u64::try_from(bytes).unwrap_or(u64::MAX);
            Some((device, offset..offset.saturating_add(bytes)))
        };
        self.engine.devices.make_ready(plan.segments.iter().filter_map(wanted))
    }

    /// Serves a segment that needs no decoding; false if it does.
    fn serve_now(
        &self,
        segment: &ReadSegment,
        target: &mut [u8],
        counters: &mut DecodeCounters,
    ) -> Result<bool> {
        match segment.location {
            DataLocation::Hole => target.fill(0),
            DataLocation::Stored(Address::Data { device, offset }) => {
                self.engine.devices.read(device, offset, target)?;
                counters.served_raw(target.len());
            }
            DataLocation::Stored(Address::Metadata { space, offset }) => {
                target.copy_from_slice(&self.metadata(space, offset, target.len())?);
                counters.served_raw(target.len());
            }
            DataLocation::Cluster(cluster) => {
                let needed = segment.skip.saturating_add(target.len());
                let Some(decoded) = self.engine.clusters.get(cluster.id, needed) else {
                    return Ok(false);
                };
                self.serve(segment, &decoded, target)?;
                counters.served(target.len());
            }
            // The plan has resolved it to a segment of the packed file.
            DataLocation::Fragment { .. } => return Err(ErrorKind::NoPackedInode.into()),
        }
        Ok(true)
    }

    /// Decodes clusters on this thread. Workers help if there are several. False if a prefetch was
    /// given up.
    fn decode_here(
        &self,
        missing: &[&ReadSegment],
        target: &mut [u8],
        counters: &mut DecodeCounters,
        policy: AllocPolicy,
    ) -> Result<bool> {
        if missing.is_empty() {
            return Ok(true);
        }
        let is_demand = policy == AllocPolicy::MustSucceed;
        let slots = &self.engine.decode_slots;
        let slot = if is_demand { Some(slots.acquire()) } else { slots.try_acquire() };
        let Some(mut slot) = slot else { return Ok(false) };
        if is_demand && missing.len() > 1 && self.engine.parallelism() > 1 {
            self.dispatch_batches(missing);
        }
        let clusters: Vec<Cluster> =
            missing.iter().filter_map(|segment| segment.cluster().copied()).collect();
        // First the clusters that no other thread decodes; then the others, which are mostly done
        // by then.
        let mut left = Vec::new();
        let run_lengths = run_lengths(&clusters);
        let longest_run = run_lengths.iter().copied().max().unwrap_or(0);
        if !is_demand && slot.window.capacity() < longest_run {
            // Best effort maps nothing further on.
            self.engine.memory.preallocate(longest_run, 1);
        }
        for (number, segment) in missing.iter().enumerate() {
            let run_bytes = run_lengths.get(number).copied().unwrap_or(0);
            let bytes = address(target.get_mut(segment.target.clone()))?;
            let in_flight = InFlightPolicy::Defer;
            let done = self.decode_segment(&mut slot, segment, bytes, run_bytes, in_flight, policy);
            if done.in_inode(segment.nid)? {
                counters.served(bytes.len());
            } else if is_demand {
                left.push(*segment);
            } else {
                return Ok(false);
            }
        }
        for segment in left {
            let bytes = address(target.get_mut(segment.target.clone()))?;
            let in_flight = InFlightPolicy::Wait;
            let done = self.decode_segment(&mut slot, segment, bytes, 0, in_flight, policy);
            done.in_inode(segment.nid)?;
            counters.served(bytes.len());
        }
        Ok(true)
    }

    /// Dispatches all but the first share of the clusters to workers of other CPUs. The reader
    /// takes back whatever they have not begun when it gets there.
    fn dispatch_batches(&self, missing: &[&ReadSegment]) {
        let engine = &self.engine;
        let clusters: Vec<Cluster> = missing
            .iter()
            .filter_map(|segment| segment.cluster().copied())
            .filter(|cluster| cluster.is_data() && self.offloads(cluster.id.coding))
            .collect();
        let all: u64 = clusters.iter().fold(0, |sum, one| sum.saturating_add(one.decoded_bytes));
        let shares = u64::try_from(engine.parallelism()).unwrap_or(1).saturating_mul(2);
        let share = all.checked_div(shares).unwrap_or(all).max(BATCH_MIN_BYTES);
        let mut turn = 0usize;
        let mut own = share;
        let mut batch = DecodeBatch::new(engine, BatchPurpose::Assist);
        for cluster in clusters {
            if own > 0 {
                own = own.saturating_sub(cluster.decoded_bytes);
                continue;
            }
            let found =
                engine.clusters.lookup(cluster.id, cluster.decoded_length(), Urgency::Demand);
            if let Lookup::Miss(permit) = found {
                // The reader looks it up again instead of waiting here.
                drop(batch.add(cluster, permit, None));
            }
            if batch.decoded_bytes() >= share {
                let next = DecodeBatch::new(engine, BatchPurpose::Assist);
                std::mem::replace(&mut batch, next).dispatch(turn);
                turn = turn.saturating_add(1);
            }
        }
        // A rest that is not worth a wake-up is left to the reader.
        if batch.decoded_bytes() >= BATCH_MIN_BYTES {
            batch.dispatch(turn);
        }
    }

    /// Whether workers decode clusters of this coding for a reader, or ahead of one. Offloading
    /// costs a buffer, a copy and a wake-up: a third of what LZ4 takes, where a reader would have
    /// decoded straight into its buffer. A caller that caches what it reads, as the kernel does,
    /// reads several parts of a file at the same time, so LZ4 keeps other CPUs busy without
    /// offloading (docs/benchmarks.md).
    pub(crate) fn offloads(&self, coding: Coding) -> bool {
        let leaves_quick_ones = self.caller_caches && self.mode == SyncDecompress::Auto;
        !(is_quick(coding) && leaves_quick_ones)
    }

    /// Decodes what a segment needs; false if another thread decodes it and `in_flight` says not to
    /// wait, or if a prefetch was given up.
    fn decode_segment(
        &self,
        slot: &mut DecodeSlot<'_>,
        segment: &ReadSegment,
        target: &mut [u8],
        run_bytes: usize,
        in_flight: InFlightPolicy,
        policy: AllocPolicy,
    ) -> Result<bool> {
        let Some(cluster) = segment.cluster() else { return Ok(true) };
        if !cluster.is_data() {
            let is_whole = segment.skip == 0 && target.len() == cluster.decoded_length();
            if policy == AllocPolicy::MayFail && !is_whole {
                return Ok(false);
            }
            return self.decode_from_metadata(slot, cluster, segment.skip, target).map(|()| true);
        }
        let bytes = cluster.decoded_length();
        loop {
            match self.engine.clusters.lookup(cluster.id, bytes, Urgency::Demand) {
                Lookup::Hit(decoded) => {
                    return self.serve(segment, &decoded, target).map(|()| true);
                }
                Lookup::Pending(_) if in_flight == InFlightPolicy::Defer => return Ok(false),
                Lookup::Pending(waiter) => {
                    if let Some(decoded) = self.engine.wait_for(waiter) {
                        return self.serve(segment, &decoded, target).map(|()| true);
                    }
                }
                Lookup::Miss(mut permit) => {
                    if permit.begin() {
                        return self
                            .decode_permitted(slot, permit, segment, target, run_bytes, policy);
                    }
                }
            }
        }
    }

    /// Copies bytes of a decoded extent to the reader. An extent that has been read in whole by a
    /// caller that caches it will not be read again.
    fn serve(
        &self,
        segment: &ReadSegment,
        decoded: &DecodedCluster,
        target: &mut [u8],
    ) -> Result<()> {
        copy(decoded, segment.skip, target)?;
        if let Some(cluster) = segment.cluster()
            && !segment.is_shared
            && self.caller_caches
            && decoded.record_served(target.len())
        {
            self.engine.clusters.invalidate(cluster.id);
        }
        Ok(())
    }

    /// Decodes a cluster whose fill has begun: straight into the buffer of the reader if the whole
    /// extent belongs there and no other reader will need it a moment later, else into a buffer of
    /// its own. False if a prefetch was given up.
    fn decode_permitted(
        &self,
        slot: &mut DecodeSlot<'_>,
        permit: ClusterPermit,
        segment: &ReadSegment,
        target: &mut [u8],
        run_bytes: usize,
        policy: AllocPolicy,
    ) -> Result<bool> {
        let Some(cluster) = segment.cluster() else { return Ok(true) };
        let engine = &self.engine;
        let is_whole = segment.skip == 0 && target.len() == cluster.decoded_length();
        let is_alone = self.caller_caches || !engine.decode_slots.is_contended();
        if is_whole && !segment.is_shared && is_alone {
            self.decode_direct(slot, permit, cluster, target, run_bytes, policy)?;
            return Ok(true);
        }
        if engine.prefers_window(cluster) {
            drop(permit);
            if policy == AllocPolicy::MayFail {
                return Ok(false);
            }
            engine.decode_window(slot, cluster, segment.skip, target)?;
            return Ok(true);
        }
        if self.decodes_again(segment, cluster) {
            self.decode_front(slot, permit, segment, target, run_bytes, policy)?;
            return Ok(true);
        }
        let decode = |slot: &mut DecodeSlot<'_>, output: &mut [u8]| {
            engine.decode_data(slot, cluster, run_bytes, output, policy)
        };
        let decoded = engine.fill_cluster(slot, permit, cluster, run_bytes, policy, decode)?;
        let Some(decoded) = decoded else { return Ok(false) };
        self.serve(segment, &decoded, target)?;
        Ok(true)
    }

    /// Decodes a whole extent into the reader's buffer.
    fn decode_direct(
        &self,
        slot: &mut DecodeSlot<'_>,
        permit: ClusterPermit,
        cluster: &Cluster,
        target: &mut [u8],
        run_bytes: usize,
        policy: AllocPolicy,
    ) -> Result<()> {
        let engine = &self.engine;
        engine.decode_data(slot, cluster, run_bytes, target, policy)?;
        // A reader that waits meanwhile gets a copy or, if there is no memory for it, looks the
        // cluster up again.
        let bytes = u64::try_from(target.len()).unwrap_or(u64::MAX);
        if let Some(permit) = permit.finish_unless_waited()
            && engine.memory.fits(bytes)
            && let Ok(mut copied) = engine.memory.buffer(target.len(), policy)
        {
            copied.copy_from_slice(target);
            permit.publish(copied.into());
        }
        Ok(())
    }

    /// Whether a part of a cluster is decoded for its reader alone, and again for the next one. The
    /// caller keeps what it reads, so few clusters are read twice, and a kept one needs a buffer of
    /// its own: mapping it takes three calls of the system and longer than decoding a short LZ4
    /// extent. Buffers of a reserve are mapped already.
    fn decodes_again(&self, segment: &ReadSegment, cluster: &Cluster) -> bool {
        self.caller_caches
            && segment.is_short
            && !segment.is_shared
            && is_quick(cluster.id.coding)
            && cluster.decoded_length() <= SHORT_READ_BYTES
            && self.engine.memory.reserve_share().is_none()
    }

    /// Decodes the front of a cluster, as far as the reader needs it, into the buffer of the slot.
    fn decode_front(
        &self,
        slot: &mut DecodeSlot<'_>,
        permit: ClusterPermit,
        segment: &ReadSegment,
        target: &mut [u8],
        run_bytes: usize,
        policy: AllocPolicy,
    ) -> Result<()> {
        let Some(cluster) = segment.cluster() else { return Ok(()) };
        let engine = &self.engine;
        let front_bytes = segment.skip.saturating_add(target.len());
        engine.prepare(slot, cluster, run_bytes, policy)?;
        let mut output = slot.take_output(&engine.memory, cluster.decoded_length(), policy)?;
        let front = output.get_mut(..front_bytes).unwrap_or_default();
        engine.decode_data(slot, cluster, run_bytes, front, policy)?;
        copy(front, segment.skip, target)?;
        slot.keep_output(output);
        // A reader that waits meanwhile needs another part. If there is no room for the whole, or it
        // cannot be decoded, that reader looks it up again and reports the error.
        if let Some(permit) = permit.finish_unless_waited()
            && engine.memory.fits(cluster.decoded_bytes)
        {
            let decode = |slot: &mut DecodeSlot<'_>, output: &mut [u8]| {
                engine.decode_data(slot, cluster, run_bytes, output, policy)
            };
            drop(engine.fill_cluster(slot, permit, cluster, run_bytes, policy, decode));
        }
        Ok(())
    }

    /// Decodes a cluster that lies among the metadata.
    fn decode_from_metadata(
        &self,
        slot: &mut DecodeSlot<'_>,
        cluster: &Cluster,
        skip: usize,
        target: &mut [u8],
    ) -> Result<()> {
        if skip == 0 && target.len() == cluster.decoded_length() {
            let input = self.encoded_metadata(cluster)?;
            return self.engine.decode(slot, cluster, &input, target);
        }
        copy(&self.shared_cluster(slot, cluster)?, skip, target)
    }

    /// The encoded bytes of a cluster that lies among the metadata.
    pub(crate) fn encoded_metadata(&self, cluster: &Cluster) -> Result<MetaBytes> {
        match cluster.id.address {
            Address::Metadata { space, offset } => {
                self.metadata(space, offset, cluster.encoded_length())
            }
            Address::Data { offset, .. } => Err(Error::new(ErrorKind::AddressOverflow).at(offset)),
        }
    }

    /// The decoded bytes of a cluster, wherever it lies, shared with all readers that want them.
    pub(crate) fn shared_cluster(
        &self,
        slot: &mut DecodeSlot<'_>,
        cluster: &Cluster,
    ) -> Result<DecodedCluster> {
        if cluster.is_data() {
            return self.engine.shared_data(slot, cluster);
        }
        // Before the lookup: metadata may lie in clusters themselves.
        let input = self.encoded_metadata(cluster)?;
        self.engine
            .shared(slot, cluster, |slot, output| self.engine.decode(slot, cluster, &input, output))
    }

    /// Has workers decode what they can, and waits. Returns the segments that they could not
    /// decode, for whatever reason: the reader finds out when it decodes them itself.
    fn decode_on_workers<'p>(
        &self,
        missing: &[&'p ReadSegment],
        target: &mut [u8],
        counters: &mut DecodeCounters,
    ) -> Result<Vec<&'p ReadSegment>> {
        let mut waiting = VecDeque::new();
        let mut left = Vec::new();
        for (turn, segment) in missing.iter().enumerate() {
            let Some(cluster) = segment.cluster() else { continue };
            if !cluster.is_data() {
                left.push(*segment);
                continue;
            }
            let bytes = cluster.decoded_length();
            match self.engine.clusters.lookup(cluster.id, bytes, Urgency::Demand) {
                Lookup::Hit(decoded) => {
                    self.serve_decoded(segment, &decoded, target, counters)?;
                }
                Lookup::Pending(waiter) => waiting.push_back((*segment, waiter)),
                Lookup::Miss(permit) => {
                    let mut batch = DecodeBatch::new(&self.engine, BatchPurpose::Replace);
                    waiting.push_back((*segment, batch.add(*cluster, permit, None)));
                    batch.dispatch(turn);
                }
            }
        }
        // A cluster that is decoded is copied soon, whichever it is: until then its memory cannot be
        // freed, and the worker that decodes another one may wait for memory.
        while let Some((segment, waiter)) = waiting.pop_front() {
            match waiter.wait_for(TAKE_INTERVAL) {
                Ok(Some(decoded)) => self.serve_decoded(segment, &decoded, target, counters)?,
                Ok(None) => left.push(segment),
                Err(waiter) => {
                    let others = std::mem::take(&mut waiting);
                    waiting.push_back((segment, waiter));
                    for (segment, waiter) in others {
                        match waiter.try_wait() {
                            Ok(Some(decoded)) => {
                                self.serve_decoded(segment, &decoded, target, counters)?;
                            }
                            Ok(None) => left.push(segment),
                            Err(waiter) => waiting.push_back((segment, waiter)),
                        }
                    }
                }
            }
        }
        Ok(left)
    }

    /// Copies a cluster that a worker has decoded to the buffer of a reader.
    fn serve_decoded(
        &self,
        segment: &ReadSegment,
        decoded: &DecodedCluster,
        target: &mut [u8],
        counters: &mut DecodeCounters,
    ) -> Result<()> {
        let bytes = address(target.get_mut(segment.target.clone()))?;
        self.serve(segment, decoded, bytes)?;
        counters.served(bytes.len());
        Ok(())
    }
}

/// Whether decoding takes no longer than copying a few times.
fn is_quick(coding: Coding) -> bool {
    match coding {
        Coding::Plain { .. } => true,
        Coding::Compressed(algorithm) => algorithm == AlgorithmId::Lz4,
    }
}

/// Decoded bytes of the clusters that segments need, each in whole.
fn decoded_bytes<'s>(segments: impl Iterator<Item = &'s ReadSegment>) -> u64 {
    let clusters = segments.filter_map(ReadSegment::cluster);
    clusters.fold(0, |sum, cluster| sum.saturating_add(cluster.decoded_bytes))
}

/// Copies the bytes of an extent from `skip` on.
fn copy(decoded: &[u8], skip: usize, target: &mut [u8]) -> Result<()> {
    let end = skip.saturating_add(target.len());
    target.copy_from_slice(address(decoded.get(skip..end))?);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::image::Image;
    use crate::open::OpenOptions;

    fn open(name: &str, options: &OpenOptions) -> Image {
        let data = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/data");
        options.open(format!("{data}/{name}.erofs")).unwrap()
    }

    /// Whether each kind of cluster is offloaded: stored, and by every algorithm in the order of
    /// their numbers.
    fn offloaded(options: &OpenOptions) -> [bool; 5] {
        let image = open("lz4", options);
        let plain = Coding::Plain { wrapped_bytes: 0 };
        let algorithms = AlgorithmId::ALL.map(Coding::Compressed);
        let mut codings = std::iter::once(plain).chain(algorithms);
        std::array::from_fn(|_| image.inner().offloads(codings.next().unwrap()))
    }

    #[test]
    fn quick_codings_are_left_to_a_caller_that_caches() {
        let (any, kept) = (OpenOptions::new(), OpenOptions::new().caller_caches(true));
        assert_eq!(offloaded(&any), [true; 5]);
        assert_eq!(offloaded(&kept), [false, false, true, true, true]);
        assert_eq!(offloaded(&kept.clone().sync_decompress(SyncDecompress::ForceOn)), [true; 5]);
        assert_eq!(offloaded(&kept.sync_decompress(SyncDecompress::ForceOff)), [true; 5]);
    }
}

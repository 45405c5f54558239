//! The engine: it fetches clusters and decodes them, once for all readers.
//!
//! It is the part of an image that other threads get: it owns all that decoding touches, and knows
//! no tree, no inode and no metadata. The caller fetches clusters that lie among the metadata.
//!
//! Memory of a reserve is resident, so that no decoder waits for the reclaim of the system. A cache
//! of decoded clusters that only grew would use the reserve up and then map more memory. So the
//! clusters that were kept longest are evicted before anything is mapped beyond the reserve.

mod context_pool;
mod input_window;
mod memory_shares;
mod queued_outputs;
mod stats;
mod workers;

use std::ops::Deref;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use ferrofs_codec::{Algorithm, DecodeMode, DecoderSettings, Lz4Part, Padding, lz4_window_pages};
use ferrofs_ondisk::Superblock;
use ferrofs_ondisk::compression::{AlgorithmId, CompressionConfig};
use ferrofs_workers::counters::{Histogram, HistogramSnapshot, Sharded};
use ferrofs_workers::memory::{AllocPolicy, Buffer, Frame, ThreadCache};
use ferrofs_workers::single_flight::{
    CacheValue, FillPermit, Lookup, SingleFlight, Urgency, Waiter,
};

pub(crate) use context_pool::{ContextPool, DecodeCounters, DecodeSlot, SlotLimits};
pub(crate) use input_window::{InputRequest, InputStorage, InputWindow};
pub use memory_shares::ReadBuffer;
pub(crate) use memory_shares::{MemoryShares, cache_shards};
pub(crate) use queued_outputs::QueuedOutputs;
pub use stats::ImageStats;
pub(crate) use workers::{BATCH_MIN_BYTES, BatchPurpose, DecodeBatch, GenerationToken};
pub use workers::{DecodeWorkers, SyncDecompress};

use crate::error::{Error, ErrorContext, ErrorKind, Result};
use crate::extent::{Address, Cluster, ClusterId, Coding};
use crate::memory::MemoryPool;
use crate::source::Devices;
use context_pool::{DecodeContext, LazyDecoder};

/// Extents up to this length, in bytes, are decoded as a whole unless a reserve is too small for
/// them: a window would save little.
const WINDOW_EXTENT_BYTES: u64 = 128 << 10;

/// Bytes of the frames of the longest LZ4 window.
const WINDOW_BYTES: u64 = 17 * MemoryPool::PAGE_BYTES;
const _: () = assert!(lz4_window_pages(u16::MAX, usize::MAX) == 17);

/// How often a waiter polls before it sleeps, about a microsecond apart.
const POLLS: u32 = 30;
/// Spin-loop hints between two polls.
const SPINS_A_POLL: u32 = 32;

/// Permission and obligation to decode a cluster for the cache.
pub(crate) type ClusterPermit = FillPermit<ClusterId, DecodedCluster>;

/// Waits for a cluster that another thread decodes.
pub(crate) type ClusterWaiter = Waiter<DecodedCluster>;

/// Decoded bytes from the front of a cluster. Clones share them; the buffer is freed with the last
/// one.
#[derive(Clone, Debug)]
pub(crate) struct DecodedCluster(Arc<DecodedInner>);

#[derive(Debug)]
struct DecodedInner {
    buffer: Buffer,
    /// Bytes of it that were copied to readers. Bytes that were read twice count twice.
    served: AtomicUsize,
}

impl DecodedCluster {
    /// Records that so many bytes were copied to a reader; true once all of them were.
    pub(crate) fn record_served(&self, bytes: usize) -> bool {
        // Relaxed: a count that orders nothing.
        let served = self.0.served.fetch_add(bytes, Ordering::Relaxed);
        served.saturating_add(bytes) >= self.len()
    }
}

impl From<Buffer> for DecodedCluster {
    fn from(buffer: Buffer) -> Self {
        Self(Arc::new(DecodedInner { buffer, served: AtomicUsize::new(0) }))
    }
}

impl Deref for DecodedCluster {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.0.buffer
    }
}

impl CacheValue for DecodedCluster {
    fn length(&self) -> usize {
        self.0.buffer.len()
    }

    fn weight_bytes(&self) -> u64 {
        self.0.buffer.resident_bytes()
    }
}

/// Times of decoders. They are measured only after a user has asked for it: reading the clock twice
/// is 3 % of decoding a small LZ4 cluster.
#[derive(Debug, Default)]
pub(crate) struct DecodeTimer(OnceLock<Sharded<Histogram>>);

impl DecodeTimer {
    /// Starts to measure, for up to so many threads at the same time: 2.5 KiB for each, 40 KiB at
    /// most.
    pub(crate) fn measure(&self, threads: usize) {
        self.0.get_or_init(|| Sharded::new(threads, Histogram::new));
    }

    /// Runs a decoder, and records how long it took.
    fn time<T>(&self, decode: impl FnOnce() -> T) -> T {
        let Some(times) = self.0.get() else { return decode() };
        let started_at = Instant::now();
        let decoded = decode();
        times.local().record(started_at.elapsed());
        decoded
    }

    pub(crate) fn all(&self) -> HistogramSnapshot {
        let mut all = HistogramSnapshot::default();
        if let Some(times) = self.0.get() {
            times.iter().for_each(|one| all.merge(&one.snapshot()));
        }
        all
    }
}

/// Fetches and decodes.
#[derive(Debug)]
pub(crate) struct Engine {
    pub(crate) devices: Devices,
    pub(crate) memory: MemoryPool,
    pub(crate) decode_slots: ContextPool,
    pub(crate) clusters: SingleFlight<ClusterId, DecodedCluster>,
    /// Outputs of clusters that no worker has begun.
    pub(crate) queued_outputs: QueuedOutputs,
    /// What threads read into. A thread keeps its buffer for the next read.
    pub(crate) read_buffers: ThreadCache,
    pub(crate) workers: DecodeWorkers,
    /// Whether reads may start threads ([`crate::OpenOptions::defer_threads`]).
    pub(crate) may_start_threads: AtomicBool,
    pub(crate) settings: DecoderSettings,
    pub(crate) padding: Padding,
    pub(crate) decode_timer: DecodeTimer,
}

/// The decoders that an image with these algorithms needs.
pub(crate) fn settings(compression: &CompressionConfig) -> DecoderSettings {
    DecoderSettings::none()
        .lz4_max_distance(compression.lz4_max_distance)
        .lzma_dictionary_bytes(compression.lzma_dictionary_bytes)
        .deflate(compression.has(AlgorithmId::Deflate))
        .zstd_window_log(compression.zstd_window_log)
}

/// On which side the image pads its clusters.
pub(crate) fn padding(sb: &Superblock) -> Padding {
    if sb.has_left_padding() { Padding::Left } else { Padding::Right }
}

impl Engine {
    /// Whether reads may start threads.
    pub(crate) fn may_start_threads(&self) -> bool {
        // Relaxed: threads that are started after the change see it, and for others no help is
        // only slower.
        self.may_start_threads.load(Ordering::Relaxed)
    }

    /// Whether workers can decode.
    pub(crate) fn has_workers(&self) -> bool {
        !self.workers.is_empty() && self.may_start_threads()
    }

    /// How many threads can decode for a read at the same time.
    pub(crate) fn parallelism(&self) -> usize {
        if self.may_start_threads() { self.workers.parallelism() } else { 1 }
    }

    /// What fills the windows on the encoded input.
    pub(crate) fn storage(&self) -> InputStorage<'_> {
        let reads = self.decode_slots.storage_reads();
        InputStorage { devices: &self.devices, memory: &self.memory, reads }
    }

    /// Decodes the front of `cluster`, as much as `output` holds, from its encoded bytes.
    pub(crate) fn decode(
        &self,
        context: &mut DecodeContext,
        cluster: &Cluster,
        input: &[u8],
        output: &mut [u8],
    ) -> Result<()> {
        let policy = AllocPolicy::MustSucceed;
        self.decode_with(&mut context.decoder, cluster, input, output, policy)?;
        context.count(cluster, output.len());
        Ok(())
    }

    fn decode_with(
        &self,
        decoder: &mut LazyDecoder,
        cluster: &Cluster,
        input: &[u8],
        output: &mut [u8],
        policy: AllocPolicy,
    ) -> Result<()> {
        match cluster.id.coding {
            Coding::Plain { wrapped_bytes } => unwrap_plain(input, wrapped_bytes, output),
            Coding::Compressed(algorithm) => {
                let decoder = decoder.get_or_create(&self.settings, &self.memory, policy)?;
                let is_whole = u64::try_from(output.len()) == Ok(cluster.decoded_bytes);
                let mode = if is_whole && !cluster.is_partial {
                    DecodeMode::Whole
                } else {
                    DecodeMode::Prefix
                };
                let algorithm = codec_of(algorithm);
                let decode = || decoder.decode(algorithm, self.padding, input, output, mode);
                let decoded = self.decode_timer.time(decode);
                decoded.map_err(|error| Error::new(ErrorKind::Decode(error)))
            }
        }
        .at(cluster.id.address.offset())
    }

    /// Fetches and decodes the front of a cluster that lies among the data into `output`.
    /// `run_bytes` is how far the clusters reach that are needed next, as in [`InputRequest`].
    pub(crate) fn decode_data(
        &self,
        context: &mut DecodeContext,
        cluster: &Cluster,
        run_bytes: usize,
        output: &mut [u8],
        policy: AllocPolicy,
    ) -> Result<()> {
        let request = input_request(cluster, run_bytes)?;
        let input = context.window.get(self.storage(), request, policy)?;
        self.decode_with(&mut context.decoder, cluster, input, output, policy)?;
        context.count(cluster, output.len());
        Ok(())
    }

    /// Gets what decoding needs beside the output: the bytes of a cluster among the data, and a
    /// decoder. Called before the output is allocated: a thread that has its output waits for no
    /// more memory.
    pub(crate) fn prepare(
        &self,
        context: &mut DecodeContext,
        cluster: &Cluster,
        run_bytes: usize,
        policy: AllocPolicy,
    ) -> Result<()> {
        if cluster.is_data() {
            let request = input_request(cluster, run_bytes)?;
            context.window.get(self.storage(), request, policy)?;
        }
        if cluster.is_compressed() {
            context.decoder.get_or_create(&self.settings, &self.memory, policy)?;
        }
        Ok(())
    }

    /// The decoded bytes of a cluster among the data, shared with all readers that want them.
    pub(crate) fn shared_data(
        &self,
        slot: &mut DecodeSlot<'_>,
        cluster: &Cluster,
    ) -> Result<DecodedCluster> {
        self.shared(slot, cluster, |slot, output| {
            self.decode_data(slot, cluster, 0, output, AllocPolicy::MustSucceed)
        })
    }

    /// The decoded bytes of a cluster: from the cache, from another thread that decodes it now, or
    /// by `decode` here. If another thread fails, this one decodes.
    pub(crate) fn shared(
        &self,
        slot: &mut DecodeSlot<'_>,
        cluster: &Cluster,
        decode: impl Fn(&mut DecodeSlot<'_>, &mut [u8]) -> Result<()>,
    ) -> Result<DecodedCluster> {
        loop {
            match self.clusters.lookup(cluster.id, cluster.decoded_length(), Urgency::Demand) {
                Lookup::Hit(decoded) => return Ok(decoded),
                Lookup::Miss(mut permit) => {
                    if permit.begin() {
                        let policy = AllocPolicy::MustSucceed;
                        let filled =
                            self.fill_cluster(slot, permit, cluster, 0, policy, &decode)?;
                        if let Some(decoded) = filled {
                            return Ok(decoded);
                        }
                    }
                }
                Lookup::Pending(waiter) => {
                    if let Some(decoded) = self.wait_for(waiter) {
                        return Ok(decoded);
                    }
                }
            }
        }
    }

    /// Waits for a cluster that another thread decodes. `None` if that thread failed: then the
    /// cluster is to be looked up again. It polls for as long as LZ4 takes for a cluster before it
    /// sleeps, as a wake-up takes as long.
    pub(crate) fn wait_for(&self, mut waiter: ClusterWaiter) -> Option<DecodedCluster> {
        if self.parallelism() > 1 {
            for _ in 0..POLLS {
                match waiter.try_wait() {
                    Ok(decoded) => return decoded,
                    Err(still) => waiter = still,
                }
                (0..SPINS_A_POLL).for_each(|_| std::hint::spin_loop());
            }
        }
        waiter.wait()
    }

    /// Decodes a cluster whose fill has begun, and publishes it. `None` if it is for a prefetch that
    /// gets no memory.
    pub(crate) fn fill_cluster(
        &self,
        slot: &mut DecodeSlot<'_>,
        permit: ClusterPermit,
        cluster: &Cluster,
        run_bytes: usize,
        policy: AllocPolicy,
        decode: impl FnOnce(&mut DecodeSlot<'_>, &mut [u8]) -> Result<()>,
    ) -> Result<Option<DecodedCluster>> {
        self.prepare(slot, cluster, run_bytes, policy)?;
        let bytes = cluster.decoded_length();
        let output = match policy {
            AllocPolicy::MustSucceed => Some(self.demand_buffer(bytes)?),
            AllocPolicy::MayFail => self.best_effort_buffer(bytes),
        };
        let Some(mut output) = output else { return Ok(None) };
        decode(slot, &mut output)?;
        let decoded = DecodedCluster::from(output);
        permit.publish(decoded.clone());
        Ok(Some(decoded))
    }

    /// Whether a part of an LZ4 extent should be decoded through a window: where the whole extent
    /// could only be had by waiting for memory, or is more than one reader's share of a reserve.
    pub(crate) fn prefers_window(&self, cluster: &Cluster) -> bool {
        let bytes = cluster.decoded_bytes;
        if cluster.id.coding != Coding::Compressed(AlgorithmId::Lz4) {
            return false;
        }
        if self.exceeds_reserve_share(bytes) {
            return true;
        }
        if bytes <= WINDOW_EXTENT_BYTES {
            return false;
        }
        let fits = self.memory.fits(bytes)
            || self.memory.fits(bytes.saturating_sub(self.reclaimable_bytes()));
        !fits
    }

    /// Memory that a demand gets back at once: idle and kept buffers, and the cache. A cluster that
    /// went through a window to spare them would be decoded again for the next read of it.
    fn reclaimable_bytes(&self) -> u64 {
        let unused = self.memory.buffers().idle_bytes();
        unused
            .saturating_add(self.read_buffers.kept_bytes())
            .saturating_add(self.clusters.weight_bytes())
    }

    /// Decodes the part of an LZ4 cluster from byte `skip` on through a window of at most 17
    /// frames, however long the extent is. The whole is not kept, and nothing is published.
    pub(crate) fn decode_window(
        &self,
        context: &mut DecodeContext,
        cluster: &Cluster,
        skip: usize,
        output: &mut [u8],
    ) -> Result<()> {
        let run_bytes = cluster.encoded_length();
        let end = skip.saturating_add(output.len());
        let distance = self.settings.lz4_max_distance.unwrap_or(u16::MAX);
        let part = Lz4Part {
            padding: self.padding,
            extent_bytes: cluster.decoded_length(),
            skip_bytes: skip,
            mode: DecodeMode::Prefix,
        };
        let policy = AllocPolicy::MustSucceed;
        self.prepare(context, cluster, run_bytes, policy)?;
        let mut list = self.memory.request_list();
        let mut frames: Vec<Frame> = Vec::new();
        for _ in 0..lz4_window_pages(distance, end) {
            frames.push(list.allocate(policy)?);
        }
        let request = input_request(cluster, run_bytes)?;
        let input = context.window.get(self.storage(), request, policy)?;
        let decoder = context.decoder.get_or_create(&self.settings, &self.memory, policy)?;
        let decode = || decoder.decode_lz4_part(input, part, output, &mut frames);
        let decoded = self.decode_timer.time(decode);
        let failed = |error| Error::new(ErrorKind::Decode(error));
        decoded.map_err(failed).at(cluster.id.address.offset())?;
        context.counters.windowed = context.counters.windowed.wrapping_add(1);
        context.counters.decoded(end);
        Ok(())
    }

    /// Memory that a reader waits for: from the reserve, then from kept clusters, then from the
    /// system.
    pub(crate) fn demand_buffer(&self, bytes: usize) -> Result<Buffer> {
        Ok(self.memory.buffers().lease_from_reserve(bytes, |wanted| self.clusters.evict(wanted))?)
    }

    /// The same to read into, for a thread that holds nothing: the one that it kept, or a new one
    /// when other reads leave room.
    pub(crate) fn read_buffer(&self, bytes: usize) -> Result<ReadBuffer> {
        self.read_buffers.lease(bytes, || self.demand_buffer(bytes)).map(ReadBuffer)
    }

    /// The same for a prefetch, without waiting.
    pub(crate) fn best_effort_read_buffer(&self, bytes: usize) -> Option<ReadBuffer> {
        let lease = || self.best_effort_buffer(bytes);
        self.read_buffers.lease_best_effort(bytes, lease).map(ReadBuffer)
    }

    /// Whether an extent of `bytes` bytes is more than one reader's share of a reserve, and more
    /// than the window that would take its place.
    fn exceeds_reserve_share(&self, bytes: u64) -> bool {
        self.memory.reserve_share().is_some_and(|share| bytes > share.max(WINDOW_BYTES))
    }

    /// Memory for a prefetch, as far as it takes none from others: idle buffers, then kept
    /// clusters. Without a reserve also free bytes of the budget; with one nothing is mapped beyond
    /// it, and one reader's share stays for demands.
    pub(crate) fn best_effort_buffer(&self, bytes: usize) -> Option<Buffer> {
        let Some(share) = self.memory.reserve_share() else {
            // First, so that a refusal means that there is no room, and makes the windows of
            // readahead smaller.
            self.memory.preallocate(bytes, 1);
            return self.memory.buffer(bytes, AllocPolicy::MayFail).ok();
        };
        let buffers = self.memory.buffers();
        let wanted = share.saturating_add(u64::try_from(bytes).unwrap_or(u64::MAX));
        // Short blocks would serve little else.
        let length = bytes.max(MemoryPool::PREFAULT_BYTES);
        while buffers.idle_bytes() < wanted && buffers.grow_reserve(length) {}
        let lacking = wanted.saturating_sub(buffers.idle_bytes());
        if lacking > 0 && self.clusters.weight_bytes() >= lacking {
            // One half is for clusters that were prefetched for any reader and are not read yet.
            self.clusters.evict_used(lacking, self.memory.reserved_bytes() / 2);
        }
        buffers.lease_above_watermark(bytes, share).ok()
    }

    /// A number that changes while something is read.
    pub(crate) fn activity(&self) -> u64 {
        let cache = self.clusters.stats();
        self.decode_slots.acquisitions().wrapping_add(cache.hits).wrapping_add(cache.prefetched)
    }

    /// Frees up to `bytes` bytes that are only kept for speed; returns how many came back.
    pub(crate) fn shrink(&self, bytes: u64) -> u64 {
        let buffers = self.memory.buffers();
        let before = self.memory.budget().used_bytes();
        let freed = || before.saturating_sub(self.memory.budget().used_bytes());
        self.decode_slots.shrink();
        self.read_buffers.clear();
        self.clusters.evict(bytes);
        buffers.release_idle(bytes);
        let missing = bytes.saturating_sub(freed());
        if missing > 0 {
            self.queued_outputs.release(missing);
            buffers.release_idle(missing);
        }
        freed()
    }
}

/// The bytes to read for a cluster among the data.
fn input_request(cluster: &Cluster, run_bytes: usize) -> Result<InputRequest> {
    match cluster.id.address {
        Address::Data { device, offset } => {
            Ok(InputRequest { device, offset, bytes: cluster.encoded_length(), run_bytes })
        }
        Address::Metadata { offset, .. } => Err(Error::new(ErrorKind::AddressOverflow).at(offset)),
    }
}

fn codec_of(algorithm: AlgorithmId) -> Algorithm {
    match algorithm {
        AlgorithmId::Lz4 => Algorithm::Lz4,
        AlgorithmId::Lzma => Algorithm::Lzma,
        AlgorithmId::Deflate => Algorithm::Deflate,
        AlgorithmId::Zstd => Algorithm::Zstd,
    }
}

/// Copies an uncompressed extent, whose first `wrapped_bytes` stand at the end of its cluster.
fn unwrap_plain(input: &[u8], wrapped_bytes: u32, output: &mut [u8]) -> Result<()> {
    let wrapped = usize::try_from(wrapped_bytes).unwrap_or(usize::MAX);
    let split = wrapped.min(output.len());
    let too_long = ErrorKind::PlainTooLong {
        decoded: u64::try_from(output.len()).unwrap_or(u64::MAX),
        encoded: u64::try_from(input.len()).unwrap_or(u64::MAX),
    };
    let (first, rest) = output.split_at_mut(split);
    let at_end = input.len().checked_sub(wrapped).and_then(|at| input.get(at..)?.get(..split));
    match (at_end, input.get(..rest.len())) {
        (Some(at_end), Some(at_start)) => {
            first.copy_from_slice(at_end);
            rest.copy_from_slice(at_start);
            Ok(())
        }
        _ => Err(too_long.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shifted_bytes_stand_at_the_start() {
        let mut output = [0u8; 3];
        unwrap_plain(b"abcdef", 0, &mut output).unwrap();
        assert_eq!(&output, b"abc");
    }

    #[test]
    fn interlaced_bytes_stand_at_their_place_in_the_block() {
        // A block of 8 whose extent starts at byte 5: three bytes fill it up, the rest wraps.
        let mut output = [0u8; 6];
        unwrap_plain(b"456..123", 3, &mut output).unwrap();
        assert_eq!(&output, b"123456");
        let mut output = [0u8; 2];
        unwrap_plain(b"456..123", 3, &mut output).unwrap();
        assert_eq!(&output, b"12");
    }

    #[test]
    fn a_cluster_that_is_too_short_is_refused() {
        assert!(unwrap_plain(b"ab", 0, &mut [0; 3]).is_err());
        assert!(unwrap_plain(b"ab", 3, &mut [0; 1]).is_err());
    }
}

//! From a cluster's bytes in the image to the bytes of its extent: fetched, decoded once, shared.
//!
//! The engine is what travels to other threads: it owns all that decoding touches, and knows no tree,
//! no inode and no metadata. Clusters that lie among the metadata are fetched by the caller.

mod context_pool;
mod counters;
mod decode_batch;
mod decode_timer;
mod decoded;
mod reserve;
mod stats;
mod window;
mod workers;

use ferrofs_codec::{Algorithm, DecodeMode, DecoderSettings, Lz4Part, Padding, lz4_window_pages};
use ferrofs_ondisk::Superblock;
use ferrofs_ondisk::compression::{AlgorithmId, CompressionConfig};
use ferrofs_workers::memory::{AllocPolicy, Frame};
use ferrofs_workers::single_flight::{FillPermit, Lookup, SingleFlight, Urgency, Waiter};

pub(crate) use context_pool::{ContextPool, DecodeContext, DecodeSlot};
pub(crate) use counters::DecodeCounters;
pub(crate) use decode_batch::{BATCH_MIN_BYTES, DecodeBatch, GenerationToken, run_lengths};
pub(crate) use decode_timer::DecodeTimer;
pub(crate) use decoded::DecodedCluster;
pub use stats::ImageStats;
pub(crate) use window::{InputRequest, InputWindow};
pub use workers::DecodeWorkers;

use crate::devices::Devices;
use crate::error::{Error, ErrorContext, ErrorKind, Result};
use crate::extent::{Cluster, ClusterId, ClusterPlace, Coding};
use crate::memory::MemoryPool;

/// Extents up to this length are decoded whole, in bytes, unless a reserve is too small for them: a window would
/// save little.
const WINDOW_EXTENT_BYTES: u64 = 128 << 10;

/// Looks before a thread sleeps, about a microsecond apart.
const LOOKS: u32 = 30;
/// Pauses between two looks.
const PAUSES_A_LOOK: u32 = 32;

/// A claim on the decoded bytes of a cluster that this thread has to see through.
pub(crate) type ClusterPermit = FillPermit<ClusterId, DecodedCluster>;

/// One who waits for the decoded bytes of a cluster.
pub(crate) type ClusterWaiter = Waiter<ClusterId, DecodedCluster>;

/// Fetches and decodes.
#[derive(Debug)]
pub(crate) struct Engine {
    pub(crate) devices: Devices,
    pub(crate) memory: MemoryPool,
    pub(crate) decode_slots: ContextPool,
    pub(crate) clusters: SingleFlight<ClusterId, DecodedCluster>,
    pub(crate) workers: DecodeWorkers,
    pub(crate) settings: DecoderSettings,
    pub(crate) padding: Padding,
    pub(crate) decode_timer: DecodeTimer,
}

/// The decoders that an image needs.
pub(crate) fn settings(compression: &CompressionConfig) -> DecoderSettings {
    DecoderSettings {
        lz4_max_distance: compression.lz4_max_distance,
        lzma_dictionary_bytes: compression.lzma_dictionary_bytes,
        deflate: compression.has(AlgorithmId::Deflate),
        zstd_window_log: compression.zstd_window_log,
    }
}

/// On which side the image pads its clusters.
pub(crate) fn padding(sb: &Superblock) -> Padding {
    if sb.has_left_padding() { Padding::Left } else { Padding::Right }
}

impl Engine {
    /// Decodes the front of `cluster`, as much as `output` holds, from its bytes in the image.
    pub(crate) fn decode(
        &self,
        context: &mut DecodeContext,
        cluster: &Cluster,
        input: &[u8],
        output: &mut [u8],
    ) -> Result<()> {
        let decoder = (&mut context.decoder, AllocPolicy::MustSucceed);
        self.decode_with(decoder, cluster, input, output)?;
        context.count(cluster, output.len());
        Ok(())
    }

    fn decode_with(
        &self,
        (lazy_decoder, policy): (&mut context_pool::LazyDecoder, AllocPolicy),
        cluster: &Cluster,
        input: &[u8],
        output: &mut [u8],
    ) -> Result<()> {
        match cluster.id.coding {
            Coding::Plain { wrapped_bytes } => unwrap_plain(input, wrapped_bytes, output),
            Coding::Compressed(algorithm) => {
                let decoder = lazy_decoder.get_or_create(&self.settings, &self.memory, policy)?;
                let is_whole = u64::try_from(output.len()) == Ok(cluster.decoded_bytes);
                let want = if is_whole && !cluster.is_partial {
                    DecodeMode::Whole
                } else {
                    DecodeMode::Prefix
                };
                let algorithm = codec_of(algorithm);
                let decode = || decoder.decode(algorithm, self.padding, input, output, want);
                let decoded = self.decode_timer.of(decode);
                decoded.map_err(|error| Error::new(ErrorKind::Decode(error)))
            }
        }
        .at(cluster.id.place.offset())
    }

    /// Fetches and decodes the front of a cluster that lies among the data into `output`. `run_bytes` is
    /// how far the clusters reach that come next, as in [`InputRequest`].
    pub(crate) fn decode_data(
        &self,
        context: &mut DecodeContext,
        (cluster, run_bytes): (&Cluster, usize),
        output: &mut [u8],
        policy: AllocPolicy,
    ) -> Result<()> {
        let wanted = input_request(cluster, run_bytes)?;
        let input = context.window.get(&self.devices, &self.memory, wanted, policy)?;
        self.decode_with((&mut context.decoder, policy), cluster, input, output)?;
        context.count(cluster, output.len());
        Ok(())
    }

    /// Has what decoding needs beside the output: the bytes of a cluster among the data, and a decoder.
    /// It is asked for before the output: who has that waits for no more memory, and gives it back.
    pub(crate) fn prepare(
        &self,
        context: &mut DecodeContext,
        (cluster, run_bytes): (&Cluster, usize),
        policy: AllocPolicy,
    ) -> Result<()> {
        if let ClusterPlace::Data(_) = cluster.id.place {
            let wanted = input_request(cluster, run_bytes)?;
            context.window.get(&self.devices, &self.memory, wanted, policy)?;
        }
        if cluster.is_compressed() {
            context.decoder.get_or_create(&self.settings, &self.memory, policy)?;
        }
        Ok(())
    }

    /// The decoded bytes of a cluster among the data, shared with everybody who asks for them.
    pub(crate) fn shared_data(
        &self,
        slot: &mut DecodeSlot<'_>,
        cluster: &Cluster,
    ) -> Result<DecodedCluster> {
        self.shared(slot, cluster, |slot, output| {
            self.decode_data(slot, (cluster, 0), output, AllocPolicy::MustSucceed)
        })
    }

    /// The decoded bytes of a cluster: from the cache, from another thread that is at it, or by
    /// `decode` here. A failure of another thread is not ours: then it is done here.
    pub(crate) fn shared(
        &self,
        slot: &mut DecodeSlot<'_>,
        cluster: &Cluster,
        decode: impl Fn(&mut DecodeSlot<'_>, &mut [u8]) -> Result<()>,
    ) -> Result<DecodedCluster> {
        let bytes = usize::try_from(cluster.decoded_bytes).unwrap_or(usize::MAX);
        loop {
            match self.clusters.lookup(cluster.id, bytes, Urgency::Demand) {
                Lookup::Hit(decoded) => return Ok(decoded),
                Lookup::Miss(mut permit) => {
                    if permit.begin() {
                        return self.fill_cluster(slot, permit, (cluster, 0), decode);
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

    /// Waits for what another thread decodes; none if it had no luck, and then it is to be claimed
    /// again. It looks for as long as LZ4 takes for a cluster before it sleeps: to be woken takes as long.
    pub(crate) fn wait_for(&self, mut waiter: ClusterWaiter) -> Option<DecodedCluster> {
        if self.workers.parallelism() > 1 {
            for _ in 0..LOOKS {
                match waiter.try_wait() {
                    Ok(decoded) => return decoded,
                    Err(still) => waiter = still,
                }
                (0..PAUSES_A_LOOK).for_each(|_| std::hint::spin_loop());
            }
        }
        waiter.wait()
    }

    /// Decodes what was claimed and begun, and tells everybody.
    pub(crate) fn fill_cluster(
        &self,
        slot: &mut DecodeSlot<'_>,
        permit: ClusterPermit,
        (cluster, run_bytes): (&Cluster, usize),
        decode: impl FnOnce(&mut DecodeSlot<'_>, &mut [u8]) -> Result<()>,
    ) -> Result<DecodedCluster> {
        self.prepare(slot, (cluster, run_bytes), AllocPolicy::MustSucceed)?;
        let bytes = usize::try_from(cluster.decoded_bytes).unwrap_or(usize::MAX);
        let mut output = self.demand_buffer(bytes)?;
        decode(slot, &mut output)?;
        let decoded = DecodedCluster::from(output);
        permit.publish(decoded.clone());
        Ok(decoded)
    }

    /// Whether a part of an LZ4 extent that ends at `end` should go through a window: where the whole
    /// extent could only be had by waiting for memory, or is more than a reserve is for.
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
        let has_room = self.memory.has_room_for(bytes)
            || self.memory.has_room_for(bytes.saturating_sub(self.reclaimable_bytes()));
        !has_room
    }

    /// Memory that comes back as soon as somebody asks for it: idle buffers and the cache. A cluster
    /// that went through a window for their sake would be decoded again for the next read of it.
    fn reclaimable_bytes(&self) -> u64 {
        self.memory.buffers().idle_bytes().saturating_add(self.clusters.weight_bytes())
    }

    /// Decodes the part of an LZ4 cluster from byte `skip` on through a window of at most 17 frames,
    /// however long the extent is. The whole is not kept, and nobody is told.
    pub(crate) fn decode_window(
        &self,
        context: &mut DecodeContext,
        (cluster, skip): (&Cluster, usize),
        output: &mut [u8],
    ) -> Result<()> {
        let ClusterPlace::Data(offset) = cluster.id.place else {
            return Err(Error::new(ErrorKind::AddressOverflow).at(cluster.id.place.offset()));
        };
        let bytes = usize::try_from(cluster.id.encoded_bytes).unwrap_or(usize::MAX);
        let end = skip.saturating_add(output.len());
        let distance = self.settings.lz4_max_distance.unwrap_or(u16::MAX);
        let whole = usize::try_from(cluster.decoded_bytes).unwrap_or(usize::MAX);
        let (padding, want) = (self.padding, DecodeMode::Prefix);
        let part = Lz4Part { padding, extent_bytes: whole, skip_bytes: skip, want };
        let policy = AllocPolicy::MustSucceed;
        self.prepare(context, (cluster, bytes), policy)?;
        let mut list = self.memory.request_list();
        let mut frames: Vec<Frame> = Vec::new();
        for _ in 0..lz4_window_pages(distance, end) {
            frames.push(list.allocate(policy)?);
        }
        let wanted = InputRequest { device: 0, offset, bytes, run_bytes: bytes };
        let input = context.window.get(&self.devices, &self.memory, wanted, policy)?;
        let decoder = context.decoder.get_or_create(&self.settings, &self.memory, policy)?;
        let decode = || decoder.decode_lz4_part(input, part, output, &mut frames);
        let decoded = self.decode_timer.of(decode);
        decoded.map_err(|error| Error::new(ErrorKind::Decode(error))).at(offset)?;
        context.counters.windowed = context.counters.windowed.wrapping_add(1);
        context.counters.decoded(end);
        Ok(())
    }

    /// A number that changes while something is read.
    pub(crate) fn activity(&self) -> u64 {
        let cache = self.clusters.stats();
        self.decode_slots.acquisitions().wrapping_add(cache.hits).wrapping_add(cache.prefetched)
    }

    /// Gives memory back that is only kept to be faster.
    pub(crate) fn shed(&self, bytes: u64) -> u64 {
        let buffers = self.memory.buffers();
        let before = self.memory.budget().used_bytes();
        self.decode_slots.shed();
        self.clusters.evict(bytes);
        buffers.release_idle(bytes);
        before.saturating_sub(self.memory.budget().used_bytes())
    }
}

/// What is to be read for a cluster among the data.
fn input_request(cluster: &Cluster, run_bytes: usize) -> Result<InputRequest> {
    let ClusterPlace::Data(offset) = cluster.id.place else {
        return Err(Error::new(ErrorKind::AddressOverflow).at(cluster.id.place.offset()));
    };
    let bytes = usize::try_from(cluster.id.encoded_bytes).unwrap_or(usize::MAX);
    Ok(InputRequest { device: 0, offset, bytes, run_bytes })
}

fn codec_of(algorithm: AlgorithmId) -> Algorithm {
    match algorithm {
        AlgorithmId::Lz4 => Algorithm::Lz4,
        AlgorithmId::Lzma => Algorithm::Lzma,
        AlgorithmId::Deflate => Algorithm::Deflate,
        AlgorithmId::Zstd => Algorithm::Zstd,
    }
}

/// Copies a stored extent, whose first `wrapped_bytes` stand at the end of its cluster.
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
mod batch_tests;

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

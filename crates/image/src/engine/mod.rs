//! From a cluster's bytes in the image to the bytes of its extent: fetched, decoded once, shared.
//!
//! The engine is what travels to other threads: it owns all that decoding touches, and knows no tree,
//! no inode and no metadata. Clusters that lie among the metadata are fetched by the caller.

mod decode_times;
mod decoded;
mod hand_out;
mod keeper;
mod reserve;
mod station;
mod tally;
mod window;
mod workers;

use ferrofs_codec::{Algorithm, Lz4Part, Padding, Settings, Want, lz4_window_pages};
use ferrofs_ondisk::Superblock;
use ferrofs_ondisk::compression::{AlgorithmId, Compression};
use ferrofs_workers::claims::{Claim, Claims, Ticket, Urgency, Waiter};
use ferrofs_workers::memory::{Frame, Policy};

pub(crate) use decode_times::DecodeTimes;
pub(crate) use decoded::Decoded;
pub(crate) use hand_out::{ERRAND_BYTES, Errand, Wish, reaches};
pub(crate) use keeper::Keeper;
pub(crate) use station::{Scratch, Station, Stations};
pub(crate) use tally::Tally;
pub(crate) use window::{InputWindow, Wanted};
pub use workers::DecodeWorkers;

use crate::cluster::{Cluster, ClusterId, ClusterPlace, Coding};
use crate::devices::Devices;
use crate::error::{Error, ErrorKind, Place, Result};
use crate::memory::Memory;

/// Extents up to this length are decoded whole, in bytes, unless a reserve is too small for them: a window would
/// save little.
const WINDOW_EXTENT_BYTES: u64 = 128 << 10;

/// Looks before a thread sleeps, about a microsecond apart.
const LOOKS: u32 = 30;
/// Pauses between two looks.
const PAUSES_A_LOOK: u32 = 32;

/// A claim on the decoded bytes of a cluster that this thread has to see through.
pub(crate) type Mine = Ticket<ClusterId, Decoded>;

/// One who waits for the decoded bytes of a cluster.
pub(crate) type Waiting = Waiter<ClusterId, Decoded>;

/// Fetches and decodes.
#[derive(Debug)]
pub(crate) struct Engine {
    pub(crate) devices: Devices,
    pub(crate) memory: Memory,
    pub(crate) stations: Stations,
    pub(crate) clusters: Claims<ClusterId, Decoded>,
    pub(crate) workers: DecodeWorkers,
    pub(crate) settings: Settings,
    pub(crate) padding: Padding,
    pub(crate) decode_times: DecodeTimes,
}

/// The decoders that an image needs.
pub(crate) fn settings(compression: &Compression) -> Settings {
    Settings {
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
        scratch: &mut Scratch,
        cluster: &Cluster,
        input: &[u8],
        output: &mut [u8],
    ) -> Result<()> {
        let context = (&mut scratch.context, Policy::MustSucceed);
        self.decode_with(context, cluster, input, output)?;
        scratch.count(cluster, output.len());
        Ok(())
    }

    fn decode_with(
        &self,
        (context, policy): (&mut station::Context, Policy),
        cluster: &Cluster,
        input: &[u8],
        output: &mut [u8],
    ) -> Result<()> {
        match cluster.id.coding {
            Coding::Plain { wrapped_bytes } => unwrap_plain(input, wrapped_bytes, output),
            Coding::Compressed(algorithm) => {
                let decoder = context.decoder(&self.settings, &self.memory, policy)?;
                let is_whole = u64::try_from(output.len()) == Ok(cluster.decoded_bytes);
                let want = if is_whole && !cluster.is_partial { Want::Whole } else { Want::Prefix };
                let algorithm = codec_of(algorithm);
                let decode = || decoder.decode(algorithm, self.padding, input, output, want);
                let decoded = self.decode_times.of(decode);
                decoded.map_err(|error| Error::new(ErrorKind::Decode(error)))
            }
        }
        .at(cluster.id.place.offset())
    }

    /// Fetches and decodes the front of a cluster that lies among the data into `output`. `reach` is
    /// how far the clusters reach that come next, as in [`Wanted`].
    pub(crate) fn decode_data(
        &self,
        scratch: &mut Scratch,
        (cluster, reach): (&Cluster, usize),
        output: &mut [u8],
        policy: Policy,
    ) -> Result<()> {
        let wanted = wanted(cluster, reach)?;
        let input = scratch.window.get(&self.devices, &self.memory, wanted, policy)?;
        self.decode_with((&mut scratch.context, policy), cluster, input, output)?;
        scratch.count(cluster, output.len());
        Ok(())
    }

    /// Has what decoding needs beside the output: the bytes of a cluster among the data, and a decoder.
    /// It is asked for before the output: who has that waits for no more memory, and gives it back.
    pub(crate) fn prepare(
        &self,
        scratch: &mut Scratch,
        (cluster, reach): (&Cluster, usize),
        policy: Policy,
    ) -> Result<()> {
        if let ClusterPlace::Data(_) = cluster.id.place {
            let wanted = wanted(cluster, reach)?;
            scratch.window.get(&self.devices, &self.memory, wanted, policy)?;
        }
        if cluster.is_compressed() {
            scratch.context.decoder(&self.settings, &self.memory, policy)?;
        }
        Ok(())
    }

    /// The decoded bytes of a cluster among the data, shared with everybody who asks for them.
    pub(crate) fn shared_data(
        &self,
        station: &mut Station<'_>,
        cluster: &Cluster,
    ) -> Result<Decoded> {
        self.shared(station, cluster, |station, output| {
            self.decode_data(station, (cluster, 0), output, Policy::MustSucceed)
        })
    }

    /// The decoded bytes of a cluster: from the cache, from another thread that is at it, or by
    /// `decode` here. A failure of another thread is not ours: then it is done here.
    pub(crate) fn shared(
        &self,
        station: &mut Station<'_>,
        cluster: &Cluster,
        decode: impl Fn(&mut Station<'_>, &mut [u8]) -> Result<()>,
    ) -> Result<Decoded> {
        let bytes = usize::try_from(cluster.decoded_bytes).unwrap_or(usize::MAX);
        loop {
            match self.clusters.claim(cluster.id, bytes, Urgency::Demand) {
                Claim::Ready(decoded) => return Ok(decoded),
                Claim::Mine(mut mine) => {
                    if mine.begin() {
                        return self.see_through(station, mine, (cluster, 0), decode);
                    }
                }
                Claim::Pending(waiter) => {
                    if let Some(decoded) = self.wait_for(waiter) {
                        return Ok(decoded);
                    }
                }
            }
        }
    }

    /// Waits for what another thread decodes; none if it had no luck, and then it is to be claimed
    /// again. It looks for as long as LZ4 takes for a cluster before it sleeps: to be woken takes as long.
    pub(crate) fn wait_for(&self, mut waiter: Waiting) -> Option<Decoded> {
        if self.workers.parallelism() > 1 {
            for _ in 0..LOOKS {
                match waiter.try_now() {
                    Ok(decoded) => return decoded,
                    Err(still) => waiter = still,
                }
                (0..PAUSES_A_LOOK).for_each(|_| std::hint::spin_loop());
            }
        }
        waiter.wait()
    }

    /// Decodes what was claimed and begun, and tells everybody.
    pub(crate) fn see_through(
        &self,
        station: &mut Station<'_>,
        mine: Mine,
        (cluster, reach): (&Cluster, usize),
        decode: impl FnOnce(&mut Station<'_>, &mut [u8]) -> Result<()>,
    ) -> Result<Decoded> {
        self.prepare(station, (cluster, reach), Policy::MustSucceed)?;
        let bytes = usize::try_from(cluster.decoded_bytes).unwrap_or(usize::MAX);
        let mut output = self.demand_buffer(bytes)?;
        decode(station, &mut output)?;
        let decoded = Decoded::from(output);
        mine.publish(decoded.clone());
        Ok(decoded)
    }

    /// Whether a part of an LZ4 extent that ends at `end` should go through a window: where the whole
    /// extent could only be had by waiting for memory, or is more than a reserve is for.
    pub(crate) fn prefers_window(&self, cluster: &Cluster) -> bool {
        let bytes = cluster.decoded_bytes;
        if cluster.id.coding != Coding::Compressed(AlgorithmId::Lz4) {
            return false;
        }
        if self.is_beyond_reserve(bytes) {
            return true;
        }
        if bytes <= WINDOW_EXTENT_BYTES {
            return false;
        }
        let has_room = self.memory.has_room_for(bytes)
            || self.memory.has_room_for(bytes.saturating_sub(self.spare_bytes()));
        !has_room
    }

    /// Memory that comes back as soon as somebody asks for it: idle buffers and the cache. A cluster
    /// that went through a window for their sake would be decoded again for the next read of it.
    fn spare_bytes(&self) -> u64 {
        self.memory.buffers().idle_bytes().saturating_add(self.clusters.weight_bytes())
    }

    /// Decodes the part of an LZ4 cluster from byte `skip` on through a window of at most 17 frames,
    /// however long the extent is. The whole is not kept, and nobody is told.
    pub(crate) fn decode_window(
        &self,
        scratch: &mut Scratch,
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
        let (padding, want) = (self.padding, Want::Prefix);
        let part = Lz4Part { padding, extent_bytes: whole, skip_bytes: skip, want };
        let policy = Policy::MustSucceed;
        self.prepare(scratch, (cluster, bytes), policy)?;
        let mut list = self.memory.request_list();
        let mut frames: Vec<Frame> = Vec::new();
        for _ in 0..lz4_window_pages(distance, end) {
            frames.push(list.take(policy)?);
        }
        let wanted = Wanted { device: 0, offset, bytes, reach: bytes };
        let input = scratch.window.get(&self.devices, &self.memory, wanted, policy)?;
        let decoder = scratch.context.decoder(&self.settings, &self.memory, policy)?;
        let decode = || decoder.decode_lz4_part(input, part, output, &mut frames);
        let decoded = self.decode_times.of(decode);
        decoded.map_err(|error| Error::new(ErrorKind::Decode(error))).at(offset)?;
        scratch.tally.windowed = scratch.tally.windowed.wrapping_add(1);
        scratch.tally.decoded(end);
        Ok(())
    }

    /// A number that changes while something is read.
    pub(crate) fn activity(&self) -> u64 {
        let cache = self.clusters.counts();
        self.stations.leases().wrapping_add(cache.served).wrapping_add(cache.prefetched)
    }

    /// Gives memory back that is only kept to be faster.
    pub(crate) fn shed(&self, bytes: u64) -> u64 {
        let buffers = self.memory.buffers();
        let before = self.memory.budget().used_bytes();
        self.stations.shed();
        self.clusters.shed(bytes);
        buffers.give_back(bytes);
        before.saturating_sub(self.memory.budget().used_bytes())
    }
}

/// What is to be read for a cluster among the data.
fn wanted(cluster: &Cluster, reach: usize) -> Result<Wanted> {
    let ClusterPlace::Data(offset) = cluster.id.place else {
        return Err(Error::new(ErrorKind::AddressOverflow).at(cluster.id.place.offset()));
    };
    let bytes = usize::try_from(cluster.id.encoded_bytes).unwrap_or(usize::MAX);
    Ok(Wanted { device: 0, offset, bytes, reach })
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
mod chain_tests;

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

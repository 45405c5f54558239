//! From a cluster's bytes in the image to the bytes of its extent.

use std::sync::Arc;

use ferrofs_codec::{Algorithm, Padding, Settings, Want};
use ferrofs_ondisk::Superblock;
use ferrofs_ondisk::compression::{AlgorithmId, Compression};

use crate::cache::Shared;
use crate::cluster::{Cluster, ClusterPlace, Coding};
use crate::error::{Error, ErrorKind, Place, Result};
use crate::image::Core;
use crate::scratch::{Context, Scratch};
use crate::source;

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

impl Core {
    /// Decodes the front of `cluster`, as much as `output` holds.
    pub(crate) fn decode(
        &self,
        context: &mut Context,
        cluster: &Cluster,
        input: &[u8],
        output: &mut [u8],
    ) -> Result<()> {
        match cluster.id.coding {
            Coding::Plain { wrapped_bytes } => unwrap_plain(input, wrapped_bytes, output),
            Coding::Compressed(algorithm) => {
                let decoder = context.decoder(&self.settings)?;
                let is_whole = u64::try_from(output.len()) == Ok(cluster.decoded_bytes);
                let want = if is_whole && !cluster.is_partial { Want::Whole } else { Want::Prefix };
                let decoded =
                    decoder.decode(codec_of(algorithm), self.padding, input, output, want);
                decoded.map_err(|error| Error::new(ErrorKind::Decode(error)))
            }
        }
        .at(cluster.id.place.offset())
    }

    /// Fetches and decodes the front of `cluster` into `output`.
    pub(crate) fn decode_into(
        &self,
        scratch: &mut Scratch,
        cluster: &Cluster,
        output: &mut [u8],
    ) -> Result<()> {
        let bytes = usize::try_from(cluster.id.encoded_bytes).unwrap_or(usize::MAX);
        match cluster.id.place {
            ClusterPlace::Data(offset) => {
                let input = scratch.window.get(&self.devices, 0, offset, bytes)?;
                self.decode(&mut scratch.context, cluster, input, output)
            }
            ClusterPlace::Meta(space, offset) => {
                let input = self.meta(space, offset, bytes)?;
                self.decode(&mut scratch.context, cluster, &input, output)
            }
        }
    }

    /// The decoded bytes of `cluster`, shared with everybody who asks for them.
    pub(crate) fn shared_cluster(
        &self,
        scratch: &mut Scratch,
        cluster: &Cluster,
    ) -> Result<Shared> {
        let bytes = usize::try_from(cluster.decoded_bytes).unwrap_or(usize::MAX);
        if let Some(shared) = self.clusters.get(&cluster.id, bytes) {
            return Ok(shared);
        }
        let mut output = source::zeroed(bytes)?;
        self.decode_into(scratch, cluster, &mut output)?;
        let shared = Arc::new(output);
        self.clusters.put(cluster.id, &shared);
        Ok(shared)
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

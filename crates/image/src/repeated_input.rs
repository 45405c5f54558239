//! The bound of what one read fetches again and again.
//!
//! Extents of a sound image may share a cluster, but its clusters share no bytes. In a damaged
//! image, clusters of a mebibyte can begin at every byte, and an extent of a few bytes needs all of
//! its cluster: a read of 128 KiB would fetch 512 MiB, from an image of two. So a read gets an error
//! if its clusters overlap by much. What does not overlap is in proportion to the image. Called by
//! `read` and `open_file` before anything is fetched.

use crate::error::{Error, ErrorKind, Result};
use crate::extent::Cluster;

/// Bytes that any read may fetch again, beside as many as it returns. One block can be a cluster in
/// several forms: uncompressed, and beginning elsewhere.
const MIN_BYTES: u64 = 4 << 20;

/// Checks the clusters that a read of `read_bytes` bytes is to fetch.
///
/// # Errors
/// [`ErrorKind::WorkLimit`]: they overlap by too much.
pub(crate) fn check_repeated_input<'c>(
    clusters: impl Iterator<Item = &'c Cluster> + Clone,
    read_bytes: usize,
) -> Result<()> {
    let limit = u64::try_from(read_bytes).unwrap_or(u64::MAX).saturating_add(MIN_BYTES);
    let all = clusters.clone().fold(0, |sum: u64, one| sum.saturating_add(encoded_bytes(one)));
    if all <= limit || overlap(clusters) <= limit {
        return Ok(());
    }
    Err(Error::new(ErrorKind::WorkLimit { what: "compressed clusters that overlap", limit }))
}

fn encoded_bytes(cluster: &Cluster) -> u64 {
    u64::from(cluster.id.encoded_bytes)
}

/// Bytes of different clusters that another one has fetched before.
fn overlap<'c>(clusters: impl Iterator<Item = &'c Cluster>) -> u64 {
    let mut ranges: Vec<_> = clusters
        .map(|cluster| (cluster.id.address.number(), encoded_bytes(cluster), cluster.id))
        .collect();
    ranges.sort_unstable_by_key(|(start, bytes, _)| (*start, *bytes));
    // Those of one cluster lie together, as good as always: then it is fetched once.
    ranges.dedup_by_key(|(_, _, id)| *id);
    let (mut overlap, mut reached) = (0u64, 0u64);
    for (start, bytes, _) in ranges {
        let end = start.saturating_add(bytes);
        overlap = overlap.saturating_add(reached.min(end).saturating_sub(start));
        reached = reached.max(end);
    }
    overlap
}

#[cfg(test)]
mod tests {
    use ferrofs_ondisk::compression::AlgorithmId;

    use super::*;
    use crate::extent::{Address, ClusterId, Coding};

    fn cluster(offset: u64, encoded_bytes: u32, decoded_bytes: u64) -> Cluster {
        let coding = Coding::Compressed(AlgorithmId::Lz4);
        let id = ClusterId { address: Address::unified(offset), encoded_bytes, coding };
        Cluster { id, decoded_bytes, is_partial: true }
    }

    #[test]
    fn clusters_side_by_side_and_many_extents_of_one_are_free() {
        let apart: Vec<_> = (0..512).map(|number| cluster(number << 20, 1 << 20, 8)).collect();
        check_repeated_input(apart.iter(), 4096).unwrap();
        let one: Vec<_> = (0..512).map(|number| cluster(4096, 1 << 20, number)).collect();
        check_repeated_input(one.iter(), 4096).unwrap();
    }

    #[test]
    fn the_bytes_that_clusters_share_have_a_limit() {
        let bytes = 1 << 20;
        let shifted = |count: u64| -> Vec<_> {
            (0..count).map(|number| cluster(number * 16, bytes, 8)).rev().collect()
        };
        assert_eq!(overlap(shifted(3).iter()), 2 * (u64::from(bytes) - 16));
        check_repeated_input(shifted(5).iter(), 4096).unwrap();
        let error = check_repeated_input(shifted(6).iter(), 4096).unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::WorkLimit { limit: 4_198_400, .. }), "{error}");
        check_repeated_input(shifted(6).iter(), 1 << 20).unwrap();
    }
}

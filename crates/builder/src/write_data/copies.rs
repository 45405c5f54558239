//! Resolves copied runs: an extent of another place can be used again from its start on, as long as it
//! is followed by the extents behind it. It decides nothing about where they may lie.

use crate::data::{DataExtent, InlineExtent, PackedFragment};

/// The place that is copied from, as far as it is stored.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CopySource<'s> {
    /// Its extents.
    pub(crate) extents: &'s [DataExtent],
    /// Where each of them starts in the file.
    pub(crate) starts: &'s [u64],
    /// Its end, where it lies behind its inode.
    pub(crate) inline: Option<&'s InlineExtent>,
    /// Its end, where it lies in the packed inode.
    pub(crate) fragment: Option<PackedFragment>,
}

/// A run that is stored elsewhere.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ResolvedCopy {
    /// Its extents.
    pub(crate) extents: Vec<DataExtent>,
    /// Its end, to be stored behind the inode of the copy, too.
    pub(crate) inline: Option<InlineExtent>,
    /// Its end in the packed inode.
    pub(crate) fragment: Option<PackedFragment>,
}

impl CopySource<'_> {
    /// As much of the run of `bytes` from `offset` on as can be had from here, from its start on.
    /// `ends_file` says that the copy is the end of its file, as only there the ends of files can be used.
    pub(crate) fn resolve(&self, offset: u64, bytes: u64, ends_file: bool) -> ResolvedCopy {
        let mut resolved = ResolvedCopy::default();
        let index = self.starts.partition_point(|&start| start < offset);
        let (mut at, end) = (offset, offset.saturating_add(bytes));
        let extents = self.starts.iter().zip(self.extents).skip(index);
        for (&start, extent) in extents {
            if start != at || at == end {
                break;
            }
            let taken = extent.bytes.min(end - at);
            let is_cut = taken < extent.bytes && extent.algorithm.is_some();
            let partial = extent.partial || is_cut;
            resolved.extents.push(DataExtent { bytes: taken, partial, ..*extent });
            at += taken;
        }
        let last = self.starts.last().zip(self.extents.last());
        let apart = last.map_or(0, |(start, extent)| start.saturating_add(extent.bytes));
        if ends_file && at < end && at >= apart {
            let left = end - at;
            resolved.fragment = self.fragment.and_then(|fragment| {
                let skipped = at - apart;
                let fits = skipped.checked_add(left).is_some_and(|used| used <= fragment.bytes);
                fits.then_some(PackedFragment { bytes: left, offset: fragment.offset + skipped })
            });
            let inline = self.inline.filter(|inline| at == apart && left == inline.bytes);
            resolved.inline = inline.cloned();
        }
        resolved
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ferrofs_ondisk::compression::AlgorithmId;

    fn extent(bytes: u64, address: u64, algorithm: Option<AlgorithmId>) -> DataExtent {
        DataExtent { bytes, algorithm, address, pcluster_bytes: 4096, partial: false }
    }

    fn extents() -> Vec<DataExtent> {
        let lz4 = Some(AlgorithmId::Lz4);
        vec![extent(10_000, 4096, lz4), extent(4096, 8192, None), extent(9000, 12288, lz4)]
    }

    fn source(extents: &[DataExtent]) -> CopySource<'_> {
        CopySource { extents, starts: &[0, 10_000, 14_096], inline: None, fragment: None }
    }

    #[test]
    fn a_copy_takes_extents_until_it_ends_and_the_last_in_part() {
        let extents = extents();
        let resolved = source(&extents).resolve(10_000, 4096 + 100, false);
        assert_eq!(resolved.extents.len(), 2);
        assert_eq!(resolved.extents[0], extents[1]);
        assert_eq!(resolved.extents[1], DataExtent { bytes: 100, partial: true, ..extents[2] });
    }

    #[test]
    fn a_plain_extent_in_part_is_not_called_partial() {
        let extents = extents();
        let resolved = source(&extents).resolve(10_000, 100, false);
        assert_eq!(resolved.extents, [DataExtent { bytes: 100, ..extents[1] }]);
    }

    #[test]
    fn what_does_not_begin_with_an_extent_cannot_be_copied() {
        assert_eq!(source(&extents()).resolve(10_001, 3000, true), ResolvedCopy::default());
        assert_eq!(source(&extents()).resolve(30_000, 3000, true), ResolvedCopy::default());
    }

    #[test]
    fn the_end_of_a_file_is_copied_to_the_end_of_a_file_only() {
        let extents = extents();
        let fragment = Some(PackedFragment { bytes: 50, offset: 7 });
        let source = CopySource { fragment, ..source(&extents) };
        let resolved = source.resolve(14_096, 9050, true);
        assert_eq!((resolved.extents.len(), resolved.fragment), (1, fragment));
        assert_eq!(source.resolve(14_096, 9050, false).fragment, None);
        let part = source.resolve(23_096 + 10, 20, true).fragment;
        assert_eq!(part, Some(PackedFragment { bytes: 20, offset: 17 }));
        assert_eq!(source.resolve(23_096 + 10, 41, true).fragment, None);
    }
}

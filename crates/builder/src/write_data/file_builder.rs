//! The file that is being committed: its extents so far, which extents its index can hold, and which extents of
//! earlier ranges a copy can use.

use crate::compress::batch::PlacedExtent;
use crate::data_map::{CompressedData, DataExtent, FileData, InlineExtent, PackedFragment};

/// A file of which some ranges are committed.
#[derive(Debug, Default)]
pub(crate) struct FileBuilder {
    /// Its extents so far.
    pub(crate) extents: Vec<DataExtent>,
    /// Where each of them starts.
    pub(crate) starts: Vec<u64>,
    /// Where the next range starts.
    pub(crate) at: u64,
    /// Its end, behind its inode.
    pub(crate) inline: Option<InlineExtent>,
    /// Its end, in the packed inode.
    pub(crate) fragment: Option<PackedFragment>,
    /// The bytes from here on up to `at` have no place yet, since their encoding ends where no
    /// extent can end.
    pub(crate) reencode_from: Option<u64>,
    /// An extent lies at the place of another one, so that the index is a long one.
    pub(crate) is_shared: bool,
    /// Where whole blocks of a flat file lie: the first byte, and the one behind the last.
    pub(crate) flat: Option<(u64, u64)>,
    /// The end of a flat file.
    pub(crate) flat_tail: Option<Box<[u8]>>,
    /// It is nothing but a hole.
    pub(crate) is_hole: bool,
    /// It is kept in chunks.
    pub(crate) is_chunked: bool,
    /// The blocks of its chunks.
    pub(crate) chunks: Vec<Option<u64>>,
}

impl FileBuilder {
    /// Adds an extent at the end.
    pub(crate) fn push(&mut self, extent: DataExtent) {
        self.starts.push(self.at);
        self.at += extent.bytes;
        self.extents.push(extent);
    }

    /// The data of the file, if all of it is compressed or flat.
    pub(crate) fn finish(&mut self, block: u64, must_have_extents: bool) -> FileData {
        if self.is_hole {
            return FileData::Hole;
        }
        if self.flat.is_some() || self.flat_tail.is_some() {
            let start_block = self.flat.map(|(start, _)| start / block);
            return FileData::Flat { start_block, tail: self.flat_tail.take().unwrap_or_default() };
        }
        if !must_have_extents && let Some(start) = self.plain_run(block) {
            return FileData::Flat { start_block: Some(start / block), tail: Box::default() };
        }
        FileData::Compressed(CompressedData {
            extents: std::mem::take(&mut self.extents),
            inline: self.inline.take(),
            fragment: self.fragment.take(),
        })
    }

    /// Where the file starts, if it lies there as it is, block by block.
    fn plain_run(&self, block: u64) -> Option<u64> {
        let first = self.extents.first()?;
        if self.inline.is_some() || self.fragment.is_some() {
            return None;
        }
        let mut address = first.address;
        let (last, others) = self.extents.split_last()?;
        for extent in others {
            if extent.algorithm.is_some() || extent.bytes != block || extent.address != address {
                return None;
            }
            address += block;
        }
        let ends = last.algorithm.is_none() && last.address == address;
        ends.then_some(first.address)
    }
}

/// Whether an index can hold an extent from `start` on: each needs an lcluster boundary of its own, and
/// the length of a pcluster of several blocks a second one (docs/format.md F12). The last extent of a
/// file needs the first one not, but the second: a copy may be shorter than its pcluster.
pub(crate) fn is_representable(start: u64, extent: (u64, u64), block: u64, is_last: bool) -> bool {
    let (bytes, pcluster_bytes) = extent;
    let boundaries = (start + bytes) / block - start / block;
    match pcluster_bytes > block {
        true => boundaries >= 2,
        false => is_last || boundaries >= 1,
    }
}

/// How many of the extents from `start` on an index can hold, from the first on.
pub(crate) fn representable_count(
    extents: &[PlacedExtent],
    start: u64,
    block: u64,
    is_end: bool,
) -> usize {
    let mut at = start;
    for (index, extent) in extents.iter().enumerate() {
        let is_last = is_end && index + 1 == extents.len();
        let (bytes, pcluster) = (u64::from(extent.bytes), u64::from(extent.pcluster_bytes));
        if !is_representable(at, (bytes, pcluster), block, is_last) {
            return index;
        }
        at += bytes;
    }
    extents.len()
}

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

    #[test]
    fn an_extent_within_one_lcluster_can_only_be_the_last() {
        assert!(!is_representable(100, (3000, 4096), 4096, false));
        assert!(is_representable(100, (3000, 4096), 4096, true));
        assert!(is_representable(100, (3996, 4096), 4096, false));
        for is_last in [false, true] {
            assert!(!is_representable(100, (4096, 8192), 4096, is_last));
            assert!(is_representable(100, (8192, 8192), 4096, is_last));
        }
        let short = PlacedExtent { bytes: 3000, algorithm: None, pcluster_bytes: 4096 };
        assert_eq!(representable_count(&[short], 100, 4096, true), 1);
        assert_eq!(representable_count(&[short], 100, 4096, false), 0);
        assert_eq!(representable_count(&[short, short], 100, 4096, true), 0);
        assert_eq!(representable_count(&[short, short], 2000, 4096, true), 2);
    }
}

#[cfg(test)]
mod copies_tests {
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

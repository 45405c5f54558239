//! Copies: where the bytes of a range lie that another range, of this or of an earlier file, has stored. [`CopySource`]
//! finds the extents that a copy can use. [`CopySources`] has the files that copies were taken from last, as they are
//! committed, so that the extents of a source are decoded and added up once for many copies. Called by `commit`.

use std::collections::{BTreeMap, HashMap};

use crate::data_map::{CompressedData, DataExtent, FileData, InlineExtent, PackedFragment};

/// Bytes of an extent and its start in memory.
pub(crate) const SOURCE_EXTENT_BYTES: u64 = (size_of::<DataExtent>() + size_of::<u64>()) as u64;
/// Bytes that a source takes beside its extents.
pub(crate) const SOURCE_BYTES: u64 = 256;

/// A file that others copy from.
#[derive(Debug)]
pub(crate) struct DecodedSource {
    /// Its data.
    pub(crate) data: CompressedData,
    /// Where each extent starts in the file.
    pub(crate) starts: Vec<u64>,
}

impl DecodedSource {
    fn new(data: CompressedData) -> Self {
        let start_of = |at: &mut u64, extent: &DataExtent| {
            let start = *at;
            *at += extent.bytes;
            Some(start)
        };
        let starts = data.extents.iter().scan(0, start_of).collect();
        Self { data, starts }
    }

    fn memory_bytes(&self) -> u64 {
        let inline = self.data.inline.as_ref().map_or(0, |inline| inline.pcluster.len());
        SOURCE_BYTES + inline as u64 + self.starts.len() as u64 * SOURCE_EXTENT_BYTES
    }
}

/// The sources that were used last, up to so many bytes; one may have more.
#[derive(Debug)]
pub(crate) struct CopySources {
    bytes_max: u64,
    bytes: u64,
    /// By file: when it was used last, and what it holds.
    sources: HashMap<usize, (u64, DecodedSource)>,
    /// Files by the time of their last use.
    uses: BTreeMap<u64, usize>,
    time: u64,
}

impl CopySources {
    /// Without a source, for `bytes_max` bytes of them.
    pub(crate) fn new(bytes_max: u64) -> Self {
        let (sources, uses) = (HashMap::new(), BTreeMap::new());
        Self { bytes_max, bytes: 0, sources, uses, time: 0 }
    }

    /// The data of `file`, if it is compressed: from memory, or from `data`.
    pub(crate) fn get(
        &mut self,
        file: usize,
        data: impl FnOnce() -> Option<FileData>,
    ) -> Option<&DecodedSource> {
        if let Some((used, _)) = self.sources.get(&file) {
            self.uses.remove(used);
        } else {
            let Some(FileData::Compressed(data)) = data() else { return None };
            let source = DecodedSource::new(data);
            self.evict_for(source.memory_bytes());
            self.sources.insert(file, (0, source));
        }
        self.time += 1;
        self.uses.insert(self.time, file);
        let (used, source) = self.sources.get_mut(&file)?;
        *used = self.time;
        Some(source)
    }

    /// Takes `more` bytes, for which the sources go that were not used for longest.
    fn evict_for(&mut self, more: u64) {
        self.bytes += more;
        while self.bytes > self.bytes_max
            && let Some((_, file)) = self.uses.pop_first()
        {
            let gone = self.sources.remove(&file);
            self.bytes -= gone.map_or(0, |(_, source)| source.memory_bytes());
        }
    }
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
    use ferrofs_ondisk::compression::AlgorithmId;

    fn data(extents: u64) -> FileData {
        let extent = DataExtent {
            bytes: 4096,
            algorithm: None,
            address: 0,
            pcluster_bytes: 4096,
            partial: false,
        };
        let extents = (0..extents).map(|number| DataExtent { address: number * 4096, ..extent });
        FileData::Compressed(CompressedData {
            extents: extents.collect(),
            inline: None,
            fragment: None,
        })
    }

    #[test]
    fn copies_of_a_few_files_decode_each_once() {
        let mut sources = CopySources::new(4 * (SOURCE_BYTES + 100 * SOURCE_EXTENT_BYTES));
        let mut decoded = 0;
        for number in 0..4000 {
            let source = sources.get(number % 4, || {
                decoded += 1;
                Some(data(100))
            });
            assert_eq!(source.unwrap().starts[99], 99 * 4096);
        }
        assert_eq!((decoded, sources.uses.len()), (4, 4));
    }

    #[test]
    fn sources_take_no_more_than_their_memory_but_for_one() {
        let bytes_max = 10 * (SOURCE_BYTES + 10 * SOURCE_EXTENT_BYTES);
        let mut sources = CopySources::new(bytes_max);
        for file in 0..100 {
            sources.get(file, || Some(data(10))).unwrap();
            sources.get(0, || Some(data(10))).unwrap();
            assert!(sources.bytes <= bytes_max, "{}", sources.bytes);
        }
        let mut kept: Vec<_> = sources.sources.keys().copied().collect();
        kept.sort_unstable();
        assert_eq!(kept, [0, 91, 92, 93, 94, 95, 96, 97, 98, 99]);
        sources.get(100, || Some(data(1000))).unwrap();
        sources.get(101, || Some(data(1000))).unwrap();
        assert_eq!(sources.sources.keys().collect::<Vec<_>>(), [&101]);
        assert!(sources.get(102, || Some(FileData::Hole)).is_none());
        assert_eq!(sources.bytes, SOURCE_BYTES + 1000 * SOURCE_EXTENT_BYTES);
    }

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

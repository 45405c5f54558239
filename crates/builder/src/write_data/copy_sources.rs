//! The files that copies were taken from last, as they are committed: the extents of a source are decoded and added up
//! once for many copies, not once for each.

use std::collections::{BTreeMap, HashMap};

use crate::data_map::{CompressedData, DataExtent, FileData};

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
            self.make_room(source.memory_bytes());
            self.sources.insert(file, (0, source));
        }
        self.time += 1;
        self.uses.insert(self.time, file);
        let (used, source) = self.sources.get_mut(&file)?;
        *used = self.time;
        Some(source)
    }

    /// Takes `more` bytes, for which the sources go that were not used for longest.
    fn make_room(&mut self, more: u64) {
        self.bytes += more;
        while self.bytes > self.bytes_max
            && let Some((_, file)) = self.uses.pop_first()
        {
            let gone = self.sources.remove(&file);
            self.bytes -= gone.map_or(0, |(_, source)| source.memory_bytes());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
}

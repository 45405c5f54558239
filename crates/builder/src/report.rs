//! What a build reports: progress and warnings while it runs, figures when it is done.

use std::collections::BTreeMap;
use std::path::Path;

use ferrofs_ondisk::BlockSize;
use ferrofs_ondisk::chunk::ChunkAddress;
use ferrofs_ondisk::compression::AlgorithmId;

use crate::Error;
use crate::data_map::{CompressedData, DataMap, FileData};

/// What a build made.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct BuildReport {
    /// Bytes of a block.
    pub block_bytes: u32,
    /// Blocks of the image.
    pub blocks: u64,
    /// Bytes of the image: whole blocks.
    pub bytes: u64,
    /// The chunk index of the image, if it has one. It is not a part of `bytes`.
    pub chunk_index: Option<ChunkIndexReport>,
    /// Bytes of the blob: whole blocks; 0 without one.
    pub blob_bytes: u64,
    /// Bytes of files that lie on devices of the tree and are referred to there.
    pub external_bytes: u64,
    /// Inodes that have a name.
    pub inodes: u64,
    /// Inodes of the image: those with a name, the packed inode and the metabox.
    pub image_inodes: u64,
    /// What the regular files have together, in bytes.
    pub content_bytes: u64,
    /// What each way of storing data was used for; `None` is as it is.
    pub by_algorithm: BTreeMap<Option<AlgorithmId>, AlgorithmStats>,
    /// Bytes of extents that use a pcluster which another extent had brought in.
    pub deduplicated_bytes: u64,
    /// Bytes of fragments that use a part of the packed inode which another file had brought in.
    pub shared_fragment_bytes: u64,
    /// Bytes of the packed inode, decoded.
    pub packed_bytes: u64,
    /// The most bytes of memory that the tree and the tables of the build took.
    pub store_bytes: u64,
    /// Bytes of the temporary file for what did not fit into that memory; 0 without one.
    pub spilled_bytes: u64,
}

/// What was written of a chunk index.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ChunkIndexReport {
    /// Whether it lies behind the last block of the image.
    pub is_embedded: bool,
    /// Its bytes.
    pub bytes: u64,
    /// Its SHA-256.
    pub sha256: [u8; 32],
}

/// What a way of storing data was used for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct AlgorithmStats {
    /// Bytes of files.
    pub bytes_in: u64,
    /// What they take in the image, padding of blocks included.
    pub bytes_out: u64,
    /// How many pclusters; 0 for flat data and chunks.
    pub pclusters: u64,
}

impl AlgorithmStats {
    fn add(&mut self, bytes_in: u64, bytes_out: u64, pclusters: u64) {
        self.bytes_in += bytes_in;
        self.bytes_out += bytes_out;
        self.pclusters += pclusters;
    }
}

impl BuildReport {
    /// Adds what lies in `map`, with chunks on `device`. `files` are the indexes of all regular files and what they have in
    /// bytes, in the order in which their data was written.
    pub(crate) fn add_data(
        &mut self,
        map: &DataMap,
        block_size: BlockSize,
        device: u16,
        files: impl Iterator<Item = (usize, u64)>,
    ) {
        // Data is written in this order, so a pcluster that lies below what has been seen is an old one.
        // Blocks of a blob are counted from its own start.
        let (mut seen, mut seen_in_blob) = (0, 0);
        for (index, bytes) in files {
            let data = map.get(index);
            self.content_bytes += bytes;
            match &data {
                Some(FileData::Compressed(compressed)) => {
                    self.add_compressed(compressed, &mut seen);
                }
                Some(FileData::Flat { start_block, tail }) => {
                    self.add_flat(bytes, *start_block, tail.len() as u64, &mut seen);
                }
                Some(FileData::Chunks { format, places }) => {
                    let chunk = format.chunk_bytes(block_size);
                    let seen = if device == 0 { &mut seen } else { &mut seen_in_blob };
                    self.add_chunks(bytes, chunk, places, device, seen);
                }
                Some(FileData::Hole) | None => {}
            }
        }
        let Some(packed) = &map.packed else { return };
        self.packed_bytes = packed.bytes;
        let fragments = (0..map.len()).filter_map(|index| map.get(index));
        let fragments = fragments.map(|data| data.fragment_bytes());
        let fragment_bytes = fragments.fold(0, u64::saturating_add);
        self.shared_fragment_bytes = fragment_bytes.saturating_sub(packed.bytes);
        match &packed.data {
            FileData::Compressed(compressed) => self.add_compressed(compressed, &mut 0),
            FileData::Flat { tail, .. } => {
                self.add_flat(packed.bytes, None, tail.len() as u64, &mut 0);
            }
            FileData::Chunks { .. } | FileData::Hole => {}
        }
    }

    /// Adds a file of `bytes` in chunks of `chunk` bytes. Those on `device` are own ones.
    fn add_chunks(
        &mut self,
        bytes: u64,
        chunk: u64,
        places: &[Option<ChunkAddress>],
        device: u16,
        seen: &mut u64,
    ) {
        let block = u64::from(self.block_bytes).max(1);
        let (mut left, mut out, mut repeated) = (bytes, 0, 0);
        for place in places {
            // The last chunk ends with the file.
            let length = chunk.min(left);
            left -= length;
            match place {
                None => {}
                Some(place) if place.device != device => self.external_bytes += length,
                Some(place) => {
                    let start = place.block.saturating_mul(block);
                    let end = start.saturating_add(length.next_multiple_of(block));
                    // An old chunk and a new one behind it can be one entry.
                    let new = end.saturating_sub(start.max(*seen));
                    out += new;
                    repeated += length.saturating_sub(new);
                    *seen = end.max(*seen);
                }
            }
        }
        self.deduplicated_bytes += repeated;
        self.by_algorithm.entry(None).or_default().add(bytes - repeated, out, 0);
    }

    fn add_flat(&mut self, bytes: u64, start: Option<u64>, tail_bytes: u64, seen: &mut u64) {
        let block = u64::from(self.block_bytes).max(1);
        let out = (bytes - tail_bytes.min(bytes)).next_multiple_of(block);
        if let Some(address) = start.map(|start| start.saturating_mul(block)) {
            if address < *seen {
                self.deduplicated_bytes += bytes;
                return;
            }
            *seen = address.saturating_add(out);
        }
        self.by_algorithm.entry(None).or_default().add(bytes, out + tail_bytes, 0);
    }

    fn add_compressed(&mut self, compressed: &CompressedData, seen: &mut u64) {
        for extent in &compressed.extents {
            if extent.address < *seen {
                self.deduplicated_bytes += extent.bytes;
                continue;
            }
            let out = u64::from(extent.pcluster_bytes);
            *seen = extent.address + out;
            self.by_algorithm.entry(extent.algorithm).or_default().add(extent.bytes, out, 1);
        }
        if let Some(inline) = &compressed.inline {
            let out = inline.pcluster.len() as u64;
            self.by_algorithm.entry(inline.algorithm).or_default().add(inline.bytes, out, 1);
        }
    }
}

/// Observes a build. Any thread of the build may call any method, and no method may block.
pub trait BuildObserver: Sync {
    /// So many bytes of the source have been taken into the image since the last call.
    fn bytes_done(&self, _bytes: u64) {}

    /// An import has found another entry of the source; it is about to read it if it is a directory.
    fn entry_found(&self, _is_directory: bool) {}

    /// What the build does from now on.
    fn phase(&self, _phase: BuildPhase) {}

    /// Inspects the whole image before it gets its name, and its blob if there is one. The paths are valid during
    /// this call only. An error is the reason why the image must not get its name; it ends the build with
    /// [`ErrorKind::Rejected`](crate::ErrorKind::Rejected). Called once, by the thread that builds.
    ///
    /// # Errors
    /// The image is not what it should be.
    fn inspect(&self, _image: &Path, _blob: Option<&Path>) -> Result<(), String> {
        Ok(())
    }

    /// A warning; the build continues.
    fn warn(&self, _warning: Error) {}
}

/// What a build does, in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BuildPhase {
    /// The source is listed.
    Import,
    /// Duplicate ranges are searched.
    Deduplicate,
    /// Contents are read, encoded and written.
    Data,
    /// Inodes and directories are written.
    Metadata,
    /// The image is written to stable storage, and gets its name.
    Publish,
}

/// An observer that ignores everything.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoopObserver;

impl BuildObserver for NoopObserver {}

#[cfg(test)]
mod tests {
    use super::*;
    use ferrofs_ondisk::chunk::{ChunkFormat, ChunkTable};

    use crate::data_map::{DataExtent, InternalFile, PackedFragment};

    fn block_size() -> BlockSize {
        BlockSize::from_bits(12).unwrap()
    }

    fn extent(address: u64, bytes: u64) -> DataExtent {
        let algorithm = Some(AlgorithmId::Lz4);
        DataExtent { bytes, algorithm, address, pcluster_bytes: 4096, partial: false }
    }

    fn compressed(extents: Vec<DataExtent>, fragment: Option<PackedFragment>) -> FileData {
        FileData::Compressed(CompressedData { extents, inline: None, fragment })
    }

    #[test]
    fn a_pcluster_counts_where_it_is_first_used() {
        let first = compressed(vec![extent(4096, 9000), extent(8192, 9000)], None);
        let second = compressed(vec![extent(4096, 9000), extent(12288, 100)], None);
        let map = DataMap::of_files(&[Some(first), Some(second)], None);
        let mut report = BuildReport { block_bytes: 4096, ..BuildReport::default() };
        report.add_data(&map, block_size(), 0, [(0, 18000), (1, 9100)].into_iter());
        let stored = AlgorithmStats { bytes_in: 18100, bytes_out: 12288, pclusters: 3 };
        assert_eq!(report.by_algorithm.get(&Some(AlgorithmId::Lz4)), Some(&stored));
        assert_eq!((report.deduplicated_bytes, report.content_bytes), (9000, 27100));
    }

    #[test]
    fn fragments_that_are_shared_are_counted() {
        let fragment = Some(PackedFragment { bytes: 700, offset: 0 });
        let file = compressed(Vec::new(), fragment);
        let data = compressed(vec![extent(4096, 1000)], None);
        let packed = Some(InternalFile { bytes: 1000, data });
        let map = DataMap::of_files(&[Some(file.clone()), Some(file)], packed);
        let mut report = BuildReport { block_bytes: 4096, ..BuildReport::default() };
        report.add_data(&map, block_size(), 0, [(0, 700), (1, 700)].into_iter());
        assert_eq!((report.packed_bytes, report.shared_fragment_bytes), (1000, 400));
        let stored = AlgorithmStats { bytes_in: 1000, bytes_out: 4096, pclusters: 1 };
        assert_eq!(report.by_algorithm.get(&Some(AlgorithmId::Lz4)), Some(&stored));
    }

    #[test]
    fn what_lies_elsewhere_takes_nothing() {
        let format = ChunkFormat::new(1, ChunkTable::Indexes).unwrap();
        let place = |device, block| Some(ChunkAddress { device, block });
        let places = vec![place(2, 7), None, place(0, 3)];
        let chunks = FileData::Chunks { format, places };
        let map = DataMap::of_files(&[Some(chunks)], None);
        let mut report = BuildReport { block_bytes: 4096, ..BuildReport::default() };
        report.add_data(&map, block_size(), 0, [(0, 20000)].into_iter());
        // The last chunk is the rest of the file: 3616 bytes, in one block.
        let stored = AlgorithmStats { bytes_in: 20000, bytes_out: 4096, pclusters: 0 };
        assert_eq!(report.by_algorithm.get(&None), Some(&stored));
        assert_eq!(report.external_bytes, 8192);
    }

    #[test]
    fn a_chunk_counts_where_it_is_first_used() {
        let format = ChunkFormat::new(1, ChunkTable::Indexes).unwrap();
        for device in [0, 1] {
            let chunks = |blocks: &[u64]| {
                let place = |block: &u64| Some(ChunkAddress { device, block: *block });
                FileData::Chunks { format, places: blocks.iter().map(place).collect() }
            };
            // Of the chunk at 4, the first block is old.
            let files = [chunks(&[1, 3]), chunks(&[1]), chunks(&[4])].map(Some);
            let map = DataMap::of_files(&files, None);
            let mut report = BuildReport { block_bytes: 4096, ..BuildReport::default() };
            let sizes = [(0, 16384), (1, 8192), (2, 8000)];
            report.add_data(&map, block_size(), device, sizes.into_iter());
            let stored = AlgorithmStats { bytes_in: 20480, bytes_out: 20480, pclusters: 0 };
            assert_eq!(report.by_algorithm.get(&None), Some(&stored));
            assert_eq!((report.deduplicated_bytes, report.content_bytes), (12096, 32576));
        }
    }

    #[test]
    fn a_flat_file_takes_its_blocks_and_its_tail() {
        let flat = FileData::Flat { start_block: Some(1), tail: [0; 10].into() };
        let map = DataMap::of_files(&[None, Some(flat)], None);
        let mut report = BuildReport { block_bytes: 4096, ..BuildReport::default() };
        report.add_data(&map, block_size(), 0, [(1, 4106)].into_iter());
        let stored = AlgorithmStats { bytes_in: 4106, bytes_out: 4106, pclusters: 0 };
        assert_eq!(report.by_algorithm.get(&None), Some(&stored));
    }
}

//! How the files of a build are encoded: most by one profile, those that a hint names by another one or not at all.

use std::sync::Arc;

use ferrofs_codec::{Algorithm, Method};
use ferrofs_ondisk::compression::AlgorithmId;

use crate::compress::RangeCompressor;
use crate::split::{FileCompression, SEGMENT_BYTES, StorageMode};
use crate::{Algorithms, BuildOptions, Deduplication, Error, ErrorKind, Fragments, Result};

/// All profiles of a build, and what they have in common. Clones are the same one.
#[derive(Clone, Debug)]
pub(crate) struct CompressionProfiles {
    /// The pcluster is that of the first profile.
    pub(crate) params: DataParams,
    /// None where nothing is compressed.
    all: Arc<[CompressionProfile]>,
}

/// What is different from file to file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct CompressionProfile {
    pcluster: usize,
    method: Method,
}

impl CompressionProfiles {
    /// Those of the options and of their hints.
    pub(crate) fn new(options: &BuildOptions) -> Result<Self> {
        let params = DataParams::new(options);
        let Some(algorithms) = &options.algorithms else {
            return Ok(Self { params, all: Arc::default() });
        };
        let method = |number| nth_method(algorithms, number);
        let default =
            CompressionProfile { pcluster: params.pcluster, method: method(algorithms.default)? };
        let mut all = vec![default];
        for hint in options.hints.all().iter().filter(|hint| hint.pcluster_bytes > 0) {
            let pcluster = hint.pcluster_bytes as usize;
            let profile = CompressionProfile { pcluster, method: method(hint.method)? };
            if !all.contains(&profile) {
                all.push(profile);
            }
        }
        Ok(Self { params, all: all.into() })
    }

    /// The one of the packed inode, whose pclusters may have another size.
    pub(crate) fn of_packed(&self, options: &BuildOptions) -> Self {
        let params = self.params.of_packed(options);
        let first = self.all.iter().take(1);
        let all = first
            .map(|profile| CompressionProfile { pcluster: params.pcluster, ..*profile })
            .collect();
        Self { params, all }
    }

    /// The one of the metabox, which may have an algorithm of its own, too.
    pub(crate) fn of_metabox(&self, options: &BuildOptions) -> Result<Self> {
        let params = self.params.of_metabox(options);
        let method = match (&options.algorithms, options.metabox_method) {
            (Some(algorithms), Some(number)) => Some(nth_method(algorithms, number)?),
            _ => self.all.first().map(|profile| profile.method),
        };
        let profile = method.map(|method| CompressionProfile { pcluster: params.pcluster, method });
        Ok(Self { params, all: profile.into_iter().collect() })
    }

    /// How many there are.
    pub(crate) fn count(&self) -> usize {
        self.all.len()
    }

    /// The pcluster of a profile, in bytes.
    pub(crate) fn pcluster(&self, number: usize) -> usize {
        self.all.get(number).map_or(self.params.pcluster, |profile| profile.pcluster)
    }

    /// A compressor for the profile with this number.
    pub(crate) fn compressor(&self, number: usize) -> Result<RangeCompressor> {
        let none = || Error::new(ErrorKind::Internal("data to encode, but no algorithm"));
        let CompressionProfile { pcluster, method } =
            self.all.get(number).copied().ok_or_else(none)?;
        RangeCompressor::new(DataParams { pcluster, ..self.params }, &method)
    }

    /// What compressors for all profiles take together, in bytes. Each is made once, which checks its parameters.
    pub(crate) fn memory_bytes(&self) -> Result<u64> {
        let each = (0..self.count()).map(|number| Ok(self.compressor(number)?.memory_bytes()));
        each.sum()
    }

    /// How the file at `path` is stored.
    pub(crate) fn choose(&self, options: &BuildOptions, path: &[u8]) -> FileCompression {
        let (Some(algorithms), Some(hint)) = (&options.algorithms, options.hints.find(path)) else {
            return FileCompression::default();
        };
        if hint.pcluster_bytes == 0 {
            return FileCompression::Uncompressed;
        }
        let pcluster = hint.pcluster_bytes as usize;
        let method = algorithms.methods.get(hint.method);
        let is_it = |profile: &CompressionProfile| {
            profile.pcluster == pcluster && Some(&profile.method) == method
        };
        self.all.iter().position(is_it).map_or(FileCompression::default(), FileCompression::Profile)
    }
}

fn nth_method(algorithms: &Algorithms, number: usize) -> Result<Method> {
    let missing = || {
        let what = format!(
            "no algorithm number {number}: there are {}, counted from 0",
            algorithms.methods.len()
        );
        Error::new(ErrorKind::InvalidOptions(what))
    };
    algorithms.methods.get(number).copied().ok_or_else(missing)
}

/// The parameters of one kind of file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DataParams {
    /// Bytes of a block.
    pub(crate) block: usize,
    /// Bytes of the largest pcluster.
    pub(crate) pcluster: usize,
    /// Bytes of the longest extent.
    pub(crate) extent_max: usize,
    /// The last pcluster may lie behind the inode.
    pub(crate) inline_pclusters: bool,
    /// A file in which nothing can be compressed is kept in chunks of so many bytes; if none, it is flat.
    pub(crate) chunk: Option<usize>,
    /// The last bytes of a flat file may lie behind the inode.
    pub(crate) inline_data: bool,
    /// The end of a file that does not fill a pcluster goes to the packed inode.
    pub(crate) packs_tails: bool,
    /// Equal pclusters are stored once.
    pub(crate) shares_pclusters: bool,
}

impl DataParams {
    /// The parameters for regular files. The options have been checked.
    pub(crate) fn new(options: &BuildOptions) -> Self {
        Self {
            block: options.block_size.bytes() as usize,
            pcluster: options.pcluster_bytes as usize,
            extent_max: options.extent_bytes_max as usize,
            inline_pclusters: options.inline_pclusters,
            chunk: options.chunk_bytes.map(chunk_in_segment),
            inline_data: options.inline_data,
            packs_tails: options.fragments == Fragments::Tails,
            shares_pclusters: options.fragments != Fragments::None
                || options.deduplication == Deduplication::On,
        }
    }

    /// The same for the packed inode, which holds what was shared already and packs nothing.
    pub(crate) fn of_packed(self, options: &BuildOptions) -> Self {
        let pcluster = options.packed_pcluster_bytes.map_or(self.pcluster, |bytes| bytes as usize);
        Self { pcluster, chunk: None, packs_tails: false, shares_pclusters: false, ..self }
    }

    /// The same for the metabox, which has a size of pclusters of its own.
    pub(crate) fn of_metabox(self, options: &BuildOptions) -> Self {
        let pcluster = options.metabox_pcluster_bytes.map_or(self.pcluster, |bytes| bytes as usize);
        Self { pcluster, ..self.of_packed(options) }
    }
}

impl StorageMode {
    /// How regular files are stored that no hint names.
    pub(crate) fn of(options: &BuildOptions) -> Self {
        match (&options.algorithms, options.fragments) {
            (None, _) => Self::uncompressed(options),
            (Some(_), Fragments::All) => Self::Packed,
            (Some(_), _) => Self::Compressed,
        }
    }

    /// How files are stored that are not to be compressed.
    pub(crate) fn uncompressed(options: &BuildOptions) -> Self {
        let dedupes = options.deduplication == Deduplication::On && options.algorithms.is_none();
        match options.chunk_bytes {
            Some(chunk) => Self::Chunks(chunk_in_segment(chunk)),
            // Blocks that repeat can only be shared by files that say for each where it is.
            None if dedupes => Self::Chunks(options.block_size.bytes() as usize),
            None => Self::Flat { holes: options.wide },
        }
    }
}

/// Longer chunks are put together from shorter ones where they are, in the end.
fn chunk_in_segment(chunk: u64) -> usize {
    usize::try_from(chunk.min(SEGMENT_BYTES)).unwrap_or(usize::MAX)
}

/// The algorithm of files that no hint names.
pub(crate) fn default_algorithm(algorithms: &Algorithms) -> Option<AlgorithmId> {
    algorithms.methods.get(algorithms.default).map(|method| disk_algorithm(method.algorithm()))
}

/// How the format names an algorithm.
pub(crate) fn disk_algorithm(algorithm: Algorithm) -> AlgorithmId {
    match algorithm {
        Algorithm::Lz4 => AlgorithmId::Lz4,
        Algorithm::Lzma => AlgorithmId::Lzma,
        Algorithm::Deflate => AlgorithmId::Deflate,
        Algorithm::Zstd => AlgorithmId::Zstd,
    }
}

//! How the files of a build are encoded: most by one profile, those that a hint names by others or not at all.

use std::sync::Arc;

use ferrofs_codec::Method;

use super::RangeCompressor;
use super::params::DataParams;
use crate::segment::FileCompression;
use crate::{Algorithms, BuildOptions, Error, ErrorKind, Result};

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
        let params = DataParams::new(options)?;
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
        let none = || Error::new(ErrorKind::Internal("something to encode, and no algorithm"));
        let CompressionProfile { pcluster, method } =
            self.all.get(number).copied().ok_or_else(none)?;
        RangeCompressor::new(DataParams { pcluster, ..self.params }, &method)
    }

    /// What compressors for all profiles take together, in bytes: each is made once, to see that its parameters are
    /// right.
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
        let what = format!("algorithm number {number}, of {}", algorithms.methods.len());
        Error::new(ErrorKind::InvalidOptions(what))
    };
    algorithms.methods.get(number).copied().ok_or_else(missing)
}

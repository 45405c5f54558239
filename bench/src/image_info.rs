//! The images that are measured: names, files, and how the largest file is compressed. Reads metadata only.

use std::collections::HashSet;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use ferrofs_image::{FileType, Image, Inode, WalkEvent};
use ferrofs_ondisk::compression::AlgorithmId;

use crate::reader::PYTHON;

/// Extents of the largest file that show how an image is compressed.
const EXTENTS: usize = 256;

pub(crate) fn open(path: &Path) -> Result<Image> {
    Image::open(path).with_context(|| format!("opening {}", path.display()))
}

/// Regular files with their paths from the root, in the order of the walk, each inode once.
pub(crate) fn regular_files(image: &Image) -> Result<Vec<(PathBuf, Inode)>> {
    let (mut files, mut nids) = (Vec::new(), HashSet::new());
    for event in image.walk(b"/")? {
        match event {
            WalkEvent::Leaf(node)
                if node.inode.file_type() == FileType::Regular && nids.insert(node.inode.nid()) =>
            {
                let path = node.path.strip_prefix(b"/").unwrap_or(&node.path);
                files.push((OsStr::from_bytes(path).into(), node.inode));
            }
            WalkEvent::Problem(problem) => return Err(problem.error.into()),
            WalkEvent::Enter(_) | WalkEvent::Leaf(_) | WalkEvent::Leave(_) => {}
        }
    }
    Ok(files)
}

#[derive(Debug, Clone)]
pub(crate) struct ImageInfo {
    pub(crate) path: PathBuf,
    /// The file's name without suffix.
    pub(crate) name: String,
    pub(crate) bytes: u64,
    /// The largest file, from the root of the tree.
    pub(crate) largest: Option<PathBuf>,
    pub(crate) largest_bytes: u64,
    pub(crate) has_python: bool,
    algorithm: Option<AlgorithmId>,
    /// Of the largest cluster that was seen.
    pub(crate) cluster_bytes: u64,
}

impl ImageInfo {
    pub(crate) fn read(path: &Path) -> Result<Self> {
        let image = open(path)?;
        let files = regular_files(&image)?.into_iter().filter(|(_, inode)| inode.size() > 0);
        // The first of the largest.
        let largest =
            files.reduce(|most, one| if one.1.size() > most.1.size() { one } else { most });
        let (mut algorithm, mut cluster_bytes) = (None, 0);
        if let Some((_, inode)) = &largest {
            for extent in image.file_extents(inode, 0)?.take(EXTENTS) {
                let place = extent?.location.filter(|place| place.algorithm.is_some());
                algorithm = place.as_ref().map_or(algorithm, |place| place.algorithm);
                cluster_bytes = place.map_or(0, |place| place.bytes).max(cluster_bytes);
            }
        }
        let name = path.file_stem().unwrap_or(path.as_os_str()).to_string_lossy().into_owned();
        let (path, bytes) = (path.canonicalize()?, image.length());
        let largest_bytes = largest.as_ref().map_or(0, |(_, inode)| inode.size());
        let largest = largest.map(|(path, _)| path);
        let has_python = image.resolve(PYTHON.as_bytes())?.is_some();
        Ok(Self { path, name, bytes, largest, largest_bytes, has_python, algorithm, cluster_bytes })
    }

    pub(crate) fn read_all(paths: &[PathBuf]) -> Result<Vec<Self>> {
        paths.iter().map(|path| Self::read(path)).collect()
    }

    /// "lz4", "plain" and so on.
    pub(crate) fn codec(&self) -> &'static str {
        self.algorithm.map_or("plain", AlgorithmId::name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_image_tells_how_its_largest_file_is_compressed() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/data");
        let read = |name: &str| ImageInfo::read(&folder.join(name)).unwrap();
        assert!(read("lz4.erofs").largest.unwrap().is_relative());
        for (name, codec, bytes) in
            [("lz4", "lz4", 4096), ("lzma", "lzma", 4096), ("plain", "plain", 0)]
        {
            let image = read(&format!("{name}.erofs"));
            assert_eq!((&*image.name, image.codec(), image.cluster_bytes), (name, codec, bytes));
        }
        let error = ImageInfo::read(Path::new("/proc/self/stat")).unwrap_err();
        assert!(error.to_string().contains("/proc/self/stat"), "{error}");
    }
}

//! The images that are measured: what they are called, how they are compressed, and which of their files is the largest.
//! Reads metadata only.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use ferrofs_image::{FileType, Image, Inode, WalkEvent};
use ferrofs_ondisk::compression::AlgorithmId;

/// Of the largest file, so many extents tell how an image is compressed.
const EXTENTS: usize = 256;

/// An image.
#[derive(Debug, Clone)]
pub(super) struct Pictured {
    pub(super) path: PathBuf,
    /// Its file's name without suffix.
    pub(super) name: String,
    pub(super) bytes: u64,
    /// Path from the root of the tree, and bytes; None of an image without files.
    pub(super) largest: Option<(PathBuf, u64)>,
    /// How the largest file is compressed, if it is.
    pub(super) algorithm: Option<AlgorithmId>,
    /// Bytes of the largest cluster that was seen.
    pub(super) cluster_bytes: u64,
}

impl Pictured {
    /// Looks at an image.
    ///
    /// # Errors
    /// When it is none, or its tree is damaged.
    pub(super) fn look(path: &Path) -> Result<Self> {
        Self::look_inside(path).with_context(|| path.display().to_string())
    }

    fn look_inside(path: &Path) -> Result<Self> {
        let image = Image::open(path)?;
        let mut largest: Option<(PathBuf, Inode)> = None;
        for visit in image.walk(b"/")? {
            match visit {
                WalkEvent::Leaf(node) if node.inode.file_type() == FileType::Regular => {
                    let most = largest.as_ref().map_or(0, |(_, inode)| inode.size());
                    if node.inode.size() > most {
                        let inside = node.path.strip_prefix(b"/").unwrap_or(&node.path);
                        largest = Some((OsStr::from_bytes(inside).into(), node.inode));
                    }
                }
                WalkEvent::Problem(problem) => return Err(problem.error.into()),
                WalkEvent::Enter(_) | WalkEvent::Leaf(_) | WalkEvent::Leave(_) => {}
            }
        }
        let (mut algorithm, mut cluster_bytes) = (None, 0);
        if let Some((_, inode)) = &largest {
            for range in image.file_extents(inode, 0)?.take(EXTENTS) {
                let Some(place) = range?.location else { continue };
                if place.algorithm.is_some() {
                    algorithm = place.algorithm;
                    cluster_bytes = place.bytes.max(cluster_bytes);
                }
            }
        }
        let name = path.file_stem().unwrap_or(path.as_os_str()).to_string_lossy().into_owned();
        Ok(Self {
            path: path.canonicalize()?,
            name,
            bytes: image.length(),
            largest: largest.map(|(path, inode)| (path, inode.size())),
            algorithm,
            cluster_bytes,
        })
    }

    /// "lz4", "plain" and so on.
    pub(super) fn codec(&self) -> &'static str {
        self.algorithm.map_or("plain", AlgorithmId::name)
    }

    /// Whether its clusters are LZ4's smallest usual ones.
    pub(super) fn is_lz4_4k(&self) -> bool {
        self.algorithm == Some(AlgorithmId::Lz4) && self.cluster_bytes <= 4096
    }

    /// All of them.
    pub(super) fn look_at_all(paths: &[PathBuf]) -> Result<Vec<Self>> {
        paths.iter().map(|path| Self::look(path)).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::Pictured;

    fn look(name: &str) -> Pictured {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/data");
        Pictured::look(&folder.join(name)).unwrap()
    }

    #[test]
    fn an_image_tells_how_its_largest_file_is_compressed() {
        let image = look("lz4.erofs");
        assert_eq!((image.name.as_str(), image.codec()), ("lz4", "lz4"));
        assert_eq!(image.cluster_bytes, 4096);
        let (path, bytes) = image.largest.unwrap();
        assert!(path.is_relative() && bytes > 0);
        assert_eq!(look("lzma.erofs").codec(), "lzma");
        let plain = look("plain.erofs");
        assert_eq!((plain.codec(), plain.cluster_bytes), ("plain", 0));
    }

    #[test]
    fn what_is_no_image_is_named() {
        let error = Pictured::look(Path::new("/proc/self/stat")).unwrap_err();
        assert!(error.to_string().contains("/proc/self/stat"), "{error}");
    }
}

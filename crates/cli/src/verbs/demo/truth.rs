//! What a tree must be: the manifest of the carried image, the directory that an image
//! was made from, or a second reading of the image. Gives one record after the other.

use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, anyhow};
use ferrofs_image::{FileType, Image, Inode, Node, Piece, Visit};
use sha2::{Digest, Sha256};

use super::carried;
use super::interruption::Interruption;
use super::record::{Contents, Record, Xattrs, below};
use crate::name::escaped;

/// Holes are digested in pieces of this size.
const ZEROS: [u8; 4096] = [0; 4096];

/// What is known of a path.
#[derive(Debug)]
pub(super) enum Known {
    Record(Box<Record>),
    /// It is there, but the caller may not look at it.
    Hidden,
}

/// What a tree must be.
#[derive(Clone, Debug)]
pub(super) enum Truth {
    Manifest,
    Directory(PathBuf),
    Image(Image),
}

impl Truth {
    /// In words.
    pub(super) fn name(&self) -> String {
        match self {
            Self::Manifest => "its list of digests".to_owned(),
            Self::Directory(path) => escaped(path.as_os_str().as_bytes()),
            Self::Image(_) => "a second reading of the image".to_owned(),
        }
    }

    /// Hands what is known of every path to `sink`.
    pub(super) fn for_each(
        &self,
        interruption: &Interruption,
        sink: &mut dyn FnMut(Known) -> anyhow::Result<()>,
    ) -> anyhow::Result<()> {
        let mut record = |record| sink(Known::Record(Box::new(record)));
        match self {
            Self::Manifest => carried::records()?.into_iter().try_for_each(record),
            Self::Directory(root) => {
                walk_host(root, &mut |path| match Record::of_host(root, path, interruption) {
                    _ if interruption.is_wanted() => interruption.check(),
                    Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                        sink(Known::Hidden)
                    }
                    found => sink(Known::Record(Box::new(
                        found.with_context(|| escaped(below(root, path).as_os_str().as_bytes()))?,
                    ))),
                })
            }
            Self::Image(image) => {
                for visit in image.walk(b"/")? {
                    match visit {
                        Visit::Enter(node) | Visit::Leaf(node) => {
                            record(of_image(image, &node, interruption)?)?;
                        }
                        Visit::Leave(_) => {}
                        // The extraction has named it already.
                        Visit::Problem(_) => {}
                    }
                }
                Ok(())
            }
        }
    }
}

/// Hands the path of everything below `root` to `sink`, and `/` for `root` itself.
pub(super) fn walk_host(
    root: &Path,
    sink: &mut dyn FnMut(&[u8]) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    sink(b"/")?;
    let mut directories = vec![Vec::new()];
    while let Some(directory) = directories.pop() {
        let listed = std::fs::read_dir(below(root, &directory));
        let listed = match listed {
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => continue,
            listed => listed.with_context(|| escaped(&directory))?,
        };
        for entry in listed {
            let entry = entry?;
            let path = join(&directory, &entry.file_name());
            sink(&path)?;
            if entry.file_type()?.is_dir() {
                directories.push(path);
            }
        }
    }
    Ok(())
}

fn join(directory: &[u8], name: &OsStr) -> Vec<u8> {
    [directory, b"/", name.as_bytes()].concat()
}

fn of_image(image: &Image, node: &Node, interruption: &Interruption) -> anyhow::Result<Record> {
    let inode = &node.inode;
    let xattrs =
        image.xattrs(inode).map_err(|error| anyhow!("{}: {error}", escaped(&node.path)))?;
    let xattrs = xattrs.into_iter().map(|xattr| (xattr.name, xattr.value));
    let has_names = inode.nlink() > 1 && inode.file_type() != FileType::Directory;
    Ok(Record {
        path: node.path.clone(),
        file_type: inode.file_type(),
        mode: u32::from(inode.mode() & 0o7777),
        uid: inode.uid(),
        gid: inode.gid(),
        link_count: u64::from(inode.nlink()),
        mtime: inode.mtime(),
        contents: contents(image, inode, interruption).with_context(|| escaped(&node.path))?,
        xattrs: xattrs.collect::<Xattrs>(),
        denied_xattrs: Vec::new(),
        link_key: has_names.then(|| inode.nid().raw().to_le_bytes().to_vec()),
    })
}

fn contents(image: &Image, inode: &Inode, interruption: &Interruption) -> anyhow::Result<Contents> {
    Ok(match inode.file_type() {
        FileType::Regular => {
            let mut hasher = Sha256::new();
            image.for_each_piece::<anyhow::Error>(inode, |piece| {
                interruption.check()?;
                match piece {
                    Piece::Data { bytes, .. } => hasher.update(bytes),
                    Piece::Hole { length, .. } => {
                        digest_zeros(&mut hasher, length, interruption)?;
                    }
                }
                Ok(())
            })?;
            Contents::File { size: inode.size(), sha256: hasher.finalize().into() }
        }
        FileType::Symlink => Contents::Target(image.read_link(inode)?),
        FileType::CharDevice | FileType::BlockDevice => {
            let (major, minor) = inode.device().unwrap_or_default();
            Contents::Device { major, minor }
        }
        _ => Contents::Nothing,
    })
}

fn digest_zeros(
    hasher: &mut Sha256,
    mut length: u64,
    interruption: &Interruption,
) -> anyhow::Result<()> {
    while length > 0 {
        interruption.check()?;
        let count = usize::try_from(length).unwrap_or(usize::MAX).min(ZEROS.len());
        hasher.update(&ZEROS[..count]);
        length -= count as u64;
    }
    Ok(())
}

//! What a tree must be: the manifest of the carried image, the directory that an image
//! was made from, or a second reading of the image. Gives one record after the other.

use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, anyhow};
use ferrofs_image::{FilePiece, FileType, Image, Inode, WalkEntry, WalkEvent};
use sha2::{Digest, Sha256};

use super::carried;
use super::record::{FileContents, FileRecord, Xattrs, below};
use crate::output::escape;
use crate::signals::StopRequest;

/// Holes are digested in pieces of this size.
const ZEROS: [u8; 4096] = [0; 4096];

/// What is known of a path.
#[derive(Debug)]
pub(super) enum ReferenceEntry {
    FileRecord(Box<FileRecord>),
    /// It is there, but the caller may not look at it.
    Hidden,
}

/// What a tree must be.
#[derive(Clone, Debug)]
pub(super) enum ReferenceTree {
    Manifest,
    Directory(PathBuf),
    Image(Image),
}

impl ReferenceTree {
    /// In words.
    pub(super) fn name(&self) -> String {
        match self {
            Self::Manifest => "its list of digests".to_owned(),
            Self::Directory(path) => escape(path.as_os_str().as_bytes()),
            Self::Image(_) => "a second reading of the image".to_owned(),
        }
    }

    /// Hands what is known of every path to `sink`.
    pub(super) fn for_each(
        &self,
        stop: &StopRequest,
        sink: &mut dyn FnMut(ReferenceEntry) -> anyhow::Result<()>,
    ) -> anyhow::Result<()> {
        let mut record = |record| sink(ReferenceEntry::FileRecord(Box::new(record)));
        match self {
            Self::Manifest => carried::records()?.into_iter().try_for_each(record),
            Self::Directory(root) => {
                walk_host(root, &mut |path| match FileRecord::of_host(root, path, stop) {
                    _ if stop.is_requested() => Ok(stop.check()?),
                    Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                        sink(ReferenceEntry::Hidden)
                    }
                    found => sink(ReferenceEntry::FileRecord(Box::new(
                        found.with_context(|| escape(below(root, path).as_os_str().as_bytes()))?,
                    ))),
                })
            }
            Self::Image(image) => {
                for visit in image.walk(b"/")? {
                    match visit {
                        WalkEvent::Enter(node) | WalkEvent::Leaf(node) => {
                            record(of_image(image, &node, stop)?)?;
                        }
                        WalkEvent::Leave(_) => {}
                        // The extraction has named it already.
                        WalkEvent::Problem(_) => {}
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
            listed => listed.with_context(|| escape(&directory))?,
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

fn of_image(image: &Image, node: &WalkEntry, stop: &StopRequest) -> anyhow::Result<FileRecord> {
    let inode = &node.inode;
    let xattrs = image.xattrs(inode).map_err(|error| anyhow!("{}: {error}", escape(&node.path)))?;
    let xattrs = xattrs.into_iter().map(|xattr| (xattr.name, xattr.value));
    let has_names = inode.nlink() > 1 && inode.file_type() != FileType::Directory;
    Ok(FileRecord {
        path: node.path.clone(),
        file_type: inode.file_type(),
        mode: u32::from(inode.mode() & 0o7777),
        uid: inode.uid(),
        gid: inode.gid(),
        link_count: u64::from(inode.nlink()),
        mtime: inode.mtime(),
        contents: contents(image, inode, stop).with_context(|| escape(&node.path))?,
        xattrs: xattrs.collect::<Xattrs>(),
        denied_xattrs: Vec::new(),
        link_key: has_names.then(|| inode.nid().raw().to_le_bytes().to_vec()),
    })
}

fn contents(image: &Image, inode: &Inode, stop: &StopRequest) -> anyhow::Result<FileContents> {
    Ok(match inode.file_type() {
        FileType::Regular => {
            let mut hasher = Sha256::new();
            image.for_each_piece::<anyhow::Error>(inode, |piece| {
                stop.check()?;
                match piece {
                    FilePiece::Data { bytes, .. } => hasher.update(bytes),
                    FilePiece::Hole { length, .. } => {
                        digest_zeros(&mut hasher, length, stop)?;
                    }
                }
                Ok(())
            })?;
            FileContents::File { size: inode.size(), sha256: hasher.finalize().into() }
        }
        FileType::Symlink => FileContents::Target(image.read_link(inode)?),
        FileType::CharDevice | FileType::BlockDevice => {
            let (major, minor) = inode.device().unwrap_or_default();
            FileContents::Device { major, minor }
        }
        _ => FileContents::Nothing,
    })
}

fn digest_zeros(hasher: &mut Sha256, mut length: u64, stop: &StopRequest) -> anyhow::Result<()> {
    while length > 0 {
        stop.check()?;
        let count = usize::try_from(length).unwrap_or(usize::MAX).min(ZEROS.len());
        hasher.update(&ZEROS[..count]);
        length -= count as u64;
    }
    Ok(())
}

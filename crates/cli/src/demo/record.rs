//! What is known of a file, wherever the knowledge comes from: a manifest, a directory of the host,
//! or an image. Two records of a path can be compared field by field.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs::{File, Metadata};
use std::io::{self, Read};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use ferrofs_image::{FileType, Timestamp};
use rustix::io::Errno;
use sha2::{Digest, Sha256};

use crate::signals::StopRequest;

/// Contents are read in pieces of this size.
const PIECE_BYTES: usize = 1 << 16;
/// Linux allows no longer attribute value or list of names.
const XATTR_MAX_BYTES: usize = 1 << 16;

/// Access control lists.
const ACLS: &[u8] = b"system.posix_acl_";

/// Names and values of extended attributes.
pub(super) type Xattrs = BTreeMap<Vec<u8>, Vec<u8>>;

/// A file under one of its names.
#[derive(Clone, Debug)]
pub(super) struct FileRecord {
    /// The path from the root: `/`, or `/a/b`.
    pub(super) path: Vec<u8>,
    pub(super) file_type: FileType,
    /// Permissions, 12 bits.
    pub(super) mode: u32,
    pub(super) uid: u32,
    pub(super) gid: u32,
    /// How many names it has, and a directory those of its directories.
    pub(super) link_count: u64,
    pub(super) mtime: Timestamp,
    pub(super) contents: FileContents,
    pub(super) xattrs: Xattrs,
    /// Attributes that are listed, but not for the caller's eyes.
    pub(super) denied_xattrs: Vec<Vec<u8>>,
    /// Names with the same key are one file.
    pub(super) link_key: Option<Vec<u8>>,
}

/// What a file holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum FileContents {
    Nothing,
    File {
        size: u64,
        sha256: [u8; 32],
    },
    /// A regular file that the caller may not read.
    Unreadable {
        size: u64,
    },
    Target(Vec<u8>),
    Device {
        major: u32,
        minor: u32,
    },
}

impl FileContents {
    /// Bytes of a regular file.
    pub(super) fn bytes(&self) -> u64 {
        match self {
            Self::File { size, .. } | Self::Unreadable { size } => *size,
            _ => 0,
        }
    }
}

impl FileRecord {
    /// Reads what `path` is below `root`.
    ///
    /// # Errors
    /// What the system answers, and that somebody wants an end.
    pub(super) fn of_host(root: &Path, path: &[u8], stop: &StopRequest) -> io::Result<Self> {
        let place = below(root, path);
        let metadata = place.symlink_metadata()?;
        let (xattrs, denied_xattrs) = xattrs(&place)?;
        Ok(Self {
            path: path.to_vec(),
            file_type: file_type(&metadata),
            mode: metadata.mode() & 0o7777,
            uid: metadata.uid(),
            gid: metadata.gid(),
            link_count: metadata.nlink(),
            mtime: Timestamp {
                seconds: metadata.mtime(),
                nanoseconds: u32::try_from(metadata.mtime_nsec()).unwrap_or_default(),
            },
            contents: contents(&place, &metadata, stop)?,
            xattrs,
            denied_xattrs,
            link_key: link_key(&metadata),
        })
    }
}

/// The place of an image's path in a directory of the host.
pub(super) fn below(root: &Path, path: &[u8]) -> PathBuf {
    let relative = path.strip_prefix(b"/").unwrap_or(path);
    if relative.is_empty() { root.to_owned() } else { root.join(OsStr::from_bytes(relative)) }
}

/// The digest of what `reader` holds, and how much that is.
fn digest(mut reader: impl Read, stop: &StopRequest) -> io::Result<(u64, [u8; 32])> {
    let mut hasher = Sha256::new();
    let mut piece = vec![0; PIECE_BYTES];
    let mut size = 0;
    loop {
        stop.check_io()?;
        let count = reader.read(&mut piece)?;
        if count == 0 {
            return Ok((size, hasher.finalize().into()));
        }
        hasher.update(&piece[..count]);
        size += count as u64;
    }
}

fn file_type(metadata: &Metadata) -> FileType {
    let kind = metadata.file_type();
    match () {
        () if kind.is_dir() => FileType::Directory,
        () if kind.is_symlink() => FileType::Symlink,
        () if kind.is_char_device() => FileType::CharDevice,
        () if kind.is_block_device() => FileType::BlockDevice,
        () if kind.is_fifo() => FileType::Fifo,
        () if kind.is_socket() => FileType::Socket,
        () => FileType::Regular,
    }
}

fn link_key(metadata: &Metadata) -> Option<Vec<u8>> {
    let has_names = metadata.nlink() > 1 && !metadata.is_dir();
    has_names.then(|| format!("{}:{}", metadata.dev(), metadata.ino()).into_bytes())
}

fn contents(place: &Path, metadata: &Metadata, stop: &StopRequest) -> io::Result<FileContents> {
    match file_type(metadata) {
        FileType::Regular => match File::open(place) {
            Ok(file) => {
                let (size, sha256) = digest(file, stop)?;
                Ok(FileContents::File { size, sha256 })
            }
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                Ok(FileContents::Unreadable { size: metadata.len() })
            }
            Err(error) => Err(error),
        },
        FileType::Symlink => {
            Ok(FileContents::Target(place.read_link()?.into_os_string().as_bytes().to_vec()))
        }
        FileType::CharDevice | FileType::BlockDevice => {
            let number = metadata.rdev();
            let (major, minor) = (rustix::fs::major(number), rustix::fs::minor(number));
            Ok(FileContents::Device { major, minor })
        }
        _ => Ok(FileContents::Nothing),
    }
}

/// The attributes, and the names of those that are listed, but not for the caller's eyes.
fn xattrs(place: &Path) -> io::Result<(Xattrs, Vec<Vec<u8>>)> {
    let (mut xattrs, mut denied) = (Xattrs::new(), Vec::new());
    let mut names = vec![0; XATTR_MAX_BYTES];
    let count = match rustix::fs::llistxattr(place, &mut names) {
        Err(Errno::OPNOTSUPP) => return Ok((xattrs, denied)),
        count => count?,
    };
    let mut value = vec![0; XATTR_MAX_BYTES];
    for name in names[..count].split(|byte| *byte == 0).filter(|name| !name.is_empty()) {
        match rustix::fs::lgetxattr(place, name, &mut value) {
            Ok(length) => {
                xattrs.insert(name.to_vec(), value[..length].to_vec());
            }
            Err(Errno::NODATA | Errno::ACCESS) => denied.push(name.to_vec()),
            // It names users that have no number in this user namespace.
            Err(Errno::INVAL) if name.starts_with(ACLS) => denied.push(name.to_vec()),
            Err(errno) => return Err(errno.into()),
        }
    }
    Ok((xattrs, denied))
}

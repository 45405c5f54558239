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
use sha2::{Digest, Sha256};

/// Contents are read in pieces of this size.
const PIECE_BYTES: usize = 1 << 16;
/// Linux allows no longer attribute value or list of names.
const XATTR_MAX_BYTES: usize = 1 << 16;

/// Names and values of extended attributes.
pub(super) type Xattrs = BTreeMap<Vec<u8>, Vec<u8>>;

/// A file under one of its names.
#[derive(Clone, Debug)]
pub(super) struct Record {
    /// The path from the root: `/`, or `/a/b`.
    pub(super) path: Vec<u8>,
    pub(super) file_type: FileType,
    /// Permissions, 12 bits.
    pub(super) mode: u32,
    pub(super) uid: u32,
    pub(super) gid: u32,
    pub(super) mtime: Timestamp,
    pub(super) contents: Contents,
    pub(super) xattrs: Xattrs,
    /// Names with the same key are one file.
    pub(super) link_key: Option<Vec<u8>>,
}

/// What a file holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Contents {
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

impl Contents {
    /// Bytes of a regular file.
    pub(super) fn bytes(&self) -> u64 {
        match self {
            Self::File { size, .. } | Self::Unreadable { size } => *size,
            _ => 0,
        }
    }
}

impl Record {
    /// Reads what `path` is below `root`.
    pub(super) fn of_host(root: &Path, path: &[u8]) -> io::Result<Self> {
        let place = below(root, path);
        let metadata = place.symlink_metadata()?;
        Ok(Self {
            path: path.to_vec(),
            file_type: file_type(&metadata),
            mode: metadata.mode() & 0o7777,
            uid: metadata.uid(),
            gid: metadata.gid(),
            mtime: Timestamp {
                seconds: metadata.mtime(),
                nanoseconds: u32::try_from(metadata.mtime_nsec()).unwrap_or_default(),
            },
            contents: contents(&place, &metadata)?,
            xattrs: xattrs(&place)?,
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
pub(super) fn digest(mut reader: impl Read) -> io::Result<(u64, [u8; 32])> {
    let mut hasher = Sha256::new();
    let mut piece = vec![0; PIECE_BYTES];
    let mut size = 0;
    loop {
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

fn contents(place: &Path, metadata: &Metadata) -> io::Result<Contents> {
    match file_type(metadata) {
        FileType::Regular => match File::open(place) {
            Ok(file) => {
                let (size, sha256) = digest(file)?;
                Ok(Contents::File { size, sha256 })
            }
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                Ok(Contents::Unreadable { size: metadata.len() })
            }
            Err(error) => Err(error),
        },
        FileType::Symlink => {
            Ok(Contents::Target(place.read_link()?.into_os_string().as_bytes().to_vec()))
        }
        FileType::CharDevice | FileType::BlockDevice => {
            let number = metadata.rdev();
            let (major, minor) = (rustix::fs::major(number), rustix::fs::minor(number));
            Ok(Contents::Device { major, minor })
        }
        _ => Ok(Contents::Nothing),
    }
}

fn xattrs(place: &Path) -> io::Result<Xattrs> {
    let mut names = vec![0; XATTR_MAX_BYTES];
    let count = match rustix::fs::llistxattr(place, &mut names) {
        Err(rustix::io::Errno::OPNOTSUPP) => return Ok(Xattrs::new()),
        count => count?,
    };
    let mut xattrs = Xattrs::new();
    let mut value = vec![0; XATTR_MAX_BYTES];
    for name in names[..count].split(|byte| *byte == 0).filter(|name| !name.is_empty()) {
        match rustix::fs::lgetxattr(place, name, &mut value) {
            Ok(length) => {
                xattrs.insert(name.to_vec(), value[..length].to_vec());
            }
            // Listed, but not for the caller's eyes.
            Err(rustix::io::Errno::NODATA | rustix::io::Errno::ACCESS) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
    Ok(xattrs)
}

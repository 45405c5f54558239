//! Metadata of one path and a digest of its contents, as fields of text that can be compared. They
//! are read from a directory of the host, from an image, or from a manifest.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{self, Read};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use ferrofs_image::{FilePiece, FileType, Image, Inode, Timestamp};
use rustix::io::Errno;
use sha2::{Digest as _, Sha256};

use crate::metadata_text::format_exact;
use crate::output::{escape, hex};
use crate::signals::StopRequest;

/// Bytes that are read at a time.
const READ_BYTES: usize = 1 << 16;
/// The limit of Linux for an attribute's value and for a list of names.
const XATTR_BYTES_MAX: usize = 1 << 16;
const ACL_PREFIX: &[u8] = b"system.posix_acl_";
/// These attributes hold user ids, which a user namespace may change.
const WITH_IDS: [&[u8]; 2] = [ACL_PREFIX, b"security.capability"];
/// The number of ids in the initial user namespace.
const IDS: u64 = u32::MAX as u64;

#[derive(Clone, Copy, Debug)]
pub(super) struct CurrentUser {
    pub(super) uid: u32,
    /// Whether the user namespace has all ids; otherwise owners are not known.
    has_all_ids: bool,
}

impl CurrentUser {
    pub(super) fn new() -> Self {
        let has_all_ids = ["uid", "gid"].into_iter().all(|kind| {
            let map = fs::read_to_string(format!("/proc/self/{kind}_map")).unwrap_or_default();
            maps_all_ids(&map)
        });
        Self { uid: rustix::process::geteuid().as_raw(), has_all_ids }
    }

    /// Whether the user is root of the initial user namespace.
    pub(super) fn is_initial_root(self) -> bool {
        self.uid == 0 && self.has_all_ids
    }

    /// Whether the user sees an attribute of the image. The label of SELinux is the host's.
    fn sees(self, xattr: &[u8]) -> bool {
        let has_ids = WITH_IDS.iter().any(|start| xattr.starts_with(start));
        let is_visible = !xattr.starts_with(b"trusted.") && (self.has_all_ids || !has_ids);
        xattr != b"security.selinux" && (is_visible || self.is_initial_root())
    }
}

/// Whether a map of `/proc` has all ids; one that cannot be read has.
fn maps_all_ids(map: &str) -> bool {
    let counts = map.lines().filter_map(|line| line.split_whitespace().nth(2)?.parse::<u64>().ok());
    counts.reduce(|sum, count| sum + count).is_none_or(|sum| sum >= IDS)
}

/// A file under one of its names.
#[derive(Clone, Debug)]
pub(super) struct FileEntry {
    /// The path from the root: `/`, or `/a/b`.
    pub(super) path: Vec<u8>,
    /// Of a regular file.
    pub(super) bytes: u64,
    /// Paths with the same key are hard links to one file.
    pub(super) link_key: Option<Vec<u8>>,
    /// By name; `None` is a value that is not known.
    pub(super) fields: BTreeMap<String, Option<String>>,
}

/// Metadata that every entry has.
#[derive(Clone, Copy, Debug)]
pub(super) struct EntryMetadata {
    pub(super) file_type: FileType,
    pub(super) mode: u32,
    pub(super) owner: (u32, u32),
    pub(super) link_count: Option<u64>,
    pub(super) mtime: Timestamp,
    pub(super) size: u64,
}

/// Names and values; `None` is a value that the user may not read.
pub(super) type EntryXattrs = Vec<(Vec<u8>, Option<Vec<u8>>)>;
pub(super) type FileDigest = [u8; 32];

impl FileEntry {
    pub(super) fn new(
        path: &[u8],
        metadata: EntryMetadata,
        digest: Option<FileDigest>,
        xattrs: EntryXattrs,
        user: CurrentUser,
    ) -> Self {
        let is_file = metadata.file_type == FileType::Regular;
        let (uid, gid) = metadata.owner;
        let has_mode = metadata.file_type != FileType::Symlink;
        let fields = [
            ("type", Some(metadata.file_type.name().to_owned())),
            ("mode", has_mode.then(|| format!("{:04o}", metadata.mode & 0o7777))),
            ("owner", user.has_all_ids.then(|| format!("{uid}:{gid}"))),
            ("link count", metadata.link_count.map(|count| count.to_string())),
            ("time", Some(format_exact(metadata.mtime))),
            ("size", is_file.then(|| metadata.size.to_string())),
            ("contents", digest.map(|digest| hex(&digest))),
        ];
        let fields = fields.into_iter().map(|(name, value)| (name.to_owned(), value));
        let xattrs = xattrs.into_iter().filter(|(name, _)| user.sees(name)).map(|(name, value)| {
            (format!("attribute {}", escape(&name)), value.map(|value| hex(&value)))
        });
        let bytes = if is_file { metadata.size } else { 0 };
        Self { path: path.to_vec(), bytes, link_key: None, fields: fields.chain(xattrs).collect() }
    }

    /// Reads the entry at `path` below `root`. Link counts of a source directory are its own.
    ///
    /// # Errors
    /// The system refuses, or a signal arrived.
    pub(super) fn of_host(
        root: &Path,
        path: &[u8],
        user: CurrentUser,
        stop: &StopRequest,
    ) -> io::Result<Self> {
        let place = below(root, path);
        let found = place.symlink_metadata()?;
        let mode = u16::try_from(found.mode()).unwrap_or_default();
        let file_type = FileType::from_mode(mode).map_err(io::Error::other)?;
        let digest = match file_type {
            FileType::Regular => match File::open(&place) {
                Err(error) if error.kind() == io::ErrorKind::PermissionDenied => None,
                file => Some(digest_of_file(file?, stop)?),
            },
            FileType::Symlink => Some(digest(place.read_link()?.as_os_str().as_bytes())),
            FileType::CharDevice | FileType::BlockDevice => Some(digest_of_device((
                rustix::fs::major(found.rdev()),
                rustix::fs::minor(found.rdev()),
            ))),
            _ => Some(digest(b"")),
        };
        let metadata = EntryMetadata {
            file_type,
            mode: found.mode(),
            owner: (found.uid(), found.gid()),
            link_count: Some(found.nlink()),
            mtime: Timestamp {
                seconds: found.mtime(),
                nanoseconds: u32::try_from(found.mtime_nsec()).unwrap_or_default(),
            },
            size: found.len(),
        };
        let mut entry = Self::new(path, metadata, digest, xattrs(&place)?, user);
        if found.nlink() > 1 && !found.is_dir() {
            entry.link_key = Some(format!("{}:{}", found.dev(), found.ino()).into_bytes());
        }
        Ok(entry)
    }

    /// Reads the entry of an inode of an image.
    ///
    /// # Errors
    /// The image is damaged, or a signal arrived.
    pub(super) fn of_image(
        image: &Image,
        path: &[u8],
        inode: &Inode,
        user: CurrentUser,
        stop: &StopRequest,
    ) -> anyhow::Result<Self> {
        let digest = match inode.file_type() {
            FileType::Regular => digest_of_inode(image, inode, stop)?,
            FileType::Symlink => digest(&image.read_link(inode)?),
            FileType::CharDevice | FileType::BlockDevice => {
                digest_of_device(inode.device().unwrap_or_default())
            }
            _ => digest(b""),
        };
        let metadata = EntryMetadata {
            file_type: inode.file_type(),
            mode: inode.mode().into(),
            owner: (inode.uid(), inode.gid()),
            link_count: Some(inode.nlink().into()),
            mtime: inode.mtime(),
            size: inode.size(),
        };
        let xattrs = image.xattrs(inode)?.into_iter();
        let xattrs = xattrs.map(|xattr| (xattr.name, Some(xattr.value))).collect();
        let mut entry = Self::new(path, metadata, Some(digest), xattrs, user);
        if inode.nlink() > 1 && inode.file_type() != FileType::Directory {
            entry.link_key = Some(inode.nid().raw().to_le_bytes().to_vec());
        }
        Ok(entry)
    }
}

/// The place of an image's path below a directory of the host.
pub(super) fn below(root: &Path, path: &[u8]) -> PathBuf {
    let relative = path.strip_prefix(b"/").unwrap_or(path);
    if relative.is_empty() { root.to_owned() } else { root.join(OsStr::from_bytes(relative)) }
}

pub(super) fn digest(bytes: &[u8]) -> FileDigest {
    Sha256::digest(bytes).into()
}

pub(super) fn digest_of_device((major, minor): (u32, u32)) -> FileDigest {
    digest(format!("{major}:{minor}").as_bytes())
}

fn digest_of_file(mut file: File, stop: &StopRequest) -> io::Result<FileDigest> {
    let (mut hasher, mut buffer) = (Sha256::new(), vec![0; READ_BYTES]);
    loop {
        stop.check_io()?;
        match file.read(&mut buffer)? {
            0 => return Ok(hasher.finalize().into()),
            count => hasher.update(&buffer[..count]),
        }
    }
}

fn digest_of_inode(image: &Image, inode: &Inode, stop: &StopRequest) -> anyhow::Result<FileDigest> {
    let (mut hasher, zeros) = (Sha256::new(), vec![0; READ_BYTES]);
    image.for_each_piece::<anyhow::Error>(inode, |piece| {
        let mut left = 0;
        match piece {
            FilePiece::Data { bytes, .. } => hasher.update(bytes),
            FilePiece::Hole { length, .. } => left = length,
        }
        while left > 0 {
            stop.check()?;
            let count = usize::try_from(left).unwrap_or(READ_BYTES).min(READ_BYTES);
            hasher.update(&zeros[..count]);
            left -= count as u64;
        }
        Ok(stop.check()?)
    })?;
    Ok(hasher.finalize().into())
}

fn xattrs(place: &Path) -> io::Result<EntryXattrs> {
    let mut names = vec![0; XATTR_BYTES_MAX];
    let count = match rustix::fs::llistxattr(place, &mut names) {
        Err(Errno::OPNOTSUPP) => 0,
        count => count?,
    };
    let mut value = vec![0; XATTR_BYTES_MAX];
    let names = names[..count].split(|byte| *byte == 0).filter(|name| !name.is_empty());
    let read = names.map(|name| match rustix::fs::lgetxattr(place, name, &mut value) {
        Ok(length) => Ok((name.to_vec(), Some(value[..length].to_vec()))),
        Err(Errno::NODATA | Errno::ACCESS) => Ok((name.to_vec(), None)),
        // The ACL names users that have no id in this user namespace.
        Err(Errno::INVAL) if name.starts_with(ACL_PREFIX) => Ok((name.to_vec(), None)),
        Err(errno) => Err(errno.into()),
    });
    read.collect()
}

#[cfg(test)]
mod tests {
    use super::maps_all_ids;

    #[test]
    fn only_the_initial_user_namespace_has_all_ids() {
        assert!(maps_all_ids("         0          0 4294967295\n"));
        assert!(!maps_all_ids("0 1000 1\n1000 100000 5\n"));
        assert!(maps_all_ids("") && maps_all_ids("nonsense"));
    }
}

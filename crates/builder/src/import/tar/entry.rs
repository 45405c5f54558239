//! One entry of an archive: a header and what extended headers add to it, as values that are in range.

use std::sync::Arc;

use super::accounts::AccountLookup;
use super::archive::{self, TarArchive};
use super::header::{TarFormat, TarHeader};
use super::pax::{PaxRecords, Xattrs};
use super::sparse::SparseExtent;
use super::{acl, shown};
use crate::tree::{Content, Metadata, NodeKind, Timestamp};

/// Longest target of a symlink that Linux takes.
const TARGET_BYTES_MAX: usize = 4095;
/// Largest numbers of a device that Linux takes: 12 and 20 bits.
const MAJOR_MAX: u64 = (1 << 12) - 1;
const MINOR_MAX: u64 = (1 << 20) - 1;

const ACCESS_ACL: &[u8] = b"system.posix_acl_access";
const DEFAULT_ACL: &[u8] = b"system.posix_acl_default";

/// What stood before a header and belongs to it.
#[derive(Clone, Default)]
pub(super) struct PendingExtensions {
    pub(super) records: PaxRecords,
    /// GNU's `L` and `K`.
    pub(super) long_path: Option<Vec<u8>>,
    pub(super) long_link: Option<Vec<u8>>,
}

/// What an entry is.
pub(super) enum EntryKind {
    /// Anything but what follows.
    Inode(NodeKind),
    Directory,
    /// Another name for the file of this path.
    HardLink(Vec<u8>),
}

/// An entry.
pub(super) struct TarEntry {
    /// As the archive has it.
    pub(super) path: Vec<u8>,
    pub(super) kind: EntryKind,
    pub(super) metadata: Metadata,
    /// The byte of the archive at which its header lies.
    pub(super) offset: u64,
}

/// What follows a header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum EntryData {
    /// Contents of a regular file: this many bytes.
    File(u64),
    /// Something that is passed over: this many bytes.
    Skipped(u64),
}

/// A header with its extension.
pub(super) struct EntryHeader {
    pub(super) header: TarHeader,
    pub(super) extension: PendingExtensions,
}

impl EntryHeader {
    /// The entry's path, which says whether it is a directory by the slash at its end.
    pub(super) fn path(&self) -> Vec<u8> {
        let records = &self.extension.records;
        let given = records.sparse.name.as_ref().or(records.path.as_ref());
        let given = given.or(self.extension.long_path.as_ref());
        given.cloned().unwrap_or_else(|| self.header.path())
    }

    fn link(&self) -> Vec<u8> {
        let given = self.extension.records.link.as_ref().or(self.extension.long_link.as_ref());
        given.cloned().unwrap_or_else(|| self.header.link())
    }

    /// What follows. Links, devices and the like have no contents whatever their size says, as all tars have it.
    pub(super) fn body(&self, path: &[u8]) -> Result<EntryData, String> {
        match self.header.type_flag() {
            b'0' | b'7' | 0 if path.ends_with(b"/") => match self.size()? {
                0 => Ok(EntryData::Skipped(0)),
                bytes => {
                    Err(format!("is a directory by its slash, and has {bytes} bytes of contents"))
                }
            },
            b'0' | b'7' | 0 => Ok(EntryData::File(self.size()?)),
            b'S' if self.header.format() == TarFormat::Gnu => Ok(EntryData::File(self.size()?)),
            // The names in a directory, for incremental dumps.
            b'D' => Ok(EntryData::Skipped(self.size()?)),
            b'1'..=b'6' => Ok(EntryData::Skipped(0)),
            other => Err(format!("is of type '{}', which is not known", other.escape_ascii())),
        }
    }

    /// How many bytes follow, if any do.
    pub(super) fn size(&self) -> Result<u64, String> {
        let size = match self.extension.records.size {
            Some(size) => i64::try_from(size).map_err(|_| format!("has a size of {size} bytes"))?,
            None => self.header.size().map_err(|why| format!("has a header whose {why}"))?,
        };
        u64::try_from(size).map_err(|_| format!("has a size of {size} bytes"))
    }

    /// Whether its contents have the old sparse map in the header.
    pub(super) fn has_old_map(&self) -> bool {
        self.header.type_flag() == b'S'
    }

    /// What it is, if it is no regular file with contents.
    pub(super) fn kind(&self) -> Result<EntryKind, String> {
        let kind = match self.header.type_flag() {
            b'1' => return Ok(EntryKind::HardLink(self.link())),
            b'2' => NodeKind::Symlink(target(self.link())?.into()),
            b'3' | b'4' => {
                let (major, minor) = self.device()?;
                if self.header.type_flag() == b'3' {
                    NodeKind::CharacterDevice { major, minor }
                } else {
                    NodeKind::BlockDevice { major, minor }
                }
            }
            b'6' => NodeKind::Fifo,
            _ => return Ok(EntryKind::Directory),
        };
        Ok(EntryKind::Inode(kind))
    }

    fn device(&self) -> Result<(u32, u32), String> {
        let records = &self.extension.records;
        let (major, minor) = match (records.major, records.minor) {
            (Some(major), Some(minor)) => (Some(major), Some(minor)),
            (major, minor) => {
                let (own_major, own_minor) =
                    self.header.device().map_err(|why| format!("is a device, and {why}"))?;
                (major.or(u64::try_from(own_major).ok()), minor.or(u64::try_from(own_minor).ok()))
            }
        };
        let part = |number: Option<u64>, max| {
            let number = number.filter(|number| *number <= max);
            number.and_then(|number| u32::try_from(number).ok())
        };
        match (part(major, MAJOR_MAX), part(minor, MINOR_MAX)) {
            (Some(major), Some(minor)) => Ok((major, minor)),
            _ => Err("is a device with numbers that are out of range".to_owned()),
        }
    }

    /// Owner, permissions, time and xattrs.
    pub(super) fn metadata(
        &mut self,
        is_directory: bool,
        accounts: &mut AccountLookup,
    ) -> Result<Metadata, String> {
        let header = |why: String| format!("has a header whose {why}");
        let records = &self.extension.records;
        let uid = records.uid.map_or_else(|| self.header.uid(), Ok).map_err(header)?;
        let gid = records.gid.map_or_else(|| self.header.gid(), Ok).map_err(header)?;
        let mtime = match records.mtime {
            Some(mtime) => mtime,
            None => Timestamp { seconds: self.header.mtime().map_err(header)?, nanoseconds: 0 },
        };
        let id = |id: i64| u32::try_from(id).map_err(|_| format!("has {id} as its owner or group"));
        let permissions = self.header.permissions().map_err(header)?;
        let (uid, gid) = (id(uid)?, id(gid)?);
        let xattrs = self.xattrs(is_directory, accounts)?;
        Ok(Metadata { permissions, uid, gid, mtime, xattrs })
    }

    fn xattrs(
        &mut self,
        is_directory: bool,
        accounts: &mut AccountLookup,
    ) -> Result<Xattrs, String> {
        let records = &mut self.extension.records;
        let mut xattrs = std::mem::take(&mut records.xattrs);
        if records.default_acl.is_some() && !is_directory {
            return Err("has a default ACL, which only directories have".to_owned());
        }
        for (name, text) in [(ACCESS_ACL, &records.access_acl), (DEFAULT_ACL, &records.default_acl)]
        {
            let Some(text) = text else { continue };
            let value = acl::parse(text, accounts);
            let value = value.map_err(|why| format!("has an ACL that is none: {why}"))?;
            match (name == DEFAULT_ACL, value) {
                (_, Some(value)) => drop(xattrs.insert(name.into(), value.into())),
                // Whoever wrote the text wins over whoever wrote the bytes.
                (_, None) => drop(xattrs.remove(name)),
            }
        }
        Ok(xattrs)
    }
}

/// The content of a file that lies in one piece at `place`.
pub(super) fn contiguous_content(
    archive: &Arc<TarArchive>,
    name: &[u8],
    place: u64,
    bytes: u64,
) -> Content {
    let segment = SparseExtent { start: 0, bytes, place };
    let segments = if bytes == 0 { Vec::new() } else { vec![segment] };
    archive::content(archive, name, segments, bytes)
}

fn target(link: Vec<u8>) -> Result<Vec<u8>, String> {
    if link.is_empty() || link.len() > TARGET_BYTES_MAX {
        let bytes = link.len();
        return Err(format!("is a symlink to {}, of {bytes} bytes", shown(&link)));
    }
    Ok(link)
}

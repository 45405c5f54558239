//! Reads the entries of an archive in their order: headers with their extensions, and contents.

use std::sync::Arc;

use super::acl::{AccountLookup, AclKind};
use super::archive::TarArchive;
use super::headers::{
    BLOCK_BYTES, PaxRecords, PaxScope, PaxXattrs, SparseExtent, SparseForm, SparseMap, TarFormat,
    TarHeader, decimal, parse_number, until_zero,
};
use super::input::{StoredHoles, TarInput};

use super::{ForeignNameFn, TarContentMode, TarImportOptions, acl, archive, display_name, refused};
use crate::decompress::Compression;
use crate::tree::{Content, Metadata, NodeKind, Timestamp};
use crate::{Error, ErrorKind, Result};

/// The most bytes of the extended headers of one entry, which are kept in memory. Names have at most 4 KiB
/// and xattrs 64 KiB, so only a map of some ten thousand holes comes near.
const EXTENSION_BYTES_MAX: u64 = 1 << 20;
/// By so many bytes of its start a file is named that is no archive. Some file systems show only after 64 KiB.
const START_BYTES: usize = 128 << 10;
/// The old sparse map in a header and in the blocks that continue it.
const OLD_MAP: std::ops::Range<usize> = 386..482;
const OLD_MAP_GOES_ON: usize = 482;
const OLD_BYTES: std::ops::Range<usize> = 483..495;
const MORE_MAP: std::ops::Range<usize> = 0..504;
const MORE_MAP_GOES_ON: usize = 504;
/// Offset and length of a data range, 12 bytes each.
const OLD_PART_BYTES: usize = 24;

/// Reads the entries of an archive.
pub(super) struct EntryReader {
    input: TarInput,
    /// The values of global headers.
    globals: PendingExtensions,
    is_concatenated: bool,
    /// Names what a file is that begins with zeros and is no archive; `None`: the rest of it is not looked at.
    foreign_name: Option<ForeignNameFn>,
    /// A header was read.
    has_header: bool,
    accounts: AccountLookup,
    /// The archive has headers without contents.
    headers_only: bool,
    sparse_extents_max: usize,
    stored_holes: StoredHoles,
}

impl EntryReader {
    /// Reads the entries of `input`, and of archives that follow its end if the options allow it.
    pub(super) fn new(input: TarInput, options: &TarImportOptions) -> Self {
        let headers_only = options.contents == TarContentMode::HeadersOnly;
        let globals = PendingExtensions::default();
        let accounts = AccountLookup::new(options.accounts.clone());
        Self {
            input,
            globals,
            is_concatenated: options.concatenated,
            foreign_name: options.foreign_name,
            has_header: false,
            accounts,
            headers_only,
            sparse_extents_max: options.sparse_extents_max,
            stored_holes: options.stored_holes,
        }
    }

    /// Ends reading, so that contents can be read. Returns the length of the archive.
    pub(super) fn finish(self) -> Result<u64> {
        self.input.finish()
    }

    /// Counts the directories without an entry that the path of an entry leads through.
    ///
    /// # Errors
    /// As [`TarInput::count_directories`].
    pub(super) fn count_directories(&mut self, count: u64, path: &[u8], offset: u64) -> Result<()> {
        self.input.count_directories(count, path, offset)
    }

    /// The next entry.
    pub(super) fn next(&mut self) -> Result<Option<TarEntry>> {
        let mut extension = self.globals.clone();
        let mut extended_at = None;
        let mut remaining = EXTENSION_BYTES_MAX;
        loop {
            let offset = self.input.offset();
            let Some(header) = self.header()? else {
                return match extended_at {
                    Some(at) => Err(refused("an extended header without an entry after it", at)),
                    None => Ok(None),
                };
            };
            match header.type_flag() {
                b'x' | b'X' => {
                    let bytes = self.extension(&header, offset, &mut remaining)?;
                    extension
                        .records
                        .read(&bytes, PaxScope::Entry)
                        .map_err(|why| refused(why, offset))?;
                }
                b'g' => {
                    // Global records have few keys, each with one value.
                    let mut globals_remaining = EXTENSION_BYTES_MAX;
                    let bytes = self.extension(&header, offset, &mut globals_remaining)?;
                    self.globals
                        .records
                        .read(&bytes, PaxScope::All)
                        .map_err(|why| refused(why, offset))?;
                    extension
                        .records
                        .read(&bytes, PaxScope::All)
                        .map_err(|why| refused(why, offset))?;
                    continue;
                }
                b'L' => {
                    extension.long_path = Some(self.long_name(&header, offset, &mut remaining)?);
                }
                b'K' => {
                    extension.long_link = Some(self.long_name(&header, offset, &mut remaining)?);
                }
                // The label of a volume, which does not concern files.
                b'V' => {
                    let bytes = header.size().ok().and_then(|bytes| u64::try_from(bytes).ok());
                    let bytes =
                        bytes.ok_or_else(|| refused("a label has no valid size", offset))?;
                    self.skip_data(bytes, "a label")?;
                    continue;
                }
                _ => return self.entry(EntryHeader { header, extension }, offset).map(Some),
            }
            extended_at.get_or_insert(offset);
        }
    }

    /// The next header; `None` at the end of the archive.
    fn header(&mut self) -> Result<Option<TarHeader>> {
        let mut zeros = 0_u64;
        loop {
            let offset = self.input.offset();
            let mut block = [0; BLOCK_BYTES];
            let got = self.input.read(&mut block)?;
            // An archive of headers may have no end marker, and neither does a layer whose digest proves that
            // nothing is missing: `umoci insert` writes none, and docker's reader needs none.
            let needs_no_mark = self.headers_only || self.input.has_proved_end();
            if got == 0 && (zeros > 0 || needs_no_mark) {
                return Ok(None);
            }
            if got < BLOCK_BYTES {
                if zeros > 0 && block.iter().all(|byte| *byte == 0) {
                    return Ok(None);
                }
                let end = offset.saturating_add(got as u64);
                return Err(refused(
                    "the archive ends where a header or its end marker should be",
                    end,
                ));
            }
            if block.iter().all(|byte| *byte == 0) {
                if zeros > 0 && !self.is_concatenated {
                    return self.end(&block);
                }
                zeros += 1;
                continue;
            }
            return match TarHeader::parse(&block) {
                Some(_) if zeros == 1 && !self.is_concatenated => {
                    let why = "an entry follows a single block of zeros; an archive ends with two";
                    Err(refused(why, offset))
                }
                Some(header) => {
                    self.has_header = true;
                    Ok(Some(header))
                }
                // Two blocks of zeros end an archive; what follows is not an archive.
                None if zeros > 1 => self.end(&block),
                None => Err(no_header(&block, offset)),
            };
        }
    }

    /// The end of the archive, after the block `last`. Before it may be no header: then the file is an empty archive
    /// if zeros follow, and only if the options want to know that, the rest is read.
    fn end(&mut self, last: &[u8]) -> Result<Option<TarHeader>> {
        let Some(foreign_name) = self.foreign_name.filter(|_| !self.has_header) else {
            return Ok(None);
        };
        let zeros = self.input.offset().saturating_sub(last.len() as u64);
        let mut start = vec![0; usize::try_from(zeros).unwrap_or(usize::MAX).min(START_BYTES)];
        let mut piece = last.to_vec();
        let mut first_byte = None;
        while !piece.is_empty() && (first_byte.is_none() || start.len() < START_BYTES) {
            self.input.check_cancelled()?;
            if first_byte.is_none()
                && let Some(at) = piece.iter().position(|byte| *byte != 0)
            {
                first_byte = Some(self.input.offset() - (piece.len() - at) as u64);
            }
            start.extend_from_slice(&piece[..piece.len().min(START_BYTES - start.len())]);
            piece.resize(START_BYTES, 0);
            let got = self.input.read(&mut piece)?;
            piece.truncate(got);
        }
        let Some(first_byte) = first_byte else { return Ok(None) };
        Err(match foreign_name(&start) {
            Some(name) => {
                let advice = "build from an archive or a directory of its files";
                let why = format!("not a tar archive: this is {name}; {advice}");
                Error::new(ErrorKind::Archive(why))
            }
            None => {
                let why = "not a tar archive: it begins with the two blocks of zeros that end one, and has other \
                           bytes after them";
                refused(why, first_byte)
            }
        })
    }

    /// The contents of an extended header. `remaining` is how many bytes those of its entry may still have.
    fn extension(
        &mut self,
        header: &TarHeader,
        offset: u64,
        remaining: &mut u64,
    ) -> Result<Vec<u8>> {
        let bytes = header.size().ok().and_then(|bytes| u64::try_from(bytes).ok());
        let bytes = bytes.ok_or_else(|| refused("an extended header has no valid size", offset))?;
        if bytes > EXTENSION_BYTES_MAX {
            let what =
                format!("an extended header of {bytes} bytes, more than {EXTENSION_BYTES_MAX}");
            return Err(refused(what, offset));
        }
        *remaining = remaining.checked_sub(bytes).ok_or_else(|| {
            let what = "extended headers of one entry with more than";
            refused(format!("{what} {EXTENSION_BYTES_MAX} bytes"), offset)
        })?;
        let mut body = vec![0; usize::try_from(bytes).unwrap_or(0)];
        if self.input.read(&mut body)? < body.len() {
            return Err(self.truncated("an extended header"));
        }
        self.pad(bytes, "an extended header")?;
        Ok(body)
    }

    fn long_name(
        &mut self,
        header: &TarHeader,
        offset: u64,
        remaining: &mut u64,
    ) -> Result<Vec<u8>> {
        let body = self.extension(header, offset, remaining)?;
        Ok(until_zero(&body).to_vec())
    }

    /// Skips contents and their padding.
    fn skip_data(&mut self, bytes: u64, what: &str) -> Result<()> {
        if self.input.skip(bytes)? < bytes {
            return Err(self.truncated(what));
        }
        self.pad(bytes, what)
    }

    /// Skips the padding of `bytes` bytes.
    fn pad(&mut self, bytes: u64, what: &str) -> Result<()> {
        let block = BLOCK_BYTES as u64;
        let rest = (block - bytes % block) % block;
        if self.input.skip(rest)? < rest && !self.input.has_proved_end() {
            return Err(self.truncated(what));
        }
        Ok(())
    }

    fn truncated(&self, what: &str) -> Error {
        refused(format!("the archive ends inside {what}"), self.input.offset())
    }

    fn entry(&mut self, mut head: EntryHeader, offset: u64) -> Result<TarEntry> {
        let path = head.path();
        let wrong = |why: String| refused(format!("{} {why}", display_name(&path)), offset);
        let (kind, is_directory) = match head.body(&path).map_err(wrong)? {
            EntryData::File(bytes) => {
                let content = self.content(&mut head, &path, bytes, offset)?;
                (EntryKind::Inode(NodeKind::File(content)), false)
            }
            EntryData::Skipped(bytes) => {
                self.skip_data(bytes, &display_name(&path))?;
                let kind = head.kind().map_err(wrong)?;
                let is_directory = matches!(kind, EntryKind::Directory);
                (kind, is_directory)
            }
        };
        let metadata = head.metadata(is_directory, &mut self.accounts).map_err(wrong)?;
        Ok(TarEntry { path, kind, metadata, offset })
    }

    /// The content of a regular file, of which the archive holds `stored` bytes.
    fn content(
        &mut self,
        head: &mut EntryHeader,
        path: &[u8],
        stored: u64,
        offset: u64,
    ) -> Result<Content> {
        let wrong = |why: String| refused(format!("{}: {why}", display_name(path)), offset);
        let form = head.extension.records.sparse.form().map_err(wrong)?;
        if self.headers_only {
            return self.absent(head, form.as_ref(), path, stored, offset);
        }
        let (bytes, map, data) = match form {
            _ if head.has_old_map() => {
                let (bytes, map) = self.old_map(&head.header, path, offset)?;
                (bytes, map, stored)
            }
            Some(SparseForm::InRecords { bytes, map }) => (bytes, map, stored),
            Some(SparseForm::BeforeData { bytes }) => {
                let (map, taken) = self.map_before_data(stored, path, offset)?;
                (bytes, map, stored - taken)
            }
            None => {
                let place = self.store(stored, stored, path)?;
                return Ok(contiguous_content(self.input.archive(), path, place, stored));
            }
        };
        let mut segments = map.finish(bytes, data).map_err(wrong)?;
        let place = self.store(data, stored, path)?;
        for segment in &mut segments {
            segment.place = segment
                .place
                .checked_add(place)
                .ok_or_else(|| self.truncated(&display_name(path)))?;
        }
        if self.stored_holes.counts(&segments, bytes) {
            // A map may claim 2^63 bytes and hold none.
            self.input.count_holes(bytes.saturating_sub(data), path, offset)?;
        }
        Ok(archive::content(self.input.archive(), path, &segments, bytes))
    }

    /// The content of a regular file without contents in the archive. `stored` is the size in its
    /// header, which is the size of the file if it is not sparse.
    fn absent(
        &mut self,
        head: &EntryHeader,
        form: Option<&SparseForm>,
        path: &[u8],
        stored: u64,
        offset: u64,
    ) -> Result<Content> {
        let bytes = match form {
            _ if head.has_old_map() => self.old_map(&head.header, path, offset)?.0,
            Some(SparseForm::InRecords { bytes, .. } | SparseForm::BeforeData { bytes }) => *bytes,
            None => stored,
        };
        let content = archive::content(self.input.archive(), path, &[], bytes);
        Ok(content.on_devices(Vec::new()))
    }

    /// Stores `bytes` bytes, the last of `body` bytes of contents. Returns their offset.
    fn store(&mut self, bytes: u64, body: u64, path: &[u8]) -> Result<u64> {
        match self.input.store(bytes, path) {
            Ok(Some(place)) => {
                self.pad(body, &display_name(path))?;
                Ok(place)
            }
            Ok(None) => Err(self.truncated(&display_name(path))),
            Err(error) => Err(error),
        }
    }

    /// The map of GNU's old format: four data ranges in the header, more in the blocks after it.
    fn old_map(
        &mut self,
        header: &TarHeader,
        path: &[u8],
        offset: u64,
    ) -> Result<(u64, SparseMap)> {
        let wrong = |why: String| refused(format!("{}: {why}", display_name(path)), offset);
        let bytes =
            parse_number(header.field(OLD_BYTES)).ok().and_then(|bytes| u64::try_from(bytes).ok());
        let bytes = bytes.ok_or_else(|| wrong("its sparse size is not a number".to_owned()))?;
        let mut map = SparseMap::default();
        add_parts(&mut map, header.field(OLD_MAP)).map_err(wrong)?;
        let mut goes_on = header.field(OLD_MAP_GOES_ON..OLD_MAP_GOES_ON + 1) != b"\0";
        while goes_on {
            let mut block = [0; BLOCK_BYTES];
            if self.input.read(&mut block)? < BLOCK_BYTES {
                return Err(self.truncated(&display_name(path)));
            }
            add_parts(&mut map, &block[MORE_MAP]).map_err(wrong)?;
            map.check_count(self.sparse_extents_max).map_err(wrong)?;
            goes_on = block[MORE_MAP_GOES_ON] != 0;
        }
        Ok((bytes, map))
    }

    /// The map of format 1.0: decimal numbers in lines, padded to a block. Returns it with its
    /// length.
    fn map_before_data(
        &mut self,
        stored: u64,
        path: &[u8],
        offset: u64,
    ) -> Result<(SparseMap, u64)> {
        let wrong = |why: String| refused(format!("{}: {why}", display_name(path)), offset);
        let mut lines = MapLineReader { block: [0; BLOCK_BYTES], at: BLOCK_BYTES, taken: 0 };
        let mut map = SparseMap::default();
        let parts = lines.number(self, stored, path).and_then(|parts| parts.map_err(wrong))?;
        for _ in 0..parts {
            let start = lines.number(self, stored, path).and_then(|start| start.map_err(wrong))?;
            let bytes = lines.number(self, stored, path).and_then(|bytes| bytes.map_err(wrong))?;
            map.push(start, bytes).map_err(wrong)?;
            map.check_count(self.sparse_extents_max).map_err(wrong)?;
        }
        Ok((map, lines.taken))
    }
}

/// Reads lines of numbers from blocks.
struct MapLineReader {
    block: [u8; BLOCK_BYTES],
    at: usize,
    /// The bytes that were read.
    taken: u64,
}

impl MapLineReader {
    /// The number in the next line. The inner error is that of a malformed map.
    fn number(
        &mut self,
        entries: &mut EntryReader,
        stored: u64,
        path: &[u8],
    ) -> Result<std::result::Result<u64, String>> {
        let mut digits = Vec::new();
        loop {
            if self.at == BLOCK_BYTES {
                if stored - self.taken < BLOCK_BYTES as u64 {
                    return Ok(Err("its map is longer than its contents".to_owned()));
                }
                if entries.input.read(&mut self.block)? < BLOCK_BYTES {
                    return Err(entries.truncated(&display_name(path)));
                }
                (self.at, self.taken) = (0, self.taken + BLOCK_BYTES as u64);
            }
            let byte = self.block[self.at];
            self.at += 1;
            match byte {
                b'\n' => return Ok(decimal(&digits)),
                _ if digits.len() < 20 => digits.push(byte),
                _ => return Ok(Err("its map has a line that is not a number".to_owned())),
            }
        }
    }
}

/// Adds the data ranges of GNU's old format. Unused fields are empty.
fn add_parts(map: &mut SparseMap, field: &[u8]) -> std::result::Result<(), String> {
    for part in field.chunks_exact(OLD_PART_BYTES) {
        let (start, bytes) = part.split_at(OLD_PART_BYTES / 2);
        if until_zero(bytes).is_empty() && bytes.first() == Some(&0) {
            break;
        }
        let value = |field| {
            let value = parse_number(field).ok().and_then(|value| u64::try_from(value).ok());
            value.ok_or("its map contains a field that is not a number")
        };
        map.push(value(start)?, value(bytes)?)?;
    }
    Ok(())
}

/// The error of a block that is not a header.
fn no_header(block: &[u8], offset: u64) -> Error {
    match Compression::foreign(block).filter(|_| offset == 0) {
        Some(kind) => refused(
            format!("not a tar archive: it is compressed with {kind}, which is not supported"),
            offset,
        ),
        None if offset == 0 => {
            refused("not a tar archive: its first block has a wrong checksum", offset)
        }
        None => refused("a header with a wrong checksum", offset),
    }
}

/// The longest target of a symlink on Linux.
const TARGET_BYTES_MAX: usize = 4095;
/// The largest device numbers on Linux: 12 and 20 bits.
const MAJOR_MAX: u64 = (1 << 12) - 1;
const MINOR_MAX: u64 = (1 << 20) - 1;

const ACCESS_ACL: &[u8] = b"system.posix_acl_access";
const DEFAULT_ACL: &[u8] = b"system.posix_acl_default";

/// Extensions before a header that belong to it.
#[derive(Clone, Default)]
pub(super) struct PendingExtensions {
    pub(super) records: PaxRecords,
    /// The names in GNU's `L` and `K` entries.
    pub(super) long_path: Option<Vec<u8>>,
    pub(super) long_link: Option<Vec<u8>>,
}

/// The type of an entry.
pub(super) enum EntryKind {
    /// Any other inode.
    Inode(NodeKind),
    Directory,
    /// A hard link to this path.
    HardLink(Vec<u8>),
}

/// An entry.
pub(super) struct TarEntry {
    /// The path in the archive.
    pub(super) path: Vec<u8>,
    pub(super) kind: EntryKind,
    pub(super) metadata: Metadata,
    /// The offset of its header in the archive.
    pub(super) offset: u64,
}

/// The contents after a header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum EntryData {
    /// The contents of a regular file, in bytes.
    File(u64),
    /// Contents that are skipped, in bytes.
    Skipped(u64),
}

/// A header with its extensions.
pub(super) struct EntryHeader {
    pub(super) header: TarHeader,
    pub(super) extension: PendingExtensions,
}

impl EntryHeader {
    /// The path; that of a directory may end with a slash.
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

    /// The contents. As with all tars, links and devices have none, whatever size their header has.
    pub(super) fn body(&self, path: &[u8]) -> Result<EntryData, String> {
        match self.header.type_flag() {
            b'0' | b'7' | 0 if path.ends_with(b"/") => match self.size()? {
                0 => Ok(EntryData::Skipped(0)),
                bytes => {
                    Err(format!("has a name that ends with a slash, but {bytes} bytes of contents"))
                }
            },
            b'0' | b'7' | 0 => Ok(EntryData::File(self.size()?)),
            b'S' if self.header.format() == TarFormat::Gnu => Ok(EntryData::File(self.size()?)),
            // The list of names in a directory, for incremental dumps.
            b'D' => Ok(EntryData::Skipped(self.size()?)),
            b'1'..=b'6' => Ok(EntryData::Skipped(0)),
            other => Err(format!("is of unknown type '{}'", other.escape_ascii())),
        }
    }

    /// The size of the contents.
    pub(super) fn size(&self) -> Result<u64, String> {
        let size = match self.extension.records.size {
            Some(size) => i64::try_from(size).map_err(|_| format!("has a size of {size} bytes"))?,
            None => self.header.size().map_err(|why| format!("has a header whose {why}"))?,
        };
        u64::try_from(size).map_err(|_| format!("has a size of {size} bytes"))
    }

    /// Whether the header has an old sparse map.
    pub(super) fn has_old_map(&self) -> bool {
        self.header.type_flag() == b'S'
    }

    /// The type of an entry that is not a regular file with contents.
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
    ) -> Result<PaxXattrs, String> {
        let records = &mut self.extension.records;
        let mut xattrs = std::mem::take(&mut records.xattrs);
        if records.default_acl.is_some() && !is_directory {
            return Err("has a default ACL, which only directories have".to_owned());
        }
        let acls = [
            (AclKind::Access, ACCESS_ACL, &records.access_acl),
            (AclKind::Default, DEFAULT_ACL, &records.default_acl),
        ];
        for (kind, name, text) in acls {
            let Some(text) = text else { continue };
            let value = acl::parse(text, kind, accounts);
            let value = value.map_err(|why| format!("has an invalid ACL: {why}"))?;
            match value {
                Some(value) => drop(xattrs.insert(name.into(), value.into())),
                // The text of an ACL replaces its xattr.
                None => drop(xattrs.remove(name)),
            }
        }
        Ok(xattrs)
    }
}

/// The content of a file that is stored in one piece at `place`.
pub(super) fn contiguous_content(
    archive: &Arc<TarArchive>,
    name: &[u8],
    place: u64,
    bytes: u64,
) -> Content {
    let segment = SparseExtent { start: 0, bytes, place };
    let segments = if bytes == 0 { Vec::new() } else { vec![segment] };
    archive::content(archive, name, &segments, bytes)
}

fn target(link: Vec<u8>) -> Result<Vec<u8>, String> {
    if link.is_empty() || link.len() > TARGET_BYTES_MAX {
        let bytes = link.len();
        return Err(format!("is a symlink to {}, of {bytes} bytes", display_name(&link)));
    }
    Ok(link)
}

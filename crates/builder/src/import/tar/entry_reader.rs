//! The entries of an archive, one after the other, with what precedes and follows each.

use super::accounts::AccountLookup;
use super::archive;
use super::entry::{
    EntryData, EntryHeader, EntryKind, PendingExtensions, TarEntry, contiguous_content,
};
use super::header::{BLOCK_BYTES, TarHeader, parse_number, until_zero};
use super::input::TarInput;
use super::pax::{PaxScope, number};
use super::sparse::{SparseForm, SparseMap};
use super::{TarContentMode, TarImportOptions};
use super::{refused, shown};
use crate::import::decompress::Compression;
use crate::tree::{Content, NodeKind};
use crate::{Error, Result};

/// Most bytes of one extended header. Names have 4 KiB and xattrs 64 KiB at most, so that nothing but a map of
/// some ten thousand holes comes near; and what is more would be held in memory because a header says so.
const EXTENSION_BYTES_MAX: u64 = 1 << 20;
/// Where the old sparse map lies in a header, and in the blocks that go on with it.
const OLD_MAP: std::ops::Range<usize> = 386..482;
const OLD_MAP_GOES_ON: usize = 482;
const OLD_BYTES: std::ops::Range<usize> = 483..495;
const MORE_MAP: std::ops::Range<usize> = 0..504;
const MORE_MAP_GOES_ON: usize = 504;
/// Offset and length of a part, 12 bytes each.
const OLD_PART_BYTES: usize = 24;

/// Reads an archive's entries.
pub(super) struct EntryReader {
    input: TarInput,
    /// What global headers said.
    globals: PendingExtensions,
    is_concatenated: bool,
    accounts: AccountLookup,
    /// There are no contents behind the headers.
    headers_only: bool,
}

impl EntryReader {
    /// The entries of `input`; if archives may be concatenated, also those behind its end.
    pub(super) fn new(input: TarInput, options: &TarImportOptions) -> Self {
        let headers_only = options.contents == TarContentMode::HeadersOnly;
        let globals = PendingExtensions::default();
        let accounts = AccountLookup::new(options.accounts.clone());
        Self { input, globals, is_concatenated: options.concatenated, accounts, headers_only }
    }

    /// Ends reading, so that contents can be read; says how long the archive is.
    pub(super) fn finish(self) -> Result<u64> {
        self.input.finish()
    }

    /// The next entry.
    pub(super) fn next(&mut self) -> Result<Option<TarEntry>> {
        let mut extension = self.globals.clone();
        let mut extended_at = None;
        loop {
            let offset = self.input.offset();
            let Some(header) = self.header()? else {
                return match extended_at {
                    Some(at) => Err(refused("an extended header that no entry follows", at)),
                    None => Ok(None),
                };
            };
            match header.type_flag() {
                b'x' | b'X' => {
                    let bytes = self.extension(&header, offset)?;
                    extension
                        .records
                        .read(&bytes, PaxScope::Entry)
                        .map_err(|why| refused(why, offset))?;
                }
                b'g' => {
                    let bytes = self.extension(&header, offset)?;
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
                b'L' => extension.long_path = Some(self.long_name(&header, offset)?),
                b'K' => extension.long_link = Some(self.long_name(&header, offset)?),
                // The label of a volume, which says nothing about files.
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

    /// The next header; none behind the last one.
    fn header(&mut self) -> Result<Option<TarHeader>> {
        let mut zeros = 0_u64;
        loop {
            let offset = self.input.offset();
            let mut block = [0; BLOCK_BYTES];
            let got = self.input.read(&mut block)?;
            // Whoever leaves out contents may leave out the end mark, too.
            if got == 0 && (zeros > 0 || self.headers_only) {
                return Ok(None);
            }
            if got < BLOCK_BYTES {
                if zeros > 0 && block.iter().all(|byte| *byte == 0) {
                    return Ok(None);
                }
                let end = offset.saturating_add(got as u64);
                return Err(refused(
                    "the archive ends where a header or its end mark should be",
                    end,
                ));
            }
            if block.iter().all(|byte| *byte == 0) {
                if zeros > 0 && !self.is_concatenated {
                    return Ok(None);
                }
                zeros += 1;
                continue;
            }
            return match TarHeader::parse(&block) {
                Some(_) if zeros == 1 && !self.is_concatenated => {
                    let why = "an entry after a single block of zeros, where two end an archive";
                    Err(refused(why, offset))
                }
                Some(header) => Ok(Some(header)),
                // Two blocks of zeros have ended an archive: what follows is none.
                None if zeros > 1 => Ok(None),
                None => Err(no_header(&block, offset)),
            };
        }
    }

    /// The bytes behind the header of an extension.
    fn extension(&mut self, header: &TarHeader, offset: u64) -> Result<Vec<u8>> {
        let bytes = header.size().ok().and_then(|bytes| u64::try_from(bytes).ok());
        let bytes = bytes.ok_or_else(|| refused("an extended header has no valid size", offset))?;
        if bytes > EXTENSION_BYTES_MAX {
            let what =
                format!("an extended header of {bytes} bytes, more than {EXTENSION_BYTES_MAX}");
            return Err(refused(what, offset));
        }
        let mut body = vec![0; usize::try_from(bytes).unwrap_or(0)];
        if self.input.read(&mut body)? < body.len() {
            return Err(self.truncated("an extended header"));
        }
        self.pad(bytes, "an extended header")?;
        Ok(body)
    }

    fn long_name(&mut self, header: &TarHeader, offset: u64) -> Result<Vec<u8>> {
        let body = self.extension(header, offset)?;
        Ok(until_zero(&body).to_vec())
    }

    /// Passes over contents and what fills up their last block.
    fn skip_data(&mut self, bytes: u64, what: &str) -> Result<()> {
        if self.input.skip(bytes)? < bytes {
            return Err(self.truncated(what));
        }
        self.pad(bytes, what)
    }

    /// Passes over what fills up the last block of `bytes` bytes.
    fn pad(&mut self, bytes: u64, what: &str) -> Result<()> {
        let block = BLOCK_BYTES as u64;
        let rest = (block - bytes % block) % block;
        if self.input.skip(rest)? < rest {
            return Err(self.truncated(what));
        }
        Ok(())
    }

    fn truncated(&self, what: &str) -> Error {
        refused(format!("the archive ends inside {what}"), self.input.offset())
    }

    fn entry(&mut self, mut head: EntryHeader, offset: u64) -> Result<TarEntry> {
        let path = head.path();
        let wrong = |why: String| refused(format!("{} {why}", shown(&path)), offset);
        let (kind, is_directory) = match head.body(&path).map_err(wrong)? {
            EntryData::File(bytes) => {
                let content = self.content(&mut head, &path, bytes, offset)?;
                (EntryKind::Inode(NodeKind::File(content)), false)
            }
            EntryData::Skipped(bytes) => {
                self.skip_data(bytes, &shown(&path))?;
                let kind = head.kind().map_err(wrong)?;
                let is_directory = matches!(kind, EntryKind::Directory);
                (kind, is_directory)
            }
        };
        let metadata = head.metadata(is_directory, &mut self.accounts).map_err(wrong)?;
        Ok(TarEntry { path, kind, metadata, offset })
    }

    /// The content of a regular file: `stored` bytes, which are all of it if it is not sparse.
    fn content(
        &mut self,
        head: &mut EntryHeader,
        path: &[u8],
        stored: u64,
        offset: u64,
    ) -> Result<Content> {
        let wrong = |why: String| refused(format!("{}: {why}", shown(path)), offset);
        let form = head.extension.records.sparse.form().map_err(wrong)?;
        if self.headers_only {
            return self.absent(head, form.as_ref(), path, (stored, offset));
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
            segment.place =
                segment.place.checked_add(place).ok_or_else(|| self.truncated(&shown(path)))?;
        }
        Ok(archive::content(self.input.archive(), path, segments, bytes))
    }

    /// The content of a regular file of which there is nothing but the header, whose size is `stored` if it
    /// is not sparse.
    fn absent(
        &mut self,
        head: &EntryHeader,
        form: Option<&SparseForm>,
        path: &[u8],
        (stored, offset): (u64, u64),
    ) -> Result<Content> {
        let bytes = match form {
            _ if head.has_old_map() => self.old_map(&head.header, path, offset)?.0,
            Some(SparseForm::InRecords { bytes, .. } | SparseForm::BeforeData { bytes }) => *bytes,
            None => stored,
        };
        let content = archive::content(self.input.archive(), path, Vec::new(), bytes);
        Ok(content.on_devices(Vec::new()))
    }

    /// Keeps `bytes` bytes, the last of a body of `body` bytes.
    fn store(&mut self, bytes: u64, body: u64, path: &[u8]) -> Result<u64> {
        match self.input.store(bytes, path) {
            Ok(Some(place)) => {
                self.pad(body, &shown(path))?;
                Ok(place)
            }
            Ok(None) => Err(self.truncated(&shown(path))),
            Err(error) => Err(error),
        }
    }

    /// The map of GNU's old format: four parts in the header, more in blocks behind it.
    fn old_map(
        &mut self,
        header: &TarHeader,
        path: &[u8],
        offset: u64,
    ) -> Result<(u64, SparseMap)> {
        let wrong = |why: String| refused(format!("{}: {why}", shown(path)), offset);
        let bytes =
            parse_number(header.field(OLD_BYTES)).ok().and_then(|bytes| u64::try_from(bytes).ok());
        let bytes = bytes.ok_or_else(|| wrong("its sparse size is no number".to_owned()))?;
        let mut map = SparseMap::default();
        add_parts(&mut map, header.field(OLD_MAP)).map_err(wrong)?;
        let mut goes_on = header.field(OLD_MAP_GOES_ON..OLD_MAP_GOES_ON + 1) != b"\0";
        while goes_on {
            let mut block = [0; BLOCK_BYTES];
            if self.input.read(&mut block)? < BLOCK_BYTES {
                return Err(self.truncated(&shown(path)));
            }
            add_parts(&mut map, &block[MORE_MAP]).map_err(wrong)?;
            goes_on = block[MORE_MAP_GOES_ON] != 0;
        }
        Ok((bytes, map))
    }

    /// The map of format 1.0: decimal numbers in lines, filled up to a block; and how many bytes it takes.
    fn map_before_data(
        &mut self,
        stored: u64,
        path: &[u8],
        offset: u64,
    ) -> Result<(SparseMap, u64)> {
        let wrong = |why: String| refused(format!("{}: {why}", shown(path)), offset);
        let mut lines = MapLineReader { block: [0; BLOCK_BYTES], at: BLOCK_BYTES, taken: 0 };
        let mut map = SparseMap::default();
        let parts = lines.number(self, stored, path).and_then(|parts| parts.map_err(wrong))?;
        for _ in 0..parts {
            let start = lines.number(self, stored, path).and_then(|start| start.map_err(wrong))?;
            let bytes = lines.number(self, stored, path).and_then(|bytes| bytes.map_err(wrong))?;
            map.push(start, bytes).map_err(wrong)?;
        }
        Ok((map, lines.taken))
    }
}

/// Lines of numbers in blocks.
struct MapLineReader {
    block: [u8; BLOCK_BYTES],
    at: usize,
    /// How many bytes were read.
    taken: u64,
}

impl MapLineReader {
    /// The number in the next line; the inner error is one of the map.
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
                    return Err(entries.truncated(&shown(path)));
                }
                (self.at, self.taken) = (0, self.taken + BLOCK_BYTES as u64);
            }
            let byte = self.block[self.at];
            self.at += 1;
            match byte {
                b'\n' => return Ok(number(&digits)),
                _ if digits.len() < 20 => digits.push(byte),
                _ => return Ok(Err("its map has a line that is no number".to_owned())),
            }
        }
    }
}

/// Adds the parts of GNU's old format. Unused ones are empty.
fn add_parts(map: &mut SparseMap, field: &[u8]) -> std::result::Result<(), String> {
    for part in field.chunks_exact(OLD_PART_BYTES) {
        let (start, bytes) = part.split_at(OLD_PART_BYTES / 2);
        if until_zero(bytes).is_empty() && bytes.first() == Some(&0) {
            break;
        }
        let value = |field| {
            let value = parse_number(field).ok().and_then(|value| u64::try_from(value).ok());
            value.ok_or("its map holds what is no number")
        };
        map.push(value(start)?, value(bytes)?)?;
    }
    Ok(())
}

/// Why a block is no header.
fn no_header(block: &[u8], offset: u64) -> Error {
    match Compression::foreign(block).filter(|_| offset == 0) {
        Some(kind) => refused(
            format!("no tar archive, but one compressed with {kind}, which is not read"),
            offset,
        ),
        None if offset == 0 => {
            refused("no tar archive: its first block has a wrong checksum", offset)
        }
        None => refused("a header with a wrong checksum", offset),
    }
}

//! Directories and symlinks: listing, looking names up, following paths (docs/format.md F16 to
//! F19).

use std::ops::{ControlFlow, Range};

use ferrofs_ondisk::dirent::{DirBlock, Dirent, check_name};
use ferrofs_ondisk::{FileType, Nid};

use crate::error::{Error, ErrorContext, ErrorKind, Result, parsed};
use crate::extent::DataLocation;
use crate::inner::ImageInner;
use crate::inode::Inode;
use crate::map::ExtentMap;
use crate::source;

/// Bytes of an entry without its name. Positions in a directory count in entries of this size.
const ENTRY_BYTES: u64 = 12;

/// The longest symlink target, in bytes: Linux's `PATH_MAX` counts a NUL at the end.
const TARGET_MAX: usize = 4095;

/// The most bytes of names of a path that are left to look up, with a slash for each. Linux has 4 KiB for a
/// path, and each symlink may add 4 KiB.
pub(crate) const NAMES_MAX_BYTES: usize = 64 << 10;

/// An entry of a directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DirEntry {
    /// The inode it leads to.
    pub nid: Nid,
    /// The file type that the directory holds for the inode; the mode of the inode decides. `None`
    /// if the directory holds none, or an unknown one.
    pub type_hint: Option<FileType>,
    pub(crate) type_number: u8,
    /// Its name: bytes, 1 to 255 of them, without a slash and a NUL.
    pub name: Box<[u8]>,
}

impl DirEntry {
    /// Whether it is `.` or `..`.
    pub(crate) fn is_dot(&self) -> bool {
        matches!(&*self.name, b"." | b"..")
    }
}

/// The entries of a directory. The iterator ends after an error.
#[derive(Debug)]
pub struct ReadDir<'a> {
    entries: RawEntries<'a>,
}

impl Iterator for ReadDir<'_> {
    type Item = Result<DirEntry>;

    fn next(&mut self) -> Option<Self::Item> {
        self.entries.find(|entry| !entry.as_ref().is_ok_and(DirEntry::is_dot))
    }
}

/// An entry of a listing, with a borrowed name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DirEntryRef<'a> {
    /// The inode it leads to.
    pub nid: Nid,
    /// The file type that the directory holds for the inode.
    pub type_hint: Option<FileType>,
    /// Its name, as in [`DirEntry::name`]. `.` and `..` are listed, too; a directory that does not store `.` is listed with
    /// it at the end.
    pub name: &'a [u8],
    /// The position from which [`Image::list`](crate::Image::list) continues behind it.
    pub next: u64,
}

/// All entries, `.` and `..` among them.
#[derive(Debug)]
pub(crate) struct RawEntries<'a> {
    inner: &'a ImageInner,
    dir: Inode,
    cursor: DirCursor,
}

impl Iterator for RawEntries<'_> {
    type Item = Result<DirEntry>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            if let Some(entry) = self.cursor.next() {
                let checked = valid_name(entry.name, &self.dir).map(|name| DirEntry {
                    nid: entry.nid,
                    type_hint: FileType::from_dirent(entry.type_number).unwrap_or(None),
                    type_number: entry.type_number,
                    name: name.into(),
                });
                if checked.is_err() {
                    self.cursor.end();
                }
                return Some(checked);
            }
            match self.cursor.load(self.inner, &self.dir) {
                Ok(true) => {}
                Ok(false) => return None,
                Err(error) => return Some(Err(error)),
            }
        }
    }
}

/// The name of an entry, unless it has a slash or a NUL: what it leads to for a caller that joins it to a path is anywhere.
fn valid_name<'a>(name: &'a [u8], dir: &Inode) -> Result<&'a [u8]> {
    match check_name(name) {
        Ok(()) => Ok(name),
        Err(error) => {
            let error = Error::new(ErrorKind::Format(error.into_kind()));
            Err(error.in_inode(dir.nid()).at(dir.offset()))
        }
    }
}

/// A position in a directory, and the block there while it is loaded. The block can be dropped and
/// loaded again.
#[derive(Debug, Default)]
pub(crate) struct DirCursor {
    /// Where the block of the next entry starts in the directory.
    start: u64,
    /// The number of the next entry in that block.
    index: usize,
    /// The block. All its entries are valid.
    block: Vec<u8>,
}

impl DirCursor {
    /// The next entry of the loaded block; `None` if no block is loaded, or it has no more.
    pub(crate) fn next(&mut self) -> Option<Dirent<'_>> {
        let entry = DirBlock::parse(&self.block).ok()?.entry(self.index).ok()?;
        self.index = self.index.saturating_add(1);
        Some(entry)
    }

    /// Loads the block of the next entry: the same again, or the one after a block that was read to
    /// its end. False at the end of the directory.
    ///
    /// # Errors
    /// The block cannot be read, or is damaged. The cursor is at the end then.
    pub(crate) fn load(&mut self, inner: &ImageInner, dir: &Inode) -> Result<bool> {
        if !self.block.is_empty() {
            self.start = inner.dir_block(dir, self.start).end;
            self.index = 0;
            self.block.clear();
        }
        if self.start >= dir.size() {
            return Ok(false);
        }
        let loaded = self.read(inner, dir);
        if loaded.is_err() {
            self.end();
        }
        loaded.map(|()| true)
    }

    fn read(&mut self, inner: &ImageInner, dir: &Inode) -> Result<()> {
        let range = inner.dir_block(dir, self.start);
        let bytes = inner.dir_bytes(dir, &range)?;
        // Only for a damaged block is it worth finding its place in the image.
        let place = || inner.dir_place(dir, range.start);
        let check = || {
            let block = DirBlock::parse(&bytes)?;
            block.entries().try_for_each(|entry| entry.map(drop))
        };
        check().or_else(|error| parsed(Err(error), place())).in_inode(dir.nid())?;
        self.block = bytes;
        Ok(())
    }

    /// Whether the block that is loaded has not been read from yet.
    pub(crate) fn is_at_block_start(&self) -> bool {
        self.index == 0
    }

    /// Where the loaded block lies in the directory, and how many bytes and entries it has.
    pub(crate) fn loaded(&self) -> (Range<u64>, usize) {
        let end = self.start.saturating_add(u64::try_from(self.block.len()).unwrap_or(0));
        let count = DirBlock::parse(&self.block).map_or(0, |block| block.count());
        (self.start..end, count)
    }

    /// Goes to the end of the directory. The block stays loaded.
    pub(crate) fn end(&mut self) {
        (self.start, self.index) = (u64::MAX, usize::MAX);
    }

    /// Drops the block; returns how many bytes it had.
    pub(crate) fn unload(&mut self) -> usize {
        std::mem::take(&mut self.block).len()
    }

    /// Bytes of the block.
    pub(crate) fn block_bytes(&self) -> usize {
        self.block.len()
    }
}

impl ImageInner {
    pub(crate) fn read_dir(&self, dir: &Inode) -> Result<ReadDir<'_>> {
        Ok(ReadDir { entries: self.raw_entries(dir)? })
    }

    pub(crate) fn list(
        &self,
        dir: &Inode,
        from: u64,
        visit: &mut dyn FnMut(&DirEntryRef<'_>) -> ControlFlow<()>,
    ) -> Result<()> {
        dir.require(FileType::Directory)?;
        let mut start = self.sb.block_size.floor(from);
        let mut skipped = usize::try_from(from.saturating_sub(start).div_ceil(ENTRY_BYTES));
        while start < dir.size() {
            let range = self.dir_block(dir, start);
            let bytes = self.dir_bytes(dir, &range)?;
            // Only for a damaged block is it worth finding its place in the image.
            let failed = || self.dir_place(dir, start);
            let block = DirBlock::parse(&bytes);
            let block = block.or_else(|error| parsed(Err(error), failed())).in_inode(dir.nid())?;
            let mut next = start;
            let mut entries = block.entries().peekable();
            let mut left = std::mem::replace(&mut skipped, Ok(0)).unwrap_or(usize::MAX);
            while let Some(entry) = entries.next() {
                let entry = entry.or_else(|error| parsed(Err(error), failed()));
                let entry = entry.in_inode(dir.nid())?;
                next = next.saturating_add(ENTRY_BYTES);
                if left > 0 {
                    left = left.saturating_sub(1);
                    continue;
                }
                let is_last = entries.peek().is_none();
                let listed = DirEntryRef {
                    nid: entry.nid,
                    type_hint: FileType::from_dirent(entry.type_number).unwrap_or(None),
                    name: valid_name(entry.name, dir)?,
                    next: if is_last { range.end } else { next },
                };
                if visit(&listed).is_break() {
                    return Ok(());
                }
            }
            start = range.end;
        }
        if dir.disk.has_no_dot && from <= dir.size() {
            let next = dir.size().saturating_add(1);
            let type_hint = Some(FileType::Directory);
            let _last = visit(&DirEntryRef { nid: dir.nid(), type_hint, name: b".", next });
        }
        Ok(())
    }

    pub(crate) fn raw_entries(&self, dir: &Inode) -> Result<RawEntries<'_>> {
        dir.require(FileType::Directory)?;
        Ok(RawEntries { inner: self, dir: dir.clone(), cursor: DirCursor::default() })
    }

    /// Finds `name` by binary search: first the block whose names may include it, then the name.
    pub(crate) fn lookup(&self, dir: &Inode, name: &[u8]) -> Result<Option<Inode>> {
        dir.require(FileType::Directory)?;
        let block_bytes = u64::from(self.sb.block_size.bytes());
        let (mut low, mut high) = (0, self.sb.block_size.count(dir.size()));
        while low < high {
            let middle = low.midpoint(high);
            let range = self.dir_block(dir, middle.saturating_mul(block_bytes));
            let bytes = self.dir_bytes(dir, &range)?;
            let start = self.dir_place(dir, range.start);
            let block = parsed(DirBlock::parse(&bytes), start).in_inode(dir.nid())?;
            let first = parsed(block.entry(0), start).in_inode(dir.nid())?;
            if first.name > name {
                high = middle;
                continue;
            }
            if let Some(found) = parsed(block.find(name), start).in_inode(dir.nid())? {
                return self.inode(found.nid).map(Some);
            }
            low = middle.saturating_add(1);
        }
        Ok(None)
    }

    pub(crate) fn resolve(&self, path: &[u8]) -> Result<Option<Inode>> {
        check_length(path)?;
        self.descend(path)
    }

    /// As [`Self::resolve`], for a path of any length.
    pub(crate) fn descend(&self, path: &[u8]) -> Result<Option<Inode>> {
        let mut above = Vec::new();
        let mut here = self.inode(self.sb.root)?;
        for name in path.split(|byte| *byte == b'/') {
            match name {
                b"" | b"." => {}
                b".." => here = above.pop().unwrap_or(here),
                _ if here.file_type() != FileType::Directory => return Ok(None),
                _ => {
                    let Some(next) = self.lookup(&here, name)? else { return Ok(None) };
                    above.push(std::mem::replace(&mut here, next));
                }
            }
        }
        Ok(Some(here))
    }

    /// The target of a symlink.
    pub(crate) fn read_link(&self, link: &Inode) -> Result<Vec<u8>> {
        link.require(FileType::Symlink)?;
        let bad = || {
            let kind = ErrorKind::SymlinkTarget(link.size());
            Error::new(kind).in_inode(link.nid()).at(link.offset())
        };
        let size = usize::try_from(link.size()).ok().filter(|size| (1..=TARGET_MAX).contains(size));
        let mut target = source::zeroed(size.ok_or_else(bad)?)?;
        self.read_at(link, 0, &mut target)?;
        if target.contains(&0) { Err(bad()) } else { Ok(target) }
    }

    /// The block of a directory that starts at byte `start` of it.
    fn dir_block(&self, dir: &Inode, start: u64) -> Range<u64> {
        let end = start.saturating_add(u64::from(self.sb.block_size.bytes()));
        start..end.min(dir.size())
    }

    fn dir_bytes(&self, dir: &Inode, range: &Range<u64>) -> Result<Vec<u8>> {
        let length = range.end.saturating_sub(range.start);
        // At most a block.
        let mut bytes = source::zeroed(usize::try_from(length).unwrap_or(usize::MAX))?;
        self.read_at(dir, range.start, &mut bytes)?;
        Ok(bytes)
    }

    /// Where byte `at` of a directory is stored, and how far behind the start of the extent if that
    /// can only be read as a whole. Directories with equal results share their bytes.
    pub(crate) fn dir_source(&self, dir: &Inode, at: u64) -> Result<(DataLocation, u64)> {
        let extent = ExtentMap::new(self, dir)?.extent_at(at)?;
        let skip = at.saturating_sub(extent.start);
        Ok((extent.location.advance(skip)?, skip))
    }

    /// Where byte `at` of a directory lies in the image, for messages. For a compressed directory
    /// it is the byte of the decoded file.
    fn dir_place(&self, dir: &Inode, at: u64) -> u64 {
        let extent = ExtentMap::new(self, dir).and_then(|mut map| map.extent_at(at));
        match extent.and_then(|extent| extent.location.advance(at.saturating_sub(extent.start))) {
            Ok(DataLocation::Stored(address)) => address.offset(),
            _ => at,
        }
    }
}

/// # Errors
/// [`ErrorKind::PathTooLong`] for more than 64 KiB of names.
fn check_length(path: &[u8]) -> Result<()> {
    let names = path.split(|byte| *byte == b'/');
    let names = names.filter(|name| !matches!(*name, b"" | b"."));
    let bytes = names.map(|name| name.len().saturating_add(1)).fold(0, usize::saturating_add);
    if bytes > NAMES_MAX_BYTES { Err(Error::new(ErrorKind::PathTooLong)) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use std::ops::ControlFlow;

    use super::DirEntryRef;
    use crate::image::Image;
    use crate::walk::WalkEvent;

    #[test]
    fn a_listing_goes_on_wherever_it_was_left() {
        for name in ["plain", "lz4", "dot-omitted"] {
            let path = format!("{}/../../tests/data/{name}.erofs", env!("CARGO_MANIFEST_DIR"));
            let image = Image::open(path).unwrap();
            let mut largest = image.root().unwrap();
            for visit in image.walk(b"/").unwrap() {
                if let WalkEvent::Enter(node) = visit
                    && node.inode.size() > largest.size()
                {
                    largest = node.inode;
                }
            }
            let list = |from| {
                let mut found = Vec::new();
                let mut add = |entry: &DirEntryRef<'_>| {
                    found.push((entry.nid, entry.type_hint, entry.name.to_vec(), entry.next));
                    ControlFlow::Continue(())
                };
                image.list(&largest, from, &mut add).unwrap();
                found
            };
            let whole = list(0);
            assert!(whole.iter().any(|entry| entry.2 == b".."));
            let dots = whole.iter().filter(|entry| entry.2 == b".");
            assert_eq!(dots.map(|dot| dot.0).collect::<Vec<_>>(), [largest.nid()]);
            let made = usize::from(largest.disk.has_no_dot);
            let stored = image.inner().raw_entries(&largest).unwrap().count();
            assert_eq!((whole.len(), name == "dot-omitted"), (stored + made, made == 1));
            for (number, entry) in whole.iter().enumerate() {
                assert_eq!(list(entry.3), whole[number + 1..]);
            }
            assert!(list(u64::MAX).is_empty());
        }
    }
}

//! Directory blocks: an array of entries, and their names after it (docs/format.md F16 to F18, F62).

use zerocopy::byteorder::little_endian::{U16, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::address::{BlockSize, Nid};
use crate::bytes::{fit, to_u64, truncated, view};
use crate::error::{Error, ErrorKind, Result};
use crate::inode::FileType;

/// The longest name, in bytes.
pub const NAME_MAX_BYTES: usize = 255;

const ENTRY_BYTES: usize = 12;

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RawDirent {
    nid: U64,
    nameoff: U16,
    file_type: u8,
    _reserved: u8,
}

const _: () = assert!(size_of::<RawDirent>() == ENTRY_BYTES);

/// One entry of a directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Dirent<'a> {
    /// The inode.
    pub nid: Nid,
    /// What the entry says the inode is, for [`FileType::from_dirent`](crate::FileType::from_dirent): a hint, the inode's mode
    /// decides.
    pub type_number: u8,
    /// The name: 1 to 255 bytes. It may have a slash or a NUL, or be `..`: see [`check_name`].
    pub name: &'a [u8],
}

/// A block of a directory whose entry count has been checked.
#[derive(Clone, Copy, Debug)]
pub struct DirBlock<'a> {
    bytes: &'a [u8],
    count: usize,
}

impl<'a> DirBlock<'a> {
    /// Views `bytes`, which are one block of a directory, or what is left of it in the last one.
    ///
    /// # Errors
    /// [`ErrorKind::Truncated`] without one whole entry, [`ErrorKind::DirentCount`] if the first
    /// name offset is no count of entries.
    pub fn parse(bytes: &'a [u8]) -> Result<Self> {
        let first: &RawDirent = view(bytes)?;
        let offset = usize::from(first.nameoff.get());
        if offset < ENTRY_BYTES || offset % ENTRY_BYTES != 0 || offset >= bytes.len() {
            return Err(Error::new(ErrorKind::DirentCount(first.nameoff.get()), 8));
        }
        Ok(Self { bytes, count: offset / ENTRY_BYTES })
    }

    /// How many entries the block has; at least one.
    #[must_use]
    pub const fn count(&self) -> usize {
        self.count
    }

    /// The entry with this number.
    ///
    /// # Errors
    /// [`ErrorKind::NameOffset`] or [`ErrorKind::NameLength`] if its name is not in the name
    /// area, or [`ErrorKind::Truncated`] past the last entry.
    pub fn entry(&self, index: usize) -> Result<Dirent<'a>> {
        let at = index.saturating_mul(ENTRY_BYTES);
        let raw = self.raw(index).ok_or_else(|| truncated(at, self.bytes.len()))?;
        let start = usize::from(raw.nameoff.get());
        let place = to_u64(at).saturating_add(8);
        let misplaced = |offset| Error::new(ErrorKind::NameOffset(offset), place);
        if start < self.count.saturating_mul(ENTRY_BYTES) {
            return Err(misplaced(raw.nameoff.get()));
        }
        let name = match self.raw(index.saturating_add(1)) {
            Some(next) => self
                .bytes
                .get(start..usize::from(next.nameoff.get()))
                .ok_or_else(|| misplaced(next.nameoff.get()))?,
            None => until_nul(self.bytes.get(start..).ok_or_else(|| misplaced(raw.nameoff.get()))?),
        };
        if name.is_empty() || name.len() > NAME_MAX_BYTES {
            return Err(Error::new(ErrorKind::NameLength(to_u64(name.len())), place));
        }
        Ok(Dirent { nid: Nid::new(raw.nid.get()), type_number: raw.file_type, name })
    }

    /// All entries in their order.
    pub fn entries(self) -> impl Iterator<Item = Result<Dirent<'a>>> {
        (0..self.count).map(move |index| self.entry(index))
    }

    /// Looks `name` up by binary search.
    ///
    /// # Errors
    /// The errors of [`DirBlock::entry`] for the entries on the way.
    pub fn find(&self, name: &[u8]) -> Result<Option<Dirent<'a>>> {
        let (mut low, mut high) = (0usize, self.count);
        while low < high {
            let middle = low.midpoint(high);
            let entry = self.entry(middle)?;
            match entry.name.cmp(name) {
                std::cmp::Ordering::Equal => return Ok(Some(entry)),
                std::cmp::Ordering::Less => low = middle.saturating_add(1),
                std::cmp::Ordering::Greater => high = middle,
            }
        }
        Ok(None)
    }

    fn raw(&self, index: usize) -> Option<&'a RawDirent> {
        if index >= self.count {
            return None;
        }
        let at = index.checked_mul(ENTRY_BYTES)?;
        view(self.bytes.get(at..)?).ok()
    }
}

/// Whether a directory may hold `name`: no slash and no NUL in it.
///
/// # Errors
/// [`ErrorKind::NameBytes`] with the byte, [`ErrorKind::NameLength`] if it is empty or too long.
pub fn check_name(name: &[u8]) -> Result<()> {
    if name.is_empty() || name.len() > NAME_MAX_BYTES {
        return Err(Error::new(ErrorKind::NameLength(to_u64(name.len())), 0));
    }
    match name.iter().position(|byte| matches!(byte, 0 | b'/')) {
        Some(at) => {
            let byte = name.get(at).copied().unwrap_or(0);
            Err(Error::new(ErrorKind::NameBytes(byte), to_u64(at)))
        }
        None => Ok(()),
    }
}

/// An entry of a directory that is to be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NewDirent<'a> {
    /// The name, 1 to 255 bytes; `.` and `..` are entries like others.
    pub name: &'a [u8],
    /// The inode.
    pub nid: Nid,
    /// What the inode is.
    pub file_type: FileType,
}

impl NewDirent<'_> {
    /// What an entry takes of its block.
    const fn bytes(&self) -> usize {
        ENTRY_BYTES.saturating_add(self.name.len())
    }
}

/// How the entries of a directory fall into its blocks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DirBlockSplit {
    /// How many entries each block holds, in order.
    pub counts: Vec<usize>,
    /// Bytes of the directory (`i_size`): whole blocks, and what the last one uses.
    pub bytes: u64,
}

/// Writes directories. Each block is filled as far as whole entries go (F62).
#[derive(Clone, Copy, Debug)]
pub struct DirBlockWriter {
    block_size: BlockSize,
}

impl DirBlockWriter {
    /// A writer for directories of an image with this block size.
    #[must_use]
    pub const fn new(block_size: BlockSize) -> Self {
        Self { block_size }
    }

    /// How `entries`, which are a whole directory in its order, fall into blocks. A directory
    /// without entries has no blocks.
    ///
    /// # Errors
    /// [`ErrorKind::NameOrder`] unless the names ascend strictly as unsigned bytes, and what
    /// [`check_name`] finds. The offset is the number of the entry.
    pub fn split(&self, entries: &[NewDirent<'_>]) -> Result<DirBlockSplit> {
        let block = usize::try_from(self.block_size.bytes()).unwrap_or(usize::MAX);
        let mut counts = Vec::new();
        let (mut count, mut used) = (0usize, 0usize);
        let mut before: &[u8] = &[];
        for (number, entry) in entries.iter().enumerate() {
            check_entry(entry, before, number)?;
            before = entry.name;
            // The smallest block holds any one entry: 512 bytes against 12 and a name of 255.
            if used.saturating_add(entry.bytes()) > block {
                counts.push(count);
                (count, used) = (0, 0);
            }
            count = count.saturating_add(1);
            used = used.saturating_add(entry.bytes());
        }
        let whole = self.block_size.offset_of(to_u64(counts.len()));
        if count > 0 {
            counts.push(count);
        }
        let bytes = whole.and_then(|whole| whole.checked_add(to_u64(used))).unwrap_or(u64::MAX);
        Ok(DirBlockSplit { counts, bytes })
    }

    /// Writes one block of a directory: `entries` are as many as [`Self::split`] says, `out` is a
    /// block, or what is left of `i_size` in the last one. All bytes of `out` are written; the
    /// answer is how many are in use, and the rest is zero.
    ///
    /// # Errors
    /// [`ErrorKind::NoRoom`] if they do not fit, [`ErrorKind::Truncated`] for no entry at all, and
    /// the errors of [`Self::split`].
    pub fn write_block(&self, entries: &[NewDirent<'_>], out: &mut [u8]) -> Result<usize> {
        let used = entries.iter().fold(0usize, |sum, entry| sum.saturating_add(entry.bytes()));
        let block = usize::try_from(self.block_size.bytes()).unwrap_or(usize::MAX);
        let room = out.len().min(block);
        if used > room {
            let kind = ErrorKind::NoRoom { wanted: to_u64(used), left: to_u64(room) };
            return Err(Error::new(kind, 0));
        }
        if entries.is_empty() {
            return Err(truncated(ENTRY_BYTES, 0));
        }
        let heads = entries.len().saturating_mul(ENTRY_BYTES);
        let mut bytes = Vec::with_capacity(used);
        let mut name_at = heads;
        let mut before: &[u8] = &[];
        for (number, entry) in entries.iter().enumerate() {
            check_entry(entry, before, number)?;
            before = entry.name;
            let raw = RawDirent {
                nid: entry.nid.raw().into(),
                nameoff: fit::<u16>(to_u64(name_at), "a name offset", to_u64(number))?.into(),
                file_type: entry.file_type.dirent_number(),
                _reserved: 0,
            };
            bytes.extend_from_slice(raw.as_bytes());
            name_at = name_at.saturating_add(entry.name.len());
        }
        for entry in entries {
            bytes.extend_from_slice(entry.name);
        }
        bytes.resize(out.len(), 0);
        out.copy_from_slice(&bytes);
        Ok(used)
    }
}

/// `before` is the name of the entry in front of this one, empty if there is none.
fn check_entry(entry: &NewDirent<'_>, before: &[u8], number: usize) -> Result<()> {
    let at = to_u64(number);
    check_name(entry.name).map_err(|error| Error::new(error.into_kind(), at))?;
    if entry.name <= before {
        return Err(Error::new(ErrorKind::NameOrder, at));
    }
    Ok(())
}

fn until_nul(bytes: &[u8]) -> &[u8] {
    bytes.split(|byte| *byte == 0).next().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// A block with these names, in the given order.
    fn block(names: &[&[u8]]) -> Vec<u8> {
        let mut entries = Vec::new();
        let mut area = Vec::new();
        for (nid, name) in names.iter().enumerate() {
            let offset = names.len() * ENTRY_BYTES + area.len();
            entries.extend_from_slice(&(nid as u64).to_le_bytes());
            entries.extend_from_slice(&(offset as u16).to_le_bytes());
            entries.extend_from_slice(&[1, 0]);
            area.extend_from_slice(name);
        }
        entries.extend_from_slice(&area);
        entries
    }

    #[test]
    fn every_name_is_found_where_a_scan_finds_it() {
        let names: [&[u8]; 5] = [b"!", b".", b"..", b"a", b"ab"];
        let bytes = block(&names);
        let block = DirBlock::parse(&bytes).unwrap();
        assert_eq!(block.count(), 5);
        for (at, name) in names.iter().enumerate() {
            let found = block.find(name).unwrap().unwrap();
            assert_eq!(found.nid, Nid::new(at as u64));
            assert_eq!(FileType::from_dirent(found.type_number), Ok(Some(FileType::Regular)));
        }
        assert_eq!(block.find(b"aa").unwrap(), None);
        assert_eq!(block.find(b"zz").unwrap(), None);
    }

    proptest! {
        #[test]
        fn a_directory_is_read_as_it_was_written(
            names in prop::collection::btree_set(prop::collection::vec(1u8.., 1..=255), 0..60),
            bits in 9u8..=13,
        ) {
            let kinds = [FileType::Regular, FileType::Directory, FileType::Symlink];
            let names: Vec<_> = names.into_iter().filter(|name| check_name(name).is_ok()).collect();
            let entries: Vec<NewDirent<'_>> = names
                .iter()
                .enumerate()
                .map(|(at, name)| NewDirent {
                    name,
                    nid: Nid::new(at as u64 | 1 << 63),
                    file_type: kinds[at % 3],
                })
                .collect();
            let size = BlockSize::from_bits(bits).unwrap();
            let writer = DirBlockWriter::new(size);
            let split = writer.split(&entries).unwrap();
            prop_assert_eq!(split.counts.iter().sum::<usize>(), entries.len());
            prop_assert_eq!(split.counts.len() as u64, size.count(split.bytes));
            let mut data = vec![0xee; split.bytes as usize];
            let mut read = Vec::new();
            let mut rest = entries.as_slice();
            for (out, count) in data.chunks_mut(size.bytes() as usize).zip(&split.counts) {
                let (here, after) = rest.split_at(*count);
                rest = after;
                let used = writer.write_block(here, out).unwrap();
                prop_assert!(out[used..].iter().all(|byte| *byte == 0));
                let more = after.first().map_or(usize::MAX, |next| 12 + next.name.len());
                prop_assert!(used.saturating_add(more) > size.bytes() as usize, "room is left");
                for entry in DirBlock::parse(out).unwrap().entries() {
                    let entry = entry.unwrap();
                    let kind = FileType::from_dirent(entry.type_number).unwrap().unwrap();
                    read.push((entry.name.to_vec(), entry.nid, kind));
                }
            }
            let expected: Vec<_> =
                entries.iter().map(|entry| (entry.name.to_vec(), entry.nid, entry.file_type)).collect();
            prop_assert_eq!(read, expected);
        }
    }

    #[test]
    fn names_out_of_order_or_impossible_are_not_written() {
        let size = BlockSize::from_bits(9).unwrap();
        let writer = DirBlockWriter::new(size);
        let refused = |names: &[&[u8]]| {
            let entries: Vec<NewDirent<'_>> = names
                .iter()
                .map(|name| NewDirent { name, nid: Nid::new(1), file_type: FileType::Fifo })
                .collect();
            let split = writer.split(&entries).unwrap_err();
            assert_eq!(writer.write_block(&entries, &mut [0; 512]).unwrap_err(), split);
            (split.offset(), split.into_kind())
        };
        assert_eq!(refused(&[b".", b"..", b"!"]), (2, ErrorKind::NameOrder));
        assert_eq!(refused(&[b"a", b"a"]), (1, ErrorKind::NameOrder));
        assert_eq!(refused(&[b"a", b"b/"]), (1, ErrorKind::NameBytes(b'/')));
        assert_eq!(refused(&[b""]), (0, ErrorKind::NameLength(0)));
        assert_eq!(refused(&[&[b'x'; 256]]), (0, ErrorKind::NameLength(256)));
        let entry = NewDirent { name: b"name", nid: Nid::new(1), file_type: FileType::Fifo };
        let error = writer.write_block(&[entry], &mut [0; 15]).unwrap_err();
        assert_eq!(*error.kind(), ErrorKind::NoRoom { wanted: 16, left: 15 });
        assert!(writer.write_block(&[], &mut [0; 15]).is_err());
        assert_eq!(writer.write_block(&[entry], &mut [0; 16]), Ok(16));
        assert_eq!(writer.split(&[]).unwrap(), DirBlockSplit { counts: vec![], bytes: 0 });
    }

    #[test]
    fn the_last_name_ends_at_a_nul_or_at_the_block() {
        let mut bytes = block(&[b"a", b"last"]);
        assert_eq!(DirBlock::parse(&bytes).unwrap().entry(1).unwrap().name, b"last");
        bytes.extend_from_slice(&[0, 0, b'x']);
        assert_eq!(DirBlock::parse(&bytes).unwrap().entry(1).unwrap().name, b"last");
    }

    #[test]
    fn impossible_counts_are_refused() {
        let good = block(&[b"a"]);
        for offset in [0u16, 11, 13, 24, 4000] {
            let mut bytes = good.clone();
            bytes[8..10].copy_from_slice(&offset.to_le_bytes());
            let error = DirBlock::parse(&bytes).unwrap_err();
            assert_eq!(*error.kind(), ErrorKind::DirentCount(offset));
        }
        assert!(DirBlock::parse(&good[..11]).is_err());
        assert!(DirBlock::parse(&[]).is_err());
    }

    #[test]
    fn names_outside_the_name_area_are_refused() {
        let good = block(&[b"a", b"b"]);
        for offset in [0u16, 23, 60000] {
            let mut bytes = good.clone();
            bytes[20..22].copy_from_slice(&offset.to_le_bytes());
            let block = DirBlock::parse(&bytes).unwrap();
            assert!(block.entry(1).is_err(), "offset {offset}");
        }
        let mut bytes = good;
        bytes[20..22].copy_from_slice(&24u16.to_le_bytes());
        let error = DirBlock::parse(&bytes).unwrap().entry(0).unwrap_err();
        assert_eq!(*error.kind(), ErrorKind::NameLength(0));
    }

    #[test]
    fn only_names_that_stay_in_their_directory_pass() {
        assert!(check_name(b"..").is_ok());
        assert_eq!(*check_name(b"a/b").unwrap_err().kind(), ErrorKind::NameBytes(b'/'));
        assert_eq!(*check_name(b"a\0").unwrap_err().kind(), ErrorKind::NameBytes(0));
        assert!(check_name(&[b'x'; 255]).is_ok());
        assert!(check_name(&[b'x'; 256]).is_err());
        assert!(check_name(b"").is_err());
    }
}

//! Directory blocks: an array of entries, and their names behind it (docs/format.md F16 to F18).

use zerocopy::byteorder::little_endian::{U16, U64};
use zerocopy::{FromBytes, Immutable, KnownLayout, Unaligned};

use crate::address::Nid;
use crate::bytes::{truncated, view, wide};
use crate::error::{Error, ErrorKind, Result};

/// The longest name, in bytes.
pub const NAME_MAX_BYTES: usize = 255;

const ENTRY_BYTES: usize = 12;

#[derive(FromBytes, Immutable, KnownLayout, Unaligned)]
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
    /// The name: 1 to 255 bytes, without a NUL. It may hold a slash or be `..`: see
    /// [`check_name`].
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
    /// [`ErrorKind::NameOffset`] or [`ErrorKind::NameLength`] if its name does not lie in the name
    /// area, or [`ErrorKind::Truncated`] past the last entry.
    pub fn entry(&self, index: usize) -> Result<Dirent<'a>> {
        let at = index.saturating_mul(ENTRY_BYTES);
        let raw = self.raw(index).ok_or_else(|| truncated(at, self.bytes.len()))?;
        let start = usize::from(raw.nameoff.get());
        let place = wide(at).saturating_add(8);
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
            return Err(Error::new(ErrorKind::NameLength(wide(name.len())), place));
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
        return Err(Error::new(ErrorKind::NameLength(wide(name.len())), 0));
    }
    match name.iter().position(|byte| matches!(byte, 0 | b'/')) {
        Some(at) => {
            let byte = name.get(at).copied().unwrap_or(0);
            Err(Error::new(ErrorKind::NameBytes(byte), wide(at)))
        }
        None => Ok(()),
    }
}

fn until_nul(bytes: &[u8]) -> &[u8] {
    bytes.split(|byte| *byte == 0).next().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::inode::FileType;

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

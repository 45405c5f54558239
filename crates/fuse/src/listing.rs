//! Entries of a directory in the form that `READDIR` and `READDIRPLUS` want, in a buffer of a fixed size. Filled by
//! file systems.

use zerocopy::IntoBytes;

use crate::attributes::Entry;
use crate::wire::{EntryOut, FuseDirent};

/// Collects entries until the room is used up.
#[derive(Debug)]
pub struct DirentBuffer<'a> {
    bytes: &'a mut Vec<u8>,
    capacity: usize,
    is_plus: bool,
}

/// One name of a listing.
#[derive(Clone, Copy, Debug)]
pub struct DirentName<'a> {
    /// The inode number that users see.
    pub ino: u64,
    /// What `offset` a later request has that goes on behind this name.
    pub next: u64,
    /// What it is, as in `d_type`; 0 if that is not known.
    pub file_type: u8,
    /// The name, 1 to 255 bytes.
    pub name: &'a [u8],
}

impl<'a> DirentBuffer<'a> {
    /// An empty list for `READDIR`, or for `READDIRPLUS`; `bytes` is used again from its start.
    pub fn new(bytes: &'a mut Vec<u8>, capacity: usize, is_plus: bool) -> Self {
        bytes.clear();
        Self { bytes, capacity, is_plus }
    }

    /// Whether entries carry attributes.
    #[must_use]
    pub fn is_plus(&self) -> bool {
        self.is_plus
    }

    /// Whether a name of so many bytes has room.
    #[must_use]
    pub fn fits(&self, name_bytes: usize) -> bool {
        self.bytes.len().saturating_add(self.entry_bytes(name_bytes)) <= self.capacity
    }

    /// Adds a name; answers `false`, and adds nothing, if it has no room. `entry` counts only in a list with
    /// attributes; without one the kernel looks the name up when somebody wants it.
    pub fn push(&mut self, listed: &DirentName<'_>, entry: Option<&Entry>) -> bool {
        if !self.fits(listed.name.len()) {
            return false;
        }
        let end = self.bytes.len().saturating_add(self.entry_bytes(listed.name.len()));
        if self.is_plus {
            let entry = entry.map_or_else(EntryOut::default, Entry::on_wire);
            self.bytes.extend_from_slice(entry.as_bytes());
        }
        let dirent = FuseDirent {
            ino: listed.ino,
            offset: listed.next,
            name_bytes: u32::try_from(listed.name.len()).unwrap_or(0),
            file_type: u32::from(listed.file_type),
        };
        self.bytes.extend_from_slice(dirent.as_bytes());
        self.bytes.extend_from_slice(listed.name);
        self.bytes.resize(end, 0);
        true
    }

    /// What goes into the reply; nothing once there are no more entries.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        self.bytes
    }

    fn entry_bytes(&self, name_bytes: usize) -> usize {
        let attributes = if self.is_plus { size_of::<EntryOut>() } else { 0 };
        attributes + size_of::<FuseDirent>() + name_bytes.next_multiple_of(8)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NAME: DirentName<'static> =
        DirentName { ino: 7, next: 1, file_type: 8, name: b"nine-char" };

    #[test]
    fn names_are_padded_and_what_has_no_room_is_left_out() {
        let mut bytes = vec![9; 3];
        let mut listing = DirentBuffer::new(&mut bytes, 100, false);
        assert!(listing.push(&NAME, None));
        assert_eq!(listing.as_bytes().len(), 24 + 16);
        assert!(listing.push(&NAME, None));
        assert!(!listing.push(&NAME, None));
        assert_eq!(listing.as_bytes().len(), 80);
        assert_eq!(listing.as_bytes().get(24..34), Some(&b"nine-char\0"[..]));
    }

    #[test]
    fn attributes_precede_a_name_and_may_be_missing() {
        let mut bytes = Vec::new();
        let mut listing = DirentBuffer::new(&mut bytes, 4096, true);
        assert!(listing.push(&NAME, None));
        let entry = Entry { node: 5, ..Entry::default() };
        assert!(listing.push(&NAME, Some(&entry)));
        assert_eq!(listing.as_bytes().len(), 2 * (128 + 40));
        assert_eq!(listing.as_bytes().get(..8), Some(&0u64.to_ne_bytes()[..]));
        assert_eq!(listing.as_bytes().get(168..176), Some(&5u64.to_ne_bytes()[..]));
    }
}

//! Extended attributes: the body behind an inode, entries, prefixes and the name filter
//! (docs/format.md F12, F20 to F23).

use zerocopy::byteorder::little_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, KnownLayout, Unaligned};

use crate::bytes::{u32_at, view, wide};
use crate::error::{Error, ErrorKind, Result};

/// Bytes of the header of an xattr body.
pub const BODY_HEADER_BYTES: usize = 12;
/// Bytes of an entry before its name.
pub const ENTRY_HEADER_BYTES: usize = 4;
/// Seed of the name filter, to which the prefix index is added.
const FILTER_SEED: u32 = 0x25BB_E08F;
const LONG_PREFIX: u8 = 0x80;

#[derive(FromBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RawBody {
    name_filter: U32,
    shared_count: u8,
    _reserved: [u8; 7],
}

#[derive(FromBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RawEntry {
    name_len: u8,
    name_index: u8,
    value_size: U16,
}

/// The xattr body of an inode: a filter, references to shared entries, and entries of its own.
#[derive(Clone, Copy, Debug)]
pub struct Body<'a> {
    /// Bit set: no attribute with this hash is there.
    pub name_filter: u32,
    shared: &'a [u8],
    /// The bytes of the inline entries.
    pub entries: &'a [u8],
}

impl<'a> Body<'a> {
    /// Views the body of an inode; `bytes` are exactly as many as the inode says.
    ///
    /// # Errors
    /// [`ErrorKind::Truncated`] without a header, [`ErrorKind::XattrOverrun`] if the shared
    /// references do not fit.
    pub fn parse(bytes: &'a [u8]) -> Result<Self> {
        let raw: &RawBody = view(bytes)?;
        let rest = bytes.get(BODY_HEADER_BYTES..).unwrap_or_default();
        let shared_bytes = usize::from(raw.shared_count).saturating_mul(4);
        let Some((shared, entries)) = rest.split_at_checked(shared_bytes) else {
            let kind =
                ErrorKind::XattrOverrun { wanted: wide(shared_bytes), left: wide(rest.len()) };
            return Err(Error::new(kind, 4));
        };
        Ok(Self { name_filter: raw.name_filter.get(), shared, entries })
    }

    /// The name filter of the body that starts with these bytes.
    ///
    /// # Errors
    /// [`ErrorKind::Truncated`] without a header.
    pub fn filter_of(header: &[u8]) -> Result<u32> {
        let raw: &RawBody = view(header)?;
        Ok(raw.name_filter.get())
    }

    /// The shared entries that the inode refers to, in units of 4 bytes from the shared area.
    pub fn shared_ids(&self) -> impl Iterator<Item = u32> + use<'a> {
        let shared = self.shared;
        (0..shared.len() / 4).filter_map(move |at| u32_at(shared, at.checked_mul(4)?))
    }

    /// The inode's own entries, with the byte of the body's entry area where each starts.
    #[must_use]
    pub const fn inline_entries(&self) -> Entries<'a> {
        Entries { bytes: self.entries, at: 0 }
    }
}

/// Iterates over entries that follow each other. It ends after an error.
#[derive(Clone, Debug)]
pub struct Entries<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Iterator for Entries<'a> {
    type Item = Result<Entry<'a>>;

    fn next(&mut self) -> Option<Self::Item> {
        let rest = self.bytes.get(self.at..)?;
        if rest.is_empty() {
            return None;
        }
        match Entry::parse(rest) {
            Ok(entry) => {
                self.at = self.at.saturating_add(entry.padded_bytes());
                Some(Ok(entry))
            }
            Err(error) => {
                let place = wide(self.at).saturating_add(error.offset());
                self.at = usize::MAX;
                Some(Err(Error::new(error.into_kind(), place)))
            }
        }
    }
}

/// One extended attribute as it is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry<'a> {
    /// Which prefix the name has.
    pub index: NameIndex,
    /// The name behind its prefix.
    pub suffix: &'a [u8],
    /// The value.
    pub value: &'a [u8],
}

impl<'a> Entry<'a> {
    /// How many bytes the entry needs whose header starts `bytes`, without padding.
    ///
    /// # Errors
    /// [`ErrorKind::Truncated`] if the header is not whole.
    pub fn size_of(bytes: &[u8]) -> Result<usize> {
        let raw: &RawEntry = view(bytes)?;
        let name = usize::from(raw.name_len);
        let value = usize::from(raw.value_size.get());
        Ok(ENTRY_HEADER_BYTES.saturating_add(name).saturating_add(value))
    }

    /// Reads the entry that starts `bytes`.
    ///
    /// # Errors
    /// [`ErrorKind::XattrOverrun`] if its name or value runs past the slice.
    pub fn parse(bytes: &'a [u8]) -> Result<Self> {
        let needed = Self::size_of(bytes)?;
        let raw: &RawEntry = view(bytes)?;
        let overrun = ErrorKind::XattrOverrun { wanted: wide(needed), left: wide(bytes.len()) };
        let body = bytes.get(ENTRY_HEADER_BYTES..needed).ok_or(Error::new(overrun.clone(), 0))?;
        let (suffix, value) =
            body.split_at_checked(usize::from(raw.name_len)).ok_or(Error::new(overrun, 0))?;
        Ok(Self { index: NameIndex::new(raw.name_index), suffix, value })
    }

    /// Bytes of the entry with the padding that aligns the next one to 4.
    #[must_use]
    pub const fn padded_bytes(&self) -> usize {
        let bytes =
            ENTRY_HEADER_BYTES.saturating_add(self.suffix.len()).saturating_add(self.value.len());
        bytes.saturating_add(3) & !3
    }

    /// Whether the entry is padding: builders may fill a body up with zeros.
    #[must_use]
    pub const fn is_padding(&self) -> bool {
        self.suffix.is_empty() && matches!(self.index, NameIndex::Short(0))
    }
}

/// The prefix of a name by its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum NameIndex {
    /// One of the predefined prefixes.
    Short(u8),
    /// An entry of the image's own table of long prefixes.
    Long(u8),
}

impl NameIndex {
    /// The meaning of `e_name_index`.
    #[must_use]
    pub const fn new(raw: u8) -> Self {
        if raw & LONG_PREFIX != 0 { Self::Long(raw & !LONG_PREFIX) } else { Self::Short(raw) }
    }
}

/// Predefined prefixes; the number is the index in this table. 0 marks attributes that are never
/// listed; the two ACL names are complete.
const PREFIXES: [(u8, &str); 6] = [
    (1, "user."),
    (2, "system.posix_acl_access"),
    (3, "system.posix_acl_default"),
    (4, "trusted."),
    (5, "lustre."),
    (6, "security."),
];

/// The text of a predefined prefix; `None` for hidden attributes (0).
///
/// # Errors
/// [`ErrorKind::XattrIndex`] for an index without a meaning.
pub fn prefix_text(index: u8) -> Result<Option<&'static str>> {
    if index == 0 {
        return Ok(None);
    }
    match PREFIXES.iter().find(|(number, _)| *number == index) {
        Some((_, text)) => Ok(Some(text)),
        None => Err(Error::new(ErrorKind::XattrIndex(index), 1)),
    }
}

/// The predefined prefix of a full name, and what follows it.
#[must_use]
pub fn split_name(name: &[u8]) -> Option<(u8, &[u8])> {
    PREFIXES.iter().find_map(|(index, text)| {
        let suffix = name.strip_prefix(text.as_bytes())?;
        let is_complete = !text.ends_with('.');
        (is_complete == suffix.is_empty()).then_some((*index, suffix))
    })
}

/// A long prefix: a predefined one and an infix behind it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LongPrefix<'a> {
    /// The predefined prefix.
    pub base: u8,
    /// What the image adds to it.
    pub infix: &'a [u8],
}

impl<'a> LongPrefix<'a> {
    /// Reads an item of the prefix table, without its length field.
    ///
    /// # Errors
    /// [`ErrorKind::XattrPrefix`] if it is empty or longer than a name.
    pub fn parse(item: &'a [u8]) -> Result<Self> {
        let length = u16::try_from(item.len()).unwrap_or(u16::MAX);
        match item.split_first() {
            Some((base, infix)) if infix.len() <= 255 => Ok(Self { base: *base, infix }),
            _ => Err(Error::new(ErrorKind::XattrPrefix(length), 0)),
        }
    }
}

/// The bit of the name filter for a name without its predefined prefix; set in a body's filter it
/// says that no such attribute is there (F21).
#[must_use]
pub fn filter_bit(prefix: u8, suffix: &[u8]) -> u32 {
    let seed = FILTER_SEED.wrapping_add(u32::from(prefix));
    1u32.wrapping_shl(xxhash_rust::xxh32::xxh32(suffix, seed) & 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_body_holds_shared_ids_then_entries() {
        let mut bytes = vec![0u8; 12];
        bytes[4] = 2;
        bytes.extend_from_slice(&[7, 0, 0, 0, 9, 0, 0, 0]);
        bytes.extend_from_slice(&[1, 1, 2, 0, b'n', b'v', b'w', 0]);
        bytes.extend_from_slice(&[0; 4]);
        let body = Body::parse(&bytes).unwrap();
        assert_eq!(body.shared_ids().collect::<Vec<_>>(), [7, 9]);
        let entries: Vec<_> = body.inline_entries().map(|entry| entry.unwrap()).collect();
        assert_eq!(entries.len(), 2);
        assert_eq!((entries[0].suffix, entries[0].value), (&b"n"[..], &b"vw"[..]));
        assert_eq!(entries[0].index, NameIndex::Short(1));
        assert!(entries[1].is_padding() && !entries[0].is_padding());
    }

    #[test]
    fn an_entry_past_its_body_is_an_error_once() {
        let bytes = [0, 0, 0, 0, 200, 1, 0, 0];
        let entries: Vec<_> = Entries { bytes: &bytes, at: 0 }.collect();
        assert_eq!(entries.len(), 2);
        let error = entries[1].clone().unwrap_err();
        assert_eq!(*error.kind(), ErrorKind::XattrOverrun { wanted: 204, left: 4 });
        assert_eq!(error.offset(), 4);
    }

    #[test]
    fn too_many_shared_ids_are_refused() {
        let mut bytes = [0u8; 16];
        bytes[4] = 2;
        assert!(Body::parse(&bytes).is_err());
        bytes[4] = 1;
        assert!(Body::parse(&bytes).is_ok());
    }

    #[test]
    fn names_split_at_their_predefined_prefix() {
        assert_eq!(split_name(b"user.a.b"), Some((1, &b"a.b"[..])));
        assert_eq!(split_name(b"system.posix_acl_access"), Some((2, &b""[..])));
        assert_eq!(split_name(b"system.posix_acl_accessx"), None);
        assert_eq!(split_name(b"user."), None);
        assert_eq!(split_name(b"bogus.x"), None);
        assert_eq!(prefix_text(0).unwrap(), None);
        assert!(prefix_text(7).is_err());
    }

    #[test]
    fn long_prefixes_have_a_base_and_a_bounded_infix() {
        assert_eq!(LongPrefix::parse(b"\x01ab").unwrap(), LongPrefix { base: 1, infix: b"ab" });
        assert_eq!(LongPrefix::parse(b"\x04").unwrap().infix, b"");
        assert!(LongPrefix::parse(b"").is_err());
        assert!(LongPrefix::parse(&[1; 257]).is_err());
    }

    #[test]
    fn a_filter_bit_depends_on_prefix_and_name() {
        assert_eq!(filter_bit(1, b"x").count_ones(), 1);
        let bits: std::collections::HashSet<_> =
            (1..=6).map(|prefix| filter_bit(prefix, b"name")).collect();
        assert!(bits.len() > 1);
    }
}

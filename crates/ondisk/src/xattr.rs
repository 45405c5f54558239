//! Extended attributes: the body after an inode, entries, prefixes and the name filter, read and
//! written (docs/format.md F12, F20 to F23, F63).

use zerocopy::byteorder::little_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::bytes::{fit, to_u64, u32_at, view};
use crate::error::{Error, ErrorKind, Result};

/// Bytes of the header of an xattr body.
pub const BODY_HEADER_BYTES: usize = 12;
/// Bytes of an entry before its name.
pub const ENTRY_HEADER_BYTES: usize = 4;
/// Seed of the name filter, to which the prefix index is added.
const FILTER_SEED: u32 = 0x25BB_E08F;
const LONG_PREFIX: u8 = 0x80;
/// The largest body: `i_xattr_icount` has 16 bits (F12).
const BODY_MAX_BYTES: usize = 262_148;

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RawBody {
    name_filter: U32,
    shared_count: u8,
    _reserved: [u8; 7],
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RawXattrEntry {
    name_len: u8,
    name_index: u8,
    value_size: U16,
}

/// The xattr body of an inode: a filter, references to shared entries, and entries of its own.
#[derive(Clone, Copy, Debug)]
pub struct XattrIbody<'a> {
    /// Bit set: no attribute with this hash is there.
    pub name_filter: u32,
    shared: &'a [u8],
    /// The bytes of the inline entries.
    pub entries: &'a [u8],
}

impl<'a> XattrIbody<'a> {
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
                ErrorKind::XattrOverrun { wanted: to_u64(shared_bytes), left: to_u64(rest.len()) };
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
    pub const fn inline_entries(&self) -> XattrEntries<'a> {
        XattrEntries { bytes: self.entries, at: 0 }
    }
}

/// Iterates over entries that follow each other. It ends after an error.
#[derive(Clone, Debug)]
pub struct XattrEntries<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Iterator for XattrEntries<'a> {
    type Item = Result<XattrEntry<'a>>;

    fn next(&mut self) -> Option<Self::Item> {
        let rest = self.bytes.get(self.at..)?;
        if rest.is_empty() {
            return None;
        }
        match XattrEntry::parse(rest) {
            Ok(entry) => {
                self.at = self.at.saturating_add(entry.padded_bytes());
                Some(Ok(entry))
            }
            Err(error) => {
                let place = to_u64(self.at).saturating_add(error.offset());
                self.at = usize::MAX;
                Some(Err(Error::new(error.into_kind(), place)))
            }
        }
    }
}

/// One extended attribute as it is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct XattrEntry<'a> {
    /// Which prefix the name has.
    pub index: NameIndex,
    /// The name after its prefix.
    pub suffix: &'a [u8],
    /// The value.
    pub value: &'a [u8],
}

impl<'a> XattrEntry<'a> {
    /// How many bytes the entry needs whose header starts `bytes`, without padding.
    ///
    /// # Errors
    /// [`ErrorKind::Truncated`] if the header is not whole.
    pub fn size_of(bytes: &[u8]) -> Result<usize> {
        let raw: &RawXattrEntry = view(bytes)?;
        let name = usize::from(raw.name_len);
        let value = usize::from(raw.value_size.get());
        Ok(ENTRY_HEADER_BYTES.saturating_add(name).saturating_add(value))
    }

    /// Reads the entry that starts `bytes` as if its value was empty.
    ///
    /// # Errors
    /// [`ErrorKind::XattrOverrun`] if its name runs past the slice.
    pub fn parse_front(bytes: &'a [u8]) -> Result<Self> {
        let raw: &RawXattrEntry = view(bytes)?;
        let needed = ENTRY_HEADER_BYTES.saturating_add(usize::from(raw.name_len));
        let overrun = ErrorKind::XattrOverrun { wanted: to_u64(needed), left: to_u64(bytes.len()) };
        let suffix = bytes.get(ENTRY_HEADER_BYTES..needed).ok_or(Error::new(overrun, 0))?;
        Ok(Self { index: NameIndex::new(raw.name_index), suffix, value: &[] })
    }

    /// Reads the entry that starts `bytes`.
    ///
    /// # Errors
    /// [`ErrorKind::XattrOverrun`] if its name or value runs past the slice.
    pub fn parse(bytes: &'a [u8]) -> Result<Self> {
        let needed = Self::size_of(bytes)?;
        let raw: &RawXattrEntry = view(bytes)?;
        let overrun = ErrorKind::XattrOverrun { wanted: to_u64(needed), left: to_u64(bytes.len()) };
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

    /// `e_name_index`, the inverse of [`Self::new`]; a number of 128 or more has none.
    #[must_use]
    pub const fn to_raw(self) -> Option<u8> {
        match self {
            Self::Short(number) if number < LONG_PREFIX => Some(number),
            Self::Long(number) if number < LONG_PREFIX => Some(number | LONG_PREFIX),
            _ => None,
        }
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

/// A long prefix: a predefined one and an infix after it.
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

    /// The item as it is in the table: its length, the base, the infix, and zeros up to a
    /// multiple of 4.
    ///
    /// # Errors
    /// [`ErrorKind::XattrPrefix`] for an infix of more than 255 bytes.
    pub fn to_bytes(&self) -> Result<Vec<u8>> {
        let length = u16::try_from(self.infix.len()).unwrap_or(u16::MAX).saturating_add(1);
        if self.infix.len() > 255 {
            return Err(Error::new(ErrorKind::XattrPrefix(length), 0));
        }
        let mut bytes = length.to_le_bytes().to_vec();
        bytes.push(self.base);
        bytes.extend_from_slice(self.infix);
        bytes.resize(bytes.len().next_multiple_of(4), 0);
        Ok(bytes)
    }
}

/// A full name as an entry says it: by the longest of the image's long prefixes that it begins with,
/// else by its predefined prefix; `None` without one of those.
///
/// A name that is a long prefix as a whole has an empty suffix. Of equal prefixes the first counts.
#[must_use]
pub fn split_long_name<'n>(
    name: &'n [u8],
    prefixes: &[LongPrefix<'_>],
) -> Option<(NameIndex, &'n [u8])> {
    let (base, rest) = split_name(name)?;
    let mut best = (NameIndex::Short(base), rest);
    for (number, prefix) in prefixes.iter().enumerate().take(usize::from(LONG_PREFIX)) {
        let suffix = rest.strip_prefix(prefix.infix).filter(|_| prefix.base == base);
        if let (Some(suffix), Ok(number)) = (suffix, u8::try_from(number))
            && suffix.len() < best.1.len()
        {
            best = (NameIndex::Long(number), suffix);
        }
    }
    Some(best)
}

/// Bytes of an entry with its padding, whose suffix and value have these lengths.
#[must_use]
pub const fn entry_bytes(suffix: usize, value: usize) -> usize {
    ENTRY_HEADER_BYTES.saturating_add(suffix).saturating_add(value).saturating_add(3) & !3
}

/// An entry as it is in a body or among the shared ones: header, name, value, and zeros up to a
/// multiple of 4.
///
/// # Errors
/// [`ErrorKind::NameLength`] for a suffix of more than 255 bytes, and [`ErrorKind::TooLarge`] for a
/// value of more than 65,535.
pub fn write_entry(index: u8, suffix: &[u8], value: &[u8]) -> Result<Vec<u8>> {
    let raw = RawXattrEntry {
        name_len: u8::try_from(suffix.len())
            .map_err(|_| Error::new(ErrorKind::NameLength(to_u64(suffix.len())), 0))?,
        name_index: index,
        value_size: fit::<u16>(to_u64(value.len()), "the value of an xattr", 2)?.into(),
    };
    let mut bytes = Vec::with_capacity(entry_bytes(suffix.len(), value.len()));
    bytes.extend_from_slice(raw.as_bytes());
    bytes.extend_from_slice(suffix);
    bytes.extend_from_slice(value);
    bytes.resize(bytes.len().next_multiple_of(4), 0);
    Ok(bytes)
}

/// A body as it is after an inode: the name filter, references to shared entries in units of
/// 4 bytes, and entries of the inode's own. No attribute at all is no body: no bytes.
///
/// The length is what [`DiskInode::xattr_bytes`](crate::DiskInode::xattr_bytes) says; zeros may be appended
/// in units of 4.
///
/// # Errors
/// [`ErrorKind::TooLarge`] for more than 255 shared entries or a body of more than 262,148 bytes,
/// [`ErrorKind::XattrIndex`] for an index of no number, and the errors of [`write_entry`].
pub fn write_body(filter: u32, shared: &[u32], inline: &[XattrEntry<'_>]) -> Result<Vec<u8>> {
    if shared.is_empty() && inline.is_empty() {
        return Ok(Vec::new());
    }
    let raw = RawBody {
        name_filter: filter.into(),
        shared_count: fit(to_u64(shared.len()), "the number of shared xattrs", 4)?,
        _reserved: [0; 7],
    };
    let mut bytes = raw.as_bytes().to_vec();
    for id in shared {
        bytes.extend_from_slice(&id.to_le_bytes());
    }
    for entry in inline {
        let wrong = Error::new(ErrorKind::XattrIndex(LONG_PREFIX), to_u64(bytes.len()));
        let index = entry.index.to_raw().ok_or(wrong)?;
        bytes.extend_from_slice(&write_entry(index, entry.suffix, entry.value)?);
        if bytes.len() > BODY_MAX_BYTES {
            let field = "the xattr body of an inode";
            let kind = ErrorKind::TooLarge { field, value: to_u64(bytes.len()) };
            return Err(Error::new(kind, 0));
        }
    }
    Ok(bytes)
}

/// The filter of a body with these names, each as its predefined prefix and what follows it, long
/// prefixes included: all ones but for the bits of the names (F21).
#[must_use]
pub fn filter_of_names<'n>(names: impl IntoIterator<Item = (u8, &'n [u8])>) -> u32 {
    names.into_iter().fold(u32::MAX, |filter, (prefix, rest)| filter & !filter_bit(prefix, rest))
}

/// The bit of the name filter for a name without its predefined prefix; set in a body's filter it
/// says that no such attribute is there (F21).
#[must_use]
pub fn filter_bit(prefix: u8, suffix: &[u8]) -> u32 {
    let initial_value = FILTER_SEED.wrapping_add(u32::from(prefix));
    1u32.wrapping_shl(xxhash_rust::xxh32::xxh32(suffix, initial_value) & 31)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_body_holds_shared_ids_then_entries() {
        let mut bytes = vec![0u8; 12];
        bytes[4] = 2;
        bytes.extend_from_slice(&[7, 0, 0, 0, 9, 0, 0, 0]);
        bytes.extend_from_slice(&[1, 1, 2, 0, b'n', b'v', b'w', 0]);
        bytes.extend_from_slice(&[0; 4]);
        let body = XattrIbody::parse(&bytes).unwrap();
        assert_eq!(body.shared_ids().collect::<Vec<_>>(), [7, 9]);
        let entries: Vec<_> = body.inline_entries().map(|entry| entry.unwrap()).collect();
        assert_eq!(entries.len(), 2);
        assert_eq!((entries[0].suffix, entries[0].value), (&b"n"[..], &b"vw"[..]));
        assert_eq!(entries[0].index, NameIndex::Short(1));
        assert!(entries[1].is_padding() && !entries[0].is_padding());
    }

    proptest! {
        #[test]
        fn a_body_is_read_as_it_was_written(
            filter: u32,
            shared in prop::collection::vec(any::<u32>(), 0..=255),
            inline in prop::collection::vec(
                (any::<u8>(), prop::collection::vec(any::<u8>(), 0..=255),
                 prop::collection::vec(any::<u8>(), 0..600)), 0..20),
        ) {
            let entries: Vec<XattrEntry<'_>> = inline
                .iter()
                .map(|(index, suffix, value)| XattrEntry { index: NameIndex::new(*index), suffix, value })
                .collect();
            let bytes = write_body(filter, &shared, &entries).unwrap();
            prop_assert_eq!(bytes.is_empty(), shared.is_empty() && entries.is_empty());
            if !bytes.is_empty() {
                prop_assert_eq!(bytes.len() % 4, 0);
                let body = XattrIbody::parse(&bytes).unwrap();
                prop_assert_eq!(body.name_filter, filter);
                prop_assert_eq!(body.shared_ids().collect::<Vec<_>>(), shared);
                let read: Vec<_> = body.inline_entries().map(|entry| entry.unwrap()).collect();
                prop_assert_eq!(read, entries);
            }
        }

        #[test]
        fn a_long_prefix_is_read_as_it_was_written(
            base: u8, infix in prop::collection::vec(any::<u8>(), 0..=255),
        ) {
            let prefix = LongPrefix { base, infix: &infix };
            let bytes = prefix.to_bytes().unwrap();
            prop_assert_eq!(bytes.len() % 4, 0);
            let length = usize::from(bytes[0]) | usize::from(bytes[1]) << 8;
            prop_assert_eq!(LongPrefix::parse(&bytes[2..2 + length]).unwrap(), prefix);
            prop_assert!(bytes.len() < 2 + length + 4);
        }
    }

    #[test]
    fn what_no_body_holds_is_refused() {
        let entry = |suffix, value| [XattrEntry { index: NameIndex::Short(1), suffix, value }];
        assert!(write_body(0, &[0; 256], &[]).is_err());
        assert!(write_body(0, &[], &entry(&[b'n'; 256], b"")).is_err());
        let large = vec![0; 65536];
        assert!(write_body(0, &[], &entry(b"n", &large)).is_err());
        let most = write_body(0, &[], &entry(b"n", &large[1..])).unwrap();
        assert_eq!(most.len(), BODY_HEADER_BYTES + entry_bytes(1, 65535));
        // Four entries of 65,532 bytes after the header leave 8 bytes: two shared ids.
        let value = vec![0; 65524];
        let four = [entry(b"name", &value)[0]; 4];
        assert_eq!(write_body(0, &[0; 2], &four).unwrap().len(), BODY_MAX_BYTES);
        assert!(write_body(0, &[0; 3], &four).is_err());
        let index = NameIndex::Short(0x80);
        assert!(write_body(0, &[], &[XattrEntry { index, suffix: b"", value: b"" }]).is_err());
        assert!(LongPrefix { base: 1, infix: &[0; 256] }.to_bytes().is_err());
    }

    #[test]
    fn the_longest_prefix_names_an_attribute() {
        let prefix = |base, infix| LongPrefix { base, infix };
        let table =
            [prefix(4, &b"overlay."[..]), prefix(4, b"over"), prefix(1, b"o"), prefix(4, b"over")];
        let split = |name: &'static [u8]| split_long_name(name, &table);
        assert_eq!(split(b"trusted.overlay.opaque"), Some((NameIndex::Long(0), &b"opaque"[..])));
        assert_eq!(split(b"trusted.overt"), Some((NameIndex::Long(1), &b"t"[..])));
        assert_eq!(split(b"trusted.overlay."), Some((NameIndex::Long(0), &b""[..])));
        assert_eq!(split(b"user.over"), Some((NameIndex::Long(2), &b"ver"[..])));
        assert_eq!(split(b"trusted.o"), Some((NameIndex::Short(4), &b"o"[..])));
        assert_eq!(split(b"system.posix_acl_access"), Some((NameIndex::Short(2), &b""[..])));
        assert_eq!(split(b"other.name"), None);
        for raw in 0..=255 {
            assert_eq!(NameIndex::new(raw).to_raw(), Some(raw));
        }
        assert_eq!(NameIndex::Long(0x80).to_raw(), None);
    }

    #[test]
    fn a_filter_lacks_the_bits_of_its_names() {
        assert_eq!(filter_of_names([]), u32::MAX);
        let filter = filter_of_names([(1, &b"x"[..]), (4, b"overlay.opaque")]);
        assert_eq!(filter & filter_bit(1, b"x"), 0);
        assert_eq!(filter, !(filter_bit(1, b"x") | filter_bit(4, b"overlay.opaque")));
    }

    #[test]
    fn an_entry_past_its_body_is_an_error_once() {
        let bytes = [0, 0, 0, 0, 200, 1, 0, 0];
        let entries: Vec<_> = XattrEntries { bytes: &bytes, at: 0 }.collect();
        assert_eq!(entries.len(), 2);
        let error = entries[1].clone().unwrap_err();
        assert_eq!(*error.kind(), ErrorKind::XattrOverrun { wanted: 204, left: 4 });
        assert_eq!(error.offset(), 4);
    }

    #[test]
    fn too_many_shared_ids_are_refused() {
        let mut bytes = [0u8; 16];
        bytes[4] = 2;
        assert!(XattrIbody::parse(&bytes).is_err());
        bytes[4] = 1;
        assert!(XattrIbody::parse(&bytes).is_ok());
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

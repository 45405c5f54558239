//! Extended attributes of inodes: inline ones, shared ones, and long prefixes (docs/format.md F12,
//! F20 to F23).

use std::collections::HashSet;
use std::ops::ControlFlow;

use ferrofs_ondisk::Compat;
use ferrofs_ondisk::xattr::{
    BODY_HEADER_BYTES, ENTRY_HEADER_BYTES, LongPrefix, NameIndex, XattrEntry, XattrIbody,
    filter_bit, prefix_text, split_name,
};
use foldhash::fast::RandomState;

use crate::error::{Error, ErrorContext, ErrorKind, Result, address, parsed};
use crate::extent::AddressSpace;
use crate::inner::{ImageInner, MetaBytes, XattrPrefix};
use crate::inode::Inode;
use crate::source;

/// The longest name, with its prefix: Linux's `XATTR_NAME_MAX`.
const NAME_MAX_BYTES: usize = 255;

/// An extended attribute.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Xattr {
    /// Its full name, such as `user.comment`.
    pub name: Vec<u8>,
    /// Its value; may be empty.
    pub value: Vec<u8>,
}

/// Called with the full name of an attribute.
type XattrVisitor<'a> = dyn FnMut(Vec<u8>, &StoredXattr<'_>) -> Result<ControlFlow<()>> + 'a;
/// Sees one attribute as it is stored.
type EntryVisitor<'a> = dyn FnMut(&StoredXattr<'_>) -> Result<ControlFlow<()>> + 'a;

/// Shared entries of more bytes are read in two steps. An inode can refer to 255 entries of 64 KiB in a
/// kilobyte, all of them with one name, of which only the first counts.
const READ_AT_ONCE_BYTES: usize = 4096;

/// An attribute as it is stored.
#[derive(Debug)]
struct StoredXattr<'e> {
    entry: XattrEntry<'e>,
    /// The value, if `entry` does not have it.
    unread: Option<UnreadValue<'e>>,
}

/// The value of a shared entry that has not been read.
#[derive(Debug)]
struct UnreadValue<'e> {
    inner: &'e ImageInner,
    place: SharedPlace,
}

/// Where a shared entry lies.
#[derive(Clone, Copy, Debug)]
struct SharedPlace {
    space: AddressSpace,
    at: u64,
    /// With its header and its name.
    bytes: usize,
}

impl StoredXattr<'_> {
    fn value_bytes(&self) -> usize {
        let front = ENTRY_HEADER_BYTES.saturating_add(self.entry.suffix.len());
        match &self.unread {
            None => self.entry.value.len(),
            Some(unread) => unread.place.bytes.saturating_sub(front),
        }
    }

    fn value(&self) -> Result<Vec<u8>> {
        let Some(UnreadValue { inner, place }) = &self.unread else {
            return Ok(self.entry.value.to_vec());
        };
        let bytes = inner.metadata(place.space, place.at, place.bytes)?;
        Ok(parsed(XattrEntry::parse(&bytes), place.at)?.value.to_vec())
    }
}

/// Reads the table of long prefixes, which lies in the image, the metabox or the packed inode
/// (F22).
pub(crate) fn read_prefixes(inner: &ImageInner) -> Result<Vec<XattrPrefix>> {
    let mut at = u64::from(inner.sb.xattr_prefix_start).saturating_mul(4);
    let mut table = Vec::new();
    for _ in 0..inner.sb.xattr_prefix_count {
        at = at.saturating_add(3) & !3;
        let mut length = [0u8; 2];
        read_table(inner, at, &mut length)?;
        let length = u16::from_le_bytes(length);
        let item_at = at.saturating_add(2);
        let mut item = source::zeroed(usize::from(length))?;
        read_table(inner, item_at, &mut item)?;
        let prefix = parsed(LongPrefix::parse(&item), item_at)?;
        table.push(XattrPrefix { base: prefix.base, infix: prefix.infix.to_vec() });
        at = item_at.saturating_add(u64::from(length));
    }
    Ok(table)
}

fn read_table(inner: &ImageInner, at: u64, buffer: &mut [u8]) -> Result<()> {
    let is_plain = inner.sb.compat.has(Compat::PLAIN_XATTR_PFX);
    let holder = match (&inner.metabox, &inner.packed) {
        _ if is_plain => None,
        (Some(metabox), _) => Some(metabox),
        (None, packed) => packed.as_ref(),
    };
    match holder {
        None => inner.engine.devices.read(0, at, buffer),
        Some(inode) if inner.read_at(inode, at, buffer)? == buffer.len() => Ok(()),
        Some(inode) => Err(Error::new(ErrorKind::XattrPrefixTable).in_inode(inode.nid()).at(at)),
    }
}

impl ImageInner {
    pub(crate) fn xattrs(&self, inode: &Inode) -> Result<Vec<Xattr>> {
        let mut found = Vec::new();
        self.each_first_xattr(inode, &mut |name, stored| {
            found.push(Xattr { name, value: stored.value()? });
            Ok(ControlFlow::Continue(()))
        })?;
        Ok(found)
    }

    pub(crate) fn xattr_names(&self, inode: &Inode) -> Result<Vec<Vec<u8>>> {
        let mut names = Vec::new();
        self.each_first_xattr(inode, &mut |name, _| {
            names.push(name);
            Ok(ControlFlow::Continue(()))
        })?;
        Ok(names)
    }

    pub(crate) fn xattrs_bytes(&self, inode: &Inode) -> Result<u64> {
        let mut bytes = 0u64;
        self.each_first_xattr(inode, &mut |name, stored| {
            let more = name.len().saturating_add(stored.value_bytes());
            bytes = bytes.saturating_add(u64::try_from(more).unwrap_or(u64::MAX));
            Ok(ControlFlow::Continue(()))
        })?;
        Ok(bytes)
    }

    pub(crate) fn xattr(&self, inode: &Inode, wanted: &[u8]) -> Result<Option<Vec<u8>>> {
        self.find_xattr(inode, wanted, |stored| stored.value())
    }

    pub(crate) fn xattr_length(&self, inode: &Inode, wanted: &[u8]) -> Result<Option<usize>> {
        self.find_xattr(inode, wanted, |stored| Ok(stored.value_bytes()))
    }

    /// What `read` returns for the attribute of this name.
    fn find_xattr<T>(
        &self,
        inode: &Inode,
        wanted: &[u8],
        read: impl Fn(&StoredXattr<'_>) -> Result<T>,
    ) -> Result<Option<T>> {
        if self.filter_excludes(inode, wanted)? {
            return Ok(None);
        }
        let mut found = None;
        self.each_xattr(inode, &mut |name, stored| {
            if name != wanted {
                return Ok(ControlFlow::Continue(()));
            }
            found = Some(read(stored)?);
            Ok(ControlFlow::Break(()))
        })?;
        Ok(found)
    }

    /// Whether the name filters of inodes have a known meaning.
    pub(crate) fn trusts_name_filter(&self) -> bool {
        self.sb.compat.has(Compat::XATTR_FILTER) && self.sb.xattr_filter_reserved == 0
    }

    /// Whether the name filter excludes that `inode` has such an attribute.
    fn filter_excludes(&self, inode: &Inode, name: &[u8]) -> Result<bool> {
        let (true, true, Some((prefix, suffix))) =
            (self.trusts_name_filter(), inode.has_xattrs(), split_name(name))
        else {
            return Ok(false);
        };
        let header = self.metadata(inode.space(), inode.xattr_start(), BODY_HEADER_BYTES);
        let header = header.in_inode(inode.nid())?;
        let filter = parsed(XattrIbody::filter_of(&header), inode.xattr_start())?;
        Ok(filter & filter_bit(prefix, suffix) != 0)
    }

    /// The value of the attribute that marks content digests, whose name may be hidden.
    pub(crate) fn content_digest(&self, inode: &Inode) -> Result<Option<Vec<u8>>> {
        let Some(prefix) = self.sb.digest_prefix else { return Ok(None) };
        let mut found = None;
        self.each_entry(inode, &mut |stored| {
            let entry = &stored.entry;
            if entry.index != NameIndex::Long(prefix) || !entry.suffix.is_empty() {
                return Ok(ControlFlow::Continue(()));
            }
            found = Some(stored.value()?);
            Ok(ControlFlow::Break(()))
        })?;
        Ok(found)
    }

    /// Calls `visit` with every visible attribute, until it breaks.
    fn each_xattr(&self, inode: &Inode, visit: &mut XattrVisitor<'_>) -> Result<()> {
        self.each_entry(inode, &mut |stored| match self.full_name(&stored.entry)? {
            Some(name) => visit(name, stored),
            None => Ok(ControlFlow::Continue(())),
        })
    }

    /// The same without attributes whose name came before: a lookup finds the first one, as that of Linux
    /// does, and whoever sets them one after the other would end with the last.
    fn each_first_xattr(&self, inode: &Inode, visit: &mut XattrVisitor<'_>) -> Result<()> {
        let mut names = HashSet::<_, RandomState>::default();
        self.each_xattr(inode, &mut |name, stored| match names.insert(name.clone()) {
            true => visit(name, stored),
            false => Ok(ControlFlow::Continue(())),
        })
    }

    /// Calls `visit` with every entry, until it breaks.
    fn each_entry(&self, inode: &Inode, visit: &mut EntryVisitor<'_>) -> Result<()> {
        if !inode.has_xattrs() {
            return Ok(());
        }
        self.visit_body(inode, visit).in_inode(inode.nid()).at(inode.xattr_start())
    }

    fn visit_body(&self, inode: &Inode, visit: &mut EntryVisitor<'_>) -> Result<()> {
        let start = inode.xattr_start();
        // At most 256 KiB: the count that it comes from has 16 bits.
        let bytes = usize::try_from(inode.disk.xattr_bytes).unwrap_or(usize::MAX);
        let bytes = self.metadata(inode.space(), start, bytes)?;
        let body = parsed(XattrIbody::parse(&bytes), start)?;
        for id in body.shared_ids() {
            let place = self.shared_place(id)?;
            let at_once = place.bytes.min(READ_AT_ONCE_BYTES);
            let bytes = self.metadata(place.space, place.at, at_once)?;
            let (entry, unread) = match at_once == place.bytes {
                true => (XattrEntry::parse(&bytes), None),
                false => {
                    (XattrEntry::parse_front(&bytes), Some(UnreadValue { inner: self, place }))
                }
            };
            let stored = StoredXattr { entry: parsed(entry, place.at)?, unread };
            if visit(&stored).at(place.at)?.is_break() {
                return Ok(());
            }
        }
        let entries_at = start
            .saturating_add(u64::from(inode.disk.xattr_bytes))
            .saturating_sub(u64::try_from(body.entries.len()).unwrap_or(u64::MAX));
        for entry in body.inline_entries() {
            let stored = StoredXattr { entry: parsed(entry, entries_at)?, unread: None };
            if visit(&stored)?.is_break() {
                return Ok(());
            }
        }
        Ok(())
    }

    /// The name that users see; `None` for padding and hidden attributes.
    pub(crate) fn full_name(&self, entry: &XattrEntry<'_>) -> Result<Option<Vec<u8>>> {
        let (base, infix) = match entry.index {
            NameIndex::Short(index) => (index, &[][..]),
            NameIndex::Long(id) => {
                let prefix =
                    self.xattr_prefixes.get(usize::from(id)).ok_or(ErrorKind::UnknownPrefix(id))?;
                (prefix.base, &*prefix.infix)
            }
        };
        let text = prefix_text(base).map_err(|error| ErrorKind::Format(error.into_kind()))?;
        let Some(text) = text else { return Ok(None) };
        let name = [text.as_bytes(), infix, entry.suffix].concat();
        // A caller would take what lies before a NUL for the name, and Linux has no longer names.
        if name.contains(&0) || name.len() > NAME_MAX_BYTES {
            return Err(ErrorKind::XattrName.into());
        }
        Ok(Some(name))
    }

    /// The bytes of a shared entry, and where they lie.
    pub(crate) fn shared_entry(&self, id: u32) -> Result<(MetaBytes, u64)> {
        let SharedPlace { space, at, bytes } = self.shared_place(id)?;
        Ok((self.metadata(space, at, bytes)?, at))
    }

    fn shared_place(&self, id: u32) -> Result<SharedPlace> {
        let area = address(self.sb.block_size.offset_of(u64::from(self.sb.xattr_block)))?;
        let at = address(area.checked_add(u64::from(id).saturating_mul(4)))?;
        let space = if self.sb.compat.has(Compat::SHARED_EA_IN_METABOX) {
            AddressSpace::Metabox
        } else {
            AddressSpace::Image
        };
        let header = self.metadata(space, at, ENTRY_HEADER_BYTES)?;
        let bytes = parsed(XattrEntry::size_of(&header), at)?;
        Ok(SharedPlace { space, at, bytes })
    }
}

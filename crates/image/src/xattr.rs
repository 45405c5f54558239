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

/// Called with the full name and the value of an attribute.
type XattrVisitor<'a> = dyn FnMut(&[u8], &[u8]) -> ControlFlow<()> + 'a;
/// Sees one attribute as it is stored.
type EntryVisitor<'a> = dyn FnMut(&XattrEntry<'_>) -> Result<ControlFlow<()>> + 'a;

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
        self.each_xattr(inode, &mut |name, value| {
            found.push(Xattr { name: name.to_vec(), value: value.to_vec() });
            ControlFlow::Continue(())
        })?;
        keep_first_of_each_name(&mut found);
        Ok(found)
    }

    pub(crate) fn xattrs_bytes(&self, inode: &Inode) -> Result<u64> {
        let mut bytes = 0u64;
        self.each_xattr(inode, &mut |name, value| {
            let more = name.len().saturating_add(value.len());
            bytes = bytes.saturating_add(u64::try_from(more).unwrap_or(u64::MAX));
            ControlFlow::Continue(())
        })?;
        Ok(bytes)
    }

    pub(crate) fn xattr(&self, inode: &Inode, wanted: &[u8]) -> Result<Option<Vec<u8>>> {
        if self.filter_excludes(inode, wanted)? {
            return Ok(None);
        }
        let mut found = None;
        self.each_xattr(inode, &mut |name, value| {
            if name != wanted {
                return ControlFlow::Continue(());
            }
            found = Some(value.to_vec());
            ControlFlow::Break(())
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
        self.each_entry(inode, &mut |entry| {
            if entry.index != NameIndex::Long(prefix) || !entry.suffix.is_empty() {
                return Ok(ControlFlow::Continue(()));
            }
            found = Some(entry.value.to_vec());
            Ok(ControlFlow::Break(()))
        })?;
        Ok(found)
    }

    /// Calls `visit` with every visible attribute, until it breaks.
    fn each_xattr(&self, inode: &Inode, visit: &mut XattrVisitor<'_>) -> Result<()> {
        self.each_entry(inode, &mut |entry| self.visit_entry(entry, visit))
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
            let (entry, at) = self.shared_entry(id)?;
            let entry = parsed(XattrEntry::parse(&entry), at)?;
            if visit(&entry).at(at)?.is_break() {
                return Ok(());
            }
        }
        let entries_at = start
            .saturating_add(u64::from(inode.disk.xattr_bytes))
            .saturating_sub(u64::try_from(body.entries.len()).unwrap_or(u64::MAX));
        for entry in body.inline_entries() {
            let entry = parsed(entry, entries_at)?;
            if visit(&entry)?.is_break() {
                return Ok(());
            }
        }
        Ok(())
    }

    fn visit_entry(
        &self,
        entry: &XattrEntry<'_>,
        visit: &mut XattrVisitor<'_>,
    ) -> Result<ControlFlow<()>> {
        match self.full_name(entry)? {
            Some(name) => Ok(visit(&name, entry.value)),
            None => Ok(ControlFlow::Continue(())),
        }
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
        let area = address(self.sb.block_size.offset_of(u64::from(self.sb.xattr_block)))?;
        let at = address(area.checked_add(u64::from(id).saturating_mul(4)))?;
        let space = if self.sb.compat.has(Compat::SHARED_EA_IN_METABOX) {
            AddressSpace::Metabox
        } else {
            AddressSpace::Image
        };
        let header = self.metadata(space, at, ENTRY_HEADER_BYTES)?;
        let bytes = parsed(XattrEntry::size_of(&header), at)?;
        Ok((self.metadata(space, at, bytes)?, at))
    }
}

/// Drops attributes whose name came before: a lookup finds the first one, as that of Linux does, and whoever sets them
/// one after the other would end with the last.
fn keep_first_of_each_name(xattrs: &mut Vec<Xattr>) {
    let mut names = HashSet::<_, RandomState>::default();
    let is_first: Vec<bool> = xattrs.iter().map(|xattr| names.insert(&*xattr.name)).collect();
    let mut is_first = is_first.into_iter();
    xattrs.retain(|_| is_first.next().unwrap_or(true));
}

//! Verifying the attributes of an inode: structure, names, the name filter, access control lists.
//! A shared attribute is read once, however many inodes refer to it.

use ferrofs_ondisk::xattr::{XattrEntry, XattrIbody, filter_bit, split_name};
use ferrofs_ondisk::{FileType, check_acl};

use super::verified::{Verified, VerifiedXattr};
use crate::error::{Error, ErrorContext, ErrorKind, Result, parsed};
use crate::inner::ImageInner;
use crate::inode::Inode;
use crate::work::WorkMeter;

const ACL_PREFIX: &[u8] = b"system.posix_acl_";
const DEFAULT_ACL: &[u8] = b"system.posix_acl_default";

/// Verifies all attributes of an inode.
pub(super) fn check_xattrs(
    inner: &ImageInner,
    inode: &Inode,
    verified: &Verified,
    work: &WorkMeter,
) -> Result<()> {
    if !inode.has_xattrs() {
        return Ok(());
    }
    check_body(inner, inode, verified, work).in_inode(inode.nid()).at(inode.xattr_start())
}

fn check_body(
    inner: &ImageInner,
    inode: &Inode,
    verified: &Verified,
    work: &WorkMeter,
) -> Result<()> {
    let start = inode.xattr_start();
    let total = u64::from(inode.disk.xattr_bytes);
    // Bodies of damaged inodes may overlap.
    work.add(total, "extended attributes of inodes")?;
    // At most 256 KiB: the count that it comes from has 16 bits.
    let bytes = usize::try_from(total).unwrap_or(usize::MAX);
    let bytes = inner.metadata(inode.space(), start, bytes)?;
    let body = parsed(XattrIbody::parse(&bytes), start)?;
    let filter = if inner.trusts_name_filter() { body.name_filter } else { 0 };
    for id in body.shared_ids() {
        let found = match verified.xattr(id) {
            Some(found) => found,
            None => {
                let (entry, at) = inner.shared_entry(id)?;
                work.add(
                    u64::try_from(entry.len()).unwrap_or(u64::MAX),
                    "shared extended attributes",
                )?;
                let entry = parsed(XattrEntry::parse(&entry), at)?;
                let found = examine(inner, &entry, at).at(at)?;
                verified.add_xattr(id, found);
                found
            }
        };
        check_for_inode(inode, filter, found)?;
    }
    let entries = u64::try_from(body.entries.len()).unwrap_or(u64::MAX);
    let entries_at = start.saturating_add(total).saturating_sub(entries);
    for entry in body.inline_entries() {
        let entry = parsed(entry, entries_at)?;
        check_for_inode(inode, filter, examine(inner, &entry, entries_at)?)?;
    }
    Ok(())
}

/// Checks an attribute by itself.
fn examine(inner: &ImageInner, entry: &XattrEntry<'_>, at: u64) -> Result<VerifiedXattr> {
    let Some(name) = inner.full_name(entry)? else { return Ok(VerifiedXattr::default()) };
    if name.starts_with(ACL_PREFIX) {
        parsed(check_acl(entry.value), at)?;
    }
    // Linux lists a prefix without a name after it, but has no call that could read or set it.
    let (prefix, suffix) = split_name(&name).ok_or(ErrorKind::XattrName)?;
    let filter_bit = filter_bit(prefix, suffix);
    Ok(VerifiedXattr { filter_bit, needs_directory: name == DEFAULT_ACL })
}

/// Checks an attribute against the inode that has it.
fn check_for_inode(inode: &Inode, filter: u32, xattr: VerifiedXattr) -> Result<()> {
    if filter & xattr.filter_bit != 0 {
        return Err(Error::new(ErrorKind::NameFilter));
    }
    if xattr.needs_directory && inode.file_type() != FileType::Directory {
        return Err(Error::new(ErrorKind::DefaultAcl(inode.file_type())));
    }
    Ok(())
}

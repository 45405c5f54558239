//! The value of an access control list, as Linux stores it in `system.posix_acl_access` and
//! `system.posix_acl_default`: a version and an array of entries (linux/posix_acl_xattr.h). It is
//! checked, never interpreted.

use zerocopy::byteorder::little_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::bytes::{to_u64, view};
use crate::error::{Error, ErrorKind, Result};

/// The only version that Linux accepts.
const VERSION: u32 = 2;
const HEADER_BYTES: usize = 4;
const ENTRY_BYTES: usize = 8;

const USER_OBJ: u16 = 0x01;
const USER: u16 = 0x02;
const GROUP_OBJ: u16 = 0x04;
const GROUP: u16 = 0x08;
const MASK: u16 = 0x10;
const OTHER: u16 = 0x20;
/// Read, write and execute.
const PERMISSIONS: u16 = 7;
/// No user and no group has this number.
const NO_ID: u32 = u32::MAX;

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RawAclEntry {
    tag: U16,
    permissions: U16,
    id: U32,
}

const _: () = assert!(size_of::<RawAclEntry>() == ENTRY_BYTES);

/// Checks that Linux accepts `value` as an access control list: version 2; the owner, named users,
/// the owning group, named groups, the mask, which named entries need, and the others, in this
/// order. An empty value, and a list without entries, stand for no list.
///
/// # Errors
/// [`ErrorKind::Acl`] with the rule, at the entry that breaks it.
pub fn check_acl(value: &[u8]) -> Result<()> {
    if value.is_empty() {
        return Ok(());
    }
    let broken = |rule, at| Err(Error::new(ErrorKind::Acl(rule), to_u64(at)));
    let Some((header, entries)) = value.split_at_checked(HEADER_BYTES) else {
        return broken("it is shorter than its header", 0);
    };
    let version: &U32 = view(header)?;
    if version.get() != VERSION {
        return broken("its version is not 2", 0);
    }
    if entries.len() % ENTRY_BYTES != 0 {
        return broken("its last entry is not whole", value.len());
    }
    let mut order = AclOrder::default();
    for (number, entry) in entries.chunks_exact(ENTRY_BYTES).enumerate() {
        if let Err(rule) = order.next(view(entry)?) {
            return broken(rule, HEADER_BYTES.saturating_add(number.saturating_mul(ENTRY_BYTES)));
        }
    }
    if entries.is_empty() || order.stage == AclStage::Complete {
        return Ok(());
    }
    broken("entries are missing at its end", value.len())
}

/// Which entry may come next.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum AclStage {
    #[default]
    Start,
    /// After the owner: named users or the owning group.
    Users,
    /// After the owning group: named groups, the mask or the others.
    Groups,
    /// After the mask: the others.
    Masked,
    Complete,
}

#[derive(Debug, Default)]
struct AclOrder {
    stage: AclStage,
    needs_mask: bool,
}

impl AclOrder {
    fn next(&mut self, entry: &RawAclEntry) -> std::result::Result<(), &'static str> {
        if entry.permissions.get() & !PERMISSIONS != 0 {
            return Err("an entry has unknown permissions");
        }
        let tag = entry.tag.get();
        let stage = match (tag, self.stage) {
            (USER_OBJ, AclStage::Start) => AclStage::Users,
            (USER, AclStage::Users) => AclStage::Users,
            (GROUP_OBJ, AclStage::Users) | (GROUP, AclStage::Groups) => AclStage::Groups,
            (MASK, AclStage::Groups) => AclStage::Masked,
            (OTHER, AclStage::Masked) => AclStage::Complete,
            (OTHER, AclStage::Groups) if !self.needs_mask => AclStage::Complete,
            (OTHER, AclStage::Groups) => return Err("named entries lack a mask"),
            (USER_OBJ | USER | GROUP_OBJ | GROUP | MASK | OTHER, _) => {
                return Err("an entry is out of order");
            }
            _ => return Err("an entry has an unknown tag"),
        };
        if matches!(tag, USER | GROUP) {
            self.needs_mask = true;
            if entry.id.get() == NO_ID {
                return Err("an entry names no user or group");
            }
        }
        self.stage = stage;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn acl(entries: &[(u16, u16, u32)]) -> Vec<u8> {
        let mut value = VERSION.to_le_bytes().to_vec();
        for (tag, permissions, id) in entries {
            value.extend_from_slice(&tag.to_le_bytes());
            value.extend_from_slice(&permissions.to_le_bytes());
            value.extend_from_slice(&id.to_le_bytes());
        }
        value
    }

    #[test]
    fn lists_that_linux_accepts_are_accepted() {
        check_acl(b"").unwrap();
        check_acl(&acl(&[])).unwrap();
        check_acl(&acl(&[(USER_OBJ, 7, NO_ID), (GROUP_OBJ, 5, NO_ID), (OTHER, 0, NO_ID)])).unwrap();
        let named = [(USER_OBJ, 7, 0), (USER, 6, 1), (USER, 6, 1), (GROUP_OBJ, 5, 0)];
        let rest = [(GROUP, 1, 9), (MASK, 7, 0), (OTHER, 0, 0)];
        check_acl(&acl(&[&named[..], &rest].concat())).unwrap();
    }

    #[test]
    fn every_rule_of_linux_is_checked() {
        let list = |entries: &[(u16, u16, u32)]| check_acl(&acl(entries)).unwrap_err().to_string();
        let owner = (USER_OBJ, 7, 0);
        let group = (GROUP_OBJ, 7, 0);
        let other = (OTHER, 7, 0);
        assert!(list(&[(USER_OBJ, 8, 0), group, other]).contains("permissions"));
        assert!(list(&[owner, (USER, 7, NO_ID), group, (MASK, 7, 0), other]).contains("names no"));
        assert!(list(&[owner, (USER, 7, 1), group, other]).contains("mask"));
        assert!(list(&[group, owner, other]).contains("order"));
        assert!(list(&[owner, (GROUP, 7, 1), group, other]).contains("order"));
        assert!(list(&[owner, group, other, other]).contains("order"));
        assert!(list(&[owner, group, (MASK, 7, 0)]).contains("missing"));
        assert!(list(&[owner, group, (0x40, 7, 0)]).contains("tag"));
        let whole = acl(&[owner, group, other]);
        for (value, rule) in
            [(&whole[..3], "header"), (&whole[..21], "whole"), (b"\x01\0\0\0", "version")]
        {
            assert!(check_acl(value).unwrap_err().to_string().contains(rule), "{rule}");
        }
    }
}

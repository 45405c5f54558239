//! Owners and groups: forced ones, and offsets.

use crate::tree::Metadata;
use crate::{Error, ErrorKind, Result};

/// What to do with owners and groups: first the forced ones, then the offsets, as mkfs.erofs does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OwnerOverrides {
    /// Every inode's owner.
    pub force_uid: Option<u32>,
    /// Every inode's group.
    pub force_gid: Option<u32>,
    /// Is added to every owner.
    pub uid_offset: u32,
    /// Is added to every group.
    pub gid_offset: u32,
}

impl OwnerOverrides {
    /// Everything belongs to root (`--all-root`).
    #[must_use]
    pub fn all_root() -> Self {
        Self { force_uid: Some(0), force_gid: Some(0), ..Self::default() }
    }

    /// # Errors
    /// A sum exceeds 32 bits; mkfs.erofs 1.9 prints a line there and stores the wrapped number.
    pub(super) fn apply(&self, metadata: &mut Metadata) -> Result<()> {
        let uid = self.force_uid.unwrap_or(metadata.uid);
        let gid = self.force_gid.unwrap_or(metadata.gid);
        metadata.uid = shifted("uid", uid, self.uid_offset)?;
        metadata.gid = shifted("gid", gid, self.gid_offset)?;
        Ok(())
    }
}

fn shifted(what: &str, id: u32, offset: u32) -> Result<u32> {
    id.checked_add(offset).ok_or_else(|| {
        Error::new(ErrorKind::Unsupported(format!(
            "{what} {id} plus the offset {offset} exceeds 32 bits"
        )))
    })
}

//! Who extracts: it decides which owners and set-id bits can be kept.

use ferrofs_image::Inode;

use crate::options::OwnerPolicy;

/// The user and group that new entries belong to.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Credentials {
    uid: u32,
    gid: u32,
}

impl Credentials {
    pub(crate) fn current() -> Self {
        Self { uid: rustix::process::geteuid().as_raw(), gid: rustix::process::getegid().as_raw() }
    }

    pub(crate) fn is_root(self) -> bool {
        self.uid == 0
    }

    /// Whether owners are to be set at all.
    pub(crate) fn sets_owners(self, owners: OwnerPolicy) -> bool {
        match owners {
            OwnerPolicy::IfRoot => self.is_root(),
            OwnerPolicy::Image => true,
            OwnerPolicy::Caller => false,
        }
    }

    pub(crate) fn is_user_of(self, inode: &Inode) -> bool {
        self.uid == inode.uid()
    }

    pub(crate) fn is_group_of(self, inode: &Inode) -> bool {
        self.gid == inode.gid()
    }
}

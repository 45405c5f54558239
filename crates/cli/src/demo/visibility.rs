//! How much of an image a tree can show: a mount all of it, an unpacked tree what the rights of whoever unpacked it
//! allowed. The comparison asks it what to hold against a tree.

use ferrofs_image::FileType;

use super::credentials::Credentials;
use super::record::{FileRecord, Xattrs};
use super::reference::ReferenceTree;

/// Of security modules: the host's own, on every file system.
const LABEL: &[u8] = b"security.selinux";
/// Nobody but root of the whole system sees these.
const TRUSTED: &[u8] = b"trusted.";
/// These name users, and are shown as others where users have other numbers.
const OF_USERS: [&[u8]; 2] = [b"system.posix_acl_", b"security.capability"];

/// How much of an image a tree can show.
#[derive(Clone, Debug)]
pub(super) struct VisibilityRules {
    kind: TreeSource,
    credentials: Credentials,
    /// Whether the reference gives owners and links as the image has them.
    is_of_image: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TreeSource {
    Unpacked,
    Mounted,
}

impl VisibilityRules {
    pub(super) fn of_unpacked(credentials: &Credentials, reference: &ReferenceTree) -> Self {
        Self::new(TreeSource::Unpacked, credentials, reference)
    }

    pub(super) fn of_mount(credentials: &Credentials, reference: &ReferenceTree) -> Self {
        Self::new(TreeSource::Mounted, credentials, reference)
    }

    fn new(kind: TreeSource, credentials: &Credentials, reference: &ReferenceTree) -> Self {
        let is_of_image = !matches!(reference, ReferenceTree::Directory(_));
        Self { kind, credentials: credentials.clone(), is_of_image }
    }

    /// Whether the caller may be kept from looking at something.
    pub(super) fn may_be_denied(&self) -> bool {
        !self.credentials.is_initial_root()
    }

    pub(super) fn may_lack(&self, expected: &FileRecord) -> bool {
        let is_special = matches!(
            expected.file_type,
            FileType::CharDevice | FileType::BlockDevice | FileType::Socket
        );
        self.kind == TreeSource::Unpacked && !self.credentials.is_initial_root() && is_special
    }

    /// The bits of a mode that are kept.
    pub(super) fn mode_mask(&self) -> u32 {
        // Who cannot give a file to its owner does not leave it set-user-ID.
        let is_kept = self.kind == TreeSource::Mounted || self.credentials.is_initial_root();
        if is_kept { 0o7777 } else { 0o1777 }
    }

    /// The owner and group to be seen; none if that cannot be told.
    pub(super) fn owners(&self, expected: &FileRecord) -> Option<(u32, u32)> {
        let FileRecord { uid, gid, .. } = expected;
        match self.kind {
            _ if self.credentials.is_initial_root() => Some((*uid, *gid)),
            TreeSource::Unpacked => None,
            TreeSource::Mounted if self.is_of_image => {
                Some((self.credentials.users.shown(*uid), self.credentials.groups.shown(*gid)))
            }
            // What the host shows of the source's owners went through the numbers of this namespace already.
            TreeSource::Mounted => self.credentials.maps_all_ids().then_some((*uid, *gid)),
        }
    }

    /// The number of names to be seen; none if that cannot be told.
    pub(super) fn link_count(&self, expected: &FileRecord) -> Option<u64> {
        // A source may have links from elsewhere, and what a directory counts is its file system's own.
        (self.kind == TreeSource::Mounted && self.is_of_image).then_some(expected.link_count)
    }

    /// The attributes to be seen: not those that the caller was denied on either side.
    pub(super) fn xattrs<'x>(
        &self,
        xattrs: &'x Xattrs,
        denied: &[&[Vec<u8>]; 2],
    ) -> Vec<(&'x Vec<u8>, &'x Vec<u8>)> {
        let is_denied = |name: &Vec<u8>| {
            self.may_be_denied() && denied.iter().any(|names| names.contains(name))
        };
        xattrs.iter().filter(|(name, _)| self.keeps(name) && !is_denied(name)).collect()
    }

    fn keeps(&self, name: &[u8]) -> bool {
        let is_of_users = || OF_USERS.iter().any(|start| name.starts_with(start));
        match self.kind {
            _ if self.credentials.is_initial_root() => name != LABEL,
            TreeSource::Unpacked => name.starts_with(b"user."),
            TreeSource::Mounted => {
                name != LABEL
                    && !name.starts_with(TRUSTED)
                    && (self.credentials.maps_all_ids() || !is_of_users())
            }
        }
    }
}

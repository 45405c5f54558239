//! How much of an image a tree can show: a mount all of it, an unpacked tree what the rights of whoever unpacked it
//! allowed. The comparison asks it what to hold against a tree.

use ferrofs_image::FileType;

use super::caller::Caller;
use super::record::{Record, Xattrs};
use super::truth::Truth;

/// Of security modules: the host's own, on every file system.
const LABEL: &[u8] = b"security.selinux";
/// Nobody but root of the whole system sees these.
const TRUSTED: &[u8] = b"trusted.";
/// These name users, and are shown as others where users have other numbers.
const OF_USERS: [&[u8]; 2] = [b"system.posix_acl_", b"security.capability"];

/// How much of an image a tree can show.
#[derive(Clone, Debug)]
pub(super) struct Fidelity {
    kind: Kind,
    caller: Caller,
    /// Whether the truth gives owners and links as the image has them.
    is_of_image: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Unpacked,
    Mounted,
}

impl Fidelity {
    pub(super) fn of_unpacked(caller: &Caller, truth: &Truth) -> Self {
        Self::new(Kind::Unpacked, caller, truth)
    }

    pub(super) fn of_mount(caller: &Caller, truth: &Truth) -> Self {
        Self::new(Kind::Mounted, caller, truth)
    }

    fn new(kind: Kind, caller: &Caller, truth: &Truth) -> Self {
        let is_of_image = !matches!(truth, Truth::Directory(_));
        Self { kind, caller: caller.clone(), is_of_image }
    }

    /// Whether the caller may be kept from looking at something.
    pub(super) fn may_be_denied(&self) -> bool {
        !self.caller.is_mighty()
    }

    pub(super) fn may_lack(&self, expected: &Record) -> bool {
        let is_special = matches!(
            expected.file_type,
            FileType::CharDevice | FileType::BlockDevice | FileType::Socket
        );
        self.kind == Kind::Unpacked && !self.caller.is_mighty() && is_special
    }

    /// The bits of a mode that are kept.
    pub(super) fn mode_mask(&self) -> u32 {
        // Who cannot give a file to its owner does not leave it set-user-ID.
        let is_kept = self.kind == Kind::Mounted || self.caller.is_mighty();
        if is_kept { 0o7777 } else { 0o1777 }
    }

    /// The owner and group to be seen; none if that cannot be told.
    pub(super) fn owners(&self, expected: &Record) -> Option<(u32, u32)> {
        let Record { uid, gid, .. } = expected;
        match self.kind {
            _ if self.caller.is_mighty() => Some((*uid, *gid)),
            Kind::Unpacked => None,
            Kind::Mounted if self.is_of_image => {
                Some((self.caller.users.shown(*uid), self.caller.groups.shown(*gid)))
            }
            // What the host shows of the source's owners went through the numbers of this namespace already.
            Kind::Mounted => self.caller.has_all_numbers().then_some((*uid, *gid)),
        }
    }

    /// The number of names to be seen; none if that cannot be told.
    pub(super) fn link_count(&self, expected: &Record) -> Option<u64> {
        // A source may have links from elsewhere, and what a directory counts is its file system's own.
        (self.kind == Kind::Mounted && self.is_of_image).then_some(expected.link_count)
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
            _ if self.caller.is_mighty() => name != LABEL,
            Kind::Unpacked => name.starts_with(b"user."),
            Kind::Mounted => {
                name != LABEL
                    && !name.starts_with(TRUSTED)
                    && (self.caller.has_all_numbers() || !is_of_users())
            }
        }
    }
}

//! Sets owner, mode, extended attributes and times of an entry, in the order in which none undoes
//! another: a change of owner drops set-id bits and capabilities, a change of mode changes an ACL,
//! and ordinary users may set attributes of a file only while they may write it. What gives rights
//! to whoever runs a file, set-id bits and capabilities, comes last. Every call works on a
//! descriptor: a name can lead to another file from one call to the next.

use std::ops::Range;
use std::os::fd::BorrowedFd;

use ferrofs_image::{FileType, Inode, Xattr};
use rustix::fs::{AtFlags, CWD, Gid, Mode, Stat, Timespec, Timestamps, Uid, XattrFlags};
use rustix::io::Errno;

use crate::descriptor_path::{DescriptorPathError, with_path};
use crate::error::{ErrorKind, SET_XATTR};
use crate::event::SkippedMetadata;
use crate::options::OwnerPolicy;

/// The times, in seconds, that every file system can store. FAT begins with 1980 in local time, which
/// its mount option `time_offset=` puts up to a day behind UTC. Ext3 ends with 2038.
const COMMON_SECONDS: Range<i64> = 315_619_200..1 << 31;

pub(crate) const ACL_DEFAULT: &str = "system.posix_acl_default";
pub(crate) const ACL_ACCESS: &str = "system.posix_acl_access";

const SET_UID: u32 = 0o4000;
const SET_GID: u32 = 0o2000;

/// The entry that metadata is set on.
#[derive(Clone, Copy, Debug)]
pub(crate) enum MetadataTarget<'a> {
    /// A regular file or a directory.
    Open(BorrowedFd<'a>),
    /// Anything else, opened with `O_PATH`.
    Pinned(BorrowedFd<'a>),
}

impl<'a> MetadataTarget<'a> {
    fn fd(self) -> BorrowedFd<'a> {
        match self {
            Self::Open(fd) | Self::Pinned(fd) => fd,
        }
    }

    pub(crate) fn stat(self) -> Result<Stat, ErrorKind> {
        rustix::fs::fstat(self.fd()).map_err(ErrorKind::output("cannot examine the new file"))
    }
}

/// The metadata of an entry in the image.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NewMetadata<'a> {
    pub(crate) inode: &'a Inode,
    pub(crate) xattrs: &'a [Xattr],
    /// Permission bits to set; the final ones of a directory may be set later.
    pub(crate) mode: u32,
    /// The status of the entry: values that are right already are not set.
    pub(crate) stat: &'a Stat,
    pub(crate) foreign_acl: ForeignAcl,
}

/// Whether the entry may have an ACL that is not the image's: one that it inherited from its
/// directory, or that it had before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ForeignAcl {
    None,
    Possible,
}

/// Which owners and permissions are set.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MetadataPolicy {
    pub(crate) credentials: CallerId,
    pub(crate) owners: OwnerPolicy,
    /// Permission bits that no entry gets.
    pub(crate) masked: u32,
    /// Whether files get neither set-id bits nor capabilities.
    pub(crate) skip_set_id: bool,
}

#[derive(Clone, Copy)]
struct AppliedOwner {
    user: bool,
    group: bool,
}

impl MetadataPolicy {
    /// `mode` without the masked bits.
    pub(crate) fn unmasked(self, mode: u32) -> u32 {
        mode & !self.masked
    }

    /// Sets all metadata that can be set, and returns the failures.
    pub(crate) fn apply(
        self,
        target: MetadataTarget<'_>,
        attributes: NewMetadata<'_>,
        skipped: &mut SkippedMetadata,
    ) -> Vec<ErrorKind> {
        let NewMetadata { inode, xattrs, .. } = attributes;
        let mut errors = Vec::new();
        let kept = self.set_owner(target, attributes, skipped).unwrap_or_else(|kind| {
            errors.push(kind);
            AppliedOwner { user: false, group: false }
        });
        let last = self.allowed_mode(attributes, kept, skipped);
        let first = if grants_owner(inode) { last & !(SET_UID | SET_GID) } else { last };
        let has_capabilities = self.keeps_capabilities(xattrs, skipped);
        let mut set_xattrs = |kind: XattrKind, errors: &mut Vec<ErrorKind>| {
            let xattrs = xattrs.iter().filter(|xattr| XattrKind::of(xattr) == kind);
            errors.extend(xattrs.filter_map(|xattr| set_xattr(target, xattr, skipped).err()));
        };
        set_xattrs(XattrKind::Other, &mut errors);
        let mut has_mode = false;
        if inode.file_type() != FileType::Symlink {
            match set_first_mode(target, attributes, first) {
                Ok(()) => has_mode = true,
                Err(kind) => errors.push(kind),
            }
        }
        set_xattrs(XattrKind::Acl, &mut errors);
        let has_acl = || xattrs.iter().any(|xattr| xattr.name == ACL_ACCESS.as_bytes());
        if has_mode && self.masked != 0 && has_acl() {
            // The ACL has brought masked bits back.
            errors.extend(set_mode(target, first).err());
        }
        if has_capabilities {
            set_xattrs(XattrKind::Capability, &mut errors);
        }
        errors.extend(set_times(target, inode, skipped).err());
        if last != first {
            errors.extend(set_mode(target, last).err());
        }
        errors
    }

    /// The permissions that the entry may get.
    fn allowed_mode(
        self,
        NewMetadata { inode, mode, .. }: NewMetadata<'_>,
        kept: AppliedOwner,
        skipped: &mut SkippedMetadata,
    ) -> u32 {
        let mode = self.unmasked(mode);
        if !grants_owner(inode) {
            mode
        } else if self.skip_set_id {
            mode & !(SET_UID | SET_GID)
        } else {
            clear_foreign_set_id(mode, kept, skipped)
        }
    }

    /// Whether the entry may get its capabilities.
    pub(crate) fn keeps_capabilities(
        self,
        xattrs: &[Xattr],
        skipped: &mut SkippedMetadata,
    ) -> bool {
        if self.gives_to_root() {
            let is_one = |xattr: &&Xattr| XattrKind::of(xattr) == XattrKind::Capability;
            skipped.capabilities += xattrs.iter().filter(is_one).count() as u64;
        }
        !self.skip_set_id && !self.gives_to_root()
    }

    /// Whether root gets the files of others: then none of them may give the rights of root to
    /// whoever runs it.
    fn gives_to_root(self) -> bool {
        self.owners == OwnerPolicy::Caller && self.credentials.is_root()
    }

    fn set_owner(
        self,
        target: MetadataTarget<'_>,
        NewMetadata { inode, stat, .. }: NewMetadata<'_>,
        skipped: &mut SkippedMetadata,
    ) -> Result<AppliedOwner, ErrorKind> {
        if self.credentials.sets_owners(self.owners) {
            if (stat.st_uid, stat.st_gid) == (inode.uid(), inode.gid()) {
                return Ok(AppliedOwner { user: true, group: true });
            }
            match change_owner(target, inode) {
                Ok(()) => return Ok(AppliedOwner { user: true, group: true }),
                Err(errno) if self.owners == OwnerPolicy::Image => {
                    return Err(ErrorKind::output("cannot set the owner")(errno));
                }
                Err(Errno::PERM | Errno::INVAL | Errno::OPNOTSUPP) => {}
                Err(errno) => return Err(ErrorKind::output("cannot set the owner")(errno)),
            }
        }
        if self.gives_to_root() {
            return Ok(AppliedOwner { user: false, group: false });
        }
        // Not those of the caller: a directory can give its group to what is created in it.
        let (user, group) = (stat.st_uid == inode.uid(), stat.st_gid == inode.gid());
        if !(user && group) && self.owners != OwnerPolicy::Caller {
            skipped.owners += 1;
        }
        Ok(AppliedOwner { user, group })
    }
}

/// The bits of a mode below the file type.
pub(crate) fn permissions(inode: &Inode) -> u32 {
    u32::from(inode.mode() & 0o7777)
}

/// Whether set-id bits can give the rights of the owner or the group. Those of directories do not, and Linux has no
/// permissions of symlinks, although an image may have some.
fn grants_owner(inode: &Inode) -> bool {
    !matches!(inode.file_type(), FileType::Directory | FileType::Symlink)
}

fn change_owner(target: MetadataTarget<'_>, inode: &Inode) -> rustix::io::Result<()> {
    // All ones would mean "leave as it is".
    if inode.uid() == u32::MAX || inode.gid() == u32::MAX {
        return Err(Errno::INVAL);
    }
    let (uid, gid) = (Some(Uid::from_raw(inode.uid())), Some(Gid::from_raw(inode.gid())));
    match target {
        MetadataTarget::Open(fd) => rustix::fs::fchown(fd, uid, gid),
        MetadataTarget::Pinned(fd) => rustix::fs::chownat(fd, "", uid, gid, AtFlags::EMPTY_PATH),
    }
}

/// Clears set-id bits whose owner could not be set: they must not grant the rights of another
/// owner.
fn clear_foreign_set_id(mode: u32, kept: AppliedOwner, skipped: &mut SkippedMetadata) -> u32 {
    let user = if kept.user { 0 } else { SET_UID };
    let group = if kept.group { 0 } else { SET_GID };
    let dropped = mode & (user | group);
    if dropped != 0 {
        skipped.set_id_bits += 1;
    }
    mode & !dropped
}

/// Sets the permissions, unless they are right already; ACLs that are not the image's go first,
/// since a change of the mode would change them.
fn set_first_mode(
    target: MetadataTarget<'_>,
    NewMetadata { xattrs, stat, foreign_acl, .. }: NewMetadata<'_>,
    mode: u32,
) -> Result<(), ErrorKind> {
    if foreign_acl == ForeignAcl::Possible {
        for acl in [ACL_DEFAULT, ACL_ACCESS] {
            // One that the image has replaces it.
            if !xattrs.iter().any(|xattr| xattr.name == acl.as_bytes()) {
                remove_xattr(target, acl)?;
            }
        }
    } else if mode == stat.st_mode & 0o7777 {
        return Ok(());
    }
    set_mode(target, mode)
}

fn set_mode(target: MetadataTarget<'_>, mode: u32) -> Result<(), ErrorKind> {
    let mode = Mode::from_raw_mode(mode);
    let set = match target {
        MetadataTarget::Open(fd) => rustix::fs::fchmod(fd, mode).map_err(DescriptorPathError::Call),
        // Few kernels can change the mode behind such a descriptor directly.
        MetadataTarget::Pinned(fd) => with_path(fd, |path| rustix::fs::chmod(path, mode)),
    };
    set.map_err(|error| error.during("cannot set the mode"))
}

/// Removes an attribute, if there is one.
pub(crate) fn remove_xattr(target: MetadataTarget<'_>, name: &str) -> Result<(), ErrorKind> {
    let removed = match target {
        MetadataTarget::Open(fd) => {
            rustix::fs::fremovexattr(fd, name).map_err(DescriptorPathError::Call)
        }
        MetadataTarget::Pinned(fd) => with_path(fd, |path| rustix::fs::removexattr(path, name)),
    };
    match removed {
        // PERM: another user's entry. ACCESS: an entry that cannot have it.
        Err(DescriptorPathError::Call(
            Errno::NODATA | Errno::OPNOTSUPP | Errno::PERM | Errno::ACCESS,
        )) => Ok(()),
        removed => removed.map_err(|error| error.during("cannot remove an inherited ACL")),
    }
}

fn set_xattr(
    target: MetadataTarget<'_>,
    xattr: &Xattr,
    skipped: &mut SkippedMetadata,
) -> Result<(), ErrorKind> {
    let (name, value) = (xattr.name.as_slice(), xattr.value.as_slice());
    let set = match target {
        MetadataTarget::Open(fd) => rustix::fs::fsetxattr(fd, name, value, XattrFlags::empty())
            .map_err(DescriptorPathError::Call),
        MetadataTarget::Pinned(fd) => {
            with_path(fd, |path| rustix::fs::setxattr(path, name, value, XattrFlags::empty()))
        }
    };
    match set {
        Ok(()) => {}
        Err(DescriptorPathError::Call(Errno::PERM | Errno::ACCESS)) => skipped.xattrs_denied += 1,
        Err(DescriptorPathError::Call(Errno::OPNOTSUPP)) => skipped.xattrs_unsupported += 1,
        Err(error) => return Err(error.during(SET_XATTR)),
    }
    Ok(())
}

fn set_times(
    target: MetadataTarget<'_>,
    inode: &Inode,
    skipped: &mut SkippedMetadata,
) -> Result<(), ErrorKind> {
    let mtime = inode.mtime();
    let time = Timespec { tv_sec: mtime.seconds, tv_nsec: mtime.nanoseconds.into() };
    let times = Timestamps { last_access: time, last_modification: time };
    let set = match target {
        MetadataTarget::Open(fd) => {
            rustix::fs::futimens(fd, &times).map_err(DescriptorPathError::Call)
        }
        MetadataTarget::Pinned(fd) => {
            match rustix::fs::utimensat(fd, "", &times, AtFlags::EMPTY_PATH) {
                // A kernel before 5.8.
                Err(Errno::INVAL | Errno::NOENT) => {
                    with_path(fd, |path| rustix::fs::utimensat(CWD, path, &times, AtFlags::empty()))
                }
                set => set.map_err(DescriptorPathError::Call),
            }
        }
    };
    set.map_err(|error| error.during("cannot set the time"))?;
    // A file system that cannot store a time stores the nearest one, without an error.
    if !COMMON_SECONDS.contains(&mtime.seconds) && target.stat()?.st_mtime != mtime.seconds {
        skipped.times += 1;
    }
    Ok(())
}

/// Extended attributes in the order in which they are set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum XattrKind {
    Other,
    /// An ACL: the mode is set before.
    Acl,
    /// What gives rights to whoever runs the file.
    Capability,
}

impl XattrKind {
    fn of(xattr: &Xattr) -> Self {
        match xattr.name.as_slice() {
            b"security.capability" => Self::Capability,
            name if name.starts_with(b"system.posix_acl_") => Self::Acl,
            _ => Self::Other,
        }
    }
}

/// The effective user of the caller.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CallerId {
    uid: u32,
}

impl CallerId {
    pub(crate) fn current() -> Self {
        Self { uid: rustix::process::geteuid().as_raw() }
    }

    #[cfg(test)]
    pub(crate) fn of_user(uid: u32) -> Self {
        Self { uid }
    }

    pub(crate) fn is_root(self) -> bool {
        self.uid == 0
    }

    /// Whether owners are set at all.
    pub(crate) fn sets_owners(self, owners: OwnerPolicy) -> bool {
        match owners {
            OwnerPolicy::IfRoot => self.is_root(),
            OwnerPolicy::Image => true,
            OwnerPolicy::Caller => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_that_fat_cannot_store_in_some_zone_are_looked_at() {
        let last_of_1979 = 315_532_799;
        for hours_behind_utc in [0, 12, 24] {
            let at = last_of_1979 + hours_behind_utc * 3600;
            assert!(!COMMON_SECONDS.contains(&at), "{hours_behind_utc} hours behind UTC");
        }
    }
}

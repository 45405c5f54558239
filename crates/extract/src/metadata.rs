//! Sets owner, mode, extended attributes and times of an entry, in the order in which none undoes
//! another: a change of owner drops set-id bits and capabilities, a change of mode changes an ACL,
//! and ordinary users may set attributes of a file only while they may write it.

use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

use ferrofs_image::{FileType, Inode, Xattr};
use rustix::fs::{AtFlags, Gid, Mode, OFlags, Stat, Timespec, Timestamps, Uid, XattrFlags};
use rustix::io::Errno;

use crate::error::{ErrorKind, SET_XATTR};
use crate::event::SkippedMetadata;
use crate::options::OwnerPolicy;

/// The times, in seconds, that every file system can store.
const COMMON_SECONDS: Range<i64> = 0..1 << 31;

const SET_UID: u32 = 0o4000;
const SET_GID: u32 = 0o2000;

/// The entry that metadata is set on.
#[derive(Clone, Copy, Debug)]
pub(crate) enum MetadataTarget<'a> {
    /// A regular file or a directory.
    Open(BorrowedFd<'a>),
    /// Anything else, by its name in a directory.
    Named(BorrowedFd<'a>, &'a [u8]),
}

impl MetadataTarget<'_> {
    pub(crate) fn stat(self) -> Result<Stat, ErrorKind> {
        let stat = match self {
            Self::Open(fd) => rustix::fs::fstat(fd),
            Self::Named(directory, name) => {
                rustix::fs::statat(directory, name, AtFlags::SYMLINK_NOFOLLOW)
            }
        };
        stat.map_err(ErrorKind::output("cannot examine the new file"))
    }
}

/// The metadata of an entry in the image.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NewMetadata<'a> {
    pub(crate) inode: &'a Inode,
    pub(crate) xattrs: &'a [Xattr],
    /// Permission bits to set; the final ones of a directory may be set later.
    pub(crate) mode: u32,
    /// The status of the new entry: values that are right already are not set.
    pub(crate) stat: &'a Stat,
}

/// Which owners and permissions are set.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MetadataPolicy {
    pub(crate) credentials: Credentials,
    pub(crate) owners: OwnerPolicy,
    /// Permission bits that no entry gets.
    pub(crate) masked: u32,
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
        let mut errors = Vec::new();
        let NewMetadata { inode, xattrs, mode, stat } = attributes;
        let kept = self.set_owner(target, attributes, skipped).unwrap_or_else(|kind| {
            errors.push(kind);
            AppliedOwner { user: false, group: false }
        });
        let (acls, others): (Vec<_>, Vec<_>) = xattrs.iter().partition(|xattr| is_acl(xattr));
        errors.extend(others.iter().filter_map(|xattr| set_xattr(target, xattr, skipped).err()));
        if inode.file_type() != FileType::Symlink {
            let mode = clear_foreign_set_id(self.unmasked(mode), inode, kept, skipped);
            if mode != stat.st_mode & 0o7777 {
                errors.extend(set_mode(target, mode).err());
            }
        }
        errors.extend(acls.iter().filter_map(|xattr| set_xattr(target, xattr, skipped).err()));
        errors.extend(set_times(target, inode, skipped).err());
        errors
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
        let user = self.credentials.is_user_of(inode);
        let group = self.credentials.is_group_of(inode);
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

fn change_owner(target: MetadataTarget<'_>, inode: &Inode) -> rustix::io::Result<()> {
    // All ones would mean "leave as it is".
    if inode.uid() == u32::MAX || inode.gid() == u32::MAX {
        return Err(Errno::INVAL);
    }
    let (uid, gid) = (Some(Uid::from_raw(inode.uid())), Some(Gid::from_raw(inode.gid())));
    match target {
        MetadataTarget::Open(fd) => rustix::fs::fchown(fd, uid, gid),
        MetadataTarget::Named(directory, name) => {
            rustix::fs::chownat(directory, name, uid, gid, AtFlags::SYMLINK_NOFOLLOW)
        }
    }
}

/// Clears set-id bits whose owner could not be set: they must not grant the rights of another
/// owner.
fn clear_foreign_set_id(
    mode: u32,
    inode: &Inode,
    kept: AppliedOwner,
    skipped: &mut SkippedMetadata,
) -> u32 {
    if inode.file_type() == FileType::Directory {
        return mode;
    }
    let user = if kept.user { 0 } else { SET_UID };
    let group = if kept.group { 0 } else { SET_GID };
    let dropped = mode & (user | group);
    if dropped != 0 {
        skipped.set_id_bits += 1;
    }
    mode & !dropped
}

fn set_mode(target: MetadataTarget<'_>, mode: u32) -> Result<(), ErrorKind> {
    let failed = ErrorKind::output("cannot set the mode");
    let mode = Mode::from_raw_mode(mode);
    let (directory, name) = match target {
        MetadataTarget::Open(fd) => return rustix::fs::fchmod(fd, mode).map_err(failed),
        MetadataTarget::Named(directory, name) => (directory, name),
    };
    // Not every kernel can change the mode of a name without following symlinks. So the entry is
    // opened with O_PATH, checked, and changed through its descriptor.
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let pinned = rustix::fs::openat(directory, name, flags, Mode::empty()).map_err(&failed)?;
    let stat = rustix::fs::fstat(&pinned).map_err(&failed)?;
    if rustix::fs::FileType::from_raw_mode(stat.st_mode) == rustix::fs::FileType::Symlink {
        return Err(ErrorKind::Replaced);
    }
    rustix::fs::chmod(descriptor_path(pinned.as_fd()), mode).map_err(failed)
}

fn set_xattr(
    target: MetadataTarget<'_>,
    xattr: &Xattr,
    skipped: &mut SkippedMetadata,
) -> Result<(), ErrorKind> {
    let (name, value) = (xattr.name.as_slice(), xattr.value.as_slice());
    let set = match target {
        MetadataTarget::Open(fd) => rustix::fs::fsetxattr(fd, name, value, XattrFlags::empty()),
        MetadataTarget::Named(directory, file) => {
            let mut path = descriptor_path(directory);
            path.push(b'/');
            path.extend_from_slice(file);
            rustix::fs::lsetxattr(path, name, value, XattrFlags::empty())
        }
    };
    match set {
        Ok(()) => {}
        Err(Errno::PERM | Errno::ACCESS) => skipped.xattrs_denied += 1,
        Err(Errno::OPNOTSUPP) => skipped.xattrs_unsupported += 1,
        Err(errno) => return Err(ErrorKind::output(SET_XATTR)(errno)),
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
        MetadataTarget::Open(fd) => rustix::fs::futimens(fd, &times),
        MetadataTarget::Named(directory, name) => {
            rustix::fs::utimensat(directory, name, &times, AtFlags::SYMLINK_NOFOLLOW)
        }
    };
    set.map_err(ErrorKind::output("cannot set the time"))?;
    // A file system that cannot store a time stores the nearest one, without an error.
    if !COMMON_SECONDS.contains(&mtime.seconds) && target.stat()?.st_mtime != mtime.seconds {
        skipped.times += 1;
    }
    Ok(())
}

fn is_acl(xattr: &Xattr) -> bool {
    xattr.name.starts_with(b"system.posix_acl_")
}

/// A path to an open file, for system calls that take no descriptor.
fn descriptor_path(fd: BorrowedFd<'_>) -> Vec<u8> {
    format!("/proc/self/fd/{}", fd.as_raw_fd()).into_bytes()
}

/// The effective user and group of the caller, who owns new entries.
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

    /// Whether owners are set at all.
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

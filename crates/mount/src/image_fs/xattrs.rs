//! GETXATTR and LISTXATTR. An inode without attributes is answered from its own bytes, so that a program sees the errors of
//! Linux's EROFS whether other inodes have attributes or not.

use ferrofs_fuse::{Errno, Reply, Request};

use super::{FsResult, ImageFs};

/// Visible to root only; the kernel protects their values, but not their names.
const TRUSTED: &[u8] = b"trusted.";
/// Hidden by `nouser_xattr`.
const USER: &[u8] = b"user.";
/// Labels and file capabilities.
const SECURITY: &[u8] = b"security.";
/// Access control lists; the kernel requests them only if it enforces them.
const ACLS: &[u8] = b"system.posix_acl_";

impl ImageFs {
    pub(super) fn get_xattr(&self, node: u64, name: &[u8], size: u32, reply: Reply<'_>) {
        match self.xattr(node, name) {
            Ok(value) => reply_sized(&value, size, reply),
            Err(errno) => reply.error(errno),
        }
    }

    pub(super) fn list_xattrs(&self, request: &Request<'_>, size: u32, reply: Reply<'_>) {
        match self.xattr_names(request) {
            Ok(names) => reply_sized(&names, size, reply),
            Err(errno) => reply.error(errno),
        }
    }

    fn xattr(&self, node: u64, name: &[u8]) -> FsResult<Vec<u8>> {
        // After this reply the kernel sends no more GETXATTR, and programs get EOPNOTSUPP.
        if !self.settings.has_xattrs {
            return Err(Errno::NOSYS);
        }
        check_name(name)?;
        let is_off = !self.settings.has_acls && name.starts_with(ACLS)
            || !self.settings.has_user_xattrs && name.starts_with(USER);
        if is_off {
            return Err(Errno::OPNOTSUPP);
        }
        let inode = self.inode(node)?;
        match self.image.xattr(&inode, name) {
            Ok(value) => value.ok_or(Errno::NODATA),
            Err(error) => Err(self.failed(inode.nid(), "an attribute", &error)),
        }
    }

    fn xattr_names(&self, request: &Request<'_>) -> FsResult<Vec<u8>> {
        if !self.settings.has_xattrs {
            return Err(Errno::NOSYS);
        }
        let inode = self.inode(request.node)?;
        let xattrs = self.image.xattrs(&inode);
        let xattrs = xattrs.map_err(|error| self.failed(inode.nid(), "the attributes", &error))?;
        let mut names = Vec::new();
        for xattr in xattrs {
            let is_hidden = xattr.name.starts_with(TRUSTED) && request.uid != 0
                || xattr.name.starts_with(USER) && !self.settings.has_user_xattrs
                || xattr.name.starts_with(ACLS) && !self.settings.has_acls;
            if !is_hidden {
                names.extend_from_slice(&xattr.name);
                names.push(0);
            }
        }
        Ok(names)
    }
}

/// Rejects names that no image can have, as Linux's EROFS does.
fn check_name(name: &[u8]) -> FsResult<()> {
    if name.starts_with(ACLS) {
        return Ok(());
    }
    let suffix = [USER, TRUSTED, SECURITY].iter().find_map(|prefix| name.strip_prefix(*prefix));
    match suffix {
        None => Err(Errno::OPNOTSUPP),
        Some([]) => Err(Errno::INVAL),
        Some(_) => Ok(()),
    }
}

/// Replies with `bytes`, or with their length if `size` is 0.
fn reply_sized(bytes: &[u8], size: u32, reply: Reply<'_>) {
    match u32::try_from(bytes.len()) {
        Ok(length) if size == 0 => reply.length(length),
        Ok(length) if length <= size => reply.bytes(bytes),
        _ => reply.error(Errno::RANGE),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_that_no_image_can_have_is_rejected_as_linux_does() {
        for name in ["user.a", "trusted.overlay.opaque", "security.capability"] {
            assert_eq!(check_name(name.as_bytes()), Ok(()), "{name}");
        }
        assert_eq!(check_name(b"system.posix_acl_access"), Ok(()));
        for name in ["user.", "trusted.", "security."] {
            assert_eq!(check_name(name.as_bytes()), Err(Errno::INVAL), "{name}");
        }
        for name in ["user", "system.absent", "erofs.absent", "os2.a", ""] {
            assert_eq!(check_name(name.as_bytes()), Err(Errno::OPNOTSUPP), "{name}");
        }
    }
}

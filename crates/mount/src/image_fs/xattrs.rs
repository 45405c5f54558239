//! Extended attributes.

use ferrofs_fuse::{Errno, Reply, Request};

use super::{FsResult, ImageFs};

/// Only those who may do everything see these; the kernel guards their values, but not their names.
const TRUSTED: &[u8] = b"trusted.";
/// What `nouser_xattr` hides.
const USER: &[u8] = b"user.";
/// What is labelled and may be executed with which rights.
const SECURITY: &[u8] = b"security.";
/// Access control lists, which the kernel asks for only if it may obey them.
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
        // The kernel remembers this, and does not ask again.
        if !self.settings.has_xattrs || self.xattr_scan.has_none() {
            return Err(Errno::NOSYS);
        }
        if self.xattr_scan.try_start() {
            self.prefetch_queue.scan_xattrs(&self.self_ref);
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

/// Refuses what no image can have, as Linux's EROFS does.
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

fn reply_sized(bytes: &[u8], room: u32, reply: Reply<'_>) {
    match u32::try_from(bytes.len()) {
        Ok(length) if room == 0 => reply.length(length),
        Ok(length) if length <= room => reply.bytes(bytes),
        _ => reply.error(Errno::RANGE),
    }
}

#[cfg(test)]
mod tests {
    use ferrofs_fuse::Errno;

    use super::check_name;

    #[test]
    fn a_name_that_no_image_can_have_is_refused_as_linux_does() {
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

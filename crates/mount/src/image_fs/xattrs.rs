//! GETXATTR, LISTXATTR, and the scan for images that have no extended attributes.

use std::sync::atomic::{AtomicU8, Ordering};

use ferrofs_fuse::{Errno, Reply, Request};
use ferrofs_image::{Image, WalkEvent};

use super::prefetch_queue::PrefetchTask;
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
        // After this reply the kernel sends no more GETXATTR.
        if !self.settings.has_xattrs || self.xattr_scan.has_none() {
            return Err(Errno::NOSYS);
        }
        if self.xattr_scan.try_start() {
            self.prefetch_queue.push(PrefetchTask::XattrScan);
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

/// Images with more inodes are not scanned: the scan would cost more than the requests that it saves.
const MAX_INODES: u64 = 4 << 20;

/// Whether the image has any extended attribute. If it has none, one reply `ENOSYS` makes the kernel send no more
/// requests for them; `ls -l` alone sends two for each file.
#[derive(Debug, Default)]
pub(super) struct XattrScan(AtomicU8);

const NOT_STARTED: u8 = 0;
const RUNNING: u8 = 1;
const SOME_FOUND: u8 = 2;
const NONE_FOUND: u8 = 3;

impl XattrScan {
    /// Whether the caller is to [`run`](Self::run) the scan: `true` once.
    fn try_start(&self) -> bool {
        // Relaxed, here and below: no data is published with the state.
        self.0.compare_exchange(NOT_STARTED, RUNNING, Ordering::Relaxed, Ordering::Relaxed).is_ok()
    }

    /// Searches the inodes until one has an attribute.
    pub(super) fn run(&self, image: &Image) {
        let found = if has_no_xattrs(image) { NONE_FOUND } else { SOME_FOUND };
        self.0.store(found, Ordering::Relaxed);
    }

    /// Whether the image is known to have none.
    fn has_none(&self) -> bool {
        self.0.load(Ordering::Relaxed) == NONE_FOUND
    }
}

/// `false` also if that is unknown, because of an error or the size of the image.
fn has_no_xattrs(image: &Image) -> bool {
    if image.superblock().inodes > MAX_INODES {
        return false;
    }
    let Ok(walk) = image.walk(b"/") else { return false };
    for visit in walk {
        match visit {
            WalkEvent::Enter(node) | WalkEvent::Leaf(node) if node.inode.has_xattrs() => {
                return false;
            }
            WalkEvent::Enter(_) | WalkEvent::Leaf(_) | WalkEvent::Leave(_) => {}
            WalkEvent::Problem(_) => return false,
        }
    }
    true
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

    fn xattr_scan(name: &str) -> XattrScan {
        let path = format!("{}/../../tests/data/{name}.erofs", env!("CARGO_MANIFEST_DIR"));
        let xattr_scan = XattrScan::default();
        assert!(xattr_scan.try_start());
        assert!(!xattr_scan.try_start());
        xattr_scan.run(&Image::open(path).unwrap());
        xattr_scan
    }

    #[test]
    fn an_image_without_attributes_is_recognized() {
        assert!(xattr_scan("xattr-none").has_none());
    }

    #[test]
    fn one_attribute_ends_the_scan() {
        assert!(!xattr_scan("plain").has_none());
        assert!(!xattr_scan("xattr-all-shared").has_none());
    }
}

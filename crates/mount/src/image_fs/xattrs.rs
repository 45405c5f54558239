//! GETXATTR and LISTXATTR. An inode without attributes is answered from its own bytes, so that a program sees the errors of
//! Linux's EROFS whether other inodes have attributes or not.

use ferrofs_fuse::{Errno, Reply, Request};
use ferrofs_image::{Error, Image, Inode};

use super::{FsResult, ImageFs};

/// Visible to root only; the kernel protects their values, but not their names.
const TRUSTED: &[u8] = b"trusted.";
/// Hidden by `nouser_xattr`.
const USER: &[u8] = b"user.";
/// Labels and file capabilities.
const SECURITY: &[u8] = b"security.";
/// Access control lists; the kernel requests them only if it enforces them.
const ACLS: &[u8] = b"system.posix_acl_";

/// The answer to GETXATTR.
enum FoundXattr {
    Value(Vec<u8>),
    Length(usize),
}

impl ImageFs {
    pub(super) fn get_xattr(&self, node: u64, name: &[u8], size: u32, reply: Reply<'_>) {
        // No value is read for its length.
        let found = match size {
            0 => self.xattr(node, name, Image::xattr_length).map(FoundXattr::Length),
            _ => self.xattr(node, name, Image::xattr).map(FoundXattr::Value),
        };
        match found {
            Ok(FoundXattr::Value(value)) => reply_sized(&value, size, reply),
            Ok(FoundXattr::Length(length)) => reply_length(length, reply),
            Err(errno) => reply.error(errno),
        }
    }

    pub(super) fn list_xattrs(&self, request: &Request<'_>, size: u32, reply: Reply<'_>) {
        match self.xattr_names(request) {
            Ok(names) => reply_sized(&names, size, reply),
            Err(errno) => reply.error(errno),
        }
    }

    /// What `find` returns for an attribute.
    fn xattr<T>(
        &self,
        node: u64,
        name: &[u8],
        find: impl FnOnce(&Image, &Inode, &[u8]) -> Result<Option<T>, Error>,
    ) -> FsResult<T> {
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
        match find(&self.image, &inode, name) {
            Ok(found) => found.ok_or(Errno::NODATA),
            Err(error) => Err(self.failed(inode.nid(), "an attribute", &error)),
        }
    }

    fn xattr_names(&self, request: &Request<'_>) -> FsResult<Vec<u8>> {
        if !self.settings.has_xattrs {
            return Err(Errno::NOSYS);
        }
        let inode = self.inode(request.node)?;
        let found = self.image.xattr_names(&inode);
        let found = found.map_err(|error| self.failed(inode.nid(), "the attributes", &error))?;
        let mut names = Vec::new();
        for name in found {
            let is_hidden = name.starts_with(TRUSTED) && request.uid != 0
                || name.starts_with(USER) && !self.settings.has_user_xattrs
                || name.starts_with(ACLS) && !self.settings.has_acls;
            if !is_hidden {
                names.extend_from_slice(&name);
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
        _ if size == 0 => reply_length(bytes.len(), reply),
        Ok(length) if length <= size => reply.bytes(bytes),
        _ => reply.error(Errno::RANGE),
    }
}

/// Replies to a request of size 0.
fn reply_length(length: usize, reply: Reply<'_>) {
    match u32::try_from(length) {
        Ok(length) => reply.length(length),
        Err(_) => reply.error(Errno::RANGE),
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use ferrofs_fuse::{Capabilities, Operation};

    use super::super::tests::mounted_image;
    use super::*;

    /// A list of 255 names read 16 MiB of values. The value here is not in the image, so that reading it would fail.
    #[test]
    fn names_and_lengths_are_answered_without_reading_values() {
        const FILE: u64 = 128 + 4;
        let mut image = vec![0; 3 * 4096];
        let mut put = |at: usize, bytes: &[u8]| image[at..at + bytes.len()].copy_from_slice(bytes);
        // The superblock: its magic, blocks of 2^12 bytes, the root is inode 128, shared attributes are in block 2.
        put(1024, &0xe0f5_e1e2_u32.to_le_bytes());
        put(1024 + 12, &[12, 0, 128, 0]);
        put(1024 + 44, &[2]);
        put(4096, &[0, 0, 0, 0, 0xed, 0x41, 2]);
        // A FIFO with one shared attribute, `user.a`, whose value would have 65,535 bytes.
        put(4096 + 128, &[0, 0, 2, 0, 0xa4, 0x11, 1]);
        put(4096 + 160, &[0, 0, 0, 0, 1]);
        put(8192, &[1, 1, 0xff, 0xff, b'a']);
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(&image).unwrap();
        let image = Image::open(file.path()).unwrap();
        let file_system = mounted_image(image, Capabilities::default());
        let operation = Operation::ListXattr { size: 100 };
        let request = Request { unique: 2, node: FILE, uid: 0, pid: 0, operation };
        assert_eq!(file_system.xattr_names(&request), Ok(b"user.a\0".to_vec()));
        assert_eq!(file_system.xattr(FILE, b"user.a", Image::xattr_length), Ok(65_535));
        assert!(file_system.xattr(FILE, b"user.a", Image::xattr).is_err());
        file_system.shut_down();
    }

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

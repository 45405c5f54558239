//! Inodes: looking them up, their attributes, contents and links.
#![allow(unsafe_code, reason = "functions that C calls get pointers")]

use std::ffi::{c_char, c_int, c_void};

use ferrofs_image::{ErrorKind, FileType, Inode, LastLink, Nid};

use crate::error::{CallError, CallResult};
use crate::guard;
use crate::open::{ImageHandle, SharedImage};
use crate::path;
use crate::pointer::{self, Ending};
use crate::structs::Stat;

/// An inode with its image. The type is `ferrofs_inode` in C.
#[derive(Debug)]
pub(crate) struct InodeHandle {
    pub(crate) image: SharedImage,
    pub(crate) inode: Inode,
}

/// `ferrofs_lookup`.
///
/// # Safety
/// `image` is an open image, `path` is a text, `inode` and `error` can be written.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ferrofs_lookup(
    image: *const ImageHandle,
    path: *const c_char,
    inode: *mut *mut InodeHandle,
    error: *mut *mut CallError,
) -> c_int {
    // SAFETY: this function's contract.
    unsafe { guard::call(error, || write_found(image, path, LastLink::Follow, inode)) }
}

/// `ferrofs_lookup_nofollow`.
///
/// # Safety
/// As [`ferrofs_lookup`].
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ferrofs_lookup_nofollow(
    image: *const ImageHandle,
    path: *const c_char,
    inode: *mut *mut InodeHandle,
    error: *mut *mut CallError,
) -> c_int {
    // SAFETY: this function's contract.
    unsafe { guard::call(error, || write_found(image, path, LastLink::Keep, inode)) }
}

/// Looks a path up.
///
/// # Safety
/// As [`ferrofs_lookup`].
unsafe fn find(
    image: *const ImageHandle,
    path: *const c_char,
    last: LastLink,
) -> CallResult<InodeHandle> {
    // SAFETY: this function's contract.
    let (handle, path) =
        unsafe { (pointer::handle(image, "image")?, pointer::text(path, "path")?) };
    let found = path::follow(&handle.image, path, last).map_err(|error| error.at_path(path))?;
    Ok(InodeHandle { image: handle.image.clone(), inode: found.inode })
}

/// Looks a path up, and writes a handle.
///
/// # Safety
/// As [`ferrofs_lookup`].
unsafe fn write_found(
    image: *const ImageHandle,
    path: *const c_char,
    last: LastLink,
    inode: *mut *mut InodeHandle,
) -> CallResult<c_int> {
    pointer::require(inode, "inode")?;
    // SAFETY: this function's contract.
    unsafe { pointer::write_handle(inode, find(image, path, last)?) };
    Ok(0)
}

/// `ferrofs_inode_by_nid`.
///
/// # Safety
/// As [`ferrofs_lookup`].
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ferrofs_inode_by_nid(
    image: *const ImageHandle,
    nid: u64,
    inode: *mut *mut InodeHandle,
    error: *mut *mut CallError,
) -> c_int {
    let body = || {
        // SAFETY: this function's contract.
        let handle = unsafe { pointer::handle(image, "image") }?;
        pointer::require(inode, "inode")?;
        let found = handle.image.inode(Nid::new(nid))?;
        let found = InodeHandle { image: handle.image.clone(), inode: found };
        // SAFETY: this function's contract.
        unsafe { pointer::write_handle(inode, found) };
        Ok(0)
    };
    // SAFETY: this function's contract.
    unsafe { guard::call(error, body) }
}

/// `ferrofs_inode_free`.
///
/// # Safety
/// `inode` is NULL or an inode that was not freed.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ferrofs_inode_free(inode: *mut InodeHandle) {
    // SAFETY: this function's contract.
    guard::drop_quietly(|| unsafe { pointer::free(inode) });
}

/// `ferrofs_inode_stat`.
///
/// # Safety
/// `inode` is an inode, `stat` begins with its size, `error` can be written.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ferrofs_inode_stat(
    inode: *const InodeHandle,
    stat: *mut Stat,
    error: *mut *mut CallError,
) -> c_int {
    let body = || {
        // SAFETY: this function's contract.
        let handle = unsafe { pointer::handle(inode, "inode") }?;
        // SAFETY: this function's contract.
        unsafe { write_stat(&handle.inode, stat) }
    };
    // SAFETY: this function's contract.
    unsafe { guard::call(error, body) }
}

/// `ferrofs_stat`.
///
/// # Safety
/// `image` is an open image, `path` is a text, `stat` begins with its size, `error` can be written.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ferrofs_stat(
    image: *const ImageHandle,
    path: *const c_char,
    stat: *mut Stat,
    error: *mut *mut CallError,
) -> c_int {
    // SAFETY: this function's contract.
    let body = || unsafe { write_stat(&find(image, path, LastLink::Follow)?.inode, stat) };
    // SAFETY: this function's contract.
    unsafe { guard::call(error, body) }
}

/// `ferrofs_lstat`.
///
/// # Safety
/// As [`ferrofs_stat`].
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ferrofs_lstat(
    image: *const ImageHandle,
    path: *const c_char,
    stat: *mut Stat,
    error: *mut *mut CallError,
) -> c_int {
    // SAFETY: this function's contract.
    let body = || unsafe { write_stat(&find(image, path, LastLink::Keep)?.inode, stat) };
    // SAFETY: this function's contract.
    unsafe { guard::call(error, body) }
}

/// Writes the attributes of an inode.
///
/// # Safety
/// `stat` is NULL or begins with its size, and can be written.
unsafe fn write_stat(inode: &Inode, stat: *mut Stat) -> CallResult<c_int> {
    pointer::require(stat, "stat")?;
    // SAFETY: this function's contract.
    let place = unsafe { pointer::result_place(stat) }?;
    let (rdev_major, rdev_minor) = inode.device().unwrap_or((0, 0));
    let mtime = inode.mtime();
    let result = Stat {
        nid: inode.nid().raw(),
        bytes: inode.size(),
        mtime: mtime.seconds,
        mtime_nsec: mtime.nanoseconds,
        mode: inode.mode().into(),
        uid: inode.uid(),
        gid: inode.gid(),
        nlink: inode.nlink(),
        rdev_major,
        rdev_minor,
        has_xattrs: inode.has_xattrs().into(),
        ..Stat::new()
    };
    // SAFETY: this function's contract, and the size is checked.
    unsafe { place.write(&result) };
    Ok(0)
}

/// `ferrofs_pread`.
///
/// # Safety
/// `inode` is an inode, `count` bytes can be written at `buffer`, which no other thread uses, `done`
/// and `error` can be written.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ferrofs_pread(
    inode: *const InodeHandle,
    buffer: *mut c_void,
    count: usize,
    offset: u64,
    done: *mut usize,
    error: *mut *mut CallError,
) -> c_int {
    let body = || {
        // SAFETY: this function's contract.
        let handle = unsafe { pointer::handle(inode, "inode") }?;
        pointer::require(done, "done")?;
        require_file(&handle.inode)?;
        // SAFETY: this function's contract; the library never reads the buffer before it has written it.
        let target = unsafe { pointer::buffer(buffer, count) }?;
        let read = handle.image.read_at(&handle.inode, offset, target)?;
        // SAFETY: this function's contract.
        unsafe { pointer::write(done, read) };
        Ok(0)
    };
    // SAFETY: this function's contract.
    unsafe { guard::call(error, body) }
}

/// Fails unless an inode is a regular file: the library also reads the bytes of directories and links.
fn require_file(inode: &Inode) -> CallResult<()> {
    match inode.file_type() {
        FileType::Regular => Ok(()),
        found => {
            let wanted = FileType::Regular;
            let error = ferrofs_image::Error::from(ErrorKind::WrongType { wanted, found });
            Err(CallError::from(error).in_inode(inode.nid().raw()))
        }
    }
}

/// `ferrofs_readlink`.
///
/// # Safety
/// `inode` is an inode, `size` bytes can be written at `buffer`, `length` and `error` can be written.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ferrofs_readlink(
    inode: *const InodeHandle,
    buffer: *mut c_char,
    size: usize,
    length: *mut usize,
    error: *mut *mut CallError,
) -> c_int {
    let body = || {
        // SAFETY: this function's contract.
        let handle = unsafe { pointer::handle(inode, "inode") }?;
        let target = handle.image.read_link(&handle.inode)?;
        // SAFETY: this function's contract.
        unsafe { pointer::write_bytes(&target, Ending::Nul, buffer.cast(), size, length) }?;
        Ok(0)
    };
    // SAFETY: this function's contract.
    unsafe { guard::call(error, body) }
}

/// `ferrofs_getxattr`.
///
/// # Safety
/// As [`ferrofs_readlink`]; `name` is a text.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ferrofs_getxattr(
    inode: *const InodeHandle,
    name: *const c_char,
    buffer: *mut c_void,
    size: usize,
    length: *mut usize,
    error: *mut *mut CallError,
) -> c_int {
    let body = || {
        // SAFETY: this function's contract.
        let handle = unsafe { pointer::handle(inode, "inode") }?;
        // SAFETY: this function's contract.
        let name = unsafe { pointer::text(name, "name") }?;
        if size == 0 {
            let bytes = handle.image.xattr_length(&handle.inode, name)?;
            let bytes = bytes.ok_or_else(|| CallError::no_attribute(name))?;
            // SAFETY: this function's contract.
            unsafe { pointer::write(length, bytes) };
            return Ok(0);
        }
        let value = handle.image.xattr(&handle.inode, name)?;
        let value = value.ok_or_else(|| CallError::no_attribute(name))?;
        // SAFETY: this function's contract.
        unsafe { pointer::write_bytes(&value, Ending::None, buffer.cast(), size, length) }?;
        Ok(0)
    };
    // SAFETY: this function's contract.
    unsafe { guard::call(error, body) }
}

/// `ferrofs_listxattr`.
///
/// # Safety
/// As [`ferrofs_readlink`].
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ferrofs_listxattr(
    inode: *const InodeHandle,
    buffer: *mut c_char,
    size: usize,
    length: *mut usize,
    error: *mut *mut CallError,
) -> c_int {
    let body = || {
        // SAFETY: this function's contract.
        let handle = unsafe { pointer::handle(inode, "inode") }?;
        let mut names = Vec::new();
        for name in handle.image.xattr_names(&handle.inode)? {
            names.extend_from_slice(&name);
            names.push(0);
        }
        // SAFETY: this function's contract.
        unsafe { pointer::write_bytes(&names, Ending::None, buffer.cast(), size, length) }?;
        Ok(0)
    };
    // SAFETY: this function's contract.
    unsafe { guard::call(error, body) }
}

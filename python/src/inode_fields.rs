//! Inodes and directory entries as tuples, which the Python half turns into `os.stat_result`,
//! `ErofsInfo` and dictionaries.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;

use ferrofs_image::{Image, Inode, Nid};
use pyo3::prelude::*;

use crate::errors::BindingResult;

/// nid, mode, nlink, uid, gid, size, seconds, nanoseconds, major and minor number, bytes stored.
pub(crate) type InodeTuple = (u64, u32, u32, u32, u32, u64, i64, u32, u32, u32, u64);

pub(crate) fn inode_tuple(inode: &Inode, block_bytes: u64) -> InodeTuple {
    let (major, minor) = inode.device().unwrap_or_default();
    let mtime = inode.mtime();
    let stored = inode.compressed_blocks().map_or(inode.size(), |blocks| blocks * block_bytes);
    (
        inode.nid().raw(),
        u32::from(inode.mode()),
        inode.nlink(),
        inode.uid(),
        inode.gid(),
        inode.size(),
        mtime.seconds,
        mtime.nanoseconds,
        major,
        minor,
        stored,
    )
}

/// An entry of a directory: its name, the type bits of its mode, its nid.
#[derive(Debug)]
pub(crate) struct Entry {
    pub(crate) name: OsString,
    pub(crate) type_bits: u32,
    pub(crate) nid: Nid,
}

/// What one directory holds, in the order of the image. The inodes are not read, unless the
/// directory does not hold the types.
pub(crate) fn entries(image: &Image, directory: &Inode) -> BindingResult<Vec<Entry>> {
    let mut found = Vec::new();
    for entry in image.read_dir(directory)? {
        let entry = entry?;
        let file_type = match entry.type_hint {
            Some(file_type) => file_type,
            None => image.inode(entry.nid)?.file_type(),
        };
        let name = OsString::from_vec(entry.name.into_vec());
        found.push(Entry { name, type_bits: u32::from(file_type.mode_bits()), nid: entry.nid });
    }
    Ok(found)
}

/// A name as Python's `os.fsdecode` gives it.
pub(crate) fn name_object<'py>(
    py: Python<'py>,
    name: &std::ffi::OsStr,
) -> PyResult<Bound<'py, PyAny>> {
    Ok(name.into_pyobject(py)?.into_any())
}

//! The sidecar of an extracted image: the metadata of every path, so that a user who cannot set it
//! on files can still build the same image again. Written by the verb `extract`, read by `build`.
//!
//! A sidecar is UTF-8 text with one JSON object a line:
//!
//! ```text
//! {"path":"/bin/ping","type":"f","mode":"0755","uid":0,"gid":0,"mtime":1700000000,
//!  "nanoseconds":0,"xattrs":[{"name":"security.capability","value":"01000002…"}]}
//! ```
//!
//! `path` begins with a slash; a path or a name that is not UTF-8 is an object `{"hex": "…"}`. `type`
//! is one of `f`, `d`, `l`, `c`, `b`, `p` and `s`. Devices have `device`, a list of their major and
//! minor number, and symlinks have `target`. Values of xattrs are hexadecimal. (The example is one
//! line.) What is not in the source is created from its line, but for regular files; a directory has
//! its line before those of the files in it.

use ferrofs_image::FileType;
use serde::{Deserialize, Serialize};

use crate::output::JsonBytes;

/// The longest line: the longest path, and all xattrs that an inode can have.
pub(crate) const LINE_BYTES_MAX: u64 = 4 << 20;
/// Lines of a sidecar: more inodes than any image has.
pub(crate) const LINES_MAX: usize = 64 << 20;

/// A line.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct SidecarEntry {
    pub(crate) path: JsonBytes,
    #[serde(rename = "type")]
    pub(crate) file_type: String,
    /// The permissions, octal.
    pub(crate) mode: String,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    /// Seconds since 1970.
    pub(crate) mtime: i64,
    pub(crate) nanoseconds: u32,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) xattrs: Vec<SidecarXattr>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) device: Option<(u32, u32)>,
    /// The target of a symlink.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) target: Option<JsonBytes>,
}

/// An xattr of a line.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct SidecarXattr {
    pub(crate) name: JsonBytes,
    /// Hexadecimal.
    pub(crate) value: String,
}

/// The letter of a type.
pub(crate) fn type_letter(file_type: FileType) -> &'static str {
    match file_type {
        FileType::Regular => "f",
        FileType::Directory => "d",
        FileType::Symlink => "l",
        FileType::CharDevice => "c",
        FileType::BlockDevice => "b",
        FileType::Fifo => "p",
        FileType::Socket => "s",
    }
}

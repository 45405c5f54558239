//! An inode in words and in JSON, for `ls` and `stat`.

use ferrofs_image::{FileType, Inode, Timestamp};
use serde::Serialize;

use crate::escape::JsonBytes;

/// A timestamp in JSON.
#[derive(Debug, Serialize)]
pub(crate) struct JsonTime {
    seconds: i64,
    nanoseconds: u32,
}

impl From<Timestamp> for JsonTime {
    fn from(time: Timestamp) -> Self {
        Self { seconds: time.seconds, nanoseconds: time.nanoseconds }
    }
}

/// What `ls` and `stat` say about an inode in JSON.
#[derive(Debug, Serialize)]
pub(crate) struct JsonInode {
    pub(crate) path: JsonBytes,
    #[serde(rename = "type")]
    file_type: &'static str,
    /// Permissions as octal digits.
    mode: String,
    nlink: u32,
    uid: u32,
    gid: u32,
    size: u64,
    mtime: JsonTime,
    nid: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    device: Option<(u32, u32)>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) target: Option<JsonBytes>,
}

impl JsonInode {
    pub(crate) fn new(path: &[u8], inode: &Inode, target: Option<Vec<u8>>) -> Self {
        Self {
            path: JsonBytes::from(path),
            file_type: inode.file_type().name(),
            mode: format!("{:04o}", inode.mode() & 0o7777),
            nlink: inode.nlink(),
            uid: inode.uid(),
            gid: inode.gid(),
            size: inode.size(),
            mtime: inode.mtime().into(),
            nid: inode.nid().raw(),
            device: inode.device(),
            target: target.map(JsonBytes),
        }
    }
}

/// Type and permissions as `ls -l` shows them.
pub(crate) fn mode_text(inode: &Inode) -> String {
    let mode = inode.mode();
    let kind = match inode.file_type() {
        FileType::Regular => '-',
        FileType::Directory => 'd',
        FileType::Symlink => 'l',
        FileType::CharDevice => 'c',
        FileType::BlockDevice => 'b',
        FileType::Fifo => 'p',
        FileType::Socket => 's',
    };
    let special = [(0o4000, 's'), (0o2000, 's'), (0o1000, 't')];
    let mut text = String::from(kind);
    for (class, (bit, letter)) in special.into_iter().enumerate() {
        let bits = mode >> (6 - 3 * class);
        text.push(if bits & 4 != 0 { 'r' } else { '-' });
        text.push(if bits & 2 != 0 { 'w' } else { '-' });
        text.push(match (mode & bit != 0, bits & 1 != 0) {
            (true, true) => letter,
            (true, false) => letter.to_ascii_uppercase(),
            (false, true) => 'x',
            (false, false) => '-',
        });
    }
    text
}

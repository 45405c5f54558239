//! The image that the program carries, and the manifest of the tree in it.

use std::collections::HashMap;

use anyhow::{Context, anyhow, bail};
use ferrofs_image::{FileType, Timestamp};
use serde::Deserialize;

use super::record::{FileContents, FileRecord, Xattrs};

/// The image.
pub(super) const IMAGE: &[u8] = include_bytes!("../../data/demo.erofs");
const MANIFEST: &str = include_str!("../../data/manifest.json");
/// The name of the image's tree in the manifest.
const TREE: &str = "demo";

#[derive(Deserialize)]
struct Manifest {
    trees: HashMap<String, Vec<ManifestEntry>>,
}

/// An entry of a tree; tests/data/README.md explains the members.
#[derive(Clone, Default, Deserialize)]
#[serde(default)]
struct ManifestEntry {
    path: String,
    #[serde(rename = "type")]
    file_type: String,
    mode: String,
    uid: u32,
    gid: u32,
    nlink: u64,
    mtime: i64,
    mtime_nsec: u32,
    size: u64,
    sha256: String,
    target: String,
    rdev: (u32, u32),
    xattrs: HashMap<String, String>,
    hardlink_group: Option<String>,
    same_as: Option<String>,
}

/// The records of the carried image's tree.
pub(super) fn records() -> anyhow::Result<Vec<FileRecord>> {
    let mut manifest: Manifest = serde_json::from_str(MANIFEST).context("the manifest")?;
    let entries = manifest.trees.remove(TREE).context("the manifest lacks the demo tree")?;
    let groups: HashMap<String, ManifestEntry> = entries
        .iter()
        .filter(|entry| entry.same_as.is_none())
        .filter_map(|entry| Some((entry.hardlink_group.clone()?, entry.clone())))
        .collect();
    entries.iter().map(|entry| record(entry, &groups)).collect()
}

fn record(
    entry: &ManifestEntry,
    groups: &HashMap<String, ManifestEntry>,
) -> anyhow::Result<FileRecord> {
    let inode = match &entry.same_as {
        Some(group) => groups.get(group).ok_or_else(|| anyhow!("no group {group}"))?,
        None => entry,
    };
    let file_type = file_type(&inode.file_type)?;
    let contents = match file_type {
        FileType::Regular => {
            let sha256 = bytes_of(&inode.sha256)?.try_into();
            let sha256 = sha256.map_err(|_| anyhow!("not a digest: {}", inode.sha256))?;
            FileContents::File { size: inode.size, sha256 }
        }
        FileType::Symlink => FileContents::Target(name(&inode.target)?),
        FileType::CharDevice | FileType::BlockDevice => {
            FileContents::Device { major: inode.rdev.0, minor: inode.rdev.1 }
        }
        _ => FileContents::Nothing,
    };
    let xattrs = inode.xattrs.iter().map(|(key, value)| Ok((name(key)?, bytes_of(value)?)));
    Ok(FileRecord {
        path: name(&entry.path)?,
        file_type,
        mode: u32::from_str_radix(&inode.mode, 8)?,
        uid: inode.uid,
        gid: inode.gid,
        link_count: inode.nlink,
        mtime: Timestamp { seconds: inode.mtime, nanoseconds: inode.mtime_nsec },
        contents,
        xattrs: xattrs.collect::<anyhow::Result<Xattrs>>()?,
        denied_xattrs: Vec::new(),
        link_key: inode.hardlink_group.clone().map(String::into_bytes),
    })
}

fn file_type(name: &str) -> anyhow::Result<FileType> {
    Ok(match name {
        "reg" => FileType::Regular,
        "dir" => FileType::Directory,
        "lnk" => FileType::Symlink,
        "chr" => FileType::CharDevice,
        "blk" => FileType::BlockDevice,
        "fifo" => FileType::Fifo,
        "sock" => FileType::Socket,
        other => bail!("unknown file type {other} in the manifest"),
    })
}

/// A name: text, or `hex:` and the digits of its bytes.
fn name(text: &str) -> anyhow::Result<Vec<u8>> {
    match text.strip_prefix("hex:") {
        Some(digits) => bytes_of(digits),
        None => Ok(text.as_bytes().to_vec()),
    }
}

fn bytes_of(digits: &str) -> anyhow::Result<Vec<u8>> {
    let pairs = digits.as_bytes().chunks(2);
    let byte = |pair| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok();
    pairs.map(byte).collect::<Option<_>>().ok_or_else(|| anyhow!("not hexadecimal: {digits}"))
}

//! What a tree on the host looks like, to be compared with another.

use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// One entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct HostEntry {
    mode: u32,
    owner: (u32, u32),
    pub(super) mtime: (i64, i64),
    /// Contents of a file, target of a symlink, number of a device.
    pub(super) contents: Vec<u8>,
    blocks: u64,
    xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
    /// The first path of the same file, in the order of paths.
    first: PathBuf,
}

/// Looks at everything below `root`, and at it.
pub(super) fn snapshot_tree(root: &Path) -> BTreeMap<PathBuf, HostEntry> {
    let mut seen = BTreeMap::new();
    let mut firsts = HashMap::new();
    let mut left = vec![PathBuf::new()];
    while let Some(path) = left.pop() {
        let full = root.join(&path);
        let metadata = full.symlink_metadata().unwrap();
        let contents = if metadata.is_file() {
            fs::read(&full).unwrap()
        } else if metadata.is_symlink() {
            fs::read_link(&full).unwrap().as_os_str().as_bytes().to_vec()
        } else {
            metadata.rdev().to_string().into_bytes()
        };
        if metadata.is_dir() {
            let entries = fs::read_dir(&full).unwrap();
            let mut names: Vec<PathBuf> =
                entries.map(|entry| path.join(entry.unwrap().file_name())).collect();
            names.sort_by(|a, b| b.cmp(a));
            left.extend(names);
        }
        let first = firsts.entry(metadata.ino()).or_insert_with(|| path.clone()).clone();
        let blocks = if metadata.is_file() { metadata.blocks() } else { 0 };
        let entry = HostEntry {
            mode: metadata.mode(),
            owner: (metadata.uid(), metadata.gid()),
            mtime: (metadata.mtime(), metadata.mtime_nsec()),
            contents,
            blocks,
            xattrs: xattrs(&full),
            first,
        };
        seen.insert(path, entry);
    }
    seen
}

fn xattrs(path: &Path) -> BTreeMap<Vec<u8>, Vec<u8>> {
    let mut names = vec![0; 4 << 10];
    let count = rustix::fs::llistxattr(path, &mut names).unwrap_or(0);
    let names = names[..count].split(|byte| *byte == 0).filter(|name| !name.is_empty());
    let value = |name: &[u8]| {
        let mut value = vec![0; 4 << 10];
        let count = rustix::fs::lgetxattr(path, name, &mut value).unwrap();
        (name.to_vec(), value[..count].to_vec())
    };
    names.map(value).collect()
}

/// Panics with the first difference.
pub(super) fn assert_same(ours: &Path, other: &Path, about: &str) {
    let (ours, other) = (snapshot_tree(ours), snapshot_tree(other));
    for (path, entry) in &ours {
        let Some(twin) = other.get(path) else { panic!("{about}: only one has {path:?}") };
        assert!(entry == twin, "{about}: {path:?} differs\n{entry:?}\n{twin:?}");
    }
    assert_eq!(ours.len(), other.len(), "{about}");
}

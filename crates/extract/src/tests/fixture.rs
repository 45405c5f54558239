//! Small images made for one test: plain files, directories and hard links, no compression. The
//! layout is that of docs/format.md: block 0 has the superblock, inodes come next, then everything
//! else, each in blocks of its own.

use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use ferrofs_image::{Image, ImageSource, OpenOptions};
use tempfile::TempDir;

const BLOCK: usize = 4096;
const INODE: usize = 64;

/// What an inode is.
#[derive(Clone, Debug)]
enum FixtureContent {
    File(Vec<u8>),
    /// A file of so many bytes whose blocks lie behind the end of the image.
    Unreadable(u64),
    Fifo,
    Directory(Vec<(String, usize)>),
}

/// A tree in memory; inodes are known by number, the root is 0.
#[derive(Debug)]
pub(super) struct ImageFixture {
    inodes: Vec<(FixtureContent, u32)>,
    /// Permissions that are not the usual ones.
    modes: HashMap<usize, u16>,
    /// Users and groups that are not 0.
    owners: HashMap<usize, (u32, u32)>,
    /// Numbers of links that are not those of names.
    links: HashMap<usize, u32>,
}

impl ImageFixture {
    pub(super) fn new() -> Self {
        let root = FixtureContent::Directory(Vec::new());
        let (modes, owners, links) = Default::default();
        Self { inodes: vec![(root, 0)], modes, owners, links }
    }

    pub(super) fn directory(&mut self, parent: usize, name: &str) -> usize {
        self.inode(FixtureContent::Directory(Vec::new()), parent, name)
    }

    pub(super) fn file(&mut self, parent: usize, name: &str, bytes: &[u8]) -> usize {
        self.inode(FixtureContent::File(bytes.to_vec()), parent, name)
    }

    pub(super) fn unreadable(&mut self, parent: usize, name: &str, bytes: u64) -> usize {
        self.inode(FixtureContent::Unreadable(bytes), parent, name)
    }

    pub(super) fn fifo(&mut self, parent: usize, name: &str) -> usize {
        self.inode(FixtureContent::Fifo, parent, name)
    }

    /// Gives an inode another number of links than it has names.
    pub(super) fn set_links(&mut self, inode: usize, links: u32) {
        self.links.insert(inode, links);
    }

    /// Gives an inode other permissions than 0755, 0640 or 0600.
    pub(super) fn set_mode(&mut self, inode: usize, mode: u16) {
        self.modes.insert(inode, mode);
    }

    /// Gives an inode a user and a group.
    pub(super) fn set_owner(&mut self, inode: usize, uid: u32, gid: u32) {
        self.owners.insert(inode, (uid, gid));
    }

    fn inode(&mut self, content: FixtureContent, parent: usize, name: &str) -> usize {
        self.inodes.push((content, 0));
        self.link(parent, name, self.inodes.len() - 1);
        self.inodes.len() - 1
    }

    /// Gives an inode one more name.
    pub(super) fn link(&mut self, parent: usize, name: &str, inode: usize) {
        let FixtureContent::Directory(entries) = &mut self.inodes[parent].0 else {
            panic!("{parent}")
        };
        entries.push((name.to_owned(), inode));
        self.inodes[inode].1 += 1;
    }

    pub(super) fn open(&self) -> Image {
        self.open_as(|bytes| Arc::new(bytes))
    }

    pub(super) fn open_as(&self, source: impl FnOnce(Vec<u8>) -> Arc<dyn ImageSource>) -> Image {
        OpenOptions::new().open_sources(source(self.bytes()), Vec::new()).unwrap()
    }

    fn parents(&self) -> Vec<usize> {
        let mut parents = vec![0; self.inodes.len()];
        for (number, (content, _)) in self.inodes.iter().enumerate() {
            if let FixtureContent::Directory(entries) = content {
                entries.iter().for_each(|(_, child)| parents[*child] = number);
            }
        }
        parents
    }

    pub(super) fn bytes(&self) -> Vec<u8> {
        let parents = self.parents();
        let inode_blocks = (self.inodes.len() * INODE).div_ceil(BLOCK);
        let mut image = vec![0; (1 + inode_blocks) * BLOCK];
        for (number, (content, names)) in self.inodes.iter().enumerate() {
            let start = u32::try_from(image.len() / BLOCK).unwrap();
            let (data, size, start) = match content {
                FixtureContent::File(bytes) => (bytes.clone(), bytes.len() as u64, start),
                FixtureContent::Unreadable(bytes) => (Vec::new(), *bytes, 1 << 24),
                FixtureContent::Fifo => (Vec::new(), 0, 0),
                FixtureContent::Directory(entries) => {
                    let data = directory_blocks(entries, number, parents[number], &self.inodes);
                    let size = data.len() as u64;
                    (data, size, start)
                }
            };
            let is_directory = matches!(content, FixtureContent::Directory(_));
            let at = BLOCK + number * INODE;
            let inode = &mut image[at..at + INODE];
            inode[0] = 1;
            let (kind, mode) = match content {
                FixtureContent::Directory(_) => (0o040_000, 0o755),
                FixtureContent::Fifo => (0o010_000, 0o600),
                _ => (0o100_000, 0o640),
            };
            let mode: u16 = kind | self.modes.get(&number).copied().unwrap_or(mode);
            inode[4..6].copy_from_slice(&mode.to_le_bytes());
            inode[8..16].copy_from_slice(&size.to_le_bytes());
            inode[16..20].copy_from_slice(&start.to_le_bytes());
            let (uid, gid) = self.owners.get(&number).copied().unwrap_or_default();
            inode[24..28].copy_from_slice(&uid.to_le_bytes());
            inode[28..32].copy_from_slice(&gid.to_le_bytes());
            let mtime = 1_000_000_000 + number as u64;
            inode[32..40].copy_from_slice(&mtime.to_le_bytes());
            let nlink = if is_directory { 2 } else { *names };
            let nlink = self.links.get(&number).copied().unwrap_or(nlink);
            inode[44..48].copy_from_slice(&nlink.to_le_bytes());
            let length = image.len() + data.len();
            image.extend_from_slice(&data);
            image.resize(length.next_multiple_of(BLOCK), 0);
        }
        let blocks = u32::try_from(image.len() / BLOCK).unwrap();
        let sb = &mut image[1024..1024 + 128];
        sb[..4].copy_from_slice(&0xE0F5_E1E2u32.to_le_bytes());
        sb[12] = 12;
        sb[16..24].copy_from_slice(&(self.inodes.len() as u64).to_le_bytes());
        sb[36..40].copy_from_slice(&blocks.to_le_bytes());
        sb[40..44].copy_from_slice(&1u32.to_le_bytes());
        image
    }
}

/// Entries in order, in as many blocks as they need.
fn directory_blocks(
    entries: &[(String, usize)],
    own: usize,
    parent: usize,
    inodes: &[(FixtureContent, u32)],
) -> Vec<u8> {
    let mut all: Vec<(&str, usize)> = vec![(".", own), ("..", parent)];
    all.extend(entries.iter().map(|(name, inode)| (name.as_str(), *inode)));
    all.sort_unstable();
    let mut blocks = Vec::new();
    while !all.is_empty() {
        let mut remaining = BLOCK;
        let fits = |(name, _): &&(&str, usize)| {
            let left = remaining.checked_sub(12 + name.len());
            remaining = left.unwrap_or(0);
            left.is_some()
        };
        let count = all.iter().take_while(fits).count();
        let (mut heads, mut names) = (Vec::new(), Vec::new());
        for (name, inode) in all.drain(..count) {
            let kind = match inodes[inode].0 {
                FixtureContent::Directory(_) => 2,
                FixtureContent::Fifo => 5,
                _ => 1,
            };
            let offset = u16::try_from(count * 12 + names.len()).unwrap();
            // An inode takes two slots of 32 bytes.
            heads.extend_from_slice(&(inode as u64 * 2).to_le_bytes());
            heads.extend_from_slice(&offset.to_le_bytes());
            heads.extend_from_slice(&[kind, 0]);
            names.extend_from_slice(name.as_bytes());
        }
        heads.extend(names);
        heads.resize(BLOCK, 0);
        blocks.extend(heads);
    }
    blocks
}

/// One entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct HostEntry {
    pub(super) mode: u32,
    owner: (u32, u32),
    pub(super) mtime: (i64, i64),
    /// Contents of a file, target of a symlink, number of a device.
    pub(super) contents: Vec<u8>,
    blocks: u64,
    pub(super) xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
    /// The first path of the same file, in the order of paths.
    first: PathBuf,
}

/// A folder for one test, in memory where the host has such a place: hundreds of trees are written.
#[derive(Debug)]
pub(super) struct TestFolder(TempDir);

impl TestFolder {
    pub(super) fn new() -> Self {
        Self(tempfile::tempdir_in("/dev/shm").or_else(|_| TempDir::new()).unwrap())
    }

    pub(super) fn path(&self) -> &Path {
        self.0.path()
    }
}

impl Drop for TestFolder {
    /// An ordinary user cannot remove what is in a directory without all permissions.
    fn drop(&mut self) {
        let mut left = vec![self.path().to_owned()];
        while let Some(path) = left.pop() {
            fs::set_permissions(&path, fs::Permissions::from_mode(0o700)).ok();
            let entries = fs::read_dir(&path).into_iter().flatten().flatten();
            let is_directory = |entry: &fs::DirEntry| entry.file_type().is_ok_and(|it| it.is_dir());
            left.extend(entries.filter(is_directory).map(|entry| entry.path()));
        }
    }
}

/// All permissions for the owner of a file or directory; dropping this restores the mode. An image
/// can have files that their owner may not read, and only root reads them without this.
struct OwnerAccess {
    path: PathBuf,
    mode: u32,
}

impl OwnerAccess {
    fn of(path: &Path, mode: u32) -> Self {
        fs::set_permissions(path, fs::Permissions::from_mode(mode | 0o700)).unwrap();
        Self { path: path.to_owned(), mode }
    }
}

impl Drop for OwnerAccess {
    fn drop(&mut self) {
        fs::set_permissions(&self.path, fs::Permissions::from_mode(self.mode)).unwrap();
    }
}

/// Looks at everything below `root`, and at it.
pub(super) fn snapshot_tree(root: &Path) -> BTreeMap<PathBuf, HostEntry> {
    let mut seen = BTreeMap::new();
    let mut firsts = HashMap::new();
    let mut left = vec![PathBuf::new()];
    // Directories stay accessible until everything below them has been read.
    let mut directories = Vec::new();
    while let Some(path) = left.pop() {
        let full = root.join(&path);
        let metadata = full.symlink_metadata().unwrap();
        let mode = metadata.mode() & 0o7777;
        let needed = match metadata.file_type() {
            kind if kind.is_dir() => 0o500,
            kind if kind.is_file() => 0o400,
            _ => 0,
        };
        let access = (mode & needed != needed).then(|| OwnerAccess::of(&full, mode));
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
        if metadata.is_dir() {
            directories.extend(access);
        }
    }
    // The innermost first: an outer one may not be searched afterwards.
    while directories.pop().is_some() {}
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

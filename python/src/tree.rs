//! A tree for a build from entries that Python lists one by one.

use std::path::PathBuf;

use ferrofs_builder::tree::{Metadata, Node, NodeId, NodeKind, Timestamp, Tree, XattrMap};
use ferrofs_builder::{Error, ErrorKind, SpillStore};
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;

use crate::content;
use crate::errors::{BindingResult, Failure};

/// Types in `st_mode` of Linux.
const TYPE_MASK: u32 = 0o17_0000;
const DIRECTORY: u32 = 0o04_0000;
const REGULAR: u32 = 0o10_0000;
const SYMLINK: u32 = 0o12_0000;
const CHARACTER_DEVICE: u32 = 0o02_0000;
const BLOCK_DEVICE: u32 = 0o06_0000;
const FIFO: u32 = 0o01_0000;
const SOCKET: u32 = 0o14_0000;
/// What directories have that no entry describes.
const DIRECTORY_PERMISSIONS: u16 = 0o755;

/// An entry, as `ferrofs.Entry` passes it.
#[derive(Debug, FromPyObject)]
pub(crate) struct GivenEntry {
    path: Vec<u8>,
    mode: u32,
    uid: u32,
    gid: u32,
    mtime: (i64, u32),
    xattrs: Vec<(Vec<u8>, Vec<u8>)>,
    /// The target of a symlink, or the path of the first name of a hard link.
    target: Option<Vec<u8>>,
    is_hard_link: bool,
    device: (u32, u32),
    data: Option<PyBackedBytes>,
    file: Option<PathBuf>,
}

/// Adds entries to a tree. Directories that no entry describes are made.
pub(crate) struct TreeBuilder {
    tree: Tree,
}

impl TreeBuilder {
    pub(crate) fn new(store: &SpillStore) -> Self {
        Self { tree: Tree::in_store(default_directory(), store) }
    }

    pub(crate) fn into_tree(self) -> Tree {
        self.tree
    }

    /// Adds an entry. One with the path of another replaces it, but for directories, which keep
    /// their content and get the new metadata.
    pub(crate) fn add(&mut self, py: Python<'_>, entry: GivenEntry) -> BindingResult<()> {
        let path = entry.path.clone();
        self.add_at(py, entry).map_err(|failure| failure.at(&path))
    }

    fn add_at(&mut self, py: Python<'_>, entry: GivenEntry) -> BindingResult<()> {
        check_parts(&entry)?;
        let path = entry.path.clone();
        let mut names: Vec<&[u8]> = names_of(&path)?;
        let Some(name) = names.pop() else { return self.set_root(py, entry) };
        let parent = self.directory_at(&names)?;
        let existing = self.tree.child(parent, name);
        if entry.is_hard_link {
            if existing.is_some_and(|id| self.tree.is_directory(id)) {
                return Err(not_a_directory());
            }
            let first = self.find(entry.target.as_deref().unwrap_or_default())?;
            return self.link(parent, name, first);
        }
        let node = node_of(py, entry)?;
        match existing {
            Some(id) if self.tree.is_directory(id) && node.is_directory() => {
                self.tree.node_mut(id).metadata = node.metadata;
                Ok(())
            }
            Some(id) if self.tree.is_directory(id) => Err(not_a_directory()),
            _ => {
                let id = self.tree.add(node)?;
                self.link(parent, name, id)
            }
        }
    }

    fn link(&mut self, parent: NodeId, name: &[u8], id: NodeId) -> BindingResult<()> {
        self.tree.unlink(parent, name);
        self.tree.link(parent, name, id)?;
        Ok(())
    }

    fn set_root(&mut self, py: Python<'_>, entry: GivenEntry) -> BindingResult<()> {
        let node = node_of(py, entry)?;
        if !node.is_directory() {
            return Err(not_a_directory());
        }
        self.tree.node_mut(Tree::ROOT).metadata = node.metadata;
        Ok(())
    }

    fn directory_at(&mut self, names: &[&[u8]]) -> BindingResult<NodeId> {
        let mut current = Tree::ROOT;
        for name in names {
            current = match self.tree.child(current, name) {
                Some(id) if self.tree.is_directory(id) => id,
                Some(_) => return Err(not_a_directory()),
                None => {
                    let id = self.tree.add(Node::directory(default_directory()))?;
                    self.tree.link(current, name, id)?;
                    id
                }
            };
        }
        Ok(current)
    }

    fn find(&self, path: &[u8]) -> BindingResult<NodeId> {
        let mut current = Tree::ROOT;
        for name in names_of(path)? {
            current = self.tree.child(current, name).ok_or_else(|| {
                let message = "the first name of a hard link must be an earlier entry";
                Failure::new("BuildError", "ENOENT", message)
            })?;
        }
        match self.tree.is_directory(current) {
            true => Err(Failure::new("BuildError", "EPERM", "a hard link to a directory")),
            false => Ok(current),
        }
    }
}

fn not_a_directory() -> Failure {
    let message =
        "the path, or one above it, is that of a directory and of an entry that is no directory";
    Failure::new("BuildError", "ENOTDIR", message)
}

fn default_directory() -> Metadata {
    Metadata {
        permissions: DIRECTORY_PERMISSIONS,
        uid: 0,
        gid: 0,
        mtime: Timestamp { seconds: 0, nanoseconds: 0 },
        xattrs: XattrMap::new(),
    }
}

fn names_of(path: &[u8]) -> BindingResult<Vec<&[u8]>> {
    let names = path.split(|byte| *byte == b'/');
    let names: Vec<&[u8]> = names.filter(|name| !name.is_empty() && *name != b".").collect();
    match names.iter().any(|name| *name == b".." || name.contains(&0)) {
        true => Err(Failure::new("BuildError", "EINVAL", "a path with .. or a NUL in it")),
        false => Ok(names),
    }
}

fn node_of(py: Python<'_>, entry: GivenEntry) -> BindingResult<Node> {
    let kind = kind_of(py, &entry)?;
    let permissions = u16::try_from(entry.mode & 0o7777).unwrap_or_default();
    let (seconds, nanoseconds) = entry.mtime;
    let xattrs = entry.xattrs.into_iter();
    let xattrs = xattrs.map(|(name, value)| (name.into_boxed_slice(), value.into_boxed_slice()));
    let mtime = Timestamp { seconds, nanoseconds };
    let (uid, gid) = (entry.uid, entry.gid);
    let metadata = Metadata { permissions, uid, gid, mtime, xattrs: xattrs.collect() };
    Ok(Node { metadata, kind })
}

/// Refuses parts of an entry of which only one can be in the image: the other would be lost.
fn check_parts(entry: &GivenEntry) -> BindingResult<()> {
    let kind = entry.mode & TYPE_MASK;
    let has_content = entry.data.is_some() || entry.file.is_some();
    let has_target = entry.target.is_some();
    let what = if entry.data.is_some() && entry.file.is_some() {
        "an entry has data and file; give one of them"
    } else if has_content && has_target {
        "an entry has content and a target; give one of them"
    } else if has_content && !matches!(kind, REGULAR | 0) {
        "an entry has content, but its mode is not that of a regular file"
    } else if has_target && !entry.is_hard_link && kind != SYMLINK {
        "an entry has a target, but its mode is not that of a symlink, and it is no hard link"
    } else {
        return Ok(());
    };
    Err(Failure::new("BuildError", "EINVAL", what))
}

fn kind_of(py: Python<'_>, entry: &GivenEntry) -> BindingResult<NodeKind> {
    let (major, minor) = entry.device;
    let kind = match entry.mode & TYPE_MASK {
        DIRECTORY => NodeKind::Directory,
        REGULAR | 0 => NodeKind::File(match (&entry.file, &entry.data) {
            // The host may take long to answer.
            (Some(path), _) => py.detach(|| content::of_file(path.clone()))?,
            (None, Some(data)) => {
                let name = String::from_utf8_lossy(&entry.path).into_owned();
                content::of_bytes(name, data.clone_ref(py))
            }
            (None, None) => {
                return Err(Failure::new("BuildError", "EINVAL", "a file without content"));
            }
        }),
        SYMLINK => NodeKind::Symlink(entry.target.clone().unwrap_or_default().into_boxed_slice()),
        CHARACTER_DEVICE => NodeKind::CharacterDevice { major, minor },
        BLOCK_DEVICE => NodeKind::BlockDevice { major, minor },
        FIFO => NodeKind::Fifo,
        SOCKET => NodeKind::Socket,
        other => {
            let what = format!("no file type has the mode {other:#o}");
            return Err(Error::new(ErrorKind::Unsupported(what)).into());
        }
    };
    Ok(kind)
}

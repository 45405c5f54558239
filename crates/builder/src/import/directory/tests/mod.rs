//! Imports of real directories.

mod changes;
mod shapes;

use std::cell::RefCell;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use rustix::fs::{CWD, FileType, Mode};
use tempfile::TempDir;

use super::*;
use crate::tree::{Node, NodeKind};
use crate::{Error, ErrorKind, NoopObserver};

/// A folder to import.
struct SourceFixture {
    folder: TempDir,
}

impl SourceFixture {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir(folder.path().join("source")).unwrap();
        Self { folder }
    }

    /// The path of `name` in the folder.
    fn at(&self, name: impl AsRef<Path>) -> PathBuf {
        self.folder.path().join("source").join(name)
    }

    fn write(&self, name: impl AsRef<Path>, content: &[u8]) {
        let path = self.at(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, content).unwrap();
    }

    /// Makes a file of that type; `false` if the user may not.
    fn make(&self, name: &str, file_type: FileType, device: (u32, u32)) -> bool {
        let device = rustix::fs::makedev(device.0, device.1);
        let mode = Mode::from_raw_mode(0o640);
        match rustix::fs::mknodat(CWD, self.at(name), file_type, mode, device) {
            Ok(()) => true,
            Err(rustix::io::Errno::PERM) => false,
            Err(errno) => panic!("{name}: {errno}"),
        }
    }

    fn import(&self, options: &DirectoryOptions) -> Result<Tree> {
        from_directory(&self.at(""), options, &NoopObserver, &CancelToken::new())
    }

    fn tree(&self) -> Tree {
        self.import(&DirectoryOptions::default()).unwrap()
    }
}

/// All paths of a tree in its order.
fn paths(tree: &Tree) -> Vec<Vec<u8>> {
    let paths = RefCell::new(Vec::new());
    tree.walk(|path, _| {
        paths.borrow_mut().push(path.to_vec());
        Ok::<(), Error>(())
    })
    .unwrap();
    paths.into_inner().split_off(1)
}

fn node<'a>(tree: &'a Tree, path: &str) -> &'a Node {
    let mut id = Tree::ROOT;
    for name in path.split('/').filter(|name| !name.is_empty()) {
        id = tree.child(id, name.as_bytes()).unwrap_or_else(|| panic!("{path}"));
    }
    tree.node(id)
}

fn read(node: &Node) -> Vec<u8> {
    let content = node.content().unwrap();
    let mut buffer = vec![0; usize::try_from(content.bytes()).unwrap()];
    let mut reader = content.source().open().unwrap();
    reader.read_exact_at(0, &mut buffer).unwrap();
    reader.check_unchanged().unwrap();
    buffer
}

/// Collects warnings, and does something each time when the walk is about to read a directory.
struct InterferingObserver<F> {
    action: Mutex<F>,
    warnings: Mutex<Vec<String>>,
}

impl<F: FnMut() + Send> InterferingObserver<F> {
    fn new(action: F) -> Self {
        Self { action: Mutex::new(action), warnings: Mutex::new(Vec::new()) }
    }

    fn warnings(&self) -> Vec<String> {
        self.warnings.lock().unwrap().clone()
    }
}

impl<F: FnMut() + Send> BuildObserver for InterferingObserver<F> {
    fn directory_started(&self) {
        (self.action.lock().unwrap())();
    }

    fn warn(&self, warning: Error) {
        self.warnings.lock().unwrap().push(warning.to_string());
    }
}

//! Walking a tree: every name once, and every directory once, whatever the image holds.
//!
//! Verification and extraction share this walk, and so its checks of the tree: names are valid,
//! entries are in order, no directory is reached twice.

use std::collections::{HashMap, VecDeque};
use std::io;

use ferrofs_ondisk::dirent::check_name;
use ferrofs_ondisk::{FileType, Nid};

use crate::dir::{DirEntry, RawEntries};
use crate::error::{Error, ErrorKind, Result};
use crate::inner::ImageInner;
use crate::inode::Inode;

/// The longest path that is followed: sixteen times the longest path of a system call.
const PATH_MAX_BYTES: usize = 64 << 10;

/// After so many names out of order the rest of a directory is skipped: its blocks may repeat each
/// other, as often as a 64-bit number can say.
const DISORDER_MAX: u32 = 64;

/// A page of the set has so many bits for inode slots: eight words.
const PAGE_BITS: u32 = 9;

/// A file, directory or other inode under one of its names.
#[derive(Clone, Debug)]
pub struct WalkEntry {
    /// The path from the root: `/`, or `/a/b`.
    pub path: Vec<u8>,
    /// The inode.
    pub inode: Inode,
}

/// An error with the path that it is about.
#[derive(Debug)]
pub struct PathError {
    /// The path from the root; empty for the image as a whole.
    pub path: Vec<u8>,
    /// What is wrong.
    pub error: Error,
}

/// A step of a walk.
#[derive(Debug)]
pub enum WalkEvent {
    /// A directory. What is below it follows.
    Enter(WalkEntry),
    /// An inode that is not a directory.
    Leaf(WalkEntry),
    /// A directory, after everything below it.
    Leave(WalkEntry),
    /// Something is wrong. If no other event follows for the same name, the walk leaves that name
    /// out.
    Problem(PathError),
}

/// A walk through a tree, depth first, in the order of the directories.
#[derive(Debug)]
pub struct TreeWalk<'a> {
    inner: &'a ImageInner,
    stack: Vec<DirLevel<'a>>,
    /// The path of the deepest directory. Only this one is kept: a path for each level would be
    /// memory that grows with the square of the depth.
    path: Vec<u8>,
    /// Events to return before the walk goes on.
    due: VecDeque<WalkEvent>,
    /// Directories that have been entered.
    entered: NidSet,
    /// The directory of the last [`WalkEvent::Enter`]; its entries have not been opened yet.
    entering: Option<(WalkEntry, Nid)>,
}

/// A directory on the way down.
#[derive(Debug)]
struct DirLevel<'a> {
    inode: Inode,
    parent: Nid,
    /// Bytes of its path.
    path_bytes: usize,
    entries: RawEntries<'a>,
    last_name: Box<[u8]>,
    /// How many names were out of order.
    disorder: u32,
    saw_dot: bool,
    saw_dot_dot: bool,
}

impl<'a> TreeWalk<'a> {
    pub(crate) fn new(inner: &'a ImageInner, path: &[u8]) -> Result<Self> {
        let inode = inner.resolve(path)?;
        let inode = inode.ok_or_else(|| Error::from(io::Error::from(io::ErrorKind::NotFound)))?;
        if inode.nid() == inner.sb.root {
            inode.require(FileType::Directory)?;
        }
        let above = [path, b"/.."].concat();
        let parent = inner.resolve(&above)?.map_or(inner.sb.root, |inode| inode.nid());
        let mut walk = Self {
            inner,
            stack: Vec::new(),
            path: Vec::new(),
            due: VecDeque::new(),
            entered: NidSet::default(),
            entering: None,
        };
        walk.visit(WalkEntry { path: normalized(path), inode }, parent);
        Ok(walk)
    }

    /// Skips what is below the directory of the [`WalkEvent::Enter`] that was returned last. Its
    /// [`WalkEvent::Leave`] still comes.
    pub fn skip_children(&mut self) {
        if let Some((node, _)) = self.entering.take() {
            self.due.push_back(WalkEvent::Leave(node));
        }
    }

    /// Adds the events for an inode that was found under a valid name.
    fn visit(&mut self, node: WalkEntry, parent: Nid) {
        if node.inode.file_type() != FileType::Directory {
            self.due.push_back(WalkEvent::Leaf(node));
            return;
        }
        if self.entered.insert(node.inode.nid()) {
            self.entering = Some((node.clone(), parent));
            self.due.push_back(WalkEvent::Enter(node));
        } else {
            let error = broken(ErrorKind::DirectoryLoop, &node.inode);
            self.report(node.path, error);
        }
    }

    /// Opens the directory that was entered last.
    fn descend(&mut self, node: WalkEntry, parent: Nid) {
        match self.inner.raw_entries(&node.inode) {
            Ok(entries) => {
                self.path = node.path;
                self.stack.push(DirLevel {
                    saw_dot: node.inode.disk.has_no_dot,
                    saw_dot_dot: false,
                    inode: node.inode,
                    path_bytes: self.path.len(),
                    parent,
                    entries,
                    last_name: Box::default(),
                    disorder: 0,
                });
            }
            Err(error) => {
                self.report(node.path.clone(), error);
                self.due.push_back(WalkEvent::Leave(node));
            }
        }
    }

    /// Takes the next entry of the deepest directory, or leaves it. False at the end of the walk.
    fn advance(&mut self) -> bool {
        let Some(level) = self.stack.last_mut() else { return false };
        match level.entries.next() {
            Some(Ok(entry)) => {
                let path = join(&self.path, &entry.name);
                let parent = level.inode.nid();
                let checked = level.check(&entry);
                let too_long = path.len() > PATH_MAX_BYTES && !entry.is_dot();
                if too_long {
                    let error = broken(ErrorKind::PathTooLong, &level.inode);
                    self.report(self.path.clone(), error);
                } else if let Err(error) = checked {
                    self.report(path.clone(), error);
                }
                if !too_long && !entry.is_dot() && check_name(&entry.name).is_ok() {
                    self.follow(path, &entry, parent);
                }
            }
            Some(Err(error)) => {
                // The names behind the damage are unknown.
                (level.saw_dot, level.saw_dot_dot) = (true, true);
                self.report(self.path.clone(), error);
            }
            None => self.ascend(),
        }
        true
    }

    fn follow(&mut self, path: Vec<u8>, entry: &DirEntry, parent: Nid) {
        let inode = match self.inner.inode(entry.nid) {
            Ok(inode) => inode,
            Err(error) => return self.report(path, error),
        };
        let found = inode.file_type();
        let wrong = match FileType::from_dirent(entry.type_number) {
            Ok(Some(hint)) if hint != found => Some(ErrorKind::TypeHint { hint, found }),
            Err(error) => Some(ErrorKind::Format(error.into_kind())),
            Ok(_) => None,
        };
        if let Some(kind) = wrong {
            self.report(path.clone(), broken(kind, &inode));
        }
        self.visit(WalkEntry { path, inode }, parent);
    }

    /// Leaves the deepest directory.
    fn ascend(&mut self) {
        let Some(level) = self.stack.pop() else { return };
        let missing = [(level.saw_dot, "."), (level.saw_dot_dot, "..")];
        for (_, name) in missing.into_iter().filter(|(saw, _)| !saw) {
            let error = broken(ErrorKind::DotEntry(name), &level.inode);
            self.report(self.path.clone(), error);
        }
        let path = self.path.clone();
        self.path.truncate(self.stack.last().map_or(0, |above| above.path_bytes));
        self.due.push_back(WalkEvent::Leave(WalkEntry { path, inode: level.inode }));
    }

    fn report(&mut self, path: Vec<u8>, error: Error) {
        self.due.push_back(WalkEvent::Problem(PathError { path, error }));
    }
}

impl Iterator for TreeWalk<'_> {
    type Item = WalkEvent;

    fn next(&mut self) -> Option<WalkEvent> {
        loop {
            if let Some(visit) = self.due.pop_front() {
                return Some(visit);
            }
            match self.entering.take() {
                Some((node, parent)) => self.descend(node, parent),
                None if self.advance() => {}
                None => return None,
            }
        }
    }
}

impl DirLevel<'_> {
    /// Checks an entry against its directory.
    fn check(&mut self, entry: &DirEntry) -> Result<()> {
        let dir = &self.inode;
        let is_first = self.last_name.is_empty();
        let in_order = is_first || *self.last_name < *entry.name;
        self.last_name.clone_from(&entry.name);
        if !in_order {
            self.disorder = self.disorder.saturating_add(1);
            if self.disorder >= DISORDER_MAX {
                self.entries.end();
                (self.saw_dot, self.saw_dot_dot) = (true, true);
            }
            return Err(broken(ErrorKind::DirectoryOrder, dir));
        }
        if let Err(error) = check_name(&entry.name) {
            return Err(broken(ErrorKind::Format(error.into_kind()), dir));
        }
        let (name, expected) = match &*entry.name {
            b"." => (".", dir.nid()),
            b".." => ("..", self.parent),
            _ => return Ok(()),
        };
        self.saw_dot |= name == ".";
        self.saw_dot_dot |= name == "..";
        if entry.nid == expected {
            return Ok(());
        }
        Err(broken(ErrorKind::DotEntry(name), dir))
    }
}

/// An error at the place of `inode`.
fn broken(kind: ErrorKind, inode: &Inode) -> Error {
    Error::new(kind).in_inode(inode.nid()).at(inode.offset())
}

fn join(dir: &[u8], name: &[u8]) -> Vec<u8> {
    let separator: &[u8] = if dir == b"/" { b"" } else { b"/" };
    [dir, separator, name].concat()
}

/// An absolute path without empty, `.` and `..` components.
fn normalized(path: &[u8]) -> Vec<u8> {
    let mut parts: Vec<&[u8]> = Vec::new();
    for part in path.split(|byte| *byte == b'/') {
        match part {
            b"" | b"." => {}
            b".." => {
                parts.pop();
            }
            _ => parts.push(part),
        }
    }
    [b"/", &*parts.join(&b'/')].concat()
}

/// A set of inode numbers that is small where they lie close together, as those of a tree do: a bit
/// an inode slot. A million inodes in a row take some 200 KiB.
#[derive(Debug, Default)]
pub(crate) struct NidSet {
    pages: HashMap<u64, [u64; 8]>,
}

impl NidSet {
    /// Adds a number; false if it was there.
    pub(crate) fn insert(&mut self, nid: Nid) -> bool {
        let raw = nid.raw();
        let page = self.pages.entry(raw >> PAGE_BITS).or_default();
        let word = usize::try_from((raw >> 6) & 7).ok().and_then(|word| page.get_mut(word));
        let bit = 1u64 << (raw & 63);
        let Some(word) = word else { return false };
        let is_new = *word & bit == 0;
        *word |= bit;
        is_new
    }

    /// About how many bytes it takes.
    pub(crate) fn bytes(&self) -> u64 {
        const PAGE_BYTES: u64 = 80;
        u64::try_from(self.pages.capacity()).unwrap_or(u64::MAX).saturating_mul(PAGE_BYTES)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn paths_are_joined_and_normalized() {
        assert_eq!(join(b"/", b"a"), b"/a");
        assert_eq!(join(b"/a", b"b"), b"/a/b");
        assert_eq!(normalized(b""), b"/");
        assert_eq!(normalized(b"a//b/./../c/"), b"/a/c");
        assert_eq!(normalized(b"../.."), b"/");
    }

    #[test]
    fn it_is_a_set() {
        let (mut set, mut truth) = (NidSet::default(), HashSet::new());
        let mut number = 1u64;
        for step in 0..20_000u64 {
            number = number.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(step);
            let nid = Nid::new(if step % 2 == 0 { number % 5_000 } else { number >> (step % 60) });
            assert_eq!(set.insert(nid), truth.insert(nid), "{nid}");
        }
    }

    #[test]
    fn numbers_in_a_row_take_little() {
        let mut set = NidSet::default();
        (0..1_000_000).for_each(|raw| assert!(set.insert(Nid::new(raw))));
        assert!(set.bytes() < 512 << 10, "{}", set.bytes());
    }
}

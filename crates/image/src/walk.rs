//! Walking a tree: every name once, and every directory once, whatever the image holds.
//!
//! Verification and extraction share this walk, and so its checks of the tree: names are valid,
//! entries are in order, no directory is reached twice.
//!
//! A level of the walk is a nid and a position. The blocks of the deepest levels stay decoded, up to
//! [`BLOCKS_BYTES`]; those above are read again on the way up. Everything is charged to the memory
//! of the image. Entries that several directories share count as repeated work.

mod state;

use std::collections::VecDeque;
use std::io;

use ferrofs_ondisk::dirent::check_name;
use ferrofs_ondisk::{FileType, Nid};

use crate::dir::DirCursor;
use crate::error::{Error, ErrorKind, Result};
use crate::inner::ImageInner;
use crate::inode::Inode;
use crate::work::WorkMeter;
use state::WalkState;

/// The longest path that is followed: sixteen times the longest path of a system call.
const PATH_MAX_BYTES: usize = 64 << 10;

/// After so many names out of order the rest of a directory is skipped: its blocks may repeat each
/// other, as often as a 64-bit number can say.
const DISORDER_MAX: u32 = 64;

/// Bytes of blocks that stay decoded: four of the largest, or the blocks of 64 levels of 4 KiB.
const BLOCKS_BYTES: usize = 256 << 10;

/// The work of an entry that is read again: its inode, its path, and what a caller does with it
/// that reads metadata only take about a microsecond.
const ENTRY_WORK: u64 = 1 << 10;

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
    stack: Vec<DirLevel>,
    /// How many levels, counted from the outermost, have no decoded block.
    unloaded: usize,
    /// Bytes of all decoded blocks.
    block_bytes: usize,
    /// The path of the deepest directory. Only this one is kept: a path for each level would be
    /// memory that grows with the square of the depth.
    path: Vec<u8>,
    /// The name before the next one in the deepest directory. In the levels above it is the name of
    /// the level below them.
    last_name: Vec<u8>,
    /// Events to return before the walk goes on.
    pending: VecDeque<WalkEvent>,
    state: WalkState,
    work: WorkMeter,
    entry_work: u64,
    /// The contents of repeated names are work, too.
    counts_contents: bool,
    /// The directory of the last [`WalkEvent::Enter`]; its entries have not been opened yet.
    entering: Option<(WalkEntry, Nid)>,
}

/// A directory on the way down.
#[derive(Debug)]
struct DirLevel {
    inode: Inode,
    parent: Nid,
    /// Bytes of its path.
    path_bytes: usize,
    cursor: DirCursor,
    /// How many names were out of order.
    disorder: u32,
    /// The block that is loaded has counted as repeated work, with all of its entries.
    is_repeated: bool,
    saw_dot: bool,
    saw_dot_dot: bool,
}

/// An entry on the way through its directory.
struct FoundEntry {
    nid: Nid,
    type_number: u8,
    path: Vec<u8>,
    /// Bytes of its name, the last ones of the path.
    name_bytes: usize,
}

impl<'a> TreeWalk<'a> {
    pub(crate) fn new(inner: &'a ImageInner, path: &[u8]) -> Result<Self> {
        let inode = inner.resolve(path)?;
        let inode = inode.ok_or_else(|| Error::from(io::Error::from(io::ErrorKind::NotFound)))?;
        if inode.nid() == inner.sb.root {
            inode.require(FileType::Directory)?;
        }
        let above = [path, b"/.."].concat();
        let parent = inner.descend(&above)?.map_or(inner.sb.root, |inode| inode.nid());
        let mut walk = Self {
            inner,
            stack: Vec::new(),
            unloaded: 0,
            block_bytes: 0,
            path: Vec::new(),
            last_name: Vec::new(),
            pending: VecDeque::new(),
            state: WalkState::new(inner.engine.memory.budget())?,
            work: inner.work_meter(),
            entry_work: ENTRY_WORK,
            counts_contents: false,
            entering: None,
        };
        walk.visit(WalkEntry { path: normalized(path), inode }, parent);
        Ok(walk)
    }

    /// Adds repeated work to this meter, which other work may share. The default is one of its own
    /// with the [default limit](WorkMeter::default_limit) of the image. Beyond the limit the walk
    /// reports [`ErrorKind::WorkLimit`] and leaves all directories.
    #[must_use]
    pub fn work_meter(mut self, meter: &WorkMeter) -> Self {
        self.work = meter.clone();
        self
    }

    /// The work of a repeated entry in bytes, if the caller does more with it than to read metadata.
    #[must_use]
    pub fn entry_work(mut self, bytes: u64) -> Self {
        self.entry_work = bytes.max(ENTRY_WORK);
        self
    }

    /// The caller writes the contents of each name: the size of a file is work if it has one link and this is
    /// a further name.
    #[must_use]
    pub fn contents_are_work(mut self) -> Self {
        self.counts_contents = true;
        self
    }

    /// Skips what is below the directory of the [`WalkEvent::Enter`] that was returned last. Its
    /// [`WalkEvent::Leave`] still comes.
    pub fn skip_children(&mut self) {
        if let Some((node, _)) = self.entering.take() {
            self.pending.push_back(WalkEvent::Leave(node));
        }
    }

    /// Adds the events for an inode that was found under a valid name.
    fn visit(&mut self, node: WalkEntry, parent: Nid) {
        if node.inode.file_type() != FileType::Directory {
            return self.visit_leaf(node);
        }
        match self.state.enter(node.inode.nid()) {
            Ok(true) => {
                self.entering = Some((node.clone(), parent));
                self.pending.push_back(WalkEvent::Enter(node));
            }
            Ok(false) => {
                let error = broken(ErrorKind::DirectoryLoop, &node.inode);
                self.report(node.path, error);
            }
            Err(error) => self.abandon(error),
        }
    }

    /// Adds the event for an inode that is no directory. Sound images have no more names for an inode
    /// than it has links: a further name of an inode with one link is repeated work.
    fn visit_leaf(&mut self, node: WalkEntry) {
        let nid = node.inode.nid();
        let is_counted = self.stack.last().is_some_and(|level| level.is_repeated);
        let is_first = match node.inode.nlink() {
            0 | 1 => self.state.names(nid),
            _ => Ok(true),
        };
        let is_first = match is_first {
            Ok(is_first) => is_first,
            Err(error) => return self.abandon(error),
        };
        if !is_first {
            let entry = if is_counted { 0 } else { named_work(self.entry_work, node.path.len()) };
            let is_written = self.counts_contents && node.inode.file_type() == FileType::Regular;
            let contents = if is_written { node.inode.size() } else { 0 };
            let work = entry.saturating_add(contents);
            if let Err(error) = self.work.add(work, "names of files that have one link") {
                return self.abandon(error.in_inode(nid).at(node.inode.offset()));
            }
        }
        self.pending.push_back(WalkEvent::Leaf(node));
    }

    /// Opens the directory that was entered last.
    fn descend(&mut self, node: WalkEntry, parent: Nid) {
        self.path = node.path;
        self.last_name.clear();
        self.stack.push(DirLevel {
            saw_dot: node.inode.disk.has_no_dot,
            saw_dot_dot: false,
            inode: node.inode,
            path_bytes: self.path.len(),
            parent,
            cursor: DirCursor::default(),
            disorder: 0,
            is_repeated: false,
        });
        self.settle_charge();
    }

    /// Charges what the walk remembers, or ends it.
    fn settle_charge(&mut self) {
        let levels = self.stack.capacity().saturating_mul(size_of::<DirLevel>());
        let others = levels.saturating_add(BLOCKS_BYTES);
        let result = self.state.settle_charge(u64::try_from(others).unwrap_or(u64::MAX));
        if let Err(error) = result {
            self.abandon(error);
        }
    }

    /// Takes the next entry of the deepest directory, or leaves it. False at the end of the walk.
    fn advance(&mut self) -> bool {
        let Some(level) = self.stack.last_mut() else { return false };
        if let Some(entry) = level.cursor.next() {
            let found = FoundEntry {
                nid: entry.nid,
                type_number: entry.type_number,
                path: join(&self.path, entry.name),
                name_bytes: entry.name.len(),
            };
            self.examine(found);
        } else if let Err(error) = self.load() {
            self.report(self.path.clone(), error);
        }
        true
    }

    /// Loads the next block of the deepest directory, or the present one again, or leaves it.
    ///
    /// # Errors
    /// The block is damaged; the names behind the damage are unknown.
    fn load(&mut self) -> Result<()> {
        let Some(level) = self.stack.last_mut() else { return Ok(()) };
        self.block_bytes = self.block_bytes.saturating_sub(level.cursor.block_bytes());
        let is_loaded = level.cursor.load(self.inner, &level.inode).inspect_err(|_| {
            (level.saw_dot, level.saw_dot_dot) = (true, true);
        })?;
        if !is_loaded {
            self.ascend();
            return Ok(());
        }
        self.block_bytes = self.block_bytes.saturating_add(level.cursor.block_bytes());
        if level.cursor.is_at_block_start() {
            let work = repeated_work(self.inner, &mut self.state, level, self.entry_work);
            let work = match work {
                Ok(work) => work,
                Err(error) => {
                    self.abandon(error);
                    return Ok(());
                }
            };
            level.is_repeated = work > 0;
            if let Err(error) = self.work.add(work, "directory entries that directories share") {
                let place = level.inode.offset();
                let error = error.in_inode(level.inode.nid()).at(place);
                self.abandon(error);
                return Ok(());
            }
            self.settle_charge();
        }
        self.unload_outer_levels();
        Ok(())
    }

    /// Drops the blocks of the outermost levels, until the others take little enough.
    fn unload_outer_levels(&mut self) {
        let deepest = self.stack.len().saturating_sub(1);
        while self.block_bytes > BLOCKS_BYTES && self.unloaded < deepest {
            if let Some(level) = self.stack.get_mut(self.unloaded) {
                self.block_bytes = self.block_bytes.saturating_sub(level.cursor.unload());
            }
            self.unloaded = self.unloaded.saturating_add(1);
        }
    }

    /// Ends the walk after an error that concerns all of it.
    fn abandon(&mut self, error: Error) {
        self.report(self.path.clone(), error);
        for level in &mut self.stack {
            level.cursor.end();
            self.block_bytes = self.block_bytes.saturating_sub(level.cursor.unload());
            (level.saw_dot, level.saw_dot_dot) = (true, true);
        }
    }

    /// Checks an entry of the deepest directory, and visits its inode.
    fn examine(&mut self, found: FoundEntry) {
        let Some(level) = self.stack.last_mut() else { return };
        let parent = level.inode.nid();
        let name = found.name();
        let is_dot = matches!(name, b"." | b"..");
        let is_valid = !is_dot && check_name(name).is_ok();
        let checked = level.check(&found, &self.last_name);
        self.last_name.clear();
        self.last_name.extend_from_slice(name);
        let too_long = found.path.len() > PATH_MAX_BYTES && !is_dot;
        if too_long {
            let error = broken(ErrorKind::PathTooLong, &level.inode);
            self.report(self.path.clone(), error);
        } else if let Err(error) = checked {
            self.report(found.path.clone(), error);
        }
        if !too_long && is_valid {
            self.follow(found, parent);
        }
    }

    fn follow(&mut self, found: FoundEntry, parent: Nid) {
        let FoundEntry { nid, type_number, path, .. } = found;
        let inode = match self.inner.inode(nid) {
            Ok(inode) => inode,
            Err(error) => return self.report(path, error),
        };
        let found = inode.file_type();
        let wrong = match FileType::from_dirent(type_number) {
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
        self.unloaded = self.unloaded.min(self.stack.len());
        let missing = [(level.saw_dot, "."), (level.saw_dot_dot, "..")];
        for (_, name) in missing.into_iter().filter(|(saw, _)| !saw) {
            let error = broken(ErrorKind::DotEntry(name), &level.inode);
            self.report(self.path.clone(), error);
        }
        let path = self.path.clone();
        let above_bytes = self.stack.last().map_or(0, |above| above.path_bytes);
        let name = self.path.get(above_bytes..).unwrap_or_default();
        self.last_name.clear();
        self.last_name.extend_from_slice(name.strip_prefix(b"/").unwrap_or(name));
        self.path.truncate(above_bytes);
        self.pending.push_back(WalkEvent::Leave(WalkEntry { path, inode: level.inode }));
    }

    fn report(&mut self, path: Vec<u8>, error: Error) {
        self.pending.push_back(WalkEvent::Problem(PathError { path, error }));
    }
}

impl Iterator for TreeWalk<'_> {
    type Item = WalkEvent;

    fn next(&mut self) -> Option<WalkEvent> {
        loop {
            if let Some(visit) = self.pending.pop_front() {
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

impl FoundEntry {
    fn name(&self) -> &[u8] {
        let start = self.path.len().saturating_sub(self.name_bytes);
        self.path.get(start..).unwrap_or_default()
    }
}

impl DirLevel {
    /// Checks an entry against its directory, and against the name before it.
    fn check(&mut self, found: &FoundEntry, last_name: &[u8]) -> Result<()> {
        let (dir, name) = (&self.inode, found.name());
        let in_order = last_name.is_empty() || *last_name < *name;
        if !in_order {
            self.disorder = self.disorder.saturating_add(1);
            if self.disorder >= DISORDER_MAX {
                self.cursor.end();
                (self.saw_dot, self.saw_dot_dot) = (true, true);
            }
            return Err(broken(ErrorKind::DirectoryOrder, dir));
        }
        if let Err(error) = check_name(name) {
            return Err(broken(ErrorKind::Format(error.into_kind()), dir));
        }
        let (name, expected) = match name {
            b"." => (".", dir.nid()),
            b".." => ("..", self.parent),
            _ => return Ok(()),
        };
        self.saw_dot |= name == ".";
        self.saw_dot_dot |= name == "..";
        if found.nid == expected {
            return Ok(());
        }
        Err(broken(ErrorKind::DotEntry(name), dir))
    }
}

/// The work of the block that is loaded, if its bytes were read before under another directory. If
/// they cannot be located, they cannot be read, either.
fn repeated_work(
    inner: &ImageInner,
    state: &mut WalkState,
    level: &DirLevel,
    entry_work: u64,
) -> Result<u64> {
    let (range, entries) = level.cursor.loaded();
    let bytes = range.end.saturating_sub(range.start);
    let Ok((location, skip)) = inner.dir_source(&level.inode, range.start) else { return Ok(0) };
    if !state.repeats(&location, skip, bytes)? {
        return Ok(0);
    }
    let entries = u64::try_from(entries).unwrap_or(u64::MAX);
    Ok(entries.saturating_mul(named_work(entry_work, level.path_bytes)).saturating_add(bytes))
}

/// The work of an entry whose path, or that of its directory, has so many bytes: they are copied for each entry,
/// and a caller may write them.
fn named_work(entry_work: u64, path_bytes: usize) -> u64 {
    entry_work.saturating_add(u64::try_from(path_bytes).unwrap_or(u64::MAX))
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_joined_and_normalized() {
        assert_eq!(join(b"/", b"a"), b"/a");
        assert_eq!(join(b"/a", b"b"), b"/a/b");
        assert_eq!(normalized(b""), b"/");
        assert_eq!(normalized(b"a//b/./../c/"), b"/a/c");
        assert_eq!(normalized(b"../.."), b"/");
    }
}

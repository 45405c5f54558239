//! The destination, and the directories between it and the entry being extracted.
//!
//! Each level is opened from the one above by a single name, without following a symlink: the host
//! never resolves a whole path of the image. A level is created when the first entry in it is
//! needed. Only the deepest levels keep their file descriptors. The others are opened again from
//! the destination, name by name, and must still be the same directories.
//!
//! At most one level is staged: the first that is new, since all below it are new, too.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use crate::error::{Error, ErrorKind};
use crate::new_directory::{
    examined, make_directory, open_directory, open_search, stage_directory,
};
use crate::open_directory::{
    DirectoryOrigin, FileId, OpenDirectory, PublishFailures, StagedDirectory, StagedName,
    StagingParent, StagingPlace,
};
use crate::options::ExistingFiles;
use crate::waypoints::{OPEN_LEVELS_MAX, Waypoints};

#[derive(Debug)]
enum LevelState {
    /// Not created: no entry in it was needed yet.
    Pending,
    Open(Arc<OpenDirectory>),
    /// Created, but without a descriptor.
    Closed(FileId, DirectoryOrigin),
    /// Could not be created; the failure has been reported.
    Broken,
}

#[derive(Debug)]
struct StackLevel {
    name: Box<[u8]>,
    state: LevelState,
}

/// Why nothing can be created in the deepest directory.
#[derive(Debug)]
pub(crate) enum DirectoryFailure {
    /// It or a directory above it has just failed.
    Now(Error),
    /// It failed earlier, and the failure was reported then.
    Before,
}

/// The level that is staged.
#[derive(Debug)]
struct StagedLevel {
    /// How many levels come before the first one below it: 0 is the destination itself.
    count: usize,
    directory: Arc<StagedDirectory>,
}

/// The destination and the directories below it, down to the current one.
#[derive(Debug)]
pub(crate) struct DirectoryStack {
    /// For lookups; it stays open after the walk.
    destination: OwnedFd,
    /// The same directory for creating entries in it.
    root: Option<Arc<OpenDirectory>>,
    existing: ExistingFiles,
    levels: Vec<StackLevel>,
    /// How many levels, counted from the destination, have closed their descriptors.
    closed: usize,
    waypoints: Waypoints,
    staged: Option<StagedLevel>,
    failures: PublishFailures,
    /// Path of the deepest level: empty for the destination, otherwise with a leading slash.
    path: Vec<u8>,
}

impl DirectoryStack {
    /// `failures` gets those of the staged directories.
    pub(crate) fn new(
        root: OpenDirectory,
        existing: ExistingFiles,
        failures: &PublishFailures,
    ) -> Result<Self, ErrorKind> {
        let destination = root.as_fd().try_clone_to_owned().map_err(clone_failed)?;
        let staged = root.staged().map(Arc::clone);
        Ok(Self {
            destination,
            root: Some(Arc::new(root)),
            existing,
            levels: Vec::new(),
            closed: 0,
            waypoints: Waypoints::new(),
            staged: staged.map(|directory| StagedLevel { count: 0, directory }),
            failures: failures.clone(),
            path: Vec::new(),
        })
    }

    /// Whether `path` is the deepest level.
    pub(crate) fn is_at(&self, path: &[u8]) -> bool {
        path == self.path || (self.path.is_empty() && path == b"/")
    }

    /// The name of `path` in the deepest level, if it is directly in it and safe to use.
    pub(crate) fn name_in_top<'p>(&self, path: &'p [u8]) -> Option<&'p [u8]> {
        let name = path.strip_prefix(self.path.as_slice())?.strip_prefix(b"/")?;
        is_safe(name).then_some(name)
    }

    /// Goes down to `name` without creating it yet.
    pub(crate) fn push(&mut self, name: &[u8]) {
        self.path.push(b'/');
        self.path.extend_from_slice(name);
        self.levels.push(StackLevel { name: name.into(), state: LevelState::Pending });
    }

    /// Leaves the deepest level, or the destination itself. Returns the directory if it is open.
    pub(crate) fn pop(&mut self) -> Option<Arc<OpenDirectory>> {
        let Some(level) = self.levels.pop() else { return self.root.take() };
        self.path.truncate(self.path.len().saturating_sub(level.name.len() + 1));
        self.closed = self.closed.min(self.levels.len());
        // The directory that is returned holds it, too.
        if self.staged.take_if(|staged| staged.count > self.levels.len()).is_some() {
            // Its parent, which it kept open, may be closed from now on.
            self.closed = self.closed.min(self.levels.len().saturating_sub(1));
        }
        self.waypoints.truncate(self.levels.len());
        if let LevelState::Open(directory) = level.state { Some(directory) } else { None }
    }

    /// Whether the deepest level exists in the destination.
    pub(crate) fn is_created(&self) -> bool {
        let state = self.levels.last().map(|level| &level.state);
        !matches!(state, Some(LevelState::Pending | LevelState::Broken))
    }

    /// The deepest level, ready for new entries; it is created if necessary.
    pub(crate) fn ready(&mut self) -> Result<&Arc<OpenDirectory>, DirectoryFailure> {
        let pending = |level: &StackLevel| matches!(level.state, LevelState::Pending);
        let mut first = self.levels.len();
        while first > 0 && pending(&self.levels[first - 1]) {
            first -= 1;
        }
        if let Err(kind) = self.find(first) {
            return Err(self.fail_level(first - 1, kind));
        }
        for index in first..self.levels.len() {
            if self.directory(index).is_none() {
                return Err(DirectoryFailure::Before);
            }
            if let Err(kind) = self.create(index) {
                return Err(self.fail_level(index, kind));
            }
        }
        self.top().ok_or(DirectoryFailure::Before)
    }

    /// The directory that holds `path`, opened from the destination for lookups only, and the last
    /// name of `path`. One of its directories may have been `staged` then.
    pub(crate) fn parent_of<'p>(
        &self,
        path: &'p [u8],
        staged: Option<&StagedName>,
    ) -> Result<(OwnedFd, &'p [u8]), ErrorKind> {
        let mut names = path.split(|byte| *byte == b'/').filter(|name| !name.is_empty());
        let last = names.next_back().filter(|name| is_safe(name)).ok_or(ErrorKind::UnsafeName)?;
        let mut current = open_search(self.destination.as_fd(), b".")?;
        for (level, name) in names.enumerate() {
            let staged = staged.filter(|staged| staged.level == level);
            let still = staged.map(|staged| open_search(current.as_fd(), &staged.temporary));
            // It goes from its temporary name to its own, so it is found under one of them.
            current = match still {
                Some(Ok(directory)) => directory,
                _ => open_search(current.as_fd(), name)?,
            };
        }
        Ok((current, last))
    }

    /// Opens the directory `path` from the destination.
    pub(crate) fn open(&self, path: &[u8]) -> Result<OwnedFd, ErrorKind> {
        if path == b"/" {
            return self.destination.try_clone().map_err(clone_failed);
        }
        let (parent, name) = self.parent_of(path, None)?;
        open_directory(parent.as_fd(), name)
    }

    /// The deepest level, if it is open.
    pub(crate) fn top(&self) -> Option<&Arc<OpenDirectory>> {
        self.directory(self.levels.len())
    }

    /// Whether too many levels are open, because entries are still being written in outer ones. The
    /// caller waits for these before it creates anything.
    pub(crate) fn is_deep(&self) -> bool {
        self.levels.len() - self.closed > 2 * OPEN_LEVELS_MAX
    }

    fn directory(&self, count: usize) -> Option<&Arc<OpenDirectory>> {
        let Some(index) = count.checked_sub(1) else { return self.root.as_ref() };
        match &self.levels.get(index)?.state {
            LevelState::Open(directory) => Some(directory),
            _ => None,
        }
    }

    /// Makes sure that the first `count` levels can be entered.
    fn find(&mut self, count: usize) -> Result<(), ErrorKind> {
        let Some(index) = count.checked_sub(1) else { return Ok(()) };
        match self.levels[index].state {
            LevelState::Closed(..) => self.reopen(count),
            _ => Ok(()),
        }
    }

    fn reopen(&mut self, count: usize) -> Result<(), ErrorKind> {
        let mut above: Option<OpenDirectory> = None;
        self.closed = self.closed.min(count.saturating_sub(OPEN_LEVELS_MAX));
        let (first, base) = match self.waypoints.above(count.saturating_sub(OPEN_LEVELS_MAX)) {
            Some((index, fd)) => (index + 1, fd.try_clone()),
            None => (0, self.destination.as_fd().try_clone_to_owned()),
        };
        let base = base.map_err(clone_failed)?;
        for index in first..count {
            let level = &self.levels[index];
            let (known, origin) = match &level.state {
                LevelState::Closed(known, origin) => (*known, *origin),
                LevelState::Open(directory) => (directory.file_id(), directory.origin),
                LevelState::Pending | LevelState::Broken => return Err(ErrorKind::Replaced),
            };
            let parent = above.as_ref().map_or(base.as_fd(), AsFd::as_fd);
            let staged = self.staged.as_ref().filter(|staged| staged.count <= index + 1);
            let name = match staged {
                Some(staged) if staged.count == index + 1 => staged.directory.temporary_name(),
                _ => &level.name,
            };
            let found = examined(open_directory(parent, name)?, origin)?;
            let found = found.within(staged.map(|staged| Arc::clone(&staged.directory)));
            if found.file_id() != known {
                return Err(ErrorKind::Replaced);
            }
            if let Some(directory) = above.replace(found)
                && index + OPEN_LEVELS_MAX > count
            {
                self.set_open(index - 1, directory);
            }
        }
        if let Some(directory) = above {
            self.set_open(count - 1, directory);
        }
        Ok(())
    }

    /// Opens a closed level. An open one is kept: a task may hold it.
    fn set_open(&mut self, index: usize, directory: OpenDirectory) {
        if matches!(self.levels[index].state, LevelState::Closed(..)) {
            self.levels[index].state = LevelState::Open(Arc::new(directory));
        }
    }

    fn create(&mut self, index: usize) -> Result<(), ErrorKind> {
        let parent = self.directory(index).ok_or(ErrorKind::Replaced)?;
        let name = &self.levels[index].name;
        let made = if parent.staged().is_some() {
            let made = make_directory(parent, name)?;
            made.within(parent.staged().map(Arc::clone))
        } else {
            let place = StagingPlace {
                parent: StagingParent::Entered(Arc::clone(parent)),
                name: name.clone(),
                existing: self.existing,
                path: self.path_of(index),
                failures: self.failures.clone(),
            };
            let made = stage_directory(parent, place, index)?;
            let directory = made.staged().map(Arc::clone);
            self.staged = directory.map(|directory| StagedLevel { count: index + 1, directory });
            made
        };
        self.levels[index].state = LevelState::Open(Arc::new(made));
        self.close_outer_levels(index);
        Ok(())
    }

    /// Closes the levels that are far above `index`, down to the first that a task holds. A level
    /// that was closed and opened again would have two holders, and one of them would complete it
    /// too early.
    fn close_outer_levels(&mut self, index: usize) {
        while self.closed + OPEN_LEVELS_MAX <= index {
            // It holds its parent, so this one level stays open.
            let is_held =
                self.staged.as_ref().is_some_and(|staged| staged.count == self.closed + 2);
            let level = &mut self.levels[self.closed];
            if let LevelState::Open(directory) = &level.state {
                // Only the walk makes holders, so the count cannot grow meanwhile.
                if Arc::strong_count(directory) > 1 + usize::from(is_held) {
                    return;
                }
                if !is_held {
                    self.waypoints.add(self.closed, directory.as_fd());
                    level.state = LevelState::Closed(directory.file_id(), directory.origin);
                }
            }
            self.closed += 1;
        }
    }

    /// Marks a level as broken, so that its failure is reported once.
    fn fail_level(&mut self, index: usize, kind: ErrorKind) -> DirectoryFailure {
        self.levels[index].state = LevelState::Broken;
        DirectoryFailure::Now(Error::new(kind, &self.path_of(index)))
    }

    fn path_of(&self, index: usize) -> Vec<u8> {
        let mut path = Vec::new();
        for level in self.levels.iter().take(index + 1) {
            path.push(b'/');
            path.extend_from_slice(&level.name);
        }
        path
    }
}

pub(crate) fn clone_failed(source: std::io::Error) -> ErrorKind {
    ErrorKind::Output { operation: "cannot open directory", source }
}

/// Whether a name can only denote an entry of its directory.
fn is_safe(name: &[u8]) -> bool {
    !name.is_empty() && name != b"." && name != b".." && !name.iter().any(|b| matches!(b, b'/' | 0))
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;
    use std::path::PathBuf;

    use tempfile::TempDir;

    use super::*;
    use crate::new_directory::{WORKING_MODE, open_existing};

    fn stack(folder: &TempDir, existing: ExistingFiles) -> DirectoryStack {
        let folder = fs::File::open(folder.path()).unwrap();
        let directory = open_existing(folder.into()).unwrap();
        DirectoryStack::new(directory, existing, &PublishFailures::default()).unwrap()
    }

    fn only_entry(folder: &TempDir) -> PathBuf {
        let mut entries = fs::read_dir(folder.path()).unwrap();
        let path = entries.next().unwrap().unwrap().path();
        assert!(entries.next().is_none());
        path
    }

    fn open_levels(stack: &DirectoryStack) -> usize {
        let is_open = |level: &&StackLevel| matches!(level.state, LevelState::Open(..));
        stack.levels.iter().filter(is_open).count()
    }

    #[test]
    fn a_deep_tree_needs_few_descriptors_on_the_way_down_and_up() {
        let folder = TempDir::new().unwrap();
        let mut stack = stack(&folder, ExistingFiles::Refuse);
        for _ in 0..5 * OPEN_LEVELS_MAX {
            stack.push(b"d");
            stack.ready().unwrap();
            assert!(open_levels(&stack) <= OPEN_LEVELS_MAX);
        }
        for depth in (0..5 * OPEN_LEVELS_MAX).rev() {
            let directory = stack.ready().unwrap();
            rustix::fs::mkdirat(directory, "left", WORKING_MODE).unwrap();
            assert!(open_levels(&stack) <= OPEN_LEVELS_MAX);
            stack.pop();
            assert_eq!(stack.path.len(), 2 * depth);
        }
        assert!(folder.path().join("d/d/d/left").is_dir());
    }

    #[test]
    fn a_directory_that_was_swapped_meanwhile_is_noticed_once() {
        let folder = TempDir::new().unwrap();
        let outside = TempDir::new().unwrap();
        let mut stack = stack(&folder, ExistingFiles::Refuse);
        for _ in 0..=OPEN_LEVELS_MAX {
            stack.push(b"d");
            stack.ready().unwrap();
        }
        let staged = only_entry(&folder);
        fs::rename(&staged, folder.path().join("moved")).unwrap();
        symlink(outside.path(), &staged).unwrap();
        (0..OPEN_LEVELS_MAX).for_each(|_| drop(stack.pop()));
        let Err(DirectoryFailure::Now(error)) = stack.ready() else { panic!("it was found again") };
        assert!(matches!(error.kind(), ErrorKind::Replaced));
        assert_eq!(error.path(), b"/d");
        assert!(matches!(stack.ready(), Err(DirectoryFailure::Before)));
        stack.push(b"e");
        assert!(matches!(stack.ready(), Err(DirectoryFailure::Before)));
        assert_eq!(fs::read_dir(outside.path()).unwrap().count(), 0);
    }

    #[test]
    fn nothing_is_created_before_it_is_needed() {
        let folder = TempDir::new().unwrap();
        let mut stack = stack(&folder, ExistingFiles::Refuse);
        stack.push(b"a");
        stack.push(b"b");
        assert!(!stack.is_created() && fs::read_dir(folder.path()).unwrap().count() == 0);
        stack.ready().unwrap();
        assert!(stack.is_created() && only_entry(&folder).join("b").is_dir());
    }

    #[test]
    fn the_first_new_level_gets_its_name_when_nobody_holds_it() {
        let folder = TempDir::new().unwrap();
        let mut stack = stack(&folder, ExistingFiles::Refuse);
        stack.push(b"a");
        stack.push(b"b");
        let held = Arc::clone(stack.ready().unwrap());
        assert!(stack.pop().is_some() && stack.pop().is_some());
        let name = held.staged().and_then(|staged| staged.name()).map(Arc::clone);
        let is_there = || stack.parent_of(b"/a/b/file", name.as_deref()).is_ok();
        assert!(is_there() && !folder.path().join("a").exists());
        drop(held);
        assert!(is_there() && folder.path().join("a/b").is_dir());
    }

    #[test]
    fn few_levels_are_open_above_and_below_the_one_that_holds_a_staged_directory() {
        let folder = TempDir::new().unwrap();
        fs::create_dir_all(folder.path().join("d/d/d")).unwrap();
        let mut stack = stack(&folder, ExistingFiles::Keep);
        for _ in 0..2 {
            for _ in stack.levels.len()..5 * OPEN_LEVELS_MAX {
                stack.push(b"d");
                stack.ready().unwrap();
                assert!(open_levels(&stack) <= OPEN_LEVELS_MAX + 1 && !stack.is_deep());
            }
            for depth in (3..5 * OPEN_LEVELS_MAX).rev() {
                stack.ready().unwrap();
                stack.pop();
                assert_eq!(stack.path.len(), 2 * depth);
            }
            // The first level that was new has its name; the next round finds it.
            assert!(folder.path().join("d/d/d/d/d").is_dir());
        }
    }

    #[test]
    fn a_directory_that_fails_takes_what_is_below_with_it() {
        let folder = TempDir::new().unwrap();
        fs::create_dir(folder.path().join("a")).unwrap();
        let mut stack = stack(&folder, ExistingFiles::Refuse);
        stack.push(b"a");
        stack.push(b"b");
        let Err(DirectoryFailure::Now(error)) = stack.ready() else { panic!("it exists") };
        assert!(matches!(error.kind(), ErrorKind::Exists));
        assert_eq!(error.path(), b"/a");
        assert!(matches!(stack.ready(), Err(DirectoryFailure::Before)));
        stack.pop();
        assert!(!stack.is_created());
    }

    #[test]
    fn a_symlink_where_a_directory_belongs_is_replaced_if_that_is_allowed() {
        let folder = TempDir::new().unwrap();
        let outside = TempDir::new().unwrap();
        symlink(outside.path(), folder.path().join("a")).unwrap();
        for (existing, works) in [(ExistingFiles::Refuse, false), (ExistingFiles::Replace, true)] {
            let mut stack = stack(&folder, existing);
            stack.push(b"a");
            stack.push(b"b");
            assert_eq!(stack.ready().is_ok(), works);
        }
        assert!(folder.path().join("a/b").is_dir());
        assert_eq!(fs::read_dir(outside.path()).unwrap().count(), 0);
    }

    /// As on a host that takes `A` and `a` for one name.
    #[test]
    fn a_name_that_exists_in_a_new_directory_is_an_error_even_if_files_may_be_replaced() {
        for existing in [ExistingFiles::Keep, ExistingFiles::Replace] {
            let folder = TempDir::new().unwrap();
            let mut stack = stack(&folder, existing);
            stack.push(b"new");
            let directory = stack.ready().unwrap();
            rustix::fs::mkdirat(directory, "a", WORKING_MODE).unwrap();
            stack.push(b"a");
            let Err(DirectoryFailure::Now(error)) = stack.ready() else { panic!("it exists") };
            assert!(matches!(error.kind(), ErrorKind::Exists), "{error}");
        }
    }

    #[test]
    fn only_names_of_direct_entries_are_safe() {
        let folder = TempDir::new().unwrap();
        let mut stack = stack(&folder, ExistingFiles::Refuse);
        stack.push(b"a");
        assert_eq!(stack.name_in_top(b"/a/b"), Some(b"b".as_slice()));
        for path in ["/b", "/a", "/a/", "/ab/c", "/a/b/c", "/a/.", "/a/..", "/a/b\0"] {
            assert_eq!(stack.name_in_top(path.as_bytes()), None, "{path}");
        }
        for path in ["/", "/..", "/a/../.."] {
            assert!(stack.parent_of(path.as_bytes(), None).is_err(), "{path}");
        }
    }
}

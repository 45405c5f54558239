//! Directories that their owner may not search, with their final permissions. They are set at the
//! very end: until then, hard links to files in these directories may be needed. The walk leaves
//! directories one after the other, so a path is stored as what differs from the one before it.

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use ferrofs_workers::CancelToken;
use ferrofs_workers::memory::{AllocPolicy, Budget, Charge};
use rustix::fs::Mode;

use crate::directory_stack::{DirectoryStack, clone_failed};
use crate::error::ErrorKind;
use crate::new_directory::{open_directory, open_search};
use crate::open_directory::FileId;
use crate::waypoints::{OPEN_LEVELS_MAX, Waypoints};

/// Memory is charged in steps of this many bytes.
const STEP_BYTES: u64 = 64 << 10;

/// The directories, in the order in which they were left.
#[derive(Debug)]
pub(crate) struct DeferredModes {
    entries: Vec<DeferredMode>,
    /// The ends of the paths, one after the other.
    suffixes: Vec<u8>,
    /// The path of the last entry.
    last: Vec<u8>,
    budget: Budget,
    charge: Option<Charge>,
}

#[derive(Debug)]
struct DeferredMode {
    mode: u32,
    /// What must have the path when they are set.
    file_id: FileId,
    /// Bytes that the path has in common with the one before it, and bytes of the rest. The walk
    /// follows no path of more than 64 KiB.
    shared: u32,
    suffix: u32,
}

impl DeferredModes {
    pub(crate) fn new(budget: &Budget) -> Self {
        Self {
            entries: Vec::new(),
            suffixes: Vec::new(),
            last: Vec::new(),
            budget: budget.clone(),
            charge: None,
        }
    }

    /// Adds a directory.
    ///
    /// # Errors
    /// [`ErrorKind::Memory`]: the budget has no room for so many.
    pub(crate) fn add(&mut self, path: &[u8], mode: u32, file_id: FileId) -> Result<(), ErrorKind> {
        let pairs = self.last.iter().zip(path);
        let shared = pairs.take_while(|(old, new)| old == new).count();
        let suffix = &path[shared..];
        self.settle_charge(suffix.len())?;
        let length = |bytes: usize| u32::try_from(bytes).unwrap_or(u32::MAX);
        self.entries.push(DeferredMode {
            mode,
            file_id,
            shared: length(shared),
            suffix: length(suffix.len()),
        });
        self.suffixes.extend_from_slice(suffix);
        self.last.truncate(shared);
        self.last.extend_from_slice(suffix);
        Ok(())
    }

    /// Charges what the vectors take when they grow.
    fn settle_charge(&mut self, more: usize) -> Result<(), ErrorKind> {
        let grown = |length: usize, capacity: usize| {
            if length > capacity { length.max(capacity * 2) } else { capacity }
        };
        let entries = grown(self.entries.len() + 1, self.entries.capacity());
        let suffixes = grown(self.suffixes.len() + more, self.suffixes.capacity());
        let bytes = (entries * size_of::<DeferredMode>() + suffixes) as u64;
        while self.charge.as_ref().map_or(0, Charge::bytes) < bytes {
            let policy = AllocPolicy::MustSucceed;
            let charged = match &mut self.charge {
                Some(charge) => charge.grow(STEP_BYTES, policy),
                none => self.budget.charge(STEP_BYTES, policy).map(|charge| *none = Some(charge)),
            };
            charged.map_err(ErrorKind::Memory)?;
        }
        Ok(())
    }

    /// Sets all permissions, in the order of the entries: children come before their parents, so
    /// that each path can still be searched. Calls `failed` for those that cannot be set.
    ///
    /// # Errors
    /// [`ErrorKind::Cancelled`].
    pub(crate) fn apply(
        self,
        stack: &DirectoryStack,
        cancel: &CancelToken,
        mut failed: impl FnMut(ErrorKind, &[u8]),
    ) -> Result<(), ErrorKind> {
        let (mut path, mut at) = (Vec::new(), 0);
        let mut open = OpenAncestors::new(stack, cancel);
        for DeferredMode { mode, file_id, shared, suffix } in &self.entries {
            // Both come from lengths of slices.
            let suffix = &self.suffixes[at..at + *suffix as usize];
            at += suffix.len();
            path.truncate(*shared as usize);
            path.extend_from_slice(suffix);
            check_cancelled(cancel)?;
            let directory = open.directory(&path);
            let set = directory.and_then(|directory| set_mode(&directory, *mode, *file_id));
            match set {
                Err(ErrorKind::Cancelled) => return Err(ErrorKind::Cancelled),
                Err(kind) => failed(kind, &path),
                Ok(()) => {}
            }
        }
        Ok(())
    }
}

fn set_mode(directory: &OwnedFd, mode: u32, file_id: FileId) -> Result<(), ErrorKind> {
    let stat =
        rustix::fs::fstat(directory).map_err(ErrorKind::output("cannot examine directory"))?;
    if FileId::of(&stat) != file_id {
        return Err(ErrorKind::Replaced);
    }
    rustix::fs::fchmod(directory, Mode::from_raw_mode(mode))
        .map_err(ErrorKind::output("cannot set the mode"))
}

/// Directories on the way to the present one, opened for lookups only. The deepest ones stay open,
/// and waypoints among the others, so that the way up from a deep directory is short.
struct OpenAncestors<'a> {
    stack: &'a DirectoryStack,
    cancel: &'a CancelToken,
    /// The path of the deepest one.
    path: Vec<u8>,
    /// Where the path of each of them ends; that of the destination comes first.
    ends: Vec<usize>,
    /// The deepest ones.
    open: VecDeque<OwnedFd>,
    waypoints: Waypoints,
}

impl<'a> OpenAncestors<'a> {
    fn new(stack: &'a DirectoryStack, cancel: &'a CancelToken) -> Self {
        let (path, ends, open) = Default::default();
        Self { stack, cancel, path, ends, open, waypoints: Waypoints::new() }
    }

    fn directory(&mut self, path: &[u8]) -> Result<OwnedFd, ErrorKind> {
        let split = path.iter().rposition(|byte| *byte == b'/').unwrap_or(0);
        let (parent, name) = (&path[..split], path.get(split + 1..).unwrap_or_default());
        if name.is_empty() {
            return self.stack.open(b"/");
        }
        self.leave_to(parent);
        self.reopen()?;
        let known = self.path.len();
        for part in parent[known..].split(|byte| *byte == b'/').filter(|part| !part.is_empty()) {
            self.enter(part)?;
        }
        open_directory(self.deepest()?, name)
    }

    fn deepest(&self) -> Result<BorrowedFd<'_>, ErrorKind> {
        self.open.back().map(AsFd::as_fd).ok_or(ErrorKind::UnsafeName)
    }

    /// Forgets those that are not above what is in `parent`.
    fn leave_to(&mut self, parent: &[u8]) {
        let common = if parent.starts_with(&self.path) {
            self.path.len()
        } else if self.path.starts_with(parent) {
            parent.len()
        } else {
            let pairs = self.path.iter().zip(parent);
            pairs.take_while(|(known, new)| known == new).count()
        };
        let is_above =
            |end: usize| end <= common && parent.get(end).is_none_or(|next| *next == b'/');
        while self.ends.last().is_some_and(|end| !is_above(*end)) {
            self.ends.pop();
            self.open.pop_back();
        }
        self.path.truncate(self.ends.last().copied().unwrap_or(0));
        self.waypoints.truncate(self.ends.len());
    }

    /// Makes sure that the deepest one is open: starts again at a waypoint or at the destination.
    fn reopen(&mut self) -> Result<(), ErrorKind> {
        if !self.open.is_empty() {
            return Ok(());
        }
        let (index, fd) = match self.waypoints.above(self.ends.len()) {
            Some((index, fd)) => (index, fd.try_clone().map_err(clone_failed)?),
            None => (0, self.stack.open(b"/")?),
        };
        self.ends.truncate(index + 1);
        if self.ends.is_empty() {
            self.ends.push(0);
        }
        self.path.truncate(self.ends.last().copied().unwrap_or(0));
        self.open.push_back(fd);
        Ok(())
    }

    fn enter(&mut self, name: &[u8]) -> Result<(), ErrorKind> {
        check_cancelled(self.cancel)?;
        let directory = open_search(self.deepest()?, name)?;
        self.path.push(b'/');
        self.path.extend_from_slice(name);
        self.ends.push(self.path.len());
        self.open.push_back(directory);
        if self.open.len() > OPEN_LEVELS_MAX
            && let Some(outermost) = self.open.pop_front()
        {
            let index = self.ends.len().saturating_sub(self.open.len() + 1);
            self.waypoints.add(index, outermost.as_fd());
        }
        Ok(())
    }
}

fn check_cancelled(token: &CancelToken) -> Result<(), ErrorKind> {
    if token.is_cancelled() { Err(ErrorKind::Cancelled) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;
    use std::path::Path;

    use tempfile::TempDir;

    use super::*;
    use crate::destination::open_destination;
    use crate::open_directory::PublishFailures;
    use crate::options::ExistingFiles;

    fn stack(folder: &TempDir) -> DirectoryStack {
        let (existing, failures) = (ExistingFiles::Keep, PublishFailures::default());
        let destination = open_destination(folder.path(), existing, &failures).unwrap();
        DirectoryStack::new(destination.directory, existing, &failures).unwrap()
    }

    fn id_of(path: &Path) -> FileId {
        FileId::of(&rustix::fs::stat(path).unwrap())
    }

    #[test]
    fn long_paths_of_one_directory_take_little_memory() {
        let budget = Budget::new(1 << 20);
        let mut modes = DeferredModes::new(&budget);
        let file_id = id_of(TempDir::new().unwrap().path());
        let above = [b"/d".repeat(30_000), b"/".to_vec()].concat();
        for number in 0..10_000 {
            modes.add(&[&above, format!("{number:05}").as_bytes()].concat(), 0, file_id).unwrap();
        }
        modes.add(&above[..above.len() - 1], 0, file_id).unwrap();
        assert!(budget.used_bytes() > 100_000);
        drop(modes);
        assert_eq!(budget.used_bytes(), 0);
    }

    #[test]
    fn each_directory_gets_its_mode_however_deep_it_is() {
        let folder = TempDir::new().unwrap();
        let mut paths = Vec::new();
        let mut path = String::new();
        for _ in 0..3 * OPEN_LEVELS_MAX {
            path.push_str("/d");
            paths.push(path.clone());
            paths.push(format!("{path}/e"));
        }
        for path in &paths {
            fs::create_dir_all(folder.path().join(&path[1..])).unwrap();
        }
        paths.sort_by_key(|path| std::cmp::Reverse(path.len()));
        let mut modes = DeferredModes::new(&Budget::new(1 << 20));
        for path in &paths {
            let file_id = id_of(&folder.path().join(&path[1..]));
            modes.add(path.as_bytes(), 0o711, file_id).unwrap();
        }
        modes.add(b"/", 0o700, id_of(folder.path())).unwrap();
        let stack = stack(&folder);
        let failed = |kind: ErrorKind, path: &[u8]| panic!("{kind}: {path:?}");
        modes.apply(&stack, &CancelToken::new(), failed).unwrap();
        for path in &paths {
            let mode = fs::metadata(folder.path().join(&path[1..])).unwrap().permissions().mode();
            assert_eq!(mode & 0o777, 0o711, "{path}");
        }
    }

    #[test]
    fn the_way_up_from_a_deep_directory_does_not_begin_at_the_destination() {
        let folder = TempDir::new().unwrap();
        let deepest = "/d".repeat(5 * OPEN_LEVELS_MAX);
        fs::create_dir_all(folder.path().join(&deepest[1..])).unwrap();
        let (stack, cancel) = (stack(&folder), CancelToken::new());
        let mut open = OpenAncestors::new(&stack, &cancel);
        open.directory(deepest.as_bytes()).unwrap();
        assert!(open.open.len() <= OPEN_LEVELS_MAX);
        // From the destination, nothing is found any more.
        fs::rename(folder.path().join("d"), folder.path().join("moved")).unwrap();
        for depth in (OPEN_LEVELS_MAX + 2..5 * OPEN_LEVELS_MAX).rev() {
            open.directory(&deepest.as_bytes()[..2 * depth]).unwrap();
            assert!(open.open.len() <= OPEN_LEVELS_MAX);
        }
        open.directory(&deepest.as_bytes()[..2]).unwrap_err();
    }

    #[test]
    fn a_cancellation_ends_it() {
        let folder = TempDir::new().unwrap();
        fs::create_dir(folder.path().join("d")).unwrap();
        let (file_id, cancel) = (id_of(&folder.path().join("d")), CancelToken::new());
        let mut modes = DeferredModes::new(&Budget::new(1 << 20));
        modes.add(b"/d", 0o100, file_id).unwrap();
        cancel.cancel();
        let ended = modes.apply(&stack(&folder), &cancel, |kind, _| panic!("{kind}"));
        assert!(matches!(ended, Err(ErrorKind::Cancelled)));
        let mode = fs::metadata(folder.path().join("d")).unwrap().permissions().mode();
        assert_ne!(mode & 0o777, 0o100);
    }
}

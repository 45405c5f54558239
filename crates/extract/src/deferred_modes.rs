//! Directories that their owner may not search, with their final permissions. They are set at the
//! very end: until then, hard links to files in these directories may be needed. The walk leaves
//! directories one after the other, so a path is stored as what differs from the one before it.

use std::collections::VecDeque;
use std::os::fd::{AsFd, OwnedFd};

use ferrofs_workers::memory::{AllocPolicy, Budget, Charge};
use rustix::fs::Mode;

use crate::directory_stack::DirectoryStack;
use crate::error::ErrorKind;
use crate::new_directory::{open_directory, open_search};
use crate::open_directory::FileId;

/// Memory is charged in steps of this many bytes.
const STEP_BYTES: u64 = 64 << 10;
/// Directories above the present one that stay open, so that few are opened twice.
const OPEN_MAX: usize = 64;

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
    pub(crate) fn apply(self, stack: &DirectoryStack, mut failed: impl FnMut(ErrorKind, &[u8])) {
        let (mut path, mut at) = (Vec::new(), 0);
        let mut open = OpenAncestors { stack, open: VecDeque::new() };
        for DeferredMode { mode, file_id, shared, suffix } in &self.entries {
            // Both come from lengths of slices.
            let suffix = &self.suffixes[at..at + *suffix as usize];
            at += suffix.len();
            path.truncate(*shared as usize);
            path.extend_from_slice(suffix);
            let directory = open.directory(&path);
            let set = directory.and_then(|directory| set_mode(&directory, *mode, *file_id));
            if let Err(kind) = set {
                failed(kind, &path);
            }
        }
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

/// Directories on the way to the present one, opened for lookups only.
struct OpenAncestors<'a> {
    stack: &'a DirectoryStack,
    /// Each with its path; the outermost first.
    open: VecDeque<(Vec<u8>, OwnedFd)>,
}

impl OpenAncestors<'_> {
    fn directory(&mut self, path: &[u8]) -> Result<OwnedFd, ErrorKind> {
        let split = path.iter().rposition(|byte| *byte == b'/').unwrap_or(0);
        let (parent, name) = (&path[..split], path.get(split + 1..).unwrap_or_default());
        if name.is_empty() {
            return self.stack.open(b"/");
        }
        let is_above = |above: &[u8]| {
            parent.strip_prefix(above).is_some_and(|rest| rest.is_empty() || rest[0] == b'/')
        };
        while self.open.back().is_some_and(|(above, _)| !is_above(above)) {
            self.open.pop_back();
        }
        if self.open.is_empty() {
            self.open.push_back((Vec::new(), self.stack.open(b"/")?));
        }
        let known = self.open.back().map_or(0, |(above, _)| above.len());
        let mut at = known;
        for part in parent[known..].split(|byte| *byte == b'/').filter(|part| !part.is_empty()) {
            at += 1 + part.len();
            let Some((_, above)) = self.open.back() else { break };
            let next = open_search(above.as_fd(), part)?;
            self.open.push_back((parent[..at].to_vec(), next));
            if self.open.len() > OPEN_MAX {
                self.open.pop_front();
            }
        }
        let above = self.open.back().map(|(_, above)| above.as_fd());
        open_directory(above.ok_or(ErrorKind::UnsafeName)?, name)
    }
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
        for _ in 0..3 * OPEN_MAX {
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
        let (existing, failures) = (ExistingFiles::Keep, PublishFailures::default());
        let destination = open_destination(folder.path(), existing, &failures).unwrap();
        let stack = DirectoryStack::new(destination.directory, existing, &failures).unwrap();
        modes.apply(&stack, |kind, path| panic!("{kind}: {path:?}"));
        for path in &paths {
            let mode = fs::metadata(folder.path().join(&path[1..])).unwrap().permissions().mode();
            assert_eq!(mode & 0o777, 0o711, "{path}");
        }
    }
}

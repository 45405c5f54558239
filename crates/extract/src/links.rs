//! Inodes with several names: the first name gets the contents, further names become hard links to
//! it. [`InodeTable`] is what a directory and a tar have in common. [`LinkTable`] adds the order of
//! an extraction: while the first name is being written on some thread, further names wait. Called
//! by `extractor` and by the planner of a tar, on one thread.

use std::collections::HashMap;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use ferrofs_image::{FileType, Image, Inode, InodeSet, Nid, WalkEntry, WorkMeter};
use ferrofs_workers::memory::{AllocPolicy, Budget, Charge};

use crate::directory_stack::DirectoryStack;
use crate::error::ErrorKind;
use crate::host_entry::{LinkError, NewEntry};
use crate::open_directory::{FileId, OpenDirectory, StagedName};

/// Roughly the memory of an inode in a table, without its path.
const ENTRY_BYTES: u64 = 128;

/// The memory of the name of a staged directory, which may belong to one inode only.
const STAGED_BYTES: usize = 96;

/// Memory is charged in steps of this many bytes.
const CHARGE_STEP_BYTES: u64 = 256 << 10;

/// Levels above a first name that no work is counted for: trees are rarely deeper.
const FREE_LEVELS: u64 = 16;

/// Opening a directory on the way to a first name takes about as long as decoding so many bytes.
const LEVEL_WORK: u64 = 1 << 10;

/// The most names that wait at once: each keeps a directory open.
const PENDING_MAX: usize = 64;

/// Inodes of which more names may come, each with a value. An inode is forgotten when as many names
/// have been counted as it has links, so an image of many hard links needs little memory. Further names
/// make a file of their own, whose contents are work.
#[derive(Debug)]
pub(crate) struct InodeTable<T> {
    inodes: HashMap<Nid, TableEntry<T>>,
    /// Those that had as many names as they have links.
    complete: InodeSet,
    work: WorkMeter,
    /// The set of complete ones has no memory.
    failed: Option<ferrofs_image::Error>,
    used_bytes: u64,
    /// Nothing is charged without a budget.
    budget: Option<Budget>,
    charge: Option<Charge>,
}

#[derive(Debug)]
struct TableEntry<T> {
    value: T,
    names_left: u32,
    bytes: u64,
}

impl<T> InodeTable<T> {
    pub(crate) fn new(budget: Option<&Budget>, image: &Image, work: &WorkMeter) -> Self {
        Self {
            inodes: HashMap::new(),
            complete: InodeSet::new(image.memory().budget()),
            work: work.clone(),
            failed: None,
            used_bytes: 0,
            budget: budget.cloned(),
            charge: None,
        }
    }

    /// Counts the contents of a name that makes a file of its own, if the inode had all of its names before.
    ///
    /// # Errors
    /// The image makes an extraction repeat more work than the meter allows.
    pub(crate) fn count_contents(&self, inode: &Inode) -> Result<(), ErrorKind> {
        let is_repeated = self.complete.contains(inode.nid());
        if !is_repeated || inode.file_type() != FileType::Regular {
            return Ok(());
        }
        Ok(self.work.add(inode.size(), "files with more names than links")?)
    }

    pub(crate) fn get(&self, nid: Nid) -> Option<&T> {
        self.inodes.get(&nid).map(|entry| &entry.value)
    }

    fn get_mut(&mut self, nid: Nid) -> Option<&mut T> {
        self.inodes.get_mut(&nid).map(|entry| &mut entry.value)
    }

    /// Adds an inode with its first name. `path_bytes` is the length of the path that `value`
    /// keeps.
    pub(crate) fn insert(&mut self, inode: &Inode, value: T, path_bytes: usize) {
        self.remove(inode.nid());
        let bytes = ENTRY_BYTES.saturating_add(path_bytes as u64);
        let names_left = inode.nlink().saturating_sub(1);
        self.inodes.insert(inode.nid(), TableEntry { value, names_left, bytes });
        self.used_bytes = self.used_bytes.saturating_add(bytes);
    }

    /// Gives an inode that is in the table another value.
    fn replace(&mut self, nid: Nid, value: T, path_bytes: usize) {
        let Some(entry) = self.inodes.get_mut(&nid) else { return };
        self.used_bytes = self.used_bytes.saturating_sub(entry.bytes);
        entry.value = value;
        entry.bytes = ENTRY_BYTES.saturating_add(path_bytes as u64);
        self.used_bytes = self.used_bytes.saturating_add(entry.bytes);
    }

    /// Counts one more name, and forgets an inode that has no further names.
    pub(crate) fn count_name(&mut self, nid: Nid) {
        let Some(entry) = self.inodes.get_mut(&nid) else { return };
        entry.names_left = entry.names_left.saturating_sub(1);
        if entry.names_left == 0 {
            self.remove(nid);
            self.failed = self.complete.insert(nid).err().or(self.failed.take());
        }
    }

    fn remove(&mut self, nid: Nid) {
        if let Some(entry) = self.inodes.remove(&nid) {
            self.used_bytes = self.used_bytes.saturating_sub(entry.bytes);
        }
    }

    /// Charges the memory that the table has come to need.
    ///
    /// # Errors
    /// [`ErrorKind::Memory`]: the budget has no room for so many inodes with several names.
    pub(crate) fn settle_charge(&mut self) -> Result<(), ErrorKind> {
        if let Some(error) = self.failed.take() {
            return Err(error.into());
        }
        let Some(budget) = &self.budget else { return Ok(()) };
        while self.charge.as_ref().map_or(0, Charge::bytes) < self.used_bytes {
            let charged = match &mut self.charge {
                Some(charge) => charge.grow(CHARGE_STEP_BYTES, AllocPolicy::MustSucceed),
                none => budget
                    .charge(CHARGE_STEP_BYTES, AllocPolicy::MustSucceed)
                    .map(|charge| *none = Some(charge)),
            };
            charged.map_err(ErrorKind::Memory)?;
        }
        Ok(())
    }
}

/// The first name of an inode, as it was written.
#[derive(Clone, Debug)]
pub(crate) struct FirstName {
    path: Vec<u8>,
    file_id: FileId,
    /// The staged directory that it is in.
    staged: Option<Arc<StagedName>>,
}

/// An inode with several names was written under this name, or was not.
#[derive(Debug)]
pub(crate) struct FirstNameResult {
    nid: Nid,
    name: Option<FirstName>,
}

impl FirstNameResult {
    /// The name was written into `directory` as the file `file_id`, or was not; `None` for an inode
    /// with one name.
    pub(crate) fn new(
        node: &WalkEntry,
        directory: &OpenDirectory,
        file_id: Option<FileId>,
    ) -> Option<Self> {
        let staged = || directory.staged().and_then(|staged| staged.name()).map(Arc::clone);
        let name = |file_id| FirstName { path: node.path.clone(), file_id, staged: staged() };
        let is_one_of_many = node.inode.nlink() > 1;
        is_one_of_many.then(|| Self { nid: node.inode.nid(), name: file_id.map(name) })
    }

    /// The name was not written.
    pub(crate) fn failed(node: &WalkEntry) -> Self {
        Self { nid: node.inode.nid(), name: None }
    }
}

/// A name to write and its directory. It may have to wait for the first name of its inode.
#[derive(Debug)]
pub(crate) struct PendingName {
    pub(crate) node: WalkEntry,
    pub(crate) directory: Arc<OpenDirectory>,
}

#[derive(Debug)]
enum LinkState {
    /// The contents are being written; these names wait.
    Writing(Vec<PendingName>),
    Written(FirstName),
}

/// What to do with a name.
#[derive(Debug)]
pub(crate) enum LinkAction {
    /// Write it as a file of its own.
    Write(PendingName),
    /// Make it a link to the first name.
    Link(PendingName, FirstName),
    /// Nothing now: it waits for the first name.
    Wait,
}

/// The inodes with several names of an extraction.
#[derive(Debug)]
pub(crate) struct LinkTable {
    inodes: InodeTable<LinkState>,
    /// How many names wait.
    pending: usize,
}

impl LinkTable {
    /// An empty table, charged to the image's memory.
    pub(crate) fn new(image: &Image, work: &WorkMeter) -> Self {
        let budget = image.memory().budget();
        Self { inodes: InodeTable::new(Some(budget), image, work), pending: 0 }
    }

    /// As [`InodeTable::settle_charge`].
    pub(crate) fn settle_charge(&mut self) -> Result<(), ErrorKind> {
        self.inodes.settle_charge()
    }

    /// Decides what to do with the next name of the walk.
    ///
    /// # Errors
    /// As [`InodeTable::count_contents`].
    pub(crate) fn lookup(&mut self, name: PendingName) -> Result<LinkAction, ErrorKind> {
        let inode = &name.node.inode;
        if inode.nlink() < 2 {
            return Ok(LinkAction::Write(name));
        }
        let action = match self.inodes.get_mut(inode.nid()) {
            Some(LinkState::Writing(pending)) => {
                pending.push(name);
                self.pending += 1;
                LinkAction::Wait
            }
            Some(LinkState::Written(first)) => LinkAction::Link(name, first.clone()),
            None => {
                self.inodes.count_contents(inode)?;
                self.begin(inode);
                LinkAction::Write(name)
            }
        };
        Ok(action)
    }

    /// Whether no further name may wait before some first names are written.
    pub(crate) fn is_full(&self) -> bool {
        self.pending >= PENDING_MAX
    }

    /// A name is being written as a file of its own; further names will link to this file.
    pub(crate) fn begin(&mut self, inode: &Inode) {
        self.inodes.insert(inode, LinkState::Writing(Vec::new()), 0);
    }

    /// The first name was written, or was not. Returns the names that waited; the caller looks them
    /// up again.
    pub(crate) fn resolve(&mut self, result: FirstNameResult) -> Vec<PendingName> {
        let Some(LinkState::Writing(pending)) = self.inodes.get_mut(result.nid) else {
            return Vec::new();
        };
        let pending = std::mem::take(pending);
        self.pending -= pending.len();
        match result.name {
            Some(first) => {
                let staged_bytes = if first.staged.is_some() { STAGED_BYTES } else { 0 };
                let bytes = first.path.len() + staged_bytes;
                self.inodes.replace(result.nid, LinkState::Written(first), bytes);
            }
            None => self.inodes.remove(result.nid),
        }
        pending
    }

    /// Counts one more link of an inode.
    pub(crate) fn count(&mut self, inode: &Inode) {
        self.inodes.count_name(inode.nid());
    }
}

/// The directory of the first name that was linked last. It stays open, since files with further
/// names are often in one directory, and the way to it can have 32,768 levels.
#[derive(Debug, Default)]
pub(crate) struct FirstDirectory {
    path: Vec<u8>,
    fd: Option<OwnedFd>,
}

impl FirstDirectory {
    /// Makes `target` another name of the file that `first` names; `false` if the host needs a copy.
    ///
    /// # Errors
    /// The host refuses, or the links lead to more deep directories than `work` allows.
    pub(crate) fn link(
        &mut self,
        stack: &DirectoryStack,
        target: NewEntry<'_>,
        first: &FirstName,
        work: &WorkMeter,
    ) -> Result<bool, ErrorKind> {
        let end = first.path.iter().rposition(|byte| *byte == b'/').unwrap_or(0);
        let (parent, name) = (&first.path[..end], &first.path[end.saturating_add(1)..]);
        if self.fd.is_none() || self.path != parent {
            let levels = parent.iter().filter(|byte| **byte == b'/').count() as u64;
            let more = levels.saturating_sub(FREE_LEVELS);
            work.add(more.saturating_mul(LEVEL_WORK), "hard links to files in deep directories")?;
            self.fd = None;
            let found = stack.parent_of(&first.path, first.staged.as_deref());
            let Ok((directory, _)) = found else { return Ok(false) };
            self.fd = Some(directory);
            self.path = parent.to_vec();
        }
        let Some(directory) = &self.fd else { return Ok(false) };
        match target.create_link(directory.as_fd(), name) {
            Ok(()) => {}
            Err(LinkError::Copy) => return Ok(false),
            Err(LinkError::Failed(kind)) => return Err(kind),
        }
        if target.file_id()? == first.file_id {
            return Ok(true);
        }
        // Another process put another file under the first name.
        target.remove()?;
        Ok(false)
    }
}

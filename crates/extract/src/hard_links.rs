//! Which inodes with several names were extracted already, and under which name first. While the
//! first is being written on some thread, further names wait. Called by `extractor`, which
//! makes the links.

use std::collections::HashMap;
use std::sync::Arc;

use ferrofs_image::{Image, Inode, Nid, WalkEntry};
use ferrofs_workers::memory::{AllocPolicy, Charge};

use crate::batch::FirstNameResult;
use crate::directory::{FileId, OpenDirectory};
use crate::error::ErrorKind;

/// What an inode with several names takes beside its path, in bytes, about.
pub(crate) const KNOWN_BYTES: u64 = 128;

/// Memory is charged in steps of so many bytes.
pub(crate) const STEP_BYTES: u64 = 256 << 10;

/// Names that may wait at once: each keeps a directory open.
const PENDING_MAX: usize = 64;

/// The first name of an inode.
#[derive(Clone, Debug)]
pub(crate) struct FirstName {
    pub(crate) path: Vec<u8>,
    pub(crate) file_id: FileId,
}

/// A name that is to be made, and where; it may have to wait for the first one of its inode.
#[derive(Debug)]
pub(crate) struct PendingName {
    pub(crate) node: WalkEntry,
    pub(crate) directory: Arc<OpenDirectory>,
}

#[derive(Debug)]
enum LinkState {
    /// Under its first name, or under another one that could not be a link.
    Writing(Vec<PendingName>),
    Written(FirstName),
}

#[derive(Debug)]
struct LinkedInode {
    state: LinkState,
    names_left: u32,
}

/// Inodes that may still turn up under another name.
#[derive(Debug)]
pub(crate) struct LinkTable {
    inodes: HashMap<Nid, LinkedInode>,
    pending: usize,
    /// What they take, in bytes.
    used_bytes: u64,
    charge: Charge,
}

/// What is to be done with a name.
#[derive(Debug)]
pub(crate) enum LinkAction {
    /// Write it as a file of its own.
    Write(PendingName),
    /// Make it a link.
    Link(PendingName, FirstName),
    /// Nothing now: it waits for the first name.
    Wait,
}

impl LinkTable {
    /// None yet; what they take is charged to the image's memory.
    pub(crate) fn new(image: &Image) -> Result<Self, ErrorKind> {
        let charge = image.memory().budget().charge(STEP_BYTES, AllocPolicy::MustSucceed);
        Ok(Self {
            inodes: HashMap::new(),
            pending: 0,
            used_bytes: 0,
            charge: charge.map_err(ErrorKind::Memory)?,
        })
    }

    /// Sees to it that what they take is charged.
    ///
    /// # Errors
    /// There are more inodes with several names than there is memory for.
    pub(crate) fn settle_charge(&mut self) -> Result<(), ErrorKind> {
        while self.charge.bytes() < self.used_bytes {
            let more = self.charge.grow(STEP_BYTES, AllocPolicy::MustSucceed);
            more.map_err(ErrorKind::Memory)?;
        }
        Ok(())
    }

    /// Decides about a name as the walk meets it.
    pub(crate) fn lookup(&mut self, name: PendingName) -> LinkAction {
        if name.node.inode.nlink() < 2 {
            return LinkAction::Write(name);
        }
        match self.inodes.get_mut(&name.node.inode.nid()).map(|known| &mut known.state) {
            Some(LinkState::Writing(pending)) => {
                pending.push(name);
                self.pending += 1;
                LinkAction::Wait
            }
            Some(LinkState::Written(first)) => LinkAction::Link(name, first.clone()),
            None => {
                self.begin(&name.node.inode);
                LinkAction::Write(name)
            }
        }
    }

    /// Whether no further name may wait before some are settled.
    pub(crate) fn is_full(&self) -> bool {
        self.pending >= PENDING_MAX
    }

    /// A name is written as a file of its own; further names are those of the new file.
    pub(crate) fn begin(&mut self, inode: &Inode) {
        let names_left = inode.nlink().saturating_sub(1);
        let known = LinkedInode { state: LinkState::Writing(Vec::new()), names_left };
        if self.inodes.insert(inode.nid(), known).is_none() {
            self.used_bytes = self.used_bytes.saturating_add(KNOWN_BYTES);
        }
    }

    /// A file was written, or not; answers the names that waited for it, which are to be met again.
    pub(crate) fn resolve(&mut self, settled: FirstNameResult) -> Vec<PendingName> {
        let Some(known) = self.inodes.get_mut(&settled.nid) else { return Vec::new() };
        let LinkState::Writing(pending) = &mut known.state else { return Vec::new() };
        let pending = std::mem::take(pending);
        self.pending -= pending.len();
        match settled.file_id {
            Some(file_id) => {
                self.used_bytes = self.used_bytes.saturating_add(settled.path.len() as u64);
                known.state = LinkState::Written(FirstName { path: settled.path, file_id });
            }
            None => self.forget(settled.nid),
        }
        pending
    }

    /// Counts one more link, and forgets an inode that has no further names.
    pub(crate) fn count(&mut self, inode: &Inode) {
        if let Some(known) = self.inodes.get_mut(&inode.nid()) {
            known.names_left = known.names_left.saturating_sub(1);
            if known.names_left == 0 {
                self.forget(inode.nid());
            }
        }
    }

    fn forget(&mut self, nid: Nid) {
        let Some(known) = self.inodes.remove(&nid) else { return };
        let path = match known.state {
            LinkState::Written(first) => first.path.len() as u64,
            LinkState::Writing(_) => 0,
        };
        self.used_bytes = self.used_bytes.saturating_sub(KNOWN_BYTES.saturating_add(path));
    }
}

//! Which inodes with several names were extracted already, and under which name first. While the
//! first is being written on some thread, further names are parked. Called by `extractor`, which
//! makes the links.

use std::collections::HashMap;
use std::sync::Arc;

use ferrofs_image::{Image, Inode, Nid, Node};
use ferrofs_workers::memory::{Charge, Policy};

use crate::batch::Settled;
use crate::directory::{Directory, Identity};
use crate::error::ErrorKind;

/// What an inode with several names takes beside its path, in bytes, about.
pub(crate) const KNOWN_BYTES: u64 = 128;

/// Memory is charged in steps of so many bytes.
pub(crate) const STEP_BYTES: u64 = 256 << 10;

/// Names that may be parked at once: each keeps a directory open.
const PARKED_MAX: usize = 64;

/// The first name of an inode.
#[derive(Clone, Debug)]
pub(crate) struct First {
    pub(crate) path: Vec<u8>,
    pub(crate) identity: Identity,
}

/// A name that is to be made, and where; it may have to wait for the first one of its inode.
#[derive(Debug)]
pub(crate) struct Parked {
    pub(crate) node: Node,
    pub(crate) directory: Arc<Directory>,
}

#[derive(Debug)]
enum State {
    /// Under its first name, or under another one that could not be a link.
    Writing(Vec<Parked>),
    Written(First),
}

#[derive(Debug)]
struct Known {
    state: State,
    names_left: u32,
}

/// Inodes that may still turn up under another name.
#[derive(Debug)]
pub(crate) struct HardLinks {
    inodes: HashMap<Nid, Known>,
    parked: usize,
    /// What they take, in bytes.
    used_bytes: u64,
    charge: Charge,
}

/// What is to be done with a name.
#[derive(Debug)]
pub(crate) enum Next {
    /// Write it as a file of its own.
    Write(Parked),
    /// Make it a link.
    Link(Parked, First),
    /// Nothing now: it is parked.
    Wait,
}

impl HardLinks {
    /// None yet; what they take is charged to the image's memory.
    pub(crate) fn new(image: &Image) -> Result<Self, ErrorKind> {
        let charge = image.memory().budget().charge(STEP_BYTES, Policy::MustSucceed);
        Ok(Self {
            inodes: HashMap::new(),
            parked: 0,
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
            let more = self.charge.grow(STEP_BYTES, Policy::MustSucceed);
            more.map_err(ErrorKind::Memory)?;
        }
        Ok(())
    }

    /// Decides about a name as the walk meets it.
    pub(crate) fn meet(&mut self, name: Parked) -> Next {
        if name.node.inode.nlink() < 2 {
            return Next::Write(name);
        }
        match self.inodes.get_mut(&name.node.inode.nid()).map(|known| &mut known.state) {
            Some(State::Writing(parked)) => {
                parked.push(name);
                self.parked += 1;
                Next::Wait
            }
            Some(State::Written(first)) => Next::Link(name, first.clone()),
            None => {
                self.begin(&name.node.inode);
                Next::Write(name)
            }
        }
    }

    /// Whether no further name may be parked before some are settled.
    pub(crate) fn is_full(&self) -> bool {
        self.parked >= PARKED_MAX
    }

    /// A name is written as a file of its own; further names are those of the new file.
    pub(crate) fn begin(&mut self, inode: &Inode) {
        let names_left = inode.nlink().saturating_sub(1);
        let known = Known { state: State::Writing(Vec::new()), names_left };
        if self.inodes.insert(inode.nid(), known).is_none() {
            self.used_bytes = self.used_bytes.saturating_add(KNOWN_BYTES);
        }
    }

    /// A file was written, or not; answers the names that waited for it, which are to be met again.
    pub(crate) fn settle(&mut self, settled: Settled) -> Vec<Parked> {
        let Some(known) = self.inodes.get_mut(&settled.nid) else { return Vec::new() };
        let State::Writing(parked) = &mut known.state else { return Vec::new() };
        let parked = std::mem::take(parked);
        self.parked -= parked.len();
        match settled.identity {
            Some(identity) => {
                self.used_bytes = self.used_bytes.saturating_add(settled.path.len() as u64);
                known.state = State::Written(First { path: settled.path, identity });
            }
            None => self.forget(settled.nid),
        }
        parked
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
            State::Written(first) => first.path.len() as u64,
            State::Writing(_) => 0,
        };
        self.used_bytes = self.used_bytes.saturating_sub(KNOWN_BYTES.saturating_add(path));
    }
}

//! Who was met on a walk, and under how many names: for the link counts.

use std::collections::HashMap;

use ferrofs_ondisk::Nid;
use ferrofs_workers::memory::{AllocPolicy, Charge};

use crate::error::{Error, ErrorKind, Result};
use crate::memory::MemoryPool;
use crate::nid_set::NidSet;
use crate::walk::{PathError, WalkEntry};

/// What an inode with several names takes beside its path, in bytes, about.
const SEEN_BYTES: u64 = 128;
/// Memory is charged in steps of so many bytes.
const STEP_BYTES: u64 = 256 << 10;
/// The share of the memory that names may take which are kept for a later report.
const NAMES_SHARE: u64 = 16;

/// How often an inode has been met that has, or should have, another number of names than one.
#[derive(Debug)]
struct NamedInode {
    nlink: u32,
    names: u64,
    offset: u64,
    /// A name to report a wrong count under; empty once that would take too much memory.
    path: Vec<u8>,
}

/// Inodes that are no directories, as they are met.
#[derive(Debug)]
pub(super) struct LinkCounts {
    met: NidSet,
    seen: HashMap<Nid, NamedInode>,
    charge: Charge,
    used_bytes: u64,
    /// Bytes that kept names may still take.
    names_left: usize,
}

impl LinkCounts {
    pub(super) fn new(memory: &MemoryPool) -> Result<Self> {
        let names = memory.budget().limit_bytes() / NAMES_SHARE;
        Ok(Self {
            met: NidSet::default(),
            seen: HashMap::new(),
            charge: memory.budget().charge(STEP_BYTES, AllocPolicy::MustSucceed)?,
            used_bytes: 0,
            names_left: usize::try_from(names).unwrap_or(usize::MAX),
        })
    }

    /// Counts one more name; whether the inode is met for the first time.
    ///
    /// # Errors
    /// There is no memory to remember more.
    pub(super) fn meet(&mut self, node: &WalkEntry) -> Result<bool> {
        let (nid, nlink) = (node.inode.nid(), node.inode.nlink());
        let is_new = self.met.insert(nid);
        self.charge_for(self.met.bytes().saturating_add(self.used_bytes))?;
        if is_new && nlink == 1 {
            return Ok(true);
        }
        let fits = node.path.len() <= self.names_left;
        let known = self.seen.len();
        let seen = self.seen.entry(nid).or_insert_with(|| NamedInode {
            nlink,
            // One with a single link was met before without being noted.
            names: u64::from(!is_new),
            offset: node.inode.place().1,
            path: Vec::new(),
        });
        seen.names = seen.names.saturating_add(1);
        let mut more = 0;
        if seen.path.is_empty() && fits {
            seen.path.clone_from(&node.path);
            self.names_left = self.names_left.saturating_sub(node.path.len());
            more = node.path.len();
        }
        if self.seen.len() > known {
            self.used_bytes = self.used_bytes.saturating_add(SEEN_BYTES);
        }
        self.used_bytes = self.used_bytes.saturating_add(u64::try_from(more).unwrap_or(u64::MAX));
        Ok(is_new)
    }

    fn charge_for(&mut self, bytes: u64) -> Result<()> {
        while self.charge.bytes() < bytes {
            self.charge.grow(STEP_BYTES, AllocPolicy::MustSucceed)?;
        }
        Ok(())
    }

    /// The inodes with another number of names than they say, by their paths.
    pub(super) fn wrong_counts(self) -> impl Iterator<Item = PathError> {
        let mut wrong: Vec<_> =
            self.seen.into_iter().filter(|(_, seen)| u64::from(seen.nlink) != seen.names).collect();
        wrong.sort_by(|(_, a), (_, b)| a.path.cmp(&b.path));
        wrong.into_iter().map(|(nid, seen)| {
            let kind = ErrorKind::LinkCount { nlink: seen.nlink, names: seen.names };
            PathError { path: seen.path, error: Error::new(kind).in_inode(nid).at(seen.offset) }
        })
    }
}

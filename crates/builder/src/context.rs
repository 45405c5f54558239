//! What every step of a build is given: the options, the observer, the token that cancels it, and the memory
//! that it may take.
//!
//! [`BuildMemory`] is the one budget of a build: each part is charged before it takes anything, in this order.
//!
//! 1. The store ([`crate::spill`]) with the tree, the extents of files and what the metadata keeps for each inode: a
//!    quarter of the budget at most. What does not fit lies in a file.
//! 2. The shared xattrs: an eighth of the budget at most while they are sorted, then a few bytes for each. Those that do
//!    not fit are not shared.
//! 3. The search for duplicates: half of the budget at most, given back when the search is over.
//! 4. The tables of a pass over file data ([`DataTables`]): the largest index, chunk tables, known chunks, packed
//!    parts, known pclusters, and extents that others copy.
//! 5. Threads and batches in flight: what is left. The least that they need is kept free for them.
//!
//! Parts 1 to 4 can decide bytes of the image, so they depend on the tree and the options only, without
//! [`BuildOptions::jobs`]. Part 5 depends on the host, and pays for every thread.

use std::cell::RefCell;

use ferrofs_workers::CancelToken;
use ferrofs_workers::memory::{AllocPolicy, Budget, Charge, trim_heap};

use crate::spill::SpillStore;
use crate::tree::Tree;
use crate::{BuildObserver, BuildOptions, Error, ErrorKind, Result};

/// The search for duplicates takes one part in so many of the budget at most.
const DEDUPE_SHARE: u64 = 2;
/// The same for known pclusters.
const KNOWN_PCLUSTERS_SHARE: u64 = 8;
/// The same for the extents of files that others copy from. With less memory they are decoded more often.
const COPY_SOURCES_SHARE: u64 = 16;
/// Known chunks take one part in so many of what is left beside indexes and chunk tables; threads can use the rest.
const KNOWN_CHUNKS_SHARE: u64 = 2;
/// Bytes of an entry in the table of known pclusters.
const KNOWN_PCLUSTER_BYTES: u64 = 128;
/// Bytes that a known chunk takes in memory at most: its slots in the index, while that grows.
const KNOWN_CHUNK_BYTES: u64 = 32;
/// Bytes that a part of the packed inode takes in memory at most: its slots in two indexes, while they grow.
const PACKED_PART_BYTES: u64 = 64;
/// The store takes one part in so many of the budget at most.
const STORE_SHARE: u64 = 4;
/// The store takes one part in so many of the budget at least: the ends of files that lie inline are in it, too, and
/// nothing says before how many there will be.
const STORE_SHARE_MIN: u64 = 8;

/// What every step of a build is given.
#[derive(Clone, Copy)]
pub(crate) struct BuildContext<'a> {
    pub(crate) options: &'a BuildOptions,
    pub(crate) memory: &'a BuildMemory,
    pub(crate) observer: &'a dyn BuildObserver,
    pub(crate) cancel: &'a CancelToken,
}

impl BuildContext<'_> {
    /// # Errors
    /// [`ErrorKind::Cancelled`] once the build is cancelled.
    pub(crate) fn check_cancelled(&self) -> Result<()> {
        check_cancelled(self.cancel)
    }
}

/// # Errors
/// [`ErrorKind::Cancelled`] once `cancel` is cancelled.
pub(crate) fn check_cancelled(cancel: &CancelToken) -> Result<()> {
    if cancel.is_cancelled() { Err(Error::new(ErrorKind::Cancelled)) } else { Ok(()) }
}

/// The memory budget of one build. The thread that builds makes all charges.
#[derive(Debug)]
pub(crate) struct BuildMemory {
    budget: Budget,
    store: SpillStore,
    /// Charges that last as long as the build.
    kept: RefCell<Vec<Charge>>,
}

/// What the tables of a pass over file data can grow to.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct DataNeeds {
    /// Parts of the packed inode.
    pub(crate) packed_parts: u64,
    /// Known pclusters.
    pub(crate) pclusters: u64,
    /// Bytes of the largest index.
    pub(crate) index_bytes: u64,
    /// Bytes of all chunk tables.
    pub(crate) chunk_table_bytes: u64,
    /// Known chunks.
    pub(crate) chunks: u64,
    /// Bytes of the extents of all files that others copy from.
    pub(crate) copy_source_bytes: u64,
}

/// The charges for the tables of a pass over file data.
#[derive(Debug)]
pub(crate) struct DataTables {
    pub(crate) packed_parts: Charge,
    pub(crate) known_pclusters: Charge,
    pub(crate) index: Charge,
    pub(crate) chunk_tables: Charge,
    pub(crate) known_chunks: Charge,
    pub(crate) copy_sources: Charge,
}

impl BuildMemory {
    /// The budget of `options`, charged with `tree`.
    ///
    /// # Errors
    /// Threads of the budget that are not available.
    pub(crate) fn new(options: &BuildOptions, tree: &Tree) -> Result<Self> {
        let store = tree.store().clone();
        let budget = Budget::new(options.memory_bytes);
        let memory = Self { budget, store, kept: RefCell::default() };
        let limit = options.memory_bytes;
        let bytes = tree.store_bytes().max(limit / STORE_SHARE_MIN).min(limit / STORE_SHARE);
        memory.store.set_memory_max(bytes);
        // The import has used more: the pages of its tree, and what it read the source with.
        trim_heap();
        memory.keep(memory.charge_up_to(bytes)?);
        Ok(memory)
    }

    /// Where the tables of the build lie that grow with the number of files.
    pub(crate) fn store(&self) -> &SpillStore {
        &self.store
    }

    /// All of the budget, in bytes.
    pub(crate) fn limit_bytes(&self) -> u64 {
        self.budget.limit_bytes()
    }

    /// Bytes that no part has been charged for.
    pub(crate) fn available_bytes(&self) -> u64 {
        self.limit_bytes().saturating_sub(self.budget.used_bytes())
    }

    /// Charges `bytes`, or all that is left if that is less.
    pub(crate) fn charge_up_to(&self, bytes: u64) -> Result<Charge> {
        let bytes = bytes.min(self.available_bytes());
        let charge = self.budget.charge(bytes, AllocPolicy::MayFail);
        charge.map_err(|error| Error::new(ErrorKind::Workers(error)))
    }

    /// Charges the search for duplicates.
    pub(crate) fn charge_dedupe(&self) -> Result<Charge> {
        self.charge_up_to(self.limit_bytes() / DEDUPE_SHARE)
    }

    /// Charges the tables of a pass that can come to need `needs`. `threads_bytes` are kept free.
    pub(crate) fn charge_tables(
        &self,
        needs: &DataNeeds,
        threads_bytes: u64,
    ) -> Result<DataTables> {
        let left = || self.available_bytes().saturating_sub(threads_bytes);
        let charge = |bytes: u64| self.charge_up_to(bytes.min(left()));
        let chunks_bytes = needs.chunks.saturating_mul(KNOWN_CHUNK_BYTES);
        let known_bytes = needs.pclusters.saturating_mul(KNOWN_PCLUSTER_BYTES);
        // The fields are charged in the order in which they stand. Without room for an index or a chunk table, a build
        // fails; with less of the others, it shares less, or decodes more often.
        Ok(DataTables {
            index: charge(needs.index_bytes)?,
            chunk_tables: charge(needs.chunk_table_bytes)?,
            known_chunks: charge(chunks_bytes.min(left() / KNOWN_CHUNKS_SHARE))?,
            packed_parts: charge(needs.packed_parts.saturating_mul(PACKED_PART_BYTES))?,
            known_pclusters: charge(known_bytes.min(self.limit_bytes() / KNOWN_PCLUSTERS_SHARE))?,
            copy_sources: charge(
                needs.copy_source_bytes.min(self.limit_bytes() / COPY_SOURCES_SHARE),
            )?,
        })
    }

    /// Lets `charge` last as long as the build.
    pub(crate) fn keep(&self, charge: Charge) {
        self.kept.borrow_mut().push(charge);
    }

    /// The error of a build that needs `more_bytes` than it has been charged for.
    #[cold]
    pub(crate) fn too_little(&self, more_bytes: u64) -> Error {
        let (limit, needed) = (self.limit_bytes(), self.budget.used_bytes() + more_bytes);
        let what = format!("a memory limit of {limit} bytes is too low: {needed} are needed");
        Error::new(ErrorKind::InvalidOptions(what))
    }
}

impl DataTables {
    /// How many parts of the packed inode may be found again.
    pub(crate) fn packed_parts_max(&self) -> usize {
        usize::try_from(self.packed_parts.bytes() / PACKED_PART_BYTES).unwrap_or(usize::MAX)
    }

    /// How many chunks may be known.
    pub(crate) fn known_chunks_max(&self) -> usize {
        usize::try_from(self.known_chunks.bytes() / KNOWN_CHUNK_BYTES).unwrap_or(usize::MAX)
    }

    /// How many pclusters may be known.
    pub(crate) fn known_pclusters_max(&self) -> usize {
        let count = self.known_pclusters.bytes() / KNOWN_PCLUSTER_BYTES;
        usize::try_from(count).unwrap_or(usize::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_source::{file, metadata};

    fn memory(bytes: u64) -> BuildMemory {
        let options = BuildOptions { memory_bytes: bytes, ..BuildOptions::default() };
        BuildMemory::new(&options, &Tree::new(metadata())).unwrap()
    }

    #[test]
    fn all_parts_together_never_pass_the_limit() {
        let memory = memory(64 << 20);
        let everything = DataNeeds {
            packed_parts: u64::MAX,
            pclusters: u64::MAX,
            index_bytes: u64::MAX,
            chunk_table_bytes: u64::MAX,
            chunks: u64::MAX,
            copy_source_bytes: u64::MAX,
        };
        drop(memory.charge_dedupe().unwrap());
        let tables = memory.charge_tables(&everything, 24 << 20).unwrap();
        assert_eq!(memory.available_bytes(), 24 << 20);
        let threads = memory.charge_up_to(u64::MAX).unwrap();
        assert_eq!((threads.bytes(), memory.available_bytes()), (24 << 20, 0));
        assert!(tables.index.bytes() > 0);
        assert_eq!(tables.packed_parts.bytes() + tables.known_pclusters.bytes(), 0);
        assert!(memory.budget.peak_bytes() <= memory.limit_bytes());
    }

    /// As many small parts and pclusters as there are would have taken it.
    #[test]
    fn the_largest_index_and_the_chunk_tables_have_their_room_whatever_is_shared() {
        let memory = memory(64 << 20);
        let needs = DataNeeds {
            packed_parts: u64::MAX,
            pclusters: u64::MAX,
            index_bytes: 3 << 20,
            chunk_table_bytes: 2 << 20,
            chunks: 0,
            copy_source_bytes: u64::MAX,
        };
        let tables = memory.charge_tables(&needs, 24 << 20).unwrap();
        assert_eq!((tables.index.bytes(), tables.chunk_tables.bytes()), (3 << 20, 2 << 20));
        assert!(tables.packed_parts.bytes() > 0);
    }

    #[test]
    fn a_part_takes_no_more_than_it_can_need() {
        let memory = memory(64 << 20);
        let before = memory.available_bytes();
        let needs = DataNeeds { pclusters: 10, chunk_table_bytes: 1000, ..DataNeeds::default() };
        let tables = memory.charge_tables(&needs, 0).unwrap();
        assert_eq!(tables.known_pclusters_max(), 10);
        assert_eq!(before - memory.available_bytes(), 10 * KNOWN_PCLUSTER_BYTES + 1000);
    }

    #[test]
    fn the_store_has_an_eighth_of_the_memory_and_up_to_a_quarter_if_the_tree_needs_it() {
        let mut tree = Tree::new(metadata());
        for _ in 0..10_000 {
            tree.add(file(b"abc")).unwrap();
        }
        let charged = |memory_bytes| {
            let options = BuildOptions { memory_bytes, ..BuildOptions::default() };
            let memory = BuildMemory::new(&options, &tree).unwrap();
            memory.limit_bytes() - memory.available_bytes()
        };
        assert_eq!(charged(1 << 20), 256 << 10);
        assert_eq!(charged(1 << 30), 128 << 20);
        assert!((1_000_000..3_000_000).contains(&charged(10 << 20)), "{}", charged(10 << 20));
    }
}

//! What a verification has read: clusters, stored bytes and shared attributes are read once, however
//! many inodes refer to them. What overlaps, but is not the same, counts as repeated work.
//!
//! The tables take a share of the memory. When that is used up, what is not in them is read again, and
//! counts as repeated work.

use std::collections::{HashMap, HashSet};
use std::hash::BuildHasher;
use std::ops::Range;
use std::sync::{Mutex, MutexGuard, PoisonError};

use ferrofs_ondisk::compression::AlgorithmId;
use ferrofs_workers::memory::Budget;
use foldhash::fast::RandomState;

use super::damaged_data::{DamagedData, Soundness};
use super::table_memory::{TableMemory, capacity_with};
use crate::error::{Error, ErrorKind, Result};
use crate::extent::{Address, Cluster, Coding, DataLocation, MappedExtent};
use crate::sparse_bit_set::SparseBitSet;
use crate::work::WorkMeter;

/// Tables of clusters; threads work in different parts of an image.
const SHARDS: u64 = 16;
/// Clusters of so many bytes of the image are in one table: its log.
const SHARD_LOG: u32 = 22;
/// The tables may take the memory limit divided by this.
const MEMORY_SHARE: u64 = 8;
/// Log of the bytes of the image that one bit of a cluster stands for: the smallest block.
const CLUSTER_UNIT_LOG: u32 = 9;
/// Log of the bytes that one bit of stored data stands for.
const STORED_UNIT_LOG: u32 = 12;
/// Looking an extent up takes about as long as decoding so many bytes.
const EXTENT_WORK: u64 = 64;
/// Looking up whether a byte of stored data was read takes so much less time than decoding one.
const LOOKUP_SHARE: u64 = 1 << 17;
/// A byte that is copied takes so much less time than one that is decoded.
const COPY_SHARE: u64 = 4;

/// What has been read. Used by all threads of a verification.
#[derive(Debug)]
pub(super) struct Verified {
    shards: Vec<Mutex<Shard>>,
    stored: Mutex<Shard>,
    xattrs: Mutex<XattrTable>,
    damaged: Mutex<DamagedData>,
    hasher: RandomState,
    /// The length of the image and its devices.
    image_bytes: u64,
}

/// What inodes need to know of an attribute that they refer to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct VerifiedXattr {
    /// The bit of a name filter that must not be set; 0 if the name is hidden.
    pub(super) filter_bit: u32,
    /// It is a list for new entries of a directory.
    pub(super) needs_directory: bool,
}

/// A part of the tables.
#[derive(Debug)]
struct Shard {
    /// Hashes of clusters, with the length of the extent; of stored data, hashes of ranges that are not whole
    /// units. An accident is as likely as an undetected error of the memory, and nobody can provoke one, as the
    /// hash has a random state.
    clusters: HashSet<u64, RandomState>,
    /// Units of the image that were read, whole.
    read: SparseBitSet,
    /// Units of stored data of which a file ends in the middle: a part was read.
    begun: SparseBitSet,
    memory: TableMemory,
}

#[derive(Debug)]
struct XattrTable {
    known: HashMap<u32, VerifiedXattr, RandomState>,
    memory: TableMemory,
}

impl Verified {
    /// Nothing was read of an image of so many bytes, devices included.
    pub(super) fn new(budget: &Budget, image_bytes: u64) -> Self {
        // Half of it is for clusters.
        let quarter = budget.limit_bytes() / MEMORY_SHARE / 4;
        let memory = |limit_bytes| TableMemory::new(budget, limit_bytes);
        let shard = |limit_bytes| Shard {
            clusters: HashSet::default(),
            read: SparseBitSet::default(),
            begun: SparseBitSet::default(),
            memory: memory(limit_bytes),
        };
        Self {
            shards: (0..SHARDS).map(|_| Mutex::new(shard(quarter / (SHARDS / 2)))).collect(),
            stored: Mutex::new(shard(quarter)),
            xattrs: Mutex::new(XattrTable {
                known: HashMap::default(),
                memory: memory(quarter / 2),
            }),
            damaged: Mutex::new(DamagedData::new(memory(quarter / 2))),
            hasher: RandomState::default(),
            image_bytes,
        }
    }

    /// Whether an extent has to be read.
    ///
    /// # Errors
    /// The image makes readers repeat more work than the meter allows.
    pub(super) fn wants(&self, extent: &MappedExtent, work: &WorkMeter) -> Result<bool> {
        add_extent_work(work)?;
        match &extent.location {
            DataLocation::Hole | DataLocation::Fragment { .. } => Ok(true),
            DataLocation::Stored(address) => self.wants_stored(*address, extent.length, work),
            DataLocation::Cluster(cluster) => self.wants_cluster(cluster, work),
        }
    }

    fn wants_stored(&self, address: Address, bytes: u64, work: &WorkMeter) -> Result<bool> {
        let Address::Data { .. } = address else { return Ok(true) };
        if bytes > self.image_bytes {
            // Reading it fails at the end of the image. So long a range would fill the tables with units that
            // there are not: sizes have up to 63 bits.
            work.add(self.image_bytes / COPY_SHARE, "stored data longer than the image")?;
            return Ok(true);
        }
        work.add(bytes / LOOKUP_SHARE, "stored data of many extents")?;
        let first = address.number();
        let whole = whole_units(first, bytes, STORED_UNIT_LOG);
        let touched = touched_units(first, bytes, STORED_UNIT_LOG);
        let began = units(first, bytes, STORED_UNIT_LOG);
        let count = began.end.saturating_sub(began.start);
        // A unit that is read in part says nothing about its other bytes, which may lie behind the end of
        // the image. Of files that end in a unit, only the same bytes count as read.
        let key = (whole != touched).then(|| self.hasher.hash_one((first, bytes)));
        let begun = (whole.end < began.end).then_some(whole.end);
        let added = {
            let mut stored = lock(&self.stored);
            if key.is_some_and(|key| stored.clusters.contains(&key))
                || stored.read.contains_range(touched)
            {
                return Ok(false);
            }
            stored.add(key, whole, begun)
        };
        let Some(added) = added else {
            work.add(bytes / COPY_SHARE, "stored data that may have been read before")?;
            return Ok(true);
        };
        if added.saturating_mul(2) < count {
            work.add(bytes / COPY_SHARE, "stored data of files that overlap")?;
        }
        Ok(true)
    }

    fn wants_cluster(&self, cluster: &Cluster, work: &WorkMeter) -> Result<bool> {
        let first = cluster.id.address.number();
        let key = self.key_of(cluster);
        let units = units(first, cluster.id.encoded_bytes.into(), CLUSTER_UNIT_LOG);
        let count = units.end.saturating_sub(units.start);
        let shard = usize::try_from((first >> SHARD_LOG) % SHARDS).unwrap_or(0);
        let Some(shard) = self.shards.get(shard) else { return Ok(true) };
        let added = {
            let mut shard = lock(shard);
            if shard.clusters.contains(&key) {
                return Ok(false);
            }
            shard.add(Some(key), units, None)
        };
        let what = match added {
            Some(added) if added.saturating_mul(2) >= count => return Ok(true),
            Some(_) => "compressed clusters that overlap",
            None => "compressed clusters that may have been read before",
        };
        work.add(cluster_work(cluster), what)?;
        Ok(true)
    }

    fn key_of(&self, cluster: &Cluster) -> u64 {
        self.hasher.hash_one((cluster.id, cluster.decoded_bytes, cluster.is_partial))
    }

    /// Records that an extent that was wanted could not be read, so that others that have the same data are
    /// found by [`Verified::soundness`].
    pub(super) fn add_damaged(&self, extent: &MappedExtent, error: &Error) {
        // What was refused at this moment may succeed later.
        let known = match error.kind() {
            ErrorKind::Io(_)
            | ErrorKind::Panicked
            | ErrorKind::Cancelled
            | ErrorKind::Workers(_)
            | ErrorKind::OutOfMemory { .. } => Soundness::Unknown,
            _ => Soundness::Damaged,
        };
        match &extent.location {
            DataLocation::Hole | DataLocation::Fragment { .. } => {}
            // A longer one is read for each file.
            DataLocation::Stored(address) if extent.length <= self.image_bytes => {
                let first = address.number();
                lock(&self.damaged).add_stored(first..first.saturating_add(extent.length));
            }
            DataLocation::Stored(_) => {}
            DataLocation::Cluster(cluster) => {
                lock(&self.damaged).add_cluster(self.key_of(cluster), known);
            }
        }
    }

    /// Whether [`Verified::add_damaged`] has recorded anything.
    pub(super) fn has_damaged(&self) -> bool {
        !lock(&self.damaged).is_empty()
    }

    /// What is known of an extent when everything was read that is wanted. If it is unknown, reading the extent
    /// again is added to the work.
    ///
    /// # Errors
    /// The image makes readers repeat more work than the meter allows.
    pub(super) fn soundness(&self, extent: &MappedExtent, work: &WorkMeter) -> Result<Soundness> {
        add_extent_work(work)?;
        let (known, bytes) = match &extent.location {
            DataLocation::Hole | DataLocation::Fragment { .. } => (Soundness::Sound, 0),
            DataLocation::Stored(Address::Metadata { .. }) => (Soundness::Sound, 0),
            // A file that is longer than the image has failed.
            DataLocation::Stored(_) if extent.length > self.image_bytes => (Soundness::Sound, 0),
            DataLocation::Stored(address) => {
                let first = address.number();
                let range = first..first.saturating_add(extent.length);
                (lock(&self.damaged).stored(&range), extent.length / COPY_SHARE)
            }
            DataLocation::Cluster(cluster) => {
                (lock(&self.damaged).cluster(self.key_of(cluster)), cluster_work(cluster))
            }
        };
        if known == Soundness::Unknown {
            work.add(bytes, "data that may be damaged")?;
        }
        Ok(known)
    }

    /// What is known of the shared attribute with this id.
    pub(super) fn xattr(&self, id: u32) -> Option<VerifiedXattr> {
        lock(&self.xattrs).known.get(&id).copied()
    }

    /// Adds a shared attribute.
    pub(super) fn add_xattr(&self, id: u32, xattr: VerifiedXattr) {
        const BYTES: u64 = 24;
        let mut table = lock(&self.xattrs);
        let table = &mut *table;
        let capacity = capacity_with(table.known.len().saturating_add(1), table.known.capacity());
        if table.memory.try_grow_to(capacity.saturating_mul(BYTES)) {
            table.known.insert(id, xattr);
        }
    }
}

impl Shard {
    /// Adds what is read, and a unit of which only a part is. Returns how many of the units are new; `None`
    /// if there is no room, and nothing was added.
    fn add(&mut self, key: Option<u64>, read: Range<u64>, begun: Option<u64>) -> Option<u64> {
        if !self.try_reserve(key, &read, begun) {
            return None;
        }
        self.clusters.extend(key);
        let mut added = self.read.insert_range(read);
        if let Some(unit) = begun {
            let is_new = self.begun.insert(unit) && !self.read.contains(unit);
            added = added.saturating_add(is_new.into());
        }
        Some(added)
    }

    fn try_reserve(&mut self, key: Option<u64>, read: &Range<u64>, begun: Option<u64>) -> bool {
        const BYTES: u64 = 10;
        let entries = self.clusters.len().saturating_add(key.is_some().into());
        let clusters = capacity_with(entries, self.clusters.capacity());
        let begun = begun.map_or_else(|| self.begun.bytes(), |_| self.begun.bytes_after_insert());
        let units = self.read.bytes_after_insert_range(read).saturating_add(begun);
        self.memory.try_grow_to(clusters.saturating_mul(BYTES).saturating_add(units))
    }
}

/// Adds the work of looking an extent up.
pub(super) fn add_extent_work(work: &WorkMeter) -> Result<()> {
    work.add(EXTENT_WORK, "extents")
}

/// The work of decoding a cluster. An extent of a few bytes can have one of a mebibyte, all of which is read.
fn cluster_work(cluster: &Cluster) -> u64 {
    let decoding = cluster.decoded_bytes.saturating_mul(decode_cost(cluster));
    decoding.max(u64::from(cluster.id.encoded_bytes) / COPY_SHARE)
}

/// Bytes that a fast codec decodes while this one decodes one byte.
fn decode_cost(cluster: &Cluster) -> u64 {
    match cluster.id.coding {
        Coding::Plain { .. } | Coding::Compressed(AlgorithmId::Lz4) => 1,
        Coding::Compressed(AlgorithmId::Zstd) => 2,
        Coding::Compressed(AlgorithmId::Deflate) => 3,
        Coding::Compressed(AlgorithmId::Lzma) => 8,
    }
}

/// The units that begin in a range of bytes: ranges that do not overlap have none in common.
fn units(first: u64, bytes: u64, unit_log: u32) -> Range<u64> {
    let up = (1u64 << unit_log).wrapping_sub(1);
    let unit = |at: u64| at.saturating_add(up) >> unit_log;
    unit(first)..unit(first.saturating_add(bytes))
}

/// The units of which a range of bytes has every byte. They are the first ones of [`units`], which
/// may have one more.
fn whole_units(first: u64, bytes: u64, unit_log: u32) -> Range<u64> {
    let Range { start, .. } = units(first, bytes, unit_log);
    start..(first.saturating_add(bytes) >> unit_log).max(start)
}

/// The units of which a range of bytes has any byte.
fn touched_units(first: u64, bytes: u64, unit_log: u32) -> Range<u64> {
    first >> unit_log..units(first, bytes, unit_log).end
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // No panic can happen between two changes of a table.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::extent::ClusterId;

    fn extent(location: DataLocation) -> MappedExtent {
        MappedExtent { start: 0, length: 64 << 10, location }
    }

    fn cluster(offset: u64, encoded_bytes: u32) -> MappedExtent {
        let coding = Coding::Compressed(AlgorithmId::Lz4);
        let id = ClusterId { address: Address::unified(offset), encoded_bytes, coding };
        extent(DataLocation::Cluster(Cluster { id, decoded_bytes: 64 << 10, is_partial: false }))
    }

    #[test]
    fn a_cluster_is_read_once_and_overlapping_ones_are_work() {
        let verified = Verified::new(&Budget::new(20 << 20), 1 << 40);
        let work = WorkMeter::new(1 << 20);
        let free = |number: u64| number * EXTENT_WORK;
        assert!(verified.wants(&cluster(4096, 8192), &work).unwrap());
        assert!(verified.wants(&cluster(12_288, 4096), &work).unwrap());
        assert!(!verified.wants(&cluster(4096, 8192), &work).unwrap());
        assert_eq!(work.spent(), free(3));
        assert!(verified.wants(&cluster(4096, 4096), &work).unwrap());
        assert_eq!(work.spent(), free(4) + (64 << 10));
        for step in 0..20 {
            let extent = cluster(4096, 512 * (step + 1));
            if verified.wants(&extent, &work).is_err() {
                return;
            }
        }
        panic!("the work has no limit: {}", work.spent());
    }

    #[test]
    fn stored_bytes_are_read_once() {
        let verified = Verified::new(&Budget::new(20 << 20), 1 << 40);
        let work = WorkMeter::new(1 << 20);
        let stored = |offset| extent(DataLocation::Stored(Address::unified(offset)));
        assert!(verified.wants(&stored(1 << 20), &work).unwrap());
        assert!(!verified.wants(&stored(1 << 20), &work).unwrap());
        assert_eq!(work.spent(), 2 * EXTENT_WORK);
        assert!(verified.wants(&stored((1 << 20) + 4096), &work).unwrap());
        assert_eq!(work.spent(), 3 * EXTENT_WORK + (16 << 10));
    }

    fn stored(offset: u64, length: u64) -> MappedExtent {
        let location = DataLocation::Stored(Address::unified(offset));
        MappedExtent { start: 0, length, location }
    }

    #[test]
    fn bytes_that_no_file_had_before_are_read() {
        let verified = Verified::new(&Budget::new(20 << 20), 1 << 40);
        let work = WorkMeter::new(1 << 30);
        let wants = |offset, length| verified.wants(&stored(offset, length), &work).unwrap();
        const BLOCK: u64 = 1 << 20;
        // A file that ends in a unit, and then one that has all of it.
        assert!(wants(BLOCK, 100) && !wants(BLOCK, 100));
        assert!(wants(BLOCK, 4096) && !wants(BLOCK, 4096));
        assert!(!wants(BLOCK, 100) && !wants(BLOCK, 4095) && !wants(BLOCK + 512, 512));
        // Two units and a part of a third, and a file that has more of the third.
        assert!(wants(BLOCK + 4096, 8193) && !wants(BLOCK + 4096, 8193));
        assert!(!wants(BLOCK, 12_288) && wants(BLOCK, 12_289) && wants(BLOCK + 8192, 4098));
        // Blocks of 512 bytes: none of them is a unit.
        let small = 2 << 20;
        assert!(wants(small, 512) && wants(small + 512, 512) && wants(small + 1024, 4096));
        assert!(!wants(small, 512) && !wants(small + 512, 512) && !wants(small + 1024, 4096));
        assert!(wants(small, 1024) && wants(small + 4096, 1024));
        // What was read in part before is work.
        let again = [12_289, 4098, 1024, 1024].map(|bytes| bytes / COPY_SHARE);
        assert_eq!(work.spent(), 20 * EXTENT_WORK + again.iter().sum::<u64>());
    }

    #[test]
    fn a_range_longer_than_the_image_is_read_and_takes_no_memory() {
        let budget = Budget::new(20 << 20);
        let (verified, work) = (Verified::new(&budget, 1 << 20), WorkMeter::new(1 << 20));
        for bytes in [(1 << 20) + 1, 1 << 60, u64::MAX] {
            assert!(verified.wants(&stored(4096, bytes), &work).unwrap());
        }
        assert_eq!((work.spent(), budget.used_bytes()), (3 * (EXTENT_WORK + (256 << 10)), 0));
        assert!((0..2).any(|_| verified.wants(&stored(4096, 1 << 60), &work).is_err()));
    }

    #[test]
    fn many_lengths_of_one_place_are_work() {
        let verified = Verified::new(&Budget::new(20 << 20), 1 << 40);
        let work = WorkMeter::new(64 << 20);
        let read = |number: u64| {
            let length = (64 << 10) + number;
            verified.wants(&stored(4096, length), &work)
        };
        let ended = (0..100_000).position(|number| read(number).is_err());
        assert!(ended.is_some_and(|count| count < 20_000), "{ended:?}");
        let work = WorkMeter::new(1 << 20);
        let read = |length: u64| verified.wants(&stored(1 << 30, length), &work);
        assert!((1..4096).any(|length| read(length).is_err()), "{}", work.spent());
    }

    #[test]
    fn what_full_tables_forget_is_work() {
        let verified = Verified::new(&Budget::new(16 << 20), 1 << 40);
        let work = WorkMeter::new(u64::MAX);
        // Blocks of 512 bytes, each in a unit of its own: an entry each.
        for number in 0..100_000u64 {
            assert!(verified.wants(&stored(number << STORED_UNIT_LOG, 512), &work).unwrap());
        }
        for number in 0..200_000u64 {
            assert!(verified.wants(&cluster(number * 4096, 4096), &work).unwrap());
        }
        let read = [stored(1 << 39, (16 << 20) + 1), cluster(1 << 39, 4096)];
        for (extent, bytes) in read.into_iter().zip([4 << 20, 64 << 10]) {
            let before = work.spent();
            for _ in 0..3 {
                assert!(verified.wants(&extent, &work).unwrap());
            }
            let spent = work.spent() - before;
            assert!((3 * bytes..3 * bytes + 1024).contains(&spent), "{spent}");
        }
        // What is in the tables is not read again.
        let before = work.spent();
        assert!(!verified.wants(&stored(1 << STORED_UNIT_LOG, 512), &work).unwrap());
        assert!(!verified.wants(&cluster(4096, 4096), &work).unwrap());
        assert_eq!(work.spent() - before, 2 * EXTENT_WORK);
    }

    #[test]
    fn looking_up_long_ranges_is_work() {
        let verified = Verified::new(&Budget::new(256 << 20), 1 << 40);
        let work = WorkMeter::new(1 << 20);
        let range = |number: u64| stored(number * 4096, (1 << 30) - number * 4096);
        assert!(verified.wants(&range(0), &work).unwrap());
        let ended = (1..4000).find(|number| verified.wants(&range(*number), &work).is_err());
        assert!(ended.is_some_and(|number| number > 100), "{ended:?}");
    }

    #[test]
    fn a_range_that_does_not_fit_takes_no_memory() {
        let budget = Budget::new(16 << 20);
        let verified = Verified::new(&budget, 1 << 62);
        let work = WorkMeter::new(u64::MAX);
        // The first one would take 40 MiB.
        for bytes in [1 << 40, (1 << 40) + 1, 1 << 61] {
            let before = work.spent();
            assert!(verified.wants(&stored(0, bytes), &work).unwrap());
            let expected = EXTENT_WORK + bytes / LOOKUP_SHARE + bytes / COPY_SHARE;
            assert_eq!((work.spent() - before, budget.used_bytes()), (expected, 0));
        }
        // What fits is still remembered.
        assert!(verified.wants(&stored(0, 4096), &work).unwrap());
        assert!(!verified.wants(&stored(0, 4096), &work).unwrap());
    }

    #[test]
    fn full_tables_forget_what_comes_later() {
        let budget = Budget::new(16 << 20);
        let verified = Verified::new(&budget, 1 << 40);
        let work = WorkMeter::new(u64::MAX);
        for number in 0..200_000u64 {
            assert!(verified.wants(&cluster(number * 4096, 4096), &work).unwrap());
        }
        assert!(budget.used_bytes() <= 2 << 20, "{}", budget.used_bytes());
        assert!(!verified.wants(&cluster(4096, 4096), &work).unwrap());
    }
}

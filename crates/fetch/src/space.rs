//! The space of the cache on the disk: who wants a chunk stored reserves its bytes, and what was not
//! used for the longest time is evicted first. The steps E1 to E5 are in docs/remote.md.

use std::collections::HashMap;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock, Weak};
use std::time::{Duration, SystemTime};

use ferrofs_remote::cache::{
    CacheDirectory, CacheKey, ChunkLayout, DiskSpace, ObjectIdentity, ObjectWriter,
};
use ferrofs_remote::protocol::{PruneReport, PruneRequest};

use crate::blocking::blocking;
use crate::lock::lock;

/// The least limit, in bytes: a chunk for each of 32 readers, so that none waits for a chunk that
/// the others evict before it is read.
pub(crate) const LIMIT_MIN: u64 = 32 << 20;
/// Without a limit: a tenth of the disk, since a cache is not what a disk is bought for, and at most
/// this: more images than most machines run.
const LIMIT_DEFAULT_MAX: u64 = 32 << 30;
/// Bytes of the disk that stay free, whatever the limit is: a twentieth, at most this. A disk that
/// is full makes other programs fail, and file systems slow.
const FREE_MAX: u64 = 1 << 30;
/// A pass frees a sixteenth of the limit, at most this: looking for what to evict costs more than
/// evicting it.
const SLACK_MAX: u64 = 256 << 20;
/// Bytes of the disk are counted in blocks.
const BLOCK: u64 = 4096;

/// The space of a cache.
#[derive(Debug)]
pub(crate) struct CacheSpace {
    cache: Arc<CacheDirectory>,
    account: Mutex<Account>,
    /// The limits that clients have asked for, by connection.
    requested_limits: Mutex<HashMap<u64, u64>>,
    default_limit: u64,
    keep_free: u64,
    /// Objects that have a writer. Held while one is opened or removed.
    open: Mutex<HashMap<CacheKey, Weak<DiskObject>>>,
    /// Held by the only pass.
    pass: Mutex<()>,
    evicted_bytes: AtomicU64,
    /// The latest time of a use, in microseconds.
    latest: AtomicU64,
}

#[derive(Debug, Default)]
struct Account {
    /// Bytes on the disk.
    used: u64,
    /// Bytes that are being written.
    pending: u64,
    /// Bytes that were written since the last count began, which may have missed them.
    written: u64,
}

/// Bytes that may be written. Dropping it counts them as used.
#[derive(Debug)]
pub(crate) struct Reserved<'s> {
    space: &'s CacheSpace,
    bytes: u64,
}

/// An object of the cache that has a writer.
#[derive(Debug)]
pub(crate) struct DiskObject {
    writer: ObjectWriter,
    space: Arc<CacheSpace>,
    /// When each chunk was used last, in microseconds; 0: before it was opened.
    used_at: Box<[AtomicU64]>,
    /// When it was used last before it was opened.
    used_before: u64,
    /// The file system returns no space of parts of a file.
    is_solid: RwLock<bool>,
}

/// What a pass may evict.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum EvictionScope {
    All,
    /// What frees inodes.
    WholeObjects,
}

/// Something that can be evicted.
#[derive(Debug)]
enum EvictionCandidate {
    Object(CacheKey, u64),
    Chunk(Arc<DiskObject>, u32),
}

impl CacheSpace {
    /// Counts what is there.
    pub(crate) fn new(cache: Arc<CacheDirectory>) -> io::Result<Self> {
        let disk = cache.disk_space()?;
        let space = Self {
            account: Mutex::default(),
            requested_limits: Mutex::default(),
            default_limit: default_limit(&disk),
            keep_free: (disk.total / 20).min(FREE_MAX),
            open: Mutex::default(),
            pass: Mutex::default(),
            evicted_bytes: AtomicU64::new(0),
            latest: AtomicU64::new(0),
            cache,
        };
        space.count()?;
        // Only opening without a server needs them.
        space.cache.trim_locations().ok();
        Ok(space)
    }

    pub(crate) fn cache(&self) -> &CacheDirectory {
        &self.cache
    }

    /// The limit now.
    pub(crate) fn limit(&self) -> u64 {
        let requested = lock(&self.requested_limits);
        requested.values().min().map_or(self.default_limit, |limit| (*limit).max(LIMIT_MIN))
    }

    /// A client wants the cache to take at most `limit` bytes, until it is gone.
    pub(crate) fn set_limit(&self, client: u64, limit: Option<u64>) {
        match limit {
            Some(limit) => lock(&self.requested_limits).insert(client, limit),
            None => lock(&self.requested_limits).remove(&client),
        };
        // What does not fit is evicted when something is stored next, if not now.
        let account = lock(&self.account);
        let is_over = account.used > self.limit();
        drop(account);
        if is_over {
            self.evict_to_fit(0).ok();
        }
    }

    /// Bytes on the disk, and bytes that were evicted.
    pub(crate) fn usage(&self) -> (u64, u64) {
        (lock(&self.account).used, self.evicted_bytes.load(Ordering::Relaxed))
    }

    /// The time of a use that is now: later than that of the last one, also if the clock was set back.
    fn time_of_use(&self) -> u64 {
        let now = micros(SystemTime::now());
        let next = |latest: u64| now.max(latest.saturating_add(1));
        // Relaxed: it decides only what is evicted first.
        let latest =
            self.latest.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |at| Some(next(at)));
        next(latest.unwrap_or_default())
    }

    /// Opens an object for its only writer.
    pub(crate) fn open(
        self: &Arc<Self>,
        identity: &ObjectIdentity,
        layout: ChunkLayout,
        first_generation: u32,
    ) -> io::Result<Arc<DiskObject>> {
        // Most likely, there is no inode left.
        let scope = EvictionScope::WholeObjects;
        self.with_room(layout.bytes_of(0).end, scope, || {
            self.try_open(identity, layout, first_generation)
        })
    }

    /// Writes something; once more after an eviction if the disk refuses it although the bytes should fit: the quota of a
    /// user is used up, or there is no inode left.
    fn with_room<T>(
        &self,
        bytes: u64,
        scope: EvictionScope,
        write: impl Fn() -> io::Result<T>,
    ) -> io::Result<T> {
        let evicted = self.evicted_bytes.load(Ordering::Relaxed);
        match write() {
            Err(error) if is_full(&error) => {
                match blocking(|| self.evict_more(bytes, scope, evicted))? {
                    true => write(),
                    false => Err(error),
                }
            }
            other => other,
        }
    }

    fn try_open(
        self: &Arc<Self>,
        identity: &ObjectIdentity,
        layout: ChunkLayout,
        first_generation: u32,
    ) -> io::Result<Arc<DiskObject>> {
        let mut open = lock(&self.open);
        let key = identity.key();
        if let Some(object) = open.get(&key).and_then(Weak::upgrade) {
            // An object has one writer, and its files have one length.
            return match object.writer.layout().length() == layout.length() {
                true => Ok(object),
                false => Err(io::ErrorKind::AlreadyExists.into()),
            };
        }
        let used_before = self.cache.entry(&key).map_or(0, |entry| micros(entry.last_used));
        // The identity, and the first block of the index.
        let _files = Reserved::beyond(self, 2 * BLOCK);
        let writer = self.cache.writer(identity, layout, first_generation)?;
        // A file system without holes keeps the space until the object is removed.
        let is_solid = writer.reclaim().is_err();
        let object = Arc::new(DiskObject {
            used_at: (0..layout.count()).map(|_| AtomicU64::new(0)).collect(),
            writer,
            space: Arc::clone(self),
            used_before,
            is_solid: RwLock::new(is_solid),
        });
        open.retain(|_, object| object.strong_count() > 0);
        open.insert(key, Arc::downgrade(&object));
        Ok(object)
    }

    /// Keeps the chunk index of an open object beside it.
    pub(crate) fn keep_chunk_index(&self, key: &CacheKey, bytes: &[u8]) -> io::Result<()> {
        if self.cache.has_chunk_index(key, bytes) {
            return Ok(());
        }
        let length = bytes.len() as u64;
        let _reserved = self.reserve(length)?;
        let write = || self.cache.keep_chunk_index(key, bytes);
        self.with_room(length, EvictionScope::All, write)
    }

    /// Reserves bytes of the disk; evicts what was not used for the longest time if they do not fit.
    pub(crate) fn reserve(&self, bytes: u64) -> io::Result<Reserved<'_>> {
        let bytes = bytes.next_multiple_of(BLOCK);
        loop {
            if let Some(reserved) = self.try_reserve(bytes)? {
                return Ok(reserved);
            }
            // It waits for the disk, and others go on meanwhile.
            let freed = tokio::task::block_in_place(|| self.evict_to_fit(bytes))?;
            if freed == 0 {
                return Err(io::ErrorKind::StorageFull.into());
            }
        }
    }

    fn try_reserve(&self, bytes: u64) -> io::Result<Option<Reserved<'_>>> {
        let limit = self.limit();
        let available = self.cache.disk_space()?.available;
        let mut account = lock(&self.account);
        let taken = account.used.saturating_add(account.pending).saturating_add(bytes);
        let needed = account.pending.saturating_add(bytes).saturating_add(self.keep_free);
        if taken > limit || needed > available {
            return Ok(None);
        }
        account.pending += bytes;
        Ok(Some(Reserved { space: self, bytes }))
    }

    /// Counts the bytes on the disk (E1). One thread at a time counts. What others write meanwhile
    /// may count twice until the next time.
    fn count(&self) -> io::Result<()> {
        lock(&self.account).written = 0;
        let found: u64 = self.cache.list()?.iter().map(|entry| entry.used_bytes).sum();
        let mut account = lock(&self.account);
        account.used = found.saturating_add(account.written);
        Ok(())
    }

    /// One pass: evicts until `bytes` more fit, and some more (E1 to E5). Returns the bytes that
    /// were freed; 1 if others have made the room meanwhile.
    fn evict_to_fit(&self, bytes: u64) -> io::Result<u64> {
        let _pass = lock(&self.pass);
        self.count()?;
        let limit = self.limit();
        let (taken, pending) = {
            let account = lock(&self.account);
            (account.used.saturating_add(account.pending), account.pending)
        };
        let available = self.cache.disk_space()?.available;
        let over = taken.saturating_add(bytes).saturating_sub(limit);
        let short =
            pending.saturating_add(bytes).saturating_add(self.keep_free).saturating_sub(available);
        let min_bytes = over.max(short);
        if min_bytes == 0 {
            return Ok(1);
        }
        let mut report = PruneReport::default();
        self.evict(min_bytes.saturating_add(self.slack()), EvictionScope::All, &mut report)?;
        Ok(report.freed_bytes)
    }

    /// Evicts `bytes` and some more, whatever the account says, unless others have evicted since the counter was
    /// `evicted`. False if there was nothing to evict.
    fn evict_more(&self, bytes: u64, scope: EvictionScope, evicted: u64) -> io::Result<bool> {
        let _pass = lock(&self.pass);
        if self.evicted_bytes.load(Ordering::Relaxed) != evicted {
            return Ok(true);
        }
        self.count()?;
        let mut report = PruneReport::default();
        self.evict(bytes.saturating_add(self.slack()), scope, &mut report)?;
        Ok(report.freed_bytes > 0)
    }

    /// What a pass frees beyond what is needed.
    fn slack(&self) -> u64 {
        (self.limit() / 16).min(SLACK_MAX)
    }

    /// Evicts at least `wanted` bytes, if there are so many (E2 to E5).
    fn evict(&self, wanted: u64, scope: EvictionScope, report: &mut PruneReport) -> io::Result<()> {
        for (_, candidate) in self.candidates(scope)? {
            if report.freed_bytes >= wanted {
                break;
            }
            match candidate {
                EvictionCandidate::Object(key, bytes) => self.remove(&key, bytes, report),
                EvictionCandidate::Chunk(object, number) => {
                    let freed = object.discard(number);
                    report.chunks += u64::from(freed > 0);
                    self.freed(freed, report);
                }
            }
        }
        Ok(())
    }

    /// Everything of the scope, what was not used for the longest time first (E2).
    fn candidates(&self, scope: EvictionScope) -> io::Result<Vec<(u64, EvictionCandidate)>> {
        let open: HashMap<CacheKey, Arc<DiskObject>> = lock(&self.open)
            .iter()
            .filter_map(|(key, object)| Some((*key, object.upgrade()?)))
            .collect();
        let mut found = Vec::new();
        for entry in self.cache.list()? {
            if !open.contains_key(&entry.key) {
                let candidate = EvictionCandidate::Object(entry.key, entry.used_bytes);
                found.push((micros(entry.last_used), candidate));
            }
        }
        for object in open.into_values().filter(|_| scope == EvictionScope::All) {
            if *object.is_solid.read().unwrap_or_else(PoisonError::into_inner) {
                continue;
            }
            for number in object.writer.present_chunks()? {
                let used = object.last_use(number);
                found.push((used, EvictionCandidate::Chunk(Arc::clone(&object), number)));
            }
        }
        found.sort_by_key(|(used, _)| *used);
        Ok(found)
    }

    /// Removes a whole object, unless it has been opened (E3).
    fn remove(&self, key: &CacheKey, bytes: u64, report: &mut PruneReport) {
        let open = lock(&self.open);
        if open.get(key).is_some_and(|object| object.strong_count() > 0) {
            return;
        }
        // Something that cannot be removed stays counted.
        if self.cache.remove(key).is_ok() {
            report.objects += 1;
            self.freed(bytes, report);
        }
    }

    fn freed(&self, bytes: u64, report: &mut PruneReport) {
        report.freed_bytes += bytes;
        self.evicted_bytes.fetch_add(bytes, Ordering::Relaxed);
        let mut account = lock(&self.account);
        account.used = account.used.saturating_sub(bytes);
    }

    /// `ferrofs cache prune`.
    pub(crate) fn prune(&self, what: PruneRequest) -> io::Result<PruneReport> {
        let _pass = lock(&self.pass);
        self.count()?;
        let mut report = PruneReport::default();
        let age = match what {
            PruneRequest::Unused => Some(Duration::ZERO),
            PruneRequest::OlderThan(seconds) => Some(Duration::from_secs(seconds)),
            PruneRequest::DownTo(limit) => {
                let used = lock(&self.account).used;
                if used > limit {
                    self.evict(used - limit, EvictionScope::All, &mut report)?;
                }
                None
            }
        };
        if let Some(age) = age {
            let now = SystemTime::now();
            for entry in self.cache.list()? {
                // A time in the future was never used before now.
                let unused = now.duration_since(entry.last_used).unwrap_or_default();
                if unused >= age {
                    self.remove(&entry.key, entry.used_bytes, &mut report);
                }
            }
        }
        self.count()?;
        report.used_bytes = lock(&self.account).used;
        Ok(report)
    }

    /// Discards chunks that a client has found damaged; all of an object whose index is.
    pub(crate) fn discard(
        &self,
        key: &CacheKey,
        chunks: &[(u32, u32)],
        first_generation: u32,
    ) -> io::Result<PruneReport> {
        let _pass = lock(&self.pass);
        let mut report = PruneReport::default();
        let open = lock(&self.open);
        if let Some(object) = open.get(key).and_then(Weak::upgrade) {
            drop(open);
            for (start, end) in chunks {
                object.writer.discard(*start..*end)?;
                report.chunks += u64::from(end.saturating_sub(*start));
            }
        } else if chunks.is_empty() {
            drop(open);
            let bytes = self.cache.entry(key).map_or(0, |entry| entry.used_bytes);
            self.remove(key, bytes, &mut report);
        } else {
            // `open` is held, so that nobody opens the object meanwhile.
            let writer = self.cache.open_writer(key, first_generation)?;
            for (start, end) in chunks {
                writer.discard(*start..*end)?;
                report.chunks += u64::from(end.saturating_sub(*start));
            }
            drop(open);
        }
        self.count()?;
        report.used_bytes = lock(&self.account).used;
        Ok(report)
    }
}

impl<'s> Reserved<'s> {
    /// Bytes that are written whether they fit or not.
    fn beyond(space: &'s CacheSpace, bytes: u64) -> Self {
        lock(&space.account).pending += bytes;
        Self { space, bytes }
    }
}

impl Drop for Reserved<'_> {
    fn drop(&mut self) {
        let mut account = lock(&self.space.account);
        account.pending = account.pending.saturating_sub(self.bytes);
        account.used = account.used.saturating_add(self.bytes);
        account.written = account.written.saturating_add(self.bytes);
    }
}

impl DiskObject {
    pub(crate) fn writer(&self) -> &ObjectWriter {
        &self.writer
    }

    /// Stores a chunk, when there is space for it.
    pub(crate) fn store(&self, number: u32, bytes: &[u8]) -> io::Result<()> {
        // First: a pass of another thread sees the chunk as soon as it is stored, and would evict it as the oldest.
        self.set_used(number);
        // And a block of the index.
        let length = bytes.len() as u64 + BLOCK;
        let _reserved = self.space.reserve(length)?;
        self.space.with_room(length, EvictionScope::All, || self.writer.store(number, bytes))
    }

    /// A reader uses a chunk.
    pub(crate) fn set_used(&self, number: u32) {
        if let Some(used) = self.used_at.get(number as usize) {
            // Relaxed: it decides only what is evicted first.
            used.store(self.space.time_of_use(), Ordering::Relaxed);
        }
    }

    fn last_use(&self, number: u32) -> u64 {
        let used = self.used_at.get(number as usize);
        let used = used.map_or(0, |used| used.load(Ordering::Relaxed));
        if used == 0 { self.used_before } else { used }
    }

    /// Evicts a chunk (E4, E5); returns the bytes that it took.
    fn discard(&self, number: u32) -> u64 {
        if self.writer.discard(number..number + 1).is_err() {
            *self.is_solid.write().unwrap_or_else(PoisonError::into_inner) = true;
            return 0;
        }
        let bytes = self.writer.layout().bytes_of(number);
        (bytes.end - bytes.start).next_multiple_of(BLOCK)
    }
}

impl Drop for DiskObject {
    fn drop(&mut self) {
        // It was in use until now. If it is gone, there is nothing to record.
        self.space.cache.touch(self.writer.key()).ok();
    }
}

/// Whether a disk, or the quota of a user, has no bytes or no inodes left.
fn is_full(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}

fn default_limit(disk: &DiskSpace) -> u64 {
    (disk.total / 10).clamp(LIMIT_MIN, LIMIT_DEFAULT_MAX)
}

fn micros(time: SystemTime) -> u64 {
    let since = time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_micros()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    struct World {
        space: Arc<CacheSpace>,
        _directory: tempfile::TempDir,
    }

    fn world() -> World {
        let directory = tempfile::tempdir().unwrap();
        let cache = CacheDirectory::open(&directory.path().join("cache")).unwrap();
        let space = CacheSpace::new(Arc::new(cache)).unwrap();
        World { space: Arc::new(space), _directory: directory }
    }

    impl World {
        fn object(&self, name: &str, chunks: u64) -> Arc<DiskObject> {
            let identity = ObjectIdentity::Digest(name.to_owned());
            self.space.open(&identity, ChunkLayout::new(chunks * MIB).unwrap(), 1).unwrap()
        }

        fn on_disk(&self) -> u64 {
            self.space.cache.list().unwrap().iter().map(|entry| entry.used_bytes).sum()
        }
    }

    fn fill(object: &DiskObject, chunks: std::ops::Range<u32>) {
        for number in chunks {
            object.store(number, &vec![7; 1 << 20]).unwrap();
        }
    }

    fn runtime() -> tokio::runtime::Runtime {
        tokio::runtime::Builder::new_multi_thread().worker_threads(1).build().unwrap()
    }

    #[test]
    fn the_default_is_a_tenth_of_the_disk_within_bounds() {
        let limit = |total| default_limit(&DiskSpace { total, available: 0 });
        assert_eq!(limit(64 << 20), LIMIT_MIN);
        assert_eq!(limit(100 << 30), 10 << 30);
        assert_eq!(limit(100 << 40), LIMIT_DEFAULT_MAX);
    }

    #[test]
    fn the_smallest_limit_of_the_clients_counts_while_they_are_there() {
        let world = world();
        let space = &world.space;
        space.set_limit(1, Some(90 * MIB));
        space.set_limit(2, Some(50 * MIB));
        space.set_limit(3, None);
        assert_eq!(space.limit(), 50 * MIB);
        space.set_limit(2, None);
        assert_eq!(space.limit(), 90 * MIB);
        space.set_limit(1, Some(5));
        assert_eq!(space.limit(), LIMIT_MIN);
        space.set_limit(1, None);
        assert_eq!(space.limit(), space.default_limit);
    }

    #[test]
    fn closed_objects_and_chunks_go_in_the_order_of_their_last_use() {
        let runtime = runtime();
        let _inside = runtime.enter();
        let world = world();
        world.space.set_limit(1, Some(LIMIT_MIN));
        fill(&world.object("closed", 10), 0..10);
        let open = world.object("open", 60);
        fill(&open, 0..20);
        assert_eq!(world.space.cache.list().unwrap().len(), 2);
        fill(&open, 20..30);
        open.set_used(0);
        fill(&open, 30..50);
        assert!(world.on_disk() <= LIMIT_MIN, "{}", world.on_disk());
        assert_eq!(world.space.cache.list().unwrap().len(), 1, "the closed one went first");
        let present = open.writer.present_chunks().unwrap();
        assert!(present.contains(&0) && !present.contains(&1), "{present:?}");
        assert_eq!(present.last(), Some(&49));
        assert!(present.len() >= 28, "{present:?}");
    }

    #[test]
    fn a_lower_limit_evicts_at_once_and_pruning_spares_what_is_open() {
        let world = world();
        let runtime = runtime();
        let _inside = runtime.enter();
        let open = world.object("open", 50);
        fill(&open, 0..50);
        fill(&world.object("closed", 5), 0..5);
        assert!(world.on_disk() >= 55 * MIB);
        world.space.set_limit(1, Some(40 * MIB));
        assert!(world.on_disk() <= 40 * MIB);
        let old = world.space.prune(PruneRequest::OlderThan(3600)).unwrap();
        assert_eq!(old.objects, 0);
        let unused = world.space.prune(PruneRequest::Unused).unwrap();
        assert_eq!((unused.objects, unused.freed_bytes >= 5 * MIB), (1, true));
        let down = world.space.prune(PruneRequest::DownTo(0)).unwrap();
        assert!(down.used_bytes < MIB && down.chunks > 0, "{down:?}");
        assert!(open.writer.present_chunks().unwrap().is_empty());
        fill(&open, 3..4);
        assert_eq!(open.writer.present_chunks().unwrap(), [3]);
        let discarded = world.space.discard(open.writer.key(), &[(3, 4)], 9).unwrap();
        assert_eq!(discarded.chunks, 1);
        assert!(open.writer.present_chunks().unwrap().is_empty());
    }

    #[test]
    fn an_object_that_is_opened_again_was_used_when_it_was_closed() {
        let world = world();
        let runtime = runtime();
        let _inside = runtime.enter();
        assert_eq!(world.object("new", 1).used_before, 0);
        let object = world.object("one", 3);
        fill(&object, 0..3);
        let (key, stored) = (*object.writer.key(), object.last_use(1));
        drop(object);
        let closed = micros(world.space.cache.entry(&key).unwrap().last_used);
        let again = world.object("one", 3);
        assert_eq!(again.last_use(1), closed);
        assert!(closed.saturating_add(1_000_000) > stored, "{closed} {stored}");
    }

    #[test]
    fn what_a_fetcher_before_has_left_is_counted() {
        let world = world();
        let runtime = runtime();
        let _inside = runtime.enter();
        fill(&world.object("one", 20), 0..20);
        let next = CacheSpace::new(Arc::clone(&world.space.cache)).unwrap();
        assert!(next.usage().0 >= 20 * MIB);
    }

    /// What is stored then was evicted before everything else, and later all uses had one time.
    #[test]
    fn a_clock_that_is_set_back_makes_no_use_older() {
        let runtime = runtime();
        let _inside = runtime.enter();
        let world = world();
        let object = world.object("one", 2);
        fill(&object, 0..1);
        let later = micros(SystemTime::now()) + 3_600_000_000;
        world.space.latest.store(later, Ordering::Relaxed);
        fill(&object, 1..2);
        assert!(object.last_use(0) < later && object.last_use(1) > later);
        object.set_used(0);
        assert!(object.last_use(0) > object.last_use(1));
    }

    /// A pass between both evicted it as the oldest.
    #[test]
    fn a_chunk_has_a_time_of_use_when_it_can_be_found() {
        let runtime = runtime();
        let _inside = runtime.enter();
        let world = world();
        for number in 0..300 {
            let identity = ObjectIdentity::Digest(number.to_string());
            let layout = ChunkLayout::new(10).unwrap();
            let object = world.space.open(&identity, layout, 1).unwrap();
            std::thread::scope(|scope| {
                let finder = scope.spawn(|| {
                    let deadline = std::time::Instant::now() + Duration::from_secs(10);
                    while !object.writer.is_present(0) {
                        assert!(std::time::Instant::now() < deadline, "it was not stored");
                        std::hint::spin_loop();
                    }
                    object.last_use(0)
                });
                object.store(0, &[7; 10]).unwrap();
                assert_ne!(finder.join().unwrap(), 0, "{number}");
            });
        }
    }

    /// Such a cache kept what it had, and stored nothing new.
    #[test]
    fn a_quota_that_is_used_up_evicts_once() {
        let runtime = runtime();
        let _inside = runtime.enter();
        let world = world();
        let calls = AtomicU64::new(0);
        let write_for = |scope, kind: Option<io::ErrorKind>| {
            calls.store(0, Ordering::Relaxed);
            let write = || match (calls.fetch_add(1, Ordering::Relaxed), kind) {
                (0, Some(kind)) => Err(kind.into()),
                _ => Ok(()),
            };
            world.space.with_room(MIB, scope, write)
        };
        let write = |kind| write_for(EvictionScope::All, kind);
        let full = io::ErrorKind::QuotaExceeded;
        assert_eq!(write(Some(full)).unwrap_err().kind(), full, "there is nothing to evict");
        for kind in [full, io::ErrorKind::StorageFull] {
            fill(&world.object("closed", 5), 0..5);
            write(Some(kind)).unwrap();
            assert_eq!(calls.load(Ordering::Relaxed), 2);
            assert!(world.on_disk() < MIB, "{}", world.on_disk());
        }
        fill(&world.object("closed", 5), 0..5);
        write(None).unwrap();
        write(Some(io::ErrorKind::PermissionDenied)).unwrap_err();
        assert!(world.on_disk() >= 5 * MIB);
        // A chunk of an open object has no inode of its own.
        let open = world.object("closed", 5);
        write_for(EvictionScope::WholeObjects, Some(full)).unwrap_err();
        assert_eq!(open.writer.present_chunks().unwrap().len(), 5);
        write(Some(full)).unwrap();
        assert!(open.writer.present_chunks().unwrap().len() < 5);
    }
}

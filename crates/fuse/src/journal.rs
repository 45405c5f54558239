//! The journal of a session that survives its process (docs/survival.md): the buffers into which listeners read requests,
//! in memory that a holder shares with the servers that follow each other. It knows which requests were in flight when a
//! server died, which of them are suspected to kill servers, and which are banned. One process uses it at a time. Used by
//! `session`.
#![allow(unsafe_code, reason = "memory that is shared with other processes is mapped and sliced")]

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use rustix::fs::{
    FlockOperation, MemfdFlags, SealFlags, fcntl_add_seals, fcntl_get_seals, fcntl_lock, fstat,
    ftruncate, memfd_create,
};
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

use crate::init::REQUEST_BYTES;
use crate::request::{InHeader, opcode, read_prefix};
use crate::request_slot::MAX_SPARE_LISTENERS;

/// Set in the number of a request that the kernel sends again.
pub(crate) const RESENT: u64 = 1 << 63;
/// Bytes before the buffer of a slot: the number of the request that was handled last, and what keeps the buffer on cache
/// lines of its own.
const SLOT_HEAD_BYTES: usize = 64;
/// What keeps a process that shares the memory from taking it away.
const SIZE_SEALS: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW);
const SLOT_BYTES: usize = SLOT_HEAD_BYTES + REQUEST_BYTES;
/// Suspects and banned requests that are remembered: more than requests are in flight at a time on most machines. Suspects
/// beyond it get their turn when others are answered, and a further banned request takes the place of the oldest one.
const REMEMBERED_MAX: usize = 64;
/// Banned requests of one operation on one node after which all of them fail. One is too few, except for reads: a damaged inode
/// makes the lookup of its name crash, and the other names of the directory are good. Without a limit, a directory that is
/// damaged itself would use the whole list.
const BANNED_ALIKE_MAX: usize = 4;
/// Deaths in a row, by a crash or in any way, after which a request that was alone in flight is banned.
const CRASHES_MAX: u64 = 2;
const DEATHS_MAX: u64 = 8;
/// Words of a suspect: operation and node, arguments, crashes, deaths.
const SUSPECT_WORDS: usize = 5;
const CRASHES_WORD: usize = 3;
const DEATHS_WORD: usize = 4;
/// Words of the head before the lists: the numbers of suspects and of banned requests, one that older versions use, and the
/// number of the server that began to read last.
const READING_WORD: usize = 3;
const LISTS_WORD: usize = 4;
/// The word behind the lists of suspects and of banned requests: the number of the last server.
const SERVER_WORD: usize = LISTS_WORD + REMEMBERED_MAX * SUSPECT_WORDS * 2;
const HEAD_WORDS: usize = SERVER_WORD + 1;
const HEAD_BYTES: usize = (HEAD_WORDS * 8).next_multiple_of(4096);

/// How a server ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ServerEnd {
    /// Somebody killed it, or the system, for lack of memory.
    Killed,
    /// It ended by itself: by a signal of its own code, or by an exit.
    Crashed,
    /// It was asked to make place for another server.
    Retired,
}

/// What a request is, without its number: the same request of another caller is equal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RequestKey {
    operation: u64,
    node: u64,
    /// A hash of the arguments.
    arguments: u64,
}

impl RequestKey {
    /// The key of a request in its bytes.
    pub(crate) fn of(request: &[u8]) -> Option<Self> {
        let (header, body) = read_prefix::<InHeader>(request)?;
        let length = usize::try_from(header.len).ok()?.saturating_sub(size_of::<InHeader>());
        let body = body.get(..length.min(body.len())).unwrap_or_default();
        // FNV-1a: two requests of a node with one hash would only be suspected together.
        let arguments = body.iter().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
            (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
        });
        Some(Self { operation: u64::from(header.opcode), node: header.node, arguments })
    }

    /// How many banned requests of its operation and node make a request with this key fail: of a file, all reads at once.
    fn alike_max(&self) -> usize {
        if self.operation == u64::from(opcode::READ) { 1 } else { BANNED_ALIKE_MAX }
    }
}

/// A request that was in flight when a server died.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct InFlight {
    /// The index of the slot, and so of the channel that the request came from.
    pub(crate) slot: usize,
    pub(crate) unique: u64,
    pub(crate) key: RequestKey,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Suspect {
    key: RequestKey,
    crashes: u64,
    deaths: u64,
}

/// What a successor does with the requests of its predecessor.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Takeover {
    pub(crate) in_flight: Vec<InFlight>,
    /// Whether one listener handles the resent requests first, one after the other.
    pub(crate) needs_trial: bool,
    /// The nodes of requests that were banned now.
    pub(crate) newly_banned: Vec<u64>,
}

/// The journal. The processes that share it are the holder, which only keeps it, and one server.
#[derive(Debug)]
pub struct RequestJournal {
    file: OwnedFd,
    memory: NonNull<u8>,
    bytes: usize,
    slots: usize,
    is_taken: Vec<AtomicBool>,
}

// SAFETY: the memory stays mapped as long as the value lives. Words are accessed by atomics only, and a buffer by the one
// `JournalSlot` that `slot` gives out for it (`is_taken`).
unsafe impl Send for RequestJournal {}
// SAFETY: as above.
unsafe impl Sync for RequestJournal {}

impl RequestJournal {
    /// An empty journal for this many listeners.
    ///
    /// # Errors
    /// The system has no memory.
    pub fn new(listeners: usize) -> Result<Self, Errno> {
        let (_, bytes) = Self::sizes(listeners)?;
        let file =
            memfd_create(c"ferrofs-journal", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
        ftruncate(&file, u64::try_from(bytes).map_err(|_| Errno::NOMEM)?)?;
        fcntl_add_seals(&file, SIZE_SEALS)?;
        Self::of_file(file, listeners)
    }

    /// The journal in the memory of another process, for as many listeners.
    ///
    /// # Errors
    /// It has another size, or its size can change.
    pub fn of_file(file: OwnedFd, listeners: usize) -> Result<Self, Errno> {
        let (slots, bytes) = Self::sizes(listeners)?;
        let has_size = u64::try_from(fstat(&file)?.st_size) == u64::try_from(bytes);
        if !has_size || !fcntl_get_seals(&file)?.contains(SIZE_SEALS) {
            return Err(Errno::INVAL);
        }
        let (protection, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED);
        // SAFETY: a new mapping at an address that the kernel chooses; it aliases nothing of this process. The file has
        // all its bytes and cannot shrink (checked above), so that no access of it fails.
        let memory = unsafe { mmap(std::ptr::null_mut(), bytes, protection, flags, &file, 0)? };
        let memory = NonNull::new(memory.cast()).ok_or(Errno::NOMEM)?;
        let is_taken = (0..slots).map(|_| AtomicBool::new(false)).collect();
        Ok(Self { file, memory, bytes, slots, is_taken })
    }

    /// Slots and bytes for this many listeners.
    fn sizes(listeners: usize) -> Result<(usize, usize), Errno> {
        let slots = listeners.saturating_add(MAX_SPARE_LISTENERS);
        let bytes = slots.checked_mul(SLOT_BYTES).and_then(|bytes| bytes.checked_add(HEAD_BYTES));
        Ok((slots, bytes.ok_or(Errno::NOMEM)?))
    }

    /// Before KS2: waits until no other process serves by this journal, and writes down the number of this server. It is a
    /// lock of the process on the file of the journal, which its end removes; other descriptors of the file must stay open
    /// until then.
    pub(crate) fn claim(&self, server: u64) {
        // Refused only for lack of memory. Then the order of steps KD1 and KD3 is what keeps servers apart.
        while fcntl_lock(&self.file, FlockOperation::LockExclusive) == Err(Errno::INTR) {}
        self.word(SERVER_WORD).store(server, Ordering::SeqCst);
    }

    /// The number of the last server; 0 without one.
    #[must_use]
    pub fn last_server(&self) -> u64 {
        self.word(SERVER_WORD).load(Ordering::SeqCst)
    }

    /// Its memory, as a file.
    #[must_use]
    pub fn descriptor(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    /// The slot of a listener; `None` if there is none, or it is taken.
    pub(crate) fn slot(&self, index: usize) -> Option<JournalSlot<'_>> {
        // Acquire: pairs with the release in `drop`, so that the former owner is done with the buffer.
        if self.is_taken.get(index)?.swap(true, Ordering::Acquire) {
            return None;
        }
        Some(JournalSlot { journal: self, index })
    }

    /// KS2 of docs/survival.md: what was in flight, and what follows from it. No listener runs.
    ///
    /// `server` is the number of the one that has ended in this way. The death of a server that had not begun to read says
    /// nothing about requests: it handled none.
    pub(crate) fn examine(&self, server: u64, end: ServerEnd) -> Takeover {
        // Cleared first: a process that dies here counts a death too little, never one too much.
        let has_read = self.word(READING_WORD).swap(0, Ordering::SeqCst) == server;
        let end = if has_read { end } else { ServerEnd::Retired };
        let in_flight: Vec<InFlight> =
            (0..self.slots).filter_map(|slot| self.in_flight(slot)).collect();
        let before = self.suspects();
        let mut suspects: Vec<Suspect> = Vec::new();
        let mut newly_banned = Vec::new();
        for request in in_flight.iter().take(REMEMBERED_MAX) {
            let known = before.iter().find(|suspect| suspect.key == request.key);
            let mut suspect =
                known.copied().unwrap_or(Suspect { key: request.key, crashes: 0, deaths: 0 });
            suspect.deaths += u64::from(end != ServerEnd::Retired);
            suspect.crashes += u64::from(end == ServerEnd::Crashed);
            let is_worst = suspect.crashes >= CRASHES_MAX || suspect.deaths >= DEATHS_MAX;
            if is_worst && in_flight.len() == 1 && end != ServerEnd::Retired {
                self.ban(&suspect);
                newly_banned.push(request.key.node);
            } else {
                suspects.push(suspect);
            }
        }
        self.store_list(0, &suspects);
        let is_suspicious = |suspect: &Suspect| suspect.crashes > 0 || suspect.deaths > 1;
        let needs_trial = suspects.iter().any(is_suspicious);
        Takeover { in_flight, needs_trial, newly_banned }
    }

    /// Before KS5: the listeners of the server with this number are about to read.
    pub(crate) fn begin_reading(&self, server: u64) {
        self.word(READING_WORD).store(server, Ordering::SeqCst);
    }

    /// KS3: a request is not in flight any more.
    pub(crate) fn forget(&self, slot: usize, unique: u64) {
        self.answered(slot).store(unique, Ordering::Relaxed);
    }

    /// A server has handled a request: if it is a suspect, it starts again at no death. A request that kills is never
    /// handled, and one that many callers repeat is in flight in many deaths by chance.
    pub(crate) fn acquit(&self, handled: &RequestKey) {
        for (index, suspect) in self.suspects().into_iter().enumerate() {
            if suspect.key == *handled {
                self.suspect_word(0, index, CRASHES_WORD).store(0, Ordering::Relaxed);
                self.suspect_word(0, index, DEATHS_WORD).store(0, Ordering::Relaxed);
            }
        }
    }

    /// The requests that may be suspected when this server dies.
    pub(crate) fn suspected(&self) -> SuspectedRequests {
        SuspectedRequests(self.suspects().into_iter().map(|suspect| suspect.key).collect())
    }

    /// The banned requests.
    pub(crate) fn banned(&self) -> BannedRequests {
        BannedRequests(self.list(1).into_iter().map(|suspect| suspect.key).collect())
    }

    fn ban(&self, suspect: &Suspect) {
        let mut banned = self.list(1);
        if banned.len() >= REMEMBERED_MAX {
            banned.remove(0);
        }
        banned.push(*suspect);
        self.store_list(1, &banned);
    }

    fn suspects(&self) -> Vec<Suspect> {
        self.list(0)
    }

    fn in_flight(&self, slot: usize) -> Option<InFlight> {
        let answered = self.answered(slot).load(Ordering::Relaxed);
        let request = self.slot(slot)?;
        let (header, _) = read_prefix::<InHeader>(request.bytes())?;
        let is_request =
            !matches!(header.opcode, 0 | opcode::FORGET | opcode::BATCH_FORGET | opcode::INTERRUPT);
        let key = RequestKey::of(request.bytes())?;
        (is_request && header.unique != answered).then_some(InFlight {
            slot,
            unique: header.unique,
            key,
        })
    }

    /// One of the two lists: suspects, and banned requests.
    fn list(&self, which: usize) -> Vec<Suspect> {
        let count = usize::try_from(self.word(which).load(Ordering::Relaxed)).unwrap_or(0);
        (0..count.min(REMEMBERED_MAX))
            .map(|index| {
                let word = |field| self.suspect_word(which, index, field).load(Ordering::Relaxed);
                let key = RequestKey { operation: word(0), node: word(1), arguments: word(2) };
                Suspect { key, crashes: word(CRASHES_WORD), deaths: word(DEATHS_WORD) }
            })
            .collect()
    }

    fn store_list(&self, which: usize, list: &[Suspect]) {
        // A process that dies here leaves a list that is empty or whole.
        self.word(which).store(0, Ordering::SeqCst);
        for (index, suspect) in list.iter().take(REMEMBERED_MAX).enumerate() {
            let Suspect { key, crashes, deaths } = suspect;
            let words = [key.operation, key.node, key.arguments, *crashes, *deaths];
            for (field, word) in words.into_iter().enumerate() {
                self.suspect_word(which, index, field).store(word, Ordering::Relaxed);
            }
        }
        let count = u64::try_from(list.len().min(REMEMBERED_MAX)).unwrap_or(0);
        self.word(which).store(count, Ordering::SeqCst);
    }

    fn suspect_word(&self, which: usize, index: usize, field: usize) -> &AtomicU64 {
        self.word(LISTS_WORD + (which * REMEMBERED_MAX + index) * SUSPECT_WORDS + field)
    }

    fn word(&self, index: usize) -> &AtomicU64 {
        assert!(index < HEAD_WORDS, "a word of the head");
        // SAFETY: the head has this word, aligned as the mapping is to a page. It is only accessed as an atomic.
        unsafe { self.memory.cast::<AtomicU64>().add(index).as_ref() }
    }

    fn answered(&self, slot: usize) -> &AtomicU64 {
        assert!(slot < self.slots, "a slot of the journal");
        // SAFETY: the slot lies in the mapping, and its size is a multiple of 64 bytes, so the word is aligned. It is
        // only accessed as an atomic; the buffer begins behind it.
        unsafe { self.memory.add(HEAD_BYTES + slot * SLOT_BYTES).cast::<AtomicU64>().as_ref() }
    }
}

impl Drop for RequestJournal {
    fn drop(&mut self) {
        // SAFETY: `new` mapped exactly these bytes, and all references to them borrow `self`. It cannot fail.
        unsafe { munmap(self.memory.as_ptr().cast(), self.bytes).ok() };
    }
}

/// The buffer of one listener.
#[derive(Debug)]
pub(crate) struct JournalSlot<'a> {
    journal: &'a RequestJournal,
    index: usize,
}

impl JournalSlot<'_> {
    /// KS5: makes the pages of the buffer present: a fault while the kernel copies a request into them would end the request
    /// if the process is killed just then. And removes the number beside the buffer: a request that the kernel sends for the
    /// third time has the number of the second time, and would count as handled.
    pub(crate) fn prefault(&mut self) {
        for page in self.bytes_mut().chunks_mut(1024) {
            page.fill(0);
        }
        // Release: only once the request in the buffer is gone, which would count as one in flight.
        self.journal.answered(self.index).store(0, Ordering::Release);
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        // SAFETY: the buffer lies in the mapping, and this value is the only one for it.
        unsafe { std::slice::from_raw_parts(self.start().as_ptr(), REQUEST_BYTES) }
    }

    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, and borrowed mutably.
        unsafe { std::slice::from_raw_parts_mut(self.start().as_ptr(), REQUEST_BYTES) }
    }

    /// The request with this number is handled.
    pub(crate) fn finish(&self, unique: u64) {
        // Relaxed: only a later process reads it, after this one has ended.
        self.journal.answered(self.index).store(unique, Ordering::Relaxed);
    }

    fn start(&self) -> NonNull<u8> {
        // SAFETY: `slot` has checked the index, so this is in the mapping.
        unsafe { self.journal.memory.add(HEAD_BYTES + self.index * SLOT_BYTES + SLOT_HEAD_BYTES) }
    }
}

impl Drop for JournalSlot<'_> {
    fn drop(&mut self) {
        if let Some(is_taken) = self.journal.is_taken.get(self.index) {
            // Release: pairs with the acquire in `slot`.
            is_taken.store(false, Ordering::Release);
        }
    }
}

/// Requests that were in flight when the server before this one died.
#[derive(Clone, Debug, Default)]
pub(crate) struct SuspectedRequests(Vec<RequestKey>);

impl SuspectedRequests {
    /// The key of the request in these bytes, if it is one of them.
    pub(crate) fn key_of(&self, request: &[u8]) -> Option<RequestKey> {
        if self.0.is_empty() {
            return None;
        }
        RequestKey::of(request).filter(|key| self.0.contains(key))
    }
}

/// Requests that get `EIO` because they have killed servers.
#[derive(Clone, Debug, Default)]
pub(crate) struct BannedRequests(Vec<RequestKey>);

impl BannedRequests {
    /// Whether the request in these bytes is banned.
    pub(crate) fn contains(&self, request: &[u8]) -> bool {
        if self.0.is_empty() {
            return false;
        }
        let Some(key) = RequestKey::of(request) else { return false };
        let is_alike = |one: &&RequestKey| (one.operation, one.node) == (key.operation, key.node);
        self.0.contains(&key) || self.0.iter().filter(is_alike).count() >= key.alike_max()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use zerocopy::IntoBytes;

    use super::*;

    fn request(unique: u64, opcode: u32, node: u64, body: &[u8]) -> Vec<u8> {
        let header = InHeader {
            len: u32::try_from(size_of::<InHeader>() + body.len()).expect("a short body"),
            opcode,
            unique,
            node,
            uid: 0,
            gid: 0,
            pid: 0,
            extension_words: 0,
            padding: 0,
        };
        [header.as_bytes(), body].concat()
    }

    fn receive(journal: &RequestJournal, slot: usize, bytes: &[u8]) {
        let mut slot = journal.slot(slot).expect("a slot that is not taken");
        slot.bytes_mut()[..bytes.len()].copy_from_slice(bytes);
    }

    /// The death of a server that had begun to read.
    fn die(journal: &RequestJournal, end: ServerEnd) -> Takeover {
        journal.begin_reading(7);
        journal.examine(7, end)
    }

    fn uniques(takeover: &Takeover) -> Vec<u64> {
        takeover.in_flight.iter().map(|request| request.unique).collect()
    }

    #[test]
    fn what_was_read_and_not_finished_is_in_flight() {
        let journal = RequestJournal::new(2).expect("memory");
        assert_eq!(die(&journal, ServerEnd::Killed), Takeover::default());
        receive(&journal, 0, &request(2, opcode::READ, 5, b"a"));
        receive(&journal, 1, &request(4, opcode::READ, 6, b"a"));
        receive(&journal, 2, &request(6, opcode::FORGET, 6, b"a"));
        receive(&journal, 65, &request(8, opcode::LOOKUP, 7, b"name\0"));
        journal.slot(1).expect("free").finish(4);
        let takeover = die(&journal, ServerEnd::Killed);
        assert_eq!(uniques(&takeover), [2, 8]);
        assert!(!takeover.needs_trial && takeover.newly_banned.is_empty());
        for request in &takeover.in_flight {
            journal.forget(request.slot, request.unique);
        }
        assert_eq!(uniques(&die(&journal, ServerEnd::Killed)), [0_u64; 0]);
    }

    #[test]
    fn a_slot_has_one_owner() {
        let journal = RequestJournal::new(2).expect("memory");
        let slot = journal.slot(1).expect("free");
        assert!(journal.slot(1).is_none() && journal.slot(66).is_none());
        drop(slot);
        assert!(journal.slot(1).is_some());
    }

    #[test]
    fn a_request_that_crashes_a_server_alone_is_banned_with_its_file() {
        let journal = RequestJournal::new(2).expect("memory");
        receive(&journal, 0, &request(2, opcode::READ, 5, b"a"));
        receive(&journal, 1, &request(4, opcode::READ, 6, b"a"));
        let takeover = die(&journal, ServerEnd::Crashed);
        assert!(takeover.needs_trial);
        // The innocent one is answered, and the other one crashes alone.
        journal.forget(1, 4);
        receive(&journal, 0, &request(2 | RESENT, opcode::READ, 5, b"a"));
        let takeover = die(&journal, ServerEnd::Crashed);
        assert_eq!(takeover.newly_banned, [5]);
        assert!(!takeover.needs_trial);
        let banned = journal.banned();
        assert!(banned.contains(&request(6, opcode::READ, 5, b"another place")));
        assert!(!banned.contains(&request(6, opcode::GETATTR, 5, b"a")));
        assert!(!banned.contains(&request(6, opcode::READ, 6, b"a")));
    }

    #[test]
    fn a_server_that_dies_before_it_reads_makes_no_request_suspected() {
        let journal = RequestJournal::new(2).expect("memory");
        receive(&journal, 0, &request(2, opcode::READDIR, 1, b"a"));
        assert!(!die(&journal, ServerEnd::Killed).needs_trial);
        for server in 8..100 {
            // The one before it has read, and its end is not known any more.
            if server % 2 == 0 {
                journal.begin_reading(server - 1);
            }
            let takeover = journal.examine(server, ServerEnd::Crashed);
            assert_eq!(uniques(&takeover), [2]);
            assert!(!takeover.needs_trial && takeover.newly_banned.is_empty());
        }
    }

    /// What the next server does up to KS5, for the requests of the slots that its listeners have.
    fn follow(journal: &RequestJournal, server: u64, end: ServerEnd) -> Takeover {
        let takeover = journal.examine(server - 1, end);
        for request in &takeover.in_flight {
            journal.forget(request.slot, request.unique);
        }
        journal.begin_reading(server);
        for slot in 0..2 {
            journal.slot(slot).expect("a slot that is not taken").prefault();
        }
        takeover
    }

    /// The kernel marks a request when it sends it again for the first time, so that its number changes only once, and the
    /// trial reads into the first slot each time.
    #[test]
    fn a_request_that_is_resent_into_the_same_slot_is_in_flight_each_time() {
        for (end, deaths) in [(ServerEnd::Crashed, CRASHES_MAX), (ServerEnd::Killed, DEATHS_MAX)] {
            let journal = RequestJournal::new(2).expect("memory");
            journal.begin_reading(1);
            for death in 1..=deaths {
                let unique = if death == 1 { 2 } else { 2 | RESENT };
                receive(&journal, 0, &request(unique, opcode::READ, 5, b"a"));
                let takeover = follow(&journal, death + 1, end);
                assert_eq!(uniques(&takeover), [unique], "{end:?} {death}");
                assert_eq!(takeover.newly_banned.is_empty(), death < deaths, "{end:?} {death}");
            }
            assert_eq!(uniques(&follow(&journal, deaths + 2, end)), [0_u64; 0]);
        }
    }

    /// Crashes servers by this request until it is banned. Returns how many bans were reported.
    fn crash(journal: &RequestJournal, bytes: &[u8]) -> usize {
        let is_banned = || journal.banned().contains(bytes);
        let mut banned = 0;
        for _ in 0..CRASHES_MAX {
            if !is_banned() {
                receive(journal, 0, bytes);
                banned += die(journal, ServerEnd::Crashed).newly_banned.len();
            }
        }
        assert!(is_banned());
        banned
    }

    #[test]
    fn a_directory_that_crashes_servers_at_every_name_is_banned_after_some() {
        let journal = RequestJournal::new(2).expect("memory");
        let name = |node, name: u64| request(2, opcode::LOOKUP, node, &name.to_le_bytes());
        let banned: Vec<usize> = (0..70).map(|number| crash(&journal, &name(5, number))).collect();
        assert_eq!(banned.iter().sum::<usize>(), BANNED_ALIKE_MAX);
        let banned = journal.banned();
        assert!(!banned.contains(&request(2, opcode::GETATTR, 5, b"")));
        assert!(!banned.contains(&name(6, 0)));
        // Fewer names do not harm the others.
        assert_eq!(crash(&journal, &name(6, 0)), 1);
        assert!(!journal.banned().contains(&name(6, 1)));
    }

    #[test]
    fn a_ban_beyond_the_list_takes_the_place_of_the_oldest_one() {
        let journal = RequestJournal::new(2).expect("memory");
        let nodes = u64::try_from(REMEMBERED_MAX).expect("a few") + 1;
        let read = |node| request(2, opcode::READ, node, b"a");
        for node in 1..=nodes {
            assert_eq!(crash(&journal, &read(node)), 1, "{node}");
        }
        let banned = journal.banned();
        assert!(!banned.contains(&read(1)));
        assert!((2..=nodes).all(|node| banned.contains(&read(node))));
    }

    #[test]
    fn requests_that_are_killed_together_are_never_banned() {
        let journal = RequestJournal::new(2).expect("memory");
        receive(&journal, 0, &request(2, opcode::READ, 5, b"a"));
        receive(&journal, 1, &request(4, opcode::READ, 6, b"a"));
        for _ in 0..100 {
            assert!(die(&journal, ServerEnd::Crashed).newly_banned.is_empty());
        }
    }

    #[test]
    fn a_request_that_servers_handle_between_their_deaths_is_never_banned() {
        let journal = RequestJournal::new(2).expect("memory");
        let hot = request(2, opcode::LOOKUP, 1, b"usr\0");
        for end in [ServerEnd::Killed, ServerEnd::Crashed].into_iter().cycle().take(100) {
            receive(&journal, 0, &hot);
            assert!(die(&journal, end).newly_banned.is_empty());
            let key = journal.suspected().key_of(&request(4, opcode::LOOKUP, 1, b"usr\0"));
            journal.acquit(&key.expect("a suspect"));
            assert!(journal.suspected().key_of(&request(4, opcode::LOOKUP, 1, b"etc\0")).is_none());
        }
        assert!(!journal.banned().contains(&hot));
    }

    #[test]
    fn a_request_is_banned_in_the_eighth_kill_in_a_row_only() {
        let journal = RequestJournal::new(2).expect("memory");
        let both = [b"a", b"b"].map(|body| request(2, opcode::READ, 5, body));
        let deaths = |count: u64, bytes: &[u8]| {
            (0..count)
                .filter(|_| {
                    receive(&journal, 0, bytes);
                    !die(&journal, ServerEnd::Killed).newly_banned.is_empty()
                })
                .count()
        };
        assert_eq!(deaths(DEATHS_MAX - 1, &both[0]), 0);
        // Another request of the same file starts at one.
        assert_eq!(deaths(1, &both[1]), 0);
        assert_eq!(deaths(DEATHS_MAX - 1, &both[0]), 0);
        assert_eq!(deaths(1, &both[0]), 1);
        receive(&journal, 0, &request(2, opcode::LOOKUP, 9, b"x\0"));
        assert_eq!(die(&journal, ServerEnd::Retired).newly_banned, [0_u64; 0]);
    }
}

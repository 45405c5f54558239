//! Storage for what grows with the number of files of a build: pages of 4 KiB, of which a bounded number is in
//! memory. The others lie in one file without a name.
//!
//! [`SpillStore`] is the page cache, which all tables of a build share. [`paged`] has arrays of bytes and of
//! records, [`ordered_map`] a B+ tree, [`sorter`] an external sort; the tree, the map of the data and the metadata
//! are made of these.
//!
//! Reads and writes do not return errors. The store keeps the first error of the host, [`SpillStore::check`] returns
//! it, and until then pages that cannot be read are zeros. Every step of a build checks the store, and the last time
//! before the image is published.

pub(crate) mod ordered_map;
pub(crate) mod paged;

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::{fmt, io};

use rustix::fs::{MemfdFlags, Mode, OFlags};
use rustix::io::Errno;

use crate::{Error, ErrorKind, Result};

/// Bytes of a page. A page holds some hundred names or records, and costs a system call when it is not in memory.
pub(crate) const PAGE_BYTES: usize = 4096;
/// Pages in memory at least: the path from the root of a map to a leaf, a page for each table in use, and some more.
const FRAMES_MIN: usize = 64;
/// What a page in memory takes beside its bytes: its frame, its entries in tables, and the allocator.
const FRAME_BYTES: u64 = PAGE_BYTES as u64 + 48;
/// What a store keeps of its memory however much is reserved: one part in so many.
const RESERVATION_REST_SHARE: u64 = 8;

/// How much of a [`SpillStore`] is in memory, and where the rest goes.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SpillOptions {
    /// The most bytes in memory.
    pub memory_bytes_max: u64,
    /// The directory of the file for all other bytes. The file has no name, so that nothing stays behind. `None`: a
    /// memfd, which can be swapped out.
    pub directory: Option<PathBuf>,
}

option_setters! { SpillOptions {
    memory_bytes_max: u64,
    directory: Option<PathBuf>,
} }

impl Default for SpillOptions {
    /// Everything in memory.
    fn default() -> Self {
        Self { memory_bytes_max: u64::MAX, directory: None }
    }
}

/// Pages of a build, in memory or in a file without a name. Clones are handles of one store.
#[derive(Clone)]
pub struct SpillStore {
    cache: Arc<Mutex<PageCache>>,
}

impl fmt::Debug for SpillStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SpillStore").field("stats", &self.stats()).finish_non_exhaustive()
    }
}

/// What a store has used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct SpillStats {
    /// The most bytes that were in memory at one time.
    pub memory_bytes_peak: u64,
    /// The size of the file; 0 if everything was in memory.
    pub file_bytes: u64,
}

impl SpillStore {
    /// An empty store.
    #[must_use]
    pub fn new(options: SpillOptions) -> Self {
        Self { cache: Arc::new(Mutex::new(PageCache::new(options))) }
    }

    /// The directory of temporary files, `None`: they are in memory.
    pub(crate) fn directory(&self) -> Option<PathBuf> {
        self.lock().directory.clone()
    }

    /// Changes how many bytes may be in memory, within [`SpillOptions::memory_bytes_max`]. Pages beyond that go to the
    /// file at once.
    pub fn set_memory_max(&self, bytes: u64) {
        self.lock().set_memory_max(bytes);
    }

    /// How many bytes may be in memory.
    #[cfg(test)]
    pub(crate) fn memory_max(&self) -> u64 {
        self.lock().memory_bytes
    }

    /// Does with `bytes` less of its memory, but keeps an eighth, until the reservation is dropped. There is one at a time,
    /// during which nothing else changes the limit.
    pub(crate) fn reserve(&self, bytes: u64) -> MemoryReservation {
        let mut cache = self.lock();
        let before = cache.memory_bytes;
        cache.set_memory_max(before.saturating_sub(bytes).max(before / RESERVATION_REST_SHARE));
        MemoryReservation { store: self.clone(), bytes, before }
    }

    /// What was used so far.
    #[must_use]
    pub fn stats(&self) -> SpillStats {
        let cache = self.lock();
        let file_bytes =
            if cache.file.is_some() { cache.file_pages * PAGE_BYTES as u64 } else { 0 };
        SpillStats { memory_bytes_peak: cache.frames_peak as u64 * FRAME_BYTES, file_bytes }
    }

    /// Checks that the host has stored and returned every page so far.
    ///
    /// # Errors
    /// [`ErrorKind::Output`]: the first error of the host, with the directory.
    pub fn check(&self) -> Result<()> {
        self.lock().check()
    }

    /// A new page of zeros.
    pub(crate) fn allocate(&self) -> u32 {
        self.lock().allocate()
    }

    /// Gives pages back.
    pub(crate) fn free(&self, pages: &[u32]) {
        let mut cache = self.lock();
        for page in pages {
            cache.free(*page);
        }
    }

    /// Reads a page.
    pub(crate) fn read<T>(&self, page: u32, read: impl FnOnce(&[u8; PAGE_BYTES]) -> T) -> T {
        read(self.lock().page(page))
    }

    /// Changes a page.
    pub(crate) fn write<T>(&self, page: u32, write: impl FnOnce(&mut [u8; PAGE_BYTES]) -> T) -> T {
        write(self.lock().page_mut(page))
    }

    fn lock(&self) -> MutexGuard<'_, PageCache> {
        // A page is whole at any time, and the tables of a build that panicked are not used again.
        self.cache.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Where a page is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PageState {
    /// Nowhere: it is all zeros.
    Zero,
    /// In this frame.
    Resident(u32),
    /// In the file.
    Spilled,
}

/// A page in memory.
#[derive(Debug)]
struct CachedPage {
    /// `None`: a page that was freed.
    page: Option<u32>,
    /// It differs from the file.
    is_dirty: bool,
    /// The file has it, maybe in an older state.
    is_in_file: bool,
    /// It was used since the clock hand passed.
    is_used: bool,
    bytes: Box<[u8; PAGE_BYTES]>,
}

/// All pages. Eviction is by the clock algorithm.
#[derive(Debug)]
struct PageCache {
    directory: Option<PathBuf>,
    states: Vec<PageState>,
    free_pages: Vec<u32>,
    frames: Vec<CachedPage>,
    /// The bytes in memory that the options allow.
    memory_bytes_max: u64,
    /// The bytes in memory at the moment, of which the frames are made.
    memory_bytes: u64,
    frames_max: usize,
    frames_peak: usize,
    clock_hand: usize,
    file: Option<File>,
    file_pages: u64,
    /// The first error.
    error: Option<(&'static str, io::Error)>,
}

/// Memory that a store does without.
#[derive(Debug)]
pub(crate) struct MemoryReservation {
    store: SpillStore,
    bytes: u64,
    /// What the store has afterwards.
    before: u64,
}

impl MemoryReservation {
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }
}

impl Drop for MemoryReservation {
    fn drop(&mut self) {
        self.store.set_memory_max(self.before);
    }
}

impl PageCache {
    fn new(options: SpillOptions) -> Self {
        let mut cache = Self {
            directory: options.directory,
            states: Vec::new(),
            free_pages: Vec::new(),
            frames: Vec::new(),
            memory_bytes_max: options.memory_bytes_max,
            memory_bytes: options.memory_bytes_max,
            frames_max: 0,
            frames_peak: 0,
            clock_hand: 0,
            file: None,
            file_pages: 0,
            error: None,
        };
        cache.set_memory_max(options.memory_bytes_max);
        cache
    }

    fn set_memory_max(&mut self, bytes: u64) {
        let bytes = bytes.min(self.memory_bytes_max);
        self.memory_bytes = bytes;
        let frames = usize::try_from(bytes / FRAME_BYTES).unwrap_or(usize::MAX);
        self.frames_max = frames.max(FRAMES_MIN);
        while self.frames.len() > self.frames_max {
            let last = self.frames.len() - 1;
            self.write_back(last);
            self.frames.pop();
        }
        self.frames.shrink_to(self.frames_max);
        self.clock_hand = 0;
    }

    fn check(&self) -> Result<()> {
        let Some((operation, source)) = &self.error else { return Ok(()) };
        // An `io::Error` cannot be cloned.
        let source = match source.raw_os_error() {
            Some(number) => io::Error::from_raw_os_error(number),
            None => io::Error::new(source.kind(), source.to_string()),
        };
        let error = Error::new(ErrorKind::Output { operation, source });
        Err(match &self.directory {
            Some(directory) => error.at(directory),
            None => error,
        })
    }

    fn allocate(&mut self) -> u32 {
        if let Some(page) = self.free_pages.pop() {
            return page;
        }
        let Ok(page) = u32::try_from(self.states.len()) else {
            self.fail("cannot extend the temporary file", io::ErrorKind::FileTooLarge.into());
            return 0;
        };
        self.states.push(PageState::Zero);
        page
    }

    fn free(&mut self, page: u32) {
        let Some(state) = self.states.get_mut(page as usize) else { return };
        if let PageState::Resident(frame) = *state
            && let Some(frame) = self.frames.get_mut(frame as usize)
        {
            (frame.page, frame.is_dirty, frame.is_used) = (None, false, false);
        }
        *state = PageState::Zero;
        self.free_pages.push(page);
    }

    fn page(&mut self, page: u32) -> &[u8; PAGE_BYTES] {
        let frame = self.frame(page);
        &self.frames[frame].bytes
    }

    fn page_mut(&mut self, page: u32) -> &mut [u8; PAGE_BYTES] {
        let frame = self.frame(page);
        let frame = &mut self.frames[frame];
        frame.is_dirty = true;
        &mut frame.bytes
    }

    /// The frame of a page, which is brought into memory.
    fn frame(&mut self, page: u32) -> usize {
        let state = self.states.get(page as usize).copied().unwrap_or(PageState::Zero);
        if let PageState::Resident(frame) = state {
            self.frames[frame as usize].is_used = true;
            return frame as usize;
        }
        let index = self.vacant_frame();
        let is_in_file = state == PageState::Spilled;
        if is_in_file {
            self.read_page(page, index);
        } else {
            self.frames[index].bytes.fill(0);
        }
        let frame = &mut self.frames[index];
        (frame.page, frame.is_dirty, frame.is_in_file, frame.is_used) =
            (Some(page), false, is_in_file, true);
        if let Some(state) = self.states.get_mut(page as usize) {
            // There are no more frames than pages.
            *state = PageState::Resident(u32::try_from(index).unwrap_or(u32::MAX));
        }
        index
    }

    /// A frame without a page: a new one, or that of a page that was not used for a while.
    fn vacant_frame(&mut self) -> usize {
        if self.frames.len() < self.frames_max {
            let bytes = Box::new([0; PAGE_BYTES]);
            let (is_dirty, is_in_file, is_used) = (false, false, false);
            self.frames.push(CachedPage { page: None, is_dirty, is_in_file, is_used, bytes });
            self.frames_peak = self.frames_peak.max(self.frames.len());
            return self.frames.len() - 1;
        }
        // The hand clears marks, so that the second round finds one.
        loop {
            let index = self.clock_hand % self.frames.len();
            self.clock_hand = index + 1;
            let frame = &mut self.frames[index];
            if !std::mem::take(&mut frame.is_used) {
                self.write_back(index);
                return index;
            }
        }
    }

    /// Takes the page out of a frame, and stores it if the file does not have it.
    fn write_back(&mut self, index: usize) {
        let frame = &mut self.frames[index];
        let Some(page) = frame.page.take() else { return };
        let mut state = if frame.is_in_file { PageState::Spilled } else { PageState::Zero };
        if frame.is_dirty {
            state = PageState::Spilled;
            if self.file.is_none() {
                match open_unlinked(self.directory.as_deref()) {
                    Ok(file) => self.file = Some(file),
                    Err(error) => self.fail("cannot create a temporary file", error),
                }
            }
            let written = match &self.file {
                Some(file) => file.write_all_at(&*self.frames[index].bytes, place(page)),
                None => Ok(()),
            };
            match written {
                Ok(()) => self.file_pages = self.file_pages.max(u64::from(page) + 1),
                Err(error) => self.fail("cannot write to a temporary file", error),
            }
        }
        if let Some(place) = self.states.get_mut(page as usize) {
            *place = state;
        }
    }

    fn read_page(&mut self, page: u32, index: usize) {
        let bytes = &mut *self.frames[index].bytes;
        let read = match &self.file {
            Some(file) => file.read_exact_at(bytes, place(page)),
            None => Err(io::ErrorKind::NotFound.into()),
        };
        if let Err(error) = read {
            bytes.fill(0);
            self.fail("cannot read a temporary file", error);
        }
    }

    #[cold]
    fn fail(&mut self, operation: &'static str, error: io::Error) {
        self.error.get_or_insert((operation, error));
    }
}

/// Where a page lies in the file.
fn place(page: u32) -> u64 {
    u64::from(page) * PAGE_BYTES as u64
}

/// Names that are tried for a file that cannot be created without one.
const NAMES_TRIED: u32 = 100;

/// A new file without a name in `directory`, or a memfd.
///
/// # Errors
/// Those of the host.
pub(crate) fn open_unlinked(directory: Option<&Path>) -> io::Result<File> {
    let Some(directory) = directory else {
        return Ok(rustix::fs::memfd_create("ferrofs-temporary", MemfdFlags::CLOEXEC)?.into());
    };
    let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
    let mode = Mode::RUSR | Mode::WUSR;
    let unnamed = rustix::fs::open(directory, flags, mode);
    let error = match unnamed {
        Ok(file) => return Ok(file.into()),
        Err(error) => error,
    };
    let is_unsupported = matches!(error, Errno::OPNOTSUPP | Errno::ISDIR | Errno::INVAL);
    if !is_unsupported {
        return Err(error.into());
    }
    // Some file systems cannot make a file without a name: it loses its name at once.
    let flags = OFlags::CREATE | OFlags::EXCL | OFlags::RDWR | OFlags::CLOEXEC;
    for number in 0..NAMES_TRIED {
        let name = directory.join(format!(".ferrofs-temporary.{}.{number}", std::process::id()));
        match rustix::fs::open(&name, flags, mode) {
            Ok(file) => {
                rustix::fs::unlink(&name)?;
                return Ok(file.into());
            }
            Err(Errno::EXIST) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Err(io::ErrorKind::AlreadyExists.into())
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A store with the fewest pages in memory, and its directory.
    pub(crate) fn small_store() -> (SpillStore, tempfile::TempDir) {
        let directory = tempfile::tempdir().unwrap();
        let options = SpillOptions::default()
            .memory_bytes_max(0)
            .directory(Some(directory.path().to_path_buf()));
        (SpillStore::new(options), directory)
    }

    fn low_byte(number: usize) -> u8 {
        number.to_le_bytes()[0]
    }

    #[test]
    fn pages_come_back_as_they_were_and_the_file_has_no_name() {
        let (store, directory) = small_store();
        let pages: Vec<u32> = (0..1000).map(|_| store.allocate()).collect();
        for round in 0..3_u8 {
            for (number, page) in pages.iter().enumerate() {
                let expected = if round == 0 { 0 } else { low_byte(number) ^ (round - 1) };
                assert_eq!(
                    store.read(*page, |bytes| (bytes[0], bytes[4095])),
                    (expected, expected)
                );
                store.write(*page, |bytes| bytes.fill(low_byte(number) ^ round));
            }
        }
        let stats = store.stats();
        assert_eq!(stats.memory_bytes_peak, FRAMES_MIN as u64 * FRAME_BYTES);
        assert!(stats.file_bytes >= 900 * PAGE_BYTES as u64);
        store.check().unwrap();
        assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 0);
    }

    #[test]
    fn a_freed_page_is_zeros_when_it_is_used_again() {
        let (store, _directory) = small_store();
        let pages: Vec<u32> = (0..200).map(|_| store.allocate()).collect();
        pages.iter().for_each(|page| store.write(*page, |bytes| bytes.fill(7)));
        store.free(&pages);
        for _ in 0..200 {
            let page = store.allocate();
            assert!(pages.contains(&page));
            assert!(store.read(page, |bytes| bytes.iter().all(|byte| *byte == 0)));
        }
    }

    #[test]
    fn less_memory_writes_pages_out_at_once() {
        let directory = tempfile::tempdir().unwrap();
        let options = SpillOptions::default().directory(Some(directory.path().to_path_buf()));
        let store = SpillStore::new(options);
        let pages: Vec<u32> = (0..500).map(|_| store.allocate()).collect();
        pages
            .iter()
            .for_each(|page| store.write(*page, |bytes| bytes.fill(low_byte(*page as usize))));
        assert_eq!(store.stats().file_bytes, 0);
        store.set_memory_max(0);
        assert!(store.stats().file_bytes > 0);
        pages.iter().for_each(|page| {
            assert_eq!(store.read(*page, |bytes| bytes[9]), low_byte(*page as usize));
        });
        store.check().unwrap();
    }

    #[test]
    fn an_error_of_the_host_is_kept_and_named() {
        let options =
            SpillOptions::default().memory_bytes_max(0).directory(Some("/nowhere/at/all".into()));
        let store = SpillStore::new(options);
        store.check().unwrap();
        for _ in 0..200 {
            let page = store.allocate();
            store.write(page, |bytes| bytes.fill(1));
        }
        for _ in 0..2 {
            let error = store.check().unwrap_err();
            assert!(matches!(error.kind(), ErrorKind::Output { .. }));
            let text = error.to_string();
            assert!(
                text.starts_with("/nowhere/at/all: cannot create a temporary file: "),
                "{text}"
            );
        }
    }
}

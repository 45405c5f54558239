//! Anonymous memory from the system: mapping, faulting in, returning and unmapping. It owns one
//! mapping, or a part of one that was split. It knows no budget and no policy; the arena of the
//! page pool and each block of the buffer pool has one.
#![allow(unsafe_code, reason = "mapping, faulting in, returning and unmapping")]

use std::ffi::c_void;
#[cfg(not(loom))]
use std::marker::PhantomData;
#[cfg(not(loom))]
use std::ops::Deref;
use std::ops::Range;
use std::ptr::NonNull;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::mm;
#[cfg(not(loom))]
use zerocopy::FromZeros;

use crate::jobs::PendingStarts;
use crate::jobs::{ParallelFor, ParallelForReport};
use crate::sync::{AtomicBool, Ordering, PlainAtomicU8, PlainAtomicU64};
use crate::{Error, ErrorKind};

/// A huge page of x86-64 and of aarch64 with small pages of 4 KiB.
const HUGE_PAGE_BYTES: usize = 2 << 20;

/// The least that is worth a thread, and what boundaries are multiples of: one call, some 3 ms. A
/// multiple of a huge page.
const CHUNK_BYTES: u64 = 8 << 20;
const _: () = assert!(CHUNK_BYTES.is_multiple_of(HUGE_PAGE_BYTES as u64));

/// Chunks for each thread of a long mapping: with padata's four the last one, of 80 ms, kept the
/// others waiting.
const CHUNKS_A_THREAD: u64 = 32;

/// What one call faults in. A call holds the process's lock on its mappings, and a thread that maps
/// or starts waits for it: with calls of 512 MiB the second thread of a job began when the caller's
/// first chunk was done (docs/benchmarks.md).
const CALL_BYTES: usize = 8 << 20;

/// What is touched between two looks at whether a thread is still being started.
const TOUCH_BYTES: usize = 64 << 10;

/// The pages that a mapping is made of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum PageSize {
    /// The system's base pages, and never others, so that what is charged is what is resident.
    #[default]
    Small,
    /// Transparent huge pages where the system has them. They come and go 2 MiB at a time, whatever
    /// was charged.
    Huge,
}

impl PageSize {
    /// What lengths and starts are multiples of.
    fn bytes(self) -> usize {
        match self {
            Self::Small => rustix::param::page_size(),
            Self::Huge => HUGE_PAGE_BYTES,
        }
    }
}

/// How pages are faulted in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum PopulateMethod {
    /// By one `madvise` for a range.
    Madvise,
    /// By a write to each page: the kernel is older than 5.14.
    Touch,
}

/// How a mapping was faulted in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct PrefaultReport {
    /// Threads that took part, the caller included.
    pub threads: u32,
    /// Chunks of the range: each is some calls to the system, or pages that were written to.
    pub chunks: u64,
    /// How the chunks were faulted in: [`PopulateMethod::Touch`] if each page was written to.
    pub populated: PopulateMethod,
}

/// How a job faulted in.
#[derive(Debug)]
pub(super) struct PopulateReport {
    report: ParallelForReport,
    populated: PopulateMethod,
    /// The time of all threads together.
    pub(super) taken: Duration,
}

/// A job that faults in `length` bytes, on as many threads as there are CPUs.
pub(super) fn prefault_job(length: u64) -> ParallelFor<'static> {
    ParallelFor::over(0..length)
        .align(CHUNK_BYTES)
        .min_chunk_size(CHUNK_BYTES)
        .chunks_per_thread(CHUNKS_A_THREAD)
}

/// Private anonymous memory, readable and writable. Its bytes are zero until they are written.
///
/// It consists of whole pages that no other value has: `split` leaves the two ranges apart. The
/// system knows no owner: its calls act on a range of pages, whichever call mapped them.
#[derive(Debug)]
pub struct Mapping {
    start: NonNull<u8>,
    length: usize,
    pages: PageSize,
}

// SAFETY: a mapping is memory that only this value points to, and that is bound to no thread.
unsafe impl Send for Mapping {}
// SAFETY: through `&Mapping` nothing is written: `bytes` only reads, `populate_range` leaves
// contents alone, `address` gives a pointer only, and `populate_part` and `discard_range` are
// unsafe with contracts of their own.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps `length` bytes, rounded up to whole pages. Nothing is resident yet, and the system
    /// reserves nothing.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidSetting`] when the length is 0 or cannot be rounded up;
    /// [`ErrorKind::OutOfMemory`] when the system has no room; [`ErrorKind::System`] otherwise.
    pub fn anonymous(length: usize, pages: PageSize) -> Result<Self, Error> {
        let unit = pages.bytes();
        let invalid = Error::new(ErrorKind::InvalidSetting, "bytes of a mapping")
            .with_amount(length as u64, isize::MAX as u64);
        let length = length.checked_next_multiple_of(unit).ok_or(invalid)?;
        // Where the start must be aligned, more is mapped and cut off again.
        let slack = unit - rustix::param::page_size();
        let whole = length.checked_add(slack).filter(|whole| isize::try_from(*whole).is_ok());
        let whole = whole.filter(|_| length > 0).ok_or(invalid)?;
        let flags = mm::MapFlags::PRIVATE | mm::MapFlags::NORESERVE;
        let access = mm::ProtFlags::READ | mm::ProtFlags::WRITE;
        // SAFETY: a new mapping at an address of the kernel's choice touches no memory that exists.
        let start = unsafe { mm::mmap_anonymous(std::ptr::null_mut(), whole, access, flags) }
            .map_err(|errno| refused("mapping memory", errno))?;
        let start = NonNull::new(start.cast::<u8>())
            .ok_or(Error::new(ErrorKind::System, "mapping memory at address 0"))?;
        let mut mapping = Self { start, length: whole, pages };
        if slack > 0 {
            mapping.keep_aligned(length)?;
        }
        mapping.choose_pages();
        Ok(mapping)
    }

    /// The length in bytes, a whole number of pages.
    #[must_use]
    pub fn length(&self) -> usize {
        self.length
    }

    /// The pages that it is made of.
    #[must_use]
    pub fn pages(&self) -> PageSize {
        self.pages
    }

    /// Its bytes.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: `length` readable bytes, zero or written before, mapped until drop. Nobody writes
        // them through `&self` but the holders of an arena's frames, and the arena, which owns its
        // mapping, uses `address` and never this.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.length) }
    }

    /// Its bytes, for writing.
    #[must_use]
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `bytes`, and `&mut self` excludes every other slice.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.length) }
    }

    /// Faults everything in with one call on this thread. A kernel older than 5.14 has no such
    /// call; then each page is written to, and keeps its contents.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::OutOfMemory`] when the system has none; [`ErrorKind::System`] otherwise.
    pub fn populate(&mut self) -> Result<PopulateMethod, Error> {
        let length = self.length;
        match self.populate_range(0, length)? {
            PopulateMethod::Madvise => Ok(PopulateMethod::Madvise),
            PopulateMethod::Touch => {
                touch(self.bytes_mut());
                Ok(PopulateMethod::Touch)
            }
        }
    }

    /// Faults everything in on up to `threads` threads, the caller included, in pieces of 8 MiB or
    /// more; contents stay. On kernels older than 5.14, and while threads are being started, each
    /// page is written to.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::OutOfMemory`] when the system has too little (what was faulted in stays
    /// resident); [`ErrorKind::System`] otherwise.
    pub fn prefault(&mut self, threads: usize) -> Result<PrefaultReport, Error> {
        self.prefault_by(prefault_job(self.length() as u64).max_threads(threads))
    }

    /// Faults in the first `length` bytes, on as many threads as there are CPUs.
    pub(super) fn prefault_first(&mut self, length: u64) -> Result<PrefaultReport, Error> {
        let length = length.min(self.length() as u64);
        self.prefault_by(prefault_job(length))
    }

    fn prefault_by(&mut self, job: ParallelFor<'_>) -> Result<PrefaultReport, Error> {
        let PopulateReport { report, populated, .. } = self.populate_by(job)?;
        Ok(PrefaultReport {
            threads: u32::try_from(report.threads).unwrap_or(u32::MAX),
            chunks: report.chunks,
            populated,
        })
    }

    /// Faults everything in, chunk by chunk as `job` cuts it. The job's range is that of the
    /// mapping's bytes.
    pub(super) fn populate_by(&mut self, job: ParallelFor<'_>) -> Result<PopulateReport, Error> {
        let is_touched = AtomicBool::new(false);
        let nanos = PlainAtomicU64::new(0);
        let pending_starts = PendingStarts::default();
        let this = &*self;
        let report = job.report_pending_starts(&pending_starts).run(|chunk| {
            let begin = Instant::now();
            let mut offset = usize::try_from(chunk.start).unwrap_or(usize::MAX);
            let end = usize::try_from(chunk.end).unwrap_or(usize::MAX);
            while offset < end {
                // SAFETY: chunks of a job never overlap, and `&mut self` excludes everybody else.
                let (length, populated) =
                    unsafe { this.populate_part(offset..end, &pending_starts) }?;
                if populated == PopulateMethod::Touch {
                    // Relaxed: the end of the job orders it before the look.
                    is_touched.store(true, Ordering::Relaxed);
                }
                offset += length;
            }
            let taken = u64::try_from(begin.elapsed().as_nanos()).unwrap_or(u64::MAX);
            // Relaxed: as above.
            nanos.fetch_add(taken, Ordering::Relaxed);
            Ok(())
        })?;
        let is_touched = is_touched.load(Ordering::Relaxed);
        let populated = if is_touched { PopulateMethod::Touch } else { PopulateMethod::Madvise };
        Ok(PopulateReport { report, populated, taken: Duration::from_nanos(nanos.into_inner()) })
    }

    /// Faults the first part of a range in. Returns how long that part is, and how it was faulted
    /// in.
    ///
    /// While threads are being started it touches pages. A call, however short, takes the process's
    /// lock on its mappings, for which a starting thread waits some six times (docs/workers.md,
    /// "Helpers"). A fault locks no more than its own mapping (Linux 6.4).
    ///
    /// # Safety
    ///
    /// Nobody but the caller may access the range.
    unsafe fn populate_part(
        &self,
        range: Range<usize>,
        pending_starts: &PendingStarts,
    ) -> Result<(usize, PopulateMethod), Error> {
        let touch_part = |length| {
            if let Some(start) = self.address(range.start, length) {
                // SAFETY: inside of the mapping (`address`), and the caller's own by contract.
                touch(unsafe { std::slice::from_raw_parts_mut(start.as_ptr(), length) });
            }
        };
        if pending_starts.is_any() {
            let length = range.len().min(TOUCH_BYTES);
            touch_part(length);
            return Ok((length, PopulateMethod::Madvise));
        }
        let length = range.len().min(CALL_BYTES);
        let populated = self.populate_range(range.start, length)?;
        if populated == PopulateMethod::Touch {
            touch_part(length);
        }
        Ok((length, populated))
    }

    /// Faults a range in, for writing, and leaves its contents alone. Parts outside of the mapping
    /// are ignored.
    pub(super) fn populate_range(
        &self,
        offset: usize,
        length: usize,
    ) -> Result<PopulateMethod, Error> {
        match self.advise(offset, length, mm::Advice::LinuxPopulateWrite) {
            Ok(()) => Ok(PopulateMethod::Madvise),
            Err(Errno::INVAL) => Ok(PopulateMethod::Touch),
            Err(errno) => Err(refused("faulting memory in", errno)),
        }
    }

    /// Returns the pages of a range to the system; its bytes are zero afterwards.
    ///
    /// # Safety
    ///
    /// Nobody but the caller may hold a reference into the range.
    pub(super) unsafe fn discard_range(&self, offset: usize, length: usize) -> Result<(), Error> {
        self.advise(offset, length, mm::Advice::LinuxDontNeed)
            .map_err(|errno| refused("returning memory", errno))
    }

    /// The address of `length` bytes from `offset`; none if they are not all inside of the mapping.
    pub(super) fn address(&self, offset: usize, length: usize) -> Option<NonNull<u8>> {
        if offset.checked_add(length)? > self.length {
            return None;
        }
        // SAFETY: `offset` is inside of the mapping, by the check above.
        Some(unsafe { self.start.add(offset) })
    }

    /// Moves the first `length` bytes out of this mapping into a new one, without a system call:
    /// what is resident stays so, and each is unmapped alone. None, and no change, unless both are
    /// whole pages and not empty.
    pub(super) fn split(&mut self, length: usize) -> Option<Self> {
        let rest = self.length.checked_sub(length).filter(|rest| *rest > 0 && length > 0)?;
        if !length.is_multiple_of(self.pages.bytes()) {
            return None;
        }
        let start = self.address(length, rest)?;
        // Each page has one owner, on which the unsafe code here relies: this value gives up
        // exactly what the other gets, nothing is dropped between these lines, and `&mut self` says
        // that nobody points into either.
        let part = Self { start: self.start, length, pages: self.pages };
        (self.start, self.length) = (start, rest);
        Some(part)
    }

    /// Cuts a mapping that is too long down to `length` bytes from an aligned start.
    fn keep_aligned(&mut self, length: usize) -> Result<(), Error> {
        let before = self.start.as_ptr().align_offset(HUGE_PAGE_BYTES).min(self.length - length);
        let after = self.length - length - before;
        // SAFETY: both cuts are inside of this mapping, and nobody points into it yet.
        unsafe {
            if after > 0 {
                let end = self.start.add(before + length).as_ptr().cast::<c_void>();
                mm::munmap(end, after).map_err(|errno| refused("aligning a mapping", errno))?;
            }
            self.length -= after;
            if before > 0 {
                let start = self.start.as_ptr().cast::<c_void>();
                mm::munmap(start, before).map_err(|errno| refused("aligning a mapping", errno))?;
            }
            self.start = self.start.add(before);
        }
        self.length = length;
        Ok(())
    }

    /// Tells the kernel which pages are wanted. A kernel without huge pages refuses both advices,
    /// and has small pages only.
    fn choose_pages(&self) {
        let advice = match self.pages {
            PageSize::Small => mm::Advice::LinuxNoHugepage,
            PageSize::Huge => mm::Advice::LinuxHugepage,
        };
        self.advise(0, self.length, advice).ok();
    }

    /// One `madvise` over the part of a range that is inside of the mapping. Callers pass advice
    /// that keeps contents, but for `discard_range`, whose contract says that nobody looks.
    fn advise(&self, offset: usize, length: usize, advice: mm::Advice) -> Result<(), Errno> {
        let offset = offset.min(self.length);
        let length = length.min(self.length - offset);
        // SAFETY: the range is inside of this mapping, by the lines above. Advice that changes
        // contents comes from `discard_range` only, which is unsafe for that reason.
        unsafe { mm::madvise(self.start.add(offset).as_ptr().cast::<c_void>(), length, advice) }
    }

    /// Unmaps all pages; the mapping has none after that. Returns whether the system has their memory again.
    pub(super) fn unmap(&mut self) -> bool {
        // SAFETY: `unmap_with` passes this value's own pages, all of them. The range is whole pages,
        // so a neighbour that was split off keeps its own. `&mut self` says that nobody borrows them.
        self.unmap_with(|start, length| unsafe { mm::munmap(start, length) })
    }

    /// The same with another call of the system.
    fn unmap_with(&mut self, munmap: impl FnOnce(*mut c_void, usize) -> Result<(), Errno>) -> bool {
        if self.length == 0 {
            return true;
        }
        #[cfg(all(test, not(loom)))]
        observe_unmap();
        let is_returned = match munmap(self.start.as_ptr().cast::<c_void>(), self.length) {
            Ok(()) => true,
            // The process has as many mappings as it may have, and this is the middle of one that the kernel has
            // merged with its neighbours: it would have to be split. Its pages can go without that; only the
            // addresses are lost.
            //
            // SAFETY: all of this value's pages, which nobody borrows, and which nobody looks at from here on.
            Err(_) => unsafe { self.discard_range(0, self.length) }.is_ok(),
        };
        self.length = 0;
        is_returned
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        self.unmap();
    }
}

#[cfg(all(test, not(loom)))]
std::thread_local! {
    /// Called before a mapping of this thread ends.
    pub(super) static ON_UNMAP: std::cell::Cell<Option<Box<dyn Fn()>>> = const { std::cell::Cell::new(None) };
}

#[cfg(all(test, not(loom)))]
fn observe_unmap() {
    let observer = ON_UNMAP.take();
    if let Some(observe) = &observer {
        observe();
    }
    ON_UNMAP.set(observer);
}

/// A slice in a mapping of its own, whose values are all zeroes at first. Pages that are never written to cost no memory;
/// a heap clears what it gives out again, and has it resident then.
#[derive(Debug)]
#[cfg(not(loom))]
pub(super) struct ZeroedSlice<T> {
    mapping: Mapping,
    count: usize,
    values: PhantomData<T>,
}

#[cfg(not(loom))]
impl<T: FromZeros> ZeroedSlice<T> {
    /// A slice of so many values.
    ///
    /// # Errors
    ///
    /// As [`Mapping::anonymous`].
    pub(super) fn new(count: usize) -> Result<Self, Error> {
        const { assert!(!std::mem::needs_drop::<T>()) };
        // At least a page: a mapping is never empty.
        let bytes = count.saturating_mul(size_of::<T>()).max(1);
        let mapping = Mapping::anonymous(bytes, PageSize::Small)?;
        Ok(Self { mapping, count, values: PhantomData })
    }
}

#[cfg(not(loom))]
impl<T> Deref for ZeroedSlice<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        // SAFETY: `new`, the only way to make one, has mapped at least `count` values of T, and page boundaries suit every
        // type of at most a page. Zeroes are a value of T (`FromZeros`). The mapping is this value's own and is written to
        // only through the slice, so only as `&T` allows; its bytes are never borrowed otherwise.
        unsafe { std::slice::from_raw_parts(self.mapping.start.as_ptr().cast::<T>(), self.count) }
    }
}

/// Faults memory in by a write to each page that changes nothing: 0 for 0 where it is 0. A read
/// before the write would first fault in the system's page of zeros.
pub(super) fn touch(bytes: &mut [u8]) {
    for page in bytes.chunks_mut(rustix::param::page_size()) {
        if let Some(first) = page.first_mut() {
            // SAFETY: a byte that this function has borrowed exclusively.
            let first = unsafe { PlainAtomicU8::from_ptr(first) };
            // The result does not matter: a byte that is not 0 was written to, so its page is
            // there.
            first.compare_exchange(0, 0, Ordering::Relaxed, Ordering::Relaxed).ok();
        }
    }
}

fn refused(what: &'static str, errno: Errno) -> Error {
    let kind = match errno {
        Errno::NOMEM | Errno::AGAIN => ErrorKind::OutOfMemory,
        _ => ErrorKind::System,
    };
    Error::new(kind, what).with_errno(errno)
}

/// What the system does with mappings, as the system itself reports it.
#[cfg(all(test, not(loom)))]
mod tests {
    #![allow(
        clippy::unwrap_used,
        clippy::assertions_on_result_states,
        reason = "a test may fail where it stands"
    )]

    use std::os::unix::fs::FileExt as _;

    use super::*;

    impl Mapping {
        /// Which pages are resident, as /proc/self/pagemap says: exact, and of this mapping alone.
        pub(in super::super) fn resident_pages(&self) -> usize {
            const PRESENT: u64 = 1 << 63;
            let page = rustix::param::page_size();
            let first = self.start.as_ptr() as usize / page;
            let mut entries = vec![0_u8; self.length / page * 8];
            let file = std::fs::File::open("/proc/self/pagemap").unwrap();
            file.read_exact_at(&mut entries, first as u64 * 8).unwrap();
            let is_present =
                |entry: &&[u8]| u64::from_ne_bytes((*entry).try_into().unwrap()) & PRESENT != 0;
            entries.chunks(8).filter(is_present).count()
        }
    }

    const PAGE: usize = 4096;

    #[test]
    fn a_new_mapping_is_zero_and_not_resident() {
        let mapping = Mapping::anonymous(64 * PAGE, PageSize::Small).unwrap();
        assert_eq!(mapping.resident_pages(), 0);
        assert!(mapping.bytes().iter().all(|byte| *byte == 0));
    }

    #[test]
    fn a_length_is_rounded_up_to_whole_pages() {
        let unit = rustix::param::page_size();
        assert_eq!(Mapping::anonymous(1, PageSize::Small).unwrap().length(), unit);
        assert_eq!(Mapping::anonymous(unit + 1, PageSize::Small).unwrap().length(), 2 * unit);
    }

    #[test]
    fn lengths_that_no_mapping_has_are_errors_and_nothing_else() {
        for length in [0, usize::MAX, usize::MAX - PAGE, isize::MAX as usize] {
            for pages in [PageSize::Small, PageSize::Huge] {
                let error = Mapping::anonymous(length, pages).unwrap_err();
                assert!(
                    matches!(error.kind(), ErrorKind::InvalidSetting | ErrorKind::OutOfMemory),
                    "{length}: {error}"
                );
            }
        }
        let error = Mapping::anonymous(1 << 60, PageSize::Small).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::OutOfMemory, "more than the address space");
        assert!(error.raw_os_error().is_some());
    }

    #[test]
    fn populating_makes_everything_resident_and_changes_nothing() {
        let mut mapping = Mapping::anonymous(100 * PAGE, PageSize::Small).unwrap();
        mapping.bytes_mut()[7 * PAGE + 1] = 9;
        mapping.populate().unwrap();
        assert_eq!(mapping.resident_pages() * rustix::param::page_size(), mapping.length());
        assert_eq!(mapping.bytes()[7 * PAGE + 1], 9);
    }

    #[test]
    fn touching_is_as_good_as_the_call() {
        let mut mapping = Mapping::anonymous(100 * PAGE, PageSize::Small).unwrap();
        mapping.bytes_mut()[7 * PAGE] = 9;
        touch(mapping.bytes_mut());
        assert_eq!(mapping.resident_pages() * rustix::param::page_size(), mapping.length());
        let expected = |place: usize| if place == 7 * PAGE { 9 } else { 0 };
        assert!(mapping.bytes().iter().enumerate().all(|(place, byte)| *byte == expected(place)));
    }

    #[test]
    fn while_threads_are_being_started_small_parts_are_touched() {
        let length = CALL_BYTES + TOUCH_BYTES / 2;
        for helpers in [0, 1] {
            let mapping = Mapping::anonymous(length, PageSize::Small).unwrap();
            let pending_starts = PendingStarts::default();
            pending_starts.add(helpers);
            let mut parts = Vec::new();
            while let Some(&offset) = parts.last().or(Some(&0)).filter(|offset| **offset < length) {
                // SAFETY: this test holds the mapping and no slice of it.
                let part = unsafe { mapping.populate_part(offset..length, &pending_starts) };
                parts.push(offset + part.unwrap().0);
            }
            let step = if helpers == 0 { CALL_BYTES } else { TOUCH_BYTES };
            assert_eq!(parts.len(), length.div_ceil(step));
            assert_eq!(mapping.resident_pages() * rustix::param::page_size(), length);
        }
    }

    #[test]
    fn faulting_in_by_several_threads_changes_nothing() {
        let mut mapping = Mapping::anonymous(4 * CALL_BYTES, PageSize::Small).unwrap();
        mapping.bytes_mut().fill(7);
        assert_eq!(mapping.prefault(4).unwrap().populated, PopulateMethod::Madvise);
        assert!(mapping.bytes().iter().all(|byte| *byte == 7));
    }

    #[test]
    fn pages_that_cannot_be_unmapped_are_returned_all_the_same() {
        let mut mapping = Mapping::anonymous(8 * PAGE, PageSize::Small).unwrap();
        mapping.bytes_mut().fill(5);
        let (start, length, pages) = (mapping.start, mapping.length, mapping.pages);
        assert!(mapping.unmap_with(|_, _| Err(Errno::NOMEM)));
        drop(mapping);
        let left = Mapping { start, length, pages };
        assert_eq!(left.resident_pages(), 0);
        assert!(left.bytes().iter().all(|byte| *byte == 0), "they are mapped, and empty");
    }

    #[test]
    fn a_discarded_range_is_gone_and_its_neighbours_are_not() {
        let page = rustix::param::page_size();
        let mut mapping = Mapping::anonymous(8 * page, PageSize::Small).unwrap();
        mapping.bytes_mut().fill(5);
        // SAFETY: this test holds the mapping and no slice of it.
        unsafe { mapping.discard_range(2 * page, 3 * page) }.unwrap();
        assert_eq!(mapping.resident_pages(), 5);
        let expected = |place: usize| if (2..5).contains(&(place / page)) { 0 } else { 5 };
        assert!(mapping.bytes().iter().enumerate().all(|(place, byte)| *byte == expected(place)));
    }

    #[test]
    fn huge_pages_are_aligned_and_whole() {
        let mut mapping = Mapping::anonymous(3 * HUGE_PAGE_BYTES - 1, PageSize::Huge).unwrap();
        assert_eq!(mapping.length(), 3 * HUGE_PAGE_BYTES);
        assert_eq!(mapping.start.as_ptr() as usize % HUGE_PAGE_BYTES, 0);
        mapping.populate().unwrap();
        mapping.bytes_mut().fill(1);
    }

    #[test]
    fn both_parts_of_a_split_mapping_end_alone() {
        let page = rustix::param::page_size();
        for the_first_ends in [true, false] {
            let mut second = Mapping::anonymous(8 * page, PageSize::Small).unwrap();
            second.bytes_mut().fill(1);
            let mut first = second.split(3 * page).unwrap();
            assert_eq!((first.length(), second.length()), (3 * page, 5 * page));
            assert_eq!(first.bytes().as_ptr_range().end, second.bytes().as_ptr());
            second.bytes_mut().fill(2);
            assert!(first.bytes().iter().all(|byte| *byte == 1));
            first.bytes_mut().fill(3);
            let (goes, stays) = if the_first_ends { (first, second) } else { (second, first) };
            let expected = if the_first_ends { 2 } else { 3 };
            drop(goes);
            assert!(stays.bytes().iter().all(|byte| *byte == expected));
            assert_eq!(stays.resident_pages(), stays.length() / page);
        }
    }

    #[test]
    fn a_split_that_leaves_nothing_or_half_a_page_is_none() {
        let page = rustix::param::page_size();
        let mut small = Mapping::anonymous(4 * page, PageSize::Small).unwrap();
        for length in [0, 1, page - 1, page + 1, 4 * page, 5 * page, usize::MAX] {
            assert!(small.split(length).is_none(), "{length}");
            assert_eq!(small.length(), 4 * page);
        }
        let mut huge = Mapping::anonymous(2 * HUGE_PAGE_BYTES, PageSize::Huge).unwrap();
        assert!(huge.split(page).is_none(), "it would not be aligned any more");
        let first = huge.split(HUGE_PAGE_BYTES).unwrap();
        assert_eq!((first.pages(), first.length()), (PageSize::Huge, huge.length()));
    }

    #[test]
    fn everything_is_resident_whatever_the_chunks() {
        let page = rustix::param::page_size();
        for (pages, chunk, threads) in
            [(1, 1, 1), (300, 16, 2), (301, 16, 4), (64, 64, 4), (5, 1, 0)]
        {
            let mut mapping = Mapping::anonymous(pages * page, PageSize::Small).unwrap();
            let chunk = (chunk * page) as u64;
            let job =
                ParallelFor::over(0..mapping.length() as u64).align(chunk).min_chunk_size(chunk);
            let report = mapping.prefault_by(job.max_threads(threads)).unwrap();
            println!("{report:?}");
            assert!(report.threads as usize <= threads.max(1) && report.chunks >= 1);
            assert_eq!(mapping.resident_pages(), pages);
            assert!(mapping.bytes().iter().all(|byte| *byte == 0));
        }
    }

    #[test]
    fn a_small_mapping_is_one_call_on_the_caller() {
        let mut mapping = Mapping::anonymous(8 << 20, PageSize::Huge).unwrap();
        let report = mapping.prefault(8).unwrap();
        assert_eq!((report.threads, report.chunks), (1, 1));
    }
}

//! Anonymous memory straight from the system. It owns one mapping, or a part of one that was split, and
//! every call about memory that this crate makes; it knows no budget and no policy. The page pool's arena
//! and each block of scratch is one; a benchmark may make its own.
#![allow(unsafe_code, reason = "mapping, growing, faulting in, returning and unmapping")]

use std::ffi::c_void;
use std::ops::Range;
use std::ptr::NonNull;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::mm;

use crate::jobs::PendingStarts;
use crate::jobs::{ParallelFor, ParallelForReport};
use crate::sync::{AtomicBool, Ordering, PlainAtomicU8, PlainAtomicU64};
use crate::{Error, ErrorKind};

/// A huge page of x86-64 and of aarch64 with small pages of 4 KiB.
pub(super) const HUGE_PAGE_BYTES: usize = 2 << 20;

/// Which pages a mapping is made of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum PageSize {
    /// The system's base pages, and never others, so that what is charged is what is resident.
    #[default]
    Small,
    /// Transparent huge pages where the system has any. They come and go in 2 MiB at a time, whatever
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

/// How pages were faulted in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum PopulateMethod {
    /// By one call for the range.
    Madvise,
    /// Not yet: the kernel is older than 5.14 and its owner must write to each page.
    Touch,
}

/// Whether memory is kept from being swapped out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum LockState {
    /// Nobody asked.
    NotRequested,
    /// Every page that is or becomes resident stays so.
    Yes,
    /// The system refused, with this error number; all else works.
    Refused(i32),
}

/// How a job faulted in.
#[derive(Debug)]
pub(super) struct PopulateReport {
    pub(super) report: ParallelForReport,
    pub(super) populated: PopulateMethod,
    /// By all threads together.
    pub(super) taken: Duration,
}

/// What one call of a job faults in. The call keeps the process's lock on its mappings for as long as
/// it takes, and whoever maps or starts a thread waits for it: with calls of 512 MiB the second thread
/// of a job began when the first piece of the caller was done (docs/benchmarks.md).
const CALL_BYTES: usize = 8 << 20;

/// What is touched between two looks at whether a helper is still being started.
const TOUCH_BYTES: usize = 64 << 10;

/// Private anonymous memory, readable and writable. Its bytes are zero until they are written.
///
/// It is whole pages, and no other value has any of them: `split` leaves the two ranges apart.
/// To the system an owner is nothing: its calls act on a range of pages, whichever call mapped them.
#[derive(Debug)]
pub struct Mapping {
    start: NonNull<u8>,
    length: usize,
    pages: PageSize,
}

// SAFETY: a mapping is memory that only this value leads to; no thread is special to it.
unsafe impl Send for Mapping {}
// SAFETY: through `&Mapping` nothing is written: `bytes` only reads, `populate_range` and `lock`
// leave contents alone, and `page` and `discard_range` are unsafe with contracts of their own.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps `length` bytes, size_class up to whole pages of the kind. Nothing is resident yet, and the
    /// system is not asked to set anything aside.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidSetting`] when the length is 0 or cannot be size_class up;
    /// [`ErrorKind::OutOfMemory`] when the system has no room; [`ErrorKind::System`] otherwise.
    pub fn anonymous(length: usize, pages: PageSize) -> Result<Self, Error> {
        let unit = pages.bytes();
        let invalid = Error::new(ErrorKind::InvalidSetting, "bytes of a mapping")
            .with_amount(length as u64, isize::MAX as u64);
        let length = length.checked_next_multiple_of(unit).ok_or(invalid)?;
        // More than the unit is mapped where the start must be aligned, and cut off again.
        let slack = unit - rustix::param::page_size();
        let whole = length.checked_add(slack).filter(|whole| isize::try_from(*whole).is_ok());
        let whole = whole.filter(|_| length > 0).ok_or(invalid)?;
        let flags = mm::MapFlags::PRIVATE | mm::MapFlags::NORESERVE;
        let access = mm::ProtFlags::READ | mm::ProtFlags::WRITE;
        // SAFETY: a new mapping where the kernel likes: no memory that exists is touched.
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

    /// Which pages it is made of.
    #[must_use]
    pub fn pages(&self) -> PageSize {
        self.pages
    }

    /// Its bytes.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: `length` readable bytes, zero or written before, mapped until drop; the arena, whose
        // bytes others write, never calls this (it hands out `page` only).
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.length) }
    }

    /// Its bytes, for writing.
    #[must_use]
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `bytes`, and `&mut self` excludes every other slice.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.length) }
    }

    /// Faults everything in with one call on this thread. A kernel older than 5.14 has no such call:
    /// then each page is written to instead, and keeps its contents.
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

    /// Faults everything in, piece by piece as `job` cuts it. The job's range counts the mapping's bytes.
    pub(super) fn populate_by(&mut self, job: ParallelFor<'_>) -> Result<PopulateReport, Error> {
        let is_touched = AtomicBool::new(false);
        let nanos = PlainAtomicU64::new(0);
        let pending_starts = PendingStarts::default();
        let this = &*self;
        let report = job.report_pending_starts(&pending_starts).run(|piece| {
            let begin = Instant::now();
            let mut offset = usize::try_from(piece.start).unwrap_or(usize::MAX);
            let end = usize::try_from(piece.end).unwrap_or(usize::MAX);
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

    /// Faults the first part of a range in; says how long that part is, and whether the system has no call for it.
    ///
    /// While threads are being started it touches pages: a call, however short, takes the process's lock on its mappings,
    /// for which a thread waits some six times before it gets to work (docs/workers.md, "HelperBudget"). A fault locks
    /// no more than its own mapping (Linux 6.4).
    ///
    /// # Safety
    ///
    /// Nobody but the caller may look at the range.
    unsafe fn populate_part(
        &self,
        range: Range<usize>,
        pending_starts: &PendingStarts,
    ) -> Result<(usize, PopulateMethod), Error> {
        let touch_part = |length| {
            if let Some(start) = self.address(range.start, length) {
                // SAFETY: inside of the mapping by the line above, and the caller's own by contract.
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

    /// Faults a range in, for writing, and leaves its contents alone; parts outside of the mapping are
    /// left out.
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

    /// Keeps what is resident and what becomes so from being swapped out.
    pub(super) fn lock(&self) -> LockState {
        // SAFETY: the range is this mapping; locking changes no contents.
        let locked = unsafe {
            mm::mlock_with(
                self.start.as_ptr().cast::<c_void>(),
                self.length,
                mm::MlockFlags::ONFAULT,
            )
        };
        match locked {
            Ok(()) => LockState::Yes,
            Err(errno) => LockState::Refused(errno.raw_os_error()),
        }
    }

    /// Gives the pages of a range back to the system; its bytes are zero afterwards.
    ///
    /// # Safety
    ///
    /// Nobody but the caller may hold a reference into the range.
    pub(super) unsafe fn discard_range(
        &self,
        offset: usize,
        length: usize,
        locked: LockState,
    ) -> Result<(), Error> {
        let advice = match locked {
            LockState::Yes => mm::Advice::LinuxDontneedLocked,
            LockState::NotRequested | LockState::Refused(_) => mm::Advice::LinuxDontNeed,
        };
        self.advise(offset, length, advice).map_err(|errno| refused("returning memory", errno))
    }

    /// Where `length` bytes from `offset` begin; none when they are not all inside.
    pub(super) fn address(&self, offset: usize, length: usize) -> Option<NonNull<u8>> {
        if offset.checked_add(length)? > self.length {
            return None;
        }
        // SAFETY: `offset` is inside of the mapping, by the line above.
        Some(unsafe { self.start.add(offset) })
    }

    /// Changes the length, size_class up to whole pages; the mapping may move. On an error it is as it
    /// was. Small pages only: the alignment of huge ones would be lost.
    pub(super) fn resize(&mut self, length: usize) -> Result<(), Error> {
        let page = rustix::param::page_size();
        let length = length.checked_next_multiple_of(page).filter(|length| *length > 0).ok_or(
            Error::new(ErrorKind::InvalidSetting, "bytes of a mapping")
                .with_amount(length as u64, isize::MAX as u64),
        )?;
        let old = self.start.as_ptr().cast::<c_void>();
        // SAFETY: the range is this value's own pages, all of them and no others, also after a split, and
        // `&mut self` says that nobody points into it.
        let start = unsafe { mm::mremap(old, self.length, length, mm::MremapFlags::MAYMOVE) }
            .map_err(|errno| refused("growing a mapping", errno))?;
        if let Some(start) = NonNull::new(start.cast::<u8>()) {
            self.start = start;
            self.length = length;
        }
        Ok(())
    }

    /// Takes the first `length` bytes out of this mapping into one of their own, without a system call:
    /// what is resident stays so. Each ends, moves and grows alone. None, and all is as it was, unless
    /// both are whole pages of the kind and not empty.
    pub(super) fn split(&mut self, length: usize) -> Option<Self> {
        let rest = self.length.checked_sub(length).filter(|rest| *rest > 0 && length > 0)?;
        if !length.is_multiple_of(self.pages.bytes()) {
            return None;
        }
        let start = self.address(length, rest)?;
        // One page has one owner, which the unsafe code here relies on: this value gives up exactly what
        // the other gets, nothing ends between these lines, and `&mut self` says that nobody points into
        // either.
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

    /// Tells the kernel which pages are wanted. A kernel without huge pages refuses both, and is
    /// right: it has small ones only.
    fn choose_pages(&self) {
        let advice = match self.pages {
            PageSize::Small => mm::Advice::LinuxNoHugepage,
            PageSize::Huge => mm::Advice::LinuxHugepage,
        };
        self.advise(0, self.length, advice).ok();
    }

    /// One `madvise` over the part of a range that is inside. Callers pass advice that keeps contents,
    /// or, in `discard_range`, are told by their own callers that nobody looks.
    fn advise(&self, offset: usize, length: usize, advice: mm::Advice) -> Result<(), Errno> {
        let offset = offset.min(self.length);
        let length = length.min(self.length - offset);
        // SAFETY: the range is inside of this mapping by the lines above; what the advice does to the
        // contents is the contract of this function's callers.
        unsafe { mm::madvise(self.start.add(offset).as_ptr().cast::<c_void>(), length, advice) }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        let start = self.start.as_ptr().cast::<c_void>();
        // SAFETY: this value's own pages, all of them; a neighbour that was split off keeps its own, as
        // the range is whole pages; and nobody borrows from it any more.
        let ended = unsafe { mm::munmap(start, self.length) };
        debug_assert_eq!(ended, Ok(()), "a mapping ends once");
    }
}

/// Faults memory in by a write to each page that changes nothing: 0 for 0 where it is 0. A plain read before it
/// would fault the system's page of zeros in first.
pub(super) fn touch(bytes: &mut [u8]) {
    for page in bytes.chunks_mut(rustix::param::page_size()) {
        if let Some(first) = page.first_mut() {
            // SAFETY: a byte that this function has for itself.
            let first = unsafe { PlainAtomicU8::from_ptr(first) };
            // What it was is of no interest: if not 0, it was written to, and its page is there.
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

#[cfg(all(test, not(loom)))]
mod tests;

//! A request of the baselines: which page, what came of it, and the flag that says so.

use crate::deflater::Deflater;
use crate::page_store::PageStore;
use crate::rows::Tally;
use crate::sync::{AtomicBool, AtomicU32, AtomicUsize, Ordering};

/// A slot, as large and as dense as in QEMU's bench: a header of 8 bytes, then the payload, in which
/// the stream of zlib stands between header and page. Our stream lives with the worker; its room is
/// kept so that neighbours share lines just as they do there.
#[derive(Debug, Default)]
#[repr(C, align(8))]
pub(crate) struct Slot {
    is_done: AtomicBool,
    _stream_room: [u64; 14],
    page: AtomicUsize,
    written_bytes: AtomicU32,
    _buffer_room: u64,
}

// All accesses are relaxed: the bitmaps hand a slot over, and pair with each other.
impl Slot {
    /// By the submitter, which owns the slot.
    pub(crate) fn fill(&self, page: usize) {
        self.page.store(page, Ordering::Relaxed);
    }

    /// By the worker, which owns the slot. What failed counts no page, and the pass says so.
    pub(crate) fn handle(&self, pages: &PageStore, deflater: &mut Deflater) {
        let page = pages.page(self.page.load(Ordering::Relaxed));
        let bytes = page.and_then(|page| deflater.compress(page).ok()).unwrap_or(0);
        self.written_bytes.store(u32::try_from(bytes).unwrap_or(0), Ordering::Relaxed);
        self.is_done.store(true, Ordering::Relaxed);
    }

    /// By the submitter, which owns the slot again: the done-callback, once a request.
    pub(crate) fn collect(&self, tally: &mut Tally) {
        if self.is_done.load(Ordering::Relaxed) {
            self.is_done.store(false, Ordering::Relaxed);
            tally.add(self.written_bytes.load(Ordering::Relaxed).into());
        }
    }
}

//! The memory that the workqueue experiment compresses: whole pages, aligned to pages, present before
//! the clock starts. Written one byte a page by the submitter, read by the workers.

use std::sync::atomic::{AtomicU8, Ordering};

use anyhow::{Context, Result};

/// The size of a page here, whatever the system's is.
pub(crate) const PAGE_BYTES: usize = 4096;
/// Pages in a GiB.
pub(crate) const PAGES_PER_GIB: usize = (1 << 30) / PAGE_BYTES;
/// What the submitter writes into each page, as QEMU's bench does.
const MARK: u8 = 0x10;

/// One page.
#[derive(Debug)]
#[repr(C, align(4096))]
pub(crate) struct Page([AtomicU8; PAGE_BYTES]);

impl Default for Page {
    /// Zeros.
    fn default() -> Self {
        Self([const { AtomicU8::new(0) }; PAGE_BYTES])
    }
}

impl Page {
    /// Where its bytes begin.
    pub(crate) fn address(&self) -> *const u8 {
        self.0.as_ptr().cast()
    }
}

/// A run of pages.
#[derive(Debug)]
pub(crate) struct PageStore {
    pages: Box<[Page]>,
}

impl PageStore {
    /// Pages of zeros, written once so that none of them faults later.
    pub(crate) fn new(count: usize) -> Result<Self> {
        let mut pages: Vec<Page> = Vec::new();
        pages.try_reserve_exact(count).with_context(|| format!("no memory for {count} pages"))?;
        pages.resize_with(count, Page::default);
        Ok(Self { pages: pages.into_boxed_slice() })
    }

    /// How many there are.
    pub(crate) fn count(&self) -> usize {
        self.pages.len()
    }

    /// All of them.
    pub(crate) fn all(&self) -> &[Page] {
        &self.pages
    }

    /// The page of that number.
    pub(crate) fn page(&self, number: usize) -> Option<&Page> {
        self.pages.get(number)
    }

    /// Writes the byte that each repetition begins with. Relaxed: the hand-over to the worker
    /// publishes it.
    pub(crate) fn mark(&self, number: usize) {
        if let Some(Page([first, ..])) = self.pages.get(number) {
            first.store(MARK, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{PAGE_BYTES, PageStore};

    #[test]
    fn pages_are_aligned_to_pages() {
        let store = PageStore::new(3).unwrap();
        assert_eq!(store.count(), 3);
        assert!(store.all().iter().all(|page| page.address().addr().is_multiple_of(PAGE_BYTES)));
    }
}

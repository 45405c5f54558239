//! Parts of the pages that two extents share.
//!
//! Extents end anywhere in a page of the file. When one of them is decoded, its part of its first and last page is kept
//! here until the other extent is decoded, too, so that random reads decode no extent a second time for one page.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use ferrofs_workers::memory::{AllocPolicy, Budget, Charge};

/// The unit of the page cache, in bytes. Where pages are larger, the kernel takes parts of pages, too.
const PAGE_BYTES: u64 = 4096;
/// How many are kept: they are searched one after the other.
const MAX_PAGES: usize = 256;
/// The most bytes of them. They are charged to the memory of the image from the start.
const MAX_BYTES: u64 = 512 << 10;

/// The first byte of the page of a byte.
pub(super) const fn page_start(at: u64) -> u64 {
    at & !(PAGE_BYTES - 1)
}

/// The end of the pages before a byte.
pub(super) fn page_end(at: u64) -> u64 {
    at.checked_next_multiple_of(PAGE_BYTES).unwrap_or(at)
}

/// Part of a page of a file, but not all of it.
#[derive(Debug)]
struct PartialPage {
    node: u64,
    /// Where the part starts, in bytes of the file.
    start: u64,
    bytes: Box<[u8]>,
}

impl PartialPage {
    fn is_of(&self, node: u64, page_start: u64) -> bool {
        self.node == node && self.start & !(PAGE_BYTES - 1) == page_start
    }

    fn range(&self) -> Range<u64> {
        let length = u64::try_from(self.bytes.len()).unwrap_or(u64::MAX);
        self.start..self.start.saturating_add(length)
    }
}

/// Those of all files, at most one for each page; the oldest are dropped.
#[derive(Debug)]
pub(super) struct PartialPages {
    pages: Mutex<VecDeque<PartialPage>>,
    /// Of `pages`; without the lock, so that reads of images without long extents need none.
    count: AtomicUsize,
    /// Of [`MAX_BYTES`]. Nothing is kept without it.
    charge: Option<Charge>,
}

impl PartialPages {
    /// Keeps nothing without a budget.
    pub(super) fn new(budget: Option<&Budget>) -> Self {
        Self {
            pages: Mutex::default(),
            count: AtomicUsize::new(0),
            charge: budget.and_then(|budget| budget.charge(MAX_BYTES, AllocPolicy::MayFail).ok()),
        }
    }

    /// Adds part of a page of a file of `size` bytes. If that completes the page, it is removed and returned, with the offset
    /// at which it starts.
    pub(super) fn add(
        &self,
        node: u64,
        start: u64,
        bytes: &[u8],
        size: u64,
    ) -> Option<(u64, Vec<u8>)> {
        self.charge.as_ref()?;
        let page_start = page_start(start);
        let mut pages = self.pages.lock().unwrap_or_else(PoisonError::into_inner);
        let other = pages.iter().position(|page| page.is_of(node, page_start));
        let other = other.and_then(|index| pages.remove(index));
        let added = PartialPage { node, start, bytes: bytes.into() };
        let joined = match other {
            Some(other) if other.range().end == start => join(&other, &added),
            Some(other) if added.range().end == other.start => join(&added, &other),
            _ => added,
        };
        let page = page_start..page_start.saturating_add(PAGE_BYTES).min(size);
        let whole = if joined.range() == page {
            Some((page_start, joined.bytes.into_vec()))
        } else {
            pages.push_back(joined);
            drop_oldest(&mut pages);
            None
        };
        // Relaxed: a read that misses a part decodes it.
        self.count.store(pages.len(), Ordering::Relaxed);
        whole
    }

    /// Removes the parts with which a read starts and ends, and copies them to `target`. Returns the range of `target` that
    /// is missing, which is never empty.
    pub(super) fn take(&self, node: u64, offset: u64, target: &mut [u8]) -> Range<usize> {
        let mut missing = 0..target.len();
        // Relaxed: as above.
        if self.count.load(Ordering::Relaxed) == 0 {
            return missing;
        }
        let end = offset.saturating_add(u64::try_from(target.len()).unwrap_or(u64::MAX));
        // To decode the parts is better than to wait for another thread.
        let Ok(mut pages) = self.pages.try_lock() else { return missing };
        let is_front = |page: &PartialPage| page.node == node && page.start == offset;
        let is_end = |page: &PartialPage| page.node == node && page.range().end == end;
        if let Some(front) = remove_shorter(&mut pages, is_front, target.len()) {
            let (to, _) = target.split_at_mut(front.bytes.len());
            to.copy_from_slice(&front.bytes);
            missing.start = front.bytes.len();
        }
        let rest = missing.len();
        if let Some(last) = remove_shorter(&mut pages, is_end, rest) {
            missing.end = target.len().saturating_sub(last.bytes.len());
            let (_, to) = target.split_at_mut(missing.end);
            to.copy_from_slice(&last.bytes);
        }
        self.count.store(pages.len(), Ordering::Relaxed);
        missing
    }
}

/// Removes a part that is shorter than `bytes`.
fn remove_shorter(
    pages: &mut VecDeque<PartialPage>,
    is_wanted: impl Fn(&PartialPage) -> bool,
    bytes: usize,
) -> Option<PartialPage> {
    let is_wanted = |page: &PartialPage| page.bytes.len() < bytes && is_wanted(page);
    let index = pages.iter().position(is_wanted)?;
    pages.remove(index)
}

/// A part and the one that follows it.
fn join(first: &PartialPage, second: &PartialPage) -> PartialPage {
    let bytes = [&*first.bytes, &*second.bytes].concat();
    PartialPage { node: first.node, start: first.start, bytes: bytes.into() }
}

fn drop_oldest(pages: &mut VecDeque<PartialPage>) {
    let bytes = |pages: &VecDeque<PartialPage>| {
        pages.iter().map(|page| page.bytes.len() as u64).sum::<u64>()
    };
    while pages.len() > MAX_PAGES || bytes(pages) > MAX_BYTES {
        pages.pop_front();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIZE: u64 = 1 << 20;

    fn partial_pages() -> PartialPages {
        PartialPages::new(Some(&Budget::new(1 << 20)))
    }

    #[test]
    fn a_page_is_whole_when_both_extents_are_decoded_in_any_order() {
        for is_turned in [false, true] {
            let pages = partial_pages();
            let mut parts = [(8192, vec![1; 100]), (8292, vec![2; 3996])];
            if is_turned {
                parts.reverse();
            }
            let [(start, bytes), other] = parts;
            assert_eq!(pages.add(7, start, &bytes, SIZE), None);
            // A part of another file does not fit.
            assert_eq!(pages.add(8, other.0, &other.1, SIZE), None);
            let whole = [vec![1; 100], vec![2; 3996]].concat();
            assert_eq!(pages.add(7, other.0, &other.1, SIZE), Some((8192, whole)));
            assert_eq!(pages.count.load(Ordering::Relaxed), 1);
        }
    }

    #[test]
    fn the_last_page_of_a_file_ends_with_the_file() {
        let pages = partial_pages();
        assert_eq!(pages.add(7, 0, &[1; 100], 150), None);
        let whole = [vec![1; 100], vec![2; 50]].concat();
        assert_eq!(pages.add(7, 100, &[2; 50], 150), Some((0, whole)));
    }

    #[test]
    fn an_extent_within_a_page_is_joined_with_its_neighbours() {
        let pages = partial_pages();
        assert_eq!(pages.add(7, 0, &[1; 1000], SIZE), None);
        assert_eq!(pages.add(7, 1000, &[2; 1000], SIZE), None);
        let whole = [vec![1; 1000], vec![2; 1000], vec![3; 2096]].concat();
        assert_eq!(pages.add(7, 2000, &[3; 2096], SIZE), Some((0, whole)));
        // What leaves a gap replaces what was there.
        assert_eq!(pages.add(7, 4096, &[1; 1000], SIZE), None);
        assert_eq!(pages.add(7, 6096, &[3; 2096], SIZE), None);
        let mut page = [0; 4096];
        assert_eq!(pages.take(7, 4096, &mut page), 0..2000);
        assert_eq!(page[1999..2001], [0, 3]);
    }

    #[test]
    fn a_read_takes_the_parts_of_its_first_and_last_page() {
        let pages = partial_pages();
        pages.add(7, 4096, &[1; 100], SIZE);
        pages.add(7, 12_000, &[2; 288], SIZE);
        let mut target = vec![0; 8192];
        // No part starts or ends where these do.
        assert_eq!(pages.take(7, 8192, &mut target), 0..8192);
        assert_eq!(pages.take(8, 4096, &mut target), 0..8192);
        assert_eq!(pages.take(7, 4096, &mut target), 100..7904);
        let wanted = [vec![1; 100], vec![0; 7804], vec![2; 288]].concat();
        assert!(target == wanted);
        assert_eq!(pages.take(7, 4096, &mut target), 0..8192, "both were taken");
    }

    /// A direct read may be shorter than a page.
    #[test]
    fn a_read_that_a_part_covers_takes_none_of_it() {
        let pages = partial_pages();
        pages.add(7, 4096, &[1; 100], SIZE);
        assert_eq!(pages.take(7, 4096, &mut [0; 100]), 0..100);
        assert_eq!(pages.take(7, 4096, &mut [0; 50]), 0..50);
        assert_eq!(pages.take(7, 4096, &mut [0; 101]), 100..101);
    }

    #[test]
    fn the_oldest_are_dropped_and_without_memory_none_is_kept() {
        let kept = partial_pages();
        for page in 0..300 {
            kept.add(7, page * PAGE_BYTES, &[1; 4000], SIZE << 4);
        }
        let pages = kept.pages.lock().unwrap();
        assert_eq!(pages.len() as u64, MAX_BYTES / 4000);
        assert_eq!(pages.back().unwrap().start, 299 * PAGE_BYTES);
        let none = PartialPages::new(Some(&Budget::new(MAX_BYTES - 1)));
        assert_eq!(none.add(7, 0, &[1; 100], SIZE), None);
        assert_eq!(none.take(7, 0, &mut [0; 4096]), 0..4096);
    }
}

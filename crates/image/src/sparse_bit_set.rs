//! A set of numbers that is small where they lie close together: inodes of a tree, bytes of an image
//! that were read. It knows neither; `walk` and `verify` charge what it takes.

use std::collections::HashMap;
use std::ops::Range;

use foldhash::fast::RandomState;

/// A page of the set has so many bits: eight words.
const PAGE_BITS: u32 = 9;
/// Numbers of a page.
const PAGE_NUMBERS: u64 = 1 << PAGE_BITS;
/// Numbers of a word.
const WORD_NUMBERS: u64 = 64;

/// A set of 64-bit numbers: a bit each, in pages of 512. A million numbers in a row take some 200
/// KiB.
#[derive(Debug, Default)]
pub(crate) struct SparseBitSet {
    pages: HashMap<u64, [u64; 8], RandomState>,
}

impl SparseBitSet {
    /// Adds a number; false if it was there.
    pub(crate) fn insert(&mut self, number: u64) -> bool {
        let page = self.pages.entry(number >> PAGE_BITS).or_default();
        let word = usize::try_from((number >> 6) & 7).ok().and_then(|word| page.get_mut(word));
        let bit = 1u64 << (number & 63);
        let Some(word) = word else { return false };
        let is_new = *word & bit == 0;
        *word |= bit;
        is_new
    }

    /// Whether a number is in the set.
    pub(crate) fn contains(&self, number: u64) -> bool {
        let page = self.pages.get(&(number >> PAGE_BITS));
        let word = usize::try_from((number >> 6) & 7).ok();
        let word = page.zip(word).and_then(|(page, word)| page.get(word));
        word.is_some_and(|word| *word & 1u64 << (number & 63) != 0)
    }

    /// Adds a range; returns how many of its numbers were not there.
    pub(crate) fn insert_range(&mut self, range: Range<u64>) -> u64 {
        let mut added = 0u64;
        for (page, masks) in page_masks(range) {
            let page = self.pages.entry(page).or_default();
            for (word, mask) in page.iter_mut().zip(masks) {
                added = added.saturating_add(u64::from((mask & !*word).count_ones()));
                *word |= mask;
            }
        }
        added
    }

    /// Whether all numbers of a range are in the set. Takes a lookup for each page.
    pub(crate) fn contains_range(&self, range: Range<u64>) -> bool {
        page_masks(range).all(|(page, masks)| {
            let page = self.pages.get(&page);
            page.is_some_and(|page| page.iter().zip(masks).all(|(word, mask)| mask & !word == 0))
        })
    }

    /// About how many bytes it takes.
    pub(crate) fn bytes(&self) -> u64 {
        table_bytes(u64::try_from(self.pages.capacity()).unwrap_or(u64::MAX))
    }

    /// About how many bytes it takes after one more [`insert`](Self::insert): a full table doubles.
    pub(crate) fn bytes_after_insert(&self) -> u64 {
        self.bytes_after_pages(1)
    }

    /// About how many bytes it takes after one more [`insert_range`](Self::insert_range), none of whose
    /// numbers may be there.
    pub(crate) fn bytes_after_insert_range(&self, range: &Range<u64>) -> u64 {
        let pages = pages(range);
        self.bytes_after_pages(pages.end.saturating_sub(pages.start))
    }

    fn bytes_after_pages(&self, pages: u64) -> u64 {
        let needed = u64::try_from(self.pages.len()).unwrap_or(u64::MAX).saturating_add(pages);
        let mut capacity = u64::try_from(self.pages.capacity()).unwrap_or(u64::MAX);
        while capacity < needed {
            capacity = capacity.saturating_mul(2).saturating_add(4);
        }
        table_bytes(capacity)
    }
}

fn table_bytes(capacity: u64) -> u64 {
    const PAGE_BYTES: u64 = 80;
    capacity.saturating_mul(PAGE_BYTES)
}

/// The pages that have a number of a range.
fn pages(range: &Range<u64>) -> Range<u64> {
    if range.is_empty() {
        return 0..0;
    }
    range.start >> PAGE_BITS..(range.end.saturating_sub(1) >> PAGE_BITS).saturating_add(1)
}

/// The pages that have a number of a range, with the bits of the range in each of their words.
fn page_masks(range: Range<u64>) -> impl Iterator<Item = (u64, [u64; 8])> {
    pages(&range).map(move |page| {
        let mut first = page << PAGE_BITS;
        // Most pages of a long range: four times as fast.
        if range.start <= first && range.end.saturating_sub(first) >= PAGE_NUMBERS {
            return (page, [u64::MAX; 8]);
        }
        let masks = [(); 8].map(|()| {
            let mask = bits_from(range.start, first) & !bits_from(range.end, first);
            first = first.saturating_add(WORD_NUMBERS);
            mask
        });
        (page, masks)
    })
}

/// The bits from number `from` on, in a word whose first number is `first`.
fn bits_from(from: u64, first: u64) -> u64 {
    let below = u32::try_from(from.saturating_sub(first)).unwrap_or(u32::MAX);
    u64::MAX.checked_shl(below).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn it_is_a_set() {
        let (mut set, mut truth) = (SparseBitSet::default(), HashSet::new());
        let mut number = 1u64;
        for step in 0..20_000u64 {
            number = number.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(step);
            let next = if step % 2 == 0 { number % 5_000 } else { number >> (step % 60) };
            assert_eq!(set.contains(next), truth.contains(&next), "{next}");
            let bound = set.bytes_after_insert();
            assert_eq!(set.insert(next), truth.insert(next), "{next}");
            assert!(set.contains(next) && set.bytes() <= bound, "{next}");
        }
    }

    #[test]
    fn a_range_adds_what_its_numbers_add() {
        let (mut set, mut truth) = (SparseBitSet::default(), HashSet::new());
        let mut number = 7u64;
        for step in 0..3_000u64 {
            number = number.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(step);
            let start = (number >> 33) % 20_000;
            let end = start + (number >> 20) % 1_300;
            let added = (start..end).filter(|number| truth.insert(*number)).count() as u64;
            let bound = set.bytes_after_insert_range(&(start..end));
            assert_eq!(set.insert_range(start..end), added, "{start}..{end}");
            assert!(set.contains_range(start..end) && set.bytes() <= bound, "{start}..{end}");
            let (first, last) = (start.saturating_sub(number % 700), end + number % 600);
            let is_there = (first..last).all(|number| truth.contains(&number));
            assert_eq!(set.contains_range(first..last), is_there, "{first}..{last}");
        }
        assert!(set.contains_range(5..5) && !set.contains_range(0..u64::MAX));
        assert_eq!(set.insert_range(5..5), 0);
        assert_eq!(set.insert_range(u64::MAX - 3..u64::MAX), 3);
        assert!(set.contains_range(u64::MAX - 3..u64::MAX));
        assert!(!set.contains_range(u64::MAX - 4..u64::MAX));
        assert!(set.bytes_after_insert_range(&(0..u64::MAX)) >= 80 << 55);
    }

    #[test]
    fn numbers_in_a_row_take_little() {
        let mut set = SparseBitSet::default();
        (0..1_000_000).for_each(|number| assert!(set.insert(number)));
        assert!(set.bytes() < 512 << 10, "{}", set.bytes());
    }
}

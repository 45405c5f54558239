//! An ordered map from byte strings to 64 bits, in pages of a [`SpillStore`]: a B+ tree.
//!
//! A page holds its entries in any order, and their places in the order of their keys, so that it is searched by
//! bisection. Pages are split and never joined. A leaf whose entries were all removed is taken out, unless it is the
//! first one below its parent; so few of them are left that a scan passes.

use super::paged::first;
use super::{PAGE_BYTES, SpillStore};

/// The longest key.
pub(crate) const KEY_BYTES_MAX: usize = 512;
/// Levels of pages at most: each page has seven entries at least, and there are 2^32 pages.
const LEVELS_MAX: usize = 16;
/// Kind, number of entries, end of the entries, and a page: the next leaf, or the child before the first key.
const HEADER_BYTES: usize = 16;
/// Length of the key and the value.
const ENTRY_BYTES: usize = 2 + 8;
/// The place of an entry.
const PLACE_BYTES: usize = 2;
/// No next leaf.
const NO_PAGE: u32 = u32::MAX;

/// The map.
#[derive(Debug)]
pub(crate) struct OrderedMap {
    store: SpillStore,
    pages: Vec<u32>,
    /// Leaves that were taken out.
    vacant: Vec<u32>,
    root: u32,
    /// The leaf to which the last key was added. Keys that ascend fill pages up.
    last_leaf: u32,
}

/// What an insertion found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum InsertOutcome {
    /// The key is new.
    Added,
    /// The key had this value.
    Replaced(u64),
    /// The page has no room.
    Full,
}

impl OrderedMap {
    /// An empty map.
    pub(crate) fn new(store: &SpillStore) -> Self {
        let (pages, vacant) = (Vec::new(), Vec::new());
        let mut map = Self { store: store.clone(), pages, vacant, root: 0, last_leaf: NO_PAGE };
        map.root = map.new_page(true);
        map
    }

    /// The value of `key`.
    pub(crate) fn get(&self, key: &[u8]) -> Option<u64> {
        let leaf = self.leaf_of(key, None);
        self.store.read(leaf, |bytes| {
            let page = TreePage(bytes);
            page.find(key).ok().map(|index| page.value(index))
        })
    }

    /// Gives `key` a value, and returns the one that it had.
    pub(crate) fn insert(&mut self, key: &[u8], value: u64) -> Option<u64> {
        debug_assert!(key.len() <= KEY_BYTES_MAX);
        let mut path = Vec::with_capacity(LEVELS_MAX);
        let leaf = self.leaf_of(key, Some(&mut path));
        let outcome = self.store.write(leaf, |bytes| insert(bytes, key, value));
        match outcome {
            InsertOutcome::Added => {
                self.last_leaf = leaf;
                None
            }
            InsertOutcome::Replaced(before) => Some(before),
            InsertOutcome::Full => {
                self.split_and_insert(leaf, &mut path, key, value);
                None
            }
        }
    }

    /// Takes `key` out, and returns its value.
    pub(crate) fn remove(&mut self, key: &[u8]) -> Option<u64> {
        let mut path = Vec::with_capacity(LEVELS_MAX);
        let leaf = self.leaf_of(key, Some(&mut path));
        let (value, is_empty) = self.store.write(leaf, |bytes| {
            let page = TreePage(bytes);
            let (index, count) = (page.find(key).ok()?, page.count());
            let value = page.value(index);
            remove(bytes, index);
            Some((value, count == 1))
        })?;
        if let Some(parent) = path.last().filter(|_| is_empty) {
            self.remove_leaf(leaf, *parent, key);
        }
        Some(value)
    }

    /// Takes out a leaf without entries, in which `key` would be. Its parent has no key for its first child, which stays.
    fn remove_leaf(&mut self, leaf: u32, parent: u32, key: &[u8]) {
        let found = self.store.read(parent, |bytes| {
            let page = TreePage(bytes);
            let index = match page.find(key) {
                Ok(index) => index,
                Err(index) => index.checked_sub(1)?,
            };
            let before = match index.checked_sub(1) {
                Some(before) => u32::try_from(page.value(before)).ok()?,
                None => page.link(),
            };
            Some((index, before))
        });
        let Some((index, before)) = found else { return };
        let next = self.store.read(leaf, |bytes| TreePage(bytes).link());
        self.store.write(parent, |bytes| remove(bytes, index));
        self.store.write(before, |bytes| bytes[8..12].copy_from_slice(&stored_link(next)));
        self.vacant.push(leaf);
        if self.last_leaf == leaf {
            self.last_leaf = NO_PAGE;
        }
    }

    /// The entries whose keys are at least `key`, up to the end of a page that has some; none if there are none.
    pub(crate) fn entries_from(&self, key: &[u8], visit: &mut dyn FnMut(&[u8], u64) -> bool) {
        let mut page = self.leaf_of(key, None);
        for _ in 0..=self.pages.len() {
            let (next, goes_on) = self.store.read(page, |bytes| {
                let page = TreePage(bytes);
                let start = page.find(key).unwrap_or_else(|index| index);
                let mut goes_on = true;
                for index in start..page.count() {
                    goes_on = visit(page.key(index), page.value(index));
                    if !goes_on {
                        break;
                    }
                }
                (page.link(), goes_on)
            });
            if !goes_on || next == NO_PAGE {
                return;
            }
            page = next;
        }
    }

    /// The leaf in which `key` is or would be. `path` gets the pages above it.
    fn leaf_of(&self, key: &[u8], mut path: Option<&mut Vec<u32>>) -> u32 {
        let mut page = self.root;
        for _ in 0..LEVELS_MAX {
            let child = self.store.read(page, |bytes| {
                let page = TreePage(bytes);
                (!page.is_leaf()).then(|| page.child(key))
            });
            let Some(child) = child else { break };
            if let Some(path) = &mut path {
                path.push(page);
            }
            page = child;
        }
        page
    }

    fn new_page(&mut self, is_leaf: bool) -> u32 {
        let page = self.vacant.pop().unwrap_or_else(|| {
            let page = self.store.allocate();
            self.pages.push(page);
            page
        });
        self.store.write(page, |bytes| PageContent::new(is_leaf).write(bytes));
        page
    }

    /// Splits the full `leaf`, and the pages of `path` above it as far as they are full, too.
    fn split_and_insert(&mut self, leaf: u32, path: &mut Vec<u32>, key: &[u8], value: u64) {
        let (mut page, mut key, mut value) = (leaf, key.to_vec(), value);
        loop {
            let mut left = self.store.read(page, PageContent::read);
            let at = left.entries.partition_point(|(other, _)| *other < key);
            let is_ascending = at == left.entries.len() && page == self.last_leaf;
            left.entries.insert(at, (key, value));
            let right_page = self.new_page(left.is_leaf);
            let split = if is_ascending { at } else { left.middle() };
            let (right, separator) = left.split(split, right_page);
            self.store.write(page, |bytes| left.write(bytes));
            self.store.write(right_page, |bytes| right.write(bytes));
            if left.is_leaf {
                self.last_leaf = if at >= split { right_page } else { page };
            }
            let Some(parent) = path.pop() else {
                self.grow(page, separator, right_page);
                return;
            };
            let outcome =
                self.store.write(parent, |bytes| insert(bytes, &separator, right_page.into()));
            if outcome != InsertOutcome::Full {
                return;
            }
            (page, key, value) = (parent, separator, right_page.into());
        }
    }

    /// A new root above the old one and `right`.
    fn grow(&mut self, left: u32, separator: Vec<u8>, right: u32) {
        let root = self.new_page(false);
        let content =
            PageContent { is_leaf: false, link: left, entries: vec![(separator, right.into())] };
        self.store.write(root, |bytes| content.write(bytes));
        self.root = root;
    }
}

impl Drop for OrderedMap {
    fn drop(&mut self) {
        self.store.free(&self.pages);
    }
}

/// A page that is searched. A page of zeros, which stands for one that could not be read, is a leaf without entries.
#[derive(Clone, Copy)]
struct TreePage<'p>(&'p [u8; PAGE_BYTES]);

impl<'p> TreePage<'p> {
    fn is_leaf(self) -> bool {
        self.0[0] == 0
    }

    fn count(self) -> usize {
        usize::from(self.short(2)).min(PAGE_BYTES / (ENTRY_BYTES + PLACE_BYTES))
    }

    fn end(self) -> usize {
        usize::from(self.short(4)).max(HEADER_BYTES)
    }

    fn link(self) -> u32 {
        match u32::from_le_bytes(first(&self.0[8..])) {
            0 if self.is_leaf() => NO_PAGE,
            // Stored as one more, so that zeros are none.
            link => link.wrapping_sub(1),
        }
    }

    fn short(self, at: usize) -> u16 {
        u16::from_le_bytes(first(&self.0[at..]))
    }

    /// Where an entry lies: its place, the start of its key, and the end.
    fn entry(self, index: usize) -> (usize, usize, usize) {
        let at = usize::from(self.short(PAGE_BYTES - PLACE_BYTES * (index + 1)));
        let bytes = usize::from(u16::from_le_bytes(first(self.0.get(at..).unwrap_or_default())));
        (at, at + ENTRY_BYTES, at + ENTRY_BYTES + bytes)
    }

    fn key(self, index: usize) -> &'p [u8] {
        let (_, start, end) = self.entry(index);
        self.0.get(start..end).unwrap_or_default()
    }

    fn value(self, index: usize) -> u64 {
        let (at, ..) = self.entry(index);
        u64::from_le_bytes(first(self.0.get(at + 2..).unwrap_or_default()))
    }

    /// The index of `key`, or the one that it would have.
    fn find(self, key: &[u8]) -> Result<usize, usize> {
        let (mut low, mut high) = (0, self.count());
        while low < high {
            let middle = low + (high - low) / 2;
            match self.key(middle).cmp(key) {
                std::cmp::Ordering::Less => low = middle + 1,
                std::cmp::Ordering::Equal => return Ok(middle),
                std::cmp::Ordering::Greater => high = middle,
            }
        }
        Err(low)
    }

    /// The page below this one in which `key` is or would be.
    fn child(self, key: &[u8]) -> u32 {
        let index = match self.find(key) {
            Ok(index) => Some(index),
            Err(index) => index.checked_sub(1),
        };
        match index {
            Some(index) => u32::try_from(self.value(index)).unwrap_or(NO_PAGE),
            None => self.link(),
        }
    }
}

/// Puts an entry into a page, if there is room.
fn insert(bytes: &mut [u8; PAGE_BYTES], key: &[u8], value: u64) -> InsertOutcome {
    let page = TreePage(bytes);
    let index = match page.find(key) {
        Ok(index) => {
            let before = page.value(index);
            let (at, ..) = page.entry(index);
            bytes[at + 2..at + ENTRY_BYTES].copy_from_slice(&value.to_le_bytes());
            return InsertOutcome::Replaced(before);
        }
        Err(index) => index,
    };
    let (count, mut end) = (page.count(), page.end());
    let places = PAGE_BYTES - PLACE_BYTES * (count + 1);
    let more = ENTRY_BYTES + key.len();
    if end + more > places {
        let mut content = PageContent::read(bytes);
        if content.bytes() + more + PLACE_BYTES > PAGE_BYTES {
            return InsertOutcome::Full;
        }
        // Removed entries have left enough room.
        content.entries.insert(index, (key.to_vec(), value));
        content.write(bytes);
        return InsertOutcome::Added;
    }
    let at = end;
    bytes[at..at + 2].copy_from_slice(&short(key.len()));
    bytes[at + 2..at + ENTRY_BYTES].copy_from_slice(&value.to_le_bytes());
    bytes[at + ENTRY_BYTES..at + more].copy_from_slice(key);
    end += more;
    // The places lie at the end of the page, the first one last.
    let moved = PAGE_BYTES - PLACE_BYTES * count..PAGE_BYTES - PLACE_BYTES * index;
    bytes.copy_within(moved, places);
    let place = PAGE_BYTES - PLACE_BYTES * (index + 1);
    bytes[place..place + PLACE_BYTES].copy_from_slice(&short(at));
    bytes[2..4].copy_from_slice(&short(count + 1));
    bytes[4..6].copy_from_slice(&short(end));
    InsertOutcome::Added
}

/// Takes an entry out of a page. Its bytes are free when the page is written anew.
fn remove(bytes: &mut [u8; PAGE_BYTES], index: usize) {
    let count = TreePage(bytes).count();
    let places = PAGE_BYTES - PLACE_BYTES * count;
    bytes.copy_within(places..PAGE_BYTES - PLACE_BYTES * (index + 1), places + PLACE_BYTES);
    bytes[2..4].copy_from_slice(&short(count - 1));
}

/// A number within a page.
fn short(number: usize) -> [u8; 2] {
    u16::try_from(number).unwrap_or(u16::MAX).to_le_bytes()
}

/// A link as a page has it: as one more, so that zeros are none.
fn stored_link(page: u32) -> [u8; 4] {
    if page == NO_PAGE { [0; 4] } else { (page + 1).to_le_bytes() }
}

/// A page that is written anew.
#[derive(Debug)]
struct PageContent {
    is_leaf: bool,
    link: u32,
    entries: Vec<(Vec<u8>, u64)>,
}

impl PageContent {
    fn new(is_leaf: bool) -> Self {
        Self { is_leaf, link: NO_PAGE, entries: Vec::new() }
    }

    fn read(bytes: &[u8; PAGE_BYTES]) -> Self {
        let page = TreePage(bytes);
        let entries = (0..page.count()).map(|index| (page.key(index).to_vec(), page.value(index)));
        Self { is_leaf: page.is_leaf(), link: page.link(), entries: entries.collect() }
    }

    fn bytes(&self) -> usize {
        let entries = self.entries.iter().map(|(key, _)| ENTRY_BYTES + PLACE_BYTES + key.len());
        HEADER_BYTES + entries.sum::<usize>()
    }

    fn write(&self, bytes: &mut [u8; PAGE_BYTES]) {
        bytes.fill(0);
        bytes[0] = u8::from(!self.is_leaf);
        let mut at = HEADER_BYTES;
        let mut place = PAGE_BYTES;
        for (key, value) in &self.entries {
            let end = at + ENTRY_BYTES + key.len();
            bytes[at..at + 2].copy_from_slice(&short(key.len()));
            bytes[at + 2..at + ENTRY_BYTES].copy_from_slice(&value.to_le_bytes());
            bytes[at + ENTRY_BYTES..end].copy_from_slice(key);
            place -= PLACE_BYTES;
            bytes[place..place + PLACE_BYTES].copy_from_slice(&short(at));
            at = end;
        }
        bytes[2..4].copy_from_slice(&short(self.entries.len()));
        bytes[4..6].copy_from_slice(&short(at));
        bytes[8..12].copy_from_slice(&stored_link(self.link));
    }

    /// The index at which about half of the bytes are in front.
    fn middle(&self) -> usize {
        let half = self.bytes() / 2;
        let mut bytes = 0;
        let middle = self.entries.iter().position(|(key, _)| {
            bytes += ENTRY_BYTES + PLACE_BYTES + key.len();
            bytes >= half
        });
        middle.unwrap_or(0).max(1)
    }

    /// Splits the entries from `at` on off, to the page `right_page`. Returns them, and the key that separates both.
    fn split(&mut self, at: usize, right_page: u32) -> (Self, Vec<u8>) {
        let mut entries = self.entries.split_off(at);
        if self.is_leaf {
            let separator = entries.first().map(|(key, _)| key.clone()).unwrap_or_default();
            let link = std::mem::replace(&mut self.link, right_page);
            return (Self { is_leaf: true, link, entries }, separator);
        }
        // The first key moves up, and its page becomes the one before the first key.
        let (separator, link) = entries.remove(0);
        let link = u32::try_from(link).unwrap_or(NO_PAGE);
        (Self { is_leaf: false, link, entries }, separator)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;
    use crate::spill::tests::small_store;

    fn all(map: &OrderedMap, from: &[u8]) -> Vec<(Vec<u8>, u64)> {
        let mut found = Vec::new();
        map.entries_from(from, &mut |key, value| {
            found.push((key.to_vec(), value));
            true
        });
        found
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(24))]
        #[test]
        fn it_is_a_btree_map(
            operations in proptest::collection::vec(
                (0..4_u8, 0..3000_u32, proptest::collection::vec(0..4_u8, 0..200)), 1..4000,
            ),
        ) {
            let (store, _directory) = small_store();
            let (mut map, mut model) = (OrderedMap::new(&store), BTreeMap::new());
            for (step, (operation, number, tail)) in operations.into_iter().enumerate() {
                let key = [&number.to_be_bytes()[2..], &tail[..]].concat();
                match operation {
                    0 => prop_assert_eq!(map.remove(&key), model.remove(&key)),
                    _ => {
                        let value = step as u64;
                        prop_assert_eq!(map.insert(&key, value), model.insert(key.clone(), value));
                    }
                }
                prop_assert_eq!(map.get(&key), model.get(&key).copied());
            }
            let found = all(&map, &[]);
            prop_assert!(found.iter().map(|(key, value)| (key, value)).eq(model.iter()));
            let from = 1500_u32.to_be_bytes()[2..].to_vec();
            let expected: Vec<_> = model.range(from.clone()..).map(|(k, v)| (k.clone(), *v)).collect();
            prop_assert_eq!(all(&map, &from), expected);
        }
    }

    #[test]
    fn keys_that_ascend_fill_pages_and_keys_that_descend_fill_half() {
        for (is_descending, pages_max) in [(false, 600), (true, 1200)] {
            let (store, _directory) = small_store();
            let mut map = OrderedMap::new(&store);
            for number in 0..100_000_u32 {
                let number = if is_descending { 100_000 - number } else { number };
                map.insert(format!("{number:010}").as_bytes(), number.into());
            }
            assert!(map.pages.len() <= pages_max, "{}", map.pages.len());
            assert_eq!(all(&map, b"").len(), 100_000);
        }
    }

    #[test]
    fn removed_entries_leave_room() {
        let (store, _directory) = small_store();
        let mut map = OrderedMap::new(&store);
        for round in 0..200_u64 {
            for number in 0..100_u64 {
                map.insert(&number.to_be_bytes(), round);
            }
            for number in 0..100_u64 {
                assert_eq!(map.remove(&number.to_be_bytes()), Some(round));
            }
        }
        assert!(map.pages.len() < 4);
    }

    /// Each scan passed all of them, so that a hostile layer of n entries took n² steps.
    #[test]
    fn leaves_without_entries_are_not_passed_again() {
        let (store, _directory) = small_store();
        let mut map = OrderedMap::new(&store);
        let key = |number: u32| format!("{number:0100}").into_bytes();
        for round in 0..3 {
            for number in 0..30_000 {
                map.insert(&key(number), round);
            }
            let pages = map.pages.len();
            assert!((700..1100).contains(&pages), "{pages}");
            for number in 0..29_999 {
                // Every other one from the front, the others from the back.
                let number = if number % 2 == 0 { number / 2 } else { 29_998 - number / 2 };
                assert_eq!(map.remove(&key(number)), Some(round));
            }
            let (mut leaf, mut passed) = (map.leaf_of(b"", None), 0);
            while leaf != NO_PAGE {
                leaf = store.read(leaf, |bytes| TreePage(bytes).link());
                passed += 1;
            }
            assert!(passed < 60, "{passed} of {pages}");
            assert_eq!(all(&map, b""), [(key(29_999), round)]);
        }
    }
}

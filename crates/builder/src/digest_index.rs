//! An index from digests to numbers: 8 bytes of memory a slot; digests and numbers lie in a store, and are looked at
//! when 32 bits of a digest are equal.

use crate::digest::Sha256Digest;
use crate::spill::SpillStore;
use crate::spill::paged::{PagedArray, Record, first};

/// Slots at first, a power of two.
const SLOTS_MIN: usize = 1 << 10;
/// No entry.
const VACANT: u32 = u32::MAX;

/// Numbers by digest, of which several entries may be equal.
#[derive(Debug)]
pub(crate) struct DigestIndex {
    entries: PagedArray<DigestEntry>,
    /// Part of a digest, and the number of its entry; a power of two of them.
    slots: Vec<(u32, u32)>,
    count_max: usize,
}

/// A digest and two numbers.
#[derive(Clone, Copy, Debug)]
struct DigestEntry {
    digest: [u8; 32],
    length: u64,
    value: u64,
}

impl Record for DigestEntry {
    const BYTES: usize = 48;

    fn store(self, output: &mut [u8]) {
        output[..32].copy_from_slice(&self.digest);
        (self.length, self.value).store(&mut output[32..]);
    }

    fn load(bytes: &[u8]) -> Self {
        let (length, value) = Record::load(&bytes[32..]);
        Self { digest: first(bytes), length, value }
    }
}

impl DigestIndex {
    /// An empty index.
    pub(crate) fn new(store: &SpillStore) -> Self {
        Self { entries: PagedArray::new(store), slots: Vec::new(), count_max: VACANT as usize - 1 }
    }

    /// Bounds the entries. Later ones are not added.
    pub(crate) fn set_count_max(&mut self, count: usize) {
        self.count_max = count.min(VACANT as usize - 1);
    }

    /// The value of the first entry with this digest whose length and value are as wanted.
    pub(crate) fn find(
        &self,
        digest: &Sha256Digest,
        is_wanted: impl Fn(u64, u64) -> bool,
    ) -> Option<u64> {
        self.with(digest).find(|(length, value)| is_wanted(*length, *value)).map(|(_, value)| value)
    }

    /// The values of all entries with this digest, in the order in which they were added.
    pub(crate) fn all(&self, digest: &Sha256Digest) -> Vec<u64> {
        let mut values: Vec<u64> = self.with(digest).map(|(_, value)| value).collect();
        values.sort_unstable();
        values
    }

    /// Adds an entry, unless there are too many.
    pub(crate) fn push(&mut self, digest: &Sha256Digest, length: u64, value: u64) {
        let count = self.entries.len();
        if count >= self.count_max {
            return;
        }
        if (count + 1) * 4 > self.slots.len() * 3 {
            self.grow();
        }
        let digest = first(digest.bytes());
        self.entries.push(DigestEntry { digest, length, value });
        // There are fewer than VACANT.
        insert(&mut self.slots, tag(&digest), u32::try_from(count).unwrap_or(VACANT));
    }

    fn with(&self, digest: &Sha256Digest) -> impl Iterator<Item = (u64, u64)> {
        let (digest, mask) = (first::<32>(digest.bytes()), self.slots.len().wrapping_sub(1));
        let tag = tag(&digest);
        (0..self.slots.len())
            .map(move |probe| self.slots[(tag as usize).wrapping_add(probe) & mask])
            .take_while(|(_, index)| *index != VACANT)
            .filter(move |(other, _)| *other == tag)
            .filter_map(|(_, index)| self.entries.get(index as usize))
            .filter(move |entry| entry.digest == digest)
            .map(|entry| (entry.length, entry.value))
    }

    fn grow(&mut self) {
        let mut slots = vec![(0, VACANT); (self.slots.len() * 2).max(SLOTS_MIN)];
        for (tag, index) in self.slots.drain(..).filter(|(_, index)| *index != VACANT) {
            insert(&mut slots, tag, index);
        }
        self.slots = slots;
    }
}

/// Bits of a digest. SHA-256 spreads them evenly, whoever chooses the bytes.
fn tag(digest: &[u8; 32]) -> u32 {
    u32::from_le_bytes(first(digest))
}

fn insert(slots: &mut [(u32, u32)], tag: u32, index: u32) {
    let mask = slots.len() - 1;
    let probes = (0..slots.len()).map(|probe| (tag as usize).wrapping_add(probe) & mask);
    // A quarter of the slots is vacant.
    if let Some(slot) = probes.into_iter().find(|slot| slots[*slot].1 == VACANT) {
        slots[slot] = (tag, index);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spill::tests::small_store;

    #[test]
    fn entries_are_found_by_digest_and_no_more_are_kept_than_allowed() {
        let (store, _directory) = small_store();
        let mut index = DigestIndex::new(&store);
        index.set_count_max(20_000);
        let digest = |number: u64| Sha256Digest::of(&number.to_le_bytes());
        for number in 0..30_000 {
            index.push(&digest(number / 2), number % 2, number);
        }
        assert_eq!(index.find(&digest(7), |length, _| length == 1), Some(15));
        assert_eq!(index.find(&digest(7), |length, _| length == 2), None);
        assert_eq!(index.all(&digest(9_999)), [19_998, 19_999]);
        assert_eq!(index.all(&digest(10_000)), [0; 0]);
        assert_eq!(index.all(&digest(77_777)), [0; 0]);
    }
}

//! The index of fingerprints: the chunks so far, where each one lies, and the first with each hash.
//!
//! A chunk takes 16 bytes, and 6 to 12 more in the table.

/// Chunks in the order of their places, without gaps.
#[derive(Debug)]
pub(super) struct FingerprintIndex {
    starts: Vec<u64>,
    digests: Vec<u64>,
    /// Where the last one ends.
    end: u64,
    /// Indexes of first chunks by digest, [`VACANT`] or not, a power of two of them.
    table: Vec<u32>,
    used: usize,
    chunks_max: usize,
}

const VACANT: u32 = u32::MAX;

/// Memory that a chunk takes at most, in bytes, while the table grows.
pub(super) const CHUNK_ENTRY_BYTES: u64 = 32;

/// Slots that a digest may lie behind its own. Hashes that collide on purpose are then
/// forgotten, instead of making each look-up a walk through all of them.
const PROBES_MAX: usize = 64;

const TABLE_MIN: usize = 1 << 10;

impl FingerprintIndex {
    /// An empty index, for `chunks` chunks probably, and never more than `chunks_max` or 2^32 - 2.
    pub(super) fn new(chunks: usize, chunks_max: usize) -> Self {
        let chunks_max = chunks_max.min(VACANT as usize - 1);
        let room = chunks.min(chunks_max);
        Self {
            starts: Vec::with_capacity(room),
            digests: Vec::with_capacity(room),
            end: 0,
            table: vec![VACANT; TABLE_MIN],
            used: 0,
            chunks_max,
        }
    }

    /// The first chunk with `digest`.
    pub(super) fn first(&self, digest: u64) -> Option<usize> {
        let mask = self.table.len() - 1;
        (0..PROBES_MAX)
            .map(|probe| self.table[home_slot(digest).wrapping_add(probe) & mask])
            .take_while(|&index| index != VACANT)
            .map(|index| index as usize)
            .find(|&index| self.digests[index] == digest)
    }

    /// Adds the chunk behind the last one. With `is_first` it can be found by its digest from now on.
    /// Nothing happens once the memory is used up: later chunks are looked up, but not found.
    pub(super) fn push(&mut self, bytes: u32, digest: u64, is_first: bool) {
        if self.starts.len() >= self.chunks_max {
            return;
        }
        // Fits: there are fewer than 2^32 - 1.
        let index = u32::try_from(self.starts.len()).unwrap_or(VACANT);
        self.starts.push(self.end);
        self.digests.push(digest);
        self.end += u64::from(bytes);
        if is_first {
            if (self.used + 1) * 4 > self.table.len() * 3 {
                self.grow();
            }
            self.insert(index, digest);
        }
    }

    /// The places of the chunk `index`, if there are so many.
    pub(super) fn places(&self, index: usize) -> Option<std::ops::Range<u64>> {
        let start = *self.starts.get(index)?;
        Some(start..self.starts.get(index + 1).copied().unwrap_or(self.end))
    }

    /// Whether the chunk `index` has `digest`.
    pub(super) fn has(&self, index: usize, digest: u64) -> bool {
        self.digests.get(index) == Some(&digest)
    }

    fn insert(&mut self, index: u32, digest: u64) {
        let mask = self.table.len() - 1;
        let slot = (0..PROBES_MAX)
            .map(|probe| home_slot(digest).wrapping_add(probe) & mask)
            .find(|&slot| self.table[slot] == VACANT);
        if let Some(slot) = slot {
            self.table[slot] = index;
            self.used += 1;
        }
    }

    fn grow(&mut self) {
        let old = std::mem::take(&mut self.table);
        self.table = vec![VACANT; old.len() * 2];
        self.used = 0;
        let mut indexes: Vec<u32> = old.into_iter().filter(|&index| index != VACANT).collect();
        // In the order of their places, so that those found do not depend on when the table grew.
        indexes.sort_unstable();
        for index in indexes {
            self.insert(index, self.digests[index as usize]);
        }
    }
}

/// The slot of a digest, before the mask.
fn home_slot(digest: u64) -> usize {
    // The high half; whatever a 32-bit machine keeps of it is as good.
    (digest >> 32) as u32 as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_chunk_with_a_hash_is_found_after_the_table_grew() {
        let mut seen = FingerprintIndex::new(10, usize::MAX);
        let digest = |number: u64| number.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        for number in 0..5000 {
            seen.push(10, digest(number), true);
        }
        for number in 0..5000 {
            let index = usize::try_from(number).unwrap();
            assert_eq!(seen.first(digest(number)), Some(index));
            assert_eq!(seen.places(index), Some(number * 10..number * 10 + 10));
        }
        assert_eq!(seen.first(digest(5000)), None);
        assert_eq!(seen.places(5000), None);
    }

    #[test]
    fn digests_made_to_lie_in_one_heap_are_forgotten_not_searched() {
        let mut seen = FingerprintIndex::new(10, usize::MAX);
        for number in 0..1000 {
            seen.push(1, number, true);
        }
        let found = (0..1000).filter(|&number| seen.first(number).is_some()).count();
        assert_eq!(found, PROBES_MAX);
    }

    #[test]
    fn no_more_chunks_are_kept_than_allowed() {
        let mut seen = FingerprintIndex::new(10, 3);
        for number in 0..10 {
            seen.push(1, number << 32, true);
        }
        assert_eq!((seen.first(2 << 32), seen.first(3 << 32)), (Some(2), None));
    }
}

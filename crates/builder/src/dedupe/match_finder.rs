//! Finds match candidates: ranges that are equal by the hashes of their chunks, in one pass in data order. The first
//! chunk with each hash is found in a [`FingerprintIndex`]; a chunk takes 16 bytes in it, and 6 to 12 more in its table.
//!
//! This module never compares bytes; [`match_verifier`](super::match_verifier) does.

use std::collections::HashMap;
use std::ops::Range;

use xxhash_rust::xxh3::xxh3_64_with_seed;

use crate::dedupe::ConcatenatedFiles;
use crate::dedupe::chunker::CdcChunk;

/// A range that seems to be equal to an earlier one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct MatchCandidate {
    /// Where the later range starts.
    pub(super) target: u64,
    /// Where the earlier one starts. It may run into the later one.
    pub(super) source: u64,
    /// Their length.
    pub(super) bytes: u64,
    /// Whether they are to be extended in front, as far as they are equal there.
    pub(super) backwards: bool,
    /// Whether they are to be extended behind.
    pub(super) forwards: bool,
}

/// What makes a candidate worth a comparison.
#[derive(Clone, Copy, Debug)]
pub(super) struct MatchThresholds {
    /// Shorter runs are of no use, unless they are whole files.
    pub(super) bytes_min: u64,
    /// Candidates that are kept at most.
    pub(super) count_max: usize,
    /// Files that are kept at most, to find those that are equal as a whole.
    pub(super) files_max: usize,
}

/// Takes the chunks in order, and collects candidates.
#[derive(Debug)]
pub(super) struct MatchFinder<'a> {
    concat: &'a ConcatenatedFiles<'a>,
    thresholds: MatchThresholds,
    fingerprints: FingerprintIndex,
    /// The first file with that hash of its length and its digests, and at most [`MatchThresholds::files_max`].
    wholes: HashMap<u64, u32>,
    found: Vec<MatchCandidate>,
    /// The place of the next chunk.
    place: u64,
    file: CurrentFile,
    run: Option<OpenMatch>,
    /// The length of the last chunk; 0 at the start of a file.
    last_bytes: u32,
}

/// The file that chunks come from now.
#[derive(Debug, Default)]
struct CurrentFile {
    number: usize,
    places: Range<u64>,
    digest: u64,
    /// How many candidates there were before it.
    found_before: usize,
}

/// A run that the next chunk may continue.
#[derive(Debug)]
struct OpenMatch {
    target: u64,
    source: u64,
    /// The chunk of the source that comes next.
    next: usize,
    /// Where the source's file ends.
    source_end: u64,
    /// Bytes of the chunk in front, by which the run may grow.
    slack: u32,
}

impl<'a> MatchFinder<'a> {
    pub(super) fn new(
        concat: &'a ConcatenatedFiles<'a>,
        thresholds: MatchThresholds,
        fingerprints: FingerprintIndex,
    ) -> Self {
        Self {
            concat,
            thresholds,
            fingerprints,
            wholes: HashMap::new(),
            found: Vec::new(),
            place: 0,
            file: CurrentFile::default(),
            run: None,
            last_bytes: 0,
        }
    }

    /// Takes the next chunk.
    pub(super) fn push(&mut self, chunk: CdcChunk) {
        if self.place == self.file.places.end {
            self.open_file();
        }
        let continues =
            self.run.as_mut().is_some_and(|run| run.continues(&self.fingerprints, chunk));
        if continues {
            self.fingerprints.push(chunk.bytes, chunk.digest, false);
        } else {
            self.close_run(chunk.bytes);
            let first = self.fingerprints.first(chunk.digest);
            self.open_run(first, chunk);
            self.fingerprints.push(chunk.bytes, chunk.digest, first.is_none());
        }
        self.file.digest = xxh3_64_with_seed(&chunk.digest.to_le_bytes(), self.file.digest);
        self.last_bytes = chunk.bytes;
        self.place += u64::from(chunk.bytes);
        if self.place == self.file.places.end {
            self.close_run(0);
            self.close_file();
        }
    }

    /// All candidates, by their targets, which do not overlap.
    pub(super) fn into_found(self) -> Vec<MatchCandidate> {
        self.found
    }

    fn open_file(&mut self) {
        let number = self.concat.file_at(self.place);
        let places = self.concat.range(number);
        self.file = CurrentFile { number, places, digest: 0, found_before: self.found.len() };
        self.last_bytes = 0;
    }

    /// A file that is equal as a whole is one candidate, whatever its parts are equal to.
    fn close_file(&mut self) {
        let CurrentFile { number, places, digest, found_before } = &self.file;
        let bytes = places.end - places.start;
        let hash = xxh3_64_with_seed(&bytes.to_le_bytes(), *digest);
        let known = self.wholes.get(&hash).map(|first| *first as usize);
        if known.is_none() && self.wholes.len() < self.thresholds.files_max {
            self.wholes.extend(u32::try_from(*number).ok().map(|number| (hash, number)));
        }
        // Two lengths may have the same hash.
        let is_equal = |first: &usize| {
            let places = self.concat.range(*first);
            places.end - places.start == bytes
        };
        if let Some(first) = known.filter(is_equal) {
            self.found.truncate(*found_before);
            self.found.push(MatchCandidate {
                target: places.start,
                source: self.concat.range(first).start,
                bytes,
                backwards: false,
                forwards: false,
            });
        }
    }

    fn open_run(&mut self, first: Option<usize>, chunk: CdcChunk) {
        self.run = first.and_then(|index| {
            let source = self.fingerprints.places(index)?;
            // A digest without the length could be taken for that of another length.
            (source.end - source.start == u64::from(chunk.bytes)).then(|| OpenMatch {
                target: self.place,
                source: source.start,
                next: index + 1,
                source_end: self.concat.range(self.concat.file_at(source.start)).end,
                slack: self.last_bytes,
            })
        });
    }

    /// Ends the run in front of `place`; `slack` is the length of the chunk there, if it has one.
    fn close_run(&mut self, slack: u32) {
        let Some(run) = self.run.take() else {
            return;
        };
        let bytes = self.place - run.target;
        let slack = u64::from(run.slack) + u64::from(slack);
        if bytes + slack >= self.thresholds.bytes_min
            && self.found.len() < self.thresholds.count_max
        {
            self.found.push(MatchCandidate {
                target: run.target,
                source: run.source,
                bytes,
                backwards: true,
                forwards: true,
            });
        }
    }
}

impl OpenMatch {
    /// Whether `chunk` is what comes next in the source.
    fn continues(&mut self, fingerprints: &FingerprintIndex, chunk: CdcChunk) -> bool {
        let is_next = fingerprints.contains(self.next, chunk.digest)
            && fingerprints.places(self.next).is_some_and(|places| {
                places.start < self.source_end
                    && places.end - places.start == u64::from(chunk.bytes)
            });
        self.next += usize::from(is_next);
        is_next
    }
}

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
    fn first(&self, digest: u64) -> Option<usize> {
        let mask = self.table.len() - 1;
        (0..PROBES_MAX)
            .map(|probe| self.table[home_slot(digest).wrapping_add(probe) & mask])
            .take_while(|&index| index != VACANT)
            .map(|index| index as usize)
            .find(|&index| self.digests[index] == digest)
    }

    /// Adds the chunk behind the last one. With `is_first` it can be found by its digest from now on.
    /// Nothing happens once the memory is used up: later chunks are looked up, but not found.
    fn push(&mut self, bytes: u32, digest: u64, is_first: bool) {
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
    fn places(&self, index: usize) -> Option<Range<u64>> {
        let start = *self.starts.get(index)?;
        Some(start..self.starts.get(index + 1).copied().unwrap_or(self.end))
    }

    /// Whether the chunk `index` has `digest`.
    fn contains(&self, index: usize, digest: u64) -> bool {
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

//! Plans of made-up files, each checked against the rules and the bytes.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use ferrofs_workers::jobs::HelperBudget;
use proptest::prelude::*;

use super::*;
use crate::split::FileList;
use crate::tree::{Content, ContentReader, ContentSource};
use crate::{Error, ErrorKind};

const BLOCK: u32 = 4096;
const OPTIONS: DedupeOptions =
    DedupeOptions { block_bytes: BLOCK, pcluster_bytes: BLOCK, jobs: None, memory_bytes: 64 << 20 };

/// Bytes without any pattern.
pub(super) fn noise(initial_state: u64, bytes: usize) -> Vec<u8> {
    let mut state = initial_state.wrapping_mul(0x2545_f491_4f6c_dd1d) ^ 0x9e37_79b9_7f4a_7c15;
    let words = std::iter::repeat_with(|| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.wrapping_mul(0x2545_f491_4f6c_dd1d).to_le_bytes()
    });
    words.take(bytes.div_ceil(8)).flatten().take(bytes).collect()
}

/// A file in memory, which may fail.
struct FaultyFile {
    name: String,
    bytes: Vec<u8>,
    fails: Option<FileFault>,
    /// Bytes read of it.
    read: AtomicU64,
}

#[derive(Clone, Copy, PartialEq)]
enum FileFault {
    Open,
    Read,
    Changed,
}

struct FaultyReader(Arc<FaultyFile>);

impl ContentSource for Arc<FaultyFile> {
    fn name(&self) -> String {
        self.name.clone()
    }

    fn open(&self) -> Result<Box<dyn ContentReader>> {
        if self.fails == Some(FileFault::Open) {
            return Err(Error::new(ErrorKind::Input {
                operation: "cannot open",
                source: std::io::Error::from_raw_os_error(13),
            }));
        }
        Ok(Box::new(FaultyReader(Self::clone(self))))
    }

    fn data_ranges(&self) -> Result<Vec<Range<u64>>> {
        unreachable!("holes are the host's matter, and must not be asked for")
    }
}

impl ContentReader for FaultyReader {
    fn read_exact_at(&mut self, offset: u64, buffer: &mut [u8]) -> Result<()> {
        let start = usize::try_from(offset).unwrap();
        if self.0.fails == Some(FileFault::Read) {
            return Err(changed());
        }
        buffer.copy_from_slice(&self.0.bytes[start..start + buffer.len()]);
        self.0.read.fetch_add(buffer.len() as u64, Ordering::Relaxed);
        Ok(())
    }

    fn check_unchanged(&mut self) -> Result<()> {
        if self.0.fails == Some(FileFault::Changed) { Err(changed()) } else { Ok(()) }
    }
}

fn changed() -> Error {
    Error::new(ErrorKind::SourceChanged { how: "it is another file".to_owned() })
}

/// FaultyFiles in memory.
struct FaultyFiles(Vec<Arc<FaultyFile>>);

impl FaultyFiles {
    fn new(contents: Vec<Vec<u8>>) -> Self {
        let named = contents.into_iter().enumerate().map(|(number, bytes)| {
            let name = format!("file {number}");
            Arc::new(FaultyFile { name, bytes, fails: None, read: AtomicU64::new(0) })
        });
        Self(named.collect())
    }

    fn failing(mut self, file: usize, failure: FileFault) -> Self {
        let memory = Arc::get_mut(&mut self.0[file]).unwrap();
        memory.fails = Some(failure);
        self
    }

    fn search(&self, threads: usize, digest: ChunkHash) -> Result<DedupePlan> {
        let options = DedupeOptions { memory_bytes: 64 << 20, ..OPTIONS };
        self.search_with(&options, threads, digest)
    }

    fn search_with(
        &self,
        options: &DedupeOptions,
        threads: usize,
        digest: ChunkHash,
    ) -> Result<DedupePlan> {
        let contents: Vec<Content> = self.contents();
        let helpers = HelperBudget::new(threads);
        let ordered = OrderedPipeline::new().max_threads(threads).helpers(&helpers);
        let store = SpillStore::new(crate::SpillOptions::default());
        let cancel = &CancelToken::new();
        let search = DedupeSearch { options, ordered, digest, store: &store, cancel };
        search.run(list(&contents))
    }

    fn contents(&self) -> Vec<Content> {
        let of = |memory: &Arc<FaultyFile>| {
            Content::new(Arc::new(Arc::clone(memory)), memory.bytes.len() as u64)
        };
        self.0.iter().map(of).collect()
    }

    /// The plan for one thread, checked, and compared with those for more threads.
    fn plan(&self) -> DedupePlan {
        let plan = self.search(1, CHUNK_HASH).unwrap();
        self.check(&plan);
        for threads in [2, 3, 8] {
            assert_eq!(self.search(threads, CHUNK_HASH).unwrap(), plan, "{threads} threads");
        }
        plan
    }

    /// Makes every file again from what is stored, and checks the rules on the way.
    fn check(&self, plan: &DedupePlan) {
        let mut made: Vec<Vec<u8>> = Vec::new();
        let mut starts: Vec<Vec<u64>> = Vec::new();
        let mut stored: Vec<Vec<bool>> = Vec::new();
        let mut saved = 0;
        for (file, memory) in self.0.iter().enumerate() {
            made.push(Vec::new());
            starts.push(Vec::new());
            stored.push(Vec::new());
            let whole = [own(memory.bytes.len() as u64)];
            let pieces = match plan.pieces(file) {
                [] if !memory.bytes.is_empty() => &whole[..],
                pieces => pieces,
            };
            for (number, piece) in pieces.iter().enumerate() {
                let place = made[file].len();
                let is_last = number + 1 == pieces.len();
                let bytes = match *piece {
                    DedupePiece::Own { bytes } => {
                        let end = place + usize::try_from(bytes).unwrap();
                        made[file].extend_from_slice(&memory.bytes[place..end]);
                        starts[file].push(place as u64);
                        stored[file].resize(end, true);
                        bytes
                    }
                    DedupePiece::Copy { of, offset, bytes } => {
                        assert!(
                            starts[of].contains(&offset),
                            "file {file}: no cut at {of}:{offset}"
                        );
                        let start = usize::try_from(offset).unwrap();
                        let range = start..start + usize::try_from(bytes).unwrap();
                        assert!(stored[of][range.clone()].iter().all(|&is| is), "a copy of a copy");
                        let copy = made[of][range].to_vec();
                        made[file].extend_from_slice(&copy);
                        stored[file].resize(made[file].len(), false);
                        saved += bytes;
                        bytes
                    }
                };
                assert!(bytes > 0);
                let min = u64::from(BLOCK) * 2;
                assert!(is_last || bytes >= min, "file {file}: a piece of {bytes} bytes");
            }
            assert!(made[file] == memory.bytes, "file {file} is another one");
        }
        assert_eq!(plan.saved_bytes(), saved);
    }
}

fn list(contents: &[Content]) -> DedupeFiles<'_> {
    DedupeFiles { contents: FileList::Contents(contents), chosen: None }
}

fn own(bytes: u64) -> DedupePiece {
    DedupePiece::Own { bytes }
}

fn copy(of: usize, offset: u64, bytes: u64) -> DedupePiece {
    DedupePiece::Copy { of, offset, bytes }
}

fn joined(parts: &[&[u8]]) -> Vec<u8> {
    parts.concat()
}

#[test]
fn a_run_is_found_in_full_between_other_bytes() {
    let run = noise(1, 50_001);
    let first = joined(&[&noise(2, 30_003), &run, &noise(3, 20_000)]);
    let second = joined(&[&noise(4, 12_345), &run, &noise(5, 9000)]);
    let plan = FaultyFiles::new(vec![first, second]).plan();
    assert_eq!(plan.pieces(0), [own(30_003), own(70_001)]);
    assert_eq!(plan.pieces(1), [own(12_345), copy(0, 30_003, 50_001), own(9000)]);
    assert_eq!(plan.saved_bytes(), 50_001);
}

#[test]
fn a_file_that_is_equal_as_a_whole_is_one_copy_however_small() {
    let (large, small) = (noise(1, 300_000), b"#!/bin/sh\n".to_vec());
    let files = vec![small.clone(), large.clone(), vec![], small, large, vec![]];
    let plan = FaultyFiles::new(files).plan();
    assert_eq!(plan.pieces(3), [copy(0, 0, 10)]);
    assert_eq!(plan.pieces(4), [copy(1, 0, 300_000)]);
    assert_eq!(plan.pieces(5), []);
}

#[test]
fn a_file_whose_parts_came_first_elsewhere_is_still_one_copy() {
    let (head, tail) = (noise(1, 40_000), noise(2, 40_000));
    let both = joined(&[&head, &tail]);
    let plan = FaultyFiles::new(vec![head, both.clone(), both]).plan();
    assert_eq!(plan.pieces(1), [copy(0, 0, 40_000), own(40_000)]);
    assert_eq!(plan.pieces(2), [copy(0, 0, 40_000), copy(1, 40_000, 40_000)]);
}

#[test]
fn a_copy_of_a_copy_becomes_a_copy_of_the_original() {
    let run = noise(1, 60_000);
    let second = joined(&[&noise(2, 10_000), &run]);
    let third = joined(&[&second, &noise(3, 10_000)]);
    let plan = FaultyFiles::new(vec![run, second, third]).plan();
    assert_eq!(plan.pieces(2), [copy(1, 0, 10_000), copy(0, 0, 60_000), own(10_000)]);
}

#[test]
fn a_run_into_itself_is_stored_once() {
    let period = noise(1, 20_000);
    let file = joined(&[&noise(2, 10_000), &period.repeat(9), &noise(3, 10_000)]);
    let plan = FaultyFiles::new(vec![file]).plan();
    assert_eq!(plan.saved_bytes(), 160_000);
}

#[test]
fn zeros_are_copies_of_a_few_zeros() {
    let mut file = noise(2, 10_000);
    file.resize(3_000_000, 0);
    let plan = FaultyFiles::new(vec![file, vec![0; 1_000_000]]).plan();
    assert!(plan.saved_bytes() > 3_900_000, "{}", plan.saved_bytes());
}

#[test]
fn a_short_period_is_stored_to_the_length_of_some_pclusters() {
    let file = b"abcdefg".repeat(100_000);
    let plan = FaultyFiles::new(vec![file]).plan();
    let copies = plan.pieces(0).iter().filter(|piece| matches!(piece, DedupePiece::Copy { .. }));
    assert!((10..50).contains(&copies.count()), "{:?}", plan.pieces(0));
    assert!(plan.saved_bytes() > 600_000, "{}", plan.saved_bytes());
}

#[test]
fn short_runs_stay_where_they_are() {
    let run = noise(1, 6000);
    let first = joined(&[&noise(2, 30_000), &run, &noise(3, 20_000)]);
    let second = joined(&[&noise(4, 30_000), &run, &noise(5, 20_000)]);
    let plan = FaultyFiles::new(vec![first, second]).plan();
    assert_eq!((plan.pieces(0), plan.pieces(1)), (&[][..], &[][..]));
}

#[test]
fn thousands_of_tiny_files_are_not_confused() {
    let files = (0..5000).map(|number| format!("{}\n", number % 1000).into_bytes()).collect();
    let plan = FaultyFiles::new(files).plan();
    for file in 1000..5000 {
        assert!(
            matches!(plan.pieces(file), [DedupePiece::Copy { of, offset: 0, .. }] if *of == file % 1000)
        );
    }
}

#[test]
fn files_of_several_parts_are_compared_across_their_ends() {
    let run = noise(1, 20 << 20);
    let first = joined(&[&noise(2, 5_000_001), &run]);
    let files = FaultyFiles::new(vec![first, run]);
    let plan = files.search(2, CHUNK_HASH).unwrap();
    assert_eq!(plan.pieces(0), [own(5_000_001), own(20 << 20)]);
    assert_eq!(plan.pieces(1), [copy(0, 5_000_001, 20 << 20)]);
    let read: u64 = files.0.iter().map(|file| file.read.load(Ordering::Relaxed)).sum();
    // Once for the chunks, once for the comparison of both sides, and a little beyond.
    assert!(read < (5 + 4 * 21) << 20, "{read}");
}

#[test]
fn digests_that_collide_are_seen_through() {
    let by_length: ChunkHash = |chunk| chunk.len() as u64;
    let nothing: ChunkHash = |_| 0;
    let run = noise(9, 100_000);
    let contents = vec![
        noise(1, 100_000),
        noise(2, 100_000),
        vec![0; 100_000],
        run.clone(),
        joined(&[&noise(3, 5000), &run]),
        noise(1, 100_000),
    ];
    let files = FaultyFiles::new(contents);
    for digest in [by_length, nothing] {
        let plan = files.search(2, digest).unwrap();
        files.check(&plan);
    }
}

#[test]
fn a_source_that_fails_is_named() {
    for (failure, says) in [
        (FileFault::Open, "file 1: cannot open: Permission denied (os error 13)"),
        (FileFault::Read, "file 1: changed while it was read: it is another file"),
        (FileFault::Changed, "file 1: changed while it was read: it is another file"),
    ] {
        let contents = vec![noise(1, 9000), noise(1, 9000), noise(1, 9000)];
        let files = FaultyFiles::new(contents).failing(1, failure).failing(2, failure);
        for threads in [1, 3] {
            let error = files.search(threads, CHUNK_HASH).unwrap_err();
            assert_eq!(error.to_string(), says);
        }
    }
}

#[test]
fn a_cancelled_search_stops() {
    let contents = FaultyFiles::new(vec![noise(1, 9000)]).contents();
    let options = DedupeOptions { jobs: Some(2), memory_bytes: 1 << 20, ..OPTIONS };
    let store = SpillStore::new(crate::SpillOptions::default());
    let cancel = CancelToken::new();
    cancel.cancel();
    let error = DedupePlan::find(list(&contents[..1]), &options, &store, &cancel).unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::Cancelled));
}

#[test]
fn little_memory_makes_a_worse_plan_but_a_right_one() {
    let run = noise(1, 500_000);
    let files = FaultyFiles::new(vec![run.clone(), joined(&[b"front", &run])]);
    let mut saved = Vec::new();
    for memory_bytes in [0, 1000, 10_000, 1 << 20] {
        let options = DedupeOptions { memory_bytes, ..OPTIONS };
        let plan = files.search_with(&options, 2, CHUNK_HASH).unwrap();
        files.check(&plan);
        saved.push(plan.saved_bytes());
    }
    assert!(saved.is_sorted() && saved[0] == 0 && saved[3] > 490_000, "{saved:?}");
}

/// One step of making a file.
#[derive(Clone, Debug)]
enum GeneratorStep {
    Fresh(u64, usize),
    Zeros(usize),
    /// A part of what has been made so far, in all files.
    Again(prop::sample::Index, usize),
    Periodic(usize, usize),
}

fn steps() -> impl Strategy<Value = Vec<Vec<GeneratorStep>>> {
    let step = prop_oneof![
        (any::<u64>(), 0..30_000_usize)
            .prop_map(|(state, bytes)| GeneratorStep::Fresh(state, bytes)),
        (0..60_000_usize).prop_map(GeneratorStep::Zeros),
        (any::<prop::sample::Index>(), 0..60_000_usize)
            .prop_map(|(index, bytes)| GeneratorStep::Again(index, bytes)),
        (1..30_000_usize, 0..90_000_usize)
            .prop_map(|(period, bytes)| GeneratorStep::Periodic(period, bytes)),
    ];
    prop::collection::vec(prop::collection::vec(step, 0..6), 1..8)
}

fn made(files: &[Vec<GeneratorStep>]) -> Vec<Vec<u8>> {
    let mut all = Vec::new();
    let mut contents = Vec::new();
    for steps in files {
        let start = all.len();
        for step in steps {
            match step {
                GeneratorStep::Fresh(state, bytes) => all.extend(noise(*state, *bytes)),
                GeneratorStep::Zeros(bytes) => all.resize(all.len() + bytes, 0),
                GeneratorStep::Again(index, bytes) => {
                    let from = index.index(all.len() + 1);
                    let part = all[from..(from + bytes).min(all.len())].to_vec();
                    all.extend(part);
                }
                GeneratorStep::Periodic(period, bytes) => {
                    let pattern = noise(*period as u64, *period);
                    all.extend(pattern.iter().cycle().take(*bytes));
                }
            }
        }
        contents.push(all[start..].to_vec());
    }
    contents
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn every_plan_makes_the_files_again(steps in steps()) {
        let files = FaultyFiles::new(made(&steps));
        files.plan();
    }

    #[test]
    fn weak_digests_make_no_wrong_plan(steps in steps()) {
        let files = FaultyFiles::new(made(&steps));
        let plan = files.search(1, |chunk| u64::from(chunk[0] & 3)).unwrap();
        files.check(&plan);
    }
}

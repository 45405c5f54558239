//! Verifies candidates: reads both sides of each, in parallel, and keeps what is really equal.
//!
//! A candidate whose bytes differ somewhere is kept up to there. One that may be extended is, in both
//! directions, up to a limit or the ends of the two files.

use ferrofs_workers::CancelToken;
use ferrofs_workers::jobs::OrderedPipeline;

use crate::context::check_cancelled;
use crate::dedupe::match_finder::MatchCandidate;
use crate::dedupe::{ConcatenatedFiles, DuplicateRange};
use crate::tree::ContentReader;
use crate::{Error, Result};

/// Bytes that one thread compares in a row: longer candidates are split.
const SHARE_BYTES: u64 = 8 << 20;

/// Candidates of a batch at most.
const BATCH_MAX: usize = 64;

/// Bytes that are read of each side at once.
const WINDOW_BYTES: usize = 128 << 10;

/// Bytes that are read at once beyond a candidate, where a difference is expected soon.
const EDGE_BYTES: usize = 4 << 10;

/// Files that are kept open on the side of the sources.
const OPEN_MAX: usize = 8;

/// How candidates are compared.
pub(super) struct MatchVerifier<'a> {
    /// The files.
    pub(super) concat: &'a ConcatenatedFiles<'a>,
    /// How far a candidate is extended on each side. Beyond two of the longest chunks lies one in full,
    /// which is part of the candidate or of another one.
    pub(super) extension_bytes: u64,
    /// Ends the pass early.
    pub(super) cancel: &'a CancelToken,
}

impl MatchVerifier<'_> {
    /// What is equal of `candidates`, in their order. Ranges may overlap where both were extended.
    ///
    /// # Errors
    /// A source that cannot be read or changed, the first in the order of the candidates;
    /// [`ErrorKind::Cancelled`].
    pub(super) fn run(
        &self,
        ordered: &OrderedPipeline<'_>,
        candidates: &[MatchCandidate],
    ) -> Result<Vec<DuplicateRange>> {
        let mut runs: Vec<DuplicateRange> = Vec::new();
        let report = ordered.run(
            batches(candidates),
            || CompareSides::new(self.concat, self.extension_bytes),
            |sides, batch| {
                check_cancelled(self.cancel)?;
                let runs = batch.iter().map(|&candidate| sides.compare(candidate));
                let runs = runs.collect::<Result<Vec<_>>>()?;
                sides.check_unchanged()?;
                Ok(runs)
            },
            |batch| {
                batch
                    .into_iter()
                    .filter(|run| run.bytes > 0)
                    .for_each(|run| join(self.concat, &mut runs, run));
                Ok(())
            },
        );
        report.map(|_| runs)
    }
}

/// Appends `run`, as part of the last one where it goes on or overlaps with the same distance.
fn join(concat: &ConcatenatedFiles<'_>, runs: &mut Vec<DuplicateRange>, run: DuplicateRange) {
    match runs.last_mut() {
        Some(last) if last.is_continued_by(run, concat) => {
            last.bytes = last.bytes.max(run.target + run.bytes - last.target);
        }
        _ => runs.push(run),
    }
}

/// Splits `candidates` into batches.
fn batches(candidates: &[MatchCandidate]) -> impl Iterator<Item = Vec<MatchCandidate>> {
    let mut shares = candidates.iter().flat_map(shares).peekable();
    std::iter::from_fn(move || {
        let mut room = SHARE_BYTES;
        let mut batch = Vec::new();
        while let Some(share) = shares
            .next_if(|share| batch.is_empty() || share.bytes <= room && batch.len() < BATCH_MAX)
        {
            room = room.saturating_sub(share.bytes);
            batch.push(share);
        }
        (!batch.is_empty()).then_some(batch)
    })
}

/// The parts of a long candidate; only the outer ones are extended.
fn shares(candidate: &MatchCandidate) -> impl Iterator<Item = MatchCandidate> + use<> {
    let whole = *candidate;
    let count = whole.bytes.div_ceil(SHARE_BYTES);
    (0..count).map(move |number| {
        let start = number * SHARE_BYTES;
        MatchCandidate {
            target: whole.target + start,
            source: whole.source + start,
            bytes: SHARE_BYTES.min(whole.bytes - start),
            backwards: whole.backwards && number == 0,
            forwards: whole.forwards && number + 1 == count,
        }
    })
}

/// Both sides of what one thread compares.
struct CompareSides<'a> {
    target: CompareSide<'a>,
    source: CompareSide<'a>,
    extension_bytes: u64,
}

impl<'a> CompareSides<'a> {
    fn new(concat: &'a ConcatenatedFiles<'a>, extension_bytes: u64) -> Self {
        let (target, source) = (CompareSide::new(concat, 1), CompareSide::new(concat, OPEN_MAX));
        Self { target, source, extension_bytes }
    }

    fn compare(&mut self, candidate: MatchCandidate) -> Result<DuplicateRange> {
        let MatchCandidate { target, source, bytes, backwards, forwards } = candidate;
        self.target.switch_to(target)?;
        self.source.switch_to(source)?;
        let room =
            self.target.end.saturating_sub(target).min(self.source.end.saturating_sub(source));
        let beyond = if forwards { self.extension_bytes } else { 0 };
        let equal = self.equal_behind(target, source, room.min(bytes + beyond), bytes)?;
        let room = (target - self.target.start).min(source - self.source.start);
        // Without its own bytes there is nothing that could be extended.
        let more = backwards && equal >= bytes;
        let limit = if more { room.min(self.extension_bytes) } else { 0 };
        let before = self.equal_before(target, source, limit)?;
        Ok(DuplicateRange {
            target: target - before,
            source: source - before,
            bytes: before + equal,
        })
    }

    /// How many bytes are equal from `target` and `source` on, up to `limit`; about `likely` are.
    fn equal_behind(&mut self, target: u64, source: u64, limit: u64, likely: u64) -> Result<u64> {
        let mut equal = 0;
        while equal < limit {
            let window = likely.saturating_sub(equal).saturating_add(EDGE_BYTES as u64);
            let window = window.min(limit - equal).min(WINDOW_BYTES as u64);
            let left = self.target.read(target + equal, window)?;
            let right = self.source.read(source + equal, window)?;
            let common = common_prefix(left, right);
            equal += common as u64;
            if common < left.len() {
                break;
            }
        }
        Ok(equal)
    }

    /// How many bytes are equal in front of `target` and `source`, up to `limit`.
    fn equal_before(&mut self, target: u64, source: u64, limit: u64) -> Result<u64> {
        let mut equal = 0;
        while equal < limit {
            let window = (limit - equal).min(EDGE_BYTES as u64);
            let left = self.target.read(target - equal - window, window)?;
            let right = self.source.read(source - equal - window, window)?;
            let pairs = left.iter().rev().zip(right.iter().rev());
            let common = pairs.take_while(|(left, right)| left == right).count();
            equal += common as u64;
            if common < left.len() {
                break;
            }
        }
        Ok(equal)
    }

    fn check_unchanged(&mut self) -> Result<()> {
        self.target.check_unchanged()?;
        self.source.check_unchanged()
    }
}

/// The length of the longest common prefix of two slices of one length.
fn common_prefix(left: &[u8], right: &[u8]) -> usize {
    const STEP: usize = 256;
    let steps = left.chunks(STEP).zip(right.chunks(STEP));
    let start = steps.take_while(|(left, right)| left == right).count() * STEP;
    let (Some(left), Some(right)) = (left.get(start..), right.get(start..)) else {
        return left.len();
    };
    start + left.iter().zip(right).take_while(|(left, right)| left == right).count()
}

/// One side: the files it is read from, and what was read last.
struct CompareSide<'a> {
    concat: &'a ConcatenatedFiles<'a>,
    /// The places of the file in use.
    start: u64,
    end: u64,
    /// The last one is in use.
    open: Vec<(usize, Box<dyn ContentReader>)>,
    open_max: usize,
    buffer: Vec<u8>,
}

impl<'a> CompareSide<'a> {
    fn new(concat: &'a ConcatenatedFiles<'a>, open_max: usize) -> Self {
        let open = Vec::with_capacity(open_max);
        Self { concat, start: 0, end: 0, open, open_max, buffer: vec![0; WINDOW_BYTES] }
    }

    /// Makes the file that `place` lies in the one in use.
    fn switch_to(&mut self, place: u64) -> Result<()> {
        let file = self.concat.file_at(place);
        let places = self.concat.range(file);
        (self.start, self.end) = (places.start, places.end);
        if let Some(index) = self.open.iter().position(|(open, _)| *open == file) {
            self.open[index..].rotate_left(1);
            return Ok(());
        }
        if self.open.len() == self.open_max {
            let (file, mut reader) = self.open.remove(0);
            reader.check_unchanged().map_err(|error| self.at_source(file, error))?;
        }
        let reader = self.concat.source(file).open();
        self.open.push((file, reader.map_err(|error| self.at_source(file, error))?));
        Ok(())
    }

    /// The `bytes` bytes from `place` on; no more than [`WINDOW_BYTES`].
    fn read(&mut self, place: u64, bytes: u64) -> Result<&[u8]> {
        let Some((file, reader)) = self.open.last_mut() else {
            return Ok(&[]);
        };
        let bytes = usize::try_from(bytes).map_or(WINDOW_BYTES, |bytes| bytes.min(WINDOW_BYTES));
        let buffer = &mut self.buffer[..bytes];
        if let Err(error) = reader.read_exact_at(place - self.start, buffer) {
            return Err(error.at(self.concat.source(*file).name()));
        }
        Ok(&self.buffer[..bytes])
    }

    fn check_unchanged(&mut self) -> Result<()> {
        for (file, reader) in &mut self.open {
            reader.check_unchanged().map_err(|error| error.at(self.concat.source(*file).name()))?;
        }
        Ok(())
    }

    fn at_source(&self, file: usize, error: Error) -> Error {
        error.at(self.concat.source(file).name())
    }
}

//! Finds duplicate ranges over all files of an image, in parallel, and decides in the order of the files which of
//! them become copies.
//!
//! 1. [`chunker`]: every file is read once and split into content-defined chunks.
//! 2. [`match_finder`]: chunks with equal fingerprints that follow one another make candidates, with the first
//!    chunks of its index as their sources.
//! 3. [`match_verifier`]: the bytes of both sides are read again and compared, so that a digest never
//!    decides; what is equal is extended to its full length.
//! 4. [`MatchSelector`]: ranges that save more than their splits cost become copies.
//!
//! All files count as concatenated in data order, so a position is one number; only the plan has files and offsets
//! again. The plan depends on the bytes of the files and the options only, not on the number of threads, nor
//! on what the host says of holes.

mod chunker;
mod match_finder;
mod match_verifier;
#[cfg(test)]
mod tests;

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;

use chunker::{BITS_MAX, BITS_MIN, CHUNK_HASH, CdcParams, ChunkHash, ChunkScan};
use ferrofs_workers::CancelToken;
use ferrofs_workers::jobs::OrderedPipeline;
use match_finder::{CHUNK_ENTRY_BYTES, FingerprintIndex, MatchFinder, MatchThresholds};
use match_verifier::MatchVerifier;

use crate::spill::SpillStore;
use crate::spill::paged::PagedArray;
use crate::split::{DedupePiece, FileList};
use crate::tree::{ContentSource, memory_content};
use crate::{Error, ErrorKind, Result};

/// The options of a search for duplicates.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DedupeOptions {
    /// Block size in bytes.
    pub(crate) block_bytes: u32,
    /// Bytes of the largest pcluster, a block at least.
    pub(crate) pcluster_bytes: u32,
    /// Threads at most; none: as many as CPUs are granted.
    pub(crate) jobs: Option<usize>,
    /// Memory in bytes that the search takes for chunks and candidates, apart from buffers (under 1 MiB a thread) and
    /// the readers' own; a quarter more is for files that are equal as a whole. With less memory it finds fewer
    /// ranges; 1/40 of the bytes of the files is enough for all.
    pub(crate) memory_bytes: u64,
}

/// Files in data order: all of a list, or those with these numbers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DedupeFiles<'f> {
    pub(crate) contents: FileList<'f>,
    pub(crate) chosen: Option<&'f [usize]>,
}

impl DedupeFiles<'_> {
    fn len(self) -> usize {
        self.chosen.map_or(self.contents.len(), <[usize]>::len)
    }

    fn number(self, file: usize) -> usize {
        self.chosen.map_or(file, |chosen| chosen.get(file).copied().unwrap_or(usize::MAX))
    }
}

/// Which ranges of each file are stored, and which are copies.
///
/// In front of another piece of its file, a piece of compressed storage is two blocks long at least.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct DedupePlan {
    pieces: Vec<DedupePiece>,
    /// The files that are not one piece of their own, ascending, and where the pieces of each end.
    ends: Vec<(usize, usize)>,
}

impl DedupePlan {
    /// The plan for `files`, which come in data order.
    ///
    /// # Errors
    /// A file that cannot be read or changed; [`ErrorKind::Cancelled`](crate::ErrorKind::Cancelled) if
    /// `cancel` is cancelled; [`ErrorKind::Unsupported`](crate::ErrorKind::Unsupported) for more than
    /// 2^64 bytes.
    pub(crate) fn find(
        files: DedupeFiles<'_>,
        options: &DedupeOptions,
        store: &SpillStore,
        cancel: &CancelToken,
    ) -> Result<Self> {
        let ordered = match options.jobs {
            Some(jobs) => OrderedPipeline::new().max_threads(jobs),
            None => OrderedPipeline::new(),
        };
        DedupeSearch { options, ordered, digest: CHUNK_HASH, store, cancel }.run(files)
    }

    /// The pieces of `file`, in order and without gaps; none for a file that is empty or one piece of its own.
    pub(crate) fn pieces(&self, file: usize) -> &[DedupePiece] {
        let Ok(index) = self.ends.binary_search_by_key(&file, |(file, _)| *file) else {
            return &[];
        };
        let start = index.checked_sub(1).map_or(0, |before| self.ends[before].1);
        &self.pieces[start..self.ends[index].1]
    }

    /// The files that are not one piece of their own, ascending.
    pub(crate) fn cut_files(&self) -> Vec<usize> {
        self.ends.iter().map(|(file, _)| *file).collect()
    }

    /// How many bytes of the files are copies.
    #[cfg(test)]
    fn saved_bytes(&self) -> u64 {
        let copied = |piece: &DedupePiece| match *piece {
            DedupePiece::Own { .. } => 0,
            DedupePiece::Copy { bytes, .. } => bytes,
        };
        self.pieces.iter().map(copied).sum()
    }

    /// The plan for `copies` and `cuts`, both in the order of their places.
    fn new(
        concat: &ConcatenatedFiles<'_>,
        copies: &[DuplicateRange],
        cuts: &BTreeSet<u64>,
    ) -> Self {
        let mut plan = Self { pieces: Vec::new(), ends: Vec::new() };
        let mut copies = copies.iter().peekable();
        for file in 0..concat.len() {
            let places = concat.range(file);
            let mut place = places.start;
            while let Some(copy) = copies.next_if(|copy| copy.target < places.end) {
                plan.push_own(place, copy.target, cuts);
                let of = concat.file_at(copy.source);
                let offset = copy.source - concat.range(of).start;
                plan.pieces.push(DedupePiece::Copy { of, offset, bytes: copy.bytes });
                place = copy.target + copy.bytes;
            }
            plan.push_own(place, places.end, cuts);
            plan.end_file(file);
        }
        plan
    }

    fn end_file(&mut self, file: usize) {
        let before = self.ends.last().map_or(0, |(_, end)| *end);
        match self.pieces[before..] {
            [] => {}
            // As it is without a plan.
            [DedupePiece::Own { .. }] => drop(self.pieces.pop()),
            _ => self.ends.push((file, self.pieces.len())),
        }
    }

    fn push_own(&mut self, start: u64, end: u64, cuts: &BTreeSet<u64>) {
        let mut place = start;
        let inner = if start < end { Some(cuts.range(start + 1..end)) } else { None };
        for &cut in inner.into_iter().flatten() {
            self.pieces.push(DedupePiece::Own { bytes: cut - place });
            place = cut;
        }
        if place < end {
            self.pieces.push(DedupePiece::Own { bytes: end - place });
        }
    }
}

/// A search, with what only tests change.
struct DedupeSearch<'a> {
    options: &'a DedupeOptions,
    ordered: OrderedPipeline<'a>,
    digest: ChunkHash,
    store: &'a SpillStore,
    cancel: &'a CancelToken,
}

impl DedupeSearch<'_> {
    fn run(&self, files: DedupeFiles<'_>) -> Result<DedupePlan> {
        let concat = ConcatenatedFiles::new(files, self.store)?;
        let limits = DedupeLimits::new(self.options, concat.bytes());
        let index = FingerprintIndex::new(limits.chunks, limits.chunks_max);
        let mut candidates = MatchFinder::new(&concat, limits.thresholds, index);
        let cancel = self.cancel;
        let scan = ChunkScan { concat: &concat, cdc: limits.cdc, digest: self.digest, cancel };
        scan.run(&self.ordered, |chunks| {
            chunks.iter().for_each(|&chunk| candidates.push(chunk));
            Ok(())
        })?;
        let candidates = candidates.into_found();
        let extension_bytes = limits.cdc.longest() as u64 * 2;
        let comparison = MatchVerifier { concat: &concat, extension_bytes, cancel };
        let runs = comparison.run(&self.ordered, &candidates)?;
        let mut choice = MatchSelector::new(&concat, limits.costs);
        runs.into_iter().for_each(|run| choice.push(run));
        let (copies, cuts) = choice.into_parts();
        Ok(DedupePlan::new(&concat, &copies, &cuts))
    }
}

/// Bytes that a candidate takes until it is a piece: itself, the run it becomes, the copy, its cut and
/// the piece.
const CANDIDATE_BYTES: u64 = 192;

/// The table of whole files takes one part in so many of the memory, beside chunks and candidates.
const WHOLE_FILES_SHARE: u64 = 4;
/// Bytes of an entry in it at most, while it grows.
const WHOLE_FILE_BYTES: u64 = 40;

/// What follows from the options and the number of bytes.
#[derive(Debug)]
struct DedupeLimits {
    cdc: CdcParams,
    costs: SplitCosts,
    thresholds: MatchThresholds,
    /// How many chunks there will be, or a little more.
    chunks: usize,
    chunks_max: usize,
}

impl DedupeLimits {
    fn new(options: &DedupeOptions, bytes: u64) -> Self {
        // Three quarters for the chunks, the rest for what is found.
        let chunks_max = options.memory_bytes / 4 * 3 / CHUNK_ENTRY_BYTES;
        let count_max = saturated(options.memory_bytes / 4 / CANDIDATE_BYTES);
        let bits = (BITS_MIN..BITS_MAX).find(|bits| bytes >> (bits + 1) <= chunks_max);
        let bits = bits.unwrap_or(BITS_MAX);
        let costs = SplitCosts::of_compression(options.block_bytes, options.pcluster_bytes);
        let average = 2_u64 << bits;
        let cdc = CdcParams { bits };
        let files_max = saturated(options.memory_bytes / WHOLE_FILES_SHARE / WHOLE_FILE_BYTES);
        let thresholds = MatchThresholds { bytes_min: costs.piece_bytes_min, count_max, files_max };
        let chunks = saturated(bytes / average + bytes / average / 16);
        Self { cdc, costs, thresholds, chunks, chunks_max: saturated(chunks_max) }
    }
}

/// A number of bytes or things that memory is bounded by.
fn saturated(number: u64) -> usize {
    usize::try_from(number).unwrap_or(usize::MAX)
}

/// The files of an image, concatenated without gaps.
#[derive(Debug)]
struct ConcatenatedFiles<'f> {
    files: DedupeFiles<'f>,
    /// Where each file starts, and behind them where the last one ends.
    starts: PagedArray<u64>,
    bytes: u64,
}

impl<'f> ConcatenatedFiles<'f> {
    /// The concatenation of `files`.
    ///
    /// # Errors
    /// Together they have more bytes than 64 bits count.
    fn new(files: DedupeFiles<'f>, store: &SpillStore) -> Result<Self> {
        let mut starts = PagedArray::new(store);
        let mut bytes = 0_u64;
        starts.push(bytes);
        for file in 0..files.len() {
            let more = files.contents.bytes(files.number(file));
            bytes = bytes.checked_add(more).ok_or_else(|| {
                let what = "files of more than 2^64 bytes together";
                let error = Error::new(ErrorKind::Unsupported(what.to_owned()));
                match files.contents.content(files.number(file)) {
                    Some(content) => error.at(content.source().name()),
                    None => error,
                }
            })?;
            starts.push(bytes);
        }
        Ok(Self { files, starts, bytes })
    }

    /// How many files there are.
    fn len(&self) -> usize {
        self.files.len()
    }

    /// The bytes of all files.
    fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The source of the file with the index `file`.
    fn source(&self, file: usize) -> Arc<dyn ContentSource> {
        let content = self.files.contents.content(self.files.number(file));
        let lost = || memory_content("a file that is not there", 0, Vec::new(), 0);
        content.unwrap_or_else(lost).source()
    }

    /// The places of `file`.
    fn range(&self, file: usize) -> Range<u64> {
        let start = |file| self.starts.get(file).unwrap_or(self.bytes);
        start(file)..start(file + 1)
    }

    /// The file that `place` lies in; empty files hold no place. `place` is less than
    /// [`bytes`](Self::bytes).
    fn file_at(&self, place: u64) -> usize {
        debug_assert!(place < self.bytes(), "place {place} lies behind all files");
        self.starts.partition_point(|start| start <= place).saturating_sub(1)
    }
}

/// Two ranges with the same bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct DuplicateRange {
    /// The place where the later range starts.
    target: u64,
    /// The place where the earlier one starts. Until it is committed it may run into the later one.
    source: u64,
    /// Their length.
    bytes: u64,
}

impl DuplicateRange {
    /// The run without its first `bytes` bytes; nothing if that is all of it.
    fn without_first(self, bytes: u64) -> Option<Self> {
        let left = self.bytes.checked_sub(bytes).filter(|&left| left > 0)?;
        Some(Self { target: self.target + bytes, source: self.source + bytes, bytes: left })
    }

    /// Whether `next`, whose target starts no earlier, is at the same distance from its source, without
    /// a gap, and in the same two files.
    fn is_continued_by(self, next: Self, concat: &ConcatenatedFiles<'_>) -> bool {
        self.target - self.source == next.target - next.source
            && next.target <= self.target + self.bytes
            && concat.file_at(self.target) == concat.file_at(next.target)
            && concat.file_at(self.source) == concat.file_at(next.source)
    }
}

/// What splits cost, and what they must leave whole.
#[derive(Clone, Copy, Debug)]
struct SplitCosts {
    /// Bytes of source data whose encoded form is as large as what a cut costs.
    cut_bytes: u64,
    /// The shortest piece in front of another one.
    piece_bytes_min: u64,
    /// A run that repeats itself is stored up to this many bytes before it is copied.
    period_bytes_min: u64,
}

impl SplitCosts {
    /// Compression into pclusters of up to `pcluster_bytes`, in blocks of `block_bytes`.
    fn of_compression(block_bytes: u32, pcluster_bytes: u32) -> Self {
        let (block, pcluster) = (u64::from(block_bytes), u64::from(pcluster_bytes));
        Self {
            cut_bytes: block * 2,
            // Every extent must reach into another lcluster, and one of several blocks into two more.
            piece_bytes_min: block * 2,
            period_bytes_min: pcluster * 4,
        }
    }
}

/// Selects which duplicate ranges become copies, and where their sources have to be split.
///
/// It takes the ranges in data order and never takes a decision back, so that a source is always bytes that are stored,
/// never a copy.
#[derive(Debug)]
struct MatchSelector<'a> {
    concat: &'a ConcatenatedFiles<'a>,
    costs: SplitCosts,
    /// In data order.
    copies: Vec<DuplicateRange>,
    /// Places where a piece starts because a copy starts there.
    cuts: BTreeSet<u64>,
}

impl<'a> MatchSelector<'a> {
    fn new(concat: &'a ConcatenatedFiles<'a>, costs: SplitCosts) -> Self {
        Self { concat, costs, copies: Vec::new(), cuts: BTreeSet::new() }
    }

    /// The copies, and the cuts.
    fn into_parts(self) -> (Vec<DuplicateRange>, BTreeSet<u64>) {
        (self.copies, self.cuts)
    }

    /// Takes the next run, by where it starts without its extension.
    fn push(&mut self, run: DuplicateRange) {
        let Some(run) = self.clipped(run).and_then(|run| self.with_long_period(run)) else {
            return;
        };
        let mut done = 0;
        let mut pending: Option<DuplicateRange> = None;
        while done < run.bytes {
            let (target, source) = (run.target + done, run.source + done);
            if let Some(range) = pending.take_if(|pending| source >= pending.target) {
                self.commit(range);
            }
            // What is pending is not stored for sure, nor a copy yet: no source until it is committed.
            let unsettled = pending.map_or(target, |pending| pending.target);
            let part = self
                .resolved(DuplicateRange { target, source, bytes: run.bytes - done }, unsettled);
            done += part.bytes;
            match &mut pending {
                Some(last) if last.is_continued_by(part, self.concat) => last.bytes += part.bytes,
                _ => {
                    if let Some(range) = pending.replace(part) {
                        self.commit(range);
                    }
                }
            }
        }
        if let Some(range) = pending {
            self.commit(range);
        }
    }

    /// What of `run` lies behind all copies.
    fn clipped(&self, run: DuplicateRange) -> Option<DuplicateRange> {
        let covered_until = self.copies.last().map_or(0, |last| last.target + last.bytes);
        run.without_first(covered_until.saturating_sub(run.target))
    }

    /// A run into itself, moved so that it repeats more bytes at once: with a short period the source
    /// would be a few bytes, and the run a great many copies of it.
    fn with_long_period(&self, run: DuplicateRange) -> Option<DuplicateRange> {
        let period = run.target - run.source;
        if period >= run.bytes || period >= self.costs.period_bytes_min {
            return Some(run);
        }
        let more = (self.costs.period_bytes_min.div_ceil(period) - 1).checked_mul(period)?;
        let moved = run.without_first(more)?;
        Some(DuplicateRange { source: run.source, ..moved })
    }

    /// The start of `run`, with a source that is stored: as much of it as lies in one copy, or between
    /// two and in front of `unsettled`.
    fn resolved(&self, run: DuplicateRange, unsettled: u64) -> DuplicateRange {
        let next = self.copies.partition_point(|copy| copy.target <= run.source);
        let copy = next.checked_sub(1).map(|index| self.copies[index]);
        if let Some(copy) = copy.filter(|copy| run.source < copy.target + copy.bytes) {
            let into = run.source - copy.target;
            let bytes = run.bytes.min(copy.bytes - into);
            return DuplicateRange { source: copy.source + into, bytes, ..run };
        }
        let end = self.copies.get(next).map_or(unsettled, |copy| copy.target.min(unsettled));
        DuplicateRange { bytes: run.bytes.min(end - run.source), ..run }
    }

    /// Makes a copy of `range` where that saves bytes, moved by as little as it takes to leave no short piece.
    fn commit(&mut self, range: DuplicateRange) {
        let concat = self.concat;
        if let Some(last) =
            self.copies.last_mut().filter(|last| last.is_continued_by(range, concat))
        {
            last.bytes += range.bytes;
            return;
        }
        // Each turn moves past a cut or a short piece; more of them in a row make the rest worthless.
        const TURNS: usize = 8;
        let mut moved = Some(range);
        for _ in 0..TURNS {
            let Some(range) = moved else {
                return;
            };
            let more = self.source_shift(range).max(self.target_shift(range.target));
            if more == 0 {
                if self.is_worthwhile(range) {
                    self.cuts.insert(range.source);
                    self.copies.push(range);
                }
                return;
            }
            moved = range.without_first(more);
        }
    }

    /// How far the source must move for the pieces at its start to be long enough; also to a cut
    /// that is near, which is cheaper than another one.
    fn source_shift(&self, range: DuplicateRange) -> u64 {
        let (start, end) = self.stored_piece(range);
        if start == range.source {
            return 0;
        }
        let near = self.costs.cut_bytes.max(self.costs.piece_bytes_min);
        let to_next = end - range.source;
        if to_next < near && to_next < range.bytes {
            return to_next;
        }
        self.costs.piece_bytes_min.saturating_sub(range.source - start)
    }

    /// How far the target must move for the piece in front of it to be long enough.
    fn target_shift(&self, target: u64) -> u64 {
        match target - self.committed_before(target) {
            0 => 0,
            gap => self.costs.piece_bytes_min.saturating_sub(gap),
        }
    }

    /// Whether a copy saves more than it costs: each piece of its own that comes to be costs a cut, and
    /// each that vanishes saves one.
    fn is_worthwhile(&self, range: DuplicateRange) -> bool {
        let file = self.concat.range(self.concat.file_at(range.target));
        let (start, _) = self.stored_piece(range);
        let is_cut = start == range.source;
        let has_front = self.committed_before(range.target) < range.target;
        let has_back = range.target + range.bytes < file.end;
        let is_whole = range.bytes == file.end - file.start;
        let pieces = u64::from(!is_cut) + u64::from(has_front) + u64::from(has_back);
        let cost = pieces.saturating_sub(1) * self.costs.cut_bytes;
        let min = if is_whole && is_cut { 1 } else { self.costs.piece_bytes_min.max(1) };
        range.bytes >= min.max(cost)
    }

    /// Where the last copy ends in the file of `target`, or the file starts.
    fn committed_before(&self, target: u64) -> u64 {
        let file = self.concat.range(self.concat.file_at(target));
        self.copies.last().map_or(0, |last| last.target + last.bytes).max(file.start)
    }

    /// The piece that is stored and holds the start of the source of `range`.
    fn stored_piece(&self, range: DuplicateRange) -> (u64, u64) {
        let source = range.source;
        let file = self.concat.range(self.concat.file_at(source));
        let next = self.copies.partition_point(|copy| copy.target <= source);
        let before = next.checked_sub(1).map(|index| self.copies[index]);
        let behind = self.copies.get(next).map_or(range.target, |copy| copy.target);
        let cut_before = self.cuts.range(..=source).next_back().copied();
        let cut_behind = self.cuts.range(source + 1..).next().copied();
        let start = before.map_or(0, |copy| copy.target + copy.bytes);
        let start = start.max(file.start).max(cut_before.unwrap_or(0));
        let end = behind.min(file.end).min(cut_behind.unwrap_or(u64::MAX));
        (start, end)
    }
}

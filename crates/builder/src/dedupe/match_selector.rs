//! Selects which duplicate ranges become copies, and where their sources have to be split.
//!
//! The selector takes the ranges in data order and never takes a decision back, so that a source is always bytes
//! that are stored, never a copy.

use std::collections::BTreeSet;

use crate::dedupe::{ConcatenatedFiles, DuplicateRange};

/// What splits cost, and what they must leave whole.
#[derive(Clone, Copy, Debug)]
pub(super) struct SplitCosts {
    /// Bytes of source data whose encoded form is as large as what a cut costs.
    pub(super) cut_bytes: u64,
    /// The shortest piece in front of another one.
    pub(super) piece_bytes_min: u64,
    /// A run that repeats itself is stored up to this many bytes before it is copied.
    pub(super) period_bytes_min: u64,
}

impl SplitCosts {
    /// Compression into pclusters of up to `pcluster_bytes`, in blocks of `block_bytes`.
    pub(super) fn of_compression(block_bytes: u32, pcluster_bytes: u32) -> Self {
        let (block, pcluster) = (u64::from(block_bytes), u64::from(pcluster_bytes));
        Self {
            cut_bytes: block * 2,
            // Every extent must reach into another lcluster, and one of several blocks into two more.
            piece_bytes_min: block * 2,
            period_bytes_min: pcluster * 4,
        }
    }
}

/// Copies in data order, and the splits that they need.
#[derive(Debug)]
pub(super) struct MatchSelector<'a> {
    concat: &'a ConcatenatedFiles<'a>,
    costs: SplitCosts,
    copies: Vec<DuplicateRange>,
    /// Places where a piece starts because a copy starts there.
    cuts: BTreeSet<u64>,
}

impl<'a> MatchSelector<'a> {
    pub(super) fn new(concat: &'a ConcatenatedFiles<'a>, costs: SplitCosts) -> Self {
        Self { concat, costs, copies: Vec::new(), cuts: BTreeSet::new() }
    }

    /// The copies, and the cuts.
    pub(super) fn into_parts(self) -> (Vec<DuplicateRange>, BTreeSet<u64>) {
        (self.copies, self.cuts)
    }

    /// Takes the next run, by where it starts without its extension.
    pub(super) fn push(&mut self, run: DuplicateRange) {
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
        let settled = self.copies.last().map_or(0, |last| last.target + last.bytes);
        run.without_first(settled.saturating_sub(run.target))
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

    /// How far the source must move for the pieces around its start to be long enough; also to a cut
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
        let least = if is_whole && is_cut { 1 } else { self.costs.piece_bytes_min.max(1) };
        range.bytes >= least.max(cost)
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

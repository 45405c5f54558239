//! The choice: which equal runs become copies, and where that forces a cut into what they copy.
//!
//! Goes through the runs in data order and never takes anything back: what comes earlier is settled,
//! so a source is always bytes that are stored, never a copy.

use std::collections::BTreeSet;

use super::equal_run::EqualRun;
use super::space::Space;

/// What cuts cost, and what they must leave whole.
#[derive(Clone, Copy, Debug)]
pub(super) struct Costs {
    /// Bytes of source data whose encoded form is as large as what a cut costs.
    pub(super) cut_bytes: u64,
    /// The shortest piece in front of another one.
    pub(super) piece_bytes_min: u64,
    /// A run that repeats itself is stored up to this many bytes before it is copied.
    pub(super) period_bytes_min: u64,
}

impl Costs {
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

/// Copies in data order, and what they ask of the rest.
#[derive(Debug)]
pub(super) struct Choice<'a> {
    space: &'a Space<'a>,
    costs: Costs,
    copies: Vec<EqualRun>,
    /// Places where a piece starts because a copy starts there.
    cuts: BTreeSet<u64>,
}

impl<'a> Choice<'a> {
    pub(super) fn new(space: &'a Space<'a>, costs: Costs) -> Self {
        Self { space, costs, copies: Vec::new(), cuts: BTreeSet::new() }
    }

    /// The copies, and the cuts.
    pub(super) fn into_parts(self) -> (Vec<EqualRun>, BTreeSet<u64>) {
        (self.copies, self.cuts)
    }

    /// Takes the next run, by where it starts without its extension.
    pub(super) fn push(&mut self, run: EqualRun) {
        let Some(run) = self.clipped(run).and_then(|run| self.with_long_period(run)) else {
            return;
        };
        let mut done = 0;
        let mut pending: Option<EqualRun> = None;
        while done < run.bytes {
            let (target, source) = (run.target + done, run.source + done);
            if let Some(range) = pending.take_if(|pending| source >= pending.target) {
                self.settle(range);
            }
            // What is pending is not stored for sure, nor a copy yet: no source until it is settled.
            let unsettled = pending.map_or(target, |pending| pending.target);
            let part =
                self.resolved(EqualRun { target, source, bytes: run.bytes - done }, unsettled);
            done += part.bytes;
            match &mut pending {
                Some(last) if last.is_continued_by(part, self.space) => last.bytes += part.bytes,
                _ => {
                    if let Some(range) = pending.replace(part) {
                        self.settle(range);
                    }
                }
            }
        }
        if let Some(range) = pending {
            self.settle(range);
        }
    }

    /// What of `run` lies behind all copies.
    fn clipped(&self, run: EqualRun) -> Option<EqualRun> {
        let settled = self.copies.last().map_or(0, |last| last.target + last.bytes);
        run.without_first(settled.saturating_sub(run.target))
    }

    /// A run into itself, moved so that it repeats more bytes at once: with a short period the source
    /// would be a few bytes, and the run a great many copies of it.
    fn with_long_period(&self, run: EqualRun) -> Option<EqualRun> {
        let period = run.target - run.source;
        if period >= run.bytes || period >= self.costs.period_bytes_min {
            return Some(run);
        }
        let more = (self.costs.period_bytes_min.div_ceil(period) - 1).checked_mul(period)?;
        let moved = run.without_first(more)?;
        Some(EqualRun { source: run.source, ..moved })
    }

    /// The start of `run`, with a source that is stored: as much of it as lies in one copy, or between
    /// two and in front of `unsettled`.
    fn resolved(&self, run: EqualRun, unsettled: u64) -> EqualRun {
        let next = self.copies.partition_point(|copy| copy.target <= run.source);
        let copy = next.checked_sub(1).map(|index| self.copies[index]);
        if let Some(copy) = copy.filter(|copy| run.source < copy.target + copy.bytes) {
            let into = run.source - copy.target;
            let bytes = run.bytes.min(copy.bytes - into);
            return EqualRun { source: copy.source + into, bytes, ..run };
        }
        let end = self.copies.get(next).map_or(unsettled, |copy| copy.target.min(unsettled));
        EqualRun { bytes: run.bytes.min(end - run.source), ..run }
    }

    /// Makes a copy of `range` where that pays, moved by as little as it takes to leave no short piece.
    fn settle(&mut self, range: EqualRun) {
        let space = self.space;
        if let Some(last) = self.copies.last_mut().filter(|last| last.is_continued_by(range, space))
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
            let more = self.short_of_source(range).max(self.short_of_target(range.target));
            if more == 0 {
                if self.pays(range) {
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
    fn short_of_source(&self, range: EqualRun) -> u64 {
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
    fn short_of_target(&self, target: u64) -> u64 {
        match target - self.settled_before(target) {
            0 => 0,
            gap => self.costs.piece_bytes_min.saturating_sub(gap),
        }
    }

    /// Whether a copy saves more than it costs: each piece of its own that comes to be costs a cut, and
    /// each that vanishes saves one.
    fn pays(&self, range: EqualRun) -> bool {
        let file = self.space.range(self.space.file_at(range.target));
        let (start, _) = self.stored_piece(range);
        let is_cut = start == range.source;
        let has_front = self.settled_before(range.target) < range.target;
        let has_back = range.target + range.bytes < file.end;
        let is_whole = range.bytes == file.end - file.start;
        let pieces = u64::from(!is_cut) + u64::from(has_front) + u64::from(has_back);
        let cost = pieces.saturating_sub(1) * self.costs.cut_bytes;
        let least = if is_whole && is_cut { 1 } else { self.costs.piece_bytes_min.max(1) };
        range.bytes >= least.max(cost)
    }

    /// Where the last copy ends in the file of `target`, or the file starts.
    fn settled_before(&self, target: u64) -> u64 {
        let file = self.space.range(self.space.file_at(target));
        self.copies.last().map_or(0, |last| last.target + last.bytes).max(file.start)
    }

    /// The piece that is stored and holds the start of the source of `range`.
    fn stored_piece(&self, range: EqualRun) -> (u64, u64) {
        let source = range.source;
        let file = self.space.range(self.space.file_at(source));
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

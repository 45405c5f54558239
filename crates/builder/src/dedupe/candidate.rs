//! Candidates: ranges that are equal by the digests of their grains, found in one walk in data order.
//!
//! Nothing here has seen the bytes of two ranges side by side; that is the comparison's part.

use std::collections::HashMap;
use std::ops::Range;

use xxhash_rust::xxh3::xxh3_64_with_seed;

use super::scan::Grain;
use super::seen::Seen;
use super::space::Space;

/// A range that seems to be equal to an earlier one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Candidate {
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
pub(super) struct Worth {
    /// Shorter runs are of no use, unless they are whole files.
    pub(super) bytes_min: u64,
    /// Candidates that are kept at most.
    pub(super) count_max: usize,
}

/// Takes the grains in order, and collects candidates.
#[derive(Debug)]
pub(super) struct Candidates<'a> {
    space: &'a Space<'a>,
    worth: Worth,
    seen: Seen,
    /// The first file with that many bytes and that digest of its digests.
    wholes: HashMap<(u64, u64), usize>,
    found: Vec<Candidate>,
    /// The place of the next grain.
    place: u64,
    file: OpenFile,
    run: Option<OpenRun>,
    /// The length of the last grain; 0 at the start of a file.
    last_bytes: u32,
}

/// The file that grains come from now.
#[derive(Debug, Default)]
struct OpenFile {
    number: usize,
    places: Range<u64>,
    digest: u64,
    /// How many candidates there were before it.
    found_before: usize,
}

/// A run that may go on.
#[derive(Debug)]
struct OpenRun {
    target: u64,
    source: u64,
    /// The grain of the source that comes next.
    next: usize,
    /// Where the source's file ends.
    source_end: u64,
    /// Bytes of the grain in front, by which the run may grow.
    slack: u32,
}

impl<'a> Candidates<'a> {
    pub(super) fn new(space: &'a Space<'a>, worth: Worth, seen: Seen) -> Self {
        Self {
            space,
            worth,
            seen,
            wholes: HashMap::new(),
            found: Vec::new(),
            place: 0,
            file: OpenFile::default(),
            run: None,
            last_bytes: 0,
        }
    }

    /// Takes the next grain.
    pub(super) fn push(&mut self, grain: Grain) {
        if self.place == self.file.places.end {
            self.open_file();
        }
        let goes_on = self.run.as_mut().is_some_and(|run| run.goes_on(&self.seen, grain));
        if goes_on {
            self.seen.push(grain.bytes, grain.digest, false);
        } else {
            self.close_run(grain.bytes);
            let first = self.seen.first(grain.digest);
            self.open_run(first, grain);
            self.seen.push(grain.bytes, grain.digest, first.is_none());
        }
        self.file.digest = xxh3_64_with_seed(&grain.digest.to_le_bytes(), self.file.digest);
        self.last_bytes = grain.bytes;
        self.place += u64::from(grain.bytes);
        if self.place == self.file.places.end {
            self.close_run(0);
            self.close_file();
        }
    }

    /// All candidates, by their targets, which do not overlap.
    pub(super) fn into_found(self) -> Vec<Candidate> {
        self.found
    }

    fn open_file(&mut self) {
        let number = self.space.file_at(self.place);
        let places = self.space.range(number);
        self.file = OpenFile { number, places, digest: 0, found_before: self.found.len() };
        self.last_bytes = 0;
    }

    /// A file that is equal as a whole is one candidate, whatever its parts are equal to.
    fn close_file(&mut self) {
        let OpenFile { number, places, digest, found_before } = &self.file;
        let bytes = places.end - places.start;
        let first = *self.wholes.entry((bytes, *digest)).or_insert(*number);
        if first != *number {
            self.found.truncate(*found_before);
            self.found.push(Candidate {
                target: places.start,
                source: self.space.range(first).start,
                bytes,
                backwards: false,
                forwards: false,
            });
        }
    }

    fn open_run(&mut self, first: Option<usize>, grain: Grain) {
        self.run = first.and_then(|index| {
            let source = self.seen.places(index)?;
            // A digest without the length could be taken for that of another length.
            (source.end - source.start == u64::from(grain.bytes)).then(|| OpenRun {
                target: self.place,
                source: source.start,
                next: index + 1,
                source_end: self.space.range(self.space.file_at(source.start)).end,
                slack: self.last_bytes,
            })
        });
    }

    /// Ends the run in front of `place`; `slack` is the length of the grain there, if it has one.
    fn close_run(&mut self, slack: u32) {
        let Some(run) = self.run.take() else {
            return;
        };
        let bytes = self.place - run.target;
        let slack = u64::from(run.slack) + u64::from(slack);
        if bytes + slack >= self.worth.bytes_min && self.found.len() < self.worth.count_max {
            self.found.push(Candidate {
                target: run.target,
                source: run.source,
                bytes,
                backwards: true,
                forwards: true,
            });
        }
    }
}

impl OpenRun {
    /// Whether `grain` is what comes next in the source.
    fn goes_on(&mut self, seen: &Seen, grain: Grain) -> bool {
        let is_next = seen.has(self.next, grain.digest)
            && seen.places(self.next).is_some_and(|places| {
                places.start < self.source_end
                    && places.end - places.start == u64::from(grain.bytes)
            });
        self.next += usize::from(is_next);
        is_next
    }
}

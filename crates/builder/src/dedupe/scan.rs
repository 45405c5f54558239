//! The pass over all files: reads each byte once, in parallel, and hands on the grains in order.

use ferrofs_workers::jobs::Ordered;

use super::grain::{Cutting, Digest};
use super::space::Space;
use crate::{Error, ErrorKind, Result};

/// Bytes of a file that one thread reads in a row. Large files are cut there whatever the number of
/// threads, so that the grains depend on the files only.
const PART_BYTES: u64 = 8 << 20;

/// Parts that make a batch at most: enough that a thread is not woken for a small file alone.
const PARTS_MAX: usize = 128;

/// Bytes that are read at once: they stay in the cache of a core while they are looked at.
const BUFFER_BYTES: usize = 256 << 10;

/// A grain: its length and what it is compared by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Grain {
    /// Not 0.
    pub(super) bytes: u32,
    /// Of its bytes.
    pub(super) digest: u64,
}

/// How files are read.
pub(super) struct Scan<'a> {
    /// The files.
    pub(super) space: &'a Space<'a>,
    /// Where grains end.
    pub(super) cutting: Cutting,
    /// What they are compared by.
    pub(super) digest: Digest,
    /// Whether to end early.
    pub(super) should_stop: &'a (dyn Fn() -> bool + Sync),
}

/// A part of a file.
#[derive(Clone, Copy, Debug)]
struct Part {
    file: usize,
    start: u64,
    end: u64,
}

impl Scan<'_> {
    /// Calls `commit` with the grains of all files, in order, some at a time.
    ///
    /// # Errors
    /// A source that cannot be read or changed, the first in the order of the files; what `commit`
    /// returns; [`ErrorKind::Stopped`].
    pub(super) fn run(
        &self,
        ordered: &Ordered<'_>,
        mut commit: impl FnMut(&[Grain]) -> Result<()>,
    ) -> Result<()> {
        let longest = self.cutting.longest();
        let report = ordered.run(
            Batches { space: self.space, next: (0, 0) },
            || vec![0; BUFFER_BYTES.max(longest * 2)],
            |buffer, batch: Vec<Part>| {
                let mut grains = Vec::new();
                for part in batch {
                    self.read(part, buffer, &mut grains)?;
                }
                Ok(grains)
            },
            |grains| commit(&grains),
        );
        report.map(drop)
    }

    fn read(&self, part: Part, buffer: &mut [u8], grains: &mut Vec<Grain>) -> Result<()> {
        if (self.should_stop)() {
            return Err(Error::new(ErrorKind::Stopped));
        }
        let store = self.space.content(part.file).store();
        self.read_open(part, buffer, grains).map_err(|error| error.at(store.name()))
    }

    fn read_open(&self, part: Part, buffer: &mut [u8], grains: &mut Vec<Grain>) -> Result<()> {
        let mut reader = self.space.content(part.file).store().open()?;
        let longest = self.cutting.longest();
        let mut offset = part.start;
        let mut kept = 0;
        while offset < part.end {
            let room = &mut buffer[kept..];
            let bytes =
                usize::try_from(part.end - offset).map_or(room.len(), |n| n.min(room.len()));
            reader.read_exact_at(offset, &mut room[..bytes])?;
            offset += bytes as u64;
            let filled = kept + bytes;
            let mut start = 0;
            // A grain ends for sure where the longest would; at the end of the part everything does.
            while start < filled && (filled - start >= longest || offset == part.end) {
                let grain = &buffer[start..filled];
                let grain = &grain[..self.cutting.end(grain)];
                start += grain.len();
                // No grain is longer than 32 bits count: the longest is 128 KiB.
                let bytes = u32::try_from(grain.len()).unwrap_or(u32::MAX);
                grains.push(Grain { bytes, digest: (self.digest)(grain) });
            }
            buffer.copy_within(start..filled, 0);
            kept = filled - start;
        }
        reader.check_unchanged()
    }
}

/// All files in order, in batches of about equal size.
struct Batches<'a> {
    space: &'a Space<'a>,
    /// The next file, and the next byte in it.
    next: (usize, u64),
}

impl Iterator for Batches<'_> {
    type Item = Vec<Part>;

    fn next(&mut self) -> Option<Vec<Part>> {
        let mut batch = Vec::new();
        let mut room = PART_BYTES;
        while room > 0 && batch.len() < PARTS_MAX && self.next.0 < self.space.len() {
            let (file, start) = self.next;
            let bytes = self.space.content(file).bytes();
            // Counted within the file: a cut must not depend on what comes before the file.
            let end = bytes.min(start.saturating_add(PART_BYTES));
            if start < end {
                if end - start > room && !batch.is_empty() {
                    break;
                }
                batch.push(Part { file, start, end });
                room = room.saturating_sub(end - start);
            }
            self.next = if end == bytes { (file + 1, 0) } else { (file, end) };
        }
        (!batch.is_empty()).then_some(batch)
    }
}

//! The pass over all files: reads each byte once, in parallel, and hands on the chunks in order.

use ferrofs_workers::jobs::OrderedPipeline;

use super::grain::{CdcParams, ChunkHash};
use super::space::ConcatenatedFiles;
use crate::{Error, ErrorKind, Result};

/// Bytes of a file that one thread reads in a row. Large files are cut there whatever the number of
/// threads, so that the chunks depend on the files only.
const PART_BYTES: u64 = 8 << 20;

/// Parts that make a batch at most: enough that a thread is not woken for a small file alone.
const PARTS_MAX: usize = 128;

/// Bytes that are read at once: they stay in the cache of a core while they are looked at.
const BUFFER_BYTES: usize = 256 << 10;

/// A chunk: its length and what it is compared by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct CdcChunk {
    /// Not 0.
    pub(super) bytes: u32,
    /// Of its bytes.
    pub(super) digest: u64,
}

/// How files are read.
pub(super) struct ChunkScan<'a> {
    /// The files.
    pub(super) concat: &'a ConcatenatedFiles<'a>,
    /// Where chunks end.
    pub(super) cdc: CdcParams,
    /// What they are compared by.
    pub(super) digest: ChunkHash,
    /// Whether to end early.
    pub(super) should_stop: &'a (dyn Fn() -> bool + Sync),
}

/// A part of a file.
#[derive(Clone, Copy, Debug)]
struct ScanRange {
    file: usize,
    start: u64,
    end: u64,
}

impl ChunkScan<'_> {
    /// Calls `commit` with the chunks of all files, in order, some at a time.
    ///
    /// # Errors
    /// A source that cannot be read or changed, the first in the order of the files; what `commit`
    /// returns; [`ErrorKind::Cancelled`].
    pub(super) fn run(
        &self,
        ordered: &OrderedPipeline<'_>,
        mut commit: impl FnMut(&[CdcChunk]) -> Result<()>,
    ) -> Result<()> {
        let longest = self.cdc.longest();
        let report = ordered.run(
            ScanBatches { concat: self.concat, next: (0, 0) },
            || vec![0; BUFFER_BYTES.max(longest * 2)],
            |buffer, batch: Vec<ScanRange>| {
                let mut chunks = Vec::new();
                for part in batch {
                    self.read(part, buffer, &mut chunks)?;
                }
                Ok(chunks)
            },
            |chunks| commit(&chunks),
        );
        report.map(drop)
    }

    fn read(&self, part: ScanRange, buffer: &mut [u8], chunks: &mut Vec<CdcChunk>) -> Result<()> {
        if (self.should_stop)() {
            return Err(Error::new(ErrorKind::Cancelled));
        }
        let source = self.concat.content(part.file).source();
        self.read_open(part, buffer, chunks).map_err(|error| error.at(source.name()))
    }

    fn read_open(
        &self,
        part: ScanRange,
        buffer: &mut [u8],
        chunks: &mut Vec<CdcChunk>,
    ) -> Result<()> {
        let mut reader = self.concat.content(part.file).source().open()?;
        let longest = self.cdc.longest();
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
            // A chunk ends for sure where the longest would; at the end of the part everything does.
            while start < filled && (filled - start >= longest || offset == part.end) {
                let chunk = &buffer[start..filled];
                let chunk = &chunk[..self.cdc.end(chunk)];
                start += chunk.len();
                // No chunk is longer than 32 bits count: the longest is 128 KiB.
                let bytes = u32::try_from(chunk.len()).unwrap_or(u32::MAX);
                chunks.push(CdcChunk { bytes, digest: (self.digest)(chunk) });
            }
            buffer.copy_within(start..filled, 0);
            kept = filled - start;
        }
        reader.check_unchanged()
    }
}

/// All files in order, in batches of about equal size.
struct ScanBatches<'a> {
    concat: &'a ConcatenatedFiles<'a>,
    /// The next file, and the next byte in it.
    next: (usize, u64),
}

impl Iterator for ScanBatches<'_> {
    type Item = Vec<ScanRange>;

    fn next(&mut self) -> Option<Vec<ScanRange>> {
        let mut batch = Vec::new();
        let mut room = PART_BYTES;
        while room > 0 && batch.len() < PARTS_MAX && self.next.0 < self.concat.len() {
            let (file, start) = self.next;
            let bytes = self.concat.content(file).bytes();
            // Counted within the file: a cut must not depend on what comes before the file.
            let end = bytes.min(start.saturating_add(PART_BYTES));
            if start < end {
                if end - start > room && !batch.is_empty() {
                    break;
                }
                batch.push(ScanRange { file, start, end });
                room = room.saturating_sub(end - start);
            }
            self.next = if end == bytes { (file + 1, 0) } else { (file, end) };
        }
        (!batch.is_empty()).then_some(batch)
    }
}

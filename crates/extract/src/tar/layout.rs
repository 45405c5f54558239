//! The ranges of a file that a tar stores: the whole file, or the data without the holes behind a
//! map of it (GNU.sparse 1.0). It reads metadata and single bytes. Called by the planner and the
//! renderer.

use std::io::Write;
use std::ops::Range;

use ferrofs_image::{ExtentStorage, FileExtent, Image, Inode};
use ferrofs_workers::CancelToken;

use super::header::pad;
use crate::error::ErrorKind;
use crate::options::HolePolicy;

/// Shorter holes are written as zeros: a map and its records take about as many bytes.
const HOLE_MIN_BYTES: u64 = 4096;

/// The most holes of a map; of more holes the shortest ones are written as zeros. This bounds the
/// memory of a file: its index may be as large as the image.
const HOLES_MAX: usize = 4096;

/// Shorter ranges are not probed: a read would cost more than zeros in their place.
const PROBED_MIN_BYTES: u64 = 1 << 20;

/// The ranges of a file that are stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct SparseLayout {
    size: u64,
    /// In order, none empty, none adjacent.
    ranges: Vec<Range<u64>>,
}

impl SparseLayout {
    /// The layout of `inode`. It reads the whole index of the file with any [`HolePolicy`]: damage
    /// must be found before the header is written.
    pub(super) fn of(
        image: &Image,
        inode: &Inode,
        holes: HolePolicy,
        cancel: &CancelToken,
    ) -> Result<Self, ErrorKind> {
        let mut found = LongHoles::default();
        for range in image.file_extents(inode, 0)? {
            // A file can have millions of extents.
            if cancel.is_cancelled() {
                return Err(ErrorKind::Cancelled);
            }
            let range = range?;
            probe(image, inode, range)?;
            if range.storage == ExtentStorage::Hole && holes == HolePolicy::Sparse {
                found.add(range.start..range.end);
            }
        }
        Ok(Self::between_holes(inode.size(), found.finished()))
    }

    /// The ranges of a file outside `holes`.
    fn between_holes(size: u64, holes: Vec<Range<u64>>) -> Self {
        let mut ranges = Vec::with_capacity(holes.len() + 1);
        let mut at = 0;
        for hole in holes {
            if at < hole.start {
                ranges.push(at..hole.start);
            }
            at = hole.end;
        }
        if at < size {
            ranges.push(at..size);
        }
        Self { size, ranges }
    }

    /// The size of the file.
    pub(super) fn size(&self) -> u64 {
        self.size
    }

    /// The ranges that are stored.
    pub(super) fn ranges(&self) -> &[Range<u64>] {
        &self.ranges
    }

    /// Whether there is less than all of the file.
    pub(super) fn is_sparse(&self) -> bool {
        self.stored_bytes() < self.size
    }

    /// Bytes of data that are stored.
    pub(super) fn stored_bytes(&self) -> u64 {
        // Ranges of one file, which do not overlap.
        self.ranges.iter().map(|range| range.end - range.start).sum()
    }

    /// The map that precedes the data of a sparse file: the number of ranges, then the start and
    /// the length of each, one number a line, padded to a block.
    pub(super) fn map(&self) -> Vec<u8> {
        // An empty range at the end of the file stands for a hole before it.
        let ends_in_hole = self.ranges.last().is_none_or(|range| range.end < self.size);
        let end = ends_in_hole.then_some(self.size..self.size);
        let mut map = Vec::new();
        // A write to memory cannot fail.
        let mut line = |number: u64| writeln!(map, "{number}").unwrap_or_default();
        line(self.ranges.len() as u64 + u64::from(ends_in_hole));
        for range in self.ranges.iter().chain(&end) {
            line(range.start);
            line(range.end - range.start);
        }
        pad(&mut map);
        map
    }
}

/// Reads the last byte of a range that can be much longer than its entry in the index. A damaged
/// file may have any size, and a header with that size must be followed by as many bytes.
fn probe(image: &Image, inode: &Inode, range: FileExtent) -> ferrofs_image::Result<()> {
    let is_free = matches!(range.storage, ExtentStorage::Plain | ExtentStorage::Fragment);
    if is_free && range.end - range.start > PROBED_MIN_BYTES {
        image.read_at(inode, range.end - 1, &mut [0])?;
    }
    Ok(())
}

/// The longest holes of a file.
#[derive(Debug)]
struct LongHoles {
    holes: Vec<Range<u64>>,
    /// The last hole; the next one may extend it.
    last: Range<u64>,
    min_bytes: u64,
}

impl Default for LongHoles {
    fn default() -> Self {
        Self { holes: Vec::new(), last: 0..0, min_bytes: HOLE_MIN_BYTES }
    }
}

impl LongHoles {
    fn add(&mut self, hole: Range<u64>) {
        if self.last.end == hole.start {
            self.last.end = hole.end;
        } else {
            let last = std::mem::replace(&mut self.last, hole);
            self.keep(last);
        }
    }

    fn keep(&mut self, hole: Range<u64>) {
        let length = |hole: &Range<u64>| hole.end - hole.start;
        if length(&hole) < self.min_bytes {
            return;
        }
        self.holes.push(hole);
        // The bound doubles some fifty times in all, whatever the holes are.
        while self.holes.len() > HOLES_MAX {
            self.min_bytes = self.min_bytes.saturating_mul(2);
            let min_bytes = self.min_bytes;
            self.holes.retain(|hole| length(hole) >= min_bytes);
        }
    }

    fn finished(mut self) -> Vec<Range<u64>> {
        let last = std::mem::replace(&mut self.last, 0..0);
        self.keep(last);
        self.holes
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::single_range_in_vec_init, reason = "a file may well have one range")]

    use super::*;

    fn long(holes: impl IntoIterator<Item = Range<u64>>) -> Vec<Range<u64>> {
        let mut long = LongHoles::default();
        holes.into_iter().for_each(|hole| long.add(hole));
        long.finished()
    }

    #[test]
    fn neighbouring_holes_are_one_and_short_ones_none() {
        assert_eq!(long([0..2048, 2048..4096, 8000..12_000]), [0..4096]);
        assert_eq!(long([10..20, 20..30]), []);
    }

    #[test]
    fn of_too_many_holes_the_long_ones_remain() {
        let step = 1 << 20;
        let hole = |number: u64| {
            let bytes = if number.is_multiple_of(8) { 65_536 } else { HOLE_MIN_BYTES };
            number * step..number * step + bytes
        };
        let holes = long((0..3 * HOLES_MAX as u64).map(hole));
        assert!(holes.len() <= HOLES_MAX);
        assert_eq!(holes.len(), 3 * HOLES_MAX / 8);
        assert!(holes.iter().all(|hole| hole.end - hole.start == 65_536));
    }

    #[test]
    fn a_map_names_ranges_and_an_end_in_a_hole() {
        let layout = SparseLayout::between_holes(20_000, vec![0..4096, 8192..20_000]);
        assert_eq!((layout.ranges(), layout.stored_bytes()), (&[4096..8192][..], 4096));
        let map = layout.map();
        assert_eq!(map.len(), 512);
        assert!(map.starts_with(b"2\n4096\n4096\n20000\n0\n\0"));
        let map = SparseLayout::between_holes(8192, vec![0..4096]).map();
        assert!(map.starts_with(b"1\n4096\n4096\n\0"));
        let map = SparseLayout::between_holes(8192, vec![0..8192]).map();
        assert!(map.starts_with(b"1\n8192\n0\n\0"));
    }

    #[test]
    fn an_empty_file_is_not_sparse() {
        assert!(!SparseLayout::between_holes(0, Vec::new()).is_sparse());
    }
}

//! The extents of a compressed file in order, from which a builder writes an index, and the entries of their lclusters in
//! a form that full and compact indexes share (docs/format.md F25 to F28, F64, F65).

use super::{HeadKind, IndexHeader, TailPcluster, unwritable_extent};
use crate::bytes::fit;
use crate::compression::{EXTENT_MAX_BYTES, PCLUSTER_MAX_BLOCKS};
use crate::error::{Error, ErrorKind, Result};

/// The largest distance back; larger ones are written as this, in 11 bits (F26).
pub(super) const DISTANCE_MAX: u64 = 2047;
/// Blocks of 512 bytes to 64 KiB, and up to 15 bits more.
const LCLUSTER_BITS_MIN: u8 = 9;
const LCLUSTER_BITS_MAX: u8 = 31;

/// One extent of a compressed file as a builder sees it. A file's extents are in file order and
/// leave no gaps.
///
/// The last one may be elsewhere, as [`IndexHeader::tail`] says:
///
/// * [`TailPcluster::Inline`]: `blocks` is 1; `kind` says how the bytes after the index are encoded.
/// * [`TailPcluster::Fragment`]: `blocks` is 0 and `kind` is [`HeadKind::First`] by custom. In a full
///   index `block` is the high half of the offset in the packed inode, whose low half is in
///   the header; a compact index has no place for it, so the offset must be below 4 GiB.
///
/// The `block` of a tail is otherwise no address: it is written only where nothing else says what
/// to write, and never read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExtentSpec {
    /// Decoded length in bytes, not 0.
    pub bytes: u64,
    /// How it is encoded.
    pub kind: HeadKind,
    /// The first block of its pcluster.
    pub block: u64,
    /// Blocks of its pcluster, at most 2047; more than 1 only for kinds that the header says may be
    /// big, and only if the extent covers the lcluster after its first to the end. 0 is a hole, in
    /// a full index only, and Linux before 7.2 does not know it.
    pub blocks: u32,
    /// The pcluster decodes to more than this extent uses; in a full index only.
    pub partial: bool,
}

/// The entry of an lcluster, not yet in the form of an index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LclusterEntry {
    Head {
        kind: HeadKind,
        offset: u32,
        /// The block; of a tail only by custom, and of the end marker 0.
        block: u64,
        /// Whether `block` is where data is.
        is_placed: bool,
        is_partial: bool,
        is_hole: bool,
        /// Byte of the file, for messages.
        start: u64,
    },
    NonHead {
        back: u64,
        ahead: u64,
        blocks: Option<u16>,
        /// Where in its lcluster the extent starts.
        offset: u32,
    },
}

/// Iterates over the lclusters of a file. It ends after an error.
#[derive(Debug)]
pub(super) struct LclusterEntries<'a> {
    header: &'a IndexHeader,
    extents: std::slice::Iter<'a, ExtentSpec>,
    file_bytes: u64,
    /// Where the next extent starts.
    position: u64,
    current: Option<CurrentExtent>,
    end_marker: Option<u32>,
}

/// The extent whose lclusters are being written.
#[derive(Clone, Copy, Debug)]
struct CurrentExtent {
    spec: ExtentSpec,
    start: u64,
    /// The number of lclusters written.
    emitted: u64,
    /// Lclusters in all: those before the one in which the next extent starts, at least 1.
    count: u64,
    is_tail: bool,
}

impl<'a> LclusterEntries<'a> {
    /// The lclusters of a file of `file_bytes` bytes.
    ///
    /// # Errors
    /// [`ErrorKind::ExtentSumMismatch`] if the extents do not add up to the file, and
    /// [`ErrorKind::ClusterBits`] for lclusters that no block size makes.
    pub(super) fn new(
        header: &'a IndexHeader,
        file_bytes: u64,
        extents: &'a [ExtentSpec],
    ) -> Result<Self> {
        if !(LCLUSTER_BITS_MIN..=LCLUSTER_BITS_MAX).contains(&header.lcluster_bits) {
            return Err(Error::new(ErrorKind::ClusterBits(header.lcluster_bits), 7));
        }
        let planned = extents.iter().fold(0u64, |sum, extent| sum.saturating_add(extent.bytes));
        if planned != file_bytes {
            return Err(Error::new(
                ErrorKind::ExtentSumMismatch { planned, wanted: file_bytes },
                0,
            ));
        }
        Ok(Self {
            header,
            extents: extents.iter(),
            file_bytes,
            position: 0,
            current: None,
            end_marker: None,
        })
    }

    /// The next extent, and whether the file ends with it in an lcluster that it does not start.
    fn start(&mut self, spec: ExtentSpec) -> Result<CurrentExtent> {
        let start = self.position;
        let end = start.saturating_add(spec.bytes);
        let is_last = end == self.file_bytes;
        let tail = if is_last { self.header.tail } else { TailPcluster::Ordinary };
        check(&spec, tail, start)?;
        let bits = u32::from(self.header.lcluster_bits);
        let count = end.wrapping_shr(bits).saturating_sub(start.wrapping_shr(bits));
        if count == 0 && !is_last {
            return Err(unwritable_extent("two extents that start in one lcluster", start));
        }
        if spec.blocks > 1 && (count < 2 || !self.header.may_be_big(spec.kind)) {
            return Err(unwritable_extent(
                "a pcluster of several blocks without a place for its count",
                start,
            ));
        }
        let past = self.offset_of(end)?;
        self.end_marker = (is_last && count > 0 && past != 0).then_some(past);
        self.position = end;
        Ok(CurrentExtent {
            spec,
            start,
            emitted: 0,
            count: count.max(1),
            is_tail: tail != TailPcluster::Ordinary,
        })
    }

    /// How far `position` is inside its lcluster.
    fn offset_of(&self, position: u64) -> Result<u32> {
        let mask = self.header.lcluster_bytes().saturating_sub(1);
        fit(position & mask, "the start of an extent in its lcluster", position)
    }

    fn entry(&self, run: &CurrentExtent) -> Result<LclusterEntry> {
        let offset = self.offset_of(run.start)?;
        let spec = run.spec;
        if run.emitted == 0 {
            let is_hole = spec.blocks == 0 && !run.is_tail;
            return Ok(LclusterEntry::Head {
                kind: spec.kind,
                offset,
                block: spec.block,
                is_placed: !run.is_tail && !is_hole,
                is_partial: spec.partial,
                is_hole,
                start: run.start,
            });
        }
        let has_count = run.emitted == 1 && self.header.may_be_big(spec.kind);
        let blocks = u16::try_from(spec.blocks).unwrap_or(u16::MAX);
        Ok(LclusterEntry::NonHead {
            back: run.emitted,
            ahead: run.count.saturating_sub(run.emitted),
            blocks: has_count.then_some(blocks),
            offset,
        })
    }

    fn step(&mut self) -> Result<Option<LclusterEntry>> {
        let run = match self.current {
            Some(run) if run.emitted < run.count => run,
            _ => match self.extents.next() {
                Some(spec) => self.start(*spec)?,
                None => {
                    return Ok(self
                        .end_marker
                        .take()
                        .map(|offset| end_marker(offset, self.file_bytes)));
                }
            },
        };
        let entry = self.entry(&run)?;
        self.current = Some(CurrentExtent { emitted: run.emitted.saturating_add(1), ..run });
        Ok(Some(entry))
    }
}

impl Iterator for LclusterEntries<'_> {
    type Item = Result<LclusterEntry>;

    fn next(&mut self) -> Option<Self::Item> {
        let step = self.step();
        if step.is_err() {
            self.extents = [].iter();
            self.current = None;
            self.end_marker = None;
        }
        step.transpose()
    }
}

/// A file that ends inside an lcluster which no extent starts has a PLAIN entry there, whose offset
/// is the end.
fn end_marker(offset: u32, file_bytes: u64) -> LclusterEntry {
    LclusterEntry::Head {
        kind: HeadKind::Plain,
        offset,
        block: 0,
        is_placed: false,
        is_partial: false,
        is_hole: false,
        start: file_bytes,
    }
}

fn check(spec: &ExtentSpec, tail: TailPcluster, start: u64) -> Result<()> {
    if spec.bytes == 0 {
        return Err(unwritable_extent("an extent of no bytes", start));
    }
    if spec.blocks > PCLUSTER_MAX_BLOCKS {
        return Err(unwritable_extent("a pcluster of more than 2047 blocks", start));
    }
    let wrong = match tail {
        TailPcluster::Ordinary if spec.bytes > EXTENT_MAX_BYTES && spec.blocks > 0 => {
            Some("an extent of more than 12 MiB")
        }
        TailPcluster::Ordinary => None,
        TailPcluster::Inline(_) => {
            (spec.blocks != 1).then_some("an inline pcluster whose block count is not 1")
        }
        TailPcluster::Fragment(_) => (spec.blocks != 0).then_some("a fragment that has blocks"),
    };
    wrong.map_or(Ok(()), |what| Err(unwritable_extent(what, start)))
}

//! The unit of work of a tar: a bounded part of the stream, planned in order, rendered by any thread
//! and written in order. It owns the bounds; `planner` makes segments, `render` takes them.

use std::ops::Range;
use std::sync::Arc;

use ferrofs_image::WalkEntry;

use super::layout::SparseLayout;
use crate::error::{Error, ErrorKind};

/// The size that a segment should have: enough that handing it over costs nothing beside the work in
/// it, and little enough that several for each thread fit a small budget.
pub(super) const SEGMENT_BYTES: u64 = 1 << 20;

/// What a segment is charged: it may grow beyond [`SEGMENT_BYTES`] by headers, or to keep a cluster
/// whole. Only hostile images go beyond this, as their attributes may take 16 MiB for a
/// single file; what they need is charged as it comes.
pub(super) const SEGMENT_MAX_BYTES: u64 = 2 << 20;

/// The contents that a segment may have, to keep a cluster whole: the rest is for headers and a map.
pub(super) const CONTENTS_MAX_BYTES: u64 = SEGMENT_MAX_BYTES - (256 << 10);

/// Longer files have segments of their own. Shorter ones share theirs, so that with all of them a
/// segment stays below its maximum.
pub(super) const LONG_BYTES: u64 = 512 << 10;

/// A part of the stream.
#[derive(Debug)]
pub(super) enum TarSegment {
    /// Members that are whole.
    Members(Vec<TarItem>),
    /// A part of a file that is too long for one segment.
    Part(TarFilePart),
}

/// Something in the order of the walk.
#[derive(Debug)]
pub(super) enum TarItem {
    /// An inode under its first name.
    Entry(WalkEntry),
    /// A further name of an inode, and the first one.
    Link(WalkEntry, Vec<u8>),
    /// An inode that is left out, and why.
    LeftOut(WalkEntry, ErrorKind),
    /// Nothing to write, but to be reported here.
    Failed(Error),
}

/// A part of a file.
#[derive(Debug)]
pub(super) struct TarFilePart {
    pub(super) file: Arc<LongFile>,
    /// Ranges of the file, in order.
    pub(super) ranges: Vec<Range<u64>>,
    /// Headers come before it.
    pub(super) is_first: bool,
    /// Padding comes behind it.
    pub(super) is_last: bool,
}

/// A file that is written in parts.
#[derive(Debug)]
pub(super) struct LongFile {
    pub(super) node: WalkEntry,
    pub(super) layout: SparseLayout,
}

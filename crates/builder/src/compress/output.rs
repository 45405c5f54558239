//! What became of the tasks of an item: bytes for the image, and what they are. The buffers are used
//! again by later items.

use std::ops::Range;

use ferrofs_ondisk::compression::AlgorithmId;

use super::digest::Digest;
use crate::data::InlineExtent;

/// The results of an item's tasks, in their order.
#[derive(Debug, Default)]
pub(crate) struct Output {
    /// Whole blocks, as they go to the image.
    pub(crate) bytes: Vec<u8>,
    /// The extents of all tasks.
    pub(crate) extents: Vec<Laid>,
    /// One for each task.
    pub(crate) results: Vec<Outcome>,
}

/// An extent whose pcluster lies behind the one of the extent before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Laid {
    /// Its length in the file.
    pub(crate) bytes: u32,
    /// How it is encoded; `None` is plain.
    pub(crate) algorithm: Option<AlgorithmId>,
    /// Whole blocks.
    pub(crate) pcluster_bytes: u32,
}

/// What became of one task.
#[derive(Debug)]
pub(crate) struct Outcome {
    /// Its bytes in [`Output::bytes`].
    pub(crate) bytes: Range<usize>,
    /// Its form.
    pub(crate) form: Form,
}

/// The form that a task's bytes took.
#[derive(Debug)]
pub(crate) enum Form {
    /// Nobody read it.
    Unread,
    /// Encoded.
    Encoded(Encoded),
    /// Whole blocks as they are, and what is left where it goes inline.
    Flat {
        /// Fewer bytes than a block.
        tail: Box<[u8]>,
    },
    /// One for each chunk; `None` is all zeros, and has no bytes.
    Chunks(Vec<Option<Digest>>),
    /// The digest of the file.
    Hashed(Digest),
}

/// What became of an encoded range.
#[derive(Debug, Default)]
pub(crate) struct Encoded {
    /// Its extents in [`Output::extents`].
    pub(crate) extents: Range<usize>,
    /// One for each extent, where equal pclusters are to be found.
    pub(crate) digests: Vec<Digest>,
    /// The end of the file, where it goes behind the inode.
    pub(crate) inline: Option<InlineExtent>,
    /// The end of the file, where it goes to the packed inode.
    pub(crate) tail: Option<Tail>,
}

/// The end of a file that goes to the packed inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Tail {
    /// How long it is.
    pub(crate) bytes: u64,
    /// The digest of all of it.
    pub(crate) digest: Digest,
    /// The digest of its last [`TAIL_END_BYTES`], by which longer ones with the same end are found.
    pub(crate) end: Option<Digest>,
}

/// How many bytes two tails must have in common at least, for one to lie within the other.
pub(crate) const TAIL_END_BYTES: usize = 64;

impl Tail {
    /// Of the bytes of a tail.
    pub(crate) fn of(bytes: &[u8]) -> Self {
        let end = bytes.last_chunk::<TAIL_END_BYTES>().map(|end| Digest::of(end));
        Self { bytes: bytes.len() as u64, digest: Digest::of(bytes), end }
    }
}

impl Output {
    /// Forgets everything but the memory.
    pub(crate) fn clear(&mut self) {
        self.bytes.clear();
        self.extents.clear();
        self.results.clear();
    }

    /// Fills the last block up with zeros.
    pub(crate) fn fill_block(&mut self, block: usize) {
        let whole = self.bytes.len().next_multiple_of(block);
        self.bytes.resize(whole, 0);
    }
}

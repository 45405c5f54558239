//! Builds EROFS images: a tree comes in from a directory or a tar archive, an image goes out.
//!
//! The bytes of an image depend on the tree and the [`Options`] only: not on the number of threads, the
//! order in which a directory lists its entries, the time, or the host.
//!
//! This crate prints nothing, reads no environment, and never reads an image back: whoever wants that
//! compares with a reader, as the command's `--verify` does.

mod build;
mod chunks;
mod compress;
mod data;
mod dedupe;
mod digests;
mod error;
mod flat;
mod fragments;
mod hints;
mod image_file;
pub mod import;
mod metadata;
mod option_rules;
mod options;
mod order;
mod output;
mod references;
mod rendered;
mod report;
mod segment;
mod superblock;
pub mod tree;
mod watch;
mod write_data;

pub use build::build;
pub use data::{Compressed, DataMap, Extent, FileData, Fragment, InlineExtent, SpecialFile};
pub use digests::add_digests;
pub use error::{Error, ErrorKind, Result};
pub use hints::{Hint, Hints};
pub use options::{
    Algorithms, Blob, Deduplication, FragmentSharing, Fragments, IndexForm, Options, Placement,
    SuperblockTime,
};
pub use output::BlockSink;
pub use report::{Report, Stored};
pub use watch::{NoWatch, Phase, Watch};

//! Builds EROFS images: a tree comes in from a directory or a tar archive, an image goes out.
//!
//! The bytes of an image depend on the tree and the [`BuildOptions`] only: not on the number of threads, the
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
mod observer;
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
mod write_data;

pub use build::build;
pub use data::{
    CompressedData, DataExtent, DataMap, FileData, InlineExtent, InternalFile, PackedFragment,
};
pub use digests::add_digests;
pub use error::{Error, ErrorKind, Result};
pub use hints::{CompressionHint, CompressionHints};
pub use observer::{BuildObserver, BuildPhase, NoopObserver};
pub use options::{
    Algorithms, BlobOutput, BuildOptions, Deduplication, FragmentSharing, Fragments, IndexForm,
    OutputMode, SuperblockTime,
};
pub use output::BlockSink;
pub use report::{AlgorithmStats, BuildReport};

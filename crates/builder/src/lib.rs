//! Builds EROFS images: a tree comes in from a directory or a tar archive, an image goes out.
//!
//! The bytes of an image depend on the tree and the [`BuildOptions`] only: not on the number of threads, the
//! order in which a directory lists its entries, the time, or the host.
//!
//! This crate prints nothing, reads no environment, and never reads an image back. A [`BuildObserver`] can
//! inspect the image before it gets its name, as the `--verify` of the command does.

/// Defines a setter for each field of an option struct, with the name of the field. It stands first, since a macro is
/// known only to the modules behind it.
macro_rules! option_setters {
    ($options:ident { $($field:ident: $type:ty,)* }) => {
        /// A setter for each field, with the same name.
        impl $options {
            $(
                #[doc = concat!("Sets [`", stringify!($field), "`](field@Self::", stringify!($field), ").")]
                #[must_use]
                pub fn $field(mut self, $field: $type) -> Self {
                    self.$field = $field;
                    self
                }
            )*
        }
    };
}

mod build;
mod compress;
mod context;
mod data_map;
mod decompress;
mod dedupe;
mod digest;
mod error;
mod image_file;
pub mod import;
mod import_tar;
mod metadata;
mod options;
pub mod output;
mod packed_file;
mod report;
mod spill;
mod split;
#[cfg(test)]
mod test_source;
pub mod tree;
mod write_data;

pub use build::{BuildOutputs, build, build_into};
use data_map::{BlockSink, DataMap};
pub use digest::add_digests;
pub use error::{Error, ErrorKind, Result};
pub use ferrofs_workers::CancelToken;
pub use options::compression::{AlgorithmContext, CompressionHint, CompressionHints};
pub use options::{
    Algorithms, BlobOutput, BuildOptions, ChunkIndexOutput, Deduplication, FragmentSharing,
    Fragments, IndexForm, OutputMode, SuperblockTime,
};
pub use report::{
    AlgorithmStats, BuildObserver, BuildPhase, BuildReport, ChunkIndexReport, NoopObserver,
};
pub use spill::{SpillOptions, SpillStats, SpillStore};

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct ReadmeExamples;

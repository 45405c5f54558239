//! The importers, which make trees: from a directory of the host, and from tar archives. And texts that change the metadata
//! of a tree: `fs_config` and `file_contexts` of Android, and the sidecar of an extraction.

pub mod adjust;
pub mod android_text;
mod directory;
mod directory_listing;
#[cfg(test)]
mod directory_tests;
pub(crate) mod exclude_patterns;
pub mod file_contexts;
mod host_file;
pub mod sidecar;

pub use self::directory::{DirectoryOptions, HardLinkPolicy, UnreadablePolicy, from_directory};
pub use crate::decompress::Compression;
pub use crate::import_tar::{
    AccountFiles, ForeignNameFn, InputLimit, SpoolOptions, StoredHoles, TarContentMode,
    TarImportOptions, TarSource, WhiteoutPolicy, from_tar, from_tar_layers,
};

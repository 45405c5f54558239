//! The importers, which make trees: from a directory of the host, and from tar archives.

pub mod adjust;
mod directory;
mod directory_listing;
#[cfg(test)]
mod directory_tests;
pub(crate) mod exclude_patterns;
mod host_file;
mod overlay;
pub(crate) mod spool;

pub use self::directory::{DirectoryOptions, HardLinkPolicy, UnreadablePolicy, from_directory};
pub use self::spool::SpoolOptions;
pub use crate::decompress::Compression;
pub use crate::import_tar::{
    AccountFiles, InputLimit, TarContentMode, TarImportOptions, TarSource, WhiteoutPolicy,
    from_tar, from_tar_layers,
};

//! Where trees come from: the importers, and what they have in common.

pub mod adjust;
mod decompress;
mod directory;
mod host_file;
mod spool;
mod tar;

pub use decompress::Compression;
pub use directory::{DirectoryOptions, HardLinkPolicy, UnreadablePolicy, from_directory};
pub use spool::SpoolOptions;
pub use tar::{
    AccountFiles, TarContentMode, TarImportOptions, TarSource, WhiteoutPolicy, from_tar,
    from_tar_layers,
};

//! The importers, which make trees: from a directory of the host, and from tar archives.

/// Defines a setter for each field of an option struct, with the name of the field.
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
pub(crate) use option_setters;

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
    AccountFiles, TarContentMode, TarImportOptions, TarSource, WhiteoutPolicy, from_tar,
    from_tar_layers,
};

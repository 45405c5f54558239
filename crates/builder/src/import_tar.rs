//! Trees from tar archives: from a file, a pipe or memory, plain or compressed.
//!
//! Read are v7, ustar, star, GNU and PAX archives with whatever tars put into them. What an archive must not
//! do is refused by name: every such refusal is an [`ErrorKind::Archive`] with the archive, the byte in it
//! (after decompression, but for damage of a compressed stream) and the entry. The parser is our own since
//! contents are to stay in the archive, and every number in it is hostile.
//!
//! As tar has it, slashes at the start of paths are dropped and later entries replace earlier ones. Unlike tar,
//! nothing is taken for granted: an archive needs its end mark, a path with `..` or below a symlink is refused,
//! and so is a hard link to what did not come before.

mod acl;
mod archive;
#[cfg(test)]
mod archive_tests;
mod entry_reader;
mod header;
#[cfg(test)]
mod hostile_tests;
mod input;
mod layer_merger;
mod pax;
#[cfg(test)]
mod tests;

pub use acl::AccountFiles;
pub use layer_merger::WhiteoutPolicy;

use std::collections::BTreeMap;
use std::fmt;
use std::fs::File;
use std::io::Read;
use std::path::PathBuf;
use std::sync::Arc;

use entry_reader::EntryReader;
use input::TarInput;
use layer_merger::LayerMerger;

use ferrofs_workers::CancelToken;

use crate::context::check_cancelled;
use crate::decompress::Compression;
use crate::import::spool::SpoolOptions;
use crate::tree::{Device, Metadata, Timestamp, Tree};
use crate::{Error, ErrorKind, Result};

/// An archive to read.
pub enum TarSource {
    /// A file, or a FIFO, by its path.
    Path(PathBuf),
    /// An open file, as standard input may be, from where it stands; what messages call it.
    File {
        /// What messages call it.
        name: PathBuf,
        /// The file. If it is an uncompressed regular file, contents are read from it for as long as the tree is
        /// used.
        file: File,
    },
    /// Bytes in memory.
    Bytes {
        /// What messages call it.
        name: PathBuf,
        /// The archive.
        bytes: Arc<[u8]>,
    },
    /// Anything that can be read once.
    Stream {
        /// What messages call it.
        name: PathBuf,
        /// The archive.
        reader: Box<dyn Read + Send>,
    },
}

impl TarSource {
    fn name(&self) -> PathBuf {
        match self {
            Self::Path(name)
            | Self::File { name, .. }
            | Self::Bytes { name, .. }
            | Self::Stream { name, .. } => name.clone(),
        }
    }
}

impl fmt::Debug for TarSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("TarSource").field(&self.name()).finish()
    }
}

/// Where the contents of an archive's files are when an image has been made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TarContentMode {
    /// In the image.
    #[default]
    Copy,
    /// In the archive, which is a device of the tree. If it is compressed, the device is what it unpacks to,
    /// and [`TarImportOptions::compression`] has to say so.
    Index,
    /// Nowhere: the archive has headers only, and files have their sizes and read as zeros.
    HeadersOnly,
}

/// How archives are read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TarImportOptions {
    /// How the archive is compressed; recognised by its first bytes if `None`.
    pub compression: Option<Compression>,
    /// What becomes of contents.
    pub contents: TarContentMode,
    /// What becomes of whiteouts.
    pub whiteouts: WhiteoutPolicy,
    /// Whether another archive may follow the end of one (`tar --ignore-zeros`).
    pub concatenated: bool,
    /// Where names in ACLs are looked up that come without numbers; they are refused if `None`.
    pub accounts: Option<AccountFiles>,
    /// Where contents are kept that can be read only once.
    pub spool: SpoolOptions,
    /// The modification time of directories that no entry describes; they are root's, with permissions 0755.
    pub missing_mtime: Timestamp,
}

impl Default for TarImportOptions {
    /// One archive, compressed in any way, whiteouts kept, directories that are missing from 1970.
    fn default() -> Self {
        Self {
            compression: None,
            contents: TarContentMode::default(),
            whiteouts: WhiteoutPolicy::default(),
            concatenated: false,
            accounts: None,
            spool: SpoolOptions::default(),
            missing_mtime: Timestamp { seconds: 0, nanoseconds: 0 },
        }
    }
}

/// The tree that an archive holds.
///
/// # Errors
/// [`ErrorKind::Archive`] for an archive that is damaged, cut off or hostile, or that holds what cannot be
/// told from it, as an ACL with names that nobody has; [`ErrorKind::Input`] where the host refuses to read,
/// [`ErrorKind::Output`] where it has no room for the spool, [`ErrorKind::SourceChanged`] for a file that was
/// changed meanwhile.
pub fn from_tar(
    source: TarSource,
    options: &TarImportOptions,
    cancel: &CancelToken,
) -> Result<Tree> {
    from_tar_layers(vec![source], options, cancel)
}

/// The tree that archives make together, the lowest first, as the layers of a container image do.
///
/// Whiteouts are applied only by [`WhiteoutPolicy::Apply`], each to what the archives before its own have.
///
/// # Errors
/// As [`from_tar`].
pub fn from_tar_layers(
    sources: Vec<TarSource>,
    options: &TarImportOptions,
    cancel: &CancelToken,
) -> Result<Tree> {
    let missing = Metadata {
        permissions: 0o755,
        uid: 0,
        gid: 0,
        mtime: options.missing_mtime,
        xattrs: BTreeMap::new(),
    };
    let mut layer_merger = LayerMerger::new(missing, options.whiteouts);
    for (number, source) in sources.into_iter().enumerate() {
        if number > 0 {
            layer_merger.next_layer();
        }
        let name = source.name();
        add(source, options, cancel, &mut layer_merger).map_err(|error| error.at(&name))?;
    }
    layer_merger.finish()
}

fn add(
    source: TarSource,
    options: &TarImportOptions,
    cancel: &CancelToken,
    layer_merger: &mut LayerMerger,
) -> Result<()> {
    let device = match options.contents {
        TarContentMode::Index => Some(layer_merger.next_device()?),
        TarContentMode::Copy | TarContentMode::HeadersOnly => None,
    };
    let input = TarInput::open(source, options, device, cancel)?;
    let mut entry_reader = EntryReader::new(input, options);
    while let Some(entry) = entry_reader.next()? {
        check_cancelled(cancel)?;
        layer_merger.add(entry)?;
    }
    let bytes = entry_reader.finish()?;
    if device.is_some() {
        layer_merger.add_device(Device { tag: [0; 64], bytes })?;
    }
    Ok(())
}

/// An archive that is refused, at this byte.
fn refused(why: impl Into<String>, offset: u64) -> Error {
    Error::new(ErrorKind::Archive(why.into())).at_byte(offset)
}

/// The most of a name that a message shows; names can have a mebibyte.
const SHOWN_BYTES_MAX: usize = 200;

/// A name as messages show it.
fn shown(name: &[u8]) -> String {
    let (front, more) = name.split_at(name.len().min(SHOWN_BYTES_MAX));
    format!("\"{}{}\"", front.escape_ascii(), if more.is_empty() { "" } else { "..." })
}

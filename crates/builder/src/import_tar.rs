//! Imports tar archives: from a file, a pipe or memory, plain or compressed.
//!
//! It reads v7, ustar, star, GNU and PAX archives. An archive that is damaged or hostile is refused
//! with [`ErrorKind::Archive`], which names the archive, the byte (after decompression, except for
//! damage of a compressed stream) and the entry. The parser is our own because contents stay in the
//! archive and every number in it may be hostile.
//!
//! As with tar, slashes at the start of paths are dropped, and later entries replace earlier ones.
//! Unlike with tar, an archive must have its end marker, unless a digest proves its end, and a path with `..`, a path below a
//! symlink, and a hard link to a file that did not come before are refused.

mod acl;
mod archive;
mod entry_reader;
mod headers;
#[cfg(test)]
mod hostile_tests;
mod input;
#[cfg(test)]
mod input_tests;
mod layer_merger;
#[cfg(test)]
mod tests;

pub use acl::AccountFiles;
pub use archive::SpoolOptions;
pub use input::{InputLimit, StoredHoles};
pub use layer_merger::WhiteoutPolicy;

use std::collections::BTreeMap;
use std::fmt;
use std::fs::File;
use std::io::Read;
use std::path::PathBuf;
use std::sync::Arc;

use entry_reader::{EntryKind, EntryReader};
use ferrofs_ondisk::{SUPERBLOCK_MAGIC, SUPERBLOCK_OFFSET};
use input::TarInput;
use layer_merger::LayerMerger;

use ferrofs_workers::CancelToken;

use crate::context::check_cancelled;
use crate::decompress::{Compression, WINDOW_BYTES_MAX, WindowMemory};
use crate::import::adjust::XattrFilter;
use crate::spill::{SpillOptions, SpillStore};
use crate::tree::{Device, Metadata, Timestamp, Tree};
use crate::{BuildObserver, BuildPhase, Error, ErrorKind, Result};

/// An archive to read.
pub enum TarSource {
    /// A file, or a FIFO, by its path.
    Path(PathBuf),
    /// An open file, such as standard input, from its current position.
    File {
        /// What messages call it.
        name: PathBuf,
        /// The file. If it is an uncompressed regular file, the tree reads contents from it.
        file: File,
    },
    /// Bytes in memory.
    Bytes {
        /// What messages call it.
        name: PathBuf,
        /// The archive.
        bytes: Arc<[u8]>,
    },
    /// A stream that can be read once.
    Stream {
        /// What messages call it.
        name: PathBuf,
        /// The archive.
        reader: Box<dyn Read + Send>,
    },
    /// A stream with a known digest, as a layer of a container image has one. It is read to its end.
    Digested {
        /// What messages call it.
        name: PathBuf,
        /// The archive.
        reader: Box<dyn Read + Send>,
        /// The SHA-256 of the archive after decompression; with another one it is refused.
        sha256: [u8; 32],
    },
}

impl TarSource {
    fn name(&self) -> PathBuf {
        match self {
            Self::Path(name)
            | Self::File { name, .. }
            | Self::Bytes { name, .. }
            | Self::Stream { name, .. }
            | Self::Digested { name, .. } => name.clone(),
        }
    }
}

impl fmt::Debug for TarSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("TarSource").field(&self.name()).finish()
    }
}

/// Where the image finds the contents of the files of an archive.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TarContentMode {
    /// In the image.
    #[default]
    Copy,
    /// In the archive, which becomes a device of the image. The device of a compressed archive is
    /// the decompressed one, and [`TarImportOptions::compression`] must name the compression.
    Index,
    /// Nowhere: the archive has only headers; files have their sizes and read as zeros.
    HeadersOnly,
}

/// Names what a file is by its first bytes; `None` if that is unknown.
pub type ForeignNameFn = fn(&[u8]) -> Option<&'static str>;

/// Names an EROFS image: a [`ForeignNameFn`] for callers who know no other kinds of files.
#[must_use]
pub fn erofs_image_name(start: &[u8]) -> Option<&'static str> {
    let superblock = start.get(usize::try_from(SUPERBLOCK_OFFSET).ok()?..)?;
    superblock.starts_with(&SUPERBLOCK_MAGIC.to_le_bytes()).then_some("an EROFS image")
}

/// How [`from_tar`] works.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct TarImportOptions {
    /// The compression of the archive; `None`: detected by its first bytes.
    pub compression: Option<Compression>,
    /// A file that gets a copy of the uncompressed archive while it is read, from the position of the file on.
    pub uncompressed_copy: Option<Arc<File>>,
    /// Where the image finds file contents.
    pub contents: TarContentMode,
    /// How whiteouts are imported.
    pub whiteouts: WhiteoutPolicy,
    /// The xattrs of entries that are kept. The marks that whiteouts become are kept in any case.
    pub xattrs: XattrFilter,
    /// Whether another archive may follow the end of one (`tar --ignore-zeros`).
    pub concatenated: bool,
    /// Names what a file is, by its first bytes. With it, a file that begins with the end marker of an archive is an
    /// empty archive only if all of it is zero, and else refused with this name: an image of a file system often begins
    /// with zeros. `None`: what follows an end marker is not looked at, as with GNU tar.
    pub foreign_name: Option<ForeignNameFn>,
    /// The lists for names in ACLs without numbers; `None`: such names are refused.
    pub accounts: Option<AccountFiles>,
    /// The spool for contents that can be read only once.
    pub spool: SpoolOptions,
    /// Where the tree lies; `None`: in memory.
    pub store: Option<SpillStore>,
    /// How many bytes an archive may have, after decompression, with `stored_holes`, and with 512 bytes for each directory
    /// that has no entry, only paths below it.
    pub input: InputLimit,
    /// Which holes of sparse files count against `input`.
    pub stored_holes: StoredHoles,
    /// The most bytes of the window of a decoder: xz and zstd keep so much of what they have decoded. A longer one is
    /// refused. The store has so much less memory meanwhile.
    pub window_bytes_max: u64,
    /// The most data ranges of a sparse file. The map of a file is in memory, with 48 bytes for each.
    pub sparse_extents_max: usize,
    /// The modification time of directories without an entry; root owns them, with permissions
    /// 0755.
    pub missing_mtime: Timestamp,
}

option_setters! { TarImportOptions {
    compression: Option<Compression>,
    uncompressed_copy: Option<Arc<File>>,
    contents: TarContentMode,
    whiteouts: WhiteoutPolicy,
    xattrs: XattrFilter,
    concatenated: bool,
    foreign_name: Option<ForeignNameFn>,
    accounts: Option<AccountFiles>,
    spool: SpoolOptions,
    store: Option<SpillStore>,
    input: InputLimit,
    stored_holes: StoredHoles,
    window_bytes_max: u64,
    sparse_extents_max: usize,
    missing_mtime: Timestamp,
} }

/// As many data ranges of a sparse file as directories are imported with.
const SPARSE_EXTENTS_MAX: usize = 1 << 20;

impl Default for TarImportOptions {
    /// One archive with any compression; whiteouts are kept; directories without an entry are from
    /// 1970.
    fn default() -> Self {
        Self {
            compression: None,
            uncompressed_copy: None,
            contents: TarContentMode::default(),
            whiteouts: WhiteoutPolicy::default(),
            xattrs: XattrFilter::All,
            concatenated: false,
            foreign_name: None,
            accounts: None,
            spool: SpoolOptions::default(),
            store: None,
            input: InputLimit::default(),
            stored_holes: StoredHoles::default(),
            window_bytes_max: WINDOW_BYTES_MAX,
            sparse_extents_max: SPARSE_EXTENTS_MAX,
            missing_mtime: Timestamp { seconds: 0, nanoseconds: 0 },
        }
    }
}

/// Imports an archive.
///
/// # Errors
/// [`ErrorKind::Archive`]: the archive is damaged, truncated or hostile, or an ACL has a name
/// without a number. [`ErrorKind::Input`]: the host cannot read it. [`ErrorKind::Output`]: the host
/// has no space for the spool. [`ErrorKind::SourceChanged`]: the file has changed meanwhile.
/// [`ErrorKind::WindowTooLong`]: decompression takes more memory than it may.
/// [`ErrorKind::Cancelled`]: `cancel` was cancelled.
pub fn from_tar(
    source: TarSource,
    options: &TarImportOptions,
    observer: &dyn BuildObserver,
    cancel: &CancelToken,
) -> Result<Tree> {
    from_tar_layers(vec![source], options, observer, cancel)
}

/// Imports several archives, the lowest first, as the layers of a container image.
///
/// Only [`WhiteoutPolicy::Apply`] applies whiteouts, each to the archives before its own.
///
/// # Errors
/// As [`from_tar`].
pub fn from_tar_layers(
    sources: Vec<TarSource>,
    options: &TarImportOptions,
    observer: &dyn BuildObserver,
    cancel: &CancelToken,
) -> Result<Tree> {
    observer.phase(BuildPhase::Import);
    let missing = Metadata {
        permissions: 0o755,
        uid: 0,
        gid: 0,
        mtime: options.missing_mtime,
        xattrs: BTreeMap::new(),
    };
    let store = options.store.clone();
    let store = store.unwrap_or_else(|| SpillStore::new(SpillOptions::default()));
    let mut layer_merger = LayerMerger::new(missing, options.whiteouts, &store);
    for (number, source) in sources.into_iter().enumerate() {
        if number > 0 {
            layer_merger.next_layer();
        }
        let name = source.name();
        add(source, options, observer, cancel, &mut layer_merger)
            .map_err(|error| error.at(&name))?;
    }
    layer_merger.finish()
}

fn add(
    source: TarSource,
    options: &TarImportOptions,
    observer: &dyn BuildObserver,
    cancel: &CancelToken,
    layer_merger: &mut LayerMerger,
) -> Result<()> {
    let device = match options.contents {
        TarContentMode::Index => Some(layer_merger.next_device()?),
        TarContentMode::Copy | TarContentMode::HeadersOnly => None,
    };
    let window = WindowMemory::new(options.window_bytes_max, layer_merger.store().clone());
    let input = TarInput::open(source, options, device, window, cancel)?;
    let mut entry_reader = EntryReader::new(input, options);
    while let Some(mut entry) = entry_reader.next()? {
        observer.entry_found(matches!(entry.kind, EntryKind::Directory));
        check_cancelled(cancel)?;
        entry.metadata.xattrs.retain(|name, _| options.xattrs.keeps(name));
        let (path, offset) = (entry.path.clone(), entry.offset);
        let implied = layer_merger.add(entry, &path)?;
        entry_reader.count_directories(implied, &path, offset)?;
    }
    let bytes = entry_reader.finish()?;
    if device.is_some() {
        layer_merger.add_device(Device { tag: [0; 64], bytes })?;
    }
    Ok(())
}

/// The error of a refused archive, at this byte.
fn refused(why: impl Into<String>, offset: u64) -> Error {
    Error::new(ErrorKind::Archive(why.into())).at_byte(offset)
}

/// The most bytes of a name in a message; names can have a mebibyte.
const SHOWN_BYTES_MAX: usize = 200;

/// A name for messages.
fn display_name(name: &[u8]) -> String {
    let (front, more) = name.split_at(name.len().min(SHOWN_BYTES_MAX));
    format!("\"{}{}\"", front.escape_ascii(), if more.is_empty() { "" } else { "..." })
}

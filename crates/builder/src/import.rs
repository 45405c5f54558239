//! The importers, which make trees: from a directory of the host, which is here, and from tar archives, which is
//! `import_tar`. And texts that change the metadata of a tree: `fs_config` and `file_contexts` of Android, and the sidecar
//! of an extraction.
//!
//! The walk of a directory goes from open directory to open directory. It needs neither recursion nor long paths, so a tree
//! may be as deep as the host can make it. A symlink that replaces a directory during the walk is an error and is never
//! followed.

pub mod adjust;
pub mod android_text;
mod directory_listing;
pub(crate) mod exclude_patterns;
pub mod file_contexts;
mod host_file;
pub mod sidecar;
#[cfg(test)]
mod tests;

use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use ferrofs_workers::CancelToken;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::{AtFlags, FileType, Mode, OFlags, Statx, StatxFlags};
use rustix::io::Errno;

use crate::context::check_cancelled;
use crate::import::adjust::{Adjustments, ExcludePatterns, XattrFilter};
use crate::import::directory_listing::{
    DirectoryListing, HostXattrs, TypeHint, XattrReader, XattrValues,
};
use crate::import::host_file::{
    DataRanges, DirectoryTable, FileFingerprint, HostFile, HostLocation, SourceRoot, changed, input,
};
use crate::spill::ordered_map::OrderedMap;
use crate::spill::paged::PagedBytes;
use crate::spill::{SpillOptions, SpillStore};
use crate::tree::{Metadata, Node, NodeId, NodeKind, Timestamp, Tree};
use crate::{BuildObserver, BuildPhase, Error, ErrorKind, Result};

pub use crate::decompress::Compression;
pub use crate::import_tar::{
    AccountFiles, ForeignNameFn, InputLimit, SpoolOptions, StoredHoles, TarContentMode,
    TarImportOptions, TarSource, WhiteoutPolicy, erofs_image_name, from_tar, from_tar_layers,
};

/// Imports the tree below the directory `source`. File contents are read later, when the image is
/// built; a file that has changed by then is an error.
///
/// `source` may be a symlink; symlinks below it are not followed. Mounts below it are included. The
/// inode numbers depend on the names only, not on the order in which the host lists them.
///
/// Only root sees `trusted.*` xattrs. Without `/proc`, xattrs are read by paths, which the system limits to 4095 bytes.
///
/// # Errors
/// An entry that cannot be listed, examined or opened, by its path, unless
/// [`UnreadablePolicy::LeaveOut`]; an entry that was replaced before it was opened; a name or a
/// device number that the format cannot store;
/// [`ErrorKind::Cancelled`] once `cancel` is cancelled.
pub fn from_directory(
    source: &Path,
    options: &DirectoryOptions,
    observer: &dyn BuildObserver,
    cancel: &CancelToken,
) -> Result<Tree> {
    observer.phase(BuildPhase::Import);
    let mut tree = DirectoryWalk::new(source, options, observer, cancel)?.run()?;
    options.adjustments.apply(&mut tree)?;
    Ok(tree)
}

/// How [`from_directory`] works. The default imports everything unchanged, and fails at entries
/// that cannot be read.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct DirectoryOptions {
    /// Paths that are left out.
    pub exclude_patterns: ExcludePatterns,
    /// Changes to the tree.
    pub adjustments: Adjustments,
    /// How hard links are stored.
    pub hard_links: HardLinkPolicy,
    /// What happens to entries that cannot be read.
    pub unreadable: UnreadablePolicy,
    /// Where the tree lies; `None`: in memory.
    pub store: Option<SpillStore>,
}

option_setters! { DirectoryOptions {
    exclude_patterns: ExcludePatterns,
    adjustments: Adjustments,
    hard_links: HardLinkPolicy,
    unreadable: UnreadablePolicy,
    store: Option<SpillStore>,
} }

/// How an inode with several names is stored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum HardLinkPolicy {
    /// One inode with several names.
    #[default]
    Joined,
    /// One inode for each name (`--hard-dereference`).
    Separate,
}

/// What happens to an entry that cannot be read, or was replaced after its directory was listed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum UnreadablePolicy {
    /// The import fails.
    #[default]
    Fail,
    /// The entry is left out, a directory with everything below it, and the observer gets a
    /// warning.
    ///
    /// Every regular file that is not empty is opened once as a check. A file that opens but cannot be read later
    /// still fails the build.
    LeaveOut,
}

/// The most open directories of a walk. The outer directories of a deeper path are closed, and
/// opened again on the way back.
const OPEN_DIRECTORIES_MAX: usize = 64;

/// A block of `stx_blocks`.
const STATUS_BLOCK_BYTES: u64 = 512;

/// The largest numbers of a device (format.md F6: 12 and 20 bits).
const MAJOR_MAX: u32 = (1 << 12) - 1;
const MINOR_MAX: u32 = (1 << 20) - 1;

/// The state of a walk.
struct DirectoryWalk<'a> {
    root: Arc<SourceRoot>,
    options: &'a DirectoryOptions,
    observer: &'a dyn BuildObserver,
    cancel: &'a CancelToken,
    tree: Tree,
    directories: DirectoryTable,
    /// The inodes with several names by device and inode number.
    links: OrderedMap,
    /// The directories above the current one that have more subdirectories to visit, outermost
    /// first.
    frames: Vec<WalkFrame>,
    /// The number of outermost frames that are closed.
    closed_frames: usize,
    /// The current path, relative to the root.
    path: Vec<u8>,
    /// The names of the directories that were not visited, of all frames, each behind its length.
    pending: PagedBytes,
    listing: DirectoryListing,
    xattrs: XattrReader,
}

/// A directory with subdirectories that have not been visited.
struct WalkFrame {
    place: DirectoryPosition,
    fd: Option<OwnedFd>,
    /// Identifies the directory when it is opened again.
    fingerprint: FileFingerprint,
    /// The length of its path.
    path_bytes: usize,
    /// What of the pending names are of this directory. The names of inner frames lie behind them.
    pending: Range<u64>,
}

/// A directory as a node of the tree and as an entry in the table of directories.
#[derive(Clone, Copy)]
struct DirectoryPosition {
    node: NodeId,
    /// Its place in the table of directories.
    number: u64,
}

/// The result of adding an entry of a listing.
enum AddedEntry {
    /// The entry is in the tree, or left out.
    Done,
    /// The entry is a directory, which is visited later.
    Directory,
}

impl<'a> DirectoryWalk<'a> {
    fn new(
        source: &Path,
        options: &'a DirectoryOptions,
        observer: &'a dyn BuildObserver,
        cancel: &'a CancelToken,
    ) -> Result<Self> {
        let root = SourceRoot::open(source)
            .map_err(|errno| input("cannot open the directory", errno).at(source))?;
        let status =
            open_status(root.fd()).map_err(|errno| input("cannot examine", errno).at(source))?;
        let store =
            options.store.clone().unwrap_or_else(|| SpillStore::new(SpillOptions::default()));
        let xattrs = XattrReader::new(root.fd());
        Ok(Self {
            root: Arc::new(root),
            options,
            observer,
            cancel,
            tree: Tree::in_store(metadata(&status, HostXattrs::new()), &store),
            directories: DirectoryTable::new(&store),
            links: OrderedMap::new(&store),
            frames: Vec::new(),
            closed_frames: 0,
            path: Vec::new(),
            pending: PagedBytes::new(&store),
            listing: DirectoryListing::new(),
            xattrs,
        })
    }

    /// Walks the whole source.
    ///
    /// # Errors
    /// As [`from_directory`].
    fn run(mut self) -> Result<Tree> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let root = rustix::fs::openat(self.root.fd(), ".", flags, Mode::empty())
            .map_err(|errno| self.located(input("cannot open the directory", errno)))?;
        // Without a root there is no tree, so this fails with any options.
        self.enter(root, None)?;
        while let Some(frame) = self.frames.last_mut() {
            self.path.truncate(frame.path_bytes);
            match next_pending(&self.pending, &mut frame.pending) {
                Some(name) => self.descend(&name)?,
                None => self.pop_frame(),
            }
        }
        self.tree.store().check()?;
        self.root.set_directories(self.directories);
        Ok(self.tree)
    }

    /// Enters the subdirectory `name` of the innermost frame.
    fn descend(&mut self, name: &[u8]) -> Result<()> {
        self.observer.entry_found(true);
        check_cancelled(self.cancel)?;
        self.tree.store().check()?;
        let reopened = self.reopen_innermost();
        push_part(&mut self.path, name);
        let result = match (reopened, self.frames.last()) {
            (Err(error), _) => Err(self.located(error)),
            (Ok(()), Some(WalkFrame { place, fd: Some(fd), pending, .. })) => {
                let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
                let opened = rustix::fs::openat(fd, name, flags, Mode::empty());
                let parent = *place;
                if pending.is_empty() {
                    // This was the last subdirectory, so a chain of directories needs one frame.
                    self.pop_frame();
                }
                match opened {
                    Ok(fd) => self.enter(fd, Some((parent, name))),
                    Err(errno) => Err(self.located(unopened_directory(errno))),
                }
            }
            // No frame, or a closed one, has not been reopened.
            (Ok(()), _) => Ok(()),
        };
        result.or_else(|error| self.leave_out(error))
    }

    fn pop_frame(&mut self) {
        self.frames.pop();
        // All names of the frames below were taken.
        self.pending.truncate(self.frames.last().map_or(0, |frame| frame.pending.end));
    }

    /// Opens the innermost frame again if it was closed.
    fn reopen_innermost(&mut self) -> Result<()> {
        let Some(frame) = self.frames.last_mut() else { return Ok(()) };
        if frame.fd.is_some() {
            return Ok(());
        }
        let fd = self
            .root
            .open_below(&self.path, OFlags::RDONLY | OFlags::DIRECTORY)
            .map_err(unopened_directory)?;
        let status = open_status(fd.as_fd()).map_err(unexamined)?;
        if !same_inode(&FileFingerprint::of(&status), &frame.fingerprint) {
            return Err(changed("its parent directory was replaced".to_owned()));
        }
        frame.fd = Some(fd);
        self.closed_frames = self.closed_frames.min(self.frames.len().saturating_sub(1));
        Ok(())
    }

    /// Adds the open directory `fd` and its entries, except subdirectories, which become a frame.
    /// Only the root has no `parent`.
    fn enter(&mut self, fd: OwnedFd, parent: Option<(DirectoryPosition, &[u8])>) -> Result<()> {
        let status = open_status(fd.as_fd())
            .map_err(|errno| self.located(input("cannot examine", errno)))?;
        let choice = &self.options.adjustments.xattrs;
        let xattrs = match choice {
            XattrFilter::None => HostXattrs::new(),
            _ => match self.xattrs.of_open(&fd, choice) {
                Ok(found) => self.readable(found),
                Err(errno) => return Err(self.located(input("cannot read xattrs", errno))),
            },
        };
        self.listing
            .read(&fd)
            .map_err(|errno| self.located(input("cannot list the directory", errno)))?;
        let place = self.add_directory(metadata(&status, xattrs), parent)?;
        let pending = self.add_entries(fd.as_fd(), place)?;
        if pending.is_empty() {
            return Ok(());
        }
        self.frames.push(WalkFrame {
            place,
            fd: Some(fd),
            fingerprint: FileFingerprint::of(&status),
            path_bytes: self.path.len(),
            pending,
        });
        self.closed_frames = self.closed_frames.min(self.frames.len().saturating_sub(1));
        if self.frames.len() - self.closed_frames > OPEN_DIRECTORIES_MAX {
            if let Some(frame) = self.frames.get_mut(self.closed_frames) {
                frame.fd = None;
            }
            self.closed_frames += 1;
        }
        Ok(())
    }

    fn add_directory(
        &mut self,
        metadata: Metadata,
        parent: Option<(DirectoryPosition, &[u8])>,
    ) -> Result<DirectoryPosition> {
        let Some((parent, name)) = parent else {
            self.tree.node_mut(Tree::ROOT).metadata = metadata;
            return Ok(DirectoryPosition { node: Tree::ROOT, number: 0 });
        };
        let node = self.tree.add(Node::directory(metadata))?;
        self.tree.link(parent.node, name, node).map_err(|error| self.located(error))?;
        Ok(DirectoryPosition { node, number: self.directories.add(parent.number, name) })
    }

    /// Adds the listed entries, and returns the names of the subdirectories.
    fn add_entries(&mut self, fd: BorrowedFd<'_>, place: DirectoryPosition) -> Result<Range<u64>> {
        let start = self.pending.len();
        let directory_bytes = self.path.len();
        // Moved out of `self` while its names are in use.
        let listing = std::mem::replace(&mut self.listing, DirectoryListing::empty());
        for (name, hint) in listing.entries() {
            push_part(&mut self.path, name);
            if !self.options.exclude_patterns.excludes(&self.path) {
                let entry = match hint {
                    TypeHint::Directory => Ok(AddedEntry::Directory),
                    TypeHint::Other => self.add_entry(fd, place, name),
                };
                match entry {
                    Ok(AddedEntry::Done) => {
                        self.observer.entry_found(false);
                        check_cancelled(self.cancel)?;
                    }
                    Ok(AddedEntry::Directory) => {
                        // A name has 255 bytes at most.
                        self.pending.append(&[u8::try_from(name.len()).unwrap_or(u8::MAX)]);
                        self.pending.append(name);
                    }
                    Err(error) => self.leave_out(error)?,
                }
            }
            self.path.truncate(directory_bytes);
        }
        self.listing = listing;
        Ok(start..self.pending.len())
    }

    /// Adds an entry, unless it is a directory.
    fn add_entry(
        &mut self,
        fd: BorrowedFd<'_>,
        place: DirectoryPosition,
        name: &[u8],
    ) -> Result<AddedEntry> {
        let flags = AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT;
        let status = rustix::fs::statx(fd, name, flags, StatxFlags::BASIC_STATS)
            .map_err(|errno| self.located(unexamined(errno)))?;
        let fingerprint = FileFingerprint::of(&status);
        let file_type = FileType::from_raw_mode(status.stx_mode.into());
        if file_type == FileType::Directory {
            return Ok(AddedEntry::Directory);
        }
        let is_shared = status.stx_nlink > 1 && self.options.hard_links == HardLinkPolicy::Joined;
        let file_id = file_id_key(&fingerprint);
        let known = if is_shared { self.links.get(&file_id) } else { None };
        let known = known.and_then(|node| u32::try_from(node).ok()).map(NodeId::from_index);
        let node = match known {
            Some(node) => node,
            None => {
                let node = self.read_node(fd, place, name, &status)?;
                self.tree.add(node)?
            }
        };
        if is_shared {
            self.links.insert(&file_id, node.index() as u64);
        }
        self.tree.link(place.node, name, node).map_err(|error| self.located(error))?;
        Ok(AddedEntry::Done)
    }

    fn read_node(
        &mut self,
        fd: BorrowedFd<'_>,
        place: DirectoryPosition,
        name: &[u8],
        status: &Statx,
    ) -> Result<Node> {
        let choice = &self.options.adjustments.xattrs;
        let xattrs = match choice {
            XattrFilter::None => HostXattrs::new(),
            _ => {
                let path = || self.root.host_path(&self.path);
                match self.xattrs.of_entry(fd, name, path, choice) {
                    Ok(found) => self.readable(found),
                    Err(Errno::NOENT) => return Err(self.located(vanished())),
                    Err(Errno::NAMETOOLONG) if !self.xattrs.has_proc() => {
                        let why = "cannot read xattrs at so long a path without /proc";
                        return Err(self.located(input(why, Errno::NAMETOOLONG)));
                    }
                    Err(errno) => return Err(self.located(input("cannot read xattrs", errno))),
                }
            }
        };
        let kind = match FileType::from_raw_mode(status.stx_mode.into()) {
            FileType::RegularFile => self.file(fd, place, name, status)?,
            FileType::Symlink => NodeKind::Symlink(self.target(fd, name)?),
            FileType::CharacterDevice => {
                let (major, minor) = self.device(status)?;
                NodeKind::CharacterDevice { major, minor }
            }
            FileType::BlockDevice => {
                let (major, minor) = self.device(status)?;
                NodeKind::BlockDevice { major, minor }
            }
            FileType::Fifo => NodeKind::Fifo,
            FileType::Socket => NodeKind::Socket,
            FileType::Directory | FileType::Unknown => {
                let mode = status.stx_mode;
                return Err(self.located(Error::new(ErrorKind::Unsupported(format!(
                    "a file of an unknown type, mode {mode:#o}"
                )))));
            }
        };
        Ok(Node { metadata: metadata(status, xattrs), kind })
    }

    fn file(
        &self,
        fd: BorrowedFd<'_>,
        place: DirectoryPosition,
        name: &[u8],
        status: &Statx,
    ) -> Result<NodeKind> {
        if self.options.unreadable == UnreadablePolicy::LeaveOut && status.stx_size > 0 {
            let flags = OFlags::RDONLY
                | OFlags::NOFOLLOW
                | OFlags::NONBLOCK
                | OFlags::NOCTTY
                | OFlags::CLOEXEC;
            rustix::fs::openat(fd, name, flags, Mode::empty())
                .map_err(|errno| self.located(input("cannot open", errno)))?;
        }
        let fingerprint = FileFingerprint::of(status);
        let data_ranges =
            match status.stx_blocks.saturating_mul(STATUS_BLOCK_BYTES) < fingerprint.size {
                true => DataRanges::Sparse,
                false => DataRanges::Dense,
            };
        let place = HostLocation { directory: place.number, name };
        let file = HostFile::new(&self.root, &place, fingerprint, data_ranges);
        Ok(NodeKind::File(file.content()))
    }

    fn target(&self, fd: BorrowedFd<'_>, name: &[u8]) -> Result<Box<[u8]>> {
        match rustix::fs::readlinkat(fd, name, Vec::new()) {
            Ok(target) => Ok(target.into_bytes().into_boxed_slice()),
            Err(Errno::NOENT) => Err(self.located(vanished())),
            Err(Errno::INVAL) => {
                let how =
                    "it was a symlink when it was listed, but is not a symlink now".to_owned();
                Err(self.located(changed(how)))
            }
            Err(errno) => Err(self.located(input("cannot read the symlink", errno))),
        }
    }

    fn device(&self, status: &Statx) -> Result<(u32, u32)> {
        let (major, minor) = (status.stx_rdev_major, status.stx_rdev_minor);
        if major <= MAJOR_MAX && minor <= MINOR_MAX {
            return Ok((major, minor));
        }
        Err(self.located(Error::new(ErrorKind::Unsupported(format!(
            "device {major}:{minor} exceeds 12 bits and 20 bits"
        )))))
    }

    /// The xattrs. A name without a value is a warning: some file systems list names that cannot be
    /// read.
    fn readable(&self, found: XattrValues) -> HostXattrs {
        if let Some(name) = found.valueless {
            let how = format!("xattr {} was listed, but has no value now", name.escape_ascii());
            self.observer.warn(self.located(changed(how)));
        }
        found.xattrs
    }

    /// Leaves an entry out because of `error`, if the options allow it and the error concerns the
    /// entry.
    fn leave_out(&self, error: Error) -> Result<()> {
        if self.options.unreadable == UnreadablePolicy::LeaveOut && is_about_the_entry(&error) {
            self.observer.warn(error);
            return Ok(());
        }
        Err(error)
    }

    /// The error with the current path.
    fn located(&self, error: Error) -> Error {
        error.at(self.root.host_path(&self.path))
    }
}

/// Takes the next of the names in the range `left` of `pending`.
fn next_pending(pending: &PagedBytes, left: &mut Range<u64>) -> Option<Vec<u8>> {
    if left.is_empty() {
        return None;
    }
    let mut length = [0];
    pending.read(left.start, &mut length);
    let name = pending.read_vec(left.start + 1, length[0].into());
    left.start = left.end.min(left.start + 1 + u64::from(length[0]));
    Some(name)
}

/// What is the same for all names of an inode.
fn file_id_key(fingerprint: &FileFingerprint) -> [u8; 16] {
    let ((major, minor), inode) = (fingerprint.device, fingerprint.inode);
    let mut key = [0; 16];
    key[..4].copy_from_slice(&major.to_be_bytes());
    key[4..8].copy_from_slice(&minor.to_be_bytes());
    key[8..].copy_from_slice(&inode.to_be_bytes());
    key
}

fn push_part(path: &mut Vec<u8>, name: &[u8]) {
    if !path.is_empty() {
        path.push(b'/');
    }
    path.extend_from_slice(name);
}

fn open_status(fd: BorrowedFd<'_>) -> rustix::io::Result<Statx> {
    rustix::fs::statx(fd, "", AtFlags::EMPTY_PATH, StatxFlags::BASIC_STATS)
}

fn same_inode(one: &FileFingerprint, other: &FileFingerprint) -> bool {
    (one.device, one.inode) == (other.device, other.inode)
}

fn metadata(status: &Statx, xattrs: HostXattrs) -> Metadata {
    Metadata {
        permissions: status.stx_mode & 0o7777,
        uid: status.stx_uid,
        gid: status.stx_gid,
        mtime: Timestamp {
            seconds: status.stx_mtime.tv_sec,
            nanoseconds: status.stx_mtime.tv_nsec,
        },
        xattrs,
    }
}

/// Whether the error concerns the entry, and not memory or descriptors.
fn is_about_the_entry(error: &Error) -> bool {
    match error.kind() {
        ErrorKind::SourceChanged { .. } => true,
        ErrorKind::Input { source, .. } => {
            let wants = [Errno::MFILE, Errno::NFILE, Errno::NOMEM];
            !wants.iter().any(|errno| source.raw_os_error() == Some(errno.raw_os_error()))
        }
        _ => false,
    }
}

fn vanished() -> Error {
    changed("it was deleted after it was listed".to_owned())
}

fn unexamined(errno: Errno) -> Error {
    match errno {
        Errno::NOENT => vanished(),
        _ => input("cannot examine", errno),
    }
}

fn unopened_directory(errno: Errno) -> Error {
    match errno {
        Errno::NOENT => vanished(),
        Errno::NOTDIR | Errno::LOOP => {
            changed("it was a directory when it was listed, but is not a directory now".to_owned())
        }
        _ => input("cannot open the directory", errno),
    }
}

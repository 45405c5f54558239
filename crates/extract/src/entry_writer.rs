//! Writes one entry of the image, whatever it is, into an open directory of the host, and completes
//! directories. Each thread has one; called by `batch` and `large_file`, and by `extractor` for links.

use std::fs::File;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, Ordering};

use ferrofs_image::{FileType, Image, Inode, WalkEntry, Xattr};
use ferrofs_workers::CancelToken;
use rustix::fs::Stat;

use crate::content::{ContentWriter, FileContent};
use crate::directory::{FileId, OpenDirectory};
use crate::directory_stack::DirectoryStack;
use crate::error::{Error, ErrorKind};
use crate::event::ExtractSummary;
use crate::hard_links::FirstName;
use crate::metadata::{MetadataPolicy, MetadataTarget, NewMetadata, permissions};
use crate::new_entry::{IncompleteFile, LinkError, NewEntry};
use crate::options::{ExistingFiles, ExtractOptions};

/// What all threads of an extraction share.
#[derive(Debug)]
pub(crate) struct ExtractContext {
    pub(crate) image: Image,
    pub(crate) policy: MetadataPolicy,
    pub(crate) existing: ExistingFiles,
    skip_xattrs: bool,
    /// Nothing further can succeed: what has not begun is left undone.
    should_stop: AtomicBool,
    /// Set by the caller of the extraction.
    pub(crate) cancel: CancelToken,
}

impl ExtractContext {
    pub(crate) fn new(image: Image, policy: MetadataPolicy, options: &ExtractOptions) -> Self {
        let (existing, cancel) = (options.existing, options.cancel.clone());
        let skip_xattrs = options.skip_xattrs;
        Self { image, policy, existing, skip_xattrs, should_stop: AtomicBool::new(false), cancel }
    }

    /// Looks at an error, and stops everything if nothing further can succeed after it.
    pub(crate) fn record_failure(&self, kind: &ErrorKind) {
        if kind.stops_everything() {
            self.stop();
        }
    }

    /// Nothing further is to be begun.
    pub(crate) fn stop(&self) {
        // Pairs with nothing: who sees it late does some useless work.
        self.should_stop.store(true, Ordering::Relaxed);
    }

    pub(crate) fn should_stop(&self) -> bool {
        self.should_stop.load(Ordering::Relaxed) || self.is_cancelled()
    }

    /// Whether the caller has cancelled the extraction.
    pub(crate) fn is_cancelled(&self) -> bool {
        self.cancel.is_cancelled()
    }

    /// Where the entry `path` is made.
    pub(crate) fn place<'a>(&self, directory: &'a OpenDirectory, path: &'a [u8]) -> NewEntry<'a> {
        // The walk has checked that this is one name, and safe.
        let name = path.rsplit(|byte| *byte == b'/').next().unwrap_or_default();
        NewEntry { directory: directory.as_fd(), name, existing: self.existing }
    }
}

/// What came of a piece of work.
#[derive(Debug, Default)]
pub(crate) struct TaskReport {
    /// What was extracted; failures are not counted here but listed.
    pub(crate) counted: ExtractSummary,
    pub(crate) failures: Vec<Error>,
}

/// An entry that may have further names was made, and is this file now; or it was not.
pub(crate) type WrittenId = Option<FileId>;

/// Writes entries, and lists what goes wrong.
#[derive(Debug)]
pub(crate) struct EntryWriter<'a> {
    pub(crate) context: &'a ExtractContext,
    pub(crate) content: &'a mut ContentWriter,
    pub(crate) report: &'a mut TaskReport,
}

impl EntryWriter<'_> {
    /// Writes anything but a directory.
    pub(crate) fn write(&mut self, directory: &OpenDirectory, node: &WalkEntry) -> WrittenId {
        let place = self.context.place(directory, &node.path);
        let made = match node.inode.file_type() {
            FileType::Regular => self.write_file(place, node),
            FileType::Symlink => self.write_symlink(place, node),
            _ => self.write_special(place, node),
        };
        made.unwrap_or_else(|kind| {
            self.fail(kind, node);
            None
        })
    }

    /// Completes a file whose contents have been written already.
    pub(crate) fn finish_file(&mut self, file: &File, stat: &Stat, node: &WalkEntry) -> WrittenId {
        self.report.counted.files += 1;
        self.set_metadata(MetadataTarget::Open(file.as_fd()), stat, node, permissions(&node.inode));
        Some(FileId::of(stat))
    }

    /// Sets the metadata of a directory in which everything has been made.
    pub(crate) fn complete(&mut self, directory: &OpenDirectory) {
        let Some(left) = directory.left() else { return };
        self.report.counted.directories += 1;
        let target = MetadataTarget::Open(directory.as_fd());
        self.set_metadata(target, directory.stat(), &left.node, left.mode);
    }

    /// Lists a failure.
    pub(crate) fn fail(&mut self, kind: ErrorKind, node: &WalkEntry) {
        self.context.record_failure(&kind);
        self.report.failures.push(Error::new(kind, &node.path).about(&node.inode));
    }

    fn write_file(
        &mut self,
        place: NewEntry<'_>,
        node: &WalkEntry,
    ) -> Result<WrittenId, ErrorKind> {
        let inode = &node.inode;
        let file = place.create_file(first_mode(inode))?;
        let partial = IncompleteFile::new(place);
        let counted = &mut self.report.counted;
        let (image, cancel) = (&self.context.image, &self.context.cancel);
        let contents = FileContent { image, inode, cancel };
        let written = MetadataTarget::Open(file.as_fd())
            .stat()
            .and_then(|stat| self.content.write(contents, &file, counted).map(|()| stat));
        match written {
            Ok(stat) => {
                // Failures from here on leave the file where it is: its contents are right.
                partial.keep();
                Ok(self.finish_file(&file, &stat, node))
            }
            Err(kind) => {
                partial.remove()?;
                Err(kind)
            }
        }
    }

    fn write_symlink(
        &mut self,
        place: NewEntry<'_>,
        node: &WalkEntry,
    ) -> Result<WrittenId, ErrorKind> {
        let target = self.context.image.read_link(&node.inode)?;
        place.create_symlink(&target)?;
        self.report.counted.symlinks += 1;
        self.complete_named(place, node).map(Some)
    }

    fn write_special(
        &mut self,
        place: NewEntry<'_>,
        node: &WalkEntry,
    ) -> Result<WrittenId, ErrorKind> {
        if !place.create_special(&node.inode)? {
            self.report.counted.skipped.special += 1;
            return Ok(None);
        }
        self.report.counted.special += 1;
        self.complete_named(place, node).map(Some)
    }

    fn complete_named(
        &mut self,
        place: NewEntry<'_>,
        node: &WalkEntry,
    ) -> Result<FileId, ErrorKind> {
        let target = MetadataTarget::Named(place.directory, place.name);
        let stat = target.stat()?;
        self.set_metadata(target, &stat, node, permissions(&node.inode));
        Ok(FileId::of(&stat))
    }

    fn set_metadata(
        &mut self,
        target: MetadataTarget<'_>,
        stat: &Stat,
        node: &WalkEntry,
        mode: u32,
    ) {
        let (xattrs, unreadable) = match self.xattrs(&node.inode) {
            Ok(xattrs) => (xattrs, None),
            Err(kind) => (Vec::new(), Some(kind)),
        };
        let attributes = NewMetadata { inode: &node.inode, xattrs: &xattrs, mode, stat };
        let skipped = &mut self.report.counted.skipped;
        let errors = self.context.policy.apply(target, attributes, skipped);
        for kind in unreadable.into_iter().chain(errors) {
            self.fail(kind, node);
        }
    }

    fn xattrs(&self, inode: &Inode) -> Result<Vec<Xattr>, ErrorKind> {
        let has_any = inode.has_xattrs() && !self.context.skip_xattrs;
        if has_any { Ok(self.context.image.xattrs(inode)?) } else { Ok(Vec::new()) }
    }
}

/// The permissions that a file is made with: its own, so that they need not be set, unless its owner
/// must be able to write to it by name first. Nobody else can reach it before its directory is done.
pub(crate) fn first_mode(inode: &Inode) -> u32 {
    if inode.has_xattrs() { 0o600 } else { permissions(inode) & 0o777 }
}

/// Gives the first name's file another name; `false` if only a copy can have it.
pub(crate) fn link(
    stack: &DirectoryStack,
    place: NewEntry<'_>,
    first: &FirstName,
) -> Result<bool, ErrorKind> {
    let Ok((directory, name)) = stack.parent_of(&first.path) else { return Ok(false) };
    match place.create_link((directory.as_fd(), name)) {
        Ok(()) => {}
        Err(LinkError::Copy) => return Ok(false),
        Err(LinkError::Failed(kind)) => return Err(kind),
    }
    let made = MetadataTarget::Named(place.directory, place.name).stat()?;
    if FileId::of(&made) == first.file_id {
        return Ok(true);
    }
    // Somebody put another file under the first name.
    place.remove()?;
    Ok(false)
}

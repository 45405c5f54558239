//! Writes one entry of the image, whatever it is, into an open directory of the host, and completes
//! directories. Each thread has one; called by `batch` and `large_file`, and by `extractor` for links.

use std::fs::File;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use ferrofs_image::{FileType, Image, Inode, Node, Xattr};
use rustix::fs::Stat;

use crate::content::{ContentWriter, Contents};
use crate::directory::{Directory, Identity};
use crate::directory_stack::DirectoryStack;
use crate::error::{Error, ErrorKind};
use crate::event::Summary;
use crate::hard_links::First;
use crate::metadata::{Attributes, Keeper, Target, permissions};
use crate::options::{Existing, Options};
use crate::place::{LinkError, Partial, Place};

/// What all threads of an extraction share.
#[derive(Debug)]
pub(crate) struct Task {
    pub(crate) image: Image,
    pub(crate) keeper: Keeper,
    pub(crate) existing: Existing,
    omits_xattrs: bool,
    /// Nothing further can succeed: what has not begun is left alone.
    must_stop: AtomicBool,
    /// Whoever asked for all this may want it no more.
    stop: Option<Arc<AtomicBool>>,
}

impl Task {
    pub(crate) fn new(image: Image, keeper: Keeper, options: &Options) -> Self {
        let (existing, stop) = (options.existing, options.stop.clone());
        let omits_xattrs = options.omits_xattrs;
        Self { image, keeper, existing, omits_xattrs, must_stop: AtomicBool::new(false), stop }
    }

    /// Looks at an error, and stops everything if nothing further can succeed after it.
    pub(crate) fn note(&self, kind: &ErrorKind) {
        if kind.stops_everything() {
            self.stop();
        }
    }

    /// Nothing further is to be begun.
    pub(crate) fn stop(&self) {
        // Pairs with nothing: who sees it late does some useless work.
        self.must_stop.store(true, Ordering::Relaxed);
    }

    pub(crate) fn must_stop(&self) -> bool {
        self.must_stop.load(Ordering::Relaxed) || self.is_unwanted()
    }

    /// Whether the caller wants it to end.
    pub(crate) fn is_unwanted(&self) -> bool {
        // Pairs with nothing, as above.
        self.stop.as_ref().is_some_and(|stop| stop.load(Ordering::Relaxed))
    }

    /// Where the entry `path` is made.
    pub(crate) fn place<'a>(&self, directory: &'a Directory, path: &'a [u8]) -> Place<'a> {
        // The walk has checked that this is one name, and safe.
        let name = path.rsplit(|byte| *byte == b'/').next().unwrap_or_default();
        Place { directory: directory.as_fd(), name, existing: self.existing }
    }
}

/// What came of a piece of work.
#[derive(Debug, Default)]
pub(crate) struct Report {
    /// What was extracted; failures are not counted here but listed.
    pub(crate) counted: Summary,
    pub(crate) failures: Vec<Error>,
}

/// An entry that may have further names was made, and is this file now; or it was not.
pub(crate) type Made = Option<Identity>;

/// Writes entries, and lists what goes wrong.
#[derive(Debug)]
pub(crate) struct EntryWriter<'a> {
    pub(crate) task: &'a Task,
    pub(crate) content: &'a mut ContentWriter,
    pub(crate) report: &'a mut Report,
}

impl EntryWriter<'_> {
    /// Writes anything but a directory.
    pub(crate) fn write(&mut self, directory: &Directory, node: &Node) -> Made {
        let place = self.task.place(directory, &node.path);
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
    pub(crate) fn finish_file(&mut self, file: &File, stat: &Stat, node: &Node) -> Made {
        self.report.counted.files += 1;
        self.set_metadata(Target::Open(file.as_fd()), stat, node, permissions(&node.inode));
        Some(Identity::of(stat))
    }

    /// Sets the metadata of a directory in which everything has been made.
    pub(crate) fn complete(&mut self, directory: &Directory) {
        let Some(left) = directory.left() else { return };
        self.report.counted.directories += 1;
        let target = Target::Open(directory.as_fd());
        self.set_metadata(target, directory.stat(), &left.node, left.mode);
    }

    /// Lists a failure.
    pub(crate) fn fail(&mut self, kind: ErrorKind, node: &Node) {
        self.task.note(&kind);
        self.report.failures.push(Error::new(kind, &node.path).about(&node.inode));
    }

    fn write_file(&mut self, place: Place<'_>, node: &Node) -> Result<Made, ErrorKind> {
        let inode = &node.inode;
        let file = place.create_file(first_mode(inode))?;
        let partial = Partial::new(place);
        let counted = &mut self.report.counted;
        let contents = Contents { image: &self.task.image, inode };
        let written = Target::Open(file.as_fd())
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

    fn write_symlink(&mut self, place: Place<'_>, node: &Node) -> Result<Made, ErrorKind> {
        let target = self.task.image.read_link(&node.inode)?;
        place.create_symlink(&target)?;
        self.report.counted.symlinks += 1;
        self.complete_named(place, node).map(Some)
    }

    fn write_special(&mut self, place: Place<'_>, node: &Node) -> Result<Made, ErrorKind> {
        if !place.create_special(&node.inode)? {
            self.report.counted.withheld.special += 1;
            return Ok(None);
        }
        self.report.counted.special += 1;
        self.complete_named(place, node).map(Some)
    }

    fn complete_named(&mut self, place: Place<'_>, node: &Node) -> Result<Identity, ErrorKind> {
        let target = Target::Named(place.directory, place.name);
        let stat = target.stat()?;
        self.set_metadata(target, &stat, node, permissions(&node.inode));
        Ok(Identity::of(&stat))
    }

    fn set_metadata(&mut self, target: Target<'_>, stat: &Stat, node: &Node, mode: u32) {
        let (xattrs, unreadable) = match self.xattrs(&node.inode) {
            Ok(xattrs) => (xattrs, None),
            Err(kind) => (Vec::new(), Some(kind)),
        };
        let attributes = Attributes { inode: &node.inode, xattrs: &xattrs, mode, stat };
        let withheld = &mut self.report.counted.withheld;
        let errors = self.task.keeper.apply(target, attributes, withheld);
        for kind in unreadable.into_iter().chain(errors) {
            self.fail(kind, node);
        }
    }

    fn xattrs(&self, inode: &Inode) -> Result<Vec<Xattr>, ErrorKind> {
        let has_any = inode.has_xattrs() && !self.task.omits_xattrs;
        if has_any { Ok(self.task.image.xattrs(inode)?) } else { Ok(Vec::new()) }
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
    place: Place<'_>,
    first: &First,
) -> Result<bool, ErrorKind> {
    let Ok((directory, name)) = stack.parent_of(&first.path) else { return Ok(false) };
    match place.create_link((directory.as_fd(), name)) {
        Ok(()) => {}
        Err(LinkError::Copy) => return Ok(false),
        Err(LinkError::Failed(kind)) => return Err(kind),
    }
    let made = Target::Named(place.directory, place.name).stat()?;
    if Identity::of(&made) == first.identity {
        return Ok(true);
    }
    // Somebody put another file under the first name.
    place.remove()?;
    Ok(false)
}

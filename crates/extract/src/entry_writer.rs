//! Writes one entry of the image, whatever it is, into an open directory of the host.

use std::os::fd::{AsFd, BorrowedFd};

use ferrofs_image::{FileType, Image, Inode, Node, Xattr};

use crate::content::ContentWriter;
use crate::directory_stack::{DirectoryStack, Identity};
use crate::error::{Error, ErrorKind, Result};
use crate::hard_links::{First, HardLinks};
use crate::metadata::{Attributes, Keeper, Target, permissions};
use crate::place::{LinkError, Place};
use crate::reporter::Reporter;

/// Writes entries, and remembers those that may turn up under further names.
pub(crate) struct EntryWriter<'a> {
    pub(crate) image: &'a Image,
    pub(crate) keeper: Keeper,
    pub(crate) reporter: Reporter<'a>,
    pub(crate) links: HardLinks,
    pub(crate) content: ContentWriter,
}

impl EntryWriter<'_> {
    /// Writes anything but a directory.
    pub(crate) fn write(
        &mut self,
        stack: &DirectoryStack,
        place: Place<'_>,
        node: &Node,
    ) -> Result<(), ErrorKind> {
        if let Some(first) = self.links.first(&node.inode).cloned() {
            if link(stack, place, &first)? {
                self.links.count(&node.inode);
                self.reporter.summary.hard_links += 1;
                return Ok(());
            }
            self.reporter.summary.withheld.copied_links += 1;
        }
        match node.inode.file_type() {
            FileType::Regular => self.write_file(place, node),
            FileType::Symlink => self.write_symlink(place, node),
            _ => self.write_special(place, node),
        }
    }

    /// Sets the metadata of a directory that is complete, but for the permissions `mode`.
    pub(crate) fn complete_directory(&mut self, directory: BorrowedFd<'_>, node: &Node, mode: u32) {
        self.reporter.summary.directories += 1;
        self.set_metadata(Target::Open(directory), node, mode);
    }

    fn write_file(&mut self, place: Place<'_>, node: &Node) -> Result<(), ErrorKind> {
        let inode = &node.inode;
        let file = place.create_file()?;
        let reporter = &mut self.reporter;
        let mut on_piece = |delivered| reporter.delivered(delivered);
        if let Err(kind) = self.content.write(self.image, inode, &file, &mut on_piece) {
            place.remove()?;
            return Err(kind);
        }
        self.reporter.summary.files += 1;
        self.complete(Target::Open(file.as_fd()), node)
    }

    fn write_symlink(&mut self, place: Place<'_>, node: &Node) -> Result<(), ErrorKind> {
        let target = self.image.read_link(&node.inode)?;
        place.create_symlink(&target)?;
        self.reporter.summary.symlinks += 1;
        self.complete(Target::Named(place.directory, place.name), node)
    }

    fn write_special(&mut self, place: Place<'_>, node: &Node) -> Result<(), ErrorKind> {
        if !place.create_special(&node.inode)? {
            self.reporter.summary.withheld.special += 1;
            return Ok(());
        }
        self.reporter.summary.special += 1;
        self.complete(Target::Named(place.directory, place.name), node)
    }

    /// Failures from here on leave the entry where it is: its contents are right.
    fn complete(&mut self, target: Target<'_>, node: &Node) -> Result<(), ErrorKind> {
        let inode = &node.inode;
        self.set_metadata(target, node, permissions(inode));
        if inode.nlink() > 1 {
            self.links.remember(inode, &node.path, Identity::of(&target.stat()?));
        }
        Ok(())
    }

    fn set_metadata(&mut self, target: Target<'_>, node: &Node, mode: u32) {
        let (xattrs, unreadable) = match self.xattrs(&node.inode) {
            Ok(xattrs) => (xattrs, None),
            Err(kind) => (Vec::new(), Some(kind)),
        };
        let attributes = Attributes { inode: &node.inode, xattrs: &xattrs, mode };
        let withheld = &mut self.reporter.summary.withheld;
        let errors = self.keeper.apply(target, attributes, withheld);
        for kind in unreadable.into_iter().chain(errors) {
            self.reporter.fail(Error::new(kind, &node.path).about(&node.inode));
        }
    }

    fn xattrs(&self, inode: &Inode) -> Result<Vec<Xattr>, ErrorKind> {
        if inode.has_xattrs() { Ok(self.image.xattrs(inode)?) } else { Ok(Vec::new()) }
    }
}

/// Gives the first name's file another name; `false` if only a copy can have it.
fn link(stack: &DirectoryStack, place: Place<'_>, first: &First) -> Result<bool, ErrorKind> {
    let Ok((directory, name)) = stack.parent_of(&first.path) else { return Ok(false) };
    match place.create_link((directory.as_fd(), name)) {
        Ok(()) => {}
        Err(LinkError::Copy) => return Ok(false),
        Err(LinkError::Failed(kind)) => return Err(kind),
    }
    if Identity::of(&Target::Named(place.directory, place.name).stat()?) == first.identity {
        return Ok(true);
    }
    // Somebody put another file under the first name.
    place.remove()?;
    Ok(false)
}

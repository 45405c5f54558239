//! Open directories of the host, and how those that are new get their names.
//!
//! Every task holds the directory that it writes into. The last holder of a directory that the walk
//! has left sets its metadata: no thread waits for another, and nothing is created in a complete
//! directory.
//!
//! A new directory in one that others may look into is *staged*: it has a temporary name until all
//! below it is whole, so that a process that is killed leaves nothing incomplete under a final
//! name. What is below it needs no temporary names of its own. Every open directory below it holds
//! it, and it holds its parent, which therefore gets its times after it was renamed.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use ferrofs_image::WalkEntry;
use rustix::fs::{AtFlags, Mode, RenameFlags, Stat};
use rustix::io::{self, Errno};

use crate::error::{Error, ErrorKind};
use crate::metadata::ForeignAcl;
use crate::options::ExistingFiles;

/// The identity of a file of the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FileId {
    device: u64,
    inode: u64,
}

impl FileId {
    pub(crate) fn of(stat: &Stat) -> Self {
        Self { device: stat.st_dev, inode: stat.st_ino }
    }
}

/// Where a directory comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DirectoryOrigin {
    /// The extraction created it; nobody else may enter it until it is complete.
    New,
    /// It existed, so its mode and its ACLs stay until it is complete. What is created in it may
    /// inherit an ACL.
    Existing { has_default_acl: bool },
}

impl DirectoryOrigin {
    /// Whether new entries inherit an ACL.
    pub(crate) fn acl_of_entries(self) -> ForeignAcl {
        match self {
            Self::Existing { has_default_acl: true } => ForeignAcl::Possible,
            _ => ForeignAcl::None,
        }
    }

    /// Whether the directory may have an ACL that is not the image's.
    pub(crate) fn own_acl(self) -> ForeignAcl {
        match self {
            Self::New => ForeignAcl::None,
            Self::Existing { .. } => ForeignAcl::Possible,
        }
    }
}

/// An open directory.
#[derive(Debug)]
pub(crate) struct OpenDirectory {
    fd: OwnedFd,
    /// Its status when it was opened.
    stat: Stat,
    pub(crate) origin: DirectoryOrigin,
    /// The staged directory that it is, or that it is in.
    staged: Option<Arc<StagedDirectory>>,
    left: OnceLock<FinalMetadata>,
}

/// The metadata that a directory gets when all its entries have been written.
#[derive(Debug)]
pub(crate) struct FinalMetadata {
    pub(crate) node: WalkEntry,
    /// The permissions; the final ones may be set later.
    pub(crate) mode: u32,
}

impl OpenDirectory {
    pub(crate) fn new(fd: OwnedFd, stat: Stat, origin: DirectoryOrigin) -> Self {
        Self { fd, stat, origin, staged: None, left: OnceLock::new() }
    }

    /// The same directory, held to be in `staged`.
    pub(crate) fn within(mut self, staged: Option<Arc<StagedDirectory>>) -> Self {
        self.staged = staged;
        self
    }

    pub(crate) fn file_id(&self) -> FileId {
        FileId::of(&self.stat)
    }

    pub(crate) fn stat(&self) -> &Stat {
        &self.stat
    }

    pub(crate) fn staged(&self) -> Option<&Arc<StagedDirectory>> {
        self.staged.as_ref()
    }

    /// Called by the walk, once, when it leaves the directory: there will be no further holder.
    pub(crate) fn leave(&self, left: FinalMetadata) {
        // A second value would be the same: a walk enters no directory twice.
        self.left.get_or_init(|| left);
    }

    pub(crate) fn left(&self) -> Option<&FinalMetadata> {
        self.left.get()
    }
}

impl AsFd for OpenDirectory {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Releases a directory. Returns it if this was the last holder and its metadata is to be set.
pub(crate) fn release(directory: Arc<OpenDirectory>) -> Option<OpenDirectory> {
    Arc::into_inner(directory).filter(|directory| directory.left.get().is_some())
}

/// Releases a staged directory. The last holder gives it its name. Returns the parent, which is to
/// be released, too.
pub(crate) fn release_staged(staged: Arc<StagedDirectory>) -> Option<Arc<OpenDirectory>> {
    let mut staged = Arc::into_inner(staged)?;
    staged.publish();
    match &staged.place.parent {
        StagingParent::Entered(parent) => Some(Arc::clone(parent)),
        StagingParent::Outside(_) => None,
    }
}

/// Failures to give staged directories their names. They can happen wherever the last holder is.
#[derive(Clone, Debug, Default)]
pub(crate) struct PublishFailures(Arc<Mutex<Vec<Error>>>);

impl PublishFailures {
    fn add(&self, error: Error) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(error);
    }

    /// Those since the last call.
    pub(crate) fn take(&self) -> Vec<Error> {
        std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// The parent of a staged directory.
#[derive(Debug)]
pub(crate) enum StagingParent {
    /// A directory of the tree.
    Entered(Arc<OpenDirectory>),
    /// The parent of the destination.
    Outside(OwnedFd),
}

impl AsFd for StagingParent {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Entered(directory) => directory.as_fd(),
            Self::Outside(fd) => fd.as_fd(),
        }
    }
}

/// The name that a staged directory has until it is whole, as part of paths of the image.
#[derive(Debug)]
pub(crate) struct StagedName {
    /// How many names of a path come before it.
    pub(crate) level: usize,
    pub(crate) temporary: Box<[u8]>,
}

/// What becomes of a staged directory.
#[derive(Debug)]
pub(crate) struct StagingPlace {
    pub(crate) parent: StagingParent,
    pub(crate) name: Box<[u8]>,
    pub(crate) existing: ExistingFiles,
    /// Its path, for errors.
    pub(crate) path: Vec<u8>,
    pub(crate) failures: PublishFailures,
}

/// A directory with a temporary name. The last holder gives it its name, whatever has happened to
/// what is in it: everything there is whole.
#[derive(Debug)]
pub(crate) struct StagedDirectory {
    name: Arc<StagedName>,
    file_id: FileId,
    place: StagingPlace,
    is_published: bool,
}

impl StagedDirectory {
    pub(crate) fn new(name: StagedName, file_id: FileId, place: StagingPlace) -> Self {
        Self { name: Arc::new(name), file_id, place, is_published: false }
    }

    pub(crate) fn temporary_name(&self) -> &[u8] {
        &self.name.temporary
    }

    /// The temporary name, if it is part of paths below the destination.
    pub(crate) fn name(&self) -> Option<&Arc<StagedName>> {
        matches!(self.place.parent, StagingParent::Entered(_)).then_some(&self.name)
    }

    fn publish(&mut self) {
        if std::mem::replace(&mut self.is_published, true) {
            return;
        }
        if let Err(source) = self.rename() {
            let (source, temporary) = (Box::new(source), self.name.temporary.to_vec());
            let kind = ErrorKind::NotPublished { source, temporary };
            let path = &self.place.path;
            self.place.failures.add(match self.place.parent {
                StagingParent::Entered(_) => Error::new(kind, path),
                StagingParent::Outside(_) => Error::of_destination(kind, path),
            });
        }
    }

    /// Gives the directory its name. Another entry of that name stays, unless it may be replaced
    /// and is no directory.
    fn rename(&self) -> Result<(), ErrorKind> {
        let (parent, name) = (self.place.parent.as_fd(), &*self.place.name);
        let mut renamed = self.rename_to_free_name();
        if renamed == Err(Errno::EXIST) && self.place.existing == ExistingFiles::Replace {
            renamed = match rustix::fs::unlinkat(parent, name, AtFlags::empty()) {
                Ok(()) | Err(Errno::NOENT) => self.rename_to_free_name(),
                Err(_) => Err(Errno::EXIST),
            };
        }
        match renamed {
            Err(Errno::EXIST) => return Err(ErrorKind::Exists),
            renamed => renamed.map_err(ErrorKind::output("cannot give the directory its name"))?,
        }
        let examine = ErrorKind::output("cannot examine directory");
        let stat = rustix::fs::statat(parent, name, AtFlags::SYMLINK_NOFOLLOW).map_err(examine)?;
        if FileId::of(&stat) == self.file_id { Ok(()) } else { Err(ErrorKind::Replaced) }
    }

    fn rename_to_free_name(&self) -> io::Result<()> {
        let (parent, temporary) = (self.place.parent.as_fd(), &*self.name.temporary);
        let name = &*self.place.name;
        match rustix::fs::renameat_with(parent, temporary, parent, name, RenameFlags::NOREPLACE) {
            // The kernel or the file system does not have the flag. An empty directory takes the
            // name first; no call replaces anything but an empty directory with a directory.
            Err(Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP) => {
                rustix::fs::mkdirat(parent, name, Mode::empty())?;
                rustix::fs::renameat(parent, temporary, parent, name).inspect_err(|_| {
                    rustix::fs::unlinkat(parent, name, AtFlags::REMOVEDIR).ok();
                })
            }
            renamed => renamed,
        }
    }
}

impl Drop for StagedDirectory {
    fn drop(&mut self) {
        self.publish();
    }
}

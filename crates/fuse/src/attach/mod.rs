//! Mounting and unmounting: a directory in, an open `/dev/fuse` out, and back. This module owns the
//! way by which the mount came about and the identity by which it is found again; it never reads from
//! the device and never touches a mount that is somebody else's. A session calls it at its start and at
//! its end.
//!
//! There are two ways, tried in this order:
//!
//! 1. *Directly*: this process opens the device and calls `mount(2)`. Root may, and so may who is root
//!    in a user namespace that owns its mount namespace.
//! 2. *By fusermount3*, which is set-user-ID root. It mounts and sends the device back.
//!
//! A process that has given up gaining privileges cannot run `fusermount3` with any effect any more.
//! So what will unmount is started beforehand: see `unmounter`.

mod device;
mod direct;
mod directory;
mod error;
mod fusermount;
mod options;
mod table;
mod unmounter;

use std::fmt;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::io::Errno;

pub use error::AttachError;
pub use options::{AttachOptions, MountAccess, OptionMatch, RejectedOption};

use directory::MountDirectory;
use fusermount::Fusermount;
use table::{MountIdentity, MountTable};
use unmounter::Unmounter;

/// Mounts a FUSE file system on `directory`, read-only. The kernel's first request waits in the
/// device when this returns; until it is answered, whoever enters the directory waits.
///
/// It starts other programs if it cannot mount by itself, so call it before any sandbox.
///
/// # Errors
///
/// One variant of [`AttachError`] for each thing that can be missing; nothing is left mounted then.
pub fn attach(directory: &Path, options: &AttachOptions) -> Result<Attachment, AttachError> {
    options.check()?;
    let directory = MountDirectory::open(directory)?;
    let refusal = match direct::mount(&directory, options)? {
        direct::DirectMount::Mounted(device) => {
            return Attachment::new(device, MountMethod::Direct, &directory, options);
        }
        direct::DirectMount::Refused(refusal) => refusal,
    };
    let Some(fusermount) = Fusermount::find() else {
        return Err(refusal.into_error());
    };
    let device = fusermount.mount(&directory, options)?;
    Attachment::new(device, MountMethod::Fusermount(fusermount.into_path()), &directory, options)
}

/// How a mount came about.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum MountMethod {
    /// This process called `mount(2)`.
    Direct,
    /// This program did it for us.
    Fusermount(PathBuf),
}

impl fmt::Display for MountMethod {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Direct => f.write_str("mount(2)"),
            Self::Fusermount(program) => write!(f, "{}", program.display()),
        }
    }
}

/// How a mount ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DetachOutcome {
    /// Nobody used it any more: the kernel has let go of the file system.
    Clean,
    /// The directory is free, but files are still open in the file system, or somebody's working
    /// directory lies in it, or another mount namespace has it, too. It lives until they are done,
    /// and needs its server until then.
    Lazily,
    /// Somebody else had unmounted it before.
    Already,
}

/// A mounted file system: the device, and what it takes to unmount. Dropping it unmounts as well as
/// [`Attachment::detach`] does, without a word about the outcome.
#[derive(Debug)]
pub struct Attachment {
    device: OwnedFd,
    method: MountMethod,
    directory: PathBuf,
    identity: MountIdentity,
    unmounter: Option<Unmounter>,
    is_detached: bool,
}

impl Attachment {
    fn new(
        device: OwnedFd,
        method: MountMethod,
        directory: &MountDirectory,
        options: &AttachOptions,
    ) -> Result<Self, AttachError> {
        let device = device::above_standard_streams(device)?;
        // Closing the device is all that is left to do if the mount is not to be found where it was
        // made: it is dead then, and whoever moved the directory has it.
        let identity = MountIdentity::of_new_mount(directory, options)?;
        let unmounter = match &method {
            MountMethod::Fusermount(program) if options.auto_unmount => {
                Unmounter::start(program, directory.path()).ok()
            }
            MountMethod::Fusermount(_) | MountMethod::Direct => None,
        };
        Ok(Self {
            device,
            method,
            directory: directory.path().to_path_buf(),
            identity,
            unmounter,
            is_detached: false,
        })
    }

    /// The open device: read and write, close-on-exec, blocking.
    #[must_use]
    pub fn device(&self) -> &OwnedFd {
        &self.device
    }

    /// The descriptors that it needs to its end, for whoever closes all others.
    pub fn descriptors(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        let unmounter = self.unmounter.as_ref().map(Unmounter::descriptor);
        [self.device.as_fd()].into_iter().chain(unmounter)
    }

    /// How the mount came about.
    #[must_use]
    pub fn method(&self) -> &MountMethod {
        &self.method
    }

    /// The directory at the time of mounting: absolute, without symlinks.
    #[must_use]
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// Whether the mount goes away by itself when this process ends in whatever way, SIGKILL included.
    #[must_use]
    pub fn unmounts_if_killed(&self) -> bool {
        self.unmounter.is_some()
    }

    /// Whether the kernel still has the file system, be it only because somebody uses it after an
    /// unmount.
    #[must_use]
    pub fn is_connected(&self) -> bool {
        device::is_connected(&self.device)
    }

    /// Unmounts at once, even if somebody uses the file system, and says which of both it was. Needs no
    /// answer of the file system, so it may be called before, while or after its requests are served.
    /// Called again after success, it does nothing and says [`DetachOutcome::Already`].
    ///
    /// # Errors
    ///
    /// [`AttachError::Covered`] if something else is mounted on top, [`AttachError::StillMounted`] if
    /// whoever must unmount did not; it may be called again then.
    pub fn detach(&mut self) -> Result<DetachOutcome, AttachError> {
        if self.is_detached {
            return Ok(DetachOutcome::Already);
        }
        let Some(place) = self.place()? else { return Ok(self.already_detached()) };
        let root = self.identity.open_topmost(&place)?;
        // Only while it is connected does the identity mean anything.
        if !self.is_connected() {
            return Ok(self.already_detached());
        }
        match &self.method {
            MountMethod::Direct => direct::unmount(root, &place)?,
            MountMethod::Fusermount(program) => {
                let program = program.clone();
                drop(root);
                self.unmount_by(&program, &place)?;
            }
        }
        self.is_detached = true;
        Ok(if self.is_connected() { DetachOutcome::Lazily } else { DetachOutcome::Clean })
    }

    /// Where the mount lies; nothing if it is gone from here.
    fn place(&self) -> Result<Option<PathBuf>, AttachError> {
        if !self.is_connected() {
            return Ok(None);
        }
        let place = MountTable::read()?.place_of(&self.identity);
        Ok(place.filter(|_| self.is_connected()))
    }

    fn already_detached(&mut self) -> DetachOutcome {
        if let Some(unmounter) = self.unmounter.take() {
            unmounter.cancel();
        }
        self.is_detached = true;
        DetachOutcome::Already
    }

    fn unmount_by(&mut self, program: &Path, place: &Path) -> Result<(), AttachError> {
        let mut message = self.unmounter.take().map(Unmounter::unmount).unwrap_or_default();
        if self.place()?.is_none() {
            return Ok(());
        }
        // It was started for the directory's old name, or somebody has killed it, or there was none.
        // In vain where it cannot gain privileges, and a sandbox may end whoever tries. Where not even this may be
        // asked, there is a sandbox.
        if rustix::thread::no_new_privs() == Ok(false) {
            if !message.is_empty() {
                message.push_str("; ");
            }
            message.push_str(&fusermount::unmount(program, place));
            if self.place()?.is_none() {
                return Ok(());
            }
        }
        Err(AttachError::StillMounted { directory: place.to_path_buf(), message })
    }
}

impl Drop for Attachment {
    fn drop(&mut self) {
        // There is nobody left to tell, and the kernel ends the file system with the device.
        drop(self.detach());
    }
}

/// Why the direct way is closed.
#[derive(Debug, Clone, Copy)]
enum DirectMountRefusal {
    /// The device may not be opened.
    Device(Errno),
    /// `mount(2)` is not permitted.
    Mount(Errno),
}

impl DirectMountRefusal {
    fn into_error(self) -> AttachError {
        match self {
            Self::Device(cause) => AttachError::DeviceNotPermitted { cause },
            Self::Mount(cause) => {
                AttachError::NoFusermount { cause, looked_in: fusermount::search_path() }
            }
        }
    }
}

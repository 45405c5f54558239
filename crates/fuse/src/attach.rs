//! Mounting and unmounting: [`attach`] takes a directory and returns an open `/dev/fuse`. This module never reads from
//! the device, and never touches a mount of somebody else. Called before a session starts and after it has ended.
//!
//! There are two methods, tried in this order:
//!
//! 1. *Direct*: this process opens the device and calls `mount(2)`. Permitted to root, also of a user namespace that
//!    owns its mount namespace.
//! 2. *fusermount3*, which is set-user-ID root. It mounts and sends the device back.
//!
//! A process that has set "no new privileges" gains nothing by running `fusermount3`, and one that has dropped its
//! capabilities cannot call `umount2(2)`. So the process that unmounts is started beforehand: see `fusermount` and
//! `unmount_helper`.

mod control;
mod direct;
mod error;
mod forked;
mod fusermount;
mod handover;
mod holder;
mod mount_table;
mod options;
mod restart_limiter;
mod service;
mod unmount_helper;

use std::fmt;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

pub use control::ControlSocket;
pub use error::AttachError;
pub use forked::{ChildProcess, ProcessEnd, fork_process, run_in_child};
pub use handover::{
    HandoverError, HandoverSocket, HeldCounts, HeldRecord, OfferedMount, Reattached, reattach,
};
pub use holder::{
    HeldMount, HoldEnd, HolderEvent, HolderPlan, HolderSignals, ReadyReport, ServerStart,
};
pub use mount_table::MountEntry;
pub use options::{AttachOptions, MountAccess, MountOwner, OptionMatch, RejectedOption};
pub use service::{ServiceManager, kept_descriptors};

use direct::{DirectMount, DirectMountRefusal, DirectUnmount, DirectUnmounted};
use fusermount::{Fusermount, Unmounter};
use mount_table::{MountDirectory, MountIdentity, MountTable};
use unmount_helper::{AtEnd, UnmountHelper};

/// Mounts a FUSE file system on `directory`, read-only. When this returns, FUSE_INIT can be read from the device. Until
/// it has a reply, processes that use the directory wait.
///
/// It starts other programs if this process is not permitted to mount, so call it before entering a sandbox.
///
/// # Errors
///
/// [`AttachError`] has one variant for each cause. Nothing is left mounted then.
pub fn attach(directory: &Path, options: &AttachOptions) -> Result<Attachment, AttachError> {
    options.check()?;
    let directory = MountDirectory::open(directory)?;
    let refusal = match direct::mount(&directory, options)? {
        DirectMount::Mounted(device) => {
            return Attachment::new(device, MountMethod::Direct, directory, options);
        }
        DirectMount::Refused(refusal) => refusal,
    };
    // fusermount3 mounts for its caller only.
    if options.owner.is_some() {
        let (DirectMountRefusal::Device(cause) | DirectMountRefusal::Mount(cause)) = refusal;
        let directory = directory.path().to_path_buf();
        return Err(AttachError::KernelRefused { directory, cause });
    }
    let Some(fusermount) = Fusermount::find() else {
        return Err(match refusal {
            DirectMountRefusal::Device(cause) => AttachError::DeviceNotPermitted { cause },
            DirectMountRefusal::Mount(cause) => {
                AttachError::NoFusermount { cause, looked_in: fusermount::search_path() }
            }
        });
    };
    let device = fusermount.mount(&directory, options)?;
    Attachment::new(device, MountMethod::Fusermount(fusermount.into_path()), directory, options)
}

/// Removes a mount on `directory` whose device is closed. There was no dead mount before, or it would not have been opened.
fn remove_dead_mount(directory: &MountDirectory, method: &MountMethod) {
    if !directory.has_dead_mount() {
        return;
    }
    // The error that is being returned is the more useful one.
    match method {
        MountMethod::Direct => direct::unmount_topmost(directory).unwrap_or_default(),
        MountMethod::Fusermount(program) => {
            drop(fusermount::unmount(program, directory.path()));
        }
    }
}

/// How a file system was mounted.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum MountMethod {
    /// This process called `mount(2)`.
    Direct,
    /// This program, a `fusermount3`, mounted.
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

/// The result of unmounting.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DetachOutcome {
    /// It was not in use: the kernel has ended the file system.
    Clean,
    /// The directory is free, but the file system is still in use: by open files, working directories, or another mount
    /// namespace. It needs its server until they are done.
    Lazily,
    /// Somebody else had unmounted it.
    Already,
}

/// A mounted file system: the device, and what is needed to unmount. Dropping it unmounts as [`Attachment::detach`] does,
/// but ignores errors.
#[derive(Debug)]
pub struct Attachment {
    device: OwnedFd,
    method: MountMethod,
    directory: PathBuf,
    identity: MountIdentity,
    unmounting: Unmounting,
    /// In a server: what keeps the process waiting that unmounts if holder and server have ended.
    lifeline: Option<OwnedFd>,
    auto_unmount: bool,
    /// The user whom the mount belongs to and who serves it, if not the one of this process.
    owner: Option<u32>,
    is_detached: bool,
    /// Whether this process serves for a holder: then the mount outlives the value.
    is_of_server: bool,
}

/// Who unmounts.
#[derive(Debug)]
enum Unmounting {
    /// This process, by `umount2(2)`.
    Direct(DirectUnmount),
    /// A process that was started for it, by `umount2(2)`.
    Helper(UnmountHelper),
    /// A process that was started for it, by `fusermount3`; or nobody, if it could not be started or has ended.
    Fusermount(Option<Unmounter>),
}

impl Attachment {
    fn new(
        device: OwnedFd,
        method: MountMethod,
        directory: MountDirectory,
        options: &AttachOptions,
    ) -> Result<Self, AttachError> {
        // If the mount is not found where it was made, somebody has moved the directory. Closing the device, which an
        // error does, ends the file system, and what is left is removed.
        let found = direct::above_standard_streams(device)
            .and_then(|device| Ok((MountIdentity::of_new_mount(&directory, options)?, device)));
        let (identity, device) = match found {
            Ok(found) => found,
            Err(error) => {
                remove_dead_mount(&directory, &method);
                return Err(error);
            }
        };
        let path = directory.path().to_path_buf();
        let unmounting = match &method {
            MountMethod::Fusermount(program) => {
                // Also if it leaves the mount at the end: a process that can gain no privileges does not unmount itself.
                let at_end = if options.auto_unmount { AtEnd::Unmount } else { AtEnd::Leave };
                let unmounter = Unmounter::start(program, &path, &identity.device(), at_end);
                Unmounting::Fusermount(unmounter.ok())
            }
            MountMethod::Direct => {
                Unmounting::Direct(DirectUnmount::new(directory, identity.clone()))
            }
        };
        Ok(Self {
            device,
            method,
            directory: path,
            identity,
            unmounting,
            lifeline: None,
            auto_unmount: options.auto_unmount,
            owner: options.owner.map(|owner| owner.user),
            is_detached: false,
            is_of_server: false,
        })
    }

    /// Starts a process that unmounts in place of this one, so that this one can give up the privilege to. A mount made by
    /// `fusermount3` has such a process already, started by [`attach`].
    ///
    /// `confine` runs in the new process, whose only descriptors besides `/dev/null` are those that it gets: it should
    /// drop all privileges but `CAP_SYS_ADMIN`. It must not start threads, print, or wait for other threads of this process.
    /// Of a mount with [another owner](AttachOptions::owned_by), it has the user of that one as its real user.
    ///
    /// The calling thread, which has called [`attach`], must live as long as the session, and store nothing in the page cache.
    /// If it ends and the process does not, the process counts as one that was killed and cannot end: all requests without a
    /// reply fail.
    /// [`Attachment::wait_for_unmount_helper`] has its result.
    ///
    /// # Errors
    /// The process cannot be started. This process unmounts itself then, as before.
    pub fn start_unmount_helper(
        &mut self,
        confine: impl FnOnce(&[BorrowedFd<'_>]) -> std::io::Result<()>,
    ) -> Result<(), AttachError> {
        let unmount = match &self.unmounting {
            Unmounting::Direct(unmount) => unmount,
            Unmounting::Fusermount(Some(unmounter)) => {
                unmounter.watch();
                return Ok(());
            }
            Unmounting::Fusermount(None) | Unmounting::Helper(_) => return Ok(()),
        };
        let helper = UnmountHelper::start(unmount, self.at_end(), self.owner, confine)?;
        self.unmounting = Unmounting::Helper(helper);
        Ok(())
    }

    /// Waits until the process that unmounts is confined.
    ///
    /// # Errors
    /// It could not be confined. It still unmounts.
    pub fn wait_for_unmount_helper(&self) -> Result<(), AttachError> {
        match &self.unmounting {
            Unmounting::Helper(helper) => helper.wait_until_confined(),
            Unmounting::Direct(_) | Unmounting::Fusermount(_) => Ok(()),
        }
    }

    /// The open device: read and write, close-on-exec, blocking.
    #[must_use]
    pub fn device(&self) -> &OwnedFd {
        &self.device
    }

    /// The descriptors that must stay open until the end.
    pub fn descriptors(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        let other = match &self.unmounting {
            Unmounting::Direct(unmount) => Some(unmount.descriptor()),
            Unmounting::Helper(helper) => Some(helper.descriptor()),
            Unmounting::Fusermount(unmounter) => unmounter.as_ref().map(Unmounter::descriptor),
        };
        let lifeline = self.lifeline.as_ref().map(AsFd::as_fd);
        [self.device.as_fd()].into_iter().chain(other).chain(lifeline)
    }

    /// How the file system was mounted.
    #[must_use]
    pub fn method(&self) -> &MountMethod {
        &self.method
    }

    /// The directory at the time of mounting: absolute, without symlinks.
    #[must_use]
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// Whether the file system is unmounted when this process ends in any way, SIGKILL included.
    #[must_use]
    pub fn unmounts_if_killed(&self) -> bool {
        match &self.unmounting {
            Unmounting::Direct(_) => false,
            Unmounting::Helper(_) => self.auto_unmount,
            Unmounting::Fusermount(unmounter) => unmounter.is_some() && self.auto_unmount,
        }
    }

    /// The device number of the file system, `major:minor`, by which `/sys/class/bdi` and others name it. It comes from the
    /// mount table, not from a path, and is valid as long as [`Attachment::is_connected`].
    #[must_use]
    pub fn device_number(&self) -> String {
        self.identity.device()
    }

    /// Whether the kernel still has the file system, possibly only because it is in use after an unmount.
    #[must_use]
    pub fn is_connected(&self) -> bool {
        direct::is_connected(&self.device)
    }

    /// Unmounts at once, even if the file system is in use. This sends no request to the file system, so it may be called
    /// before, while and after a session serves it. After success, further calls return [`DetachOutcome::Already`].
    ///
    /// # Errors
    ///
    /// [`AttachError::Covered`] if something else is mounted on top, [`AttachError::StillMounted`] if unmounting failed.
    /// It may be called again after either.
    pub fn detach(&mut self) -> Result<DetachOutcome, AttachError> {
        if self.is_detached {
            return Ok(DetachOutcome::Already);
        }
        let Some(mount_point) = self.mount_point()? else { return Ok(self.already_detached()) };
        match (&self.unmounting, &self.method) {
            (Unmounting::Direct(unmount), _) => {
                if unmount.run()? == DirectUnmounted::Already {
                    return Ok(self.already_detached());
                }
            }
            (Unmounting::Helper(helper), _) => {
                if helper.unmount(&mount_point)? == DirectUnmounted::Already {
                    return Ok(self.already_detached());
                }
            }
            (Unmounting::Fusermount(_), MountMethod::Fusermount(program)) => {
                let program = program.clone();
                // The program unmounts what is topmost.
                drop(self.identity.open_topmost(&mount_point)?);
                // The identity means something only while the device is connected.
                if !self.is_connected() {
                    return Ok(self.already_detached());
                }
                self.unmount_by(&program, &mount_point)?;
            }
            // `new` pairs the method with who unmounts.
            (Unmounting::Fusermount(_), MountMethod::Direct) => {}
        }
        self.is_detached = true;
        Ok(if self.is_connected() { DetachOutcome::Lazily } else { DetachOutcome::Clean })
    }

    /// The present mount point; `None` if the mount is not in this mount namespace any more.
    fn mount_point(&self) -> Result<Option<PathBuf>, AttachError> {
        if !self.is_connected() {
            return Ok(None);
        }
        let mount_point = MountTable::read()?.mount_point_of(&self.identity);
        Ok(mount_point.filter(|_| self.is_connected()))
    }

    fn already_detached(&mut self) -> DetachOutcome {
        match &mut self.unmounting {
            Unmounting::Direct(_) => {}
            Unmounting::Helper(helper) => helper.cancel(),
            Unmounting::Fusermount(unmounter) => {
                if let Some(unmounter) = unmounter.take() {
                    unmounter.cancel();
                }
            }
        }
        self.is_detached = true;
        DetachOutcome::Already
    }

    fn unmount_by(&mut self, program: &Path, mount_point: &Path) -> Result<(), AttachError> {
        let unmounter = match &mut self.unmounting {
            Unmounting::Fusermount(unmounter) => unmounter.take(),
            Unmounting::Direct(_) | Unmounting::Helper(_) => None,
        };
        let mut message = unmounter.map(Unmounter::unmount).unwrap_or_default();
        if self.mount_point()?.is_none() {
            return Ok(());
        }
        // The unmounter knew an old name of the directory, or was killed, or never started. Running fusermount3 now
        // gains nothing with "no new privileges", and in a sandbox it may end this process. An error of the query means
        // that there is a sandbox.
        if rustix::thread::no_new_privs() == Ok(false) {
            if !message.is_empty() {
                message.push_str("; ");
            }
            message.push_str(&fusermount::unmount(program, mount_point));
            if self.mount_point()?.is_none() {
                return Ok(());
            }
        }
        if message.is_empty() {
            message.push_str("the process that unmounts has ended or does not answer");
        }
        Err(AttachError::StillMounted { directory: mount_point.to_path_buf(), message })
    }
}

impl Drop for Attachment {
    fn drop(&mut self) {
        // The holder unmounts if its server has failed for good.
        if !self.is_of_server {
            // Nobody can handle an error here, and the kernel ends the file system when the device is closed.
            drop(self.detach());
        }
    }
}

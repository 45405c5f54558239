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
//! `direct`.

mod direct;
mod forked;
mod fusermount;
mod handover;
mod holder;
mod mount;
mod sockets;

use std::ffi::OsString;
use std::fmt;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::ExitStatus;
use std::time::Duration;

use rustix::io::Errno;

pub use forked::{ChildProcess, ProcessEnd, fork_process, run_in_child, thread_count};
pub use handover::{
    HandoverError, HandoverSocket, HeldCounts, HeldRecord, OfferedMount, Reattached, reattach,
};
pub use holder::{
    HeldMount, HoldEnd, HolderEvent, HolderPlan, HolderSignals, ReadyReport, ServerStart,
};
pub use mount::{AttachOptions, MountAccess, MountEntry, MountOwner, OptionMatch, RejectedOption};
pub use sockets::{ControlSocket, ServiceManager, kept_descriptors};

use direct::{DirectMount, DirectMountRefusal, DirectUnmount, DirectUnmounted, UnmountHelper};
use forked::AtEnd;
use fusermount::{Fusermount, Unmounter};
use mount::{MountDirectory, MountIdentity, MountTable};

/// The device.
const DEVICE: &str = "/dev/fuse";

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
        confine: impl FnOnce(&[BorrowedFd<'_>]) -> io::Result<()>,
    ) -> Result<(), AttachError> {
        let unmount = match &self.unmounting {
            Unmounting::Direct(unmount) => unmount,
            Unmounting::Fusermount(Some(unmounter)) => {
                unmounter.observe_parent();
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

/// Why mounting or unmounting failed: one variant for each cause, with a remedy in its message.
#[derive(Debug)]
#[non_exhaustive]
pub enum AttachError {
    /// An option was rejected.
    Option(RejectedOption),
    /// The directory does not exist.
    DirectoryMissing {
        /// As it was given.
        directory: PathBuf,
    },
    /// It, or a part of its path, is not a directory.
    NotADirectory {
        /// As it was given.
        directory: PathBuf,
    },
    /// It is in `/proc`, which mounting itself needs.
    InProc {
        /// As it was given.
        directory: PathBuf,
    },
    /// It cannot be opened.
    DirectoryUnusable {
        /// As it was given.
        directory: PathBuf,
        /// What the kernel answered.
        cause: Errno,
    },
    /// This user is not permitted to mount there.
    DirectoryNotPermitted {
        /// Absolute, without symlinks.
        directory: PathBuf,
        /// The messages of `fusermount3`.
        message: String,
    },
    /// This user has mounted a FUSE file system there already, and is not permitted to mount over it.
    AlreadyMounted {
        /// Absolute, without symlinks.
        directory: PathBuf,
        /// What is mounted there, such as the path of an image.
        source: OsString,
    },
    /// A FUSE file system whose server has died is mounted there.
    Stale {
        /// As it was given.
        directory: PathBuf,
    },
    /// The directory was moved or mounted over during the mount.
    Moved {
        /// Where it was.
        directory: PathBuf,
    },
    /// There is no FUSE.
    NoDevice {
        /// Whether `/dev/fuse` exists.
        has_node: bool,
        /// Whether the kernel has FUSE.
        is_known: bool,
    },
    /// Opening the device is not permitted.
    DeviceNotPermitted {
        /// EACCES by its mode, EPERM by the device rules of a container.
        cause: Errno,
    },
    /// `mount(2)` is not permitted, and there is no `fusermount3`.
    NoFusermount {
        /// What the kernel answered.
        cause: Errno,
        /// The directories that were searched.
        looked_in: Vec<PathBuf>,
    },
    /// `fusermount3` exists but is not permitted to mount.
    NotPrivileged {
        /// The program.
        program: PathBuf,
        /// Its messages.
        message: String,
    },
    /// `/etc/fuse.conf` does not permit `allow_other`.
    AllowOtherForbidden {
        /// The messages of `fusermount3`.
        message: String,
    },
    /// The limit on FUSE mounts in `/etc/fuse.conf` is reached.
    MountLimit {
        /// The messages of `fusermount3`.
        message: String,
    },
    /// The limit on mounts of the sysctl `fs.mount-max` is reached.
    NamespaceFull,
    /// `fusermount3` failed for another reason.
    FusermountRefused {
        /// The program.
        program: PathBuf,
        /// Its messages.
        message: String,
        /// Its exit status, if known.
        status: Option<ExitStatus>,
    },
    /// `fusermount3` did not finish in time and was killed.
    FusermountHung {
        /// The program.
        program: PathBuf,
        /// The time limit.
        limit: Duration,
    },
    /// The user or the group of this process is not mapped in its user namespace.
    UnmappedUser,
    /// `/proc` is not mounted.
    NoProc,
    /// The kernel refused the mount.
    KernelRefused {
        /// Absolute, without symlinks.
        directory: PathBuf,
        /// The error of the kernel.
        cause: Errno,
    },
    /// Something else is mounted on top.
    Covered {
        /// The mount point.
        directory: PathBuf,
    },
    /// Unmounting failed.
    StillMounted {
        /// The mount point.
        directory: PathBuf,
        /// Why.
        message: String,
    },
    /// The process that unmounts could not be confined.
    UnmountHelper {
        /// Why.
        message: String,
    },
    /// A system call failed that fails only when the system is short of resources.
    System {
        /// The operation, such as "open a socket".
        what: &'static str,
        /// The error.
        cause: Errno,
    },
}

impl fmt::Display for AttachError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::DirectoryMissing { .. }
            | Self::NotADirectory { .. }
            | Self::InProc { .. }
            | Self::DirectoryUnusable { .. }
            | Self::DirectoryNotPermitted { .. }
            | Self::AlreadyMounted { .. }
            | Self::Stale { .. }
            | Self::Moved { .. }
            | Self::KernelRefused { .. }
            | Self::Covered { .. }
            | Self::StillMounted { .. } => self.fmt_directory(f),
            Self::NoDevice { .. } | Self::DeviceNotPermitted { .. } => self.fmt_device(f),
            Self::NoFusermount { .. }
            | Self::NotPrivileged { .. }
            | Self::AllowOtherForbidden { .. }
            | Self::MountLimit { .. }
            | Self::FusermountRefused { .. }
            | Self::FusermountHung { .. } => self.fmt_fusermount(f),
            Self::UnmountHelper { message } => {
                write!(f, "the process that unmounts cannot enter its sandbox: {message}")
            }
            Self::Option(rejected) => rejected.fmt(f),
            Self::NamespaceFull => {
                f.write_str("cannot mount: too many mounts in this mount namespace: unmount some, or raise the sysctl fs.mount-max")
            }
            Self::UnmappedUser => f.write_str(
                "cannot mount: the user or the group of this process is not mapped in its user namespace: map it, as \
                 `unshare --map-root-user --mount` does",
            ),
            Self::NoProc => f.write_str("cannot mount: /proc is not mounted: `mount -t proc proc /proc`"),
            Self::System { what, cause } => write!(f, "cannot {what}: {cause}"),
        }
    }
}

impl AttachError {
    fn fmt_directory(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::DirectoryMissing { directory } => {
                write!(
                    f,
                    "cannot mount on {directory:?}: there is no such directory: `mkdir -p {directory:?}`"
                )
            }
            Self::NotADirectory { directory } => {
                write!(f, "cannot mount on {directory:?}: not a directory")
            }
            Self::InProc { directory } => {
                write!(
                    f,
                    "cannot mount on {directory:?}: it is in /proc, which must stay accessible; use another directory"
                )
            }
            Self::DirectoryUnusable { directory, cause } => {
                write!(f, "cannot mount on {directory:?}: {cause}")
            }
            Self::DirectoryNotPermitted { directory, message } => write!(
                f,
                "cannot mount on {directory:?}: not permitted to this user: use a directory that you own ({message})"
            ),
            Self::AlreadyMounted { directory, source } => write!(
                f,
                "cannot mount on {directory:?}: {source:?} is mounted there already: `fusermount3 -u {directory:?}` \
                 unmounts it"
            ),
            Self::Stale { directory } => write!(
                f,
                "cannot mount on {directory:?}: a FUSE file system whose server has died is mounted there: \
                 `fusermount3 -u {directory:?}`, or as root `umount {directory:?}`"
            ),
            Self::Moved { directory } => {
                write!(
                    f,
                    "cannot mount on {directory:?}: the directory was moved or mounted over at the same time"
                )
            }
            Self::KernelRefused { directory, cause } => {
                write!(f, "cannot mount on {directory:?}: the kernel refused: {cause}")
            }
            Self::Covered { directory } => {
                write!(
                    f,
                    "cannot unmount {directory:?}: another file system is mounted on top: unmount that first"
                )
            }
            Self::StillMounted { directory, message } => write!(
                f,
                "cannot unmount {directory:?}: {message}: `fusermount3 -u {directory:?}`, or as root `umount {directory:?}`"
            ),
            _ => Ok(()),
        }
    }

    fn fmt_device(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoDevice { has_node: false, is_known: true } => f.write_str(
                "cannot mount: /dev/fuse is missing though the kernel has FUSE: start the container with \
                 `--device /dev/fuse`, or as root `mknod /dev/fuse c 10 229`",
            ),
            Self::NoDevice { .. } => {
                f.write_str("cannot mount: this kernel has no FUSE, or its module is not loaded: as root `modprobe fuse`")
            }
            Self::DeviceNotPermitted { cause: Errno::PERM } => f.write_str(
                "cannot mount: the device rules of this container forbid opening /dev/fuse: start it with \
                 `--device /dev/fuse`",
            ),
            Self::DeviceNotPermitted { cause } => write!(
                f,
                "cannot mount: cannot open /dev/fuse: {cause}: as root `chmod 666 /dev/fuse`, or add this user to the \
                 device's group"
            ),
            _ => Ok(()),
        }
    }

    fn fmt_fusermount(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoFusermount { cause, looked_in } => {
                write!(
                    f,
                    "cannot mount: mount(2): {cause}; and neither fusermount3 nor fusermount is in {}: install the \
                     package fuse3, or run this as root or under `unshare --map-root-user --mount`",
                    PathList(looked_in)
                )
            }
            Self::NotPrivileged { program, message } => write!(
                f,
                "cannot mount: {} is not permitted to mount: it is not set-user-ID root, or this container lacks \
                 CAP_SYS_ADMIN, or this process has set \"no new privileges\" ({message}); it may work under \
                 `unshare --map-root-user --mount`",
                program.display()
            ),
            Self::AllowOtherForbidden { message } => write!(
                f,
                "cannot mount for other users: as root add the line user_allow_other to /etc/fuse.conf, or omit \
                 allow_other ({message})"
            ),
            Self::MountLimit { message } => {
                write!(
                    f,
                    "cannot mount: too many FUSE mounts: unmount some, or raise mount_max in /etc/fuse.conf ({message})"
                )
            }
            // Its messages begin with its name.
            Self::FusermountRefused { message, .. } if !message.is_empty() => {
                write!(f, "cannot mount: {message}")
            }
            Self::FusermountRefused { program, status: Some(status), .. } => {
                write!(f, "cannot mount: {} ended without mounting: {status}", program.display())
            }
            Self::FusermountRefused { program, .. } => {
                write!(f, "cannot mount: {} ended without mounting", program.display())
            }
            Self::FusermountHung { program, limit } => {
                write!(
                    f,
                    "cannot mount: {} did not finish within {} s",
                    program.display(),
                    limit.as_secs()
                )
            }
            _ => Ok(()),
        }
    }
}

impl std::error::Error for AttachError {}

impl From<RejectedOption> for AttachError {
    fn from(rejected: RejectedOption) -> Self {
        Self::Option(rejected)
    }
}

/// Shows directories separated by commas.
struct PathList<'a>(&'a [PathBuf]);

impl fmt::Display for PathList<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut separator = "";
        for place in self.0 {
            write!(f, "{separator}{}", Path::display(place))?;
            separator = ", ";
        }
        Ok(())
    }
}

/// The error for a file of `/proc` that cannot be read.
fn proc_unreadable(source: &io::Error) -> AttachError {
    match source.kind() {
        io::ErrorKind::NotFound => AttachError::NoProc,
        _ => AttachError::System { what: "read /proc", cause: errno(source) },
    }
}

/// The errno of an error of the standard library; EIO if it has none.
fn errno(source: &io::Error) -> Errno {
    Errno::from_io_error(source).unwrap_or(Errno::IO)
}

/// The error for a device that does not exist.
fn no_device() -> AttachError {
    AttachError::NoDevice { has_node: Path::new(DEVICE).exists(), is_known: kernel_knows_fuse() }
}

/// Whether this kernel has FUSE, built in or as a loaded module.
fn kernel_knows_fuse() -> bool {
    std::fs::read_to_string("/proc/filesystems")
        .is_ok_and(|list| list.lines().any(|line| line == "nodev\tfuse"))
}

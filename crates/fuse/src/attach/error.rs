//! Errors of mounting and unmounting: one variant for each cause, with a remedy in its message. Returned by all of
//! `attach`.

use std::ffi::OsString;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitStatus;
use std::time::Duration;

use rustix::io::Errno;

use super::options::RejectedOption;

pub(super) const DEVICE: &str = "/dev/fuse";

/// Why mounting or unmounting failed.
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
pub(super) fn proc_unreadable(source: &io::Error) -> AttachError {
    match source.kind() {
        io::ErrorKind::NotFound => AttachError::NoProc,
        _ => AttachError::System { what: "read /proc", cause: errno(source) },
    }
}

/// The errno of an error of the standard library; EIO if it has none.
pub(super) fn errno(source: &io::Error) -> Errno {
    Errno::from_io_error(source).unwrap_or(Errno::IO)
}

/// The error for a device that does not exist.
pub(super) fn no_device() -> AttachError {
    AttachError::NoDevice { has_node: Path::new(DEVICE).exists(), is_known: kernel_knows_fuse() }
}

/// Whether this kernel has FUSE, built in or as a loaded module.
fn kernel_knows_fuse() -> bool {
    std::fs::read_to_string("/proc/filesystems")
        .is_ok_and(|list| list.lines().any(|line| line == "nodev\tfuse"))
}

//! Why mounting or unmounting failed: one variant for each thing that can be missing, and in its message
//! the way out. It decides nothing. All of `attach` returns it.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitStatus;
use std::time::Duration;

use rustix::io::Errno;

use super::options::RejectedOption;

/// Why mounting or unmounting failed.
#[derive(Debug)]
#[non_exhaustive]
pub enum AttachError {
    /// An option cannot be had.
    Option(RejectedOption),
    /// There is no such directory.
    DirectoryMissing {
        /// As it was given.
        directory: PathBuf,
    },
    /// It is something else, or something on the way to it is.
    NotADirectory {
        /// As it was given.
        directory: PathBuf,
    },
    /// It lies in `/proc`, which mounting itself needs.
    InProc {
        /// As it was given.
        directory: PathBuf,
    },
    /// It could not be opened.
    DirectoryUnusable {
        /// As it was given.
        directory: PathBuf,
        /// What the kernel answered.
        cause: Errno,
    },
    /// This user may not mount there.
    DirectoryNotPermitted {
        /// Absolute, without symlinks.
        directory: PathBuf,
        /// What `fusermount3` said.
        message: String,
    },
    /// A FUSE mount lies there whose server has died.
    Stale {
        /// As it was given.
        directory: PathBuf,
    },
    /// The directory was moved or mounted over while it was being mounted on.
    Moved {
        /// Where it was.
        directory: PathBuf,
    },
    /// There is no FUSE here.
    NoDevice {
        /// Whether `/dev/fuse` is there, though dead.
        has_node: bool,
        /// Whether the kernel has FUSE, so that only the device is missing.
        is_known: bool,
    },
    /// The device may not be opened.
    DeviceNotPermitted {
        /// EACCES by its mode, EPERM by a container's rules.
        cause: Errno,
    },
    /// `mount(2)` is not permitted, and nobody is there to do it for us.
    NoFusermount {
        /// What the kernel answered.
        cause: Errno,
        /// Where it would have been found.
        looked_in: Vec<PathBuf>,
    },
    /// `fusermount3` is there and not allowed to mount.
    NotPrivileged {
        /// The program.
        program: PathBuf,
        /// What it said.
        message: String,
    },
    /// `/etc/fuse.conf` does not let users mount for everybody.
    AllowOtherForbidden {
        /// What `fusermount3` said.
        message: String,
    },
    /// Too many FUSE mounts by `/etc/fuse.conf`.
    MountLimit {
        /// What `fusermount3` said.
        message: String,
    },
    /// Too many mounts by the sysctl `fs.mount-max`.
    NamespaceFull,
    /// `fusermount3` refused for another reason.
    FusermountRefused {
        /// The program.
        program: PathBuf,
        /// What it said.
        message: String,
        /// How it ended, if that is known.
        status: Option<ExitStatus>,
    },
    /// `fusermount3` did not answer in time, and was ended.
    FusermountHung {
        /// The program.
        program: PathBuf,
        /// How long it had.
        limit: Duration,
    },
    /// The user or group of this process has no number in its user namespace.
    UnmappedUser,
    /// `/proc` is not mounted.
    NoProc,
    /// The kernel refused the mount.
    KernelRefused {
        /// Absolute, without symlinks.
        directory: PathBuf,
        /// What it answered.
        cause: Errno,
    },
    /// Something else is mounted on top, which is not ours to unmount.
    Covered {
        /// Where the mount lies.
        directory: PathBuf,
    },
    /// Unmounting did not work.
    StillMounted {
        /// Where the mount lies.
        directory: PathBuf,
        /// Why, by whoever tried.
        message: String,
    },
    /// The system refused something that it always grants but under stress.
    System {
        /// What was wanted, as in "open a socket".
        what: &'static str,
        /// What it answered.
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
            Self::Option(rejected) => rejected.fmt(f),
            Self::NamespaceFull => {
                f.write_str("too many mounts in this mount namespace: unmount some, or raise the sysctl fs.mount-max")
            }
            Self::UnmappedUser => f.write_str(
                "cannot mount: the user or group of this process has no number in its user namespace: map it, as \
                 `unshare --map-root-user --mount` does",
            ),
            Self::NoProc => f.write_str("cannot mount: /proc is not mounted here: `mount -t proc proc /proc`"),
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
                write!(f, "cannot mount on {directory:?}: it is not a directory")
            }
            Self::InProc { directory } => {
                write!(f, "cannot mount on {directory:?}: nothing can be served in /proc")
            }
            Self::DirectoryUnusable { directory, cause } => {
                write!(f, "cannot mount on {directory:?}: {cause}")
            }
            Self::DirectoryNotPermitted { directory, message } => write!(
                f,
                "cannot mount on {directory:?}: this user may not: take a directory of your own ({message})"
            ),
            Self::Stale { directory } => write!(
                f,
                "cannot mount on {directory:?}: a FUSE mount lies there whose server has died: \
                 `fusermount3 -u {directory:?}`, or as root `umount {directory:?}`"
            ),
            Self::Moved { directory } => {
                write!(
                    f,
                    "cannot mount on {directory:?}: somebody moved it, or mounted over it, at the same time"
                )
            }
            Self::KernelRefused { directory, cause } => {
                write!(f, "cannot mount on {directory:?}: the kernel refused: {cause}")
            }
            Self::Covered { directory } => {
                write!(
                    f,
                    "cannot unmount {directory:?}: something else is mounted on top of it: unmount that first"
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
                "cannot mount: opening /dev/fuse is forbidden by this container's device rules: start it with \
                 `--device /dev/fuse`",
            ),
            Self::DeviceNotPermitted { cause } => write!(
                f,
                "cannot mount: opening /dev/fuse: {cause}: as root `chmod 666 /dev/fuse`, or add this user to the \
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
                    "cannot mount: mount(2): {cause}; and there is neither fusermount3 nor fusermount in {}: install \
                     the package fuse3, or run this as root or under `unshare --map-root-user --mount`",
                    PathList(looked_in)
                )
            }
            Self::NotPrivileged { program, message } => write!(
                f,
                "cannot mount: {} is not allowed to: it is not set-user-ID root, or this container lacks \
                 CAP_SYS_ADMIN, or this process has given up gaining privileges ({message}); it may work under \
                 `unshare --map-root-user --mount`",
                program.display()
            ),
            Self::AllowOtherForbidden { message } => write!(
                f,
                "cannot mount for other users: as root put the line user_allow_other into /etc/fuse.conf, or leave \
                 out allow_other ({message})"
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
                    "cannot mount: {} did not answer within {} s",
                    program.display(),
                    limit.as_secs()
                )
            }
            _ => Ok(()),
        }
    }
}

impl std::error::Error for AttachError {}

/// Directories as a list.
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

/// The number behind an error of the standard library; EIO where there is none.
pub(super) fn errno(source: &io::Error) -> Errno {
    Errno::from_io_error(source).unwrap_or(Errno::IO)
}

//! The direct way: `mount(2)` and `umount2(2)` by this process itself. It never follows a name twice:
//! both calls take the path of an open descriptor. `attach` and `Attachment::detach` call it.

use std::ffi::CString;
use std::fmt::Write as _;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;

use rustix::io::Errno;
use rustix::mount::{MountFlags, UnmountFlags, unmount as umount2};
use rustix::process::{getgid, getuid};

use super::directory::{MountDirectory, proc_path};
use super::options::{AttachOptions, MountAccess};
use super::{AttachError, DirectMountRefusal, device};

/// The type of the root inode, as the kernel wants it told: a directory.
const ROOT_MODE: &str = "40000";

/// What came of trying.
#[derive(Debug)]
pub(super) enum DirectMount {
    /// It is mounted.
    Mounted(OwnedFd),
    /// This process may not; another way may be open.
    Refused(DirectMountRefusal),
}

pub(super) fn mount(
    directory: &MountDirectory,
    options: &AttachOptions,
) -> Result<DirectMount, AttachError> {
    let device = match device::open_device()? {
        Ok(device) => device,
        Err(refusal) => return Ok(DirectMount::Refused(refusal)),
    };
    let data = data(&device, options)?;
    let file_system_type = format!("fuse.{}", options.subtype);
    let mounted = rustix::mount::mount(
        options.source.as_os_str(),
        directory.exact_path(),
        file_system_type,
        flags(options),
        data.as_c_str(),
    );
    match mounted {
        Ok(()) => Ok(DirectMount::Mounted(device)),
        // Security modules answer EACCES where capabilities answer EPERM.
        Err(cause @ (Errno::PERM | Errno::ACCESS)) => {
            Ok(DirectMount::Refused(DirectMountRefusal::Mount(cause)))
        }
        Err(Errno::NODEV) => Err(device::no_device()),
        Err(Errno::NOSPC) => Err(AttachError::NamespaceFull),
        Err(Errno::INVAL) if is_unmapped() => Err(AttachError::UnmappedUser),
        Err(cause) => {
            Err(AttachError::KernelRefused { directory: directory.path().to_path_buf(), cause })
        }
    }
}

fn flags(options: &AttachOptions) -> MountFlags {
    let mut flags = MountFlags::RDONLY;
    flags.set(MountFlags::NOSUID, !options.suid);
    flags.set(MountFlags::NODEV, !options.dev);
    flags.set(MountFlags::NOEXEC, !options.exec);
    flags
}

fn data(device: &OwnedFd, options: &AttachOptions) -> Result<CString, AttachError> {
    let mut data = format!(
        "fd={},rootmode={ROOT_MODE},user_id={},group_id={}",
        device.as_raw_fd(),
        getuid().as_raw(),
        getgid().as_raw()
    );
    if options.default_permissions {
        data.push_str(",default_permissions");
    }
    if options.allow == MountAccess::Everybody {
        data.push_str(",allow_other");
    }
    if let Some(max_read) = options.max_read {
        // Writing to a string cannot fail.
        write!(data, ",max_read={max_read}").unwrap_or_default();
    }
    CString::new(data)
        .map_err(|_| AttachError::System { what: "write the mount options", cause: Errno::INVAL })
}

/// Whether the user or the group of this process has no number in its user namespace.
fn is_unmapped() -> bool {
    let is_missing = |map: &str, id: u32| {
        std::fs::read_to_string(map).is_ok_and(|text| {
            !text.lines().any(|line| {
                let mut numbers =
                    line.split_whitespace().map(|number| number.parse::<u32>().unwrap_or(0));
                let (first, length) = (numbers.next().unwrap_or(0), numbers.nth(1).unwrap_or(0));
                id.checked_sub(first).is_some_and(|offset| offset < length)
            })
        })
    };
    is_missing("/proc/self/uid_map", getuid().as_raw())
        || is_missing("/proc/self/gid_map", getgid().as_raw())
}

/// Unmounts exactly the mount whose root is open here. Through a descriptor only a lazy unmount is
/// possible, since the descriptor itself keeps the mount busy; if it is the only one, the file system
/// ends as it is closed.
pub(super) fn unmount(root: OwnedFd, place: &Path) -> Result<(), AttachError> {
    let unmounted = umount2(proc_path(&root), UnmountFlags::DETACH);
    drop(root);
    unmounted.map_err(|cause| AttachError::StillMounted {
        directory: place.to_path_buf(),
        message: cause.to_string(),
    })
}

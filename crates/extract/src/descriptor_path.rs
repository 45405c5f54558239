//! A path to an open file, for system calls that take no descriptor made with `O_PATH`: those that set extended
//! attributes, and before Linux 6.6 the one that sets a mode. Called by `metadata`.
//!
//! The path is `/proc/self/fd/N`. Where `/proc` is not mounted, as in an empty chroot, the call is made with a path of an
//! instance of procfs that is mounted nowhere (Linux 5.2): a thread enters it with a working directory of its own. A name
//! of the entry will not do: before the call, another process could put another file there.
#![allow(unsafe_code, reason = "unshare(2) has no safe binding")]

use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::panic::resume_unwind;
use std::sync::OnceLock;
use std::thread;

use rustix::io::{self, Errno};
use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsmount, fsopen};
use rustix::process::fchdir;
use rustix::thread::{UnshareFlags, unshare_unsafe};

use crate::error::ErrorKind;

/// Why a call by path failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DescriptorPathError {
    /// The call itself failed.
    Call(Errno),
    /// There is no path to the file: `/proc` is not mounted, and it cannot be mounted aside.
    NoProc,
}

impl DescriptorPathError {
    /// The error of the operation.
    pub(crate) fn during(self, operation: &'static str) -> ErrorKind {
        match self {
            Self::Call(errno) => ErrorKind::output(operation)(errno),
            Self::NoProc => ErrorKind::NoProc { operation },
        }
    }
}

/// Whether open files have a path in `/proc`.
pub(crate) fn has_descriptor_paths() -> bool {
    static HAS: OnceLock<bool> = OnceLock::new();
    *HAS.get_or_init(|| rustix::fs::access("/proc/self/fd", rustix::fs::Access::EXISTS).is_ok())
}

/// Makes a call with a path to `fd`, which must not follow a symlink that it leads to.
///
/// # Errors
/// Those of the call.
pub(crate) fn with_path(
    fd: BorrowedFd<'_>,
    call: impl Fn(&[u8]) -> io::Result<()> + Sync,
) -> Result<(), DescriptorPathError> {
    let number = fd.as_raw_fd();
    match call(format!("/proc/self/fd/{number}").as_bytes()) {
        // An open file has a path there, also when it has been removed.
        Err(Errno::NOENT | Errno::NOTDIR) => without_proc(&format!("self/fd/{number}"), &call),
        done => done.map_err(DescriptorPathError::Call),
    }
}

/// Makes a call with `path` in a procfs that is mounted nowhere.
fn without_proc(
    path: &str,
    call: &(impl Fn(&[u8]) -> io::Result<()> + Sync),
) -> Result<(), DescriptorPathError> {
    let proc = detached_proc().map_err(|_| DescriptorPathError::NoProc)?;
    let body = || {
        enter(&proc).map_err(|_| DescriptorPathError::NoProc)?;
        call(path.as_bytes()).map_err(DescriptorPathError::Call)
    };
    thread::scope(|scope| {
        let thread = thread::Builder::new().name("erofs_proc".into()).spawn_scoped(scope, body);
        let thread = thread.map_err(|_| DescriptorPathError::Call(Errno::AGAIN))?;
        thread.join().unwrap_or_else(|panic| resume_unwind(panic))
    })
}

fn detached_proc() -> io::Result<OwnedFd> {
    let context = fsopen("proc", FsOpenFlags::FSOPEN_CLOEXEC)?;
    fsconfig_create(&context)?;
    let attributes = MountAttrFlags::MOUNT_ATTR_NOSUID
        | MountAttrFlags::MOUNT_ATTR_NODEV
        | MountAttrFlags::MOUNT_ATTR_NOEXEC;
    fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, attributes)
}

/// Makes a directory the working directory of the calling thread, and of no other one from now on.
fn enter(directory: &OwnedFd) -> io::Result<()> {
    // SAFETY: only what CLONE_FS names is unshared (root, working directory, umask), which no code keeps references
    // to; descriptors and memory stay shared. The calling thread was started for this and ends after one call.
    unsafe { unshare_unsafe(UnshareFlags::FS) }?;
    fchdir(directory)
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;
    use std::os::unix::fs::{MetadataExt, symlink};

    use rustix::fs::{CWD, FileType, Mode, OFlags, XattrFlags, lgetxattr, mknodat, openat};

    use super::*;

    /// Whether this process may mount procfs aside; only root may, here.
    fn has_detached_proc() -> bool {
        let has = detached_proc().is_ok();
        assert!(has || !rustix::process::geteuid().is_root() || cfg!(miri), "root has it");
        has
    }

    fn pin(path: &std::path::Path) -> OwnedFd {
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        openat(CWD, path, flags, Mode::empty()).unwrap()
    }

    fn aside(
        fd: &OwnedFd,
        call: impl Fn(&[u8]) -> io::Result<()> + Sync,
    ) -> Result<(), DescriptorPathError> {
        without_proc(&format!("self/fd/{}", fd.as_fd().as_raw_fd()), &call)
    }

    #[test]
    fn a_pinned_entry_is_changed_without_proc_even_when_its_name_has_moved() {
        if !has_detached_proc() {
            return;
        }
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        std::fs::write(path("victim"), "precious").unwrap();
        mknodat(CWD, path("fifo"), FileType::Fifo, Mode::from_raw_mode(0o600), 0).unwrap();
        symlink("victim", path("link")).unwrap();
        let (fifo, link) = (pin(&path("fifo")), pin(&path("link")));
        for name in ["fifo", "link"] {
            std::fs::rename(path(name), path(&format!("moved-{name}"))).unwrap();
            std::fs::hard_link(path("victim"), path(name)).unwrap();
        }
        let before = std::fs::metadata(path("victim")).unwrap();
        let here = std::env::current_dir().unwrap();
        aside(&fifo, |path| rustix::fs::chmod(path, Mode::from_raw_mode(0o640))).unwrap();
        assert_eq!(std::fs::metadata(path("moved-fifo")).unwrap().mode() & 0o7777, 0o640);
        let name = "trusted.note";
        let set = |path: &[u8]| rustix::fs::setxattr(path, name, b"value", XattrFlags::empty());
        match aside(&link, set) {
            // The file system has no such attributes.
            Err(DescriptorPathError::Call(Errno::OPNOTSUPP)) => {}
            set => {
                set.unwrap();
                let mut value = [0_u8; 16];
                assert_eq!(lgetxattr(path("moved-link"), name, &mut value), Ok(5));
                assert_eq!(lgetxattr(path("link"), name, &mut value), Err(Errno::NODATA));
            }
        }
        let after = std::fs::metadata(path("victim")).unwrap();
        assert_eq!((after.mode(), after.ctime_nsec()), (before.mode(), before.ctime_nsec()));
        assert_eq!(std::env::current_dir().unwrap(), here);
    }

    #[test]
    fn the_error_is_that_of_the_call() {
        if !has_detached_proc() {
            return;
        }
        let fd = pin(std::path::Path::new("/"));
        let result = aside(&fd, |_| Err(Errno::DQUOT));
        assert_eq!(result, Err(DescriptorPathError::Call(Errno::DQUOT)));
    }

    #[test]
    fn a_missing_proc_is_named_with_its_remedy() {
        let error = DescriptorPathError::NoProc.during("cannot set the mode").to_string();
        assert!(error.starts_with("cannot set the mode: ") && error.contains("/proc"), "{error}");
    }
}

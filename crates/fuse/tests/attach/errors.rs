//! Errors: each has its variant and a remedy in its message.

use std::fs;
use std::os::fd::AsRawFd;
use std::path::Path;

use ferrofs_fuse::attach::{AttachError, MountAccess, attach};
use rustix::fs::{Mode, OFlags, open};
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};
use rustix::process::geteuid;

use crate::mounts::{self, alone, lines_of, options, skip};

#[test]
fn a_directory_that_is_missing_is_named() {
    let _alone = alone();
    let folder = tempfile::tempdir().expect("a folder");
    let error = attach(&folder.path().join("absent\n"), &options()).expect_err("there is none");
    assert!(matches!(error, AttachError::DirectoryMissing { .. }), "{error}");
    assert!(
        error.to_string().contains("absent\\n\": there is no such directory: `mkdir -p"),
        "{error}"
    );
}

#[test]
fn a_file_is_not_mounted_on() {
    let _alone = alone();
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("file");
    fs::write(&file, b"").expect("a file");
    for path in [file.clone(), file.join("below")] {
        let error = attach(&path, &options()).expect_err("it is a file");
        assert!(matches!(error, AttachError::NotADirectory { .. }), "{error}");
    }
}

// Mounting reads /proc to find its own mount, and would wait for its own reply.
#[test]
fn proc_is_not_mounted_on() {
    let error = attach(Path::new("/proc/self"), &options()).expect_err("it is needed");
    assert!(matches!(error, AttachError::InProc { .. }), "{error}");
}

#[test]
fn a_dead_mount_is_reported_with_a_remedy() {
    let _alone = alone();
    if !geteuid().is_root() {
        skip("needs root: only root can make a dead mount that lasts");
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let Ok(device) = open("/dev/fuse", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty()) else {
        skip("needs FUSE: /dev/fuse cannot be opened");
        return;
    };
    let data = format!("fd={},rootmode=40000,user_id=0,group_id=0\0", device.as_raw_fd());
    let data = std::ffi::CStr::from_bytes_with_nul(data.as_bytes()).expect("a string");
    if mount("dead", folder.path(), "fuse", MountFlags::empty(), data).is_err() {
        skip("needs FUSE: mount(2) is not permitted");
        return;
    }
    drop(device);
    let outcome = attach(folder.path(), &options());
    unmount(folder.path(), UnmountFlags::DETACH).expect("an unmount");
    let error = outcome.expect_err("its server is dead");
    assert!(matches!(error, AttachError::Stale { .. }), "{error}");
    assert!(error.to_string().contains("`fusermount3 -u "), "{error}");
}

#[test]
fn suid_is_permitted_to_root_only() {
    let _alone = alone();
    let folder = tempfile::tempdir().expect("a folder");
    let mut wanted = options();
    wanted.suid = true;
    if geteuid().is_root() {
        let Some(_attachment) = mounts::mount(folder.path(), &wanted) else { return };
        let line =
            lines_of(&folder.path().canonicalize().expect("its name")).pop().expect("our line");
        assert!(!line.contains("nosuid") && line.contains("nodev"), "{line}");
    } else {
        let error = attach(folder.path(), &wanted).expect_err("only root may");
        assert_eq!(error.to_string(), "mount option \"suid\": permitted to root only");
    }
}

#[test]
fn allow_other_is_permitted_only_if_the_system_allows_it() {
    let _alone = alone();
    let folder = tempfile::tempdir().expect("a folder");
    let mut wanted = options();
    wanted.allow = MountAccess::Everybody;
    match attach(folder.path(), &wanted) {
        Err(AttachError::AllowOtherForbidden { message }) => {
            assert!(message.contains("fuse.conf"), "{message}");
        }
        Err(error) => skip(format_args!("needs FUSE: {error}")),
        Ok(_attachment) => {
            let line =
                lines_of(&folder.path().canonicalize().expect("its name")).pop().expect("our line");
            assert!(line.contains(",allow_other"), "{line}");
        }
    }
}

#[test]
fn a_directory_of_another_user_is_refused() {
    let _alone = alone();
    if geteuid().is_root() {
        skip("needs an ordinary user: root may mount anywhere");
        return;
    }
    let error = attach(Path::new("/usr"), &options()).expect_err("it belongs to root");
    match error {
        AttachError::DirectoryNotPermitted { message, .. } => assert!(!message.is_empty()),
        AttachError::NoDevice { .. }
        | AttachError::DeviceNotPermitted { .. }
        | AttachError::NoFusermount { .. }
        | AttachError::NotPrivileged { .. } => skip(format_args!("needs FUSE: {error}")),
        _ => panic!("{error}"),
    }
}

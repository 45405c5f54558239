//! Each thing that can be in the way, and that the message names it and the way out.

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

// Whoever mounts asks /proc about its own mount, and would wait for its own answer.
#[test]
fn proc_is_not_mounted_on() {
    let error = attach(Path::new("/proc/self"), &options()).expect_err("it is needed");
    assert!(matches!(error, AttachError::InProc { .. }), "{error}");
}

#[test]
fn a_dead_mount_is_named_with_the_way_out() {
    let _alone = alone();
    if !geteuid().is_root() {
        skip("only root can make a dead mount that lasts");
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let Ok(device) = open("/dev/fuse", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty()) else {
        skip("no /dev/fuse");
        return;
    };
    let data = format!("fd={},rootmode=40000,user_id=0,group_id=0\0", device.as_raw_fd());
    let data = std::ffi::CStr::from_bytes_with_nul(data.as_bytes()).expect("a string");
    if mount("dead", folder.path(), "fuse", MountFlags::empty(), data).is_err() {
        skip("mount(2) is not permitted");
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
fn what_only_root_may_have_is_refused_to_others() {
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
fn others_are_let_in_only_where_the_machine_allows_it() {
    let _alone = alone();
    let folder = tempfile::tempdir().expect("a folder");
    let mut wanted = options();
    wanted.allow = MountAccess::Everybody;
    match attach(folder.path(), &wanted) {
        Err(AttachError::AllowOtherForbidden { message }) => {
            assert!(message.contains("fuse.conf"), "{message}");
        }
        Err(error) => skip(error),
        Ok(_attachment) => {
            let line =
                lines_of(&folder.path().canonicalize().expect("its name")).pop().expect("our line");
            assert!(line.contains(",allow_other"), "{line}");
        }
    }
}

#[test]
fn a_directory_of_somebody_else_is_refused_to_users() {
    let _alone = alone();
    if geteuid().is_root() {
        skip("root may mount anywhere");
        return;
    }
    let error = attach(Path::new("/usr"), &options()).expect_err("it belongs to root");
    match error {
        AttachError::DirectoryNotPermitted { message, .. } => assert!(!message.is_empty()),
        AttachError::NoDevice { .. }
        | AttachError::DeviceNotPermitted { .. }
        | AttachError::NoFusermount { .. }
        | AttachError::NotPrivileged { .. } => skip(error),
        _ => panic!("{error}"),
    }
}

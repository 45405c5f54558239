//! A mount from attach to detach, and unmounts by others.

use std::fs;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use ferrofs_fuse::attach::{AttachError, Attachment, DetachOutcome, MountMethod};
use rustix::fs::{Mode, OFlags, open};
use rustix::mount::{MountFlags, UnmountFlags, unmount};
use rustix::process::geteuid;

use crate::mounts::{alone, lines_of, mount, mounts_at, options, skip};

fn directory() -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().canonicalize().expect("its name").join("a mount, of\\ours");
    fs::create_dir(&path).expect("a directory");
    (folder, path)
}

/// Keeps a mount busy without a request to it.
fn occupy(path: &Path) -> OwnedFd {
    open(path, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty()).expect("its root")
}

fn unmount_as_user(attachment: &Attachment) {
    match attachment.method() {
        MountMethod::Fusermount(program) => {
            let status = Command::new(program)
                .arg("-u")
                .arg("-z")
                .arg("--")
                .arg(attachment.directory())
                .status();
            assert!(status.expect("fusermount3").success());
        }
        _ => unmount(attachment.directory(), UnmountFlags::DETACH).expect("an unmount"),
    }
}

#[test]
fn a_mount_is_in_the_table_until_it_is_detached() {
    let _alone = alone();
    let (_folder, path) = directory();
    let Some(mut attachment) = mount(&path, &options()) else { return };
    assert_eq!(mounts_at(&path), 1);
    assert!(attachment.is_connected());
    assert_eq!(attachment.directory(), path);
    assert_eq!(attachment.detach().expect("an unmount"), DetachOutcome::Clean);
    assert_eq!(mounts_at(&path), 0);
    assert!(!attachment.is_connected());
    assert_eq!(attachment.detach().expect("nothing to do"), DetachOutcome::Already);
}

#[test]
fn the_mount_table_shows_the_requested_options() {
    let _alone = alone();
    let (_folder, path) = directory();
    let mut wanted = options();
    wanted.exec = false;
    wanted.max_read = Some(65_536);
    let Some(_attachment) = mount(&path, &wanted) else { return };
    let line = lines_of(&path).pop().expect("our line");
    assert!(line.starts_with("an\\040image,\\040with\\134odd\\012name "), "{line}");
    let words: Vec<&str> = line.split([' ', ',']).collect();
    for word in [
        "fuse.ferrofs-test",
        "ro",
        "nosuid",
        "nodev",
        "noexec",
        "default_permissions",
        "max_read=65536",
    ] {
        assert!(words.contains(&word), "{word} in {line}");
    }
    assert!(!words.contains(&"allow_other"), "{line}");
}

#[test]
fn a_mount_in_use_is_detached_lazily_and_lives_until_its_last_user_is_done() {
    let _alone = alone();
    let (_folder, path) = directory();
    let Some(mut attachment) = mount(&path, &options()) else { return };
    let occupied = occupy(&path);
    assert_eq!(attachment.detach().expect("an unmount"), DetachOutcome::Lazily);
    assert_eq!(mounts_at(&path), 0);
    assert!(attachment.is_connected(), "its server is still needed");
    drop(occupied);
    assert!(!attachment.is_connected());
}

#[test]
fn dropping_an_attachment_unmounts() {
    let _alone = alone();
    let (_folder, path) = directory();
    let Some(attachment) = mount(&path, &options()) else { return };
    drop(attachment);
    assert_eq!(mounts_at(&path), 0);
}

#[test]
fn an_unmount_by_somebody_else_is_noticed() {
    let _alone = alone();
    let (_folder, path) = directory();
    let Some(mut attachment) = mount(&path, &options()) else { return };
    unmount_as_user(&attachment);
    assert!(!attachment.is_connected());
    assert_eq!(attachment.detach().expect("nothing to do"), DetachOutcome::Already);
}

// If another mount has replaced ours, detach must leave it alone, even if our file system still exists because it is in
// use.
#[test]
fn a_mount_made_after_ours_was_unmounted_stays() {
    let _alone = alone();
    let (_folder, path) = directory();
    let Some(mut first) = mount(&path, &options()) else { return };
    let occupied = occupy(&path);
    unmount_as_user(&first);
    let mut second = mount(&path, &options()).expect("it worked a moment ago");
    assert!(first.is_connected(), "a process is still in it");
    assert_eq!(first.detach().expect("nothing to do"), DetachOutcome::Already);
    drop(first);
    assert_eq!(mounts_at(&path), 1);
    drop(occupied);
    assert_eq!(second.detach().expect("an unmount"), DetachOutcome::Clean);
}

#[test]
fn a_mount_beneath_another_waits_for_it() {
    let _alone = alone();
    let (_folder, path) = directory();
    let Some(mut below) = mount(&path, &options()) else { return };
    // Attaching again would call statfs on the mount below, to which nobody replies here.
    if !geteuid().is_root() {
        skip("needs root: only root can mount a tmpfs");
        return;
    }
    rustix::mount::mount("above", &path, "tmpfs", MountFlags::empty(), None).expect("a tmpfs");
    let covered = below.detach();
    assert!(matches!(covered, Err(AttachError::Covered { .. })), "{covered:?}");
    assert_eq!(mounts_at(&path), 2);
    unmount(&path, UnmountFlags::empty()).expect("the tmpfs");
    assert_eq!(below.detach().expect("an unmount"), DetachOutcome::Clean);
}

#[test]
fn a_directory_that_was_renamed_is_found_again() {
    let _alone = alone();
    let (folder, path) = directory();
    let inner = path.join("inner");
    fs::create_dir(&inner).expect("a directory");
    let Some(mut attachment) = mount(&inner, &options()) else { return };
    let renamed = folder.path().canonicalize().expect("its name").join("renamed");
    fs::rename(&path, &renamed).expect("a rename");
    assert_eq!(mounts_at(&renamed.join("inner")), 1);
    assert_eq!(attachment.detach().expect("an unmount"), DetachOutcome::Clean);
    assert_eq!(mounts_at(&renamed.join("inner")), 0);
}

#[test]
fn a_symlink_leads_to_the_directory_that_is_mounted_on() {
    let _alone = alone();
    let (folder, path) = directory();
    let link = folder.path().join("link");
    symlink(&path, &link).expect("a symlink");
    let Some(attachment) = mount(&link, &options()) else { return };
    assert_eq!(attachment.directory(), path);
    assert_eq!(mounts_at(&path), 1);
}

/// A mount that another process unmounts; `None` if this user cannot mount directly.
fn mount_with_helper(path: &Path) -> Option<Attachment> {
    let mut attachment = mount(path, &options())?;
    if attachment.method() != &MountMethod::Direct {
        skip("needs root: fusermount3 has its own process that unmounts");
        return None;
    }
    attachment.start_unmount_helper(|_| Ok(())).expect("a process");
    attachment.wait_for_unmount_helper().expect("nothing can fail");
    Some(attachment)
}

#[test]
fn a_helper_unmounts_in_place_of_the_server() {
    let _alone = alone();
    let (_folder, path) = directory();
    let Some(mut attachment) = mount_with_helper(&path) else { return };
    assert!(attachment.unmounts_if_killed());
    assert_eq!(attachment.detach().expect("an unmount"), DetachOutcome::Clean);
    assert_eq!(mounts_at(&path), 0);
    assert_eq!(attachment.detach().expect("nothing to do"), DetachOutcome::Already);
}

#[test]
fn a_helper_does_not_keep_the_mount_busy() {
    let _alone = alone();
    let (_folder, path) = directory();
    let Some(mut attachment) = mount_with_helper(&path) else { return };
    // Not lazily: this fails while anything holds the mount.
    unmount(&path, UnmountFlags::empty()).expect("nobody uses it");
    assert!(!attachment.is_connected());
    assert_eq!(attachment.detach().expect("nothing to do"), DetachOutcome::Already);
}

#[test]
fn a_helper_finds_a_directory_that_was_renamed_and_a_mount_that_was_moved() {
    let _alone = alone();
    for is_moved in [false, true] {
        let (folder, path) = directory();
        let inner = path.join("inner");
        fs::create_dir(&inner).expect("a directory");
        let Some(mut attachment) = mount_with_helper(&inner) else { return };
        let root = folder.path().canonicalize().expect("its name");
        let place = if is_moved {
            let place = root.join("elsewhere");
            fs::create_dir(&place).expect("a directory");
            // The kernel moves no mount below a shared one.
            if rustix::mount::mount_move(&inner, &place).is_err() {
                return skip("needs a mount that can be moved");
            }
            place
        } else {
            fs::rename(&path, root.join("renamed")).expect("a rename");
            root.join("renamed/inner")
        };
        assert_eq!(mounts_at(&place), 1);
        assert_eq!(attachment.detach().expect("an unmount"), DetachOutcome::Clean);
        assert_eq!(mounts_at(&place), 0);
    }
}

#[test]
fn a_helper_leaves_a_mount_on_top_alone() {
    let _alone = alone();
    let (_folder, path) = directory();
    let Some(mut below) = mount_with_helper(&path) else { return };
    rustix::mount::mount("above", &path, "tmpfs", MountFlags::empty(), None).expect("a tmpfs");
    let covered = below.detach();
    assert!(matches!(covered, Err(AttachError::Covered { .. })), "{covered:?}");
    assert_eq!(mounts_at(&path), 2);
    unmount(&path, UnmountFlags::empty()).expect("the tmpfs");
    assert_eq!(below.detach().expect("an unmount"), DetachOutcome::Clean);
}

#[test]
fn a_helper_that_cannot_be_confined_is_an_error_and_still_unmounts() {
    let _alone = alone();
    let (_folder, path) = directory();
    let Some(mut attachment) = mount(&path, &options()) else { return };
    if attachment.method() != &MountMethod::Direct {
        return skip("needs root: fusermount3 has its own process that unmounts");
    }
    let refuse = |_: &[BorrowedFd<'_>]| Err(std::io::Error::other("no cage"));
    attachment.start_unmount_helper(refuse).expect("a process");
    let refused = attachment.wait_for_unmount_helper();
    let message = refused.expect_err("it was refused").to_string();
    assert!(message.ends_with("sandbox: no cage"), "{message}");
    assert_eq!(attachment.detach().expect("an unmount"), DetachOutcome::Clean);
}

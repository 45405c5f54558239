//! The mount of a process that was killed. The process is this test program, which an environment variable makes mount and
//! wait.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read, Write};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use ferrofs_fuse::attach::{AttachError, attach};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::mount::{UnmountFlags, unmount};

use crate::mounts::{alone, mount, mounts_at, options};

const DIRECTORY: &str = "FERROFS_TEST_MOUNTS_AND_WAITS";
const TIME_LIMIT: Duration = Duration::from_secs(10);

/// Mounts, reports in one line how, and waits for the end of its input, which never comes.
fn mount_and_wait(directory: &Path) {
    let attachment = mount(directory, &options());
    let unmounts = attachment.as_ref().map(|attachment| attachment.unmounts_if_killed());
    let mut output = std::io::stderr();
    writeln!(output, "unmounts: {unmounts:?}").expect("the parent reads the pipe");
    std::io::stdin().read_to_end(&mut Vec::new()).expect("an input");
}

/// Waits until no mount is there. The kernel reports changes of the mount table to poll.
fn is_free_in_time(directory: &Path) -> bool {
    let deadline = Instant::now() + TIME_LIMIT;
    let table = File::open("/proc/self/mounts").expect("the table");
    while mounts_at(directory) > 0 {
        let Some(left) = deadline.checked_duration_since(Instant::now()) else { return false };
        let left = Timespec::try_from(left).expect("ten seconds");
        poll(&mut [PollFd::from_borrowed_fd(table.as_fd(), PollFlags::PRI)], Some(&left))
            .expect("the table reports its changes");
    }
    true
}

#[test]
fn a_killed_process_leaves_no_mount_or_one_that_a_single_unmount_clears() {
    if let Some(directory) = std::env::var_os(DIRECTORY) {
        return mount_and_wait(&PathBuf::from(directory));
    }
    let _alone = alone();
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().canonicalize().expect("its name").join("mount");
    fs::create_dir(&path).expect("a directory");
    let name = "killed::a_killed_process_leaves_no_mount_or_one_that_a_single_unmount_clears";
    let mut child = Command::new(std::env::current_exe().expect("this program"))
        .args(["--exact", name, "--nocapture"])
        .env(DIRECTORY, &path)
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .expect("this program");
    let message = BufReader::new(child.stderr.take().expect("its messages"));
    let answer = message.lines().map_while(Result::ok).find(|line| line.starts_with("unmounts: "));
    child.kill().expect("it is ours");
    child.wait().expect("it is ours");
    match answer.as_deref() {
        Some("unmounts: None") => {}
        Some("unmounts: Some(true)") => assert!(is_free_in_time(&path)),
        Some("unmounts: Some(false)") => {
            assert_eq!(mounts_at(&path), 1);
            let error = attach(&path, &options()).expect_err("a dead mount");
            assert!(matches!(error, AttachError::Stale { .. }), "{error}");
            unmount(&path, UnmountFlags::empty()).expect("a single unmount");
            assert_eq!(mounts_at(&path), 0);
        }
        other => panic!("{other:?}"),
    }
}

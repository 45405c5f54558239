//! The mount of a process that was killed. The process is this test program, which an environment variable makes mount and
//! wait.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use ferrofs_fuse::attach::{AttachError, attach};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::mount::{UnmountFlags, unmount};
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use crate::mounts::{alone, mount, mounts_at, options, skip};

const DIRECTORY: &str = "FERROFS_TEST_MOUNTS_AND_WAITS";
/// Set if the process that mounts starts a helper.
const HELPER: &str = "FERROFS_TEST_STARTS_A_HELPER";
const TIME_LIMIT: Duration = Duration::from_secs(10);

/// Mounts, reports in one line how, and waits for the end of its input, which never comes.
fn mount_and_wait(directory: &Path) {
    let mut attachment = mount(directory, &options());
    if let (Some(attachment), Some(_)) = (&mut attachment, std::env::var_os(HELPER)) {
        attachment.start_unmount_helper(|_| Ok(())).expect("a process");
        attachment.wait_for_unmount_helper().expect("nothing can fail");
    }
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
    match answer_of_killed(&path, false, |_| ()).as_deref() {
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

#[test]
fn a_helper_removes_the_mount_of_a_killed_process() {
    let _alone = alone();
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().canonicalize().expect("its name").join("mount");
    fs::create_dir(&path).expect("a directory");
    match answer_of_killed(&path, true, |_| ()).as_deref() {
        Some("unmounts: None") => {}
        Some("unmounts: Some(true)") => assert!(is_free_in_time(&path)),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_helper_whose_mount_is_gone_leaves_the_next_one_with_its_ids_alone() {
    let _alone = alone();
    let folder = tempfile::tempdir().expect("a folder");
    let root = folder.path().canonicalize().expect("its name");
    let [first, second] = ["first", "second"].map(|name| root.join(name));
    for path in [&first, &second] {
        fs::create_dir(path).expect("a directory");
    }
    let mut next = None;
    answer_of_killed(&first, true, |server| {
        let Some(helper) = helper_of(server) else {
            return skip("needs root: fusermount3 has its own process that unmounts");
        };
        unmount(&first, UnmountFlags::DETACH).expect("nobody uses it");
        next = Some((mount(&second, &options()).expect("as the first one"), helper));
    });
    let Some((_attachment, helper)) = next else { return };
    let limit = Timespec::try_from(TIME_LIMIT).expect("ten seconds");
    let mut polled = [PollFd::new(&helper, PollFlags::IN)];
    assert_eq!(poll(&mut polled, Some(&limit)), Ok(1), "the helper does not end");
    assert_eq!(mounts_at(&second), 1);
}

/// The process that unmounts for a server.
pub(crate) fn helper_of(server: u32) -> Option<OwnedFd> {
    let parent = format!("\nPPid:\t{server}\n");
    let entries = fs::read_dir("/proc").expect("/proc").flatten();
    let mut numbers = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let number = numbers.find(|number: &i32| {
        fs::read_to_string(format!("/proc/{number}/status")).is_ok_and(|status| {
            status.starts_with("Name:\tferrofs-unmount\n") && status.contains(&parent)
        })
    });
    let process = Pid::from_raw(number?)?;
    Some(pidfd_open(process, PidfdFlags::empty()).expect("it waits for its server"))
}

/// What the process that mounts reports before `before_kill` runs with its number and it is killed.
fn answer_of_killed(
    path: &Path,
    has_helper: bool,
    before_kill: impl FnOnce(u32),
) -> Option<String> {
    let name = "killed::a_killed_process_leaves_no_mount_or_one_that_a_single_unmount_clears";
    let mut command = Command::new(std::env::current_exe().expect("this program"));
    command.args(["--exact", name, "--nocapture"]).env(DIRECTORY, path);
    command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped());
    if has_helper {
        command.env(HELPER, "1");
    }
    let mut child = command.spawn().expect("this program");
    let message = BufReader::new(child.stderr.take().expect("its messages"));
    let answer = message.lines().map_while(Result::ok).find(|line| line.starts_with("unmounts: "));
    before_kill(child.id());
    child.kill().expect("it is ours");
    child.wait().expect("it is ours");
    answer
}

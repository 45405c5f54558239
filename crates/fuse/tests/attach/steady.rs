//! Mounting leaks no descriptor and no process. A program of its own with one test, since it counts the descriptors and
//! children of the whole process.

#![allow(clippy::print_stderr, reason = "skipped tests are reported")]

mod mounts;

use std::fs;

use ferrofs_fuse::attach::DetachOutcome;

use mounts::{alone, lines_of, mount, mounts_at, options};

/// The numbers of descriptors and children of this process, zombies included.
fn held() -> (usize, usize) {
    let descriptors = fs::read_dir("/proc/self/fd").expect("descriptors").count();
    let tasks = fs::read_dir("/proc/self/task").expect("threads").flatten();
    let children = tasks.map(|task| fs::read_to_string(task.path().join("children")));
    (descriptors, children.flatten().map(|list| list.split_whitespace().count()).sum())
}

#[test]
fn a_hundred_mounts_leave_no_descriptor_and_no_process() {
    let _alone = alone();
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().canonicalize().expect("its name");
    let Some(attachment) = mount(&path, &options()) else { return };
    drop(attachment);
    let before = held();
    for round in 0..100 {
        let mut attachment = mount(&path, &options()).expect("it worked a moment ago");
        if round % 2 == 0 {
            assert_eq!(attachment.detach().expect("an unmount"), DetachOutcome::Clean);
        }
    }
    assert_eq!(held(), before);
    assert_eq!(mounts_at(&path), 0, "{:?}", lines_of(&path));
}

//! Standard output that nobody reads, or that is on a full disk. Where it is all that a verb produces, a reader that has
//! gone has read enough; where it is not, the verb does its work all the same.

use std::fs;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

use crate::mounted::{MountPoint, has_fuse};
use crate::support::{Dir, TestCommand, data, ferrofs, skip};

/// The command under another name.
fn named(name: &str) -> TestCommand {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ferrofs"));
    command.arg0(name);
    TestCommand::new(command)
}

#[test]
fn mkfs_builds_an_image_though_nobody_reads_what_it_prints() {
    let dir = Dir::new();
    let (tree, image) = (dir.join("tree"), dir.join("image"));
    fs::create_dir(&tree).unwrap();
    fs::write(tree.join("file"), "new").unwrap();
    // Created, and then written in place.
    for content in ["new", "newer"] {
        fs::write(tree.join("file"), content).unwrap();
        named("mkfs.erofs").arg(&image).arg(&tree).unread_ends_with(0);
        let text = ferrofs().arg("cat").arg(&image).arg("/file").succeeds().text();
        assert_eq!(text, content);
    }
}

#[test]
fn erofsfuse_mounts_though_nobody_reads_its_first_line() {
    if !has_fuse() {
        return;
    }
    let point = MountPoint::new();
    named("erofsfuse").arg(data("plain.erofs")).arg(point.path()).unread_ends_with(0);
    assert!(point.mount().is_some());
    assert!(point.unmount());
}

#[test]
fn a_demonstration_that_nobody_reads_compares_all_the_same() {
    let dir = Dir::new();
    let (image, tree) = (data("inline.erofs"), dir.join("tree"));
    ferrofs().args(["extract", "-q"]).arg(&image).arg(&tree).succeeds();
    fs::write(tree.join("names/a"), "?").unwrap();
    let demo = || ferrofs().arg("demo").env("TMPDIR", dir.path());
    demo().arg(&image).arg(&tree).unread_ends_with(1);
    demo().unread_ends_with(0);
}

#[test]
fn what_lists_and_shows_ends_well_when_its_reader_has_gone() {
    let plain = data("plain.erofs");
    for words in [&["info"][..], &["info", "--json"], &["check"], &["ls", "-R"]] {
        ferrofs().args(words).arg(&plain).unread_ends_with(0);
    }
    ferrofs().arg("list").unread_ends_with(0);
    ferrofs().args(["stats", "--all"]).unread_ends_with(0);
    ferrofs().args(["build", "--dry-run", "x"]).arg(data("few.tar")).unread_ends_with(0);
    ferrofs().arg("--help").unread_ends_with(0);
    for option in ["-s", "-S", "--path=/", "--blkid-udev"] {
        named("dump.erofs").arg(option).arg(&plain).unread_ends_with(0);
    }
}

#[test]
fn a_full_standard_output_is_named_and_a_failure() {
    if !Path::new("/dev/full").exists() {
        return skip("no /dev/full");
    }
    #[track_caller]
    fn assert_named(command: TestCommand) {
        let ended = command.full_ends_with(1);
        let wanted = "ferrofs: standard output: No space left on device (os error 28)\n";
        assert_eq!(ended, wanted);
    }
    let dir = Dir::new();
    let plain = data("plain.erofs");
    for words in [
        &["info"][..],
        &["info", "--json"],
        &["check"],
        &["check", "--json"],
        &["ls"],
        &["ls", "--json"],
    ] {
        assert_named(ferrofs().args(words).arg(&plain));
    }
    for words in [&["cat"][..], &["stat"], &["stat", "--json"]] {
        assert_named(ferrofs().args(words).arg(&plain).arg("/a.txt"));
    }
    assert_named(named("dump.erofs").arg(&plain));
    assert_named(ferrofs().args(["stats", "--all"]));
    assert_named(ferrofs().arg("demo").env("TMPDIR", dir.path()));
    assert_named(ferrofs().arg("--help"));
    assert_named(ferrofs().arg("--version"));
    assert_named(named("mkfs.erofs").arg("--help"));

    let image = dir.join("image");
    assert_named(ferrofs().arg("build").arg(&image).arg(data("few.tar")));
    // The help says so: it is complete.
    ferrofs().args(["check", "-q"]).arg(&image).succeeds();
    assert_named(ferrofs().arg("extract").arg(&plain).arg(dir.join("tree")));
}

#[test]
fn a_full_standard_output_stops_mkfs_before_it_rewrites_an_image() {
    if !Path::new("/dev/full").exists() {
        return skip("no /dev/full");
    }
    let dir = Dir::new();
    let image = dir.write("image", b"old");
    named("mkfs.erofs").arg("--tar=f").arg(&image).arg(data("few.tar")).full_ends_with(1);
    assert_eq!(fs::read(&image).unwrap(), b"old");
}

//! The command under the names of erofs-utils: the output that scripts read, and the exit status.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::process::Command;

use crate::support::{Dir, TestCommand, data};

/// The command under another name.
fn named(name: &str) -> TestCommand {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ferrofs"));
    command.arg0(name);
    TestCommand::new(command)
}

fn fsck() -> TestCommand {
    named("/usr/bin/fsck.erofs")
}

fn dump() -> TestCommand {
    named("dump.erofs")
}

#[test]
fn a_sound_image_is_no_news() {
    for options in [&[][..], &["--extract"], &["-a"], &["--offset=0", "-y"], &["--path=/sub"]] {
        let ended = fsck().arg(data("plain.erofs")).args(options).succeeds();
        assert_eq!((ended.text(), ended.stderr), (String::new(), String::new()), "{options:?}");
    }
    let ended = fsck().args(["-p", "-d3"]).arg(data("lz4.erofs")).succeeds();
    assert_eq!(
        (ended.text().as_str(), ended.stderr.as_str()),
        ("", "<I> erofs: No errors found\n<I> erofs: Compression ratio: 21.72(%)\n")
    );
}

#[test]
fn fsck_knows_two_endings() {
    let dir = Dir::new();
    let wrong = dir.patched("plain.erofs", 1028, &[1, 2, 3, 4]);
    fsck().arg(&wrong).ends_with(1);
    fsck().arg("--no-sbcrc").arg(&wrong).succeeds();
    fsck().ends_with(1);
    fsck().arg("no/such.erofs").ends_with(1);
    for option in ["--xattr-inode-digest", "--overwrite", "--path=/none", "--nid=99999999"] {
        let ended = fsck().arg(option).arg(data("plain.erofs")).ends_with(1);
        assert!(!ended.stderr.is_empty(), "{option}");
    }
    let version = fsck().arg("-V").succeeds().text();
    assert!(version.starts_with("fsck.erofs "), "{version}");
}

#[test]
fn fsck_checks_only_the_selected_part() {
    let extents = dump().args(["-e", "--path=/sizes/65536"]).arg(data("lz4.erofs")).succeeds();
    let text = extents.text();
    let first = text.lines().find(|line| line.starts_with("   0: ")).unwrap();
    let place = first.rsplit(" : ").next().unwrap().split("..").next().unwrap();
    let dir = Dir::new();
    let image = dir.patched("lz4.erofs", place.trim().parse().unwrap(), &[0; 4096]);
    fsck().arg(&image).ends_with(1);
    let ended = fsck().arg(&image).arg("--path=/sizes").ends_with(1);
    assert!(ended.stderr.contains("/sizes/65536: "), "{}", ended.stderr);
    for part in ["--path=/text", "--path=/sizes/16385", "--nid=36"] {
        let whole = part == "--nid=36";
        fsck().arg(&image).arg(part).ends_with(i32::from(whole));
    }
}

#[test]
fn fsck_unpacks_with_its_own_defaults() {
    let dir = Dir::new();
    let tree = dir.join("tree");
    let unpack = |options: &[&str]| {
        fsck().arg(data("plain.erofs")).arg(format!("--extract={}", tree.display())).args(options)
    };
    unpack(&[]).succeeds();
    let names = |path| rustix::fs::listxattr(path, &mut [0; 256]).unwrap();
    assert_eq!(names(tree.join("x")), 0, "extended attributes are not unpacked unasked");
    let again = unpack(&[]).ends_with(1);
    assert!(again.stderr.contains("exists already"), "{}", again.stderr);
    unpack(&["--overwrite", "--xattrs"]).succeeds();
    assert!(names(tree.join("x")) > 0);
}

#[test]
fn fsck_adds_to_a_directory_that_has_other_things() {
    let dir = Dir::new();
    let tree = dir.join("tree");
    fs::create_dir_all(tree.join("sub")).unwrap();
    fs::write(tree.join("mine"), "stays").unwrap();
    fsck().arg(data("plain.erofs")).arg(format!("--extract={}", tree.display())).succeeds();
    assert_eq!(fs::read(tree.join("mine")).unwrap(), b"stays");
    assert!(tree.join("sub/c.txt").exists());
}

#[test]
fn a_part_of_the_tree_becomes_the_directory() {
    let dir = Dir::new();
    let tree = dir.join("part");
    let nid = dump().args(["--path=/sub"]).arg(data("plain.erofs")).succeeds().text();
    let nid = nid.split_once("NID: ").unwrap().1.split(' ').next().unwrap().to_owned();
    for part in ["--path=/sub".to_owned(), format!("--nid={nid}")] {
        let extract = format!("--extract={}", tree.display());
        fsck().arg(data("plain.erofs")).args([&part, &extract]).arg("--no-preserve").succeeds();
        assert!(tree.join("c.txt").exists() && tree.join("more/f7").exists());
        assert_eq!(
            fs::metadata(tree.join("c.txt")).unwrap().uid(),
            fs::metadata(dir.path()).unwrap().uid()
        );
        fs::remove_dir_all(&tree).unwrap();
    }
}

#[test]
fn a_umask_is_taken_from_permissions_that_are_not_preserved() {
    let dir = Dir::new();
    let mode = |options: &[&str]| {
        let tree = dir.join("tree");
        let extract = format!("--extract={}", tree.display());
        let link = dir.join("fsck.erofs");
        if !link.exists() {
            std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_ferrofs"), &link).unwrap();
        }
        let mut shell = Command::new("sh");
        shell.args(["-c", "umask 077; exec \"$0\" \"$@\""]).arg(&link);
        TestCommand::new(shell).arg(data("plain.erofs")).arg(&extract).args(options).succeeds();
        let mode = fs::metadata(tree.join("a.txt")).unwrap().permissions().mode() & 0o7777;
        fs::remove_dir_all(&tree).unwrap();
        mode
    };
    let kept = mode(&["--preserve-perms"]);
    assert_eq!(mode(&["--no-preserve-perms"]), kept & !0o077);
    assert_ne!(kept & 0o077, 0);
}

#[test]
fn dump_prints_what_scripts_look_for() {
    let text = dump().arg(data("lz4.erofs")).succeeds().text();
    let line = |key: &str| text.lines().find(|line| line.starts_with(key)).unwrap_or_default();
    assert!(line("Filesystem blocksize:").ends_with(" 4096"), "{text}");
    assert!(line("Filesystem incompatible features:").contains("0padding"), "{text}");
    assert_eq!(text, dump().arg("-s").arg(data("lz4.erofs")).succeeds().text());
    let root = dump().args(["--path=/"]).arg(data("lz4.erofs")).succeeds().text();
    assert!(root.starts_with("Path : /\nSize: ") && root.contains("\nNID: "), "{root}");
}

#[test]
fn dump_lists_writes_out_and_counts() {
    let list = dump().args(["--ls", "--path=/sub"]).arg(data("plain.erofs")).succeeds().text();
    assert!(list.contains("       NID TYPE  FILENAME\n"), "{list}");
    let types: Vec<(&str, &str)> = list
        .lines()
        .skip_while(|line| !line.contains("FILENAME"))
        .skip(1)
        .map(|line| line.split_whitespace().collect::<Vec<_>>())
        .map(|words| (words[2], words[1]))
        .collect();
    for entry in [("..", "2"), ("c.txt", "1"), ("fifo", "5"), ("zero", "3"), ("disk", "4")] {
        assert!(types.contains(&entry), "{types:?}");
    }
    let content = dump().args(["--cat", "--path=/hole"]).arg(data("plain.erofs")).succeeds();
    assert_eq!(content.stdout.len(), 9000);
    let counts = dump().arg("-S").arg(data("plain.erofs")).succeeds().text();
    assert!(counts.contains("Filesystem FIFO file count:\t\t1\n"), "{counts}");
}

#[test]
fn extents_cover_a_file_and_lie_apart() {
    let text = dump().args(["-e", "--path=/b.txt"]).arg(data("plain.erofs")).succeeds().text();
    let rows: Vec<&str> = text.lines().skip_while(|line| !line.starts_with(" Ext:")).collect();
    let (last, rows) = rows[1..].split_last().unwrap();
    assert_eq!(*last, format!("/b.txt: {} extents found", rows.len()));
    let mut at = 0;
    for row in rows {
        let (logical, physical) = row.split_once(" : ").unwrap();
        let ends = logical.split_once(": ").unwrap().1.split(" |").next().unwrap();
        let (start, end) = ends.split_once("..").unwrap();
        assert_eq!(start.trim().parse::<u64>().unwrap(), at, "{text}");
        at = end.trim().parse().unwrap();
        assert!(physical.contains(".."), "{row}");
    }
    assert!(at > 0);
    let hole = dump().args(["-e", "--path=/hole"]).arg(data("chunk-indexes.erofs")).succeeds();
    assert!(hole.text().contains("          0..         0 |       0\n"), "{}", hole.text());
}

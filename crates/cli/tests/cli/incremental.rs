//! mkfs.erofs that adds to an image, and its list of blocks that an archive fills.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::fs::{CWD, FileType, Mode, XattrFlags, lsetxattr, mknodat};

use crate::support::{Dir, TestCommand, ferrofs, is_root, named, skip};

fn mkfs() -> TestCommand {
    named("mkfs.erofs").args(["--quiet", "-T0"])
}

/// A tree, what is to lie over it, and what both look like.
fn trees(dir: &Dir) -> [PathBuf; 3] {
    let trees = ["lower", "upper", "both"].map(|name| dir.join(name));
    let [lower, upper, both] = &trees;
    for tree in [lower, upper, both] {
        fs::create_dir_all(tree.join("shared")).unwrap();
    }
    for tree in [lower, both] {
        fs::write(tree.join("shared/large"), b"some text\n".repeat(10_000)).unwrap();
        fs::hard_link(tree.join("shared/large"), tree.join("linked")).unwrap();
    }
    fs::write(lower.join("shared/changed"), "before").unwrap();
    fs::create_dir(lower.join("becomes")).unwrap();
    fs::write(lower.join("becomes/hidden"), "gone").unwrap();
    for tree in [upper, both] {
        fs::write(tree.join("shared/changed"), "after").unwrap();
        fs::write(tree.join("becomes"), "a file").unwrap();
        fs::write(tree.join("new"), "new").unwrap();
    }
    trees
}

#[track_caller]
fn assert_shows(image: &Path, tree: &Path, dir: &Dir) {
    ferrofs().args(["check", "-q"]).arg(image).succeeds();
    let out = dir.join("unpacked");
    ferrofs().args(["extract", "-q"]).arg(image).arg(&out).succeeds();
    let status = Command::new("diff").args(["-r", "--no-dereference"]).arg(tree).arg(&out).status();
    assert!(status.unwrap().success());
    fs::remove_dir_all(out).unwrap();
}

fn info(image: &Path) -> String {
    String::from_utf8(ferrofs().arg("info").arg(image).succeeds().stdout).unwrap()
}

#[test]
fn files_are_added_to_an_image_which_keeps_what_describes_it() {
    let dir = Dir::new();
    let [lower, upper, both] = trees(&dir);
    let (image, archive) = (dir.join("image"), dir.join("upper.tar"));
    let tar = Command::new("tar").arg("-cf").arg(&archive).arg("-C").arg(&upper).arg(".").status();
    assert!(tar.unwrap().success());
    for source in [vec![upper.as_os_str()], vec!["--tar=f".as_ref(), archive.as_os_str()]] {
        mkfs().args(["-b512", "-zlz4", "-Lkept"]).arg(&image).arg(&lower).succeeds();
        fs::set_permissions(&image, fs::Permissions::from_mode(0o640)).unwrap();
        let before = info(&image);
        let uuid = before.lines().find(|line| line.to_lowercase().contains("uuid")).unwrap();
        mkfs().args(["--incremental=data"]).arg(&image).args(&source).succeeds();
        assert_shows(&image, &both, &dir);
        let after = info(&image);
        assert!(after.contains(uuid) && after.contains("kept"), "{after}");
        assert!(fs::metadata(&image).unwrap().len() < 20_000, "not compressed: {after}");
        assert_eq!(fs::metadata(&image).unwrap().mode() & 0o7777, 0o640);
    }
}

#[test]
fn marks_of_the_sources_hide_files_of_the_image_before_they_are_stripped() {
    if !is_root() {
        return skip("it needs root for whiteouts");
    }
    let dir = Dir::new();
    let [lower, upper] = ["lower", "upper"].map(|name| dir.join(name));
    for path in ["lower/opaque", "lower/kept", "upper/opaque", "upper/kept"] {
        fs::create_dir_all(dir.join(path)).unwrap();
    }
    for path in ["lower/gone", "lower/opaque/gone", "lower/kept/file", "upper/opaque/new"] {
        fs::write(dir.join(path), path).unwrap();
    }
    let whiteout = |path: &Path| {
        mknodat(CWD, path, FileType::CharacterDevice, Mode::RUSR, 0).unwrap();
    };
    // A whiteout of the image, which is no whiteout of a source.
    whiteout(&lower.join("kept/own"));
    whiteout(&upper.join("gone"));
    let opaque = upper.join("opaque");
    lsetxattr(&opaque, "trusted.overlay.opaque", b"y", XattrFlags::empty()).unwrap();
    let archive = dir.join("upper.tar");
    let mut tar = Command::new("tar");
    tar.args(["--xattrs", "--xattrs-include=*", "-cf"]).arg(&archive).arg("-C").arg(&upper);
    assert!(tar.arg(".").status().unwrap().success());
    for source in [vec![upper.as_os_str()], vec!["--tar=f".as_ref(), archive.as_os_str()]] {
        let image = dir.join("image");
        mkfs().arg(&image).arg(&lower).succeeds();
        let add = mkfs().args(["--incremental=data", "--ovlfs-strip=1"]);
        add.arg(&image).args(&source).succeeds();
        let text = |words: &[&str]| ferrofs().args(words).arg(&image).succeeds().text();
        let names = text(&["ls", "-R"]).lines().collect::<Vec<_>>().join(" ");
        assert_eq!(names, "/ /kept /kept/file /kept/own /opaque /opaque/new");
        let directory = ferrofs().arg("stat").arg(&image).arg("/opaque").succeeds().text();
        assert!(!directory.contains("overlay.opaque"), "{directory}");
    }
}

#[test]
fn stripping_leaves_no_mark_of_whiteouts_that_it_removed() {
    let dir = Dir::new();
    let (lower, upper) = (dir.join("lower"), dir.join("upper"));
    for path in [lower.join("d"), upper.join("d")] {
        fs::create_dir_all(path).unwrap();
    }
    fs::write(upper.join("d/.wh.gone"), "").unwrap();
    let archive = dir.join("upper.tar");
    let mut tar = Command::new("tar");
    tar.arg("-cf").arg(&archive).arg("-C").arg(&upper).arg(".");
    assert!(tar.status().unwrap().success());
    let strip = ["--tar=f", "--aufs", "--ovlfs-strip=1", "-x-1"];
    let library = ["build", "-qf", "--whiteouts=overlay", "--strip-overlay", "--no-xattrs"];
    let base = dir.join("base");
    mkfs().arg(&base).arg(&lower).succeeds();
    for build in
        [mkfs().args(strip), ferrofs().args(library), mkfs().arg("--incremental=data").args(strip)]
    {
        let image = dir.join("image");
        fs::copy(&base, &image).unwrap();
        build.arg(&image).arg(&archive).succeeds();
        let directory = ferrofs().arg("stat").arg(&image).arg("/d").succeeds().text();
        assert!(!directory.contains("trusted.overlay"), "{directory}");
    }
}

#[test]
fn holes_of_added_files_count_if_the_image_stores_them() {
    let dir = Dir::new();
    let [lower, ..] = trees(&dir);
    let (image, archive) = (dir.join("image"), dir.join("sparse.tar"));
    fs::File::create(dir.join("sparse")).unwrap().set_len(1500 << 20).unwrap();
    let mut tar = Command::new("tar");
    tar.arg("-Scf").arg(&archive).arg("-C").arg(dir.path()).arg("sparse");
    assert!(tar.status().unwrap().success());
    for (base, added, code) in [
        (&[][..], &["--chunksize=4096"][..], 0),
        (&["-zlz4"], &["--chunksize=4096"], 1),
        (&[], &[], 1),
    ] {
        mkfs().args(base).arg(&image).arg(&lower).succeeds();
        let add = mkfs().args(["--tar=f", "--incremental=data"]).args(added);
        let stderr = add.arg(&image).arg(&archive).ends_with(code).stderr;
        assert_eq!(stderr.contains("with its holes"), code == 1, "{stderr}");
    }
}

#[test]
fn an_image_stays_as_it_is_if_nothing_can_be_added() {
    let dir = Dir::new();
    let [lower, upper, _] = trees(&dir);
    let image = dir.join("image");
    mkfs().arg(&image).arg(&lower).succeeds();
    let before = fs::read(&image).unwrap();
    mkfs().arg("--incremental").arg(&image).arg(dir.join("none")).ends_with(1);
    mkfs().arg("--incremental").arg(&image).arg(&image).ends_with(1);
    mkfs().args(["--incremental", "--tar=f"]).arg(&image).arg(upper.join("new")).ends_with(1);
    assert!(fs::read(&image).unwrap() == before);
    let nonsense = dir.write("nonsense", &vec![7; 5000]);
    mkfs().arg("--incremental").arg(&nonsense).arg(&upper).ends_with(1);
    assert_eq!(fs::read(&nonsense).unwrap(), vec![7; 5000]);
    assert!(!dir.join("none").exists());
    mkfs().arg("--incremental").arg(dir.join("none")).arg(&upper).ends_with(1);
}

#[test]
fn the_list_of_an_archive_says_which_bytes_fill_which_blocks() {
    let dir = Dir::new();
    let [lower, ..] = trees(&dir);
    let (image, archive, map) = (dir.join("image"), dir.join("a.tar"), dir.join("map"));
    let tar = Command::new("tar").arg("-cf").arg(&archive).arg("-C").arg(&lower).arg(".").status();
    assert!(tar.unwrap().success());
    let option = format!("--tar=i,{}", map.display());
    mkfs().arg(&option).arg(&image).arg(&archive).succeeds();
    assert_shows(&image, &lower, &dir);
    let (image, archive) = (fs::read(&image).unwrap(), fs::read(&archive).unwrap());
    let text = fs::read_to_string(&map).unwrap();
    let mut files = 0;
    for line in text.lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        let [block, blocks, from, zeros] = words[..] else { panic!("{line}") };
        let hex = |word| usize::from_str_radix(word, 16).unwrap();
        let place = hex(block) * 4096..(hex(block) + hex(blocks)) * 4096;
        let bytes = place.len() - zeros.parse::<usize>().unwrap();
        let data = &image[place];
        assert!(data[..bytes] == archive[hex(from)..][..bytes], "{line}");
        assert!(data[bytes..].iter().all(|byte| *byte == 0), "{line}");
        files += 1;
    }
    // A hard link is listed once.
    assert_eq!(files, 3, "{text}");
}

//! mkfs.erofs with images as its sources: layers whose data stays in the images or is copied.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::bombs::shared_attribute;
use crate::crafted::{CompactInode, CraftedImage, DIRECTORY, FILE, directory, name};
use crate::support::{CommandOutput, Dir, TestCommand, data, ferrofs, named};

fn mkfs() -> TestCommand {
    named("mkfs.erofs").arg("--quiet")
}

/// Two trees with different entries, and their union.
fn trees(dir: &Dir) -> [PathBuf; 3] {
    let [lower, upper, both] = ["lower", "upper", "both"].map(|name| dir.join(name));
    for tree in [&lower, &upper, &both] {
        fs::create_dir_all(tree.join("shared/deep")).unwrap();
    }
    let text: Vec<u8> = (0..30_000_u32).flat_map(|number| number.to_le_bytes()).collect();
    for tree in [&lower, &both] {
        fs::write(tree.join("shared/large"), &text[..100_001]).unwrap();
        fs::hard_link(tree.join("shared/large"), tree.join("linked")).unwrap();
        fs::write(tree.join("shared/deep/whole"), &text[..8192]).unwrap();
        fs::write(tree.join("small"), "few").unwrap();
        fs::write(tree.join("nothing"), "").unwrap();
    }
    fs::create_dir(lower.join("becomes")).unwrap();
    fs::write(lower.join("becomes/hidden"), "gone").unwrap();
    fs::write(lower.join("shared/changed"), "before").unwrap();
    for tree in [&upper, &both] {
        fs::write(tree.join("shared/changed"), &text[5..50_000]).unwrap();
        fs::write(tree.join("becomes"), "a file").unwrap();
        fs::write(tree.join("shared/deep/new"), "new").unwrap();
    }
    [lower, upper, both]
}

fn built(image: &Path, tree: &Path, options: &[&str]) {
    mkfs().args(options).arg(image).arg(tree).succeeds();
}

/// Compares what is read of an image with a tree.
#[track_caller]
fn assert_shows(image: &Path, devices: &[&Path], tree: &Path, dir: &Dir) {
    let devices: Vec<_> =
        devices.iter().map(|device| format!("--device={}", device.display())).collect();
    ferrofs().args(["check", "-q"]).args(&devices).arg(image).succeeds();
    let out = dir.join("unpacked");
    ferrofs().args(["extract", "-q"]).args(&devices).arg(image).arg(&out).succeeds();
    let status = Command::new("diff").args(["-r", "--no-dereference"]).arg(tree).arg(&out).status();
    assert!(status.unwrap().success());
    fs::remove_dir_all(out).unwrap();
}

fn stderr_of(ended: CommandOutput) -> String {
    ended.stderr
}

#[test]
fn images_are_referred_to_whatever_their_tails() {
    let dir = Dir::new();
    let [lower, upper, both] = trees(&dir);
    let [one, other, merged] = ["one", "other", "merged"].map(|name| dir.join(name));
    for options in [&[][..], &["-Enoinline_data"], &["--chunksize=4096"], &["-b1024"]] {
        built(&one, &lower, options);
        built(&other, &upper, options);
        mkfs().arg(&merged).args([&one, &other]).succeeds();
        assert_shows(&merged, &[&one, &other], &both, &dir);
        let (image, whole) = (fs::metadata(&merged).unwrap(), fs::metadata(&one).unwrap());
        assert!(image.len() * 4 < whole.len(), "{} of {}", image.len(), whole.len());
    }
}

#[test]
fn clean_copies_the_data() {
    let dir = Dir::new();
    let [lower, upper, both] = trees(&dir);
    let [one, other, merged] = ["one", "other", "merged"].map(|name| dir.join(name));
    built(&one, &lower, &["-zlz4", "-C65536", "-Eztailpacking"]);
    built(&other, &upper, &["-b1024", "-zzstd", "-Efragments"]);
    let stderr = stderr_of(mkfs().arg(&merged).args([&one, &other]).ends_with(1));
    assert!(stderr.contains("--clean=data"), "{stderr}");
    for options in [&[][..], &["-zlz4hc"], &["-b512"]] {
        mkfs().arg("--clean=data").args(options).arg(&merged).args([&one, &other]).succeeds();
        assert_shows(&merged, &[], &both, &dir);
    }
}

/// An image of a few kilobytes can claim a file of terabytes: encoding or hashing its zeros took hours.
#[test]
fn a_file_between_two_directories_hides_the_lower_one() {
    let dir = Dir::new();
    let trees = ["lower", "middle", "upper"].map(|name| dir.join(name));
    for tree in [&trees[0], &trees[2]] {
        fs::create_dir_all(tree.join("a/deep")).unwrap();
    }
    fs::write(trees[0].join("a/old"), "1").unwrap();
    fs::write(trees[0].join("a/deep/old"), "2").unwrap();
    fs::create_dir(&trees[1]).unwrap();
    fs::write(trees[1].join("a"), "a file").unwrap();
    fs::write(trees[2].join("a/deep/new"), "3").unwrap();
    let images = ["0", "1", "2"].map(|name| dir.join(name));
    for (image, tree) in images.iter().zip(&trees) {
        built(image, tree, &["-Enoinline_data"]);
    }
    let devices = images.each_ref().map(PathBuf::as_path);
    for (name, options, devices) in
        [("copied", &["--clean=data"][..], &[][..]), ("referred", &[], &devices)]
    {
        let merged = dir.join(name);
        mkfs().args(options).arg(&merged).args(&images).succeeds();
        assert_shows(&merged, devices, &trees[2], &dir);
    }
}

#[test]
fn a_hole_of_terabytes_is_neither_encoded_nor_hashed() {
    let dir = Dir::new();
    let (tree, one, merged) = (dir.join("tree"), dir.join("one"), dir.join("merged"));
    fs::create_dir(&tree).unwrap();
    fs::File::create(tree.join("hole")).unwrap().set_len(2 << 40).unwrap();
    built(&one, &tree, &["--chunksize=2147483648"]);
    assert!(fs::metadata(&one).unwrap().len() < 64 << 10);
    let digests = "--xattr-inode-digest=user.sha256";
    for (options, why) in [
        (&["--clean=data", "-zlz4"][..], "the default limit for an image of its length"),
        (&["--clean=data", "--chunksize=2147483648", digests], "the default limit for an image"),
        (&[digests], "the default limit for an image"),
        (&["--clean=data", "-zlz4", "--max-input=1024g"], "the limit for an image"),
    ] {
        let stderr = stderr_of(mkfs().args(options).arg(&merged).arg(&one).ends_with(1));
        assert!(stderr.contains(why) && stderr.contains("/hole: "), "{options:?}: {stderr}");
        assert!(stderr.contains("--max-input allows more"), "{options:?}: {stderr}");
        assert!(!merged.exists());
    }
    // A hole that is neither stored nor hashed costs nothing.
    for options in [&["--clean=data", "--chunksize=2147483648"][..], &[]] {
        mkfs().args(options).arg(&merged).arg(&one).succeeds();
        fs::remove_file(&merged).unwrap();
    }
    // The files of an image to which others are added are read again.
    let more = dir.join("more");
    fs::create_dir(&more).unwrap();
    fs::write(more.join("small"), "few").unwrap();
    let add = |options: &[&str]| {
        mkfs()
            .args(["--incremental=data", "--chunksize=2147483648"])
            .args(options)
            .arg(&one)
            .arg(&more)
    };
    let stderr = add(&[digests]).ends_with(1).stderr;
    assert!(stderr.contains("/hole: ") && stderr.contains("--max-input"), "{stderr}");
    add(&[]).succeeds();
}

#[test]
fn a_compressed_image_cannot_be_referred_to() {
    let dir = Dir::new();
    let [lower, ..] = trees(&dir);
    let (one, merged) = (dir.join("one"), dir.join("merged"));
    built(&one, &lower, &["-zzstd", "-C65536"]);
    let stderr = stderr_of(mkfs().arg(&merged).arg(&one).ends_with(1));
    assert!(stderr.contains("it is compressed") && stderr.contains("--clean=data"), "{stderr}");
    assert!(!merged.exists());
}

#[test]
fn an_image_with_an_archive_stands_for_the_archive() {
    let dir = Dir::new();
    let [lower, upper, both] = trees(&dir);
    let [one, other, merged] = ["one", "other", "merged"].map(|name| dir.join(name));
    let archives = [dir.join("one.tar"), dir.join("other.tar")];
    for (image, archive, tree) in [(&one, &archives[0], &lower), (&other, &archives[1], &upper)] {
        let tar = Command::new("tar").arg("-C").arg(tree).arg("-cf").arg(archive).arg(".").status();
        assert!(tar.unwrap().success());
        mkfs().arg("--tar=i").arg(image).arg(archive).succeeds();
    }
    mkfs().args(["--aufs", "--ovlfs-strip=1"]).arg(&merged).args([&one, &other]).succeeds();
    assert_shows(&merged, &[&archives[0], &archives[1]], &both, &dir);
    built(&one, &lower, &["-b512"]);
    let stderr = stderr_of(mkfs().arg(&merged).args([&one, &other]).ends_with(1));
    assert!(
        stderr.contains("only images without a device, or only images with one device"),
        "{stderr}"
    );
}

#[test]
fn unsupported_layers_are_refused_with_the_reason() {
    let dir = Dir::new();
    let [lower, ..] = trees(&dir);
    let (one, merged) = (dir.join("one"), dir.join("merged"));
    built(&one, &lower, &["-b1024"]);
    let refused = |options: &[&str], target: &Path, sources: &[&Path]| {
        stderr_of(mkfs().args(options).arg(target).args(sources).ends_with(1))
    };
    assert!(refused(&[], &one, &[&one]).contains("would replace a file that the build reads"));
    mkfs().arg("-b4096").arg(dir.join("other")).arg(&one).succeeds();
    let info = ferrofs().args(["info", "--json"]).arg(dir.join("other")).succeeds().json();
    assert_eq!(info["block_size"], 1024);
    let four = data("chunk4k-blockmap.erofs");
    if four.exists() {
        assert!(refused(&[], &merged, &[&one, &four]).contains("the first image of 1024"));
    }
    fs::write(lower.join(".wh.small"), "").unwrap();
    built(&one, &lower, &[]);
    assert!(
        refused(&["--aufs"], &merged, &[&one]).contains("/.wh.small: it is a whiteout of aufs")
    );
    fs::write(&one, "no image").unwrap();
    assert!(refused(&[], &merged, &[&one]).contains("cannot read the image"));
    assert!(!merged.exists());
}

#[test]
fn opaque_marks_of_an_archive_stay_if_xattrs_are_left_out() {
    let dir = Dir::new();
    let (tree, archive, image) = (dir.join("tree"), dir.join("a.tar"), dir.join("image"));
    fs::create_dir_all(tree.join("dir")).unwrap();
    fs::write(tree.join("dir/.wh..wh..opq"), "").unwrap();
    let tar = Command::new("tar").arg("-cf").arg(&archive).arg("-C").arg(&tree).arg(".").status();
    assert!(tar.unwrap().success());
    let assert_opaque = |build: TestCommand| {
        build.arg(&image).arg(&archive).succeeds();
        let text = ferrofs().arg("stat").arg(&image).arg("/dir").succeeds().text();
        assert!(text.contains("trusted.overlay.opaque"), "{text}");
        fs::remove_file(&image).unwrap();
    };
    assert_opaque(mkfs().args(["--tar=f", "--aufs", "-x-1"]));
    for choice in [&["--no-xattrs"][..], &["--xattr=user.*"]] {
        assert_opaque(ferrofs().args(["build", "-q", "--whiteouts=overlay"]).args(choice));
    }
}

/// An image of `files` files of `chunks` chunks. Their inodes lie behind one another, so that their indexes overlap; the
/// index of the last one is all holes. The first file has `names` names.
fn chunked(files: usize, chunks: usize, names: usize) -> Vec<u8> {
    let mut image = CraftedImage::new(1 + files + (chunks * 4).div_ceil(32));
    let file = CompactInode {
        layout: 4,
        mode: 0o100_644,
        size: chunks * 4096,
        payload: 0,
        ..CompactInode::fifo()
    };
    for slot in 1..=files {
        let behind = if slot == files { vec![0xff; chunks * 4] } else { Vec::new() };
        image.inode(slot, file, &behind);
    }
    let numbers = (0..names).map(|_| 1).chain(2..=files).enumerate();
    let entries = numbers.map(|(number, slot)| (name(number), CraftedImage::nid(slot), FILE));
    let dots = [".", ".."].map(|dot| (dot.to_owned(), CraftedImage::nid(0), DIRECTORY));
    let root = directory(&dots.into_iter().chain(entries).collect::<Vec<_>>());
    let block = image.data(&root);
    image.inode(0, CompactInode::directory(root.len(), block), &[]);
    let mut image = image.finish();
    // Chunks are a feature.
    image[1024 + 80] |= 4;
    if files > 1 {
        // The words of inodes are addresses, which lie within the image.
        image[1024 + 36..][..4].copy_from_slice(&u32::MAX.to_le_bytes());
    }
    image
}

/// A file said that it has one link: its extents were read again for each of its names.
#[test]
fn the_extents_of_a_file_with_many_names_are_read_once() {
    let dir = Dir::new();
    let (one, merged) = (dir.write("one", &chunked(1, 65_536, 2001)), dir.join("merged"));
    for options in [&["--clean=data", "--chunksize=1048576"][..], &[]] {
        mkfs().args(options).arg(&merged).arg(&one).succeeds();
        let stat = ferrofs().arg("stat").arg(&merged).arg("/aaaa").succeeds().stdout;
        assert!(String::from_utf8(stat).unwrap().contains("2001"), "{options:?}");
        fs::remove_file(&merged).unwrap();
    }
}

#[test]
fn files_that_share_their_indexes_or_attributes_end_at_a_limit() {
    let dir = Dir::new();
    let merged = dir.join("merged");
    for (image, what) in [
        (chunked(3000, 65_536, 1), "extents of files: more than the limit of"),
        (shared_attribute(60), "attributes of files: more than the limit of"),
    ] {
        let one = dir.write("one", &image);
        let options = ["--clean=data", "--chunksize=4096", "--max-input=1024g"];
        let stderr = stderr_of(mkfs().args(options).arg(&merged).arg(&one).ends_with(1));
        assert!(stderr.contains(what), "{stderr}");
    }
}

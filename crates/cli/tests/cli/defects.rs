//! Defects of the programs of erofs-utils 1.9 that ferrofs does not have under the same names.

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, UNIX_EPOCH};

use crate::support::{Dir, TestCommand, data, ferrofs, named};

/// Size of a superblock, and its offset from the start of an image.
const MAGIC: [u8; 4] = [0xe2, 0xe1, 0xf5, 0xe0];
const SUPERBLOCK_OFFSET: u64 = 1024;
/// Of the archives in tests/data/tar: a large file with holes, the last of which ends it.
const HOLES_BYTES: usize = 300_000;

fn mkfs() -> TestCommand {
    named("mkfs.erofs").arg("--quiet")
}

/// A tree of files that are stored as they are: with a tail, without one, and shorter than a block.
fn plain_tree(dir: &Dir) -> PathBuf {
    let tree = dir.join("tree");
    fs::create_dir(&tree).unwrap();
    for bytes in [10, 4096, 70_000, 1 << 20] {
        let text: Vec<u8> = (0_u32..).flat_map(u32::to_le_bytes).take(bytes).collect();
        fs::write(tree.join(bytes.to_string()), text).unwrap();
    }
    tree
}

/// The image of an archive in tests/data/tar.
fn from_tar(dir: &Dir, archive: &str, options: &[&str]) -> PathBuf {
    let image = dir.join(format!("{archive}.erofs"));
    let fixed = ["--tar=f", "-T1700000000", "--mkfs-time", "-Uclear", "-zlz4hc"];
    let build = mkfs().args(fixed).args(options).arg(&image);
    build.arg(data("tar").join(archive)).succeeds();
    named("fsck.erofs").arg("--extract").arg(&image).succeeds();
    image
}

/// Extracts an image, with these options, and compares it with its source.
fn assert_holds(image: &Path, options: &[&str], tree: &Path, dir: &Dir) {
    let out = dir.join("out");
    let extract = format!("--extract={}", out.display());
    named("fsck.erofs").args(options).arg(extract).arg(image).succeeds();
    let same = Command::new("diff").arg("-r").arg(tree).arg(&out).status().unwrap();
    assert!(same.success(), "{options:?}");
    fs::remove_dir_all(out).unwrap();
}

fn content(image: &Path, path: &str) -> Vec<u8> {
    ferrofs().arg("cat").arg(image).arg(path).succeeds().stdout
}

#[test]
fn defect_1_an_image_at_an_offset_holds_the_bytes_of_plain_files() {
    let dir = Dir::new();
    let tree = plain_tree(&dir);
    for offset in [4096, 1 << 20, 12_345_344] {
        for options in [&[][..], &["--chunksize=4096"], &["-Enoinline_data"]] {
            let image = dir.join(format!("at-{offset}"));
            let option = format!("--offset={offset}");
            mkfs().arg(&option).args(options).arg(&image).arg(&tree).succeeds();
            let mut magic = [0; 4];
            let file = fs::File::open(&image).unwrap();
            file.read_exact_at(&mut magic, offset + SUPERBLOCK_OFFSET).unwrap();
            assert_eq!(magic, MAGIC);
            assert_holds(&image, &[&option], &tree, &dir);
        }
    }
}

#[test]
fn defect_2_hints_with_algorithms_are_followed() {
    let dir = Dir::new();
    let (image, tree, hints) = (dir.join("image"), plain_tree(&dir), dir.join("hints"));
    fs::write(tree.join("text"), "the same line\n".repeat(9000)).unwrap();
    fs::write(&hints, "16384 1 ^70000$\n0 ^10$\n4096 ^text$\n").unwrap();
    let option = format!("--compress-hints={}", hints.display());
    mkfs().args(["-zlz4hc:zstd", "-C16384", &option]).arg(&image).arg(&tree).succeeds();
    let info = ferrofs().args(["info", "--json"]).arg(&image).succeeds().json();
    for declared in ["lz4_max_distance", "zstd_window_log"] {
        assert!(info["compression"][declared].is_number(), "{declared}: {info}");
    }
    assert_holds(&image, &[], &tree, &dir);
    fs::write(&hints, "4096 2 ^70000$\n").unwrap();
    let ended = mkfs().args(["-zlz4hc:zstd", &option]).arg(&image).arg(&tree).ends_with(1);
    assert!(ended.stderr.contains("line 1"), "{}", ended.stderr);
}

#[test]
fn defect_3_an_image_that_is_added_to_has_the_old_files_and_the_new_ones() {
    let dir = Dir::new();
    let (image, tree) = (dir.join("image"), plain_tree(&dir));
    mkfs().arg("-zlz4hc").arg(&image).arg(&tree).succeeds();
    let added = dir.join("added");
    fs::create_dir(&added).unwrap();
    fs::write(added.join("new"), "the same line\n".repeat(900)).unwrap();
    fs::copy(added.join("new"), tree.join("new")).unwrap();
    mkfs().arg("--incremental=data").arg(&image).arg(&added).succeeds();
    assert_holds(&image, &[], &tree, &dir);
}

#[test]
fn defect_4_directories_are_compressed_where_that_is_said_and_only_there() {
    let dir = Dir::new();
    let tree = plain_tree(&dir);
    for number in 0..500 {
        fs::write(tree.join(format!("a-file-with-a-long-name-{number}")), "").unwrap();
    }
    let built = |options: &[&str]| {
        let image = dir.join("image");
        let fixed = ["-zlz4hc", "-T1700000000", "--all-time", "-Uclear"];
        mkfs().args(fixed).args(options).arg(&image).arg(&tree).succeeds();
        assert_holds(&image, &[], &tree, &dir);
        fs::read(&image).unwrap()
    };
    let (with, without) = (built(&["--zD"]), built(&[]));
    assert!(with.len() < without.len());
    assert!(built(&["--zD=1"]) == with && built(&["--zD=0"]) == without);
}

#[test]
fn defect_10_archives_in_xz_and_zstd_are_read_and_make_the_same_image() {
    let dir = Dir::new();
    let image = |archive, options: &[&str]| fs::read(from_tar(&dir, archive, options)).unwrap();
    let wanted = image("pax.tar.gz", &["--ungzip"]);
    for (archive, options) in [
        ("pax.tar.xz", &["--unxz"][..]),
        ("pax.tar.xz", &[]),
        ("pax-two.tar.xz", &["--unxz"]),
        ("pax.tar.zst", &[]),
        ("pax-two.tar.zstd", &[]),
    ] {
        assert!(image(archive, options) == wanted, "{archive} {options:?}");
    }
}

#[test]
fn defect_10_sparse_files_of_pax_archives_have_their_own_names_and_bytes() {
    let dir = Dir::new();
    let whole = content(&from_tar(&dir, "pax.tar.zst", &[]), "/holes");
    assert_eq!(whole.len(), HOLES_BYTES);
    assert!(whole.starts_with(b"start") && whole[131_072..].starts_with(b"middle"));
    for version in ["0.0", "0.1", "1.0"] {
        let image = from_tar(&dir, &format!("pax-sparse-{version}.tar.zst"), &[]);
        assert!(content(&image, "/holes") == whole, "{version}");
        let names = ferrofs().args(["ls", "-R"]).arg(&image).succeeds().text();
        assert!(!names.contains("GNUSparseFile"), "{version}: {names}");
    }
}

#[test]
fn defect_11_a_48_bit_image_is_reproducible_and_keeps_times() {
    let dir = Dir::new();
    let tree = plain_tree(&dir);
    let time = |seconds: u64| UNIX_EPOCH + Duration::new(seconds, 123_456_789);
    let times =
        [("10", time(1_600_000_000)), ("4096", time(1_600_000_001)), ("70000", time(1 << 33))];
    for (name, time) in times {
        fs::File::options().write(true).open(tree.join(name)).unwrap().set_modified(time).unwrap();
    }
    let built = |image: &Path, jobs: &str| {
        let fixed =
            ["-E48bit,fragments", "-zlz4hc", "-T1700000000", "--mkfs-time", "-Uclear", jobs];
        mkfs().args(fixed).arg(image).arg(&tree).succeeds();
        fs::read(image).unwrap()
    };
    let (one, other) = (dir.join("one"), dir.join("other"));
    assert!(built(&one, "--workers=1") == built(&other, "--workers=3"));
    assert_holds(&one, &[], &tree, &dir);
    for (name, time) in times {
        let found = ferrofs().args(["stat", "--json"]).arg(&one).arg(format!("/{name}"));
        let found = found.succeeds().json();
        let since = time.duration_since(UNIX_EPOCH).unwrap();
        assert_eq!(found["mtime"]["seconds"], since.as_secs(), "{name}");
        assert_eq!(found["mtime"]["nanoseconds"], since.subsec_nanos(), "{name}");
    }
}

#[test]
fn defect_12_chunks_are_aligned_and_images_with_inline_tails_are_merged() {
    let dir = Dir::new();
    let (image, tree) = (dir.join("image"), plain_tree(&dir));
    for chunk in ["--chunksize=4096", "--chunksize=65536"] {
        mkfs().args(["--dsunit=8", chunk]).arg(&image).arg(&tree).succeeds();
        assert_holds(&image, &[], &tree, &dir);
    }
    let (lower, upper) = (dir.join("lower"), dir.join("upper"));
    mkfs().arg(&lower).arg(&tree).succeeds();
    fs::write(tree.join("10"), "newer, and in the tail of an inode").unwrap();
    mkfs().arg(&upper).arg(&tree).succeeds();
    mkfs().arg(&image).args([&lower, &upper]).succeeds();
    let devices = [&lower, &upper].map(|layer| format!("--device={}", layer.display()));
    assert_holds(&image, &devices.each_ref().map(String::as_str), &tree, &dir);
}

#[test]
fn defect_14_libdeflate_declares_the_window_that_it_uses() {
    let dir = Dir::new();
    let (image, tree) = (dir.join("image"), plain_tree(&dir));
    for algorithm in ["-zlibdeflate", "-zlibdeflate,12", "-zdeflate,9"] {
        mkfs().arg(algorithm).arg(&image).arg(&tree).succeeds();
        let info = ferrofs().args(["info", "--json"]).arg(&image).succeeds().json();
        assert_eq!(info["compression"]["deflate_window_bits"], 15, "{algorithm}");
        named("fsck.erofs").arg("--extract").arg(&image).succeeds();
    }
}

#[test]
fn defect_14_a_block_size_that_is_no_power_of_two_is_rounded_with_a_warning() {
    let dir = Dir::new();
    let (image, tree) = (dir.join("image"), plain_tree(&dir));
    for size in ["0", "256", "131072", "18446744073709555712"] {
        let ended = mkfs().arg(format!("-b{size}")).arg(&image).arg(&tree).ends_with(1);
        assert!(ended.stderr.contains(size), "{size}: {}", ended.stderr);
        assert!(!image.exists(), "{size}");
    }
    let ended = named("mkfs.erofs").arg("-b3000").arg(&image).arg(&tree).succeeds();
    assert!(ended.stderr.contains("blocks have 2048 bytes"), "{}", ended.stderr);
    let info = ferrofs().args(["info", "--json"]).arg(&image).succeeds().json();
    assert_eq!(info["block_size"], 2048);
    let ended = named("mkfs.erofs").arg("-b2048").arg(&image).arg(&tree).succeeds();
    assert!(ended.stderr.is_empty(), "{}", ended.stderr);
}

#[test]
fn defect_14_an_order_that_is_not_known_has_no_effect_and_says_so() {
    let dir = Dir::new();
    for (order, is_known) in [("anything", false), ("none", false), ("path", true)] {
        let sort = format!("--sort={order}");
        let build = named("mkfs.erofs").args(["--tar=f", &sort]).arg(dir.join(order));
        let ended = build.arg(data("few.tar")).succeeds();
        assert_eq!(ended.stderr.contains("--sort"), !is_known, "{order}: {}", ended.stderr);
    }
}

#[test]
fn defect_14_the_exit_status_of_dump_is_that_of_the_original() {
    let dump = || named("dump.erofs");
    let dir = Dir::new();
    let sound = data("plain.erofs");
    for arguments in [&[][..], &["-S"], &["--path=/"], &["-e", "--path=/b.txt"]] {
        assert!(dump().args(arguments).arg(&sound).succeeds().stderr.is_empty());
    }
    for arguments in [&["--path=/none"][..], &["--nid=99999999"], &["--ls", "--path=/b.txt"]] {
        let ended = dump().args(arguments).arg(&sound).succeeds();
        assert!(!ended.stderr.is_empty(), "{arguments:?}");
    }
    let wrong_sum = dir.patched("plain.erofs", 1028, &[1, 2, 3, 4]);
    assert!(dump().arg(&wrong_sum).succeeds().stderr.contains("warning: "));
    let no_magic = dir.write("no-magic", &vec![0; 8192]);
    let too_short = dir.write("too-short", &MAGIC);
    for (image, status) in [
        (&no_magic, 234),
        (&too_short, 234),
        (&dir.path().to_owned(), 234),
        (&dir.join("absent"), 254),
    ] {
        let ended = dump().arg(image).ends_with(status);
        assert!(!ended.stderr.is_empty(), "{}", image.display());
    }
    dump().arg("--frobnicate").arg(&sound).ends_with(234);
}

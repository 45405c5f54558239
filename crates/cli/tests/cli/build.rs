//! `ferrofs build` and mkfs.erofs: what they create, refuse and print.

use std::fs;
use std::io::Write;
use std::os::unix::fs::{FileTypeExt, PermissionsExt, symlink};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::Value;

use crate::support::{Dir, TestCommand, data, ferrofs, named};

/// The command as mkfs.erofs.
fn mkfs() -> TestCommand {
    named("mkfs.erofs")
}

/// A source with every kind of entry that an ordinary user can create.
fn source(dir: &Dir) -> PathBuf {
    let tree = dir.join("tree");
    fs::create_dir_all(tree.join("sub/deeper")).unwrap();
    let text: String = (0..20_000).map(|line| format!("line {} of many\n", line % 977)).collect();
    fs::write(tree.join("text"), &text).unwrap();
    fs::write(tree.join("sub/copy"), &text).unwrap();
    fs::write(tree.join("sub/deeper/small"), b"a few bytes").unwrap();
    fs::write(tree.join("empty"), b"").unwrap();
    fs::hard_link(tree.join("text"), tree.join("sub/linked")).unwrap();
    symlink("sub/copy", tree.join("link")).unwrap();
    fs::File::create(tree.join("hole")).unwrap().set_len(1 << 20).unwrap();
    fs::set_permissions(tree.join("empty"), fs::Permissions::from_mode(0o600)).unwrap();
    rustix::fs::setxattr(tree.join("text"), "user.kind", b"prose", rustix::fs::XattrFlags::empty())
        .unwrap_or_default();
    tree
}

fn sha256(report: &Value) -> String {
    report["sha256"].as_str().unwrap().to_owned()
}

/// Unpacks an image and compares contents with its source.
#[track_caller]
fn assert_holds(image: &Path, tree: &Path, dir: &Dir) {
    ferrofs().arg("check").arg("-q").arg(image).succeeds();
    let out = dir.join("unpacked");
    ferrofs().args(["extract", "-q"]).arg(image).arg(&out).succeeds();
    let status = Command::new("diff").args(["-r", "--no-dereference"]).arg(tree).arg(&out).status();
    assert!(status.unwrap().success());
    fs::remove_dir_all(out).unwrap();
}

#[test]
fn a_table_of_chunks_that_does_not_fit_is_reported_at_its_file_with_the_options_that_help() {
    let dir = Dir::new();
    let tree = dir.join("tree");
    fs::create_dir(&tree).unwrap();
    fs::write(tree.join("before"), "some data").unwrap();
    fs::File::create(tree.join("hole")).unwrap().set_len(1 << 40).unwrap();
    let build = |words: &[&str]| {
        let words = [&["build", "-q", "--memory=64m"], words].concat();
        ferrofs().args(words).arg(dir.join("image")).arg(&tree)
    };
    let text = build(&["--chunk-size=4k"]).ends_with(1).stderr;
    assert!(text.contains("tree/hole: its table of 268435456 chunks takes "), "{text}");
    assert!(text.contains("a larger --chunk-size or a larger --memory makes it fit"), "{text}");
    build(&["--chunk-size=1g"]).succeeds();
}

#[test]
fn remote_layouts_hold_the_same_tree() {
    let dir = Dir::new();
    let (tree, image, index) = (source(&dir), dir.join("image"), dir.join("image.chunk-index"));
    for compression in [&["-zlz4", "--fragments", "--dedupe"][..], &[], &["--chunk-size=4k"]] {
        let beside = format!("--chunk-index={}", index.display());
        let words = [&["build", "--json", "-f", "--metadata-first", &beside][..], compression];
        let built = ferrofs().args(words.concat()).arg(&image).arg(&tree).succeeds().json();
        assert_holds(&image, &tree, &dir);
        let digest = built["chunk_index"]["digest"].as_str().unwrap().to_owned();
        assert!(digest.starts_with("sha256:") && built["chunk_index"]["offset"].is_null());
        assert_eq!(built["chunk_index"]["bytes"], fs::read(&index).unwrap().len());
    }
    let words = ["build", "--json", "-f", "--chunk-index", "-zlz4"];
    let built = ferrofs().args(words).arg(&image).arg(&tree).succeeds().json();
    let bytes = fs::read(&image).unwrap();
    let (start, count) = (&built["chunk_index"]["offset"], &built["chunk_index"]["bytes"]);
    assert_eq!(*start, built["bytes"]);
    assert_eq!(start.as_u64().unwrap() + count.as_u64().unwrap(), bytes.len() as u64);
    assert_holds(&image, &tree, &dir);
}

#[test]
fn layouts_that_exclude_each_other_are_wrong_usage() {
    let dir = Dir::new();
    let (tree, image) = (source(&dir), dir.join("image"));
    let itself = format!("--chunk-index={}", image.display());
    for (words, why) in [
        (&["--metadata-first", "--48bit"][..], "48-bit"),
        (&["--metadata-first", "--metabox=4k", "-zlz4"], "metabox"),
        (&["--metadata-first", "--compress-directories", "-zlz4"], "compressed directories"),
        (&["--chunk-index", "--chunk-size=4k", "--blob=blob"], "not its blob"),
    ] {
        let ended = ferrofs().arg("build").args(words).arg(&image).arg(&tree).ends_with(2);
        assert!(ended.stderr.contains(why), "{}", ended.stderr);
    }
    let ended = ferrofs().args(["build", &itself]).arg(&image).arg(&tree).ends_with(2);
    assert!(ended.stderr.contains("cannot be the same file"), "{}", ended.stderr);
    assert!(!image.exists());
}

#[test]
fn hints_give_files_algorithms_of_their_own() {
    let dir = Dir::new();
    let (tree, hints, image) = (source(&dir), dir.join("hints"), dir.join("image"));
    fs::write(&hints, "# of two files\n16384 2 copy$\n0 ^te.t$\n").unwrap();
    let option = format!("--hints={}", hints.display());
    let words = ["build", "--json", "-zlz4:deflate:zstd", &option];
    let report = ferrofs().args(words).arg(&image).arg(&tree).succeeds().json();
    let algorithms = report["algorithms"].as_array().unwrap();
    let names: Vec<_> = algorithms.iter().map(|each| each["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["none", "lz4", "zstd"]);
    assert_holds(&image, &tree, &dir);
    let option = format!("--compress-hints={}", hints.display());
    mkfs().args(["-zlz4:deflate:zstd", "--quiet", &option]).arg(&image).arg(&tree).succeeds();
    assert_holds(&image, &tree, &dir);
    let refused = |text: &str, why: &str| {
        fs::write(&hints, text).unwrap();
        let words = ["-zlz4", &option];
        let ended = mkfs().args(words).arg(dir.join("other")).arg(&tree).ends_with(1);
        assert!(ended.stderr.contains(why), "{}", ended.stderr);
    };
    refused("\n4096 2 copy$\n", "line 2 of the hints: no algorithm 2, there are 1");
    refused("4096 fine\n4096\n", "line 2 of the hints: ");
    refused("2097152 fine\n", "line 1 of the hints: pclusters of 2097152 bytes");
    assert!(!dir.join("other").exists());
}

#[test]
fn every_algorithm_and_layout_holds_the_source() {
    let dir = Dir::new();
    let tree = source(&dir);
    for options in [
        &[][..],
        &["-zlz4"],
        &["-zlz4", "--max-distance=4096", "-C4k"],
        &["-zlz4hc,12", "-C1m", "--inline-pclusters"],
        &["-zdeflate,9", "--full-indexes"],
        &["-zzstd,level=5", "--fragments"],
        &["-zlzma", "--fragments=all"],
        &["-zlz4hc", "--dedupe"],
        &["-zzstd", "-C4k", "--dedupe", "--fragments", "--inline-pclusters"],
        &["-zdeflate", "--dedupe", "--fragments=all"],
        &["--chunk-size=64k"],
        &["-b512", "-zlz4", "-C2k"],
        &["-zlz4", "--chunk-size=64k", "--align-data=64k", "--align-image=1m"],
        &["-zzstd", "--fragments", "--fragments-pcluster=128k", "--share-fragments=off"],
        &["-zlz4", "--fragments=all", "--share-fragments=files", "--xattr-prefix=user.ki"],
        &["--digest-xattr", "--root-xattr-room=1k"],
        &["--no-inline-data", "--xattr-share-above=0"],
        &["--48bit"],
        &["--48bit", "-zlz4hc", "-C64k", "--dedupe", "--fragments"],
        &["--offset=64k"],
    ] {
        let image = dir.join("image");
        ferrofs().args(["build", "-q", "-f"]).args(options).arg(&image).arg(&tree).succeeds();
        if options == ["--offset=64k"] {
            ferrofs().args(["check", "-q", "--offset=64k"]).arg(&image).succeeds();
        } else {
            assert_holds(&image, &tree, &dir);
        }
    }
}

#[test]
fn reproducible_images_are_the_same_for_any_number_of_threads() {
    let dir = Dir::new();
    let tree = source(&dir);
    let mut digests: Vec<String> = ["--jobs=1", "--jobs=2", "--jobs=5"]
        .iter()
        .map(|jobs| {
            let build =
                ferrofs().args(["build", "-f", "--json", "--reproducible", "-zlz4hc", jobs]);
            sha256(&build.arg(dir.join("image")).arg(&tree).succeeds().json())
        })
        .collect();
    digests.dedup();
    assert_eq!(digests.len(), 1, "{digests:?}");
    let uuid = ferrofs().args(["info", "--json"]).arg(dir.join("image")).succeeds().json();
    assert_eq!(uuid["uuid"], "00000000-0000-0000-0000-000000000000");
}

/// The table of pclusters is full before those come that the second file has, too.
#[test]
fn reproducible_images_are_the_same_for_any_number_of_threads_when_memory_is_scarce() {
    let dir = Dir::new();
    let tree = dir.join("tree");
    fs::create_dir(&tree).unwrap();
    let mut state = 1_u64;
    let noise = std::iter::repeat_with(|| {
        state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
        state.to_be_bytes()[0]
    });
    let noise: Vec<u8> = noise.take(37_000 * 512).collect();
    fs::write(tree.join("a"), &noise).unwrap();
    fs::write(tree.join("b"), &noise[34_000 * 512..]).unwrap();
    let digest = |jobs| {
        let build = ferrofs().args(["build", "-f", "--json", "--reproducible", "-zlz4", "-b512"]);
        let build = build.args(["-C512", "--fragments", "--memory=42m", jobs]);
        let report = build.arg(dir.join("image")).arg(&tree).succeeds().json();
        // Some of the second file is shared, and some is not.
        let bytes = report["bytes"].as_u64().unwrap();
        assert!((37_500 * 512..39_500 * 512).contains(&bytes), "{report}");
        sha256(&report)
    };
    assert_eq!(digest("--jobs=1"), digest("--jobs=2"));
}

#[test]
fn equal_runs_are_stored_once_and_counted() {
    let dir = Dir::new();
    let tree = dir.join("tree");
    fs::create_dir(&tree).unwrap();
    let mut state = 1_u64;
    let words = std::iter::repeat_with(|| {
        state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
        format!("{:03} words of {:02}, ", state >> 54, (state >> 40) & 63)
    });
    let text: Vec<u8> = words.flat_map(String::into_bytes).take(300_000).collect();
    fs::write(tree.join("a"), &text).unwrap();
    fs::write(tree.join("b"), &text).unwrap();
    fs::write(tree.join("c"), [b"something in front of it".as_slice(), &text[77..]].concat())
        .unwrap();
    let image = dir.join("image");
    for (options, copied) in [(&["--dedupe"][..], 500_000), (&[], 0)] {
        let build = ferrofs().args(["build", "-f", "--json", "-zlz4"]).args(options);
        let report = build.arg(&image).arg(&tree).succeeds().json();
        assert!(report["saved_by_dedupe_bytes"].as_u64().unwrap() >= copied, "{report}");
        let is_small = fs::metadata(&image).unwrap().len() < 200_000;
        assert_eq!(is_small, copied > 0);
        assert_holds(&image, &tree, &dir);
    }
}

#[test]
fn a_report_for_programs_adds_up() {
    let dir = Dir::new();
    let tree = source(&dir);
    let build = ferrofs().args(["build", "--json", "-zzstd", "--progress=json", "-Llabel"]);
    let ended = build.arg(dir.join("image")).arg(&tree).succeeds();
    let report = ended.json();
    assert_eq!(report["verified"], true);
    assert_eq!(report["bytes"].as_u64().unwrap(), fs::metadata(dir.join("image")).unwrap().len());
    assert_eq!(sha256(&report).len(), 64);
    let algorithms = report["algorithms"].as_array().unwrap();
    assert!(algorithms.iter().any(|algorithm| algorithm["name"] == "zstd"), "{report}");
    let last: Value = serde_json::from_str(ended.stderr.lines().last().unwrap()).unwrap();
    assert_eq!((&last["verb"], &last["done"]), (&"build".into(), &last["total"]));
}

#[test]
fn an_existing_image_is_replaced_only_with_force() {
    let dir = Dir::new();
    let tree = source(&dir);
    let image = dir.write("image", b"mine");
    let ended = ferrofs().arg("build").arg(&image).arg(&tree).ends_with(1);
    assert!(ended.stderr.contains("--force"), "{}", ended.stderr);
    assert_eq!(fs::read(&image).unwrap(), b"mine");
    ferrofs().args(["build", "-q", "--force"]).arg(&image).arg(&tree).succeeds();
    assert_holds(&image, &tree, &dir);
}

#[test]
fn whatever_fails_leaves_no_image() {
    let dir = Dir::new();
    let image = dir.join("image");
    let ended = ferrofs().arg("build").arg(&image).arg(dir.join("none")).ends_with(1);
    assert!(ended.stderr.contains("none: "), "{}", ended.stderr);
    let archive = dir.write("bad.tar", &[7; 4096]);
    ferrofs().arg("build").arg(&image).arg(archive).ends_with(1);
    ferrofs().args(["build", "--dedupe"]).arg(&image).arg(source(&dir)).ends_with(2);
    ferrofs().args(["build", "-zfoo"]).arg(&image).arg(dir.join("tree")).ends_with(2);
    let mut left = fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().file_name());
    assert!(left.all(|name| name == "tree" || name == "bad.tar"), "{:?}", dir.path());
}

#[test]
fn a_dry_run_prints_an_estimate_and_creates_nothing() {
    let dir = Dir::new();
    let tree = source(&dir);
    let image = dir.join("image");
    let build =
        |option| ferrofs().args(["build", "-zlz4", "--json", option]).arg(&image).arg(&tree);
    let estimate = build("--dry-run").succeeds().json();
    assert!(!image.exists());
    let report = build("--no-verify").succeeds().json();
    assert_eq!(report["verified"], false);
    let (guess, truth) = (&estimate["image_bytes"], &report["bytes"]);
    let (guess, truth) = (guess.as_u64().unwrap(), truth.as_u64().unwrap());
    assert!(guess.abs_diff(truth) <= 3 * 4096, "{guess} {truth}");
    assert_eq!(estimate["content_bytes"], report["content_bytes"]);
}

#[test]
fn a_dry_run_with_a_chunk_index_writes_no_index() {
    let dir = Dir::new();
    let (tree, image, index) = (source(&dir), dir.join("image"), dir.join("index"));
    let beside = format!("--chunk-index={}", index.display());
    let mut estimates = Vec::new();
    for options in [&[][..], &["--chunk-index"], &[&beside], &["--force", &beside]] {
        if options.len() == 2 {
            dir.write("index", b"mine");
        }
        let words = ["build", "-zlz4", "--json", "--dry-run"];
        let ended = ferrofs().args(words).args(options).arg(&image).arg(&tree).succeeds();
        estimates.push(ended.json());
        assert!(!image.exists() && index.exists() == (options.len() == 2), "{options:?}");
    }
    assert_eq!(fs::read(&index).unwrap(), b"mine");
    assert!(estimates.iter().all(|estimate| *estimate == estimates[0]), "{estimates:?}");
}

#[test]
fn archives_are_layers_and_may_come_through_a_pipe() {
    let dir = Dir::new();
    let tree = source(&dir);
    let tar = dir.join("tree.tar");
    let mut packer = Command::new("tar");
    packer.args(["--xattrs", "-C"]).arg(&tree).arg("-cf").arg(&tar).arg(".");
    let status = packer.status().unwrap();
    assert!(status.success());
    ferrofs().args(["build", "-q"]).arg(dir.join("one")).arg(&tar).succeeds();
    assert_holds(&dir.join("one"), &tree, &dir);
    let mut child = Command::new(env!("CARGO_BIN_EXE_ferrofs"))
        .args(["build", "-q", "--reproducible"])
        .arg(dir.join("two"))
        .arg("-")
        .stdin(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(&fs::read(&tar).unwrap()).unwrap();
    assert!(child.wait().unwrap().success());
    ferrofs().args(["build", "-q", "--reproducible"]).arg(dir.join("three")).arg(&tar).succeeds();
    assert_eq!(fs::read(dir.join("two")).unwrap(), fs::read(dir.join("three")).unwrap());
}

#[test]
fn with_keep_going_an_unreadable_file_is_named_and_left_out() {
    let dir = Dir::new();
    let tree = source(&dir);
    Command::new("chmod").args(["-R", "a+rX"]).arg(tree.join("sub")).status().unwrap();
    for path in ["", "hole", "link"] {
        fs::set_permissions(tree.join(path), fs::Permissions::from_mode(0o755)).unwrap();
    }
    fs::set_permissions(tree.join("text"), fs::Permissions::from_mode(0o000)).unwrap();
    let image = dir.join("image");
    let ended = dir.ordinary_ferrofs().arg("build").arg(&image).arg(&tree).ends_with(1);
    assert!(ended.stderr.contains("text") || ended.stderr.contains("empty"), "{}", ended.stderr);
    let build = dir.ordinary_ferrofs().args(["build", "--keep-going", "--json"]);
    let ended = build.arg(&image).arg(&tree).succeeds();
    assert!(ended.json()["warnings"].as_u64().unwrap() > 0, "{}", ended.stderr);
    assert!(ended.stderr.contains("left out"), "{}", ended.stderr);
    ferrofs().arg("check").arg(&image).succeeds();
}

#[test]
fn mkfs_prints_its_version_first_and_then_a_summary() {
    let dir = Dir::new();
    let tree = source(&dir);
    let ended = mkfs().arg("-zlz4hc").arg(dir.join("image")).arg(&tree).arg("-C65536").succeeds();
    let lines = ended.lines();
    assert!(lines[0].starts_with("mkfs.erofs "), "{lines:?}");
    assert!(lines.iter().any(|line| line.starts_with("Filesystem UUID: ")), "{lines:?}");
    assert!(lines.iter().any(|line| line.starts_with("Filesystem total blocks: ")), "{lines:?}");
    assert_holds(&dir.join("image"), &tree, &dir);
    let quiet = mkfs().arg("--quiet").arg(dir.join("image")).arg(&tree).succeeds();
    assert_eq!((quiet.text(), quiet.stderr), (String::new(), String::new()));
}

#[test]
fn mkfs_knows_two_endings_and_refuses_by_name() {
    let dir = Dir::new();
    let tree = source(&dir);
    for (option, part) in [
        ("-zfoo", "foo"),
        ("--blobdev=x", "--chunksize"),
        ("--incremental=data", "cannot examine"),
        ("--frobnicate", "--frobnicate"),
        ("-Ebogus", "bogus"),
    ] {
        let ended = mkfs().arg(option).arg(dir.join("image")).arg(&tree).ends_with(1);
        assert!(ended.stderr.contains(part), "{option}: {}", ended.stderr);
        assert!(!dir.join("image").exists(), "{option}");
    }
    mkfs().ends_with(1);
    let help = mkfs().arg("--help").succeeds().text();
    assert!(help.contains("-b#") && help.contains("--xattr-prefix"), "{help}");
    assert!(mkfs().arg("-V").succeeds().text().starts_with("mkfs.erofs "));
}

#[test]
fn mkfs_takes_the_time_of_the_source_from_the_environment() {
    let dir = Dir::new();
    let tree = source(&dir);
    let image = dir.join("image");
    mkfs().env("SOURCE_DATE_EPOCH", "1000000000").arg("--quiet").arg(&image).arg(&tree).succeeds();
    let report = ferrofs().args(["stat", "--json"]).arg(&image).arg("/text").succeeds().json();
    assert_eq!(report["mtime"]["seconds"], 1_000_000_000);
    let info = ferrofs().args(["info", "--json"]).arg(&image).succeeds().json();
    assert_eq!(info["built"]["seconds"], 1_000_000_000);
    mkfs().env("SOURCE_DATE_EPOCH", "soon").arg(&image).arg(&tree).ends_with(1);
    mkfs().args(["--quiet", "-T7"]).arg(&image).arg(&tree).succeeds();
    let report = ferrofs().args(["stat", "--json"]).arg(&image).arg("/text").succeeds().json();
    assert_eq!(report["mtime"]["seconds"], 7);
}

#[test]
fn a_container_engine_can_pipe_a_layer_through() {
    let dir = Dir::new();
    let image = dir.join("layer.erofs");
    let archive = fs::File::open(data("few.tar")).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_ferrofs"));
    command.arg0("mkfs.erofs").args(["--tar=f", "--aufs", "-Enoinline_data", "--quiet", "-Uclear"]);
    let output = command.arg(&image).arg("-").stdin(archive).output().unwrap();
    assert!(output.status.success() && output.stdout.is_empty(), "{output:?}");
    ferrofs().arg("check").arg(&image).succeeds();
    assert!(!fs::metadata(&image).unwrap().file_type().is_block_device());
}

/// Unpacks an image with what it refers to, and compares contents with its source.
#[track_caller]
fn assert_holds_with(image: &Path, device: &Path, tree: &Path, dir: &Dir) {
    let device = format!("--device={}", device.display());
    ferrofs().args(["check", "-q", &device]).arg(image).succeeds();
    let out = dir.join("unpacked");
    ferrofs().args(["extract", "-q", &device]).arg(image).arg(&out).succeeds();
    let status = Command::new("diff").args(["-r", "--no-dereference"]).arg(tree).arg(&out).status();
    assert!(status.unwrap().success());
    fs::remove_dir_all(out).unwrap();
}

#[test]
fn a_blob_holds_the_data_and_replaces_files_only_with_force() {
    let dir = Dir::new();
    let (tree, image, blob) = (source(&dir), dir.join("image"), dir.join("blob"));
    let blob_option = format!("--blob={}", blob.display());
    let build = || ferrofs().args(["build", "--json", "--chunk-size=64k", &blob_option]);
    let report = build().arg(&image).arg(&tree).succeeds().json();
    assert_eq!(report["blob_bytes"], fs::metadata(&blob).unwrap().len());
    assert_eq!(report["verified"], true);
    assert_holds_with(&image, &blob, &tree, &dir);
    fs::remove_file(&image).unwrap();
    let stderr = build().arg(&image).arg(&tree).ends_with(1).stderr;
    assert!(stderr.contains("blob: exists already; --force replaces it"), "{stderr}");
    build().arg("-f").arg(&image).arg(&tree).succeeds();
    let stderr = build().arg("-f").arg(&blob).arg(&tree).ends_with(2).stderr;
    assert!(stderr.contains("cannot be the same file"), "{stderr}");
    assert_holds_with(&image, &blob, &tree, &dir);
    let blobdev = format!("--blobdev={}", blob.display());
    mkfs().args(["--quiet", "--chunksize=4096", &blobdev]).arg(&image).arg(&tree).succeeds();
    assert_holds_with(&image, &blob, &tree, &dir);
}

#[test]
fn an_image_may_leave_contents_in_its_archive() {
    let dir = Dir::new();
    let (tree, image, archive) = (source(&dir), dir.join("image"), dir.join("a.tar"));
    let tar = Command::new("tar").arg("-C").arg(&tree).arg("-cf").arg(&archive).arg(".").status();
    assert!(tar.unwrap().success());
    let same = ["--quiet", "-Uclear", "-T5", "--tar=i"];
    mkfs().args(same).arg(&image).arg(&archive).succeeds();
    assert_holds_with(&image, &archive, &tree, &dir);
    let piped = dir.join("piped");
    let mut child = Command::new(env!("CARGO_BIN_EXE_ferrofs"))
        .arg0("mkfs.erofs")
        .args(same)
        .arg(&piped)
        .arg("-")
        .stdin(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(&fs::read(&archive).unwrap()).unwrap();
    assert!(child.wait().unwrap().success());
    let whole = fs::read(&image).unwrap();
    assert!(whole == fs::read(&piped).unwrap());
    // As containerd has it: the archive behind the image.
    fs::write(&piped, [whole, fs::read(&archive).unwrap()].concat()).unwrap();
    assert_holds(&piped, &tree, &dir);
}

#[test]
fn an_image_in_place_of_an_archive_is_named_and_the_older_image_stays() {
    let dir = Dir::new();
    let out = dir.write("out", b"an older image");
    let image = fs::read(data("plain.erofs")).unwrap();
    let mut ext4 = vec![0; 100_000];
    ext4[1080..1082].copy_from_slice(&[0x53, 0xef]);
    let mut unknown = vec![0; 100_000];
    unknown[5000] = 1;
    let empty = dir.write("empty.tar", &vec![0; 10_240]);
    let packed = |path: &Path| {
        let packed = Command::new("gzip").arg("-c").arg(path).output().unwrap();
        dir.write("packed.gz", &packed.stdout)
    };
    for (bytes, words) in [
        (&image[..], "this is an EROFS image"),
        (&image[..1100], "this is an EROFS image"),
        (&ext4, "this is an ext2, ext3 or ext4 file system"),
        (&unknown, "byte 5000: not a tar archive: it begins with"),
    ] {
        let file = dir.write("file", bytes);
        for sources in [vec![file.clone()], vec![packed(&file)], vec![empty.clone(), file.clone()]]
        {
            let refused = ferrofs().args(["build", "-f"]).arg(&out).args(&sources).ends_with(1);
            let name = sources.last().unwrap().display().to_string();
            assert!(
                refused.stderr.contains(&name) && refused.stderr.contains(words),
                "{}",
                refused.stderr
            );
            assert!(refused.stderr.contains("not a tar archive"), "{}", refused.stderr);
            assert_eq!(fs::read(&out).unwrap(), b"an older image");
        }
        let mut command = Command::new(env!("CARGO_BIN_EXE_ferrofs"));
        let command = command.args(["build", "-f"]).arg(&out).arg("-");
        let piped = command.stdin(fs::File::open(&file).unwrap()).output().unwrap();
        let stderr = String::from_utf8(piped.stderr).unwrap();
        assert!(stderr.contains("standard input: ") && stderr.contains(words), "{stderr}");
    }
    ferrofs().args(["build", "-f", "-q"]).arg(&out).arg(&empty).succeeds();
    ferrofs().args(["check", "-q"]).arg(&out).succeeds();
    // As the original and GNU tar: the rest is not looked at.
    mkfs().args(["--quiet", "--tar=f"]).arg(&out).arg(data("plain.erofs")).succeeds();
}

#[test]
fn an_option_for_another_kind_of_source_is_named() {
    let dir = Dir::new();
    let (tree, out) = (source(&dir), dir.join("out"));
    let archive = dir.write("t.tar", &vec![0; 10_240]);
    for (option, is_for_archives) in [
        ("--whiteouts=apply", true),
        ("--whiteouts=overlay", true),
        ("--max-input=1", true),
        ("--exclude=x", false),
        ("--exclude-regex=x", false),
        ("--separate-hard-links", false),
        ("--keep-going", false),
    ] {
        let source = if is_for_archives { &tree } else { &archive };
        let refused = ferrofs().args(["build", option]).arg(&out).arg(source).ends_with(2);
        let name = option.split_once('=').filter(|(name, _)| *name != "--whiteouts");
        let words = format!("{}: ", source.display());
        assert!(refused.stderr.contains(&words), "{}", refused.stderr);
        assert!(
            refused.stderr.contains(name.map_or(option, |(name, _)| name)),
            "{}",
            refused.stderr
        );
        assert!(refused.stderr.contains("leave it out") && !out.exists(), "{}", refused.stderr);
    }
    let layers = ferrofs().arg("build").arg(&out).args([&archive, &tree]).ends_with(2);
    assert!(layers.stderr.contains("tree: a directory, but several sources"), "{}", layers.stderr);
    let alone =
        ferrofs().args(["build", "--mount-point=/vendor"]).arg(&out).arg(&tree).ends_with(2);
    assert!(alone.stderr.contains("--mount-point") && !out.exists(), "{}", alone.stderr);
}

/// Only the exact spelling without leading and trailing slashes excluded anything.
#[test]
fn a_path_is_excluded_however_it_is_spelled() {
    let dir = Dir::new();
    let tree = dir.join("tree");
    fs::create_dir_all(tree.join("secret/deep")).unwrap();
    fs::write(tree.join("open"), "x").unwrap();
    let image = dir.join("image");
    let build =
        |options: &[&str]| ferrofs().args(["build", "-f"]).args(options).args([&image, &tree]);
    let names =
        || String::from_utf8(ferrofs().args(["ls", "-R"]).arg(&image).succeeds().stdout).unwrap();
    for path in ["secret", "/secret", "secret/", "./secret", "//./secret/."] {
        let stderr = build(&["--exclude", path]).succeeds().stderr;
        assert!(!stderr.contains("warning"), "{path}: {stderr}");
        assert!(!names().contains("secret"), "{path}: {}", names());
    }
    for (path, why) in [("../tree/secret", "contains \"..\""), ("/", "is all of SOURCE")] {
        let stderr = build(&["--exclude", path]).ends_with(2).stderr;
        assert!(stderr.contains(&format!("--exclude: {path} {why}")), "{stderr}");
    }
    let stderr = build(&["--exclude=secret/shallow"]).succeeds().stderr;
    assert!(stderr.contains("warning: --exclude: there is no secret/shallow in "), "{stderr}");
    assert_eq!(build(&["-q", "--exclude=secret/shallow"]).succeeds().stderr, "");
    assert!(names().contains("deep"));
}

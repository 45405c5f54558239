//! The command under the names of erofs-utils, where it once was stricter than the original or
//! printed something else: calls that scripts, container engines and build systems make.

use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt, chown, symlink};
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use ferrofs_image::{FileType, Image, WalkEvent};

use crate::support::{Dir, TestCommand, data, ferrofs, has_strace, is_root, named, skip};

fn mkfs() -> TestCommand {
    named("mkfs.erofs")
}

/// A directory with some files, whose times have fractions of a second.
fn source(dir: &Dir) -> PathBuf {
    let tree = dir.join("tree");
    fs::create_dir_all(tree.join("sub")).unwrap();
    let text: String = (0..9_000).map(|line| format!("line {}\n", line % 977)).collect();
    fs::write(tree.join("text"), &text).unwrap();
    fs::write(tree.join("sub/copy"), &text).unwrap();
    fs::write(tree.join("small"), b"a few bytes").unwrap();
    symlink("sub/copy", tree.join("link")).unwrap();
    tree
}

#[test]
fn version_gates_find_the_version_of_erofs_utils() {
    for name in ["mkfs.erofs", "fsck.erofs", "dump.erofs"] {
        for option in ["-V", "--version"] {
            let text = named(name).arg(option).succeeds().text();
            let mut lines = text.lines();
            assert_eq!(lines.next().unwrap(), format!("{name} (erofs-utils) 1.9.4"));
            let own = format!("ferrofs {}", env!("CARGO_PKG_VERSION"));
            assert_eq!(lines.last().unwrap(), own, "{text}");
        }
    }
    let list = "lz4, lz4hc, lzma, deflate, libdeflate, zstd\n";
    let text = named("mkfs.erofs").arg("-V").succeeds().text();
    assert!(text.contains(&format!("\navailable compressors: {list}")), "{text}");
    let text = named("fsck.erofs").arg("-V").succeeds().text();
    assert!(text.contains(&format!("\navailable decompressors: {list}")), "{text}");
    // The original prints it and ends with 1.
    let text = named("erofsfuse").arg("-V").ends_with(1).text();
    assert!(text.starts_with("erofsfuse 1.9.4\n"), "{text}");
}

#[test]
fn a_tar_index_with_blocks_of_4096_bytes_has_blocks_of_512() {
    let dir = Dir::new();
    let image = dir.join("image");
    let words = ["--tar=i", "-Elegacy-compress", "-b4096", "--quiet"];
    let ended = mkfs().args(words).arg(&image).arg(data("few.tar")).succeeds();
    assert_eq!((ended.text(), ended.stderr), (String::new(), String::new()));
    let info = ferrofs().args(["info", "--json"]).arg(&image).succeeds().json();
    assert_eq!(info["block_size"], 512);
    let device = format!("--device={}", data("few.tar").display());
    ferrofs().args(["check", "-q", &device]).arg(&image).succeeds();
}

#[test]
fn features_of_compression_without_an_algorithm_have_no_effect() {
    let dir = Dir::new();
    let tree = source(&dir);
    let hints = dir.write("hints", b"65536 text\n");
    let hints = format!("--compress-hints={}", hints.display());
    for option in [
        "-Efragments",
        "-Eall-fragments",
        "-Eztailpacking",
        "-Elegacy-compress",
        "-Efragments,dedupe",
        "--zD",
        &hints,
    ] {
        let image = dir.join("image");
        let ended = mkfs().arg(option).arg(&image).arg(&tree).succeeds();
        assert!(ended.stderr.contains("has no effect without -z"), "{option}: {}", ended.stderr);
        ferrofs().args(["check", "-q"]).arg(&image).succeeds();
    }
}

#[test]
fn forced_compact_inodes_take_files_of_any_time() {
    let dir = Dir::new();
    let (tree, image) = (source(&dir), dir.join("image"));
    mkfs().args(["-Eforce-inode-compact", "--quiet"]).arg(&image).arg(&tree).succeeds();
    let info = ferrofs().args(["info", "--json"]).arg(&image).succeeds().json();
    let report = ferrofs().args(["stat", "--json"]).arg(&image).arg("/text").succeeds().json();
    assert_eq!(report["mtime"]["seconds"], info["built"]["seconds"]);
    let dump = named("dump.erofs").arg("--path=/text").arg(&image).succeeds().text();
    assert!(dump.contains("Inode size: 32"), "{dump}");
}

#[test]
fn a_hint_of_1048577_bytes_is_a_warning() {
    let dir = Dir::new();
    let (tree, image) = (source(&dir), dir.join("image"));
    let hints = dir.write("hints", b"1048577 text\n");
    let option = format!("--compress-hints={}", hints.display());
    let ended = mkfs().args(["-zlz4", &option]).arg(&image).arg(&tree).succeeds();
    assert!(ended.stderr.contains("line 1 of the hints has no effect"), "{}", ended.stderr);
}

#[test]
fn labels_come_from_file_contexts_below_the_mount_point() {
    let dir = Dir::new();
    let (tree, image) = (source(&dir), dir.join("image"));
    let contexts = dir.write(
        "contexts",
        b"# labels\n/vendor(/.*)?  u:object_r:vendor:s0\n/vendor/sub(/.*)? -d u:object_r:dir:s0\n/vendor/small <<none>>\n",
    );
    let option = format!("--file-contexts={}", contexts.display());
    let label = |path: &str| {
        let report = ferrofs().args(["stat", "--json"]).arg(&image).arg(path).succeeds().json();
        let xattrs = report["xattrs"].as_array().unwrap().clone();
        let label = xattrs.iter().find(|xattr| xattr["name"] == "security.selinux");
        label.map(|label| label["value"].as_str().unwrap().to_owned())
    };
    let build =
        || mkfs().args(["--quiet", &option, "--mount-point=/vendor/"]).arg(&image).arg(&tree);
    build().succeeds();
    for (path, expected) in [
        ("/", Some("u:object_r:vendor:s0")),
        ("/text", Some("u:object_r:vendor:s0")),
        ("/sub", Some("u:object_r:dir:s0")),
        ("/sub/copy", Some("u:object_r:vendor:s0")),
        ("/small", None),
    ] {
        assert_eq!(label(path).as_deref(), expected, "{path}");
    }
    let words = ["build", "-q", "-f", &option, "--mount-point=vendor"];
    ferrofs().args(words).arg(&image).arg(&tree).succeeds();
    assert_eq!(label("/text").as_deref(), Some("u:object_r:vendor:s0"));
    fs::write(&contexts, "/vendor/((a{1000}){1000}){1000} x\n").unwrap();
    let ended = build().ends_with(1);
    assert!(ended.stderr.contains("contexts:1: "), "{}", ended.stderr);
    fs::remove_file(&contexts).unwrap();
    assert!(build().ends_with(1).stderr.contains("cannot read"));
}

#[test]
fn options_that_once_were_refused_are_accepted() {
    let dir = Dir::new();
    let (tree, image) = (source(&dir), dir.join("image"));
    for option in [
        "--async-queue-limit=4",
        "--aufs",
        "--zfeature-bits=6",
        "--clean=0",
        "--clean",
        "--ungzip",
        "-C2m",
        "--MZ=0",
        "--workers=0",
        "--xattr-prefix=nothing",
        "--exclude-regex=(",
        "-zzstd,22",
    ] {
        mkfs().args([option, "--quiet"]).arg(&image).arg(&tree).succeeds();
        ferrofs().args(["check", "-q"]).arg(&image).succeeds();
    }
}

#[test]
fn the_help_of_workers_says_what_each_number_stands_for() {
    let help = mkfs().arg("--help").succeeds().text();
    let words = help.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(words.contains("Number of threads. 0 means 1. A negative number"), "{help}");
}

#[test]
fn a_vmdk_descriptor_names_the_image_and_its_devices() {
    let dir = Dir::new();
    let (image, vmdk) = (dir.join("image"), dir.join("image.vmdk"));
    let option = format!("--vmdk-desc={}", vmdk.display());
    mkfs().args(["--tar=i", "--quiet", &option]).arg(&image).arg(data("few.tar")).succeeds();
    let text = fs::read_to_string(&vmdk).unwrap();
    let sectors = |path: &PathBuf| fs::metadata(path).unwrap().len().div_ceil(512);
    for path in [&image, &data("few.tar")] {
        let line = format!("RW {} FLAT \"{}\" 0\n", sectors(path), path.display());
        assert!(text.contains(&line), "{line}{text}");
    }
}

#[test]
fn the_uncompressed_archive_is_copied() {
    let dir = Dir::new();
    let (image, raw, packed) = (dir.join("image"), dir.join("raw"), dir.join("few.tar.gz"));
    let gzip = Command::new("gzip").arg("-c").arg(data("few.tar")).output().unwrap();
    fs::write(&packed, gzip.stdout).unwrap();
    for option in [format!("--ungzip={}", raw.display()), format!("--unxz={}", raw.display())] {
        mkfs().args(["--tar=f", "--quiet", &option]).arg(&image).arg(&packed).succeeds();
        assert_eq!(fs::read(&raw).unwrap(), fs::read(data("few.tar")).unwrap(), "{option}");
    }
    let option = format!("--ungzip={}", raw.display());
    mkfs().args(["--tar=i", "--quiet", &option]).arg(&image).arg(&packed).succeeds();
    let device = format!("--device={}", raw.display());
    ferrofs().args(["check", "-q", &device]).arg(&image).succeeds();
    mkfs().args(["--tar=f", "--quiet", "--gzinfo"]).arg(&image).arg(&packed).succeeds();
    // The copy replaces a file when the archive has been read, and not before.
    let truncated = dir.write("cut.tar.gz", &fs::read(&packed).unwrap()[..300]);
    mkfs().args(["--tar=f", "--quiet", &option]).arg(&image).arg(&truncated).ends_with(1);
    assert_eq!(fs::read(&raw).unwrap(), fs::read(data("few.tar")).unwrap());
    // A pipe of the shell.
    let mut shell = Command::new("bash");
    shell.args(["-c", r#""$0" --tar=f --quiet --ungzip=/dev/fd/9 "$1" "$2" 9>&1 | cmp - "$3""#]);
    let name = dir.join("mkfs.erofs");
    symlink(env!("CARGO_BIN_EXE_ferrofs"), &name).unwrap();
    shell.arg(&name).arg(&image).arg(&packed).arg(data("few.tar"));
    assert!(shell.status().unwrap().success());
    // Another archive than a compressed one is read as it is.
    mkfs().args(["--tar=f", "--quiet", "--gzip"]).arg(&image).arg(data("few.tar")).succeeds();
}

#[test]
fn mkfs_limits_archives_only_as_far_as_it_is_told_to() {
    let dir = Dir::new();
    let image = dir.join("image");
    let words = ["--quiet", "--tar=f", "--max-input=1k"];
    let stderr = mkfs().args(words).arg(&image).arg(data("few.tar")).ends_with(1).stderr;
    assert!(stderr.contains("--max-input allows more"), "{stderr}");
    let words = ["--quiet", "--tar=f", "--max-input=1m"];
    mkfs().args(words).arg(&image).arg(data("few.tar")).succeeds();
}

#[test]
fn mkfs_prints_the_name_of_each_file_as_the_original_does() {
    let dir = Dir::new();
    let (tree, image) = (source(&dir), dir.join("image"));
    let text = mkfs().args(["-zlz4", "-Eall-fragments"]).arg(&image).arg(&tree).succeeds().text();
    let lines: Vec<_> = text.lines().collect();
    assert_eq!(
        lines[..11],
        [
            "mkfs.erofs 1.9.4",
            "Processing / ...",
            "Processing link ...",
            "Processing small ...",
            "Processing sub ...",
            "Processing text ...",
            "Processing sub/copy ...",
            "Processing packed data ...",
            "Build completed.",
            "",
            "------"
        ]
    );
    // The packed inode counts.
    assert!(lines.contains(&"Filesystem total inodes: 7"), "{text}");
    let text = mkfs().arg("-d3").arg(&image).arg(&tree).succeeds().text();
    assert!(!text.contains("Processing") && text.contains("------"), "{text}");
    assert!(mkfs().arg("-d0").arg(&image).arg(&tree).succeeds().text().is_empty());
}

#[test]
fn fsck_reports_success_at_level_3() {
    let dir = Dir::new();
    let ended = named("fsck.erofs").arg("-d3").arg(data("plain.erofs")).succeeds();
    assert_eq!((ended.text().as_str(), &*ended.stderr), ("", "<I> erofs: No errors found\n"));
    let extract = format!("--extract={}", dir.join("out").display());
    let ended = named("fsck.erofs").args(["-d3", &extract]).arg(data("plain.erofs")).succeeds();
    let line = "<I> erofs: Extracted filesystem successfully\n";
    assert_eq!((ended.text().as_str(), &*ended.stderr), ("", line));
}

#[test]
fn fsck_does_not_create_the_parents_of_a_directory() {
    let dir = Dir::new();
    let target = dir.join("a/b");
    let extract = format!("--extract={}", target.display());
    let ended = named("fsck.erofs").arg(extract).arg(data("plain.erofs")).ends_with(1);
    assert!(ended.stderr.contains("parent directory does not exist"), "{}", ended.stderr);
    assert!(!dir.join("a").exists());
}

#[test]
fn fsck_extracts_one_file_under_a_new_name() {
    let dir = Dir::new();
    let target = dir.join("file");
    let extract = format!("--extract={}", target.display());
    let fsck = |option: &str| {
        named("fsck.erofs").args([option, &extract, "--no-preserve"]).arg(data("plain.erofs"))
    };
    fsck("--path=/sub/c.txt").succeeds();
    let content = ferrofs().arg("cat").arg(data("plain.erofs")).arg("/sub/c.txt").succeeds().stdout;
    assert_eq!(fs::read(&target).unwrap(), content);
    let ended = fsck("--path=/a.txt").ends_with(1);
    assert!(ended.stderr.contains("exists already"), "{}", ended.stderr);
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1, "nothing else is left");
}

/// The path of the entry begins with that of the target.
#[test]
fn fsck_names_failures_with_their_whole_path_in_the_image() {
    let dir = Dir::new();
    let (source, image, target) = (dir.join("source"), dir.join("image"), dir.join("t"));
    let below = target.strip_prefix("/").unwrap();
    fs::create_dir_all(source.join("a").join(below)).unwrap();
    fs::write(source.join("a").join(below).join("x"), "x").unwrap();
    ferrofs().args(["build", "-q"]).args([&image, &source]).succeeds();
    // A directory is never replaced.
    fs::create_dir_all(target.join(below).join("x")).unwrap();
    let extract = format!("--extract={}", target.display());
    let ended = named("fsck.erofs").args(["--path=/a", "--overwrite", &extract]).arg(&image);
    let stderr = ended.ends_with(1).stderr;
    let expected = format!("/a{}/x: a directory is in the way", target.display());
    assert!(stderr.contains(&expected), "{stderr}");
    // The path of the target itself stays as it is.
    let file = dir.write("file", b"");
    let extract = format!("--extract={}", file.display());
    let ended = named("fsck.erofs").args(["--path=/a", &extract]).arg(&image).ends_with(1);
    let expected = format!(" {}: cannot open directory", file.display());
    assert!(ended.stderr.contains(&expected), "{}", ended.stderr);
}

/// The parent of the file is closed in the image, and the name of the target is a long one.
#[test]
fn fsck_extracts_one_file_whatever_rights_its_parent_has() {
    let dir = Dir::new();
    let (tree, image) = (dir.join("tree"), dir.join("image"));
    let closed = tree.join("closed");
    fs::create_dir_all(&closed).unwrap();
    fs::write(closed.join("file"), "content").unwrap();
    fs::set_permissions(&closed, Permissions::from_mode(0o555)).unwrap();
    mkfs().arg("--quiet").arg(&image).arg(&tree).succeeds();
    let target = dir.join("x".repeat(255));
    let fsck = || {
        let extract = format!("--extract={}", target.display());
        dir.ordinary("fsck.erofs").args(["--path=/closed/file", &extract]).arg(&image)
    };
    fsck().succeeds();
    let before = fs::read_dir(dir.path()).unwrap().count();
    assert!(fsck().ends_with(1).stderr.contains("exists already"));
    fs::write(&target, "old").unwrap();
    fsck().arg("--overwrite").succeeds();
    assert_eq!(fs::read(&target).unwrap(), b"content");
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), before, "nothing else is left");
}

/// Whoever owns the parent of the file in the image could replace it before it has its name.
#[test]
fn fsck_extracts_one_file_in_a_directory_that_only_the_caller_may_change() {
    if !is_root() {
        return skip("only root can give directories away");
    }
    if !has_strace() {
        return;
    }
    let dir = Dir::new();
    let (tree, image, log) = (dir.join("tree"), dir.join("image"), dir.join("log"));
    let open = tree.join("open");
    fs::create_dir_all(&open).unwrap();
    fs::write(open.join("file"), "content").unwrap();
    fs::set_permissions(&open, Permissions::from_mode(0o777)).unwrap();
    chown(&open, Some(1000), Some(1000)).unwrap();
    mkfs().arg("--quiet").arg(&image).arg(&tree).succeeds();
    let mut strace = Command::new("strace");
    strace.args(["-f", "-qq", "-e", "trace=fchown,fchmod,fchownat,fchmodat", "-o"]).arg(&log);
    let program = dir.join("fsck.erofs");
    symlink(env!("CARGO_BIN_EXE_ferrofs"), &program).unwrap();
    let extract = format!("--extract={}", dir.join("target").display());
    let traced = TestCommand::new(strace).arg(program).args(["--path=/open/file", &extract]);
    traced.arg(&image).succeeds();
    assert_eq!(fs::read(dir.join("target")).unwrap(), b"content");
    let log = fs::read_to_string(log).unwrap();
    assert!(!log.contains("1000") && !log.contains("0777"), "{log}");
}

#[test]
fn fsck_extracts_the_file_that_a_path_names_and_touches_no_file_of_the_host() {
    let dir = Dir::new();
    let (tree, image) = (dir.join("tree"), dir.join("image"));
    // In the image, at the path that a file of the host has.
    let host = dir.write("host", b"of the host");
    let inside = tree.join(host.strip_prefix("/").unwrap());
    fs::create_dir_all(inside.parent().unwrap()).unwrap();
    fs::write(&inside, "of the image").unwrap();
    fs::create_dir(tree.join("d")).unwrap();
    for name in ["a[", "{x", "*", "**", "?", r"\\a", "plain"] {
        fs::write(tree.join("d").join(name), name).unwrap();
    }
    mkfs().arg("--quiet").arg(&image).arg(&tree).succeeds();
    let target = dir.join("target");
    let fsck = |part: &str| {
        let extract = format!("--extract={}", target.display());
        named("fsck.erofs").args([part, &extract, "--no-preserve"]).arg(&image)
    };
    let extracted = |part: &str| {
        fsck(part).succeeds();
        let content = fs::read_to_string(&target).unwrap();
        fs::remove_file(&target).unwrap();
        content
    };
    for slashes in ["", "/", "//", "/.//"] {
        assert_eq!(extracted(&format!("--path={slashes}{}", host.display())), "of the image");
        assert_eq!(fs::read(&host).unwrap(), b"of the host");
    }
    for name in ["a[", "{x", "*", "**", "?", r"\\a"] {
        assert_eq!(extracted(&format!("--path=/d/{name}")), name);
        let path = format!("/d/{name}");
        let stat = ferrofs().args(["stat", "--json"]).arg(&image).arg(&path).succeeds().json();
        assert_eq!(extracted(&format!("--nid={}", stat["nid"])), name);
    }
    for path in ["/d/plain/", "d/plain", "/d/../d/plain", "/../d/./plain", "/d/*/../plain"] {
        assert_eq!(extracted(&format!("--path={path}")), "plain", "{path}");
    }
    assert!(fsck("--path=/d/nothing").ends_with(1).stderr.contains("no such path"));
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 3, "nothing else is left");
    // A directory is taken as a whole, whatever its path looks like.
    fsck("--path=//d/.").succeeds();
    assert_eq!(fs::read_dir(&target).unwrap().count(), 7);
}

#[test]
fn an_ordinary_user_extracts_a_file_of_a_directory_that_nobody_may_write_to() {
    let dir = Dir::new();
    let (tree, image) = (dir.join("tree"), dir.join("image"));
    fs::create_dir_all(tree.join("d")).unwrap();
    fs::write(tree.join("d/f"), "content").unwrap();
    fs::set_permissions(tree.join("d"), Permissions::from_mode(0o555)).unwrap();
    mkfs().arg("--quiet").arg(&image).arg(&tree).succeeds();
    let target = dir.join("target");
    for mode in ["--preserve-perms", "--no-preserve"] {
        let fsck = dir.ordinary_ferrofs().arg0("fsck.erofs").args(["--path=/d/f", mode]);
        fsck.arg(format!("--extract={}", target.display())).arg(&image).succeeds();
        assert_eq!(fs::read_to_string(&target).unwrap(), "content");
        fs::remove_file(&target).unwrap();
        let names = fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().file_name());
        let left: Vec<_> =
            names.filter(|name| name.to_string_lossy().starts_with("target")).collect();
        assert!(left.is_empty(), "{left:?}");
    }
}

#[test]
fn fsck_compares_digests_of_files() {
    let dir = Dir::new();
    let (tree, image) = (source(&dir), dir.join("image"));
    mkfs().args(["--xattr-inode-digest", "--quiet", "-Enosbcrc"]).arg(&image).arg(&tree).succeeds();
    let fsck = || named("fsck.erofs").arg("--xattr-inode-digest").arg(&image);
    fsck().succeeds();
    let mut bytes = fs::read(&image).unwrap();
    let at = bytes.windows(11).position(|part| part == b"a few bytes").unwrap();
    bytes[at] = b'A';
    fs::write(&image, bytes).unwrap();
    let ended = fsck().ends_with(1);
    assert!(ended.stderr.contains("/small: the digest of its content differs"), "{}", ended.stderr);
    let none = named("fsck.erofs").arg("--xattr-inode-digest").arg(data("plain.erofs"));
    assert!(none.ends_with(1).stderr.contains("has no digests"));
}

/// An image with a digest of the file `hole`, which then becomes a hole of another size. Another file has `data`
/// bytes.
fn image_of_a_hole(dir: &Dir, data: usize, size: u64) -> PathBuf {
    let (tree, image) = (dir.join("tree"), dir.join("image"));
    fs::create_dir(&tree).unwrap();
    fs::File::create(tree.join("hole")).unwrap().set_len(1 << 20).unwrap();
    fs::hard_link(tree.join("hole"), tree.join("hole too")).unwrap();
    fs::write(tree.join("data"), vec![b'x'; data]).unwrap();
    let mkfs =
        mkfs().args(["--xattr-inode-digest", "--quiet", "-Enosbcrc,force-inode-extended", "-T0"]);
    mkfs.arg(&image).arg(&tree).succeeds();
    let stat = ferrofs().args(["stat", "--json"]).arg(&image).arg("/hole").succeeds().json();
    let info = ferrofs().args(["info", "--json"]).arg(&image).succeeds().json();
    let start = info["meta_block"].as_u64().unwrap() * info["block_size"].as_u64().unwrap();
    let at = usize::try_from(start + stat["nid"].as_u64().unwrap() * 32).unwrap();
    let mut bytes = fs::read(&image).unwrap();
    assert_eq!(bytes[at + 8..at + 16], (1u64 << 20).to_le_bytes());
    bytes[at + 8..at + 16].copy_from_slice(&size.to_le_bytes());
    // No start block: all of it is a hole.
    bytes[at + 16..at + 20].fill(0xff);
    fs::write(&image, bytes).unwrap();
    image
}

#[test]
fn fsck_hashes_no_more_zeros_than_the_work_limit_allows() {
    let dir = Dir::new();
    let image = image_of_a_hole(&dir, 10, 1 << 50);
    let ended = named("fsck.erofs").arg("--xattr-inode-digest").arg(&image).ends_with(1);
    for message in [
        "/hole: holes of files that have a digest: more than the limit of",
        "without --xattr-inode-digest, files have no such limit",
    ] {
        assert!(ended.stderr.contains(message), "{}", ended.stderr);
    }
}

#[test]
fn fsck_compares_the_digest_of_a_sparse_file_in_a_small_image() {
    let dir = Dir::new();
    let (tree, image) = (dir.join("tree"), dir.join("image"));
    fs::create_dir(&tree).unwrap();
    fs::File::create(tree.join("sparse")).unwrap().set_len(600 << 20).unwrap();
    let words = ["--xattr-inode-digest=user.d", "--chunksize=4096", "--quiet"];
    mkfs().args(words).arg(&image).arg(&tree).succeeds();
    assert!(fs::metadata(&image).unwrap().len() < 1 << 20);
    named("fsck.erofs").arg("--xattr-inode-digest").arg(&image).succeeds();
}

#[test]
fn a_signal_ends_the_comparison_of_digests() {
    let dir = Dir::new();
    let image = image_of_a_hole(&dir, 10, 200 << 30);
    let mut child = named("fsck.erofs").arg("--xattr-inode-digest").arg(&image).spawn();
    // It takes a minute at least.
    std::thread::sleep(Duration::from_millis(300));
    let pid = rustix::process::Pid::from_child(&child);
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    let status = child.wait().unwrap();
    // A process that has no handler yet is killed.
    assert!(status.code() == Some(143) || status.signal() == Some(15), "{status:?}");
}

#[test]
fn fsck_checks_metadata_where_devices_are_not_given() {
    let ended = named("fsck.erofs").arg(data("chunk-blob.erofs")).succeeds();
    assert!(ended.stderr.contains("the data of the image is not checked"), "{}", ended.stderr);
    let ended = named("fsck.erofs").arg("-d0").arg(data("chunk-blob.erofs")).succeeds();
    assert!(ended.stderr.is_empty(), "{}", ended.stderr);
    named("fsck.erofs").arg("--extract").arg(data("chunk-blob.erofs")).ends_with(1);
    let device = format!("--device={}", data("chunk-blob.blob").display());
    let ended = named("fsck.erofs").arg(device).arg(data("chunk-blob.erofs")).succeeds();
    assert!(ended.stderr.is_empty(), "{}", ended.stderr);
}

/// It read attributes and extents of each name, whatever the amount, and compared nothing.
#[test]
fn fsck_without_devices_checks_metadata_as_check_does() {
    let dir = Dir::new();
    let copy = dir.join("image");
    let mut bytes = fs::read(data("chunk-blob.erofs")).unwrap();
    let image = Image::open(data("chunk-blob.erofs")).unwrap();
    let file = image.walk(b"/").unwrap().find_map(|event| match event {
        WalkEvent::Leaf(node) if node.inode.file_type() == FileType::Regular => Some(node.inode),
        _ => None,
    });
    let file = file.unwrap();
    // The link count of a compact or an extended inode.
    let at = usize::try_from(file.offset()).unwrap() + if file.bytes() == 32 { 6 } else { 44 };
    bytes[at] += 1;
    fs::write(&copy, bytes).unwrap();
    let ended = named("fsck.erofs").arg("--no-sbcrc").arg(&copy).ends_with(1);
    assert!(ended.stderr.contains("link count"), "{}", ended.stderr);
}

#[test]
fn dump_of_a_path_that_does_not_exist_is_no_failure() {
    let dump = |words: &[&str]| named("dump.erofs").args(words).arg(data("plain.erofs")).succeeds();
    for words in [&["--path=/none"][..], &["--nid=99999999"], &["-e"], &["--cat"]] {
        let ended = dump(words);
        assert!(ended.text().is_empty() && !ended.stderr.is_empty(), "{words:?}: {ended:?}");
    }
    assert!(dump(&["--path=sub"]).text().starts_with("Path : /sub\n"));
    assert!(dump(&["--ls"]).text().starts_with("Filesystem magic number:"));
    assert!(dump(&["--cat", "-s", "--path=/a.txt"]).text().is_empty());
}

#[test]
fn dump_shows_the_rest_of_a_damaged_image() {
    let dir = Dir::new();
    let stat = ferrofs().args(["stat", "--json"]).arg(data("plain.erofs")).arg("/sub/c.txt");
    let nid = stat.succeeds().json()["nid"].as_u64().unwrap();
    // An inode begins with its format, and nids count in 32 bytes.
    let at = usize::try_from(nid).unwrap() * 32;
    let image = dir.patched("plain.erofs", at, &[0xff, 0xff]);
    let ended = named("dump.erofs").args(["-s", "-S", "--path=/a.txt"]).arg(&image).succeeds();
    let text = ended.text();
    assert!(text.starts_with("Filesystem magic number:"), "{text}");
    assert!(text.contains("\nPath : /a.txt\n") && !text.contains("file count"), "{text}");
    assert!(ended.stderr.contains("/sub/c.txt: "), "{}", ended.stderr);
}

#[test]
fn dump_counts_the_packed_file_as_the_original_does() {
    let image = data("lz4hc-all-fragments.erofs");
    let text = named("dump.erofs").arg("-S").arg(image).succeeds().text();
    assert!(text.contains("\nFilesystem compressed files:            38\n"), "{text}");
    let row = "\n    64 .. 128   \t1               2.56% |#  ";
    assert!(text.contains(row), "{text}");
}

#[test]
fn dump_shows_extents_without_notes() {
    let dump = |image: &str, path: &str| {
        let words = ["-e", "--path", path];
        named("dump.erofs").args(words).arg(data(image)).succeeds().text()
    };
    let text = dump("lz4hc-all-fragments.erofs", "/sizes/1");
    let row = "\n   0:        0..       1 |       1 :          0..         0 |       0\n";
    assert!(text.contains(row), "{text}");
    // The last chunk is a hole, and is shown to the end of its block.
    let text = dump("chunk-indexes.erofs", "/hole");
    let row = "\n   8:     8192..    9216 |    1024 :          0..         0 |       0\n";
    assert!(text.contains(row), "{text}");
}

#[test]
fn dump_shows_the_nine_bits_of_the_permissions() {
    let text = named("dump.erofs").arg("--path=/small").arg(data("lz4hc-64k.erofs")).succeeds();
    assert!(text.text().contains("Access: 0775/rwxrwxr-x\n"), "{}", text.text());
}

#[test]
fn archives_may_have_options_of_directories() {
    let dir = Dir::new();
    let words = ["--tar=f", "--exclude-path=x", "--hard-dereference"];
    let ended = mkfs().args(words).arg(dir.join("image")).arg(data("few.tar")).succeeds();
    for option in ["--exclude-path", "--hard-dereference"] {
        let line = format!("{option} has no effect with --tar");
        assert!(ended.stderr.contains(&line), "{}", ended.stderr);
    }
}

#[test]
fn a_programs_own_name_is_not_needed_to_be_in_the_path() {
    let dir = Dir::new();
    let link = dir.join("mkfs.erofs");
    symlink(env!("CARGO_BIN_EXE_ferrofs"), &link).unwrap();
    fs::set_permissions(dir.path(), Permissions::from_mode(0o755)).unwrap();
    let text = TestCommand::new(Command::new(&link)).arg("-V").succeeds().text();
    assert!(text.starts_with("mkfs.erofs (erofs-utils) "), "{text}");
}

#[test]
fn an_option_without_effect_causes_a_warning() {
    let dir = Dir::new();
    let (tree, image) = (source(&dir), dir.join("image"));
    for (words, warning) in [
        (&["--MZ"][..], Some("--MZ has no effect")),
        (&["--MZ=0"], Some("--MZ has no effect")),
        (&["--MZ=i"], Some("--MZ has no effect")),
        (&["--MZ=id", "-zlz4"], Some("--MZ has no effect")),
        (&["-C65536"], Some("-C has no effect without -z")),
        (&["-C65536", "-zlz4"], None),
        // Equal blocks are stored once.
        (&["-Ededupe"], None),
    ] {
        let made = mkfs().args(words).arg(&image).arg(&tree).succeeds();
        let found = made.stderr.lines().find_map(|line| line.split_once("warning: "));
        let text = found.map(|(_, text)| text);
        assert_eq!(text.is_some(), warning.is_some(), "{words:?}: {}", made.stderr);
        assert!(text.unwrap_or_default().starts_with(warning.unwrap_or_default()), "{text:?}");
        let quiet = mkfs().args(words).arg("--quiet").arg(&image).arg(&tree).succeeds();
        assert_eq!(quiet.stderr, "", "{words:?}");
    }
}

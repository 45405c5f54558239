//! Metadata that an ordinary user cannot keep in a directory: owners, modes, capabilities and labels
//! in the files of Android's build system, or in a sidecar.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use serde_json::Value;
use sha2::{Digest, Sha256};

use crate::mounted::{MountPoint, has_fuse};
use crate::support::{Dir, data, ferrofs};

/// Lines of an fs_config file that give some files other owners.
const OWNERS: &str = "/ 0 0 0755\n\
    bin 0 2000 0751\n\
    bin/ping 0 2000 04755 capabilities=0x1000003000\n\
    a\\x20b 1000 1001 0600\n\
    new\\x0aline 1 2 0644\n\
    \u{fc}\\x5c[x].*+ 3 4 0444\n";
/// The labels of these files.
const LABELS: &str = "/.*  u:object_r:all:s0\n\
    /bin/ping -- u:object_r:ping_exec:s0\n\
    /bin -d u:object_r:bin:s0\n\
    /a[\\x20]b -- u:object_r:blank:s0:c1,c2\n";

/// A directory with names that are hard to write down, and an image of it with `options`.
fn image(dir: &Dir, options: &[&str]) -> PathBuf {
    let tree = dir.join("tree");
    fs::create_dir_all(tree.join("bin")).unwrap();
    let names: [&[u8]; 6] =
        [b"bin/ping", b"a b", b"new\nline", "\u{fc}\\[x].*+".as_bytes(), b"\xff\xfe", b"plain"];
    for name in names {
        fs::write(tree.join(OsStr::from_bytes(name)), name).unwrap();
    }
    fs::write(dir.join("owners"), OWNERS).unwrap();
    fs::write(dir.join("labels"), LABELS).unwrap();
    let image = dir.join("image");
    let lists = [
        format!("--fs-config-file={}", dir.join("owners").display()),
        format!("--file-contexts={}", dir.join("labels").display()),
    ];
    build(&tree, &image, &[&[&*lists[0], &*lists[1]], options].concat());
    image
}

fn build(tree: &Path, image: &Path, options: &[&str]) {
    let fixed = ["build", "-q", "-f", "--reproducible", "--time=1700000000", "-z", "lz4hc"];
    ferrofs().args(fixed).args(options).arg(image).arg(tree).succeeds();
}

fn stat(image: &Path, path: &str) -> Value {
    ferrofs().args(["stat", "--json"]).arg(image).arg(path).succeeds().json()
}

fn xattr(report: &Value, name: &str) -> Option<Value> {
    let xattrs = report["xattrs"].as_array()?;
    Some(xattrs.iter().find(|xattr| xattr["name"] == name)?["value"].clone())
}

#[test]
fn lists_of_android_set_owners_modes_capabilities_and_labels() {
    let dir = Dir::new();
    let image = image(&dir, &[]);
    let ping = stat(&image, "/bin/ping");
    assert_eq!((&ping["gid"], &ping["mode"]), (&Value::from(2000), &Value::from("4755")));
    assert!(xattr(&ping, "security.capability").is_some());
    assert_eq!(xattr(&ping, "security.selinux").unwrap(), "u:object_r:ping_exec:s0");
    let blank = stat(&image, "/a b");
    assert_eq!(blank["uid"], 1000);
    assert_eq!(xattr(&blank, "security.selinux").unwrap(), "u:object_r:blank:s0:c1,c2");
    assert_eq!(stat(&image, "/new\nline")["gid"], 2);
    assert_eq!(stat(&image, "/\u{fc}\\[x].*+")["mode"], "0444");
    assert_eq!(stat(&image, "/bin")["mode"], "0751");
}

#[test]
fn an_image_that_an_ordinary_user_extracts_is_built_again_byte_for_byte() {
    for (mount_point, way) in [("", "android"), ("/vendor", "android"), ("", "sidecar")] {
        let dir = Dir::new();
        let first = image(&dir, &[]);
        let (out, config, sidecar) = (dir.join("out"), dir.join("config"), dir.join("sidecar"));
        let write = match way {
            "android" => format!("--android-config={}", config.display()),
            _ => format!("--sidecar={}", sidecar.display()),
        };
        let mount_option = format!("--mount-point={mount_point}");
        let mut extract = dir.ordinary_ferrofs().args(["extract", "-q", &write]);
        if !mount_point.is_empty() {
            extract = extract.arg(&mount_option);
        }
        extract.arg(&first).arg(&out).succeeds();
        let second = dir.join("second");
        let mut options = match way {
            "android" => vec![
                format!("--fs-config-file={}", config.join("fs_config").display()),
                format!("--file-contexts={}", config.join("file_contexts").display()),
            ],
            _ => vec![write],
        };
        if !mount_point.is_empty() {
            options.push(mount_option);
        }
        let options: Vec<&str> = options.iter().map(String::as_str).collect();
        build(&out, &second, &options);
        let are_equal = fs::read(&first).unwrap() == fs::read(&second).unwrap();
        assert!(are_equal, "{way} below {mount_point:?}");
        // An edit changes nothing else.
        fs::write(out.join("added"), "new").unwrap();
        build(&out, &second, &options);
        assert_eq!(stat(&second, "/bin/ping")["mode"], "4755");
    }
}

#[test]
fn forced_owners_win_over_lists() {
    let dir = Dir::new();
    let image = image(&dir, &["--all-root"]);
    assert_eq!(stat(&image, "/a b")["uid"], 0);
}

#[test]
fn files_without_a_line_keep_their_owners_with_a_warning() {
    let dir = Dir::new();
    let tree = image(&dir, &[]).with_file_name("tree");
    let owners = format!("--fs-config-file={}", dir.join("owners").display());
    let ended =
        ferrofs().args(["build", "-f", &owners]).arg(dir.join("image")).arg(&tree).succeeds();
    assert!(ended.stderr.contains("2 files have no line"), "{}", ended.stderr);
    fs::write(dir.join("owners"), "bin 0 0\n").unwrap();
    let ended = ferrofs().args(["build", "-f", &owners]).arg(dir.join("image")).arg(&tree).run();
    assert_ne!(ended.code, Some(0));
    assert!(ended.stderr.contains("owners:1: the mode is missing"), "{}", ended.stderr);
}

/// A sidecar brought back what these options leave out.
#[test]
fn xattrs_and_marks_of_a_sidecar_are_left_out_on_request() {
    let dir = Dir::new();
    let (tree, image, sidecar) = (dir.join("tree"), dir.join("image"), dir.join("sidecar"));
    fs::create_dir(&tree).unwrap();
    let line = |path: &str, kind: &str, rest: &str| {
        format!(
            r#"{{"path":"{path}","type":"{kind}","mode":"0755","uid":0,"gid":0,"mtime":0,"nanoseconds":0,{rest}}}"#
        )
    };
    let xattrs = [("user.a", "61"), ("user.b", "62"), ("trusted.overlay.opaque", "79")];
    let xattrs = xattrs.map(|(name, value)| format!(r#"{{"name":"{name}","value":"{value}"}}"#));
    let root = line("/", "d", &format!(r#""xattrs":[{}]"#, xattrs.join(",")));
    fs::write(&sidecar, [root, line("/gone", "c", r#""device":[0,0]"#)].join("\n")).unwrap();
    let option = format!("--sidecar={}", sidecar.display());
    for (options, kept, has_whiteout) in [
        (&[][..], &["user.a", "user.b", "trusted.overlay.opaque"][..], true),
        (&["--no-xattrs"], &[], true),
        (&["--xattr=user.*", "--no-xattr=user.b"], &["user.a"], true),
        (&["--strip-overlay"], &["user.a", "user.b"], false),
    ] {
        let build = ferrofs().args(["build", "-qf", &option]).args(options);
        build.args([&image, &tree]).succeeds();
        let stat = ferrofs().arg("stat").arg(&image).arg("/").succeeds().stdout;
        let stat = String::from_utf8(stat).unwrap();
        for name in ["user.a", "user.b", "trusted.overlay.opaque"] {
            assert_eq!(stat.contains(name), kept.contains(&name), "{options:?}: {stat}");
        }
        let names = ferrofs().arg("ls").arg(&image).succeeds().stdout;
        assert_eq!(!names.is_empty(), has_whiteout, "{options:?}");
    }
}

#[test]
fn the_block_list_names_the_blocks_of_each_file() {
    let dir = Dir::new();
    let tree = dir.join("tree");
    fs::create_dir_all(tree.join("sub")).unwrap();
    fs::write(tree.join("sub/large"), vec![7; 40_000]).unwrap();
    fs::write(tree.join("small"), "x").unwrap();
    let (image, list) = (dir.join("image"), dir.join("list"));
    let option = format!("--block-list-file={}", list.display());
    let words = ["build", "-q", "--no-inline-data", &option, "--mount-point=/vendor"];
    ferrofs().args(words).arg(&image).arg(&tree).succeeds();
    let text = fs::read_to_string(&list).unwrap();
    let line = text.lines().find(|line| line.starts_with("/vendor/sub/large ")).unwrap();
    let (first, last) = line.rsplit_once(' ').unwrap().1.split_once('-').unwrap();
    let (first, last): (usize, usize) = (first.parse().unwrap(), last.parse().unwrap());
    assert_eq!(last - first, 9, "{text}");
    let bytes = fs::read(&image).unwrap();
    assert!(bytes[first * 4096..first * 4096 + 40_000].iter().all(|byte| *byte == 7));
}

/// Little-endian words.
fn words(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

/// A sparse image of `image`: zeros are left out, and the rest is in chunks of one block.
fn sparse(image: &[u8]) -> Vec<u8> {
    let mut chunks = Vec::new();
    let mut count = 0u32;
    for block in image.chunks(4096) {
        let is_zero = block.iter().all(|byte| *byte == 0);
        let (kind, stored) = if is_zero { (0xcac3, &[][..]) } else { (0xcac1, block) };
        chunks.extend(words(&[kind, 1, 12 + u32::try_from(stored.len()).unwrap()]));
        chunks.extend(stored);
        count += 1;
    }
    let mut bytes = words(&[0xed26_ff3a, 1, 28 | 12 << 16, 4096, count, count, 0]);
    bytes.extend(chunks);
    bytes
}

/// A super image with `image` as the partition "vendor_a", in two extents in reverse order.
fn super_image(image: &[u8]) -> Vec<u8> {
    let half = image.len() / 1024;
    let sectors = image.len() / 512;
    let mut tables = b"vendor_a".to_vec();
    tables.resize(36, 0);
    tables.extend(words(&[0, 0, 2, 0]));
    for (count, at) in [(half, 2048 + sectors - half), (sectors - half, 2048)] {
        tables.extend((count as u64).to_le_bytes());
        tables.extend(words(&[0]));
        tables.extend((at as u64).to_le_bytes());
        tables.extend(words(&[0]));
    }
    let mut header = words(&[0x414c_5030, 10, 128]);
    header.extend([0; 32]);
    header.extend(words(&[u32::try_from(tables.len()).unwrap()]));
    header.extend(Sha256::digest(&tables));
    header.extend(words(&[0, 1, 52, 52, 2, 24, 0, 0, 0, 0, 0, 0]));
    let sum = Sha256::digest(&header);
    header[12..44].copy_from_slice(&sum);
    let mut geometry = words(&[0x616c_4467, 52]);
    geometry.extend([0; 32]);
    geometry.extend(words(&[65536, 1, 4096]));
    let sum = Sha256::digest(&geometry);
    geometry[8..40].copy_from_slice(&sum);
    let mut bytes = vec![0; 2048 * 512];
    bytes[4096..4096 + geometry.len()].copy_from_slice(&geometry);
    bytes[12288..12288 + header.len()].copy_from_slice(&header);
    bytes[12416..12416 + tables.len()].copy_from_slice(&tables);
    bytes.extend(&image[half * 512..]);
    bytes.extend(&image[..half * 512]);
    bytes
}

#[test]
fn sparse_images_and_partitions_are_read_directly() {
    let dir = Dir::new();
    let image = fs::read(data("lz4.erofs")).unwrap();
    let tar = |path: &Path, options: &[&str]| {
        let words = ["extract", "-q", "--tar", "-"];
        ferrofs().args(words).args(options).arg(path).succeeds().stdout
    };
    let expected = tar(&data("lz4.erofs"), &[]);
    let simg = dir.write("sparse", &sparse(&image));
    assert!(tar(&simg, &[]) == expected);
    ferrofs().args(["check", "-q"]).arg(&simg).succeeds();
    let partitioned = dir.write("super", &super_image(&image));
    assert!(tar(&partitioned, &["--partition=vendor_a"]) == expected);
    let both = dir.write("both", &sparse(&super_image(&image)));
    assert!(tar(&both, &["--partition=vendor_a"]) == expected);
    if has_fuse() {
        let point = MountPoint::new();
        let mount = ferrofs().arg("mount").arg(&both).arg(point.path());
        mount.args(["-o", "partition=vendor_a"]).succeeds();
        let names = ferrofs().arg("ls").arg(data("lz4.erofs")).succeeds().stdout;
        assert_eq!(
            fs::read_dir(point.path()).unwrap().count(),
            names.trim_ascii().split(|byte| *byte == b'\n').count()
        );
        assert!(point.unmount());
    }
    let wrong = ferrofs().args(["info", "--partition=system_a"]).arg(&both).ends_with(1);
    assert!(wrong.stderr.contains("there are vendor_a"), "{}", wrong.stderr);
    let none = ferrofs().arg("info").arg(&partitioned).ends_with(1);
    assert!(none.stderr.contains("a super image of Android, not an EROFS"), "{}", none.stderr);
    assert!(none.stderr.contains("; name a partition with --partition"), "{}", none.stderr);
    let truncated = dir.write("cut", &sparse(&image)[..5000]);
    let truncated = ferrofs().arg("info").arg(&truncated).ends_with(1);
    assert!(truncated.stderr.contains("a chunk ends behind the file"), "{}", truncated.stderr);
}

#[test]
fn a_partition_that_holds_no_image_is_named_with_what_it_holds() {
    let dir = Dir::new();
    let info = |name: &str, file: &[u8]| {
        let command = ferrofs().args(["info", "--partition=vendor_a"]);
        command.arg(dir.write(name, file)).ends_with(1).stderr
    };
    let mut ext4 = vec![0; 65536];
    ext4[1080..1082].copy_from_slice(&[0x53, 0xef]);
    for text in [info("plain", &super_image(&ext4)), info("sparse", &sparse(&super_image(&ext4)))] {
        let part =
            "the partition vendor_a holds an ext2, ext3 or ext4 file system, not an EROFS image";
        assert!(text.contains(part) && !text.contains("super image"), "{text}");
    }
    let text = info("unknown", &super_image(&vec![7; 65536]));
    assert!(text.contains("the partition vendor_a holds something else"), "{text}");
    assert!(text.contains("name another one with --partition"), "{text}");
    // A sparse image is what it stands for.
    let text = ferrofs().arg("info").arg(dir.write("ext4", &sparse(&ext4))).ends_with(1).stderr;
    assert!(text.contains("this is an ext2, ext3 or ext4 file system"), "{text}");
}

#[test]
fn info_says_what_a_foreign_file_is() {
    let dir = Dir::new();
    for (name, bytes, kind) in [
        ("squash", &b"hsqs"[..], "a squashfs image"),
        ("gzip", b"\x1f\x8b\x08", "a gzip file"),
        ("empty", b"", "an empty file"),
    ] {
        let mut file = bytes.to_vec();
        file.resize(if bytes.is_empty() { 0 } else { 8192 }, 0);
        let ended = ferrofs().arg("info").arg(dir.write(name, &file)).ends_with(1);
        let line = format!("this is {kind}, not an EROFS image");
        assert!(ended.stderr.contains(&line), "{}", ended.stderr);
    }
    let info = |path: &Path| ferrofs().arg("info").arg(path).ends_with(1).stderr;
    let text = info(&data("few.tar"));
    assert!(text.contains("this is a tar archive, not an EROFS image: "), "{text}");
    assert!(text.trim_end().ends_with("; `ferrofs build` makes an image of it"), "{text}");
    // The start of a download, some text, and a page of a server.
    let start = &fs::read(data("plain.erofs")).unwrap()[..1000];
    for (name, bytes, length) in [("start", start, "1,000 bytes"), ("text", b"<xml/>", "6 bytes")] {
        let text = info(&dir.write(name, bytes));
        let part = format!(
            "this is not an EROFS image, or only the start of one: the file has {length} ("
        );
        assert!(text.contains(&part), "{text}");
    }
    let text = info(&dir.write("page", b"<html>"));
    assert!(text.contains("this is an HTML page, not an EROFS image: "), "{text}");
    assert!(text.trim_end().ends_with("; a server has sent it instead of the image"), "{text}");
    let behind = ferrofs().args(["info", "--offset=1g"]).arg(data("plain.erofs")).ends_with(1);
    assert!(behind.stderr.contains("--offset=1073741824 is past the end"), "{}", behind.stderr);
}

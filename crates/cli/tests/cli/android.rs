//! Metadata that an ordinary user cannot keep in a directory: owners, modes, capabilities and labels
//! in the files of Android's build system, or in a sidecar.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::support::{Dir, ferrofs};

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

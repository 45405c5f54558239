//! Defects of other tools (listed in docs/format.md), and attacks by images and directories.

use std::fs;
use std::os::unix::fs::{MetadataExt, symlink};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::fs::{CWD, Mode, XattrFlags, llistxattr, lsetxattr, mknodat};

use crate::support::{Dir, TestCommand, data, ferrofs, find, is_root, skip};

/// One that a symlink may have.
const XATTR: &str = "trusted.note";

/// The checksum of every superblock.
const CHECKSUM_OFFSET: usize = 1028;

fn has_program(name: &str) -> bool {
    Command::new(name).arg("--version").output().is_ok_and(|output| output.status.success())
}

fn is_empty(folder: &Path) -> bool {
    fs::read_dir(folder).unwrap().next().is_none()
}

#[test]
fn a_wrong_checksum_is_an_error() {
    let dir = Dir::new();
    let image = dir.patched("plain.erofs", CHECKSUM_OFFSET, &[1, 2, 3, 4]);
    for verb in ["info", "ls", "stat", "check"] {
        let ended = ferrofs().arg(verb).arg(&image).ends_with(1);
        assert!(ended.stderr.contains("checksum") && ended.stderr.contains("--no-checksum"));
    }
    ferrofs().arg("extract").arg(&image).arg(dir.join("tree")).ends_with(1);
    assert!(!dir.join("tree").exists());
    ferrofs().args(["info", "--no-checksum"]).arg(&image).succeeds();
}

/// Opening a FIFO would wait for a writer.
#[test]
fn a_fifo_in_place_of_an_image_or_a_device_is_refused() {
    let dir = Dir::new();
    let fifo = dir.join("fifo");
    mknodat(CWD, &fifo, rustix::fs::FileType::Fifo, Mode::RUSR, 0).unwrap();
    let point = dir.join("point");
    fs::create_dir(&point).unwrap();
    for verb in ["info", "check", "mount"] {
        let mut command = ferrofs().arg(verb).arg(&fifo);
        if verb == "mount" {
            command = command.arg(&point);
        }
        let ended = command.ends_with(1);
        assert!(ended.stderr.contains("a FIFO cannot be read as an image"), "{}", ended.stderr);
    }
    let device = format!("--device={}", fifo.display());
    let ended = ferrofs().args(["info", &device]).arg(data("plain.erofs")).ends_with(1);
    assert!(ended.stderr.contains("a FIFO"), "{}", ended.stderr);
    let mut dump = Command::new(env!("CARGO_BIN_EXE_ferrofs"));
    dump.arg0("dump.erofs").arg(&fifo);
    assert!(!dump.output().unwrap().status.success());
}

#[test]
fn a_truncated_image_is_an_error_and_leaves_no_truncated_file() {
    let dir = Dir::new();
    let whole = fs::read(data("lz4.erofs")).unwrap();
    let image = dir.write("short.erofs", &whole[..whole.len() / 2]);
    ferrofs().arg("check").arg(&image).ends_with(1);
    let tree = dir.join("tree");
    let ended = ferrofs().args(["extract", "--json"]).arg(&image).arg(&tree).ends_with(1);
    let report = ended.json();
    assert!(report["failures"].as_u64().unwrap() > 1 && report["files"].as_u64().unwrap() > 0);
    for problem in report["problems"].as_array().unwrap() {
        let path = problem["path"].as_str().unwrap();
        let is_file = !path.is_empty() && tree.join(&path[1..]).is_file();
        assert!(!is_file, "{path} failed and was left behind");
    }
}

#[test]
fn one_missing_block_at_the_end_is_noticed() {
    let dir = Dir::new();
    let whole = fs::read(data("plain.erofs")).unwrap();
    let image = dir.write("short.erofs", &whole[..whole.len() - 4096]);
    ferrofs().arg("check").arg(&image).ends_with(1);
    ferrofs().arg("extract").arg(&image).arg(dir.join("tree")).ends_with(1);
}

#[test]
fn a_build_needs_no_dev() {
    let dir = Dir::new();
    fs::create_dir(dir.join("tree")).unwrap();
    let image = dir.join("image");
    let hidden = |words: &str| {
        let mut command = Command::new("unshare");
        command.args(["-Urm", "sh", "-c"]).arg(format!("mount -t tmpfs none /dev && {words}"));
        command.arg(env!("CARGO_BIN_EXE_ferrofs")).arg(dir.join("tree")).arg(&image);
        command.output()
    };
    if !hidden("! test -e /dev/urandom").is_ok_and(|output| output.status.success()) {
        return skip("unshare(1) cannot mount in a user namespace");
    }
    let output = hidden("\"$0\" build \"$2\" \"$1\"").unwrap();
    assert!(output.status.success(), "{output:?}");
    ferrofs().arg("check").arg(&image).succeeds();
}

#[test]
fn metadata_of_symlinks_and_fifos_is_set_without_proc() {
    let dir = Dir::new();
    let (source, image, tree) = (dir.join("source"), dir.join("image"), dir.join("tree"));
    fs::create_dir(&source).unwrap();
    let mode = Mode::from_raw_mode(0o640);
    mknodat(CWD, source.join("fifo"), rustix::fs::FileType::Fifo, mode, 0).unwrap();
    symlink("nowhere", source.join("link")).unwrap();
    // Only root may set these, and not on every file system.
    let set = |name| lsetxattr(source.join(name), XATTR, b"value", XattrFlags::empty());
    let has_xattrs = set("fifo").and(set("link")).is_ok();
    ferrofs().arg("build").arg(&image).arg(&source).succeeds();
    let flags = if is_root() { "-mpf" } else { "-Urmpf" };
    let hidden = |words: &str| {
        let mut command = Command::new("unshare");
        command.args([flags, "sh", "-c"]).arg(format!("mount -t tmpfs none /proc && {words}"));
        command.arg(env!("CARGO_BIN_EXE_ferrofs")).arg(&image).arg(&tree).output().unwrap()
    };
    if !has_program("unshare") || !hidden("! test -e /proc/self").status.success() {
        return skip("unshare(1) cannot hide /proc");
    }
    let output = hidden("\"$0\" extract \"$1\" \"$2\"");
    assert!(output.status.success(), "{output:?}");
    assert_eq!(fs::metadata(tree.join("fifo")).unwrap().mode() & 0o7777, 0o640);
    for name in if has_xattrs { &["fifo", "link"][..] } else { &[] } {
        let mut value = [0_u8; 8];
        let length = rustix::fs::lgetxattr(tree.join(name), XATTR, &mut value);
        assert_eq!((length, &value[..5]), (Ok(5), &b"value"[..]), "{name}");
    }
    if !is_root() || !has_program("setpriv") {
        return skip("needs root and setpriv(1) for a process that may not mount");
    }
    fs::remove_dir_all(&tree).unwrap();
    let output = hidden("setpriv --bounding-set -sys_admin \"$0\" extract \"$1\" \"$2\"");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{errors}");
    assert!(errors.contains("/fifo: cannot set the mode: /proc is not mounted"), "{errors}");
}

#[test]
fn a_name_with_a_slash_leads_nowhere() {
    let dir = Dir::new();
    let at = find("plain.erofs", b"a.txtb.txt");
    let image = dir.patched("plain.erofs", at, b"a/txt");
    let tree = dir.join("inside/tree");
    let ended = ferrofs().args(["extract", "--no-checksum", "-q"]).arg(&image).arg(&tree);
    let ended = ended.ends_with(1);
    assert!(!ended.stderr.is_empty());
    assert!(!tree.join("a").exists() && tree.join("b.txt").exists());
    ferrofs().args(["check", "--no-checksum"]).arg(&image).ends_with(1);
}

#[test]
fn a_second_parent_directory_leads_nowhere() {
    let dir = Dir::new();
    let at = find("plain.erofs", b"f0f1f2f3");
    for name in [b"..", b"./", b".\0"] {
        let image = dir.patched("plain.erofs", at, name);
        let parent = dir.join("parent");
        let tree = parent.join("tree");
        ferrofs().args(["extract", "--no-checksum", "-q"]).arg(&image).arg(&tree).ends_with(1);
        assert_eq!(fs::read_dir(&parent).unwrap().count(), 1, "nothing beside the tree");
        assert!(tree.join("sub/more/f1").exists());
        fs::remove_dir_all(parent).unwrap();
    }
}

#[test]
fn a_symlink_in_the_way_is_never_followed() {
    let dir = Dir::new();
    let (tree, outside) = (dir.join("tree"), dir.join("outside"));
    fs::create_dir_all(&tree).unwrap();
    fs::create_dir(&outside).unwrap();
    let victim = dir.write("victim", b"precious");
    symlink(&outside, tree.join("sub")).unwrap();
    symlink(&victim, tree.join("a.txt")).unwrap();
    symlink(&victim, tree.join("link")).unwrap();
    let extract = || ferrofs().args(["extract", "-q"]).arg(data("plain.erofs")).arg(&tree);
    extract().ends_with(1);
    assert!(is_empty(&outside));
    extract().arg("--overwrite").succeeds();
    assert!(is_empty(&outside));
    assert_eq!(fs::read(&victim).unwrap(), b"precious");
    assert!(tree.join("sub").symlink_metadata().unwrap().is_dir());
    assert!(tree.join("a.txt").symlink_metadata().unwrap().is_file());
}

#[test]
fn a_directory_in_the_way_is_kept_and_named() {
    let dir = Dir::new();
    let tree = dir.join("tree");
    fs::create_dir_all(tree.join("a.txt/mine")).unwrap();
    let ended =
        ferrofs().args(["extract", "-q", "--overwrite"]).arg(data("plain.erofs")).arg(&tree);
    let ended = ended.ends_with(1);
    assert!(ended.stderr.contains("/a.txt: a directory is in the way"), "{}", ended.stderr);
    assert!(tree.join("a.txt/mine").is_dir());
    // The first name failed, so the next one holds the contents.
    assert_eq!(fs::metadata(tree.join("linked")).unwrap().len(), 3000);
}

#[test]
fn a_device_that_the_caller_may_not_make_replaces_nothing() {
    let dir = Dir::new();
    let (image, tree) = (dir.readable("plain.erofs"), dir.join("tree"));
    let extract = || {
        let extract = dir.ordinary_ferrofs().args(["extract", "--overwrite"]);
        extract.arg(&image).arg(&tree)
    };
    extract().succeeds();
    let device = tree.join("sub/zero");
    fs::write(&device, "precious").unwrap();
    let ended = extract().succeeds();
    assert!(ended.stderr.contains("2 special files left out"), "{}", ended.stderr);
    assert_eq!(fs::read(&device).unwrap(), b"precious");
    assert_eq!(fs::read_dir(tree.join("sub")).unwrap().count(), 6);
}

#[test]
fn hard_links_of_existing_files_are_cut() {
    let dir = Dir::new();
    let tree = dir.join("tree");
    fs::create_dir(&tree).unwrap();
    let victim = dir.write("victim", b"precious");
    fs::hard_link(&victim, tree.join("a.txt")).unwrap();
    ferrofs().args(["extract", "-q", "--overwrite"]).arg(data("plain.erofs")).arg(&tree).succeeds();
    assert_eq!(fs::read(&victim).unwrap(), b"precious");
}

#[test]
fn fragments_do_not_appear_as_a_file() {
    let dir = Dir::new();
    let tree = dir.join("tree");
    ferrofs().args(["extract", "-q"]).arg(data("lz4hc-all-fragments.erofs")).arg(&tree).succeeds();
    let mut names: Vec<_> =
        fs::read_dir(&tree).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    names.sort();
    assert_eq!(names, ["align", "noise", "same", "sizes", "small", "text", "zeros"]);
}

#[test]
fn holes_stay_holes_to_the_end_of_the_file() {
    let dir = Dir::new();
    let tree = dir.join("tree");
    ferrofs().args(["extract", "-q"]).arg(data("chunk-indexes.erofs")).arg(&tree).succeeds();
    let metadata = fs::metadata(tree.join("hole")).unwrap();
    assert_eq!(metadata.len(), 9000);
    assert!(metadata.blocks() * 512 < 9000, "{} blocks", metadata.blocks());
}

#[test]
fn what_a_terminal_would_obey_is_escaped_in_messages() {
    let dir = Dir::new();
    let ended = ferrofs().arg("extract").arg(data("plain.erofs")).arg(dir.join("tree"));
    let ended = ended.args(["no\u{1b}thing", "no\nthing"]).ends_with(1);
    assert!(ended.stderr.contains("no\\x1bthing") && ended.stderr.contains("no\\nthing"));
    let ended = ferrofs().arg("extract").arg(data("plain.erofs")).arg(dir.join("tree"));
    let ended = ended.arg("[\u{1b}").ends_with(1);
    assert!(!ended.stderr.contains('\u{1b}'), "{:?}", ended.stderr);
}

#[test]
fn files_in_a_directory_that_its_owner_may_not_search_still_get_their_other_names() {
    let dir = Dir::new();
    let stat = ferrofs().args(["stat", "--json"]).arg(data("lz4.erofs")).arg("/same");
    let nid = stat.succeeds().json()["nid"].as_u64().unwrap();
    // The mode is four bytes into an inode, and nids count in 32 bytes.
    let at = usize::try_from(nid).unwrap() * 32 + 4;
    let image = dir.patched("lz4.erofs", at, &0o040_600u16.to_le_bytes());
    let tree = dir.join("tree");
    let extract = dir.ordinary_ferrofs().args(["extract", "-q", "--no-checksum"]);
    extract.args([&image, &tree]).succeeds();
    assert_eq!(fs::metadata(tree.join("same")).unwrap().mode() & 0o7777, 0o600);
    assert_eq!(fs::metadata(tree.join("text/20k")).unwrap().nlink(), 2);
}

/// What a test with a mount of the kernel has: a folder with a tree, a place to mount, and a name for the image.
struct KernelMount {
    dir: Dir,
    tree: PathBuf,
    image: PathBuf,
    place: PathBuf,
}

impl KernelMount {
    /// Both directories are empty. `None` if nothing can be mounted.
    fn new() -> Option<Self> {
        if !is_root() {
            skip("it needs root for a mount");
            return None;
        }
        let dir = Dir::new();
        let [tree, image, place] = ["tree", "image", "mnt"].map(|name| dir.join(name));
        fs::create_dir(&tree).unwrap();
        fs::create_dir(&place).unwrap();
        Some(Self { dir, tree, image, place })
    }
}

/// Bytes that do not compress, each time the same.
fn noise(count: usize) -> Vec<u8> {
    let mut state = 1_u64;
    let mut random = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        state.to_be_bytes()[0]
    };
    (0..count).map(|_| random()).collect()
}

/// Mounts an image with the kernel's driver, calls `look` with the mount, and unmounts it.
fn in_kernel<T>(image: &Path, place: &Path, options: &str, look: impl Fn() -> T) -> Option<T> {
    let mut mount = Command::new("mount");
    mount.args(["-t", "erofs", "-o", options]).arg(image).arg(place);
    if !mount.output().unwrap().status.success() {
        return None;
    }
    let found = look();
    // A child that another test is about to start may hold a file of the mount for a moment.
    assert!(Command::new("umount").arg("--lazy").arg(place).status().unwrap().success());
    Some(found)
}

#[test]
fn linux_lists_all_xattrs_of_inodes_in_a_metabox() {
    const FILES: usize = 400;
    let Some(KernelMount { dir: _dir, tree, image, place }) = KernelMount::new() else { return };
    for number in 0..FILES {
        let (path, own) = (tree.join(number.to_string()), number.to_string());
        fs::write(&path, "").unwrap();
        lsetxattr(&path, "trusted.a", b"same", XattrFlags::empty()).unwrap();
        lsetxattr(&path, "trusted.own", own.as_bytes(), XattrFlags::empty()).unwrap();
    }
    ferrofs().args(["build", "-q", "-b4096", "--metabox=4096"]).args([&image, &tree]).succeeds();
    let listed = |number: usize| {
        let mut names = [0; 256];
        let bytes = llistxattr(place.join(number.to_string()), &mut names).unwrap();
        String::from_utf8_lossy(&names[..bytes]).into_owned()
    };
    let all = in_kernel(&image, &place, "ro,loop", || (0..FILES).map(listed).collect::<Vec<_>>());
    let Some(all) = all else {
        return skip("it needs a kernel that mounts images with a metabox");
    };
    let wrong: Vec<_> = all.iter().filter(|names| *names != "trusted.a\0trusted.own\0").collect();
    assert!(wrong.is_empty(), "{} of {FILES}: {:?}", wrong.len(), wrong[0]);
}

#[test]
fn linux_reads_a_compressed_image_with_a_blob() {
    let Some(KernelMount { dir, tree, image, place }) = KernelMount::new() else { return };
    fs::write(tree.join("noise"), noise(300_000)).unwrap();
    fs::write(tree.join("text"), "a line of text\n".repeat(20_000)).unwrap();
    let blob = dir.join("blob");
    let build = ferrofs().args(["build", "-q", "-zlz4", "--chunk-size=64k", "--blob"]);
    build.args([&blob, &image, &tree]).succeeds();
    assert_eq!(fs::metadata(&blob).unwrap().len(), 300_000_u64.next_multiple_of(4096));
    let attached = Command::new("losetup").args(["-f", "--show"]).arg(&blob).output().unwrap();
    if !attached.status.success() {
        return skip("it needs a loop device");
    }
    let device = String::from_utf8(attached.stdout).unwrap().trim().to_owned();
    let compare = || Command::new("diff").arg("-r").args([&tree, &place]).output().unwrap();
    let same = in_kernel(&image, &place, &format!("ro,loop,device={device}"), compare);
    Command::new("losetup").arg("-d").arg(&device).status().unwrap();
    let Some(same) = same else { return skip("it needs a kernel with EROFS") };
    assert!(same.status.success(), "{}", String::from_utf8_lossy(&same.stdout));
}

/// Of a packed file that is stored as it is, `check` read the first 256 KiB, and took the rest for read.
#[test]
fn check_reads_every_byte_of_fragments_that_are_stored_as_they_are() {
    let dir = Dir::new();
    let (tree, image) = (dir.join("tree"), dir.join("image"));
    fs::create_dir(&tree).unwrap();
    // Two different files.
    let bytes = noise(1_200_000);
    fs::write(tree.join("a"), &bytes[..700_000]).unwrap();
    fs::write(tree.join("b"), &bytes[700_000..]).unwrap();
    ferrofs().args(["build", "-q", "-zlz4", "--fragments=all"]).args([&image, &tree]).succeeds();
    let message = ferrofs().args(["check", "--stats"]).arg(&image).succeeds().stderr;
    assert!(message.contains("served 1.1 MiB"), "{message}");
}

/// Of two descriptors of a new destination, the second one is made after the image was read.
#[test]
fn a_destination_without_descriptors_is_named_and_not_the_image() {
    let dir = Dir::new();
    let (image, tree) = (data("lz4.erofs"), dir.join("tree"));
    let program = env!("CARGO_BIN_EXE_ferrofs");
    let mut named = 0;
    for limit in 8..32 {
        let limited =
            TestCommand::new(Command::new("prlimit")).arg(format!("--nofile={limit}:{limit}"));
        let extract = limited.args([program, "extract", "-q", "--jobs=1"]);
        let message = extract.args([&image, &tree]).run().stderr;
        let is_about =
            |path: &Path| message.contains(&format!("{}: cannot open directory", path.display()));
        assert!(!is_about(&image), "{limit}: {message}");
        named += usize::from(is_about(&tree));
        fs::remove_dir_all(&tree).ok();
    }
    assert!(named > 1);
}

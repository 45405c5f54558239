//! The command under the names of erofs-utils: what it warns of, what it refuses, and what its summaries say.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use crate::support::{Dir, TestCommand, ferrofs, named};

fn mkfs() -> TestCommand {
    named("mkfs.erofs")
}

/// A directory with a file of 300,000 bytes, a copy of it, and a short file.
fn write_tree(dir: &Dir) -> PathBuf {
    let tree = dir.join("tree");
    fs::create_dir(&tree).unwrap();
    let mut state = 1_u32;
    let mut random = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        state.to_be_bytes()[0]
    };
    let bytes: Vec<u8> = (0..300_000).map(|_| random()).collect();
    fs::write(tree.join("one"), &bytes).unwrap();
    fs::write(tree.join("other"), &bytes).unwrap();
    // Between these two, and written behind both if they lie in another image.
    fs::write(tree.join("onf"), "a few bytes").unwrap();
    tree
}

#[test]
fn a_directory_that_no_path_leads_to_is_not_reported_as_sound() {
    let dir = Dir::new();
    let (tree, image) = (dir.join("tree"), dir.join("image"));
    fs::create_dir_all(tree.join("quite-unusual")).unwrap();
    fs::write(tree.join("quite-unusual/file"), "content").unwrap();
    mkfs().arg("--quiet").arg(&image).arg(&tree).succeeds();
    let found = ferrofs().args(["stat", "--json"]).arg(&image).arg("/quite-unusual").succeeds();
    let nid = format!("--nid={}", found.json()["nid"]);
    let fsck = || named("fsck.erofs").args(["--no-sbcrc", "-d3", &nid]).arg(&image);
    assert!(fsck().succeeds().stderr.contains("No errors found"));
    let mut bytes = fs::read(&image).unwrap();
    let at = bytes.windows(13).position(|part| part == b"quite-unusual").unwrap();
    bytes[at] = b'/';
    fs::write(&image, &bytes).unwrap();
    let ended = fsck().ends_with(1);
    assert!(ended.stderr.contains("no path in the image leads to it"), "{}", ended.stderr);
    assert!(ended.stderr.contains("Found some filesystem corruption"), "{}", ended.stderr);
}

/// The number in a line of the summary of mkfs.erofs.
fn number(summary: &str, name: &str) -> u64 {
    let line = summary.lines().find(|line| line.contains(name)).unwrap();
    line.rsplit(' ').next().unwrap().parse().unwrap()
}

#[test]
fn the_summary_counts_only_data_in_the_image_as_data() {
    let dir = Dir::new();
    let (tree, base, image) = (write_tree(&dir), dir.join("base"), dir.join("image"));
    let small = dir.join("small");
    fs::create_dir(&small).unwrap();
    fs::write(small.join("file"), "a few bytes").unwrap();
    let summary = |words: &[&str], source: &Path| {
        let text = mkfs().args(["-d1"]).args(words).arg(&image).arg(source).succeeds().text();
        (number(&text, "total metadata blocks"), number(&text, "deduplicated bytes"))
    };
    // Of each file, 73 blocks can be referred to, and the last 992 bytes are copied into a block.
    mkfs().args(["--quiet"]).arg(&base).arg(&tree).succeeds();
    let blocks = |path: &Path| fs::metadata(path).unwrap().len() / 4096;
    assert_eq!((summary(&["--chunksize=4096"], &base), blocks(&image)), ((1, 0), 4));
    assert_eq!(summary(&["-Ededupe", "--chunksize=8192"], &tree), (1, 300_000));
    assert_eq!(summary(&[], &small), (1, 0));
}

#[test]
fn options_without_effect_on_the_source_cause_a_warning() {
    let dir = Dir::new();
    let (tree, base, image) = (write_tree(&dir), dir.join("base"), dir.join("image"));
    mkfs().args(["--quiet"]).arg(&base).arg(&tree).succeeds();
    let warnings = |words: &[&str], source: &Path| {
        let ended = mkfs().args(words).arg(&image).arg(source).succeeds();
        let lines = ended.stderr.lines().map(|line| {
            let option = line.strip_prefix("ferrofs: warning: ").unwrap_or(line);
            option.split(" has no effect").next().unwrap().to_owned()
        });
        lines.collect::<Vec<_>>()
    };
    let of_directory = ["--aufs", "--max-input=1g", "--clean"];
    assert_eq!(warnings(&of_directory, &tree), ["--aufs", "--max-input", "--clean"]);
    assert!(warnings(&of_directory, &base).is_empty());
    let of_images = ["--exclude-path=one", "--hard-dereference", "-zlz4", "-Ededupe"];
    assert!(warnings(&of_images, &tree).is_empty());
    let all = ["--hard-dereference", "--exclude-path", "-z", "-E: dedupe"];
    assert_eq!(warnings(&of_images, &base), all);
    let copying = [&of_images[..], &["--clean=data"]].concat();
    assert_eq!(warnings(&copying, &base), all[..2]);
    assert!(warnings(&[&of_images[..], &["--quiet"]].concat(), &base).is_empty());
}

#[test]
fn a_vmdk_descriptor_has_names_as_they_are_or_none() {
    let dir = Dir::new();
    let (tree, descriptor) = (write_tree(&dir), dir.join("vmdk"));
    let option = format!("--vmdk-desc={}", descriptor.display());
    let build = |name: &[u8]| {
        let image = dir.join(OsStr::from_bytes(name));
        (mkfs().args(["--quiet", &option]).arg(&image).arg(&tree), image)
    };
    let (command, image) = build(b"im\xffage");
    command.succeeds();
    let text = fs::read(&descriptor).unwrap();
    let line = [&b"FLAT \""[..], image.as_os_str().as_bytes(), b"\" 0\n"].concat();
    assert!(text.windows(line.len()).any(|part| part == line), "{text:?}");
    for name in [b"im\"age", b"im\nage"] {
        let (command, image) = build(name);
        let ended = command.ends_with(1);
        assert!(ended.stderr.contains("rename the file, or leave out --vmdk-desc"), "{ended:?}");
        assert!(!image.exists());
    }
}

#[test]
fn no_owner_is_the_id_that_stands_for_none() {
    let dir = Dir::new();
    let (tree, image) = (write_tree(&dir), dir.join("image"));
    let build = |option: &str| ferrofs().args(["build", "-q", "-f", option]).arg(&image).arg(&tree);
    for option in ["--uid=4294967295", "--gid=4294967295"] {
        assert!(build(option).ends_with(2).stderr.contains("not an id from 0 to 4294967294"));
    }
    build("--uid=4294967294").succeeds();
    let offset = |words: &[&str], command: TestCommand| {
        let ended = command.args(words).arg(&image).arg(&tree).ends_with(1);
        assert!(ended.stderr.contains("which stands for no owner"), "{}", ended.stderr);
    };
    offset(&["-q", "-f", "--uid=1", "--uid-offset=4294967294"], ferrofs().arg("build"));
    offset(&["--force-gid=0", "--gid-offset=-1"], mkfs());
}

#[test]
fn json_has_no_characters_that_fool_a_terminal() {
    let dir = Dir::new();
    let name = "\u{9b}31m\u{7f}\u{202e}";
    let (tree, image) = (dir.join("tree"), dir.join(name));
    fs::create_dir(&tree).unwrap();
    fs::write(tree.join(name), "").unwrap();
    mkfs().args(["--quiet"]).arg(&image).arg(&tree).succeeds();
    let text = ferrofs().args(["ls", "--json"]).arg(&image).succeeds().text();
    assert!(text.contains(r"\u009b31m\u007f\u202e"), "{text}");
    assert!(!text.contains(['\u{9b}', '\u{7f}', '\u{202e}']));
    // The report is on standard error if the archive is on standard output.
    let report = ferrofs().args(["extract", "--json", "--tar", "-"]).arg(&image).succeeds().stderr;
    assert!(report.contains(r"\u009b31m\u007f\u202e"), "{report}");
}

#[test]
fn the_help_of_list_names_every_state() {
    let help = ferrofs().args(["list", "--help"]).succeeds().text();
    for state in ["served", "kept", "dead", "no answer", "unknown"] {
        assert!(help.contains(&format!("\n  {state}  ")), "{state}: {help}");
    }
}

#[test]
fn calls_that_once_were_refused_end_as_those_of_the_original() {
    let dir = Dir::new();
    let (tree, image) = (write_tree(&dir), dir.join("image"));
    for option in ["--clean=", "--xattr-inode-digest=", "--clean=1"] {
        mkfs().arg(option).arg(&image).arg(&tree).succeeds();
    }
    let ended = named("dump.erofs").arg("--nid=-1").arg(&image).succeeds();
    assert!(ended.stderr.starts_with("ferrofs: "), "{}", ended.stderr);
}

//! The programs of erofs-utils and the command under their names, side by side: `compatibility.txt`
//! has the calls, and docs/compatibility.md justifies each difference. Needs the originals: in the
//! folder that `FERROFS_ORIGINALS` names, or in PATH, in version 1.9.4.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use sha2::{Digest, Sha256};

use crate::support::{Dir, data, is_root, skip};

const CALLS: &str = include_str!("../data/compatibility.txt");
const SCRIPT: &str = include_str!("../data/compatibility.sh");
const TABLE: &str = include_str!("../../../../docs/compatibility.md");

/// Programs by their names in the list.
const PROGRAMS: [(&str, &str); 5] = [
    ("mkfs", "mkfs.erofs"),
    ("fsck", "fsck.erofs"),
    ("dump", "dump.erofs"),
    ("fuse", "erofsfuse"),
    ("mount", "mount.erofs"),
];
/// What a run changes: words of a call, and the names of the files that they become.
const OUTPUTS: [(&str, &str); 9] = [
    ("OUT", "out"),
    ("DIR", "dir"),
    ("BLOB", "blob"),
    ("RAW", "raw"),
    ("ZINFO", "zinfo"),
    ("VMDK", "vmdk"),
    ("MAP", "map"),
    ("OLD", "old"),
    ("MNT", "mnt"),
];

/// A line of the list.
#[derive(Clone, Copy, Debug)]
struct Call<'a> {
    /// The row of the table that justifies a difference.
    key: Option<&'a str>,
    compares_output: bool,
    program: &'a str,
    words: &'a str,
}

impl<'a> Call<'a> {
    fn parse(line: &'a str) -> Self {
        let (key, rest) = match line.strip_prefix('[').and_then(|rest| rest.split_once("] ")) {
            Some((key, rest)) => (Some(key), rest),
            None => (None, line),
        };
        let (compares_output, rest) =
            rest.strip_prefix("= ").map_or((false, rest), |rest| (true, rest));
        let (program, words) = rest.split_once(' ').unwrap_or((rest, ""));
        Self { key, compares_output, program, words }
    }

    fn has(&self, part: &str) -> bool {
        self.words.contains(part)
    }

    /// How the verbs of ferrofs open the image that this call makes.
    fn read_options(&self, tools: &str) -> Vec<String> {
        let mut options = Vec::new();
        if self.has("--tar=i") || self.has("--tar=0") {
            options.push("--device=t.tar".to_owned());
        }
        if self.has("--blobdev=BLOB") {
            options.push(format!("--device=blob.{tools}"));
        }
        if !self.has("--clean") && !self.has("--incremental") {
            let images = self.words.split(' ').filter(|word| word.ends_with(".erofs"));
            options.extend(images.map(|image| format!("--device={image}")));
        }
        if self.has("--offset=4096") {
            options.push("--offset=4096".to_owned());
        }
        options
    }
}

fn calls() -> impl Iterator<Item = Call<'static>> {
    CALLS.lines().filter(|line| !line.is_empty() && !line.starts_with('#')).map(Call::parse)
}

/// The folder of the originals, if they are there in the right version.
fn originals() -> Option<PathBuf> {
    let named = std::env::var_os("FERROFS_ORIGINALS").map(PathBuf::from);
    let path = std::env::var_os("PATH").unwrap_or_default();
    named.into_iter().chain(std::env::split_paths(&path)).find(|folder| {
        let output = Command::new(folder.join("mkfs.erofs")).arg("-V").output();
        let is_original = |output: Output| {
            let text = String::from_utf8_lossy(&output.stdout).into_owned();
            text.starts_with("mkfs.erofs (erofs-utils) 1.9.4") && !text.contains("ferrofs")
        };
        output.is_ok_and(is_original)
    })
}

/// One of the two sets of programs that are compared.
struct ToolSet<'a> {
    name: &'static str,
    programs: PathBuf,
    dir: &'a Dir,
}

impl ToolSet<'_> {
    fn output(&self, name: &str) -> PathBuf {
        self.dir.join(format!("{name}.{}", self.name))
    }

    /// Removes what the last call left, and puts the old image and the mount point in place.
    fn reset(&self) {
        if is_mounted(&self.output("mnt")) {
            let status = Command::new("umount").arg("--lazy").arg(self.output("mnt")).status();
            assert!(status.unwrap().success());
        }
        for (_, name) in OUTPUTS {
            let path = self.output(name);
            match path.symlink_metadata() {
                Ok(found) if found.is_dir() => fs::remove_dir_all(&path).unwrap(),
                Ok(_) => fs::remove_file(&path).unwrap(),
                Err(_) => {}
            }
        }
        fs::copy(self.dir.join("a.erofs"), self.output("old")).unwrap();
        fs::create_dir(self.output("mnt")).unwrap();
        for name in ["full", "no"] {
            fs::remove_dir_all(self.dir.join(name)).unwrap_or_default();
        }
        fs::create_dir(self.dir.join("full")).unwrap();
        fs::write(self.dir.join("full/small"), "in the way").unwrap();
    }

    fn run(&self, call: &Call<'_>) -> Output {
        let program = PROGRAMS.iter().find(|(name, _)| *name == call.program).unwrap().1;
        let mut command = Command::new(self.programs.join(program));
        for word in call.words.split(' ').filter(|word| !word.is_empty()) {
            let mut word = word.to_owned();
            for (wildcard, name) in OUTPUTS {
                word = word.replace(wildcard, &format!("{name}.{}", self.name));
            }
            command.arg(word);
        }
        command.current_dir(self.dir.path()).stdin(Stdio::null()).output().unwrap()
    }
}

fn is_mounted(path: &Path) -> bool {
    let device = |path: &Path| fs::metadata(path).map(|found| found.dev()).ok();
    device(path).is_some() && device(path) != path.parent().and_then(device)
}

/// Makes the files of the calls; the originals read the same ones.
fn prepare(dir: &Dir, originals: &Path) {
    let script = |step: &str| {
        let mut command = Command::new("sh");
        command.args(["-c", SCRIPT, "sh"]).arg(originals).arg(data("")).arg(step);
        let output = command.current_dir(dir.path()).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    };
    script("tree");
    for name in ["text", "sub/copy", "small"] {
        let flags = rustix::fs::XattrFlags::empty();
        rustix::fs::setxattr(dir.join("tree").join(name), "user.kind", b"prose", flags)
            .unwrap_or_default();
    }
    script("images");
    fs::write(dir.join("head.tar"), headers_only(&fs::read(dir.join("t.tar")).unwrap())).unwrap();
}

/// A tar without the contents of files.
fn headers_only(tar: &[u8]) -> Vec<u8> {
    let mut headers = Vec::new();
    let mut rest = tar;
    while rest.len() >= 512 && rest[0] != 0 {
        let (header, behind) = rest.split_at(512);
        let digits = header[124..136].iter().take_while(|digit| digit.is_ascii_digit());
        let bytes = digits.fold(0, |bytes, digit| bytes * 8 + usize::from(digit - b'0'));
        let (body, behind) = behind.split_at(bytes.next_multiple_of(512).min(behind.len()));
        headers.extend(header);
        if b"xgLK".contains(&header[156]) {
            headers.extend(body);
        }
        rest = behind;
    }
    headers.extend(rest);
    headers
}

/// Everything about a tree but where it lies.
type TreeFacts = BTreeMap<PathBuf, String>;

fn facts_of_tree(root: &Path) -> TreeFacts {
    let mut facts = BTreeMap::new();
    let mut open = vec![PathBuf::new()];
    while let Some(relative) = open.pop() {
        // An empty path would add a slash.
        let path = if facts.is_empty() { root.to_owned() } else { root.join(&relative) };
        let found = path.symlink_metadata().unwrap();
        let kind = found.file_type();
        let content = if kind.is_file() {
            format!("{:x?}", Sha256::digest(fs::read(&path).unwrap()))
        } else if kind.is_symlink() {
            format!("{:?}", fs::read_link(&path).unwrap())
        } else if kind.is_char_device() || kind.is_block_device() {
            format!("{:x}", found.rdev())
        } else {
            String::new()
        };
        let mut names = [0; 4096];
        let names_length = rustix::fs::llistxattr(&path, &mut names).unwrap_or(0);
        let links = if kind.is_dir() { 0 } else { found.nlink() };
        let fact = format!(
            "{:o} {}:{} {links} {}.{} {content} {:?}",
            found.mode(),
            found.uid(),
            found.gid(),
            found.mtime(),
            found.mtime_nsec(),
            String::from_utf8_lossy(&names[..names_length]),
        );
        if kind.is_dir() {
            let entries = fs::read_dir(&path).unwrap();
            open.extend(entries.map(|entry| relative.join(entry.unwrap().file_name())));
        }
        facts.insert(relative, fact);
    }
    facts
}

fn first_difference(theirs: &TreeFacts, ours: &TreeFacts) -> Option<String> {
    let paths: BTreeSet<_> = theirs.keys().chain(ours.keys()).collect();
    let path = paths.into_iter().find(|path| theirs.get(*path) != ours.get(*path))?;
    let (theirs, ours) = (theirs.get(path), ours.get(path));
    Some(format!("{}: theirs {theirs:?}, ours {ours:?}", path.display()))
}

/// The facts of an image in the kernel's mount; `None` if the kernel does not mount it.
fn facts_in_kernel(image: &Path, place: &Path) -> Option<TreeFacts> {
    let mut mount = Command::new("mount");
    mount.args(["-t", "erofs", "-o", "ro,loop"]).arg(image).arg(place);
    if !mount.output().unwrap().status.success() {
        return None;
    }
    let facts = facts_of_tree(place);
    // A child that another test is about to start may hold a file of the mount for a moment.
    assert!(Command::new("umount").arg("--lazy").arg(place).status().unwrap().success());
    Some(facts)
}

/// The digest of the tar of an image.
fn tar_digest(tools: &ToolSet<'_>, image: &Path, options: &[String]) -> Result<String, String> {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ferrofs"));
    command.args(["extract", "-q", "--tar", "-"]).args(options).arg(image);
    let output = command.current_dir(tools.dir.path()).output().unwrap();
    match output.status.success() {
        true => Ok(format!("{:x?}", Sha256::digest(&output.stdout))),
        false => Err(String::from_utf8_lossy(&output.stderr).into_owned()),
    }
}

/// What differs between the images of both sides.
fn image_difference(call: &Call<'_>, theirs: &ToolSet<'_>, ours: &ToolSet<'_>) -> Option<String> {
    let name = if call.has("OLD") { "old" } else { "out" };
    let digests = [theirs, ours]
        .map(|tools| tar_digest(tools, &tools.output(name), &call.read_options(tools.name)));
    match &digests {
        [Ok(one), Ok(other)] if one == other => {}
        _ => return Some(format!("the trees differ: {digests:?}")),
    }
    let (image, place) = (ours.output(name), ours.output("mnt"));
    if !is_root() || !call.read_options("").is_empty() {
        return None;
    }
    match (facts_in_kernel(&theirs.output(name), &place), facts_in_kernel(&image, &place)) {
        (Some(theirs), Some(ours)) => first_difference(&theirs, &ours),
        (Some(_), None) => Some("the kernel does not mount the image".to_owned()),
        (None, _) => None,
    }
}

/// Standard output without what must differ: the folder of the program, and our own version.
fn comparable(output: &Output, tools: &ToolSet<'_>) -> String {
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let text = text.replace(&format!(".{}", tools.name), ".x");
    let lines = text.lines().filter(|line| !line.starts_with("ferrofs "));
    lines.map(|line| format!("{line}\n")).collect()
}

/// What differs between the two programs in one call.
fn difference(call: &Call<'_>, theirs: &ToolSet<'_>, ours: &ToolSet<'_>) -> Option<String> {
    let [their_output, our_output] = [theirs, ours].map(|tools| {
        tools.reset();
        tools.run(call)
    });
    let error = String::from_utf8_lossy(&our_output.stderr).into_owned();
    assert!(our_output.status.code().is_some() && !error.contains("panicked"), "{call:?}: {error}");
    if their_output.status != our_output.status {
        let (theirs, ours) = (their_output.status, our_output.status);
        return Some(format!("theirs {theirs}, ours {ours}: {error}"));
    }
    if call.compares_output {
        let texts = (comparable(&their_output, theirs), comparable(&our_output, ours));
        if texts.0 != texts.1 {
            return Some(format!("standard output: theirs {:?}, ours {:?}", texts.0, texts.1));
        }
    }
    let is_success = our_output.status.success();
    match call.program {
        "mkfs" if is_success && (call.has("OUT") || call.has("OLD")) => {
            image_difference(call, theirs, ours)
        }
        "fsck" if is_success && call.has("DIR") => first_difference(
            &facts_of_tree(&theirs.output("dir")),
            &facts_of_tree(&ours.output("dir")),
        ),
        "fuse" | "mount" => {
            let places = [theirs, ours].map(|tools| tools.output("mnt"));
            let are_mounted = [&places[0], &places[1]].map(|place| is_mounted(place));
            match are_mounted {
                [true, true] if call.program == "mount" => {
                    first_difference(&facts_of_tree(&places[0]), &facts_of_tree(&places[1]))
                }
                [one, other] if one == other => None,
                _ => Some(format!("mounted: {are_mounted:?}")),
            }
        }
        _ => None,
    }
}

/// Makes all calls of a program.
fn compare(program: &str) {
    let Some(originals) = originals() else {
        skip("erofs-utils 1.9.4 is not installed (FERROFS_ORIGINALS names its folder)");
        return;
    };
    let name = PROGRAMS.iter().find(|(short, _)| *short == program).unwrap().1;
    if !originals.join(name).is_file() {
        skip(&format!("the folder of the originals has no {name}"));
        return;
    }
    let dir = Dir::new();
    prepare(&dir, &originals);
    let own = dir.join("bin");
    fs::create_dir(&own).unwrap();
    for (_, name) in PROGRAMS {
        symlink(env!("CARGO_BIN_EXE_ferrofs"), own.join(name)).unwrap();
    }
    let theirs = ToolSet { name: "theirs", programs: originals, dir: &dir };
    let ours = ToolSet { name: "ours", programs: own, dir: &dir };
    let (mut wrong, mut count) = (Vec::new(), 0);
    for call in calls().filter(|call| call.program == program) {
        count += 1;
        let what = format!("{} {}", call.program, call.words);
        match (difference(&call, &theirs, &ours), call.key) {
            (Some(found), None) => wrong.push(format!("{what}: {found}")),
            (None, Some(key)) => wrong.push(format!("{what}: no difference, but marked [{key}]")),
            _ => {}
        }
    }
    for tools in [&theirs, &ours] {
        tools.reset();
    }
    assert!(wrong.is_empty(), "{} of {count} calls differ:\n{}", wrong.len(), wrong.join("\n"));
}

#[test]
fn mkfs_does_what_the_original_does() {
    compare("mkfs");
}

#[test]
fn fsck_does_what_the_original_does() {
    compare("fsck");
}

#[test]
fn dump_does_what_the_original_does() {
    compare("dump");
}

fn compare_mounts(program: &str) {
    if !Path::new("/dev/fuse").exists() || !is_root() {
        skip("mounting needs root and /dev/fuse");
        return;
    }
    compare(program);
}

#[test]
fn erofsfuse_does_what_the_original_does() {
    compare_mounts("fuse");
}

#[test]
fn mount_does_what_the_original_does() {
    compare_mounts("mount");
}

#[test]
fn every_difference_has_a_row_in_the_table() {
    let rows: BTreeSet<&str> = TABLE
        .lines()
        .filter_map(|line| line.strip_prefix("| `")?.split_once("` |"))
        .map(|(key, _)| key)
        .filter(|key| !key.starts_with('-'))
        .collect();
    let used: BTreeSet<&str> = calls().filter_map(|call| call.key).collect();
    assert_eq!(rows, used);
    assert!(calls().count() >= 200);
}

#[test]
fn every_option_is_called() {
    use std::iter;
    // The options of erofs-utils 1.9.4, of which some are only in its help.
    const OPTIONS: [(&str, &str); 5] = [
        (
            "mkfs",
            "-V --version -h --help -b -d -x -z -C -E -L -m -T -U --all-time --mkfs-time --zD --MZ --all-root \
             --async-queue-limit --blobdev --chunksize --clean --incremental --compress-hints --dsunit --exclude-path \
             --exclude-regex --file-contexts --force-uid --force-gid --fsalignblks --uid-offset --gid-offset \
             --hard-dereference --ignore-mtime --max-extent-bytes --mount-point --preserve-mtime --offset \
             --root-xattr-isize --aufs --sort --s3 --oci --tar --ovlfs-strip --quiet --ungzip --unxz --gzinfo \
             --vmdk-desc --workers --xattr-inode-digest --xattr-prefix --zfeature-bits",
        ),
        (
            "fsck",
            "-V -h -d -p --device --extract --offset --nid --path --no-sbcrc --xattr-inode-digest --xattrs --no-xattrs \
             -a -A -y --force --overwrite --preserve --no-preserve --preserve-owner --no-preserve-owner \
             --no-preserve-perms --preserve-perms",
        ),
        ("dump", "-V -h -S -e -s --blkid-udev --device --ls --cat --nid --offset --path"),
        ("fuse", "-V -h --offset --dbglevel --device -s -o"),
        ("mount", "-V --version -h --help -d -o -t -u --disconnect --reattach"),
    ];
    for (program, options) in OPTIONS {
        for option in options.split_whitespace() {
            let is_given = |word: &str| word.starts_with(option);
            let words = calls().filter(|call| call.program == program);
            let words = words.flat_map(|call| call.words.split(' ').chain(iter::once("")));
            assert!({ words }.any(is_given), "{program} {option}");
        }
    }
}

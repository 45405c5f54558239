//! How outputs get their names: what other processes put in the way is refused, `build` replaces
//! files, and mkfs.erofs writes into them.

use std::fs;
use std::io::Write;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, lchown, symlink};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::support::{Dir, TestCommand, data, ferrofs, is_root, skip};

/// How long a process may take to come to a certain point, on a busy machine.
const LIMIT: Duration = Duration::from_secs(60);

/// A user that owns nothing.
const NOBODY: u32 = 65534;

fn named(program: &Path, name: &str) -> Command {
    let mut command = Command::new(program);
    command.arg0(name);
    command
}

fn mkfs() -> TestCommand {
    TestCommand::new(named(Path::new(env!("CARGO_BIN_EXE_ferrofs")), "mkfs.erofs"))
}

fn source(dir: &Dir) -> PathBuf {
    let tree = dir.join("tree");
    fs::create_dir(&tree).unwrap();
    fs::write(tree.join("file"), vec![b'x'; 300_000]).unwrap();
    tree
}

/// A tar archive with one file of so many bytes, with the end of the archive or without.
fn archive(bytes: usize) -> Vec<u8> {
    let mut header = vec![0; 512];
    header[..4].copy_from_slice(b"file");
    header[100..107].copy_from_slice(b"0000644");
    header[108..115].copy_from_slice(b"0000000");
    header[116..123].copy_from_slice(b"0000000");
    header[124..135].copy_from_slice(format!("{bytes:011o}").as_bytes());
    header[136..147].copy_from_slice(b"00000000000");
    header[148..156].fill(b' ');
    header[156] = b'0';
    header[257..263].copy_from_slice(b"ustar\0");
    header[263..265].copy_from_slice(b"00");
    let sum: u32 = header.iter().map(|byte| u32::from(*byte)).sum();
    header[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    header.resize(512 + bytes.next_multiple_of(512) + 1024, 0);
    header
}

/// A build that reads an archive from standard input, of which it has got the beginning.
struct WaitingBuild {
    child: Child,
    rest: Vec<u8>,
}

impl WaitingBuild {
    fn spawn(mut command: Command) -> Self {
        command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut whole = archive(200_000);
        let rest = whole.split_off(100_000);
        child.stdin.as_mut().unwrap().write_all(&whole).unwrap();
        Self { child, rest }
    }

    /// Waits until something is true.
    fn wait_until(&mut self, is_so: impl Fn(u32) -> bool) {
        let started_at = Instant::now();
        while !is_so(self.child.id()) {
            assert!(started_at.elapsed() < LIMIT, "it does not come that far");
            assert!(self.child.try_wait().unwrap().is_none(), "it has ended");
            std::thread::yield_now();
        }
    }

    /// Gives it the rest of the archive; returns its exit status and what it printed.
    fn finish(mut self) -> (Option<i32>, String) {
        // It may have ended already.
        self.child.stdin.take().unwrap().write_all(&self.rest).ok();
        let ended = self.child.wait_with_output().unwrap();
        (ended.status.code(), String::from_utf8(ended.stderr).unwrap())
    }
}

/// Whether a process has a directory or file open.
fn has_open(process: u32, path: &Path) -> bool {
    let descriptors = fs::read_dir(format!("/proc/{process}/fd")).into_iter().flatten().flatten();
    descriptors.filter_map(|entry| fs::read_link(entry.path()).ok()).any(|open| open == path)
}

#[test]
fn a_link_planted_during_a_build_is_refused() {
    let dir = Dir::new();
    let place = dir.path().canonicalize().unwrap();
    let (victim, image) = (dir.write("victim", b"precious"), place.join("image"));
    for (name, words) in
        [("ferrofs", &["build", "-q"][..]), ("mkfs.erofs", &["--quiet", "--tar=f"][..])]
    {
        let mut build = named(Path::new(env!("CARGO_BIN_EXE_ferrofs")), name);
        build.args(words).arg(&image).arg("-");
        let mut build = WaitingBuild::spawn(build);
        build.wait_until(|process| has_open(process, &place));
        symlink(&victim, &image).unwrap();
        let (code, stderr) = build.finish();
        assert_eq!(code, Some(1), "{name}: {stderr}");
        assert!(stderr.contains("exists already"), "{name}: {stderr}");
        assert_eq!(fs::read(&victim).unwrap(), b"precious");
        assert_eq!(fs::read_dir(&place).unwrap().count(), 2);
        fs::remove_file(&image).unwrap();
    }
}

#[test]
fn root_follows_no_link_of_another_user_in_a_directory_that_all_share() {
    if !is_root() {
        return skip("only root can make a link of another user");
    }
    let dir = Dir::new();
    let tree = source(&dir);
    let (victim, shared) = (dir.write("victim", b"precious"), dir.join("shared"));
    fs::create_dir(&shared).unwrap();
    fs::set_permissions(&shared, fs::Permissions::from_mode(0o1777)).unwrap();
    let (link, file) = (shared.join("link"), shared.join("file"));
    symlink(&victim, &link).unwrap();
    lchown(&link, Some(NOBODY), Some(NOBODY)).unwrap();
    fs::write(&file, "theirs").unwrap();
    chown(&file, Some(NOBODY), Some(NOBODY)).unwrap();
    for (path, part) in [(&link, "symlink of another user"), (&file, "file of another user")] {
        let tar = format!("--tar={}", path.display());
        let blob = format!("--blob={}", path.display());
        let blocks = format!("--block-list-file={}", path.display());
        let sidecar = format!("--sidecar={}", path.display());
        let copy = format!("--ungzip={}", path.display());
        for command in [
            ferrofs().args(["build", "-q", "--force"]).arg(path).arg(&tree),
            ferrofs()
                .args(["build", "-q", "--force", "--chunk-size=64k", &blob])
                .arg(dir.join("image"))
                .arg(&tree),
            mkfs().arg("--quiet").arg(path).arg(&tree),
            mkfs().args(["--quiet", "--tar=f", &copy]).arg(dir.join("image")).arg(data("few.tar")),
            ferrofs().args(["extract", "-q", &tar]).arg(data("plain.erofs")),
            ferrofs().args(["build", "-q", "--force", &blocks]).arg(dir.join("image")).arg(&tree),
            ferrofs()
                .args(["extract", "-q", "--overwrite", &sidecar])
                .arg(data("plain.erofs"))
                .arg(dir.join("out")),
        ] {
            let stderr = command.ends_with(1).stderr;
            assert!(stderr.contains(part), "{stderr}");
        }
    }
    assert_eq!(fs::read(&victim).unwrap(), b"precious");
    assert_eq!(fs::read(&file).unwrap(), b"theirs");
    // One's own links are followed there, too.
    lchown(&link, Some(0), Some(0)).unwrap();
    ferrofs().args(["build", "-q", "--force"]).arg(&link).arg(&tree).succeeds();
    ferrofs().args(["check", "-q"]).arg(&victim).succeeds();
}

#[test]
fn a_text_gets_its_name_when_it_is_complete_and_never_that_of_the_image() {
    let dir = Dir::new();
    let (image, tree) = (dir.join("image"), source(&dir));
    let line = |label: &str| {
        format!(
            r#"{{"path":"/","type":"d","mode":"0755","uid":0,"gid":0,"mtime":0,"nanoseconds":0,"xattrs":[{{"name":"security.selinux","value":"{label}"}}]}}"#
        )
    };
    // A label with a blank cannot stand in a list of Android.
    let sidecar = dir.write("sidecar", line("6120").as_bytes());
    ferrofs().args(["build", "-q", "--sidecar"]).args([&sidecar, &image, &tree]).succeeds();
    let lists = dir.join("lists");
    fs::create_dir(&lists).unwrap();
    fs::write(lists.join("fs_config"), "former").unwrap();
    let extract = |option: &str, path: &Path, out: &str| {
        ferrofs().args(["extract", "-q", option]).args([path, &image, &dir.join(out)])
    };
    let stderr = extract("--android-config", &lists, "one").ends_with(1).stderr;
    assert!(stderr.contains("use --sidecar"), "{stderr}");
    assert_eq!(fs::read(lists.join("fs_config")).unwrap(), b"former");
    assert_eq!(fs::read_dir(&lists).unwrap().count(), 1);
    let before = fs::read(&image).unwrap();
    let stderr = extract("--sidecar", &image, "two").ends_with(2).stderr;
    assert!(stderr.contains("the text would replace the image"), "{stderr}");
    assert!(fs::read(&image).unwrap() == before);
    extract("--sidecar", &sidecar, "three").succeeds();
    assert!(fs::read_to_string(&sidecar).unwrap().contains(r#""value":"6120""#));
}

#[test]
fn build_keeps_the_mode_and_owner_of_the_file_that_it_replaces() {
    let dir = Dir::new();
    let (tree, image) = (source(&dir), dir.write("image", b"former"));
    fs::hard_link(&image, dir.join("other")).unwrap();
    fs::set_permissions(&image, fs::Permissions::from_mode(0o600)).unwrap();
    if is_root() {
        chown(&image, Some(NOBODY), Some(NOBODY)).unwrap();
    }
    let before = fs::metadata(&image).unwrap();
    ferrofs().args(["build", "-q", "--force"]).arg(&image).arg(&tree).succeeds();
    let after = fs::metadata(&image).unwrap();
    assert_eq!((after.mode(), after.uid(), after.gid()), (0o100_600, before.uid(), before.gid()));
    assert_ne!(after.ino(), before.ino());
    assert_eq!(fs::read(dir.join("other")).unwrap(), b"former");
}

#[test]
fn mkfs_writes_into_the_file_that_its_caller_holds() {
    let dir = Dir::new();
    let (tree, image) = (source(&dir), dir.write("image", &vec![7; 2 << 20]));
    let (other, held) = (dir.join("other"), fs::File::open(&image).unwrap());
    fs::hard_link(&image, &other).unwrap();
    fs::set_permissions(&image, fs::Permissions::from_mode(0o600)).unwrap();
    if is_root() {
        chown(&image, Some(NOBODY), Some(NOBODY)).unwrap();
    }
    let before = fs::metadata(&image).unwrap();
    mkfs().arg("--quiet").arg(&image).arg(&tree).succeeds();
    let after = held.metadata().unwrap();
    assert_eq!((after.mode(), after.uid(), after.gid()), (0o100_600, before.uid(), before.gid()));
    assert_eq!((after.ino(), after.nlink()), (before.ino(), 2));
    assert!(after.len() > 300_000 && after.len() < 1 << 20, "{}", after.len());
    for path in [&image, &other] {
        ferrofs().args(["check", "-q"]).arg(path).succeeds();
    }
    let fresh = dir.join("fresh");
    let fixed = ["--quiet", "-T0", "-Uclear"];
    mkfs().args(fixed).arg(&fresh).arg(&tree).succeeds();
    mkfs().args(fixed).arg(&image).arg(&tree).succeeds();
    assert!(fs::read(&fresh).unwrap() == fs::read(&other).unwrap());
}

#[test]
fn mkfs_needs_no_right_to_the_directory_of_a_file_that_exists() {
    let dir = Dir::new();
    let (tree, program) = (source(&dir), dir.join("ferrofs"));
    let copied = Command::new("cp").arg(env!("CARGO_BIN_EXE_ferrofs")).arg(&program).status();
    assert!(copied.unwrap().success());
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let place = dir.join("place");
    fs::create_dir(&place).unwrap();
    let image = place.join("image");
    fs::write(&image, "former").unwrap();
    let mut build = named(&program, "mkfs.erofs");
    if is_root() {
        build.uid(NOBODY).gid(NOBODY);
        chown(&image, Some(NOBODY), Some(NOBODY)).unwrap();
    }
    fs::set_permissions(&place, fs::Permissions::from_mode(0o555)).unwrap();
    TestCommand::new(build).arg("--quiet").arg(&image).arg(&tree).succeeds();
    ferrofs().args(["check", "-q"]).arg(&image).succeeds();
    fs::set_permissions(&place, fs::Permissions::from_mode(0o755)).unwrap();
}

#[test]
fn a_file_that_mkfs_has_begun_to_write_is_no_image_before_the_end() {
    let dir = Dir::new();
    let (tree, image) = (source(&dir), dir.join("image"));
    let begin = || {
        mkfs().arg("--quiet").arg(&image).arg(&tree).succeeds();
        let mut build = named(Path::new(env!("CARGO_BIN_EXE_ferrofs")), "mkfs.erofs");
        build.args(["--quiet", "--tar=f"]).arg(&image).arg("-");
        let mut build = WaitingBuild::spawn(build);
        build.wait_until(|_| fs::metadata(&image).unwrap().len() == 0);
        build
    };
    let is_image = || ferrofs().arg("info").arg(&image).run().code == Some(0);
    let mut killed = begin();
    killed.child.kill().unwrap();
    killed.child.wait().unwrap();
    assert!(!is_image());
    let mut failed = begin();
    failed.rest.truncate(1000);
    assert_eq!(failed.finish().0, Some(1));
    assert!(!is_image());
    assert_eq!(fs::metadata(&image).unwrap().len(), 0);
    assert_eq!(begin().finish(), (Some(0), String::new()));
    assert!(is_image());
}

#[test]
fn mkfs_leaves_a_file_alone_if_the_source_is_missing_or_is_that_file() {
    let dir = Dir::new();
    let image = dir.write("image", &fs::read(data("plain.erofs")).unwrap());
    mkfs().arg("--quiet").arg(&image).arg(dir.join("none")).ends_with(1);
    let stderr = mkfs().arg("--quiet").args([&image, &image]).run().stderr;
    assert!(stderr.contains("would replace a file that the build reads"), "{stderr}");
    assert!(fs::read(&image).unwrap() == fs::read(data("plain.erofs")).unwrap());
}

/// The list of blocks replaced any file without a question.
#[test]
fn a_text_of_a_build_replaces_a_file_only_if_that_is_requested() {
    let dir = Dir::new();
    let (tree, image, list) = (source(&dir), dir.join("image"), dir.write("list", b"precious"));
    let option = format!("--block-list-file={}", list.display());
    let stderr = ferrofs().args(["build", "-q", &option]).args([&image, &tree]).ends_with(1).stderr;
    assert!(stderr.contains("list: exists already; --force replaces it"), "{stderr}");
    assert!(!image.exists());
    assert_eq!(fs::read(&list).unwrap(), b"precious");
    for command in [
        ferrofs().args(["build", "-qf", &option]).args([&image, &tree]),
        mkfs().args(["--quiet", &option]).args([&image, &tree]),
    ] {
        fs::write(&list, b"precious").unwrap();
        command.succeeds();
        assert_ne!(fs::read(&list).unwrap(), b"precious");
    }
}

#[test]
fn an_output_of_a_build_is_neither_another_one_nor_an_input() {
    let dir = Dir::new();
    let (tree, image) = (source(&dir), dir.join("image"));
    let files = ["archive.tar", "sidecar", "hints", "other"].map(|name| dir.join(name));
    let [archive, sidecar, hints, other] = &files;
    let mut tar = Command::new("tar");
    assert!(tar.arg("-cf").arg(archive).arg("-C").arg(&tree).arg(".").status().unwrap().success());
    for file in [sidecar, hints] {
        fs::write(file, "").unwrap();
    }
    symlink("archive.tar", dir.join("link")).unwrap();
    fs::hard_link(archive, other).unwrap();
    let before = files.each_ref().map(|file| fs::read(file).unwrap());
    let build = |words: &str, source: &Path| {
        let words = words.split(' ').filter(|word| !word.is_empty());
        ferrofs().args(["build", "-q"]).args(words).current_dir(dir.path()).arg(&image).arg(source)
    };
    let make = |words: &str, source: &Path| {
        let mkfs = mkfs().arg("--quiet").args(words.split(' ')).current_dir(dir.path());
        mkfs.arg(&image).arg(source)
    };
    for (command, code, why) in [
        (build("-f --block-list-file archive.tar", archive), 2, "would replace a file"),
        (build("-f --block-list-file link", archive), 2, "would replace a file"),
        (build("-f --block-list-file other", archive), 2, "would replace a file"),
        (build("-f --chunk-index=archive.tar", archive), 2, "would replace a file"),
        (build("-f --chunk-size=4k --blob=archive.tar", archive), 2, "would replace a file"),
        (
            build("-f --sidecar=sidecar --block-list-file=sidecar", archive),
            2,
            "would replace a file",
        ),
        (
            build("-f -zlz4 --hints=hints --block-list-file=hints", archive),
            2,
            "would replace a file",
        ),
        (make("--tar=i --vmdk-desc=archive.tar", archive), 1, "would replace a file"),
        (make("--tar=i,archive.tar", archive), 1, "would replace a file"),
        (make("--tar=f --ungzip=archive.tar", archive), 1, "would replace a file"),
        (build("--block-list-file image", archive), 2, "the image and the list of blocks cannot"),
        (make("--chunksize=4096 --blobdev=b --block-list-file=b", &tree), 1, "cannot be the same"),
        (make("--chunksize=4096 --blobdev=b --vmdk-desc=./b", &tree), 1, "cannot be the same"),
        (make("--tar=i,new --vmdk-desc=new", archive), 1, "cannot be the same file"),
    ] {
        let stderr = command.ends_with(code).stderr;
        assert!(stderr.contains(why), "{stderr}");
        assert!(!image.exists() && !dir.join("b").exists() && !dir.join("new").exists());
    }
    let forced = ferrofs().args(["build", "-qf"]).args([archive, archive]).ends_with(2).stderr;
    assert!(forced.contains("would replace a file that the build reads"), "{forced}");
    for (file, before) in files.iter().zip(&before) {
        assert!(fs::read(file).unwrap() == *before, "{}", file.display());
    }
}

#[test]
fn an_output_of_an_extraction_is_not_another_one() {
    let dir = Dir::new();
    let file = dir.write("file", b"former");
    fs::create_dir(dir.join("config")).unwrap();
    symlink("file", dir.join("link")).unwrap();
    let extract = |words: &str| {
        let words = words.split(' ').chain(["-q"]);
        ferrofs().arg("extract").arg(data("plain.erofs")).args(words).current_dir(dir.path())
    };
    for (words, what) in [
        ("--tar new --sidecar new", "new: the sidecar and the tar archive"),
        ("--tar file --sidecar file", "file: the sidecar and the tar archive"),
        ("--tar file --sidecar link", "file: the sidecar and the tar archive"),
        (
            "tree --android-config config --sidecar config/fs_config",
            "config/fs_config: the file fs_config and the sidecar",
        ),
        (
            "--android-config config --tar ./config/file_contexts",
            "./config/file_contexts: the file file_contexts and the tar archive",
        ),
    ] {
        let stderr = extract(words).ends_with(2).stderr;
        assert!(stderr.contains(&format!("{what} cannot be the same file")), "{stderr}");
    }
    let mut shell = Command::new("sh");
    shell.args(["-c", "exec \"$0\" extract \"$1\" --tar - --sidecar file > file"]);
    shell.arg(env!("CARGO_BIN_EXE_ferrofs")).arg(data("plain.erofs")).current_dir(dir.path());
    let stderr = TestCommand::new(shell).ends_with(2).stderr;
    assert!(stderr.contains("file: the sidecar would replace the file of the tar"), "{stderr}");
    // The shell has emptied it.
    assert_eq!(fs::read(&file).unwrap(), b"");
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 3);
    assert_eq!(fs::read_dir(dir.join("config")).unwrap().count(), 0);
}

#[test]
fn a_tar_archive_gets_its_name_when_it_is_complete_and_keeps_the_mode() {
    let dir = Dir::new();
    let tar = dir.write("old.tar", b"former");
    fs::set_permissions(&tar, fs::Permissions::from_mode(0o600)).unwrap();
    let option = format!("--tar={}", tar.display());
    ferrofs().args(["extract", "-q", &option]).arg(data("plain.erofs")).succeeds();
    let found = fs::metadata(&tar).unwrap();
    assert_eq!(found.mode(), 0o100_600);
    assert!(found.len() > 10_000);
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
}

//! SIGINT, SIGTERM and SIGHUP end each verb soon, with the exit status of the signal, and nothing
//! incomplete is left.
//!
//! A test stops the process with SIGSTOP as soon as its work is under way. The signal that ends it
//! is pending when the process continues, so it comes in the middle of the work however fast the
//! machine is.

use std::fs;
use std::io::{self, BufRead, BufReader, Read};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStderr, Command, ExitStatus};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use crate::spool::archive_of_names;
use crate::support::{Dir, TestCommand, ferrofs, has_strace, reset_signals};

/// How long a verb may take to end, on a busy machine; it takes less than a second on an idle one.
const END_LIMIT: Duration = Duration::from_secs(5);
/// How long a verb may take to begin.
const BEGIN_LIMIT: Duration = Duration::from_secs(60);
/// The large file is written in parts by all threads; then come small ones.
const LARGE_BYTES: usize = 128 << 20;
const SMALL_BYTES: usize = 300_000;
const SMALL_FILES: usize = 100;

const SIGNALS: [(Signal, i32); 3] = [(Signal::INT, 130), (Signal::TERM, 143), (Signal::HUP, 129)];

/// Bytes that compress well, so that the image is built and read quickly, and that are different in
/// each file.
fn content(name: &str, bytes: usize) -> Vec<u8> {
    let line = format!("the content of {name}, ").into_bytes();
    let mut content = line.repeat(bytes.div_ceil(line.len()));
    content.truncate(bytes);
    content
}

fn source(dir: &Dir) -> PathBuf {
    let tree = dir.join("source");
    fs::create_dir(&tree).unwrap();
    fs::write(tree.join("large"), content("large", LARGE_BYTES)).unwrap();
    for number in 0..SMALL_FILES {
        let name = format!("small-{number}");
        fs::write(tree.join(&name), content(&name, SMALL_BYTES)).unwrap();
    }
    tree
}

fn image(dir: &Dir) -> PathBuf {
    let image = dir.join("image");
    let tree = source(dir);
    ferrofs().args(["build", "-q", "-zlz4", "--no-verify"]).args([&image, &tree]).succeeds();
    fs::remove_dir_all(tree).unwrap();
    image
}

fn send(child: &Child, signal: Signal) {
    // It was not waited for, so the number is still its own.
    kill_process(Pid::from_child(child), signal).unwrap();
}

/// Waits until `is_working` and stops the process there.
fn stop_when(child: &Child, is_working: impl Fn() -> bool) {
    let deadline = Instant::now() + BEGIN_LIMIT;
    while !is_working() {
        assert!(Instant::now() < deadline, "it does not begin");
        std::thread::yield_now();
    }
    send(child, Signal::STOP);
}

/// Waits for the first line of standard error, which is one of its progress, and stops the process
/// there. The pipe has room for what comes next, and stays open as long as the result does.
fn stop_at_first_line(child: &mut Child) -> BufReader<ChildStderr> {
    let mut stderr = BufReader::new(child.stderr.take().unwrap());
    let mut line = String::new();
    stderr.read_line(&mut line).unwrap();
    assert!(line.starts_with('{'), "{line}");
    send(child, Signal::STOP);
    stderr
}

/// Continues a stopped process with a signal, and waits for its end.
#[track_caller]
fn end_with(child: &mut Child, signal: Signal) -> ExitStatus {
    send(child, signal);
    let started_at = Instant::now();
    send(child, Signal::CONT);
    loop {
        if let Some(status) = child.try_wait().unwrap() {
            return status;
        }
        assert!(started_at.elapsed() < END_LIMIT, "{signal:?} does not end it");
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn names(directory: &Path) -> Vec<String> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    entries.map(|entry| entry.file_name().into_string().unwrap()).collect()
}

fn each_signal(test: impl Fn(Signal, i32)) {
    reset_signals(&SIGNALS.map(|(signal, _)| signal));
    SIGNALS.into_iter().for_each(|(signal, code)| test(signal, code));
}

#[test]
fn an_interrupted_extraction_leaves_only_whole_files() {
    let dir = Dir::new();
    let image = image(&dir);
    for is_missing in [false, true] {
        each_signal(|signal, code| {
            let tree = dir.join(format!("tree-{code}"));
            let staged = dir.join(format!(".tree-{code}.part"));
            if !is_missing {
                fs::create_dir(&tree).unwrap();
            }
            let filled = if is_missing { &staged } else { &tree };
            let mut child = ferrofs().args(["extract", "-q"]).args([&image, &tree]).spawn();
            stop_when(&child, || !names(filled).is_empty());
            let status = end_with(&mut child, signal);
            assert_eq!(status.code(), Some(code), "{signal:?}: {status:?}");
            assert!(tree.is_dir() && !staged.exists(), "{signal:?}: it has no name");
            let left = names(&tree);
            assert!(left.len() <= SMALL_FILES, "{signal:?}: it came too late");
            for name in left {
                let bytes = if name == "large" { LARGE_BYTES } else { SMALL_BYTES };
                let found = fs::read(tree.join(&name)).unwrap();
                assert!(found == content(&name, bytes), "{signal:?}: {name} is not whole");
            }
            fs::remove_dir_all(tree).unwrap();
        });
    }
}

#[test]
fn an_interrupted_extraction_of_one_file_leaves_nothing() {
    let dir = Dir::new();
    let image = image(&dir);
    let before = names(dir.path()).len();
    each_signal(|signal, code| {
        let mut fsck = Command::new(env!("CARGO_BIN_EXE_ferrofs"));
        fsck.arg0("fsck.erofs").arg("--path=/large").arg(&image);
        fsck.arg(format!("--extract={}", dir.join("target").display()));
        let mut child = TestCommand::new(fsck).spawn();
        stop_when(&child, || names(dir.path()).len() > before);
        let status = end_with(&mut child, signal);
        assert_eq!(status.code(), Some(code), "{signal:?}: {status:?}");
        assert_eq!(names(dir.path()).len(), before, "{:?}", names(dir.path()));
    });
}

/// Whether a process has a new file in a directory open, without a name or with a temporary one.
fn has_new_file(child: &Child, directory: &Path) -> bool {
    let descriptors = fs::read_dir(format!("/proc/{}/fd", child.id())).into_iter().flatten();
    let opened = |entry: io::Result<fs::DirEntry>| fs::read_link(entry.ok()?.path()).ok();
    let is_new = |name: &str| name.ends_with(" (deleted)") || name.ends_with(".part");
    descriptors
        .filter_map(opened)
        .any(|path| path.starts_with(directory) && path.to_str().is_some_and(is_new))
}

#[test]
fn an_interrupted_tar_archive_is_removed_and_the_older_one_stays() {
    let dir = Dir::new();
    let image = image(&dir);
    let tar = dir.write("old.tar", b"old");
    let before = names(dir.path()).len();
    each_signal(|signal, code| {
        let mut child = ferrofs().args(["extract", "-q", "--tar"]).args([&tar, &image]).spawn();
        stop_when(&child, || has_new_file(&child, dir.path()));
        let status = end_with(&mut child, signal);
        assert_eq!(status.code(), Some(code), "{signal:?}: {status:?}");
        assert_eq!(names(dir.path()).len(), before, "{:?}", names(dir.path()));
        assert_eq!(fs::read(&tar).unwrap(), b"old");
    });
}

/// The command under strace, which makes the file system of `directory` seem to have no files without a name: there the
/// third call opens one, after those that open the directory and look for a former file. The process is the command.
fn with_named_files(directory: &Path) -> TestCommand {
    let mut strace = Command::new("strace");
    strace.args(["-D", "-f", "-qq", "-o", "/dev/null", "--trace=openat"]);
    strace.args(["--inject=openat:error=EOPNOTSUPP:when=3", "-P"]).arg(directory);
    strace.arg(env!("CARGO_BIN_EXE_ferrofs"));
    TestCommand::new(strace)
}

#[test]
fn an_interrupted_extraction_leaves_no_part_of_a_sidecar() {
    if !has_strace() {
        return;
    }
    let dir = Dir::new();
    let (archive, image, place) = (dir.join("archive"), dir.join("image"), dir.join("place"));
    archive_of_names(&archive, 80_000);
    ferrofs().args(["build", "-q", "--no-verify"]).args([&image, &archive]).succeeds();
    fs::create_dir(&place).unwrap();
    let sidecar = format!("--sidecar={}", place.join("sidecar").display());
    each_signal(|signal, code| {
        for target in ["--tar=/dev/null".to_owned(), format!("--tar={}", dir.join("tar").display())]
        {
            let extract = with_named_files(&place).args(["extract", "-q", &sidecar, &target]);
            let mut child = extract.arg(&image).spawn();
            stop_when(&child, || names(&place).iter().any(|name| name.ends_with(".part")));
            let status = end_with(&mut child, signal);
            assert_eq!(status.code(), Some(code), "{signal:?}: {status:?}");
            assert_eq!(names(&place), [""; 0], "{signal:?}");
            assert!(!dir.join("tar").exists());
        }
    });
}

#[test]
fn an_interrupted_build_leaves_no_image() {
    let dir = Dir::new();
    let (tree, image) = (source(&dir), dir.join("image"));
    let before = names(dir.path()).len();
    each_signal(|signal, code| {
        let build = ferrofs().args(["build", "-q", "-zlz4hc", "--progress=json"]);
        let mut child = build.args([&image, &tree]).spawn();
        let _stderr = stop_at_first_line(&mut child);
        let status = end_with(&mut child, signal);
        assert_eq!(status.code(), Some(code), "{signal:?}: {status:?}");
        assert_eq!(names(dir.path()).len(), before, "{:?}", names(dir.path()));
    });
}

#[test]
fn an_interrupted_check_has_the_exit_status_of_the_signal() {
    let dir = Dir::new();
    let image = image(&dir);
    each_signal(|signal, code| {
        let check = ferrofs().args(["check", "--jobs=1", "--progress=json"]);
        let mut child = check.arg(&image).spawn();
        let _stderr = stop_at_first_line(&mut child);
        let status = end_with(&mut child, signal);
        assert_eq!(status.code(), Some(code), "{signal:?}: {status:?}");
    });
}

/// A full pipe blocks the verb that writes to it.
#[test]
fn a_signal_ends_a_verb_that_waits_for_its_reader() {
    let dir = Dir::new();
    let image = image(&dir);
    each_signal(|signal, code| {
        let cat = |image: &Path| ferrofs().arg("cat").arg(image).arg("/large");
        let tar = |image: &Path| ferrofs().args(["extract", "--tar=-"]).arg(image);
        let verbs: [&dyn Fn(&Path) -> TestCommand; 2] = [&cat, &tar];
        for verb in verbs {
            let mut child = verb(&image).spawn();
            let mut stdout = child.stdout.take().unwrap();
            stdout.read_exact(&mut [0]).unwrap();
            let status = end_with(&mut child, signal);
            assert_eq!(status.code(), Some(code), "{signal:?}: {status:?}");
            drop(stdout);
        }
    });
}

/// SIGXFSZ would end the process where it stands.
#[test]
fn a_limit_of_file_sizes_is_an_error_and_leaves_nothing_incomplete() {
    let dir = Dir::new();
    let (tree, image) = (source(&dir), dir.join("image"));
    ferrofs().args(["build", "-q", "-zlz4", "--no-verify"]).args([&image, &tree]).succeeds();
    let limited = |words: &[&str], paths: [&Path; 2]| {
        let mut shell = Command::new("sh");
        // In 512 or 1024 bytes: more than a small file, and less than the large one.
        shell.args(["-c", "ulimit -f 1000 && exec \"$0\" \"$@\""]);
        shell.arg(env!("CARGO_BIN_EXE_ferrofs")).args(words).args(paths);
        let ended = TestCommand::new(shell).ends_with(1);
        assert!(ended.stderr.contains("File too large"), "{}", ended.stderr);
    };
    let (out, tar, blob) = (dir.join("out"), dir.join("tar"), dir.join("blob"));
    let before = names(dir.path()).len();
    limited(&["extract", "-q", "--tar"], [&tar, &image]);
    limited(&["build", "-q", "--no-verify"], [&blob, &tree]);
    assert_eq!(names(dir.path()).len(), before, "{:?}", names(dir.path()));
    limited(&["extract", "-q"], [&image, &out]);
    assert_eq!(names(dir.path()).len(), before + 1, "{:?}", names(dir.path()));
    assert_eq!(names(&out).len(), SMALL_FILES);
}

#[test]
fn a_text_that_is_too_long_for_the_limit_of_file_sizes_is_named() {
    let dir = Dir::new();
    let (tree, image) = (dir.join("tree"), dir.join("image"));
    let (out, sidecar) = (dir.join("out"), dir.join("sidecar"));
    fs::create_dir(&tree).unwrap();
    for number in 0..200 {
        fs::write(tree.join(format!("{number:0100}")), "").unwrap();
    }
    ferrofs().args(["build", "-q", "--no-verify"]).args([&image, &tree]).succeeds();
    let mut shell = Command::new("sh");
    // In 512 or 1024 bytes.
    shell.args([
        "-c",
        "ulimit -f 8 && exec \"$0\" \"$@\"",
        env!("CARGO_BIN_EXE_ferrofs"),
        "extract",
        "-q",
    ]);
    shell.arg(format!("--sidecar={}", sidecar.display())).args([&image, &out]);
    let ended = TestCommand::new(shell).ends_with(1);
    let wanted = format!("cannot write {}: File too large", sidecar.display());
    assert!(ended.stderr.contains(&wanted), "{}", ended.stderr);
    assert!(!sidecar.exists());
}

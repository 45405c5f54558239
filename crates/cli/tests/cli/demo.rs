//! `ferrofs demo`: its output with FUSE and without, and that it never leaves anything behind.

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::Command;

use rustix::process::{Pid, Signal, kill_process};

use crate::mounted::{has_fuse, has_mount_right};
use crate::support::{Dir, TestCommand, data, ferrofs, is_root, reset_signals, skip};

/// The number of attempts: a demonstration may end before a signal reaches it.
const ATTEMPTS: usize = 20;

/// The directory is empty, nothing is mounted in it, and no process names it in its arguments.
#[track_caller]
fn assert_clean(dir: &Dir) {
    let left: Vec<_> = fs::read_dir(dir.path()).unwrap().flatten().map(|one| one.path()).collect();
    let left: Vec<_> = left.iter().filter(|path| is_of_demonstration(path)).collect();
    assert!(left.is_empty(), "{left:?}");
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap();
    assert!(!mounts.contains(dir.path().to_str().unwrap()), "{mounts}");
    let name = dir.join("ferrofs-demo");
    let name = name.as_os_str().as_encoded_bytes();
    for process in fs::read_dir("/proc").unwrap().flatten() {
        let words = fs::read(process.path().join("cmdline")).unwrap_or_default();
        let words = String::from_utf8_lossy(&words).into_owned();
        assert!(!words.as_bytes().windows(name.len()).any(|part| part == name), "{words}");
    }
}

fn is_of_demonstration(path: &Path) -> bool {
    path.file_name().unwrap().to_str().unwrap().starts_with("ferrofs-demo")
}

fn demo(dir: &Dir) -> TestCommand {
    ferrofs().arg("demo").env("TMPDIR", dir.path())
}

// A-DEMO-MOUNTS
#[test]
fn the_demonstration_works_and_cleans_up() {
    let dir = Dir::new();
    let text = demo(&dir).succeeds().text();
    assert!(text.contains("  0 differences in 236 entries"), "{text}");
    assert!(text.contains("peak memory"), "{text}");
    if has_fuse() {
        let row = |readers: usize| {
            let start = format!("  ferrofs {readers:>10} ");
            text.lines().any(|line| line.starts_with(&start) && line.matches('s').count() >= 3)
        };
        let cpus = std::thread::available_parallelism().unwrap().get();
        assert!(row(1) && row(cpus.max(4)), "{text}");
        assert!(text.contains("unmounted without errors\n"), "{text}");
    } else {
        assert!(text.contains("FUSE is not available: cannot mount"), "{text}");
    }
    assert_clean(&dir);
}

#[test]
fn the_demonstration_compares_with_a_second_reading_or_a_directory() {
    let dir = Dir::new();
    let demo = || demo(&dir).arg(data("inline.erofs"));
    let text = demo().succeeds().text();
    assert!(text.contains("  0 differences in 193 entries"), "{text}");
    let tree = dir.join("tree");
    ferrofs().args(["extract", "-q"]).arg(data("inline.erofs")).arg(&tree).succeeds();
    fs::write(tree.join("names/a"), "?").unwrap();
    let ended = demo().arg(&tree).ends_with(1);
    assert!(ended.stderr.contains("/names/a: has different contents"), "{}", ended.stderr);
    assert!(!ended.text().contains(" 0 differences"), "{}", ended.text());
    fs::remove_dir_all(tree).ok();
    assert_clean(&dir);
}

#[test]
fn the_mount_equals_a_directory_that_root_extracted() {
    if !has_fuse() || !has_mount_right() {
        return;
    }
    let dir = Dir::new();
    let tree = dir.join("tree");
    ferrofs().args(["extract", "-q"]).arg(data("lz4.erofs")).arg(&tree).succeeds();
    let text = demo(&dir).arg(data("lz4.erofs")).arg(&tree).succeeds().text();
    assert!(text.contains("  0 differences in "), "{text}");
    assert_clean(&dir);
}

// A-DEMO-ANY-USER
#[test]
fn an_ordinary_user_gets_a_mount_or_the_reason_why_not() {
    let dir = Dir::new();
    let program = dir.ordinary_ferrofs();
    let text = program.arg("demo").env("TMPDIR", dir.path()).succeeds().text();
    let has_mount = text.contains("unmounted without errors\n");
    assert!(has_mount || text.contains("FUSE is not available: cannot mount"), "{text}");
    assert!(text.contains("  0 differences in 236 entries"), "{text}");
    assert_clean(&dir);
}

// A-DEMO-NO-FUSE
#[test]
fn without_fuse_the_reason_is_printed_and_the_image_is_compared() {
    let Some(setpriv) =
        ["/usr/bin/setpriv", "/bin/setpriv"].into_iter().find(|path| Path::new(path).exists())
    else {
        skip("needs setpriv");
        return;
    };
    let dir = Dir::new();
    // This copies the program to a directory in which every user may run it.
    drop(dir.ordinary_ferrofs());
    let mut program = Command::new(setpriv);
    program.arg("--no-new-privs").env("TMPDIR", dir.path());
    if is_root() {
        program.args(["--reuid=65534", "--regid=65534", "--clear-groups"]).arg(dir.join("ferrofs"));
    } else {
        program.arg(env!("CARGO_BIN_EXE_ferrofs"));
    }
    let text = TestCommand::new(program).arg("demo").succeeds().text();
    assert!(text.contains("FUSE is not available: cannot mount: "), "{text}");
    assert_eq!(text.matches("0 differences in 236 entries").count(), 1, "{text}");
    assert_clean(&dir);
}

// A-DEMO-SIGNALS
#[test]
fn signals_end_it_in_each_phase_and_nothing_is_left() {
    let phases = ["comparing every byte", "mounted on", "reading"];
    let phases = if has_fuse() { &phases[..] } else { &phases[..1] };
    let signals = [Signal::INT, Signal::TERM, Signal::HUP];
    reset_signals(&signals);
    for (phase, signal) in phases.iter().zip(signals.into_iter().cycle()) {
        let dir = Dir::new();
        let ended = (0..ATTEMPTS).find_map(|_| signalled(&dir, phase, signal));
        let message = ended.unwrap_or_else(|| panic!("{phase}: {signal:?} never came in time"));
        let last = message.lines().next_back().unwrap_or_default();
        assert!(last.starts_with("ferrofs: ended by SIG"), "{phase}: {message}");
        assert!(!message.contains("cannot") && !message.contains("still"), "{phase}: {message}");
    }
}

/// Its standard error if it gets a signal when it prints the start of a phase; `None` if it ended
/// before.
fn signalled(dir: &Dir, phase: &str, signal: Signal) -> Option<String> {
    let mut child = demo(dir).spawn();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap);
    assert!(lines.any(|line| line.starts_with(phase)), "{phase}");
    // Not waited for yet, so the number is its own even if it has ended.
    kill_process(Pid::from_child(&child), signal).unwrap();
    lines.for_each(drop);
    let mut message = String::new();
    child.stderr.take().unwrap().read_to_string(&mut message).unwrap();
    let code = child.wait().unwrap().code();
    assert_clean(dir);
    match code {
        Some(0) => None,
        Some(129 | 130 | 143) => Some(message),
        other => panic!("{phase}: {other:?}: {message}"),
    }
}

#[test]
fn a_closed_output_is_no_error_and_nothing_is_left() {
    let dir = Dir::new();
    let mut child = demo(&dir).spawn();
    drop(child.stdout.take());
    let mut message = String::new();
    child.stderr.take().unwrap().read_to_string(&mut message).unwrap();
    assert_eq!(
        (child.wait().unwrap().code(), message.contains("panicked")),
        (Some(0), false),
        "{message}"
    );
    assert_clean(&dir);
}

#[test]
fn a_damaged_image_is_reported_and_nothing_is_left() {
    let dir = Dir::new();
    let middle = fs::metadata(data("zstd-16k-ztail.erofs")).unwrap().len() / 2;
    let image = dir.patched("zstd-16k-ztail.erofs", usize::try_from(middle).unwrap(), &[0x5a; 64]);
    let ended = demo(&dir).arg(image).ends_with(1);
    assert!(ended.stderr.contains("ferrofs: /"), "{}", ended.stderr);
    assert_clean(&dir);
}

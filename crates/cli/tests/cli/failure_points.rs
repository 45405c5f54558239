//! Every system call of a build, an extraction and the start of a mount, each made to fail, or the last one before the
//! process is killed, one after the other: as SQLite tests itself. Afterwards nothing incomplete has a final name, what
//! is there has the right bytes, and nothing hangs. `mmap` and `brk` that fail are memory that ends at any point.
//!
//! A run tries some points of each kind, evenly spread; with `FERROFS_ALL_FAILURES=1` it tries all of them. Needs strace,
//! which injects the failures.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process_group};

use crate::mounted::{MountPoint, has_fuse};
use crate::support::{Dir, ferrofs, has_strace, is_root, skip};

/// A run that takes longer hangs; it takes milliseconds.
const LIMIT: Duration = Duration::from_secs(60);
/// The same for one read of a mount.
const READ_LIMIT: Duration = Duration::from_secs(30);
/// Points of each kind that are tried if not all are.
const SAMPLE: usize = 14;
/// Calls that cannot fail, that only wait, that start and end processes, or whose failure Rust's own library takes for
/// a bug of the kernel.
const LEFT_OUT: [&str; 24] = [
    "execve",
    "exit",
    "exit_group",
    "brk",
    "rt_sigreturn",
    "restart_syscall",
    "futex",
    "poll",
    "ppoll",
    "wait4",
    "set_tid_address",
    "set_robust_list",
    "rseq",
    "arch_prctl",
    "munmap",
    "close",
    "gettid",
    "getpid",
    "getuid",
    "geteuid",
    "fcntl",
    "getrandom",
    "rt_sigaction",
    "sigaltstack",
];
/// Calls whose failure means that bytes or names may not be durable: success after one would be a lie.
const DURABLE: [&str; 4] = ["pwrite64", "fsync", "fdatasync", "renameat"];
const SIGKILL: i32 = 9;
/// Without one, every image has another.
const UUID: &str = "6ba7b810-9dad-11d1-80b4-00c04fd430c8";

/// What happens at a point.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Failure {
    /// The call fails with this error.
    Errno(&'static str),
    /// The process is killed before the call.
    Kill,
}

/// One failure at the n-th call of a kind that a thread makes.
#[derive(Clone, Debug)]
struct FailurePoint {
    call: String,
    nth: usize,
    failure: Failure,
}

impl FailurePoint {
    /// The options of strace that make it happen.
    fn options(&self) -> [String; 2] {
        let Self { call, nth, failure } = self;
        let what = match failure {
            Failure::Errno(errno) => format!("error={errno}"),
            Failure::Kill => "signal=SIGKILL".to_owned(),
        };
        [format!("--trace={call}"), format!("--inject={call}:{what}:when={nth}")]
    }
}

/// How a run with a failure ended.
#[derive(Debug)]
struct FailedRun {
    point: FailurePoint,
    status: ExitStatus,
    stderr: String,
    /// The failure has happened: the run made so many calls.
    has_happened: bool,
}

impl FailedRun {
    /// Whether the process could not clean up: it was killed, or had no memory left.
    fn is_cut_short(&self) -> bool {
        self.status.code().is_none_or(|code| code >= 128)
    }
}

fn strace(log: &Path) -> Command {
    let mut command = Command::new("strace");
    // What it traces is in its group, so that both can be killed.
    command.args(["-f", "-qq", "-o"]).arg(log).process_group(0);
    command
}

/// Waits, with a limit; standard error has been read by then.
fn finish(mut command: Command, dir: &Dir, about: &dyn std::fmt::Debug) -> (ExitStatus, String) {
    let stderr = dir.join("stderr");
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(File::create(&stderr).unwrap());
    let mut child = command.spawn().unwrap();
    let deadline = Instant::now() + LIMIT;
    let status = loop {
        if let Some(status) = child.try_wait().unwrap() {
            break status;
        }
        if Instant::now() > deadline {
            kill_process_group(Pid::from_child(&child), Signal::KILL).ok();
            child.wait().unwrap();
            panic!("hangs: {about:?}");
        }
        std::thread::sleep(Duration::from_millis(1));
    };
    (status, String::from_utf8_lossy(&fs::read(stderr).unwrap()).into_owned())
}

/// The calls that a run makes once the program has begun: for each kind the first that counts, and the last.
fn count_calls(dir: &Dir, arguments: &[PathBuf]) -> BTreeMap<String, (usize, usize)> {
    let log = dir.join("calls");
    let mut command = strace(&log);
    command.arg(env!("CARGO_BIN_EXE_ferrofs")).args(arguments);
    let (status, stderr) = finish(command, dir, &"a run without failures");
    assert!(status.success(), "{stderr}");
    calls_of(&fs::read_to_string(log).unwrap())
}

/// The same from the lines of a trace.
fn calls_of(trace: &str) -> BTreeMap<String, (usize, usize)> {
    let mut seen: BTreeMap<(String, String), usize> = BTreeMap::new();
    let mut points: BTreeMap<String, (usize, usize)> = BTreeMap::new();
    let mut has_begun = false;
    for line in trace.lines() {
        let Some((thread, rest)) = line.split_once(' ') else { continue };
        let Some((call, _)) = rest.trim_start().split_once('(') else { continue };
        let is_call = call.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_');
        if !is_call {
            continue;
        }
        // The first thing that the runtime of Rust does; before it, the loader runs.
        has_begun |= call == "poll";
        let count = seen.entry((thread.to_owned(), call.to_owned())).or_default();
        *count += 1;
        if has_begun && !LEFT_OUT.contains(&call) {
            let range = points.entry(call.to_owned()).or_insert((*count, *count));
            *range = (range.0.min(*count), range.1.max(*count));
        }
    }
    points
}

/// Some of the items, evenly spread, or all.
fn sample<T>(items: Vec<T>) -> Vec<T> {
    if std::env::var_os("FERROFS_ALL_FAILURES").is_some() || items.len() <= SAMPLE {
        return items;
    }
    let count = items.len();
    let is_chosen = |number: usize| number * SAMPLE / count != (number + 1) * SAMPLE / count;
    items
        .into_iter()
        .enumerate()
        .filter(|(number, _)| is_chosen(*number))
        .map(|(_, item)| item)
        .collect()
}

/// The points of a run: calls that fail, memory that ends, disks that are full, and kills.
fn failure_points(dir: &Dir, arguments: &[PathBuf]) -> Vec<FailurePoint> {
    let calls = count_calls(dir, arguments);
    let all = |failure: Failure, is_wanted: &dyn Fn(&str) -> bool| {
        let wanted = calls.iter().filter(|(call, _)| is_wanted(call));
        let points = wanted.flat_map(|(call, (first, last))| {
            (*first..=*last).map(move |nth| FailurePoint { call: call.clone(), nth, failure })
        });
        sample(points.collect())
    };
    let is_memory =
        |call: &str| matches!(call, "mmap" | "mprotect" | "mremap" | "clone3" | "clone");
    let writes = |call: &str| {
        let is_write = call.contains("write") || call.contains("link") || call.contains("rename");
        is_write || call.contains("mkdir") || call.contains("sync") || call.contains("truncate")
    };
    [
        all(Failure::Errno("EIO"), &|call| !is_memory(call)),
        all(Failure::Errno("ENOMEM"), &is_memory),
        all(Failure::Errno("ENOSPC"), &writes),
        all(Failure::Kill, &|_| true),
    ]
    .concat()
}

/// Runs the command with one failure.
fn run_with(dir: &Dir, arguments: &[PathBuf], point: &FailurePoint) -> FailedRun {
    let log = dir.join("log");
    let mut command = strace(&log);
    command.args(point.options()).arg(env!("CARGO_BIN_EXE_ferrofs")).args(arguments);
    let (status, stderr) = finish(command, dir, point);
    // A tracer ends as the program did.
    let was_killed = status.signal() == Some(SIGKILL) || status.code() == Some(128 + SIGKILL);
    let has_happened = match point.failure {
        Failure::Errno(_) => fs::read_to_string(log).unwrap().contains("(INJECTED)"),
        Failure::Kill => was_killed,
    };
    FailedRun { point: point.clone(), status, stderr, has_happened }
}

/// Whether code of ours has panicked; that of Rust does without memory for a thread.
fn has_panicked(stderr: &str) -> bool {
    stderr.contains("panicked at crates/")
}

/// Tries every point; `prepare` makes the place, `check` looks at it. Returns how many failures happened.
fn try_points(
    dir: &Dir,
    arguments: &[PathBuf],
    prepare: &dyn Fn(),
    check: &dyn Fn(&FailedRun),
) -> usize {
    prepare();
    let points = failure_points(dir, arguments);
    let tried = points.len();
    let mut happened = 0;
    for point in points {
        prepare();
        let run = run_with(dir, arguments, &point);
        assert!(!has_panicked(&run.stderr), "{run:?}");
        let is_memory = run.point.failure == Failure::Errno("ENOMEM");
        // Memory that ends in the allocator of Rust aborts the process.
        let may_abort = run.point.failure == Failure::Kill || is_memory;
        assert!(may_abort || !run.is_cut_short(), "{run:?}");
        let is_named = run.status.success() || run.is_cut_short() || !run.stderr.is_empty();
        assert!(is_named, "a failure without a message: {run:?}");
        let lies = run.has_happened && run.status.success() && DURABLE.contains(&&*run.point.call);
        assert!(!lies, "success in spite of a failure: {run:?}");
        happened += usize::from(run.has_happened);
        check(&run);
    }
    println!("{happened} failures at {tried} points");
    assert!(happened > tried / 2, "only {happened} of {tried} failures happened");
    happened
}

fn source(dir: &Dir) -> PathBuf {
    let tree = dir.join("source");
    fs::create_dir_all(tree.join("directory")).unwrap();
    let text: Vec<u8> =
        (0..30_000_u32).flat_map(|number| number.to_string().into_bytes()).collect();
    fs::write(tree.join("text"), &text).unwrap();
    fs::write(tree.join("alone"), b"one name").unwrap();
    fs::write(tree.join("directory/small"), b"a few bytes").unwrap();
    fs::write(tree.join("directory/empty"), b"").unwrap();
    fs::hard_link(tree.join("text"), tree.join("directory/link")).unwrap();
    std::os::unix::fs::symlink("../text", tree.join("directory/symlink")).unwrap();
    tree
}

fn image(dir: &Dir) -> PathBuf {
    let image = dir.join("image");
    ferrofs().args(["build", "-q", "-zlz4"]).args([&image, &source(dir)]).succeeds();
    image
}

fn words(words: &[&str], paths: &[&Path]) -> Vec<PathBuf> {
    let words = words.iter().map(PathBuf::from);
    words.chain(paths.iter().map(|path| path.to_path_buf())).collect()
}

/// A folder that holds nothing but `old` under the name `name`, if that is something.
fn reset(folder: &Path, name: &str, old: Option<&[u8]>) {
    drop(fs::remove_dir_all(folder));
    fs::create_dir(folder).unwrap();
    if let Some(old) = old {
        fs::write(folder.join(name), old).unwrap();
    }
}

/// The file is what it was, or all of what it is to be, and nothing lies beside it.
fn check_file(run: &FailedRun, file: &Path, old: Option<&[u8]>, new: &[u8]) {
    let found = fs::read(file).ok();
    let is_new = found.as_deref() == Some(new);
    assert!(is_new || found.as_deref() == old, "neither old nor new: {run:?}");
    assert!(is_new || !run.status.success(), "success without a file: {run:?}");
    for entry in fs::read_dir(file.parent().unwrap()).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        let is_rest = name.starts_with('.') && run.is_cut_short();
        assert!(
            is_rest || Some(&*name) == file.file_name().and_then(|name| name.to_str()),
            "{name} is left: {run:?}"
        );
    }
}

#[test]
fn a_build_that_fails_at_any_call_leaves_the_old_image_or_the_new_one() {
    if !has_strace() {
        return;
    }
    let dir = Dir::new();
    let tree = source(&dir);
    let folder = dir.join("out");
    let target = folder.join("image");
    for old in [None, Some(&b"the old image"[..])] {
        reset(&folder, "image", old);
        let build = words(
            &["build", "-q", "-zlz4", "--jobs", "1", "--force", "-T1700000000", "--uuid", UUID],
            &[&target, &tree],
        );
        ferrofs().args(&build).succeeds();
        let new = fs::read(&target).unwrap();
        let prepare = || reset(&folder, "image", old);
        try_points(&dir, &build, &prepare, &|run| check_file(run, &target, old, &new));
    }
}

#[test]
fn an_archive_that_fails_at_any_call_is_the_old_one_or_the_new_one() {
    if !has_strace() {
        return;
    }
    let dir = Dir::new();
    let image = image(&dir);
    let folder = dir.join("out");
    let target = folder.join("archive.tar");
    reset(&folder, "archive.tar", None);
    let extract = words(&["extract", "-q", "--jobs", "1", "--tar"], &[&target, &image]);
    ferrofs().args(&extract).succeeds();
    let new = fs::read(&target).unwrap();
    let prepare = || reset(&folder, "archive.tar", None);
    let check = |run: &FailedRun| {
        let found = fs::read(&target).unwrap_or_default();
        // A file of the image that cannot be read is left out and reported; the archive is whole in itself.
        let has_end = found.len().is_multiple_of(512) && found.ends_with(&[0; 1024]);
        let is_without_files = has_end && run.status.code() == Some(1) && !run.stderr.is_empty();
        check_file(run, &target, None, if is_without_files { &found } else { &new });
    };
    try_points(&dir, &extract, &prepare, &check);
}

/// The regular files of a tree.
fn files(root: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut files = BTreeMap::new();
    let mut left = vec![root.to_path_buf()];
    while let Some(directory) = left.pop() {
        for entry in fs::read_dir(&directory).into_iter().flatten() {
            let path = entry.unwrap().path();
            let kind = path.symlink_metadata().unwrap().file_type();
            if kind.is_dir() {
                left.push(path);
            } else if kind.is_file() {
                let bytes = fs::read(&path).unwrap();
                files.insert(path.strip_prefix(root).unwrap().to_path_buf(), bytes);
            }
        }
    }
    files
}

/// Whether an extraction gives the name to what is not whole yet.
fn is_temporary(path: &Path) -> bool {
    let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    name.starts_with('.') && name.ends_with(".part")
}

/// The destination of an extraction before it begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Destination {
    Missing,
    Empty,
    /// It has old files, which are replaced, and some directories.
    Older,
}

impl Destination {
    fn prepare(self, folder: &Path) {
        reset(folder, "tree", None);
        let tree = folder.join("tree");
        if self != Self::Missing {
            fs::create_dir(&tree).unwrap();
        }
        if self == Self::Older {
            fs::create_dir(tree.join("directory")).unwrap();
            for name in ["text", "alone", "directory/small", "directory/inner"] {
                fs::write(tree.join(name), "an old file").unwrap();
            }
        }
    }
}

/// What has a final name is what was there before, or all of what it is to be. Everything else is reported, or its process
/// was cut short.
fn check_extraction(run: &FailedRun, folder: &Path, wanted: &BTreeMap<PathBuf, Vec<u8>>) {
    let mut whole = 0;
    for (path, bytes) in files(folder) {
        let first = path.ancestors().find(|above| is_temporary(above));
        if let Some(temporary) = first {
            let name = temporary.file_name().unwrap().to_str().unwrap();
            let is_named = run.stderr.contains(name) && !run.status.success();
            assert!(is_named || run.is_cut_short(), "{path:?} is left: {run:?}");
            continue;
        }
        let name = path.strip_prefix("tree").unwrap_or_else(|_| panic!("{path:?}: {run:?}"));
        if bytes != b"an old file" {
            let new = wanted.get(name).unwrap_or_else(|| panic!("{path:?} from nowhere: {run:?}"));
            assert!(bytes == *new, "{path:?} is not whole: {run:?}");
            whole += 1;
        }
    }
    assert!(whole == wanted.len() || !run.status.success(), "files are missing: {run:?}");
}

fn try_extraction(destination: Destination, jobs: &str) {
    if !has_strace() {
        return;
    }
    let dir = Dir::new();
    let tree = source(&dir);
    fs::create_dir_all(tree.join("directory/inner/most")).unwrap();
    for number in 0..4 {
        fs::write(tree.join(format!("directory/inner/most/{number}")), b"a few more").unwrap();
    }
    let image = dir.join("image");
    ferrofs().args(["build", "-q", "-zlz4"]).args([&image, &tree]).succeeds();
    let wanted = files(&tree);
    let folder = dir.join("out");
    let mut extract = words(&["extract", "-q", "--jobs", jobs], &[&image, &folder.join("tree")]);
    if destination == Destination::Older {
        extract.push("--overwrite".into());
    }
    let prepare = || destination.prepare(&folder);
    try_points(&dir, &extract, &prepare, &|run| check_extraction(run, &folder, &wanted));
}

#[test]
fn an_extraction_that_fails_at_any_call_leaves_whole_files_and_no_wrong_byte() {
    try_extraction(Destination::Missing, "1");
}

#[test]
fn an_extraction_into_an_empty_directory_that_fails_at_any_call_leaves_whole_files() {
    try_extraction(Destination::Empty, "1");
}

#[test]
fn an_extraction_over_older_files_that_fails_at_any_call_leaves_them_or_whole_ones() {
    try_extraction(Destination::Older, "1");
}

#[test]
fn an_extraction_by_two_threads_that_fails_at_any_call_leaves_whole_files() {
    try_extraction(Destination::Empty, "2");
}

/// File systems that cannot rename without replacing, and kernels that cannot name an open file.
#[test]
fn an_extraction_works_where_names_have_to_be_given_in_other_ways() {
    if !has_strace() {
        return;
    }
    let dir = Dir::new();
    let (image, folder) = (image(&dir), dir.join("out"));
    let wanted = files(&dir.join("source"));
    for (destination, call) in [
        (Destination::Missing, "renameat2:error=EINVAL"),
        (Destination::Empty, "renameat2:error=EINVAL"),
        // The first one is that of a file without a name.
        (Destination::Empty, "linkat:error=ENOENT:when=1"),
    ] {
        destination.prepare(&folder);
        let log = dir.join("log");
        let mut command = strace(&log);
        let name = call.split(':').next().unwrap();
        command.arg(format!("--trace={name}")).arg(format!("--inject={call}"));
        command.arg(env!("CARGO_BIN_EXE_ferrofs")).args(["extract", "-q", "--jobs", "1"]);
        command.args([&image, &folder.join("tree")]);
        let (status, stderr) = finish(command, &dir, &call);
        assert!(status.success(), "{call}: {stderr}");
        assert!(files(&folder.join("tree")) == wanted, "{destination:?}: {call}");
        assert_eq!(fs::read_dir(&folder).unwrap().count(), 1);
        assert_eq!(fs::read_dir(folder.join("tree")).unwrap().count(), 3);
    }
}

#[test]
fn a_mount_whose_start_fails_at_any_call_works_or_is_not_there() {
    if !has_strace() || !has_fuse() {
        return;
    }
    if !is_root() {
        return skip("needs root: under strace, fusermount3 has no right to mount");
    }
    let dir = Dir::new();
    let image = image(&dir);
    let text = fs::read(dir.join("source/text")).unwrap();
    let place = MountPoint::new();
    // It stays in the foreground, and ends by itself once the file system is unmounted.
    let mount = words(&["mount", "-f", "-q"], &[&image, place.path()]);
    let points = mount_points(&dir, &mount, &place);
    let mut happened = 0;
    for point in &points {
        let log = dir.join("log");
        let mut command = mount_command(&log, Some(point), &mount);
        let mut child = command.stderr(File::create(dir.join("stderr")).unwrap()).spawn().unwrap();
        let deadline = Instant::now() + LIMIT;
        let mut has_ended = false;
        while !has_ended && place.mount().is_none() && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(1));
            has_ended = child.try_wait().unwrap().is_some();
        }
        let (mut reader, found) = if place.mount().is_some() {
            let (reader, found) = read_in_time(&place.join("text"));
            (Some(reader), found)
        } else {
            (None, Some(Vec::new()))
        };
        // Everything ends here, whatever it does: the daemon is in the group of its tracer.
        let is_hung = found.is_none() || Instant::now() >= deadline;
        if is_hung {
            kill_process_group(Pid::from_child(&child), Signal::KILL).ok();
        }
        while place.mount().is_some() {
            // A killed daemon may leave a mount that answers nothing, and no more than that. Its helper
            // unmounts it, perhaps between the two calls here.
            let is_gone = place.unmount() || place.mount().is_none();
            assert!(is_gone, "cannot be unmounted: {point:?}");
        }
        let deadline = Instant::now() + LIMIT;
        for process in [Some(&mut child), reader.as_mut()].into_iter().flatten() {
            while process.try_wait().unwrap().is_none() {
                assert!(Instant::now() < deadline, "does not end: {point:?}");
                std::thread::sleep(Duration::from_millis(1));
            }
        }
        assert!(!is_hung, "hangs: {point:?}");
        let is_right = found.is_some_and(|found| found.is_empty() || found == text);
        assert!(is_right, "wrong bytes: {point:?}");
        let stderr = fs::read_to_string(dir.join("stderr")).unwrap();
        assert!(!has_panicked(&stderr), "{point:?}: {stderr}");
        let is_injected = fs::read_to_string(&log).unwrap().contains("INJECTED");
        happened += usize::from(is_injected || has_ended);
    }
    println!("{happened} failures at {} points", points.len());
    assert!(happened > points.len() / 4, "only {happened} of {} failures happened", points.len());
}

/// What another process reads, and nothing if it gets an error; `None` if it hangs. Then it may end only when its request has
/// a reply, or the connection has ended.
fn read_in_time(file: &Path) -> (Child, Option<Vec<u8>>) {
    let dir = Dir::new();
    let copy = dir.join("copy");
    let mut command = Command::new("cat");
    command.arg(file).stdout(File::create(&copy).unwrap()).stderr(Stdio::null());
    let mut child = command.spawn().unwrap();
    let deadline = Instant::now() + READ_LIMIT;
    while Instant::now() < deadline {
        if let Some(status) = child.try_wait().unwrap() {
            let bytes = if status.success() { fs::read(copy).unwrap() } else { Vec::new() };
            return (child, Some(bytes));
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    child.kill().unwrap();
    (child, None)
}

fn mount_command(log: &Path, point: Option<&FailurePoint>, arguments: &[PathBuf]) -> Command {
    let mut command = strace(log);
    command.args(point.map(FailurePoint::options).into_iter().flatten());
    command.arg(env!("CARGO_BIN_EXE_ferrofs")).args(arguments);
    command.stdin(Stdio::null()).stdout(Stdio::null());
    command
}

/// The points of a mount from its start to the first reply.
fn mount_points(dir: &Dir, arguments: &[PathBuf], place: &MountPoint) -> Vec<FailurePoint> {
    let log = dir.join("calls");
    let mut child = mount_command(&log, None, arguments).spawn().unwrap();
    place.wait_for_mount();
    fs::read(place.join("text")).unwrap();
    assert!(place.unmount());
    assert!(child.wait().unwrap().success());
    let calls = calls_of(&fs::read_to_string(log).unwrap());
    let all = |failure: Failure| {
        // The kernel never refuses a reply because of its medium, and a reply that is lost leaves its caller waiting.
        let is_reply = |call: &str| call == "writev" && failure != Failure::Kill;
        let points =
            calls.iter().filter(|(call, _)| !is_reply(call)).flat_map(|(call, (first, last))| {
                (*first..=*last).map(move |nth| FailurePoint { call: call.clone(), nth, failure })
            });
        sample(points.collect())
    };
    let mut points =
        [all(Failure::Errno("EIO")), all(Failure::Errno("ENOMEM")), all(Failure::Kill)].concat();
    // The first one of each thread: once no listener survived it, and nobody read the requests.
    let limits = FailurePoint { call: "prlimit64".into(), nth: 1, failure: Failure::Errno("EIO") };
    points.push(limits);
    points
}

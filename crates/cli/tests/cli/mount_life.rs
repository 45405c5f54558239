//! How a mount begins and ends: in the background and in the foreground, by unmounting, by signals,
//! by violence.

use std::fs::{self, File};
use std::io::{self, Read};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use ferrofs_workers::priority::{self, PriorityLevel, PriorityRequest};
use rustix::io::Errno;
use rustix::process::Signal;

use crate::mounted::{Foreground, MountPoint, UNMOUNT_HELPER, has_fuse, has_mount_right};
use crate::support::{Dir, TestCommand, data, ferrofs, reset_signals, skip};

fn mount(point: &MountPoint) -> TestCommand {
    ferrofs().arg("mount").arg(data("plain.erofs")).arg(point.path())
}

fn foreground(point: &MountPoint) -> Foreground {
    Foreground::ready(mount(point).arg("-f").spawn())
}

/// An image that another program has leased: opening it waits until that program gives it back.
struct LeasedImage {
    path: std::path::PathBuf,
    holder: Child,
}

impl LeasedImage {
    /// `None` where there is no Python, whose standard library takes leases.
    fn new(dir: &Dir) -> Option<Self> {
        let script = "import fcntl, signal, sys\n\
                      signal.signal(signal.SIGIO, signal.SIG_IGN)\n\
                      image = open(sys.argv[1], 'rb')\n\
                      fcntl.fcntl(image, fcntl.F_SETLEASE, fcntl.F_WRLCK)\n\
                      print('leased', flush=True)\n\
                      sys.stdin.read()\n";
        let path = dir.write("leased", &fs::read(data("plain.erofs")).unwrap());
        let mut command = Command::new("python3");
        command.args(["-c", script]).arg(&path).stdin(Stdio::piped()).stdout(Stdio::piped());
        let Ok(mut holder) = command.spawn() else {
            skip("there is no python3");
            return None;
        };
        let mut message = [0; 6];
        holder.stdout.as_mut().unwrap().read_exact(&mut message).unwrap();
        Some(Self { path, holder })
    }
}

impl Drop for LeasedImage {
    fn drop(&mut self) {
        self.holder.kill().unwrap();
        self.holder.wait().unwrap();
    }
}

fn is_stale(directory: &Path) -> bool {
    let error = fs::read_dir(directory).map(drop).unwrap_err();
    error.raw_os_error() == Some(Errno::NOTCONN.raw_os_error())
}

// A-MOUNT-READY
#[test]
fn in_the_background_it_is_ready_when_the_command_returns_and_ends_with_the_mount() {
    if !has_fuse() {
        return;
    }
    let point = MountPoint::new();
    // This reads the command's output to its end, which does not come while the daemon has it.
    let ended = mount(&point).succeeds();
    assert_eq!((ended.text().as_str(), ended.stderr.as_str()), ("", ""));
    let daemon = point.process(None);
    assert_eq!(field(&status(daemon.pid()), "Name"), "ferrofs", "as ps, top and pgrep show it");
    let text = ferrofs().arg("cat").arg(data("plain.erofs")).arg("/a.txt").succeeds();
    assert_eq!(fs::read(point.join("a.txt")).unwrap(), text.stdout);
    assert!(point.unmount());
    daemon.wait();
    assert_eq!(fs::read_dir(point.path()).unwrap().count(), 0);
}

#[test]
fn a_daemon_leaves_the_terminal_and_the_working_directory_of_its_starter() {
    if !has_fuse() {
        return;
    }
    let point = MountPoint::new();
    // In the sandbox, other processes of the user cannot read these links.
    mount(&point).arg("--no-sandbox").succeeds();
    let pid = point.process(None).pid();
    assert_eq!(fs::read_link(format!("/proc/{pid}/cwd")).unwrap(), Path::new("/"));
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    // pid (name) state ppid pgrp session tty
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap().split_whitespace().collect();
    assert_eq!(fields[3], pid.to_string(), "it leads its session");
    assert_eq!(fields[4], "0", "it has no terminal");
}

/// systemd mounts on its automount point, and lets only processes of its own group past that while the mount is not there: a
/// daemon that has left the group would wait for itself.
#[test]
fn a_daemon_stays_in_the_process_group_of_its_starter_until_the_mount_is_made() {
    if !has_fuse() || !has_mount_right() {
        return;
    }
    if !Command::new("strace").arg("-V").output().is_ok_and(|output| output.status.success()) {
        return skip("strace is not installed");
    }
    let dir = Dir::new();
    for options in [&[][..], &["--keep"]] {
        let point = MountPoint::new();
        let log = dir.join("calls");
        let mut command = Command::new("strace");
        command.args(["-f", "-e", "trace=mount,move_mount,setsid,setpgid", "-o"]).arg(&log);
        command.arg(env!("CARGO_BIN_EXE_ferrofs")).arg("mount").args(options);
        // It ends when all that it traces have ended.
        let mut traced = command.arg(data("plain.erofs")).arg(point.path()).spawn().unwrap();
        point.wait_for_mount();
        assert!(point.unmount());
        assert!(traced.wait().unwrap().success());
        let calls = fs::read_to_string(&log).unwrap();
        let first = |names: [&str; 2]| {
            calls.lines().position(|line| names.iter().any(|name| line.contains(name)))
        };
        let mounted = first(["\"fuse.ferrofs\"", " move_mount("]).expect("a call that mounts");
        let left = first([" setsid(", " setpgid("]).expect("a call that leaves the group");
        assert!(mounted < left, "{options:?}:\n{calls}");
    }
}

// A-MOUNT-SIGNALS
#[test]
fn signals_unmount_cleanly() {
    if !has_fuse() {
        return;
    }
    let signals = [Signal::TERM, Signal::INT, Signal::HUP];
    reset_signals(&signals);
    for signal in signals {
        let point = MountPoint::new();
        let mut mounted = foreground(&point);
        mounted.signal(signal);
        let line = mounted.line().unwrap();
        assert!(line.contains(": unmounting /"), "{line}");
        assert_eq!(mounted.wait().code(), Some(0), "{signal:?}");
        assert_eq!(point.mount(), None);
    }
}

#[test]
fn a_signal_ends_a_daemon_as_well() {
    if !has_fuse() {
        return;
    }
    let point = MountPoint::new();
    mount(&point).succeeds();
    let daemon = point.process(None);
    daemon.signal(Signal::TERM);
    daemon.wait();
    assert_eq!(point.mount(), None);
}

#[test]
fn open_files_can_be_read_after_the_unmount() {
    if !has_fuse() {
        return;
    }
    let point = MountPoint::new();
    let mut mounted = foreground(&point);
    let user = File::open(point.join("a.txt")).unwrap();
    mounted.signal(Signal::TERM);
    assert!(mounted.line().unwrap().contains("unmounting"));
    let line = mounted.line().unwrap();
    assert!(line.contains("still in use"), "{line}");
    assert_eq!(point.mount(), None);
    let text = ferrofs().arg("cat").arg(data("plain.erofs")).arg("/a.txt").succeeds();
    assert_eq!(io::read_to_string(&user).unwrap().as_bytes(), text.stdout);
    drop(user);
    assert_eq!(mounted.wait().code(), Some(0));
}

#[test]
fn a_second_signal_ends_it_at_once() {
    if !has_fuse() {
        return;
    }
    let point = MountPoint::new();
    let mut mounted = foreground(&point);
    let user = File::open(point.join("a.txt")).unwrap();
    mounted.signal(Signal::TERM);
    while !mounted.line().unwrap().contains("still in use") {}
    // It may print this a moment before it handles the second one, so there may be a third.
    assert_eq!(mounted.ends_by(Signal::TERM).code(), Some(1));
    io::read_to_string(&user).unwrap_err();
}

// A-MOUNT-STALE
#[test]
fn killed_it_leaves_a_directory_that_one_command_clears() {
    if !has_fuse() || !has_mount_right() {
        return;
    }
    let point = MountPoint::new();
    // Otherwise the process that unmounts removes it: see the next test.
    mount(&point).args(["-o", "noauto_unmount"]).succeeds();
    let daemon = point.process(None);
    daemon.signal(Signal::KILL);
    daemon.wait();
    assert!(is_stale(point.path()));
    let message = mount(&point).ends_with(1).stderr;
    assert!(message.contains("whose server has died") && message.contains("umount"), "{message}");
    assert!(point.unmount());
    mount(&point).succeeds();
    assert!(point.join("sub").is_dir());
}

#[test]
fn killed_it_is_unmounted_by_a_process_that_lives_on_for_that() {
    if !has_fuse() {
        return;
    }
    let point = MountPoint::new();
    mount(&point).succeeds();
    let daemon = point.process(None);
    daemon.signal(Signal::KILL);
    daemon.wait();
    point.wait_for_unmount();
}

#[test]
fn a_daemon_that_dies_before_it_is_ready_is_reported() {
    let dir = Dir::new();
    let Some(image) = LeasedImage::new(&dir) else { return };
    let point = MountPoint::new();
    let asking = ferrofs().arg("mount").arg(&image.path).arg(point.path()).spawn();
    point.process(Some(asking.id())).signal(Signal::KILL);
    let output = asking.wait_with_output().unwrap();
    let message = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(message, "ferrofs: the daemon ended before the mount was ready: by signal 9\n");
}

#[test]
fn when_the_starter_is_killed_nothing_is_mounted() {
    let dir = Dir::new();
    let Some(image) = LeasedImage::new(&dir) else { return };
    let point = MountPoint::new();
    let mut asking = ferrofs().arg("mount").arg(&image.path).arg(point.path()).spawn();
    let daemon = point.process(Some(asking.id()));
    // A daemon ends with its starter from when its standard input is not the socket any more.
    let input = format!("/proc/{}/fd/0", daemon.pid());
    while fs::read_link(&input).unwrap() != Path::new("/dev/null") {
        std::thread::yield_now();
    }
    asking.kill().unwrap();
    asking.wait().unwrap();
    daemon.wait();
    assert_eq!(point.mount(), None);
}

/// A shell that runs `script`, in which `$0` is our program, `$1` an image and `$2` the directory.
fn shell(script: &str, point: &MountPoint) -> TestCommand {
    let command = TestCommand::new(Command::new("sh")).arg("-c").arg(script);
    command.arg(env!("CARGO_BIN_EXE_ferrofs")).arg(data("plain.erofs")).arg(point.path())
}

/// A mount was left behind without a server, or with a process that waited for itself.
#[test]
fn without_descriptors_nothing_is_mounted_and_the_reason_is_printed() {
    if !has_fuse() {
        return;
    }
    for options in ["", "--keep"] {
        let mut mounted = 0;
        for limit in 4..40 {
            let point = MountPoint::new();
            let script =
                format!("ulimit -n {limit}; exec timeout 20 \"$0\" mount {options} \"$1\" \"$2\"");
            let ended = shell(&script, &point).run();
            let (code, message) = (ended.code, &ended.stderr);
            if code == Some(0) {
                mounted += 1;
                assert!(point.unmount(), "{options} {limit}");
                continue;
            }
            // The loader of shared libraries ends a program that cannot open them with 127.
            assert!(matches!(code, Some(1 | 127)), "{options} {limit}: {code:?} {message}");
            assert!(
                !message.is_empty() && !message.contains("ended before"),
                "{options} {limit}: {message}"
            );
            // The process that unmounts does it when it sees that the daemon has ended.
            let started_at = std::time::Instant::now();
            while let Some(left) = point.mount() {
                assert!(
                    started_at.elapsed().as_secs() < 20,
                    "{options} {limit}: {left:?} {message}"
                );
                std::thread::sleep(std::time::Duration::from_millis(5));
            }
        }
        assert!(mounted > 5, "{options} {mounted}");
    }
}

/// A shell that ignores the end of children has programs ignore it, too.
#[test]
fn a_kept_mount_does_not_mind_that_its_starter_ignores_the_end_of_children() {
    if !has_fuse() {
        return;
    }
    let point = MountPoint::new();
    shell("trap '' CHLD; exec \"$0\" mount --keep \"$1\" \"$2\"", &point).succeeds();
    let server = |but| point.process(but);
    assert!(point.mount().is_some() && server(None).pid() > 0);
    assert!(point.unmount());
}

/// The holder took the end of a server that nobody waited for any more for a crash.
#[test]
fn a_kept_mount_whose_starter_was_killed_does_not_stay() {
    if !has_fuse() {
        return;
    }
    std::thread::scope(|scope| {
        for first_ms in 0..5 {
            scope.spawn(move || (first_ms..25).step_by(5).for_each(kill_a_starter_after));
        }
    });
}

fn kill_a_starter_after(delay_ms: u64) {
    let (point, dir) = (MountPoint::new(), Dir::new());
    let log = dir.join("log");
    let mut asking = mount(&point).arg("--keep").arg("--log").arg(&log).spawn();
    std::thread::sleep(std::time::Duration::from_millis(delay_ms));
    asking.kill().unwrap();
    asking.wait().unwrap();
    let started_at = std::time::Instant::now();
    let mut quiet = 0;
    // For half a second nothing is mounted and nobody is there who could; or the starter was killed after it got the
    // message that the mount is ready, and the first server serves.
    while quiet < 100 {
        if started_at.elapsed().as_secs() >= 5 && point.mount().is_some() {
            let message = fs::read_to_string(&log).unwrap();
            assert!(!message.contains("restart"), "{delay_ms} ms: {message}");
            assert!(point.unmount());
        }
        assert!(started_at.elapsed().as_secs() < 30, "{delay_ms} ms: {:?}", point.mount());
        std::thread::sleep(std::time::Duration::from_millis(5));
        quiet = if point.mount().is_none() && !point.has_process() { quiet + 1 } else { 0 };
    }
}

/// The five sets of capabilities that `/proc` shows.
const SETS: [&str; 5] = ["CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"];

fn field(status: &str, name: &str) -> String {
    let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    line.unwrap().split_whitespace().collect::<Vec<_>>().join(" ")
}

fn status(pid: i32) -> String {
    fs::read_to_string(format!("/proc/{pid}/status")).unwrap()
}

/// Whether this process may raise a thread to a real-time priority.
fn reaches_real_time() -> bool {
    let raise = || priority::apply(PriorityRequest::Raised);
    std::thread::scope(|scope| scope.spawn(raise).join().unwrap()) == PriorityLevel::RealTime
}

/// Whether the policy of a thread, given by its folder in `/proc`, is `SCHED_FIFO`.
fn is_fifo(task: &Path) -> bool {
    let stat = fs::read_to_string(task.join("stat")).unwrap();
    // The state is field 3, the policy 41; FIFO is 1.
    stat.rsplit(')').next().unwrap().split_whitespace().nth(38) == Some("1")
}

/// The process that unmounts for a daemon.
fn unmount_helper(daemon: i32) -> i32 {
    let numbers = fs::read_dir("/proc").unwrap().flatten();
    let mut numbers = numbers.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let is_its = |number: &i32| {
        let text = fs::read_to_string(format!("/proc/{number}/status")).unwrap_or_default();
        text.starts_with(&format!("Name:\t{UNMOUNT_HELPER}\n"))
            && field(&text, "PPid") == daemon.to_string()
    };
    numbers.find(is_its).unwrap()
}

#[test]
fn a_mount_of_root_is_served_without_capabilities_and_unmounted_by_one_with_a_single_one() {
    if !has_fuse() || !has_mount_right() {
        return;
    }
    let point = MountPoint::new();
    mount(&point).succeeds();
    let daemon = point.process(None);
    let tasks = fs::read_dir(format!("/proc/{}/task", daemon.pid())).unwrap();
    for task in tasks.map(Result::unwrap) {
        let text = fs::read_to_string(task.path().join("status")).unwrap();
        for set in SETS {
            assert_eq!(field(&text, set), "0000000000000000", "{set} in {text}");
        }
        assert_eq!((field(&text, "NoNewPrivs"), field(&text, "Seccomp")), ("1".into(), "2".into()));
        let is_listener = field(&text, "Name").starts_with("fuse-0");
        assert!(!is_listener || is_fifo(&task.path()) == reaches_real_time(), "{text}");
    }
    let helper = status(unmount_helper(daemon.pid()));
    // CAP_SYS_ADMIN is number 21.
    let sets = SETS.map(|set| u64::from_str_radix(&field(&helper, set), 16).unwrap());
    assert_eq!(sets, [0, 1 << 21, 1 << 21, 0, 0], "{helper}");
    assert_eq!((field(&helper, "NoNewPrivs"), field(&helper, "Seccomp")), ("1".into(), "2".into()));
    daemon.signal(Signal::TERM);
    daemon.wait();
    assert_eq!(point.mount(), None);
}

// Without CAP_SYS_RESOURCE, as in a container, decode workers and prefetch threads had an ordinary priority. Listeners with a
// real-time priority kept them off the CPUs, and reads took twice as long.
#[test]
fn threads_that_a_confined_mount_starts_later_have_the_priority_of_its_listeners() {
    if !has_fuse() || !has_mount_right() || !reaches_real_time() {
        return;
    }
    let (dir, point) = (Dir::new(), MountPoint::new());
    let (source, image) = (dir.join("source"), dir.join("image"));
    fs::create_dir(&source).unwrap();
    fs::write(source.join("file"), words(8 << 20)).unwrap();
    ferrofs().args(["build", "-q", "-z", "zstd", "-C", "64k"]).arg(&image).arg(&source).succeeds();
    // Of util-linux. Where it is missing, the process keeps the right, and raises its limits.
    let has_setpriv = Command::new("setpriv").arg("--version").output().is_ok();
    let without_right = "exec setpriv --bounding-set -sys_resource \"$0\" mount \"$1\" \"$2\"";
    for script in ["exec \"$0\" mount \"$1\" \"$2\"", without_right] {
        if script == without_right && !has_setpriv {
            continue;
        }
        let command = TestCommand::new(Command::new("sh")).args(["-c", script]);
        let command = command.arg(env!("CARGO_BIN_EXE_ferrofs")).arg(&image).arg(point.path());
        command.succeeds();
        let file = File::open(point.join("file")).unwrap();
        file.read_exact_at(&mut vec![0; 8 << 20], 0).unwrap();
        let daemon = point.process(None);
        let tasks = fs::read_dir(format!("/proc/{}/task", daemon.pid())).unwrap();
        let mut workers = 0;
        for task in tasks.map(Result::unwrap) {
            let text = fs::read_to_string(task.path().join("status")).unwrap();
            let name = field(&text, "Name");
            let is_worker = name.starts_with("erofs_worker/");
            workers += usize::from(is_worker);
            if is_worker || name.starts_with("prefetch/") || name.starts_with("readaround/") {
                assert!(is_fifo(&task.path()), "{text}");
            }
        }
        assert!(workers > 0, "no worker was started");
        drop(file);
        assert!(point.unmount());
    }
}

// Only decode workers had an ordinary priority; the threads that do most of the decoding kept theirs.
#[test]
fn no_thread_of_a_nice_mount_is_raised() {
    if !has_fuse() {
        return;
    }
    let (dir, point) = (Dir::new(), MountPoint::new());
    let (source, image) = (dir.join("source"), dir.join("image"));
    fs::create_dir(&source).unwrap();
    fs::write(source.join("file"), words(8 << 20)).unwrap();
    ferrofs().args(["build", "-q", "-z", "zstd", "-C", "64k"]).arg(&image).arg(&source).succeeds();
    for options in [&["--nice=1"][..], &["-o", "nice=1"], &["--nice=1", "--keep"]] {
        ferrofs().arg("mount").args(options).arg(&image).arg(point.path()).succeeds();
        let file = File::open(point.join("file")).unwrap();
        file.read_exact_at(&mut vec![0; 8 << 20], 0).unwrap();
        let first = point.process(None);
        // A holder serves nothing.
        let is_holder = field(&status(first.pid()), "Name") == "ferrofs-holder";
        let holder = is_holder.then(|| u32::try_from(first.pid()).unwrap());
        let daemon = holder.map_or(first, |holder| point.process(Some(holder)));
        let mut listeners = 0;
        for task in fs::read_dir(format!("/proc/{}/task", daemon.pid())).unwrap() {
            let task = task.unwrap().path();
            let stat = fs::read_to_string(task.join("stat")).unwrap();
            // The nice value is field 19.
            let nice = stat.rsplit(')').next().unwrap().split_whitespace().nth(16).unwrap();
            assert!(!is_fifo(&task) && nice.parse::<i32>().unwrap() >= 1, "{options:?}: {stat}");
            listeners += usize::from(stat.contains("(fuse-"));
        }
        assert!(listeners > 0, "{options:?}: no listener");
        drop(file);
        assert!(point.unmount());
    }
}

#[test]
fn root_can_have_a_mount_served_by_another_user_to_whom_it_belongs() {
    if !has_fuse() {
        return;
    }
    let point = MountPoint::new();
    if !has_mount_right() {
        let message = mount(&point).args(["--user", "1:1"]).ends_with(2).stderr;
        assert!(message.contains("--user: only root"), "{message}");
        return;
    }
    for (word, part) in [("no such user", "has no user"), ("1:x", "is not UID:GID")] {
        let message = mount(&point).args(["--user", word]).ends_with(2).stderr;
        assert!(message.starts_with("ferrofs: --user: ") && message.contains(part), "{message}");
    }
    mount(&point).args(["--user", "65534:65533"]).succeeds();
    let daemon = point.process(None);
    let text = status(daemon.pid());
    assert_eq!(field(&text, "Uid"), "65534 65534 65534 65534");
    assert_eq!(field(&text, "Gid"), "65533 65533 65533 65533");
    assert_eq!(field(&text, "Groups"), "65533");
    assert!(SETS.iter().all(|set| field(&text, set) == "0000000000000000"), "{text}");
    let line = point.mount().unwrap();
    assert!(line.contains("user_id=65534,group_id=65533"), "{line}");
    // It belongs to that user, so root has no access.
    assert_eq!(fs::read_dir(point.path()).unwrap_err().kind(), io::ErrorKind::PermissionDenied);
    daemon.signal(Signal::TERM);
    daemon.wait();
    assert_eq!(point.mount(), None);
    mount(&point).args(["--user", "65534:65533", "--allow-other"]).succeeds();
    assert!(point.join("sub").is_dir());
    assert!(point.unmount());
}

// A server that waits for a page when it is killed cannot end by itself; the sandbox kept the kernel's message from the helper.
#[test]
fn the_helper_of_a_confined_mount_hears_that_its_server_was_killed() {
    if !has_fuse() || !has_mount_right() {
        return;
    }
    let point = MountPoint::new();
    mount(&point).succeeds();
    let daemon = point.process(None);
    let helper = unmount_helper(daemon.pid());
    let signal_helper = |signal| {
        let helper = rustix::process::Pid::from_raw(helper).unwrap();
        rustix::process::kill_process(helper, signal).unwrap();
    };
    // It takes no signal meanwhile.
    signal_helper(Signal::STOP);
    daemon.signal(Signal::KILL);
    let is_pending = || {
        let pending = u64::from_str_radix(&field(&status(helper), "ShdPnd"), 16).unwrap();
        pending & 1 << (Signal::USR1.as_raw() - 1) != 0
    };
    let started_at = std::time::Instant::now();
    while !is_pending() {
        assert!(started_at.elapsed().as_secs() < 10, "{}", status(helper));
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    signal_helper(Signal::CONT);
    daemon.wait();
    while point.mount().is_some() {
        assert!(started_at.elapsed().as_secs() < 20, "it is mounted");
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
}

/// Text of so many bytes that compresses to a third, each time the same.
fn words(count: usize) -> Vec<u8> {
    let mut state = 1_u64;
    let mut text = Vec::with_capacity(count + 16);
    while text.len() < count {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        text.extend_from_slice(format!("{:x} ", (state >> 52).pow(3)).as_bytes());
    }
    text.truncate(count);
    text
}

// Decoders that readers beyond the limit had made stayed in the heaps of their threads, which the budget did not count.
#[test]
fn many_readers_of_long_extents_stay_within_the_memory_limit() {
    const LIMIT_KIB: u64 = 28 << 10;
    /// What the limit has for code, which is more in a build for tests.
    const CODE_KIB: u64 = 6 << 10;
    if !has_fuse() {
        return;
    }
    let (dir, point) = (Dir::new(), MountPoint::new());
    let (source, image) = (dir.join("source"), dir.join("image"));
    fs::create_dir(&source).unwrap();
    let names = ["a", "b", "c"];
    names.iter().for_each(|name| fs::write(source.join(name), words(8 << 20)).unwrap());
    let build =
        ferrofs().args(["build", "-q", "-z", "zstd,level=1", "-C", "1m", "--max-extent=4m"]);
    build.arg(&image).arg(&source).succeeds();
    let memory = format!("--memory={LIMIT_KIB}k");
    ferrofs().arg("mount").arg(memory).arg(&image).arg(point.path()).succeeds();
    let daemon = point.process(None);
    std::thread::scope(|scope| {
        for reader in 0..16_usize {
            let path = point.join(names[reader % names.len()]);
            scope.spawn(move || {
                let file = File::open(path).unwrap();
                let mut buffer = vec![0; 128 << 10];
                for block in (0..64).map(|block| (block + reader * 7) % 64) {
                    file.read_exact_at(&mut buffer, block as u64 * (128 << 10)).unwrap();
                    // The next reader of it asks the daemon again.
                    rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).unwrap();
                }
            });
        }
    });
    let status = status(daemon.pid());
    let kib = |name| field(&status, name).trim_end_matches(" kB").trim().parse::<u64>().unwrap();
    let (peak, code) = (kib("VmHWM"), kib("RssFile"));
    println!("{peak} KiB at most, {code} of files");
    assert!(peak - code <= LIMIT_KIB - CODE_KIB, "{peak} KiB at most, {code} of files");
    assert!(point.unmount());
    daemon.wait();
}

// A page that two extents share was decoded with both of them, and with their neighbours.
#[test]
fn random_reads_of_all_pages_decode_each_extent_about_once() {
    const PAGES: usize = 2048;
    if !has_fuse() {
        return;
    }
    let (dir, point) = (Dir::new(), MountPoint::new());
    let (source, image) = (dir.join("source"), dir.join("image"));
    fs::create_dir(&source).unwrap();
    let bytes = words(PAGES * 4096);
    fs::write(source.join("file"), &bytes).unwrap();
    ferrofs().args(["build", "-q", "-z", "zstd", "-C", "64k"]).arg(&image).arg(&source).succeeds();
    let decoded_by = |read: &dyn Fn(&File)| {
        ferrofs().arg("mount").arg(&image).arg(point.path()).succeeds();
        let file = File::open(point.join("file")).unwrap();
        read(&file);
        let stats = ferrofs().args(["stats", "--json"]).arg(point.path()).succeeds().json();
        drop(file);
        assert!(point.unmount());
        stats["clusters"]["decoded"].as_u64().unwrap()
    };
    let extents = decoded_by(&|file| {
        let mut read = vec![0; bytes.len()];
        file.read_exact_at(&mut read, 0).unwrap();
        assert!(read == bytes);
    });
    assert!(extents > 20, "{extents} extents");
    let decoded = decoded_by(&|file| {
        rustix::fs::fadvise(file, 0, None, rustix::fs::Advice::Random).unwrap();
        for at in (0..PAGES).map(|number| number * 1103 % PAGES * 4096) {
            let mut page = [0; 4096];
            let started_at = std::time::Instant::now();
            file.read_exact_at(&mut page, at as u64).unwrap();
            assert!(page == bytes[at..at + 4096], "the page at {at}");
            // The daemon stores the rest of the extents after its reply, and on a busy machine later than the next reads.
            if started_at.elapsed() > std::time::Duration::from_micros(50) {
                std::thread::sleep(std::time::Duration::from_millis(10));
            }
        }
    });
    println!("{decoded} decoded of {extents} extents");
    assert!(decoded <= extents + extents / 4, "{decoded} decoded of {extents} extents");
}

/// Text of which ZSTD encodes some 8 MiB in a cluster of 1 MiB.
fn repetitive(count: usize, mut state: u64) -> Vec<u8> {
    let mut text = Vec::with_capacity(count + 2_000);
    while text.len() < count {
        for _ in 0..25 {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            text.extend_from_slice(&state.to_le_bytes());
        }
        text.resize(text.len() + 1_600, state.to_le_bytes()[7]);
    }
    text.truncate(count);
    text
}

// Listeners kept the memory of their replies while they waited for memory for an extent. So in about half of such runs
// the oldest of them never got it, and reads failed after 10 seconds each.
#[test]
fn readers_of_long_extents_in_the_smallest_memory_wait_for_each_other_and_not_for_ever() {
    const BYTES: usize = 36 << 20;
    if !has_fuse() {
        return;
    }
    let (dir, point) = (Dir::new(), MountPoint::new());
    let (source, image) = (dir.join("source"), dir.join("image"));
    fs::create_dir(&source).unwrap();
    let texts: Vec<Vec<u8>> = (1..=2).map(|state| repetitive(BYTES, state)).collect();
    for (number, text) in texts.iter().enumerate() {
        fs::write(source.join(number.to_string()), text).unwrap();
    }
    let build =
        ferrofs().args(["build", "-q", "-z", "zstd,level=1", "-C", "1m", "--max-extent=12m"]);
    build.arg(&image).arg(&source).succeeds();
    ferrofs().args(["mount", "--memory=28m"]).arg(&image).arg(point.path()).succeeds();
    let daemon = point.process(None);
    let slowest = std::thread::scope(|scope| {
        let readers: Vec<_> = (0..16_usize)
            .map(|reader| {
                let (point, texts) = (&point, &texts);
                scope.spawn(move || {
                    let mut slowest = std::time::Duration::ZERO;
                    for round in 0..8_usize {
                        let number = (reader + round) % texts.len();
                        // Each read is one request.
                        let flags = rustix::fs::OFlags::DIRECT.bits().cast_signed();
                        let mut options = File::options();
                        let file = options.read(true).custom_flags(flags);
                        let file = file.open(point.join(&number.to_string())).unwrap();
                        let at = ((reader * 7 + round * 11) % 35) << 20;
                        let mut buffer = vec![0; 1 << 20];
                        let started_at = std::time::Instant::now();
                        file.read_exact_at(&mut buffer, at as u64).unwrap();
                        slowest = slowest.max(started_at.elapsed());
                        assert!(buffer == texts[number][at..at + (1 << 20)], "{number} at {at}");
                    }
                    slowest
                })
            })
            .collect();
        readers.into_iter().map(|reader| reader.join().unwrap()).max().unwrap()
    });
    println!("the slowest read took {slowest:?}");
    let stats = ferrofs().args(["stats", "--json"]).arg(point.path()).succeeds().json();
    assert_eq!(stats["memory"]["gave_up"], 0, "{}", stats["memory"]);
    assert!(point.unmount());
    daemon.wait();
}

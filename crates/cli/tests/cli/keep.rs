//! Mounts that survive the process that serves them (docs/survival.md): servers are killed, crash, and die at each step of
//! a take-over, while programs read.

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use ferrofs_workers::cpus::CpuSet;
use rustix::mount::{UnmountFlags, unmount};
use rustix::process::{Pid, Signal, kill_process};

use crate::mounted::{has_fuse, may_mount};
use crate::support::{Dir, TestCommand, ferrofs, is_root, skip};

/// The limit of every wait.
pub(crate) const LIMIT: Duration = Duration::from_secs(60);
/// User and group "nobody".
const NOBODY: u32 = 65_534;
/// Files of the test image, and their size.
const FILES: usize = 12;
const FILE_BYTES: usize = 192 << 10;

/// An image, a directory to mount it on, and the user who does.
pub(crate) struct Scene {
    pub(crate) dir: Dir,
    pub(crate) image: PathBuf,
    pub(crate) point: PathBuf,
    pub(crate) is_ordinary: bool,
}

/// A mount of a scene.
pub(crate) struct Kept {
    pub(crate) holder: Pid,
    pub(crate) point: PathBuf,
}

impl Scene {
    pub(crate) fn new(is_ordinary: bool) -> Self {
        let dir = Dir::new();
        let tree = dir.join("tree");
        fs::create_dir(&tree).unwrap();
        for number in 0..FILES {
            // Lines that differ: they compress, and no two clusters are equal.
            let mut text = String::new();
            for line in 0.. {
                if text.len() >= FILE_BYTES {
                    break;
                }
                text.push_str(&format!("{number} {line} {}\n", line * 7919 + number * 104_729));
            }
            fs::write(tree.join(format!("file{number}")), text).unwrap();
        }
        let image = dir.join("image");
        ferrofs().arg("build").args(["-z", "lz4"]).arg(&image).arg(&tree).succeeds();
        let point = fs::canonicalize(dir.path()).unwrap().join("mnt");
        fs::create_dir(&point).unwrap();
        let scene = Self { dir, image, point, is_ordinary };
        if is_ordinary {
            for path in [&scene.image, &scene.point] {
                std::os::unix::fs::chown(path, Some(NOBODY), Some(NOBODY)).unwrap();
            }
        }
        scene
    }

    pub(crate) fn command(&self) -> TestCommand {
        let command = if self.is_ordinary { self.dir.ordinary_ferrofs() } else { ferrofs() };
        let log = self.dir.join("log");
        if !log.exists() {
            fs::write(&log, "").unwrap();
            if self.is_ordinary {
                std::os::unix::fs::chown(&log, Some(NOBODY), Some(NOBODY)).unwrap();
            }
        }
        command.args(["mount", "--keep", "--log"]).arg(log).arg(&self.image).arg(&self.point)
    }

    pub(crate) fn mount(&self, settings: &[(&str, &str)]) -> Kept {
        settings
            .iter()
            .fold(self.command(), |command, (key, value)| command.env(key, value))
            .succeeds();
        Kept { holder: holder_of(&self.point), point: self.point.clone() }
    }

    pub(crate) fn log(&self) -> String {
        fs::read_to_string(self.dir.join("log")).unwrap()
    }

    /// A shell script that runs in the mount as the user who has mounted.
    fn shell(&self, script: &str) -> Child {
        let mut command = Command::new("sh");
        command.args(["-c", script]).arg("sh").arg(self.dir.join("stop"));
        command.current_dir("/").env("POINT", &self.point);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        if self.is_ordinary {
            command.uid(NOBODY).gid(NOBODY);
        }
        command.spawn().unwrap()
    }

    /// Programs that read until [`Load::stop`]: data with direct I/O, names, attributes.
    pub(crate) fn load(&self) -> Load {
        let read = r#"cd "$POINT" || exit 1
            while :; do
                for file in file*; do dd if=$file iflag=direct bs=16k status=none || echo FAILED; done | cksum
                [ ! -e "$1" ] || break
            done | sort -u"#;
        let list = r#"cd "$POINT" || exit 1
            while [ ! -e "$1" ]; do
                ls -l >/dev/null || echo FAILED; stat -f . >/dev/null || echo FAILED
                test -e "no-$(date +%N)" && echo FAILED; test -e . || echo FAILED
                sleep .02
            done"#;
        let expected = r#"cd "${1%/*}/tree" || exit 1; cat file* | cksum"#;
        let sums = |script: &str| self.shell(script).wait_with_output().unwrap().stdout;
        // `cat file*` and the loop over `file*` have the same order.
        let expected = String::from_utf8(sums(expected)).unwrap();
        let programs = [read, read, list].map(|script| self.shell(script)).into();
        Load { stop: self.dir.join("stop"), programs, expected }
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        // The first one unmounts, and the second one ends what is still in use.
        for _ in 0..2 {
            kill_process(self.holder, Signal::TERM).ok();
        }
        let until = Instant::now() + LIMIT;
        while is_mounted(&self.point) && Instant::now() < until {
            Command::new("umount").arg("-l").arg(&self.point).stderr(Stdio::null()).status().ok();
        }
    }
}

pub(crate) struct Load {
    stop: PathBuf,
    programs: Vec<Child>,
    expected: String,
}

/// A test that has failed leaves no program behind. Those that the shells have started end with the mount.
impl Drop for Load {
    fn drop(&mut self) {
        fs::write(&self.stop, "").ok();
        for program in &mut self.programs {
            program.kill().ok();
            program.wait().ok();
        }
    }
}

/// What the programs of a load have said: one line of the sum of all files for the first two, nothing for the third.
impl Load {
    fn stop(mut self) -> Vec<String> {
        fs::write(&self.stop, "").unwrap();
        let started_at = Instant::now();
        std::mem::take(&mut self.programs)
            .into_iter()
            .map(|mut program| {
                while program.try_wait().unwrap().is_none() {
                    assert!(started_at.elapsed() < LIMIT, "a program hangs");
                    std::thread::sleep(Duration::from_millis(1));
                }
                let output = program.wait_with_output().unwrap();
                String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned()
            })
            .collect()
    }

    #[track_caller]
    pub(crate) fn stop_without_failure(self, log: &str) {
        let expected = [self.expected.clone(), self.expected.clone(), String::new()];
        assert_eq!(self.stop(), expected, "{log}");
    }
}

pub(crate) fn is_mounted(point: &Path) -> bool {
    let place = format!(" {} ", point.display());
    fs::read_to_string("/proc/self/mounts").unwrap().contains(&place)
}

pub(crate) fn status_field(pid: Pid, name: &str) -> Option<String> {
    let status = fs::read_to_string(format!("/proc/{}/status", pid.as_raw_nonzero())).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
    Some(line.trim().to_owned())
}

fn has_ended(process: Pid) -> bool {
    // Its parent may take its time to notice it.
    status_field(process, "State").is_none_or(|state| state.starts_with('Z'))
}

pub(crate) fn wait_for_end_of(process: Pid, log: impl Fn() -> String) {
    let until = Instant::now() + LIMIT;
    while !has_ended(process) {
        assert!(Instant::now() < until, "it does not end: {}", log());
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn processes() -> Vec<Pid> {
    let entries = fs::read_dir("/proc").unwrap().flatten();
    let number = |entry: fs::DirEntry| entry.file_name().to_str()?.parse().ok();
    entries.filter_map(number).filter_map(Pid::from_raw).collect()
}

/// The processes that a process has started.
pub(crate) fn children_of(parent: Pid) -> Vec<Pid> {
    let parent = parent.as_raw_nonzero().get().to_string();
    let is_its = |pid: &Pid| status_field(*pid, "PPid").as_deref() == Some(&parent);
    processes().into_iter().filter(is_its).collect()
}

/// The holder of the mount on a directory, which its command line names.
pub(crate) fn holder_of(point: &Path) -> Pid {
    let is_its = |pid: &Pid| {
        let command = format!("/proc/{}/cmdline", pid.as_raw_nonzero());
        let words = fs::read(command).unwrap_or_default();
        let name = point.as_os_str().as_encoded_bytes();
        status_field(*pid, "Name").as_deref() == Some("ferrofs-holder")
            && words.windows(name.len()).any(|part| part == name)
    };
    processes().into_iter().find(is_its).expect("a holder")
}

impl Kept {
    /// The server, once there is one that is not `but`.
    pub(crate) fn server(&self, but: Option<Pid>) -> Pid {
        let holder = self.holder.as_raw_nonzero().get().to_string();
        let until = Instant::now() + LIMIT;
        loop {
            let is_its = |pid: &Pid| {
                status_field(*pid, "PPid").as_deref() == Some(&holder)
                    && status_field(*pid, "State").is_some_and(|state| !state.starts_with('Z'))
                    // Other children have the name of the holder until they give themselves their own.
                    && status_field(*pid, "Name").as_deref() == Some("ferrofs")
            };
            let found = processes().into_iter().find(is_its);
            if let Some(pid) = found.filter(|pid| Some(*pid) != but) {
                return pid;
            }
            assert!(Instant::now() < until, "no server");
        }
    }

    /// Kills servers, with a pause of a different length each time.
    pub(crate) fn kill_servers(&self, count: u32) {
        let mut killed = None;
        for number in 0..count {
            let server = self.server(killed);
            // Servers work meanwhile: the moments of their deaths must differ.
            std::thread::sleep(Duration::from_millis(u64::from(number * 37 % 41)));
            kill_process(server, Signal::KILL).unwrap();
            killed = Some(server);
        }
    }

    pub(crate) fn restarts(&self, scene: &Scene) -> u64 {
        let command = if scene.is_ordinary { scene.dir.ordinary_ferrofs() } else { ferrofs() };
        let stats = command.args(["stats", "--json"]).arg(&self.point).succeeds().json();
        stats["process"]["restarts"].as_u64().unwrap()
    }
}

/// Lets a holder open nothing more.
pub(crate) fn deny_descriptors(scene: &Scene, kept: &Kept) {
    let open = fs::read_dir(format!("/proc/{}/fd", kept.holder.as_raw_nonzero())).unwrap();
    let open: Vec<u64> =
        open.map(|entry| entry.unwrap().file_name().to_str().unwrap().parse().unwrap()).collect();
    let free = (0..).find(|number| !open.contains(number)).unwrap();
    // As the user of the holder: root needs CAP_SYS_RESOURCE for it, which it may lack in a container.
    let mut limit = Command::new("prlimit");
    limit.args([
        format!("--pid={}", kept.holder.as_raw_nonzero()),
        format!("--nofile={free}:{free}"),
    ]);
    if scene.is_ordinary {
        limit.uid(NOBODY).gid(NOBODY);
    }
    assert!(limit.status().unwrap().success());
}

/// Lets each fork of a holder fail, and ends its server: a fork needs two descriptors, and only that of the server becomes
/// free. Returns when the first fork has failed.
pub(crate) fn leave_without_server(scene: &Scene, kept: &Kept) {
    deny_descriptors(scene, kept);
    kill_process(kept.server(None), Signal::KILL).unwrap();
    let until = Instant::now() + LIMIT;
    while !scene.log().contains("cannot start a process that serves") {
        assert!(Instant::now() < until, "{}", scene.log());
    }
}

/// Whether the kernel can send requests again.
pub(crate) fn has_resend() -> bool {
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
    let mut numbers = release.split('.').map_while(|number| number.parse::<u32>().ok());
    let has = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0)) >= (6, 9);
    if !has {
        skip("needs Linux 6.9, whose FUSE can send requests again");
    }
    has
}

/// Whether this process can become an ordinary user who may mount. If not, the test is reported as skipped.
pub(crate) fn has_ordinary_mounts() -> bool {
    // udev gives the device this mode; a machine without udev may have it for root alone.
    let is_for_all = fs::metadata("/dev/fuse").is_ok_and(|device| device.mode() & 0o006 == 0o006);
    let has = is_root()
        && is_for_all
        && ["/usr/bin", "/bin"].iter().any(|dir| Path::new(dir).join("fusermount3").exists());
    if !has {
        skip(
            "needs root, to become another user, fusermount3, and a /dev/fuse that every user may open",
        );
    }
    has
}

// A-KEEP-KILL
#[test]
fn killed_servers_are_replaced_and_no_call_fails() {
    if !has_fuse() || !has_resend() {
        return;
    }
    let scene = Scene::new(false);
    let kept = scene.mount(&[]);
    let before = fs::metadata(&scene.point).unwrap().dev();
    let load = scene.load();
    kept.kill_servers(30);
    load.stop_without_failure(&scene.log());
    assert_eq!(kept.restarts(&scene), 30);
    assert_eq!(fs::metadata(&scene.point).unwrap().dev(), before);
}

#[test]
fn servers_of_an_ordinary_user_are_replaced_and_no_call_fails() {
    if !has_fuse() || !has_resend() || !has_ordinary_mounts() {
        return;
    }
    let scene = Scene::new(true);
    let kept = scene.mount(&[]);
    let load = scene.load();
    kept.kill_servers(20);
    load.stop_without_failure(&scene.log());
    assert_eq!(kept.restarts(&scene), 20);
}

// A-KEEP-OLD-KERNEL
#[test]
fn without_resend_what_was_in_flight_fails_and_nothing_hangs() {
    if !has_fuse() {
        return;
    }
    let scene = Scene::new(false);
    let kept = scene.mount(&[("FERROFS_NO_RESEND", "1")]);
    let load = scene.load();
    let expected = load.expected.clone();
    kept.kill_servers(20);
    // Passes with a failure have another sum; what matters is that all programs end.
    let output = load.stop();
    fs::remove_file(scene.dir.join("stop")).unwrap();
    // Without deaths a pass is right.
    let load = scene.load();
    let script = r#"cat "$POINT"/file* | cksum"#;
    let read = scene.shell(script).wait_with_output().unwrap();
    assert_eq!(String::from_utf8_lossy(&read.stdout), expected, "{output:?}");
    load.stop();
    assert!(scene.log().contains("replied EIO"), "{}", scene.log());
}

// A-KEEP-STEPS
#[test]
fn a_successor_that_dies_at_any_step_is_replaced() {
    if !has_fuse() || !has_resend() {
        return;
    }
    for point in ["start", "opened", "examine", "examined", "forgotten", "resent", "ready"] {
        // A server that is ready serves already. What it has in flight alone is banned if the next one crashes, too.
        let (servers, restarts) = if point == "ready" { ("2", 2) } else { ("2-3", 3) };
        let scene = Scene::new(false);
        let kept = scene.mount(&[("FERROFS_FAULT", &format!("{point}:{servers}"))]);
        let load = scene.load();
        let first = kept.server(None);
        kill_process(first, Signal::KILL).unwrap();
        let until = Instant::now() + LIMIT;
        while !scene.log().contains(&format!("(restart {restarts})")) {
            assert!(Instant::now() < until, "{point}: {}", scene.log());
        }
        load.stop_without_failure(&format!("{point}: {}", scene.log()));
        assert_eq!(kept.restarts(&scene), restarts, "{point}");
    }
}

/// In its sandbox root has no capability to open the file of another user, and permissions may change while it is mounted.
#[test]
fn servers_need_no_permission_to_open_the_image() {
    if !has_fuse() || !has_resend() {
        return;
    }
    let set_mode = |scene: &Scene, mode| {
        fs::set_permissions(&scene.image, fs::Permissions::from_mode(mode)).unwrap();
    };
    for is_ordinary in [false, true] {
        let can_run = if is_ordinary { has_ordinary_mounts() } else { is_root() };
        if !can_run {
            continue;
        }
        let scene = Scene::new(is_ordinary);
        if !is_ordinary {
            std::os::unix::fs::chown(&scene.image, Some(NOBODY), Some(NOBODY)).unwrap();
            set_mode(&scene, 0o600);
        }
        let kept = scene.mount(&[]);
        set_mode(&scene, 0);
        let load = scene.load();
        kept.kill_servers(2);
        load.stop_without_failure(&scene.log());
        assert_eq!(kept.restarts(&scene), 2, "{}", scene.log());
    }
}

#[test]
fn a_child_that_dies_while_it_checks_the_image_leaves_no_mount() {
    let scene = Scene::new(false);
    let message = scene.command().env("FERROFS_FAULT", "check:1").ends_with(1).stderr;
    assert!(message.contains("checks the image ended by signal 9"), "{message}");
    assert!(!is_mounted(&scene.point));
}

#[test]
fn a_first_server_that_dies_before_it_is_ready_leaves_no_mount() {
    if !has_fuse() {
        return;
    }
    for point in ["start", "opened", "ready"] {
        let scene = Scene::new(false);
        let message =
            scene.command().env("FERROFS_FAULT", format!("{point}:1")).ends_with(1).stderr;
        assert!(message.contains("before the mount was ready"), "{point}: {message}");
        assert!(!is_mounted(&scene.point), "{point}");
    }
}

/// The command waited for ever: the second server did not report to it that the mount is ready.
#[test]
fn a_first_server_that_dies_before_it_has_told_the_command_is_replaced() {
    if !has_fuse() {
        return;
    }
    let scene = Scene::new(false);
    let mount = scene.command().env("FERROFS_FAULT", "reported:1-2");
    let kept = std::thread::scope(|scope| {
        let mounting = scope.spawn(|| mount.succeeds());
        let until = Instant::now() + LIMIT;
        while !mounting.is_finished() && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(1));
        }
        let has_ended = mounting.is_finished();
        let kept = Kept { holder: holder_of(&scene.point), point: scene.point.clone() };
        assert!(has_ended, "{}", scene.log());
        kept
    });
    assert_eq!(kept.restarts(&scene), 2);
}

#[test]
fn a_server_outlives_its_holder() {
    if !has_fuse() {
        return;
    }
    for is_ordinary in [false, true] {
        if is_ordinary && !has_ordinary_mounts() {
            continue;
        }
        let scene = Scene::new(is_ordinary);
        let kept = scene.mount(&[]);
        let server = kept.server(None);
        kill_process(kept.holder, Signal::KILL).unwrap();
        let script = r#"cat "$POINT"/file* | cksum"#;
        let read = scene.shell(script).wait_with_output().unwrap();
        let expected = r#"cat "${1%/*}"/tree/file* | cksum"#;
        let expected = scene.shell(expected).wait_with_output().unwrap();
        assert_eq!(read.stdout, expected.stdout);
        kill_process(server, Signal::KILL).unwrap();
    }
}

/// The server inherits what the holder has, which a sandbox closes.
#[test]
fn without_a_sandbox_the_end_of_a_holder_is_noticed() {
    if !has_fuse() {
        return;
    }
    let scene = Scene::new(false);
    scene.command().arg("--no-sandbox").succeeds();
    let kept = Kept { holder: holder_of(&scene.point), point: scene.point.clone() };
    let server = kept.server(None);
    kill_process(kept.holder, Signal::KILL).unwrap();
    let message = ferrofs().args(["mount", "--reattach"]).arg(&scene.point).ends_with(1).stderr;
    kill_process(server, Signal::KILL).unwrap();
    assert!(message.contains("no process holds the mount"), "{message}");
}

/// A process that can gain no privileges unmounts through another one, also if that leaves the mount of a killed one.
#[test]
fn a_mount_of_a_user_without_auto_unmount_ends_by_a_signal_and_stays_after_a_kill() {
    if !has_fuse() || !has_ordinary_mounts() {
        return;
    }
    for (signal, stays) in [(Signal::TERM, false), (Signal::KILL, true)] {
        let scene = Scene::new(true);
        scene.dir.ordinary_ferrofs().arg("--version").succeeds();
        let mut command = Command::new(scene.dir.join("ferrofs"));
        command.args(["mount", "--foreground", "-o", "noauto_unmount"]);
        command.arg(&scene.image).arg(&scene.point).current_dir("/").uid(NOBODY).gid(NOBODY);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        let mut mounted = command.spawn().unwrap();
        let mut message = String::new();
        let mut messages = BufReader::new(mounted.stderr.take().unwrap());
        while !message.contains("mounted on") {
            assert!(messages.read_line(&mut message).unwrap() > 0, "{message}");
        }
        kill_process(Pid::from_child(&mounted), signal).unwrap();
        messages.read_to_string(&mut message).unwrap();
        let status = mounted.wait().unwrap();
        std::thread::sleep(Duration::from_millis(500));
        let is_left = is_mounted(&scene.point);
        Command::new("umount").arg("-l").arg(&scene.point).stderr(Stdio::null()).status().ok();
        assert_eq!((is_left, status.success()), (stays, !stays), "{message}");
    }
}

// A-KEEP-CRASH
#[test]
fn a_file_that_crashes_servers_gives_eio_and_the_log_names_it() {
    if !has_fuse() || !has_resend() {
        return;
    }
    let scene = Scene::new(false);
    let nid = {
        let kept = scene.mount(&[]);
        let nid = fs::metadata(scene.point.join("file3")).unwrap().ino();
        drop(kept);
        nid
    };
    let kept = scene.mount(&[("FERROFS_CRASH_NID", &nid.to_string())]);
    let error = fs::read(scene.point.join("file3")).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(5), "{}", scene.log());
    // Every further read of it fails at once.
    let restarts = kept.restarts(&scene);
    assert!((2..=4).contains(&restarts), "{restarts} {}", scene.log());
    fs::read(scene.point.join("file3")).unwrap_err();
    for number in (0..FILES).filter(|number| *number != 3) {
        let name = format!("file{number}");
        let expected = fs::read(scene.dir.join("tree").join(&name)).unwrap();
        assert!(fs::read(scene.point.join(&name)).unwrap() == expected, "{name}");
    }
    assert_eq!(kept.restarts(&scene), restarts);
    assert!(scene.log().contains("/file3"), "{}", scene.log());
}

/// The scheduling policies of the listeners of a process, by their names in `/proc`. A thread that a listener has just
/// started has its name, too, until it sets its own: then this looks again.
fn policies_of_listeners(process: Pid) -> Vec<(String, String)> {
    let until = Instant::now() + LIMIT;
    loop {
        let tasks = fs::read_dir(format!("/proc/{}/task", process.as_raw_nonzero())).unwrap();
        let mut found: Vec<(String, String)> = tasks
            .flatten()
            .filter_map(|task| fs::read_to_string(task.path().join("stat")).ok())
            .map(|line| {
                let (name, fields) = line.rsplit_once(')').unwrap();
                let name = name.rsplit_once('(').unwrap().1;
                // Field 41 of the line, the third one is the first here.
                (name.to_owned(), fields.split_whitespace().nth(38).unwrap().to_owned())
            })
            .filter(|(name, _)| name.starts_with("fuse-") && name != "fuse-watchdog")
            .collect();
        found.sort();
        if found.windows(2).all(|two| two[0].0 != two[1].0) {
            return found;
        }
        assert!(Instant::now() < until, "two listeners of one name: {found:?}");
    }
}

#[test]
fn servers_of_a_holder_have_the_priority_of_others() {
    if !has_fuse() {
        return;
    }
    let scene = Scene::new(false);
    ferrofs().arg("mount").arg(&scene.image).arg(&scene.point).succeeds();
    let other = processes().into_iter().find(|pid| {
        let number = pid.as_raw_nonzero().get();
        let words = fs::read(format!("/proc/{number}/cmdline")).unwrap_or_default();
        let point = scene.point.as_os_str().as_encoded_bytes();
        words.windows(point.len()).any(|part| part == point)
            && !policies_of_listeners(*pid).is_empty()
    });
    let expected = policies_of_listeners(other.expect("a server"));
    Command::new("umount").arg(&scene.point).status().unwrap();
    while is_mounted(&scene.point) {
        Command::new("fusermount3").arg("-u").arg(&scene.point).status().ok();
    }
    let kept = scene.mount(&[]);
    let first = kept.server(None);
    fs::read(scene.point.join("file1")).unwrap();
    assert_eq!(policies_of_listeners(first), expected);
    kill_process(first, Signal::KILL).unwrap();
    let second = kept.server(Some(first));
    fs::read(scene.point.join("file2")).unwrap();
    assert_eq!(policies_of_listeners(second), expected);
}

/// The time that a process has been on CPUs, in ticks of 10 ms; `None` once it is gone.
fn cpu_ticks(process: Pid) -> Option<u64> {
    let line = fs::read_to_string(format!("/proc/{}/stat", process.as_raw_nonzero())).ok()?;
    let fields = line.rsplit(')').next()?.split_whitespace();
    // Fields 14 and 15 of the line, the third one is the first here.
    fields.skip(11).take(2).map(|field| field.parse::<u64>().ok()).sum()
}

// At a real-time priority, a loop that does not sleep keeps the last thread of the server off the CPU of both, in the worst
// case for ever.
#[test]
fn a_holder_sleeps_until_its_server_has_ended() {
    let cpus = CpuSet::of_process();
    let Some(cpu) = cpus.iter().next() else { return };
    if !has_fuse() || cpus.len() < 2 {
        return;
    }
    let mut rounds_without_sleep = 0;
    for _ in 0..10 {
        let scene = Scene::new(false);
        // Processes inherit it.
        CpuSet::from_iter([cpu]).bind_current_thread().unwrap();
        let kept = scene.mount(&[]);
        fs::read(scene.point.join("file1")).unwrap();
        cpus.bind_current_thread().unwrap();
        let holder = kept.holder;
        let before = cpu_ticks(holder).unwrap();
        let mut used = 0;
        drop(kept);
        while !has_ended(holder) {
            used = cpu_ticks(holder).map_or(used, |now| now - before);
            if used > 300 {
                kill_process(holder, Signal::KILL).ok();
                panic!("the holder has used {} ms", 10 * used);
            }
        }
        rounds_without_sleep += u32::from(used > 10);
    }
    // The kernel itself waits for a second now and then, without sleep, where another test has read /proc of that server.
    assert!(rounds_without_sleep < 4, "{rounds_without_sleep} of 10");
}

#[test]
fn a_signal_to_holder_or_server_unmounts() {
    if !has_fuse() {
        return;
    }
    for to_holder in [true, false] {
        let scene = Scene::new(false);
        let kept = scene.mount(&[]);
        let process = if to_holder { kept.holder } else { kept.server(None) };
        kill_process(process, Signal::TERM).unwrap();
        wait_for_end_of(kept.holder, || scene.log());
        assert!(!is_mounted(&scene.point));
    }
}

#[test]
fn a_holder_that_cannot_start_a_server_ends_with_its_mount() {
    if !has_fuse() {
        return;
    }
    for (is_ordinary, is_signal) in [(false, true), (false, false), (true, true)] {
        if is_ordinary && !has_ordinary_mounts() {
            continue;
        }
        let scene = Scene::new(is_ordinary);
        let kept = scene.mount(&[]);
        leave_without_server(&scene, &kept);
        match is_signal {
            true => kill_process(kept.holder, Signal::TERM).unwrap(),
            // The program of that name asks for attributes, which nobody answers.
            false => unmount(&scene.point, UnmountFlags::DETACH).unwrap(),
        }
        wait_for_end_of(kept.holder, || format!("{is_signal}: {}", scene.log()));
        assert!(!is_mounted(&scene.point));
    }
}

#[test]
fn the_option_of_a_mount_table_keeps_as_well_and_what_cannot_be_kept_is_refused() {
    let scene = Scene::new(false);
    let mount = || ferrofs().arg("mount").arg(&scene.image).arg(&scene.point);
    let url = ferrofs().args(["mount", "--keep", "http://127.0.0.1:1/image"]).arg(&scene.point);
    assert!(url.ends_with(2).stderr.contains("cannot be kept"));
    if may_mount() {
        let message = mount().args(["--keep", "--user", "0:0"]).ends_with(2).stderr;
        assert!(message.contains("--keep cannot be used with --user"), "{message}");
    }
    let broken = scene.dir.write("broken", &vec![0; 8192]);
    let message =
        ferrofs().args(["mount", "--keep"]).arg(&broken).arg(&scene.point).ends_with(1).stderr;
    assert!(message.contains("/broken: ") && !message.contains("/proc/self"), "{message}");
    if !has_fuse() {
        return;
    }
    mount().args(["-o", "keep"]).succeeds();
    drop(Kept { holder: holder_of(&scene.point), point: scene.point.clone() });
}

//! A kept mount as a service (docs/survival.md, protocol F): a service manager, which does what systemd does, keeps its
//! descriptors and starts it again after all of its processes were killed. The scene and the load are those of `keep`.
#![allow(
    unsafe_code,
    reason = "descriptors are placed between fork and exec, as a service manager does"
)]

use std::fs;
use std::io::IoSliceMut;
use std::mem::{ManuallyDrop, MaybeUninit};
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixDatagram;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};
use rustix::process::{Pid, Signal, kill_process};

use crate::keep::{
    Kept, LIMIT, Scene, children_of, has_ordinary_mounts, has_resend, is_mounted, status_field,
};
use crate::mounted::has_fuse;

/// User and group "nobody".
const NOBODY: u32 = 65_534;
/// Descriptors of the manager lie above those that it passes on.
const OWN: i32 = 200;

/// A service manager with one service.
struct Manager<'a> {
    scene: &'a Scene,
    socket: UnixDatagram,
    path: PathBuf,
    kept: Vec<(String, OwnedFd)>,
    main: Option<Child>,
    capacity: &'a str,
}

impl<'a> Manager<'a> {
    fn new(scene: &'a Scene) -> Self {
        let path = scene.dir.join("notify");
        let socket = UnixDatagram::bind(&path).unwrap();
        socket.set_read_timeout(Some(Duration::from_millis(50))).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o666)).unwrap();
        // The command line of the scene makes the log, which belongs to the user of the service.
        drop(scene.command());
        Self { scene, socket, path, kept: Vec::new(), main: None, capacity: "64" }
    }

    /// Starts the service, with what it has given away.
    fn spawn(&mut self, options: &[&str], settings: &[(&str, &str)]) {
        let program = match self.scene.is_ordinary {
            true => {
                self.scene.dir.ordinary_ferrofs().arg("--version").succeeds();
                self.scene.dir.join("ferrofs")
            }
            false => PathBuf::from(env!("CARGO_BIN_EXE_ferrofs")),
        };
        let mut command = Command::new("sh");
        command.args(["-c", r#"LISTEN_PID=$$ exec "$@""#, "sh"]).arg(program);
        command.args(["mount", "--foreground", "--log"]).arg(self.scene.dir.join("log"));
        command.args(options).arg(&self.scene.image).arg(&self.scene.point);
        command.env("NOTIFY_SOCKET", &self.path).env("FDSTORE", self.capacity);
        command.envs(settings.iter().copied()).current_dir("/");
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        if self.scene.is_ordinary {
            command.uid(NOBODY).gid(NOBODY);
        }
        if !self.kept.is_empty() {
            // systemd passes the last one first.
            let names: Vec<&str> = self.kept.iter().rev().map(|(name, _)| name.as_str()).collect();
            command.env("LISTEN_FDS", names.len().to_string());
            command.env("LISTEN_FDNAMES", names.join(":"));
        }
        let passed: Vec<i32> =
            self.kept.iter().rev().map(|(_, descriptor)| descriptor.as_raw_fd()).collect();
        // SAFETY: `place` only makes system calls.
        unsafe { command.pre_exec(move || place(&passed)) };
        self.main = Some(command.spawn().unwrap());
    }

    /// The next message, if there is one.
    fn receive(&mut self) -> Option<String> {
        let mut bytes = [0; 512];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(8))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let flags = RecvFlags::CMSG_CLOEXEC;
        let received =
            recvmsg(&self.socket, &mut [IoSliceMut::new(&mut bytes)], &mut control, flags).ok()?;
        let text = String::from_utf8(bytes[..received.bytes].to_vec()).unwrap();
        let field = |name: &str| {
            text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix('=')).unwrap_or("")
        };
        let name = field("FDNAME").to_owned();
        for message in control.drain() {
            let RecvAncillaryMessage::ScmRights(descriptors) = message else { continue };
            for descriptor in descriptors.filter(|_| field("FDSTORE") == "1") {
                let own = rustix::io::fcntl_dupfd_cloexec(descriptor, OWN).unwrap();
                self.kept.push((name.clone(), own));
            }
        }
        if field("FDSTOREREMOVE") == "1" {
            self.kept.retain(|(kept, _)| *kept != name);
        }
        Some(text)
    }

    /// Starts the service and waits until it is ready.
    fn start(&mut self, options: &[&str], settings: &[(&str, &str)]) -> ManuallyDrop<Kept> {
        self.spawn(options, settings);
        let until = Instant::now() + LIMIT;
        while self.receive().as_deref() != Some("READY=1") {
            let ended = self.main.as_mut().unwrap().try_wait().unwrap();
            assert!(ended.is_none(), "{ended:?} {}", self.scene.log());
            assert!(Instant::now() < until, "not ready: {}", self.scene.log());
        }
        self.held()
    }

    /// The mount, which the manager unmounts.
    fn held(&self) -> ManuallyDrop<Kept> {
        ManuallyDrop::new(Kept { holder: self.main_process(), point: self.scene.point.clone() })
    }

    fn main_process(&self) -> Pid {
        Pid::from_child(self.main.as_ref().unwrap())
    }

    /// Waits for the end of the main process, and takes its messages.
    fn wait(&mut self) -> (ExitStatus, String) {
        let mut main = self.main.take().unwrap();
        let until = Instant::now() + LIMIT;
        let status = loop {
            self.receive();
            if let Some(status) = main.try_wait().unwrap() {
                break status;
            }
            assert!(Instant::now() < until, "the service does not end: {}", self.scene.log());
        };
        while self.receive().is_some() {}
        let mut message = String::new();
        std::io::Read::read_to_string(&mut main.stderr.take().unwrap(), &mut message).ok();
        (status, message)
    }

    /// Kills the main process, and then all others, as `KillMode=mixed` does.
    fn kill(&mut self) {
        let main = self.main_process();
        let others = children_of(main);
        // It may have ended, which is no reason to panic: this runs while a failed test unwinds, too.
        kill_process(main, Signal::KILL).ok();
        if let Some(mut main) = self.main.take() {
            main.wait().ok();
        }
        for process in others {
            kill_process(process, Signal::KILL).ok();
        }
    }

    fn stop(&mut self) {
        kill_process(self.main_process(), Signal::TERM).unwrap();
        let (status, message) = self.wait();
        assert!(status.success(), "{status} {message} {}", self.scene.log());
        assert!(!is_mounted(&self.scene.point));
        assert!(self.kept.is_empty(), "{:?}", self.kept);
    }
}

impl Drop for Manager<'_> {
    fn drop(&mut self) {
        if self.main.is_some() {
            self.kill();
        }
        self.kept.clear();
        while is_mounted(&self.scene.point) {
            Command::new("umount").arg("-l").arg(&self.scene.point).status().ok();
        }
    }
}

/// Gives the descriptors the numbers from 3 on, open after exec.
fn place(descriptors: &[i32]) -> std::io::Result<()> {
    for (number, descriptor) in (3..).zip(descriptors) {
        // SAFETY: the manager has it open; what has had the number is not used after exec, and `target` closes nothing.
        unsafe {
            let mut target = ManuallyDrop::new(OwnedFd::from_raw_fd(number));
            rustix::io::dup2(BorrowedFd::borrow_raw(*descriptor), &mut target)?;
        }
    }
    Ok(())
}

// A-KEEP-SERVICE
#[test]
fn a_service_whose_processes_are_all_killed_goes_on_and_no_call_fails() {
    if !has_fuse() || !has_resend() {
        return;
    }
    for (is_ordinary, kills) in [(false, 50), (true, 20)] {
        if is_ordinary && !has_ordinary_mounts() {
            continue;
        }
        let scene = Scene::new(is_ordinary);
        let mut manager = Manager::new(&scene);
        manager.start(&["--keep"], &[]);
        let load = scene.load();
        for number in 0..kills {
            std::thread::sleep(Duration::from_millis(number * 37 % 41));
            manager.kill();
            manager.start(&["--keep"], &[]);
        }
        load.stop_without_failure(&scene.log());
        let kept = manager.held();
        assert_eq!(kept.restarts(&scene), kills);
        // Servers are replaced by their holder as elsewhere.
        kept.kill_servers(2);
        let until = Instant::now() + LIMIT;
        while kept.restarts(&scene) < kills + 2 {
            assert!(Instant::now() < until, "{}", scene.log());
        }
        manager.stop();
    }
}

#[test]
fn a_service_that_dies_while_it_starts_is_started_again() {
    if !has_fuse() || !has_resend() {
        return;
    }
    // The first start with all descriptors kept, and a later one at each of its steps.
    let points = [("kept:1", true, false), ("kept:2", false, false), ("renewing:1", false, true)];
    for (point, is_first, is_ordinary) in points {
        if is_ordinary && !has_ordinary_mounts() {
            continue;
        }
        let scene = Scene::new(is_ordinary);
        let mut manager = Manager::new(&scene);
        if !is_first {
            manager.start(&["--keep"], &[]);
        }
        let load = (!is_first).then(|| scene.load());
        if !is_first {
            manager.kill();
        }
        manager.spawn(&["--keep"], &[("FERROFS_FAULT", point)]);
        assert!(!manager.wait().0.success(), "{point}");
        assert!(is_mounted(&scene.point), "{point}");
        manager.start(&["--keep"], &[]);
        let load = load.unwrap_or_else(|| scene.load());
        // All descriptors are in their places again.
        manager.kill();
        manager.start(&["--keep"], &[]);
        load.stop_without_failure(&scene.log());
        manager.stop();
    }
}

/// Nobody has been told that there is a mount. What is left is named, and can be removed.
#[test]
fn a_service_that_dies_before_its_descriptors_are_kept_leaves_a_dead_mount() {
    if !has_fuse() {
        return;
    }
    // Without a descriptor, with the record alone, and with a device that keeps the connection.
    for (point, kept) in [("mounted:1", 0), ("storing:1", 1), ("storing:3", 3)] {
        let scene = Scene::new(false);
        let mut manager = Manager::new(&scene);
        manager.spawn(&["--keep"], &[("FERROFS_FAULT", point)]);
        assert!(!manager.wait().0.success(), "{point}");
        assert_eq!(manager.kept.len(), kept, "{point}");
        assert!(is_mounted(&scene.point), "{point}");
        if kept > 0 {
            manager.spawn(&["--keep"], &[]);
            let (status, message) = manager.wait();
            assert_eq!(status.code(), Some(1), "{point}: {message}");
            assert!(message.contains("start the service again"), "{point}: {message}");
            assert!(manager.kept.is_empty(), "{point}");
        }
        let error = fs::read(scene.point.join("file1")).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(107), "{point}: {error}");
        manager.spawn(&["--keep"], &[]);
        let (status, message) = manager.wait();
        assert_eq!(status.code(), Some(1), "{point}: {message}");
        assert!(message.contains("umount"), "{point}: {message}");
        assert!(Command::new("umount").arg(&scene.point).status().unwrap().success());
        manager.start(&["--keep"], &[]);
        fs::read(scene.point.join("file1")).unwrap();
        manager.stop();
    }
}

/// An upgrade or a downgrade. The mount is left to the version that understands it.
#[test]
fn a_service_of_another_version_leaves_the_kept_mount_as_it_is() {
    if !has_fuse() || !has_resend() {
        return;
    }
    let other_version = [("FERROFS_OTHER_VERSION", "1")];
    let scene = Scene::new(false);
    let mut manager = Manager::new(&scene);
    manager.start(&["--keep"], &other_version);
    let load = scene.load();
    manager.kill();
    let names = |manager: &Manager<'_>| -> Vec<String> {
        manager.kept.iter().map(|(name, _)| name.clone()).collect()
    };
    let kept = names(&manager);
    assert!(!kept.is_empty());
    manager.spawn(&["--keep"], &[]);
    let (status, message) = manager.wait();
    // The unit is not started again after this status.
    assert_eq!(status.code(), Some(2), "{message}");
    assert!(message.contains("format 18446744073709551615"), "{message}");
    assert_eq!(names(&manager), kept, "{message}");
    assert!(is_mounted(&scene.point));
    manager.start(&["--keep"], &other_version);
    fs::read(scene.point.join("file1")).unwrap();
    load.stop_without_failure(&scene.log());
    manager.stop();
}

/// It is unmounted for everybody but the program that uses it. The manager must not have its descriptors when it kills the
/// service after its timeout: the next start would serve a mount that is nowhere.
#[test]
fn a_service_that_is_stopped_while_its_mount_is_in_use_keeps_no_descriptor() {
    if !has_fuse() {
        return;
    }
    let scene = Scene::new(false);
    let mut manager = Manager::new(&scene);
    manager.start(&["--keep"], &[]);
    let used = fs::File::open(&scene.point).unwrap();
    kill_process(manager.main_process(), Signal::TERM).unwrap();
    let until = Instant::now() + LIMIT;
    while !manager.kept.is_empty() {
        manager.receive();
        let ended = manager.main.as_mut().unwrap().try_wait().unwrap();
        assert!(ended.is_none(), "{ended:?} {}", scene.log());
        assert!(Instant::now() < until, "{:?} {}", manager.kept, scene.log());
    }
    assert!(!is_mounted(&scene.point));
    drop(used);
    let (status, message) = manager.wait();
    assert!(status.success(), "{status} {message} {}", scene.log());
}

/// A manager that leaves the server alone: the new one waits until that has ended.
#[test]
fn two_servers_of_a_service_never_read_at_a_time() {
    if !has_fuse() || !has_resend() {
        return;
    }
    for is_ordinary in [false, true] {
        if is_ordinary && !has_ordinary_mounts() {
            continue;
        }
        let scene = Scene::new(is_ordinary);
        let mut manager = Manager::new(&scene);
        let first = manager.start(&["--keep"], &[]);
        let until = Instant::now() + LIMIT;
        // Until it runs for the first time, it has the name of a server.
        while is_ordinary && !has_unmounter(&first) {
            assert!(Instant::now() < until, "{}", scene.log());
        }
        let server = first.server(None);
        let load = scene.load();
        kill_process(first.holder, Signal::KILL).unwrap();
        manager.main.take().unwrap().wait().unwrap();
        manager.spawn(&["--keep"], &[]);
        let until = Instant::now() + Duration::from_secs(1);
        while Instant::now() < until {
            assert_ne!(manager.receive().as_deref(), Some("READY=1"));
        }
        kill_process(server, Signal::KILL).unwrap();
        let until = Instant::now() + LIMIT;
        while manager.receive().as_deref() != Some("READY=1") {
            assert!(Instant::now() < until, "{}", scene.log());
        }
        // The process that unmounts for the former holder would do it now.
        assert!(stays_mounted(&scene), "{}", scene.log());
        load.stop_without_failure(&scene.log());
        manager.stop();
    }
}

/// Whether the process runs that unmounts by `fusermount3`.
fn has_unmounter(kept: &Kept) -> bool {
    children_of(kept.holder)
        .iter()
        .any(|child| status_field(*child, "Name").as_deref() == Some("ferrofs-unmount"))
}

/// Whether a mount is there, and still a second later.
fn stays_mounted(scene: &Scene) -> bool {
    let was_mounted = is_mounted(&scene.point);
    std::thread::sleep(Duration::from_secs(1));
    was_mounted && is_mounted(&scene.point)
}

/// Whoever repairs the cause starts it again, and no call fails.
#[test]
fn a_service_that_fails_to_start_leaves_the_mount_to_the_manager() {
    if !has_fuse() || !has_resend() {
        return;
    }
    for is_ordinary in [false, true] {
        if is_ordinary && !has_ordinary_mounts() {
            continue;
        }
        let scene = Scene::new(is_ordinary);
        let mut manager = Manager::new(&scene);
        manager.start(&["--keep"], &[]);
        let load = scene.load();
        manager.kill();
        let (log, aside) = (scene.dir.join("log"), scene.dir.join("aside"));
        fs::rename(&log, &aside).unwrap();
        fs::create_dir(&log).unwrap();
        let kept = manager.kept.len();
        manager.spawn(&["--keep"], &[]);
        let (status, message) = manager.wait();
        assert_eq!(status.code(), Some(1), "{message}");
        assert_eq!(manager.kept.len(), kept, "{message}");
        assert!(stays_mounted(&scene), "{message}");
        fs::remove_dir(&log).unwrap();
        fs::rename(&aside, &log).unwrap();
        manager.start(&["--keep"], &[]);
        load.stop_without_failure(&scene.log());
        manager.stop();
    }
}

#[test]
fn a_service_that_was_unmounted_between_two_processes_mounts_anew() {
    if !has_fuse() {
        return;
    }
    let scene = Scene::new(false);
    let mut manager = Manager::new(&scene);
    manager.start(&["--keep"], &[]);
    let kept = manager.kept.len();
    manager.kill();
    while is_mounted(&scene.point) {
        Command::new("umount").arg("-l").arg(&scene.point).status().unwrap();
    }
    manager.start(&["--keep"], &[]);
    assert_eq!(manager.kept.len(), kept);
    fs::read(scene.point.join("file1")).unwrap();
    manager.stop();
}

#[test]
fn a_service_without_keep_says_when_it_is_ready_and_one_without_room_is_refused() {
    if !has_fuse() {
        return;
    }
    let scene = Scene::new(false);
    let mut manager = Manager::new(&scene);
    manager.start(&[], &[]);
    assert!(manager.kept.is_empty());
    manager.stop();
    manager.capacity = "3";
    manager.spawn(&["--keep"], &[]);
    let (status, message) = manager.wait();
    assert_eq!(status.code(), Some(1), "{message}");
    assert!(message.contains("it keeps 3 descriptors") && message.contains("FDSTORE"), "{message}");
    assert!(!is_mounted(&scene.point));
    // A manager that keeps none: a mount as without a service.
    manager.capacity = "0";
    let kept = manager.start(&["--keep"], &[]);
    kept.kill_servers(1);
    fs::read(scene.point.join("file1")).unwrap();
    manager.stop();
}

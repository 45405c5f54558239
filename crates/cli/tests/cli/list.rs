//! `ferrofs list` and `ferrofs stats --all`, as a user who has no other mounts: an ordinary one.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::unix::fs::chown;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::keep::has_ordinary_mounts;
use crate::mounted::{has_fuse, has_mount_right};
use crate::support::{Dir, TestCommand, data, is_root, skip};

/// User and group "nobody", who has mounts of other tests, too.
const USER: u32 = 65_534;

struct Mounts {
    dir: Dir,
    points: Vec<PathBuf>,
}

impl Mounts {
    fn new() -> Option<Self> {
        (has_fuse() && has_ordinary_mounts()).then(|| Self { dir: Dir::new(), points: Vec::new() })
    }

    fn command(&self) -> TestCommand {
        self.dir.ordinary_ferrofs()
    }

    fn mount(&mut self, words: &[&str]) -> PathBuf {
        let point = fs::canonicalize(self.dir.path()).unwrap();
        let point = point.join(format!("mnt{}", self.points.len()));
        fs::create_dir(&point).unwrap();
        chown(&point, Some(USER), Some(USER)).unwrap();
        let image = self.dir.join("image");
        if !image.exists() {
            fs::copy(data("lz4.erofs"), &image).unwrap();
            chown(&image, Some(USER), Some(USER)).unwrap();
        }
        self.command().arg("mount").args(words).arg(image).arg(&point).succeeds();
        self.points.push(point.clone());
        point
    }

    fn list(&self) -> Vec<Value> {
        let text = self.command().args(["list", "--json"]).succeeds().text();
        let place = fs::canonicalize(self.dir.path()).unwrap();
        let is_ours = |mount: &Value| {
            mount["mount"].as_str().is_some_and(|name| Path::new(name).starts_with(&place))
        };
        let mounts = text.lines().map(|line| serde_json::from_str(line).unwrap());
        mounts.filter(is_ours).collect()
    }
}

impl Drop for Mounts {
    fn drop(&mut self) {
        for point in &self.points {
            Command::new("umount").arg("-l").arg(point).stderr(Stdio::null()).status().ok();
        }
    }
}

#[test]
fn mounts_of_the_user_are_listed_and_added_up() {
    let Some(mut mounts) = Mounts::new() else { return };
    assert_eq!(mounts.list(), [Value::Null; 0]);
    let points = [mounts.mount(&[]), mounts.mount(&["--keep"])];
    let listed = mounts.list();
    let of = |index: usize| {
        let name = points[index].to_str().unwrap();
        listed.iter().find(|mount| mount["mount"] == name).unwrap()
    };
    assert_eq!(listed.len(), 2);
    for (index, state) in ["served", "kept"].into_iter().enumerate() {
        let mount = of(index);
        assert_eq!((&mount["state"], &mount["restarts"]), (&state.into(), &0.into()), "{mount}");
        assert!(mount["image"].as_str().unwrap().ends_with("/image"), "{mount}");
        assert!(mount["resident_bytes"].as_u64() > Some(0), "{mount}");
        assert!(mount["age_s"].as_f64() > Some(0.0), "{mount}");
    }
    let text = mounts.command().arg("list").succeeds().text();
    assert!(text.starts_with("STATE ") && text.lines().count() >= 3, "{text}");
    assert!(text.contains(&format!("  {}: ", points[0].display())), "{text}");

    let sum = mounts.command().args(["stats", "--all", "--json"]).succeeds().json();
    assert!(
        sum["mounts"].as_u64() >= Some(2) && sum["memory"]["resident_bytes"].as_u64() > Some(0),
        "{sum}"
    );
    let text = mounts.command().args(["stats", "--all"]).succeeds().text();
    assert!(text.starts_with("mounts    ") && text.contains("\nmemory "), "{text}");
    let text = mounts.command().args(["stats", "--all", "--prometheus"]).succeeds().text();
    assert_eq!(text.matches("# TYPE ferrofs_info ").count(), 1);
    for point in &points {
        let sample = format!("ferrofs_restarts_total{{mount=\"{}\"}} 0\n", point.display());
        assert!(text.contains(&sample), "{text}");
    }
}

#[test]
fn the_age_of_a_kept_mount_outlives_its_servers() {
    let Some(mut mounts) = Mounts::new() else { return };
    mounts.mount(&["--keep"]);
    let before = mounts.list().remove(0);
    let server = i32::try_from(before["pid"].as_u64().unwrap()).unwrap();
    kill_process(Pid::from_raw(server).unwrap(), Signal::KILL).unwrap();
    let after = mounts.list().remove(0);
    assert_eq!(after["restarts"], 1, "{after}");
    assert!(after["age_s"].as_f64() > before["age_s"].as_f64(), "{before} {after}");
}

#[test]
fn a_mount_whose_process_is_stopped_delays_nobody() {
    let Some(mut mounts) = Mounts::new() else { return };
    mounts.mount(&[]);
    let pid = mounts.list().remove(0)["pid"].as_u64().unwrap();
    let process = Pid::from_raw(i32::try_from(pid).unwrap()).unwrap();
    kill_process(process, Signal::STOP).unwrap();
    // The signal takes effect a little later, and in one thread after the other. A request that a thread reads before keeps its
    // caller waiting whatever happens to the caller.
    let is_running = |thread: io::Result<fs::DirEntry>| {
        let status = fs::read_to_string(thread.unwrap().path().join("status")).unwrap();
        !status.contains("\nState:\tT")
    };
    while fs::read_dir(format!("/proc/{pid}/task")).unwrap().any(is_running) {}
    let listed = mounts.list();
    kill_process(process, Signal::CONT).unwrap();
    assert_eq!(listed[0]["state"], "no answer", "{listed:?}");
    assert!(listed[0]["pid"].is_null());
}

/// A FUSE server that answers the first request, INIT, and reads the next one. It ends when `ended` is sent, and returns
/// whether that was in time.
fn serve_nothing(mut device: File, ended: &Receiver<()>) -> bool {
    let mut request = vec![0; 64 << 10];
    assert!(device.read(&mut request).unwrap() >= 40);
    let mut reply = vec![0; 16 + 64];
    reply[0] = 80;
    reply[8..16].copy_from_slice(&request[8..16]);
    // The version of the protocol, and the longest write.
    (reply[16], reply[20], reply[36 + 1]) = (7, 31, 0x10);
    device.write_all(&reply).unwrap();
    // An error: it was unmounted before the command asked.
    let is_asked = device.read(&mut request).is_ok();
    is_asked && ended.recv_timeout(Duration::from_secs(30)).is_ok()
}

/// The kernel ends no process that waits for the answer to a request that was read.
#[test]
fn a_mount_that_never_answers_does_not_hold_the_command() {
    let Some(mut mounts) = Mounts::new() else { return };
    if !is_root() {
        return skip("it needs root for a mount without a server");
    }
    let point = fs::canonicalize(mounts.dir.path()).unwrap().join("mnt");
    fs::create_dir(&point).unwrap();
    let device = File::options().read(true).write(true).open("/dev/fuse").unwrap();
    let options = format!("fd=0,rootmode=40000,user_id={USER},group_id={USER}");
    let mut mount = Command::new("mount");
    mount.args(["-i", "-t", "fuse.ferrofs", "-o", &options, "/image"]).arg(&point);
    assert!(mount.stdin(device.try_clone().unwrap()).status().unwrap().success());
    // The kernel ends the mount when the last descriptor of the server is closed.
    drop(mount);
    mounts.points.push(point.clone());
    let (sender, ended) = channel();
    let serve = move || serve_nothing(device, &ended);
    let server = std::thread::Builder::new().spawn(serve).unwrap();
    let listed = mounts.list();
    sender.send(()).ok();
    Command::new("umount").arg("-l").arg(&point).status().unwrap();
    assert!(server.join().unwrap(), "the command waited for the mount");
    assert_eq!(listed.len(), 1, "{listed:?}");
    assert_eq!(listed[0]["state"], "no answer", "{listed:?}");
}

#[test]
fn a_mount_that_another_one_covers_is_listed() {
    let Some(mut mounts) = Mounts::new() else { return };
    if !has_mount_right() {
        return skip("it needs root for a mount on top");
    }
    let point = mounts.mount(&[]);
    let mut tmpfs = Command::new("mount");
    tmpfs.args(["-t", "tmpfs", "tmpfs"]).arg(&point);
    assert!(tmpfs.status().unwrap().success());
    let listed = mounts.list();
    let sum = mounts.command().args(["stats", "--all", "--json"]).succeeds().json();
    assert!(Command::new("umount").arg(&point).status().unwrap().success());
    assert_eq!(listed.len(), 1, "{listed:?}");
    assert_eq!(listed[0]["state"], "no answer", "{listed:?}");
    assert!(sum["mounts_without_statistics"].as_u64() >= Some(1), "{sum}");
    assert_eq!(mounts.list()[0]["state"], "served");
}

#[test]
fn a_mount_whose_process_was_killed_is_dead() {
    let Some(mut mounts) = Mounts::new() else { return };
    mounts.mount(&["-o", "noauto_unmount"]);
    let pid = mounts.list().remove(0)["pid"].as_u64().unwrap();
    let process = Pid::from_raw(i32::try_from(pid).unwrap()).unwrap();
    kill_process(process, Signal::KILL).unwrap();
    let listed = loop {
        let listed = mounts.list();
        if listed
            .first()
            .is_none_or(|mount| mount["state"] != "no answer" && mount["state"] != "served")
        {
            break listed;
        }
    };
    assert_eq!(listed[0]["state"], "dead", "{listed:?}");
}

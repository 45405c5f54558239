//! `ferrofs list` and `ferrofs stats --all`, as a user who has no other mounts: an ordinary one.

use std::os::unix::fs::chown;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::{fs, io};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::keep::has_ordinary_mounts;
use crate::mounted::has_fuse;
use crate::support::{Dir, TestCommand, data};

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

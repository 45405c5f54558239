//! `ferrofs stats`: its output for a mount in each format, and its errors for other directories.
#![allow(
    clippy::unwrap_used,
    clippy::print_stderr,
    reason = "a test fails if its environment is not as required, and prints what it skips"
)]

use std::ffi::CString;
use std::fs::{self, File};
use std::os::fd::AsRawFd;
use std::path::Path;

use ferrofs_image::Image;
use ferrofs_mount::{MountSettings, NegotiatedMount, ServedMount};
use rustix::io::Errno;
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};

use crate::support::{Dir, data, ferrofs, skip};

/// A mount of a test image that this process serves; gone when dropped.
struct Mounted {
    dir: Dir,
    served: Option<ServedMount>,
}

impl Mounted {
    /// `None` where it cannot be mounted; the test is reported as skipped.
    fn with(user: u32, more: &str) -> Option<Self> {
        let Ok(device) = File::options().read(true).write(true).open("/dev/fuse") else {
            skip("needs FUSE: /dev/fuse cannot be opened");
            return None;
        };
        let dir = Dir::new();
        let fd = device.as_raw_fd();
        let options = format!("fd={fd},rootmode=40000,user_id={user},group_id=0{more}");
        let options = CString::new(options).unwrap();
        let (flags, options) = (MountFlags::RDONLY, Some(options.as_c_str()));
        match mount("lz4.erofs", dir.path(), "fuse.ferrofs", flags, options) {
            Err(Errno::PERM | Errno::NODEV | Errno::ACCESS) => {
                skip("needs the right to mount");
                return None;
            }
            other => other.unwrap(),
        }
        let image = Image::open(data("lz4.erofs")).unwrap();
        let ready = NegotiatedMount::new(device.into(), &MountSettings::default()).unwrap();
        let served = ready.serve(image, |_| {}).unwrap();
        Some(Self { dir, served: Some(served) })
    }

    fn path(&self) -> &Path {
        self.dir.path()
    }

    /// Reads every file.
    fn read_all(&self) {
        let mut directories = vec![self.path().to_owned()];
        while let Some(directory) = directories.pop() {
            for entry in fs::read_dir(directory).unwrap().flatten() {
                let kind = entry.file_type().unwrap();
                if kind.is_dir() {
                    directories.push(entry.path());
                } else if kind.is_file() {
                    fs::read(entry.path()).unwrap();
                }
            }
        }
    }

    /// Unmounts; what is left is an ordinary directory.
    fn end(mut self) -> Dir {
        unmount(self.path(), UnmountFlags::DETACH).unwrap();
        if let Some(served) = self.served.take() {
            served.join();
        }
        std::mem::replace(&mut self.dir, Dir::new())
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        unmount(self.path(), UnmountFlags::DETACH).ok();
        if let Some(served) = self.served.take() {
            served.join();
        }
    }
}

#[test]
fn stats_of_a_mount_come_as_text() {
    let Some(mounted) = Mounted::with(0, ",allow_other") else { return };
    mounted.read_all();
    let text = ferrofs().arg("stats").arg(mounted.path()).succeeds().text();
    let first = format!(
        "mount     {}: lz4.erofs; ferrofs {}",
        mounted.path().display(),
        env!("CARGO_PKG_VERSION")
    );
    assert!(text.starts_with(&first), "{text}");
    for key in [
        "read ",
        "decoding  p50 ",
        "memory ",
        "granted ",
        "cpu ",
        "workers ",
        "log       none",
        "top files inode ",
    ] {
        assert!(text.contains(key), "{key} is not in\n{text}");
    }
}

#[test]
fn stats_of_a_mount_come_as_json() {
    let Some(mounted) = Mounted::with(0, ",allow_other") else { return };
    mounted.read_all();
    let json = ferrofs().args(["stats", "--json"]).arg(mounted.path()).succeeds().json();
    assert_eq!(json["image"], "lz4.erofs");
    assert_eq!(json["pid"], std::process::id());
    let read = &json["operations"]["read"];
    assert!(read["count"].as_u64() > Some(0) && read["p99_us"].as_f64() > Some(0.0), "{json}");
    assert_eq!(read["errors"], 0);
    assert!(json["clusters"]["decode"]["p50_us"].as_f64() > Some(0.0), "{json}");
    assert!(json["memory"]["resident_bytes"].as_u64() > Some(0), "{json}");
    assert_eq!(json["kernel"]["listeners"], 2);
    assert_eq!(json["kernel"]["time_limit_ms"], 120_000);
    assert!(
        json["log_events"]["last"].is_null() && json["top_files"][0]["bytes"].as_u64() > Some(0)
    );
}

#[test]
fn stats_of_a_mount_come_for_prometheus() {
    let Some(mounted) = Mounted::with(0, ",allow_other") else { return };
    let text = ferrofs().args(["stats", "--prometheus"]).arg(mounted.path()).succeeds().text();
    let label = format!("{{mount=\"{}\"", mounted.path().display());
    let samples: Vec<_> = text.lines().filter(|line| !line.starts_with('#')).collect();
    assert!(samples.len() > 100 && samples.iter().all(|line| line.contains(&label)), "{text}");
}

#[test]
fn the_mount_of_another_user_is_refused_with_a_way_out() {
    let Some(mounted) = Mounted::with(4242, "") else { return };
    let ended = ferrofs().arg("stats").arg(mounted.path()).ends_with(1);
    assert!(ended.stderr.contains("only user 4242 has access to the mount"), "{}", ended.stderr);
    assert!(ended.stderr.contains("sudo -u '#4242' ferrofs stats"), "{}", ended.stderr);
}

#[test]
fn other_directories_are_reported_as_no_mount() {
    let ended = ferrofs().args(["stats", "/proc"]).ends_with(1);
    assert_eq!(ended.stderr, "ferrofs: /proc: not a mount of ferrofs but of proc\n");
    let dir = Dir::new();
    let ended = ferrofs().arg("stats").arg(dir.join("none")).ends_with(1);
    assert!(ended.stderr.contains("No such file or directory"), "{}", ended.stderr);
    let ended = ferrofs().arg("stats").arg(dir.write("file", b"")).ends_with(1);
    assert!(ended.stderr.contains("Not a directory"), "{}", ended.stderr);
    if let Some(mounted) = Mounted::with(0, "") {
        let ended = ferrofs().arg("stats").arg(mounted.end().path()).ends_with(1);
        assert!(ended.stderr.contains("not a mount of ferrofs"), "{}", ended.stderr);
    }
}

#[test]
fn stats_has_one_directory_and_one_form() {
    ferrofs().arg("stats").ends_with(2);
    ferrofs().args(["stats", "--json", "--prometheus", "/proc"]).ends_with(2);
    let help = ferrofs().args(["stats", "--help"]).succeeds().text();
    assert!(help.contains("Examples:") && help.contains("--prometheus"), "{help}");
}

//! A mount that is asked for its numbers while it runs. Skipped, by name, where this user may not mount.
#![allow(
    clippy::unwrap_used,
    clippy::print_stderr,
    reason = "a test ends where its world is not as it must be, and says what it skips"
)]

use std::collections::HashSet;
use std::fs::{self, File};
use std::os::fd::AsRawFd;
use std::os::unix::fs::DirEntryExt;
use std::path::{Path, PathBuf};

use ferrofs_mount::image::Image;
use ferrofs_mount::stats::{AskError, Kind, MountStats, OperationRow, Quantiles, ask, known};
use ferrofs_mount::{Ready, Served, Settings};
use rustix::io::Errno;
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};
use tempfile::TempDir;

/// A mount of a test image, gone when dropped.
struct Mounted {
    dir: TempDir,
    served: Option<Served>,
}

impl Mounted {
    fn of(image: &str) -> Option<Self> {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/data").join(image);
        Self::of_file(&path)
    }

    fn of_file(image: &Path) -> Option<Self> {
        let device = File::options().read(true).write(true).open("/dev/fuse");
        let Ok(device) = device else {
            eprintln!("skipped: /dev/fuse cannot be opened here");
            return None;
        };
        let dir = TempDir::new().unwrap();
        let options =
            format!("fd={},rootmode=40000,user_id=0,group_id=0,allow_other", device.as_raw_fd());
        let options = std::ffi::CString::new(options).unwrap();
        let flags = MountFlags::RDONLY | MountFlags::NODEV | MountFlags::NOSUID;
        match mount("image of a test", dir.path(), "fuse.ferrofs", flags, Some(options.as_c_str()))
        {
            Err(Errno::PERM | Errno::NODEV | Errno::ACCESS) => {
                eprintln!("skipped: this user may not mount");
                return None;
            }
            other => other.unwrap(),
        }
        let ready = Ready::new(device.into(), &Settings::default()).unwrap();
        let served = ready.serve(Image::open(image).unwrap(), |_| {}).unwrap();
        Some(Self { dir, served: Some(served) })
    }

    fn path(&self) -> &Path {
        self.dir.path()
    }

    /// The files below, each inode once, and a directory below the root.
    fn walked(&self) -> (Vec<PathBuf>, PathBuf) {
        let (mut files, mut below) = (Vec::new(), self.path().to_owned());
        let mut seen = HashSet::new();
        let mut directories = vec![self.path().to_owned()];
        while let Some(directory) = directories.pop() {
            for entry in fs::read_dir(&directory).unwrap() {
                let entry = entry.unwrap();
                let kind = entry.file_type().unwrap();
                if kind.is_dir() {
                    below = entry.path();
                    directories.push(entry.path());
                } else if kind.is_file() && seen.insert(entry.ino()) {
                    files.push(entry.path());
                }
            }
        }
        (files, below)
    }

    /// Reads every file; answers how many bytes that were.
    fn read_all(&self) -> u64 {
        self.walked().0.iter().map(|file| fs::read(file).unwrap().len() as u64).sum()
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

/// The numbers once they are as they must become: a listener counts a request when whoever waited for it has its
/// answer already.
fn numbers_when(mounted: &Mounted, are_there: impl Fn(&MountStats) -> bool) -> MountStats {
    let mut asked = (0..1000).map(|_| ask(mounted.path()).unwrap());
    asked.find(are_there).expect("the numbers come within 1000 questions")
}

#[test]
fn a_mount_tells_what_it_did() {
    let Some(mounted) = Mounted::of("lz4.erofs") else { return };
    let before = ask(mounted.path()).unwrap().summary;
    assert_eq!(before.operation(Kind::Read), OperationRow::default());
    let bytes = mounted.read_all();
    // The kernel reads files to their end, and asks for no byte twice; some it was given unasked.
    let given = |now: &MountStats| now.summary.session.stored_bytes;
    let asked = |now: &MountStats| now.summary.operation(Kind::Read).bytes;
    let after = numbers_when(&mounted, |now| asked(now) + given(now) >= bytes);
    let read = after.summary.operation(Kind::Read);
    assert!(read.bytes > 0 && read.bytes <= bytes && read.errors == 0, "{read:?} of {bytes}");
    let Quantiles { count, sum_ns, p50_ns, p99_ns, p999_ns, max_ns } = read.time;
    assert!(count > 0 && p50_ns > 0, "{read:?}");
    assert!(p50_ns <= p99_ns && p99_ns <= p999_ns && p999_ns <= max_ns && max_ns <= sum_ns);
    let listings = [Kind::ReadDir, Kind::ReadDirPlus].map(|kind| after.summary.operation(kind));
    assert!(listings.iter().any(|listing| listing.time.count > 0 && listing.bytes > 0));
    let clusters = after.summary.clusters;
    assert!(clusters.decoded > 0 && clusters.time.p50_ns > 0 && clusters.bytes_served > 0);
    assert!(after.summary.top_files[0].bytes > 0);
    numbers_when(&mounted, |now| now.summary.operation(Kind::Ioctl).time.count > 1);
}

#[test]
fn a_mount_tells_whose_it_is_from_any_of_its_directories() {
    let Some(mounted) = Mounted::of("lz4.erofs") else { return };
    let (_, below) = mounted.walked();
    for directory in [mounted.path(), &below] {
        let stats = ask(directory).unwrap();
        assert_eq!(stats.summary.pid, u64::from(std::process::id()));
        assert_eq!(stats.release, env!("CARGO_PKG_VERSION"));
        assert_eq!(stats.summary.session.listeners, 2);
        assert!(stats.summary.session.granted & stats.summary.session.asked != 0);
        let mount = stats.mount.unwrap();
        assert_eq!((mount.kind.as_str(), mount.user_id), ("fuse.ferrofs", Some(0)));
        assert_eq!(
            (mount.point.as_path(), mount.source),
            (mounted.path(), "image of a test".into())
        );
    }
}

#[test]
fn requests_that_fail_are_counted_and_the_last_notice_is_told() {
    let folder = TempDir::new().unwrap();
    let copy = folder.path().join("shrinks.erofs");
    let image = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/data/lz4.erofs");
    fs::copy(image, &copy).unwrap();
    let Some(mounted) = Mounted::of_file(&copy) else { return };
    let before = ask(mounted.path()).unwrap().summary;
    assert_eq!((before.notices.failed, known(before.notices.last_age_ns)), (0, None));
    let (files, _) = mounted.walked();
    File::options().write(true).open(&copy).unwrap().set_len(4096).unwrap();
    let failed = files.iter().filter(|file| fs::read(file).is_err()).count();
    assert!(failed > 0);
    let errors = |now: &MountStats| -> u64 {
        Kind::ALL.into_iter().map(|kind| now.summary.operation(kind).errors).sum()
    };
    let after = numbers_when(&mounted, |now| errors(now) >= failed as u64).summary;
    assert!(after.notices.failed > 0 && known(after.notices.last_age_ns).is_some());
    let text = String::from_utf8_lossy(&after.notices.last_text);
    assert!(text.contains(" of nid "), "{text}");
}

#[test]
fn other_commands_are_unknown_to_a_mount() {
    let Some(mounted) = Mounted::of("plain.erofs") else { return };
    let directory = File::open(mounted.path()).unwrap();
    // FS_IOC_GETFLAGS, which `lsattr` sends.
    assert_eq!(rustix::fs::ioctl_getflags(&directory).err(), Some(Errno::NOTTY));
}

#[test]
fn a_mount_whose_process_has_ended_is_called_dead() {
    let device = File::options().read(true).write(true).open("/dev/fuse");
    let Ok(device) = device else { return eprintln!("skipped: /dev/fuse cannot be opened here") };
    let dir = TempDir::new().unwrap();
    let options = format!("fd={},rootmode=40000,user_id=0,group_id=0", device.as_raw_fd());
    let options = std::ffi::CString::new(options).unwrap();
    let made = mount("x", dir.path(), "fuse.ferrofs", MountFlags::RDONLY, Some(options.as_c_str()));
    if made.is_err() {
        return eprintln!("skipped: this user may not mount");
    }
    drop(device);
    let asked = ask(dir.path()).err();
    unmount(dir.path(), UnmountFlags::DETACH).unwrap();
    assert_eq!(asked, Some(AskError::Dead));
}

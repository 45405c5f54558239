//! Helper: a mount of a test image that this process serves.

use std::collections::HashSet;
use std::fs::{self, File};
use std::os::fd::AsRawFd;
use std::os::unix::fs::DirEntryExt;
use std::path::{Path, PathBuf};

use ferrofs_image::OpenOptions;
use ferrofs_mount::{MountSettings, NegotiatedMount, ServedMount};
use rustix::io::Errno;
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};
use tempfile::TempDir;

/// A mount of a test image, unmounted when dropped.
pub(crate) struct TestMount {
    dir: TempDir,
    served: Option<ServedMount>,
}

impl TestMount {
    pub(crate) fn of(image: &str) -> Option<Self> {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/data").join(image);
        Self::of_file(&path)
    }

    pub(crate) fn of_file(image: &Path) -> Option<Self> {
        Self::of_opened(image, &OpenOptions::new())
    }

    pub(crate) fn of_opened(image: &Path, options: &OpenOptions) -> Option<Self> {
        let opened = options.clone().caller_caches(true).open(image).unwrap();
        let device = File::options().read(true).write(true).open("/dev/fuse");
        let Ok(device) = device else {
            skip("needs FUSE: /dev/fuse cannot be opened");
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
                skip("needs FUSE: this user cannot mount");
                return None;
            }
            other => other.unwrap(),
        }
        let ready = NegotiatedMount::new(device.into(), &MountSettings::default()).unwrap();
        let served = ready.serve(opened, |_| {}).unwrap();
        Some(Self { dir, served: Some(served) })
    }

    pub(crate) fn path(&self) -> &Path {
        self.dir.path()
    }

    /// The regular files, each inode once, and a directory below the root.
    pub(crate) fn walked(&self) -> (Vec<PathBuf>, PathBuf) {
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

    /// Reads every file, and returns the number of bytes.
    pub(crate) fn read_all(&self) -> u64 {
        self.walked().0.iter().map(|file| fs::read(file).unwrap().len() as u64).sum()
    }
}

impl Drop for TestMount {
    fn drop(&mut self) {
        unmount(self.path(), UnmountFlags::DETACH).ok();
        if let Some(served) = self.served.take() {
            served.join();
        }
    }
}

/// Reports that the present test is skipped: on standard error, and in the file that `FERROFS_SKIPPED` names.
pub(crate) fn skip(reason: impl std::fmt::Display) {
    // The harness names the thread of a test after the test.
    let thread = std::thread::current();
    let line = format!("skipped: {}: {reason}\n", thread.name().unwrap_or("a test"));
    eprint!("{line}");
    if let Some(path) = std::env::var_os("FERROFS_SKIPPED") {
        let list = fs::OpenOptions::new().create(true).append(true).open(path);
        std::io::Write::write_all(&mut list.unwrap(), line.as_bytes()).unwrap();
    }
}

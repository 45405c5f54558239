//! A mount of a test image in this process, for tests.

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

/// A mount of a test image, gone when dropped.
pub(crate) struct Mounted {
    dir: TempDir,
    served: Option<ServedMount>,
}

impl Mounted {
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
        let ready = NegotiatedMount::new(device.into(), &MountSettings::default()).unwrap();
        let served = ready.serve(opened, |_| {}).unwrap();
        Some(Self { dir, served: Some(served) })
    }

    pub(crate) fn path(&self) -> &Path {
        self.dir.path()
    }

    /// The files below, each inode once, and a directory below the root.
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

    /// Reads every file; answers how many bytes that were.
    pub(crate) fn read_all(&self) -> u64 {
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

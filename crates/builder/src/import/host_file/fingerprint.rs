//! What tells whether a file is still the one that was imported.

use rustix::fd::AsFd;
use rustix::fs::{AtFlags, Statx, StatxFlags};

/// Identity, size and times of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::import) struct FileFingerprint {
    /// Major and minor number of the device that it lies on.
    pub(in crate::import) device: (u32, u32),
    /// Inode number.
    pub(in crate::import) inode: u64,
    /// Bytes.
    pub(in crate::import) size: u64,
    mtime_seconds: i64,
    ctime_seconds: i64,
    mtime_nanoseconds: u32,
    ctime_nanoseconds: u32,
}

impl FileFingerprint {
    pub(in crate::import) fn of(status: &Statx) -> Self {
        Self {
            device: (status.stx_dev_major, status.stx_dev_minor),
            inode: status.stx_ino,
            size: status.stx_size,
            mtime_seconds: status.stx_mtime.tv_sec,
            ctime_seconds: status.stx_ctime.tv_sec,
            mtime_nanoseconds: status.stx_mtime.tv_nsec,
            ctime_nanoseconds: status.stx_ctime.tv_nsec,
        }
    }

    pub(super) fn of_open(fd: impl AsFd) -> rustix::io::Result<Self> {
        let status = rustix::fs::statx(fd, "", AtFlags::EMPTY_PATH, StatxFlags::BASIC_STATS)?;
        Ok(Self::of(&status))
    }

    /// What is not as it was, the most telling thing first.
    pub(super) fn difference(&self, now: &Self) -> Option<String> {
        if (self.device, self.inode) != (now.device, now.inode) {
            return Some(format!(
                "another file took its place: it was inode {} of device {}:{} and is inode {} of {}:{}",
                self.inode, self.device.0, self.device.1, now.inode, now.device.0, now.device.1
            ));
        }
        if self.size != now.size {
            return Some(format!("its size was {} bytes and is {}", self.size, now.size));
        }
        let mtime = |fingerprint: &Self| (fingerprint.mtime_seconds, fingerprint.mtime_nanoseconds);
        if mtime(self) != mtime(now) {
            return Some(moved("modification time", mtime(self), mtime(now)));
        }
        let ctime = |fingerprint: &Self| (fingerprint.ctime_seconds, fingerprint.ctime_nanoseconds);
        (ctime(self) != ctime(now)).then(|| moved("change time", ctime(self), ctime(now)))
    }
}

fn moved(what: &str, before: (i64, u32), now: (i64, u32)) -> String {
    format!("its {what} was {}.{:09} and is {}.{:09}", before.0, before.1, now.0, now.1)
}

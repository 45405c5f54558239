//! How far the kernel reads ahead in files of the mount: a number in `/sys` for each mount, which root may raise. Called
//! by the daemon once the kernel has been greeted, since that sets it, and before nothing can be written any more.

use std::fmt;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, StatxFlags};

/// What became of the mount's readahead.
#[derive(Clone, Debug)]
pub(super) struct Readahead {
    pub(super) asked_kib: u64,
    /// `None` if the system does not tell.
    pub(super) granted_kib: Option<u64>,
    /// Where the number stands.
    pub(super) place: Option<PathBuf>,
}

impl Readahead {
    /// Has the kernel read ahead this far in the mount at `directory`, if that is allowed. It asks for nothing that the
    /// mount would have to answer.
    pub(super) fn raise(directory: &Path, asked_bytes: u32) -> Self {
        let asked_kib = u64::from(asked_bytes) / 1024;
        let Some(place) = place(directory) else {
            return Self { asked_kib, granted_kib: None, place: None };
        };
        let granted = || std::fs::read_to_string(&place).ok()?.trim().parse().ok();
        let mut granted_kib: Option<u64> = granted();
        if granted_kib.is_some_and(|kib| kib < asked_kib) {
            // Others than root may not; what holds then is told.
            std::fs::write(&place, asked_kib.to_string()).ok();
            granted_kib = granted();
        }
        Self { asked_kib, granted_kib, place: Some(place) }
    }

    /// What lifts it to what was asked for, if that is missing.
    pub(super) fn way_out(&self) -> Option<String> {
        let place = self.place.as_deref()?;
        let lacks = self.granted_kib.is_some_and(|kib| kib < self.asked_kib);
        lacks.then(|| format!("echo {} | sudo tee {}", self.asked_kib, place.display()))
    }
}

impl fmt::Display for Readahead {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} KiB asked, ", self.asked_kib)?;
        match self.granted_kib {
            Some(kib) => write!(f, "{kib} KiB granted"),
            None => write!(f, "unknown what was granted"),
        }
    }
}

fn place(directory: &Path) -> Option<PathBuf> {
    // What the kernel has in mind is enough; asking the mount would wait for this very process.
    let flags = AtFlags::STATX_DONT_SYNC | AtFlags::NO_AUTOMOUNT;
    let found = rustix::fs::statx(CWD, directory, flags, StatxFlags::empty()).ok()?;
    let (major, minor) = (found.stx_dev_major, found.stx_dev_minor);
    Some(PathBuf::from(format!("/sys/class/bdi/{major}:{minor}/read_ahead_kb")))
}

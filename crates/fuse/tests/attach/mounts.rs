//! What the tests stand on: a mount or the reason why there is none here, and a look at the table.

use std::fs;
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};

use ferrofs_fuse::attach::{AttachError, AttachOptions, Attachment, attach};

pub(crate) fn options() -> AttachOptions {
    AttachOptions::new("an image, with\\odd\nname", "ferrofs-test")
}

/// A mount, or nothing where this user cannot have one; every other failure is the test's.
pub(crate) fn mount(directory: &Path, options: &AttachOptions) -> Option<Attachment> {
    match attach(directory, options) {
        Ok(attachment) => Some(attachment),
        Err(
            error @ (AttachError::NoDevice { .. }
            | AttachError::DeviceNotPermitted { .. }
            | AttachError::NoFusermount { .. }
            | AttachError::NotPrivileged { .. }),
        ) => {
            skip(error);
            None
        }
        Err(error) => panic!("{error}"),
    }
}

/// How many mounts lie at this directory.
pub(crate) fn mounts_at(directory: &Path) -> usize {
    lines_of(directory).len()
}

/// The lines of the mount table for this directory, the topmost last.
pub(crate) fn lines_of(directory: &Path) -> Vec<String> {
    let directory = directory.to_str().expect("a name of the tests");
    let escaped = directory.replace('\\', "\\134").replace(' ', "\\040");
    let table = fs::read_to_string("/proc/self/mounts").expect("the table");
    let is_there = |line: &&str| line.split(' ').nth(1) == Some(&escaped);
    table.lines().filter(is_there).map(str::to_owned).collect()
}

/// Says why a test passes without having looked.
pub(crate) fn skip(reason: impl std::fmt::Display) {
    eprintln!("skipped: {reason}");
}

/// Whoever holds it is the only test that mounts. A program that another thread is just starting has
/// all our descriptors for a moment, and keeps a mount busy by them.
pub(crate) fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

//! Helpers: a mount, or the reason why there is none, and the mount table.

use std::fs;
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};

use ferrofs_fuse::attach::{AttachError, AttachOptions, Attachment, attach};

pub(crate) fn options() -> AttachOptions {
    AttachOptions::new("an image, with\\odd\nname", "ferrofs-test")
}

/// A mount, or `None` if this user cannot mount. Any other error fails the test.
pub(crate) fn mount(directory: &Path, options: &AttachOptions) -> Option<Attachment> {
    match attach(directory, options) {
        Ok(attachment) => Some(attachment),
        Err(
            error @ (AttachError::NoDevice { .. }
            | AttachError::DeviceNotPermitted { .. }
            | AttachError::NoFusermount { .. }
            | AttachError::NotPrivileged { .. }),
        ) => {
            skip(format_args!("needs FUSE: {error}"));
            None
        }
        Err(error) => panic!("{error}"),
    }
}

/// The number of mounts at this directory.
pub(crate) fn mounts_at(directory: &Path) -> usize {
    lines_of(directory).len()
}

/// The lines of the mount table for this directory, the topmost last.
pub(crate) fn lines_of(directory: &Path) -> Vec<String> {
    let directory = directory.to_str().expect("a name of the tests");
    let escaped = directory.replace('\\', "\\134").replace(' ', "\\040");
    let table = fs::read_to_string("/proc/self/mounts").expect("the table");
    let is_ours = |line: &&str| line.split(' ').nth(1) == Some(&escaped);
    table.lines().filter(is_ours).map(str::to_owned).collect()
}

/// Reports that the present test is skipped: on standard error, and in the file that `FERROFS_SKIPPED` names.
pub(crate) fn skip(reason: impl std::fmt::Display) {
    // The harness names the thread of a test after the test.
    let thread = std::thread::current();
    let line = format!("skipped: {}: {reason}\n", thread.name().unwrap_or("a test"));
    eprint!("{line}");
    if let Some(path) = std::env::var_os("FERROFS_SKIPPED") {
        let list = fs::OpenOptions::new().create(true).append(true).open(path);
        std::io::Write::write_all(&mut list.expect("the list of skipped tests"), line.as_bytes())
            .expect("the list of skipped tests");
    }
}

/// A lock that lets one test at a time mount. A program that another thread starts has all descriptors of this process for
/// a moment, and keeps a mount busy by them.
pub(crate) fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

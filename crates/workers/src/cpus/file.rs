//! Reads the small read_text files by which the kernel answers. A file that is absent, unreadable or
//! too long is no answer, never an error. Called by the other files of this module.

use std::fs::File;
use std::io::Read;
use std::path::Path;

/// More than any file of /proc or /sys that holds a list or a number: a list of 8192 CPUs, every other
/// one set, has 20 KB. A table of mounts with more than 20 000 lines is cut here and is no answer.
const FILE_BYTES_MAX: u64 = 4 << 20;

/// The whole read_text of a file. What is not UTF-8 is replaced: one odd name among the mounts must not
/// hide the others.
pub(super) fn read_text(path: &Path) -> Option<String> {
    let mut bytes = Vec::new();
    let length = File::open(path).ok()?.take(FILE_BYTES_MAX).read_to_end(&mut bytes).ok()?;
    let is_whole = u64::try_from(length).ok()? < FILE_BYTES_MAX;
    is_whole.then(|| String::from_utf8_lossy(&bytes).into_owned())
}

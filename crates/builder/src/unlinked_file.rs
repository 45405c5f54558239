//! Temporary files without a name: what they hold is gone with the process that opened them. Used by the spool of
//! archives.

use std::fs::File;
use std::io;
use std::path::Path;

use rustix::fs::{MemfdFlags, Mode, OFlags};
use rustix::io::Errno;

/// Names that are tried for a file that cannot be created without one.
const NAMES_TRIED: u32 = 100;

/// A new file without a name in `directory`, or a memfd.
///
/// # Errors
/// Those of the host.
pub(crate) fn open_unlinked(directory: Option<&Path>) -> io::Result<File> {
    let Some(directory) = directory else {
        return Ok(rustix::fs::memfd_create("ferrofs-temporary", MemfdFlags::CLOEXEC)?.into());
    };
    let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
    let mode = Mode::RUSR | Mode::WUSR;
    let unnamed = rustix::fs::open(directory, flags, mode);
    let error = match unnamed {
        Ok(file) => return Ok(file.into()),
        Err(error) => error,
    };
    let is_unsupported = matches!(error, Errno::OPNOTSUPP | Errno::ISDIR | Errno::INVAL);
    if !is_unsupported {
        return Err(error.into());
    }
    // Some file systems cannot make a file without a name: it loses its name at once.
    let flags = OFlags::CREATE | OFlags::EXCL | OFlags::RDWR | OFlags::CLOEXEC;
    for number in 0..NAMES_TRIED {
        let name = directory.join(format!(".ferrofs-temporary.{}.{number}", std::process::id()));
        match rustix::fs::open(&name, flags, mode) {
            Ok(file) => {
                rustix::fs::unlink(&name)?;
                return Ok(file.into());
            }
            Err(Errno::EXIST) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Err(io::ErrorKind::AlreadyExists.into())
}

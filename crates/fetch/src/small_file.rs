//! Reads configuration files of the user: logins, and places of registries.

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use rustix::fs::OFlags;

/// The bytes of a file of at most `limit` bytes.
///
/// # Errors
/// Those of the system; or it is not a file, or longer.
pub(crate) fn read_small_file(path: &Path, limit: u64) -> io::Result<Vec<u8>> {
    // A FIFO would make the opening wait.
    let flags = i32::try_from(OFlags::NONBLOCK.bits()).map_err(io::Error::other)?;
    let file = File::options().read(true).custom_flags(flags).open(path)?;
    if !file.metadata()?.is_file() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a file"));
    }
    let mut bytes = Vec::new();
    file.take(limit + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > limit {
        let why = format!("longer than {limit} bytes");
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, why));
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_too_long_or_not_a_file_is_an_error() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("file");
        std::fs::write(&path, "1234").unwrap();
        assert_eq!(read_small_file(&path, 4).unwrap(), b"1234");
        assert_eq!(read_small_file(&path, 3).unwrap_err().kind(), io::ErrorKind::FileTooLarge);
        let kind = |path: &Path| read_small_file(path, 9).unwrap_err().kind();
        assert_eq!(kind(directory.path()), io::ErrorKind::InvalidInput);
        assert_eq!(kind(&directory.path().join("absent")), io::ErrorKind::NotFound);
        let fifo = directory.path().join("fifo");
        let mode = rustix::fs::Mode::from_raw_mode(0o600);
        rustix::fs::mknodat(rustix::fs::CWD, &fifo, rustix::fs::FileType::Fifo, mode, 0).unwrap();
        assert_eq!(kind(&fifo), io::ErrorKind::InvalidInput);
    }
}

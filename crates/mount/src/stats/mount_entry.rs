//! Which mount an open file lies on, as `/proc/self/mountinfo` has it. Called by `client`.

use std::ffi::OsString;
use std::fs;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;

/// A mount.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MountEntry {
    /// Where it is.
    pub point: PathBuf,
    /// The type of its file system, such as `fuse.ferrofs`.
    pub kind: String,
    /// What it shows: the image, where nobody said else.
    pub source: OsString,
    /// Whose mount it is, where it says so.
    pub user_id: Option<u32>,
}

impl MountEntry {
    /// That of an open file; `None` where there is no `/proc` to query.
    pub(super) fn of(file: BorrowedFd<'_>) -> Option<Self> {
        let info = fs::read_to_string(format!("/proc/self/fdinfo/{}", file.as_raw_fd())).ok()?;
        let id = info.lines().find_map(|line| line.strip_prefix("mnt_id:"))?.trim();
        let mounts = fs::read("/proc/self/mountinfo").ok()?;
        Self::find(&mounts, id)
    }

    /// Whether a FUSE daemon serves it.
    pub(super) fn is_fuse(&self) -> bool {
        self.kind == "fuse" || self.kind == "fuseblk" || self.kind.starts_with("fuse.")
    }

    fn find(mounts: &[u8], id: &str) -> Option<Self> {
        let mut lines = mounts.split(|byte| *byte == b'\n');
        lines.find_map(|line| Self::parse(line, id))
    }

    /// `ID PARENT MAJOR:MINOR ROOT POINT OPTIONS [FIELDS...] - KIND SOURCE OPTIONS`.
    fn parse(line: &[u8], id: &str) -> Option<Self> {
        let mut fields = line.split(|byte| *byte == b' ');
        if fields.next()? != id.as_bytes() {
            return None;
        }
        let point = unescaped(fields.nth(3)?);
        let mut of_file_system = fields.skip_while(|field| *field != b"-").skip(1);
        let kind = String::from_utf8_lossy(of_file_system.next()?).into_owned();
        let source = unescaped(of_file_system.next()?);
        let options = of_file_system.next().unwrap_or_default();
        let user =
            options.split(|byte| *byte == b',').find_map(|one| one.strip_prefix(b"user_id="));
        let user_id = user.and_then(|id| std::str::from_utf8(id).ok()?.parse().ok());
        let (point, source) = (OsString::from_vec(point), OsString::from_vec(source));
        Some(Self { point: PathBuf::from(point), kind, source, user_id })
    }
}

/// Undoes the kernel's escapes: a backslash and three octal digits for a byte.
fn unescaped(field: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((first, others)) = rest.split_first() {
        let escaped = (*first == b'\\').then(|| others.split_at_checked(3)).flatten();
        let byte = escaped.and_then(|(digits, behind)| {
            let digits = std::str::from_utf8(digits).ok()?;
            Some((u8::from_str_radix(digits, 8).ok()?, behind))
        });
        let (byte, behind) = byte.unwrap_or((*first, others));
        bytes.push(byte);
        rest = behind;
    }
    bytes
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::fd::AsFd;
    use std::path::Path;

    use super::*;

    const MOUNTS: &[u8] = b"\
22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw
97 22 0:51 / /mnt/a\\040b rw,nosuid,nodev shared:7 master:2 - fuse.ferrofs /im\\134ages/\xff.erofs ro,user_id=1000,group_id=100
98 22 0:52 / /x rw - fuse sshfs
99 22
";

    #[test]
    fn a_mount_is_found_by_its_number_with_its_names_as_they_are() {
        let entry = MountEntry::find(MOUNTS, "97").unwrap();
        assert_eq!(entry.point, Path::new("/mnt/a b"));
        assert_eq!(entry.source.into_vec(), b"/im\\ages/\xff.erofs");
        assert_eq!((entry.kind.as_str(), entry.user_id), ("fuse.ferrofs", Some(1000)));
        let plain = MountEntry::find(MOUNTS, "98").unwrap();
        assert!(plain.is_fuse() && plain.user_id.is_none());
        assert!(!MountEntry::find(MOUNTS, "22").unwrap().is_fuse());
        assert_eq!(MountEntry::find(MOUNTS, "99"), None);
        assert_eq!(MountEntry::find(MOUNTS, "9"), None);
    }

    #[test]
    fn escapes_that_are_none_stay_as_they_are() {
        for (field, bytes) in
            [("a\\04", "a\\04"), ("\\", "\\"), ("\\999x", "\\999x"), ("\\011", "\t")]
        {
            assert_eq!(unescaped(field.as_bytes()), bytes.as_bytes());
        }
    }

    #[test]
    fn the_root_directory_lies_on_a_mount() {
        let root = File::open("/").unwrap();
        assert_eq!(MountEntry::of(root.as_fd()).unwrap().point, Path::new("/"));
    }
}

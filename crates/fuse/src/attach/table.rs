//! The mount table of this process, and the identity by which a mount is found in it again whatever
//! happens to names. It only reads. Attachments ask it what is theirs before they unmount.

use std::ffi::OsString;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags, open};
use rustix::io::Errno;
use rustix::process::getuid;

use super::directory::MountDirectory;
use super::options::AttachOptions;
use super::{AttachError, error};

/// What tells one mount from every other, as long as its file system lives. The kernel gives the number
/// of a mount to another as soon as it is free, so the file system's device number stands beside; that
/// one is ours while our device is connected, and means nothing afterwards.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct MountIdentity {
    id: Vec<u8>,
    device: Vec<u8>,
}

impl MountIdentity {
    /// The identity of what was just mounted on `directory`.
    pub(super) fn of_new_mount(
        directory: &MountDirectory,
        options: &AttachOptions,
    ) -> Result<Self, AttachError> {
        let moved = || AttachError::Moved { directory: directory.path().to_path_buf() };
        let root = open_root(directory.path()).map_err(|_| moved())?;
        let id = mount_id(&root)?;
        let table = MountTable::read()?;
        let mount = table.mounts().find(|mount| mount.id == id).ok_or_else(moved)?;
        // Whoever can put another mount under our directory's name is another user, and so is its owner.
        let file_system_type = format!("fuse.{}", options.subtype);
        let owner = format!("user_id={}", getuid().as_raw());
        let is_ours = mount.file_system_type == file_system_type.as_bytes()
            && mount.options.split(|byte| *byte == b',').any(|option| option == owner.as_bytes());
        if is_ours { Ok(Self { id, device: mount.device.to_vec() }) } else { Err(moved()) }
    }

    /// Opens the root of this mount, provided that it is what one meets at `place`. While that is open,
    /// its number cannot become another's; so the table is asked once more.
    pub(super) fn open_topmost(&self, place: &Path) -> Result<OwnedFd, AttachError> {
        let covered = || AttachError::Covered { directory: place.to_path_buf() };
        let root = open_root(place).map_err(|_| covered())?;
        let is_ours = mount_id(&root)? == self.id && MountTable::read()?.place_of(self).is_some();
        if is_ours { Ok(root) } else { Err(covered()) }
    }
}

/// Opens what is mounted at a path. O_PATH sends no request to it.
fn open_root(path: &Path) -> Result<OwnedFd, Errno> {
    open(path, OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())
}

/// The number of the mount that an open file lies on, in digits. `statx` has it, too, but only since
/// Linux 5.8, and by asking the file system for attributes.
fn mount_id(file: &OwnedFd) -> Result<Vec<u8>, AttachError> {
    let path = format!("/proc/self/fdinfo/{}", file.as_raw_fd());
    let info = std::fs::read(path).map_err(|source| error::proc_unreadable(&source))?;
    let id = info.split(|byte| *byte == b'\n').find_map(|line| line.strip_prefix(b"mnt_id:"));
    id.map(|id| id.trim_ascii().to_vec()).ok_or(AttachError::NoProc)
}

/// `/proc/self/mountinfo` at one moment.
#[derive(Debug)]
pub(super) struct MountTable {
    text: Vec<u8>,
}

/// One line of the table. Names are escaped as the kernel escapes them.
#[derive(Debug, PartialEq, Eq)]
struct MountInfoLine<'a> {
    id: &'a [u8],
    device: &'a [u8],
    place: &'a [u8],
    file_system_type: &'a [u8],
    options: &'a [u8],
}

impl MountTable {
    pub(super) fn read() -> Result<Self, AttachError> {
        let text = std::fs::read("/proc/self/mountinfo")
            .map_err(|source| error::proc_unreadable(&source))?;
        Ok(Self { text })
    }

    /// Where the mount lies by now; nothing if it is gone from here.
    pub(super) fn place_of(&self, identity: &MountIdentity) -> Option<PathBuf> {
        self.mounts()
            .find(|mount| mount.id == identity.id && mount.device == identity.device)
            .map(|mount| PathBuf::from(OsString::from_vec(unescaped(mount.place))))
    }

    fn mounts(&self) -> impl Iterator<Item = MountInfoLine<'_>> {
        self.text.split(|byte| *byte == b'\n').filter_map(parse)
    }
}

/// Parses `id parent major:minor root place options [tag…] - type source options`.
fn parse(line: &[u8]) -> Option<MountInfoLine<'_>> {
    let mut fields = line.split(|byte| *byte == b' ');
    let id = fields.next()?;
    let device = fields.nth(1)?;
    let place = fields.nth(1)?;
    fields.by_ref().find(|field| *field == b"-")?;
    let file_system_type = fields.next()?;
    let options = fields.nth(1)?;
    Some(MountInfoLine { id, device, place, file_system_type, options })
}

/// Undoes the kernel's escapes: a backslash and three octal digits.
fn unescaped(field: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((first, after)) = rest.split_first() {
        match after.first_chunk::<3>().and_then(|digits| octal(*digits)).filter(|_| *first == b'\\')
        {
            Some(byte) => {
                bytes.push(byte);
                rest = after.get(3..).unwrap_or_default();
            }
            None => {
                bytes.push(*first);
                rest = after;
            }
        }
    }
    bytes
}

fn octal(digits: [u8; 3]) -> Option<u8> {
    let text = std::str::from_utf8(&digits).ok()?;
    u8::from_str_radix(text, 8).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_with_tags_and_escapes_is_understood() {
        let line = b"87 63 0:41 / /mnt/a\\040b rw,nosuid shared:7 master:2 - fuse.ferrofs an\\040image ro,user_id=0";
        let mount = parse(line).expect("a sound line");
        assert_eq!(mount.id, b"87");
        assert_eq!(mount.device, b"0:41");
        assert_eq!(unescaped(mount.place), b"/mnt/a b");
        assert_eq!(mount.file_system_type, b"fuse.ferrofs");
        assert_eq!(mount.options, b"ro,user_id=0");
    }

    #[test]
    fn a_line_that_ends_early_is_passed_over() {
        assert_eq!(parse(b""), None);
        assert_eq!(parse(b"87 63 0:41 / /mnt rw"), None);
        assert_eq!(parse(b"87 63 0:41 / /mnt rw - fuse.ferrofs"), None);
    }

    #[test]
    fn a_mount_with_the_same_number_and_another_device_is_not_ours() {
        let table = MountTable { text: b"87 63 0:41 / /mnt rw - fuse.ferrofs x ro\n".to_vec() };
        let identity =
            |device: &[u8]| MountIdentity { id: b"87".to_vec(), device: device.to_vec() };
        assert_eq!(table.place_of(&identity(b"0:41")), Some(PathBuf::from("/mnt")));
        assert_eq!(table.place_of(&identity(b"0:42")), None);
    }

    #[test]
    fn backslashes_that_escape_nothing_stay() {
        assert_eq!(unescaped(b"a\\"), b"a\\");
        assert_eq!(unescaped(b"\\9\\134\\7"), b"\\9\\\\7");
        assert_eq!(unescaped(b"\\777"), b"\\777");
    }
}

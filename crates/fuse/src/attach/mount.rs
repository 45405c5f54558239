//! What a mount is: its options ([`AttachOptions`]), its place ([`MountDirectory`]), and its entry in the mount table of this
//! process. Nothing here changes a mount. Used by `attach`, and by commands that parse `-o`.
//!
//! Options that a read-only FUSE mount cannot have are rejected by name. A directory is held by a descriptor, so that what was
//! checked is what is mounted on even if it is renamed meanwhile. A mount has an identity by which it is found again.

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags, PROC_SUPER_MAGIC, fstatfs, open, readlink};
use rustix::io::Errno;
use rustix::process::{geteuid, getgid, getuid};

use super::{AttachError, proc_unreadable};

/// Who has access to the mount.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum MountAccess {
    /// Only the user who mounts; not even root.
    #[default]
    Owner,
    /// All users, as far as modes and owners of the files permit (`allow_other`).
    Everybody,
}

/// The user to whom a mount belongs, and its group, by number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MountOwner {
    /// The user ID.
    pub user: u32,
    /// The group ID.
    pub group: u32,
}

/// How to mount. The mount is always read-only.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct AttachOptions {
    /// The source in `/proc/mounts` (`fsname`): at least one byte, no NUL.
    pub source: OsString,
    /// The type after `fuse.`: 1 to 64 letters, digits, `-`, `_` or `.`.
    pub subtype: String,
    /// Who has access.
    pub allow: MountAccess,
    /// Whether set-user-ID bits have effect; permitted to root only.
    pub suid: bool,
    /// Whether device nodes work; permitted to root only.
    pub dev: bool,
    /// Whether programs can be executed.
    pub exec: bool,
    /// Whether the kernel checks permissions.
    pub default_permissions: bool,
    /// The largest read request, in bytes; the kernel raises values below 4,096 to it.
    pub max_read: Option<u32>,
    /// Whether the mount is unmounted when this process ends in any way. A mount made without `fusermount3` also needs
    /// [`Attachment::start_unmount_helper`](super::Attachment::start_unmount_helper).
    pub auto_unmount: bool,
    /// The user to whom the mount belongs; `None` is the user of this process. Permitted to root only.
    pub owner: Option<MountOwner>,
}

impl AttachOptions {
    /// The defaults: access for the owner only, programs can be executed, set-user-ID bits and device nodes have no
    /// effect, the kernel checks permissions, and the mount ends with the process.
    #[must_use]
    pub fn new(source: impl Into<OsString>, subtype: impl Into<String>) -> Self {
        Self {
            source: source.into(),
            subtype: subtype.into(),
            allow: MountAccess::Owner,
            suid: false,
            dev: false,
            exec: true,
            default_permissions: true,
            max_read: None,
            auto_unmount: true,
            owner: None,
        }
    }

    /// Sets the user to whom the mount belongs.
    #[must_use]
    pub fn owned_by(mut self, owner: Option<MountOwner>) -> Self {
        self.owner = owner;
        self
    }

    /// The user to whom the mount belongs.
    pub(super) fn owner(&self) -> MountOwner {
        let own = || MountOwner { user: getuid().as_raw(), group: getgid().as_raw() };
        self.owner.unwrap_or_else(own)
    }

    /// Sets who has access.
    #[must_use]
    pub fn allow(mut self, access: MountAccess) -> Self {
        self.allow = access;
        self
    }

    /// Sets whether device nodes work.
    #[must_use]
    pub fn dev(mut self, yes: bool) -> Self {
        self.dev = yes;
        self
    }

    /// Sets whether set-user-ID bits have effect.
    #[must_use]
    pub fn suid(mut self, yes: bool) -> Self {
        self.suid = yes;
        self
    }

    /// Sets whether programs can be executed.
    #[must_use]
    pub fn exec(mut self, yes: bool) -> Self {
        self.exec = yes;
        self
    }

    /// Sets the largest read request, in bytes.
    #[must_use]
    pub fn max_read(mut self, bytes: u32) -> Self {
        self.max_read = Some(bytes);
        self
    }

    /// Applies one option of `mount -o`: the text between two commas.
    ///
    /// # Errors
    ///
    /// The option contradicts a read-only FUSE mount, or its value is invalid.
    pub fn parse_option(&mut self, word: &OsStr) -> Result<OptionMatch, RejectedOption> {
        let bytes = word.as_bytes();
        let mut parts = bytes.splitn(2, |byte| *byte == b'=');
        let name = parts.next().unwrap_or_default();
        match parts.next() {
            Some(value) => self.parse_value(word, name, value),
            None => self.parse_flag(word, name),
        }
    }

    fn parse_flag(&mut self, word: &OsStr, name: &[u8]) -> Result<OptionMatch, RejectedOption> {
        match name {
            b"suid" => self.suid = true,
            b"nosuid" => self.suid = false,
            b"dev" => self.dev = true,
            b"nodev" => self.dev = false,
            b"exec" => self.exec = true,
            b"noexec" => self.exec = false,
            b"allow_other" => self.allow = MountAccess::Everybody,
            b"default_permissions" => self.default_permissions = true,
            b"auto_unmount" => self.auto_unmount = true,
            b"allow_root" => {
                return Err(RejectedOption::new(
                    word,
                    "the kernel does not support it; use allow_other",
                ));
            }
            b"sync" | b"dirsync" | b"mand" => {
                return Err(RejectedOption::new(
                    word,
                    "it is about writing, but the mount is read-only",
                ));
            }
            b"remount" | b"bind" | b"rbind" | b"move" => {
                return Err(RejectedOption::new(
                    word,
                    "it changes an existing mount, which mount(8) does by itself",
                ));
            }
            b"blkdev" => {
                return Err(RejectedOption::new(word, "the mount has no block device"));
            }
            name if is_ignored_option(name) => {}
            _ => return Ok(OptionMatch::Unrecognized),
        }
        Ok(OptionMatch::Accepted)
    }

    fn parse_value(
        &mut self,
        word: &OsStr,
        name: &[u8],
        value: &[u8],
    ) -> Result<OptionMatch, RejectedOption> {
        match name {
            b"fsname" => self.source = OsStr::from_bytes(value).to_os_string(),
            b"subtype" => {
                let subtype =
                    std::str::from_utf8(value).ok().filter(|subtype| is_valid_subtype(subtype));
                self.subtype =
                    subtype.ok_or_else(|| RejectedOption::new(word, SUBTYPE_RULE))?.to_owned();
            }
            b"max_read" => {
                let bytes = std::str::from_utf8(value).ok().and_then(|value| value.parse().ok());
                self.max_read = Some(bytes.ok_or_else(|| {
                    RejectedOption::new(word, "the value must be a number of bytes")
                })?);
            }
            b"fd" | b"rootmode" | b"user_id" | b"group_id" => {
                return Err(RejectedOption::new(word, "it is always set by ferrofs; leave it out"));
            }
            b"blksize" => {
                return Err(RejectedOption::new(word, "it is for mounts of a block device"));
            }
            b"comment" => {}
            name if name.starts_with(b"x-") => {}
            _ => return Ok(OptionMatch::Unrecognized),
        }
        Ok(OptionMatch::Accepted)
    }

    /// Checks what depends on several options or on the user.
    pub(super) fn check(&self) -> Result<(), RejectedOption> {
        if self.source.is_empty() || self.source.as_bytes().contains(&0) {
            return Err(RejectedOption::new(
                &self.source,
                "the source must not be empty or contain NUL",
            ));
        }
        if !is_valid_subtype(&self.subtype) {
            return Err(RejectedOption::new(self.subtype.as_ref(), SUBTYPE_RULE));
        }
        // `fusermount3` drops these without an error, and the kernel ignores them in a user namespace.
        if !geteuid().is_root() {
            let has_owner = self.owner.is_some();
            for (is_set, option) in
                [(self.suid, "suid"), (self.dev, "dev"), (has_owner, "another owner")]
            {
                if is_set {
                    return Err(RejectedOption::new(option.as_ref(), "permitted to root only"));
                }
            }
        }
        Ok(())
    }
}

/// Whether an option belongs to [`AttachOptions`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OptionMatch {
    /// It was applied, or has no effect on a read-only mount.
    Accepted,
    /// It is not an option of mounting; the caller may know it.
    Unrecognized,
}

/// An option that this mount cannot have.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RejectedOption {
    word: OsString,
    rule: &'static str,
}

impl RejectedOption {
    fn new(word: &OsStr, rule: &'static str) -> Self {
        Self { word: word.to_os_string(), rule }
    }
}

impl fmt::Display for RejectedOption {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "mount option {:?}: {}", self.word, self.rule)
    }
}

impl std::error::Error for RejectedOption {}

const SUBTYPE_RULE: &str = "a subtype is 1 to 64 letters, digits, dashes, underscores or dots";

/// The longest subtype, in bytes; the kernel limits the whole type to a page.
const SUBTYPE_BYTES: usize = 64;

fn is_valid_subtype(subtype: &str) -> bool {
    (1..=SUBTYPE_BYTES).contains(&subtype.len())
        && subtype
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.'))
}

/// Options without effect on a read-only mount: access times are not kept, mount(8) passes `rw` unless `ro` is given, and
/// others of /etc/fstab are for mount(8) itself.
fn is_ignored_option(name: &[u8]) -> bool {
    const WORDS: [&[u8]; 28] = [
        b"ro",
        b"rw",
        b"defaults",
        b"async",
        b"atime",
        b"noatime",
        b"diratime",
        b"nodiratime",
        b"relatime",
        b"norelatime",
        b"strictatime",
        b"nostrictatime",
        b"lazytime",
        b"nolazytime",
        b"nomand",
        b"loud",
        b"silent",
        b"nonempty",
        b"auto",
        b"noauto",
        b"user",
        b"nouser",
        b"users",
        b"nousers",
        b"owner",
        b"group",
        b"nofail",
        b"_netdev",
    ];
    WORDS.contains(&name) || name.starts_with(b"x-")
}

/// An open directory and its path without symlinks.
#[derive(Debug)]
pub(super) struct MountDirectory {
    handle: OwnedFd,
    path: PathBuf,
}

impl MountDirectory {
    pub(super) fn open(given: &Path) -> Result<Self, AttachError> {
        // O_PATH sends no request to a file system that may be mounted there.
        let handle = open(given, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
            .map_err(|cause| open_error(given, cause))?;
        // Attributes may come from a cache although the server has died; the result of statfs does not.
        match fstatfs(&handle) {
            Err(Errno::NOTCONN) => {
                return Err(AttachError::Stale { directory: given.to_path_buf() });
            }
            // This process reads /proc to find the mount, and would wait for its own reply.
            Ok(found) if found.f_type == PROC_SUPER_MAGIC => {
                return Err(AttachError::InProc { directory: given.to_path_buf() });
            }
            Ok(_) | Err(_) => {}
        }
        let path = readlink(proc_path(&handle), Vec::new()).map_err(|cause| match cause {
            Errno::NOENT => AttachError::NoProc,
            cause => open_error(given, cause),
        })?;
        let path = PathBuf::from(OsString::from_vec(path.into_bytes()));
        if !path.is_absolute() {
            return Err(AttachError::DirectoryUnusable {
                directory: given.to_path_buf(),
                cause: Errno::NOENT,
            });
        }
        Ok(Self { handle, path })
    }

    /// One that another process has opened.
    pub(super) fn held(handle: OwnedFd, path: PathBuf) -> Self {
        Self { handle, path }
    }

    /// Whether the file system that is mounted on it now has no server any more.
    pub(super) fn has_dead_mount(&self) -> bool {
        matches!(Self::open(&self.path), Err(AttachError::Stale { .. }))
    }

    /// Its absolute path without symlinks at the time of opening.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// A path that leads to this directory whatever its name is now.
    pub(super) fn exact_path(&self) -> String {
        proc_path(&self.handle)
    }

    /// The descriptor. It is of what the directory was before a file system was mounted on it.
    pub(super) fn handle(&self) -> BorrowedFd<'_> {
        self.handle.as_fd()
    }

    /// Its present absolute path without symlinks, and the ID of the mount that it is on.
    pub(super) fn place(&self) -> Result<MountPlace, AttachError> {
        let path = readlink(self.exact_path(), Vec::new()).map_err(|_| AttachError::NoProc)?;
        Ok(MountPlace { parent: mount_id(self.handle())?, path: path.into_bytes() })
    }
}

/// Where a mount is, in the words of the mount table.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct MountPlace {
    parent: Vec<u8>,
    path: Vec<u8>,
}

impl MountPlace {
    fn is_of(&self, mount: &MountInfoLine<'_>) -> bool {
        mount.parent == self.parent && unescape(mount.mount_point) == self.path
    }
}

/// The path of an open file of this process in `/proc`.
pub(super) fn proc_path(handle: &OwnedFd) -> String {
    format!("/proc/self/fd/{}", handle.as_raw_fd())
}

fn open_error(given: &Path, cause: Errno) -> AttachError {
    let directory = given.to_path_buf();
    match cause {
        Errno::NOENT => AttachError::DirectoryMissing { directory },
        Errno::NOTDIR => AttachError::NotADirectory { directory },
        Errno::NOTCONN => AttachError::Stale { directory },
        cause => AttachError::DirectoryUnusable { directory, cause },
    }
}

/// The identity of a mount as long as its file system exists. The kernel reuses the ID of a mount as soon as it is free,
/// so the device number of the file system is compared, too. That number is ours while our device is connected, and
/// means nothing afterwards.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct MountIdentity {
    id: Vec<u8>,
    device: Vec<u8>,
}

/// How often the name of a directory is read that somebody renames meanwhile.
const RENAMES_MAX: usize = 4;

impl MountIdentity {
    /// The identity of the file system that was just mounted on `directory`. No path is resolved: the kernel's table names
    /// the mount and the directory that our descriptor is of.
    pub(super) fn of_new_mount(
        directory: &MountDirectory,
        options: &AttachOptions,
    ) -> Result<Self, AttachError> {
        let file_system_type = format!("fuse.{}", options.subtype);
        let owner = format!("user_id={}", options.owner().user);
        for _ in 0..RENAMES_MAX {
            let place = directory.place()?;
            let table = MountTable::read()?;
            // Mounts of other users at the same place have another owner.
            let is_ours = |mount: &MountInfoLine<'_>| {
                let mut options = mount.options.split(|byte| *byte == b',');
                place.is_of(mount)
                    && mount.file_system_type == file_system_type.as_bytes()
                    && options.any(|option| option == owner.as_bytes())
            };
            if let Some(mount) = table.mounts().filter(is_ours).last() {
                return Ok(Self { id: mount.id.to_vec(), device: mount.device.to_vec() });
            }
        }
        Err(AttachError::Moved { directory: directory.path().to_path_buf() })
    }

    /// The identity of the mount of an open file.
    pub(super) fn of_file(file: BorrowedFd<'_>) -> Result<Self, AttachError> {
        let id = mount_id(file)?;
        let table = MountTable::read()?;
        let device = table.mounts().find(|mount| mount.id == id).map(|mount| mount.device.to_vec());
        device.map(|device| Self { id, device }).ok_or(AttachError::NoProc)
    }

    /// The ID of the mount and the device number, as the mount table has them.
    pub(super) fn parts(&self) -> (&[u8], &[u8]) {
        (&self.id, &self.device)
    }

    /// An identity that another process has told.
    pub(super) fn from_parts(id: &[u8], device: &[u8]) -> Self {
        Self { id: id.to_vec(), device: device.to_vec() }
    }

    /// The device number of its file system, as `/sys/class/bdi` names it: `major:minor`.
    pub(super) fn device(&self) -> String {
        String::from_utf8_lossy(&self.device).into_owned()
    }

    /// Opens the root of this mount if it is the topmost mount at `mount_point`. While the root is open the kernel does
    /// not reuse the ID, so the table is read again.
    pub(super) fn open_topmost(&self, mount_point: &Path) -> Result<OwnedFd, AttachError> {
        let covered = || AttachError::Covered { directory: mount_point.to_path_buf() };
        let root = open_root(mount_point).map_err(|_| covered())?;
        let is_ours = mount_id(root.as_fd())? == self.id
            && MountTable::read()?.mount_point_of(self).is_some();
        if is_ours { Ok(root) } else { Err(covered()) }
    }
}

/// Opens the root of what is mounted at a path. O_PATH sends no request to it.
fn open_root(path: &Path) -> Result<OwnedFd, Errno> {
    open(path, OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())
}

/// The ID of the mount of an open file, in digits. `statx` has it only since Linux 5.8, and may send a request to the file
/// system.
fn mount_id(file: BorrowedFd<'_>) -> Result<Vec<u8>, AttachError> {
    let path = format!("/proc/self/fdinfo/{}", file.as_raw_fd());
    let info = std::fs::read(path).map_err(|source| proc_unreadable(&source))?;
    let id = info.split(|byte| *byte == b'\n').find_map(|line| line.strip_prefix(b"mnt_id:"));
    id.map(|id| id.trim_ascii().to_vec()).ok_or(AttachError::NoProc)
}

/// `/proc/self/mountinfo` at one moment.
#[derive(Debug)]
pub(super) struct MountTable {
    text: Vec<u8>,
}

/// A mount in `/proc/self/mountinfo`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MountEntry {
    /// The mount point.
    pub mount_point: PathBuf,
    /// The type of the file system, such as `fuse.ferrofs`.
    pub file_system_type: String,
    /// The source, such as the path of an image.
    pub source: OsString,
    /// The user that mounted, if the options of a FUSE mount say so.
    pub user_id: Option<u32>,
    /// The options of the mount, and those of its file system.
    pub options: Vec<String>,
}

impl MountEntry {
    /// The mount of an open file; `None` if `/proc` does not show it.
    #[must_use]
    pub fn of(file: BorrowedFd<'_>) -> Option<Self> {
        MountTable::read().ok()?.entry(&mount_id(file).ok()?)
    }

    /// All mounts in this mount namespace, in the order of the table; none if `/proc` does not show them.
    #[must_use]
    pub fn all() -> Vec<Self> {
        let entries = |table: MountTable| table.mounts().map(|mount| mount.entry()).collect();
        MountTable::read().map(entries).unwrap_or_default()
    }

    /// Whether it is a FUSE file system.
    #[must_use]
    pub fn is_fuse(&self) -> bool {
        let kind = self.file_system_type.as_str();
        kind == "fuse" || kind == "fuseblk" || kind.starts_with("fuse.")
    }
}

/// One line of the table, with the kernel's escapes.
#[derive(Debug, PartialEq, Eq)]
struct MountInfoLine<'a> {
    id: &'a [u8],
    parent: &'a [u8],
    device: &'a [u8],
    mount_point: &'a [u8],
    file_system_type: &'a [u8],
    source: &'a [u8],
    /// Those of the mount.
    flags: &'a [u8],
    /// Those of the file system.
    options: &'a [u8],
}

impl MountInfoLine<'_> {
    fn entry(&self) -> MountEntry {
        let mut options = self.options.split(|byte| *byte == b',');
        let user_id = options.find_map(|option| option.strip_prefix(b"user_id="));
        let all = [self.flags, self.options];
        let all = all.iter().flat_map(|list| list.split(|byte| *byte == b','));
        MountEntry {
            mount_point: PathBuf::from(OsString::from_vec(unescape(self.mount_point))),
            file_system_type: String::from_utf8_lossy(self.file_system_type).into_owned(),
            source: OsString::from_vec(unescape(self.source)),
            user_id: user_id.and_then(|id| std::str::from_utf8(id).ok()?.parse().ok()),
            options: all
                .map(|option| String::from_utf8_lossy(&unescape(option)).into_owned())
                .collect(),
        }
    }
}

impl MountTable {
    pub(super) fn read() -> Result<Self, AttachError> {
        let text =
            std::fs::read("/proc/self/mountinfo").map_err(|source| proc_unreadable(&source))?;
        Ok(Self { text })
    }

    /// The present mount point; `None` if the mount is not in this mount namespace any more.
    pub(super) fn mount_point_of(&self, identity: &MountIdentity) -> Option<PathBuf> {
        self.mounts()
            .find(|mount| mount.id == identity.id && mount.device == identity.device)
            .map(|mount| PathBuf::from(OsString::from_vec(unescape(mount.mount_point))))
    }

    /// Whether this mount is at `place`.
    pub(super) fn is_at(&self, identity: &MountIdentity, place: &MountPlace) -> bool {
        let mut mounts = self.mounts();
        mounts.any(|mount| {
            mount.id == identity.id && mount.device == identity.device && place.is_of(&mount)
        })
    }

    /// Whether another mount covers the root of this one, which is at `place`.
    pub(super) fn is_covered(&self, identity: &MountIdentity, place: &MountPlace) -> bool {
        let above = MountPlace { parent: identity.id.clone(), path: place.path.clone() };
        self.mounts().any(|mount| above.is_of(&mount))
    }

    fn entry(&self, id: &[u8]) -> Option<MountEntry> {
        self.mounts().find(|mount| mount.id == id).map(|mount| mount.entry())
    }

    fn mounts(&self) -> impl Iterator<Item = MountInfoLine<'_>> {
        self.text.split(|byte| *byte == b'\n').filter_map(parse)
    }
}

/// Parses `id parent major:minor root mount-point options [tag...] - type source options`.
fn parse(line: &[u8]) -> Option<MountInfoLine<'_>> {
    let mut fields = line.split(|byte| *byte == b' ');
    let id = fields.next()?;
    let parent = fields.next()?;
    let device = fields.next()?;
    let mount_point = fields.nth(1)?;
    let flags = fields.next()?;
    fields.by_ref().find(|field| *field == b"-")?;
    let file_system_type = fields.next()?;
    let source = fields.next()?;
    let options = fields.next().unwrap_or_default();
    Some(MountInfoLine {
        id,
        parent,
        device,
        mount_point,
        file_system_type,
        source,
        flags,
        options,
    })
}

/// Undoes the kernel's escapes: a backslash and three octal digits.
fn unescape(field: &[u8]) -> Vec<u8> {
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

    fn options() -> AttachOptions {
        AttachOptions::new("image", "ferrofs")
    }

    #[test]
    fn options_change_their_fields() {
        let mut taken = options();
        for word in [
            "noexec",
            "allow_other",
            "max_read=65536",
            "fsname=a,b=c",
            "subtype=erofs",
            "suid",
            "nosuid",
        ] {
            assert_eq!(taken.parse_option(word.as_ref()), Ok(OptionMatch::Accepted), "{word}");
        }
        let expected = AttachOptions {
            exec: false,
            allow: MountAccess::Everybody,
            max_read: Some(65_536),
            ..AttachOptions::new("a,b=c", "erofs")
        };
        assert_eq!(taken, expected);
    }

    #[test]
    fn options_that_mount_adds_change_nothing() {
        let mut taken = options();
        for word in
            ["rw", "ro", "relatime", "x-systemd.automount", "x-gvfs-name=a", "_netdev", "comment=a"]
        {
            assert_eq!(taken.parse_option(word.as_ref()), Ok(OptionMatch::Accepted), "{word}");
        }
        assert_eq!(taken, options());
    }

    #[test]
    fn impossible_options_are_rejected_by_name() {
        for word in [
            "allow_root",
            "fd=3",
            "sync",
            "remount",
            "blkdev",
            "max_read=",
            "max_read=-1",
            "subtype=a/b",
            "subtype=",
        ] {
            let refusal = options().parse_option(word.as_ref()).expect_err(word).to_string();
            assert!(refusal.contains(word), "{refusal}");
        }
    }

    #[test]
    fn other_options_are_left_to_the_caller() {
        let mut taken = options();
        for word in ["offset=4096", "device=b", "context=system_u", "max_reads", "suid=1", ""] {
            assert_eq!(taken.parse_option(word.as_ref()), Ok(OptionMatch::Unrecognized), "{word}");
        }
        assert_eq!(taken, options());
    }

    #[test]
    fn sources_and_types_that_the_mount_table_cannot_show_are_rejected() {
        assert!(AttachOptions::new("", "ferrofs").check().is_err());
        assert!(AttachOptions::new("a\0b", "ferrofs").check().is_err());
        assert!(AttachOptions::new("a", "fer rofs").check().is_err());
        assert!(AttachOptions::new("a", "f".repeat(65)).check().is_err());
        AttachOptions::new("a\n,\\ b", "ferrofs").check().expect("the table escapes these");
    }

    #[test]
    fn a_line_with_tags_and_escapes_is_parsed() {
        let line = b"87 63 0:41 / /mnt/a\\040b rw,nosuid shared:7 master:2 - fuse.ferrofs an\\040image ro,user_id=0";
        let mount = parse(line).expect("a sound line");
        assert_eq!((mount.id, mount.parent), (&b"87"[..], &b"63"[..]));
        assert_eq!(mount.device, b"0:41");
        assert_eq!(unescape(mount.mount_point), b"/mnt/a b");
        assert_eq!(mount.file_system_type, b"fuse.ferrofs");
        assert_eq!(mount.options, b"ro,user_id=0");
    }

    #[test]
    fn a_line_that_ends_early_is_skipped() {
        assert_eq!(parse(b""), None);
        assert_eq!(parse(b"87 63 0:41 / /mnt rw"), None);
        assert_eq!(parse(b"87 63 0:41 / /mnt rw - fuse.ferrofs"), None);
    }

    #[test]
    fn a_mount_with_the_same_number_and_another_device_is_not_ours() {
        let table = MountTable { text: b"87 63 0:41 / /mnt rw - fuse.ferrofs x ro\n".to_vec() };
        let identity =
            |device: &[u8]| MountIdentity { id: b"87".to_vec(), device: device.to_vec() };
        assert_eq!(table.mount_point_of(&identity(b"0:41")), Some(PathBuf::from("/mnt")));
        assert_eq!(table.mount_point_of(&identity(b"0:42")), None);
    }

    #[test]
    fn a_mount_is_covered_by_one_on_its_root_only() {
        let table = |last: &str| {
            let ours = "87 63 0:41 / /mnt/a\\040b rw - fuse.ferrofs x ro\n";
            MountTable { text: format!("{ours}{last} rw - tmpfs x rw\n").into_bytes() }
        };
        let identity = MountIdentity { id: b"87".to_vec(), device: b"0:41".to_vec() };
        let place = MountPlace { parent: b"63".to_vec(), path: b"/mnt/a b".to_vec() };
        let elsewhere = MountPlace { parent: b"64".to_vec(), path: b"/mnt/a b".to_vec() };
        let below = table("88 87 0:42 / /mnt/a\\040b/sub");
        assert!(below.is_at(&identity, &place) && !below.is_at(&identity, &elsewhere));
        assert!(!below.is_covered(&identity, &place));
        assert!(table("88 87 0:42 / /mnt/a\\040b").is_covered(&identity, &place));
    }

    #[test]
    fn backslashes_that_escape_nothing_stay() {
        assert_eq!(unescape(b"a\\"), b"a\\");
        assert_eq!(unescape(b"\\9\\134\\7"), b"\\9\\\\7");
        assert_eq!(unescape(b"\\777"), b"\\777");
        assert_eq!(unescape(b"a\\04"), b"a\\04");
        assert_eq!(unescape(b"\\999x"), b"\\999x");
        assert_eq!(unescape(b"\\011"), b"\t");
    }

    const MOUNTS: &[u8] = b"\
22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw
97 22 0:51 / /mnt/a\\040b rw,nosuid,nodev shared:7 master:2 - fuse.ferrofs /im\\134ages/\xff.erofs ro,user_id=1000,group_id=100
98 22 0:52 / /x rw - fuse sshfs
99 22
";

    #[test]
    fn a_mount_is_found_by_its_id_with_unescaped_names() {
        let table = MountTable { text: MOUNTS.to_vec() };
        let entry = table.entry(b"97").expect("a mount");
        assert_eq!(entry.mount_point, Path::new("/mnt/a b"));
        assert_eq!(entry.source.into_vec(), b"/im\\ages/\xff.erofs");
        assert_eq!((entry.file_system_type.as_str(), entry.user_id), ("fuse.ferrofs", Some(1000)));
        let options = ["rw", "nosuid", "nodev", "ro", "user_id=1000", "group_id=100"];
        assert_eq!(entry.options, options);
        let plain = table.entry(b"98").expect("a mount");
        assert!(plain.is_fuse() && plain.user_id.is_none());
        assert!(!table.entry(b"22").expect("a mount").is_fuse());
        assert_eq!(table.entry(b"99"), None);
        assert_eq!(table.entry(b"9"), None);
    }

    #[test]
    fn the_mount_of_an_open_directory_is_found() {
        // Not the root directory: in a chroot it is below a mount that the table does not show.
        let root = std::fs::File::open("/proc").expect("a directory");
        let entry = MountEntry::of(root.as_fd()).expect("a mount");
        assert_eq!((&*entry.mount_point, &*entry.file_system_type), (Path::new("/proc"), "proc"));
    }
}

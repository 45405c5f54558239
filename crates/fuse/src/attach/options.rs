//! Options of a mount, and their form in `mount -o`. Options that a read-only FUSE mount cannot have are rejected by
//! name. Used by `attach`, and by commands that parse `-o`.

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::os::unix::ffi::OsStrExt;

use rustix::process::{geteuid, getgid, getuid};

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
}

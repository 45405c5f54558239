//! How to mount: what the caller wants, and the words of `mount -o` for it. It refuses by name what a
//! read-only FUSE mount cannot be; it never reads the command line itself.

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::os::unix::ffi::OsStrExt;

use rustix::process::geteuid;

use super::AttachError;

/// Who may enter the mount.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum MountAccess {
    /// Only the user who mounts, not even root.
    #[default]
    Owner,
    /// Everybody, as far as modes and owners of the files permit (`allow_other`).
    Everybody,
}

/// How to mount. The mount is always read-only.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AttachOptions {
    /// What stands for the device in `/proc/mounts` (`fsname`): any bytes but NUL, not none.
    pub source: OsString,
    /// What stands after `fuse.` in the type: 1 to 64 letters, digits, `-`, `_` or `.`.
    pub subtype: String,
    /// Who may enter.
    pub allow: MountAccess,
    /// Whether set-user-ID bits have effect; only root may want it.
    pub suid: bool,
    /// Whether device nodes work; only root may want it.
    pub dev: bool,
    /// Whether programs may be started.
    pub exec: bool,
    /// Whether the kernel compares modes and owners with who asks.
    pub default_permissions: bool,
    /// Bytes of one read request at most; the kernel takes less than 4,096 for 4,096.
    pub max_read: Option<u32>,
    /// Whether a mount made by `fusermount3` goes away with this process however it ends.
    pub auto_unmount: bool,
}

impl AttachOptions {
    /// The defaults: for the owner alone, programs run, set-user-ID bits and device nodes do not, the
    /// kernel checks permissions, and the mount goes away with the process.
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
        }
    }

    /// Takes one word of a list as `mount -o` has it, between two commas.
    ///
    /// # Errors
    ///
    /// The word means something that this mount cannot be, or its value is not sound.
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
                    "the kernel has no such thing: allow_other it is, or nobody",
                ));
            }
            b"sync" | b"dirsync" | b"mand" => {
                return Err(RejectedOption::new(
                    word,
                    "it is about writing, and nothing is ever written",
                ));
            }
            b"remount" | b"bind" | b"rbind" | b"move" => {
                return Err(RejectedOption::new(
                    word,
                    "it changes a mount that exists; mount(8) does that by itself",
                ));
            }
            b"blkdev" => {
                return Err(RejectedOption::new(word, "the mount is none of a block device"));
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
                self.max_read = Some(
                    bytes.ok_or_else(|| RejectedOption::new(word, "it wants a number of bytes"))?,
                );
            }
            b"fd" | b"rootmode" | b"user_id" | b"group_id" => {
                return Err(RejectedOption::new(word, "the mount itself says that to the kernel"));
            }
            b"blksize" => {
                return Err(RejectedOption::new(word, "only a mount of a block device has it"));
            }
            b"comment" => {}
            name if name.starts_with(b"x-") => {}
            _ => return Ok(OptionMatch::Unrecognized),
        }
        Ok(OptionMatch::Accepted)
    }

    pub(super) fn check(&self) -> Result<(), AttachError> {
        if self.source.is_empty() || self.source.as_bytes().contains(&0) {
            return Err(AttachError::Option(RejectedOption::new(
                &self.source,
                "the source's name must have bytes, and no NUL",
            )));
        }
        if !is_valid_subtype(&self.subtype) {
            return Err(AttachError::Option(RejectedOption::new(
                self.subtype.as_ref(),
                SUBTYPE_RULE,
            )));
        }
        // `fusermount3` drops these without an error, and the kernel ignores them in a user namespace.
        if !geteuid().is_root() {
            for (wanted, option) in [(self.suid, "suid"), (self.dev, "dev")] {
                if wanted {
                    return Err(AttachError::Option(RejectedOption::new(
                        option.as_ref(),
                        "only root may have it",
                    )));
                }
            }
        }
        Ok(())
    }
}

/// What became of a word.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OptionMatch {
    /// It is taken, or says what is so anyway.
    Accepted,
    /// It is no word for mounting; the caller may know it.
    Unrecognized,
}

/// A word that was understood and refused.
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

/// Longest subtype; the kernel's own limit is a page for all of the type's name.
const SUBTYPE_BYTES: usize = 64;

fn is_valid_subtype(subtype: &str) -> bool {
    (1..=SUBTYPE_BYTES).contains(&subtype.len())
        && subtype
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.'))
}

/// Words that leave a read-only mount as it is: times of access are not kept, mount(8) passes `rw`
/// whenever nobody wrote `ro`, and words of /etc/fstab are for mount(8) itself.
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
    fn words_change_what_they_name() {
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
    fn what_mount_passes_by_itself_changes_nothing() {
        let mut taken = options();
        for word in
            ["rw", "ro", "relatime", "x-systemd.automount", "x-gvfs-name=a", "_netdev", "comment=a"]
        {
            assert_eq!(taken.parse_option(word.as_ref()), Ok(OptionMatch::Accepted), "{word}");
        }
        assert_eq!(taken, options());
    }

    #[test]
    fn what_cannot_be_is_refused_by_name() {
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
    fn what_is_not_for_mounting_is_left_to_the_caller() {
        let mut taken = options();
        for word in ["offset=4096", "device=b", "context=system_u", "max_reads", "suid=1", ""] {
            assert_eq!(taken.parse_option(word.as_ref()), Ok(OptionMatch::Unrecognized), "{word}");
        }
        assert_eq!(taken, options());
    }

    #[test]
    fn names_that_no_table_can_show_are_refused() {
        assert!(AttachOptions::new("", "ferrofs").check().is_err());
        assert!(AttachOptions::new("a\0b", "ferrofs").check().is_err());
        assert!(AttachOptions::new("a", "fer rofs").check().is_err());
        assert!(AttachOptions::new("a", "f".repeat(65)).check().is_err());
        AttachOptions::new("a\n,\\ b", "ferrofs").check().expect("the table escapes these");
    }
}

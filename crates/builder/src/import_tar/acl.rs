//! ACLs: from the text in archives to the bytes of Linux's `system.posix_acl_*` xattrs.
//!
//! The text is the short or long form of POSIX.1e as star and GNU tar write it. A user or group has
//! a number in place of the name or after the permissions, or only a name, which is looked up in
//! the account files. The bytes are version 2 of `linux/posix_acl_xattr.h`.
//!
//! The account files are read when the first name without a number comes: an archive with numbers,
//! as most are, makes the same tree on every host.

use std::collections::HashMap;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

/// The number of an entry without a user or group.
const NO_ID: u32 = u32::MAX;
const VERSION: u32 = 2;

const USER_OBJECT: u16 = 0x01;
const USER: u16 = 0x02;
const GROUP_OBJECT: u16 = 0x04;
const GROUP: u16 = 0x08;
const MASK: u16 = 0x10;
const OTHER: u16 = 0x20;

/// An entry. The derived order is the order of entries in the xattr.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct AclEntry {
    tag: u16,
    id: u32,
    permissions: u16,
}

/// Which of the two ACLs of a file a text is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AclKind {
    Access,
    Default,
}

/// The value of the xattr; `None` for an access ACL that equals the permission bits, since Linux stores none then. A
/// default ACL of the same entries is stored: new files get their permissions from it.
pub(super) fn parse(
    text: &[u8],
    kind: AclKind,
    accounts: &mut AccountLookup,
) -> Result<Option<Vec<u8>>, String> {
    let mut entries = Vec::new();
    for line in text.split(|byte| matches!(byte, b',' | b'\n')) {
        let line = line.split(|byte| *byte == b'#').next().unwrap_or_default().trim_ascii();
        if !line.is_empty() {
            entries.push(entry(line, accounts)?);
        }
    }
    if entries.is_empty() {
        return Ok(None);
    }
    entries.sort_unstable();
    check(&entries)?;
    if kind == AclKind::Access && entries.len() == 3 {
        return Ok(None);
    }
    let mut value = VERSION.to_le_bytes().to_vec();
    for AclEntry { tag, id, permissions } in entries {
        value.extend_from_slice(&tag.to_le_bytes());
        value.extend_from_slice(&permissions.to_le_bytes());
        value.extend_from_slice(&id.to_le_bytes());
    }
    Ok(Some(value))
}

fn entry(line: &[u8], accounts: &mut AccountLookup) -> Result<AclEntry, String> {
    let wrong = || format!("\"{}\" is not an ACL entry", line.escape_ascii());
    let mut fields = line.split(|byte| *byte == b':').map(<[u8]>::trim_ascii);
    let tag = fields.next().unwrap_or_default();
    // mask and other have no qualifier, and its colon is optional.
    let rest: Vec<_> = fields.collect();
    let (qualifier, permissions, id) = match (tag, rest.as_slice()) {
        (b"mask" | b"m" | b"other" | b"o", [permissions]) => (&b""[..], *permissions, None),
        (_, [qualifier, permissions]) => (*qualifier, *permissions, None),
        (_, [qualifier, permissions, id]) => (*qualifier, *permissions, Some(*id)),
        _ => return Err(wrong()),
    };
    let tag = match (tag, qualifier.is_empty()) {
        (b"user" | b"u", true) => USER_OBJECT,
        (b"user" | b"u", false) => USER,
        (b"group" | b"g", true) => GROUP_OBJECT,
        (b"group" | b"g", false) => GROUP,
        (b"mask" | b"m", true) => MASK,
        (b"other" | b"o", true) => OTHER,
        _ => return Err(wrong()),
    };
    let id = match (qualifier.is_empty(), id) {
        (true, None) => NO_ID,
        (true, Some(_)) => return Err(wrong()),
        (false, Some(id)) => number(id).ok_or_else(wrong)?,
        (false, None) if qualifier.iter().all(u8::is_ascii_digit) => {
            number(qualifier).ok_or_else(wrong)?
        }
        (false, None) => {
            let kind = if tag == USER { AccountKind::User } else { AccountKind::Group };
            let number = accounts.number(kind, qualifier);
            number.map_err(|why| format!("\"{}\": {why}", line.escape_ascii()))?
        }
    };
    let permissions = permission_bits(permissions).ok_or_else(wrong)?;
    Ok(AclEntry { tag, id, permissions })
}

fn number(text: &[u8]) -> Option<u32> {
    if !text.iter().all(u8::is_ascii_digit) {
        return None;
    }
    std::str::from_utf8(text).ok()?.parse().ok().filter(|id| *id != NO_ID)
}

fn permission_bits(text: &[u8]) -> Option<u16> {
    let mut bits = 0;
    for letter in text {
        bits |= match letter {
            b'r' => 4,
            b'w' => 2,
            b'x' => 1,
            b'-' => 0,
            _ => return None,
        };
    }
    (1..=3).contains(&text.len()).then_some(bits)
}

/// Checks what Linux requires: owner, group and others once each, a mask if users or groups are
/// named, and no user or group twice.
fn check(entries: &[AclEntry]) -> Result<(), String> {
    let count = |tag| entries.iter().filter(|entry| entry.tag == tag).count();
    let is_whole = [USER_OBJECT, GROUP_OBJECT, OTHER].iter().all(|tag| count(*tag) == 1);
    let named = count(USER) + count(GROUP);
    let is_double =
        entries.windows(2).any(|pair| matches!(pair, [a, b] if (a.tag, a.id) == (b.tag, b.id)));
    if !is_whole || is_double || count(MASK) > 1 {
        return Err("an ACL needs one entry each for owner, group and others, and no entry twice"
            .to_owned());
    }
    if named > 0 && count(MASK) == 0 {
        return Err("an ACL with named users or groups needs a mask".to_owned());
    }
    Ok(())
}

/// The most bytes of an account file: some hundred thousand accounts.
const FILE_BYTES_MAX: u64 = 16 << 20;

/// The files that list accounts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AccountFiles {
    /// Users, in lines of `NAME:PASSWORD:NUMBER:…`.
    pub users: PathBuf,
    /// Groups, in the same form.
    pub groups: PathBuf,
}

impl AccountFiles {
    /// `/etc/passwd` and `/etc/group`.
    #[must_use]
    pub fn of_host() -> Self {
        Self { users: PathBuf::from("/etc/passwd"), groups: PathBuf::from("/etc/group") }
    }
}

/// The list of a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AccountKind {
    User,
    Group,
}

/// Accounts by name; each file is read at its first lookup.
#[derive(Debug, Default)]
pub(super) struct AccountLookup {
    files: Option<AccountFiles>,
    users: Option<HashMap<Vec<u8>, u32>>,
    groups: Option<HashMap<Vec<u8>, u32>>,
}

impl AccountLookup {
    /// The accounts in `files`, or none.
    pub(super) fn new(files: Option<AccountFiles>) -> Self {
        Self { files, ..Self::default() }
    }

    /// The number of a name.
    ///
    /// # Errors
    /// The name is not in the list, there is no list, or it cannot be read.
    pub(super) fn number(&mut self, kind: AccountKind, name: &[u8]) -> Result<u32, String> {
        let what = if kind == AccountKind::User { "user" } else { "group" };
        let escaped = name.escape_ascii();
        let Some(files) = &self.files else {
            return Err(format!("the {what} {escaped} has no numeric id"));
        };
        let (path, list) = match kind {
            AccountKind::User => (&files.users, &mut self.users),
            AccountKind::Group => (&files.groups, &mut self.groups),
        };
        let list = match list {
            Some(list) => list,
            None => list.insert(read(path)?),
        };
        let number = list.get(name).copied();
        number.ok_or_else(|| format!("the {what} {escaped} is not in {}", path.display()))
    }
}

fn read(path: &Path) -> Result<HashMap<Vec<u8>, u32>, String> {
    let mut bytes = Vec::new();
    File::open(path)
        .and_then(|file| file.take(FILE_BYTES_MAX).read_to_end(&mut bytes))
        .map_err(|error| format!("{}: cannot read it: {error}", path.display()))?;
    let mut accounts = HashMap::new();
    for line in bytes.split(|byte| *byte == b'\n') {
        let mut fields = line.split(|byte| *byte == b':');
        let (name, number) = (fields.next().unwrap_or_default(), fields.nth(1));
        let number = number.and_then(|number| std::str::from_utf8(number).ok()?.parse().ok());
        // The first line of a name counts, as in the C library.
        if let (false, Some(number)) = (name.is_empty(), number) {
            accounts.entry(name.to_vec()).or_insert(number);
        }
    }
    Ok(accounts)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_becomes_what_linux_keeps() {
        let wanted = Some(
            [
                &b"\x02\0\0\0"[..],
                b"\x01\0\x07\0\xFF\xFF\xFF\xFF",
                b"\x02\0\x04\0\xE8\x03\0\0",
                b"\x02\0\x06\0\xE9\x03\0\0",
                b"\x04\0\x05\0\xFF\xFF\xFF\xFF",
                b"\x10\0\x07\0\xFF\xFF\xFF\xFF",
                b"\x20\0\0\0\xFF\xFF\xFF\xFF",
            ]
            .concat(),
        );
        for text in [
            "user::rwx,user:1001:rw-,user:1000:r--,group::r-x,mask::rwx,other::---",
            "user::rwx,user:somebody:r--:1000,user:1001:rw-:1001,group::r-x,mask::rwx,other::---",
            "u::rwx\nu:1001:rw\nu:1000:r\t#effective:r--\ng::r-x\nm:rwx\no:---\n",
        ] {
            assert_eq!(
                parse(text.as_bytes(), AclKind::Access, &mut AccountLookup::default()),
                Ok(wanted.clone()),
                "{text}"
            );
        }
    }

    #[test]
    fn what_permission_bits_say_is_left_out() {
        for text in [&b"user::rw-,group::r--,other::r--"[..], b""] {
            assert_eq!(parse(text, AclKind::Access, &mut AccountLookup::default()), Ok(None));
        }
    }

    #[test]
    fn a_default_acl_of_three_entries_is_kept() {
        let text = b"user::rwx,group::rwx,other::---";
        let wanted = [
            &b"\x02\0\0\0"[..],
            b"\x01\0\x07\0\xFF\xFF\xFF\xFF",
            b"\x04\0\x07\0\xFF\xFF\xFF\xFF",
            b"\x20\0\0\0\xFF\xFF\xFF\xFF",
        ]
        .concat();
        let mut accounts = AccountLookup::default();
        assert_eq!(parse(text, AclKind::Default, &mut accounts), Ok(Some(wanted)));
        assert_eq!(parse(b"", AclKind::Default, &mut accounts), Ok(None));
    }

    #[test]
    fn what_is_no_acl_is_refused() {
        for (text, wanted) in [
            ("user:daemon:rwx", "\"user:daemon:rwx\": the user daemon has no numeric id"),
            ("group:daemon:rwx", "\"group:daemon:rwx\": the group daemon has no numeric id"),
            ("user:daemon:rwx:one", "\"user:daemon:rwx:one\" is not an ACL entry"),
            ("user:4294967295:rwx", "\"user:4294967295:rwx\" is not an ACL entry"),
            ("user::rwz", "\"user::rwz\" is not an ACL entry"),
            ("user::rwxr", "\"user::rwxr\" is not an ACL entry"),
            ("nobody::rwx", "\"nobody::rwx\" is not an ACL entry"),
            ("user", "\"user\" is not an ACL entry"),
            ("mask:1:rwx", "\"mask:1:rwx\" is not an ACL entry"),
            (
                "user::rwx",
                "an ACL needs one entry each for owner, group and others, and no entry twice",
            ),
            (
                "u::r,g::r,o::r,u:1:r,u:1:w,m::r",
                "an ACL needs one entry each for owner, group and others, and no entry twice",
            ),
            ("u::r,g::r,o::r,u:1:r", "an ACL with named users or groups needs a mask"),
        ] {
            assert_eq!(
                parse(text.as_bytes(), AclKind::Access, &mut AccountLookup::default()),
                Err(wanted.to_owned()),
                "{text}"
            );
        }
    }

    #[test]
    fn names_are_looked_up_in_their_list() {
        let folder = tempfile::TempDir::new().unwrap();
        let (users, groups) = (folder.path().join("users"), folder.path().join("groups"));
        let lines = "root:x:0:0:root:/root:/bin/sh\n# none\n+\nann:x:1000:5::\nann:x:7\nodd:x:y:\n";
        std::fs::write(&users, lines).unwrap();
        std::fs::write(&groups, "ann:x:5:\n").unwrap();
        let files = AccountFiles { users: users.clone(), groups };
        let mut accounts = AccountLookup::new(Some(files));
        assert_eq!(accounts.number(AccountKind::User, b"ann"), Ok(1000));
        assert_eq!(accounts.number(AccountKind::Group, b"ann"), Ok(5));
        for name in [&b"bob"[..], b"odd", b"+", b""] {
            let message = accounts.number(AccountKind::User, name).unwrap_err();
            assert!(message.ends_with(&format!("is not in {}", users.display())), "{message}");
        }
        let message = AccountLookup::new(None).number(AccountKind::Group, b"ann").unwrap_err();
        assert_eq!(message, "the group ann has no numeric id");
    }

    #[test]
    fn a_list_that_cannot_be_read_is_named() {
        let nowhere = PathBuf::from("/nowhere/at/all");
        let files = AccountFiles { users: nowhere.clone(), groups: nowhere };
        let message =
            AccountLookup::new(Some(files)).number(AccountKind::User, b"ann").unwrap_err();
        assert!(message.starts_with("/nowhere/at/all: cannot read it: "), "{message}");
    }
}

//! Names of users and groups, as ACLs of archives have them, and the numbers that they have on this host.
//!
//! Only files of the form of `/etc/passwd` are asked, and only when the first name is met: an archive that
//! says numbers, as most do, makes the same tree on every host.

use std::collections::HashMap;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

/// Read of a file at most: some hundred thousand accounts.
const FILE_BYTES_MAX: u64 = 16 << 20;

/// The files that list accounts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AccountFiles {
    /// Users: lines of `NAME:PASSWORD:NUMBER:…`.
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

/// Which list a name is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AccountKind {
    User,
    Group,
}

/// Accounts, read as far as they were asked for.
#[derive(Debug, Default)]
pub(super) struct AccountLookup {
    files: Option<AccountFiles>,
    users: Option<HashMap<Vec<u8>, u32>>,
    groups: Option<HashMap<Vec<u8>, u32>>,
}

impl AccountLookup {
    /// Those that `files` list, or none at all.
    pub(super) fn new(files: Option<AccountFiles>) -> Self {
        Self { files, ..Self::default() }
    }

    /// The number of a name.
    ///
    /// # Errors
    /// Nobody has the name, nobody may be asked, or the list cannot be read.
    pub(super) fn number(&mut self, kind: AccountKind, name: &[u8]) -> Result<u32, String> {
        let what = if kind == AccountKind::User { "user" } else { "group" };
        let shown = name.escape_ascii();
        let Some(files) = &self.files else {
            return Err(format!("the {what} {shown} has no number"));
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
        number.ok_or_else(|| format!("the {what} {shown} is not in {}", path.display()))
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
        // Of two lines for a name the first counts, as for everybody who looks it up.
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
            let told = accounts.number(AccountKind::User, name).unwrap_err();
            assert!(told.ends_with(&format!("is not in {}", users.display())), "{told}");
        }
        let told = AccountLookup::new(None).number(AccountKind::Group, b"ann").unwrap_err();
        assert_eq!(told, "the group ann has no number");
    }

    #[test]
    fn a_list_that_cannot_be_read_is_named() {
        let nowhere = PathBuf::from("/nowhere/at/all");
        let files = AccountFiles { users: nowhere.clone(), groups: nowhere };
        let told = AccountLookup::new(Some(files)).number(AccountKind::User, b"ann").unwrap_err();
        assert!(told.starts_with("/nowhere/at/all: cannot read it: "), "{told}");
    }
}

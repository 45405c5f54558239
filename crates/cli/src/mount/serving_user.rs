//! `--user`: the user as whom a mount of root is served, from a name in /etc/passwd or from
//! numbers. Called by `request`.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use ferrofs_mount::sandbox::UserIds;

use crate::output::escape;

/// Where the C library looks for users first. Others, such as those of LDAP, are given by number:
/// a lookup would load their modules into this process.
const USERS: &str = "/etc/passwd";
/// Larger lists of users are not read to their end.
const USERS_BYTES_MAX: u64 = 16 << 20;

/// The user that a word names: `NAME`, or `UID:GID`.
///
/// # Errors
/// There is no such user, or its list cannot be read.
pub(super) fn parse(word: &str) -> Result<UserIds, String> {
    match word.split_once(':') {
        Some((user, group)) => match (user.parse(), group.parse()) {
            (Ok(user), Ok(group)) if user != u32::MAX && group != u32::MAX => {
                Ok(UserIds { user, group })
            }
            _ => Err(format!("{:?} is not UID:GID in numbers", escape(word.as_bytes()))),
        },
        None => of_name(word, Path::new(USERS)),
    }
}

fn of_name(name: &str, users: &Path) -> Result<UserIds, String> {
    let mut text = Vec::new();
    File::open(users)
        .and_then(|file| file.take(USERS_BYTES_MAX).read_to_end(&mut text))
        .map_err(|error| format!("{}: {error}; give UID:GID in numbers", users.display()))?;
    let mut lines = text.split(|byte| *byte == b'\n');
    let found = lines.find_map(|line| {
        let mut fields = line.split(|byte| *byte == b':');
        let is_named = fields.next() == Some(name.as_bytes()) && !name.is_empty();
        let mut number = || std::str::from_utf8(fields.next()?).ok()?.parse::<u32>().ok();
        // The password, which is not read, stands between.
        let _password = number();
        let (user, group) = (number()?, number()?);
        is_named.then_some(UserIds { user, group })
    });
    let terminal_form = escape(name.as_bytes());
    found.ok_or_else(|| {
        format!("{} has no user {terminal_form}; give UID:GID in numbers", users.display())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_looked_up_and_numbers_are_taken_as_they_are() {
        let dir = tempfile::tempdir().unwrap();
        let users = dir.path().join("passwd");
        std::fs::write(&users, "root:x:0:0::/:/bin/sh\nbroken:x:a\nimg:*:71:72:a:b:c\n").unwrap();
        assert_eq!(of_name("img", &users), Ok(UserIds { user: 71, group: 72 }));
        assert_eq!(of_name("root", &users), Ok(UserIds { user: 0, group: 0 }));
        for name in ["", "im", "broken", "71"] {
            assert!(of_name(name, &users).unwrap_err().contains("has no user"), "{name}");
        }
        assert!(of_name("img", &dir.path().join("none")).unwrap_err().contains("UID:GID"));
        assert_eq!(parse("7:8"), Ok(UserIds { user: 7, group: 8 }));
        for word in ["7:", ":8", "a:b", "7:4294967295", "-1:1"] {
            assert!(parse(word).unwrap_err().contains("UID:GID"), "{word}");
        }
    }
}

//! The text files of Android's build system: how `fs_config` and `file_contexts` hold paths and capabilities, for
//! programs that write them; and owners, modes and capabilities from an `fs_config` file ([`FsConfig`]), whose lines are
//! untrusted.

use std::collections::HashMap;
use std::fmt::Write as _;

use crate::tree::Metadata;

/// The xattr with capabilities of a program.
pub const CAPABILITY_XATTR: &[u8] = b"security.capability";
/// The xattr with the label of SELinux.
pub const LABEL_XATTR: &[u8] = b"security.selinux";
/// Revision 2 of the xattr, with the flag that makes the capabilities effective.
const CAPABILITY_MAGIC: u32 = 0x0200_0001;

/// The xattr of a program with this set of capabilities, which are permitted and effective.
#[must_use]
pub fn capability_value(set: u64) -> Vec<u8> {
    let low = set & u64::from(u32::MAX);
    let words = [u64::from(CAPABILITY_MAGIC), low, 0, set >> 32, 0];
    words.iter().flat_map(|word| word.to_le_bytes().into_iter().take(4)).collect()
}

/// The set of capabilities in an xattr; `None` if it says more than a set.
#[must_use]
pub fn capability_set(value: &[u8]) -> Option<u64> {
    let word = |at: usize| Some(u32::from_le_bytes(value.get(at..at + 4)?.try_into().ok()?));
    let set = u64::from(word(4)?) | u64::from(word(12)?) << 32;
    (capability_value(set) == value).then_some(set)
}

/// A path for a line of words: blanks, control characters and backslashes become `\xNN`.
#[must_use]
pub fn escape_path(path: &[u8]) -> Vec<u8> {
    let mut text = Vec::with_capacity(path.len());
    for &byte in path {
        match byte {
            0..=0x20 | b'\\' | 0x7f => text.extend(format!("\\x{byte:02x}").bytes()),
            _ => text.push(byte),
        }
    }
    text
}

/// The path in a line of words; `None` if an escape is malformed.
#[must_use]
pub fn unescape_path(text: &[u8]) -> Option<Vec<u8>> {
    let mut path = Vec::with_capacity(text.len());
    let mut rest = text;
    loop {
        rest = match rest {
            [] => return Some(path),
            [b'\\', b'x', rest @ ..] => {
                let digits = std::str::from_utf8(rest.get(..2)?).ok()?;
                path.extend(parse_hex(digits)?);
                rest.get(2..)?
            }
            [byte, rest @ ..] => {
                path.push(*byte);
                rest
            }
        }
    }
}

/// An expression of `file_contexts` that matches exactly this path. A byte that cannot stand in a
/// line is in brackets, so that libselinux takes the expression for one.
#[must_use]
pub fn escape_expression(path: &[u8]) -> Vec<u8> {
    let mut text = Vec::with_capacity(path.len());
    for &byte in path {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'/' | b'_' | b'-' => text.push(byte),
            0..=0x20 | 0x7f.. => text.extend(format!("[\\x{byte:02x}]").bytes()),
            _ => text.extend([b'\\', byte]),
        }
    }
    text
}

/// Reads a number as erofs-utils reads it: decimal, or hexadecimal after `0x`, or octal after `0`.
fn parse_number(text: &str) -> Result<u64, String> {
    let read = match text.strip_prefix("0x").or_else(|| text.strip_prefix("0X")) {
        Some(digits) => u64::from_str_radix(digits, 16),
        None if text.len() > 1 && text.starts_with('0') => u64::from_str_radix(text, 8),
        None => text.parse(),
    };
    // `from_str_radix` takes a sign, too.
    let is_plain = !text.contains(['+', '-']);
    read.ok().filter(|_| is_plain).ok_or_else(|| "not a number, such as 4096 or 0x1000".to_owned())
}

/// Bytes as hexadecimal digits.
#[must_use]
pub fn hex(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len() * 2);
    for byte in bytes {
        // Writing to a String cannot fail.
        write!(text, "{byte:02x}").unwrap_or_default();
    }
    text
}

/// Bytes from pairs of hexadecimal digits.
#[must_use]
pub fn parse_hex(digits: &str) -> Option<Vec<u8>> {
    let is_hex =
        digits.len().is_multiple_of(2) && digits.bytes().all(|digit| digit.is_ascii_hexdigit());
    let pairs = digits.as_bytes().chunks_exact(2).map(|pair| std::str::from_utf8(pair).ok());
    let bytes = pairs.map(|pair| u8::from_str_radix(pair?, 16).ok()).collect();
    if is_hex { bytes } else { None }
}

/// Lines of a file: more inodes than any system image has.
const ENTRIES_MAX: usize = 16 << 20;

/// What a line says about an inode.
#[derive(Clone, Debug, PartialEq, Eq)]
struct FsConfigEntry {
    uid: u32,
    gid: u32,
    permissions: u16,
    /// The value of the xattr for capabilities.
    capabilities: Option<Box<[u8]>>,
}

/// The lines of a file, by path: relative to the root of the system, without slashes at its ends.
#[derive(Debug, Default)]
pub struct FsConfig {
    entries: HashMap<Box<[u8]>, FsConfigEntry>,
}

impl FsConfig {
    /// Reads a file. The last line about a path counts.
    ///
    /// # Errors
    /// A line is malformed; the error names it.
    pub fn read(name: &str, text: &[u8]) -> Result<Self, String> {
        let mut entries = HashMap::new();
        for (number, line) in (1..).zip(text.split(|byte| *byte == b'\n')) {
            if line.trim_ascii().is_empty() || line.starts_with(b"#") {
                continue;
            }
            let (path, entry) = read_line(line).map_err(|why| format!("{name}:{number}: {why}"))?;
            entries.insert(path, entry);
            if entries.len() > ENTRIES_MAX {
                return Err(format!("{name}:{number}: more than {ENTRIES_MAX} lines"));
            }
        }
        Ok(Self { entries })
    }

    /// Sets what the file says about `path`, which begins with the mount point. Returns whether
    /// there is a line about it.
    pub fn apply(&self, path: &[u8], metadata: &mut Metadata) -> bool {
        let Some(entry) = self.entries.get(path) else { return false };
        (metadata.uid, metadata.gid) = (entry.uid, entry.gid);
        metadata.permissions = entry.permissions;
        match &entry.capabilities {
            Some(value) => metadata.xattrs.insert(CAPABILITY_XATTR.into(), value.clone()),
            None => metadata.xattrs.remove(CAPABILITY_XATTR),
        };
        true
    }
}

/// Reads `PATH UID GID MODE [capabilities=NUMBER]`. The path of the root may be empty.
fn read_line(line: &[u8]) -> Result<(Box<[u8]>, FsConfigEntry), String> {
    let line = line.strip_suffix(b"\r").unwrap_or(line);
    let (path, rest) = match line.first() {
        Some(b' ' | b'\t') => (&b""[..], line),
        _ => {
            let end = line.iter().position(|byte| b" \t".contains(byte)).unwrap_or(line.len());
            line.split_at(end)
        }
    };
    let rest = std::str::from_utf8(rest).map_err(|_| "its numbers are not UTF-8".to_owned())?;
    let mut words = rest.split_ascii_whitespace();
    let mut id = |what: &str| {
        let word = words.next().ok_or_else(|| format!("the {what} is missing"))?;
        word.parse::<u32>().map_err(|_| format!("{word} is not a {what}"))
    };
    let (uid, gid) = (id("user id")?, id("group id")?);
    let mode = words.next().ok_or("the mode is missing")?;
    let permissions = u16::from_str_radix(mode, 8).ok().filter(|mode| *mode <= 0o7777);
    let permissions = permissions.ok_or_else(|| format!("{mode} is not a mode"))?;
    let mut capabilities = None;
    for word in words {
        match word.split_once('=') {
            Some(("capabilities", "0")) => {}
            Some(("capabilities", number)) => {
                let set = parse_number(number).map_err(|why| format!("{word}: {why}"))?;
                capabilities = (set != 0).then(|| capability_value(set).into());
            }
            Some(("capabilities-xattr", digits)) => {
                let value = parse_hex(digits).ok_or_else(|| format!("{word}: not hexadecimal"))?;
                capabilities = Some(value.into());
            }
            // Android has further words, such as selabel=; they say what other files say.
            _ => {}
        }
    }
    let path = unescape_path(path).ok_or_else(|| format!("{}: bad escape", path.escape_ascii()))?;
    let names = path.split(|byte| *byte == b'/').filter(|name| !name.is_empty());
    let path = names.collect::<Vec<_>>().join(&b'/');
    Ok((path.into(), FsConfigEntry { uid, gid, permissions, capabilities }))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::tree::Timestamp;

    #[test]
    fn any_path_comes_back() {
        let all: Vec<u8> = (1..=255).collect();
        let text = escape_path(&all);
        assert!(!text.contains(&b' ') && !text.contains(&b'\n'));
        assert_eq!(unescape_path(&text), Some(all));
        assert_eq!((unescape_path(b"a\\x2"), unescape_path(b"\\x+1")), (None, None));
    }

    #[test]
    fn sets_of_capabilities_come_back() {
        for set in [1, 0x10_0000_1400, 1 << 40] {
            assert_eq!(capability_set(&capability_value(set)), Some(set));
        }
        let mut inheritable = capability_value(1);
        inheritable[8] = 1;
        assert_eq!((capability_set(&inheritable), capability_set(b"x")), (None, None));
    }

    fn applied(text: &str, path: &[u8]) -> Option<(u32, u32, u16, Option<Vec<u8>>)> {
        let config = FsConfig::read("fs_config", text.as_bytes()).unwrap();
        let mtime = Timestamp { seconds: 0, nanoseconds: 0 };
        let xattrs = BTreeMap::from([(CAPABILITY_XATTR.into(), Box::from(&b"old"[..]))]);
        let mut metadata = Metadata { permissions: 0, uid: 9, gid: 9, mtime, xattrs };
        let is_there = config.apply(path, &mut metadata);
        let capabilities = metadata.xattrs.get(CAPABILITY_XATTR).map(|value| value.to_vec());
        is_there.then_some((metadata.uid, metadata.gid, metadata.permissions, capabilities))
    }

    #[test]
    fn lines_of_android_are_understood() {
        let text = "# comment\n 0 0 755 selabel=x\nvendor/bin/cnd 1000 1001 0755 capabilities=0x1000001400\nvendor/ 0 2000 0751\n";
        assert_eq!(applied(text, b""), Some((0, 0, 0o755, None)));
        assert_eq!(applied(text, b"vendor"), Some((0, 2000, 0o751, None)));
        let value = [1, 0, 0, 2, 0, 0x14, 0, 0, 0, 0, 0, 0, 0x10, 0, 0, 0, 0, 0, 0, 0];
        let found = applied(text, b"vendor/bin/cnd").unwrap();
        assert_eq!(found, (1000, 1001, 0o755, Some(value.to_vec())));
        assert_eq!(applied(text, b"vendor/other"), None);
    }

    #[test]
    fn escapes_stand_for_bytes() {
        let text = "a\\x20b\\xff\\x5c 1 2 644\n";
        assert_eq!(applied(text, b"a b\xff\\").unwrap().0, 1);
    }

    #[test]
    fn malformed_lines_are_refused_by_number() {
        for (text, part) in [
            ("a\n", "fs_config:1: the user id is missing"),
            ("\na x 0 644\n", "fs_config:2: x is not a user id"),
            ("a 0 0 999\n", "999 is not a mode"),
            ("a 0 0 17777\n", "17777 is not a mode"),
            ("a 0 0 644 capabilities=x\n", "not a number"),
            ("a\\xzz 0 0 644\n", "bad escape"),
        ] {
            let error = FsConfig::read("fs_config", text.as_bytes()).unwrap_err();
            assert!(error.contains(part), "{error}");
        }
    }
}

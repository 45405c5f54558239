//! How the text files of Android's build system hold paths and capabilities: `fs_config` and
//! `file_contexts`. Used to read them here, and by programs that write them.

use std::fmt::Write as _;

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
pub(super) fn parse_number(text: &str) -> Result<u64, String> {
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

#[cfg(test)]
mod tests {
    use super::*;

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
}

//! The records of a PAX extended header: `LENGTH KEY=VALUE`, where the length counts itself. It owns
//! how values are written, and nothing of which there are; `header` calls it.

use std::io::Write;

/// Records, in the order in which they were added.
#[derive(Debug, Default)]
pub(super) struct PaxRecordWriter {
    bytes: Vec<u8>,
}

impl PaxRecordWriter {
    /// All of them, as they are stored.
    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Adds a record.
    pub(super) fn add(&mut self, key: &[u8], value: &[u8]) {
        let rest = b" =\n".len() + key.len() + value.len();
        let mut length = rest + digits(rest);
        // One more digit may be what makes it one digit longer.
        length = rest + digits(length);
        self.bytes.extend_from_slice(length.to_string().as_bytes());
        self.bytes.push(b' ');
        self.bytes.extend_from_slice(key);
        self.bytes.push(b'=');
        self.bytes.extend_from_slice(value);
        self.bytes.push(b'\n');
    }

    /// Adds a decimal number.
    pub(super) fn add_number(&mut self, key: &[u8], number: u64) {
        self.add(key, number.to_string().as_bytes());
    }

    /// Adds a number for which a header has no limit.
    pub(super) fn add_large(&mut self, key: &[u8], number: u64, limit: u64) {
        if number > limit {
            self.add_number(key, number);
        }
    }

    /// Adds a time that is not a whole number of seconds from 0 to `limit`. The fraction counts from
    /// zero outwards, as in any decimal number: a nanosecond before 1970 is `-0.000000001`.
    pub(super) fn add_time(&mut self, key: &[u8], (seconds, nanoseconds): (i64, u32), limit: u64) {
        if nanoseconds == 0 && u64::try_from(seconds).is_ok_and(|seconds| seconds <= limit) {
            return;
        }
        let total = i128::from(seconds) * 1_000_000_000 + i128::from(nanoseconds);
        let (whole, part) =
            (total.unsigned_abs() / 1_000_000_000, total.unsigned_abs() % 1_000_000_000);
        let sign = if total < 0 { "-" } else { "" };
        let text = match part {
            0 => format!("{sign}{whole}"),
            part => {
                let part = format!("{part:09}");
                format!("{sign}{whole}.{}", part.trim_end_matches('0'))
            }
        };
        self.add(key, text.as_bytes());
    }

    /// Adds an extended attribute. In its name `=` and `%` are written as GNU tar writes them, since
    /// the first `=` ends a key.
    pub(super) fn add_xattr(&mut self, name: &[u8], value: &[u8]) {
        let mut key = b"SCHILY.xattr.".to_vec();
        for byte in name {
            match byte {
                b'=' | b'%' => write!(key, "%{byte:02X}").unwrap_or_default(),
                _ => key.push(*byte),
            }
        }
        self.add(&key, value);
    }
}

/// How many digits a number has.
fn digits(number: usize) -> usize {
    number.checked_ilog10().unwrap_or(0) as usize + 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_counts_itself() {
        for value in 0..1200 {
            let mut records = PaxRecordWriter::default();
            records.add(b"k", &b"v".repeat(value));
            let text = records.bytes();
            let space = text.iter().position(|byte| *byte == b' ').unwrap();
            let length: usize = std::str::from_utf8(&text[..space]).unwrap().parse().unwrap();
            assert_eq!(length, text.len());
        }
    }

    #[test]
    fn the_name_of_an_attribute_cannot_end_its_key() {
        let mut records = PaxRecordWriter::default();
        records.add_xattr(b"user.a=b%", b"=");
        assert_eq!(records.bytes(), b"32 SCHILY.xattr.user.a%3Db%25==\n");
    }
}

//! A header block of an archive: 512 bytes with a checksum, in one of four formats.
//!
//! Offsets and widths are those of POSIX.1-2024 `pax`, "ustar Interchange Format", and of the GNU
//! tar manual, "Basic Tar Format".

use std::ops::Range;

/// Headers and contents come in blocks of this many bytes.
pub(super) const BLOCK_BYTES: usize = 512;

const NAME: Range<usize> = 0..100;
const MODE: Range<usize> = 100..108;
const UID: Range<usize> = 108..116;
const GID: Range<usize> = 116..124;
const SIZE: Range<usize> = 124..136;
const MTIME: Range<usize> = 136..148;
const CHECKSUM: Range<usize> = 148..156;
const TYPE: usize = 156;
const LINK: Range<usize> = 157..257;
const MAGIC: Range<usize> = 257..265;
const MAJOR: Range<usize> = 329..337;
const MINOR: Range<usize> = 337..345;
const PREFIX: Range<usize> = 345..500;
/// star stores two times after a shorter prefix.
const STAR_PREFIX: Range<usize> = 345..476;
const STAR_TIMES: [Range<usize>; 2] = [476..488, 488..500];

/// The format of a header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TarFormat {
    /// Unix v7: no magic, and nothing after the link name.
    V7,
    /// POSIX ustar; PAX archives use it, too.
    Ustar,
    /// star.
    Star,
    /// GNU tar's old format.
    Gnu,
}

/// A header with a valid checksum.
#[derive(Clone)]
pub(super) struct TarHeader {
    block: [u8; BLOCK_BYTES],
}

impl TarHeader {
    /// Parses a block; `None` if its checksum is wrong.
    pub(super) fn parse(block: &[u8; BLOCK_BYTES]) -> Option<Self> {
        let header = Self { block: *block };
        let wanted = parse_number(&header.block[CHECKSUM]).ok()?;
        header.checksums().contains(&wanted).then_some(header)
    }

    /// The sum of all bytes, with spaces in place of the checksum: of unsigned bytes as in the
    /// standard, and of signed bytes as in some old tars.
    fn checksums(&self) -> [i64; 2] {
        let mut sums = [0, 0];
        for (at, byte) in self.block.iter().enumerate() {
            let byte = if CHECKSUM.contains(&at) { b' ' } else { *byte };
            sums[0] += i64::from(byte);
            sums[1] += i64::from(byte.cast_signed());
        }
        sums
    }

    pub(super) fn format(&self) -> TarFormat {
        match &self.block[MAGIC] {
            b"ustar  \0" => TarFormat::Gnu,
            magic if magic.starts_with(b"ustar\0") || magic.starts_with(b"ustar00") => {
                let has_times = STAR_TIMES.iter().all(|time| self.is_star_time(time));
                if has_times && self.block[STAR_PREFIX.end - 1] == 0 {
                    TarFormat::Star
                } else {
                    TarFormat::Ustar
                }
            }
            _ => TarFormat::V7,
        }
    }

    fn is_star_time(&self, at: &Range<usize>) -> bool {
        let field = &self.block[at.clone()];
        matches!(field, [digits @ .., b' '] if digits.iter().all(|byte| matches!(byte, b'0'..=b'7')))
    }

    /// The type flag.
    pub(super) fn type_flag(&self) -> u8 {
        self.block[TYPE]
    }

    /// The path with its prefix.
    pub(super) fn path(&self) -> Vec<u8> {
        let prefix = match self.format() {
            TarFormat::Ustar => until_zero(&self.block[PREFIX]),
            TarFormat::Star => until_zero(&self.block[STAR_PREFIX]),
            TarFormat::V7 | TarFormat::Gnu => &[],
        };
        let name = until_zero(&self.block[NAME]);
        if prefix.is_empty() { name.to_vec() } else { [prefix, b"/", name].concat() }
    }

    /// The target of a link.
    pub(super) fn link(&self) -> Vec<u8> {
        until_zero(&self.block[LINK]).to_vec()
    }

    /// The permission bits, without other bits of the field.
    pub(super) fn permissions(&self) -> Result<u16, String> {
        let mode = self.number(MODE, "mode")?;
        Ok(u16::try_from(mode & 0o7777).unwrap_or(0))
    }

    pub(super) fn uid(&self) -> Result<i64, String> {
        self.number(UID, "owner")
    }

    pub(super) fn gid(&self) -> Result<i64, String> {
        self.number(GID, "group")
    }

    pub(super) fn size(&self) -> Result<i64, String> {
        self.number(SIZE, "size")
    }

    pub(super) fn mtime(&self) -> Result<i64, String> {
        self.number(MTIME, "time")
    }

    /// Major and minor number of a device.
    pub(super) fn device(&self) -> Result<(i64, i64), String> {
        if self.format() == TarFormat::V7 {
            return Err("the archive's format has no device numbers".to_owned());
        }
        Ok((self.number(MAJOR, "major number")?, self.number(MINOR, "minor number")?))
    }

    /// The bytes at `at`, a range of the block.
    pub(super) fn field(&self, at: Range<usize>) -> &[u8] {
        &self.block[at]
    }

    fn number(&self, at: Range<usize>, what: &str) -> Result<i64, String> {
        parse_number(&self.block[at]).map_err(|why| format!("{what} {why}"))
    }
}

/// Parses a number: octal digits between spaces, nothing (0), or, if the top bit is set, two's
/// complement in big-endian order.
pub(super) fn parse_number(field: &[u8]) -> Result<i64, String> {
    if let [first @ (0x80 | 0xFF), rest @ ..] = field {
        return binary(*first == 0xFF, rest);
    }
    let text = until_zero(field).trim_ascii();
    let mut number = 0_i64;
    for byte in text {
        if !matches!(byte, b'0'..=b'7') {
            return Err(format!("\"{}\" is not an octal number", text.escape_ascii()));
        }
        let more = number.checked_mul(8).and_then(|more| more.checked_add(i64::from(byte - b'0')));
        number = more.ok_or("is out of range")?;
    }
    Ok(number)
}

fn binary(is_negative: bool, bytes: &[u8]) -> Result<i64, String> {
    let sign = if is_negative { 0xFF } else { 0 };
    let (high, low) = bytes.split_at(bytes.len().saturating_sub(8));
    let mut word = [sign; 8];
    word[8 - low.len()..].copy_from_slice(low);
    let number = i64::from_be_bytes(word);
    if high.iter().any(|byte| *byte != sign) || (number < 0) != is_negative {
        return Err("is out of range".to_owned());
    }
    Ok(number)
}

/// The bytes before the first zero.
pub(super) fn until_zero(field: &[u8]) -> &[u8] {
    field.split(|byte| *byte == 0).next().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_octal_or_binary() {
        for (field, wanted) in [
            (&b"0000644\0"[..], 0o644),
            (b"   644 \0", 0o644),
            (b"644     ", 0o644),
            (b"77777777", 0o7777_7777),
            (b"\0\0\0\0\0\0\0\0", 0),
            (b"        ", 0),
            (b"\x80\0\0\0\0\0\x01\x02", 258),
            (b"\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFE", -2),
            (b"\xFF\xFF\xFF\xFF\x80\0\0\0\0\0\0\0", i64::MIN),
            (b"\x80\0\0\0\x7F\xFF\xFF\xFF\xFF\xFF\xFF\xFF", i64::MAX),
        ] {
            assert_eq!(parse_number(field), Ok(wanted), "{}", field.escape_ascii());
        }
    }

    #[test]
    fn what_is_no_number_or_too_large_is_refused() {
        for field in [
            &b"00008\0"[..],
            b"-1\0",
            b"0x12",
            b"12 34",
            b"777777777777777777777777",
            b"\x80\0\0\0\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF",
            b"\x80\x01\0\0\0\0\0\0\0\0\0\0",
            b"\xFF\xFF\xFF\xFF\x7F\xFF\xFF\xFF\xFF\xFF\xFF\xFF",
            b"\xFE\0\0\0",
        ] {
            assert!(parse_number(field).is_err(), "{}", field.escape_ascii());
        }
    }
}

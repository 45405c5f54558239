//! The headers of an archive's entries: blocks of 512 bytes with a checksum, in one of four formats ([`TarHeader`]);
//! [`PaxRecords`], `LENGTH KEY=VALUE\n`, which hold what does not fit into a block; and the sparse maps that both have.
//! `entry_reader` puts them together.
//!
//! Offsets and widths in a block are those of POSIX.1-2024 `pax`, "ustar Interchange Format", and of the GNU tar manual,
//! "Basic Tar Format".
//!
//! Records are those of POSIX.1-2024 `pax`, "pax Extended Header"; the keys `GNU.sparse.*` are those of the GNU tar
//! manual, `SCHILY.*` those of star, `LIBARCHIVE.xattr.*` those of libarchive. The last record of a
//! key counts. Unknown keys are ignored, as the standard requires.

use std::collections::BTreeMap;
use std::ops::Range;

use crate::tree::Timestamp;

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

/// The longest name of an xattr on Linux.
const XATTR_NAME_BYTES_MAX: usize = 255;
/// The longest value of an xattr on Linux.
const XATTR_VALUE_BYTES_MAX: usize = 64 << 10;

/// The entries that records apply to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PaxScope {
    /// The next entry.
    Entry,
    /// All entries that follow.
    All,
}

/// Xattrs by name, as in [`Metadata`](crate::tree::Metadata).
pub(super) type PaxXattrs = BTreeMap<Box<[u8]>, Box<[u8]>>;

/// The values of records.
#[derive(Clone, Debug, Default)]
pub(super) struct PaxRecords {
    pub(super) path: Option<Vec<u8>>,
    pub(super) link: Option<Vec<u8>>,
    pub(super) size: Option<u64>,
    pub(super) uid: Option<i64>,
    pub(super) gid: Option<i64>,
    pub(super) mtime: Option<Timestamp>,
    pub(super) major: Option<u64>,
    pub(super) minor: Option<u64>,
    pub(super) xattrs: PaxXattrs,
    /// The text of the access ACL and of the default ACL.
    pub(super) access_acl: Option<Vec<u8>>,
    pub(super) default_acl: Option<Vec<u8>>,
    pub(super) sparse: SparseRecords,
}

impl PaxRecords {
    /// Adds the records of one extended header.
    pub(super) fn read(&mut self, mut bytes: &[u8], scope: PaxScope) -> Result<(), String> {
        // Some writers pad the last record with zeros.
        while bytes.iter().any(|byte| *byte != 0) {
            let PaxRecord { key, value, behind } = split_record(bytes)?;
            if scope == PaxScope::All && !may_be_global(key) {
                return Err(format!("a global header sets {}", shown_key(key)));
            }
            self.set(key, value).map_err(|why| format!("the record {}: {why}", shown_key(key)))?;
            bytes = behind;
        }
        Ok(())
    }

    fn set(&mut self, key: &[u8], value: &[u8]) -> Result<(), String> {
        // An empty value removes an earlier one, except that of an xattr, which may be empty.
        let given = (!value.is_empty()).then_some(value);
        match key {
            b"path" => self.path = given.map(name).transpose()?,
            b"linkpath" => self.link = given.map(name).transpose()?,
            b"size" => self.size = given.map(decimal).transpose()?,
            b"uid" => self.uid = given.map(signed).transpose()?,
            b"gid" => self.gid = given.map(signed).transpose()?,
            b"mtime" => self.mtime = given.map(time).transpose()?,
            b"SCHILY.devmajor" => self.major = given.map(decimal).transpose()?,
            b"SCHILY.devminor" => self.minor = given.map(decimal).transpose()?,
            b"SCHILY.acl.access" => self.access_acl = given.map(<[u8]>::to_vec),
            b"SCHILY.acl.default" => self.default_acl = given.map(<[u8]>::to_vec),
            b"hdrcharset" => return charset(value),
            _ => return self.set_by_prefix(key, value),
        }
        Ok(())
    }

    fn set_by_prefix(&mut self, key: &[u8], value: &[u8]) -> Result<(), String> {
        if let Some(key) = key.strip_prefix(b"SCHILY.xattr.") {
            // GNU tar escapes `=`, which would end the key, and `%`.
            let name = unescaped(key, |code| matches!(code, b'=' | b'%'));
            return self.set_xattr(name, value.to_vec());
        }
        if let Some(key) = key.strip_prefix(b"LIBARCHIVE.xattr.") {
            let value = base64(value).ok_or("is not base64")?;
            return self.set_xattr(unescaped(key, |_| true), value);
        }
        if key == b"RHT.security.selinux" {
            // The record is text, and the xattr a C string.
            return self.set_xattr(b"security.selinux".to_vec(), [value, b"\0"].concat());
        }
        match key.strip_prefix(b"GNU.sparse.") {
            Some(key) => self.sparse.set(key, value),
            None => Ok(()),
        }
    }

    fn set_xattr(&mut self, name: Vec<u8>, value: Vec<u8>) -> Result<(), String> {
        if name.is_empty() || name.len() > XATTR_NAME_BYTES_MAX || name.contains(&0) {
            return Err(format!("the xattr name of {} bytes is not valid", name.len()));
        }
        if value.len() > XATTR_VALUE_BYTES_MAX {
            return Err(format!("{} bytes exceed the maximum size of an xattr", value.len()));
        }
        self.xattrs.insert(name.into(), value.into());
        Ok(())
    }
}

/// The keys of global headers: owner and time. With a name, a size or an xattr for all entries, an
/// archive of a few bytes could make a tree of any size.
fn may_be_global(key: &[u8]) -> bool {
    const LOCAL: [&[u8]; 10] = [
        b"path",
        b"linkpath",
        b"size",
        b"SCHILY.devmajor",
        b"SCHILY.devminor",
        b"SCHILY.acl.",
        b"SCHILY.xattr.",
        b"LIBARCHIVE.xattr.",
        b"RHT.security.selinux",
        b"GNU.sparse.",
    ];
    !LOCAL.iter().any(|local| key == *local || local.ends_with(b".") && key.starts_with(local))
}

/// A record, and the bytes after it.
struct PaxRecord<'a> {
    key: &'a [u8],
    value: &'a [u8],
    behind: &'a [u8],
}

/// The first record of `bytes`.
fn split_record(bytes: &[u8]) -> Result<PaxRecord<'_>, String> {
    let wrong = |what: &str| format!("an extended header holds a record {what}");
    let digits = bytes.iter().take_while(|byte| byte.is_ascii_digit()).count();
    let (length, rest) = bytes.split_at(digits);
    let length = decimal(length).map_err(|_| wrong("without a length"))?;
    let wanted = usize::try_from(length).ok().and_then(|length| length.checked_sub(digits));
    let Some((record, behind)) = wanted.and_then(|wanted| rest.split_at_checked(wanted)) else {
        return Err(wrong(&format!("of {length} bytes, which do not fit into it")));
    };
    let record = record.strip_prefix(b" ").and_then(|record| record.strip_suffix(b"\n"));
    let record = record.ok_or_else(|| wrong(&format!("whose length of {length} is wrong")))?;
    let equals = record.iter().position(|byte| *byte == b'=').filter(|at| *at > 0);
    let equals = equals.ok_or_else(|| wrong("without a key"))?;
    Ok(PaxRecord { key: &record[..equals], value: &record[equals + 1..], behind })
}

/// A key for messages.
fn shown_key(key: &[u8]) -> String {
    let (front, more) = key.split_at(key.len().min(80));
    format!("{}{}", front.escape_ascii(), if more.is_empty() { "" } else { "..." })
}

fn name(value: &[u8]) -> Result<Vec<u8>, String> {
    if value.contains(&0) {
        return Err("holds a byte 0".to_owned());
    }
    Ok(value.to_vec())
}

/// A decimal number without a sign.
pub(super) fn decimal(value: &[u8]) -> Result<u64, String> {
    let text =
        str::from_utf8(value).ok().filter(|text| text.bytes().all(|byte| byte.is_ascii_digit()));
    let number = text.and_then(|text| text.parse().ok());
    number.ok_or_else(|| format!("\"{}\" is not a number, or too large", shown_key(value)))
}

fn signed(value: &[u8]) -> Result<i64, String> {
    let (is_negative, digits) = match value.strip_prefix(b"-") {
        Some(digits) => (true, digits),
        None => (false, value),
    };
    let number = decimal(digits)?;
    let signed =
        if is_negative { 0_i64.checked_sub_unsigned(number) } else { i64::try_from(number).ok() };
    signed.ok_or_else(|| format!("\"{}\" is not a number, or too large", shown_key(value)))
}

/// Seconds with a fraction, rounded down to nanoseconds.
fn time(value: &[u8]) -> Result<Timestamp, String> {
    let wrong = || format!("\"{}\" is not a time", shown_key(value));
    let mut parts = value.splitn(2, |byte| *byte == b'.');
    let whole = parts.next().unwrap_or_default();
    let fraction = parts.next().unwrap_or_default();
    let is_negative = whole.starts_with(b"-");
    if !fraction.iter().all(u8::is_ascii_digit) || whole.is_empty() {
        return Err(wrong());
    }
    let seconds = signed(whole)?;
    let digits = fraction.iter().chain(std::iter::repeat(&b'0')).take(9);
    let mut nanoseconds = digits.fold(0_u32, |sum, digit| sum * 10 + u32::from(digit - b'0'));
    if !is_negative {
        return Ok(Timestamp { seconds, nanoseconds });
    }
    nanoseconds += u32::from(fraction.iter().skip(9).any(|digit| *digit != b'0'));
    if nanoseconds == 0 {
        return Ok(Timestamp { seconds, nanoseconds });
    }
    let seconds = seconds.checked_sub(1).ok_or_else(wrong)?;
    Ok(Timestamp { seconds, nanoseconds: 1_000_000_000 - nanoseconds })
}

/// Names are bytes here, so both character sets of the standard are accepted.
fn charset(value: &[u8]) -> Result<(), String> {
    match value {
        b"" | b"BINARY" | b"ISO-IR 10646 2000 UTF-8" => Ok(()),
        _ => Err(format!("the character set \"{}\" is unknown", shown_key(value))),
    }
}

/// Replaces `%` and two hexadecimal digits by their byte, if it is `wanted`.
fn unescaped(text: &[u8], wanted: impl Fn(u8) -> bool) -> Vec<u8> {
    let mut output = Vec::with_capacity(text.len());
    let mut rest = text;
    while let [first, behind @ ..] = rest {
        let code = match rest {
            [b'%', high, low, ..] => hexadecimal(*high, *low).filter(|code| wanted(*code)),
            _ => None,
        };
        output.push(code.unwrap_or(*first));
        rest = if code.is_some() { rest.get(3..).unwrap_or_default() } else { behind };
    }
    output
}

fn hexadecimal(high: u8, low: u8) -> Option<u8> {
    let digit = |byte: u8| char::from(byte).to_digit(16).and_then(|digit| u8::try_from(digit).ok());
    Some(digit(high)? << 4 | digit(low)?)
}

/// RFC 4648, with or without padding.
fn base64(text: &[u8]) -> Option<Vec<u8>> {
    let text = text.trim_ascii_end();
    let text = text.strip_suffix(b"=").unwrap_or(text);
    let text = text.strip_suffix(b"=").unwrap_or(text);
    let mut output = Vec::with_capacity(text.len() / 4 * 3 + 2);
    for group in text.chunks(4) {
        let mut bits = 0_u32;
        for letter in group {
            let digit = match letter {
                b'A'..=b'Z' => letter - b'A',
                b'a'..=b'z' => letter - b'a' + 26,
                b'0'..=b'9' => letter - b'0' + 52,
                b'+' => 62,
                b'/' => 63,
                _ => return None,
            };
            bits = bits << 6 | u32::from(digit);
        }
        if group.len() == 1 {
            return None;
        }
        let [_, bytes @ ..] = (bits << (6 * (4 - group.len()))).to_be_bytes();
        output.extend_from_slice(&bytes[..group.len() - 1]);
    }
    Some(output)
}

/// A data range of a sparse file, and the place of its bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SparseExtent {
    /// The offset in the file.
    pub(super) start: u64,
    /// The length, which is not 0.
    pub(super) bytes: u64,
    /// The offset in the backing of the archive.
    pub(super) place: u64,
}

/// The map of a sparse file while it is read. GNU tar has four formats for it: in the header
/// ("old"), in repeated records (0.0), in one record (0.1), and before the data (1.0).
#[derive(Clone, Debug, Default)]
pub(super) struct SparseMap {
    /// In the order of the file; places count from the first stored byte.
    segments: Vec<SparseExtent>,
    /// The stored bytes of all ranges so far.
    stored: u64,
    /// The end of the last range.
    end: u64,
}

impl SparseMap {
    /// Adds a range of `bytes` bytes from `start`.
    pub(super) fn push(&mut self, start: u64, bytes: u64) -> Result<(), String> {
        let wrong =
            |what: &str| format!("its map has a part of {bytes} bytes at {start}, which {what}");
        let end = start.checked_add(bytes).filter(|end| i64::try_from(*end).is_ok());
        let end = end.ok_or_else(|| wrong("ends past the largest file size"))?;
        if start < self.end {
            return Err(wrong("begins before the previous one ends"));
        }
        self.end = end;
        if bytes == 0 {
            return Ok(());
        }
        match self.segments.last_mut() {
            Some(last) if last.start + last.bytes == start => last.bytes += bytes,
            _ => {
                self.segments.try_reserve(1).map_err(|_| "its map does not fit into memory")?;
                self.segments.push(SparseExtent { start, bytes, place: self.stored });
            }
        }
        // Ranges do not overlap and end within 63 bits, so their sum does, too.
        self.stored += bytes;
        Ok(())
    }

    /// Checks that there are no more than `extents_max` ranges.
    pub(super) fn check_count(&self, extents_max: usize) -> Result<(), String> {
        if self.segments.len() <= extents_max {
            return Ok(());
        }
        Err(format!(
            "its map has more than {extents_max} parts, the limit; more memory allows more"
        ))
    }

    /// The ranges of a file of `bytes` bytes, of which the archive holds `stored`.
    pub(super) fn finish(self, bytes: u64, stored: u64) -> Result<Vec<SparseExtent>, String> {
        if self.end > bytes {
            return Err(format!("its map ends at byte {}, but the file ends at {bytes}", self.end));
        }
        if self.stored != stored {
            return Err(format!(
                "its map has {} bytes of data, but the archive has {stored}",
                self.stored
            ));
        }
        Ok(self.segments)
    }
}

/// The records of a sparse file.
#[derive(Clone, Debug, Default)]
pub(super) struct SparseRecords {
    /// The name of the file; the header has another one, for tars without this extension.
    pub(super) name: Option<Vec<u8>>,
    major: Option<u64>,
    minor: Option<u64>,
    bytes: Option<u64>,
    parts: Option<u64>,
    /// The offset of a range whose length comes next.
    offset: Option<u64>,
    map: Option<SparseMap>,
}

/// The place of the map of a sparse file.
#[derive(Clone, Debug)]
pub(super) enum SparseForm {
    /// In the records.
    InRecords { bytes: u64, map: SparseMap },
    /// Before the data.
    BeforeData { bytes: u64 },
}

impl SparseRecords {
    /// Adds the record `GNU.sparse.KEY`.
    pub(super) fn set(&mut self, key: &[u8], value: &[u8]) -> Result<(), String> {
        match key {
            b"major" => self.major = Some(decimal(value)?),
            b"minor" => self.minor = Some(decimal(value)?),
            b"name" if value.contains(&0) => return Err("holds a byte 0".to_owned()),
            b"name" => self.name = Some(value.to_vec()),
            b"size" | b"realsize" => self.bytes = Some(decimal(value)?),
            b"numblocks" => self.parts = Some(decimal(value)?),
            b"offset" => self.offset = Some(decimal(value)?),
            b"numbytes" => {
                let offset = self.offset.take().ok_or("comes without an offset")?;
                self.map.get_or_insert_default().push(offset, decimal(value)?)?;
            }
            b"map" => self.map = Some(list(value)?),
            _ => return Err("is not known".to_owned()),
        }
        Ok(())
    }

    /// The place of the map, if the file is sparse.
    pub(super) fn form(&mut self) -> Result<Option<SparseForm>, String> {
        let map = self.map.take();
        match (self.major.unwrap_or(0), self.minor, self.bytes) {
            (0, None | Some(0 | 1), None) if map.is_none() && self.parts.is_none() => Ok(None),
            (0, None | Some(0 | 1), Some(bytes)) => {
                let map = map.unwrap_or_default();
                Ok(Some(SparseForm::InRecords { bytes: in_range(bytes)?, map }))
            }
            (1, None | Some(0), Some(bytes)) => {
                Ok(Some(SparseForm::BeforeData { bytes: in_range(bytes)? }))
            }
            (0 | 1, _, None) => Err("it is sparse, but its size is missing".to_owned()),
            (major, minor, _) => {
                Err(format!("it is sparse in the unknown format {major}.{}", minor.unwrap_or(0)))
            }
        }
    }
}

fn in_range(bytes: u64) -> Result<u64, String> {
    match i64::try_from(bytes) {
        Ok(_) => Ok(bytes),
        Err(_) => Err(format!("its size of {bytes} bytes is more than a file can have")),
    }
}

/// `OFFSET,LENGTH,OFFSET,LENGTH…`
fn list(value: &[u8]) -> Result<SparseMap, String> {
    let mut map = SparseMap::default();
    let mut fields = value.split(|byte| *byte == b',');
    while let Some(offset) = fields.next() {
        if value.is_empty() {
            break;
        }
        let length = fields.next().ok_or("its last part has no length")?;
        map.push(decimal(offset)?, decimal(length)?)?;
    }
    Ok(map)
}

#[cfg(test)]
mod tests {
    use super::super::tests::record;
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

    fn records(parts: &[(&str, &[u8])]) -> Result<PaxRecords, String> {
        let bytes: Vec<u8> = parts.iter().flat_map(|(key, value)| record(key, value)).collect();
        let mut records = PaxRecords::default();
        records.read(&bytes, PaxScope::Entry)?;
        Ok(records)
    }

    #[test]
    fn times_are_cut_to_nanoseconds_downwards() {
        for (text, seconds, nanoseconds) in [
            ("0", 0, 0),
            ("1.5", 1, 500_000_000),
            ("1234567890.123456789", 1_234_567_890, 123_456_789),
            ("1.9999999999", 1, 999_999_999),
            ("-1", -1, 0),
            ("-1.5", -2, 500_000_000),
            ("-0.25", -1, 750_000_000),
            ("-1.0000000001", -2, 999_999_999),
            ("3.", 3, 0),
            ("-9223372036854775808", i64::MIN, 0),
            ("-9223372036854775807.5", i64::MIN, 500_000_000),
        ] {
            assert_eq!(time(text.as_bytes()), Ok(Timestamp { seconds, nanoseconds }), "{text}");
        }
        for text in [
            "",
            ".5",
            "1.x",
            "1,5",
            "1e9",
            "--1",
            "9223372036854775808",
            "-9223372036854775809",
            "1.-5",
        ] {
            assert!(time(text.as_bytes()).is_err(), "{text}");
        }
    }

    #[test]
    fn the_last_of_two_records_counts_and_an_empty_one_takes_back() {
        let found =
            records(&[("path", b"a"), ("path", b"b"), ("uid", b"5"), ("uid", b"")]).unwrap();
        assert_eq!((found.path, found.uid), (Some(b"b".to_vec()), None));
    }

    #[test]
    fn xattrs_come_in_three_spellings() {
        let found = records(&[
            ("SCHILY.xattr.user.a%3Db%25%41", b"x=y\n\0"),
            ("SCHILY.xattr.user.empty", b""),
            ("LIBARCHIVE.xattr.user.c%2Fd", b"AAECAw"),
            ("RHT.security.selinux", b"u:r:t:s0"),
        ])
        .unwrap();
        let found: Vec<_> = found.xattrs.iter().map(|(name, value)| (&**name, &**value)).collect();
        let wanted: [(&[u8], &[u8]); 4] = [
            (b"security.selinux", b"u:r:t:s0\0"),
            (b"user.a=b%%41", b"x=y\n\0"),
            (b"user.c/d", &[0, 1, 2, 3]),
            (b"user.empty", b""),
        ];
        assert_eq!(found, wanted);
    }

    #[test]
    fn base64_is_read_with_and_without_padding() {
        for (text, wanted) in
            [("", ""), ("YQ", "a"), ("YQ==", "a"), ("YWI=", "ab"), ("YWJj", "abc")]
        {
            assert_eq!(base64(text.as_bytes()).as_deref(), Some(wanted.as_bytes()), "{text}");
        }
        for text in ["Y", "YW*j", "YWJjY"] {
            assert_eq!(base64(text.as_bytes()), None, "{text}");
        }
    }

    #[test]
    fn a_global_header_sets_no_names_and_no_xattrs() {
        let mut records = PaxRecords::default();
        records.read(&record("uid", b"7"), PaxScope::All).unwrap();
        records.read(&record("comment", b"hello"), PaxScope::All).unwrap();
        assert_eq!(records.uid, Some(7));
        for key in ["path", "size", "SCHILY.xattr.user.a", "GNU.sparse.major", "SCHILY.acl.access"]
        {
            let error = records.read(&record(key, b"1"), PaxScope::All).unwrap_err();
            assert_eq!(error, format!("a global header sets {key}"));
        }
    }

    #[test]
    fn records_that_do_not_fit_are_refused() {
        for (bytes, wanted) in [
            (&b"99 a=b\n"[..], "of 99 bytes, which do not fit into it"),
            (b"a=b\n", "without a length"),
            (b"99999999999999999999 a=b\n", "without a length"),
            (b"0 a=b\n", "of 0 bytes, which do not fit into it"),
            (b"1 a=b\n", "whose length of 1 is wrong"),
            (b"5 a=b\n", "whose length of 5 is wrong"),
            (b"6 abc\n", "without a key"),
            (b"6 =ab\n", "without a key"),
        ] {
            let mut records = PaxRecords::default();
            let error = records.read(bytes, PaxScope::Entry).unwrap_err();
            assert_eq!(error, format!("an extended header holds a record {wanted}"));
        }
    }
}

//! The headers of a tar: a ustar block for each member, and before it the PAX records of the values
//! that do not fit into the block. It writes to memory only. Called by `render`.
//!
//! The bytes depend on the member alone, so the same tree gives the same bytes.

use std::io::Write;

use ferrofs_image::{Timestamp, Xattr};

/// Bytes of a block. Headers and contents begin at a multiple of it.
pub(super) const BLOCK_BYTES: usize = 512;

/// The type of a member, as its header stores it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum TypeFlag {
    File = b'0',
    Link = b'1',
    Symlink = b'2',
    CharDevice = b'3',
    BlockDevice = b'4',
    Directory = b'5',
    Fifo = b'6',
    /// The PAX records of the next member.
    Extended = b'x',
}

/// A member of a tar, without its content.
#[derive(Clone, Copy, Debug)]
pub(super) struct MemberHeader<'a> {
    /// The relative path; that of a directory ends with a slash.
    pub(super) path: &'a [u8],
    pub(super) kind: TypeFlag,
    /// The target of a symlink, or the path of the first name of a hard link.
    pub(super) target: &'a [u8],
    /// The lower 12 bits of a mode.
    pub(super) mode: u32,
    pub(super) uid: u32,
    pub(super) gid: u32,
    /// Bytes of content that follow, without padding.
    pub(super) bytes: u64,
    pub(super) mtime: Timestamp,
    /// Major and minor number of a device.
    pub(super) device: (u32, u32),
    /// Names and values.
    pub(super) xattrs: &'a [Xattr],
    /// The size of a sparse file, whose content is a map and the data.
    pub(super) sparse_size: Option<u64>,
}

/// A field of a ustar header.
#[derive(Clone, Copy, Debug)]
struct Field {
    start: usize,
    bytes: usize,
}

impl Field {
    const fn new(start: usize, bytes: usize) -> Self {
        Self { start, bytes }
    }

    /// The largest number that the field holds: octal digits and a NUL.
    const fn max_number(self) -> u64 {
        (1 << (3 * (self.bytes - 1))) - 1
    }
}

/// The fields of a ustar header.
mod field {
    use super::Field;

    pub(super) const NAME: Field = Field::new(0, 100);
    pub(super) const MODE: Field = Field::new(100, 8);
    pub(super) const UID: Field = Field::new(108, 8);
    pub(super) const GID: Field = Field::new(116, 8);
    pub(super) const SIZE: Field = Field::new(124, 12);
    pub(super) const MTIME: Field = Field::new(136, 12);
    pub(super) const CHECKSUM: Field = Field::new(148, 8);
    pub(super) const KIND: Field = Field::new(156, 1);
    pub(super) const TARGET: Field = Field::new(157, 100);
    pub(super) const MAGIC: Field = Field::new(257, 8);
    pub(super) const MAJOR: Field = Field::new(329, 8);
    pub(super) const MINOR: Field = Field::new(337, 8);
    pub(super) const PREFIX: Field = Field::new(345, 155);
}

/// Appends the headers of `member`.
pub(super) fn write(out: &mut Vec<u8>, member: &MemberHeader<'_>) {
    write_extended(out, member);
    let sparse_name;
    let name = if member.sparse_size.is_some() {
        sparse_name = pax_header_path(member.path, b"GNUSparseFile.0/");
        &sparse_name
    } else {
        member.path
    };
    let mut block = HeaderBlock::new(member.kind, name);
    block.number(field::MODE, u64::from(member.mode));
    block.number(field::UID, u64::from(member.uid));
    block.number(field::GID, u64::from(member.gid));
    block.number(field::SIZE, member.bytes);
    block.number(field::MTIME, u64::try_from(member.mtime.seconds).unwrap_or(0));
    block.text(field::TARGET, member.target);
    block.number(field::MAJOR, u64::from(member.device.0));
    block.number(field::MINOR, u64::from(member.device.1));
    out.extend_from_slice(&block.finished());
}

/// Appends the PAX records of `member` with their header, if it has any. Attributes can take 16 MiB, so
/// the records are made where they stay, and their header is filled in when their length is known.
fn write_extended(out: &mut Vec<u8>, member: &MemberHeader<'_>) {
    let start = out.len();
    let records_start = start + BLOCK_BYTES;
    out.resize(records_start, 0);
    let mut records = PaxRecordWriter { bytes: std::mem::take(out) };
    add_records(member, &mut records);
    *out = records.bytes;
    let length = out.len() - records_start;
    if length == 0 {
        out.truncate(start);
        return;
    }
    let name = pax_header_path(member.path, b"PaxHeaders.0/");
    let mut block = HeaderBlock::new(TypeFlag::Extended, &name);
    block.number(field::MODE, 0o644);
    block.number(field::SIZE, length as u64);
    out[start..records_start].copy_from_slice(&block.finished());
    pad(out);
}

/// Pads `out`, which begins at a block, with zeros to the end of its last block.
pub(super) fn pad(out: &mut Vec<u8>) {
    out.resize(out.len().next_multiple_of(BLOCK_BYTES), 0);
}

/// Adds the PAX records of the values that do not fit into the ustar header.
fn add_records(member: &MemberHeader<'_>, records: &mut PaxRecordWriter) {
    let fits_path = split(member.path).is_some();
    let fits_target = member.target.len() <= field::TARGET.bytes;
    let has_path = !fits_path || member.sparse_size.is_some();
    // Records are UTF-8 by default, and some readers normalize it. So texts that fit stay in the
    // header, which has no encoding, and records of other bytes get `hdrcharset`.
    if (has_path && !member.path.is_ascii()) || (!fits_target && !member.target.is_ascii()) {
        records.add(b"hdrcharset", b"BINARY");
    }
    match member.sparse_size {
        Some(size) => {
            records.add(b"GNU.sparse.major", b"1");
            records.add(b"GNU.sparse.minor", b"0");
            records.add(b"GNU.sparse.name", member.path);
            records.add_number(b"GNU.sparse.realsize", size);
        }
        None if has_path => records.add(b"path", member.path),
        None => {}
    }
    if !fits_target {
        records.add(b"linkpath", member.target);
    }
    records.add_large(b"size", member.bytes, field::SIZE.max_number());
    records.add_large(b"uid", u64::from(member.uid), field::UID.max_number());
    records.add_large(b"gid", u64::from(member.gid), field::GID.max_number());
    records.add_large(b"SCHILY.devmajor", u64::from(member.device.0), field::MAJOR.max_number());
    records.add_large(b"SCHILY.devminor", u64::from(member.device.1), field::MINOR.max_number());
    records.add_time(b"mtime", member.mtime, field::MTIME.max_number());
    for xattr in member.xattrs {
        records.add_xattr(&xattr.name, &xattr.value);
    }
}

/// The name of a header that readers without PAX take for a file of its own: `folder` and the last
/// name of `path`, in printable characters, cut to the length of the field.
fn pax_header_path(path: &[u8], folder: &[u8]) -> Vec<u8> {
    let path = path.strip_suffix(b"/").unwrap_or(path);
    let last = path.rsplit(|byte| *byte == b'/').next().unwrap_or_default();
    let printable = last.iter().map(|byte| if byte.is_ascii_graphic() { *byte } else { b'_' });
    folder.iter().copied().chain(printable).take(field::NAME.bytes).collect()
}

/// The offset of the slash at which a path is split into the fields for its prefix and its name; 0
/// if the path fits the name field, `None` if it fits neither.
fn split(path: &[u8]) -> Option<usize> {
    if path.len() <= field::NAME.bytes {
        return Some(0);
    }
    // The slash itself is not stored, and the name must not be empty.
    let earliest = path.len() - field::NAME.bytes - 1;
    let latest = field::PREFIX.bytes.min(path.len() - 2);
    (earliest.max(1)..=latest).find(|at| path[*at] == b'/')
}

/// A header block that is being filled.
struct HeaderBlock([u8; BLOCK_BYTES]);

impl HeaderBlock {
    fn new(kind: TypeFlag, path: &[u8]) -> Self {
        let mut block = Self([0; BLOCK_BYTES]);
        match split(path) {
            Some(0) => block.text(field::NAME, path),
            Some(at) => {
                block.text(field::PREFIX, &path[..at]);
                block.text(field::NAME, &path[at + 1..]);
            }
            // A PAX record holds the whole path.
            None => block.text(field::NAME, path),
        }
        for number in [field::MODE, field::UID, field::GID, field::SIZE, field::MTIME] {
            block.number(number, 0);
        }
        block.number(field::MAJOR, 0);
        block.number(field::MINOR, 0);
        block.text(field::KIND, &[kind as u8]);
        block.text(field::MAGIC, b"ustar\x0000");
        block
    }

    /// Writes `text`, cut to the length of the field.
    fn text(&mut self, field: Field, text: &[u8]) {
        let count = text.len().min(field.bytes);
        self.0[field.start..field.start + count].copy_from_slice(&text[..count]);
    }

    /// Writes octal digits, or 0 for a number that is too large and has a PAX record.
    fn number(&mut self, field: Field, number: u64) {
        let number = if number <= field.max_number() { number } else { 0 };
        let mut rest = number;
        for place in self.0[field.start..field.start + field.bytes - 1].iter_mut().rev() {
            *place = b'0' + (rest & 7) as u8;
            rest >>= 3;
        }
    }

    fn finished(mut self) -> [u8; BLOCK_BYTES] {
        self.text(field::CHECKSUM, b"        ");
        let sum = self.0.iter().map(|byte| u64::from(*byte)).sum();
        // Six digits, a NUL and a space, as all tars write it.
        let Field { start, bytes } = field::CHECKSUM;
        self.number(Field::new(start, bytes - 1), sum);
        self.0[start + bytes - 2] = 0;
        self.0
    }
}

/// PAX records `LENGTH KEY=VALUE`, where the length counts itself; in the order in which they are
/// added.
#[derive(Debug, Default)]
pub(super) struct PaxRecordWriter {
    bytes: Vec<u8>,
}

impl PaxRecordWriter {
    /// Adds a record.
    pub(super) fn add(&mut self, key: &[u8], value: &[u8]) {
        let rest = b" =\n".len() + key.len() + value.len();
        let mut length = rest + digits(rest);
        // The digits of the length may make the length one digit longer.
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

    /// Adds a number that is larger than `limit`, the maximum of its field.
    pub(super) fn add_large(&mut self, key: &[u8], number: u64, limit: u64) {
        if number > limit {
            self.add_number(key, number);
        }
    }

    /// Adds a time that is not a whole number of seconds from 0 to `limit`. The fraction counts
    /// from zero outwards, as in any decimal number: a nanosecond before 1970 is `-0.000000001`.
    pub(super) fn add_time(&mut self, key: &[u8], time: Timestamp, limit: u64) {
        let Timestamp { seconds, nanoseconds } = time;
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

    /// Adds an extended attribute. `=` and `%` in its name are escaped as by GNU tar, since the
    /// first `=` ends a key.
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

/// The number of decimal digits.
fn digits(number: usize) -> usize {
    number.checked_ilog10().unwrap_or(0) as usize + 1
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLAIN: MemberHeader<'_> = MemberHeader {
        path: b"a",
        kind: TypeFlag::File,
        target: b"",
        mode: 0o644,
        uid: 0,
        gid: 0,
        bytes: 0,
        mtime: Timestamp { seconds: 0, nanoseconds: 0 },
        device: (0, 0),
        xattrs: &[],
        sparse_size: None,
    };

    fn written(member: &MemberHeader<'_>) -> Vec<u8> {
        let mut out = Vec::new();
        write(&mut out, member);
        out
    }

    /// The records of a member without their lengths; empty if it has none.
    fn records(member: &MemberHeader<'_>) -> String {
        let out = written(member);
        if out[156] != b'x' {
            return String::new();
        }
        let size = std::str::from_utf8(&out[124..135]).unwrap();
        let mut rest = &out[512..512 + usize::from_str_radix(size, 8).unwrap()];
        let mut records = Vec::new();
        while !rest.is_empty() {
            let space = rest.iter().position(|byte| *byte == b' ').unwrap();
            let length: usize = std::str::from_utf8(&rest[..space]).unwrap().parse().unwrap();
            records.push(String::from_utf8_lossy(&rest[space + 1..length - 1]).into_owned());
            rest = &rest[length..];
        }
        records.join(" ")
    }

    #[test]
    fn what_fits_a_ustar_header_has_no_records() {
        let member = MemberHeader {
            path: &[b"p".repeat(155), b"/".to_vec(), b"n".repeat(100)].concat(),
            target: &b"t".repeat(100),
            uid: 0o7_777_777,
            bytes: 0o77_777_777_777,
            mtime: Timestamp { seconds: 0o77_777_777_777, nanoseconds: 0 },
            ..PLAIN
        };
        let out = written(&member);
        assert_eq!(out.len(), BLOCK_BYTES);
        assert_eq!(&out[..100], b"n".repeat(100));
        assert_eq!(&out[345..500], b"p".repeat(155));
        assert_eq!(&out[108..116], b"7777777\0");
        assert_eq!(&out[257..265], b"ustar\x0000");
    }

    #[test]
    fn what_does_not_fit_a_ustar_header_has_a_record() {
        let long = b"n".repeat(101);
        assert_eq!(
            records(&MemberHeader { path: &long, ..PLAIN }),
            format!("path={}", "n".repeat(101))
        );
        assert!(records(&MemberHeader { target: &long, ..PLAIN }).starts_with("linkpath=nn"));
        assert_eq!(records(&MemberHeader { uid: 0o10_000_000, ..PLAIN }), "uid=2097152");
        assert_eq!(records(&MemberHeader { gid: u32::MAX, ..PLAIN }), "gid=4294967295");
        assert_eq!(records(&MemberHeader { bytes: 1 << 33, ..PLAIN }), "size=8589934592");
        let device = records(&MemberHeader { device: (0o10_000_000, u32::MAX), ..PLAIN });
        assert_eq!(device, "SCHILY.devmajor=2097152 SCHILY.devminor=4294967295");
    }

    #[test]
    fn times_before_1970_and_parts_of_a_second_have_a_record() {
        let time = |seconds, nanoseconds| {
            records(&MemberHeader { mtime: Timestamp { seconds, nanoseconds }, ..PLAIN })
        };
        assert_eq!(time(7, 0), "");
        assert_eq!(time(7, 500_000_000), "mtime=7.5");
        assert_eq!(time(7, 1), "mtime=7.000000001");
        assert_eq!(time(-1, 0), "mtime=-1");
        assert_eq!(time(-2, 500_000_000), "mtime=-1.5");
        assert_eq!(time(-1, 999_999_999), "mtime=-0.000000001");
        assert_eq!(time(i64::MIN, 1), "mtime=-9223372036854775807.999999999");
        assert_eq!(time(1 << 33, 0), "mtime=8589934592");
    }

    /// In a record of UTF-8 libarchive changes `e` and a combining accent to `é`.
    #[test]
    fn names_beyond_ascii_are_bytes_wherever_they_stand() {
        for name in ["é".as_bytes(), "e\u{301}".as_bytes(), b"\xe9"] {
            assert_eq!(records(&MemberHeader { path: name, target: name, ..PLAIN }), "");
            assert!(written(&MemberHeader { path: name, ..PLAIN }).starts_with(name));
            let long = name.repeat(101);
            let path = records(&MemberHeader { path: &long, ..PLAIN });
            assert!(path.starts_with("hdrcharset=BINARY path="), "{path}");
            let target = records(&MemberHeader { target: &long, ..PLAIN });
            assert!(target.starts_with("hdrcharset=BINARY linkpath="), "{target}");
            let sparse = records(&MemberHeader { path: name, sparse_size: Some(1), ..PLAIN });
            assert!(sparse.starts_with("hdrcharset=BINARY GNU.sparse."), "{sparse}");
        }
    }

    #[test]
    fn a_path_is_cut_only_where_both_parts_fit() {
        let path = |lengths: &[usize]| {
            lengths.iter().map(|length| "n".repeat(*length)).collect::<Vec<_>>().join("/")
        };
        assert_eq!(split(path(&[50, 49]).as_bytes()), Some(0));
        assert_eq!(split(path(&[1, 100]).as_bytes()), Some(1));
        assert_eq!(split(path(&[155, 100]).as_bytes()), Some(155));
        assert_eq!(split(path(&[156, 99]).as_bytes()), None);
        assert_eq!(split(path(&[10, 101]).as_bytes()), None);
        // A directory's own slash is no place to cut.
        assert_eq!(split(path(&[120, 0]).as_bytes()), None);
        assert_eq!(split(path(&[60, 60, 0]).as_bytes()), Some(60));
        // An absolute path would lose its first slash.
        assert_eq!(split(path(&[0, 100]).as_bytes()), None);
    }

    #[test]
    fn the_tar_crate_agrees_with_every_field() {
        let xattrs = [Xattr { name: b"user.a".to_vec(), value: b"1 2".to_vec() }];
        let member = MemberHeader {
            path: b"dir/name",
            kind: TypeFlag::CharDevice,
            target: b"somewhere",
            mode: 0o4755,
            uid: 1000,
            gid: 7,
            mtime: Timestamp { seconds: 1234, nanoseconds: 5 },
            device: (8, 1),
            xattrs: &xattrs,
            ..PLAIN
        };
        let mut archive = tar::Archive::new(std::io::Cursor::new(written(&member)));
        let mut entry = archive.entries().unwrap().next().unwrap().unwrap();
        let pax: Vec<_> = entry.pax_extensions().unwrap().unwrap().map(Result::unwrap).collect();
        assert_eq!(pax[0].key_bytes(), b"mtime");
        assert_eq!(
            (pax[1].key_bytes(), pax[1].value_bytes()),
            (&b"SCHILY.xattr.user.a"[..], &b"1 2"[..])
        );
        let header = entry.header();
        assert_eq!(header.mode().unwrap(), 0o4755);
        assert_eq!((header.uid().unwrap(), header.gid().unwrap()), (1000, 7));
        assert_eq!(header.mtime().unwrap(), 1234);
        assert_eq!(header.device_major().unwrap(), Some(8));
        assert_eq!(header.device_minor().unwrap(), Some(1));
        assert_eq!(header.entry_type(), tar::EntryType::Char);
        assert_eq!(&*entry.path_bytes(), b"dir/name");
        assert_eq!(&*entry.link_name_bytes().unwrap(), b"somewhere");
        let mut block = header.clone();
        block.set_cksum();
        assert_eq!(block.cksum().unwrap(), header.cksum().unwrap());
    }

    #[test]
    fn a_record_counts_itself() {
        for value in 0..1200 {
            let mut records = PaxRecordWriter::default();
            records.add(b"k", &b"v".repeat(value));
            let text = &records.bytes;
            let space = text.iter().position(|byte| *byte == b' ').unwrap();
            let length: usize = std::str::from_utf8(&text[..space]).unwrap().parse().unwrap();
            assert_eq!(length, text.len());
        }
    }

    #[test]
    fn the_name_of_an_attribute_cannot_end_its_key() {
        let mut records = PaxRecordWriter::default();
        records.add_xattr(b"user.a=b%", b"=");
        assert_eq!(records.bytes, b"32 SCHILY.xattr.user.a%3Db%25==\n");
    }
}

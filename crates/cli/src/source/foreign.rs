//! Names what a file is that is not an EROFS image, by its first bytes. Used by `source` for
//! messages.

use std::io;

use ferrofs_image::ImageSource;

/// How far into a file its kind shows: the superblock of Btrfs.
const START_BYTES: usize = 66 << 10;

/// How much of a file shows that it is a page.
const PAGE_START_BYTES: usize = 512;

/// A kind of file, after a semicolon what to do with it, and bytes that are at an offset in it.
type Signature = (&'static str, usize, &'static [u8]);

/// In this order, since some kinds contain others.
const SIGNATURES: [Signature; 34] = [
    ("a squashfs image", 0, b"hsqs"),
    ("a squashfs image of another byte order", 0, b"sqsh"),
    ("a gzip file", 0, &[0x1f, 0x8b]),
    ("an xz file", 0, &[0xfd, b'7', b'z', b'X', b'Z', 0]),
    ("a zstd file", 0, &[0x28, 0xb5, 0x2f, 0xfd]),
    ("a bzip2 file", 0, b"BZh"),
    ("an lz4 file", 0, &[0x04, 0x22, 0x4d, 0x18]),
    ("a zip archive", 0, b"PK\x03\x04"),
    ("a 7z archive", 0, b"7z\xbc\xaf\x27\x1c"),
    ("a boot image of Android", 0, b"ANDROID!"),
    ("an update payload of Android; extract its partitions first", 0, b"CrAU"),
    ("a qcow2 disk image; convert it with qemu-img", 0, b"QFI\xfb"),
    ("a VMDK disk image", 0, b"KDMV"),
    ("a VHDX disk image", 0, b"vhdxfile"),
    ("a cramfs image", 0, &[0x45, 0x3d, 0xcd, 0x28]),
    ("a romfs image", 0, b"-rom1fs-"),
    ("a DwarFS image", 0, b"DWARFS"),
    ("a LUKS volume; open it with cryptsetup", 0, b"LUKS\xba\xbe"),
    ("a JFFS2 image", 0, &[0x85, 0x19]),
    ("a UBI image", 0, b"UBI#"),
    ("an XFS file system", 0, b"XFSB"),
    ("a cpio archive", 0, b"07070"),
    ("an ar archive or a Debian package", 0, b"!<arch>\n"),
    ("an RPM package", 0, &[0xed, 0xab, 0xee, 0xdb]),
    ("an NTFS file system", 3, b"NTFS    "),
    ("a FAT file system", 54, b"FAT"),
    ("a FAT file system", 82, b"FAT32"),
    ("a tar archive; `ferrofs build` makes an image of it", 257, b"ustar"),
    ("a disk with a table of partitions (GPT); give the partition with --offset", 512, b"EFI PART"),
    ("an F2FS file system", 1024, &[0x10, 0x20, 0xf5, 0xf2]),
    ("an ext2, ext3 or ext4 file system", 1080, &[0x53, 0xef]),
    (
        "a super image of Android; name a partition with --partition",
        4096,
        &[0x67, 0x44, 0x6c, 0x61],
    ),
    ("an ISO 9660 image", 32769, b"CD001"),
    ("a Btrfs file system", 65600, b"_BHRfS_M"),
];

/// What a file is that is not an EROFS image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ForeignKind {
    pub(crate) name: &'static str,
    /// What to do with it where an EROFS image is wanted.
    pub(crate) remedy: Option<&'static str>,
}

/// What a file or a partition is; `None` if it is unknown or cannot be read.
pub(super) fn identify(source: &dyn ImageSource) -> Option<ForeignKind> {
    identify_bytes(&start_of(source, START_BYTES).ok()?)
}

/// Whether a source begins as an HTML page does.
///
/// # Errors
/// It cannot be read.
pub(crate) fn is_html_page(source: &dyn ImageSource) -> io::Result<bool> {
    Ok(is_html(&start_of(source, PAGE_START_BYTES)?))
}

/// The first bytes of a source, or all of a shorter one.
fn start_of(source: &dyn ImageSource, bytes: usize) -> io::Result<Vec<u8>> {
    let mut start = vec![0; bytes];
    let mut filled = 0;
    while filled < bytes {
        match source.read_at(filled as u64, &mut start[filled..])? {
            0 => break,
            count => filled += count,
        }
    }
    start.truncate(filled);
    Ok(start)
}

/// What the file is that begins with these bytes.
pub(crate) fn identify_bytes(start: &[u8]) -> Option<ForeignKind> {
    let text = describe(start)?;
    Some(match text.split_once("; ") {
        Some((name, remedy)) => ForeignKind { name, remedy: Some(remedy) },
        None => ForeignKind { name: text, remedy: None },
    })
}

/// Servers send one instead of what was asked for: for a login, or with an error.
const HTML_PAGE: &str = "an HTML page; a server has sent it instead of the image";

/// Whether the file begins as HTML does, by the rules of the WHATWG for an unknown type: white space, then a tag of
/// the start of a page.
fn is_html(start: &[u8]) -> bool {
    let text = start.strip_prefix(b"\xef\xbb\xbf").unwrap_or(start).trim_ascii_start();
    ["<!DOCTYPE HTML", "<HTML", "<HEAD", "<BODY", "<!--"].iter().any(|tag| {
        let first = text.get(..tag.len());
        let next = text.get(tag.len());
        first.is_some_and(|first| first.eq_ignore_ascii_case(tag.as_bytes()))
            && next.is_some_and(|next| matches!(next, b' ' | b'\t' | b'\n' | b'\r' | b'>'))
    })
}

fn describe(start: &[u8]) -> Option<&'static str> {
    if start.is_empty() {
        return Some("an empty file");
    }
    if is_html(start) {
        return Some(HTML_PAGE);
    }
    let is_there =
        |&&(_, at, bytes): &&Signature| start.get(at..).is_some_and(|rest| rest.starts_with(bytes));
    let found = SIGNATURES.iter().find(is_there).map(|(name, ..)| *name);
    let is_elf = start.starts_with(b"\x7fELF");
    let is_bootable = start.get(510..512) == Some(&[0x55, 0xaa]);
    found
        .or(is_elf
            .then_some("a program (ELF); an image in it, such as in an AppImage, needs --offset"))
        .or(is_bootable
            .then_some("a disk with a table of partitions; give the partition with --offset"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_kinds_are_named() {
        for (name, at, bytes) in SIGNATURES {
            let mut start = vec![0; 66 << 10];
            start[at..at + bytes.len()].copy_from_slice(bytes);
            assert_eq!(describe(&start), Some(name));
            assert_eq!(describe(&start[..at + bytes.len() - 1]), None, "{name}");
        }
        assert_eq!(describe(b""), Some("an empty file"));
        assert_eq!(describe(&[0; 2000]), None);
        assert_eq!(describe(b"\n <!doctype html>\n<html>"), Some(HTML_PAGE));
        assert_eq!(describe(b"\xef\xbb\xbf<html lang=en>"), Some(HTML_PAGE));
        assert_eq!(describe(b"<htmlx>"), None);
        let program = identify_bytes(b"\x7fELF").unwrap();
        assert_eq!(program.name, "a program (ELF)");
        assert!(program.remedy.unwrap().contains("--offset"));
    }
}

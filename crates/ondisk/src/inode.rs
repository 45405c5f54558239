//! Inodes: 32 bytes compact or 64 bytes extended, both decoded into one form (docs/format.md
//! F9 to F14).

use zerocopy::byteorder::little_endian::{I64, U16, U32, U64};
use zerocopy::{FromBytes, Immutable, KnownLayout, Unaligned};

use crate::bytes::view;
use crate::chunk::ChunkFormat;
use crate::error::{Error, ErrorKind, Result};

/// All bits of `i_format` that have a meaning: version, layout, and bit 4.
const FORMAT_KNOWN: u16 = 0x1f;
const FORMAT_EXTENDED: u16 = 0x01;
/// Directories: no `.` entry. Other compact inodes: one link, and an address of 48 bits.
const FORMAT_BIT4: u16 = 0x10;
/// An address of these bits, all ones, is none.
const NULL_ADDRESS_32: u64 = 0xffff_ffff;
const NULL_ADDRESS_48: u64 = 0xffff_ffff_ffff;

#[derive(FromBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RawCompact {
    format: U16,
    xattr_icount: U16,
    mode: U16,
    nlink_or_high: U16,
    size: U32,
    mtime: U32,
    union: U32,
    ino: U32,
    uid: U16,
    gid: U16,
    _reserved: U32,
}

#[derive(FromBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RawExtended {
    format: U16,
    xattr_icount: U16,
    mode: U16,
    high: U16,
    size: U64,
    union: U32,
    ino: U32,
    uid: U32,
    gid: U32,
    mtime: I64,
    mtime_nsec: U32,
    nlink: U32,
    _reserved: [u8; 16],
}

const _: () = assert!(size_of::<RawCompact>() == 32 && size_of::<RawExtended>() == 64);

/// How the data of an inode is stored (bits 1 to 3 of `i_format`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DataLayout {
    /// 0: whole blocks.
    FlatPlain,
    /// 1: compressed, with a full index or encoded extents.
    CompressedFull,
    /// 2: whole blocks, and a tail behind the inode.
    FlatInline,
    /// 3: compressed, with a compact index.
    CompressedCompact,
    /// 4: chunks.
    Chunk,
}

impl DataLayout {
    fn from_format(format: u16) -> Result<Self> {
        match (format >> 1) & 7 {
            0 => Ok(Self::FlatPlain),
            1 => Ok(Self::CompressedFull),
            2 => Ok(Self::FlatInline),
            3 => Ok(Self::CompressedCompact),
            4 => Ok(Self::Chunk),
            reserved => {
                let layout = u8::try_from(reserved).unwrap_or(u8::MAX);
                Err(Error::new(ErrorKind::InodeLayout(layout), 0))
            }
        }
    }

    /// Whether the data is compressed.
    #[must_use]
    pub const fn is_compressed(self) -> bool {
        matches!(self, Self::CompressedFull | Self::CompressedCompact)
    }

    /// The name that tools print.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::FlatPlain => "flat-plain",
            Self::CompressedFull => "compressed-full",
            Self::FlatInline => "flat-inline",
            Self::CompressedCompact => "compressed-compact",
            Self::Chunk => "chunk-based",
        }
    }
}

/// What an inode is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FileType {
    /// A regular file.
    Regular,
    /// A directory.
    Directory,
    /// A symbolic link.
    Symlink,
    /// A character device.
    CharDevice,
    /// A block device.
    BlockDevice,
    /// A FIFO.
    Fifo,
    /// A socket.
    Socket,
}

impl FileType {
    /// The type in the upper bits of a mode.
    ///
    /// # Errors
    /// [`ErrorKind::InodeMode`] if they are none of the seven types.
    pub fn from_mode(mode: u16) -> Result<Self> {
        match mode & 0o170_000 {
            0o100_000 => Ok(Self::Regular),
            0o040_000 => Ok(Self::Directory),
            0o120_000 => Ok(Self::Symlink),
            0o020_000 => Ok(Self::CharDevice),
            0o060_000 => Ok(Self::BlockDevice),
            0o010_000 => Ok(Self::Fifo),
            0o140_000 => Ok(Self::Socket),
            _ => Err(Error::new(ErrorKind::InodeMode(mode), 4)),
        }
    }

    /// The type that a dirent's `file_type` hints at; `None` if it does not say (0).
    ///
    /// # Errors
    /// [`ErrorKind::DirentType`] above 7.
    pub const fn from_dirent(number: u8) -> Result<Option<Self>> {
        let known = match number {
            0 => return Ok(None),
            1 => Self::Regular,
            2 => Self::Directory,
            3 => Self::CharDevice,
            4 => Self::BlockDevice,
            5 => Self::Fifo,
            6 => Self::Socket,
            7 => Self::Symlink,
            _ => return Err(Error::new(ErrorKind::DirentType(number), 10)),
        };
        Ok(Some(known))
    }

    /// A word for messages.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Regular => "regular file",
            Self::Directory => "directory",
            Self::Symlink => "symlink",
            Self::CharDevice => "character device",
            Self::BlockDevice => "block device",
            Self::Fifo => "fifo",
            Self::Socket => "socket",
        }
    }
}

/// A point in time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Timestamp {
    /// Seconds since 1970, negative before.
    pub seconds: i64,
    /// Nanoseconds, 0..=999,999,999.
    pub nanoseconds: u32,
}

/// What compact inodes count their times from: two fields of the superblock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TimeBase {
    /// Seconds since 1970.
    pub epoch: i64,
    /// Nanoseconds of every compact inode.
    pub fixed_nsec: u32,
}

/// The inode's union: what it holds depends on the file type and the data layout.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Payload {
    /// Flat data starts at this block; `None` is a file of nothing but a hole.
    StartBlock(Option<u64>),
    /// A compressed file has this many blocks.
    CompressedBlocks(u64),
    /// A chunk-based file.
    Chunks(ChunkFormat),
    /// A device, as major and minor number.
    Device {
        /// Major number, 12 bits.
        major: u32,
        /// Minor number, 20 bits.
        minor: u32,
    },
    /// A FIFO or a socket.
    Nothing,
}

/// An inode, checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Inode {
    /// Bytes of the inode itself: 32 or 64.
    pub bytes: u8,
    /// How its data is stored.
    pub layout: DataLayout,
    /// What it is.
    pub file_type: FileType,
    /// Type and permission bits.
    pub mode: u16,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Links.
    pub nlink: u32,
    /// Bytes of its data.
    pub size: u64,
    /// Modification time.
    pub mtime: Timestamp,
    /// A number for 32-bit `stat`; nothing depends on it.
    pub ino: u32,
    /// Bytes of the xattr body behind the inode; 0 if there is none.
    pub xattr_bytes: u32,
    /// Where its data starts, or what else the union holds.
    pub payload: Payload,
    /// A directory without a `.` entry.
    pub has_no_dot: bool,
}

impl Inode {
    /// Bytes of the larger form. A reader that has this many can parse any inode.
    pub const MAX_BYTES: usize = 64;

    /// How many bytes the inode takes that starts with `bytes`.
    ///
    /// # Errors
    /// [`ErrorKind::Truncated`] if `i_format` is not there.
    pub fn size_of(bytes: &[u8]) -> Result<usize> {
        let format: &U16 = view(bytes)?;
        let extended = format.get() & FORMAT_EXTENDED != 0;
        Ok(if extended { size_of::<RawExtended>() } else { size_of::<RawCompact>() })
    }

    /// Reads the inode that starts with `bytes`.
    ///
    /// # Errors
    /// Too few bytes for the form that `i_format` says, unknown format bits, reserved layouts, a
    /// mode without a type, an xattr body of a bare header, or a chunk format out of range.
    pub fn parse(bytes: &[u8], base: TimeBase) -> Result<Self> {
        let format = view::<U16>(bytes)?.get();
        if format & !FORMAT_KNOWN != 0 {
            return Err(Error::new(ErrorKind::InodeFormat(format), 0));
        }
        if format & FORMAT_EXTENDED != 0 {
            Self::from_extended(view(bytes)?)
        } else {
            Self::from_compact(view(bytes)?, base)
        }
    }

    fn from_compact(raw: &RawCompact, base: TimeBase) -> Result<Self> {
        let format = raw.format.get();
        let file_type = FileType::from_mode(raw.mode.get())?;
        let is_directory = file_type == FileType::Directory;
        let is_wide = format & FORMAT_BIT4 != 0 && !is_directory;
        let address = if is_wide {
            Address::wide(raw.union, raw.nlink_or_high)
        } else {
            Address::narrow(raw.union)
        };
        let layout = DataLayout::from_format(format)?;
        Ok(Self {
            bytes: 32,
            layout,
            file_type,
            mode: raw.mode.get(),
            uid: u32::from(raw.uid.get()),
            gid: u32::from(raw.gid.get()),
            nlink: if is_wide { 1 } else { u32::from(raw.nlink_or_high.get()) },
            size: u64::from(raw.size.get()),
            mtime: Timestamp {
                seconds: base.epoch.wrapping_add(i64::from(raw.mtime.get())),
                nanoseconds: base.fixed_nsec,
            },
            ino: raw.ino.get(),
            xattr_bytes: xattr_bytes(raw.xattr_icount.get())?,
            payload: address.payload(file_type, layout)?,
            has_no_dot: is_directory && format & FORMAT_BIT4 != 0,
        })
    }

    fn from_extended(raw: &RawExtended) -> Result<Self> {
        let format = raw.format.get();
        let file_type = FileType::from_mode(raw.mode.get())?;
        let layout = DataLayout::from_format(format)?;
        let nanoseconds = raw.mtime_nsec.get();
        if nanoseconds >= 1_000_000_000 {
            return Err(Error::new(ErrorKind::Nanoseconds(nanoseconds), 40));
        }
        Ok(Self {
            bytes: 64,
            layout,
            file_type,
            mode: raw.mode.get(),
            uid: raw.uid.get(),
            gid: raw.gid.get(),
            nlink: raw.nlink.get(),
            size: raw.size.get(),
            mtime: Timestamp { seconds: raw.mtime.get(), nanoseconds },
            ino: raw.ino.get(),
            xattr_bytes: xattr_bytes(raw.xattr_icount.get())?,
            payload: Address::wide(raw.union, raw.high).payload(file_type, layout)?,
            has_no_dot: file_type == FileType::Directory && format & FORMAT_BIT4 != 0,
        })
    }
}

/// The 32 bits of the inode's union with the bits that may extend them.
struct Address {
    low: u32,
    whole: u64,
    null: u64,
}

impl Address {
    fn narrow(low: U32) -> Self {
        Self { low: low.get(), whole: u64::from(low.get()), null: NULL_ADDRESS_32 }
    }

    fn wide(low: U32, high: U16) -> Self {
        let whole = u64::from(low.get()) | u64::from(high.get()) << 32;
        Self { low: low.get(), whole, null: NULL_ADDRESS_48 }
    }

    /// Builders without 48-bit support leave the high half of a null address 0, and then it is
    /// the 32-bit pattern (F10).
    fn start_block(&self) -> Option<u64> {
        let is_null = self.whole == self.null || self.whole == NULL_ADDRESS_32;
        (!is_null).then_some(self.whole)
    }

    fn payload(&self, file_type: FileType, layout: DataLayout) -> Result<Payload> {
        match file_type {
            FileType::CharDevice | FileType::BlockDevice => Ok(Payload::Device {
                major: (self.low & 0xf_ff00) >> 8,
                minor: (self.low & 0xff) | (self.low >> 12) & 0xf_ff00,
            }),
            FileType::Fifo | FileType::Socket => Ok(Payload::Nothing),
            _ if layout == DataLayout::Chunk => {
                let format = u16::try_from(self.low & 0xffff).unwrap_or(0);
                Ok(Payload::Chunks(ChunkFormat::parse(format)?))
            }
            _ if layout.is_compressed() => Ok(Payload::CompressedBlocks(self.whole)),
            _ => Ok(Payload::StartBlock(self.start_block())),
        }
    }
}

/// A count of `n` means a header of 12 bytes and `n - 1` units of 4 (F12).
fn xattr_bytes(count: u16) -> Result<u32> {
    match count {
        0 => Ok(0),
        1 => Err(Error::new(ErrorKind::XattrBody(count), 2)),
        _ => Ok(u32::from(count).wrapping_sub(1).wrapping_mul(4).wrapping_add(12)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BASE: TimeBase = TimeBase { epoch: 1000, fixed_nsec: 7 };

    fn compact(format: u16, mode: u16) -> [u8; 32] {
        let mut bytes = [0u8; 32];
        bytes[..2].copy_from_slice(&format.to_le_bytes());
        bytes[4..6].copy_from_slice(&mode.to_le_bytes());
        bytes
    }

    #[test]
    fn a_compact_time_counts_from_the_epoch() {
        let mut bytes = compact(0, 0o100_644);
        bytes[12] = 5;
        let inode = Inode::parse(&bytes, BASE).unwrap();
        assert_eq!(inode.mtime, Timestamp { seconds: 1005, nanoseconds: 7 });
    }

    #[test]
    fn bit_four_means_one_link_for_files_and_no_dot_for_directories() {
        let mut bytes = compact(0x10, 0o100_644);
        bytes[6] = 3;
        bytes[16] = 9;
        let inode = Inode::parse(&bytes, BASE).unwrap();
        assert_eq!(inode.nlink, 1);
        assert_eq!(inode.payload, Payload::StartBlock(Some(9 | 3 << 32)));
        bytes[4..6].copy_from_slice(&0o040_755u16.to_le_bytes());
        let inode = Inode::parse(&bytes, BASE).unwrap();
        assert!(inode.has_no_dot);
        assert_eq!(inode.nlink, 3);
        assert_eq!(inode.payload, Payload::StartBlock(Some(9)));
    }

    #[test]
    fn a_null_start_block_is_a_hole_in_both_widths() {
        let mut bytes = compact(0, 0o100_644);
        bytes[16..20].fill(0xff);
        assert_eq!(Inode::parse(&bytes, BASE).unwrap().payload, Payload::StartBlock(None));
        bytes[0] = 0x10;
        assert_eq!(Inode::parse(&bytes, BASE).unwrap().payload, Payload::StartBlock(None));
        bytes[6..8].fill(0xff);
        assert_eq!(Inode::parse(&bytes, BASE).unwrap().payload, Payload::StartBlock(None));
        bytes[16] = 0xfe;
        assert_ne!(Inode::parse(&bytes, BASE).unwrap().payload, Payload::StartBlock(None));
    }

    #[test]
    fn a_device_number_is_split_as_linux_does() {
        let mut bytes = compact(0, 0o020_600);
        bytes[16..20].copy_from_slice(&0x1234_5678u32.to_le_bytes());
        let inode = Inode::parse(&bytes, BASE).unwrap();
        assert_eq!(inode.payload, Payload::Device { major: 0x456, minor: 0x1_2378 });
    }

    #[test]
    fn what_is_unknown_is_refused() {
        let kind = |bytes: &[u8]| Inode::parse(bytes, BASE).unwrap_err().into_kind();
        assert_eq!(kind(&compact(0x20, 0o100_644)), ErrorKind::InodeFormat(0x20));
        assert_eq!(kind(&compact(10, 0o100_644)), ErrorKind::InodeLayout(5));
        assert_eq!(kind(&compact(0, 0o644)), ErrorKind::InodeMode(0o644));
        let mut bytes = compact(0, 0o100_644);
        bytes[2] = 1;
        assert_eq!(kind(&bytes), ErrorKind::XattrBody(1));
        assert_eq!(kind(&compact(1, 0o100_644)), ErrorKind::Truncated { wanted: 64, got: 32 });
    }

    #[test]
    fn an_xattr_body_has_a_header_and_units_of_four() {
        let mut bytes = compact(0, 0o100_644);
        bytes[2] = 3;
        assert_eq!(Inode::parse(&bytes, BASE).unwrap().xattr_bytes, 20);
    }
}

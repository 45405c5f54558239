//! Inodes: 32 bytes compact or 64 bytes extended, both decoded into one form, and written from it
//! (docs/format.md F9 to F14, F60, F61).

use zerocopy::byteorder::little_endian::{I64, U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::bytes::{fit, low_half, view};
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

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
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

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
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
    /// 2: whole blocks, and a tail after the inode.
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

    const fn format_bits(self) -> u16 {
        let number = match self {
            Self::FlatPlain => 0,
            Self::CompressedFull => 1,
            Self::FlatInline => 2,
            Self::CompressedCompact => 3,
            Self::Chunk => 4,
        };
        number << 1
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

    /// The bits of a mode that say this type.
    #[must_use]
    pub const fn mode_bits(self) -> u16 {
        match self {
            Self::Regular => 0o100_000,
            Self::Directory => 0o040_000,
            Self::Symlink => 0o120_000,
            Self::CharDevice => 0o020_000,
            Self::BlockDevice => 0o060_000,
            Self::Fifo => 0o010_000,
            Self::Socket => 0o140_000,
        }
    }

    /// The number of this type in a dirent.
    #[must_use]
    pub const fn dirent_number(self) -> u8 {
        match self {
            Self::Regular => 1,
            Self::Directory => 2,
            Self::CharDevice => 3,
            Self::BlockDevice => 4,
            Self::Fifo => 5,
            Self::Socket => 6,
            Self::Symlink => 7,
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

/// The two forms of an inode on disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InodeForm {
    /// 32 bytes; see [`DiskInode::fits_compact`].
    Compact,
    /// 64 bytes.
    Extended,
}

impl InodeForm {
    /// Bytes of an inode of this form.
    #[must_use]
    pub const fn bytes(self) -> u8 {
        match self {
            Self::Compact => 32,
            Self::Extended => 64,
        }
    }
}

/// An inode, checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DiskInode {
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
    /// Bytes of the xattr body after the inode; 0 if there is none.
    pub xattr_bytes: u32,
    /// Where its data starts, or what else the union holds.
    pub payload: Payload,
    /// A directory without a `.` entry.
    pub has_no_dot: bool,
}

impl DiskInode {
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
            RawAddress::wide(raw.union, raw.nlink_or_high)
        } else {
            RawAddress::narrow(raw.union)
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
        let size = checked_size(raw.size.get())?;
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
            size,
            mtime: Timestamp { seconds: raw.mtime.get(), nanoseconds },
            ino: raw.ino.get(),
            xattr_bytes: xattr_bytes(raw.xattr_icount.get())?,
            payload: RawAddress::wide(raw.union, raw.high).payload(file_type, layout)?,
            has_no_dot: file_type == FileType::Directory && format & FORMAT_BIT4 != 0,
        })
    }
}

/// Writing.
impl DiskInode {
    /// Whether the compact form holds this inode: every number in its field, and the time.
    ///
    /// Readers from before erofs-utils 1.9 and Linux 6.15 take the time of every compact inode for
    /// `base` itself. With `allow_mtime_delta`, as in images with 48BIT, the seconds may also be
    /// after the epoch (F11); without, they must be the epoch's. Addresses of more than 32 bits
    /// never count as fitting.
    #[must_use]
    pub fn fits_compact(&self, base: TimeBase, allow_mtime_delta: bool) -> bool {
        let is_wide = match self.payload {
            Payload::StartBlock(Some(block)) => block >= NULL_ADDRESS_32,
            Payload::CompressedBlocks(blocks) => blocks > NULL_ADDRESS_32,
            _ => false,
        };
        let delta = self.compact_mtime(base);
        self.uid <= u32::from(u16::MAX)
            && self.gid <= u32::from(u16::MAX)
            && self.nlink <= u32::from(u16::MAX)
            && self.size <= u64::from(u32::MAX)
            && !is_wide
            && delta.is_ok_and(|seconds| seconds == 0 || allow_mtime_delta)
    }

    /// The inode as it is in an image: 32 or 64 bytes, as `form` says; [`Self::bytes`] is not
    /// looked at.
    ///
    /// A compact inode takes bit 4 of `i_format`, which needs 48BIT, only where its address has
    /// more than 32 bits (F60).
    ///
    /// # Errors
    /// [`ErrorKind::TooLarge`] for what has no room in this form, [`ErrorKind::Unwritable`] for a
    /// time that it cannot say or for parts that contradict each other, [`ErrorKind::XattrBody`],
    /// [`ErrorKind::InodeMode`], [`ErrorKind::InodeSize`], and [`ErrorKind::Nanoseconds`].
    pub fn to_bytes(&self, base: TimeBase, form: InodeForm) -> Result<Vec<u8>> {
        if FileType::from_mode(self.mode)? != self.file_type {
            return Err(Error::new(ErrorKind::Unwritable("a mode of another file type"), 4));
        }
        if self.has_no_dot && self.file_type != FileType::Directory {
            let what = "an omitted entry \".\" in an inode that is not a directory";
            return Err(Error::new(ErrorKind::Unwritable(what), 0));
        }
        match form {
            InodeForm::Compact => self.to_compact(base),
            InodeForm::Extended => self.to_extended(),
        }
    }

    fn to_compact(&self, base: TimeBase) -> Result<Vec<u8>> {
        let union = self.union_field()?;
        // A null address has a narrow form; one that only looks like it needs the high half.
        let is_wide = match self.payload {
            Payload::StartBlock(None) => false,
            Payload::StartBlock(Some(_)) => union >= NULL_ADDRESS_32,
            _ => union > NULL_ADDRESS_32,
        };
        if is_wide && (self.file_type == FileType::Directory || self.nlink != 1) {
            let field = "a compact inode that is a directory or has several links";
            return Err(Error::new(ErrorKind::TooLarge { field, value: union }, 16));
        }
        let bit4 = if is_wide || self.has_no_dot { FORMAT_BIT4 } else { 0 };
        let nlink_or_high: u16 = if is_wide {
            fit(union >> 32, "an address", 16)?
        } else {
            fit(u64::from(self.nlink), "nlink of a compact inode", 6)?
        };
        let raw = RawCompact {
            format: (self.layout.format_bits() | bit4).into(),
            xattr_icount: xattr_icount(self.xattr_bytes)?.into(),
            mode: self.mode.into(),
            nlink_or_high: nlink_or_high.into(),
            size: fit::<u32>(self.size, "the size of a compact inode", 8)?.into(),
            mtime: self.compact_mtime(base)?.into(),
            union: low_half(union).into(),
            ino: self.ino.into(),
            uid: fit::<u16>(u64::from(self.uid), "uid of a compact inode", 24)?.into(),
            gid: fit::<u16>(u64::from(self.gid), "gid of a compact inode", 26)?.into(),
            _reserved: 0.into(),
        };
        Ok(raw.as_bytes().to_vec())
    }

    fn to_extended(&self) -> Result<Vec<u8>> {
        let union = self.union_field()?;
        let size = checked_size(self.size)?;
        let nanoseconds = self.mtime.nanoseconds;
        if nanoseconds >= 1_000_000_000 {
            return Err(Error::new(ErrorKind::Nanoseconds(nanoseconds), 40));
        }
        let bit4 = if self.has_no_dot { FORMAT_BIT4 } else { 0 };
        let raw = RawExtended {
            format: (FORMAT_EXTENDED | self.layout.format_bits() | bit4).into(),
            xattr_icount: xattr_icount(self.xattr_bytes)?.into(),
            mode: self.mode.into(),
            high: fit::<u16>(union >> 32, "an address", 6)?.into(),
            size: size.into(),
            union: low_half(union).into(),
            ino: self.ino.into(),
            uid: self.uid.into(),
            gid: self.gid.into(),
            mtime: self.mtime.seconds.into(),
            mtime_nsec: nanoseconds.into(),
            nlink: self.nlink.into(),
            _reserved: [0; 16],
        };
        Ok(raw.as_bytes().to_vec())
    }

    /// What `i_mtime` of a compact inode holds: seconds after the epoch.
    fn compact_mtime(&self, base: TimeBase) -> Result<u32> {
        let delta = self.mtime.seconds.checked_sub(base.epoch);
        let seconds = delta.and_then(|delta| u32::try_from(delta).ok());
        match seconds {
            Some(seconds) if self.mtime.nanoseconds == base.fixed_nsec => Ok(seconds),
            _ => Err(Error::new(ErrorKind::Unwritable("this time in a compact inode"), 12)),
        }
    }

    /// The union with its high half, 48 bits.
    fn union_field(&self) -> Result<u64> {
        let has_data =
            matches!(self.file_type, FileType::Regular | FileType::Directory | FileType::Symlink);
        let is_flat = !self.layout.is_compressed() && self.layout != DataLayout::Chunk;
        match self.payload {
            Payload::StartBlock(None) if has_data && is_flat => Ok(self.null_address()),
            Payload::StartBlock(Some(block)) if has_data && is_flat => {
                // The 32-bit pattern means a hole in both widths: without 48BIT, Linux compares no more bits (F10).
                let field = "the start block of an inode";
                if block == NULL_ADDRESS_32 || block >= NULL_ADDRESS_48 {
                    return Err(Error::new(ErrorKind::TooLarge { field, value: block }, 16));
                }
                Ok(block)
            }
            Payload::CompressedBlocks(blocks) if has_data && self.layout.is_compressed() => {
                if blocks > NULL_ADDRESS_48 {
                    let field = "the block count of an inode";
                    return Err(Error::new(ErrorKind::TooLarge { field, value: blocks }, 16));
                }
                Ok(blocks)
            }
            Payload::Chunks(format) if has_data && self.layout == DataLayout::Chunk => {
                Ok(u64::from(format.to_bits()))
            }
            Payload::Device { major, minor }
                if matches!(self.file_type, FileType::CharDevice | FileType::BlockDevice) =>
            {
                device_number(major, minor)
            }
            Payload::Nothing if matches!(self.file_type, FileType::Fifo | FileType::Socket) => {
                Ok(0)
            }
            _ => {
                let what = "a payload of another file type or layout";
                Err(Error::new(ErrorKind::Unwritable(what), 16))
            }
        }
    }

    /// A file that is a hole needs the wide pattern where addresses are wide; where there is no
    /// block to look for, the high half stays 0 (F61). The compact form has no high half here.
    fn null_address(&self) -> u64 {
        let is_hole = self.layout == DataLayout::FlatPlain && self.size > 0;
        if is_hole { NULL_ADDRESS_48 } else { NULL_ADDRESS_32 }
    }
}

/// A size that Linux can hold, which is signed (F69).
fn checked_size(size: u64) -> Result<u64> {
    match i64::try_from(size) {
        Ok(_) => Ok(size),
        Err(_) => Err(Error::new(ErrorKind::InodeSize(size), 8)),
    }
}

/// A device number in Linux's 32 bits (F13).
fn device_number(major: u32, minor: u32) -> Result<u64> {
    if major > 0xfff || minor > 0xf_ffff {
        let value = u64::from(major.max(minor));
        return Err(Error::new(ErrorKind::TooLarge { field: "a device number", value }, 16));
    }
    let number = (minor & 0xff) | major.wrapping_shl(8) | (minor & 0xf_ff00).wrapping_shl(12);
    Ok(u64::from(number))
}

/// The count that says a body of so many bytes (F12).
fn xattr_icount(bytes: u32) -> Result<u16> {
    if bytes == 0 {
        return Ok(0);
    }
    match bytes.checked_sub(12) {
        Some(rest) if rest != 0 && rest % 4 == 0 => {
            fit(u64::from(rest / 4).saturating_add(1), "the size of an xattr body", 2)
        }
        _ => Err(Error::new(ErrorKind::Unwritable("an xattr body of this size"), 2)),
    }
}

/// The 32 bits of the inode's union with the bits that may extend them.
struct RawAddress {
    low: u32,
    whole: u64,
    null: u64,
}

impl RawAddress {
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
    use proptest::prelude::*;

    use super::*;

    const BASE: TimeBase = TimeBase { epoch: 1000, fixed_nsec: 7 };

    fn compact(format: u16, mode: u16) -> [u8; 32] {
        let mut bytes = [0u8; 32];
        bytes[..2].copy_from_slice(&format.to_le_bytes());
        bytes[4..6].copy_from_slice(&mode.to_le_bytes());
        bytes
    }

    const TYPES: [FileType; 7] = [
        FileType::Regular,
        FileType::Directory,
        FileType::Symlink,
        FileType::CharDevice,
        FileType::BlockDevice,
        FileType::Fifo,
        FileType::Socket,
    ];
    const LAYOUTS: [DataLayout; 5] = [
        DataLayout::FlatPlain,
        DataLayout::CompressedFull,
        DataLayout::FlatInline,
        DataLayout::CompressedCompact,
        DataLayout::Chunk,
    ];

    /// A payload that this type and layout can have.
    fn payload(file_type: FileType, layout: DataLayout, number: u64, has_block: bool) -> Payload {
        match file_type {
            FileType::CharDevice | FileType::BlockDevice => Payload::Device {
                major: (number & 0xfff) as u32,
                minor: (number >> 12 & 0xf_ffff) as u32,
            },
            FileType::Fifo | FileType::Socket => Payload::Nothing,
            _ if layout == DataLayout::Chunk => {
                Payload::Chunks(ChunkFormat::parse((number & 0x7f) as u16).unwrap())
            }
            _ if layout.is_compressed() => Payload::CompressedBlocks(number),
            _ => Payload::StartBlock(has_block.then_some(number)),
        }
    }

    prop_compose! {
        fn inode()(
            kind in (0usize..7, 0usize..5, 0u16..0o10_000),
            ids in (any::<u32>(), any::<u32>(), any::<u32>(), any::<u32>()),
            narrow in any::<[bool; 5]>(),
            size in 0u64..1 << 63,
            times in (any::<i64>(), 0u32..1_000_000_000),
            delta: u32,
            units in 0u32..65535,
            number in 0u64..0xffff_ffff_ffff,
            flags in any::<[bool; 2]>(),
        ) -> DiskInode {
            let (file_type, layout) = (TYPES[kind.0], LAYOUTS[kind.1]);
            let id = |wide: u32, is_narrow: bool| if is_narrow { wide & 0xffff } else { wide };
            let near = Timestamp { seconds: BASE.epoch + i64::from(delta), nanoseconds: BASE.fixed_nsec };
            let far = Timestamp { seconds: times.0, nanoseconds: times.1 };
            let number = if narrow[4] { number & 0xffff_ff00 } else { number };
            DiskInode {
                bytes: 64,
                layout,
                file_type,
                mode: file_type.mode_bits() | kind.2,
                uid: id(ids.0, narrow[0]),
                gid: id(ids.1, narrow[0]),
                nlink: if narrow[1] { 1 } else { id(ids.2, narrow[0]) },
                size: if narrow[2] { size >> 32 } else { size },
                mtime: if narrow[3] { near } else { far },
                ino: ids.3,
                xattr_bytes: if units == 0 { 0 } else { 12 + 4 * units.min(65534) },
                payload: payload(file_type, layout, number, flags[0]),
                has_no_dot: flags[1] && file_type == FileType::Directory,
            }
        }
    }

    proptest! {
        #[test]
        fn an_inode_is_read_as_it_was_written(mut inode in inode()) {
            // All ones in 32 bits read as no block (F10).
            prop_assume!(inode.payload != Payload::StartBlock(Some(NULL_ADDRESS_32)));
            let bytes = inode.to_bytes(BASE, InodeForm::Extended).unwrap();
            prop_assert_eq!(&DiskInode::parse(&bytes, BASE).unwrap(), &inode);
            let compact = inode.to_bytes(BASE, InodeForm::Compact);
            if inode.fits_compact(BASE, true) {
                prop_assert!(compact.is_ok());
            }
            if let Ok(bytes) = compact {
                inode.bytes = InodeForm::Compact.bytes();
                prop_assert_eq!(bytes.len(), 32);
                prop_assert_eq!(&DiskInode::parse(&bytes, BASE).unwrap(), &inode);
                let is_wide = bytes[0] & 0x10 != 0 && !inode.has_no_dot;
                prop_assert_eq!(inode.fits_compact(BASE, true), !is_wide);
            }
        }
    }

    /// An inode that both forms hold.
    fn plain_file() -> DiskInode {
        let mut bytes = compact(0, 0o100_644);
        bytes[6] = 1;
        DiskInode::parse(&bytes, BASE).unwrap()
    }

    #[test]
    fn what_the_compact_form_cannot_hold_does_not_fit() {
        let fits = |allow: bool, change: &dyn Fn(&mut DiskInode)| {
            let mut inode = plain_file();
            change(&mut inode);
            let fits = inode.fits_compact(BASE, allow);
            assert!(!fits || inode.to_bytes(BASE, InodeForm::Compact).is_ok());
            assert!(inode.to_bytes(BASE, InodeForm::Extended).is_ok());
            fits
        };
        assert!(fits(false, &|_| {}));
        assert!(!fits(true, &|inode| inode.uid = 65536));
        assert!(!fits(true, &|inode| inode.gid = 65536));
        assert!(!fits(true, &|inode| inode.nlink = 65536));
        assert!(!fits(true, &|inode| inode.size = 1 << 32));
        assert!(!fits(true, &|inode| inode.payload = Payload::StartBlock(Some(1 << 32))));
        assert!(!fits(true, &|inode| inode.mtime.nanoseconds = 8));
        assert!(!fits(true, &|inode| inode.mtime.seconds = 999));
        assert!(!fits(true, &|inode| inode.mtime.seconds = 1000 + (1 << 32)));
        assert!(fits(true, &|inode| inode.mtime.seconds = 1001));
        assert!(!fits(false, &|inode| inode.mtime.seconds = 1001));
    }

    #[test]
    fn parts_that_contradict_each_other_are_not_written() {
        let refused = |change: &dyn Fn(&mut DiskInode)| {
            let mut inode = plain_file();
            change(&mut inode);
            [InodeForm::Compact, InodeForm::Extended]
                .iter()
                .all(|form| inode.to_bytes(BASE, *form).is_err())
        };
        assert!(refused(&|inode| inode.mode = 0o040_755));
        assert!(refused(&|inode| inode.mode = 0o755));
        assert!(refused(&|inode| inode.has_no_dot = true));
        assert!(refused(&|inode| inode.payload = Payload::Nothing));
        assert!(refused(&|inode| inode.payload = Payload::CompressedBlocks(1)));
        assert!(refused(&|inode| inode.layout = DataLayout::Chunk));
        assert!(refused(&|inode| inode.payload = Payload::StartBlock(Some(NULL_ADDRESS_32))));
        assert!(refused(&|inode| inode.payload = Payload::StartBlock(Some(NULL_ADDRESS_48))));
        for bytes in [12, 13, 18, 11, 262_152] {
            assert!(refused(&|inode| inode.xattr_bytes = bytes), "{bytes}");
        }
        assert!(!refused(&|inode| inode.xattr_bytes = 262_148));
        assert!(device_number(0x1000, 0).is_err() && device_number(0, 0x10_0000).is_err());
        assert_eq!(device_number(0x456, 0x1_2378).unwrap(), 0x1234_5678);
    }

    #[test]
    fn a_hole_has_the_pattern_of_its_width() {
        let mut inode = plain_file();
        inode.payload = Payload::StartBlock(None);
        inode.size = 9;
        let bytes = inode.to_bytes(BASE, InodeForm::Extended).unwrap();
        assert_eq!((&bytes[6..8], &bytes[16..20]), (&[0xff; 2][..], &[0xff; 4][..]));
        let bytes = inode.to_bytes(BASE, InodeForm::Compact).unwrap();
        assert_eq!((&bytes[6..8], &bytes[16..20]), (&[1, 0][..], &[0xff; 4][..]));
        inode.layout = DataLayout::FlatInline;
        let bytes = inode.to_bytes(BASE, InodeForm::Extended).unwrap();
        assert_eq!((&bytes[6..8], &bytes[16..20]), (&[0; 2][..], &[0xff; 4][..]));
    }

    #[test]
    fn a_compact_time_counts_from_the_epoch() {
        let mut bytes = compact(0, 0o100_644);
        bytes[12] = 5;
        let inode = DiskInode::parse(&bytes, BASE).unwrap();
        assert_eq!(inode.mtime, Timestamp { seconds: 1005, nanoseconds: 7 });
    }

    #[test]
    fn bit_four_means_one_link_for_files_and_no_dot_for_directories() {
        let mut bytes = compact(0x10, 0o100_644);
        bytes[6] = 3;
        bytes[16] = 9;
        let inode = DiskInode::parse(&bytes, BASE).unwrap();
        assert_eq!(inode.nlink, 1);
        assert_eq!(inode.payload, Payload::StartBlock(Some(9 | 3 << 32)));
        bytes[4..6].copy_from_slice(&0o040_755u16.to_le_bytes());
        let inode = DiskInode::parse(&bytes, BASE).unwrap();
        assert!(inode.has_no_dot);
        assert_eq!(inode.nlink, 3);
        assert_eq!(inode.payload, Payload::StartBlock(Some(9)));
    }

    #[test]
    fn a_null_start_block_is_a_hole_in_both_widths() {
        let mut bytes = compact(0, 0o100_644);
        bytes[16..20].fill(0xff);
        assert_eq!(DiskInode::parse(&bytes, BASE).unwrap().payload, Payload::StartBlock(None));
        bytes[0] = 0x10;
        assert_eq!(DiskInode::parse(&bytes, BASE).unwrap().payload, Payload::StartBlock(None));
        bytes[6..8].fill(0xff);
        assert_eq!(DiskInode::parse(&bytes, BASE).unwrap().payload, Payload::StartBlock(None));
        bytes[16] = 0xfe;
        assert_ne!(DiskInode::parse(&bytes, BASE).unwrap().payload, Payload::StartBlock(None));
    }

    #[test]
    fn a_device_number_is_split_as_linux_does() {
        let mut bytes = compact(0, 0o020_600);
        bytes[16..20].copy_from_slice(&0x1234_5678u32.to_le_bytes());
        let inode = DiskInode::parse(&bytes, BASE).unwrap();
        assert_eq!(inode.payload, Payload::Device { major: 0x456, minor: 0x1_2378 });
    }

    #[test]
    fn what_is_unknown_is_refused() {
        let kind = |bytes: &[u8]| DiskInode::parse(bytes, BASE).unwrap_err().into_kind();
        assert_eq!(kind(&compact(0x20, 0o100_644)), ErrorKind::InodeFormat(0x20));
        assert_eq!(kind(&compact(10, 0o100_644)), ErrorKind::InodeLayout(5));
        assert_eq!(kind(&compact(0, 0o644)), ErrorKind::InodeMode(0o644));
        let mut bytes = compact(0, 0o100_644);
        bytes[2] = 1;
        assert_eq!(kind(&bytes), ErrorKind::XattrBody(1));
        assert_eq!(kind(&compact(1, 0o100_644)), ErrorKind::Truncated { wanted: 64, got: 32 });
    }

    #[test]
    fn a_size_that_linux_cannot_hold_is_refused() {
        let mut bytes = vec![0; 64];
        bytes[0] = 1;
        bytes[4..6].copy_from_slice(&0o100_644u16.to_le_bytes());
        let largest = u64::try_from(i64::MAX).unwrap();
        bytes[8..16].copy_from_slice(&largest.to_le_bytes());
        let mut inode = DiskInode::parse(&bytes, BASE).unwrap();
        assert_eq!(inode.size, largest);
        for size in [1 << 63, u64::MAX] {
            bytes[8..16].copy_from_slice(&u64::to_le_bytes(size));
            let error = DiskInode::parse(&bytes, BASE).unwrap_err();
            assert_eq!((error.kind(), error.offset()), (&ErrorKind::InodeSize(size), 8));
            inode.size = size;
            let error = inode.to_bytes(BASE, InodeForm::Extended).unwrap_err();
            assert_eq!(error.kind(), &ErrorKind::InodeSize(size));
        }
    }

    #[test]
    fn an_xattr_body_has_a_header_and_units_of_four() {
        let mut bytes = compact(0, 0o100_644);
        bytes[2] = 3;
        assert_eq!(DiskInode::parse(&bytes, BASE).unwrap().xattr_bytes, 20);
    }
}

//! The error of this crate: which rule was broken, and at which byte of the slice that was read or was to be
//! written.

use std::fmt;

use crate::algorithm::AlgorithmId;

/// A rule of the format that some bytes broke, or that a value to be written would break.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Error {
    kind: ErrorKind,
    offset: u64,
}

/// The result of reading or writing a structure.
pub type Result<T> = std::result::Result<T, Error>;

/// Which rule was broken, with the value that broke it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The bytes end before the structure does.
    Truncated {
        /// Bytes that the structure needs.
        wanted: u64,
        /// Bytes that are there.
        got: u64,
    },
    /// The superblock has another magic number.
    BadMagic(u32),
    /// `feature_incompat` has unknown bits.
    UnknownIncompat(u32),
    /// `blkszbits` is outside 9..=16.
    BlockSize(u8),
    /// `dirblkbits` is reserved and must be 0.
    DirectoryBlockBits(u8),
    /// The superblock is larger than any reader accepts.
    SuperblockSize(u16),
    /// The superblock has no room for `metabox_nid`.
    MissingMetaboxSlot,
    /// A nid that must be in the image itself points into the metabox.
    NidInMetabox(&'static str),
    /// The content-digest prefix id is not one of the prefixes.
    DigestPrefix(u8),
    /// The algorithm bitmap has unknown bits.
    UnknownAlgorithms(u16),
    /// An algorithm number that has no meaning.
    UnknownAlgorithm(u8),
    /// A configuration record that is too short for its algorithm.
    ConfigTooShort {
        /// Whose record it is.
        algorithm: AlgorithmId,
        /// Its length in bytes.
        length: u16,
    },
    /// A configuration record with a value out of range.
    Config {
        /// Whose record it is.
        algorithm: AlgorithmId,
        /// The field.
        field: &'static str,
        /// Its value.
        value: u32,
    },
    /// `i_format` has unknown bits.
    InodeFormat(u16),
    /// The data layout is one of the reserved ones.
    InodeLayout(u8),
    /// The type bits of `i_mode` are none of the seven file types.
    InodeMode(u16),
    /// `i_size` of 2^63 or more: sizes of files are signed in Linux.
    InodeSize(u64),
    /// Nanoseconds of one second or more.
    Nanoseconds(u32),
    /// `i_xattr_icount` 1: a body that is a header only.
    XattrBody(u16),
    /// The chunk format has unknown bits.
    ChunkFormat(u16),
    /// The first name offset of a directory block is no multiple of 12 inside the block.
    DirentCount(u16),
    /// A name starts or ends outside the name area.
    NameOffset(u16),
    /// The file type of an entry is none of the known ones.
    DirentType(u8),
    /// A name is empty or longer than 255 bytes.
    NameLength(u64),
    /// A name that no directory may hold: a slash, a NUL.
    NameBytes(u8),
    /// An xattr entry runs past the body that holds it.
    XattrOverrun {
        /// Bytes that the entry needs.
        wanted: u64,
        /// Bytes that the body has left.
        left: u64,
    },
    /// An access control list that Linux rejects, and why.
    Acl(&'static str),
    /// An xattr name index that has no prefix.
    XattrIndex(u8),
    /// A long prefix of no bytes, or of more than a name may have.
    XattrPrefix(u16),
    /// The logical cluster size is out of range for the index that uses it.
    ClusterBits(u8),
    /// Compact indexes whose two big-pcluster bits differ.
    BigPclusterBits(u16),
    /// An index entry starts its extent past the end of its own lcluster.
    ClusterOffset {
        /// The offset found.
        offset: u32,
        /// The size of an lcluster.
        size: u32,
    },
    /// A CBLKCNT in an inode without big pclusters.
    UnexpectedBlockCount,
    /// A pack whose entries contradict each other.
    PackDistance,
    /// An extent record with an unknown format number.
    ExtentFormat(u8),
    /// Writing: a number that its field cannot hold.
    TooLarge {
        /// The field.
        field: &'static str,
        /// The number.
        value: u64,
    },
    /// Writing: parts of a value that exclude each other, or that the format cannot express.
    Unwritable(&'static str),
    /// Writing: a structure that is longer than the room for it.
    NoRoom {
        /// Bytes that the structure needs.
        wanted: u64,
        /// Bytes that are there.
        left: u64,
    },
    /// Writing: a name that does not come after the one before it.
    NameOrder,
    /// Writing: extents that do not add up to the file.
    ExtentSumMismatch {
        /// Bytes that the extents have together.
        planned: u64,
        /// Bytes of the file.
        wanted: u64,
    },
    /// Writing: an extent that the index cannot describe. The offset of the error is the byte of
    /// the file at which the extent starts.
    PlanExtent(&'static str),
}

impl Error {
    /// An error of `kind` at byte `offset` of the slice that was read.
    #[must_use]
    pub const fn new(kind: ErrorKind, offset: u64) -> Self {
        Self { kind, offset }
    }

    /// Which rule was broken.
    #[must_use]
    pub const fn kind(&self) -> &ErrorKind {
        &self.kind
    }

    /// The byte offset, in the slice, of the value that broke the rule, or would break it.
    #[must_use]
    pub const fn offset(&self) -> u64 {
        self.offset
    }

    /// The kind alone, for callers that know the position better.
    #[must_use]
    pub fn into_kind(self) -> ErrorKind {
        self.kind
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} at byte {}", self.kind, self.offset)
    }
}

impl std::error::Error for Error {}

impl fmt::Display for ErrorKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Truncated { .. }
            | Self::BadMagic(_)
            | Self::UnknownIncompat(_)
            | Self::BlockSize(_)
            | Self::DirectoryBlockBits(_)
            | Self::SuperblockSize(_)
            | Self::MissingMetaboxSlot
            | Self::NidInMetabox(_)
            | Self::DigestPrefix(_)
            | Self::UnknownAlgorithms(_)
            | Self::UnknownAlgorithm(_)
            | Self::ConfigTooShort { .. }
            | Self::Config { .. } => self.describe_superblock(f),
            Self::DirentCount(_)
            | Self::NameOffset(_)
            | Self::DirentType(_)
            | Self::NameLength(_)
            | Self::NameBytes(_)
            | Self::XattrOverrun { .. }
            | Self::Acl(_)
            | Self::XattrIndex(_)
            | Self::XattrPrefix(_) => self.describe_names(f),
            Self::TooLarge { .. }
            | Self::Unwritable(_)
            | Self::NoRoom { .. }
            | Self::NameOrder
            | Self::ExtentSumMismatch { .. }
            | Self::PlanExtent(_) => self.describe_writing(f),
            _ => self.describe_inode(f),
        }
    }
}

impl ErrorKind {
    fn describe_superblock(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Truncated { wanted, got } => {
                write!(f, "the structure needs {wanted} bytes, but only {got} remain")
            }
            Self::BadMagic(magic) => {
                write!(f, "magic number {magic:#010x} is not that of EROFS (0xe0f5e1e2)")
            }
            Self::UnknownIncompat(bits) => {
                write!(f, "unknown incompatible feature bits {bits:#x}")
            }
            Self::BlockSize(bits) => write!(f, "block size 2^{bits} is not in 2^9..=2^16"),
            Self::DirectoryBlockBits(bits) => {
                write!(f, "directory block bits {bits} are reserved and must be 0")
            }
            Self::SuperblockSize(bytes) => {
                write!(f, "a superblock of {bytes} bytes does not end within the first 4096")
            }
            Self::MissingMetaboxSlot => {
                f.write_str("the metabox feature is set but the superblock has no slot for its nid")
            }
            Self::NidInMetabox(what) => write!(f, "the nid of the {what} points into the metabox"),
            Self::DigestPrefix(id) => write!(f, "content digest prefix {id} does not exist"),
            Self::UnknownAlgorithms(bits) => {
                write!(f, "unknown compression algorithms {bits:#x}")
            }
            Self::UnknownAlgorithm(number) => {
                write!(f, "compression algorithm {number} is unknown")
            }
            Self::ConfigTooShort { algorithm, length } => {
                write!(f, "the {algorithm} configuration has only {length} bytes")
            }
            Self::Config { algorithm, field, value } => {
                write!(f, "the {algorithm} configuration has {field} {value}, out of range")
            }
            _ => Ok(()),
        }
    }

    fn describe_names(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::DirentCount(offset) => {
                write!(f, "first name offset {offset} of a directory block is impossible")
            }
            Self::DirentType(number) => write!(f, "directory entry type {number} is unknown"),
            Self::NameOffset(offset) => write!(f, "name offset {offset} lies outside the names"),
            Self::NameLength(length) => write!(f, "a name of {length} bytes is not in 1..=255"),
            Self::NameBytes(byte) => write!(f, "a name holds the byte {byte:#04x}"),
            Self::XattrOverrun { wanted, left } => {
                write!(f, "an xattr entry of {wanted} bytes exceeds the {left} left in its body")
            }
            Self::Acl(rule) => write!(f, "Linux rejects an access control list: {rule}"),
            Self::XattrIndex(index) => write!(f, "xattr name index {index} has no prefix"),
            Self::XattrPrefix(length) => {
                write!(f, "a long xattr prefix of {length} bytes is not in 1..=256")
            }
            _ => Ok(()),
        }
    }

    fn describe_writing(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TooLarge { field, value } => write!(f, "{field} cannot hold {value}"),
            Self::Unwritable(what) => write!(f, "the format cannot express {what}"),
            Self::NoRoom { wanted, left } => {
                write!(f, "{wanted} bytes do not fit into the {left} that are left")
            }
            Self::NameOrder => f.write_str("names are not in byte order"),
            Self::ExtentSumMismatch { planned, wanted } => {
                write!(f, "the extents have {planned} bytes, but the file has {wanted}")
            }
            Self::PlanExtent(what) => write!(f, "the index cannot describe {what}"),
            _ => Ok(()),
        }
    }

    fn describe_inode(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::InodeFormat(format) => write!(f, "inode format {format:#06x} has unknown bits"),
            Self::InodeLayout(layout) => write!(f, "data layout {layout} is reserved"),
            Self::InodeMode(mode) => write!(f, "mode {mode:#o} has no file type"),
            Self::InodeSize(size) => write!(f, "the size {size} is above {}", i64::MAX),
            Self::Nanoseconds(nsec) => write!(f, "{nsec} nanoseconds are not in 0..=999999999"),
            Self::XattrBody(count) => write!(f, "an xattr body of count {count} is not supported"),
            Self::ChunkFormat(format) => write!(f, "chunk format {format:#06x} has unknown bits"),
            Self::ClusterBits(bits) => {
                write!(f, "this index does not support lclusters of 2^{bits} bytes")
            }
            Self::BigPclusterBits(advise) => {
                write!(f, "map advice {advise:#06x} has one big-pcluster bit without the other")
            }
            Self::ClusterOffset { offset, size } => {
                write!(f, "an extent starts at byte {offset} of an lcluster of {size}")
            }
            Self::UnexpectedBlockCount => {
                f.write_str("a compressed block count in an inode without big pclusters")
            }
            Self::PackDistance => f.write_str("the distances in an index pack are inconsistent"),
            Self::ExtentFormat(format) => write!(f, "extent format {format} is unknown"),
            _ => Ok(()),
        }
    }
}

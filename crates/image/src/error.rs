//! The error of this crate: what went wrong, in which inode, and at which byte.

use std::path::PathBuf;
use std::{fmt, io};

use ferrofs_ondisk as ondisk;
use ferrofs_ondisk::Nid;

/// The result of working with an image.
pub type Result<T> = std::result::Result<T, Error>;

/// What went wrong, and where.
///
/// Callers match [`Error::kind`]; the inode and the byte are data, not part of the text.
#[derive(Debug)]
pub struct Error(Box<ErrorInner>);

#[derive(Debug)]
struct ErrorInner {
    kind: ErrorKind,
    nid: Option<Nid>,
    offset: Option<u64>,
}

/// What went wrong.
#[derive(Debug)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The operating system could not open or read the image or one of its devices.
    Io(io::Error),
    /// The operating system could not open the file of a device.
    OpenDevice {
        /// The file.
        path: PathBuf,
        /// What the system answered.
        source: io::Error,
    },
    /// Bytes of the image break a rule of the format.
    Format(ondisk::ErrorKind),
    /// A pcluster does not decode.
    Decode(ferrofs_codec::Error),
    /// The checksum of the superblock is wrong.
    Checksum {
        /// The checksum that the superblock holds.
        stored: u32,
        /// The checksum of its bytes.
        computed: u32,
    },
    /// Something lies past the end of the image or of a device.
    OutsideImage {
        /// Where it ends.
        end: u64,
        /// How many bytes there are.
        length: u64,
    },
    /// The image or a device is shorter than the superblock says.
    Truncated {
        /// Bytes that the superblock promises.
        promised: u64,
        /// Bytes that are there.
        length: u64,
    },
    /// The number of devices that were given is not the one of the device table.
    DeviceCount {
        /// Devices in the table.
        table: u16,
        /// Devices that were given.
        given: usize,
    },
    /// A chunk lies on a device that is not in the device table.
    UnknownDevice(u16),
    /// An address does not fit in 64 bits.
    AddressOverflow,
    /// The operation needs an inode of another type.
    WrongType {
        /// What it needs.
        wanted: ondisk::FileType,
        /// What the inode is.
        found: ondisk::FileType,
    },
    /// A dirent and its inode disagree about the file type.
    TypeHint {
        /// What the dirent says.
        hint: ondisk::FileType,
        /// What the inode is.
        found: ondisk::FileType,
    },
    /// A directory's entries are not in strict byte order.
    DirectoryOrder,
    /// A `.` or `..` entry is missing or names another inode.
    DotEntry(&'static str),
    /// A directory was reached twice: it contains itself, or it has two names.
    DirectoryLoop,
    /// A path is longer than 64 KiB.
    PathTooLong,
    /// A path leads through more than 40 symlinks, most likely in a circle.
    SymlinkLoop,
    /// The link count of an inode differs from the number of names found.
    LinkCount {
        /// The link count.
        nlink: u32,
        /// Names that lead to it.
        names: u64,
    },
    /// A symlink target that is empty, too long, or holds a NUL.
    SymlinkTarget(u64),
    /// Inline data crosses the end of its block.
    InlineData,
    /// A distance in an index leads to no extent.
    LookBack {
        /// The lcluster with the distance.
        lcluster: u64,
    },
    /// The distances of an index are shorter than those of any builder: a search takes very many steps.
    ShortDistances {
        /// The lcluster where the search starts.
        lcluster: u64,
        /// The most short steps of a search.
        limit: u64,
    },
    /// An index entry contradicts the one before it.
    BlockCount {
        /// The lcluster with the entry.
        lcluster: u64,
    },
    /// The index maps a byte to an extent that does not hold it.
    WrongExtent {
        /// The byte of the file.
        offset: u64,
    },
    /// Extent records are not in ascending order.
    ExtentOrder,
    /// More extents begin close to each other than in any sound file: reading a page could take as many
    /// clusters as the page has bytes.
    ExtentDensity {
        /// The byte of the file from which on they begin.
        offset: u64,
        /// In how many bytes.
        bytes: u64,
        /// How many may begin there.
        limit: u32,
    },
    /// An extent or its pcluster is longer than the format allows.
    ExtentTooLong {
        /// Decoded bytes.
        decoded: u64,
        /// Encoded bytes.
        encoded: u64,
    },
    /// An uncompressed extent in an inode begins inside a block, and the uncompressed extents of its file are
    /// interlaced (docs/format.md F40).
    InterlacedTail,
    /// A stored extent is longer than its pcluster.
    PlainTooLong {
        /// Bytes of the extent.
        decoded: u64,
        /// Bytes of the pcluster.
        encoded: u64,
    },
    /// A verification could not read this data for another file, which was reported first.
    SharedDamage,
    /// An extent uses an algorithm that the superblock does not declare.
    UndeclaredAlgorithm(ondisk::compression::AlgorithmId),
    /// A fragment without a packed inode, or a fragment of the packed inode itself.
    NoPackedInode,
    /// A nid in a metabox that the image does not have.
    NoMetabox,
    /// A metabox that is too large for its image.
    MetaboxSize {
        /// Bytes of the metabox.
        bytes: u64,
        /// Bytes of the image.
        length: u64,
    },
    /// A special inode that is not a regular file.
    SpecialInode(&'static str),
    /// The name filter excludes an attribute that is there.
    NameFilter,
    /// A default access control list of an inode that is no directory.
    DefaultAcl(ondisk::FileType),
    /// A long xattr prefix that is not in the table.
    UnknownPrefix(u8),
    /// The table of long xattr prefixes names a hidden base or an item without a length.
    XattrPrefixTable,
    /// The name of an extended attribute contains a NUL byte, has more than 255 bytes with its prefix, or
    /// does not fit its prefix: nothing follows `user.`, or something follows the name of an ACL.
    XattrName,
    /// A source panicked while it was read.
    Panicked,
    /// The caller's token was cancelled.
    Cancelled,
    /// The image makes its readers do the same work again and again.
    WorkLimit {
        /// The work.
        what: &'static str,
        /// The limit in bytes, as of [`WorkMeter`](crate::WorkMeter).
        limit: u64,
    },
    /// The memory limit is too low.
    MemoryLimit {
        /// The limit that was asked for.
        bytes: u64,
        /// The lowest limit.
        min: u64,
    },
    /// An error of the thread pools or of memory management, other than a lack of memory.
    Workers(ferrofs_workers::Error),
    /// There is no memory for a buffer.
    OutOfMemory {
        /// Bytes of the buffer.
        bytes: u64,
    },
}

impl Error {
    /// An error of `kind` whose place is not known yet.
    #[cold]
    pub(crate) fn new(kind: ErrorKind) -> Self {
        Self(Box::new(ErrorInner { kind, nid: None, offset: None }))
    }

    /// What went wrong.
    #[must_use]
    pub fn kind(&self) -> &ErrorKind {
        &self.0.kind
    }

    /// Whether a best-effort request was refused. That holds for this moment only and is not
    /// reported.
    pub(crate) fn is_transient(&self) -> bool {
        let ErrorKind::Workers(error) = &self.0.kind else { return false };
        error.kind() == ferrofs_workers::ErrorKind::NotNow
    }

    /// The inode in question.
    #[must_use]
    pub fn nid(&self) -> Option<Nid> {
        self.0.nid
    }

    /// The byte in question: of the image, of the device that holds the data, or of the metabox
    /// file if the inode lies there.
    #[must_use]
    pub fn offset(&self) -> Option<u64> {
        self.0.offset
    }

    /// Adds the inode, unless one is known already.
    #[must_use]
    pub(crate) fn in_inode(mut self, nid: Nid) -> Self {
        self.0.nid = self.0.nid.or(Some(nid));
        self
    }

    /// Adds the byte, unless one is known already: the first one is the most exact.
    #[must_use]
    pub(crate) fn at(mut self, offset: u64) -> Self {
        self.0.offset = self.0.offset.or(Some(offset));
        self
    }

    /// An error of the format in a structure that starts at `start`.
    #[cold]
    pub(crate) fn format(error: ondisk::Error, start: u64) -> Self {
        let at = start.saturating_add(error.offset());
        Self::new(ErrorKind::Format(error.into_kind())).at(at)
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0.kind)?;
        match (self.0.nid, self.0.offset) {
            (Some(nid), Some(offset)) => write!(f, " (nid {nid}, byte {offset})"),
            (Some(nid), None) => write!(f, " (nid {nid})"),
            (None, Some(offset)) => write!(f, " (byte {offset})"),
            (None, None) => Ok(()),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match &self.0.kind {
            ErrorKind::Io(error) | ErrorKind::OpenDevice { source: error, .. } => Some(error),
            ErrorKind::Decode(error) => Some(error),
            ErrorKind::Workers(error) => Some(error),
            _ => None,
        }
    }
}

impl From<io::Error> for Error {
    fn from(error: io::Error) -> Self {
        Self::new(ErrorKind::Io(error))
    }
}

impl From<ErrorKind> for Error {
    fn from(kind: ErrorKind) -> Self {
        Self::new(kind)
    }
}

impl fmt::Display for ErrorKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Io(_)
            | Self::OpenDevice { .. }
            | Self::Checksum { .. }
            | Self::OutsideImage { .. }
            | Self::Truncated { .. }
            | Self::DeviceCount { .. }
            | Self::UnknownDevice(_)
            | Self::AddressOverflow
            | Self::Panicked
            | Self::Cancelled
            | Self::WorkLimit { .. }
            | Self::MemoryLimit { .. }
            | Self::Workers(_)
            | Self::OutOfMemory { .. } => self.describe_image(f),
            Self::LookBack { .. }
            | Self::ShortDistances { .. }
            | Self::BlockCount { .. }
            | Self::WrongExtent { .. }
            | Self::ExtentOrder
            | Self::ExtentDensity { .. }
            | Self::ExtentTooLong { .. }
            | Self::InterlacedTail
            | Self::PlainTooLong { .. }
            | Self::UndeclaredAlgorithm(_)
            | Self::SharedDamage
            | Self::Decode(_) => self.describe_data(f),
            _ => self.describe_tree(f),
        }
    }
}

impl ErrorKind {
    fn describe_image(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Io(error) => write!(f, "{error}"),
            Self::OpenDevice { path, source } => {
                write!(f, "cannot open the device {}: {source}", path.display())
            }
            Self::Checksum { stored, computed } => write!(
                f,
                "superblock checksum is {stored:#010x}, but the checksum of its bytes is {computed:#010x}"
            ),
            Self::OutsideImage { end, length } => {
                write!(f, "data up to byte {end} is needed, but the image has {length} bytes")
            }
            Self::Truncated { promised, length } => {
                write!(
                    f,
                    "the superblock states an image of {promised} bytes, but there are only {length}"
                )
            }
            Self::DeviceCount { table, given } => {
                write!(f, "the image has {table} extra devices, but {given} were given")
            }
            Self::UnknownDevice(id) => write!(f, "device {id} is not in the device table"),
            Self::AddressOverflow => f.write_str("an address does not fit 64 bits"),
            Self::Panicked => f.write_str("the source of the image panicked"),
            Self::Cancelled => f.write_str("cancelled"),
            Self::WorkLimit { what, limit } => {
                write!(f, "{what}: more than the limit of {limit} bytes of repeated work")
            }
            Self::MemoryLimit { bytes, min } => {
                write!(f, "a memory limit of {bytes} bytes is too low; the lowest is {min}")
            }
            Self::Workers(error) => write!(f, "{error}"),
            Self::OutOfMemory { bytes } => write!(f, "no memory for a buffer of {bytes} bytes"),
            _ => Ok(()),
        }
    }

    fn describe_data(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::LookBack { lcluster } => {
                write!(f, "the index distance at lcluster {lcluster} points to no extent")
            }
            Self::ShortDistances { lcluster, limit } => write!(
                f,
                "a search in the index takes more than {limit} short steps from lcluster {lcluster}"
            ),
            Self::BlockCount { lcluster } => {
                write!(f, "lcluster {lcluster} does not hold the block count of its extent")
            }
            Self::WrongExtent { offset } => {
                write!(
                    f,
                    "the index maps byte {offset} of the file to an extent that does not contain it"
                )
            }
            Self::ExtentOrder => f.write_str("extent records are not in ascending order"),
            Self::ExtentDensity { offset, bytes, limit } => write!(
                f,
                "more than {limit} extents begin in the {bytes} bytes from byte {offset} of the file"
            ),
            Self::ExtentTooLong { decoded, encoded } => {
                write!(
                    f,
                    "an extent of {decoded} bytes in a pcluster of {encoded} is longer than the format allows"
                )
            }
            Self::InterlacedTail => f.write_str(
                "the end of the file is uncompressed in its inode, and in an order on which mkfs.erofs and the kernel \
                 disagree: rebuild the image without ztailpacking",
            ),
            Self::PlainTooLong { decoded, encoded } => {
                write!(
                    f,
                    "an uncompressed extent of {decoded} bytes has only {encoded} in the image"
                )
            }
            Self::UndeclaredAlgorithm(algorithm) => {
                write!(f, "algorithm {algorithm} is used, but the superblock does not declare it")
            }
            Self::SharedDamage => f.write_str("shares damaged data with another file"),
            Self::Decode(error) => write!(f, "{error}"),
            _ => Ok(()),
        }
    }

    fn describe_tree(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Format(kind) => write!(f, "{kind}"),
            Self::WrongType { wanted, found } => {
                write!(f, "expected a {}, found a {}", wanted.name(), found.name())
            }
            Self::TypeHint { hint, found } => {
                write!(
                    f,
                    "the directory entry has type {}, but the inode is a {}",
                    hint.name(),
                    found.name()
                )
            }
            Self::DirectoryOrder => f.write_str("directory entries are not in byte order"),
            Self::DotEntry(name) => {
                write!(f, "the entry {name:?} is missing or names another inode")
            }
            Self::PathTooLong => f.write_str("the path of an entry is longer than 65536 bytes"),
            Self::SymlinkLoop => f.write_str("too many levels of symlinks: more than 40"),
            Self::DirectoryLoop => f.write_str("two paths lead to the same directory"),
            Self::LinkCount { nlink, names } => {
                write!(f, "the link count is {nlink}, but {names} names were found")
            }
            Self::SymlinkTarget(bytes) => {
                write!(f, "a symlink target of {bytes} bytes is empty, too long or holds a NUL")
            }
            Self::InlineData => f.write_str("inline data crosses the end of its block"),
            Self::NoPackedInode => {
                f.write_str("the file has a fragment, but the image has no packed inode")
            }
            Self::NoMetabox => {
                f.write_str("the nid lies in a metabox that the image does not have")
            }
            Self::MetaboxSize { bytes, length } => {
                write!(f, "a metabox of {bytes} bytes is too large for an image of {length}")
            }
            Self::SpecialInode(what) => write!(f, "the {what} inode is not a regular file"),
            Self::NameFilter => f.write_str("the xattr name filter excludes an xattr of the inode"),
            Self::DefaultAcl(found) => {
                write!(f, "a {} has a default access control list", found.name())
            }
            Self::UnknownPrefix(id) => write!(f, "long xattr prefix {id} does not exist"),
            Self::XattrName => f.write_str(
                "the name of an extended attribute contains a NUL byte, has more than 255 bytes, or does not fit its prefix",
            ),
            Self::XattrPrefixTable => f.write_str("the table of long xattr prefixes is damaged"),
            _ => Ok(()),
        }
    }
}

/// Adds to an error what the caller knows of its place.
pub(crate) trait ErrorContext<T> {
    /// Adds the inode.
    fn in_inode(self, nid: Nid) -> Result<T>;
    /// Adds the byte.
    fn at(self, offset: u64) -> Result<T>;
}

impl<T> ErrorContext<T> for Result<T> {
    fn in_inode(self, nid: Nid) -> Self {
        self.map_err(|error| error.in_inode(nid))
    }

    fn at(self, offset: u64) -> Self {
        self.map_err(|error| error.at(offset))
    }
}

/// Turns a failed computation of an address into an error.
pub(crate) fn address<T>(value: Option<T>) -> Result<T> {
    value.ok_or_else(|| Error::new(ErrorKind::AddressOverflow))
}

/// The error of a structure that starts at `start`.
pub(crate) fn parsed<T>(result: ondisk::Result<T>, start: u64) -> Result<T> {
    result.map_err(|error| Error::format(error, start))
}

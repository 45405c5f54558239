//! The options of a build. [`validate`] checks them before anything is written.

pub(crate) mod compression;
pub(crate) mod validate;

use std::path::{Path, PathBuf};

use ferrofs_codec::Method;
use ferrofs_ondisk::BlockSize;

use crate::CompressionHints;

const DEFAULT_BLOCK_SIZE: BlockSize = match BlockSize::from_bits(12) {
    Ok(size) => size,
    Err(_) => panic!("blocks of 4 KiB are in range"),
};
/// Half a segment: with what does not divide a segment, a short extent would be left at the end of each.
const DEFAULT_EXTENT_BYTES_MAX: u32 = 4 << 20;
const DEFAULT_MEMORY_BYTES: u64 = 512 << 20;

/// What an image is like, and what its build may take. [`BuildOptions::default`] is an uncompressed image with
/// blocks of 4 KiB.
///
/// ```
/// use ferrofs_builder::{Algorithms, BuildOptions};
/// use ferrofs_codec::Method;
///
/// let zstd = Method::Zstd { level: 3, window_log: 17 };
/// let options = BuildOptions::default()
///     .algorithms(Some(Algorithms { default: 0, methods: vec![zstd] }))
///     .pcluster_bytes(64 << 10)
///     .jobs(Some(4));
/// options.check()?;
/// # Ok::<(), ferrofs_builder::Error>(())
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct BuildOptions {
    /// Block size: 512 bytes to 64 KiB.
    pub block_size: BlockSize,
    /// How files are compressed; none for an uncompressed image.
    pub algorithms: Option<Algorithms>,
    /// Bytes of the largest pcluster: a multiple of the block, 1 MiB at most.
    pub pcluster_bytes: u32,
    /// Other compression for some files, or none, by their paths.
    pub hints: CompressionHints,
    /// Bytes of the longest extent, decoded: whole blocks, 12 MiB at most.
    pub extent_bytes_max: u32,
    /// Form of the indexes of compressed files.
    pub index: IndexForm,
    /// 48BIT: encoded extents in place of indexes where they are shorter, compact inodes with seconds of
    /// their own, no data for files of zeros only. Needs Linux 6.15. Addresses of more than 32 bits
    /// are written where they are needed, also without this.
    pub wide: bool,
    /// The last pcluster of a file goes behind its inode where it fits (ztailpacking).
    pub inline_pclusters: bool,
    /// The last bytes of an uncompressed file go behind its inode where they fit.
    pub inline_data: bool,
    /// What goes into the packed inode.
    pub fragments: Fragments,
    /// Which fragments are stored once.
    pub fragment_sharing: FragmentSharing,
    /// Bytes of the largest pcluster of the packed inode; none: [`pcluster_bytes`](Self::pcluster_bytes).
    pub packed_pcluster_bytes: Option<u32>,
    /// Whether duplicate ranges are stored once.
    pub deduplication: Deduplication,
    /// Uncompressed files, and those up to 8 MiB in which nothing can be compressed, are kept in chunks of
    /// this many bytes: a power of two, a block at least.
    pub chunk_bytes: Option<u64>,
    /// Chunk tables of 8-byte indexes, also where 4-byte ones would do.
    pub force_chunk_indexes: bool,
    /// Chunks go to a file or device beside the image, which refers to them there. All other data lies in the image.
    pub blob: Option<BlobOutput>,
    /// The data of each file starts at a multiple of this many blocks, which come to 1 GiB at most; with
    /// chunks, those that are stored for it.
    pub data_alignment_blocks: u32,
    /// The image has a multiple of this many blocks, which come to 1 GiB at most.
    pub image_alignment_blocks: u32,
    /// Directories are compressed, too: they go to the packed inode.
    pub compress_directories: bool,
    /// Inodes are kept in an inode (METABOX) that is compressed like files, with pclusters of at most this
    /// many bytes: a multiple of the block, 1 MiB at most.
    pub metabox_pcluster_bytes: Option<u32>,
    /// What the metabox is compressed with: an index into [`Algorithms::methods`]; none: as files are.
    pub metabox_method: Option<usize>,
    /// An xattr that more inodes than this have is stored once; `None`: never shared. With a metabox none is shared,
    /// since Linux (seen in 6.18) loses shared xattrs of inodes in a metabox.
    pub xattr_share_above: Option<u32>,
    /// Prefixes of xattr names, as in `user.app.`, that are stored once.
    pub xattr_prefixes: Vec<Vec<u8>>,
    /// These prefixes never lie in the packed inode, where kernels before 6.17 look for them if there is
    /// one.
    pub plain_xattr_prefixes: bool,
    /// The xattr that holds the digest of a file, as [`add_digests`](crate::add_digests) makes it. A name
    /// without a predefined prefix is never listed.
    pub digest_xattr: Option<Vec<u8>>,
    /// The xattrs of the root take this many bytes at least, 65,532 at most: space for others later on.
    pub root_xattr_bytes: u32,
    /// The filter of xattr names.
    pub xattr_filter: bool,
    /// Extended inodes for everything.
    pub force_extended_inodes: bool,
    /// Compact inodes for everything that they can name; times and owners that do not fit are errors.
    pub force_compact_inodes: bool,
    /// No `.` entries (48BIT).
    pub omit_dot: bool,
    /// The superblock has a checksum.
    pub superblock_checksum: bool,
    /// UUID.
    pub uuid: [u8; 16],
    /// Label, padded with zeros.
    pub label: [u8; 16],
    /// The time in the superblock, which compact inodes take for theirs.
    pub time: SuperblockTime,
    /// Inodes, indexes and directories lie in front of the data, so that a reader of a remote image gets them with its
    /// first request. The data passes through a temporary file.
    pub metadata_first: bool,
    /// Where the chunk index of the image goes, if it gets one: the digests by which a part of it can be verified.
    pub chunk_index: Option<ChunkIndexOutput>,
    /// Where the image goes.
    pub output_mode: OutputMode,
    /// Threads that read and encode; `None`: one for each available CPU. The image does not depend on it.
    pub jobs: Option<usize>,
    /// Memory of the build in bytes: the tree, the search for duplicates, tables, encoders and buffers take no more
    /// together. Not counted are 40 bytes for each extent of a file.
    pub memory_bytes: u64,
}

/// Where chunks go that are not to lie in the image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BlobOutput {
    /// Into a new file, which gets this name when it is whole, before the image gets its own.
    NewFile(PathBuf),
    /// Into a file or device that is there, from its first byte on.
    InPlace(PathBuf),
}

impl BlobOutput {
    /// The path of the file or device.
    #[must_use]
    pub fn path(&self) -> &Path {
        match self {
            Self::NewFile(path) | Self::InPlace(path) => path,
        }
    }
}

/// Where a chunk index is written to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ChunkIndexOutput {
    /// After the last block of the image, in the same file.
    Embedded,
    /// To a new file, which gets this name when it is whole, before the image gets its own.
    NewFile(PathBuf),
}

/// Where an image goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OutputMode {
    /// Into a new file, which gets the image's name when it is whole. What had the name before, a regular
    /// file, is replaced; a device is refused.
    NewFile {
        /// The byte of the file at which the image starts, a multiple of 512; a hole lies before it.
        offset: u64,
    },
    /// Into a file or device that is there. If the build fails, it holds no image.
    InPlace {
        /// The byte at which the image starts, a multiple of 512; what lies before it stays.
        offset: u64,
    },
}

impl OutputMode {
    /// The byte of the file at which the image starts.
    #[must_use]
    pub const fn offset(self) -> u64 {
        match self {
            Self::NewFile { offset } | Self::InPlace { offset } => offset,
        }
    }
}

impl Default for BuildOptions {
    /// As `mkfs.erofs` without options: uncompressed, blocks of 4 KiB, tails inline, xattrs of more than
    /// two inodes shared, a checksum.
    fn default() -> Self {
        Self {
            block_size: DEFAULT_BLOCK_SIZE,
            algorithms: None,
            pcluster_bytes: DEFAULT_BLOCK_SIZE.bytes(),
            hints: CompressionHints::default(),
            extent_bytes_max: DEFAULT_EXTENT_BYTES_MAX,
            index: IndexForm::Compact,
            wide: false,
            inline_pclusters: false,
            inline_data: true,
            fragments: Fragments::None,
            fragment_sharing: FragmentSharing::Parts,
            packed_pcluster_bytes: None,
            deduplication: Deduplication::Off,
            chunk_bytes: None,
            force_chunk_indexes: false,
            blob: None,
            data_alignment_blocks: 1,
            image_alignment_blocks: 1,
            compress_directories: false,
            metabox_pcluster_bytes: None,
            metabox_method: None,
            xattr_share_above: Some(2),
            xattr_prefixes: Vec::new(),
            plain_xattr_prefixes: false,
            digest_xattr: None,
            root_xattr_bytes: 0,
            xattr_filter: true,
            force_extended_inodes: false,
            force_compact_inodes: false,
            omit_dot: false,
            superblock_checksum: true,
            uuid: [0; 16],
            label: [0; 16],
            time: SuperblockTime::Newest,
            metadata_first: false,
            chunk_index: None,
            output_mode: OutputMode::NewFile { offset: 0 },
            jobs: None,
            memory_bytes: DEFAULT_MEMORY_BYTES,
        }
    }
}

option_setters! { BuildOptions {
    block_size: BlockSize,
    algorithms: Option<Algorithms>,
    pcluster_bytes: u32,
    hints: CompressionHints,
    extent_bytes_max: u32,
    index: IndexForm,
    wide: bool,
    inline_pclusters: bool,
    inline_data: bool,
    fragments: Fragments,
    fragment_sharing: FragmentSharing,
    packed_pcluster_bytes: Option<u32>,
    deduplication: Deduplication,
    chunk_bytes: Option<u64>,
    force_chunk_indexes: bool,
    blob: Option<BlobOutput>,
    data_alignment_blocks: u32,
    image_alignment_blocks: u32,
    compress_directories: bool,
    metabox_pcluster_bytes: Option<u32>,
    metabox_method: Option<usize>,
    xattr_share_above: Option<u32>,
    xattr_prefixes: Vec<Vec<u8>>,
    plain_xattr_prefixes: bool,
    digest_xattr: Option<Vec<u8>>,
    root_xattr_bytes: u32,
    xattr_filter: bool,
    force_extended_inodes: bool,
    force_compact_inodes: bool,
    omit_dot: bool,
    superblock_checksum: bool,
    uuid: [u8; 16],
    label: [u8; 16],
    time: SuperblockTime,
    metadata_first: bool,
    chunk_index: Option<ChunkIndexOutput>,
    output_mode: OutputMode,
    jobs: Option<usize>,
    memory_bytes: u64,
}}

impl BuildOptions {
    /// Bytes of the largest pcluster that any file can have.
    pub(crate) fn pcluster_bytes_max(&self) -> u32 {
        let of_hints = self.hints.all().iter().map(|hint| hint.pcluster_bytes);
        let of_special = [self.packed_pcluster_bytes, self.metabox_pcluster_bytes];
        of_hints.chain(of_special.into_iter().flatten()).fold(self.pcluster_bytes, u32::max)
    }

    /// Whether long prefixes of xattrs lie in the packed inode, if there are any.
    pub(crate) fn packs_xattr_prefixes(&self) -> bool {
        (self.fragments != Fragments::None || self.compress_directories)
            && self.metabox_pcluster_bytes.is_none()
            && !self.plain_xattr_prefixes
    }
}

/// The algorithms of an image.
#[derive(Clone, Debug)]
pub struct Algorithms {
    /// What a file is compressed with that no hint names: an index into `methods`.
    pub default: usize,
    /// What hints name by its index; several may be of one algorithm.
    pub methods: Vec<Method>,
}

/// What goes into the packed inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fragments {
    /// Nothing.
    None,
    /// Ends of files that do not fill a pcluster.
    Tails,
    /// Every file in full.
    All,
}

/// Which fragments are stored once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FragmentSharing {
    /// Those that are equal, and those that another one ends with.
    Parts,
    /// Those that are a whole file, if they are equal.
    Files,
    /// None.
    Off,
}

/// Which duplicate ranges are stored once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Deduplication {
    /// None.
    Off,
    /// All, over the whole image.
    On,
}

/// The form of the indexes of compressed files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IndexForm {
    /// Compact where the file allows it, full elsewhere.
    Compact,
    /// Full, as old kernels need it.
    Full,
}

/// The time in the superblock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SuperblockTime {
    /// That time: seconds since 1970.
    Fixed(u64),
    /// The newest modification time in the tree.
    Newest,
}

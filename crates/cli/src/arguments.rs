//! What can be typed, and the help that explains it. Nothing here touches the system: opening
//! files, looking at terminals and choosing defaults that depend on them happens later.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use clap::{Args, Parser, Subcommand, ValueEnum};

use crate::amount::{parse_bytes, parse_cpus, parse_jobs};
use crate::help;

/// Build, read, extract and check EROFS images, without root.
#[derive(Debug, Parser)]
#[command(name = "ferrofs", version, about, after_help = help::FERROFS, max_term_width = 100)]
#[command(arg_required_else_help = true, disable_help_subcommand = true)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    pub(crate) verb: Verb,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub(crate) enum Verb {
    Info(InfoArguments),
    Ls(LsArguments),
    Cat(CatArguments),
    Stat(StatArguments),
    Extract(ExtractArguments),
    Check(CheckArguments),
    Build(Box<BuildArguments>),
    Mount(Box<MountArguments>),
    Stats(StatsArguments),
    Demo(DemoArguments),
}

// Where the image begins, what belongs to it, and how to read it.
#[derive(Args, Clone, Debug, Default)]
pub(crate) struct ReadArguments {
    /// The image begins at this byte of IMAGE; k, m and g count in KiB, MiB and GiB
    #[arg(long, value_name = "BYTES", value_parser = parse_bytes, default_value = "0")]
    pub(crate) offset: u64,

    /// An extra device of the image; give all of them, in the order of its device table
    #[arg(long = "device", value_name = "FILE")]
    pub(crate) devices: Vec<PathBuf>,

    /// Read the image even if the checksum of its superblock is wrong
    #[arg(long)]
    pub(crate) no_checksum: bool,

    /// Print no notices and no summary; errors are still printed
    #[arg(short, long)]
    pub(crate) quiet: bool,
}

/// How much of the machine long work may use, and whether to tell what it did.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "Resources")]
pub(crate) struct WorkArguments {
    #[command(flatten)]
    pub(crate) machine: MachineArguments,

    /// Tell on stderr what reading came to; with --json it is a part of the summary
    #[arg(long)]
    pub(crate) stats: bool,
}

/// How much of the machine may be used.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "Resources")]
pub(crate) struct MachineArguments {
    /// How many threads may work, this one among them; no more than CPUs are granted, which is also
    /// the default
    #[arg(long, value_name = "N", value_parser = parse_jobs)]
    pub(crate) jobs: Option<usize>,

    /// Memory that the process may take in all; k, m and g count in KiB, MiB and GiB. At the limit
    /// threads wait or are fewer [default: 256m for images, or an eighth of what there is]
    #[arg(long, value_name = "BYTES", value_parser = parse_bytes)]
    pub(crate) memory: Option<u64>,

    /// Run on these CPUs only, such as 0-3,6
    #[arg(long, value_name = "LIST", value_parser = parse_cpus)]
    pub(crate) cpus: Option<String>,

    /// Lower the priority, up to 19; below 0 raises it, which needs a right
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    #[arg(value_parser = clap::value_parser!(i32).range(-20..=19))]
    pub(crate) nice: Option<i32>,
}

/// Memory that a mount sets aside for decoding.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "Resources")]
pub(crate) struct ReserveArguments {
    /// Pages of 4 KiB that stay resident for decoding when nobody reads; more of them go back to the system
    /// at once, and 0 keeps none. What was kept longest makes room before more is taken from the system, and
    /// reads are no larger than fits: with fewer than 128 a thread long files are read more slowly [default: up to an
    /// eighth of --memory for some seconds]
    #[arg(long, value_name = "N")]
    pub(crate) reserved_pages: Option<u32>,

    /// Fault the reserved pages in on all CPUs before the mount is ready; without --reserved-pages these
    /// are an eighth of --memory
    #[arg(long)]
    pub(crate) prefault: bool,
}

/// How to show that long work goes on.
#[derive(Args, Clone, Copy, Debug)]
pub(crate) struct ProgressArguments {
    /// Show progress on stderr: a bar, or a line of JSON five times a second
    #[arg(long, value_name = "HOW", value_enum, default_value_t = ProgressStyle::Auto)]
    pub(crate) progress: ProgressStyle,
}

/// A way to show progress.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum ProgressStyle {
    /// A bar if stderr is a terminal, else nothing
    Auto,
    /// A bar, or a line of text each second if stderr is no terminal
    Bar,
    /// One JSON object a line: verb, done, total, unit, entries, bytes, eta_s
    Json,
    /// Nothing
    None,
}

/// Show what an image is: features, sizes, compression, devices.
#[derive(Args, Debug)]
#[command(after_help = help::INFO)]
pub(crate) struct InfoArguments {
    /// The image file
    pub(crate) image: PathBuf,

    /// Print one JSON object
    #[arg(long)]
    pub(crate) json: bool,

    #[command(flatten)]
    pub(crate) read: ReadArguments,
}

/// List directories.
#[derive(Args, Debug)]
#[command(after_help = help::LS)]
pub(crate) struct LsArguments {
    /// The image file
    pub(crate) image: PathBuf,

    /// Paths in the image
    #[arg(value_name = "PATH", default_value = "/")]
    pub(crate) paths: Vec<OsString>,

    /// Mode, links, owner, size and time of each entry
    #[arg(short, long)]
    pub(crate) long: bool,

    /// Everything below as well, with whole paths
    #[arg(short = 'R', long)]
    pub(crate) recursive: bool,

    /// A directory itself instead of what is in it
    #[arg(short, long, conflicts_with = "recursive")]
    pub(crate) directory: bool,

    /// Print one JSON object a line, one for each entry
    #[arg(long, conflicts_with = "long")]
    pub(crate) json: bool,

    #[command(flatten)]
    pub(crate) read: ReadArguments,
}

/// Write files to standard output.
#[derive(Args, Debug)]
#[command(after_help = help::CAT)]
pub(crate) struct CatArguments {
    /// The image file
    pub(crate) image: PathBuf,

    /// Paths of regular files in the image
    #[arg(value_name = "PATH", required = true)]
    pub(crate) paths: Vec<OsString>,

    #[command(flatten)]
    pub(crate) work: WorkArguments,

    #[command(flatten)]
    pub(crate) read: ReadArguments,
}

/// Show everything about an inode.
#[derive(Args, Debug)]
#[command(after_help = help::STAT)]
pub(crate) struct StatArguments {
    /// The image file
    pub(crate) image: PathBuf,

    /// Paths in the image; symlinks are not followed
    #[arg(value_name = "PATH", default_value = "/")]
    pub(crate) paths: Vec<OsString>,

    /// Print one JSON object a line, one for each path
    #[arg(long)]
    pub(crate) json: bool,

    #[command(flatten)]
    pub(crate) read: ReadArguments,
}

/// Unpack an image, or a part of it, into a directory or as a tar.
#[derive(Args, Debug)]
#[command(after_help = help::EXTRACT, override_usage = help::EXTRACT_USAGE)]
pub(crate) struct ExtractArguments {
    /// The image file
    pub(crate) image: PathBuf,

    /// The directory to unpack into; made if it is missing, and must be empty if it is not.
    /// With --tar there is none, and the first PATH takes this place
    #[arg(value_name = "DEST", required_unless_present = "tar")]
    pub(crate) destination: Option<PathBuf>,

    /// Paths and patterns to extract; nothing given means everything
    #[arg(value_name = "PATH")]
    pub(crate) paths: Vec<OsString>,

    /// Write a tar instead of a directory, to FILE, or to standard output if it is -
    #[arg(long, value_name = "FILE")]
    pub(crate) tar: Option<PathBuf>,

    /// Write holes as zeros, for readers of the tar that do not know sparse files
    #[arg(long, requires = "tar")]
    pub(crate) no_sparse: bool,

    /// DEST may have entries: use its directories, replace everything else
    #[arg(long, conflicts_with = "tar")]
    pub(crate) overwrite: bool,

    /// Keep owners, and fail where that is not allowed (as root owners are kept anyway)
    #[arg(long, conflicts_with_all = ["no_preserve_owner", "tar"])]
    pub(crate) preserve_owner: bool,

    /// Everything belongs to whoever runs this, even to root
    #[arg(long, conflicts_with = "tar")]
    pub(crate) no_preserve_owner: bool,

    /// Print a summary as one JSON object
    #[arg(long)]
    pub(crate) json: bool,

    #[command(flatten)]
    pub(crate) progress: ProgressArguments,

    #[command(flatten)]
    pub(crate) work: WorkArguments,

    #[command(flatten)]
    pub(crate) read: ReadArguments,

    #[arg(skip)]
    pub(crate) part: ExtractedPart,
}

/// What of an image is extracted, and what of its metadata, where another name of the command asks.
#[derive(Clone, Debug, Default)]
pub(crate) struct ExtractedPart {
    /// The directory of the image that becomes DEST; empty for the root.
    pub(crate) from: Vec<u8>,
    /// Permission bits that entries do not get.
    pub(crate) masked_permissions: u32,
    pub(crate) omits_xattrs: bool,
    /// DEST may have entries; those that are in the way stay, and are failures.
    pub(crate) keeps_existing: bool,
}

impl ExtractArguments {
    /// The directory to unpack into; the parser demands one unless there is a tar.
    pub(crate) fn directory(&self) -> &Path {
        self.destination.as_deref().unwrap_or(Path::new(""))
    }
}

/// Read every byte of an image and name each bad path.
#[derive(Args, Debug)]
#[command(after_help = help::CHECK)]
pub(crate) struct CheckArguments {
    /// The image file
    pub(crate) image: PathBuf,

    /// What is checked where another name of the command asks for a part: a path and everything below
    #[arg(skip)]
    pub(crate) below: Option<Vec<u8>>,

    /// Print a summary with all problems as one JSON object
    #[arg(long)]
    pub(crate) json: bool,

    #[command(flatten)]
    pub(crate) progress: ProgressArguments,

    #[command(flatten)]
    pub(crate) work: WorkArguments,

    #[command(flatten)]
    pub(crate) read: ReadArguments,
}

/// Build an image from a directory or from tar archives.
#[derive(Args, Clone, Debug)]
#[command(after_help = help::BUILD)]
pub(crate) struct BuildArguments {
    /// The image file, which appears when it is whole
    pub(crate) image: PathBuf,

    /// A directory; or tar archives, plain or compressed by gzip, xz or zstd, those of layers from
    /// the lowest on; - is standard input
    #[arg(value_name = "SOURCE", required = true)]
    pub(crate) sources: Vec<PathBuf>,

    /// Replace an image that is there
    #[arg(short, long)]
    pub(crate) force: bool,

    /// Do everything but build, and tell what the image would be like
    #[arg(long)]
    pub(crate) dry_run: bool,

    /// Give the image its name without having compared it with the source
    #[arg(long)]
    pub(crate) no_verify: bool,

    /// Go on without what cannot be read, and say so
    #[arg(long)]
    pub(crate) keep_going: bool,

    /// Print a summary as one JSON object, with the SHA-256 of the image
    #[arg(long)]
    pub(crate) json: bool,

    /// Print no notices and no summary; errors are still printed
    #[arg(short, long)]
    pub(crate) quiet: bool,

    #[command(flatten)]
    pub(crate) compression: BuildCompression,

    #[command(flatten)]
    pub(crate) layout: BuildLayout,

    #[command(flatten)]
    pub(crate) content: BuildContent,

    #[command(flatten)]
    pub(crate) progress: ProgressArguments,

    #[command(flatten)]
    pub(crate) machine: MachineArguments,
}

/// What makes an image small.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Compression")]
pub(crate) struct BuildCompression {
    /// Compress: lz4, lz4hc 0-12, lzma 0-9 or 100-109, deflate 0-9, libdeflate 0-12, zstd 0-22
    #[arg(short = 'z', long, value_name = "ALG[,level=N][,dictsize=BYTES]")]
    pub(crate) compress: Option<String>,

    /// Bytes that a pcluster takes at most: whole blocks, up to 1m. Larger ones compress better, and
    /// take longer to read a little from [default: 64k]
    #[arg(short = 'C', long, value_name = "BYTES", value_parser = parse_bytes)]
    pub(crate) pcluster: Option<u64>,

    /// Compress some files otherwise, by lines of FILE: bytes of a pcluster, or 0 for not at all; the
    /// number of an algorithm of --compress, from 0 on, which may be left out; and an expression, a
    /// POSIX extended one, that is found in the paths. The first line that fits counts
    #[arg(long, value_name = "FILE")]
    pub(crate) hints: Option<PathBuf>,

    /// Bytes that a pcluster decodes to at most: whole blocks, up to 12m
    #[arg(long, value_name = "BYTES", value_parser = parse_bytes)]
    pub(crate) max_extent: Option<u64>,

    /// The farthest that a match of LZ4 may reach back. Less of a window takes less memory to decode
    #[arg(long, value_name = "BYTES", default_value_t = u16::MAX)]
    #[arg(value_parser = clap::value_parser!(u16).range(4096..))]
    pub(crate) max_distance: u16,

    /// Compress the ends of files together, or all of them
    #[arg(long, value_name = "tails|all", num_args = 0..=1, require_equals = true)]
    #[arg(default_missing_value = "tails", value_enum)]
    pub(crate) fragments: Option<FragmentChoice>,

    /// Bytes that a pcluster takes at most where files are compressed together [default: --pcluster]
    #[arg(long, value_name = "BYTES", value_parser = parse_bytes, requires = "fragments")]
    pub(crate) fragments_pcluster: Option<u64>,

    /// Which of what is compressed together is stored once
    #[arg(long, value_name = "WHAT", value_enum, requires = "fragments")]
    pub(crate) share_fragments: Option<SharingChoice>,

    /// Store what repeats once
    #[arg(long)]
    pub(crate) dedupe: bool,

    /// Keep the last pcluster of a file behind its inode where it fits
    #[arg(long)]
    pub(crate) inline_pclusters: bool,

    /// Indexes of files that kernels from before 5.3 read, too
    #[arg(long)]
    pub(crate) full_indexes: bool,

    /// Compress directories, too, together. Looking names up takes longer; Linux reads them from 6.1 on
    #[arg(long)]
    pub(crate) compress_directories: bool,
}

/// What is compressed together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum FragmentChoice {
    /// Ends of files that do not fill a pcluster
    Tails,
    /// All files
    All,
}

/// What is stored once of what is compressed together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum SharingChoice {
    /// Ends of files that are equal, or that another ends with
    Parts,
    /// Files that are equal
    Files,
    /// Nothing
    Off,
}

/// The attribute that holds the digest of a file, where no other is named: as erofs-utils calls it.
pub(crate) const DEFAULT_DIGEST_XATTR: &str = "erofs.fingerprint.v1";

/// What an image is like.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Image")]
pub(crate) struct BuildLayout {
    /// Block size: a power of two from 512 to 64k. Linux reads no more than its page size
    #[arg(short = 'b', long, value_name = "BYTES", value_parser = parse_bytes)]
    #[arg(default_value = "4096")]
    pub(crate) block_size: u64,

    /// Keep files in chunks of this many bytes, a power of two, uncompressed, with holes; with --compress
    /// those in which nothing can be compressed
    #[arg(long, value_name = "BYTES", value_parser = parse_bytes)]
    pub(crate) chunk_size: Option<u64>,

    /// Put the chunks into FILE, a new file or a block device, to which the image refers: whoever reads
    /// it gives --device=FILE
    #[arg(long, value_name = "FILE", requires = "chunk_size")]
    pub(crate) blob: Option<PathBuf>,

    /// Keep inodes in a file of their own, with pclusters of this many bytes, compressed as files are or by
    /// ALG. Linux reads them from 6.17 on
    #[arg(long, value_name = "BYTES[:ALG[,level=N]]")]
    pub(crate) metabox: Option<String>,

    /// Begin the data of each file at a multiple of this many bytes: whole blocks
    #[arg(long, value_name = "BYTES", value_parser = parse_bytes)]
    pub(crate) align_data: Option<u64>,

    /// Make the image a multiple of this many bytes long: whole blocks
    #[arg(long, value_name = "BYTES", value_parser = parse_bytes)]
    pub(crate) align_image: Option<u64>,

    /// Keep no ends of uncompressed files behind their inodes, as direct access needs it
    #[arg(long)]
    pub(crate) no_inline_data: bool,

    /// Encoded extents where they are shorter, and files of nothing but holes without data; for Linux
    /// 6.15 and later. Addresses of more than 32 bits are used without it, too, where they are needed
    #[arg(long = "48bit")]
    pub(crate) wide: bool,

    /// The label, 15 bytes at most
    #[arg(short = 'L', long, value_name = "TEXT")]
    pub(crate) label: Option<OsString>,

    /// The UUID; also: clear, or random [default: random]
    #[arg(short = 'U', long, value_name = "UUID")]
    pub(crate) uuid: Option<String>,

    /// The time of the image, in seconds since 1970 [default: now]
    #[arg(short = 'T', long, value_name = "SECONDS")]
    pub(crate) time: Option<u64>,

    /// The same source makes the same bytes, anywhere and at any time; see below
    #[arg(long)]
    pub(crate) reproducible: bool,

    /// The image begins at this byte of IMAGE, which is a hole up to there
    #[arg(long, value_name = "BYTES", value_parser = parse_bytes, default_value = "0")]
    pub(crate) offset: u64,

    /// A prefix of names of extended attributes, such as user.app., that is stored once
    #[arg(long, value_name = "PREFIX")]
    pub(crate) xattr_prefix: Vec<OsString>,

    /// Keep these prefixes apart from files that are compressed together, where kernels from 6.17 on
    /// find them, and older ones do not
    #[arg(long, requires = "xattr_prefix")]
    pub(crate) plain_xattr_prefixes: bool,

    /// Store an extended attribute once if more inodes than this have it
    #[arg(long, value_name = "N", default_value_t = 2)]
    pub(crate) xattr_share_above: u32,

    /// Store the SHA-256 of each file in an extended attribute; without a name in one that is never
    /// listed, by which kernels from 7.0 on share memory of equal files [default NAME:
    /// erofs.fingerprint.v1]
    #[arg(long, value_name = "NAME", num_args = 0..=1, require_equals = true)]
    #[arg(default_missing_value = DEFAULT_DIGEST_XATTR)]
    pub(crate) digest_xattr: Option<OsString>,

    /// Leave room for extended attributes of the root: this many bytes at least, up to 65532
    #[arg(long, value_name = "BYTES", value_parser = parse_bytes, default_value = "0")]
    pub(crate) root_xattr_room: u64,
}

/// What of the source goes into an image, and what is changed about it.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Content")]
pub(crate) struct BuildContent {
    /// Leave out this path, and what is below it; relative to SOURCE (directories only)
    #[arg(long, value_name = "PATH")]
    pub(crate) exclude: Vec<OsString>,

    /// Leave out paths in which this expression, a POSIX extended one, is found (directories only)
    #[arg(long, value_name = "REGEX")]
    pub(crate) exclude_regex: Vec<String>,

    /// Hard links become files of their own (directories only)
    #[arg(long)]
    pub(crate) separate_hard_links: bool,

    /// What becomes of whiteouts of layers (archives only): kept as they are, made those of
    /// overlayfs, or applied to the layers below
    #[arg(long, value_name = "HOW", value_enum, default_value_t = WhiteoutChoice::Keep)]
    pub(crate) whiteouts: WhiteoutChoice,

    /// Leave out what overlayfs keeps for itself: its whiteouts and marks
    #[arg(long)]
    pub(crate) strip_overlay: bool,

    /// Everything belongs to root
    #[arg(long, conflicts_with_all = ["uid", "gid"])]
    pub(crate) all_root: bool,

    /// Everything belongs to this user
    #[arg(long, value_name = "N")]
    pub(crate) uid: Option<u32>,

    /// Everything belongs to this group
    #[arg(long, value_name = "N")]
    pub(crate) gid: Option<u32>,

    /// Add this to all users
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(crate) uid_offset: u32,

    /// Add this to all groups
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(crate) gid_offset: u32,

    /// All files are of this time, in seconds since 1970
    #[arg(long, value_name = "SECONDS")]
    pub(crate) mtime: Option<u64>,

    /// Leave out all extended attributes, ACLs and capabilities among them
    #[arg(long, conflicts_with_all = ["xattr", "no_xattr"])]
    pub(crate) no_xattrs: bool,

    /// Take only these extended attributes; a * at the end is any end
    #[arg(long, value_name = "NAME")]
    pub(crate) xattr: Vec<OsString>,

    /// Leave out these extended attributes; a * at the end is any end
    #[arg(long, value_name = "NAME")]
    pub(crate) no_xattr: Vec<OsString>,
}

/// What becomes of whiteouts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum WhiteoutChoice {
    /// As they are
    Keep,
    /// As overlayfs has them
    Overlay,
    /// They take away what lower layers have
    Apply,
}

/// Show what a running mount does: times, memory, workers.
#[derive(Args, Debug)]
#[command(after_help = help::STATS)]
pub(crate) struct StatsArguments {
    /// The directory of the mount, or one below it
    #[arg(value_name = "DIR")]
    pub(crate) directory: PathBuf,

    /// Print one JSON object
    #[arg(long)]
    pub(crate) json: bool,

    /// Print the text that Prometheus scrapes
    #[arg(long, conflicts_with = "json")]
    pub(crate) prometheus: bool,
}

/// Show an image as a directory, by FUSE: no root, no kernel driver for EROFS.
#[derive(Args, Clone, Debug)]
#[command(after_help = help::MOUNT)]
pub(crate) struct MountArguments {
    /// The image file
    pub(crate) image: PathBuf,

    /// The directory to show it in
    #[arg(value_name = "DIR")]
    pub(crate) directory: PathBuf,

    /// Options as mount(8) has them; see below. A backslash takes the next character as it is
    #[arg(short = 'o', value_name = "OPT[,OPT...]")]
    pub(crate) options: Vec<OsString>,

    /// Stay in the foreground, with messages on stderr
    #[arg(short, long)]
    pub(crate) foreground: bool,

    /// Let everybody in, as far as the owners and modes of files permit; others than root need
    /// user_allow_other in /etc/fuse.conf
    #[arg(long)]
    pub(crate) allow_other: bool,

    /// After this time a request that hangs fails with EIO; 0 waits for ever
    #[arg(long, value_name = "SECONDS", default_value_t = DEFAULT_TIMEOUT_SECONDS)]
    pub(crate) timeout: u64,

    /// Show no extended attributes
    #[arg(long)]
    pub(crate) no_xattrs: bool,

    /// Show no access control lists, and do not obey them
    #[arg(long)]
    pub(crate) no_acl: bool,

    /// Keep all privileges, descriptors and system calls after start-up
    #[arg(long)]
    pub(crate) no_sandbox: bool,

    /// Where messages go once the mount is ready: syslog, stderr (with -f), or the end of a file
    /// [default: stderr with -f, else syslog if /dev/log is there, else nowhere]
    #[arg(long, value_name = "FILE|syslog|stderr")]
    pub(crate) log: Option<OsString>,

    /// When it is mounted, print what was asked of the system and what was granted
    #[arg(long)]
    pub(crate) explain: bool,

    /// Print that as one JSON object
    #[arg(long, requires = "explain")]
    pub(crate) json: bool,

    #[command(flatten)]
    pub(crate) machine: MachineArguments,

    #[command(flatten)]
    pub(crate) reserve: ReserveArguments,

    #[command(flatten)]
    pub(crate) read: ReadArguments,

    #[arg(skip)]
    pub(crate) invocation: MountInvocation,
}

impl MountArguments {
    /// What an image and a directory alone mean.
    pub(crate) fn new(image: PathBuf, directory: PathBuf) -> Self {
        Self {
            image,
            directory,
            options: Vec::new(),
            foreground: false,
            allow_other: false,
            timeout: DEFAULT_TIMEOUT_SECONDS,
            no_xattrs: false,
            no_acl: false,
            no_sandbox: false,
            log: None,
            explain: false,
            json: false,
            machine: MachineArguments::default(),
            reserve: ReserveArguments::default(),
            read: ReadArguments::default(),
            invocation: MountInvocation::default(),
        }
    }
}

/// After this time a request that hangs fails, unless another one is asked for.
const DEFAULT_TIMEOUT_SECONDS: u64 = 120;

/// How the command came to mount: what its callers differ in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct MountInvocation {
    pub(crate) by: MountCaller,
    /// Words of `-o` that nobody knows are left alone.
    pub(crate) is_sloppy: bool,
    /// All but the mount itself.
    pub(crate) is_dry_run: bool,
}

/// Who asks for a mount.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum MountCaller {
    /// Somebody who typed the verb.
    #[default]
    Verb,
    /// Somebody who expects erofsfuse.
    Erofsfuse,
    /// mount(8), which says `rw` whenever nobody said `ro`.
    MountProgram,
}

/// Unpack and mount a real image, compare every byte, and show what that took.
#[derive(Args, Debug)]
#[command(after_help = help::DEMO)]
pub(crate) struct DemoArguments {
    /// An image of your own instead of the carried one
    pub(crate) image: Option<PathBuf>,

    /// The directory that IMAGE was made from, to compare with
    pub(crate) source: Option<PathBuf>,

    #[command(flatten)]
    pub(crate) progress: ProgressArguments,

    #[command(flatten)]
    pub(crate) work: WorkArguments,

    #[command(flatten)]
    pub(crate) read: ReadArguments,
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    #[test]
    fn the_description_of_the_arguments_is_sound() {
        super::Arguments::command().debug_assert();
    }
}

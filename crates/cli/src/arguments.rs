//! The command line of each verb, and its help. It only describes: it opens no file, looks at no
//! terminal, and chooses no default that depends on the system. Used by `applets`, and by `xtask`
//! for the manual.

// The path, since xtask includes this file.
#[path = "arguments/cache.rs"]
pub(crate) mod cache;
#[path = "arguments/mount.rs"]
mod mount;
#[path = "arguments/transfer.rs"]
mod transfer;

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};

use crate::amount::{parse_bytes, parse_cache_size, parse_cpus, parse_jobs, parse_owner};
use crate::help;

pub(crate) use cache::CacheArguments;
pub(crate) use mount::{
    ListArguments, MountArguments, MountCaller, MountInvocation, StatsArguments, option_words,
};
pub(crate) use transfer::{PullArguments, PushArguments};

/// EROFS in user space: build, mount, extract, check and inspect images without root.
#[derive(Debug, Parser)]
#[command(name = "ferrofs", version, after_help = help::FERROFS, max_term_width = 100)]
#[command(arg_required_else_help = true)]
#[command(subcommand_value_name = "SUBCOMMAND", subcommand_help_heading = "Subcommands")]
pub(crate) struct Arguments {
    #[command(subcommand)]
    pub(crate) verb: Verb,
}

/// The verbs.
#[derive(Debug, Subcommand)]
pub(crate) enum Verb {
    Info(InfoArguments),
    Ls(LsArguments),
    Cat(CatArguments),
    Stat(StatArguments),
    Extract(Box<ExtractArguments>),
    Check(CheckArguments),
    Build(Box<BuildArguments>),
    Mount(Box<MountArguments>),
    List(ListArguments),
    Cache(CacheArguments),
    Pull(PullArguments),
    Push(PushArguments),
    Stats(StatsArguments),
    Demo(DemoArguments),
}

// How an image is opened. (Not a doc comment: clap would show it as the description of every verb.)
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = None::<&'static str>)]
pub(crate) struct ReadArguments {
    /// Byte offset in IMAGE at which the EROFS image starts; the suffixes k, m and g mean KiB, MiB
    /// and GiB
    #[arg(long, value_name = "BYTES", value_parser = parse_bytes, default_value = "0")]
    pub(crate) offset: u64,

    /// A file or block device that holds data which IMAGE refers to but does not contain. EROFS
    /// calls such a file a device or a blob (see `ferrofs build --blob`). Give one such option for
    /// each device, in the order of the device table that `ferrofs info` prints
    #[arg(long = "device", value_name = "FILE")]
    pub(crate) devices: Vec<PathBuf>,

    /// Name of the partition that holds the EROFS image, if IMAGE is an Android super image
    /// (super.img: several partitions in one file)
    #[arg(long, value_name = "NAME")]
    pub(crate) partition: Option<String>,

    /// Open the image even if its superblock has a wrong checksum
    #[arg(long)]
    pub(crate) no_checksum: bool,

    /// Print no warnings
    #[arg(short, long)]
    pub(crate) quiet: bool,

    #[command(flatten)]
    pub(crate) remote: Box<RemoteArguments>,
}

/// How remote images are read.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "Remote images")]
pub(crate) struct RemoteArguments {
    #[command(flatten)]
    pub(crate) connection: ConnectionArguments,

    /// Open no connection; use only what is in the cache
    #[arg(long)]
    pub(crate) offline: bool,

    /// Which bytes of a remote image are compared with a digest [default: try]
    #[arg(long = "verify", value_name = "MODE", value_enum, id = "remote_verify")]
    pub(crate) verify: Option<VerifyChoice>,

    /// Of object stores, for the process that connects for a mount; no credentials
    #[arg(skip)]
    pub(crate) store_variables: Vec<(&'static str, String)>,
}

/// How the fetcher and the servers are reached.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "Remote images")]
pub(crate) struct ConnectionArguments {
    /// Directory of the cache, which keeps fetched parts of remote images [default:
    /// $XDG_CACHE_HOME/ferrofs or ~/.cache/ferrofs; for root without a home directory,
    /// /var/cache/ferrofs]
    #[arg(long, value_name = "DIR")]
    pub(crate) cache: Option<PathBuf>,

    /// Maximum size of the cache, at least 32m; the suffixes k, m and g mean KiB, MiB and GiB. At
    /// the limit, the least recently used data is evicted. The limit applies while this process
    /// runs. If several processes use the cache, the smallest limit counts [default: a tenth of the
    /// size of the file system, at most 32g]
    #[arg(long, value_name = "BYTES", value_parser = parse_cache_size)]
    pub(crate) cache_size: Option<u64>,

    /// Give up a fetch that makes no progress for this number of seconds, 1 to 86400 [default: 60]
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..=86_400))]
    pub(crate) fetch_timeout: Option<u64>,

    /// Connect to this registry with HTTP instead of HTTPS (repeatable)
    #[arg(long = "insecure-registry", value_name = "HOST[:PORT]")]
    pub(crate) insecure_registries: Vec<String>,
}

/// Which bytes must be verified.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum VerifyChoice {
    /// All bytes; an image without a chunk index (a list of digests) is refused. For ferrofs pull,
    /// a digest of the whole image is enough
    Require,
    /// The bytes for which there is a digest
    Try,
    /// No bytes; only ferrofs pull still compares an image from a registry with the digest of the
    /// whole image
    Off,
}

/// Resources of a verb that reads files, and its statistics.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "Resources")]
pub(crate) struct WorkArguments {
    #[command(flatten)]
    pub(crate) machine: MachineArguments,

    /// Print to stderr the statistics of decoding, of the cache of decoded data, and of memory;
    /// with --json, add them to the summary
    #[arg(long)]
    pub(crate) stats: bool,
}

/// The help of `--stats` for the verbs that have no `--json`.
const STATS_WITHOUT_JSON: &str =
    "Print to stderr the statistics of decoding, of the cache of decoded data, and of memory";

/// The help of `--quiet` for the verbs that print a summary.
const QUIET_WITH_SUMMARY: &str = "Print no warnings and no summary";

/// Limits of CPU time and memory.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "Resources")]
pub(crate) struct MachineArguments {
    /// Number of threads. The maximum is one for each CPU available to the process; a larger number
    /// is reduced to it [default: the maximum]
    #[arg(long, value_name = "N", value_parser = parse_jobs)]
    pub(crate) jobs: Option<usize>,

    /// Memory limit of the whole process: at least 27m, or 28m for `ferrofs mount`; the suffixes k,
    /// m and g mean KiB, MiB and GiB. At the limit, threads wait, or fewer threads run [default:
    /// 256m, or an eighth of the system's memory if that is less]
    #[arg(long, value_name = "BYTES", value_parser = parse_bytes)]
    pub(crate) memory: Option<u64>,

    /// CPUs to run on, such as 0-3,6 [default: all CPUs available to the process]
    #[arg(long, value_name = "LIST", value_parser = parse_cpus)]
    pub(crate) cpus: Option<String>,

    /// Nice value from -20 (highest priority) to 19; a value below 0 needs CAP_SYS_NICE
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    #[arg(value_parser = clap::value_parser!(i32).range(-20..=19))]
    pub(crate) nice: Option<i32>,
}

/// A limit of work that an image causes again and again.
#[derive(Args, Clone, Copy, Debug, Default)]
#[command(next_help_heading = "Resources")]
pub(crate) struct WorkLimitArguments {
    /// Limit of repeated reading, for damaged or hostile images in which many inodes refer to the
    /// same data. At the limit, the subcommand ends with an error. The limit is for the CPU time of
    /// repeated reading. Its unit is the time in which LZ4 decodes one byte, about a nanosecond, so
    /// 1g allows about one second. Undamaged images cause almost no repeated reading [default: 256m
    /// plus 512 times the size of IMAGE]
    #[arg(long, value_name = "BYTES", value_parser = parse_bytes)]
    pub(crate) max_work: Option<u64>,
}

/// Memory that a mount keeps resident for decoding.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "Resources")]
pub(crate) struct ReserveArguments {
    /// Number of 4 KiB pages for decoding that stay resident even while nothing is read. All
    /// threads share these pages, which are called the reserve. The reserve must be less than half
    /// of --memory. Pages beyond the reserve are returned to the system as soon as they are no
    /// longer needed. The reserve also limits the size of reads and of readahead, so with fewer
    /// than 128 pages per thread, long files are read more slowly [default: no fixed number; up to
    /// an eighth of --memory stays resident until a few seconds after the last read]
    #[arg(long, value_name = "N")]
    pub(crate) reserved_pages: Option<u32>,

    /// Fault in the reserved pages, on all CPUs, before the mount is ready. With --prefault and
    /// without --reserved-pages, the reserve is an eighth of --memory
    #[arg(long)]
    pub(crate) prefault: bool,
}

/// The progress display.
#[derive(Args, Clone, Copy, Debug)]
#[command(next_help_heading = None::<&'static str>)]
pub(crate) struct ProgressArguments {
    /// Progress display on stderr
    #[arg(long, value_name = "HOW", value_enum, default_value_t = ProgressStyle::Auto)]
    pub(crate) progress: ProgressStyle,
}

/// Formats of the progress display.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum ProgressStyle {
    /// A bar if stderr is a terminal, otherwise nothing
    Auto,
    /// A bar if stderr is a terminal, otherwise a line of text each second
    Bar,
    /// A line with a JSON object five times a second, with the fields verb (the subcommand), done,
    /// total, unit, entries, bytes and eta_s
    Json,
    /// Nothing
    None,
}

/// Show features, sizes, compression and devices of an image.
#[derive(Args, Debug)]
#[command(after_help = help::INFO)]
pub(crate) struct InfoArguments {
    /// The image: a file, or a URL such as https://…, oci://… or s3://…
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
    /// The image: a file, or a URL such as https://…, oci://… or s3://…
    pub(crate) image: PathBuf,

    /// Paths in the image
    #[arg(value_name = "PATH", default_value = "/")]
    pub(crate) paths: Vec<OsString>,

    /// Show mode, links, owner, size and time of each entry
    #[arg(short, long)]
    pub(crate) long: bool,

    /// List recursively, with full paths
    #[arg(short = 'R', long)]
    pub(crate) recursive: bool,

    /// List a directory itself instead of its contents
    #[arg(short, long, conflicts_with = "recursive")]
    pub(crate) directory: bool,

    /// Print one line with a JSON object for each entry
    #[arg(long, conflicts_with = "long")]
    pub(crate) json: bool,

    #[command(flatten)]
    pub(crate) read: ReadArguments,
}

/// Write files to standard output.
#[derive(Args, Debug)]
#[command(after_help = help::CAT, mut_arg("stats", |arg| arg.help(STATS_WITHOUT_JSON)))]
pub(crate) struct CatArguments {
    /// The image: a file, or a URL such as https://…, oci://… or s3://…
    pub(crate) image: PathBuf,

    /// Paths of regular files in the image
    #[arg(value_name = "PATH", required = true)]
    pub(crate) paths: Vec<OsString>,

    #[command(flatten)]
    pub(crate) work: WorkArguments,

    #[command(flatten)]
    pub(crate) read: ReadArguments,
}

/// Show all metadata of an inode.
#[derive(Args, Debug)]
#[command(after_help = help::STAT)]
pub(crate) struct StatArguments {
    /// The image: a file, or a URL such as https://…, oci://… or s3://…
    pub(crate) image: PathBuf,

    /// Paths in the image; symlinks are not followed
    #[arg(value_name = "PATH", default_value = "/")]
    pub(crate) paths: Vec<OsString>,

    /// Print one line with a JSON object for each path
    #[arg(long)]
    pub(crate) json: bool,

    #[command(flatten)]
    pub(crate) read: ReadArguments,
}

/// Extract an image, or a part of it, into a directory or a tar archive.
#[derive(Args, Debug)]
#[command(after_help = help::EXTRACT, override_usage = help::EXTRACT_USAGE)]
#[command(mut_arg("quiet", |arg| arg.help(QUIET_WITH_SUMMARY)))]
pub(crate) struct ExtractArguments {
    /// The image: a file, or a URL such as https://…, oci://… or s3://…
    pub(crate) image: PathBuf,

    /// The directory to extract into, which must be new or empty. A new DEST has the temporary name
    /// .DEST.part until the extraction ends. With exit status 0, DEST is complete; otherwise it
    /// contains the files that could be extracted. With --tar, leave out DEST: all arguments after
    /// IMAGE are PATHs
    #[arg(value_name = "DEST", required_unless_present = "tar")]
    pub(crate) destination: Option<PathBuf>,

    /// Paths and patterns to extract [default: everything]
    #[arg(value_name = "PATH")]
    pub(crate) paths: Vec<OsString>,

    /// Write a tar archive to FILE, or to standard output if FILE is -, instead of extracting into
    /// DEST
    #[arg(long, value_name = "FILE")]
    pub(crate) tar: Option<PathBuf>,

    /// With --tar: write holes as zeros, for programs that cannot read sparse files in tar archives
    #[arg(long, requires = "tar")]
    pub(crate) no_sparse: bool,

    /// Accept a DEST that is not empty. Directories in DEST stay; anything else is replaced if the
    /// image has an entry with the same path
    #[arg(long, conflicts_with = "tar")]
    pub(crate) overwrite: bool,

    /// Preserve owners, and fail if that is not permitted (root preserves them by default)
    #[arg(long, conflicts_with_all = ["no_preserve_owner", "tar"])]
    pub(crate) preserve_owner: bool,

    /// Make the current user the owner of everything. If root uses this option, no file gets a
    /// set-user-id bit, a set-group-id bit or capabilities; for other users, see below
    #[arg(long, conflicts_with = "tar")]
    pub(crate) no_preserve_owner: bool,

    /// Create all files without set-user-id bits, set-group-id bits and capabilities
    #[arg(long, conflicts_with = "tar")]
    pub(crate) no_set_id: bool,

    /// Create no device nodes
    #[arg(long, conflicts_with = "tar")]
    pub(crate) no_devices: bool,

    /// Set no extended attributes, and thus no ACLs and no capabilities
    #[arg(long, conflicts_with = "tar")]
    pub(crate) no_xattrs: bool,

    /// Write the owners, modes, capabilities and SELinux labels of all files of the image, even if
    /// PATH selects a part of it, to the files fs_config and file_contexts in DIR. The options
    /// --fs-config-file and --file-contexts of `ferrofs build` read them. Works without root
    #[arg(long, value_name = "DIR")]
    pub(crate) android_config: Option<PathBuf>,

    /// The path at which the image is mounted, such as /vendor; paths in the files of
    /// --android-config begin with it
    #[arg(long, value_name = "PATH", requires = "android_config")]
    pub(crate) mount_point: Option<OsString>,

    /// Write the metadata of all files of the image, even if PATH selects a part of it, to FILE,
    /// one JSON object a line, for `ferrofs build --sidecar`. Works without root
    #[arg(long, value_name = "FILE")]
    pub(crate) sidecar: Option<PathBuf>,

    /// Print a summary as one JSON object. If a tar archive goes to standard output, a FIFO or a
    /// device, the summary goes to standard error
    #[arg(long)]
    pub(crate) json: bool,

    /// Maximum number of bytes to write; at the limit, the extraction ends with an error. Holes do
    /// not count. The same limit applies separately to the files of --sidecar and --android-config
    /// [default: 16g plus 8192 times the size of IMAGE]
    #[arg(long, value_name = "BYTES", value_parser = parse_bytes, help_heading = "Resources")]
    pub(crate) max_output: Option<u64>,

    #[command(flatten)]
    pub(crate) limit: WorkLimitArguments,

    #[command(flatten)]
    pub(crate) progress: ProgressArguments,

    #[command(flatten)]
    pub(crate) work: WorkArguments,

    #[command(flatten)]
    pub(crate) read: ReadArguments,
}

/// Read every byte of an image and report each damaged path.
#[derive(Args, Debug)]
#[command(after_help = help::CHECK, mut_arg("quiet", |arg| arg.help(QUIET_WITH_SUMMARY)))]
pub(crate) struct CheckArguments {
    /// The image: a file, or a URL such as https://…, oci://… or s3://…
    pub(crate) image: PathBuf,

    /// Print a summary with up to 10,000 problems as one JSON object
    #[arg(long)]
    pub(crate) json: bool,

    #[command(flatten)]
    pub(crate) limit: WorkLimitArguments,

    #[command(flatten)]
    pub(crate) progress: ProgressArguments,

    #[command(flatten)]
    pub(crate) work: WorkArguments,

    #[command(flatten)]
    pub(crate) read: ReadArguments,
}

/// Build an image from a directory, tar archives or a container image.
#[derive(Args, Clone, Debug)]
#[command(after_help = help::BUILD)]
pub(crate) struct BuildArguments {
    /// The image file, or, with --force, a block device. A file is created when the image is
    /// complete
    pub(crate) image: PathBuf,

    /// A directory, tar archives, or a container image. Archives can be compressed with gzip, xz or
    /// zstd. Several archives are layers, the lowest first; - is standard input. A container image
    /// is oci-layout:DIR, oci-layout:DIR:TAG, docker-archive:FILE, docker-archive:FILE:NAME:TAG or
    /// oci://HOST/NAME:TAG
    #[arg(value_name = "SOURCE", required = true)]
    pub(crate) sources: Vec<PathBuf>,

    /// Replace existing files: IMAGE, and the other files that the options name as outputs
    #[arg(short, long)]
    pub(crate) force: bool,

    /// Do not write the image; print an estimate of its size
    #[arg(long)]
    pub(crate) dry_run: bool,

    /// Do not compare the image with the source
    #[arg(long)]
    pub(crate) no_verify: bool,

    /// If a file cannot be read, leave it out with a warning instead of failing (only if SOURCE is
    /// a directory)
    #[arg(long)]
    pub(crate) keep_going: bool,

    /// Print a summary as one JSON object, with the SHA-256 of the image
    #[arg(long)]
    pub(crate) json: bool,

    /// Print errors only: no warnings and no summary
    #[arg(short, long)]
    pub(crate) quiet: bool,

    #[command(flatten)]
    pub(crate) compression: BuildCompression,

    #[command(flatten)]
    pub(crate) layout: BuildLayout,

    #[command(flatten)]
    pub(crate) content: BuildContent,

    #[command(flatten)]
    pub(crate) android: AndroidArguments,

    /// Take the metadata of all files from FILE, which `ferrofs extract --sidecar` wrote
    #[arg(long, value_name = "FILE", help_heading = "Content")]
    pub(crate) sidecar: Option<PathBuf>,

    /// Write the configuration of the container image to FILE: its entry point, environment, labels
    /// and platform, for `ferrofs push --container-config`
    #[arg(long, value_name = "FILE", help_heading = "Content")]
    pub(crate) container_config: Option<PathBuf>,

    #[command(flatten)]
    pub(crate) progress: ProgressArguments,

    #[command(flatten)]
    pub(crate) machine: MachineArguments,

    #[command(flatten)]
    pub(crate) connection: ConnectionArguments,
}

/// Compression options.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Compression")]
pub(crate) struct BuildCompression {
    /// One or more algorithms, separated by colons. Files use the first one, unless --hints selects
    /// another one. The algorithms, with their levels and, in parentheses, the default level, are:
    /// lz4, lz4hc 0-12 (9), lzma 0-9 and 100-109 (6), deflate 0-9 (1), libdeflate 0-12 (1), zstd
    /// 0-22 (3). Levels 100-109 of lzma are levels 0-9 of xz with --extreme. dictsize is the size
    /// of the dictionary: up to 8m for lzma, and a power of two up to 1m for zstd [default: no
    /// compression]
    #[arg(short = 'z', long, value_name = "ALG[,level=N][,dictsize=BYTES][:...]")]
    pub(crate) compress: Option<String>,

    /// Maximum size of a compressed cluster (pcluster): whole blocks, up to 1m. Larger clusters
    /// compress better, but make small reads slower [default: 64k]
    #[arg(short = 'C', long, value_name = "BYTES", value_parser = parse_bytes)]
    pub(crate) pcluster: Option<u64>,

    /// Compress some files differently. Each line of FILE has three fields, separated by blanks:
    /// the size of a pcluster in bytes (0 for no compression); the number of an algorithm of
    /// --compress, counted from 0 (optional); and a POSIX extended regular expression. The first
    /// line whose expression matches a part of the path applies
    #[arg(long, value_name = "FILE")]
    pub(crate) hints: Option<PathBuf>,

    /// Maximum uncompressed size of a pcluster: whole blocks, up to 12m [default: 4m]
    #[arg(long, value_name = "BYTES", value_parser = parse_bytes)]
    pub(crate) max_extent: Option<u64>,

    /// Maximum match distance of LZ4, in bytes, 4096 to 65535. A shorter distance reduces the
    /// memory needed to decode
    #[arg(long, value_name = "BYTES", default_value_t = u16::MAX)]
    #[arg(value_parser = clap::value_parser!(u16).range(4096..))]
    pub(crate) max_distance: u16,

    /// Compress the tails of files, or whole files, together in one special inode (packed inode).
    /// Without a value, the option means --fragments=tails
    #[arg(long, value_name = "tails|all", num_args = 0..=1, require_equals = true)]
    #[arg(default_missing_value = "tails", value_enum)]
    pub(crate) fragments: Option<FragmentChoice>,

    /// Maximum size of a pcluster of the packed inode [default: that of --pcluster]
    #[arg(long, value_name = "BYTES", value_parser = parse_bytes, requires = "fragments")]
    pub(crate) fragments_pcluster: Option<u64>,

    /// Which fragments are stored only once; a fragment is a tail or a whole file in the packed
    /// inode [default: parts]
    #[arg(long, value_name = "WHAT", value_enum, requires = "fragments")]
    pub(crate) share_fragments: Option<SharingChoice>,

    /// Store repeated data only once
    #[arg(long)]
    pub(crate) dedupe: bool,

    /// Store the last pcluster of a file next to its inode if it fits
    #[arg(long)]
    pub(crate) inline_pclusters: bool,

    /// Write the index of each compressed file (the map from positions in the file to pclusters) in
    /// the full form. The default, the compact form, is smaller, but Linux before 5.3 cannot read
    /// it
    #[arg(long)]
    pub(crate) full_indexes: bool,

    /// Compress directories as well. This makes lookups slower and needs Linux 6.1 or later
    #[arg(long)]
    pub(crate) compress_directories: bool,
}

/// What `--fragments` packs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum FragmentChoice {
    /// The last part of each file, if it does not fill a pcluster
    Tails,
    /// All files
    All,
}

/// Which fragments share their data.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum SharingChoice {
    /// Identical fragments, and a fragment that is a suffix of a longer one
    Parts,
    /// Only identical whole files
    Files,
    /// None: every fragment is stored
    Off,
}

/// The default name of the attribute that holds the digest of a file, as in erofs-utils.
pub(crate) const DEFAULT_DIGEST_XATTR: &str = "erofs.fingerprint.v1";

/// A chunk index in the file of the image.
pub(crate) const EMBEDDED_CHUNK_INDEX: &str = "embedded";

/// Layout options.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Image")]
pub(crate) struct BuildLayout {
    /// Block size: a power of two from 512 to 64k. Linux reads block sizes up to its page size
    #[arg(short = 'b', long, value_name = "BYTES", value_parser = parse_bytes)]
    #[arg(default_value = "4096")]
    pub(crate) block_size: u64,

    /// Store files as uncompressed chunks of this size, a power of two, at least one block. Chunks
    /// of zeros become holes. With --compress, only uncompressed files become chunks: those that
    /// --hints leaves uncompressed, and files of up to 8 MiB that cannot be compressed
    #[arg(long, value_name = "BYTES", value_parser = parse_bytes)]
    pub(crate) chunk_size: Option<u64>,

    /// Write the chunks of --chunk-size to FILE, a new file or a block device. FILE becomes device
    /// 1 of the image: subcommands that read the image need --device=FILE
    #[arg(long, value_name = "FILE", requires = "chunk_size")]
    pub(crate) blob: Option<PathBuf>,

    /// Store inodes in a compressed metadata file (metabox) with pclusters of at most BYTES. This
    /// needs Linux 6.17 or later. With this option, inodes share no extended attributes [default
    /// ALG: the first algorithm of --compress]
    #[arg(long, value_name = "BYTES[:ALG[,level=N]]")]
    pub(crate) metabox: Option<String>,

    /// Put inodes, indexes and directories in front of the data, so that a mount of a remote image
    /// gets them with its first request. The build writes the data to a temporary file first
    #[arg(long)]
    pub(crate) metadata_first: bool,

    /// Write a chunk index: without a value, or with embedded, after the last block of IMAGE;
    /// otherwise to FILE. A chunk index (not related to --chunk-size) is a list of SHA-256 digests
    /// of parts of the image, in a format that the EROFS specification defines. With it, readers of
    /// a remote image verify each part that they read. `ferrofs push` publishes the embedded index,
    /// or makes one if IMAGE has none. For an image on a web server or in an object store, readers
    /// use FILE and not the embedded index: put FILE beside the image, with the name
    /// IMAGE.chunk-index, and append #index=sha256:DIGEST to the URL, where DIGEST is the SHA-256
    /// of FILE. If the URL of such an image has no #index=, nothing is verified. Cannot be used
    /// with --offset
    #[arg(long, value_name = "embedded|FILE", num_args = 0..=1, require_equals = true)]
    #[arg(default_missing_value = EMBEDDED_CHUNK_INDEX)]
    pub(crate) chunk_index: Option<OsString>,

    /// Alignment of the data of each file, in bytes: a multiple of the block size, up to 1g
    /// [default: one block]
    #[arg(long, value_name = "BYTES", value_parser = parse_bytes)]
    pub(crate) align_data: Option<u64>,

    /// Alignment of the image size, in bytes: a multiple of the block size, up to 1g [default: one
    /// block]
    #[arg(long, value_name = "BYTES", value_parser = parse_bytes)]
    pub(crate) align_image: Option<u64>,

    /// Do not store tails of uncompressed files next to their inodes (needed for DAX)
    #[arg(long)]
    pub(crate) no_inline_data: bool,

    /// Use features of the 48-bit format. A file gets extent records (encoded extents) instead of
    /// an index (see --full-indexes) if the records take less space. A file that contains only
    /// zeros takes no space for data. An image with these features needs Linux 6.15 or later. An
    /// image that is too large for 32-bit block addresses gets 48-bit addresses even without this
    /// option, and then needs Linux 6.15 or later
    #[arg(long = "48bit")]
    pub(crate) wide: bool,

    /// The volume label, at most 15 bytes
    #[arg(short = 'L', long, value_name = "TEXT")]
    pub(crate) label: Option<OsString>,

    /// The UUID; or clear, which means all zeros; or random [default: random; with --reproducible,
    /// clear]
    #[arg(short = 'U', long, value_name = "UUID")]
    pub(crate) uuid: Option<String>,

    /// The build time of the image, in seconds since 1970 [default: SOURCE_DATE_EPOCH if it is set,
    /// otherwise now; see --reproducible]
    #[arg(short = 'T', long, value_name = "SECONDS")]
    pub(crate) time: Option<u64>,

    /// Build the same bytes from the same source, on every host and at any time; see below. Without
    /// --memory, the memory limit is 256m
    #[arg(long)]
    pub(crate) reproducible: bool,

    /// Byte offset in IMAGE at which the EROFS image starts; the bytes before this offset are a
    /// hole
    #[arg(long, value_name = "BYTES", value_parser = parse_bytes, default_value = "0")]
    pub(crate) offset: u64,

    /// Store this prefix of extended attribute names, such as user.app., only once (repeatable)
    #[arg(long, value_name = "PREFIX")]
    pub(crate) xattr_prefix: Vec<OsString>,

    /// Store the prefixes of --xattr-prefix outside of the packed inode. Without this option,
    /// --fragments and --compress-directories store them in it. This needs Linux 6.17 or later
    #[arg(long, requires = "xattr_prefix")]
    pub(crate) plain_xattr_prefixes: bool,

    /// Store an extended attribute only once (shared) if more than this number of inodes have it
    #[arg(long, value_name = "N", default_value_t = 2)]
    pub(crate) xattr_share_above: u32,

    /// Store the SHA-256 of each file in an extended attribute. Without NAME, the attribute is
    /// hidden from listings, and Linux 7.0 or later uses it to share the page cache of identical
    /// files [default NAME: erofs.fingerprint.v1]
    #[arg(long, value_name = "NAME", num_args = 0..=1, require_equals = true)]
    #[arg(default_missing_value = DEFAULT_DIGEST_XATTR)]
    pub(crate) digest_xattr: Option<OsString>,

    /// Minimum space for extended attributes of the root directory, in bytes, up to 65532
    #[arg(long, value_name = "BYTES", value_parser = parse_bytes, default_value = "0")]
    pub(crate) root_xattr_room: u64,
}

/// Options that select and change what is taken from the source.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Content")]
pub(crate) struct BuildContent {
    /// Exclude this path and everything below it. The path is relative to SOURCE, even if it begins
    /// with a slash (only if SOURCE is a directory; repeatable)
    #[arg(long, value_name = "PATH")]
    pub(crate) exclude: Vec<OsString>,

    /// Exclude paths that match this POSIX extended regular expression (only if SOURCE is a
    /// directory; repeatable)
    #[arg(long, value_name = "REGEX")]
    pub(crate) exclude_regex: Vec<String>,

    /// Store hard links as separate files (only if SOURCE is a directory)
    #[arg(long)]
    pub(crate) separate_hard_links: bool,

    /// What to do with whiteouts, the entries of a layer that hide files of the layers below (not
    /// if SOURCE is a directory; whiteouts of a container image are always applied)
    #[arg(long, value_name = "HOW", value_enum, default_value_t = WhiteoutChoice::Keep)]
    pub(crate) whiteouts: WhiteoutChoice,

    /// Maximum size of an archive after decompression (not if SOURCE is a directory). Holes of
    /// sparse files count if the image stores them as zeros or --digest-xattr hashes them. Each
    /// directory without an entry in the archive counts as 512 bytes [default: 1g, or 1,000 times
    /// the size of the compressed archive if that is more, and at most 1 TiB]
    #[arg(long, value_name = "BYTES", value_parser = parse_bytes)]
    pub(crate) max_input: Option<u64>,

    /// Exclude whiteouts of overlayfs and the attributes that belong to them:
    /// trusted.overlay.opaque, and an empty trusted.overlay.origin of a directory with whiteouts.
    /// Other attributes of overlayfs stay
    #[arg(long)]
    pub(crate) strip_overlay: bool,

    /// Make root the owner and group of everything
    #[arg(long, conflicts_with_all = ["uid", "gid"])]
    pub(crate) all_root: bool,

    /// Make this user the owner of everything
    #[arg(long, value_name = "N", value_parser = parse_owner)]
    pub(crate) uid: Option<u32>,

    /// Make this group the group of everything
    #[arg(long, value_name = "N", value_parser = parse_owner)]
    pub(crate) gid: Option<u32>,

    /// Add this number to all user ids
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(crate) uid_offset: u32,

    /// Add this number to all group ids
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(crate) gid_offset: u32,

    /// Modification time of all files, in seconds since 1970 [default: the times in SOURCE; if
    /// SOURCE_DATE_EPOCH is set, it replaces later times]
    #[arg(long, value_name = "SECONDS")]
    pub(crate) mtime: Option<u64>,

    /// Exclude all extended attributes, including ACLs and capabilities
    #[arg(long, conflicts_with_all = ["xattr", "no_xattr"])]
    pub(crate) no_xattrs: bool,

    /// Include only this extended attribute; a * at the end matches any suffix (repeatable)
    #[arg(long, value_name = "NAME")]
    pub(crate) xattr: Vec<OsString>,

    /// Exclude this extended attribute; a * at the end matches any suffix (repeatable)
    #[arg(long, value_name = "NAME")]
    pub(crate) no_xattr: Vec<OsString>,
}

/// How whiteouts are handled.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum WhiteoutChoice {
    /// Keep them unchanged
    Keep,
    /// Convert them to whiteouts of overlayfs
    Overlay,
    /// Apply them: remove what they hide in the layers below
    Apply,
}

/// Files that Android's build system passes to its image builders.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "Android")]
pub(crate) struct AndroidArguments {
    /// The path at which the image will be mounted, such as /vendor; paths in the files of
    /// --file-contexts and --fs-config-file begin with it
    #[arg(long, value_name = "PATH")]
    pub(crate) mount_point: Option<OsString>,

    /// Set SELinux labels from this file, whose lines have three fields: a regular expression for
    /// paths, a file type (optional), and a label. Labels of the source are left out
    #[arg(long, value_name = "FILE")]
    pub(crate) file_contexts: Option<PathBuf>,

    /// Set owners, modes and capabilities from this file, whose lines are PATH UID GID MODE
    /// [capabilities=NUMBER]
    #[arg(long, value_name = "FILE")]
    pub(crate) fs_config_file: Option<PathBuf>,

    /// This option has no effect; it is accepted for Android's build system. Owners come from
    /// --fs-config-file, not from DIR
    #[arg(long, value_name = "DIR", requires = "fs_config_file")]
    pub(crate) product_out: Option<PathBuf>,

    /// For each file of the image, write to FILE which blocks hold its data. With --force, an
    /// existing file is replaced
    #[arg(long, value_name = "FILE")]
    pub(crate) block_list_file: Option<PathBuf>,
}

/// Mount an image, compare every byte with its source, and measure the read speed.
#[derive(Args, Debug)]
#[command(after_help = help::DEMO, mut_arg("stats", |arg| arg.help(STATS_WITHOUT_JSON)))]
pub(crate) struct DemoArguments {
    /// An image to use instead of the built-in one
    pub(crate) image: Option<PathBuf>,

    /// The directory from which IMAGE was built; the mount is compared with it
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

    #[test]
    fn options_of_all_verbs_stand_under_no_heading_of_a_group() {
        for verb in super::Arguments::command().get_subcommands() {
            for option in verb.get_arguments() {
                if ["quiet", "progress", "no_checksum", "partition"]
                    .contains(&option.get_id().as_str())
                {
                    assert_eq!(option.get_help_heading(), None, "{} {option}", verb.get_name());
                }
            }
        }
    }
}

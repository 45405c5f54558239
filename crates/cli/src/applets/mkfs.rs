//! The command line of mkfs.erofs, of erofs-utils 1.9, for scripts that call it, and the options
//! that are refused. `build` does the work. Used by `applets`, and by `xtask` for the manual.

use std::convert::Infallible;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{ArgAction, CommandFactory, FromArgMatches, Parser};

use crate::amount::{
    parse_bytes, parse_id, parse_id_offset, parse_number, parse_signed_size, parse_size,
    parse_verbosity, parse_wrapping_number,
};
use crate::arguments::AndroidArguments;
use crate::help;

/// The levels of verbosity from which on a summary and the version are printed.
const SUMMARY_LEVEL: u8 = 1;
const VERSION_LEVEL: u8 = 2;
/// The highest level at which the name of each file is printed.
const NAMES_LEVEL_MAX: u8 = 2;

/// Bits that `--zfeature-bits` knows.
const FEATURE_BITS: u32 = 8;
/// The largest number of threads.
const JOBS_MAX: usize = 8192;

/// The help of `--block-list-file`: there is no `--force` as in `ferrofs build`.
const BLOCK_LIST_FILE: &str = "For each file of the image, write to FILE which blocks hold its data. An existing file is replaced";

/// Build an EROFS image.
#[derive(Clone, Debug, Parser)]
#[command(name = "mkfs.erofs", version = help::MKFS_VERSION)]
#[command(after_help = help::MKFS_EROFS, max_term_width = 100, infer_long_args = true)]
#[command(args_override_self = true, disable_version_flag = true)]
#[command(mut_arg("block_list_file", |arg| arg.help(BLOCK_LIST_FILE)))]
pub(crate) struct MkfsArguments {
    /// The image file, or a block device
    #[arg(value_name = "FILE")]
    pub(crate) image: PathBuf,

    /// A directory; or EROFS images as layers, the lowest first; or, with --tar, an archive.
    /// Without SOURCE, or if SOURCE is -, the archive is read from standard input
    #[arg(value_name = "SOURCE")]
    pub(crate) sources: Vec<PathBuf>,

    /// Block size in bytes: a power of two from 512 to 65536; other numbers are rounded down to a
    /// power of two. With --tar=i, the block size is always 512 [default: 4096]
    #[arg(short = 'b', value_name = "#", value_parser = parse_size)]
    pub(crate) block_bytes: Option<u64>,

    /// Verbosity. 0: errors only. 1 and 2: errors, a summary and the name of each file. 3 to 9:
    /// errors and a summary, without names, as in erofs-utils
    #[arg(short = 'd', value_name = "0-9", default_value = "2", value_parser = parse_verbosity)]
    #[arg(allow_negative_numbers = true)]
    level: u8,

    /// Store an extended attribute only once (shared) if more than this number of inodes have it; a
    /// negative number excludes all extended attributes
    #[arg(short = 'x', value_name = "#", default_value = "2", allow_negative_numbers = true)]
    #[arg(value_parser = parse_signed_size)]
    pub(crate) xattr_tolerance: i64,

    /// Algorithm with its level and dictionary size; separate several algorithms with colons
    #[arg(short = 'z', value_name = "X[,level=Y][,dictsize=Z][:...]")]
    pub(crate) algorithms: Option<String>,

    /// Maximum size of a compressed cluster (pcluster): whole blocks, up to 1m; the suffixes k and
    /// m mean KiB and MiB [default: one block]
    #[arg(short = 'C', value_name = "#", value_parser = parse_size)]
    pub(crate) pcluster_bytes: Option<u64>,

    /// Extended options; see below
    #[arg(short = 'E', value_name = "X[,...]", action = ArgAction::Append)]
    pub(crate) extended: Vec<String>,

    /// The volume label, at most 15 bytes
    #[arg(short = 'L', value_name = "LABEL")]
    pub(crate) label: Option<OsString>,

    /// Store inodes in a compressed metadata file (metabox) with pclusters of this size. X is the
    /// algorithm, or the number of an algorithm of -z, counted from 0. With -m, no extended
    /// attributes are shared, whatever -x is, because Linux loses shared attributes of inodes in a
    /// metabox
    #[arg(short = 'm', value_name = "#[:X]")]
    pub(crate) metabox: Option<String>,

    /// The build time, in seconds since 1970. SOURCE_DATE_EPOCH overrides it [default: now]
    #[arg(short = 'T', value_name = "#", value_parser = parse_number)]
    pub(crate) time: Option<u64>,

    /// Use the build time for all files as well (the default if -T is given)
    #[arg(long, overrides_with = "mkfs_time")]
    all_time: bool,

    /// Use the time of -T only as the build time, not for files
    #[arg(long, overrides_with = "all_time")]
    mkfs_time: bool,

    /// The UUID; or clear, which means all zeros; or random (the default)
    #[arg(short = 'U', value_name = "UUID")]
    pub(crate) uuid: Option<String>,

    /// Compress directories. With 0, leave them uncompressed, as without this option
    #[arg(long = "zD", value_name = "0|1", num_args = 0..=1, require_equals = true)]
    #[arg(default_missing_value = "1")]
    compress_directories: Option<String>,

    /// No effect: inodes and directories are always stored together
    #[arg(long = "MZ", value_name = "0|i|id", num_args = 0..=1, require_equals = true)]
    #[arg(default_missing_value = "id", value_parser = parse_metadata_zone)]
    metadata_zone: Option<String>,

    /// Make root the owner and group of everything, like --force-uid=0 --force-gid=0. If several of
    /// these options are given, the last one counts
    #[arg(long)]
    all_root: bool,

    /// Store files as uncompressed chunks of this size, a power of two. With -z, only uncompressed
    /// files become chunks: those that --compress-hints leaves uncompressed, and files of up to 8
    /// MiB that cannot be compressed
    #[arg(long = "chunksize", value_name = "#", value_parser = parse_number)]
    pub(crate) chunk_bytes: Option<u64>,

    /// Write the chunks of --chunksize to FILE, which can be a block device. FILE becomes device 1
    /// of the image
    #[arg(long, value_name = "FILE", requires = "chunk_bytes")]
    pub(crate) blobdev: Option<PathBuf>,

    /// Compress some files differently. Each line of FILE has three fields, separated by blanks:
    /// the size of a pcluster in bytes (0 for no compression); the number of an algorithm of -z,
    /// counted from 0 (optional); and a regular expression
    #[arg(long, value_name = "FILE")]
    pub(crate) compress_hints: Option<PathBuf>,

    /// Alignment of the data of each file, in blocks
    #[arg(long = "dsunit", value_name = "#", value_parser = parse_number)]
    pub(crate) data_alignment_blocks: Option<u64>,

    /// Alignment of the image size, in blocks, rounded up to a power of two
    #[arg(long = "fsalignblks", value_name = "#", value_parser = parse_number)]
    pub(crate) image_alignment_blocks: Option<u64>,

    /// Minimum space for extended attributes of the root directory, in bytes, up to 65532
    #[arg(long = "root-xattr-isize", value_name = "#", value_parser = parse_number)]
    #[arg(default_value = "0")]
    pub(crate) root_xattr_bytes: u64,

    /// Store the SHA-256 of each file in an extended attribute [default X: erofs.fingerprint.v1]
    #[arg(long = "xattr-inode-digest", value_name = "X", num_args = 0..=1, require_equals = true)]
    #[arg(default_missing_value = crate::arguments::DEFAULT_DIGEST_XATTR)]
    pub(crate) digest_xattr: Option<OsString>,

    /// Copy the data of source images into the new image. data, rvsp and no value are the same.
    /// With 0, or without this option, the new image refers to the source images as devices 1, 2
    /// and so on. If SOURCE is not an image, this option has no effect
    #[arg(long, value_name = "data|rvsp|0", num_args = 0..=1, require_equals = true)]
    #[arg(default_missing_value = "data")]
    clean: Option<String>,

    /// Add the sources to the image FILE. Files of the sources replace files of FILE that have the
    /// same path. The new image replaces FILE when it is complete. data, rvsp, 0 and no value are
    /// the same: the data of source images is copied
    #[arg(long, value_name = "data|rvsp|0", num_args = 0..=1, require_equals = true)]
    #[arg(default_missing_value = "data", overrides_with = "clean")]
    incremental: Option<String>,

    /// Exclude this path and everything below it. The path is relative to SOURCE, without a leading
    /// slash
    #[arg(long, value_name = "PATH")]
    pub(crate) exclude_path: Vec<OsString>,

    /// Exclude paths that match this POSIX extended regular expression
    #[arg(long, value_name = "REGEX")]
    pub(crate) exclude_regex: Vec<String>,

    /// Make this user the owner of every file
    #[arg(long, value_name = "#", value_parser = parse_id, allow_negative_numbers = true)]
    pub(crate) force_uid: Option<u32>,

    /// Make this group the group of every file
    #[arg(long, value_name = "#", value_parser = parse_id, allow_negative_numbers = true)]
    pub(crate) force_gid: Option<u32>,

    /// Add this number to all user ids, modulo 2^32
    #[arg(long, value_name = "#", default_value = "0", value_parser = parse_id_offset)]
    #[arg(allow_negative_numbers = true)]
    pub(crate) uid_offset: u32,

    /// Add this number to all group ids, modulo 2^32
    #[arg(long, value_name = "#", default_value = "0", value_parser = parse_id_offset)]
    #[arg(allow_negative_numbers = true)]
    pub(crate) gid_offset: u32,

    /// Store hard links as separate files
    #[arg(long)]
    pub(crate) hard_dereference: bool,

    /// Set the time of a file to the build time if that makes its inode smaller
    #[arg(long, overrides_with = "preserve_mtime")]
    pub(crate) ignore_mtime: bool,

    /// Switch --ignore-mtime off (the default)
    #[arg(long, overrides_with = "ignore_mtime")]
    preserve_mtime: bool,

    /// Maximum uncompressed size of a pcluster, rounded down to whole blocks. In erofs-utils, a
    /// negative number requests pclusters that are not aligned to blocks. ferrofs accepts it only
    /// with -E48bit, as erofs-utils does, but ignores the minus sign: pclusters stay aligned
    /// [default: 4194304]
    #[arg(long, value_name = "#", value_parser = parse_signed_size, allow_negative_numbers = true)]
    pub(crate) max_extent_bytes: Option<i64>,

    /// Byte offset in FILE at which the EROFS image starts
    #[arg(long, value_name = "#", value_parser = parse_number, default_value = "0")]
    pub(crate) offset: u64,

    /// Convert whiteouts of aufs in archives to those of overlayfs; source images must not contain
    /// whiteouts of aufs. For directories, no effect
    #[arg(long)]
    pub(crate) aufs: bool,

    /// No effect: the data of an archive is always sorted by path
    #[arg(long, value_name = "path|none")]
    sort: Option<String>,

    /// Build from a tar archive. The value f, or no value, copies the contents of files into the
    /// image. The value i leaves the contents in the archive, which becomes device 1. The value
    /// i,MAP, unlike i, copies the contents; it also writes their offsets in the image and in the
    /// archive to the file MAP. The value headerball reads an archive without contents and creates
    /// files of zeros
    #[arg(long, value_name = "f|i[,MAP]|headerball", num_args = 0..=1, require_equals = true)]
    #[arg(default_missing_value = "f", value_parser = parse_tar)]
    tar: Option<TarSelection>,

    /// Exclude whiteouts of overlayfs, and the attributes that flag opaque directories and
    /// directories with whiteouts. With 0, keep them, as without this option
    #[arg(long, value_name = "0|1", num_args = 0..=1, require_equals = true)]
    #[arg(default_missing_value = "1")]
    ovlfs_strip: Option<String>,

    /// Print errors only: no warnings, and nothing on standard output
    #[arg(long)]
    quiet: bool,

    /// The archive is compressed with gzip, or not at all. If X is given, write the decompressed
    /// archive to the file X
    #[arg(long, alias = "gzip", value_name = "X", num_args = 0..=1, require_equals = true)]
    #[arg(overrides_with = "unxz")]
    ungzip: Option<Option<PathBuf>>,

    /// The archive is compressed with xz. If X is given, write the decompressed archive to
    /// the file X
    #[arg(long, alias = "unlzma", value_name = "X", num_args = 0..=1, require_equals = true)]
    #[arg(overrides_with = "ungzip")]
    unxz: Option<Option<PathBuf>>,

    /// The same as --ungzip; unlike erofs-utils, ferrofs writes no index for random access
    #[arg(long)]
    gzinfo: bool,

    /// Maximum size of an archive after decompression, or of the files that are copied from an image.
    /// Holes of sparse files count if the new image stores them as zeros or --xattr-inode-digest
    /// hashes them. erofs-utils has no such limit [default: 1g, or 1,000 times the size of the
    /// compressed archive or of the image if that is more, and at most 1 TiB]
    #[arg(long, value_name = "BYTES", value_parser = parse_bytes)]
    pub(crate) max_input: Option<u64>,

    /// Write a VMDK descriptor of the image and its devices to this file
    #[arg(long, value_name = "X")]
    pub(crate) vmdk_desc: Option<PathBuf>,

    /// Number of threads. 0 means 1. A negative number means the maximum, which is one for each CPU
    /// available to the process; a larger number is reduced to it [default: the maximum]
    #[arg(long, value_name = "#", value_parser = parse_wrapping_number)]
    #[arg(allow_negative_numbers = true)]
    workers: Option<u64>,

    /// No effect: the queue is limited by the memory of the build
    #[arg(long, value_name = "#", value_parser = parse_number)]
    async_queue_limit: Option<u64>,

    /// Features of -E, as the sum of these numbers: 1 legacy-compress, 2 ztailpacking, 4 fragments,
    /// 8 all-fragments, 16 dedupe, 32 fragdedupe, 64 48bit, 128 dot-omitted
    #[arg(long, value_name = "#", value_parser = parse_feature_bits)]
    pub(crate) zfeature_bits: Option<u64>,

    /// Store this prefix of extended attribute names only once
    #[arg(long, value_name = "X")]
    pub(crate) xattr_prefix: Vec<OsString>,

    #[command(flatten)]
    pub(crate) android: AndroidArguments,

    /// Print the version
    #[arg(short = 'V', long, action = ArgAction::Version, help_heading = None::<&'static str>)]
    version: Option<bool>,
}

impl MkfsArguments {
    /// Reads a command line.
    ///
    /// # Errors
    /// As [`Parser::try_parse_from`].
    pub(crate) fn read<I, W>(words: I) -> Result<Self, clap::Error>
    where
        I: IntoIterator<Item = W>,
        W: Into<OsString> + Clone,
    {
        let matches = Self::command().try_get_matches_from(words)?;
        let mut typed = Self::from_arg_matches(&matches)?;
        if typed.all_root {
            let last = |id| matches.indices_of(id).and_then(Iterator::last);
            let forced = [("force_uid", &mut typed.force_uid), ("force_gid", &mut typed.force_gid)];
            for (id, owner) in forced {
                // None comes before all indices.
                if last(id) < last("all_root") {
                    *owner = Some(0);
                }
            }
        }
        Ok(typed)
    }

    /// Whether a summary is printed.
    pub(crate) fn prints_summary(&self) -> bool {
        !self.quiet && self.level >= SUMMARY_LEVEL
    }

    /// Whether the version is printed before the build.
    pub(crate) fn prints_version(&self) -> bool {
        !self.quiet && self.level >= VERSION_LEVEL
    }

    /// Whether the name of each file is printed.
    pub(crate) fn prints_names(&self) -> bool {
        self.prints_summary() && self.level <= NAMES_LEVEL_MAX
    }

    /// Whether only errors are printed.
    pub(crate) fn is_quiet(&self) -> bool {
        self.quiet || self.level == 0
    }

    /// Whether the time of `-T` is only that of the build.
    pub(crate) fn is_build_time_only(&self) -> bool {
        self.mkfs_time
    }

    /// Whether all files get the time of the build, even where it was not given.
    pub(crate) fn forces_build_time(&self) -> bool {
        self.all_time
    }

    pub(crate) fn compresses_directories(&self) -> bool {
        self.compress_directories.as_deref().is_some_and(|choice| choice != "0")
    }

    /// How the archive is read, if the source is one.
    pub(crate) fn tar_mode(&self) -> Option<TarMode> {
        self.tar.as_ref().map(|tar| tar.mode)
    }

    /// The file for the list of what lies where in the image and in the archive.
    pub(crate) fn block_map(&self) -> Option<&Path> {
        self.tar.as_ref()?.block_map.as_deref()
    }

    /// The compression of the archive, if it is given.
    pub(crate) fn tar_compression(&self) -> Option<TarCompression> {
        if self.ungzip.is_some() || self.gzinfo {
            return Some(TarCompression::Gzip);
        }
        self.unxz.as_ref().map(|_| TarCompression::Xz)
    }

    /// The file for a copy of the uncompressed archive.
    pub(crate) fn raw_copy(&self) -> Option<&Path> {
        self.ungzip.as_ref().or(self.unxz.as_ref())?.as_deref()
    }

    /// What is to become of the data of source images.
    pub(crate) fn clean_mode(&self) -> Option<&str> {
        self.clean.as_deref()
    }

    /// What is to become of the data of the sources if they are added to the image.
    pub(crate) fn incremental_mode(&self) -> Option<&str> {
        self.incremental.as_deref()
    }

    /// Number of threads, if it is given.
    pub(crate) fn jobs(&self) -> Option<usize> {
        self.workers.map(|workers| {
            usize::try_from(workers).map_or(JOBS_MAX, |jobs| jobs.clamp(1, JOBS_MAX))
        })
    }

    pub(crate) fn strips_overlay(&self) -> bool {
        self.ovlfs_strip.as_deref() == Some("1")
    }

    /// Options that have no effect, with the reason.
    pub(crate) fn ineffective(&self) -> Vec<&'static str> {
        let given = [
            (
                self.sort.as_deref().is_some_and(|order| order != "path"),
                "--sort: data is always sorted by path",
            ),
            (
                self.async_queue_limit.is_some(),
                "--async-queue-limit: the memory of the build limits the queue",
            ),
            (
                self.metadata_zone.is_some(),
                "--MZ has no effect: inodes and directories are always stored together",
            ),
        ];
        given.into_iter().filter_map(|(is_given, text)| is_given.then_some(text)).collect()
    }
}

/// The ways of `--tar`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TarMode {
    /// `f`, and every word that is none of the others
    Full,
    /// `i`
    Index,
    /// `i,MAP`
    MappedCopy,
    /// `headerball`
    Headers,
}

/// The value of `--tar`.
#[derive(Clone, Debug)]
struct TarSelection {
    mode: TarMode,
    block_map: Option<PathBuf>,
}

/// How an archive is compressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TarCompression {
    Gzip,
    Xz,
}

fn parse_tar(text: &str) -> Result<TarSelection, Infallible> {
    let (word, map) = text.split_once(',').unwrap_or((text, ""));
    let block_map = (!map.is_empty()).then(|| PathBuf::from(map));
    let mode = match (word, &block_map) {
        ("i" | "0", None) => TarMode::Index,
        ("i" | "0", Some(_)) => TarMode::MappedCopy,
        ("headerball", _) => TarMode::Headers,
        _ => TarMode::Full,
    };
    Ok(TarSelection { mode, block_map })
}

fn parse_metadata_zone(flags: &str) -> Result<String, String> {
    let is_known = flags == "0" || flags.bytes().all(|flag| flag == b'i' || flag == b'd');
    match is_known && (flags == "0" || flags.contains('i') || flags.is_empty()) {
        true => Ok(flags.to_owned()),
        false => Err("not 0, i or id".to_owned()),
    }
}

/// The bits of `--zfeature-bits`.
fn parse_feature_bits(text: &str) -> Result<u64, String> {
    let bits = parse_number(text)?;
    match bits >> FEATURE_BITS {
        0 => Ok(bits),
        _ => Err(format!("there are only {FEATURE_BITS} bits")),
    }
}

/// Options of mkfs.erofs that are not supported, and what to do instead.
const REFUSED: [(&str, &str); 5] = [
    (
        "--gzinfo",
        "indexes for random access to gzip are not written; use the option without a value",
    ),
    ("--oci", "nothing is downloaded; download the layers and use --tar=f"),
    ("--random-algorithms", "it is only for tests of mkfs.erofs"),
    ("--random-pclusterblks", "it is only for tests of mkfs.erofs"),
    ("--s3", "nothing is downloaded; download the files and give their directory"),
];

/// The message for an option that is not supported; `None` for other errors.
pub(crate) fn refusal(error: &clap::Error) -> Option<String> {
    let kinds = [ErrorKind::UnknownArgument, ErrorKind::TooManyValues];
    if !kinds.contains(&error.kind()) {
        return None;
    }
    let Some(ContextValue::String(given)) = error.get(ContextKind::InvalidArg) else { return None };
    let name = given.split(['=', ' ', '[']).next().unwrap_or(given);
    let (name, instead) = REFUSED.iter().find(|(refused, _)| *refused == name)?;
    Some(format!("{name} is not supported: {instead}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mkfs(words: &[&str]) -> Result<MkfsArguments, clap::Error> {
        MkfsArguments::read([&["mkfs.erofs"], words].concat())
    }

    #[test]
    fn options_may_stand_behind_the_image() {
        let typed =
            mkfs(&["out.img", "-zlz4hc,9", "dir", "-C65536", "-Ededupe,^inline_data", "-T", "7"]);
        let typed = typed.unwrap();
        assert_eq!((typed.image, typed.sources), ("out.img".into(), vec!["dir".into()]));
        assert_eq!(typed.algorithms.as_deref(), Some("lz4hc,9"));
        assert_eq!((typed.pcluster_bytes, typed.time), (Some(65536), Some(7)));
        assert_eq!(typed.extended, ["dedupe,^inline_data"]);
    }

    #[test]
    fn negative_tolerances_need_no_blank() {
        assert_eq!(mkfs(&["-x-1", "i", "d"]).unwrap().xattr_tolerance, -1);
        assert_eq!(mkfs(&["-x", "-1", "i", "d"]).unwrap().xattr_tolerance, -1);
        assert_eq!(mkfs(&["-x0", "i", "d"]).unwrap().xattr_tolerance, 0);
        assert_eq!(mkfs(&["i", "d"]).unwrap().xattr_tolerance, 2);
    }

    #[test]
    fn the_last_of_contrary_options_counts() {
        assert!(mkfs(&["--all-time", "--mkfs-time", "i", "d"]).unwrap().is_build_time_only());
        assert!(!mkfs(&["--mkfs-time", "--all-time", "i", "d"]).unwrap().is_build_time_only());
        assert!(!mkfs(&["--ignore-mtime", "--preserve-mtime", "i", "d"]).unwrap().ignore_mtime);
        assert_eq!(mkfs(&["-b512", "-b4096", "i", "d"]).unwrap().block_bytes, Some(4096));
    }

    #[test]
    fn the_last_of_the_options_about_an_owner_counts() {
        for (words, owners) in [
            (&["--all-root", "--force-uid=7"][..], (Some(7), Some(0))),
            (&["--force-uid=7", "--force-gid=8", "--all-root"], (Some(0), Some(0))),
            (&["--all-root", "--force-gid=8", "--all-root"], (Some(0), Some(0))),
            (&["--all-root", "--force-gid=8", "--force-uid=7"], (Some(7), Some(8))),
            (&["--force-gid=8"], (None, Some(8))),
        ] {
            let typed = mkfs(&[words, &["i", "d"]].concat()).unwrap();
            assert_eq!((typed.force_uid, typed.force_gid), owners, "{words:?}");
        }
    }

    #[test]
    fn numbers_are_those_that_strtoull_reads() {
        let typed = mkfs(&["--uid-offset=-100000", "--gid-offset", "-1", "i", "d"]).unwrap();
        assert_eq!((typed.uid_offset, typed.gid_offset), (4_294_867_296, u32::MAX));
        let typed = mkfs(&["--uid-offset=4294967296", "--gid-offset=", "i", "d"]).unwrap();
        assert_eq!((typed.uid_offset, typed.gid_offset), (0, 0));
        let typed = mkfs(&["--force-uid=-2", "--force-gid=4294967301", "i", "d"]).unwrap();
        assert_eq!((typed.force_uid, typed.force_gid), (Some(u32::MAX - 1), Some(5)));
        assert_eq!(mkfs(&["--workers=-1", "i", "d"]).unwrap().jobs(), Some(JOBS_MAX));
        assert_eq!(mkfs(&["-T", "+5", "-b", "+4096", "i", "d"]).unwrap().time, Some(5));
        assert_eq!(mkfs(&["-T", "", "i", "d"]).unwrap().time, Some(0));
        for wrong in ["--force-uid=-1", "--uid-offset=99999999999999999999", "--uid-offset=5x"] {
            mkfs(&[wrong, "i", "d"]).unwrap_err();
        }
    }

    #[test]
    fn switches_of_directories_mean_what_they_say() {
        assert!(mkfs(&["--zD", "i", "d"]).unwrap().compresses_directories());
        assert!(mkfs(&["--zD=1", "i", "d"]).unwrap().compresses_directories());
        assert!(!mkfs(&["--zD=0", "i", "d"]).unwrap().compresses_directories());
        assert!(mkfs(&["--zD=2", "i", "d"]).unwrap().compresses_directories());
        assert_eq!(mkfs(&["--sort=none", "i", "d"]).unwrap().ineffective().len(), 1);
        assert_eq!(mkfs(&["--sort=path", "i", "d"]).unwrap().ineffective().len(), 0);
        for choice in ["--MZ", "--MZ=0", "--MZ=i", "--MZ=id"] {
            assert_eq!(mkfs(&[choice, "i", "d"]).unwrap().ineffective().len(), 1, "{choice}");
        }
        for wrong in ["--MZ=d", "--MZ=x"] {
            mkfs(&[wrong, "i", "d"]).unwrap_err();
        }
    }

    #[test]
    fn a_container_engine_gets_its_usual_words_through() {
        let typed = mkfs(&["--tar=f", "--aufs", "-Enoinline_data", "--quiet", "out", "-"]).unwrap();
        assert_eq!(typed.tar_mode(), Some(TarMode::Full));
        assert!(typed.aufs && !typed.prints_summary() && typed.is_quiet());
        assert_eq!(typed.sources, [PathBuf::from("-")]);
        assert!(mkfs(&["--tar=f", "out"]).unwrap().sources.is_empty());
    }

    #[test]
    fn levels_of_verbosity_decide_what_is_printed() {
        let printed = |words: &[&str]| {
            let typed = mkfs(&[words, &["i", "d"]].concat()).unwrap();
            (typed.prints_version(), typed.prints_summary(), typed.prints_names())
        };
        assert_eq!(printed(&[]), (true, true, true));
        assert_eq!(printed(&["-d0"]), (false, false, false));
        assert_eq!(printed(&["-dx"]), (false, false, false));
        assert_eq!(printed(&["-d1"]), (false, true, true));
        assert_eq!(printed(&["-d3"]), (true, true, false));
        assert_eq!(printed(&["-d9", "--quiet"]), (false, false, false));
        mkfs(&["-d10", "i", "d"]).unwrap_err();
        mkfs(&["-d-1", "i", "d"]).unwrap_err();
    }

    #[test]
    fn what_is_refused_says_what_to_do() {
        for (option, instead) in REFUSED {
            for given in [format!("{option}=x"), option.to_owned()] {
                let Err(error) = mkfs(&[&given, "image", "dir"]) else { continue };
                let needs_tar = error.kind() == ErrorKind::MissingRequiredArgument;
                let message = refusal(&error).unwrap_or_default();
                assert!(needs_tar || message.contains(instead), "{given}: {error}");
            }
            mkfs(&[&format!("{option}=x"), "image", "dir"]).unwrap_err();
        }
        assert_eq!(refusal(&mkfs(&["--frobnicate", "i", "d"]).unwrap_err()), None);
    }

    #[test]
    fn an_archive_can_have_a_list_of_blocks() {
        let of = |word: &str| {
            let typed = mkfs(&[word, "i", "d"]).unwrap();
            (typed.tar_mode().unwrap(), typed.block_map().map(Path::to_owned))
        };
        assert_eq!(of("--tar=i,list"), (TarMode::MappedCopy, Some("list".into())));
        assert_eq!(of("--tar=i,"), (TarMode::Index, None));
        assert_eq!(of("--tar=f,list"), (TarMode::Full, Some("list".into())));
    }

    #[test]
    fn of_clean_and_incremental_the_last_one_counts() {
        let typed = mkfs(&["--clean", "--incremental", "i", "d"]).unwrap();
        assert_eq!((typed.incremental_mode(), typed.clean_mode()), (Some("data"), None));
        let typed = mkfs(&["--incremental=rvsp", "--clean=0", "i", "d"]).unwrap();
        assert_eq!((typed.incremental_mode(), typed.clean_mode()), (None, Some("0")));
    }
}

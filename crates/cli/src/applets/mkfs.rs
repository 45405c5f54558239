//! The command line of mkfs.erofs, of erofs-utils 1.9: for scripts that call it. It describes what may be typed and says
//! what is refused; `verbs::build` makes an image of it. Called by `applets`, and by `xtask` for the manual.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{ArgAction, Parser};

use crate::amount::parse_number;
use crate::help;

/// From this level on, what is built is told.
const VERBOSE_LEVEL: u8 = 2;

/// Build an EROFS image.
#[derive(Clone, Debug, Parser)]
#[command(name = "mkfs.erofs", version = concat!("(ferrofs) ", env!("CARGO_PKG_VERSION")))]
#[command(after_help = help::MKFS_EROFS, max_term_width = 100, infer_long_args = true)]
#[command(args_override_self = true, disable_version_flag = true)]
pub(crate) struct MkfsArguments {
    /// The image file, or a block device
    #[arg(value_name = "FILE")]
    pub(crate) image: PathBuf,

    /// A directory; or EROFS images, each of which lies over those before it; with --tar an archive, or
    /// standard input if there is none or it is -
    #[arg(value_name = "SOURCE")]
    pub(crate) sources: Vec<PathBuf>,

    /// Block size in bytes: a power of two from 512 to 65536 [default: 4096]
    #[arg(short = 'b', value_name = "#", value_parser = parse_number)]
    pub(crate) block_bytes: Option<u64>,

    /// What to tell: 0 errors only, from 2 on what was built
    #[arg(short = 'd', value_name = "0-9", default_value_t = 2)]
    #[arg(value_parser = clap::value_parser!(u8).range(0..=9))]
    level: u8,

    /// Store an extended attribute once if more inodes than this have it; below 0, leave all out
    #[arg(short = 'x', value_name = "#", default_value_t = 2, allow_negative_numbers = true)]
    pub(crate) xattr_tolerance: i32,

    /// Compress: an algorithm with its level and dictionary; further ones behind colons
    #[arg(short = 'z', value_name = "X[,level=Y][,dictsize=Z][:...]")]
    pub(crate) algorithms: Option<String>,

    /// Bytes of a pcluster at most: whole blocks, up to 1m; k and m count in KiB and MiB
    #[arg(short = 'C', value_name = "#", value_parser = crate::amount::parse_bytes)]
    pub(crate) pcluster_bytes: Option<u64>,

    /// Extended options; see below
    #[arg(short = 'E', value_name = "X[,...]")]
    #[arg(action = ArgAction::Append, value_delimiter = ',')]
    pub(crate) extended: Vec<String>,

    /// The label, 15 bytes at most
    #[arg(short = 'L', value_name = "LABEL")]
    pub(crate) label: Option<OsString>,

    /// Keep inodes in a file of their own, with pclusters of this many bytes
    #[arg(short = 'm', value_name = "#[:X]")]
    pub(crate) metabox: Option<String>,

    /// The time of the build, in seconds since 1970
    #[arg(short = 'T', value_name = "#", value_parser = parse_number)]
    pub(crate) time: Option<u64>,

    /// The time of -T is that of all files, too, as by default
    #[arg(long, overrides_with = "mkfs_time")]
    all_time: bool,

    /// The time of -T is only that of the build
    #[arg(long, overrides_with = "all_time")]
    mkfs_time: bool,

    /// The UUID; also: clear, or random as by default
    #[arg(short = 'U', value_name = "UUID")]
    pub(crate) uuid: Option<String>,

    /// Whether directories are compressed
    #[arg(long = "zD", value_name = "0|1", num_args = 0..=1, require_equals = true)]
    #[arg(default_missing_value = "1", value_parser = ["0", "1"])]
    compress_directories: Option<String>,

    /// Inodes, and directories, lie together, as is always so
    #[arg(long = "MZ", value_name = "i|id", num_args = 0..=1, require_equals = true)]
    #[arg(default_missing_value = "id", value_parser = ["i", "id"])]
    metadata_zone: Option<String>,

    /// Everything belongs to root
    #[arg(long)]
    pub(crate) all_root: bool,

    /// Keep files in chunks of this many bytes, a power of two, uncompressed; with -z those in which
    /// nothing can be compressed
    #[arg(long = "chunksize", value_name = "#", value_parser = parse_number)]
    pub(crate) chunk_bytes: Option<u64>,

    /// Put the chunks of --chunksize into FILE, a new file or a block device, which becomes device 1
    #[arg(long, value_name = "FILE", requires = "chunk_bytes")]
    pub(crate) blobdev: Option<PathBuf>,

    /// Compress some files otherwise, by lines of FILE: bytes of a pcluster, or 0 for not at all; the
    /// number of an algorithm of -z, from 0 on, which may be left out; and an expression
    #[arg(long, value_name = "FILE")]
    pub(crate) compress_hints: Option<PathBuf>,

    /// Begin the data of each file at a multiple of this many blocks
    #[arg(long = "dsunit", value_name = "#", value_parser = parse_number)]
    pub(crate) data_alignment_blocks: Option<u64>,

    /// Make the image a multiple of this many blocks long, rounded up to a power of two
    #[arg(long = "fsalignblks", value_name = "#", value_parser = parse_number)]
    pub(crate) image_alignment_blocks: Option<u64>,

    /// Leave room for extended attributes of the root: this many bytes at least, up to 65532
    #[arg(long = "root-xattr-isize", value_name = "#", value_parser = parse_number)]
    #[arg(default_value = "0")]
    pub(crate) root_xattr_bytes: u64,

    /// Store the SHA-256 of each file in an extended attribute [default X: erofs.fingerprint.v1]
    #[arg(long = "xattr-inode-digest", value_name = "X", num_args = 0..=1, require_equals = true)]
    #[arg(default_missing_value = crate::arguments::DEFAULT_DIGEST_XATTR)]
    pub(crate) digest_xattr: Option<OsString>,

    /// Build all of it, as is always so, and take the data of images into the new one, in place of
    /// referring to it as that of devices 1, 2 and so on
    #[arg(long, value_name = "data", value_parser = ["data"])]
    clean: Option<String>,

    /// Leave out this path, and what is below it; relative, without a slash before it
    #[arg(long, value_name = "PATH")]
    pub(crate) exclude_path: Vec<OsString>,

    /// Leave out paths in which this expression, a POSIX extended one, is found
    #[arg(long, value_name = "REGEX")]
    pub(crate) exclude_regex: Vec<String>,

    /// Every file belongs to this user
    #[arg(long, value_name = "#")]
    pub(crate) force_uid: Option<u32>,

    /// Every file belongs to this group
    #[arg(long, value_name = "#")]
    pub(crate) force_gid: Option<u32>,

    /// Add this to all users
    #[arg(long, value_name = "#", default_value_t = 0)]
    pub(crate) uid_offset: u32,

    /// Add this to all groups
    #[arg(long, value_name = "#", default_value_t = 0)]
    pub(crate) gid_offset: u32,

    /// Hard links become files of their own
    #[arg(long)]
    pub(crate) hard_dereference: bool,

    /// Files take the time of the build where that makes their inodes small
    #[arg(long, overrides_with = "preserve_mtime")]
    pub(crate) ignore_mtime: bool,

    /// Files keep their times, as by default
    #[arg(long, overrides_with = "ignore_mtime")]
    preserve_mtime: bool,

    /// The most bytes that one pcluster decodes to: whole blocks
    #[arg(long, value_name = "#", value_parser = parse_number)]
    pub(crate) max_extent_bytes: Option<u64>,

    /// The image begins at this byte of FILE
    #[arg(long, value_name = "#", value_parser = parse_number, default_value = "0")]
    pub(crate) offset: u64,

    /// Whiteouts of aufs become those of overlayfs (in archives; images must not have any)
    #[arg(long)]
    pub(crate) aufs: bool,

    /// The order of the data of archives: that of paths is always taken, which suits none, too
    #[arg(long, value_name = "path|none", value_parser = ["path", "none"])]
    sort: Option<String>,

    /// SOURCE is a tar archive; f takes all of it into the image, i leaves contents in the archive,
    /// which becomes device 1, headerball expects none and makes files that read as zeros
    #[arg(long, value_name = "f|i|headerball", num_args = 0..=1, require_equals = true)]
    #[arg(default_missing_value = "f", value_parser = parse_tar)]
    tar: Option<TarMode>,

    /// Leave whiteouts and what else overlayfs keeps for itself out of the image
    #[arg(long, value_name = "0|1", num_args = 0..=1, require_equals = true)]
    #[arg(default_missing_value = "1", value_parser = ["0", "1"])]
    ovlfs_strip: Option<String>,

    /// Write nothing to standard output
    #[arg(long)]
    quiet: bool,

    /// The archive is compressed by gzip
    #[arg(long, requires = "tar", conflicts_with = "unxz")]
    pub(crate) ungzip: bool,

    /// The archive is compressed by xz
    #[arg(long, requires = "tar")]
    pub(crate) unxz: bool,

    /// Threads that work; no more than CPUs are granted, which is also the default
    #[arg(long, value_name = "#", value_parser = crate::amount::parse_jobs)]
    pub(crate) workers: Option<usize>,

    /// A prefix of names of extended attributes that is stored once
    #[arg(long, value_name = "X")]
    pub(crate) xattr_prefix: Vec<OsString>,

    /// Print the version
    #[arg(short = 'V', long, action = ArgAction::Version)]
    version: Option<bool>,
}

impl MkfsArguments {
    /// Whether what is built is told.
    pub(crate) fn is_verbose(&self) -> bool {
        !self.quiet && self.level >= VERBOSE_LEVEL
    }

    /// Whether anything but errors is told.
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
        self.compress_directories.as_deref() == Some("1")
    }

    /// How the source is to be read, if it is an archive.
    pub(crate) fn tar_mode(&self) -> Option<TarMode> {
        self.tar
    }

    /// Whether the data of images is to be taken out of them.
    pub(crate) fn copies_data(&self) -> bool {
        self.clean.is_some()
    }

    pub(crate) fn strips_overlay(&self) -> bool {
        self.ovlfs_strip.as_deref() == Some("1")
    }
}

/// The ways of `--tar`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TarMode {
    /// `f`
    Full,
    /// `i`
    Index,
    /// `headerball`
    Headers,
}

fn parse_tar(mode: &str) -> Result<TarMode, String> {
    match mode {
        "f" => Ok(TarMode::Full),
        "i" => Ok(TarMode::Index),
        "headerball" => Ok(TarMode::Headers),
        _ if mode.contains(',') => Err("no list of blocks is written; use --tar=i".to_owned()),
        _ => Err("not f, i or headerball".to_owned()),
    }
}

/// What mkfs.erofs has and this does not, and what to do instead.
const REFUSED: [(&str, &str); 16] = [
    ("--async-queue-limit", "the queue is bounded by the memory that a build may take"),
    ("--block-list-file", "`dump.erofs -e --path=PATH IMAGE` tells where a file lies"),
    ("--file-contexts", "labels are taken from the source; set security.selinux there"),
    (
        "--fs-config-file",
        "owners and modes are taken from the source; set them there, or use a tar",
    ),
    ("--gzinfo", "no index for random access to gzip is made"),
    (
        "--incremental",
        "an image is always built in whole; build one of what is new, and give both images as SOURCEs",
    ),
    ("--mount-point", "it is for Android's lists of owners and labels, which are not read"),
    ("--oci", "nothing is fetched; fetch the layers and use --tar=f"),
    ("--product-out", "it is for Android's lists of owners, which are not read"),
    ("--random-algorithms", "it is for testing mkfs.erofs"),
    ("--random-pclusterblks", "it is for testing mkfs.erofs"),
    ("--s3", "nothing is fetched; fetch the files and give their directory"),
    ("--vmdk-desc", "no descriptor of a virtual disk is made"),
    ("--zfeature-bits", "choose features by name with -E"),
    ("--ungzip", "no copy of the unpacked stream is written; give it without a value"),
    ("--unxz", "no copy of the unpacked stream is written; give it without a value"),
];

/// What to say about an option of mkfs.erofs that is refused; nothing for other errors.
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
        MkfsArguments::try_parse_from([&["mkfs.erofs"], words].concat())
    }

    #[test]
    fn options_may_stand_behind_the_image() {
        let typed =
            mkfs(&["out.img", "-zlz4hc,9", "dir", "-C65536", "-Ededupe,^inline_data", "-T", "7"]);
        let typed = typed.unwrap();
        assert_eq!((typed.image, typed.sources), ("out.img".into(), vec!["dir".into()]));
        assert_eq!(typed.algorithms.as_deref(), Some("lz4hc,9"));
        assert_eq!((typed.pcluster_bytes, typed.time), (Some(65536), Some(7)));
        assert_eq!(typed.extended, ["dedupe", "^inline_data"]);
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
    fn switches_of_directories_mean_what_they_say() {
        assert!(mkfs(&["--zD", "i", "d"]).unwrap().compresses_directories());
        assert!(mkfs(&["--zD=1", "i", "d"]).unwrap().compresses_directories());
        assert!(!mkfs(&["--zD=0", "i", "d"]).unwrap().compresses_directories());
        mkfs(&["--zD=2", "i", "d"]).unwrap_err();
        mkfs(&["--sort=anything", "--tar=f", "i", "d"]).unwrap_err();
        mkfs(&["--sort=none", "--tar=f", "i", "d"]).unwrap();
        mkfs(&["--MZ=0", "i", "d"]).unwrap_err();
    }

    #[test]
    fn a_container_engine_gets_its_usual_words_through() {
        let typed = mkfs(&["--tar=f", "--aufs", "-Enoinline_data", "--quiet", "out", "-"]).unwrap();
        assert_eq!(typed.tar_mode(), Some(TarMode::Full));
        assert!(typed.aufs && !typed.is_verbose() && typed.is_quiet());
        assert_eq!(typed.sources, [PathBuf::from("-")]);
        assert!(mkfs(&["--tar=f", "out"]).unwrap().sources.is_empty());
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
        let message = mkfs(&["--tar=i,list", "i", "d"]).unwrap_err().to_string();
        assert!(message.contains("use --tar=i"), "{message}");
    }
}

//! The command line of fsck.erofs, of erofs-utils, for scripts that call it. `verbs::fsck` does the
//! work. Used by `applets`, and by `xtask` for the manual.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use clap::parser::ValueSource;
use clap::{ArgAction, ArgMatches, CommandFactory, FromArgMatches, Parser};

use crate::amount::{parse_leading_number, parse_number, parse_verbosity};
use crate::help;

/// The level of verbosity from which on success is reported as well.
const VERBOSE_LEVEL: u8 = 3;

/// Check an EROFS image, or extract it.
#[derive(Clone, Debug, Parser)]
#[command(name = "fsck.erofs", version = help::FSCK_VERSION)]
#[command(after_help = help::FSCK_EROFS, max_term_width = 100, infer_long_args = true, args_override_self = true)]
#[command(disable_version_flag = true)]
pub(crate) struct FsckArguments {
    /// The image file
    pub(crate) image: PathBuf,

    /// Verbosity: 0 to 2 errors only, 3 or more also a message on success
    #[arg(short = 'd', value_name = "LEVEL", default_value = "2", value_parser = parse_verbosity)]
    #[arg(allow_negative_numbers = true)]
    level: u8,

    /// With -d3, print one compression ratio for all files together
    #[arg(short = 'p')]
    pub(crate) ratio: bool,

    /// A file or block device that holds data which IMAGE refers to but does not contain. EROFS
    /// calls such a file a device or a blob (see `ferrofs build --blob`). Give one such option for
    /// each device, in the order of the device table that `ferrofs info` prints
    #[arg(long = "device", value_name = "FILE")]
    pub(crate) devices: Vec<PathBuf>,

    /// Extract the image into DIR, whose parent must exist. Without DIR, extract nothing, but read
    /// the contents of all files. A file with data on a device that --device does not name is
    /// reported as an error
    #[arg(long, value_name = "DIR", num_args = 0..=1, require_equals = true)]
    extract: Option<Option<PathBuf>>,

    /// Byte offset in IMAGE at which the EROFS image starts
    #[arg(long, value_name = "BYTES", value_parser = parse_number, default_value = "0")]
    pub(crate) offset: u64,

    /// Check or extract only the inode with this number and everything below it; 0 is the root
    #[arg(long, value_name = "NID", value_parser = parse_nid)]
    pub(crate) nid: Option<u64>,

    /// Check or extract only this path and everything below it; --nid has no effect then
    #[arg(long, value_name = "PATH")]
    pub(crate) path: Option<OsString>,

    /// Open the image even if its superblock has a wrong checksum
    #[arg(long)]
    pub(crate) no_sbcrc: bool,

    /// Compare each file with its digest, which mkfs.erofs --xattr-inode-digest stores
    #[arg(long)]
    pub(crate) xattr_inode_digest: bool,

    /// Extract extended attributes as well
    #[arg(long, overrides_with = "no_xattrs")]
    xattrs: bool,

    /// Do not extract extended attributes (the default)
    #[arg(long, overrides_with = "xattrs")]
    no_xattrs: bool,

    /// No effect: an image cannot be written, so nothing is repaired
    #[arg(short = 'a', short_aliases = ['A', 'y'])]
    repair: bool,

    /// Allow / as the directory to extract into
    #[arg(long)]
    pub(crate) force: bool,

    /// Replace existing files
    #[arg(long)]
    pub(crate) overwrite: bool,

    /// Same as --preserve-owner --preserve-perms
    #[arg(long)]
    preserve: bool,

    /// Same as --no-preserve-owner --no-preserve-perms
    #[arg(long)]
    no_preserve: bool,

    /// Preserve owners (the default for root)
    #[arg(long)]
    preserve_owner: bool,

    /// Make the current user the owner of everything (the default for other users)
    #[arg(long)]
    no_preserve_owner: bool,

    /// Preserve permissions (the default for root)
    #[arg(long)]
    preserve_perms: bool,

    /// Apply the umask to permissions (the default for other users)
    #[arg(long)]
    no_preserve_perms: bool,

    /// Print the version
    #[arg(short = 'V', long, action = ArgAction::Version)]
    version: Option<bool>,

    /// Whether owners are preserved; `None`: only for root
    #[arg(skip)]
    pub(crate) preserves_owner: Option<bool>,

    /// Whether permissions are preserved; `None`: only for root
    #[arg(skip)]
    pub(crate) preserves_permissions: Option<bool>,
}

impl FsckArguments {
    /// Reads a command line.
    pub(crate) fn read(words: &[OsString]) -> Result<Self, clap::Error> {
        let matches = Self::command().try_get_matches_from(words)?;
        let owner = [
            ("preserve", true),
            ("preserve_owner", true),
            ("no_preserve", false),
            ("no_preserve_owner", false),
        ];
        let permissions = [
            ("preserve", true),
            ("preserve_perms", true),
            ("no_preserve", false),
            ("no_preserve_perms", false),
        ];
        Ok(Self {
            preserves_owner: last_given(&matches, owner),
            preserves_permissions: last_given(&matches, permissions),
            ..Self::from_arg_matches(&matches)?
        })
    }

    /// The directory to extract into.
    pub(crate) fn directory(&self) -> Option<&Path> {
        self.extract.as_ref()?.as_deref()
    }

    /// Whether the data of files is decoded at all costs.
    pub(crate) fn decodes(&self) -> bool {
        self.extract.is_some() || self.xattr_inode_digest
    }

    /// Whether success is reported.
    pub(crate) fn is_verbose(&self) -> bool {
        self.level >= VERBOSE_LEVEL
    }

    /// Whether warnings are printed.
    pub(crate) fn has_warnings(&self) -> bool {
        self.level > 0
    }

    /// Whether extended attributes are extracted.
    pub(crate) fn has_xattrs(&self) -> bool {
        self.xattrs
    }

    /// An option that needs `--extract=DIR`, if it was given without that.
    pub(crate) fn extract_only_option(&self) -> Option<&'static str> {
        let given = [
            (self.force, "--force"),
            (self.overwrite, "--overwrite"),
            (self.preserve, "--preserve"),
            (self.no_preserve, "--no-preserve"),
            (self.preserve_owner, "--preserve-owner"),
            (self.no_preserve_owner, "--no-preserve-owner"),
            (self.preserve_perms, "--preserve-perms"),
            (self.no_preserve_perms, "--no-preserve-perms"),
        ];
        let is_check = self.directory().is_none();
        given.iter().find(|(is_given, _)| is_check && *is_given).map(|(_, name)| *name)
    }
}

/// Reads a number as C's atoll does. Negative numbers are those of inodes in the metabox.
fn parse_nid(text: &str) -> Result<u64, String> {
    Ok(parse_leading_number(text).cast_unsigned())
}

/// The value of the last of these flags on the command line, if there is one.
fn last_given(matches: &ArgMatches, flags: [(&str, bool); 4]) -> Option<bool> {
    let is_typed = |flag| matches.value_source(flag) == Some(ValueSource::CommandLine);
    let places = flags.into_iter().filter(|(flag, _)| is_typed(flag));
    let places = places.filter_map(|(flag, value)| Some((matches.index_of(flag)?, value)));
    places.max().map(|(_, value)| value)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fsck(words: &[&str]) -> FsckArguments {
        try_fsck(words).unwrap()
    }

    fn try_fsck(words: &[&str]) -> Result<FsckArguments, clap::Error> {
        let words: Vec<OsString> = ["fsck.erofs"].iter().chain(words).map(OsString::from).collect();
        FsckArguments::read(&words)
    }

    #[test]
    fn a_directory_needs_an_equals_sign_and_may_stand_anywhere() {
        assert_eq!(fsck(&["image", "--extract=dir"]).directory(), Some(Path::new("dir")));
        assert_eq!(fsck(&["--extract", "image"]).directory(), None);
        assert_eq!(fsck(&["--extract", "image"]).image, Path::new("image"));
        assert_eq!(fsck(&["image"]).directory(), None);
    }

    #[test]
    fn the_last_word_about_owners_and_permissions_counts() {
        let kept = |words: &[&str]| {
            let typed = fsck(&[words, &["--extract=dir", "image"]].concat());
            (typed.preserves_owner, typed.preserves_permissions)
        };
        assert_eq!(kept(&[]), (None, None));
        assert_eq!(kept(&["--preserve"]), (Some(true), Some(true)));
        assert_eq!(kept(&["--no-preserve"]), (Some(false), Some(false)));
        assert_eq!(kept(&["--preserve-owner", "--no-preserve-owner"]), (Some(false), None));
        assert_eq!(kept(&["--no-preserve", "--preserve-perms"]), (Some(false), Some(true)));
        assert_eq!(kept(&["--preserve-perms", "--no-preserve"]), (Some(false), Some(false)));
        assert_eq!(kept(&["--no-preserve", "--preserve"]), (Some(true), Some(true)));
    }

    #[test]
    fn options_for_unpacking_alone_are_noticed() {
        assert_eq!(fsck(&["--overwrite", "image"]).extract_only_option(), Some("--overwrite"));
        assert_eq!(fsck(&["--extract", "--force", "image"]).extract_only_option(), Some("--force"));
        assert_eq!(fsck(&["--extract=dir", "--force", "image"]).extract_only_option(), None);
    }

    #[test]
    fn options_of_every_fsck_change_nothing() {
        let typed = fsck(&["-a", "-A", "-y", "-p", "-d3", "--offset=0x400", "image"]);
        assert!(typed.ratio && typed.is_verbose());
        assert_eq!(typed.offset, 1024);
    }

    #[test]
    fn what_is_not_supported_is_refused() {
        for word in ["--frobnicate", "-n", "-d10", "-d-1", "--offset=x"] {
            try_fsck(&[word, "image"]).unwrap_err();
        }
    }
}

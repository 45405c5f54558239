//! The command line of dump.erofs, of erofs-utils, for scripts that call it. `dump` does the work.
//! Used by `applets`, and by `xtask` for the manual.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{ArgAction, Parser};

use crate::amount::{parse_number, parse_wrapping_number};
use crate::help;

/// Show the layout of an EROFS image or of an inode in it.
#[derive(Clone, Debug, Parser)]
#[command(name = "dump.erofs", version = help::DUMP_VERSION)]
#[command(after_help = help::DUMP_EROFS, max_term_width = 100, infer_long_args = true, args_override_self = true)]
#[command(disable_version_flag = true)]
pub(crate) struct DumpArguments {
    /// The image file
    pub(crate) image: PathBuf,

    /// Show statistics of the whole image: number, sizes and types of files
    #[arg(short = 'S')]
    pub(crate) statistics: bool,

    /// Show the superblock (the default)
    #[arg(short = 's')]
    pub(crate) superblock: bool,

    /// Show the extents of the inode that --nid or --path selects
    #[arg(short = 'e')]
    pub(crate) extents: bool,

    /// Show label, UUID and type for udev, as KEY=VALUE
    #[arg(long)]
    pub(crate) blkid_udev: bool,

    /// A file or block device that holds data which IMAGE refers to but does not contain. EROFS
    /// calls such a file a device or a blob (see `ferrofs build --blob`). Give one such option for
    /// each device, in the order of the device table that `ferrofs info` prints
    #[arg(long = "device", value_name = "FILE")]
    pub(crate) devices: Vec<PathBuf>,

    /// List the directory that --nid or --path selects
    #[arg(long)]
    pub(crate) ls: bool,

    /// Write the contents of the file that --nid or --path selects to standard output, and nothing
    /// else
    #[arg(long)]
    pub(crate) cat: bool,

    /// Show the inode with this number
    #[arg(long, value_name = "NID", value_parser = parse_wrapping_number)]
    #[arg(allow_negative_numbers = true)]
    pub(crate) nid: Option<u64>,

    /// Byte offset in IMAGE at which the EROFS image starts
    #[arg(long, value_name = "BYTES", value_parser = parse_number, default_value = "0")]
    pub(crate) offset: u64,

    /// Show the inode at this path; --nid has no effect then
    #[arg(long, value_name = "PATH")]
    pub(crate) path: Option<OsString>,

    /// Print the version
    #[arg(short = 'V', long, action = ArgAction::Version)]
    version: Option<bool>,
}

impl DumpArguments {
    /// Whether an inode is shown.
    pub(crate) fn shows_inode(&self) -> bool {
        self.nid.is_some() || self.path.is_some()
    }

    /// Whether the superblock is shown: with -s, or if nothing else is selected.
    pub(crate) fn shows_superblock(&self) -> bool {
        let shows_other = self.statistics || self.extents || self.blkid_udev || self.shows_inode();
        self.superblock || !shows_other
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dump(words: &[&str]) -> Result<DumpArguments, clap::Error> {
        DumpArguments::try_parse_from([&["dump.erofs"], words].concat())
    }

    #[test]
    fn the_superblock_is_shown_unless_something_else_is() {
        assert!(dump(&["image"]).unwrap().shows_superblock());
        assert!(dump(&["image", "-s", "--path=/"]).unwrap().shows_superblock());
        for other in ["--path=/", "--nid=36", "-S", "--blkid-udev"] {
            assert!(!dump(&["image", other]).unwrap().shows_superblock(), "{other}");
        }
    }

    #[test]
    fn numbers_of_inodes_wrap_around() {
        for words in [&["image", "--nid=-1"][..], &["image", "--nid", "-1"]] {
            assert_eq!(dump(words).unwrap().nid, Some(u64::MAX));
        }
        dump(&["image", "--nid=-x"]).unwrap_err();
    }

    #[test]
    fn options_of_an_inode_alone_are_no_wrong_usage() {
        for option in ["-e", "--ls", "--cat"] {
            for inode in ["--nid=36", "--path=/"] {
                assert!(dump(&["image", option, inode]).unwrap().shows_inode());
            }
            assert!(!dump(&["image", option]).unwrap().shows_inode());
        }
        assert!(dump(&["image", "--ls"]).unwrap().shows_superblock());
        dump(&["image", "--nid=36", "--path=/"]).unwrap();
    }
}

//! The command lines of erofsfuse and mount.erofs, of erofs-utils, and of mount.fuse.ferrofs, which
//! mount(8) calls for the type `fuse.ferrofs`. They become arguments of the verb `mount`. Used by `applets`, and
//! by `xtask` for the manual.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::error::ErrorKind;
use clap::{Args, CommandFactory, Parser};

use crate::amount::{parse_number, parse_verbosity};
use crate::arguments::{
    MachineArguments, MountArguments, MountCaller, MountInvocation, ReadArguments, option_words,
};
use crate::help;

/// The debug level from which on more than errors and warnings is printed.
const VERBOSE_LEVEL: u8 = 3;

/// Mount an EROFS image with FUSE.
#[derive(Clone, Debug, Parser)]
#[command(name = "erofsfuse", version = help::EROFSFUSE_VERSION, after_help = help::EROFSFUSE)]
#[command(before_help = help::EROFSFUSE_BANNER, max_term_width = 100)]
#[command(arg_required_else_help = true, args_override_self = true)]
pub(crate) struct ErofsfuseArguments {
    /// The image file
    pub(crate) image: PathBuf,

    /// The mount point
    #[arg(value_name = "MOUNTPOINT")]
    pub(crate) directory: PathBuf,

    /// Options in the form of mount(8)
    #[arg(short = 'o', value_name = "OPT[,OPT...]")]
    pub(crate) options: Vec<OsString>,

    /// Stay in the foreground
    #[arg(short)]
    pub(crate) foreground: bool,

    /// Stay in the foreground and print the settings of the mount, as `ferrofs mount --explain`
    /// does; the same as -o debug
    #[arg(short, long)]
    pub(crate) debug: bool,

    /// Decode on one thread
    #[arg(short)]
    pub(crate) single: bool,

    /// No effect: all mounts are read-only
    #[arg(short)]
    read_only: bool,

    /// No effect: /etc/mtab is never written
    #[arg(short)]
    no_mtab: bool,

    /// Byte offset in IMAGE at which the EROFS image starts
    #[arg(long, value_name = "BYTES", value_parser = parse_number, default_value = "0")]
    pub(crate) offset: u64,

    /// A file or block device that holds data which IMAGE refers to but does not contain. EROFS
    /// calls such a file a device or a blob (see `ferrofs build --blob`). Give one such option for
    /// each device, in the order of the device table that `ferrofs info` prints
    #[arg(long = "device", value_name = "FILE")]
    pub(crate) devices: Vec<PathBuf>,

    /// Verbosity: 0 errors only, 3 or more also the settings of the mount
    #[arg(long, value_name = "LEVEL", default_value = "2", value_parser = parse_verbosity)]
    pub(crate) dbglevel: u8,
}

impl ErofsfuseArguments {
    /// The same in the arguments of the verb `mount`.
    pub(crate) fn into_mount(self) -> (MountArguments, MountInvocation) {
        let mut words = self.options.iter().flat_map(|list| option_words(list));
        let debug = self.debug || words.any(|word| word == "debug");
        let arguments = MountArguments {
            options: self.options,
            foreground: self.foreground || debug,
            explain: debug || self.dbglevel >= VERBOSE_LEVEL,
            machine: MachineArguments {
                jobs: self.single.then_some(1),
                ..MachineArguments::default()
            },
            read: ReadArguments {
                partition: None,
                offset: self.offset,
                devices: self.devices,
                no_checksum: false,
                quiet: self.dbglevel == 0,
                ..ReadArguments::default()
            },
            ..MountArguments::new(self.image, self.directory)
        };
        let caller = MountCaller::Erofsfuse;
        (arguments, MountInvocation { by: caller, ..MountInvocation::default() })
    }
}

/// What mount(8) gives every helper program.
#[derive(Args, Clone, Copy, Debug)]
pub(crate) struct HelperFlags {
    /// Ignore unknown options
    #[arg(short)]
    pub(crate) sloppy: bool,

    /// Check the options and open the image, but do not mount it
    #[arg(short)]
    pub(crate) fake: bool,

    /// No effect: /etc/mtab is never written
    #[arg(short)]
    pub(crate) no_mtab: bool,
}

impl HelperFlags {
    fn into_invocation(self, by: MountCaller) -> MountInvocation {
        MountInvocation { by, is_sloppy: self.sloppy, is_dry_run: self.fake }
    }
}

/// Mount an EROFS image with FUSE; the helper program of mount(8).
#[derive(Clone, Debug, Parser)]
#[command(name = "mount.fuse.ferrofs", version, max_term_width = 100)]
#[command(after_help = help::MOUNT_FUSE_FERROFS, arg_required_else_help = true)]
#[command(args_override_self = true)]
pub(crate) struct MountFuseArguments {
    /// The image: a file, or a URL such as https://…, oci://… or s3://…
    pub(crate) image: PathBuf,

    /// The mount point
    #[arg(value_name = "DIR")]
    pub(crate) directory: PathBuf,

    /// Options in the form of mount(8)
    #[arg(short = 'o', value_name = "OPT[,OPT...]")]
    pub(crate) options: Vec<OsString>,

    #[command(flatten)]
    pub(crate) helper: HelperFlags,

    /// Print the settings of the mount, as `ferrofs mount --explain` does
    #[arg(short)]
    pub(crate) verbose: bool,

    /// The file system type
    #[arg(short = 't', value_name = "TYPE", value_parser = ["fuse.ferrofs", "ferrofs"])]
    pub(crate) kind: Option<String>,
}

impl MountFuseArguments {
    /// The same in the arguments of the verb `mount`.
    pub(crate) fn into_mount(self) -> (MountArguments, MountInvocation) {
        let arguments = MountArguments {
            options: self.options,
            explain: self.verbose,
            ..MountArguments::new(self.image, self.directory)
        };
        (arguments, self.helper.into_invocation(MountCaller::MountProgram))
    }
}

/// Mount an EROFS image with FUSE.
#[derive(Clone, Debug, Parser)]
#[command(name = "mount.erofs", version = help::MOUNT_EROFS_VERSION, max_term_width = 100)]
#[command(after_help = help::MOUNT_EROFS, arg_required_else_help = true)]
#[command(disable_version_flag = true, args_override_self = true)]
pub(crate) struct MountErofsArguments {
    /// The image: a file, or a URL such as https://…, oci://… or s3://…
    #[arg(value_name = "SOURCE")]
    pub(crate) image: PathBuf,

    /// The mount point
    #[arg(value_name = "MOUNTPOINT")]
    pub(crate) directory: PathBuf,

    /// Options in the form of mount(8)
    #[arg(short = 'o', value_name = "OPT[,OPT...]")]
    pub(crate) options: Vec<OsString>,

    /// The file system type: erofs, erofs.fuse or erofs.local, which are the same here
    #[arg(short = 't', value_name = "TYPE[.SUBTYPE]", default_value = "erofs.fuse")]
    pub(crate) kind: String,

    /// Verbosity: 0 errors only, 3 or more also the settings of the mount (see `ferrofs mount
    /// --explain`)
    #[arg(short = 'd', value_name = "LEVEL", default_value = "2", value_parser = parse_verbosity)]
    pub(crate) dbglevel: u8,

    #[command(flatten)]
    pub(crate) helper: HelperFlags,

    /// The same as -d3
    #[arg(short)]
    pub(crate) verbose: bool,

    /// Print the version
    #[arg(short = 'V', long, action = clap::ArgAction::Version)]
    pub(crate) version: (),
}

impl MountErofsArguments {
    /// Reads a command line. What only a mount of the kernel can do is refused with what to use
    /// instead.
    pub(crate) fn read(words: &[OsString]) -> Result<Self, clap::Error> {
        let is_one_of = |word: &OsString, names: &[&str]| names.iter().any(|name| word == name);
        let refused = |why: &str| Self::command().error(ErrorKind::UnknownArgument, why);
        if let Some(word) = words.iter().skip(1).find(|word| is_one_of(word, &["-u", "--unmount"]))
        {
            let word = word.display();
            return Err(refused(&format!("{word} is not supported: use `umount MOUNTPOINT`")));
        }
        let of_nbd = ["--disconnect", "--reattach"];
        if let Some(word) = words.iter().skip(1).find(|word| is_one_of(word, &of_nbd)) {
            let word = word.display();
            return Err(refused(&format!("{word} is not supported: there is no NBD device")));
        }
        let typed = Self::try_parse_from(words)?;
        match typed.kind.as_str() {
            "erofs" | "erofs.fuse" | "erofs.local" | "fuse" => Ok(typed),
            kind => {
                let kind = kind.escape_debug();
                Err(refused(&format!(
                    "-t {kind} is not supported: this program mounts with FUSE; use -t erofs.fuse, or \
                     `mount -i -t erofs` for the driver of Linux"
                )))
            }
        }
    }

    /// The same in the arguments of the verb `mount`.
    pub(crate) fn into_mount(self) -> (MountArguments, MountInvocation) {
        let read = ReadArguments { quiet: self.dbglevel == 0, ..ReadArguments::default() };
        let arguments = MountArguments {
            options: self.options,
            explain: self.verbose || self.dbglevel >= VERBOSE_LEVEL,
            read,
            ..MountArguments::new(self.image, self.directory)
        };
        (arguments, self.helper.into_invocation(MountCaller::MountErofs))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mount(words: &[&str]) -> MountArguments {
        ErofsfuseArguments::parse_from(words).into_mount().0
    }

    #[test]
    fn options_may_stand_anywhere() {
        let typed = mount(&[
            "erofsfuse",
            "-oro,allow_other",
            "image",
            "--offset=4096",
            "dir",
            "-f",
            "--device=a",
            "--device",
            "b",
            "-o",
            "fsname=x",
        ]);
        assert_eq!(typed.options, ["ro,allow_other", "fsname=x"]);
        assert_eq!((typed.read.offset, typed.foreground, typed.explain), (4096, true, false));
        assert_eq!(typed.read.devices, [PathBuf::from("a"), PathBuf::from("b")]);
    }

    #[test]
    fn levels_of_debugging_decide_what_is_printed() {
        let settings = |words: &[&str]| {
            let words = [&["erofsfuse", "image", "dir"], words].concat();
            let typed = mount(&words);
            (typed.foreground, typed.explain, typed.read.quiet)
        };
        assert_eq!(settings(&[]), (false, false, false));
        for debug in [&["-d"][..], &["--debug"], &["-o", "ro,debug"], &["-f", "-d", "-f", "-d"]] {
            assert_eq!(settings(debug), (true, true, false), "{debug:?}");
        }
        assert_eq!(settings(&["-o", r"fsname=a\,debug"]), (false, false, false));
        assert_eq!(settings(&["--dbglevel=0"]), (false, false, true));
        assert_eq!(settings(&["--dbglevel=3"]), (false, true, false));
    }

    #[test]
    fn one_thread_is_one_job() {
        assert_eq!(mount(&["erofsfuse", "-s", "image", "dir"]).machine.jobs, Some(1));
        assert_eq!(mount(&["erofsfuse", "image", "dir"]).machine.jobs, None);
    }
}

#[cfg(test)]
mod mount_fuse_tests {
    use super::*;

    #[test]
    fn the_last_of_repeated_options_counts() {
        let words =
            ["erofsfuse", "-s", "-s", "-r", "-r", "-n", "--offset=1", "--offset=2", "i", "d"];
        let (mount, _) = ErofsfuseArguments::parse_from(words).into_mount();
        assert_eq!((mount.read.offset, mount.machine.jobs), (2, Some(1)));
        let words = ["mount.fuse.ferrofs", "i", "d", "-n", "-n", "-v", "-v", "-oa", "-ob"];
        assert_eq!(MountFuseArguments::parse_from(words).into_mount().0.options, ["a", "b"]);
        let words = ["mount.erofs", "i", "d", "-n", "-n", "-v", "-v", "-d9", "-d", "0"];
        let words = words.map(OsString::from);
        assert!(MountErofsArguments::read(&words).unwrap().into_mount().0.read.quiet);
    }

    #[test]
    fn mount_erofs_mounts_with_fuse_and_refuses_what_only_the_kernel_can_do() {
        let read = |words: &[&str]| {
            let words: Vec<OsString> =
                ["mount.erofs"].iter().chain(words).map(Into::into).collect();
            MountErofsArguments::read(&words).map(MountErofsArguments::into_mount)
        };
        for kind in ["erofs", "erofs.fuse", "erofs.local"] {
            let words = ["-t", kind, "image", "dir", "-o", "ro,fsoffset=4096", "-d", "3"];
            let (mount, invocation) = read(&words).unwrap();
            assert_eq!(invocation.by, MountCaller::MountErofs);
            assert_eq!(mount.options, ["ro,fsoffset=4096"]);
            assert!(mount.explain);
        }
        for (words, remedy) in [
            (&["-t", "erofs.nbd", "image", "dir"][..], "use -t erofs.fuse"),
            (&["-t", "ext4", "image", "dir"], "mount -i -t erofs"),
            (&["-u", "dir"], "umount MOUNTPOINT"),
            (&["--reattach", "dir"], "no NBD device"),
        ] {
            let refused = read(words).unwrap_err().to_string();
            assert!(refused.contains(remedy), "{refused}");
        }
    }

    #[test]
    fn flags_of_mount_mean_what_they_mean_there() {
        let words = ["mount.fuse.ferrofs", "image", "dir", "-sfn", "-v", "-o", "rw,noexec"];
        let (mount, invocation) = MountFuseArguments::parse_from(words).into_mount();
        assert!(invocation.is_sloppy && invocation.is_dry_run && mount.explain);
        assert_eq!(mount.options, ["rw,noexec"]);
        assert!(!mount.foreground);
    }
}

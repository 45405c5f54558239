//! The command line of erofsfuse, of erofs-utils: for scripts and runtimes that call it. It describes and translates;
//! the verb `mount` does the work. Called by `applets`, and by `xtask` for the manual.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::Parser;

use crate::amount::parse_bytes;
use crate::arguments::{
    MachineArguments, MountArguments, MountCaller, MountInvocation, ReadArguments, Verb,
};
use crate::help;

/// From this level on, messages are more than errors and warnings.
const VERBOSE_LEVEL: u8 = 3;

/// Show an EROFS image as a directory, by FUSE.
#[derive(Clone, Debug, Parser)]
#[command(name = "erofsfuse", version, after_help = help::EROFSFUSE, max_term_width = 100)]
#[command(before_help = concat!("erofsfuse ", env!("CARGO_PKG_VERSION")))]
#[command(arg_required_else_help = true)]
pub(crate) struct ErofsfuseArguments {
    /// The image file
    pub(crate) image: PathBuf,

    /// The directory to show it in
    #[arg(value_name = "MOUNTPOINT")]
    pub(crate) directory: PathBuf,

    /// Options as mount(8) has them
    #[arg(short = 'o', value_name = "OPT[,OPT...]")]
    pub(crate) options: Vec<OsString>,

    /// Stay in the foreground
    #[arg(short)]
    pub(crate) foreground: bool,

    /// Stay in the foreground, and print what was agreed with the kernel
    #[arg(short)]
    pub(crate) debug: bool,

    /// Decode on one thread
    #[arg(short)]
    pub(crate) single: bool,

    /// The image begins at this byte of IMAGE
    #[arg(long, value_name = "BYTES", value_parser = parse_bytes, default_value = "0")]
    pub(crate) offset: u64,

    /// An extra device of the image; give all of them, in the order of its device table
    #[arg(long = "device", value_name = "FILE")]
    pub(crate) devices: Vec<PathBuf>,

    /// What to tell: 0 errors only, from 3 on what was agreed with the kernel, too
    #[arg(long, value_name = "LEVEL", default_value_t = 2)]
    #[arg(value_parser = clap::value_parser!(u8).range(0..=9))]
    pub(crate) dbglevel: u8,
}

impl From<ErofsfuseArguments> for Verb {
    fn from(typed: ErofsfuseArguments) -> Self {
        Self::Mount(Box::new(MountArguments {
            options: typed.options,
            foreground: typed.foreground || typed.debug,
            explain: typed.debug || typed.dbglevel >= VERBOSE_LEVEL,
            machine: MachineArguments {
                jobs: typed.single.then_some(1),
                ..MachineArguments::default()
            },
            read: ReadArguments {
                offset: typed.offset,
                devices: typed.devices,
                no_checksum: false,
                quiet: typed.dbglevel == 0,
            },
            invocation: MountInvocation {
                by: MountCaller::Erofsfuse,
                ..MountInvocation::default()
            },
            ..MountArguments::new(typed.image, typed.directory)
        }))
    }
}

/// Mount an EROFS image by FUSE; for mount(8).
#[derive(Clone, Debug, Parser)]
#[command(name = "mount.fuse.ferrofs", version, max_term_width = 100)]
#[command(after_help = help::MOUNT_FUSE_FERROFS, arg_required_else_help = true)]
pub(crate) struct MountFuseArguments {
    /// The image file
    pub(crate) image: PathBuf,

    /// The directory to show it in
    #[arg(value_name = "DIR")]
    pub(crate) directory: PathBuf,

    /// Options as mount(8) has them
    #[arg(short = 'o', value_name = "OPT[,OPT...]")]
    pub(crate) options: Vec<OsString>,

    /// Leave options alone that are not known
    #[arg(short)]
    pub(crate) sloppy: bool,

    /// Open and check the image, and do not mount it
    #[arg(short)]
    pub(crate) fake: bool,

    /// Write no /etc/mtab, as is always so
    #[arg(short)]
    pub(crate) no_mtab: bool,

    /// Print what was asked of the system and what was granted
    #[arg(short)]
    pub(crate) verbose: bool,

    /// The type that was asked for
    #[arg(short = 't', value_name = "TYPE", value_parser = ["fuse.ferrofs", "ferrofs"])]
    pub(crate) kind: Option<String>,
}

impl From<MountFuseArguments> for Verb {
    fn from(typed: MountFuseArguments) -> Self {
        Self::Mount(Box::new(MountArguments {
            options: typed.options,
            explain: typed.verbose,
            invocation: MountInvocation {
                by: MountCaller::MountProgram,
                is_sloppy: typed.sloppy,
                is_dry_run: typed.fake,
            },
            ..MountArguments::new(typed.image, typed.directory)
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mount(words: &[&str]) -> MountArguments {
        match ErofsfuseArguments::parse_from(words).into() {
            Verb::Mount(mount) => *mount,
            other => panic!("{other:?}"),
        }
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
    fn levels_of_debugging_decide_what_is_told() {
        let saw = |words: &[&str]| {
            let words = [&["erofsfuse", "image", "dir"], words].concat();
            let typed = mount(&words);
            (typed.foreground, typed.explain, typed.read.quiet)
        };
        assert_eq!(saw(&[]), (false, false, false));
        assert_eq!(saw(&["-d"]), (true, true, false));
        assert_eq!(saw(&["--dbglevel=0"]), (false, false, true));
        assert_eq!(saw(&["--dbglevel=3"]), (false, true, false));
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
    fn flags_of_mount_mean_what_they_mean_there() {
        let words = ["mount.fuse.ferrofs", "image", "dir", "-sfn", "-v", "-o", "rw,noexec"];
        let verb = MountFuseArguments::parse_from(words).into();
        let Verb::Mount(mount) = verb else { panic!("{verb:?}") };
        assert!(mount.invocation.is_sloppy && mount.invocation.is_dry_run && mount.explain);
        assert_eq!(mount.options, ["rw,noexec"]);
        assert!(!mount.foreground);
    }
}

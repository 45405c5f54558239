//! The command line of mount.fuse.ferrofs: what mount(8) calls for the type `fuse.ferrofs`. It describes and
//! translates; the verb `mount` does the work. Called by `applets`, and by `xtask` for the manual.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::Parser;

use crate::arguments::{MountArguments, MountCaller, MountInvocation, Verb};
use crate::help;

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

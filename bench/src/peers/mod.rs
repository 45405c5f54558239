//! The experiments with peers: `extract`, `check`, `mount`, `random` and `build`, each doing the same work with our program
//! and with those that others made, in turn. Every program runs as a process of its own, ours as well, and is measured
//! from outside.

mod bed;
mod build;
mod caches;
mod check;
mod column;
mod discard;
mod extract;
mod findings;
mod images;
mod interleave;
mod mount;
mod mounted;
mod part;
mod program;
mod random;
mod reader;
mod sheet;
mod spent;
mod squashfs;
mod worded;
mod work;

pub(crate) use build::{BuildArguments, run as build};
pub(crate) use check::{CheckArguments, run as check};
pub(crate) use extract::{ExtractArguments, run as extract};
pub(crate) use mount::{MountArguments, run as mount};
pub(crate) use program::find_ours;
pub(crate) use random::{RandomArguments, run as random};
pub(crate) use reader::{ReaderArguments, read};
pub(crate) use squashfs::make_squashfs;

/// The experiments that run our own program and peers.
pub(crate) const EXPERIMENTS: [&str; 5] = ["extract", "check", "mount", "random", "build"];
/// Those that take a squashfs image, too.
pub(crate) const WITH_SQUASHFS: [&str; 2] = ["extract", "mount"];

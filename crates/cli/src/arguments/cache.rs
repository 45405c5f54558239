//! The command line of `cache`. It only describes, as its parent.

use std::path::PathBuf;

use clap::{Args, ValueEnum};

use crate::amount::{parse_age, parse_bytes};
use crate::help;

/// List, prune or verify the cache of remote images.
#[derive(Args, Debug)]
#[command(after_help = help::CACHE)]
pub(crate) struct CacheArguments {
    /// What to do
    #[arg(value_enum)]
    pub(crate) action: CacheAction,

    /// For prune: evict the least recently used data, until the cache takes at most BYTES on the
    /// disk; the suffixes k, m and g mean KiB, MiB and GiB
    #[arg(long, value_name = "BYTES", value_parser = parse_bytes)]
    pub(crate) to: Option<u64>,

    /// For prune: remove images that were not used for TIME: a number of seconds, or, with the
    /// suffix m, h or d, a number of minutes, hours or days, such as 90m, 12h or 30d
    #[arg(long, value_name = "TIME", value_parser = parse_age, conflicts_with = "to")]
    pub(crate) older_than: Option<u64>,

    /// Directory of the cache [default: $XDG_CACHE_HOME/ferrofs or ~/.cache/ferrofs; for root
    /// without a home directory, /var/cache/ferrofs]
    #[arg(long, value_name = "DIR")]
    pub(crate) cache: Option<PathBuf>,

    /// Print one line with a JSON object for each image; for prune and verify one object
    #[arg(long)]
    pub(crate) json: bool,

    /// Print errors only: no summary
    #[arg(short, long)]
    pub(crate) quiet: bool,
}

/// What to do with the cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum CacheAction {
    /// Show each image with its size, its space on the disk, and the time since its last use
    List,
    /// Remove all images that are not in use, or only what --to or --older-than selects
    Prune,
    /// Compare every cached part with its checksum, and remove damaged parts
    Verify,
}

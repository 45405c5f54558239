//! The launches experiment: real programs started from a mount beside CPU hogs, with the daemon's threads bound to no
//! CPU, bound, and bound and raised. In each round each kind of mount is made anew, so that nothing of it is in the page
//! cache (the image is); 16 programs are started, and the last one is measured. As in the seed's table, a sample of the
//! scheduling latency is the sum over one launch.

mod column;
pub(crate) mod daemon;
pub(crate) mod launcher;
mod peer;
pub(crate) mod programs;
mod run_delay;
mod tables;

use std::io::{Write, copy, sink};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use clap::ValueEnum;
use ferrofs_image::SyncDecompress;
use ferrofs_workers::cpus::AvailableCpus;
use serde::Serialize;

use crate::arguments::LaunchesArguments;
use crate::hogs::Hogs;
use crate::report::Report;
use crate::steal::Undisturbed;
use column::{Column, System};
use daemon::Threads;
pub(crate) use launcher::{LauncherArguments, launch_all};

/// Rounds of a quick run.
const QUICK_ITERATIONS: u16 = 2;

/// Who decodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Decoding {
    /// Workers, always: the seed's subject
    Workers,
    /// As a mount has it: whoever answers the kernel, with the help of workers
    Default,
}

impl Decoding {
    pub(crate) const ALL: [Self; 2] = [Self::Workers, Self::Default];

    fn mode(self) -> SyncDecompress {
        match self {
            Self::Workers => SyncDecompress::ForceOff,
            Self::Default => SyncDecompress::Auto,
        }
    }

    fn title(self) -> &'static str {
        match self {
            Self::Workers => "workers decode",
            Self::Default => "the default",
        }
    }
}

/// Runs the experiment.
///
/// # Errors
/// Without root or FUSE, or when the image lacks a program.
pub(crate) fn run(
    arguments: &LaunchesArguments,
    is_quick: bool,
    out: &mut dyn Write,
) -> Result<Report> {
    let mut report = Report::new("launches", arguments)?;
    let most = if is_quick { QUICK_ITERATIONS } else { u16::MAX };
    let mut columns = columns(arguments);
    let directory = Directory::make()?;
    let _hogs = Hogs::start(AvailableCpus::read().cpus(), arguments.hogs.into())?;
    let rounds = arguments.iterations.min(most);
    writeln!(out, "beside {} hogs a CPU, {rounds} rounds", arguments.hogs)?;
    let mut undisturbed = Undisturbed::default();
    let count = columns.len();
    // Whoever is first in a round differs from round to round.
    let turns = (0..usize::from(rounds))
        .flat_map(|round| (0..count).map(move |place| (round + place) % count));
    let found = undisturbed.in_turn_by(turns, arguments.limit.deadline(), |turn| {
        let column = columns.get_mut(turn).context("a turn of no column")?;
        let round = column.round(arguments, &directory.0)?;
        let stolen = round.stolen;
        Ok((round, stolen))
    })?;
    for (turn, round) in found {
        columns.get_mut(turn).context("a turn of no column")?.add(&round);
    }
    for decoding in &arguments.decoding {
        tables::add(&mut report, *decoding, &columns)?;
    }
    columns.iter().for_each(|column| column.add_series(&mut report));
    report.add_remark(format!("last launches: {undisturbed}"));
    Ok(report)
}

fn columns(arguments: &LaunchesArguments) -> Vec<Column> {
    let ours = arguments.decoding.iter().flat_map(|decoding| {
        Threads::ALL.into_iter().map(|threads| System::Ours(threads, *decoding))
    });
    let peers = arguments.peers.iter();
    let peers =
        peers.flat_map(|folder| [System::Kernel, System::Erofsfuse(folder.join("erofsfuse"))]);
    ours.chain(peers).map(Column::new).collect()
}

fn read_into_page_cache(image: &Path) -> Result<()> {
    let what = || format!("reading {}", image.display());
    let mut file = std::fs::File::open(image).with_context(what)?;
    copy(&mut file, &mut sink()).with_context(what)?;
    Ok(())
}

/// A directory to mount on, which goes at the end.
#[derive(Debug)]
pub(crate) struct Directory(pub(crate) PathBuf);

impl Directory {
    pub(crate) fn make() -> Result<Self> {
        let path = std::env::temp_dir().join(format!("ferrofs-launches-{}", std::process::id()));
        std::fs::create_dir(&path).with_context(|| format!("making {}", path.display()))?;
        Ok(Self(path))
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        if let Err(error) = std::fs::remove_dir(&self.0) {
            writeln!(std::io::stderr(), "{} is left: {error}", self.0.display())
                .unwrap_or_default();
        }
    }
}

//! The page-pool experiment: real programs started from a mount, all of it in a memory cgroup at its limit, with more
//! and less memory set aside for decoding. A sample is what the last launch spent in getting memory to decode into from
//! the system, as in the seed's table. This starts the process in the group and tells what it found.

mod inside;
mod table;

use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use clap::Args;
use serde::Serialize;

use crate::deadline::TimeLimit;
use crate::pages::group::MemoryGroup;
use crate::pages::limit::Process;
use crate::report::Report;
pub(crate) use inside::{InsideArguments, measure};

/// Rounds of a quick run.
const QUICK_ROUNDS: u16 = 2;

/// What is launched, and how often.
#[derive(Debug, Clone, Args, Serialize)]
pub(crate) struct PagePoolArguments {
    /// Images of a Debian system with perl, git, gcc and python3, such as one with an LZ4 window of 64 KiB and one with
    /// 16 KiB
    #[arg(required = true, value_name = "IMAGE")]
    pub(crate) images: Vec<PathBuf>,
    /// Pages of 4 KiB that stay resident for decoding, a row for each number
    #[arg(long, value_name = "N", value_delimiter = ',', default_value = "0,64,256")]
    pub(crate) reserves: Vec<u32>,
    /// Rounds: a fresh mount for each image and reserve, 16 programs on each; 2 at most with --quick
    #[arg(short, long, value_name = "N", default_value_t = 20)]
    #[arg(value_parser = clap::value_parser!(u16).range(2..=10_000))]
    pub(crate) iterations: u16,
    /// Memory that the group may use, in MiB
    #[arg(long, value_name = "MIB", default_value_t = 128)]
    #[arg(value_parser = clap::value_parser!(u32).range(96..=1 << 20))]
    pub(crate) limit: u32,
    /// Memory of the mount in MiB, as `ferrofs mount --memory`
    #[arg(long, value_name = "MIB", default_value_t = 32)]
    #[arg(value_parser = clap::value_parser!(u32).range(20..=1 << 20))]
    pub(crate) memory: u32,
    /// Folder on a disk for a file of 128 MiB, whose pages fill the group; the system's temporary folder if none is
    /// named
    #[arg(long, value_name = "DIR")]
    pub(crate) folder: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) time: TimeLimit,
}

/// Runs the experiment.
///
/// # Errors
/// Without root, FUSE or a memory cgroup, when an image lacks a program, or when the group was not at its limit.
pub(crate) fn run(
    arguments: &PagePoolArguments,
    is_quick: bool,
    out: &mut dyn Write,
) -> Result<Report> {
    let mut report = Report::new("page-pool", arguments)?;
    let rounds = arguments.iterations.min(if is_quick { QUICK_ROUNDS } else { u16::MAX });
    let (limit, memory) = (arguments.limit, arguments.memory);
    writeln!(
        out,
        "{rounds} rounds in a group of {limit} MiB, a mount with {memory} MiB of its own"
    )?;
    let group = MemoryGroup::create(u64::from(limit) << 20)?;
    let mut process =
        Process(command(arguments, rounds)?.spawn().context("starting the launches")?);
    group.admit(process.0.id())?;
    let mut start = process.0.stdin.take().context("a process without an input")?;
    start.write_all(b"!").context("starting the launches")?;
    let mut answer = String::new();
    let output = process.0.stdout.take().context("a process without an output")?;
    BufReader::new(output).read_line(&mut answer).context("reading from the launches")?;
    let is_full = group.ensure_full();
    drop(start);
    let status = process.0.wait().context("waiting for the launches")?;
    ensure!(status.success(), "the launches failed: {status}");
    is_full?;
    let columns: Vec<inside::Column> =
        serde_json::from_str(&answer).context("reading the launches")?;
    table::add(&mut report, &columns)?;
    let taken = columns.first().map_or(0, |column| column.launch.values().count());
    if taken < usize::from(rounds) {
        report.add_remark(format!("{taken} of {rounds} rounds: the time was over"));
    }
    report.add_remark(format!("the limit was met {} times", group.limit_hits()));
    Ok(report)
}

fn command(arguments: &PagePoolArguments, rounds: u16) -> Result<Command> {
    let mut command = Command::new(std::env::current_exe().context("finding this program")?);
    let folder = arguments.folder.clone().unwrap_or_else(std::env::temp_dir);
    command.arg("pool-launches").args(&arguments.images).arg("--folder").arg(folder);
    let reserves: Vec<_> = arguments.reserves.iter().map(u32::to_string).collect();
    command.args(["--reserves", &reserves.join(",")]);
    command.args(["--rounds", &rounds.to_string(), "--memory", &arguments.memory.to_string()]);
    command.args(["--ballast", &(arguments.limit / 4).to_string()]);
    command.args(arguments.time.word());
    command.stdin(Stdio::piped()).stdout(Stdio::piped());
    Ok(command)
}

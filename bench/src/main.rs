//! `ferrofs-bench`: experiments that measure ferrofs and its peers on this machine and judge the figures by thresholds.
//! Parses the command line, runs one experiment, prints and writes its report.

mod all;
mod baseline;
mod case;
mod cgroup;
mod child;
mod commands;
mod daemon;
mod decodes;
mod experiment;
mod frames;
mod image_info;
mod images;
mod jobs;
mod launches;
mod machine;
mod mounted;
mod mounts;
mod ours;
mod page;
mod page_pool;
mod page_store;
mod pages;
mod plot;
mod process;
mod procfs;
mod programs;
mod reader;
mod reads;
mod report;
mod rounds;
mod row;
mod rows;
mod scheduling;
mod simulation;
mod statistics;
mod sync;
mod table;
mod trees;
mod windows;
mod workqueue;

use std::io::{Write, stderr, stdout};
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Result, bail};
use clap::{Args, Parser, Subcommand};

use case::Case;
use child::{ChildArguments, Role};
use experiment::{Context, Experiment};
use report::Report;

/// The exit status of a run that was too noisy.
const TOO_NOISY: u8 = 3;
const EXIT_STATUS: &str = "Exit status: 0 when figures were printed, 1 when the experiment failed, 2 for a wrong \
command line, 3 when the run was too noisy and is refused";

/// Experiments that measure ferrofs beside its peers
#[derive(Debug, Parser)]
#[command(version, after_help = EXIT_STATUS)]
struct CommandLine {
    /// Fewer and smaller runs: shows that it works, proves no figure
    #[arg(long, global = true)]
    quick: bool,
    /// Write every sample as JSON to this file
    #[arg(long, global = true, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Write EXPERIMENT.json, EXPERIMENT.md and its plots (EXPERIMENT.svg, EXPERIMENT-2.svg ...) to this folder
    #[arg(long, global = true, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Print figures even if repetitions spread too far
    #[arg(long, global = true)]
    noisy_ok: bool,
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Throughput of one submitter against the number of workers, as QEMU's threaded-workqueue-bench
    Workqueue(workqueue::WorkqueueArguments),
    /// Time from submission to start, on an idle machine and beside load generators
    Scheduling(scheduling::SchedulingArguments),
    /// Time to fault memory in with one thread and with more, and the cost of unequal chunks
    Jobs(jobs::JobsArguments),
    /// Cost of a frame from the reserve, alone and in a memory cgroup at its limit (needs root)
    #[command(visible_alias = "relaxed")]
    Pages(pages::PagesArguments),
    /// Reads the files of an image front to back, by one reader and by many at a time
    Reads(reads::ReadsArguments),
    /// Starts programs from a mount beside load generators (needs root)
    Launches(launches::LaunchesArguments),
    /// Starts programs from a mount in a memory cgroup at its limit, with and without a reserve (needs root)
    PagePool(page_pool::PagePoolArguments),
    /// Counts the bounce frames that the extents of images need, which their LZ4 windows bound
    #[command(visible_alias = "window")]
    Windows(windows::WindowsArguments),
    /// Runs every experiment and writes report.html: 15 minutes at most on 2 CPUs
    All(all::AllArguments),
    /// Extracts images, beside fsck.erofs and unsquashfs
    Extract(commands::ExtractArguments),
    /// Checks images, beside fsck.erofs
    Check(commands::CheckArguments),
    /// Peak memory of extract and check with --memory, alone and in a memory cgroup of that size
    Memory(images::MemoryArguments),
    /// Time and threads of extract and check where one CPU is available (needs root)
    Quota(images::QuotaArguments),
    /// Reads through mounts, beside the kernel, erofsfuse and squashfuse_ll
    Mount(mounts::MountArguments),
    /// Reads blocks at random through mounts, beside the kernel and erofsfuse
    Random(mounts::RandomArguments),
    /// Memory of a mount under many readers, and its cost while idle
    MountMemory(mounts::MountMemoryArguments),
    /// Counts how often each cluster is decoded, beside fsck.erofs and erofsfuse
    Decodes(decodes::DecodesArguments),
    /// Builds images, beside mkfs.erofs and mksquashfs
    Build(commands::BuildArguments),
    /// Queues and jobs over simulated CPUs, for more CPUs than this machine has
    Model(simulation::ModelArguments),
    /// Prints what an experiment measures, the expected result and its thresholds
    Describe(DescribeArguments),
    #[command(hide = true)]
    Child(ChildArguments),
}

#[derive(Debug, Clone, Args)]
struct DescribeArguments {
    /// All if none is named
    #[arg(value_name = "EXPERIMENT", value_parser = Case::names().collect::<Vec<_>>())]
    experiments: Vec<String>,
}

impl Verb {
    /// The experiment and its name.
    fn experiment(&self) -> Option<(&'static str, &dyn Experiment)> {
        Some(match self {
            Self::Workqueue(experiment) => ("workqueue", experiment),
            Self::Scheduling(experiment) => ("scheduling", experiment),
            Self::Jobs(experiment) => ("jobs", experiment),
            Self::Pages(experiment) => ("pages", experiment),
            Self::Reads(experiment) => ("reads", experiment),
            Self::Launches(experiment) => ("launches", experiment),
            Self::PagePool(experiment) => ("page-pool", experiment),
            Self::Windows(experiment) => ("windows", experiment),
            Self::Extract(experiment) => ("extract", experiment),
            Self::Check(experiment) => ("check", experiment),
            Self::Memory(experiment) => ("memory", experiment),
            Self::Quota(experiment) => ("quota", experiment),
            Self::Mount(experiment) => ("mount", experiment),
            Self::Random(experiment) => ("random", experiment),
            Self::MountMemory(experiment) => ("mount-memory", experiment),
            Self::Decodes(experiment) => ("decodes", experiment),
            Self::Build(experiment) => ("build", experiment),
            Self::Model(experiment) => ("model", experiment),
            Self::All(_) | Self::Describe(_) | Self::Child(_) => return None,
        })
    }

    /// The requirements that are not met.
    fn missing(&self) -> Option<String> {
        let (_, experiment) = self.experiment()?;
        machine::missing(&experiment.requirements())
    }
}

/// The requirements of such a command line that are not met.
fn missing_for(words: &[String]) -> Result<Option<String>> {
    let words = std::iter::once("ferrofs-bench").chain(words.iter().map(String::as_str));
    Ok(CommandLine::try_parse_from(words)?.verb.missing())
}

fn main() -> ExitCode {
    match run(&CommandLine::parse()) {
        Ok(code) => code,
        Err(error) => {
            // If even stderr is closed nobody can be told.
            writeln!(stderr(), "ferrofs-bench: {error:#}").unwrap_or_default();
            ExitCode::FAILURE
        }
    }
}

fn run(line: &CommandLine) -> Result<ExitCode> {
    let mut out = stdout().lock();
    let Some((name, experiment)) = line.verb.experiment() else {
        match &line.verb {
            Verb::All(settings) => {
                all::run(settings, line.quick, line.out.as_deref(), missing_for, &mut out)?;
            }
            Verb::Describe(settings) => case::describe(&settings.experiments, &mut out)?,
            Verb::Child(arguments) => {
                drop(out);
                run_child(arguments)?;
            }
            _ => {}
        }
        return Ok(ExitCode::SUCCESS);
    };
    if let Some(missing) = line.verb.missing() {
        bail!("this {missing}");
    }
    let report = Report::new(name, &experiment.settings()?)?;
    let mut context = Context::new(report, line.quick, &mut out);
    experiment.run(&mut context)?;
    let report = context.finish()?;
    conclude(&report, line, &mut out)
}

fn run_child(arguments: &ChildArguments) -> Result<()> {
    match arguments.role {
        Role::Load => child::generate_load(arguments),
        Role::Launcher => daemon::launch_all(&arguments.start()?),
        Role::Reader => reader::read(&arguments.start()?),
        Role::Frames => {
            let task = arguments.start()?;
            child::answer(|| frames::measure(&task))
        }
        Role::PoolLaunches => {
            let task = arguments.start()?;
            child::answer(|| page_pool::measure(&task))
        }
    }
}

/// Prints and writes the report. A refused run is written, marked, but its figures are not printed.
fn conclude(report: &Report, line: &CommandLine, out: &mut dyn Write) -> Result<ExitCode> {
    let is_refused = report.is_too_noisy() && !line.noisy_ok;
    if is_refused {
        report.print_noise(out)?;
    } else {
        report.print(out)?;
    }
    if let Some(path) = &line.json {
        report.write_json(path)?;
    }
    if let Some(folder) = &line.out {
        report.write_folder(folder)?;
    }
    Ok(if is_refused { ExitCode::from(TOO_NOISY) } else { ExitCode::SUCCESS })
}

#[cfg(test)]
mod tests {
    use std::process::ExitCode;

    use clap::{Command, CommandFactory, Parser};

    use super::{CommandLine, TOO_NOISY, Verb, conclude};
    use crate::case::Case;
    use crate::report::Report;
    use crate::rows::RowName;
    use crate::statistics::Samples;
    use crate::table::Table;

    fn parse(words: &str) -> Result<CommandLine, clap::Error> {
        CommandLine::try_parse_from(words.split_whitespace())
    }

    #[test]
    fn a_noisy_run_is_refused_unless_its_figures_are_wanted() {
        let mut report = Report::new("jobs", &()).unwrap();
        report.table(Table::new("figures", "a"));
        report.judge_noise("ours", &Samples::from_iter([1.0, 9.0]), 0.5);
        let refused = ("bench jobs", ExitCode::from(TOO_NOISY), false);
        let wanted = ("bench jobs --noisy-ok", ExitCode::SUCCESS, true);
        for (words, code, has_figures) in [refused, wanted] {
            let mut text = Vec::new();
            let found = conclude(&report, &parse(words).unwrap(), &mut text).unwrap();
            let text = String::from_utf8(text).unwrap();
            assert_eq!(format!("{found:?}"), format!("{code:?}"), "{words}");
            assert_eq!(text.contains("**figures**"), has_figures, "{text}");
            assert!(text.contains("too noisy: ours spreads by 160 %"), "{text}");
        }
    }

    #[test]
    fn the_description_is_sound() {
        CommandLine::command().debug_assert();
    }

    #[test]
    fn the_letters_of_qemu_are_understood() {
        let workqueue = |words: &str| {
            let verb = parse(&format!("bench workqueue {words}")).map(|line| line.verb);
            verb.map(|verb| match verb {
                Verb::Workqueue(found) => found,
                other => panic!("{other:?}"),
            })
        };
        let found = workqueue("-t 1,2,64 -r 8 -m 2 -c 5 --rows original,rayon --quick").unwrap();
        let numbers = (found.threads, found.requests, found.mebibytes);
        assert_eq!(numbers, (vec![1, 2, 64], 8, 2048));
        assert_eq!((found.rows, found.pin), (vec![RowName::Original, RowName::Rayon], None));
        let memory = |typed: &str| workqueue(&format!("-m {typed}")).map(|found| found.mebibytes);
        assert_eq!((memory("256M").unwrap(), memory("1024").unwrap()), (256, 1 << 20));
        let refused =
            |typed: &str| memory(typed).is_err_and(|error: clap::Error| error.exit_code() == 2);
        assert!(["0", "0M", "1025", "-1", "4194304", "M", "1G"].into_iter().all(refused));
    }

    #[test]
    fn every_experiment_has_a_case_and_every_case_an_experiment() {
        let command = CommandLine::command();
        let shown = command.get_subcommands().filter(|command| !command.is_hide_set());
        let shown = shown.map(Command::get_name).filter(|name| !["describe", "all"].contains(name));
        let mut experiments: Vec<_> = shown.collect();
        experiments.sort_unstable();
        let mut cases: Vec<_> = Case::names().collect();
        cases.sort_unstable();
        assert_eq!(experiments, cases);
        let files = std::fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/cases")).unwrap();
        assert_eq!(files.count(), cases.len());
    }

    #[test]
    fn senseless_numbers_are_refused() {
        for words in ["workqueue -t 0", "workqueue -r 0", "workqueue -m 0", "workqueue -c 0"] {
            assert!(parse(&format!("bench {words}")).is_err(), "{words}");
        }
        for words in ["workqueue -t x", "workqueue --rows nothing", "jobs -t 0", ""] {
            assert!(parse(&format!("bench {words}")).is_err(), "{words}");
        }
    }
}

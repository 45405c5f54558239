//! `ferrofs-bench`: experiments that measure ferrofs and its peers on this machine and judge the figures by thresholds.
//! Parses the command line, runs one experiment, prints and writes its report.

mod all;
mod case;
mod cgroup;
mod child;
mod commands;
mod daemon;
mod experiment;
mod image_info;
mod jobs;
mod launches;
mod machine;
mod mounted;
mod mounts;
mod page_store;
mod pages;
mod plot;
mod process;
mod programs;
mod queues;
mod reader;
mod reads;
mod report;
mod scheduling;
mod simulation;
mod slow_storage;
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
use experiment::{Context, Experiment, print};
use machine::missing;
use report::Report;

/// The exit status of a run that was too noisy.
const TOO_NOISY: u8 = 3;
const EXIT_STATUS: &str = "Exit status: 0 figures were printed, even if they miss thresholds; 1 the experiment ended with an \
error; 2 wrong usage; 3 the run was too noisy, so its figures are not printed";

macro_rules! experiments {
    ($($name:literal: $variant:ident($arguments:ty),)+) => {
        /// Names, and cases in TOML, in the order in which `all` runs them.
        pub(crate) const EXPERIMENTS: &[(&str, &str)] =
            &[$(($name, include_str!(concat!("../cases/", $name, ".toml")))),+];

        /// One of the experiments.
        #[derive(Debug, Subcommand)]
        enum Run {
            $(#[command(name = $name, about = Case::of($name).map(|case| case.title).unwrap_or_default())]
            $variant(ExperimentArguments<$arguments>),)+
        }

        impl Run {
            /// Its name, its arguments and what is done with its report.
            fn experiment(&self) -> (&'static str, &dyn Experiment, &ReportOptions) {
                match self {
                    $(Self::$variant(ExperimentArguments { arguments, report }) => {
                        ($name, arguments, report)
                    })+
                }
            }
        }
    };
}

experiments! {
    "workqueue": Workqueue(workqueue::WorkqueueArguments),
    "scheduling": Scheduling(scheduling::SchedulingArguments),
    "launches": Launches(launches::LaunchesArguments),
    "pages": Pages(pages::PagesArguments),
    "page-pool": PagePool(launches::PagePoolArguments),
    "windows": Windows(windows::WindowsArguments),
    "jobs": Jobs(jobs::JobsArguments),
    "model": Model(simulation::ModelArguments),
    "reads": Reads(reads::ReadsArguments),
    "extract": Extract(commands::ExtractArguments),
    "check": Check(commands::CheckArguments),
    "mount": Mount(mounts::MountArguments),
    "random": Random(mounts::RandomArguments),
    "slow": Slow(mounts::SlowArguments),
    "start": Start(mounts::StartArguments),
    "build": Build(commands::BuildArguments),
    "memory": Memory(commands::CheckArguments),
    "mount-memory": MountMemory(mounts::MountMemoryArguments),
    "quota": Quota(commands::CheckArguments),
    "decodes": Decodes(reads::DecodesArguments),
}

/// Benchmark ferrofs and comparable programs, and check the results against thresholds
#[derive(Debug, Parser)]
#[command(version, after_help = EXIT_STATUS)]
struct CommandLine {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Args)]
struct ExperimentArguments<A: Args> {
    #[command(flatten)]
    arguments: A,
    #[command(flatten)]
    report: ReportOptions,
}

#[derive(Debug, Args)]
struct ReportOptions {
    /// Make fewer and smaller runs, to test that an experiment works; do not draw conclusions from their figures
    #[arg(long)]
    quick: bool,
    /// Write the results to the folder DIR. EXPERIMENT.json contains every sample, EXPERIMENT.md is
    /// the report, and EXPERIMENT.svg, EXPERIMENT-2.svg ... are its plots; EXPERIMENT is the name
    /// of the experiment
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Print figures even if they differ too much between repetitions
    #[arg(long)]
    noisy_ok: bool,
}

#[derive(Debug, Subcommand)]
enum Verb {
    #[command(flatten)]
    Run(Run),
    /// Run all experiments and write report.html. Together, they take at most 15 minutes on 2 CPUs
    All(all::AllArguments),
    /// Print what an experiment measures, the expected result and its thresholds, without running it
    Describe {
        /// The experiments to describe [default: all]
        #[arg(value_name = "EXPERIMENT", value_parser = experiment_names())]
        experiments: Vec<String>,
    },
    #[command(hide = true)]
    Child(ChildArguments),
}

impl Run {
    fn missing(&self) -> Result<Option<String>> {
        let (name, experiment, _) = self.experiment();
        Ok(missing(&[Case::of(name)?.requires, experiment.requirements()].concat()))
    }
}

pub(crate) fn experiment_names() -> Vec<&'static str> {
    EXPERIMENTS.iter().map(|(name, _)| *name).collect()
}

/// The requirements of such a command line that are not met.
fn missing_for(words: &[String]) -> Result<Option<String>> {
    let words = std::iter::once("ferrofs-bench").chain(words.iter().map(String::as_str));
    Ok(match CommandLine::try_parse_from(words)?.verb {
        Verb::Run(run) => run.missing()?,
        _ => None,
    })
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
    let mut out = stdout();
    match &line.verb {
        Verb::All(settings) => all::run(settings, &mut out)?,
        Verb::Describe { experiments } => {
            let is_meant =
                |name: &str| experiments.is_empty() || experiments.iter().any(|one| one == name);
            for name in experiment_names().into_iter().filter(|name| is_meant(name)) {
                print(&mut out, format_args!("# {name}: {}\n", Case::of(name)?))?;
            }
        }
        Verb::Child(arguments) => match arguments.role {
            Role::Load => child::generate_load(arguments)?,
            Role::Launcher => daemon::launch_all(&arguments.start()?)?,
            Role::Reader => reader::read(&arguments.start()?)?,
        },
        Verb::Run(run) => {
            let (name, experiment, options) = run.experiment();
            if let Some(missing) = run.missing()? {
                bail!("this {missing}");
            }
            let mut context = Context::new(Report::new(name)?, options.quick, &mut out);
            experiment.run(&mut context)?;
            let report = context.finish()?;
            return conclude(&report, options, &mut out);
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Prints and writes the report. A refused run is written, marked, but its figures are not printed.
fn conclude(report: &Report, options: &ReportOptions, out: &mut dyn Write) -> Result<ExitCode> {
    let is_refused = !report.noise.is_empty() && !options.noisy_ok;
    // The folder is written even if nobody reads this.
    if is_refused {
        report.noise.iter().try_for_each(|noise| print(out, format_args!("{noise}\n")))?;
    } else {
        print(out, report)?;
    }
    if let Some(folder) = &options.out {
        report.write_folder(folder)?;
    }
    Ok(if is_refused { ExitCode::from(TOO_NOISY) } else { ExitCode::SUCCESS })
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    fn parse(words: &str) -> Result<CommandLine, clap::Error> {
        CommandLine::try_parse_from(words.split_whitespace())
    }

    #[test]
    fn a_noisy_run_is_refused_unless_its_figures_are_wanted() {
        let mut report = Report::new("jobs").unwrap();
        report.remark("figures");
        report.evaluate_noise("ours", &statistics::Samples(vec![1.0, 9.0]));
        let refused = ("bench jobs", ExitCode::from(TOO_NOISY), false);
        let wanted = ("bench jobs --noisy-ok", ExitCode::SUCCESS, true);
        for (words, code, has_figures) in [refused, wanted] {
            let mut text = Vec::new();
            let Verb::Run(run) = parse(words).unwrap().verb else { panic!("{words}") };
            let (_, _, options) = run.experiment();
            let found = conclude(&report, options, &mut text).unwrap();
            let text = String::from_utf8(text).unwrap();
            assert_eq!(format!("{found:?}"), format!("{code:?}"), "{words}");
            assert_eq!(text.contains("figures"), has_figures, "{text}");
            assert!(text.contains("too noisy: ours spreads by 160 %"), "{text}");
        }
    }

    #[test]
    fn the_description_is_sound_and_senseless_words_are_refused() {
        CommandLine::command().debug_assert();
        parse("bench workqueue -t 1,2,64 -r 8 -m 2 -c 5 --rows original,rayon --quick").unwrap();
        let senseless = "workqueue -t 0|workqueue -r 0|workqueue -m 0|workqueue -m 1025|workqueue -m M|workqueue -c 0|\
            workqueue -t x|workqueue --rows nothing|jobs -t 0|model --cpus 513|model memory|describe all|build . --only lz4|\
            describe --quick|describe --noisy-ok|describe --out x|all --noisy-ok|--quick pages|";
        for words in senseless.split('|') {
            let refused = parse(&format!("bench {words}")).unwrap_err();
            assert_eq!(refused.exit_code(), 2, "{words}");
        }
    }
}

//! `ferrofs-bench`: experiments that reproduce the tables behind ferrofs on the machine at hand, with
//! peers on the same work. Reads the arguments, runs one experiment, and prints and keeps its report.

mod arguments;
mod baseline;
mod deflater;
mod hogs;
mod jobs;
mod launches;
mod machine;
mod page_store;
mod pages;
mod reads;
mod report;
mod rows;
mod scheduling;
mod statistics;
mod table;
mod usage;
mod windows;
mod workqueue;

use std::io::{Write, stderr, stdout};
use std::process::ExitCode;

use anyhow::Result;
use clap::Parser;

use arguments::{Arguments, Experiment};

fn main() -> ExitCode {
    match run(&Arguments::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // If even stderr is closed there is nobody left to tell.
            writeln!(stderr(), "ferrofs-bench: {error:#}").unwrap_or_default();
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: &Arguments) -> Result<()> {
    let mut out = stdout().lock();
    let mut report = match &arguments.experiment {
        Experiment::Workqueue(settings) => workqueue::run(settings, arguments.quick, &mut out)?,
        Experiment::Scheduling(settings) => scheduling::run(settings, arguments.quick, &mut out)?,
        Experiment::Jobs(settings) => jobs::run(settings, arguments.quick, &mut out)?,
        Experiment::Pages(settings) => pages::run(settings, arguments.quick, &mut out)?,
        Experiment::Reads(settings) => reads::run(settings, arguments.quick, &mut out)?,
        Experiment::Launches(settings) => launches::run(settings, arguments.quick, &mut out)?,
        Experiment::Windows(settings) => windows::run(settings, &mut out)?,
        Experiment::UnderLimit(settings) => return pages::measure(settings),
        Experiment::Hog(settings) => return hogs::burn(settings),
        Experiment::Launcher(settings) => return launches::launch_all(settings),
    };
    report.print(&mut out)?;
    if let Some(path) = &arguments.json {
        report.write_json(path)?;
    }
    if let Some(folder) = &arguments.out {
        report.write_folder(folder)?;
    }
    Ok(())
}

//! `ferrofs-bench`: experiments that reproduce the tables behind ferrofs on the machine at hand, with
//! peers on the same work. Reads the arguments, runs one experiment, and prints and keeps its report.

mod all;
mod arguments;
mod baseline;
mod case;
mod claim;
mod deflater;
mod hogs;
mod jobs;
mod launches;
mod machine;
mod model;
mod need;
mod page;
mod page_pool;
mod page_store;
mod pages;
mod peers;
mod plot;
mod reads;
mod report;
mod rows;
mod scheduling;
mod statistics;
mod sync;
mod table;
mod usage;
mod windows;
mod workqueue;

use std::io::{Write, stderr, stdout};
use std::process::ExitCode;

use anyhow::{Result, bail};
use clap::Parser;

use arguments::{Arguments, Experiment};
use report::Report;

/// The process ends so when repetitions were too far apart for any figure.
const TOO_NOISY: u8 = 3;

fn main() -> ExitCode {
    match run(&Arguments::parse()) {
        Ok(code) => code,
        Err(error) => {
            // If even stderr is closed there is nobody left to tell.
            writeln!(stderr(), "ferrofs-bench: {error:#}").unwrap_or_default();
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: &Arguments) -> Result<ExitCode> {
    if let Some(missing) = need::missing(&arguments.experiment.needs()) {
        bail!("this {missing}");
    }
    let mut out = stdout().lock();
    let report = match &arguments.experiment {
        Experiment::Workqueue(settings) => workqueue::run(settings, arguments.quick, &mut out)?,
        Experiment::Scheduling(settings) => scheduling::run(settings, arguments.quick, &mut out)?,
        Experiment::Jobs(settings) => jobs::run(settings, arguments.quick, &mut out)?,
        Experiment::Pages(settings) => pages::run(settings, arguments.quick, &mut out)?,
        Experiment::Reads(settings) => reads::run(settings, arguments.quick, &mut out)?,
        Experiment::Launches(settings) => launches::run(settings, arguments.quick, &mut out)?,
        Experiment::Windows(settings) => windows::run(settings, &mut out)?,
        Experiment::All(settings) => {
            let folder = arguments.out.as_deref();
            return end(all::run(settings, arguments.quick, folder, &mut out));
        }
        Experiment::Extract(settings) => peers::extract(settings, arguments.quick, &mut out)?,
        Experiment::Check(settings) => peers::check(settings, arguments.quick, &mut out)?,
        Experiment::Mount(settings) => peers::mount(settings, arguments.quick, &mut out)?,
        Experiment::Random(settings) => peers::random(settings, arguments.quick, &mut out)?,
        Experiment::Build(settings) => peers::build(settings, arguments.quick, &mut out)?,
        Experiment::Model(settings) => model::run(settings, arguments.quick, &mut out)?,
        Experiment::Describe(settings) => {
            return case::describe(&settings.experiments, &mut out).map(|()| ExitCode::SUCCESS);
        }
        Experiment::PagePool(settings) => page_pool::run(settings, arguments.quick, &mut out)?,
        Experiment::PoolLaunches(settings) => return end(page_pool::measure(settings)),
        Experiment::UnderLimit(settings) => return end(pages::measure(settings)),
        Experiment::Hog(settings) => return end(hogs::burn(settings)),
        Experiment::Reader(settings) => return end(peers::read(settings)),
        Experiment::Launcher(settings) => return end(launches::launch_all(settings)),
    };
    tell(report, arguments, &mut out)
}

/// How a process ends that has no report of its own.
fn end(result: Result<()>) -> Result<ExitCode> {
    result.map(|()| ExitCode::SUCCESS)
}

/// Prints and keeps what was found. What is refused is kept as well, marked, but not printed.
fn tell(mut report: Report, arguments: &Arguments, out: &mut dyn Write) -> Result<ExitCode> {
    let is_refused = report.is_too_noisy() && !arguments.noisy_ok;
    if is_refused {
        report.print_noise(out)?;
    } else {
        report.print(out)?;
    }
    if let Some(path) = &arguments.json {
        report.write_json(path)?;
    }
    if let Some(folder) = &arguments.out {
        report.write_folder(folder)?;
    }
    Ok(if is_refused { ExitCode::from(TOO_NOISY) } else { ExitCode::SUCCESS })
}

#[cfg(test)]
mod tests {
    use std::process::ExitCode;

    use clap::Parser;

    use super::{TOO_NOISY, tell};
    use crate::arguments::Arguments;
    use crate::report::Report;
    use crate::table::Table;

    #[test]
    fn a_noisy_run_keeps_its_figures_to_itself_unless_they_are_wanted() {
        let mut report = Report::new("jobs", &()).unwrap();
        report.add_table(Table::new("figures", ["a"]));
        report.judge_noise("ours", &[1.0, 9.0].into_iter().collect(), 0.5);
        let refused = ("bench jobs", ExitCode::from(TOO_NOISY), false);
        let wanted = ("bench jobs --noisy-ok", ExitCode::SUCCESS, true);
        for (words, code, has_figures) in [refused, wanted] {
            let arguments = Arguments::try_parse_from(words.split(' ')).unwrap();
            let mut text = Vec::new();
            let found = tell(report.clone(), &arguments, &mut text).unwrap();
            let text = String::from_utf8(text).unwrap();
            assert_eq!(format!("{found:?}"), format!("{code:?}"), "{words}");
            assert_eq!(text.contains("**figures**"), has_figures, "{text}");
            assert!(text.contains("too noisy: ours spreads by 160 %"), "{text}");
        }
    }
}

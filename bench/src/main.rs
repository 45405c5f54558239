//! `ferrofs-bench`: experiments that reproduce the tables behind ferrofs on the machine at hand, with
//! peers on the same work. Reads the arguments, runs one experiment, and prints and keeps its report.

mod all;
mod arguments;
mod baseline;
mod case;
mod claim;
mod deadline;
mod deflater;
mod hogs;
mod interruption;
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
mod steal;
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
    match measure(arguments, &mut out)? {
        Some(report) => tell(report, arguments, &mut out),
        None => Ok(ExitCode::SUCCESS),
    }
}

/// Runs what was asked for; nothing where it has told everything already.
fn measure(arguments: &Arguments, out: &mut dyn Write) -> Result<Option<Report>> {
    let is_quick = arguments.quick;
    let told = |result: Result<()>| result.map(|()| None);
    match &arguments.experiment {
        Experiment::Workqueue(settings) => workqueue::run(settings, is_quick, out).map(Some),
        Experiment::Scheduling(settings) => scheduling::run(settings, is_quick, out).map(Some),
        Experiment::Jobs(settings) => jobs::run(settings, is_quick, out).map(Some),
        Experiment::Pages(settings) => pages::run(settings, is_quick, out).map(Some),
        Experiment::Reads(settings) => reads::run(settings, is_quick, out).map(Some),
        Experiment::Launches(settings) => launches::run(settings, is_quick, out).map(Some),
        Experiment::Windows(settings) => windows::run(settings, out).map(Some),
        Experiment::All(settings) => {
            let folder = arguments.out.as_deref();
            told(all::run(settings, is_quick, folder, out))
        }
        Experiment::Extract(settings) => peers::extract(settings, is_quick, out).map(Some),
        Experiment::Check(settings) => peers::check(settings, is_quick, out).map(Some),
        Experiment::Mount(settings) => peers::mount(settings, is_quick, out).map(Some),
        Experiment::Random(settings) => peers::random(settings, is_quick, out).map(Some),
        Experiment::Build(settings) => peers::build(settings, is_quick, out).map(Some),
        Experiment::Model(settings) => model::run(settings, is_quick, out).map(Some),
        Experiment::Describe(settings) => told(case::describe(&settings.experiments, out)),
        Experiment::PagePool(settings) => page_pool::run(settings, is_quick, out).map(Some),
        Experiment::PoolLaunches(settings) => told(page_pool::measure(settings)),
        Experiment::UnderLimit(settings) => told(pages::measure(settings)),
        Experiment::Hog(settings) => told(hogs::burn(settings)),
        Experiment::Reader(settings) => told(peers::read(settings)),
        Experiment::Launcher(settings) => told(launches::launch_all(settings)),
    }
}

/// Prints and keeps what was found. What is refused is kept as well, marked, but not printed.
fn tell(mut report: Report, arguments: &Arguments, out: &mut dyn Write) -> Result<ExitCode> {
    report.look_again()?;
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

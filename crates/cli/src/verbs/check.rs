//! `ferrofs check`: the library verifies; here each problem is told.

use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;
use std::time::Instant;

use ferrofs_extract::{Selection, measure};
use ferrofs_image::{VerifyEvent, VerifyOptions};
use serde::Serialize;

use crate::amount::{counted, human_bytes};
use crate::arguments::CheckArguments;
use crate::diagnostics::{DiagnosticList, JsonDiagnostic};
use crate::exit_status::CommandStatus;
use crate::output::{JsonBytes, Output};
use crate::progress::{ProgressDisplay, WorkAmount};
use crate::read_stats::{self, StatsReport};
use crate::resources::Resources;
use crate::source;

#[derive(Serialize)]
struct CheckReport {
    image: JsonBytes,
    sound: bool,
    inodes: u64,
    bytes: u64,
    seconds: f64,
    problem_count: u64,
    #[serde(flatten)]
    problems: DiagnosticList,
    #[serde(skip_serializing_if = "Option::is_none")]
    stats: Option<StatsReport>,
}

/// Checks.
pub(crate) fn run(arguments: &CheckArguments) -> anyhow::Result<CommandStatus> {
    let resources = Resources::of(&arguments.work)?;
    let image = source::open_for_work(&arguments.image, &arguments.read, &resources)?;
    let path = arguments.image.as_os_str().as_bytes();
    let whole = || measure(&image, &Selection::default()).into();
    let below = arguments.below.as_deref().unwrap_or(b"/");
    let mut progress = ProgressDisplay::new(arguments.progress.progress, "check", whole);
    let (mut problems, mut done) = (DiagnosticList::default(), WorkAmount::default());
    let started = Instant::now();
    let options = VerifyOptions::new().path(below).max_threads(resources.threads);
    let summary = image.verify(&options, &mut |event| match event {
        VerifyEvent::Progress(now) => {
            done = WorkAmount { entries: now.inodes, bytes: now.bytes };
            progress.update(done);
        }
        VerifyEvent::Problem(problem) => {
            let shown = if problem.path.is_empty() { path } else { &problem.path };
            progress.print_path_message(shown, &problem.error);
            problems.add(JsonDiagnostic::of_image(&problem.path, &problem.error));
        }
    })?;
    progress.finish(done);
    let report = CheckReport {
        image: path.into(),
        sound: summary.problems == 0,
        inodes: summary.inodes,
        bytes: summary.bytes,
        seconds: started.elapsed().as_secs_f64(),
        problem_count: summary.problems,
        problems,
        stats: resources.stats(&image, None),
    };
    let mut output = Output::new();
    if arguments.json {
        output.json(&report)?;
    } else if !arguments.read.quiet {
        show(&mut output, &report)?;
    }
    output.flush()?;
    read_stats::print_stats(report.stats.as_ref().filter(|_| !arguments.json));
    Ok(CommandStatus::from_failures(summary.problems))
}

fn show(output: &mut Output, report: &CheckReport) -> io::Result<()> {
    let inodes = counted(report.inodes, "inode", "inodes");
    let verdict = match report.problem_count {
        0 => "sound".to_owned(),
        count => counted(count, "problem", "problems"),
    };
    let (bytes, seconds) = (human_bytes(report.bytes), report.seconds);
    writeln!(output, "checked {inodes}, {bytes} in {seconds:.2} s: {verdict}")
}

//! `ferrofs check`: the library verifies; here each problem is told.

use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;
use std::time::Instant;

use ferrofs_extract::{Selection, measure};
use ferrofs_image::VerifyEvent;
use serde::Serialize;

use crate::amount::{counted, human_bytes};
use crate::arguments::CheckArguments;
use crate::name::JsonName;
use crate::outcome::Outcome;
use crate::output::Output;
use crate::problem::{Problem, Problems};
use crate::progress::{Progress, Work};
use crate::resources::Resources;
use crate::source;
use crate::stats::{self, StatsReport};

#[derive(Serialize)]
struct Report {
    image: JsonName,
    sound: bool,
    inodes: u64,
    bytes: u64,
    seconds: f64,
    problem_count: u64,
    #[serde(flatten)]
    problems: Problems,
    #[serde(skip_serializing_if = "Option::is_none")]
    stats: Option<StatsReport>,
}

/// Checks.
pub(crate) fn run(arguments: &CheckArguments) -> anyhow::Result<Outcome> {
    let resources = Resources::of(&arguments.work)?;
    let image = source::open_for_work(&arguments.image, &arguments.read, &resources)?;
    let path = arguments.image.as_os_str().as_bytes();
    let whole = || measure(&image, &Selection::default()).into();
    let below = arguments.below.as_deref().unwrap_or(b"/");
    let mut progress = Progress::new(arguments.progress.progress, "check", whole);
    let (mut problems, mut done) = (Problems::default(), Work::default());
    let started = Instant::now();
    let summary = image.verify_below(below, Some(resources.threads), &mut |event| match event {
        VerifyEvent::Progress(now) => {
            done = Work { entries: now.inodes, bytes: now.bytes };
            progress.update(done);
        }
        VerifyEvent::Problem(problem) => {
            let shown = if problem.path.is_empty() { path } else { &problem.path };
            progress.complain_about(shown, &problem.error);
            problems.add(Problem::of_image(&problem.path, &problem.error));
        }
    });
    progress.finish(done);
    let report = Report {
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
    stats::tell(report.stats.as_ref().filter(|_| !arguments.json));
    Ok(Outcome::of_problems(summary.problems))
}

fn show(output: &mut Output, report: &Report) -> io::Result<()> {
    let inodes = counted(report.inodes, "inode", "inodes");
    let verdict = match report.problem_count {
        0 => "sound".to_owned(),
        count => counted(count, "problem", "problems"),
    };
    let (bytes, seconds) = (human_bytes(report.bytes), report.seconds);
    writeln!(output, "checked {inodes}, {bytes} in {seconds:.2} s: {verdict}")
}

//! The `check` experiment: ours with one thread and with more, and fsck.erofs, read all metadata of an image and decode
//! every byte, and write nothing.

use std::io::Write;
use std::path::PathBuf;

use anyhow::Result;
use clap::Args;
use serde::Serialize;

use super::caches;
use super::findings::Findings;
use super::images::Pictured;
use super::program::{Program, ProgramArguments};
use super::sheet::{FSCK, RunArguments, Sheet, ours_with};
use super::worded::Worded;
use super::work::Work;
use crate::report::Report;

/// What is checked.
#[derive(Debug, Clone, Args, Serialize)]
pub(crate) struct CheckArguments {
    /// EROFS images
    #[arg(required = true, value_name = "IMAGE")]
    images: Vec<PathBuf>,
    #[command(flatten)]
    runs: RunArguments,
    #[command(flatten)]
    programs: ProgramArguments,
}

/// Runs the experiment.
///
/// # Errors
/// When ours finds an image damaged or cannot be run.
pub(crate) fn run(
    arguments: &CheckArguments,
    is_quick: bool,
    out: &mut dyn Write,
) -> Result<Report> {
    let ours = arguments.programs.ours()?;
    let images = Pictured::look_at_all(&arguments.images)?;
    let work = Work::make(None)?;
    let fsck = arguments.programs.peer(FSCK);
    let known: Vec<Program> = [Ok(&ours), fsck.as_ref()].into_iter().flatten().cloned().collect();
    let mut findings = Findings::new("check", arguments, &known)?;
    let fsck = findings.present(FSCK, fsck);
    let pace = arguments.runs.pace(is_quick);
    findings.report.add_remark(pace.sentence());
    findings.report.add_remark("caches: the image is read into the page cache before each run");
    let threads = arguments.runs.thread_counts();
    let names = fsck.iter().map(|_| FSCK.to_owned());
    let names = names.chain(threads.iter().map(|jobs| ours_with(*jobs))).collect();
    let mut sheet = Sheet::new(&findings, "check", names, &threads)?;
    let said = work.path("said");
    for image in &images {
        if !findings.has_time(pace, &image.name) {
            continue;
        }
        writeln!(out, "{}", image.path.display())?;
        let path = &image.path;
        let theirs = fsck.iter().map(|program| {
            let worded = Worded::new(program, path, ["--extract"]);
            worded.and([path]).contestant(FSCK)
        });
        let own = threads.iter().map(|jobs| {
            let worded = Worded::new(&ours, path, ["check", "--quiet", "--progress=none"]);
            worded.and([format!("--jobs={jobs}")]).and([path]).contestant(ours_with(*jobs))
        });
        let contestants: Vec<_> = theirs.chain(own).collect();
        sheet.measure(&mut findings, &image.name, (&contestants, pace), |worded| {
            caches::read(&worded.source)?;
            worded.run(&said)
        })?;
    }
    Ok(sheet.finish(findings))
}

//! `ferrofs check`, and the check of fsck.erofs: the library verifies; this file reports each
//! problem.

use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::time::Instant;

use ferrofs_extract::{Selection, measure};
use ferrofs_image::{ErrorKind, VerifyEvent, VerifyOptions};
use serde::Serialize;

use crate::amount::{counted, human_bytes};
use crate::arguments::{
    CheckArguments, ProgressStyle, ReadArguments, WorkArguments, WorkLimitArguments,
};
use crate::diagnostics::{self, DiagnosticList, JsonDiagnostic, MessageLimiter};
use crate::exit_status::CommandStatus;
use crate::output::{JsonBytes, Output};
use crate::progress::{ProgressDisplay, WorkAmount};
use crate::read_stats::{self, StatsReport};
use crate::resources::Resources;
use crate::signals::{ExitOnSignals, SecondSignal};
use crate::source;

/// What is to be checked, and how it is reported.
#[derive(Clone, Debug)]
pub(super) struct CheckRequest {
    pub(super) image: PathBuf,
    pub(super) read: ReadArguments,
    /// A path of the image; it and everything below it is checked.
    pub(super) path: Vec<u8>,
    /// Data is not checked: it lies on devices that are not given.
    pub(super) metadata_only: bool,
    pub(super) json: bool,
    pub(super) limit: WorkLimitArguments,
    pub(super) progress: ProgressStyle,
    pub(super) work: WorkArguments,
}

impl From<&CheckArguments> for CheckRequest {
    fn from(typed: &CheckArguments) -> Self {
        Self {
            image: typed.image.clone(),
            read: typed.read.clone(),
            path: b"/".to_vec(),
            metadata_only: false,
            json: typed.json,
            limit: typed.limit,
            progress: typed.progress.progress,
            work: typed.work.clone(),
        }
    }
}

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
///
/// # Errors
/// The image cannot be opened, standard output cannot be written, or a signal arrived.
pub(super) fn run(request: &CheckRequest, signals: ExitOnSignals) -> anyhow::Result<CommandStatus> {
    let resources = Resources::of(&request.work)?;
    let image = source::open_for_work(&request.image, &request.read, &resources)?;
    let stop = signals.into_stop_request(SecondSignal::Exits)?;
    let path = request.image.as_os_str().as_bytes();
    let whole = || measure(&image, &Selection::default(), stop.token()).into();
    let mut progress = ProgressDisplay::new(request.progress, "check", whole);
    let (mut problems, mut done) = (DiagnosticList::default(), WorkAmount::default());
    let mut messages = MessageLimiter::default();
    let started = Instant::now();
    let options = VerifyOptions::new().path(request.path.as_slice()).max_threads(resources.threads);
    let options = if request.metadata_only { options.metadata_only() } else { options };
    let options = match request.limit.max_work {
        Some(bytes) => options.max_work(bytes),
        None => options,
    };
    let verified = image.verify(&options.cancel(stop.token()), &mut |event| match event {
        VerifyEvent::Progress(now) => {
            done = WorkAmount { entries: now.inodes, bytes: now.bytes };
            progress.update(done);
        }
        VerifyEvent::Problem(problem) => {
            let reported_path = if problem.path.is_empty() { path } else { &problem.path };
            let error = &problem.error;
            let suggestion = match error.kind() {
                ErrorKind::WorkLimit { .. } => diagnostics::for_image_error(error),
                _ => "",
            };
            let text = format_args!("{error}{suggestion}");
            if let Some(message) = messages.message(reported_path, text) {
                progress.print_message(message);
            }
            if request.json {
                problems.add(JsonDiagnostic::of_image(&problem.path, error));
            }
        }
    });
    progress.finish(done);
    messages.print_rest();
    let summary = match verified {
        Ok(summary) => summary,
        Err(error) => return Err(stop.check().map_or_else(Into::into, |()| error.into())),
    };
    let report = CheckReport {
        image: path.into(),
        sound: summary.problems == 0,
        inodes: summary.inodes,
        bytes: summary.bytes,
        seconds: started.elapsed().as_secs_f64(),
        problem_count: summary.problems,
        problems,
        stats: read_stats::collect(&resources, &image, None),
    };
    let written = print(request, &report);
    let status = CommandStatus::from_failures(summary.problems).after_output(written)?;
    read_stats::print_stats(report.stats.as_ref().filter(|_| !request.json));
    Ok(status)
}

fn print(request: &CheckRequest, report: &CheckReport) -> anyhow::Result<()> {
    let mut output = Output::new();
    if request.json {
        output.json(report)?;
    } else if !request.read.quiet {
        show(&mut output, report)?;
    }
    Ok(output.flush()?)
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

//! `ferrofs extract`: the library extracts; here its options are chosen and its events told.

use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::time::{Duration, Instant};

use anyhow::anyhow;
use ferrofs_extract::{
    Event, Existing, Options, Owners, Selection, Summary, Withheld, extract, measure,
};
use ferrofs_image::Image;
use ferrofs_image::workers::workqueue::Snapshot as Queue;
use serde::Serialize;

use crate::advice;
use crate::amount::{counted, human_bytes};
use crate::arguments::ExtractArguments;
use crate::name::{JsonName, escaped};
use crate::outcome::Outcome;
use crate::output::Output;
use crate::problem::{Problem, Problems};
use crate::progress::{Progress, Work};
use crate::resources::Resources;
use crate::source;
use crate::stats::{self, StatsReport};
use crate::stderr;

#[derive(Serialize)]
struct Report {
    image: JsonName,
    destination: JsonName,
    entries: u64,
    files: u64,
    directories: u64,
    symlinks: u64,
    special: u64,
    hard_links: u64,
    bytes: u64,
    hole_bytes: u64,
    seconds: f64,
    failures: u64,
    withheld: WithheldReport,
    #[serde(flatten)]
    problems: Problems,
    #[serde(skip_serializing_if = "Option::is_none")]
    stats: Option<StatsReport>,
}

#[derive(Serialize)]
struct WithheldReport {
    owners: u64,
    set_id_bits: u64,
    special: u64,
    xattrs_denied: u64,
    xattrs_unsupported: u64,
    times: u64,
    copied_links: u64,
}

/// Extracts.
pub(crate) fn run(arguments: &ExtractArguments) -> anyhow::Result<Outcome> {
    let paths = arguments.paths.iter().map(|path| path.as_bytes());
    let selection = match Selection::new(paths) {
        Ok(selection) => selection,
        Err(error) => {
            stderr::complain_about(error.path(), error.kind());
            return Ok(Outcome::Misused);
        }
    };
    let resources = Resources::of(&arguments.work)?;
    let image = source::open_for_work(&arguments.image, &arguments.read, &resources)?;
    let options = Options {
        existing: existing(arguments),
        owners: owners(arguments),
        selection,
        from: arguments.part.from.clone(),
        masked_permissions: arguments.part.masked_permissions,
        omits_xattrs: arguments.part.omits_xattrs,
        max_threads: Some(resources.threads),
        ..Options::default()
    };
    let mut problems = Problems::default();
    let started = Instant::now();
    let (summary, queue) = extract_all(arguments, &image, &options, &mut problems)?;
    if !arguments.read.quiet {
        say_withheld(&summary.withheld);
    }
    let stats = resources.stats(&image, queue.as_deref());
    let report = Report { stats, ..report(arguments, &summary, problems, started.elapsed()) };
    conclude(arguments, &report)?;
    stats::tell(report.stats.as_ref().filter(|_| !arguments.json));
    Ok(Outcome::of_problems(summary.failures))
}

/// Extracts and names each problem.
fn extract_all(
    arguments: &ExtractArguments,
    image: &Image,
    options: &Options,
    problems: &mut Problems,
) -> anyhow::Result<(Summary, Option<Box<Queue>>)> {
    let total = || measure(image, &options.selection).into();
    let mut progress = Progress::new(arguments.progress.progress, "extract", total);
    let (mut done, mut queue) = (Work::default(), None);
    let result = extract(image, arguments.directory(), options, &mut |event| match event {
        Event::Progress(now) => {
            done = now.into();
            progress.update(done);
        }
        Event::Failed(error) => {
            let advice = advice::for_extraction(&error);
            progress.complain_about(
                &place(arguments, &error),
                format_args!("{}{advice}", error.reason()),
            );
            problems.add(as_problem(&error));
        }
        Event::Queue(snapshot) => queue = Some(snapshot),
        _ => {}
    });
    progress.finish(done);
    result.map(|summary| (summary, queue)).map_err(|error| {
        let advice = advice::for_extraction(&error);
        anyhow!("{}: {}{advice}", escaped(&place(arguments, &error)), error.reason())
    })
}

/// The path to name with an error: in the image, or the image itself.
fn place(arguments: &ExtractArguments, error: &ferrofs_extract::Error) -> Vec<u8> {
    match error.path() {
        [] => arguments.image.as_os_str().as_bytes().to_vec(),
        path if path.starts_with(b"/")
            && !path.starts_with(arguments.directory().as_os_str().as_bytes()) =>
        {
            [&arguments.part.from, path].concat()
        }
        path => path.to_vec(),
    }
}

fn existing(arguments: &ExtractArguments) -> Existing {
    match (arguments.overwrite, arguments.part.keeps_existing) {
        (true, _) => Existing::Replace,
        (_, true) => Existing::Keep,
        _ => Existing::Refuse,
    }
}

fn owners(arguments: &ExtractArguments) -> Owners {
    match (arguments.preserve_owner, arguments.no_preserve_owner) {
        (true, _) => Owners::Image,
        (_, true) => Owners::Caller,
        _ => Owners::IfRoot,
    }
}

pub(crate) fn as_problem(error: &ferrofs_extract::Error) -> Problem {
    Problem::new(error.path(), &error.reason()).at(error.nid(), error.offset())
}

/// Says once for each kind of thing that it was left out.
pub(crate) fn say_withheld(withheld: &Withheld) {
    let say = |count, one, many, why: &str| {
        if count > 0 {
            stderr::complain(format_args!("{} {why}", counted(count, one, many)));
        }
    };
    let entry = ("entry", "entries");
    say(withheld.owners, entry.0, entry.1, "not given to their owners: that needs root");
    say(withheld.set_id_bits, "file", "files", "without set-id bits, as their owner is not kept");
    say(withheld.special, "special file", "special files", "left out: that needs root");
    let xattr = ("extended attribute", "extended attributes");
    say(withheld.xattrs_denied, xattr.0, xattr.1, "left out: not permitted here");
    say(withheld.xattrs_unsupported, xattr.0, xattr.1, "left out: DEST does not take them");
    say(withheld.times, entry.0, entry.1, "with the nearest time that DEST can hold");
    say(withheld.copied_links, "hard link", "hard links", "became copies");
}

fn conclude(arguments: &ExtractArguments, report: &Report) -> anyhow::Result<()> {
    let mut output = Output::new();
    if arguments.json {
        output.json(report)?;
    } else if !arguments.read.quiet {
        let entries = counted(report.entries, "entry", "entries");
        let (bytes, seconds) = (human_bytes(report.bytes), report.seconds);
        write!(output, "extracted {entries}, {bytes} in {seconds:.2} s")?;
        if report.failures > 0 {
            write!(output, "; {}", counted(report.failures, "failure", "failures"))?;
        }
        writeln!(output)?;
    }
    output.flush()?;
    Ok(())
}

fn report(
    arguments: &ExtractArguments,
    summary: &Summary,
    problems: Problems,
    time: Duration,
) -> Report {
    Report {
        image: arguments.image.as_os_str().as_bytes().into(),
        destination: arguments.directory().as_os_str().as_bytes().into(),
        entries: summary.entries(),
        files: summary.files,
        directories: summary.directories,
        symlinks: summary.symlinks,
        special: summary.special,
        hard_links: summary.hard_links,
        bytes: summary.bytes,
        hole_bytes: summary.hole_bytes,
        seconds: time.as_secs_f64(),
        failures: summary.failures,
        withheld: (&summary.withheld).into(),
        problems,
        stats: None,
    }
}

impl From<&Withheld> for WithheldReport {
    fn from(withheld: &Withheld) -> Self {
        Self {
            owners: withheld.owners,
            set_id_bits: withheld.set_id_bits,
            special: withheld.special,
            xattrs_denied: withheld.xattrs_denied,
            xattrs_unsupported: withheld.xattrs_unsupported,
            times: withheld.times,
            copied_links: withheld.copied_links,
        }
    }
}

//! `ferrofs demo`: the main job on real input. Unpacks an image, compares every byte of the result
//! with what it must be, and shows what was measured.

mod carried;
mod comparison;
mod record;
mod scratch_directory;
mod table;
mod truth;

use std::fs;
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, anyhow};
use ferrofs_extract::{Event, Options, Selection, Summary, extract, measure};
use ferrofs_image::Image;

use super::extract::say_withheld;
use crate::advice;
use crate::amount::counted;
use crate::arguments::DemoArguments;
use crate::name::escaped;
use crate::outcome::Outcome;
use crate::output::Output;
use crate::progress::{Progress, Work};
use crate::resources::Resources;
use crate::source;
use crate::stats;
use crate::stderr;
use comparison::{Comparison, ComparisonResult};
use scratch_directory::ScratchDirectory;
use table::Table;
use truth::Truth;

/// What an extraction took.
struct Extracted {
    summary: Summary,
    time: Duration,
    peak_bytes: Option<u64>,
}

/// Unpacks, compares, measures.
pub(crate) fn run(arguments: &DemoArguments) -> anyhow::Result<Outcome> {
    let scratch = ScratchDirectory::new().context("cannot make a directory for temporary files")?;
    let outcome = run_in(arguments, scratch.path())?;
    let path = escaped(scratch.path().as_os_str().as_bytes());
    scratch.remove().with_context(|| format!("cannot remove {path}"))?;
    Ok(outcome)
}

fn run_in(arguments: &DemoArguments, scratch: &Path) -> anyhow::Result<Outcome> {
    let (path, name) = image_path(arguments, scratch)?;
    let resources = Resources::of(&arguments.work)?;
    let image = source::open_for_work(&path, &arguments.read, &resources)?;
    let truth = match (&arguments.image, &arguments.source) {
        (None, _) => Truth::Manifest,
        (Some(_), Some(source)) => Truth::Directory(source.clone()),
        (Some(_), None) => Truth::Image(image.clone()),
    };
    let unpacked = scratch.join("tree");
    let total = measure(&image, &Selection::default()).into();
    say(arguments, &format!("unpacking {name} into {}", escaped(unpacked.as_os_str().as_bytes())))?;
    let options = Options { max_threads: Some(resources.threads), ..Options::default() };
    let extracted = unpack(arguments, (&image, &unpacked), &options, total)?;
    if !arguments.read.quiet {
        say_withheld(&extracted.summary.withheld);
    }
    say(arguments, &format!("comparing every byte with {}", truth.name()))?;
    let started = Instant::now();
    let mut progress = Progress::new(arguments.progress.progress, "compare", || total);
    let compared = Comparison::run(&unpacked, &truth, &mut progress)?;
    progress.finish(compared.done);
    let compare_time = started.elapsed();
    if compared.unreadable > 0 && !arguments.read.quiet {
        let files = counted(compared.unreadable, "file", "files");
        stderr::complain(format_args!("{files} not compared: you may not read them"));
    }
    let image_bytes = fs::metadata(&path)?.len().saturating_sub(arguments.read.offset);
    let table = Table { name, image_bytes, extracted: &extracted, compared, compare_time };
    let mut output = Output::new();
    table.write(&mut output)?;
    output.flush()?;
    stats::tell(resources.stats(&image, None).as_ref());
    Ok(Outcome::of_problems(extracted.summary.failures + compared.differences))
}

/// Where the image lies, and what to call it; the carried one is written to a file first.
fn image_path(arguments: &DemoArguments, scratch: &Path) -> anyhow::Result<(PathBuf, String)> {
    if let Some(path) = &arguments.image {
        return Ok((path.clone(), escaped(path.as_os_str().as_bytes())));
    }
    let path = scratch.join("demo.erofs");
    fs::write(&path, carried::IMAGE).context("cannot write the carried image")?;
    Ok((path, "the carried image".to_owned()))
}

fn say(arguments: &DemoArguments, text: &str) -> anyhow::Result<()> {
    if !arguments.read.quiet {
        let mut output = Output::new();
        writeln!(output, "{text}")?;
        output.flush()?;
    }
    Ok(())
}

fn unpack(
    arguments: &DemoArguments,
    (image, unpacked): (&Image, &Path),
    options: &Options,
    total: Work,
) -> anyhow::Result<Extracted> {
    let mut progress = Progress::new(arguments.progress.progress, "unpack", || total);
    let mut done = Work::default();
    let started = Instant::now();
    let result = extract(image, unpacked, options, &mut |event| match event {
        Event::Progress(now) => {
            done = now.into();
            progress.update(done);
        }
        Event::Failed(error) => {
            let advice = advice::for_extraction(&error);
            progress.complain_about(error.path(), format_args!("{}{advice}", error.reason()));
        }
        _ => {}
    });
    let time = started.elapsed();
    progress.finish(done);
    let summary =
        result.map_err(|error| anyhow!("{}: {}", escaped(error.path()), error.reason()))?;
    Ok(Extracted { summary, time, peak_bytes: stats::process_peak_bytes() })
}

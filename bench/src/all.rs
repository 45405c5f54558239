//! Everything, one experiment after the other, each in a process of its own, so that one that fails does not end the
//! rest; then the page on all of them. Owns the folder of the findings and what is made for the experiments.

mod child;
mod material;
mod plan;

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use clap::Args;

use crate::case::Case;
use crate::page::{self, Chapter, Outcome};
use crate::peers;
use child::run_child;
use material::Material;
use plan::{Step, step};

/// No experiment starts after so long.
const PATIENCE: Duration = Duration::from_secs(14 * 60);
/// What is written without `--out`, in the current folder.
const DEFAULT_FOLDER: &str = "ferrofs-bench-report";

/// What everything is run with.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct AllArguments {
    /// Image of a Debian system with perl, git, gcc and python3; without it launches are left out, and others take
    /// an image of the source
    #[arg(long, value_name = "FILE")]
    pub(crate) image: Option<PathBuf>,
    /// Tree that images are built from; if none is named, copies of parts of /usr, 300 MB at most
    #[arg(long, value_name = "DIR")]
    pub(crate) source: Option<PathBuf>,
    /// Folder with peers, such as erofsfuse and mkfs.erofs
    #[arg(long, value_name = "DIR")]
    pub(crate) peers: Option<PathBuf>,
    /// Only these experiments
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    #[arg(value_parser = Case::experiments().collect::<Vec<_>>())]
    pub(crate) only: Vec<String>,
}

/// Runs all and writes `report.html` beside the findings.
///
/// # Errors
/// When the folder cannot be written, or the images cannot be built. Experiments that fail are told of in the page,
/// and make an error at the end.
pub(crate) fn run(
    arguments: &AllArguments,
    is_quick: bool,
    out: Option<&Path>,
    say: &mut dyn Write,
) -> Result<()> {
    let is_wanted =
        |name: &&str| arguments.only.is_empty() || arguments.only.iter().any(|only| only == name);
    let experiments: Vec<&'static str> = Case::experiments().filter(is_wanted).collect();
    if experiments.iter().any(|name| peers::EXPERIMENTS.contains(name)) {
        // It may have to be built first, which is no part of the time.
        if let Err(error) = peers::find_ours() {
            writeln!(say, "{error:#}")?;
        }
    }
    let begin = Instant::now();
    let folder = out.unwrap_or(Path::new(DEFAULT_FOLDER));
    fs::create_dir_all(folder).with_context(|| format!("making {}", folder.display()))?;
    let material = Material::make(arguments, is_quick, say)?;
    let mut chapters = Vec::new();
    let mut noisy = Vec::new();
    let count = experiments.len();
    for (number, experiment) in experiments.into_iter().enumerate() {
        write!(say, "[{}/{count}] {experiment}: ", number + 1)?;
        say.flush()?;
        let start = Instant::now();
        let outcome = one(experiment, &material, (is_quick, folder), start - begin)?;
        writeln!(say, "{} ({:.0} s)", outcome.word(), start.elapsed().as_secs_f64())?;
        if matches!(&outcome, Outcome::Done(found) if found.is_too_noisy()) {
            noisy.push((chapters.len(), start.elapsed()));
        }
        chapters.push(Chapter { experiment, case: Case::of(experiment)?, outcome });
    }
    // What was too noisy once more, where it takes no time from anything else.
    for (chapter, took) in noisy {
        let Some(chapter) = chapters.get_mut(chapter) else { continue };
        if begin.elapsed() + took < PATIENCE {
            write!(say, "{} again: ", chapter.experiment)?;
            say.flush()?;
            let aside = folder.join("again");
            fs::create_dir_all(&aside).with_context(|| format!("making {}", aside.display()))?;
            let how = (is_quick, aside.as_path());
            let second = one(chapter.experiment, &material, how, begin.elapsed())?;
            writeln!(say, "{}", second.word())?;
            if matches!(&second, Outcome::Done(found) if !found.is_too_noisy()) {
                move_all(&aside, folder)?;
                chapter.outcome = second;
            }
            fs::remove_dir_all(&aside).with_context(|| format!("removing {}", aside.display()))?;
        }
    }
    let path = folder.join("report.html");
    let html = page::render(&chapters, material.notes(), begin.elapsed());
    fs::write(&path, html).with_context(|| format!("writing {}", path.display()))?;
    writeln!(say, "{} s, {}", begin.elapsed().as_secs(), path.display())?;
    let failed = chapters.iter().filter(|chapter| matches!(chapter.outcome, Outcome::Failed(_)));
    let failed: Vec<&str> = failed.map(|chapter| chapter.experiment).collect();
    ensure!(failed.is_empty(), "failed: {}", failed.join(", "));
    Ok(())
}

/// Puts what is in a folder in the place of what has its name in another.
fn move_all(from: &Path, to: &Path) -> Result<()> {
    for entry in fs::read_dir(from).with_context(|| format!("reading {}", from.display()))? {
        let entry = entry?;
        let (path, target) = (entry.path(), to.join(entry.file_name()));
        fs::rename(&path, &target).with_context(|| format!("moving {}", path.display()))?;
    }
    Ok(())
}

/// One experiment.
fn one(
    experiment: &str,
    material: &Material,
    (is_quick, folder): (bool, &Path),
    so_far: Duration,
) -> Result<Outcome> {
    if so_far > PATIENCE {
        let minutes = PATIENCE.as_secs() / 60;
        return Ok(Outcome::LeftOut(format!("{minutes} minutes were over")));
    }
    match step(experiment, material, is_quick)? {
        Step::Run(words) => run_child(experiment, &words, folder),
        Step::LeaveOut(why) => Ok(Outcome::LeftOut(why)),
    }
}

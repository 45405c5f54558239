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
use crate::interruption;
use crate::page::{self, Chapter, Outcome};
use crate::peers;
use child::run_child;
use material::Material;
use plan::{Extent, Step, step};

/// No experiment starts after so long.
const PATIENCE: Duration = Duration::from_secs(14 * 60);
/// And runs at length have their time until then: that of each is over when it begins nothing new, and what it has begun
/// may take a minute more.
const LENGTHS: Duration = Duration::from_secs(13 * 60 + 45);
/// Less time is not worth a run at length, in seconds.
const LENGTH: u64 = 60;
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
/// When the folder cannot be written, the images cannot be built, or somebody asks to end. Experiments that fail are told
/// of in the page, and make an error at the end.
pub(crate) fn run(
    arguments: &AllArguments,
    is_quick: bool,
    out: Option<&Path>,
    say: &mut dyn Write,
) -> Result<()> {
    interruption::watch()?;
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
    let takes_squashfs = experiments.iter().any(|name| peers::WITH_SQUASHFS.contains(name));
    let material = Material::make(arguments, (is_quick, takes_squashfs), say)?;
    let extent = if is_quick { Extent::Quick } else { Extent::Usual };
    let mut chapters = Vec::new();
    let (mut took, mut noisy) = (Vec::new(), Vec::new());
    let count = experiments.len();
    for (number, experiment) in experiments.into_iter().enumerate() {
        write!(say, "[{}/{count}] {experiment}: ", number + 1)?;
        say.flush()?;
        let start = Instant::now();
        let outcome = if start - begin > PATIENCE {
            let minutes = PATIENCE.as_secs() / 60;
            Outcome::LeftOut(format!("{minutes} minutes were over"))
        } else {
            one(experiment, &material, (extent, folder))?
        };
        took.push(start.elapsed());
        writeln!(say, "{} ({:.0} s)", outcome.word(), start.elapsed().as_secs_f64())?;
        if matches!(&outcome, Outcome::Done(found) if found.is_too_noisy()) {
            noisy.push(chapters.len());
        }
        chapters.push(Chapter { experiment, case: Case::of(experiment)?, outcome });
    }
    // What was too noisy once more, where it takes no time from anything else.
    for index in noisy {
        let (Some(chapter), Some(took)) = (chapters.get_mut(index), took.get(index)) else {
            continue;
        };
        if begin.elapsed() + *took < PATIENCE {
            write!(say, "{} again: ", chapter.experiment)?;
            say.flush()?;
            let is_better =
                |second: &Outcome| matches!(second, Outcome::Done(found) if !found.is_too_noisy());
            let second = replace(chapter, &material, (extent, folder), is_better)?;
            writeln!(say, "{second}")?;
        }
    }
    if !is_quick {
        run_at_length((&mut chapters, &took), &material, (begin, folder), say)?;
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

/// Runs what was a quick look with what is left of the time, each with an equal part of it or more: what took least comes
/// first, and what it leaves is for the others.
fn run_at_length(
    (chapters, took): (&mut [Chapter], &[Duration]),
    material: &Material,
    (begin, folder): (Instant, &Path),
    say: &mut dyn Write,
) -> Result<()> {
    let is_meant = |(chapter, _): &(&mut Chapter, _)| {
        !chapter.case.at_length.is_empty() && matches!(chapter.outcome, Outcome::Done(_))
    };
    let mut quick: Vec<_> = chapters.iter_mut().zip(took).filter(is_meant).collect();
    quick.sort_by_key(|(_, took)| **took);
    let mut left = u64::try_from(quick.len())?;
    for (chapter, _) in &mut quick {
        let seconds = LENGTHS.saturating_sub(begin.elapsed()).as_secs();
        if seconds < LENGTH {
            break;
        }
        let extent = Extent::AtLength((seconds / left).max(LENGTH));
        left -= 1;
        write!(say, "{} at length: ", chapter.experiment)?;
        say.flush()?;
        let start = Instant::now();
        let before = chapter.outcome.measured_claims();
        // A failure must be seen, too; what had time for less than half says less than the quick look.
        let is_better = |second: &Outcome| match second {
            Outcome::Done(_) => second.measured_claims() * 2 >= before,
            Outcome::Failed(_) => true,
            Outcome::LeftOut(_) => false,
        };
        let word = replace(chapter, material, (extent, folder), is_better)?;
        writeln!(say, "{word} ({:.0} s)", start.elapsed().as_secs_f64())?;
    }
    Ok(())
}

/// Runs an experiment a second time, aside, and puts what it led to in the place of the first, if it is better; answers its
/// word.
fn replace(
    chapter: &mut Chapter,
    material: &Material,
    (extent, folder): (Extent, &Path),
    is_better: impl FnOnce(&Outcome) -> bool,
) -> Result<String> {
    let aside = folder.join("again");
    fs::create_dir_all(&aside).with_context(|| format!("making {}", aside.display()))?;
    let second = one(chapter.experiment, material, (extent, aside.as_path()))?;
    let mut word = second.word();
    if is_better(&second) {
        child::forget(chapter.experiment, folder)?;
        move_all(&aside, folder)?;
        chapter.outcome = second;
    } else {
        word.push_str("; the first run stands");
    }
    fs::remove_dir_all(&aside).with_context(|| format!("removing {}", aside.display()))?;
    Ok(word)
}

/// One experiment.
fn one(
    experiment: &str,
    material: &Material,
    (extent, folder): (Extent, &Path),
) -> Result<Outcome> {
    match step(experiment, material, extent)? {
        Step::Run(words) => {
            let outcome = run_child(experiment, &words, folder)?;
            // It may have been ended by the same signal.
            interruption::check()?;
            Ok(outcome)
        }
        Step::LeaveOut(why) => Ok(Outcome::LeftOut(why)),
    }
}

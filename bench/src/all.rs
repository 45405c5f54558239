//! All experiments, one after the other, each in a process of its own so that a failure does not end the rest; then the
//! page on all of them. Owns the inputs of the experiments and the folder of the results.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use clap::Args;
use ferrofs_builder::import::{DirectoryOptions, UnreadablePolicy, from_directory};
use ferrofs_builder::{Algorithms, BuildOptions, NoopObserver, build};
use ferrofs_codec::Method;
use ferrofs_workers::CancelToken;

use crate::case::Case;
use crate::machine::{catch_signals, check_stop};
use crate::page::{self, ExperimentOutcome, Section, Written};
use crate::programs::{find_ours, make_squashfs};
use crate::report::plot_name;
use crate::trees::copy_part;

/// No experiment starts after this.
const START_LIMIT: Duration = Duration::from_secs(14 * 60);
/// Long runs share the time until then; each may need a minute more for what it has begun.
const LONG_LIMIT: Duration = Duration::from_secs(13 * 60 + 45);
/// A long run needs at least this many seconds.
const LONG_SECONDS: u64 = 60;
const DEFAULT_FOLDER: &str = "ferrofs-bench-report";
/// Its files are copied where no tree is named.
const SYSTEM_TREE: &str = "/usr";
const COPY_BYTES: u64 = 300 << 20;
const QUICK_COPY_BYTES: u64 = 48 << 20;
/// LZ4 windows of the images.
const WIDE: u16 = u16::MAX;
const NARROW: u16 = (16 << 10) - 1;
/// Experiments that run our program, and those that need a squashfs image.
const WITH_OURS: [&str; 9] =
    ["extract", "check", "memory", "quota", "mount", "random", "mount-memory", "decodes", "build"];
const WITH_SQUASHFS: [&str; 2] = ["extract", "mount"];

#[derive(Debug, Clone, Default, Args)]
pub(crate) struct AllArguments {
    /// Image of a Debian system with perl, git, gcc and python3; without it launches are left out, and others use an
    /// image of the source
    #[arg(long, value_name = "FILE")]
    image: Option<PathBuf>,
    /// Tree that images are built from; copies of parts of /usr, 300 MB at most, if none is named
    #[arg(long, value_name = "DIR")]
    source: Option<PathBuf>,
    /// Folder with peers, such as erofsfuse and mkfs.erofs
    #[arg(long, value_name = "DIR")]
    peers: Option<PathBuf>,
    /// Only these experiments
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    #[arg(value_parser = Case::names().collect::<Vec<_>>())]
    only: Vec<String>,
}

/// Answers which requirements of a command line are not met.
type MissingFor = fn(&[String]) -> Result<Option<String>>;

/// How much is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Extent {
    Quick,
    /// What the case says.
    Usual,
    /// What the case says for long runs, with this many seconds.
    Long(u64),
}

/// What `all` works with.
struct Session<'a> {
    inputs: Inputs,
    folder: &'a Path,
    missing_for: MissingFor,
    out: &'a mut dyn Write,
    start: Instant,
}

/// Runs all experiments and writes `report.html` beside their results. Failed experiments are named on the page and make
/// an error at the end.
pub(crate) fn run(
    arguments: &AllArguments,
    is_quick: bool,
    folder: Option<&Path>,
    missing_for: MissingFor,
    out: &mut dyn Write,
) -> Result<()> {
    catch_signals()?;
    let is_wanted =
        |name: &&str| arguments.only.is_empty() || arguments.only.iter().any(|only| only == name);
    let experiments: Vec<&'static str> = Case::names().filter(is_wanted).collect();
    let uses = |list: &[&str]| experiments.iter().any(|name| list.contains(name));
    if uses(&WITH_OURS)
        && let Err(error) = find_ours()
    {
        // It may have to be built first, which is not part of the time.
        writeln!(out, "{error:#}")?;
    }
    let start = Instant::now();
    let folder = folder.unwrap_or(Path::new(DEFAULT_FOLDER));
    fs::create_dir_all(folder).with_context(|| format!("making {}", folder.display()))?;
    let inputs = Inputs::make(arguments, is_quick, uses(&WITH_SQUASHFS), out)?;
    let mut session = Session { inputs, folder, missing_for, out, start };
    let extent = if is_quick { Extent::Quick } else { Extent::Usual };
    let (mut sections, took) = session.run_each(&experiments, extent)?;
    session.repeat_noisy(&mut sections, &took, extent)?;
    if !is_quick {
        session.run_long(&mut sections, &took)?;
    }
    let path = folder.join("report.html");
    let html = page::render(&sections, &session.inputs.notes, start.elapsed())?;
    fs::write(&path, html).with_context(|| format!("writing {}", path.display()))?;
    writeln!(session.out, "{} s, {}", start.elapsed().as_secs(), path.display())?;
    let is_failed = |section: &&Section| matches!(section.outcome, ExperimentOutcome::Failed(_));
    let failed = sections.iter().filter(is_failed).map(|section| section.experiment);
    let failed = failed.collect::<Vec<_>>().join(", ");
    ensure!(failed.is_empty(), "failed: {failed}");
    Ok(())
}

impl Session<'_> {
    fn say(&mut self, text: &str) -> Result<()> {
        write!(self.out, "{text}")?;
        Ok(self.out.flush()?)
    }

    fn run_each(
        &mut self,
        experiments: &[&'static str],
        extent: Extent,
    ) -> Result<(Vec<Section>, Vec<Duration>)> {
        let (mut sections, mut took) = (Vec::new(), Vec::new());
        for (number, experiment) in experiments.iter().enumerate() {
            self.say(&format!("[{}/{}] {experiment}: ", number + 1, experiments.len()))?;
            let start = Instant::now();
            let outcome = if start - self.start > START_LIMIT {
                let minutes = START_LIMIT.as_secs() / 60;
                ExperimentOutcome::LeftOut(format!("{minutes} minutes were over"))
            } else {
                self.run_one(experiment, extent, self.folder)?
            };
            took.push(start.elapsed());
            writeln!(self.out, "{} ({:.0} s)", outcome.word(), start.elapsed().as_secs_f64())?;
            sections.push(Section { experiment, case: Case::of(experiment)?, outcome });
        }
        Ok((sections, took))
    }

    /// Repeats runs that were too noisy, where that fits into the time.
    fn repeat_noisy(
        &mut self,
        sections: &mut [Section],
        took: &[Duration],
        extent: Extent,
    ) -> Result<()> {
        let is_clean = |outcome: &ExperimentOutcome| matches!(outcome, ExperimentOutcome::Done(written) if !written.report.is_too_noisy());
        for (section, took) in sections.iter_mut().zip(took) {
            let is_done = matches!(section.outcome, ExperimentOutcome::Done(_));
            if is_done && !is_clean(&section.outcome) && self.start.elapsed() + *took < START_LIMIT
            {
                self.say(&format!("{} again: ", section.experiment))?;
                let word = self.replace(section, extent, is_clean)?;
                writeln!(self.out, "{word}")?;
            }
        }
        Ok(())
    }

    /// Runs experiments that had a quick run in the time that is left, each in an equal part of it or more: the shortest
    /// first, and what it leaves is for the others.
    fn run_long(&mut self, sections: &mut [Section], took: &[Duration]) -> Result<()> {
        let has_long = |(section, _): &(&mut Section, _)| {
            let is_done = matches!(section.outcome, ExperimentOutcome::Done(_));
            is_done && !section.case.at_length.is_empty()
        };
        let mut quick: Vec<_> = sections.iter_mut().zip(took).filter(has_long).collect();
        quick.sort_by_key(|(_, took)| **took);
        let mut left = u64::try_from(quick.len())?;
        for (section, _) in &mut quick {
            let seconds = LONG_LIMIT.saturating_sub(self.start.elapsed()).as_secs();
            if seconds < LONG_SECONDS {
                break;
            }
            let extent = Extent::Long((seconds / left).max(LONG_SECONDS));
            left -= 1;
            self.say(&format!("{} at length: ", section.experiment))?;
            let start = Instant::now();
            let before = section.outcome.measured_claims();
            // A failure must be seen; a run with half of the claims says less than the quick one.
            let is_better = |second: &ExperimentOutcome| match second {
                ExperimentOutcome::Done(_) => second.measured_claims() * 2 >= before,
                ExperimentOutcome::Failed(_) => true,
                ExperimentOutcome::LeftOut(_) => false,
            };
            let word = self.replace(section, extent, is_better)?;
            writeln!(self.out, "{word} ({:.0} s)", start.elapsed().as_secs_f64())?;
        }
        Ok(())
    }

    /// Runs an experiment again and keeps the second result if it is better; answers its word.
    fn replace(
        &self,
        section: &mut Section,
        extent: Extent,
        is_better: impl FnOnce(&ExperimentOutcome) -> bool,
    ) -> Result<String> {
        let again = self.folder.join("again");
        fs::create_dir_all(&again).with_context(|| format!("making {}", again.display()))?;
        let second = self.run_one(section.experiment, extent, &again)?;
        let mut word = second.word();
        if is_better(&second) {
            remove_results(section.experiment, self.folder)?;
            for entry in fs::read_dir(&again)? {
                let entry = entry?;
                fs::rename(entry.path(), self.folder.join(entry.file_name()))?;
            }
            section.outcome = second;
        } else {
            word.push_str("; the first run stands");
        }
        fs::remove_dir_all(&again).with_context(|| format!("removing {}", again.display()))?;
        Ok(word)
    }

    fn run_one(
        &self,
        experiment: &str,
        extent: Extent,
        folder: &Path,
    ) -> Result<ExperimentOutcome> {
        let outcome = match step(experiment, &self.inputs, extent, self.missing_for)? {
            Ok(words) => run_process(experiment, &words, folder)?,
            Err(why) => return Ok(ExperimentOutcome::LeftOut(why)),
        };
        // The same signal may have ended it.
        check_stop()?;
        Ok(outcome)
    }
}

/// Runs this program with such a command line; its results go to the folder and are read from there.
fn run_process(experiment: &str, words: &[String], folder: &Path) -> Result<ExperimentOutcome> {
    remove_results(experiment, folder)?;
    let mut command = Command::new(std::env::current_exe().context("finding this program")?);
    command.args(words).arg("--noisy-ok").arg("--out").arg(folder);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
    let output = command.output().with_context(|| format!("starting {experiment}"))?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        let last = said.lines().last().unwrap_or_default().trim_start_matches("ferrofs-bench: ");
        return Ok(ExperimentOutcome::Failed(format!("{}: {last}", output.status)));
    }
    Ok(match Written::read(experiment, folder) {
        Ok(written) => ExperimentOutcome::Done(Box::new(written)),
        Err(error) => ExperimentOutcome::Failed(format!("{error:#}")),
    })
}

/// The results of an earlier run must not be taken for those of the next.
fn remove_results(experiment: &str, folder: &Path) -> Result<()> {
    let texts = ["json", "md"].map(|kind| format!("{experiment}.{kind}")).into_iter();
    let plots = (0..).map(|index| plot_name(experiment, index));
    let plots = plots.take_while(|name| folder.join(name).exists());
    for path in texts.chain(plots).map(|name| folder.join(name)).filter(|path| path.exists()) {
        fs::remove_file(&path).with_context(|| format!("removing {}", path.display()))?;
    }
    Ok(())
}

/// The command line of an experiment with these inputs, or why it is left out.
fn step(
    experiment: &str,
    inputs: &Inputs,
    extent: Extent,
    missing_for: MissingFor,
) -> Result<Result<Vec<String>, String>> {
    let case = Case::of(experiment)?;
    let mut words = vec![experiment.to_owned()];
    let of_case = if let Extent::Long(_) = extent { &case.at_length } else { &case.run };
    for word in of_case {
        match filled(word, inputs) {
            Ok(word) => words.extend(word),
            Err(why) => return Ok(Err(why)),
        }
    }
    match extent {
        Extent::Quick if !words.iter().any(|word| word == "--quick") => {
            words.push("--quick".to_owned());
        }
        Extent::Long(seconds) => words.push(format!("--seconds={seconds}")),
        Extent::Quick | Extent::Usual => {}
    }
    let Some(missing) = missing_for(&words)? else { return Ok(Ok(words)) };
    words.extend(case.otherwise);
    Ok(if missing_for(&words)?.is_none() { Ok(words) } else { Err(missing) })
}

/// Replaces a name in braces. An option without its input is dropped; without another input there is no experiment.
fn filled(word: &str, inputs: &Inputs) -> Result<Option<String>, String> {
    for (name, path, what) in inputs.names() {
        if word.contains(name) {
            return match path {
                Some(path) => Ok(Some(word.replace(name, &path.display().to_string()))),
                None if word.starts_with("--") => Ok(None),
                None => Err(format!("needs {what}")),
            };
        }
    }
    Ok(Some(word.to_owned()))
}

/// What experiments are run on: the named image and tree, or a copy of parts of /usr, LZ4 images of it with both windows,
/// and a squashfs image. Everything that was made is removed at the end.
#[derive(Debug, Default)]
struct Inputs {
    image: Option<PathBuf>,
    /// An image of a whole system.
    system: Option<PathBuf>,
    wide: Option<PathBuf>,
    narrow: Option<PathBuf>,
    /// Of the tree of `image`.
    squashfs: Option<PathBuf>,
    source: Option<PathBuf>,
    peers: Option<PathBuf>,
    notes: Vec<String>,
    _folder: Option<tempfile::TempDir>,
}

impl Inputs {
    fn make(
        arguments: &AllArguments,
        is_quick: bool,
        needs_squashfs: bool,
        out: &mut dyn Write,
    ) -> Result<Self> {
        let folder = tempfile::Builder::new().prefix("ferrofs-bench-all-").tempdir()?;
        let mut notes = Vec::new();
        let source = match &arguments.source {
            Some(source) => source.clone(),
            None => {
                let copy = folder.path().join("source");
                let most = if is_quick { QUICK_COPY_BYTES } else { COPY_BYTES };
                let copied = copy_part(Path::new(SYSTEM_TREE), &copy, most)?;
                let (files, megabytes) = (copied.files, copied.bytes / 1_000_000);
                notes.push(format!(
                    "The tree is a copy of {files} files of {SYSTEM_TREE}, {megabytes} MB together."
                ));
                copy
            }
        };
        writeln!(out, "building images of {}", source.display())?;
        let built = |name: &str, max_distance| {
            check_stop()?;
            let path = folder.path().join(name);
            build_image(&source, &path, max_distance).map(|()| path)
        };
        let (wide, narrow) = (built("lz4-64k.erofs", WIDE)?, built("lz4-16k.erofs", NARROW)?);
        notes.push(
            "Images of the tree use LZ4, clusters of 4 KiB, windows of 64 and 16 KiB.".to_owned(),
        );
        let image = arguments.image.as_ref().unwrap_or(&wide).clone();
        let mut squashfs = None;
        if needs_squashfs && !is_quick {
            match make_squashfs(&image, arguments.peers.as_deref(), folder.path()) {
                Ok(made) => squashfs = made,
                Err(error) => notes.push(format!("No squashfs image was made: {error:#}.")),
            }
        }
        check_stop()?;
        Ok(Self {
            image: Some(image),
            system: arguments.image.clone(),
            wide: Some(wide),
            narrow: Some(narrow),
            squashfs,
            source: Some(source),
            peers: arguments.peers.clone(),
            notes,
            _folder: Some(folder),
        })
    }

    /// Names in the arguments of cases, their values, and what is missing without a value.
    fn names(&self) -> [(&'static str, Option<&Path>, &'static str); 7] {
        [
            ("{image}", self.image.as_deref(), "an image"),
            ("{system}", self.system.as_deref(), "an image of a Debian system (--image)"),
            ("{wide}", self.wide.as_deref(), "an image with a window of 64 KiB"),
            ("{narrow}", self.narrow.as_deref(), "an image with a window of 16 KiB"),
            ("{squashfs}", self.squashfs.as_deref(), "a squashfs image"),
            ("{source}", self.source.as_deref(), "a tree"),
            ("{peers}", self.peers.as_deref(), "a folder of peers (--peers)"),
        ]
    }
}

fn build_image(source: &Path, path: &Path, max_distance: u16) -> Result<()> {
    let what = || format!("building an image of {}", source.display());
    let import = DirectoryOptions::default().unreadable(UnreadablePolicy::LeaveOut);
    let tree =
        from_directory(source, &import, &NoopObserver, &CancelToken::new()).with_context(what)?;
    let algorithms = Algorithms { default: 0, methods: vec![Method::Lz4 { max_distance }] };
    let options = BuildOptions::default().algorithms(Some(algorithms));
    build(&tree, &options, path, &NoopObserver, &CancelToken::new()).with_context(what)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::{Extent, Inputs, filled, step};
    use crate::case::Case;
    use crate::missing_for;

    /// Everything is the same file.
    fn inputs() -> Inputs {
        let path = || Some(PathBuf::from("/proc/self/stat"));
        let (image, system, wide, narrow) = (path(), path(), path(), path());
        let (squashfs, source, peers) = (path(), path(), path());
        Inputs { image, system, wide, narrow, squashfs, source, peers, ..Inputs::default() }
    }

    #[test]
    fn the_arguments_of_every_case_are_a_command_and_a_quick_one_has_a_long_form() {
        for experiment in Case::names() {
            let words = |extent| step(experiment, &inputs(), extent, missing_for).unwrap();
            for extent in [Extent::Quick, Extent::Usual] {
                drop(words(extent));
            }
            let case = Case::of(experiment).unwrap();
            let is_quick = case.run.iter().any(|word| word == "--quick");
            assert_eq!(is_quick, !case.at_length.is_empty(), "{experiment}");
            // FUSE, for one, is not everywhere.
            if is_quick && let Ok(words) = words(Extent::Long(7)) {
                assert_eq!(words.last().unwrap(), "--seconds=7");
                assert!(!words.iter().any(|word| word == "--quick"), "{experiment}");
            }
        }
    }

    #[test]
    fn an_option_without_input_is_dropped_and_an_experiment_without_image_is_left_out() {
        let nothing = Inputs::default();
        assert_eq!(filled("--peers={peers}", &nothing), Ok(None));
        assert_eq!(filled("-c", &nothing), Ok(Some("-c".to_owned())));
        let reads = |inputs| step("reads", inputs, Extent::Quick, missing_for).unwrap();
        assert_eq!(reads(&nothing), Err("needs an image".to_owned()));
        let words = reads(&inputs()).unwrap();
        assert_eq!(words[..2], ["reads", "/proc/self/stat"]);
        assert_eq!(words.last().unwrap(), "--quick");
    }
}

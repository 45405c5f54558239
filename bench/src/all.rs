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
use tempfile::TempDir;

use crate::case::{Case, Values, fill};
use crate::image_info::ImageInfo;
use crate::machine::{catch_signals, check_stop};
use crate::page::{self, ExperimentOutcome, Section, Written};
use crate::programs::{ProgramArguments, squashfs_of};
use crate::report::plot_name;
use crate::trees::copy_part;

/// No experiment starts after this.
const START_LIMIT: Duration = Duration::from_secs(14 * 60);
const DEFAULT_FOLDER: &str = "ferrofs-bench-report";
/// Its files are copied where no tree is named.
const SYSTEM_TREE: &str = "/usr";
const COPY_BYTES: u64 = 300 << 20;
const QUICK_COPY_BYTES: u64 = 48 << 20;
/// LZ4 windows of the images.
const WIDE: u16 = u16::MAX;
const NARROW: u16 = (16 << 10) - 1;
/// Names in the arguments of cases, and what is missing without a value.
const INPUTS: [(&str, &str); 7] = [
    ("image", "an image"),
    ("system", "an image of a Debian system (--image)"),
    ("wide", "an image with a window of 64 KiB"),
    ("narrow", "an image with a window of 16 KiB"),
    ("squashfs", "a squashfs image"),
    ("source", "a tree"),
    ("peers", "a folder of peers (--peers)"),
];

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

/// What `all` works with.
struct BenchmarkRun<'a> {
    inputs: Inputs,
    is_quick: bool,
    folder: &'a Path,
    missing_for: MissingFor,
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
    // It may have to be built first, which is not part of the time.
    if let Err(error) = (ProgramArguments { ferrofs: None, peers: None }).ours() {
        writeln!(out, "{error:#}")?;
    }
    let start = Instant::now();
    let folder = folder.unwrap_or(Path::new(DEFAULT_FOLDER));
    fs::create_dir_all(folder).with_context(|| format!("making {}", folder.display()))?;
    writeln!(out, "building images")?;
    let mut inputs = Inputs::make(arguments, is_quick)?;
    inputs.add_squashfs(&experiments, is_quick)?;
    let session = BenchmarkRun { inputs, is_quick, folder, missing_for };
    let mut sections = Vec::new();
    for (number, experiment) in experiments.iter().enumerate() {
        write!(out, "[{}/{}] {experiment}: ", number + 1, experiments.len())?;
        out.flush()?;
        let begin = Instant::now();
        let outcome = if start.elapsed() > START_LIMIT {
            let minutes = START_LIMIT.as_secs() / 60;
            ExperimentOutcome::LeftOut(format!("{minutes} minutes were over"))
        } else {
            session.run_one(experiment, folder)?
        };
        writeln!(out, "{} ({:.0} s)", outcome.word(), begin.elapsed().as_secs_f64())?;
        let took = begin.elapsed();
        sections.push((Section { experiment, case: Case::of(experiment)?, outcome }, took));
    }
    // Runs that were too noisy are repeated where that fits into the time.
    for (section, took) in &mut sections {
        if is_noisy(&section.outcome) && start.elapsed() + *took < START_LIMIT {
            write!(out, "{} again: ", section.experiment)?;
            out.flush()?;
            session.repeat(section)?;
            writeln!(out, "{}", section.outcome.word())?;
        }
    }
    let sections: Vec<Section> = sections.into_iter().map(|(section, _)| section).collect();
    let path = folder.join("report.html");
    let html = page::render(&sections, &session.inputs.notes, start.elapsed())?;
    fs::write(&path, html).with_context(|| format!("writing {}", path.display()))?;
    writeln!(out, "{} s, {}", start.elapsed().as_secs(), path.display())?;
    let is_failed = |section: &&Section| matches!(section.outcome, ExperimentOutcome::Failed(_));
    let failed = sections.iter().filter(is_failed).map(|section| section.experiment);
    let failed = failed.collect::<Vec<_>>().join(", ");
    ensure!(failed.is_empty(), "failed: {failed}");
    Ok(())
}

fn is_noisy(outcome: &ExperimentOutcome) -> bool {
    matches!(outcome, ExperimentOutcome::Done(written) if written.report.is_too_noisy())
}

impl BenchmarkRun<'_> {
    fn run_one(&self, experiment: &str, folder: &Path) -> Result<ExperimentOutcome> {
        let outcome = match step(experiment, &self.inputs, self.is_quick, self.missing_for)? {
            Ok(words) => run_process(experiment, &words, folder)?,
            Err(why) => return Ok(ExperimentOutcome::LeftOut(why)),
        };
        // The same signal may have ended it.
        check_stop()?;
        Ok(outcome)
    }

    /// Runs an experiment again, and keeps the second result if it is less noisy.
    fn repeat(&self, section: &mut Section) -> Result<()> {
        let again = self.folder.join("again");
        fs::create_dir_all(&again).with_context(|| format!("making {}", again.display()))?;
        let second = self.run_one(section.experiment, &again)?;
        if matches!(second, ExperimentOutcome::Done(_)) && !is_noisy(&second) {
            remove_results(section.experiment, self.folder)?;
            for entry in fs::read_dir(&again)? {
                let entry = entry?;
                fs::rename(entry.path(), self.folder.join(entry.file_name()))?;
            }
            section.outcome = second;
        }
        fs::remove_dir_all(&again).with_context(|| format!("removing {}", again.display()))
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
    is_quick: bool,
    missing_for: MissingFor,
) -> Result<Result<Vec<String>, String>> {
    let case = Case::of(experiment)?;
    let mut words = vec![experiment.to_owned()];
    for word in &case.run {
        match fill(word, &inputs.values()) {
            Ok(word) => words.extend(word),
            Err(name) => {
                let what = INPUTS.iter().find(|(input, _)| *input == name);
                return Ok(Err(format!("needs {}", what.map_or(name.as_str(), |(_, what)| what))));
            }
        }
    }
    words.extend(is_quick.then(|| "--quick".to_owned()));
    let Some(missing) = missing_for(&words)? else { return Ok(Ok(words)) };
    words.extend(case.otherwise);
    Ok(if missing_for(&words)?.is_none() { Ok(words) } else { Err(missing) })
}

/// What experiments are run on: the named image and tree, or a copy of parts of /usr, LZ4 images of it with both windows,
/// and a squashfs image. Everything that was made is removed at the end.
#[derive(Debug, Default)]
struct Inputs {
    /// By the names of `INPUTS`.
    paths: Vec<(&'static str, PathBuf)>,
    notes: Vec<String>,
    folder: Option<TempDir>,
}

impl Inputs {
    fn make(arguments: &AllArguments, is_quick: bool) -> Result<Self> {
        let folder = tempfile::Builder::new().prefix("ferrofs-bench-all-").tempdir()?;
        let mut inputs = Self::default();
        let source = match &arguments.source {
            Some(source) => source.clone(),
            None => {
                let copy = folder.path().join("source");
                let most = if is_quick { QUICK_COPY_BYTES } else { COPY_BYTES };
                let copied = copy_part(Path::new(SYSTEM_TREE), &copy, most)?;
                let (files, megabytes) = (copied.files, copied.bytes / 1_000_000);
                inputs.notes.push(format!(
                    "The tree is a copy of {files} files of {SYSTEM_TREE}, {megabytes} MB together."
                ));
                copy
            }
        };
        for (name, file, window) in
            [("wide", "lz4-64k.erofs", WIDE), ("narrow", "lz4-16k.erofs", NARROW)]
        {
            check_stop()?;
            let path = folder.path().join(file);
            build_image(&source, &path, window)?;
            inputs.paths.push((name, path));
        }
        inputs.notes.push(
            "Images of the tree use LZ4, clusters of 4 KiB, windows of 64 and 16 KiB.".to_owned(),
        );
        let image = arguments.image.clone().or_else(|| inputs.get("wide").map(Path::to_path_buf));
        let given = [
            ("image", image),
            ("system", arguments.image.clone()),
            ("source", Some(source)),
            ("peers", arguments.peers.clone()),
        ];
        let given = given.into_iter().filter_map(|(name, path)| Some((name, path?)));
        inputs.paths.extend(given);
        inputs.folder = Some(folder);
        check_stop()?;
        Ok(inputs)
    }

    /// Makes a squashfs image if one of the experiments takes it, outside their time.
    fn add_squashfs(&mut self, experiments: &[&str], is_quick: bool) -> Result<()> {
        let takes_it = |name: &&str| {
            Case::of(name).is_ok_and(|case| case.run.iter().any(|word| word.contains("{squashfs}")))
        };
        let (Some(image), Some(folder)) = (self.get("image"), &self.folder) else { return Ok(()) };
        if is_quick || !experiments.iter().any(takes_it) {
            return Ok(());
        }
        let programs = ProgramArguments { ferrofs: None, peers: self.get("peers").map(Into::into) };
        match squashfs_of(&ImageInfo::read(image)?, None, &programs, false, folder.path())? {
            Ok(path) => self.paths.push(("squashfs", path)),
            Err(why) => self.notes.push(format!("No squashfs image was made: {why}.")),
        }
        Ok(())
    }

    fn values(&self) -> Values {
        let values = self.paths.iter();
        values.map(|(name, path)| ((*name).to_owned(), vec![path.display().to_string()])).collect()
    }

    fn get(&self, name: &str) -> Option<&Path> {
        let mut paths = self.paths.iter();
        paths.find(|(other, _)| *other == name).map(|(_, path)| path.as_path())
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
    use super::{INPUTS, Inputs, step};
    use crate::case::Case;
    use crate::missing_for;

    /// Everything is the same file.
    fn inputs() -> Inputs {
        let paths = INPUTS.map(|(name, _)| (name, "/proc/self/stat".into()));
        Inputs { paths: paths.into(), ..Inputs::default() }
    }

    #[test]
    fn the_arguments_of_every_case_are_a_command() {
        for experiment in Case::names() {
            for is_quick in [false, true] {
                // FUSE, for one, is not everywhere.
                let words = step(experiment, &inputs(), is_quick, missing_for).unwrap();
                let last = words.ok().and_then(|words| words.last().cloned());
                assert!(
                    !is_quick || last.is_none_or(|word| word.starts_with("--")),
                    "{experiment}"
                );
            }
        }
    }

    #[test]
    fn an_option_without_input_is_dropped_and_an_experiment_without_image_is_left_out() {
        let nothing = Inputs::default();
        let fill = |word: &str| super::fill(word, &nothing.values());
        assert_eq!((fill("--peers={peers}"), fill("-c")), (Ok(vec![]), Ok(vec!["-c".to_owned()])));
        let reads = |inputs| step("reads", inputs, true, missing_for).unwrap();
        assert_eq!(reads(&nothing), Err("needs an image".to_owned()));
        let words = reads(&inputs()).unwrap();
        assert_eq!(words[..2], ["reads", "/proc/self/stat"]);
        assert_eq!(words.last().unwrap(), "--quick");
    }
}

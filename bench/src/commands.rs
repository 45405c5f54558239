//! Experiments that run whole commands: `extract` and `check` beside fsck.erofs and unsquashfs, `build` beside mkfs.erofs and
//! mksquashfs. Their cases name the programs with their words; names in braces stand for images, outputs and options.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use clap::Args;
use serde::Serialize;

use crate::case::{Case, Values};
use crate::experiment::{Context, Experiment};
use crate::image_info::ImageInfo;
use crate::process;
use crate::programs::{Invocation, PeerArguments, Program, place_of, squashfs_of};
use crate::statistics::{Figure, Figures, WALL};
use crate::table::Sheet;
use crate::trees::{copy_part, put_away, read_file, read_tree};

/// A quick run uses this much of the tree.
const QUICK_BYTES: u64 = 4 << 20;
const UNSQUASHFS: &str = "unsquashfs";
const SIZE: Figure = Figure::new("size", "bytes", 0);

#[derive(Debug, Clone, Args, Serialize)]
pub(crate) struct CheckArguments {
    /// EROFS images
    #[arg(required = true, value_name = "IMAGE")]
    images: Vec<PathBuf>,
    /// Threads of ours beside its run with one; as many as the system runs at once if not given
    #[arg(short, long, value_name = "N")]
    #[arg(value_parser = clap::value_parser!(u16).range(1..=512))]
    jobs: Option<u16>,
    #[command(flatten)]
    peers: PeerArguments,
}

#[derive(Debug, Clone, Args, Serialize)]
pub(crate) struct ExtractArguments {
    #[command(flatten)]
    common: CheckArguments,
    /// A squashfs image of the same tree, for unsquashfs; made of the first image if none is named
    #[arg(long, value_name = "FILE")]
    squashfs: Option<PathBuf>,
}

#[derive(Debug, Clone, Args, Serialize)]
pub(crate) struct BuildArguments {
    /// The tree
    source: PathBuf,
    /// Options of the images
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    #[arg(value_parser = Case::variants_of("build"))]
    cases: Vec<String>,
    /// Use only so much of the tree, copied beside the images; 4 MiB at most with --quick
    #[arg(long, value_name = "BYTES")]
    #[arg(value_parser = clap::value_parser!(u64).range(1..))]
    most_bytes: Option<u64>,
    /// Threads of every program; their defaults if not given
    #[arg(short, long, value_name = "N")]
    #[arg(value_parser = clap::value_parser!(u16).range(1..=512))]
    jobs: Option<u16>,
    #[command(flatten)]
    peers: PeerArguments,
}

/// One run of all commands: the row of the table, the inputs, which are read into the page cache before each command, and
/// what else the words name.
struct Subject {
    case: String,
    inputs: Vec<PathBuf>,
    values: Values,
}

/// Names with their values, where they have one.
fn values<const N: usize>(all: [(&str, Option<Vec<String>>); N]) -> Values {
    all.into_iter().filter_map(|(name, values)| Some((name.to_owned(), values?))).collect()
}

fn threads(jobs: Option<u16>) -> Values {
    let jobs = jobs.map(|jobs| jobs.to_string());
    // mksquashfs has no word of one piece for it.
    let processors = jobs.iter().flat_map(|jobs| ["-processors".to_owned(), jobs.clone()]);
    let processors = Some(processors.collect());
    values([("processors", processors), ("jobs", jobs.map(|jobs| vec![jobs]))])
}

fn text(path: &Path) -> String {
    path.display().to_string()
}

impl Experiment for CheckArguments {
    fn run(&self, context: &mut Context<'_>) -> Result<()> {
        self.peers.programs.ours()?;
        let folder = self.peers.folder()?;
        self.compare(None, context, folder.path())
    }
}

impl Experiment for ExtractArguments {
    fn run(&self, context: &mut Context<'_>) -> Result<()> {
        let (peers, is_quick) = (&self.common.peers, context.is_quick);
        peers.programs.ours()?;
        let folder = peers.folder_in_memory()?;
        let mut squashfs = None;
        if peers.programs.peer(UNSQUASHFS).is_ok() {
            let first = ImageInfo::read(self.common.images.first().context("no image")?)?;
            let given = self.squashfs.as_deref();
            match squashfs_of(&first, given, &peers.programs, is_quick, folder.path())? {
                Ok(path) => squashfs = Some(path),
                Err(why) => context.report.leave_out(UNSQUASHFS, why),
            }
        }
        context.report.remark(format!("into new folders in {}", place_of(folder.path())));
        self.common.compare(squashfs.as_deref(), context, folder.path())
    }
}

impl CheckArguments {
    fn compare(
        &self,
        squashfs: Option<&Path>,
        context: &mut Context<'_>,
        folder: &Path,
    ) -> Result<()> {
        let subjects = ImageInfo::read_all(&self.images)?.into_iter().map(|image| {
            let one = |path: &Path| vec![text(path)];
            let mut all =
                values([("image", Some(one(&image.path))), ("squashfs", squashfs.map(one))]);
            all.extend(threads(self.jobs));
            let inputs = [image.path.as_path()].into_iter().chain(squashfs);
            Subject { case: image.name, inputs: inputs.map(Into::into).collect(), values: all }
        });
        compare(context, &self.peers, &subjects.collect::<Vec<_>>(), folder)
    }
}

impl Experiment for BuildArguments {
    fn run(&self, context: &mut Context<'_>) -> Result<()> {
        self.peers.programs.ours()?;
        let folder = self.peers.folder_in_memory()?;
        let source = self.tree(folder.path(), context)?;
        context.report.remark(format!("images go to {}", place_of(folder.path())));
        let all = context.report.case.variants.clone().into_iter();
        let is_meant = |name: &String| self.cases.is_empty() || self.cases.contains(name);
        let subjects = all.filter(|variant| is_meant(&variant.name)).map(|variant| {
            let mut values = variant.values;
            values.insert("source".to_owned(), vec![text(&source)]);
            values.extend(threads(self.jobs));
            Subject { case: variant.name, inputs: vec![source.clone()], values }
        });
        compare(context, &self.peers, &subjects.collect::<Vec<_>>(), folder.path())
    }
}

impl BuildArguments {
    /// The tree, or a part of it.
    fn tree(&self, folder: &Path, context: &mut Context<'_>) -> Result<PathBuf> {
        let mut source = self.source.canonicalize().with_context(|| text(&self.source))?;
        let quick = context.is_quick.then_some(QUICK_BYTES);
        if let Some(most) = [self.most_bytes, quick].into_iter().flatten().min() {
            let part = folder.join("part");
            copy_part(&source, &part, most)?;
            context.report.remark("a part of the tree only, copied beside the images");
            source = part;
        }
        let (bytes, entries) = read_tree(&source)?;
        context.report.remark(format!("{:.1} MB in {entries} entries", bytes as f64 / 1e6));
        Ok(source)
    }
}

/// Runs the commands of the case on each subject, in turn.
fn compare(
    context: &mut Context<'_>,
    peers: &PeerArguments,
    subjects: &[Subject],
    folder: &Path,
) -> Result<()> {
    context.plan(&peers.rounds, subjects.len());
    context.report.remark("caches: inputs are read into the page cache before each run");
    let case = context.report.case.clone();
    let mut programs: BTreeMap<&str, Option<Program>> = BTreeMap::new();
    for command in &case.commands {
        if !programs.contains_key(command.program.as_str()) {
            let found = peers.programs.find(&command.program, &mut context.report);
            programs.insert(&command.program, found);
        }
    }
    let output = folder.join("output");
    let mut sheet = Sheet::of(&case, &case.title).bars(WALL).steady(WALL);
    for subject in subjects {
        let mut candidates = Vec::new();
        for command in &case.commands {
            let Some(program) = programs[command.program.as_str()].as_ref() else { continue };
            let mut values = subject.values.clone();
            values.insert("output".to_owned(), vec![text(&output)]);
            let Some(words) = command.fill(&subject.case, &values) else { continue };
            let invocation = Invocation::new(program).with(words);
            let invocation = match &command.called {
                Some(name) => invocation.called(name),
                None => invocation,
            };
            context.report.peer_command(&command.name, invocation.line());
            let (inputs, output) = (&subject.inputs, &output);
            candidates.push(
                program.candidate(&command.name, move || run_once(&invocation, inputs, output)),
            );
        }
        context.compare(&subject.case, candidates, &mut sheet)?;
    }
    context.report.sheet(sheet);
    Ok(())
}

/// One run; its output is taken away, also that of a failed one.
fn run_once(invocation: &Invocation, inputs: &[PathBuf], output: &Path) -> Result<Figures> {
    for input in inputs {
        if input.is_dir() { read_tree(input).map(drop)? } else { read_file(input)? }
    }
    let ran = process::run(&mut invocation.command(), None);
    let mut size = None;
    if output.is_dir() {
        put_away(output, &output.with_file_name("trash"))?;
    } else if output.exists() {
        size = Some((SIZE, fs::metadata(output)?.len() as f64));
        fs::remove_file(output).context("removing an image")?;
        rustix::fs::sync();
    }
    let mut figures = ran?.0.figures();
    figures.extend(size);
    Ok(figures)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_builder_gets_the_same_options() {
        let case = Case::of("build").unwrap();
        let lines = |name: &str| {
            let variant = case.variants.iter().find(|variant| variant.name == name).unwrap();
            let mut all = variant.values.clone();
            all.extend(threads(Some(2)));
            all.extend(["output", "source"].map(|name| (name.to_owned(), vec![name.to_owned()])));
            let lines = case.commands.iter().filter_map(|command| command.fill(name, &all));
            lines.map(|words| words.join(" ")).collect::<Vec<String>>()
        };
        let all = lines("lz4hc-64k-all");
        assert_eq!(all.len(), 4);
        let options = "-zlz4hc -C65536 -Efragments,dedupe,ztailpacking --workers=2 output source";
        assert!(all[0].ends_with(options), "{}", all[0]);
        assert_eq!(all[0], all[1]);
        assert!(all[3].contains("--no-verify") && all[3].contains("--inline-pclusters --jobs=2"));
        let zstd = lines("zstd-64k");
        assert!(zstd[4].starts_with("source output -comp zstd"), "{}", zstd[4]);
        assert!(zstd[4].ends_with("-processors 2"), "{}", zstd[4]);
    }

    #[test]
    fn a_command_without_its_input_is_left_out_and_an_option_without_a_value_is_dropped() {
        let case = Case::of("extract").unwrap();
        let some = |text: &str| Some(vec![text.to_owned()]);
        let mut all = values([("image", some("/i")), ("output", some("/o")), ("squashfs", None)]);
        all.extend(threads(None));
        let words = |name: &str| {
            let command = case.commands.iter().find(|command| command.name == name).unwrap();
            command.fill("", &all)
        };
        assert_eq!(words("unsquashfs"), None);
        assert_eq!(words("ferrofs").unwrap().join(" "), "extract --quiet --progress=none /i /o");
    }
}

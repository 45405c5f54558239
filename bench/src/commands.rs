//! Experiments that run whole commands: `extract` and `check` beside fsck.erofs and unsquashfs, `build` beside mkfs.erofs and
//! mksquashfs, `memory` (peak memory against --memory), and `quota` (time and threads where one CPU is available). Their cases
//! name the programs with their words; names in braces stand for images, outputs and options.

use std::cell::Cell;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::thread::sleep;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use clap::Args;
use ferrofs_workers::cpus::CpuSet;

use crate::case::Values;
use crate::cgroup::{Group, has_controller};
use crate::experiment::{Context, Experiment};
use crate::image_info::ImageInfo;
use crate::machine::{Requirement, is_root};
use crate::process::{self, Cost};
use crate::programs::{Invocation, PeerArguments, Program, place_of, squashfs_of};
use crate::reader::{Pattern, Reader, Seen};
use crate::statistics::{Figure, Figures};
use crate::trees::{copy_part, put_away, read_in};

/// A quick run uses this much of the tree.
const QUICK_BYTES: u64 = 4 << 20;
const UNSQUASHFS: &str = "unsquashfs";
const MIB: f64 = 1_048_576.0;
/// How often threads are counted; those that live for less than this may be missed.
const LOOK: Duration = Duration::from_micros(500);
const SIZE: Figure = Figure::new("size", "bytes", 0);
const OF_LIMIT: Figure = Figure::new("of limit", "", 2);
const KILLED: Figure = Figure::new("killed", "", 0);
const WALL_IN_GROUP: Figure = Figure::new("wall in a cgroup", "s", 3);
const CHARGED: Figure = Figure::new("charged", "MiB", 1);
const THREADS: Figure = Figure::new("threads", "", 0);

#[derive(Debug, Clone, Args)]
struct CommandArguments {
    /// Threads of every program; their defaults if not given
    #[arg(short, long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=512))]
    jobs: Option<u16>,
    #[command(flatten)]
    peers: PeerArguments,
}

#[derive(Debug, Clone, Args)]
pub(crate) struct CheckArguments {
    /// EROFS images
    #[arg(required = true, value_name = "IMAGE")]
    images: Vec<PathBuf>,
    #[command(flatten)]
    common: CommandArguments,
}

#[derive(Debug, Clone, Args)]
pub(crate) struct ExtractArguments {
    #[command(flatten)]
    check: CheckArguments,
    /// A squashfs image of the same tree, for unsquashfs; made of the first image if none is named
    #[arg(long, value_name = "FILE")]
    squashfs: Option<PathBuf>,
}

#[derive(Debug, Clone, Args)]
pub(crate) struct BuildArguments {
    /// The tree
    source: PathBuf,
    /// Use only so much of the tree, copied beside the images; 4 MiB at most with --quick
    #[arg(long, value_name = "BYTES", value_parser = clap::value_parser!(u64).range(1..))]
    most_bytes: Option<u64>,
    #[command(flatten)]
    common: CommandArguments,
}

#[derive(Debug, Clone, Args)]
pub(crate) struct MemoryArguments {
    #[command(flatten)]
    check: CheckArguments,
}

#[derive(Debug, Clone, Args)]
pub(crate) struct QuotaArguments {
    #[command(flatten)]
    check: CheckArguments,
}

/// One run of all commands: the row of the table, and what the words of the commands name.
struct Subject {
    case: String,
    /// By which commands and thresholds know it.
    name: String,
    /// Read into the page cache before each command.
    inputs: Vec<PathBuf>,
    values: Values,
    confinement: Confinement,
}

/// How one CPU is made available to a command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Confinement {
    Free,
    Affinity,
    Cpuset,
    Quota,
}

/// With their names and the controllers that they need.
const CONFINEMENTS: [(Confinement, &str, &str); 4] = [
    (Confinement::Free, "free", ""),
    (Confinement::Affinity, "bound to 1 CPU", ""),
    (Confinement::Cpuset, "cpuset of 1 CPU", "cpuset"),
    (Confinement::Quota, "quota of 1 CPU", "cpu"),
];

fn text(path: &Path) -> String {
    path.display().to_string()
}

impl CheckArguments {
    fn subjects(&self, squashfs: Option<&PathBuf>) -> Result<Vec<Subject>> {
        let subjects = ImageInfo::read_all(&self.images)?.into_iter().map(|image| {
            let named = [("image", Some(&image.path)), ("squashfs", squashfs)];
            let named = named.into_iter().filter_map(|(name, path)| Some((name, path?.clone())));
            let inputs = named.clone().map(|(_, path)| path).collect();
            let values = named.map(|(name, path)| (name.to_owned(), vec![text(&path)])).collect();
            let (case, name) = (image.name.clone(), image.name);
            Subject { case, name, inputs, values, confinement: Confinement::Free }
        });
        Ok(subjects.collect())
    }
}

impl Experiment for CheckArguments {
    fn run(&self, context: &mut Context<'_>) -> Result<()> {
        self.common.peers.programs.ours()?;
        let folder = self.common.peers.folder()?;
        self.common.compare(context, self.subjects(None)?, folder.path())
    }
}

impl Experiment for ExtractArguments {
    fn run(&self, context: &mut Context<'_>) -> Result<()> {
        let (peers, is_quick) = (&self.check.common.peers, context.is_quick);
        peers.programs.ours()?;
        let folder = peers.folder_in_memory()?;
        let mut squashfs = None;
        if peers.programs.peer(UNSQUASHFS).is_ok() {
            let first = ImageInfo::read(self.check.images.first().context("no image")?)?;
            let given = self.squashfs.as_deref();
            match squashfs_of(&first, given, &peers.programs, is_quick, folder.path())? {
                Ok(path) => squashfs = Some(path),
                Err(why) => context.report.leave_out(UNSQUASHFS, why),
            }
        }
        context.report.remark(format!("into new folders in {}", place_of(folder.path())));
        let subjects = self.check.subjects(squashfs.as_ref())?;
        self.check.common.compare(context, subjects, folder.path())
    }
}

impl Experiment for BuildArguments {
    fn run(&self, context: &mut Context<'_>) -> Result<()> {
        self.common.peers.programs.ours()?;
        let folder = self.common.peers.folder_in_memory()?;
        let mut source = self.source.canonicalize().with_context(|| text(&self.source))?;
        let quick = context.is_quick.then_some(QUICK_BYTES);
        if let Some(most) = [self.most_bytes, quick].into_iter().flatten().min() {
            let part = folder.path().join("part");
            copy_part(&source, &part, most)?;
            context.report.remark("a part of the tree only, copied beside the images");
            source = part;
        }
        let (bytes, entries) = read_in(&source)?;
        context.report.remark(format!("{:.1} MB in {entries} entries", bytes as f64 / 1e6));
        context.report.remark(format!("images go to {}", place_of(folder.path())));
        let subjects = context.report.case.variants.clone().into_iter().map(|variant| {
            let (case, name, mut values) = (variant.name.clone(), variant.name, variant.values);
            values.insert("source".to_owned(), vec![text(&source)]);
            let (inputs, confinement) = (vec![source.clone()], Confinement::Free);
            Subject { case, name, inputs, values, confinement }
        });
        self.common.compare(context, subjects.collect(), folder.path())
    }
}

impl Experiment for MemoryArguments {
    fn run(&self, context: &mut Context<'_>) -> Result<()> {
        if !has_controller("memory") || !is_root() {
            context.report.leave_out("memory cgroups", "they need root and the memory controller");
        }
        self.check.run(context)
    }
}

impl Experiment for QuotaArguments {
    fn requirements(&self) -> Vec<Requirement<'_>> {
        vec![Requirement::Root]
    }

    fn run(&self, context: &mut Context<'_>) -> Result<()> {
        let folder = self.check.common.peers.folder()?;
        let images = self.check.subjects(None)?;
        let mut subjects = Vec::new();
        for (verb, image) in ["check", "extract"]
            .iter()
            .flat_map(|verb| images.iter().map(move |image| (verb, image)))
        {
            for (confinement, name, controller) in CONFINEMENTS {
                let case = format!("{verb} {}, {name}", image.case);
                if !controller.is_empty() && !has_controller(controller) {
                    context.report.leave_out(&case, format!("needs a {controller} cgroup"));
                    continue;
                }
                let mut values = image.values.clone();
                values.insert("verb".to_owned(), vec![(*verb).to_owned()]);
                let (name, inputs) = (name.to_owned(), image.inputs.clone());
                subjects.push(Subject { case, name, inputs, values, confinement });
            }
        }
        self.check.common.compare(context, subjects, folder.path())
    }
}

/// The threads of every program, in the words of each.
fn threads(jobs: Option<u16>) -> Values {
    let jobs = jobs.map(|jobs| jobs.to_string());
    // mksquashfs has no word of one piece for it.
    let processors = jobs.iter().flat_map(|jobs| ["-processors".to_owned(), jobs.clone()]);
    let processors = ("processors".to_owned(), processors.collect());
    let jobs = jobs.map(|jobs| ("jobs".to_owned(), vec![jobs]));
    [processors].into_iter().chain(jobs).collect()
}

impl CommandArguments {
    /// Runs the commands of the case on each subject, in turn.
    fn compare(
        &self,
        context: &mut Context<'_>,
        subjects: Vec<Subject>,
        folder: &Path,
    ) -> Result<()> {
        context.plan(self.peers.rounds, subjects.len());
        context.report.remark("caches: inputs are read into the page cache before each run");
        let case = context.report.case.clone();
        let mut programs: Vec<(&str, Option<Program>)> = Vec::new();
        for command in &case.commands {
            let name = command.program.as_str();
            if programs.iter().all(|(known, _)| *known != name) {
                programs.push((name, self.peers.programs.find(name, &mut context.report)));
            }
        }
        let output = folder.join("output");
        let mut sheet = context.sheet("commands", "");
        for mut subject in subjects {
            subject.values.extend(threads(self.jobs));
            // What is checked has no output.
            let has_output = subject.values.get("verb").is_none_or(|verb| verb[0] != "check");
            let output_words = if has_output { vec![text(&output)] } else { Vec::new() };
            subject.values.insert("output".to_owned(), output_words);
            let (subject, wanted, mut candidates) = (&subject, &Cell::new(None), Vec::new());
            for command in &case.commands {
                let program = programs.iter().find(|(program, _)| *program == command.program);
                let program = program.and_then(|(_, program)| program.as_ref());
                let words = command.fill(&subject.name, &subject.values);
                let Some((program, words)) = program.zip(words) else { continue };
                let invocation =
                    Invocation { called: command.called.clone(), ..program.with(words) };
                context.report.peer_command(&command.name, invocation.line());
                let (output, limit_mib) = (output.as_path(), command.limit_mib);
                let wanted = Some(wanted).filter(|_| command.is_compared);
                let mut run =
                    CommandRun { invocation, subject, output, limit_mib, wanted, threads: None };
                if command.counts_threads {
                    // Counting takes time, and is done once and apart.
                    run.threads = Some(run.count_threads()?);
                }
                candidates.push(program.candidate(&command.name, move || run.once()));
            }
            let all = context.measure(&subject.case, candidates)?;
            sheet.add(&subject.case, &all);
            context.report.judge_all(&subject.case, &[&subject.name], &all);
        }
        context.report.sheet(sheet);
        Ok(())
    }
}

/// A command on a subject.
struct CommandRun<'a> {
    invocation: Invocation,
    subject: &'a Subject,
    output: &'a Path,
    /// Of `--memory`: it runs once more in a memory cgroup of that size.
    limit_mib: Option<u32>,
    /// What the first command wrote, which this one must write, too.
    wanted: Option<&'a Cell<Option<Seen>>>,
    threads: Option<usize>,
}

impl CommandRun<'_> {
    fn once(&self) -> Result<Figures> {
        self.subject.inputs.iter().try_for_each(|input| read_in(input).map(drop))?;
        let (cost, size) = self.confined(None)?;
        let mut figures = cost.figures();
        figures.extend(size.map(|size| (SIZE, size)));
        figures.extend(self.threads.map(|threads| (THREADS, threads as f64)));
        let Some(mib) = self.limit_mib else { return Ok(figures) };
        figures.push((OF_LIMIT, cost.peak_kib as f64 / 1024.0 / f64::from(mib)));
        if has_controller("memory") && is_root() {
            // The next command must not pay for dirty pages of the last.
            rustix::fs::sync();
            let group = Group::of_memory(u64::from(mib) << 20)?;
            group.forbid_swap()?;
            let (cost, _) = self.run(&mut group.inside(&self.invocation.command()), None)?;
            figures.extend([
                (WALL_IN_GROUP, cost.wall.as_secs_f64()),
                (KILLED, group.killed() as f64),
                (CHARGED, group.peak_bytes() as f64 / MIB),
            ]);
        }
        Ok(figures)
    }

    /// The most threads that were seen.
    fn count_threads(&self) -> Result<usize> {
        let mut most = 0;
        self.confined(Some(&mut |child: &Child| most = most_threads(child.id())))?;
        Ok(most)
    }

    /// One run on the CPUs of the subject.
    fn confined(&self, watch: Option<&mut dyn FnMut(&Child)>) -> Result<(Cost, Option<f64>)> {
        let home = CpuSet::of_current_thread();
        let cpu = home.iter().next().context("no CPU")?;
        let group = match self.subject.confinement {
            Confinement::Cpuset => Some(Group::of_cpu(cpu)?),
            Confinement::Quota => Some(Group::of_quota()?),
            Confinement::Free | Confinement::Affinity => None,
        };
        if self.subject.confinement == Confinement::Affinity {
            CpuSet::from_iter([cpu]).bind_current_thread()?;
        }
        let command = self.invocation.command();
        let inside = group.as_ref().map(|group| group.inside(&command));
        let ran = self.run(&mut inside.unwrap_or(command), watch);
        home.bind_current_thread()?;
        ran
    }

    /// One run, and the size of an image that it made; its output is taken away, also that of a failed one.
    fn run(
        &self,
        command: &mut Command,
        watch: Option<&mut dyn FnMut(&Child)>,
    ) -> Result<(Cost, Option<f64>)> {
        let ran = process::run(command, watch);
        let mut size = None;
        if self.output.is_file() {
            size = Some(fs::metadata(self.output)?.len() as f64);
            fs::remove_file(self.output).context("removing an image")?;
            rustix::fs::sync();
        } else if let Some(wanted) = self.wanted.filter(|_| ran.is_ok()) {
            let (_, seen) = Reader { sums: true, ..Reader::new(Pattern::Tree) }.run(self.output)?;
            let is_same = wanted.replace(Some(seen)).is_none_or(|wanted| wanted == seen);
            ensure!(is_same, "{} bytes were extracted, or others than by the first", seen.bytes);
        }
        put_away(self.output)?;
        Ok((ran?.0, size))
    }
}

/// The most threads of a process until it ends.
fn most_threads(process: u32) -> usize {
    let is_running = || {
        let stat = fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
        stat.rsplit_once(") ").is_some_and(|(_, state)| !state.starts_with('Z'))
    };
    let mut most = 0;
    while is_running() {
        most = most.max(fs::read_dir(format!("/proc/{process}/task")).map_or(0, Iterator::count));
        sleep(LOOK);
    }
    most
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::case::Case;

    fn lines(case: &str, variant: &str, names: &[&str], jobs: Option<u16>) -> Vec<String> {
        let case = Case::of(case).unwrap();
        let mut all = threads(jobs);
        let own = case.variants.iter().filter(|own| own.name == variant);
        all.extend(own.flat_map(|own| own.values.clone()));
        all.extend(names.iter().map(|name| ((*name).to_owned(), vec![(*name).to_owned()])));
        let words = case.commands.iter().filter_map(|command| command.fill(variant, &all));
        words.map(|words| words.join(" ")).collect()
    }

    #[test]
    fn every_builder_gets_the_same_options() {
        let all = lines("build", "lz4hc-64k-all", &["output", "source"], Some(2));
        let options = "-zlz4hc -C65536 -Efragments,dedupe,ztailpacking --workers=2 output source";
        assert!(all.len() == 4 && all[0].ends_with(options) && all[0] == all[1], "{all:?}");
        assert!(all[3].contains("--no-verify") && all[3].contains("--inline-pclusters --jobs=2"));
        let zstd = &lines("build", "zstd-64k", &["output", "source"], Some(2))[4];
        assert!(zstd.starts_with("source output -comp zstd") && zstd.ends_with("-processors 2"));
    }

    #[test]
    fn a_command_without_its_input_is_left_out_and_an_option_without_a_value_is_dropped() {
        let all = lines("extract", "", &["image", "output"], None);
        assert!(all.len() == 3 && all.iter().all(|line| !line.starts_with("-quiet")), "{all:?}");
        assert_eq!(all[2], "extract --quiet --progress=none image output");
    }

    #[test]
    fn threads_are_counted_until_the_process_ends() {
        let mut child = Command::new("sleep").arg("0.05").spawn().unwrap();
        assert_eq!(most_threads(child.id()), 1);
        assert!(child.wait().unwrap().success());
    }
}

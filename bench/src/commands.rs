//! Experiments that run whole commands: `extract` and `check` beside fsck.erofs and unsquashfs, `build` beside mkfs.erofs and
//! mksquashfs, `memory` (peak memory against --memory), and `quota` (time and threads where one CPU is available). Their cases
//! name the programs with their words; names in braces stand for images, outputs and options.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use clap::Args;
use ferrofs_workers::cpus::CpuSet;
use procfs::process::Process;

use crate::case::{Case, CaseCommand, CaseVariant, Confinement, Values};
use crate::cgroup::{Cgroup, has_controller};
use crate::experiment::{Candidate, Context, Experiment, up_to};
use crate::image_info::ImageInfo;
use crate::machine::{is_root, missing};
use crate::process::{self, Cost};
use crate::programs::{Invocation, PeerArguments, place_of, squashfs_of};
use crate::reader::{Observation, Pattern, Reader};
use crate::statistics::{Figures, MIB};
use crate::trees::{copy_part, put_away, read_in};

/// A quick run uses this much of the tree.
const QUICK_BYTES: u64 = 4 << 20;
const UNSQUASHFS: &str = "unsquashfs";
/// How often threads are counted; those that live for less than this may be missed.
const LOOK: Duration = Duration::from_micros(500);

#[derive(Debug, Clone, Args)]
struct CommandArguments {
    /// Number of threads of every program. The experiment `quota` measures the default number and
    /// refuses this option [default: the default of each program]
    #[arg(short, long, value_name = "N", value_parser = up_to(512))]
    jobs: Option<u16>,
    #[command(flatten)]
    peers: PeerArguments,
}

/// Of `check`, `memory` and `quota`.
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
    /// A squashfs image of the same tree, for unsquashfs [default: one that is made from the first IMAGE]
    #[arg(long, value_name = "FILE")]
    squashfs: Option<PathBuf>,
}

#[derive(Debug, Clone, Args)]
pub(crate) struct BuildArguments {
    /// The directory to build images from
    source: PathBuf,
    /// Build from a copy of a part of the directory, of at most this size; the copy lies beside the images. With
    /// --quick, at most 4 MiB
    #[arg(long, value_name = "BYTES", value_parser = clap::value_parser!(u64).range(1..))]
    most_bytes: Option<u64>,
    /// Build only these variants, separated by commas. Their names state the algorithm and the
    /// maximum pcluster size; the suffix -all stands for fragments, dedupe and inline pclusters
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = build_variants())]
    only: Vec<String>,
    #[command(flatten)]
    common: CommandArguments,
}

/// One run of all commands: the row of the table, and what the words of the commands name.
type Workload = (String, CaseVariant);

/// Inputs, by the names that they have in words. They are read into the page cache before each command.
const INPUTS: [&str; 3] = ["image", "squashfs", "source"];

fn build_variants() -> Vec<&'static str> {
    let variants = Case::of("build").map(|case| case.variants).unwrap_or_default();
    // The description of the command line keeps them as long as the program runs.
    variants.into_iter().map(|variant| &*variant.name.leak()).collect()
}

fn text(path: &Path) -> String {
    path.display().to_string()
}

impl CheckArguments {
    /// Runs the commands on each image in each variant of the case.
    fn compare(
        &self,
        context: &mut Context<'_>,
        squashfs: Option<&PathBuf>,
        folder: &Path,
    ) -> Result<()> {
        let (mut workloads, mut variants) = (Vec::new(), context.report.case.variants.clone());
        if variants.is_empty() {
            variants.push(CaseVariant::default());
        }
        for image in ImageInfo::read_all(&self.images)? {
            for mut variant in variants.clone() {
                variant.values.insert("image".to_owned(), vec![text(&image.path)]);
                let squashfs = squashfs.map(|path| ("squashfs".to_owned(), vec![text(path)]));
                variant.values.extend(squashfs);
                let case = match variant.values.get("verb") {
                    Some(verb) => format!("{} {}, {}", verb.join(" "), image.name, variant.name),
                    None => image.name.clone(),
                };
                match missing(&variant.requires) {
                    Some(missing) => context.report.leave_out(case, missing),
                    None => workloads.push((case, variant)),
                }
            }
        }
        self.common.compare(context, workloads, folder)
    }
}

impl Experiment for CheckArguments {
    fn run(&self, context: &mut Context<'_>) -> Result<()> {
        self.common.peers.programs.ours()?;
        let folder = self.common.peers.folder()?;
        self.compare(context, None, folder.path())
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
            match squashfs_of(&first, given, &peers.programs, is_quick, folder.path()) {
                Ok(path) => squashfs = Some(path),
                Err(why) => context.report.leave_out(UNSQUASHFS, why),
            }
        }
        context.report.remark(format!("into new folders in {}", place_of(folder.path())));
        self.check.compare(context, squashfs.as_ref(), folder.path())
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
        let mut variants = context.report.case.variants.clone();
        variants.retain(|one| self.only.is_empty() || self.only.contains(&one.name));
        let workloads = variants.into_iter().map(|mut variant| {
            variant.values.insert("source".to_owned(), vec![text(&source)]);
            (variant.name.clone(), variant)
        });
        self.common.compare(context, workloads.collect(), folder.path())
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

fn has_memory_cgroup() -> bool {
    has_controller("memory") && is_root()
}

impl CommandArguments {
    /// Runs the commands of the case on each workload, in turn.
    fn compare(
        &self,
        context: &mut Context<'_>,
        workloads: Vec<Workload>,
        folder: &Path,
    ) -> Result<()> {
        let commands = context.report.case.commands.clone();
        let takes_jobs = commands.iter().any(|command| command.takes_jobs());
        ensure!(
            self.jobs.is_none() || takes_jobs,
            "this experiment sets --jobs itself: leave it out"
        );
        if commands.iter().any(|command| command.limit_mib.is_some()) && !has_memory_cgroup() {
            context.report.leave_out("memory cgroups", "they need root and the memory controller");
        }
        context.plan(self.peers.rounds, workloads.len());
        context.report.remark("caches: inputs are read into the page cache before each run");
        let mut programs = BTreeMap::new();
        for command in &commands {
            let find = || self.peers.programs.find(&command.program, &mut context.report);
            programs.entry(command.program.as_str()).or_insert_with(find);
        }
        let output = folder.join("output");
        for (case, mut variant) in workloads {
            let values = &mut variant.values;
            values.extend(threads(self.jobs));
            // What is checked has no output.
            let has_output = values.get("verb").is_none_or(|verb| verb[0] != "check");
            let output_words = if has_output { vec![text(&output)] } else { Vec::new() };
            values.insert("output".to_owned(), output_words);
            let (variant, wanted, mut candidates) = (&variant, &Cell::new(None), Vec::new());
            let name = variant.name.as_str();
            for command in &commands {
                let words = command.fill(name, &variant.values);
                let Some((program, words)) = programs[&*command.program].as_ref().zip(words) else {
                    continue;
                };
                let (called, output) = (command.called.clone(), output.as_path());
                let invocation = Invocation { called, ..program.with(words) };
                context.report.peer_command(&command.name, invocation.line());
                let mut run =
                    CommandRun { command, invocation, variant, output, wanted, threads: None };
                if command.counts_threads {
                    // Counting takes time, and is done once and apart.
                    run.threads = Some(run.count_threads()?);
                }
                let name = &command.name;
                candidates.push(Candidate::of(&command.program, name, move || run.once()));
            }
            context.compare(["commands", "", &case], &[name], candidates)?;
        }
        Ok(())
    }
}

struct CommandRun<'a> {
    command: &'a CaseCommand,
    invocation: Invocation,
    variant: &'a CaseVariant,
    output: &'a Path,
    /// What the first command wrote that is compared.
    wanted: &'a Cell<Option<Observation>>,
    threads: Option<i64>,
}

impl CommandRun<'_> {
    fn once(&self) -> Result<Figures> {
        let inputs = INPUTS.iter().filter_map(|name| self.variant.values.get(*name));
        inputs.flatten().try_for_each(|input| read_in(Path::new(input)).map(drop))?;
        let (cost, size) = self.confined(|command| self.run(command))?;
        let (wall, peak) = (cost.wall.as_secs_f64(), cost.peak_kib as f64 / 1024.0);
        let mut figures = vec![("wall", wall), ("CPU", cost.cpu.as_secs_f64()), ("peak", peak)];
        figures.extend(size.map(|size| ("size", size)));
        figures.extend(self.threads.map(|threads| ("threads", threads as f64)));
        let Some(mib) = self.command.limit_mib else { return Ok(figures) };
        figures.push(("of limit", peak / f64::from(mib)));
        if has_memory_cgroup() {
            // The next command must not pay for dirty pages of the last.
            rustix::fs::sync();
            let group = Cgroup::of_memory(u64::from(mib) << 20)?;
            group.forbid_swap()?;
            let ran = self.run(&mut group.inside(&self.invocation.command()));
            let killed = group.killed();
            // A threshold judges how many were killed; what one of them would have taken is not known.
            match ran {
                Ok((cost, _)) => figures.push(("wall in a cgroup", cost.wall.as_secs_f64())),
                Err(error) if killed == 0 => return Err(error),
                Err(_) => {}
            }
            figures
                .extend([("killed", killed as f64), ("charged", group.peak_bytes() as f64 / MIB)]);
        }
        Ok(figures)
    }

    fn count_threads(&self) -> Result<i64> {
        self.confined(|command| {
            command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
            let mut child = command.spawn().context("starting a command to count its threads")?;
            let most = max_threads(&child);
            child.wait()?;
            put_away(self.output)?;
            most
        })
    }

    /// Has the command run on the CPUs of the workload.
    fn confined<T>(&self, run: impl FnOnce(&mut Command) -> Result<T>) -> Result<T> {
        let home = CpuSet::of_current_thread();
        let cpu = home.iter().next().context("no CPU")?;
        let group = match self.variant.confine {
            Confinement::Cpuset => Some(Cgroup::of_cpu(cpu)?),
            Confinement::Quota => Some(Cgroup::of_quota()?),
            Confinement::Affinity => {
                CpuSet::from_iter([cpu]).bind_current_thread()?;
                None
            }
            Confinement::Free => None,
        };
        let command = self.invocation.command();
        let inside = group.as_ref().map(|group| group.inside(&command));
        let ran = run(&mut inside.unwrap_or(command));
        home.bind_current_thread()?;
        ran
    }

    /// One run, and the size of an image that it made; its output is taken away, also that of a failed one.
    fn run(&self, command: &mut Command) -> Result<(Cost, Option<f64>)> {
        let ran = process::run(command);
        let mut size = None;
        if self.output.is_file() {
            size = Some(fs::metadata(self.output)?.len() as f64);
            fs::remove_file(self.output).context("removing an image")?;
            rustix::fs::sync();
        } else if self.command.is_compared && ran.is_ok() {
            let (_, seen) = Reader { sums: true, ..Reader::new(Pattern::Tree) }.run(self.output)?;
            let is_same = self.wanted.replace(Some(seen)).is_none_or(|wanted| wanted == seen);
            let bytes = seen.bytes;
            ensure!(is_same, "{bytes} bytes were extracted, or others than by the first");
        }
        put_away(self.output)?;
        Ok((ran?.0, size))
    }
}

/// The most threads of a process until it ends.
fn max_threads(child: &Child) -> Result<i64> {
    let (process, mut most) = (Process::new(i32::try_from(child.id())?)?, 0);
    while let Ok(stat) = process.stat()
        && stat.state != 'Z'
    {
        most = most.max(stat.num_threads);
        sleep(LOOK);
    }
    Ok(most)
}

#[cfg(test)]
mod tests {
    use super::*;

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
    fn every_extractor_gets_the_same_threads() {
        let all = lines("extract", "", &["output", "image", "squashfs"], Some(2));
        let is_told =
            |words: &&String| words.contains("-processors 2") || words.contains("--jobs=2");
        // fsck.erofs has one thread, as the first of ours.
        assert_eq!(all.iter().filter(is_told).count(), 2, "{all:?}");
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
        assert_eq!(max_threads(&child).unwrap(), 1);
        assert!(child.wait().unwrap().success());
    }
}

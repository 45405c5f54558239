//! Experiments that run our program on images under a limit: `memory` (peak memory against --memory), and `quota` (time and
//! threads where one CPU is available).

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Child;
use std::thread::sleep;
use std::time::Duration;

use anyhow::{Result, ensure};
use clap::Args;
use ferrofs_workers::cpus::CpuSet;
use serde::Serialize;

use crate::cgroup::{Group, has_controller};
use crate::experiment::{Context, Experiment};
use crate::image_info::ImageInfo;
use crate::machine::Requirement;
use crate::process;
use crate::programs::{Invocation, PeerArguments, Program};
use crate::reader::{Pattern, Reader, Seen};
use crate::rounds::{Candidate, ratio};
use crate::statistics::{Figure, Figures, PEAK, WALL};
use crate::table::Sheet;
use crate::trees::{put_away, read_file};

const FSCK: &str = "fsck.erofs";
const MIB: f64 = 1_048_576.0;
/// How often threads are counted; those that live for less than this may be missed.
const LOOK: Duration = Duration::from_micros(500);
const OF_LIMIT: Figure = Figure::new("of limit", "", 2);
const KILLED: Figure = Figure::new("killed", "", 0);
const WALL_IN_GROUP: Figure = Figure::new("wall in a cgroup", "s", 3);
const CHARGED: Figure = Figure::new("charged", "MiB", 1);
const THREADS: Figure = Figure::new("threads", "", 0);

/// What all of these experiments have.
#[derive(Debug, Clone, Args, Serialize)]
struct ImageArguments {
    /// EROFS images
    #[arg(required = true, value_name = "IMAGE")]
    images: Vec<PathBuf>,
    #[command(flatten)]
    peers: PeerArguments,
}

#[derive(Debug, Clone, Args, Serialize)]
pub(crate) struct MemoryArguments {
    #[command(flatten)]
    common: ImageArguments,
    /// Limits of --memory
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "32M,64M,256M")]
    #[arg(value_parser = size)]
    memory: Vec<u64>,
    /// Threads of ours; as many as the system runs at once if not given
    #[arg(short, long, value_name = "N")]
    #[arg(value_parser = clap::value_parser!(u16).range(1..=512))]
    jobs: Option<u16>,
}

#[derive(Debug, Clone, Args, Serialize)]
pub(crate) struct QuotaArguments {
    #[command(flatten)]
    common: ImageArguments,
    /// The CPU that is available
    #[arg(long, value_name = "CPU", default_value_t = 0)]
    cpu: usize,
}

/// Bytes with a suffix K, M or G.
pub(crate) fn size(text: &str) -> Result<u64, String> {
    let shift = match text.chars().last() {
        Some('K') => 10,
        Some('M') => 20,
        Some('G') => 30,
        _ => return Err("a number with K, M or G".to_owned()),
    };
    let number: u64 = text[..text.len() - 1].parse().map_err(|error| format!("{error}"))?;
    number.checked_mul(1 << shift).ok_or_else(|| "too large".to_owned())
}

/// A run of our program; an extraction goes to the output of `folder`.
fn verb(
    ours: &Program,
    verb: &str,
    option: Option<String>,
    image: &Path,
    folder: &Path,
) -> Invocation {
    let invocation = Invocation::new(ours).with([verb, "--quiet", "--progress=none"]);
    let output = (verb == "extract").then(|| output_of(folder));
    invocation.with(option).with([image]).with(output)
}

fn output_of(folder: &Path) -> PathBuf {
    folder.join("output")
}

/// Takes the output of a run away, also that of a failed one.
fn discard_output(folder: &Path) -> Result<()> {
    let output = output_of(folder);
    if output.exists() { put_away(&output, &folder.join("trash")) } else { Ok(()) }
}

/// Runs a program on an image that is in the page cache.
fn timed<'a>(
    context: &mut Context<'_>,
    name: &str,
    invocation: Invocation,
    source: PathBuf,
    folder: &'a Path,
) -> Candidate<'a> {
    context.report.peer_command(name, invocation.line());
    invocation.program.clone().candidate(name, move || {
        read_file(&source)?;
        let cost = process::run(&mut invocation.command(), None);
        discard_output(folder)?;
        Ok(cost?.0.figures())
    })
}

impl Experiment for MemoryArguments {
    fn run(&self, context: &mut Context<'_>) -> Result<()> {
        let peers = &self.common.peers;
        let ours = peers.programs.ours()?;
        let folder = peers.folder()?;
        let folder = folder.path();
        let fsck = peers.programs.find(FSCK, &mut context.report);
        let images = ImageInfo::read_all(&self.common.images)?;
        let is_grouped = has_controller("memory") && rustix::process::geteuid().is_root();
        if !is_grouped {
            context.report.leave_out("memory cgroups", "they need root and the memory controller");
        }
        context.plan(&peers.rounds, images.len());
        context.report.remark(ours.to_string());
        let mut sheet = Sheet::of(&context.report.case, "Peak memory").bars(PEAK);
        let jobs = self.jobs.map(|jobs| format!("--jobs={jobs}"));
        for image in &images {
            let mut candidates = Vec::new();
            for name in ["extract", "check"] {
                let invocation = verb(&ours, name, None, &image.path, folder);
                let unlimited =
                    if name == "extract" { Some(extracted(&invocation, folder)?) } else { None };
                for &memory in &self.memory {
                    let invocation =
                        verb(&ours, name, Some(format!("--memory={memory}")), &image.path, folder);
                    let invocation = invocation.with(jobs.clone());
                    let name = format!("ferrofs {name} --memory={}M", memory >> 20);
                    context.report.peer_command(&name, invocation.line());
                    let run = MemoryRun { memory, is_grouped, wanted: unlimited };
                    let source = image.path.clone();
                    candidates
                        .push(Candidate::ours(name, move || run.run(&invocation, &source, folder)));
                }
            }
            let output = format!("--extract={}", output_of(folder).display());
            for program in fsck.iter() {
                for (name, option) in [
                    ("fsck.erofs --extract=DIR", output.as_str()),
                    ("fsck.erofs --extract", "--extract"),
                ] {
                    let invocation = Invocation::new(program).with([option]).with([&image.path]);
                    candidates.push(timed(context, name, invocation, image.path.clone(), folder));
                }
            }
            context.compare(&image.name, candidates, &mut sheet)?;
        }
        context.report.sheet(sheet);
        Ok(())
    }
}

/// Runs an extraction, and answers what it wrote.
fn extracted(invocation: &Invocation, folder: &Path) -> Result<Seen> {
    process::run(&mut invocation.command(), None)?;
    let reader = Reader { sums: true, ..Reader::new(Pattern::Tree) };
    let (_, seen) = reader.run(&output_of(folder))?;
    discard_output(folder)?;
    Ok(seen)
}

#[derive(Clone, Copy)]
struct MemoryRun {
    memory: u64,
    is_grouped: bool,
    /// What an extraction must write.
    wanted: Option<Seen>,
}

impl MemoryRun {
    /// A run for its peak, and one in a cgroup that may use just as much and no swap, page cache included.
    fn run(self, invocation: &Invocation, source: &Path, folder: &Path) -> Result<Figures> {
        read_file(source)?;
        let (cost, _) = process::run(&mut invocation.command(), None)?;
        self.compare(folder)?;
        let mut figures = cost.figures();
        figures.push((OF_LIMIT, cost.peak_kib as f64 * 1024.0 / self.memory as f64));
        if self.is_grouped {
            // The next command must not pay for dirty pages of the last.
            rustix::fs::sync();
            let group = Group::of_memory(self.memory)?.without_swap()?;
            let (cost, _) = process::run(&mut group.inside(&invocation.command()), None)?;
            self.compare(folder)?;
            figures.extend([
                (WALL_IN_GROUP, cost.wall.as_secs_f64()),
                (KILLED, group.killed() as f64),
                (CHARGED, group.peak_bytes() as f64 / MIB),
            ]);
        }
        Ok(figures)
    }

    fn compare(self, folder: &Path) -> Result<()> {
        let Some(wanted) = self.wanted else { return Ok(()) };
        let (_, seen) =
            Reader { sums: true, ..Reader::new(Pattern::Tree) }.run(&output_of(folder))?;
        discard_output(folder)?;
        let bytes = seen.bytes;
        ensure!(seen == wanted, "{bytes} bytes were extracted, or others than without a limit");
        Ok(())
    }
}

/// How one CPU is made available, with its name and the controller that it needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Confinement {
    Free,
    Affinity,
    Cpuset,
    Quota,
}

const CONFINEMENTS: [(Confinement, &str, &str); 4] = [
    (Confinement::Free, "free", ""),
    (Confinement::Affinity, "bound to 1 CPU", ""),
    (Confinement::Cpuset, "cpuset of 1 CPU", "cpuset"),
    (Confinement::Quota, "quota of 1 CPU", "cpu"),
];

impl Experiment for QuotaArguments {
    fn requirements(&self) -> Vec<Requirement> {
        vec![Requirement::Root]
    }

    fn run(&self, context: &mut Context<'_>) -> Result<()> {
        let peers = &self.common.peers;
        let ours = peers.programs.ours()?;
        let folder = peers.folder()?;
        let folder = folder.path();
        let images = ImageInfo::read_all(&self.common.images)?;
        context.plan(&peers.rounds, images.len() * 2 * CONFINEMENTS.len());
        context.report.remark(ours.to_string());
        let title = "Default threads where one CPU is available";
        let mut sheet = Sheet::of(&context.report.case, title).bars(WALL).steady(WALL);
        let verbs = ["check", "extract"].into_iter();
        let runs = verbs.flat_map(|name| images.iter().map(move |image| (name, image)));
        let runs = runs.flat_map(|run| CONFINEMENTS.map(|confinement| (run, confinement)));
        for ((name, image), (confinement, how, controller)) in runs {
            let case = format!("{name} {}, {how}", image.name);
            if !controller.is_empty() && !has_controller(controller) {
                context.report.leave_out(&case, format!("needs a {controller} cgroup"));
                continue;
            }
            let candidate = |program: &'static str, option: Option<&str>| {
                let option = option.map(str::to_owned);
                let invocation = verb(&ours, name, option, &image.path, folder);
                let threads = self.confined(confinement, &invocation, folder, true)?;
                let threads = threads.into_iter().filter(|(figure, _)| *figure == THREADS);
                let threads: Figures = threads.collect();
                anyhow::Ok(Candidate::ours(program, move || {
                    let mut figures = self.confined(confinement, &invocation, folder, false)?;
                    figures.extend_from_slice(&threads);
                    Ok(figures)
                }))
            };
            let candidates =
                vec![candidate("default", None)?, candidate("--jobs 1", Some("--jobs=1"))?];
            let all = context.compare(&case, candidates, &mut sheet)?;
            // With all CPUs more threads are what the default is for.
            if confinement != Confinement::Free {
                for (threshold, figure) in [("wall", WALL), ("threads", THREADS)] {
                    let ratio = ratio(&all, figure, "default", "--jobs 1");
                    context.report.judge(threshold, &case, ratio);
                }
            }
        }
        context.report.sheet(sheet);
        Ok(())
    }
}

impl QuotaArguments {
    /// One run; with the most threads that were seen, if they are counted.
    fn confined(
        &self,
        confinement: Confinement,
        invocation: &Invocation,
        folder: &Path,
        counts: bool,
    ) -> Result<Figures> {
        let home = CpuSet::of_current_thread();
        let group = match confinement {
            Confinement::Cpuset => Some(Group::of_cpu(self.cpu)?),
            Confinement::Quota => Some(Group::of_quota(1)?),
            Confinement::Free | Confinement::Affinity => None,
        };
        if confinement == Confinement::Affinity {
            CpuSet::from_iter([self.cpu]).bind_current_thread()?;
        }
        let command = invocation.command();
        let mut command =
            group.as_ref().map_or(invocation.command(), |group| group.inside(&command));
        let mut most = 0;
        let mut count = |child: &Child| most = most_threads(child.id());
        let watch: Option<&mut dyn FnMut(&Child)> = if counts { Some(&mut count) } else { None };
        let cost = process::run(&mut command, watch);
        home.bind_current_thread()?;
        discard_output(folder)?;
        let mut figures = cost?.0.figures();
        figures.extend(counts.then_some((THREADS, most as f64)));
        Ok(figures)
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
    use std::process::Command;

    use super::{most_threads, size};

    #[test]
    fn sizes_have_a_suffix() {
        assert_eq!(size("32M"), Ok(32 << 20));
        assert_eq!(size("1G"), Ok(1 << 30));
        for text in ["32", "M", "", "-1M", "99999999999999G"] {
            assert!(size(text).is_err(), "{text}");
        }
    }

    #[test]
    fn threads_are_counted_until_the_process_ends() {
        let mut child = Command::new("sleep").arg("0.05").spawn().unwrap();
        assert_eq!(most_threads(child.id()), 1);
        assert!(child.wait().unwrap().success());
    }
}

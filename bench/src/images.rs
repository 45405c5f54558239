//! Experiments that run commands on images: `extract` and `check` beside fsck.erofs and unsquashfs, `memory` (peak memory
//! against --memory), and `quota` (time and threads where one CPU is available).

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Child;
use std::thread::sleep;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use clap::Args;
use ferrofs_workers::cpus::{AvailableCpus, CpuSet};
use serde::Serialize;

use crate::cgroup::{Group, has_controller};
use crate::comparison::{
    CPU, Candidate, Cell, Comparison, Figures, PEAK, RoundArguments, Schedule, Sheet, WALL,
    figures_of, place_of, ratio,
};
use crate::experiment::{Context, Experiment};
use crate::image_info::ImageInfo;
use crate::machine::Requirement;
use crate::process;
use crate::programs::{Invocation, Program, squashfs_of};
use crate::reader::{Pattern, Reader, Seen};
use crate::trees::{put_away, read_file};

const FSCK: &str = "fsck.erofs";
const UNSQUASHFS: &str = "unsquashfs";
const MIB: f64 = 1_048_576.0;
/// How often threads are counted; those that live for less than this may be missed.
const LOOK: Duration = Duration::from_micros(500);

/// What all of these experiments have.
#[derive(Debug, Clone, Args, Serialize)]
struct ImageArguments {
    /// EROFS images
    #[arg(required = true, value_name = "IMAGE")]
    images: Vec<PathBuf>,
    #[command(flatten)]
    rounds: RoundArguments,
    /// Threads of ours beside its run with one; as many as the system runs at once if not given
    #[arg(short, long, value_name = "N")]
    #[arg(value_parser = clap::value_parser!(u16).range(1..=512))]
    jobs: Option<u16>,
}

#[derive(Debug, Clone, Args, Serialize)]
pub(crate) struct ExtractArguments {
    #[command(flatten)]
    common: ImageArguments,
    /// A squashfs image of the same tree, for unsquashfs; made of the first image if none is named
    #[arg(long, value_name = "FILE")]
    squashfs: Option<PathBuf>,
}

#[derive(Debug, Clone, Args, Serialize)]
pub(crate) struct CheckArguments {
    #[command(flatten)]
    common: ImageArguments,
}

fn ours_with(jobs: u16) -> String {
    format!("ferrofs --jobs {jobs}")
}

impl ImageArguments {
    /// One, and more if there are more.
    fn thread_counts(&self) -> Vec<u16> {
        let available = u16::try_from(AvailableCpus::read().parallelism()).unwrap_or(u16::MAX);
        let mut counts = vec![1, self.jobs.unwrap_or(available)];
        counts.dedup();
        counts
    }
}

/// One run of a program on an image that is in the page cache. Its output, also that of a failed run, is put away.
fn timed(invocation: &Invocation, source: &Path, folder: &Path) -> Result<Figures> {
    read_file(source)?;
    let cost = process::run(&mut invocation.command(), None);
    let output = folder.join("output");
    if output.exists() {
        put_away(&output, &folder.join("trash"))?;
    }
    Ok(figures_of(cost?.0))
}

fn candidate<'a>(
    name: String,
    invocation: Invocation,
    source: PathBuf,
    folder: &'a Path,
) -> Candidate<'a> {
    let is_ours = invocation.program.is_ours();
    Candidate { name, is_ours, run: Box::new(move || timed(&invocation, &source, folder)) }
}

/// `extract` and `check`: the peers' invocations and ours for each image, with one thread and with more.
fn compare(
    context: &mut Context<'_>,
    name: &'static str,
    arguments: &ImageArguments,
    peers: impl Fn(&Path) -> Vec<(Invocation, PathBuf)>,
    folder: &Path,
) -> Result<()> {
    let ours = arguments.rounds.programs.ours()?;
    let images = ImageInfo::read_all(&arguments.images)?;
    let schedule = Schedule::new(&arguments.rounds, 1, context.is_quick);
    let mut comparison = Comparison::new(context, name, schedule, images.len());
    comparison.programs([&ours]);
    let one = ours_with(1);
    let header =
        "wall, s | CPU, s | peak, MiB | wall / fsck.erofs | wall / 1 thread | CPU / 1 thread";
    let cells = vec![
        Cell::Spread(WALL),
        Cell::Median(CPU),
        Cell::Median(PEAK),
        Cell::To(WALL, FSCK.to_owned()),
        Cell::To(WALL, one.clone()),
        Cell::To(CPU, one.clone()),
    ];
    let mut sheet = Sheet::new(name, header, cells, WALL);
    let threads = arguments.thread_counts();
    let output = folder.join("output");
    for image in &images {
        let mut candidates = Vec::new();
        for (invocation, source) in peers(&image.path) {
            let name = invocation.program.name;
            comparison.context.report.peer_command(name, invocation.line());
            candidates.push(candidate(name.to_owned(), invocation, source, folder));
        }
        for jobs in &threads {
            let invocation = Invocation::new(&ours).with([name, "--quiet", "--progress=none"]);
            let invocation = invocation.with([format!("--jobs={jobs}")]).with([&image.path]);
            let invocation = invocation.with((name == "extract").then_some(&output));
            comparison.context.report.peer_command(ours_with(*jobs), invocation.line());
            candidates.push(candidate(ours_with(*jobs), invocation, image.path.clone(), folder));
        }
        let all = comparison.run(&image.name, candidates, &mut sheet, |_, _| {})?;
        comparison.judge("one-thread", &image.name, ratio(&all, WALL, &one, FSCK));
        if let Some(many) = threads.get(1).map(|jobs| ours_with(*jobs)) {
            comparison.judge("many-threads", &image.name, ratio(&all, WALL, &many, FSCK));
            comparison.judge("gain", &image.name, ratio(&all, WALL, &many, &one));
            comparison.judge("cost", &image.name, ratio(&all, CPU, &many, &one));
        }
    }
    comparison.add(sheet);
    comparison.finish()
}

/// A peer that is there, named in the report with its version; a missing one is named, too.
fn present(
    context: &mut Context<'_>,
    name: &str,
    found: Result<Program, String>,
) -> Option<Program> {
    match found {
        Ok(program) => {
            let (version, path) = (&program.version, program.path.display());
            context.report.remark(format!("{name}: {version}, {path}"));
            Some(program)
        }
        Err(why) => {
            context.report.leave_out(name, why);
            None
        }
    }
}

impl Experiment for CheckArguments {
    fn run(&self, context: &mut Context<'_>) -> Result<()> {
        let rounds = &self.common.rounds;
        rounds.programs.ours()?;
        let folder = rounds.folder()?;
        let fsck = present(context, FSCK, rounds.programs.peer(FSCK));
        context.report.remark("caches: the image is read into the page cache before each run");
        let peers = |image: &Path| {
            let invocation = |program| Invocation::new(program).with(["--extract"]).with([image]);
            fsck.iter().map(|program| (invocation(program), image.to_path_buf())).collect()
        };
        compare(context, "check", &self.common, peers, folder.path())
    }
}

impl Experiment for ExtractArguments {
    fn run(&self, context: &mut Context<'_>) -> Result<()> {
        let rounds = &self.common.rounds;
        rounds.programs.ours()?;
        let folder = rounds.folder_in_memory()?;
        let fsck = present(context, FSCK, rounds.programs.peer(FSCK));
        let mut unsquashfs = present(context, UNSQUASHFS, rounds.programs.peer(UNSQUASHFS));
        let mut squashfs = PathBuf::new();
        if unsquashfs.is_some() {
            let first = ImageInfo::read(self.common.images.first().context("no image")?)?;
            let (given, is_quick) = (self.squashfs.as_deref(), context.is_quick);
            match squashfs_of(&first, given, &rounds.programs, is_quick, folder.path())? {
                Ok(path) => squashfs = path,
                Err(why) => {
                    context.report.leave_out(UNSQUASHFS, why);
                    unsquashfs = None;
                }
            }
        }
        context.report.remark(format!(
            "into new folders in {}; caches: the image is read into the page cache before each run",
            place_of(folder.path())
        ));
        let output = folder.path().join("output");
        let peers = |image: &Path| {
            let mut all = Vec::new();
            if let Some(program) = &fsck {
                let option = format!("--extract={}", output.display());
                let invocation = Invocation::new(program).with([option]).with([image]);
                all.push((invocation, image.to_path_buf()));
            }
            if let Some(program) = &unsquashfs {
                let invocation = Invocation::new(program).with(["-quiet", "-no-progress", "-d"]);
                all.push((invocation.with([&output, &squashfs]), squashfs.clone()));
            }
            all
        };
        compare(context, "extract", &self.common, peers, folder.path())
    }
}

#[derive(Debug, Clone, Args, Serialize)]
pub(crate) struct MemoryArguments {
    #[command(flatten)]
    common: ImageArguments,
    /// Limits of --memory
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "32M,64M,256M")]
    #[arg(value_parser = size)]
    memory: Vec<u64>,
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

impl Experiment for MemoryArguments {
    fn run(&self, context: &mut Context<'_>) -> Result<()> {
        let rounds = &self.common.rounds;
        let ours = rounds.programs.ours()?;
        let folder = rounds.folder()?;
        let fsck = present(context, FSCK, rounds.programs.peer(FSCK));
        let images = ImageInfo::read_all(&self.common.images)?;
        let is_grouped = has_controller("memory") && rustix::process::geteuid().is_root();
        if !is_grouped {
            context.report.leave_out("memory cgroups", "they need root and the memory controller");
        }
        let schedule = Schedule::new(rounds, 0, context.is_quick).at_most(1);
        let mut comparison = Comparison::new(context, "memory", schedule, images.len());
        comparison.programs([&ours]);
        let header =
            "peak, MiB | of the limit | wall, s | killed in a cgroup | wall there | charged, MiB";
        let cells = [PEAK, "of limit", WALL, "killed", "wall in a cgroup", "charged"];
        let mut sheet = Sheet::new("Peak memory", header, cells.map(Cell::Median).into(), PEAK);
        for image in &images {
            let mut candidates = Vec::new();
            let folder = folder.path();
            for verb in ["extract", "check"] {
                let command = |memory: Option<u64>| {
                    let invocation =
                        Invocation::new(&ours).with([verb, "--quiet", "--progress=none"]);
                    let invocation =
                        invocation.with(memory.map(|bytes| format!("--memory={bytes}")));
                    let jobs = self.common.jobs.map(|jobs| format!("--jobs={jobs}"));
                    let invocation = invocation.with(jobs).with([&image.path]);
                    invocation.with((verb == "extract").then(|| folder.join("output")))
                };
                let wanted =
                    if verb == "extract" { Some(extracted(&command(None), folder)?) } else { None };
                for &memory in &self.memory {
                    let invocation = command(Some(memory));
                    let name = format!("ferrofs {verb} --memory={}M", memory >> 20);
                    comparison.context.report.peer_command(&name, invocation.line());
                    let limits = MemoryRun { memory, is_grouped, wanted };
                    let source = image.path.clone();
                    let run = Box::new(move || limits.run(&invocation, &source, folder));
                    candidates.push(Candidate { name, is_ours: true, run });
                }
            }
            if let Some(program) = &fsck {
                let output = format!("--extract={}", folder.join("output").display());
                for (name, option) in [
                    ("fsck.erofs --extract=DIR", output),
                    ("fsck.erofs --extract", "--extract".to_owned()),
                ] {
                    let invocation = Invocation::new(program).with([option]).with([&image.path]);
                    candidates.push(candidate(
                        name.to_owned(),
                        invocation,
                        image.path.clone(),
                        folder,
                    ));
                }
            }
            let all = comparison.run(&image.name, candidates, &mut sheet, |_, _| {})?;
            for one in all.iter().filter(|one| one.name.starts_with("ferrofs")) {
                let case = format!("{} of {}", one.name, image.name);
                comparison.judge("peak", &case, one.median("of limit"));
                comparison.judge("killed", &case, one.median("killed"));
            }
        }
        comparison.add(sheet);
        comparison.finish()
    }
}

/// Runs an extraction, and answers what it wrote.
fn extracted(invocation: &Invocation, folder: &Path) -> Result<Seen> {
    process::run(&mut invocation.command(), None)?;
    seen_and_put_away(folder)
}

fn seen_and_put_away(folder: &Path) -> Result<Seen> {
    let output = folder.join("output");
    let reader = Reader { sums: true, ..Reader::new(Pattern::Tree) };
    let (_, seen) = reader.run(&output)?;
    put_away(&output, &folder.join("trash"))?;
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
        let mut figures = figures_of(process::run(&mut invocation.command(), None)?.0);
        self.compare(folder)?;
        figures.insert("of limit", figures[PEAK] * MIB / self.memory as f64);
        if self.is_grouped {
            // The next command must not pay for dirty pages of the last.
            rustix::fs::sync();
            let group = Group::of_memory(self.memory)?.without_swap()?;
            let (cost, _) = process::run(&mut group.inside(&invocation.command()), None)?;
            self.compare(folder)?;
            figures.insert("wall in a cgroup", cost.wall.as_secs_f64());
            figures.insert("killed", group.killed() as f64);
            figures.insert("charged", group.peak_bytes() as f64 / MIB);
        }
        Ok(figures)
    }

    fn compare(self, folder: &Path) -> Result<()> {
        let Some(wanted) = self.wanted else { return Ok(()) };
        let seen = seen_and_put_away(folder)?;
        ensure!(
            seen == wanted,
            "{} bytes were extracted, or others than without a limit",
            seen.bytes
        );
        Ok(())
    }
}

#[derive(Debug, Clone, Args, Serialize)]
pub(crate) struct QuotaArguments {
    #[command(flatten)]
    common: ImageArguments,
    /// The CPU that is available
    #[arg(long, value_name = "CPU", default_value_t = 0)]
    cpu: usize,
}

/// How one CPU is made available.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Confinement {
    Free,
    Affinity,
    Cpuset,
    Quota,
}

impl Experiment for QuotaArguments {
    fn requirements(&self) -> Vec<Requirement> {
        vec![Requirement::Root]
    }

    fn run(&self, context: &mut Context<'_>) -> Result<()> {
        let rounds = &self.common.rounds;
        let ours = rounds.programs.ours()?;
        let folder = rounds.folder()?;
        let images = ImageInfo::read_all(&self.common.images)?;
        let all = [
            (Confinement::Free, "free", ""),
            (Confinement::Affinity, "bound to 1 CPU", ""),
            (Confinement::Cpuset, "cpuset of 1 CPU", "cpuset"),
            (Confinement::Quota, "quota of 1 CPU", "cpu"),
        ];
        let schedule = Schedule::new(rounds, 1, context.is_quick);
        let cases = images.len() * 2 * all.len();
        let mut comparison = Comparison::new(context, "quota", schedule, cases);
        comparison.programs([&ours]);
        let header = "wall, s | threads | wall / --jobs 1";
        let cells = vec![
            Cell::Spread(WALL),
            Cell::Median("threads"),
            Cell::To(WALL, "--jobs 1".to_owned()),
        ];
        let mut sheet =
            Sheet::new("Default threads where one CPU is available", header, cells, WALL);
        for (verb, image) in ["check", "extract"]
            .iter()
            .flat_map(|verb| images.iter().map(move |image| (*verb, image)))
        {
            for (confinement, name, controller) in all {
                let case = format!("{verb} {}, {name}", image.name);
                if !controller.is_empty() && !has_controller(controller) {
                    let why = format!("needs a {controller} cgroup");
                    comparison.context.report.leave_out(&case, why);
                    continue;
                }
                let folder = folder.path();
                let candidate = |name: &str, option: Option<&str>| {
                    let invocation =
                        Invocation::new(&ours).with([verb, "--quiet", "--progress=none"]);
                    let invocation = invocation.with(option).with([&image.path]);
                    let invocation =
                        invocation.with((verb == "extract").then(|| folder.join("output")));
                    let threads = self.confined(confinement, &invocation, folder, true)?["threads"];
                    let run = Box::new(move || {
                        let mut figures = self.confined(confinement, &invocation, folder, false)?;
                        figures.insert("threads", threads);
                        Ok(figures)
                    });
                    anyhow::Ok(Candidate { name: name.to_owned(), is_ours: true, run })
                };
                let candidates =
                    vec![candidate("default", None)?, candidate("--jobs 1", Some("--jobs=1"))?];
                let all = comparison.run(&case, candidates, &mut sheet, |_, _| {})?;
                // With all CPUs more threads are what the default is for.
                if confinement != Confinement::Free {
                    comparison.judge("wall", &case, ratio(&all, WALL, "default", "--jobs 1"));
                    comparison.judge(
                        "threads",
                        &case,
                        ratio(&all, "threads", "default", "--jobs 1"),
                    );
                }
            }
        }
        comparison.add(sheet);
        comparison.finish()
    }
}

impl QuotaArguments {
    /// One run; `threads` is the most that were seen, if they are counted.
    fn confined(
        &self,
        confinement: Confinement,
        invocation: &Invocation,
        folder: &Path,
        counts: bool,
    ) -> Result<Figures> {
        let home = CpuSet::of_current_thread();
        let group = match confinement {
            Confinement::Free => None,
            Confinement::Affinity => {
                CpuSet::from_iter([self.cpu]).bind_current_thread()?;
                None
            }
            Confinement::Cpuset => Some(Group::of_cpu(self.cpu)?),
            Confinement::Quota => Some(Group::of_quota(1)?),
        };
        let command = invocation.command();
        let mut command =
            group.as_ref().map_or(invocation.command(), |group| group.inside(&command));
        let mut most = 0;
        let mut count = |child: &Child| most = most_threads(child.id());
        let watch: Option<&mut dyn FnMut(&Child)> = if counts { Some(&mut count) } else { None };
        let cost = process::run(&mut command, watch);
        home.bind_current_thread()?;
        let output = folder.join("output");
        if output.exists() {
            put_away(&output, &folder.join("trash"))?;
        }
        let mut figures = figures_of(cost?.0);
        figures.insert("threads", most as f64);
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

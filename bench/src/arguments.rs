//! The command line: which experiment, how long, and where its findings go. Parsing touches nothing.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};
use serde::Serialize;

use crate::all::AllArguments;
use crate::case::Case;
use crate::deadline::TimeLimit;
use crate::hogs::HogArguments;
use crate::launches::{Decoding, LauncherArguments};
use crate::model::ModelArguments;
use crate::need::Need;
use crate::page_pool::{InsideArguments, PagePoolArguments};
use crate::pages::{LimitArguments, Mix};
use crate::peers::{
    BuildArguments, CheckArguments, ExtractArguments, MountArguments, RandomArguments,
    ReaderArguments,
};
use crate::reads::Through;
use crate::rows::RowName;

/// What the numbers at the end of the process mean.
const EXIT_STATUS: &str = "Exit status: 0 when figures were printed, 1 when the experiment failed, 2 for a wrong \
command line, 3 when the run was too noisy and is refused";

/// Experiments on the mechanisms of ferrofs, beside their peers
#[derive(Debug, Parser)]
#[command(version, after_help = EXIT_STATUS)]
pub(crate) struct Arguments {
    /// Fewer and smaller runs: shows that it works, proves no figure
    #[arg(long, global = true)]
    pub(crate) quick: bool,
    /// Write every sample as JSON to this file
    #[arg(long, global = true, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,
    /// Write EXPERIMENT.json, EXPERIMENT.md and its plots (EXPERIMENT.svg, EXPERIMENT-2.svg ...) to this folder
    #[arg(long, global = true, value_name = "DIR")]
    pub(crate) out: Option<PathBuf>,
    /// Print figures even if repetitions are too far apart for them
    #[arg(long, global = true)]
    pub(crate) noisy_ok: bool,
    #[command(subcommand)]
    pub(crate) experiment: Experiment,
}

/// What can be run.
#[derive(Debug, Subcommand)]
pub(crate) enum Experiment {
    /// Throughput of one submitter against the number of workers, as QEMU's threaded-workqueue-bench
    Workqueue(WorkqueueArguments),
    /// Time from submission to start, on an idle machine and beside CPU hogs
    Scheduling(SchedulingArguments),
    /// Time to fault memory in with one thread and with more, and the cost of unequal pieces
    Jobs(JobsArguments),
    /// Cost of a frame from the reserve, alone and in a memory cgroup at its limit (needs root)
    #[command(visible_alias = "relaxed")]
    Pages(PagesArguments),
    /// Reads the files of an image front to back, by one reader and by many at a time
    Reads(ReadsArguments),
    /// Starts programs from a mount beside CPU hogs (needs root)
    Launches(LaunchesArguments),
    /// Starts programs from a mount in a memory cgroup at its limit, with memory set aside for decoding and
    /// without (needs root)
    PagePool(PagePoolArguments),
    /// Counts the bounce frames that the extents of images take, which their LZ4 windows bound
    #[command(visible_alias = "window")]
    Windows(WindowsArguments),
    /// Runs every experiment and writes report.html: 15 minutes at most on 2 CPUs
    All(AllArguments),
    /// Takes images apart, beside fsck.erofs and unsquashfs
    Extract(ExtractArguments),
    /// Checks images, beside fsck.erofs
    Check(CheckArguments),
    /// Reads through mounts, beside the kernel, erofsfuse and squashfuse_ll
    Mount(MountArguments),
    /// Reads blocks at random through mounts, beside the kernel and erofsfuse
    Random(RandomArguments),
    /// Builds images, beside mkfs.erofs and mksquashfs
    Build(BuildArguments),
    /// Queues and jobs over simulated CPUs, for numbers of CPUs that this machine has not
    Model(ModelArguments),
    /// Tells what an experiment measures, what is expected of it, and why
    Describe(DescribeArguments),
    /// Gets frames in a memory cgroup
    #[command(hide = true)]
    UnderLimit(LimitArguments),
    /// Starts programs in a memory cgroup
    #[command(hide = true)]
    PoolLaunches(InsideArguments),
    /// Burns a CPU beside an experiment
    #[command(hide = true)]
    Hog(HogArguments),
    /// Reads a mount
    #[command(hide = true)]
    Reader(ReaderArguments),
    /// Starts programs from a mount
    #[command(hide = true)]
    Launcher(LauncherArguments),
}

impl Experiment {
    /// What must be there before it starts.
    pub(crate) fn needs(&self) -> Vec<Need> {
        let file = |path: &PathBuf| Need::File(path.clone());
        match self {
            Self::Pages(settings) if !settings.without_cgroup => {
                vec![Need::Root, Need::MemoryCgroup]
            }
            Self::PagePool(settings) => {
                let needs = [Need::Root, Need::Fuse, Need::MemoryCgroup];
                needs.into_iter().chain(settings.images.iter().map(file)).collect()
            }
            Self::Mount(_) | Self::Random(_) => vec![Need::Fuse],
            Self::Jobs(settings) => settings.image.iter().map(file).collect(),
            Self::Reads(settings) => vec![file(&settings.image)],
            Self::Windows(settings) => settings.images.iter().map(file).collect(),
            Self::Launches(settings) => {
                let mut needs = vec![Need::Root, Need::Fuse, file(&settings.image)];
                if let Some(peers) = &settings.peers {
                    needs.extend([Need::KernelErofs, Need::Program(peers.join("erofsfuse"))]);
                }
                needs
            }
            _ => Vec::new(),
        }
    }
}

/// What is to be told of.
#[derive(Debug, Clone, Args)]
pub(crate) struct DescribeArguments {
    /// All if none is named
    #[arg(value_name = "EXPERIMENT", value_parser = Case::experiments().collect::<Vec<_>>())]
    pub(crate) experiments: Vec<String>,
}

/// The letters are those of QEMU's bench.
#[derive(Debug, Clone, Args, Serialize)]
pub(crate) struct WorkqueueArguments {
    /// Worker threads, one run for each number; the submitter is extra
    #[arg(short, long, value_name = "N", value_delimiter = ',', default_value = "1,2,4,16,64")]
    #[arg(value_parser = clap::value_parser!(u16).range(1..=512))]
    pub(crate) threads: Vec<u16>,
    /// Requests that each worker may have before it
    #[arg(short, long, value_name = "N", default_value_t = 4)]
    #[arg(value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub(crate) requests: u16,
    /// Memory to compress, in GiB, or in MiB with an M behind; an eighth of a GiB with --quick
    #[arg(short, long = "memory", value_name = "GIB", default_value = "1", value_parser = mebibytes)]
    #[serde(rename = "memory_mib")]
    pub(crate) mebibytes: u32,
    /// Repetitions; 2 at most with --quick
    #[arg(short = 'c', long, value_name = "N", default_value_t = 3)]
    #[arg(value_parser = clap::value_parser!(u16).range(1..=1000))]
    pub(crate) repeat: u16,
    /// Rows to run; all if none is named
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    pub(crate) rows: Vec<RowName>,
    /// Bind every thread to these CPUs, such as "0" or "0-3,8"
    #[arg(long, value_name = "CPUS")]
    pub(crate) pin: Option<String>,
    #[command(flatten)]
    pub(crate) limit: TimeLimit,
}

/// How the latency of starting work is measured.
#[derive(Debug, Clone, Copy, Args, Serialize)]
pub(crate) struct SchedulingArguments {
    /// Launches for each pool and condition; 10 at most with --quick
    #[arg(short, long, value_name = "N", default_value_t = 50)]
    #[arg(value_parser = clap::value_parser!(u16).range(2..=10_000))]
    pub(crate) iterations: u16,
    /// Items of one launch
    #[arg(long, value_name = "N", default_value_t = 16)]
    #[arg(value_parser = clap::value_parser!(u16).range(1..=10_000))]
    pub(crate) items: u16,
    /// Hogs on each CPU, at nice 0
    #[arg(long, value_name = "N", default_value_t = 2)]
    #[arg(value_parser = clap::value_parser!(u16).range(1..=64))]
    pub(crate) hogs: u16,
    /// Then take this CPU away from the system and give it back, again and again, while items run (needs root; if
    /// the process is killed meanwhile, the CPU stays away)
    #[arg(long, value_name = "CPU")]
    pub(crate) take_cpu: Option<usize>,
}

/// How the faulting in of memory is measured.
#[derive(Debug, Clone, Args, Serialize)]
pub(crate) struct JobsArguments {
    /// Memory to fault in, in GiB; half of one with --quick
    #[arg(short, long, value_name = "GIB", default_value_t = 4)]
    #[arg(value_parser = clap::value_parser!(u16).range(1..))]
    pub(crate) gib: u16,
    /// Threads, one line for each number; 1, 2, 4 and so on up to what the system runs at once if none
    /// is named
    #[arg(short, long, value_name = "N", value_delimiter = ',', value_parser = threads)]
    pub(crate) threads: Vec<usize>,
    /// Runs of each way, after one that does not count; 3 at most with --quick
    #[arg(short = 'c', long, value_name = "N", default_value_t = 5)]
    #[arg(value_parser = clap::value_parser!(u16).range(1..=1000))]
    pub(crate) repeat: u16,
    /// An image, to see what it saves when a mount of it starts (needs root)
    #[arg(long, value_name = "IMAGE")]
    pub(crate) image: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) limit: TimeLimit,
}

/// Whole GiB, or MiB with an M behind, as MiB.
fn mebibytes(text: &str) -> Result<u32, String> {
    let (digits, unit) = match text.strip_suffix('M') {
        Some(digits) => (digits, 1),
        None => (text, 1024),
    };
    let count: u32 = digits.parse().map_err(|error| format!("{error}"))?;
    match count.checked_mul(unit) {
        Some(mebibytes @ 1..=0x10_0000) => Ok(mebibytes),
        _ => Err("from 1M to 1024".to_owned()),
    }
}

fn threads(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(0) => Err("a job has at least one thread".to_owned()),
        Ok(count) => Ok(count),
        Err(error) => Err(format!("{error}")),
    }
}

/// How the cost of a frame is measured.
#[derive(Debug, Clone, Args, Serialize)]
pub(crate) struct PagesArguments {
    /// Bursts of 256 frames for each source; 5 at most with --quick
    #[arg(long, value_name = "N", default_value_t = 50)]
    #[arg(value_parser = clap::value_parser!(u16).range(1..=10_000))]
    pub(crate) rounds: u16,
    /// Folder on a disk for a file of 128 MiB, whose pages fill the group; the system's temporary
    /// folder if none is named
    #[arg(long, value_name = "DIR")]
    pub(crate) folder: Option<PathBuf>,
    /// Launches for each way of reading ahead; 5 at most with --quick
    #[arg(long, value_name = "N", default_value_t = 50)]
    #[arg(value_parser = clap::value_parser!(u16).range(1..=10_000))]
    pub(crate) launches: u16,
    #[command(flatten)]
    pub(crate) requests: RequestArguments,
    /// Leave out the part that needs a memory cgroup
    #[arg(long)]
    pub(crate) without_cgroup: bool,
    #[command(flatten)]
    pub(crate) limit: TimeLimit,
}

/// What the launches of the pages experiment read.
#[derive(Debug, Clone, Copy, Args, Serialize)]
pub(crate) struct RequestArguments {
    /// Whose extents they read
    #[arg(long, value_enum, default_value_t)]
    pub(crate) extents: Mix,
    /// Requests of a hundred that are readahead
    #[arg(long, value_name = "PERCENT", default_value_t = 50)]
    #[arg(value_parser = clap::value_parser!(u8).range(0..=100))]
    pub(crate) readahead: u8,
    /// Readahead of a hundred that is used later
    #[arg(long, value_name = "PERCENT", default_value_t = 50)]
    #[arg(value_parser = clap::value_parser!(u8).range(0..=100))]
    pub(crate) used: u8,
}

/// What is read, and by how many.
#[derive(Debug, Clone, Args, Serialize)]
pub(crate) struct ReadsArguments {
    /// The image
    pub(crate) image: PathBuf,
    /// Readers, one run for each number
    #[arg(long, value_name = "N", value_delimiter = ',', default_value = "1,64")]
    #[arg(value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub(crate) readers: Vec<u16>,
    /// Only files of at least so many bytes
    #[arg(long, value_name = "BYTES", default_value_t = 1 << 20)]
    pub(crate) at_least: u64,
    /// The first files only, until they have so many bytes together
    #[arg(long, value_name = "BYTES", default_value_t = u64::MAX, hide_default_value = true)]
    pub(crate) most_bytes: u64,
    /// Bytes of one read
    #[arg(long, value_name = "BYTES", default_value_t = 128 << 10)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=1 << 30))]
    pub(crate) block: u32,
    /// How the files are read
    #[arg(long, value_enum, default_value_t)]
    pub(crate) through: Through,
    /// Runs of each; 1 with --quick
    #[arg(short = 'c', long, value_name = "N", default_value_t = 1)]
    #[arg(value_parser = clap::value_parser!(u16).range(1..=1000))]
    pub(crate) repeat: u16,
}

/// How programs are started from a mount.
#[derive(Debug, Clone, Args, Serialize)]
pub(crate) struct LaunchesArguments {
    /// An image of a Debian system with perl, git, gcc and python3
    pub(crate) image: PathBuf,
    /// Rounds: a fresh mount of each kind, 16 programs on each; 2 at most with --quick
    #[arg(short, long, value_name = "N", default_value_t = 50)]
    #[arg(value_parser = clap::value_parser!(u16).range(2..=10_000))]
    pub(crate) iterations: u16,
    /// Hogs on each CPU, at nice 0
    #[arg(long, value_name = "N", default_value_t = 2)]
    #[arg(value_parser = clap::value_parser!(u16).range(0..=64))]
    pub(crate) hogs: u16,
    /// Who decodes
    #[arg(long, value_enum, value_name = "LIST", value_delimiter = ',')]
    #[arg(default_values_t = Decoding::ALL)]
    pub(crate) decoding: Vec<Decoding>,
    /// What the kernel may read ahead in mounts of ours, instead of what a mount has it set to
    #[arg(long, value_name = "KIB")]
    #[arg(value_parser = clap::value_parser!(u32).range(4..=1 << 20))]
    pub(crate) readahead: Option<u32>,
    /// Folder with erofsfuse: launches from it, and from the kernel's EROFS, stand beside ours
    #[arg(long, value_name = "DIR")]
    pub(crate) peers: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) limit: TimeLimit,
}

/// What is decoded through bounce frames.
#[derive(Debug, Clone, Args, Serialize)]
pub(crate) struct WindowsArguments {
    /// Images with files in LZ4; sizes are compared with that of the first
    #[arg(required = true, value_name = "IMAGE")]
    pub(crate) images: Vec<PathBuf>,
}

#[cfg(test)]
mod tests {
    use clap::{CommandFactory, Parser};

    use super::{Arguments, Experiment};
    use crate::case::Case;
    use crate::rows::RowName;

    /// Commands that measure nothing themselves.
    const NOT_MEASURING: [&str; 2] = ["describe", "all"];

    fn parse(words: &str) -> Result<Arguments, clap::Error> {
        Arguments::try_parse_from(words.split_whitespace())
    }

    #[test]
    fn the_description_is_sound() {
        Arguments::command().debug_assert();
    }

    #[test]
    fn the_letters_of_qemu_are_understood() {
        let parsed =
            parse("bench workqueue -t 1,2,64 -r 8 -m 2 -c 5 --rows original,rayon --quick");
        let Arguments { quick: true, experiment: Experiment::Workqueue(w), .. } = parsed.unwrap()
        else {
            panic!("another experiment");
        };
        assert_eq!((w.threads, w.requests, w.mebibytes, w.repeat), (vec![1, 2, 64], 8, 2048, 5));
        assert_eq!(w.rows, [RowName::Original, RowName::Rayon]);
        assert_eq!(w.pin, None);
        let memory = |typed: &str| match parse(&format!("bench workqueue -m {typed}"))?.experiment {
            Experiment::Workqueue(w) => Ok(w.mebibytes),
            _ => panic!("another experiment"),
        };
        assert_eq!((memory("256M").unwrap(), memory("1024").unwrap()), (256, 1 << 20));
        let refused =
            |typed: &str| memory(typed).is_err_and(|error: clap::Error| error.exit_code() == 2);
        assert!(["0", "0M", "1025", "-1", "4194304", "M", "1G"].into_iter().all(refused));
    }

    #[test]
    fn every_experiment_has_a_case_and_every_case_an_experiment() {
        let command = Arguments::command();
        let shown = command.get_subcommands().filter(|command| !command.is_hide_set());
        let shown = shown.map(clap::Command::get_name).filter(|name| !NOT_MEASURING.contains(name));
        let mut experiments: Vec<_> = shown.collect();
        experiments.sort_unstable();
        let mut cases: Vec<_> = Case::experiments().collect();
        cases.sort_unstable();
        assert_eq!(experiments, cases);
        let files = std::fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/cases")).unwrap();
        assert_eq!(files.count(), cases.len());
    }

    #[test]
    fn senseless_numbers_are_refused() {
        for words in ["-t 0", "-r 0", "-m 0", "-c 0", "-t x", "--rows nothing"] {
            assert!(parse(&format!("bench workqueue {words}")).is_err(), "{words}");
        }
        parse("bench jobs -t 0").unwrap_err();
        parse("bench").unwrap_err();
    }
}

//! Getting frames in a memory cgroup at its limit. The process that does so is this program again: it
//! waits until it is admitted to the group, fills it with dirty anonymous memory and dirty page cache,
//! and then gets frames, from each source and in each way in turn, while every page more needs another
//! to go.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read, Seek, SeekFrom, Write, stdin, stdout};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result, bail, ensure};
use clap::Args;
use rustix::process::{Signal, set_parent_process_death_signal};
use serde::{Deserialize, Serialize};

use super::group::MemoryGroup;
use super::launch::{Launcher, Way, WayLaunches};
use super::requests;
use super::taking::Source;
use crate::arguments::RequestArguments;
use crate::deadline::{Deadline, TimeLimit};
use crate::statistics::Samples;

/// What the group may use.
const LIMIT_BYTES: u64 = 64 << 20;
/// Of that, held as dirty anonymous memory, which cannot be taken away without swap.
const ANONYMOUS_BYTES: usize = 24 << 20;
/// The file whose pages fill the rest.
const FILE_BYTES: u64 = 128 << 20;
/// Written to the file before every burst, so that the group is full again.
const REFILL_BYTES: u64 = 4 << 20;
/// Written after every burst of a launch: what the requests were for, 16 KiB each, goes to the page cache.
const LAUNCH_BYTES: u64 = 256 << 10;
/// One write.
const WRITE_BYTES: u64 = 256 << 10;
/// Frames of a burst: the largest reserve of the seed's table.
const BURST_FRAMES: u32 = 256;
/// Reserves that are compared.
const RESERVES: [u32; 3] = super::launch::RESERVES;

/// Bursts and launches, no matter how long they take.
const LEAST_ROUNDS: u16 = 5;
/// Of the time that there is, what bursts may take.
const BURSTS_SHARE: f64 = 0.3;

/// What the process in the group is told.
#[derive(Debug, Clone, Args)]
pub(crate) struct LimitArguments {
    /// A name for a file on a disk; it is gone as soon as it is open
    #[arg(long)]
    file: PathBuf,
    /// Bursts for each source
    #[arg(long)]
    rounds: u16,
    /// Launches in each way
    #[arg(long)]
    launches: u16,
    #[command(flatten)]
    requests: RequestArguments,
    #[command(flatten)]
    time: TimeLimit,
}

/// Nanoseconds for each frame that one source gave.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Taken {
    pub(crate) source: String,
    pub(crate) samples: Samples,
}

/// What the process in the group found.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Measured {
    pub(crate) taken: Vec<Taken>,
    pub(crate) ways: Vec<WayLaunches>,
}

/// What came of it.
#[derive(Debug)]
pub(crate) struct Outcome {
    pub(crate) measured: Measured,
    pub(crate) usage_bytes: u64,
    pub(crate) limit_bytes: u64,
    pub(crate) limit_hits: u64,
}

/// How often.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Counts {
    /// Bursts for each source.
    pub(crate) rounds: u16,
    /// Launches in each way.
    pub(crate) launches: u16,
}

/// Runs the process in a fresh group and removes the group.
///
/// # Errors
/// When there is no memory cgroup to be had, the process fails, or the group was not at its limit.
pub(crate) fn run(
    folder: &Path,
    counts: Counts,
    requests: RequestArguments,
    time: TimeLimit,
) -> Result<Outcome> {
    let group = MemoryGroup::create(LIMIT_BYTES)?;
    let file = folder.join(format!("ferrofs-bench-{}.scrap", std::process::id()));
    let program = std::env::current_exe().context("finding this program")?;
    let mut command = Command::new(program);
    command.arg("under-limit").arg("--file").arg(&file);
    command.args(["--rounds", &counts.rounds.to_string()]);
    command.args(["--launches", &counts.launches.to_string()]);
    command.args(["--readahead", &requests.readahead.to_string()]);
    command.args(["--used", &requests.used.to_string()]);
    command.args(["--extents", requests.extents.name()]).args(time.word());
    command.stdin(Stdio::piped()).stdout(Stdio::piped());
    // Declared after the group: the process is gone before the group is removed.
    let mut process = Process(command.spawn().context("starting the process in the group")?);
    group.admit(process.0.id())?;
    let mut start = process.0.stdin.take().context("a process without an input")?;
    start.write_all(b"!").context("starting the process in the group")?;
    let mut answer = String::new();
    let output = process.0.stdout.take().context("a process without an output")?;
    let read = BufReader::new(output).read_line(&mut answer);
    read.context("reading from the process in the group")?;
    let (is_full, usage_bytes) = (group.ensure_full(), group.usage_bytes());
    drop(start);
    let status = process.0.wait().context("waiting for the process in the group")?;
    ensure!(status.success(), "the process in the group failed: {status}");
    is_full?;
    let measured = serde_json::from_str(&answer).context("reading what the process measured")?;
    let (limit_bytes, limit_hits) = (group.limit_bytes(), group.limit_hits());
    Ok(Outcome { measured, usage_bytes, limit_bytes, limit_hits })
}

/// A process that does not outlive us.
#[derive(Debug)]
pub(crate) struct Process(pub(crate) Child);

impl Drop for Process {
    fn drop(&mut self) {
        // One that is gone already is what is wanted.
        self.0.kill().unwrap_or_default();
        if self.0.wait().is_err() {
            // Nobody to wait for: it is gone.
        }
    }
}

/// What the process in the group does. It keeps its memory until its input ends, so that the group can
/// be looked at.
///
/// # Errors
/// When the file cannot be written or a frame cannot be had.
pub(crate) fn measure(arguments: &LimitArguments) -> Result<()> {
    set_parent_process_death_signal(Some(Signal::KILL)).context("tying a process to its parent")?;
    let mut word = [0];
    stdin().read_exact(&mut word).context("waiting for the group")?;
    let anonymous = vec![1_u8; ANONYMOUS_BYTES];
    let mut cache = Cache::create(&arguments.file)?;
    cache.write(FILE_BYTES)?;
    let deadline = arguments.time.deadline();
    let taken = take_bursts(&mut cache, arguments.rounds, deadline.share(BURSTS_SHARE))?;
    let ways = play_launches(&mut cache, arguments, deadline)?;
    cache.write(REFILL_BYTES)?;
    let line = serde_json::to_string(&Measured { taken, ways })?;
    writeln!(stdout(), "{line}")?;
    match stdin().read(&mut word) {
        Ok(0) => {}
        other => bail!("unexpected input: {other:?}"),
    }
    std::hint::black_box(&anonymous);
    Ok(())
}

/// Bursts of frames, from each source in turn.
fn take_bursts(cache: &mut Cache, rounds: u16, deadline: Deadline) -> Result<Vec<Taken>> {
    let mut sources = vec![(Source::Fault, Vec::new())];
    for reserved in RESERVES {
        sources.push((Source::pool(BURST_FRAMES, reserved)?, Vec::new()));
    }
    for round in 0..rounds {
        if round >= LEAST_ROUNDS && deadline.is_over() {
            break;
        }
        for (source, samples) in &mut sources {
            cache.write(REFILL_BYTES)?;
            samples.push(source.take(BURST_FRAMES)?);
        }
    }
    Ok(sources.iter().map(|(source, bursts)| joined(source, bursts)).collect())
}

/// Launches, in each way, in an order that changes from one to the next.
fn play_launches(
    cache: &mut Cache,
    arguments: &LimitArguments,
    deadline: Deadline,
) -> Result<Vec<WayLaunches>> {
    let mut launchers = Way::all().map(Launcher::new).collect::<Result<Vec<_>>>()?;
    let ways = u16::try_from(launchers.len())?;
    for number in 0..arguments.launches {
        if number >= LEAST_ROUNDS && deadline.is_over() {
            break;
        }
        let requests = requests::launch(arguments.requests, number);
        for way in requests::order(ways, number) {
            let Some(launcher) = launchers.get_mut(usize::from(way)) else { continue };
            cache.write(REFILL_BYTES)?;
            launcher.play(&requests, &mut || cache.write(LAUNCH_BYTES))?;
        }
    }
    Ok(launchers.into_iter().map(Launcher::into_launches).collect())
}

fn joined(source: &Source, bursts: &[Samples]) -> Taken {
    Taken { source: source.name(), samples: bursts.iter().flat_map(Samples::values).collect() }
}

/// Page cache of the group: a file without a name that is written over and over.
#[derive(Debug)]
pub(crate) struct Cache {
    file: File,
    offset: u64,
    block: Box<[u8]>,
}

impl Cache {
    pub(crate) fn create(path: &Path) -> Result<Self> {
        let file = File::create_new(path).with_context(|| format!("making {}", path.display()))?;
        // However this process ends, nothing is left behind.
        fs::remove_file(path).with_context(|| format!("removing {}", path.display()))?;
        let block = vec![0xa5; usize::try_from(WRITE_BYTES)?].into_boxed_slice();
        Ok(Self { file, offset: 0, block })
    }

    /// Makes so many more bytes of the file dirty.
    pub(crate) fn write(&mut self, bytes: u64) -> Result<()> {
        let end = self.offset + bytes;
        while self.offset < end {
            self.file.seek(SeekFrom::Start(self.offset % FILE_BYTES))?;
            self.file.write_all(&self.block).context("writing beside the frames")?;
            self.offset += WRITE_BYTES;
        }
        Ok(())
    }
}

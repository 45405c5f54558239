//! Processes that burn CPU beside an experiment: ordinary ones at nice 0, bound to their CPU so that
//! every row meets the same. They are this program again, they die with it, and they end on drop.
//!
//! They see, too, when a CPU stands still. A host that takes one away mostly says so ([`crate::steal`]); some stop a
//! machine for milliseconds and say nothing. The kernel counts that as time of whoever runs, and a hog that looks at the
//! clock all the time sees a gap, asks for its own CPU time, and knows that it did not run for so long. To be scheduled
//! away does not count, so that no other thread can be the reason. Nothing wakes up for it, and without a gap there is no
//! system call: beside threads that watched the timer the daemon waited half as long, and beside hogs that asked for their
//! CPU time every few microseconds raised threads waited twice as long.

use std::collections::HashMap;
use std::io::{ErrorKind, Read, Write, stdout};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use clap::Args;
use ferrofs_workers::cpus::CpuSet;
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::io::Errno;
use rustix::process::{Signal, getppid, set_parent_process_death_signal};
use rustix::time::{ClockId, clock_gettime};

/// What a hog says once it runs.
const READY: u8 = b'!';
/// Turns between two looks at the clock: a microsecond.
const TURNS: u32 = 1_000;
/// Somebody else ran between two looks that are so far apart, or nobody.
const GAP: Duration = Duration::from_micros(20);
/// A gap in which a hog had so much CPU time was a CPU that stood still: interrupts take less.
const STANDSTILL: Duration = Duration::from_micros(300);
/// How long it takes until every hog has run once more: two turns of others on its CPU.
const ALL_HAVE_RUN: Duration = Duration::from_millis(20);

/// What one hog is told.
#[derive(Debug, Clone, Args)]
pub(crate) struct HogArguments {
    /// The CPU to burn
    #[arg(long)]
    cpu: usize,
    /// The process to die with
    #[arg(long)]
    parent: u32,
}

/// Running hogs.
#[derive(Debug)]
pub(crate) struct Hogs {
    /// With the CPU of each.
    children: Vec<(usize, Child)>,
}

impl Hogs {
    /// Starts so many on each CPU; all of them run when this returns.
    ///
    /// # Errors
    /// When a process cannot be started or bound.
    pub(crate) fn start(cpus: &CpuSet, per_cpu: usize) -> Result<Self> {
        let program = std::env::current_exe().context("finding this program")?;
        let mut hogs = Self { children: Vec::new() };
        for cpu in cpus.iter().flat_map(|cpu| std::iter::repeat_n(cpu, per_cpu)) {
            let mut command = Command::new(&program);
            command.args(["hog", "--cpu", &cpu.to_string()]);
            command.args(["--parent", &std::process::id().to_string()]);
            command.stdin(Stdio::null()).stdout(Stdio::piped());
            hogs.children.push((cpu, command.spawn().context("starting a hog")?));
        }
        for (_, child) in &mut hogs.children {
            let mut said = [0];
            let pipe = child.stdout.as_mut().context("a hog without a voice")?;
            pipe.read_exact(&mut said).context("a hog ended before it ran")?;
            ensure!(said == [READY], "a hog said something else");
            let flags = fcntl_getfl(&*pipe).context("asking about a hog's pipe")?;
            fcntl_setfl(&*pipe, flags | OFlags::NONBLOCK).context("setting a hog's pipe")?;
        }
        Ok(hogs)
    }

    /// How long that CPU stood still that did for longest, as its hogs saw it since they were asked before. It waits
    /// until all of them have run once more.
    ///
    /// # Errors
    /// When a hog has ended.
    pub(crate) fn stood_still(&mut self) -> Result<Duration> {
        std::thread::sleep(ALL_HAVE_RUN);
        self.said()
    }

    /// The same, of what they have said so far.
    ///
    /// # Errors
    /// When a hog has ended.
    pub(crate) fn said(&mut self) -> Result<Duration> {
        let mut stood: HashMap<usize, Duration> = HashMap::new();
        for (cpu, child) in &mut self.children {
            let pipe = child.stdout.as_mut().context("a hog without a voice")?;
            let mut said = [0; size_of::<u64>()];
            loop {
                match pipe.read(&mut said) {
                    Ok(0) => bail!("a hog on CPU {cpu} ended"),
                    // They are written whole, and read so.
                    Ok(_) => {
                        let length = Duration::from_nanos(u64::from_ne_bytes(said));
                        *stood.entry(*cpu).or_default() += length;
                    }
                    Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                    Err(error) => return Err(error).context("listening to a hog"),
                }
            }
        }
        Ok(stood.into_values().max().unwrap_or_default())
    }
}

impl Drop for Hogs {
    fn drop(&mut self) {
        for (_, child) in &mut self.children {
            // One that is gone already is what is wanted.
            child.kill().unwrap_or_default();
            if child.wait().is_err() {
                // Nobody to wait for: it is gone.
            }
        }
    }
}

/// Burns a CPU until the parent ends or kills it.
///
/// # Errors
/// When the CPU cannot be had.
pub(crate) fn burn(arguments: &HogArguments) -> Result<()> {
    set_parent_process_death_signal(Some(Signal::KILL)).context("tying a hog to its parent")?;
    let parent = getppid().map(|pid| pid.as_raw_nonzero().get().unsigned_abs());
    ensure!(parent == Some(arguments.parent), "the parent of a hog is gone");
    let cpus = CpuSet::from_iter([arguments.cpu]);
    cpus.bind_current_thread().with_context(|| format!("binding a hog to CPU {cpus}"))?;
    let mut pipe = stdout().lock();
    pipe.write_all(&[READY])?;
    pipe.flush()?;
    // Nobody need listen, and it burns all the same.
    fcntl_setfl(&pipe, fcntl_getfl(&pipe)? | OFlags::NONBLOCK).context("setting its pipe")?;
    let mut own = OwnTime(OwnTime::now()?);
    let (mut begin, mut last) = (Instant::now(), Instant::now());
    loop {
        for turn in 0..TURNS {
            std::hint::black_box(turn);
        }
        let now = Instant::now();
        if now.duration_since(last) < GAP {
            last = now;
            continue;
        }
        if let Some(stood) = own.stood(OwnTime::now()?, last.duration_since(begin)) {
            let nanoseconds = u64::try_from(stood.as_nanos()).unwrap_or(u64::MAX);
            match rustix::io::write(&pipe, &nanoseconds.to_ne_bytes()) {
                Ok(_) | Err(Errno::AGAIN) => {}
                Err(error) => return Err(error).context("telling of a standstill"),
            }
        }
        begin = Instant::now();
        last = begin;
    }
}

/// The CPU time of a hog at the end of the last gap.
#[derive(Debug)]
struct OwnTime(Duration);

impl OwnTime {
    fn now() -> Result<Duration> {
        Ok(Duration::try_from(clock_gettime(ClockId::ThreadCPUTime))?)
    }

    /// How long the CPU stood still in a gap that came after a time without one, if it did.
    fn stood(&mut self, now: Duration, without: Duration) -> Option<Duration> {
        let in_gap = now.saturating_sub(self.0).saturating_sub(without);
        self.0 = now;
        (in_gap > STANDSTILL).then_some(in_gap)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::OwnTime;

    #[test]
    fn own_time_in_a_gap_is_a_standstill_and_told_once() {
        let micros = Duration::from_micros;
        let mut own = OwnTime(micros(10));
        // Somebody else ran: no time of its own but what it calculated, and an interrupt.
        assert_eq!(own.stood(micros(4_030), micros(4_000)), None);
        assert_eq!(own.stood(micros(8_130), micros(100)), Some(micros(4_000)));
        assert_eq!(own.stood(micros(9_130), micros(1_000)), None);
    }
}

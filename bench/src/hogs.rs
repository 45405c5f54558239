//! Processes that burn CPU beside an experiment: ordinary ones at nice 0, bound to their CPU so that
//! every row meets the same. They are this program again, they die with it, and they end on drop.

use std::io::{Read, Write, stdout};
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result, ensure};
use clap::Args;
use ferrofs_workers::cpus::CpuSet;
use rustix::process::{Signal, getppid, set_parent_process_death_signal};

/// What a hog says once it runs.
const READY: u8 = b'!';

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
    children: Vec<Child>,
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
            hogs.children.push(command.spawn().context("starting a hog")?);
        }
        for child in &mut hogs.children {
            let mut said = [0];
            let pipe = child.stdout.as_mut().context("a hog without a voice")?;
            pipe.read_exact(&mut said).context("a hog ended before it ran")?;
            ensure!(said == [READY], "a hog said something else");
        }
        Ok(hogs)
    }
}

impl Drop for Hogs {
    fn drop(&mut self) {
        for child in &mut self.children {
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
    stdout().write_all(&[READY])?;
    stdout().flush()?;
    loop {
        std::hint::black_box(0_u64);
    }
}

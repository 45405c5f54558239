//! Processes of this program that experiments start: `ferrofs-bench child ROLE PARENT SETTINGS`. They end with their
//! parent. Owns the load generators, the simplest role.

use std::io::{BufRead, BufReader, Read, Write, stdin, stdout};
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result, bail, ensure};
use clap::{Args, ValueEnum};
use ferrofs_workers::cpus::CpuSet;
use rustix::process::{Signal, getppid, set_parent_process_death_signal};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::cgroup::{Charged, Group};

/// A load generator writes it once it runs.
const READY: u8 = b'!';

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Role {
    /// Uses all time of a CPU
    Load,
    /// Starts programs from a mount
    Launcher,
    /// Reads a mount
    Reader,
    /// Takes page frames in a memory cgroup
    Frames,
    /// Mounts and launches in a memory cgroup
    PoolLaunches,
}

#[derive(Debug, Clone, Args)]
pub(crate) struct ChildArguments {
    pub(crate) role: Role,
    /// The process to end with
    parent: u32,
    /// JSON
    settings: String,
}

impl ChildArguments {
    /// Ties this process to its parent and reads the settings.
    pub(crate) fn start<T: DeserializeOwned>(&self) -> Result<T> {
        set_parent_process_death_signal(Some(Signal::KILL)).context("prctl")?;
        let parent = getppid().map(|pid| pid.as_raw_nonzero().get().unsigned_abs());
        ensure!(parent == Some(self.parent), "the parent process has ended");
        serde_json::from_str(&self.settings).context("reading the settings of a child process")
    }
}

/// The command that starts a child.
pub(crate) fn command(role: Role, settings: &impl Serialize) -> Result<Command> {
    let mut command = Command::new(std::env::current_exe().context("finding this program")?);
    let name = role.to_possible_value().context("a role without a name")?;
    command.args(["child", name.get_name(), &std::process::id().to_string()]);
    command.arg(serde_json::to_string(settings)?);
    Ok(command)
}

/// A child that is killed on drop.
#[derive(Debug)]
pub(crate) struct Owned(pub(crate) Child);

impl Drop for Owned {
    fn drop(&mut self) {
        // It may have ended already.
        self.0.kill().unwrap_or_default();
        drop(self.0.wait());
    }
}

/// Runs a child in a group that must be at its limit when the child has answered; the answer and the state of the group.
pub(crate) fn run_in<T: DeserializeOwned>(
    group: &Group,
    mut command: Command,
) -> Result<(T, Charged)> {
    command.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = Owned(command.spawn().context("starting the process in the group")?);
    group.admit(child.0.id())?;
    let mut input = child.0.stdin.take().context("no pipe to the process in the group")?;
    input.write_all(&[READY]).context("starting the process in the group")?;
    let output = child.0.stdout.take().context("no pipe from the process in the group")?;
    let mut answer = String::new();
    BufReader::new(output).read_line(&mut answer).context("reading from the group")?;
    let charged = group.charged();
    drop(input);
    let status = child.0.wait().context("waiting for the process in the group")?;
    ensure!(status.success(), "the process in the group failed: {status}");
    charged.ensure_full()?;
    Ok((serde_json::from_str(&answer).context("reading the answer of the group")?, charged))
}

/// The other side of [`run_in`]: waits for admission, measures, answers, and keeps memory until the parent is done.
pub(crate) fn answer<T: Serialize, M>(measure: impl FnOnce() -> Result<(T, M)>) -> Result<()> {
    let mut word = [0];
    stdin().read_exact(&mut word).context("waiting for the group")?;
    let (found, memory) = measure()?;
    writeln!(stdout(), "{}", serde_json::to_string(&found)?)?;
    match stdin().read(&mut word) {
        Ok(0) => {}
        other => bail!("unexpected input: {other:?}"),
    }
    drop(memory);
    Ok(())
}

/// Processes at nice 0 that use all time of a CPU each, bound to it so that every row of a table meets the same load.
#[derive(Debug)]
pub(crate) struct LoadGenerators(Vec<Owned>);

impl LoadGenerators {
    /// Starts this many on each CPU; all of them run when this returns.
    pub(crate) fn start(cpus: &CpuSet, per_cpu: usize) -> Result<Self> {
        let mut all = Self(Vec::new());
        for cpu in cpus.iter().flat_map(|cpu| std::iter::repeat_n(cpu, per_cpu)) {
            let mut command = command(Role::Load, &cpu)?;
            command.stdin(Stdio::null()).stdout(Stdio::piped());
            all.0.push(Owned(command.spawn().context("starting a load generator")?));
        }
        for child in &mut all.0 {
            let mut said = [0];
            let pipe = child.0.stdout.as_mut().context("no pipe from a load generator")?;
            pipe.read_exact(&mut said).context("a load generator ended at once")?;
            ensure!(said == [READY], "a load generator wrote {said:?}");
        }
        Ok(all)
    }
}

/// The role of a load generator.
pub(crate) fn generate_load(arguments: &ChildArguments) -> Result<()> {
    let cpus = CpuSet::from_iter([arguments.start::<usize>()?]);
    cpus.bind_current_thread().with_context(|| format!("binding to CPU {cpus}"))?;
    stdout().write_all(&[READY])?;
    stdout().flush()?;
    loop {
        std::hint::black_box(0_u64);
    }
}

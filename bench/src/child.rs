//! Processes of this program that experiments start: `ferrofs-bench child ROLE PARENT SETTINGS`. They end with their
//! parent. Owns the load generators, the simplest role.

use std::io::{Read, Write, stdout};
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result, ensure};
use clap::{Args, ValueEnum};
use ferrofs_workers::cpus::CpuSet;
use rustix::process::{Signal, getppid, set_parent_process_death_signal};
use serde::Serialize;
use serde::de::DeserializeOwned;

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Role {
    /// Use all time of a CPU
    Load,
    /// Start programs from a mount
    Launcher,
    /// Read a mount
    Reader,
}

#[derive(Debug, Clone, Args)]
pub(crate) struct ChildArguments {
    pub(crate) role: Role,
    /// The parent process; the child ends when it ends
    parent: u32,
    /// The settings, in JSON
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

/// The name of a value on the command line.
pub(crate) fn name_of(value: &impl ValueEnum) -> String {
    value.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned())
}

pub(crate) fn command(role: Role, settings: &impl Serialize) -> Result<Command> {
    let mut command = Command::new(std::env::current_exe().context("finding this program")?);
    command.args(["child", &name_of(&role), &std::process::id().to_string()]);
    command.arg(serde_json::to_string(settings)?);
    Ok(command)
}

/// A child with a pipe from it, which is killed on drop.
#[derive(Debug)]
pub(crate) struct OwnedChild(pub(crate) Child);

impl OwnedChild {
    pub(crate) fn start(role: Role, settings: &impl Serialize) -> Result<Self> {
        let mut command = command(role, settings)?;
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        Ok(Self(command.spawn().context("starting a child process")?))
    }
}

impl Drop for OwnedChild {
    fn drop(&mut self) {
        // It may have ended already.
        self.0.kill().unwrap_or_default();
        drop(self.0.wait());
    }
}

/// Starts this many processes on each CPU that use all time of it, at nice 0, bound to it so that every row of a table meets
/// the same load. All of them run when this returns, and end when they are dropped.
pub(crate) fn start_load(cpus: &CpuSet, per_cpu: usize) -> Result<Vec<OwnedChild>> {
    let cpus = cpus.iter().flat_map(|cpu| std::iter::repeat_n(cpu, per_cpu));
    let mut all =
        cpus.map(|cpu| OwnedChild::start(Role::Load, &cpu)).collect::<Result<Vec<_>>>()?;
    for child in &mut all {
        let pipe = child.0.stdout.as_mut().context("no pipe from a load generator")?;
        pipe.read_exact(&mut [0]).context("a load generator ended at once")?;
    }
    Ok(all)
}

pub(crate) fn generate_load(arguments: &ChildArguments) -> Result<()> {
    let cpus = CpuSet::from_iter([arguments.start::<usize>()?]);
    cpus.bind_current_thread().with_context(|| format!("binding to CPU {cpus}"))?;
    // It runs.
    stdout().write_all(b"!")?;
    stdout().flush()?;
    loop {
        std::hint::black_box(0_u64);
    }
}

//! Who starts the programs: this program again, at normal priority, with the mount as its root. It starts one for each
//! line that it reads, and answers how long that took from fork to exit. It dies with its parent.

use std::fs::File;
use std::io::{BufRead, BufReader, Write, stdin, stdout};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use clap::Args;
use rustix::process::{Signal, chdir, chroot, getppid, set_parent_process_death_signal};

use super::programs::{PROGRAMS, Program};

/// What the launcher is told.
#[derive(Debug, Clone, Args)]
pub(crate) struct LauncherArguments {
    /// The directory that becomes its root
    #[arg(long)]
    root: PathBuf,
    /// The process to die with
    #[arg(long)]
    parent: u32,
}

/// A running launcher.
#[derive(Debug)]
pub(crate) struct Launcher {
    child: Child,
    asked: Option<ChildStdin>,
    said: BufReader<ChildStdout>,
}

impl Launcher {
    /// Starts a launcher with that root. Whatever it reads there, others must answer.
    pub(crate) fn start(root: &Path) -> Result<Self> {
        let program = std::env::current_exe().context("finding this program")?;
        let mut command = Command::new(program);
        command.arg("launcher").arg("--root").arg(root);
        command.args(["--parent", &std::process::id().to_string()]);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().context("starting the launcher")?;
        let asked = child.stdin.take();
        let said = child.stdout.take().context("a launcher without a voice")?;
        Ok(Self { child, asked, said: BufReader::new(said) })
    }

    /// Has the next program started, and answers how long it took.
    pub(crate) fn launch(&mut self) -> Result<Duration> {
        let asked = self.asked.as_mut().context("a launcher without an ear")?;
        asked.write_all(b"\n").context("asking the launcher")?;
        let mut line = String::new();
        self.said.read_line(&mut line).context("listening to the launcher")?;
        let line = line.trim_end();
        match line.parse() {
            Ok(nanoseconds) => Ok(Duration::from_nanos(nanoseconds)),
            Err(_) if line.is_empty() => bail!("the launcher ended"),
            Err(_) => bail!("{line}"),
        }
    }
}

impl Drop for Launcher {
    fn drop(&mut self) {
        // The end of its input is its end; a program that hangs keeps it, and goes with it.
        drop(self.asked.take());
        if self.child.wait().is_err() {
            // Nobody to wait for: it is gone.
        }
    }
}

/// Starts the programs one after another, as it is asked to.
///
/// # Errors
/// When the directory cannot become its root, or nobody listens. What is wrong with a program is answered.
pub(crate) fn launch_all(arguments: &LauncherArguments) -> Result<()> {
    set_parent_process_death_signal(Some(Signal::KILL)).context("tying the launcher")?;
    let parent = getppid().map(|pid| pid.as_raw_nonzero().get().unsigned_abs());
    ensure!(parent == Some(arguments.parent), "the parent of the launcher is gone");
    // The image need not have one.
    let null = File::options().read(true).write(true).open("/dev/null").context("/dev/null")?;
    chroot(&arguments.root).context("taking the mount as root")?;
    chdir("/").context("going there")?;
    let mut lines = stdin().lines();
    for program in &PROGRAMS {
        if lines.next().is_none() {
            return Ok(());
        }
        let said = match launch(program, &null) {
            Ok(time) => time.as_nanos().to_string(),
            Err(error) => format!("{}: {error:#}", program.path),
        };
        writeln!(stdout(), "{said}").context("answering")?;
    }
    Ok(())
}

fn launch(program: &Program, null: &File) -> Result<Duration> {
    let mut command = Command::new(program.path);
    command.args(program.arguments).env_clear();
    command.envs([("PATH", "/usr/bin:/bin"), ("LC_ALL", "C"), ("HOME", "/")]);
    command.stdin(null.try_clone()?).stdout(null.try_clone()?).stderr(null.try_clone()?);
    let begin = Instant::now();
    let status = command.spawn().context("starting it")?.wait().context("waiting for it")?;
    let time = begin.elapsed();
    ensure!(status.success(), "{status}");
    Ok(time)
}

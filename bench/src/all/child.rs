//! An experiment in a process of its own: this program again, whose findings go to the folder and are read from there.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result};

use crate::page::{Found, Outcome};
use crate::report::plot_name;

/// Runs it to its end.
///
/// # Errors
/// When it cannot be started, or what was there before cannot be removed.
pub(super) fn run_child(experiment: &str, words: &[String], folder: &Path) -> Result<Outcome> {
    forget(experiment, folder)?;
    let program = std::env::current_exe().context("finding this program")?;
    let mut command = Command::new(program);
    command.args(words).arg("--noisy-ok").arg("--out").arg(folder);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
    let output = command.output().with_context(|| format!("starting {experiment}"))?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        let last = said.lines().last().unwrap_or_default().trim_start_matches("ferrofs-bench: ");
        return Ok(Outcome::Failed(format!("{}: {last}", output.status)));
    }
    Ok(match Found::read(experiment, folder) {
        Ok(found) => Outcome::Done(Box::new(found)),
        Err(error) => Outcome::Failed(format!("{error:#}")),
    })
}

/// What an earlier run left must not be taken for what this one finds.
pub(super) fn forget(experiment: &str, folder: &Path) -> Result<()> {
    let texts = ["json", "md"].map(|kind| format!("{experiment}.{kind}"));
    let plots = (0..).map(|index| plot_name(experiment, index));
    let there = plots.take_while(|name| folder.join(name).exists());
    for name in texts.into_iter().filter(|name| folder.join(name).exists()).chain(there) {
        let path = folder.join(name);
        fs::remove_file(&path).with_context(|| format!("removing {}", path.display()))?;
    }
    Ok(())
}

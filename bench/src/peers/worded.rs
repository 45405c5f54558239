//! A program with what it is told, run once for each sample. Owns no output.

use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Result;

use super::column::{Figure, Sample};
use super::interleave::Contestant;
use super::program::Program;
use super::spent;

/// A command to be measured.
#[derive(Debug, Clone)]
pub(super) struct Worded {
    program: Program,
    /// The name that it is called by, if not its own.
    called: Option<&'static str>,
    words: Vec<OsString>,
    /// What it reads.
    pub(super) source: PathBuf,
}

impl Worded {
    pub(super) fn new<W: Into<OsString>>(
        program: &Program,
        source: &Path,
        words: impl IntoIterator<Item = W>,
    ) -> Self {
        Self {
            program: program.clone(),
            called: None,
            words: words.into_iter().map(Into::into).collect(),
            source: source.to_path_buf(),
        }
    }

    /// Has it called by another name.
    pub(super) fn called(mut self, name: &'static str) -> Self {
        self.called = Some(name);
        self
    }

    /// More words.
    pub(super) fn and<W: Into<OsString>>(mut self, words: impl IntoIterator<Item = W>) -> Self {
        self.words.extend(words.into_iter().map(Into::into));
        self
    }

    pub(super) fn command(&self) -> Command {
        let mut command = self.program.command();
        command.args(&self.words);
        if let Some(name) = self.called {
            command.arg0(name);
        }
        command
    }

    /// Every word, as the report has it.
    pub(super) fn line(&self) -> Vec<String> {
        let mut words = spent::words(&self.command());
        if let (Some(name), Some(first)) = (self.called, words.first_mut()) {
            *first = format!("{first} (called {name})");
        }
        words
    }

    /// Runs it; wall and CPU time, and peak memory.
    pub(super) fn run(&self, said: &Path) -> Result<Sample> {
        let (spent, _) = spent::run(&mut self.command(), said)?;
        Ok(Sample::from([
            (Figure::Wall, spent.wall.as_secs_f64()),
            (Figure::Cpu, spent.cpu.as_secs_f64()),
            (Figure::Peak, spent.peak_mib()),
        ]))
    }

    /// As a contestant of that name.
    pub(super) fn contestant(self, name: impl Into<String>) -> Contestant<Self> {
        let is_ours = self.program.name == "ferrofs";
        Contestant { name: name.into(), is_ours, what: self }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::Worded;
    use crate::peers::column::Figure;
    use crate::peers::program::Program;

    #[test]
    fn a_program_can_be_called_by_another_name() {
        let folder = tempfile::tempdir().unwrap();
        let program = Program { name: "ferrofs", path: "/bin/sh".into(), version: String::new() };
        let worded = Worded::new(&program, Path::new("/"), ["-c"]).called("mkfs.erofs");
        let worded = worded.and(["case $0 in mkfs.erofs) ;; *) exit 1;; esac"]);
        assert_eq!(worded.line()[0], "/bin/sh (called mkfs.erofs)");
        let sample = worded.run(&folder.path().join("said")).unwrap();
        assert!(sample[&Figure::Wall] > 0.0);
        assert!(worded.contestant("a").is_ours);
    }
}

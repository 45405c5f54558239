//! Those who read a mount: this program again, as processes of their own, so that their CPU time is told apart from
//! everybody else's and a mount that hangs does not hang the experiment's own threads. They go to a directory, read, and print what they saw as one
//! line of JSON. They die with their parent.

mod random;
mod tree;

use std::fs::File;
use std::io::{Read, Write, stdout};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use clap::{Args, ValueEnum};
use rustix::process::{Signal, chdir, getppid, set_parent_process_death_signal};
use serde::{Deserialize, Serialize};

use super::spent;
pub(super) use random::{BLOCK_BYTES, Latencies};

/// Bytes of one read of a whole tree, as cat(1) has it.
const TREE_BLOCK: usize = 128 << 10;
/// Bytes of one read of a large file.
const LARGE_BLOCK: usize = 1 << 20;

/// What a reader does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Way {
    /// Reads all files in the order of the listing, as `find -type f | xargs -n 64 -P JOBS cat` does
    Tree,
    /// Reads files that a reader of a tree names
    Batches,
    /// Reads a file front to back
    Large,
    /// Reads every block of 4 KiB of a part of a file once, in random order
    Random,
    /// Lists all names, as `find` does
    Find,
    /// Lists all names with attributes, as `ls -lR` does
    List,
}

/// What a reader is told.
#[derive(Debug, Clone, Args)]
pub(crate) struct ReaderArguments {
    #[arg(value_enum)]
    way: Way,
    /// Where it goes first
    #[arg(long)]
    directory: PathBuf,
    /// The process to die with
    #[arg(long)]
    parent: u32,
    /// Processes, or threads of random reads
    #[arg(long, default_value_t = 1)]
    jobs: u16,
    /// Files of a tree that are read at most
    #[arg(long, default_value_t = u64::MAX)]
    files: u64,
    /// The file, below the directory
    #[arg(long)]
    file: Option<PathBuf>,
    /// Bytes at the front of the file that are read
    #[arg(long, default_value_t = u64::MAX)]
    bytes: u64,
}

/// What a reader saw.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Seen {
    /// Files that were read, or names that were listed.
    pub(super) files: u64,
    pub(super) bytes: u64,
    /// What the reader may not read.
    pub(super) refused: u64,
    pub(super) latencies: Option<Latencies>,
}

impl Seen {
    fn add(&mut self, other: &Self) {
        self.files += other.files;
        self.bytes += other.bytes;
        self.refused += other.refused;
    }
}

/// A reader to be run.
#[derive(Debug, Clone)]
pub(super) struct Reader {
    pub(super) way: Way,
    pub(super) jobs: u16,
    pub(super) files: u64,
    /// Below the directory that is read.
    pub(super) file: Option<PathBuf>,
    pub(super) bytes: u64,
}

impl Reader {
    pub(super) fn new(way: Way) -> Self {
        Self { way, jobs: 1, files: u64::MAX, file: None, bytes: u64::MAX }
    }

    fn command(&self, directory: &Path) -> Result<Command> {
        let mut command = Command::new(std::env::current_exe().context("finding this program")?);
        let way = self.way.to_possible_value().context("a way without a name")?;
        command.args(["reader", way.get_name(), "--directory"]).arg(directory);
        command.args(["--parent", &std::process::id().to_string()]);
        command.args(["--jobs", &self.jobs.to_string(), "--files", &self.files.to_string()]);
        command.args(["--bytes", &self.bytes.to_string()]);
        if let Some(file) = &self.file {
            command.arg("--file").arg(file);
        }
        Ok(command)
    }

    /// Runs it in the directory. `said` is a place for what it says.
    pub(super) fn run(&self, directory: &Path, said: &Path) -> Result<(spent::Spent, Seen)> {
        let (spent, text) = spent::run(&mut self.command(directory)?, said)?;
        let seen = serde_json::from_str(&text).context("understanding a reader")?;
        Ok((spent, seen))
    }
}

/// Reads as told, and prints what was seen.
///
/// # Errors
/// When something cannot be read for another reason than that it is forbidden.
pub(crate) fn read(arguments: &ReaderArguments) -> Result<()> {
    set_parent_process_death_signal(Some(Signal::KILL)).context("tying a reader")?;
    let parent = getppid().map(|pid| pid.as_raw_nonzero().get().unsigned_abs());
    ensure!(parent == Some(arguments.parent), "the parent of a reader is gone");
    let directory = arguments.directory.display();
    chdir(&arguments.directory).with_context(|| format!("going to {directory}"))?;
    let seen = match arguments.way {
        Way::Tree => tree::read(arguments.jobs, arguments.files)?,
        Way::Batches => tree::read_batches()?,
        Way::Find => tree::list(tree::Detail::Names)?,
        Way::List => tree::list(tree::Detail::Attributes)?,
        Way::Large => read_large(named(arguments)?, arguments.bytes)?,
        Way::Random => random::read(named(arguments)?, arguments.jobs, arguments.bytes)?,
    };
    writeln!(stdout(), "{}", serde_json::to_string(&seen)?)?;
    Ok(())
}

fn named(arguments: &ReaderArguments) -> Result<&Path> {
    arguments.file.as_deref().context("--file is missing")
}

fn read_large(path: &Path, most_bytes: u64) -> Result<Seen> {
    let mut block = vec![0; LARGE_BLOCK];
    let bytes = read_front(path, most_bytes, &mut block)?;
    Ok(Seen { files: 1, bytes, ..Seen::default() })
}

/// Reads a file to its end, or so many bytes.
fn read_front(path: &Path, most_bytes: u64, block: &mut [u8]) -> Result<u64> {
    let file = File::open(path).with_context(|| path.display().to_string())?;
    let mut file = file.take(most_bytes);
    let mut bytes = 0;
    loop {
        match file.read(block) {
            Ok(0) => return Ok(bytes),
            Ok(count) => bytes += count as u64,
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error).with_context(|| path.display().to_string()),
        }
    }
}

/// The bytes of a path.
fn bytes_of(path: &Path) -> &[u8] {
    path.as_os_str().as_bytes()
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::{Reader, Way, read_large};

    #[test]
    fn a_reader_is_told_everything_in_words() {
        let reader = Reader { jobs: 4, file: Some("a b".into()), ..Reader::new(Way::Random) };
        let command = reader.command(Path::new("/mnt")).unwrap();
        let words: Vec<_> = command.get_args().map(|word| word.to_str().unwrap()).collect();
        assert_eq!(words[..4], ["reader", "random", "--directory", "/mnt"]);
        assert_eq!(words[words.len() - 2..], ["--file", "a b"]);
    }

    #[test]
    fn a_large_file_is_read_to_its_end_or_to_a_limit() {
        let file = tempfile::NamedTempFile::new().unwrap();
        file.as_file().set_len((1 << 20) + 17).unwrap();
        assert_eq!(read_large(file.path(), u64::MAX).unwrap().bytes, (1 << 20) + 17);
        assert_eq!(read_large(file.path(), 5).unwrap().bytes, 5);
        read_large(Path::new("/no such file"), 1).unwrap_err();
    }
}

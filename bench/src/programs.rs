//! The programs that are measured: where ours and the peers' are, their versions, and how they are called. Builds ours with
//! `cargo` if that started this program and ours is not built yet.

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::fs;
use std::io::{Write, stderr};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf, absolute};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, anyhow, bail, ensure};
use clap::Args;
use tempfile::TempDir;

use crate::experiment::{OURS, RoundOptions};
use crate::image_info::ImageInfo;
use crate::machine::catch_signals;
use crate::process;
use crate::report::Report;
use crate::trees::{is_in_memory, remove};

/// Memory in which everybody may make files, on most systems.
const SHARED_MEMORY: &str = "/dev/shm";
/// A quick run makes no squashfs image of larger ones: compressing would take all of its time.
const QUICK_BYTES: u64 = 64 << 20;
const MKSQUASHFS: &str = "mksquashfs";
/// zstd in blocks of 128 KiB, as squashfs is mostly used.
const SQUASHFS_OPTIONS: [&str; 7] =
    ["-comp", "zstd", "-b", "131072", "-quiet", "-no-progress", "-noappend"];

#[derive(Debug, Clone, Default, Args)]
pub(crate) struct ProgramArguments {
    /// The ferrofs program to measure [default: ferrofs in the folder of ferrofs-bench (if it is
    /// missing there and `cargo run` started ferrofs-bench, it is built there first), otherwise the
    /// first ferrofs in $PATH]
    #[arg(long, value_name = "FILE")]
    pub(crate) ferrofs: Option<PathBuf>,
    /// Folder with the programs that ferrofs is compared with, such as mkfs.erofs [default: search
    /// $PATH]
    #[arg(long, value_name = "DIR")]
    pub(crate) peers: Option<PathBuf>,
}

/// What every experiment with peers has.
#[derive(Debug, Clone, Args)]
pub(crate) struct PeerArguments {
    #[command(flatten)]
    pub(crate) rounds: RoundOptions,
    /// Folder for outputs, images and mount points [default: $TMPDIR or /tmp; for extract and build
    /// /dev/shm, if it is a tmpfs]
    #[arg(long, value_name = "DIR")]
    work: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) programs: ProgramArguments,
}

/// The images of an experiment, beside what every experiment with peers has.
#[derive(Debug, Clone, Args)]
pub(crate) struct ImageArguments {
    /// EROFS images
    #[arg(required = true, value_name = "IMAGE")]
    pub(crate) images: Vec<PathBuf>,
    #[command(flatten)]
    pub(crate) peers: PeerArguments,
}

impl PeerArguments {
    /// The folder of this process. From then on a signal does not end the process at once.
    pub(crate) fn folder(&self) -> Result<TempDir> {
        folder_in(&self.work.clone().unwrap_or_else(std::env::temp_dir))
    }

    /// The same where writing costs no disk, if there is such a place and none was named.
    pub(crate) fn folder_in_memory(&self) -> Result<TempDir> {
        let memory = Path::new(SHARED_MEMORY);
        let is_there = self.work.is_none() && is_in_memory(memory);
        let made = is_there.then(|| folder_in(memory)).and_then(Result::ok);
        made.map_or_else(|| self.folder(), Ok)
    }
}

fn folder_in(parent: &Path) -> Result<TempDir> {
    catch_signals()?;
    let parent = parent.canonicalize().with_context(|| parent.display().to_string())?;
    let folder = tempfile::Builder::new().prefix("ferrofs-bench-").tempdir_in(&parent);
    folder.with_context(|| format!("making a folder in {}", parent.display()))
}

/// For people: what a folder lies on.
pub(crate) fn place_of(folder: &Path) -> String {
    let kind = if is_in_memory(folder) { "a tmpfs" } else { "a disk" };
    format!("{} ({kind})", folder.parent().unwrap_or(folder).display())
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Program {
    pub(crate) name: String,
    path: PathBuf,
    version: String,
}

impl Program {
    fn at(name: &str, path: PathBuf) -> Self {
        let flag = match name {
            "erofsfuse" => "-V",
            "mksquashfs" | "unsquashfs" => "-version",
            _ => "--version",
        };
        // Some programs answer with an error status, and some libraries with a line of their own before.
        let output = Command::new(&path).arg(flag).stdin(Stdio::null()).output();
        let output =
            output.map(|output| [output.stdout, output.stderr].concat()).unwrap_or_default();
        let version = version_in(name, &String::from_utf8_lossy(&output));
        Self { name: name.to_owned(), path, version }
    }

    pub(crate) fn with<W: Into<OsString>>(&self, words: impl IntoIterator<Item = W>) -> Invocation {
        Invocation { program: self.clone(), called: None, words: Vec::new() }.with(words)
    }
}

impl fmt::Display for Program {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}, {}", self.name, self.version, self.path.display())
    }
}

impl ProgramArguments {
    /// A program that is there, named in the report with its version; one that is missing is named, too.
    pub(crate) fn find(&self, name: &str, report: &mut Report) -> Option<Program> {
        let found = if name == OURS { self.ours() } else { self.peer(name) };
        match &found {
            Ok(program) => report.remark(program.to_string()),
            Err(why) => report.leave_out(name, why),
        }
        found.ok()
    }

    pub(crate) fn ours(&self) -> Result<Program> {
        if let Some(path) = &self.ferrofs {
            ensure!(is_program(path), "--ferrofs {}: no program is there", path.display());
            return Ok(Program::at(OURS, absolute(path)?));
        }
        let own = std::env::current_exe().context("finding this program")?;
        let folder = own.parent().unwrap_or(&own);
        let beside = folder.join(OURS);
        let built = if is_program(&beside) { Ok(()) } else { build_into(folder) };
        let found = is_program(&beside).then_some(beside).or_else(|| on_path(OURS));
        let Some(path) = found else {
            built?;
            bail!(
                "no ferrofs in {} or on PATH; `cargo build --release -p ferrofs` builds it, --ferrofs names it",
                folder.display()
            )
        };
        Ok(Program::at(OURS, path))
    }

    /// A peer; the error says where it was not found.
    pub(crate) fn peer(&self, name: &str) -> Result<Program> {
        let (found, place) = match &self.peers {
            Some(folder) => {
                let path = Some(folder.join(name)).filter(|path| is_program(path));
                (path.and_then(|path| absolute(path).ok()), format!("in {}", folder.display()))
            }
            None => (on_path(name), "on PATH".to_owned()),
        };
        found.map(|path| Program::at(name, path)).with_context(|| format!("no {name} {place}"))
    }
}

/// Builds our program beside this one if `cargo run` started it.
fn build_into(folder: &Path) -> Result<()> {
    let variables = std::env::var_os("CARGO").zip(std::env::var_os("CARGO_MANIFEST_DIR"));
    let (Some((cargo, package)), Some(target)) = (variables, folder.parent()) else {
        return Ok(());
    };
    let mut command = Command::new(cargo);
    command.args(["build", "--quiet", "-p", "ferrofs"]).current_dir(package);
    command.arg("--target-dir").arg(target).stdin(Stdio::null()).stdout(Stdio::null());
    command.args((folder.file_name() == Some(OsStr::new("release"))).then_some("--release"));
    // If even stderr is closed nobody can be told.
    writeln!(stderr(), "building ferrofs, which is not there yet").unwrap_or_default();
    let status = command.status().context("starting cargo")?;
    ensure!(status.success(), "`cargo build -p ferrofs`: {status}");
    Ok(())
}

pub(crate) fn on_path(name: &str) -> Option<PathBuf> {
    let folders = std::env::var_os("PATH").unwrap_or_default();
    let mut places = std::env::split_paths(&folders).map(|folder| folder.join(name));
    places.find(|path| is_program(path)).and_then(|path| absolute(path).ok())
}

fn is_program(path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|found| found.is_file() && found.permissions().mode() & 0o111 != 0)
}

/// The first line with a digit and the program's name without suffix, or else the first with a digit.
fn version_in(name: &str, output: &str) -> String {
    let stem = name.split(['.', '_']).next().unwrap_or(name);
    let has_digit = |line: &&str| line.chars().any(|c| c.is_ascii_digit());
    let lines = || output.lines().filter(has_digit).filter(|line| !line.starts_with("fusermount"));
    let named = lines().find(|line| line.contains(stem));
    named.or_else(|| lines().next()).unwrap_or("unknown").trim().to_owned()
}

/// A program with its arguments, run once for each sample.
#[derive(Debug, Clone)]
pub(crate) struct Invocation {
    pub(crate) program: Program,
    /// The name that it is called by, if not its own.
    pub(crate) called: Option<String>,
    pub(crate) words: Vec<OsString>,
}

impl Invocation {
    pub(crate) fn with<W: Into<OsString>>(mut self, words: impl IntoIterator<Item = W>) -> Self {
        self.words.extend(words.into_iter().map(Into::into));
        self
    }

    pub(crate) fn command(&self) -> Command {
        let mut command = Command::new(&self.program.path);
        command.args(&self.words);
        if let Some(name) = &self.called {
            command.arg0(name);
        }
        command
    }

    /// Every word, for the report.
    pub(crate) fn line(&self) -> Vec<String> {
        let mut words = process::words(&self.command());
        if let (Some(name), Some(first)) = (&self.called, words.first_mut()) {
            *first = format!("{first} (called {name})");
        }
        words
    }
}

/// The squashfs image beside an EROFS image: the given one, or one that is made of the same tree in the folder. The error says
/// why there is none.
pub(crate) fn squashfs_of(
    image: &ImageInfo,
    given: Option<&Path>,
    programs: &ProgramArguments,
    is_quick: bool,
    folder: &Path,
) -> Result<PathBuf> {
    if let Some(given) = given {
        return given.canonicalize().with_context(|| given.display().to_string());
    }
    let is_short = is_quick && image.bytes > QUICK_BYTES;
    ensure!(!is_short, "a quick run has no time to make a squashfs image; --squashfs names one");
    let maker = programs.peer(MKSQUASHFS);
    let maker = maker.map_err(|why| anyhow!("{why}; --squashfs names an image"))?;
    let (tree, path) = (folder.join("tree"), folder.join("tree.squashfs"));
    let extract = programs.ours()?.with(["extract", "--quiet", "--progress=none"]);
    process::run(&mut extract.with([&image.path, &tree]).command())?;
    let make = maker.with([&tree, &path]).with(SQUASHFS_OPTIONS);
    let made = process::run(&mut make.command());
    remove(&tree)?;
    made.map(|_| path)
}

/// An image of a tree that a shell script makes, in the folder.
pub(crate) fn image_by(
    programs: &ProgramArguments,
    folder: &Path,
    [name, compression, script]: [&str; 3],
) -> Result<ImageInfo> {
    let (tree, path) = (folder.join(name), folder.join(format!("{name}.erofs")));
    fs::create_dir(&tree).with_context(|| format!("making {}", tree.display()))?;
    process::run(Command::new("sh").args(["-ec", script]).current_dir(&tree))?;
    let build = ["build", "--quiet", "--progress=none", compression, "-C65536"];
    process::run(&mut programs.ours()?.with(build).with([&path, &tree]).command())?;
    ImageInfo::read(&path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_found_in_what_programs_print() {
        let fsck = "fsck.erofs (erofs-utils) 1.9.4";
        for (name, output, wanted) in [
            ("fsck.erofs", "fsck.erofs (erofs-utils) 1.9.4\navailable: lz4", fsck),
            ("erofsfuse", "fusermount3 version: 3.14.0\nerofsfuse 1.9.4\nusage", "erofsfuse 1.9.4"),
            ("erofsfuse", "fusermount3 version: 3.14.0\nusage: [options]", "unknown"),
            ("squashfuse_ll", "squashfuse 0.5.2 (c) 2012 D\n", "squashfuse 0.5.2 (c) 2012 D"),
            ("mksquashfs", "", "unknown"),
        ] {
            assert_eq!(version_in(name, output), wanted, "{name}");
        }
    }

    #[test]
    fn only_executable_files_are_programs() {
        let folder = tempfile::tempdir().unwrap();
        let peers = || ProgramArguments { ferrofs: None, peers: Some(folder.path().to_owned()) };
        let path = folder.path().join("fsck.erofs");
        fs::write(&path, "#!/bin/sh\necho fsck.erofs 1.2\n").unwrap();
        let error = peers().peer("fsck.erofs").unwrap_err().to_string();
        assert!(error.starts_with("no fsck.erofs in "), "{error}");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        assert_eq!(peers().peer("fsck.erofs").unwrap().version, "fsck.erofs 1.2");
        fs::create_dir(folder.path().join("mkfs.erofs")).unwrap();
        peers().peer("mkfs.erofs").unwrap_err();
    }

    #[test]
    fn a_program_can_be_called_by_another_name() {
        let [name, version] = ["ferrofs", ""].map(str::to_owned);
        let sh = Program { name, path: "/bin/sh".into(), version };
        let invocation = sh.with(["-c", "case $0 in mkfs.erofs) ;; *) exit 1;; esac"]);
        let invocation = Invocation { called: Some("mkfs.erofs".to_owned()), ..invocation };
        assert_eq!(invocation.line()[0], "/bin/sh (called mkfs.erofs)");
        process::run(&mut invocation.command()).unwrap();
    }
}

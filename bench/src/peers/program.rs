//! The programs that are measured: where ours and the peers' are, and which versions they are. Runs none but to ask that,
//! and `cargo`, where it started this program and ours is not built yet.

use std::ffi::OsStr;
use std::fs;
use std::io::{Write, stderr};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf, absolute};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail, ensure};
use clap::Args;
use serde::Serialize;

/// Where programs are looked for.
#[derive(Debug, Clone, Args, Serialize)]
pub(crate) struct ProgramArguments {
    /// Our own program. If none is named it is the one beside this program, which `cargo run` builds if need be, or one
    /// on PATH
    #[arg(long, value_name = "PATH")]
    pub(crate) ferrofs: Option<PathBuf>,
    /// Take peers from this folder only, instead of PATH
    #[arg(long, value_name = "DIR")]
    pub(crate) peers: Option<PathBuf>,
}

/// A program that is there.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(super) struct Program {
    pub(super) name: &'static str,
    pub(super) path: PathBuf,
    /// The line in which it tells its version.
    pub(super) version: String,
}

impl Program {
    fn at(name: &'static str, path: PathBuf) -> Self {
        let version = version_of(name, &path);
        Self { name, path, version }
    }

    pub(super) fn command(&self) -> Command {
        Command::new(&self.path)
    }
}

impl ProgramArguments {
    /// Our own program.
    ///
    /// # Errors
    /// When there is none.
    pub(super) fn ours(&self) -> Result<Program> {
        let path = if let Some(path) = &self.ferrofs {
            ensure!(is_program(path), "--ferrofs {}: no program is there", path.display());
            absolute(path).with_context(|| path.display().to_string())?
        } else {
            let own = std::env::current_exe().context("finding this program")?;
            let place = own.parent().unwrap_or(&own);
            let beside = place.join("ferrofs");
            let built = if is_program(&beside) { Ok(()) } else { build_into(place) };
            match is_program(&beside).then_some(beside).or_else(|| on_path("ferrofs")) {
                Some(found) => found,
                None => {
                    built?;
                    let place = place.display();
                    bail!(
                        "no ferrofs in {place} or on PATH; `cargo build --release -p ferrofs` builds it, --ferrofs names it"
                    )
                }
            }
        };
        Ok(Program::at("ferrofs", path))
    }

    /// A peer, if it is there.
    ///
    /// # Errors
    /// When it is not, with where it was looked for.
    pub(super) fn peer(&self, name: &'static str) -> Result<Program, String> {
        match &self.peers {
            Some(folder) => {
                let path = folder.join(name);
                let found = is_program(&path).then(|| absolute(&path).ok()).flatten();
                found
                    .map(|path| Program::at(name, path))
                    .ok_or_else(|| format!("no {name} in {}", folder.display()))
            }
            None => on_path(name)
                .map(|path| Program::at(name, path))
                .ok_or_else(|| format!("no {name} on PATH")),
        }
    }
}

/// Has our program be there, so that nobody has to look for it later.
///
/// # Errors
/// When there is none, and none can be built.
pub(crate) fn find_ours() -> Result<()> {
    ProgramArguments { ferrofs: None, peers: None }.ours().map(drop)
}

/// Builds our program beside this one, as that was built, if `cargo run` started it.
///
/// # Errors
/// When it does not build.
fn build_into(place: &Path) -> Result<()> {
    let (Some(cargo), Some(package)) =
        (std::env::var_os("CARGO"), std::env::var_os("CARGO_MANIFEST_DIR"))
    else {
        return Ok(());
    };
    let Some(target) = place.parent() else { return Ok(()) };
    let mut command = Command::new(cargo);
    command.args(["build", "--quiet", "-p", "ferrofs"]).current_dir(package);
    command.arg("--target-dir").arg(target).stdin(Stdio::null()).stdout(Stdio::null());
    if place.file_name() == Some(OsStr::new("release")) {
        command.arg("--release");
    }
    // If even stderr is closed there is nobody left to tell.
    writeln!(stderr(), "building ferrofs, which is not there yet").unwrap_or_default();
    let status = command.status().context("starting cargo")?;
    ensure!(status.success(), "`cargo build -p ferrofs`: {status}");
    Ok(())
}

/// A program of the system.
pub(super) fn on_path(name: &str) -> Option<PathBuf> {
    in_folders(name, &std::env::var_os("PATH").unwrap_or_default())
}

fn in_folders(name: &str, folders: &OsStr) -> Option<PathBuf> {
    let places = std::env::split_paths(folders).map(|folder| folder.join(name));
    places.filter(|path| is_program(path)).find_map(|path| absolute(path).ok())
}

fn is_program(path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|found| found.is_file() && found.permissions().mode() & 0o111 != 0)
}

/// What it answers when asked for its version. squashfs-tools and squashfuse answer with an error status, and some libraries
/// with a line of their own before.
fn version_of(name: &str, path: &Path) -> String {
    let flag = match name {
        "erofsfuse" => "-V",
        "mksquashfs" | "unsquashfs" => "-version",
        _ => "--version",
    };
    let output = Command::new(path).arg(flag).stdin(Stdio::null()).output();
    let said = output.map(|output| [output.stdout, output.stderr].concat()).unwrap_or_default();
    version_in(name, &String::from_utf8_lossy(&said))
}

/// The line with the version: the first one that has a digit and the program's name (without its suffix), or else the
/// first one that has a digit.
fn version_in(name: &str, said: &str) -> String {
    let stem = name.split(['.', '_']).next().unwrap_or(name);
    let numbered = || said.lines().filter(|line| line.chars().any(|c| c.is_ascii_digit()));
    let named = numbered().find(|line| line.contains(stem) && !line.starts_with("fusermount"));
    let other = || numbered().find(|line| !line.starts_with("fusermount"));
    named.or_else(other).unwrap_or("unknown").trim().to_owned()
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    use super::{ProgramArguments, in_folders, version_in};

    #[test]
    fn versions_are_found_in_what_programs_say() {
        for (name, said, wanted) in [
            (
                "fsck.erofs",
                "fsck.erofs (erofs-utils) 1.9.4\navailable: lz4",
                "fsck.erofs (erofs-utils) 1.9.4",
            ),
            ("erofsfuse", "fusermount3 version: 3.14.0\nerofsfuse 1.9.4\nusage", "erofsfuse 1.9.4"),
            ("erofsfuse", "fusermount3 version: 3.14.0\nusage: [options]", "unknown"),
            ("squashfuse_ll", "squashfuse 0.5.2 (c) 2012 D\n", "squashfuse 0.5.2 (c) 2012 D"),
            ("mksquashfs", "", "unknown"),
        ] {
            assert_eq!(version_in(name, said), wanted, "{name}");
        }
    }

    #[test]
    fn only_files_that_may_be_run_are_programs() {
        let folder = tempfile::tempdir().unwrap();
        let peers = || ProgramArguments { ferrofs: None, peers: Some(folder.path().to_owned()) };
        let path = folder.path().join("fsck.erofs");
        fs::write(&path, "#!/bin/sh\necho fsck.erofs 1.2\n").unwrap();
        assert!(peers().peer("fsck.erofs").unwrap_err().starts_with("no fsck.erofs in "));
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        assert_eq!(peers().peer("fsck.erofs").unwrap().version, "fsck.erofs 1.2");
        assert_eq!(in_folders("fsck.erofs", folder.path().as_os_str()), Some(path));
        fs::create_dir(folder.path().join("mkfs.erofs")).unwrap();
        peers().peer("mkfs.erofs").unwrap_err();
    }

    #[test]
    fn a_wrong_place_of_our_program_is_named() {
        let arguments = ProgramArguments { ferrofs: Some("/no/such/ferrofs".into()), peers: None };
        let error = arguments.ours().unwrap_err().to_string();
        assert_eq!(error, "--ferrofs /no/such/ferrofs: no program is there");
    }
}

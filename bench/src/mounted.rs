//! A mounted image: by our program, by a peer's daemon, or by a driver of the kernel. It is unmounted on drop; a daemon is a
//! child in the foreground. Owns neither image nor directory.

use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use clap::ValueEnum;
use procfs::process::Process;
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};

use crate::child::{OwnedChild, name_of};
use crate::experiment::OURS;
use crate::machine::{Requirement, is_root, missing};
use crate::process;
use crate::programs::{Program, ProgramArguments, on_path};

/// How long a daemon may take to mount, or to end when it is unmounted.
const DAEMON_LIMIT: Duration = Duration::from_secs(60);
/// How long a mount may be busy: its readers may still be ending.
const BUSY_LIMIT: Duration = Duration::from_secs(5);
const PAUSE: Duration = Duration::from_millis(2);

/// A way to mount.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum System {
    /// The kernel's EROFS over a loop device, as mount(8) makes it (needs root)
    Kernel,
    /// The kernel's EROFS directly on the file, without a loop device (needs root, and Linux 6.12
    /// or later)
    KernelFile,
    /// The daemon of erofs-utils
    Erofsfuse,
    /// squashfuse's daemon, on a squashfs image
    #[value(name = "squashfuse_ll")]
    SquashfuseLl,
    /// The kernel's squashfs over a loop device (needs root)
    KernelSquashfs,
    /// ferrofs itself
    Ferrofs,
}

impl System {
    /// The file system that a driver of the kernel mounts; none of a daemon's.
    const fn driver(self) -> Option<&'static str> {
        match self {
            Self::Kernel | Self::KernelFile => Some("erofs"),
            Self::KernelSquashfs => Some("squashfs"),
            Self::Erofsfuse | Self::SquashfuseLl | Self::Ferrofs => None,
        }
    }

    pub(crate) const fn takes_squashfs(self) -> bool {
        matches!(self, Self::SquashfuseLl | Self::KernelSquashfs)
    }

    /// What mounts; the error says what is missing.
    pub(crate) fn find(self, programs: &ProgramArguments) -> Result<Mounter> {
        let is_driver = self.driver().is_some();
        let requirement = if is_driver { Requirement::Root } else { Requirement::Fuse };
        if let Some(missing) = missing(&[requirement]) {
            bail!("{missing}");
        }
        if !is_root() {
            ensure!(on_path("fusermount3").is_some(), "needs fusermount3 on PATH, or root");
        }
        let program = match self {
            _ if is_driver => None,
            Self::Ferrofs => Some(programs.ours()?),
            _ => Some(programs.peer(&name_of(&self))?),
        };
        Ok(Mounter { system: self, program, options: Vec::new(), variables: Vec::new() })
    }
}

/// A system that is there.
#[derive(Debug, Clone)]
pub(crate) struct Mounter {
    pub(crate) system: System,
    /// None of the kernel's.
    pub(crate) program: Option<Program>,
    /// Before image and directory. The kernel is only told whether there are some: devices work in the mount then.
    pub(crate) options: Vec<String>,
    pub(crate) variables: Vec<(&'static str, PathBuf)>,
}

impl Mounter {
    /// The command line, for a report. Without a loop device the kernel is called by mount(2), since mount(8) before
    /// util-linux 2.41 cannot leave it out.
    pub(crate) fn words(&self, image: &Path, directory: &Path) -> Vec<String> {
        if self.system != System::KernelFile {
            return process::words(&self.command(&["-f"], image, directory));
        }
        let [image, directory] = [image, directory].map(Path::display);
        vec![format!(
            "mount(\"{image}\", \"{directory}\", \"erofs\", MS_RDONLY | MS_NOSUID | MS_NODEV, NULL)"
        )]
    }

    fn command(&self, own: &[&str], image: &Path, directory: &Path) -> Command {
        let Some(program) = &self.program else {
            let mut command = Command::new("mount");
            let dev = if self.options.is_empty() { "nodev" } else { "dev" };
            command.arg("-t").args(self.system.driver());
            command.args(["-o", &format!("ro,nosuid,{dev},loop")]).args([image, directory]);
            return command;
        };
        let verb: &[&str] = if program.name == OURS { &["mount", "--quiet"] } else { &[] };
        let own = verb.iter().chain(own).copied();
        let invocation = program.with(own).with(&self.options);
        let mut command = invocation.with([image, directory]).command();
        command.envs(self.variables.iter().map(|(name, value)| (name, value)));
        command
    }

    /// Mounts the image as a user does, with a daemon in the background, and unmounts it: the time until the root has
    /// attributes.
    pub(crate) fn time_start(&self, image: &Path, directory: &Path) -> Result<Duration> {
        let outside = directory.metadata().context("the mount's directory")?.dev();
        let begin = Instant::now();
        let mounted = if self.system == System::KernelFile {
            self.mount(image, directory, Path::new(""))?
        } else {
            process::run(&mut self.command(&[], image, directory))?;
            Mounted { directory: directory.to_path_buf(), daemon: None, is_mounted: true }
        };
        let root = directory.metadata().context("the root of the mount")?;
        let elapsed = begin.elapsed();
        ensure!(root.dev() != outside, "{} did not mount", name_of(&self.system));
        mounted.end()?;
        Ok(elapsed)
    }

    /// Mounts the image on the directory. A daemon's output goes to `log`.
    pub(crate) fn mount(&self, image: &Path, directory: &Path, log: &Path) -> Result<Mounted> {
        let mut mounted =
            Mounted { directory: directory.to_path_buf(), daemon: None, is_mounted: false };
        let mut command = self.command(&["-f"], image, directory);
        if self.system == System::KernelFile {
            let flags = MountFlags::RDONLY | MountFlags::NOSUID | MountFlags::NODEV;
            mount(image, directory, "erofs", flags, None).context("mount(2)")?;
        } else if self.program.is_none() {
            process::run(&mut command)?;
        } else {
            let outside = directory.metadata().context("the mount's directory")?.dev();
            let output = File::create(log).with_context(|| log.display().to_string())?;
            command.stdin(Stdio::null()).stdout(output.try_clone()?).stderr(output);
            let daemon =
                command.spawn().with_context(|| format!("starting {}", name_of(&self.system)));
            let (daemon, begin) = (mounted.daemon.insert(OwnedChild(daemon?)), Instant::now());
            while directory.metadata().is_ok_and(|found| found.dev() == outside) {
                if daemon.0.try_wait()?.is_some() || begin.elapsed() > DAEMON_LIMIT {
                    let (line, text) = (process::words(&command).join(" "), process::text_of(log)?);
                    bail!("{line} did not mount: {}", process::end_of(&text));
                }
                thread::sleep(PAUSE);
            }
        }
        mounted.is_mounted = true;
        Ok(mounted)
    }
}

#[derive(Debug)]
pub(crate) struct Mounted {
    directory: PathBuf,
    daemon: Option<OwnedChild>,
    is_mounted: bool,
}

impl Mounted {
    /// The process that serves it; none of a driver's.
    pub(crate) fn daemon(&self) -> Result<Option<Process>> {
        let id = self.daemon.as_ref().map(|child| i32::try_from(child.0.id())).transpose()?;
        Ok(id.map(Process::new).transpose()?)
    }

    pub(crate) fn daemon_cpu(&self) -> Result<Duration> {
        let time = self.daemon.as_ref().map(|child| process::cpu_of(&child.0)).transpose();
        Ok(time.context("the daemon's CPU time")?.unwrap_or_default())
    }

    pub(crate) fn end(mut self) -> Result<()> {
        let begin = Instant::now();
        while let Err(error) = release(&self.directory, UnmountFlags::empty()) {
            if begin.elapsed() > BUSY_LIMIT {
                return Err(error)
                    .with_context(|| format!("unmounting {}", self.directory.display()));
            }
            thread::sleep(PAUSE);
        }
        self.is_mounted = false;
        let begin = Instant::now();
        while let Some(daemon) = &mut self.daemon
            && daemon.0.try_wait().context("waiting for a daemon")?.is_none()
        {
            ensure!(begin.elapsed() < DAEMON_LIMIT, "the daemon outlives its mount");
            thread::sleep(PAUSE);
        }
        Ok(())
    }
}

fn release(directory: &Path, flags: UnmountFlags) -> Result<()> {
    if is_root() {
        return unmount(directory, flags).context("umount2");
    }
    let mut command = Command::new("fusermount3");
    command.arg("-u").args(flags.contains(UnmountFlags::DETACH).then_some("-z")).arg(directory);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let status = command.status().context("fusermount3")?;
    ensure!(status.success(), "fusermount3 -u: {status}");
    Ok(())
}

impl Drop for Mounted {
    /// After a failure. A daemon is killed next.
    fn drop(&mut self) {
        if self.is_mounted {
            release(&self.directory, UnmountFlags::DETACH).unwrap_or_default();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_driver_has_its_words() {
        for (system, line) in [
            (System::KernelSquashfs, "mount -t squashfs -o ro,nosuid,nodev,loop i.erofs /mnt"),
            (
                System::KernelFile,
                "mount(\"i.erofs\", \"/mnt\", \"erofs\", MS_RDONLY | MS_NOSUID | MS_NODEV, NULL)",
            ),
        ] {
            let mounter = Mounter { system, program: None, options: vec![], variables: vec![] };
            let words = mounter.words(Path::new("i.erofs"), Path::new("/mnt"));
            assert_eq!(words.join(" "), line);
        }
    }
}

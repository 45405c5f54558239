//! A mounted image: by ours, by a peer's daemon, or by a driver of the kernel. It is unmounted when it goes, whatever
//! happened before; a daemon is a child that stays in the foreground and is waited for. Owns neither image nor directory.

use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use clap::ValueEnum;
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};
use serde::Serialize;

use super::program::{Program, ProgramArguments, on_path};
use super::spent;
use crate::machine::{field_of, leading_number};

/// How long a daemon may take to mount, or to end when it is unmounted.
const PATIENCE: Duration = Duration::from_secs(60);
/// How long a mount may be busy: whoever read it may still be ending.
const BUSY: Duration = Duration::from_secs(5);
const PAUSE: Duration = Duration::from_millis(2);

/// A way to mount.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum System {
    /// Our own program
    Ferrofs,
    Erofsfuse,
    /// squashfuse's daemon, on a squashfs image
    #[value(name = "squashfuse_ll")]
    SquashfuseLl,
    /// The kernel's EROFS over a loop device, as mount(8) makes it (needs root)
    Kernel,
    /// The kernel's EROFS straight on the file (needs root, and Linux 6.12)
    KernelFile,
    /// The kernel's squashfs over a loop device (needs root)
    KernelSquashfs,
}

impl System {
    pub(super) const ALL: [Self; 6] = [
        Self::Kernel,
        Self::KernelFile,
        Self::Erofsfuse,
        Self::SquashfuseLl,
        Self::KernelSquashfs,
        Self::Ferrofs,
    ];
    /// Those that mount EROFS.
    pub(super) const EROFS: [Self; 4] =
        [Self::Kernel, Self::KernelFile, Self::Erofsfuse, Self::Ferrofs];

    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Ferrofs => "ferrofs",
            Self::Erofsfuse => "erofsfuse",
            Self::SquashfuseLl => "squashfuse_ll",
            Self::Kernel => "kernel",
            Self::KernelFile => "kernel-file",
            Self::KernelSquashfs => "kernel-squashfs",
        }
    }

    pub(super) const fn takes_squashfs(self) -> bool {
        matches!(self, Self::SquashfuseLl | Self::KernelSquashfs)
    }

    const fn kernel_type(self) -> Option<&'static str> {
        match self {
            Self::Kernel | Self::KernelFile => Some("erofs"),
            Self::KernelSquashfs => Some("squashfs"),
            Self::Ferrofs | Self::Erofsfuse | Self::SquashfuseLl => None,
        }
    }

    /// What it needs, with what it is mounted.
    ///
    /// # Errors
    /// When something is missing, with what.
    pub(super) fn find(self, programs: &ProgramArguments) -> Result<Mounter, String> {
        let is_root = rustix::process::geteuid().is_root();
        if self.kernel_type().is_some() {
            if !is_root {
                return Err("needs root".to_owned());
            }
            return Ok(Mounter { system: self, program: None });
        }
        if File::options().read(true).write(true).open("/dev/fuse").is_err() {
            return Err("needs /dev/fuse, to be opened by this user".to_owned());
        }
        if !is_root && on_path("fusermount3").is_none() {
            return Err("needs fusermount3 on PATH, or root".to_owned());
        }
        let program = match self {
            Self::Ferrofs => programs.ours().map_err(|error| format!("{error:#}"))?,
            _ => programs.peer(self.name())?,
        };
        Ok(Mounter { system: self, program: Some(program) })
    }
}

/// A system that is there.
#[derive(Debug, Clone)]
pub(super) struct Mounter {
    pub(super) system: System,
    /// None of the kernel's.
    pub(super) program: Option<Program>,
}

impl Mounter {
    /// The words that mount, as they stand in a report. Where a program mounts, these are run; the kernel's driver is asked
    /// by mount(2) if no loop device is wanted, since mount(8) before util-linux 2.41 cannot leave it out.
    pub(super) fn words(&self, image: &Path, directory: &Path) -> Vec<String> {
        match self.system {
            System::KernelFile => vec![format!(
                "mount(\"{}\", \"{}\", \"erofs\", MS_RDONLY | MS_NOSUID | MS_NODEV, NULL)",
                image.display(),
                directory.display()
            )],
            _ => spent::words(&self.command(image, directory)),
        }
    }

    fn command(&self, image: &Path, directory: &Path) -> Command {
        let Some(program) = &self.program else {
            let mut command = Command::new("mount");
            let kind = self.system.kernel_type().unwrap_or_default();
            command.args(["-t", kind, "-o", "ro,nosuid,nodev,loop"]).arg(image).arg(directory);
            return command;
        };
        let mut command = program.command();
        if self.system == System::Ferrofs {
            command.args(["mount", "--quiet"]);
        }
        command.arg("-f").arg(image).arg(directory);
        command
    }

    /// Mounts the image on the directory. `said` is a place for what a daemon says.
    pub(super) fn mount(&self, image: &Path, directory: &Path, said: &Path) -> Result<Mounted> {
        let name = self.system.name();
        let directory = directory.to_path_buf();
        if self.system == System::KernelFile {
            let flags = MountFlags::RDONLY | MountFlags::NOSUID | MountFlags::NODEV;
            mount(image, &directory, "erofs", flags, None).context("mount(2)")?;
            return Ok(Mounted { directory, daemon: None, is_mounted: true });
        }
        let mut command = self.command(image, &directory);
        if self.program.is_none() {
            spent::run(&mut command, said)?;
            return Ok(Mounted { directory, daemon: None, is_mounted: true });
        }
        let outside = directory.metadata().context("the mount's directory")?.dev();
        let complaint = File::create(said).with_context(|| said.display().to_string())?;
        command.stdin(Stdio::null()).stdout(complaint.try_clone()?).stderr(complaint);
        let child = command.spawn().with_context(|| format!("starting {name}"))?;
        let mut mounted = Mounted { directory, daemon: Some(child), is_mounted: false };
        let begin = Instant::now();
        while mounted.directory.metadata().is_ok_and(|found| found.dev() == outside) {
            let status = mounted.daemon.as_mut().map(Child::try_wait).transpose()?.flatten();
            if status.is_some() || begin.elapsed() > PATIENCE {
                let text = spent::text_of(said)?;
                bail!("{} did not mount: {}", spent::line(&command), spent::last(&text));
            }
            thread::sleep(PAUSE);
        }
        mounted.is_mounted = true;
        Ok(mounted)
    }
}

/// Something mounted.
#[derive(Debug)]
pub(super) struct Mounted {
    directory: PathBuf,
    daemon: Option<Child>,
    is_mounted: bool,
}

impl Mounted {
    /// CPU time of its daemon so far; none of a driver's.
    pub(super) fn daemon_cpu(&self) -> Result<Duration> {
        let time = self.daemon.as_ref().map(spent::cpu_of).transpose();
        Ok(time.context("the daemon's CPU time")?.unwrap_or_default())
    }

    /// Peak memory of its daemon.
    pub(super) fn daemon_peak_mib(&self) -> Option<f64> {
        let daemon = self.daemon.as_ref()?;
        let peak = field_of(&format!("/proc/{}/status", daemon.id()), "VmHWM");
        Some(leading_number(&peak) as f64 / 1024.0)
    }

    /// Unmounts, and waits for the daemon.
    pub(super) fn end(mut self) -> Result<()> {
        let begin = Instant::now();
        while let Err(error) = release(&self.directory, UnmountFlags::empty()) {
            if begin.elapsed() > BUSY {
                return Err(error)
                    .with_context(|| format!("unmounting {}", self.directory.display()));
            }
            thread::sleep(PAUSE);
        }
        self.is_mounted = false;
        if let Some(daemon) = &mut self.daemon {
            let begin = Instant::now();
            while daemon.try_wait().context("waiting for a daemon")?.is_none() {
                ensure!(begin.elapsed() < PATIENCE, "the daemon outlives its mount");
                thread::sleep(PAUSE);
            }
        }
        self.daemon = None;
        Ok(())
    }
}

/// Unmounts, as this user can.
fn release(directory: &Path, flags: UnmountFlags) -> Result<()> {
    if rustix::process::geteuid().is_root() {
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
    /// After a failure.
    fn drop(&mut self) {
        if self.is_mounted {
            release(&self.directory, UnmountFlags::DETACH).unwrap_or_default();
        }
        if let Some(daemon) = &mut self.daemon {
            daemon.kill().unwrap_or_default();
            if daemon.wait().is_err() {
                // Nobody to wait for: it is gone.
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use clap::ValueEnum;

    use super::{Mounter, System};

    #[test]
    fn every_system_has_the_name_that_it_is_called_by() {
        for system in System::ALL {
            let value = system.to_possible_value().unwrap();
            assert_eq!(value.get_name(), system.name());
        }
        assert!(System::EROFS.iter().all(|system| !system.takes_squashfs()));
    }

    #[test]
    fn the_words_of_a_driver_name_its_type_and_image() {
        let words = |system| {
            Mounter { system, program: None }
                .words(Path::new("i.erofs"), Path::new("/mnt"))
                .join(" ")
        };
        assert_eq!(
            words(System::KernelSquashfs),
            "mount -t squashfs -o ro,nosuid,nodev,loop i.erofs /mnt"
        );
        assert!(words(System::KernelFile).starts_with("mount(\"i.erofs\", \"/mnt\", \"erofs\""));
    }
}

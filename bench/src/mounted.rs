//! A mounted image: by our program, by a peer's daemon, or by a driver of the kernel. It is unmounted on drop; a daemon is a
//! child in the foreground. Owns neither image nor directory.

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

use crate::process;
use crate::procfs::{field_of, leading_number};
use crate::programs::{Invocation, Program, ProgramArguments, on_path};

/// How long a daemon may take to mount, or to end when it is unmounted.
const DAEMON_LIMIT: Duration = Duration::from_secs(60);
/// How long a mount may be busy: its readers may still be ending.
const BUSY_LIMIT: Duration = Duration::from_secs(5);
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
    pub(crate) const ALL: [Self; 6] = [
        Self::Kernel,
        Self::KernelFile,
        Self::Erofsfuse,
        Self::SquashfuseLl,
        Self::KernelSquashfs,
        Self::Ferrofs,
    ];
    pub(crate) const EROFS: [Self; 4] =
        [Self::Kernel, Self::KernelFile, Self::Erofsfuse, Self::Ferrofs];

    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Ferrofs => "ferrofs",
            Self::Erofsfuse => "erofsfuse",
            Self::SquashfuseLl => "squashfuse_ll",
            Self::Kernel => "kernel",
            Self::KernelFile => "kernel-file",
            Self::KernelSquashfs => "kernel-squashfs",
        }
    }

    pub(crate) const fn takes_squashfs(self) -> bool {
        matches!(self, Self::SquashfuseLl | Self::KernelSquashfs)
    }

    const fn kernel_type(self) -> Option<&'static str> {
        match self {
            Self::Kernel | Self::KernelFile => Some("erofs"),
            Self::KernelSquashfs => Some("squashfs"),
            Self::Ferrofs | Self::Erofsfuse | Self::SquashfuseLl => None,
        }
    }

    /// What mounts, or what is missing.
    pub(crate) fn find(self, programs: &ProgramArguments) -> Result<Mounter, String> {
        let is_root = rustix::process::geteuid().is_root();
        let found = |program| Ok(Mounter::new(self, program));
        if self.kernel_type().is_some() {
            return if is_root { found(None) } else { Err("needs root".to_owned()) };
        }
        if File::options().read(true).write(true).open("/dev/fuse").is_err() {
            return Err("needs /dev/fuse, to be opened by this user".to_owned());
        }
        if !is_root && on_path("fusermount3").is_none() {
            return Err("needs fusermount3 on PATH, or root".to_owned());
        }
        found(Some(match self {
            Self::Ferrofs => programs.ours().map_err(|error| format!("{error:#}"))?,
            _ => programs.peer(self.name())?,
        }))
    }
}

/// A system that is there.
#[derive(Debug, Clone)]
pub(crate) struct Mounter {
    pub(crate) system: System,
    /// None of the kernel's.
    pub(crate) program: Option<Program>,
    /// Before image and directory.
    options: Vec<String>,
    /// Environment variables of a daemon.
    variables: Vec<(&'static str, PathBuf)>,
}

impl Mounter {
    const fn new(system: System, program: Option<Program>) -> Self {
        Self { system, program, options: Vec::new(), variables: Vec::new() }
    }

    /// Has device files work in the mount.
    pub(crate) fn with_devices(self) -> Self {
        Self { options: vec!["-o".to_owned(), "dev".to_owned()], ..self }
    }

    pub(crate) fn with_options(self, options: &[&str]) -> Self {
        Self { options: options.iter().map(|option| (*option).to_owned()).collect(), ..self }
    }

    pub(crate) fn with_variables(self, variables: Vec<(&'static str, PathBuf)>) -> Self {
        Self { variables, ..self }
    }

    /// The command line, for a report. Without a loop device the kernel is called by mount(2), since mount(8) before
    /// util-linux 2.41 cannot leave it out.
    pub(crate) fn words(&self, image: &Path, directory: &Path) -> Vec<String> {
        match self.system {
            System::KernelFile => vec![format!(
                "mount(\"{}\", \"{}\", \"erofs\", MS_RDONLY | MS_NOSUID | MS_NODEV, NULL)",
                image.display(),
                directory.display()
            )],
            _ => process::words(&self.command(image, directory)),
        }
    }

    fn command(&self, image: &Path, directory: &Path) -> Command {
        let Some(program) = &self.program else {
            let mut command = Command::new("mount");
            let dev = if self.options.is_empty() { "nodev" } else { "dev" };
            let kind = self.system.kernel_type().unwrap_or_default();
            command.args(["-t", kind, "-o", &format!("ro,nosuid,{dev},loop")]);
            command.arg(image).arg(directory);
            return command;
        };
        let verb: &[&str] = if program.is_ours() { &["mount", "--quiet"] } else { &[] };
        let invocation = Invocation::new(program).with(verb.iter().copied()).with(["-f"]);
        invocation.with(&self.options).with([image, directory]).command()
    }

    /// Mounts the image on the directory. A daemon's output goes to `log`.
    pub(crate) fn mount(&self, image: &Path, directory: &Path, log: &Path) -> Result<Mounted> {
        let directory = directory.to_path_buf();
        let mut mounted = Mounted { directory, daemon: None, is_mounted: false };
        if self.system == System::KernelFile {
            let flags = MountFlags::RDONLY | MountFlags::NOSUID | MountFlags::NODEV;
            mount(image, &mounted.directory, "erofs", flags, None).context("mount(2)")?;
            mounted.is_mounted = true;
            return Ok(mounted);
        }
        let mut command = self.command(image, &mounted.directory);
        command.envs(self.variables.iter().map(|(name, value)| (name, value)));
        if self.program.is_none() {
            process::run(&mut command, None)?;
            mounted.is_mounted = true;
            return Ok(mounted);
        }
        let outside = mounted.directory.metadata().context("the mount's directory")?.dev();
        let output = File::create(log).with_context(|| log.display().to_string())?;
        command.stdin(Stdio::null()).stdout(output.try_clone()?).stderr(output);
        let name = self.system.name();
        mounted.daemon = Some(command.spawn().with_context(|| format!("starting {name}"))?);
        let begin = Instant::now();
        while mounted.directory.metadata().is_ok_and(|found| found.dev() == outside) {
            let status = mounted.daemon.as_mut().map(Child::try_wait).transpose()?.flatten();
            if status.is_some() || begin.elapsed() > DAEMON_LIMIT {
                let (line, text) = (process::words(&command).join(" "), process::text_of(log)?);
                bail!("{line} did not mount: {}", process::end_of(&text));
            }
            thread::sleep(PAUSE);
        }
        mounted.is_mounted = true;
        Ok(mounted)
    }
}

#[derive(Debug)]
pub(crate) struct Mounted {
    directory: PathBuf,
    daemon: Option<Child>,
    is_mounted: bool,
}

impl Mounted {
    /// The process that serves it; none of a driver's.
    pub(crate) fn process(&self) -> Option<u32> {
        self.daemon.as_ref().map(Child::id)
    }

    /// CPU time of its daemon so far.
    pub(crate) fn daemon_cpu(&self) -> Result<Duration> {
        let time = self.daemon.as_ref().map(process::cpu_of).transpose();
        Ok(time.context("the daemon's CPU time")?.unwrap_or_default())
    }

    /// A size of its daemon such as VmHWM.
    pub(crate) fn daemon_mib(&self, field: &str) -> Option<f64> {
        let size = field_of(&format!("/proc/{}/status", self.process()?), field);
        Some(leading_number(&size) as f64 / 1024.0)
    }

    /// Unmounts, and waits for the daemon.
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
        if let Some(daemon) = &mut self.daemon {
            let begin = Instant::now();
            while daemon.try_wait().context("waiting for a daemon")?.is_none() {
                ensure!(begin.elapsed() < DAEMON_LIMIT, "the daemon outlives its mount");
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
            drop(daemon.wait());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use clap::ValueEnum;

    use super::{Mounter, System};

    #[test]
    fn a_system_has_the_name_of_the_command_line_and_a_driver_its_words() {
        for system in System::ALL {
            assert_eq!(system.to_possible_value().unwrap().get_name(), system.name());
        }
        assert!(System::EROFS.iter().all(|system| !system.takes_squashfs()));
        let words = |system| {
            let mounter = Mounter::new(system, None);
            mounter.words(Path::new("i.erofs"), Path::new("/mnt")).join(" ")
        };
        let squashfs = "mount -t squashfs -o ro,nosuid,nodev,loop i.erofs /mnt";
        assert_eq!(words(System::KernelSquashfs), squashfs);
        assert!(words(System::KernelFile).starts_with("mount(\"i.erofs\", \"/mnt\", \"erofs\""));
    }
}

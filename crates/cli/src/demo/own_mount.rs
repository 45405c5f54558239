//! The image as this program mounts it for whoever runs it: a process of its own, started for it and ended with it. It
//! is unmounted whatever happens, and that the process ended well is checked.

use std::ffi::OsString;
use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStderr, Command, ExitStatus, Stdio};
use std::time::Duration;

use anyhow::{Context, anyhow, bail};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::mount::{UnmountFlags, unmount};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open};

use crate::arguments::{DemoArguments, MachineArguments};
use crate::output::{self, escape};

/// The program that runs, whatever its file is called by now.
const ITSELF: &str = "/proc/self/exe";
/// What it says on standard error when the mount is there.
const READY: &str = "ferrofs: mounted on ";
/// How its reasons begin where FUSE is not to be had, as against an image that it cannot show.
const UNAVAILABLE_PREFIX: &str = "cannot mount";
/// How long a request may hang, in seconds: whoever waits for one cannot be interrupted.
const TIME_LIMIT: &str = "20";
/// How long the process may take to end; what is right takes a hundredth of it.
const EXIT_TIMEOUT: Duration = Duration::from_secs(10);
/// Lines of its log that are shown.
const LOG_LINES_MAX: usize = 20;

/// A mount.
#[derive(Debug)]
pub(super) struct DaemonMount {
    directory: PathBuf,
    log: PathBuf,
    daemon: Child,
    /// Open as long as the process may write to it.
    stderr: BufReader<ChildStderr>,
    is_ended: bool,
}

/// What came of mounting.
pub(super) enum MountAttempt {
    Done(DaemonMount),
    /// No mount can be made here, for this reason.
    Unavailable(String),
}

impl DaemonMount {
    /// Mounts `image` on `directory`, which is made; the process writes its log beside it.
    ///
    /// # Errors
    /// The process could not be started, or could not mount for a reason that is not the system's.
    pub(super) fn start(
        arguments: &DemoArguments,
        image: &Path,
        directory: &Path,
    ) -> anyhow::Result<MountAttempt> {
        fs::create_dir(directory)
            .with_context(|| escape(directory.as_os_str().as_encoded_bytes()))?;
        let log = directory.with_extension("log");
        let mut command = Command::new(ITSELF);
        command.arg0("ferrofs").args(words(arguments, &log)).arg("--").arg(image).arg(directory);
        // A signal for the group of this process is not for the mount: whoever reads from it ends first.
        command.process_group(0).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        let mut daemon = command.spawn().with_context(|| ITSELF.to_owned())?;
        let Some(stderr) = daemon.stderr.take() else { bail!("a process without standard error") };
        let mut mount = Self {
            directory: directory.to_owned(),
            log,
            daemon,
            stderr: BufReader::new(stderr),
            is_ended: false,
        };
        match mount.listen()? {
            None => Ok(MountAttempt::Done(mount)),
            Some(reason) => {
                mount.is_ended = true;
                mount.daemon.wait().context("a process that was to mount")?;
                if reason.starts_with(UNAVAILABLE_PREFIX) {
                    return Ok(MountAttempt::Unavailable(reason));
                }
                Err(anyhow!("the mount did not come about: {reason}"))
            }
        }
    }

    /// Waits until the mount is there; a text says why it never will be.
    fn listen(&mut self) -> anyhow::Result<Option<String>> {
        let mut reason = String::new();
        loop {
            let mut line = String::new();
            let count = self.stderr.read_line(&mut line).context("a process that was to mount")?;
            match line.trim_end() {
                _ if count == 0 && reason.is_empty() => {
                    return Ok(Some("it does not say why".to_owned()));
                }
                _ if count == 0 => return Ok(Some(reason)),
                line if line.starts_with(READY) => return Ok(None),
                line => {
                    // The last line is the reason; those before it are notices.
                    let line = line.strip_prefix("ferrofs: ").unwrap_or(line);
                    line.clone_into(&mut reason);
                }
            }
        }
    }

    pub(super) fn directory(&self) -> &Path {
        &self.directory
    }

    /// What `ferrofs stats` says of it.
    ///
    /// # Errors
    /// It cannot be asked.
    pub(super) fn stats(&self) -> anyhow::Result<String> {
        let asked = Command::new(ITSELF)
            .arg0("ferrofs")
            .arg("stats")
            .arg("--")
            .arg(&self.directory)
            .process_group(0)
            .stdin(Stdio::null())
            .output()
            .with_context(|| ITSELF.to_owned())?;
        if !asked.status.success() {
            bail!("ferrofs stats: {}", String::from_utf8_lossy(&asked.stderr).trim_end());
        }
        Ok(String::from_utf8_lossy(&asked.stdout).into_owned())
    }

    /// Unmounts, and waits for the end of the process.
    ///
    /// # Errors
    /// The process did not end, or not well, or the mount is still there.
    pub(super) fn end(mut self) -> anyhow::Result<()> {
        let ended = self.stop();
        self.show_log();
        match ended? {
            status if !status.success() => bail!("the mount's process ended with {status}"),
            _ if is_mounted(&self.directory) => bail!(
                "{} is still mounted after its process has ended",
                escape(self.directory.as_os_str().as_encoded_bytes())
            ),
            _ => {
                fs::remove_dir(&self.directory)?;
                Ok(())
            }
        }
    }

    fn stop(&mut self) -> anyhow::Result<ExitStatus> {
        self.is_ended = true;
        let pid = Pid::from_child(&self.daemon);
        // It may have ended by itself; it has not been waited for, so the number is still its own.
        kill_process(pid, Signal::TERM).ok();
        if !ends_in_time(pid) {
            kill_process(pid, Signal::KILL).ok();
            self.daemon.wait().context("the mount's process")?;
            clear(&self.directory);
            bail!(
                "the mount's process did not end within {} s and was killed",
                EXIT_TIMEOUT.as_secs()
            );
        }
        let status = self.daemon.wait().context("the mount's process")?;
        if is_mounted(&self.directory) {
            clear(&self.directory);
        }
        Ok(status)
    }

    /// Shows what the process wrote down, but that it was told to end.
    fn show_log(&self) {
        let log = fs::read(&self.log).unwrap_or_default();
        let log = String::from_utf8_lossy(&log);
        let lines = log.lines().filter(|line| !line.contains(": unmounting /"));
        lines.take(LOG_LINES_MAX).for_each(output::print_message);
    }
}

impl Drop for DaemonMount {
    fn drop(&mut self) {
        if !self.is_ended {
            // Some other error is on its way already, but who has to clean up must know.
            if let Err(error) = self.stop() {
                output::print_message(format_args!("{error:#}"));
            }
        }
    }
}

/// The words of `ferrofs mount`, up to the image.
fn words(arguments: &DemoArguments, log: &Path) -> Vec<OsString> {
    let DemoArguments { read, work, .. } = arguments;
    let MachineArguments { jobs, memory, cpus, nice } = &work.machine;
    let mut words: Vec<OsString> = ["mount", "--foreground", "--timeout", TIME_LIMIT, "--log"]
        .into_iter()
        .map(OsString::from)
        .collect();
    words.push(log.into());
    words.push(format!("--offset={}", read.offset).into());
    for device in &read.devices {
        words.extend([OsString::from("--device"), device.into()]);
    }
    if read.no_checksum {
        words.push("--no-checksum".into());
    }
    let mut option = |name: &str, value: Option<String>| {
        words.extend(value.map(|value| OsString::from(format!("--{name}={value}"))));
    };
    option("jobs", jobs.map(|jobs| jobs.to_string()));
    option("memory", memory.map(|memory| memory.to_string()));
    option("cpus", cpus.clone());
    option("nice", nice.map(|nice| nice.to_string()));
    words
}

/// Waits until the process ends, for a while; a system that cannot tell lets wait for ever.
fn ends_in_time(pid: Pid) -> bool {
    let Ok(process) = pidfd_open(pid, PidfdFlags::empty()) else { return true };
    let limit = Timespec { tv_sec: EXIT_TIMEOUT.as_secs().cast_signed(), tv_nsec: 0 };
    loop {
        match poll(&mut [PollFd::new(&process, PollFlags::IN)], Some(&limit)) {
            Err(rustix::io::Errno::INTR) => {}
            Ok(count) => return count > 0,
            Err(_) => return true,
        }
    }
}

/// Whether `directory` lies on another file system than what it is in. A mount whose server is gone cannot be asked.
fn is_mounted(directory: &Path) -> bool {
    let device = |path: &Path| path.symlink_metadata().map(|metadata| metadata.dev());
    match (device(directory), directory.parent().map(device)) {
        (Ok(own), Some(Ok(parent))) => own != parent,
        _ => true,
    }
}

/// Takes a mount away that nobody serves any more.
fn clear(directory: &Path) {
    if unmount(directory, UnmountFlags::DETACH).is_ok() {
        return;
    }
    let mut program = Command::new("fusermount3");
    program.args(["-u", "-z", "--"]).arg(directory).stdin(Stdio::null()).stderr(Stdio::null());
    // Whether it worked shows when the directory is removed.
    program.status().ok();
}

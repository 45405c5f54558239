//! The others on the same image: the kernel's EROFS over a loop device, and erofsfuse.

use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use rustix::mount::{UnmountFlags, unmount};

/// How long a peer may take until it is mounted.
const PATIENCE: Duration = Duration::from_secs(10);

/// Something mounted that is not ours.
#[derive(Debug)]
pub(super) struct Peer<'a> {
    directory: &'a Path,
    daemon: Option<Child>,
    is_mounted: bool,
    /// How it was started.
    words: Vec<String>,
}

/// A command as its words.
fn words(command: &Command) -> Vec<String> {
    let words = [command.get_program()].into_iter().chain(command.get_args());
    words.map(|word| word.to_string_lossy().into_owned()).collect()
}

impl<'a> Peer<'a> {
    /// The kernel's own driver.
    pub(super) fn kernel(image: &Path, directory: &'a Path) -> Result<Self> {
        let mut mount = Command::new("mount");
        mount.args(["-t", "erofs", "-o", "ro,nosuid,loop"]).arg(image).arg(directory);
        ensure!(mount.status().context("mount")?.success(), "the kernel does not mount the image");
        Ok(Self { directory, daemon: None, is_mounted: true, words: words(&mount) })
    }

    /// The program at that path.
    pub(super) fn erofsfuse(program: &Path, image: &Path, directory: &'a Path) -> Result<Self> {
        let outside = directory.metadata().context("the mount's directory")?.dev();
        let mut command = Command::new(program);
        command.args(["-f", "-o", "dev"]).arg(image).arg(directory);
        command.stdin(Stdio::null()).stdout(Stdio::null());
        let child = command.spawn().with_context(|| format!("starting {}", program.display()))?;
        let words = words(&command);
        let mut peer = Self { directory, daemon: Some(child), is_mounted: true, words };
        let begin = Instant::now();
        while directory.metadata().is_ok_and(|found| found.dev() == outside) {
            let status = peer.daemon.as_mut().map(Child::try_wait).transpose()?.flatten();
            if status.is_some() || begin.elapsed() > PATIENCE {
                bail!("{} did not mount the image", program.display());
            }
            thread::sleep(Duration::from_millis(5));
        }
        Ok(peer)
    }

    /// How it was started.
    pub(super) fn words(&self) -> &[String] {
        &self.words
    }

    /// The process that serves it, if there is one.
    pub(super) fn process(&self) -> Option<u32> {
        self.daemon.as_ref().map(Child::id)
    }

    /// Unmounts, and waits for the daemon.
    pub(super) fn end(mut self) -> Result<()> {
        unmount(self.directory, UnmountFlags::empty()).context("unmounting a peer")?;
        self.is_mounted = false;
        if let Some(mut daemon) = self.daemon.take() {
            daemon.wait().context("waiting for a peer")?;
        }
        Ok(())
    }
}

impl Drop for Peer<'_> {
    /// After a failure.
    fn drop(&mut self) {
        if self.is_mounted {
            unmount(self.directory, UnmountFlags::DETACH).ok();
        }
        if let Some(daemon) = &mut self.daemon {
            daemon.kill().unwrap_or_default();
            if daemon.wait().is_err() {
                // Nobody to wait for: it is gone.
            }
        }
    }
}

//! The image as the kernel's own EROFS mounts it, for comparison; that takes root. It is unmounted whatever happens.

use std::ffi::{CString, OsStr, OsString};
use std::fs;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, anyhow};
use rustix::io::Errno;
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};

use crate::arguments::ReadArguments;
use crate::output::{self, escape};

/// A mount.
#[derive(Debug)]
pub(super) struct KernelMount {
    directory: PathBuf,
    is_ended: bool,
}

impl KernelMount {
    /// Mounts `image` on `directory`, which is made.
    ///
    /// # Errors
    /// Why the kernel cannot: it has no EROFS, may not, or does not know what is in the image.
    pub(super) fn start(
        image: &Path,
        read: &ReadArguments,
        directory: &Path,
    ) -> anyhow::Result<Self> {
        fs::create_dir(directory)
            .with_context(|| escape(directory.as_os_str().as_encoded_bytes()))?;
        let flags = MountFlags::RDONLY | MountFlags::NODEV | MountFlags::NOSUID;
        let options = CString::new(options(read, "fsoffset").into_encoded_bytes())?;
        let mounted = match mount(image, directory, "erofs", flags, options.as_c_str()) {
            // It takes block devices only.
            Err(Errno::NOTBLK) => by_loop_device(image, read, directory),
            Err(Errno::NODEV) => Err(anyhow!("this kernel has no EROFS")),
            mounted => mounted.map_err(|errno| anyhow!("{errno}")),
        };
        match mounted {
            Ok(()) => Ok(Self { directory: directory.to_owned(), is_ended: false }),
            Err(error) => {
                fs::remove_dir(directory).ok();
                Err(error)
            }
        }
    }

    pub(super) fn directory(&self) -> &Path {
        &self.directory
    }

    /// Unmounts.
    ///
    /// # Errors
    /// Somebody else uses it.
    pub(super) fn end(mut self) -> anyhow::Result<()> {
        self.is_ended = true;
        let shown = || escape(self.directory.as_os_str().as_encoded_bytes());
        unmount(&self.directory, UnmountFlags::DETACH).with_context(shown)?;
        fs::remove_dir(&self.directory).with_context(shown)
    }
}

impl Drop for KernelMount {
    fn drop(&mut self) {
        if !self.is_ended
            && let Err(errno) = unmount(&self.directory, UnmountFlags::DETACH)
        {
            let directory = self.directory.as_os_str().as_encoded_bytes();
            output::print_path_message(directory, format_args!("still mounted: {errno}"));
        }
    }
}

/// The options of a mount; the word for where the image begins depends on who takes them.
fn options(read: &ReadArguments, offset: &str) -> OsString {
    let mut words = OsString::new();
    let mut push = |word: &OsStr| {
        if !words.is_empty() {
            words.push(",");
        }
        words.push(word);
    };
    if read.offset != 0 {
        push(format!("{offset}={}", read.offset).as_ref());
    }
    for device in &read.devices {
        let mut word = OsString::from("device=");
        word.push(device);
        push(&word);
    }
    words
}

/// By mount(8), which finds a loop device.
fn by_loop_device(image: &Path, read: &ReadArguments, directory: &Path) -> anyhow::Result<()> {
    let mut words = OsString::from("loop,ro,nodev,nosuid,");
    words.push(options(read, "offset"));
    let mut program = Command::new("mount");
    program.env("LC_ALL", "C").args(["-t", "erofs", "-o"]).arg(words).arg("--");
    program.arg(image).arg(directory).process_group(0).stdin(Stdio::null());
    let mounted = program.output().context("mount(8)")?;
    if mounted.status.success() {
        return Ok(());
    }
    Err(anyhow!("{}", String::from_utf8_lossy(&mounted.stderr).trim().replace('\n', " ")))
}

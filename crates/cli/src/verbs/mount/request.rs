//! What is to be mounted, where and how: the arguments and the words of `-o` brought together. It touches nothing but
//! the name of the working directory. Made by the verb before anything is opened, in the daemon, too.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use ferrofs_fuse::attach::{AttachOptions, MountAccess};
use ferrofs_mount::MountSettings;

use super::log::LogTarget;
use super::options;
use crate::arguments::{MachineArguments, MountArguments, ReadArguments, ReserveArguments};

/// What stands after `fuse.` in the type of our mounts.
const SUBTYPE: &str = "ferrofs";

/// What is to be mounted, where and how.
#[derive(Clone, Debug)]
pub(super) struct MountRequest {
    pub(super) image: PathBuf,
    pub(super) directory: PathBuf,
    pub(super) attach: AttachOptions,
    pub(super) read: ReadArguments,
    pub(super) machine: MachineArguments,
    pub(super) reserve: ReserveArguments,
    pub(super) settings: MountSettings,
    pub(super) log: Option<OsString>,
}

impl MountRequest {
    /// Brings all arguments together.
    ///
    /// # Errors
    /// What was typed makes no sense; the text says what.
    pub(super) fn of(typed: &MountArguments) -> anyhow::Result<Self> {
        let mut attach = AttachOptions::new(absolute(&typed.image)?, SUBTYPE);
        if typed.allow_other {
            attach.allow = MountAccess::Everybody;
        }
        let mut request = Self {
            image: typed.image.clone(),
            directory: typed.directory.clone(),
            attach,
            read: typed.read.clone(),
            machine: typed.machine.clone(),
            reserve: typed.reserve.clone(),
            settings: MountSettings {
                time_limit: options::time_limit(typed.timeout),
                has_xattrs: !typed.no_xattrs,
                has_acls: !typed.no_acl,
                ..MountSettings::default()
            },
            log: typed.log.clone(),
        };
        for list in &typed.options {
            if let Err(refused) = options::parse_list(&mut request, list, typed.invocation) {
                bail!("{refused}");
            }
        }
        if request.log_target() == LogTarget::Stderr && !typed.foreground {
            bail!("--log stderr: it is gone in the background; add --foreground");
        }
        Ok(request)
    }

    /// Where messages are to go.
    pub(super) fn log_target(&self) -> LogTarget {
        LogTarget::of(self.log.as_deref())
    }
}

/// A path that means the same everywhere, for `/proc/mounts`: whoever reads it there is somewhere else.
fn absolute(path: &Path) -> anyhow::Result<PathBuf> {
    std::path::absolute(path).with_context(|| "IMAGE".to_owned())
}

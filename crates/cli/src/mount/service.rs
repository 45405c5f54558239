//! The mount as a service of systemd, or of another manager with its protocol: it learns when the mount is ready, and with
//! `--keep` it holds the descriptors of the mount while no process of the service lives (docs/survival.md, protocol F).
//! Called by `daemon` and `keep` in a mount in the foreground.

use std::os::fd::BorrowedFd;

use anyhow::{Context, anyhow};
use ferrofs_fuse::attach::{
    Attachment, HandoverError, OfferedMount, ServiceManager, kept_descriptors,
};

use crate::exit_status::usage_error;

/// The manager of this service.
#[derive(Debug)]
pub(super) struct Service {
    manager: ServiceManager,
    /// How many descriptors a whole mount has. Until KF5, the manager may hold one fewer.
    kept: usize,
}

impl Service {
    /// The service that this process is the main process of; `None` if it is none.
    ///
    /// # Errors
    /// The manager cannot be reached.
    pub(super) fn of_this_process() -> anyhow::Result<Option<Self>> {
        let manager = ServiceManager::of_environment().context("NOTIFY_SOCKET")?;
        Ok(manager.map(|manager| Self { manager, kept: 0 }))
    }

    /// KF4: the mount that it has held. What is not mounted any more is forgotten, and what is no whole mount.
    ///
    /// # Errors
    /// The descriptors are not those of a whole mount. Or, and then the manager keeps them: this program does not understand
    /// the record, with the exit status after which it is not started again; the system refuses.
    pub(super) fn take_mount(&mut self) -> anyhow::Result<Option<OfferedMount>> {
        let descriptors = kept_descriptors().context("LISTEN_FDS")?;
        self.kept = descriptors.len();
        if descriptors.is_empty() {
            return Ok(None);
        }
        const WHAT: &str = "the mount that the service manager keeps";
        match OfferedMount::kept(descriptors) {
            Ok(Some(mount)) => {
                self.kept = mount.whole_count();
                Ok(Some(mount))
            }
            Ok(None) => {
                self.forget();
                Ok(None)
            }
            Err(error @ HandoverError::Malformed) => {
                self.forget();
                Err(anyhow!("{WHAT}: {error}; start the service again"))
            }
            Err(error @ HandoverError::OtherVersion(_)) => Err(usage_error(format_args!(
                "{WHAT}: {error}; or start the service again with a version of ferrofs that has its format"
            ))),
            Err(error) => Err(anyhow!("{WHAT}: {error}")),
        }
    }

    /// Whether it can hold descriptors.
    pub(super) fn keeps(&self) -> bool {
        self.manager.keeps_descriptors()
    }

    /// KF2: lets it hold these, instead of others that it may have.
    ///
    /// # Errors
    /// It has no room for them, or does not answer.
    pub(super) fn keep(
        &mut self,
        held: &[BorrowedFd<'_>],
        attachment: &Attachment,
    ) -> anyhow::Result<()> {
        if !self.keeps() {
            return Ok(());
        }
        let kept = self.manager.keep(held, attachment);
        self.kept = kept.context("the service manager (FileDescriptorStoreMax= and FDSTORE)")?;
        Ok(())
    }

    /// KF5: the mount is held again.
    ///
    /// # Errors
    /// The manager does not answer.
    pub(super) fn renew(&self, attachment: &mut Attachment) -> anyhow::Result<()> {
        self.manager.renew(self.kept, attachment).context("the service manager")
    }

    /// The mount has ended.
    pub(super) fn forget(&self) {
        self.manager.forget(self.kept);
    }

    /// The mount is ready.
    pub(super) fn ready(&self) {
        self.manager.ready();
    }

    /// The descriptor that messages need.
    pub(super) fn descriptor(&self) -> BorrowedFd<'_> {
        self.manager.descriptor()
    }
}

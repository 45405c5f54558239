//! What the daemon may still do once it is ready: [`Sandbox::enter`] gives away, for good, everything
//! that serving an image does not need. It opens no mount and knows no image; the mount verb calls
//! it once: after all descriptors are open and the FUSE handshake is done (the kernel grants more
//! background requests to a daemon that still has `CAP_SYS_ADMIN`), before it says that it is ready.

mod capability;
mod descriptor;
mod error;
mod filter;
mod replace;
mod report;

use std::os::fd::BorrowedFd;

pub use descriptor::{DescriptorAccess, OpenDescriptor, StandardStreams};
pub use error::{SandboxError, SandboxStep};
pub use filter::FilterState;
pub use report::SandboxStatus;
pub use rustix::thread::CapabilitySet;

/// What is to remain when everything else is given away.
///
/// Left alone, on purpose:
///
/// * *core dumps and `ptrace`* (`PR_SET_DUMPABLE`, `RLIMIT_CORE`): nothing in this process is secret
///   from its user, who can read the image itself; debuggers and profilers stay usable.
/// * *`RLIMIT_FSIZE`*: a log that is a regular file would end the daemon by `SIGXFSZ`.
/// * *`RLIMIT_NOFILE`*: files of `/proc` and `/sys` are opened for reading now and then, and nothing
///   can be opened for writing anyhow.
/// * *the user*: an image that only root may read must stay readable, and root's mount is its own.
#[derive(Debug, Clone)]
pub struct Sandbox<'fd> {
    is_filtered: bool,
    may_unmount: bool,
    may_raise_priority: bool,
    streams: StandardStreams,
    kept: Vec<BorrowedFd<'fd>>,
}

impl Default for Sandbox<'_> {
    fn default() -> Self {
        Self::new()
    }
}

impl<'fd> Sandbox<'fd> {
    /// The narrowest: filtered, no capability, no stream, no descriptor but files opened for reading.
    #[must_use]
    pub fn new() -> Self {
        Self {
            is_filtered: true,
            may_unmount: false,
            may_raise_priority: false,
            streams: StandardStreams::None,
            kept: Vec::new(),
        }
    }

    /// Whether system calls are filtered.
    #[must_use]
    pub fn filtered(mut self, yes: bool) -> Self {
        self.is_filtered = yes;
        self
    }

    /// Whether `umount2` stays allowed, with `CAP_SYS_ADMIN` for the call itself and
    /// `CAP_DAC_READ_SEARCH` for the way to a directory below somebody's private one, where the
    /// process has them. For a mount that was made without `fusermount3`.
    #[must_use]
    pub fn may_unmount(mut self, yes: bool) -> Self {
        self.may_unmount = yes;
        self
    }

    /// Whether `CAP_SYS_NICE` stays, where the process has it: workers are started when first needed,
    /// and each then asks for its priority.
    #[must_use]
    pub fn may_raise_priority(mut self, yes: bool) -> Self {
        self.may_raise_priority = yes;
        self
    }

    /// What becomes of the standard streams.
    #[must_use]
    pub fn streams(mut self, streams: StandardStreams) -> Self {
        self.streams = streams;
        self
    }

    /// Keeps a descriptor open. All that is to be used later must be named, except regular files and
    /// block devices opened for reading only: those are images, which their reader opened, and stay.
    #[must_use]
    pub fn keep(mut self, descriptor: BorrowedFd<'fd>) -> Self {
        self.kept.push(descriptor);
        self
    }

    /// Gives everything else away, for the whole process and for good, and reports what holds then.
    ///
    /// The steps: no new privileges; capabilities; descriptors; the filter of system calls. The first
    /// two act on the calling thread and on threads that it starts later, the others on all threads,
    /// and a thread that holds the filter has no new privileges either. So call it before the first
    /// thread is started; [`SandboxStatus::capabilities`] tells what any thread still has.
    ///
    /// A descriptor that is not kept is not closed but replaced, under its number, by `/dev/null`
    /// opened for reading. Its owner, if one was forgotten, then reads nothing and closes that, never
    /// another's descriptor.
    ///
    /// The filter allows what serving needs (docs/trust.md has the table). Anything else fails with
    /// `EPERM`, since a daemon that is killed is a dead mount under running programs, and C libraries
    /// try calls that they can do without. Two calls that hide their arguments in memory, `clone3`
    /// and `openat2`, fail with `ENOSYS`, after which C libraries use calls that can be checked. And
    /// some end the process: starting a program, looking into another process, mounting, changing
    /// user or namespace, loading code into the kernel. Nothing of ours does these after start-up, so
    /// where one is made somebody else decides what runs, and no mount at all is the better end.
    ///
    /// # Errors
    ///
    /// [`SandboxError`] with the step that failed; the steps before it hold then. A kernel or an
    /// architecture without filters is no error: see [`SandboxStatus::filter`]. Entering a second time is
    /// one, as the filter forbids its steps.
    pub fn enter(&self) -> Result<SandboxStatus, SandboxError> {
        rustix::thread::set_no_new_privs(true).map_err(SandboxStep::NoNewPrivileges.failed())?;
        capability::drop_all_but(self.capabilities())
            .map_err(SandboxStep::Capabilities.failed())?;
        let replaced = descriptor::replace_all_but(&self.kept, self.streams)
            .map_err(SandboxStep::Descriptors.failed())?;
        let descriptors = descriptor::list().map_err(SandboxStep::Descriptors.failed())?;
        let filter = if self.is_filtered {
            filter::install(self.may_unmount).map_err(SandboxStep::Filter.failed())?
        } else {
            FilterState::Off
        };
        let threads = report::ThreadPrivileges::read().map_err(SandboxStep::Report.failed())?;
        Ok(SandboxStatus {
            no_new_privileges: threads.no_new_privileges,
            filter,
            capabilities: threads.capabilities,
            descriptors,
            replaced,
        })
    }

    fn capabilities(&self) -> CapabilitySet {
        let mut kept = CapabilitySet::empty();
        if self.may_unmount {
            kept |= CapabilitySet::SYS_ADMIN | CapabilitySet::DAC_READ_SEARCH;
        }
        if self.may_raise_priority {
            kept |= CapabilitySet::SYS_NICE;
        }
        kept
    }
}

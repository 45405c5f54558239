//! The privileges of the daemon while it serves: [`Sandbox::enter`] irrevocably drops all that serving an image does not
//! need. The mount verb calls it once, after all descriptors are open and FUSE_INIT is done (the kernel grants more
//! background requests to a daemon with `CAP_SYS_ADMIN`), and before it reports that it is ready.

mod descriptor;
#[cfg(all(
    target_pointer_width = "64",
    any(target_arch = "x86_64", target_arch = "aarch64", target_arch = "riscv64")
))]
mod seccomp;
mod status;
#[cfg(all(
    target_pointer_width = "64",
    any(target_arch = "x86_64", target_arch = "aarch64", target_arch = "riscv64")
))]
mod syscalls;

use std::os::fd::BorrowedFd;
use std::{fmt, io};

use rustix::io::Errno;
use rustix::thread::{
    CapabilitySets, capabilities, capability_is_in_bounding_set,
    remove_capability_from_bounding_set, set_capabilities,
};

pub use descriptor::{DescriptorAccess, OpenDescriptor, StandardStreams};
pub use rustix::thread::CapabilitySet;
pub use status::{FilterState, SandboxStatus};

/// The privileges that the process keeps when it drops all others.
///
/// Deliberately not restricted:
///
/// * *Core dumps and `ptrace`* (`PR_SET_DUMPABLE`, `RLIMIT_CORE`): nothing in this process is secret from its user, who
///   can read the image anyway. Debuggers and profilers stay usable.
/// * *`RLIMIT_FSIZE`*: if the log is a regular file, `SIGXFSZ` would end the daemon.
/// * *`RLIMIT_NOFILE`*: files of `/proc` and `/sys` are opened for reading from time to time, and the filter forbids
///   opening for writing.
/// * *The user*: an image that only root can read must stay readable.
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
    /// The strictest: filtered, no capabilities, no streams, no descriptors except files opened for reading.
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

    /// Sets whether system calls are filtered.
    #[must_use]
    pub fn filtered(mut self, yes: bool) -> Self {
        self.is_filtered = yes;
        self
    }

    /// Sets whether `umount2` stays allowed, with `CAP_SYS_ADMIN` for the call and `CAP_DAC_READ_SEARCH` for a mount point
    /// below a private directory, if the process has them. Needed for a mount that was made without `fusermount3`.
    #[must_use]
    pub fn may_unmount(mut self, yes: bool) -> Self {
        self.may_unmount = yes;
        self
    }

    /// Sets whether `CAP_SYS_NICE` stays, if the process has it. Workers are started when they are first needed, and each
    /// sets its priority then.
    #[must_use]
    pub fn may_raise_priority(mut self, yes: bool) -> Self {
        self.may_raise_priority = yes;
        self
    }

    /// Sets what happens to the standard streams.
    #[must_use]
    pub fn streams(mut self, streams: StandardStreams) -> Self {
        self.streams = streams;
        self
    }

    /// Keeps a descriptor open. All that are used later must be kept this way, except regular files and block devices opened
    /// for reading only: those are images, and stay open.
    #[must_use]
    pub fn keep(mut self, descriptor: BorrowedFd<'fd>) -> Self {
        self.kept.push(descriptor);
        self
    }

    /// Drops all other privileges of the process irrevocably, and returns what the kernel reports afterwards.
    ///
    /// The steps are: no new privileges; capabilities; descriptors; the filter of system calls. The first two act on the
    /// calling thread and on threads that it starts later, the others on all threads. The filter also sets "no new
    /// privileges" on a thread. So call this before the first thread is started; [`SandboxStatus::capabilities`] has the
    /// capabilities of all threads.
    ///
    /// A descriptor that is not kept is not closed but replaced, under its number, by `/dev/null` opened for reading. If
    /// its owner was overlooked, it reads nothing and closes its own number, never the descriptor of somebody else.
    ///
    /// The filter allows what serving needs (docs/trust.md has the table). Other calls fail with `EPERM`: killing the daemon
    /// would leave a dead mount under running programs, and C libraries try calls that they do not need. Two calls whose
    /// arguments are in memory, `clone3` and `openat2`, fail with `ENOSYS`, after which C libraries use calls that can be
    /// checked. Some calls end the process: executing a program, access to another process, mounting, changing the user or
    /// a namespace, loading code into the kernel. The daemon makes none of them after its start, so a process that makes
    /// one is under somebody else's control, and a dead mount is better.
    ///
    /// # Errors
    ///
    /// [`SandboxError`] with the step that failed; the steps before it stay in effect. A kernel or an architecture without
    /// filters is not an error: see [`SandboxStatus::filter`]. Entering a second time is an error, as the filter forbids
    /// the steps.
    pub fn enter(&self) -> Result<SandboxStatus, SandboxError> {
        rustix::thread::set_no_new_privs(true).map_err(SandboxStep::NoNewPrivileges.failed())?;
        drop_all_but(self.capabilities()).map_err(SandboxStep::Capabilities.failed())?;
        let replaced = descriptor::replace_all_but(&self.kept, self.streams)
            .map_err(SandboxStep::Descriptors.failed())?;
        let descriptors = descriptor::list().map_err(SandboxStep::Descriptors.failed())?;
        let filter = if self.is_filtered {
            install_filter(self.may_unmount).map_err(SandboxStep::Filter.failed())?
        } else {
            FilterState::Off
        };
        let threads = status::ThreadPrivileges::read().map_err(SandboxStep::Report.failed())?;
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

/// Drops all capabilities of the calling thread except `kept`; adds none.
fn drop_all_but(kept: CapabilitySet) -> io::Result<()> {
    let had = capabilities(None)?;
    if had.effective.contains(CapabilitySet::SETPCAP) {
        empty_bounding_set()?;
    }
    // Capabilities that are not inheritable leave the ambient set, too.
    set_capabilities(
        None,
        CapabilitySets {
            effective: had.effective & kept,
            permitted: had.permitted & kept,
            inheritable: CapabilitySet::empty(),
        },
    )?;
    Ok(())
}

/// The bounding set matters only to programs that are executed later. Without `CAP_SETPCAP` it cannot be emptied; then only
/// "no new privileges" keeps such a program from gaining capabilities.
fn empty_bounding_set() -> io::Result<()> {
    for capability in CapabilitySet::all().iter() {
        match capability_is_in_bounding_set(capability) {
            Ok(true) => remove_capability_from_bounding_set(capability)?,
            // INVAL: the kernel does not know the capability.
            Ok(false) | Err(Errno::INVAL) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

#[cfg(all(
    target_pointer_width = "64",
    any(target_arch = "x86_64", target_arch = "aarch64", target_arch = "riscv64")
))]
fn install_filter(may_unmount: bool) -> io::Result<FilterState> {
    seccomp::install(&syscalls::rules(may_unmount, std::process::id()))
}

#[cfg(not(all(
    target_pointer_width = "64",
    any(target_arch = "x86_64", target_arch = "aarch64", target_arch = "riscv64")
)))]
fn install_filter(_may_unmount: bool) -> io::Result<FilterState> {
    let reason = format!("there is no filter for {}", std::env::consts::ARCH);
    Ok(FilterState::Unavailable { reason })
}

/// A step of [`Sandbox::enter`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum SandboxStep {
    /// Setting "no new privileges".
    NoNewPrivileges,
    /// Dropping capabilities.
    Capabilities,
    /// Listing and replacing descriptors, with `/proc/self/fd` and `/dev/null`.
    Descriptors,
    /// Filtering system calls.
    Filter,
    /// Reading the state of the threads, in `/proc/self/task`.
    Report,
}

impl SandboxStep {
    fn failed<E: Into<io::Error>>(self) -> impl FnOnce(E) -> SandboxError {
        move |source| SandboxError { step: self, source: source.into() }
    }
}

impl fmt::Display for SandboxStep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NoNewPrivileges => "set \"no new privileges\"",
            Self::Capabilities => "drop capabilities",
            Self::Descriptors => "replace descriptors (needs /proc and /dev/null)",
            Self::Filter => "filter system calls",
            Self::Report => "read the state of the threads (needs /proc)",
        })
    }
}

/// The sandbox could not be entered.
#[derive(Debug)]
pub struct SandboxError {
    /// The step that failed. The steps before it stay in effect.
    pub step: SandboxStep,
    /// Why it failed.
    pub source: io::Error,
}

impl fmt::Display for SandboxError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "cannot {}", self.step)
    }
}

impl std::error::Error for SandboxError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.source)
    }
}

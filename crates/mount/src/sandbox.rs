//! The privileges of the daemon while it serves: [`Sandbox::enter`] irrevocably drops all that serving an image does not
//! need. The mount verb calls it once, after all descriptors are open and FUSE_INIT is done (the kernel grants more
//! background requests to a daemon with `CAP_SYS_ADMIN`), and before it reports that it is ready. [`SandboxStatus`] is what
//! the kernel reports of the process afterwards; `--explain` prints it.

mod paths;
mod privileges;
#[cfg(all(
    target_pointer_width = "64",
    any(target_arch = "x86_64", target_arch = "aarch64", target_arch = "riscv64")
))]
mod seccomp;
#[cfg(all(
    target_pointer_width = "64",
    any(target_arch = "x86_64", target_arch = "aarch64", target_arch = "riscv64")
))]
mod syscalls;

use std::os::fd::BorrowedFd;
use std::{fmt, io};

use rustix::io::Errno;
use rustix::process::{DumpableBehavior, set_dumpable_behavior};
use rustix::thread::{
    CapabilitySets, capabilities, capability_is_in_bounding_set,
    remove_capability_from_bounding_set, set_capabilities,
};

pub use paths::PathConfinement;
pub use privileges::{
    DescriptorAccess, OpenDescriptor, StandardStreams, UserIds, become_user, clear_environment,
    is_single_threaded,
};
pub use rustix::thread::CapabilitySet;

/// What the process does in the sandbox, which decides what it keeps.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum SandboxRole {
    /// It serves an image: no capability; files can be opened in a few directories of `/proc` and `/sys` only.
    #[default]
    Server,
    /// It holds a mount and starts servers, which enter the sandbox as [`SandboxRole::Server`] (docs/survival.md).
    Holder,
    /// The same for a mount that this user made without `fusermount3`: it unmounts, too, so it keeps `CAP_SYS_ADMIN`, and
    /// paths are not confined.
    UnmountingHolder,
    /// It waits to unmount a mount that this user made without `fusermount3`: `CAP_SYS_ADMIN`, `umount2`, and a handful of
    /// other system calls. Paths are not confined, because the kernel lets no confined process unmount; it reads no byte
    /// of an image.
    Unmounter,
}

/// The privileges that the process keeps when it drops all others.
///
/// Deliberately not restricted:
///
/// * *`RLIMIT_FSIZE`*: if the log is a regular file, `SIGXFSZ` would end the daemon.
/// * *`RLIMIT_NOFILE`*: files of `/proc` and `/sys` are opened for reading from time to time, and the filter forbids
///   opening for writing.
/// * *The user*, unless [`Sandbox::user`] names another one.
#[derive(Debug, Clone)]
pub struct Sandbox<'fd> {
    is_filtered: bool,
    role: SandboxRole,
    user: Option<UserIds>,
    may_raise_priority: bool,
    may_receive_descriptors: bool,
    streams: StandardStreams,
    kept: Vec<BorrowedFd<'fd>>,
}

impl Default for Sandbox<'_> {
    fn default() -> Self {
        Self::new()
    }
}

impl<'fd> Sandbox<'fd> {
    /// The strictest: filtered, confined, no capabilities, no streams, no descriptors except files opened for reading.
    #[must_use]
    pub fn new() -> Self {
        Self {
            is_filtered: true,
            role: SandboxRole::Server,
            user: None,
            may_raise_priority: false,
            may_receive_descriptors: false,
            streams: StandardStreams::None,
            kept: Vec::new(),
        }
    }

    /// Sets whether system calls are filtered and paths confined.
    #[must_use]
    pub fn filtered(mut self, yes: bool) -> Self {
        self.is_filtered = yes;
        self
    }

    /// Sets what the process does in the sandbox.
    #[must_use]
    pub fn role(mut self, role: SandboxRole) -> Self {
        self.role = role;
        self
    }

    /// Sets the user that the process becomes, with this one group. Only root can.
    #[must_use]
    pub fn user(mut self, user: Option<UserIds>) -> Self {
        self.user = user;
        self
    }

    /// Sets whether threads can raise their priority as far as the process can now. Workers are started when they are first
    /// needed, and each sets its priority then. `CAP_SYS_NICE` is replaced by resource limits, which allow no more than the
    /// priorities of `ferrofs_workers`.
    #[must_use]
    pub fn may_raise_priority(mut self, yes: bool) -> Self {
        self.may_raise_priority = yes;
        self
    }

    /// Sets whether descriptors can be received over sockets that are kept: the cached files of a remote image, and a new
    /// connection to the process that fetches.
    #[must_use]
    pub fn may_receive_descriptors(mut self, yes: bool) -> Self {
        self.may_receive_descriptors = yes;
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
    /// The steps are: no new privileges; descriptors; user; capabilities; memory (no other process of the user can read it,
    /// and there are no core dumps); paths; the filter of system calls. Descriptors, memory and the filter concern all
    /// threads, the other steps the calling thread and threads that it starts later. The filter also sets "no new
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
    /// filters or without Landlock is not an error: see [`SandboxStatus::filter`] and [`SandboxStatus::paths`]. Entering a second time is an error, as the filter forbids
    /// the steps.
    pub fn enter(&self) -> Result<SandboxStatus, SandboxError> {
        rustix::thread::set_no_new_privs(true).map_err(SandboxStep::NoNewPrivileges.failed())?;
        let replaced = privileges::replace_descriptors_except(&self.kept, self.streams)
            .map_err(SandboxStep::Descriptors.failed())?;
        self.drop_capabilities()?;
        let is_readable_by_user = protect_memory().map_err(SandboxStep::Memory.failed())?;
        let paths = self.confine_paths().map_err(SandboxStep::Paths.failed())?;
        let descriptors =
            privileges::list_descriptors().map_err(SandboxStep::Descriptors.failed())?;
        let filter = if self.is_filtered {
            install_filter(self.role, self.may_receive_descriptors)
                .map_err(SandboxStep::Filter.failed())?
        } else {
            FilterState::Off
        };
        let threads = ThreadPrivileges::read().map_err(SandboxStep::Report.failed())?;
        Ok(SandboxStatus {
            no_new_privileges: threads.no_new_privileges,
            filter,
            paths,
            is_readable_by_user,
            capabilities: threads.capabilities,
            earlier_threads: threads.threads.saturating_sub(1),
            descriptors,
            replaced,
        })
    }

    /// Drops all capabilities that the role does not need, and becomes the other user if there is one.
    fn drop_capabilities(&self) -> Result<(), SandboxError> {
        let failed = SandboxStep::Capabilities;
        let had = capabilities(None).map_err(failed.failed())?;
        if self.may_raise_priority && had.effective.contains(CapabilitySet::SYS_NICE) {
            privileges::raise_priority_limits();
        }
        if had.effective.contains(CapabilitySet::SETPCAP) {
            empty_bounding_set().map_err(failed.failed())?;
        }
        if let Some(ids) = self.user {
            become_user(ids).map_err(SandboxStep::User.failed())?;
        }
        drop_all_but(self.capabilities()).map_err(failed.failed())
    }

    fn capabilities(&self) -> CapabilitySet {
        match self.role {
            SandboxRole::Server | SandboxRole::Holder => CapabilitySet::empty(),
            SandboxRole::Unmounter | SandboxRole::UnmountingHolder => CapabilitySet::SYS_ADMIN,
        }
    }

    fn confine_paths(&self) -> io::Result<PathConfinement> {
        match (self.role, self.is_filtered) {
            (SandboxRole::Server, true) => paths::confine(&[]),
            (SandboxRole::Holder, true) => paths::confine(&paths::OF_HOLDERS),
            (SandboxRole::Unmounter | SandboxRole::UnmountingHolder, _) | (_, false) => {
                Ok(PathConfinement::Off)
            }
        }
    }
}

/// The privileges of the process in the sandbox, as the kernel reports them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SandboxStatus {
    /// Whether no thread can gain privileges by executing a program.
    pub no_new_privileges: bool,
    /// Whether system calls are filtered.
    pub filter: FilterState,
    /// Which files can be opened by name.
    pub paths: PathConfinement,
    /// Whether other processes of the user can read the memory of the process: only before Linux 5.14.
    pub is_readable_by_user: bool,
    /// The capabilities that any thread has or can raise.
    pub capabilities: CapabilitySet,
    /// The threads that were started before, which keep their capabilities, user and paths.
    pub earlier_threads: u64,
    /// The open descriptors, by number.
    pub descriptors: Vec<OpenDescriptor>,
    /// How many descriptors were replaced by `/dev/null`.
    pub replaced: usize,
}

impl SandboxStatus {
    /// Who can read the memory of the process, in words.
    #[must_use]
    pub fn memory(&self) -> &'static str {
        match self.is_readable_by_user {
            false => "hidden from other processes of the user",
            true => "readable by other processes of the user (Linux before 5.14)",
        }
    }
}

impl fmt::Display for SandboxStatus {
    /// Several lines, each with a line feed.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let holds = if self.no_new_privileges { "none" } else { "possible" };
        writeln!(f, "new privileges  {holds}")?;
        writeln!(f, "system calls    {}", self.filter)?;
        writeln!(f, "paths           {}", self.paths)?;
        writeln!(f, "memory          {}", self.memory())?;
        write!(f, "capabilities    ")?;
        if self.capabilities.is_empty() {
            write!(f, "none")?;
        }
        for (index, (name, _)) in self.capabilities.iter_names().enumerate() {
            write!(f, "{}{name}", if index == 0 { "" } else { ", " })?;
        }
        writeln!(
            f,
            "\ndescriptors     {} open, {} replaced",
            self.descriptors.len(),
            self.replaced
        )?;
        for OpenDescriptor { number, access, target } in &self.descriptors {
            let target = target.to_string_lossy();
            writeln!(f, "  {number:>12}  {access:<11}  {}", target.escape_debug())?;
        }
        Ok(())
    }
}

/// Whether system calls are filtered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FilterState {
    /// They are filtered.
    On {
        /// The number of allowed calls, some of them with certain arguments only.
        calls: usize,
    },
    /// They are not filtered, as requested.
    Off,
    /// They are not filtered, although that was requested.
    Unavailable {
        /// Why not.
        reason: String,
    },
}

impl fmt::Display for FilterState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::On { calls } => write!(f, "filtered, {calls} allowed"),
            Self::Off => write!(f, "not filtered"),
            Self::Unavailable { reason } => write!(f, "not filtered: {reason}"),
        }
    }
}

/// Hides the memory of the process from other processes of its user: no `ptrace`, no `/proc/PID/mem`, no core dump.
/// Returns whether it is readable nevertheless: before Linux 5.14, `/proc/self/fdinfo` becomes unreadable for the process
/// itself, too, which needs it to unmount.
fn protect_memory() -> io::Result<bool> {
    // rustix reads /proc/self/auxv when it first needs it, which another owner of the file forbids afterwards.
    let _bytes = rustix::param::page_size();
    set_dumpable_behavior(DumpableBehavior::NotDumpable)?;
    if std::fs::read("/proc/self/fdinfo/0").is_ok() {
        return Ok(false);
    }
    set_dumpable_behavior(DumpableBehavior::Dumpable)?;
    Ok(true)
}

/// Drops all capabilities of the calling thread except `kept`; adds none.
fn drop_all_but(kept: CapabilitySet) -> io::Result<()> {
    let had = capabilities(None)?;
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
fn install_filter(role: SandboxRole, may_receive: bool) -> io::Result<FilterState> {
    seccomp::install(&syscalls::rules(role, std::process::id(), may_receive))
}

#[cfg(not(all(
    target_pointer_width = "64",
    any(target_arch = "x86_64", target_arch = "aarch64", target_arch = "riscv64")
)))]
fn install_filter(_role: SandboxRole, _may_receive: bool) -> io::Result<FilterState> {
    let reason = format!("there is no filter for {}", std::env::consts::ARCH);
    Ok(FilterState::Unavailable { reason })
}

/// The privileges of all threads together.
#[derive(Debug)]
struct ThreadPrivileges {
    no_new_privileges: bool,
    capabilities: CapabilitySet,
    threads: u64,
}

impl ThreadPrivileges {
    fn read() -> io::Result<Self> {
        let mut all =
            Self { no_new_privileges: true, capabilities: CapabilitySet::empty(), threads: 0 };
        for entry in std::fs::read_dir("/proc/self/task")? {
            match std::fs::read_to_string(entry?.path().join("status")) {
                Ok(text) => all.add(&text).ok_or(io::ErrorKind::InvalidData)?,
                // The thread has ended.
                Err(error) if is_gone(&error) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(all)
    }

    fn add(&mut self, text: &str) -> Option<()> {
        let field = |name: &str| {
            let value = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
            value.map(str::trim)
        };
        // Not the number of those listed: the list ends early at a thread that ends meanwhile.
        self.threads = self.threads.max(field("Threads")?.parse().ok()?);
        self.no_new_privileges &= field("NoNewPrivs")? == "1";
        for name in ["CapPrm", "CapEff", "CapInh", "CapAmb"] {
            let bits = u64::from_str_radix(field(name)?, 16).ok()?;
            self.capabilities |= CapabilitySet::from_bits_retain(bits);
        }
        Some(())
    }
}

fn is_gone(error: &io::Error) -> bool {
    let gone = [Errno::NOENT, Errno::SRCH];
    gone.iter().any(|errno| error.raw_os_error() == Some(errno.raw_os_error()))
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
    /// Becoming another user.
    User,
    /// Hiding the memory of the process.
    Memory,
    /// Confining paths, with Landlock.
    Paths,
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
            Self::User => "become the user (needs root, and a user namespace that has the user)",
            Self::Memory => "protect the memory of the process (PR_SET_DUMPABLE)",
            Self::Paths => "confine paths (Landlock)",
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

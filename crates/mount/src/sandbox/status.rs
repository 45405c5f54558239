//! The state of the process in the sandbox, read from the kernel. Printed by `--explain`.

use std::{fmt, io};

use rustix::thread::CapabilitySet;

use super::descriptor::OpenDescriptor;
use super::paths::PathConfinement;

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

/// The privileges of all threads together.
#[derive(Debug)]
pub(super) struct ThreadPrivileges {
    pub(super) no_new_privileges: bool,
    pub(super) capabilities: CapabilitySet,
    pub(super) threads: u64,
}

impl ThreadPrivileges {
    pub(super) fn read() -> io::Result<Self> {
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
        self.threads = self.threads.saturating_add(1);
        self.no_new_privileges &= field("NoNewPrivs")? == "1";
        for name in ["CapPrm", "CapEff", "CapInh", "CapAmb"] {
            let bits = u64::from_str_radix(field(name)?, 16).ok()?;
            self.capabilities |= CapabilitySet::from_bits_retain(bits);
        }
        Some(())
    }
}

fn is_gone(error: &io::Error) -> bool {
    use rustix::io::Errno;
    let gone = [Errno::NOENT, Errno::SRCH];
    gone.iter().any(|errno| error.raw_os_error() == Some(errno.raw_os_error()))
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

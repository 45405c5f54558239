//! What went wrong on the way into the sandbox: the step, and the system's answer. Made by
//! [`super::Sandbox::enter`], shown by the command.

use std::{error, fmt, io};

/// A step of [`super::Sandbox::enter`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum SandboxStep {
    /// Refusing new privileges.
    NoNewPrivileges,
    /// Giving capabilities away.
    Capabilities,
    /// Listing and replacing descriptors, by way of `/proc/self/fd` and `/dev/null`.
    Descriptors,
    /// Filtering system calls.
    Filter,
    /// Asking what holds, by way of `/proc/self/task`.
    Report,
}

impl SandboxStep {
    pub(super) fn failed<E: Into<io::Error>>(self) -> impl FnOnce(E) -> SandboxError {
        move |source| SandboxError { step: self, source: source.into() }
    }
}

impl fmt::Display for SandboxStep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NoNewPrivileges => "refuse new privileges",
            Self::Capabilities => "give capabilities away",
            Self::Descriptors => "replace descriptors (needs /proc and /dev/null)",
            Self::Filter => "filter system calls",
            Self::Report => "ask what the process may still do (needs /proc)",
        })
    }
}

/// The sandbox could not be entered.
#[derive(Debug)]
pub struct SandboxError {
    /// What was tried. The steps before it hold.
    pub step: SandboxStep,
    /// Why it failed.
    pub source: io::Error,
}

impl fmt::Display for SandboxError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "cannot {}", self.step)
    }
}

impl error::Error for SandboxError {
    fn source(&self) -> Option<&(dyn error::Error + 'static)> {
        Some(&self.source)
    }
}

//! The filter of system calls: whether there is one, and for which architectures. Called by [`super::Sandbox::enter`].

use std::fmt;

/// Whether system calls are filtered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FilterState {
    /// They are.
    On {
        /// How many different calls are allowed, some of them with certain arguments only.
        calls: usize,
    },
    /// They are not, as the caller wished.
    Off,
    /// They are not, though the caller wished it.
    Unavailable {
        /// What is missing.
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

/// Architectures whose calls are known.
#[cfg(all(
    target_pointer_width = "64",
    any(target_arch = "x86_64", target_arch = "aarch64", target_arch = "riscv64")
))]
mod bpf;

#[cfg(all(
    target_pointer_width = "64",
    any(target_arch = "x86_64", target_arch = "aarch64", target_arch = "riscv64")
))]
pub(super) use bpf::install;

#[cfg(not(all(
    target_pointer_width = "64",
    any(target_arch = "x86_64", target_arch = "aarch64", target_arch = "riscv64")
)))]
pub(super) fn install(_may_unmount: bool) -> std::io::Result<FilterState> {
    let reason = format!("there is no filter for {}", std::env::consts::ARCH);
    Ok(FilterState::Unavailable { reason })
}

//! Paths: which files the process may still open by name, enforced by Landlock, a security module of Linux that every
//! process may use. Descriptors that are open already keep working. Used by [`super::Sandbox::enter`].

use std::path::Path;
use std::{fmt, io};

use landlock::{
    ABI, Access, AccessFs, AccessNet, BitFlags, LandlockStatus, PathBeneath, PathFd,
    RestrictionStatus, Ruleset, RulesetAttr, RulesetCreatedAttr, RulesetStatus, Scope,
};

/// The newest version of Landlock whose features are requested. The crate leaves out what the kernel does not have.
const NEWEST: ABI = ABI::V10;

/// Directories whose files can be read; docs/trust.md has the reason for each. Access of a confined process to the memory,
/// environment and files of another one is refused by Landlock itself, whatever `/proc` shows.
const READABLE: [&str; 3] = ["/proc", "/sys/devices/system", "/sys/fs/cgroup"];

/// Directories that can be listed, too.
const LISTABLE: [&str; 1] = ["/proc/self"];

/// The running program: a panic prints its own functions by name.
const PROGRAM: &str = "/proc/self/exe";

/// What a process does with a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum PathUse {
    Read,
    List,
}

/// What servers use while they start, besides: the sandbox replaces descriptors by `/dev/null`, and lists its own folder in
/// `/proc`, which the holder cannot name, since the server is another process.
pub(super) const OF_HOLDERS: [(&str, PathUse); 2] =
    [("/dev/null", PathUse::Read), ("/proc", PathUse::List)];

/// Which files the process can open by name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PathConfinement {
    /// Only files of `/proc`, `/sys` and the running program, for reading.
    On {
        /// The version of Landlock that is in effect.
        version: u32,
        /// Whether TCP connections are denied (version 4).
        network: bool,
        /// Whether abstract Unix sockets of other processes are denied (version 6).
        abstract_sockets: bool,
    },
    /// All that the user can read, as requested.
    Off,
    /// All that the user can read, although confinement was requested.
    Unavailable {
        /// Why not.
        reason: String,
    },
}

impl fmt::Display for PathConfinement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::On { version, network, abstract_sockets } => {
                write!(f, "confined to /proc, /sys and the program (Landlock {version}")?;
                for (is_on, what) in [(network, "network"), (abstract_sockets, "abstract sockets")]
                {
                    let denied = if *is_on { "denied" } else { "left to the system call filter" };
                    write!(f, "; {what} {denied}")?;
                }
                f.write_str(")")
            }
            Self::Off => f.write_str("not confined"),
            Self::Unavailable { reason } => write!(f, "not confined: {reason}"),
        }
    }
}

/// Confines the calling thread and the threads and processes that it starts later to the files of the table in
/// docs/trust.md and those of `others`.
///
/// # Errors
/// The kernel has Landlock, but refuses the rules. A kernel without it is not an error.
pub(super) fn confine(others: &[(&'static str, PathUse)]) -> io::Result<PathConfinement> {
    let restricted = restrict(others).map_err(io::Error::other)?;
    Ok(match (restricted.ruleset, restricted.landlock) {
        (RulesetStatus::NotEnforced, LandlockStatus::NotImplemented) => {
            unavailable("the kernel has no Landlock (5.13 and later can have it)")
        }
        (RulesetStatus::NotEnforced, LandlockStatus::NotEnabled) => unavailable(
            "Landlock is not among the security modules that the kernel was started with",
        ),
        (RulesetStatus::NotEnforced, _) => unavailable("the kernel enforces no rule of Landlock"),
        (_, LandlockStatus::Available { effective_abi, .. }) => {
            let version = effective_abi as u32;
            let has = |first: ABI| version >= first as u32;
            PathConfinement::On { version, network: has(ABI::V4), abstract_sockets: has(ABI::V6) }
        }
        // Rules are enforced, so there is a version.
        (_, _) => PathConfinement::On { version: 1, network: false, abstract_sockets: false },
    })
}

fn unavailable(reason: &str) -> PathConfinement {
    PathConfinement::Unavailable { reason: reason.to_owned() }
}

fn restrict(
    others: &[(&'static str, PathUse)],
) -> Result<RestrictionStatus, landlock::RulesetError> {
    let mut ruleset = Ruleset::default()
        .handle_access(AccessFs::from_all(NEWEST))?
        .handle_access(AccessNet::from_all(NEWEST))?
        // Not the scope of signals: the kernel's message to the unmounting helper that a thread of the server has ended
        // is a signal of that thread. The filter denies signals to other processes.
        .scope(Scope::AbstractUnixSocket)?
        .create()?;
    let file = BitFlags::from(AccessFs::ReadFile);
    let directory = file | AccessFs::ReadDir;
    let programs = [PROGRAM].map(|path| (path, file));
    let readable = READABLE.map(|path| (path, file));
    let listable = LISTABLE.map(|path| (path, directory));
    let others = others.iter().map(|(path, path_use)| match path_use {
        PathUse::Read => (*path, file),
        PathUse::List => (*path, directory),
    });
    for (path, access) in readable.into_iter().chain(listable).chain(programs).chain(others) {
        // What is not there is not needed: containers hide parts of /sys.
        let Ok(place) = PathFd::new(Path::new(path)) else { continue };
        ruleset = ruleset.add_rule(PathBeneath::new(place, access))?;
    }
    ruleset.restrict_self()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_text_says_what_is_confined() {
        let on = PathConfinement::On { version: 4, network: true, abstract_sockets: false };
        assert_eq!(
            on.to_string(),
            "confined to /proc, /sys and the program (Landlock 4; network denied; abstract sockets left to the \
             system call filter)"
        );
        assert_eq!(unavailable("x").to_string(), "not confined: x");
    }
}

//! The filter where the calls are known: the table of [`calls`], made a [`program`], put on every thread
//! by [`thread_filter`]. Called by [`super::super::Sandbox::enter`].

mod calls;
mod program;
mod thread_filter;

use std::io;

use rustix::io::Errno;

use super::FilterState;
use program::{BpfProgram, SeccompAction};

/// Filters every thread, and those that are started later.
pub(in crate::sandbox) fn install(may_unmount: bool) -> io::Result<FilterState> {
    let rules = calls::rules(may_unmount, std::process::id());
    let calls = rules.iter().filter(|rule| rule.action == SeccompAction::Allow).count();
    let program = BpfProgram::new(&rules).ok_or(Errno::TOOBIG)?;
    match thread_filter::install(&program) {
        Ok(()) => Ok(FilterState::On { calls }),
        Err(error) if is_absence(&error) => {
            let reason = format!("the system offers no filter to this process ({error})");
            Ok(FilterState::Unavailable { reason })
        }
        Err(error) => Err(error),
    }
}

/// The kernel has no filters (`ENOSYS`, `EINVAL`), or a filter of whoever started this process does not
/// let it have one of its own (`ENOSYS`, `EPERM`).
fn is_absence(error: &io::Error) -> bool {
    let answers = [Errno::NOSYS, Errno::INVAL, Errno::PERM, Errno::ACCESS];
    answers.iter().any(|action| error.raw_os_error() == Some(action.raw_os_error()))
}

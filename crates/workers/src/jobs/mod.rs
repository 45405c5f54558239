//! One range split over the CPUs ([`ParallelFor`]), and parallel work with commits in order ([`OrderedPipeline`]).
//!
//! Both borrow threads for the length of one call: the caller always works, helpers come from a
//! budget ([`HelperBudget`]) that is never waited for, and when the call returns all of them are done. So
//! a body may borrow what the caller has, may start jobs of its own, and cannot be locked out by
//! other jobs: with no helper left, a job is a loop on its caller.
//!
//! Bodies of one job must not wait for each other. How many threads take part is a matter of what is
//! free, and it may be one.
//!
//! HelperBudget have the caller's priority as the system hands it down to a new thread. They are not put
//! behind other work with `nice`, as padata's last version was meant to: a process that is not
//! privileged cannot raise them again for the caller who waits for the last chunk.

mod chunk_cursor;
#[cfg_attr(loom, allow(dead_code, reason = "a model starts its threads itself"))]
mod helper_budget;
mod ordered;
mod parallel_for;
#[cfg_attr(loom, allow(dead_code, reason = "a model starts its threads itself"))]
pub(crate) mod pending_starts;
mod split;
mod task_failure;
mod thread_team;

pub use helper_budget::{HelperBudget, HelperPlacement, MAX_HELPERS};
pub use ordered::{IN_FLIGHT_MAX, OrderedPipeline, PipelineReport};
pub use parallel_for::{ParallelFor, ParallelForReport};

use thread_team::ThreadTeam;

/// The budget that was chosen, or that of the process; none only in a model, which has no process.
fn chosen(helpers: Option<&HelperBudget>) -> Option<&HelperBudget> {
    #[cfg(not(loom))]
    let helpers = helpers.or_else(|| Some(HelperBudget::process()));
    helpers
}

#[cfg(all(test, not(loom)))]
mod count_latch;
#[cfg(all(test, loom))]
mod loom_tests;
#[cfg(all(test, not(loom)))]
mod stress_tests;
#[cfg(all(test, not(loom)))]
mod tests;

//! The pool that is bound to no CPU: threads at normal priority that the system places where it likes,
//! one queue, started one by one as work waits. The per-CPU workers fall back on it, and the benchmark
//! of latency measures them against it. It never creates more threads than the system runs at once.
//!
//! docs/workers.md, protocol U.

mod member;
mod pool;
mod seat;
mod starter;
mod tally;
#[cfg(all(test, not(loom)))]
mod tests;
mod work;

#[cfg(all(test, loom))]
mod loom_tests;

pub use pool::{Placed, Settings, UnboundPool, UnboundSnapshot};
pub use tally::WorkerSnapshot;

pub(crate) use member::{Membership, is_member, own_tally};
pub(crate) use pool::run_nested;
pub(crate) use seat::{Hold, Seat};
pub(crate) use starter::{Starter, thread_name};
pub(crate) use tally::Tally;
pub(crate) use work::Work;

//! The pool that is bound to no CPU: threads at normal priority that the system places where it likes,
//! one queue, started one by one as work waits. The per-CPU workers fall back on it, and the benchmark
//! of latency measures them against it. It never creates more threads than the system runs at once.
//!
//! docs/workers.md, protocol U.

mod current_pool;
mod pool;
mod spawner;
#[cfg(all(test, not(loom)))]
mod tests;
mod thread_info;
mod work_item;
mod worker_counters;

#[cfg(all(test, loom))]
mod loom_tests;

pub use pool::{SubmitOutcome, UnboundPool, UnboundSettings, UnboundStats};
pub use worker_counters::WorkerStats;

pub(crate) use current_pool::{CurrentPoolGuard, current_counters, is_pool_thread};
pub(crate) use pool::run_nested;
pub(crate) use spawner::{ThreadSpawner, thread_name};
pub(crate) use thread_info::{AffinityCheck, ThreadInfo};
pub(crate) use work_item::WorkItem;
pub(crate) use worker_counters::WorkerCounters;

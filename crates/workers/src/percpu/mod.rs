//! The per-CPU workers: one pinned, named thread a granted CPU, at raised priority where the system
//! allows, started at first use. WorkItem goes to the CPU on which it was submitted; a CPU may go away and
//! come back at any time, and nothing is lost.
//!
//! docs/workers.md, protocol P. Nothing here knows what the work does.

mod cpu_assignment;
mod cpu_queue;
mod hotplug;
mod inbox;
mod pool;
mod registry;
mod settings;
mod stats;
mod worker;

#[cfg(all(test, loom))]
mod loom_tests;
#[cfg(all(test, not(loom)))]
mod tests;

pub use pool::{DispatchTarget, PerCpuPool};
pub use settings::PerCpuSettings;
pub use stats::PerCpuStats;

//! The per-CPU workers: one pinned, named thread a granted CPU, at raised priority where the system
//! allows, started at first use. Work goes to the CPU on which it was submitted; a CPU may go away and
//! come back at any time, and nothing is lost.
//!
//! docs/workers.md, protocol P. Nothing here knows what the work does.

mod hotplug;
mod inbox;
mod plan;
mod pool;
mod roster;
mod settings;
mod slot;
mod snapshot;
mod worker;

#[cfg(all(test, loom))]
mod loom_tests;
#[cfg(all(test, not(loom)))]
mod tests;

pub use pool::{PerCpuPool, Went};
pub use settings::Settings;
pub use snapshot::Snapshot;

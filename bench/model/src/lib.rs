//! The queue and the jobs of ferrofs-workers, and the queues to beat, over simulated CPUs: what they
//! would do on a machine that is not at hand. The sources are those of ferrofs-workers, behind a symbolic link, so that a
//! package contains them; only the `sync` module behind them is another one. Called by the `model` experiments of
//! ferrofs-bench. ARCHITECTURE.md says why this is a crate.

// The sources name each other from the crate's root.
use workers::error;
pub use workers::{counters, cpus, flags, jobs, memory, single_flight, workqueue};

/// The modules of ferrofs-workers that run in the model.
mod workers {
    #[allow(dead_code, reason = "the pools of ferrofs-workers count with the rest")]
    pub mod counters;
    #[allow(dead_code, reason = "no priority is asked of the system here")]
    pub mod cpus;
    #[allow(dead_code, reason = "the pools of ferrofs-workers end panics of their work")]
    pub(crate) mod error;
    #[allow(dead_code, reason = "queues and jobs need the wake event alone")]
    pub mod flags;
    #[allow(dead_code, reason = "memory is faulted in while helpers are being started")]
    pub mod jobs;
    #[allow(dead_code, reason = "readers lease buffers, and no frames")]
    pub mod memory;
    pub mod single_flight;
    pub mod workqueue;
}

mod cache_lines;
pub mod cached_reads;
pub mod faults;
mod fiber;
pub mod machine;
mod page_store;
#[allow(dead_code, reason = "the bench sums bytes, too")]
mod queues;
pub mod stream;
mod sync;
mod thread;

pub use error::{Error, ErrorKind};
/// What a thread asks for. Nobody grants it here: all simulated threads have a CPU as soon as it is free.
pub use ferrofs_workers::priority;

//! The queue and the jobs of ferrofs-workers, and the queues to beat, over simulated CPUs: what they
//! would do on a machine that is not at hand. The sources are those of the other crates, included by
//! their paths; only the `sync` door behind them is another one. Called by the `model` experiments of
//! ferrofs-bench. ARCHITECTURE.md says why this is a crate.

#[path = "../../src/baseline/mod.rs"]
mod baseline;
#[path = "../../../crates/workers/src/cache_padded.rs"]
mod cache_padded;
#[path = "../../../crates/workers/src/catch_panic.rs"]
mod catch_panic;
#[path = "../../../crates/workers/src/counters/mod.rs"]
#[allow(dead_code, reason = "the pools of ferrofs-workers count with the rest")]
pub mod counters;
#[path = "../../../crates/workers/src/cpus/mod.rs"]
pub mod cpus;
#[path = "../../../crates/workers/src/error.rs"]
mod error;
#[path = "../../../crates/workers/src/jobs/mod.rs"]
#[allow(dead_code, reason = "who is still being started is asked where memory is faulted in")]
pub mod jobs;
#[path = "../../../crates/workers/src/sys.rs"]
#[allow(dead_code, reason = "no priority is asked of the system here")]
mod sys;
#[path = "../../../crates/workers/src/wake_event.rs"]
mod wake_event;
#[path = "../../../crates/workers/src/workqueue/mod.rs"]
pub mod workqueue;

mod deflater;
pub mod faults;
pub mod machine;
mod page_store;
pub mod ping_pong;
pub mod priority;
mod rows;
pub mod stream;
mod sync;
mod thread;

pub use error::{Error, ErrorKind};

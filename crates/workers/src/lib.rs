//! CPUs, threads, queues, parallel loops and memory for work that must not wait. Nothing here knows a file format.
//!
//! * [`percpu`]: one pinned, named worker for each available CPU, at raised priority where the system allows, safe
//!   against CPUs that go offline and come online; [`unbound`] is its fallback.
//! * [`workqueue`]: preallocated requests from one submitter to many workers, without a lock, a contended cache
//!   line or an allocation.
//! * [`jobs`]: one range split over the CPUs, and parallel work with commits in order.
//! * [`memory`]: frames from a bounded reserve, buffers, one budget, and allocations that may fail beside those
//!   that must succeed.
//! * [`single_flight`]: of all threads that need a value one computes it; the value is kept and shared.
//! * [`cpus`] and [`priority`]: which CPUs the system lets this process use, and which priority level it gave.
//! * [`CancelToken`]: asks a long operation to stop.
//! * [`ActivityFlag`]: whether something was used since a thread checked last.
//!
//! `docs/workers.md` numbers the steps of the protocols; comments refer to them. `docs/memory.md` writes the
//! budget out as a sum.

pub mod counters;
pub mod cpus;
mod error;
mod flags;
pub mod jobs;
pub mod memory;
pub mod percpu;
pub mod priority;
pub mod single_flight;
mod sync;
mod thread;
pub mod unbound;
pub mod workqueue;

pub use error::{Error, ErrorKind};
pub use flags::{ActivityFlag, CancelToken};

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct ReadmeExamples;

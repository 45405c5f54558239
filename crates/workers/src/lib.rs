//! CPUs, threads, queues, jobs and pages for work that must not wait.
//!
//! Five mechanisms, each proved in a kernel or a hypervisor before it came here, and nothing of any
//! file format:
//!
//! * [`percpu`]: one pinned, named worker a granted CPU, at raised priority where the system allows,
//!   safe against CPUs that come and go; [`unbound`] is what it falls back on.
//! * [`workqueue`]: preallocated requests from one submitter to many workers, without a lock, a
//!   shared cache line or an allocation.
//! * [`jobs`]: one range split over the CPUs, and parallel work with commits in order.
//! * [`memory`]: frames from a bounded reserve, scratch that grows and stays, buffers, one budget,
//!   and the difference between memory that may fail and memory that must come.
//! * [`single_flight`]: values that many want are computed by one of them, kept and shared.
//! * [`cpus`] and [`priority`]: what the system really grants, and which priority_level of priority was reached.
//!
//! The protocols are numbered in `docs/workers.md`; comments here refer to their steps. `docs/memory.md`
//! writes the budget out as a sum.

mod cache_padded;
mod cancel;
mod catch_panic;
pub mod counters;
pub mod cpus;
mod error;
pub mod jobs;
pub mod memory;
pub mod percpu;
pub mod priority;
pub mod single_flight;
mod sync;
mod sys;
pub mod thread;
pub mod unbound;
mod wake_event;
pub mod workqueue;

pub use cancel::CancelToken;
pub use error::{Error, ErrorKind};

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct ReadmeExamples;

//! The threaded workqueue: requests from one submitter to many workers, without a lock, a shared
//! cache line or an allocation once it runs.
//!
//! Slots are made once and used again. Each worker has its own few slots, and a word in which the
//! submitter turns a slot's bit when it has filled it, and another in which the worker turns it when it
//! is done; equal bits mean that the slot is the submitter's. A wake-up costs a system call only when
//! the worker sleeps. The submitter is one by type: every step takes `&mut self`. It works, too: when
//! all workers that have a CPU are busy it handles the next request itself, and when it waits for all
//! of them it handles what nobody has begun.
//!
//! ```
//! use ferrofs_workers::workqueue::{Handler, RequestOutcome, WorkQueueSettings, WorkQueue};
//!
//! struct Square;
//! impl Handler for Square {
//!     type Request = u64;
//!     fn handle(&mut self, request: &mut u64) {
//!         *request *= *request;
//!     }
//! }
//!
//! let mut sum = 0;
//! let on_done = |request: &mut u64, outcome| {
//!     assert_eq!(outcome, RequestOutcome::Done);
//!     sum += *request;
//! };
//! let mut queue = WorkQueue::new(&WorkQueueSettings::default(), || 0, || Ok(Square), on_done)?;
//! for number in 1..=10 {
//!     let mut slot = queue.reserve_or_inline();
//!     *slot.request() = number;
//!     slot.submit();
//! }
//! queue.wait();
//! drop(queue);
//! assert_eq!(sum, 385);
//! # Ok::<(), ferrofs_workers::Error>(())
//! ```
//!
//! docs/workers.md has the protocol (Q) in numbered steps.

mod adaptive_spin;
mod handler_cell;
#[cfg(all(test, loom))]
mod loom_tests;
mod queue;
mod request;
mod reserved_slot;
mod settings;
mod stats;
mod submitter_end;
#[cfg(all(test, not(loom)))]
mod tests;
mod worker;
mod worker_queue;
mod worker_selector;

pub use queue::WorkQueue;
pub use request::{Handler, NoHandler, RequestOutcome};
pub use reserved_slot::ReservedSlot;
pub use settings::{ActiveWorkers, DispatchPolicy, WorkQueueSettings};
pub use stats::{WorkQueueStats, WorkerQueueStats};

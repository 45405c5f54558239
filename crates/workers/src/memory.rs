//! Memory under one budget: frames from a bounded reserve, scratch that grows and stays, and the
//! difference between memory that may fail and memory that must come. It owns no memory of its own
//! and knows nothing of what is decoded into it.
//!
//! [`Budget`] is the one sum. [`PagePool`] leases frames, [`RequestFrameList`] stands in front of it for one
//! request, [`Scratch`] belongs to one worker, [`BufferPool`] to all of them, and [`AllocPolicy`] says with every request what its caller
//! accepts. [`Pressure`] makes best effort give way before the system is short. [`Mapping`] is bare
//! memory, for those who charge it themselves. docs/memory.md writes the budget out as a sum and
//! numbers the protocols.

mod alloc_policy;
mod arena;
mod block;
mod budget;
mod buffer_pool;
mod cgroup;
mod fault_injection;
mod frame;
mod frame_stack;
mod frame_stats;
mod heap;
mod mapping;
mod page_pool;
mod prefault;
mod pressure;
mod reclaim;
mod request_frames;
mod scratch;
mod system_memory;
mod wait_deadline;
mod wait_queue;

pub use alloc_policy::AllocPolicy;
pub use budget::{Budget, BudgetStats, Charge, DEFAULT_STALL, ReclaimerRegistration};
pub use buffer_pool::{Buffer, BufferPool, BufferPoolStats};
pub use cgroup::available_memory_bytes;
pub use fault_injection::FaultPlan;
pub use frame::Frame;
pub use frame_stats::PagePoolStats;
pub use heap::{set_mmap_threshold, trim_heap};
pub use mapping::{LockState, Mapping, PageSize, PopulateMethod};
pub use page_pool::{FRAMES_MAX, PagePool, PagePoolSettings};
pub use prefault::PrefaultReport;
pub use pressure::{Pressure, PressureSettings};
pub use request_frames::RequestFrameList;
pub use scratch::{BLOCKS_MAX, Scratch, ScratchGuard};

/// Bytes of a frame.
pub const FRAME_BYTES: usize = 4096;

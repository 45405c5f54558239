//! Memory under one budget: frames from a bounded reserve, scratch that grows and stays, and the
//! difference between memory that may fail and memory that must come. It owns no memory of its own
//! and knows nothing of what is decoded into it.
//!
//! [`Budget`] is the one sum. [`PagePool`] leases frames, [`RequestList`] stands in front of it for one
//! request, [`Scratch`] belongs to one worker, [`Buffers`] to all of them, and [`Policy`] says with every request what its caller
//! accepts. [`Pressure`] makes best effort give way before the system is short. [`Mapping`] is bare
//! memory, for those who charge it themselves. docs/memory.md writes the budget out as a sum and
//! numbers the protocols.

mod arena;
mod block;
mod budget;
mod buffers;
mod frame;
mod frame_stack;
mod group;
mod heap;
mod mapping;
mod origins;
mod page_pool;
mod patience;
mod policy;
mod prefault;
mod pressure;
mod reclaim;
mod refusals;
mod request_list;
mod room;
mod scratch;
mod system;

pub use budget::{Budget, BudgetCounts, Charge, DEFAULT_STALL, Registration};
pub use buffers::{Buffer, BufferCounts, Buffers};
pub use frame::Frame;
pub use group::granted_bytes;
pub use heap::{map_large_blocks, trim_heap};
pub use mapping::{Locked, Mapping, Pages, Populated};
pub use origins::FrameCounts;
pub use page_pool::{MOST_FRAMES, PagePool, PoolSettings};
pub use policy::Policy;
pub use prefault::Prefaulted;
pub use pressure::{Pressure, PressureSettings};
pub use refusals::Refusals;
pub use request_list::RequestList;
pub use scratch::{MOST_BLOCKS, Scratch, ScratchGuard};

/// Bytes of a frame.
pub const FRAME_BYTES: usize = 4096;

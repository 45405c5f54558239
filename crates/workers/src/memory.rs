//! Memory under one budget. It owns the rules: what is counted, who waits, who may be refused. It
//! never knows what the memory holds. Decoders, caches and tables of an image take their memory
//! here.
//!
//! * [`Budget`] counts bytes against one limit; a [`Charge`] is a part of it.
//! * [`PagePool`] leases frames of 4 KiB, and a [`RequestFrameList`] keeps those of one request.
//! * [`BufferPool`] leases contiguous buffers that threads share.
//! * [`ThreadCache`] keeps a buffer for each thread between two leases.
//! * [`AllocPolicy`] says with each request what its caller accepts when memory is short.
//! * [`Mapping`] is anonymous memory for callers that charge it themselves.
//!
//! docs/memory.md writes the budget out as a sum; docs/workers.md numbers the protocols.

mod budget;
mod buffer_pool;
mod frame_stack;
mod mapping;
mod page_pool;
mod process;
mod thread_cache;
mod wait_queue;

pub use budget::{Budget, BudgetStats, Charge, DEFAULT_STALL, FaultPlan, ReclaimerRegistration};
pub use buffer_pool::{Buffer, BufferPool, BufferPoolStats};
pub use mapping::{Mapping, PageSize, PopulateMethod, PrefaultReport};
pub use page_pool::{
    FRAMES_MAX, Frame, PagePool, PagePoolSettings, PagePoolStats, RequestFrameList,
};
pub use process::{available_memory_bytes, set_mmap_threshold, trim_heap, trim_stack};
pub use thread_cache::{CachedBuffer, ThreadCache};

/// Bytes of a frame.
pub const FRAME_BYTES: usize = 4096;

/// What a caller accepts when memory is short.
///
/// In Linux, the field of the same purpose in EROFS is called `besteffort` and means "must
/// succeed".
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum AllocPolicy {
    /// For readahead and prefetch: memory that is available now, or
    /// [`ErrorKind::NotNow`](crate::ErrorKind::NotNow).
    ///
    /// A request never faults a page in, never maps, never waits for a lock, a frame or a context,
    /// and makes no system call. It is refused while anybody waits for memory. A refusal is about
    /// this moment and must not be remembered.
    MayFail,
    /// For work that somebody waits for: a demanded read, an extraction.
    ///
    /// A request may map and fault in. It calls the registered reclaimers, waits until memory comes
    /// back, and tries again after a refusal by the system. It fails with
    /// [`ErrorKind::OutOfMemory`](crate::ErrorKind::OutOfMemory) only at the hard limit, and never
    /// aborts.
    MustSucceed,
}

//! Where frames came from and went to. It owns the words and the sums; the numbers stand with the
//! frames (`frame_stack.rs`), where counting is free of sharing. `PagePool` adds them up.

/// Where a frame came from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum FrameSource {
    /// The caller's own list.
    List,
    /// The reserve.
    Reserve,
    /// The system: it was faulted in.
    System,
}

impl FrameSource {
    /// How many there are.
    pub(super) const COUNT: usize = 3;
}

/// Counts of frames since a pool was made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct PagePoolStats {
    /// Leases from request lists.
    pub from_list: u64,
    /// Leases from the reserve.
    pub from_reserve: u64,
    /// Leases of frames that were faulted in for it.
    pub from_system: u64,
    /// Nanoseconds that faulting these in took, all threads together, waiting for the system's memory included.
    pub faulting_nanos: u64,
    /// Frames given back to the system.
    pub returned: u64,
    /// Calls to give frames back that the system refused; the frames are vacant all the same.
    pub refused_returns: u64,
}

impl PagePoolStats {
    /// Leases in all.
    #[must_use]
    pub fn leases(&self) -> u64 {
        self.from_list + self.from_reserve + self.from_system
    }
}

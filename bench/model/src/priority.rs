//! What ferrofs-workers asks for by way of priority (crates/workers/src/priority.rs), without the system that
//! would grant it. Called by the queue's settings and by `thread`.

/// What a thread asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum PriorityRequest {
    /// Touch nothing.
    #[default]
    Normal,
    /// More than others: all simulated threads have a CPU as soon as it is free.
    Raised,
    /// A thread that wakes up waits for its turn.
    Batch,
}

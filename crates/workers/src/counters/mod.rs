//! What the mechanisms count while they work: numbers that one thread writes and any may read, and
//! times in a histogram. Cheap enough to be always on; nothing here locks or allocates after it is made.

mod counter;
mod histogram;

pub(crate) use counter::Counter;
pub(crate) use histogram::Histogram;
pub use histogram::Times;

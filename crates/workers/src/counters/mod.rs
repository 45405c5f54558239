//! What the mechanisms count while they work: numbers that one thread writes and any may read, and
//! times in a histogram. Cheap enough to be always on; nothing here locks or allocates after it is made.

mod counter;
mod histogram;
mod sharded;

pub(crate) use counter::Counter;
pub use histogram::{Histogram, HistogramSnapshot};
pub use sharded::Sharded;

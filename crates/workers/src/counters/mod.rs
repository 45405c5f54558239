//! What the mechanisms count while they work: numbers that one thread writes and any may read, and
//! times in a histogram. Cheap enough to be always on; nothing here locks or allocates after it is made.

mod counter;
mod histogram;
mod spread;

pub(crate) use counter::Counter;
pub use histogram::{Histogram, Times};
pub use spread::Spread;

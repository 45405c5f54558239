//! The queues to beat, made anew from the description of QEMU's threaded workqueue (Xiao Guangrong,
//! 2018, with Emilio Cota's changes): neither improved nor worsened. Called by the rows of the
//! workqueue experiment.
//!
//! * [`shared`]: version 2. One array of slots, two bitmaps and one completion event for all workers.
//! * [`per_thread`]: the same with slots, bitmaps and completion event of each worker on lines of
//!   their own (version 3, and Cota's branch).
//!
//! Either takes a [`turn::Turn`]: round robin as posted, or Cota's batching.

pub(crate) mod bits;
pub(crate) mod event;
pub(crate) mod per_thread;
pub(crate) mod shared;
pub(crate) mod slot;
pub(crate) mod turn;

//! Values that many threads want are computed by one of them. It owns the kept values, their order and
//! who computes what; it computes nothing, never sees a failure, and knows nothing of what a value is. A
//! reader of clusters single_flight here before it decodes.
//!
//! A lookup is answered by [`Lookup::Hit`], [`Lookup::Miss`] or [`Lookup::Pending`]. What lies in a
//! queue may be taken over, what runs may be upgraded from prefetch to demand, and what ends without a value
//! is forgotten: whoever waited single_flight again.
//!
//! docs/workers.md, protocol K.

mod cache;
mod in_flight;
mod lru;
mod permit;
mod stats;
mod table;
mod waiter;

pub use cache::{CacheValue, Lookup, SingleFlight, Urgency};
pub use permit::FillPermit;
pub use stats::SingleFlightStats;
pub use waiter::Waiter;

#[cfg(all(test, loom))]
mod loom_tests;
#[cfg(all(test, not(loom)))]
mod stress_tests;
#[cfg(all(test, not(loom)))]
mod tests;

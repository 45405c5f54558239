//! Values that many threads want are computed by one of them. It owns the kept values, their order and
//! who computes what; it computes nothing, never sees a failure, and knows nothing of what a value is. A
//! reader of clusters claims here before it decodes.
//!
//! A claim is answered by [`Claim::Ready`], [`Claim::Mine`] or [`Claim::Pending`]. What lies in a
//! queue may be taken over, what runs may be upgraded from prefetch to demand, and what ends without a value
//! is forgotten: whoever waited claims again.
//!
//! docs/workers.md, protocol K.

mod claim;
mod counts;
mod flight;
mod recency;
mod register;
mod ticket;
mod waiter;

pub use claim::{Claim, Claims, Urgency, Value};
pub use counts::ClaimCounts;
pub use ticket::Ticket;
pub use waiter::Waiter;

#[cfg(all(test, loom))]
mod loom_tests;
#[cfg(all(test, not(loom)))]
mod stress_tests;
#[cfg(all(test, not(loom)))]
mod tests;

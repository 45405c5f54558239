//! Mounts that this process serves, through the kernel. Where this user cannot mount, the tests report that they are
//! skipped.
#![allow(
    clippy::unwrap_used,
    clippy::print_stderr,
    reason = "a test stops at the first unexpected error, and skipped tests are reported"
)]

mod ending;
mod mounted;
mod prefetch;
mod stats;

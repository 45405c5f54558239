//! Mounts that are served in this process, through the kernel. Skipped, by name, where this user may not mount.
#![allow(
    clippy::unwrap_used,
    clippy::print_stderr,
    reason = "a test ends where its world is not as it must be, and says what it skips"
)]

mod ending;
mod mounted;
mod prefetch;
mod stats;

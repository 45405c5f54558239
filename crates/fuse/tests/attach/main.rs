//! Mounting and unmounting with the kernel and the `fusermount3` of this machine, as the user who runs the tests. If this
//! user cannot mount, the tests report that they are skipped.

#![allow(clippy::print_stderr, reason = "skipped tests are reported")]

mod errors;
mod killed;
mod life;
mod mounts;
mod stuck;

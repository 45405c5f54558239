//! Mounting and unmounting with the kernel and the `fusermount3` of this machine, as whoever runs the
//! tests. Where neither way is open they say so and pass.

#![allow(clippy::print_stderr, reason = "whoever runs the tests is told what they could not see")]

mod errors;
mod killed;
mod life;
mod mounts;

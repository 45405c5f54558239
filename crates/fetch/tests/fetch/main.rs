//! The fetcher as a process, against a server in this process that counts, delays and fails.
#![allow(clippy::unwrap_used, reason = "what goes wrong in a test fails the test")]

mod http;
mod server;
mod world;

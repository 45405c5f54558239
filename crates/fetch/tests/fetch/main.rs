//! The fetcher as a process, against a server in this process that counts, delays and fails.
#![allow(
    clippy::unwrap_used,
    clippy::print_stderr,
    reason = "what goes wrong in a test fails the test, and a skipped one says so"
)]

mod admission;
mod cache;
mod command;
#[path = "../../../cli/tests/cli/container_image.rs"]
mod container_image;
mod convert;
mod damaged;
mod damaged_cache;
mod documents;
mod embedded_index;
mod http;
mod identity;
mod logins;
mod memory;
mod mirrors;
mod mount;
mod offline;
mod process;
mod proof;
mod proxy;
mod pull;
mod push;
mod redirects;
mod registry;
mod s3_servers;
mod server;
mod store;
mod store_server;
mod tree;
mod trust;
mod uncached;
mod wire;
mod world;

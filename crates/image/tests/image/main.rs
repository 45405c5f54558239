//! Tests of the image library against images of other builders: their manifests, the view of the
//! kernel, the defects of other readers, and damage.
#![allow(
    clippy::expect_used,
    clippy::unwrap_used,
    clippy::print_stderr,
    reason = "a test may stop at the first surprise, and says what it skipped"
)]

mod crafted;
mod damage;
mod decode_once;
mod defects;
mod depth;
mod engine_faults;
mod engine_hostile;
mod engine_memory;
mod engine_readahead;
mod engine_reserve;
mod engine_workers;
mod follow;
mod golden;
mod index_searches;
mod kernel;
mod lz4_image;
mod manifest;
mod reading;
mod repeats;
mod shared_damage;
mod sources;

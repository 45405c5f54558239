//! EROFS images at URLs, as sources of `ferrofs-image`.
//!
//! [`Location`] parses what a user types. [`RemoteSource`] reads an object through the cache on
//! disk, and requests what is missing of the fetcher, a separate process with the network, the
//! credentials and the right to write the cache. This crate has no network code: it has the
//! format of the cache ([`cache`]), the messages ([`protocol`]) and the client ([`FetchClient`]).
//! The fetcher is the program `ferrofs-fetch`. docs/remote.md has the design and the protocols in
//! numbered steps.

pub mod cache;
mod child;
mod chunk_index;
mod client;
mod companion;
mod connection;
mod counters;
mod digest;
mod launch;
mod layout;
mod location;
mod lock;
mod memory_file;
pub mod oci;
pub mod protocol;
mod push;
mod readahead;
mod source;
mod store_settings;
mod use_log;

pub use chunk_index::{
    CHUNK_INDEX_MAX_BYTES, CHUNK_INDEX_MEDIA_TYPE, ChunkIndex, ChunkIndexError,
    INDEXED_CHUNK_MAX_BYTES,
};
pub use client::{Connector, FetchClient};
pub use companion::{Companion, serve_companion};
pub use connection::Connection;
pub use digest::{ContentDigest, DigestError};
pub use launch::{CACHE_BUSY, CACHE_UNUSABLE, FetcherProgram};
pub use layout::{LayoutDirectory, LayoutReference, LayoutSource};
pub use location::{
    LOCATION_MAX_BYTES, LayerSelector, Location, LocationError, RemoteLocation, RemoteObject,
};
pub use memory_file::memory_file;
pub use push::push_image;
pub use source::RemoteSource;
pub use store_settings::StoreSettings;

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct ReadmeExamples;

//! What the bytes of an EROFS image mean.
//!
//! Every structure of the format is decoded here from a slice into a checked value: superblock,
//! device table, inodes, directory blocks, extended attributes, chunk maps and the indexes of
//! compressed files. Beside each parser stands its inverse, which makes the bytes of such a value; what
//! it makes, the parser reads back as the same value. The crate does no I/O, holds no state, allocates
//! nothing whose size an image chooses, and has no unsafe code. Whatever the bytes or the values are,
//! the answer is a value, bytes, or an [`Error`] that says which rule was broken and at which byte.
//!
//! The rules and their numbers (F1 and on) stand in `docs/format.md`.
//!
//! ```
//! use ferrofs_ondisk::{ErrorKind, Superblock};
//!
//! let not_an_image = [0u8; 128];
//! let error = Superblock::parse(&not_an_image).unwrap_err();
//! assert_eq!(*error.kind(), ErrorKind::BadMagic(0));
//! ```
#![forbid(unsafe_code)]
#![deny(
    clippy::arithmetic_side_effects,
    clippy::indexing_slicing,
    clippy::as_conversions,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic
)]
#![cfg_attr(
    test,
    allow(
        clippy::arithmetic_side_effects,
        clippy::as_conversions,
        clippy::assertions_on_result_states,
        clippy::cast_possible_truncation,
        reason = "tests make their own numbers and say in one line what is refused"
    )
)]

mod address;
mod algorithm;
mod bytes;
mod checksum;
pub mod chunk;
pub mod compression;
mod device;
pub mod dirent;
mod error;
mod feature;
mod inode;
mod superblock;
pub mod xattr;
pub mod zmap;

pub use address::{BlockSize, Nid};
pub use checksum::{checksum_span, seal_checksum, superblock_checksum};
pub use device::DeviceSlot;
pub use error::{Error, ErrorKind, Result};
pub use feature::{Compat, Incompat};
pub use inode::{DataLayout, DiskInode, FileType, InodeForm, Payload, TimeBase, Timestamp};
pub use superblock::{SUPERBLOCK_OFFSET, Superblock};

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct ReadmeExamples;

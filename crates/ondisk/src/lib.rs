//! The EROFS on-disk format.
//!
//! Each structure of the format is parsed from a slice into a checked value: superblock, device table, inodes, directory
//! blocks, extended attributes, chunk maps and the indexes of compressed files. Each parser has an inverse, which writes
//! such a value; the parser reads back the same value. The crate does no I/O, has no state and no unsafe code, and
//! allocates nothing whose size an image chooses. For any bytes and any values the result is a value, bytes, or an
//! [`Error`] with the broken rule and its byte offset.
//!
//! `docs/format.md` has the rules by number (F1 and so on).
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
        reason = "tests make their own numbers and check errors in one line"
    )
)]

mod acl;
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

pub use acl::check_acl;
pub use address::{BlockSize, Nid};
pub use checksum::{checksum_span, seal_checksum, superblock_checksum};
pub use device::DeviceSlot;
pub use error::{Error, ErrorKind, Result};
pub use feature::{Compat, Incompat};
pub use inode::{DataLayout, DiskInode, FileType, InodeForm, Payload, TimeBase, Timestamp};
pub use superblock::{SUPERBLOCK_MAGIC, SUPERBLOCK_OFFSET, Superblock};

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct ReadmeExamples;

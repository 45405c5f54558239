//! The bodies of the fuzz targets.
//!
//! A body takes any bytes, gives them to ferrofs, and panics where the answer breaks a promise: not
//! where it is an error. Bodies hold no state from one input to the next and bound their own work,
//! so that one input takes less than a second. `fuzz_targets/` calls them under libFuzzer,
//! `tests/replay.rs` with the inputs that are kept.

mod check;
mod decoding;
mod dirent;
mod inode;
mod input;
mod lz4_window;
mod map;
mod map_image;
mod patched;
mod reading;
mod stretch;
mod superblock;
mod tar;
mod xattr;

pub use check::check;
pub use decoding::{deflate, lz4, lzma, zstd};
pub use dirent::dirent;
pub use inode::inode;
pub use lz4_window::lz4_window;
pub use map::{chunk, zmap_compact, zmap_extents, zmap_full};
pub use map_image::MapCase;
pub use patched::{PATCHED_IMAGES, patched};
pub use superblock::superblock;
pub use tar::tar;
pub use xattr::xattr;

/// A fuzz target.
#[derive(Clone, Copy, Debug)]
pub struct Target {
    /// Its name, which is that of its file in `fuzz_targets/` and of its folders.
    pub name: &'static str,
    /// What it does with an input.
    pub body: fn(&[u8]),
}

/// All targets, small structures first.
pub const TARGETS: [Target; 16] = [
    Target { name: "superblock", body: superblock },
    Target { name: "inode", body: inode },
    Target { name: "dirent", body: dirent },
    Target { name: "xattr", body: xattr },
    Target { name: "lz4", body: lz4 },
    Target { name: "lz4_window", body: lz4_window },
    Target { name: "lzma", body: lzma },
    Target { name: "deflate", body: deflate },
    Target { name: "zstd", body: zstd },
    Target { name: "zmap_full", body: zmap_full },
    Target { name: "zmap_compact", body: zmap_compact },
    Target { name: "zmap_extents", body: zmap_extents },
    Target { name: "chunk", body: chunk },
    Target { name: "patched", body: patched },
    Target { name: "check", body: check },
    Target { name: "tar", body: tar },
];

//! The bodies of the fuzz targets.
//!
//! A body takes any bytes, gives them to ferrofs, and panics where the answer breaks a promise: not
//! where it is an error. Bodies hold no state from one input to the next and bound their own work,
//! so that one input takes less than a second. `fuzz_targets/` calls them under libFuzzer,
//! `tests/replay.rs` with the inputs that are kept.

/// Instrumented crates call functions of libFuzzer, also in a replay.
#[cfg(feature = "libfuzzer")]
use libfuzzer_sys as _;

mod android;
mod build_case;
mod build_image;
mod check;
mod decoding;
mod dirent;
mod extract;
mod fuse;
mod hints;
mod image_input;
mod inode;
mod input;
mod layers;
mod listing;
mod lz4_window;
mod map;
mod map_image;
mod meter;
mod mutate;
mod patched;
mod reading;
mod remote;
mod server;
mod stats;
mod stretch;
mod superblock;
mod tar;
mod texts;
mod write_tar;
mod xattr;

pub use android::android;
pub use build_image::{build_image, built_image};
pub use check::{check, patched};
pub use decoding::{deflate, lz4, lzma, zstd};
pub use dirent::dirent;
pub use extract::extract;
pub use fuse::fuse;
pub use hints::hints;
pub use inode::inode;
pub use layers::layers;
pub use lz4_window::lz4_window;
pub use map::{chunk, zmap_compact, zmap_extents, zmap_full};
pub use map_image::MapCase;
pub use meter::Limits;
pub use mutate::{PlainMutator, mutate_image, mutate_numbered};
pub use patched::PATCHED_IMAGES;
pub use remote::remote;
pub use server::server;
pub use stats::stats;
pub use superblock::superblock;
pub use tar::tar;
pub use texts::texts;
pub use write_tar::write_tar;
pub use xattr::xattr;

/// A fuzz target.
#[derive(Clone, Copy, Debug)]
pub struct Target {
    /// Its name, which is that of its file in `fuzz_targets/` and of its folders.
    pub name: &'static str,
    /// What it does with an input.
    body: fn(&[u8]),
    /// What an input may cost.
    limits: Limits,
}

impl Target {
    /// The target of this name.
    ///
    /// # Panics
    /// There is none.
    #[must_use]
    pub fn named(name: &str) -> Self {
        let found = TARGETS.iter().copied().find(|target| target.name == name);
        found.unwrap_or_else(|| panic!("no target {name}"))
    }

    /// Runs an input.
    ///
    /// # Panics
    /// A promise is broken: that of the body, or that of its cost.
    pub fn run(&self, input: &[u8]) {
        meter::run(&self.limits, input.len(), || (self.body)(input));
    }
}

/// A structure of one block at most.
const SMALL: Limits =
    Limits { heap_bytes: 256 << 10, heap_bytes_a_byte: 16, time_units: 20, time_units_a_kib: 2 };
/// A codec: windows of up to 512 KiB, outputs of 68 KiB, each decoded a dozen times.
const CODEC: Limits =
    Limits { heap_bytes: 8 << 20, heap_bytes_a_byte: 16, time_units: 400, time_units_a_kib: 20 };
/// A map in an image: extents of up to 12 MiB.
const MAP: Limits =
    Limits { heap_bytes: 64 << 20, heap_bytes_a_byte: 64, time_units: 1500, time_units_a_kib: 20 };
/// A whole image, of which a body looks at 400 inodes and a few mebibytes.
const IMAGE: Limits =
    Limits { heap_bytes: 64 << 20, heap_bytes_a_byte: 64, time_units: 1500, time_units_a_kib: 20 };
/// A document, and a file of mebibytes, most of which is a hole.
const DOCUMENT: Limits =
    Limits { heap_bytes: 4 << 20, heap_bytes_a_byte: 64, time_units: 400, time_units_a_kib: 20 };
/// Archives: a spool of up to 32 MiB, and what a decoder takes.
const ARCHIVE: Limits = Limits {
    heap_bytes: 128 << 20,
    heap_bytes_a_byte: 1024,
    time_units: 1500,
    time_units_a_kib: 20,
};
/// Regular expressions, which may compile to 10 MiB each.
const TEXT: Limits =
    Limits { heap_bytes: 64 << 20, heap_bytes_a_byte: 64, time_units: 1500, time_units_a_kib: 100 };
/// A build and an image: encoders take 10 MiB, buffers half a mebibyte.
const BUILD: Limits = Limits {
    heap_bytes: 160 << 20,
    heap_bytes_a_byte: 4096,
    time_units: 3000,
    time_units_a_kib: 1000,
};

// One constant for each target, so that a fuzzing program contains one body: libFuzzer goes through the counters of all
// code of its program after each input, which takes longer than a small body.
macro_rules! targets {
    ($($constant:ident: $name:ident, $limits:ident;)+) => {
        $(
            #[doc = concat!("Target `", stringify!($name), "`.")]
            pub const $constant: Target =
                Target { name: stringify!($name), body: $name, limits: $limits };
        )+
        /// All targets, small structures first.
        pub const TARGETS: &[Target] = &[$($constant),+];
    };
}

targets! {
    SUPERBLOCK: superblock, SMALL;
    INODE: inode, SMALL;
    DIRENT: dirent, SMALL;
    XATTR: xattr, SMALL;
    STATS: stats, SMALL;
    LZ4: lz4, CODEC;
    LZ4_WINDOW: lz4_window, CODEC;
    LZMA: lzma, CODEC;
    DEFLATE: deflate, CODEC;
    ZSTD: zstd, CODEC;
    ZMAP_FULL: zmap_full, MAP;
    ZMAP_COMPACT: zmap_compact, MAP;
    ZMAP_EXTENTS: zmap_extents, MAP;
    CHUNK: chunk, MAP;
    ANDROID: android, DOCUMENT;
    REMOTE: remote, DOCUMENT;
    SERVER: server, DOCUMENT;
    HINTS: hints, TEXT;
    TEXTS: texts, TEXT;
    PATCHED: patched, IMAGE;
    CHECK: check, IMAGE;
    WRITE_TAR: write_tar, IMAGE;
    EXTRACT: extract, IMAGE;
    FUSE: fuse, IMAGE;
    TAR: tar, ARCHIVE;
    LAYERS: layers, ARCHIVE;
    BUILD_IMAGE: build_image, BUILD;
}

//! EROFS images as a library: open, look up, list, read, verify.
//!
//! ```no_run
//! use ferrofs_image::{FileType, Image, WalkEvent};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let image = Image::open("system.erofs")?;
//! for visit in image.walk(b"/")? {
//!     match visit {
//!         WalkEvent::Leaf(node) if node.inode.file_type() == FileType::Regular => {
//!             let mut head = [0; 16];
//!             let count = image.read_at(&node.inode, 0, &mut head)?;
//!             println!("{}: {count} bytes", String::from_utf8_lossy(&node.path));
//!         }
//!         WalkEvent::Problem(problem) => eprintln!("{}", problem.error),
//!         _ => {}
//!     }
//! }
//! # Ok(())
//! # }
//! ```
//!
//! An [`Image`] is cheap to clone and may be used from many threads at once. An image may hold any
//! bytes: the result is data, or an [`Error`] with the inode and the byte, in bounded memory and
//! without a panic.
//!
//! How a read works: [`Image::read_at`] looks up the extent that holds the byte in the map of the
//! inode, fetches the cluster of the extent from the devices, and decodes it: into the buffer of
//! the caller if the read covers the whole extent, through a cache otherwise.
#![deny(
    unsafe_code,
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
        reason = "tests use numbers of their own and check errors in one line"
    )
)]

pub mod android;
mod counted_starts;
mod dir;
mod engine;
mod error;
mod extent;
mod follow;
mod idle_reclaimer;
mod image;
mod inner;
mod inode;
mod inode_set;
mod map;
mod memory;
mod metadata_cache;
mod open;
mod open_file;
mod pieces;
mod read;
mod repeated_input;
mod source;
mod sparse_bit_set;
mod verify;
mod walk;
mod work;
mod xattr;

pub use dir::{DirEntry, DirEntryRef, ReadDir};
pub use engine::{DecodeWorkers, ImageStats, ReadBuffer, SyncDecompress};
pub use error::{Error, ErrorKind, Result};
pub use extent::{ExtentLocation, ExtentStorage, FileExtent};
pub use follow::{FollowedPath, LastLink};
pub use image::Image;
pub use inode::Inode;
pub use inode_set::InodeSet;
pub use map::FileExtents;
pub use memory::MemoryPool;
pub use open::OpenOptions;
pub use open_file::OpenFile;
pub use pieces::FilePiece;
pub use read::ReadOutcome;
pub use source::{FetcherTotals, FileSource, ImageSource, RemoteStats};
pub use verify::{VerifyEvent, VerifyOptions, VerifyProgress, VerifySummary};
pub use walk::{PathError, TreeWalk, WalkEntry, WalkEvent};
pub use work::WorkMeter;
pub use xattr::Xattr;

// Types of other crates that signatures of this one use. A program that needs more of those crates
// depends on them itself.
pub use ferrofs_codec::Error as DecodeError;
pub use ferrofs_ondisk::compression::{AlgorithmId, CompressionConfig};
pub use ferrofs_ondisk::{
    DataLayout, DeviceSlot, ErrorKind as FormatErrorKind, FileType, Nid, Superblock, Timestamp,
};
pub use ferrofs_workers::counters::HistogramSnapshot;
pub use ferrofs_workers::memory::{
    AllocPolicy, Budget, BudgetStats, Buffer, BufferPoolStats, PagePoolStats,
};
pub use ferrofs_workers::percpu::{PerCpuPool, PerCpuSettings, PerCpuStats};
pub use ferrofs_workers::single_flight::SingleFlightStats;
pub use ferrofs_workers::{CancelToken, Error as WorkersError};

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct ReadmeExamples;

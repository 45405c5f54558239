//! Extracts an EROFS image to a directory of the host, or writes it as a tar.
//!
//! [`extract`] writes an image, or the part that a [`Selection`] names, below one directory:
//! contents with their holes, symlinks, hard links, device nodes, FIFOs and sockets, owners, modes,
//! times in nanoseconds and extended attributes. Metadata that the caller's privileges or the
//! host's file system do not allow is skipped and counted in [`SkippedMetadata`]. [`write_tar`]
//! writes the same entries to a stream.
//!
//! Nothing is written outside the destination, whatever the image contains and whoever changes the
//! destination meanwhile: each system call takes a directory descriptor and one name, and follows
//! no symlink. An entry that fails becomes an [`ExtractEvent::Failed`] and leaves no partial file
//! behind; everything else is still extracted. A cancelled extraction leaves whole files only, and
//! even a process that is killed leaves nothing incomplete under a final name: new directories have
//! temporary names until all below them is whole, and so has a destination that was missing.
//!
//! The caller's thread walks the image and makes directories and links. It and the worker threads
//! write everything else: batches of small entries, and segments of large files. Each thread keeps
//! one buffer of 256 KiB. [`ExtractOptions::max_threads`] limits the number of threads.
//!
//! This crate knows nothing of the format, prints nothing and reads no environment.
//!
//! ```no_run
//! use std::path::Path;
//!
//! use ferrofs_extract::{ExtractEvent, ExtractOptions, extract};
//! use ferrofs_image::Image;
//!
//! let image = Image::open("system.erofs")?;
//! let mut failures = Vec::new();
//! let summary = extract(&image, Path::new("tree"), &ExtractOptions::default(), &mut |event| {
//!     if let ExtractEvent::Failed(error) = event {
//!         failures.push(error);
//!     }
//! })?;
//! println!("{} bytes, {} failures", summary.bytes, failures.len());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod content;
mod deferred_modes;
mod descriptor_path;
mod destination;
mod directory_stack;
mod entry_writer;
mod error;
mod event;
mod extractor;
mod host_entry;
mod large_file;
mod limits;
mod links;
mod metadata;
mod new_directory;
mod open_directory;
mod options;
mod pool;
mod selection;
mod tar;
mod temporary_name;
#[cfg(test)]
mod tests;
mod waypoints;

pub use error::{Error, ErrorKind, Reason, Result};
pub use event::{ExtractEvent, ExtractProgress, ExtractSummary, SkippedMetadata};
pub use extractor::extract;
pub use limits::default_output_limit;
pub use options::{ExistingFiles, ExtractOptions, HolePolicy, OwnerPolicy, WriteTarOptions};
pub use selection::{Selection, measure};
pub use tar::write_tar;

pub use ferrofs_workers::CancelToken;

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct ReadmeExamples;

//! Unpacks an EROFS image into a directory of the host.
//!
//! [`extract`] writes everything an image holds, or the part that a [`Selection`] names, below one
//! directory: contents with their holes, symlinks, hard links, device nodes, FIFOs and sockets,
//! owners, modes, times in nanoseconds and extended attributes. What the caller's rights or the
//! host's file system do not allow is counted in [`SkippedMetadata`] and left out.
//!
//! Nothing is ever written outside of that directory, whatever the image says and whoever changes
//! the directory meanwhile: each step goes from a directory's file descriptor to one name in it,
//! and follows no symlink. An entry that fails becomes an [`ExtractEvent::Failed`] and leaves no partial
//! file behind; everything else is still extracted.
//!
//! The caller's thread walks through the image and makes directories and links; it and further
//! threads, as many as CPUs are granted, write everything else: batches of small entries, segments of
//! large ones. Each thread keeps one buffer of 256 KiB. [`ExtractOptions::max_threads`] says how many.
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

mod batch;
mod content;
mod credentials;
mod destination;
mod directory;
mod directory_stack;
mod entry_writer;
mod error;
mod event;
mod extractor;
mod hard_links;
mod large_file;
mod measure;
mod metadata;
mod new_entry;
mod options;
mod pool;
mod reporter;
mod selection;
mod tar;
#[cfg(test)]
mod tests;
mod worker;

pub use error::{Error, ErrorKind, Reason, Result};
pub use event::{ExtractEvent, ExtractProgress, ExtractSummary, SkippedMetadata};
pub use extractor::extract;
pub use measure::measure;
pub use options::{ExistingFiles, ExtractOptions, HolePolicy, OwnerPolicy, WriteTarOptions};
pub use selection::Selection;
pub use tar::write_tar;

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct ReadmeExamples;

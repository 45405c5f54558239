//! EROFS images as FUSE mounts.
//!
//! [`NegotiatedMount::new`] replies to FUSE_INIT on a mounted device, and [`NegotiatedMount::serve`] serves an image on
//! it until the file system is unmounted. Between both calls the process may enter its [`sandbox`]. The numbers of a
//! running mount are read by [`stats::query`]. The crate knows neither the format nor the protocol: `ferrofs-image` and
//! `ferrofs-fuse` do.
//!
//! ```no_run
//! use ferrofs_fuse::attach::{AttachOptions, attach};
//! use ferrofs_image::Image;
//! use ferrofs_mount::{MountSettings, NegotiatedMount};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let image = Image::open("rootfs.erofs")?;
//! let attachment = attach("/mnt".as_ref(), &AttachOptions::new("rootfs.erofs", "ferrofs"))?;
//! let device = attachment.device().try_clone()?;
//! let settings = MountSettings::default().listeners(4);
//! let mount = NegotiatedMount::new(device, &settings)?.serve(image, |event| eprintln!("{event}"))?;
//! mount.join();
//! # Ok(())
//! # }
//! ```
#![deny(
    unsafe_code,
    clippy::indexing_slicing,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic
)]
#![cfg_attr(
    test,
    allow(
        clippy::arithmetic_side_effects,
        clippy::indexing_slicing,
        clippy::assertions_on_result_states,
        reason = "tests make their own numbers and check errors in one line"
    )
)]

#[cfg(feature = "fuzzing")]
pub mod fuzzing;
mod image_fs;
pub mod sandbox;
mod serve;
mod settings;
pub mod stats;

pub use serve::{NegotiatedMount, ServedMount};
pub use settings::{MountLogEvent, MountSettings, ServingProcess};

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct ReadmeExamples;

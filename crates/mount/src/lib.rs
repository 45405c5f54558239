//! EROFS images as FUSE mounts. [`serve`] takes an image and a mounted device, and answers the kernel from the image
//! until the mount ends. It knows no structure of the format: it asks `image` and speaks through `fuse`.
#![deny(
    unsafe_code,
    clippy::arithmetic_side_effects,
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
        reason = "tests make their own numbers and say in one line what is refused"
    )
)]

mod image_fs;
mod node;
mod notice;
mod serve;
mod settings;

pub use ferrofs_fuse as fuse;
pub use ferrofs_image as image;
pub use notice::Notice;
pub use serve::{Served, serve};
pub use settings::Settings;

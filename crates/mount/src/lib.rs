//! EROFS images as FUSE mounts. [`Ready`] takes a mounted device and greets the kernel; [`Ready::serve`] answers it from
//! an image until the mount ends. In between, the process may enter its [`sandbox`]. It knows no structure of the format: it asks `image` and speaks through `fuse`.
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
        reason = "tests make their own numbers and say in one line what is refused"
    )
)]

mod image_fs;
mod node;
mod notice;
pub mod sandbox;
mod serve;
mod settings;
pub mod stats;

pub use ferrofs_fuse as fuse;
pub use ferrofs_image as image;
pub use notice::Notice;
pub use serve::{Ready, Served};
pub use settings::Settings;

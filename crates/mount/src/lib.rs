//! EROFS images as FUSE mounts. [`NegotiatedMount`] takes a mounted device and greets the kernel; [`NegotiatedMount::serve`] answers it from
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
mod log_event;
mod node;
pub mod sandbox;
mod serve;
mod settings;
pub mod stats;

pub use log_event::MountLogEvent;
pub use serve::{NegotiatedMount, ServedMount};
pub use settings::MountSettings;

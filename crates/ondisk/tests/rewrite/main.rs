//! Every structure of the test images is read and written again; the bytes must be the same.
//!
//! Another builder made the images, so this checks that fields are written where they belong. Structures in compressed data
//! (a metabox, compressed directories) are not checked here, since this crate has no decoder.

#![allow(
    clippy::unwrap_used,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "the test checks each property in one line"
)]

mod image;
mod index;
mod stats;

use std::path::{Path, PathBuf};

use image::ImageCheck;
use stats::RewriteStats;

/// `tests/data`, or the folder that this variable names.
const VARIABLE: &str = "FERROFS_REWRITE_IMAGES";

#[test]
fn what_other_builders_wrote_is_written_again_byte_for_byte() {
    let folder = match std::env::var_os(VARIABLE) {
        Some(path) => PathBuf::from(path),
        None => Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/data"),
    };
    let mut stats = RewriteStats::default();
    let mut images = 0;
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|extension| extension == "erofs") {
            let bytes = std::fs::read(&path).unwrap();
            let start =
                if path.file_stem().is_some_and(|stem| stem == "offset-64k") { 65536 } else { 0 };
            let name = path.file_name().unwrap().to_string_lossy().into_owned();
            ImageCheck::new(&name, &bytes[start..], &|_, _| None).run(&mut stats);
            images += 1;
        }
    }
    println!("{images} images\n{stats}");
    assert!(images > 40, "only {images} images");
    stats.assert_all_kinds_seen();
    assert!(stats.differences.is_empty(), "{:#?}", stats.differences);
}

//! The target of the builder: builds an image of a tree in memory, and reads it back.
//!
//! Input: a [`BuildCase`].

use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::Arc;

use ferrofs_builder::tree::Tree;
use ferrofs_builder::{BuildOptions, CancelToken, ErrorKind, NoopObserver, OutputMode, build};
use rustix::fs::{MemfdFlags, memfd_create};

use crate::build_case::BuildCase;
use crate::image_input::{open, problems};
use crate::listing;

/// Builds an image and compares it with its tree.
pub fn build_image(bytes: &[u8]) {
    let case = BuildCase::decode(bytes);
    let Some(image) = build_in_memory(&case.tree, &case.options) else { return };
    if case.is_repeated {
        let again = build_in_memory(&case.tree, &case.options.clone().jobs(Some(2)));
        assert!(again.as_ref() == Some(&image), "two builds of one tree differ");
    }
    let opened = open(&(Arc::new(image) as _), 0).expect("an image that was just built");
    assert_eq!(problems(&opened), 0, "a new image is not sound");
    let mut wanted = listing::of_tree(&case.tree);
    let Some(found) = listing::of_image(&opened) else {
        return assert!(listing::may_be_too_much(&wanted), "a small tree cannot be listed");
    };
    assert!(!found.has_problems);
    let mut found = found.listing;
    if case.options.root_xattr_bytes > 0 {
        for listing in [&mut found, &mut wanted] {
            listing.remove(&[][..]);
        }
    }
    listing::compare(&wanted, &found, |_| false);
}

/// The bytes of the image that an input means; `None` if there can be none.
#[must_use]
pub fn built_image(bytes: &[u8]) -> Option<Vec<u8>> {
    let case = BuildCase::decode(bytes);
    build_in_memory(&case.tree, &case.options)
}

fn build_in_memory(tree: &Tree, options: &BuildOptions) -> Option<Vec<u8>> {
    let file = File::from(memfd_create("image", MemfdFlags::CLOEXEC).expect("a file in memory"));
    let path = PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd()));
    let options = options.clone().output_mode(OutputMode::InPlace { offset: 0 });
    match build(tree, &options, &path, &NoopObserver, &CancelToken::new()) {
        Ok(report) => {
            let length = file.metadata().expect("a file in memory").len();
            assert_eq!(report.bytes, length);
            let mut image = vec![0; usize::try_from(length).expect("a small image")];
            file.read_exact_at(&mut image, 0).expect("a file in memory");
            Some(image)
        }
        Err(error) => {
            assert!(!error.to_string().is_empty());
            assert!(!matches!(error.kind(), ErrorKind::Internal(_)), "{error}");
            None
        }
    }
}

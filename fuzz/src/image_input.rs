//! An image from a few bytes of input, for the targets that do something with a whole image: one of the test images with
//! changes to its metadata, as [`patched`](crate::patched) has it, or the bytes of an image.
//!
//! Input: a number; below [`PATCHED_IMAGES`] it is that of the image to change, and changes follow. Any other number is
//! followed by an image.

use std::sync::Arc;

use ferrofs_image::{
    DecodeWorkers, Image, ImageSource, MemoryPool, OpenOptions, VerifyEvent, VerifyOptions,
};

use crate::patched::{PATCHED_IMAGES, patch};

/// The memory of an image: enough for every codec, and the same on every machine.
const MEMORY_BYTES: u64 = 48 << 20;

/// The image that an input means.
pub(crate) fn decode(bytes: &[u8]) -> Vec<u8> {
    match bytes.split_first() {
        Some((number, _)) if *number < PATCHED_IMAGES => patch(bytes),
        Some((_, image)) => image.to_vec(),
        None => Vec::new(),
    }
}

/// Options with which an image starts no thread, so that a run costs no more than its work.
pub(crate) fn open_options() -> OpenOptions {
    let memory = MemoryPool::new(MEMORY_BYTES).expect("more than the least");
    OpenOptions::new()
        .ignore_checksum(true)
        .memory(&memory)
        .retain_memory(true)
        .workers(&DecodeWorkers::none())
}

/// Opens an image, which has itself for each of its devices.
pub(crate) fn open(source: &Arc<dyn ImageSource>, devices: usize) -> Option<Image> {
    match open_options().open_sources(Arc::clone(source), vec![Arc::clone(source); devices]) {
        Ok(image) => Some(image),
        Err(error) => {
            assert!(!error.to_string().is_empty());
            None
        }
    }
}

/// How many problems a verification finds.
pub(crate) fn problems(image: &Image) -> u64 {
    let mut problems = 0;
    let options = VerifyOptions::new().max_threads(1);
    let summary = image.verify(&options, &mut |event| {
        problems += u64::from(matches!(event, VerifyEvent::Problem(_)));
    });
    let summary = summary.expect("a verification that nobody cancels");
    assert_eq!(summary.problems, problems);
    problems
}

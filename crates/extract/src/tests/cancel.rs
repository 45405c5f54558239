//! A cancelled extraction leaves whole files only, wherever the cancellation meets it.

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use ferrofs_image::{Image, OpenOptions};
use ferrofs_workers::CancelToken;

use super::faults::{HookedSource, golden};
use super::image_fixture::ImageFixture;
use super::tree::snapshot_tree;
use super::{ExtractRun, extract_with_options, extract_with_watchdog, new_folder};
use crate::{ErrorKind, ExtractOptions};

/// The bytes of a tree with small files, files that are cut into segments, and a file that is read
/// in many steps.
fn image_bytes() -> Vec<u8> {
    let mut made = ImageFixture::new();
    for number in 0..4u8 {
        let directory = made.directory(0, &format!("d{number}"));
        made.file(directory, "small", &vec![b'a' + number; 5_000]);
        made.file(directory, "cut", &vec![b'A' + number; 100_000]);
    }
    made.file(0, "long", &vec![b'x'; 3 << 20]);
    made.bytes()
}

/// Extracts and calls `hook` at one read of the image; also tells how many reads there were.
fn extract_with_hook(
    bytes: &[u8],
    destination: &Path,
    workers: usize,
    at_read: u64,
    hook: impl Fn(&CancelToken) + Send + Sync + 'static,
) -> (ExtractRun, u64) {
    let token = CancelToken::new();
    let in_hook = token.clone();
    let hook = move || hook(&in_hook);
    let source = HookedSource { bytes: bytes.to_vec(), reads: AtomicU64::new(0), at_read, hook };
    let source = Arc::new(source);
    let sources = Arc::clone(&source) as _;
    let image: Image = OpenOptions::new().open_sources(sources, Vec::new()).unwrap();
    let options = ExtractOptions::new().cancel(&token);
    let run = extract_with_options(&image, destination, workers, options);
    (run, source.reads.load(Ordering::Relaxed))
}

fn is_cancelled(run: &ExtractRun) -> bool {
    matches!(run.result.as_ref().map_err(crate::Error::kind), Err(ErrorKind::Cancelled))
}

#[test]
fn a_cancel_at_any_read_leaves_no_file_that_is_not_whole() {
    for bytes in [image_bytes(), golden("lz4-fragments.erofs")] {
        let whole = new_folder();
        let sound = OpenOptions::new().open_sources(Arc::new(bytes.clone()), Vec::new()).unwrap();
        extract_with_watchdog(&sound, whole.path(), 0).result.unwrap();
        let expected = snapshot_tree(whole.path());
        for workers in [0, 1, 3] {
            let mut cancelled = 0;
            for at_read in 0.. {
                let folder = new_folder();
                let (run, reads) =
                    extract_with_hook(&bytes, folder.path(), workers, at_read, CancelToken::cancel);
                assert!(run.failures.is_empty(), "read {at_read}: {:?}", run.failures);
                for (path, seen) in snapshot_tree(folder.path()) {
                    let whole = &expected[&path].contents;
                    assert!(seen.contents == *whole, "{workers}, read {at_read}: {path:?}");
                }
                if reads <= at_read {
                    run.result.unwrap();
                    break;
                }
                cancelled += u64::from(is_cancelled(&run));
            }
            assert!(cancelled > 5, "only {cancelled} were cancelled");
        }
    }
}

#[test]
fn a_cancel_in_the_middle_of_a_file_does_not_wait_for_its_end() {
    let mut made = ImageFixture::new();
    made.file(0, "long", &vec![b'x'; 8 << 20]);
    let bytes = made.bytes();
    let folder = new_folder();
    let (run, total) = extract_with_hook(&bytes, folder.path(), 0, u64::MAX, CancelToken::cancel);
    run.result.unwrap();
    let folder = new_folder();
    let at_read = total / 2;
    let (run, reads) = extract_with_hook(&bytes, folder.path(), 0, at_read, CancelToken::cancel);
    assert!(is_cancelled(&run), "{:?}", run.result);
    assert!(total > 20 && reads <= at_read + 3, "{reads} of {total} reads, cancelled at {at_read}");
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
}

#[test]
fn a_file_that_is_not_whole_and_cannot_be_removed_is_named() {
    let mut made = ImageFixture::new();
    made.file(0, "long", &vec![b'x'; 8 << 20]);
    let bytes = made.bytes();
    for workers in [0, 2] {
        let folder = new_folder();
        let file = folder.path().join("long");
        let hook = move |token: &CancelToken| {
            // A directory in its place cannot be removed as a file.
            if fs::remove_file(&file).is_ok() {
                fs::create_dir(&file).unwrap();
            }
            token.cancel();
        };
        let (run, _) = extract_with_hook(&bytes, folder.path(), workers, 20, hook);
        assert!(is_cancelled(&run), "{:?}", run.result);
        let failures: Vec<_> = run.failures.iter().map(ToString::to_string).collect();
        assert_eq!(failures.len(), 1, "{failures:?}");
        assert!(failures[0].starts_with("/long: cannot remove the partial file"), "{failures:?}");
    }
}

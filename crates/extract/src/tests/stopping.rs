//! Errors after which no further entry can succeed: they end the extraction whatever else fails, and
//! what they interrupt is no damage of the image.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::{fs, io};

use ferrofs_image::{Image, ImageSource, OpenOptions};
use ferrofs_workers::CancelToken;

use super::fixture::{ImageFixture, snapshot_tree};
use super::{extract_with_options, new_folder};
use crate::{ErrorKind, ExtractOptions};

/// Asks `check` before each read of a range.
struct CheckedSource<F> {
    bytes: Vec<u8>,
    check: F,
}

impl<F> std::fmt::Debug for CheckedSource<F> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("CheckedSource")
    }
}

impl<F: Fn(Range<usize>) -> io::Result<()> + Send + Sync> ImageSource for CheckedSource<F> {
    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
        // Few bytes at a time, so that a read belongs to one segment.
        let count = buffer.len().min(4 << 10);
        let start = usize::try_from(offset).unwrap();
        (self.check)(start..start + count)?;
        self.bytes.read_at(offset, &mut buffer[..count])
    }

    fn length(&self) -> u64 {
        self.bytes.length()
    }
}

fn open_with(
    bytes: Vec<u8>,
    check: impl Fn(Range<usize>) -> io::Result<()> + Send + Sync + 'static,
) -> Image {
    let source = Arc::new(CheckedSource { bytes, check });
    OpenOptions::new().open_sources(source, Vec::new()).unwrap()
}

/// The contents of a file whose segments differ.
fn contents(length: usize) -> Vec<u8> {
    (0..length).map(|at| b'a' + u8::try_from(at / 4096 % 26).unwrap()).collect()
}

/// Opens an image in which the block of a file that is full of `letter` cannot be read.
fn open_damaged(made: &ImageFixture, letter: u8) -> Image {
    let bytes = made.bytes();
    let block = bytes.chunks(4096).position(|block| block.iter().all(|byte| *byte == letter));
    let start = block.unwrap() * 4096;
    let damaged = start..start + 4096;
    open_with(bytes, move |read| {
        let is_damaged = read.start < damaged.end && damaged.start < read.end;
        if is_damaged { Err(io::Error::other("injected")) } else { Ok(()) }
    })
}

#[test]
fn a_limit_ends_the_extraction_though_the_same_file_is_damaged_and_nothing_sound_is_called_so() {
    let mut made = ImageFixture::new();
    made.file(0, "damaged", &contents(100_000));
    for number in 0..4 {
        made.file(0, &format!("sound-{number}"), &contents(100_000));
    }
    for workers in [0, 1, 3] {
        for _ in 0..10 {
            let folder = new_folder();
            let options = ExtractOptions::new().max_output(Some(150_000));
            let image = open_damaged(&made, b'b');
            let run = extract_with_options(&image, folder.path(), workers, options);
            let error = run.result.unwrap_err();
            assert!(matches!(error.kind(), ErrorKind::OutputLimit { .. }), "{error}");
            for failure in &run.failures {
                assert!(matches!(failure.kind(), ErrorKind::Image(_)), "{failure}");
            }
            for entry in snapshot_tree(folder.path()).into_values() {
                let is_file = entry.mode & 0o170_000 == 0o100_000;
                assert!(!is_file || entry.contents == contents(100_000));
            }
        }
    }
}

#[test]
fn a_limit_and_a_file_that_is_left_are_both_reported() {
    let mut made = ImageFixture::new();
    made.file(0, "long", &contents(128 << 10));
    for workers in [0, 2] {
        let folder = new_folder();
        // In a destination that existed it would have no name before it is whole.
        let (target, file) = (folder.path().join("tree"), folder.path().join(".tree.part/long"));
        let image = open_with(made.bytes(), move |_| {
            // A directory in its place cannot be removed as a file.
            if fs::remove_file(&file).is_ok() {
                fs::create_dir(&file).unwrap();
            }
            Ok(())
        });
        let options = ExtractOptions::new().max_output(Some(1000));
        let run = extract_with_options(&image, &target, workers, options);
        let error = run.result.unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::OutputLimit { .. }), "{error}");
        let failures: Vec<_> = run.failures.iter().map(ToString::to_string).collect();
        assert_eq!(failures.len(), 1, "{failures:?}");
        assert!(failures[0].starts_with("/long: cannot remove the partial file"), "{failures:?}");
    }
}

#[test]
fn bytes_of_files_that_failed_and_were_removed_are_not_counted() {
    let mut made = ImageFixture::new();
    made.file(0, "damaged", &contents(100_000));
    made.file(0, "small", b"small");
    for workers in [0, 1, 3] {
        let folder = new_folder();
        let image = open_damaged(&made, b'u');
        let run = extract_with_options(&image, folder.path(), workers, ExtractOptions::new());
        let summary = run.result.unwrap();
        assert_eq!((summary.failures, summary.files, summary.bytes), (1, 1, 5));
    }
}

/// As of a server that ends with the command that is cancelled.
#[test]
fn a_read_that_fails_after_a_cancellation_is_no_damage() {
    let mut made = ImageFixture::new();
    for number in 0..4 {
        let directory = made.directory(0, &format!("directory-{number}"));
        made.file(directory, "file", &contents(10_000));
    }
    let bytes = made.bytes();
    for workers in [0, 2] {
        let mut cancelled = 0;
        for nth in 0.. {
            let (cancel, left) = (CancelToken::new(), Arc::new(AtomicU64::new(u64::MAX)));
            let image = open_with(bytes.clone(), {
                let (cancel, left) = (cancel.clone(), Arc::clone(&left));
                move |_| {
                    let one_less = |left: u64| left.checked_sub(1);
                    let relaxed = Ordering::Relaxed;
                    left.fetch_update(relaxed, relaxed, one_less).map(|_| ()).map_err(|_| {
                        cancel.cancel();
                        io::Error::other("the server is gone")
                    })
                }
            });
            left.store(nth, Ordering::Relaxed);
            let folder = new_folder();
            let options = ExtractOptions::new().cancel(&cancel);
            let run = extract_with_options(&image, folder.path(), workers, options);
            assert!(run.failures.is_empty(), "{workers} workers, read {nth}: {:?}", run.failures);
            if !cancel.is_cancelled() {
                run.result.unwrap();
                break;
            }
            cancelled += 1;
            let error = run.result.unwrap_err();
            assert!(matches!(error.kind(), ErrorKind::Cancelled), "read {nth}: {error}");
        }
        assert!(cancelled > 8, "only {cancelled} reads");
    }
}

//! Extraction by several threads: it does what one thread does, whatever the tree looks like and
//! whatever fails on the way. These tests choose the number of threads themselves, and cut files into
//! segments of 8 KiB.

mod cancel;
mod faults;
mod image_fixture;
mod parallel;
mod tree;

use std::path::Path;
use std::sync::mpsc;
use std::time::Duration;

use ferrofs_image::Image;
use tempfile::TempDir;

use crate::extractor::extract_with;
use crate::pool::ThreadLimit;
use crate::{Error, ExtractEvent, ExtractOptions, ExtractSummary, Result};

/// An extraction that takes longer hangs. The slowest one here takes a second.
const WATCHDOG: Duration = Duration::from_secs(120);

/// What came of an extraction.
#[derive(Debug)]
struct ExtractRun {
    result: Result<ExtractSummary>,
    failures: Vec<Error>,
}

impl ExtractRun {
    /// All errors.
    fn errors(&self) -> impl Iterator<Item = &Error> {
        self.failures.iter().chain(self.result.as_ref().err())
    }

    /// The paths of all errors, in an order that does not depend on threads.
    fn failed_paths(&self) -> Vec<String> {
        let path = |error: &Error| String::from_utf8_lossy(error.path()).into_owned();
        let mut paths: Vec<String> = self.errors().map(path).collect();
        paths.sort();
        paths
    }
}

/// Extracts with so many threads beside the caller's, and panics if that takes too long.
fn extract_with_watchdog(image: &Image, destination: &Path, workers: usize) -> ExtractRun {
    extract_with_options(image, destination, workers, ExtractOptions::new())
}

fn extract_with_options(
    image: &Image,
    destination: &Path,
    workers: usize,
    options: ExtractOptions,
) -> ExtractRun {
    let (image, destination) = (image.clone(), destination.to_owned());
    with_watchdog(move || {
        let mut failures = Vec::new();
        let threads = ThreadLimit::exactly(workers);
        let on_event = &mut |event| {
            if let ExtractEvent::Failed(error) = event {
                failures.push(error);
            }
        };
        let result = extract_with(&image, &destination, &options, threads, on_event);
        ExtractRun { result, failures }
    })
}

/// Runs something on a thread of its own and panics if it does not end.
fn with_watchdog<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    let (sender, receiver) = mpsc::channel();
    let thread = std::thread::Builder::new().spawn(move || sender.send(work()).ok()).unwrap();
    let result = receiver.recv_timeout(WATCHDOG).expect("the extraction hangs or panicked");
    thread.join().unwrap();
    result
}

/// A folder for one test, in memory where the host has such a place: hundreds of trees are written.
fn new_folder() -> TempDir {
    tempfile::tempdir_in("/dev/shm").or_else(|_| TempDir::new()).unwrap()
}

/// The images of tests/data that open without devices or offsets.
fn golden_images() -> Vec<(String, Image)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/data");
    let mut images: Vec<(String, Image)> = std::fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "erofs"))
        .filter_map(|path| {
            let name = path.file_name().unwrap().to_str().unwrap().to_owned();
            Some((name, Image::open(path).ok()?))
        })
        .collect();
    images.sort_by(|(a, _), (b, _)| a.cmp(b));
    images
}

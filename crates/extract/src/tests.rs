//! Extraction by several threads: the result is that of one thread, for every tree and with every
//! failure. These tests choose the number of threads, and files are cut into segments of 8 KiB.

use std::fs;
use std::path::Path;
use std::sync::mpsc;
use std::time::Duration;

use ferrofs_image::Image;

use self::fixture::{ImageFixture, TestFolder, assert_same, snapshot_tree};
use crate::extractor::extract_with;
use crate::pool::ThreadLimit;
use crate::{
    Error, ErrorKind, ExtractEvent, ExtractOptions, ExtractSummary, Result, WriteTarOptions,
    write_tar,
};

mod completion;
mod faults;
mod fixture;
mod rights;
mod staging;
mod stopping;

/// An extraction that takes longer hangs. The slowest one here takes a second.
const WATCHDOG: Duration = Duration::from_secs(120);

/// The result of an extraction.
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

/// Extracts with this many threads beside the caller's, and panics if that takes too long.
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

fn new_folder() -> TestFolder {
    TestFolder::new()
}

/// The images of tests/data that open without devices or offsets.
fn golden_images() -> Vec<(String, Image)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/data");
    let mut images: Vec<(String, Image)> = fs::read_dir(folder)
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

/// Extracts with one, two and four threads, compares the results, and returns the summary.
fn assert_threads_agree(image: &Image, about: &str) -> ExtractSummary {
    let folder = new_folder();
    let single = folder.path().join("0");
    let expected = extract_with_watchdog(image, &single, 0);
    for workers in [1, 3] {
        let about = format!("{about}, {workers} workers");
        let tree = folder.path().join(workers.to_string());
        let extracted = extract_with_watchdog(image, &tree, workers);
        assert_eq!(extracted.failed_paths(), expected.failed_paths(), "{about}");
        let (ours, theirs) = (extracted.result.unwrap(), expected.result.as_ref().unwrap());
        assert_eq!(ours.entries(), theirs.entries(), "{about}");
        if expected.failures.is_empty() {
            assert_eq!(&ours, theirs, "{about}");
        }
        assert_same(&tree, &single, &about);
    }
    expected.result.unwrap()
}

/// A-C1, the part about bytes: whatever the number of threads, the tree is the same.
#[test]
fn several_threads_extract_every_golden_image_as_one_does() {
    let images = golden_images();
    assert!(images.len() > 50, "{} images", images.len());
    for (name, image) in images {
        assert_threads_agree(&image, &name);
    }
}

fn bytes(variant: usize, length: usize) -> Vec<u8> {
    (0..length).map(|at| (at.wrapping_mul(variant + 7) >> 5).to_le_bytes()[0]).collect()
}

#[test]
fn ten_thousand_files_in_one_directory_are_all_written() {
    let mut made = ImageFixture::new();
    for number in 0..10_000 {
        made.file(0, &format!("file-{number:05}"), &bytes(number, number % 300));
    }
    let summary = assert_threads_agree(&made.open(), "flat");
    assert_eq!(summary.files, 10_000);
}

#[test]
fn a_deep_tree_with_files_on_every_level_is_written_with_few_descriptors() {
    let mut made = ImageFixture::new();
    let mut parent = 0;
    for level in 0..400 {
        made.file(parent, "a", &bytes(level, 100));
        made.file(parent, "large", &bytes(level, 40_000));
        parent = made.directory(parent, "d");
    }
    let summary = assert_threads_agree(&made.open(), "deep");
    assert_eq!((summary.files, summary.directories), (800, 401));
}

/// The first name may still be written when the others come, in other directories, more of them
/// than can wait.
#[test]
fn names_of_one_file_in_many_directories_are_links_to_it() {
    let mut made = ImageFixture::new();
    let long = made.file(0, "a-long", &bytes(1, 1 << 20));
    let short = made.file(0, "a-short", &bytes(2, 10));
    for number in 0..150 {
        let directory = made.directory(0, &format!("d{number:03}"));
        made.link(directory, "long", long);
        made.link(directory, "short", short);
        made.file(directory, "own", b"own");
        made.link(directory, "third", long);
    }
    let folder = new_folder();
    let summary = assert_threads_agree(&made.open(), "links");
    assert_eq!((summary.files, summary.hard_links), (152, 450));
    assert_eq!(summary.bytes, (1 << 20) + 10 + 450);
    extract_with_watchdog(&made.open(), folder.path(), 3).result.unwrap();
    let tree = snapshot_tree(folder.path());
    assert_eq!(tree.values().map(|seen| seen.mtime.0).min(), Some(1_000_000_000));
}

#[test]
fn names_of_a_file_that_cannot_be_read_fail_each_for_itself() {
    let mut made = ImageFixture::new();
    let broken = made.unreadable(0, "a", 100_000);
    for number in 0..100 {
        let directory = made.directory(0, &format!("d{number:02}"));
        made.link(directory, "again", broken);
        made.file(directory, "b", b"right");
    }
    let image = made.open();
    let folder = new_folder();
    assert_threads_agree(&image, "broken links");
    let extracted = extract_with_watchdog(&image, folder.path(), 3);
    assert_eq!(extracted.failures.len(), 101);
    let is_image = |error: &Error| matches!(error.kind(), ErrorKind::Image(_));
    assert!(extracted.failures.iter().all(is_image));
    assert_eq!(extracted.result.unwrap().files, 100);
}

#[test]
fn files_that_cannot_be_read_leave_nothing_and_take_nobody_along() {
    let mut made = ImageFixture::new();
    let directory = made.directory(0, "d");
    for number in 0..300 {
        let name = format!("{number:03}");
        match number % 7 {
            3 => made.unreadable(directory, &name, 50_000),
            5 => made.unreadable(directory, &name, 10),
            _ => made.file(directory, &name, &bytes(number, number * 100)),
        };
    }
    let image = made.open();
    assert_threads_agree(&image, "failing");
    let folder = new_folder();
    let extracted = extract_with_watchdog(&image, folder.path(), 3);
    assert_eq!(extracted.failures.len(), 86);
    assert_eq!(fs::read_dir(folder.path().join("d")).unwrap().count(), 214);
}

/// Directories get their times after all their entries, whichever thread writes them.
#[test]
fn every_directory_has_the_time_of_the_image() {
    let mut made = ImageFixture::new();
    let mut expected = Vec::new();
    for number in 0..200 {
        let directory = made.directory(0, &format!("d{number:03}"));
        expected.push((format!("d{number:03}"), 1_000_000_000 + directory as u64));
        for file in 0..number % 20 {
            made.file(directory, &format!("f{file}"), &bytes(file, file * 3_000));
        }
    }
    let folder = new_folder();
    extract_with_watchdog(&made.open(), folder.path(), 3).result.unwrap();
    let tree = snapshot_tree(folder.path());
    for (name, mtime) in expected {
        let seen = tree[Path::new(&name)].mtime;
        assert_eq!(seen, (i64::try_from(mtime).unwrap(), 0), "{name}");
    }
}

/// Each name led through all levels to the first one: an image of 2 MiB took more than five minutes.
#[test]
fn links_to_deep_files_open_the_way_once_for_each_directory_or_count_it_as_work() {
    for (is_mixed, is_limited) in [(false, false), (true, true)] {
        let mut made = ImageFixture::new();
        let mut deep = |top| {
            let mut parent = made.directory(0, top);
            (0..100).for_each(|_| parent = made.directory(parent, "d"));
            [0, 1].map(|number| made.file(parent, &number.to_string(), b"deep"))
        };
        let (a, b) = (deep("a"), deep("b"));
        for number in 0..100 {
            let other = if is_mixed { b[0] } else { a[1] };
            made.link(0, &format!("z{number:03}-first"), a[0]);
            made.link(0, &format!("z{number:03}-other"), other);
        }
        let folder = new_folder();
        let options = ExtractOptions::new().max_work(Some(1 << 20));
        let run = extract_with_options(&made.open(), folder.path(), 0, options);
        if is_limited {
            let error = run.result.unwrap_err().to_string();
            assert!(error.contains("hard links to files in deep directories"), "{error}");
        } else {
            assert_eq!(run.result.unwrap().hard_links, 200);
        }
    }
}

/// Names that no sound image has made an image of 64 KiB write 16 GiB. As many names as there are links are
/// free.
#[test]
fn contents_of_more_names_than_links_are_work() {
    for (links, is_limited) in [(1, true), (2, true), (20, false)] {
        let mut made = ImageFixture::new();
        let file = made.file(0, "n00", &bytes(1, 1 << 20));
        (1..20).for_each(|number| made.link(0, &format!("n{number:02}"), file));
        made.set_links(file, links);
        let image = made.open();
        let folder = new_folder();
        let options = ExtractOptions::new().max_work(Some(6 << 20));
        let run = extract_with_options(&image, folder.path(), 0, options);
        let is_limit = |error: &Error| error.to_string().contains("6291456");
        assert_eq!(run.errors().any(is_limit), is_limited, "{links}: {:?}", run.errors().next());
        let options = WriteTarOptions::new().max_work(Some(6 << 20));
        let (mut tar, mut limits) = (Vec::new(), 0);
        let written = write_tar(&image, &mut tar, &options, &mut |event| {
            if let ExtractEvent::Failed(error) = event {
                limits += usize::from(is_limit(&error));
            }
        });
        limits += usize::from(written.is_err_and(|error| is_limit(&error)));
        assert_eq!(limits > 0, is_limited, "{links}");
        assert!(tar.len() < 12 << 20, "{links}: {}", tar.len());
    }
}

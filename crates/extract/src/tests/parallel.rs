//! Several threads extract what one does: trees, summaries and failures are the same.

use std::fs;
use std::path::Path;

use ferrofs_image::Image;

use super::image_fixture::ImageFixture;
use super::tree::{assert_same, snapshot_tree};
use super::{extract_with_watchdog, golden_images, new_folder};
use crate::{ErrorKind, ExtractSummary};

/// Extracts with one, two and four threads, compares, and answers the summary.
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

fn bytes(seed: usize, length: usize) -> Vec<u8> {
    (0..length).map(|at| (at.wrapping_mul(seed + 7) >> 5).to_le_bytes()[0]).collect()
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

/// The first name may still be written when the others come, in other directories, more of them than
/// can wait.
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
    let is_image = |error: &crate::Error| matches!(error.kind(), ErrorKind::Image(_));
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

/// Directories get their times after everything in them, whoever writes it.
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

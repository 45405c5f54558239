//! The library's promises that need a callback or a summary to be seen: somebody who changes the
//! destination meanwhile, what is counted, and what is measured beforehand.
#![allow(clippy::unwrap_used, reason = "what goes wrong in a test fails the test")]

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use ferrofs_extract::{
    Error, ErrorKind, ExistingFiles, ExtractEvent, ExtractOptions, ExtractSummary, Selection,
};
use ferrofs_extract::{extract, measure};
use ferrofs_image::Image;
use ferrofs_workers::CancelToken;
use tempfile::TempDir;

fn open(name: &str) -> Image {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/data");
    Image::open(folder.join(name)).unwrap()
}

fn run(
    name: &str,
    destination: &Path,
    options: &ExtractOptions,
) -> (Result<ExtractSummary, Error>, Vec<Error>) {
    let mut failures = Vec::new();
    let summary = extract(&open(name), destination, options, &mut |event| {
        if let ExtractEvent::Failed(error) = event {
            failures.push(error);
        }
    });
    (summary, failures)
}

/// Moves every directory of `tree` away and puts a symlink to `outside` in its place.
fn swap_directories(tree: &Path, outside: &Path) {
    let entries: Vec<PathBuf> =
        fs::read_dir(tree).unwrap().map(|entry| entry.unwrap().path()).collect();
    for path in entries {
        let is_moved = path.extension().is_some_and(|extension| extension == "moved");
        if path.symlink_metadata().unwrap().is_dir() && !is_moved {
            fs::rename(&path, path.with_extension("moved")).unwrap();
            symlink(outside, path).unwrap();
        }
    }
}

#[test]
fn directories_swapped_for_symlinks_meanwhile_lead_nowhere() {
    let folder = TempDir::new().unwrap();
    let outside = folder.path().join("outside");
    fs::create_dir(&outside).unwrap();
    for (name, existing) in [("new", ExistingFiles::Refuse), ("old", ExistingFiles::Replace)] {
        let tree = folder.path().join(name);
        fs::create_dir(&tree).unwrap();
        let options = ExtractOptions::new().existing(existing);
        let mut events = 0;
        extract(&open("lz4.erofs"), &tree, &options, &mut |event| {
            if matches!(event, ExtractEvent::Progress(_)) {
                swap_directories(&tree, &outside);
                events += 1;
            }
        })
        .unwrap();
        assert!(events > 40);
        assert_eq!(fs::read_dir(&outside).unwrap().count(), 0, "{existing:?}");
    }
}

#[test]
fn hard_links_to_a_file_that_was_swapped_become_copies() {
    let folder = TempDir::new().unwrap();
    let tree = folder.path().join("tree");
    fs::create_dir(&tree).unwrap();
    let mut is_swapped = false;
    let summary = extract(&open("plain.erofs"), &tree, &ExtractOptions::default(), &mut |event| {
        if matches!(event, ExtractEvent::Progress(now) if now.entries == 1) && !is_swapped {
            let other = folder.path().join("other");
            fs::write(&other, "another file").unwrap();
            fs::rename(other, tree.join("a.txt")).unwrap();
            is_swapped = true;
        }
    })
    .unwrap();
    assert!(is_swapped);
    assert_eq!((summary.hard_links, summary.skipped.copied_links), (0, 1));
    assert_eq!(fs::metadata(tree.join("linked")).unwrap().len(), 3000);
}

#[test]
fn a_cancelled_extraction_ends_and_leaves_whole_files() {
    let folder = TempDir::new().unwrap();
    let whole = folder.path().join("whole");
    let (summary, _) = run("demo.erofs", &whole, &ExtractOptions::default());
    // Several threads may be done with everything before the first of them is heard of.
    for (max_threads, most) in [(Some(1), summary.unwrap().files - 1), (None, u64::MAX)] {
        let tree = folder.path().join(format!("{max_threads:?}"));
        let token = CancelToken::new();
        let options = ExtractOptions::new().cancel(&token).max_threads(max_threads);
        let mut failures = 0;
        let error = extract(&open("demo.erofs"), &tree, &options, &mut |event| match event {
            ExtractEvent::Progress(_) => token.cancel(),
            ExtractEvent::Failed(_) => failures += 1,
            _ => {}
        })
        .unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::Cancelled), "{error}");
        assert_eq!((failures, error.to_string().as_str()), (0, "cancelled"));
        let files = files(&tree);
        assert!(files.len() as u64 <= most, "{}", files.len());
        for file in files {
            let twin = whole.join(file.strip_prefix(&tree).unwrap());
            assert!(fs::read(&file).unwrap() == fs::read(twin).unwrap(), "{}", file.display());
        }
    }
}

/// Every regular file below.
fn files(tree: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    let mut directories = vec![tree.to_owned()];
    while let Some(directory) = directories.pop() {
        for entry in fs::read_dir(directory).unwrap().map(Result::unwrap) {
            let kind = entry.file_type().unwrap();
            if kind.is_dir() {
                directories.push(entry.path());
            } else if kind.is_file() {
                files.push(entry.path());
            }
        }
    }
    files
}

#[test]
fn the_summary_counts_everything_once() {
    let folder = TempDir::new().unwrap();
    let (summary, failures) = run("plain.erofs", folder.path(), &ExtractOptions::default());
    let summary = summary.unwrap();
    assert!(failures.is_empty());
    assert_eq!((summary.directories, summary.symlinks, summary.hard_links), (4, 2, 1));
    assert_eq!(summary.special + summary.skipped.special, 3);
    assert_eq!(summary.entries() + summary.skipped.special, 29);
}

#[test]
fn what_is_measured_is_what_gets_extracted() {
    for name in ["plain.erofs", "lz4-dedupe.erofs", "lz4.erofs"] {
        let folder = TempDir::new().unwrap();
        let total = measure(&open(name), &Selection::default(), &CancelToken::new());
        let mut last = None;
        extract(&open(name), folder.path(), &ExtractOptions::default(), &mut |event| {
            if let ExtractEvent::Progress(now) = event {
                last = Some(now);
            }
        })
        .unwrap();
        assert_eq!(last, Some(total), "{name}");
    }
}

#[test]
fn a_part_is_measured_as_a_part() {
    let selection = Selection::new(["sub/more", "x"]);
    let total = measure(&open("plain.erofs"), &selection, &CancelToken::new());
    assert_eq!((total.entries, total.bytes), (10, 40 + 160 + 360 + 640 + 1000 + 1440 + 1960 + 1));
}

#[test]
fn a_cancellation_ends_the_measurement() {
    let cancel = CancelToken::new();
    cancel.cancel();
    let total = measure(&open("plain.erofs"), &Selection::default(), &cancel);
    assert_eq!(total.entries, 0);
}

#[test]
fn a_destination_with_entries_is_refused_untouched() {
    let folder = TempDir::new().unwrap();
    fs::write(folder.path().join("mine"), "").unwrap();
    let (result, _) = run("plain.erofs", folder.path(), &ExtractOptions::default());
    assert!(matches!(result.unwrap_err().kind(), ErrorKind::NotEmpty));
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
}

#[test]
fn a_destination_that_is_a_file_is_an_error() {
    let folder = TempDir::new().unwrap();
    let file = folder.path().join("file");
    fs::write(&file, "").unwrap();
    let (result, _) = run("plain.erofs", &file, &ExtractOptions::default());
    assert!(matches!(result.unwrap_err().kind(), ErrorKind::Output { .. }));
}

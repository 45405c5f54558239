//! Reading in every way gives the same bytes: any range, many threads, a medium that fails.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use ferrofs_image::{
    CancelToken, Error, ErrorKind, ExtentStorage, FileExtent, FilePiece, Image, ImageSource, Inode,
    OpenOptions, VerifyEvent, VerifyOptions,
};

use crate::lz4_image::XorshiftRng;
use crate::manifest::ImageSet;
use crate::sources::{files_of, whole};

fn check_ranges(image: &Image, inode: &Inode, numbers: &mut XorshiftRng, rounds: usize) {
    let expected = whole(image, inode).unwrap();
    for _ in 0..rounds {
        let offset = numbers.below(inode.size() + 2);
        let bound = if numbers.below(2) == 0 { 64 } else { 100_000 };
        let length = usize::try_from(numbers.below(bound)).unwrap();
        let mut buffer = vec![0xa5u8; length];
        let count = image.read_at(inode, offset, &mut buffer).unwrap();
        let start = expected.len().min(usize::try_from(offset).unwrap());
        let end = expected.len().min(start + length);
        assert_eq!(count, end - start, "nid {} at {offset}", inode.nid());
        assert!(buffer[..count] == expected[start..end], "nid {} at {offset}", inode.nid());
    }
}

#[test]
fn any_range_equals_the_same_range_of_the_whole() {
    let mut numbers = XorshiftRng(0x9e37_79b9_7f4a_7c15);
    for set in ImageSet::all() {
        for listed in &set.manifest.images {
            let image = set.open(listed);
            for inode in files_of(&image) {
                check_ranges(&image, &inode, &mut numbers, 4);
            }
        }
    }
}

/// The pieces of a file that is read in ranges of `step` bytes.
fn in_ranges(image: &Image, inode: &Inode, step: usize) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut next = 0;
    for start in (0..inode.size()).step_by(step) {
        let range = start..start + u64::try_from(step).unwrap();
        let sink = |piece: FilePiece<'_>| {
            let (offset, length) = match piece {
                FilePiece::Data { offset, bytes: part } => {
                    bytes.extend_from_slice(part);
                    (offset, part.len())
                }
                FilePiece::Hole { offset, length } => {
                    let length = usize::try_from(length).unwrap();
                    bytes.resize(bytes.len() + length, 0);
                    (offset, length)
                }
            };
            assert_eq!(usize::try_from(offset).unwrap() + length, bytes.len());
            Ok::<_, Error>(())
        };
        let covered = image.for_each_piece_in(inode, range, sink).unwrap();
        assert_eq!(covered.start, next, "nid {} at {start}", inode.nid());
        next = covered.end;
    }
    bytes
}

#[test]
fn a_file_in_ranges_is_the_whole_file() {
    for set in ImageSet::all() {
        for listed in &set.manifest.images {
            let image = set.open(listed);
            for inode in files_of(&image) {
                let expected = whole(&image, &inode).unwrap();
                for step in [1_000, 4096, 70_001] {
                    assert!(in_ranges(&image, &inode, step) == expected, "nid {}", inode.nid());
                }
            }
        }
    }
}

#[test]
fn many_threads_read_one_image_and_many_images_at_once() {
    let set = ImageSet::corpus();
    let images: Vec<_> = set.manifest.images.iter().take(24).map(|one| set.open(one)).collect();
    std::thread::scope(|scope| {
        for initial_state in 1..=4 {
            let images = &images;
            scope.spawn(move || {
                let mut numbers = XorshiftRng(initial_state);
                for image in images {
                    for inode in files_of(image) {
                        check_ranges(image, &inode, &mut numbers, 1);
                    }
                }
            });
        }
    });
}

/// A medium whose n-th read fails.
#[derive(Debug)]
struct FailingSource {
    bytes: Vec<u8>,
    left: AtomicU64,
}

impl ImageSource for FailingSource {
    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
        if self.left.fetch_sub(1, Ordering::Relaxed) == 1 {
            return Err(io::Error::other("the medium failed"));
        }
        self.bytes.read_at(offset, buffer)
    }

    fn length(&self) -> u64 {
        ImageSource::length(&self.bytes)
    }
}

#[test]
fn a_read_that_fails_is_an_error_and_never_wrong_bytes() {
    let set = ImageSet::corpus();
    let listed = set.manifest.images.iter().find(|one| one.name == "lz4-ztail").unwrap();
    let bytes = std::fs::read(set.dir.join(&listed.file)).unwrap();
    let good = set.open(listed);
    let expected: Vec<_> =
        files_of(&good).iter().map(|inode| whole(&good, inode).unwrap()).collect();
    for failing_read in 1.. {
        let left = AtomicU64::new(failing_read);
        let source = Arc::new(FailingSource { bytes: bytes.clone(), left });
        let opened = OpenOptions::new().open_sources(source.clone(), Vec::new());
        let mut failures = u64::from(opened.is_err());
        if let Ok(image) = opened {
            for (inode, expected) in files_of(&good).iter().zip(&expected) {
                let mut buffer = vec![0u8; expected.len()];
                match image.read_at(inode, 0, &mut buffer) {
                    Ok(_) => assert!(buffer == *expected, "nid {}", inode.nid()),
                    Err(error) => {
                        assert!(matches!(error.kind(), ErrorKind::Io(_)), "{error}");
                        assert!(error.offset().is_some() && error.nid().is_some(), "{error}");
                        failures += 1;
                        // The failure is not remembered.
                        assert_eq!(image.read_at(inode, 0, &mut buffer).unwrap(), expected.len());
                        assert!(buffer == *expected);
                    }
                }
            }
        }
        let was_reached = source.left.load(Ordering::Relaxed).cast_signed() <= 0;
        assert_eq!(failures, u64::from(was_reached), "read {failing_read}");
        if !was_reached {
            break;
        }
    }
}

fn check_extents(image: &Image, inode: &Inode) -> usize {
    let bytes = whole(image, inode).unwrap();
    let mut holes = 0;
    let mut at = 0;
    for range in image.file_extents(inode, 0).unwrap() {
        let range = range.unwrap();
        assert!(range.start == at && range.end > at, "nid {}", inode.nid());
        at = range.end;
        if range.storage == ExtentStorage::Hole {
            holes += 1;
            let [from, to] = [range.start, range.end].map(|at| usize::try_from(at).unwrap());
            assert!(bytes[from..to].iter().all(|byte| *byte == 0), "nid {}", inode.nid());
        }
        let middle = range.start.midpoint(range.end);
        let again = image.file_extents(inode, middle).unwrap().next().unwrap().unwrap();
        assert_eq!(again, FileExtent { start: middle, ..range });
    }
    assert_eq!(at, inode.size());
    assert!(image.file_extents(inode, inode.size()).unwrap().next().is_none());
    holes
}

/// Extents meet, end with the file, are holes only where there are zeros, and are the same from any
/// byte on.
#[test]
fn extents_cover_a_file_and_holes_are_zeros() {
    let mut holes = 0;
    for set in ImageSet::all() {
        for listed in &set.manifest.images {
            let image = set.open(listed);
            let found =
                files_of(&image).iter().map(|inode| check_extents(&image, inode)).sum::<usize>();
            holes += found;
        }
    }
    assert!(holes > 0, "some image has holes");
}

/// A source that cancels a token at its n-th read.
#[derive(Debug)]
struct CancellingSource {
    bytes: Vec<u8>,
    left: AtomicU64,
    token: CancelToken,
}

impl ImageSource for CancellingSource {
    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
        if self.left.fetch_sub(1, Ordering::Relaxed) == 1 {
            self.token.cancel();
        }
        self.bytes.read_at(offset, buffer)
    }

    fn length(&self) -> u64 {
        ImageSource::length(&self.bytes)
    }
}

#[test]
fn a_cancelled_verification_ends_with_that_error_and_reports_no_problem() {
    let set = ImageSet::corpus();
    let listed = set.manifest.images.iter().find(|one| one.name == "lz4-ztail").unwrap();
    let bytes = std::fs::read(set.dir.join(&listed.file)).unwrap();
    let mut reads = 0;
    loop {
        reads += 1;
        let token = CancelToken::new();
        let left = AtomicU64::new(u64::MAX);
        let source = CancellingSource { bytes: bytes.clone(), left, token: token.clone() };
        let source = Arc::new(source);
        let image = OpenOptions::new().open_sources(source.clone(), Vec::new()).unwrap();
        source.left.store(reads, Ordering::Relaxed);
        let options = VerifyOptions::new().max_threads(2).cancel(&token);
        let summary = image.verify(&options, &mut |event| {
            assert!(!matches!(event, VerifyEvent::Problem(_)), "{event:?}");
        });
        if !token.is_cancelled() {
            assert_eq!(summary.unwrap().problems, 0);
            break;
        }
        let error = summary.expect_err("it was cancelled while it read");
        assert!(matches!(error.kind(), ErrorKind::Cancelled), "read {reads}: {error}");
    }
    assert!(reads > 2, "it was never cancelled on the way");
}

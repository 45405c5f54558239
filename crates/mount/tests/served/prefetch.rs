//! Data that is in the page cache before it is requested, and requests that the kernel does not send.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use ferrofs_image::{FileType, Image, WalkEvent};
use ferrofs_mount::stats::{OperationKind, StatsSummary, query};
use rustix::fs::{Advice, AtFlags, RawDir, fadvise, statat};

use crate::mounted::TestMount;

fn summary_of(mounted: &TestMount) -> StatsSummary {
    query(mounted.path()).unwrap().summary
}

/// Every path of the image with its bytes, read without a mount.
fn expected_files(image: &str) -> Vec<(Vec<u8>, Vec<u8>)> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/data").join(image);
    let image = Image::open(path).unwrap();
    let mut files = Vec::new();
    for visit in image.walk(b"/").unwrap() {
        if let WalkEvent::Leaf(node) = visit
            && node.inode.file_type() == FileType::Regular
        {
            let mut bytes = vec![0; usize::try_from(node.inode.size()).unwrap()];
            image.read_at(&node.inode, 0, &mut bytes).unwrap();
            files.push((node.path.clone(), bytes));
        }
    }
    files
}

#[test]
fn files_read_in_order_are_right_and_not_all_requested() {
    // Pages can be stored only for inodes that the kernel knows.
    assert_not_all_requested(|mounted, _| drop(mounted.walked()));
}

/// As `git status` reads files: their names are known from an index, and no directory is listed.
#[test]
fn files_read_in_order_after_lookups_only_are_right_and_not_all_requested() {
    assert_not_all_requested(|mounted, files| {
        for (path, _) in files {
            fs::symlink_metadata(below(mounted, path)).unwrap();
        }
        let listings = summary_of(mounted).operation(OperationKind::ReadDirPlus).time.count;
        assert_eq!(listings, 0);
    });
}

fn below(mounted: &TestMount, path: &[u8]) -> PathBuf {
    mounted.path().join(OsStr::from_bytes(path.strip_prefix(b"/").unwrap()))
}

/// Stored data must equal the data of a READ. Every byte is compared, several times, since the predictions depend on
/// timing.
fn assert_not_all_requested(prepare: impl Fn(&TestMount, &[(Vec<u8>, Vec<u8>)])) {
    let expected_files = expected_files("demo.erofs");
    let (mut requested, mut stores) = (0, 0);
    for _ in 0..5 {
        let Some(mounted) = TestMount::of("demo.erofs") else { return };
        prepare(&mounted, &expected_files);
        for (path, bytes) in &expected_files {
            let read = fs::read(below(&mounted, path)).unwrap();
            assert!(read == *bytes, "{}", path.escape_ascii());
        }
        let summary = summary_of(&mounted);
        requested += summary.operation(OperationKind::Read).time.count;
        stores += summary.session.stores;
    }
    assert!(stores > 0);
    let files = u64::try_from(expected_files.iter().filter(|(_, bytes)| !bytes.is_empty()).count())
        .unwrap();
    assert!(requested < 5 * files, "{requested} requests for 5 times {files} files");
}

/// A read of one page stores the pages near it, with the right bytes.
#[test]
fn random_reads_of_a_page_store_the_pages_around_it() {
    let Some(mounted) = TestMount::of("demo.erofs") else { return };
    let expected_files = expected_files("demo.erofs");
    let (path, bytes) = expected_files.iter().max_by_key(|(_, bytes)| bytes.len()).unwrap();
    let path = String::from_utf8_lossy(path);
    let file = File::open(mounted.path().join(path.trim_start_matches('/'))).unwrap();
    fadvise(&file, 0, None, Advice::Random).unwrap();
    let pages = bytes.chunks(4096).count();
    // Each once, far apart from each other.
    for number in 0..pages {
        let page = number * 7 % pages;
        let wanted = bytes.chunks(4096).nth(page).unwrap();
        let mut read = vec![0; wanted.len()];
        file.read_exact_at(&mut read, u64::try_from(page * 4096).unwrap()).unwrap();
        assert!(read == wanted, "page {page}");
    }
    let requested = summary_of(&mounted).operation(OperationKind::Read).time.count;
    assert!(requested < u64::try_from(pages).unwrap(), "{requested} requests for {pages} pages");
}

/// As `find -size` and `du` do, with pages so short that the directory has several.
#[test]
fn files_of_a_large_directory_are_not_looked_up_after_all_names_were_read() {
    let Some(mounted) = TestMount::of("inline.erofs") else { return };
    let directory = File::open(mounted.path().join("bigdir")).unwrap();
    let mut page = Vec::with_capacity(4096);
    let mut names = Vec::new();
    let mut listing = RawDir::new(&directory, page.spare_capacity_mut());
    while let Some(entry) = listing.next() {
        names.push(entry.unwrap().file_name().to_owned());
    }
    assert_eq!(names.len(), 52);
    for name in &names {
        statat(&directory, name, AtFlags::SYMLINK_NOFOLLOW).unwrap();
    }
    let lookups = summary_of(&mounted).operation(OperationKind::Lookup).time.count;
    assert!(lookups < 5, "{lookups} lookups of {} names", names.len());
}

#[test]
fn files_are_not_opened_and_cached_data_is_not_requested_again() {
    let Some(mounted) = TestMount::of("demo.erofs") else { return };
    mounted.read_all();
    let first = summary_of(&mounted);
    assert!(first.operation(OperationKind::Open).time.count <= 2);
    mounted.read_all();
    let second = summary_of(&mounted);
    for kind in [
        OperationKind::Open,
        OperationKind::Read,
        OperationKind::Lookup,
        OperationKind::ReadDirPlus,
    ] {
        let more = second.operation(kind).time.count - first.operation(kind).time.count;
        assert!(more <= 1, "{more} more of {kind:?}");
    }
}

//! Trees as tars: what another library reads in them, that threads change nothing, and what happens
//! when the image or the output fails.
#![allow(clippy::unwrap_used, reason = "what goes wrong in a test fails the test")]

use std::collections::BTreeMap;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc;
use std::time::Duration;

use ferrofs_extract::{
    Error, ErrorKind, ExtractEvent, ExtractSummary, HolePolicy, Selection, WriteTarOptions,
    write_tar,
};
use ferrofs_image::{FilePiece, FileType, Image, ImageSource, OpenOptions, WalkEvent};
use ferrofs_workers::CancelToken;
use ferrofs_workers::memory::Budget;

fn data(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/data").join(name)
}

fn open(name: &str) -> Image {
    Image::open(data(name)).unwrap()
}

/// A tar, what was counted, and what failed.
struct TarRun {
    bytes: Vec<u8>,
    summary: Result<ExtractSummary, Error>,
    failures: Vec<Error>,
}

fn written(image: &Image, options: &WriteTarOptions) -> TarRun {
    let (mut bytes, mut failures) = (Vec::new(), Vec::new());
    let summary = write_tar(image, &mut bytes, options, &mut |event| {
        if let ExtractEvent::Failed(error) = event {
            failures.push(error);
        }
    });
    TarRun { bytes, summary, failures }
}

/// The tar of a sound image.
fn sound(image: &Image, options: &WriteTarOptions) -> (Vec<u8>, ExtractSummary) {
    let TarRun { bytes, summary, failures } = written(image, options);
    assert!(failures.is_empty(), "{failures:?}");
    (bytes, summary.unwrap())
}

fn threads(count: usize) -> WriteTarOptions {
    WriteTarOptions::new().max_threads(Some(count))
}

/// A member's type, target and contents.
type TarMember = (tar::EntryType, Vec<u8>, Vec<u8>);
type TarMembers = BTreeMap<Vec<u8>, TarMember>;

/// The member at a path, or the one that it is another name of: which of the names is the first may
/// depend on what can be read.
fn resolved<'m>(members: &'m TarMembers, path: &[u8]) -> &'m TarMember {
    let member = &members[path];
    if member.0 == tar::EntryType::Link { &members[&member.1] } else { member }
}

/// What the tar crate finds.
fn members(bytes: &[u8]) -> TarMembers {
    let mut archive = tar::Archive::new(bytes);
    let mut members = BTreeMap::new();
    for entry in archive.entries().unwrap() {
        let mut entry = entry.unwrap();
        let mut contents = Vec::new();
        entry.read_to_end(&mut contents).unwrap();
        let target = entry.link_name_bytes().unwrap_or_default().into_owned();
        let path = entry.path_bytes().into_owned();
        let found = (entry.header().entry_type(), target, contents);
        assert!(members.insert(path, found).is_none(), "a path is there twice");
    }
    members
}

fn contents(image: &Image, inode: &ferrofs_image::Inode) -> Vec<u8> {
    let mut bytes = Vec::new();
    image
        .for_each_piece(inode, |piece| {
            match piece {
                FilePiece::Data { bytes: part, .. } => bytes.extend_from_slice(part),
                FilePiece::Hole { length, .. } => {
                    bytes.resize(bytes.len() + usize::try_from(length).unwrap(), 0);
                }
            }
            Ok::<_, ferrofs_image::Error>(())
        })
        .unwrap();
    bytes
}

/// Compares a tar without sparse files with the image.
fn compare(image: &Image, bytes: &[u8], summary: &ExtractSummary) {
    let members = members(bytes);
    let mut seen = 0;
    for visit in image.walk(b"/").unwrap() {
        let (WalkEvent::Enter(node) | WalkEvent::Leaf(node)) = visit else { continue };
        let mut path = node.path.strip_prefix(b"/").unwrap().to_vec();
        match node.inode.file_type() {
            FileType::Socket => continue,
            FileType::Directory if path.is_empty() => path = b"./".to_vec(),
            FileType::Directory => path.push(b'/'),
            _ => {}
        }
        seen += 1;
        let (kind, target, found) = &members[&path];
        if *kind == tar::EntryType::Link {
            assert!(members[target].0 != tar::EntryType::Link, "{target:?}");
            continue;
        }
        match node.inode.file_type() {
            FileType::Regular => assert!(*found == contents(image, &node.inode), "{path:?}"),
            FileType::Symlink => assert_eq!(*target, image.read_link(&node.inode).unwrap()),
            _ => assert!(found.is_empty()),
        }
    }
    assert_eq!((seen, seen as u64), (members.len(), summary.entries()));
}

#[test]
fn another_library_finds_every_entry_with_its_contents() {
    for name in ["plain.erofs", "lz4.erofs", "demo.erofs", "compact.erofs", "mz-lz4.erofs"] {
        let image = open(name);
        let options = WriteTarOptions::new().holes(HolePolicy::Zeros);
        let (bytes, summary) = sound(&image, &options);
        compare(&image, &bytes, &summary);
    }
}

/// The numbers of a map, and how many blocks they take.
fn map_of(stored: &[u8]) -> (Vec<usize>, usize) {
    let mut at = 0;
    let mut number = || {
        let end = at + stored[at..].iter().position(|byte| *byte == b'\n').unwrap();
        let text = std::str::from_utf8(&stored[at..end]).unwrap();
        at = end + 1;
        text.parse::<usize>().unwrap()
    };
    let numbers = (0..2 * number()).map(|_| number()).collect();
    (numbers, at.next_multiple_of(512))
}

#[test]
fn a_sparse_file_is_its_map_and_its_data() {
    let mut sparse_files = 0;
    for name in ["dot-omitted.erofs", "metabox.erofs"] {
        let image = open(name);
        let (bytes, summary) = sound(&image, &threads(2));
        assert!(summary.hole_bytes >= 4096);
        let mut archive = tar::Archive::new(bytes.as_slice());
        for entry in archive.entries().unwrap() {
            let mut entry = entry.unwrap();
            let records = entry.pax_extensions().unwrap();
            let records: BTreeMap<_, _> = records
                .into_iter()
                .flatten()
                .filter_map(|record| record.ok())
                .map(|record| (record.key().unwrap().to_owned(), record.value_bytes().to_vec()))
                .collect();
            let Some(path) = records.get("GNU.sparse.name") else { continue };
            let mut stored = Vec::new();
            entry.read_to_end(&mut stored).unwrap();
            let size = String::from_utf8(records["GNU.sparse.realsize"].clone()).unwrap();
            let mut found = vec![0; size.parse().unwrap()];
            let (map, mut at) = map_of(&stored);
            for pair in map.chunks_exact(2) {
                found[pair[0]..pair[0] + pair[1]].copy_from_slice(&stored[at..at + pair[1]]);
                at += pair[1];
            }
            assert_eq!(at, stored.len());
            let inode = image.resolve(path).unwrap().unwrap();
            assert!(found == contents(&image, &inode), "{name}");
            sparse_files += 1;
        }
    }
    assert_eq!(sparse_files, 2);
}

#[test]
fn the_bytes_do_not_depend_on_threads_or_memory() {
    for name in ["demo.erofs", "lz4hc-64k.erofs", "zstd-64k-fragments.erofs", "compact.erofs"] {
        let image = open(name);
        let (alone, summary) = sound(&image, &threads(1));
        assert!(alone.len().is_multiple_of(10_240) && alone.ends_with(&[0; 1024]), "{name}");
        for count in [1, 2, 5] {
            let budget = Budget::new(16 << 20);
            let options = threads(count).budget(&budget);
            let (again, counted) = sound(&image, &options);
            assert!(again == alone, "{name} with {count} threads");
            assert_eq!(counted, summary);
            assert!(budget.used_bytes() == 0 && budget.peak_bytes() >= 2 << 20);
        }
    }
}

#[test]
fn a_budget_without_room_is_a_named_error() {
    let options = threads(2).budget(&Budget::new(1 << 20));
    let TarRun { bytes, summary, .. } = written(&open("plain.erofs"), &options);
    assert!(matches!(summary.unwrap_err().kind(), ErrorKind::Memory(_)));
    assert!(bytes.is_empty());
}

#[test]
fn what_is_remembered_of_names_is_charged() {
    // Enough for a segment, and for nothing else.
    let budget = || Budget::with_stall(2 << 20, Duration::from_millis(10));
    let image = open("lz4.erofs");
    assert!(sound(&image, &threads(1)).1.hard_links > 0);
    let ended = written(&image, &threads(1).budget(&budget())).summary;
    assert!(matches!(ended.unwrap_err().kind(), ErrorKind::Memory(_)));
    let selection = Selection::new(["no-such-name"]);
    written(&image, &threads(1).budget(&budget()).selection(selection)).summary.unwrap();
}

#[test]
fn a_selection_comes_with_the_directories_above_it_but_for_the_root() {
    let image = open("demo.erofs");
    let all = members(&sound(&image, &WriteTarOptions::default()).0);
    let file = all.iter().find(|(path, (kind, ..))| {
        *kind == tar::EntryType::Regular && path.iter().filter(|byte| **byte == b'/').count() == 2
    });
    let path = String::from_utf8(file.unwrap().0.clone()).unwrap();
    let selection = Selection::new([&path]);
    let (bytes, summary) = sound(&image, &WriteTarOptions::new().selection(selection));
    let found: Vec<_> =
        members(&bytes).into_keys().map(|path| String::from_utf8(path).unwrap()).collect();
    let slashes: Vec<_> = path.match_indices('/').map(|(at, _)| path[..=at].to_owned()).collect();
    assert_eq!(found, [&slashes[..], &[path]].concat());
    assert_eq!((summary.directories, summary.files), (2, 1));
}

#[test]
fn a_path_that_is_not_there_fails_and_the_tar_is_whole() {
    let selection = Selection::new(["no/such"]);
    let options = WriteTarOptions::new().selection(selection);
    let TarRun { bytes, summary, failures } = written(&open("plain.erofs"), &options);
    assert!(matches!(failures[0].kind(), ErrorKind::NothingMatches));
    assert_eq!((bytes, summary.unwrap().failures), (vec![0; 10_240], 1));
}

/// Takes so many bytes, and then fails.
struct LimitedWriter {
    remaining: usize,
    error: io::ErrorKind,
}

impl Write for LimitedWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let count = bytes.len().min(self.remaining);
        self.remaining -= count;
        if count == 0 { Err(self.error.into()) } else { Ok(count) }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn an_output_that_fails_ends_it_with_a_named_error() {
    let image = open("demo.erofs");
    let total = sound(&image, &threads(1)).0.len();
    for error in [io::ErrorKind::StorageFull, io::ErrorKind::BrokenPipe] {
        for remaining in [0, 1, 512, total / 2, total - 1] {
            for count in [1, 3] {
                let mut out = LimitedWriter { remaining, error };
                let failed = write_tar(&image, &mut out, &threads(count), &mut |_| {}).unwrap_err();
                let ErrorKind::Output { operation, source } = failed.kind() else {
                    panic!("{failed}")
                };
                assert_eq!((*operation, source.kind()), ("cannot write the archive", error));
            }
        }
    }
}

/// Cancels when so many bytes have been written.
struct CancellingWriter {
    bytes: Vec<u8>,
    after: usize,
    token: CancelToken,
}

impl Write for CancellingWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let count = bytes.len().min(512);
        self.bytes.extend_from_slice(&bytes[..count]);
        if self.bytes.len() > self.after {
            self.token.cancel();
        }
        Ok(count)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn a_cancelled_tar_ends_with_an_error_and_without_an_end_marker() {
    let image = open("demo.erofs");
    let (whole, _) = sound(&image, &threads(1));
    for after in [0, 512, whole.len() / 2] {
        for count in [1, 3] {
            let token = CancelToken::new();
            let mut out = CancellingWriter { bytes: Vec::new(), after, token: token.clone() };
            let options = threads(count).cancel(&token);
            let mut failures = 0;
            let error = write_tar(&image, &mut out, &options, &mut |event| {
                failures += u64::from(matches!(event, ExtractEvent::Failed(_)));
            })
            .unwrap_err();
            assert!(matches!(error.kind(), ErrorKind::Cancelled), "{error}");
            assert_eq!(failures, 0);
            // The segment that was being written is the last one.
            assert!(out.bytes.len() <= after + (2 << 20) && out.bytes.len() < whole.len() - 1024);
            assert!(whole.starts_with(&out.bytes));
        }
    }
}

#[test]
fn a_tar_that_is_cancelled_before_it_begins_is_empty() {
    let token = CancelToken::new();
    token.cancel();
    for count in [1, 3] {
        let run = written(&open("plain.erofs"), &threads(count).cancel(&token));
        assert!(matches!(run.summary.unwrap_err().kind(), ErrorKind::Cancelled));
        assert_eq!((run.bytes.len(), run.failures.len()), (0, 0));
    }
}

/// A file that misbehaves once, at its n-th read.
#[derive(Debug)]
struct PanickingSource {
    bytes: Vec<u8>,
    reads: AtomicU64,
    bad_read: u64,
    panics: bool,
}

impl ImageSource for PanickingSource {
    fn length(&self) -> u64 {
        self.bytes.len() as u64
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
        if self.reads.fetch_add(1, Ordering::SeqCst) == self.bad_read {
            assert!(!self.panics, "as the test wants it");
            return Err(io::ErrorKind::Other.into());
        }
        let rest = usize::try_from(offset).ok().and_then(|at| self.bytes.get(at..)).unwrap_or(&[]);
        let count = rest.len().min(buffer.len());
        buffer[..count].copy_from_slice(&rest[..count]);
        Ok(count)
    }
}

/// Runs `work` and fails the test if it takes longer than anything here may.
fn with_watchdog<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    let (sender, receiver) = mpsc::channel();
    let thread = std::thread::Builder::new().spawn(move || sender.send(work()).unwrap()).unwrap();
    let result = receiver.recv_timeout(Duration::from_secs(60)).expect("it hangs or panicked");
    thread.join().unwrap();
    result
}

/// Every read fails or panics once: each time all is as it should be, or something is named, and
/// nothing that is there has wrong contents.
fn with_each_bad_read(panics: bool) {
    let bytes = std::fs::read(data("lz4hc-dedupe-fragments-ztail.erofs")).unwrap();
    let good = members(&sound(&open("lz4hc-dedupe-fragments-ztail.erofs"), &threads(1)).0);
    for count in [1, 3] {
        for bad_read in 0.. {
            let source = Arc::new(PanickingSource {
                bytes: bytes.clone(),
                reads: AtomicU64::new(0),
                bad_read,
                panics,
            });
            let reads = Arc::clone(&source);
            let opened = std::panic::catch_unwind(|| {
                OpenOptions::new()
                    .open_sources(Arc::clone(&source) as Arc<dyn ImageSource>, Vec::new())
            });
            let Ok(Ok(image)) = opened else { continue };
            let TarRun { bytes, summary, failures } =
                with_watchdog(move || written(&image, &threads(count)));
            if reads.reads.load(Ordering::SeqCst) <= bad_read {
                assert!(failures.is_empty() && summary.is_ok());
                break;
            }
            let Ok(summary) = summary else { continue };
            assert_eq!(summary.failures, failures.len() as u64);
            let found = members(&bytes);
            assert!(!failures.is_empty() || found.len() == good.len());
            let is_zeroed =
                failures.iter().any(|e| matches!(e.kind(), ErrorKind::ZeroFilled { .. }));
            for path in found.keys() {
                let is_right = resolved(&found, path) == resolved(&good, path);
                assert!(is_right || is_zeroed, "read {bad_read}: {path:?}");
            }
        }
    }
}

#[test]
fn a_source_that_fails_at_any_read_is_named() {
    with_each_bad_read(false);
}

#[test]
fn a_source_that_panics_at_any_read_is_named() {
    with_each_bad_read(true);
}

//! Failures during an extraction: reads that fail or panic, a host without space, a process that
//! changes the destination, a cancellation. Each ends with a named error, and every file is whole
//! or absent.

use std::os::unix::fs::symlink;
use std::panic::resume_unwind;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use std::{fs, io};

use ferrofs_image::{Image, ImageSource, MemoryPool, OpenOptions};
use ferrofs_workers::CancelToken;
use ferrofs_workers::memory::{Budget, FaultPlan};

use super::fixture::{ImageFixture, TestFolder, snapshot_tree};
use super::{ExtractRun, extract_with_options, extract_with_watchdog, new_folder};
use crate::{ErrorKind, ExtractOptions};

/// What happens at one read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    Error,
    Panic,
}

/// Bytes with a fault at the n-th read after the image was opened.
#[derive(Debug)]
struct FaultInjectingSource {
    bytes: Vec<u8>,
    fault: Fault,
    reads_left: AtomicU64,
}

impl FaultInjectingSource {
    fn has_happened(&self) -> bool {
        // Counted down to 0, and then from the top.
        !(1..u64::MAX / 2).contains(&self.reads_left.load(Ordering::Relaxed))
    }
}

impl ImageSource for FaultInjectingSource {
    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
        if self.reads_left.fetch_sub(1, Ordering::Relaxed) == 1 {
            match self.fault {
                Fault::Error => return Err(io::Error::other("injected")),
                // As `panic!`, without a message for each.
                Fault::Panic => resume_unwind(Box::new("injected")),
            }
        }
        // Few bytes at a time, so that there are many reads.
        let count = buffer.len().min(12_000);
        self.bytes.read_at(offset, &mut buffer[..count])
    }

    fn length(&self) -> u64 {
        self.bytes.length()
    }
}

/// Opens an image whose n-th read from now on fails.
fn open_faulty(bytes: &[u8], fault: Fault, nth: u64) -> (Image, Arc<FaultInjectingSource>) {
    let reads_left = AtomicU64::new(u64::MAX);
    let source = Arc::new(FaultInjectingSource { bytes: bytes.to_vec(), fault, reads_left });
    let image = OpenOptions::new().open_sources(Arc::clone(&source) as _, Vec::new()).unwrap();
    source.reads_left.store(nth, Ordering::Relaxed);
    (image, source)
}

fn golden(name: &str) -> Vec<u8> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/data");
    fs::read(folder.join(name)).unwrap()
}

/// Injects a fault at every read in turn, and checks the result of each extraction.
fn try_every_read(name: &str, fault: Fault, workers: usize) {
    let bytes = golden(name);
    let whole = new_folder();
    let sound = open_faulty(&bytes, fault, u64::MAX).0;
    extract_with_watchdog(&sound, whole.path(), workers).result.unwrap();
    let expected = snapshot_tree(whole.path());
    let mut faults = 0;
    for nth in 1.. {
        let folder = new_folder();
        let (image, source) = open_faulty(&bytes, fault, nth);
        let extracted = extract_with_watchdog(&image, folder.path(), workers);
        let errors: Vec<_> = extracted.errors().collect();
        if !source.has_happened() {
            assert!(errors.is_empty(), "{errors:?}");
            break;
        }
        faults += 1;
        assert!(!errors.is_empty(), "{name}: read {nth} went wrong unnoticed");
        for error in errors {
            let is_right = match fault {
                Fault::Error => matches!(error.kind(), ErrorKind::Image(_)),
                Fault::Panic => matches!(error.kind(), ErrorKind::Panicked),
            };
            assert!(is_right, "{name}, read {nth}: {error}");
        }
        for (path, seen) in snapshot_tree(folder.path()) {
            assert_eq!(seen.contents, expected[&path].contents, "{name}, read {nth}: {path:?}");
        }
    }
    assert!(faults > 10, "{name}: only {faults} reads");
}

#[test]
fn any_read_that_fails_is_a_named_failure_and_no_wrong_byte() {
    for name in ["lz4-fragments.erofs", "xattr-prefix.erofs"] {
        for workers in [0, 2] {
            try_every_read(name, Fault::Error, workers);
        }
    }
}

#[test]
fn any_read_that_panics_is_a_named_failure_and_no_wrong_byte() {
    for name in ["lz4-fragments.erofs", "xattr-prefix.erofs"] {
        for workers in [0, 2] {
            try_every_read(name, Fault::Panic, workers);
        }
    }
}

/// Whether the error is one of a full memory budget.
fn is_about_memory(error: &crate::Error) -> bool {
    match error.kind() {
        ErrorKind::Image(error) => {
            matches!(error.kind(), ferrofs_image::ErrorKind::OutOfMemory { .. })
        }
        kind => matches!(kind, ErrorKind::Memory(_)),
    }
}

#[test]
fn memory_that_ends_at_any_point_is_a_named_failure_and_no_wrong_byte() {
    let bytes = golden("lz4-fragments.erofs");
    let whole = new_folder();
    extract_with_watchdog(&open_faulty(&bytes, Fault::Error, u64::MAX).0, whole.path(), 0)
        .result
        .unwrap();
    let expected = snapshot_tree(whole.path());
    for workers in [0, 2] {
        let mut shortages = 0;
        for after in 0.. {
            let budget = Budget::with_stall(32 << 20, Duration::from_millis(1));
            let memory = MemoryPool::with_budget(budget.clone()).unwrap();
            let options = OpenOptions::new().memory(&memory);
            let image = options.open_sources(Arc::new(bytes.clone()), Vec::new()).unwrap();
            budget.inject_failures(FaultPlan { after, count: u64::MAX, ..FaultPlan::default() });
            let folder = new_folder();
            let extracted = extract_with_watchdog(&image, folder.path(), workers);
            let refused = budget.injected_failures();
            let errors: Vec<_> = extracted.errors().collect();
            for error in &errors {
                assert!(is_about_memory(error), "request {after}: {error}");
            }
            for (path, seen) in snapshot_tree(folder.path()) {
                assert_eq!(seen.contents, expected[&path].contents, "request {after}: {path:?}");
            }
            if refused == 0 {
                assert!(errors.is_empty(), "{errors:?}");
                break;
            }
            shortages += 1;
        }
        assert!(shortages > 3, "only {shortages} requests");
    }
}

/// Runs a hook once, at a read.
pub(super) struct HookedSource<F> {
    pub(super) bytes: Vec<u8>,
    pub(super) reads: AtomicU64,
    pub(super) at_read: u64,
    pub(super) hook: F,
}

impl<F> std::fmt::Debug for HookedSource<F> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("HookedSource")
    }
}

impl<F: Fn() + Send + Sync> ImageSource for HookedSource<F> {
    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
        if self.reads.fetch_add(1, Ordering::Relaxed) == self.at_read {
            (self.hook)();
        }
        self.bytes.read_at(offset, buffer)
    }

    fn length(&self) -> u64 {
        self.bytes.length()
    }
}

/// Moves every directory of `tree` away and puts a symlink to `outside` in its place.
fn swap_directories(tree: &Path, outside: &Path) {
    let Ok(entries) = fs::read_dir(tree) else { return };
    for path in entries.map(|entry| entry.unwrap().path()) {
        if path.symlink_metadata().is_ok_and(|metadata| metadata.is_dir()) {
            fs::rename(&path, path.with_extension("moved")).unwrap();
            symlink(outside, path).unwrap();
        }
    }
}

#[test]
fn directories_swapped_for_symlinks_at_any_read_lead_nowhere() {
    let mut swapped = 0;
    for at_read in 0..80 {
        let folder = new_folder();
        let (tree, outside) = (folder.path().join("tree"), folder.path().join("outside"));
        fs::create_dir(&outside).unwrap();
        fs::create_dir(&tree).unwrap();
        let (from, to) = (tree.clone(), outside.clone());
        let hook = move || swap_directories(&from, &to);
        let (bytes, reads) = (golden("lz4.erofs"), AtomicU64::new(0));
        let source = Arc::new(HookedSource { bytes, reads, at_read, hook });
        let image = OpenOptions::new().open_sources(source, Vec::new()).unwrap();
        extract_with_watchdog(&image, &tree, 2).result.unwrap();
        assert_eq!(fs::read_dir(&outside).unwrap().count(), 0);
        let moved = fs::read_dir(&tree).unwrap();
        let is_moved = |path: &Path| path.extension().is_some_and(|e| e == "moved");
        swapped += moved.filter(|entry| is_moved(&entry.as_ref().unwrap().path())).count();
    }
    assert!(swapped > 0, "nothing was ever swapped");
}

/// Reports that the present test is skipped: on standard error, and in the file that
/// `FERROFS_SKIPPED` names.
pub(super) fn skip(reason: &str) {
    let thread = std::thread::current();
    let line = format!("skipped: {}: {reason}\n", thread.name().unwrap_or("unknown test"));
    eprint!("{line}");
    if let Some(path) = std::env::var_os("FERROFS_SKIPPED") {
        let mut file = fs::OpenOptions::new().create(true).append(true).open(path).unwrap();
        io::Write::write_all(&mut file, line.as_bytes()).unwrap();
    }
}

/// A file system of one megabyte, where this user may mount one.
struct SmallFilesystem(TestFolder);

impl SmallFilesystem {
    fn mount() -> Option<Self> {
        let folder = new_folder();
        let mut mount = Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", "size=1m", "none"]).arg(folder.path());
        let is_mounted = mount.output().is_ok_and(|output| output.status.success());
        is_mounted.then_some(Self(folder))
    }
}

impl Drop for SmallFilesystem {
    fn drop(&mut self) {
        Command::new("umount").arg(self.0.path()).output().unwrap();
    }
}

#[test]
fn a_host_without_space_stops_everything_and_keeps_no_partial_file() {
    let mut made = ImageFixture::new();
    let contents = vec![b'x'; 100_000];
    for number in 0..30 {
        let directory = made.directory(0, &format!("d{number}"));
        made.file(directory, "small", &contents[..5_000]);
        made.file(directory, "cut", &contents);
    }
    for workers in [0, 1, 3] {
        let Some(tiny) = SmallFilesystem::mount() else {
            return skip("needs the right to mount a tmpfs");
        };
        let extracted = extract_with_watchdog(&made.open(), tiny.0.path(), workers);
        let error = extracted.result.unwrap_err();
        assert!(error.kind().stops_everything(), "{error}");
        assert!(extracted.failures.is_empty(), "{:?}", extracted.failures);
        for (path, seen) in snapshot_tree(tiny.0.path()) {
            let expected = match path.file_name().and_then(|name| name.to_str()) {
                Some("small") => 5_000,
                Some("cut") => 100_000,
                _ => continue,
            };
            assert_eq!(seen.contents.len(), expected, "{path:?}");
            assert!(seen.contents.iter().all(|byte| *byte == b'x'), "{path:?}");
        }
    }
}

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

/// Extracts and calls `hook` at one read of the image. Returns the number of reads, too.
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
    made.file(0, "long", &vec![b'x'; 128 << 10]);
    let bytes = made.bytes();
    let (_, reads) =
        extract_with_hook(&bytes, new_folder().path(), 0, u64::MAX, CancelToken::cancel);
    for workers in [0, 2] {
        let folder = new_folder();
        // In a destination that existed it would have no name before it is whole.
        let (target, file) = (folder.path().join("tree"), folder.path().join(".tree.part/long"));
        let hook = move |token: &CancelToken| {
            // A directory in its place cannot be removed as a file.
            if fs::remove_file(&file).is_ok() {
                fs::create_dir(&file).unwrap();
            }
            token.cancel();
        };
        let (run, _) = extract_with_hook(&bytes, &target, workers, reads - 2, hook);
        assert!(is_cancelled(&run), "{:?}", run.result);
        let failures: Vec<_> = run.failures.iter().map(ToString::to_string).collect();
        assert_eq!(failures.len(), 1, "{failures:?}");
        assert!(failures[0].starts_with("/long: cannot remove the partial file"), "{failures:?}");
    }
}

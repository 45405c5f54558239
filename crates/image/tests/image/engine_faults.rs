//! A medium that fails or panics at any of its reads, and memory that is refused at any request:
//! the result is the right bytes or a named error, and nothing of the fault is remembered.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use ferrofs_image::{
    DecodeWorkers, Error, ErrorKind, Image, ImageSource, MemoryPool, Nid, OpenOptions,
    SyncDecompress, VerifyEvent, VerifyOptions, WalkEvent,
};
use ferrofs_workers::memory::{AllocPolicy, Budget, FaultPlan};

use crate::sources::{
    CorpusImage, FaultySource, SourceFault, Watchdog, is_injected_panic, own_workers, whole,
};

/// Together every codec, fragments, tails among the metadata, and inodes in a metabox.
const SOME: [&str; 3] = ["lz4hc-dedupe-fragments-ztail", "lzma-64k-all", "metabox-lz4-lzma-16k"];
const OTHERS: [&str; 3] = ["lz4-b1024", "deflate-fragments", "zstd-16k-ztail"];

const LIMIT_BYTES: u64 = 32 << 20;

/// The errors and panics of everything that a user can do.
#[derive(Default)]
struct FaultRun {
    errors: Vec<Error>,
    /// Panics of the medium that reached the caller.
    panics: u64,
}

impl FaultRun {
    /// Runs one call of a user.
    fn of<T>(&mut self, work: impl FnOnce() -> Result<T, Error>) -> Option<T> {
        match catch_unwind(AssertUnwindSafe(work)) {
            Ok(Ok(value)) => Some(value),
            Ok(Err(error)) => {
                self.errors.push(error);
                None
            }
            Err(payload) => {
                assert!(is_injected_panic(&*payload), "another panic than that of the medium");
                self.panics += 1;
                None
            }
        }
    }

    fn walk(&mut self, image: &Image) {
        let mut problems = Vec::new();
        self.of(|| {
            problems.extend(image.walk(b"/")?.filter_map(|visit| match visit {
                WalkEvent::Problem(problem) => Some(problem.error),
                _ => None,
            }));
            Ok(())
        });
        self.errors.append(&mut problems);
    }

    /// Reads a file as a whole, piece by piece, and through readahead.
    fn file(&mut self, image: &Image, (nid, expected): &(Nid, Vec<u8>)) {
        let Some(inode) = self.of(|| image.inode(*nid)) else { return };
        let mut buffer = vec![0u8; expected.len()];
        if let Some(count) = self.of(|| image.read_at(&inode, 0, &mut buffer)) {
            assert!(count == expected.len() && buffer == *expected, "nid {nid}");
        }
        if let Some(bytes) = self.of(|| whole(image, &inode)) {
            assert!(bytes == *expected, "nid {nid}");
        }
        let Some(file) = self.of(|| image.open_file(&inode)) else { return };
        let mut buffer = vec![0u8; 10_000];
        for (number, part) in expected.chunks(10_000).enumerate() {
            let at = number as u64 * 10_000;
            if let Some(count) = self.of(|| file.read_at(at, &mut buffer)) {
                assert!(buffer[..count] == *part, "nid {nid} at {at}");
            }
        }
    }

    fn verify(&mut self, image: &Image) {
        let mut problems = Vec::new();
        self.of(|| {
            image.verify(&VerifyOptions::new().max_threads(2), &mut |event| {
                if let VerifyEvent::Problem(problem) = event {
                    problems.push(problem.error);
                }
            })
        });
        // Names that the walk could not find are missing from the link counts.
        let is_cut = !problems.is_empty() || self.panics > 0;
        problems.retain(|error| !(is_cut && matches!(error.kind(), ErrorKind::LinkCount { .. })));
        self.errors.append(&mut problems);
    }

    fn everything(image: &Image, corpus: &CorpusImage) -> Self {
        let mut outcome = Self::default();
        outcome.walk(image);
        corpus.files.iter().for_each(|file| outcome.file(image, file));
        outcome.verify(image);
        outcome
    }
}

/// Nothing of the fault is left: what is read now is right.
fn assert_sound(image: &Image, corpus: &CorpusImage, context: &str) {
    corpus.read_all(image, 30_000).unwrap_or_else(|error| panic!("{context}: {error}"));
    let mut problems = Vec::new();
    image
        .verify(&VerifyOptions::new().max_threads(2), &mut |event| {
            problems.push(format!("{event:?}"));
        })
        .unwrap();
    problems.retain(|event| event.contains("Problem"));
    assert!(problems.is_empty(), "{context}: {problems:?}");
}

fn options(workers: &DecodeWorkers, mode: SyncDecompress) -> OpenOptions {
    let memory = MemoryPool::new(LIMIT_BYTES).unwrap();
    OpenOptions::new().memory(&memory).workers(workers).sync_decompress(mode)
}

/// Makes each read of an image fail, each in an image of its own.
fn every_read_goes_wrong(name: &str, fault: SourceFault, mode: SyncDecompress) {
    let corpus = CorpusImage::new(name);
    let workers = own_workers();
    let source = Arc::new(FaultySource::new(&corpus.bytes, fault));
    let mut came = 0;
    for before in 0.. {
        let context = format!("{name}, {fault:?}, {mode:?}, read {before}");
        source.plan(before);
        let mut outcome = FaultRun::default();
        let shared: Arc<dyn ImageSource> = source.clone();
        let opened = outcome.of(|| options(&workers, mode).open_sources(shared, Vec::new()));
        if let Some(image) = &opened {
            let FaultRun { errors, panics } = FaultRun::everything(image, &corpus);
            outcome.errors.extend(errors);
            outcome.panics += panics;
        }
        let has_come = source.has_come();
        source.plan(i64::MAX - 1);
        if let Some(image) = &opened {
            assert_sound(image, &corpus, &context);
        }
        let is_named = |error: &Error| match fault {
            SourceFault::Error => {
                matches!(error.kind(), ErrorKind::Io(_)) && error.offset().is_some()
            }
            SourceFault::Panic => matches!(error.kind(), ErrorKind::Panicked),
        };
        assert!(outcome.errors.iter().all(is_named), "{context}: {:?}", outcome.errors);
        // None if it hit a worker, whose reader then decoded itself, or a prefetch.
        let ends = outcome.errors.len() as u64 + outcome.panics;
        assert!(ends <= 1, "{context}: {:?}, {} panics", outcome.errors, outcome.panics);
        came += ends;
        if !has_come {
            assert_eq!(ends, 0, "{context}");
            break;
        }
    }
    assert!(came > 3, "{name}: only {came} faults were seen");
}

#[test]
fn any_read_of_the_medium_may_fail() {
    let _watchdog = Watchdog::new("reading while the medium fails");
    for name in SOME {
        every_read_goes_wrong(name, SourceFault::Error, SyncDecompress::Auto);
    }
}

#[test]
fn any_read_of_the_medium_may_fail_with_the_other_codecs() {
    let _watchdog = Watchdog::new("reading while the medium fails");
    for name in OTHERS {
        every_read_goes_wrong(name, SourceFault::Error, SyncDecompress::Auto);
    }
}

#[test]
fn any_read_of_the_medium_may_fail_on_a_worker() {
    let _watchdog = Watchdog::new("reading on workers while the medium fails");
    for name in SOME {
        every_read_goes_wrong(name, SourceFault::Error, SyncDecompress::ForceOff);
    }
}

#[test]
fn any_read_of_the_medium_may_panic() {
    let _watchdog = Watchdog::new("reading while the medium panics");
    for name in SOME {
        every_read_goes_wrong(name, SourceFault::Panic, SyncDecompress::Auto);
    }
}

#[test]
fn any_read_of_the_medium_may_panic_with_the_other_codecs() {
    let _watchdog = Watchdog::new("reading while the medium panics");
    for name in OTHERS {
        every_read_goes_wrong(name, SourceFault::Panic, SyncDecompress::Auto);
    }
}

#[test]
fn any_read_of_the_medium_may_panic_on_a_worker() {
    let _watchdog = Watchdog::new("reading on workers while the medium panics");
    for name in SOME {
        every_read_goes_wrong(name, SourceFault::Panic, SyncDecompress::ForceOff);
    }
}

/// Many panics of the medium in one image that caches nothing: if a panic leaked a decode slot, a
/// permit or memory, it would be missing in the end.
fn panics_pile_up(name: &str, mode: SyncDecompress) {
    let corpus = CorpusImage::new(name);
    let source = Arc::new(FaultySource::new(&corpus.bytes, SourceFault::Panic));
    let shared: Arc<dyn ImageSource> = source.clone();
    let memory = MemoryPool::with_budget(Budget::with_stall(LIMIT_BYTES, Duration::from_secs(5)));
    let memory = memory.unwrap();
    let tables = memory.budget().used_bytes();
    let options = OpenOptions::new().memory(&memory).workers(&own_workers());
    let options = options.cache_limit_bytes(0).sync_decompress(mode);
    let image = options.open_sources(shared, Vec::new()).unwrap();
    let fixed = memory.budget().used_bytes();
    let mut came = 0;
    for before in 0..24 {
        // Idle contexts drop the input that they have read, or there would be little left to read.
        drop(memory.budget().charge(LIMIT_BYTES - fixed, AllocPolicy::MustSucceed).unwrap());
        source.plan(before % 12);
        for file in &corpus.files {
            FaultRun::default().file(&image, file);
        }
        came += u64::from(source.has_come());
    }
    assert!(came > 10, "{name}: only {came} panics came");
    source.plan(i64::MAX - 1);
    std::thread::scope(|scope| {
        for _ in 0..2 * image.decode_slots() {
            scope.spawn(|| corpus.read_all(&image, 30_000).unwrap());
        }
    });
    assert_sound(&image, &corpus, name);
    drop(image);
    // All memory can be charged: nothing is charged for what is gone.
    drop(memory.budget().charge(LIMIT_BYTES - tables, AllocPolicy::MustSucceed).unwrap());
}

#[test]
fn panics_leave_no_slot_no_permit_and_no_memory_behind() {
    let _watchdog = Watchdog::new("reading after many panics");
    for name in ["lz4hc-dedupe-fragments-ztail", "deflate-fragments", "lzma"] {
        panics_pile_up(name, SyncDecompress::Auto);
        panics_pile_up(name, SyncDecompress::ForceOff);
    }
}

/// Refuses memory at every request, one after the other. Returns how many errors there were.
fn every_request_is_refused(name: &str, count: u64, step: usize) -> usize {
    let corpus = CorpusImage::new(name);
    let workers = own_workers();
    let mut errors = 0;
    for after in (0..).step_by(step) {
        let budget = Budget::with_stall(LIMIT_BYTES, Duration::from_millis(1));
        let memory = MemoryPool::with_budget(budget.clone()).unwrap();
        let options = OpenOptions::new().memory(&memory).workers(&workers);
        budget.inject_failures(FaultPlan { after, count, ..FaultPlan::default() });
        let mut outcome = FaultRun::default();
        let opened =
            outcome.of(|| options.open_sources(Arc::new(corpus.bytes.clone()), Vec::new()));
        if let Some(image) = &opened {
            outcome.errors.extend(FaultRun::everything(image, &corpus).errors);
        }
        let has_come = budget.injected_failures() > 0;
        let context = format!("{name}, request {after}");
        let is_named = |error: &Error| matches!(error.kind(), ErrorKind::OutOfMemory { .. });
        assert!(outcome.errors.iter().all(is_named), "{context}: {:?}", outcome.errors);
        assert!(has_come || outcome.errors.is_empty(), "{context}: {:?}", outcome.errors);
        errors += outcome.errors.len();
        budget.inject_failures(FaultPlan::default());
        if let Some(image) = &opened {
            assert_sound(image, &corpus, &context);
        }
        if !has_come {
            break;
        }
    }
    errors
}

// A shortage that passes: requests that must succeed do.
#[test]
fn any_request_for_memory_may_be_refused_once() {
    let _watchdog = Watchdog::new("reading while memory is refused once");
    for name in SOME {
        assert_eq!(every_request_is_refused(name, 1, 1), 0, "{name}");
    }
}

// A shortage that stays.
#[test]
fn memory_may_be_refused_from_any_request_on() {
    let _watchdog = Watchdog::new("reading while memory is refused");
    for name in ["lz4-b1024", "metabox-lz4-lzma-16k"] {
        assert!(every_request_is_refused(name, u64::MAX, 1) > 0, "{name}");
    }
}

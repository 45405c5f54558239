//! What tests of the engine read from: the corpus images with their plain contents; sources that
//! fail, panic, record who reads, or block; and a watchdog, so that a hang is a failure.

use std::any::Any;
use std::io;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use ferrofs_image::{
    DecodeWorkers, Error, FilePiece, FileType, Image, ImageSource, Inode, Nid, OpenOptions,
    WalkEvent,
};
use ferrofs_workers::percpu::PerCpuSettings;
use ferrofs_workers::priority::PriorityRequest;

use crate::manifest::ImageSet;

/// How long a test may take before it counts as hanging.
const LIMIT: Duration = Duration::from_secs(60);
/// Longer, so that a condition that never becomes true is named before the process is aborted.
const WATCHDOG_LIMIT: Duration = Duration::from_secs(90);

/// Ends the process with a message if it is not dropped in time.
pub(crate) struct Watchdog {
    over: Arc<(Mutex<bool>, Condvar)>,
    thread: Option<JoinHandle<()>>,
}

impl Watchdog {
    pub(crate) fn new(what: &'static str) -> Self {
        let over = Arc::new((Mutex::new(false), Condvar::new()));
        let shared = Arc::clone(&over);
        let watch = move || {
            let (over, changed) = &*shared;
            let over = over.lock().unwrap_or_else(PoisonError::into_inner);
            let waited = changed.wait_timeout_while(over, WATCHDOG_LIMIT, |over| !*over).unwrap();
            if waited.1.timed_out() {
                eprintln!("{what} hangs");
                std::process::abort();
            }
        };
        let thread = std::thread::Builder::new().name("watchdog".to_owned()).spawn(watch).unwrap();
        Self { over, thread: Some(thread) }
    }
}

impl Drop for Watchdog {
    fn drop(&mut self) {
        *self.over.0.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.over.1.notify_all();
        self.thread.take().unwrap().join().unwrap();
    }
}

/// Waits for a condition that other threads make true.
pub(crate) fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let started_at = Instant::now();
    while !is_so() {
        assert!(started_at.elapsed() < LIMIT, "never: {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// The start of the names of the workers of [`own_workers`].
pub(crate) const WORKER: &str = "engine_test";

/// Workers that no other test uses.
pub(crate) fn own_workers() -> DecodeWorkers {
    DecodeWorkers::new(PerCpuSettings::new(WORKER).priority(PriorityRequest::Normal))
}

/// Whether this thread is a worker. One that stands in for a worker counts, too.
pub(crate) fn is_worker() -> bool {
    std::thread::current().name().is_some_and(|name| name.starts_with(WORKER))
}

/// A corpus image and the contents of its files.
pub(crate) struct CorpusImage {
    pub(crate) bytes: Vec<u8>,
    /// Every file of the tree once.
    pub(crate) files: Vec<(Nid, Vec<u8>)>,
}

impl CorpusImage {
    pub(crate) fn new(name: &str) -> Self {
        let set = ImageSet::corpus();
        let listed = set.manifest.images.iter().find(|one| one.name == name).unwrap();
        assert!(listed.devices.is_empty() && listed.offset == 0, "{name} is one source");
        let bytes = std::fs::read(set.dir.join(&listed.file)).unwrap();
        let image = set.open(listed);
        let mut files: Vec<(Nid, Vec<u8>)> = Vec::new();
        for inode in files_of(&image) {
            if files.iter().all(|(nid, _)| *nid != inode.nid()) {
                files.push((inode.nid(), whole(&image, &inode).unwrap()));
            }
        }
        Self { bytes, files }
    }

    pub(crate) fn open(&self, options: &OpenOptions) -> Image {
        options.open_sources(Arc::new(self.bytes.clone()), Vec::new()).unwrap()
    }

    /// Reads every file in reads of `step` bytes; fails the test if a byte is wrong.
    pub(crate) fn read_all(&self, image: &Image, step: usize) -> Result<(), Error> {
        let mut buffer = vec![0u8; step];
        for (nid, expected) in &self.files {
            let inode = image.inode(*nid)?;
            for (number, part) in expected.chunks(step).enumerate() {
                let count = image.read_at(&inode, (number * step) as u64, &mut buffer)?;
                assert!(buffer[..count] == *part, "nid {nid}, read {number} of {step}");
            }
        }
        Ok(())
    }
}

/// The regular files of the tree.
pub(crate) fn files_of(image: &Image) -> Vec<Inode> {
    let visits = image.walk(b"/").unwrap();
    let leaves = visits.filter_map(|visit| match visit {
        WalkEvent::Leaf(node) if node.inode.file_type() == FileType::Regular => Some(node.inode),
        _ => None,
    });
    leaves.collect()
}

/// A file, piece by piece.
pub(crate) fn whole(image: &Image, inode: &Inode) -> Result<Vec<u8>, Error> {
    let mut bytes = Vec::new();
    image.for_each_piece(inode, |piece| {
        match piece {
            FilePiece::Data { bytes: part, .. } => bytes.extend_from_slice(part),
            FilePiece::Hole { length, .. } => {
                bytes.resize(bytes.len() + usize::try_from(length).unwrap(), 0);
            }
        }
        Ok::<_, Error>(())
    })?;
    Ok(bytes)
}

/// What a source does at the read that fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SourceFault {
    Error,
    Panic,
}

/// The payload of a panic of a source.
#[derive(Debug)]
pub(crate) struct InjectedPanic;

/// Whether a panic was injected; any other one is a failure.
pub(crate) fn is_injected_panic(payload: &(dyn Any + Send)) -> bool {
    payload.is::<InjectedPanic>()
}

/// A source of which one read fails.
#[derive(Debug)]
pub(crate) struct FaultySource {
    bytes: Vec<u8>,
    fault: SourceFault,
    /// Reads before the one that fails.
    before: AtomicI64,
    has_come: AtomicBool,
}

impl FaultySource {
    pub(crate) fn new(bytes: &[u8], fault: SourceFault) -> Self {
        let before = AtomicI64::new(i64::MAX);
        Self { bytes: bytes.to_vec(), fault, before, has_come: AtomicBool::new(false) }
    }

    /// Makes the read after the next `before` ones fail.
    pub(crate) fn plan(&self, before: i64) {
        self.has_come.store(false, Ordering::SeqCst);
        self.before.store(before, Ordering::SeqCst);
    }

    /// Whether that read has come.
    pub(crate) fn has_come(&self) -> bool {
        self.has_come.load(Ordering::SeqCst)
    }
}

impl ImageSource for FaultySource {
    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
        if self.before.fetch_sub(1, Ordering::SeqCst) == 0 {
            self.has_come.store(true, Ordering::SeqCst);
            match self.fault {
                SourceFault::Error => return Err(io::Error::other("the medium failed")),
                // A panic, but without a message for each of thousands.
                SourceFault::Panic => std::panic::resume_unwind(Box::new(InjectedPanic)),
            }
        }
        self.bytes.read_at(offset, buffer)
    }

    fn length(&self) -> u64 {
        self.bytes.length()
    }
}

/// A source that records for each read from some byte on whether a worker did it.
#[derive(Debug)]
pub(crate) struct RecordingSource {
    pub(crate) bytes: Vec<u8>,
    pub(crate) from: u64,
    pub(crate) readers: Mutex<Vec<bool>>,
}

impl RecordingSource {
    pub(crate) fn new(bytes: Vec<u8>, from: u64) -> Self {
        Self { bytes, from, readers: Mutex::new(Vec::new()) }
    }

    /// What was recorded since the last call: true for each read by a worker.
    pub(crate) fn take(&self) -> Vec<bool> {
        std::mem::take(&mut self.readers.lock().unwrap())
    }
}

impl ImageSource for RecordingSource {
    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
        if offset >= self.from {
            self.readers.lock().unwrap().push(is_worker());
        }
        self.bytes.read_at(offset, buffer)
    }

    fn length(&self) -> u64 {
        self.bytes.length()
    }
}

/// A source in which reads of some range block until it is opened.
#[derive(Debug)]
pub(crate) struct BlockingSource {
    bytes: Vec<u8>,
    range: Range<u64>,
    state: Mutex<BlockingState>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct BlockingState {
    is_open: bool,
    waiting: usize,
}

impl BlockingSource {
    pub(crate) fn new(bytes: Vec<u8>, range: Range<u64>) -> Self {
        Self { bytes, range, state: Mutex::default(), changed: Condvar::new() }
    }

    pub(crate) fn open(&self) {
        self.state.lock().unwrap().is_open = true;
        self.changed.notify_all();
    }

    /// How many reads have blocked so far.
    pub(crate) fn blocked(&self) -> usize {
        self.state.lock().unwrap().waiting
    }

    /// Waits until so many reads block.
    pub(crate) fn wait_for(&self, count: usize) {
        let state = self.state.lock().unwrap();
        let short = |state: &mut BlockingState| state.waiting < count;
        let waited = self.changed.wait_timeout_while(state, LIMIT, short).unwrap();
        assert!(!waited.1.timed_out(), "no read blocks");
    }
}

impl ImageSource for BlockingSource {
    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
        if self.range.contains(&offset) {
            let mut state = self.state.lock().unwrap();
            state.waiting += 1;
            self.changed.notify_all();
            drop(self.changed.wait_while(state, |state| !state.is_open).unwrap());
        }
        self.bytes.read_at(offset, buffer)
    }

    fn length(&self) -> u64 {
        self.bytes.length()
    }
}

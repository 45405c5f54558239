//! A build whose source fails at any of its reads, and a build with any amount of memory: a named error and nothing left
//! behind, or the same image.
#![allow(clippy::unwrap_used, reason = "a test stops at the first unexpected value")]

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use ferrofs_builder::tree::{
    Content, ContentReader, ContentSource, Metadata, Node, NodeKind, Timestamp, Tree,
};
use ferrofs_builder::{
    Algorithms, BuildOptions, CancelToken, Deduplication, Error, ErrorKind, Fragments,
    NoopObserver, Result, build,
};
use ferrofs_codec::Method;
use tempfile::TempDir;

const FILE_BYTES: usize = 40_000;

/// Calls of all files together; the n-th fails.
#[derive(Debug, Default)]
struct CallCounter {
    calls: AtomicU64,
    failing: u64,
}

impl CallCounter {
    fn call(&self) -> Result<()> {
        if self.calls.fetch_add(1, Ordering::Relaxed) + 1 != self.failing {
            return Ok(());
        }
        let source = io::Error::other("injected");
        Err(Error::new(ErrorKind::Input { operation: "cannot read", source }))
    }
}

/// A file in memory, which is also its own open file.
#[derive(Clone, Debug)]
struct FailingFile {
    bytes: Arc<[u8]>,
    counter: Arc<CallCounter>,
}

impl ContentSource for FailingFile {
    fn name(&self) -> String {
        "file".to_owned()
    }

    fn open(&self) -> Result<Box<dyn ContentReader>> {
        self.counter.call()?;
        Ok(Box::new(self.clone()))
    }

    fn data_ranges(&self) -> Result<Vec<Range<u64>>> {
        self.counter.call()?;
        Ok(std::iter::once(0..self.bytes.len() as u64).collect())
    }
}

impl ContentReader for FailingFile {
    fn read_exact_at(&mut self, offset: u64, buffer: &mut [u8]) -> Result<()> {
        self.counter.call()?;
        let start = usize::try_from(offset).unwrap();
        buffer.copy_from_slice(&self.bytes[start..start + buffer.len()]);
        Ok(())
    }

    fn check_unchanged(&mut self) -> Result<()> {
        self.counter.call()
    }
}

fn metadata() -> Metadata {
    let mtime = Timestamp { seconds: 1_700_000_000, nanoseconds: 0 };
    Metadata { permissions: 0o755, uid: 0, gid: 0, mtime, xattrs: BTreeMap::new() }
}

/// Files of which two are equal, one is short, and one cannot be compressed.
fn tree(counter: &Arc<CallCounter>) -> Tree {
    let mut tree = Tree::new(metadata());
    let mut state = 1_u32;
    let mut random = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        state.to_be_bytes()[0]
    };
    let text: Vec<u8> = b"text that compresses ".iter().copied().cycle().take(FILE_BYTES).collect();
    let noise: Vec<u8> = (0..FILE_BYTES).map(|_| random()).collect();
    for (name, bytes) in [
        ("a", &text[..]),
        ("b", &noise),
        ("c", &noise),
        ("d", &noise[..100]),
        ("e", &text[7..9000]),
    ] {
        let file = FailingFile { bytes: bytes.into(), counter: Arc::clone(counter) };
        let content = Content::new(Arc::new(file), bytes.len() as u64);
        let node = Node { metadata: metadata(), kind: NodeKind::File(content) };
        let node = tree.add(node).unwrap();
        tree.link(Tree::ROOT, name.as_bytes(), node).unwrap();
    }
    tree
}

/// Options that read contents in every way that there is.
fn options() -> [BuildOptions; 3] {
    let lz4 = Algorithms { default: 0, methods: vec![Method::Lz4 { max_distance: u16::MAX }] };
    let compressed = BuildOptions::default().algorithms(Some(lz4)).pcluster_bytes(16 << 10);
    let shared = compressed.clone().fragments(Fragments::Tails).deduplication(Deduplication::On);
    [BuildOptions::default().chunk_bytes(Some(4096)), compressed, shared]
}

fn build_in(folder: &TempDir, tree: &Tree, options: &BuildOptions) -> Result<Vec<u8>> {
    let target = folder.path().join("image");
    build(tree, options, &target, &NoopObserver, &CancelToken::new())?;
    Ok(fs::read(target).unwrap())
}

fn assert_empty(folder: &TempDir, about: &str) {
    let left = fs::read_dir(folder.path()).unwrap().count();
    assert_eq!(left, 0, "{about}: something is left behind");
}

#[test]
fn a_source_that_fails_at_any_call_leaves_nothing_behind() {
    for (number, options) in options().into_iter().enumerate() {
        for jobs in [1, 3] {
            let options = options.clone().jobs(Some(jobs));
            let mut failures = 0;
            for failing in 1.. {
                let counter = Arc::new(CallCounter { failing, ..CallCounter::default() });
                let folder = TempDir::new().unwrap();
                let built = build_in(&folder, &tree(&counter), &options);
                if counter.calls.load(Ordering::Relaxed) < failing {
                    built.unwrap();
                    break;
                }
                failures += 1;
                let about = format!("options {number}, {jobs} jobs, call {failing}");
                let error = built.err().unwrap_or_else(|| panic!("{about}: nobody noticed"));
                assert!(matches!(error.kind(), ErrorKind::Input { .. }), "{about}: {error}");
                assert_empty(&folder, &about);
            }
            assert!(failures > 10, "options {number}: only {failures} calls");
        }
    }
}

#[test]
fn any_amount_of_memory_gives_the_same_image_or_a_named_error() {
    let counter = Arc::new(CallCounter::default());
    for options in options() {
        let options = options.jobs(Some(1));
        let whole = build_in(&TempDir::new().unwrap(), &tree(&counter), &options).unwrap();
        let (mut refused, mut built) = (0, 0);
        for step in 0..160 {
            // From too little for anything to enough for everything.
            let memory_bytes = 1000 + (step * step * step * 12);
            let folder = TempDir::new().unwrap();
            let about = format!("{memory_bytes} bytes");
            match build_in(&folder, &tree(&counter), &options.clone().memory_bytes(memory_bytes)) {
                Ok(image) => {
                    built += 1;
                    // A search for duplicates with less memory may find fewer of them.
                    assert!(
                        image == whole || options.deduplication == Deduplication::On,
                        "{about}"
                    );
                }
                Err(error) => {
                    refused += 1;
                    let kind = error.kind();
                    let is_named =
                        matches!(kind, ErrorKind::InvalidOptions(_) | ErrorKind::Workers(_));
                    assert!(is_named, "{about}: {error}");
                    assert_empty(&folder, &about);
                }
            }
        }
        assert!(refused > 5 && built > 5, "{refused} refused, {built} built");
    }
}

//! A tree of files that no codec can shorten, the image of it, and readers that compare.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::thread;

use crate::command::{Verb, ferrofs};
use crate::world::World;

/// Bytes of a file, between these.
const FILE_BYTES: std::ops::Range<u64> = 1000..1 << 20;

pub(crate) struct Tree {
    directory: tempfile::TempDir,
    files: Vec<String>,
    /// The image of it.
    pub(crate) image: PathBuf,
}

/// A figure of a test, which the environment variable `name` can make larger.
pub(crate) fn figure(name: &str, min: u64) -> u64 {
    std::env::var(name).map_or(min, |text| text.parse::<u64>().unwrap().max(min))
}

/// The steps of xorshift64 from `initial_state` on.
pub(crate) fn random(initial_state: u64) -> impl Iterator<Item = u64> {
    let mut state = initial_state | 1;
    std::iter::repeat_with(move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    })
}

impl Tree {
    /// With files of at least `bytes` together. `None` if the command was not built.
    pub(crate) fn new(bytes: u64) -> Option<Self> {
        let program = ferrofs()?;
        let directory = tempfile::tempdir().unwrap();
        let root = directory.path().join("tree");
        let mut steps = random(bytes);
        let mut files = Vec::new();
        let mut written = 0;
        while written < bytes {
            let folder = files.len() % 7;
            fs::create_dir_all(root.join(format!("d{folder}"))).unwrap();
            let name = format!("d{folder}/f{}", files.len());
            let span = FILE_BYTES.end - FILE_BYTES.start;
            let length = FILE_BYTES.start + steps.next().unwrap() % span;
            let count = usize::try_from(length).unwrap();
            let words = steps.by_ref().take(count.div_ceil(8));
            let mut content: Vec<u8> = words.flat_map(u64::to_le_bytes).collect();
            content.truncate(count);
            fs::write(root.join(&name), content).unwrap();
            files.push(name);
            written += length;
        }
        let image = directory.path().join("image.erofs");
        let world = World::new();
        let verb = Verb { program: &program, world: &world };
        let arguments = ["build", "-q", image.to_str().unwrap(), root.to_str().unwrap()];
        let output = std::process::Command::new(verb.program).args(arguments).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        Some(Self { directory, files, image })
    }

    fn content(&self, name: &str) -> Vec<u8> {
        fs::read(self.directory.path().join("tree").join(name)).unwrap()
    }

    /// Reads all files below `root` once, by so many readers, and compares. Returns the bytes.
    pub(crate) fn compare(&self, root: &Path, readers: usize) -> u64 {
        let (next, bytes) = (AtomicUsize::new(0), AtomicU64::new(0));
        thread::scope(|scope| {
            for _ in 0..readers {
                scope.spawn(|| {
                    while let Some(name) = self.files.get(next.fetch_add(1, Ordering::SeqCst)) {
                        let found = fs::read(root.join(name));
                        let found = found.unwrap_or_else(|error| panic!("{name}: {error}"));
                        assert!(found == self.content(name), "{name} has other bytes");
                        bytes.fetch_add(found.len() as u64, Ordering::SeqCst);
                    }
                });
            }
        });
        bytes.into_inner()
    }

    pub(crate) fn image(&self) -> Vec<u8> {
        fs::read(&self.image).unwrap()
    }
}

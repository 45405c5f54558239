//! Gets files ready that will be read next: decodes them and puts them into the kernel's page cache, where a reader
//! finds them without asking anybody. It is best effort: what has no memory, or no time, is left to be asked for.
//! Told by `read` what `forecast` foresees; its threads run the census, too.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, PoisonError, Weak};
use std::thread::JoinHandle;

use ferrofs_image::workers::priority::{self, Rung, Wanted};
use ferrofs_image::{File, FileType, Nid, ReadOutcome};

use super::ImageFs;

/// Longer files are left to the kernel's readahead, and to ours.
const MAX_BYTES: u64 = 256 << 10;
/// Files that a thread takes at a time.
const BATCH_FILES: usize = 4;
/// Batches that may wait; more than this are behind the reader already.
const MAX_WAITING: usize = 64;

/// Threads that get files ready.
#[derive(Debug)]
pub(super) struct Pushers {
    queue: Arc<Queue>,
    most_threads: usize,
    /// That of the listeners: what is stored too late is asked for meanwhile, which costs a listener more.
    priority: Wanted,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

#[derive(Debug, Default)]
struct Queue {
    state: Mutex<State>,
    more: Condvar,
}

#[derive(Debug, Default)]
struct State {
    batches: VecDeque<Batch>,
    is_over: bool,
}

/// What a thread takes at a time.
#[derive(Debug)]
enum Batch {
    Files(Vec<Nid>),
    Around(Arc<File>, u64, ReadOutcome),
    Census,
}

impl Pushers {
    /// None is started before there is something to do.
    pub(super) fn new(most_threads: usize, priority: Wanted) -> Self {
        Self { queue: Arc::default(), most_threads, priority, threads: Mutex::default() }
    }

    /// Has these files got ready, the first ones first.
    pub(super) fn push(&self, files: &[Nid], image_fs: &Weak<ImageFs>) {
        for batch in files.chunks(BATCH_FILES) {
            self.hand_over(Batch::Files(batch.to_vec()), image_fs);
        }
    }

    /// Has stored what lies around a read.
    pub(super) fn store_around(
        &self,
        file: Arc<File>,
        offset: u64,
        read: ReadOutcome,
        image_fs: &Weak<ImageFs>,
    ) {
        self.hand_over(Batch::Around(file, offset, read), image_fs);
    }

    /// Has the census run.
    pub(super) fn count_xattrs(&self, image_fs: &Weak<ImageFs>) {
        self.hand_over(Batch::Census, image_fs);
    }

    /// What comes when too much waits is left out, but for the census, which is asked for once.
    fn hand_over(&self, batch: Batch, image_fs: &Weak<ImageFs>) {
        self.start_threads(image_fs);
        let mut state = self.queue.state.lock().unwrap_or_else(PoisonError::into_inner);
        if state.batches.len() < MAX_WAITING || matches!(batch, Batch::Census) {
            state.batches.push_back(batch);
            drop(state);
            self.queue.more.notify_one();
        }
    }

    fn start_threads(&self, image_fs: &Weak<ImageFs>) {
        let mut threads = self.threads.lock().unwrap_or_else(PoisonError::into_inner);
        while threads.len() < self.most_threads {
            let (queue, priority) = (Arc::clone(&self.queue), self.priority);
            let image_fs = Weak::clone(image_fs);
            let name = format!("erofs_push/{}", threads.len());
            let thread = std::thread::Builder::new().name(name);
            let run = move || {
                let _reached: Rung = priority::apply(priority);
                queue.serve(&image_fs);
            };
            match thread.spawn(run) {
                Ok(thread) => threads.push(thread),
                Err(_) => return,
            }
        }
    }

    /// Ends the threads.
    pub(super) fn end(&self) {
        self.queue.state.lock().unwrap_or_else(PoisonError::into_inner).is_over = true;
        self.queue.more.notify_all();
        let threads =
            std::mem::take(&mut *self.threads.lock().unwrap_or_else(PoisonError::into_inner));
        for thread in threads {
            thread.join().ok();
        }
    }
}

impl Queue {
    fn serve(&self, image_fs: &Weak<ImageFs>) {
        while let Some(batch) = self.take() {
            let Some(image_fs) = image_fs.upgrade() else { return };
            // A panic costs what it was about to get ready, and no thread.
            let done = catch_unwind(AssertUnwindSafe(|| image_fs.get_ready(batch)));
            drop(done);
        }
    }

    fn take(&self) -> Option<Batch> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            if state.is_over {
                return None;
            }
            if let Some(batch) = state.batches.pop_front() {
                return Some(batch);
            }
            state = self.more.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

impl ImageFs {
    fn get_ready(&self, batch: Batch) {
        match batch {
            Batch::Files(files) => files.into_iter().for_each(|nid| self.push_file(nid)),
            Batch::Around(file, offset, read) => self.store_now(&file, offset, read),
            Batch::Census => self.census.run(&self.image),
        }
    }

    /// Whatever fails here is said by the read that needs it.
    fn push_file(&self, nid: Nid) {
        let Ok(inode) = self.image.inode(nid) else { return };
        if inode.file_type() != FileType::Regular || !(1..=MAX_BYTES).contains(&inode.size()) {
            return;
        }
        let Ok(bytes) = usize::try_from(inode.size()) else { return };
        let Some(mut buffer) = self.image.spare_buffer(bytes) else { return };
        let Some(target) = buffer.get_mut(..bytes) else { return };
        if self.image.read_at(&inode, 0, target).is_ok_and(|count| count == bytes) {
            self.store(self.nodes.node(nid), 0, target);
        }
    }

    /// Gives the kernel bytes of a file; it may not want them.
    pub(super) fn store(&self, node: u64, offset: u64, bytes: &[u8]) {
        let Some(notifier) = self.notifier.get() else { return };
        // What the kernel has no memory for, or has forgotten, is asked for when it is wanted.
        if notifier.store(node, offset, bytes).is_ok() {
            self.meters.stored(bytes.len());
        }
    }
}

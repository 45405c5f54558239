//! Prefetch: a table that predicts which files will be read next, and a queue of tasks that make later reads faster.
//!
//! After files that were read in the order in which a directory listed them, the next ones of that order are predicted. The
//! table has a fixed size; a file that it has forgotten is not predicted. It reads nothing itself. `readdir` fills it, also for
//! directories in which files are looked up without a listing, and `read` queries it.
//!
//! The queue is bounded, and has threads of its own. It knows no file system: a closure of `image_fs` runs the tasks. Best
//! effort: a task that finds the queue full is dropped.

use std::collections::VecDeque;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use ferrofs_image::{Nid, OpenFile, ReadOutcome};
use ferrofs_workers::priority::{self, PriorityLevel, PriorityRequest};

/// Files in the table: those that were listed last.
const FILES: usize = 1 << 14;
/// The largest number of files of one prediction, after a long run of reads in order.
const MAX_PREDICTED: usize = 32;
/// How many files a prediction looks at, including those that were read or predicted already.
const MAX_STEPS: usize = 96;

/// The kernel knows the inode, so its pages can be stored.
const KNOWN: u8 = 1;
/// The file was read.
const READ: u8 = 2;
/// The file was predicted.
const PREDICTED: u8 = 4;
const DONE: u8 = READ | PREDICTED;

/// The predictor of a mount.
#[derive(Debug, Default)]
pub(super) struct ReadPredictor {
    table: Mutex<PredictorTable>,
}

/// A ring of the files in the order in which they were listed, and an index of it. Both are empty until a directory is
/// listed.
#[derive(Debug, Default)]
struct PredictorTable {
    ring: Vec<RingEntry>,
    /// How many files were listed so far. The next one goes to this position of the ring, modulo its length.
    listed: usize,
    /// For each bucket of inode numbers, positions in the ring at which its files may be: a set-associative cache.
    index: Vec<[u16; WAYS]>,
    /// Directories of files that were looked up last and are not in the ring.
    unlisted: VecDeque<Nid>,
}

/// So many directories are remembered: more than a program with several threads uses at a time, and so few that lookups all
/// over a tree list none.
const UNLISTED: usize = 8;

/// Positions in a bucket.
const WAYS: usize = 4;
const BUCKETS: usize = FILES / WAYS;
/// Bits of a hash that select its bucket.
const BUCKET_BITS: u32 = BUCKETS.ilog2();
// The hash selects every bucket and no other, and positions fit in the index.
const _: () = assert!(BUCKETS == 1 << BUCKET_BITS && FILES <= 1 << u16::BITS);

/// A regular file of a listing.
#[derive(Clone, Copy, Debug)]
pub(super) struct ListedFile {
    pub(super) nid: Nid,
    /// Whether the kernel knows the inode.
    pub(super) is_known: bool,
}

/// A file in the ring.
#[derive(Clone, Copy, Debug)]
struct RingEntry {
    nid: Nid,
    state: u8,
    /// The length of the run of files in order, up to this one, that were read or predicted.
    run: u8,
}

/// Not a valid inode number.
const NO_FILE: Nid = Nid::new(u64::MAX);

impl ReadPredictor {
    /// Regular files are listed in this order.
    pub(super) fn record_listing(&self, files: &[ListedFile]) {
        if files.is_empty() {
            return;
        }
        let mut table = lock(&self.table);
        if table.ring.is_empty() {
            table.ring = vec![RingEntry { nid: NO_FILE, state: 0, run: 0 }; FILES];
            table.index = vec![[0; WAYS]; BUCKETS];
        }
        for file in files {
            table.insert(file);
        }
    }

    /// A file of this directory was looked up, so the kernel knows it from now on. Returns whether to list the directory for
    /// the table, which does not have the file: a lookup before was of such a file, too.
    pub(super) fn on_lookup(&self, directory: Nid, file: Nid) -> bool {
        let mut table = lock(&self.table);
        if let Some(position) = table.position(file)
            && let Some(entry) = table.ring.get_mut(position)
        {
            entry.state |= KNOWN;
            return false;
        }
        if let Some(place) = table.unlisted.iter().position(|known| *known == directory) {
            table.unlisted.remove(place);
            return true;
        }
        if table.unlisted.len() >= UNLISTED {
            table.unlisted.pop_front();
        }
        table.unlisted.push_back(directory);
        false
    }

    /// A file is read from its start. Returns the files to prefetch. One in their middle is left out: its read shows that
    /// the reader continues, while the other half is still ahead.
    pub(super) fn on_read(&self, nid: Nid) -> Vec<Nid> {
        let mut table = lock(&self.table);
        table.on_read(nid).unwrap_or_default()
    }
}

impl PredictorTable {
    fn insert(&mut self, file: &ListedFile) {
        let ListedFile { nid, is_known } = *file;
        let position = self.listed % FILES;
        self.listed = self.listed.wrapping_add(1);
        let state = if is_known { KNOWN } else { 0 };
        let Some(entry) = self.ring.get_mut(position) else { return };
        *entry = RingEntry { nid, state, run: 0 };
        if let Some(ways) = self.index.get_mut(bucket(nid)) {
            ways.rotate_right(1);
            ways[0] = u16::try_from(position).unwrap_or(0);
        }
    }

    /// The position of a file in the ring; the latest one if it was listed more than once.
    fn position(&self, nid: Nid) -> Option<usize> {
        let is_here =
            |position: &usize| self.ring.get(*position).is_some_and(|entry| entry.nid == nid);
        self.index.get(bucket(nid))?.iter().map(|position| usize::from(*position)).find(is_here)
    }

    fn on_read(&mut self, nid: Nid) -> Option<Vec<Nid>> {
        let position = self.position(nid)?;
        let before = position.checked_add(FILES)?.checked_sub(1)? % FILES;
        let before = self.ring.get(before).filter(|entry| entry.state & DONE != 0);
        let run = before.map_or(0, |entry| entry.run.saturating_add(1));
        let entry = self.ring.get_mut(position)?;
        let was_read = entry.state & READ != 0;
        entry.state |= READ;
        entry.run = run;
        // The kernel has dropped its pages, and most likely those of the next files, too.
        if was_read {
            self.clear_done(position);
        }
        if run == 0 {
            return None;
        }
        // Of a longer run no bit of the number would be left.
        let most = 4usize.checked_shl(u32::from(run.min(16))).unwrap_or(MAX_PREDICTED);
        let most = most.min(MAX_PREDICTED);
        let mut predicted = self.predict(position, run, most);
        if predicted.len() > 1 {
            let left_out = predicted.remove(predicted.len() / 2);
            self.ring.get_mut(left_out)?.state &= !PREDICTED;
        }
        let nid_at = |position: usize| self.ring.get(position).map(|entry| entry.nid);
        Some(predicted.into_iter().filter_map(nid_at).collect())
    }

    fn clear_done(&mut self, position: usize) {
        for step in 1..=MAX_STEPS {
            if let Some(entry) = self.ring.get_mut(position.saturating_add(step) % FILES) {
                entry.state &= !DONE;
            }
        }
    }

    /// Positions of the files to prefetch.
    fn predict(&mut self, position: usize, mut run: u8, most: usize) -> Vec<usize> {
        let mut found = Vec::new();
        for step in 1..=MAX_STEPS {
            let at = position.saturating_add(step) % FILES;
            // The files after the last one were listed long ago.
            let is_end = at == self.listed % FILES;
            let Some(entry) = self.ring.get_mut(at).filter(|_| !is_end) else { break };
            run = run.max(entry.run).saturating_add(1);
            if entry.state & DONE == 0 {
                if entry.state & KNOWN == 0 || found.len() >= most {
                    break;
                }
                entry.state |= PREDICTED;
                entry.run = run;
                found.push(at);
            }
        }
        found
    }
}

/// The bucket of a file in the index.
fn bucket(nid: Nid) -> usize {
    // Fibonacci hashing: the upper bits of the product with 2^64 divided by the golden ratio.
    let mixed = nid.raw().wrapping_mul(0x9E37_79B9_7F4A_7C15) >> (u64::BITS - BUCKET_BITS);
    usize::try_from(mixed).unwrap_or(0)
}

/// Files of one task.
const BATCH_FILES: usize = 4;
/// The largest number of queued tasks. The reader has passed the files of older ones already.
const MAX_QUEUED: usize = 64;

/// A task for a prefetch thread.
#[derive(Debug)]
pub(super) enum PrefetchTask {
    /// Store these small files in the page cache.
    Files(Vec<Nid>),
    /// Store the data near a read.
    Readaround {
        /// The file.
        file: Arc<OpenFile>,
        /// The offset of the read.
        offset: u64,
        /// What it read.
        read: ReadOutcome,
    },
}

type RunTask = dyn Fn(PrefetchTask) + Send + Sync;

/// The queue.
#[derive(Debug)]
pub(super) struct PrefetchQueue {
    tasks: Arc<TaskQueue>,
    /// What its threads are called; each has a number after it.
    name: &'static str,
    max_threads: usize,
    /// As of the listeners: a store that comes too late is requested meanwhile, which costs a listener more.
    priority: PriorityRequest,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

struct TaskQueue {
    run: Box<RunTask>,
    state: Mutex<TaskQueueState>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct TaskQueueState {
    tasks: VecDeque<PrefetchTask>,
    /// Threads that wait for a task. One that was woken counts until it has taken its task.
    idle_threads: usize,
    is_shut_down: bool,
}

impl PrefetchQueue {
    /// A queue whose threads run each task with `run`. It starts at most `max_threads` threads, and none before the
    /// first task.
    pub(super) fn new(
        name: &'static str,
        max_threads: usize,
        priority: PriorityRequest,
        run: impl Fn(PrefetchTask) + Send + Sync + 'static,
    ) -> Self {
        let tasks =
            TaskQueue { run: Box::new(run), state: Mutex::default(), changed: Condvar::new() };
        Self { tasks: Arc::new(tasks), name, max_threads, priority, threads: Mutex::default() }
    }

    /// Queues files, the first ones first.
    pub(super) fn submit_files(&self, files: &[Nid]) {
        for batch in files.chunks(BATCH_FILES) {
            self.submit(PrefetchTask::Files(batch.to_vec()));
        }
    }

    /// Queues a task. A full queue drops it.
    pub(super) fn submit(&self, task: PrefetchTask) {
        let mut state = self.tasks.lock();
        if state.tasks.len() >= MAX_QUEUED {
            return;
        }
        state.tasks.push_back(task);
        let needs_thread = state.tasks.len() > state.idle_threads;
        drop(state);
        self.tasks.changed.notify_one();
        if needs_thread {
            self.start_thread();
        }
    }

    /// If no thread can be started, the tasks wait for the next attempt, or for a thread that is busy.
    fn start_thread(&self) {
        let mut threads = lock(&self.threads);
        if threads.len() >= self.max_threads {
            return;
        }
        let (tasks, priority) = (Arc::clone(&self.tasks), self.priority);
        let thread = std::thread::Builder::new().name(format!("{}/{}", self.name, threads.len()));
        let body = move || {
            let _reached: PriorityLevel = priority::apply(priority);
            tasks.run_until_shut_down();
        };
        if let Ok(thread) = priority::spawn(priority, thread, body) {
            threads.push(thread);
        }
    }

    /// Ends the threads, each after its present task.
    pub(super) fn shut_down(&self) {
        self.tasks.lock().is_shut_down = true;
        self.tasks.changed.notify_all();
        let threads = std::mem::take(&mut *lock(&self.threads));
        for thread in threads {
            thread.join().ok();
        }
    }
}

impl TaskQueue {
    fn run_until_shut_down(&self) {
        while let Some(task) = self.pop() {
            // A panic loses its task, but no thread.
            catch_unwind(AssertUnwindSafe(|| (self.run)(task))).ok();
        }
    }

    /// Waits for a task; `None` once the queue is shut down.
    fn pop(&self) -> Option<PrefetchTask> {
        let mut state = self.lock();
        loop {
            if state.is_shut_down {
                return None;
            }
            if let Some(task) = state.tasks.pop_front() {
                return Some(task);
            }
            state.idle_threads = state.idle_threads.saturating_add(1);
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
            state.idle_threads = state.idle_threads.saturating_sub(1);
        }
    }

    fn lock(&self) -> MutexGuard<'_, TaskQueueState> {
        lock(&self.state)
    }
}

impl fmt::Debug for TaskQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TaskQueue").field("state", &self.state).finish_non_exhaustive()
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Receiver, Sender, channel};

    use super::*;

    fn shown(count: u64) -> ReadPredictor {
        let predictor = ReadPredictor::default();
        let files: Vec<_> =
            (1..=count).map(|raw| ListedFile { nid: Nid::new(raw), is_known: true }).collect();
        predictor.record_listing(&files);
        predictor
    }

    fn raw(nids: &[Nid]) -> Vec<u64> {
        nids.iter().map(|nid| nid.raw()).collect()
    }

    #[test]
    fn two_files_in_order_start_a_prediction() {
        let predictor = shown(100);
        assert!(predictor.on_read(Nid::new(10)).is_empty());
        assert!(predictor.on_read(Nid::new(20)).is_empty());
        let predicted = predictor.on_read(Nid::new(11));
        assert_eq!(raw(&predicted), [12, 13, 14, 15, 17, 18, 19]);
    }

    #[test]
    fn a_long_run_predicts_as_much_as_a_short_one() {
        for run in [5, 62, 63, 64, 255] {
            let predictor = shown(300);
            {
                let mut table = predictor.table.lock().unwrap();
                let before = table.position(Nid::new(9)).unwrap();
                table.ring[before].state |= READ;
                table.ring[before].run = run - 1;
            }
            assert_eq!(predictor.on_read(Nid::new(10)).len(), MAX_PREDICTED - 1, "{run}");
        }
    }

    /// The read of the file that was left out continues the prediction. No file is predicted twice.
    #[test]
    fn a_reader_in_order_requests_few_files() {
        let predictor = shown(200);
        let mut ready = std::collections::BTreeSet::new();
        let mut requests = 0;
        for number in 1..=200 {
            let nid = Nid::new(number);
            if ready.contains(&nid) {
                continue;
            }
            requests += 1;
            for predicted in predictor.on_read(nid) {
                assert!(ready.insert(predicted));
            }
        }
        assert!(requests < 20, "{requests} requests for 200 files");
    }

    #[test]
    fn files_that_the_kernel_does_not_know_end_a_prediction() {
        let predictor = ReadPredictor::default();
        let files = [(1, true), (2, true), (3, true), (4, false), (5, true)];
        predictor.record_listing(
            &files.map(|(raw, is_known)| ListedFile { nid: Nid::new(raw), is_known }),
        );
        predictor.on_read(Nid::new(1));
        assert_eq!(raw(&predictor.on_read(Nid::new(2))), [3]);
        assert!(!predictor.on_lookup(Nid::new(100), Nid::new(4)));
        predictor.on_read(Nid::new(3));
        assert_eq!(raw(&predictor.on_read(Nid::new(4))), [5]);
    }

    #[test]
    fn the_second_lookup_in_a_directory_that_was_not_listed_asks_for_its_listing() {
        let predictor = ReadPredictor::default();
        let look_up = |directory, file| predictor.on_lookup(Nid::new(directory), Nid::new(file));
        assert!(!look_up(100, 1) && !look_up(200, 11), "the first one of each");
        assert!(look_up(100, 2));
        let files = [1, 2, 3].map(|raw| ListedFile { nid: Nid::new(raw), is_known: raw == 2 });
        predictor.record_listing(&files);
        assert!(!look_up(100, 3) && !look_up(100, 3), "it is listed");
        predictor.on_read(Nid::new(1));
        assert_eq!(raw(&predictor.on_read(Nid::new(2))), [3]);
        (300..308).for_each(|directory| assert!(!look_up(directory, directory + 1000)));
        assert!(!look_up(200, 12), "forgotten");
    }

    #[test]
    fn files_that_were_never_listed_predict_nothing() {
        let predictor = ReadPredictor::default();
        assert!(predictor.on_read(Nid::new(1)).is_empty());
        let predictor = shown(5);
        assert!(predictor.on_read(Nid::new(77)).is_empty());
    }

    #[test]
    fn files_that_are_read_again_are_predicted_again() {
        let predictor = shown(100);
        for number in 1..=60 {
            predictor.on_read(Nid::new(number));
        }
        assert!(raw(&predictor.on_read(Nid::new(10))).contains(&11));
    }

    #[test]
    fn a_full_table_forgets_the_oldest_files() {
        let predictor = shown(40_000);
        predictor.on_read(Nid::new(1));
        assert!(predictor.on_read(Nid::new(2)).is_empty());
        predictor.on_read(Nid::new(39_000));
        assert_eq!(predictor.on_read(Nid::new(39_001)).len(), 7);
    }

    #[test]
    fn every_bucket_is_used() {
        let used: std::collections::BTreeSet<_> =
            (0..64 * BUCKETS as u64).map(|raw| bucket(Nid::new(raw))).collect();
        assert_eq!(used, (0..BUCKETS).collect());
    }

    /// A queue whose tasks report that they run, and then wait for a message.
    fn queue(max_threads: usize) -> (PrefetchQueue, Receiver<()>, Sender<()>) {
        let (report, started) = channel();
        let (release, gate) = channel();
        let gate = Mutex::new(gate);
        let queue =
            PrefetchQueue::new("prefetch", max_threads, PriorityRequest::Normal, move |_| {
                report.send(()).unwrap();
                lock(&gate).recv().unwrap();
            });
        (queue, started, release)
    }

    fn threads(queue: &PrefetchQueue) -> usize {
        lock(&queue.threads).len()
    }

    fn wait_until_idle(queue: &PrefetchQueue, threads: usize) {
        while queue.tasks.lock().idle_threads < threads {
            std::thread::yield_now();
        }
    }

    #[test]
    fn the_first_task_starts_one_thread() {
        let (queue, started, release) = queue(8);
        assert_eq!(threads(&queue), 0);
        queue.submit_files(&[Nid::new(1)]);
        started.recv().unwrap();
        assert_eq!(threads(&queue), 1);
        release.send(()).unwrap();
        wait_until_idle(&queue, 1);
        queue.submit_files(&[Nid::new(1)]);
        started.recv().unwrap();
        assert_eq!(threads(&queue), 1, "the idle thread takes the task");
        release.send(()).unwrap();
        queue.shut_down();
    }

    #[test]
    fn busy_threads_get_help_up_to_the_limit() {
        let (queue, started, release) = queue(2);
        for number in 1..=3 {
            queue.submit_files(&[Nid::new(number)]);
        }
        assert_eq!(threads(&queue), 2);
        for _ in 0..3 {
            started.recv().unwrap();
            release.send(()).unwrap();
        }
        queue.shut_down();
    }

    #[test]
    fn a_full_queue_drops_tasks() {
        let (queue, started, release) = queue(0);
        for _ in 0..2 * MAX_QUEUED {
            queue.submit_files(&[Nid::new(1)]);
        }
        assert_eq!(queue.tasks.lock().tasks.len(), MAX_QUEUED);
        drop((started, release));
        queue.shut_down();
    }
}

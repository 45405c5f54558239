//! A bounded queue of tasks that make later reads faster, and its threads. It knows no file system: a closure runs the
//! tasks. Best effort: a task that finds the queue full is dropped. Used by `image_fs`.

use std::collections::VecDeque;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use ferrofs_image::{Nid, OpenFile, ReadOutcome};
use ferrofs_workers::priority::{self, PriorityLevel, PriorityRequest};

/// Files of one task.
const BATCH_FILES: usize = 4;
/// The largest number of queued tasks. The reader has passed the files of older ones already.
const MAX_QUEUED: usize = 64;

/// A task for a prefetch thread.
#[derive(Debug)]
pub(super) enum PrefetchTask {
    /// Store these small files in the page cache.
    Files(Vec<Nid>),
    /// Store what is around a read.
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
    pub(super) fn push_files(&self, files: &[Nid]) {
        for batch in files.chunks(BATCH_FILES) {
            self.push(PrefetchTask::Files(batch.to_vec()));
        }
    }

    /// Queues a task. A full queue drops it.
    pub(super) fn push(&self, task: PrefetchTask) {
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
        if let Ok(thread) = thread.spawn(body) {
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
        queue.push_files(&[Nid::new(1)]);
        started.recv().unwrap();
        assert_eq!(threads(&queue), 1);
        release.send(()).unwrap();
        wait_until_idle(&queue, 1);
        queue.push_files(&[Nid::new(1)]);
        started.recv().unwrap();
        assert_eq!(threads(&queue), 1, "the idle thread takes the task");
        release.send(()).unwrap();
        queue.shut_down();
    }

    #[test]
    fn busy_threads_get_help_up_to_the_limit() {
        let (queue, started, release) = queue(2);
        for number in 1..=3 {
            queue.push_files(&[Nid::new(number)]);
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
            queue.push_files(&[Nid::new(1)]);
        }
        assert_eq!(queue.tasks.lock().tasks.len(), MAX_QUEUED);
        drop((started, release));
        queue.shut_down();
    }
}

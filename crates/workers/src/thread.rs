//! Threads that have a name, an owner, perhaps a CPU, and a known priority. This file owns their start and their
//! end, never what they do. [`ThreadSpawner`] starts the threads of a pool, and lets tests refuse them;
//! [`ThreadInfo`] is what a pool knows of a running thread. docs/workers.md, steps T1 to T3.
//!
//! Under loom a thread is loom's, without a CPU and without a priority.

use rustix::process::Pid;
use rustix::thread::{CpuSet as Mask, gettid, sched_getaffinity, sched_setaffinity};

use crate::cpus::CpuSet;
use crate::error::Error;
#[cfg(any(not(loom), test))]
use crate::error::ErrorKind;
use crate::priority::{PriorityLevel, PriorityRequest};
use crate::sync::thread::{self, JoinHandle, ThreadId};

/// The kernel keeps 15 bytes of a thread's name.
const MAX_NAME_BYTES: usize = 15;

/// How a thread is started.
#[derive(Debug, Clone)]
#[cfg_attr(loom, allow(dead_code, reason = "a modelled thread has no name, CPU or priority"))]
pub(crate) struct ThreadOptions {
    /// Shown by the system's tools; cut after 15 bytes, between two characters.
    pub(crate) name: String,
    /// The one CPU that it stays on. None: wherever the process may run.
    pub(crate) cpu: Option<usize>,
    /// Whether it asks for another priority than it inherits.
    pub(crate) priority: PriorityRequest,
}

/// What the system gave a thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ThreadPlacement {
    /// The priority level that it reached.
    pub(crate) priority_level: PriorityLevel,
    /// Whether it is bound to the CPU that it asked for. False if it asked for none.
    pub(crate) is_pinned: bool,
}

/// A running thread. Dropping this waits for its end, except on the thread itself.
#[derive(Debug)]
pub(crate) struct OwnedThread {
    handle: Option<JoinHandle<()>>,
    id: ThreadId,
}

/// Starts a thread, binds and raises it, and runs `body` on it with what the system gave. A refusal to bind or
/// to raise is no error: the placement says so.
///
/// # Errors
/// [`ErrorKind::NoThread`](crate::ErrorKind::NoThread), with the system's number, if the system gives no thread.
pub(crate) fn start(
    options: ThreadOptions,
    body: impl FnOnce(ThreadPlacement) + Send + 'static,
) -> Result<OwnedThread, Error> {
    let handle = spawn(options, body)?;
    let id = handle.thread().id();
    Ok(OwnedThread { handle: Some(handle), id })
}

impl OwnedThread {
    /// Waits for the thread's end. On the thread itself it detaches instead.
    pub(crate) fn join(self) {
        drop(self);
    }

    /// Whether the caller is this thread.
    pub(crate) fn is_current(&self) -> bool {
        thread::current().id() == self.id
    }
}

impl Drop for OwnedThread {
    fn drop(&mut self) {
        let is_current = self.is_current();
        if let Some(handle) = self.handle.take()
            && !is_current
        {
            // An error here is the body's panic, which ends at the thread's edge.
            drop(handle.join());
        }
    }
}

#[cfg(not(loom))]
fn spawn(
    options: ThreadOptions,
    body: impl FnOnce(ThreadPlacement) + Send + 'static,
) -> Result<JoinHandle<()>, Error> {
    let ThreadOptions { name, cpu, priority } = options;
    let builder = thread::Builder::new().name(cut_name(name));
    builder.spawn(move || body(place(cpu, priority))).map_err(|refusal| {
        let error = Error::new(ErrorKind::NoThread, "starting a thread");
        match refusal.raw_os_error() {
            Some(number) => error.with_errno(rustix::io::Errno::from_raw_os_error(number)),
            None => error,
        }
    })
}

#[cfg(loom)]
fn spawn(
    _options: ThreadOptions,
    body: impl FnOnce(ThreadPlacement) + Send + 'static,
) -> Result<JoinHandle<()>, Error> {
    let placement = ThreadPlacement { priority_level: PriorityLevel::Normal, is_pinned: false };
    Ok(thread::spawn(move || body(placement)))
}

/// On the new thread: the CPU first, so that a raised thread does not disturb another one.
#[cfg(not(loom))]
fn place(cpu: Option<usize>, priority: PriorityRequest) -> ThreadPlacement {
    let is_pinned = match cpu {
        Some(cpu) => CpuSet::from_iter([cpu]).bind_current_thread().is_ok(),
        None => {
            // The thread that starts this one may be bound to one CPU, and this one inherits that. If the
            // system refuses, it stays there.
            CpuSet::of_process().bind_current_thread().ok();
            false
        }
    };
    ThreadPlacement { priority_level: crate::priority::apply(priority), is_pinned }
}

/// The part of a name that the kernel keeps: what comes before a zero byte, 15 bytes at most.
#[cfg(not(loom))]
fn cut_name(mut name: String) -> String {
    let end = name.find('\0').unwrap_or(name.len());
    name.truncate(name.floor_char_boundary(end.min(MAX_NAME_BYTES)));
    name
}

/// `name` and `suffix` in as many bytes as the kernel keeps: the name is cut, never the suffix.
pub(crate) fn thread_name(name: &str, suffix: &str) -> String {
    let room = MAX_NAME_BYTES.saturating_sub(suffix.len());
    let end = name.floor_char_boundary(room.min(name.len()));
    name.get(..end).unwrap_or_default().to_owned() + suffix
}

/// What a pool knows of one of its running threads. The thread writes it once, and the pool uses it as long as
/// the thread lives.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ThreadInfo {
    /// The priority level that it reached.
    pub(crate) priority_level: PriorityLevel,
    /// The system's number of the thread.
    pub(crate) thread_id: i32,
}

/// Whether a thread is bound to its CPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum AffinityCheck {
    /// It is, or the system does not say.
    Bound,
    /// It was not, and is again.
    Rebound,
    /// It is not, and the system refuses to bind it.
    Lost,
}

impl ThreadInfo {
    /// Of the calling thread.
    pub(crate) fn of_current_thread(priority_level: PriorityLevel) -> Self {
        Self { priority_level, thread_id: gettid().as_raw_pid() }
    }

    /// Makes sure that the thread is bound to `cpu` and to no other. The caller knows that it lives.
    pub(crate) fn ensure_bound_to(self, cpu: usize) -> AffinityCheck {
        let thread = Pid::from_raw(self.thread_id);
        // A modelled thread has no CPU. On machines with more CPUs than a mask holds, the workers check.
        if cfg!(loom) || thread.is_none() || cpu >= Mask::MAX_CPU {
            return AffinityCheck::Bound;
        }
        match sched_getaffinity(thread) {
            Ok(mask) if mask.count() == 1 && mask.is_set(cpu) => AffinityCheck::Bound,
            Ok(_) if self.bind_to(&CpuSet::from_iter([cpu])) => AffinityCheck::Rebound,
            Ok(_) => AffinityCheck::Lost,
            Err(_) => AffinityCheck::Bound,
        }
    }

    /// Lets the thread run on these CPUs and no others. Returns false if the system refuses. The caller knows
    /// that the thread lives.
    pub(crate) fn bind_to(self, cpus: &CpuSet) -> bool {
        let thread = Pid::from_raw(self.thread_id);
        if cfg!(loom) || thread.is_none() || cpus.iter().any(|cpu| cpu >= Mask::MAX_CPU) {
            return true;
        }
        let mut mask = Mask::new();
        cpus.iter().for_each(|cpu| mask.set(cpu));
        sched_setaffinity(thread, &mask).is_ok()
    }
}

/// Starts the threads of a pool. It exists so that tests can refuse threads where the system would.
#[derive(Debug, Clone, Default)]
pub(crate) struct ThreadSpawner {
    #[cfg(test)]
    pub(crate) faults: crate::sync::Arc<ThreadFaults>,
}

impl ThreadSpawner {
    /// [`start`], unless a test refuses the thread.
    pub(crate) fn start(
        &self,
        options: ThreadOptions,
        body: impl FnOnce(ThreadPlacement) + Send + 'static,
    ) -> Result<OwnedThread, Error> {
        #[cfg(test)]
        if self.faults.refuse(options.cpu) {
            return Err(Error::new(ErrorKind::NoThread, "starting a thread"));
        }
        start(options, body)
    }
}

/// Which threads a test refuses.
#[cfg(test)]
#[derive(Debug)]
pub(crate) struct ThreadFaults(crate::sync::Mutex<RefusedThreads>);

#[cfg(test)]
#[derive(Debug, Default)]
struct RefusedThreads {
    cpus: CpuSet,
    is_unbound_refused: bool,
    count: usize,
}

#[cfg(test)]
impl Default for ThreadFaults {
    fn default() -> Self {
        Self(crate::sync::Mutex::new(RefusedThreads::default()))
    }
}

#[cfg(test)]
#[cfg_attr(loom, allow(dead_code, reason = "models refuse nothing"))]
impl ThreadFaults {
    /// From here on, threads on `cpus` are refused, and those on no CPU if `unbound` says so.
    pub(crate) fn set(&self, cpus: CpuSet, unbound: bool) {
        let mut refused = crate::sync::lock(&self.0);
        refused.cpus = cpus;
        refused.is_unbound_refused = unbound;
    }

    /// How many threads were refused.
    pub(crate) fn count(&self) -> usize {
        crate::sync::lock(&self.0).count
    }

    fn refuse(&self, cpu: Option<usize>) -> bool {
        let mut refused = crate::sync::lock(&self.0);
        let is_refused = match cpu {
            Some(cpu) => refused.cpus.contains(cpu),
            None => refused.is_unbound_refused,
        };
        refused.count += usize::from(is_refused);
        is_refused
    }
}

#[cfg(all(test, loom))]
mod loom_tests;
#[cfg(all(test, not(loom)))]
mod tests;

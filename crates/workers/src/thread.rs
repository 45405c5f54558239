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
    let builder = thread::Builder::new().name(truncate_name(name));
    let body = move || body(place(cpu, priority));
    crate::priority::spawn(priority, builder, body).map_err(|refusal| {
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
fn truncate_name(mut name: String) -> String {
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
#[cfg_attr(loom, allow(dead_code, reason = "models count no refusals"))]
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

#[cfg(all(test, not(loom)))]
mod tests {
    //! Names, places, levels and ends of threads.
    #![allow(clippy::unwrap_used, reason = "a test ends where its world is not as it must be")]

    use std::sync::mpsc::channel;

    use super::*;
    use crate::cpus::{self, CpuSet};
    use crate::priority;

    fn plain(name: &str) -> ThreadOptions {
        ThreadOptions { name: name.to_owned(), cpu: None, priority: PriorityRequest::Normal }
    }

    /// Starts a thread, and returns what `observe` returns there.
    fn seen_on<T: Send + 'static>(
        wanted: ThreadOptions,
        observe: impl FnOnce(ThreadPlacement) -> T + Send + 'static,
    ) -> T {
        let (sender, receiver) = channel();
        let owned =
            start(wanted, move |placement| sender.send(observe(placement)).unwrap()).unwrap();
        let seen = receiver.recv().unwrap();
        owned.join();
        seen
    }

    fn own_name() -> String {
        std::fs::read_to_string("/proc/thread-self/comm").unwrap().trim_end_matches('\n').to_owned()
    }

    #[test]
    fn the_system_shows_the_name_up_to_its_fifteenth_byte() {
        for (name, shown) in [
            ("erofs_worker/3", "erofs_worker/3"),
            ("erofs_worker/1024", "erofs_worker/10"),
            ("fourteen-bytesé", "fourteen-bytes"),
            ("before\0after", "before"),
        ] {
            assert_eq!(seen_on(plain(name), |_| own_name()), shown);
        }
        // Without a name it keeps that of the thread that starts it.
        seen_on(plain(""), |_| ());
    }

    // Each worker's Cpus_allowed_list is a single distinct CPU; its priority level is what the system says.
    #[test]
    fn a_placed_thread_is_on_its_cpu_and_at_the_priority_level_that_it_reports() {
        for cpu in CpuSet::of_process().iter() {
            let wanted = ThreadOptions {
                name: "placed".to_owned(),
                cpu: Some(cpu),
                priority: PriorityRequest::Raised,
            };
            seen_on(wanted, move |placement| {
                assert!(placement.is_pinned && cpus::is_bound_to(cpu));
                assert_eq!(cpus::current(), cpu);
                assert_eq!(CpuSet::of_current_thread(), CpuSet::from_iter([cpu]));
                assert_eq!(placement.priority_level, priority::of_current_thread());
            });
        }
    }

    #[test]
    fn a_cpu_that_is_not_there_leaves_the_thread_unbound_and_says_so() {
        let wanted = ThreadOptions { cpu: Some(60_000), ..plain("lost") };
        let placement = seen_on(wanted, |placement| placement);
        assert!(!placement.is_pinned);
    }

    #[test]
    fn what_a_bound_thread_starts_is_not_bound() {
        let all = CpuSet::of_process();
        let cpu = all.iter().next();
        let inner = seen_on(ThreadOptions { cpu, ..plain("bound") }, |_| {
            seen_on(plain("free"), |placement| (placement.is_pinned, CpuSet::of_current_thread()))
        });
        assert_eq!(inner, (false, all));
    }

    #[test]
    fn dropping_the_owner_waits_for_the_end() {
        let (sender, receiver) = channel();
        let (go, gate) = channel::<()>();
        let owned = start(plain("waited"), move |_| {
            assert!(gate.recv().is_err(), "the gate opens by being dropped");
            sender.send(()).unwrap();
        })
        .unwrap();
        drop(go);
        drop(owned);
        receiver.try_recv().unwrap();
    }

    #[test]
    fn an_owner_dropped_on_its_own_thread_does_not_wait_for_itself() {
        let (hand_over, handed) = channel::<OwnedThread>();
        let (sender, receiver) = channel();
        let owned = start(plain("itself"), move |_| {
            let owned = handed.recv().unwrap();
            let was_current = owned.is_current();
            owned.join();
            sender.send(was_current).unwrap();
        })
        .unwrap();
        assert!(!owned.is_current());
        hand_over.send(owned).unwrap();
        assert_eq!(receiver.recv(), Ok(true));
    }

    #[test]
    fn a_panic_ends_at_the_threads_edge() {
        let owned = start(plain("panics"), |_| panic!("on purpose")).unwrap();
        owned.join();
    }

    // Without CAP_SYS_NICE a start succeeds and reports the priority level that holds.
    #[test]
    fn an_ordinary_users_thread_is_placed_and_reports_its_lower_level() {
        use rustix::process::{Resource, Uid, getrlimit, getuid};

        let limits = [Resource::Nice, Resource::Rtprio].map(|limit| getrlimit(limit).current);
        if !getuid().is_root() || limits != [Some(0), Some(0)] {
            return priority::tests::skip("it needs root, and limits that raise nobody");
        }
        seen_on(plain("ordinary"), |_| {
            // Of this thread only, and of those that it starts.
            let nobody = Uid::from_raw(65_534);
            rustix::thread::set_thread_res_uid(nobody, nobody, nobody).unwrap();
            let cpu = CpuSet::of_process().iter().next();
            let wanted = ThreadOptions { cpu, priority: PriorityRequest::Raised, ..plain("lower") };
            let placement = seen_on(wanted, |placement| placement);
            assert_eq!(
                placement,
                ThreadPlacement { priority_level: PriorityLevel::Normal, is_pinned: true }
            );
        });
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    //! Models of the owner of a thread: joined once, by the thread that drops it.
    #![allow(clippy::unwrap_used, reason = "a test ends where its world is not as it must be")]

    use crate::priority::PriorityRequest;
    use crate::sync::{Arc, AtomicU32, Mutex, Ordering, lock};

    use super::{OwnedThread, ThreadOptions, start};

    fn plain() -> ThreadOptions {
        ThreadOptions { name: String::new(), cpu: None, priority: PriorityRequest::Normal }
    }

    #[test]
    fn what_the_thread_wrote_is_seen_after_its_owner_is_gone() {
        loom::model(|| {
            let word = Arc::new(AtomicU32::new(0));
            let writer = Arc::clone(&word);
            // Relaxed: the join alone must order it.
            let owned = start(plain(), move |_| writer.store(1, Ordering::Relaxed)).unwrap();
            drop(owned);
            assert_eq!(word.load(Ordering::Relaxed), 1);
        });
    }

    #[test]
    fn an_owner_that_either_thread_may_drop_is_dropped_without_a_deadlock() {
        loom::model(|| {
            let slot: Arc<Mutex<Option<OwnedThread>>> = Arc::new(Mutex::new(None));
            let theirs = Arc::clone(&slot);
            let owned = start(plain(), move |_| {
                let taken = lock(&theirs).take();
                assert!(taken.as_ref().is_none_or(OwnedThread::is_current));
                drop(taken);
            })
            .unwrap();
            assert!(!owned.is_current());
            *lock(&slot) = Some(owned);
            let taken = lock(&slot).take();
            drop(taken);
        });
    }
}

//! Priority levels of threads: real-time FIFO 1, else nice -19, else normal. It asks the system for a level on
//! the calling thread, reads back what holds, and reports that. `thread` calls it for every worker. Its only state is the
//! thread that starts others where a process has lost the privilege ([`spawn`]).

use std::fmt;
use std::io;
use std::sync::OnceLock;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::{Builder, JoinHandle};

use rustix::process::{Resource, getpriority_process, getrlimit, setpriority_process};
use rustix::thread::gettid;

use crate::cpus::sys;

/// The lowest real-time priority: above every ordinary thread, below everybody else's real-time ones.
const FIFO_PRIORITY: i32 = 1;
/// The limit (`RLIMIT_RTPRIO`) that allows it.
const FIFO_PRIORITY_LIMIT: u64 = 1;
/// The nice value of the second level; -20 is left to threads that must come before it.
const NICE: i32 = -19;

/// Which priority a thread asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum PriorityRequest {
    /// The priority that it inherits: nothing is changed.
    #[default]
    Normal,
    /// The highest level that the system allows.
    Raised,
    /// The same share of time as others, but a thread that wakes up waits for its turn and never takes the CPU from
    /// the thread that woke it. For workers whose submitter works, too.
    Batch,
}

/// The priority level of a thread, as the system reports it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum PriorityLevel {
    /// A real-time policy; [`apply`] asks for FIFO at priority 1, unless the thread has one already.
    RealTime,
    /// An ordinary policy at nice -19 (or -20).
    Nice,
    /// Anything below.
    Normal,
    /// `SCHED_BATCH`, at a nice value above -19.
    Batch,
}

impl fmt::Display for PriorityLevel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::RealTime => "real-time",
            Self::Nice => "nice -19",
            Self::Normal => "normal",
            Self::Batch => "batch",
        })
    }
}

/// Gives the calling thread the priority that it asks for, as far as the system allows, and returns the level that
/// holds then.
///
/// A thread whose policy is `SCHED_IDLE` keeps it, whatever the request: only somebody who wants a process to give way to
/// all others sets that policy, and a thread inherits it.
///
/// It never fails: a refusal means the next lower level. [`PriorityRequest::Normal`] changes nothing, and
/// [`PriorityRequest::Batch`] needs no privilege. A raised thread never passes its priority on to threads and processes that it starts.
///
/// A raised thread must block when it is idle: at FIFO it keeps every ordinary thread off its CPU.
pub fn apply(request: PriorityRequest) -> PriorityLevel {
    match request {
        PriorityRequest::Normal => {}
        // L6.
        PriorityRequest::Raised | PriorityRequest::Batch if is_idle() => {}
        PriorityRequest::Raised => {
            if !raise_to_real_time() {
                raise_to_nice();
            }
        }
        // If the system refuses, the thread stays as it is, and the level that holds is read below.
        PriorityRequest::Batch => sys::set_scheduler(sys::POLICY_BATCH, 0).unwrap_or_default(),
    }
    of_current_thread()
}

/// A real-time priority that threads inherit which the calling thread starts, until this is dropped. For a process that is
/// about to lose the privilege to raise priorities: such a thread keeps its priority when it asks for
/// [`PriorityRequest::Raised`] itself.
#[derive(Debug)]
pub struct InheritedPriority(());

impl InheritedPriority {
    /// Raises the calling thread. `None` if the system refuses, or the thread has a priority of its own already, or the
    /// policy `SCHED_IDLE`.
    #[must_use]
    pub fn raise() -> Option<Self> {
        // L6.
        if is_idle() {
            return None;
        }
        if sys::has_real_time_limit() != Ok(false) || of_current_thread() != PriorityLevel::Normal {
            return None;
        }
        sys::set_scheduler(sys::POLICY_FIFO, FIFO_PRIORITY).ok().map(|()| Self(()))
    }

    /// The priority that the calling thread has from the process which has forked this one, and which has raised it by
    /// [`Self::raise`].
    #[must_use]
    pub fn of_parent() -> Self {
        Self(())
    }

    /// Lets threads that [`spawn`] starts with [`PriorityRequest::Raised`] have this priority after `self` is dropped. Called
    /// after the process has lost its privilege, and does nothing if its limits allow its threads to raise themselves (L7).
    /// If the system starts no thread, later ones reach the level that they are allowed.
    pub fn keep_for_later_threads(&self) {
        let allowed = getrlimit(Resource::Rtprio).current;
        let may_raise = allowed.is_none_or(|most| most >= FIFO_PRIORITY_LIMIT);
        if !may_raise
            && SPAWNER.get().is_none()
            && let Ok(spawner) = RaisedSpawner::start()
        {
            SPAWNER.set(spawner).ok();
        }
    }
}

impl Drop for InheritedPriority {
    fn drop(&mut self) {
        // A thread may always lower itself.
        sys::set_scheduler(sys::POLICY_OTHER, 0).unwrap_or_default();
    }
}

/// Starts a thread that calls [`apply`] with `request`: one that may raise itself, or that has inherited its priority
/// ([`InheritedPriority::keep_for_later_threads`]).
///
/// # Errors
/// The system starts no thread.
pub fn spawn(
    request: PriorityRequest,
    builder: Builder,
    body: impl FnOnce() + Send + 'static,
) -> io::Result<JoinHandle<()>> {
    match SPAWNER.get() {
        Some(spawner) if request == PriorityRequest::Raised => {
            spawner.spawn(builder, Box::new(body))
        }
        _ => builder.spawn(body),
    }
}

/// Of the process, like the privilege that it replaces.
static SPAWNER: OnceLock<RaisedSpawner> = OnceLock::new();

/// A thread that has an inherited priority, and passes it on to the threads that it starts for others. It ends when
/// this is dropped.
#[derive(Debug)]
struct RaisedSpawner {
    requests: Sender<SpawnRequest>,
}

/// A thread to start.
struct SpawnRequest {
    builder: Builder,
    body: Box<dyn FnOnce() + Send>,
    reply: Sender<io::Result<JoinHandle<()>>>,
}

impl RaisedSpawner {
    /// The thread inherits the priority of the caller.
    fn start() -> io::Result<Self> {
        let (requests, received) = channel();
        Builder::new().name("spawner".to_owned()).spawn(|| Self::run(received))?;
        Ok(Self { requests })
    }

    fn run(received: Receiver<SpawnRequest>) {
        for SpawnRequest { builder, body, reply } in received {
            reply.send(builder.spawn(body)).ok();
        }
    }

    fn spawn(
        &self,
        builder: Builder,
        body: Box<dyn FnOnce() + Send>,
    ) -> io::Result<JoinHandle<()>> {
        let (reply, replied) = channel();
        if let Err(unsent) = self.requests.send(SpawnRequest { builder, body, reply }) {
            return unsent.0.builder.spawn(unsent.0.body);
        }
        replied
            .recv()
            .unwrap_or_else(|_| Err(io::Error::other("the thread that starts others has ended")))
    }
}

/// Gives the calling thread an ordinary priority, if it has inherited that of an [`InheritedPriority`]: for threads that
/// are started meanwhile and that no reader waits for.
pub fn discard_inherited() {
    if sys::scheduler() == Ok(sys::POLICY_FIFO) && sys::real_time_priority() == Ok(FIFO_PRIORITY) {
        // A thread may always lower itself.
        sys::set_scheduler(sys::POLICY_OTHER, 0).unwrap_or_default();
    }
}

/// The priority level of the calling thread, as `sched_getscheduler` and `getpriority` report it.
#[must_use]
pub fn of_current_thread() -> PriorityLevel {
    match sys::scheduler() {
        Ok(sys::POLICY_FIFO | sys::POLICY_ROUND_ROBIN | sys::POLICY_DEADLINE) => {
            PriorityLevel::RealTime
        }
        Ok(sys::POLICY_BATCH) => level_of_nice(PriorityLevel::Batch),
        Ok(sys::POLICY_OTHER) | Err(_) => level_of_nice(PriorityLevel::Normal),
        // SCHED_IDLE and policies to come: their nice value does not mean a priority.
        Ok(_) => PriorityLevel::Normal,
    }
}

/// Whether the policy of the calling thread is `SCHED_IDLE`.
fn is_idle() -> bool {
    sys::scheduler() == Ok(sys::POLICY_IDLE)
}

fn level_of_nice(otherwise: PriorityLevel) -> PriorityLevel {
    match getpriority_process(Some(gettid())) {
        Ok(nice) if nice <= NICE => PriorityLevel::Nice,
        _ => otherwise,
    }
}

/// Returns whether a real-time policy holds afterwards. One that was there before is never taken away or lowered.
fn raise_to_real_time() -> bool {
    if of_current_thread() == PriorityLevel::RealTime {
        // Only the flag. Refused, the thread passes on what it has itself inherited.
        if let (Ok(policy), Ok(priority)) = (sys::scheduler(), sys::real_time_priority()) {
            sys::set_scheduler(policy | sys::RESET_ON_FORK, priority).ok();
        }
        return true;
    }
    // Under this limit the kernel ends the process (SIGXCPU) when a real-time thread computes for
    // longer without sleeping, which is just what a decoder does.
    if sys::has_real_time_limit() == Ok(false) {
        let policy = sys::POLICY_FIFO | sys::RESET_ON_FORK;
        sys::set_scheduler(policy, FIFO_PRIORITY).ok();
    }
    of_current_thread() == PriorityLevel::RealTime
}

fn raise_to_nice() {
    // Its children do not inherit the nice value. Refused or not, the next call may still succeed, and the caller
    // reads what holds.
    let policy = sys::scheduler().unwrap_or(sys::POLICY_OTHER);
    sys::set_scheduler(policy | sys::RESET_ON_FORK, 0).ok();
    setpriority_process(Some(gettid()), NICE).ok();
}

#[cfg(all(test, not(loom)))]
pub(crate) mod tests {
    //! The ladder against what /proc shows of the thread.
    #![allow(clippy::unwrap_used, reason = "a test ends where its world is not as it must be")]

    use super::*;

    /// AllocPolicy, real-time priority and nice value, as /proc shows them.
    fn shown() -> (i32, i32, i32) {
        let stat = std::fs::read_to_string("/proc/thread-self/stat").unwrap();
        // The name, in parentheses, may hold anything; what follows it begins with field 3.
        let (_, fields) = stat.rsplit_once(") ").unwrap();
        let field = |number: usize| fields.split(' ').nth(number - 3).unwrap().parse().unwrap();
        (field(41), field(40), field(19))
    }

    fn assert_shown(priority_level: PriorityLevel) {
        let (policy, priority, nice) = shown();
        match priority_level {
            PriorityLevel::RealTime => assert_eq!((policy, priority), (sys::POLICY_FIFO, 1)),
            PriorityLevel::Nice => assert_eq!((policy, nice), (sys::POLICY_OTHER, -19)),
            PriorityLevel::Batch => assert_eq!((policy, priority), (sys::POLICY_BATCH, 0)),
            PriorityLevel::Normal => {
                assert!(policy == sys::POLICY_OTHER && nice > -19, "{policy} {nice}");
            }
        }
    }

    /// Runs on a thread of its own, since it changes that thread's priority. The name is the test's.
    fn on_new_thread<T: Send + 'static>(body: impl FnOnce() -> T + Send + 'static) -> T {
        let test = std::thread::current().name().unwrap_or_default().to_owned();
        Builder::new().name(test).spawn(body).unwrap().join().unwrap()
    }

    // Policy and priority shown are what sched_getscheduler says.
    #[test]
    fn the_level_that_is_reported_is_the_one_that_the_system_shows() {
        on_new_thread(|| {
            let priority_level = apply(PriorityRequest::Raised);
            assert_shown(priority_level);
            assert_eq!(of_current_thread(), priority_level);
            println!("raised to {priority_level}");
        });
    }

    #[test]
    fn the_switch_off_touches_nothing() {
        on_new_thread(|| {
            let before = shown();
            assert_eq!(apply(PriorityRequest::Normal), of_current_thread());
            assert_eq!(shown(), before);
            let priority_level = apply(PriorityRequest::Raised);
            assert_eq!(apply(PriorityRequest::Normal), priority_level, "it does not lower, either");
        });
    }

    #[test]
    fn anybody_may_become_a_batch_thread() {
        on_new_thread(|| {
            assert_eq!(apply(PriorityRequest::Batch), PriorityLevel::Batch);
            assert_shown(PriorityLevel::Batch);
        });
    }

    #[test]
    fn raising_twice_is_raising_once() {
        on_new_thread(|| {
            let priority_level = apply(PriorityRequest::Raised);
            assert_eq!(apply(PriorityRequest::Raised), priority_level);
            assert_shown(priority_level);
        });
    }

    #[test]
    fn a_real_time_priority_that_was_there_before_is_kept() {
        for policy in [sys::POLICY_FIFO, sys::POLICY_ROUND_ROBIN] {
            on_new_thread(move || {
                if sys::set_scheduler(policy, 50).is_err() {
                    return skip("real-time priority 50 is refused");
                }
                assert_eq!(apply(PriorityRequest::Raised), PriorityLevel::RealTime);
                assert_eq!((shown().0, shown().1), (policy, 50));
                assert_eq!(on_new_thread(shown).0, sys::POLICY_OTHER, "and is not passed on");
            });
        }
    }

    #[test]
    fn a_priority_that_was_inherited_on_the_way_is_discarded() {
        on_new_thread(|| {
            let Some(inherited) = InheritedPriority::raise() else {
                return skip("a real-time priority is refused");
            };
            let thread = |body: fn()| {
                on_new_thread(move || {
                    body();
                    shown().0
                })
            };
            assert_eq!(thread(|| ()), sys::POLICY_FIFO);
            assert_eq!(thread(discard_inherited), sys::POLICY_OTHER);
            drop(inherited);
            assert_eq!(thread(discard_inherited), sys::POLICY_OTHER);
        });
    }

    #[test]
    fn an_inherited_priority_reaches_threads_that_are_started_after_it_was_discarded() {
        on_new_thread(|| {
            let Some(inherited) = InheritedPriority::raise() else {
                return skip("a real-time priority is refused");
            };
            let spawner = RaisedSpawner::start().unwrap();
            drop(inherited);
            assert_eq!(shown().0, sys::POLICY_OTHER);
            // Without a request of its own.
            let (send, sent) = channel();
            let name = Builder::new().name("later".to_owned());
            let thread =
                spawner.spawn(name, Box::new(move || send.send(shown()).unwrap())).unwrap();
            assert_eq!(thread.thread().name(), Some("later"));
            thread.join().unwrap();
            assert_eq!(sent.recv().unwrap().0, sys::POLICY_FIFO);
        });
    }

    #[test]
    fn a_batch_thread_that_gets_no_higher_level_stays_one() {
        on_new_thread(|| {
            apply(PriorityRequest::Batch);
            raise_to_nice();
            assert_eq!(shown().0, sys::POLICY_BATCH);
        });
    }

    #[test]
    fn what_a_raised_thread_starts_begins_as_an_ordinary_thread() {
        on_new_thread(|| {
            apply(PriorityRequest::Raised);
            let (policy, priority, nice) = on_new_thread(shown);
            assert_eq!((policy, priority), (sys::POLICY_OTHER, 0));
            assert!(nice >= 0, "{nice}");
        });
    }

    #[test]
    fn the_second_level_is_not_inherited_either() {
        on_new_thread(|| {
            raise_to_nice();
            let priority_level = of_current_thread();
            assert_ne!(priority_level, PriorityLevel::RealTime);
            assert_shown(priority_level);
            assert!(on_new_thread(shown).2 >= 0);
        });
    }

    /// Reports that the present test is skipped: on standard error, and in the file that `FERROFS_SKIPPED` names.
    #[allow(clippy::print_stderr, reason = "a test says what it skips")]
    pub(crate) fn skip(reason: &str) {
        let thread = std::thread::current();
        let line = format!("skipped: {}: {reason}\n", thread.name().unwrap_or("unknown test"));
        eprint!("{line}");
        if let Some(path) = std::env::var_os("FERROFS_SKIPPED") {
            let file = std::fs::OpenOptions::new().create(true).append(true).open(path);
            io::Write::write_all(&mut file.unwrap(), line.as_bytes()).unwrap();
        }
    }

    /// Runs on a thread of its own with the policy `SCHED_IDLE`.
    fn on_idle_thread(body: impl FnOnce() + Send + 'static) {
        on_new_thread(|| match sys::set_scheduler(sys::POLICY_IDLE, 0) {
            Ok(()) => body(),
            Err(errno) => skip(&format!("the idle policy is refused: {errno}")),
        });
    }

    #[test]
    fn an_idle_thread_is_never_taken_for_a_raised_one() {
        on_idle_thread(|| {
            setpriority_process(Some(gettid()), NICE).ok();
            assert_eq!(of_current_thread(), PriorityLevel::Normal);
        });
    }

    #[test]
    fn a_thread_that_is_to_give_way_to_all_others_goes_on_to() {
        on_idle_thread(|| {
            let before = shown();
            for request in [PriorityRequest::Raised, PriorityRequest::Batch] {
                assert_eq!(apply(request), PriorityLevel::Normal);
                assert_eq!(shown(), before, "{request:?}");
            }
            assert!(InheritedPriority::raise().is_none());
            assert_eq!(shown(), before);
            assert_eq!(on_new_thread(shown), before, "and what it starts");
        });
    }

    #[test]
    fn only_the_calling_thread_is_raised() {
        let before = on_new_thread(shown);
        on_new_thread(|| {
            apply(PriorityRequest::Raised);
        });
        assert_eq!(on_new_thread(shown), before);
    }

    #[test]
    fn the_levels_have_names() {
        let names = [PriorityLevel::RealTime, PriorityLevel::Nice, PriorityLevel::Normal]
            .map(|priority_level| priority_level.to_string());
        assert_eq!(names, ["real-time", "nice -19", "normal"]);
    }
}

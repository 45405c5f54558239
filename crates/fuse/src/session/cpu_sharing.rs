//! One listener on the CPU of its caller, and a thread that keeps the other CPU from being idle (docs/workers.md, protocol
//! S). Owned by `session::state`, used by listeners.

use std::sync::PoisonError;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::process::{Pid, setpriority_process};
use rustix::thread::{CpuSet, gettid, sched_getaffinity, sched_setaffinity};

use crate::sync::{AtomicU64, AtomicUsize, Condvar, Mutex, MutexGuard, Ordering};

/// How long a listener that serves alone may serve no request, before another one takes over. So often that one also looks
/// where the caller runs.
const CHECK_INTERVAL: Duration = Duration::from_millis(1);

/// A spinner that did not run for so long had to leave its CPU to a thread that computes. Interrupts, stolen time and threads
/// that only wake up for a moment take less.
const LOST_CPU: Duration = Duration::from_micros(500);

/// The most threads that run or are ready to run when a listener begins to serve alone: the listener, and its caller. With more of
/// them, the CPUs do not halt.
const RUNNABLE_MAX: usize = 2;

/// Looks at the pause of a spinner: a few microseconds.
const PAUSES: u32 = 64;

/// One listener serves alone, on the CPU of its caller (docs/workers.md, protocol S). Caller and listener then wake each
/// other without waking a CPU, which takes longer than most requests on a virtual machine whose CPUs halt. Linux would wake the
/// caller on the other CPU as soon as that is idle. So this works where a thread may run on two CPUs, and a thread with the
/// lowest priority, the spinner, keeps the other CPU from being idle. Other listeners are parked; they take over when
/// the one that serves alone does not return.
#[derive(Debug)]
pub(super) struct CpuSharing<P = CpuPlacement> {
    is_allowed: bool,
    /// The listener that serves alone, as its index + 1; 0 if none does. Written with the lock only.
    server: AtomicUsize,
    /// Requests that were served alone.
    served: AtomicU64,
    /// The CPU that the spinner keeps busy.
    spinner_cpu: AtomicUsize,
    state: Mutex<SharingState<P>>,
    changed: Condvar,
}

#[derive(Debug)]
struct SharingState<P> {
    /// Where the listener that serves alone runs.
    placement: Option<P>,
    /// Whether a parked listener supervises the one that serves.
    has_supervisor: bool,
    spinner: SpinnerState,
    has_ended: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SpinnerState {
    None,
    Spawning,
    Ready,
    /// It cannot be started, or not with a low priority.
    Refused,
}

/// A listener that was bound to the CPU of its caller.
pub(super) trait Placement {
    /// The CPU that must not be idle.
    fn other_cpu(&self) -> usize;
    /// Binds the listener to the CPU on which the caller runs now. `false`: that is impossible.
    fn follow(&mut self) -> bool;
    /// Lets the listener run on all CPUs again.
    fn release(self);
}

impl<P: Placement> CpuSharing<P> {
    pub(super) fn new(is_allowed: bool) -> Self {
        Self {
            is_allowed,
            server: AtomicUsize::new(0),
            served: AtomicU64::new(0),
            spinner_cpu: AtomicUsize::new(0),
            state: Mutex::new(SharingState {
                placement: None,
                has_supervisor: false,
                spinner: SpinnerState::None,
                has_ended: false,
            }),
            changed: Condvar::new(),
        }
    }

    /// Whether a listener may serve alone at all.
    pub(super) fn is_allowed(&self) -> bool {
        self.is_allowed
    }

    fn lock(&self) -> MutexGuard<'_, SharingState<P>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The index of the listener that serves alone.
    pub(super) fn server(&self) -> Option<usize> {
        // Relaxed: a hint. A listener that sees an old value parks one turn later, or `park` returns at once.
        self.server.load(Ordering::Relaxed).checked_sub(1)
    }

    /// S1: the calling listener begins to serve alone, bound by `place`. `false`: it does not.
    pub(super) fn begin(&self, index: usize, place: impl FnOnce() -> Option<P>) -> bool {
        let mut state = self.lock();
        if state.has_ended || state.placement.is_some() || state.spinner != SpinnerState::Ready {
            return false;
        }
        let Some(placement) = place() else { return false };
        self.spinner_cpu.store(placement.other_cpu(), Ordering::Relaxed);
        self.server.store(index + 1, Ordering::Relaxed);
        state.placement = Some(placement);
        drop(state);
        self.changed.notify_all();
        true
    }

    /// S2: this listener has read a request.
    pub(super) fn record_served(&self, index: usize) {
        if self.server() != Some(index) {
            return;
        }
        // Only the listener that serves alone writes it.
        let served = self.served.load(Ordering::Relaxed);
        self.served.store(served.wrapping_add(1), Ordering::Relaxed);
    }

    /// S3: a listener no longer serves alone, if it did.
    pub(super) fn end(&self, index: usize) {
        if self.server() != Some(index) {
            return;
        }
        let mut state = self.lock();
        // Another listener may have ended it, and serve alone itself by now.
        if self.server() == Some(index) {
            self.end_locked(&mut state);
        }
    }

    fn end_locked(&self, state: &mut SharingState<P>) {
        if let Some(placement) = state.placement.take() {
            placement.release();
            self.server.store(0, Ordering::Relaxed);
            self.changed.notify_all();
        }
    }

    /// S4: the calling listener reads nothing while another one serves alone. One of those that wait supervises that one.
    pub(super) fn park(&self) {
        let mut state = self.lock();
        let supervises = !std::mem::replace(&mut state.has_supervisor, true);
        let mut served = self.served.load(Ordering::Relaxed);
        while state.placement.is_some() {
            if !supervises {
                state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
                continue;
            }
            let waited = self.changed.wait_timeout(state, CHECK_INTERVAL);
            let timeout;
            (state, timeout) = waited.unwrap_or_else(PoisonError::into_inner);
            if timeout.timed_out() {
                self.check(&mut state, &mut served);
            }
        }
        if supervises {
            state.has_supervisor = false;
        }
    }

    /// S5: ends serving alone if no request was served since the last check or if the caller is elsewhere. Otherwise the
    /// listener follows it.
    fn check(&self, state: &mut SharingState<P>, served: &mut u64) {
        let now = self.served.load(Ordering::Relaxed);
        let has_served = std::mem::replace(served, now) != now;
        match &mut state.placement {
            Some(placement) if has_served => {
                if placement.follow() {
                    self.spinner_cpu.store(placement.other_cpu(), Ordering::Relaxed);
                } else {
                    self.end_locked(state);
                }
            }
            _ => self.end_locked(state),
        }
    }

    /// S6: nobody serves alone from here on, and the spinner ends.
    pub(super) fn shut_down(&self) {
        let mut state = self.lock();
        state.has_ended = true;
        self.end_locked(&mut state);
        drop(state);
        self.changed.notify_all();
    }

    /// Calls `spawn` if there is no spinner yet. Returns whether one is ready.
    pub(super) fn prepare_spinner(&self, spawn: impl FnOnce() -> bool) -> bool {
        let mut state = self.lock();
        if state.spinner == SpinnerState::None && !state.has_ended {
            state.spinner = if spawn() { SpinnerState::Spawning } else { SpinnerState::Refused };
        }
        state.spinner == SpinnerState::Ready
    }

    /// What the thread of the spinner does.
    pub(super) fn run_spinner(&self) {
        let is_low = lower_priority();
        self.report_spinner(is_low);
        while is_low && self.wait_for_server() {
            self.spin();
        }
    }

    fn report_spinner(&self, is_ready: bool) {
        self.lock().spinner = if is_ready { SpinnerState::Ready } else { SpinnerState::Refused };
    }

    /// S7: the spinner sleeps until a listener serves alone. `false`: it has to end.
    fn wait_for_server(&self) -> bool {
        let mut state = self.lock();
        while !state.has_ended && state.placement.is_none() {
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        !state.has_ended
    }

    /// S8: the spinner keeps a CPU busy while a listener serves alone. It ends that if others use this CPU: then the caller is
    /// not woken there in any case.
    fn spin(&self) {
        let mut bound_to = None;
        let mut seen_at = Instant::now();
        while self.server().is_some() {
            let cpu = self.spinner_cpu.load(Ordering::Relaxed);
            if bound_to != Some(cpu) {
                // Without it, this thread spins where the scheduler puts it.
                bind(None, &[cpu]).ok();
                bound_to = Some(cpu);
                seen_at = Instant::now();
            }
            (0..PAUSES).for_each(|_| std::hint::spin_loop());
            let now = Instant::now();
            if now.saturating_duration_since(seen_at) > LOST_CPU {
                self.end_locked(&mut self.lock());
            }
            seen_at = now;
        }
    }
}

/// Gives the calling thread the lowest priority of ordinary threads. `false`: it may have another one.
fn lower_priority() -> bool {
    // A listener with a real-time priority passes it on, unless it has SCHED_RESET_ON_FORK.
    let is_ordinary = || {
        let stat = std::fs::read("/proc/thread-self/stat").ok()?;
        Some(parse_stat(&stat, POLICY_FIELD)? == SCHED_OTHER)
    };
    setpriority_process(None, 19).is_ok() && is_ordinary() == Some(true)
}

/// Fields of `/proc/PID/stat` by their numbers in proc(5), and the policy of ordinary threads.
const CPU_FIELD: usize = 39;
const POLICY_FIELD: usize = 41;
const SCHED_OTHER: usize = 0;

fn bind(thread: Option<Pid>, cpus: &[usize]) -> Result<(), Errno> {
    let mut set = CpuSet::new();
    // A larger number would be out of the bounds of a set.
    cpus.iter().filter(|cpu| **cpu < CpuSet::MAX_CPU).for_each(|cpu| set.set(*cpu));
    sched_setaffinity(thread, &set)
}

/// Two CPUs, and no other ones, on which a thread may run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct CpuPair([usize; 2]);

impl CpuPair {
    /// `None`: the calling thread may run on more or fewer CPUs.
    pub(super) fn of_current_thread() -> Option<Self> {
        let allowed = sched_getaffinity(None).ok().filter(|allowed| allowed.count() == 2)?;
        let mut cpus = (0..CpuSet::MAX_CPU).filter(|cpu| allowed.is_set(*cpu));
        Some(Self([cpus.next()?, cpus.next()?]))
    }

    fn other(self, cpu: usize) -> Option<usize> {
        match self.0 {
            [one, other] | [other, one] if one == cpu => Some(other),
            _ => None,
        }
    }
}

/// A listener on the CPU of its caller.
#[derive(Debug)]
pub(super) struct CpuPlacement {
    listener: Pid,
    caller: u32,
    /// The CPU of both, and the other one.
    cpu: usize,
    other: usize,
}

impl CpuPlacement {
    /// Binds the calling listener to the CPU of its caller. `None`: it can run on more or fewer CPUs than two, or the caller
    /// runs elsewhere or is unknown.
    pub(super) fn of_caller(caller: u32) -> Option<Self> {
        let cpus = CpuPair::of_current_thread()?;
        let cpu = cpu_of(caller)?;
        let other = cpus.other(cpu)?;
        let listener = gettid();
        bind(Some(listener), &[cpu]).ok()?;
        Some(Self { listener, caller, cpu, other })
    }
}

impl Placement for CpuPlacement {
    fn other_cpu(&self) -> usize {
        self.other
    }

    fn follow(&mut self) -> bool {
        match cpu_of(self.caller) {
            Some(cpu) if cpu == self.cpu => true,
            Some(cpu) if cpu == self.other && bind(Some(self.listener), &[cpu]).is_ok() => {
                std::mem::swap(&mut self.cpu, &mut self.other);
                true
            }
            _ => false,
        }
    }

    fn release(self) {
        // It fails if none of these CPUs is there any more. Then the kernel has chosen others.
        bind(Some(self.listener), &[self.cpu, self.other]).ok();
    }
}

/// The CPU on which a thread ran last. `None`: there is none of this number, or `/proc` does not show it.
fn cpu_of(thread: u32) -> Option<usize> {
    parse_stat(&std::fs::read(format!("/proc/{thread}/stat")).ok()?, CPU_FIELD)
}

/// A field of `/proc/PID/stat`, above the second one, which is a name in parentheses and may contain some itself.
fn parse_stat(stat: &[u8], field: usize) -> Option<usize> {
    let name_end = stat.iter().rposition(|byte| *byte == b')')?;
    let fields = std::str::from_utf8(stat.get(name_end..)?).ok()?;
    fields.split(' ').nth(field.checked_sub(2)?)?.parse().ok()
}

/// Whether no other threads than a listener and its caller use the CPUs. `false` if `/proc` does not show it.
pub(super) fn are_cpus_free() -> bool {
    let runnable = std::fs::read("/proc/loadavg").ok().and_then(|text| parse_runnable(&text));
    runnable.is_some_and(|runnable| runnable <= RUNNABLE_MAX)
}

/// The threads that run or are ready to run: the fourth field of `/proc/loadavg`, before the slash (proc(5)).
fn parse_runnable(loadavg: &[u8]) -> Option<usize> {
    std::str::from_utf8(loadavg).ok()?.split(' ').nth(3)?.split('/').next()?.parse().ok()
}

/// Requests that take longer, on average, are handled while the caller and other threads use the other CPU.
const SHORT_REQUEST: Duration = Duration::from_micros(30);
/// After so many requests served alone, waits are compared with those before.
const COMPARED_AFTER: u32 = 64;
/// The fewest requests of one caller before a listener serves alone.
const LEAST_WANTED: u32 = 16;
/// How often this number is doubled at most, after tries that were over soon: to 4,096.
const BACKOFF_MAX: u32 = 8;

/// What a listener knows about serving alone.
#[derive(Debug, Default)]
pub(super) struct SharingHistory {
    /// Moving averages: how long a request takes, and the short waits for requests.
    handling: Duration,
    wait: Duration,
    /// Whether it serves alone, its requests since that began or ended, and its waits before that began.
    is_alone: bool,
    served: u32,
    wait_before: Duration,
    /// How often the requests that are wanted before a try were doubled.
    backoff: u32,
}

impl SharingHistory {
    /// Whether its listener serves alone, unless another one has ended that.
    pub(super) fn is_alone(&self) -> bool {
        self.is_alone
    }

    /// Whether serving alone is likely to pay after `requests` of one caller. A new try waits for as many after the end of the
    /// last one, so that waits can be compared.
    pub(super) fn is_worth_a_try(&self, requests: u32) -> bool {
        requests.min(self.served) >= self.wanted() && self.handling <= SHORT_REQUEST
    }

    pub(super) fn record_try(&mut self, began: bool) {
        if began {
            (self.is_alone, self.served, self.wait_before) = (true, 0, self.wait);
        } else {
            self.backoff = (self.backoff + 1).min(BACKOFF_MAX);
        }
    }

    /// It does not serve alone any more. After a short time, the next try comes later.
    pub(super) fn record_end(&mut self) {
        if !std::mem::take(&mut self.is_alone) {
            return;
        }
        let was_long = std::mem::take(&mut self.served) / 4 >= self.wanted();
        self.backoff = match was_long {
            true => self.backoff.saturating_sub(1),
            false => (self.backoff + 1).min(BACKOFF_MAX),
        };
    }

    /// So many requests of one caller follow each other before it tries to serve alone.
    fn wanted(&self) -> u32 {
        LEAST_WANTED << self.backoff
    }

    pub(super) fn record_wait(&mut self, waited: Duration) {
        // Longer ones say when the caller had something else to do.
        if waited <= CHECK_INTERVAL {
            self.wait = moving_average(self.wait, waited);
        }
    }

    pub(super) fn record_request(&mut self, taken: Duration) {
        self.handling = moving_average(self.handling, taken);
        self.served = self.served.saturating_add(1);
    }

    /// Whether it goes on to serve alone: requests are still short, and waits have become shorter by an eighth.
    pub(super) fn pays(&self) -> bool {
        let gains = || self.wait <= self.wait_before.saturating_sub(self.wait_before / 8);
        self.handling <= 2 * SHORT_REQUEST && (self.served != COMPARED_AFTER || gains())
    }
}

fn moving_average(average: Duration, value: Duration) -> Duration {
    (average.saturating_mul(7).saturating_add(value)) / 8
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::sync::Arc;
    use std::thread::scope;

    use rustix::process::getpriority_process;

    use super::*;

    const fn us(count: u64) -> Duration {
        Duration::from_micros(count)
    }

    /// Counts what happens to the listener.
    #[derive(Clone, Debug, Default)]
    struct FakePlacement(Arc<FakeCounts>);

    #[derive(Debug, Default)]
    struct FakeCounts {
        bound: AtomicUsize,
        followed: AtomicUsize,
        released: AtomicUsize,
        is_lost: AtomicUsize,
    }

    impl FakePlacement {
        fn place(&self) -> Option<Self> {
            self.0.bound.fetch_add(1, Ordering::SeqCst);
            Some(self.clone())
        }

        fn released(&self) -> usize {
            self.0.released.load(Ordering::SeqCst)
        }
    }

    impl Placement for FakePlacement {
        fn other_cpu(&self) -> usize {
            0
        }

        fn follow(&mut self) -> bool {
            self.0.followed.fetch_add(1, Ordering::SeqCst);
            self.0.is_lost.load(Ordering::SeqCst) == 0
        }

        fn release(self) {
            self.0.released.fetch_add(1, Ordering::SeqCst);
        }
    }

    fn with_spinner() -> CpuSharing<FakePlacement> {
        let sharing = CpuSharing::new(true);
        assert!(!sharing.prepare_spinner(|| true), "it has yet to report");
        assert!(!sharing.begin(0, || unreachable!()));
        sharing.report_spinner(true);
        sharing
    }

    #[test]
    fn one_listener_at_a_time_serves_alone() {
        let sharing = with_spinner();
        let placement = FakePlacement::default();
        assert!(!sharing.begin(1, || None), "it cannot be bound");
        assert_eq!(sharing.server(), None);
        assert!(sharing.begin(1, || placement.place()));
        assert_eq!(sharing.server(), Some(1));
        assert!(!sharing.begin(0, || unreachable!()));
        sharing.end(0);
        assert_eq!((sharing.server(), placement.released()), (Some(1), 0));
        sharing.end(1);
        sharing.end(1);
        assert_eq!((sharing.server(), placement.released()), (None, 1));
        sharing.shut_down();
        assert!(!sharing.begin(1, || unreachable!()));
        assert!(!sharing.wait_for_server());
    }

    #[test]
    fn without_a_spinner_no_listener_serves_alone() {
        let sharing = CpuSharing::<FakePlacement>::new(true);
        assert!(!sharing.prepare_spinner(|| false));
        assert!(!sharing.prepare_spinner(|| unreachable!("it was refused")));
        assert!(!sharing.begin(0, || unreachable!()));
        let sharing = with_spinner();
        sharing.report_spinner(false);
        assert!(!sharing.begin(0, || unreachable!()));
    }

    #[test]
    fn a_parked_listener_replaces_one_that_serves_nothing() {
        let sharing = with_spinner();
        let placement = FakePlacement::default();
        assert!(sharing.begin(0, || placement.place()));
        sharing.park();
        assert_eq!((sharing.server(), placement.released()), (None, 1));
        sharing.park();
    }

    #[test]
    fn a_listener_that_serves_goes_on_until_its_caller_is_lost() {
        let sharing = with_spinner();
        let placement = FakePlacement::default();
        let mut seen = 0;
        let mut check = || sharing.check(&mut sharing.lock(), &mut seen);
        assert!(sharing.begin(0, || placement.place()));
        for followed in 1..=3 {
            sharing.record_served(1);
            sharing.record_served(0);
            check();
            assert_eq!(placement.0.followed.load(Ordering::SeqCst), followed);
            assert_eq!(sharing.server(), Some(0));
        }
        sharing.record_served(0);
        placement.0.is_lost.store(1, Ordering::SeqCst);
        check();
        assert_eq!((sharing.server(), placement.released()), (None, 1));
        placement.0.is_lost.store(0, Ordering::SeqCst);
        assert!(sharing.begin(0, || placement.place()));
        check();
        assert_eq!((sharing.server(), placement.released()), (None, 2), "no request was served");
    }

    #[test]
    fn all_parked_listeners_return_at_the_end() {
        let sharing = with_spinner();
        let placement = FakePlacement::default();
        assert!(sharing.begin(0, || placement.place()));
        scope(|scope| {
            (0..3).for_each(|_| drop(scope.spawn(|| sharing.park())));
            sharing.end(0);
        });
        assert_eq!(placement.released(), 1);
        assert!(!sharing.lock().has_supervisor);
    }

    /// A stress test of protocol S: listeners that begin, park, and end in all orders.
    #[test]
    fn listeners_begin_and_end_in_all_orders_under_stress() {
        let sharing = with_spinner();
        let placement = FakePlacement::default();
        let begun = AtomicUsize::new(0);
        let listen = |index: usize| {
            for turn in 0..2_000 {
                match sharing.server() {
                    Some(server) if server != index => sharing.park(),
                    _ => {}
                }
                if sharing.begin(index, || placement.place()) {
                    begun.fetch_add(1, Ordering::SeqCst);
                }
                sharing.record_served(index);
                // Every seventh time another listener has to end it.
                if turn % 7 > 0 {
                    sharing.end(index);
                }
            }
            sharing.end(index);
        };
        scope(|scope| {
            let spinner = scope.spawn(|| while sharing.wait_for_server() {});
            let listeners: Vec<_> =
                (0..4).map(|index| scope.spawn(move || listen(index))).collect();
            listeners.into_iter().for_each(|listener| listener.join().expect("no panic"));
            sharing.shut_down();
            spinner.join().expect("no panic");
        });
        let begun = begun.load(Ordering::SeqCst);
        assert!(begun > 0);
        assert_eq!(
            (placement.0.bound.load(Ordering::SeqCst), placement.released()),
            (begun, begun)
        );
    }

    #[test]
    fn the_cpu_of_a_thread_is_found_whatever_its_name_is() {
        let stat = |name: &str| {
            let after = (4..=41).map(|number| number.to_string()).collect::<Vec<_>>().join(" ");
            format!("7 ({name}) S {after}\n")
        };
        for name in ["cat", "a b", "a) S 1 (b", ""] {
            assert_eq!(parse_stat(stat(name).as_bytes(), CPU_FIELD), Some(39), "{name}");
        }
        for bad in ["", "7 (cat", "7 (cat) S 1 2", ")"] {
            assert_eq!(parse_stat(bad.as_bytes(), CPU_FIELD), None, "{bad}");
        }
        assert_eq!(cpu_of(0), None);
    }

    #[test]
    fn the_number_of_runnable_threads_is_found() {
        assert_eq!(parse_runnable(b"0.20 0.18 1.12 3/80 11206\n"), Some(3));
        for bad in ["", "0.20 0.18 1.12", "0.20 0.18 1.12 x/80 1"] {
            assert_eq!(parse_runnable(bad.as_bytes()), None, "{bad}");
        }
    }

    #[test]
    fn a_spinner_that_loses_its_cpu_ends_serving_alone() {
        let sharing = with_spinner();
        let placement = FakePlacement::default();
        assert!(sharing.begin(0, || placement.place()));
        // Threads at an ordinary priority on the CPU of the spinner, which is the first one that this thread may use.
        let done = AtomicUsize::new(0);
        scope(|scope| {
            let allowed = sched_getaffinity(None).expect("every thread has one");
            let cpu = (0..CpuSet::MAX_CPU).find(|cpu| allowed.is_set(*cpu)).expect("one at least");
            sharing.spinner_cpu.store(cpu, Ordering::Relaxed);
            let done = &done;
            scope.spawn(move || {
                bind(None, &[cpu]).expect("it is available");
                while done.load(Ordering::Relaxed) == 0 {
                    std::hint::spin_loop();
                }
            });
            let spinner = scope.spawn(|| {
                assert!(lower_priority());
                sharing.spin();
            });
            spinner.join().expect("no panic");
            done.store(1, Ordering::Relaxed);
        });
        assert_eq!((sharing.server(), placement.released()), (None, 1));
    }

    #[test]
    fn a_listener_is_bound_to_the_cpu_of_its_caller_where_there_are_two() {
        let Some(own) = u32::try_from(gettid().as_raw_nonzero().get()).ok() else { unreachable!() };
        let before = sched_getaffinity(None).expect("every thread has one");
        let cpus: Vec<_> = (0..CpuSet::MAX_CPU).filter(|cpu| before.is_set(*cpu)).take(2).collect();
        bind(None, &cpus).expect("they are available");
        let placement = CpuPlacement::of_caller(own);
        if let [one, other] = cpus[..] {
            let mut placement = placement.expect("two CPUs");
            let allowed = sched_getaffinity(None).expect("every thread has one");
            assert!(allowed.count() == 1 && allowed.is_set(placement.cpu));
            assert_eq!(CpuPair([one, other]).other(placement.cpu), Some(placement.other));
            assert!(placement.follow());
            assert_eq!(CpuPlacement::of_caller(own).map(|_| ()), None, "one CPU is no pair");
            placement.release();
            assert_eq!(CpuPair::of_current_thread(), Some(CpuPair([one, other])));
            assert!(CpuPlacement::of_caller(0).is_none(), "it is in another namespace");
        } else {
            assert!(placement.is_none(), "one CPU is no pair");
        }
        sched_setaffinity(None, &before).expect("it was allowed before");
    }

    #[test]
    fn a_spinner_has_the_lowest_priority_and_ends() {
        let sharing = with_spinner();
        scope(|scope| {
            let spinner = scope.spawn(|| {
                sharing.run_spinner();
                getpriority_process(None).expect("every thread has one")
            });
            assert!(sharing.begin(0, || FakePlacement::default().place()));
            std::thread::sleep(Duration::from_millis(20));
            sharing.shut_down();
            assert_eq!(spinner.join().expect("no panic"), 19);
        });
    }

    #[test]
    fn a_listener_tries_later_after_tries_that_were_over_soon() {
        let mut history = SharingHistory::default();
        let record = |history: &mut SharingHistory, count| {
            (0..count).for_each(|_| history.record_request(us(3)));
        };
        assert!(!history.is_worth_a_try(16), "none of them is known");
        record(&mut history, 5_000);
        assert!(!history.is_worth_a_try(15) && history.is_worth_a_try(16));
        history.record_try(false);
        assert!(!history.is_alone());
        assert!(!history.is_worth_a_try(31) && history.is_worth_a_try(32));
        history.record_try(true);
        assert!(history.is_alone());
        history.record_end();
        history.record_end();
        record(&mut history, 63);
        assert!(!history.is_worth_a_try(1_000), "after the end of the last try");
        record(&mut history, 1);
        assert!(history.is_worth_a_try(64));
        history.record_try(true);
        record(&mut history, 256);
        history.record_end();
        record(&mut history, 5_000);
        assert!(!history.is_worth_a_try(31) && history.is_worth_a_try(32));
        (0..20).for_each(|_| history.record_try(false));
        assert!(!history.is_worth_a_try(4095) && history.is_worth_a_try(4096));
    }

    #[test]
    fn serving_alone_goes_on_while_requests_and_waits_are_short() {
        let mut history = SharingHistory::default();
        (0..64).for_each(|_| history.record_wait(us(40)));
        (0..64).for_each(|_| history.record_request(us(31)));
        assert!(!history.is_worth_a_try(1000), "requests are too long");
        (0..64).for_each(|_| history.record_request(us(20)));
        assert!(history.is_worth_a_try(1000));
        for (wait, pays) in [(34, true), (36, false)] {
            history.record_try(true);
            for served in 1..=COMPARED_AFTER {
                history.record_wait(us(wait));
                history.record_wait(Duration::from_secs(1));
                history.record_request(us(20));
                assert_eq!(history.pays(), pays || served < COMPARED_AFTER, "{wait}, {served}");
            }
            history.record_end();
            (0..64).for_each(|_| history.record_wait(us(40)));
        }
        history.record_try(true);
        (0..64).for_each(|_| history.record_request(us(100)));
        assert!(!history.pays());
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use loom::sync::Arc;

    use super::*;

    #[derive(Clone, Debug)]
    struct ModelPlacement(Arc<AtomicUsize>);

    impl ModelPlacement {
        fn place(bound: &Arc<AtomicUsize>) -> Option<Self> {
            assert_eq!(bound.fetch_add(1, Ordering::Relaxed), 0, "one listener is bound at a time");
            Some(Self(Arc::clone(bound)))
        }
    }

    impl Placement for ModelPlacement {
        fn other_cpu(&self) -> usize {
            0
        }

        fn follow(&mut self) -> bool {
            true
        }

        fn release(self) {
            assert_eq!(self.0.fetch_sub(1, Ordering::Relaxed), 1, "it is released once");
        }
    }

    fn with_spinner() -> Arc<CpuSharing<ModelPlacement>> {
        let sharing = Arc::new(CpuSharing::new(true));
        sharing.report_spinner(true);
        sharing
    }

    fn spawn(
        sharing: &Arc<CpuSharing<ModelPlacement>>,
        body: impl FnOnce(&CpuSharing<ModelPlacement>) + 'static,
    ) -> loom::thread::JoinHandle<()> {
        let sharing = Arc::clone(sharing);
        loom::thread::spawn(move || body(&sharing))
    }

    /// A lost notification would be a deadlock here: waits have no timeout in a model.
    #[test]
    fn parked_listeners_and_the_spinner_see_every_end() {
        loom::model(|| {
            let (sharing, bound) = (with_spinner(), Arc::new(AtomicUsize::new(0)));
            let spinner = spawn(&sharing, |sharing| {
                while sharing.wait_for_server() {
                    loom::thread::yield_now();
                    if sharing.server().is_none() {
                        break;
                    }
                }
            });
            let parked = spawn(&sharing, |sharing| {
                if sharing.server().is_some() {
                    sharing.park();
                }
            });
            assert!(sharing.begin(0, || ModelPlacement::place(&bound)));
            sharing.record_served(0);
            sharing.end(0);
            parked.join().unwrap();
            sharing.shut_down();
            spinner.join().unwrap();
            assert_eq!(bound.load(Ordering::Relaxed), 0);
        });
    }

    #[test]
    fn the_spinner_sees_that_a_listener_begins() {
        loom::model(|| {
            let (sharing, bound) = (with_spinner(), Arc::new(AtomicUsize::new(0)));
            let spinner = spawn(&sharing, |sharing| assert!(sharing.wait_for_server()));
            assert!(sharing.begin(0, || ModelPlacement::place(&bound)));
            spinner.join().unwrap();
            sharing.end(0);
        });
    }

    #[test]
    fn the_end_by_a_supervisor_and_by_the_listener_itself_release_it_once() {
        loom::model(|| {
            let (sharing, bound) = (with_spinner(), Arc::new(AtomicUsize::new(0)));
            assert!(sharing.begin(0, || ModelPlacement::place(&bound)));
            let supervisor = spawn(&sharing, |sharing| {
                let mut state = sharing.lock();
                let mut served = sharing.served.load(Ordering::Relaxed);
                sharing.check(&mut state, &mut served);
            });
            sharing.record_served(0);
            sharing.end(0);
            // It may begin again at once, and a late supervisor may end that.
            let again = sharing.begin(0, || ModelPlacement::place(&bound));
            assert!(again);
            supervisor.join().unwrap();
            sharing.end(0);
            assert_eq!((sharing.server(), bound.load(Ordering::Relaxed)), (None, 0));
        });
    }

    #[test]
    fn a_listener_does_not_end_what_another_one_has_begun() {
        loom::model(|| {
            let (sharing, bound) = (with_spinner(), Arc::new(AtomicUsize::new(0)));
            assert!(sharing.begin(0, || ModelPlacement::place(&bound)));
            let other = {
                let bound = Arc::clone(&bound);
                spawn(&sharing, move |sharing| {
                    let mut served = sharing.served.load(Ordering::Relaxed);
                    sharing.check(&mut sharing.lock(), &mut served);
                    assert!(sharing.begin(1, || ModelPlacement::place(&bound)));
                })
            };
            sharing.end(0);
            other.join().unwrap();
            assert_eq!(sharing.server(), Some(1));
            sharing.end(1);
        });
    }

    #[test]
    fn of_the_parked_listeners_one_supervises() {
        loom::model(|| {
            let (sharing, bound) = (with_spinner(), Arc::new(AtomicUsize::new(0)));
            assert!(sharing.begin(0, || ModelPlacement::place(&bound)));
            let parked: Vec<_> = (0..2).map(|_| spawn(&sharing, CpuSharing::park)).collect();
            sharing.end(0);
            parked.into_iter().for_each(|thread| thread.join().unwrap());
            assert!(!sharing.lock().has_supervisor);
        });
    }
}

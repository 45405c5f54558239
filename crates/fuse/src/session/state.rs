//! What the threads of a session share, and the handle by which a file system reaches it. It starts no thread, but counts
//! those that were added.
//! Used by `session`, its listeners and its watchdog.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, AtomicUsize};
use std::sync::{Arc, Condvar, Mutex, PoisonError, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use zerocopy::IntoBytes;

use super::cpu_sharing::CpuSharing;
use super::{FileSystem, ListenerGrowth, SessionEvent, SessionOptions};
use crate::journal::{BannedRequests, JournalSlot, RequestJournal, SuspectedRequests};
use crate::reply::{Channel, StoreOut, notification};
use crate::request_slot::{MAX_SPARE_LISTENERS, RequestSlot, WatchdogParker};
use crate::sync::{AtomicBool, Ordering};

/// Added listeners at most. They use the slots of spare ones, and leave half of these for requests that hang.
const MAX_ADDED_LISTENERS: usize = 32;
const _: () = assert!(MAX_ADDED_LISTENERS <= MAX_SPARE_LISTENERS / 2);

pub(super) type EventCallback = dyn Fn(&SessionEvent) + Send + Sync;

/// The listeners of a session. The numbers need not be of the same moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SessionStats {
    /// Permanent listener threads.
    pub listeners: usize,
    /// Spare listener threads, which run while requests hang.
    pub spares: usize,
    /// Listeners of both kinds that wait for a request.
    pub idle: usize,
    /// FUSE_INTERRUPT messages so far.
    pub interrupts: u64,
}

/// The phases of a session, in their order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SessionPhase {
    /// Threads are being started; they wait.
    Spawning,
    /// The first listener handles resent requests, and spare ones run if it hangs; the others wait.
    Trial,
    /// All threads have been started.
    Running,
    /// The permanent listeners have ended, or not all threads could be started.
    Ended,
}

/// How a session begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SessionStart {
    /// With all listeners.
    Whole,
    /// With one listener, until it has handled what was resent.
    Trial,
}

/// Whether more spare listeners can be started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SpareListeners {
    /// As far as is known.
    Possible,
    /// All are running.
    All,
    /// The system has no thread for another one.
    Refused,
}

/// What a session has from the processes before it.
pub(super) struct Continued {
    pub(super) journal: Arc<RequestJournal>,
    pub(super) banned: BannedRequests,
    /// The nodes of requests that were banned now.
    pub(super) newly_banned: Vec<u64>,
    pub(super) suspected: SuspectedRequests,
    pub(super) start: SessionStart,
}

/// What the threads of a session share.
pub(crate) struct SessionState {
    pub(super) file_system: Arc<dyn FileSystem>,
    pub(super) channels: Vec<Channel>,
    /// One for each listener, spare ones included.
    pub(super) slots: Vec<RequestSlot>,
    continued: Option<Continued>,
    /// Indices of the slots that belong to no listener.
    pub(super) unused_slots: Mutex<Vec<usize>>,
    /// Spare listener threads, ended ones included.
    pub(super) spares: Mutex<Vec<JoinHandle<()>>>,
    pub(super) added: AddedListeners,
    /// Whether a listener polls, and how long at most. For its `PollPermit`.
    pub(super) is_polled: AtomicBool,
    pub(super) busy_poll: Duration,
    pub(super) cpu_sharing: CpuSharing,
    /// The thread of its spinner.
    pub(super) spinner_thread: Mutex<Option<JoinHandle<()>>>,
    watchdog: WatchdogParker,
    /// The thread of the watchdog, or the last one.
    pub(super) watchdog_thread: Mutex<Option<JoinHandle<()>>>,
    /// How long a request may take.
    pub(super) time_limit: Option<Duration>,
    /// R8: the watchdog reads the device while it holds this, and a listener whose request was overdue reads it after it
    /// has held this.
    overdue: Mutex<()>,
    interrupts: AtomicU64,
    unknown_interrupts: UnknownInterrupts,
    is_unmounted: AtomicBool,
    /// As if the system had no thread for a spare listener.
    #[cfg(test)]
    pub(super) refuses_spares: AtomicBool,
    /// Whether a listener may serve alone while other threads, such as those of other tests, use the CPUs.
    #[cfg(test)]
    pub(super) is_load_ignored: AtomicBool,
    started_at: Instant,
    on_event: Box<EventCallback>,
    progress: Mutex<SessionProgress>,
    progressed: Condvar,
}

/// What threads of a session wait for.
#[derive(Clone, Copy, Debug)]
struct SessionProgress {
    phase: SessionPhase,
    /// Whether a watchdog runs or sleeps. Written with the flag of the parker set or just cleared.
    has_watchdog: bool,
}

/// How long a watchdog sleeps before it ends: idle mounts have no thread for it, and busy ones do not start it often.
const WATCHDOG_STAY: Duration = Duration::from_millis(if cfg!(test) { 200 } else { 10_000 });

/// How often an interrupt is repeated at once. A listener needs a few instructions to call `begin`.
const REPEATED_AT_ONCE: u32 = 16;
/// The pause before each later repetition.
const INTERRUPT_PAUSE: Duration = Duration::from_millis(1);
/// How long a listener may take to call `begin`, in milliseconds: on a loaded machine it may lose its CPU.
const LOST_AFTER_MS: u64 = 1_000;
/// How many requests are remembered. More of them at a time take longer to be found lost.
const UNKNOWN_MAX: usize = 64;

/// What the interrupt of a request that no listener has says about the request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum UnknownRequest {
    /// A listener is about to begin with it.
    JustRead,
    /// It has not begun with it for a while.
    Late,
    /// Nobody will reply to it.
    Lost,
}

/// Interrupts of requests that no listener has, the latest first.
#[derive(Debug, Default)]
struct UnknownInterrupts(Mutex<VecDeque<UnknownInterrupt>>);

#[derive(Clone, Copy, Debug)]
struct UnknownInterrupt {
    of: u64,
    first_ms: u64,
    count: u32,
}

impl UnknownInterrupts {
    fn note(&self, of: u64, now_ms: u64) -> UnknownRequest {
        let mut interrupts = lock(&self.0);
        let Some(index) = interrupts.iter().position(|known| known.of == of) else {
            interrupts.truncate(UNKNOWN_MAX - 1);
            interrupts.push_front(UnknownInterrupt { of, first_ms: now_ms, count: 1 });
            return UnknownRequest::JustRead;
        };
        let Some(known) = interrupts.get_mut(index) else { return UnknownRequest::JustRead };
        known.count = known.count.saturating_add(1);
        if now_ms.saturating_sub(known.first_ms) >= LOST_AFTER_MS {
            interrupts.remove(index);
            return UnknownRequest::Lost;
        }
        let is_late = known.count > REPEATED_AT_ONCE;
        if is_late { UnknownRequest::Late } else { UnknownRequest::JustRead }
    }
}

impl SessionState {
    pub(super) fn new(
        file_system: Arc<dyn FileSystem>,
        channels: Vec<Channel>,
        options: &SessionOptions,
        on_event: Box<EventCallback>,
        continued: Option<Continued>,
    ) -> Self {
        let listeners = options.listeners;
        let slots = listeners + MAX_SPARE_LISTENERS;
        Self {
            file_system,
            channels,
            slots: (0..slots).map(|_| RequestSlot::new()).collect(),
            continued,
            unused_slots: Mutex::new((listeners..slots).rev().collect()),
            spares: Mutex::default(),
            added: AddedListeners::new(options.growth),
            is_polled: AtomicBool::new(false),
            busy_poll: options.busy_poll,
            cpu_sharing: CpuSharing::new(options.cpu_sharing),
            spinner_thread: Mutex::default(),
            watchdog: WatchdogParker::new(),
            watchdog_thread: Mutex::default(),
            time_limit: options.time_limit,
            overdue: Mutex::default(),
            interrupts: AtomicU64::new(0),
            unknown_interrupts: UnknownInterrupts::default(),
            is_unmounted: AtomicBool::new(false),
            #[cfg(test)]
            refuses_spares: AtomicBool::new(false),
            #[cfg(test)]
            is_load_ignored: AtomicBool::new(false),
            started_at: Instant::now(),
            on_event,
            progress: Mutex::new(SessionProgress {
                phase: SessionPhase::Spawning,
                has_watchdog: false,
            }),
            progressed: Condvar::new(),
        }
    }

    /// A thread that is not one of the permanent listeners, to be joined.
    pub(super) fn take_spare(&self) -> Option<JoinHandle<()>> {
        lock(&self.spares).pop()
    }

    /// The thread of the watchdog, to be joined.
    pub(super) fn take_watchdog(&self) -> Option<JoinHandle<()>> {
        lock(&self.watchdog_thread).take()
    }

    /// The number of permanent listeners.
    pub(super) fn listeners(&self) -> usize {
        self.slots.len().saturating_sub(MAX_SPARE_LISTENERS)
    }

    /// The channel and the slot of a listener. Spare listeners use the first channel.
    pub(super) fn channel_and_slot(&self, index: usize) -> Option<(&Channel, &RequestSlot)> {
        let channel = self.channels.get(index).or(self.channels.first())?;
        Some((channel, self.slots.get(index)?))
    }

    /// Whether at least one listener waits for a request. Two listeners that check this while they have a request do
    /// not both see only each other wait.
    pub(super) fn has_idle_listener(&self) -> bool {
        // The permanent ones come first, and most likely one of them waits.
        self.slots.iter().any(RequestSlot::is_waiting)
    }

    /// R8: a listener has handled a request that took this long.
    pub(super) fn pass_overdue(&self, taken: Duration) {
        // The watchdog counts whole milliseconds.
        let is_overdue = |limit: Duration| taken >= limit.saturating_sub(Duration::from_millis(1));
        if self.time_limit.is_some_and(is_overdue) {
            drop(lock(&self.overdue));
        }
    }

    /// R8: calls `read` if every listener that can be started has a request for longer than the time limit, so that
    /// nobody else reads the device until it returns. The second argument of `read` says whether that is still so.
    pub(super) fn if_all_overdue(
        &self,
        spares: SpareListeners,
        read: impl FnOnce(&Channel, &dyn Fn() -> bool),
    ) {
        let Some(limit) = self.time_limit else { return };
        let limit_ms = u64::try_from(limit.as_millis()).unwrap_or(u64::MAX);
        let _overdue = lock(&self.overdue);
        // Held, so that nobody tries again to start a listener meanwhile.
        let unused = lock(&self.unused_slots);
        let is_overdue = |slot: &RequestSlot| {
            slot.in_flight().is_some_and(|request| {
                request.is_answered && self.now_ms().saturating_sub(request.since_ms) >= limit_ms
            })
        };
        let has_no_thread = |index| spares == SpareListeners::Refused && unused.contains(&index);
        let are_all_overdue = || {
            let mut slots = self.slots.iter().enumerate();
            slots.all(|(index, slot)| is_overdue(slot) || has_no_thread(index))
        };
        if let Some(channel) = self.channels.first().filter(|_| are_all_overdue()) {
            read(channel, &are_all_overdue);
        }
    }

    /// Starts the thread of a spare listener.
    ///
    /// # Errors
    /// The system refuses another thread.
    pub(super) fn spawn_spare(
        &self,
        name: String,
        body: Box<dyn FnOnce() + Send>,
    ) -> std::io::Result<JoinHandle<()>> {
        #[cfg(test)]
        if self.refuses_spares.load(Ordering::Relaxed) {
            return Err(Errno::AGAIN.into());
        }
        spawn_thread(name, body)
    }

    /// Milliseconds since the session started.
    pub(super) fn now_ms(&self) -> u64 {
        self.millis_at(Instant::now())
    }

    /// Milliseconds from the start of the session to `moment`.
    pub(super) fn millis_at(&self, moment: Instant) -> u64 {
        let time = moment.saturating_duration_since(self.started_at);
        u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
    }

    pub(super) fn report_event(&self, event: &SessionEvent) {
        (self.on_event)(event);
    }

    /// Records that the caller of request `of` received a signal.
    pub(super) fn interrupt(&self, unique: u64, of: u64) {
        // Relaxed: a statistic.
        self.interrupts.fetch_add(1, Ordering::Relaxed);
        let now = self.now_ms();
        if self.slots.iter().any(|slot| slot.interrupt(of, now)) {
            return;
        }
        // Either the request has been answered, and the kernel drops this reply, or a listener has just read it and not
        // yet called `begin`. In the second case EAGAIN makes the kernel repeat the interrupt. If that goes on, the reply
        // was lost, and the caller gets another one. It is not known which channel has the request, so each reply goes to
        // all.
        let (unique, errno) = match self.unknown_interrupts.note(of, now) {
            UnknownRequest::JustRead => (unique, Errno::AGAIN),
            UnknownRequest::Late => {
                std::thread::sleep(INTERRUPT_PAUSE);
                (unique, Errno::AGAIN)
            }
            UnknownRequest::Lost => (of, Errno::IO),
        };
        for channel in &self.channels {
            channel.reply(unique, Some(errno), &[]).ok();
        }
    }

    pub(super) fn stats(&self) -> SessionStats {
        let is_alive = |spare: &&JoinHandle<()>| !spare.is_finished();
        let spares = lock(&self.spares).iter().filter(is_alive).count();
        SessionStats {
            listeners: self.listeners(),
            spares,
            idle: self.slots.iter().filter(|slot| slot.is_waiting()).count(),
            interrupts: self.interrupts.load(Ordering::Relaxed),
        }
    }

    /// A listener has seen that the file system is unmounted.
    pub(super) fn mark_unmounted(&self) {
        // Relaxed: nothing is published with it.
        if !self.is_unmounted.swap(true, Ordering::Relaxed) {
            self.report_event(&SessionEvent::Unmounted);
        }
    }

    /// The buffer of a listener in the journal, if there is one.
    pub(super) fn journal_slot(&self, index: usize) -> Option<JournalSlot<'_>> {
        self.continued.as_ref().and_then(|continued| continued.journal.slot(index))
    }

    /// Whether the request in these bytes is banned.
    pub(super) fn is_banned(&self, request: &[u8]) -> bool {
        self.continued.as_ref().is_some_and(|continued| continued.banned.contains(request))
    }

    /// A listener has handled the request in these bytes.
    pub(super) fn acquit(&self, request: &[u8]) {
        if let Some(Continued { journal, suspected, .. }) = &self.continued
            && let Some(key) = suspected.key_of(request)
        {
            journal.acquit(&key);
        }
    }

    /// Lets the threads run that wait in [`wait_for_start`](Self::wait_for_start).
    pub(super) fn signal_start(&self, start: SessionStart) {
        self.enter_phase(match start {
            SessionStart::Whole => SessionPhase::Running,
            SessionStart::Trial => SessionPhase::Trial,
        });
    }

    /// Lets the other listeners run after a trial.
    pub(super) fn end_trial(&self) {
        if self.is_in_trial() {
            self.enter_phase(SessionPhase::Running);
        }
    }

    /// Whether the session is in its trial.
    pub(super) fn is_in_trial(&self) -> bool {
        lock(&self.progress).phase == SessionPhase::Trial
    }

    /// Whether a listener may serve alone whatever else uses the CPUs.
    pub(super) fn ignores_load(&self) -> bool {
        #[cfg(test)]
        return self.is_load_ignored.load(Ordering::Relaxed);
        #[cfg(not(test))]
        false
    }

    /// The thread of the spinner, to be joined.
    pub(super) fn take_spinner(&self) -> Option<JoinHandle<()>> {
        lock(&self.spinner_thread).take()
    }

    /// Lets all threads end that do not read from the device.
    pub(super) fn signal_end(&self) {
        self.cpu_sharing.shut_down();
        self.enter_phase(SessionPhase::Ended);
    }

    fn enter_phase(&self, phase: SessionPhase) {
        lock(&self.progress).phase = phase;
        self.progressed.notify_all();
    }

    /// Waits until all threads have been started. `false`: they have not, and this one has to end.
    /// `runs_in_trial`: it need not wait for the end of the trial.
    pub(super) fn wait_for_start(&self, runs_in_trial: bool) -> bool {
        let mut progress = lock(&self.progress);
        let waits = |phase| match phase {
            SessionPhase::Spawning => true,
            SessionPhase::Trial => !runs_in_trial,
            SessionPhase::Running | SessionPhase::Ended => false,
        };
        while waits(progress.phase) {
            progress = self.progressed.wait(progress).unwrap_or_else(PoisonError::into_inner);
        }
        progress.phase != SessionPhase::Ended
    }

    /// Waits until the session ends, but not longer than `time`. Returns whether it has ended.
    pub(super) fn wait_for_end(&self, time: Duration) -> bool {
        let progress = lock(&self.progress);
        let is_running = |progress: &mut SessionProgress| progress.phase != SessionPhase::Ended;
        let waited = self.progressed.wait_timeout_while(progress, time, is_running);
        let (progress, _) = waited.unwrap_or_else(PoisonError::into_inner);
        progress.phase == SessionPhase::Ended
    }

    /// Waits until a listener has a request or the session ends. `false`: neither for some time, and the watchdog has to
    /// end; the next request starts another. Only the watchdog calls it.
    pub(super) fn wait_for_request(&self) -> bool {
        self.watchdog.park();
        if self.slots.iter().any(|slot| slot.in_flight().is_some()) {
            self.watchdog.wake();
            return true;
        }
        let progress = lock(&self.progress);
        let is_idle = |progress: &mut SessionProgress| {
            progress.phase != SessionPhase::Ended && self.watchdog.is_parked()
        };
        let waited = self.progressed.wait_timeout_while(progress, WATCHDOG_STAY, is_idle);
        let (mut progress, _) = waited.unwrap_or_else(PoisonError::into_inner);
        // Under the lock: a listener that clears the flag now finds that there is no watchdog.
        progress.has_watchdog = !is_idle(&mut progress);
        progress.has_watchdog
    }

    /// Wakes the watchdog if it waits for a request. Listeners call it after they have begun with one. `true`: there is no
    /// watchdog, and the caller has to start one, or to report that it has not.
    pub(super) fn wake_watchdog(&self) -> bool {
        if !self.watchdog.wake() {
            return false;
        }
        // The lock, so that the watchdog cannot be between its check of the flag and its sleep.
        let had_watchdog = std::mem::replace(&mut lock(&self.progress).has_watchdog, true);
        if had_watchdog {
            self.progressed.notify_all();
        }
        !had_watchdog
    }

    /// No watchdog could be started: the next request tries again.
    pub(super) fn report_no_watchdog(&self) {
        lock(&self.progress).has_watchdog = false;
        self.watchdog.park();
    }

    /// Whether there is a thread of the watchdog.
    #[cfg(test)]
    pub(super) fn has_watchdog(&self) -> bool {
        lock(&self.progress).has_watchdog
    }

    /// Whether the watchdog sleeps until there is a request.
    #[cfg(test)]
    pub(super) fn is_watchdog_parked(&self) -> bool {
        self.watchdog.is_parked()
    }
}

/// The listeners that were added. A session starts with a listener for each CPU, since decoding takes CPU time. If reads wait
/// instead, as those of a server or of slow storage do, other requests would wait behind them. Then a listener that has no
/// idle one beside it starts another, up to a limit, and all of them stay.
#[derive(Debug)]
pub(super) struct AddedListeners {
    growth: ListenerGrowth,
    added: AtomicUsize,
}

impl AddedListeners {
    fn new(growth: ListenerGrowth) -> Self {
        Self { growth, added: AtomicUsize::new(0) }
    }

    /// How many listeners there may be when a listener has read a request; 0 if none may be added then.
    pub(super) fn most_before_request(&self) -> usize {
        if let ListenerGrowth::AtOnce(most) = self.growth { most } else { 0 }
    }

    /// The same when it has handled a request.
    pub(super) fn most_after_request(&self, has_waited: impl FnOnce() -> bool) -> usize {
        match self.growth {
            ListenerGrowth::IfSlow(most) if has_waited() => most,
            _ => 0,
        }
    }

    /// Takes the right to add one, with `permanent` listeners from the start.
    pub(super) fn reserve(&self, permanent: usize, most: usize) -> bool {
        let most = most.saturating_sub(permanent).min(MAX_ADDED_LISTENERS);
        // Relaxed: a count that publishes nothing.
        let add = |added: usize| (added < most).then_some(added.saturating_add(1));
        self.added.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add).is_ok()
    }

    pub(super) fn release(&self) {
        self.added.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Starts a thread.
///
/// # Errors
/// The system refuses another thread.
pub(super) fn spawn_thread(
    name: String,
    body: Box<dyn FnOnce() + Send>,
) -> std::io::Result<JoinHandle<()>> {
    std::thread::Builder::new().name(name).spawn(body)
}

pub(super) fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Sends notifications to the kernel. It keeps no reference to the session, since the file system that the session
/// owns may own a notifier.
#[derive(Clone)]
pub struct Notifier {
    state: Weak<SessionState>,
}

impl std::fmt::Debug for Notifier {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Notifier").finish_non_exhaustive()
    }
}

impl Notifier {
    pub(super) fn new(state: &Arc<SessionState>) -> Self {
        Self { state: Arc::downgrade(state) }
    }

    /// Whether at least one listener waits for a request, so that the calling one may block without stopping the
    /// session.
    #[must_use]
    pub fn has_idle_listener(&self) -> bool {
        self.state.upgrade().is_some_and(|state| state.has_idle_listener())
    }

    /// The listeners now: none once the session is over.
    #[must_use]
    pub fn stats(&self) -> SessionStats {
        self.state.upgrade().map(|state| state.stats()).unwrap_or_default()
    }

    /// Stores bytes of a file in the kernel's page cache (FUSE_NOTIFY_STORE). `offset` is a multiple of the page size,
    /// and `bytes` has whole pages or reaches the end of the file.
    ///
    /// The kernel waits for pages that are being read. So a listener may call this only while another listener is
    /// idle, and not for pages of a request to which it has yet to reply.
    ///
    /// # Errors
    /// `NOENT`: the kernel has forgotten the node. `NOMEM`: it has no free pages. `NODEV`: the session is over.
    pub fn store(&self, node: u64, offset: u64, bytes: &[u8]) -> Result<(), Errno> {
        let size = u32::try_from(bytes.len()).map_err(|_| Errno::INVAL)?;
        let head = StoreOut { node, offset, size, padding: 0 };
        let state = self.state.upgrade().ok_or(Errno::NODEV)?;
        let channel = state.channels.first().ok_or(Errno::NODEV)?;
        channel.notify(notification::STORE, &[head.as_bytes(), bytes])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_more_listeners_than_the_limit() {
        let added = AddedListeners::new(ListenerGrowth::AtOnce(5));
        let count = (0..10).filter(|_| added.reserve(2, 5)).count();
        assert_eq!(count, 3);
        added.release();
        assert!(added.reserve(2, 5) && !added.reserve(2, 5));
        let added = AddedListeners::new(ListenerGrowth::AtOnce(1000));
        assert_eq!((0..100).filter(|_| added.reserve(2, 1000)).count(), MAX_ADDED_LISTENERS);
    }
}

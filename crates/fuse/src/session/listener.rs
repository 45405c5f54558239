//! A thread that reads requests from its channel and passes them to the file system, one at a time; what it learns from
//! them: when it polls instead of sleeping ([`BusyPoll`]), when it serves alone on the CPU of its caller
//! ([`SharingHistory`]), and whether requests wait for storage ([`RequestTimes`]).
//! Started by `session`, and by the watchdog for spare listeners.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread::Builder;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::time::{ClockId, clock_gettime};

use super::cpu_sharing::{CpuPair, CpuPlacement, SharingHistory, are_cpus_free};
use super::state::{SessionState, lock, spawn_thread};
use super::{SessionEvent, start_watchdog};
use crate::init::REQUEST_BYTES;
use crate::journal::{JournalSlot, RESENT};
use crate::reply::{Channel, Received, Reply};
use crate::request::{InHeader, IncomingMessage, MalformedRequest, Request, read_prefix};
use crate::request_slot::RequestSlot;
use crate::sync::{AtomicBool, Ordering};

/// A listener thread.
pub(super) struct Listener {
    pub(super) state: Arc<SessionState>,
    /// Index of its channel and of its slot.
    pub(super) index: usize,
    /// Whether it ends once another listener is idle.
    pub(super) is_spare: bool,
}

/// Where a listener reads requests to.
enum RequestBuffer<'a> {
    Own(Vec<u8>),
    Journal(JournalSlot<'a>),
}

impl<'a> RequestBuffer<'a> {
    fn of(state: &'a SessionState, index: usize) -> Self {
        match state.journal_slot(index) {
            None => Self::Own(vec![0; REQUEST_BYTES]),
            Some(mut slot) => {
                slot.prefault();
                Self::Journal(slot)
            }
        }
    }

    fn bytes(&self) -> &[u8] {
        match self {
            Self::Own(bytes) => bytes,
            Self::Journal(slot) => slot.bytes(),
        }
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        match self {
            Self::Own(bytes) => bytes,
            Self::Journal(slot) => slot.bytes_mut(),
        }
    }

    /// The message that was read last is handled.
    fn finish(&self) {
        if let Self::Journal(slot) = self
            && let Some((header, _)) = read_prefix::<InHeader>(slot.bytes())
        {
            slot.finish(header.unique);
        }
    }

    /// Whether the message that was read last is a request that the kernel sent for the first time.
    fn has_new_request(&self) -> bool {
        matches!(
            IncomingMessage::parse(self.bytes()),
            Ok(IncomingMessage::Request(request)) if request.unique & RESENT == 0
        )
    }
}

/// What a listener knows about the messages that it has read.
#[derive(Default)]
struct ListenerHistory {
    requests: RequestTimes,
    waits: BusyPoll,
    sharing: SharingHistory,
}

/// Messages of a trial: more than requests can be in flight.
const TRIAL_MESSAGES_MAX: usize = 4096;

/// Whether a listener reads another request.
#[derive(PartialEq, Eq)]
enum ListenerAction {
    Continue,
    End,
}

impl Listener {
    pub(super) fn thread_name(&self) -> String {
        format!("fuse-{}", self.index)
    }

    /// Serves until the file system is unmounted.
    pub(super) fn run(self) {
        let is_first = self.index == 0;
        if !self.state.wait_for_start(is_first || self.is_spare) {
            return;
        }
        let Some((channel, slot)) = self.state.channel_and_slot(self.index) else { return };
        // A listener that ended here would leave requests that nobody reads.
        let file_system = &self.state.file_system;
        if catch_unwind(AssertUnwindSafe(|| file_system.listener_started())).is_err() {
            self.state.report_event(&SessionEvent::ListenerStartPanicked);
        }
        let mut buffer = RequestBuffer::of(&self.state, self.index);
        let mut history = ListenerHistory::default();
        if is_first && self.state.is_in_trial() {
            self.run_trial(channel, slot, &mut buffer, &mut history);
        }
        while self.serve(channel, slot, &mut buffer, &mut history) == ListenerAction::Continue {}
        // The next listener with this index gets its slot in the journal.
        drop(buffer);
        if self.is_spare {
            lock(&self.state.unused_slots).push(self.index);
        }
    }

    /// Handles resent requests, which the kernel sends first, one after the other. Then the other listeners start.
    fn run_trial(
        &self,
        channel: &Channel,
        slot: &RequestSlot,
        buffer: &mut RequestBuffer<'_>,
        history: &mut ListenerHistory,
    ) {
        for _ in 0..TRIAL_MESSAGES_MAX {
            let is_over = !channel.is_ready()
                || self.serve(channel, slot, buffer, history) == ListenerAction::End
                || buffer.has_new_request();
            if is_over {
                break;
            }
        }
        self.state.end_trial();
    }

    fn serve(
        &self,
        channel: &Channel,
        slot: &RequestSlot,
        buffer: &mut RequestBuffer<'_>,
        history: &mut ListenerHistory,
    ) -> ListenerAction {
        slot.begin_wait();
        self.arrange_cpus(history);
        let started_at = Instant::now();
        let permit = PollPermit::new(&self.state.is_polled, self.state.busy_poll);
        let polled = match history.sharing.is_alone() {
            true => Polled::No,
            false => history.waits.poll(&permit, || channel.is_ready()),
        };
        let received = channel.receive(buffer.bytes_mut());
        let waited = started_at.elapsed();
        history.waits.record(&permit, polled, waited);
        history.sharing.record_wait(waited);
        slot.end_wait();
        let length = match received {
            Ok(Received::Message(length)) => length,
            Ok(Received::Nothing) => return ListenerAction::Continue,
            Ok(Received::Unmounted) => {
                self.state.cpu_sharing.shut_down();
                self.state.mark_unmounted();
                return ListenerAction::End;
            }
            Err(errno) => {
                self.state.cpu_sharing.end(self.index);
                self.state.report_event(&SessionEvent::DeviceFailed { errno });
                return ListenerAction::End;
            }
        };
        let request = buffer.bytes().get(..length).unwrap_or_default();
        match IncomingMessage::parse(request) {
            Ok(IncomingMessage::Request(banned)) if self.state.is_banned(request) => {
                channel.reply(banned.unique, Some(Errno::IO), &[]).ok();
            }
            Ok(IncomingMessage::NoReply) => {}
            Ok(IncomingMessage::ImmediateReply { unique, errno }) => {
                channel.reply(unique, errno, &[]).ok();
            }
            Ok(IncomingMessage::Interrupt { unique, of }) => self.state.interrupt(unique, of),
            Ok(IncomingMessage::Request(request)) => {
                history.waits.record_caller(request.pid);
                match history.waits.has_same_caller() {
                    true => self.state.cpu_sharing.record_served(self.index),
                    false => self.end_sharing(history),
                }
                self.add_listener(self.state.added.most_before_request());
                let received_at = self.handle(channel, slot, &request);
                let taken = received_at.elapsed();
                history.sharing.record_request(taken);
                if !history.sharing.pays() {
                    self.end_sharing(history);
                }
                self.state.pass_overdue(taken);
                self.state.acquit(buffer.bytes().get(..length).unwrap_or_default());
                let has_waited = || history.requests.has_waited(taken, thread_cpu_time);
                self.add_listener(self.state.added.most_after_request(has_waited));
            }
            Err(MalformedRequest { unique }) => {
                self.state.report_event(&SessionEvent::MalformedRequest);
                channel.reply(unique, Some(Errno::IO), &[]).ok();
            }
        }
        buffer.finish();
        if self.is_spare && self.state.has_idle_listener() {
            ListenerAction::End
        } else {
            ListenerAction::Continue
        }
    }

    /// Waits while another listener serves alone. Begins to serve alone on the CPU of the caller if that is likely to pay.
    fn arrange_cpus(&self, history: &mut ListenerHistory) {
        let sharing = &self.state.cpu_sharing;
        match sharing.server() {
            Some(server) if server == self.index => return,
            // A spare one ends by itself.
            Some(_) if !self.is_spare => sharing.park(),
            _ => {}
        }
        // If it has served alone, the listener that supervised it has ended that.
        history.sharing.record_end();
        let waits = &history.waits;
        let may_try = sharing.is_allowed() && !self.is_spare && waits.was_short;
        if may_try && history.sharing.is_worth_a_try(waits.requests) {
            let place = || CpuPlacement::of_caller(waits.caller);
            let has_begun = self.prepare_spinner() && sharing.begin(self.index, place);
            history.sharing.record_try(has_begun);
        }
    }

    fn end_sharing(&self, history: &mut ListenerHistory) {
        self.state.cpu_sharing.end(self.index);
        history.sharing.record_end();
    }

    /// Starts the spinner, if this thread may run on two CPUs, and no other threads use them. Returns whether it is ready.
    fn prepare_spinner(&self) -> bool {
        let state = &self.state;
        CpuPair::of_current_thread().is_some()
            && (state.ignores_load() || are_cpus_free())
            && state.cpu_sharing.prepare_spinner(|| {
                let of_spinner = Arc::clone(state);
                let run = move || of_spinner.cpu_sharing.run_spinner();
                let thread = spawn_thread("fuse-spinner".to_owned(), Box::new(run)).ok();
                let is_started = thread.is_some();
                *lock(&state.spinner_thread) = thread;
                is_started
            })
    }

    /// Starts another listener, unless one is idle or there are `most`.
    fn add_listener(&self, most: usize) {
        let state = &self.state;
        if most == 0 || state.has_idle_listener() || !state.added.reserve(state.listeners(), most) {
            return;
        }
        let Some(index) = lock(&state.unused_slots).pop() else { return state.added.release() };
        let listener = Self { state: Arc::clone(state), index, is_spare: false };
        let builder = Builder::new().name(listener.thread_name());
        match state.file_system.spawn_listener(builder, Box::new(move || listener.run())) {
            Ok(thread) => lock(&state.spares).push(thread),
            Err(_) => {
                lock(&state.unused_slots).push(index);
                state.added.release();
            }
        }
    }

    /// Returns when the request was received.
    fn handle(&self, channel: &Channel, slot: &RequestSlot, request: &Request<'_>) -> Instant {
        let received_at = Instant::now();
        slot.begin(request.unique, request.pid, self.state.millis_at(received_at));
        if self.state.wake_watchdog() {
            start_watchdog(&self.state);
        }
        let reply = Reply::new(channel, slot, request.unique, received_at);
        let file_system = &self.state.file_system;
        // A panic drops the reply, which then sends EIO.
        let handled = catch_unwind(AssertUnwindSafe(|| file_system.handle(request, reply)));
        slot.end(request.unique);
        if handled.is_err() {
            self.state.report_event(&SessionEvent::Panicked { node: request.node });
        }
        received_at
    }
}

/// After a wait that was longer by this than the longest time of polling, a listener does not poll. The wait includes the
/// time of the wake-up.
const WAKE_UP: Duration = Duration::from_micros(100);

/// The most waits without polling after polling that found nothing.
const MOST_SKIPPED: u32 = 1024;

/// So many requests of one thread follow each other before a listener polls.
const SAME_CALLER: u32 = 16;

/// Busy polling: a listener that has just replied looks for the next request for a few microseconds before it sleeps. A
/// caller that makes one request after the other then finds a running thread, where it would have to wake one: on a virtual
/// machine, whose CPUs halt, that takes longer than most requests (docs/benchmarks.md).
///
/// It polls only where that pays, which it finds out as halt polling does (`virt/kvm/kvm_main.c`): after several requests of
/// one caller, since with more callers there are requests in any case, and the callers need the CPUs; and after a short
/// wait, so that an idle mount never polls. Where polling finds nothing it stops for a while, twice as long each time, and
/// takes half of the time after that: the caller may need the very CPU on which the listener polls, which yields between two
/// looks, but has a higher priority.
/// One listener polls at a time.
///
/// This is what a listener knows about its waits for requests.
#[derive(Debug, Default)]
struct BusyPoll {
    /// The last wait was short.
    was_short: bool,
    /// Short waits to come without polling, and how many there were to be after polling that found nothing last.
    skips: u32,
    last_skips: u32,
    /// The thread that made the last request, and how many of the last ones.
    caller: u32,
    requests: u32,
}

impl BusyPoll {
    /// Polls with `is_ready`, if recent waits suggest it.
    fn poll(&self, permit: &PollPermit<'_>, mut is_ready: impl FnMut() -> bool) -> Polled {
        let pays = self.was_short && self.skips == 0 && self.requests >= SAME_CALLER;
        if !pays || permit.longest.is_zero() {
            return Polled::No;
        }
        // Half of the time where polling has found nothing lately.
        let longest = permit.longest / if self.last_skips == 0 { 1 } else { 2 };
        let found = permit.with(|| {
            let started_at = Instant::now();
            loop {
                let is_ready = is_ready();
                // A message that comes late does not count: other threads had the CPU, and a listener that slept would have
                // been woken before them.
                match started_at.elapsed() < longest {
                    true if is_ready => return Polled::Found,
                    true => std::thread::yield_now(),
                    false => return Polled::Nothing,
                }
            }
        });
        found.unwrap_or(Polled::No)
    }

    /// Records that the last message was a request of this thread; 0 if it is unknown.
    fn record_caller(&mut self, pid: u32) {
        self.requests = match pid {
            0 => 0,
            same if same == self.caller => self.requests.saturating_add(1),
            _ => 1,
        };
        self.caller = pid;
    }

    /// Whether the last request had the caller of the one before it.
    fn has_same_caller(&self) -> bool {
        self.requests > 1
    }

    /// Records a wait for a request, polling included.
    fn record(&mut self, permit: &PollPermit<'_>, polled: Polled, waited: Duration) {
        self.was_short = waited <= permit.longest.saturating_add(WAKE_UP);
        match polled {
            Polled::No => self.skips = self.skips.saturating_sub(u32::from(self.was_short)),
            Polled::Found => self.last_skips /= 2,
            Polled::Nothing => {
                self.last_skips = self.last_skips.saturating_mul(2).clamp(1, MOST_SKIPPED);
                self.skips = self.last_skips;
            }
        }
    }
}

/// What polling led to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Polled {
    /// The listener did not poll.
    No,
    /// There is a message.
    Found,
    /// There was none in time.
    Nothing,
}

/// The permit to poll, for one of the listeners of a session:
///
/// 1. A listener polls only if it took the permit, and drops it before it reads.
/// 2. What polling finds is a hint: another listener may read that request. Reading waits as without polling.
#[derive(Debug)]
struct PollPermit<'a> {
    is_taken: &'a AtomicBool,
    /// The longest time of polling.
    longest: Duration,
}

impl<'a> PollPermit<'a> {
    fn new(is_taken: &'a AtomicBool, longest: Duration) -> Self {
        Self { is_taken, longest }
    }

    /// Runs `poll`, unless another listener is polling. Returns what it returned.
    fn with<T>(&self, poll: impl FnOnce() -> T) -> Option<T> {
        // Relaxed: the flag publishes nothing. It is read first, so that listeners that find it taken do not write its line.
        let is_free = || !self.is_taken.load(Ordering::Relaxed);
        let take =
            || self.is_taken.compare_exchange(false, true, Ordering::Relaxed, Ordering::Relaxed);
        if !is_free() || take().is_err() {
            return None;
        }
        let found = poll();
        self.is_taken.store(false, Ordering::Relaxed);
        Some(found)
    }
}

/// A request that takes longer may have waited for storage: a page cache and a decoder are faster.
const SLOW: Duration = Duration::from_millis(4);
/// The least ratio of time to CPU time at which requests are said to wait: a thread that shares its CPU with a few others
/// stays below it.
const WAITS_RATIO: u32 = 8;

/// What a listener knows about the time of its requests. Whether they wait for storage shows in the CPU time of its thread,
/// which includes none of its idle time. It reads that clock only after a request that took long.
#[derive(Debug, Default)]
struct RequestTimes {
    /// The time of its requests since the CPU time was read.
    taken: Duration,
    /// The CPU time of its thread then.
    cpu: Duration,
}

impl RequestTimes {
    /// Records a request; true if requests have waited since the last time that this was asked.
    fn has_waited(&mut self, elapsed: Duration, cpu_time: impl FnOnce() -> Duration) -> bool {
        self.taken = self.taken.saturating_add(elapsed);
        if elapsed < SLOW {
            return false;
        }
        let now = cpu_time();
        let used = now.saturating_sub(self.cpu);
        let taken = std::mem::take(&mut self.taken);
        self.cpu = now;
        used.saturating_mul(WAITS_RATIO) < taken
    }
}

fn thread_cpu_time() -> Duration {
    Duration::try_from(clock_gettime(ClockId::ThreadCPUTime)).unwrap_or_default()
}

/// A session without threads and without a kernel, for the fuzz targets: one message at a time, handled by the calling
/// thread. Only with the feature `fuzzing`, which no release has.
#[cfg(all(feature = "fuzzing", not(loom)))]
pub mod fuzzing {
    use std::os::fd::OwnedFd;

    use super::{Channel, Errno, IncomingMessage, Instant, MalformedRequest, Reply, RequestSlot};
    use crate::session::FileSystem;

    /// What a message was.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum HandledMessage {
        /// A request that the file system has handled.
        Request,
        /// A request that needs no file system.
        ImmediateReply,
        /// A request that is too short, which gets an error.
        Malformed,
        /// A message without a reply.
        NoReply,
    }

    /// A session of one slot.
    #[derive(Debug)]
    pub struct InlineSession {
        channel: Channel,
        slot: RequestSlot,
    }

    impl InlineSession {
        /// A session that writes its replies to `output`.
        #[must_use]
        pub fn new(output: OwnedFd) -> Self {
            Self { channel: Channel::new(output), slot: RequestSlot::new() }
        }

        /// Handles the bytes of one message as a listener does, but lets panics pass.
        ///
        /// # Errors
        /// The output refuses a reply.
        pub fn handle(
            &self,
            file_system: &dyn FileSystem,
            message: &[u8],
        ) -> Result<HandledMessage, Errno> {
            match IncomingMessage::parse(message) {
                Ok(IncomingMessage::NoReply | IncomingMessage::Interrupt { .. }) => {
                    Ok(HandledMessage::NoReply)
                }
                Ok(IncomingMessage::ImmediateReply { unique, errno }) => {
                    self.channel.reply(unique, errno, &[])?;
                    Ok(HandledMessage::ImmediateReply)
                }
                Ok(IncomingMessage::Request(request)) => {
                    self.slot.begin(request.unique, request.pid, 0);
                    let reply =
                        Reply::new(&self.channel, &self.slot, request.unique, Instant::now());
                    file_system.handle(&request, reply);
                    self.slot.end(request.unique);
                    Ok(HandledMessage::Request)
                }
                Err(MalformedRequest { unique }) => {
                    self.channel.reply(unique, Some(Errno::IO), &[])?;
                    Ok(HandledMessage::Malformed)
                }
            }
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    const fn us(count: u64) -> Duration {
        Duration::from_micros(count)
    }

    /// No test takes longer, even where its thread loses the CPU.
    const HOUR: Duration = Duration::from_secs(3600);

    /// A listener that polls next.
    fn ready(permit: &PollPermit<'_>) -> BusyPoll {
        let mut listener = BusyPoll::default();
        (0..SAME_CALLER).for_each(|_| listener.record_caller(7));
        listener.record(permit, Polled::No, us(1));
        listener
    }

    fn does_not_poll(listener: &BusyPoll, permit: &PollPermit<'_>) -> bool {
        listener.poll(permit, || true) == Polled::No
    }

    #[test]
    fn a_listener_polls_after_short_waits_only() {
        let flag = AtomicBool::new(false);
        let permit = PollPermit::new(&flag, us(50));
        let mut listener = ready(&permit);
        listener.record(&permit, Polled::No, us(150));
        let started_at = Instant::now();
        assert_eq!(listener.poll(&permit, || false), Polled::Nothing);
        assert!(started_at.elapsed() >= us(50));
        let late = || {
            std::thread::sleep(us(60));
            true
        };
        assert_eq!(listener.poll(&permit, late), Polled::Nothing, "it is ready, but late");
        listener.record(&permit, Polled::No, us(151));
        assert!(does_not_poll(&listener, &permit), "it has waited long");
    }

    #[test]
    fn polling_that_finds_nothing_stops_for_longer_each_time() {
        let flag = AtomicBool::new(false);
        let permit = PollPermit::new(&flag, HOUR);
        let mut listener = ready(&permit);
        for skipped in [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 1024] {
            listener.record(&permit, Polled::Nothing, us(60));
            for _ in 0..skipped {
                assert!(does_not_poll(&listener, &permit));
                listener.record(&permit, Polled::No, us(10));
            }
            assert_eq!(listener.poll(&permit, || true), Polled::Found, "after {skipped}");
        }
        (0..11).for_each(|_| listener.record(&permit, Polled::Found, us(5)));
        listener.record(&permit, Polled::Nothing, us(60));
        listener.record(&permit, Polled::No, us(10));
        assert_eq!(listener.poll(&permit, || true), Polled::Found, "it starts from the beginning");
    }

    #[test]
    fn polling_takes_half_of_the_time_until_it_has_found_something_again() {
        let flag = AtomicBool::new(false);
        let permit = PollPermit::new(&flag, us(20_000));
        let mut listener = ready(&permit);
        listener.record(&permit, Polled::Nothing, us(60));
        listener.record(&permit, Polled::No, us(10));
        let late = || {
            std::thread::sleep(us(10_000));
            true
        };
        assert_eq!(listener.poll(&permit, late), Polled::Nothing);
        listener.record(&permit, Polled::Found, us(5));
        let started_at = Instant::now();
        assert_eq!(listener.poll(&permit, || false), Polled::Nothing);
        assert!(started_at.elapsed() >= us(20_000));
    }

    #[test]
    fn a_listener_polls_for_one_caller_only() {
        let flag = AtomicBool::new(false);
        let permit = PollPermit::new(&flag, HOUR);
        for callers in [[7, 8], [7, 0], [0, 0]] {
            let mut listener = ready(&permit);
            for _ in 0..SAME_CALLER {
                callers.iter().for_each(|pid| listener.record_caller(*pid));
                assert!(does_not_poll(&listener, &permit), "{callers:?}");
            }
            (0..SAME_CALLER).for_each(|_| listener.record_caller(9));
            assert_eq!(listener.poll(&permit, || true), Polled::Found);
        }
    }

    #[test]
    fn a_listener_without_a_window_never_polls() {
        let flag = AtomicBool::new(false);
        let permit = PollPermit::new(&flag, Duration::ZERO);
        assert!(does_not_poll(&ready(&permit), &permit));
    }

    #[test]
    fn one_listener_polls_at_a_time() {
        let flag = AtomicBool::new(false);
        let permit = PollPermit::new(&flag, HOUR);
        let listener = ready(&permit);
        let found = listener.poll(&permit, || does_not_poll(&listener, &permit));
        assert_eq!(found, Polled::Found);
        assert_eq!(listener.poll(&permit, || true), Polled::Found, "the permit is free again");
    }

    #[test]
    fn threads_that_poll_again_and_again_never_meet() {
        let flag = AtomicBool::new(false);
        let permit = PollPermit::new(&flag, us(50));
        let polling = std::sync::atomic::AtomicUsize::new(0);
        let poll_often = || {
            let found = (0..20_000).filter(|_| {
                let once = permit.with(|| {
                    assert_eq!(polling.fetch_add(1, Ordering::Relaxed), 0);
                    polling.fetch_sub(1, Ordering::Relaxed);
                });
                once.is_some()
            });
            found.count()
        };
        let found: usize = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..4).map(|_| scope.spawn(poll_often)).collect();
            threads.into_iter().map(|thread| thread.join().expect("no panic")).sum()
        });
        assert!(found > 0);
    }

    const fn ms(count: u64) -> Duration {
        Duration::from_millis(count)
    }

    #[test]
    fn requests_that_use_the_cpu_do_not_wait() {
        let mut times = RequestTimes::default();
        assert!(!times.has_waited(ms(20), || ms(19)));
        assert!(!times.has_waited(ms(20), || ms(25)), "shares its CPU");
        assert!(times.has_waited(ms(20), || ms(26)));
    }

    #[test]
    fn quick_requests_read_no_clock() {
        let mut times = RequestTimes::default();
        for _ in 0..100 {
            assert!(!times.has_waited(ms(1), || unreachable!()));
        }
        assert!(!times.has_waited(ms(5), || ms(60)), "all of them count");
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use loom::sync::Arc;
    use loom::sync::atomic::AtomicUsize;

    use super::*;

    #[test]
    fn one_listener_polls_at_a_time_and_the_permit_comes_back() {
        loom::model(|| {
            let flag = Arc::new(AtomicBool::new(false));
            let polling = Arc::new(AtomicUsize::new(0));
            let others: Vec<_> = (0..2)
                .map(|_| {
                    let (flag, polling) = (Arc::clone(&flag), Arc::clone(&polling));
                    loom::thread::spawn(move || {
                        let once = PollPermit::new(&flag, Duration::ZERO).with(|| {
                            assert_eq!(polling.fetch_add(1, Ordering::Relaxed), 0);
                            polling.fetch_sub(1, Ordering::Relaxed);
                        });
                        once.is_some()
                    })
                })
                .collect();
            let found = others.into_iter().map(|other| other.join().unwrap());
            assert!(found.filter(|found| *found).count() >= 1);
            assert!(PollPermit::new(&flag, Duration::ZERO).with(|| ()).is_some());
        });
    }
}

//! A session: from FUSE_INIT to the end of the mount. It owns all its threads: listeners, which handle requests, and a
//! watchdog, which looks for requests that hang. Several processes may serve a mount one after the other: see [`Succession`].

mod cpu_sharing;
mod listener;
mod state;

use std::fmt;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::thread::{Builder, JoinHandle};
use std::time::Duration;

use rustix::io::Errno;
use zerocopy::IntoBytes;

use crate::init::{
    Capabilities, InitParameters, InitRequest, Negotiation, REQUEST_BYTES, SessionError, negotiate,
};
use crate::journal::{RequestJournal, ServerEnd, Takeover};
use crate::reply::{Channel, Received, Reply, notification};
use crate::request::{IncomingMessage, MalformedRequest, Request};
use crate::request_slot::{InFlightRequest, RequestSlot};
use listener::Listener;
use state::{
    Continued, EventCallback, SessionStart, SessionState, SpareListeners, lock, spawn_thread,
};

#[cfg(all(feature = "fuzzing", not(loom)))]
pub use listener::fuzzing;
pub use state::{Notifier, SessionStats};

/// What handles requests. Several threads call it at a time.
pub trait FileSystem: Send + Sync + 'static {
    /// Handles `request` and replies to it. After the reply it may do other work: the listener reads its next request
    /// when this returns.
    fn handle(&self, request: &Request<'_>, reply: Reply<'_>);

    /// Called once on each listener thread before its first request, for example to set its priority.
    fn listener_started(&self) {}

    /// Starts the thread of a spare listener, which a listener needs while it waits for slow storage.
    ///
    /// # Errors
    /// The system starts no thread.
    fn spawn_listener(
        &self,
        builder: Builder,
        body: Box<dyn FnOnce() + Send>,
    ) -> io::Result<JoinHandle<()>> {
        builder.spawn(body)
    }
}

/// How a session runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SessionOptions {
    /// The number of listener threads; at least two run.
    pub listeners: usize,
    /// When more are started.
    pub growth: ListenerGrowth,
    /// What to request in FUSE_INIT.
    pub init_request: InitRequest,
    /// How long a request may take before its caller gets `EIO`; `None` is forever.
    pub time_limit: Option<Duration>,
    /// How long a listener looks for the next request of one caller at most, before it sleeps.
    pub busy_poll: Duration,
    /// Whether one listener may serve alone on the CPU of its caller, while a thread of the lowest priority keeps the
    /// other CPU from being idle. It does so only where it may run on two CPUs, and while one caller makes one short request
    /// after the other.
    pub cpu_sharing: bool,
}

impl SessionOptions {
    /// Two listeners, no time limit, no busy polling, no CPU sharing.
    #[must_use]
    pub fn new(init_request: InitRequest) -> Self {
        let growth = ListenerGrowth::Never;
        Self {
            listeners: MIN_LISTENERS,
            growth,
            init_request,
            time_limit: None,
            busy_poll: Duration::ZERO,
            cpu_sharing: false,
        }
    }

    /// Sets the number of listener threads; one for each available CPU serves well.
    #[must_use]
    pub fn listeners(mut self, threads: usize) -> Self {
        self.listeners = threads;
        self
    }

    /// Sets when more listeners are started.
    #[must_use]
    pub fn growth(mut self, growth: ListenerGrowth) -> Self {
        self.growth = growth;
        self
    }

    /// Sets how long a request may take before its caller gets `EIO`; `None` is forever.
    #[must_use]
    pub fn time_limit(mut self, limit: Option<Duration>) -> Self {
        self.time_limit = limit;
        self
    }

    /// Sets how long a listener that has served several requests of one caller looks for the next one, before it sleeps;
    /// zero is never. It polls less or not at all where requests do not follow that soon.
    #[must_use]
    pub fn busy_poll(mut self, longest: Duration) -> Self {
        self.busy_poll = longest;
        self
    }

    /// Sets whether one listener may serve alone on the CPU of its caller.
    #[must_use]
    pub fn cpu_sharing(mut self, is_allowed: bool) -> Self {
        self.cpu_sharing = is_allowed;
        self
    }
}

/// When listeners are added.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ListenerGrowth {
    /// Never.
    #[default]
    Never,
    /// After requests that waited, up to this number of listeners in all.
    IfSlow(usize),
    /// As soon as all listeners are busy, up to this number: every request may wait for a server.
    AtOnce(usize),
}

/// With a single listener a request that reads from the mount itself would hang.
const MIN_LISTENERS: usize = 2;

/// A session after FUSE_INIT: all its descriptors are open and no thread runs, so that the process can drop
/// privileges before [`start`](Self::start).
#[derive(Debug)]
pub struct NegotiatedSession {
    channels: Vec<Channel>,
    init_parameters: InitParameters,
    options: SessionOptions,
    succession: Option<Succession>,
}

impl NegotiatedSession {
    /// Replies to FUSE_INIT on the device of a mounted file system.
    ///
    /// # Errors
    /// The kernel's protocol is too old, the file system is unmounted, or the device fails.
    pub fn new(device: OwnedFd, options: &SessionOptions) -> Result<Self, SessionError> {
        let first = Channel::new(device);
        let init_parameters = negotiate_init(&first, &options.init_request)?;
        let options =
            SessionOptions { listeners: options.listeners.max(MIN_LISTENERS), ..*options };
        let channels = clone_channels(first, options.listeners);
        Ok(Self { channels, init_parameters, options, succession: None })
    }

    /// The session of a mount whose FUSE_INIT another process has answered, with its channels.
    #[must_use]
    pub fn resumed(
        channels: Vec<OwnedFd>,
        init_parameters: InitParameters,
        options: &SessionOptions,
    ) -> Self {
        let options =
            SessionOptions { listeners: options.listeners.max(MIN_LISTENERS), ..*options };
        let channels = channels.into_iter().map(Channel::new).collect();
        Self { channels, init_parameters, options, succession: None }
    }

    /// Makes this the session of one of several processes that serve the mount one after the other.
    #[must_use]
    pub fn with_succession(mut self, succession: Succession) -> Self {
        self.succession = Some(succession);
        self
    }

    /// The number of listeners that the session will have.
    #[must_use]
    pub fn listeners(&self) -> usize {
        self.options.listeners
    }

    /// What kernel and daemon agreed on.
    #[must_use]
    pub fn init_parameters(&self) -> &InitParameters {
        &self.init_parameters
    }

    /// The descriptors that the session needs.
    pub fn descriptors(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        let journal = self.succession.as_ref().map(|succession| succession.journal.descriptor());
        self.channels.iter().map(AsFd::as_fd).chain(journal)
    }

    /// Starts the threads of the session. They call `file_system` for each request and `on_event` for each event.
    ///
    /// # Errors
    /// A thread cannot be started. Those that were started before have ended when this returns, and no request has
    /// been read.
    pub fn start(
        self,
        file_system: Arc<dyn FileSystem>,
        on_event: impl Fn(&SessionEvent) + Send + Sync + 'static,
    ) -> Result<Session, SessionError> {
        self.start_with(file_system, Box::new(on_event), &mut spawn_thread)
    }

    fn start_with(
        self,
        file_system: Arc<dyn FileSystem>,
        on_event: Box<EventCallback>,
        spawn: &mut SpawnThread<'_>,
    ) -> Result<Session, SessionError> {
        let Self { channels, init_parameters, options, succession } = self;
        let can_resend = init_parameters.granted.contains(Capabilities::HAS_RESEND);
        let mut continued =
            succession.map(|succession| succession.continue_with(&channels, can_resend, &on_event));
        let take = |continued: &mut Continued| std::mem::take(&mut continued.newly_banned);
        let newly_banned = continued.as_mut().map(take).unwrap_or_default();
        let start = continued.as_ref().map_or(SessionStart::Whole, |continued| continued.start);
        let state = SessionState::new(file_system, channels, &options, on_event, continued);
        let state = Arc::new(state);
        let (listeners, reporter) = (Vec::new(), None);
        let mut session = Session { state, init_parameters, listeners, reporter };
        match session.start_threads(spawn) {
            Ok(()) => {
                session.state.signal_start(start);
                session.report_banned(newly_banned);
                Ok(session)
            }
            Err(error) => {
                session.state.signal_end();
                session.join();
                Err(SessionError::Thread(error.to_string()))
            }
        }
    }
}

/// Starts a thread with this name and this body. Tests let it fail.
type SpawnThread<'a> =
    dyn FnMut(String, Box<dyn FnOnce() + Send>) -> io::Result<JoinHandle<()>> + 'a;

/// A running session.
pub struct Session {
    state: Arc<SessionState>,
    init_parameters: InitParameters,
    listeners: Vec<JoinHandle<()>>,
    /// Reports which requests were banned at the start.
    reporter: Option<JoinHandle<()>>,
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Session")
            .field("init_parameters", &self.init_parameters)
            .finish_non_exhaustive()
    }
}

impl Session {
    /// The listeners wait in [`SessionState::wait_for_start`], so that all threads can still be ended if one of them
    /// cannot be started: a thread that reads from the device cannot be woken.
    fn start_threads(&mut self, spawn: &mut SpawnThread<'_>) -> io::Result<()> {
        for index in 0..self.state.listeners() {
            let listener = Listener { state: Arc::clone(&self.state), index, is_spare: false };
            let thread = spawn(listener.thread_name(), Box::new(move || listener.run()))?;
            self.listeners.push(thread);
        }
        Ok(())
    }

    /// Reports the nodes of requests that were banned now, in a thread of its own: the file system may look for their names
    /// for long, and who waits for requests, or for the end of the start, need not.
    fn report_banned(&mut self, nodes: Vec<u64>) {
        if nodes.is_empty() {
            return;
        }
        let state = Arc::clone(&self.state);
        let report = move || {
            nodes.iter().for_each(|node| state.report_event(&SessionEvent::Banned { node: *node }));
        };
        // Without a thread they get no line in the log, and `EIO` all the same.
        self.reporter = spawn_thread("fuse-banned".to_owned(), Box::new(report)).ok();
    }

    /// What kernel and daemon agreed on.
    #[must_use]
    pub fn init_parameters(&self) -> &InitParameters {
        &self.init_parameters
    }

    /// The number of channels: one for each listener, or a single one where the device cannot be cloned. Each has
    /// its own queue of requests in flight in the kernel.
    #[must_use]
    pub fn channels(&self) -> usize {
        self.state.channels.len()
    }

    /// The number of permanent listener threads.
    #[must_use]
    pub fn listeners(&self) -> usize {
        self.listeners.len()
    }

    /// A handle for notifications to the kernel.
    #[must_use]
    pub fn notifier(&self) -> Notifier {
        Notifier::new(&self.state)
    }

    /// Waits until the file system is unmounted and all threads have ended.
    pub fn join(mut self) {
        for thread in self.listeners.drain(..) {
            thread.join().ok();
        }
        self.state.signal_end();
        if let Some(reporter) = self.reporter.take() {
            reporter.join().ok();
        }
        if let Some(spinner) = self.state.take_spinner() {
            spinner.join().ok();
        }
        // Watchdog and spare listeners start each other.
        loop {
            if let Some(watchdog) = self.state.take_watchdog() {
                watchdog.join().ok();
            }
            let Some(spare) = self.state.take_spare() else { break };
            spare.join().ok();
        }
    }
}

/// One channel for each listener where the device can be opened again, else one for all.
fn clone_channels(first: Channel, listeners: usize) -> Vec<Channel> {
    let mut channels = vec![first];
    while channels.len() < listeners {
        match channels.first().map(Channel::clone_channel) {
            Some(Ok(channel)) => channels.push(channel),
            _ => {
                channels.truncate(1);
                break;
            }
        }
    }
    channels
}

fn negotiate_init(
    channel: &Channel,
    init_request: &InitRequest,
) -> Result<InitParameters, SessionError> {
    let mut buffer = vec![0; REQUEST_BYTES];
    loop {
        let length = match channel.receive(&mut buffer) {
            Ok(Received::Message(length)) => length,
            Ok(Received::Nothing) => continue,
            Ok(Received::Unmounted) => return Err(SessionError::Unmounted),
            Err(errno) => return Err(SessionError::Device(errno)),
        };
        let request = buffer.get(..length).unwrap_or_default();
        match negotiate(request, init_request)? {
            Negotiation::Retry { unique, reply } => {
                channel.reply(unique, None, &[reply.as_bytes()]).map_err(SessionError::Device)?;
            }
            Negotiation::Agreed { unique, reply, init_parameters } => {
                channel.reply(unique, None, &[reply.as_bytes()]).map_err(SessionError::Device)?;
                return Ok(init_parameters);
            }
        }
    }
}

/// An event of a session that belongs in a log.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum SessionEvent {
    /// A request exceeded the time limit; its caller got `EIO`.
    TimedOut {
        /// The thread that made the request; 0 if there is none, or if it is in another PID namespace.
        pid: u32,
        /// How long the request had been in flight.
        after: Duration,
    },
    /// All listeners, spare ones included, have requests over the time limit, so requests that waited got `EIO` unread.
    Refused {
        /// How many got it.
        requests: usize,
        /// Requests that hang.
        hanging: usize,
    },
    /// The caller of a request that hangs is being killed; it got `EINTR`.
    Interrupted {
        /// The thread that made the request; 0 if it is in another PID namespace.
        pid: u32,
        /// How long the request had been in flight.
        after: Duration,
    },
    /// All listeners were busy, so a spare one was started.
    SpareListenerStarted {
        /// The number of listener threads now.
        listeners: usize,
    },
    /// The file system panicked in [`FileSystem::listener_started`](crate::FileSystem::listener_started); the
    /// listener serves all the same.
    ListenerStartPanicked,
    /// The file system panicked in a request; its caller got `EIO`.
    Panicked {
        /// The node of the request.
        node: u64,
    },
    /// This process has taken over from another one.
    TookOver {
        /// Requests that the other one had read and not answered.
        in_flight: usize,
        /// Whether the kernel sends them again; otherwise their callers got `EIO`.
        are_resent: bool,
    },
    /// Requests of a node get `EIO` from here on, because processes have died in one of them.
    Banned {
        /// The node.
        node: u64,
    },
    /// The kernel sent a request that is shorter than its header or its operation requires; it got `EIO`.
    MalformedRequest,
    /// Reading from the device failed for good; the listener ended.
    DeviceFailed {
        /// Why.
        errno: Errno,
    },
    /// The file system was unmounted and its last user is gone. The first listener that sees this reports it, once.
    Unmounted,
}

impl fmt::Display for SessionEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TimedOut { pid, after } => {
                write!(f, "request of thread {pid} timed out after {after:?}; replied EIO")
            }
            Self::Refused { requests, hanging } => {
                write!(
                    f,
                    "{hanging} requests hang, so no listener is left; replied EIO to {requests} that waited"
                )
            }
            Self::Interrupted { pid, after } => {
                write!(
                    f,
                    "thread {pid} is being killed; its request was interrupted after {after:?}"
                )
            }
            Self::SpareListenerStarted { listeners } => {
                write!(f, "all listeners are busy; started another one, {listeners} in total")
            }
            Self::ListenerStartPanicked => f.write_str(
                "a listener panicked when it started; it serves without its preparation",
            ),
            Self::Panicked { node } => write!(f, "request for node {node} panicked; replied EIO"),
            Self::TookOver { in_flight, are_resent } => {
                let answer = if *are_resent { "sent again" } else { "replied EIO" };
                write!(
                    f,
                    "took over from a process that ended; requests in flight: {in_flight}, {answer}"
                )
            }
            Self::Banned { node } => {
                write!(
                    f,
                    "requests for node {node} get EIO from now on: processes have died in such a request"
                )
            }
            Self::MalformedRequest => f.write_str("malformed request from the kernel; replied EIO"),
            Self::DeviceFailed { errno } => write!(f, "/dev/fuse: {errno}; a listener ended"),
            Self::Unmounted => f.write_str("unmounted"),
        }
    }
}

/// The place of this process in the row of those that serve a mount one after the other (docs/survival.md).
#[derive(Clone)]
pub struct Succession {
    /// The requests in flight, in memory that all of them share.
    pub journal: Arc<RequestJournal>,
    /// How the process before this one ended; `None` for the first one.
    pub predecessor: Option<ServerEnd>,
    /// The number of this process, from 1 on.
    pub server: u64,
}

impl fmt::Debug for Succession {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Succession")
            .field("predecessor", &self.predecessor)
            .field("server", &self.server)
            .finish_non_exhaustive()
    }
}

impl Succession {
    /// Steps KS2 to KS4: what a successor does with the requests of its predecessor before its listeners run.
    fn continue_with(
        self,
        channels: &[Channel],
        can_resend: bool,
        on_event: &EventCallback,
    ) -> Continued {
        let Self { journal, predecessor, server } = self;
        let mut start = SessionStart::Whole;
        let mut newly_banned = Vec::new();
        journal.claim(server);
        if let Some(end) = predecessor {
            fault_point("examine", server);
            let takeover = journal.examine(server.saturating_sub(1), end);
            fault_point("examined", server);
            let are_resent =
                can_resend && !is_resend_masked() && resend(&journal, &takeover, channels, server);
            if !are_resent {
                fail(&journal, &takeover, channels);
            }
            fault_point("resent", server);
            if takeover.needs_trial && are_resent {
                start = SessionStart::Trial;
            }
            let in_flight = takeover.in_flight.len();
            on_event(&SessionEvent::TookOver { in_flight, are_resent });
            newly_banned = takeover.newly_banned;
        }
        journal.begin_reading(server);
        let (banned, suspected) = (journal.banned(), journal.suspected());
        Continued { banned, newly_banned, suspected, journal, start }
    }
}

/// Lets the kernel send again all requests that were read and not answered. Returns whether it does.
fn resend(
    journal: &RequestJournal,
    takeover: &Takeover,
    channels: &[Channel],
    server: u64,
) -> bool {
    // Not before: if this process dies in between, its successor asks again, and an empty journal only means that a death
    // is not counted.
    for request in &takeover.in_flight {
        journal.forget(request.slot, request.unique);
    }
    fault_point("forgotten", server);
    let Some(channel) = channels.first() else { return false };
    match channel.notify(notification::RESEND, &[]) {
        // The mount is gone: the listeners see that.
        Ok(()) | Err(Errno::NODEV) => true,
        Err(_) => {
            fail(journal, takeover, channels);
            false
        }
    }
}

/// Answers `EIO` to what was in flight. A request that has had its reply is unknown to the kernel.
fn fail(journal: &RequestJournal, takeover: &Takeover, channels: &[Channel]) {
    for request in &takeover.in_flight {
        if let Some(channel) = channels.get(request.slot).or(channels.first()) {
            channel.reply(request.unique, Some(Errno::IO), &[]).ok();
        }
        journal.forget(request.slot, request.unique);
    }
}

/// Kills this process if a test asks for it. Fault points are places in the take-over of a mount; a build without debug
/// assertions has none. The variable `FERROFS_FAULT` is a list of `POINT:FIRST-LAST`: servers with these numbers, counted
/// from 1, are killed at the point. `server` is the number of this one.
#[inline]
pub fn fault_point(point: &str, server: u64) {
    #[cfg(debug_assertions)]
    if is_asked_for(&std::env::var("FERROFS_FAULT").unwrap_or_default(), point, server) {
        let own = rustix::process::getpid();
        // The filter of the sandbox may forbid it; then the process aborts.
        rustix::process::kill_process(own, rustix::process::Signal::KILL).ok();
        std::process::abort();
    }
    #[cfg(not(debug_assertions))]
    let (_point, _server) = (point, server);
}

/// Whether tests have the kernel's offer to resend requests ignored (`FERROFS_NO_RESEND`).
#[must_use]
fn is_resend_masked() -> bool {
    cfg!(debug_assertions) && std::env::var_os("FERROFS_NO_RESEND").is_some()
}

/// Whether this program has another version of the record (`FERROFS_OTHER_VERSION`).
#[must_use]
pub(crate) fn is_another_version() -> bool {
    cfg!(debug_assertions) && std::env::var_os("FERROFS_OTHER_VERSION").is_some()
}

#[cfg(debug_assertions)]
fn is_asked_for(list: &str, point: &str, server: u64) -> bool {
    list.split(',').filter_map(|word| word.split_once(':')).any(|(name, range)| {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let number = |text: &str| text.parse::<u64>().ok();
        let is_in =
            number(first).zip(number(last)).map(|(first, last)| (first..=last).contains(&server));
        name == point && is_in == Some(true)
    })
}

/// Starts the watchdog of a session that has none: called by listeners that have a request.
fn start_watchdog(state: &Arc<SessionState>) {
    let watchdog = RequestWatchdog::new(Arc::clone(state));
    let mut last = lock(&state.watchdog_thread);
    if let Some(thread) = last.take() {
        // It is about to end.
        thread.join().ok();
    }
    match spawn_thread("fuse-watchdog".to_owned(), Box::new(move || watchdog.run())) {
        Ok(thread) => *last = Some(thread),
        Err(_) => state.report_no_watchdog(),
    }
}

/// How often it scans the slots while there are requests.
const SCAN_PERIOD: Duration = Duration::from_millis(500);
/// How long a request takes before its listener counts as busy, in milliseconds.
const BUSY_MS: u64 = 250;
/// How long a caller that is being killed waits for a reply, in milliseconds; a running decoder is done by then.
const KILL_GRACE_MS: u64 = 500;
/// The same where it is unknown whether the caller's signal is fatal.
const UNKNOWN_GRACE_MS: u64 = 2_000;

/// Requests that one scan refuses. A program that goes on after an error makes the next one at once.
const REFUSED_MAX: usize = 4096;

/// The bit of `SIGKILL` in a mask of signals. The kernel sets it for every signal that ends a process.
const SIGKILL_BIT: u64 = 1 << 8;

/// Whether a scan found requests in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RequestsFound {
    None,
    Some,
}

/// The thread that looks for requests that hang, most likely because the storage of the image does. It replies `EINTR`
/// to callers that are being killed and `EIO` to requests over the time limit. While all listeners are busy it starts
/// spare ones, and when none is left it reads requests itself, which get `EIO`. A listener starts it when there is a request,
/// and it ends when there was none for some time.
struct RequestWatchdog {
    state: Arc<SessionState>,
    limit_ms: Option<u64>,
}

impl RequestWatchdog {
    fn new(state: Arc<SessionState>) -> Self {
        let milliseconds = |limit: Duration| u64::try_from(limit.as_millis()).unwrap_or(u64::MAX);
        let limit_ms = state.time_limit.map(milliseconds);
        Self { state, limit_ms }
    }

    /// Scans while there are requests. After a scan that finds none it sleeps until there is one, or ends.
    fn run(self) {
        let mut found = RequestsFound::Some;
        loop {
            if found == RequestsFound::None && !self.state.wait_for_request() {
                return;
            }
            if self.state.wait_for_end(SCAN_PERIOD) {
                return;
            }
            found = self.scan();
        }
    }

    fn scan(&self) -> RequestsFound {
        let now_ms = self.state.now_ms();
        let mut hanging = 0_usize;
        let mut found = RequestsFound::None;
        for (index, slot) in self.state.slots.iter().enumerate() {
            let Some(request) = slot.in_flight() else { continue };
            found = RequestsFound::Some;
            hanging += usize::from(now_ms.saturating_sub(request.since_ms) > BUSY_MS);
            if !request.is_answered {
                self.check(index, slot, &request, now_ms);
            }
        }
        let mut spares = SpareListeners::Possible;
        if !self.state.has_idle_listener() {
            // One for each request that hangs: the next requests will soon hang on the same storage, and with fewer
            // listeners callers would wait for another scan.
            for _ in 0..hanging {
                spares = self.start_spare_listener();
                if spares != SpareListeners::Possible {
                    break;
                }
            }
        }
        if spares == SpareListeners::Refused || hanging == self.state.slots.len() {
            self.interrupt_killed(now_ms);
            self.state.if_all_overdue(spares, |channel, are_all_overdue| {
                self.refuse_waiting(channel, hanging, are_all_overdue);
            });
        }
        found
    }

    /// R8: replies `EIO` to the requests that no listener will read, as long as it lasts that all of them hang.
    fn refuse_waiting(
        &self,
        channel: &Channel,
        hanging: usize,
        are_all_overdue: &dyn Fn() -> bool,
    ) {
        let mut buffer = vec![0; REQUEST_BYTES];
        let mut refused = 0_usize;
        while refused < REFUSED_MAX && are_all_overdue() && channel.is_ready() {
            let length = match channel.receive(&mut buffer) {
                Ok(Received::Message(length)) => length,
                Ok(Received::Nothing) => continue,
                Ok(Received::Unmounted) => {
                    self.state.mark_unmounted();
                    break;
                }
                Err(_) => break,
            };
            match IncomingMessage::parse(buffer.get(..length).unwrap_or_default()) {
                Ok(IncomingMessage::NoReply) => {}
                Ok(IncomingMessage::ImmediateReply { unique, errno }) => {
                    channel.reply(unique, errno, &[]).ok();
                }
                Ok(IncomingMessage::Interrupt { unique, of }) => self.state.interrupt(unique, of),
                Ok(IncomingMessage::Request(Request { unique, .. }))
                | Err(MalformedRequest { unique }) => {
                    channel.reply(unique, Some(Errno::IO), &[]).ok();
                    refused += 1;
                }
            }
        }
        if refused > 0 {
            self.state.report_event(&SessionEvent::Refused { requests: refused, hanging });
        }
    }

    fn check(&self, index: usize, slot: &RequestSlot, request: &InFlightRequest, now_ms: u64) {
        let waited = now_ms.saturating_sub(request.since_ms);
        let (pid, after) = (request.pid, Duration::from_millis(waited));
        if self.limit_ms.is_some_and(|limit| waited >= limit) {
            if self.reply(index, slot, request.unique, Errno::IO) {
                self.state.report_event(&SessionEvent::TimedOut { pid, after });
            }
        } else if should_interrupt(request, now_ms)
            && self.reply(index, slot, request.unique, Errno::INTR)
        {
            self.state.report_event(&SessionEvent::Interrupted { pid, after });
        }
    }

    /// R5: while all listeners hang, nobody reads interrupts, so the callers themselves are looked at.
    fn interrupt_killed(&self, now_ms: u64) {
        for (index, slot) in self.state.slots.iter().enumerate() {
            let Some(request) = slot.in_flight().filter(|request| !request.is_answered) else {
                continue;
            };
            let waited = now_ms.saturating_sub(request.since_ms);
            if waited >= KILL_GRACE_MS
                && has_pending_sigkill(request.pid) == Some(true)
                && self.reply(index, slot, request.unique, Errno::INTR)
            {
                let after = Duration::from_millis(waited);
                self.state.report_event(&SessionEvent::Interrupted { pid: request.pid, after });
            }
        }
    }

    /// Returns whether it was the watchdog that replied.
    fn reply(&self, index: usize, slot: &RequestSlot, unique: u64, errno: Errno) -> bool {
        let Some((channel, _)) = self.state.channel_and_slot(index) else { return false };
        slot.claim(unique) && channel.reply(unique, Some(errno), &[]).is_ok()
    }

    /// Starts one more listener, if there is an unused slot.
    fn start_spare_listener(&self) -> SpareListeners {
        let Some(index) = lock(&self.state.unused_slots).pop() else { return SpareListeners::All };
        let listener = Listener { state: Arc::clone(&self.state), index, is_spare: true };
        match self.state.spawn_spare(listener.thread_name(), Box::new(move || listener.run())) {
            Ok(thread) => {
                let mut spares = lock(&self.state.spares);
                spares.retain(|spare| !spare.is_finished());
                spares.push(thread);
                let listeners = self.state.listeners().saturating_add(spares.len());
                drop(spares);
                self.state.report_event(&SessionEvent::SpareListenerStarted { listeners });
                SpareListeners::Possible
            }
            Err(_) => {
                lock(&self.state.unused_slots).push(index);
                SpareListeners::Refused
            }
        }
    }
}

fn should_interrupt(request: &InFlightRequest, now_ms: u64) -> bool {
    let Some(since_ms) = request.interrupted_since_ms else { return false };
    let waited = now_ms.saturating_sub(since_ms);
    // Programs do not expect a read of a file to fail because of a signal that they handle.
    waited >= KILL_GRACE_MS
        && match has_pending_sigkill(request.pid) {
            Some(is_pending) => is_pending,
            None => waited >= UNKNOWN_GRACE_MS,
        }
}

/// Whether a fatal signal of the thread is pending. `None` if that is unknown: the thread is in another PID namespace,
/// or `/proc` does not show it.
fn has_pending_sigkill(thread: u32) -> Option<bool> {
    if thread == 0 {
        return None;
    }
    let status = std::fs::read_to_string(format!("/proc/{thread}/status")).ok()?;
    has_sigkill(&status)
}

fn has_sigkill(status: &str) -> Option<bool> {
    let [own, shared] = ["SigPnd:", "ShdPnd:"].map(|field| signal_mask(status, field));
    Some((own? | shared?) & SIGKILL_BIT != 0)
}

fn signal_mask(status: &str, field: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix(field))?;
    u64::from_str_radix(line.trim(), 16).ok()
}

#[cfg(all(test, not(loom)))]
mod tests;

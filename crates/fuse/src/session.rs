//! A session: everything between the kernel's greeting and the end of the mount. Its listeners handle requests; its
//! watchdog looks after requests that hang. Several threads, and each is named, owned and joined.

use std::fmt;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use zerocopy::IntoBytes;

use crate::channel::Channel;
use crate::error::SessionError;
use crate::event::SessionEvent;
use crate::listener::Listener;
use crate::negotiate::{InitParameters, InitRequest, Negotiation, REQUEST_BYTES, negotiate};
use crate::notifier::Notifier;
use crate::operation::Request;
use crate::reply::Reply;
use crate::request_slot::RequestSlot;
use crate::watchdog::{self, RequestWatchdog};

/// What answers requests. It is asked by several threads at a time.
pub trait FileSystem: Send + Sync + 'static {
    /// Answers `request` through `reply`, and may go on with other work after that: the listener takes no further
    /// request until this returns.
    fn handle(&self, request: &Request<'_>, reply: Reply<'_>);

    /// A listener begins, on the calling thread: the place for its priority, say.
    fn listener_started(&self) {}
}

/// How a session runs.
#[derive(Clone, Copy, Debug)]
pub struct SessionOptions {
    /// Threads that listen; one a CPU that is granted, and at least two.
    pub listeners: usize,
    /// What is asked of the kernel.
    pub init_request: InitRequest,
    /// After what time a request is answered with `EIO`; `None` waits for ever.
    pub time_limit: Option<Duration>,
}

/// A session that runs.
pub struct Session {
    shared: Arc<SessionState>,
    init_parameters: InitParameters,
    threads: Vec<JoinHandle<()>>,
    watchdog: Option<JoinHandle<()>>,
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Session")
            .field("init_parameters", &self.init_parameters)
            .finish_non_exhaustive()
    }
}

type EventCallback = dyn Fn(&SessionEvent) + Send + Sync;

/// Who listens now, in numbers that need not be of the same moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SessionStats {
    /// Threads that always listen.
    pub listeners: usize,
    /// Threads that listen beside them because requests hang.
    pub spares: usize,
    /// How many of both wait for a request.
    pub idle: usize,
    /// Requests of which the kernel has said that they are not wanted any more.
    pub interrupts: u64,
}

/// What its threads share.
pub(crate) struct SessionState {
    pub(crate) file_system: Arc<dyn FileSystem>,
    channels: Vec<Channel>,
    /// One a listener, spare ones included.
    pub(crate) slots: Vec<RequestSlot>,
    /// Which slots no listener has.
    unused_slots: Mutex<Vec<usize>>,
    /// Listeners that wait for a request.
    pub(crate) idle: IdleListeners,
    interrupts: AtomicU64,
    is_unmounted: AtomicBool,
    started_at: Instant,
    report_event: Box<EventCallback>,
    ended: Mutex<bool>,
    end: Condvar,
    spares: Mutex<Vec<JoinHandle<()>>>,
}

/// How many listeners wait for a request.
#[derive(Debug, Default)]
pub(crate) struct IdleListeners(AtomicUsize);

impl IdleListeners {
    pub(crate) fn enter(&self) {
        // A number to decide by, which orders nothing: relaxed, here and below.
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    /// Answers how many are left.
    pub(crate) fn leave(&self) -> usize {
        self.0.fetch_sub(1, Ordering::Relaxed).saturating_sub(1)
    }

    pub(crate) fn count(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }
}

/// A mount whose session has been negotiated: everything is open that a session needs, and no thread runs, so that a
/// process may give away rights in between.
#[derive(Debug)]
pub struct NegotiatedSession {
    channels: Vec<Channel>,
    init_parameters: InitParameters,
    options: SessionOptions,
}

impl NegotiatedSession {
    /// Greets the kernel on a device that is mounted already.
    ///
    /// # Errors
    /// The kernel's protocol, or the device.
    pub fn new(device: OwnedFd, options: &SessionOptions) -> Result<Self, SessionError> {
        let first = Channel::new(device);
        let init_parameters = negotiate_init(&first, &options.init_request)?;
        let options = SessionOptions { listeners: options.listeners.max(2), ..*options };
        Ok(Self { channels: channels(first, options.listeners), init_parameters, options })
    }

    /// What kernel and daemon agreed on.
    #[must_use]
    pub fn init_parameters(&self) -> &InitParameters {
        &self.init_parameters
    }

    /// The descriptors that the session will use.
    pub fn descriptors(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.channels.iter().map(AsFd::as_fd)
    }

    /// Starts to serve.
    ///
    /// # Errors
    /// A thread cannot be started.
    pub fn start(
        self,
        file_system: Arc<dyn FileSystem>,
        report_event: impl Fn(&SessionEvent) + Send + Sync + 'static,
    ) -> Result<Session, SessionError> {
        let Self { channels, init_parameters, options } = self;
        let listeners = options.listeners;
        let slots = listeners + watchdog::MAX_SPARE_LISTENERS;
        let shared = Arc::new(SessionState {
            file_system,
            channels,
            slots: (0..slots).map(|_| RequestSlot::new()).collect(),
            unused_slots: Mutex::new((listeners..slots).rev().collect()),
            idle: IdleListeners::default(),
            interrupts: AtomicU64::new(0),
            is_unmounted: AtomicBool::new(false),
            started_at: Instant::now(),
            report_event: Box::new(report_event),
            ended: Mutex::new(false),
            end: Condvar::new(),
            spares: Mutex::default(),
        });
        let mut session = Session { shared, init_parameters, threads: Vec::new(), watchdog: None };
        for index in 0..listeners {
            session.threads.push(session.shared.start_listener(index, false)?);
        }
        session.watchdog = Some(session.start_watchdog(options.time_limit)?);
        Ok(session)
    }
}

impl Session {
    fn start_watchdog(&self, limit: Option<Duration>) -> Result<JoinHandle<()>, SessionError> {
        let watchdog = RequestWatchdog::new(Arc::clone(&self.shared), limit);
        spawn("fuse-watchdog".to_owned(), move || watchdog.run())
    }

    /// What kernel and daemon agreed on.
    #[must_use]
    pub fn init_parameters(&self) -> &InitParameters {
        &self.init_parameters
    }

    /// How many queues for requests in flight the listeners have between them: one each where the device could be
    /// opened once more for each.
    #[must_use]
    pub fn channels(&self) -> usize {
        self.shared.channels.len()
    }

    /// How many threads listen when nothing hangs.
    #[must_use]
    pub fn listeners(&self) -> usize {
        self.threads.len()
    }

    /// What can tell the kernel things.
    #[must_use]
    pub fn notifier(&self) -> Notifier {
        Notifier::new(&self.shared)
    }

    /// Waits for the end of the mount.
    pub fn join(mut self) {
        for thread in self.threads.drain(..) {
            thread.join().ok();
        }
        self.shared.signal_end();
        if let Some(watchdog) = self.watchdog.take() {
            watchdog.join().ok();
        }
        let spares = std::mem::take(&mut *lock(&self.shared.spares));
        for spare in spares {
            spare.join().ok();
        }
    }
}

impl SessionState {
    /// The channel and the slot of a listener. Spare listeners share the first channel.
    pub(crate) fn channel_and_slot(&self, index: usize) -> Option<(&Channel, &RequestSlot)> {
        let channel = self.channels.get(index).or(self.channels.first())?;
        Some((channel, self.slots.get(index)?))
    }

    /// Milliseconds of the session.
    pub(crate) fn now_ms(&self) -> u64 {
        self.millis_at(Instant::now())
    }

    /// The same of a moment that was looked up already.
    pub(crate) fn millis_at(&self, moment: Instant) -> u64 {
        let time = moment.saturating_duration_since(self.started_at);
        u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
    }

    pub(crate) fn report_event(&self, event: &SessionEvent) {
        (self.report_event)(event);
    }

    pub(crate) fn start_listener(
        self: &Arc<Self>,
        index: usize,
        is_spare: bool,
    ) -> Result<JoinHandle<()>, SessionError> {
        let listener = Listener { shared: Arc::clone(self), index, is_spare };
        spawn(format!("fuse-{index}"), move || listener.run())
    }

    /// Starts one more listener, if there is a slot for it.
    pub(crate) fn start_spare_listener(self: &Arc<Self>) {
        let Some(index) = lock(&self.unused_slots).pop() else { return };
        match self.start_listener(index, true) {
            Ok(thread) => {
                let mut spares = lock(&self.spares);
                spares.retain(|spare| !spare.is_finished());
                spares.push(thread);
                let listeners = self.channels.len().max(2).saturating_add(spares.len());
                drop(spares);
                self.report_event(&SessionEvent::SpareListenerStarted { listeners });
            }
            Err(_) => lock(&self.unused_slots).push(index),
        }
    }

    pub(crate) fn listener_ended(&self, index: usize, is_spare: bool) {
        if is_spare {
            lock(&self.unused_slots).push(index);
        }
    }

    /// The request `of` is not wanted any more.
    pub(crate) fn interrupt(&self, unique: u64, of: u64) {
        // A number to look at: relaxed.
        self.interrupts.fetch_add(1, Ordering::Relaxed);
        let now = self.now_ms();
        if self.slots.iter().any(|slot| slot.interrupt(of, now)) {
            return;
        }
        // Either it has been answered, and then nobody waits for this, or a listener has just read it and not said
        // so: then the kernel is to ask again, on whichever channel it was.
        for channel in &self.channels {
            channel.reply(unique, Some(Errno::AGAIN), &[]).ok();
        }
    }

    pub(crate) fn stats(&self) -> SessionStats {
        let is_spare = |spare: &&JoinHandle<()>| !spare.is_finished();
        let spares = lock(&self.spares).iter().filter(is_spare).count();
        SessionStats {
            listeners: self.slots.len().saturating_sub(watchdog::MAX_SPARE_LISTENERS),
            spares,
            idle: self.idle.count(),
            interrupts: self.interrupts.load(Ordering::Relaxed),
        }
    }

    pub(crate) fn first_channel(&self) -> Option<&Channel> {
        self.channels.first()
    }

    /// A listener has seen that the mount is gone.
    pub(crate) fn mark_unmounted(&self) {
        // Nothing is handed over with it: relaxed.
        if !self.is_unmounted.swap(true, Ordering::Relaxed) {
            self.report_event(&SessionEvent::Unmounted);
        }
    }

    fn signal_end(&self) {
        *lock(&self.ended) = true;
        self.end.notify_all();
    }

    /// Waits until the session ends, but not longer than this. Answers whether it ended.
    pub(crate) fn wait_for_end(&self, time: Duration) -> bool {
        let ended = lock(&self.ended);
        if *ended {
            return true;
        }
        *self.end.wait_timeout(ended, time).unwrap_or_else(PoisonError::into_inner).0
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn spawn(
    name: String,
    body: impl FnOnce() + Send + 'static,
) -> Result<JoinHandle<()>, SessionError> {
    std::thread::Builder::new()
        .name(name)
        .spawn(body)
        .map_err(|error| SessionError::Thread(error.to_string()))
}

/// One channel a listener where the device may be opened again; all of them share the first one elsewhere.
fn channels(first: Channel, listeners: usize) -> Vec<Channel> {
    let mut channels = vec![first];
    while channels.len() < listeners {
        match channels.first().map(Channel::clone_channel) {
            Some(Ok(clone_channel)) => channels.push(clone_channel),
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
            Ok(length) => length,
            Err(Errno::INTR | Errno::AGAIN | Errno::NOENT) => continue,
            Err(Errno::NODEV) => return Err(SessionError::Unmounted),
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

#[cfg(all(test, not(loom)))]
mod tests;

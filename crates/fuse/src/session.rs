//! A session: everything between the kernel's greeting and the end of the mount. Its listeners handle requests; its
//! watch looks after requests that hang. Several threads, and each is named, owned and joined.

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
use crate::event::Event;
use crate::listener::Listener;
use crate::negotiate::{Outcome, REQUEST_BYTES, Terms, Wanted, negotiate};
use crate::notifier::Notifier;
use crate::operation::Request;
use crate::reply::Reply;
use crate::slot::Slot;
use crate::watch::{self, Watch};

/// What answers requests. It is asked by several threads at a time.
pub trait FileSystem: Send + Sync + 'static {
    /// Answers `request` through `reply`, and may go on with other work after that: the listener takes no further
    /// request until this returns.
    fn handle(&self, request: &Request<'_>, reply: Reply<'_>);

    /// A listener begins, on the calling thread: the place for its priority, say.
    fn listener_begins(&self) {}
}

/// How a session runs.
#[derive(Clone, Copy, Debug)]
pub struct SessionOptions {
    /// Threads that listen; one a CPU that is granted, and at least two.
    pub listeners: usize,
    /// What is asked of the kernel.
    pub wanted: Wanted,
    /// After what time a request is answered with `EIO`; `None` waits for ever.
    pub time_limit: Option<Duration>,
}

/// A session that runs.
pub struct Session {
    shared: Arc<Shared>,
    terms: Terms,
    threads: Vec<JoinHandle<()>>,
    watch: Option<JoinHandle<()>>,
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Session").field("terms", &self.terms).finish_non_exhaustive()
    }
}

type Tell = dyn Fn(&Event) + Send + Sync;

/// Who listens now, in numbers that need not be of the same moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SessionCounts {
    /// Threads that always listen.
    pub listeners: usize,
    /// Threads that listen beside them because requests hang.
    pub spares: usize,
    /// How many of both wait for a request.
    pub free: usize,
    /// Requests of which the kernel has said that they are not wanted any more.
    pub interrupts: u64,
}

/// What its threads share.
pub(crate) struct Shared {
    pub(crate) file_system: Arc<dyn FileSystem>,
    channels: Vec<Channel>,
    /// One a listener, spare ones included.
    pub(crate) slots: Vec<Slot>,
    /// Which slots no listener has.
    unused: Mutex<Vec<usize>>,
    /// Listeners that wait for a request.
    pub(crate) free: Free,
    interrupts: AtomicU64,
    is_gone: AtomicBool,
    began: Instant,
    tell: Box<Tell>,
    ended: Mutex<bool>,
    end: Condvar,
    spares: Mutex<Vec<JoinHandle<()>>>,
}

/// How many listeners wait for a request.
#[derive(Debug, Default)]
pub(crate) struct Free(AtomicUsize);

impl Free {
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

/// A mount whose kernel has been greeted: everything is open that a session needs, and no thread runs, so that a
/// process may give away rights in between.
#[derive(Debug)]
pub struct Greeted {
    channels: Vec<Channel>,
    terms: Terms,
    options: SessionOptions,
}

impl Greeted {
    /// Greets the kernel on a device that is mounted already.
    ///
    /// # Errors
    /// The kernel's protocol, or the device.
    pub fn new(device: OwnedFd, options: &SessionOptions) -> Result<Self, SessionError> {
        let first = Channel::new(device);
        let terms = greet(&first, &options.wanted)?;
        let options = SessionOptions { listeners: options.listeners.max(2), ..*options };
        Ok(Self { channels: channels(first, options.listeners), terms, options })
    }

    /// What kernel and daemon agreed on.
    #[must_use]
    pub fn terms(&self) -> &Terms {
        &self.terms
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
        tell: impl Fn(&Event) + Send + Sync + 'static,
    ) -> Result<Session, SessionError> {
        let Self { channels, terms, options } = self;
        let listeners = options.listeners;
        let slots = listeners + watch::MAX_SPARES;
        let shared = Arc::new(Shared {
            file_system,
            channels,
            slots: (0..slots).map(|_| Slot::new()).collect(),
            unused: Mutex::new((listeners..slots).rev().collect()),
            free: Free::default(),
            interrupts: AtomicU64::new(0),
            is_gone: AtomicBool::new(false),
            began: Instant::now(),
            tell: Box::new(tell),
            ended: Mutex::new(false),
            end: Condvar::new(),
            spares: Mutex::default(),
        });
        let mut session = Session { shared, terms, threads: Vec::new(), watch: None };
        for place in 0..listeners {
            session.threads.push(session.shared.listen(place, false)?);
        }
        session.watch = Some(session.start_watch(options.time_limit)?);
        Ok(session)
    }
}

impl Session {
    fn start_watch(&self, limit: Option<Duration>) -> Result<JoinHandle<()>, SessionError> {
        let watch = Watch::new(Arc::clone(&self.shared), limit);
        spawn("fuse-watch".to_owned(), move || watch.run())
    }

    /// What kernel and daemon agreed on.
    #[must_use]
    pub fn terms(&self) -> &Terms {
        &self.terms
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
        self.shared.finish();
        if let Some(watch) = self.watch.take() {
            watch.join().ok();
        }
        let spares = std::mem::take(&mut *locked(&self.shared.spares));
        for spare in spares {
            spare.join().ok();
        }
    }
}

impl Shared {
    /// The channel and the slot of a listener. Spare listeners share the first channel.
    pub(crate) fn place(&self, place: usize) -> Option<(&Channel, &Slot)> {
        let channel = self.channels.get(place).or(self.channels.first())?;
        Some((channel, self.slots.get(place)?))
    }

    /// Milliseconds of the session.
    pub(crate) fn now(&self) -> u64 {
        self.at(Instant::now())
    }

    /// The same of a moment that was looked up already.
    pub(crate) fn at(&self, moment: Instant) -> u64 {
        let time = moment.saturating_duration_since(self.began);
        u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
    }

    pub(crate) fn tell(&self, event: &Event) {
        (self.tell)(event);
    }

    pub(crate) fn listen(
        self: &Arc<Self>,
        place: usize,
        is_spare: bool,
    ) -> Result<JoinHandle<()>, SessionError> {
        let listener = Listener { shared: Arc::clone(self), place, is_spare };
        spawn(format!("fuse-{place}"), move || listener.run())
    }

    /// Starts one more listener, if there is a place for it.
    pub(crate) fn listen_more(self: &Arc<Self>) {
        let Some(place) = locked(&self.unused).pop() else { return };
        match self.listen(place, true) {
            Ok(thread) => {
                let mut spares = locked(&self.spares);
                spares.retain(|spare| !spare.is_finished());
                spares.push(thread);
                let listeners = self.channels.len().max(2).saturating_add(spares.len());
                drop(spares);
                self.tell(&Event::SpareListener { listeners });
            }
            Err(_) => locked(&self.unused).push(place),
        }
    }

    pub(crate) fn listener_ended(&self, place: usize, is_spare: bool) {
        if is_spare {
            locked(&self.unused).push(place);
        }
    }

    /// The request `of` is not wanted any more.
    pub(crate) fn interrupt(&self, unique: u64, of: u64) {
        // A number to look at: relaxed.
        self.interrupts.fetch_add(1, Ordering::Relaxed);
        let now = self.now();
        if self.slots.iter().any(|slot| slot.interrupt(of, now)) {
            return;
        }
        // Either it has been answered, and then nobody waits for this, or a listener has just read it and not said
        // so: then the kernel is to ask again, on whichever channel it was.
        for channel in &self.channels {
            channel.reply(unique, Some(Errno::AGAIN), &[]).ok();
        }
    }

    pub(crate) fn counts(&self) -> SessionCounts {
        let is_spare = |spare: &&JoinHandle<()>| !spare.is_finished();
        let spares = locked(&self.spares).iter().filter(is_spare).count();
        SessionCounts {
            listeners: self.slots.len().saturating_sub(watch::MAX_SPARES),
            spares,
            free: self.free.count(),
            interrupts: self.interrupts.load(Ordering::Relaxed),
        }
    }

    pub(crate) fn first_channel(&self) -> Option<&Channel> {
        self.channels.first()
    }

    /// A listener has seen that the mount is gone.
    pub(crate) fn gone(&self) {
        // Nothing is handed over with it: relaxed.
        if !self.is_gone.swap(true, Ordering::Relaxed) {
            self.tell(&Event::Gone);
        }
    }

    fn finish(&self) {
        *locked(&self.ended) = true;
        self.end.notify_all();
    }

    /// Waits until the session ends, but not longer than this. Answers whether it ended.
    pub(crate) fn wait_for_end(&self, time: Duration) -> bool {
        let ended = locked(&self.ended);
        if *ended {
            return true;
        }
        *self.end.wait_timeout(ended, time).unwrap_or_else(PoisonError::into_inner).0
    }
}

fn locked<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
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
        match channels.first().map(Channel::another) {
            Some(Ok(another)) => channels.push(another),
            _ => {
                channels.truncate(1);
                break;
            }
        }
    }
    channels
}

fn greet(channel: &Channel, wanted: &Wanted) -> Result<Terms, SessionError> {
    let mut buffer = vec![0; REQUEST_BYTES];
    loop {
        let length = match channel.receive(&mut buffer) {
            Ok(length) => length,
            Err(Errno::INTR | Errno::AGAIN | Errno::NOENT) => continue,
            Err(Errno::NODEV) => return Err(SessionError::Gone),
            Err(errno) => return Err(SessionError::Device(errno)),
        };
        let request = buffer.get(..length).unwrap_or_default();
        match negotiate(request, wanted)? {
            Outcome::AskAgain { unique, reply } => {
                channel.reply(unique, None, &[reply.as_bytes()]).map_err(SessionError::Device)?;
            }
            Outcome::Agreed { unique, reply, terms } => {
                channel.reply(unique, None, &[reply.as_bytes()]).map_err(SessionError::Device)?;
                return Ok(terms);
            }
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests;

//! The reader's side of the protocol: requests of any number of threads over one connection, which
//! is made anew when the fetcher has died. The steps R1, R2, N2 are in docs/remote.md.
//!
//! One thread receives. A request is registered before it is sent, and stays registered until its
//! reply has come, so that it can be sent again on another connection.

use std::collections::HashMap;
use std::fmt;
use std::fs::File;
use std::io::{self, Read};
use std::sync::{Arc, Condvar, Mutex, OnceLock, PoisonError, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::connection::Connection;
use crate::location::RemoteLocation;
use crate::lock::lock;
use crate::protocol::{
    ClientMessage, FetchError, FetchErrorKind, FetchStats, FetcherMessage, NO_REPLY,
    PROTOCOL_VERSION, PruneReport, PruneRequest, RemoteOptions,
};

/// The pauses between attempts to reach a fetcher.
const RETRY_MIN: Duration = Duration::from_millis(20);
/// Fetchers that may end during the handshake, before that is an error.
const HANDSHAKES_MAX: u32 = 10;
/// How long a fetcher may take to say hello: before that it does nothing, unless it is stopped or hangs.
const HELLO_LIMIT: Duration = Duration::from_millis(if cfg!(test) { 100 } else { 10_000 });
const RETRY_MAX: Duration = Duration::from_secs(3);

/// How much longer than the fetcher a client waits for what a server is asked, so that it hears why
/// the request failed.
const REPLY_GRACE: Duration = Duration::from_secs(2);

/// How often a thread that waits for a reply looks whether it should go on.
const INTERRUPTION_PAUSE: Duration = Duration::from_millis(100);

/// The longest document that is taken from the fetcher, which has the same limit.
const DOCUMENT_MAX_BYTES: u64 = 4 << 20;

/// Makes connections to the fetcher, and starts one if none runs. Called from one thread at a time.
pub trait Connector: Send + Sync {
    /// Connects.
    ///
    /// # Errors
    /// Whatever prevents it; the caller tries again until the time limit of the request is over.
    fn connect(&self) -> io::Result<Connection>;

    /// Bytes that the cache may take while the connection lasts; `None` leaves it to others.
    fn cache_limit(&self) -> Option<u64> {
        None
    }
}

impl<C: Connector + ?Sized> Connector for Arc<C> {
    fn connect(&self) -> io::Result<Connection> {
        (**self).connect()
    }

    fn cache_limit(&self) -> Option<u64> {
        (**self).cache_limit()
    }
}

/// What the reply to a request brought.
#[derive(Debug)]
pub(crate) enum FetcherReply {
    Opened(crate::protocol::ObjectState, Vec<File>),
    /// An object that was registered is open again, and has been told so.
    Reopened,
    Fetched,
    Stats(FetchStats),
    Pruned(PruneReport),
    Document(Vec<File>),
    Failed(FetchError),
}

/// An object that is open on the connection. It is opened again on each new one.
pub(crate) trait OpenedObject: Send + Sync {
    /// The message that opens it again.
    fn reopen(&self, id: u64) -> ClientMessage;
    /// It was opened again, or could not be.
    fn reopened(&self, reply: FetcherReply);
    /// Its files are other ones from now on.
    fn replaced(&self, files: Vec<File>);
    /// It is not open on the connection: the next fetch opens it.
    fn closed(&self);
}

/// A client of the fetcher. Dropping it ends the connection.
pub struct FetchClient {
    inner: Arc<ClientInner>,
    receiver: Mutex<Option<JoinHandle<()>>>,
}

struct ClientInner {
    connector: Box<dyn Connector>,
    state: Mutex<ClientState>,
    /// Notified when the client is dropped, so that a pause ends.
    closed: Condvar,
    /// See [`FetchClient::set_interruption`].
    interruption: OnceLock<fn() -> io::Result<()>>,
}

#[derive(Default)]
struct ClientState {
    connection: Option<Arc<Connection>>,
    last_id: u64,
    pending: HashMap<u64, PendingRequest>,
    objects: HashMap<u64, Weak<dyn OpenedObject>>,
    /// Objects between their reply and [`FetchClient::register`], at most one for each caller.
    openings: HashMap<u64, UnregisteredObject>,
    is_closed: bool,
    /// A thread receives. Otherwise the caller of a request does.
    has_receiver: bool,
    /// Why there is no connection.
    diagnostic: Option<String>,
    /// Connections that were made after the first one.
    reconnects: u64,
    /// Those since the last reply to a caller: what is repeated may be what ends the fetcher.
    fruitless: u32,
}

/// An object that is open and not registered yet.
struct UnregisteredObject {
    /// The number of the connection on which it was opened.
    reconnects: u64,
    /// The files that have replaced those of the reply.
    replaced: Option<Vec<File>>,
}

/// A request that waits for its reply.
enum PendingRequest {
    Call { message: Box<ClientMessage>, slot: Arc<ReplySlot> },
    Reopen { object: u64 },
}

struct ReplySlot {
    waiting: Mutex<Waiting>,
    done: Condvar,
}

struct Waiting {
    reply: Option<FetcherReply>,
    /// When the request began, or the fetcher has said last that it goes on.
    since: Instant,
}

impl fmt::Debug for FetchClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FetchClient").finish_non_exhaustive()
    }
}

impl FetchClient {
    /// Connects, and starts the thread that receives.
    ///
    /// # Errors
    /// The fetcher cannot be reached or has another version, or the thread cannot be started.
    pub fn new(connector: Box<dyn Connector>) -> io::Result<Self> {
        let client = Self::without_thread(connector)?;
        client.start_receiver()?;
        Ok(client)
    }

    /// Connects, and starts no thread, as a process that is about to give up privileges needs it.
    /// Until [`start_receiver`](Self::start_receiver) only one thread may use the client: it
    /// receives itself.
    ///
    /// # Errors
    /// The fetcher cannot be reached or has another version.
    pub fn without_thread(connector: Box<dyn Connector>) -> io::Result<Self> {
        let inner = Arc::new(ClientInner {
            connector,
            state: Mutex::default(),
            closed: Condvar::new(),
            interruption: OnceLock::new(),
        });
        let connection = inner.connect()?;
        lock(&inner.state).connection = Some(connection);
        Ok(Self { inner, receiver: Mutex::default() })
    }

    /// Starts the thread that receives, once.
    ///
    /// # Errors
    /// The system refuses the thread.
    pub fn start_receiver(&self) -> io::Result<()> {
        let connection = {
            let mut state = lock(&self.inner.state);
            if std::mem::replace(&mut state.has_receiver, true) {
                return Ok(());
            }
            state.connection.clone()
        };
        let receiving = Arc::clone(&self.inner);
        let receiver = std::thread::Builder::new()
            .name("remote-receive".to_owned())
            .spawn(move || receiving.receive(connection))?;
        *lock(&self.receiver) = Some(receiver);
        Ok(())
    }

    /// From now on, a thread that waits for a reply calls `check` ten times a second, and gives up with its error: a
    /// program sees its signals so. Only the first call of this function counts.
    pub fn set_interruption(&self, check: fn() -> io::Result<()>) {
        self.inner.interruption.get_or_init(|| check);
    }

    /// The connection now; `None` while there is none.
    #[must_use]
    pub fn connection(&self) -> Option<Arc<Connection>> {
        lock(&self.inner.state).connection.clone()
    }

    /// The statistics of the fetcher.
    ///
    /// # Errors
    /// There was no reply in time.
    pub fn stats(&self, timeout: Duration) -> io::Result<FetchStats> {
        match self.call(|id| ClientMessage::Stats { id }, timeout)? {
            FetcherReply::Stats(stats) => Ok(stats),
            FetcherReply::Failed(error) => Err(error.into()),
            _ => Err(io::ErrorKind::InvalidData.into()),
        }
    }

    /// Removes objects from the cache.
    ///
    /// # Errors
    /// The fetcher cannot remove them, or there was no reply in time.
    pub fn prune(&self, what: PruneRequest, timeout: Duration) -> io::Result<PruneReport> {
        pruned(self.call(|id| ClientMessage::Prune { id, what }, timeout)?)
    }

    /// Discards chunks of the cache that are damaged; all of an object without `chunks`.
    ///
    /// # Errors
    /// As [`prune`](Self::prune).
    pub fn discard(
        &self,
        key: &str,
        chunks: &[(u32, u32)],
        timeout: Duration,
    ) -> io::Result<PruneReport> {
        let (key, chunks) = (key.to_owned(), chunks.to_vec());
        pruned(self.call(|id| ClientMessage::Discard { id, key, chunks }, timeout)?)
    }

    /// The manifest of an OCI image, by way of its index if it has one.
    ///
    /// # Errors
    /// The registry has no such image, refuses access, or did not answer in time.
    pub fn manifest(
        &self,
        location: &RemoteLocation,
        options: &RemoteOptions,
        timeout: Duration,
    ) -> io::Result<Vec<u8>> {
        let display_name = location.to_string();
        let (location, options) = (Box::new(location.clone()), options.within(timeout));
        let message = |id| ClientMessage::Manifest { id, location, options };
        match self.call_server(message, timeout, &display_name)? {
            FetcherReply::Document(files) => {
                let mut document = Vec::new();
                let file = files.first().ok_or(io::ErrorKind::InvalidData)?;
                file.take(DOCUMENT_MAX_BYTES).read_to_end(&mut document)?;
                Ok(document)
            }
            FetcherReply::Failed(error) => Err(error.into()),
            _ => Err(io::ErrorKind::InvalidData.into()),
        }
    }

    /// How often the fetcher had to be reached again.
    #[must_use]
    pub fn reconnects(&self) -> u64 {
        lock(&self.inner.state).reconnects
    }

    /// As [`call`](Self::call), for a request that the fetcher sends on to a server. It has replied when
    /// the time is over, and says why; if it is gone or hangs, the error names the location.
    pub(crate) fn call_server(
        &self,
        message: impl FnOnce(u64) -> ClientMessage,
        timeout: Duration,
        display_name: &str,
    ) -> io::Result<FetcherReply> {
        let reply = self.call(message, timeout.saturating_add(REPLY_GRACE));
        reply.map_err(|error| {
            FetchError::new(FetchErrorKind::TimedOut, display_name, error.to_string()).into()
        })
    }

    /// Sends a request and waits for its reply (N2).
    pub(crate) fn call(
        &self,
        message: impl FnOnce(u64) -> ClientMessage,
        timeout: Duration,
    ) -> io::Result<FetcherReply> {
        let slot = Arc::new(ReplySlot::new());
        let (id, connection, message, has_receiver) = {
            let mut state = lock(&self.inner.state);
            let id = state.next_id();
            let message = message(id);
            let call = PendingRequest::Call {
                message: Box::new(message.clone()),
                slot: Arc::clone(&slot),
            };
            state.pending.insert(id, call);
            (id, state.connection.clone(), message, state.has_receiver)
        };
        // If it cannot be sent, the connection has ended, and the receiver sends it on the next.
        if let Some(connection) = connection
            && connection.send(&message, &[]).is_err()
        {
            connection.shut_down();
        }
        let reply = if has_receiver {
            slot.wait(timeout, self.inner.interruption.get().copied())
        } else {
            Ok(self.inner.receive_until(&slot, timeout))
        };
        let mut state = lock(&self.inner.state);
        state.pending.remove(&id);
        reply?.ok_or_else(|| {
            let diagnostic = state.diagnostic.clone();
            let text = diagnostic.unwrap_or_else(|| "no reply from the fetcher in time".to_owned());
            io::Error::new(io::ErrorKind::TimedOut, text)
        })
    }

    /// Sends a message that has no reply; without a connection it is dropped.
    pub(crate) fn notify(&self, message: &ClientMessage) {
        let connection = lock(&self.inner.state).connection.clone();
        if let Some(connection) = connection
            && connection.send(message, &[]).is_err()
        {
            connection.shut_down();
        }
    }

    /// A number for an object.
    pub(crate) fn object_number(&self) -> u64 {
        lock(&self.inner.state).next_id()
    }

    /// From now on `object` is opened again on each new connection, as long as it lives. It hears what
    /// has happened since its reply came, before anything that happens later (R1).
    pub(crate) fn register(&self, number: u64, object: &Arc<impl OpenedObject + 'static>) {
        let mut state = lock(&self.inner.state);
        if let Some(UnregisteredObject { reconnects, replaced }) = state.openings.remove(&number) {
            if let Some(files) = replaced {
                object.replaced(files);
            }
            if reconnects != state.reconnects {
                object.closed();
            }
        }
        let registered: Weak<dyn OpenedObject> = Arc::downgrade(object) as _;
        state.objects.insert(number, registered);
    }

    /// Ends what [`register`](Self::register) began, or an opening that has failed.
    pub(crate) fn unregister(&self, number: u64) {
        {
            let mut state = lock(&self.inner.state);
            state.objects.remove(&number);
            state.openings.remove(&number);
        }
        self.notify(&ClientMessage::Close { object: number });
    }
}

/// Connects until both sides have said hello.
///
/// # Errors
/// The fetcher cannot be reached or refuses this client, or fetchers end again and again.
pub(crate) fn connect_with_hello(connector: &dyn Connector) -> io::Result<Connection> {
    let cache_limit = connector.cache_limit();
    let mut attempts = 0;
    loop {
        let connected = connector.connect();
        let error = match connected.and_then(|connection| handshake(connection, cache_limit)) {
            Ok(connection) => return Ok(connection),
            Err(error) => error,
        };
        attempts += 1;
        // A fetcher that ends, as it was idle or was killed, takes connections until then.
        if !has_ended(&error) || attempts == HANDSHAKES_MAX {
            return Err(error);
        }
        std::thread::sleep(RETRY_MIN);
    }
}

/// Whether an error says that the peer has closed the connection.
pub(crate) fn has_ended(error: &io::Error) -> bool {
    use io::ErrorKind::{BrokenPipe, ConnectionAborted, ConnectionReset};
    matches!(error.kind(), ConnectionReset | ConnectionAborted | BrokenPipe)
}

/// Whether a message, or the end, comes until then.
fn wait_until(connection: &Connection, until: Instant) -> io::Result<bool> {
    loop {
        let left = until.saturating_duration_since(Instant::now());
        if connection.wait(left)? {
            return Ok(true);
        }
        if left.is_zero() {
            return Ok(false);
        }
    }
}

/// A connection on which both sides have said hello.
///
/// # Errors
/// The fetcher refuses this client, and says why; it has another version; or it has ended.
fn handshake(connection: Connection, cache_limit: Option<u64>) -> io::Result<Connection> {
    let hello = ClientMessage::Hello { version: PROTOCOL_VERSION, cache_limit };
    match connection.send(&hello, &[]) {
        // A fetcher that refuses a client closes the connection at once. What it said is there to read.
        Err(error) if has_ended(&error) => {}
        sent => sent?,
    }
    let until = Instant::now() + HELLO_LIMIT;
    let receive = || match wait_until(&connection, until)? {
        true => connection.receive::<FetcherMessage>(),
        false => {
            let seconds = HELLO_LIMIT.as_secs();
            let text = format!(
                "the fetcher did not answer within {seconds} s; if ferrofs-fetch hangs, end it"
            );
            Err(io::Error::new(io::ErrorKind::TimedOut, text))
        }
    };
    let reply = match receive() {
        // If it had not read what was sent, that is reported before what it said.
        Err(error) if has_ended(&error) => receive(),
        received => received,
    };
    match reply? {
        Some((FetcherMessage::Hello { version: PROTOCOL_VERSION }, _)) => Ok(connection),
        Some((FetcherMessage::Failed { error, .. }, _)) => Err(error.into()),
        Some((FetcherMessage::Hello { version }, _)) => Err(io::Error::new(
            io::ErrorKind::Unsupported,
            format!(
                "the fetcher speaks version {version} of its protocol, this program version \
                 {PROTOCOL_VERSION}; end the old ferrofs-fetch"
            ),
        )),
        Some(_) => Err(io::ErrorKind::InvalidData.into()),
        None => Err(io::ErrorKind::ConnectionAborted.into()),
    }
}

impl Drop for FetchClient {
    fn drop(&mut self) {
        let connection = {
            let mut state = lock(&self.inner.state);
            state.is_closed = true;
            state.connection.take()
        };
        self.inner.closed.notify_all();
        // Without a connection it makes one, which can take as long as a fetcher may take to start. It sees then
        // that nobody waits for it.
        let Some(connection) = connection else { return };
        connection.shut_down();
        if let Some(receiver) = lock(&self.receiver).take() {
            // It has no result.
            receiver.join().ok();
        }
    }
}

impl ReplySlot {
    fn new() -> Self {
        let waiting = Waiting { reply: None, since: Instant::now() };
        Self { waiting: Mutex::new(waiting), done: Condvar::new() }
    }

    /// `None` if the time is over.
    fn wait(
        &self,
        timeout: Duration,
        interruption: Option<fn() -> io::Result<()>>,
    ) -> io::Result<Option<FetcherReply>> {
        let mut waiting = lock(&self.waiting);
        loop {
            if let Some(reply) = waiting.reply.take() {
                return Ok(Some(reply));
            }
            let rest = timeout.saturating_sub(waiting.since.elapsed());
            if rest.is_zero() {
                return Ok(None);
            }
            let pause = interruption.map_or(rest, |_| rest.min(INTERRUPTION_PAUSE));
            let waited = self.done.wait_timeout(waiting, pause);
            waiting = waited.unwrap_or_else(PoisonError::into_inner).0;
            if let (Some(check), None) = (interruption, &waiting.reply) {
                // It may wait, and the receiver must not.
                drop(waiting);
                check()?;
                waiting = lock(&self.waiting);
            }
        }
    }

    fn take(&self) -> Option<FetcherReply> {
        lock(&self.waiting).reply.take()
    }

    /// What is left of the time.
    fn rest(&self, timeout: Duration) -> Duration {
        timeout.saturating_sub(lock(&self.waiting).since.elapsed())
    }

    /// The time begins anew.
    fn extend(&self) {
        lock(&self.waiting).since = Instant::now();
    }

    fn fill(&self, reply: FetcherReply) {
        lock(&self.waiting).reply = Some(reply);
        self.done.notify_all();
    }
}

impl ClientState {
    fn next_id(&mut self) -> u64 {
        // NO_REPLY is 0 and never used; 2^64 requests are not made.
        self.last_id = self.last_id.wrapping_add(1).max(NO_REPLY + 1);
        self.last_id
    }
}

impl ClientInner {
    /// A connection on which both sides have said hello.
    fn connect(&self) -> io::Result<Arc<Connection>> {
        connect_with_hello(&*self.connector).map(Arc::new)
    }

    /// The loop of the receiver (R1, R2).
    fn receive(&self, mut connection: Option<Arc<Connection>>) {
        loop {
            let Some(current) = connection.clone() else {
                connection = self.reconnect(None);
                match connection {
                    Some(_) => continue,
                    None => return,
                }
            };
            if !self.receive_one(&current) {
                connection = None;
            }
        }
    }

    /// Receives a message; false at the end of the connection.
    fn receive_one(&self, connection: &Connection) -> bool {
        match connection.receive::<FetcherMessage>() {
            Ok(Some((message, files))) => {
                self.dispatch(message, files);
                true
            }
            Ok(None) | Err(_) => {
                connection.shut_down();
                false
            }
        }
    }

    /// R1 and R2 on the thread of the only caller, until its reply has come.
    fn receive_until(&self, slot: &ReplySlot, timeout: Duration) -> Option<FetcherReply> {
        loop {
            if let Some(reply) = slot.take() {
                return Some(reply);
            }
            let rest = slot.rest(timeout);
            if rest.is_zero() {
                return None;
            }
            let connection = lock(&self.state).connection.clone();
            let is_alive = match connection {
                None => false,
                Some(connection) => match connection.wait(rest) {
                    Ok(true) => self.receive_one(&connection),
                    Ok(false) => true,
                    Err(_) => false,
                },
            };
            if !is_alive {
                self.reconnect(Some(Instant::now() + rest))?;
            }
        }
    }

    fn dispatch(&self, message: FetcherMessage, files: Vec<File>) {
        let (id, reply) = match message {
            // A push has a connection of its own.
            FetcherMessage::Hello { .. }
            | FetcherMessage::Pushing { .. }
            | FetcherMessage::Pushed { .. } => return,
            FetcherMessage::Fetching { id } => {
                let state = &mut *lock(&self.state);
                if let Some(PendingRequest::Call { slot, .. }) = state.pending.get(&id) {
                    slot.extend();
                    state.fruitless = 0;
                }
                return;
            }
            FetcherMessage::Opened { id, state } => (id, FetcherReply::Opened(state, files)),
            FetcherMessage::Fetched { id } => (id, FetcherReply::Fetched),
            FetcherMessage::Failed { id, error } => (id, FetcherReply::Failed(error)),
            FetcherMessage::Stats { id, stats } => (id, FetcherReply::Stats(stats)),
            FetcherMessage::Pruned { id, report } => (id, FetcherReply::Pruned(report)),
            FetcherMessage::Document { id } => (id, FetcherReply::Document(files)),
            FetcherMessage::Replaced { object } => return self.replace(object, files),
        };
        let pending = lock(&self.state).pending.remove(&id);
        match pending {
            Some(PendingRequest::Call { message, slot }) => {
                lock(&self.state).fruitless = 0;
                slot.fill(self.note_opened(&message, reply));
            }
            Some(PendingRequest::Reopen { object }) => {
                if let Some(object) = self.object(object) {
                    object.reopened(reply);
                }
            }
            // Its caller did not wait any longer.
            None => {}
        }
    }

    /// What the caller of a request hears. What the receiver knows about an object must not wait until
    /// the caller looks at it, since the next message may be about the same object.
    fn note_opened(&self, message: &ClientMessage, reply: FetcherReply) -> FetcherReply {
        let ClientMessage::Open { object: number, .. } = message else { return reply };
        if !matches!(reply, FetcherReply::Opened(..)) {
            return reply;
        }
        if let Some(object) = self.object(*number) {
            object.reopened(reply);
            return FetcherReply::Reopened;
        }
        let mut state = lock(&self.state);
        let opening = UnregisteredObject { reconnects: state.reconnects, replaced: None };
        state.openings.insert(*number, opening);
        reply
    }

    fn replace(&self, number: u64, files: Vec<File>) {
        let mut state = lock(&self.state);
        if let Some(opening) = state.openings.get_mut(&number) {
            opening.replaced = Some(files);
            return;
        }
        drop(state);
        if let Some(object) = self.object(number) {
            object.replaced(files);
        }
    }

    fn object(&self, number: u64) -> Option<Arc<dyn OpenedObject>> {
        lock(&self.state).objects.get(&number).and_then(Weak::upgrade)
    }

    /// R2. `None` when the client was dropped, or the time is over.
    fn reconnect(&self, deadline: Option<Instant>) -> Option<Arc<Connection>> {
        let mut pause = RETRY_MIN;
        {
            let mut state = lock(&self.state);
            state.connection = None;
            let doublings = state.fruitless;
            state.fruitless = doublings.saturating_add(1);
            if doublings > 0 && !state.is_closed {
                let rest = deadline.map_or(RETRY_MAX, |end| end - Instant::now().min(end));
                let pause = RETRY_MIN * 2u32.pow(doublings.min(16) - 1);
                let waited = self.closed.wait_timeout(state, pause.min(RETRY_MAX).min(rest));
                drop(waited.unwrap_or_else(PoisonError::into_inner));
            }
        }
        loop {
            if lock(&self.state).is_closed {
                return None;
            }
            match self.connect().and_then(|connection| {
                self.repeat(&connection)?;
                Ok(connection)
            }) {
                Ok(connection) => return Some(connection),
                Err(error) => {
                    let mut state = lock(&self.state);
                    state.diagnostic = Some(format!("cannot reach the fetcher: {error}"));
                    if state.is_closed || deadline.is_some_and(|end| Instant::now() >= end) {
                        return None;
                    }
                    let waited = self.closed.wait_timeout(state, pause);
                    drop(waited.unwrap_or_else(PoisonError::into_inner));
                    pause = (pause * 2).min(RETRY_MAX);
                }
            }
        }
    }

    /// Opens all objects again and repeats all requests. From then on callers use the connection.
    fn repeat(&self, connection: &Arc<Connection>) -> io::Result<()> {
        let mut state = lock(&self.state);
        // Nobody would end this connection: the client was dropped while it was made.
        if state.is_closed {
            return Err(io::ErrorKind::ConnectionAborted.into());
        }
        state.pending.retain(|_, pending| matches!(pending, PendingRequest::Call { .. }));
        state.objects.retain(|_, object| object.strong_count() > 0);
        let objects: Vec<_> = state
            .objects
            .iter()
            .filter_map(|(number, object)| Some((*number, object.upgrade()?)))
            .collect();
        for (number, object) in &objects {
            let id = state.next_id();
            state.pending.insert(id, PendingRequest::Reopen { object: *number });
            connection.send(&object.reopen(id), &[])?;
        }
        for pending in state.pending.values() {
            if let PendingRequest::Call { message, .. } = pending {
                connection.send(&**message, &[])?;
            }
        }
        state.connection = Some(Arc::clone(connection));
        state.diagnostic = None;
        state.reconnects += 1;
        drop(state);
        // Dropping the last reference to an object unregisters it, which takes the lock.
        drop(objects);
        Ok(())
    }
}

fn pruned(reply: FetcherReply) -> io::Result<PruneReport> {
    match reply {
        FetcherReply::Pruned(report) => Ok(report),
        FetcherReply::Failed(error) => Err(error.into()),
        _ => Err(io::ErrorKind::InvalidData.into()),
    }
}

/// The error of a reply that does not belong to its request.
pub(crate) fn unexpected(location: &str) -> FetchError {
    FetchError::new(FetchErrorKind::Protocol, location, "the fetcher sent an unexpected reply")
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use super::*;
    use crate::protocol::{ObjectState, Verification};

    /// Connects to what answers in a thread: the connection and its number.
    struct Scripted<F>(F, Mutex<u32>);

    impl<F: Fn(&Connection, u32) + Clone + Send + Sync + 'static> Connector for Scripted<F> {
        fn connect(&self) -> io::Result<Connection> {
            let (ours, theirs) = Connection::pair()?;
            *lock(&self.1) += 1;
            let (answer, number) = (self.0.clone(), *lock(&self.1));
            std::thread::Builder::new().spawn(move || answer(&theirs, number))?;
            Ok(ours)
        }
    }

    /// What an object has heard, in its order.
    #[derive(Default)]
    struct Recorder(Mutex<Vec<&'static str>>);

    impl OpenedObject for Recorder {
        fn reopen(&self, id: u64) -> ClientMessage {
            open_message(id, 1)
        }
        fn reopened(&self, reply: FetcherReply) {
            assert!(matches!(reply, FetcherReply::Opened(..)));
            lock(&self.0).push("reopened");
        }
        fn replaced(&self, files: Vec<File>) {
            assert_eq!(files.len(), 2);
            lock(&self.0).push("replaced");
        }
        fn closed(&self) {
            lock(&self.0).push("closed");
        }
    }

    fn open_message(id: u64, object: u64) -> ClientMessage {
        let location = Box::new("https://h/n".parse().unwrap());
        let options = RemoteOptions::default();
        ClientMessage::Open { id, object, location, options, expected: None }
    }

    /// A fetcher that replaces the files of each object directly after its reply. The first one ends
    /// when it is asked to prune.
    fn replace_at_once(connection: &Connection, number: u32) {
        while let Ok(Some((message, _))) = connection.receive::<ClientMessage>() {
            let file = File::open("/dev/null").unwrap();
            let files = [file.as_fd(), file.as_fd()];
            match message {
                ClientMessage::Hello { .. } => {
                    let hello = FetcherMessage::Hello { version: PROTOCOL_VERSION };
                    connection.send(&hello, &[]).unwrap();
                }
                ClientMessage::Open { id, object, .. } => {
                    let state = ObjectState::new("0".repeat(64), 1, Verification::None);
                    connection.send(&FetcherMessage::Opened { id, state }, &files).unwrap();
                    connection.send(&FetcherMessage::Replaced { object }, &files).unwrap();
                }
                ClientMessage::Stats { id } => {
                    let stats = FetchStats::default();
                    connection.send(&FetcherMessage::Stats { id, stats }, &[]).unwrap();
                }
                ClientMessage::Prune { .. } if number == 1 => return,
                ClientMessage::Prune { id, .. } => {
                    let report = PruneReport::default();
                    connection.send(&FetcherMessage::Pruned { id, report }, &[]).unwrap();
                }
                _ => {}
            }
        }
    }

    const LIMIT: Duration = Duration::from_secs(20);

    fn scripted() -> (FetchClient, u64) {
        let client = FetchClient::new(Box::new(Scripted(replace_at_once, Mutex::new(0)))).unwrap();
        let number = client.object_number();
        let reply = client.call(|id| open_message(id, number), LIMIT).unwrap();
        assert!(matches!(reply, FetcherReply::Opened(..)));
        // Its reply comes after the message about the files.
        client.stats(LIMIT).unwrap();
        (client, number)
    }

    /// Its chunks were looked for in the old files for ever.
    #[test]
    fn files_that_are_replaced_while_an_object_is_opened_are_used() {
        let (client, number) = scripted();
        let object = Arc::new(Recorder::default());
        client.register(number, &object);
        assert_eq!(*lock(&object.0), ["replaced"]);
        // The next reply to the same object is older than what replaces its files, too.
        let reply = client.call(|id| open_message(id, number), LIMIT).unwrap();
        assert!(matches!(reply, FetcherReply::Reopened));
        client.stats(LIMIT).unwrap();
        assert_eq!(*lock(&object.0), ["replaced", "reopened", "replaced"]);
        client.unregister(number);
        assert!(lock(&client.inner.state).openings.is_empty());
    }

    /// The new fetcher did not know the object: each read failed.
    #[test]
    fn an_object_whose_fetcher_ends_while_it_is_opened_is_opened_again() {
        let (client, number) = scripted();
        client.prune(PruneRequest::Unused, LIMIT).unwrap();
        let object = Arc::new(Recorder::default());
        client.register(number, &object);
        assert_eq!(*lock(&object.0), ["replaced", "closed"]);
        let failed = client.object_number();
        client.call(|id| open_message(id, failed), LIMIT).unwrap();
        client.unregister(failed);
        assert!(lock(&client.inner.state).openings.is_empty());
    }

    /// Python saw Ctrl-C when the time limit was over.
    #[test]
    fn a_wait_for_a_reply_can_be_interrupted() {
        let (client, _) = scripted();
        client.set_interruption(|| Err(io::Error::other("a signal")));
        // It has no reply here.
        let error = client.discard("", &[], Duration::MAX).unwrap_err();
        assert_eq!(error.to_string(), "a signal");
        assert!(lock(&client.inner.state).pending.is_empty());
    }

    /// A stopped fetcher, or one that hung at its start, held its clients for ever.
    #[test]
    fn a_fetcher_that_says_nothing_is_not_waited_for() {
        let (ours, _silent) = Connection::pair().unwrap();
        let error = handshake(ours, None).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        assert!(error.to_string().contains("ferrofs-fetch"), "{error}");
    }
}

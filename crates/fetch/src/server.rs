//! A connection of the fetcher: one thread receives, and one task answers each request. Knows
//! messages, and no server.

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use ferrofs_remote::protocol::{
    ClientMessage, ClientRole, FetchError, FetchErrorKind, FetchUrgency, FetcherMessage, NO_REPLY,
    PROTOCOL_VERSION, PruneReport, PushRequest, checked_ranges,
};
use ferrofs_remote::{Connection, ContentDigest, StoreSettings};
use tokio::runtime::Handle;
use tokio::sync::watch;

use crate::blocking::blocking;
use crate::fetcher::{Fetcher, OpeningRequest};
use crate::lock::lock;
use crate::object::{ObjectUse, SharedObject, WaitOptions};
use crate::space::CacheSpace;

/// Objects of one connection: an image and its devices, of several images.
const OBJECTS_MAX: usize = 4096;
/// Requests of one connection that are not answered yet.
const REQUESTS_MAX: usize = 4096;

/// How often a client hears how far an upload is.
const PROGRESS_PAUSE: Duration = Duration::from_millis(200);
/// The same of a fetch: clients wait for seconds at least.
const FETCH_PROGRESS_PAUSE: Duration = Duration::from_millis(500);

/// Serves one connection until its end.
pub(crate) fn serve_one(connection: Arc<Connection>, fetcher: &Arc<Fetcher>, runtime: &Handle) {
    Arc::new(ClientSession::new(connection, Arc::clone(fetcher), runtime.clone())).serve();
}

/// A client.
struct ClientSession {
    /// Names it among all clients of this fetcher.
    number: u64,
    connection: Arc<Connection>,
    /// Of object stores; empty unless the client sent some.
    settings: Mutex<Arc<StoreSettings>>,
    fetcher: Arc<Fetcher>,
    runtime: Handle,
    objects: Mutex<HashMap<u64, OpenHandle>>,
    /// Objects that are being opened; requests for them wait.
    opening: Mutex<Vec<u64>>,
    /// Changes when an object was opened.
    opened: watch::Sender<u64>,
    /// True when the client has gone.
    closed: watch::Sender<bool>,
    requests: AtomicUsize,
}

/// An object as one client has it open.
#[derive(Clone)]
struct OpenHandle {
    shared: ObjectUse,
    /// Only what is cached may be read.
    is_offline: bool,
    /// How long the client waits.
    limit: Option<Duration>,
}

impl ClientSession {
    fn new(connection: Arc<Connection>, fetcher: Arc<Fetcher>, runtime: Handle) -> Self {
        static NUMBERS: AtomicU64 = AtomicU64::new(0);
        Self {
            number: NUMBERS.fetch_add(1, Ordering::Relaxed),
            connection,
            settings: Mutex::default(),
            fetcher,
            runtime,
            objects: Mutex::default(),
            opening: Mutex::default(),
            opened: watch::Sender::new(0),
            closed: watch::Sender::new(false),
            requests: AtomicUsize::new(0),
        }
    }

    fn serve(self: Arc<Self>) {
        let (mut has_hello, mut role) = (false, None);
        while let Ok(Some((message, files))) = self.connection.receive() {
            match message {
                // Once, so that a client does not change what the process that connects has said.
                ClientMessage::Settings { settings, role: stated }
                    if !has_hello && role.is_none() =>
                {
                    *lock(&self.settings) = Arc::new(settings);
                    role = Some(stated);
                }
                ClientMessage::Hello { cache_limit, .. } if !has_hello => {
                    has_hello = true;
                    self.send(&FetcherMessage::Hello { version: PROTOCOL_VERSION }, &[]);
                    self.ask_limit(cache_limit);
                }
                // A peer that breaks the protocol is disconnected.
                _ if !has_hello => break,
                request if !is_allowed(&request, role.unwrap_or_default()) => break,
                ClientMessage::Close { object } => drop(lock(&self.objects).remove(&object)),
                ClientMessage::Used { object, chunks } => self.set_used(object, &chunks),
                request => {
                    if self.requests.fetch_add(1, Ordering::Relaxed) >= REQUESTS_MAX {
                        break;
                    }
                    let opening = match &request {
                        ClientMessage::Open { object, .. } => Some(*object),
                        _ => None,
                    };
                    lock(&self.opening).extend(opening);
                    let id = request.id();
                    let (peer, answering) = (Arc::clone(&self), Arc::clone(&self));
                    self.runtime.spawn(async move {
                        let answer = async move { answering.answer(request, files).await };
                        if let Err(failed) = tokio::spawn(answer).await {
                            peer.fail(id, opening, &failed);
                        }
                        peer.requests.fetch_sub(1, Ordering::Relaxed);
                    });
                }
            }
        }
        self.connection.shut_down();
        self.closed.send_replace(true);
        lock(&self.objects).clear();
        self.ask_limit(None);
    }

    /// A request has ended in a panic: libraries panic where the system has no thread for them.
    fn fail(&self, id: Option<u64>, opening: Option<u64>, failed: &tokio::task::JoinError) {
        if let Some(id) = id.filter(|id| *id != NO_REPLY) {
            let detail = format!("the fetcher could not carry the request out: {failed}");
            let error = FetchError::new(FetchErrorKind::Exhausted, "the fetcher", detail);
            self.send(&FetcherMessage::Failed { id, error }, &[]);
        }
        lock(&self.opening).retain(|object| Some(*object) != opening);
        self.opened.send_modify(|count| *count += 1);
    }

    /// What the client wants the cache to take at most.
    fn ask_limit(&self, limit: Option<u64>) {
        if let Some(space) = self.fetcher.space() {
            space.set_limit(self.number, limit);
        }
    }

    /// Chunks were read. What is wrong about the message does not matter: it has no reply.
    fn set_used(&self, object: u64, chunks: &[(u32, u32)]) {
        let Some(shared) = lock(&self.objects).get(&object).map(|one| one.shared.clone()) else {
            return;
        };
        let backing = shared.backing();
        let ranges = checked_ranges(chunks, shared.layout().count()).unwrap_or_default();
        ranges.into_iter().flatten().for_each(|chunk| backing.set_used(chunk));
    }

    /// Messages are small; a peer that does not read is disconnected after the timeout of the
    /// socket. One that is too long would be as long when the peer asks again: it hears that instead.
    fn send(&self, message: &FetcherMessage, descriptors: &[BorrowedFd<'_>]) {
        let sent = match self.connection.try_send(message, descriptors) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                blocking(|| self.connection.send(message, descriptors))
            }
            sent => sent,
        };
        let sent = match (sent, message.id()) {
            (Err(error), Some(id)) if error.kind() == io::ErrorKind::InvalidInput => {
                let detail = "the reply is longer than a message can be";
                let error = FetchError::new(FetchErrorKind::Protocol, "the fetcher", detail);
                self.connection.send(&FetcherMessage::Failed { id, error }, &[])
            }
            (sent, _) => sent,
        };
        if sent.is_err() {
            self.connection.shut_down();
        }
    }

    /// Tells a client that waits for chunks that one has come, now and then.
    fn tell_progress(&self, id: u64, reported_at: &Mutex<Instant>) {
        let mut reported_at = lock(reported_at);
        if id != NO_REPLY && reported_at.elapsed() >= FETCH_PROGRESS_PAUSE {
            *reported_at = Instant::now();
            drop(reported_at);
            self.send(&FetcherMessage::Fetching { id }, &[]);
        }
    }

    /// Only a push brings files.
    async fn answer(self: &Arc<Self>, request: ClientMessage, files: Vec<File>) {
        match request {
            ClientMessage::Open { id, object, location, options, expected } => {
                let settings = lock(&self.settings).clone();
                let expected = expected.as_ref();
                let opening = OpeningRequest { options: &options, expected, settings: &settings };
                let opened = self.fetcher.open(&location, &opening).await;
                let opened = opened.and_then(|shared| {
                    let (is_offline, limit) = (options.offline, options.limit());
                    self.keep(object, OpenHandle { shared: shared.clone(), is_offline, limit })?;
                    Ok(shared)
                });
                match opened {
                    Ok(shared) => self.send_opened(id, object, &shared),
                    Err(error) => self.send(&FetcherMessage::Failed { id, error }, &[]),
                }
                // After the reply: a client that hears that the object is not open knows why.
                lock(&self.opening).retain(|other| *other != object);
                self.opened.send_modify(|count| *count += 1);
            }
            ClientMessage::Fetch { id, object, chunks, urgency, past_caches } => {
                let mut closed = self.closed.subscribe();
                let result = tokio::select! {
                    result = self.fetch(id, object, &chunks, urgency, past_caches) => result,
                    _ = closed.wait_for(|is_closed| *is_closed) => return,
                };
                if id != NO_REPLY {
                    let reply = match result {
                        Ok(()) => FetcherMessage::Fetched { id },
                        Err(error) => FetcherMessage::Failed { id, error },
                    };
                    self.send(&reply, &[]);
                }
            }
            ClientMessage::Push { id, request } => self.push(id, *request, files).await,
            ClientMessage::Prune { id, what } => {
                let fetcher = Arc::clone(&self.fetcher);
                self.change_cache(id, move || disk(&fetcher)?.prune(what)).await;
            }
            ClientMessage::Discard { id, key, chunks } => {
                let fetcher = Arc::clone(&self.fetcher);
                self.change_cache(id, move || {
                    let malformed = || io::Error::from(io::ErrorKind::InvalidInput);
                    let key = format!("sha256:{key}").parse::<ContentDigest>();
                    let key = key.map_err(|_| malformed())?;
                    checked_ranges(&chunks, u32::MAX).map_err(|_| malformed())?;
                    disk(&fetcher)?.discard(key.as_bytes(), &chunks, fetcher.limits.generation())
                })
                .await;
            }
            ClientMessage::Manifest { id, location, options } => {
                let document = self.fetcher.manifest(&location, &options).await;
                match document {
                    Ok(file) => self.send(&FetcherMessage::Document { id }, &[file.as_fd()]),
                    Err(error) => self.send(&FetcherMessage::Failed { id, error }, &[]),
                }
            }
            ClientMessage::Stats { id } => {
                let stats = self.fetcher.stats();
                self.send(&FetcherMessage::Stats { id, stats }, &[]);
            }
            _ => {}
        }
    }

    /// Carries out a `fetch`.
    async fn fetch(
        &self,
        id: u64,
        object: u64,
        chunks: &[(u32, u32)],
        urgency: FetchUrgency,
        past_caches: bool,
    ) -> Result<(), FetchError> {
        let refused = |display_name: &str, detail| {
            FetchError::new(FetchErrorKind::Refused, display_name, detail)
        };
        let OpenHandle { shared, is_offline, limit } = self
            .object(object)
            .await
            .ok_or_else(|| refused("fetch", "the object is not open on this connection"))?;
        let ranges = checked_ranges(chunks, shared.layout().count())
            .map_err(|_| refused(shared.display_name(), "malformed ranges of chunks"))?;
        if !is_offline {
            let reported_at = Mutex::new(Instant::now());
            let on_progress = || self.tell_progress(id, &reported_at);
            let options = WaitOptions { limit, on_progress: &on_progress };
            return shared.fetch(&ranges, urgency, past_caches, &options).await;
        }
        if past_caches {
            let detail = "a cached chunk is damaged, and --offline forbids requests to its server";
            return Err(FetchError::new(FetchErrorKind::Offline, shared.display_name(), detail));
        }
        shared.require_cached(&ranges)
    }

    /// Publishes an image, and reports how far it is, until the client has gone.
    async fn push(&self, id: u64, request: PushRequest, files: Vec<File>) {
        let done = Arc::new(AtomicU64::new(0));
        let upload = match self.fetcher.upload(request, files, Arc::clone(&done)) {
            Ok(upload) => upload,
            Err(error) => return self.send(&FetcherMessage::Failed { id, error }, &[]),
        };
        let mut running = std::pin::pin!(upload.run());
        let mut closed = self.closed.subscribe();
        loop {
            tokio::select! {
                result = &mut running => {
                    let reply = match result {
                        Ok(report) => FetcherMessage::Pushed { id, report },
                        Err(error) => FetcherMessage::Failed { id, error },
                    };
                    return self.send(&reply, &[]);
                }
                _ = closed.wait_for(|is_closed| *is_closed) => return,
                () = tokio::time::sleep(PROGRESS_PAUSE) => {
                    let bytes = done.load(Ordering::Relaxed);
                    self.send(&FetcherMessage::Pushing { id, bytes }, &[]);
                }
            }
        }
    }

    /// Removes something from the cache, and replies.
    async fn change_cache(
        &self,
        id: u64,
        change: impl FnOnce() -> io::Result<PruneReport> + Send + 'static,
    ) {
        let changed = tokio::task::spawn_blocking(change).await;
        let reply = match changed.unwrap_or_else(|error| Err(io::Error::other(error))) {
            Ok(report) => FetcherMessage::Pruned { id, report },
            Err(error) => {
                let kind = FetchErrorKind::Exhausted;
                FetcherMessage::Failed {
                    id,
                    error: FetchError::new(kind, "cache", error.to_string()),
                }
            }
        };
        self.send(&reply, &[]);
    }

    fn keep(&self, number: u64, handle: OpenHandle) -> Result<(), FetchError> {
        let mut objects = lock(&self.objects);
        if objects.len() >= OBJECTS_MAX {
            let detail = "too many objects are open on this connection";
            return Err(FetchError::new(
                FetchErrorKind::Refused,
                handle.shared.display_name(),
                detail,
            ));
        }
        objects.insert(number, handle);
        Ok(())
    }

    /// The object under a number, when it has been opened.
    async fn object(&self, number: u64) -> Option<OpenHandle> {
        let mut opened = self.opened.subscribe();
        loop {
            if let Some(handle) = lock(&self.objects).get(&number) {
                return Some(handle.clone());
            }
            if !lock(&self.opening).contains(&number) {
                return None;
            }
            opened.changed().await.ok()?;
        }
    }

    /// Replies to `open`, and reports from then on when the files are replaced.
    fn send_opened(self: &Arc<Self>, id: u64, number: u64, shared: &Arc<SharedObject>) {
        let mut replaced = shared.replaced.subscribe();
        let backing = shared.backing();
        let state = shared.state.clone().kept_in_memory(!backing.is_on_disk());
        let opened = FetcherMessage::Opened { id, state };
        let index = shared.index_file.as_ref().map(AsFd::as_fd);
        let files: Vec<_> = backing.files().into_iter().chain(index).collect();
        self.send(&opened, &files);
        let peer = Arc::downgrade(self);
        let shared = Arc::downgrade(shared);
        tokio::spawn(async move {
            while replaced.changed().await.is_ok() {
                let (Some(peer), Some(shared)) = (peer.upgrade(), shared.upgrade()) else { return };
                let backing = shared.backing();
                let index = shared.index_file.as_ref().map(AsFd::as_fd);
                let files: Vec<_> = backing.files().into_iter().chain(index).collect();
                peer.send(&FetcherMessage::Replaced { object: number }, &files);
            }
        });
    }
}

/// Whether a client of this role may send it.
fn is_allowed(request: &ClientMessage, role: ClientRole) -> bool {
    let only_reads = matches!(
        request,
        ClientMessage::Open { .. }
            | ClientMessage::Fetch { .. }
            | ClientMessage::Close { .. }
            | ClientMessage::Used { .. }
            | ClientMessage::Stats { .. }
    );
    only_reads || role == ClientRole::Full
}

/// The cache on the disk.
fn disk(fetcher: &Fetcher) -> io::Result<&CacheSpace> {
    let uncached = || io::Error::new(io::ErrorKind::ReadOnlyFilesystem, "it cannot be written");
    fetcher.space().map(|space| &**space).ok_or_else(uncached)
}

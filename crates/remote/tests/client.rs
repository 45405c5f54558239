//! A source against a fetcher in this process: what is missing is requested, and a fetcher that
//! dies is replaced without a failed read.
#![allow(
    clippy::unwrap_used,
    clippy::cast_possible_truncation,
    reason = "a test may panic, and makes its own bytes"
)]

use std::fs::File;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;
use std::{io, thread};

use ferrofs_image::ImageSource;
use ferrofs_remote::cache::{CacheDirectory, ChunkLayout, ObjectIdentity, ObjectWriter};
use ferrofs_remote::protocol::{
    ClientMessage, FetchError, FetchErrorKind, FetcherMessage, ObjectState, PROTOCOL_VERSION,
    RemoteOptions, Verification,
};
use ferrofs_remote::{Connection, Connector, FetchClient, RemoteLocation, RemoteSource};

const LENGTH: u64 = (5 << 20) + 77;
const TIMEOUT: Duration = Duration::from_secs(20);

/// Byte `offset` of the object.
fn byte(offset: u64) -> u8 {
    (offset >> 12) as u8 ^ offset as u8
}

/// What the fetchers of a test share.
struct World {
    writer: ObjectWriter,
    cache: CacheDirectory,
    identity: ObjectIdentity,
    /// Chunks that were stored.
    stored: AtomicU64,
    /// After so many requests the fetcher dies, before it replies.
    dies_after: AtomicU64,
    /// It dies with each request.
    dies_always: AtomicBool,
    connections: AtomicU64,
    /// Stores damaged chunks, unless it is asked for them past caches.
    damages: AtomicBool,
    /// Says that chunks are there, and stores none.
    forgets: AtomicBool,
    fetches: AtomicU64,
    /// Refuses everything.
    refuses: AtomicBool,
    /// So many objects cannot be opened, as if their server did not answer.
    unreachable_opens: AtomicU64,
    length: AtomicU64,
    _directory: tempfile::TempDir,
}

impl World {
    fn new() -> Arc<Self> {
        let directory = tempfile::tempdir().unwrap();
        let cache = CacheDirectory::open(&directory.path().join("cache")).unwrap();
        let identity = ObjectIdentity::Digest("sha256:test".to_owned());
        let layout = ChunkLayout::new(LENGTH).unwrap();
        Arc::new(Self {
            writer: cache.writer(&identity, layout, 1).unwrap(),
            cache,
            identity,
            stored: AtomicU64::new(0),
            dies_after: AtomicU64::new(u64::MAX),
            dies_always: AtomicBool::new(false),
            connections: AtomicU64::new(0),
            damages: AtomicBool::new(false),
            forgets: AtomicBool::new(false),
            fetches: AtomicU64::new(0),
            refuses: AtomicBool::new(false),
            unreachable_opens: AtomicU64::new(0),
            length: AtomicU64::new(LENGTH),
            _directory: directory,
        })
    }

    fn state(&self) -> ObjectState {
        ObjectState::new(
            self.identity.key_text(),
            self.length.load(Ordering::SeqCst),
            Verification::None,
        )
    }

    fn store(&self, chunk: u32, past_caches: bool) {
        if self.writer.is_present(chunk) && !past_caches {
            return;
        }
        let range = self.writer.layout().bytes_of(chunk);
        let bytes: Vec<u8> = range.clone().map(byte).collect();
        self.writer.store(chunk, &bytes).unwrap();
        self.stored.fetch_add(1, Ordering::SeqCst);
        if self.damages.load(Ordering::SeqCst) && !past_caches {
            let files = self.cache.path().join("v1");
            let folder = std::fs::read_dir(files).unwrap().next().unwrap().unwrap().path();
            let data = File::options().write(true).open(folder.join("data")).unwrap();
            std::os::unix::fs::FileExt::write_all_at(&data, &[!byte(range.start)], range.start)
                .unwrap();
        }
    }

    /// Serves one connection; returns when it ends or this fetcher dies.
    fn serve(&self, connection: &Connection) {
        self.connections.fetch_add(1, Ordering::SeqCst);
        let mut is_open = false;
        while let Ok(Some((message, _))) = connection.receive::<ClientMessage>() {
            if self.dies_after.load(Ordering::SeqCst) == 0 {
                return;
            }
            let reply = match message {
                ClientMessage::Hello { .. } => FetcherMessage::Hello { version: PROTOCOL_VERSION },
                ClientMessage::Open { id, .. }
                    if self
                        .unreachable_opens
                        .fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| {
                            left.checked_sub(1)
                        })
                        .is_ok() =>
                {
                    let kind = FetchErrorKind::Unreachable;
                    FetcherMessage::Failed { id, error: FetchError::new(kind, "oci://h/n", "down") }
                }
                ClientMessage::Fetch { id, .. } if !is_open => {
                    let kind = FetchErrorKind::Refused;
                    FetcherMessage::Failed { id, error: FetchError::new(kind, "fetch", "not open") }
                }
                ClientMessage::Open { id, .. } => {
                    is_open = true;
                    let (data, records) = self.cache.reader_files(&self.identity.key()).unwrap();
                    let opened = FetcherMessage::Opened { id, state: self.state() };
                    connection.send(&opened, &[data.as_fd(), records.as_fd()]).ok();
                    continue;
                }
                ClientMessage::Fetch { id, .. } if self.refuses.load(Ordering::SeqCst) => {
                    let error = FetchError::new(FetchErrorKind::Denied, "oci://h/n", "refused");
                    FetcherMessage::Failed { id, error }
                }
                ClientMessage::Fetch { .. } if self.dies_always.load(Ordering::SeqCst) => return,
                ClientMessage::Fetch { id, chunks, past_caches, .. } => {
                    if self.dies_after.fetch_sub(1, Ordering::SeqCst) == 1 {
                        self.dies_after.store(u64::MAX, Ordering::SeqCst);
                        return;
                    }
                    self.fetches.fetch_add(1, Ordering::SeqCst);
                    let is_stored = !self.forgets.load(Ordering::SeqCst);
                    for (start, end) in chunks.into_iter().filter(|_| is_stored) {
                        (start..end).for_each(|chunk| self.store(chunk, past_caches));
                    }
                    FetcherMessage::Fetched { id }
                }
                _ => continue,
            };
            connection.send(&reply, &[]).ok();
        }
    }
}

/// Starts a fetcher in a thread for each connection.
struct InProcess(Arc<World>, Mutex<u32>);

impl Connector for InProcess {
    fn connect(&self) -> io::Result<Connection> {
        let mut attempts = self.1.lock().unwrap();
        *attempts += 1;
        // Every second attempt fails, as while a new fetcher starts.
        if attempts.is_multiple_of(2) {
            return Err(io::ErrorKind::ConnectionRefused.into());
        }
        let (ours, theirs) = Connection::pair()?;
        let world = Arc::clone(&self.0);
        thread::Builder::new().spawn(move || world.serve(&theirs))?;
        Ok(ours)
    }
}

fn open(world: &Arc<World>) -> RemoteSource {
    open_within(world, TIMEOUT)
}

fn open_within(world: &Arc<World>, timeout: Duration) -> RemoteSource {
    let client = FetchClient::new(Box::new(InProcess(Arc::clone(world), Mutex::new(0)))).unwrap();
    let location: RemoteLocation = "oci://host/name".parse().unwrap();
    RemoteSource::open(&Arc::new(client), &location, &RemoteOptions::default(), timeout).unwrap()
}

fn check(source: &RemoteSource, offset: u64, bytes: usize) {
    let mut buffer = vec![0; bytes];
    let count = source.read_at(offset, &mut buffer).unwrap();
    assert_eq!(count as u64, (LENGTH.saturating_sub(offset)).min(bytes as u64));
    for (number, found) in buffer[..count].iter().enumerate() {
        let at = offset + number as u64;
        assert_eq!(*found, byte(at), "byte {at}");
    }
}

#[test]
fn each_chunk_is_fetched_once_and_the_end_is_the_end() {
    let world = World::new();
    let source = open(&world);
    check(&source, 10, 100);
    check(&source, (1 << 20) - 5, 10);
    assert_eq!(world.stored.load(Ordering::SeqCst), 2);
    check(&source, LENGTH - 3, 10);
    check(&source, LENGTH, 10);
    check(&source, u64::MAX, 10);
    assert_eq!(world.stored.load(Ordering::SeqCst), 3);
    source.will_need(3 << 20, 1);
    source.will_need(3 << 20, 1 << 20);
    check(&source, 3 << 20, 1);
    assert_eq!(world.stored.load(Ordering::SeqCst), 4);
    check(&source, 0, LENGTH as usize);
    assert_eq!(world.stored.load(Ordering::SeqCst), 6);
}

/// Each reader after the first one waited for each chunk.
#[test]
fn what_was_prefetched_and_evicted_is_prefetched_again() {
    let world = World::new();
    let source = open(&world);
    source.will_need(3 << 20, 2 << 20);
    // The fetcher of this test carries out one request after the other.
    check(&source, 0, 1);
    assert!(world.writer.is_present(3) && world.writer.is_present(4));
    world.writer.discard(3..5).unwrap();
    check(&source, 3 << 20, 1);
    source.will_need(3 << 20, 2 << 20);
    check(&source, 1 << 20, 1);
    assert!(world.writer.is_present(4));
}

#[test]
fn a_fetcher_that_dies_is_replaced_and_no_read_fails() {
    let world = World::new();
    let source = open(&world);
    thread::scope(|scope| {
        for reader in 0..4 {
            let (source, world) = (&source, &world);
            scope.spawn(move || {
                for round in 0..60u64 {
                    if reader == 0 && round % 4 == 0 {
                        world.writer.discard(0..6).unwrap();
                        world.dies_after.store(round % 3 + 1, Ordering::SeqCst);
                    }
                    check(source, (round * 7 + reader) * 77_777 % LENGTH, 5000);
                }
            });
        }
    });
    assert!(world.connections.load(Ordering::SeqCst) > 3);
}

/// It connected thousands of times, and each time the server was asked again.
#[test]
fn a_request_that_ends_each_fetcher_is_repeated_with_pauses() {
    let world = World::new();
    let source = open_within(&world, Duration::from_secs(2));
    world.dies_always.store(true, Ordering::SeqCst);
    let error = source.read_at(0, &mut [0]).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::TimedOut, "{error}");
    let connections = world.connections.load(Ordering::SeqCst);
    assert!((3..20).contains(&connections), "{connections}");
    world.dies_always.store(false, Ordering::SeqCst);
    check(&source, 0, 100);
}

/// It sent a thousand requests in a second, until the time limit.
#[test]
fn a_chunk_that_is_never_there_is_requested_with_pauses() {
    let world = World::new();
    let source = open_within(&world, Duration::from_millis(500));
    world.forgets.store(true, Ordering::SeqCst);
    let error = source.read_at(0, &mut [0]).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::TimedOut, "{error}");
    let fetches = world.fetches.load(Ordering::SeqCst);
    assert!((2..30).contains(&fetches), "{fetches}");
}

#[test]
fn a_damaged_chunk_is_requested_past_caches() {
    let world = World::new();
    let source = open(&world);
    world.damages.store(true, Ordering::SeqCst);
    check(&source, 0, 100);
    assert_eq!(world.stored.load(Ordering::SeqCst), 2);
}

#[test]
fn the_error_of_the_fetcher_reaches_the_reader() {
    let world = World::new();
    let source = open(&world);
    check(&source, 0, 1);
    world.refuses.store(true, Ordering::SeqCst);
    let error = source.read_at(1 << 20, &mut [0]).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::PermissionDenied);
    assert_eq!(error.to_string(), "oci://h/n: refused");
    check(&source, 5, 1);
}

#[test]
fn an_object_that_a_new_fetcher_could_not_open_is_opened_when_it_is_read() {
    let world = World::new();
    let source = open(&world);
    check(&source, 0, 1);
    // The fetcher dies with a request; the next one finds no server, twice.
    world.unreachable_opens.store(2, Ordering::SeqCst);
    world.dies_after.store(1, Ordering::SeqCst);
    check(&source, 1 << 20, 1);
    assert_eq!(world.unreachable_opens.load(Ordering::SeqCst), 0);
    check(&source, 2 << 20, 1);
}

#[test]
fn an_object_that_has_changed_is_not_served() {
    let world = World::new();
    let source = open(&world);
    check(&source, 0, 1);
    world.length.store(LENGTH - 1, Ordering::SeqCst);
    world.dies_after.store(1, Ordering::SeqCst);
    let error = source.read_at(1 << 20, &mut [0]).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::StaleNetworkFileHandle, "{error}");
    source.read_at(0, &mut [0]).unwrap_err();
}

/// Its first fetcher ends, and the next one never starts.
struct Stuck {
    connections: AtomicU64,
    begins: mpsc::Sender<()>,
    ends: Mutex<mpsc::Receiver<()>>,
}

impl Connector for Stuck {
    fn connect(&self) -> io::Result<Connection> {
        if self.connections.fetch_add(1, Ordering::SeqCst) > 0 {
            self.begins.send(()).ok();
            self.ends.lock().unwrap().recv().ok();
            return Err(io::ErrorKind::NotFound.into());
        }
        let (ours, theirs) = Connection::pair()?;
        thread::Builder::new().spawn(move || {
            theirs.receive::<ClientMessage>().unwrap();
            theirs.send(&FetcherMessage::Hello { version: PROTOCOL_VERSION }, &[]).unwrap();
        })?;
        Ok(ours)
    }
}

/// It waited for the fetcher: Python, which drops an image with its lock, stood still for 10 s.
#[test]
fn dropping_a_client_waits_for_no_connection() {
    let (begins, begun) = mpsc::channel();
    let (_end, ends) = mpsc::channel();
    let stuck = Stuck { connections: AtomicU64::new(0), begins, ends: Mutex::new(ends) };
    let client = FetchClient::new(Box::new(stuck)).unwrap();
    begun.recv_timeout(TIMEOUT).unwrap();
    let (dropped, is_dropped) = mpsc::channel();
    let dropping = thread::Builder::new().spawn(move || {
        drop(client);
        dropped.send(()).unwrap();
    });
    dropping.unwrap();
    is_dropped.recv_timeout(TIMEOUT).unwrap();
}

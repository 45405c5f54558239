//! More clients than the fetcher can serve: those that it serves notice nothing, and the others hear
//! why they are refused.

use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use std::{io, thread};

use ferrofs_remote::cache::CacheDirectory;
use ferrofs_remote::protocol::{
    ClientMessage, ClientRole, FetcherMessage, PROTOCOL_VERSION, PruneRequest, PushRequest,
    RemoteOptions,
};
use ferrofs_remote::{Connection, Connector, FetchClient, Location, StoreSettings};
use rustix::process::{Pid, Resource, Rlimit, getrlimit, prlimit, setrlimit};

use crate::command::skip;
use crate::server::Server;
use crate::world::{World, body, check};

/// The limit of `fetch/admission`.
const CONNECTIONS_MAX: usize = 1024;
const TIMEOUT: Duration = Duration::from_secs(30);

/// A fetcher with limits of its own, which ends when it is idle.
struct Limited {
    child: Child,
    cache: CacheDirectory,
}

impl Limited {
    /// `limit` are the arguments of `ulimit`.
    fn start(world: &World, limit: &str) -> Self {
        let cache = CacheDirectory::open(&world.cache()).unwrap();
        let script = format!("ulimit {limit}; exec \"$0\" --idle 1 --cache \"$1\"");
        let mut command = Command::new("sh");
        command.args(["-c", &script, env!("CARGO_BIN_EXE_ferrofs-fetch")]).arg(cache.path());
        let child = command.stdin(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        let deadline = Instant::now() + TIMEOUT;
        while cache.connect().is_err() {
            assert!(Instant::now() < deadline, "no fetcher");
            thread::sleep(Duration::from_millis(5));
        }
        Self { child, cache }
    }

    /// Connects as a client that sends its first message at once.
    fn connect(&self) -> Connection {
        let connection = self.cache.connect().unwrap();
        let hello = ClientMessage::Hello { version: PROTOCOL_VERSION, cache_limit: None };
        // It may have been refused already.
        connection.send(&hello, &[]).ok();
        connection
    }

    /// A connection that is served, or why it is not.
    fn handshake(&self) -> Result<Connection, String> {
        let connection = self.connect();
        let mut received = connection.receive();
        if received.is_err() {
            received = connection.receive();
        }
        match received.unwrap() {
            Some((FetcherMessage::Hello { .. }, _)) => Ok(connection),
            Some((FetcherMessage::Failed { error, .. }, _)) => Err(error.to_string()),
            other => panic!("{other:?}"),
        }
    }

    fn client(&self, world: &World) -> io::Result<FetchClient> {
        FetchClient::new(Box::new(Existing(CacheDirectory::open(&world.cache()).unwrap())))
    }

    /// It has served to the end, and ends as it is idle.
    fn end(mut self) {
        assert!(self.child.wait().unwrap().success());
    }
}

/// Connects to a fetcher, and starts none.
struct Existing(CacheDirectory);

impl Connector for Existing {
    fn connect(&self) -> io::Result<Connection> {
        self.0.connect()
    }
}

fn is_served(client: &FetchClient) {
    client.stats(TIMEOUT).unwrap();
}

/// A daemon that decodes what strangers have made could publish with the logins of its user, and empty the cache.
#[test]
fn a_reader_that_sends_more_than_requests_to_read_is_disconnected() {
    let world = World::new();
    let fetcher = Limited::start(&world, "-Sn 64");
    let settings = |role| ClientMessage::Settings { settings: StoreSettings::default(), role };
    let hello = ClientMessage::Hello { version: PROTOCOL_VERSION, cache_limit: None };
    let stats = ClientMessage::Stats { id: 1 };
    let location = || match Location::parse("oci://127.0.0.1:1/name:tag".as_ref()) {
        Ok(Location::Remote(location)) => location,
        other => panic!("{other:?}"),
    };
    let options = RemoteOptions::default();
    let push = PushRequest::new(location(), options.clone(), "{}".to_owned());
    let requests = [
        ClientMessage::Prune { id: 2, what: PruneRequest::Unused },
        ClientMessage::Discard { id: 2, key: "00".repeat(32), chunks: Vec::new() },
        ClientMessage::Manifest { id: 2, location: Box::new(location()), options },
        ClientMessage::Push { id: 2, request: Box::new(push) },
        // It does not become another client, either.
        settings(ClientRole::Full),
    ];
    for request in requests {
        // A client that may request it gets a reply, and so do its other requests.
        let may_send = request.id().map(|_| ClientRole::Full);
        for role in may_send.into_iter().chain([ClientRole::Reader]) {
            let connection = fetcher.cache.connect().unwrap();
            for message in [&settings(role), &hello, &stats, &request] {
                connection.send(message, &[]).unwrap();
            }
            let received = || connection.receive::<FetcherMessage>().ok().flatten();
            assert!(matches!(received(), Some((FetcherMessage::Hello { .. }, _))), "{request:?}");
            let replies = std::iter::from_fn(received).map(|(message, _)| message.id());
            let is_answered = replies.take(2).any(|id| id == Some(2));
            assert_eq!(is_answered, role == ClientRole::Full, "{role:?}: {request:?}");
        }
    }
    let connection = fetcher.cache.connect().unwrap();
    for message in [&settings(ClientRole::Reader), &settings(ClientRole::Full), &hello] {
        connection.send(message, &[]).unwrap();
    }
    assert!(connection.receive::<FetcherMessage>().ok().flatten().is_none(), "a second `settings`");
    drop(connection);
    fetcher.end();
}

#[test]
fn as_many_clients_as_documented_are_served_and_one_more_hears_why_it_is_not() {
    let maximum = getrlimit(Resource::Nofile).maximum;
    if maximum.is_some_and(|maximum| maximum < 4096) {
        skip("needs a hard limit of 4096 descriptors");
        return;
    }
    // The clients of this test.
    setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum }).unwrap();
    let world = World::new();
    let fetcher = Limited::start(&world, "-Sn 64");
    let first = fetcher.client(&world).unwrap();
    let mut others = Vec::new();
    let refused = loop {
        match fetcher.handshake() {
            Ok(connection) => others.push(connection),
            Err(error) => break error,
        }
    };
    assert_eq!(1 + others.len(), CONNECTIONS_MAX, "{refused}");
    assert!(refused.contains("1024 clients are connected"), "{refused}");
    let error = fetcher.client(&world).unwrap_err().to_string();
    assert!(error.contains("1024 clients are connected"), "{error}");
    is_served(&first);
    others.clear();
    let deadline = Instant::now() + TIMEOUT;
    while fetcher.handshake().is_err() {
        assert!(Instant::now() < deadline, "a connection that ended still counts");
    }
    drop(first);
    fetcher.end();
}

#[test]
fn a_fetcher_without_descriptors_keeps_its_clients_and_refuses_others() {
    let server = Server::start(body(3_000_000));
    let mut world = World::new();
    let fetcher = Limited::start(&world, "-n 48");
    // It uses the fetcher that runs.
    let client = world.client();
    let image = world.open_with(&client, &server.url());
    check(&image, 0, 1000);
    let mut others = Vec::new();
    let refused = loop {
        match fetcher.handshake() {
            Ok(connection) => others.push(connection),
            Err(error) => break error,
        }
        assert!(others.len() < 48);
    };
    assert!(refused.contains("no descriptor is left"), "{refused}");
    for _ in 0..3 {
        let error = fetcher.client(&world).unwrap_err().to_string();
        assert!(error.contains("no descriptor is left"), "{error}");
    }
    // A client that sends settings before its hello is told, too.
    world.settings = [("AWS_ACCESS_KEY_ID", "reader")].into_iter().collect();
    for _ in 0..3 {
        let error = world.try_client().unwrap_err().to_string();
        assert!(error.contains("no descriptor is left"), "{error}");
    }
    is_served(&client);
    check(&image, 2000, 1000);
    others.clear();
    let deadline = Instant::now() + TIMEOUT;
    while fetcher.handshake().is_err() {
        assert!(Instant::now() < deadline, "no descriptor is used again");
    }
    check(&image, 2_000_000, 1_000_000);
    drop((image, client));
    fetcher.end();
}

#[test]
fn a_client_for_which_no_thread_starts_is_refused_and_does_not_count() {
    let world = World::new();
    let fetcher = Limited::start(&world, "-Sn 256");
    let pid = Pid::from_child(&fetcher.child);
    let first = fetcher.client(&world).unwrap();
    let status = std::fs::read_to_string(format!("/proc/{}/status", fetcher.child.id())).unwrap();
    let size = status.lines().find_map(|line| line.strip_prefix("VmSize:")).unwrap();
    let size: u64 = size.trim().trim_end_matches(" kB").parse().unwrap();
    let set = |bytes: Option<u64>| {
        prlimit(Some(pid), Resource::As, Rlimit { current: bytes, maximum: None }).unwrap();
    };
    // Less than the stack of a thread is left.
    set(Some((size << 10) + (1 << 20)));
    let mut others = Vec::new();
    let refused = loop {
        match fetcher.handshake() {
            // On the stack of a thread that has ended.
            Ok(connection) => others.push(connection),
            Err(error) => break error,
        }
        assert!(others.len() < 64);
    };
    assert!(refused.contains("no thread for this client"), "{refused}");
    is_served(&first);
    set(None);
    others.push(fetcher.handshake().unwrap());
    is_served(&first);
    drop((first, others));
    fetcher.end();
}

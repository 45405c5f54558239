//! The limit of the cache: eviction under readers, with fetchers that are killed.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use ferrofs_image::ImageSource;
use ferrofs_remote::FetchClient;
use ferrofs_remote::RemoteSource;
use ferrofs_remote::cache::CacheDirectory;
use ferrofs_remote::protocol::{PruneRequest, RemoteOptions};
use rustix::process::Signal;

use crate::command::{Verb, data, ferrofs};
use crate::server::Server;
use crate::world::{World, body, check};

const MIB: u64 = 1 << 20;
const LIMIT: u64 = 32 * MIB;
const LENGTH: u64 = 72 * MIB + 4321;

fn limited() -> World {
    let mut world = World::new();
    world.cache_limit = Some(LIMIT);
    world
}

/// Bytes on the disk.
fn used(world: &World) -> u64 {
    let cache = CacheDirectory::open(&world.cache()).unwrap();
    cache.list().unwrap().iter().map(|entry| entry.used_bytes).sum()
}

fn open(world: &World, client: &Arc<FetchClient>, url: &str) -> RemoteSource {
    let timeout = Duration::from_secs(3 * u64::from(world.timeout_seconds));
    let options = RemoteOptions::default();
    RemoteSource::open(client, &url.parse().unwrap(), &options, timeout).unwrap()
}

fn kill_fetcher(client: &FetchClient) {
    let Some(connection) = client.connection() else { return };
    let peer = rustix::net::sockopt::socket_peercred(&*connection).unwrap();
    // It may have ended already.
    rustix::process::kill_process(peer.pid, Signal::KILL).ok();
}

/// Reads `rounds` times a mebibyte somewhere, as each of 4 readers, and watches the disk. Returns
/// the most bytes that the cache had on it.
fn read_everywhere(
    world: &World,
    source: &RemoteSource,
    rounds: u64,
    each: impl Fn(u64) + Sync,
) -> u64 {
    let most = AtomicU64::new(0);
    let is_done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let readers: Vec<_> = (0..4u64)
            .map(|reader| {
                let each = &each;
                scope.spawn(move || {
                    let mut at = reader * 7919;
                    for round in 0..rounds {
                        at = at.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1 + reader);
                        check(source, (at >> 20) % LENGTH, 1 << 20);
                        if reader == 0 {
                            each(round);
                        }
                    }
                })
            })
            .collect();
        scope.spawn(|| {
            while !is_done.load(Ordering::SeqCst) {
                most.fetch_max(used(world), Ordering::SeqCst);
                std::thread::yield_now();
            }
        });
        let all = readers.into_iter().map(|reader| reader.join()).collect::<Vec<_>>();
        is_done.store(true, Ordering::SeqCst);
        all.into_iter().for_each(|joined| joined.unwrap());
    });
    most.into_inner()
}

#[test]
fn four_readers_of_more_than_the_cache_holds_read_right_bytes_below_the_limit() {
    let (world, server) = (limited(), Server::start(body(LENGTH)));
    let client = world.client();
    let source = open(&world, &client, &server.url());
    let most = read_everywhere(&world, &source, 60, |_| {});
    assert!((LIMIT / 2..=LIMIT).contains(&most), "{most}");
    let stats = client.stats(Duration::from_secs(20)).unwrap();
    assert!(stats.evicted_bytes > LENGTH, "{stats:?}");
    assert_eq!((stats.cache_limit, stats.cache_bytes <= LIMIT), (LIMIT, true), "{stats:?}");
}

#[test]
fn a_fetcher_that_is_killed_while_it_evicts_leaves_the_cache_bounded_and_right() {
    let (world, server) = (limited(), Server::start(body(LENGTH)));
    let client = world.client();
    let source = open(&world, &client, &server.url());
    let most = read_everywhere(&world, &source, 60, |round| {
        if round % 6 == 5 {
            kill_fetcher(&client);
        }
    });
    // Chunks that a killed fetcher was writing are reclaimed when the object is opened again.
    assert!(most <= LIMIT, "{most}");
    assert!(client.reconnects() > 1);
    let mut last = vec![0; 100];
    source.read_at(LENGTH - 100, &mut last).unwrap();
    assert!(used(&world) <= LIMIT, "{}", used(&world));
}

#[test]
fn the_limit_of_a_client_ends_with_it_and_prune_spares_what_is_open() {
    let (mut world, server) = (World::new(), Server::start(body(40 * MIB)));
    let client = world.client();
    let source = open(&world, &client, &server.url());
    check(&source, 0, 40 << 20);
    assert!(used(&world) > LIMIT);
    world.cache_limit = Some(LIMIT);
    let other = world.client();
    let limit = |client: &FetchClient| client.stats(Duration::from_secs(20)).unwrap().cache_limit;
    assert_eq!(limit(&other), LIMIT);
    assert!(used(&world) <= LIMIT);
    check(&source, 0, 40 << 20);
    drop(other);
    let deadline = std::time::Instant::now() + Duration::from_secs(20);
    while limit(&client) == LIMIT && std::time::Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(1));
    }
    assert!(limit(&client) > LIMIT);
    let prune = |what| client.prune(what, Duration::from_secs(20)).unwrap();
    assert_eq!(prune(PruneRequest::Unused).objects, 0, "it is open");
    check(&source, 0, 40 << 20);
    let report = prune(PruneRequest::DownTo(10 * MIB));
    assert!(report.chunks >= 30 && report.used_bytes <= 10 * MIB, "{report:?}");
    check(&source, 0, 40 << 20);
    drop(source);
    let deadline = std::time::Instant::now() + Duration::from_secs(20);
    while prune(PruneRequest::Unused).objects == 0 && std::time::Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(used(&world), 0);
}

#[test]
fn the_command_lists_verifies_and_prunes() {
    let Some(program) = ferrofs() else { return };
    let world = World::new();
    let verb = Verb { program: &program, world: &world };
    let server = Server::start(std::fs::read(data("lz4.erofs")).unwrap());
    let url = server.url();
    verb.good(&["check", &url]);
    let listed = String::from_utf8(verb.good(&["cache", "list"])).unwrap();
    assert!(listed.contains(&url), "{listed}");
    let line = verb.good(&["cache", "list", "--json"]);
    let entry: serde_json::Value = serde_json::from_slice(&line).unwrap();
    assert_eq!(entry["name"], url);
    assert!(entry["disk_bytes"].as_u64().unwrap() > 0);
    verb.good(&["cache", "verify"]);
    let folder = world.cache().join("v1").join(entry["key"].as_str().unwrap());
    let damage = |file: &str, at: usize| {
        let mut bytes = std::fs::read(folder.join(file)).unwrap();
        bytes[at] ^= 1;
        std::fs::write(folder.join(file), bytes).unwrap();
    };
    damage("data", 1000);
    let text = verb.bad(&["cache", "verify"], 1);
    assert!(text.contains("1 damaged chunk was removed") && text.contains(&url), "{text}");
    verb.good(&["cache", "verify"]);
    verb.good(&["check", &url]);
    damage("index", 20);
    // The fetcher may still have it open, and then nothing of it is removed.
    verb.bad(&["cache", "verify"], 1);
    verb.good(&["check", &url]);
    verb.good(&["cache", "prune", "--older-than", "1d"]);
    assert_eq!(CacheDirectory::open(&world.cache()).unwrap().list().unwrap().len(), 1);
    verb.good(&["cache", "prune", "--to", "0"]);
    verb.good(&["cache", "prune", "--json"]);
    assert_eq!(verb.good(&["cache", "list", "-q"]), b"");
    verb.bad(&["cache", "list", "--to", "1m"], 2);
}

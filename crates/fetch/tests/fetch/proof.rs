//! Many mounts, failing servers and killed fetchers, with figures (docs/remote.md, "Proofs").

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use ferrofs_remote::{ChunkIndex, ContentDigest};

use crate::mount::mount;
use crate::registry::Registry;
use crate::server::{Fault, Server};
use crate::tree::{Tree, figure, random};
use crate::world::World;

const MIB: u64 = 1 << 20;

/// Prints a figure; cargo shows it with `--nocapture`.
pub(crate) fn report(text: &str) {
    eprintln!("figure: {text}");
}

/// Thousandths.
fn ratio(one: u64, other: u64) -> u64 {
    one * 1000 / other
}

/// The fetchers of this world, by what the system says of them.
pub(crate) fn fetchers(world: &World) -> Vec<rustix::process::Pid> {
    let cache = world.cache();
    let cache = cache.to_str().unwrap().as_bytes();
    let numbers = std::fs::read_dir("/proc").unwrap().filter_map(|entry| {
        entry.unwrap().file_name().to_str().and_then(|name| name.parse::<i32>().ok())
    });
    numbers
        .filter(|number| {
            let words = std::fs::read(format!("/proc/{number}/cmdline")).unwrap_or_default();
            let mut words = words.split(|byte| *byte == 0);
            let program = words.next().unwrap_or_default();
            program.ends_with(b"ferrofs-fetch") && words.any(|word| word == cache)
        })
        .filter_map(rustix::process::Pid::from_raw)
        .collect()
}

/// Mounts the image eight times at once and reads all of each. False where nobody can mount.
fn mount_eight(world: &World, tree: &Tree, location: &str, arguments: &[&str]) -> bool {
    let Some(probe) = mount(world, tree.image.to_str().unwrap(), &[]) else { return false };
    drop(probe);
    thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                let mounted = mount(world, location, arguments).unwrap();
                tree.compare(mounted.path(), 1);
            });
        }
    });
    true
}

#[test]
fn eight_mounts_at_once_fetch_one_image() {
    let Some(tree) = Tree::new(figure("FERROFS_PROOF_MIB", 24) * MIB) else { return };
    let image = tree.image();
    let length = image.len() as u64;
    let (world, server) = (World::new(), Server::start(image));
    *server.0.delay.lock().unwrap() = Duration::from_millis(50);
    if !mount_eight(&world, &tree, &server.url(), &[]) {
        return;
    }
    let sent = server.0.sent.load(Ordering::SeqCst);
    report(&format!("8 mounts: {} thousandths of {length} bytes", ratio(sent, length)));
    assert!(sent >= length && ratio(sent, length) <= 1050, "{sent} of {length}");
}

#[test]
fn eight_mounts_at_once_request_one_token() {
    let Some(tree) = Tree::new(figure("FERROFS_PROOF_MIB", 12) * MIB) else { return };
    let image = tree.image();
    let length = image.len() as u64;
    // All of them get the chunk index from one file.
    let digests = image.chunks(1 << 20).map(ContentDigest::of).collect();
    let index = ChunkIndex::uniform(length, 1 << 20, digests).unwrap();
    let (world, registry) = (World::new(), Registry::start_indexed(image, &index));
    let insecure = format!("insecure_registry={}", registry.host());
    if !mount_eight(&world, &tree, &registry.location(), &["-o", &insecure]) {
        return;
    }
    let sent = registry.0.sent.load(Ordering::SeqCst);
    report(&format!(
        "8 mounts oci: {} thousandths, {} tokens",
        ratio(sent, length),
        registry.tokens()
    ));
    assert_eq!(registry.tokens(), 1);
    assert!(sent >= length && ratio(sent, length) <= 1050, "{sent} of {length}");
}

/// Reads all of a mount of a server with this fault; the time, the retries are the server's.
fn timed(tree: &Tree, server: &Server) -> Option<Duration> {
    let world = World::new();
    let mounted = mount(&world, &server.url(), &[])?;
    let started_at = Instant::now();
    tree.compare(mounted.path(), 4);
    Some(started_at.elapsed())
}

/// 5 % of the requests are cut or reset, 5 % answered with status 503.
fn one_in_ten(number: u64) -> Fault {
    match number.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32 {
        hash if hash % 100 < 5 => {
            if hash % 2 == 0 {
                Fault::Cut
            } else {
                Fault::Reset
            }
        }
        hash if hash % 100 < 10 => Fault::Status(503),
        _ => Fault::None,
    }
}

#[test]
fn a_mount_of_a_server_that_fails_one_in_ten_times_has_no_error() {
    let Some(tree) = Tree::new(figure("FERROFS_PROOF_MIB", 48) * MIB) else { return };
    let image = tree.image();
    let rounds = figure("FERROFS_PROOF_ROUNDS", 1);
    for round in 0..rounds {
        let server = |fault| {
            let server = Server::start(image.clone());
            *server.0.delay.lock().unwrap() = Duration::from_millis(50);
            server.0.bandwidth.store(125_000_000, Ordering::SeqCst);
            server.set_fault(fault);
            server
        };
        let (clean, failing) = (server(|_| Fault::None), server(one_in_ten));
        let Some(clean_time) = timed(&tree, &clean) else { return };
        let failing_time = timed(&tree, &failing).unwrap();
        // Requests differ from run to run, since readers share them.
        let faults = (0..failing.requests()).filter(|n| one_in_ten(*n) != Fault::None).count();
        report(&format!(
            "round {round}: {clean_time:?} clean with {} requests, {failing_time:?} with {}, {faults} failed",
            clean.requests(),
            failing.requests()
        ));
        assert!(faults > 0, "some of {} requests fail", failing.requests());
        // Other tests run beside this one.
        let slack = Duration::from_secs(1);
        assert!(failing_time <= clean_time * 2 + slack, "{failing_time:?}, {clean_time:?}");
    }
}

#[test]
fn fetchers_that_are_killed_under_readers_cost_what_was_in_flight() {
    let kills = figure("FERROFS_PROOF_KILLS", 12);
    let Some(tree) = Tree::new(figure("FERROFS_PROOF_MIB", 32) * MIB) else { return };
    let image = tree.image();
    let length = image.len() as u64;
    let (world, server) = (World::new(), Server::start(image));
    // So slow that all kills happen while something is in flight.
    server.0.bandwidth.store(length * 1000 / (kills * 150), Ordering::SeqCst);
    let Some(mounted) = mount(&world, &server.url(), &[]) else { return };
    let is_done = AtomicBool::new(false);
    let mut killed = 0;
    thread::scope(|scope| {
        let reading = scope.spawn(|| {
            tree.compare(mounted.path(), 4);
            is_done.store(true, Ordering::SeqCst);
        });
        let mut pauses = random(kills);
        while !is_done.load(Ordering::SeqCst) && !reading.is_finished() && killed < kills {
            thread::sleep(Duration::from_millis(20 + pauses.next().unwrap() % 130));
            for fetcher in fetchers(&world) {
                // It may have ended already.
                killed += u64::from(
                    rustix::process::kill_process(fetcher, rustix::process::Signal::KILL).is_ok(),
                );
            }
        }
    });
    // All of it again, from the cache.
    tree.compare(mounted.path(), 4);
    let sent = server.0.sent.load(Ordering::SeqCst);
    let again = sent.saturating_sub(length) / killed.max(1);
    report(&format!("{killed} kills: {sent} bytes sent of {length}, {again} again for each kill"));
    assert!(killed >= kills / 2, "{killed} kills");
    // A chunk of each of 16 requests at most.
    assert!(again <= 16 * MIB, "{again}");
}

//! The memory of the fetcher, which serves all images of a user.

use std::thread;
use std::time::Duration;

use crate::proof::{fetchers, report};
use crate::server::Server;
use crate::world::{World, body, check};

/// The most that the fetcher had in memory, in kB.
fn peak(world: &World) -> u64 {
    let pid = fetchers(world)[0].as_raw_nonzero();
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}

#[test]
fn many_objects_and_readers_take_less_than_64_mb() {
    const LENGTH: u64 = 12 << 20;
    let (world, server) = (World::new(), Server::start(body(LENGTH)));
    *server.0.delay.lock().unwrap() = Duration::from_millis(20);
    let client = world.client();
    let open = |number: u64| world.open_with(&client, &format!("{}?{number}", server.url()));
    let objects: Vec<_> = (0..48).map(open).collect();
    thread::scope(|scope| {
        for objects in objects.chunks(12) {
            scope.spawn(move || {
                // Each object is read ahead while the next one is read.
                for block in 0..LENGTH >> 17 {
                    for object in objects {
                        check(object, block << 17, 1 << 17);
                    }
                }
            });
        }
    });
    let peak = peak(&world);
    report(&format!("fetcher with 48 objects and 4 readers: {peak} kB at most"));
    assert!(peak < 64_000, "{peak} kB");
}

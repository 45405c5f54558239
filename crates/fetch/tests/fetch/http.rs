//! Objects of a web server.

use std::io::{ErrorKind, Read, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use ferrofs_image::ImageSource;
use ferrofs_remote::RemoteSource;
use ferrofs_remote::protocol::RemoteOptions;

use crate::damaged_cache::kill_fetcher;
use crate::proof::report;
use crate::server::{Fault, FaultOf, Server};
use crate::tree::figure;
use crate::wire::{Answer, Wire, WireRequest};
use crate::world::{World, body, check};

const LENGTH: u64 = (9 << 20) + 1234;
const END: usize = 10 << 20;

#[test]
fn the_first_chunk_comes_with_the_length_and_each_chunk_once() {
    let (world, server) = (World::new(), Server::start(body(LENGTH)));
    let source = world.open(&server.url());
    check(&source, 0, 5000);
    assert_eq!((server.requests(), source.length()), (1, LENGTH));
    thread::scope(|scope| {
        for reader in 0..4u64 {
            let source = &source;
            scope.spawn(move || check(source, reader * 1000, END));
        }
    });
    let sent = server.0.sent.load(Ordering::SeqCst);
    assert_eq!(sent, LENGTH, "no byte twice");
    let requests = server.requests();
    // Another process of the user; the object is opened by one request.
    let other = world.open(&server.url());
    check(&other, 0, END);
    assert_eq!(server.requests(), requests + 1);
}

/// Such a server was asked for ever, by requests that took the turns of all others.
#[test]
fn a_beginning_that_comes_again_and_again_is_no_progress() {
    let mut world = World::new();
    world.timeout_seconds = 2;
    let server = Server::start(body(LENGTH));
    let source = world.open(&server.url());
    server.set_fault(|_| Fault::WholeCut);
    let error = source.read_at(5 << 20, &mut [0; 10]).unwrap_err();
    assert!(error.to_string().contains("end of file before"), "{error}");
    // The last request gives up no later than its reader.
    thread::sleep(Duration::from_secs(2));
    let requests = server.requests();
    thread::sleep(Duration::from_secs(2));
    assert_eq!(server.requests(), requests);
    server.set_fault(|_| Fault::None);
    check(&source, 5 << 20, 1000);
}

#[test]
fn eight_prefetches_are_in_flight_and_a_reader_waits_for_none() {
    let (world, server) = (World::new(), Server::start(vec![0; 100 << 20]));
    let source = world.open(&server.url());
    *server.0.delay.lock().unwrap() = Duration::from_secs(2);
    source.will_need(1 << 20, 90 << 20);
    thread::sleep(Duration::from_secs(1));
    // The first one has opened the object.
    assert_eq!(server.requests(), 1 + 8);
    let started_at = Instant::now();
    source.read_at(99 << 20, &mut [0; 10]).unwrap();
    let elapsed = started_at.elapsed();
    assert!(elapsed < Duration::from_millis(3500), "{elapsed:?}");
}

#[test]
fn without_a_connection_the_cache_is_served() {
    let (world, server) = (World::new(), Server::start(body(LENGTH)));
    let mut offline = RemoteOptions::default();
    offline.offline = true;
    let error = world.try_open(&server.url(), &offline).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NetworkDown);
    check(&world.open(&server.url()), 0, END);
    let requests = server.requests();
    check(&world.try_open(&server.url(), &offline).unwrap(), 0, END);
    assert_eq!(server.requests(), requests);
}

/// Reads of what was not cached used to contact the server.
#[test]
fn offline_asks_no_server_for_what_is_not_cached() {
    let (world, server) = (World::new(), Server::start(body(LENGTH)));
    check(&world.open(&server.url()), 0, 5000);
    let requests = server.requests();
    let mut options = RemoteOptions::default();
    options.offline = true;
    let source = world.try_open(&server.url(), &options).unwrap();
    check(&source, 0, 5000);
    let error = source.read_at(LENGTH - 100, &mut [0; 100]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NetworkDown);
    assert!(error.to_string().contains("--offline forbids"), "{error}");
    let registry = world.try_open("oci://127.0.0.1:1/a/b:c", &options).unwrap_err();
    assert_eq!(registry.kind(), ErrorKind::NetworkDown);
    assert_eq!(server.requests(), requests);
}

#[test]
fn failures_that_pass_are_repeated() {
    let (world, server) = (World::new(), Server::start(body(LENGTH)));
    server.set_fault(|number| match number % 8 {
        1 => Fault::Status(503),
        3 => Fault::Reset,
        4 => Fault::Cut,
        6 => Fault::Status(429),
        _ => Fault::None,
    });
    check(&world.open(&server.url()), 0, END);
}

#[test]
fn answers_that_break_the_protocol_are_errors_and_no_bytes() {
    use ErrorKind::{InvalidData, NotFound, PermissionDenied, StaleNetworkFileHandle};
    // The first answer, which opens the object, is right.
    const LATER: [(FaultOf, ErrorKind); 6] = [
        (|number| Fault::WrongRange.from(1, number), InvalidData),
        (|number| Fault::Encoded.from(1, number), InvalidData),
        (|number| Fault::WrongLength.from(1, number), StaleNetworkFileHandle),
        (|number| Fault::WrongTag.from(1, number), StaleNetworkFileHandle),
        (|number| Fault::Status(404).from(1, number), NotFound),
        (|number| Fault::Status(403).from(1, number), PermissionDenied),
    ];
    for (fault, kind) in LATER {
        let (world, server) = (World::new(), Server::start(body(LENGTH)));
        server.set_fault(fault);
        let source = world.open(&server.url());
        check(&source, 0, 1 << 20);
        let error = source.read_at(3 << 20, &mut [0; 10]).unwrap_err();
        assert_eq!(error.kind(), kind, "{error}");
        assert!(error.to_string().contains("image.erofs"), "{error}");
        check(&source, 100, 1000);
    }
}

#[test]
fn a_server_without_ranges_sends_the_object_once() {
    let (world, server) = (World::new(), Server::start(body(LENGTH)));
    server.set_fault(|_| Fault::Whole);
    let source = world.open(&server.url());
    check(&source, 5 << 20, 100);
    check(&source, 0, END);
    assert_eq!(server.requests(), 1);
}

#[test]
fn a_server_that_fails_for_long_is_an_error_in_time() {
    let (mut world, server) = (World::new(), Server::start(body(LENGTH)));
    world.timeout_seconds = 1;
    let source = world.open(&server.url());
    check(&source, 0, 10);
    server.set_fault(|_| Fault::Status(500));
    let started_at = Instant::now();
    let error = source.read_at(5 << 20, &mut [0]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::HostUnreachable, "{error}");
    assert!(started_at.elapsed() < Duration::from_secs(15));
    server.set_fault(|_| Fault::None);
    check(&source, 5 << 20, 10);
}

#[test]
fn readers_that_wait_are_served_at_the_same_time() {
    let (world, server) = (World::new(), Server::start(body(LENGTH)));
    let source = world.open(&server.url());
    check(&source, 0, 10);
    *server.0.delay.lock().unwrap() = Duration::from_millis(300);
    let started_at = Instant::now();
    thread::scope(|scope| {
        for reader in 1..9u64 {
            let source = &source;
            scope.spawn(move || check(source, reader << 20, 1000));
        }
    });
    assert!(started_at.elapsed() < Duration::from_millis(1500), "{:?}", started_at.elapsed());
}

/// 256 MiB take at most 80 requests, at the bandwidth of the line.
#[test]
fn a_sequential_reader_makes_few_requests_and_keeps_the_line_busy() {
    let mib = figure("FERROFS_PROOF_MIB", 48);
    let (world, server) = (World::new(), Server::start(body(mib << 20)));
    *server.0.delay.lock().unwrap() = Duration::from_millis(50);
    server.0.bandwidth.store(25_000_000, Ordering::SeqCst);
    let source = world.open(&server.url());
    let started_at = Instant::now();
    for block in 0..mib << 3 {
        check(&source, block << 17, 1 << 17);
    }
    let (seconds, requests) = (started_at.elapsed().as_secs_f64(), server.requests());
    let sent = server.0.sent.load(Ordering::SeqCst);
    report(&format!("cat of {mib} MiB: {requests} requests, {sent} bytes, {seconds:.2} s"));
    assert_eq!(sent, mib << 20, "no byte twice");
    assert!(requests <= 16 + mib / 4, "{requests}: {:?}", server.0.ranges.lock().unwrap());
    assert!(requests >= mib / 32);
    // The slow line is the bound, and not the round trips, of which there are more than a second's.
    let bound = sent as f64 / 25e6;
    assert!(seconds < bound / 0.75 + 0.5, "{seconds} s, and the line takes {bound} s");
}

/// What is fetched and not read is at most twice what was read; random reads fetch one chunk each.
#[test]
fn short_and_random_readers_fetch_little_that_they_do_not_read() {
    let length = 96u64 << 20;
    let (world, server) = (World::new(), Server::start(body(length)));
    let source = world.open(&server.url());
    for block in 0..5u64 << 3 {
        check(&source, block << 17, 1 << 17);
    }
    // What is in flight comes, too.
    thread::sleep(Duration::from_secs(1));
    let sent = server.0.sent.load(Ordering::SeqCst);
    assert!((5 << 20..=16 << 20).contains(&sent), "{sent}");
    for step in 0..20u64 {
        check(&source, (40 + (step * 7) % 20 * 2) << 20, 4096);
    }
    thread::sleep(Duration::from_millis(300));
    assert_eq!(server.0.sent.load(Ordering::SeqCst), sent + (20 << 20));
}

/// How long a client waits for failures that come at once: long, since the machine may be busy, and less than the
/// fetcher, which has its 20 s.
const SHORT_WAIT: Duration = Duration::from_secs(12);

/// The error of a read that waits for less than the fetcher, from a server whose answers after the first one are these.
fn error_of_a_short_wait(
    answer: impl Fn(&WireRequest, Answer) -> Answer + Send + Sync + 'static,
) -> String {
    let object = body(4 << 20);
    let wire = Wire::start(move |request| match request.number {
        0 => Answer::part(request, &object),
        _ => answer(request, Answer::part(request, &object)),
    });
    let world = World::new();
    let location = format!("http://{}/image.erofs", wire.host).parse().unwrap();
    let options = RemoteOptions::default();
    let source = RemoteSource::open(&world.client(), &location, &options, SHORT_WAIT).unwrap();
    let error = source.read_at(3 << 20, &mut [0; 100]).unwrap_err().to_string();
    assert!(error.contains(&location.to_string()), "{error}");
    error
}

#[test]
fn a_reader_that_waits_for_less_than_the_fetcher_hears_the_last_failure() {
    thread::scope(|scope| {
        scope.spawn(|| {
            let error = error_of_a_short_wait(|_, _| Answer::new("502 Bad Gateway", &[], b""));
            let wanted = "the server answered 502 Bad Gateway; no success within 12 s";
            assert!(error.contains(wanted), "{error}");
        });
        scope.spawn(|| {
            let error = error_of_a_short_wait(|_, answer| Answer { truncate_at: 1, ..answer });
            assert!(error.contains("; no success within 12 s"), "{error}");
        });
        scope.spawn(|| {
            let pause = Duration::from_secs(3600);
            let error = error_of_a_short_wait(move |_, answer| Answer { pause, ..answer });
            assert!(error.contains("the server did not answer within 12 s"), "{error}");
        });
    });
}

/// A pause that was as long as the time of the fetcher ended its repetitions, and clients began them anew 20 times a
/// second. An opening failed at once.
#[test]
fn a_server_that_asks_for_a_long_pause_gets_few_requests() {
    let object = body(4 << 20);
    let opening = Arc::new(AtomicBool::new(true));
    let is_open = Arc::clone(&opening);
    let wire =
        Wire::start(move |request| match is_open.load(Ordering::SeqCst) && request.number > 0 {
            true => Answer::part(request, &object),
            false => Answer::new("429 Too Many Requests", &[("retry-after", "120")], b""),
        });
    let world = World { timeout_seconds: 60, ..World::new() };
    let location = format!("http://{}/image.erofs", wire.host).parse().unwrap();
    let (options, limit) = (RemoteOptions::default(), Duration::from_secs(3));
    // There is an attempt shortly before the time is over.
    let client = world.client();
    let source = RemoteSource::open(&client, &location, &options, 2 * limit).unwrap();
    assert_eq!(wire.requests(), 2);
    opening.store(false, Ordering::SeqCst);
    let wanted = "the server answered 429 Too Many Requests and asked for a pause of 120 s";
    drop(source);
    let started_at = Instant::now();
    let error = RemoteSource::open(&client, &location, &options, limit).unwrap_err().to_string();
    assert!(error.contains(&format!("{wanted}; no success within 3 s")), "{error}");
    assert!(started_at.elapsed() >= limit, "{:?}", started_at.elapsed());
    assert!(wire.requests() <= 5, "{}", wire.requests());
    opening.store(true, Ordering::SeqCst);
    let source = RemoteSource::open(&client, &location, &options, limit).unwrap();
    opening.store(false, Ordering::SeqCst);
    let before = wire.requests();
    let error = source.read_at(3 << 20, &mut [0; 100]).unwrap_err().to_string();
    assert!(error.contains(wanted), "{error}");
    let requests = wire.requests() - before;
    assert!((1..=4).contains(&requests), "{requests}");
}

/// After the end of a fetcher, whatever the server said was asked 20 times a second until the time limit.
#[test]
fn what_a_server_refuses_after_the_end_of_a_fetcher_is_an_error_at_once() {
    let (world, server) = (World::new(), Server::start(body(LENGTH)));
    let client = world.client();
    let source = world.open_with(&client, &server.url());
    check(&source, 0, 100);
    for (fault, kind) in [
        ((|_| Fault::Status(404)) as FaultOf, ErrorKind::NotFound),
        (|_| Fault::Status(403), ErrorKind::PermissionDenied),
    ] {
        server.set_fault(fault);
        let before = server.requests();
        kill_fetcher(&client);
        for _ in 0..3 {
            let started_at = Instant::now();
            let error = source.read_at(5 << 20, &mut [0]).unwrap_err();
            assert_eq!(error.kind(), kind, "{error}");
            assert!(started_at.elapsed() < Duration::from_secs(15), "{:?}", started_at.elapsed());
        }
        let requests = server.requests() - before;
        assert!(requests < 12, "{requests}");
    }
    // What is cached is served, and all of it when the server has it again.
    check(&source, 100, 100);
    server.set_fault(|_| Fault::None);
    check(&source, 0, END);
}

#[test]
fn a_server_that_refuses_connections_is_named_with_the_reason() {
    let host = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let world = World::new();
    let location = format!("http://{host}/image.erofs").parse().unwrap();
    let started_at = Instant::now();
    let opened =
        RemoteSource::open(&world.client(), &location, &RemoteOptions::default(), SHORT_WAIT);
    let error = opened.unwrap_err().to_string();
    assert!(error.starts_with(&location.to_string()), "{error}");
    assert!(error.contains("Connection refused"), "{error}");
    // Whoever mistypes a host is told before the time is over.
    assert!(started_at.elapsed() < SHORT_WAIT / 2, "{:?}", started_at.elapsed());
}

#[test]
fn a_server_without_tls_is_named_with_the_remedy() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let host = listener.local_addr().unwrap();
    // As web servers answer what is no HTTP.
    let serving = thread::Builder::new().spawn(move || {
        for mut stream in listener.incoming().flatten() {
            stream.read(&mut [0; 4096]).unwrap_or_default();
            stream.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n").unwrap_or_default();
        }
    });
    serving.unwrap();
    let world = World::new();
    let location = format!("https://{host}/image.erofs").parse().unwrap();
    let opened =
        RemoteSource::open(&world.client(), &location, &RemoteOptions::default(), SHORT_WAIT);
    let error = opened.unwrap_err().to_string();
    assert!(error.contains("speaks no TLS") && error.contains("--insecure-registry"), "{error}");
}

/// The time of the fetcher counted, whatever the client said.
#[test]
fn a_client_that_waits_for_longer_than_the_fetcher_opens_what_comes_back_later() {
    let object = body(5000);
    let started_at = Instant::now();
    let wire = Wire::start(move |request| match started_at.elapsed() < Duration::from_secs(4) {
        true => Answer::new("503 Service Unavailable", &[], b""),
        false => Answer::part(request, &object),
    });
    let world = World { timeout_seconds: 1, ..World::new() };
    let location = format!("http://{}/image.erofs", wire.host).parse().unwrap();
    let limit = Duration::from_secs(40);
    let options = RemoteOptions::default();
    let source = RemoteSource::open(&world.client(), &location, &options, limit).unwrap();
    check(&source, 0, 5000);
}

/// It waited for all of the object, within one time limit, and of a cache that is too small for ever.
#[test]
fn a_reader_of_a_server_without_ranges_waits_for_its_own_chunk() {
    let length = 48u64 << 20;
    let server = Server::start(body(length));
    server.set_fault(|_| Fault::Whole);
    server.0.bandwidth.store(8_000_000, Ordering::SeqCst);
    let world = World { cache_limit: Some(32 << 20), ..World::new() };
    let location = server.url().parse().unwrap();
    let limit = Duration::from_secs(3);
    let options = RemoteOptions::default();
    let source = RemoteSource::open(&world.client(), &location, &options, limit).unwrap();
    let started_at = Instant::now();
    check(&source, 0, 1 << 20);
    assert!(started_at.elapsed() < Duration::from_secs(3), "{:?}", started_at.elapsed());
    // That takes longer than the limit.
    check(&source, 40 << 20, 1 << 20);
    assert!(started_at.elapsed() > Duration::from_secs(4), "{:?}", started_at.elapsed());
    server.0.bandwidth.store(0, Ordering::SeqCst);
    for chunk in 0..48 {
        check(&source, chunk << 20, 1 << 20);
    }
    let sent = server.0.sent.load(Ordering::SeqCst);
    assert!(sent < 20 * length, "{sent}");
}

/// One of them received all of the object, while the others waited for it without any progress.
#[test]
fn readers_of_a_server_that_stops_to_send_ranges_share_one_transfer() {
    let length = 48u64 << 20;
    let (world, server) = (World::new(), Server::start(body(length)));
    let limit = Duration::from_secs(3);
    let (location, options) = (server.url().parse().unwrap(), RemoteOptions::default());
    let source = RemoteSource::open(&world.client(), &location, &options, limit).unwrap();
    check(&source, 0, 10);
    server.set_fault(|_| Fault::Whole);
    server.0.bandwidth.store(8_000_000, Ordering::SeqCst);
    let started_at = Instant::now();
    thread::scope(|scope| {
        for chunk in [11, 20, 30, 40, 47] {
            let source = &source;
            scope.spawn(move || check(source, chunk << 20, 1 << 20));
        }
    });
    // That takes longer than the limit.
    assert!(started_at.elapsed() > Duration::from_secs(4), "{:?}", started_at.elapsed());
    check(&source, 0, 48 << 20);
    // Answers that were dropped have filled the buffers of their connections.
    let sent = server.0.sent.load(Ordering::SeqCst);
    assert!(sent < 2 * length, "{sent}");
}

/// All of the last chunks was asked for, and came as all of the object, which looked as if it fitted.
#[test]
fn a_whole_object_that_ends_where_the_range_ends_is_received_once() {
    let (world, server) = (World::new(), Server::start(body(LENGTH)));
    let source = world.open(&server.url());
    check(&source, 0, 10);
    server.set_fault(|_| Fault::Whole);
    check(&source, LENGTH - 100, 100);
    check(&source, 0, END);
    assert_eq!(server.requests(), 2);
}

/// It went on to its end, and evicted what other clients had open.
#[test]
fn a_transfer_ends_with_its_last_client() {
    let length = 64u64 << 20;
    let (world, server) = (World::new(), Server::start(body(length)));
    server.set_fault(|_| Fault::Whole);
    server.0.bandwidth.store(8_000_000, Ordering::SeqCst);
    let (client, other) = (world.client(), world.client());
    let source = world.open_with(&client, &server.url());
    check(&source, 0, 1 << 20);
    let also = world.open_with(&other, &server.url());
    drop((source, client));
    // Another client has it open.
    check(&also, 6 << 20, 1 << 20);
    drop((also, other));
    let started_at = Instant::now();
    let sent = || server.0.sent.load(Ordering::SeqCst);
    let mut before = 0;
    while before < sent() {
        before = sent();
        thread::sleep(Duration::from_millis(500));
        assert!(started_at.elapsed() < Duration::from_secs(6), "{before} bytes, and more come");
    }
    assert!(before < length, "{before}");
    server.0.bandwidth.store(0, Ordering::SeqCst);
    check(&world.open(&server.url()), 0, 64 << 20);
}

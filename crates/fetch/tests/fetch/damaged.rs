//! Answers of web servers that are wrong in every way that HTTP has: no wrong byte, no hang, and an
//! error with a name, or right bytes after a repetition.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, LazyLock, Mutex};
use std::time::{Duration, Instant};

use ferrofs_image::ImageSource;
use ferrofs_remote::protocol::RemoteOptions;
use ferrofs_remote::{ChunkIndex, ContentDigest, RemoteSource};

use crate::command::{Verb, ferrofs};
use crate::wire::{Answer, Wire, WireRequest};
use crate::world::{World, body, check, object_bytes};

const MIB: usize = 1 << 20;
const LENGTH: u64 = (9 << 20) + 1234;
/// No read may take longer.
const TIME_MAX: Duration = Duration::from_secs(30);

/// A change of the right answer.
type Change = fn(&WireRequest, &mut Answer);

/// What must come of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReadOutcome {
    /// Right bytes.
    Right,
    /// An error with one of these words.
    Error(&'static str),
    /// Right bytes or an error, as the threads meet.
    Either(&'static str),
    /// A test of its own.
    Skipped,
}

use ReadOutcome::{Either, Error, Right, Skipped};

/// Wrong in the frame: noticed without any digest. With the word of the error when a later request
/// is answered so, and what becomes of an opening.
const FRAMES: &[(&str, ReadOutcome, ReadOutcome, Change)] = &[
    ("right", Right, Right, |_, _| {}),
    ("body cut", Error("body"), Error("body"), |_, answer| {
        answer.truncate_at = answer.body.len() / 2;
    }),
    ("body cut at a chunk", Either("body"), Either("body"), |_, answer| answer.truncate_at = MIB),
    ("no body", Error("body"), Error("body"), |_, answer| answer.truncate_at = 0),
    ("a body that ends early", Error("ended before"), Error("ended before"), |_, answer| {
        let half = answer.body.len() / 2;
        answer.body.truncate(half);
        answer.set("content-length", &half.to_string());
    }),
    ("a longer body", Error("longer than its"), Error("longer than its"), |_, answer| {
        answer.body.extend([7; 100]);
        answer.set("content-length", &answer.body.len().to_string());
    }),
    ("bytes behind the body", Right, Right, |_, answer| answer.body.extend([7; 100])),
    ("range moved by one", Error("were requested"), Error("were requested"), |request, answer| {
        let (start, end) = request.range.unwrap();
        answer.set("content-range", &format!("bytes {}-{end}/{LENGTH}", start + 1));
    }),
    ("range from 0", Error("were requested"), Error("were requested"), |_, answer| {
        let end = answer.body.len() - 1;
        answer.set("content-range", &format!("bytes 0-{end}/{LENGTH}"));
    }),
    (
        "range longer than asked",
        Error("were requested"),
        Error("were requested"),
        |request, answer| {
            let start = request.range.unwrap().0;
            answer.set("content-range", &format!("bytes {start}-{}/{LENGTH}", LENGTH - 1));
        },
    ),
    ("range reversed", Error("were requested"), Error("were requested"), |_, answer| {
        answer.set("content-range", &format!("bytes 9-0/{LENGTH}"));
    }),
    (
        "range without length",
        Error("were requested"),
        Error("were requested"),
        |request, answer| {
            let (start, end) = request.range.unwrap();
            answer.set("content-range", &format!("bytes {start}-{}/*", end - 1));
        },
    ),
    ("range that overflows", Error("were requested"), Error("were requested"), |_, answer| {
        answer.set("content-range", "bytes 0-18446744073709551615/18446744073709551615");
    }),
    ("range of text", Error("were requested"), Error("were requested"), |_, answer| {
        answer.set("content-range", "bytes all of it");
    }),
    ("range of another unit", Error("were requested"), Error("were requested"), |_, answer| {
        answer.set("content-range", &format!("chunks 0-1/{LENGTH}"));
    }),
    ("no range", Error("were requested"), Error("were requested"), |_, answer| {
        answer.remove("content-range");
    }),
    ("multipart", Error("were requested"), Error("were requested"), |_, answer| {
        answer.remove("content-range");
        answer.set("content-type", "multipart/byteranges; boundary=x");
    }),
    ("encoded", Error("encodes"), Error("encodes"), |_, answer| {
        answer.set("content-encoding", "gzip");
    }),
    ("encoded twice", Error("encodes"), Error("encodes"), |_, answer| {
        answer.set("content-encoding", "identity, br");
    }),
    ("another length", Error("has changed"), Error("416"), |request, answer| {
        let (start, end) = request.range.unwrap();
        let end = end.min(LENGTH.try_into().unwrap());
        answer.set("content-range", &format!("bytes {start}-{}/{}", end - 1, LENGTH + 1));
    }),
    ("another tag", Error("has changed"), Right, |_, answer| answer.set("etag", "\"two\"")),
    ("a weak tag", Error("has changed"), Right, |_, answer| answer.set("etag", "W/\"one\"")),
    ("no tag", Error("has changed"), Right, |_, answer| answer.remove("etag")),
    ("a time instead of a tag", Error("has changed"), Right, |_, answer| {
        answer.remove("etag");
        answer.set("last-modified", "Tue, 01 Jan 2030 00:00:00 GMT");
    }),
    ("a page of HTML with 200", Error("has changed"), Skipped, |_, answer| {
        *answer = Answer::new("200 OK", &[("content-type", "text/html")], b"<html>Log in</html>");
    }),
    (
        "a page without length",
        Error("does not say how long"),
        Error("does not say how long"),
        |_, answer| {
            *answer = Answer::new("200 OK", &[("connection", "close")], b"<html>Log in</html>");
            answer.remove("content-length");
            answer.set("transfer-encoding", "chunked");
            answer.body = b"5\r\n<html\r\n0\r\n\r\n".to_vec();
        },
    ),
    ("204", Error("204"), Error("204"), |_, answer| {
        *answer = Answer::new("204 No Content", &[], b"");
    }),
    ("304", Error("304"), Error("304"), |_, answer| {
        *answer = Answer::new("304 Not Modified", &[], b"");
    }),
    ("400", Error("400"), Error("400"), |_, answer| {
        *answer = Answer::new("400 Bad Request", &[], b"");
    }),
    ("403", Error("403"), Error("403"), |_, answer| {
        *answer = Answer::new("403 Forbidden", &[], b"");
    }),
    ("404", Error("404"), Error("404"), |_, answer| {
        *answer = Answer::new("404 Not Found", &[], b"");
    }),
    ("410", Error("410"), Error("410"), |_, answer| *answer = Answer::new("410 Gone", &[], b"")),
    ("416", Error("416"), Error("416"), |_, answer| *answer = Answer::new("416 No", &[], b"")),
    ("429", Error("429"), Error("429"), |_, answer| *answer = Answer::new("429 Slow", &[], b"")),
    ("429 for long", Error("429"), Error("429"), |_, answer| {
        *answer = Answer::new("429 Slow", &[("retry-after", "99999999999999999999")], b"");
    }),
    ("500", Error("500"), Error("500"), |_, answer| *answer = Answer::new("500 Error", &[], b"")),
    ("501", Error("501"), Error("501"), |_, answer| *answer = Answer::new("501 No", &[], b"")),
    ("503 with a negative pause", Error("503"), Error("503"), |_, answer| {
        *answer = Answer::new("503 No", &[("retry-after", "-1")], b"");
    }),
    ("999", Error("999"), Error("999"), |_, answer| *answer = Answer::new("999 What", &[], b"")),
    ("a redirect loop", Error("redirect"), Error("redirect"), |request, answer| {
        *answer = Answer::new("302 Found", &[("location", &request.path)], b"");
    }),
    ("redirects without end", Error("redirect"), Error("redirect"), |request, answer| {
        let place = format!("/{}", request.number);
        *answer = Answer::new("307 Found", &[("location", &place)], b"");
    }),
    ("a redirect to a file", Error("302"), Error("302"), |_, answer| {
        *answer = Answer::new("302 Found", &[("location", "file:///etc/passwd")], b"");
    }),
    ("a redirect to a metadata server", Error("link-local"), Error("link-local"), |_, answer| {
        *answer = Answer::new("302 Found", &[("location", "http://169.254.169.254/x")], b"");
    }),
    ("a redirect to nowhere", Error("302"), Error("302"), |_, answer| {
        *answer = Answer::new("302 Found", &[], b"");
    }),
    ("a redirect to what is no URL", Error("302"), Error("302"), |_, answer| {
        *answer = Answer::new("302 Found", &[("location", "http://[::1")], b"");
    }),
    ("a status line of garbage", Error("image.erofs"), Error("image.erofs"), |_, answer| {
        answer.raw = Some(b"\x00\xffno http at all\r\n\r\n".to_vec());
    }),
    ("another version", Error("image.erofs"), Error("image.erofs"), |_, answer| {
        answer.raw = Some(b"HTTP/9.9 206 Partial Content\r\n\r\n".to_vec());
    }),
    ("TLS instead of HTTP", Error("image.erofs"), Error("image.erofs"), |_, answer| {
        answer.raw = Some(b"\x15\x03\x01\x00\x02\x02\x46".to_vec());
    }),
    ("nothing", Error("image.erofs"), Error("image.erofs"), |_, answer| {
        answer.raw = Some(Vec::new());
    }),
    ("half a head", Error("image.erofs"), Error("image.erofs"), |_, answer| {
        answer.raw = Some(b"HTTP/1.1 206 Partial Content\r\ncontent-ra".to_vec());
    }),
    ("a thousand headers", Error("image.erofs"), Error("image.erofs"), |_, answer| {
        (0..1000).for_each(|number| answer.set(&format!("x-{number}"), "y"));
    }),
    ("a header of 4 MiB", Error("image.erofs"), Error("image.erofs"), |_, answer| {
        answer.set("x-long", &"y".repeat(4 << 20));
    }),
    ("a head without end", Error("image.erofs"), Error("image.erofs"), |_, answer| {
        let mut raw = b"HTTP/1.1 206 Partial Content\r\n".to_vec();
        raw.resize(32 << 20, b'x');
        answer.raw = Some(raw);
    }),
    ("a length that is no number", Error("image.erofs"), Error("image.erofs"), |_, answer| {
        answer.set("content-length", "many");
    }),
    ("a negative length", Error("image.erofs"), Error("image.erofs"), |_, answer| {
        answer.set("content-length", "-5");
    }),
    ("a length that is too short", Error("ended before"), Error("ended before"), |_, answer| {
        answer.set("content-length", "5");
    }),
    ("a length that is too long", Error("image.erofs"), Error("image.erofs"), |_, answer| {
        answer.set("content-length", &(answer.body.len() + 5).to_string());
        answer.truncate_at = answer.body.len() - 1;
    }),
    ("two lengths", Error("image.erofs"), Error("image.erofs"), |_, answer| {
        answer.headers.push(("content-length".to_owned(), "5".to_owned()));
    }),
    ("chunked", Right, Right, |_, answer| {
        answer.remove("content-length");
        answer.set("transfer-encoding", "chunked");
        let mut body = format!("{:x}\r\n", answer.body.len()).into_bytes();
        body.append(&mut answer.body);
        body.extend(b"\r\n0\r\n\r\n");
        answer.body = body;
    }),
    ("chunked with a bad size", Error("image.erofs"), Error("image.erofs"), |_, answer| {
        answer.remove("content-length");
        answer.set("transfer-encoding", "chunked");
        answer.body.splice(0..0, *b"zz\r\n");
    }),
    ("chunked with a huge size", Error("image.erofs"), Error("image.erofs"), |_, answer| {
        answer.remove("content-length");
        answer.set("transfer-encoding", "chunked");
        answer.body.splice(0..0, *b"ffffffffffffffff0\r\n");
    }),
    ("chunked without end", Either("longer than its"), Either("longer than its"), |_, answer| {
        answer.remove("content-length");
        answer.set("transfer-encoding", "chunked");
        let mut chunks = format!("{:x}\r\n", answer.body.len()).into_bytes();
        chunks.append(&mut answer.body);
        chunks.extend([&b"\r\n1000\r\n"[..], &[7; 4096]].concat().repeat(2000));
        answer.body = chunks;
    }),
    ("a stall before the head", Error("sent too few"), Error("sent too few"), |_, answer| {
        answer.pause = Duration::from_secs(60);
    }),
    ("a body by single bytes", Error("sent too few"), Error("sent too few"), |_, answer| {
        answer.drip = Duration::from_millis(300);
    }),
];

/// Wrong bytes, which only a chunk index shows.
const CONTENTS: &[(&str, Change)] = &[
    ("first bit", |_, answer| answer.body[0] ^= 1),
    ("last bit", |_, answer| *answer.body.last_mut().unwrap() ^= 0x80),
    ("a bit in the middle", |_, answer| {
        let middle = answer.body.len() / 2;
        answer.body[middle] ^= 0x10;
    }),
    ("zeros", |_, answer| answer.body.fill(0)),
    ("a page of zeros", |_, answer| answer.body[..4096].fill(0)),
    ("moved by a byte", |_, answer| answer.body.rotate_left(1)),
    ("moved by a page", |_, answer| answer.body.rotate_left(4096)),
    ("halves swapped", |_, answer| {
        let half = answer.body.len() / 2;
        answer.body.rotate_left(half);
    }),
    ("the bytes of another place", |_, answer| {
        answer.body = object_bytes(777..777 + answer.body.len() as u64);
    }),
    ("the first page again", |_, answer| answer.body.copy_within(..4096, 4096)),
    ("random bytes", |_, answer| {
        let mut bytes = crate::tree::random(5).flat_map(u64::to_le_bytes);
        answer.body.fill_with(|| bytes.next().unwrap());
    }),
];

static OBJECT: LazyLock<Vec<u8>> = LazyLock::new(|| body(LENGTH));

static INDEX: LazyLock<Vec<u8>> = LazyLock::new(|| {
    let digests = OBJECT.chunks(300_000).map(ContentDigest::of).collect();
    ChunkIndex::uniform(LENGTH, 300_000, digests).unwrap().to_bytes()
});

/// One server, one case: reads what can be read, and what is wrong must be an error.
struct Case {
    name: String,
    url: String,
    /// The server is right from now on.
    is_right: Arc<AtomicBool>,
    outcome: ReadOutcome,
}

fn start(name: &str, first: u64, change: Change, outcome: ReadOutcome, has_index: bool) -> Case {
    let is_right = Arc::new(AtomicBool::new(false));
    let right = Arc::clone(&is_right);
    let fragment =
        if has_index { format!("#index={}", ContentDigest::of(&INDEX)) } else { String::new() };
    let wire = Wire::start(move |request| {
        if request.path.ends_with(".chunk-index") {
            return Answer::part(request, &INDEX);
        }
        let mut answer = Answer::part(request, &OBJECT);
        let number = if has_index { request.number - 1 } else { request.number };
        if number >= first && !right.load(Ordering::SeqCst) {
            change(request, &mut answer);
        }
        answer
    });
    let url = format!("http://{}/image.erofs{fragment}", wire.host);
    Case { name: format!("{name}, from request {first} on"), url, is_right, outcome }
}

/// Reads everything and compares what comes. The texts of the errors.
fn read_all(case: &Case, source: &RemoteSource) -> Vec<String> {
    let mut errors = Vec::new();
    // Backwards, so that nothing is sequential.
    for start in (0..10).rev().map(|chunk| chunk << 20) {
        let mut buffer = vec![0; MIB];
        match source.read_at(start, &mut buffer) {
            Ok(count) => {
                let end = (start + count as u64).min(LENGTH);
                let wanted = object_bytes(start..end);
                // An object of another length ends elsewhere.
                let count = count.min(wanted.len());
                assert!(buffer[..count] == wanted[..count], "{}: wrong bytes", case.name);
            }
            Err(error) => {
                errors.push(error.to_string());
                if errors.len() == 2 {
                    break;
                }
            }
        }
    }
    errors
}

fn run(world: &World, case: &Case) {
    let started_at = Instant::now();
    let errors = match world.try_open(&case.url, &RemoteOptions::default()) {
        Ok(source) => read_all(case, &source),
        Err(error) => vec![error.to_string()],
    };
    let elapsed = started_at.elapsed();
    let name = &case.name;
    assert!(elapsed < TIME_MAX, "{name}: {elapsed:?}");
    assert!(errors.iter().all(|error| error.contains("image.erofs")), "{name}: {errors:?}");
    let has_word = |word: &str| errors.iter().any(|error| error.contains(word));
    match case.outcome {
        Right => assert!(errors.is_empty(), "{name}: {errors:?}"),
        Error(word) => assert!(has_word(word), "{name}: {word:?}, {errors:?}"),
        Skipped => {}
        Either(word) => assert!(errors.is_empty() || has_word(word), "{name}: {errors:?}"),
    }
    // Nothing that was wrong stays.
    case.is_right.store(true, Ordering::SeqCst);
    match world.try_open(&case.url, &RemoteOptions::default()) {
        Ok(source) => check(&source, 0, 10 << 20),
        Err(error) => panic!("{name}, right again: {error}"),
    }
}

/// Runs all cases in one fetcher. They mostly wait.
fn run_all(cases: Vec<Case>) {
    let mut world = World::new();
    world.timeout_seconds = 2;
    let client = world.client();
    let cases = Mutex::new(cases);
    std::thread::scope(|scope| {
        for _ in 0..48 {
            scope.spawn(|| {
                loop {
                    let Some(case) = cases.lock().unwrap().pop() else { return };
                    run(&world, &case);
                }
            });
        }
    });
    assert_eq!(client.reconnects(), 0, "the fetcher has not ended");
    let peer = rustix::net::sockopt::socket_peercred(&*client.connection().unwrap()).unwrap();
    let status = std::fs::read_to_string(format!("/proc/{}/status", peer.pid.as_raw_nonzero()));
    let status = status.unwrap();
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap().trim();
    let peak: u64 = peak.split(' ').next().unwrap().parse().unwrap();
    eprintln!("figure: the fetcher took {peak} KiB");
    assert!(peak < 200 << 10, "{peak} KiB");
}

#[test]
fn frames_that_are_wrong_are_errors() {
    let cases = FRAMES.iter().flat_map(|(name, later, opening, change)| {
        [start(name, 1, *change, *later, false), start(name, 0, *change, *opening, false)]
    });
    run_all(cases.filter(|case| case.outcome != Skipped).collect());
}

#[test]
fn bytes_that_are_wrong_are_errors_with_a_chunk_index() {
    let cases = CONTENTS.iter().flat_map(|(name, change)| {
        let error = Error("digest");
        [start(name, 1, *change, error, true), start(name, 0, *change, error, true)]
    });
    run_all(cases.collect());
}

/// A page that says that one must log in is what the location has, but no image.
#[test]
fn a_page_instead_of_an_image_is_no_image() {
    let Some(program) = ferrofs() else { return };
    let world = World::new();
    let verb = Verb { program: &program, world: &world };
    let page = "<html>Log in</html>".repeat(1000);
    let wire = Wire::start(move |request| {
        Answer::part(&WireRequest { range: None, ..request.clone() }, page.as_bytes())
    });
    let text = verb.bad(&["ls", &format!("http://{}/image.erofs", wire.host)], 1);
    assert!(text.contains("magic number") && text.contains("image.erofs"), "{text}");
    assert_eq!(wire.requests(), 1);
}

/// A mebibyte never came, and each attempt began with its first byte.
#[test]
fn answers_that_are_shorter_than_a_chunk_bring_each_byte_once() {
    const PART: usize = 300_000;
    let is_truncated = Arc::new(AtomicBool::new(false));
    let sent = Arc::new(AtomicU64::new(0));
    let (truncated, counted) = (Arc::clone(&is_truncated), Arc::clone(&sent));
    let image = body(LENGTH);
    let wire = Wire::start(move |request| {
        let mut part = request.clone();
        let is_truncated = truncated.load(Ordering::SeqCst);
        if let Some((start, end)) = &mut part.range
            && !is_truncated
        {
            // A frame that is right, of a part of what was asked for.
            *end = (*end).min(*start + PART);
        }
        let mut answer = Answer::part(&part, &image);
        if is_truncated {
            answer.truncate_at = PART;
        }
        counted.fetch_add(answer.body.len().min(PART) as u64, Ordering::SeqCst);
        answer
    });
    for is_last in [false, true] {
        is_truncated.store(is_last, Ordering::SeqCst);
        sent.store(0, Ordering::SeqCst);
        let world = World::new();
        let source = world.open(&format!("http://{}/image", wire.host));
        check(&source, 0, usize::try_from(LENGTH).unwrap());
        let sent = sent.load(Ordering::SeqCst);
        // The end of a connection may cost what has not been read.
        assert!(sent <= LENGTH || is_last && sent < 2 * LENGTH, "{sent} bytes");
    }
}

/// A request for no bytes followed, and what servers answer to it was taken for a server without ranges, or for
/// another object.
#[test]
fn a_body_that_is_broken_behind_its_last_byte_is_complete() {
    let asked = Arc::new(Mutex::new(Vec::new()));
    let (ranges, image) = (Arc::clone(&asked), body(LENGTH));
    let wire = Wire::start(move |request| {
        ranges.lock().unwrap().push(request.range.unwrap());
        let mut answer = Answer::part(request, &image);
        answer.remove("content-length");
        answer.set("transfer-encoding", "chunked");
        let mut sent = format!("{:x}\r\n", answer.body.len()).into_bytes();
        sent.append(&mut answer.body);
        // The frame that ends the body does not come.
        answer.truncate_at = sent.len() + 2;
        sent.extend(b"\r\n0\r\n\r\n");
        answer.body = sent;
        answer
    });
    let world = World::new();
    let source = world.open(&format!("http://{}/image", wire.host));
    for chunk in [0, 3, 5, 9] {
        check(&source, chunk << 20, 1000);
    }
    // A request ends when its last chunk is stored.
    std::thread::sleep(Duration::from_millis(300));
    let asked = asked.lock().unwrap();
    assert!(asked.iter().all(|(start, end)| start < end), "{asked:?}");
    assert_eq!(asked.len(), 4, "{asked:?}");
}

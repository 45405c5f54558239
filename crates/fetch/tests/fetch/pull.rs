//! `ferrofs pull`: whole images, interrupted and damaged ones.

use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use ferrofs_remote::{ChunkIndex, ContentDigest};

use crate::command::{Verb, data, ferrofs, skip};
use crate::registry::Registry;
use crate::server::{Fault, Server};
use crate::world::{World, body};

#[test]
fn a_download_is_the_object_and_replaces_nothing() {
    let Some(program) = ferrofs() else { return };
    let world = World::new();
    let verb = Verb { program: &program, world: &world };
    let wanted = body((9 << 20) + 5);
    let server = Server::start(wanted.clone());
    let file = world.directory.path().join("image.erofs");
    let (url, name) = (server.url(), file.to_str().unwrap());
    let report = verb.good(&["pull", "--json", &url, name]);
    let report = String::from_utf8(report).unwrap();
    assert!(fs::read(&file).unwrap() == wanted);
    let hex = ContentDigest::of(&wanted).hex();
    assert!(report.contains(&format!(r#""sha256":"{hex}""#)), "{report}");
    assert!(report.contains("the transport is trusted"), "{report}");
    fs::write(&file, "mine").unwrap();
    let text = verb.bad(&["pull", &url, name], 1);
    assert!(text.contains("--force replaces it"), "{text}");
    assert_eq!(fs::read(&file).unwrap(), b"mine");
    verb.good(&["pull", "--force", &url, name]);
    assert!(fs::read(&file).unwrap() == wanted);
    let text = verb.bad(&["pull", name, &format!("{name}2")], 2);
    assert!(text.contains("a path, not a URL"), "{text}");
}

#[test]
fn an_interrupted_download_goes_on_where_it_was() {
    let Some(program) = ferrofs() else { return };
    let world = World::new();
    let verb = Verb { program: &program, world: &world };
    let wanted = body(40 << 20);
    let server = Server::start(wanted.clone());
    let file = world.directory.path().join("image.erofs");
    let arguments = ["pull", &server.url(), file.to_str().unwrap(), "--fetch-timeout=20"];
    // The server loses the object after some requests.
    server.set_fault(|number| Fault::Status(404).from(5, number));
    let text = verb.bad(&arguments, 1);
    assert!(text.contains("404") && !file.exists(), "{text}");
    let sent = || server.0.sent.load(std::sync::atomic::Ordering::SeqCst);
    let before = sent();
    assert!(before >= 4 << 20, "{before} bytes");
    server.set_fault(|_| Fault::None);
    verb.good(&arguments);
    assert!(fs::read(&file).unwrap() == wanted);
    // Opening requests the first chunk each time.
    assert!(sent() <= (40 << 20) + (2 << 20), "{} and then {}", before, sent());
}

/// On a file system where a new file has a temporary name: strace makes the third call fail that opens something in the
/// directory, after those that open the directory and look for a former file.
#[test]
fn a_download_that_several_signals_interrupt_leaves_nothing() {
    let Some(program) = ferrofs() else { return };
    let traced = Command::new("strace").args(["-qq", "-o", "/dev/null", "true"]).status();
    if !traced.is_ok_and(|status| status.success()) {
        return skip("needs strace and the right to trace");
    }
    let world = World::new();
    let verb = Verb { program: &program, world: &world };
    let server = Server::start(body(40 << 20));
    let place = world.directory.path().join("place");
    fs::create_dir(&place).unwrap();
    let file = place.join("image.erofs");
    // The first requests show what the object is.
    server.set_fault(|number| {
        if number > 2 {
            std::thread::sleep(Duration::from_secs(3));
        }
        Fault::None
    });
    let pull = verb.command(&["pull", "-q", &server.url(), file.to_str().unwrap()]);
    let mut strace = Command::new("strace");
    strace.args(["-D", "-f", "-qq", "-o", "/dev/null", "--trace=openat"]);
    strace.args(["--inject=openat:error=EOPNOTSUPP:when=3", "-P"]).arg(&place);
    strace.arg(pull.get_program()).args(pull.get_args());
    strace.envs(pull.get_envs().filter_map(|(key, value)| Some((key, value?))));
    let mut child = strace.stdin(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let names = || {
        let entries = fs::read_dir(&place).unwrap().flatten();
        entries.map(|entry| entry.file_name().into_string().unwrap()).collect::<Vec<_>>()
    };
    let deadline = Instant::now() + Duration::from_secs(30);
    while !names().iter().any(|name| name.ends_with(".part")) {
        assert!(Instant::now() < deadline && child.try_wait().unwrap().is_none(), "{:?}", names());
        std::thread::yield_now();
    }
    let kill = || Command::new("kill").arg("-TERM").arg(child.id().to_string()).status().unwrap();
    for _ in 0..4 {
        kill();
    }
    let status = child.wait().unwrap();
    assert_eq!((status.code(), status.signal()), (Some(143), None));
    assert_eq!(names(), [""; 0]);
}

#[test]
fn a_download_of_a_registry_has_its_digest_or_there_is_none() {
    let Some(program) = ferrofs() else { return };
    let world = World::new();
    let verb = Verb { program: &program, world: &world };
    let image = fs::read(data("lz4.erofs")).unwrap();
    let file = world.directory.path().join("image.erofs");
    let name = file.to_str().unwrap();
    let registry = Registry::start(image.clone());
    let insecure = format!("--insecure-registry={}", registry.host());
    for verify in ["require", "try", "off"] {
        registry.damage(u64::MAX);
        let verify = format!("--verify={verify}");
        let text = verb.bad(&["pull", &registry.location(), name, &insecure, &verify], 1);
        assert!(text.contains("instead of sha256:") && !file.exists(), "{text}");
    }
    // What is damaged in the cache is fetched once more, past the cache.
    registry.damage(0);
    let report = verb.good(&["pull", &registry.location(), name, &insecure, "--verify=require"]);
    assert!(fs::read(&file).unwrap() == image);
    assert!(String::from_utf8(report).unwrap().contains("digest of the whole image"));
}

#[test]
fn an_object_without_a_digest_is_refused_if_one_is_required() {
    let Some(program) = ferrofs() else { return };
    let world = World::new();
    let verb = Verb { program: &program, world: &world };
    let image = fs::read(data("lz4.erofs")).unwrap();
    let file = world.directory.path().join("image.erofs");
    let name = file.to_str().unwrap();
    let server = Server::start(image.clone());
    let text = verb.bad(&["pull", &server.url(), name, "--verify=require"], 1);
    assert!(text.contains("needs a digest") && !file.exists(), "{text}");
    let digests = image.chunks(4096).map(ContentDigest::of).collect();
    let index = ChunkIndex::uniform(image.len() as u64, 4096, digests).unwrap();
    let registry = Registry::start_indexed(image.clone(), &index);
    let insecure = format!("--insecure-registry={}", registry.host());
    verb.good(&["pull", &registry.location(), name, &insecure, "--verify=require", "-q"]);
    assert!(fs::read(&file).unwrap() == image);
}

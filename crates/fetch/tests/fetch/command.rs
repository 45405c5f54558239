//! The verbs of `ferrofs` on URLs, compared with the same verbs on the local file.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use ferrofs_remote::{ChunkIndex, ContentDigest};

use crate::registry::Registry;
use crate::server::{Fault, Server};
use crate::world::World;

/// The command beside the fetcher, if it was built; otherwise the test is reported as skipped.
pub(crate) fn ferrofs() -> Option<PathBuf> {
    let program = Path::new(env!("CARGO_BIN_EXE_ferrofs-fetch")).with_file_name("ferrofs");
    if program.is_file() {
        return Some(program);
    }
    skip("the command ferrofs was not built beside the fetcher");
    None
}

/// Reports that a test is skipped: in its output, and in the file that `FERROFS_SKIPPED` names.
pub(crate) fn skip(reason: &str) {
    let test = std::thread::current().name().unwrap_or_default().to_owned();
    let line = format!("{test}: {reason}");
    eprintln!("skipped: {line}");
    if let Some(path) = std::env::var_os("FERROFS_SKIPPED") {
        let mut file = fs::File::options().append(true).create(true).open(path).unwrap();
        writeln!(file, "{line}").unwrap();
    }
}

pub(crate) fn data(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/data").join(name)
}

pub(crate) struct Verb<'a> {
    pub(crate) program: &'a Path,
    pub(crate) world: &'a World,
}

impl Verb<'_> {
    pub(crate) fn run(&self, arguments: &[&str]) -> Output {
        self.command(arguments).output().unwrap()
    }

    pub(crate) fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(self.program);
        command.args(arguments).arg("--cache").arg(self.world.cache());
        command.env("FERROFS_FETCH", env!("CARGO_BIN_EXE_ferrofs-fetch"));
        command.envs(self.world.settings.starting_with(""));
        command.envs(self.world.environment.iter().cloned());
        command
    }

    pub(crate) fn good(&self, arguments: &[&str]) -> Vec<u8> {
        let output = self.run(arguments);
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{arguments:?}: {errors}");
        output.stdout
    }

    /// The error text of a verb that must end with `status`.
    pub(crate) fn bad(&self, arguments: &[&str], status: i32) -> String {
        let output = self.run(arguments);
        let errors = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(status), "{errors}");
        errors
    }
}

#[test]
fn every_reading_verb_takes_a_url() {
    let Some(program) = ferrofs() else { return };
    let world = World::new();
    let verb = Verb { program: &program, world: &world };
    for name in ["lz4.erofs", "compact.erofs", "demo.erofs"] {
        let local = data(name).to_str().unwrap().to_owned();
        let server = Server::start(fs::read(&local).unwrap());
        let url = server.url();
        assert_eq!(verb.good(&["ls", "-R", &url]), verb.good(&["ls", "-R", &local]));
        assert_eq!(verb.good(&["stat", &url, "/"]), verb.good(&["stat", &local, "/"]));
        verb.good(&["info", &url]);
        verb.good(&["check", &url]);
        let archive = |image: &str, name: &str| {
            let path = world.directory.path().join(name);
            verb.good(&["extract", image, "--tar", path.to_str().unwrap()]);
            fs::read(path).unwrap()
        };
        let remote = archive(&url, &format!("{name}.remote.tar"));
        assert!(remote == archive(&local, &format!("{name}.local.tar")));
        verb.good(&["ls", &url, "--offline"]);
    }
}

/// Servers call the page of a login a success.
#[test]
fn an_html_page_is_not_kept_as_an_image() {
    let Some(program) = ferrofs() else { return };
    let world = World::new();
    let verb = Verb { program: &program, world: &world };
    let page = [b"\n<!DOCTYPE html><html><body>Log in".as_slice(), &b" ".repeat(5000)].concat();
    let server = Server::start(page);
    let target = world.directory.path().join("target");
    let text = verb.bad(&["pull", &server.url(), target.to_str().unwrap()], 1);
    assert!(text.contains("an HTML page"), "{text}");
    assert!(!target.exists());
    let text = verb.bad(&["info", &server.url()], 1);
    assert!(text.contains("this is an HTML page"), "{text}");
}

#[test]
fn a_system_without_ca_certificates_reads_plain_http() {
    let Some(program) = ferrofs() else { return };
    let world = World::new();
    let verb = Verb { program: &program, world: &world };
    let server = Server::start(fs::read(data("lz4.erofs")).unwrap());
    let mut command = verb.command(&["check", &server.url()]);
    let output = command.env("SSL_CERT_FILE", "/nowhere").env("SSL_CERT_DIR", "/nowhere").output();
    let output = output.unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn errors_name_the_location_and_hide_its_query() {
    let Some(program) = ferrofs() else { return };
    let world = World::new();
    let verb = Verb { program: &program, world: &world };
    let server = Server::start(vec![0; 5000]);
    let url = format!("{}?signature=secret", server.url());
    let display_name = format!("{}?…", server.url());
    server.set_fault(|_| Fault::Status(404));
    let text = verb.bad(&["ls", &url], 1);
    assert!(text.contains(&display_name) && text.contains("404"), "{text}");
    server.set_fault(|_| Fault::None);
    let text = verb.bad(&["ls", &url], 1);
    assert!(text.contains(&display_name) && !text.contains("secret"), "{text}");
    let text = verb.bad(&["ls", "ftp://host/x"], 2);
    assert!(text.contains("scheme ftp"), "{text}");
    let secret = "https://me:secret@host/x";
    let target = world.directory.path().join("target");
    let target = target.to_str().unwrap();
    let words: [&[&str]; 9] = [
        &["ls", secret],
        &["info", secret],
        &["check", secret],
        &["cat", secret, "a"],
        &["extract", secret, target],
        &["pull", secret, target],
        &["mount", secret, "/nowhere"],
        &["ls", "/nowhere/x", "--device", secret],
        &["push", "/nowhere/x", "oci://me:secret@host/x:v1"],
    ];
    for words in words {
        let text = verb.bad(words, 2);
        assert!(!text.contains("secret") && text.contains("a user name or a password"), "{text}");
    }
    let text = verb.bad(&["mount", &url, "/nowhere"], 1);
    assert!(text.contains(&display_name) && !text.contains("secret"), "{text}");
}

#[test]
fn a_layer_of_a_registry_is_read_with_one_token() {
    let Some(program) = ferrofs() else { return };
    let world = World::new();
    let verb = Verb { program: &program, world: &world };
    let local = data("lz4.erofs");
    let image = fs::read(&local).unwrap();
    let registry = Registry::start(image);
    let location = registry.location();
    let insecure = format!("--insecure-registry={}", registry.host());
    let local = local.to_str().unwrap();
    assert_eq!(verb.good(&["ls", "-R", &location, &insecure]), verb.good(&["ls", "-R", local]));
    verb.good(&["check", &location, &insecure]);
    assert_eq!(registry.tokens(), 1, "one fetcher, one token");
    let text = verb.bad(&["ls", &format!("{location}x"), &insecure], 1);
    assert!(text.contains("404"), "{text}");
}

#[test]
fn a_layer_with_a_chunk_index_is_verified_piece_by_piece() {
    let Some(program) = ferrofs() else { return };
    let world = World::new();
    let verb = Verb { program: &program, world: &world };
    let image = fs::read(data("lz4.erofs")).unwrap();
    let digests = image.chunks(4096).map(ContentDigest::of).collect();
    let index = ChunkIndex::uniform(image.len() as u64, 4096, digests).unwrap();
    let registry = Registry::start_indexed(image.clone(), &index);
    let insecure = format!("--insecure-registry={}", registry.host());
    let arguments = ["check", &registry.location(), &insecure, "--verify=require"];
    verb.good(&arguments);
    // The manifest without an index cannot be verified in parts.
    let plain = Registry::start(image.clone());
    let insecure = format!("--insecure-registry={}", plain.host());
    let text = verb.bad(&["check", &plain.location(), &insecure, "--verify=require"], 1);
    assert!(text.contains("chunk index"), "{text}");
    // A blob that is not what the index says.
    let mut damaged = image;
    damaged[2000] ^= 1;
    let registry = Registry::start_indexed(damaged, &index);
    let insecure = format!("--insecure-registry={}", registry.host());
    let text = verb.bad(&["ls", &registry.location(), &insecure], 1);
    assert!(text.contains("digest"), "{text}");
}

/// The fetcher repeats requests for a minute; a client that waits for less hears why they fail.
#[test]
fn a_client_that_waits_for_less_than_the_fetcher_hears_why_requests_fail() {
    let Some(program) = ferrofs() else { return };
    let world = World::new();
    let verb = Verb { program: &program, world: &world };
    let server = Server::start(fs::read(data("lz4.erofs")).unwrap());
    let url = server.url();
    server.set_fault(|_| Fault::Status(503));
    let text = verb.bad(&["check", &url, "--fetch-timeout=12"], 1);
    let wanted =
        format!("{url}: the server answered 503 Service Unavailable; no success within 12 s");
    assert!(text.contains(&wanted), "{text}");
}

#[test]
fn a_program_that_is_no_fetcher_is_named_at_once() {
    let Some(program) = ferrofs() else { return };
    let world = World::new();
    let verb = Verb { program: &program, world: &world };
    let server = Server::start(fs::read(data("lz4.erofs")).unwrap());
    let started_at = std::time::Instant::now();
    let mut command = verb.command(&["info", &server.url()]);
    let output = command.env("FERROFS_FETCH", "/bin/false").output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(text.contains("/bin/false: it ended with status 1"), "{text}");
    assert!(text.contains("FERROFS_FETCH"), "{text}");
    assert!(started_at.elapsed().as_secs() < 8, "{:?}", started_at.elapsed());
}

#[test]
fn verbs_that_start_at_once_start_one_fetcher_and_say_nothing_about_it() {
    let Some(program) = ferrofs() else { return };
    let world = World::new();
    let verb = Verb { program: &program, world: &world };
    let server = Server::start(fs::read(data("lz4.erofs")).unwrap());
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                let output = verb.run(&["info", &server.url()]);
                let text = String::from_utf8_lossy(&output.stderr);
                assert!(output.status.success() && text.is_empty(), "{text}");
            });
        }
    });
}

//! Redirects to names: the addresses of a name decide, and not how it is written. With a proxy nobody here
//! knows them.

use std::io::{BufReader, Write};
use std::net::TcpListener;
use std::path::PathBuf;
use std::process::Command;
use std::sync::{Arc, Mutex};

use crate::command::{Verb, ferrofs, skip};
use crate::server::read_head;
use crate::wire::{Answer, Wire};
use crate::world::World;

/// A server that answers each request with a redirect. Returns its URL.
fn redirector(target: &'static str) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/image", listener.local_addr().unwrap());
    std::thread::Builder::new()
        .spawn(move || {
            for stream in listener.incoming() {
                let mut stream = stream.unwrap();
                let mut reader = BufReader::new(stream.try_clone().unwrap());
                while read_head(&mut reader).is_some() {
                    let head = format!("location: {target}\r\ncontent-length: 0\r\n\r\n");
                    stream.write_all(format!("HTTP/1.1 302 Found\r\n{head}").as_bytes()).unwrap();
                }
            }
        })
        .unwrap();
    url
}

#[test]
fn a_name_with_a_link_local_address_is_not_followed() {
    let Some(program) = ferrofs() else { return };
    let world = World::new();
    let hosts = world.directory.path().join("hosts");
    let names = "127.0.0.1 localhost\n169.254.169.254 four.test\nfe80::1 six.test\n\
        ::ffff:169.254.1.1 mapped.test\nfd00:ec2::254 amazon.test\n";
    std::fs::write(&hosts, names).unwrap();
    // A mount namespace in which the names of /etc/hosts are those.
    let script = "mount --bind \"$1\" /etc/hosts || exit 77; shift; exec \"$@\"";
    for target in [
        "http://four.test/x",
        "http://six.test:8080/x",
        "http://mapped.test/x",
        "http://amazon.test/x",
    ] {
        let mut command = Command::new("unshare");
        command.args(["-m", "sh", "-c", script, "sh"]).arg(&hosts).arg(&program);
        command.args(["ls", &redirector(target), "--cache"]).arg(world.cache());
        let output = command.env("FERROFS_FETCH", env!("CARGO_BIN_EXE_ferrofs-fetch")).output();
        let Ok(output) = output else { return skip("needs unshare") };
        let errors = String::from_utf8_lossy(&output.stderr);
        if output.status.code() == Some(77) || errors.contains("unshare") {
            return skip("needs the right to make a mount namespace");
        }
        assert_eq!(output.status.code(), Some(1), "{target}: {errors}");
        let host = target.split(['/', ':']).nth(3).unwrap();
        assert!(errors.contains("link-local or metadata") && errors.contains(host), "{errors}");
    }
}

/// A proxy on `localhost` that refuses everything, and what it was asked for; a world that uses it for all
/// but the servers of the test.
fn world_with_proxy() -> (World, Arc<Mutex<Vec<String>>>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let proxy = format!("http://localhost:{}", listener.local_addr().unwrap().port());
    let asked = Arc::new(Mutex::new(Vec::new()));
    let all = Arc::clone(&asked);
    std::thread::Builder::new()
        .spawn(move || {
            for stream in listener.incoming() {
                let mut stream = stream.unwrap();
                let mut reader = BufReader::new(stream.try_clone().unwrap());
                let Some(head) = read_head(&mut reader) else { continue };
                all.lock().unwrap().push(head[0].clone());
                let answer = b"HTTP/1.1 502 Bad Gateway\r\ncontent-length: 0\r\n\r\n";
                stream.write_all(answer).unwrap_or_default();
            }
        })
        .unwrap();
    let mut world = World::new();
    world.environment = ["HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY"]
        .map(|name| (name, PathBuf::from(if name == "NO_PROXY" { "127.0.0.1" } else { &proxy })))
        .to_vec();
    (world, asked)
}

/// The proxy has a name of the own network, and there is no address of the token server here.
#[test]
fn a_token_server_behind_a_proxy_is_asked_through_it() {
    let Some(program) = ferrofs() else { return };
    for (realm, wanted) in [
        ("https://auth.invalid/token", Ok("connect auth.invalid:443 ")),
        ("https://93.184.216.34/token", Ok("connect 93.184.216.34:443 ")),
        ("https://10.0.0.1/token", Err("local network")),
        ("https://metadata.google.internal/token", Err("metadata service")),
    ] {
        let (world, asked) = world_with_proxy();
        let wire = Wire::start(move |_| {
            let challenge = format!("Bearer realm=\"{realm}\",service=\"x\"");
            Answer::new("401 Unauthorized", &[("www-authenticate", &challenge)], b"")
        });
        let verb = Verb { program: &program, world: &world };
        let location = format!("oci://{}/a/b:v1", wire.host);
        let insecure = format!("--insecure-registry={}", wire.host);
        let text = verb.bad(&["info", &location, &insecure, "--fetch-timeout=6"], 1);
        let asked = asked.lock().unwrap();
        match wanted {
            Ok(line) => {
                assert!(asked.iter().any(|asked| asked.starts_with(line)), "{asked:?}: {text}");
                assert!(!text.contains("local network"), "{text}");
            }
            Err(part) => {
                assert!(asked.is_empty() && text.contains(part), "{asked:?}: {text}");
                assert!(!text.contains("redirect"), "there was none: {text}");
            }
        }
    }
}

#[test]
fn no_proxy_is_asked_for_a_metadata_service() {
    let Some(program) = ferrofs() else { return };
    for (target, is_refused) in [
        ("http://metadata.google.internal/computeMetadata/v1/x", true),
        ("http://169.254.169.254/x", true),
        ("http://images.invalid/x", false),
    ] {
        let (world, asked) = world_with_proxy();
        let verb = Verb { program: &program, world: &world };
        let text = verb.bad(&["info", &redirector(target), "--fetch-timeout=6"], 1);
        let asked = asked.lock().unwrap();
        assert_eq!(asked.is_empty(), is_refused, "{asked:?}: {text}");
        assert_eq!(text.contains("is refused"), is_refused, "{text}");
        assert_eq!(text.contains("a redirect to "), is_refused, "{text}");
    }
}

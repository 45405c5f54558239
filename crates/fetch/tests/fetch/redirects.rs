//! Redirects to names: the addresses of a name decide, and not how it is written.

use std::io::{BufReader, Write};
use std::net::TcpListener;
use std::process::Command;

use crate::command::{ferrofs, skip};
use crate::server::read_head;
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

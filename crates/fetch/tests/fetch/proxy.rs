//! Many hosts behind one cache of nginx: the server sends each byte about once.

use std::fs;
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant};

use crate::command::skip;
use crate::server::Server;
use crate::tree::figure;
use crate::world::{World, body, check};

/// Each with a fetcher and a cache of its own.
const HOSTS: usize = 20;

struct Nginx {
    process: Child,
    address: String,
}

impl Drop for Nginx {
    fn drop(&mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
    }
}

/// The configuration that docs/remote.md shows, in one process.
fn configuration(folder: &Path, address: &str, origin: &str) -> String {
    let folder = folder.display();
    let temporary: String = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
        .map(|name| format!("{name}_temp_path {folder}/{name};\n"))
        .concat();
    format!(
        "daemon off; master_process off; pid {folder}/pid; error_log {folder}/log;
        events {{}}
        http {{
            access_log off;
            {temporary}
            proxy_cache_path {folder}/cache keys_zone=images:1m;
            server {{
                listen {address};
                location / {{
                    slice 1m;
                    proxy_cache images;
                    proxy_cache_key $uri$slice_range;
                    proxy_cache_valid 200 206 1h;
                    proxy_cache_lock on;
                    proxy_cache_lock_timeout 1m;
                    proxy_http_version 1.1;
                    proxy_set_header Range $slice_range;
                    proxy_pass {origin};
                }}
            }}
        }}"
    )
}

/// `None` without nginx and its module for slices; the test is reported as skipped.
fn start(folder: &Path, origin: &str) -> Option<Nginx> {
    let program =
        ["/usr/sbin/nginx", "/usr/bin/nginx"].into_iter().find(|path| Path::new(path).exists());
    let has_slices = program.is_some_and(|program| {
        let version = Command::new(program).arg("-V").output();
        version.is_ok_and(|output| String::from_utf8_lossy(&output.stderr).contains("slice_module"))
    });
    let Some(program) = program.filter(|_| has_slices) else {
        skip("needs nginx with http_slice_module");
        return None;
    };
    let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    let file = folder.join("nginx.conf");
    fs::write(&file, configuration(folder, &address, origin)).unwrap();
    let mut command = Command::new(program);
    command.arg("-c").arg(&file).arg("-p").arg(folder).arg("-e").arg(folder.join("log"));
    command.stdout(Stdio::null()).stderr(Stdio::null());
    let nginx = Nginx { process: command.spawn().unwrap(), address };
    let deadline = Instant::now() + Duration::from_secs(20);
    while TcpStream::connect(&nginx.address).is_err() {
        let log = || fs::read_to_string(folder.join("log"));
        assert!(Instant::now() < deadline, "{:?}", log());
        thread::sleep(Duration::from_millis(20));
    }
    Some(nginx)
}

#[test]
fn hosts_behind_a_cache_of_nginx_fetch_one_image_of_the_server() {
    let length = figure("FERROFS_PROOF_MIB", 6) * (1 << 20) + 1234;
    let server = Server::start(body(length));
    let folder = tempfile::tempdir().unwrap();
    let origin = server.url().replace("/image.erofs", "");
    let Some(nginx) = start(folder.path(), &origin) else { return };
    let url = format!("http://{}/image.erofs", nginx.address);
    let bytes = usize::try_from(length).unwrap();
    thread::scope(|scope| {
        for host in 0..HOSTS {
            let url = &url;
            scope.spawn(move || {
                let world = World::new();
                let source = world.open(url);
                // Not all in the same order.
                let start = length * host as u64 / HOSTS as u64;
                check(&source, start, bytes);
                check(&source, 0, bytes);
            });
        }
    });
    let sent = server.0.sent.load(Ordering::SeqCst);
    let thousandths = sent * 1000 / length;
    crate::proof::report(&format!(
        "{HOSTS} hosts behind nginx: {thousandths} thousandths of {length} bytes, {} requests",
        server.requests()
    ));
    assert!(sent >= length && thousandths <= 1100, "{sent} of {length}");
}

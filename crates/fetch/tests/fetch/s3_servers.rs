//! All reading verbs and a mount on moto and s3s-fs, S3 servers of other authors.

use std::fs;
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use ferrofs_remote::StoreSettings;

use crate::command::{Verb, data, ferrofs, skip};
use crate::mount::{local_tree, mount};
use crate::world::{World, body};

struct S3Server {
    process: Child,
    settings: Vec<(&'static str, String)>,
}

impl S3Server {
    fn settings(&self) -> StoreSettings {
        self.settings.iter().cloned().collect()
    }
}

impl Drop for S3Server {
    fn drop(&mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
    }
}

fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

/// Of a server at this port.
fn settings(port: u16) -> Vec<(&'static str, String)> {
    vec![
        ("AWS_ENDPOINT_URL", format!("http://127.0.0.1:{port}")),
        ("AWS_ACCESS_KEY_ID", "reader".to_owned()),
        ("AWS_SECRET_ACCESS_KEY", "hidden".to_owned()),
        ("AWS_REGION", "us-east-1".to_owned()),
        ("AWS_ALLOW_HTTP", "true".to_owned()),
    ]
}

/// Stores these files in a bucket, by the SDK that moto brings.
const UPLOAD: &str = "
import sys, boto3
s3 = boto3.client('s3', endpoint_url=sys.argv[1])
s3.create_bucket(Bucket='images')
for path in sys.argv[2:]: s3.upload_file(path, 'images', 'dir/' + path.rsplit('/', 1)[1])
";

/// Starts moto with these files. `None` without moto; the test is reported as skipped.
fn start_moto(files: &[&Path]) -> Option<S3Server> {
    let port = free_port();
    let settings = settings(port);
    let has_moto = Command::new("python3").args(["-c", "import moto.server, boto3"]).output();
    if !has_moto.is_ok_and(|output| output.status.success()) {
        skip("needs moto[server] for python3");
        return None;
    }
    let port = port.to_string();
    let mut command = Command::new("python3");
    command.args(["-m", "moto.server", "-H", "127.0.0.1", "-p", &port]);
    command.stdout(Stdio::null()).stderr(Stdio::null());
    let server = S3Server { process: command.spawn().unwrap(), settings };
    let deadline = Instant::now() + Duration::from_secs(60);
    loop {
        let mut command = Command::new("python3");
        command.args(["-c", UPLOAD, &server.settings[0].1]).args(files);
        let output = command.envs(server.settings.clone()).output().unwrap();
        if output.status.success() {
            return Some(server);
        }
        assert!(Instant::now() < deadline, "{}", String::from_utf8_lossy(&output.stderr));
        thread::sleep(Duration::from_millis(100));
    }
}

/// Starts s3s-fs with these files below this folder. `None` without the program; the test is reported as
/// skipped.
fn start_s3s_fs(folder: &Path, files: &[&Path]) -> Option<S3Server> {
    if !Command::new("s3s-fs").arg("--version").output().is_ok_and(|output| output.status.success())
    {
        skip("needs s3s-fs (cargo install s3s-fs --features binary)");
        return None;
    }
    let root = folder.join("buckets");
    fs::create_dir_all(root.join("images/dir")).unwrap();
    for file in files {
        fs::copy(file, root.join("images/dir").join(file.file_name().unwrap())).unwrap();
    }
    let port = free_port();
    let (settings, port) = (settings(port), port.to_string());
    let mut command = Command::new("s3s-fs");
    command.args(["--host", "127.0.0.1", "--port", &port]);
    command.args(["--access-key", "reader", "--secret-key", "hidden"]).arg(&root);
    command.stdout(Stdio::null()).stderr(Stdio::null());
    let server = S3Server { process: command.spawn().unwrap(), settings };
    let deadline = Instant::now() + Duration::from_secs(60);
    while TcpStream::connect(format!("127.0.0.1:{port}")).is_err() {
        assert!(Instant::now() < deadline, "s3s-fs does not listen");
        thread::sleep(Duration::from_millis(20));
    }
    Some(server)
}

/// The same verbs on the object and on the local file.
fn compare_verbs(program: &Path, server: &S3Server) {
    let world = World { settings: server.settings(), ..World::new() };
    let verb = Verb { program, world: &world };
    let (local, url) = (data("demo.erofs"), "s3://images/dir/demo.erofs");
    let local = local.to_str().unwrap();
    for words in [["ls", "-R"], ["info", "--json"], ["check", "--json"]] {
        verb.good(&[words[0], words[1], url]);
    }
    assert_eq!(verb.good(&["ls", "-R", url]), verb.good(&["ls", "-R", local]));
    assert_eq!(verb.good(&["stat", url, "/"]), verb.good(&["stat", local, "/"]));
    let tar = |image: &str, name: &str| {
        let path = world.directory.path().join(name);
        verb.good(&["extract", image, "--tar", path.to_str().unwrap()]);
        fs::read(path).unwrap()
    };
    assert!(tar(url, "remote.tar") == tar(local, "local.tar"));
    let listed = String::from_utf8(verb.good(&["ls", "-R", local])).unwrap();
    let file = listed.lines().find(|line| line.ends_with(".txt") || line.ends_with(".html"));
    if let Some(file) = file {
        assert_eq!(verb.good(&["cat", url, file]), verb.good(&["cat", local, file]));
    }
    let copy = world.directory.path().join("copy");
    verb.good(&["pull", url, copy.to_str().unwrap()]);
    assert!(fs::read(copy).unwrap() == fs::read(local).unwrap());
    let text = verb.bad(&["info", "s3://images/absent"], 1);
    assert!(text.contains("s3://images/absent: the bucket has no such key"), "{text}");
    if let Some(mounted) = mount(&world, url, &[]) {
        assert!(mounted.tree() == local_tree(&world, "demo.erofs").unwrap());
    }
}

#[test]
fn every_reading_verb_takes_an_object_of_moto() {
    let Some(program) = ferrofs() else { return };
    let Some(server) = start_moto(&[&data("demo.erofs")]) else { return };
    compare_verbs(&program, &server);
    let world = World { settings: server.settings(), ..World::new() };
    let verb = Verb { program: &program, world: &world };
    let text = verb.bad(&["info", "s3://nowhere/absent"], 1);
    assert!(text.contains("no such bucket"), "{text}");
}

#[test]
fn every_reading_verb_takes_an_object_of_s3s_fs() {
    let Some(program) = ferrofs() else { return };
    let folder = tempfile::tempdir().unwrap();
    let Some(server) = start_s3s_fs(folder.path(), &[&data("demo.erofs")]) else { return };
    compare_verbs(&program, &server);
}

/// The process that decodes has no credentials, neither in its environment nor elsewhere.
#[test]
fn a_mount_of_an_object_of_s3_keeps_no_credentials() {
    let Some(program) = ferrofs() else { return };
    let world = World::new();
    let (source, image) =
        (world.directory.path().join("big"), world.directory.path().join("b.erofs"));
    fs::create_dir(&source).unwrap();
    fs::write(source.join("file"), body(24 << 20)).unwrap();
    let built = Command::new(&program).args(["build", "-q"]).arg(&image).arg(&source).output();
    assert!(built.as_ref().is_ok_and(|output| output.status.success()), "{built:?}");
    let local = data("lz4.erofs");
    let Some(server) = start_moto(&[&local, &image]) else { return };
    let world = World { settings: server.settings(), ..world };
    let mounted = mount(&world, "s3://images/dir/lz4.erofs", &[]);
    let Some(mounted) = mounted else { return };
    assert!(mounted.tree() == local_tree(&world, "lz4.erofs").unwrap());
    let mut found = 0;
    for entry in fs::read_dir("/proc").unwrap().flatten() {
        let read = |name: &str| fs::read(entry.path().join(name)).unwrap_or_default();
        let words = String::from_utf8_lossy(&read("cmdline")).replace('\0', " ");
        let is_mount = words.contains(mounted.path().to_str().unwrap());
        let is_fetcher = words.contains("ferrofs-fetch --cache");
        let is_of_this = words.contains(world.cache().to_str().unwrap());
        if is_mount || is_fetcher && is_of_this {
            let environment = String::from_utf8_lossy(&read("environ")).into_owned();
            assert!(!environment.contains("hidden"), "{words}: {environment}");
            found += 1;
        }
    }
    assert!(found >= 2, "the mount and the fetcher");
    let big = mount(&world, "s3://images/dir/b.erofs", &[]).unwrap();
    let copy = world.directory.path().join("copy");
    fs::copy(big.path().join("file"), &copy).unwrap();
    assert!(fs::read(copy).unwrap() == body(24 << 20));
}

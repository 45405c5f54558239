//! The fetcher as a process that outlives the verb which has started it: what it leaves to others.

use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use ferrofs_remote::cache::{CacheDirectory, FetcherSocket};
use ferrofs_remote::protocol::RemoteOptions;

use crate::command::{Verb, data, ferrofs, skip};
use crate::logins::registry;
use crate::proof::fetchers;
use crate::server::Server;
use crate::wire::{Answer, Wire};
use crate::world::World;

/// The working directory and the descriptors of a process, by what they lead to.
fn held(process: rustix::process::Pid) -> io::Result<Vec<PathBuf>> {
    let folder = PathBuf::from(format!("/proc/{}", process.as_raw_nonzero()));
    let mut held = vec![fs::read_link(folder.join("cwd"))?];
    for entry in fs::read_dir(folder.join("fd"))? {
        held.extend(fs::read_link(entry?.path()).ok());
    }
    Ok(held)
}

/// `umount` found it busy, `flock` waited, and whoever reads a pipe to its end did not see it.
#[test]
fn a_fetcher_holds_no_directory_and_no_descriptor_of_its_verb() {
    let Some(program) = ferrofs() else { return };
    let world = World::new();
    let server = Server::start(fs::read(data("lz4.erofs")).unwrap());
    let folder = world.directory.path().join("folder");
    fs::create_dir(&folder).unwrap();
    let mut command = Command::new("sh");
    command.args(["-c", "exec 7>&1 8>held 9>lock; exec \"$@\"", "sh"]).arg(&program);
    command.args(["info", &server.url(), "--cache"]).arg(world.cache());
    command.env("FERROFS_FETCH", env!("CARGO_BIN_EXE_ferrofs-fetch")).current_dir(&folder);
    // Returns when nobody can write to the pipe, of which descriptor 7 is a copy.
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let fetchers = fetchers(&world);
    assert_eq!(fetchers.len(), 1, "it ended before the pipe did");
    match held(fetchers[0]) {
        Ok(held) => {
            assert!(held.contains(&PathBuf::from("/")), "{held:?}");
            assert!(!held.iter().any(|path| path.starts_with(&folder)), "{held:?}");
        }
        // The fetcher hides its memory, and this part of `/proc` with it.
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
            skip("needs root or CAP_SYS_PTRACE, to see the files and the directory of a fetcher");
        }
        Err(error) => panic!("{error}"),
    }
}

/// They are read when a registry asks for a login, and the fetcher has another working directory then.
#[test]
fn relative_paths_of_logins_and_helpers_are_those_of_the_verb() {
    let Some(program) = ferrofs() else { return };
    let image = fs::read(data("plain.erofs")).unwrap();
    // me:two, in lower case.
    let wire = registry(image, "basic bwu6dhdv", "Basic realm=\"x\"");
    let host = &wire.host;
    let helper = "#!/bin/sh\necho '{\"Username\":\"me\",\"Secret\":\"two\"}'\n";
    for (variable, login) in [
        ("REGISTRY_AUTH_FILE", format!(r#"{{"auths":{{"{host}":{{"auth":"bWU6dHdv"}}}}}}"#)),
        ("DOCKER_CONFIG", r#"{"credsStore":"near"}"#.to_owned()),
    ] {
        let world = World::new();
        let folder = world.directory.path();
        fs::write(folder.join("config.json"), login).unwrap();
        let near = folder.join("docker-credential-near");
        fs::write(&near, helper).unwrap();
        fs::set_permissions(&near, fs::Permissions::from_mode(0o755)).unwrap();
        let value = if variable == "DOCKER_CONFIG" { "." } else { "config.json" };
        let verb = Verb { program: &program, world: &world };
        let location = format!("oci://{host}/team/image:v1");
        let mut command = verb.command(&["info", &location, "--insecure-registry", host]);
        let paths = format!(".:{}", std::env::var("PATH").unwrap());
        command.env_remove("REGISTRY_AUTH_FILE").env(variable, value).env("PATH", paths);
        let output = command.current_dir(folder).output().unwrap();
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{variable}: {errors}");
    }
}

/// The signal SIGXFSZ ended it.
#[test]
fn a_limit_of_file_sizes_ends_no_fetcher() {
    let Some(program) = ferrofs() else { return };
    let mut image = fs::read(data("lz4.erofs")).unwrap();
    image.resize(3 << 20, 0);
    let server = Server::start(image);
    let run = |limit: &str| {
        let world = World::new();
        let mut command = Command::new("sh");
        let script = format!("ulimit {limit} 200; exec \"$@\"");
        command.args(["-c", &script, "sh"]).arg(&program).args(["check", &server.url(), "--cache"]);
        command.arg(world.cache()).arg("--fetch-timeout=8");
        command.env("FERROFS_FETCH", env!("CARGO_BIN_EXE_ferrofs-fetch"));
        let output = command.output().unwrap();
        (output.status, String::from_utf8_lossy(&output.stderr).into_owned(), fetchers(&world))
    };
    let (status, errors, _) = run("-S -f");
    assert!(status.success(), "{errors}");
    // Neither a disk nor memory takes a chunk then.
    let (status, errors, fetchers) = run("-f");
    assert_eq!(status.code(), Some(1), "{errors}");
    assert!(errors.contains("File too large"), "{errors}");
    assert_eq!(fetchers.len(), 1, "{errors}");
}

/// Another fetcher got the cache while this one could still change it.
#[test]
fn the_lock_of_a_cache_is_held_as_long_as_work_goes_on() {
    let world = World::new();
    let folder = world.directory.path();
    let helper = folder.join("docker-credential-slow");
    let work = folder.join("work");
    fs::write(&work, "").unwrap();
    let script = format!("#!/bin/sh\nwhile [ -e '{}' ]; do sleep 0.1; done\n", work.display());
    fs::write(&helper, script).unwrap();
    fs::set_permissions(&helper, fs::Permissions::from_mode(0o755)).unwrap();
    let login = folder.join("auth.json");
    fs::write(&login, r#"{"credsStore":"slow"}"#).unwrap();
    let wire = Wire::start(|_| {
        Answer::new("401 Unauthorized", &[("www-authenticate", "Basic realm=\"x\"")], b"")
    });
    let cache = CacheDirectory::open(&world.cache()).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_ferrofs-fetch"));
    let paths = format!("{}:{}", folder.display(), std::env::var("PATH").unwrap());
    command.env("PATH", paths).env("DOCKER_CONFIG", folder).env("REGISTRY_AUTH_FILE", &login);
    let mut fetcher =
        command.arg("--cache").arg(world.cache()).args(["--idle", "1"]).spawn().unwrap();
    while cache.connect().is_err() {
        std::thread::sleep(Duration::from_millis(20));
    }
    let mut options = RemoteOptions::default();
    options.insecure_registries.push(wire.host.clone());
    options.limit_ms = Some(500);
    let url = format!("oci://{}/a/b:v1", wire.host).parse().unwrap();
    let client = world.client();
    let opened =
        ferrofs_remote::RemoteSource::open(&client, &url, &options, Duration::from_secs(1));
    opened.unwrap_err();
    drop(client);
    let deadline = Instant::now() + Duration::from_secs(20);
    while world.cache().join("v1/socket").exists() {
        assert!(Instant::now() < deadline);
        std::thread::sleep(Duration::from_millis(20));
    }
    // The helper runs, and its process waits for it.
    assert!(fetcher.try_wait().unwrap().is_none());
    assert!(FetcherSocket::listen(&cache).unwrap().is_none());
    fs::remove_file(work).unwrap();
    assert!(fetcher.wait().unwrap().success());
    assert!(FetcherSocket::listen(&cache).unwrap().is_some());
}

/// A fetcher that ends may have the lock for a moment without listening.
#[test]
fn a_lock_that_is_released_is_taken_by_the_next_fetcher() {
    let Some(program) = ferrofs() else { return };
    let world = World::new();
    let verb = Verb { program: &program, world: &world };
    let server = Server::start(fs::read(data("lz4.erofs")).unwrap());
    let cache = CacheDirectory::open(&world.cache()).unwrap();
    let lock = FetcherSocket::listen(&cache).unwrap().unwrap().into_lock();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            std::thread::sleep(Duration::from_secs(1));
            drop(lock);
        });
        let output = verb.run(&["info", &server.url()]);
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success() && errors.is_empty(), "{errors}");
    });
}

//! Without a cache that can be written: the verbs work, say so once, and write nothing.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::Duration;

use ferrofs_remote::cache::{CacheDirectory, CachePlace};
use ferrofs_remote::protocol::RemoteOptions;
use ferrofs_remote::{FetchClient, FetcherProgram, RemoteSource};

use crate::command::{data, ferrofs, skip};
use crate::mount::mount;
use crate::server::Server;
use crate::world::{World, body, check};

/// The user `nobody`.
const NOBODY: u32 = 65_534;

fn is_root() -> bool {
    fs::metadata("/proc/self").unwrap().uid() == 0
}

/// A copy of the programs where every user reaches them.
struct Programs {
    directory: tempfile::TempDir,
}

impl Programs {
    fn new() -> Option<Self> {
        let directory = tempfile::tempdir().unwrap();
        fs::set_permissions(directory.path(), PermissionsExt::from_mode(0o755)).unwrap();
        // Not by this process: what other tests start while it writes would have the file open for writing as well, and
        // then it cannot be executed (ETXTBSY).
        let mut copy = Command::new("cp");
        copy.arg(ferrofs()?).arg(env!("CARGO_BIN_EXE_ferrofs-fetch")).arg(directory.path());
        assert!(copy.status().unwrap().success());
        Some(Self { directory })
    }

    /// As nobody, if this is root; without environment.
    fn command(&self, words: &[&str]) -> Command {
        let mut command = Command::new(self.directory.path().join("ferrofs"));
        command.env_clear().env("PATH", "/usr/bin:/bin").args(words);
        if is_root() {
            command.uid(NOBODY).gid(NOBODY);
        }
        command
    }
}

/// The output of `ls -R` that a verb must have printed, with one warning.
fn assert_warned(output: &Output, wanted: &[u8]) {
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}");
    assert!(output.stdout == wanted, "{errors}");
    assert_eq!(errors.matches("warning: nothing is cached").count(), 1, "{errors}");
}

fn files_below(path: &Path) -> Vec<(PathBuf, u64)> {
    let mut found = Vec::new();
    for entry in fs::read_dir(path).unwrap() {
        let entry = entry.unwrap();
        match entry.file_type().unwrap().is_dir() {
            true => found.extend(files_below(&entry.path())),
            false => found.push((entry.path(), entry.metadata().unwrap().blocks())),
        }
    }
    found.sort();
    found
}

fn list(programs: &Programs, image: &str) -> Vec<u8> {
    programs.command(&["ls", "-R", image]).output().unwrap().stdout
}

#[test]
fn no_home_directory_and_directories_that_cannot_be_made_mean_no_cache() {
    let Some(programs) = Programs::new() else { return };
    if !is_root() {
        skip("needs root, to be another user");
        return;
    }
    let world = World::new();
    let local = programs.directory.path().join("image");
    fs::copy(data("lz4.erofs"), &local).unwrap();
    let wanted = list(&programs, local.to_str().unwrap());
    assert!(!wanted.is_empty());
    let server = Server::start(fs::read(&local).unwrap());
    let verb = |words: &[&str], home: Option<&str>| {
        let mut command = programs.command(&["ls", "-R", &server.url()]);
        command.args(words);
        if let Some(home) = home {
            command.env("HOME", home);
        }
        command.output().unwrap()
    };
    assert_warned(&verb(&[], None), &wanted);
    assert_warned(&verb(&[], Some("/nonexistent")), &wanted);
    assert_warned(&verb(&[], Some("/dev/null")), &wanted);
    assert_warned(&verb(&[], Some("/root")), &wanted);
    let below = world.directory.path().join("closed/cache");
    assert_warned(&verb(&["--cache", below.to_str().unwrap()], None), &wanted);
    // A directory of another user is refused if it was named, since it cannot be trusted.
    let foreign = programs.directory.path().join("foreign");
    drop(CacheDirectory::open(&foreign).unwrap());
    fs::set_permissions(&foreign, PermissionsExt::from_mode(0o755)).unwrap();
    let refused = verb(&["--cache", foreign.to_str().unwrap()], None);
    assert_eq!(refused.status.code(), Some(1));
    let errors = String::from_utf8_lossy(&refused.stderr);
    assert!(errors.contains("belongs to user 0"), "{errors}");
}

#[test]
fn a_filled_cache_without_the_right_to_write_is_used_and_not_changed() {
    let Some(programs) = Programs::new() else { return };
    let local = programs.directory.path().join("image");
    fs::copy(data("lz4.erofs"), &local).unwrap();
    let wanted = list(&programs, local.to_str().unwrap());
    let server = Server::start(fs::read(&local).unwrap());
    let home = tempfile::tempdir().unwrap();
    if is_root() {
        std::os::unix::fs::chown(home.path(), Some(NOBODY), Some(NOBODY)).unwrap();
    }
    let cache = home.path().join("cache");
    let words = ["ls", "-R", &server.url(), "--cache", cache.to_str().unwrap()];
    let filling = programs.command(&words).output().unwrap();
    assert!(filling.stderr.is_empty(), "{}", String::from_utf8_lossy(&filling.stderr));
    // Its fetcher has gone.
    let probe = CacheDirectory::open_existing(&cache);
    if let Ok(probe) = probe {
        let deadline = std::time::Instant::now() + Duration::from_secs(90);
        while probe.connect().is_ok() && std::time::Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(100));
        }
    } else {
        end_fetchers(&cache);
    }
    let set_mode = |mode| {
        for folder in [cache.join("v1"), cache.clone()] {
            fs::set_permissions(folder, PermissionsExt::from_mode(mode)).unwrap();
        }
    };
    set_mode(0o500);
    let before = (files_below(&cache), server.0.sent.load(std::sync::atomic::Ordering::SeqCst));
    assert_warned(&programs.command(&words).output().unwrap(), &wanted);
    let sent = server.0.sent.load(std::sync::atomic::Ordering::SeqCst) - before.1;
    assert!(sent <= 1, "{sent} bytes, beside the question what it is");
    let offline = programs.command(&words).arg("--offline").output().unwrap();
    assert_warned(&offline, &wanted);
    // Damaged bytes of it are not used.
    let (data, _) = before.0.iter().find(|(path, _)| path.ends_with("data")).unwrap();
    let right = fs::read(data).unwrap();
    let mut wrong = right.clone();
    wrong[1024] ^= 1;
    fs::write(data, wrong).unwrap();
    assert_warned(&programs.command(&words).output().unwrap(), &wanted);
    fs::write(data, right).unwrap();
    assert_eq!(files_below(&cache), before.0);
    set_mode(0o700);
}

/// Ends the fetcher of a cache that this process cannot open.
fn end_fetchers(cache: &Path) {
    let name = cache.to_str().unwrap().as_bytes();
    for entry in fs::read_dir("/proc").unwrap() {
        let entry = entry.unwrap();
        let number = entry.file_name().to_str().and_then(|name| name.parse().ok());
        let Some(process) = number.and_then(rustix::process::Pid::from_raw) else { continue };
        let words = fs::read(entry.path().join("cmdline")).unwrap_or_default();
        let mut words = words.split(|byte| *byte == 0);
        let is_fetcher = words.next().unwrap_or_default().ends_with(b"ferrofs-fetch");
        if is_fetcher && words.any(|word| word == name) {
            // It may have ended already.
            rustix::process::kill_process(process, rustix::process::Signal::KILL).ok();
            let path = entry.path();
            let deadline = std::time::Instant::now() + Duration::from_secs(20);
            let runs = || fs::read(path.join("cmdline")).is_ok_and(|words| !words.is_empty());
            while runs() && std::time::Instant::now() < deadline {
                std::thread::sleep(Duration::from_millis(1));
            }
        }
    }
}

/// Something that is mounted at `path` until this is dropped.
struct Mounted<'p>(&'p Path);

impl<'p> Mounted<'p> {
    fn new(path: &'p Path, words: &[&str]) -> Option<Self> {
        let output = Command::new("mount").args(words).arg(path).output();
        match output {
            Ok(output) if output.status.success() => Some(Self(path)),
            _ => {
                skip("needs the right to mount");
                None
            }
        }
    }
}

impl Drop for Mounted<'_> {
    fn drop(&mut self) {
        let unmounted = Command::new("umount").arg("-l").arg(self.0).status().unwrap();
        assert!(unmounted.success());
    }
}

#[test]
fn a_read_only_file_system_serves_verbs_and_mounts() {
    let Some(programs) = Programs::new() else { return };
    let world = World::new();
    let path = world.cache();
    fs::create_dir(&path).unwrap();
    fs::set_permissions(&path, PermissionsExt::from_mode(0o700)).unwrap();
    let text = path.to_str().unwrap();
    let Some(_mounted) = Mounted::new(&path, &["--bind", text]) else { return };
    let remounted = Command::new("mount").args(["-o", "remount,bind,ro", text]).status();
    assert!(remounted.unwrap().success());
    let local = data("lz4.erofs");
    let wanted = list(&programs, local.to_str().unwrap());
    let server = Server::start(fs::read(&local).unwrap());
    let mut command = Command::new(programs.directory.path().join("ferrofs"));
    let output = command.args(["ls", "-R", &server.url(), "--cache", text]).output().unwrap();
    assert_warned(&output, &wanted);
    if let Some(mounted) = mount(&world, &server.url(), &[]) {
        let local = mount(&world, local.to_str().unwrap(), &[]).unwrap();
        assert!(!mounted.tree().is_empty());
        assert_eq!(mounted.tree(), local.tree());
    }
    assert_eq!(fs::read_dir(&path).unwrap().count(), 0);
}

#[test]
fn a_disk_of_a_mebibyte_is_no_cache() {
    let Some(programs) = Programs::new() else { return };
    let world = World::new();
    let path = world.directory.path().join("disk");
    fs::create_dir(&path).unwrap();
    let words = ["-t", "tmpfs", "-o", "size=1m,mode=0700", "tmpfs"];
    let Some(_mounted) = Mounted::new(&path, &words) else { return };
    let local = data("lz4.erofs");
    let wanted = list(&programs, local.to_str().unwrap());
    // Its first chunk does not fit.
    let mut image = fs::read(&local).unwrap();
    image.resize(3 << 20, 0);
    let server = Server::start(image);
    let verb = |folder: &str| {
        let mut command = Command::new(programs.directory.path().join("ferrofs"));
        command.args(["ls", "-R", &server.url(), "--cache"]).arg(path.join(folder));
        command.output().unwrap()
    };
    assert_warned(&verb("cache"), &wanted);
    end_fetchers(&path.join("cache"));
    fs::write(path.join("rest"), vec![7; 2 << 20]).unwrap_err();
    assert_warned(&verb("cache"), &wanted);
    assert_warned(&verb("another"), &wanted);
    for folder in ["cache", "another"] {
        end_fetchers(&path.join(folder));
    }
}

/// Nothing was evicted, and nothing new was stored.
#[test]
fn a_disk_without_inodes_evicts_objects_for_new_ones() {
    let mut world = World::new();
    world.timeout_seconds = 5;
    fs::create_dir(world.cache()).unwrap();
    let words = ["-t", "tmpfs", "-o", "size=400m,nr_inodes=40,mode=0700", "tmpfs"];
    let path = world.cache();
    let Some(_mounted) = Mounted::new(&path, &words) else { return };
    for number in 0..12 {
        let server = Server::start(body(2000 + number));
        let source = world.open(&server.url());
        assert!(!source.state().in_memory, "object {number}");
        check(&source, 0, 1000);
    }
}

#[test]
fn a_fetcher_without_a_cache_keeps_a_bounded_part_and_can_be_killed() {
    let world = World::new();
    let server = Server::start(body(200 << 20));
    let place = CachePlace::uncached("the test wants none".to_owned());
    let program = PathBuf::from(env!("CARGO_BIN_EXE_ferrofs-fetch"));
    let connector = std::sync::Arc::new(FetcherProgram::new(place, program, Vec::new()));
    let client = FetchClient::new(Box::new(std::sync::Arc::clone(&connector))).unwrap();
    let client = std::sync::Arc::new(client);
    assert_eq!(connector.uncached_because().as_deref(), Some("the test wants none"));
    let (url, options) = (server.url().parse().unwrap(), RemoteOptions::default());
    let timeout = Duration::from_secs(60);
    let source = RemoteSource::open(&client, &url, &options, timeout).unwrap();
    assert!(source.state().in_memory);
    std::thread::scope(|scope| {
        for reader in 0..4u64 {
            let source = &source;
            scope.spawn(move || {
                for step in 0..50 {
                    check(source, (reader * 50 + step) << 20, 1 << 20);
                }
            });
        }
    });
    // Nothing was written anywhere, and the fetcher is a child of this process.
    assert_eq!(fs::read_dir(world.directory.path()).unwrap().count(), 0);
    let connection = client.connection().unwrap();
    let bytes = kept_bytes();
    assert!((32 << 20..=66 << 20).contains(&bytes), "{bytes}");
    connection.shut_down();
    drop(connection);
    check(&source, 7 << 20, 3 << 20);
    assert!(client.reconnects() >= 1);
}

/// Bytes in memory of the files that fetchers have given this process. They are deleted files, so
/// that only descriptors lead to them.
fn kept_bytes() -> u64 {
    let all = fs::read_dir("/proc/self/fd").unwrap();
    let paths = all.map(|entry| entry.unwrap().path());
    let is_ours = |path: &PathBuf| {
        fs::read_link(path).is_ok_and(|to| to.to_string_lossy().starts_with("/memfd:data"))
    };
    paths.filter(is_ours).map(|path| fs::metadata(path).unwrap().blocks() * 512).sum()
}

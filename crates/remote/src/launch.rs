//! Reaches the fetcher of a cache, and starts it if none runs.

use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

use crate::cache::{CacheDirectory, CachePlace};
use crate::client::Connector;
use crate::connection::Connection;
use crate::lock::lock;
use crate::protocol::{ClientMessage, ClientRole};
use crate::store_settings::{METADATA_NAMES, StoreSettings};

/// The name of the program.
const PROGRAM: &str = "ferrofs-fetch";
/// How long a fetcher may take to start.
const START_TIMEOUT: Duration = Duration::from_millis(if cfg!(test) { 1000 } else { 10_000 });
/// How many heaps its threads have.
const HEAP_VARIABLE: &str = "MALLOC_ARENA_MAX";
const START_PAUSE: Duration = Duration::from_millis(5);
/// How long the fetcher that has the lock may take to listen, or to end, before another one is started.
const RESTART_PAUSE: Duration = Duration::from_millis(200);

/// The exit status of a fetcher that cannot write in its cache directory.
pub const CACHE_UNUSABLE: u8 = 3;
/// The exit status of a fetcher if another process has the lock of its cache directory.
pub const CACHE_BUSY: u8 = 4;

/// Connects to the fetcher of a cache, or starts it.
#[derive(Debug)]
pub struct FetcherProgram {
    cache: CachePlace,
    /// Why the last connection is to a fetcher without a cache.
    diagnostic: Mutex<Option<String>>,
    program: PathBuf,
    arguments: Vec<OsString>,
    cache_limit: Option<u64>,
    settings: StoreSettings,
    role: ClientRole,
}

impl FetcherProgram {
    /// Uses `program`, with `arguments` beside `--cache DIR`. Objects of object stores are requested
    /// with the settings of this process' environment.
    #[must_use]
    pub fn new(cache: impl Into<CachePlace>, program: PathBuf, arguments: Vec<OsString>) -> Self {
        let settings = StoreSettings::from_environment();
        let (cache, diagnostic) = (cache.into(), Mutex::default());
        let role = ClientRole::Full;
        Self { cache, diagnostic, program, arguments, cache_limit: None, settings, role }
    }

    /// Why the last connection is to a fetcher that stores nothing, if it is.
    #[must_use]
    pub fn uncached_because(&self) -> Option<String> {
        lock(&self.diagnostic).clone()
    }

    /// The same, with a limit of the bytes that the cache may take while a connection lasts.
    #[must_use]
    pub fn cache_limit(mut self, bytes: Option<u64>) -> Self {
        self.cache_limit = bytes;
        self
    }

    /// The same, with these settings of object stores instead of those of the environment.
    #[must_use]
    pub fn settings(mut self, settings: StoreSettings) -> Self {
        self.settings = settings;
        self
    }

    /// The same, for clients that may request only what this role allows.
    #[must_use]
    pub fn role(mut self, role: ClientRole) -> Self {
        self.role = role;
        self
    }

    /// Where the fetcher is installed: beside `executable`, or in `../libexec/ferrofs` of it; else
    /// its bare name, which is looked up in `PATH`.
    #[must_use]
    pub fn find(executable: &Path) -> PathBuf {
        let folder = executable.parent().unwrap_or(Path::new("."));
        let places = [folder.join(PROGRAM), folder.join("../libexec/ferrofs").join(PROGRAM)];
        places.into_iter().find(|place| place.is_file()).unwrap_or_else(|| PathBuf::from(PROGRAM))
    }

    /// Starts a fetcher; its exit status is there when it has ended.
    fn start(
        &self,
        input: Stdio,
        words: &[&std::ffi::OsStr],
    ) -> io::Result<Arc<OnceLock<ExitStatus>>> {
        let mut child = self.command(input, words).spawn().map_err(|error| {
            let program = self.program.display();
            io::Error::new(
                error.kind(),
                format!(
                    "cannot start {program}: {error}; remote images need ferrofs-fetch: install it, \
                     or set FERROFS_FETCH to its path"
                ),
            )
        })?;
        let ended = Arc::new(OnceLock::new());
        let status = Arc::clone(&ended);
        // Reaps it when it ends; it outlives this process otherwise.
        let waiting = std::thread::Builder::new().name("fetch-wait".to_owned());
        waiting.spawn(move || child.wait().map(|waited| status.set(waited)))?;
        Ok(ended)
    }

    fn command(&self, input: Stdio, words: &[&std::ffi::OsStr]) -> Command {
        let mut command = Command::new(&self.program);
        command.args(words).args(&self.arguments);
        command.stdin(input).stdout(Stdio::null());
        // The fetcher serves many processes, each with the settings that it sends (O1).
        for name in StoreSettings::names().iter().chain(&METADATA_NAMES) {
            command.env_remove(name);
        }
        // Of the GNU C library: buffers that one thread frees serve another one. Connections wait for the
        // network and not for the heap, and the peak is a fifth lower.
        if std::env::var_os(HEAP_VARIABLE).is_none() {
            command.env(HEAP_VARIABLE, "1");
        }
        // Signals of the terminal end the verb, and not the fetcher that others use, too.
        std::os::unix::process::CommandExt::process_group(&mut command, 0);
        crate::child::detach(&mut command);
        command
    }

    fn connect_or_start(&self) -> io::Result<Connection> {
        let shared = match &self.cache {
            CachePlace::Uncached { filled, diagnostic } => {
                return self.start_private(filled.as_ref(), diagnostic.clone());
            }
            CachePlace::Shared(shared) => shared,
        };
        let is_absent = |error: &io::Error| {
            matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused)
        };
        let start = || self.start(Stdio::null(), &["--cache".as_ref(), shared.path().as_os_str()]);
        let reach = || match shared.connect() {
            Err(error) if is_absent(&error) => None,
            reached => {
                *lock(&self.diagnostic) = None;
                Some(reached)
            }
        };
        if let Some(reached) = reach() {
            return reached;
        }
        let mut ended = start()?;
        let deadline = Instant::now() + START_TIMEOUT;
        let (mut is_busy, mut restart) = (false, None);
        loop {
            if let Some(reached) = reach() {
                return reached;
            }
            let now = Instant::now();
            let code = ended.get().and_then(|status: &ExitStatus| status.code());
            let code = code.map(|code| u8::try_from(code).unwrap_or(u8::MAX));
            is_busy |= code == Some(CACHE_BUSY);
            let place = shared.path().display();
            match code {
                Some(CACHE_UNUSABLE) => {
                    let diagnostic = format!("{place}: cannot be written");
                    return self.start_private(Some(shared), diagnostic);
                }
                // The lock is that of another machine, by a network file system. What is stored there may be half
                // written.
                Some(CACHE_BUSY) | None if is_busy && now >= deadline => {
                    let diagnostic =
                        format!("{place}: another process has its lock and cannot be reached");
                    return self.start_private(None, diagnostic);
                }
                Some(CACHE_BUSY) => {
                    if *restart.get_or_insert(now + RESTART_PAUSE) <= now {
                        (ended, restart) = (start()?, None);
                    }
                }
                Some(0) | None if now < deadline => {}
                Some(0) | None => {
                    let seconds = START_TIMEOUT.as_secs();
                    return Err(self.unusable(&format!("it did not answer within {seconds} s")));
                }
                Some(code) => {
                    return Err(self.unusable(&format!("it ended with status {code}")));
                }
            }
            std::thread::sleep(START_PAUSE);
        }
    }

    /// The program was started and is no fetcher, most likely.
    fn unusable(&self, why: &str) -> io::Error {
        let program = self.program.display();
        io::Error::other(format!(
            "{program}: {why}; remote images need ferrofs-fetch of this version: install it, or \
             set FERROFS_FETCH to its path"
        ))
    }

    /// A fetcher for one connection, which it has from its start and with which it ends.
    fn start_private(
        &self,
        filled: Option<&CacheDirectory>,
        diagnostic: String,
    ) -> io::Result<Connection> {
        let (ours, theirs) = Connection::pair()?;
        let mut words = vec!["--uncached".as_ref()];
        if let Some(filled) = filled {
            words.extend(["--cache".as_ref(), filled.path().as_os_str()]);
        }
        self.start(Stdio::from(theirs.into_socket()), &words)?;
        *lock(&self.diagnostic) = Some(diagnostic);
        Ok(ours)
    }
}

impl Connector for FetcherProgram {
    fn cache_limit(&self) -> Option<u64> {
        self.cache_limit
    }

    fn connect(&self) -> io::Result<Connection> {
        let connection = self.connect_or_start()?;
        if !self.settings.is_empty() || self.role != ClientRole::Full {
            let (settings, role) = (self.settings.clone(), self.role);
            match connection.send(&ClientMessage::Settings { settings, role }, &[]) {
                // The handshake reads why the fetcher has closed the connection.
                Err(error) if error.kind() == io::ErrorKind::BrokenPipe => {}
                sent => sent?,
            }
        }
        Ok(connection)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whoever started the fetcher decided where all clients get the credentials of the machine.
    #[test]
    fn a_fetcher_has_no_settings_of_stores_in_its_environment() {
        let place = CachePlace::uncached(String::new());
        let program = FetcherProgram::new(place, PathBuf::from(PROGRAM), Vec::new());
        let command = program.command(Stdio::null(), &[]);
        let is_removed =
            |name: &str| command.get_envs().any(|(key, value)| key == name && value.is_none());
        for name in ["AWS_SECRET_ACCESS_KEY", "GCE_METADATA_HOST", "GCE_METADATA_IP"] {
            assert!(is_removed(name), "{name}");
        }
        assert!(is_removed("GCE_METADATA_ROOT") && is_removed("IDENTITY_HEADER"));
    }

    /// It was an error, with the advice to install the fetcher. When the fetcher could be reached again, the reason stayed.
    #[test]
    fn a_lock_whose_holder_cannot_be_reached_means_no_cache_until_it_can_be_reached() {
        let above = tempfile::tempdir().unwrap();
        let fetcher = above.path().join("fetcher");
        // Written by a process of its own: a fork of another test would keep the file busy, which could not be executed.
        let script = format!("printf '#!/bin/sh\\nexit {CACHE_BUSY}\\n' >\"$0\"; chmod 755 \"$0\"");
        let written = Command::new("/bin/sh").args(["-c", &script]).arg(&fetcher).status();
        assert!(written.unwrap().success());
        let path = above.path().join("cache");
        let place = || CacheDirectory::open(&path).unwrap();
        let program = FetcherProgram::new(place(), fetcher, Vec::new());
        program.connect_or_start().unwrap();
        let diagnostic = program.uncached_because().unwrap();
        assert!(diagnostic.contains("another process has its lock"), "{diagnostic}");
        let _socket = crate::cache::FetcherSocket::listen(&place()).unwrap().unwrap();
        program.connect_or_start().unwrap();
        assert_eq!(program.uncached_because(), None);
    }
}

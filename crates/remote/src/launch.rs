//! Reaches the fetcher of a cache, and starts it if none runs.

use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::cache::CacheDirectory;
use crate::client::Connector;
use crate::connection::Connection;
use crate::protocol::ClientMessage;
use crate::store_settings::StoreSettings;

/// The name of the program.
const PROGRAM: &str = "ferrofs-fetch";
/// How long a fetcher may take to start.
const START_TIMEOUT: Duration = Duration::from_secs(10);
const START_PAUSE: Duration = Duration::from_millis(5);

/// Connects to the fetcher of a cache, or starts it.
#[derive(Debug)]
pub struct FetcherProgram {
    cache: CacheDirectory,
    program: PathBuf,
    arguments: Vec<OsString>,
    cache_limit: Option<u64>,
    settings: StoreSettings,
}

impl FetcherProgram {
    /// Uses `program`, with `arguments` beside `--cache DIR`. Objects of object stores are requested
    /// with the settings of this process' environment.
    #[must_use]
    pub fn new(cache: CacheDirectory, program: PathBuf, arguments: Vec<OsString>) -> Self {
        let settings = StoreSettings::from_environment();
        Self { cache, program, arguments, cache_limit: None, settings }
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

    /// Where the fetcher is installed: beside `executable`, or in `../libexec/ferrofs` of it; else
    /// its bare name, which is looked up in `PATH`.
    #[must_use]
    pub fn find(executable: &Path) -> PathBuf {
        let folder = executable.parent().unwrap_or(Path::new("."));
        let places = [folder.join(PROGRAM), folder.join("../libexec/ferrofs").join(PROGRAM)];
        places.into_iter().find(|place| place.is_file()).unwrap_or_else(|| PathBuf::from(PROGRAM))
    }

    fn start(&self) -> io::Result<()> {
        let mut command = Command::new(&self.program);
        command.arg("--cache").arg(self.cache.path()).args(&self.arguments);
        command.stdin(Stdio::null()).stdout(Stdio::null());
        // The fetcher serves many processes, each with the settings that it sends.
        for name in StoreSettings::names() {
            command.env_remove(name);
        }
        // Signals of the terminal end the verb, and not the fetcher that others use, too.
        std::os::unix::process::CommandExt::process_group(&mut command, 0);
        let mut child = command.spawn().map_err(|error| {
            let program = self.program.display();
            io::Error::new(
                error.kind(),
                format!("cannot start {program}: {error}; remote images need ferrofs-fetch"),
            )
        })?;
        // Reaps it when it ends; it outlives this process otherwise.
        let waiting = std::thread::Builder::new().name("fetch-wait".to_owned());
        waiting.spawn(move || child.wait().map(drop)).map(drop)
    }

    fn connect_or_start(&self) -> io::Result<Connection> {
        let is_absent = |error: &io::Error| {
            matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused)
        };
        match self.cache.connect() {
            Err(error) if is_absent(&error) => self.start()?,
            other => return other,
        }
        let deadline = Instant::now() + START_TIMEOUT;
        loop {
            match self.cache.connect() {
                Err(error) if is_absent(&error) && Instant::now() < deadline => {
                    std::thread::sleep(START_PAUSE);
                }
                other => return other,
            }
        }
    }
}

impl Connector for FetcherProgram {
    fn cache_limit(&self) -> Option<u64> {
        self.cache_limit
    }

    fn connect(&self) -> io::Result<Connection> {
        let connection = self.connect_or_start()?;
        if !self.settings.is_empty() {
            let settings = self.settings.clone();
            connection.send(&ClientMessage::Settings { settings }, &[])?;
        }
        Ok(connection)
    }
}

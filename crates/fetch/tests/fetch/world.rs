//! A cache, a fetcher that is started on demand, and clients of it.

use std::ops::Range;
use std::path::PathBuf;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use ferrofs_image::ImageSource;
use ferrofs_remote::cache::CacheDirectory;
use ferrofs_remote::protocol::RemoteOptions;
use ferrofs_remote::{FetchClient, FetcherProgram, RemoteSource, StoreSettings};

pub(crate) struct World {
    pub(crate) directory: tempfile::TempDir,
    /// Of the fetcher, for one request; a client waits three times as long.
    pub(crate) timeout_seconds: u32,
    /// What clients request.
    pub(crate) cache_limit: Option<u64>,
    /// Of object stores.
    pub(crate) settings: StoreSettings,
    /// Paths in the environment of the command, and of the fetcher that it starts.
    pub(crate) environment: Vec<(&'static str, PathBuf)>,
}

/// Byte `at` of every object is `(at * 13 + at / 2048) % 251`: its periods differ from those of pages and chunks. These are
/// the bytes of the first 2 KiB, and as many more as another start needs.
static CYCLE: LazyLock<Vec<u8>> = LazyLock::new(|| {
    (0..251 + 2048).map(|step: u16| u8::try_from(step * 13 % 251).unwrap()).collect()
});

/// The bytes of every object in a range. Copied by blocks: a sum for each byte took a tenth of the CPU time of all tests.
pub(crate) fn object_bytes(range: Range<u64>) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(usize::try_from(range.end - range.start).unwrap());
    let mut at = range.start;
    while at < range.end {
        let end = range.end.min((at | 2047) + 1);
        // 58 * 13 % 251 is 1.
        let first = usize::try_from((at + 58 * (at >> 11)) % 251).unwrap();
        bytes.extend_from_slice(&CYCLE[first..][..usize::try_from(end - at).unwrap()]);
        at = end;
    }
    bytes
}

pub(crate) fn body(length: u64) -> Vec<u8> {
    object_bytes(0..length)
}

impl World {
    pub(crate) fn new() -> Self {
        Self {
            directory: tempfile::tempdir().unwrap(),
            timeout_seconds: 20,
            cache_limit: None,
            settings: StoreSettings::default(),
            environment: Vec::new(),
        }
    }

    pub(crate) fn cache(&self) -> PathBuf {
        self.directory.path().join("cache")
    }

    pub(crate) fn client(&self) -> Arc<FetchClient> {
        Arc::new(self.try_client().unwrap())
    }

    pub(crate) fn try_client(&self) -> std::io::Result<FetchClient> {
        let cache = CacheDirectory::open(&self.cache()).unwrap();
        let program = PathBuf::from(env!("CARGO_BIN_EXE_ferrofs-fetch"));
        let timeout = self.timeout_seconds.to_string();
        let arguments = ["--idle", "2", "--timeout", &timeout].map(Into::into).to_vec();
        let connector = FetcherProgram::new(cache, program, arguments)
            .settings(self.settings.clone())
            .cache_limit(self.cache_limit);
        FetchClient::new(Box::new(connector))
    }

    pub(crate) fn open(&self, url: &str) -> RemoteSource {
        self.try_open(url, &RemoteOptions::default()).unwrap()
    }

    /// By a client that others use, too.
    pub(crate) fn open_with(&self, client: &Arc<FetchClient>, url: &str) -> RemoteSource {
        let timeout = Duration::from_secs(3 * u64::from(self.timeout_seconds));
        let options = RemoteOptions::default();
        RemoteSource::open(client, &url.parse().unwrap(), &options, timeout).unwrap()
    }

    pub(crate) fn try_open(
        &self,
        url: &str,
        options: &RemoteOptions,
    ) -> std::io::Result<RemoteSource> {
        let timeout = Duration::from_secs(3 * u64::from(self.timeout_seconds));
        RemoteSource::open(&self.client(), &url.parse().unwrap(), options, timeout)
    }
}

/// Reads and compares.
pub(crate) fn check(source: &RemoteSource, offset: u64, bytes: usize) {
    let mut buffer = vec![0; bytes];
    let count = source.read_at(offset, &mut buffer).unwrap();
    assert_eq!(count as u64, source.length().saturating_sub(offset).min(bytes as u64));
    let wanted = object_bytes(offset..offset + count as u64);
    assert!(buffer[..count] == wanted, "bytes from {offset} on");
}

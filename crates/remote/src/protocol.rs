//! The messages between a process that reads an image and the fetcher, version
//! [`PROTOCOL_VERSION`]. The steps are in docs/remote.md. One message is one record of a
//! `SOCK_SEQPACKET` socket, at most [`MESSAGE_MAX_BYTES`] long, as JSON; descriptors travel beside
//! it. A peer that sends anything else is disconnected.

use std::fmt;
use std::io;
use std::ops::Range;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::digest::ContentDigest;
use crate::location::RemoteLocation;
use crate::store_settings::StoreSettings;

/// The version of this protocol. Both sides must have the same.
pub const PROTOCOL_VERSION: u32 = 5;
/// The longest message, in bytes.
pub const MESSAGE_MAX_BYTES: usize = 64 << 10;
/// The longest text of an error, in bytes: a server can send any.
const TEXT_MAX_BYTES: usize = 2 << 10;
/// Most ranges of one `fetch`.
pub const FETCH_RANGES_MAX: usize = 1024;
/// Most descriptors beside one message: data, index, chunk index.
pub const DESCRIPTORS_MAX: usize = 3;
/// The id of a `fetch` that gets no reply.
pub const NO_REPLY: u64 = 0;

/// A message to the fetcher.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "kebab-case")]
#[non_exhaustive]
pub enum ClientMessage {
    /// Before `hello` and once, or never: with which settings and credentials the objects of this
    /// connection are requested from object stores, and what its client may request. It comes from
    /// the process that connects, which for a mount is not the one that reads.
    Settings {
        /// The settings.
        settings: StoreSettings,
        /// What the client may request, from here on.
        #[serde(default)]
        role: ClientRole,
    },
    /// The first message of a connection but `settings`.
    Hello {
        /// [`PROTOCOL_VERSION`] of the sender.
        version: u32,
        /// Bytes that the cache may take while this client is connected. The smallest number of all
        /// clients counts; the fetcher's own if none has one.
        #[serde(default)]
        cache_limit: Option<u64>,
    },
    /// Opens an object under a number that the client chooses.
    Open {
        /// Names the reply.
        id: u64,
        /// The number; unused on this connection.
        object: u64,
        /// Where it is.
        location: Box<RemoteLocation>,
        /// How it is opened.
        options: RemoteOptions,
        /// The object as it was opened on an earlier connection. The fetcher then asks no server.
        expected: Option<ObjectState>,
    },
    /// Stores chunks of an object in the cache.
    Fetch {
        /// Names the reply, or [`NO_REPLY`].
        id: u64,
        /// The number of the object.
        object: u64,
        /// Ranges of chunks, in ascending order: the first, and the one behind the last.
        chunks: Vec<(u32, u32)>,
        /// Whether a reader waits.
        urgency: FetchUrgency,
        /// What was delivered was damaged: asks the server itself and not a cache before it.
        past_caches: bool,
    },
    /// Publishes an image in a registry: uploads the blobs that it lacks, then the manifest. Beside
    /// it: a file for each part of each blob, in their order.
    Push {
        /// Names the reply.
        id: u64,
        /// What is published.
        request: Box<PushRequest>,
    },
    /// Asks for the manifest of an OCI image.
    Manifest {
        /// Names the reply.
        id: u64,
        /// The image.
        location: Box<RemoteLocation>,
        /// How the registry is reached.
        options: RemoteOptions,
    },
    /// The object is not used any more.
    Close {
        /// The number of the object.
        object: u64,
    },
    /// Asks for the statistics of the fetcher.
    Stats {
        /// Names the reply.
        id: u64,
    },
    /// Chunks that were read from the cache: they are evicted later than others.
    Used {
        /// The number of the object.
        object: u64,
        /// Ranges as in `fetch`.
        chunks: Vec<(u32, u32)>,
    },
    /// Removes objects from the cache.
    Prune {
        /// Names the reply.
        id: u64,
        /// Which.
        what: PruneRequest,
    },
    /// Discards chunks of the cache that are damaged.
    Discard {
        /// Names the reply.
        id: u64,
        /// The key of the object.
        key: String,
        /// Ranges as in `fetch`. None: the whole object, as its index is damaged.
        chunks: Vec<(u32, u32)>,
    },
}

/// What the client at the other end of a connection may request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ClientRole {
    /// Everything.
    #[default]
    Full,
    /// Reading: it opens and closes objects, fetches chunks and asks for statistics. Any other request
    /// ends the connection. So a daemon that an image has taken over publishes nothing with the logins
    /// of its user, and names nothing to remove from the cache. It can still state a low limit of the
    /// cache in `hello`.
    Reader,
}

/// What to remove from the cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PruneRequest {
    /// All objects that nobody has open.
    Unused,
    /// Those of them that were not used for so many seconds.
    OlderThan(u64),
    /// What was not used for the longest time, until the cache takes at most so many bytes.
    DownTo(u64),
}

/// What was removed from the cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PruneReport {
    /// Whole objects.
    pub objects: u64,
    /// Chunks of objects that stay.
    pub chunks: u64,
    /// Bytes on the disk that were freed.
    pub freed_bytes: u64,
    /// Bytes on the disk that the cache takes now.
    pub used_bytes: u64,
}

/// An image that is published.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct PushRequest {
    /// The repository and the tag.
    pub location: RemoteLocation,
    /// How the registry is reached.
    pub options: RemoteOptions,
    /// The blobs.
    pub blobs: Vec<PushBlob>,
    /// The manifest, which names them.
    pub manifest: String,
}

impl PushRequest {
    /// A request without blobs.
    #[must_use]
    pub fn new(location: RemoteLocation, options: RemoteOptions, manifest: String) -> Self {
        Self { location, options, blobs: Vec::new(), manifest }
    }
}

/// A blob of an image that is published: the first bytes of one or more files.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PushBlob {
    /// The digest of all its bytes.
    pub digest: ContentDigest,
    /// How many bytes of each of its files it has.
    pub parts: Vec<u64>,
}

/// What publishing an image has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct PushReport {
    /// Bytes of blobs that were uploaded.
    pub uploaded_bytes: u64,
    /// Bytes of blobs that the registry had already.
    pub present_bytes: u64,
}

/// How urgent a fetch is. A demand never waits behind a prefetch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum FetchUrgency {
    /// A reader waits for it.
    Demand,
    /// It may be needed soon.
    Prefetch,
}

/// How an object is opened.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct RemoteOptions {
    /// What must be verified.
    pub verify: VerifyMode,
    /// Opens no connection: only what is cached is served.
    pub offline: bool,
    /// Hosts, as in `localhost:5000` and in any case, whose registries speak HTTP without TLS.
    pub insecure_registries: Vec<String>,
    /// How long the client waits for a reply that needs a server, in milliseconds. Then the fetcher
    /// replies with the last failure; without a limit, it does when it gives up itself.
    #[serde(default)]
    pub limit_ms: Option<u64>,
}

impl RemoteOptions {
    /// How long the client waits for a reply that needs a server.
    #[must_use]
    pub fn limit(&self) -> Option<Duration> {
        self.limit_ms.map(Duration::from_millis)
    }

    /// The same options for a client that waits so long.
    pub(crate) fn within(&self, timeout: Duration) -> Self {
        let limit_ms = Some(u64::try_from(timeout.as_millis()).unwrap_or(u64::MAX));
        Self { limit_ms, ..self.clone() }
    }
}

/// Which bytes must be verified before they are used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum VerifyMode {
    /// All. An object without a chunk index is refused: only its whole has a digest.
    Require,
    /// Those for which there is a digest.
    #[default]
    Try,
    /// None, beside the checks of the cache and of the transport.
    Off,
}

/// What an opened object is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct ObjectState {
    /// The key of the cache, as 64 hexadecimal digits.
    pub key: String,
    /// Bytes of the object.
    pub length: u64,
    /// How it is verified.
    pub verification: Verification,
    /// The digest of all its bytes, as the manifest of a registry gives it.
    #[serde(default)]
    pub digest: Option<ContentDigest>,
    /// The cache is full or cannot be written: a part of what was fetched is kept in memory.
    #[serde(default)]
    pub in_memory: bool,
    /// The host that has named the object when it was opened: a registry, or a mirror of it.
    #[serde(default)]
    pub served_by: Option<String>,
}

impl ObjectState {
    /// A state.
    #[must_use]
    pub fn new(key: String, length: u64, verification: Verification) -> Self {
        Self { key, length, verification, digest: None, in_memory: false, served_by: None }
    }

    /// Says whether the object is kept in memory only.
    #[must_use]
    pub fn kept_in_memory(mut self, in_memory: bool) -> Self {
        self.in_memory = in_memory;
        self
    }

    /// Adds the host that has named it.
    #[must_use]
    pub fn with_served_by(mut self, host: Option<String>) -> Self {
        self.served_by = host;
        self
    }

    /// Adds the digest of all bytes.
    #[must_use]
    pub fn with_digest(mut self, digest: Option<ContentDigest>) -> Self {
        self.digest = digest;
        self
    }
}

/// How the bytes of an object are verified.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Verification {
    /// Each chunk against a chunk index, which has the digest that the manifest or the user gave.
    ChunkIndex,
    /// The whole object had its digest when it was downloaded.
    WholeDigest,
    /// The whole object will be compared with its digest once all of it is in the cache.
    WholeDigestLater,
    /// There is no digest.
    None,
}

/// A message from the fetcher.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "kebab-case")]
#[non_exhaustive]
pub enum FetcherMessage {
    /// The reply to `hello`.
    Hello {
        /// [`PROTOCOL_VERSION`] of the sender.
        version: u32,
    },
    /// The reply to `open`. Beside it: the data file and the index file, and the chunk index if
    /// there is one, all read-only.
    Opened {
        /// The id of the request.
        id: u64,
        /// What was opened.
        state: ObjectState,
    },
    /// The files of an object are other ones from now on: its cache could not be written. Beside it
    /// the descriptors of `opened`.
    Replaced {
        /// The number of the object.
        object: u64,
    },
    /// A `fetch` goes on: a chunk has come. The time of whoever waits for it begins anew.
    Fetching {
        /// The id of the request.
        id: u64,
    },
    /// All chunks of a `fetch` were stored.
    Fetched {
        /// The id of the request.
        id: u64,
    },
    /// The reply to `manifest`. Beside it a file with the document.
    Document {
        /// The id of the request.
        id: u64,
    },
    /// A `push` goes on.
    Pushing {
        /// The id of the request.
        id: u64,
        /// Bytes of blobs that the registry has or was sent.
        bytes: u64,
    },
    /// The image is published.
    Pushed {
        /// The id of the request.
        id: u64,
        /// What was done.
        report: PushReport,
    },
    /// A request failed.
    Failed {
        /// The id of the request.
        id: u64,
        /// Why.
        error: FetchError,
    },
    /// The reply to `stats`.
    Stats {
        /// The id of the request.
        id: u64,
        /// The statistics.
        stats: FetchStats,
    },
    /// The reply to `prune` and to `discard`.
    Pruned {
        /// The id of the request.
        id: u64,
        /// What was removed.
        report: PruneReport,
    },
}

impl ClientMessage {
    /// The id that names the reply, if there is to be one; it may be [`NO_REPLY`].
    #[must_use]
    pub fn id(&self) -> Option<u64> {
        match self {
            Self::Open { id, .. }
            | Self::Fetch { id, .. }
            | Self::Push { id, .. }
            | Self::Manifest { id, .. }
            | Self::Stats { id }
            | Self::Prune { id, .. }
            | Self::Discard { id, .. } => Some(*id),
            Self::Settings { .. } | Self::Hello { .. } | Self::Close { .. } | Self::Used { .. } => {
                None
            }
        }
    }
}

impl FetcherMessage {
    /// The id of the request that it replies to, if it replies to one.
    #[must_use]
    pub fn id(&self) -> Option<u64> {
        match self {
            Self::Hello { .. } | Self::Replaced { .. } => None,
            Self::Opened { id, .. }
            | Self::Fetching { id }
            | Self::Fetched { id }
            | Self::Document { id }
            | Self::Pushing { id, .. }
            | Self::Pushed { id, .. }
            | Self::Failed { id, .. }
            | Self::Stats { id, .. }
            | Self::Pruned { id, .. } => Some(*id),
        }
    }
}

/// Why an object could not be opened or fetched.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct FetchError {
    /// What kind of error.
    pub kind: FetchErrorKind,
    /// Where: a location without its query.
    pub location: String,
    /// The byte of the object, if it is about one.
    pub offset: Option<u64>,
    /// What happened, in words. It contains no credentials.
    pub detail: String,
}

/// The kind of a [`FetchError`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum FetchErrorKind {
    /// There is no such object.
    NotFound,
    /// The server refuses access.
    Denied,
    /// The object is another one than before.
    Changed,
    /// The bytes do not have the digest that they should have.
    Damaged,
    /// The server cannot be reached, or failed again and again.
    Unreachable,
    /// There was no answer in time.
    TimedOut,
    /// The answer of the server breaks a rule of its protocol.
    Protocol,
    /// The request needs something that is not supported, or is malformed.
    Refused,
    /// The bytes are not in the cache, and no connection may be opened.
    Offline,
    /// The fetcher lacks disk space, memory or descriptors.
    Exhausted,
}

impl FetchError {
    /// An error. Texts of more than 2 KiB are cut.
    #[must_use]
    pub fn new(
        kind: FetchErrorKind,
        location: impl Into<String>,
        detail: impl Into<String>,
    ) -> Self {
        let (location, detail) = (truncate(location.into()), truncate(detail.into()));
        Self { kind, location, offset: None, detail }
    }

    /// Adds the byte.
    #[must_use]
    pub fn at(mut self, offset: u64) -> Self {
        self.offset = self.offset.or(Some(offset));
        self
    }
}

/// The beginning of a text, so that two of them fit into a message, however they are escaped there.
fn truncate(mut text: String) -> String {
    if text.len() > TEXT_MAX_BYTES {
        text.truncate(text.floor_char_boundary(TEXT_MAX_BYTES));
        text.push('…');
    }
    text
}

impl fmt::Display for FetchError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.location, self.detail)?;
        self.offset.iter().try_for_each(|offset| write!(f, " (byte {offset})"))
    }
}

impl std::error::Error for FetchError {}

impl From<FetchError> for io::Error {
    fn from(error: FetchError) -> Self {
        let kind = match error.kind {
            FetchErrorKind::NotFound => io::ErrorKind::NotFound,
            FetchErrorKind::Denied => io::ErrorKind::PermissionDenied,
            FetchErrorKind::Changed => io::ErrorKind::StaleNetworkFileHandle,
            FetchErrorKind::Damaged | FetchErrorKind::Protocol => io::ErrorKind::InvalidData,
            FetchErrorKind::Unreachable => io::ErrorKind::HostUnreachable,
            FetchErrorKind::TimedOut => io::ErrorKind::TimedOut,
            FetchErrorKind::Refused => io::ErrorKind::InvalidInput,
            FetchErrorKind::Offline => io::ErrorKind::NetworkDown,
            FetchErrorKind::Exhausted => io::ErrorKind::OutOfMemory,
        };
        Self::new(kind, error)
    }
}

/// What the fetcher has counted since it started.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct FetchStats {
    /// Requests sent to servers, repeated ones included.
    pub requests: u64,
    /// Requests that were repeated.
    pub retries: u64,
    /// Bytes of bodies that servers sent.
    pub received_bytes: u64,
    /// Bytes that readers asked for and that were not cached.
    pub requested_bytes: u64,
    /// Bytes that were received and not stored: damaged, of interrupted answers, or in gaps.
    pub wasted_bytes: u64,
    /// Bytes that were compared with a digest.
    pub verified_bytes: u64,
    /// Chunks that were asked for and were in the cache already.
    pub cache_hits: u64,
    /// The sum of the times to the first byte of an answer, in microseconds.
    pub latency_us: u64,
    /// Requests that are in flight.
    pub in_flight: u64,
    /// Tokens that were requested of registries.
    pub token_requests: u64,
    /// Requests that mirrors of registries have answered.
    #[serde(default)]
    pub mirror_requests: u64,
    /// Bytes that the cache takes on the disk.
    pub cache_bytes: u64,
    /// The limit of that number now.
    pub cache_limit: u64,
    /// Bytes that were evicted to keep below the limit.
    pub evicted_bytes: u64,
}

/// Ranges of chunks for [`ClientMessage::Fetch`]: neighbours are joined. `chunks` is in ascending
/// order.
#[must_use]
pub fn chunk_ranges(chunks: impl IntoIterator<Item = u32>) -> Vec<(u32, u32)> {
    let mut ranges: Vec<(u32, u32)> = Vec::new();
    for chunk in chunks {
        match ranges.last_mut() {
            Some((_, end)) if chunk <= *end => *end = (*end).max(chunk.saturating_add(1)),
            _ => ranges.push((chunk, chunk.saturating_add(1))),
        }
    }
    ranges
}

/// The ranges of a `fetch`, checked: in ascending order, none empty, none behind `count`.
///
/// # Errors
/// They are not.
pub fn checked_ranges(
    chunks: &[(u32, u32)],
    count: u32,
) -> Result<Vec<Range<u32>>, FetchErrorKind> {
    let mut last = 0;
    let mut ranges = Vec::with_capacity(chunks.len().min(FETCH_RANGES_MAX));
    for (start, end) in chunks {
        if chunks.len() > FETCH_RANGES_MAX || *start < last || end <= start || *end > count {
            return Err(FetchErrorKind::Refused);
        }
        last = *end;
        ranges.push(*start..*end);
    }
    Ok(ranges)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbours_are_one_range() {
        assert_eq!(chunk_ranges([1, 2, 2, 3, 7, 9, 10]), [(1, 4), (7, 8), (9, 11)]);
        assert_eq!(chunk_ranges([]), []);
    }

    #[test]
    fn ranges_of_a_peer_are_checked() {
        assert_eq!(checked_ranges(&[(0, 1), (1, 4)], 4), Ok(vec![0..1, 1..4]));
        for bad in [&[(1, 1)][..], &[(2, 1)], &[(0, 5)], &[(1, 2), (0, 1)], &[(0, 2), (1, 3)]] {
            assert_eq!(checked_ranges(bad, 4), Err(FetchErrorKind::Refused), "{bad:?}");
        }
        let many: Vec<_> = (0..=1024u32).map(|one| (2 * one, 2 * one + 1)).collect();
        checked_ranges(&many, u32::MAX).unwrap_err();
    }

    #[test]
    fn the_longest_fetch_fits_into_a_message() {
        let chunks = vec![(u32::MAX - 1, u32::MAX); FETCH_RANGES_MAX];
        let message = ClientMessage::Fetch {
            id: u64::MAX,
            object: u64::MAX,
            chunks,
            urgency: FetchUrgency::Prefetch,
            past_caches: false,
        };
        assert!(serde_json::to_vec(&message).unwrap().len() <= MESSAGE_MAX_BYTES);
    }

    #[test]
    fn the_longest_error_fits_into_a_message() {
        for text in ["\u{1}".repeat(100_000), "ü".repeat(100_000), format!("x{}", "…".repeat(9999))]
        {
            let error = FetchError::new(FetchErrorKind::Protocol, &*text, &*text);
            assert!(text.starts_with(error.detail.strip_suffix('…').unwrap()));
            assert!((2040..2060).contains(&error.detail.len()), "{}", error.detail.len());
            let message = FetcherMessage::Failed { id: u64::MAX, error };
            assert!(serde_json::to_vec(&message).unwrap().len() <= MESSAGE_MAX_BYTES);
        }
        assert_eq!(FetchError::new(FetchErrorKind::Protocol, "here", "short").detail, "short");
    }

    #[test]
    fn messages_are_read_back() {
        let location: RemoteLocation = "oci://host/name:v1#layer=1".parse().unwrap();
        let state = ObjectState::new("00".to_owned(), 5, Verification::WholeDigestLater);
        let message = ClientMessage::Open {
            id: 1,
            object: 2,
            location: Box::new(location),
            options: RemoteOptions::default(),
            expected: Some(state),
        };
        let text = serde_json::to_string(&message).unwrap();
        assert_eq!(serde_json::from_str::<ClientMessage>(&text).unwrap(), message, "{text}");
        serde_json::from_str::<ClientMessage>("{\"type\":\"none\"}").unwrap_err();
    }
}

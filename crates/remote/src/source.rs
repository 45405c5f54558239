//! An image at a remote location, as a source of `ferrofs-image`: bytes come from the cache, and
//! what is missing is requested of the fetcher. The steps N1 to N3 are in docs/remote.md.

use std::collections::HashSet;
use std::fmt;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use ferrofs_image::{ImageSource, RemoteStats};

use crate::cache::{CachedObject, ChunkLayout, ChunkRead};
use crate::chunk_index::{CHUNK_INDEX_MAX_BYTES, ChunkIndex};
use crate::client::{FetchClient, FetcherReply, OpenedObject, unexpected};
use crate::counters::SourceCounters;
use crate::digest::ContentDigest;
use crate::location::RemoteLocation;
use crate::lock::lock;
use crate::protocol::{
    ClientMessage, FETCH_RANGES_MAX, FetchError, FetchErrorKind, FetchUrgency, NO_REPLY,
    ObjectState, RemoteOptions, Verification, chunk_ranges,
};
use crate::readahead::StreamTable;
use crate::use_log::UseLog;

/// How often a chunk is requested that is damaged. The fetcher then asks the server itself.
const DAMAGED_MAX: u32 = 3;
/// The first pause before a fetch is repeated, and the longest: they double. The fetcher has made pauses itself, but
/// its time may be shorter than that of the client.
const FETCH_PAUSE: Duration = Duration::from_millis(50);
const FETCH_PAUSE_MAX: Duration = Duration::from_secs(3);
/// The first pause before a chunk is requested that was fetched twice and is absent again. It doubles
/// up to [`FETCH_PAUSE`].
const DISCARDED_PAUSE_MIN: Duration = Duration::from_millis(1);
/// How long somebody who reads the statistics waits for those of the fetcher.
const STATS_TIMEOUT: Duration = Duration::from_millis(500);
/// Chunks that were prefetched are remembered, so that they are requested once, until one of them is missing
/// when it is read.
const PREFETCHED_MAX: usize = 4096;

/// A remote object as a source. Threads share it.
pub struct RemoteSource {
    client: Arc<FetchClient>,
    /// Byte 0 of the source is this byte of the object.
    start: u64,
    object: Arc<Object>,
    prefetched: Mutex<HashSet<u32>>,
    streams: Mutex<StreamTable>,
    uses: UseLog,
    counters: SourceCounters,
}

/// What the receiver of the client needs of a source.
struct Object {
    number: u64,
    location: RemoteLocation,
    display_name: String,
    options: RemoteOptions,
    state: ObjectState,
    layout: ChunkLayout,
    timeout: Duration,
    files: Mutex<ObjectFiles>,
}

struct ObjectFiles {
    cached: Arc<CachedObject>,
    /// Set when the object is another one than at first: nothing of it is served any more.
    failure: Option<FetchError>,
    /// A new fetcher could not open it, as its server did not answer: the next fetch tries again.
    is_closed: bool,
}

impl fmt::Debug for RemoteSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RemoteSource")
            .field("location", &self.object.display_name)
            .finish_non_exhaustive()
    }
}

impl RemoteSource {
    /// Opens `location` through the fetcher. A request that takes longer than `timeout` fails.
    ///
    /// # Errors
    /// The fetcher cannot be reached, or cannot open the object.
    pub fn open(
        client: &Arc<FetchClient>,
        location: &RemoteLocation,
        options: &RemoteOptions,
        timeout: Duration,
    ) -> io::Result<Self> {
        let number = client.object_number();
        let opened = Self::open_as(number, client, location, options, timeout);
        if opened.is_err() {
            client.unregister(number);
        }
        opened
    }

    fn open_as(
        number: u64,
        client: &Arc<FetchClient>,
        location: &RemoteLocation,
        options: &RemoteOptions,
        timeout: Duration,
    ) -> io::Result<Self> {
        let options = &options.within(timeout);
        let message = |id, expected| ClientMessage::Open {
            id,
            object: number,
            location: Box::new(location.clone()),
            options: options.clone(),
            expected,
        };
        let display_name = location.to_string();
        let (state, files) =
            match client.call_server(|id| message(id, None), timeout, &display_name)? {
                FetcherReply::Opened(state, files) => (state, files),
                FetcherReply::Failed(error) => return Err(error.into()),
                _ => return Err(unexpected(&display_name).into()),
            };
        let layout = ChunkLayout::new(state.length).ok_or_else(|| unexpected(&display_name))?;
        let cached = Arc::new(cached_object(&state, layout, files, &display_name)?);
        let object = Arc::new(Object {
            number,
            location: location.clone(),
            display_name,
            options: options.clone(),
            state,
            layout,
            timeout,
            files: Mutex::new(ObjectFiles { cached, failure: None, is_closed: false }),
        });
        client.register(number, &object);
        Ok(Self {
            client: Arc::clone(client),
            start: 0,
            object,
            prefetched: Mutex::default(),
            streams: Mutex::default(),
            uses: UseLog::new(layout.count()),
            counters: SourceCounters::default(),
        })
    }

    /// The same, with byte `start` of the object as byte 0.
    #[must_use]
    pub fn starting_at(mut self, start: u64) -> Self {
        self.start = start;
        self
    }

    /// What was opened.
    #[must_use]
    pub fn state(&self) -> &ObjectState {
        &self.object.state
    }

    /// Fetches a range again, past the cache and all caches on the way, because what was fetched
    /// before has not the digest of the whole object. Later reads get the new bytes.
    ///
    /// # Errors
    /// As [`read_at`](ImageSource::read_at).
    pub fn fetch_again(&self, range: Range<u64>) -> io::Result<()> {
        let moved = |byte: u64| self.start.saturating_add(byte);
        let range = moved(range.start)..moved(range.end);
        self.fetch(self.object.layout.chunks_in(&range), true)
    }

    /// Requests the chunks of `ranges` (bytes of the object) that are missing, and waits for them.
    /// Reads of these ranges then find them in the cache.
    fn request_missing(&self, ranges: &[Range<u64>]) -> io::Result<()> {
        let cached = self.object.cached()?;
        let mut wanted: Vec<u32> =
            ranges.iter().flat_map(|range| self.object.layout.chunks_in(range)).collect();
        wanted.sort_unstable();
        wanted.dedup();
        let missing: Vec<u32> =
            wanted.into_iter().filter(|chunk| !cached.is_present(*chunk)).collect();
        self.fetch(with_gaps(&missing, |chunk| cached.is_present(chunk)), false)
    }

    /// Has the fetcher store chunks, and waits.
    fn fetch(&self, chunks: impl IntoIterator<Item = u32>, past_caches: bool) -> io::Result<()> {
        let chunks: Vec<u32> = chunks.into_iter().collect();
        {
            let mut prefetched = lock(&self.prefetched);
            // What was prefetched and is missing has been evicted, or is still on its way. In either case
            // it may be requested again.
            if chunks.iter().any(|chunk| prefetched.contains(chunk)) {
                prefetched.clear();
            }
        }
        let ranges = chunk_ranges(chunks);
        if ranges.is_empty() {
            return Ok(());
        }
        let started_at = Instant::now();
        let fetched = self.fetch_ranges(&ranges, past_caches);
        let layout = &self.object.layout;
        let (count, bytes) = ranges.iter().fold((0, 0), |(count, bytes), (start, end)| {
            let length = layout.bytes_of(*end).start - layout.bytes_of(*start).start;
            (count + u64::from(end - start), bytes + length)
        });
        self.counters.count_fetch(count, bytes, started_at.elapsed());
        fetched
    }

    fn fetch_ranges(&self, ranges: &[(u32, u32)], past_caches: bool) -> io::Result<()> {
        for some in ranges.chunks(FETCH_RANGES_MAX) {
            let message = |id| ClientMessage::Fetch {
                id,
                object: self.object.number,
                chunks: some.to_vec(),
                urgency: FetchUrgency::Demand,
                past_caches,
            };
            self.fetch_in_time(message)?;
        }
        Ok(())
    }

    /// Sends a fetch, again and again while the server fails and there is time.
    fn fetch_in_time(&self, message: impl Fn(u64) -> ClientMessage) -> io::Result<()> {
        let deadline = Instant::now() + self.object.timeout;
        let mut last = None;
        let mut pause = FETCH_PAUSE;
        loop {
            let rest = deadline.saturating_duration_since(Instant::now());
            let display_name = &self.object.display_name;
            let was_closed = lock(&self.object.files).is_closed;
            let reply = if was_closed {
                self.client.call_server(|id| self.object.reopen(id), rest, display_name)
            } else {
                self.client.call_server(&message, rest, display_name)
            };
            let error = match reply {
                Ok(FetcherReply::Fetched) => return Ok(()),
                Ok(FetcherReply::Reopened) => {
                    self.object.cached()?;
                    continue;
                }
                Ok(FetcherReply::Failed(error)) => error,
                Ok(_) => unexpected(&self.object.display_name),
                // What the server did says more than that the time is over.
                Err(error) => return Err(last.map_or(error, io::Error::from)),
            };
            // The fetcher has repeated the request for its own time, with pauses.
            let may_pass = match error.kind {
                FetchErrorKind::Unreachable | FetchErrorKind::TimedOut => true,
                // A new fetcher that lacks something may have it soon.
                FetchErrorKind::Exhausted if was_closed => true,
                // A new fetcher could not open the object, or has yet to be told about it.
                _ => !was_closed && lock(&self.object.files).is_closed,
            };
            if was_closed {
                self.object.reopened(FetcherReply::Failed(error.clone()));
            }
            let rest = deadline.saturating_duration_since(Instant::now());
            if !may_pass || rest.is_zero() {
                return Err(error.into());
            }
            last = Some(error);
            self.counters.count_repetition();
            std::thread::sleep(pause.min(rest));
            pause = (pause * 2).min(FETCH_PAUSE_MAX);
        }
    }

    /// Reads a part of one chunk (N1 to N3).
    fn read_chunk(&self, chunk: u32, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        let deadline = Instant::now() + self.object.timeout;
        let fails = |kind, detail: &str| {
            let detail = format!("chunk {chunk} {detail}");
            Err(FetchError::new(kind, &self.object.display_name, detail).at(offset).into())
        };
        let mut damaged = 0;
        let mut fetches = 0;
        let mut pause = DISCARDED_PAUSE_MIN;
        self.counters.count_read();
        loop {
            match self.object.cached()?.read(chunk, offset, buffer)? {
                ChunkRead::Served => break,
                // A chunk may be discarded between the reply and the read, again and again.
                ChunkRead::Absent if fetches > 0 && Instant::now() >= deadline => {
                    return fails(
                        FetchErrorKind::TimedOut,
                        "is evicted before it can be read; a larger --cache-size may help",
                    );
                }
                ChunkRead::Absent if fetches > 1 => {
                    std::thread::sleep(pause);
                    pause = (pause * 2).min(FETCH_PAUSE);
                }
                ChunkRead::Absent => {}
                ChunkRead::Damaged if damaged == DAMAGED_MAX => {
                    return fails(FetchErrorKind::Damaged, "is damaged each time it is fetched");
                }
                ChunkRead::Damaged => damaged += 1,
            }
            self.fetch([chunk], damaged > 0)?;
            fetches += 1;
        }
        if let Some(chunks) = self.uses.record(chunk) {
            self.report_uses(chunks);
        }
        Ok(())
    }

    fn report_uses(&self, chunks: Vec<u32>) {
        for some in chunk_ranges(chunks).chunks(FETCH_RANGES_MAX) {
            let object = self.object.number;
            self.client.notify(&ClientMessage::Used { object, chunks: some.to_vec() });
        }
    }
}

impl ImageSource for RemoteSource {
    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
        let layout = self.object.layout;
        let offset = self.start.saturating_add(offset);
        let rest = layout.length().saturating_sub(offset);
        let count = buffer.len().min(usize::try_from(rest).unwrap_or(usize::MAX));
        let range = offset..offset + count as u64;
        let chunks = layout.chunks_in(&range);
        self.read_ahead(std::slice::from_ref(&range));
        if chunks.len() > 1 {
            // One request instead of one for each chunk.
            self.request_missing(std::slice::from_ref(&range))?;
        }
        let mut target = &mut buffer[..count];
        let mut at = offset;
        for chunk in chunks {
            let end = layout.bytes_of(chunk).end.min(range.end);
            let (now, later) = target.split_at_mut(usize::try_from(end - at).unwrap_or(0));
            self.read_chunk(chunk, at, now)?;
            target = later;
            at = end;
        }
        Ok(count)
    }

    fn length(&self) -> u64 {
        self.object.layout.length().saturating_sub(self.start)
    }

    fn is_remote(&self) -> bool {
        true
    }

    fn remote_stats(&self) -> Option<RemoteStats> {
        let fetcher = self.client.connection().and_then(|_| self.client.stats(STATS_TIMEOUT).ok());
        Some(self.counters.snapshot(self.client.reconnects(), fetcher.as_ref()))
    }

    fn make_ready(&self, ranges: &[Range<u64>]) -> io::Result<()> {
        let moved = |byte: u64| self.start.saturating_add(byte);
        let ranges: Vec<_> =
            ranges.iter().map(|range| moved(range.start)..moved(range.end)).collect();
        self.read_ahead(&ranges);
        self.request_missing(&ranges)
    }

    fn will_need(&self, offset: u64, bytes: u64) {
        let offset = self.start.saturating_add(offset);
        self.prefetch(&(offset..offset.saturating_add(bytes)));
    }
}

impl RemoteSource {
    /// Requests what follows these ranges, if their reader is sequential. Called before the ranges are
    /// requested, so that both are fetched at the same time.
    fn read_ahead(&self, ranges: &[Range<u64>]) {
        for range in ranges {
            let ahead = lock(&self.streams).record(range);
            if let (Some(ahead), Ok(cached)) = (ahead, self.object.cached()) {
                // Who reads an image from its beginning to its end does not read its chunk index.
                self.prefetch(&(ahead.start..ahead.end.min(cached.image_length())));
            }
        }
    }

    /// Requests bytes of the object that will be read soon, and does not wait.
    fn prefetch(&self, range: &Range<u64>) {
        let Ok(cached) = self.object.cached() else { return };
        let mut prefetched = lock(&self.prefetched);
        if prefetched.len() > PREFETCHED_MAX {
            prefetched.clear();
        }
        let missing: Vec<u32> = self
            .object
            .layout
            .chunks_in(range)
            .filter(|chunk| !cached.is_present(*chunk) && prefetched.insert(*chunk))
            .collect();
        drop(prefetched);
        let chunks = chunk_ranges(missing);
        if !chunks.is_empty() && chunks.len() <= FETCH_RANGES_MAX {
            self.client.notify(&ClientMessage::Fetch {
                id: NO_REPLY,
                object: self.object.number,
                chunks,
                urgency: FetchUrgency::Prefetch,
                past_caches: false,
            });
        }
    }
}

impl Drop for RemoteSource {
    fn drop(&mut self) {
        self.report_uses(self.uses.take());
        self.client.unregister(self.object.number);
    }
}

impl Object {
    fn cached(&self) -> io::Result<Arc<CachedObject>> {
        let files = lock(&self.files);
        match &files.failure {
            Some(error) => Err(error.clone().into()),
            None => Ok(Arc::clone(&files.cached)),
        }
    }

    fn set_files(&self, state: &ObjectState, new: Vec<File>) {
        let result = if state.key == self.state.key && state.length == self.state.length {
            // Whatever a new fetcher says: what was verified at first stays verified.
            cached_object(&self.state, self.layout, new, &self.display_name)
        } else {
            let detail = "the object has changed on the server; mount it again";
            Err(FetchError::new(FetchErrorKind::Changed, &self.display_name, detail))
        };
        let mut files = lock(&self.files);
        files.is_closed = false;
        match result {
            Ok(cached) => files.cached = Arc::new(cached),
            Err(error) => files.failure = Some(error),
        }
    }
}

impl OpenedObject for Object {
    fn reopen(&self, id: u64) -> ClientMessage {
        ClientMessage::Open {
            id,
            object: self.number,
            location: Box::new(self.location.clone()),
            options: self.options.clone(),
            expected: Some(self.state.clone()),
        }
    }

    fn reopened(&self, reply: FetcherReply) {
        match reply {
            FetcherReply::Opened(state, files) => self.set_files(&state, files),
            FetcherReply::Failed(error) if error.kind == FetchErrorKind::Changed => {
                lock(&self.files).failure = Some(error);
            }
            // What is cached is served.
            _ => lock(&self.files).is_closed = true,
        }
    }

    fn replaced(&self, files: Vec<File>) {
        self.set_files(&self.state, files);
    }

    fn closed(&self) {
        lock(&self.files).is_closed = true;
    }
}

/// Chunks in ascending order, and those between them that are alone and missing, too: a request for
/// a mebibyte more takes less time than another request.
fn with_gaps(missing: &[u32], is_present: impl Fn(u32) -> bool) -> Vec<u32> {
    let mut all: Vec<u32> = Vec::with_capacity(missing.len());
    for chunk in missing {
        if let Some(last) = all.last()
            && last.checked_add(2) == Some(*chunk)
            && !is_present(last + 1)
        {
            all.push(last + 1);
        }
        all.push(*chunk);
    }
    all
}

/// Checks what the fetcher sent.
fn cached_object(
    state: &ObjectState,
    layout: ChunkLayout,
    files: Vec<File>,
    display_name: &str,
) -> Result<CachedObject, FetchError> {
    let damaged = |detail: String| FetchError::new(FetchErrorKind::Protocol, display_name, detail);
    let key: ContentDigest =
        format!("sha256:{}", state.key).parse().map_err(|_| unexpected(display_name))?;
    let mut files = files.into_iter();
    let (Some(data), Some(records)) = (files.next(), files.next()) else {
        return Err(unexpected(display_name));
    };
    let index = match (files.next(), state.verification) {
        (Some(file), _) => {
            Some(Arc::new(read_chunk_index(&file, layout.length()).map_err(damaged)?))
        }
        (None, Verification::ChunkIndex) => return Err(unexpected(display_name)),
        (None, _) => None,
    };
    CachedObject::new(*key.as_bytes(), layout, data, records, index)
        .map_err(|error| damaged(error.to_string()))
}

fn read_chunk_index(file: &File, length: u64) -> Result<ChunkIndex, String> {
    let mut bytes = Vec::new();
    let mut piece = vec![0; 64 << 10];
    // All clients of the fetcher have the same open file, and so would share a position in it.
    while bytes.len() <= CHUNK_INDEX_MAX_BYTES {
        match file.read_at(&mut piece, bytes.len() as u64) {
            Ok(0) => break,
            Ok(count) => bytes.extend_from_slice(piece.get(..count).unwrap_or_default()),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error.to_string()),
        }
    }
    let index = ChunkIndex::parse(&bytes).map_err(|error| error.to_string())?;
    match index.covers(length) {
        true => Ok(index),
        false => Err("the chunk index does not describe all bytes of the object".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gap_of_one_chunk_is_fetched_with_its_neighbours() {
        assert_eq!(with_gaps(&[1, 3, 6, 8, 9], |chunk| chunk == 7), [1, 2, 3, 6, 8, 9]);
        assert_eq!(with_gaps(&[0, u32::MAX], |_| false), [0, u32::MAX]);
        assert!(with_gaps(&[], |_| false).is_empty());
    }
}

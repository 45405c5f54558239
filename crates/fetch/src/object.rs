//! An object that clients have open: which chunks are in flight, and the requests that fetch them.
//! Each chunk is requested once however many readers want it, and a reader who waits never waits
//! behind a prefetch (docs/remote.md, F1 to F3, F6 and F7).

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use ferrofs_remote::cache::{CacheDirectory, CachedObject, ChunkLayout, ChunkRead, ObjectIdentity};
use ferrofs_remote::protocol::{
    FetchError, FetchErrorKind, FetchUrgency, ObjectState, Verification,
};
use ferrofs_remote::{ChunkIndex, ContentDigest};
use tokio::sync::{MutexGuard, Notify, Semaphore, SemaphorePermit, watch};

mod in_flight;

pub(crate) use self::in_flight::ObjectUse;
use self::in_flight::{InFlightFetch, RunningRequest};
use crate::assemble::{Assembler, DigestMismatch, bytes_to_request};
use crate::backend::Backend;
use crate::backing::{Backing, MemoryChunks, document_file};
use crate::blocking::blocking;
use crate::http::{ExchangeError, ObjectRange, RangeAnswer};
use crate::lock::lock;
use crate::retry::{Pauses, time_is_over};
use crate::space::CacheSpace;
use crate::stats::Stats;

/// Chunks of one request at most that a reader waits for, so that neighbouring chunks are fetched in
/// parallel.
const DEMAND_CHUNKS_MAX: u32 = 4;
/// Chunks of one prefetch at most: a quarter of the longest window.
const PREFETCH_CHUNKS_MAX: u32 = 8;
/// Requests of one fetcher that are in flight, and how many of them can be prefetches.
const REQUESTS_MAX: usize = 16;
const PREFETCHES_MAX: usize = 8;

/// What all objects of a fetcher share.
#[derive(Debug)]
pub(crate) struct RequestLimits {
    requests: Semaphore,
    prefetches: Semaphore,
    /// How long a request is repeated.
    pub(crate) timeout: Duration,
    pub(crate) stats: Arc<Stats>,
    /// State of the generator that [`Self::generation`] steps.
    rng_state: AtomicU64,
    /// Chunks of objects that have no files on the disk.
    memory: Arc<MemoryChunks>,
}

/// Where chunks are stored.
#[derive(Debug)]
pub(crate) enum Store {
    /// On the disk, while it has room.
    Disk(Arc<CacheSpace>),
    /// In memory only. Chunks that a cache has which cannot be written are taken from there.
    Memory { filled: Option<Arc<CacheDirectory>> },
}

impl RequestLimits {
    pub(crate) fn new(timeout: Duration, stats: Arc<Stats>) -> Self {
        let clock = std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default();
        Self {
            requests: Semaphore::new(REQUESTS_MAX),
            prefetches: Semaphore::new(PREFETCHES_MAX),
            timeout,
            stats,
            rng_state: AtomicU64::new(clock.as_secs() << 30 ^ u64::from(clock.subsec_nanos())),
            memory: Arc::default(),
        }
    }

    /// The first generation of a writer: another one than that of the writer before it.
    pub(crate) fn generation(&self) -> u32 {
        // The step of splitmix64; Relaxed: only the value matters.
        let mut value = self.rng_state.fetch_add(0x9e37_79b9_7f4a_7c15, Ordering::Relaxed);
        value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        u32::try_from(value >> 32).unwrap_or(u32::MAX)
    }
}

/// An object.
#[derive(Debug)]
pub(crate) struct SharedObject {
    pub(crate) state: ObjectState,
    display_name: String,
    layout: ChunkLayout,
    /// That of the client that opened it last: its credentials are the newest.
    backend: Mutex<Backend>,
    /// The validator that each answer must have.
    validator: Option<String>,
    index: Option<Arc<ChunkIndex>>,
    pub(crate) index_file: Option<File>,
    backing: Mutex<Arc<Backing>>,
    /// The same object in a cache that cannot be written.
    filled: Option<CachedObject>,
    in_flight: Mutex<HashMap<u32, Arc<InFlightFetch>>>,
    /// Set while the server answers requests for ranges with ranges.
    has_ranges: AtomicBool,
    /// Held while a whole object is received that was not asked for.
    whole: tokio::sync::Mutex<()>,
    /// Notified when a chunk was stored.
    stored: Notify,
    /// Clients that have it open, and how often: requests end when there is none.
    uses: watch::Sender<usize>,
    limits: Arc<RequestLimits>,
    /// Incremented when the files were replaced, so that connections notify their clients.
    pub(crate) replaced: watch::Sender<u64>,
}

/// A request that brings so many bytes has not failed for nothing: the next one goes on behind them, with
/// a short pause. It is what a server must send at least in the time after which it is given up.
const PROGRESS_BYTES: u64 = 32 << 10;

/// What the attempts of one request have brought.
#[derive(Debug)]
struct Transfer {
    /// The first chunk that is still missing, and the one behind the last that is wanted.
    next: u32,
    end: u32,
    /// The beginning of what is missing, if it is certain that an answer which goes on there is of the
    /// same object.
    partial: Option<Assembler>,
}

impl Transfer {
    fn new(chunks: &Range<u32>) -> Self {
        Self { next: chunks.start, end: chunks.end, partial: None }
    }

    /// Up to which byte of the object the beginning of what is missing has come.
    fn position(&self) -> u64 {
        self.partial.as_ref().map_or(0, Assembler::position)
    }

    fn chunks(&self) -> Range<u32> {
        self.next..self.end
    }
}

/// How long somebody waits for chunks.
pub(crate) struct WaitOptions<'a> {
    /// Since the last one that has come.
    pub(crate) limit: Option<Duration>,
    /// Called when one has come.
    pub(crate) on_progress: &'a (dyn Fn() + Sync),
}

/// What opening an object brought, before anything of it is stored.
#[derive(Debug)]
pub(crate) struct ResolvedObject {
    pub(crate) display_name: String,
    pub(crate) backend: Backend,
    /// Without the chunk index.
    pub(crate) object: ObjectIdentity,
    pub(crate) length: u64,
    pub(crate) validator: Option<String>,
    /// Of a registry: the host that has named it.
    pub(crate) served_by: Option<String>,
    pub(crate) index: Option<IndexDocument>,
    /// The server can send parts. Otherwise each request brings the whole object.
    pub(crate) has_ranges: bool,
}

/// A chunk index, its bytes, and their digest.
#[derive(Debug)]
pub(crate) struct IndexDocument {
    pub(crate) index: Arc<ChunkIndex>,
    pub(crate) bytes: Vec<u8>,
    pub(crate) digest: String,
}

impl ResolvedObject {
    /// Who shares an object by its identity gets the same chunk index: the identity is that of the index
    /// which is here, and never of one that was only recorded.
    pub(crate) fn identity(&self) -> ObjectIdentity {
        let index = self.index.as_ref().map(|index| &*index.digest);
        self.object.clone().with_index(index)
    }

    /// Of all bytes.
    fn digest(&self) -> Option<ContentDigest> {
        match &self.object {
            ObjectIdentity::Digest(digest) | ObjectIdentity::Blob { digest, .. } => {
                digest.parse().ok()
            }
            _ => None,
        }
    }

    fn verification(&self) -> Verification {
        match (&self.index, &self.object) {
            (Some(_), _) => Verification::ChunkIndex,
            (None, ObjectIdentity::Blob { .. }) => Verification::WholeDigestLater,
            (None, _) => Verification::None,
        }
    }
}

impl SharedObject {
    /// Opens the files of an object. Without a usable cache it lives in memory.
    pub(crate) fn new(
        resolved: ResolvedObject,
        store: &Store,
        limits: Arc<RequestLimits>,
    ) -> Result<Arc<Self>, FetchError> {
        let identity = resolved.identity();
        let state = ObjectState::new(identity.key_text(), resolved.length, resolved.verification())
            .with_digest(resolved.digest());
        let ResolvedObject { display_name, backend, length, index, .. } = resolved;
        let failed = |error: io::Error| {
            FetchError::new(FetchErrorKind::Exhausted, &display_name, error.to_string())
        };
        if let Some(document) = &index
            && !document.index.covers(length)
        {
            let described = document.index.length();
            let detail = format!(
                "the chunk index describes {described} bytes, but the object has {length}, and the \
                 rest is not the chunk index"
            );
            return Err(FetchError::new(FetchErrorKind::Damaged, &display_name, detail));
        }
        let layout = ChunkLayout::new(length).ok_or_else(|| {
            let detail = format!("an object of {length} bytes is too long");
            FetchError::new(FetchErrorKind::Refused, &display_name, detail)
        })?;
        let generation = limits.generation();
        let in_memory = || {
            let backing = Backing::in_memory(identity.key(), layout, generation, &limits.memory);
            backing.map_err(failed)
        };
        let backing = match store {
            Store::Disk(space) => {
                // Full, or changed by somebody else: without a cache.
                Backing::on_disk(space, &identity, layout, generation).or_else(|_| in_memory())?
            }
            Store::Memory { .. } => in_memory()?,
        };
        let (index, index_file) = match index {
            Some(IndexDocument { index, bytes, .. }) => {
                if let (Store::Disk(space), true) = (store, backing.is_on_disk()) {
                    // Only opening without a server needs it.
                    space.keep_chunk_index(&identity.key(), &bytes).ok();
                }
                (Some(index), Some(document_file("chunk-index", &bytes).map_err(failed)?))
            }
            None => (None, None),
        };
        let filled = match store {
            Store::Memory { filled: Some(cache) } => {
                filled_object(cache, &identity, layout, index.clone())
            }
            _ => None,
        };
        Ok(Arc::new(Self {
            state: state.with_served_by(resolved.served_by),
            display_name,
            layout,
            backend: Mutex::new(backend),
            validator: resolved.validator,
            index,
            index_file,
            backing: Mutex::new(Arc::new(backing)),
            filled,
            in_flight: Mutex::default(),
            has_ranges: AtomicBool::new(resolved.has_ranges),
            whole: tokio::sync::Mutex::default(),
            stored: Notify::new(),
            uses: watch::Sender::new(0),
            limits,
            replaced: watch::Sender::new(0),
        }))
    }

    pub(crate) fn layout(&self) -> &ChunkLayout {
        &self.layout
    }

    pub(crate) fn display_name(&self) -> &str {
        &self.display_name
    }

    /// Another client has opened the same object, maybe with newer credentials.
    pub(crate) fn request_from(&self, backend: Backend) {
        *lock(&self.backend) = backend;
    }

    pub(crate) fn backing(&self) -> Arc<Backing> {
        Arc::clone(&lock(&self.backing))
    }

    /// Mends the files before another client opens them, if somebody else has changed them.
    pub(crate) fn restore(&self) {
        // A client that gets files which cannot be mended says what is wrong with them.
        self.backing().writer().restore().ok();
    }

    /// Stores all chunks of `ranges`, or waits until other requests have.
    pub(crate) async fn fetch(
        self: &Arc<Self>,
        ranges: &[Range<u32>],
        urgency: FetchUrgency,
        past_caches: bool,
        options: &WaitOptions<'_>,
    ) -> Result<(), FetchError> {
        let mut waiting = Vec::new();
        if past_caches {
            self.wait_for_older(ranges, options).await;
        } else {
            self.take_filled(ranges);
        }
        for range in ranges {
            self.start_missing(range, urgency, past_caches, &mut waiting);
        }
        for (ongoing, chunk) in waiting {
            if urgency == FetchUrgency::Demand {
                ongoing.demanded.notify_one();
            }
            self.wait_for(&ongoing, chunk, options).await?;
        }
        Ok(())
    }

    /// Waits for the end of requests that have brought, or may bring, what the reader has found damaged: they
    /// store chunks before they have ended.
    async fn wait_for_older(&self, ranges: &[Range<u32>], options: &WaitOptions<'_>) {
        let older: Vec<_> = {
            let in_flight = lock(&self.in_flight);
            let chunks = ranges.iter().cloned().flatten();
            let all = chunks.filter_map(|chunk| in_flight.get(&chunk));
            all.filter(|ongoing| !ongoing.is_past_caches).cloned().collect()
        };
        for ongoing in older {
            ongoing.demanded.notify_one();
            // Whatever its outcome is.
            self.wait_for(&ongoing, u32::MAX, options).await.ok();
        }
    }

    /// Waits until a chunk is stored, or its request has ended, or no chunk has come for too long: a
    /// server without ranges sends many before this one.
    async fn wait_for(
        &self,
        ongoing: &InFlightFetch,
        chunk: u32,
        options: &WaitOptions<'_>,
    ) -> Result<(), FetchError> {
        let mut progress = ongoing.progress.subscribe();
        loop {
            {
                let now = progress.borrow_and_update();
                if now.stored > chunk {
                    return Ok(());
                }
                if let Some(outcome) = &now.outcome {
                    return outcome.clone();
                }
            }
            let limit = options.limit.unwrap_or(Duration::MAX);
            match tokio::time::timeout(limit, progress.changed()).await {
                Ok(Ok(())) => (options.on_progress)(),
                Ok(Err(_)) => {
                    return Err(self.error(FetchErrorKind::Unreachable, "the request was dropped"));
                }
                Err(_) => {
                    let failure = progress.borrow().failure.clone();
                    return Err(time_is_over(failure, &self.display_name, limit));
                }
            }
        }
    }

    /// Copies chunks of `ranges` from a cache that cannot be written, if they are right.
    fn take_filled(&self, ranges: &[Range<u32>]) {
        let Some(filled) = &self.filled else { return };
        blocking(|| self.copy_filled(filled, ranges));
    }

    fn copy_filled(&self, filled: &CachedObject, ranges: &[Range<u32>]) {
        let backing = self.backing();
        let missing = |chunk: &u32| !backing.writer().is_present(*chunk);
        for chunk in ranges.iter().cloned().flatten().filter(missing) {
            let range = self.layout.bytes_of(chunk);
            let mut bytes = vec![0; usize::try_from(range.end - range.start).unwrap_or(0)];
            // The server is asked for what cannot be read.
            if matches!(filled.read(chunk, range.start, &mut bytes), Ok(ChunkRead::Served))
                && backing.store(chunk, &bytes).is_ok()
            {
                Stats::add(&self.limits.stats.cache_hits, 1);
            }
        }
    }

    /// Whether all chunks of `ranges` are present, so that no server is asked for them.
    pub(crate) fn require_cached(&self, ranges: &[Range<u32>]) -> Result<(), FetchError> {
        self.take_filled(ranges);
        let backing = self.backing();
        let missing =
            ranges.iter().cloned().flatten().find(|chunk| !backing.writer().is_present(*chunk));
        match missing {
            None => Ok(()),
            Some(chunk) => {
                let detail = "it is not in the cache, and --offline forbids requests to its server";
                let error = self.error(FetchErrorKind::Offline, detail);
                Err(error.at(self.layout.bytes_of(chunk).start))
            }
        }
    }

    /// Starts requests for the chunks of `wanted` that are neither present nor in flight. Adds the
    /// last chunk of each request that must be waited for.
    fn start_missing(
        self: &Arc<Self>,
        wanted: &Range<u32>,
        urgency: FetchUrgency,
        past_caches: bool,
        waiting: &mut Vec<(Arc<InFlightFetch>, u32)>,
    ) {
        let backing = self.backing();
        let mut in_flight = lock(&self.in_flight);
        let is_missing = |in_flight: &HashMap<u32, _>, chunk| {
            !in_flight.contains_key(&chunk) && (past_caches || !backing.writer().is_present(chunk))
        };
        // Relaxed: the answers decide, whatever is expected.
        let has_ranges = self.has_ranges.load(Ordering::Relaxed);
        let (range, longest) = match urgency {
            // What comes in any case is requested as a whole, and only what is wanted is waited for.
            _ if !has_ranges && wanted.clone().any(|chunk| is_missing(&in_flight, chunk)) => {
                (0..self.layout.count(), u32::MAX)
            }
            FetchUrgency::Demand => (wanted.clone(), DEMAND_CHUNKS_MAX),
            FetchUrgency::Prefetch => (wanted.clone(), PREFETCH_CHUNKS_MAX),
        };
        let mut run: Option<Range<u32>> = None;
        let mut runs = Vec::new();
        for chunk in range {
            let is_wanted = wanted.contains(&chunk);
            if let Some(ongoing) = in_flight.get(&chunk) {
                waiting.extend(is_wanted.then(|| (Arc::clone(ongoing), chunk)));
            } else if !is_missing(&in_flight, chunk) {
                if is_wanted {
                    backing.set_used(chunk);
                    Stats::add(&self.limits.stats.cache_hits, 1);
                }
            } else {
                match &mut run {
                    Some(run) if run.end == chunk && run.end - run.start < longest => {
                        run.end += 1;
                    }
                    _ => runs.extend(run.replace(chunk..chunk + 1)),
                }
            }
        }
        runs.extend(run);
        for chunks in runs {
            let first = self.layout.bytes_of(chunks.start);
            let bytes = self.layout.bytes_of(chunks.end).start - first.start;
            Stats::add(&self.limits.stats.requested_bytes, bytes);
            let ongoing = InFlightFetch::begin(&mut in_flight, &chunks, past_caches);
            let last = chunks.end.min(wanted.end).saturating_sub(1);
            let is_wanted = chunks.contains(&last) && wanted.contains(&last);
            waiting.extend(is_wanted.then(|| (Arc::clone(&ongoing), last)));
            let object = Arc::clone(self);
            let running = RunningRequest::new(self, Arc::clone(&ongoing), chunks.clone());
            tokio::spawn(running.run(object.run(ongoing, chunks, urgency, past_caches)));
        }
    }

    /// Stores the chunks of an answer that came when the object was opened, unless they are there
    /// already. What is missing of it then is requested when it is needed.
    pub(crate) fn adopt(self: &Arc<Self>, answer: RangeAnswer) {
        let chunks = self.layout.chunks_in(&answer.range);
        self.take_filled(std::slice::from_ref(&chunks));
        let backing = self.backing();
        let mut in_flight = lock(&self.in_flight);
        // What is in flight comes anyway.
        if chunks.clone().any(|chunk| in_flight.contains_key(&chunk))
            || chunks.clone().all(|chunk| backing.writer().is_present(chunk))
        {
            return;
        }
        let ongoing = InFlightFetch::begin(&mut in_flight, &chunks, false);
        drop(in_flight);
        let object = Arc::clone(self);
        let running = RunningRequest::new(self, Arc::clone(&ongoing), chunks.clone());
        tokio::spawn(running.run(async move {
            let mut transfer = Transfer::new(&chunks);
            let received = {
                let _permit = object.limits.requests.acquire().await;
                object.receive(answer, &ongoing, &mut transfer).await
            };
            match received {
                Ok(()) => Ok(()),
                Err(_) => object.request(&ongoing, transfer, false).await,
            }
        }));
    }

    /// One request, from its turn to its end.
    async fn run(
        self: Arc<Self>,
        ongoing: Arc<InFlightFetch>,
        chunks: Range<u32>,
        urgency: FetchUrgency,
        past_caches: bool,
    ) -> Result<(), FetchError> {
        let mut prefetch = self.wait_for_turn(&ongoing, urgency).await;
        let mut request =
            std::pin::pin!(self.request(&ongoing, Transfer::new(&chunks), past_caches));
        loop {
            tokio::select! {
                outcome = &mut request => return outcome,
                () = ongoing.demanded.notified(), if prefetch.is_some() => prefetch = None,
            }
        }
    }

    /// F2. The further permit of a prefetch, until a reader waits for it.
    async fn wait_for_turn<'l>(
        &'l self,
        ongoing: &InFlightFetch,
        urgency: FetchUrgency,
    ) -> Option<SemaphorePermit<'l>> {
        match urgency {
            FetchUrgency::Demand => None,
            // The semaphore is fair and is never closed.
            FetchUrgency::Prefetch => tokio::select! {
                permit = self.limits.prefetches.acquire() => permit.ok(),
                () = ongoing.demanded.notified() => None,
            },
        }
    }

    /// Requests chunks until they are stored, with pauses, or the time is over.
    async fn request(
        self: &Arc<Self>,
        ongoing: &InFlightFetch,
        mut transfer: Transfer,
        past_caches: bool,
    ) -> Result<(), FetchError> {
        let mut pauses = Pauses::new(self.limits.timeout);
        let mut past_caches = past_caches;
        let mut was_damaged = false;
        // Where the last attempts that have brought something have ended. Bytes that come again are no progress: a
        // server that sends the same beginning each time would be asked for ever.
        let mut reached = self.layout.bytes_of(transfer.next).start;
        loop {
            let next = transfer.next;
            let result = self.attempt(ongoing, &mut transfer, past_caches).await;
            let Err(ExchangeError { error, mut retry, .. }) = result else { return Ok(()) };
            if error.kind == FetchErrorKind::Damaged && !was_damaged {
                // Once more past all caches; then it is the server's own damage.
                (was_damaged, past_caches) = (true, true);
                retry = Some(Duration::ZERO);
            }
            let position = transfer.position();
            if transfer.next > next || position >= reached.saturating_add(PROGRESS_BYTES) {
                pauses.reset();
                reached = reached.max(position);
            }
            let Some(pause) = retry.and_then(|min_pause| pauses.next(min_pause)) else {
                return Err(error);
            };
            // Nobody waits for it: it is read when the time of a client is over.
            ongoing.progress.send_if_modified(|progress| {
                progress.failure = Some(error);
                false
            });
            Stats::add(&self.limits.stats.retries, 1);
            tokio::time::sleep(pause).await;
        }
    }

    /// One attempt to get what is missing. A request that only waits has no permit (F2).
    async fn attempt(
        self: &Arc<Self>,
        ongoing: &InFlightFetch,
        transfer: &mut Transfer,
        past_caches: bool,
    ) -> Result<(), ExchangeError> {
        // What nobody lacks has no range that could be requested.
        while !transfer.chunks().is_empty() {
            // Relaxed: the answers decide, whatever is expected.
            let whole = if self.has_ranges.load(Ordering::Relaxed) {
                None
            } else {
                let turn = self.wait_for_whole(ongoing, transfer, past_caches).await;
                if turn.is_none() {
                    return Ok(());
                }
                turn
            };
            let _permit = self.limits.requests.acquire().await;
            if self.exchange(ongoing, transfer, past_caches, whole).await? {
                return Ok(());
            }
        }
        Ok(())
    }

    /// F7. The right to receive the whole object; `None` if another request has stored all chunks
    /// meanwhile.
    async fn wait_for_whole<'o>(
        &'o self,
        ongoing: &InFlightFetch,
        transfer: &mut Transfer,
        past_caches: bool,
    ) -> Option<MutexGuard<'o, ()>> {
        let mut turn = std::pin::pin!(self.whole.lock());
        loop {
            let mut stored = std::pin::pin!(self.stored.notified());
            // From here on, so that no chunk is missed between the look and the wait.
            stored.as_mut().enable();
            if !past_caches && self.skip_stored(ongoing, transfer) {
                return None;
            }
            tokio::select! {
                turn = &mut turn => {
                    let is_done = !past_caches && self.skip_stored(ongoing, transfer);
                    return (!is_done).then_some(turn);
                }
                // Those who wait see that something comes.
                () = stored => ongoing.progress.send_modify(|_| ()),
            }
        }
    }

    /// Leaves out the first chunks that another request has stored. True if none is left.
    fn skip_stored(&self, ongoing: &InFlightFetch, transfer: &mut Transfer) -> bool {
        let backing = self.backing();
        let missing = transfer.chunks().find(|chunk| !backing.writer().is_present(*chunk));
        let next = missing.unwrap_or(transfer.end);
        if next > transfer.next {
            transfer.next = next;
            ongoing.progress.send_modify(|progress| progress.stored = next);
        }
        missing.is_none()
    }

    /// One exchange with the server. False if it has sent the whole object, which another request receives.
    async fn exchange(
        self: &Arc<Self>,
        ongoing: &InFlightFetch,
        transfer: &mut Transfer,
        past_caches: bool,
        mut whole: Option<MutexGuard<'_, ()>>,
    ) -> Result<bool, ExchangeError> {
        let stats = &self.limits.stats;
        let mut range = bytes_to_request(&self.layout, self.index.as_deref(), &transfer.chunks());
        if let Some(partial) = &transfer.partial {
            range.start = partial.position().clamp(range.start, range.end);
        }
        let started_at = Instant::now();
        Stats::add(&stats.requests, 1);
        let _counted = stats.in_flight();
        let backend = lock(&self.backend).clone();
        let (validator, display_name) = (self.validator.as_deref(), &*self.display_name);
        let wanted = ObjectRange { range: &range, validator, past_caches, display_name };
        let answer = backend.get_range(&wanted).await?;
        let waited = u64::try_from(started_at.elapsed().as_micros()).unwrap_or(u64::MAX);
        Stats::add(&stats.latency_us, waited);
        let received = match self.check(&answer) {
            Err(error) => Err(error),
            Ok(()) => {
                // More than the range is the whole object, and the server will send it again.
                if answer.range.start < range.start || answer.range.end > range.end {
                    self.has_ranges.store(false, Ordering::Relaxed);
                    whole = whole.or_else(|| self.whole.try_lock().ok());
                    if whole.is_none() {
                        return Ok(false);
                    }
                }
                self.receive(answer, ongoing, transfer).await
            }
        };
        // The registry itself may do better than its mirror.
        received.map(|()| true).map_err(|error| match backend.rest_mirrors() {
            true => ExchangeError { retry: error.retry.or(Some(Duration::ZERO)), ..error },
            false => error,
        })
    }

    /// Whether an answer is about the object that was opened.
    fn check(&self, answer: &RangeAnswer) -> Result<(), ExchangeError> {
        let detail = if answer.length != self.layout.length() {
            format!("its length was {} and is now {}", self.layout.length(), answer.length)
        } else if self.validator.is_some() && answer.validator != self.validator {
            let [was, is] =
                [&self.validator, &answer.validator].map(|one| one.as_deref().unwrap_or("(none)"));
            format!("its validator was {was} and is now {is}")
        } else {
            return Ok(());
        };
        let detail = format!("the object has changed on the server: {detail}");
        Err(ExchangeError::permanent(self.error(FetchErrorKind::Changed, detail)))
    }

    /// Whether two answers that fit are of the same bytes: a chunk may begin in one and end in the other.
    fn is_proven(&self) -> bool {
        self.validator.is_some() || self.index.is_some() || self.state.digest.is_some()
    }

    /// F3. Stores the chunks of a body as they come, behind what came before it.
    async fn receive(
        self: &Arc<Self>,
        answer: RangeAnswer,
        ongoing: &InFlightFetch,
        transfer: &mut Transfer,
    ) -> Result<(), ExchangeError> {
        let stats = &self.limits.stats;
        let partial = transfer.partial.take();
        let partial = partial.filter(|partial| partial.position() == answer.range.start);
        let mut assembler = partial
            .unwrap_or_else(|| Assembler::new(self.layout, self.index.clone(), answer.range.start));
        let (carried, verified) = (assembler.buffered(), assembler.verified_bytes());
        let end = transfer.end;
        let mut body = answer.body;
        let mut received = 0;
        let mut stored_bytes = 0;
        let failure = loop {
            let bytes = match body.next(&self.display_name).await {
                Ok(Some(bytes)) => bytes,
                Ok(None) => break None,
                Err(error) => break Some(error),
            };
            let bytes = bytes.as_ref();
            received += bytes.len() as u64;
            Stats::add(&stats.received_bytes, bytes.len() as u64);
            if received > answer.range.end - answer.range.start {
                let detail = "the answer is longer than its header says";
                let error = self.error(FetchErrorKind::Protocol, detail);
                return Err(ExchangeError::permanent(error));
            }
            let completes = assembler.completes_chunk(bytes.len());
            let mut push = || {
                assembler.push(bytes, |chunk, bytes| {
                    stored_bytes += bytes.len() as u64;
                    self.store(chunk, bytes)?;
                    self.stored.notify_waiters();
                    if chunk >= transfer.next && chunk < end {
                        transfer.next = chunk + 1;
                    }
                    // Of a whole object, chunks before the first that is wanted are progress, too.
                    ongoing.progress.send_modify(|progress| progress.stored = transfer.next);
                    Ok::<(), StoreError>(())
                })
            };
            // Digests, and the disk.
            let result = if completes { blocking(push) } else { push() };
            if let Err(error) = result {
                return Err(self.describe(error));
            }
        };
        Stats::add(&stats.verified_bytes, assembler.verified_bytes() - verified);
        // How the body ends no longer matters: of what is stored, nothing is requested again.
        if transfer.next >= end {
            Stats::add(&stats.wasted_bytes, (carried + received).saturating_sub(stored_bytes));
            return Ok(());
        }
        if self.is_proven() {
            transfer.partial = Some(assembler);
        } else {
            Stats::add(&stats.wasted_bytes, received.saturating_sub(stored_bytes));
        }
        Err(failure.unwrap_or_else(|| {
            let at = answer.range.start + received;
            let detail = "the answer ended before all bytes had arrived";
            ExchangeError::transient(self.error(FetchErrorKind::Unreachable, detail).at(at))
        }))
    }

    fn describe(&self, error: StoreError) -> ExchangeError {
        match error {
            StoreError::Mismatch(DigestMismatch { offset }) => {
                let detail = "the bytes do not match the digest of the chunk index";
                ExchangeError::permanent(self.error(FetchErrorKind::Damaged, detail).at(offset))
            }
            StoreError::Io(error) => {
                let detail = format!("cannot store a chunk: {error}");
                ExchangeError::permanent(self.error(FetchErrorKind::Exhausted, detail))
            }
        }
    }

    /// Stores a chunk on the disk, or in memory from the moment when the disk fails.
    fn store(&self, chunk: u32, bytes: &[u8]) -> io::Result<()> {
        let backing = self.backing();
        match backing.store(chunk, bytes) {
            Err(_) if backing.is_on_disk() => self.replace(&backing)?.store(chunk, bytes),
            other => other,
        }
    }

    /// Replaces the files on the disk by files in memory; once, whichever thread comes first.
    fn replace(&self, failed: &Arc<Backing>) -> io::Result<Arc<Backing>> {
        let mut backing = lock(&self.backing);
        if Arc::ptr_eq(&backing, failed) {
            let key = *failed.writer().key();
            let generation = self.limits.generation();
            *backing =
                Arc::new(Backing::in_memory(key, self.layout, generation, &self.limits.memory)?);
            self.replaced.send_modify(|count| *count += 1);
        }
        Ok(Arc::clone(&backing))
    }

    fn error(&self, kind: FetchErrorKind, detail: impl Into<String>) -> FetchError {
        FetchError::new(kind, &self.display_name, detail)
    }
}

/// The object in a cache that cannot be written, if it is there.
fn filled_object(
    cache: &CacheDirectory,
    identity: &ObjectIdentity,
    layout: ChunkLayout,
    index: Option<Arc<ChunkIndex>>,
) -> Option<CachedObject> {
    let (data, records) = cache.reader_files(&identity.key()).ok()?;
    CachedObject::new(identity.key(), layout, data, records, index).ok()
}

enum StoreError {
    Mismatch(DigestMismatch),
    Io(io::Error),
}

impl From<DigestMismatch> for StoreError {
    fn from(error: DigestMismatch) -> Self {
        Self::Mismatch(error)
    }
}

impl From<io::Error> for StoreError {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

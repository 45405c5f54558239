//! Publishes an image in a repository: uploads the blobs that it lacks, then the manifest (OCI
//! distribution specification, "push"; docs/remote.md, P1 to P5). A blob is one request, in pieces
//! only for servers that refuse long bodies.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use ferrofs_remote::oci::MANIFEST_MEDIA_TYPE;
use ferrofs_remote::protocol::{FetchError, FetchErrorKind, PushReport, PushRequest};
use futures_core::Stream;
use reqwest::header::{
    AUTHORIZATION, CONTENT_LENGTH, CONTENT_RANGE, CONTENT_TYPE, HeaderValue, LOCATION,
};
use reqwest::{Response, StatusCode, Url};
use tokio::sync::mpsc;

use crate::http::{ExchangeError, protocol, status_error};
use crate::registry::Repository;
use crate::retry::{Pauses, unknown_host_timeout};
use crate::stats::Stats;
use crate::web::WebError;

/// Bytes that are read at once from the file of a blob, and how many of these pieces wait.
const CHUNK_BYTES: u64 = 256 << 10;
const PIECES_AHEAD: usize = 4;
/// A server that takes nothing for so long is given up.
const STALL: Duration = Duration::from_secs(60);
/// How long a server may take to store a blob that it has received.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(300);
/// How often the progress of a request is looked at.
const TICK: Duration = Duration::from_millis(200);
/// A blob is sent so often at least, also if that takes longer than the time limit.
const ATTEMPTS_MIN: u32 = 3;
/// So often a registry can refuse, in the middle of a blob, a token that it has accepted before.
const REFUSALS_MAX: u32 = 3;
/// The lengths of bodies, from "any" on, that are tried in turn: proxies refuse longer ones than
/// they are configured for; nginx by default more than 1 MiB.
const BODY_BYTES: [u64; 4] = [u64::MAX, 16 << 20, 4 << 20, 1 << 20];
/// Most blobs of one image.
const BLOBS_MAX: usize = 16;

/// One image and where it goes.
pub(crate) struct Upload {
    pub(crate) repository: Arc<Repository>,
    pub(crate) request: PushRequest,
    /// A file for each part of each blob.
    pub(crate) files: Vec<File>,
    pub(crate) tag: String,
    pub(crate) timeout: Duration,
    /// Bytes of blobs that the registry has or was sent.
    pub(crate) done: Arc<AtomicU64>,
}

/// What one attempt to upload a blob has done.
enum BlobOutcome {
    /// The registry has it already.
    Present,
    Uploaded,
    /// The server refuses a body of this length.
    TooLong,
}

/// The bytes of a blob.
#[derive(Debug)]
struct BlobSource {
    parts: Vec<(File, u64)>,
    length: u64,
}

impl BlobSource {
    /// The bytes from `offset` on, at most `limit` of them.
    fn read(&self, offset: u64, limit: u64) -> io::Result<Vec<u8>> {
        let mut start = 0;
        for (file, length) in &self.parts {
            if offset < start + length {
                let count = limit.min(start + length - offset);
                let mut bytes = vec![0; usize::try_from(count).unwrap_or(usize::MAX)];
                file.read_exact_at(&mut bytes, offset - start)?;
                return Ok(bytes);
            }
            start += length;
        }
        Ok(Vec::new())
    }
}

/// A body that is read while it is sent.
struct BodyStream {
    pieces: mpsc::Receiver<io::Result<Vec<u8>>>,
    sent: Arc<AtomicU64>,
}

impl Stream for BodyStream {
    type Item = io::Result<Vec<u8>>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let polled = self.pieces.poll_recv(context);
        if let Poll::Ready(Some(Ok(piece))) = &polled {
            self.sent.fetch_add(piece.len() as u64, Ordering::Relaxed);
        }
        polled
    }
}

/// A part of a blob as the body of a request.
fn body(blob: &Arc<BlobSource>, range: Range<u64>, sent: &Arc<AtomicU64>) -> reqwest::Body {
    let (sender, pieces) = mpsc::channel(PIECES_AHEAD);
    let blob = Arc::clone(blob);
    tokio::task::spawn_blocking(move || {
        let mut offset = range.start;
        while offset < range.end {
            let piece = blob.read(offset, CHUNK_BYTES.min(range.end - offset));
            let count = piece.as_ref().map_or(0, |piece| piece.len() as u64);
            // After an error, or when the request has ended, nothing follows.
            if sender.blocking_send(piece).is_err() || count == 0 {
                return;
            }
            offset += count;
        }
    });
    reqwest::Body::wrap_stream(BodyStream { pieces, sent: Arc::clone(sent) })
}

impl Upload {
    /// Publishes the image.
    pub(crate) async fn run(mut self) -> Result<PushReport, FetchError> {
        let blobs = self.sources()?;
        let mut report = PushReport::default();
        for (number, blob) in blobs.into_iter().enumerate() {
            let digest = self.request.blobs[number].digest.to_string();
            let before = report.uploaded_bytes + report.present_bytes;
            if self.send_blob(&digest, &blob, before).await? {
                report.uploaded_bytes += blob.length;
            } else {
                report.present_bytes += blob.length;
            }
            self.done.store(before + blob.length, Ordering::Relaxed);
        }
        self.send_manifest().await?;
        Ok(report)
    }

    fn sources(&mut self) -> Result<Vec<Arc<BlobSource>>, FetchError> {
        let count: usize = self.request.blobs.iter().map(|blob| blob.parts.len()).sum();
        if count != self.files.len() || self.request.blobs.len() > BLOBS_MAX {
            let detail = "the files of the blobs are missing";
            return Err(FetchError::new(FetchErrorKind::Refused, self.display_name(), detail));
        }
        let mut files = std::mem::take(&mut self.files).into_iter();
        let sources = self.request.blobs.iter().map(|blob| {
            let parts: Vec<_> =
                files.by_ref().zip(blob.parts.iter().copied()).take(blob.parts.len()).collect();
            let length = parts.iter().fold(0u64, |sum, (_, length)| sum.saturating_add(*length));
            Arc::new(BlobSource { parts, length })
        });
        Ok(sources.collect())
    }

    fn display_name(&self) -> String {
        self.request.location.to_string()
    }

    /// Uploads a blob, if the registry lacks it (P2, P3). Returns whether it did.
    async fn send_blob(
        &self,
        digest: &str,
        blob: &Arc<BlobSource>,
        before: u64,
    ) -> Result<bool, FetchError> {
        let started_at = Instant::now();
        let mut pauses = Pauses::new(self.timeout);
        let (mut attempt, mut refusals, mut limits) = (0, 0, BODY_BYTES.into_iter());
        let mut limit = limits.next().unwrap_or(u64::MAX);
        loop {
            attempt += 1;
            let sent = Arc::new(AtomicU64::new(0));
            let exchange = self.try_blob(digest, blob, limit, &sent);
            let whole = before..before + blob.length;
            let ExchangeError { error, retry, is_unconnected } =
                match self.with_watchdog(exchange, &sent, whole).await {
                    Ok(BlobOutcome::Present) => return Ok(false),
                    Ok(BlobOutcome::Uploaded) => return Ok(true),
                    Ok(BlobOutcome::TooLong) => match limits.next() {
                        Some(shorter) => {
                            limit = shorter;
                            continue;
                        }
                        None => {
                            let detail = format!("the server refuses bodies of {limit} bytes");
                            return Err(protocol(&self.display_name(), detail));
                        }
                    },
                    Err(error) => error,
                };
            refusals += u32::from(error.kind == FetchErrorKind::Denied);
            if refusals > REFUSALS_MAX {
                return Err(error);
            }
            if attempt < ATTEMPTS_MIN && started_at.elapsed() > self.timeout {
                pauses = Pauses::new(self.timeout);
            }
            // Nothing was sent yet, so the host may not exist.
            let is_unknown = is_unconnected && before == 0;
            let is_over = is_unknown && started_at.elapsed() > unknown_host_timeout(self.timeout);
            let pause = retry.filter(|_| !is_over).and_then(|min_pause| pauses.next(min_pause));
            let Some(pause) = pause else { return Err(error) };
            Stats::add(&self.repository.stats().retries, 1);
            tokio::time::sleep(pause).await;
        }
    }

    /// Runs an exchange while bytes are taken, and reports them.
    async fn with_watchdog<T>(
        &self,
        exchange: impl Future<Output = Result<T, ExchangeError>>,
        sent: &AtomicU64,
        whole: Range<u64>,
    ) -> Result<T, ExchangeError> {
        let mut exchange = std::pin::pin!(exchange);
        let (mut last, mut moved) = (0, Instant::now());
        loop {
            tokio::select! {
                result = &mut exchange => return result,
                () = tokio::time::sleep(TICK) => {}
            }
            let now = sent.load(Ordering::Relaxed);
            if now != last {
                (last, moved) = (now, Instant::now());
                self.done.store(whole.end.min(whole.start + now), Ordering::Relaxed);
            }
            let is_sent = now > 0 && whole.start + now >= whole.end;
            let stall_limit = if is_sent { ANSWER_TIMEOUT } else { STALL.min(self.timeout) };
            if moved.elapsed() > stall_limit {
                let seconds = stall_limit.as_secs();
                let detail = if is_sent {
                    format!("the server has all bytes and did not answer for {seconds} s")
                } else {
                    format!("the server accepted no bytes for {seconds} s")
                };
                let error = FetchError::new(FetchErrorKind::TimedOut, self.display_name(), detail);
                return Err(ExchangeError::transient(error));
            }
        }
    }

    async fn try_blob(
        &self,
        digest: &str,
        blob: &Arc<BlobSource>,
        limit: u64,
        sent: &Arc<AtomicU64>,
    ) -> Result<BlobOutcome, ExchangeError> {
        let repository = &*self.repository;
        let url = repository.url("blobs", digest);
        let found = self.authorized(|| repository.client().head(&url)).await?;
        match found.status() {
            StatusCode::OK => return Ok(BlobOutcome::Present),
            StatusCode::NOT_FOUND => {}
            _ => return Err(self.refused(&found)),
        }
        let url = repository.url("blobs", "uploads/");
        let response =
            self.authorized(|| repository.client().post(&url).header(CONTENT_LENGTH, 0)).await?;
        let mut place = self.place(&response, StatusCode::ACCEPTED).await?;
        let mut offset = 0;
        while blob.length > limit && offset < blob.length {
            let end = blob.length.min(offset + limit);
            let request = repository
                .client()
                .patch(place)
                .header(CONTENT_RANGE, format!("{offset}-{}", end - 1));
            let answer = self.send_part(request, blob, offset..end, sent).await?;
            if answer.status() == StatusCode::PAYLOAD_TOO_LARGE {
                return Ok(BlobOutcome::TooLong);
            }
            place = self.place(&answer, StatusCode::ACCEPTED).await?;
            offset = end;
        }
        place.query_pairs_mut().append_pair("digest", digest);
        let request = repository.client().put(place);
        let answer = self.send_part(request, blob, offset..blob.length, sent).await?;
        match answer.status() {
            StatusCode::CREATED => Ok(BlobOutcome::Uploaded),
            StatusCode::PAYLOAD_TOO_LARGE => Ok(BlobOutcome::TooLong),
            _ => Err(self.refused(&answer)),
        }
    }

    /// Sends a part of a blob to the place that the registry named.
    async fn send_part(
        &self,
        builder: reqwest::RequestBuilder,
        blob: &Arc<BlobSource>,
        range: Range<u64>,
        sent: &Arc<AtomicU64>,
    ) -> Result<Response, ExchangeError> {
        let length = range.end - range.start;
        let mut request = builder
            .header(CONTENT_TYPE, "application/octet-stream")
            .header(CONTENT_LENGTH, length)
            .body(body(blob, range, sent))
            .build()
            .map_err(|error| self.failed(error))?;
        let mut generation = None;
        if self.repository.is_own(request.url()) {
            let (header, number) = self.repository.header().await?;
            generation = Some(number);
            if let Some(value) = header {
                request.headers_mut().insert(AUTHORIZATION, value);
            }
        }
        Stats::add(&self.repository.stats().requests, 1);
        let client =
            self.repository.client_for(request.url()).map_err(|error| self.unsent(error))?;
        let answer = client.execute(request).await;
        let answer = answer.map_err(|error| self.unsent(WebError::of(error)))?;
        match generation.filter(|_| answer.status() == StatusCode::UNAUTHORIZED) {
            None => Ok(answer),
            // The token has expired early. The body is gone, and the blob begins anew.
            Some(generation) => {
                self.repository.renew(generation, &answer).await?;
                Err(ExchangeError { retry: Some(Duration::ZERO), ..self.refused(&answer) })
            }
        }
    }

    /// P4.
    async fn send_manifest(&self) -> Result<(), FetchError> {
        let url = self.repository.url("manifests", &self.tag);
        let stats = self.repository.stats();
        crate::retry::Attempts::new(self.timeout)
            .repeat(stats, || async {
                let send = || {
                    let builder = self.repository.client().put(&url);
                    let builder = builder.header(CONTENT_TYPE, MANIFEST_MEDIA_TYPE);
                    builder.body(self.request.manifest.clone())
                };
                let answer = self.authorized(send).await?;
                match answer.status() {
                    StatusCode::CREATED => Ok(()),
                    _ => Err(self.refused(&answer)),
                }
            })
            .await
    }

    async fn authorized(
        &self,
        build: impl Fn() -> reqwest::RequestBuilder,
    ) -> Result<Response, ExchangeError> {
        let with_header = |value: Option<HeaderValue>| match value {
            Some(value) => build().header(AUTHORIZATION, value),
            None => build(),
        };
        self.repository.authorized(with_header).await
    }

    /// Where the next part goes: the registry says so, with its own host or another one.
    async fn place(&self, answer: &Response, wanted: StatusCode) -> Result<Url, ExchangeError> {
        if answer.status() != wanted {
            return Err(self.refused(answer));
        }
        let location = answer.headers().get(LOCATION).and_then(|value| value.to_str().ok());
        let url = location.and_then(|location| answer.url().join(location).ok());
        let url = url.ok_or_else(|| {
            let detail = "the registry does not say where the blob is to be sent";
            ExchangeError::permanent(protocol(&self.display_name(), detail))
        })?;
        self.repository
            .check_host(&url, "upload server")
            .await
            .map_err(ExchangeError::permanent)?;
        Ok(url)
    }

    fn refused(&self, answer: &Response) -> ExchangeError {
        status_error(&self.display_name(), answer.status(), answer.headers())
    }

    /// A server that must not be asked is refused for good.
    fn unsent(&self, error: WebError) -> ExchangeError {
        match error {
            WebError::Request(error) => self.failed(error),
            WebError::Refused(detail) => {
                let detail = format!("the upload server: {detail}");
                let error = FetchError::new(FetchErrorKind::Denied, self.display_name(), detail);
                ExchangeError::permanent(error)
            }
        }
    }

    fn failed(&self, error: reqwest::Error) -> ExchangeError {
        let detail = crate::http::describe(error);
        let error = FetchError::new(FetchErrorKind::Unreachable, self.display_name(), detail);
        ExchangeError::transient(error)
    }
}

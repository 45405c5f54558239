//! One HTTP exchange: a request for a range, and the checks of its answer. Repeating is the
//! caller's task; an error says whether it may help.

use std::ops::Range;
use std::time::{Duration, Instant};

use ferrofs_remote::protocol::{FetchError, FetchErrorKind};
use reqwest::header::{
    ACCEPT_ENCODING, AUTHORIZATION, CACHE_CONTROL, CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_RANGE,
    ETAG, HeaderMap, HeaderValue, LAST_MODIFIED, RANGE, RETRY_AFTER,
};
use reqwest::{Response, StatusCode};

use crate::web::{WebClient, WebError};

/// A server that sends no head, or less than [`STALL_BYTES`] of a body, in so long is given up, and
/// the rest requested again; a shorter time limit of requests counts instead.
const STALL_MAX: Duration = Duration::from_secs(30);
/// See [`STALL_MAX`]: a server that sends single bytes must not keep a request for ever.
const STALL_BYTES: u64 = 32 << 10;
/// Answers at most that bring a document in parts: of the longest chunk index, each has 64 KiB.
const PARTS_MAX: usize = 1024;
/// The longest pause that a server can request.
const RETRY_AFTER_MAX: Duration = Duration::from_secs(60);

/// Why an exchange failed.
#[derive(Debug)]
pub(crate) struct ExchangeError {
    pub(crate) error: FetchError,
    /// Whether the same request may succeed later, and after which pause at least.
    pub(crate) retry: Option<Duration>,
    /// There was no connection, so that the host may not exist.
    pub(crate) is_unconnected: bool,
}

impl ExchangeError {
    pub(crate) fn permanent(error: FetchError) -> Self {
        Self { error, retry: None, is_unconnected: false }
    }

    pub(crate) fn transient(error: FetchError) -> Self {
        Self { error, retry: Some(Duration::ZERO), is_unconnected: false }
    }
}

/// What to request.
#[derive(Debug)]
pub(crate) struct RangeRequest<'a> {
    pub(crate) url: &'a str,
    /// How the URL is shown in errors.
    pub(crate) display_name: &'a str,
    pub(crate) range: Range<u64>,
    pub(crate) authorization: Option<HeaderValue>,
    /// Asks caches between here and the server to pass the request on.
    pub(crate) past_caches: bool,
    pub(crate) stall_limit: StallLimit,
}

/// How long a server may send nothing.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StallLimit(Duration);

impl StallLimit {
    /// For requests that are repeated until `timeout` is over.
    pub(crate) fn new(timeout: Duration) -> Self {
        Self(timeout.clamp(Duration::from_secs(1), STALL_MAX))
    }

    fn stalled(self, display_name: &str) -> ExchangeError {
        let detail = format!("the server sent too few bytes for {} s", self.0.as_secs());
        ExchangeError::transient(FetchError::new(FetchErrorKind::TimedOut, display_name, detail))
    }
}

/// A part of an object, of whatever server.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ObjectRange<'a> {
    pub(crate) range: &'a Range<u64>,
    /// The validator that the object had when it was opened.
    pub(crate) validator: Option<&'a str>,
    pub(crate) past_caches: bool,
    /// How the location is shown in errors.
    pub(crate) display_name: &'a str,
}

/// An answer whose head has been checked. The body is still to come.
#[derive(Debug)]
pub(crate) struct RangeAnswer {
    /// The bytes of the object that the body has.
    pub(crate) range: Range<u64>,
    /// Bytes of the whole object.
    pub(crate) length: u64,
    /// The strong validator, as in `etag "5f"`; `None` if the server gave none.
    pub(crate) validator: Option<String>,
    pub(crate) body: Body,
}

impl RangeAnswer {
    /// Refuses an object of more than `limit` bytes.
    pub(crate) fn at_most(self, limit: usize, display_name: &str) -> Result<Self, ExchangeError> {
        if self.length <= limit as u64 {
            return Ok(self);
        }
        let detail = format!("the answer is longer than {limit} bytes");
        Err(ExchangeError::permanent(protocol(display_name, detail)))
    }

    /// The bytes `wanted` of the object, as far as the answer has them: a server without ranges sends
    /// all of the object.
    async fn read_part(
        mut self,
        display_name: &str,
        wanted: &Range<u64>,
    ) -> Result<Vec<u8>, ExchangeError> {
        let mut part = Vec::new();
        let mut at = self.range.start;
        while at < wanted.end
            && let Some(bytes) = self.body.next(display_name).await?
        {
            let bytes = bytes.as_ref();
            let place = |byte: u64| usize::try_from(byte.saturating_sub(at)).unwrap_or(usize::MAX);
            let inside = place(wanted.start).min(bytes.len())..place(wanted.end).min(bytes.len());
            part.extend_from_slice(bytes.get(inside).unwrap_or_default());
            at += bytes.len() as u64;
        }
        Ok(part)
    }
}

/// The bytes `wanted` of an object, as far as it has them. A server may send less than was requested (RFC 9110, 15.3.7):
/// then `get` requests the rest.
pub(crate) async fn read_range<F: Future<Output = Result<RangeAnswer, ExchangeError>>>(
    wanted: &Range<u64>,
    display_name: &str,
    get: impl Fn(Range<u64>) -> F,
) -> Result<Vec<u8>, ExchangeError> {
    let mut bytes = Vec::new();
    for _ in 0..PARTS_MAX {
        let rest = wanted.start + bytes.len() as u64..wanted.end;
        let answer = get(rest.clone()).await?;
        let end = wanted.end.min(answer.length);
        let part = answer.read_part(display_name, &rest).await?;
        bytes.extend_from_slice(&part);
        if wanted.start + bytes.len() as u64 >= end {
            return Ok(bytes);
        }
        if part.is_empty() {
            let detail = "the answers ended before all bytes had arrived";
            let error = FetchError::new(FetchErrorKind::Unreachable, display_name, detail);
            return Err(ExchangeError::transient(error));
        }
    }
    let detail = format!("the server sends parts that are too small: {PARTS_MAX} are not enough");
    Err(ExchangeError::permanent(protocol(display_name, detail)))
}

/// The bytes of an answer, as they come.
#[derive(Debug)]
pub(crate) struct Body {
    response: Response,
    stall_limit: StallLimit,
    /// When the time began in which [`STALL_BYTES`] must come, and what has come of them.
    since: Instant,
    bytes: u64,
}

impl Body {
    pub(crate) fn new(response: Response, stall_limit: StallLimit) -> Self {
        Self { response, stall_limit, since: Instant::now(), bytes: 0 }
    }

    /// The next bytes; `None` at the end.
    pub(crate) async fn next(
        &mut self,
        display_name: &str,
    ) -> Result<Option<impl AsRef<[u8]> + use<>>, ExchangeError> {
        let deadline = self.since + self.stall_limit.0;
        let bytes = match tokio::time::timeout_at(deadline.into(), self.response.chunk()).await {
            Ok(Ok(bytes)) => bytes,
            Ok(Err(error)) => {
                let kind = FetchErrorKind::Unreachable;
                let error = FetchError::new(kind, display_name, describe(error));
                return Err(ExchangeError::transient(error));
            }
            Err(_) => return Err(self.stall_limit.stalled(display_name)),
        };
        self.bytes += bytes.as_ref().map_or(0, |bytes| bytes.len() as u64);
        if self.bytes >= STALL_BYTES {
            (self.since, self.bytes) = (Instant::now(), 0);
        }
        Ok(bytes)
    }

    /// The beginning, as far as it comes: of an error document.
    pub(crate) async fn read_some(mut self, limit: usize) -> Vec<u8> {
        let mut body = Vec::new();
        while body.len() < limit
            && let Ok(Some(bytes)) = self.next("").await
        {
            body.extend_from_slice(bytes.as_ref());
        }
        body
    }

    /// Reads all bytes, at most `limit` of them.
    pub(crate) async fn read_to_end(
        mut self,
        display_name: &str,
        limit: usize,
    ) -> Result<Vec<u8>, ExchangeError> {
        let mut body = Vec::new();
        while let Some(bytes) = self.next(display_name).await? {
            let bytes = bytes.as_ref();
            if body.len() + bytes.len() > limit {
                let detail = format!("the answer is longer than {limit} bytes");
                return Err(ExchangeError::permanent(protocol(display_name, detail)));
            }
            body.extend_from_slice(bytes);
        }
        Ok(body)
    }
}

impl RangeRequest<'_> {
    /// The request.
    pub(crate) fn builder(&self, client: &reqwest::Client) -> reqwest::RequestBuilder {
        let last = self.range.end.saturating_sub(1);
        let mut builder = client
            .get(self.url)
            .header(RANGE, format!("bytes={}-{last}", self.range.start))
            .header(ACCEPT_ENCODING, "identity");
        if let Some(authorization) = &self.authorization {
            builder = builder.header(AUTHORIZATION, authorization);
        }
        if self.past_caches {
            builder = builder.header(CACHE_CONTROL, "no-cache");
        }
        builder
    }
}

/// Sends a request for a range. The answer may have other bytes than requested, from its start on:
/// all of the object from a server without ranges, fewer at the end.
pub(crate) async fn get_range(
    web: &WebClient,
    request: &RangeRequest<'_>,
) -> Result<RangeAnswer, ExchangeError> {
    let sending = web.send(request.builder(web.direct()));
    let response = answered(sending, request.display_name, request.stall_limit).await?;
    check_answer(response, request)
}

/// Compares the head of an answer with what was requested.
pub(crate) fn check_answer(
    response: Response,
    request: &RangeRequest<'_>,
) -> Result<RangeAnswer, ExchangeError> {
    let last = request.range.end.saturating_sub(1);
    let display_name = request.display_name;
    if response.headers().get(CONTENT_ENCODING).is_some_and(|value| value != "identity") {
        let detail = "the server encodes the content, although it was asked not to";
        return Err(ExchangeError::permanent(protocol(display_name, detail)));
    }
    let validator = validator(response.headers());
    let (range, length) = match response.status() {
        StatusCode::PARTIAL_CONTENT => {
            let value = response.headers().get(CONTENT_RANGE).and_then(|value| value.to_str().ok());
            let found = value.and_then(parse_content_range);
            let Some((range, length)) = found.filter(|(range, _)| {
                range.start == request.range.start && range.end <= request.range.end
            }) else {
                let detail = format!(
                    "bytes {}-{last} were requested, and the answer has the range {:?}",
                    request.range.start,
                    value.unwrap_or("(none)")
                );
                return Err(ExchangeError::permanent(protocol(display_name, detail)));
            };
            (range, length)
        }
        StatusCode::OK => {
            let value =
                response.headers().get(CONTENT_LENGTH).and_then(|value| value.to_str().ok());
            let Some(length) = value.and_then(|value| value.parse().ok()) else {
                let detail =
                    "the server supports no ranges and does not say how long the object is";
                return Err(ExchangeError::permanent(protocol(display_name, detail)));
            };
            (0..length, length)
        }
        status => return Err(status_error(display_name, status, response.headers())),
    };
    let body = Body::new(response, request.stall_limit);
    Ok(RangeAnswer { range, length, validator, body })
}

/// Waits for the head of an answer.
pub(crate) async fn answered(
    sending: impl Future<Output = Result<Response, WebError>>,
    display_name: &str,
    stall_limit: StallLimit,
) -> Result<Response, ExchangeError> {
    match tokio::time::timeout(stall_limit.0, sending).await {
        Ok(Ok(response)) => Ok(response),
        Ok(Err(WebError::Refused(detail))) => {
            Err(ExchangeError::permanent(protocol(display_name, detail)))
        }
        Ok(Err(WebError::Request(error))) => {
            // A certificate that nobody trusts stays so.
            let (is_permanent, is_unconnected) = (error.is_builder(), error.is_connect());
            let detail = describe(error);
            if is_permanent || detail.contains("invalid peer certificate") {
                return Err(ExchangeError::permanent(protocol(display_name, detail)));
            }
            let kind = FetchErrorKind::Unreachable;
            let failed = ExchangeError::transient(FetchError::new(kind, display_name, detail));
            Err(ExchangeError { is_unconnected, ..failed })
        }
        Err(_) => Err(stall_limit.stalled(display_name)),
    }
}

/// The error of a status that is not a success.
pub(crate) fn status_error(
    display_name: &str,
    status: StatusCode,
    headers: &HeaderMap,
) -> ExchangeError {
    let kind = match status {
        StatusCode::NOT_FOUND | StatusCode::GONE => FetchErrorKind::NotFound,
        StatusCode::UNAUTHORIZED
        | StatusCode::FORBIDDEN
        | StatusCode::PROXY_AUTHENTICATION_REQUIRED => FetchErrorKind::Denied,
        StatusCode::RANGE_NOT_SATISFIABLE | StatusCode::PRECONDITION_FAILED => {
            FetchErrorKind::Changed
        }
        _ if is_transient(status) => FetchErrorKind::Unreachable,
        _ => FetchErrorKind::Protocol,
    };
    let mut detail = format!("the server answered {status}");
    if !is_transient(status) {
        return ExchangeError::permanent(FetchError::new(kind, display_name, detail));
    }
    let pause = headers.get(RETRY_AFTER).and_then(|value| value.to_str().ok());
    // A date instead of seconds is treated as no value: the pauses grow in any case.
    let pause = pause.and_then(|value| value.trim().parse().ok()).unwrap_or(0);
    if pause > 0 {
        detail += &format!(" and asked for a pause of {pause} s");
    }
    let retry = Some(Duration::from_secs(pause).min(RETRY_AFTER_MAX));
    ExchangeError {
        error: FetchError::new(kind, display_name, detail),
        retry,
        is_unconnected: false,
    }
}

/// 408, 425, 429 and all of 5xx but "not implemented" and "version not supported".
fn is_transient(status: StatusCode) -> bool {
    let is_never = matches!(status.as_u16(), 501 | 505);
    matches!(status.as_u16(), 408 | 425 | 429) || status.is_server_error() && !is_never
}

/// `bytes START-LAST/LENGTH` (RFC 9110, 14.4).
fn parse_content_range(value: &str) -> Option<(Range<u64>, u64)> {
    let (range, length) = value.trim().strip_prefix("bytes")?.trim_start().split_once('/')?;
    let (start, last) = range.split_once('-')?;
    let (start, last): (u64, u64) = (start.parse().ok()?, last.parse().ok()?);
    let length: u64 = length.parse().ok()?;
    let end = last.checked_add(1)?;
    (start < end && end <= length).then_some((start..end, length))
}

/// A weak tag does not promise equal bytes (RFC 9110, 8.8.1). A time does if it is not the newest;
/// an image that is written again in the same second with the same length is not noticed.
fn validator(headers: &HeaderMap) -> Option<String> {
    let text = |name| headers.get(name).and_then(|value| value.to_str().ok());
    if let Some(tag) = text(ETAG).filter(|tag| tag.starts_with('"')) {
        return Some(format!("etag {tag}"));
    }
    text(LAST_MODIFIED).map(|time| format!("last-modified {time}"))
}

/// The chain of causes, without the URL: a query may contain a signature.
pub(crate) fn describe(error: reqwest::Error) -> String {
    let error = error.without_url();
    let mut text = error.to_string();
    let mut cause = std::error::Error::source(&error);
    while let Some(error) = cause {
        text = format!("{text}: {error}");
        cause = error.source();
    }
    // What rustls says of a certificate that no CA of the system has signed.
    if text.contains("UnknownIssuer") {
        text.push_str("; the certificates of its CA must be installed (package ca-certificates)");
    }
    // What rustls says of an answer in plain HTTP.
    if text.contains("InvalidContentType") {
        text.push_str(
            "; the server speaks no TLS: use http://, or --insecure-registry for a registry",
        );
    }
    text
}

pub(crate) fn protocol(display_name: &str, detail: impl Into<String>) -> FetchError {
    FetchError::new(FetchErrorKind::Protocol, display_name, detail)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn content_ranges_are_checked() {
        assert_eq!(parse_content_range("bytes 0-9/10"), Some((0..10, 10)));
        assert_eq!(parse_content_range("bytes 5-5/10"), Some((5..6, 10)));
        for bad in [
            "bytes 0-10/10",
            "bytes 5-4/10",
            "bytes 0-9/*",
            "bytes */10",
            "bits 0-9/10",
            "bytes 0-18446744073709551615/18446744073709551615",
            "",
        ] {
            assert_eq!(parse_content_range(bad), None, "{bad}");
        }
    }

    #[test]
    fn only_strong_validators_are_used() {
        let headers = |name, value| HeaderMap::from_iter([(name, HeaderValue::from_static(value))]);
        assert_eq!(validator(&headers(ETAG, "\"5\"")).as_deref(), Some("etag \"5\""));
        assert_eq!(validator(&headers(ETAG, "W/\"5\"")), None);
        assert!(validator(&headers(LAST_MODIFIED, "Tue, 01 Jan 2030 00:00:00 GMT")).is_some());
    }

    #[test]
    fn statuses_that_may_pass_are_repeated() {
        let retry = |status: u16, after: &'static str| {
            let headers = HeaderMap::from_iter([(RETRY_AFTER, HeaderValue::from_static(after))]);
            status_error("x", StatusCode::from_u16(status).unwrap(), &headers).retry
        };
        for status in [408, 429, 500, 502, 503, 504] {
            assert_eq!(retry(status, "2"), Some(Duration::from_secs(2)), "{status}");
        }
        assert_eq!(retry(503, "999999"), Some(RETRY_AFTER_MAX));
        assert_eq!(retry(503, "Tue, 01 Jan 2030 00:00:00 GMT"), Some(Duration::ZERO));
        for status in [400, 401, 403, 404, 410, 412, 416, 501] {
            assert_eq!(retry(status, "2"), None, "{status}");
        }
    }
}

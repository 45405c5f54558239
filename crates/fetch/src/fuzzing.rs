//! The fetcher's exchanges with a server whose answers are any bytes, for the fuzz targets. Only with
//! the feature `fuzzing`, which no release has.
//!
//! All hosts are one Unix socket: no name is looked up, and nothing leaves the process.

mod server;

use std::ops::Range;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use ferrofs_remote::cache::ChunkLayout;
use ferrofs_remote::oci::{choose_layer, choose_manifest};
use ferrofs_remote::{CHUNK_INDEX_MAX_BYTES, ChunkIndex, ContentDigest};

use crate::assemble::{Assembler, DigestMismatch, bytes_to_request};
use crate::http::{ExchangeError, RangeAnswer, RangeRequest, StallLimit, get_range};
use crate::registry::{AccessRight, Repository, RepositoryName};
use crate::stats::Stats;
use crate::web::WebClient;
use server::AnyServer;

/// What the login of a registry has, and no other request.
pub(crate) const PASSWORD: &str = "cGFzc3dvcmQtb2YtdGhlLXJlZ2lzdHJ5";
/// What the query of a URL has, and no message.
const SIGNATURE: &str = "signature-of-the-query";
/// The host that all locations name.
const HOST: &str = "images.test";
/// The longest pause that a server can request, in the documentation.
const PAUSE_MAX: Duration = Duration::from_secs(60);

/// What happened.
#[derive(Debug)]
pub struct FetchOutcome {
    /// Requests that the server got.
    pub requests: usize,
    /// Whether the last exchange succeeded.
    pub is_success: bool,
}

/// Whether answers have one of these words, whatever its case and the control characters in it, which
/// a URL does not count.
fn has_any(answers: &[u8], words: &[&str]) -> bool {
    let letters = answers.iter().filter(|byte| !byte.is_ascii_control());
    let text = letters.map(u8::to_ascii_lowercase).collect::<Vec<u8>>();
    let text = String::from_utf8_lossy(&text);
    words.iter().any(|word| text.contains(&word.to_ascii_lowercase()))
}

/// A runtime on this thread, a server that gives these answers in turn, and a client of it.
fn with_server<T, F: Future<Output = T>>(
    answers: &[u8],
    exchange: impl FnOnce(WebClient) -> F,
) -> (T, Vec<Vec<u8>>) {
    static TLS: OnceLock<()> = OnceLock::new();
    TLS.get_or_init(|| drop(rustls::crypto::ring::default_provider().install_default()));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.expect("a runtime").block_on(async {
        let server = AnyServer::start(answers);
        let client = WebClient::of_socket(server.path()).expect("a client");
        let outcome = exchange(client).await;
        (outcome, server.requests())
    })
}

/// Requests bytes 0 to 1 MiB of an object and then its other chunks, as the fetcher does for an object of a web server
/// without a chunk index and for one with it.
///
/// # Panics
/// An answer is accepted that is none to its request, a chunk has bytes that its digest forbids, or a message
/// has a secret.
pub fn fetch_object(answers: &[u8], index: Option<ChunkIndex>) -> FetchOutcome {
    // A secret that the server sends is no leak.
    if has_any(answers, &[PASSWORD, SIGNATURE]) {
        return FetchOutcome { requests: 0, is_success: false };
    }
    let index = index.map(Arc::new);
    let (result, requests) = with_server(answers, |client| async move {
        let first = exchange(&client, 0..1 << 20).await?;
        let Some(layout) = ChunkLayout::new(first.length) else { return Ok(()) };
        let length = first.length;
        receive(first, layout, index.clone()).await?;
        let numbers = 1..layout.count().min(3);
        if numbers.is_empty() {
            return Ok(());
        }
        let range = bytes_to_request(&layout, index.as_deref(), &numbers);
        assert!(range.start < range.end);
        let next =
            exchange(&client, range.start..range.end.min(length).max(range.start + 1)).await?;
        receive(next, layout, index).await
    });
    check_requests(&requests);
    FetchOutcome { requests: requests.len(), is_success: check_result(result) }
}

/// Sends a request, and compares the head of its answer with it.
async fn exchange(client: &WebClient, range: Range<u64>) -> Result<RangeAnswer, ExchangeError> {
    let request = RangeRequest {
        url: &format!("http://{HOST}/image.erofs?{SIGNATURE}"),
        display_name: "http://images.test/image.erofs?…",
        range: range.clone(),
        authorization: None,
        past_caches: false,
        stall_limit: StallLimit::new(PAUSE_MAX),
    };
    let answer = get_range(client, &request).await?;
    let found = &answer.range;
    let is_whole = *found == (0..answer.length);
    assert!(is_whole || found.start == range.start && found.end <= range.end, "{found:?}");
    assert!(found.end <= answer.length, "{found:?} of {}", answer.length);
    Ok(answer)
}

/// Receives a body as the fetcher does, and compares what comes out with the digests once more.
async fn receive(
    answer: RangeAnswer,
    layout: ChunkLayout,
    index: Option<Arc<ChunkIndex>>,
) -> Result<(), ExchangeError> {
    let RangeAnswer { range, mut body, .. } = answer;
    let mut assembler = Assembler::new(layout, index.clone(), range.start);
    let mut next = 0;
    while let Some(bytes) = body.next("shown").await? {
        let pushed = assembler.push(bytes.as_ref(), |number, bytes| {
            assert!(number >= next, "chunk {number} after {next}");
            next = number + 1;
            let chunk = layout.bytes_of(number);
            assert_eq!(bytes.len() as u64, chunk.end - chunk.start);
            assert!(index.as_ref().is_none_or(|index| has_digests(index, chunk.start, bytes)));
            Ok::<(), DigestMismatch>(())
        });
        if pushed.is_err() {
            break;
        }
    }
    Ok(())
}

/// Whether the pieces of an index that lie inside a chunk have their digests.
fn has_digests(index: &ChunkIndex, start: u64, bytes: &[u8]) -> bool {
    let end = start + bytes.len() as u64;
    index.chunks_in(start..end.min(index.length())).all(|number| {
        let Some((piece, digest)) = index.chunk(number) else { return false };
        if piece.start < start || piece.end > end {
            return true;
        }
        let at = |byte: u64| usize::try_from(byte - start).expect("a chunk");
        ContentDigest::of(&bytes[at(piece.start)..at(piece.end)]) == digest
    })
}

/// Opens an image of a registry: manifest, by way of an index, chunk index, and the first bytes of its layer.
///
/// # Panics
/// A document or blob has another digest than asked for, the login goes to another host, or a message has a
/// secret.
pub fn open_image(answers: &[u8]) -> FetchOutcome {
    // The name of a token server with TLS would be looked up.
    if has_any(answers, &[PASSWORD, SIGNATURE, "https"]) {
        return FetchOutcome { requests: 0, is_success: false };
    }
    let (result, requests) = with_server(answers, |client| async move {
        let named = RepositoryName {
            registry: HOST,
            name: "a/b",
            right: AccessRight::Pull,
            is_insecure: true,
            stall_limit: StallLimit::new(PAUSE_MAX),
        };
        open(&Repository::new(&client, &Arc::new(Stats::default()), named)).await
    });
    check_requests(&requests);
    FetchOutcome { requests: requests.len(), is_success: check_result(result) }
}

async fn open(repository: &Repository) -> Result<(), ExchangeError> {
    let (media_type, mut manifest) = repository.get_manifest("latest").await?;
    if let Ok(Some(digest)) = choose_manifest(&media_type, &manifest, Some("linux/amd64")) {
        (_, manifest) = repository.get_manifest(&digest.to_string()).await?;
        assert_eq!(ContentDigest::of(&manifest), digest);
    }
    let Ok(layer) = choose_layer(&manifest, None) else { return Ok(()) };
    let blob = repository.get_small_blob(&layer.digest, CHUNK_INDEX_MAX_BYTES).await;
    if let Ok(blob) = blob {
        assert_eq!(ContentDigest::of(&blob), layer.digest);
        drop(ChunkIndex::parse(&blob));
    }
    let answer = repository.get_blob(&layer.digest.to_string(), &(0..1 << 20), true).await?;
    answer.body.read_to_end("shown", 1 << 20).await?;
    Ok(())
}

/// An error has a text without secrets, and a pause that a server may request.
fn check_result(result: Result<(), ExchangeError>) -> bool {
    let Err(error) = result else { return true };
    let text = error.error.to_string();
    assert!(!text.is_empty() && !text.contains(PASSWORD) && !text.contains(SIGNATURE), "{text}");
    assert!(error.retry.is_none_or(|pause| pause <= PAUSE_MAX), "{:?}", error.retry);
    false
}

/// The login goes to the registry's own host only.
fn check_requests(requests: &[Vec<u8>]) {
    for request in requests {
        let text = String::from_utf8_lossy(request);
        let host = text.lines().find_map(|line| line.strip_prefix("host: ")).unwrap_or_default();
        let is_own = host.trim() == HOST;
        assert!(is_own || !text.contains("\nauthorization: "), "{text}");
    }
}

/// Reads a file of logins as docker writes it. Helpers are left out: a text must not start a program.
pub fn read_logins(document: &[u8]) {
    let Ok(serde_json::Value::Object(mut logins)) = serde_json::from_slice(document) else {
        return;
    };
    logins.retain(|name, _| !matches!(&**name, "credsStore" | "credHelpers"));
    let document = serde_json::Value::Object(logins).to_string();
    for registry in [HOST, "https://index.docker.io/v1/", "localhost:5000"] {
        drop(docker_credential::get_credential_from_reader(document.as_bytes(), registry));
    }
}

//! A registry of one repository for tests, on loopback. Reading needs a token, which anybody gets,
//! and writing another one.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::io::{BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;

use ferrofs_remote::{CHUNK_INDEX_MEDIA_TYPE, ChunkIndex, ContentDigest};

use crate::server::read_head;

/// A registry that runs as long as the process.
pub(crate) struct Registry(pub(crate) Arc<State>);

pub(crate) struct State {
    host: String,
    /// Path, media type and bytes.
    documents: Mutex<HashMap<String, (String, Vec<u8>)>>,
    /// What was sent of blobs that are not complete, by their numbers.
    uploads: Mutex<HashMap<String, Vec<u8>>>,
    /// The next body that is longer is refused.
    pub(crate) longest: AtomicU64,
    /// The next answers to uploads are 503.
    pub(crate) failures: AtomicU64,
    /// The next parts of blobs are refused, as if the token had expired.
    pub(crate) refusals: AtomicU64,
    /// Requests that wrote: their lines.
    pub(crate) written: Mutex<Vec<String>>,
    /// So many answers with bytes of blobs are right.
    spared: AtomicU64,
    /// So many of those behind them are damaged.
    damaged: AtomicU64,
    /// Whether manifests are sent with the digest of other bytes.
    pub(crate) misstates_digests: AtomicBool,
    /// Whether requests for ranges are answered with all of a blob.
    has_no_ranges: AtomicBool,
    tokens: AtomicU64,
    connections: AtomicU64,
    /// Bytes of blobs that were sent.
    pub(crate) sent: AtomicU64,
}

impl Registry {
    pub(crate) fn start(image: Vec<u8>) -> Self {
        Self::with_layers(vec![("application/vnd.erofs", image)])
    }

    /// With the chunk index in a layer of its own.
    pub(crate) fn start_indexed(image: Vec<u8>, index: &ChunkIndex) -> Self {
        Self::with_layers(vec![
            ("application/vnd.erofs", image),
            (CHUNK_INDEX_MEDIA_TYPE, index.to_bytes()),
        ])
    }

    /// With these documents: path below the repository, media type and bytes.
    pub(crate) fn start_with(contents: Vec<(String, &str, Vec<u8>)>) -> Self {
        let registry = Self::with_layers(Vec::new());
        let mut documents = registry.0.documents.lock().unwrap();
        documents.extend(contents.into_iter().map(|(path, media_type, bytes)| {
            (format!("/v2/some/image/{path}"), (media_type.to_owned(), bytes))
        }));
        drop(documents);
        registry
    }

    /// The next `count` answers with bytes of a blob have others than its digest says.
    pub(crate) fn damage(&self, count: u64) {
        self.damage_after(0, count);
    }

    /// The same after `spared` right answers.
    pub(crate) fn damage_after(&self, spared: u64, count: u64) {
        self.0.spared.store(spared, Ordering::SeqCst);
        self.0.damaged.store(count, Ordering::SeqCst);
    }

    /// What is below the repository under this path.
    pub(crate) fn document(&self, path: &str) -> Vec<u8> {
        self.0.documents.lock().unwrap()[&format!("/v2/some/image/{path}")].1.clone()
    }

    /// Has nothing from now on.
    pub(crate) fn forget_all(&self) {
        self.0.documents.lock().unwrap().clear();
    }

    /// Answers requests for ranges with all of a blob from now on.
    pub(crate) fn forget_ranges(&self) {
        self.0.has_no_ranges.store(true, Ordering::SeqCst);
    }

    pub(crate) fn with_layers(layers: Vec<(&'static str, Vec<u8>)>) -> Self {
        let mut documents = HashMap::new();
        let mut listed = String::new();
        for (media_type, bytes) in layers {
            let digest = ContentDigest::of(&bytes);
            let comma = if listed.is_empty() { "" } else { "," };
            let size = bytes.len();
            write!(
                listed,
                r#"{comma}{{"mediaType":"{media_type}","digest":"{digest}","size":{size}}}"#
            )
            .unwrap();
            documents
                .insert(format!("/v2/some/image/blobs/{digest}"), (media_type.to_owned(), bytes));
        }
        let media_type = "application/vnd.oci.image.manifest.v1+json";
        let manifest =
            format!(r#"{{"schemaVersion":2,"mediaType":"{media_type}","layers":[{listed}]}}"#);
        let manifest = (media_type.to_owned(), manifest.into_bytes());
        documents.insert("/v2/some/image/manifests/v1".to_owned(), manifest);
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let host = listener.local_addr().unwrap().to_string();
        let state = Arc::new(State {
            host,
            documents: Mutex::new(documents),
            uploads: Mutex::default(),
            longest: AtomicU64::new(u64::MAX),
            failures: AtomicU64::new(0),
            refusals: AtomicU64::new(0),
            written: Mutex::default(),
            spared: AtomicU64::new(0),
            damaged: AtomicU64::new(0),
            misstates_digests: AtomicBool::new(false),
            has_no_ranges: AtomicBool::new(false),
            tokens: AtomicU64::new(0),
            connections: AtomicU64::new(0),
            sent: AtomicU64::new(0),
        });
        let serving = Arc::clone(&state);
        thread::Builder::new()
            .spawn(move || {
                for stream in listener.incoming() {
                    let state = Arc::clone(&serving);
                    state.connections.fetch_add(1, Ordering::SeqCst);
                    thread::Builder::new().spawn(move || state.serve(&stream.unwrap())).unwrap();
                }
            })
            .unwrap();
        Self(state)
    }

    pub(crate) fn host(&self) -> &str {
        &self.0.host
    }

    pub(crate) fn location(&self) -> String {
        format!("oci://{}/some/image:v1", self.0.host)
    }

    /// Connections that were accepted.
    pub(crate) fn connections(&self) -> u64 {
        self.0.connections.load(Ordering::SeqCst)
    }

    pub(crate) fn tokens(&self) -> u64 {
        self.0.tokens.load(Ordering::SeqCst)
    }
}

impl State {
    fn serve(&self, mut stream: &TcpStream) {
        let mut reader = BufReader::new(stream.try_clone().unwrap());
        while let Some(head) = read_head(&mut reader) {
            let header = |name: &str| head.iter().find_map(|line| line.strip_prefix(name));
            let length = header("content-length: ").map_or(0, |length| length.parse().unwrap());
            let mut sent = vec![0; length];
            reader.read_exact(&mut sent).unwrap();
            let (status, headers, body) = self.answer(&head, sent);
            let is_head = head[0].starts_with("head ");
            let length = body.len();
            let answer = format!("HTTP/1.1 {status}\r\ncontent-length: {length}\r\n{headers}\r\n");
            stream.write_all(answer.as_bytes()).unwrap();
            if !is_head {
                stream.write_all(&body).unwrap();
            }
        }
    }

    fn answer(&self, head: &[String], sent: Vec<u8>) -> Answer {
        let path = head[0].split(' ').nth(1).unwrap();
        if path.starts_with("/token?") {
            assert!(path.contains("scope=repository%3asome%2fimage%3apull"), "{path}");
            self.tokens.fetch_add(1, Ordering::SeqCst);
            let token = if path.contains("%2cpush") { "t2" } else { "t1" };
            let token = format!(r#"{{"token":"{token}","expires_in":300}}"#);
            return ("200 OK", String::new(), token.into_bytes());
        }
        let is_read = head[0].starts_with("get ") || head[0].starts_with("head ");
        let allowed =
            |token: &str| head.iter().any(|line| *line == format!("authorization: bearer {token}"));
        let is_part = ["patch ", "put "].iter().any(|method| head[0].starts_with(method));
        let one_less = |left: u64| left.checked_sub(1);
        let has_expired = is_part
            && self.refusals.fetch_update(Ordering::SeqCst, Ordering::SeqCst, one_less).is_ok();
        if has_expired || !(allowed("t2") || is_read && allowed("t1")) {
            let host = &self.host;
            let challenge = format!("www-authenticate: Bearer realm=\"http://{host}/token\"\r\n");
            return ("401 Unauthorized", challenge, Vec::new());
        }
        if !is_read {
            return self.write(head, sent);
        }
        let documents = self.documents.lock().unwrap();
        let Some((media_type, bytes)) = documents.get(path) else {
            return ("404 Not Found", String::new(), Vec::new());
        };
        let stated = match self.misstates_digests.load(Ordering::SeqCst) {
            true => ContentDigest::of(b"other bytes"),
            false => ContentDigest::of(bytes),
        };
        let headers = format!("content-type: {media_type}\r\ndocker-content-digest: {stated}\r\n");
        let range = head.iter().find_map(|line| line.strip_prefix("range: bytes="));
        let range = range.filter(|_| !self.has_no_ranges.load(Ordering::SeqCst));
        let Some((start, last)) = range.and_then(|range| range.split_once('-')) else {
            self.sent.fetch_add(bytes.len() as u64, Ordering::SeqCst);
            return ("200 OK", headers, bytes.clone());
        };
        let start: usize = start.parse().unwrap();
        let end = (last.parse::<usize>().unwrap() + 1).min(bytes.len());
        let range = format!("content-range: bytes {start}-{}/{}\r\n", end - 1, bytes.len());
        let mut bytes = bytes[start..end].to_vec();
        let one_less = |left: u64| left.checked_sub(1);
        let has_one =
            |of: &AtomicU64| of.fetch_update(Ordering::SeqCst, Ordering::SeqCst, one_less).is_ok();
        if !has_one(&self.spared) && has_one(&self.damaged) {
            bytes[0] ^= 1;
        }
        self.sent.fetch_add(bytes.len() as u64, Ordering::SeqCst);
        ("206 Partial Content", headers + &range, bytes)
    }

    /// POST, PATCH and PUT of blobs, and PUT of manifests.
    fn write(&self, head: &[String], sent: Vec<u8>) -> Answer {
        self.written.lock().unwrap().push(head[0].clone());
        let one_less = |left: u64| left.checked_sub(1);
        if self.failures.fetch_update(Ordering::SeqCst, Ordering::SeqCst, one_less).is_ok() {
            return ("503 Service Unavailable", String::new(), Vec::new());
        }
        if sent.len() as u64 > self.longest.load(Ordering::SeqCst) {
            return ("413 Payload Too Large", String::new(), Vec::new());
        }
        let mut words = head[0].split(' ');
        let (method, target) = (words.next().unwrap(), words.next().unwrap());
        let (path, query) = target.split_once('?').unwrap_or((target, ""));
        let mut uploads = self.uploads.lock().unwrap();
        if method == "post" {
            let place = format!("/v2/some/image/blobs/uploads/{}", uploads.len());
            uploads.insert(place.clone(), Vec::new());
            // As in most registries, the place has a query of its own.
            return ("202 Accepted", format!("location: {place}?_state=x\r\n"), Vec::new());
        }
        if let Some(tag) = path.strip_prefix("/v2/some/image/manifests/") {
            let header = head.iter().find_map(|line| line.strip_prefix("content-type: "));
            let path = format!("/v2/some/image/manifests/{tag}");
            let document = (header.unwrap().to_owned(), sent);
            self.documents.lock().unwrap().insert(path, document);
            return ("201 Created", String::new(), Vec::new());
        }
        assert!(query.starts_with("_state=x"), "{query}");
        let upload = uploads.get_mut(path).unwrap();
        if let Some(range) = head.iter().find_map(|line| line.strip_prefix("content-range: ")) {
            let wanted = format!("{}-{}", upload.len(), upload.len() + sent.len() - 1);
            assert_eq!(range, wanted);
        }
        upload.extend(sent);
        if method == "patch" {
            return ("202 Accepted", format!("location: {path}?_state=x\r\n"), Vec::new());
        }
        let digest = query.split("digest=").nth(1).unwrap().replace("%3a", ":");
        if ContentDigest::of(upload).to_string() != digest {
            return ("400 Bad Request", String::new(), Vec::new());
        }
        let blob = ("application/octet-stream".to_owned(), uploads.remove(path).unwrap());
        self.documents.lock().unwrap().insert(format!("/v2/some/image/blobs/{digest}"), blob);
        ("201 Created", String::new(), Vec::new())
    }
}

/// Status, headers and body.
type Answer = (&'static str, String, Vec<u8>);

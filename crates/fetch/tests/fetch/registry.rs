//! A registry of one image for tests, on loopback. Reading needs a token, which anybody gets.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::io::{BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use ferrofs_remote::{CHUNK_INDEX_MEDIA_TYPE, ChunkIndex, ContentDigest};

use crate::server::read_head;

/// A registry that runs as long as the process.
pub(crate) struct Registry(Arc<State>);

struct State {
    host: String,
    /// Path, media type and bytes.
    documents: HashMap<String, (&'static str, Vec<u8>)>,
    /// So many answers with bytes of blobs are damaged.
    damaged: AtomicU64,
    tokens: AtomicU64,
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

    /// The next `count` answers with bytes of a blob have others than its digest says.
    pub(crate) fn damage(&self, count: u64) {
        self.0.damaged.store(count, Ordering::SeqCst);
    }

    fn with_layers(layers: Vec<(&'static str, Vec<u8>)>) -> Self {
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
            documents.insert(format!("/v2/some/image/blobs/{digest}"), (media_type, bytes));
        }
        let media_type = "application/vnd.oci.image.manifest.v1+json";
        let manifest =
            format!(r#"{{"schemaVersion":2,"mediaType":"{media_type}","layers":[{listed}]}}"#);
        let manifest = (media_type, manifest.into_bytes());
        documents.insert("/v2/some/image/manifests/v1".to_owned(), manifest);
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let host = listener.local_addr().unwrap().to_string();
        let state = Arc::new(State {
            host,
            documents,
            damaged: AtomicU64::new(0),
            tokens: AtomicU64::new(0),
        });
        let serving = Arc::clone(&state);
        thread::Builder::new()
            .spawn(move || {
                for stream in listener.incoming() {
                    let state = Arc::clone(&serving);
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

    pub(crate) fn tokens(&self) -> u64 {
        self.0.tokens.load(Ordering::SeqCst)
    }
}

impl State {
    fn serve(&self, mut stream: &TcpStream) {
        let mut reader = BufReader::new(stream.try_clone().unwrap());
        while let Some(head) = read_head(&mut reader) {
            let (status, headers, body) = self.answer(&head);
            let is_head = head[0].starts_with("head ");
            let length = body.len();
            let answer = format!("HTTP/1.1 {status}\r\ncontent-length: {length}\r\n{headers}\r\n");
            stream.write_all(answer.as_bytes()).unwrap();
            if !is_head {
                stream.write_all(&body).unwrap();
            }
        }
    }

    fn answer(&self, head: &[String]) -> (&'static str, String, Vec<u8>) {
        let path = head[0].split(' ').nth(1).unwrap();
        if path.starts_with("/token?") {
            assert!(path.contains("scope=repository%3asome%2fimage%3apull"), "{path}");
            self.tokens.fetch_add(1, Ordering::SeqCst);
            return ("200 OK", String::new(), br#"{"token":"t1","expires_in":300}"#.to_vec());
        }
        if !head.iter().any(|line| line == "authorization: bearer t1") {
            let host = &self.host;
            let challenge = format!("www-authenticate: Bearer realm=\"http://{host}/token\"\r\n");
            return ("401 Unauthorized", challenge, Vec::new());
        }
        let Some((media_type, bytes)) = self.documents.get(path) else {
            return ("404 Not Found", String::new(), Vec::new());
        };
        let headers = format!("content-type: {media_type}\r\n");
        let range = head.iter().find_map(|line| line.strip_prefix("range: bytes="));
        let Some((start, last)) = range.and_then(|range| range.split_once('-')) else {
            return ("200 OK", headers, bytes.clone());
        };
        let start: usize = start.parse().unwrap();
        let end = (last.parse::<usize>().unwrap() + 1).min(bytes.len());
        let range = format!("content-range: bytes {start}-{}/{}\r\n", end - 1, bytes.len());
        let mut bytes = bytes[start..end].to_vec();
        let one_less = |left: u64| left.checked_sub(1);
        if self.damaged.fetch_update(Ordering::SeqCst, Ordering::SeqCst, one_less).is_ok() {
            bytes[0] ^= 1;
        }
        ("206 Partial Content", headers + &range, bytes)
    }
}

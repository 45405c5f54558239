//! An object store for tests, on loopback, which checks signatures by itself: those of S3 (AWS
//! Signature Version 4) and the shared keys of Azure. Also a server for credentials.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use ferrofs_remote::ContentDigest;

/// The answer to request `n`, unless it is the right one: status, further headers and code.
pub(crate) type StoreFault = fn(u64) -> Option<(&'static str, &'static str, &'static str)>;

/// A store that runs as long as the process.
pub(crate) struct Store(pub(crate) Arc<StoreState>);

pub(crate) struct StoreState {
    pub(crate) address: String,
    /// Content and tag by the path of the URL.
    objects: Mutex<HashMap<String, (Vec<u8>, String)>>,
    /// Secret and session token by the access key.
    keys: Mutex<HashMap<String, (String, String)>>,
    fault: Mutex<StoreFault>,
    pub(crate) requests: AtomicU64,
    pub(crate) sent: AtomicU64,
    /// Credentials that were given.
    pub(crate) given: AtomicU64,
}

struct Request {
    method: String,
    path: String,
    query: String,
    headers: HashMap<String, String>,
    body: String,
}

/// Credentials, valid for long as far as their documents say.
struct Keys {
    key: String,
    secret: String,
    token: String,
}

impl Keys {
    fn json(&self) -> String {
        let Self { key, secret, token } = self;
        format!(
            r#"{{"AccessKeyId":"{key}","SecretAccessKey":"{secret}","Token":"{token}","Expiration":"2099-01-01T00:00:00Z"}}"#
        )
    }
}

impl Store {
    pub(crate) fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let state = Arc::new(StoreState {
            address: listener.local_addr().unwrap().to_string(),
            objects: Mutex::default(),
            keys: Mutex::default(),
            fault: Mutex::new(|_| None),
            requests: AtomicU64::new(0),
            sent: AtomicU64::new(0),
            given: AtomicU64::new(0),
        });
        let serving = Arc::clone(&state);
        let accept = move || {
            for stream in listener.incoming() {
                let state = Arc::clone(&serving);
                thread::Builder::new().spawn(move || state.serve(&stream.unwrap())).unwrap();
            }
        };
        thread::Builder::new().spawn(accept).unwrap();
        Self(state)
    }

    pub(crate) fn put(&self, path: &str, body: Vec<u8>, tag: &str) {
        self.0.objects.lock().unwrap().insert(path.to_owned(), (body, tag.to_owned()));
    }

    pub(crate) fn allow(&self, key: &str, secret: &str, token: &str) {
        let pair = (secret.to_owned(), token.to_owned());
        self.0.keys.lock().unwrap().insert(key.to_owned(), pair);
    }

    /// All credentials that were valid have expired.
    pub(crate) fn expire(&self) {
        self.0.keys.lock().unwrap().clear();
    }

    pub(crate) fn set_fault(&self, fault: StoreFault) {
        *self.0.fault.lock().unwrap() = fault;
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.0.address)
    }
}

impl StoreState {
    fn serve(&self, stream: &TcpStream) {
        let mut reader = BufReader::new(stream.try_clone().unwrap());
        while let Some(request) = read_request(&mut reader) {
            if self.answer(stream, &request).is_none() {
                break;
            }
        }
    }

    fn answer(&self, mut stream: &TcpStream, request: &Request) -> Option<()> {
        if let Some(document) = self.credentials(request) {
            let length = document.len();
            let answer = format!("HTTP/1.1 200 OK\r\ncontent-length: {length}\r\n\r\n{document}");
            return stream.write_all(answer.as_bytes()).ok();
        }
        let number = self.requests.fetch_add(1, Ordering::SeqCst);
        let refused = (self.fault.lock().unwrap())(number).or_else(|| self.refusal(request));
        let found = self.objects.lock().unwrap().get(&request.path).cloned();
        let (body, tag) = match (refused, found) {
            (Some(refusal), _) => return refuse(stream, refusal),
            (None, Some(found)) => found,
            (None, None) if request.path.starts_with("/bucket/") => {
                return refuse(stream, ("404 Not Found", "", "NoSuchKey"));
            }
            (None, None) => return refuse(stream, ("404 Not Found", "", "NoSuchBucket")),
        };
        if request.headers.get("if-match").is_some_and(|wanted| *wanted != tag) {
            return refuse(stream, ("412 Precondition Failed", "", "PreconditionFailed"));
        }
        let (start, last) =
            request.headers.get("range")?.strip_prefix("bytes=")?.split_once('-')?;
        let start: usize = start.parse().ok()?;
        let end = (last.parse::<usize>().ok()? + 1).min(body.len());
        let part = body.get(start..end)?;
        let head = format!(
            "HTTP/1.1 206 Partial Content\r\ncontent-length: {}\r\ncontent-range: bytes \
             {start}-{}/{}\r\netag: {tag}\r\n\r\n",
            part.len(),
            end - 1,
            body.len()
        );
        stream.write_all(head.as_bytes()).ok()?;
        self.sent.fetch_add(part.len() as u64, Ordering::SeqCst);
        stream.write_all(part).ok()
    }

    /// What services that give credentials answer: of a container, of a machine in three steps, and of a
    /// directory. `None` for what is no request to one of them, or not a right one.
    fn credentials(&self, request: &Request) -> Option<String> {
        const MACHINE: &str = "/latest/meta-data/iam/security-credentials/";
        let has_session = || {
            let session = request.headers.get("x-aws-ec2-metadata-token");
            session.is_some_and(|session| session == "machine")
        };
        match (&*request.method, &*request.path) {
            ("GET", "/credentials") => Some(self.give_keys().json()),
            ("PUT", "/latest/api/token") => Some("machine".to_owned()),
            ("GET", MACHINE) if has_session() => Some("role".to_owned()),
            ("GET", path) if path == format!("{MACHINE}role") && has_session() => {
                Some(self.give_keys().json())
            }
            ("POST", "/tenant/oauth2/v2.0/token") => {
                let secrets = ["client_secret=hidden", "client_assertion=federated"];
                secrets.iter().any(|part| request.body.contains(part)).then(|| {
                    let bearer = self.give_keys().key;
                    format!(r#"{{"access_token":"{bearer}","expires_in":3600}}"#)
                })
            }
            _ => None,
        }
    }

    /// New credentials.
    fn give_keys(&self) -> Keys {
        let number = self.given.fetch_add(1, Ordering::SeqCst);
        let keys = Keys {
            key: format!("KEY{number}"),
            secret: format!("hidden{number}"),
            token: format!("session{number}"),
        };
        let pair = (keys.secret.clone(), keys.token.clone());
        self.keys.lock().unwrap().insert(keys.key.clone(), pair);
        keys
    }

    /// Why a request is refused, in the words of S3 and Azure.
    fn refusal(&self, request: &Request) -> Option<(&'static str, &'static str, &'static str)> {
        const FORBIDDEN: &str = "403 Forbidden";
        let keys = self.keys.lock().unwrap();
        if request.path.starts_with("/public/") {
            return None;
        }
        let Some(header) = request.headers.get("authorization") else {
            return Some((FORBIDDEN, "", "AccessDenied"));
        };
        if let Some(signature) = header.strip_prefix("SharedKey account:") {
            let secret = &keys["account"].0;
            let good = azure_signature(request, secret) == signature;
            return (!good).then_some((FORBIDDEN, "", "AuthenticationFailed"));
        }
        if let Some(bearer) = header.strip_prefix("Bearer ") {
            // A JSON web token of Google has three parts; the test has made its key.
            let is_good = keys.contains_key(bearer) || bearer.split('.').count() == 3;
            return (!is_good).then_some((FORBIDDEN, "", "InvalidAuthenticationInfo"));
        }
        let part = |name: &str| header.split_once(name)?.1.split([',', ' ']).next();
        let scope = part("Credential=").unwrap_or_default();
        let (key, scope) = scope.split_once('/').unwrap_or_default();
        let Some((secret, token)) = keys.get(key) else {
            let code = if key.starts_with("KEY") { "ExpiredToken" } else { "InvalidAccessKeyId" };
            return Some((FORBIDDEN, "", code));
        };
        let sent = request.headers.get("x-amz-security-token").map_or("", String::as_str);
        let signed = part("SignedHeaders=").unwrap_or_default();
        let wanted = aws_signature(request, scope, signed, secret);
        let is_good = part("Signature=") == Some(&wanted) && sent == token;
        (!is_good).then_some((FORBIDDEN, "", "SignatureDoesNotMatch"))
    }
}

fn refuse(mut stream: &TcpStream, refusal: (&str, &str, &str)) -> Option<()> {
    let (status, headers, code) = refusal;
    let body = format!("<?xml version=\"1.0\"?><Error><Code>{code}</Code></Error>");
    let length = body.len();
    let answer = format!("HTTP/1.1 {status}\r\ncontent-length: {length}\r\n{headers}\r\n{body}");
    stream.write_all(answer.as_bytes()).ok()
}

fn read_request(reader: &mut impl BufRead) -> Option<Request> {
    let mut line = String::new();
    (reader.read_line(&mut line).ok()? > 0).then_some(())?;
    let (method, target) = line.split_once(' ')?;
    let (method, target) = (method.to_owned(), target.split(' ').next()?.to_owned());
    let (path, query) = target.split_once('?').unwrap_or((&target, ""));
    let mut headers = HashMap::new();
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).ok()?;
        let Some((name, value)) = line.trim_end().split_once(':') else { break };
        headers.insert(name.to_ascii_lowercase(), value.trim().to_owned());
    }
    let length = headers.get("content-length").map_or(0, |length| length.parse().unwrap());
    let mut body = vec![0; length];
    reader.read_exact(&mut body).ok()?;
    let (path, query) = (path.to_owned(), query.to_owned());
    Some(Request { method, path, query, headers, body: String::from_utf8(body).ok()? })
}

/// RFC 2104.
fn hmac(key: &[u8], text: &[u8]) -> [u8; 32] {
    let mut block = [0; 64];
    if key.len() > 64 {
        block[..32].copy_from_slice(ContentDigest::of(key).as_bytes());
    } else {
        block[..key.len()].copy_from_slice(key);
    }
    let inner = [&block.map(|byte| byte ^ 0x36), text].concat();
    let outer = [&block.map(|byte| byte ^ 0x5c)[..], ContentDigest::of(&inner).as_bytes()].concat();
    *ContentDigest::of(&outer).as_bytes()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// AWS Signature Version 4 of a GET, with `scope` as in `20130524/us-east-1/s3/aws4_request`.
fn aws_signature(request: &Request, scope: &str, signed: &str, secret: &str) -> String {
    let header = |name: &str| request.headers.get(name).map_or("", String::as_str);
    let headers: String =
        signed.split(';').map(|name| format!("{name}:{}\n", header(name))).collect();
    let content = header("x-amz-content-sha256");
    let canonical =
        format!("GET\n{}\n{}\n{headers}\n{signed}\n{content}", request.path, request.query);
    let digest = hex(ContentDigest::of(canonical.as_bytes()).as_bytes());
    let text = format!("AWS4-HMAC-SHA256\n{}\n{scope}\n{digest}", header("x-amz-date"));
    let mut key = format!("AWS4{secret}").into_bytes();
    for part in scope.split('/') {
        key = hmac(&key, part.as_bytes()).to_vec();
    }
    hex(&hmac(&key, text.as_bytes()))
}

/// The signature of a GET by a shared key, as Microsoft documents it.
fn azure_signature(request: &Request, secret: &str) -> String {
    let header = |name: &str| request.headers.get(name).map_or("", String::as_str);
    let mut own: Vec<_> =
        request.headers.iter().filter(|(name, _)| name.starts_with("x-ms-")).collect();
    own.sort();
    let own: String = own.into_iter().map(|(name, value)| format!("{name}:{value}\n")).collect();
    let date = if own.contains("x-ms-date:") { "" } else { header("date") };
    let text = format!(
        "GET\n\n\n\n\n\n{date}\n\n{}\n\n\n{}\n{own}/account{}",
        header("if-match"),
        header("range"),
        request.path
    );
    STANDARD.encode(hmac(&STANDARD.decode(secret).unwrap(), text.as_bytes()))
}

/// The example "GET Object" of Amazon's documentation of Signature Version 4.
#[test]
fn the_check_of_signatures_agrees_with_the_published_example() {
    let headers = [
        ("host", "examplebucket.s3.amazonaws.com"),
        ("range", "bytes=0-9"),
        (
            "x-amz-content-sha256",
            "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",
        ),
        ("x-amz-date", "20130524T000000Z"),
    ];
    let headers = headers.map(|(name, value)| (name.to_owned(), value.to_owned())).into();
    let request = Request {
        method: "GET".to_owned(),
        path: "/test.txt".to_owned(),
        query: String::new(),
        headers,
        body: String::new(),
    };
    let scope = "20130524/us-east-1/s3/aws4_request";
    let signed = "host;range;x-amz-content-sha256;x-amz-date";
    let secret = "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY";
    assert_eq!(
        aws_signature(&request, scope, signed, secret),
        "f0e8bdb87c964420e857bd35b5d6ed310bd44f0170aba48dd91039c6036bdb41"
    );
}

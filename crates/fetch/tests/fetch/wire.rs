//! A server whose answers are bytes: what a test wants to send, right or not.

use std::io::{BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use crate::server::read_head;

/// A request.
#[derive(Clone, Debug)]
pub(crate) struct WireRequest {
    /// The number of the request, from 0 on.
    pub(crate) number: u64,
    pub(crate) host: String,
    pub(crate) path: String,
    /// What its `Range` says; nothing without one.
    pub(crate) range: Option<(usize, usize)>,
    /// What its `Authorization` says, in lower case.
    pub(crate) authorization: Option<String>,
}

/// An answer in parts.
#[derive(Clone, Debug)]
pub(crate) struct Answer {
    pub(crate) status: String,
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body: Vec<u8>,
    /// What is sent instead of head and body.
    pub(crate) raw: Option<Vec<u8>>,
    /// So many bytes of the body are sent.
    pub(crate) truncate_at: usize,
    /// A pause before each byte of the body.
    pub(crate) drip: Duration,
    /// A pause before the head.
    pub(crate) pause: Duration,
}

impl Answer {
    pub(crate) fn new(status: &str, headers: &[(&str, &str)], body: &[u8]) -> Self {
        let mut answer = Self {
            status: status.to_owned(),
            headers: Vec::new(),
            body: body.to_vec(),
            raw: None,
            truncate_at: usize::MAX,
            drip: Duration::ZERO,
            pause: Duration::ZERO,
        };
        answer.set("content-length", &body.len().to_string());
        headers.iter().for_each(|(name, value)| answer.set(name, value));
        answer
    }

    /// The right answer to a request for a range of `body`, or for all of it.
    pub(crate) fn part(request: &WireRequest, body: &[u8]) -> Self {
        let tag = ("etag", "\"one\"");
        let Some((start, end)) = request.range else { return Self::new("200 OK", &[tag], body) };
        let end = end.min(body.len());
        let Some(part) = body.get(start..end).filter(|part| !part.is_empty()) else {
            return Self::new("416 Range Not Satisfiable", &[], b"");
        };
        let range = format!("bytes {start}-{}/{}", end - 1, body.len());
        Self::new("206 Partial Content", &[("content-range", &range), tag], part)
    }

    /// Sets or replaces a header.
    pub(crate) fn set(&mut self, name: &str, value: &str) {
        self.headers.retain(|(other, _)| other != name);
        self.headers.push((name.to_owned(), value.to_owned()));
    }

    pub(crate) fn remove(&mut self, name: &str) {
        self.headers.retain(|(other, _)| other != name);
    }

    fn head(&self) -> Vec<u8> {
        let mut head = format!("HTTP/1.1 {}\r\n", self.status);
        self.headers.iter().for_each(|(name, value)| head += &format!("{name}: {value}\r\n"));
        (head + "\r\n").into_bytes()
    }
}

/// A server that runs as long as the process.
#[derive(Clone)]
pub(crate) struct Wire {
    pub(crate) host: String,
    requests: Arc<AtomicU64>,
}

impl Wire {
    pub(crate) fn start(answer: impl Fn(&WireRequest) -> Answer + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let host = listener.local_addr().unwrap().to_string();
        let wire = Self { host, requests: Arc::default() };
        let (serving, answer) = (wire.clone(), Arc::new(answer));
        thread::Builder::new()
            .spawn(move || {
                for stream in listener.incoming() {
                    let (wire, answer) = (serving.clone(), Arc::clone(&answer));
                    let serve = move || wire.serve(&stream.unwrap(), &*answer);
                    thread::Builder::new().spawn(serve).unwrap();
                }
            })
            .unwrap();
        wire
    }

    pub(crate) fn requests(&self) -> u64 {
        self.requests.load(Ordering::SeqCst)
    }

    fn serve(&self, mut stream: &TcpStream, answer: &dyn Fn(&WireRequest) -> Answer) {
        // Head and body are two writes: the client would confirm the first one with a delay.
        stream.set_nodelay(true).unwrap();
        let mut reader = BufReader::new(stream);
        while let Some(head) = read_head(&mut reader) {
            let number = self.requests.fetch_add(1, Ordering::SeqCst);
            let range = head.iter().find_map(|line| line.strip_prefix("range: bytes="));
            let range = range
                .and_then(|range| range.split_once('-'))
                .map(|(start, last)| (start.parse().unwrap(), last.parse::<usize>().unwrap() + 1));
            let path = head[0].split(' ').nth(1).unwrap().to_owned();
            let is_head = head[0].starts_with("head ");
            let host = self.host.clone();
            let authorization = head.iter().find_map(|line| line.strip_prefix("authorization: "));
            let authorization = authorization.map(ToOwned::to_owned);
            let answer = answer(&WireRequest { number, host, path, range, authorization });
            thread::sleep(answer.pause);
            let head = answer.raw.clone().unwrap_or_else(|| answer.head());
            if stream.write_all(&head).is_err() || answer.raw.is_some() {
                break;
            }
            if is_head {
                continue;
            }
            let body = &answer.body[..answer.truncate_at.min(answer.body.len())];
            let is_sent = if answer.drip.is_zero() {
                stream.write_all(body).is_ok()
            } else {
                body.iter().all(|byte| {
                    thread::sleep(answer.drip);
                    stream.write_all(&[*byte]).is_ok()
                })
            };
            if !is_sent || answer.truncate_at < answer.body.len() {
                break;
            }
        }
        // A client that reads sees the end now, not when the reader is dropped.
        stream.shutdown(std::net::Shutdown::Both).ok();
    }
}

//! A web server of one object for tests, on loopback: one thread for each connection.

use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

/// How a server answers a request for a range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// Correctly.
    None,
    /// With this status and no body.
    Status(u16),
    /// Closes the connection before it answers.
    Reset,
    /// Closes the connection in the middle of the body.
    Cut,
    /// Sends wrong bytes.
    Damage,
    /// With the whole object.
    Whole,
    /// With the first 40,000 bytes of the whole object.
    WholeCut,
    /// With another `Content-Range` than that of its body.
    WrongRange,
    /// With another length of the object.
    WrongLength,
    /// With another validator.
    WrongTag,
    /// With an encoding.
    Encoded,
}

impl Fault {
    /// This fault from request `first` on.
    pub(crate) fn from(self, first: u64, number: u64) -> Self {
        if number < first { Self::None } else { self }
    }
}

/// The fault of a request by its number.
pub(crate) type FaultOf = fn(u64) -> Fault;

/// What a server is doing.
#[derive(Debug)]
pub(crate) struct State {
    pub(crate) body: Vec<u8>,
    pub(crate) tag: Mutex<String>,
    pub(crate) delay: Mutex<Duration>,
    /// Bytes per second of all answers together; 0 for no limit.
    pub(crate) bandwidth: AtomicU64,
    /// When the line is free again.
    line_free: Mutex<Instant>,
    /// The fault of request `n`.
    pub(crate) fault: Mutex<FaultOf>,
    pub(crate) requests: AtomicU64,
    pub(crate) sent: AtomicU64,
    pub(crate) ranges: Mutex<Vec<(u64, u64)>>,
    address: String,
}

/// A server that runs as long as the process.
#[derive(Clone, Debug)]
pub(crate) struct Server(pub(crate) Arc<State>);

impl Server {
    pub(crate) fn start(body: Vec<u8>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let server = Self(Arc::new(State {
            body,
            tag: Mutex::new("\"one\"".to_owned()),
            delay: Mutex::new(Duration::ZERO),
            bandwidth: AtomicU64::new(0),
            line_free: Mutex::new(Instant::now()),
            fault: Mutex::new(|_| Fault::None),
            requests: AtomicU64::new(0),
            sent: AtomicU64::new(0),
            ranges: Mutex::default(),
            address: listener.local_addr().unwrap().to_string(),
        }));
        let state = Arc::clone(&server.0);
        thread::Builder::new()
            .spawn(move || {
                for stream in listener.incoming() {
                    let state = Arc::clone(&state);
                    thread::Builder::new().spawn(move || state.serve(&stream.unwrap())).unwrap();
                }
            })
            .unwrap();
        server
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}/image.erofs", self.0.address)
    }

    pub(crate) fn requests(&self) -> u64 {
        self.0.requests.load(Ordering::SeqCst)
    }

    pub(crate) fn set_fault(&self, fault: FaultOf) {
        *self.0.fault.lock().unwrap() = fault;
    }
}

impl State {
    fn serve(&self, stream: &TcpStream) {
        let mut reader = BufReader::new(stream.try_clone().unwrap());
        while let Some(head) = read_head(&mut reader) {
            if self.answer(stream, &head).is_none() {
                break;
            }
        }
    }

    /// `None` to close the connection.
    fn answer(&self, mut stream: &TcpStream, head: &[String]) -> Option<()> {
        let number = self.requests.fetch_add(1, Ordering::SeqCst);
        let delay = *self.delay.lock().unwrap();
        thread::sleep(delay);
        let fault = (self.fault.lock().unwrap())(number);
        let length = self.body.len();
        let range = head.iter().find_map(|line| line.strip_prefix("range: bytes="))?;
        let (start, last) = range.split_once('-')?;
        let start: usize = start.parse().ok()?;
        let end = (last.parse::<usize>().ok()? + 1).min(length);
        self.ranges.lock().unwrap().push((start as u64, end as u64));
        let mut tag = self.tag.lock().unwrap().clone();
        let (mut status, mut start, mut end, mut announced, mut extra) =
            ("206 Partial Content", start, end, length, "");
        match fault {
            Fault::Reset => return None,
            Fault::Status(code) => {
                let answer = format!("HTTP/1.1 {code} Fault\r\ncontent-length: 0\r\n\r\n");
                return stream.write_all(answer.as_bytes()).ok();
            }
            Fault::Whole | Fault::WholeCut => (status, start, end) = ("200 OK", 0, length),
            Fault::WrongLength => announced += 1,
            Fault::WrongTag => tag.push('x'),
            Fault::Encoded => extra = "content-encoding: gzip\r\n",
            _ => {}
        }
        let mut body = self.body.get(start..end)?.to_vec();
        if fault == Fault::Damage {
            body[0] ^= 1;
        }
        let skew = usize::from(fault == Fault::WrongRange);
        let range = format!("content-range: bytes {}-{}/{announced}\r\n", start + skew, end - 1);
        let range = if matches!(fault, Fault::Whole | Fault::WholeCut) { "" } else { &range };
        let head = format!(
            "HTTP/1.1 {status}\r\ncontent-length: {}\r\n{range}etag: {tag}\r\n{extra}\r\n",
            body.len()
        );
        stream.write_all(head.as_bytes()).ok()?;
        let truncate_at = match fault {
            Fault::Cut => Some(body.len() / 2),
            Fault::WholeCut => Some(40_000),
            _ => None,
        };
        if let Some(truncate_at) = truncate_at {
            self.send(stream, &body[..truncate_at])?;
            return None;
        }
        self.send(stream, &body)
    }

    /// Sends as fast as the line is; `None` when the client has gone.
    fn send(&self, mut stream: &TcpStream, body: &[u8]) -> Option<()> {
        for piece in body.chunks(64 << 10) {
            let bandwidth = self.bandwidth.load(Ordering::SeqCst);
            let time = (piece.len() as u64 * 1_000_000_000).checked_div(bandwidth);
            if let Some(time) = time.map(Duration::from_nanos) {
                let mut free = self.line_free.lock().unwrap();
                *free = (*free).max(Instant::now()) + time;
                let until = *free;
                drop(free);
                thread::sleep(until.saturating_duration_since(Instant::now()));
            }
            stream.write_all(piece).ok()?;
            self.sent.fetch_add(piece.len() as u64, Ordering::SeqCst);
        }
        Some(())
    }
}

/// The lines of a request, in lower case.
pub(crate) fn read_head(reader: &mut impl BufRead) -> Option<Vec<String>> {
    let mut lines = Vec::new();
    loop {
        let mut line = String::new();
        if reader.read_line(&mut line).ok()? == 0 {
            return None;
        }
        if line == "\r\n" {
            return Some(lines);
        }
        lines.push(line.trim_end().to_ascii_lowercase());
    }
}

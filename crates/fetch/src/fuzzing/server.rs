//! A server whose answers are any bytes.

use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{UnixListener, UnixStream};
use tokio::task::JoinHandle;

use crate::lock::lock;

/// Between two answers: the record separator of ASCII.
const SEPARATOR: u8 = 0x1E;
/// No request of the fetcher is longer.
const REQUEST_MAX_BYTES: usize = 64 << 10;
/// The first byte of a connection with TLS: a record of its handshake.
const TLS_HANDSHAKE: u8 = 22;

/// What is left to say, and what was heard.
#[derive(Debug, Default)]
struct ServerState {
    answers: VecDeque<Vec<u8>>,
    requests: Vec<Vec<u8>>,
}

/// A server on this thread, which gives one answer to each connection and none when all are given. It has no TLS. It ends
/// with this value.
#[derive(Debug)]
pub(super) struct AnyServer {
    path: PathBuf,
    state: Arc<Mutex<ServerState>>,
    task: JoinHandle<()>,
}

impl AnyServer {
    /// Starts it, inside of a runtime.
    pub(super) fn start(answers: &[u8]) -> Self {
        static NUMBER: AtomicU64 = AtomicU64::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        // An abstract name: there is no file that could be left.
        let path = PathBuf::from(format!("\0ferrofs-fuzz-{}-{number}", std::process::id()));
        let listener = UnixListener::bind(&path).expect("a socket");
        let answers = answers.split(|byte| *byte == SEPARATOR).map(<[u8]>::to_vec).collect();
        let state = Arc::new(Mutex::new(ServerState { answers, requests: Vec::new() }));
        let serving = Arc::clone(&state);
        let task = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                // A client that has gone needs no answer.
                drop(serve(stream, &serving).await);
            }
        });
        Self { path, state, task }
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// The heads of the requests so far.
    pub(super) fn requests(&self) -> Vec<Vec<u8>> {
        lock(&self.state).requests.clone()
    }
}

impl Drop for AnyServer {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn serve(mut stream: UnixStream, state: &Mutex<ServerState>) -> std::io::Result<()> {
    let mut request = Vec::new();
    while !request.ends_with(b"\r\n\r\n") && request.len() < REQUEST_MAX_BYTES {
        let count = stream.read_buf(&mut request).await?;
        // A client that wants TLS would wait for an answer, and the server for the end of a head, until the time limit.
        if count == 0 || request[0] == TLS_HANDSHAKE {
            return Ok(());
        }
    }
    let answer = {
        let mut state = lock(state);
        state.requests.push(request);
        state.answers.pop_front().unwrap_or_default()
    };
    stream.write_all(&answer).await?;
    stream.shutdown().await
}

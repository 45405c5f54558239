//! `ferrofs pull`: downloads a whole image. The fetcher receives it in parallel, as the readahead of
//! a sequential reader requests it, and keeps it in its cache, from which an interrupted download
//! goes on. The file gets its name when it is complete and has its digest.

use std::io::{self, Seek, Write};
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::time::{Duration, Instant};

use anyhow::{Context, anyhow, bail};
use ferrofs_builder::output::{ExistingOutput, NewFile, OutputTarget};
use ferrofs_image::ImageSource;
use ferrofs_remote::protocol::{ObjectState, Verification};
use ferrofs_remote::{ContentDigest, RemoteSource};
use serde::Serialize;
use sha2::{Digest, Sha256};

use crate::amount::human_bytes;
use crate::arguments::{PullArguments, VerifyChoice};
use crate::exit_status::{CommandStatus, usage_error};
use crate::output::{JsonBytes, Output, escape};
use crate::progress::{ProgressDisplay, WorkAmount};
use crate::remote;
use crate::signals::{ExitOnSignals, SecondSignal, StopRequest};
use crate::source::foreign;

/// Read at once: a chunk of the cache.
const CHUNK_BYTES: usize = 1 << 20;
/// Pieces that are read and not written yet.
const PIECES_AHEAD: usize = 4;
/// Fetched at once past the caches. More would not fit into the memory of a fetcher without a disk.
const AGAIN_BYTES: u64 = 24 << 20;
/// How long a signal waits for attention.
const SIGNAL_PAUSE: Duration = Duration::from_millis(100);

#[derive(Serialize)]
struct PullReport {
    location: String,
    file: JsonBytes,
    bytes: u64,
    sha256: String,
    verification: &'static str,
    seconds: f64,
}

/// Downloads.
///
/// # Errors
/// The location cannot be opened or read, the bytes have not their digest, the file cannot be
/// created, or a signal arrived.
pub(super) fn run(
    arguments: &PullArguments,
    signals: ExitOnSignals,
) -> anyhow::Result<CommandStatus> {
    let existing = if arguments.force { ExistingOutput::Replace } else { ExistingOutput::Refuse };
    let target = OutputTarget::open(&arguments.file, existing).map_err(|error| {
        use ferrofs_builder::ErrorKind;
        match error.kind() {
            ErrorKind::Exists => anyhow!("{error}; --force replaces it"),
            ErrorKind::InvalidOptions(_) => usage_error(error),
            _ => anyhow!("{error}"),
        }
    })?;
    if target.is_in_place() {
        let file = escape(arguments.file.as_os_str().as_bytes());
        return Err(usage_error(format_args!("{file}: a block device; pull into a file")));
    }
    let started = Instant::now();
    let terminal_form = remote::terminal_form(&arguments.location);
    let source = open(arguments)?;
    let state = source.state().clone();
    let verification = verification(&state);
    if arguments.remote.verify == Some(VerifyChoice::Require) && verification == NOT_VERIFIED {
        bail!(
            "{terminal_form}: --verify=require needs a digest or a chunk index, and there is neither"
        );
    }
    if verification == NOT_VERIFIED {
        // L5: what a server sends for a login or with an error, as if it had been asked for.
        if foreign::is_html_page(&source).with_context(|| terminal_form.clone())? {
            bail!(
                "{terminal_form}: the server sent an HTML page, not an image; look at the address in a browser"
            );
        }
    }
    // The file may have a temporary name, which has to be removed.
    let stop = signals.into_stop_request(SecondSignal::Ignored)?;
    let mut file = target.create().map_err(|error| anyhow!("{error}"))?;
    let source = Arc::new(source);
    let mut digest = ContentDigest::of(b"");
    for caching in [Caching::Used, Caching::Passed] {
        let download = Download { source: Arc::clone(&source), caching };
        digest =
            receive(arguments, download, &file, &stop).with_context(|| terminal_form.clone())?;
        if state.digest.is_none_or(|wanted| wanted == digest) {
            break;
        }
    }
    if let Some(wanted) = state.digest.filter(|wanted| *wanted != digest) {
        bail!(
            "{terminal_form}: the downloaded bytes have the digest {digest} instead of {wanted}; {} was \
             not created",
            escape(arguments.file.as_os_str().as_bytes())
        );
    }
    stop.check()?;
    file.publish().map_err(|error| anyhow!("{error}"))?;
    let report = PullReport {
        location: terminal_form,
        file: JsonBytes::from(arguments.file.as_os_str().as_bytes()),
        bytes: state.length,
        sha256: digest.hex(),
        verification,
        seconds: started.elapsed().as_secs_f64(),
    };
    CommandStatus::Success.after_output(print(arguments, &report))
}

const NOT_VERIFIED: &str = "none: there is no digest; the transport is trusted";

/// What the bytes of a download are compared with.
fn verification(state: &ObjectState) -> &'static str {
    match (state.digest, state.verification) {
        (Some(_), _) => "the digest of the whole image",
        (None, Verification::ChunkIndex) => "each chunk, with a chunk index",
        (None, _) => NOT_VERIFIED,
    }
}

/// Opens the object. The digest of the whole object proves it without a chunk index, too.
fn open(arguments: &PullArguments) -> anyhow::Result<RemoteSource> {
    let mut remote = arguments.remote.clone();
    if remote.verify == Some(VerifyChoice::Require) {
        remote.verify = Some(VerifyChoice::Try);
    }
    remote::open_object(&arguments.location, &remote)
}

/// Whether cached bytes are taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Caching {
    Used,
    /// They do not have the digest: all of them are fetched again, past all caches.
    Passed,
}

/// An object and how it is read.
#[derive(Debug)]
struct Download {
    source: Arc<RemoteSource>,
    caching: Caching,
}

/// Writes all bytes to `file`, and digests them.
fn receive(
    arguments: &PullArguments,
    download: Download,
    file: &NewFile,
    stop: &StopRequest,
) -> anyhow::Result<ContentDigest> {
    let length = download.source.length();
    let total = || WorkAmount { entries: 0, bytes: length };
    let mut progress = ProgressDisplay::new(arguments.summary.progress.progress, "pull", total);
    let mut output = file.file();
    output.set_len(0).and_then(|()| output.rewind()).context("cannot begin the file")?;
    let (sender, pieces) = sync_channel(PIECES_AHEAD);
    // It is not joined: after a signal it may still wait for a server, and ends with the process.
    std::thread::Builder::new()
        .name("pull".to_owned())
        .spawn(move || read_pieces(&download, &sender))
        .context("cannot start a thread")?;
    let mut done = WorkAmount::default();
    let mut digest = Sha256::new();
    let result = loop {
        match next(&pieces, stop) {
            Ok(Some(piece)) => {
                digest.update(&piece);
                if let Err(error) = output.write_all(&piece) {
                    let name = escape(arguments.file.as_os_str().as_bytes());
                    break Err(anyhow!("cannot write {name}: {error}"));
                }
                done.bytes += piece.len() as u64;
                progress.update(done);
            }
            Ok(None) if done.bytes == length => break Ok(()),
            Ok(None) => break Err(anyhow!("the download ended at byte {}", done.bytes)),
            Err(error) => break Err(error),
        }
    };
    progress.finish(done);
    result.map(|()| ContentDigest::from_bytes(digest.finalize().into()))
}

type Piece = io::Result<Vec<u8>>;

/// Sends the object piece by piece; the receiver ends it.
fn read_pieces(download: &Download, sender: &SyncSender<Piece>) {
    let Download { source, caching } = download;
    let (mut offset, mut fresh) = (0, 0);
    loop {
        let mut piece = vec![0; CHUNK_BYTES];
        let again = if *caching == Caching::Passed && offset >= fresh && offset < source.length() {
            fresh = (offset + AGAIN_BYTES).min(source.length());
            source.fetch_again(offset..fresh)
        } else {
            Ok(())
        };
        let read = again.and_then(|()| source.read_at(offset, &mut piece)).map(|count| {
            piece.truncate(count);
            offset += count as u64;
            piece
        });
        let is_last = !matches!(&read, Ok(piece) if !piece.is_empty());
        if sender.send(read).is_err() || is_last {
            return;
        }
    }
}

/// The next piece; `None` at the end of the object.
fn next(pieces: &Receiver<Piece>, stop: &StopRequest) -> anyhow::Result<Option<Vec<u8>>> {
    loop {
        stop.check()?;
        match pieces.recv_timeout(SIGNAL_PAUSE) {
            Ok(Ok(piece)) => return Ok(Some(piece).filter(|piece| !piece.is_empty())),
            Ok(Err(error)) => return Err(anyhow!("{}", escape(error.to_string().as_bytes()))),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return Ok(None),
        }
    }
}

fn print(arguments: &PullArguments, report: &PullReport) -> io::Result<()> {
    let mut output = Output::new();
    if arguments.summary.json {
        output.json(report)?;
    } else if !arguments.summary.quiet {
        let name = escape(arguments.file.as_os_str().as_bytes());
        let bytes = human_bytes(report.bytes);
        writeln!(output, "{name}: {bytes} in {:.1} s", report.seconds)?;
        writeln!(output, "sha256:{}", report.sha256)?;
        writeln!(output, "verified: {}", report.verification)?;
    }
    output.flush()
}

//! The client's side of publishing an image: one request on a connection of its own, which is
//! repeated if the fetcher ends. The steps P1 to P5 are in docs/remote.md.

use std::io;
use std::os::fd::BorrowedFd;
use std::time::Duration;

use crate::client::{Connector, handshake};
use crate::protocol::{ClientMessage, FetcherMessage, PushReport, PushRequest};

/// How often a fetcher may end before the image is published. Blobs that it has uploaded are not
/// uploaded again.
const ATTEMPTS: u32 = 3;
/// How long a caller that wants to stop waits.
const WAIT: Duration = Duration::from_millis(100);
/// The id of the only request of the connection.
const ID: u64 = 1;

/// Publishes an image. `files` has a file for each part of each blob. `watch` is called ten times a
/// second with the number of bytes that the registry has or was sent; its error ends the work.
///
/// # Errors
/// The fetcher cannot be reached, the registry refuses the image, or `watch` has failed.
pub fn push_image(
    connector: &dyn Connector,
    request: &PushRequest,
    files: &[BorrowedFd<'_>],
    watch: &mut dyn FnMut(u64) -> io::Result<()>,
) -> io::Result<PushReport> {
    let mut attempt = 1;
    loop {
        match push_once(connector, request, files, watch)? {
            Some(report) => return Ok(report),
            None if attempt < ATTEMPTS => attempt += 1,
            None => {
                let text = "the fetcher ended before the image was published";
                return Err(io::Error::new(io::ErrorKind::ConnectionAborted, text));
            }
        }
    }
}

/// `None` if the connection ended.
fn push_once(
    connector: &dyn Connector,
    request: &PushRequest,
    files: &[BorrowedFd<'_>],
    watch: &mut dyn FnMut(u64) -> io::Result<()>,
) -> io::Result<Option<PushReport>> {
    let connection = handshake(connector.connect()?, connector.cache_limit())?;
    let message = ClientMessage::Push { id: ID, request: Box::new(request.clone()) };
    connection.send(&message, files)?;
    let mut done = 0;
    loop {
        watch(done)?;
        if !connection.wait(WAIT)? {
            continue;
        }
        match connection.receive::<FetcherMessage>() {
            Ok(Some((FetcherMessage::Pushing { bytes, .. }, _))) => done = bytes,
            Ok(Some((FetcherMessage::Pushed { report, .. }, _))) => return Ok(Some(report)),
            Ok(Some((FetcherMessage::Failed { error, .. }, _))) => return Err(error.into()),
            Ok(Some(_)) => return Err(io::ErrorKind::InvalidData.into()),
            Ok(None) | Err(_) => return Ok(None),
        }
    }
}

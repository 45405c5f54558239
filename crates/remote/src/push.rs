//! The client's side of publishing an image: one request on a connection of its own, which is
//! repeated if the fetcher ends. The steps P1 to P5 are in docs/remote.md.

use std::io;
use std::os::fd::BorrowedFd;
use std::time::Duration;

use crate::client::{Connector, connect_with_hello, has_ended};
use crate::protocol::{ClientMessage, FetcherMessage, PushReport, PushRequest};

/// How often a fetcher may end before the image is published. Blobs that it has uploaded are not
/// uploaded again.
const ATTEMPTS: u32 = 3;
/// How long a caller that wants to stop waits.
const WAIT: Duration = Duration::from_millis(100);
/// The id of the only request of the connection.
const ID: u64 = 1;

/// Publishes an image. `files` has a file for each part of each blob. `observer` is called ten times a
/// second with the number of bytes that the registry has or was sent; its error ends the work.
///
/// # Errors
/// The fetcher cannot be reached, the registry refuses the image, or `observer` has failed.
pub fn push_image(
    connector: &dyn Connector,
    request: &PushRequest,
    files: &[BorrowedFd<'_>],
    observer: &mut dyn FnMut(u64) -> io::Result<()>,
) -> io::Result<PushReport> {
    let mut attempt = 1;
    loop {
        match push_once(connector, request, files, observer)? {
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
    observer: &mut dyn FnMut(u64) -> io::Result<()>,
) -> io::Result<Option<PushReport>> {
    let connection = connect_with_hello(connector)?;
    let message = ClientMessage::Push { id: ID, request: Box::new(request.clone()) };
    match connection.send(&message, files) {
        Err(error) if has_ended(&error) => return Ok(None),
        sent => sent?,
    }
    let mut done = 0;
    loop {
        observer(done)?;
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

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;
    use crate::connection::Connection;
    use crate::protocol::{PROTOCOL_VERSION, RemoteOptions};

    /// Connects to fetchers of which the first ones end: before they say hello, and directly after that.
    struct Dying(AtomicU32);

    impl Connector for Dying {
        fn connect(&self) -> io::Result<Connection> {
            let number = self.0.fetch_add(1, Ordering::SeqCst);
            let (ours, theirs) = Connection::pair()?;
            std::thread::Builder::new().spawn(move || serve(&theirs, number))?;
            Ok(ours)
        }
    }

    fn serve(connection: &Connection, number: u32) {
        if number == 0 {
            return;
        }
        connection.receive::<ClientMessage>().unwrap();
        if number == 1 {
            return;
        }
        connection.send(&FetcherMessage::Hello { version: PROTOCOL_VERSION }, &[]).unwrap();
        if number < 4 {
            // It takes no message any more.
            connection.shut_down();
            return;
        }
        connection.receive::<ClientMessage>().unwrap();
        let pushed = FetcherMessage::Pushed { id: ID, report: PushReport::default() };
        connection.send(&pushed, &[]).unwrap();
    }

    /// The command failed: "Connection reset by peer".
    #[test]
    fn an_image_is_published_though_fetchers_end_before_they_are_asked() {
        let location = "oci://h/n:t".parse().unwrap();
        let request = PushRequest::new(location, RemoteOptions::default(), String::new());
        let connector = Dying(AtomicU32::new(0));
        push_image(&connector, &request, &[], &mut |_| Ok(())).unwrap();
        assert_eq!(connector.0.load(Ordering::SeqCst), 5);
    }
}

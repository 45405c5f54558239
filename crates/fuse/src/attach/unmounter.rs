//! A process that waits to unmount for us: started while privileges can still be gained, it runs
//! `fusermount3 -u` once we say so or are dead. It never mounts. An attachment owns it.
//!
//! `fusermount3` can wait by itself (`auto_unmount`), but before version 3.15 it then finds mounts
//! without `allow_other` inaccessible and leaves them, and in every version it wants the device closed
//! first, and says nothing about the outcome. So a shell waits, for the end of its standard input, and
//! becomes `fusermount3` then. It ignores the signals that end a whole group of processes, since they
//! may be just what ends us.

use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use super::AttachError;
use super::fusermount::{one_line, read_to_end, socket_pair};

/// How long it may take; see `fusermount::TIME_LIMIT`.
const TIME_LIMIT: Duration = Duration::from_secs(10);

const SHELL: &str = "/bin/sh";

/// An empty line, or none because we are dead: unmount. Any other: the directory is somebody else's by now.
const SCRIPT: &str =
    r#"trap '' HUP INT QUIT TERM; read -r line; [ -z "$line" ] && exec "$1" -u -z -- "$2""#;
const UNMOUNT: &[u8] = b"\n";
const CANCEL: &[u8] = b"cancel\n";

/// The process that waits, and the socket that holds it. Once it is started, reading, writing and waiting are all that
/// it takes, so that a sandbox needs to allow nothing for it.
#[derive(Debug)]
pub(super) struct Unmounter {
    child: Child,
    socket: UnixStream,
}

impl Unmounter {
    pub(super) fn start(fusermount: &Path, directory: &Path) -> Result<Self, AttachError> {
        let (socket, theirs) = socket_pair()?;
        let system = |source: &std::io::Error| AttachError::System {
            what: "start what will unmount",
            cause: super::error::errno(source),
        };
        let output = theirs.try_clone().map_err(|source| system(&source))?;
        let messages = theirs.try_clone().map_err(|source| system(&source))?;
        let mut command = Command::new(SHELL);
        command.args(["-c", SCRIPT, "ferrofs-unmounter"]).arg(fusermount).arg(directory);
        // It must keep no directory busy, and follow no setting of the user's shell.
        command.current_dir("/").env_clear().process_group(0);
        command.stdin(theirs).stdout(output).stderr(messages);
        let child = command.spawn().map_err(|source| system(&source))?;
        Ok(Self { child, socket })
    }

    /// What holds it back.
    pub(super) fn descriptor(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// Has it unmount now. Returns what `fusermount3` said: nothing if it went well.
    pub(super) fn unmount(mut self) -> String {
        let mut message = Vec::new();
        let is_told = rustix::io::write(&self.socket, UNMOUNT).is_ok();
        if is_told && read_to_end(&self.socket, &mut message, Instant::now() + TIME_LIMIT) {
            // It has closed its files, so it is about to be reaped. After a fork it is not ours to reap.
            drop(self.child.wait());
        }
        one_line(&message)
    }

    /// Ends it without unmounting: by now the directory is somebody else's.
    pub(super) fn cancel(mut self) {
        // If it cannot be told, it finds no mount of ours and says so to nobody.
        let is_told = rustix::io::write(&self.socket, CANCEL).is_ok();
        if is_told && read_to_end(&self.socket, &mut Vec::new(), Instant::now() + TIME_LIMIT) {
            drop(self.child.wait());
        }
    }
}

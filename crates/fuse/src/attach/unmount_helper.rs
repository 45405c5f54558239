//! A process that waits to unmount a mount which this process made by `mount(2)`. It is forked while this process has the
//! privilege to unmount, so that the server can drop it. It owns the descriptor of the covered directory, one end of a
//! socket, and a descriptor for the signal that its parent has ended; nothing else: no device, no image, no standard stream. Called by `attach`.
//!
//! The protocol is one message in each direction, over a socket that keeps messages apart:
//!
//! 1. The helper closes all other descriptors, confines itself, and sends [`READY`]; or [`FAILED`] with a text, and goes on
//!    without being confined. The server reads that before it reports that the mount is ready, and ends after a failure.
//! 2. The server sends [`UNMOUNT`]. The helper unmounts and sends [`DONE`] or [`ALREADY`] and exits; or it sends
//!    [`COVERED`], or [`FAILED`] with a text, and waits for the next message.
//! 3. The server sends [`CANCEL`]: the mount is gone. The helper exits.
//! 4. The socket is closed: the server has ended in some way. The helper unmounts, if it was started for that
//!    ([`AtEnd::Unmount`]) and the mount is still there, and exits.
//! 5. The thread that started the helper has ended, but the socket stays open: the server cannot end (see `forked`).
//!    The helper ends the connection, so that all requests fail; then the server ends, and 4 follows.
//!
//! It blocks all signals: one that ends a process group, or a service, may be what ends the server.
#![allow(unsafe_code, reason = "fork")]

use std::cell::Cell;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{AddressFamily, RecvFlags, SocketFlags, SocketType, recv, socketpair};
use rustix::process::{Pid, WaitOptions, waitpid};

use super::DetachOutcome;
use super::direct::{DirectUnmount, DirectUnmounted};
use super::forked::{self, ParentThread, Wake};
use super::{AttachError, errno};

/// From the server.
pub(super) const UNMOUNT: u8 = b'U';
pub(super) const CANCEL: u8 = b'C';
/// From the helper; from a server to its holder, which is then ready itself.
pub(super) const READY: u8 = b'R';
/// From a server to a holder that takes a mount over: it is prepared. From that holder: its turn has come.
pub(super) const PREPARED: u8 = b'P';
pub(super) const TURN: u8 = b'O';
const DONE: u8 = b'D';
const ALREADY: u8 = b'A';
const COVERED: u8 = b'V';
const FAILED: u8 = b'F';
/// The largest message: a kind and an error text.
const MESSAGE_BYTES: usize = 512;
/// How long the server waits for a message. The helper makes a handful of system calls.
const TIME_LIMIT: Duration = Duration::from_secs(10);

/// What the helper does when the server ends without a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum AtEnd {
    /// It unmounts.
    Unmount,
    /// It leaves the dead mount.
    Leave,
}

/// The helper, from the side of the server.
#[derive(Debug)]
pub(super) struct UnmountHelper {
    process: Pid,
    socket: OwnedFd,
    /// `None` before its first message was read.
    is_confined: Cell<Option<bool>>,
}

impl UnmountHelper {
    /// Starts it, for a server of `user` if that is another one than the present. [`UnmountHelper::wait_until_confined`] must
    /// follow before any other message.
    ///
    /// # Errors
    /// The system cannot start it.
    pub(super) fn start(
        unmount: &DirectUnmount,
        at_end: AtEnd,
        user: Option<u32>,
        confine: impl FnOnce(&[BorrowedFd<'_>]) -> io::Result<()>,
    ) -> Result<Self, AttachError> {
        let failed = |cause| AttachError::System { what: "start the process that unmounts", cause };
        let (ours, theirs) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
                .map_err(failed)?;
        // SAFETY: fork has no arguments. In the child only this thread exists, so a lock that another thread had stays
        // locked: `run` takes none of this project, the C library keeps its allocator usable, and `confine` is bound by
        // the contract of `Attachment::start_unmount_helper`. The child never returns from `run_and_exit`.
        match unsafe { libc::fork() } {
            -1 => Err(failed(errno(&io::Error::last_os_error()))),
            0 => {
                // Even if the helper cannot close what it has inherited, it sees the end of the server.
                drop(ours);
                run_and_exit(&theirs, unmount, at_end, user, confine)
            }
            number => {
                drop(theirs);
                // fork returns no other negative number, and no process has the number 0.
                let process = Pid::from_raw(number).ok_or_else(|| failed(Errno::SRCH))?;
                Ok(Self { process, socket: ours, is_confined: Cell::new(None) })
            }
        }
    }

    /// A holder, which unmounts for a server by the same messages.
    pub(super) fn of_holder(process: Pid, socket: OwnedFd) -> Self {
        Self { process, socket, is_confined: Cell::new(Some(true)) }
    }

    /// Reads its first message.
    ///
    /// # Errors
    /// `confine` failed, or it has ended.
    pub(super) fn wait_until_confined(&self) -> Result<(), AttachError> {
        if self.is_confined.get() == Some(true) {
            return Ok(());
        }
        let failed = |message| AttachError::UnmountHelper { message };
        let message = self.receive().map_err(|cause| failed(cause.to_string()))?;
        let is_confined = message.first() == Some(&READY);
        self.is_confined.set(Some(is_confined));
        match message.split_first() {
            Some((&READY, _)) => Ok(()),
            Some((_, text)) => Err(failed(String::from_utf8_lossy(text).into_owned())),
            None => Err(failed("it has ended".to_owned())),
        }
    }

    /// The socket to it.
    pub(super) fn descriptor(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// Lets it unmount.
    ///
    /// # Errors
    /// As [`DirectUnmount::run`]; or it has ended, because somebody killed it.
    pub(super) fn unmount(&self, mount_point: &Path) -> Result<DirectUnmounted, AttachError> {
        let directory = || mount_point.to_path_buf();
        let still_mounted = |message| AttachError::StillMounted { directory: directory(), message };
        let ended = |_| still_mounted("the process that unmounts has ended".to_owned());
        if self.is_confined.get().is_none() {
            // It unmounts in either case.
            self.wait_until_confined().ok();
        }
        rustix::io::write(&self.socket, &[UNMOUNT]).map_err(ended)?;
        let message = self.receive().map_err(ended)?;
        match message.split_first() {
            Some((&DONE, _)) => {
                self.reap();
                Ok(DirectUnmounted::Done)
            }
            Some((&ALREADY, _)) => {
                self.reap();
                Ok(DirectUnmounted::Already)
            }
            Some((&COVERED, _)) => Err(AttachError::Covered { directory: directory() }),
            Some((_, text)) => Err(still_mounted(String::from_utf8_lossy(text).into_owned())),
            None => Err(ended(Errno::PIPE)),
        }
    }

    /// Lets it exit without unmounting, since the mount is gone. It may have ended already.
    pub(super) fn cancel(&self) {
        if rustix::io::write(&self.socket, &[CANCEL]).is_ok() {
            self.reap();
        }
    }

    /// Waits for its end, which is near. A holder, and a helper that was started before a fork, are not our children.
    fn reap(&self) {
        let wait = || waitpid(Some(self.process), WaitOptions::empty());
        while wait().err() == Some(Errno::INTR) {}
    }

    /// The next message; empty if it has ended.
    fn receive(&self) -> Result<Vec<u8>, Errno> {
        let deadline = Instant::now() + TIME_LIMIT;
        let mut message = [0; MESSAGE_BYTES];
        loop {
            let left = deadline.checked_duration_since(Instant::now()).ok_or(Errno::TIMEDOUT)?;
            let left = Timespec::try_from(left).ok();
            let mut polled = [PollFd::new(&self.socket, PollFlags::IN)];
            match poll(&mut polled, left.as_ref()) {
                Ok(0) | Err(Errno::INTR) => continue,
                Ok(_) => {}
                Err(cause) => return Err(cause),
            }
            match rustix::io::read(&self.socket, &mut message) {
                Err(Errno::INTR) => {}
                Err(Errno::CONNRESET) => return Ok(Vec::new()),
                Err(cause) => return Err(cause),
                Ok(length) => return Ok(message.get(..length).unwrap_or_default().to_vec()),
            }
        }
    }
}

/// The whole life of the helper.
fn run_and_exit(
    socket: &OwnedFd,
    unmount: &DirectUnmount,
    at_end: AtEnd,
    user: Option<u32>,
    confine: impl FnOnce(&[BorrowedFd<'_>]) -> io::Result<()>,
) -> ! {
    // Unwinding would run the server's code in this process.
    let ended = catch_unwind(AssertUnwindSafe(|| {
        let kept = [socket.as_fd(), unmount.descriptor()];
        let parent = forked::prepare(&kept)
            .and_then(|()| user.map_or(Ok(()), forked::accept_signals_of))
            .and_then(|()| ParentThread::watch())
            .and_then(|parent| {
                let [socket, directory] = kept;
                confine(&[socket, directory, parent.descriptor()])?;
                Ok(parent)
            });
        match &parent {
            Ok(_) => send(socket, READY, ""),
            Err(error) => send(socket, FAILED, &error.to_string()),
        }
        serve(socket, parent.ok().as_ref(), unmount, at_end);
    }));
    // SAFETY: _exit only ends the process. exit would run handlers that belong to the server.
    unsafe { libc::_exit(i32::from(ended.is_err())) }
}

/// Answers messages until the mount or the server is gone.
fn serve(
    socket: &OwnedFd,
    mut parent: Option<&ParentThread>,
    unmount: &DirectUnmount,
    at_end: AtEnd,
) {
    let mut message = [0; MESSAGE_BYTES];
    loop {
        let wake = parent.map(|parent| parent.wait(socket.as_fd()));
        if wake == Some(Ok(Wake::Stuck)) {
            // It is in use, so it is still there afterwards. Nobody is left to whom an error could be reported.
            unmount.abort().ok();
            parent = None;
        }
        let length = match rustix::io::read(socket, &mut message) {
            Err(Errno::INTR) => continue,
            read => read.unwrap_or(0),
        };
        match (length, message.first()) {
            (1.., Some(&UNMOUNT)) => match unmount.run() {
                Ok(DirectUnmounted::Done) => return send(socket, DONE, ""),
                Ok(DirectUnmounted::Already) => return send(socket, ALREADY, ""),
                Err(AttachError::Covered { .. }) => send(socket, COVERED, ""),
                Err(AttachError::StillMounted { message, .. }) => send(socket, FAILED, &message),
                Err(error) => send(socket, FAILED, &error.to_string()),
            },
            (0, _) if at_end == AtEnd::Unmount => {
                // Nobody is left to whom an error could be reported.
                unmount.run().ok();
                return;
            }
            _ => return,
        }
    }
}

/// The kind of the next message that has arrived; 0 if the other side has closed the socket.
pub(super) fn next_message(socket: &OwnedFd) -> Option<u8> {
    let mut message = [0; MESSAGE_BYTES];
    let flags = RecvFlags::DONTWAIT;
    loop {
        match recv(socket, &mut message, flags) {
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) => return None,
            Ok((length, _)) if length > 0 => return message.first().copied(),
            Ok(_) | Err(_) => return Some(0),
        }
    }
}

/// What a holder answers to [`UNMOUNT`].
pub(super) fn outcome_message(outcome: Result<DetachOutcome, AttachError>) -> (u8, String) {
    match outcome {
        Ok(DetachOutcome::Already) => (ALREADY, String::new()),
        Ok(DetachOutcome::Clean | DetachOutcome::Lazily) => (DONE, String::new()),
        Err(AttachError::Covered { .. }) => (COVERED, String::new()),
        Err(AttachError::StillMounted { message, .. }) => (FAILED, message),
        Err(error) => (FAILED, error.to_string()),
    }
}

/// A server that has ended does not need the message.
pub(super) fn send(socket: &OwnedFd, kind: u8, text: &str) {
    let mut message = vec![kind];
    message.extend(text.bytes().take(MESSAGE_BYTES - 1));
    rustix::io::write(socket, &message).ok();
}

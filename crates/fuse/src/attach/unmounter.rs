//! A process that waits to unmount by `fusermount3` what it has mounted. Called by `attach`.
#![allow(unsafe_code, reason = "fork and execve")]

use std::ffi::{CStr, CString, OsStr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixStream;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::time::Instant;

use rustix::io::Errno;
use rustix::process::{Pid, WaitOptions, waitpid};

use super::error::{AttachError, errno};
use super::forked::{self, ParentThread, Wake};
use super::fusermount::{TIME_LIMIT, one_line, read_to_end, socket_pair};

/// Messages to the process that unmounts. It unmounts also if the socket is closed, since this process is dead then.
const UNMOUNT: &[u8] = b"\n";
/// It exits: the directory belongs to somebody else by now.
const CANCEL: &[u8] = b"cancel\n";
/// From here on it watches the thread that started it, which lives as long as the session.
const WATCH: &[u8] = b"watch\n";

/// A process that waits to unmount for us. It is started while privileges can still be gained, and executes
/// `fusermount3 -u` once we tell it to or are dead. It never mounts. An attachment owns it.
///
/// `fusermount3` can wait by itself (`auto_unmount`). But before version 3.15 it leaves mounts without `allow_other` in
/// place, since it has no access to them; in every version it requires that the device be closed first; and it does
/// not report the outcome. So a process is forked that waits for a message or for the end of its socket. It blocks all
/// signals, since one that ends a process group may be what ends us.
///
/// Once it is started, only reading, writing and waiting are needed, so a sandbox has to allow nothing for it.
#[derive(Debug)]
pub(super) struct Unmounter {
    /// `None` if another process has started it.
    child: Option<Pid>,
    socket: UnixStream,
}

impl Unmounter {
    /// `device` is the device number of the mount, `major:minor`.
    pub(super) fn start(
        fusermount: &Path,
        directory: &Path,
        device: &str,
    ) -> Result<Self, AttachError> {
        let what = "start the process that unmounts";
        let system = |cause| AttachError::System { what, cause };
        let text = |text: &OsStr| CString::new(text.as_bytes()).map_err(|_| system(Errno::INVAL));
        let program = text(fusermount.as_os_str())?;
        let words =
            [&program, c"-u", c"-z", c"--", &text(directory.as_os_str())?].map(CStr::to_owned);
        let connection = device.split_once(':').map_or(device, |(_, minor)| minor);
        let abort_file = Path::new(CONNECTIONS).join(connection).join("abort");
        let (socket, theirs) = socket_pair()?;
        // SAFETY: fork has no arguments. In the child only this thread exists, so a lock that another thread had stays
        // locked: `wait_and_unmount` takes none of this project, and the C library keeps its allocator usable. The child
        // never returns from it.
        match unsafe { libc::fork() } {
            -1 => Err(system(errno(&std::io::Error::last_os_error()))),
            0 => wait_and_unmount(&theirs, &program, &words, &abort_file),
            number => Ok(Self { child: Pid::from_raw(number), socket }),
        }
    }

    /// The one that waits on the other end of this socket.
    pub(super) fn of_socket(socket: OwnedFd) -> Self {
        Self { child: None, socket: UnixStream::from(socket) }
    }

    /// The socket that it waits on.
    pub(super) fn descriptor(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// Lets it notice that this process was killed and cannot end. The thread that started it lives as long as the mount.
    pub(super) fn watch(&self) {
        // If it has ended, there is nothing to lose.
        rustix::io::write(&self.socket, WATCH).ok();
    }

    /// Lets it unmount now. Returns the messages of `fusermount3`: none if it succeeded.
    pub(super) fn unmount(mut self) -> String {
        let mut message = Vec::new();
        let is_sent = rustix::io::write(&self.socket, UNMOUNT).is_ok();
        if is_sent && read_to_end(&self.socket, &mut message, Instant::now() + TIME_LIMIT) {
            // It has closed its files, so it is about to end. If we forked after its start it is not our child.
            self.reap();
        }
        one_line(&message)
    }

    /// Lets it exit without unmounting, since the directory belongs to somebody else by now.
    pub(super) fn cancel(mut self) {
        // If the write fails, it finds no mount of ours, and nobody reads its message.
        let is_sent = rustix::io::write(&self.socket, CANCEL).is_ok();
        if is_sent && read_to_end(&self.socket, &mut Vec::new(), Instant::now() + TIME_LIMIT) {
            self.reap();
        }
    }

    fn reap(&mut self) {
        if let Some(child) = self.child.take() {
            let wait = || waitpid(Some(child), WaitOptions::empty());
            while wait().err() == Some(Errno::INTR) {}
        }
    }
}

/// Where fusectl is mounted; a connection can be ended there by the user who mounted.
const CONNECTIONS: &str = "/sys/fs/fuse/connections";

/// The whole life of the process that waits.
fn wait_and_unmount(socket: &OwnedFd, program: &CStr, words: &[CString], abort_file: &Path) -> ! {
    // Unwinding would run the server's code in this process.
    let ended = catch_unwind(AssertUnwindSafe(|| {
        // Without descriptors to close, it would keep the device open; then it must not wait.
        forked::prepare(&[socket.as_fd()])?;
        if !wait_for_order(socket, abort_file) {
            return Ok(());
        }
        rustix::stdio::dup2_stdin(socket)?;
        rustix::stdio::dup2_stdout(socket)?;
        rustix::stdio::dup2_stderr(socket)?;
        let mut pointers: Vec<_> = words.iter().map(|word| word.as_ptr()).collect();
        pointers.push(std::ptr::null());
        let environment = [std::ptr::null()];
        // SAFETY: the program and the words are C strings, and the two lists end with a null pointer; all of them live
        // until the call returns, which it does only after an error.
        unsafe { libc::execve(program.as_ptr(), pointers.as_ptr(), environment.as_ptr()) };
        let cause = std::io::Error::last_os_error();
        rustix::io::write(socket, cause.to_string().as_bytes())?;
        Err(cause)
    }));
    // SAFETY: _exit only ends the process. exit would run handlers that belong to the server.
    unsafe { libc::_exit(i32::from(!matches!(ended, Ok(Ok(()))))) }
}

/// Waits for a message, or for the end of the server; whether it is to unmount.
fn wait_for_order(socket: &OwnedFd, abort_file: &Path) -> bool {
    // A thread that ends before the server watches is none of ours.
    let mut parent = ParentThread::watch().ok();
    let mut is_watched = false;
    let mut lines = Vec::new();
    loop {
        let watched = parent.as_ref().filter(|_| is_watched);
        if watched.map(|parent| parent.wait(socket.as_fd())) == Some(Ok(Wake::Stuck)) {
            parent = None;
            // Without this file nobody but root can end the connection, and nobody waits for the server: the
            // directory is free at least.
            if std::fs::write(abort_file, b"1").is_err() {
                return true;
            }
        }
        let mut read = [0; CANCEL.len()];
        match rustix::io::read(socket, &mut read) {
            Err(Errno::INTR) => continue,
            Ok(length @ 1..) => lines.extend(read.iter().take(length)),
            Ok(0) | Err(_) => return true,
        }
        while let Some(end) = lines.iter().position(|byte| *byte == b'\n') {
            let line: Vec<u8> = lines.drain(..=end).collect();
            match line.as_slice() {
                UNMOUNT => return true,
                WATCH => is_watched = true,
                _ => return false,
            }
        }
    }
}

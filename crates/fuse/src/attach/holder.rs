//! The process that holds a mount while servers come and go (docs/survival.md, protocol K). It forks each server, learns of
//! its end, and forks the next one; and it unmounts for them. It has one thread, reads no byte of an image, and waits
//! without a timeout. Called by the command, through [`Attachment::hold`].
#![allow(unsafe_code, reason = "fork, and signals that are read from a descriptor")]

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, FromRawFd, OwnedFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use rustix::process::{Pid, Signal, WaitOptions, WaitStatus, kill_process, waitpid};

use super::unmount_helper::{self, UnmountHelper};
use super::{Attachment, DetachOutcome, Unmounting};
use crate::journal::ServerEnd;

/// Restarts that follow at once, and the time that earns another one after that: a server that dies at once, or a program
/// that kills servers, takes a tenth of a CPU.
const RESTARTS_AT_ONCE: u32 = 64;
const RESTART_PERIOD: Duration = Duration::from_millis(100);
/// The pause after a server that ended with an error before it was ready: its cause, such as a file that cannot be read,
/// takes a while to go away.
const FAILED_START_PAUSE: Duration = Duration::from_secs(1);
/// The exit status of a server that panicked, as Rust has it.
const PANICKED: i32 = 101;
/// Bytes that are read from a child: what it says is a line, and a child that untrusted bytes have taken over may say more.
const CHILD_BYTES_MAX: u64 = 64 << 10;
/// The status of a holder whose server was killed by a signal while it was unmounting, or before it was ready.
const KILLED_STATUS: i32 = 1;
/// The signals that ask a mount to end, and the one that reports the end of a child.
const SIGNALS: [i32; 4] = [libc::SIGTERM, libc::SIGINT, libc::SIGHUP, libc::SIGCHLD];
/// Bytes of the kernel's `struct signalfd_siginfo`, which begins with the number of the signal.
const SIGNAL_INFO_BYTES: usize = 128;

/// A server that is about to start, as it sees itself.
#[derive(Debug)]
pub struct ServerStart {
    /// Its number, from 1 on.
    pub number: u64,
    /// How the one before it ended.
    pub predecessor: Option<ServerEnd>,
    /// The process ID of the holder.
    pub holder: i32,
    /// Where it reports that it is ready.
    pub ready: ReadyReport,
}

/// The report of a server that it serves.
#[derive(Debug)]
pub struct ReadyReport(OwnedFd);

impl ReadyReport {
    /// Reports it. Without a holder nobody needs to know.
    pub fn send(self) {
        unmount_helper::send(&self.0, unmount_helper::READY, "");
    }

    /// The descriptor that it needs.
    #[must_use]
    pub fn descriptor(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// What a holder reports.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum HolderEvent {
    /// A server has ended, and another one follows.
    ServerEnded {
        /// Its process ID.
        pid: i32,
        /// The signal that ended it, or its exit status.
        signal: Option<i32>,
        /// Its exit status, without a signal.
        status: Option<i32>,
        /// How many restarts there were, with this one.
        restarts: u64,
    },
    /// A signal asks the mount to end.
    Unmounting {
        /// Its number.
        signal: u32,
    },
    /// The mount could not be unmounted.
    NotUnmounted {
        /// Why.
        message: String,
    },
    /// It is unmounted, but still in use.
    InUse,
    /// No server could be forked.
    ForkFailed {
        /// Why.
        cause: Errno,
    },
}

/// The signals of a holder, blocked and readable from a descriptor.
#[derive(Debug)]
pub struct HolderSignals {
    descriptor: OwnedFd,
    former: libc::sigset_t,
}

impl HolderSignals {
    /// Blocks them. No thread may run.
    ///
    /// # Errors
    /// The system has no descriptors left.
    pub fn block() -> io::Result<Self> {
        let mut blocked = MaybeUninit::<libc::sigset_t>::uninit();
        let mut former = MaybeUninit::<libc::sigset_t>::uninit();
        // SAFETY: sigemptyset initializes `blocked`, sigaddset changes it, and sigprocmask reads it and writes the old mask
        // to `former`, a whole sigset_t. All pointers are to these two variables.
        let (is_blocked, number) = unsafe {
            libc::sigemptyset(blocked.as_mut_ptr());
            for signal in SIGNALS {
                libc::sigaddset(blocked.as_mut_ptr(), signal);
            }
            let masked =
                libc::sigprocmask(libc::SIG_BLOCK, blocked.as_ptr(), former.as_mut_ptr()) == 0;
            (masked, libc::signalfd(-1, blocked.as_ptr(), libc::SFD_CLOEXEC | libc::SFD_NONBLOCK))
        };
        if !is_blocked || number < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: signalfd has just returned this descriptor, and nobody else has it; sigprocmask has written `former`.
        Ok(unsafe {
            Self { descriptor: OwnedFd::from_raw_fd(number), former: former.assume_init() }
        })
    }

    /// The descriptor.
    #[must_use]
    pub fn descriptor(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }

    /// Restores the mask from before.
    fn unblock(&self) {
        // SAFETY: sigprocmask reads the set, which `block` has initialized.
        unsafe {
            libc::sigprocmask(libc::SIG_SETMASK, &raw const self.former, std::ptr::null_mut())
        };
    }

    /// The next signal that has arrived.
    fn next(&self) -> Option<u32> {
        let mut info = [0; SIGNAL_INFO_BYTES];
        let length = rustix::io::read(&self.descriptor, &mut info).ok()?;
        let number = info.get(..length)?.first_chunk::<4>()?;
        Some(u32::from_ne_bytes(*number))
    }
}

/// Whether restarts may follow at once.
#[derive(Debug)]
struct RestartLimiter {
    left: u32,
    refilled: Instant,
}

impl RestartLimiter {
    fn new(now: Instant) -> Self {
        Self { left: RESTARTS_AT_ONCE, refilled: now }
    }

    /// How long to wait before a restart at `now`, which it counts.
    fn pause(&mut self, now: Instant) -> Duration {
        let periods =
            now.saturating_duration_since(self.refilled).as_millis() / RESTART_PERIOD.as_millis();
        let periods = u32::try_from(periods).unwrap_or(u32::MAX);
        self.refilled += RESTART_PERIOD.saturating_mul(periods.min(RESTARTS_AT_ONCE));
        self.left = self.left.saturating_add(periods).min(RESTARTS_AT_ONCE);
        if self.left == RESTARTS_AT_ONCE {
            self.refilled = now;
        }
        match self.left.checked_sub(1) {
            Some(left) => {
                self.left = left;
                Duration::ZERO
            }
            None => RESTART_PERIOD,
        }
    }
}

/// A server, from the side of the holder.
struct RunningServer {
    process: Pid,
    socket: OwnedFd,
    is_ready: bool,
}

/// The loop of the holder.
struct MountHolder<'a> {
    attachment: &'a mut Attachment,
    signals: HolderSignals,
    on_event: &'a dyn Fn(&HolderEvent),
    is_unmounting: bool,
}

impl Attachment {
    /// Becomes the holder: forks servers that run `serve`, one after the other, until the mount ends. Returns the exit
    /// status of the last one.
    ///
    /// `serve` runs in a process of its own, with an attachment that unmounts through the holder, and returns its exit
    /// status. No other thread may run in this process.
    ///
    /// # Errors
    /// The first server cannot be forked.
    pub fn hold(
        &mut self,
        signals: HolderSignals,
        serve: &mut dyn FnMut(Self, ServerStart) -> i32,
        on_event: &dyn Fn(&HolderEvent),
    ) -> io::Result<i32> {
        MountHolder { attachment: self, signals, on_event, is_unmounting: false }.run(serve)
    }

    /// This mount for a server, which unmounts by a message to its holder.
    fn of_server(&self, holder: Pid, socket: OwnedFd) -> io::Result<Self> {
        let lifeline = match &self.unmounting {
            Unmounting::Fusermount(Some(unmounter)) => {
                Some(unmounter.descriptor().try_clone_to_owned()?)
            }
            _ => None,
        };
        Ok(Self {
            device: self.device.try_clone()?,
            method: self.method.clone(),
            directory: self.directory.clone(),
            identity: self.identity.clone(),
            unmounting: Unmounting::Helper(UnmountHelper::of_holder(holder, socket)),
            lifeline,
            auto_unmount: self.auto_unmount,
            is_detached: false,
        })
    }
}

impl MountHolder<'_> {
    fn run(mut self, serve: &mut dyn FnMut(Attachment, ServerStart) -> i32) -> io::Result<i32> {
        let mut limiter = RestartLimiter::new(Instant::now());
        let (mut number, mut predecessor) = (1, None);
        loop {
            let server = match self.fork(number, predecessor, serve) {
                Ok(server) => server,
                Err(error) if number == 1 => return Err(error),
                Err(error) => {
                    let cause = Errno::from_io_error(&error).unwrap_or(Errno::AGAIN);
                    (self.on_event)(&HolderEvent::ForkFailed { cause });
                    self.pause(FAILED_START_PAUSE);
                    continue;
                }
            };
            let pid = server.process.as_raw_pid();
            let (status, is_ready) = self.wait(server);
            let code = status.exit_status().unwrap_or(KILLED_STATUS);
            let is_never_ready = number == 1 && !is_ready;
            if is_never_ready || self.is_unmounting || !self.attachment.is_connected() {
                // What is left to unmount is the mount of a first server that failed.
                self.attachment.detach().ok();
                return Ok(code);
            }
            let signal = status.terminating_signal();
            let is_killed = signal == Some(libc::SIGKILL);
            predecessor = Some(if is_killed { ServerEnd::Killed } else { ServerEnd::Crashed });
            (self.on_event)(&HolderEvent::ServerEnded {
                pid,
                signal,
                status: status.exit_status(),
                restarts: number,
            });
            let mut pause = limiter.pause(Instant::now());
            if !is_ready && signal.is_none() {
                pause = FAILED_START_PAUSE;
            }
            self.pause(pause);
            number += 1;
        }
    }

    fn fork(
        &self,
        number: u64,
        predecessor: Option<ServerEnd>,
        serve: &mut dyn FnMut(Attachment, ServerStart) -> i32,
    ) -> io::Result<RunningServer> {
        let (socket, theirs) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
        let holder = rustix::process::getpid();
        // SAFETY: fork has no arguments. This process has one thread (the contract of `hold`), so no lock is held, and the
        // child may use everything. It never returns from `serve_and_exit`.
        match unsafe { libc::fork() } {
            -1 => Err(io::Error::last_os_error()),
            0 => {
                drop(socket);
                self.serve_and_exit(ServerParts { theirs, holder, number, predecessor }, serve)
            }
            process => {
                let process = Pid::from_raw(process).ok_or(Errno::SRCH)?;
                Ok(RunningServer { process, socket, is_ready: false })
            }
        }
    }

    /// The whole life of a server.
    fn serve_and_exit(
        &self,
        parts: ServerParts,
        serve: &mut dyn FnMut(Attachment, ServerStart) -> i32,
    ) -> ! {
        let ServerParts { theirs, holder, number, predecessor } = parts;
        self.signals.unblock();
        // Unwinding would run the holder's code in this process.
        let ended = catch_unwind(AssertUnwindSafe(|| {
            let ready = ReadyReport(theirs.try_clone()?);
            let attachment = self.attachment.of_server(holder, theirs)?;
            let holder = holder.as_raw_pid();
            let start = ServerStart { number, predecessor, holder, ready };
            Ok::<_, io::Error>(serve(attachment, start))
        }));
        let code = match ended {
            Ok(Ok(code)) => code,
            Ok(Err(_)) => KILLED_STATUS,
            Err(_) => PANICKED,
        };
        // SAFETY: _exit only ends the process. exit would run handlers that belong to the holder.
        unsafe { libc::_exit(code) }
    }

    /// Waits for the end of a server, and does what it and signals ask for. Returns whether it was ready, too.
    fn wait(&mut self, mut server: RunningServer) -> (WaitStatus, bool) {
        let mut is_connected = true;
        loop {
            let mut polled = [
                PollFd::new(&self.signals.descriptor, PollFlags::IN),
                PollFd::new(&server.socket, PollFlags::IN),
            ];
            let polled = polled.get_mut(..if is_connected { 2 } else { 1 }).unwrap_or_default();
            poll(polled, None).ok();
            if is_connected {
                is_connected = self.take_messages(&mut server);
            }
            while let Some(signal) = self.signals.next() {
                self.take_signal(signal, &server);
            }
            if let Ok(Some((_, status))) = waitpid(Some(server.process), WaitOptions::NOHANG) {
                if is_connected {
                    self.take_messages(&mut server);
                }
                return (status, server.is_ready);
            }
        }
    }

    /// Waits, and keeps to signals.
    fn pause(&mut self, time: Duration) {
        let until = Instant::now() + time;
        while let Some(left) =
            until.checked_duration_since(Instant::now()).filter(|left| !left.is_zero())
        {
            let left = Timespec::try_from(left).unwrap_or_default();
            poll(&mut [PollFd::new(&self.signals.descriptor, PollFlags::IN)], Some(&left)).ok();
            while let Some(signal) = self.signals.next() {
                if i32::try_from(signal) != Ok(libc::SIGCHLD) {
                    self.unmount(signal);
                }
            }
            if self.is_unmounting {
                return;
            }
        }
    }

    fn take_signal(&mut self, signal: u32, server: &RunningServer) {
        match i32::try_from(signal) {
            Ok(libc::SIGCHLD) => {}
            // The second one ends the server as well.
            _ if self.is_unmounting => {
                kill_process(server.process, Signal::KILL).ok();
            }
            _ => self.unmount(signal),
        }
    }

    fn unmount(&mut self, signal: u32) {
        (self.on_event)(&HolderEvent::Unmounting { signal });
        self.is_unmounting = true;
        match self.attachment.detach() {
            Ok(DetachOutcome::Lazily) => (self.on_event)(&HolderEvent::InUse),
            Ok(_) => {}
            Err(error) => {
                (self.on_event)(&HolderEvent::NotUnmounted { message: error.to_string() });
            }
        }
    }

    /// Answers the messages of a server. Returns whether more can come.
    fn take_messages(&mut self, server: &mut RunningServer) -> bool {
        while let Some(message) = unmount_helper::next_message(&server.socket) {
            match message {
                unmount_helper::READY => server.is_ready = true,
                unmount_helper::UNMOUNT => {
                    self.is_unmounting = true;
                    let (kind, text) = unmount_helper::outcome_message(self.attachment.detach());
                    unmount_helper::send(&server.socket, kind, &text);
                }
                unmount_helper::CANCEL => self.is_unmounting = true,
                _ => return false,
            }
        }
        true
    }
}

/// What a server gets besides what its holder has.
struct ServerParts {
    theirs: OwnedFd,
    holder: Pid,
    number: u64,
    predecessor: Option<ServerEnd>,
}

/// Runs `work` in a process of its own, so that untrusted bytes are looked at without leaving anything behind in this
/// process. Returns the bytes that it makes, at most 64 KiB, or how the process ended otherwise.
///
/// # Errors
/// The process cannot be started.
pub fn run_in_child(work: impl FnOnce() -> Vec<u8>) -> io::Result<Result<Vec<u8>, String>> {
    let (reader, writer) = io::pipe()?;
    // SAFETY: as in `fork`: this process has one thread. The child never returns.
    match unsafe { libc::fork() } {
        -1 => Err(io::Error::last_os_error()),
        0 => {
            let ended = catch_unwind(AssertUnwindSafe(|| {
                drop(reader);
                // What hangs ends with the process that waits for it.
                rustix::process::set_parent_process_death_signal(Some(Signal::KILL)).ok();
                io::Write::write_all(&mut &writer, &work())
            }));
            // SAFETY: as in `serve_and_exit`.
            unsafe { libc::_exit(if matches!(ended, Ok(Ok(()))) { 0 } else { PANICKED }) }
        }
        process => {
            drop(writer);
            let mut bytes = Vec::new();
            io::Read::read_to_end(&mut io::Read::take(reader, CHILD_BYTES_MAX), &mut bytes)?;
            let process = Pid::from_raw(process).ok_or(Errno::SRCH)?;
            let status = loop {
                match waitpid(Some(process), WaitOptions::empty()) {
                    Err(Errno::INTR) => {}
                    Err(cause) => return Err(cause.into()),
                    Ok(ended) => break ended.map(|(_, status)| status),
                }
            };
            Ok(match status.and_then(|status| status.terminating_signal()) {
                Some(signal) => Err(format!("by signal {signal}")),
                None => match status.and_then(|status| status.exit_status()) {
                    Some(0) => Ok(bytes),
                    code => Err(format!("with exit status {}", code.unwrap_or(KILLED_STATUS))),
                },
            })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn restarts_follow_at_once_until_there_are_too_many() {
        let start = Instant::now();
        let mut limiter = RestartLimiter::new(start);
        for _ in 0..RESTARTS_AT_ONCE {
            assert_eq!(limiter.pause(start), Duration::ZERO);
        }
        assert_eq!(limiter.pause(start), RESTART_PERIOD);
        assert_eq!(limiter.pause(start + RESTART_PERIOD), Duration::ZERO);
        assert_eq!(limiter.pause(start + RESTART_PERIOD), RESTART_PERIOD);
        let later = start + Duration::from_secs(3600);
        for _ in 0..RESTARTS_AT_ONCE {
            assert_eq!(limiter.pause(later), Duration::ZERO);
        }
        assert_eq!(limiter.pause(later), RESTART_PERIOD);
    }
}

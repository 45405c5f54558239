//! Signals that end a mount, and the end that comes by itself: one thing to wait for. A handler writes a byte into a
//! socket and does nothing else. Called by the daemon, on its main thread.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use std::{fmt, io};

use anyhow::{Context, anyhow};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::{flag, low_level};

/// What ends a mount.
pub(crate) const ENDING: [i32; 3] = [SIGTERM, SIGINT, SIGHUP];
/// The exit status after a second signal: the mount did not get to its end.
const FORCED_EXIT_STATUS: i32 = 1;
/// What rings when the mount is gone, and when the session has ended; handlers write something else.
const UNMOUNTED: u8 = b',';
const ENDED: u8 = b'.';
/// How long requests may still take that nobody waits for, once the mount is gone.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(2);

/// A signal by its number; 0 while there was none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Signal(pub(crate) usize);

/// What happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MountEvent {
    /// Somebody wants the mount to end.
    Signal(Signal),
    /// It has ended.
    Ended,
    /// It was gone for a while, and requests have not ended: they hang.
    Overdue,
}

/// Handlers are in place: no signal ends the process any more, and none is lost. The socket's ends are not theirs yet,
/// so that whoever closes descriptors can be told which ones stay.
#[derive(Debug)]
pub(crate) struct SignalHandlers {
    last: Arc<AtomicUsize>,
    ends_at_once: Arc<AtomicBool>,
    handled: Vec<i32>,
    reader: UnixStream,
    writers: Vec<UnixStream>,
    waker: UnixStream,
}

/// Waits for what happens.
#[derive(Debug)]
pub(crate) struct Signals {
    last: Arc<AtomicUsize>,
    ends_at_once: Arc<AtomicBool>,
    reader: UnixStream,
    checks_last_first: bool,
    /// Until when the session should have ended; nothing while it is mounted.
    deadline: Option<Instant>,
}

/// Tells the one who waits what becomes of the session.
#[derive(Clone, Debug)]
pub(crate) struct SessionWaker(Arc<UnixStream>);

impl SignalHandlers {
    /// Puts handlers in place. A signal that whoever started the process wants ignored, as `nohup` does, stays so in
    /// the foreground.
    ///
    /// # Errors
    /// The system has no descriptors left, or refuses a handler.
    pub(crate) fn new(is_foreground: bool) -> anyhow::Result<Self> {
        let ignored = if is_foreground { ignored() } else { 0 };
        let handled: Vec<i32> =
            ENDING.into_iter().filter(|signal| ignored & 1 << (signal - 1) == 0).collect();
        let (reader, waker) = UnixStream::pair().context("a pair of sockets")?;
        let last = Arc::new(AtomicUsize::new(0));
        let ends_at_once = Arc::new(AtomicBool::new(false));
        let mut writers = Vec::new();
        for signal in &handled {
            let number = usize::try_from(*signal).unwrap_or(0);
            let armed = flag::register_conditional_shutdown(
                *signal,
                FORCED_EXIT_STATUS,
                Arc::clone(&ends_at_once),
            )
            .and_then(|_| flag::register_usize(*signal, Arc::clone(&last), number))
            .and_then(|_| waker.try_clone());
            writers.push(armed.with_context(|| format!("a handler for {}", Signal(number)))?);
        }
        Ok(Self { last, ends_at_once, handled, reader, writers, waker })
    }

    /// The descriptors that are needed later.
    pub(crate) fn descriptors(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.writers.iter().chain([&self.reader, &self.waker]).map(AsFd::as_fd)
    }

    /// From here on handlers wake the one who waits.
    ///
    /// # Errors
    /// The system refuses a handler.
    pub(crate) fn listen(self) -> anyhow::Result<(Signals, SessionWaker)> {
        let Self { last, ends_at_once, handled, reader, writers, waker } = self;
        for (signal, writer) in handled.into_iter().zip(writers) {
            low_level::pipe::register_raw(signal, OwnedFd::from(writer))
                .with_context(|| format!("a handler for signal {signal}"))?;
        }
        let signals =
            Signals { last, ends_at_once, reader, checks_last_first: true, deadline: None };
        Ok((signals, SessionWaker(Arc::new(waker))))
    }
}

impl Signals {
    /// Waits until something happens.
    pub(crate) fn wait(&mut self) -> MountEvent {
        // One that came before the handlers knew the socket.
        if std::mem::take(&mut self.checks_last_first)
            && let Some(signal) = self.last()
        {
            return MountEvent::Signal(signal);
        }
        let mut byte = [0];
        loop {
            if self.is_overdue() {
                return MountEvent::Overdue;
            }
            match rustix::io::read(&self.reader, &mut byte) {
                Ok(1) if byte == [UNMOUNTED] => {
                    self.deadline = Some(Instant::now() + DRAIN_TIMEOUT)
                }
                Ok(1) if byte == [ENDED] => return MountEvent::Ended,
                Ok(1) => return MountEvent::Signal(self.last().unwrap_or(Signal(0))),
                Err(Errno::INTR) => {}
                // Nobody is left who could write: that cannot be while handlers and the waker live.
                Ok(_) | Err(_) => return MountEvent::Ended,
            }
        }
    }

    /// Whether nothing happens until the deadline, if there is one.
    fn is_overdue(&self) -> bool {
        let Some(deadline) = self.deadline else { return false };
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let left = Timespec::try_from(left).unwrap_or_default();
            match poll(&mut [PollFd::new(&self.reader, PollFlags::IN)], Some(&left)) {
                Err(Errno::INTR) => {}
                found => return found == Ok(0),
            }
        }
    }

    /// From here on a signal ends the process at once.
    pub(crate) fn next_one_ends_at_once(&self) {
        self.ends_at_once.store(true, Ordering::SeqCst);
    }

    fn last(&self) -> Option<Signal> {
        let number = self.last.load(Ordering::SeqCst);
        (number != 0).then_some(Signal(number))
    }
}

impl SessionWaker {
    /// The mount is gone.
    pub(crate) fn wake_unmounted(&self) {
        self.say(UNMOUNTED);
    }

    /// The session has ended.
    pub(crate) fn wake_ended(&self) {
        self.say(ENDED);
    }

    fn say(&self, what: u8) {
        // If nobody waits any more, the process ends anyway.
        rustix::io::write(&*self.0, &[what]).ok();
    }
}

impl fmt::Display for Signal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match i32::try_from(self.0) {
            Ok(SIGTERM) => f.write_str("SIGTERM"),
            Ok(SIGINT) => f.write_str("SIGINT"),
            Ok(SIGHUP) => f.write_str("SIGHUP"),
            _ => write!(f, "signal {}", self.0),
        }
    }
}

/// The signals that are ignored, as a mask; those of a process that cannot tell are not.
pub(crate) fn ignored() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0)
}

/// Whether somebody wants an end.
#[derive(Clone, Debug, Default)]
pub(crate) struct StopRequest {
    signal: Arc<AtomicUsize>,
    is_wanted: Arc<AtomicBool>,
}

impl StopRequest {
    /// Puts handlers in place for the signals that end a program, but for those that whoever started it wants ignored.
    ///
    /// # Errors
    /// The system refuses a handler.
    pub(crate) fn watch() -> anyhow::Result<Self> {
        let this = Self::default();
        let ignored = ignored();
        for signal in ENDING.into_iter().filter(|signal| ignored & 1 << (signal - 1) == 0) {
            let number = usize::try_from(signal).unwrap_or(0);
            flag::register_usize(signal, Arc::clone(&this.signal), number)
                .and_then(|_| flag::register(signal, Arc::clone(&this.is_wanted)))
                .with_context(|| format!("a handler for {}", Signal(number)))?;
        }
        Ok(this)
    }

    pub(crate) fn is_wanted(&self) -> bool {
        self.is_wanted.load(Ordering::SeqCst)
    }

    /// # Errors
    /// There was a signal; the text names it.
    pub(crate) fn check(&self) -> anyhow::Result<()> {
        if self.is_wanted() {
            let signal = Signal(self.signal.load(Ordering::SeqCst));
            return Err(anyhow!("ended by {signal}"));
        }
        Ok(())
    }

    /// The same among errors of reading.
    pub(crate) fn check_io(&self) -> io::Result<()> {
        if self.is_wanted() { Err(io::Error::other("interrupted")) } else { Ok(()) }
    }
}

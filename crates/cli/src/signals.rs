//! Signals that end the command: SIGINT, SIGTERM and SIGHUP. Handlers set numbers, write a byte to
//! a socket, or end the process; they do nothing else. Signals that the parent process has set to
//! "ignore", as `nohup` does, stay ignored.
//!
//! * A verb starts with [`exit_on_signals`]: a signal ends the process at once.
//! * A verb that must remove something turns that into a [`StopRequest`]: a signal cancels a token,
//!   and the verb ends on its own way out with the error [`Stopped`]. When it has nothing to remove any
//!   more, [`StopRequest::exit_on_signals`] takes that back.
//! * A mount waits for a signal or for the end of its session with [`MountEvents`].
//!
//! SIGXFSZ ends nothing: [`survive_file_size_limit`].

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use std::{fmt, io};

use anyhow::Context;
use ferrofs_workers::CancelToken;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::{flag, low_level};

/// The signals that end the command.
const ENDING: [i32; 3] = [SIGTERM, SIGINT, SIGHUP];
/// The exit status of a mount that a second signal ends: it was not unmounted in an orderly way.
const FORCED_EXIT_STATUS: i32 = 1;
/// The bytes that a [`SessionWaker`] writes; handlers write other ones.
const UNMOUNTED: u8 = b',';
const FAILED: u8 = b'!';
const ENDED: u8 = b'.';
/// How long requests may still take after the mount is gone and no process waits for their replies.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(2);
/// Stack of the thread that waits for a signal; it only reads a byte.
const WATCHER_STACK_BYTES: usize = 64 << 10;

/// A signal by its number; 0: none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Signal(pub(crate) usize);

impl Signal {
    /// The exit status of a command that this signal has ended, as shells number it.
    pub(crate) fn exit_status(self) -> u8 {
        u8::try_from(self.0.saturating_add(128)).unwrap_or(u8::MAX)
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

/// The error of work that a signal has ended.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stopped(pub(crate) Signal);

impl fmt::Display for Stopped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ended by {}", self.0)
    }
}

impl std::error::Error for Stopped {}

/// Handlers that end the process at once, with the exit status of the signal.
#[derive(Debug)]
pub(crate) struct ExitOnSignals {
    handled: Vec<i32>,
    request: StopRequest,
}

/// The effect of a second signal on work that is being stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SecondSignal {
    /// Nothing: what has to be removed is removed first.
    Ignored,
    /// It ends the process at once: nothing would be left behind.
    Exits,
}

/// From here on, a write beyond the limit of file sizes (`ulimit -f`) is an error like any other and
/// does not end the process.
pub(crate) fn survive_file_size_limit() {
    let number = rustix::process::Signal::XFSZ.as_raw();
    // A handler, since programs that are started inherit no handlers. Where none can be installed,
    // the signal ends the process.
    if ignored() & 1 << (number - 1) == 0 {
        flag::register(number, Arc::default()).ok();
    }
}

/// Installs handlers that end the process at once.
///
/// # Errors
/// The system refuses a handler.
pub(crate) fn exit_on_signals() -> anyhow::Result<ExitOnSignals> {
    let this = ExitOnSignals { handled: handled(), request: StopRequest::default() };
    this.request.ends_at_once.store(true, Ordering::SeqCst);
    for signal in &this.handled {
        let number = Signal(usize::try_from(*signal).unwrap_or(0));
        let status = number.exit_status().into();
        flag::register_conditional_shutdown(
            *signal,
            status,
            Arc::clone(&this.request.ends_at_once),
        )
        .with_context(|| format!("cannot handle {number}"))?;
    }
    Ok(this)
}

impl ExitOnSignals {
    /// The request that [`into_stop_request`](Self::into_stop_request) will return, for what comes after the
    /// work that calls it: from then on signals end nothing by themselves. Before that, they end the process.
    pub(crate) fn later_stop_request(&self) -> StopRequest {
        self.request.clone()
    }

    /// From here on, a signal makes a stop request instead.
    ///
    /// # Errors
    /// The system refuses a handler, a socket or a thread.
    pub(crate) fn into_stop_request(self, second: SecondSignal) -> anyhow::Result<StopRequest> {
        let request = self.request;
        let (reader, writer) = UnixStream::pair().context("cannot create a socket pair")?;
        for signal in &self.handled {
            let number = usize::try_from(*signal).unwrap_or(0);
            // The handlers of a signal run in this order: the watcher finds the number set.
            flag::register_usize(*signal, Arc::clone(&request.signal), number)
                .and_then(|_| writer.try_clone())
                .and_then(|writer| low_level::pipe::register(*signal, writer))
                .with_context(|| format!("cannot handle {}", Signal(number)))?;
            if second == SecondSignal::Exits {
                flag::register(*signal, Arc::clone(&request.ends_at_once))
                    .with_context(|| format!("cannot handle {}", Signal(number)))?;
            }
        }
        let token = request.token.clone();
        // It is never joined: it waits for a signal as long as there is a process.
        std::thread::Builder::new()
            .name("signals".to_owned())
            .stack_size(WATCHER_STACK_BYTES)
            .spawn(move || wait_and_cancel(&reader, &token))
            .context("cannot start a thread")?;
        request.ends_at_once.store(false, Ordering::SeqCst);
        Ok(request)
    }
}

fn wait_and_cancel(reader: &UnixStream, token: &CancelToken) {
    let mut byte = [0];
    loop {
        match rustix::io::read(reader, &mut byte) {
            Ok(1) => return token.cancel(),
            Err(Errno::INTR) => {}
            // There are no handlers, as all signals are ignored.
            _ => return,
        }
    }
}

/// Whether a signal has stopped the command, and which one. Clones share one state.
#[derive(Clone, Debug, Default)]
pub(crate) struct StopRequest {
    signal: Arc<AtomicUsize>,
    /// Whether a signal ends the process instead.
    ends_at_once: Arc<AtomicBool>,
    token: CancelToken,
}

impl StopRequest {
    /// The token that a signal cancels.
    pub(crate) fn token(&self) -> &CancelToken {
        &self.token
    }

    pub(crate) fn is_requested(&self) -> bool {
        self.token.is_cancelled()
    }

    /// # Errors
    /// [`Stopped`] after a signal.
    pub(crate) fn check(&self) -> Result<(), Stopped> {
        match self.is_requested() {
            true => Err(Stopped(Signal(self.signal.load(Ordering::SeqCst)))),
            false => Ok(()),
        }
    }

    /// The same for code that returns I/O errors.
    ///
    /// # Errors
    /// After a signal.
    pub(crate) fn check_io(&self) -> io::Result<()> {
        self.check().map_err(io::Error::other)
    }

    /// From here on, a signal ends the process at once again: for work that may block, and has nothing to remove.
    ///
    /// # Errors
    /// [`Stopped`] if a signal has come already.
    pub(crate) fn exit_on_signals(&self) -> Result<(), Stopped> {
        self.ends_at_once.store(true, Ordering::SeqCst);
        // Not the token: the thread that cancels it may still be about to.
        match self.signal.load(Ordering::SeqCst) {
            0 => Ok(()),
            number => Err(Stopped(Signal(number))),
        }
    }
}

/// The ending signals that are not ignored.
fn handled() -> Vec<i32> {
    let ignored = ignored();
    ENDING.into_iter().filter(|signal| ignored & 1 << (signal - 1) == 0).collect()
}

/// The ignored signals as a bit mask; 0 if `/proc` cannot be read.
fn ignored() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0)
}

/// What ends the wait of a mount.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MountEvent {
    /// A signal arrived; the mount must be unmounted.
    Signal(Signal),
    /// The session is about to end.
    Ending,
    /// The session has ended.
    Ended,
    /// The mount is gone for some time, and requests have not ended: they hang.
    Overdue,
}

/// Handlers of a mount, before its sandbox: no signal ends the process any more, and none is lost.
/// The handlers do not own the ends of the socket yet, so that the caller can add them to the
/// descriptors that the sandbox keeps.
#[derive(Debug)]
pub(crate) struct SignalHandlers {
    last: Arc<AtomicUsize>,
    ends_at_once: Arc<AtomicBool>,
    handled: Vec<i32>,
    reader: UnixStream,
    writers: Vec<UnixStream>,
    waker: UnixStream,
}

/// The receiving end of a mount's signals and of its [`SessionWaker`].
#[derive(Debug)]
pub(crate) struct MountEvents {
    last: Arc<AtomicUsize>,
    ends_at_once: Arc<AtomicBool>,
    reader: UnixStream,
    checks_last_first: bool,
    /// When the session should have ended; `None` while it is mounted.
    deadline: Option<Instant>,
}

/// Reports to [`MountEvents`] what becomes of the session.
#[derive(Clone, Debug)]
pub(crate) struct SessionWaker(Arc<UnixStream>);

impl SignalHandlers {
    /// Installs the handlers. A daemon handles signals that its parent ignored, too.
    ///
    /// # Errors
    /// The system has no descriptors left, or refuses a handler.
    pub(crate) fn new(is_foreground: bool) -> anyhow::Result<Self> {
        let handled = if is_foreground { handled() } else { ENDING.to_vec() };
        let (reader, waker) = UnixStream::pair().context("cannot create a socket pair")?;
        let last = Arc::new(AtomicUsize::new(0));
        let ends_at_once = Arc::new(AtomicBool::new(false));
        let mut writers = Vec::new();
        for signal in &handled {
            let number = usize::try_from(*signal).unwrap_or(0);
            let registered = flag::register_conditional_shutdown(
                *signal,
                FORCED_EXIT_STATUS,
                Arc::clone(&ends_at_once),
            )
            .and_then(|_| flag::register_usize(*signal, Arc::clone(&last), number))
            .and_then(|_| waker.try_clone());
            writers.push(registered.with_context(|| format!("cannot handle {}", Signal(number)))?);
        }
        Ok(Self { last, ends_at_once, handled, reader, writers, waker })
    }

    /// The descriptors that [`SignalHandlers::listen`] needs.
    pub(crate) fn descriptors(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.writers.iter().chain([&self.reader, &self.waker]).map(AsFd::as_fd)
    }

    /// From here on, handlers wake [`MountEvents::wait`].
    ///
    /// # Errors
    /// The system refuses a handler.
    pub(crate) fn listen(self) -> anyhow::Result<(MountEvents, SessionWaker)> {
        let Self { last, ends_at_once, handled, reader, writers, waker } = self;
        for (signal, writer) in handled.into_iter().zip(writers) {
            low_level::pipe::register_raw(signal, OwnedFd::from(writer))
                .with_context(|| format!("a handler for signal {signal}"))?;
        }
        let events =
            MountEvents { last, ends_at_once, reader, checks_last_first: true, deadline: None };
        Ok((events, SessionWaker(Arc::new(waker))))
    }
}

impl MountEvents {
    /// Waits for the next event.
    pub(crate) fn wait(&mut self) -> MountEvent {
        // A signal that came before the handlers had the socket.
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
                    self.deadline = Some(Instant::now() + DRAIN_TIMEOUT);
                    return MountEvent::Ending;
                }
                Ok(1) if byte == [FAILED] => return MountEvent::Ending,
                Ok(1) if byte == [ENDED] => return MountEvent::Ended,
                Ok(1) => return MountEvent::Signal(self.last().unwrap_or(Signal(0))),
                Err(Errno::INTR) => {}
                // All writers are closed, which cannot be while handlers and the waker exist.
                Ok(_) | Err(_) => return MountEvent::Ended,
            }
        }
    }

    /// Whether the deadline passes without an event.
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

    /// From here on, a signal ends the process at once.
    pub(crate) fn exit_on_next_signal(&self) {
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
        self.write(UNMOUNTED);
    }

    /// The device has failed, so that a listener has ended.
    pub(crate) fn wake_failed(&self) {
        self.write(FAILED);
    }

    /// The session has ended.
    pub(crate) fn wake_ended(&self) {
        self.write(ENDED);
    }

    fn write(&self, what: u8) {
        // This fails only after the receiver is gone, when the process ends anyway.
        rustix::io::write(&*self.0, &[what]).ok();
    }
}

//! Processes that are forked: from the command, one that goes on as the background process of a mount, and one that looks at
//! untrusted bytes; and from a server, one that waits until that has ended. The latter leaves behind everything of the
//! server, and notices also that it was killed and cannot end ([`ParentThread`]). And the messages between such processes, and
//! how soon a process that has ended is forked again ([`RestartLimiter`]). Called by the command, `holder`, `direct` and `fusermount`.
#![allow(
    unsafe_code,
    reason = "fork, descriptors of unknown owners, the signal mask, and signalfd"
)]

use std::ffi::CStr;
use std::fmt;
use std::fs;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{Mode, OFlags, open};
use rustix::io::Errno;
use rustix::net::{RecvFlags, recv};
use rustix::process::{
    Pid, Signal, Uid, WaitOptions, getppid, set_parent_process_death_signal, waitpid,
};

use super::{AttachError, DetachOutcome};

/// The exit status of a process that panicked, as Rust has it.
pub(super) const PANICKED: i32 = 101;
/// Bytes that are read from a child: what it says is a line, and a child that untrusted bytes have taken over may say more.
const CHILD_BYTES_MAX: u64 = 64 << 10;
/// Where the kernel has the number of threads of a process.
const STATUS: &str = "/proc/self/status";
/// How long a thread may be counted after it was joined: `join` waits for its last instruction, not for the kernel.
const EXIT_LIMIT: Duration = Duration::from_secs(1);

/// Restarts that follow at once, and the time that earns another one after that: a server that dies at once, or a program
/// that kills servers, takes a tenth of a CPU.
const RESTARTS_AT_ONCE: u32 = 64;
const RESTART_PERIOD: Duration = Duration::from_millis(100);
/// The pause after a server that ended with an error before it was ready: its cause, such as a file that cannot be read,
/// takes a while to go away. It doubles with each such server in a row, up to the second value.
const FAILED_START_PAUSE: Duration = Duration::from_secs(1);
const FAILED_START_PAUSE_MAX: Duration = Duration::from_secs(60);

/// A process that was forked from this one.
#[derive(Debug)]
pub struct ChildProcess(Pid);

/// How a process ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProcessEnd {
    /// It exited with this status, 0 to 255.
    Exited(i32),
    /// This signal ended it.
    Killed(i32),
}

/// Continues as two processes: returns the new one here, and `None` there. The new process has the memory, the descriptors
/// and the calling thread of this one.
///
/// # Errors
/// This process has other threads, which the new one would lack; there is no `/proc`; or the system cannot start a process.
pub fn fork_process() -> io::Result<Option<ChildProcess>> {
    wait_until_single_threaded()?;
    keep_ended_children();
    // SAFETY: fork has no arguments. This process has one thread, so no lock is held by another one, and the new process may
    // use everything.
    match unsafe { libc::fork() } {
        -1 => Err(io::Error::last_os_error()),
        0 => Ok(None),
        process => Ok(Some(ChildProcess(Pid::from_raw(process).ok_or(Errno::SRCH)?))),
    }
}

/// Lets the kernel keep the exit status of children until it is read. A parent that ignores SIGCHLD hands that down, and then
/// the kernel does not.
pub(super) fn keep_ended_children() {
    // SAFETY: SIG_DFL is no function of this program, and SIGCHLD does nothing by default.
    unsafe { libc::signal(libc::SIGCHLD, libc::SIG_DFL) };
}

/// Waits for the kernel to end threads that were joined.
fn wait_until_single_threaded() -> io::Result<()> {
    let deadline = Instant::now() + EXIT_LIMIT;
    loop {
        let threads = thread_count()?;
        if threads == 1 {
            return Ok(());
        }
        if Instant::now() > deadline {
            return Err(io::Error::other(format!("this process has {threads} threads")));
        }
        std::thread::yield_now();
    }
}

/// The number of threads of this process, also of threads that have just been joined and that the kernel has not removed
/// yet. The list in `/proc/self/task` is not counted: it ends early at a thread that ends meanwhile.
///
/// # Errors
/// `/proc/self/status` cannot be read.
pub fn thread_count() -> io::Result<u32> {
    let status = fs::read_to_string(STATUS)
        .map_err(|error| io::Error::new(error.kind(), format!("{STATUS}: {error}")))?;
    let count = status.lines().find_map(|line| line.strip_prefix("Threads:")?.trim().parse().ok());
    count.ok_or_else(|| io::Error::other(format!("{STATUS} has no number of threads")))
}

/// Runs `work` in a process of its own, so that untrusted bytes are looked at without leaving anything behind in this
/// process. Returns the bytes that it makes, at most 64 KiB, or how the process ended otherwise.
///
/// # Errors
/// As [`fork_process`]; or what the process writes cannot be read.
pub fn run_in_child(work: impl FnOnce() -> Vec<u8>) -> io::Result<Result<Vec<u8>, ProcessEnd>> {
    let (reader, writer) = io::pipe()?;
    let Some(child) = fork_process()? else {
        let ended = catch_unwind(AssertUnwindSafe(|| {
            drop(reader);
            // What hangs ends with the process that waits for it.
            set_parent_process_death_signal(Some(Signal::KILL)).ok();
            io::Write::write_all(&mut &writer, &work())
        }));
        // SAFETY: `_exit` takes a status and returns to nobody; the caller's code must not go on in this process.
        unsafe { libc::_exit(if matches!(ended, Ok(Ok(()))) { 0 } else { PANICKED }) }
    };
    drop(writer);
    let mut bytes = Vec::new();
    io::Read::read_to_end(&mut io::Read::take(reader, CHILD_BYTES_MAX), &mut bytes)?;
    Ok(match child.wait()? {
        ProcessEnd::Exited(0) => Ok(bytes),
        end => Err(end),
    })
}

impl ChildProcess {
    /// Waits until it has ended.
    ///
    /// # Errors
    /// Somebody else has waited for it.
    pub fn wait(self) -> io::Result<ProcessEnd> {
        loop {
            match waitpid(Some(self.0), WaitOptions::empty()) {
                Err(Errno::INTR) => {}
                Err(cause) => return Err(cause.into()),
                Ok(None) => return Err(Errno::CHILD.into()),
                Ok(Some((_, status))) => {
                    if let Some(signal) = status.terminating_signal() {
                        return Ok(ProcessEnd::Killed(signal));
                    }
                    // Without WUNTRACED and WCONTINUED there is no third way.
                    if let Some(code) = status.exit_status() {
                        return Ok(ProcessEnd::Exited(code));
                    }
                }
            }
        }
    }
}

impl fmt::Display for ProcessEnd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exited(code) => write!(f, "with exit status {code}"),
            Self::Killed(signal) => write!(f, "by signal {signal}"),
        }
    }
}

/// The name of a process that waits to unmount.
const NAME: &CStr = c"ferrofs-unmount";
/// Where the kernel lists the descriptors of a process.
const DESCRIPTORS: &str = "/proc/self/fd";
/// The first descriptor that is no standard stream.
const FIRST_FREE: RawFd = 3;
/// What the kernel sends.
const DEATH_SIGNAL: Signal = Signal::USR1;
/// The bytes of `ssi_pid` in what a signalfd delivers.
const SENDER: std::ops::Range<usize> = {
    let start = std::mem::offset_of!(libc::signalfd_siginfo, ssi_pid);
    start..start + size_of::<u32>()
};

/// How long the other threads of a process may take to end. Usually it takes milliseconds.
const END_LIMIT: Duration = Duration::from_secs(1);

/// The thread that forked this process.
///
/// SIGKILL ends all threads but those that store bytes in the page cache and wait for a page that a request has locked:
/// nobody replies to that request, and the device stays open, so the kernel does not end the file system either. But the
/// thread that started this process does not store, so it has ended by then, and the kernel sends a signal
/// (`PR_SET_PDEATHSIG`, which is about the thread that forked, not about its process).
#[derive(Debug)]
pub(super) struct ParentThread {
    process: Option<Pid>,
    /// A signalfd.
    ended: OwnedFd,
}

/// Why a wait has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Wake {
    /// The socket can be read: there is a message, or its other end is closed.
    Socket,
    /// The thread has ended, but its process has not.
    Stuck,
}

impl ParentThread {
    /// Watches it from now on. All signals are blocked in this process. A change of its effective user or group would end it.
    ///
    /// # Errors
    /// The system refuses.
    pub(super) fn observe() -> io::Result<Self> {
        let mut signals = MaybeUninit::<libc::sigset_t>::uninit();
        // SAFETY: sigemptyset writes a whole set to the memory that it gets; the other two calls change and read it.
        let number = unsafe {
            libc::sigemptyset(signals.as_mut_ptr());
            libc::sigaddset(signals.as_mut_ptr(), DEATH_SIGNAL.as_raw());
            libc::signalfd(-1, signals.as_ptr(), libc::SFD_CLOEXEC)
        };
        if number < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the kernel has just opened it, and nothing else knows its number.
        let ended = unsafe { OwnedFd::from_raw_fd(number) };
        set_parent_process_death_signal(Some(DEATH_SIGNAL))?;
        Ok(Self { process: getppid(), ended })
    }

    pub(super) fn descriptor(&self) -> BorrowedFd<'_> {
        self.ended.as_fd()
    }

    /// Reads a signal: whether the parent has sent it, and not somebody else. The kernel sends it in the name of the
    /// process whose thread has ended.
    fn is_from_parent(&self) -> Result<bool, Errno> {
        let mut signal = [0; size_of::<libc::signalfd_siginfo>()];
        rustix::io::read(&self.ended, &mut signal)?;
        let sender = signal.get(SENDER).and_then(|bytes| bytes.try_into().ok());
        let sender = sender.map(i32::from_ne_bytes).and_then(Pid::from_raw);
        Ok(sender.is_some() && sender == self.process)
    }

    /// Waits for a message of the process, or for its end.
    ///
    /// # Errors
    /// The kernel cannot wait.
    pub(super) fn wait(&self, socket: BorrowedFd<'_>) -> Result<Wake, Errno> {
        loop {
            let mut polled = [
                PollFd::from_borrowed_fd(socket, PollFlags::IN),
                PollFd::new(&self.ended, PollFlags::IN),
            ];
            match poll(&mut polled, None) {
                Err(Errno::INTR) => continue,
                Err(errno) => return Err(errno),
                Ok(_) => {}
            }
            let [socket_polled, _] = &polled;
            if !socket_polled.revents().is_empty() {
                return Ok(Wake::Socket);
            }
            if self.is_from_parent()? {
                break;
            }
        }
        let deadline = Instant::now() + END_LIMIT;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let left = Timespec::try_from(left).unwrap_or_default();
            let mut polled = [PollFd::from_borrowed_fd(socket, PollFlags::IN)];
            match poll(&mut polled, Some(&left)) {
                Err(Errno::INTR) => {}
                Err(errno) => return Err(errno),
                Ok(0) => return Ok(Wake::Stuck),
                Ok(_) => return Ok(Wake::Socket),
            }
        }
    }
}

/// Leaves everything of the server behind: signals, session, directory, descriptors.
///
/// # Errors
/// The system refuses; before Linux 5.9 also if there is no `/proc`, or no descriptor to read it.
pub(super) fn prepare(kept: &[BorrowedFd<'_>]) -> io::Result<()> {
    block_signals()?;
    // These fail for no process that was just forked; the working directory must not keep a mount busy.
    rustix::process::setsid()?;
    rustix::process::chdir("/")?;
    rustix::thread::set_name(NAME)?;
    // First, since the server may have used up all descriptors.
    close_all_but(kept)?;
    let null = open("/dev/null", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
    rustix::stdio::dup2_stdin(&null)?;
    rustix::stdio::dup2_stdout(&null)?;
    rustix::stdio::dup2_stderr(&null)?;
    Ok(())
}

/// Lets the thread that forked this process signal its end when it has become this user. The kernel sends the signal in the
/// name of that thread, which must be permitted to. One of the user IDs of this process has to be the same: the real one, by
/// which nothing else is checked, so that it keeps its privileges. Processes of that user can also kill this one, as they can
/// the server.
///
/// # Errors
/// The user is not mapped in the user namespace of this process.
pub(super) fn accept_signals_of(user: u32) -> io::Result<()> {
    let is_valid = user != u32::MAX;
    let user = is_valid.then(|| Uid::from_raw(user)).ok_or(Errno::INVAL)?;
    Ok(rustix::thread::set_thread_res_uid(user, None, None)?)
}

/// Closes all descriptors but the standard streams and `kept`.
fn close_all_but(kept: &[BorrowedFd<'_>]) -> io::Result<()> {
    let mut numbers: Vec<RawFd> = kept.iter().map(AsRawFd::as_raw_fd).collect();
    numbers.sort_unstable();
    let mut first = FIRST_FREE;
    for number in numbers.into_iter().filter(|number| *number >= FIRST_FREE) {
        if first < number && !close_range(first, number - 1) {
            return close_listed_but(kept);
        }
        first = number.saturating_add(1);
    }
    if close_range(first, RawFd::MAX) { Ok(()) } else { close_listed_but(kept) }
}

/// Closes the descriptors from `first` to `last`. `false`: the kernel is older than 5.9, or the filter of a container refuses a
/// system call that it does not know.
fn close_range(first: RawFd, last: RawFd) -> bool {
    // SAFETY: close_range(first, last, flags) reads three integers. The owners of these descriptors are values of the
    // server, which this process neither uses nor drops (`run_and_exit`).
    unsafe { libc::syscall(libc::SYS_close_range, first, last, 0) == 0 }
}

/// The same as [`close_all_but`], one by one.
fn close_listed_but(kept: &[BorrowedFd<'_>]) -> io::Result<()> {
    let mut numbers: Vec<RawFd> = Vec::new();
    for entry in fs::read_dir(DESCRIPTORS)? {
        numbers.extend(entry?.file_name().to_str().and_then(|name| name.parse::<RawFd>().ok()));
    }
    let is_kept =
        |number: RawFd| number < FIRST_FREE || kept.iter().any(|fd| fd.as_raw_fd() == number);
    for number in numbers.into_iter().filter(|number| !is_kept(*number)) {
        // SAFETY: as in `close_range`. That of the listing itself is closed already, which makes close fail and does no
        // harm: this process has one thread, so the number is free.
        unsafe { libc::close(number) };
    }
    Ok(())
}

fn block_signals() -> io::Result<()> {
    let mut all = MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: sigfillset writes a whole set to the memory that it gets, and sigprocmask reads it. Both pointers are to
    // `all`, or null where the old mask would be written.
    let blocked = unsafe {
        libc::sigfillset(all.as_mut_ptr());
        libc::sigprocmask(libc::SIG_SETMASK, all.as_ptr(), std::ptr::null_mut())
    };
    if blocked == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Messages between a process and one that was forked from it: a kind, and perhaps a text. From a server to the process that
/// unmounts for it.
pub(super) const UNMOUNT: u8 = b'U';
pub(super) const CANCEL: u8 = b'C';
/// From that process; from a server to its holder, which is then ready itself.
pub(super) const READY: u8 = b'R';
/// From a server to a holder that takes a mount over: it is prepared. From that holder: its turn has come.
pub(super) const PREPARED: u8 = b'P';
pub(super) const TURN: u8 = b'O';
/// Answers to [`UNMOUNT`]; the last one also instead of [`READY`].
pub(super) const DONE: u8 = b'D';
pub(super) const ALREADY: u8 = b'A';
pub(super) const COVERED: u8 = b'V';
pub(super) const FAILED: u8 = b'F';
/// The largest message: a kind and an error text.
pub(super) const MESSAGE_BYTES: usize = 512;

/// What a process that waits to unmount does when the server ends without a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum AtEnd {
    /// It unmounts.
    Unmount,
    /// It leaves the dead mount.
    Leave,
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

/// How a server ended, as far as it matters for the next one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum EndedServer {
    /// It served, or a signal ended it.
    Served,
    /// It ended with an error before it was ready.
    NeverReady,
}

/// Whether restarts may follow at once.
#[derive(Debug)]
pub(super) struct RestartLimiter {
    left: u32,
    refilled: Instant,
    failed_starts: u32,
}

impl RestartLimiter {
    pub(super) fn new(now: Instant) -> Self {
        Self { left: RESTARTS_AT_ONCE, refilled: now, failed_starts: 0 }
    }

    /// How long to wait before a restart at `now`, which it counts.
    pub(super) fn pause_after(&mut self, ended: EndedServer, now: Instant) -> Duration {
        let pause = self.pause(now);
        if ended == EndedServer::Served {
            self.failed_starts = 0;
            return pause;
        }
        let longer = FAILED_START_PAUSE.saturating_mul(1 << self.failed_starts.min(16));
        self.failed_starts = self.failed_starts.saturating_add(1);
        longer.min(FAILED_START_PAUSE_MAX)
    }

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
            None => {
                // What the period under way earns is for this restart.
                self.refilled += RESTART_PERIOD;
                self.refilled.saturating_duration_since(now)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;

    #[test]
    fn a_process_with_other_threads_is_not_forked() {
        // A test runs beside the thread that waits for it.
        let refused = fork_process().unwrap_err().to_string();
        assert!(refused.contains("threads"), "{refused}");
        run_in_child(Vec::new).unwrap_err();
    }

    /// A list of threads ends at one that is ending, so that a process with others was forked.
    #[test]
    fn threads_that_end_hide_no_other_thread() {
        for _ in 0..500 {
            let (may_end, is_over) = (AtomicBool::new(false), AtomicBool::new(false));
            let wait_for = |flag: &AtomicBool| {
                while !flag.load(Ordering::Relaxed) {
                    std::thread::yield_now();
                }
            };
            std::thread::scope(|scope| {
                let ending = scope.spawn(|| wait_for(&may_end));
                // It is listed after the other one.
                scope.spawn(|| wait_for(&is_over));
                may_end.store(true, Ordering::Relaxed);
                let counts: Vec<u32> = (0..20).map(|_| thread_count().unwrap()).collect();
                ending.join().unwrap();
                is_over.store(true, Ordering::Relaxed);
                // The first thread of this process, that of this test, and the one that stays.
                assert!(counts.iter().all(|count| *count >= 3), "{counts:?}");
            });
        }
    }

    #[test]
    fn how_a_process_ended_is_told_in_words() {
        assert_eq!(ProcessEnd::Exited(101).to_string(), "with exit status 101");
        assert_eq!(ProcessEnd::Killed(9).to_string(), "by signal 9");
    }

    #[test]
    fn restarts_follow_at_once_until_there_are_too_many() {
        let start = Instant::now();
        let mut limiter = RestartLimiter::new(start);
        for _ in 0..RESTARTS_AT_ONCE {
            assert_eq!(limiter.pause(start), Duration::ZERO);
        }
        // Each after the pause before it: ten a second. Every second one followed at once.
        let mut now = start;
        for _ in 0..20 {
            let pause = limiter.pause(now);
            assert_eq!(pause, RESTART_PERIOD);
            now += pause;
        }
        // After half a period more, the other half is left to wait.
        assert_eq!(limiter.pause(now + RESTART_PERIOD / 2), RESTART_PERIOD / 2);
        let later = start + Duration::from_secs(3600);
        for _ in 0..RESTARTS_AT_ONCE {
            assert_eq!(limiter.pause(later), Duration::ZERO);
        }
        assert_eq!(limiter.pause(later), RESTART_PERIOD);
    }

    #[test]
    fn the_pause_after_failed_starts_doubles_until_one_serves() {
        let now = Instant::now();
        let mut limiter = RestartLimiter::new(now);
        let mut pause = |ended| limiter.pause_after(ended, now).as_secs();
        let pauses: Vec<u64> = (0..8).map(|_| pause(EndedServer::NeverReady)).collect();
        assert_eq!(pauses, [1, 2, 4, 8, 16, 32, 60, 60]);
        assert_eq!((pause(EndedServer::Served), pause(EndedServer::NeverReady)), (0, 1));
    }
}

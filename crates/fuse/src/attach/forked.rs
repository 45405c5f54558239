//! A process that was forked from a server, and waits until that has ended: it leaves behind everything of the server, and
//! notices also that it was killed and cannot end. Used by `unmount_helper` and `fusermount`.
//!
//! SIGKILL ends all threads but those that store bytes in the page cache and wait for a page that a request has locked:
//! nobody replies to that request, and the device stays open, so the kernel does not end the file system either. But the
//! thread that started this process does not store, so it has ended by then, and the kernel sends a signal
//! (`PR_SET_PDEATHSIG`, which is about the thread that forked, not about its process).
#![allow(unsafe_code, reason = "descriptors of unknown owners, the signal mask, and signalfd")]

use std::ffi::CStr;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{Mode, OFlags, open};
use rustix::io::Errno;
use rustix::process::{Pid, Signal, Uid, getppid, set_parent_process_death_signal};

/// The name of the process.
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
    pub(super) fn watch() -> io::Result<Self> {
        let mut signals = std::mem::MaybeUninit::<libc::sigset_t>::uninit();
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
    for entry in std::fs::read_dir(DESCRIPTORS)? {
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
    let mut all = std::mem::MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: sigfillset writes a whole set to the memory that it gets, and sigprocmask reads it. Both pointers are to
    // `all`, or null where the old mask would be written.
    let blocked = unsafe {
        libc::sigfillset(all.as_mut_ptr());
        libc::sigprocmask(libc::SIG_SETMASK, all.as_ptr(), std::ptr::null_mut())
    };
    if blocked == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

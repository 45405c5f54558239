//! Processes that are forked from the command: one that goes on as the background process of a mount, and one that looks at
//! untrusted bytes. Called by the command.
#![allow(unsafe_code, reason = "fork")]

use std::fmt;
use std::fs;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::process::{Pid, Signal, WaitOptions, waitpid};

/// The exit status of a process that panicked, as Rust has it.
pub(super) const PANICKED: i32 = 101;
/// Bytes that are read from a child: what it says is a line, and a child that untrusted bytes have taken over may say more.
const CHILD_BYTES_MAX: u64 = 64 << 10;
/// Where the kernel lists the threads of a process.
const THREADS: &str = "/proc/self/task";
/// How long a thread may stay in that list after it was joined: `join` waits for its last instruction, not for the kernel.
const EXIT_LIMIT: Duration = Duration::from_secs(1);

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
        let threads = fs::read_dir(THREADS)
            .map_err(|error| io::Error::new(error.kind(), format!("{THREADS}: {error}")))?
            .count();
        if threads == 1 {
            return Ok(());
        }
        if Instant::now() > deadline {
            return Err(io::Error::other(format!("this process has {threads} threads")));
        }
        std::thread::yield_now();
    }
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
            rustix::process::set_parent_process_death_signal(Some(Signal::KILL)).ok();
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_with_other_threads_is_not_forked() {
        // A test runs beside the thread that waits for it.
        let refused = fork_process().unwrap_err().to_string();
        assert!(refused.contains("threads"), "{refused}");
        run_in_child(Vec::new).unwrap_err();
    }

    #[test]
    fn how_a_process_ended_is_told_in_words() {
        assert_eq!(ProcessEnd::Exited(101).to_string(), "with exit status 101");
        assert_eq!(ProcessEnd::Killed(9).to_string(), "by signal 9");
    }
}

//! A mount in the background: the command starts itself once more as a daemon, and waits until that is ready or says why
//! it is not. Nothing forks: the daemon is a process of its own from its first instruction. Called by the verb, on both
//! sides.

use std::ffi::OsString;
use std::io::{Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, ExitStatus};

use anyhow::{Context, anyhow};
use rustix::fs::{Mode, OFlags};
use rustix::process::Signal;

use crate::exit_status::CommandStatus;
use crate::output;

/// Tells the daemon that its standard input is the socket of the one who asks.
const NOTIFY_VARIABLE: &str = "_FERROFS_NOTIFY_ON_STDIN";
/// The program that runs, whatever its file is called by now.
const ITSELF: &str = "/proc/self/exe";
/// The first byte of an answer: all is well, and nothing follows.
const READY: u8 = b'R';
/// The first byte of an answer: it failed. The exit status and the text follow.
const FAILED: u8 = b'F';

/// Starts the daemon, with the words of this process, and waits for its answer.
///
/// # Errors
/// It could not be started, or did not answer.
pub(super) fn start() -> anyhow::Result<CommandStatus> {
    let (mut socket, theirs) = UnixStream::pair().context("a pair of sockets")?;
    let mut words = std::env::args_os();
    let mut command = Command::new(ITSELF);
    // Its name decides what its words mean.
    command.arg0(words.next().unwrap_or_else(|| OsString::from("ferrofs"))).args(words);
    command.env(NOTIFY_VARIABLE, "1").stdin(OwnedFd::from(theirs));
    let mut daemon = command.spawn().map_err(|error| {
        anyhow!("{ITSELF}: {error}; it is needed for the background, and not with --foreground")
    })?;
    // The command holds the daemon's end of the socket; only without it an end of the daemon can be seen.
    drop(command);
    let mut first = [0];
    // A socket that fails has no answer, either.
    match socket.read(&mut first).unwrap_or(0) {
        1 if first == [READY] => Ok(CommandStatus::Success),
        1 if first == [FAILED] => Ok(failed(socket, &mut daemon)),
        _ => {
            let status = daemon.wait().context("the daemon")?;
            Err(anyhow!("the daemon ended before the mount was ready: {}", how(status)))
        }
    }
}

fn failed(mut socket: UnixStream, daemon: &mut Child) -> CommandStatus {
    let mut code = [0];
    let mut text = Vec::new();
    socket.read_exact(&mut code).ok();
    // However much of it arrives is worth telling.
    socket.read_to_end(&mut text).ok();
    output::print_message(String::from_utf8_lossy(&text));
    daemon.wait().ok();
    if code == [CommandStatus::UsageError.code()] {
        CommandStatus::UsageError
    } else {
        CommandStatus::Failure
    }
}

fn how(status: ExitStatus) -> String {
    match (status.signal(), status.code()) {
        (Some(signal), _) => format!("by signal {signal}"),
        (None, Some(code)) => format!("with exit status {code}"),
        (None, None) => status.to_string(),
    }
}

/// Whoever waits for this process to be ready.
#[derive(Debug)]
pub(super) struct ReadyNotifier(UnixStream);

impl ReadyNotifier {
    /// The one who started this process as a daemon; nobody if it was started otherwise. The process leaves its
    /// terminal. Its standard input is `/dev/null` then, and is inherited by nobody.
    ///
    /// # Errors
    /// The mark was set by somebody else, or the system has no descriptors left.
    pub(super) fn of_this_process() -> anyhow::Result<Option<Self>> {
        if std::env::var_os(NOTIFY_VARIABLE).is_none() {
            return Ok(None);
        }
        let input = rustix::stdio::stdin();
        rustix::net::sockopt::socket_type(input).map_err(|_| {
            anyhow!("{NOTIFY_VARIABLE} is set, and standard input is no socket; unset it")
        })?;
        let socket =
            rustix::io::fcntl_dupfd_cloexec(input, FIRST_FREE).context("standard input")?;
        rustix::stdio::dup2_stdin(null()?).context("standard input")?;
        // Whoever asks may be ended while this process hangs; nobody wants the mount then.
        rustix::process::set_parent_process_death_signal(Some(Signal::TERM)).context("prctl")?;
        // It leads no group of processes, since it was just started; so this can fail only where it has been done.
        rustix::process::setsid().ok();
        Ok(Some(Self(UnixStream::from(socket))))
    }

    /// From here on the end of whoever asks is seen when they are answered, and not before.
    ///
    /// # Errors
    /// The system refuses.
    pub(super) fn outlive(&self) -> anyhow::Result<()> {
        rustix::process::set_parent_process_death_signal(None).context("prctl")
    }

    /// The descriptor that answering needs.
    pub(super) fn descriptor(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }

    /// Says that the mount is there.
    ///
    /// # Errors
    /// Nobody waits any more: whoever asked was ended, so nobody wants the mount.
    pub(super) fn ready(mut self) -> anyhow::Result<()> {
        self.0
            .write_all(&[READY])
            .map_err(|error| anyhow!("nobody waits for the mount any more: {error}"))
    }

    /// Says why it will not be there.
    pub(super) fn failed(mut self, status: CommandStatus, text: &str) {
        // Without anybody who waits there is nobody to tell.
        self.0.write_all(&[FAILED, status.code()]).ok();
        self.0.write_all(text.as_bytes()).ok();
    }
}

/// The first descriptor that is no standard stream.
const FIRST_FREE: i32 = 3;

/// Takes the terminal, or whatever the streams are, away from a process that stays: whoever reads them waits for their
/// end.
///
/// # Errors
/// There is no `/dev/null`.
pub(super) fn close_streams() -> anyhow::Result<()> {
    let null = null()?;
    rustix::stdio::dup2_stdout(&null).context("standard output")?;
    rustix::stdio::dup2_stderr(&null).context("standard error")?;
    Ok(())
}

fn null() -> anyhow::Result<OwnedFd> {
    let flags = OFlags::RDWR | OFlags::CLOEXEC;
    rustix::fs::open("/dev/null", flags, Mode::empty()).context("/dev/null")
}

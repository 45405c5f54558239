//! A mount in the background: the command starts itself again as a daemon, and waits until the
//! daemon is ready or reports an error. Nothing forks: the daemon is a new process from its first
//! instruction. Called by the verb, on both sides.

use std::ffi::OsString;
use std::io::{Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, ExitStatus};

use anyhow::{Context, anyhow, bail};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{Mode, OFlags};
use rustix::process::Signal;

use crate::applets::{NOTIFY_VARIABLE, is_daemon};
use crate::exit_status::CommandStatus;
use crate::output;

/// The running program, even if its file was renamed.
const ITSELF: &str = "/proc/self/exe";
/// The first byte of the answer "ready"; nothing follows.
const READY: u8 = b'R';
/// The first byte of the answer "failed"; the exit status and the text follow.
const FAILED: u8 = b'F';

/// Starts the daemon, with the words of this process, and waits for its answer.
///
/// # Errors
/// It could not be started, or did not answer.
pub(super) fn start() -> anyhow::Result<CommandStatus> {
    let (mut socket, theirs) = UnixStream::pair().context("cannot create a socket pair")?;
    let mut words = std::env::args_os();
    let mut command = Command::new(ITSELF);
    // The name decides how the arguments are read.
    command.arg0(words.next().unwrap_or_else(|| OsString::from("ferrofs"))).args(words);
    command.env(NOTIFY_VARIABLE, "1").stdin(OwnedFd::from(theirs));
    let mut daemon = command.spawn().map_err(|error| {
        anyhow!("{ITSELF}: {error}; the background process needs it; --foreground works without it")
    })?;
    // It holds the daemon's end of the socket, which would hide that the daemon has ended.
    drop(command);
    let mut first = [0];
    // A failed read counts as no answer.
    match socket.read(&mut first).unwrap_or(0) {
        1 if first == [READY] => Ok(CommandStatus::Success),
        1 if first == [FAILED] => Ok(failed(socket, &mut daemon)),
        _ => {
            let status = daemon.wait().context("cannot wait for the daemon")?;
            Err(anyhow!("the daemon ended before the mount was ready: {}", how(status)))
        }
    }
}

fn failed(mut socket: UnixStream, daemon: &mut Child) -> CommandStatus {
    let mut code = [0];
    let mut text = Vec::new();
    socket.read_exact(&mut code).ok();
    // A part of the text is printed as well.
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

/// The socket to the process that waits until this one is ready.
#[derive(Debug)]
pub(super) struct ReadyNotifier(UnixStream);

impl ReadyNotifier {
    /// The socket, if this process was started as a daemon. Its standard input becomes `/dev/null`.
    ///
    /// # Errors
    /// The variable is set, but standard input is not a socket; or the system has no descriptors left.
    pub(super) fn of_this_process() -> anyhow::Result<Option<Self>> {
        if !is_daemon() {
            return Ok(None);
        }
        let input = rustix::stdio::stdin();
        rustix::net::sockopt::socket_type(input).map_err(|_| {
            anyhow!("{NOTIFY_VARIABLE} is set, but standard input is not a socket; unset it")
        })?;
        let socket =
            rustix::io::fcntl_dupfd_cloexec(input, FIRST_FREE).context("standard input")?;
        // If the starter is killed while this process hangs, the mount is not wanted any more.
        rustix::process::set_parent_process_death_signal(Some(Signal::TERM)).context("prctl")?;
        rustix::stdio::dup2_stdin(null()?).context("standard input")?;
        // It may have been killed before that.
        if has_hung_up(&socket).context("poll")? {
            bail!("the process that started the mount has ended");
        }
        Ok(Some(Self(UnixStream::from(socket))))
    }

    /// From here on, the end of the starter is noticed only when it is notified, and the process
    /// has no terminal. Not before the mount is made: systemd mounts on what it has as an automount
    /// point, and only processes of its group get past that while the mount is not there.
    ///
    /// # Errors
    /// The system refuses.
    pub(super) fn outlive(&self) -> anyhow::Result<()> {
        rustix::process::set_parent_process_death_signal(None).context("prctl")?;
        // A process that was just started leads no process group, so this fails only if it was done
        // before.
        rustix::process::setsid().ok();
        Ok(())
    }

    /// The descriptor of the socket.
    pub(super) fn descriptor(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }

    /// Reports that the mount is ready.
    ///
    /// # Errors
    /// The starter was ended, so the mount is not wanted any more.
    pub(super) fn ready(mut self) -> anyhow::Result<()> {
        self.0
            .write_all(&[READY])
            .map_err(|error| anyhow!("the process that started the mount has ended: {error}"))
    }

    /// Reports why there is no mount.
    pub(super) fn failed(mut self, status: CommandStatus, text: &str) {
        // If the starter has ended, the message is lost.
        self.0.write_all(&[FAILED, status.code()]).ok();
        self.0.write_all(text.as_bytes()).ok();
    }
}

/// Whether the other end of the socket is closed.
fn has_hung_up(socket: &OwnedFd) -> rustix::io::Result<bool> {
    let mut polled = [PollFd::new(socket, PollFlags::empty())];
    poll(&mut polled, Some(&Timespec::default()))?;
    Ok(polled.iter().any(|polled| polled.revents().contains(PollFlags::HUP)))
}

/// The first descriptor that is no standard stream.
const FIRST_FREE: i32 = 3;

/// Redirects standard output and standard error to `/dev/null`, so that their readers see the end.
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

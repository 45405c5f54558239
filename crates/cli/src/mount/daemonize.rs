//! A mount in the background: the command forks, and waits until the new process is ready or reports an error. Called by
//! the verb, on both sides.

use std::io::{Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;

use anyhow::{Context, anyhow, bail};
use ferrofs_fuse::attach::{ChildProcess, fork_process};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{Mode, OFlags};
use rustix::process::Signal;

use crate::exit_status::CommandStatus;
use crate::output;

/// The first byte of the answer "ready"; nothing follows.
const READY: u8 = b'R';
/// The first byte of the answer "failed"; the exit status and the text follow.
const FAILED: u8 = b'F';

/// What the process in which [`start`] returns has to do.
#[derive(Debug)]
pub(super) enum ForkedProcess {
    /// Nothing but to exit: it is the starter, whose daemon is ready or has failed, or a daemon that cannot start.
    Done(CommandStatus),
    /// To serve: it is the daemon.
    Daemon(ReadyNotifier),
}

/// Starts the background process, which goes on from here, and waits for its answer.
///
/// # Errors
/// It could not be started, or did not answer.
pub(super) fn start() -> anyhow::Result<ForkedProcess> {
    let (socket, theirs) = UnixStream::pair().context("cannot create a socket pair")?;
    let forked = fork_process().map_err(|error| {
        anyhow!("cannot start the background process: {error}; --foreground works without it")
    })?;
    // Each process closes the end of the other one, which would hide that the other one has ended.
    if let Some(daemon) = forked {
        drop(theirs);
        return wait_for(socket, daemon).map(ForkedProcess::Done);
    }
    drop(socket);
    let notifier = ReadyNotifier(theirs);
    if let Err(error) = notifier.detach() {
        notifier.failed(CommandStatus::Failure, &format!("{error:#}"));
        return Ok(ForkedProcess::Done(CommandStatus::Failure));
    }
    Ok(ForkedProcess::Daemon(notifier))
}

fn wait_for(mut socket: UnixStream, daemon: ChildProcess) -> anyhow::Result<CommandStatus> {
    let mut first = [0];
    // A failed read counts as no answer.
    match socket.read(&mut first).unwrap_or(0) {
        1 if first == [READY] => Ok(CommandStatus::Success),
        1 if first == [FAILED] => Ok(failed(socket, daemon)),
        _ => {
            let end = daemon.wait().context("cannot wait for the daemon")?;
            Err(anyhow!("the daemon ended before the mount was ready: {end}"))
        }
    }
}

fn failed(mut socket: UnixStream, daemon: ChildProcess) -> CommandStatus {
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

/// The socket to the process that waits until this one is ready.
#[derive(Debug)]
pub(super) struct ReadyNotifier(UnixStream);

impl ReadyNotifier {
    /// From here on the daemon ends with the starter, and its standard input is `/dev/null`.
    ///
    /// # Errors
    /// The starter has ended, or the system refuses.
    fn detach(&self) -> anyhow::Result<()> {
        // If the starter is killed while this process hangs, the mount is not wanted any more.
        rustix::process::set_parent_process_death_signal(Some(Signal::TERM)).context("prctl")?;
        rustix::stdio::dup2_stdin(null()?).context("standard input")?;
        // It may have been killed before that.
        if has_hung_up(self.descriptor()).context("poll")? {
            bail!("the process that started the mount has ended");
        }
        Ok(())
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

    /// Whether the starter still waits for a report.
    pub(super) fn is_awaited(&self) -> bool {
        has_hung_up(self.descriptor()).is_ok_and(|has_ended| !has_ended)
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
fn has_hung_up(socket: BorrowedFd<'_>) -> rustix::io::Result<bool> {
    let mut polled = [PollFd::from_borrowed_fd(socket, PollFlags::empty())];
    poll(&mut polled, Some(&Timespec::default()))?;
    Ok(polled.iter().any(|polled| polled.revents().contains(PollFlags::HUP)))
}

/// Redirects standard output and standard error to `/dev/null`, so that their readers see the end. Also called by
/// `user_mounts`.
///
/// # Errors
/// There is no `/dev/null`.
pub(crate) fn close_streams() -> anyhow::Result<()> {
    let null = null()?;
    rustix::stdio::dup2_stdout(&null).context("standard output")?;
    rustix::stdio::dup2_stderr(&null).context("standard error")?;
    Ok(())
}

fn null() -> anyhow::Result<OwnedFd> {
    let flags = OFlags::RDWR | OFlags::CLOEXEC;
    rustix::fs::open("/dev/null", flags, Mode::empty()).context("/dev/null")
}

//! The server of the holder that hands a mount over, as the process sees it that takes the mount over: if that holder is
//! killed in between, this process holds the mount as soon as the server has ended (docs/survival.md, R5). Used by
//! `handover` and `holder`.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};

/// A process that serves for another holder.
#[derive(Debug)]
pub(super) struct FormerServer {
    process: OwnedFd,
}

impl FormerServer {
    /// The process with the number in `text`, if it is a child of `holder`. `None` for a holder that tells no number, and
    /// for one in another PID namespace.
    pub(super) fn open(text: &str, holder: i32) -> Option<Self> {
        let number = i32::try_from(text.parse::<u32>().ok()?).ok()?;
        let process = pidfd_open(Pid::from_raw(number)?, PidfdFlags::empty()).ok()?;
        let server = Self { process };
        // In this order: as long as that process has not ended, no other one has its number.
        (holder > 0 && parent_of(number) == Some(holder) && !server.has_ended()).then_some(server)
    }

    /// Whether it has ended, with its threads and descriptors.
    pub(super) fn has_ended(&self) -> bool {
        let mut polled = [PollFd::from_borrowed_fd(self.as_fd(), PollFlags::IN)];
        poll(&mut polled, Some(&Timespec::default())).is_ok_and(|ready| ready > 0)
    }
}

impl AsFd for FormerServer {
    /// It becomes readable when the process ends.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.process.as_fd()
    }
}

fn parent_of(process: i32) -> Option<i32> {
    let line = std::fs::read(format!("/proc/{process}/stat")).ok()?;
    // The name of the program, in parentheses, may have any byte.
    let end = line.iter().rposition(|byte| *byte == b')')?;
    let fields = std::str::from_utf8(line.get(end..)?).ok()?;
    fields.split(' ').nth(2)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn the_end_of_a_child_of_the_holder_is_seen() {
        let own = rustix::process::getpid().as_raw_pid();
        let mut child = Command::new("sleep").arg("600").spawn().unwrap();
        let number = child.id().to_string();
        let server = FormerServer::open(&number, own).unwrap();
        assert!(!server.has_ended());
        for (text, holder) in [("", own), ("0", own), ("-1", own), (&number, 0), (&number, 1)] {
            assert!(FormerServer::open(text, holder).is_none(), "{text} {holder}");
        }
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(server.has_ended());
        assert!(FormerServer::open(&number, own).is_none());
    }
}

//! The session of a mount that several processes serve one after the other (docs/survival.md): what a successor does with
//! the requests of its predecessor before its listeners run; and fault points, places in the take-over of a mount at which a
//! test lets the process die. A build without debug assertions has none. The variable `FERROFS_FAULT` is a list of
//! `POINT:FIRST-LAST`: servers with these numbers, counted from 1, are killed at the point. Called by `session` and `attach`.

use std::fmt;
use std::sync::Arc;

use rustix::io::Errno;

use super::SessionEvent;
use super::state::{Continued, EventCallback, SessionStart};
use crate::journal::{RequestJournal, ServerEnd, Takeover};
use crate::reply::{Channel, notification};

/// The place of this process in the row of those that serve a mount.
#[derive(Clone)]
pub struct Succession {
    /// The requests in flight, in memory that all of them share.
    pub journal: Arc<RequestJournal>,
    /// How the process before this one ended; `None` for the first one.
    pub predecessor: Option<ServerEnd>,
    /// The number of this process, from 1 on.
    pub server: u64,
}

impl fmt::Debug for Succession {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Succession")
            .field("predecessor", &self.predecessor)
            .field("server", &self.server)
            .finish_non_exhaustive()
    }
}

impl Succession {
    /// Steps S2 to S4.
    pub(super) fn continue_with(
        self,
        channels: &[Channel],
        can_resend: bool,
        on_event: &EventCallback,
    ) -> Continued {
        let Self { journal, predecessor, server } = self;
        let mut start = SessionStart::Whole;
        let mut newly_banned = Vec::new();
        journal.claim(server);
        if let Some(end) = predecessor {
            fault_point("examine", server);
            let takeover = journal.examine(server.saturating_sub(1), end);
            fault_point("examined", server);
            let are_resent =
                can_resend && !is_resend_masked() && resend(&journal, &takeover, channels, server);
            if !are_resent {
                fail(&journal, &takeover, channels);
            }
            fault_point("resent", server);
            if takeover.needs_trial && are_resent {
                start = SessionStart::Trial;
            }
            let in_flight = takeover.in_flight.len();
            on_event(&SessionEvent::TookOver { in_flight, are_resent });
            newly_banned = takeover.newly_banned;
        }
        journal.begin_reading(server);
        let (banned, suspected) = (journal.banned(), journal.suspected());
        Continued { banned, newly_banned, suspected, journal, start }
    }
}

/// Lets the kernel send again all requests that were read and not answered. Returns whether it does.
fn resend(
    journal: &RequestJournal,
    takeover: &Takeover,
    channels: &[Channel],
    server: u64,
) -> bool {
    // Not before: if this process dies in between, its successor asks again, and an empty journal only means that a death
    // is not counted.
    for request in &takeover.in_flight {
        journal.forget(request.slot, request.unique);
    }
    fault_point("forgotten", server);
    let Some(channel) = channels.first() else { return false };
    match channel.notify(notification::RESEND, &[]) {
        // The mount is gone: the listeners see that.
        Ok(()) | Err(Errno::NODEV) => true,
        Err(_) => {
            fail(journal, takeover, channels);
            false
        }
    }
}

/// Answers `EIO` to what was in flight. A request that has had its reply is unknown to the kernel.
fn fail(journal: &RequestJournal, takeover: &Takeover, channels: &[Channel]) {
    for request in &takeover.in_flight {
        if let Some(channel) = channels.get(request.slot).or(channels.first()) {
            channel.reply(request.unique, Some(Errno::IO), &[]).ok();
        }
        journal.forget(request.slot, request.unique);
    }
}

/// Kills this process if the test asks for it. `server` is the number of the server.
#[inline]
pub fn fault_point(point: &str, server: u64) {
    #[cfg(debug_assertions)]
    if is_asked_for(&std::env::var("FERROFS_FAULT").unwrap_or_default(), point, server) {
        let own = rustix::process::getpid();
        // The filter of the sandbox may forbid it; then the process aborts.
        rustix::process::kill_process(own, rustix::process::Signal::KILL).ok();
        std::process::abort();
    }
    #[cfg(not(debug_assertions))]
    let (_point, _server) = (point, server);
}

/// Whether tests ask that the kernel's offer to resend requests is ignored (`FERROFS_NO_RESEND`).
#[must_use]
pub(crate) fn is_resend_masked() -> bool {
    cfg!(debug_assertions) && std::env::var_os("FERROFS_NO_RESEND").is_some()
}

/// Whether this program has another version of the record (`FERROFS_OTHER_VERSION`).
#[must_use]
pub(crate) fn is_another_version() -> bool {
    cfg!(debug_assertions) && std::env::var_os("FERROFS_OTHER_VERSION").is_some()
}

#[cfg(debug_assertions)]
fn is_asked_for(list: &str, point: &str, server: u64) -> bool {
    list.split(',').filter_map(|word| word.split_once(':')).any(|(name, range)| {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let number = |text: &str| text.parse::<u64>().ok();
        let is_in =
            number(first).zip(number(last)).map(|(first, last)| (first..=last).contains(&server));
        name == point && is_in == Some(true)
    })
}

#[cfg(all(test, debug_assertions, not(loom)))]
mod tests {
    use super::is_asked_for;

    #[test]
    fn a_range_of_servers_dies_at_a_point() {
        for (server, dies) in [(1, false), (2, true), (4, true), (5, false)] {
            assert_eq!(is_asked_for("other:1,resent:2-4", "resent", server), dies, "{server}");
        }
        assert!(is_asked_for("ready:1", "ready", 1) && !is_asked_for("ready", "ready", 1));
    }
}

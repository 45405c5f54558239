//! The session of a mount that several processes serve one after the other (docs/survival.md): what a successor does with
//! the requests of its predecessor before its listeners run. Called by `session`.

use std::fmt;
use std::sync::Arc;

use rustix::io::Errno;

use super::state::{Continued, EventCallback, SessionStart};
use crate::channel::Channel;
use crate::event::SessionEvent;
use crate::fault::{fault_point, is_resend_masked};
use crate::journal::{RequestJournal, ServerEnd, Takeover};
use crate::wire::notification;

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
            for node in takeover.newly_banned {
                on_event(&SessionEvent::Banned { node });
            }
        }
        journal.begin_reading(server);
        Continued { banned: journal.banned(), suspected: journal.suspected(), journal, start }
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

//! Looks after requests that hang, most likely because the source of the image does: whoever is being killed while
//! it waits is let go, requests over the time limit fail, and while every listener is at something there is one
//! more, so that the kernel always finds an ear. Called by `session`.

use std::sync::Arc;
use std::time::Duration;

use rustix::io::Errno;

use crate::event::SessionEvent;
use crate::fatal::has_pending_sigkill;
use crate::request_slot::{InFlightRequest, RequestSlot};
use crate::session::SessionState;

/// How many listeners may be started beside those that always are.
pub(crate) const MAX_SPARE_LISTENERS: usize = 64;
/// How often it looks: two short awakenings a second cost nothing that could be measured.
const SCAN_PERIOD: Duration = Duration::from_millis(500);
/// How long every listener may be busy, in milliseconds.
const BUSY_MS: u64 = 250;
/// How long whoever is being killed waits, in milliseconds; a decoder that is at work is done by then.
const KILL_GRACE_MS: u64 = 500;
/// The same where it cannot be known whether a signal kills.
const UNKNOWN_GRACE_MS: u64 = 2_000;

pub(crate) struct RequestWatchdog {
    shared: Arc<SessionState>,
    limit_ms: Option<u64>,
}

impl RequestWatchdog {
    pub(crate) fn new(shared: Arc<SessionState>, limit: Option<Duration>) -> Self {
        let limit_ms = limit.map(|limit| u64::try_from(limit.as_millis()).unwrap_or(u64::MAX));
        Self { shared, limit_ms }
    }

    pub(crate) fn run(self) {
        while !self.shared.wait_for_end(SCAN_PERIOD) {
            self.scan();
        }
    }

    fn scan(&self) {
        let now = self.shared.now_ms();
        let mut hanging = 0_usize;
        for (index, slot) in self.shared.slots.iter().enumerate() {
            let Some(in_flight) = slot.in_flight() else { continue };
            hanging += usize::from(now.saturating_sub(in_flight.since_ms) > BUSY_MS);
            if !in_flight.is_answered {
                self.check(index, slot, &in_flight, now);
            }
        }
        if self.shared.idle.count() == 0 {
            // As many as there are hang soon where one source does; fewer would have readers wait for another look.
            (0..hanging).for_each(|_| self.shared.start_spare_listener());
        }
    }

    fn check(&self, index: usize, slot: &RequestSlot, in_flight: &InFlightRequest, now: u64) {
        let waited = now.saturating_sub(in_flight.since_ms);
        let after = Duration::from_millis(waited);
        if self.limit_ms.is_some_and(|limit| waited >= limit) {
            if self.reply(index, slot, in_flight.unique, Errno::IO) {
                self.shared.report_event(&SessionEvent::TimedOut { pid: in_flight.pid, after });
            }
        } else if should_interrupt(in_flight, now)
            && self.reply(index, slot, in_flight.unique, Errno::INTR)
        {
            self.shared.report_event(&SessionEvent::Interrupted { pid: in_flight.pid, after });
        }
    }

    /// Whether it was we who answered.
    fn reply(&self, index: usize, slot: &RequestSlot, unique: u64, errno: Errno) -> bool {
        let Some((channel, _)) = self.shared.channel_and_slot(index) else { return false };
        slot.claim(unique) && channel.reply(unique, Some(errno), &[]).is_ok()
    }
}

fn should_interrupt(in_flight: &InFlightRequest, now: u64) -> bool {
    let Some(since) = in_flight.interrupted_since_ms else { return false };
    let waited = now.saturating_sub(since);
    waited >= KILL_GRACE_MS
        && match has_pending_sigkill(in_flight.pid) {
            Some(killed) => killed,
            None => waited >= UNKNOWN_GRACE_MS,
        }
}

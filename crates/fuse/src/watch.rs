//! Looks after requests that hang, most likely because the source of the image does: whoever is being killed while
//! it waits is let go, requests over the time limit fail, and while every listener is at something there is one
//! more, so that the kernel always finds an ear. Called by `session`.

use std::sync::Arc;
use std::time::Duration;

use rustix::io::Errno;

use crate::event::Event;
use crate::fatal::is_being_killed;
use crate::session::Shared;
use crate::slot::{Flight, Slot};

/// How many listeners may be started beside those that always are.
pub(crate) const MAX_SPARES: usize = 64;
/// How often it looks: two short awakenings a second cost nothing that could be measured.
const PERIOD: Duration = Duration::from_millis(500);
/// How long every listener may be busy, in milliseconds.
const BUSY_MS: u64 = 250;
/// How long whoever is being killed waits, in milliseconds; a decoder that is at work is done by then.
const GRACE_MS: u64 = 500;
/// The same where it cannot be known whether a signal kills.
const BLIND_GRACE_MS: u64 = 2_000;

pub(crate) struct Watch {
    shared: Arc<Shared>,
    limit_ms: Option<u64>,
}

impl Watch {
    pub(crate) fn new(shared: Arc<Shared>, limit: Option<Duration>) -> Self {
        let limit_ms = limit.map(|limit| u64::try_from(limit.as_millis()).unwrap_or(u64::MAX));
        Self { shared, limit_ms }
    }

    pub(crate) fn run(self) {
        while !self.shared.wait_for_end(PERIOD) {
            self.look();
        }
    }

    fn look(&self) {
        let now = self.shared.now();
        let mut hanging = 0_usize;
        for (place, slot) in self.shared.slots.iter().enumerate() {
            let Some(flight) = slot.flight() else { continue };
            hanging += usize::from(now.saturating_sub(flight.since) > BUSY_MS);
            if !flight.is_answered {
                self.judge(place, slot, &flight, now);
            }
        }
        if self.shared.free.count() == 0 {
            // As many as there are hang soon where one source does; fewer would have readers wait for another look.
            (0..hanging).for_each(|_| self.shared.listen_more());
        }
    }

    fn judge(&self, place: usize, slot: &Slot, flight: &Flight, now: u64) {
        let waited = now.saturating_sub(flight.since);
        let after = Duration::from_millis(waited);
        if self.limit_ms.is_some_and(|limit| waited >= limit) {
            if self.answer(place, slot, flight.unique, Errno::IO) {
                self.shared.tell(&Event::TimedOut { pid: flight.pid, after });
            }
        } else if is_let_go(flight, now) && self.answer(place, slot, flight.unique, Errno::INTR) {
            self.shared.tell(&Event::LetGo { pid: flight.pid, after });
        }
    }

    /// Whether it was we who answered.
    fn answer(&self, place: usize, slot: &Slot, unique: u64, errno: Errno) -> bool {
        let Some((channel, _)) = self.shared.place(place) else { return false };
        slot.claim(unique) && channel.reply(unique, Some(errno), &[]).is_ok()
    }
}

fn is_let_go(flight: &Flight, now: u64) -> bool {
    let Some(since) = flight.interrupted_since else { return false };
    let waited = now.saturating_sub(since);
    waited >= GRACE_MS
        && match is_being_killed(flight.pid) {
            Some(killed) => killed,
            None => waited >= BLIND_GRACE_MS,
        }
}

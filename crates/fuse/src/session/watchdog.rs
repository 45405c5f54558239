//! The thread that looks for requests that hang, most likely because the storage of the image does. It replies `EINTR`
//! to callers that are being killed and `EIO` to requests over the time limit. While all listeners are busy it starts
//! spare ones, and when none is left it reads requests itself, which get `EIO`. A listener starts it when there is a request,
//! and it ends when there was none for some time.

use std::sync::Arc;
use std::time::Duration;

use rustix::io::Errno;

use super::SessionEvent;
use super::listener::Listener;
use super::state::{SessionState, SpareListeners, lock};
use crate::init::REQUEST_BYTES;
use crate::reply::Channel;
use crate::request::{IncomingMessage, MalformedRequest, Request};
use crate::request_slot::{InFlightRequest, RequestSlot};

/// How often it scans the slots while there are requests.
const SCAN_PERIOD: Duration = Duration::from_millis(500);
/// How long a request takes before its listener counts as busy, in milliseconds.
const BUSY_MS: u64 = 250;
/// How long a caller that is being killed waits for a reply, in milliseconds; a running decoder is done by then.
const KILL_GRACE_MS: u64 = 500;
/// The same where it is unknown whether the caller's signal is fatal.
const UNKNOWN_GRACE_MS: u64 = 2_000;

/// Requests that one scan refuses. A program that goes on after an error makes the next one at once.
const REFUSED_MAX: usize = 4096;

/// The bit of `SIGKILL` in a mask of signals. The kernel sets it for every signal that ends a process.
const SIGKILL_BIT: u64 = 1 << 8;

/// Whether a scan found requests in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RequestsFound {
    None,
    Some,
}

pub(super) struct RequestWatchdog {
    state: Arc<SessionState>,
    limit_ms: Option<u64>,
}

impl RequestWatchdog {
    pub(super) fn new(state: Arc<SessionState>) -> Self {
        let milliseconds = |limit: Duration| u64::try_from(limit.as_millis()).unwrap_or(u64::MAX);
        let limit_ms = state.time_limit.map(milliseconds);
        Self { state, limit_ms }
    }

    /// Scans while there are requests. After a scan that finds none it sleeps until there is one, or ends.
    pub(super) fn run(self) {
        let mut found = RequestsFound::Some;
        loop {
            if found == RequestsFound::None && !self.state.wait_for_request() {
                return;
            }
            if self.state.wait_for_end(SCAN_PERIOD) {
                return;
            }
            found = self.scan();
        }
    }

    fn scan(&self) -> RequestsFound {
        let now_ms = self.state.now_ms();
        let mut hanging = 0_usize;
        let mut found = RequestsFound::None;
        for (index, slot) in self.state.slots.iter().enumerate() {
            let Some(request) = slot.in_flight() else { continue };
            found = RequestsFound::Some;
            hanging += usize::from(now_ms.saturating_sub(request.since_ms) > BUSY_MS);
            if !request.is_answered {
                self.check(index, slot, &request, now_ms);
            }
        }
        let mut spares = SpareListeners::Possible;
        if !self.state.has_idle_listener() {
            // One for each request that hangs: the next requests will soon hang on the same storage, and with fewer
            // listeners callers would wait for another scan.
            for _ in 0..hanging {
                spares = self.start_spare_listener();
                if spares != SpareListeners::Possible {
                    break;
                }
            }
        }
        if spares == SpareListeners::Refused || hanging == self.state.slots.len() {
            self.interrupt_killed(now_ms);
            self.state.if_all_overdue(spares, |channel, are_all_overdue| {
                self.refuse_waiting(channel, hanging, are_all_overdue);
            });
        }
        found
    }

    /// R8: replies `EIO` to the requests that no listener will read, as long as it lasts that all of them hang.
    fn refuse_waiting(
        &self,
        channel: &Channel,
        hanging: usize,
        are_all_overdue: &dyn Fn() -> bool,
    ) {
        let mut buffer = vec![0; REQUEST_BYTES];
        let mut refused = 0_usize;
        while refused < REFUSED_MAX && are_all_overdue() && channel.is_ready() {
            let length = match channel.receive(&mut buffer) {
                Err(Errno::INTR | Errno::AGAIN | Errno::NOENT) => continue,
                Ok(0) | Err(Errno::NODEV) => {
                    self.state.mark_unmounted();
                    break;
                }
                Ok(length) => length,
                Err(_) => break,
            };
            match IncomingMessage::parse(buffer.get(..length).unwrap_or_default()) {
                Ok(IncomingMessage::NoReply) => {}
                Ok(IncomingMessage::ImmediateReply { unique, errno }) => {
                    channel.reply(unique, errno, &[]).ok();
                }
                Ok(IncomingMessage::Interrupt { unique, of }) => self.state.interrupt(unique, of),
                Ok(IncomingMessage::Request(Request { unique, .. }))
                | Err(MalformedRequest { unique }) => {
                    channel.reply(unique, Some(Errno::IO), &[]).ok();
                    refused += 1;
                }
            }
        }
        if refused > 0 {
            self.state.report_event(&SessionEvent::Refused { requests: refused, hanging });
        }
    }

    fn check(&self, index: usize, slot: &RequestSlot, request: &InFlightRequest, now_ms: u64) {
        let waited = now_ms.saturating_sub(request.since_ms);
        let (pid, after) = (request.pid, Duration::from_millis(waited));
        if self.limit_ms.is_some_and(|limit| waited >= limit) {
            if self.reply(index, slot, request.unique, Errno::IO) {
                self.state.report_event(&SessionEvent::TimedOut { pid, after });
            }
        } else if should_interrupt(request, now_ms)
            && self.reply(index, slot, request.unique, Errno::INTR)
        {
            self.state.report_event(&SessionEvent::Interrupted { pid, after });
        }
    }

    /// R5: while all listeners hang, nobody reads interrupts, so the callers themselves are looked at.
    fn interrupt_killed(&self, now_ms: u64) {
        for (index, slot) in self.state.slots.iter().enumerate() {
            let Some(request) = slot.in_flight().filter(|request| !request.is_answered) else {
                continue;
            };
            let waited = now_ms.saturating_sub(request.since_ms);
            if waited >= KILL_GRACE_MS
                && has_pending_sigkill(request.pid) == Some(true)
                && self.reply(index, slot, request.unique, Errno::INTR)
            {
                let after = Duration::from_millis(waited);
                self.state.report_event(&SessionEvent::Interrupted { pid: request.pid, after });
            }
        }
    }

    /// Returns whether it was the watchdog that replied.
    fn reply(&self, index: usize, slot: &RequestSlot, unique: u64, errno: Errno) -> bool {
        let Some((channel, _)) = self.state.channel_and_slot(index) else { return false };
        slot.claim(unique) && channel.reply(unique, Some(errno), &[]).is_ok()
    }

    /// Starts one more listener, if there is an unused slot.
    fn start_spare_listener(&self) -> SpareListeners {
        let Some(index) = lock(&self.state.unused_slots).pop() else { return SpareListeners::All };
        let listener = Listener { state: Arc::clone(&self.state), index, is_spare: true };
        match self.state.spawn_spare(listener.thread_name(), Box::new(move || listener.run())) {
            Ok(thread) => {
                let mut spares = lock(&self.state.spares);
                spares.retain(|spare| !spare.is_finished());
                spares.push(thread);
                let listeners = self.state.listeners().saturating_add(spares.len());
                drop(spares);
                self.state.report_event(&SessionEvent::SpareListenerStarted { listeners });
                SpareListeners::Possible
            }
            Err(_) => {
                lock(&self.state.unused_slots).push(index);
                SpareListeners::Refused
            }
        }
    }
}

fn should_interrupt(request: &InFlightRequest, now_ms: u64) -> bool {
    let Some(since_ms) = request.interrupted_since_ms else { return false };
    let waited = now_ms.saturating_sub(since_ms);
    // Programs do not expect a read of a file to fail because of a signal that they handle.
    waited >= KILL_GRACE_MS
        && match has_pending_sigkill(request.pid) {
            Some(is_pending) => is_pending,
            None => waited >= UNKNOWN_GRACE_MS,
        }
}

/// Whether a fatal signal of the thread is pending. `None` if that is unknown: the thread is in another PID namespace,
/// or `/proc` does not show it.
fn has_pending_sigkill(thread: u32) -> Option<bool> {
    if thread == 0 {
        return None;
    }
    let status = std::fs::read_to_string(format!("/proc/{thread}/status")).ok()?;
    has_sigkill(&status)
}

fn has_sigkill(status: &str) -> Option<bool> {
    let [own, shared] = ["SigPnd:", "ShdPnd:"].map(|field| signal_mask(status, field));
    Some((own? | shared?) & SIGKILL_BIT != 0)
}

fn signal_mask(status: &str, field: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix(field))?;
    u64::from_str_radix(line.trim(), 16).ok()
}

#[cfg(test)]
mod tests {
    use super::{has_pending_sigkill, has_sigkill};

    #[test]
    fn only_sigkill_is_fatal() {
        let status =
            |own: &str, shared: &str| format!("Name:\tcat\nSigPnd:\t{own}\nShdPnd:\t{shared}\n");
        assert_eq!(has_sigkill(&status("0000000000000000", "0000000000004000")), Some(false));
        assert_eq!(has_sigkill(&status("0000000000000100", "0000000000000000")), Some(true));
        assert_eq!(has_sigkill(&status("0000000000000000", "0000000000000102")), Some(true));
        assert_eq!(has_sigkill("Name:\tcat\n"), None);
    }

    #[test]
    fn a_thread_of_another_namespace_is_unknown() {
        assert_eq!(has_pending_sigkill(0), None);
        assert_eq!(has_pending_sigkill(std::process::id()), Some(false));
    }
}

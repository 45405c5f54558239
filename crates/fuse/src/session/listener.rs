//! A thread that reads requests from its channel and passes them to the file system, one at a time. Started by
//! `session`, and by the watchdog for spare listeners.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Instant;

use rustix::io::Errno;

use super::SessionEvent;
use super::busy_poll::BusyPoll;
use super::growth::RequestTimes;
use super::start_watchdog;
use super::state::{SessionState, lock, spawn_thread};
use crate::init::REQUEST_BYTES;
use crate::journal::{JournalSlot, RESENT};
use crate::reply::{Channel, Reply};
use crate::request::{InHeader, IncomingMessage, MalformedRequest, Request, read_prefix};
use crate::request_slot::RequestSlot;

/// A listener thread.
pub(super) struct Listener {
    pub(super) state: Arc<SessionState>,
    /// Index of its channel and of its slot.
    pub(super) index: usize,
    /// Whether it ends once another listener is idle.
    pub(super) is_spare: bool,
}

/// Where a listener reads requests to.
enum RequestBuffer<'a> {
    Own(Vec<u8>),
    Journal(JournalSlot<'a>),
}

impl<'a> RequestBuffer<'a> {
    fn of(state: &'a SessionState, index: usize) -> Self {
        match state.journal_slot(index) {
            None => Self::Own(vec![0; REQUEST_BYTES]),
            Some(mut slot) => {
                slot.prefault();
                Self::Journal(slot)
            }
        }
    }

    fn bytes(&self) -> &[u8] {
        match self {
            Self::Own(bytes) => bytes,
            Self::Journal(slot) => slot.bytes(),
        }
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        match self {
            Self::Own(bytes) => bytes,
            Self::Journal(slot) => slot.bytes_mut(),
        }
    }

    /// The message that was read last is handled.
    fn finish(&self) {
        if let Self::Journal(slot) = self
            && let Some((header, _)) = read_prefix::<InHeader>(slot.bytes())
        {
            slot.finish(header.unique);
        }
    }

    /// Whether the message that was read last is a request that the kernel sent for the first time.
    fn has_new_request(&self) -> bool {
        matches!(
            IncomingMessage::parse(self.bytes()),
            Ok(IncomingMessage::Request(request)) if request.unique & RESENT == 0
        )
    }
}

/// What a listener knows about the messages that it has read.
#[derive(Default)]
struct ListenerHistory {
    requests: RequestTimes,
    waits: BusyPoll,
}

/// Messages of a trial: more than requests can be in flight.
const TRIAL_MESSAGES_MAX: usize = 4096;

/// Whether a listener reads another request.
#[derive(PartialEq, Eq)]
enum ListenerAction {
    Continue,
    End,
}

impl Listener {
    pub(super) fn thread_name(&self) -> String {
        format!("fuse-{}", self.index)
    }

    /// Serves until the file system is unmounted.
    pub(super) fn run(self) {
        let is_first = self.index == 0;
        if !self.state.wait_for_start(is_first || self.is_spare) {
            return;
        }
        let Some((channel, slot)) = self.state.channel_and_slot(self.index) else { return };
        // A listener that ended here would leave requests that nobody reads.
        let file_system = &self.state.file_system;
        if catch_unwind(AssertUnwindSafe(|| file_system.listener_started())).is_err() {
            self.state.report_event(&SessionEvent::ListenerStartPanicked);
        }
        let mut buffer = RequestBuffer::of(&self.state, self.index);
        let mut history = ListenerHistory::default();
        if is_first && self.state.is_in_trial() {
            self.run_trial(channel, slot, &mut buffer, &mut history);
        }
        while self.serve(channel, slot, &mut buffer, &mut history) == ListenerAction::Continue {}
        // The next listener with this index gets its slot in the journal.
        drop(buffer);
        if self.is_spare {
            lock(&self.state.unused_slots).push(self.index);
        }
    }

    /// Handles resent requests, which the kernel sends first, one after the other. Then the other listeners start.
    fn run_trial(
        &self,
        channel: &Channel,
        slot: &RequestSlot,
        buffer: &mut RequestBuffer<'_>,
        history: &mut ListenerHistory,
    ) {
        for _ in 0..TRIAL_MESSAGES_MAX {
            let is_over = !channel.is_ready()
                || self.serve(channel, slot, buffer, history) == ListenerAction::End
                || buffer.has_new_request();
            if is_over {
                break;
            }
        }
        self.state.end_trial();
    }

    fn serve(
        &self,
        channel: &Channel,
        slot: &RequestSlot,
        buffer: &mut RequestBuffer<'_>,
        history: &mut ListenerHistory,
    ) -> ListenerAction {
        slot.begin_wait();
        let began = Instant::now();
        let permit = &self.state.poll_permit;
        let polled = history.waits.poll(permit, || channel.is_ready());
        let received = channel.receive(buffer.bytes_mut());
        history.waits.record(permit, polled, began.elapsed());
        slot.end_wait();
        let length = match received {
            Err(Errno::INTR | Errno::AGAIN | Errno::NOENT) => return ListenerAction::Continue,
            Ok(0) | Err(Errno::NODEV) => {
                self.state.mark_unmounted();
                return ListenerAction::End;
            }
            Ok(length) => length,
            Err(errno) => {
                self.state.report_event(&SessionEvent::DeviceFailed { errno });
                return ListenerAction::End;
            }
        };
        let request = buffer.bytes().get(..length).unwrap_or_default();
        match IncomingMessage::parse(request) {
            Ok(IncomingMessage::Request(banned)) if self.state.is_banned(request) => {
                channel.reply(banned.unique, Some(Errno::IO), &[]).ok();
            }
            Ok(IncomingMessage::NoReply) => {}
            Ok(IncomingMessage::ImmediateReply { unique, errno }) => {
                channel.reply(unique, errno, &[]).ok();
            }
            Ok(IncomingMessage::Interrupt { unique, of }) => self.state.interrupt(unique, of),
            Ok(IncomingMessage::Request(request)) => {
                history.waits.record_caller(request.pid);
                self.add_listener(self.state.added.most_before_request());
                let received_at = self.handle(channel, slot, &request);
                let taken = received_at.elapsed();
                self.state.pass_overdue(taken);
                self.state.acquit(buffer.bytes().get(..length).unwrap_or_default());
                self.add_listener(
                    self.state.added.most_after_request(&mut history.requests, taken),
                );
            }
            Err(MalformedRequest { unique }) => {
                self.state.report_event(&SessionEvent::MalformedRequest);
                channel.reply(unique, Some(Errno::IO), &[]).ok();
            }
        }
        buffer.finish();
        if self.is_spare && self.state.has_idle_listener() {
            ListenerAction::End
        } else {
            ListenerAction::Continue
        }
    }

    /// Starts another listener, unless one is idle or there are `most`.
    fn add_listener(&self, most: usize) {
        let state = &self.state;
        if most == 0 || state.has_idle_listener() || !state.added.reserve(state.listeners(), most) {
            return;
        }
        let Some(index) = lock(&state.unused_slots).pop() else { return state.added.give_back() };
        let listener = Self { state: Arc::clone(state), index, is_spare: false };
        match spawn_thread(listener.thread_name(), Box::new(move || listener.run())) {
            Ok(thread) => lock(&state.spares).push(thread),
            Err(_) => {
                lock(&state.unused_slots).push(index);
                state.added.give_back();
            }
        }
    }

    /// Returns when the request was received.
    fn handle(&self, channel: &Channel, slot: &RequestSlot, request: &Request<'_>) -> Instant {
        let received_at = Instant::now();
        slot.begin(request.unique, request.pid, self.state.millis_at(received_at));
        if self.state.wake_watchdog() {
            start_watchdog(&self.state);
        }
        let reply = Reply::new(channel, slot, request.unique, received_at);
        let file_system = &self.state.file_system;
        // A panic drops the reply, which then sends EIO.
        let handled = catch_unwind(AssertUnwindSafe(|| file_system.handle(request, reply)));
        slot.end(request.unique);
        if handled.is_err() {
            self.state.report_event(&SessionEvent::Panicked { node: request.node });
        }
        received_at
    }
}

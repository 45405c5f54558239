//! A thread that takes requests from the kernel and has them answered, one at a time. Called by `session`, and by
//! `watchdog` for spare ones.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Instant;

use rustix::io::Errno;

use crate::channel::Channel;
use crate::event::SessionEvent;
use crate::negotiate::REQUEST_BYTES;
use crate::operation::{IncomingMessage, MalformedRequest, Request};
use crate::reply::Reply;
use crate::request_slot::RequestSlot;
use crate::session::SessionState;

/// What a listener needs.
pub(crate) struct Listener {
    pub(crate) shared: Arc<SessionState>,
    /// Which channel and which slot are its own.
    pub(crate) index: usize,
    /// Whether it ends once others are free again.
    pub(crate) is_spare: bool,
}

/// Whether to go on.
#[derive(PartialEq, Eq)]
enum ListenerAction {
    Listen,
    End,
}

impl Listener {
    /// Serves until the mount is gone.
    pub(crate) fn run(self) {
        let Some((channel, slot)) = self.shared.channel_and_slot(self.index) else { return };
        self.shared.file_system.listener_started();
        let mut buffer = vec![0; REQUEST_BYTES];
        while self.serve(channel, slot, &mut buffer) == ListenerAction::Listen {}
        self.shared.listener_ended(self.index, self.is_spare);
    }

    fn serve(&self, channel: &Channel, slot: &RequestSlot, buffer: &mut [u8]) -> ListenerAction {
        self.shared.idle.enter();
        let received = channel.receive(buffer);
        let still_idle = self.shared.idle.leave();
        let length = match received {
            Err(Errno::INTR | Errno::AGAIN | Errno::NOENT) => return ListenerAction::Listen,
            Ok(0) | Err(Errno::NODEV) => {
                self.shared.mark_unmounted();
                return ListenerAction::End;
            }
            Ok(length) => length,
            Err(errno) => {
                self.shared.report_event(&SessionEvent::DeviceFailed { errno });
                return ListenerAction::End;
            }
        };
        let request = buffer.get(..length).unwrap_or_default();
        match IncomingMessage::parse(request) {
            Ok(IncomingMessage::NoReply) => {}
            Ok(IncomingMessage::ImmediateReply { unique, errno }) => {
                channel.reply(unique, errno, &[]).ok();
            }
            Ok(IncomingMessage::Interrupt { unique, of }) => self.shared.interrupt(unique, of),
            Ok(IncomingMessage::Request(request)) => self.handle(channel, slot, &request),
            Err(MalformedRequest { unique }) => {
                self.shared.report_event(&SessionEvent::MalformedRequest);
                channel.reply(unique, Some(Errno::IO), &[]).ok();
            }
        }
        if self.is_spare && still_idle > 0 { ListenerAction::End } else { ListenerAction::Listen }
    }

    fn handle(&self, channel: &Channel, slot: &RequestSlot, request: &Request<'_>) {
        let taken = Instant::now();
        slot.begin(request.unique, request.pid, self.shared.millis_at(taken));
        let reply = Reply::new(channel, slot, (request.unique, taken));
        let file_system = &self.shared.file_system;
        // A reply that the panic drops says EIO.
        let handled = catch_unwind(AssertUnwindSafe(|| file_system.handle(request, reply)));
        slot.end(request.unique);
        if handled.is_err() {
            self.shared.report_event(&SessionEvent::Panicked { node: request.node });
        }
    }
}

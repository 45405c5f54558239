//! A thread that takes requests from the kernel and has them answered, one at a time. Called by `session`, and by
//! `watch` for spare ones.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Instant;

use rustix::io::Errno;

use crate::channel::Channel;
use crate::event::Event;
use crate::negotiate::REQUEST_BYTES;
use crate::operation::{Malformed, Message, Request};
use crate::reply::Reply;
use crate::session::Shared;
use crate::slot::Slot;

/// What a listener needs.
pub(crate) struct Listener {
    pub(crate) shared: Arc<Shared>,
    /// Which channel and which slot are its own.
    pub(crate) place: usize,
    /// Whether it ends once others are free again.
    pub(crate) is_spare: bool,
}

/// Whether to go on.
#[derive(PartialEq, Eq)]
enum Next {
    Listen,
    End,
}

impl Listener {
    /// Serves until the mount is gone.
    pub(crate) fn run(self) {
        let Some((channel, slot)) = self.shared.place(self.place) else { return };
        self.shared.file_system.listener_begins();
        let mut buffer = vec![0; REQUEST_BYTES];
        while self.serve(channel, slot, &mut buffer) == Next::Listen {}
        self.shared.listener_ended(self.place, self.is_spare);
    }

    fn serve(&self, channel: &Channel, slot: &Slot, buffer: &mut [u8]) -> Next {
        self.shared.free.enter();
        let received = channel.receive(buffer);
        let still_free = self.shared.free.leave();
        let length = match received {
            Err(Errno::INTR | Errno::AGAIN | Errno::NOENT) => return Next::Listen,
            Ok(0) | Err(Errno::NODEV) => {
                self.shared.gone();
                return Next::End;
            }
            Ok(length) => length,
            Err(errno) => {
                self.shared.tell(&Event::DeviceFailed { errno });
                return Next::End;
            }
        };
        let request = buffer.get(..length).unwrap_or_default();
        match Message::parse(request) {
            Ok(Message::Silent) => {}
            Ok(Message::Answer { unique, errno }) => {
                channel.reply(unique, errno, &[]).ok();
            }
            Ok(Message::Interrupt { unique, of }) => self.shared.interrupt(unique, of),
            Ok(Message::Request(request)) => self.handle(channel, slot, &request),
            Err(Malformed { unique }) => {
                self.shared.tell(&Event::Malformed);
                channel.reply(unique, Some(Errno::IO), &[]).ok();
            }
        }
        if self.is_spare && still_free > 0 { Next::End } else { Next::Listen }
    }

    fn handle(&self, channel: &Channel, slot: &Slot, request: &Request<'_>) {
        let taken = Instant::now();
        slot.begin(request.unique, request.pid, self.shared.at(taken));
        let reply = Reply::new(channel, slot, (request.unique, taken));
        let file_system = &self.shared.file_system;
        // A reply that the panic drops says EIO.
        let handled = catch_unwind(AssertUnwindSafe(|| file_system.handle(request, reply)));
        slot.end(request.unique);
        if handled.is_err() {
            self.shared.tell(&Event::Panicked { node: request.node });
        }
    }
}

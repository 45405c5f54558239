//! A session without threads and without a kernel, for the fuzz targets: one message at a time, handled by the calling
//! thread. Only with the feature `fuzzing`, which no release has.

use std::os::fd::OwnedFd;
use std::time::Instant;

use rustix::io::Errno;

use crate::reply::{Channel, Reply};
use crate::request::{IncomingMessage, MalformedRequest};
use crate::request_slot::RequestSlot;
use crate::session::FileSystem;

/// What a message was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HandledMessage {
    /// A request that the file system has handled.
    Request,
    /// A request that needs no file system.
    ImmediateReply,
    /// A request that is too short, which gets an error.
    Malformed,
    /// A message without a reply.
    NoReply,
}

/// A session of one slot.
#[derive(Debug)]
pub struct InlineSession {
    channel: Channel,
    slot: RequestSlot,
}

impl InlineSession {
    /// A session that writes its replies to `output`.
    #[must_use]
    pub fn new(output: OwnedFd) -> Self {
        Self { channel: Channel::new(output), slot: RequestSlot::new() }
    }

    /// Handles the bytes of one message as a listener does, but lets panics pass.
    ///
    /// # Errors
    /// The output refuses a reply.
    pub fn handle(
        &self,
        file_system: &dyn FileSystem,
        message: &[u8],
    ) -> Result<HandledMessage, Errno> {
        match IncomingMessage::parse(message) {
            Ok(IncomingMessage::NoReply | IncomingMessage::Interrupt { .. }) => {
                Ok(HandledMessage::NoReply)
            }
            Ok(IncomingMessage::ImmediateReply { unique, errno }) => {
                self.channel.reply(unique, errno, &[])?;
                Ok(HandledMessage::ImmediateReply)
            }
            Ok(IncomingMessage::Request(request)) => {
                self.slot.begin(request.unique, request.pid, 0);
                let reply = Reply::new(&self.channel, &self.slot, request.unique, Instant::now());
                file_system.handle(&request, reply);
                self.slot.end(request.unique);
                Ok(HandledMessage::Request)
            }
            Err(MalformedRequest { unique }) => {
                self.channel.reply(unique, Some(Errno::IO), &[])?;
                Ok(HandledMessage::Malformed)
            }
        }
    }
}

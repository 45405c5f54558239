//! A thread's handler: made at the first request, dropped after a panic, made again. Workers have
//! one each, the submitter has one for what it handles itself.

use super::request::{Handler, NoHandler, RequestOutcome};
use super::worker_queue::SlotBody;
use crate::catch_panic::{self, catch_panic};

/// Makes handlers; shared by all threads of a queue.
pub(super) type MakeHandler<H> = dyn Fn() -> Result<H, NoHandler> + Send + Sync;

/// A place for one handler.
#[derive(Debug)]
pub(super) struct HandlerCell<H> {
    handler: Option<H>,
}

impl<H: Handler> HandlerCell<H> {
    pub(super) const fn empty() -> Self {
        Self { handler: None }
    }

    /// Handles one request and notes its outcome. It never unwinds.
    pub(super) fn handle(&mut self, make: &MakeHandler<H>, body: &mut SlotBody<H::Request>) {
        // A handler that panicked is dropped below and the request is marked, so nobody sees what
        // the panic left half done as if it were whole.
        let ending = catch_panic(|| self.handle_or_unwind(make, body));
        if ending == catch_panic::CallOutcome::Panicked {
            body.outcome = RequestOutcome::Panicked;
            self.forget();
        }
    }

    fn handle_or_unwind(&mut self, make: &MakeHandler<H>, body: &mut SlotBody<H::Request>) {
        let handler = match &mut self.handler {
            Some(handler) => handler,
            empty => match make() {
                Ok(handler) => empty.insert(handler),
                Err(NoHandler) => {
                    body.outcome = RequestOutcome::NoHandler;
                    return;
                }
            },
        };
        handler.handle(&mut body.request);
        body.outcome = RequestOutcome::Done;
    }

    /// Drops the handler; a second panic stops here, too, and says nothing new.
    fn forget(&mut self) {
        let handler = self.handler.take();
        catch_panic(move || drop(handler));
    }
}

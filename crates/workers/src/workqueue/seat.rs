//! A thread's handler: made at the first request, dropped after a panic, made again. Workers have
//! one each, the submitter has one for what it handles itself.

use super::lane::Body;
use super::request::{Handler, NoHandler, Outcome};
use crate::contained::{self, contained};

/// Makes handlers; shared by all threads of a queue.
pub(super) type Make<H> = dyn Fn() -> Result<H, NoHandler> + Send + Sync;

/// A place for one handler.
#[derive(Debug)]
pub(super) struct Seat<H> {
    handler: Option<H>,
}

impl<H: Handler> Seat<H> {
    pub(super) const fn empty() -> Self {
        Self { handler: None }
    }

    /// Handles one request and notes its outcome. It never unwinds.
    pub(super) fn handle(&mut self, make: &Make<H>, body: &mut Body<H::Request>) {
        // A handler that panicked is dropped below and the request is marked, so nobody sees what
        // the panic left half done as if it were whole.
        let ending = contained(|| self.handle_or_unwind(make, body));
        if ending == contained::Outcome::Panicked {
            body.outcome = Outcome::Panicked;
            self.forget();
        }
    }

    fn handle_or_unwind(&mut self, make: &Make<H>, body: &mut Body<H::Request>) {
        let handler = match &mut self.handler {
            Some(handler) => handler,
            empty => match make() {
                Ok(handler) => empty.insert(handler),
                Err(NoHandler) => {
                    body.outcome = Outcome::NoHandler;
                    return;
                }
            },
        };
        handler.handle(&mut body.request);
        body.outcome = Outcome::Done;
    }

    /// Drops the handler; a second panic stops here, too, and says nothing new.
    fn forget(&mut self) {
        let handler = self.handler.take();
        contained(move || drop(handler));
    }
}

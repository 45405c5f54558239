//! What a user of the queue brings: a handler, which a worker owns, and requests, which slots hold.

/// Handles requests on one thread. All worker makes one of its own, on its own thread, at its first
/// request, and the submitter makes one when it first handles a request itself: codec contexts and
/// scratch belong here.
pub trait Handler {
    /// What a slot holds; it is made once for each slot and used again and again.
    type Request: Send + 'static;

    /// Handles one request and leaves the result in it. A panic ends this request only
    /// ([`RequestOutcome::Panicked`]); the handler is then dropped and a new one made.
    fn handle(&mut self, request: &mut Self::Request);
}

/// How a request ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RequestOutcome {
    /// The handler came back.
    Done,
    /// The handler panicked; what the request holds is whatever it had reached.
    Panicked,
    /// No handler could be made, so nobody looked at the request; the next one tries again.
    NoHandler,
}

/// Says that no handler could be made; why is the maker's to tell.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NoHandler;

//! A signal that wants the demonstration to end: what runs asks now and then, and everything is cleaned up on the way
//! out. Handlers set a number and a flag and do nothing else. Further signals change nothing: whatever may hang has a
//! time limit of its own.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use anyhow::{Context, anyhow};
use signal_hook::flag;

use crate::verbs::mount::{ENDING, Signal, ignored};

/// Whether somebody wants an end.
#[derive(Clone, Debug, Default)]
pub(in crate::verbs) struct StopRequest {
    signal: Arc<AtomicUsize>,
    is_wanted: Arc<AtomicBool>,
}

impl StopRequest {
    /// Puts handlers in place for the signals that end a program, but for those that whoever started it wants ignored.
    ///
    /// # Errors
    /// The system refuses a handler.
    pub(in crate::verbs) fn watch() -> anyhow::Result<Self> {
        let this = Self::default();
        let ignored = ignored();
        for signal in ENDING.into_iter().filter(|signal| ignored & 1 << (signal - 1) == 0) {
            let number = usize::try_from(signal).unwrap_or(0);
            flag::register_usize(signal, Arc::clone(&this.signal), number)
                .and_then(|_| flag::register(signal, Arc::clone(&this.is_wanted)))
                .with_context(|| format!("a handler for {}", Signal(number)))?;
        }
        Ok(this)
    }

    /// What becomes true.
    pub(in crate::verbs) fn flag(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.is_wanted)
    }

    pub(in crate::verbs) fn is_wanted(&self) -> bool {
        self.is_wanted.load(Ordering::SeqCst)
    }

    /// # Errors
    /// There was a signal; the text names it.
    pub(in crate::verbs) fn check(&self) -> anyhow::Result<()> {
        if self.is_wanted() {
            let signal = Signal(self.signal.load(Ordering::SeqCst));
            return Err(anyhow!("ended by {signal}"));
        }
        Ok(())
    }

    /// The same among errors of reading.
    pub(in crate::verbs) fn check_io(&self) -> io::Result<()> {
        if self.is_wanted() { Err(io::Error::other("interrupted")) } else { Ok(()) }
    }
}

//! Counts what is extracted and passes on what happens to whoever called.

use crate::content::Delivered;
use crate::error::{Error, Result};
use crate::event::{Event, Progress, Summary};

/// The counters of an extraction, and its caller's ear.
pub(crate) struct Reporter<'a> {
    pub(crate) summary: Summary,
    entries: u64,
    on_event: &'a mut dyn FnMut(Event),
}

impl<'a> Reporter<'a> {
    pub(crate) fn new(on_event: &'a mut dyn FnMut(Event)) -> Self {
        Self { summary: Summary::default(), entries: 0, on_event }
    }

    /// Reports a failure.
    pub(crate) fn fail(&mut self, error: Error) {
        self.summary.failures += 1;
        (self.on_event)(Event::Failed(error));
    }

    /// Reports a failure, or gives it back if nothing further can succeed.
    pub(crate) fn fail_or_stop(&mut self, error: Error) -> Result<()> {
        if error.kind().stops_everything() {
            return Err(error);
        }
        self.fail(error);
        Ok(())
    }

    pub(crate) fn delivered(&mut self, part: Delivered) {
        let (Delivered::Data(length) | Delivered::Hole(length)) = part;
        self.summary.bytes = self.summary.bytes.saturating_add(length);
        if let Delivered::Hole(length) = part {
            self.summary.hole_bytes = self.summary.hole_bytes.saturating_add(length);
        }
        self.progress();
    }

    /// One more entry is dealt with.
    pub(crate) fn entry(&mut self) {
        self.entries += 1;
        self.progress();
    }

    fn progress(&mut self) {
        let progress = Progress { entries: self.entries, bytes: self.summary.bytes };
        (self.on_event)(Event::Progress(progress));
    }
}

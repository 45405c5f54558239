//! Counts what is extracted and passes on what happens to whoever called.

use ferrofs_workers::workqueue::WorkQueueStats;

use crate::entry_writer::TaskReport;
use crate::error::{Error, Result};
use crate::event::{ExtractEvent, ExtractProgress, ExtractSummary};

/// The counters of an extraction, and its caller's ear.
pub(crate) struct Reporter<'a> {
    pub(crate) summary: ExtractSummary,
    entries: u64,
    on_event: &'a mut dyn FnMut(ExtractEvent),
}

impl<'a> Reporter<'a> {
    pub(crate) fn new(on_event: &'a mut dyn FnMut(ExtractEvent)) -> Self {
        Self { summary: ExtractSummary::default(), entries: 0, on_event }
    }

    /// Reports a failure.
    pub(crate) fn fail(&mut self, error: Error) {
        self.summary.failures += 1;
        (self.on_event)(ExtractEvent::Failed(error));
    }

    /// Says how the threads got their work.
    pub(crate) fn queue(&mut self, snapshot: WorkQueueStats) {
        (self.on_event)(ExtractEvent::Queue(Box::new(snapshot)));
    }

    /// Reports a failure, or gives it back if nothing further can succeed.
    pub(crate) fn fail_or_stop(&mut self, error: Error) -> Result<()> {
        if error.kind().stops_everything() {
            return Err(error);
        }
        self.fail(error);
        Ok(())
    }

    /// Takes in what a thread has done: entries, each marked with the bytes before its end. An error
    /// after which nothing further can succeed comes back, once everything else is taken in.
    pub(crate) fn record_batch(
        &mut self,
        report: TaskReport,
        progress_marks: &[u64],
    ) -> Result<()> {
        let TaskReport { counted, failures } = report;
        let before = self.summary.bytes;
        for mark in progress_marks {
            self.summary.bytes = before.saturating_add(*mark);
            self.entry();
        }
        self.summary.bytes = before;
        self.summary.add(&counted);
        if progress_marks.is_empty() {
            self.progress();
        }
        let mut result = Ok(());
        for error in failures {
            let failed = self.fail_or_stop(error);
            result = result.and(failed);
        }
        result
    }

    /// One more entry is dealt with.
    pub(crate) fn entry(&mut self) {
        self.entries += 1;
        self.progress();
    }

    fn progress(&mut self) {
        let progress = ExtractProgress { entries: self.entries, bytes: self.summary.bytes };
        (self.on_event)(ExtractEvent::Progress(progress));
    }
}

//! What was told to the log, counted by kind, with the last of it. Filled by `metrics`.

use std::fmt::{self, Write};
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use ferrofs_fuse::SessionEvent;

use super::record::{self, EVENT_TEXT_BYTES};
use crate::settings::MountLogEvent;

/// LogEventCounters so far.
#[derive(Debug, Default)]
pub(super) struct LogEventCounters(Mutex<LogEventState>);

#[derive(Debug, Default)]
struct LogEventState {
    /// Without the age.
    counts: record::LogEventRecord,
    last: Option<Instant>,
}

impl LogEventCounters {
    pub(super) fn add(&self, event: &MountLogEvent<'_>) {
        let mut text = TruncatedText { bytes: [0; EVENT_TEXT_BYTES], length: 0 };
        // It fails where the text is cut.
        write!(text, "{event}").unwrap_or_default();
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let count = place(&mut state.counts, event);
        *count = count.saturating_add(1);
        state.counts.last_text = text.bytes;
        state.last = Some(Instant::now());
    }

    pub(super) fn read(&self) -> record::LogEventRecord {
        let state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let age = |last: Instant| u64::try_from(last.elapsed().as_nanos()).unwrap_or(u64::MAX);
        let last_age_ns = state.last.map_or(record::UNKNOWN, age);
        record::LogEventRecord { last_age_ns, ..state.counts }
    }
}

fn place<'a>(counts: &'a mut record::LogEventRecord, event: &MountLogEvent<'_>) -> &'a mut u64 {
    match event {
        MountLogEvent::Failed { .. } => &mut counts.failed,
        MountLogEvent::Session(event) => match event {
            SessionEvent::TimedOut { .. } => &mut counts.timed_out,
            SessionEvent::Interrupted { .. } => &mut counts.let_go,
            SessionEvent::SpareListenerStarted { .. } => &mut counts.spares,
            SessionEvent::Panicked { .. } => &mut counts.panicked,
            SessionEvent::MalformedRequest => &mut counts.malformed,
            SessionEvent::DeviceFailed { .. } => &mut counts.device_failed,
            _ => &mut counts.other,
        },
    }
}

/// The front of a text, cut between two characters.
struct TruncatedText {
    bytes: [u8; EVENT_TEXT_BYTES],
    length: usize,
}

impl Write for TruncatedText {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        for character in text.chars() {
            let end = self.length.saturating_add(character.len_utf8());
            let room = self.bytes.get_mut(self.length..end).ok_or(fmt::Error)?;
            character.encode_utf8(room);
            self.length = end;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn notices_are_counted_by_kind_and_the_last_one_is_kept() {
        let log_events = LogEventCounters::default();
        assert_eq!(log_events.read(), record::LogEventRecord::default());
        log_events.add(&MountLogEvent::Session(&SessionEvent::MalformedRequest));
        let slow = SessionEvent::TimedOut { pid: 7, after: Duration::from_secs(1) };
        log_events.add(&MountLogEvent::Session(&slow));
        let read = log_events.read();
        assert_eq!((read.malformed, read.timed_out, read.failed), (1, 1, 0));
        assert!(read.last_text.starts_with(b"request of thread 7 timed out after 1s"));
        assert!(record::known(read.last_age_ns).is_some());
    }

    #[test]
    fn a_long_text_is_cut_between_characters() {
        let mut text = TruncatedText { bytes: [0; EVENT_TEXT_BYTES], length: 0 };
        assert!(write!(text, "x{}", "\u{e9}".repeat(EVENT_TEXT_BYTES)).is_err());
        assert_eq!(text.length, EVENT_TEXT_BYTES - 1);
        assert!(std::str::from_utf8(&text.bytes[..text.length]).is_ok());
    }
}
